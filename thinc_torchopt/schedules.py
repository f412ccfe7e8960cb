"""The schedules of the registry `@schedules`: what a setting is at each step of the training.

A schedule is a function of the step, counted from 0, and comes as thinc's do, as a generator of one value a step: thinc's own
optimizers take it too. Any setting may be one, so *rate* below stands for whatever it drives. Arguments are checked when the
config is read. No schedule ends: after `total_steps` it stays at its last value.

`warmup_linear` starts above 0. The other warm-ups start at 0, as in transformers, whose values they are.

A schedule may also *watch* the score of the development data. Beside what any iterator has, it then offers:

    observe(score)      called after each evaluation, when the value of the step that comes next was drawn
    value               that value, the last that was drawn, as it is after what was observed
    state_dict(), load_state_dict(state)
                        if it has them: what the scores made of it, for JSON. Restarting draws the values up to the position first
    check_state_dict(state)
                        if it has it: raises an error if the state can't be loaded. Called on all before one is changed

`plateau` is one, and so is `sequence`, for the part whose turn it is. Our training loop calls `observe`; nobody else does.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, repeat
from numbers import Integral, Real
from typing import Any, Dict, List, Literal, Optional, Tuple

from .errors import ScheduleError
from .types import FloatOrSchedule

Curve = Literal["linear", "cosine", "1-sqrt"]


def warmup_linear(initial_rate: float, warmup_steps: int, total_steps: int) -> Iterator[float]:
    """Rise to `initial_rate` in a line, then fall to 0 in a line.

    thinc's warmup_linear.v1 yields 0.0 first, which wastes a batch; here warm-up is one step ahead, and its first value is
    initial_rate / warmup_steps. The fall is thinc's.

    warmup_steps (int): Steps before the fall begins.
    total_steps (int): Step from which on the value is 0, at least `warmup_steps`.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: thinc/schedules.py (8.3), warmup_linear.
    """
    check = _Arguments("thinc-torchopt.warmup_linear.v1")
    check.number("initial_rate", initial_rate)
    check.warmup(warmup_steps, total_steps)

    def value_at(step: int) -> float:
        if step < warmup_steps:
            return initial_rate * (step + 1) / warmup_steps
        if step >= total_steps:
            return 0.0
        return initial_rate * (total_steps - step) / (total_steps - warmup_steps)

    return _each_step(value_at)


def warmup_cosine(initial_rate: float, warmup_steps: int, total_steps: int, *, min_rate: float = 0.0, cycles: int = 1) -> Iterator[float]:
    """Rise from 0 to `initial_rate` in a line, then fall to `min_rate` along a cosine, once or several times.

    warmup_steps (int): Steps before the fall begins.
    total_steps (int): Step from which on the value is `min_rate`, at least `warmup_steps`.
    cycles (int): How often it falls. Each fall but the first is a warm restart at `initial_rate`. All are equally long.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: Loshchilov and Hutter 2016, https://arxiv.org/abs/1608.03983; transformers/optimization.py,
        get_cosine_schedule_with_warmup, get_cosine_with_hard_restarts_schedule_with_warmup, which go on to swing after the last
        step; `min_rate` is eta_min of torch.optim.lr_scheduler.CosineAnnealingLR.
    """
    check = _Arguments("thinc-torchopt.warmup_cosine.v1")
    check.number("initial_rate", initial_rate)
    check.number("min_rate", min_rate, at_most=initial_rate)
    check.warmup(warmup_steps, total_steps)
    check.steps("cycles", cycles, at_least=1)
    decay_steps = total_steps - warmup_steps

    def value_at(step: int) -> float:
        if step < warmup_steps:
            return initial_rate * step / warmup_steps
        if step >= total_steps:
            return min_rate
        # In whole numbers: a fraction of one rounding too little would put a restart one step late.
        done = cycles * (step - warmup_steps) % decay_steps / decay_steps
        return _between(min_rate, initial_rate, _fall("cosine", done))

    return _each_step(value_at)


def one_cycle(
    max_rate: float,
    total_steps: int,
    *,
    pct_start: float = 0.3,
    anneal_strategy: Literal["cos", "linear"] = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 10000.0,
    three_phase: bool = False,
) -> Iterator[float]:
    """Rise from a low rate to `max_rate`, then fall to a rate far below the first one.

    total_steps (int): Length of the cycle. The lowest rate is reached at the step before.
    pct_start (float): Part of the cycle in which the rate rises, 0 to 1; up to 0.5 with `three_phase`.
    anneal_strategy (str): Whether it moves along a cosine or in a line.
    div_factor (float): The first rate is max_rate / div_factor.
    final_div_factor (float): The last rate is the first one / final_div_factor.
    three_phase (bool): Fall to the first rate in as many steps as it rose, and only then to the last one.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: Smith and Topin 2017, https://arxiv.org/abs/1708.07120; torch.optim.lr_scheduler.OneCycleLR, which raises an error
        after `total_steps`, and if pct_start x total_steps is 1.
    """
    check = _Arguments("thinc-torchopt.one_cycle.v1")
    check.number("max_rate", max_rate)
    check.steps("total_steps", total_steps, at_least=1)
    check.number("pct_start", pct_start, at_most=0.5 if three_phase else 1.0)
    check.choice("anneal_strategy", anneal_strategy, ["cos", "linear"])
    check.number("div_factor", div_factor, above=0.0)
    check.number("final_div_factor", final_div_factor, above=0.0)
    curve: Curve = "cosine" if anneal_strategy == "cos" else "linear"
    first_rate, last_step = max_rate / div_factor, total_steps - 1
    last_rate = first_rate / final_div_factor
    # Each: the step at which it ends, the rates at its begin and end.
    phases = [(pct_start * total_steps - 1, first_rate, max_rate), (last_step, max_rate, last_rate)]
    if three_phase:
        phases[1:] = [(2 * pct_start * total_steps - 2, max_rate, first_rate), (last_step, first_rate, last_rate)]

    def value_at(step: int) -> float:
        begin = 0.0
        for end, start_rate, end_rate in phases:
            if step <= end:
                done = (step - begin) / (end - begin) if end > begin else 1.0
                return _between(end_rate, start_rate, _fall(curve, done))
            begin = end
        return last_rate

    return _each_step(value_at)


def inverse_sqrt(initial_rate: float, warmup_steps: int, *, timescale: Optional[int] = None) -> Iterator[float]:
    """Rise from 0 to `initial_rate` in a line, then fall with one over the root of the step, without an end.

    warmup_steps (int): Steps before the fall begins.
    timescale (int): Steps after warm-up at which the rate is initial_rate / sqrt(2). Default: `warmup_steps`, or 10,000 without.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: Zhai et al. 2021, https://arxiv.org/abs/2106.04560; transformers/optimization.py, get_inverse_sqrt_schedule.
    """
    check = _Arguments("thinc-torchopt.inverse_sqrt.v1")
    check.number("initial_rate", initial_rate)
    check.steps("warmup_steps", warmup_steps)
    scale = (warmup_steps or 10_000) if timescale is None else timescale
    check.steps("timescale", scale, at_least=1)

    def value_at(step: int) -> float:
        if step < warmup_steps:
            return initial_rate * step / warmup_steps
        return initial_rate / math.sqrt((step - warmup_steps + scale) / scale)

    return _each_step(value_at)


def polynomial(initial_rate: float, warmup_steps: int, total_steps: int, *, min_rate: float = 0.0, power: float = 1.0) -> Iterator[float]:
    """Rise from 0 to `initial_rate` in a line, then fall to `min_rate` along a power of what is left.

    warmup_steps (int): Steps before the fall begins.
    total_steps (int): Step from which on the value is `min_rate`, at least `warmup_steps`.
    power (float): 1: a line. Above: falls fast first. Below: falls fast last.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: transformers/optimization.py, get_polynomial_decay_schedule_with_warmup, whose lr_end is 1e-7 by default.
    """
    check = _Arguments("thinc-torchopt.polynomial.v1")
    check.number("initial_rate", initial_rate)
    check.number("min_rate", min_rate, at_most=initial_rate)
    check.number("power", power, above=0.0)
    check.warmup(warmup_steps, total_steps)

    def value_at(step: int) -> float:
        if step < warmup_steps:
            return initial_rate * step / warmup_steps
        if step >= total_steps:
            return min_rate
        left = (total_steps - step) / (total_steps - warmup_steps)
        return _between(min_rate, initial_rate, left**power)

    return _each_step(value_at)


def warmup_stable_decay(
    initial_rate: float,
    warmup_steps: int,
    decay_steps: int,
    total_steps: int,
    *,
    min_rate: float = 0.0,
    warmup_type: Curve = "linear",
    decay_type: Curve = "cosine",
) -> Iterator[float]:
    """Rise from `min_rate` to `initial_rate`, stay, and fall back to `min_rate` at the end.

    decay_steps (int): Steps of the fall. What warm-up and fall leave of `total_steps` is the time in between.
    total_steps (int): Step from which on the value is `min_rate`, at least warmup_steps + decay_steps.
    warmup_type (str): The curve of the rise.
    decay_type (str): The curve of the fall; "1-sqrt" is that of Hägele et al.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: Hu et al. 2024, https://arxiv.org/abs/2404.06395; Hägele et al. 2024, https://arxiv.org/abs/2405.18392;
        transformers/optimization.py, get_wsd_schedule, with stable steps counted from `total_steps`.
    """
    check = _Arguments("thinc-torchopt.warmup_stable_decay.v1")
    check.number("initial_rate", initial_rate)
    check.number("min_rate", min_rate, at_most=initial_rate)
    check.choice("warmup_type", warmup_type, ["linear", "cosine", "1-sqrt"])
    check.choice("decay_type", decay_type, ["linear", "cosine", "1-sqrt"])
    check.steps("decay_steps", decay_steps)
    check.warmup(warmup_steps, total_steps, decay_steps)
    decay_begin = total_steps - decay_steps

    def value_at(step: int) -> float:
        if step < warmup_steps:
            return _between(min_rate, initial_rate, _fall(warmup_type, 1.0 - step / warmup_steps))
        if step < decay_begin:
            return initial_rate
        if step < total_steps:
            return _between(min_rate, initial_rate, _fall(decay_type, (step - decay_begin) / decay_steps))
        return min_rate

    return _each_step(value_at)


def plateau(
    initial_rate: float,
    *,
    factor: float = 0.1,
    patience: int = 10,
    mode: Literal["max", "min"] = "max",
    threshold: float = 1e-4,
    threshold_mode: Literal["rel", "abs"] = "rel",
    cooldown: int = 0,
    min_rate: float = 0.0,
    eps: float = 1e-8,
) -> Iterator[float]:
    """Stay at a rate as long as the score gets better, and lower it when it does not.

    It is told the score by our training loop. Elsewhere, so with thinc's own optimizers, nobody calls its `observe`, and it stays at
    `initial_rate`.

    factor (float): A lower rate is the old one x factor. 0 to 1, without 1.
    patience (int): Evaluations in a row that may bring nothing better. The next such one lowers the rate.
    mode ("max" | "min"): Whether a higher or a lower score is better.
    threshold (float): By how much a score must be better than the best one to count.
    threshold_mode ("rel" | "abs"): Whether the threshold is a part of the best score, or a difference.
    cooldown (int): Evaluations after the rate was lowered in which nothing is counted as bad.
    min_rate (float): The rate is not lowered below this.
    eps (float): Where the rate would fall by no more than this, it stays.
    RAISES (ScheduleError): An argument is out of its range.
    SOURCE: torch.optim.lr_scheduler.ReduceLROnPlateau, whose mode is "min" by default. There as here a score of NaN counts as no
        better. An infinite one does here too: there one that is infinitely good is the best for good, and the rate only falls.
    """
    check = _Arguments("thinc-torchopt.plateau.v1")
    check.number("initial_rate", initial_rate)
    check.number("factor", factor, below=1.0)
    check.steps("patience", patience)
    check.choice("mode", mode, ["max", "min"])
    check.number("threshold", threshold)
    check.choice("threshold_mode", threshold_mode, ["rel", "abs"])
    check.steps("cooldown", cooldown)
    check.number("min_rate", min_rate, at_most=initial_rate)
    check.number("eps", eps)
    sign = 1 if mode == "max" else -1

    def is_better(score: float, best: float) -> bool:
        least = best * (1.0 + sign * threshold) if threshold_mode == "rel" else best + sign * threshold
        return sign * score > sign * least

    def lower(rate: float) -> float:
        lowered = max(rate * factor, min_rate)
        return lowered if rate - lowered > eps else rate

    return PlateauSchedule(float(initial_rate), -sign * math.inf, patience, cooldown, is_better, lower)


class PlateauSchedule(Iterator[float]):
    """What `plateau` returns: a value that moves with the scores, not with the step.

    value (float): The current value.
    worst (float): What any score is better than.
    patience (int): How many bad evaluations in a row it lets pass.
    cooldown (int): For how many evaluations after it was lowered none is bad.
    is_better (Callable): Whether a score is better than the best one so far.
    lower (Callable): The next value.
    """

    def __init__(
        self,
        value: float,
        worst: float,
        patience: int,
        cooldown: int,
        is_better: Callable[[float, float], bool],
        lower: Callable[[float], float],
    ):
        self.value = value
        self._patience = patience
        self._cooldown = cooldown
        self._is_better = is_better
        self._lower = lower
        self._best = self._worst = worst
        self._bad_evaluations = 0
        self._cooldown_left = 0

    def __next__(self) -> float:
        return self.value

    def observe(self, score: float) -> None:
        """Take the score of an evaluation, and lower the value if there were too many that brought nothing better."""
        score = float(score)
        if math.isfinite(score) and self._is_better(score, self._best):
            self._best = score
            self._bad_evaluations = 0
        else:
            self._bad_evaluations += 1
        if self._cooldown_left > 0:
            self._cooldown_left -= 1
            self._bad_evaluations = 0
        if self._bad_evaluations > self._patience:
            self.value = self._lower(self.value)
            self._cooldown_left = self._cooldown
            self._bad_evaluations = 0

    def state_dict(self) -> Dict[str, Any]:
        """What the scores made of it. `best` is None while there is none: JSON has no infinity."""
        return {
            "rate": self.value,
            "best": self._best if math.isfinite(self._best) else None,
            "bad_evaluations": self._bad_evaluations,
            "cooldown_left": self._cooldown_left,
        }

    def check_state_dict(self, state: Dict[str, Any]) -> None:
        """Check that a state can be loaded.

        RAISES (ScheduleError): It is none of a plateau's.
        """
        check = _Arguments("thinc-torchopt.plateau.v1", what_failed="load the state of")
        check.section("state", state, self.state_dict())
        check.number("rate", state["rate"])
        if state["best"] is not None:
            check.number("best", state["best"], at_least=-math.inf)
        check.steps("bad_evaluations", state["bad_evaluations"])
        check.steps("cooldown_left", state["cooldown_left"])

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on as the one whose state this is. The rate is the saved one, also if `initial_rate` is another today.

        RAISES (ScheduleError): The state is none of a plateau's. Nothing was changed.
        """
        self.check_state_dict(state)
        self.value = state["rate"]
        self._best = self._worst if state["best"] is None else state["best"]
        self._bad_evaluations = state["bad_evaluations"]
        self._cooldown_left = state["cooldown_left"]


