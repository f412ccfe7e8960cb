"""The transformers of a pipeline: those of spacy-transformers and of spacy-curated-transformers.

    spacy-transformers            TransformerModel, with the HFWrapper and its shim
    spacy-curated-transformers    "transformer_model", with the piece encoder, the windows, and torch's encoder

Either may be a component of its own, to which others listen, or a part of one (spaCy's `replace_listeners`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spacy.language import Language
from thinc.model import Model
from thinc.shims import PyTorchShim

from ...core.errors import ConfigError
from ...core.host import module_of

if TYPE_CHECKING:
    import torch
from ...core.checks import Section

BLOCK = "[training.optimizer.fine_tuning]"
# Hugging Face's tokenizers have a huge number where they know no limit.
ANY = 10**9


@dataclass(frozen=True)
class Transformer:
    """A transformer of a pipeline.

    component (str): The name of the component that has it.
    node (Model): The layer that reads docs. Of spacy-transformers, it has "get_spans" in its attrs; of
        spacy-curated-transformers, its layers have "window" and "stride".
    layer (Model): The layer with torch's module.
    is_curated (bool): Whether it is one of spacy-curated-transformers.
    """

    component: str
    node: Model
    layer: Model
    is_curated: bool

    @property
    def shim(self) -> PyTorchShim:
        return self.layer.shims[0]  # type: ignore[return-value]

    @property
    def module(self) -> torch.nn.Module:
        """torch's module, that of Hugging Face or of curated-transformers. Read it again after loading a state: it may
        be another.
        """
        module: torch.nn.Module = module_of(self.shim)
        return module.curated_encoder if self.is_curated else module  # type: ignore[return-value]

    @property
    def tokenizer(self) -> Any:
        """Hugging Face's tokenizer. Of spacy-curated-transformers: the piece encoder, a layer."""
        # SOURCE: spacy_curated_transformers/models/architectures.py, `build_transformer_model_v1`.
        return self.node.layers[0].layers[0].layers[0] if self.is_curated else self.node.tokenizer  # type: ignore[attr-defined]

    @property
    def longest_input(self) -> int | None:
        """The most wordpieces that the model can read at once, with those that it puts around a text. None: any number,
        as its positions are relative.
        """
        limits = [] if self.is_curated else [int(self.tokenizer.model_max_length)]
        # RoBERTa counts positions from behind the one of padding. Of curated transformers, the layer around knows it.
        around = None
        for name, module in self.module.named_modules():
            if type(module).__name__.lower() == "robertaembeddings":
                around = getattr(module, "padding_idx", getattr(module, "padding_id", around))
            if name.rpartition(".")[2] in ("position_embeddings", "position") and hasattr(module, "num_embeddings"):
                padding = around if module.padding_idx is None else module.padding_idx
                limits.append(module.num_embeddings - (0 if padding is None else padding + 1))
        least = min(limits, default=ANY)
        return least if least < ANY else None

    @property
    def spans(self) -> Model | None:
        """Of spacy-curated-transformers: the layer that cuts pieces into windows. None: there is none."""
        found = [one for one in self.node.walk() if {"window", "stride", "batch_size"} <= one.attrs.keys()]
        return found[0] if found else None


def transformers_of(nlp: Language, exclude: Collection[str] = ()) -> list[Transformer]:
    """All transformers of a pipeline, in the order of its components.

    nlp (Language): The pipeline, initialized. exclude (Collection[str]): Components to leave out: those not trained.
    """
    found: list[Transformer] = []
    seen: set[int] = set()
    for component, proc in nlp.pipeline:
        model = None if component in exclude else getattr(proc, "model", None)
        for node in model.walk() if isinstance(model, Model) else ():
            if node.id in seen:
                continue
            if "get_spans" in node.attrs and "set_transformer" in node.attrs:
                found.append(Transformer(component, node, node.layers[0], False))
            elif node.name == "transformer_model":
                # Not by its refs, which a copy of it lacks.
                layer = next(one for one in node.walk() if one.shims)
                found.append(Transformer(component, node, layer, True))
            else:
                continue
            seen |= {one.id for one in node.walk()}
    return found


def check_transformers(nlp: Language) -> list[Transformer]:
    """All transformers of a pipeline. RAISES (ConfigError): It has none."""
    found = transformers_of(nlp)
    if not found:
        raise ConfigError(
            f"Can't use {BLOCK}: expected a component with a transformer, of spacy-transformers or "
            f"spacy-curated-transformers, found {', '.join(nlp.pipe_names) or 'no component'}. Remove the block."
        )
    return found


def trained_transformers(nlp: Language, exclude: Collection[str]) -> list[Transformer]:
    """Those that are trained. RAISES (ConfigError): There is none."""
    every, trained = check_transformers(nlp), transformers_of(nlp, exclude)
    if not trained:
        names = " and ".join(f"'{found.component}'" for found in every)
        raise ConfigError(
            f"Can't use {BLOCK}: expected a transformer that is trained, found {names} in frozen_components of "
            "[training]. Train it, or remove the block."
        )
    return trained


def names_to_freeze(nlp: Language, exclude: Collection[str], layers: int) -> list[str]:
    """The names of the params of frozen layers. The numbers of layers are those of [training.optimizer.layer_decay].

    exclude (Collection[str]): Components that are not trained. layers (int): How many of each transformer are frozen.
    RAISES (ConfigError): One has fewer.
    """
    # When a run begins, and not when a registry lists what is in this room.
    from ...core.params import walk_pipeline
    from ...core.settings import layers_of

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
