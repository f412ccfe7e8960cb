"""Short trainings for measurements, in a pipeline that is thrown away: of a whole config, which is a trial, or of some
steps.

Initialization, batches, updates and evaluations are as in `spacy train`. Nothing is written: there is no logger, no
folder for models, and no checkpoint, controller or rollback.
"""

from __future__ import annotations

import gc
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from time import process_time
from typing import Any, NamedTuple

import spacy.training.loop
from confection import Config
from spacy.language import DEFAULT_CONFIG, Language
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_train_batches
from spacy.util import registry, resolve_dot_names
from thinc.api import Optimizer, fix_random_seed

from ...core.errors import ConfigError, NonFiniteGradError, NonFiniteGradWarning
from .comparison import halves, part_of, predict, resampled, score, thinned

Scores = tuple[float, dict[str, Any]]
Corpus = Callable[[Language], Iterable[Example]]

# Settings of [training.optimizer] that write files, or need files that were written.
WRITES = ("checkpoint", "rollback_after", "rollback_factor", "max_rollbacks", "controller", "budget")
# The least number of evaluations, beside that at step 0.
_EVALUATIONS = 5
_AVERAGES = ("thinc-torchopt.EMA.v1", "thinc-torchopt.SWA.v1")
# For a budget: the default part in which rates fall, and the largest one, which leaves room for a warm-up.
_FALL, _LONGEST_FALL = 0.2, 0.9
# spaCy's errors for a loss, and for scores, that are NaN.
_NOT_FINITE = ("[E910]", "[E940]")
# The settings of [training] that a short training has.
_WANTED = (
    "train_corpus",
    "dev_corpus",
    "batcher",
    "dropout",
    "accumulate_gradient",
    "frozen_components",
    "annotating_components",
    "before_update",
)


@dataclass
class TrialResult:
    """The result of a trial. All scores are on texts of the development data.

    evaluations (list[tuple[int, float]]): Step and score of each evaluation, on the half that models are chosen by.
    kept, last (float): Scores on the other half: of the model with the best evaluation, which `spacy train` would keep
        as model-best, and of the last one.
    texts (int): Texts of that half.
    resampled (list[float]): Scores of the kept model on texts drawn again from it.
    words (int): Number of words trained on.
    seconds (float): CPU time, with evaluations.
    skipped_updates (int): Updates that were skipped because of their gradients.
    problem (str | None): Why it did not finish.
    """

    evaluations: list[tuple[int, float]] = field(default_factory=list)
    kept: float = 0.0
    last: float = 0.0
    texts: int = 0
    resampled: list[float] = field(default_factory=list)
    words: int = 0
    seconds: float = 0.0
    skipped_updates: int = 0
    problem: str | None = None

    @property
    def chosen(self) -> float:
        """The best evaluation."""
        return max((score for _, score in self.evaluations), default=0.0)


def run_trial(
    config: Config,
    *,
    seed: int,
    use_gpu: int = -1,
    draws: int = 0,
    share: float = 1.0,
    on_step: Callable[[], Any] = lambda: None,
    on_evaluation: Callable[[int, float], Any] = lambda step, score: None,
) -> TrialResult:
    """Train for the steps of a config, and evaluate during and after the training.

    config (Config): From `shorten`.
    seed (int): Replaces `seed` in [training].
    draws (int): How often texts are drawn again, for `resampled`.
    share (float): Of the training texts, for a training on a part of them. Components have the labels of all.
    on_step (Callable): Called after each step.
    on_evaluation (Callable): Called with step and score. An exception ends the trial.
    RAISES (ConfigError): There is no development data.
    """
    config = config.copy()
    config["training"]["seed"] = seed
    # Free the pipelines of other trainings, which may be in reference cycles.
    gc.collect()
    nlp = init_nlp(config, use_gpu=use_gpu)
    config = nlp.config.interpolate()
    training, found = config["training"], TrialResult()
    weights = training["score_weights"]
    corpora: tuple[Corpus, Corpus] | None = None
    if share < 1.0:
        train, of_dev = resolve_dot_names(config, [training["train_corpus"], training["dev_corpus"]])
        corpora = (lambda nlp: part_of(list(train(nlp)), share, seed)), of_dev
    dev: list[Example] = []
    kept: list[Example] = []

    def evaluate() -> float:
        """Predict all texts. RETURNS (float): The score on the half that models are chosen by."""
        if not dev:
            dev.extend(thinned(list(short.dev_corpus(nlp))))
        if not dev:
            raise ConfigError(f"Can't score a trial: expected texts in [{training['dev_corpus']}], found none.")
        choosing, judging = halves(predict(nlp, dev))
        value = score(nlp, choosing, weights)
        if not math.isfinite(value):
            raise ValueError(f"{_NOT_FINITE[1]} The score is {value}.")
        found.last, found.texts = score(nlp, judging, weights), len(judging)
        if not kept or value >= found.chosen:  # of equals, spaCy keeps the last
            found.kept, kept[:] = found.last, judging
        return value

    def note(step: int, value: float) -> None:
        found.evaluations.append((step, value))
        on_evaluation(*found.evaluations[-1])

    short = begin_training(
        nlp,
        config,
        training["optimizer"],
        max_steps=training["max_steps"],
        eval_frequency=training["eval_frequency"],
        evaluate=lambda: (evaluate(), {}),
        corpora=corpora,
    )
    started, step = process_time(), -1
    value: float | None = math.nan
    with closing(short.steps), warnings.catch_warnings():  # type: ignore[type-var]
        # A trial may fail, which is reported at the end.
        for category in (RuntimeWarning, NonFiniteGradWarning):
            warnings.simplefilter("ignore", category)
        try:
            for _, info, _ in short.steps:
                step, value, found.words = info["step"], info["score"], info["words"]
                if value is not None:
                    note(step, value)
                on_step()
            if value is None:
                averages = short.optimizer.averages
                with nlp.use_params(averages) if averages else nullcontext():
                    note(step, evaluate())
        except (ValueError, NonFiniteGradError) as error:
            if not isinstance(error, NonFiniteGradError) and not str(error).startswith(_NOT_FINITE):
                raise
            found.problem = f"the loss, the gradients or the score were not finite at step {step + 1}"
    found.seconds = process_time() - started
    found.resampled = resampled(lambda texts: score(nlp, texts, weights), kept, draws)
    found.skipped_updates = getattr(short.optimizer, "skipped_updates", 0)
    return found


