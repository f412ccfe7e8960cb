"""Pipelines that learn from streams with drift (docs/streams.md).

    python benchmarks/streams.py genres ../shared/data
    python benchmarks/streams.py brands ../shared/data
    python benchmarks/streams.py memory ../shared/data
    python benchmarks/streams.py table
    python benchmarks/streams.py picture docs/streams.svg

genres: a tagger, trained on weblogs of UD English EWT, gets newsgroups, emails, reviews and answers, sentence by
sentence. brands: a recognizer that finds code in Python's documentation gets texts about fashion with a label that is
new to it. memory: a million tokens of EWT, and what the process holds. Results are lines in benchmarks/streams.jsonl;
the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import spacy
from confection import Config
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import registry

from thinc_torchopt.addons.corpora import PythonDocs
from thinc_torchopt.addons.streams import LearnSettings, StreamLearner
from thinc_torchopt.addons.streams.records import read_examples
from thinc_torchopt.addons.streams.source import LineReader

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "streams.jsonl"
GENRES = ("newsgroup", "email", "reviews", "answers")
TEXTS = 600  # of each genre
ENCODERS: dict[str, dict[str, Any]] = {
    "CNN": {
        "@architectures": "spacy.MaxoutWindowEncoder.v2",
        "width": 96,
        "depth": 4,
        "window_size": 1,
        "maxout_pieces": 3,
    },
    "BiLSTM, BPTT": {"@architectures": "spacy.TorchBiLSTMEncoder.v1", "width": 96, "depth": 1, "dropout": 0.0},
    "MinGRU, exact": {
        "@architectures": "thinc-torchopt.OnlineRNNEncoder.v1",
        "width": 96,
        "depth": 1,
        "cell": "mingru",
        "learning": "d-rtrl",
        "bidirectional": True,
    },
}
RATE = 0.001
# The settings of each way to learn. None: no learning. The number: texts between two trainings from the beginning.
WAYS: dict[str, dict[str, Any] | int | None] = {
    "nothing": None,
    "each text": {},
    "each text, teacher": {"teacher": True},
    "each text, 1 old": {"replay": 1},
    "each text, 4 old": {"replay": 4},
    "retrain": 600,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["genres", "brands", "memory", "table", "picture"])
    parser.add_argument("path", type=Path, nargs="?", help="folder of the corpora, or the picture")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="for memory (default: %(default)s)")
    args = parser.parse_args()
    if args.task == "table":
        print_tables()
    elif args.task == "picture":
        draw(args.path)
    elif args.task == "memory":
        with tempfile.TemporaryDirectory() as folder:
            record({"task": "memory", "rows": measure_memory(args.path, Path(folder), args.tokens)})
    else:
        for seed in range(args.seeds):
            with tempfile.TemporaryDirectory() as folder:
                (genres if args.task == "genres" else brands)(args.path, Path(folder), seed)


def record(result: dict[str, Any]) -> None:
    print(json.dumps(result), flush=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(result) + "\n")


def results(task: str) -> list[dict[str, Any]]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return [found for found in map(json.loads, lines) if found["task"] == task]


def is_done(task: str, model: str, way: str, seed: int) -> bool:
    return any((one["model"], one["way"], one["seed"]) == (model, way, seed) for one in results(task))


# ---------------------------------------------------------------------- genres


def genres(data: Path, folder: Path, seed: int) -> None:
    nlp = spacy.blank("en")
    by_genre = {part: sentences(nlp, data, part) for part in ("train", "dev")}
    save(folder / "train.spacy", by_genre["train"]["weblog"])
    save(folder / "dev.spacy", by_genre["dev"]["weblog"])
    shuffled = random.Random(seed)
    texts = [shuffled.sample(by_genre["train"][genre], TEXTS) for genre in GENRES]
    write_stream(folder / "stream.jsonl", chain.from_iterable(texts))
    for model, encode in ENCODERS.items():
        config = Config().from_disk(ROOT / "configs" / "online_rnn.cfg", interpolate=False)
        config["components"]["tagger"]["model"]["tok2vec"]["encode"] = encode
        # The tags of all genres: drift is measured here, and not new labels.
        labels = sorted({token.tag_ for docs in by_genre["train"].values() for doc in docs for token in doc})
        config["initialize"] = {"components": {"tagger": {"labels": labels}}}
        ways = ["nothing", "each text", "each text, 1 old"]
        ways += ["each text, 4 old", "retrain"] if model == "CNN" else []
        compare("genres", model, config, folder, seed, ways)


def sentences(nlp: Language, data: Path, part: str) -> dict[str, list[Doc]]:
    docs = DocBin().from_disk(data / f"ud-english-ewt-{part}.spacy").get_docs(nlp.vocab)
    found: dict[str, list[Doc]] = {}
    for doc, genre in zip(docs, json.loads((data / "ud-english-ewt-genres.json").read_text())[part], strict=True):
        found.setdefault(genre, []).extend(sentence.as_doc() for sentence in doc.sents)
    return found


# ---------------------------------------------------------------------- brands


def brands(data: Path, folder: Path, seed: int) -> None:
    nlp = spacy.blank("en")
    for part in ("train", "dev"):
        save(folder / f"{part}.spacy", [example.reference for example in PythonDocs(part)(nlp)])
    docs = list(DocBin().from_disk(data / "fashion-brands-train.spacy").get_docs(nlp.vocab))
    write_stream(folder / "stream.jsonl", random.Random(seed).sample(docs, min(1200, len(docs))))
    config = Config().from_disk(ROOT / "configs" / "federated.cfg", interpolate=False)
    del config["federated"], config["initialize"], config["paths"]["labels"]
    ways = ["nothing", "each text", "each text, teacher", "each text, 1 old", "each text, 4 old"]
    compare("brands", "CNN", config, folder, seed, ways)


# ---------------------------------------------------------------------- runs


def compare(task: str, model: str, config: Config, folder: Path, seed: int, ways: list[str]) -> None:
    left = [way for way in ways if not is_done(task, model, way, seed)]
    if not left:
        return
    config["paths"] = {part: str(folder / f"{part}.spacy") for part in ("train", "dev")}
    config["system"] = {"seed": seed, "gpu_allocator": None}
    config["training"] |= {"max_steps": 400, "eval_frequency": 100}
    config["training"]["optimizer"] |= {"learn_rate": RATE, "algorithm": {"@torch_optimizers": "torch.AdamW.v1"}}
    fit(config, folder / "model")
    for way in left:
        record({"task": task, "model": model, "way": way, "seed": seed, **run(config, folder, WAYS[way])})


def fit(config: Config, output: Path) -> None:
    shutil.rmtree(output, ignore_errors=True)
    nlp, _ = train(init_nlp(config), None)
    nlp.to_disk(output)


def run(config: Config, folder: Path, way: dict[str, Any] | int | None) -> dict[str, Any]:
    """Learn from the stream. RETURNS (dict): Scores of blocks, of the first corpus before and after, and the time."""
    start = time.perf_counter()
    if isinstance(way, int):
        found = retrained(config, folder, way)
    else:
        found = learned(
            folder,
            {"every": 100, "watch_every": 10**6, "new_labels": "add", "teacher": False, **(way or {})},
            way is None,
        )
    return {**found, "seconds": round(time.perf_counter() - start, 1)}


def learned(folder: Path, settings: dict[str, Any], is_frozen: bool) -> dict[str, Any]:
    shutil.rmtree(folder / "out", ignore_errors=True)
    nlp, optimizer = load(folder / "model", is_frozen)
    has_memory = bool(settings.get("replay"))
    with StreamLearner(
        nlp,
        optimizer,
        folder / "out",
        LearnSettings(**settings),
        old=folder / "train.spacy" if has_memory else None,
        watched=folder / "dev.spacy",
    ) as learner:
        rows = list(learner.learn(LineReader(folder / "stream.jsonl")))
    scores = [row.score for row in rows if row.score is not None]
    watched = [row.watched for row in rows if row.watched is not None]
    last = evaluate(spacy.load(folder / "out" / "model-last"), folder / "dev.spacy")
    return {"scores": scores, "before": watched[0], "after": last, "tokens": rows[-1].tokens}


def load(model: Path, is_frozen: bool) -> tuple[Language, Any]:
    nlp = spacy.load(model)
    block = nlp.config.interpolate()["training"]["optimizer"]
    return nlp, registry.resolve({"optimizer": {**block, "learn_rate": 0.0 if is_frozen else RATE}})["optimizer"]


def retrained(config: Config, folder: Path, every: int) -> dict[str, Any]:
    """Train anew after so many texts, on all that were seen."""
    seen = list(DocBin().from_disk(folder / "train.spacy").get_docs(spacy.blank("en").vocab))
    nlp, scores, before, tokens = spacy.load(folder / "model"), [], None, 0
    records = [json.loads(line) for line in (folder / "stream.jsonl").read_text().splitlines()]
    for start in range(0, len(records), 100):
        before = evaluate(nlp, folder / "dev.spacy") if before is None else before
        examples = [Example.from_dict(words(nlp, one), one) for one in records[start : start + 100]]
        scores.append(score(nlp, examples))
        seen += [example.reference for example in examples]
        tokens += sum(len(example.reference) for example in examples)
        if (start + 100) % every == 0:
            save(folder / "seen.spacy", seen)
            again = Config(config)
            again["paths"] = {**config["paths"], "train": str(folder / "seen.spacy")}
            fit(again, folder / "again")
            nlp = spacy.load(folder / "again")
    return {"scores": scores, "before": before, "after": evaluate(nlp, folder / "dev.spacy"), "tokens": tokens}


def words(nlp: Language, one: dict[str, Any]) -> Doc:
    tokens = one["token_annotation"]
    return Doc(nlp.vocab, words=tokens["ORTH"], spaces=[bool(space) for space in tokens["SPACY"]])


def evaluate(nlp: Language, corpus: Path) -> float:
    return score(nlp, [example for _, example in read_examples(nlp, corpus)])


def score(nlp: Language, examples: list[Example]) -> float:
    weights = nlp.config["training"]["score_weights"]
    scores = nlp.evaluate(examples)
    return float(sum(weight * (scores.get(name) or 0.0) for name, weight in weights.items() if weight))


def save(path: Path, docs: list[Doc]) -> None:
    DocBin(docs=docs).to_disk(path)


def write_stream(path: Path, docs: Any) -> None:
    path.write_text("".join(json.dumps(Example(doc, doc).to_dict()) + "\n" for doc in docs))


# ---------------------------------------------------------------------- memory


def measure_memory(data: Path, folder: Path, tokens: int) -> list[tuple[int, float]]:
    """RETURNS (list): Tokens, and the most MiB that the process held until then. Each word is new in each epoch."""
    nlp = spacy.blank("en")
    by_genre = sentences(nlp, data, "train")
    docs = list(chain.from_iterable(by_genre.values()))
    config = Config().from_disk(ROOT / "configs" / "online_rnn.cfg", interpolate=False)
    config["components"]["tagger"]["model"]["tok2vec"]["encode"] = ENCODERS["CNN"]
    save(folder / "train.spacy", docs[:500])
    save(folder / "dev.spacy", docs[:50])
    labels = sorted({token.tag_ for doc in docs for token in doc})
    config["initialize"] = {"components": {"tagger": {"labels": labels}}}
    config["paths"] = {part: str(folder / f"{part}.spacy") for part in ("train", "dev")}
    config["training"] |= {"max_steps": 20, "eval_frequency": 20}
    fit(config, folder / "model")
    with (folder / "stream.jsonl").open("w") as file:
        for line in endless(docs):
            file.write(line)
            tokens -= len(json.loads(line)["words"])
            if tokens <= 0:
                break
    pipeline, optimizer = load(folder / "model", is_frozen=False)
    del nlp, by_genre, docs
    rows = []
    with StreamLearner(
        pipeline, optimizer, folder / "out", LearnSettings(batch_size=16, every=800, save_every=8000, replay=16)
    ) as learner:
        for row in learner.learn(LineReader(folder / "stream.jsonl")):
            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            rows.append((row.tokens, round(held, 1)))
    return rows[:: max(1, len(rows) // 50)]


def endless(docs: list[Doc]) -> Iterator[str]:
    """All texts again and again, each time with other words."""
    for i, doc in enumerate(cycle(docs)):
        epoch = i // len(docs)
        yield json.dumps({"words": [f"{t.text}{epoch or ''}" for t in doc], "tags": [t.tag_ for t in doc]}) + "\n"


# ---------------------------------------------------------------------- what is shown


def print_tables() -> None:
    for task, last in (("genres", 100.0), ("brands", 100.0)):
        print(f"\n{task}: model, way, new texts, first corpus before, after, ms a token")
        by_arm: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for one in results(task):
            by_arm.setdefault((one["model"], one["way"]), []).append(one)
        for (model, way), found in by_arm.items():
            columns = [
                [last * statistics.mean(one["scores"]) for one in found],
                [last * one["before"] for one in found],
                [last * one["after"] for one in found],
                [1000 * one["seconds"] / one["tokens"] for one in found],
            ]
            print("|", model, "|", way, "|", " | ".join(spread(column) for column in columns), "|", len(found))


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.1f}"


def draw(path: Path) -> None:
    from thinc_torchopt.core.compat import import_figure

    figure = import_figure()(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    arms = [("CNN", "nothing"), ("CNN", "each text"), ("CNN", "each text, 4 old"), ("CNN", "retrain"),
            ("MinGRU, exact", "each text")]  # fmt: skip
    for model, way in arms:
        runs = [one["scores"] for one in results("genres") if (one["model"], one["way"]) == (model, way)]
        means = [100 * statistics.mean(column) for column in zip(*runs)]
        axes.plot([100 * (i + 1) for i in range(len(means))], means, marker=".", label=f"{model}: {way}")
    for i, genre in enumerate(GENRES):
        axes.axvline(TEXTS * i, color="grey", linewidth=0.7)
        axes.text(TEXTS * i + 20, axes.get_ylim()[0] + 0.3, genre, fontsize="small", color="grey")
    axes.set_xlabel("texts")
    axes.set_ylabel("accuracy of tags on texts before they are learned")
    figure.legend(loc="outside upper center", ncols=3, fontsize="small")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
