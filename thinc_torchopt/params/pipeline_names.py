"""The names of all params of the pipeline that an optimizer was told, and of the models beside it, by key."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator

import torch
from spacy.language import Language
from thinc.api import Model, Shim

from ..errors import PipelineError
from ..types import Key
from .names import NamedParam, shim_paths, walk
from .param import is_key_of_shim
from .pipeline import components_with_model
from .spelling import clean


class PipelineNames:
    """A pipeline, and names.

    Public: `names`: all names of each param by its key, its first one first.
    """

    def __init__(self) -> None:
        self.names: dict[Key, tuple[str, ...]] = {}
        self._nlp: Callable[[], Language | None] = lambda: None
        self._was_bound = False
        self._exclude: Collection[str] = ()
        self._biases_and_norms: set[Key] = set()
        # Whose the names under an `id` are: that of a param that is gone may be another's.
        self._torch_params: dict[int, Callable[[], torch.nn.Parameter | None]] = {}
        self._of_pipeline: set[Key] = set()
        self._names_in_use: set[str] = set()

    @property
    def is_bound(self) -> bool:
        """Whether it was told a pipeline."""
        return self._nlp() is not None

    def may_be_of(self, nlp: Language) -> bool:
        """Whether what it has may be a pipeline's: not if it was told another one before."""
        return not self._was_bound or self._nlp() is nlp

    def is_bound_to(self, nlp: Language) -> bool:
        """Whether this is the pipeline that it was told."""
        return self._nlp() is nlp

    def bound_to(self) -> tuple[Language, Collection[str]]:
        """The pipeline that it was told, and which components of it are not trained.

        RAISES (PipelineError): It was told none.
        """
        nlp = self._nlp()
        if nlp is None:
            raise PipelineError(
                "Can't save or load the state of the optimizer: expected an optimizer that knows its pipeline, found "
                "one without a pipeline, so params have no lasting names. Call optimizer.initialize(nlp) first."
            )
        return nlp, self._exclude

    def shim_paths(self) -> Iterator[tuple[str, Shim]]:
        """Every shim of the pipeline with its lasting path."""
        for name, model in self._components():
            yield from shim_paths(model, name)

    def lasts(self, key: Key, name: str, paths: Collection[str]) -> bool:
        """Whether a name is that of a param of the pipeline. paths (Collection[str]): Of its shims."""
        return key in self._of_pipeline or (is_key_of_shim(key) and name.removesuffix(f"/{clean(key[2])}") in paths)  # type: ignore[index]

    def _components(self) -> list[tuple[str, Model]]:
        nlp = self._nlp()
        return [] if nlp is None else components_with_model(nlp)

    def _walk_pipeline(self) -> list[NamedParam]:
        """All params of the pipeline, disabled components' too."""
        return [found for name, model in self._components() for found in walk(model, name)]

    def _outdated(self, now: Collection[Key], names_now: Collection[str]) -> list[tuple[Key, bool]]:
        """Keys that are no longer in the pipeline, and whether another one has the name now.

        now (Collection[Key]): The keys that are there. names_now (Collection[str]): The first name of each.
        """
        if any(is_key_of_shim(key) for key in self._of_pipeline):
            shims = {shim.id for _, shim in self.shim_paths()}
            now = {*now, *(key for key in self._of_pipeline if is_key_of_shim(key) and key[1] in shims)}  # type: ignore[index]
        return [
            (key, key in self._of_pipeline and name in names_now)
            for key, (name, *_) in self.names.items()
            if key not in now and (key in self._of_pipeline or name in names_now)
        ]

    def _note(self, walked: Iterable[NamedParam]) -> dict[Key, tuple[str, ...]]:
        """Note what a walk found. RETURNS (dict): The names of each param by its key, its first one first."""
        names: dict[Key, tuple[str, ...]] = {}
        for found in walked:
            names[found.key] = *names.get(found.key, ()), found.name
            (self._biases_and_norms.add if found.is_bias_or_norm else self._biases_and_norms.discard)(found.key)
            if found.param is not None:
                self._note_torch_param(found.param)
        return names

    def _note_torch_param(self, param: torch.nn.Parameter) -> None:
        self._torch_params[id(param)] = weakref.ref(param)

    def _has_noted(self, param: torch.nn.Parameter) -> bool:
        """Whether the names under the `id` of a param are its own."""
        noted = self._torch_params.get(id(param))
        return noted is not None and noted() is param

    def _prefix_of(self, model: Model) -> str:
        """What the names of a model's params begin with: its component's name, or the name of its root layer."""
        for name, found in self._components():
            if found is model:
                return name
        prefix = clean(model.name)
        own = {found.key for found in walk(model, prefix)}
        shims = {shim.id for node in model.walk() for shim in node.shims}
        taken = any(
            name.startswith(f"{prefix}/") and key not in own and not (is_key_of_shim(key) and key[1] in shims)  # type: ignore[index]
            for key, (name, *_) in self.names.items()
        )
        return f"{prefix}-{model.id}" if taken else prefix
