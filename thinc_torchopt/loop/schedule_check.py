"""Whether a training's settings fit its length: its end, evaluations, learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from numbers import Real
from typing import Any

from spacy.language import Language
from spacy.training import Example
from spacy.util import registry

from ..core.algorithms import FAR, usual_rates
from ..core.config_checks import sections_of
from ..core.optimizer import TorchOptimizer
from ..core.params import trainable_components
from ..core.schedules import with_end
from ..core.types import ParamInfo
from ..core.words import count, plain
from .data_check import Facts, Finding, Found
from .data_stream import batcher_of
from .random_state import preserved_random

# The learning rates of each param group, step by step.
Rates = Mapping[str, Sequence[float]]
# A path below [training.optimizer], e.g. ("param_groups", "encoder", "learn_rate").
Place = tuple[str, ...]

_THINC = ("Adam.v1", "RAdam.v1", "SGD.v1")
_THINCS_WARMUP = "warmup_linear.v1"
# Worth a note: a larger share of steps without a learning rate; a last rate above this part of the highest; a patience
# below this part of the steps; a larger part of the steps after the last evaluation.
_MANY_STEPS, _LARGE_RATE, _SHORT_PATIENCE, _UNSCORED = 0.02, 0.2, 0.75, 0.1
# A schedule longer than this many times the training does not end with it.
_LONGER = 1.1
# More steps are not counted, nor rates computed. Without an end, so many.
_MOST_STEPS, _NO_END = 1_000_000, 20_000


def rates_over_steps(optimizer: TorchOptimizer, steps: int) -> dict[str, list[float]]:
    """The rate of each param group at the steps 0 to `steps`. spaCy's last step is `max_steps`."""
    # One param per group: describing all of them at each step is slow.
    one_of = {info.group: info.name for info in optimizer.describe()}
    names = set(one_of.values())
    found: dict[str, list[float]] = {group: [] for group in one_of or ["default"]}
    for step in range(steps + 1):
        if step:
            optimizer.step_schedules()
        now = {info.group: info.learn_rate for info in optimizer.describe(names)} or {"default": optimizer.learn_rate}
        for group, rate in now.items():
            found[group].append(rate)
    return found


def rates_of_settings(config: Mapping[str, Any], last: int | None = None) -> dict[Place, list[float]]:
    """The rates of every setting over the training; of one that does not move, only that.

    config (Mapping[str, Any]): A config, interpolated.
    last (int | None): The last step. None: as the config says.
    """
    block = config["training"]["optimizer"]
    given: dict[Place, Any] = {("learn_rate",): block.get("learn_rate")}
    groups = block.get("param_groups", {})
    given |= {("param_groups", name, "learn_rate"): group.get("learn_rate") for name, group in groups.items()}
    given |= {("per_param_lr", pattern): rate for pattern, rate in (block.get("per_param_lr") or {}).items()}
    given = {path: value for path, value in given.items() if value is not None}
    # Under numbers: what is in a path may be no name of a section.
    resolved = registry.resolve({"rates": {str(i): value for i, value in enumerate(given.values())}})["rates"]
    steps = (last or config["training"].get("max_steps") or _NO_END) + 1
    return {path: _rates(resolved[str(i)], steps) for i, path in enumerate(given)}


def _rates(value: Any, steps: int) -> list[float]:
    if isinstance(value, Real):
        return [float(value)]
    return [float(rate) for rate in islice(with_end(value, steps), steps)]


def last_step(nlp: Language, training: Mapping[str, Any], examples: Sequence[Example], processes: int = 1) -> int:
    """The last step of a training. If epochs limit it, their batches are counted, in the order of the corpus.

    nlp (Language): The pipeline. training (Mapping): [training], interpolated.
    examples (Sequence[Example]): The training data. Empty: streamed.
    processes (int): Each step takes a batch for each, and fewer at the end of an epoch.
    RETURNS (int): 0: it is unknown.
    """
    end, epochs = training["max_steps"], training["max_epochs"]
    if epochs <= 0 or not examples:
        return int(end)
    with preserved_random():  # one of the user may draw numbers
        batcher = batcher_of(nlp, training)
        steps = (first for _ in range(epochs) for first in islice(batcher(examples), 0, None, processes))
        counted = sum(1 for _ in islice(steps, end + 1 if end else _MOST_STEPS))
    return max(0, counted - 1)


@dataclass
class Trained:
    """The learning rates of the params that one setting gives them to.

    name (str): The param group, or the pattern, whose setting it is. rates (Sequence[float]): From the first step that
    trains them to the last. begin (int): That step. infos (list[ParamInfo]): The params.
    """

    name: str
    rates: Sequence[float]
    begin: int = 0
    infos: list[ParamInfo] = field(default_factory=list)

    @property
    def peak(self) -> float:
        return max(self.rates, default=0.0)


