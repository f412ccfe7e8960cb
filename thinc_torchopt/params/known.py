"""The params that are known, by key, and what they leave behind when they are gone."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from thinc.api import Model, Shim

from ..errors import StateError
from ..types import Key, OnGrowth
from .param import Param
from .pipeline_names import PipelineNames
from .succession import BufferKeeper, Keeper, Released


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
    shims: weakref.WeakValueDictionary[int, Shim]
    averages: BufferKeeper | None
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

    def _leave(self, param: Param, shape: tuple[int, ...]) -> None:
        """Forget a param, and keep what is known of it for the next one of its name.

        shape (tuple[int, ...]): Of that one.
        """
        if self._on_growth == "reset" and param.shape != shape:
            self._forget([param.key])
            return
        average = None if self.averages is None else self.averages.release(param)
        state = self._groups.release(param)
        self._released[param.name] = Released(
            tuple(param.shape), param.dtype, param.steps, param.joined_at, state, average
        )
        self._forget([param.key])

    def _be_held_by(self, param: Param, holder: Model | Shim) -> None:
        """Note where a param was found, which may be another shim around its module."""
        old = param.holder
        param.be_held_by(holder)
        if isinstance(holder, Shim):
            self._meet_shim(holder)
            if isinstance(old, Shim) and old is not holder and self.averages is not None:
                self.averages.pass_on_buffers(old, holder, all_of_them=True)

    def _meet_shim(self, shim: Shim) -> None:
        if self.shims.get(shim.id, shim) is not shim:
            # A copied layer: thinc copies the id as well, and averages go by it.
            with Shim.global_id_lock:
                Shim.global_id += 1
                shim.id = Shim.global_id
        self.shims[shim.id] = shim

    def _inherit(self, param: Param, old: Released) -> None:
        """RAISES (StateError): Something does not fit; that begins anew."""
        if old.state is not None:
            self._groups.inherit(param, old.state, old, self._on_growth)
        param.steps = old.steps
        if self.averages is not None and old.average is not None:
            self.averages.inherit(param, old.average, old, self._on_growth)
