"""One torch optimizer of a TorchOptimizer: it is built, gets its param groups from plan.py, and steps. A group holds
params with equal settings.

A step updates only the params that have a new gradient. torch skips a param whose `grad` is None; but gradients stay
between steps, in thinc's buffers and in torch's, so those of all other params are put aside while torch steps.

Where torch has a fused kernel, most steps call it without torch's `step`: see fused.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from operator import is_
from typing import Any, Literal

import torch

from .. import kernels
from ..algorithms import Algorithm, StateBeside, collect_beside, map_tensors, small_matrix
from ..errors import ConfigError
from ..host import is_hooked_after_step, is_hooked_before_step, step
from ..params import Param, ParamSettings
from ..rates import GroupRecord, OptimizerRecord, RateScale, RateWriter
from ..schedules import current, is_moving
from ..types import BatchSize
from .clipping import scale_grads
from .fused import KERNELS, KernelLists
from .param_states import OF_GROUP, ParamStates

Key = tuple[Any, ...]

# How torch's classes refuse options, or a param.
_REFUSALS = (ValueError, TypeError, RuntimeError)
# Keys of a torch param group that are not state.
_NO_STATE = ("params", "param_names", "lr", "step")


class Group:
    """A torch param group, and the source of its learning rates: see `core.rates.RateSource`.

    key (tuple): The common values of its params, see `GroupPlan`.
    params (list[Param]): In the order in which they were added, which is torch's.
    entry (dict): torch's own dict.
    owner (BuiltAlgorithm): Its torch optimizer.
    default_rate (Callable): The learning rate of params without one of their own.
    label (str): Its label at the writer of rates.
    frozen_alike (Callable): Returns frozen params that would belong to it.

    Public: `record` (the group as the writer of rates left it), `first_values` (of `own_values`, before the first
    update), `moving` (the options that schedules move),
    `accepts_factor` (whether its fused kernel can scale the gradients: with a factor of 32 bits, too few for wider
    params).
    """

    def __init__(
        self,
        key: Key,
        params: list[Param],
        entry: dict[str, Any],
        owner: BuiltAlgorithm,
        default_rate: Callable[[], float],
        label: str,
        frozen_alike: Callable[[Group], Iterable[Param]],
    ):
        self.key = key
        self.params = params
        self.entry = entry
        self.owner = owner
        self._default_rate = default_rate
        self._frozen_alike = frozen_alike
        self.first_values = deepcopy(self.own_values)
        self.record = GroupRecord(label, self, entry["lr"])
        self.moving = [name for name, value in self.settings.options.items() if is_moving(value)]

    @property
    def settings(self) -> ParamSettings:
        """The settings of its params, which differ only in labels."""
        return self.params[0].settings

    @property
    def label(self) -> str:
        """The label of its first param, with a number if several groups have that one."""
        return self.record.label

    @property
    def is_fused(self) -> bool:
        """Whether a fused kernel updates its params."""
        return bool(self.key[1])

    @property
    def labels(self) -> set[str]:
        """The labels of its params; several if blocks have equal settings."""
        return {settings.label for settings in {id(param.settings): param.settings for param in self.params}.values()}

    @property
    def own_values(self) -> dict[str, Any]:
        """The algorithm's own values in the group, beside options: the step size that Prodigy found, for example."""
        settings = self.settings.options
        return {name: value for name, value in self.entry.items() if name not in _NO_STATE and name not in settings}

    def set_own_values(self, values: Mapping[str, Any]) -> None:
        """Replace the algorithm's own values."""
        for name in self.own_values.keys() - values.keys():
            del self.entry[name]
        self.entry.update(values)

    @property
    def state(self) -> dict[str, Any]:
        """The own values of algorithms whose groups keep them. Otherwise each param has those of its last update, in
        its state: params of a group may have been updated at different steps.
        """
        return {} if self.owner.algorithm.counts_for_group else self.own_values

    @property
    def settings_to_share(self) -> Any:
        """Equal for groups that can share one step size that their algorithm finds."""
        options = {name: value for name, value in self.entry.items() if name in self.settings.options}
        return self.entry["lr"], repr(sorted((options | {"weight_decay": None}).items()))

    def set_params(self, params: list[Param]) -> None:
        """Set its params."""
        self.params = params
        self.entry["params"] = [param.tensor for param in params]
        self.accepts_factor = self.is_fused and not any(param.dtype is torch.float64 for param in params)
        for param in params:
            param.group = self

    # ------------------------------------------------------------------ learning rates

    def rate_at(self, step: int) -> float:
        """The rate of the next step by settings and schedules."""
        settings = self.settings
        updates = max(param.steps for param in self.params) if settings.joined_at is not None else 0
        return settings.rate_at_next_step(self._default_rate(), updates)

    @property
    def scale(self) -> RateScale:
        """The effect of rules, or of other code, on the rates. All its params have the same."""
        return self.params[0].rate_scale

    @scale.setter
    def scale(self, scale: RateScale) -> None:
        for param in (*self.params, *self._frozen_alike(self)):
            param.rate_scale = scale
        self.note_scale()

    def note_scale(self) -> None:
        """That of all its params has changed, and is equal again."""
        self.key = (*self.key[:-1], self.scale)


