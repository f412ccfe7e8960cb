"""Find the pretrained parts of a pipeline, for the recipes."""

from __future__ import annotations

from dataclasses import dataclass, field

from confection import Config
from spacy.language import Language

from ..params import all_names, components_with_model, escape, shim_paths


@dataclass
class Pretrained:
    """Patterns over the params of a pipeline.

    encoders (list[str]): Transformers.
    sourced (list[str]): Other pretrained components.
    vectors (list[str]): Layers that map static vectors, in new components.
    heads (list[str]): New components.
    """

    encoders: list[str] = field(default_factory=list)
    sourced: list[str] = field(default_factory=list)
    vectors: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)


def find_pretrained(nlp: Language, config: Config) -> Pretrained:
    """Find the pretrained parts of a pipeline.

    nlp (Language): The pipeline, not initialized. config (Config): Its config, interpolated.
    """
    frozen = config.get("training", {}).get("frozen_components", [])
    components = config.get("components", {})
    initialize, found = config.get("initialize", {}), Pretrained()
    pretrained = {name for name, block in components.items() if "source" in block}
    if initialize.get("init_tok2vec"):
        # spaCy loads it into the component that [pretraining] names.
        pretrained.add(config.get("pretraining", {}).get("component", "tok2vec"))
    trained = {escape(name): name for name in nlp.pipe_names if name not in frozen}
    for escaped, model in components_with_model(nlp):
        if escaped not in trained:
            continue
        paths = [path for path, shim in shim_paths(model, escaped) if type(shim).__name__ == "HFShim"]
        is_encoder = type(nlp.get_pipe(trained[escaped])).__name__ in ("Transformer", "CuratedTransformer")
        if is_encoder:
            found.encoders.append(f"{escaped}/*")
        elif trained[escaped] in pretrained:
            found.sourced.append(f"{escaped}/*")
        else:
            found.heads.append(f"{escaped}/*")
            found.encoders += [f"{path}/*" for path in paths]
    names = [name for name in all_names(nlp) if f"{name.split('/')[0]}/*" in found.heads and "/static_vectors/" in name]
    found.vectors = sorted({f"{name.split('/')[0]}/*static_vectors/*" for name in names})
    return found
