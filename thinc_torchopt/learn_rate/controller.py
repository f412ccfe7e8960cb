"""The controller of learning rates: nothing else in the package writes the `lr` of a torch param group.

    controller = LearnRateController()
    controller.register_optimizer("bert", optimizer, "cosine", total_steps=1000)
    for batch in batches:
        loss_of(batch).backward()
        controller.step(epoch)
        optimizer.step()
        optimizer.zero_grad()

Each `step` first verifies that every param group is as the controller left it, then writes the rates that the groups' policies (see
policies.py) give. What it finds changed it puts back, adopts, or raises: `on_outside_write`.

*conservative mode*: begins when other code keeps writing and a circuit breaker opens. Writes are then undone without warnings, and counted.
For a hundred steps rates may fall but not rise; then they follow the policies again. The mode ends after a hundred clean steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch

from ..checks import Section
from ..errors import ConfigError, LearnRateIntegrityError
from ..types import OnOutsideWrite
from .conservative import CircuitBreaker
from .groups import Group, WatchedGroup, rate_of
from .history import History, Snapshot
from .integrity import Integrity, find, find_rates
from .new_params import add_params, find_parent
from .policies import PolicyLike, Warmup, check_rate, source_of
from .registered import Registered
from .runtime_guards import RuntimeGuards
from .saving import check_state
from .watch import Hooked, WatchedOptimizer

# In conservative mode the history keeps one step in so many.
SAMPLED_STEPS = 10


class LearnRateController:
    """Owns the learning rates of torch optimizers. See the module's docstring. Not for several threads, and not pickled.

    on_outside_write ("restore" | "adopt" | "raise"): What to do when other code wrote a rate. Put the value back, and warn once per
        group; or let the policy go on from the value found; or raise LearnRateIntegrityError.
    breaker (CircuitBreaker): Opens after three failures in a row, by default.
    clock (Callable): The time of snapshots, in seconds.
    enable_runtime_guards (bool): False: integrity is not checked. Rates that other code writes are then used, up to the next `step`.
    runtime_budgets (Mapping[str, float]): Milliseconds by kind, in place of `BUDGETS`: see runtime_guards.py.
    timer (Callable): The time that these are measured by, in seconds: a clock that never goes back.
    RAISES (ConfigError): An invalid argument.

    Public: `step_count` (steps so far), `history` (the last 1,000 snapshots), `outside_writes` (how many changes by others were found),
    `guards` (budgets of time), `scale` (multiplies all rates from the next step on; 1 unless it is set).
    """

    def __init__(
        self,
        *,
        on_outside_write: OnOutsideWrite = "restore",
        breaker: CircuitBreaker | None = None,
        clock: Callable[[], float] = time.time,
        enable_runtime_guards: bool = True,
        runtime_budgets: Mapping[str, float] | None = None,
        timer: Callable[[], float] = time.monotonic,
    ):
        Section("the learn rate controller").choice("on_outside_write", on_outside_write, ("restore", "adopt", "raise"))
        self.on_outside_write: OnOutsideWrite = on_outside_write
        self.breaker = CircuitBreaker() if breaker is None else breaker
        self.guards = RuntimeGuards(enable_runtime_guards, runtime_budgets, timer)
        self.history = History()
        self.step_count = 0
        self.scale = 1.0
        self._clock = clock
        self._registered = Registered(_write, self._before_step)
        self._integrity = Integrity(self._registered, self.breaker, _write)

    # ------------------------------------------------------------------ optimizers and groups

    def register_optimizer(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        policy: PolicyLike | Mapping[int | str, PolicyLike],
        *,
        moving: Collection[str] = (),
        param_names: Mapping[torch.Tensor, str] | None = None,
        watch_steps: bool = True,
        keep_groups: bool = False,
        **settings: Any,
    ) -> list[str]:
        """Take over the rates of an optimizer. They stay what they are until the next `step`.

        name (str): What ids of its groups begin with.
        optimizer (torch.optim.Optimizer): Any.
        policy (PolicyLike): "cosine" for models that were trained before, "warmup" for new params, "adaptive": lowered by metrics, or
            "frozen"; or a policy, a rate, a list of rates, a schedule, or a function of the step. Or a dict with any of these for each
            group, by the group's index or its own "name".
        moving (Collection[str]): Options of its groups that others may write, e.g. because a schedule moves them.
        param_names (Mapping[Tensor, str]): Names of params, for messages and checksums.
        watch_steps (bool): Verify before each step of the optimizer too, by a hook, which is also what keeps frozen params from being
            updated. Without it, call `step` before each, and read of `frozen` only that the rate is 0.
        keep_groups (bool): You hold on to the dicts in `optimizer.param_groups`: after `optimizer.load_state_dict`, which makes new
            ones, they stand there again with what was loaded, and those that somebody takes out come back.
        settings (Any): Those of a policy that is given by its name: see named_policies.py.
        RETURNS (list[str]): The ids of the groups.
        RAISES (ConfigError): The name or the optimizer is known already, or the policy or a rate can't be.
        """
        added = self._registered.add(
            name,
            optimizer,
            policy,
            settings,
            self.step_count,
            moving=moving,
            param_names=param_names,
            watch_steps=watch_steps,
            keep_groups=keep_groups,
        )
        return [watched.id for watched in added.groups]

    def unregister_optimizer(self, name: str) -> None:
        """Stop managing an optimizer. Its rates stay as they are.

        RAISES (ConfigError): No optimizer has that name.
        """
        self._registered.remove(name)

    def replace_optimizer(
        self, old: str | torch.optim.Optimizer, new: torch.optim.Optimizer, *, param_names: Mapping[torch.Tensor, str] | None = None
    ) -> None:
        """Let another optimizer take the place of one, because its model has grown for example: under the same name, and each of its groups
        under the id, policy, position and history of that which stands there in the old one. It gets the rates that were written last.

        Who steps the old one afterwards is warned, once.

        old (str | torch.optim.Optimizer): One that is registered, or its name.
        new (torch.optim.Optimizer): With as many param groups, in the same order.
        param_names (Mapping[Tensor, str]): Names of its params, if the old one was registered with names.
        RAISES (ConfigError): The old one is not known, or the new one is, or it has more or fewer groups. Nothing has changed then.
        """
        self._registered.replace(old, new, self.step_count, param_names)

    def refresh(self, name: str) -> None:
        """Take the groups, params and options of an optimizer as they now are: its owner changed them. Rates are still verified.

        A group that came keeps the rate that it has; for another policy, call `add_group` first.

        RAISES (ConfigError): There is no optimizer of that name.
        """
        self._registered.take(self._registered.find(name), self.step_count)

    def add_group(
        self,
        name: str,
        group: Group,
        policy: PolicyLike,
        *,
        id: str | None = None,
        param_names: Mapping[torch.Tensor, str] | None = None,
        adopted: tuple[float, float | None] = (1.0, None),
    ) -> str:
        """Take in a group that its owner appended to `optimizer.param_groups`.

        name (str): The optimizer's.
        id (str): Default: made of the optimizer's name and the group's own "name" or number.
        param_names (Mapping[Tensor, str]): From now on, for all groups of the optimizer.
        adopted (tuple): Of a group that was there before in its place: see `adopted`.
        RETURNS (str): The id.
        RAISES (ConfigError): The group is not the optimizer's, or known already, or the id is; or the policy or the rate can't be.
        """
        made = self._registered.add_group(name, group, policy, self.step_count, id=id, param_names=param_names, adopted=adopted)
        return made.id

    def adopted(self, id: str) -> tuple[float, float | None]:
        """What rates of others that were adopted made of a group's: a factor, and the rate that replaces its policy's, or None."""
        watched = self._registered.groups[id]
        return watched.factor, watched.held_rate

    def rename_groups(self, ids: Mapping[str, str]) -> None:
        """Give groups other ids. ids (Mapping[str, str]): The new one of each group by its old one; all different."""
        self._registered.rename(ids)

    def add_params(
        self,
        optimizer: str | torch.optim.Optimizer,
        params: Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
        parent: str | int | None = None,
        *,
        warmup_steps: int = 100,
        options: Mapping[str, Any] | None = None,
        policy: PolicyLike | None = None,
        **settings: Any,
    ) -> str:
        """Give params that arrive in mid-training a group of their own, at a tenth of the rate of its parent, to which they warm up.

        optimizer (str | torch.optim.Optimizer): One that is registered.
        params (Iterable): Tensors, or pairs of name and tensor, as torch takes them.
        parent (str | int): Id or index of the group whose options they get, and whose rate they follow. Default: the first one.
        warmup_steps (int): Steps of the rise, from a hundredth of that rate.
        options (Mapping[str, Any]): Options that differ from the parent's.
        policy (PolicyLike): How they go on from there: "adaptive", for example, with the same warm-up. Its base is a tenth of the parent's
            rate. Default: they stay there.
        settings (Any): Arguments of a policy that is given by its name.
        RETURNS (str): The id of the group.
        RAISES (ConfigError): A param can't be optimized or is already, or there are none; or there is no such optimizer, parent or option.
        """
        started = self.guards.timer()
        to = self._registered.find(optimizer)
        above = find_parent(to, parent)
        if isinstance(policy, str) and policy != "frozen":
            settings = {"warmup_steps": warmup_steps, **settings}
        if policy is None and not settings:
            policy = Warmup(warmup_steps)
        read = self._registered.reader.read(policy, to.name, settings)  # type: ignore[arg-type]
        made = add_params(self._registered, to, list(params), above, read, options or {}, self.step_count)
        self.took("adding_params", started)
        return made.id

    # ------------------------------------------------------------------ one step

    def step(self, epoch: float | None = None, metrics: Mapping[str, Any] | None = None, *, scale: float = 1.0) -> dict[str, float]:
        """Write the rates of the step that comes.

        epoch (float): For the history.
        metrics (Mapping[str, float]): For policies that go by them.
        scale (float): Multiplies all rates, of this step only; beside `self.scale`.
        RETURNS (dict[str, float]): The rates that were written, by group.
        RAISES (ConfigError): A policy gives an invalid rate. Nothing was written. (LearnRateIntegrityError): Other code wrote to a
            group, and `on_outside_write` is "raise".
        """
        started = self.guards.timer()
        optimizers, groups = self._registered.by_name.values(), self._registered.groups.values()
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
            rates[watched.id] = _write(watched, rate * scale)
        if not self.breaker.conservative or step % SAMPLED_STEPS == 0:
            self.history.append(Snapshot(epoch, step, rates.copy(), self._registered.checksums, self._clock()))
        for source in self._registered.moving:
            source.advance()
        self.took("rate_step", started)
        self.step_count += 1
        self.breaker.end_step(step)
        return rates

    def observe(self, metrics: Mapping[str, Any]) -> None:
        """Tell policies that go by metrics how the training goes, between two steps. An evaluation, for example.

        RAISES (ConfigError): Not a dict, or a metric that a policy goes by is no number.
        """
        if not isinstance(metrics, Mapping):
            raise ConfigError(f"Can't use the metrics of a step: expected a dict of names and numbers, found {metrics!r}.")
        for source in self._registered.watching:
            source.observe(metrics)

    @property
    def goes_by_metrics(self) -> bool:
        """Whether there is a policy that looks at metrics."""
        return bool(self._registered.watching)

    def put_back(self, name: str) -> dict[str, float]:
        """Undo what an algorithm itself wrote in its step: some make the next rate of the last. Who lets it step makes that the policy's.

        name (str): The optimizer's.
        RETURNS (dict[str, float]): By which factor the rate had changed, by group.
        RAISES (ConfigError): There is no optimizer of that name.
        """
        factors = {}
        for watched in self._registered.find(name).groups:
            factors[watched.id] = rate_of(watched.group) / watched.applied_rate if watched.applied_rate else 1.0
            _write(watched, watched.applied_rate)
        return factors

    @property
    def outside_writes(self) -> int:
        """How many changes by other code were found so far."""
        return self._integrity.outside_writes

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
        """What took longer than its budget, and how often: of "rate_step", "integrity_check", "state_preservation", "adding_params"."""
        return dict(self.guards.overruns)

    def took(self, kind: str, started: float) -> None:
        """Look how long something took that has a budget: what is too slow twice in a row, or more often, is told to the breaker.

        kind (str): A key of `overruns`. started (float): When it began, by `guards.timer`.
        """
        if self.guards.ended(kind, started, self._size, self.step_count):
            self.breaker.was_slow()

    def _size(self) -> tuple[int, int]:
        groups = self._registered.groups
        return len(groups), sum(len(watched.params) for watched in groups.values())

    def verify(self) -> list[LearnRateIntegrityError]:
        """Find what other code changed. Empty: nothing. Changes nothing itself."""
        return [difference.error(self.step_count) for of in self._registered.by_name.values() for difference in find(of)]

    @property
    def rates(self) -> dict[str, float]:
        """The rate that was last written to each group; before the first step, that it was registered with."""
        return {id: watched.applied_rate for id, watched in self._registered.groups.items()}

    def rate_to_come(self, id: str) -> float:
        """The rate that the next step will write to a group."""
        watched = self._registered.groups[id]
        rate = watched.rate_at(self.step_count)
        return (min(rate, watched.rate) if self.breaker.holds_rates else rate) * self.scale

    @property
    def checksums(self) -> dict[str, str]:
        """The identity of each group: the names and shapes of its params, and its options."""
        return dict(self._registered.checksums)

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run needs to continue exactly, for JSON."""
        return {
            "step_count": self.step_count,
            "outside_writes": self.outside_writes,
            "scale": self.scale,
            "mode": self.breaker.state_dict(),
            "history": self.history.state_dict(),
            "groups": {id: watched.state_dict() for id, watched in self._registered.groups.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], *, may_grow: bool = False) -> None:
        """Load the state of another run, and write its last rates.

        state (Mapping): From `state_dict`, of a controller with the same optimizers, policies and added params.
        may_grow (bool): Params may have other shapes than they had there; or else that is a warning.
        RAISES (ConfigError): The state of another controller. Everything is checked before anything is changed.
        """
        groups = self._registered.groups
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
        self.history, self.step_count, self.scale = history, step_count, scale
        self._integrity.outside_writes = outside_writes
        for watched in {id(source_of(watched.policy)): watched for watched in groups.values()}.values():
            if hasattr(source := source_of(watched.policy), "load_state_dict"):
                source.load_state_dict(state["groups"][watched.id]["policy_state"])
        for watched in groups.values():
            watched.load_state_dict(state["groups"][watched.id])
            _write(watched, watched.applied_rate)

    # ------------------------------------------------------------------ integrity

    def check_rates(self, name: str) -> None:
        """Handle rates that other code wrote since `step`: for owners who show torch some of the groups only while it steps.

        RAISES (LearnRateIntegrityError): There are, and `on_outside_write` is "raise".
        """
        if self.guards.enabled and (found := find_rates(self._registered.find(name))):
            self._integrity.handle(found, (), self.step_count, self.on_outside_write)

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
            self._integrity.handle(found, optimizers, self.step_count, self.on_outside_write)
        else:  # the same groups in new dicts
            for watched in optimizers:
                self._registered.take(watched, self.step_count)

    def _before_step(
        self, watched_optimizer: WatchedOptimizer, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Hooked | None:
        """Runs before each step of an optimizer: verifies, and takes the gradients of frozen params away."""
        self._check([watched_optimizer])
        return watched_optimizer.drop_frozen_grads(args, kwargs)


def _write(watched: WatchedGroup, rate: float) -> float:
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
