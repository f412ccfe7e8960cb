"""Which wrong annotations does a recorded training find, and does it help to correct them? Figures of docs/suspects.md.

    python benchmarks/suspects.py run                       # what is missing in suspects.jsonl
    python benchmarks/suspects.py run --by folds --tasks food --seeds 1
    python benchmarks/suspects.py clean                     # what is missing in suspects-cleaned.jsonl
    python benchmarks/suspects.py table
    python benchmarks/suspects.py picture docs/suspects.svg

Real mistakes: the tags of EWT as of 2019, which its maintainers have corrected since, in two halves; the ranking was
chosen on the first. Planted ones: one in each of 5% of the annotated texts, or 5% of words. An entity or span is
dropped, moved by a word, added at a random word, or gets another label; a category changes places with another one; a
tag becomes that of a random word; a head becomes a random word of the sentence.

All trainings are of what `spacy torchopt init --recipe best` writes. Tokens or texts are ranked by

    recorder  their score in the record of one training; a text by its hardest annotation. `hardness`: the same, without
              how rare the label of a word is
    folds     five trainings, each without a fifth of the texts, which it predicts afterwards. Tags and categories by
              what cleanlab calls the quality of a label (its probability); entities, spans and heads, which have no
              probabilities, by the share that differs from what is predicted. Ties in random order. Needs cleanlab

`found`: how many of the wrong ones are among as many highest. `clean` corrects the wrong ones of the highest 1 and 5%,
of 5% at random, or all, trains again, and scores on the development texts, which have no planted mistakes. Seconds are
CPU time, of all trainings that a ranking needs. A training takes one to five minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import spacy
from confection import Config
from score import DATA
from spacy.tokens import Doc, DocBin, Span

from thinc_torchopt.addons.report.suspects import read_suspects

RESULTS = Path(__file__).with_suffix(".jsonl")
CLEANED = RESULTS.with_name("suspects-cleaned.jsonl")
PART, FOLDS = 0.05, 5
Wrong = list[set[int]]  # by text: tokens, or any number where the text as a whole is meant
Scores = dict[int, Any]  # by text: of its tokens, or one number


# ---------------------------------------------------------------------------------------------------- the mistakes


def of_2019(docs: list[Doc], rng: random.Random) -> tuple[list[Doc], Wrong]:
    return docs, [{token for token, _ in row} for row in _corrections()]


def _corrections() -> list[list[tuple[int, str]]]:
    """By text: a token, and the tag that it has today."""
    rows: list[list[tuple[int, str]]] = json.loads((DATA / "ewt-2019-tags-corrected.json").read_text())
    return rows


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


class Task(NamedTuple):
    """plant (Callable): The mistakes. most (int): Of texts; 0: all. is_of_tokens (bool): Single tokens are ranked.
    score (str): Of the pipeline, in its meta.json.
    """

    corpus: str
    plant: Callable[..., tuple[list[Doc], Wrong]]
    component: str
    score: str
    most: int = 0
    is_of_tokens: bool = False


TASKS = {
    "ewt-2019": Task("ewt-2019-tags", of_2019, "tagger", "tag_acc", is_of_tokens=True),
    "tags": Task("ud-english-ewt", plant_tags, "tagger", "tag_acc", 600, is_of_tokens=True),
    "heads": Task("ud-english-ewt", plant_heads, "parser", "dep_las", 500, is_of_tokens=True),
    "fashion-brands": Task("fashion-brands", plant_entities, "ner", "ents_f"),
    "food": Task("food", plant_entities, "ner", "ents_f"),
    "food-spans": Task("food", plant_spans, "spancat", "spans_sc_f"),
    "cooking": Task("cooking", plant_categories, "textcat_multilabel", "cats_score"),
    "docs-issues": Task("docs-issues", plant_categories, "textcat", "cats_score"),
}


class Corpus:
    """Texts with mistakes. Public: `docs`, `right` (without mistakes), `dev`, `wrong`, `is_annotated` (by text)."""

    def __init__(self, task: Task, seed: int):
        is_real = task.plant is of_2019
        name = task.corpus if is_real else f"{task.corpus}-train"
        docs, self.right = (_read(name)[: task.most or None] for _ in range(2))
        self.dev = _read("ud-english-ewt-dev" if is_real else f"{task.corpus}-dev")
        self.docs, self.wrong = task.plant(docs, random.Random(seed))
        for doc, row in zip(self.right, _corrections() if is_real else ()):
            for token, tag in row:
                doc[token].tag_ = tag
        if task.component == "spancat":
            for doc in (*self.right, *self.dev):
                doc.spans["sc"] = list(doc.ents)
                doc.set_ents([])
        has_none = task.component in ("ner", "spancat")
        self.is_annotated = [not has_none or bool(spans_of(doc, task.component)) for doc in self.docs]

    def corrected(self, chosen: Sequence[tuple[int, int]], *, by_token: bool) -> list[Doc]:
        """The texts with the right annotation where they are wrong at the chosen places: tags, or texts."""
        docs = [doc.copy() for doc in self.docs] if by_token else self.docs[:]
        for i, token in chosen:
            if by_token and token in self.wrong[i]:
                docs[i][token].tag_ = self.right[i][token].tag_
            elif self.wrong[i] and not by_token:
                docs[i] = self.right[i]
        return docs


def _read(name: str) -> list[Doc]:
    return [*DocBin(store_user_data=True).from_disk(DATA / f"{name}.spacy").get_docs(spacy.blank("en").vocab)]


def spans_of(doc: Doc, component: str) -> set[tuple[int, int, str]]:
    spans = doc.ents if component == "ner" else doc.spans["sc"]
    return {(span.start, span.end, span.label_) for span in spans}


# --------------------------------------------------------------------------------------------------------- trainings


def train(folder: Path, task: Task, docs: Sequence[Doc], dev: Sequence[Doc], seed: int) -> tuple[Path, float]:
    """With a recorder. RETURNS: the folder of the run, and seconds of CPU time."""
    folder.mkdir()
    for name, texts in (("train", docs), ("dev", dev)):
        DocBin(docs=texts, store_user_data=True).to_disk(folder / f"{name}.spacy")
    path = folder / "config.cfg"
    paths = ["--paths.train", folder / "train.spacy", "--paths.dev", folder / "dev.spacy"]
    _spacy("torchopt", "init", path, "--lang", "en", "--recipe", "best", "--pipeline", task.component, *paths)
    config = Config().from_disk(path, interpolate=False)
    config["system"]["seed"] = seed
    config["training"]["optimizer"]["recorder"] = {"@misc": "thinc-torchopt.Recorder.v1"}
    config.to_disk(path)
    before = _cpu_seconds()
    _spacy("train", path, "--output", folder / "run")
    return folder / "run", _cpu_seconds() - before


def _spacy(*command: Any) -> None:
    command = (sys.executable, "-m", "spacy", *map(str, command))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rank_by_recorder(task: Task, corpus: Corpus, seed: int, folder: Path) -> Iterator[tuple[str, Scores, float]]:
    """YIELDS: the name of a ranking, its scores, and seconds of CPU time."""
    run, seconds = train(folder / "recorded", task, corpus.docs, corpus.dev, seed)
    found = read_suspects(run).components[task.component]
    of_text = numpy.linalg.norm if task.component.startswith("textcat") else numpy.max
    for name, scores in (("recorder", found.scores), ("hardness", found.hardness)):
        if name == "recorder" or task.component == "tagger":
            yield name, scores if task.is_of_tokens else {i: of_text(one) for i, one in scores.items()}, seconds


def rank_by_folds(task: Task, corpus: Corpus, seed: int, folder: Path) -> Iterator[tuple[str, Scores, float]]:
    scores: Scores = {}
    seconds = 0.0
    for fold in range(FOLDS):
        rest = [doc for i, doc in enumerate(corpus.docs) if i % FOLDS != fold]
        run, used = train(folder / f"fold {fold}", task, rest, corpus.dev, seed)
        nlp, seconds = spacy.load(run / "model-best"), seconds + used
        for i in range(fold, len(corpus.docs), FOLDS):
            doc = corpus.docs[i]
            new = Doc(nlp.vocab, words=[token.text for token in doc], spaces=[bool(token.whitespace_) for token in doc])
            scores[i] = doubt(nlp, task.component, doc, new)
    yield "folds", scores, seconds


def doubt(nlp: Any, component: str, doc: Doc, new: Doc) -> Any:
    """How much a pipeline that has not seen an annotated text doubts it. new (Doc): The text without annotation."""
    from cleanlab import multilabel_classification, rank

    *before, (_, pipe) = nlp.pipeline
    for _, one in before:
        new = one(new)
    if component in ("ner", "spancat"):
        predicted, annotated = spans_of(pipe(new), component), spans_of(doc, component)
        return len(predicted ^ annotated) / max(1, len(predicted | annotated))
    if component == "parser":
        return numpy.array([float(one.head.i != two.head.i) for one, two in zip(pipe(new), doc)])
    labels, probabilities = list(pipe.labels), pipe.model.predict([new])[0]
    if component == "textcat_multilabel":
        held = [[labels.index(label) for label, value in doc.cats.items() if value]]
        return 1 - float(multilabel_classification.get_label_quality_scores(held, probabilities[None])[0])
    held = [max(doc.cats, key=doc.cats.__getitem__)] if component == "textcat" else [token.tag_ for token in doc]
    if component == "tagger":  # spaCy leaves its scores as they are
        probabilities = pipe.model.ops.softmax(probabilities)
    # A label that is in the fifth alone has no probability.
    places = numpy.array([labels.index(label) if label in labels else len(labels) for label in held])
    rows = numpy.pad(probabilities.reshape(len(held), -1), [(0, 0), (0, 1)])
    found = 1 - rank.get_label_quality_scores(places, rows)
    return found if component == "tagger" else float(found[0])


BY = {"recorder": rank_by_recorder, "folds": rank_by_folds}


# ------------------------------------------------------------------------------------------------------------- results


def run(name: str, seed: int, by: str) -> Iterator[dict[str, Any]]:
    """Plant mistakes, train, and rank. YIELDS: results."""
    task = TASKS[name]
    corpus = Corpus(task, seed)
    n = len(corpus.docs)
    parts = {"all": range(n)}
    if task.plant is of_2019:
        parts |= {"first half": range(n // 2), "second half": range(n // 2, n)}
    with tempfile.TemporaryDirectory() as folder:
        for ranking, scores, seconds in BY[by](task, corpus, seed, Path(folder)):
            for part, texts in parts.items():
                row = {"task": name, "part": part, "by": ranking, "seed": seed, "seconds": round(seconds)}
                yield row | judge(task, corpus, scores, texts)


def ranked(task: Task, corpus: Corpus, scores: Scores, texts: Sequence[int]) -> list[tuple[int, int]]:
    """Texts and tokens, the most suspicious first."""
    if task.is_of_tokens:
        places = [(i, token) for i in texts for token in range(len(scores[i]))]
        values = numpy.concatenate([scores[i] for i in texts])
    else:
        places = [(i, 0) for i in texts if corpus.wrong[i] or corpus.is_annotated[i]]
        values = numpy.array([scores[i] for i, _ in places])
    ties = numpy.random.default_rng(0).permutation(len(values))
    return [places[i] for i in numpy.lexsort((ties, -values))]


def judge(task: Task, corpus: Corpus, scores: Scores, texts: Sequence[int]) -> dict[str, Any]:
    """Recall of the wrong ones in parts of a ranking, the area under its ROC curve, and how many are found by rank."""
    order = ranked(task, corpus, scores, texts)
    is_wrong = numpy.array([token in corpus.wrong[i] for i, token in order])
    n, among, ranks = int(is_wrong.sum()), len(order), numpy.flatnonzero(is_wrong[::-1]) + 1
    found = is_wrong.cumsum()
    steps = sorted({round(n * 2 ** (i / 2)) for i in range(-8, 7)} & {*range(5, among + 1)})
    return {
        "wrong": n,
        "among": among,
        "found": int(found[n - 1]),
        "highest 1%": round(float(found[among // 100 - 1] / n), 3),
        "highest 5%": round(float(found[among // 20 - 1] / n), 3),
        "AUC": round(float((ranks.sum() - n * (n + 1) / 2) / (n * (among - n))), 3),
        "by rank": [[step, int(found[step - 1])] for step in steps],
    }


def clean(name: str, seed: int) -> Iterator[dict[str, Any]]:
    """Correct what is wrong in parts of a ranking, and train again. YIELDS: results."""
    task = TASKS[name]
    corpus = Corpus(task, seed)
    with tempfile.TemporaryDirectory() as folder:
        [(_, scores, _), *_] = rank_by_recorder(task, corpus, seed, Path(folder))
        order = ranked(task, corpus, scores, range(len(corpus.docs)))
        parts = {
            "nothing": [],
            "highest 1%": order[: len(order) // 100],
            "highest 5%": order[: len(order) // 20],
            "5% at random": random.Random(seed).sample(order, len(order) // 20),
            "all": order,
        }
        for part, chosen in parts.items():
            docs = corpus.corrected(chosen, by_token=task.is_of_tokens)
            path, _ = train(Path(folder, part), task, docs, corpus.dev, seed)
            performance = json.loads((path / "model-best" / "meta.json").read_text())["performance"]
            corrected = sum(token in corpus.wrong[i] for i, token in chosen)
            row = {"task": name, "seed": seed, "corrected": part, "annotations": corrected}
            yield row | {task.score: round(100 * performance[task.score], 2)}


def draw(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Precision over rank, for each task: the mean over seeds."""
    from matplotlib.figure import Figure

    drawn = [row for row in rows if "by rank" in row and row["part"] == "all"]
    tasks = [task for task in TASKS if any(row["task"] == task for row in drawn)]
    figure = Figure((10, 5), layout="constrained")
    for axes, task in zip(figure.subplots(2, -(-len(tasks) // 2), sharey=True).flat, tasks):
        of_task = [row for row in drawn if row["task"] == task]
        for by, style in (("recorder", "C0-"), ("folds", "C1--")):
            if curves := [row["by rank"] for row in of_task if row["by"] == by]:
                steps, found = numpy.mean(curves, axis=0).T
                axes.plot(steps, found / steps, style, label=by)
        n, among = of_task[0]["wrong"], of_task[0]["among"]
        axes.axhline(n / among, color="0.6", linewidth=0.8, label="chance")
        axes.axvline(n, color="0.8", linewidth=0.8)
        axes.set(title=task, xscale="log", ylim=(0, 1.02))
    figure.axes[0].legend(frameon=False)
    figure.supxlabel("highest (line: as many as are wrong)")
    figure.supylabel("of them wrong")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "clean", "table", "picture"])
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--by", nargs="+", choices=BY, default=list(BY))
    given = parser.parse_args()
    results = CLEANED if given.what == "clean" else RESULTS
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    if given.what == "table":
        for row in rows:
            print(" ".join(f"{name} {value}," for name, value in row.items() if name != "by rank").rstrip(","))
        return
    if given.what == "picture":
        draw(given.path, rows)
        return
    for seed, by, task in itertools.product(given.seeds, given.by if given.what == "run" else ["clean"], given.tasks):
        if not any((row["task"], row["seed"], row.get("by", "clean")) == (task, seed, by) for row in rows):
            new = list(run(task, seed, by) if by in BY else clean(task, seed))
            with results.open("a") as file:
                file.writelines(f"{json.dumps(row)}\n" for row in new)
            print(f"{task}, seed {seed}, {by}: done", flush=True)


if __name__ == "__main__":
    main()
