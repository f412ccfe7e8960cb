"""The guard: gradients that are not finite, and spikes, do not reach the params.

A *spike* is an update whose gradient norm (over all its params, before clipping) is above `spike_factor` times the
moving average of those before it. How the average works:

- It is exponential, forgets 1% at each update, and is corrected for its beginning as Adam's moments are. It finds no
  spike in its first 20 updates.
- A spike counts as `spike_factor` times the average, as if it had been clipped, so it can't raise the average much. Yet
  no training gets stuck where norms have risen for good: the average grows by (`spike_factor` - 1) percent at each
  spike until it has caught up, and spikes more often than once in `spike_factor` updates soon stop being spikes.
- Norms that are not finite don't count. Neither do norms of 0: a batch without annotations says nothing about others.
- Each set of params that is updated together has its own average. In spaCy's training loop there is one set, the whole
  pipeline; with `nlp.update(..., sgd=optimizer)` there is one per component, and one for each param that is updated by
  itself.

Decisions need only the norms, which clipping measures anyway: see clipping.py. After several bad updates in a row a
training may go back to a checkpoint: see loop/rollback.py.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..checks import OPTIMIZER
from ..errors import ConfigError, GradSpikeWarning, NonFiniteGradError, NonFiniteGradWarning
from ..params import Param
from ..schema import Count, NotNegative, read, write
from ..types import OnSpike, RollbackSettings

DECAY = 0.99
# Norms to collect before a spike is possible.
MIN_UPDATES = 20
# The key of updates of the whole pipeline.
JOINT = "the pipeline"


@dataclass
class MovingAverage:
    """The moving average of the norms of one set of params.

    norm (float): The average.
    updates (int): The number of norms in it.
    """

    norm: NotNegative = 0.0
    updates: Count = 0

    def add(self, norm: float) -> None:
        """Add a norm."""
        self.updates += 1
        self.norm += (1.0 - DECAY) / (1.0 - DECAY**self.updates) * (norm - self.norm)


@dataclass
class GuardState:
    """The saved form of a guard: its attributes."""

    nonfinite: Count
    spikes: Count
    skipped: Count
    bad_in_a_row: Count
    nonfinite_in_a_row: dict[str, Count]
    averages: dict[str, MovingAverage]


@dataclass(frozen=True)
class NonFinite:
    """what (str): The non-finite value, as a sentence without its end."""

    what: str


@dataclass(frozen=True)
class Spike:
    """A norm above `spike_factor` times its moving average. Param `largest` has the largest part of it."""

    params: str
    norm: float
    average: float
    largest: str


@dataclass(frozen=True)
class Verdict:
    """The decision on an update.

    factor (float | None): A factor for all gradients, at most 1. None: skip the update.
    found (NonFinite | Spike | None): The reason.
    """

    factor: float | None = 1.0
    found: NonFinite | Spike | None = None


class GradGuard:
    """Decides whether each update is made, and counts skipped ones.

    max_nonfinite (int): It stops the training after this many updates in a row with non-finite gradients. 0: never skip
        or stop.
    spike_factor (float): A norm above this many times its moving average is a spike. 0: no norm is.
    on_spike ("skip" | "clip"): Skip spikes, or scale the gradients down to `spike_factor` times the average.

    Public: `nonfinite` and `spikes` (how many were found), `skipped` (updates not made, for either reason),
        `bad_in_a_row` (bad updates since the last good one).
    RAISES (ConfigError): An invalid setting.
    """

    def __init__(self, max_nonfinite: int, *, spike_factor: float = 0.0, on_spike: OnSpike = "skip"):
        self.max_nonfinite = OPTIMIZER.whole("max_nonfinite", max_nonfinite)
        self.spike_factor = OPTIMIZER.number("spike_factor", spike_factor, "a number above 1, or 0 for none")
        if 0.0 < self.spike_factor <= 1.0:
            advice = "With 1 or less, about half of all updates would be spikes."
            OPTIMIZER.refuse("spike_factor", "a number above 1, or 0 for none", spike_factor, advice)
        self.on_spike: OnSpike = OPTIMIZER.choice("on_spike", on_spike, ("skip", "clip"))
        self.nonfinite = self.spikes = self.skipped = self.bad_in_a_row = 0
        self.averages: dict[str, MovingAverage] = {}  # by the name of the set of params
        self.nonfinite_in_a_row: dict[str, int] = {}

    @property
    def wants_norms(self) -> bool:
        """Whether it needs the norms."""
        return bool(self.max_nonfinite or self.spike_factor)

    def judge(self, params: Sequence[Param], norms: Sequence[float], norm: float) -> Verdict:
        """Decide whether an update is made. Call `report` afterwards.

        params (Sequence[Param]): The params to update.
        norms (Sequence[float]): The norm of each gradient.
        norm (float): The norm of all gradients together.
        RETURNS (Verdict): For `report`.
        """
        if not norm < math.inf:
            bad = next((param for param, found in zip(params, norms) if not found < math.inf), None)
            if self.max_nonfinite and bad is not None:
                return Verdict(
                    None, NonFinite(f"the gradient of param '{bad.name}' is not finite, or too large for a norm")
                )
            return Verdict()
        if not self.spike_factor or norm == 0.0:
            return Verdict()
        updated_together = name_of_set(params)
        if len(params) > 1:  # unfreezing layers changes the norms
            updated_together += f" ({len(params)} params)"
        average = self.averages.setdefault(updated_together, MovingAverage())
        limit = self.spike_factor * average.norm
        if average.updates < MIN_UPDATES or norm <= limit:
            average.add(norm)
            return Verdict()
        largest = max(range(len(norms)), key=norms.__getitem__)
        found = Spike(updated_together, norm, average.norm, params[largest].name)
        average.add(limit)
        return Verdict(limit / norm if self.on_spike == "clip" else None, found)

    def refuse(self, error: Exception) -> Verdict:
        """Skip an update whose gradients could not all be computed because of a non-finite value.

        error (Exception): The component's error. It is raised again if such updates are not skipped.
        """
        if not self.max_nonfinite:
            raise error
        return Verdict(None, NonFinite(str(error).rstrip(".")))

    def report(self, verdict: Verdict, together: str) -> None:
        """Count the result, and warn when it is the first of its kind.

        together (str): Name of the params that are updated together. Models may take turns; each has its own count.
        RAISES (NonFiniteGradError): Too many updates in a row were not finite.
        """
        self.bad_in_a_row = 0 if verdict.found is None else self.bad_in_a_row + 1
        if verdict.factor is not None:
            self.nonfinite_in_a_row.pop(together, None)
        if isinstance(verdict.found, NonFinite):
            self._report_nonfinite(verdict.found, together)
        elif verdict.found is not None:
            self._report_spike(verdict.found)

    def _report_nonfinite(self, found: NonFinite, together: str) -> None:
        self.nonfinite += 1
        self.skipped += 1
        in_a_row = self.nonfinite_in_a_row[together] = self.nonfinite_in_a_row.get(together, 0) + 1
        if self.nonfinite == 1:
            warnings.warn(
                NonFiniteGradWarning(
                    f"Skipped an update: {found.what}. All params are unchanged. Further updates are skipped without a "
                    "warning. Their number is in optimizer.skipped_updates."
                ),
                stacklevel=11,
            )
        if in_a_row >= self.max_nonfinite:
            raise NonFiniteGradError(
                f"Training stopped by 'max_nonfinite' in [training.optimizer]: {in_a_row} updates in a row had NaN or "
                f"infinite values. The last time, {found.what}. Params are as they were before the first of these "
                "updates. Lower learn_rate, check the training data, or raise max_nonfinite."
            )

    def _report_spike(self, found: Spike) -> None:
        self.spikes += 1
        self.skipped += self.on_spike == "skip"
        if self.spikes == 1:
            what, done = ("Skipped", "skipped") if self.on_spike == "skip" else ("Scaled down", "scaled down")
            warnings.warn(
                GradSpikeWarning(
                    f"{what} an update of {found.params}: the norm of its gradients is {found.norm:.3g}, more than "
                    f"spike_factor = {self.spike_factor:g} times its moving average of {found.average:.3g}; the "
                    f"largest is that of param '{found.largest}'. Further updates are {done} without a warning. Their "
                    "number is in optimizer.grad_spikes."
                ),
                stacklevel=11,
            )

    def anew(self) -> GradGuard:
        """One with the same settings that has seen nothing."""
        return GradGuard(self.max_nonfinite, spike_factor=self.spike_factor, on_spike=self.on_spike)

    def begin_anew(self) -> None:
        """Forget averages and bad updates in a row, for other params. Counters are kept."""
        self.end_row()
        self.averages = {}

    def end_row(self) -> None:
        """Forget bad updates in a row: the training went back to before them."""
        self.bad_in_a_row, self.nonfinite_in_a_row = 0, {}

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """Counters and averages, for JSON."""
        return write(self, GuardState)

    def load_state_dict(self, saved: Any, renamed: Mapping[str, str] = MappingProxyType({})) -> None:
        """Load the state of another guard. Everything is checked first; an error changes nothing.

        saved (Mapping): From `state_dict`.
        renamed (Mapping[str, str]): The new names of components, by their names in the state.
        RAISES (StateError): Not the state of a guard.
        """
        state = read(GuardState, saved, "the state of the guard")
        self.__dict__.update(vars(state))
        self.nonfinite_in_a_row = {_renamed_set(name, renamed): n for name, n in state.nonfinite_in_a_row.items()}
        self.averages = {_renamed_set(name, renamed): average for name, average in state.averages.items()}


def rollback_settings(
    after: int, factor: float, at_most: int, guard: GradGuard, has_checkpoints: bool
) -> RollbackSettings | None:
    """The settings for rollbacks in a config. None: they are off.

    RAISES (ConfigError): An invalid setting.
    """
    after, at_most = OPTIMIZER.whole("rollback_after", after), OPTIMIZER.whole("max_rollbacks", at_most)
    if not OPTIMIZER.number("rollback_factor", factor, "a number above 0 and at most 1", at_most=1.0) > 0.0:
        OPTIMIZER.refuse("rollback_factor", "a number above 0 and at most 1", factor)
    if not after:
        return None
    if not has_checkpoints:
        raise ConfigError(
            "Can't set 'rollback_after' in [training.optimizer]: expected checkpoints to go back to, found no block "
            "[training.optimizer.checkpoint]. Add the block, or remove the setting."
        )
    if not guard.wants_norms:
        raise ConfigError(
            "Can't set 'rollback_after' in [training.optimizer]: expected max_nonfinite or spike_factor above 0, to "
            "detect bad updates, found 0 for both. Set one of them."
        )
    if 0 < guard.max_nonfinite <= after:
        expected = f"less than max_nonfinite = {guard.max_nonfinite}, after which the training stops"
        OPTIMIZER.refuse("rollback_after", expected, after, "Lower it, or raise max_nonfinite.")
    return RollbackSettings(after, float(factor), at_most)


def name_of_set(params: Sequence[Param]) -> str:
    """The name of params that are updated together outside a joint step: their components, or the only param."""
    return params[0].name if len(params) == 1 else "+".join(sorted({param.component for param in params}))


def _renamed_set(name: str, renamed: Mapping[str, str]) -> str:
    """Name of a set of params after its components, or that of its only param, were renamed."""
    if "/" in name:
        component, _, rest = name.partition("/")
        return f"{renamed.get(component, component)}/{rest}"
    components, space, count = name.partition(" ")
    parts = components.split("+")
    if renamed.keys().isdisjoint(parts):
        return name
    return "+".join(sorted(renamed.get(part, part) for part in parts)) + space + count
