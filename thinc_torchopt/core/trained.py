"""Everything that an optimizer keeps about its params: their names, groups, learning rates, torch's state, averages.

They are built again together: when a state is loaded, and in a copy of the optimizer, which has no params yet.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from spacy.language import Language

from .averages import AveragedParams, Averages, AverageSettings, is_in_place
from .checks import check_texts
from .errors import CheckpointWarning, GrowthWarning
from .param_table import ParamTable
from .params import NamedModel, Param, Pattern
from .rates import RateWriter
from .schema import write
from .settings import Cascade
from .state import SavedState, by_name, saved_state
from .types import Key, OnGrowth, OnOutsideWrite
from .update import FrozenGrads, GroupPlan


class TrainedParams:
    """The params of an optimizer; none at first.

    cascade (Cascade): The settings of each param.
    default_rate (Callable): The learning rate of params without one of their own.
    step (int): The next step.
    frozen_grads (FrozenGrads): The optimizer's.
    average_settings (AverageSettings | None): None: keep no averages.
    on_outside_write, on_growth, master_weights, enable_runtime_guards: As in `create_optimizer`.

    Public: `table` (the params by key), `plan` (which torch optimizer and group updates which param), `writer` (of the
    learning rates), `averages` (or None).
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
        master_weights: bool,
        enable_runtime_guards: bool,
    ):
        self.writer = RateWriter(
            on_outside_write=on_outside_write,
            enable_runtime_guards=enable_runtime_guards,
        )
        params: dict[Key, Param] = {}
        self.plan = GroupPlan(params, cascade, self.writer, default_rate, step, frozen_grads)
        self.averages = None if average_settings is None else Averages(average_settings)
        self.table = ParamTable(params, self.plan, self.averages, on_growth, master_weights=master_weights)

    @property
    def params(self) -> list[Param]:
        """All params, frozen ones too."""
        return list(self.table.by_key.values())

    def averages_for_thinc(self) -> AveragedParams:
        """See `Averages.as_thinc`. If the algorithm evaluates other values than it trains, these; without the torch
        params that have them now, inside of `use_params`: from these they can't be computed.
        """
        self.table.follow()
        averages = self.averages
        if averages is None:
            found = [found for algorithm in self.plan.algorithms for found in algorithm.in_eval_form()]
            averages = Averages.holding((param, value) for param, value in found if not is_in_place(param.tensor))
        return averages.as_thinc(self.table.shims.values())

    def freeze(self, patterns: Sequence[str], *, frozen: bool) -> None:
        """Freeze params, or train them again. Their moments and averages are dropped when they are frozen.

        RAISES (ConfigError): A pattern matches no param. Nothing changes then.
        """
        self.check_patterns(patterns)
        self._forget_averages(self.plan.freeze(patterns, frozen=frozen))

    def freeze_by_settings(self, names: Collection[str]) -> None:
        """See `TorchOptimizer.freeze_by_settings`."""
        self._forget_averages([param for param in self.plan.freeze_by_settings(names) if param.group is None])

    def _forget_averages(self, params: Sequence[Param]) -> None:
        """Forget the averages of params whose training stops or begins."""
        if self.averages is not None:
            trained = {param.key for param in self.params if param.group is not None and not param.is_stopped}
            self.averages.forget({param.key for param in params}, trained)

    def check_patterns(self, texts: Sequence[str]) -> None:
        """RAISES (ConfigError): Not a list of patterns, or a pattern matches no param."""
        self.table.follow()  # components may have other names by now, and layers new labels
        check_texts("freeze or unfreeze params", texts, 'a list of patterns over their names, as in ["tagger/*"]')
        names = [name for param in self.params for name in param.names]
        for text in texts:
            Pattern(text, "the params to freeze").check(names)

    def drop_averages(self) -> None:
        """Drop the averages for good."""
        self.averages = self.table.averages = None

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """The whole state by lasting names. Tensors are shared.

        RAISES (StateError): A param has no lasting name.
        """
        self.table.pipeline.get()
        walked = self.table.follow()
        self.table.check_names_last(walked)
        shims = [found for model in walked for found in model.shims]
        return {
            "learn_rates": self.writer.state_dict(),
            **by_name.collect(self.plan, self.params, shims),
            "grads": by_name.collect_grads(walked),
            "averages": None if self.averages is None else self.averages.state_dict(shims),
            "freeze_changes": [write(change) for change in self.plan.freeze_changes],
            "rate_changes": [write(change) for change in self.plan.rate_changes],
        }

    def load(
        self,
        nlp: Language,
        exclude: Collection[str],
        saved: SavedState,
        on_growth: Literal["mean", "zero"] | None = None,
        paths: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[SavedState, list[NamedModel]]:
        """Add the params of a pipeline, and load their saved states. Gradients and their scalers are the models' own:
        they are checked, and not loaded here.

        saved (SavedState): An error leaves this object half loaded: throw it away. on_growth: As in
        `TorchOptimizer.load_state_dict`.
        paths (Mapping[str, str]): New names by old ones: see core/state/saved_state.py.
        RETURNS (tuple): The part of the state that belongs to this pipeline, with its names; and the pipeline's params
            and shims, see `walk_pipeline`.
        RAISES (StateError): The state is of other params, or damaged. (ConfigError): It is of other settings.
        """
        may_grow = on_growth is not None
        self.plan.freeze_changes = saved.freeze_changes
        self.plan.rate_changes = saved.rate_changes
        if paths:
            saved = saved_state.rename(saved, paths)
        walked = self.table.add_all(nlp, exclude, saved=saved.params, joins_now=may_grow)
        shims = [found for model in walked for found in model.shims]
        if may_grow:
            saved, changes = saved_state.fit(saved, self.params, [path for path, _ in shims])
            if changes:
                text = f"The state was saved with another pipeline, or with other frozen params. {changes}."
                warnings.warn(GrowthWarning(text), stacklevel=4)
            for param in self.params:
                if param.group is None:  # frozen now: it will start without state
                    param.steps = 0
        known = [param for param in self.params if not may_grow or param.name in saved.params]
        by_name.restore(self.plan, known, saved, on_growth)
        self.writer.load(saved.learn_rates)
        self.writer.write_last_rates()
        if self.averages is not None and saved.averages is not None:
            self.averages.load_state_dict(saved.averages, self.params, shims, may_grow=may_grow)
            for param in self.params:
                if not param.steps:  # its state could not grow
                    self.averages.release(param)
        elif (self.averages is None) != (saved.averages is None):
            done = "The saved averages are dropped" if self.averages is None else "The averages start again"
            warnings.warn(
                CheckpointWarning(f"The state was saved with other settings of averages. {done}."), stacklevel=3
            )
        by_name.check_grads(walked, saved.grads)
        return saved, walked

    def roll_back(self, saved: SavedState) -> None:
        """Restore the states and averages of all params, and gradient scalers. Learning rates and their history go on,
        and so do averages that were begun since.

        saved (SavedState): Of this run. Params may have grown since.
        RAISES (StateError): Params were added since. Nothing changes then.
        """
        by_name.check_params(self.params, saved.params, may_grow=True)
        on_growth, shims, rows = self.table.on_growth, self.table.pipeline.shim_paths(), saved.params
        anew = {
            param
            for param in self.params
            if not rows[param.name].updates or (on_growth == "reset" and rows[param.name].shape != list(param.shape))
        }
        if self.averages is not None and saved.averages is not None:
            had_begun = self.averages.has_begun
            self.averages.load_state_dict(saved.averages, self.params, shims, may_grow=True)
            for param in anew:
                self.averages.release(param)
            if had_begun:
                self.averages.begin()
        # Params that are frozen now have no state, and count as never updated.
        trained = [param for param in self.params if param.group is not None]
        for param in trained:
            param.steps = 0 if param in anew else rows[param.name].updates
            if param in anew:
                param.group.owner.begin_anew(param)
        self.plan.forget_lists()
        goes_on = [param for param in trained if param not in anew]
        by_name.roll_back(self.plan, goes_on, saved, "zero" if on_growth == "zero" else "mean")
        by_name.restore_scalers(shims, saved.grad_scalers)