def trained_params(nlp: Language, optimizer: TorchOptimizer, config: Mapping[str, Any], last: int) -> list[Trained]:
    """All params that have a learning rate above 0 at some step, by the setting of their rate. Schedules of the
    optimizer stay where they are.
    """
    block = config["training"]["optimizer"]
    with preserved_random():  # one of the user may draw numbers
        settings = rates_of_settings(config, last)
    usual = settings.get(("learn_rate",), [optimizer.learn_rate])
    by_block = {place[1]: rates for place, rates in settings.items() if len(place) > 1}
    scales = {name: group.get("lr_scale", 1.0) for name, group in block.get("param_groups", {}).items()}
    groups: dict[tuple[str, str, float, float], list[ParamInfo]] = {}
    for info in optimizer.describe():
        # Where several blocks set the same for a param, the last one wins. A scale that moves counts as 1.
        name = next((name for name in reversed(info.blocks) if name in by_block), "default")
        numbers = (scales.get(one, 1.0) for one in info.blocks)
        scale = math.prod(one for one in numbers if isinstance(one, (int, float)))
        groups.setdefault((name, info.algorithm, scale, info.frozen_until), []).append(info)
    found = []
    for (name, _, scale, frozen_until), infos in groups.items():
        begin, rates = int(min(frozen_until, last + 1)), by_block.get(name, usual)
        whole = rates + rates[-1:] * (last + 1 - len(rates))  # the last value stays
        found.append(Trained(name, [scale * rate for rate in whole[begin:]], begin, infos))
    return [one for one in found if one.peak > 0.0]


# ---------------------------------------------------------------------- the checks


def end_of_training(facts: Facts) -> Iterator[Found]:
    """Find mistakes in the end of the training and in its evaluations."""
    if facts.optimizer is None:
        return
    patience, every, last = facts.training["patience"], facts.training["eval_frequency"], facts.last
    ends = bool(last or facts.training["max_epochs"] > 0 or patience)
    if not ends and not any(one.plans_decay for one in facts.optimizer.attachments.values()):
        yield (
            "Nothing ends this training: max_steps, max_epochs and patience set no limit. Set max_steps in [training]."
        )
    if 0 < patience < every and (not last or patience <= last):
        yield (
            f"The training ends at step {patience:,}, whatever the score does: patience = {patience:,} is over before "
            f"the second evaluation, at step {every:,} (eval_frequency). Both count steps: set patience to several "
            "times eval_frequency."
        )
    elif 0 < last < every:
        yield (
            f"The only evaluation is at step 0, before anything is learned: eval_frequency = {every:,} is more than "
            f"the {count(last, 'step')} that follow. model-best is then the model of step 0."
        )
    elif last and last % every > _UNSCORED * last:
        skipped = last % every
        yield (
            f"{count(skipped, 'step')} at the end {'is' if skipped == 1 else 'are'} not scored, as eval_frequency = "
            f"{every:,} does not divide the last step, {last:,}: model-best is at best the model of step "
            f"{last - skipped:,}."
        )


def learning_rates(facts: Facts) -> Iterator[Found]:
    """Find rates of 0, unusual ones, and schedules that end too early or too late."""
    name = str(facts.training["optimizer"].get("@optimizers"))
    # The settings of an optimizer that code of the user builds are not known.
    if facts.optimizer is None or not name.startswith(("thinc-torchopt.", *_THINC)):
        return
    trained = trained_params(facts.nlp, facts.optimizer, facts.config, facts.last or _NO_END)
    is_hooked = facts.training["before_update"] is not None  # the hook may complete the pipeline
    if not trained and not is_hooked and (why := _why_nothing(facts, facts.optimizer)):
        yield Finding("in vain", f"Nothing would be trained: {why}.")
    for text in rates_far_above(facts.nlp, trained):
        yield f"{text} At such rates the loss mostly grows. To find a better one: spacy torchopt find-lr."
    yield from _far_below(trained)
    yield from _schedules(facts, facts.optimizer, trained)


def _why_nothing(facts: Facts, optimizer: TorchOptimizer) -> str:
    """Empty: a component has no params, and may still learn."""
    if not trainable_components(facts.nlp, facts.frozen):
        names = [name for name in facts.nlp.pipe_names if name in facts.frozen]
        return (
            f"[training] frozen_components lists every component that could be trained: {', '.join(names)}"
            if names
            else "no component of the pipeline can be trained"
        )
    infos = optimizer.describe()
    if any(not info.frozen_until for info in infos):
        return "each learning rate in [training.optimizer] is 0 at all steps"
    return "all params are frozen by [training.optimizer] until after the last step" * bool(infos)


def rates_far_above(nlp: Language, trained: Sequence[Trained]) -> Iterator[str]:
    """Find rates far above the usual ones for their algorithm."""
    encoders = [name for name in nlp.pipe_names if nlp.get_pipe_meta(name).factory.endswith("transformer")]
    found: dict[tuple[str, str], tuple[float, list[str]]] = {}
    for group in trained:
        of_encoder = [info for info in group.infos if info.name.partition("/")[0] in encoders]
        label = group.infos[0].algorithm
        usual = usual_rates(label, pretrained=bool(of_encoder))
        if usual is not None and group.peak > FAR * usual.highest:
            what = f"a trained transformer with {label}" if of_encoder else label
            text = f"{what}, {plain(usual.lowest)} to {plain(usual.highest)} ({usual.source})"
            peak, groups = found.get((label, text), (0.0, []))
            found[label, text] = max(peak, group.peak), [*groups, group.name]
    for (_, text), (peak, groups) in found.items():
        of = "" if len(groups) == len(trained) else f" of {', '.join(groups)}"
        yield f"The learning rate{of} goes up to {plain(peak)}, far above what is usual for {text}."


