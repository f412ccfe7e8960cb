"""From params to torch's param groups: one torch optimizer for each algorithm, one param group for each set of settings.

cascade.py says what holds for a param, built_algorithm.py has the torch optimizers; here they meet. A frozen param is in no group: it
has no state and no average, nothing decays it, and inside `FrozenGrads.stopping` torch computes no gradient for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import ConfigError
from ..learn_rate import LearnRateController
from ..params import Param, Released
from ..schedules import current
from ..types import OnGrowth, ParamInfo
from .cascade import Cascade
from .freezing import FrozenGrads
from .rates import Rates
from .settings import ParamSettings
from .torch_groups import BuiltAlgorithm, TorchGroup

Chosen = list[tuple[BuiltAlgorithm, list[tuple[TorchGroup, Sequence[Param]]]]]


class Kept(NamedTuple):
    """The state in torch that a param leaves to the one that takes its name."""

    optimizer_class: type[torch.optim.Optimizer]
    state: dict[str, Any]


class ParamGroups:
    """The torch optimizers behind a TorchOptimizer, and the params that wait to be trained.

    cascade (Cascade): What holds for each param.
    controller (LearnRateController): Writes the learning rates.
    default_rate (Callable): The learning rate of params without one of their own.
    step (int): The step that comes.
    frozen_grads (FrozenGrads): Told of every param that is frozen, or no longer is.
    """

    def __init__(
        self,
        cascade: Cascade,
        controller: LearnRateController,
        default_rate: Callable[[], float],
        step: int,
        frozen_grads: FrozenGrads,
    ):
        rates = Rates(default_rate, lambda: self._step)
        self.algorithms = [
            BuiltAlgorithm(name, algorithm, cascade.moving(i), controller, rates)
            for i, (name, algorithm) in enumerate(zip(("algorithm", "algorithm.fallback"), cascade.algorithms))
        ]
        self.frozen: dict[int, tuple[Param, ParamSettings]] = {}
        self._cascade = cascade
        self._controller = controller
        self._step = step
        self._frozen_grads = frozen_grads

    @property
    def groups(self) -> list[TorchGroup]:
        """All torch param groups."""
        return [group for algorithm in self.algorithms for group in algorithm.groups.values()]

    @property
    def options(self) -> dict[str, Any]:
        """The algorithm's options as they are at this step, for params without any of their own."""
        return {name: current(value) for name, value in self._cascade.options[0].items()}

    def learn_rates(self) -> dict[str, float]:
        """The rate of the last step by label, as in `ParamSettings`; 0 for what is frozen. Groups with one label stand under their ids."""
        rates = self._controller.rates
        groups = Counter(label for group in self.groups for label in group.labels)
        found = {label if groups[label] == 1 else group.id: rates.get(group.id, 0.0) for group in self.groups for label in group.labels}
        found |= {settings.label: 0.0 for _, settings in self.frozen.values()}
        return dict(sorted(found.items(), key=lambda item: (item[0] != "default", item[0])))

    def check(self, names: Sequence[str]) -> None:
        """Check that every pattern matches a name.

        RAISES (ConfigError): One matches none.
        """
        self._cascade.check(names)

    def see_names(self, names: Sequence[str], embeddings: Collection[str] = ()) -> None:
        """Learn the names of all params of the pipeline. embeddings (Collection[str]): Those of embeddings."""
        self._cascade.see_names(names, embeddings)

    def describe(self, param: Param) -> ParamInfo:
        """Describe a param at the next step."""
        settings = self._cascade.settings_of(param) if param.group is not None else self.frozen[id(param)][1]
        return ParamInfo(
            param.name,
            tuple(param.shape),
            str(param.device),
            "shim" if param.callback is not None else "torch" if isinstance(param.source, torch.Tensor) else "thinc",
            settings.label,
            0.0 if param.group is None else self._controller.rate_to_come(param.group.id),
            {name: current(value) for name, value in settings.options.items()},
            settings.frozen_until,
            param.steps,
        )

    # ------------------------------------------------------------------ params come and go

    def add(self, params: Iterable[Param], *, names_are_lasting: bool) -> None:
        """Give each param its group.

        params (Iterable[Param]): Params that have none yet.
        names_are_lasting (bool): Whether their names are those of a pipeline, to which patterns can be applied.
        RAISES (ConfigError): The algorithm can't optimize a param, and there is no fallback; or there are patterns, but no such names.
        """
        if self._cascade.goes_by_name and not names_are_lasting:
            raise ConfigError(
                "Can't use patterns in [training.optimizer] (param_groups, per_param_lr, layer_decay, fallback_params): expected an "
                "optimizer that knows its pipeline, found one without a pipeline, so params have no lasting names. "
                "Call optimizer.initialize(nlp) before the first update."
            )
        by_key: dict[tuple[Any, ...], list[tuple[Param, ParamSettings]]] = {}
        for param in params:
            settings = self._cascade.settings_of(param)
            if settings.frozen_until > self._step:
                self._freeze(param, settings)
            else:
                by_key.setdefault(settings.key, []).append((param, settings))
        for alike in by_key.values():
            self.algorithms[alike[0][1].algorithm].add([param for param, _ in alike], [settings for _, settings in alike])

    def drop(self, param: Param) -> None:
        """Forget a param and its state."""
        if param.group is None:
            self.frozen.pop(id(param), None)
            self._frozen_grads.resume(param)
        else:
            param.group.owner.drop(param)

    def release(self, param: Param) -> Kept | None:
        """Forget a param, and give its state in torch away."""
        kept = None
        if param.group is not None and (state := param.group.owner.state_of(param)):
            kept = Kept(type(param.group.owner.optimizer), state)
        self.drop(param)
        return kept

    def inherit(self, param: Param, released: Kept, old: Released, on_growth: OnGrowth) -> None:
        """Let a param go on with the state of one that had its name before, if the same class optimizes both.

        RAISES (StateError): The state can't be fitted to its shape.
        """
        if param.group is not None and released.optimizer_class is type(param.group.owner.optimizer):
            param.group.owner.inherit(param, released.state, old, "zero" if on_growth == "zero" else "mean")

    def replace(self, param: Param, new: torch.Tensor) -> None:
        """Let a tensor take the place of a param's, whose state it gets, on its own device."""
        if param.group is not None:
            param.group.owner.replace(param, new)

    def rename(self, params: Iterable[Param]) -> None:
        """Look whether params belong elsewhere now that they have another name."""
        for param in params:
            settings = self._cascade.settings_of(param)
            now_frozen = settings.frozen_until > self._step
            if param.group is not None and not now_frozen and param.group.owner is self.algorithms[settings.algorithm]:
                param.group.owner.regroup(param, settings)
            else:
                self.drop(param)
                self.add([param], names_are_lasting=True)

    def take_ids(self, ids: Mapping[frozenset[str], str]) -> None:
        """Give groups the ids that they had in the saved run: an id is the label of the group's first param, which may differ here.

        ids (Mapping[frozenset[str], str]): The id of each group there by the names of its params.
        """
        new = {group.id: ids.get(frozenset(param.name for param, _ in group.params.values()), group.id) for group in self.groups}
        if len(set(new.values())) == len(new):
            self._controller.rename_groups(new)
            for group in self.groups:
                group.id = new[group.id]

    # ------------------------------------------------------------------ frozen params

    def move_to_step(self, step: int) -> None:
        """Begin to train what is frozen up to a step.

        step (int): The step that comes.
        """
        self._step = step
        due = [(param, settings) for param, settings in self.frozen.values() if settings.frozen_until <= step]
        for param, _ in due:
            del self.frozen[id(param)]
            self._frozen_grads.resume(param)
        if due:
            self.add([param for param, _ in due], names_are_lasting=True)

    @property
    def frozen_params(self) -> list[Param]:
        """Those that are not trained, or not yet."""
        return [param for param, _ in self.frozen.values()]

    def _freeze(self, param: Param, settings: ParamSettings) -> None:
        if settings.frozen_until < math.inf:
            self.algorithms[settings.algorithm].check(param, settings)
        param.group = None
        self.frozen[id(param)] = param, settings
        self._frozen_grads.stop([param])

    # ------------------------------------------------------------------ one step

    def choose(self, params: Sequence[Param]) -> Chosen:
        """The params of a step by algorithm and group."""
        by_group: dict[int, tuple[TorchGroup, list[Param]]] = {}
        for param in params:
            group = param.group
            by_group.setdefault(id(group), (group, []))[1].append(param)
        found: Chosen = []
        for algorithm in self.algorithms:
            chosen: list[tuple[TorchGroup, Sequence[Param]]] = [entry for entry in by_group.values() if entry[0].owner is algorithm]
            if chosen:
                found.append((algorithm, chosen))
        return found
