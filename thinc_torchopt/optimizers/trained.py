"""Everything that an optimizer keeps about its params: their names, groups, learning rates, torch's state, averages.

It is one whole, because it is built anew as one: when a state is loaded, and in a copy of the optimizer, which has met
no params.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from spacy.language import Language

from ..averages import AveragedParams, Averages, AverageSettings
from ..errors import CheckpointWarning, GrowthWarning
from ..groups import Cascade, FrozenGrads, ParamGroups
from ..learn_rate import LearnRateController
from ..params import Param, ParamTable, Pattern
from ..state import by_name as state
from ..state import match as state_match
from ..types import OnGrowth, OnOutsideWrite


class TrainedParams:
    """The params of an optimizer. There are none at first.

    cascade (Cascade): What the settings say of each param.
    default_rate (Callable): The learning rate of params without one of their own.
    step (int): The step that comes.
    frozen_grads (FrozenGrads): The optimizer's.
    average_settings (AverageSettings | None): None: keep no averages.
    on_outside_write, on_growth, enable_runtime_guards, runtime_budgets: As in `create_optimizer`.

    Public: `table` (the params by key), `groups`, `controller` (of the learning rates), `averages` (or None).
    """

    def __init__(
        self,
        cascade: Cascade,
        default_rate: Callable[[], float],
        step: int,
        frozen_grads: FrozenGrads,
        *,
        average_settings: AverageSettings | None,
        on_outside_write: OnOutsideWrite,
        on_growth: OnGrowth,
        enable_runtime_guards: bool = True,
        runtime_budgets: Mapping[str, float] | None = None,
    ):
        self.controller = LearnRateController(
            on_outside_write=on_outside_write,
            enable_runtime_guards=enable_runtime_guards,
            runtime_budgets=runtime_budgets,
        )
        self.groups = ParamGroups(cascade, self.controller, default_rate, step, frozen_grads)
        self.averages = None if average_settings is None else Averages(average_settings)
        self.table = ParamTable(self.groups, self.averages, on_growth)

    @property
    def params(self) -> list[Param]:
        """All of them, frozen ones too."""
        return list(self.table.by_key.values())

    def averages_for_thinc(self) -> AveragedParams:
        """See `Averages.as_thinc`. If the algorithm has values of its own that are to be used instead of those that it
        trains, these.
        """
        self.table.follow()
        averages = self.averages
        if averages is None:
            averages = Averages.holding(
                found for algorithm in self.groups.algorithms for found in algorithm.in_eval_form()
            )
        return averages.as_thinc(self.table.shims.values())

    def freeze(self, patterns: Sequence[str], *, frozen: bool) -> None:
        """Train params no longer, or again. They begin anew then: moments and averages are forgotten.

        RAISES (ConfigError): A pattern matches no param. Nothing has changed then.
        """
        for param in self.groups.freeze(self.patterns(patterns), self.params, frozen=frozen):
            if self.averages is not None:
                self.averages.release(param)

    def patterns(self, texts: Sequence[str]) -> list[Pattern]:
        """Patterns over the names of params. RAISES (ConfigError): One matches no param."""
        found = [Pattern(text, "what is to be frozen") for text in texts]
        names = [name for param in self.params for name in param.names]
        for pattern in found:
            pattern.check(names)
        return found

    def drop_averages(self) -> None:
        """Forget the averages, and keep none from now on."""
        self.averages = self.table.averages = None

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """All of it by lasting names. Tensors are shared.

        RAISES (StateError): There are params without a lasting name.
        """
        self.table.pipeline.get()
        self.table.follow()
        self.table.check_names_last()
        return {
            "learn_rates": self.controller.state_dict(),
            "params": state.collect_params(self.params),
            "groups": state.collect_groups(self.groups),
            "algorithms": state.collect_algorithms(self.groups),
            "averages": None if self.averages is None else self.averages.state_dict(self.table.pipeline.shim_paths()),
            "grad_scalers": state.collect_scalers(self.table.pipeline.shim_paths()),
            "freeze_changes": self.groups.freeze_changes.state_dict(),
        }

    def load(
        self,
        nlp: Language,
        exclude: Collection[str],
        saved: Mapping[str, Any],
        on_growth: Literal["mean", "zero"] | None = None,
        paths: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Meet the params of a pipeline, and take their saved states. Gradient scalers are the models' own, and not
        among them.

        saved (Mapping): From `state_dict`. What fails leaves this one half loaded: throw it away.
        on_growth: As in `TorchOptimizer.load_state_dict`.
        paths (Mapping[str, str]): New names by old ones: see state_match.py.
        RAISES (StateError): The state is of other params, or damaged. (ConfigError): It is of other settings.
        """
        may_grow = on_growth is not None
        self.groups.freeze_changes.load_state_dict(saved["freeze_changes"])
        ids = state.group_ids(saved["groups"])
        if paths:
            saved = state_match.rename(saved, paths)
            ids = state.group_ids(saved["groups"])
        self.table.take_in(nlp, exclude, saved=saved["params"], joins_now=may_grow)
        if may_grow:
            saved, changes = state_match.fit(saved, self.params, [path for path, _ in self.table.pipeline.shim_paths()])
            if changes:
                text = f"The state was saved with another pipeline, or with other frozen params. {changes}."
                warnings.warn(GrowthWarning(text), stacklevel=4)
            self.groups.take_ids(state_match.match_groups(self.groups, saved["groups"]))
            here = self.controller.state_dict()["groups"]
            rates = saved["learn_rates"]["groups"]
            saved = {
                **saved,
                "learn_rates": {**saved["learn_rates"], "groups": {name: rates.get(name, here[name]) for name in here}},
            }
        else:
            self.groups.take_ids(ids)
        known = [param for param in self.params if not may_grow or param.name in saved["params"]]
        state.check_params(known, saved["params"], may_grow=may_grow)
        state.check_groups(self.groups, saved["groups"], may_grow=may_grow)
        state.check_param_states(known, saved["params"])
        state.restore_params(known, saved["params"], on_growth=on_growth or "mean")
        state.restore_groups(self.groups, saved["groups"])
        state.restore_algorithms(self.groups, saved["algorithms"])
        self.controller.load_state_dict(saved["learn_rates"], may_grow=may_grow or bool(paths))
        if self.averages is not None and saved["averages"] is not None:
            self.averages.load_state_dict(
                saved["averages"], self.params, self.table.pipeline.shim_paths(), may_grow=may_grow
            )
        elif (self.averages is None) != (saved["averages"] is None):
            done = "The saved averages are dropped" if self.averages is None else "The averages start again"
            warnings.warn(
                CheckpointWarning(f"The state was saved with other settings of averages. {done}."), stacklevel=3
            )

    def roll_back(self, saved: Mapping[str, Any]) -> None:
        """Take back the states and averages of all params, and gradient scalers. Learning rates and their history go on
        as they are.

        saved (Mapping): From `state_dict`, of this run.
        RAISES (StateError): Params have come or grown since. Nothing is changed then.
        """
        state.check_params(self.params, saved["params"])
        if self.averages is not None and saved["averages"] is not None:
            self.averages.load_state_dict(saved["averages"], self.params, self.table.pipeline.shim_paths())
        thawed_since = [
            param for param in self.params if param.group is not None and not saved["params"][param.name]["updates"]
        ]
        self.groups.drop(thawed_since)
        for param in thawed_since:
            param.steps = 0
        self.groups.add(thawed_since, names_are_lasting=True)
        # Those that are frozen now have no state, and have to count as never updated when they are unfrozen.
        goes_on = [param for param in self.params if param.group is not None and param not in thawed_since]
        state.restore_params(goes_on, saved["params"])
        state.restore_groups(self.groups, saved["groups"])
        state.restore_algorithms(self.groups, saved["algorithms"])
        state.restore_scalers(self.table.pipeline.shim_paths(), saved["grad_scalers"])