def sequence(parts: Dict[str, Dict[str, FloatOrSchedule]]) -> Iterator[float]:
    """Several schedules in a row. Each begins at its own step 0 when its turn comes, and sees scores only while it lasts.

    parts (Dict[str, Dict]): By a name of your choice, in their order in the config: `steps`, how many steps it lasts, and
        `schedule`, a schedule, a number, or a list. The last part may leave out `steps`: it goes on. A list that ends before its
        part, or a last part whose steps are over, stays at its last value.
    RAISES (ScheduleError): A part lacks one of the two, has something else, or its schedule yields no number.
    SOURCE: torch.optim.lr_scheduler.SequentialLR.
    """
    check = _Arguments("thinc-torchopt.sequence.v1")
    if not isinstance(parts, dict) or not parts:
        check.refuse("parts", "a section with at least one part", parts)
    in_a_row: Dict[str, Part] = {}
    for i, (name, part) in enumerate(parts.items()):
        path = f"parts.{name}"
        is_last = i == len(parts) - 1
        if not isinstance(part, dict) or not {"schedule"} <= set(part) <= {"steps", "schedule"}:
            check.refuse(path, "a section with 'steps' and 'schedule'", sorted(part) if isinstance(part, dict) else part)
        if "steps" not in part and not is_last:
            check.refuse(path, "a section with 'steps', as only the last part goes on without", sorted(part))
        if "steps" in part:
            check.steps(f"{path}.steps", part["steps"], at_least=1)
        in_a_row[name] = Part(part.get("steps"), *check.values(f"{path}.schedule", part["schedule"]))  # type: ignore[arg-type]

    return SequenceSchedule(in_a_row)


