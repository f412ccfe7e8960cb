"""From params to torch's param groups: one torch optimizer for each algorithm, one param group for each set of
settings.

cascade.py says what holds for a param, building.py builds torch optimizers, built_algorithm.py has those that are
built; here they meet. A frozen param is in no group: it has no state and no average, nothing decays it, and inside
`FrozenGrads.stopping` torch computes no gradient for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch

from ..errors import ConfigError
from ..learn_rate import LearnRateController
from ..params import Param, Pattern, Released
from ..schedules import current
from ..types import OnGrowth, ParamInfo
from .building import Builder
from .built_algorithm import BuiltAlgorithm
from .cascade import Cascade
from .freezing import FreezeChanges, FrozenGrads
from .rates import Rates
from .settings import ParamSettings
from .stepping import Stepper
from .torch_group import TorchGroup

Member = tuple[Param, ParamSettings]
Chosen = list[tuple[Stepper, list[tuple[TorchGroup, Sequence[Param]]]]]


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
        self._builders = [
            Builder(found.path, found.algorithm, cascade.moving(i), rates) for i, found in enumerate(cascade.candidates)
        ]
        self._built: dict[int, BuiltAlgorithm] = {}
        self._changes = 0  # how many blocks of `changing` are open
        self.frozen: dict[int, tuple[Param, ParamSettings]] = {}
        self._cascade = cascade
        self._controller = controller
        self._step = step
        self._frozen_grads = frozen_grads
        self.freeze_changes = FreezeChanges()

    @property
    def algorithms(self) -> list[BuiltAlgorithm]:
        """The torch optimizers: of the algorithm, those of blocks, and fallbacks. Each is there from its first param
        on.
        """
        return [self._built[i] for i in sorted(self._built)]

    @property
    def groups(self) -> list[TorchGroup]:
        """All torch param groups."""
        return [group for algorithm in self.algorithms for group in algorithm.groups.values()]

    @property
    def options(self) -> dict[str, Any]:
        """The algorithm's options as they are at this step, for params without any of their own."""
        return {name: current(value) for name, value in self._cascade.candidates[0].options.items()}

    def learn_rates(self) -> dict[str, float]:
        """The rate of the last step by label, as in `ParamSettings`; 0 for what is frozen. Groups with one label stand
        under their ids.
        """
        rates = self._controller.rates
        groups = Counter(label for group in self.groups for label in group.labels)
        found = {
            label if groups[label] == 1 else group.id: rates.get(group.id, 0.0)
            for group in self.groups
            for label in group.labels
        }
        found |= {settings.label: 0.0 for _, settings in self.frozen.values()}
        return dict(sorted(found.items(), key=lambda item: (item[0] != "default", item[0])))

    def rate_names(self) -> set[str]:
        """All names that `learn_rates` may ever have."""
        return {name for group in self.groups for name in (group.id, *group.labels)} | self.learn_rates().keys()

    def ids_of(self, patterns: Sequence[str]) -> list[str]:
        """The ids of all groups that have a matching name. A group of several blocks has the names of all of them.

        RAISES (ConfigError): A pattern matches no name, of a frozen group neither.
        """
        names = {group.id: group.names for group in self.groups}
        all_names = set().union(*names.values(), *(settings.names for _, settings in self.frozen.values()))
        for text in patterns:
            if not any(fnmatchcase(name, text) for name in all_names):
                known = ", ".join(sorted(all_names)) or "none"
                raise ConfigError(
                    f"Can't change the learning rates of '{text}': expected the name of a param group, or a pattern, "
                    f"found that it matches none of {known}."
                )
        return [id for id, own in names.items() if any(fnmatchcase(name, text) for name in own for text in patterns)]

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
        settings = self._settings_of(param) if param.group is not None else self.frozen[id(param)][1]
        return ParamInfo(
            param.name,
            tuple(param.shape),
            str(param.device),
            "shim"
            if param.callback is not None or param.is_of_shim
            else "torch"
            if isinstance(param.source, torch.Tensor)
            else "thinc",
            settings.label,
            0.0 if param.group is None else self._controller.rate_to_come(param.group.id),
            {name: current(value) for name, value in settings.options.items()},
            settings.frozen_until,
            param.steps,
            settings.blocks,
            self._cascade.candidates[settings.algorithm].algorithm.label,
        )

    # ------------------------------------------------------------------ params come and go

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Inside, params may come, go and change places; afterwards groups without params are gone, and the controller
        is told, once.
        """
        self._changes += 1
        try:
            yield
        finally:
            self._changes -= 1
            if not self._changes:
                for algorithm in self.algorithms:
                    algorithm.settle()

    def add(self, params: Iterable[Param], *, names_are_lasting: bool) -> None:
        """Give each param its group. If one of them is refused, none is taken in.

        params (Iterable[Param]): Params that have none yet.
        names_are_lasting (bool): Whether their names are those of a pipeline, to which patterns can be applied.
        RAISES (ConfigError): The algorithm can't optimize a param, and there is no fallback; or there are patterns, but
            no such names.
        """
        if self._cascade.goes_by_name and not names_are_lasting:
            raise ConfigError(
                "Can't use patterns in [training.optimizer] (param_groups, per_param_lr, layer_decay, params of a "
                "module): expected an optimizer that knows its pipeline, found one without a pipeline, so params have "
                "no lasting names. Call optimizer.initialize(nlp) before the first update."
            )
        frozen: list[Member] = []
        trained: list[Member] = []
        for param in params:
            settings = self._settings_of(param)
            if self._step < settings.frozen_until < math.inf:
                self._builders[settings.algorithm].check(param, settings)
            (frozen if settings.frozen_until > self._step else trained).append((param, settings))
        built = self._build(trained)
        with self.changing():
            for param, settings in frozen:
                self.frozen[id(param)] = param, settings
            self._frozen_grads.stop([param for param, _ in frozen])
            for members, optimizer in built:
                self._add_built(members, optimizer)

    def drop(self, params: Iterable[Param]) -> None:
        """Forget params and their states."""
        with self.changing():
            for param in params:
                if param.group is None:
                    self.frozen.pop(id(param), None)
                    self._frozen_grads.resume(param)
                else:
                    param.group.owner.drop(param, param.group)

    def release(self, param: Param) -> Kept | None:
        """Forget a param, and give its state in torch away."""
        kept = None
        if param.group is not None and (state := param.group.owner.states.get(param)):
            kept = Kept(param.group.owner.states.optimizer_class, state)
        self.drop([param])
        return kept

    def inherit(self, param: Param, released: Kept, old: Released, on_growth: OnGrowth) -> None:
        """Let a param go on with the state of one that had its name before, if the same class optimizes both.

        RAISES (StateError): The state can't be fitted to its shape.
        """
        if param.group is not None and released.optimizer_class is param.group.owner.states.optimizer_class:
            param.group.owner.states.inherit(param, released.state, old, "zero" if on_growth == "zero" else "mean")

    def replace(self, param: Param, new: torch.Tensor) -> None:
        """Let a tensor take the place of a param's, whose state it gets, on its own device."""
        with self.changing():
            if param.group is not None:
                param.group.owner.replace(param, param.group, new)
            param.put_on(new)

    def rename(self, params: Iterable[Param]) -> None:
        """Look whether params belong elsewhere now that they have another name."""
        staying: list[Member] = []
        going: list[Param] = []
        for param in params:
            settings = self._settings_of(param)
            algorithm = self._built.get(settings.algorithm)
            if param.group is not None and param.group.owner is algorithm and settings.frozen_until <= self._step:
                staying.append((param, settings))
            else:
                going.append(param)
        new = [member for member in staying if member[1].key not in self._built[member[1].algorithm].groups]
        built = self._build(new)
        with self.changing():
            for members, optimizer in built:
                settings = members[0][1]
                self._built[settings.algorithm].add_group(settings, optimizer.param_groups[0])
            for param, settings in staying:
                self._built[settings.algorithm].put_in([param], [settings])
            self.drop(going)
            self.add(going, names_are_lasting=True)

    def _build(self, members: Iterable[Member]) -> list[tuple[list[Member], torch.optim.Optimizer]]:
        """Build an optimizer for each set of settings. Changes nothing."""
        by_key: dict[tuple[Any, ...], list[Member]] = {}
        for param, settings in members:
            by_key.setdefault(settings.key, []).append((param, settings))
        return [
            (alike, self._builders[alike[0][1].algorithm].build([param for param, _ in alike], alike[0][1]))
            for alike in by_key.values()
        ]

    def _add_built(self, members: list[Member], built: torch.optim.Optimizer) -> None:
        """Take in params with the same settings. built (torch.optim.Optimizer): Of them alone."""
        params, settings = [param for param, _ in members], [settings for _, settings in members]
        [entry] = built.param_groups
        i = settings[0].algorithm
        if i not in self._built:
            self._built[i] = BuiltAlgorithm(self._builders[i], built, self._controller)
        else:
            # Some classes, Adagrad among them, make a param's state only when they are built.
            self._built[i].states.take_over(built)
        if settings[0].key not in self._built[i].groups:
            self._built[i].add_group(settings[0], entry)
        self._built[i].put_in(params, settings)

    def forget_lists(self) -> None:
        """Other states come: nothing holds on to those that they replace."""
        for algorithm in self.algorithms:
            algorithm.stepper.direct.forget()

    def take_ids(self, ids: Mapping[frozenset[str], str]) -> None:
        """Give groups the ids that they had in the saved run: an id is the label of the group's first param, which may
        differ here.

        ids (Mapping[frozenset[str], str]): The id of each group there by the names of its params.
        """
        new = {
            group.id: ids.get(frozenset(param.name for param, _ in group.params.values()), group.id)
            for group in self.groups
        }
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
        due = [param for param, settings in self.frozen.values() if settings.frozen_until <= step]
        if due:
            self.add(due, names_are_lasting=True)
        for param in due:
            del self.frozen[id(param)]
            self._frozen_grads.resume(param)

    def freeze(self, patterns: Sequence[Pattern], params: Iterable[Param], *, frozen: bool) -> list[Param]:
        """Train params no longer, or again. They begin anew then.

        patterns (Sequence[Pattern]): Over names. params (Iterable[Param]): All.
        RETURNS (list[Param]): Those for which that is a change.
        """
        self.freeze_changes.add(patterns, math.inf if frozen else float(self._step))
        changed = [
            param for param in params if (param.group is None) != (self._settings_of(param).frozen_until > self._step)
        ]
        left = [param.group for param in changed if param.group is not None]
        self.rename(changed)
        for group in left:
            group.owner.forget_adopted(group)
        for param in changed:
            param.steps = 0
        return changed

    def _settings_of(self, param: Param) -> ParamSettings:
        return self.freeze_changes.applied(param, self._cascade.settings_of(param))

    @property
    def frozen_params(self) -> list[Param]:
        """Those that are not trained, or not yet."""
        return [param for param, _ in self.frozen.values()]

    # ------------------------------------------------------------------ one step

    def choose(self, params: Sequence[Param]) -> Chosen:
        """The params of a step by algorithm and group."""
        by_group: dict[TorchGroup, list[Param]] = {}
        last, members = None, []
        for param in params:
            group = param.group
            if group is not None:
                if group is not last:
                    last, members = group, by_group.setdefault(group, [])
                members.append(param)
        found: Chosen = []
        for algorithm in self.algorithms:
            chosen: list[tuple[TorchGroup, Sequence[Param]]] = [
                entry for entry in by_group.items() if entry[0].owner is algorithm
            ]
            if chosen:
                found.append((algorithm.stepper, chosen))
        return found
