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
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from ..errors import ConfigError, LearnRateIntegrityError, LearnRateWarning
from ..types import OnOutsideWrite
from .circuit_breaker import CircuitBreaker
from .conservative_mode import ConservativeMode
from .groups import NEW_PARAMS_FACTOR, Group, GroupIdentity, WatchedGroup, rate_of
from .history import History, Layout
from .new_params import check_new_params, find_parent, make_state
from .policies import Constant, Policy, PolicyLike, PolicyReader, check_rate
from .proportional import Warmup
from .runtime_guards import RuntimeGuards
from .watch import Hooked, WatchedOptimizer, warn_of_steps

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
        if on_outside_write not in ("restore", "adopt", "raise"):
            raise ConfigError(
                f"Can't set 'on_outside_write' of the learn rate controller: expected 'restore', 'adopt' or 'raise', found "
                f"{on_outside_write!r}."
            )
        self.on_outside_write: OnOutsideWrite = on_outside_write
        self._mode = ConservativeMode(CircuitBreaker() if breaker is None else breaker)
        self.guards = RuntimeGuards(enable_runtime_guards, runtime_budgets, timer)
        self.history = History()
        self.step_count = 0
        self.outside_writes = 0
        self.scale = 1.0
        self._clock = clock
        self._optimizers: dict[str, WatchedOptimizer] = {}
        self._groups: dict[str, WatchedGroup] = {}  # by id
        self._policies: list[Policy] = []  # each once
        self._reader = PolicyReader()
        self._layout = Layout((), tuple)
        self._warned: set[tuple[str, str]] = set()

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
        if not isinstance(name, str) or not name or not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"Can't register an optimizer as {name!r}: expected a name and a torch optimizer, found {type(optimizer).__name__}."
            )
        for other in self._optimizers.values():
            if other.name == name or other.optimizer is optimizer:
                taken = "name" if other.name == name else f"optimizer, known as '{other.name}'"
                raise ConfigError(f"Can't register optimizer '{name}': expected a new one, found this {taken}. Unregister it first.")
        added = WatchedOptimizer(name, optimizer, moving, param_names, watch_steps=watch_steps, keep_groups=keep_groups)
        policies = self._reader.read_all(policy, name, optimizer.param_groups, settings)
        if not isinstance(policy, Mapping):
            added.policy = policies[0] if policies else self._reader.read(policy, name, settings)
        rates = [check_rate(rate_of(group), f"{name}/{i}") for i, group in enumerate(optimizer.param_groups)]
        for group, of_group, rate in zip(optimizer.param_groups, policies, rates):
            added.groups.append(self._watch(added, group, WatchedGroup(self._new_id(added, group), of_group, rate, self.step_count)))
        self._hook_into(added)
        self._optimizers[name] = added
        self._changed(added)
        return [watched.id for watched in added.groups]

    def unregister_optimizer(self, name: str) -> None:
        """Stop managing an optimizer. Its rates stay as they are.

        RAISES (ConfigError): No optimizer has that name.
        """
        gone = self._optimizer(name)
        for hook in gone.hooks:
            hook.remove()
        del self._optimizers[name]
        self._forget(gone.groups)

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
        moved = self._optimizer(old)
        replaced = moved.optimizer
        groups, n_groups = getattr(new, "param_groups", None), len(replaced.param_groups)
        if not isinstance(new, torch.optim.Optimizer) or len(new.param_groups) != n_groups:
            found = type(new).__name__ if groups is None else f"one with {len(groups)}"
            raise ConfigError(
                f"Can't replace optimizer '{moved.name}': expected a torch optimizer with {n_groups} param groups, found {found}. Build it "
                "by preserve_optimizer_state, or unregister the old one and register the new one."
            )
        if any(other.optimizer is new for other in self._optimizers.values()):
            raise ConfigError(f"Can't replace optimizer '{moved.name}': expected a new one, found one that is registered already.")
        for hook in moved.hooks:
            hook.remove()
        if param_names is not None and moved.param_names:
            moved.param_names = param_names
        self._forget(moved.move_to(new))
        self._take(moved)
        for watched in moved.groups:
            self._write(watched, watched.applied_rate)
        self._hook_into(moved)
        warn_of_steps(replaced, moved.name, self.step_count)

    def _hook_into(self, watched: WatchedOptimizer) -> None:
        watched.hooks.clear()
        if watched.watch_steps:
            watched.hooks.append(watched.optimizer.register_step_pre_hook(partial(self._before_step, watched)))
        if watched.keep_groups:
            watched.hooks.append(watched.optimizer.register_load_state_dict_post_hook(lambda _: watched.reclaim()))

    def refresh(self, name: str) -> None:
        """Take the groups, params and options of an optimizer as they now are: its owner changed them. Rates are still verified.

        A group that came keeps the rate that it has; for another policy, call `add_group` first.

        RAISES (ConfigError): There is no optimizer of that name.
        """
        self._take(self._optimizer(name))

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
        watched_optimizer = self._optimizer(name)
        place = next((i for i, other in enumerate(watched_optimizer.optimizer.param_groups) if other is group), None)
        if place is None or any(watched.group is group for watched in watched_optimizer.groups) or id in self._groups:
            raise ConfigError(
                f"Can't take in a param group of optimizer '{name}': expected one in optimizer.param_groups that is new, and a new id, "
                f"found {id!r} of {sorted(self._groups)}."
            )
        if param_names is not None:
            watched_optimizer.param_names = param_names
        id = self._new_id(watched_optimizer, group) if id is None else id
        made = WatchedGroup(id, self._reader.read(policy, id), check_rate(rate_of(group), id), self.step_count)
        made.factor, made.held_rate = adopted
        watched_optimizer.groups.insert(place, self._watch(watched_optimizer, group, made))
        self._changed(watched_optimizer)
        return id

    def adopted(self, id: str) -> tuple[float, float | None]:
        """What rates of others that were adopted made of a group's: a factor, and the rate that replaces its policy's, or None."""
        return self._groups[id].factor, self._groups[id].held_rate

    def rename_groups(self, ids: Mapping[str, str]) -> None:
        """Give groups other ids. ids (Mapping[str, str]): The new one of each group by its old one; all different."""
        self._groups = {ids[watched.id]: watched for watched in self._groups.values()}
        for id, watched in self._groups.items():
            watched.id = id
        self._changed()

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
        to = self._optimizer(optimizer)
        above = find_parent(to, parent)
        if isinstance(policy, str) and policy != "frozen":
            settings = {"warmup_steps": warmup_steps, **settings}
        policy = Warmup(warmup_steps) if policy is None and not settings else self._reader.read(policy, to.name, settings)  # type: ignore[arg-type]
        given = list(params)
        tensors = check_new_params(to, above, given, options or {})
        wanted = {option: above.group[option] for option in to.all_options if option in above.group} | dict(options or {})
        make_state(to.optimizer, tensors, {**wanted, "lr": above.base or 1e-3})
        rate = policy.rate(0, NEW_PARAMS_FACTOR * above.rate)
        lr = rate if above.lr_tensor is None else torch.full_like(above.lr_tensor, rate)
        to.optimizer.add_param_group({**wanted, "params": given, "lr": lr})
        group = to.optimizer.param_groups[-1]
        made = WatchedGroup(self._new_id(to, group), policy, rate_of(group), self.step_count, parent=above)
        to.groups.append(self._watch(to, group, made))
        self._changed(to)
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
        self._check(self._optimizers.values())
        for watched_optimizer in self._optimizers.values():
            watched_optimizer.have_the_last_word()
        step, hold = self.step_count, self._mode.holds_rates
        scale *= self.scale
        if metrics is not None:
            self.observe(metrics)
        wanted = []
        for watched in self._groups.values():
            rate = watched.rate_at(step)
            if hold:
                rate = min(rate, watched.rate)
            if not 0.0 <= rate * scale < math.inf:
                check_rate(rate * scale, watched.id)
            wanted.append(rate)
        rates = {}
        for watched, rate in zip(self._groups.values(), wanted):
            watched.rate = rate
            rates[watched.id] = self._write(watched, rate * scale)
        if not self.conservative or step % SAMPLED_STEPS == 0:
            self.history.append(epoch, step, self._layout, tuple(rates.values()), self._clock())
        for policy in self._policies:
            if hasattr(policy, "advance"):
                policy.advance()
        self.took("rate_step", started)
        self.step_count += 1
        self._mode.end_step(step)
        return rates

    def observe(self, metrics: Mapping[str, Any]) -> None:
        """Tell policies that go by metrics how the training goes, between two steps. An evaluation, for example.

        RAISES (ConfigError): Not a dict, or a metric that a policy goes by is no number.
        """
        if not isinstance(metrics, Mapping):
            raise ConfigError(f"Can't use the metrics of a step: expected a dict of names and numbers, found {metrics!r}.")
        for policy in self._policies:
            if hasattr(policy, "observe"):
                policy.observe(metrics)

    @property
    def goes_by_metrics(self) -> bool:
        """Whether there is a policy that looks at metrics."""
        return any(hasattr(policy, "observe") for policy in self._policies)

    def put_back(self, name: str) -> dict[str, float]:
        """Undo what an algorithm itself wrote in its step: some make the next rate of the last. Who lets it step makes that the policy's.

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
    def breaker(self) -> CircuitBreaker:
        """The circuit breaker, which is open while too much fails."""
        return self._mode.breaker

    @property
    def conservative(self) -> bool:
        """Whether it is in conservative mode."""
        return self._mode.is_on

    @property
    def times_conservative(self) -> int:
        """How often conservative mode has begun so far."""
        return self._mode.times

    @property
    def overruns(self) -> dict[str, int]:
        """What took longer than its budget, and how often: of "rate_step", "integrity_check", "state_preservation", "adding_params"."""
        return dict(self.guards.overruns)

    def took(self, kind: str, started: float) -> None:
        """Look how long something took that has a budget: what is too slow twice in a row, or more often, is told to the breaker.

        kind (str): A key of `overruns`. started (float): When it began, by `guards.timer`.
        """
        if self.guards.ended(kind, started, self._size, self.step_count):
            self._mode.was_slow()

    def _size(self) -> tuple[int, int]:
        return len(self._groups), sum(len(watched.params) for watched in self._groups.values())

    def verify(self) -> list[LearnRateIntegrityError]:
        """Find what other code changed. Empty: nothing. Changes nothing itself."""
        try:
            self._verify(self._optimizers.values())
        except LearnRateIntegrityError as error:
            return [error, *error.others]
        return []

    @property
    def rates(self) -> dict[str, float]:
        """The rate that was last written to each group; before the first step, that it was registered with."""
        return {id: watched.applied_rate for id, watched in self._groups.items()}

    def rate_to_come(self, id: str) -> float:
        """The rate that the next step will write to a group."""
        watched = self._groups[id]
        rate = watched.rate_at(self.step_count)
        return (min(rate, watched.rate) if self._mode.holds_rates else rate) * self.scale

    @property
    def checksums(self) -> dict[str, str]:
        """The identity of each group: the names and shapes of its params, and its options."""
        return dict(zip(self._layout.ids, self._layout.checksums))

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run needs to continue exactly, for JSON."""
        return {
            "step_count": self.step_count,
            "outside_writes": self.outside_writes,
            "scale": self.scale,
            "mode": self._mode.state_dict(),
            "history": self.history.state_dict(),
            "groups": {id: watched.state_dict() for id, watched in self._groups.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], *, may_grow: bool = False) -> None:
        """Load the state of another run, and write its last rates.

        state (Mapping): From `state_dict`, of a controller with the same optimizers, policies and added params.
        may_grow (bool): Params may have other shapes than they had there; or else that is a warning.
        RAISES (ConfigError): The state of another controller. Everything is checked before anything is changed.
        """
        self._check_state(state, may_grow)
        try:
            history = History.from_state_dict(state["history"])
            step_count, outside_writes = int(state["step_count"]), int(state["outside_writes"])
            scale = check_rate(float(state["scale"]), "scale")
            self._mode.load_state_dict(state["mode"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ConfigError(
                f"Can't load the state of the learn rate controller: expected what state_dict gives, found {error!r}."
            ) from error
        self.history, self.step_count, self.outside_writes, self.scale = history, step_count, outside_writes, scale
        for policy, watched in {id(watched.policy): (watched.policy, watched) for watched in self._groups.values()}.values():
            if hasattr(policy, "load_state_dict"):
                policy.load_state_dict(state["groups"][watched.id]["policy_state"])
        for watched in self._groups.values():
            watched.load_state_dict(state["groups"][watched.id])
            self._write(watched, watched.applied_rate)

    def _check_state(self, state: Mapping[str, Any], may_grow: bool) -> None:
        _check_keys("parts", self.state_dict(), state)
        groups = state["groups"]
        _check_keys("param groups", self._groups, groups)
        for watched in self._groups.values():
            watched.check_state_dict(groups[watched.id])
        saved = {id: groups[id]["checksum"] for id in self._groups}
        # The second checksum: from before it told groups apart whose params have no names.
        identities = {id: watched.identity for id, watched in self._groups.items()}
        other = {id: found for id, found in identities.items() if saved[id] not in (found.checksum, found.checksum_as(""))}
        if other and _are_swapped(other, saved):
            raise ConfigError(
                f"Can't load the state of the learn rate controller: expected param groups {sorted(other)} in the order in which they were "
                "saved, found them in another. Build the optimizer with the groups in the same order."
            )
        if other and not may_grow:
            warnings.warn(
                LearnRateWarning(
                    f"Param groups {sorted(other)} have other params, shapes or options than when they were saved. Their learn rates are "
                    "kept."
                ),
                stacklevel=3,
            )

    # ------------------------------------------------------------------ integrity

    def _verify(self, optimizers: Collection[WatchedOptimizer]) -> None:
        """RAISES (LearnRateIntegrityError): A group is not as it was left. It knows of the others that are not."""
        errors = [error for watched in optimizers if not watched.is_untouched() for error in watched.differences(self.step_count)]
        if errors:
            first, *first.others = errors
            raise first

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
        try:
            self._verify(optimizers)
        except LearnRateIntegrityError as error:
            self._handle(error, optimizers)
        else:  # the same groups in new dicts
            for watched in optimizers:
                self._take(watched)

    def _handle(self, first: LearnRateIntegrityError, optimizers: Collection[WatchedOptimizer]) -> None:
        errors = [first, *first.others]
        self.outside_writes += len(errors)
        conservative = self.conservative
        # In conservative mode a run that would be stopped is protected instead.
        how = "restore" if conservative and self.on_outside_write == "raise" else self.on_outside_write
        if how == "raise" or (how == "restore" and any(error.can_be_undone for error in errors)):
            self._mode.failed(self.step_count)
        if how == "raise":
            raise first
        for watched_optimizer in optimizers:
            if watched_optimizer.keep_groups:
                watched_optimizer.bring_back()
            if how == "restore":
                watched_optimizer.put_back()
            self._take(watched_optimizer, at_default=how == "restore")
        for error in errors:
            if error.what == "learn_rate":
                watched = self._groups[error.group]
                if how == "restore" or not 0.0 <= error.found < math.inf:  # what can't be a rate is put back in any case
                    self._write(watched, watched.applied_rate)
                else:
                    watched.adopt(error.found)
        if not conservative:
            self._warn(errors)

    def _warn(self, errors: list[LearnRateIntegrityError]) -> None:
        for error in errors:
            if (error.what, error.group) in self._warned:
                continue
            self._warned.add((error.what, error.group))
            restores = self.on_outside_write == "restore"
            done = "The change was undone." if error.what == "taken_out" or (restores and error.can_be_undone) else "The change is kept."
            if error.what == "group" and error.group in self._groups:
                done = "It gets the default learn rate." if restores else "It keeps its learn rate."
            warnings.warn(LearnRateWarning(f"{error.fact} {done} {error.advice}"), stacklevel=5)

    def check_rates(self, name: str) -> None:
        """Handle rates that other code wrote since `step`: for owners who show torch some of the groups only while it steps.

        RAISES (LearnRateIntegrityError): There are, and `on_outside_write` is "raise".
        """
        if not self.guards.enabled:
            return
        to = self._optimizer(name)
        written = [watched for watched in to.groups if not watched.has_rate(watched.group)]
        errors = [to.rate_difference(watched, watched.group, self.step_count) for watched in written]
        if errors:
            first, *first.others = errors
            self._handle(first, ())

    def _before_step(
        self, watched_optimizer: WatchedOptimizer, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Hooked | None:
        """Runs before each step of an optimizer: verifies, and takes the gradients of frozen params away."""
        self._check([watched_optimizer])
        return watched_optimizer.drop_frozen_grads(args, kwargs)

    # ------------------------------------------------------------------ writing

    def _write(self, watched: WatchedGroup, rate: float) -> float:
        """Write a rate. RETURNS (float): What then stands in the group: a tensor may be of less precision."""
        tensor = watched.lr_tensor
        if tensor is None:
            _put(watched.group, rate)
            watched.applied_rate = rate
            return rate
        with torch.no_grad():
            tensor.fill_(rate)  # in place: a captured graph reads this one
        _put(watched.group, tensor)
        watched.applied_rate = torch.tensor(rate, dtype=tensor.dtype).item()
        return watched.applied_rate

    # ------------------------------------------------------------------ helpers

    def _optimizer(self, wanted: str | torch.optim.Optimizer) -> WatchedOptimizer:
        for name, watched in self._optimizers.items():
            if wanted == name or watched.optimizer is wanted:
                return watched
        found = repr(wanted) if isinstance(wanted, str) else type(wanted).__name__
        raise ConfigError(f"Can't find the optimizer: expected one of {sorted(self._optimizers)}, found {found}. Register it first.")

    def _new_id(self, watched_optimizer: WatchedOptimizer, group: Group) -> str:
        return watched_optimizer.new_id(group, self._groups)

    def _watch(self, watched_optimizer: WatchedOptimizer, group: Group, watched: WatchedGroup) -> WatchedGroup:
        self._groups[watched.id] = watched_optimizer.watch(watched, group)
        return watched

    def _take(self, watched_optimizer: WatchedOptimizer, *, at_default: bool = False) -> None:
        """Take the groups of an optimizer as they now are, except for their rates.

        at_default (bool): Groups that came get the policy that holds for all of its groups, or else the rates of the first one.
        """
        first = next(iter(watched_optimizer.groups), None)
        policy = watched_optimizer.policy if first is None or watched_optimizer.policy is not None else first.policy

        def take_in(group: Group) -> WatchedGroup:
            id, rate = self._new_id(watched_optimizer, group), rate_of(group)
            if not at_default or policy is None:
                return self._watch(watched_optimizer, group, WatchedGroup(id, Constant(rate), rate, self.step_count))
            base, start = (rate, self.step_count) if first is None else (first.base, first.start)
            made = self._watch(watched_optimizer, group, WatchedGroup(id, policy, base, start))
            made.rate = first.applied_rate if first is not None and first.policy is policy else made.rate_at(self.step_count)
            self._write(made, made.rate)
            return made

        self._forget(watched_optimizer.accept(take_in))
        self._changed(watched_optimizer)

    def _forget(self, gone: list[WatchedGroup]) -> None:
        for watched in gone:
            del self._groups[watched.id]
        ids = {watched.id for watched in gone}
        self._warned = {(what, group_id) for what, group_id in self._warned if group_id not in ids}
        self._changed()

    def _changed(self, watched_optimizer: WatchedOptimizer | None = None) -> None:
        """Recompute what depends on the set of groups."""
        if watched_optimizer is not None:
            _unshare_tensors(watched_optimizer)
        identities = [watched.identity for watched in self._groups.values()]
        self._layout = Layout(list(self._groups), lambda: [identity.checksum for identity in identities])
        policies = [getattr(watched.policy, "source", watched.policy) for watched in self._groups.values()]
        self._policies = list({id(policy): policy for policy in policies}.values())


def _put(group: Group, value: float | torch.Tensor) -> None:
    group["lr"] = value


def _unshare_tensors(watched_optimizer: WatchedOptimizer) -> None:
    """Give each group a tensor of its own: torch puts the one that it was given into all groups."""
    seen: set[int] = set()
    for watched in watched_optimizer.groups:
        if watched.lr_tensor is None:
            continue
        if id(watched.lr_tensor) in seen:
            watched.lr_tensor = watched.lr_tensor.detach().clone()
            _put(watched.group, watched.lr_tensor)
        seen.add(id(watched.lr_tensor))


def _are_swapped(identities: Mapping[str, GroupIdentity], saved: Mapping[str, str]) -> bool:
    """Whether each saved checksum is that of another group. Both are by id."""
    left = list(identities.values())
    for id in identities:
        found = next((identity for identity in left if saved[id] in (identity.checksum_as(id), identity.checksum_as(""))), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _check_keys(what: str, expected: Collection[str], found: Any) -> None:
    if not isinstance(found, Mapping):
        raise ConfigError(f"Can't load the state of the learn rate controller: expected a dict of {what}, found {found!r}.")
    missing, unexpected = [key for key in expected if key not in found], [key for key in found if key not in expected]
    if missing or unexpected:
        raise ConfigError(
            f"Can't load the state of the learn rate controller: expected the {what} {sorted(expected)}, found none for {missing}, and "
            f"unexpected ones for {unexpected}. Register the same optimizers, and add the same params, before you load."
        )
