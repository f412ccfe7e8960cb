"""The params that are known, by key, and what they leave behind when they are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from ..errors import StateError
from ..types import Key, OnGrowth
from .param import Param
from .pipeline_names import PipelineNames
from .succession import Keeper, Released


class Groups(Keeper, Protocol):
    """The param groups, as far as this table knows them: see groups/."""

    def add(self, params: Iterable[Param], *, names_are_lasting: bool) -> None: ...
    def changing(self) -> AbstractContextManager[None]: ...
    def drop(self, params: Iterable[Param]) -> None: ...
    def replace(self, param: Param, new: torch.Tensor) -> None: ...
    def rename(self, params: Iterable[Param]) -> None: ...
    def see_names(self, names: Sequence[str], embeddings: Collection[str] = ()) -> None: ...


class KnownParams(PipelineNames):
    """Params by key, with what one that is gone has released to the next one of its name."""

    by_key: dict[Key, Param]
    averages: Keeper | None
    _groups: Groups
    _on_growth: OnGrowth
    _released: dict[str, Released]

    def check_names_last(self) -> None:
        """RAISES (StateError): There are params that are not in the pipeline, and so have no lasting names."""
        paths = {path for path, _ in self.shim_paths()}
        outside = [param.name for key, param in self.by_key.items() if not self.lasts(key, param.name, paths)]
        if outside:
            raise StateError(
                f"Can't save the state of param '{outside[0]}': expected params of the models of components, found "
                f"{len(outside)} of a model outside the pipeline, or of a second model of a component. Their state "
                "could not be matched when it is loaded. Make the model part of a component's model, or train it with "
                "an optimizer of its own."
            )

    def _forget(self, keys: Iterable[Key], *, keep_names: bool = True) -> None:
        """Drop params, their states and their averages."""
        gone = []
        for key in keys:
            if not keep_names:
                self.names.pop(key, None)
            if (param := self.by_key.pop(key, None)) is not None:
                gone.append(param)
                if self.averages is not None:
                    self.averages.release(param)
        if gone:
            self._groups.drop(gone)

    def _release(self, param: Param) -> None:
        """Forget a param, and keep what is known of it for the next one of its name."""
        if self._on_growth != "reset":
            average = None if self.averages is None else self.averages.release(param)
            state = self._groups.release(param)
            self._released[param.name] = Released(
                tuple(param.shape), param.dtype, param.steps, param.joined_at, state, average
            )
        self._forget([param.key])

    def _inherit(self, param: Param, old: Released) -> None:
        """RAISES (StateError): Something does not fit; that begins anew."""
        if old.state is not None:
            self._groups.inherit(param, old.state, old, self._on_growth)
        param.steps = old.steps
        if self.averages is not None and old.average is not None:
            self.averages.inherit(param, old.average, old, self._on_growth)
