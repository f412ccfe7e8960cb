"""Find schedules that end too early, or too late, for a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from spacy.training import Example
from spacy.util import registry

from ..core.optimizer import TorchOptimizer
from ..core.types import ParamInfo
from ..core.words import plain
from .random_state import preserved_random

# The learning rates of each param group, step by step.
Rates = Mapping[str, Sequence[float]]

_THINCS_WARMUP = "warmup_linear.v1"
# Worth a note: a larger share of steps without a learning rate; a last rate above this part of the highest.
_MANY_STEPS, _LARGE_RATE = 0.02, 0.2
# A schedule longer than this many times the training does not end with it.
_LONGER = 1.1
# More steps are not counted, nor rates computed.
_MOST_STEPS = 1_000_000


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


@dataclass
class Trained:
    """The rates of a param group, from the first step that trains it.

    rates (Sequence[float]): From there to the last step. begin (int): That step. infos (list[ParamInfo]): Its params,
    if they are known.
    """

    group: str
    rates: Sequence[float]
    begin: int = 0
    infos: list[ParamInfo] = field(default_factory=list)

    @property
    def peak(self) -> float:
        return max(self.rates, default=0.0)


def trained_groups(now: Mapping[str, ParamInfo], rates: Rates) -> list[Trained]:
    """The groups that have a learning rate above 0 at some step."""
    groups: dict[str, list[ParamInfo]] = {}
    for info in now.values():
        groups.setdefault(info.group, []).append(info)
    found = []
    for group, infos in groups.items():
        begin = int(min(min(info.frozen_until for info in infos), len(rates[group])))
        found.append(Trained(group, rates[group][begin:], begin, infos))
    return [group for group in found if group.peak > 0.0]


def doubts_of_schedules(
    training: Mapping[str, Any], optimizer: TorchOptimizer, trained: Sequence[Trained], last: int, *, has_end: bool
) -> Iterator[str]:
    """Find schedules that end too early or too late.

    training (Mapping): [training], interpolated. last (int): The last step. has_end (bool): Whether the training has
    an end.
    """
    found = dict(_blocks_with_schedules(training["optimizer"], ""))
    warmups = _thincs_warmups(found)
    yield from warmups
    if has_end:
        if not warmups:
            yield from _too_short(trained, found, last)
        yield from _too_long(trained, found, last)
    ends = (training["max_steps"], training["max_steps"] + 1) if training["max_steps"] else ()
    to_the_end = [path for path, block in found.items() if block.get("total_steps") in ends]
    to_the_end += [path for path, source in optimizer.schedules.items() if getattr(source, "spans_training", False)]
    # The first score is that of step 0.
    if to_the_end and 0 < training["patience"] < last:
        yield (
            f"{', '.join(to_the_end)} falls until step {last:,}, but patience = {training['patience']:,} "
            "may end the training long before: then the small rates at the end, which help most, never come. Set "
            "patience = 0, and max_steps to the number of steps that you want."
        )
    falls = {path: getattr(source, "cooldown", None) for path, source in optimizer.schedules.items()}
    at_will = [path for path, cooldown in falls.items() if cooldown is not None and cooldown.only_at_will]
    if at_will and "budget" not in optimizer.attachments:
        yield (
            f"{', '.join(at_will)} falls only on demand: by optimizer.begin_decay(), or by the signal SIGUSR1 (kill "
            "-USR1 with the id of the process). When it has fallen, the training ends."
        )


def last_step(training: Mapping[str, Any], examples: Sequence[Example], processes: int = 1) -> int:
    """The last step of a training. If epochs limit it, their batches are counted, in the order of the corpus.

    training (Mapping): [training], interpolated. examples (Sequence[Example]): The training data. Empty: streamed.
    processes (int): Each step takes a batch for each, and fewer at the end of an epoch.
    RETURNS (int): 0: it is unknown.
    """
    end, epochs = training["max_steps"], training["max_epochs"]
    if epochs <= 0 or not examples:
        return int(end)
    with preserved_random():  # one of the user may draw numbers
        batcher = registry.resolve({"batcher": training["batcher"]})["batcher"]
        steps = (first for _ in range(epochs) for first in islice(batcher(examples), 0, None, processes))
        counted = sum(1 for _ in islice(steps, end + 1 if end else _MOST_STEPS))
    return max(0, counted - 1)


def doubts_of_config(training: Mapping[str, Any], last: int) -> list[str]:
    """Find schedules of learning rates that end too early or too late, by the config alone. Others are left out: those
    that end with the training or depend on scores.

    training (Mapping): [training], interpolated. last (int): The last step. 0: it is unknown, and nothing is found.
    """
    if not last:
        return []
    found: dict[str, Mapping[str, Any]] = {}
    curves: list[Trained] = []
    for path, block in _blocks_with_schedules(training["optimizer"], ""):
        is_inner = any(path.startswith(f"{outer}.") for outer in found)
        if is_inner or not (path.startswith("per_param_lr.") or path.rpartition(".")[2] in ("learn_rate", "lr_scale")):
            continue
        found[path] = block
        with preserved_random():  # one of the user may draw numbers
            source = registry.resolve({"schedule": dict(block)})["schedule"]
            is_curve = isinstance(source, Iterator) and not hasattr(source, "observe")
            if not is_curve or getattr(source, "spans_training", False):
                continue
            rates = [float(rate) for rate in islice(source, last + 1)]
        rates += rates[-1:] * (last + 1 - len(rates))  # the last value stays
        if any(rates):
            curves.append(Trained(path, rates))
    warmups = _thincs_warmups(found)
    return [*warmups, *([] if warmups else _too_short(curves, found, last)), *_too_long(curves, found, last)]


def _thincs_warmups(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        f"{path} is thinc's {_THINCS_WARMUP} with total_steps = 0: it falls to 0 when its warm-up is over, and from "
        "there on nothing is learned. Set total_steps = ${training.max_steps}; or use thinc-torchopt.warmup_linear.v1 "
        "without total_steps."
        for path, block in found.items()
        if block["@schedules"] == _THINCS_WARMUP and not block.get("total_steps")
    ]


def _too_short(trained: Sequence[Trained], found: Mapping[str, Mapping[str, Any]], last: int) -> Iterator[str]:
    """Find rates that are 0 long before the training ends."""
    by_end: dict[int, list[str]] = {}
    for group in trained:
        end = group.begin + max(i for i, rate in enumerate(group.rates) if rate) + 1
        if last - end > _MANY_STEPS * last:
            by_end.setdefault(end, []).append(group.group)
    for end, groups in by_end.items():
        causes = [
            f"total_steps = {steps:,} in {path}"
            for path, block in found.items()
            if isinstance(steps := block.get("total_steps"), int) and steps and abs(steps - end) <= 1
        ]
        of = "" if len(groups) == len(trained) else f" of {', '.join(groups)}"
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
    rising = [group for group in trained if len(group.rates) > 2 and group.rates[-1] > group.rates[-2] * (1 + 1e-9)]
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


def _blocks_with_schedules(block: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All blocks with a schedule, by their paths."""
    if "@schedules" in block:
        yield path, block
    for name, value in block.items():
        if isinstance(value, Mapping):
            yield from _blocks_with_schedules(value, f"{path}.{name}" if path else name)