def _far_below(trained: Sequence[Trained]) -> Iterator[str]:
    """Find low rates of algorithms that find their rate themselves."""
    too_small: dict[str, float] = {}
    for group in trained:
        label = group.infos[0].algorithm
        usual = usual_rates(label)
        if usual is not None and usual.is_factor and group.peak < usual.lowest / FAR:
            too_small[label] = max(group.peak, too_small.get(label, 0.0))
    for label, peak in too_small.items():
        yield (
            f"The learning rate goes up to {plain(peak)}, but {label} finds its rate itself, and multiplies it by "
            f"learn_rate: here, by {plain(peak)}. Set learn_rate = 1.0 in [training.optimizer]."
        )


def _schedules(facts: Facts, optimizer: TorchOptimizer, trained: Sequence[Trained]) -> Iterator[str]:
    training, last = facts.training, facts.last
    sections = sections_of({"": training["optimizer"]})
    found = {path.strip("."): block for path, block in sections if "@schedules" in block}
    warmups = [
        f"{path} is thinc's {_THINCS_WARMUP} with total_steps = 0: it falls to 0 when its warm-up is over, and from "
        "there on nothing is learned. Set total_steps = ${training.max_steps}; or use thinc-torchopt.warmup_linear.v1 "
        "without total_steps."
        for path, block in found.items()
        if block["@schedules"] == _THINCS_WARMUP and not block.get("total_steps")
    ]
    yield from warmups
    if not last:
        return
    if not warmups:
        yield from _too_short(trained, found, last)
    yield from _too_long(trained, found, last)
    ends = (training["max_steps"], training["max_steps"] + 1) if training["max_steps"] else ()
    to_the_end = [path for path, block in found.items() if block.get("total_steps") in ends]
    to_the_end += [path for path, source in optimizer.schedules.items() if getattr(source, "spans_training", False)]
    # The first score is that of step 0.
    if to_the_end and 0 < training["patience"] < _SHORT_PATIENCE * last:
        yield (
            f"{', '.join(to_the_end)} falls until step {last:,}, but patience = {training['patience']:,} "
            "may end the training long before: then the small rates at the end, which help most, never come. Set "
            "patience = 0, and max_steps to the number of steps that you want."
        )


def _too_short(trained: Sequence[Trained], found: Mapping[str, Mapping[str, Any]], last: int) -> Iterator[str]:
    """Find rates that are 0 long before the training ends."""
    by_end: dict[int, list[str]] = {}
    for group in trained:
        end = group.begin + max(i for i, rate in enumerate(group.rates) if rate) + 1
        if last - end > _MANY_STEPS * last:
            by_end.setdefault(end, []).append(group.name)
    for end, groups in by_end.items():
        causes = [
            f"total_steps = {end:,} in {path}" for path, block in found.items() if block.get("total_steps") == end
        ]
        of = "" if len(groups) == len(trained) else f" of {', '.join(dict.fromkeys(groups))}"
        yield (
            f"The learning rate{of} is 0 from step {end:,} on, and the training ends at step {last:,}: its last "
            f"{last - end:,} steps learn nothing{f' ({causes[0]})' if causes else ''}. Let both end at the same step."
        )


def _too_long(trained: Sequence[Trained], found: Mapping[str, Mapping[str, Any]], last: int) -> Iterator[str]:
    """Find rates that are still high, or still rise, when the training ends."""
    far = [
        (path, steps)
        for path, block in found.items()
        if isinstance(steps := block.get("total_steps"), int)
        if steps > _LONGER * (last + 1) and ("learn_rate" in path or "per_param_lr" in path)
    ]
    rising = [group for group in trained if len(group.rates) > 2 and group.rates[-1] > group.rates[-2]]
    if any(group.rates[-1] == group.peak for group in rising):
        yield (
            f"The learning rate still rises at step {last:,}, the last one: the warm-up is longer than the training, "
            f"which never has its highest rate{_told(far)}. Shorten it."
        )
    elif far and any(group.rates[-1] > _LARGE_RATE * group.peak for group in trained):
        highest = max(group.rates[-1] / group.peak for group in trained)
        yield (
            f"The learning rate is still at {plain(highest)} of its highest when the training ends at step "
            f"{last:,}{_told(far)}: the small rates at the end, which help most, never come. Let both end at the same "
            "step: total_steps = ${training.max_steps}."
        )


def _told(far: Sequence[tuple[str, int]]) -> str:
    return f" ({', '.join(f'total_steps = {steps:,} in {path}' for path, steps in far)})" if far else ""
