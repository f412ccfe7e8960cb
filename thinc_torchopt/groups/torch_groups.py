"""One torch optimizer behind a TorchOptimizer, with one torch param group for each set of settings.

A step takes only the params that got a gradient. torch would skip a param whose `grad` is None; but gradients live on between
steps, in thinc's buffers and in torch's, so each step shows torch only the params that it is to update.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from ..algorithms import Algorithm, OptionRanges, collect_beside, fit_param_state, library_of, map_tensors, small_matrix, to_tree
from ..errors import ConfigError
from ..gradients import scale_grads
from ..learn_rate import FromFunction, LearnRateController
from ..params import Param, Released, unique
from ..schedules import current, is_moving
from .rates import GroupRate, Rates
from .settings import ParamSettings

# Keys of a torch param group that hold no state.
_NO_STATE = ("params", "param_names", "lr", "step")
# Keys of ours in a torch param group, where algorithms keep such things too, and where they are saved with them: what an algorithm makes of
# the rate that it is given, as a factor; and the first rate of the group, which some keep in a list.
_OWN_RATE = "own_rate"
_FIRST_RATE = "first_rate"


@dataclass
class TorchGroup:
    """A torch param group.

    id (str): Its id at the controller: the label of its first params.
    entry (dict): torch's own dict.
    owner (BuiltAlgorithm): Whose it is.
    settings (ParamSettings): Those of its params, which differ in nothing but their labels.
    params (dict[int, tuple[Param, str]]): Its params with their labels, by `id`.
    not_fused (set[int]): The `id` of those that can't be given to a fused kernel, if `entry` asks for one.
    wide (set[int]): The `id` of those of float64.
    """

    id: str
    entry: dict[str, Any]
    owner: BuiltAlgorithm
    settings: ParamSettings
    params: dict[int, tuple[Param, str]] = field(default_factory=dict)
    not_fused: set[int] = field(default_factory=set)
    wide: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.moving = [name for name, value in self.settings.options.items() if is_moving(value)]

    @property
    def labels(self) -> set[str]:
        """What the config calls it; several names if blocks say the same."""
        return {label for _, label in self.params.values()}

    @property
    def own_rate(self) -> float:
        """The factor by which the algorithm changes the learning rate that it is given."""
        return self.entry.get(_OWN_RATE, 1.0)

    @property
    def updates(self) -> int:
        """How many updates its params had, at most."""
        return max((param.steps for param, _ in self.params.values()), default=0)

    def fuses(self, params: Sequence[Param]) -> bool:
        """Whether a fused kernel updates all of these params of the group."""
        return bool(self.entry.get("fused")) and (not self.not_fused or self.not_fused.isdisjoint(map(id, params)))

    def fuses_factor(self, params: Sequence[Param]) -> bool:
        """Whether it also takes a factor for the gradients, of which kernels know 32 bits: too few for wider params."""
        return self.fuses(params) and (not self.wide or self.wide.isdisjoint(map(id, params)))


class BuiltAlgorithm:
    """One torch optimizer with its params, built when the first param comes.

    name (str): Config path below [training.optimizer].
    algorithm (Algorithm): What to build.
    moving (Collection[str]): The options that schedules move, in any group.
    controller (LearnRateController): Writes the learning rates.
    rates (Rates): What rates params should have.
    """

    def __init__(self, name: str, algorithm: Algorithm, moving: Collection[str], controller: LearnRateController, rates: Rates):
        self.name = name
        self.algorithm = algorithm
        self.optimizer: torch.optim.Optimizer | None = None
        self.groups: dict[tuple[Any, ...], TorchGroup] = {}
        self._ranges = OptionRanges(algorithm)
        self._adopted: dict[tuple[Any, ...], tuple[float, float | None]] = {}
        self._moving = {*moving, *algorithm.trial.moves}
        self._names: dict[torch.Tensor, str] = {}
        self._checked: set[tuple[Any, ...]] = set()
        self._controller = controller
        self._rates = rates

    # ------------------------------------------------------------------ params come and go

    def add(self, params: list[Param], settings: list[ParamSettings]) -> None:
        """Take in params without state.

        params (list[Param]): Params that can be in one torch param group.
        settings (list[ParamSettings]): The settings of each, which differ in nothing but their labels.
        """
        # Some classes, Adagrad among them, make a param's state only when they are built: so build, and take it over.
        built = self._build(params, settings[0])
        [entry] = built.param_groups
        if self.optimizer is None:
            self.optimizer = built
            self.optimizer.param_groups = []
            self._controller.register_optimizer(
                self.name,
                self.optimizer,
                FromFunction(lambda step: self._rates.default()),
                moving=self._moving,
                param_names=self._names,
                watch_steps=False,
                keep_groups=True,
            )
        else:
            self.optimizer.state.update((tensor, state) for tensor, state in built.state.items() if isinstance(tensor, torch.Tensor))
        self._put_in(params, settings, entry)

    def check(self, param: Param, settings: ParamSettings) -> None:
        """Check that the algorithm takes the options of a param that is to be trained later.

        RAISES (ConfigError): It does not.
        """
        if settings.key not in self._checked:
            options = {name: current(value) for name, value in settings.options.items()}
            self._build_for(param, settings, [small_matrix(options)], 0.001, options)
            self._checked.add(settings.key)

    def drop(self, param: Param) -> None:
        """Forget a param and its state. A group without params goes."""
        assert self.optimizer is not None
        self._take_out(param)
        self._names.pop(param.tensor, None)
        self.optimizer.state.pop(param.tensor, None)

    def replace(self, param: Param, new: torch.Tensor) -> None:
        """Let another tensor, perhaps on another device or in another memory order, take a param's place. The state moves along."""
        assert self.optimizer is not None
        group, old = param.group, param.tensor
        group.entry["params"] = [new if other is old else other for other in group.entry["params"]]
        self._names[new] = self._names.pop(old)
        self._note_kernel(group, param, new)
        if old in self.optimizer.state:
            self.optimizer.state[new] = self._fit(param, self.optimizer.state.pop(old), new, param.dtype)
        self._controller.refresh(self.name)

    def regroup(self, param: Param, settings: ParamSettings) -> None:
        """Move a param, with its state, to the group of other settings."""
        self._take_out(param)
        self._put_in([param], [settings], self._build([param], settings).param_groups[0])

    def _build(self, params: list[Param], settings: ParamSettings) -> torch.optim.Optimizer:
        tensors = [param.tensor for param in params]
        options = {name: current(value) for name, value in settings.options.items()}
        for name, value in settings.options.items():
            if is_moving(value):
                self._ranges.check(name, settings.options)
        if "fused" in options and options["fused"] is None:
            options["fused"] = self._wants_kernel(tensors, options) or None
        # Some algorithms want to know a rate when they are built; a warm-up's first one may be 0.
        first_rate = GroupRate(settings, self._rates).rate()
        rate = first_rate or 0.001
        built = self._build_for(params[0], settings, tensors, rate, options)
        if self.algorithm.trial.writes_rate:
            built.param_groups[0][_OWN_RATE] = built.param_groups[0]["lr"] / rate
        if hasattr(built, "base_lrs"):
            built.param_groups[0][_FIRST_RATE] = first_rate
        return built

    def _build_for(
        self, param: Param, settings: ParamSettings, tensors: list[torch.Tensor], rate: float, options: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        """RAISES (ConfigError): The algorithm does not take these options together. Each block was tried out by itself before."""
        try:
            return self.algorithm.build(tensors, lr=rate, **options)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ConfigError(
                f"Can't train param '{param.name}' with the options of '{settings.label}' in [training.optimizer]: expected some that "
                f"'{self.algorithm.label}' takes together, found {dict(options)}. {str(error).rstrip('.')}. Several "
                "blocks hold for this param: change an option in one, or its patterns."
            ) from error

    def _put_in(self, params: list[Param], settings: list[ParamSettings], entry: dict[str, Any]) -> None:
        """Put params into the group of their settings. If there is no such group yet, `entry`, which holds them, becomes it."""
        assert self.optimizer is not None
        group = self.groups.get(settings[0].key)
        if group is None:
            group = self._add_group(settings[0], entry)
        else:
            group.entry["params"].extend(param.tensor for param in params)
        for param, own in zip(params, settings):
            param.group = group
            self._names[param.tensor] = param.name
            group.params[id(param)] = param, own.label
            self._note_kernel(group, param, param.tensor)
        self._controller.refresh(self.name)

    def _add_group(self, settings: ParamSettings, entry: dict[str, Any]) -> TorchGroup:
        assert self.optimizer is not None
        self.optimizer.param_groups.append(entry)
        group = self.groups[settings.key] = TorchGroup(settings.label, entry, self, settings)

        # Params that joined at different times have one label, and groups of their own.
        id, adopted = unique(settings.label, set(self._controller.rates)), self._adopted.pop(settings.key, (1.0, None))
        group.id = self._controller.add_group(self.name, entry, GroupRate(settings, self._rates, group), id=id, adopted=adopted)
        return group

    def _take_out(self, param: Param) -> None:
        assert self.optimizer is not None
        group, param.group = param.group, None
        del group.params[id(param)]
        group.not_fused.discard(id(param))
        group.wide.discard(id(param))
        group.entry["params"] = [other for other in group.entry["params"] if other is not param.tensor]
        if not group.params:
            self.optimizer.param_groups = [entry for entry in self.optimizer.param_groups if entry is not group.entry]
            del self.groups[group.settings.key]
            # Its params may come again, larger.
            self._adopted[group.settings.key] = self._controller.adopted(group.id)
        self._controller.refresh(self.name)

    # ------------------------------------------------------------------ state

    def state_of(self, param: Param) -> dict[str, Any]:
        """The state of a param, as torch keeps it."""
        assert self.optimizer is not None
        return dict(self.optimizer.state.get(param.tensor, {}))

    def set_state(self, param: Param, state: Mapping[str, Any], dtype: torch.dtype | None = None) -> None:
        """Give a param a state, e.g. of another process or another device. Its tensors are copied.

        dtype (torch.dtype | None): Of the param when it had this state. None: the same as now.
        """
        assert self.optimizer is not None
        fitted = self._fit(param, state, param.tensor, dtype)
        self.optimizer.state[param.tensor] = map_tensors(torch.Tensor.clone, fitted)
        for name, cache in vars(self.optimizer).items():
            if name.startswith("_") and isinstance(cache, dict):
                cache.pop(param.tensor, None)  # computed from the state that it had

    def _fit(self, param: Param, state: Mapping[str, Any], tensor: torch.Tensor, dtype: torch.dtype | None) -> dict[str, Any]:
        """State of a param for a tensor of the same shape: on its device, and in its memory order, where fused kernels look for it."""
        cls, entry = type(self.optimizer), param.group.entry
        fitted = fit_param_state(cls, state, param.shape, tensor, name=param.name, old_dtype=dtype, options=entry)  # type: ignore[arg-type]
        nested = {name: value for name, value in fitted.items() if not isinstance(value, torch.Tensor)}
        return fitted | map_tensors(lambda value: value.to(tensor.device), nested)

    def inherit(self, param: Param, state: Mapping[str, Any], old: Released, on_growth: Literal["mean", "zero"]) -> None:
        """Give a param the state of one that had its name, and perhaps another shape. RAISES (StateError): It does not fit."""
        cls, entry = type(self.optimizer), param.group.entry
        fitted = fit_param_state(
            cls,  # type: ignore[arg-type]
            state,
            old.shape,
            param.tensor,
            on_growth=on_growth,
            name=param.name,
            old_dtype=old.dtype,
            options=entry,
        )
        self.set_state(param, fitted)

    def group_state(self, group: TorchGroup) -> dict[str, Any]:
        """What the algorithm itself keeps in a param group, beside options: the step size that Prodigy found, for example."""
        settings = group.settings.options.keys() - self.algorithm.trial.moves
        return {name: value for name, value in group.entry.items() if name not in _NO_STATE and name not in settings}

    def tree_of(self, param: Param) -> dict[str, Any]:
        """The state of a param as a tree for files. Tensors are shared.

        RAISES (StateError): It can't be saved.
        """
        assert self.optimizer is not None
        tree: dict[str, Any] = to_tree(self.state_of(param), library_of(self.optimizer), f"the state of param '{param.name}'")
        return tree

    def state_beside(self) -> dict[str, Any]:
        """What the algorithm keeps beside params and groups: see library_state.py."""
        return {} if self.optimizer is None else collect_beside(self.optimizer, self.algorithm.options)

    def example_state(self, group: TorchGroup, n_dimensions: int) -> dict[str, Any]:
        """What torch keeps of a param of so many dimensions, each of size 2, from its first update on.

        RETURNS (dict[str, Any]): Empty: that can't be found out on a small one.
        """
        options = {name: current(value) for name, value in group.settings.options.items()}
        device = next(param.device for param, _ in group.params.values()) if options.get("capturable") else "cpu"
        param = torch.ones((2,) * n_dimensions, device=device, requires_grad=True)
        param.grad = torch.ones_like(param)
        try:
            optimizer = self.algorithm.build([param], lr=0.001, **options)
            optimizer.step()
        except Exception:
            return {}
        return dict(optimizer.state[param])

    # ------------------------------------------------------------------ evaluation

    @torch.no_grad()
    def in_eval_form(self) -> list[tuple[Param, torch.Tensor]]:
        """Params with copies of the values that are to be used, if those are others than the ones that are trained. Changes nothing."""
        optimizer, found = self.optimizer, []
        if optimizer is None or not self.algorithm.trial.has_eval_form:
            return []
        all_groups = optimizer.param_groups
        for group in self.groups.values():
            by_tensor = {param.tensor: param for param, _ in group.params.values() if param.steps}
            before, tensors = dict(group.entry), group.entry["params"]
            optimizer.param_groups = [group.entry]
            try:
                for part in self._parts(group, list(by_tensor.values())):
                    group.entry["params"] = part
                    trained = [tensor.detach().clone() for tensor in part]
                    optimizer.eval()  # type: ignore[attr-defined]
                    found += [(by_tensor[tensor], tensor.detach().clone()) for tensor in part]
                    optimizer.train()  # type: ignore[attr-defined]
                    # It computes them back, which is not to the last bit.
                    torch._foreach_copy_([tensor.detach() for tensor in part], trained)
            finally:
                optimizer.param_groups = all_groups
                group.entry.update({**before, "params": tensors})
        return found

    # ------------------------------------------------------------------ one step

    def begin_step(self, chosen: Sequence[tuple[TorchGroup, Sequence[Param]]]) -> None:
        """Write the options that schedules move, and let an algorithm that wants it change the gradients before they are measured.

        chosen (Sequence): As for `step`.
        RAISES (ScheduleError): The algorithm does not take the value of a schedule.
        """
        for group, _ in chosen:
            for name in group.moving:
                value = current(group.settings.options[name])
                if value != group.entry[name]:
                    self._ranges.check(name, group.settings.options)
                    group.entry[name] = value
        hook = getattr(self.optimizer, "before_clipping", None)
        if hook is not None:
            for group, params in chosen:
                hook(group.entry, [param.tensor for param in params])

    def step(self, chosen: Sequence[tuple[TorchGroup, Sequence[Param]]], grad_factor: float) -> None:
        """Update params by their gradients, at the rates that were written.

        chosen (Sequence): Groups of this algorithm, with the params of each that are to be updated. Each has a gradient.
        grad_factor (float): Scales all gradients. Rides along in fused kernels.
        """
        optimizer = self.optimizer
        assert optimizer is not None
        rides_along = grad_factor != 1.0 and all(group.fuses_factor(params) for group, params in chosen)
        if rides_along:
            # What torch.amp.GradScaler sets for fused kernels, which divide by it.
            optimizer.grad_scale = torch.full((), 1.0 / grad_factor, device=chosen[0][1][0].device)  # type: ignore[attr-defined]
        elif grad_factor != 1.0:
            grads = [param.grad for _, params in chosen for param in params]
            scale_grads(grads, [grad_factor] * len(grads))
        all_groups = optimizer.param_groups
        all_params = [(group.entry, group.entry["params"], group.entry.get("fused")) for group, _ in chosen]
        last_word = None
        if optimizer._optimizer_step_pre_hooks or _global_optimizer_pre_hooks:
            # Hooks of others run just before the step, and may write rates.
            last_word = optimizer.register_step_pre_hook(lambda *_: self._controller.check_rates(self.name))
        try:
            for parts in zip_longest(*(self._parts(group, params) for group, params in chosen)):
                optimizer.param_groups = [entry for (entry, *_), part in zip(all_params, parts) if part]
                for (entry, *_), part in zip(all_params, parts):
                    entry["params"] = part
                self._step_once(optimizer)
        finally:
            if last_word is not None:
                last_word.remove()
            optimizer.param_groups = all_groups
            for entry, tensors, fused in all_params:
                entry["params"] = tensors
                if fused:
                    entry["fused"] = fused
            if rides_along:
                del optimizer.grad_scale  # type: ignore[attr-defined]
        if self.algorithm.trial.writes_rate:
            factors = self._controller.put_back(self.name)
            for group, _ in chosen:
                group.entry[_OWN_RATE] *= factors[group.id]

    def _step_once(self, optimizer: torch.optim.Optimizer) -> None:
        """Let torch step. What an algorithm has by the place of a group is given to it for the groups that are there."""
        groups = optimizer.param_groups
        if hasattr(optimizer, "base_lrs"):
            optimizer.base_lrs = [entry[_FIRST_RATE] for entry in groups]
        optimizer.step()
        if hasattr(optimizer, "base_lrs"):
            for entry, rate in zip(groups, optimizer.base_lrs):
                entry[_FIRST_RATE] = rate

    def _parts(self, group: TorchGroup, params: Sequence[Param]) -> Iterator[Sequence[torch.Tensor]]:
        """The tensors of a group in as few calls of torch's step as can be: one, but for three exceptions."""
        assert self.optimizer is not None
        if group.entry.get("fused") and not group.fuses(params):
            yield from self._parts_of_kernel(group, [param.tensor for param in params if id(param) not in group.not_fused])
            group.entry["fused"] = None
            yield [param.tensor for param in params if id(param) in group.not_fused]
            return
        tensors = [param.tensor for param in params]
        if self.algorithm.counts_for_group:
            by_step: dict[int, list[torch.Tensor]] = {}
            for param in params:
                by_step.setdefault(param.steps, []).append(param.tensor)
            first = self.optimizer.defaults.get("step")
            for step, part in by_step.items():
                if step == 0 and first is None:
                    group.entry.pop("step", None)  # which is how most of them know that state has to be made
                else:
                    group.entry["step"] = step + (first or 0)
                yield part
        else:
            yield from self._parts_of_kernel(group, tensors)

    def _parts_of_kernel(self, group: TorchGroup, tensors: list[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
        """Those among the tensors of a group that torch's kernel can take together."""
        assert self.optimizer is not None
        fresh, seen = [], tensors
        if isinstance(self.optimizer, torch.optim.SGD) and group.entry["fused"]:
            # torch's fused SGD can't take params with and without momentum together.
            state = self.optimizer.state
            fresh = [tensor for tensor in tensors if not state.get(tensor)]
            seen = [tensor for tensor in tensors if state.get(tensor)] if fresh else tensors
        yield from (part for part in (fresh, seen) if part)

    def _note_kernel(self, group: TorchGroup, param: Param, tensor: torch.Tensor) -> None:
        """Note whether a param can be given to the fused kernel. The group stops using the kernel if there is none for a device.

        tensor (Tensor): What the param is, or will be.
        """
        group.not_fused.discard(id(param))
        group.wide.discard(id(param))
        if tensor.dtype is torch.float64:
            group.wide.add(id(param))
        if not group.entry.get("fused"):
            return
        if group.settings.options["fused"] is None and not self._wants_kernel([tensor], group.settings.options):
            group.entry["fused"] = None
        elif not self.algorithm.kernel.takes(tensor):
            group.not_fused.add(id(param))

    def _wants_kernel(self, tensors: Sequence[torch.Tensor], options: Mapping[str, Any]) -> bool:
        """Whether there is a fused kernel for all of these devices, and the config does not ask for another one."""
        return not options.get("foreach") and all(tensor.device.type in self.algorithm.kernel.devices for tensor in tensors)
