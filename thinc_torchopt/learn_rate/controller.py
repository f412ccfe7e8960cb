"""The controller of learning rates: nothing else in the package writes the `lr` of a torch param group.

    controller = LearnRateController()
    controller.register_optimizer("bert", optimizer, "cosine", total_steps=1000)
    for batch in batches:
        loss_of(batch).backward()
        controller.step(epoch)
        optimizer.step()
        optimizer.zero_grad()

Each `step` first verifies that every param group is as the controller left it, then writes the rates that the groups'
policies (see policies.py) give. What it finds changed it puts back, adopts, or raises: `on_outside_write`.

*conservative mode*: begins when other code keeps writing and a circuit breaker opens. Writes are then undone without
warnings, and counted. For a hundred steps rates may fall but not rise; then they follow the policies again. The mode
ends after a hundred clean steps.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from ..checks import Section
from ..errors import ConfigError, LearnRateIntegrityError, LearnRateWarning
from ..types import OnOutsideWrite
from .conservative import CircuitBreaker
from .groups import WatchedGroup, rate_of
from .history import History, Snapshot
from .integrity import Difference, find, find_rates
from .policies import check_rate, source_of
from .registered import Registered
from .runtime_guards import RuntimeGuards
from .saving import check_state
from .watch import Hooked, WatchedOptimizer

# In conservative mode the history keeps one step in so many.
SAMPLED_STEPS = 10


class LearnRateController(Registered):
    """Owns the learning rates of torch optimizers. See the module's docstring. Not for several threads, and not
    pickled.

    on_outside_write ("restore" | "adopt" | "raise"): What to do when other code wrote a rate. Put the value back, and
        warn once per group; or let the policy go on from the value found; or raise LearnRateIntegrityError.
    breaker (CircuitBreaker): Opens after three failures in a row, by default.
    clock (Callable): The time of snapshots, in seconds.
    enable_runtime_guards (bool): False: integrity is not checked. Rates that other code writes are then used, up to the
        next `step`.
    runtime_budgets (Mapping[str, float]): Milliseconds of CPU time by kind, in place of `BUDGETS`: see
        runtime_guards.py.
    timer (Callable): The time that these are measured by, in seconds: a clock that never goes back.
    RAISES (ConfigError): An invalid argument.

    Public: `step_count` (steps so far), `history` (the last 1,000 snapshots), `outside_writes` (how many changes by
    others were found), `guards` (budgets of CPU time), `scale` (multiplies all rates from the next step on; 1 unless
    it is set).
    """

    def __init__(
        self,
        *,
        on_outside_write: OnOutsideWrite = "restore",
        breaker: CircuitBreaker | None = None,
        clock: Callable[[], float] = time.time,
        enable_runtime_guards: bool = True,
        runtime_budgets: Mapping[str, float] | None = None,
        timer: Callable[[], float] = time.thread_time,
    ):
        Section("the learn rate controller").choice("on_outside_write", on_outside_write, ("restore", "adopt", "raise"))
        self.on_outside_write: OnOutsideWrite = on_outside_write
        super().__init__(
            CircuitBreaker() if breaker is None else breaker,
            RuntimeGuards(enable_runtime_guards, runtime_budgets, timer),
        )
        self.history = History()
        self.outside_writes = 0
        self.scale = 1.0
        self._clock = clock

    # ------------------------------------------------------------------ one step

    def step(
        self, epoch: float | None = None, metrics: Mapping[str, Any] | None = None, *, scale: float = 1.0
    ) -> dict[str, float]:
        """Write the rates of the step that comes.

        epoch (float): For the history.
        metrics (Mapping[str, float]): For policies that go by them.
        scale (float): Multiplies all rates, of this step only; beside `self.scale`.
        RETURNS (dict[str, float]): The rates that were written, by group.
        RAISES (ConfigError): A policy gives an invalid rate. Nothing was written. (LearnRateIntegrityError): Other code
            wrote to a group, and `on_outside_write` is "raise".
        """
        started = self.guards.timer()
        optimizers, groups = self._optimizers.values(), self._groups.values()
        self._check(optimizers)
        for watched_optimizer in optimizers:
            watched_optimizer.have_the_last_word()
        step, hold = self.step_count, self.breaker.holds_rates
        scale *= self.scale
        if metrics is not None:
            self.observe(metrics)
        wanted = []
        for watched in groups:
            rate = watched.rate_at(step)
            if hold:
                rate = min(rate, watched.rate)
            if not 0.0 <= rate * scale < math.inf:
                check_rate(rate * scale, watched.id)
            wanted.append(rate)
        rates = {}
        for watched, rate in zip(groups, wanted):
            watched.rate = rate
            rates[watched.id] = self._write(watched, rate * scale)
        if not self.breaker.conservative or step % SAMPLED_STEPS == 0:
            self.history.append(Snapshot(epoch, step, rates.copy(), self.checksums, self._clock()))
        for source in self._advancing:
            source.advance()
        self.took("rate_step", started)
        self.step_count += 1
        self.breaker.end_step(step)
        return rates

    def observe(self, metrics: Mapping[str, Any]) -> None:
        """Tell policies that go by metrics how the training goes, between two steps. An evaluation, for example. Those
        that still warm up are not told.

        RAISES (ConfigError): Not a dict, or a metric that a policy goes by is no number.
        """
        if not isinstance(metrics, Mapping):
            raise ConfigError(
                f"Can't use the metrics of a step: expected a dict of names and numbers, found {metrics!r}."
            )
        if self._observing:
            heeded_by = [watched.policy for watched in self._groups.values() if watched.heeds_metrics(self.step_count)]
            heeding = {id(source_of(policy)) for policy in heeded_by}
            for source in self._observing:
                if id(source) in heeding:
                    source.observe(metrics)

    @property
    def goes_by_metrics(self) -> bool:
        """Whether there is a policy that looks at metrics."""
        return bool(self._observing)

    def put_back(self, name: str) -> dict[str, float]:
        """Undo what an algorithm itself wrote in its step: some make the next rate of the last. Who lets it step makes
        that the policy's.

        name (str): The optimizer's.
        RETURNS (dict[str, float]): By which factor the rate had changed, by group.
        RAISES (ConfigError): There is no optimizer of that name.
        """
        factors = {}
        for watched in self._optimizer(name).groups:
            factors[watched.id] = rate_of(watched.group) / watched.applied_rate if watched.applied_rate else 1.0
            self._write(watched, watched.applied_rate)
        return factors

    @property
    def conservative(self) -> bool:
        """Whether it is in conservative mode."""
        return self.breaker.conservative

    @property
    def times_conservative(self) -> int:
        """How often conservative mode has begun so far."""
        return self.breaker.times

    @property
    def overruns(self) -> dict[str, int]:
        """What took longer than its budget, and how often: of "rate_step", "integrity_check", "state_preservation",
        "adding_params".
        """
        return dict(self.guards.overruns)

    def verify(self) -> list[LearnRateIntegrityError]:
        """Find what other code changed. Empty: nothing. Changes nothing itself."""
        return [difference.error(self.step_count) for of in self._optimizers.values() for difference in find(of)]

    @property
    def rates(self) -> dict[str, float]:
        """The rate that was last written to each group; before the first step, that it was registered with."""
        return {id: watched.applied_rate for id, watched in self._groups.items()}

    def rate_to_come(self, id: str) -> float:
        """The rate that the next step will write to a group."""
        watched = self._groups[id]
        rate = watched.rate_at(self.step_count)
        return (min(rate, watched.rate) if self.breaker.holds_rates else rate) * self.scale

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run needs to continue exactly, for JSON."""
        return {
            "step_count": self.step_count,
            "outside_writes": self.outside_writes,
            "scale": self.scale,
            "mode": self.breaker.state_dict(),
            "history": self.history.state_dict(),
            "groups": {id: watched.state_dict() for id, watched in self._groups.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], *, may_grow: bool = False) -> None:
        """Load the state of another run, and write its last rates.

        state (Mapping): From `state_dict`, of a controller with the same optimizers, policies and added params.
        may_grow (bool): Params may have other shapes than they had there; or else that is a warning.
        RAISES (ConfigError): The state of another controller. Everything is checked before anything is changed.
        """
        groups = self._groups
        check_state(state, self.state_dict(), groups, may_grow)
        try:
            history = History.from_state_dict(state["history"])
            step_count, outside_writes = int(state["step_count"]), int(state["outside_writes"])
            scale = check_rate(float(state["scale"]), "scale")
            self.breaker.load_state_dict(state["mode"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(
                f"Can't load the state of the learn rate controller: expected what state_dict gives, found {error!r}."
            ) from error
        self.history, self.step_count, self.outside_writes, self.scale = history, step_count, outside_writes, scale
        for watched in {id(source_of(watched.policy)): watched for watched in groups.values()}.values():
            if hasattr(source := source_of(watched.policy), "load_state_dict"):
                source.load_state_dict(state["groups"][watched.id]["policy_state"])
        for watched in groups.values():
            watched.load_state_dict(state["groups"][watched.id])
            self._write(watched, watched.applied_rate)

    # ------------------------------------------------------------------ integrity

    def check_rates(self, name: str) -> None:
        """Handle rates that other code wrote since `step`: for owners who show torch some of the groups only while it
        steps.

        RAISES (LearnRateIntegrityError): There are, and `on_outside_write` is "raise".
        """
        if self.guards.enabled and (found := find_rates(self._optimizer(name))):
            self._handle(found, ())

    def _check(self, optimizers: Collection[WatchedOptimizer]) -> None:
        """Verify, and deal with what is found."""
        if not self.guards.enabled:
            return
        started = self.guards.timer()
        is_untouched = all(watched.is_untouched() for watched in optimizers)
        self.took("integrity_check", started)
        if is_untouched:
            return
        for watched in optimizers:
            if watched.keep_groups:
                watched.reclaim()
        if found := [difference for watched in optimizers for difference in find(watched)]:
            self._handle(found, optimizers)
        else:  # the same groups in new dicts
            for watched in optimizers:
                self._take(watched)

    def _handle(self, differences: list[Difference], optimizers: Collection[WatchedOptimizer]) -> None:
        """Deal with differences.

        optimizers (Collection[WatchedOptimizer]): Those that are to be as before, or are taken as they are.
        RAISES (LearnRateIntegrityError): If `on_outside_write` is "raise". It knows of the others.
        """
        errors = [difference.error(self.step_count) for difference in differences]
        self.outside_writes += len(errors)
        conservative = self.breaker.conservative
        # In conservative mode a run that would be stopped is protected instead.
        how = "restore" if conservative and self.on_outside_write == "raise" else self.on_outside_write
        if how == "raise" or (how == "restore" and any(error.can_be_undone for error in errors)):
            self.breaker.was_written_to(self.step_count)
        if how == "raise":
            first, *first.others = errors
            raise first
        for optimizer in optimizers:
            if optimizer.keep_groups:
                optimizer.bring_back()
            if how == "restore":
                optimizer.put_back()
            self._take(optimizer, at_default=how == "restore")
        for difference in differences:
            if difference.kind == "learn_rate":
                watched = self._groups[difference.group]
                if (
                    how == "restore" or not 0.0 <= difference.found < math.inf
                ):  # what can't be a rate is put back in any case
                    self._write(watched, watched.applied_rate)
                else:
                    watched.adopt(difference.found)
        if not conservative:
            for error in errors:
                self._warn(error, restores=how == "restore")

    def _warn(self, error: LearnRateIntegrityError, *, restores: bool) -> None:
        """Say what was done, once for each kind of change of a group."""
        watched = self._groups.get(error.group)
        if watched is not None:
            if error.what in watched.warned_of:
                return
            watched.warned_of.add(error.what)
        done = (
            "The change was undone."
            if error.what == "taken_out" or (restores and error.can_be_undone)
            else "The change is kept."
        )
        if error.what == "group" and watched is not None:
            done = "It gets the default learn rate." if restores else "It keeps its learn rate."
        warnings.warn(LearnRateWarning(f"{error.fact} {done} {error.advice}"), stacklevel=5)

    def _before_step(
        self,
        watched_optimizer: WatchedOptimizer,
        optimizer: torch.optim.Optimizer,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Hooked | None:
        """Runs before each step of an optimizer: verifies, and takes the gradients of frozen params away."""
        self._check([watched_optimizer])
        return watched_optimizer.drop_frozen_grads(args, kwargs)

    # ------------------------------------------------------------------ writing

    def _write(self, watched: WatchedGroup, rate: float) -> float:
        """Write a rate. RETURNS (float): What then stands in the group: a tensor may be of less precision."""
        value: float | torch.Tensor = rate
        if watched.lr_tensor is not None:
            value = watched.lr_tensor
            with torch.no_grad():
                value.fill_(rate)  # in place: a captured graph reads this one
            rate = torch.tensor(rate, dtype=value.dtype).item()
        watched.group["lr"] = value
        watched.applied_rate = rate
        return rate
