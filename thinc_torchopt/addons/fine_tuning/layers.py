"""Freeze the lower layers of transformers: their embeddings, and the layers next to them.

They are frozen as by a param group with freeze = true: they have no gradient, no state of the optimizer and no average,
and a training pass keeps nothing of them.
"""

from __future__ import annotations

from collections.abc import Collection

from spacy.language import Language

from ...core.checks import Section
from ...core.params import walk_pipeline
from ...core.settings import layers_of
from .transformers import BLOCK, transformers_of


def names_to_freeze(nlp: Language, exclude: Collection[str], layers: int) -> list[str]:
    """The names of the params of frozen layers. The numbers of layers are those of [training.optimizer.layer_decay].

    exclude (Collection[str]): Components that are not trained. layers (int): How many of each transformer are frozen.
    RAISES (ConfigError): One has fewer.
    """
    shims = {id(found.shim): found.component for found in transformers_of(nlp, exclude)}
    found: list[str] = []
    for model in walk_pipeline(nlp):
        for path, shim in model.shims:
            name = shims.pop(id(shim), None)
            if name is None:
                continue
            params = [param for param in model.params if param.owner is shim]
            embeddings = {param.name for param in params if param.is_embedding}
            places = layers_of([param.name for param in params], embeddings, [path])
            depth = max((depth for _, depth in places.values()), default=0)
            if layers > depth:
                Section(BLOCK).refuse("freeze_layers", f"at most {depth}, the number of layers of '{name}'", layers)
            found += [name for name, (layer, _) in places.items() if layer < layers]
    return found