class SequenceSchedule(Iterator[float]):
    """What `sequence` returns.

    parts (Dict[str, Part]): The parts in their order, by name.
    """

    def __init__(self, parts: Dict[str, "Part"]):
        self._parts = parts
        self._waiting = iter(parts.values())
        self._part = next(self._waiting)
        self._steps_done = 0
        self._is_over = False

    @property
    def value(self) -> float:
        return self._part.value

    def __next__(self) -> float:
        if self._steps_done == self._part.steps:
            following = next(self._waiting, None)
            if following is None:
                self._is_over = True
                return self.value
            self._part = following
            self._steps_done = 0
        self._steps_done += 1
        self._part.step()
        return self.value

    def observe(self, score: float) -> None:
        """Pass a score on to the part that gave the last value."""
        if not self._is_over:
            self._part.observe(score)

    def state_dict(self) -> Dict[str, Any]:
        """The states of the parts that keep one, by name."""
        return {name: part.source.state_dict() for name, part in self._keepers().items()}

    def check_state_dict(self, state: Dict[str, Any]) -> None:
        """Check that a state can be loaded.

        RAISES (ScheduleError): It is none of a sequence with these parts.
        """
        keepers = self._keepers()
        _Arguments("thinc-torchopt.sequence.v1", what_failed="load the state of").section("parts", state, keepers)
        for name, part in keepers.items():
            if hasattr(part.source, "check_state_dict"):
                part.source.check_state_dict(state[name])

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Give the parts their states back. Draw the values up to the same position before.

        RAISES (ScheduleError): The state is none of a sequence with these parts. Nothing was changed.
        """
        self.check_state_dict(state)
        for name, part in self._keepers().items():
            part.source.load_state_dict(state[name])

    def _keepers(self) -> Dict[str, "Part"]:
        return {name: part for name, part in self._parts.items() if hasattr(part.source, "state_dict")}


class Part:
    """One part of a sequence.

    steps (Optional[int]): How many it lasts. None: it goes on.
    source (Iterator): Yields the value of each step.
    first (Any): Its first value, which was drawn when the config was checked.
    """

    def __init__(self, steps: Optional[int], source: Iterator[Any], first: Any):
        self.steps = steps
        self.source: Any = source
        self._values = chain([first], source)
        self._drawn = first

    @property
    def value(self) -> Any:
        return self.source.value if hasattr(self.source, "observe") else self._drawn

    def step(self) -> None:
        self._drawn = next(self._values, self._drawn)

    def observe(self, score: float) -> None:
        if hasattr(self.source, "observe"):
            self.source.observe(score)


def _each_step(value_at: Callable[[int], float]) -> Iterator[float]:
    """Make a generator, which is what thinc takes for a schedule, of a function of the step."""
    for step in count():
        yield value_at(step)


def _between(low: float, high: float, part: float) -> float:
    return low + (high - low) * part


def _fall(curve: Curve, done: float) -> float:
    """A fall from 1 to 0, and read backwards a rise. done (float): How much of it is over, 0 to 1."""
    if curve == "linear":
        return 1.0 - done
    return 0.5 * (1.0 + math.cos(math.pi * done)) if curve == "cosine" else 1.0 - math.sqrt(done)


class _Arguments:
    """Checks the arguments of one schedule. confection lets numbers in quotes pass, and generators in the place of anything.

    label (str): What the config calls the schedule.
    what_failed (str): What can't be done with it if one of them is wrong.
    """

    def __init__(self, label: str, what_failed: str = "build"):
        self.label = label
        self.what_failed = what_failed

    def refuse(self, name: str, expected: str, found: Any) -> None:
        raise ScheduleError(f"Can't {self.what_failed} the schedule '{self.label}': expected '{name}' to be {expected}, found {found!r}.")

    def number(
        self,
        name: str,
        value: Any,
        *,
        at_least: float = 0.0,
        at_most: float = math.inf,
        above: float = -math.inf,
        below: float = math.inf,
    ) -> None:
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not (is_number and at_least <= value <= at_most and above < value < below):
            low = f"above {above:g}" if above > -math.inf else f"of at least {at_least:g}" if at_least > -math.inf else "that is finite"
            high = f" and at most {at_most:g}" if at_most < math.inf else f" and below {below:g}" if below < math.inf else ""
            self.refuse(name, f"a number {low}{high}", value)

    def steps(self, name: str, value: Any, *, at_least: int = 0, because: str = "") -> None:
        if not isinstance(value, Integral) or isinstance(value, bool) or value < at_least:
            self.refuse(name, f"a whole number of at least {at_least}{because}", value)

    def warmup(self, warmup_steps: Any, total_steps: Any, decay_steps: int = 0) -> None:
        self.steps("warmup_steps", warmup_steps)
        used = warmup_steps + decay_steps
        because = "" if not used else " (warmup_steps + decay_steps)" if decay_steps else " (warmup_steps)"
        self.steps("total_steps", total_steps, at_least=max(1, used), because=because)

    def choice(self, name: str, value: Any, choices: List[str]) -> None:
        if value not in choices:
            self.refuse(name, "one of " + ", ".join(f"'{choice}'" for choice in choices), value)

    def section(self, name: str, value: Any, keys: Iterable[str]) -> None:
        if not isinstance(value, dict) or set(value) != set(keys):
            self.refuse(name, f"a section with {sorted(keys)}", sorted(value) if isinstance(value, dict) else value)

    def values(self, name: str, source: Any) -> Tuple[Iterator[Any], Any]:
        """An iterator over the values of a number, a list or a schedule, and the first of them, which was drawn."""
        if isinstance(source, Real):
            source = repeat(source)
        values = iter(source) if isinstance(source, (list, Iterator)) else iter(())
        first = next(values, None)
        if not isinstance(first, Real) or isinstance(first, bool):
            self.refuse(name, "a number, or a list or schedule of numbers", source if first is None else first)
        return values, first