# ---------------------------------------------------------------------- some steps


class ShortTraining(NamedTuple):
    """A prepared training.

    steps (Iterator): Batch, log entry, and whether the model is the best so far, as spaCy's loop yields them.
    optimizer (Optimizer): A new one.
    dev_corpus (Callable): Reads the development data.
    """

    steps: Iterator[tuple[Any, dict[str, Any], bool | None]]
    optimizer: Optimizer
    dev_corpus: Corpus


def begin_training(
    nlp: Language,
    config: Config,
    optimizer: Mapping[str, Any],
    *,
    max_steps: int,
    eval_frequency: int,
    evaluate: Callable[[], Scores],
    corpora: tuple[Corpus, Corpus] | None = None,
) -> ShortTraining:
    """Prepare a training as `spacy train` does.

    nlp (Language): The pipeline, initialized. Training changes it.
    config (Config): Its config, interpolated.
    optimizer (Mapping[str, Any]): [training.optimizer], without the settings in `WRITES`.
    max_steps (int): The last step, counted from 0.
    evaluate (Callable): Called for each evaluation. RETURNS (tuple): The score, and all scores.
    corpora (tuple | None): Corpora for training and evaluation, if they are loaded already. None: those of the config.
    """
    training = config["training"]
    block = {name: training[name] for name in _WANTED} | {"optimizer": optimizer}
    T = registry.resolve({"training": block})["training"]
    corpus, _ = corpora or (None, None)
    attachments = getattr(T["optimizer"], "attachments", {})
    for name, attachment in list(attachments.items()):
        attachments[name] = attachment.in_short_training(nlp, config, T["optimizer"], corpus)
        if attachments[name] is None:
            del attachments[name]
    if training.get("seed") is not None:
        fix_random_seed(training["seed"])
    train_corpus, dev_corpus = corpora or resolve_dot_names(config, [T["train_corpus"], T["dev_corpus"]])
    # By the name that core/hooks.py replaces: our loop, if the optimizer is ours.
    steps = spacy.training.loop.train_while_improving(
        nlp,
        T["optimizer"],
        # 0: no limit. -1: a streamed corpus.
        create_train_batches(nlp, train_corpus, T["batcher"], min(training["max_epochs"], 0)),
        evaluate,
        dropout=T["dropout"],
        eval_frequency=eval_frequency,
        accumulate_gradient=T["accumulate_gradient"],
        patience=0,
        max_steps=max_steps,
        exclude=T["frozen_components"],
        annotating_components=T["annotating_components"],
        before_update=T["before_update"],
    )
    return ShortTraining(steps, T["optimizer"], dev_corpus)


# ---------------------------------------------------------------------- the config


