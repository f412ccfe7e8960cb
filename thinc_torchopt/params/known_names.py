"""The names of all params of a pipeline, and of the models beside it, by key."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from thinc.api import Model

from ..types import Key
from .names import NamedParam, walk
from .param import is_key_of_shim
from .pipeline import KnownPipeline
from .spelling import clean


class KnownNames:
    """Names by key.

    pipeline (KnownPipeline): The pipeline whose params have lasting names.

    Public: `by_key` (all names of each param by its key, the first one first), `in_use` (the first names of all params
        of the pipeline).
    """

    def __init__(self, pipeline: KnownPipeline):
        self.by_key: dict[Key, tuple[str, ...]] = {}
        self.in_use: set[str] = set()
        self._pipeline = pipeline
        self._biases_and_norms: set[Key] = set()
        # The owners of the names under an `id`: after a param is gone, another may get its `id`.
        self._torch_params: dict[int, Callable[[], torch.nn.Parameter | None]] = {}
        self._of_pipeline: set[Key] = set()

    def is_bias_or_norm(self, key: Key) -> bool:
        """Whether a param is a bias, or belongs to a normalization layer."""
        return key in self._biases_and_norms

    def is_of_pipeline(self, key: Key) -> bool:
        """Whether a param was in the pipeline when `update` was called last."""
        return key in self._of_pipeline

    def update(self, names: Mapping[Key, tuple[str, ...]]) -> None:
        """Set the names of all params of the pipeline. Names of removed params are dropped, except those of shims."""
        self.by_key.update(names)
        self._of_pipeline = {*names, *(key for key in self._of_pipeline if is_key_of_shim(key) and key in self.by_key)}
        self.in_use = {first for first, *_ in names.values()}

    def add(self, key: Key, name: str, *, is_of_pipeline: bool) -> None:
        """Add the name of a param that a shim keeps elsewhere."""
        self.by_key[key] = (name,)
        if is_of_pipeline:
            self._of_pipeline.add(key)

    def lasts(self, key: Key, name: str, paths: Collection[str]) -> bool:
        """Whether a param of the pipeline has this name. paths (Collection[str]): Of the pipeline's shims."""
        return key in self._of_pipeline or (is_key_of_shim(key) and name.removesuffix(f"/{clean(key[2])}") in paths)  # type: ignore[index]

    def outdated(self, now: Collection[Key], names_now: Collection[str]) -> list[tuple[Key, bool]]:
        """Keys that are no longer in the pipeline, and whether another param has the name now.

        now (Collection[Key]): The current keys. names_now (Collection[str]): The first name of each.
        """
        if any(is_key_of_shim(key) for key in self._of_pipeline):
            shims = {shim.id for _, shim in self._pipeline.shim_paths()}
            now = {*now, *(key for key in self._of_pipeline if is_key_of_shim(key) and key[1] in shims)}  # type: ignore[index]
        return [
            (key, key in self._of_pipeline and name in names_now)
            for key, (name, *_) in self.by_key.items()
            if key not in now and (key in self._of_pipeline or name in names_now)
        ]

    def note(self, walked: Iterable[NamedParam]) -> dict[Key, tuple[str, ...]]:
        """Add the params of a walk. RETURNS (dict): The names of each param by its key, the first one first."""
        names: dict[Key, tuple[str, ...]] = {}
        for found in walked:
            names[found.key] = *names.get(found.key, ()), found.name
            (self._biases_and_norms.add if found.is_bias_or_norm else self._biases_and_norms.discard)(found.key)
            if found.param is not None:
                self.note_torch_param(found.param)
        return names

    def note_torch_param(self, param: torch.nn.Parameter) -> None:
        self._torch_params[id(param)] = weakref.ref(param)

    def has_noted(self, param: torch.nn.Parameter) -> bool:
        """Whether the names under the `id` of a param belong to it."""
        noted = self._torch_params.get(id(param))
        return noted is not None and noted() is param

    def prefix_of(self, model: Model) -> str:
        """The common prefix of the names of a model's params: its component's name, or the name of its root layer."""
        for name, found in self._pipeline.components:
            if found is model:
                return name
        prefix = clean(model.name)
        own = {found.key for found in walk(model, prefix)}
        shims = {shim.id for node in model.walk() for shim in node.shims}
        taken = any(
            name.startswith(f"{prefix}/") and key not in own and not (is_key_of_shim(key) and key[1] in shims)  # type: ignore[index]
            for key, (name, *_) in self.by_key.items()
        )
        return f"{prefix}-{model.id}" if taken else prefix