Parts = Sequence[tuple[Group, Sequence[Param]]]


class BuiltAlgorithm:
    """A torch optimizer with its groups. It is registered at the writer of learning rates.

    name (str): Config path of the algorithm below [training.optimizer].
    algorithm (Algorithm): The algorithm.
    optimizer (torch.optim.Optimizer): From `build_optimizer`, for the first params.
    moving (set[str]): The options that schedules move, in any group.
    default_rate (Callable): The learning rate of params without one of their own.
    writer (RateWriter): Writes the learning rates.

    Public: `groups` (in torch's order), `states` (of its params).
    """

    def __init__(
        self,
        name: str,
        algorithm: Algorithm,
        optimizer: torch.optim.Optimizer,
        moving: set[str],
        default_rate: Callable[[], float],
        writer: RateWriter,
    ):
        self.name = name
        self.algorithm = algorithm
        self.optimizer = optimizer
        self.groups: list[Group] = []
        self.states = ParamStates(optimizer)
        self._default_rate = default_rate
        self._writer = writer
        self._kernel = KERNELS.get(type(optimizer))
        self._knows_size = False  # the optimizer was told that of the last batch
        # By the `id` of a group: the params of its last step, and the kernel's lists. False: no lists are possible.
        self._last: dict[int, tuple[Sequence[Param], KernelLists | Literal[False] | None]] = {}
        self._names: dict[torch.Tensor, str] = {}
        self._record = OptimizerRecord(name, optimizer, moving, self._names, keep_groups=True)
        self._record.default_rate = default_rate
        # Drop references to the states that are replaced.
        optimizer.register_load_state_dict_pre_hook(lambda *_: self.forget_lists())
        optimizer.param_groups = []
        if hasattr(optimizer, "tell_names"):
            optimizer.tell_names(self._names)

    def set_groups(self, groups: Mapping[Group, list[Param]]) -> None:
        """Set its groups, beside those that other code added. The states of params in none of them are dropped.

        groups (Mapping[Group, list[Param]]): With their params.
        """
        self._record.restore_dicts()
        own = {id(group.entry) for group in self.groups}
        foreign = [entry for entry in self.optimizer.param_groups if id(entry) not in own]
        self.groups = list(groups)
        for group, params in groups.items():
            group.set_params(params)
        self.optimizer.param_groups = [*(group.entry for group in groups), *foreign]
        self._names.clear()
        self._names.update({param.tensor: param.name for group in groups for param in group.params})
        self.states.keep_only({tensor for entry in self.optimizer.param_groups for tensor in entry["params"]})
        self.forget_lists()
        self._writer.set_groups(self._record, [(group.record, group.entry) for group in groups])

    def begin_anew(self, param: Param) -> None:
        """Drop the state of a param."""
        self.states.drop(param)
        is_fused = param.group is not None and param.group.is_fused
        rate = param.settings.rate_at_next_step(self._default_rate())
        self.states.add_initial(build_optimizer(self.algorithm, [param], rate, fused=is_fused))
        self.forget_lists()

    def forget_lists(self) -> None:
        """Drop the kernel's lists: groups or states were removed or replaced."""
        self._last.clear()

    def state_beside(self) -> StateBeside:
        """The algorithm's state beside params and groups: see core/algorithms/state_beside.py."""
        return collect_beside(self.optimizer, self.algorithm.options)

    # ------------------------------------------------------------------ a step

    def begin_step(self, chosen: Parts, batch_size: BatchSize | None = None) -> None:
        """Write the options that schedules move, and let algorithms see the batch size and change gradients before they
        are measured.

        chosen (Parts): As for `step`.
        batch_size (BatchSize | None): If it is known.
        RAISES (ScheduleError): The algorithm does not accept the value of a schedule.
        """
        for group, _ in chosen:
            for name in group.moving:
                value = current(group.settings.options[name])
                if value != group.entry[name]:
                    self.algorithm.ranges.check(name, group.settings.options)
                    group.entry[name] = value
        if (batch_size is not None or self._knows_size) and hasattr(self.optimizer, "begin_step"):
            words, examples = batch_size or (None, None)
            self.optimizer.begin_step(words=words, examples=examples)
            self._knows_size = batch_size is not None
        hook = getattr(self.optimizer, "before_clipping", None)
        if hook is not None:
            for group, params in chosen:
                hook(group.entry, [param.tensor for param in params])

    def step(self, chosen: Parts, grad_factor: float) -> None:
        """Update params by their gradients, at the written rates.

        chosen (Parts): Groups of this algorithm, with the params of each to update. Each has a gradient.
        grad_factor (float): Scales all gradients, in fused kernels without another pass.
        """
        scale = None
        if grad_factor != 1.0:
            device = chosen[0][1][0].device
            # torch would copy the factor to other devices without waiting for it.
            is_one_device = all(param.device == device for _, params in chosen for param in params)
            if is_one_device and all(group.accepts_factor for group, _ in chosen):
                # As torch.amp.GradScaler: fused kernels divide by it.
                scale = torch.full((), 1.0 / grad_factor, device=device)
            else:
                grads = [param.grad for _, params in chosen for param in params]
                scale_grads(grads, [grad_factor] * len(grads))
        if self._kernel is not None and not self._is_observed:
            chosen = [(group, params) for group, params in chosen if not self._step_by_kernel(group, params, scale)]
        if chosen:
            self._step_by_torch(chosen, scale)

    @property
    def _is_observed(self) -> bool:
        """Whether other code observes or changes the optimizer's own steps."""
        optimizer = self.optimizer
        return (
            is_hooked_before_step(optimizer)
            or is_hooked_after_step(optimizer)
            or "step" in vars(optimizer)  # replaced, as by torch's learning rate schedulers
            or getattr(optimizer, "found_inf", None) is not None
        )

    def _step_by_kernel(self, group: Group, params: Sequence[Param], scale: torch.Tensor | None) -> bool:
        """Make the step of a group by a fused kernel, if it can take all params together.

        scale (Tensor | None): Divides gradients.
        RETURNS (bool): Whether it was made. If not, nothing has changed, and torch's `step` must make it.
        """
        kernel, entry = self._kernel, group.entry
        if kernel is None or not kernel.is_wanted(entry):
            return False
        before, lists = self._last.get(id(entry), ((), None))
        if len(before) != len(params) or not all(map(is_, before, params)):
            # Lists are made when the same params come twice in a row.
            self._last[id(entry)] = list(params), None
            return False
        if lists is False:
            return False
        state, names = self.optimizer.state, kernel.state_names(entry)
        if lists is None or not lists.are_current(state, names):
            lists = KernelLists.gathered(state, before, names, kernel)
            self._last[id(entry)] = before, lists
            if not lists:
                return False
        grads: Any = [tensor.grad for tensor in lists.tensors]
        with torch.set_grad_enabled(False):  # `torch.no_grad`, in half the time
            kernel.call(entry, lists.tensors, grads, lists.of_state, lists.count(), scale)
        return True

    def _step_by_torch(self, chosen: Parts, scale: torch.Tensor | None) -> None:
        """As `step`, by torch's own step. scale (Tensor | None): Fused kernels divide gradients by it."""
        optimizer = self.optimizer
        last_word = None
        if is_hooked_before_step(optimizer):
            # Hooks of other code run just before the step, and may write rates.
            last_word = optimizer.register_step_pre_hook(lambda *_: self._writer.check_rates(self.name))
        if scale is not None:
            optimizer.grad_scale = scale  # type: ignore[attr-defined]
        try:
            if self.algorithm.counts_for_group:
                for part in self._parts_alike(chosen):
                    self._step_once()
                    for group, tensors in part.items():
                        self.states.put_of_group(tensors, group.own_values)
            else:
                for tensors in self._parts(chosen):
                    with self._only_grads_of(tensors):
                        self._step_once()
        finally:
            if last_word is not None:
                last_word.remove()
            if scale is not None:
                del optimizer.grad_scale  # type: ignore[attr-defined]

    def _step_once(self) -> None:
        """Let torch step. RAISES (ConfigError): A learning rate is too high for the dtype of the params."""
        try:
            step(self.optimizer)
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            group, rate = max(self._writer.learn_rates.items(), key=lambda item: item[1])
            raise ConfigError(
                f"Can't update params by {self.algorithm.label}: expected learning rates whose steps fit the dtype of "
                f"the params, found {rate:g} in '{group}'. torch says: {error}. Lower 'learn_rate' in "
                "[training.optimizer], or that of a param group."
            ) from error

    def _parts(self, chosen: Parts) -> Iterator[list[torch.Tensor]]:
        """The tensors of a step in as few calls as possible: one, except for fused SGD, which can't update params with
        and without momentum together.
        """
        tensors = [param.tensor for _, params in chosen for param in params]
        if isinstance(self.optimizer, torch.optim.SGD) and any(group.is_fused for group, _ in chosen):
            state = self.optimizer.state
            fresh = [tensor for tensor in tensors if not state.get(tensor)]
            if fresh and len(fresh) < len(tensors):
                yield fresh
                is_fresh = set(fresh)
                tensors = [tensor for tensor in tensors if tensor not in is_fresh]
        yield tensors

    @contextmanager
    def _only_grads_of(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Inside, only these tensors of the optimizer have gradients."""
        aside: list[tuple[torch.Tensor, torch.Tensor]] = []
        everything = [tensor for entry in self.optimizer.param_groups for tensor in entry["params"]]
        if len(everything) > len(tensors):
            wanted = set(tensors)
            for tensor in everything:
                if tensor.grad is not None and tensor not in wanted:
                    aside.append((tensor, tensor.grad))
                    tensor.grad = None
        try:
            yield
        finally:
            for tensor, grad in aside:
                tensor.grad = grad

    def _parts_alike(self, chosen: Parts) -> Iterator[dict[Group, list[torch.Tensor]]]:
        """While this iterates, the optimizer has only groups and params to update that had equally many updates, and
        that agree on the algorithm's values of their group: for algorithms that keep such values, and count steps, for
        a whole group, even for params that are idle or new.
        """
        optimizer = self.optimizer
        all_groups = optimizer.param_groups
        before = [(group.entry, group.entry["params"]) for group, _ in chosen]
        first = optimizer.defaults.get("step")
        parts: dict[Any, dict[Group, list[torch.Tensor]]] = {}
        for group, params in chosen:
            settings = group.settings_to_share if self.algorithm.finds_rate else None
            keys: dict[int, Any] = {}
            for param in params:
                values = self.states.of_group(param)
                if id(values) not in keys:
                    keys[id(values)] = _comparable(group.first_values if values is None else values)
                key = param.steps, keys[id(values)], settings
                parts.setdefault(key, {}).setdefault(group, []).append(param.tensor)
        try:
            for (count, *_), part in parts.items():
                optimizer.param_groups = [group.entry for group in part]
                for group, tensors in part.items():
                    values = optimizer.state.get(tensors[0], {}).get(OF_GROUP, group.first_values)
                    group.set_own_values(map_tensors(torch.Tensor.clone, values))
                    group.entry["params"] = tensors
                    if count == 0 and first is None:
                        group.entry.pop("step", None)  # most of them create state if it is missing
                    else:
                        group.entry["step"] = count + (first or 0)
                yield part
        finally:
            optimizer.param_groups = all_groups
            for entry, tensors in before:
                entry["params"] = tensors

    # ------------------------------------------------------------------ the values to evaluate

    @torch.no_grad()
    def in_eval_form(self) -> list[tuple[Param, torch.Tensor]]:
        """Params with copies of the values to evaluate, if these differ from the trained ones. Changes nothing."""
        optimizer, found = self.optimizer, []
        if not self.algorithm.trial.has_eval_form:
            return []
        for group in self.groups:
            by_tensor = {param.tensor: param for param in group.params if param.steps}
            before = dict(group.entry)
            for part in self._parts_alike([(group, list(by_tensor.values()))]):
                tensors = part[group]
                trained = [tensor.detach().clone() for tensor in tensors]
                optimizer.eval()  # type: ignore[attr-defined]
                found += [(by_tensor[tensor], tensor.detach().clone()) for tensor in tensors]
                optimizer.train()  # type: ignore[attr-defined]
                # It computes them back, though not to the last bit.
                kernels.copy_([tensor.detach() for tensor in tensors], trained)
            group.entry.update(before)
        return found


def _comparable(value: Any) -> Any:
    """A form of plain values that can be compared and hashed."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), tuple(value.flatten().tolist())
    if isinstance(value, Mapping):
        return tuple((key, _comparable(item)) for key, item in value.items())
    return tuple(map(_comparable, value)) if isinstance(value, (list, tuple)) else value


# ---------------------------------------------------------------------- building it


def build_optimizer(
    algorithm: Algorithm, params: Sequence[Param], rate: float, *, fused: bool
) -> torch.optim.Optimizer:
    """Build a torch optimizer with one group.

    params (Sequence[Param]): Params that can be in one torch param group.
    rate (float): Their learning rate at the next step.
    fused (bool): The result of `Algorithm.fuses` for them.
    RAISES (ConfigError): The algorithm refuses a param, or the options together. (ScheduleError): Or a schedule's
        value.
    """
    sources = params[0].settings.options
    options = {name: current(value) for name, value in sources.items()}
    for name, value in sources.items():
        if is_moving(value):
            algorithm.ranges.check(name, sources)
    if "fused" in options and options["fused"] is None:
        options["fused"] = fused or None
    # Some algorithms need a rate when they are built; a warm-up's first one may be 0.
    rate = rate or 0.001
    try:
        built = algorithm.build([param.tensor for param in params], lr=rate, **options)
    except _REFUSALS as error:
        for param in params[:-1]:  # find the refused one
            try:
                algorithm.build([param.tensor], lr=rate, **options)
            except _REFUSALS as of_param:
                raise _refused(algorithm, param, options, of_param) from of_param
        raise _refused(algorithm, params[-1], options, error) from error
    [entry] = built.param_groups
    if entry.get("fused") and not fused:
        entry["fused"] = None
    return built


def check_options(algorithm: Algorithm, param: Param) -> None:
    """Check that an algorithm accepts the options of a param that will be trained later.

    RAISES (ConfigError): It does not.
    """
    options = {name: current(value) for name, value in param.settings.options.items()}
    try:
        algorithm.build([small_matrix(options)], lr=0.001, **options)
    except _REFUSALS as error:
        raise _refused(algorithm, param, options, error) from error


def _refused(algorithm: Algorithm, param: Param, options: Mapping[str, Any], error: Exception) -> ConfigError:
    """The error for options that the algorithm refuses together. Each block passed the checks alone."""
    return ConfigError(
        f"Can't train param '{param.name}' with the options of '{param.settings.label}' in [training.optimizer]: "
        f"'{algorithm.label}' refuses them together: {dict(options)}. {str(error).rstrip('.')}. Several blocks hold "
        "for this param: change an option in one, or its patterns."
    )