def shorten(config: Config, steps: int) -> tuple[Config, list[str]]:
    """Shorten a config to a number of steps, and remove everything that writes files.

    Longer schedules are shortened in proportion, so that they end with the trial; so are averages, and the steps at
    which frozen params are unfrozen. Rates that fall with a budget fall with the end of the trial.

    config (Config): The config with its variables.
    steps (int): The last step, counted from 0.
    RETURNS (tuple): The config, interpolated, and notes on the changes.
    """
    before = config.interpolate().get("training", {})
    config = config.copy()
    config.setdefault("training", {})["max_steps"] = steps
    config = config.interpolate()
    training, notes = config["training"], []
    usual = training.get("eval_frequency", DEFAULT_CONFIG["training"]["eval_frequency"])
    training["eval_frequency"] = min(usual, math.ceil(steps / _EVALUATIONS))
    training["logger"] = dict(DEFAULT_CONFIG["training"]["logger"])
    training["before_to_disk"] = None
    optimizer = training.get("optimizer", {})
    if optimizer.get("budget"):
        for schedules in (optimizer, before["optimizer"]):
            # A step is left for a warm-up.
            longest = min(_LONGEST_FALL, steps / (steps + 1))
            _fall_in_time(schedules, min(longest, optimizer["budget"].get("decay_ratio", _FALL)))
    left_out = [key for key in WRITES if optimizer.pop(key, None)]
    if left_out:
        notes.append(f"Left out in the trials, which save nothing and follow no rules: {', '.join(left_out)}.")
    end = before.get("max_steps", DEFAULT_CONFIG["training"]["max_steps"])
    changes = [
        change
        for path, block, was in _blocks(optimizer, before.get("optimizer", {}), "training.optimizer")
        for change in [
            *_shorten(path, block, was, steps, end),
            *_shorten_averages(path, block, steps, end),
            *_shorten_freezing(path, block, steps, end),
        ]
    ]
    if changes:
        notes.append(
            f"Schedules end with the trials, and their parts are shortened in proportion: {', '.join(changes)}. In the "
            "whole training, another setting may be best."
        )
    slow = [path for path, block, _ in _blocks(optimizer, optimizer, "training.optimizer") if _is_slow(block, steps)]
    if slow:
        notes.append(f"More than half of the steps of a trial are warm-up: {', '.join(slow)}. Raise --steps.")
    return config, notes


def _blocks(
    now: Mapping[str, Any], before: Mapping[str, Any], path: str
) -> Iterator[tuple[str, dict[str, Any], Mapping[str, Any]]]:
    """All sections below one, with their paths, now and before."""
    for key, value in now.items():
        if isinstance(value, dict):
            yield f"{path}.{key}", value, before.get(key, {})
            yield from _blocks(value, before.get(key, {}), f"{path}.{key}")


def _shorten(path: str, block: dict[str, Any], was: Mapping[str, Any], steps: int, end: int) -> list[str]:
    """Shorten a schedule in proportion, so that it ends at a step. RETURNS (list[str]): The changes.

    end (int): The last step of the training. 0: unknown; it is then at least as long as the parts of the schedule.
    """
    total = was.get("total_steps") or (end or _least_total(was) if _ends_with_training(was) else None)
    if total is None or not _is_number(total) or total <= steps:
        return []
    found = []
    for key, value in was.items():
        if key == "total_steps" and _is_number(value):
            new = steps
        elif key.endswith("_steps") and _is_number(value) and value:
            # Rounded down, so that all parts fit.
            new = max(1, int(value * steps / total))
        else:
            continue
        block[key] = new
        found.append(f"{key} {value:,} is {new:,}")
    return [f"[{path}] {', '.join(found)}"] if found else []


def _least_total(block: Mapping[str, Any]) -> int:
    """The steps of the shortest training with room for all parts of a schedule."""
    steps = sum(value for key, value in block.items() if key.endswith("_steps") and _is_number(value))
    ratios = sum(value for key, value in block.items() if key.endswith("_ratio") and _is_number(value))
    return math.ceil(steps / (1.0 - ratios)) if ratios < 1.0 else steps


def _shorten_averages(path: str, block: dict[str, Any], steps: int, end: int) -> list[str]:
    """Shorten the start and the horizon of averages in proportion. RETURNS (list[str]): The changes."""
    found = []
    if block.get("@misc") in _AVERAGES and end > steps:
        if block.get("start_step"):
            found.append(("start_step", round(block["start_step"] * steps / end)))
        decay: Any = block.get("decay")
        if _is_number(decay) and 0.5 < decay < 1.0:
            found.append(("decay", round(1.0 - 1.0 / max(2.0, steps / end / (1.0 - decay)), 6)))
    changes = ", ".join(f"{key} {block[key]:,} is {value:,}" for key, value in found)
    block.update(found)
    return [f"[{path}] {changes}"] if found else []


def _shorten_freezing(path: str, block: dict[str, Any], steps: int, end: int) -> list[str]:
    """Unfreeze params earlier, in proportion. RETURNS (list[str]): The changes."""
    was = block.get("unfreeze_at")
    if not was or not _is_number(was) or end <= steps:
        return []
    block["unfreeze_at"] = max(1, round(was * steps / end))
    return [f"[{path}] unfreeze_at {was:,} is {block['unfreeze_at']:,}"]


def _fall_in_time(optimizer: Mapping[str, Any], ratio: float) -> None:
    """Let schedules that fall on demand fall in the last part of the training. ratio (float): That part."""
    for _, block, _ in _blocks(optimizer, {}, ""):
        if block.get("decay_begins") == "when told":
            for key in ("decay_begins", "decay_steps"):
                block.pop(key, None)
            block["decay_ratio"] = ratio


def _ends_with_training(block: Mapping[str, Any]) -> bool:
    """Whether it is a schedule without total_steps, which ends with the training."""
    name = block.get("@schedules")
    if name is None or block.get("total_steps") is not None:
        return False
    total = inspect.signature(registry.get("schedules", name)).parameters.get("total_steps")
    return total is not None and total.default is None


def _is_slow(block: Mapping[str, Any], steps: int) -> bool:
    return _is_number(block.get("warmup_steps")) and 2 * block["warmup_steps"] > steps


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
