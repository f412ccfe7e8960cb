"""The plan of an optimizer: the torch optimizer and the param group of each param.

It is derived from all params whenever one of them is added, removed or changed: see `GroupPlan.sync`. Params with equal
settings, and equal changes of rates by rules, are in one param group. torch keeps its state by tensor, so groups can be
made again at any time.

A frozen param is in no group: it has no state, no average and no float32 master, does not decay, and inside
`FrozenGrads.stopping` torch computes no gradient for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch

from ..algorithms import Algorithm
from ..checks import Section, check_texts
from ..errors import ConfigError
from ..params import NamedModel, Param, ParamSettings, master_of, unique
from ..rates import RateWriter
from ..schedules import current
from ..settings import Cascade, FreezeChange, RateChange, with_freeze_change, with_rate_change
from ..types import Key, ParamInfo
from .built_algorithm import BuiltAlgorithm, Group, build_optimizer, check_options
from .frozen_grads import FrozenGrads

Chosen = list[tuple[BuiltAlgorithm, list[tuple[Group, Sequence[Param]]]]]

# By the algorithm's index, and by the key of the group: the params of a group.
_Derived = dict[int, dict[tuple[Any, ...], list[Param]]]


class GroupPlan:
    """The torch optimizers behind a TorchOptimizer, with their param groups.

    params (Mapping[Key, Param]): All params of the optimizer, in the order in which they were added. Code that changes
        them calls `sync` afterwards.
    cascade (Cascade): The settings of each param.
    writer (RateWriter): Writes the learning rates.
    default_rate (Callable): The learning rate of params without one of their own.
    step (int): The next step.
    frozen_grads (FrozenGrads): Gets the frozen params.

    Public: `algorithms` (the torch optimizers: of the algorithm, of blocks, and of fallbacks; each is built for its
        first param), `freeze_changes`, `rate_changes`.
    """

    def __init__(
        self,
        params: Mapping[Key, Param],
        cascade: Cascade,
        writer: RateWriter,
        default_rate: Callable[[], float],
        step: int,
        frozen_grads: FrozenGrads,
    ):
        self.freeze_changes: list[FreezeChange] = []
        self.rate_changes: list[RateChange] = []
        self._default_rate = default_rate
        self._params = params
        self._cascade = cascade
        self._writer = writer
        self._step = step
        self._frozen_grads = frozen_grads
        self._built: dict[int, BuiltAlgorithm] = {}
        self._next_thaw = math.inf  # the next step at which a frozen param is trained again

    @property
    def algorithms(self) -> list[BuiltAlgorithm]:
        return [self._built[i] for i in sorted(self._built)]

    @property
    def groups(self) -> list[Group]:
        """All torch param groups."""
        return [group for algorithm in self.algorithms for group in algorithm.groups]

    @property
    def frozen_params(self) -> list[Param]:
        """Params that are not trained, or not yet."""
        return [param for param in self._params.values() if param.group is None]

    # ------------------------------------------------------------------ deriving it

    def sync(self, changed: Iterable[Param] = (), *, new: Iterable[Param] = (), outside: Sequence[Param] = ()) -> None:
        """Bring torch's param groups in line with the params.

        changed (Iterable[Param]): Params whose settings may have changed: renamed or replaced ones, for example.
        new (Iterable[Param]): Added params. They get the changes that rules made before, and may be frozen.
        outside (Sequence[Param]): Those of them that are not in the pipeline: patterns can't apply to their names.
        RAISES (ConfigError): The algorithm can't optimize a param and has no fallback, or patterns can't apply. Nothing
            changes then. (LearnRateIntegrityError): Other code wrote a rate.
        """
        self._check_rates()
        new = list(new)
        changed = [*changed, *new]
        if outside and self._cascade.goes_by_name:
            raise ConfigError(
                "Can't use patterns in [training.optimizer] (param_groups, per_param_lr, layer_decay, params of a "
                "module): expected params of the pipeline that the optimizer knows, found "
                f"{len(outside)} of another model, such as '{outside[0].name.partition('/')[2]}', which have no "
                "lasting names. Call optimizer.initialize(nlp) before the first update, and train each "
                "other pipeline or model with an optimizer of its own."
            )
        before = [param.settings for param in changed]
        try:
            for param in changed:
                param.settings = self._settings_of(param)
            for param in new:
                for freeze_change in self.freeze_changes:
                    if freeze_change.matches(param.names):
                        freeze_change.apply_to(param)
                for rate_change in self.rate_changes:
                    if rate_change.matches(param.settings.names):
                        rate_change.apply_to([param], self._rate_to_come(param))
            checked: set[Any] = set()
            for param in changed:
                settings = param.settings
                if self._step < settings.frozen_until < math.inf and settings.key not in checked:
                    check_options(self._algorithm(settings), param)
                    checked.add(settings.key)
            for param in self._params.values():
                if param.half is not None and not param.has_master and self._is_trained(param):
                    param.put_on(master_of(param.half.tensor))
            derived = self._derive()
            built = {i: self._build(self._built.get(i), groups) for i, groups in sorted(derived.items())}
        except BaseException:
            for param, known in zip(changed, before):
                param.settings = known
            raise
        self._apply(derived, built)

    def _check_rates(self) -> None:
        """Handle rates that other code wrote: they would be lost with a group that is replaced.

        RAISES (LearnRateIntegrityError): Other code wrote a rate.
        """
        for algorithm in self.algorithms:
            self._writer.check_rates(algorithm.name)

    def _derive(self) -> _Derived:
        derived: _Derived = {}
        for param in self._params.values():
            if self._is_trained(param):
                of_algorithm = derived.setdefault(param.settings.algorithm, {})
                of_algorithm.setdefault(self._key_of(param), []).append(param)
        return derived

    def _is_trained(self, param: Param) -> bool:
        return param.settings.frozen_until <= self._step

    def _key_of(self, param: Param) -> tuple[Any, ...]:
        """Equal for params of one group: their settings, whether they can be fused, and the changes of their rates."""
        is_fused = self._algorithm(param.settings).fuses(param.tensor, param.settings.options)
        return param.settings.key, is_fused, param.rate_scale

    def _algorithm(self, settings: ParamSettings) -> Algorithm:
        return self._cascade.candidates[settings.algorithm].algorithm

    def _build(
        self, of: BuiltAlgorithm | None, groups: Mapping[tuple[Any, ...], list[Param]]
    ) -> dict[tuple[Any, ...], torch.optim.Optimizer]:
        """Build an optimizer for each group that is new, or has new params, from these. Changes nothing."""
        known = set() if of is None else {group.key for group in of.groups}
        built = {}
        for key, params in groups.items():
            new = [param for param in params if of is None or param.group is None or param.group.owner is not of]
            if new or key not in known:
                settings = params[0].settings
                rate = settings.rate_at_next_step(self._default_rate())
                built[key] = build_optimizer(self._algorithm(settings), new or params, rate, fused=key[1])
        return built

    def _apply(self, derived: _Derived, built: Mapping[int, Mapping[tuple[Any, ...], torch.optim.Optimizer]]) -> None:
        entries = {i: {key: optimizer.param_groups[0] for key, optimizer in made.items()} for i, made in built.items()}
        for i, made in built.items():
            if i not in self._built:
                found, optimizer = self._cascade.candidates[i], next(iter(made.values()))
                self._built[i] = BuiltAlgorithm(
                    found.path, found.algorithm, optimizer, self._cascade.moving(i), self._default_rate, self._writer
                )
        taken: dict[int, dict[Group, list[Param]]] = {}
        for i, algorithm in self._built.items():
            known = {group.key: group for group in algorithm.groups}
            taken[i] = {}
            for key, params in derived.get(i, {}).items():
                if key in built[i]:
                    # Some classes, such as Adagrad, make a param's state only when they are built.
                    algorithm.states.add_initial(built[i][key])
                group = known.get(key)
                taken[i][group or self._new_group(key, params, entries[i][key], algorithm)] = params
        before = set(self.groups)
        self._name({group: params for groups in taken.values() for group, params in groups.items()}, before)
        for algorithm in self._built.values():
            for group in algorithm.groups:
                for param in group.params:
                    param.group = None
        for i, groups in taken.items():
            self._built[i].set_groups(groups)
        frozen = self.frozen_params
        for param in frozen:
            if param.has_master:
                param.put_on(param.in_model)
        self._next_thaw = min((param.settings.frozen_until for param in frozen), default=math.inf)
        self._frozen_grads.stop_only(frozen)

    def _new_group(
        self, key: tuple[Any, ...], params: list[Param], entry: dict[str, Any], algorithm: BuiltAlgorithm
    ) -> Group:
        """Make a group. If its first param is from another group of this algorithm, it inherits that group's values."""
        old, label = params[0].group, params[0].settings.label
        group = Group(key, params, entry, algorithm, self._default_rate, label, self._frozen_alike)
        if old is None or old.owner is not algorithm:
            return group
        # Of the same settings, including values written by other code.
        kept = old.entry if old.key[:2] == key[:2] else old.state
        entry.update(deepcopy({name: value for name, value in kept.items() if name not in ("params", "param_names")}))
        group.record.rate, group.record.applied_rate = old.record.rate, old.record.applied_rate
        return group

    @staticmethod
    def _name(groups: Mapping[Group, list[Param]], before: Set[Group]) -> None:
        """Give labels to new groups, and other ones to groups whose label is now that of another group.

        before (Set[Group]): The earlier groups.
        """
        labels = {group: {param.settings.label for param in params} for group, params in groups.items()}
        known = set().union(*labels.values())
        due = [group for group, own in labels.items() if group not in before or group.label in known - own]
        taken = {group.label for group in groups.keys() - due}
        for group in due:
            group.record.label = unique(groups[group][0].settings.label, taken)

    def _frozen_alike(self, group: Group) -> list[Param]:
        """Frozen params that would belong to a group."""
        settings, _, scale = group.key
        return [param for param in self.frozen_params if (param.settings.key, param.rate_scale) == (settings, scale)]

    def _settings_of(self, param: Param) -> ParamSettings:
        """The settings of a param in the config, with later changes."""
        settings = self._cascade.settings_of(param)
        return settings if param.frozen_until is None else replace(settings, frozen_until=param.frozen_until)

    def check(self, walked: Sequence[NamedModel]) -> None:
        """Check that every pattern matches a name.

        walked (Sequence[NamedModel]): From `walk_pipeline`.
        RAISES (ConfigError): A pattern matches none.
        """
        names = [found.name for model in walked for found in model.params]
        self._cascade.check(names, [path for model in walked for path, _ in model.shims])

    def see_names(self, names: Sequence[str], embeddings: Collection[str] = (), modules: Collection[str] = ()) -> bool:
        """Set the names of all params of the pipeline.

        embeddings (Collection[str]): The names of embeddings. modules (Collection[str]): The paths of torch modules.
        RETURNS (bool): Whether settings of params may have changed.
        """
        return self._cascade.see_names(names, embeddings, modules)

    def move(self, param: Param, new: torch.Tensor) -> None:
        """Replace a param's tensor by one of the same shape, perhaps on another device or in another memory order. The
        state moves too. Call `sync` afterwards.
        """
        if param.group is not None:
            param.group.owner.states.move(param, new)
        param.put_on(new)

    def restore_labels(self, labels: Mapping[Group, str]) -> None:
        """Give groups their saved labels, each to the first group that asks for it. Others get free ones.

        labels (Mapping[Group, str]): The saved labels.
        """
        free, taken = set(labels.values()), set(labels.values())
        for group in self.groups:
            if (label := labels.get(group)) in free:
                free.discard(label)
                group.record.label = label
            else:
                group.record.label = unique(group.label, taken)
            taken.add(group.label)
        self._writer.update_labels()

    def forget_lists(self) -> None:
        """Drop references to states that are replaced now."""
        for algorithm in self.algorithms:
            algorithm.forget_lists()

    # ------------------------------------------------------------------ changes during a training

    def move_to_step(self, step: int) -> None:
        """Begin to train params that were frozen up to a step.

        step (int): The next step.
        """
        self._step = step
        if step >= self._next_thaw:
            self.sync()

    def freeze(self, texts: Sequence[str], *, frozen: bool) -> list[Param]:
        """Freeze params, or train them again. They then start without state.

        texts (Sequence[str]): Patterns over names.
        RETURNS (list[Param]): The params that changed.
        RAISES (ConfigError): A param can't be trained. Nothing changes then.
        """
        change = FreezeChange(list(texts), math.inf if frozen else self._step)
        params = [param for param in self._params.values() if change.matches(param.names)]
        before = [(param.frozen_until, param.settings, param.group is None) for param in params]
        try:
            for param in params:
                change.apply_to(param)
            self.sync()
        except BaseException:
            for param, (until, settings, _) in zip(params, before):
                param.frozen_until, param.settings = until, settings
            raise
        self.freeze_changes = with_freeze_change(self.freeze_changes, change)
        changed = [param for param, (*_, was_frozen) in zip(params, before) if (param.group is None) != was_frozen]
        for param in changed:
            param.steps = 0
        return changed

    def freeze_by_settings(self, names: Collection[str]) -> list[Param]:
        """See `TorchOptimizer.freeze_by_settings`. RETURNS (list[Param]): Those with other settings than before."""
        differ = self._cascade.frozen.symmetric_difference(names)
        self._cascade.frozen = frozenset(names)
        found = [param for param in self._params.values() if not differ.isdisjoint(param.names)]
        self.sync(found)
        return found

    def change_rates(
        self, texts: Sequence[str], *, factor: float = 1.0, min_rate: float = 0.0, max_rate: float | None = None
    ) -> None:
        """Multiply the rates of params from the next step on, and of params that are added to their blocks later.

        texts (Sequence[str]): Names of groups or blocks, or patterns over these.
        factor (float): Above 0.
        min_rate (float): A factor below 1 does not lower the rate of the next step below this.
        max_rate (float | None): A factor above 1 does not raise it above this.
        RAISES (ConfigError): No such group, or an invalid factor or rate. Nothing changes then.
        """
        section = Section("the learn rate controller")
        section.number("factor", factor) or section.refuse("factor", "a number above 0", factor)
        section.number("min_rate", min_rate)
        if max_rate is not None:
            section.number("max_rate", max_rate)
        self.check_group_names(texts)
        scale = self._writer.scale or 1.0
        highest = None if max_rate is None else max_rate / scale
        self._change_rates(RateChange(tuple(texts), factor, min_rate / scale, max_rate=highest))

    def set_rates(self, texts: Sequence[str], rate: float) -> None:
        """Set the rates of params from the next step on, in place of settings and schedules.

        RAISES (ConfigError): No such group, or an invalid rate. Nothing changes then.
        """
        Section("the learn rate controller").number("rate", rate)
        self.check_group_names(texts)
        scale = self._writer.scale
        self._change_rates(RateChange(tuple(texts), rate=rate / scale if scale else rate))

    def _change_rates(self, change: RateChange) -> None:
        self._check_rates()
        self.rate_changes = with_rate_change(self.rate_changes, change)
        names = self._group_names()
        by_group: dict[Any, list[Param]] = {}
        for param in self._params.values():
            if change.matches(names[param]):
                by_group.setdefault(param.group or param, []).append(param)
        for params in by_group.values():
            change.apply_to(params, self._rate_to_come(params[0]))
        for group in self.groups:
            if len(by_group.get(group, ())) == len(group.params):
                group.note_scale()
        self.sync()

    def _rate_to_come(self, param: Param) -> float:
        """The rate of a param at the next step, without the scale of the run."""
        group: Group | None = param.group
        if group is not None:
            return group.record.rate_at(0)
        scale = param.rate_scale
        if scale.held is not None:
            return scale.held
        return scale.factor * param.settings.rate_at_next_step(self._default_rate(), param.steps)

    # ------------------------------------------------------------------ one step

    def choose(self, params: Sequence[Param]) -> Chosen:
        """The params of a step by algorithm and group."""
        by_group: dict[Group, list[Param]] = {}
        last, members = None, []
        for param in params:
            group = param.group
            if group is not None:
                if group is not last:
                    last, members = group, by_group.setdefault(group, [])
                members.append(param)
        found: Chosen = []
        for algorithm in self.algorithms:
            chosen: list[tuple[Group, Sequence[Param]]] = [
                entry for entry in by_group.items() if entry[0].owner is algorithm
            ]
            if chosen:
                found.append((algorithm, chosen))
        return found

    # ------------------------------------------------------------------ for inspection

    def learn_rates(self) -> dict[str, float]:
        """The rate of the last step by label, as in `ParamSettings`; 0 if all params of a label are frozen. Of several
        groups with one label and different rates, one has it, and the others their own.
        """
        by_label: dict[str, dict[tuple[Any, ...], Group]] = {}
        for group in self.groups:
            for label in group.labels:
                settings, _, scale = group.key
                by_label.setdefault(label, {}).setdefault((settings, scale), group)
        found = {param.settings.label: 0.0 for param in self.frozen_params}
        for label, groups in by_label.items():
            first, *others = sorted(groups.values(), key=lambda group: group.label != label)
            found |= {group.label: group.record.applied_rate for group in others} | {label: first.record.applied_rate}
        return dict(sorted(found.items(), key=lambda item: (item[0] != "default", item[0])))

    def rate_names(self) -> set[str]:
        """All names that `learn_rates` can have."""
        return {name for group in self.groups for name in (group.label, *group.labels)} | self.learn_rates().keys()

    def check_group_names(self, texts: Sequence[str]) -> None:
        """Check that each pattern matches a name of a group or block, including frozen ones.

        RAISES (ConfigError): One matches none; or not a list.
        """
        check_texts("change learning rates", texts, 'a list of names of param groups, or of patterns, as in ["*"]')
        names = set().union(*self._group_names().values())
        for text in texts:
            if not RateChange((text,)).matches(names):
                known = ", ".join(sorted(names)) or "none"
                raise ConfigError(
                    f"Can't change the learning rates of '{text}': it matches none of the param groups. There are: "
                    f"{known}."
                )

    def _group_names(self) -> dict[Param, set[str]]:
        """The names that select each param for changes of rates: its label, its blocks, and the label of its group if
        that is another.
        """
        names = {param: param.settings.names for param in self._params.values()}
        known = set().union(*names.values())
        for group in self.groups:
            if group.label not in known:
                names |= {param: names[param] | {group.label} for param in group.params}
        return names

    def describe(self, param: Param) -> ParamInfo:
        """Describe a param at the next step."""
        settings = param.settings
        return ParamInfo(
            param.name,
            tuple(param.shape),
            str(param.in_model.dtype).removeprefix("torch."),
            param.has_master,
            str(param.device),
            "shim"
            if param.callback is not None or param.is_of_shim
            else "torch"
            if isinstance(param.source, torch.Tensor)
            else "thinc",
            settings.label,
            0.0 if param.group is None else self._writer.rate_to_come(param.group.record),
            {name: current(value) for name, value in settings.options.items()},
            settings.frozen_until,
            param.steps,
            settings.blocks,
            self._cascade.candidates[settings.algorithm].algorithm.label,
        )
