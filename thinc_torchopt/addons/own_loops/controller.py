"""The controller of learning rates for a training loop of your own: any torch optimizers, with a policy for each param
group.

    controller = LearnRateController()
    controller.register_optimizer("bert", optimizer, "cosine", total_steps=1000)
    for batch in batches:
        loss_of(batch).backward()
        controller.step(epoch)
        optimizer.step()
        optimizer.zero_grad()

It is a `RateWriter` (see core/rates/writer.py) for the groups of registered optimizers, with the rates of policies (see
policies.py), a circuit breaker, and budgets of CPU time (see watchdog.py).

*conservative mode*: begins when other code keeps writing and the circuit breaker opens. Writes are then undone without
warnings, and counted. For a hundred steps rates may fall but not rise; then they follow their policies again. The mode
ends after a hundred clean steps.

SOURCE: Tolaria's UnifiedLRController.
DIFFERENCES: A warm-up is counted in steps; there in epochs. The label of a group is "primary", or "primary/0" if the
    optimizer "primary" has several groups, or "primary/<its name>"; there "primary_0". `step` returns the rate of each
    group; there that of each optimizer's first one. Added params follow the rate of a group of their own optimizer, and
    stay at a tenth of it unless they get another policy; there of "primary", and they are adaptive.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, NoReturn, Optional

import torch
from torch.utils.hooks import RemovableHandle

from ...core.errors import ConfigError, LearnRateIntegrityError, LearnRateWarning
from ...core.host import run_last
from ...core.rates import (
    NEW_PARAMS_FACTOR,
    GroupRecord,
    OptimizerRecord,
    RateScale,
    RateSource,
    RateWriter,
    TorchGroup,
    Warmup,
    WriterState,
    check_rate,
    rate_of,
    warn_at_step,
)
from ...core.schema import Count, NotNegative, check_names, read, refuse, write
from ...core.types import OnOutsideWrite
from .policies import Constant, Policy, PolicyLike, PolicyRate, PolicyReader, policy_rate_of, source_of
from .watchdog import BreakerState, CircuitBreaker, RuntimeGuards

_WHAT = "the state of the learn rate controller"
# In conservative mode, the history keeps one step of this many.
SAMPLED_STEPS = 10


class LearnRateController(RateWriter):
    """Sets the learning rates of torch optimizers.

    on_outside_write, clock, enable_runtime_guards: As of `RateWriter`.
    breaker (CircuitBreaker): Opens after three failures in a row, by default.
    runtime_budgets (Mapping[str, float]): Milliseconds of CPU time by kind, in place of `BUDGETS`: see watchdog.py.
    timer (Callable): Measures this time, in seconds: a clock that never goes back.
    RAISES (ConfigError): An invalid argument.

    Public: `breaker`, `guards` (budgets of CPU time), and all of `RateWriter`.
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
        super().__init__(on_outside_write=on_outside_write, clock=clock, enable_runtime_guards=enable_runtime_guards)
        self.breaker = CircuitBreaker() if breaker is None else breaker
        self.guards = RuntimeGuards(runtime_budgets, timer)
        self._reader = PolicyReader()
        self._policies: dict[str, Policy] = {}  # for all groups of an optimizer, by its name
        self._step_hooks: dict[str, RemovableHandle] = {}
        # Policies, or their sources, with these methods, each once.
        self._observing: list[Any] = []
        self._advancing: list[Any] = []

    # ------------------------------------------------------------------ one step

    def step(
        self, epoch: float | None = None, metrics: Mapping[str, Any] | None = None, *, scale: float = 1.0
    ) -> dict[str, float]:
        """Write the rates of the next step.

        epoch, scale: As of `RateWriter.step`, with the same errors.
        metrics (Mapping[str, float]): For policies that use them.
        """
        started = self.timer()
        self._check(self._optimizers.values())
        if metrics is not None:
            self.observe(metrics)
        rates = self._write_all(scale)
        self._record(epoch, rates)
        for source in self._advancing:
            source.advance()
        self.took("rate_step", started)
        self.step_count += 1
        self.breaker.end_step(self.step_count - 1)
        return rates

    def observe(self, metrics: Mapping[str, Any]) -> None:
        """Pass metrics, for example of an evaluation, to policies that use them and are not warming up, between two
        steps.

        RAISES (ConfigError): Not a dict, or a policy's metric is not a number.
        """
        if not isinstance(metrics, Mapping):
            raise ConfigError(
                f"Can't use the metrics of a step: expected a dict of names and numbers, found {metrics!r}."
            )
        rates = [policy_rate_of(record) for record in self._groups.values()] if self._observing else []
        heeding = {id(source_of(rate.policy)) for rate in rates if rate.heeds_metrics(self.step_count)}
        for source in self._observing:
            if id(source) in heeding:
                source.observe(metrics)

    @property
    def conservative(self) -> bool:
        """Whether it is in conservative mode."""
        return self.breaker.conservative

    @property
    def overruns(self) -> dict[str, int]:
        """The number of budget overruns, of "rate_step", "integrity_check", "state_preservation", "adding_params"."""
        return dict(self.guards.overruns)

    def took(self, kind: str, started: float) -> None:
        """Compare the time of some work with its budget. Two overruns in a row, or more, are passed to the breaker.

        kind (str): A key of `overruns`. started (float): Its start, from `timer`.
        """
        if self.guards.ended(kind, started, self.step_count):
            self.breaker.was_slow()

    def timer(self) -> float:
        """The start of some work, for `took`."""
        return self.guards.timer()

    def _write_all(self, scale: float) -> dict[str, float]:
        # Verify after the hooks of other code before each step: they may write rates.
        for name, hook in self._step_hooks.items():
            run_last(self._optimizers[name].optimizer, hook)
        return super()._write_all(scale)

    def _wanted_rates(self) -> list[float]:
        rates = super()._wanted_rates()
        if self.breaker.holds_rates:
            rates = [min(rate, record.rate) for rate, record in zip(rates, self._groups.values())]
        return rates

    def _is_recorded(self, step: int) -> bool:
        return not self.breaker.conservative or step % SAMPLED_STEPS == 0

    def _are_untouched(self, optimizers: Collection[OptimizerRecord]) -> bool:
        started = self.timer()
        are_untouched = super()._are_untouched(optimizers)
        self.took("integrity_check", started)
        return are_untouched

    def _reaction_to(self, errors: list[LearnRateIntegrityError]) -> tuple[OnOutsideWrite, bool]:
        """In conservative mode a run that would be stopped is protected instead, and there are no warnings."""
        conservative = self.breaker.conservative
        how: OnOutsideWrite = "restore" if conservative and self.on_outside_write == "raise" else self.on_outside_write
        if how == "raise" or (how == "restore" and any(error.can_be_undone for error in errors)):
            self.breaker.was_written_to(self.step_count)
        return how, not conservative

    def _collect(self) -> None:
        super()._collect()
        policies = [policy_rate_of(record).policy for record in self._groups.values()]
        sources = {id(source): source for source in map(source_of, policies)}
        self._observing = [source for source in sources.values() if hasattr(source, "observe")]
        self._advancing = [source for source in sources.values() if hasattr(source, "advance")]

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
        **settings: Any,
    ) -> list[str]:
        """Take control of an optimizer's rates. They do not change until the next `step`.

        name (str): The prefix of the labels of its groups.
        optimizer (torch.optim.Optimizer): Any.
        policy (PolicyLike): "cosine" for pretrained models, "warmup" for new params, "adaptive" (lowered by metrics),
            or "frozen"; or a policy, a rate, a list of rates, a schedule, or a function of the step. Or a dict with any
            of these for each group, by the group's index or its own "name".
        moving (Collection[str]): Options of its groups that other code may write, e.g. because a schedule moves them.
        param_names (Mapping[Tensor, str]): Names of params, for messages and checksums.
        watch_steps (bool): Verify also before each step of the optimizer, by a hook, which also keeps frozen params
            from being updated. False: call `step` before each, and `frozen` only sets the rate to 0.
        settings (Any): Settings of a policy given by its name: see policies.py.
        RETURNS (list[str]): The labels of the groups.
        RAISES (ConfigError): The name or the optimizer is known already, or the policy or a rate is invalid.
        """
        if not isinstance(name, str) or not name or not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"Can't register an optimizer as {name!r}: expected a name and a torch optimizer, found "
                f"{type(optimizer).__name__}."
            )
        for other in self._optimizers.values():
            if other.name == name or other.optimizer is optimizer:
                known = "name" if other.name == name else f"optimizer, known as '{other.name}'"
                raise ConfigError(
                    f"Can't register optimizer '{name}': expected a new one, found this {known}. Unregister it first."
                )
        policies = self._reader.read_all(policy, name, optimizer.param_groups, settings)
        for_all = None
        if not isinstance(policy, Mapping):
            for_all = policies[0] if policies else self._reader.read(policy, name, settings)
        rates = [check_rate(rate_of(group), f"{name}/{i}") for i, group in enumerate(optimizer.param_groups)]
        added = OptimizerRecord(name, optimizer, moving, param_names)
        for group, of_group, rate in zip(optimizer.param_groups, policies, rates):
            added.groups.append(self._add_record(added, group, of_group, rate))
        if for_all is not None:
            self._policies[name] = for_all
        if watch_steps:
            self._step_hooks[name] = optimizer.register_step_pre_hook(partial(self._before_step, added))
        self._optimizers[name] = added
        self._update_groups(added)
        return [record.label for record in added.groups]

    def unregister_optimizer(self, name: str) -> None:
        """Release an optimizer. Its rates stay as they are.

        RAISES (ConfigError): No optimizer has that name.
        """
        removed = self._optimizer(name)
        if removed.name in self._step_hooks:
            self._step_hooks.pop(removed.name).remove()
        self._policies.pop(removed.name, None)
        del self._optimizers[removed.name]
        self._collect()

    def replace_optimizer(
        self,
        old: str | torch.optim.Optimizer,
        new: torch.optim.Optimizer,
        *,
        param_names: Mapping[torch.Tensor, str] | None = None,
    ) -> None:
        """Replace an optimizer by another one, for example because its model has grown. The new one gets the name, and
        each of its groups the label, policy, position, history and last rate of the group at the same place.

        A later step of the old optimizer gives a warning, once.

        old (str | torch.optim.Optimizer): A registered optimizer, or its name.
        new (torch.optim.Optimizer): With as many param groups, in the same order.
        param_names (Mapping[Tensor, str]): Names of its params, if the old one was registered with names.
        RAISES (ConfigError): The old one is unknown, the new one is registered, or the numbers of groups differ.
            Nothing changes then.
        """
        moved = self._optimizer(old)
        replaced = moved.optimizer
        groups, n_groups = getattr(new, "param_groups", None), len(replaced.param_groups)
        if not isinstance(new, torch.optim.Optimizer) or len(new.param_groups) != n_groups:
            found = type(new).__name__ if groups is None else f"one with {len(groups)}"
            raise ConfigError(
                f"Can't replace optimizer '{moved.name}': expected a torch optimizer with {n_groups} param groups, "
                f"found {found}. Give controller=controller to preserve_optimizer_state, which calls this. Or "
                "unregister the old one and register the new one."
            )
        if self.drives(new):
            raise ConfigError(
                f"Can't replace optimizer '{moved.name}': expected a new one, found one that is registered already."
            )
        if param_names is not None and moved.param_names:
            moved.param_names = param_names
        moved.move_to(new)
        self._accept_groups(moved)
        for record in moved.groups:
            self._write(record, record.applied_rate)
        if moved.name in self._step_hooks:
            self._step_hooks[moved.name].remove()
            self._step_hooks[moved.name] = new.register_step_pre_hook(partial(self._before_step, moved))
        step = self.step_count
        warn_at_step(
            replaced,
            lambda: (
                f"Optimizer '{moved.name}' was replaced at step {step}, and the old one was stepped after that. It "
                "trains the old params, and nothing sets its learning rates. Step the new one, which "
                "preserve_optimizer_state returned."
            ),
        )

    def refresh(self, name: str) -> None:
        """Accept changes that the owner of an optimizer made to its groups, params and options. Rates are still
        verified.

        A new group keeps its rate.

        RAISES (ConfigError): No optimizer has that name.
        """
        self._accept_groups(self._optimizer(name))

    def frozen_groups(self, optimizer: str | torch.optim.Optimizer) -> set[int]:
        """The indices of an optimizer's groups that are frozen.

        RAISES (ConfigError): It is unknown.
        """
        groups = self._optimizer(optimizer).groups
        return {i for i, record in enumerate(groups) if policy_rate_of(record).is_frozen}

    # ------------------------------------------------------------------ groups

    def _add_record(
        self,
        of: OptimizerRecord,
        group: TorchGroup,
        policy: Policy,
        base: float,
        *,
        parent: GroupRecord | None = None,
    ) -> GroupRecord:
        """Record a group. The caller sets its place in `of.groups`.

        policy, base, parent: As of `PolicyRate`.
        """
        label = of.new_label(group, [*self._groups, *(record.label for record in of.groups)])
        return of.add(GroupRecord(label, PolicyRate(policy, base, self.step_count, parent), base), group)

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
        """Give params that are added in mid-training a group of their own. They warm up to a tenth of its parent's
        rate.

        optimizer (str | torch.optim.Optimizer): A registered optimizer, or its name.
        params (Iterable): Tensors, or pairs of name and tensor, as for torch.
        parent (str | int): Id or index of the group whose options they get, and whose rate they follow. Default: the
            first one.
        warmup_steps (int): Steps of the rise, from a hundredth of that rate.
        options (Mapping[str, Any]): Options that differ from the parent's.
        policy (PolicyLike): A policy for them, such as "adaptive", by its name with the same warm-up. Its base is a
            tenth of the parent's rate. Default: constant after the warm-up.
        settings (Any): Settings of a policy given by its name.
        RETURNS (str): The label of the group.
        RAISES (ConfigError): A param can't be optimized or is in the optimizer already, or there are none; or an
            unknown optimizer, parent or option.
        """
        started = self.timer()
        to = self._optimizer(optimizer)
        above = _find_parent(to, parent)
        if isinstance(policy, str) and policy != "frozen":
            # The first rate of `Warmup`, and the lowest of its class.
            begin = {"warmup_steps": warmup_steps, "warmup_factor": Warmup().start_factor, "min_rate": 0.0}
            settings = {**begin, **settings}
        if policy is None and not settings:
            policy = Warmup(warmup_steps)
        else:
            policy = self._reader.read(policy, to.name, settings)  # type: ignore[arg-type]
        group = _append_group(to, above, list(params), policy, options or {})
        made = self._add_record(to, group, policy, rate_of(group), parent=above)
        to.groups.append(made)
        self._update_groups(to)
        self.took("adding_params", started)
        return to.groups[-1].label

    def _source_of_added(
        self, of: OptimizerRecord, label: str, rate: float, *, at_default: bool
    ) -> tuple[RateSource, float | None]:
        """By default it gets the policy of all groups of its optimizer, or else that of the first one."""
        first = next(iter(of.groups), None)
        beside = None if first is None else policy_rate_of(first)
        policy = self._policies.get(of.name, None if beside is None else beside.policy)
        if not at_default or policy is None:
            return PolicyRate(Constant(rate), rate, self.step_count), None
        base, start = (rate, self.step_count) if beside is None else (beside.base, beside.start)
        source = PolicyRate(policy, base, start)
        if first is not None and beside is not None and beside.policy is policy:
            return source, first.applied_rate
        return source, check_rate(source.rate_at(self.step_count), label)

    def _before_step(
        self, of: OptimizerRecord, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Verify, and drop the gradients of frozen params, so that a step does not update them. Runs before each step.

        args, kwargs (tuple, dict): Of the step, with the optimizer first.
        RETURNS (tuple | None): Replacements, if a closure is among them, which makes new gradients.
        """
        self._check([of])
        frozen = [param for record in of.groups if policy_rate_of(record).is_frozen for param in record.params]
        _drop_grads(frozen)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not frozen or closure is None:
            return None

        @wraps(closure)
        def without_frozen() -> Any:
            loss = closure()
            _drop_grads(frozen)
            return loss

        left = {name: value for name, value in kwargs.items() if name != "closure"}
        return (args[0], without_frozen, *args[2:]), left

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        """The whole state, to resume exactly, for JSON."""
        groups = {label: write(_saved(record)) for label, record in self._groups.items()}
        return {**super().state_dict(), "mode": self.breaker.state_dict(), "groups": groups}

    def load_state_dict(self, state: Any) -> None:
        """Load the state of another run, and write its last rates.

        state (Mapping): From `state_dict`, of a controller with the same optimizers, policies and added params.
        RAISES (StateError): The state of another controller. Nothing changes then.
        """
        saved = read(PolicyControllerState, state, _WHAT)
        check_names(saved.groups, self._groups, _WHAT, "groups")
        self._check_groups(saved.groups)
        self.load(saved)
        self.breaker.load(saved.mode)
        loaded = set()
        for label, record in self._groups.items():
            found, rate = saved.groups[label], policy_rate_of(record)
            if rate.keeper is not None and id(rate.keeper) not in loaded:
                rate.keeper.load_state_dict(found.policy_state)
                loaded.add(id(rate.keeper))
            record.rate, record.applied_rate = found.rate, found.applied_rate
            rate.start, rate.base, rate.scale = found.start, found.base, found.scale
        self.write_last_rates()

    def _check_groups(self, saved: Mapping[str, GroupState]) -> None:
        """RAISES (StateError): They are of other groups. Warns if params, shapes or options differ."""
        for label, record in self._groups.items():
            found, rate = saved[label], policy_rate_of(record)
            for name, here, there in (
                ("policy", rate.kind, found.policy),
                ("parent", None if rate.parent is None else rate.parent.label, found.parent),
            ):
                if here != there:
                    refuse(_WHAT, f"groups/{label}/{name}", repr(here), repr(there))
            if hasattr(rate.keeper, "check_state_dict"):
                rate.keeper.check_state_dict(found.policy_state)
        other = sorted(label for label, record in self._groups.items() if saved[label].checksum != record.checksum)
        if other:
            warnings.warn(
                LearnRateWarning(
                    f"Param groups {other} have other params, shapes or options than when they were saved, or another "
                    "order. Their learn rates are kept."
                ),
                stacklevel=3,
            )


def _drop_grads(params: Iterable[torch.Tensor]) -> None:
    for param in params:
        param.grad = None


# ---------------------------------------------------------------------- params added in mid-training


def _append_group(
    to: OptimizerRecord, parent: GroupRecord, given: list[Any], policy: Policy, options: Mapping[str, Any]
) -> TorchGroup:
    """Append a group of new params.

    parent (GroupRecord): The group that they follow.
    given (list): Tensors, or pairs of name and tensor.
    policy (Policy): Gives their rates.
    options (Mapping[str, Any]): Options that differ from the parent's.
    RAISES (ConfigError): A param can't be optimized or is in the optimizer already, or there are none; or an unknown
        option.
    """
    if not given:
        _refuse(to, "at least one param, found none")
    if unknown := sorted(set(options) - set(to.all_options)):
        _refuse(to, f"options among {to.all_options}, found {unknown}")
    if isinstance(to.optimizer, torch.optim.LBFGS):
        _refuse(to, "an optimizer with several param groups, found LBFGS")
    wanted = {option: parent.group[option] for option in to.all_options if option in parent.group} | dict(options)
    rate = policy.rate(0, NEW_PARAMS_FACTOR * parent.rate)
    lr = rate if parent.lr_tensor is None else torch.full_like(parent.lr_tensor, rate)
    if len({id(param[1] if isinstance(param, tuple) else param) for param in given}) < len(given):
        _refuse(to, "each param once, found one twice")
    try:
        state = _first_state(to.optimizer, given, {**wanted, "lr": policy_rate_of(parent).base or 1e-3})
        to.optimizer.add_param_group({**wanted, "params": given, "lr": lr})
    except (TypeError, ValueError, AttributeError) as error:
        _refuse(to, f"new params that it can optimize, found others. torch says: {error}")
    to.optimizer.state.update(state)
    return to.optimizer.param_groups[-1]


def _find_parent(to: OptimizerRecord, parent: str | int | None) -> GroupRecord:
    """The group that new params follow.

    parent (str | int | None): Its label or index. None: the first one.
    RAISES (ConfigError): No such group, or it is frozen.
    """
    place = 0 if parent is None else parent
    for i, record in enumerate(to.groups):
        if place == record.label or (place == i and not isinstance(place, bool)):
            if policy_rate_of(record).is_frozen:
                _refuse(
                    to,
                    f"a parent that learns, found '{record.label}', which is frozen: a tenth of its rate is 0. Name "
                    "another parent",
                )
            return record
    _refuse(to, f"a parent among {[record.label for record in to.groups]}, or its index, found {parent!r}")


def _first_state(optimizer: torch.optim.Optimizer, params: list[Any], options: Mapping[str, Any]) -> Mapping[Any, Any]:
    """The state that a class makes only when it is built, as Adagrad does. options (Mapping[str, Any]): Of the params'
    group, with a `lr`.
    """
    signature = inspect.signature(type(optimizer))
    accepts_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    accepted = {name: value for name, value in options.items() if accepts_all or name in signature.parameters}
    try:
        signature.bind(params, **accepted)
    except TypeError:  # a class with other arguments, e.g. around other optimizers
        return {}
    return type(optimizer)(params, **accepted).state


def _refuse(to: OptimizerRecord, expected_and_found: str) -> NoReturn:
    raise ConfigError(f"Can't add params to optimizer '{to.name}': expected {expected_and_found}.")


# ---------------------------------------------------------------------- saved forms


@dataclass
class GroupState:
    """The saved form of a param group, with its policy. The numbers are those of `GroupRecord` and `PolicyRate`.

    parent (str | None): The label of the group that it follows.
    checksum (str): Of its identity.
    policy (str): Its kind.
    policy_state (Any): Its own state, or that of its source.
    """

    rate: NotNegative
    applied_rate: NotNegative
    checksum: str
    start: Count
    base: NotNegative
    scale: RateScale
    parent: Optional[str]
    policy: str
    policy_state: Any


@dataclass
class PolicyControllerState(WriterState):
    """The saved form of a controller. mode: Of the breaker. groups (dict[str, GroupState]): By label."""

    mode: BreakerState
    groups: dict[str, GroupState]


def _saved(record: GroupRecord) -> GroupState:
    rate = policy_rate_of(record)
    return GroupState(
        record.rate,
        record.applied_rate,
        record.checksum,
        rate.start,
        rate.base,
        rate.scale,
        None if rate.parent is None else rate.parent.label,
        rate.kind,
        None if rate.keeper is None else rate.keeper.state_dict(),
    )
