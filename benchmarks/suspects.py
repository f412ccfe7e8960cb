"""How many wrong annotations does a recorded training find? The tables of docs/suspects.md.

    python benchmarks/suspects.py run                       # what is missing in suspects.jsonl
    python benchmarks/suspects.py run --tasks food --seeds 1
    python benchmarks/suspects.py table

Real mistakes: the tags of EWT as of 2019, which its maintainers have corrected since, in two halves; the ranking was
chosen on the first. Planted ones: one in each of 5% of the annotated texts, or 5% of words. An entity or span is
dropped, moved by a word, added at a random word, or gets another label; a category changes places with another one; a
tag becomes that of a random word; a head becomes a random word of the sentence.

Each run trains what `spacy torchopt init --recipe best` writes, with a recorder, and ranks tokens or texts by their
score; a text by its hardest annotation. `found`: how many of the wrong ones are among as many highest. `by hardness`:
the same, without how rare the label of a word is. A run takes one to five minutes of CPU time.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import spacy
from confection import Config
from score import DATA
from spacy.tokens import Doc, DocBin, Span

from thinc_torchopt.addons.report.suspects import OfComponent, read_suspects

RESULTS = Path(__file__).with_suffix(".jsonl")
PART = 0.05
Wrong = list[set[int]]  # by text: tokens, or any number where the text as a whole is meant


# ---------------------------------------------------------------------------------------------------- the mistakes


def of_2019(docs: list[Doc], rng: random.Random) -> tuple[list[Doc], Wrong]:
    rows = json.loads((DATA / "ewt-2019-tags-corrected.json").read_text())
    return docs, [{token for token, _ in row} for row in rows]


def plant_tags(docs: list[Doc], rng: random.Random) -> tuple[list[Doc], Wrong]:
    tags, wrong = [token.tag_ for doc in docs for token in doc], []
    for doc in docs:
        new = {token.i: rng.choice(tags) for token in doc if rng.random() < PART}
        wrong.append({i for i, tag in new.items() if tag != doc[i].tag_})
        for i, tag in new.items():
            doc[i].tag_ = tag
    return docs, wrong


def plant_heads(docs: list[Doc], rng: random.Random) -> tuple[list[Doc], Wrong]:
    found, wrong = [], []
    for doc in docs:
        heads, changed = [token.head.i for token in doc], set()
        for sent in doc.sents:
            token, new = rng.choice(sent), rng.randrange(sent.start, sent.end)
            # At the rate of the part, but one in a sentence at most, and none that closes a circle.
            if rng.random() < PART * len(sent) and new not in {token.head.i, *(one.i for one in token.subtree)}:
                heads[token.i] = new
                changed.add(token.i)
        words, spaces = [token.text for token in doc], [bool(token.whitespace_) for token in doc]
        found.append(Doc(doc.vocab, words=words, spaces=spaces, heads=heads, deps=[token.dep_ for token in doc]))
        wrong.append(changed)
    return found, wrong


def plant_entities(docs: list[Doc], rng: random.Random, key: str = "") -> tuple[list[Doc], Wrong]:
    annotated = [i for i, doc in enumerate(docs) if doc.ents]
    chosen = set(rng.sample(annotated, round(PART * len(annotated))))
    labels = sorted({ent.label_ for doc in docs for ent in doc.ents})
    for i, doc in enumerate(docs):
        spans = [(ent.start, ent.end, ent.label_) for ent in doc.ents]
        if i in chosen:
            spans = _otherwise(doc, spans, labels, rng)
        made = [Span(doc, start, end, label=label) for start, end, label in sorted(spans)]
        doc.set_ents([] if key else made)
        if key:
            doc.spans[key] = made
    return docs, [{0} if i in chosen else set() for i in range(len(docs))]


def _otherwise(doc: Doc, spans: list[tuple[int, int, str]], labels: list[str], rng: random.Random) -> Any:
    """Spans with one mistake."""
    taken = {token for start, end, _ in spans for token in range(start, end)}
    rest, (start, end, label) = spans[:], spans[rng.randrange(len(spans))]
    rest.remove((start, end, label))
    ways = [rest]
    if end < len(doc) and end not in taken:
        ways.append([*rest, (start, end + 1, label)])
    if free := [token.i for token in doc if token.i not in taken and token.is_alpha]:
        first = rng.choice(free)
        ways.append([*spans, (first, first + 1, rng.choice(labels))])
    if others := [one for one in labels if one != label]:
        ways.append([*rest, (start, end, rng.choice(others))])
    return rng.choice(ways)


def plant_spans(docs: list[Doc], rng: random.Random) -> tuple[list[Doc], Wrong]:
    return plant_entities(docs, rng, "sc")


def plant_categories(docs: list[Doc], rng: random.Random) -> tuple[list[Doc], Wrong]:
    chosen = set(rng.sample(range(len(docs)), round(PART * len(docs))))
    for i in chosen:
        held = [name for name, value in docs[i].cats.items() if value]
        others = [name for name, value in docs[i].cats.items() if not value]
        docs[i].cats |= {rng.choice(others): 1.0, **({rng.choice(held): 0.0} if held else {})}
    return docs, [{0} if i in chosen else set() for i in range(len(docs))]


# By name: the corpus, the mistakes, the component, the most texts, and whether single tokens are ranked.
TASKS: dict[str, tuple[str, Callable[..., tuple[list[Doc], Wrong]], str, int, bool]] = {
    "ewt-2019": ("ewt-2019-tags", of_2019, "tagger", 0, True),
    "tags": ("ud-english-ewt", plant_tags, "tagger", 600, True),
    "heads": ("ud-english-ewt", plant_heads, "parser", 500, True),
    "fashion-brands": ("fashion-brands", plant_entities, "ner", 0, False),
    "food": ("food", plant_entities, "ner", 0, False),
    "food-spans": ("food", plant_spans, "spancat", 0, False),
    "cooking": ("cooking", plant_categories, "textcat_multilabel", 0, False),
    "docs-issues": ("docs-issues", plant_categories, "textcat", 0, False),
}


# -------------------------------------------------------------------------------------------------------------- a run


def run(task: str, seed: int) -> list[dict[str, Any]]:
    """Plant mistakes, train, and rank."""
    corpus, plant, component, most, is_of_tokens = TASKS[task]
    vocab = spacy.blank("en").vocab
    name = f"{corpus}.spacy" if plant is of_2019 else f"{corpus}-train.spacy"
    docs = [*DocBin().from_disk(DATA / name).get_docs(vocab)][: most or None]
    dev = [*DocBin().from_disk(DATA / f"{'ud-english-ewt' if plant is of_2019 else corpus}-dev.spacy").get_docs(vocab)]
    docs, wrong = plant(docs, random.Random(seed))
    if plant is plant_spans:
        dev, _ = plant_entities(dev, random.Random(seed), "sc")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        DocBin(docs=docs).to_disk(path / "train.spacy")
        DocBin(docs=dev).to_disk(path / "dev.spacy")
        config = _config(path, component, seed)
        command = ["-m", "spacy", "train", config, "--output", path / "run"]
        subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
        found = read_suspects(path / "run").components[component]
    parts = {"all": range(len(docs))}
    if plant is of_2019:
        parts |= {"first half": range(len(docs) // 2), "second half": range(len(docs) // 2, len(docs))}
    return [
        {"task": task, "part": part, "seed": seed, **judge(found, wrong, texts, is_of_tokens)}
        for part, texts in parts.items()
    ]


def _config(folder: Path, component: str, seed: int) -> Path:
    path = folder / "config.cfg"
    command = ["-m", "spacy", "torchopt", "init", path, "--lang", "en", "--recipe", "best", "--pipeline", component]
    command += ["--paths.train", folder / "train.spacy", "--paths.dev", folder / "dev.spacy"]
    subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    config = Config().from_disk(path, interpolate=False)
    config["system"]["seed"] = seed
    config["training"]["optimizer"]["recorder"] = {"@misc": "thinc-torchopt.Recorder.v1"}
    config.to_disk(path)
    return path


def judge(found: OfComponent, wrong: Wrong, texts: range, is_of_tokens: bool) -> dict[str, Any]:
    """Recall of the wrong ones in parts of two rankings, and the area under the ROC curve."""
    results: dict[str, Any] = {}
    for name, scores in (("", found.scores), ("by hardness: ", found.hardness)):
        if is_of_tokens:
            values = numpy.concatenate([scores[i] for i in texts])
            is_wrong = numpy.concatenate([numpy.isin(numpy.arange(len(scores[i])), [*wrong[i]]) for i in texts])
        else:
            kept = [i for i in texts if wrong[i] or found.annotated[i]]
            of_text = numpy.linalg.norm if found.kind.key == "cats" else numpy.max
            values = numpy.array([of_text(scores[i]) for i in kept])
            is_wrong = numpy.array([bool(wrong[i]) for i in kept])
        ranked = is_wrong[numpy.argsort(-values, kind="stable")]
        n, among = int(is_wrong.sum()), len(ranked)
        ranks = numpy.flatnonzero(ranked[::-1]) + 1
        results |= {
            "wrong": n,
            "among": among,
            f"{name}found": int(ranked[:n].sum()),
            f"{name}highest 1%": round(float(ranked[: among // 100].sum() / n), 3),
            f"{name}highest 5%": round(float(ranked[: among // 20].sum() / n), 3),
            f"{name}AUC": round(float((ranks.sum() - n * (n + 1) / 2) / (n * (among - n))), 3),
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    given = parser.parse_args()
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    if given.what == "table":
        for row in rows:
            print(" ".join(f"{name} {value}," for name, value in row.items()).rstrip(","))
        return
    for task in given.tasks:
        for seed in given.seeds:
            if not any((row["task"], row["seed"]) == (task, seed) for row in rows):
                with RESULTS.open("a") as file:
                    file.writelines(f"{json.dumps(row)}\n" for row in run(task, seed))
                print(f"{task}, seed {seed}: done")


if __name__ == "__main__":
    main()
