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
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from weakref import WeakSet

import torch

from ..checks import Section
from ..errors import ConfigError, LearnRateIntegrityError, LearnRateWarning
from ..types import OnOutsideWrite
from .by_name import PolicyReader
from .conservative import CircuitBreaker
from .groups import Group, WatchedGroup, rate_of
from .history import History, Snapshot
from .integrity import Difference, find, find_rates
from .new_params import append_group, find_parent
from .policies import Constant, PolicyLike, Warmup, check_rate, source_of
from .runtime_guards import RuntimeGuards
from .saving import check_state
from .watch import Hooked, WatchedOptimizer, warn_of_steps
from .watched import Watched

# In conservative mode the history keeps one step in so many.
SAMPLED_STEPS = 10


# All that have, or had, an optimizer to drive.
_known: WeakSet[LearnRateController] = WeakSet()


def driver_of(optimizer: torch.optim.Optimizer) -> LearnRateController | None:
    """The controller that drives an optimizer, if one does."""
    return next((controller for controller in _known if controller.drives(optimizer)), None)


class LearnRateController:
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
        self.breaker = CircuitBreaker() if breaker is None else breaker
        self.guards = RuntimeGuards(enable_runtime_guards, runtime_budgets, timer)
        self.step_count = 0
        self.history = History()
        self.outside_writes = 0
        self.scale = 1.0
        self._clock = clock
        self._watched = Watched()
        self._reader = PolicyReader()
        _known.add(self)

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
        optimizers, groups = self._watched.optimizers.values(), self._watched.groups.values()
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
            self.history.append(Snapshot(epoch, step, rates.copy(), self._watched.checksums, self._clock()))
        for source in self._watched.advancing:
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
        if self._watched.observing:
            heeded_by = [
                watched.policy for watched in self._watched.groups.values() if watched.heeds_metrics(self.step_count)
            ]
            heeding = {id(source_of(policy)) for policy in heeded_by}
            for source in self._watched.observing:
                if id(source) in heeding:
                    source.observe(metrics)

    @property
    def goes_by_metrics(self) -> bool:
        """Whether there is a policy that looks at metrics."""
        return bool(self._watched.observing)

    def put_back(self, name: str) -> dict[str, float]:
        """Undo what an algorithm itself wrote in its step: some make the next rate of the last. Who lets it step makes
        that the policy's.

        name (str): The optimizer's.
        RETURNS (dict[str, float]): By which factor the rate had changed, by group.
        RAISES (ConfigError): There is no optimizer of that name.
        """
        factors = {}
        for watched in self._watched.optimizer(name).groups:
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
        return [
            difference.error(self.step_count) for of in self._watched.optimizers.values() for difference in find(of)
        ]

    @property
    def rates(self) -> dict[str, float]:
        """The rate that was last written to each group; before the first step, that it was registered with."""
        return {id: watched.applied_rate for id, watched in self._watched.groups.items()}

    def rate_to_come(self, id: str) -> float:
        """The rate that the next step will write to a group."""
        watched = self._watched.groups[id]
        rate = watched.rate_at(self.step_count)
        return (min(rate, watched.rate) if self.breaker.holds_rates else rate) * self.scale

    @property
    def checksums(self) -> dict[str, str]:
        """The identity of each group: the names and shapes of its params, and its options. Another dict after each
        change.
        """
        return self._watched.checksums

    def took(self, kind: str, started: float) -> None:
        """Look how long something took that has a budget: what is too slow twice in a row, or more often, is told to
        the breaker.

        kind (str): A key of `overruns`. started (float): When it began, by `guards.timer`.
        """
        if self.guards.ended(kind, started, lambda: self._watched.size, self.step_count):
            self.breaker.was_slow()

    # ------------------------------------------------------------------ optimizers

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
        policy (PolicyLike): "cosine" for models that were trained before, "warmup" for new params, "adaptive": lowered
            by metrics, or "frozen"; or a policy, a rate, a list of rates, a schedule, or a function of the step. Or a
            dict with any of these for each group, by the group's index or its own "name".
        moving (Collection[str]): Options of its groups that others may write, e.g. because a schedule moves them.
        param_names (Mapping[Tensor, str]): Names of params, for messages and checksums.
        watch_steps (bool): Verify before each step of the optimizer too, by a hook, which is also what keeps frozen
            params from being updated. Without it, call `step` before each, and read of `frozen` only that the rate is
            0.
        keep_groups (bool): You hold on to the dicts in `optimizer.param_groups`: after `optimizer.load_state_dict`,
            which makes new ones, they stand there again with what was loaded, and those that somebody takes out come
            back.
        settings (Any): Those of a policy that is given by its name: see by_name.py.
        RETURNS (list[str]): The ids of the groups.
        RAISES (ConfigError): The name or the optimizer is known already, or the policy or a rate can't be.
        """
        if not isinstance(name, str) or not name or not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"Can't register an optimizer as {name!r}: expected a name and a torch optimizer, found "
                f"{type(optimizer).__name__}."
            )
        for other in self._watched.optimizers.values():
            if other.name == name or other.optimizer is optimizer:
                taken = "name" if other.name == name else f"optimizer, known as '{other.name}'"
                raise ConfigError(
                    f"Can't register optimizer '{name}': expected a new one, found this {taken}. Unregister it first."
                )
        added = WatchedOptimizer(name, optimizer, moving, param_names, watch_steps=watch_steps, keep_groups=keep_groups)
        policies = self._reader.read_all(policy, name, optimizer.param_groups, settings)
        if not isinstance(policy, Mapping):
            added.policy = policies[0] if policies else self._reader.read(policy, name, settings)
        rates = [check_rate(rate_of(group), f"{name}/{i}") for i, group in enumerate(optimizer.param_groups)]
        for group, of_group, rate in zip(optimizer.param_groups, policies, rates):
            added.groups.append(self._watched.count_in(added, group, of_group, rate, self.step_count))
        added.hook_in(self._before_step)
        self._watched.optimizers[name] = added
        self._settle(added)
        return [watched.id for watched in added.groups]

    def drives(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer is registered."""
        return any(watched.optimizer is optimizer for watched in self._watched.optimizers.values())

    def unregister_optimizer(self, name: str) -> None:
        """Stop managing an optimizer. Its rates stay as they are.

        RAISES (ConfigError): No optimizer has that name.
        """
        gone = self._watched.optimizer(name)
        gone.unhook()
        del self._watched.optimizers[gone.name]
        self._watched.forget(gone.groups)

    def replace_optimizer(
        self,
        old: str | torch.optim.Optimizer,
        new: torch.optim.Optimizer,
        *,
        param_names: Mapping[torch.Tensor, str] | None = None,
    ) -> None:
        """Let another optimizer take the place of one, because its model has grown for example: under the same name,
        and each of its groups under the id, policy, position and history of that which stands there in the old one. It
        gets the rates that were written last.

        Who steps the old one afterwards is warned, once.

        old (str | torch.optim.Optimizer): One that is registered, or its name.
        new (torch.optim.Optimizer): With as many param groups, in the same order.
        param_names (Mapping[Tensor, str]): Names of its params, if the old one was registered with names.
        RAISES (ConfigError): The old one is not known, or the new one is, or it has more or fewer groups. Nothing has
            changed then.
        """
        moved = self._watched.optimizer(old)
        replaced = moved.optimizer
        groups, n_groups = getattr(new, "param_groups", None), len(replaced.param_groups)
        if not isinstance(new, torch.optim.Optimizer) or len(new.param_groups) != n_groups:
            found = type(new).__name__ if groups is None else f"one with {len(groups)}"
            raise ConfigError(
                f"Can't replace optimizer '{moved.name}': expected a torch optimizer with {n_groups} param groups, "
                f"found {found}. Build it by preserve_optimizer_state, or unregister the old one and register the new "
                "one."
            )
        if self.drives(new):
            raise ConfigError(
                f"Can't replace optimizer '{moved.name}': expected a new one, found one that is registered already."
            )
        moved.unhook()
        if param_names is not None and moved.param_names:
            moved.param_names = param_names
        self._watched.forget(moved.move_to(new))
        self._take(moved)
        for watched in moved.groups:
            self._write(watched, watched.applied_rate)
        moved.hook_in(self._before_step)
        warn_of_steps(replaced, moved.name, self.step_count)

    def refresh(self, name: str) -> None:
        """Take the groups, params and options of an optimizer as they now are: its owner changed them. Rates are still
        verified.

        A group that came keeps the rate that it has; for another policy, call `add_group` first.

        RAISES (ConfigError): There is no optimizer of that name.
        """
        self._take(self._watched.optimizer(name))

    def _take(self, of: WatchedOptimizer, *, at_default: bool = False) -> None:
        """Take the groups of an optimizer as they now are, except for their rates.

        at_default (bool): Groups that came get the policy that holds for all of its groups, or else the rates of the
            first one.
        """
        first = next(iter(of.groups), None)
        policy = of.policy if first is None or of.policy is not None else first.policy

        def take_in(group: Group) -> WatchedGroup:
            rate = rate_of(group)
            if not at_default or policy is None:
                return self._watched.count_in(of, group, Constant(rate), rate, self.step_count)
            base, start = (rate, self.step_count) if first is None else (first.base, first.start)
            made = self._watched.count_in(of, group, policy, base, start)
            made.rate = (
                first.applied_rate if first is not None and first.policy is policy else made.rate_at(self.step_count)
            )
            self._write(made, made.rate)
            return made

        self._watched.forget(of.accept(take_in))
        self._settle(of)

    # ------------------------------------------------------------------ groups

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
        RAISES (ConfigError): The group is not the optimizer's, or known already, or the id is; or the policy or the
            rate can't be.
        """
        of = self._watched.optimizer(name)
        place = next((i for i, other in enumerate(of.optimizer.param_groups) if other is group), None)
        if place is None or any(watched.group is group for watched in of.groups) or id in self._watched.groups:
            raise ConfigError(
                f"Can't take in a param group of optimizer '{name}': expected one in optimizer.param_groups that is "
                f"new, and a new id, found {id!r} of {sorted(self._watched.groups)}."
            )
        if param_names is not None:
            of.param_names = param_names
        id = of.new_id(group, self._watched.groups) if id is None else id
        base = check_rate(rate_of(group), id)
        made = self._watched.count_in(of, group, self._reader.read(policy, id), base, self.step_count, id=id)
        made.factor, made.held_rate = adopted
        of.groups.insert(place, made)
        self._settle(of)
        return made.id

    def adopted(self, id: str) -> tuple[float, float | None]:
        """What rates of others that were adopted made of a group's: a factor, and the rate that replaces its policy's,
        or None.
        """
        watched = self._watched.groups[id]
        return watched.factor, watched.held_rate

    def scale_rates(self, ids: Collection[str], factor: float, min_rate: float = 0.0) -> None:
        """Multiply the rates of groups, from the next step on. Params that came in mid-training go by their parent's
        rate.

        factor (float): Above 0.
        min_rate (float): If a factor below 1 would take the rate of the next step below that, it goes no further down.
        RAISES (ConfigError): An invalid factor or rate, or an unknown group. Nothing has changed then.
        """
        section = Section("the learn rate controller")
        section.number("factor", factor) or section.refuse("factor", "a number above 0", factor)
        section.number("min_rate", min_rate)
        chosen = [self._watched.group(id) for id in ids]
        factors = []
        for watched in chosen:
            rate = watched.rate_at(self.step_count) * self.scale
            lowest = min_rate / rate if rate else 0.0
            factors.append(max(factor, min(lowest, 1.0)) if factor < 1.0 else factor)
        for watched, own in zip(chosen, factors):
            if watched.parent not in chosen:
                watched.scale_by(own)

    def set_rates(self, ids: Collection[str], rate: float) -> None:
        """Set the rates of groups, from the next step on, in place of their policies'.

        RAISES (ConfigError): An invalid rate, or an unknown group. Nothing has changed then.
        """
        Section("the learn rate controller").number("rate", rate)
        for watched in [self._watched.group(id) for id in ids]:
            watched.hold(rate / self.scale if self.scale else rate)

    def rename_groups(self, ids: Mapping[str, str]) -> None:
        """Give groups other ids. ids (Mapping[str, str]): The new one of each group by its old one; all different."""
        self._watched.rename(ids)

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
        """Give params that arrive in mid-training a group of their own, at a tenth of the rate of its parent, to which
        they warm up.

        optimizer (str | torch.optim.Optimizer): One that is registered.
        params (Iterable): Tensors, or pairs of name and tensor, as torch takes them.
        parent (str | int): Id or index of the group whose options they get, and whose rate they follow. Default: the
            first one.
        warmup_steps (int): Steps of the rise, from a hundredth of that rate.
        options (Mapping[str, Any]): Options that differ from the parent's.
        policy (PolicyLike): How they go on from there: "adaptive", for example, by its name with the same warm-up. Its
            base is a tenth of the parent's rate. Default: they stay there.
        settings (Any): Arguments of a policy that is given by its name.
        RETURNS (str): The id of the group.
        RAISES (ConfigError): A param can't be optimized or is already, or there are none; or there is no such
            optimizer, parent or option.
        """
        started = self.guards.timer()
        to = self._watched.optimizer(optimizer)
        above = find_parent(to, parent)
        if isinstance(policy, str) and policy != "frozen":
            # As `Warmup` begins, and as low as its class would go.
            begin = {"warmup_steps": warmup_steps, "warmup_factor": Warmup().start_factor, "min_rate": 0.0}
            settings = {**begin, **settings}
        if policy is None and not settings:
            policy = Warmup(warmup_steps)
        else:
            policy = self._reader.read(policy, to.name, settings)  # type: ignore[arg-type]
        group = append_group(to, above, list(params), policy, options or {})
        made = self._watched.count_in(to, group, policy, rate_of(group), self.step_count, parent=above)
        to.groups.append(made)
        self._settle(to)
        self.took("adding_params", started)
        return to.groups[-1].id

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run needs to continue exactly, for JSON."""
        return {
            "step_count": self.step_count,
            "outside_writes": self.outside_writes,
            "scale": self.scale,
            "mode": self.breaker.state_dict(),
            "history": self.history.state_dict(),
            "groups": {id: watched.state_dict() for id, watched in self._watched.groups.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], *, may_grow: bool = False) -> None:
        """Load the state of another run, and write its last rates.

        state (Mapping): From `state_dict`, of a controller with the same optimizers, policies and added params.
        may_grow (bool): Params may have other shapes than they had there; or else that is a warning.
        RAISES (ConfigError): The state of another controller. Everything is checked before anything is changed.
        """
        groups = self._watched.groups
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
        if self.guards.enabled and (found := find_rates(self._watched.optimizer(name))):
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
                watched = self._watched.groups[difference.group]
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
        watched = self._watched.groups.get(error.group)
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

    def _settle(self, of: WatchedOptimizer) -> None:
        """The groups of an optimizer have changed. Each gets a tensor of its own for its rate: torch puts the one that
        it was given into all groups.
        """
        seen: set[int] = set()
        for watched in of.groups:
            if watched.lr_tensor is not None and id(watched.lr_tensor) in seen:
                watched.lr_tensor = watched.lr_tensor.detach().clone()
                self._write(watched, watched.applied_rate)
            seen.add(id(watched.lr_tensor))
        self._watched.changed()

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
