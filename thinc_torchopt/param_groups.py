"""From params to torch's param groups: one torch optimizer for each algorithm, one param group for each set of options.

A step takes only the params that got a gradient. torch would skip a param whose `grad` is None; but gradients live on between
steps, in thinc's buffers and in torch's, so each step shows torch only the params that it is to update.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from fnmatch import fnmatchcase
from typing import Any

import torch

from .clipping import scale_grads
from .errors import ConfigError
from .learn_rate import write_learn_rate
from .names import match
from .params import Param
from .scheduled_values import Schedules, current, is_moving
from .types import Algorithm


class ParamGroups:
    """The torch optimizers behind a TorchOptimizer.

    algorithm (Algorithm): The algorithm from the config, perhaps with a fallback.
    schedules (Schedules): Takes in the schedules among its options.
    learn_rate (float): The first rate that is not 0. Each step writes its own; some algorithms want to know it when they are built.
    """

    def __init__(self, algorithm: Algorithm, schedules: Schedules, learn_rate: float):
        self._main = TorchGroup(algorithm, schedules, "algorithm", learn_rate)
        self._fallback: TorchGroup | None = None
        if algorithm.fallback is not None:
            self._fallback = TorchGroup(algorithm.fallback, schedules, "algorithm.fallback", learn_rate)
        self._patterns = list(algorithm.fallback_params)
        self._group_of: dict[int, TorchGroup] = {}

    @property
    def all(self) -> list[TorchGroup]:
        return [self._main] if self._fallback is None else [self._main, self._fallback]

    @property
    def options(self) -> dict[str, Any]:
        """The main algorithm's options as they are at this step."""
        return {name: current(value) for name, value in self._main.options.items()}

    def check_patterns(self, names: list[str]) -> None:
        """Check that every pattern matches a name.

        RAISES (ConfigError): One matches none.
        """
        match(self._patterns, names, where="[training.optimizer.algorithm] fallback_params")

    def add(self, params: Iterable[Param], *, names_are_lasting: bool) -> None:
        """Give each param its group.

        params (Iterable[Param]): Params that have none yet.
        names_are_lasting (bool): Whether their names are those of a pipeline, to which patterns can be applied.
        RAISES (ConfigError): The algorithm can't optimize a param, and there is no fallback; or there are patterns, but no such names.
        """
        if self._patterns and not names_are_lasting:
            raise ConfigError(
                "Can't use fallback_params in [training.optimizer.algorithm]: expected an optimizer that knows its pipeline, found one "
                "that was never told, so params have no lasting names. Call optimizer.initialize(nlp) before the first update."
            )
        new: dict[int, tuple[TorchGroup, list[torch.Tensor]]] = {}
        for param in params:
            group = self._choose(param)
            self._group_of[id(param.tensor)] = group
            new.setdefault(id(group), (group, []))[1].append(param.tensor)
        for group, tensors in new.values():
            group.add(tensors)

    def drop(self, param: Param) -> None:
        """Forget a param and its state."""
        self._group_of.pop(id(param.tensor)).drop(param.tensor)

    def replace(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Let a tensor take the place of another, whose state it gets, on its own device."""
        group = self._group_of[id(new)] = self._group_of.pop(id(old))
        group.replace(old, new)

    def without_params(self) -> ParamGroups:
        """The same settings and schedules, for an optimizer that has met no param yet."""
        fresh = copy(self)
        fresh._group_of = {}
        fresh._main = self._main.without_params()
        fresh._fallback = None if self._fallback is None else self._fallback.without_params()
        return fresh

    def before_clipping(self, tensors: Sequence[torch.Tensor]) -> None:
        """Let algorithms that want it change the gradients before they are measured."""
        for group, chosen in self._split(tensors):
            group.before_clipping(chosen)

    def step(self, tensors: Sequence[torch.Tensor], learn_rate: float, grad_factor: float = 1.0) -> None:
        """Update params by their gradients.

        tensors (Sequence[Tensor]): The params to update. Each has a `grad`.
        learn_rate (float): This step's rate.
        grad_factor (float): Scales all gradients. Rides along in fused kernels.
        """
        for group, chosen in self._split(tensors):
            group.step(chosen, learn_rate, grad_factor)

    def _choose(self, param: Param) -> TorchGroup:
        if self._fallback is None:
            if not self._main.algorithm.accepts(param.name, param.tensor):
                raise ConfigError(
                    f"Can't optimize param '{param.name}' with {self._main.algorithm.label}: it does not take a param of shape "
                    f"{tuple(param.shape)}. Name an algorithm for such params in [training.optimizer.algorithm.fallback]."
                )
            return self._main
        sent_away = any(fnmatchcase(param.name, pattern) for pattern in self._patterns)
        return self._fallback if sent_away or not self._main.algorithm.accepts(param.name, param.tensor) else self._main

    def _split(self, tensors: Sequence[torch.Tensor]) -> list[tuple[TorchGroup, Sequence[torch.Tensor]]]:
        if self._fallback is None:
            return [(self._main, tensors)]
        chosen = [(group, [t for t in tensors if self._group_of[id(t)] is group]) for group in self.all]
        return [(group, part) for group, part in chosen if part]


class TorchGroup:
    """One torch optimizer with its params, built when the first param comes.

    algorithm (Algorithm): What to build.
    schedules (Schedules): Takes in the schedules among the options.
    path (str): Config path below [training.optimizer].
    learn_rate (float): The rate to build it with.
    """

    def __init__(self, algorithm: Algorithm, schedules: Schedules, path: str, learn_rate: float):
        self.algorithm = algorithm
        self.learn_rate = learn_rate
        self.options = {name: schedules.track(f"{path}.{name}", value) for name, value in algorithm.options.items()}
        self.optimizer: torch.optim.Optimizer | None = None
        self._moving = [name for name, value in self.options.items() if is_moving(value)]
        self._steps: dict[int, int] = {}

    def add(self, tensors: list[torch.Tensor]) -> None:
        options = {name: current(value) for name, value in self.options.items()}
        if "fused" in options and options["fused"] is None:
            options["fused"] = self._can_fuse(tensors, options) or None
        built = self.algorithm.build(tensors, lr=self.learn_rate, **options)
        self._steps.update({id(tensor): 0 for tensor in tensors})
        if self.optimizer is None:
            self.optimizer = built
        else:
            # Some classes, Adagrad among them, make a param's state only when they are built: so build, and take it over.
            self.optimizer.state.update(built.state)
            self.optimizer.param_groups[0]["params"].extend(tensors)
            self._check_fused(tensors)

    def without_params(self) -> TorchGroup:
        fresh = copy(self)
        fresh.optimizer = None
        fresh._steps = {}
        return fresh

    def drop(self, tensor: torch.Tensor) -> None:
        assert self.optimizer is not None
        group = self.optimizer.param_groups[0]
        group["params"] = [other for other in group["params"] if other is not tensor]
        self.optimizer.state.pop(tensor, None)
        del self._steps[id(tensor)]

    def replace(self, old: torch.Tensor, new: torch.Tensor) -> None:
        assert self.optimizer is not None
        group = self.optimizer.param_groups[0]
        group["params"] = [new if other is old else other for other in group["params"]]
        self._steps[id(new)] = self._steps.pop(id(old))
        self._check_fused([new])
        if old in self.optimizer.state:
            state = self.optimizer.state.pop(old)
            self.optimizer.state[new] = {name: self._moved(name, value, new) for name, value in state.items()}

    def _moved(self, name: str, value: Any, to: torch.Tensor) -> Any:
        """State of a param that went over to another device or dtype."""
        if not isinstance(value, torch.Tensor):
            return value
        if name == "step":
            # torch counts steps on the host, unless its kernels read the count.
            assert self.optimizer is not None
            group = self.optimizer.param_groups[0]
            return value.to(to.device) if group.get("fused") or group.get("capturable") else value.cpu()
        return value.to(to.device, to.dtype) if value.is_floating_point() else value.to(to.device)

    def _check_fused(self, tensors: list[torch.Tensor]) -> None:
        """Give the fused kernel up where a tensor came to a device for which there is none."""
        assert self.optimizer is not None
        group = self.optimizer.param_groups[0]
        if group.get("fused") and self.options["fused"] is None and not self._can_fuse(tensors, self.options):
            group["fused"] = None
            self.optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]

    def before_clipping(self, tensors: Sequence[torch.Tensor]) -> None:
        hook = getattr(self.optimizer, "before_clipping", None)
        if hook is not None:
            self._write_options()
            hook(tensors)

    def step(self, tensors: Sequence[torch.Tensor], learn_rate: float, grad_factor: float) -> None:
        optimizer = self.optimizer
        assert optimizer is not None
        write_learn_rate(optimizer, learn_rate)
        self._write_options()
        rides_along = grad_factor != 1.0 and getattr(optimizer, "_step_supports_amp_scaling", False)
        if grad_factor != 1.0 and not rides_along:
            scale_grads([t.grad for t in tensors if t.grad is not None], [grad_factor] * len(tensors))
        group = optimizer.param_groups[0]
        everything = group["params"]
        if rides_along:
            # What torch.amp.GradScaler sets for fused kernels, which divide by it.
            optimizer.grad_scale = torch.tensor(1.0 / grad_factor, device=tensors[0].device)  # type: ignore[attr-defined]
        try:
            for part in self._parts(tensors):
                group["params"] = part
                optimizer.step()
        finally:
            group["params"] = everything
            if rides_along:
                del optimizer.grad_scale  # type: ignore[attr-defined]

    def _parts(self, tensors: Sequence[torch.Tensor]) -> Iterator[Sequence[torch.Tensor]]:
        """The tensors in as few calls of torch's step as can be: one, but for two exceptions."""
        optimizer = self.optimizer
        assert optimizer is not None
        group = optimizer.param_groups[0]
        if self.algorithm.counts_for_group:
            by_step: dict[int, list[torch.Tensor]] = {}
            for tensor in tensors:
                by_step.setdefault(self._steps[id(tensor)], []).append(tensor)
                self._steps[id(tensor)] += 1
            first = optimizer.defaults.get("step")
            for step, part in by_step.items():
                if step == 0 and first is None:
                    group.pop("step", None)  # which is how most of them know that state has to be made
                else:
                    group["step"] = step + (first or 0)
                yield part
        elif isinstance(optimizer, torch.optim.SGD) and group["fused"]:
            # torch's fused SGD can't take params with and without momentum together.
            fresh = [t for t in tensors if t not in optimizer.state]
            seen = [t for t in tensors if t in optimizer.state] if fresh else tensors
            yield from (part for part in (fresh, seen) if part)
        else:
            yield tensors

    def _write_options(self) -> None:
        if self._moving and self.optimizer is not None:
            self.optimizer.param_groups[0].update({name: current(self.options[name]) for name in self._moving})

    def _can_fuse(self, tensors: list[torch.Tensor], options: dict[str, Any]) -> bool:
        return not options.get("foreach") and all(t.device.type in self.algorithm.fused_devices for t in tensors)
