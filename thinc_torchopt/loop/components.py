"""Facts about the components of a pipeline."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from typing import Any

from spacy.language import Language
from thinc.api import Model

from ..core.config_checks import sections_of
from ..core.errors import ConfigError, PipelineWarning


def is_trained(proc: Any) -> bool:
    """Whether spaCy's loop calls a component's `finish_update`."""
    return getattr(proc, "is_trainable", False) and proc.model not in (True, False, None)


def may_read_tensors(nlp: Language) -> bool:
    """Whether texts may come with `doc.tensor`, the output of a tok2vec: a reader of the user's may set it. spaCy's
    readers, and ours, don't.
    """
    readers = [section.block.get("@readers") for section in sections_of({"corpora": nlp.config.get("corpora", {})})]
    return any(reader is not None and not str(reader).startswith(("spacy.", "thinc-torchopt.")) for reader in readers)


def check_listeners(
    nlp: Language, frozen: Collection[str], annotating: Collection[str], *, have_tensors: bool = False
) -> None:
    """Check that each trained component that listens to a tok2vec or transformer gets its output in a step: by its
    update, or because it annotates the texts, or with the texts.

    frozen, annotating (Collection[str]): The components that [training] names.
    have_tensors (bool): Texts have `doc.tensor`, or may have it.
    RAISES (ConfigError): One does not. spaCy's loop would stop with its error E203.
    SOURCE: `forward` in spacy/pipeline/tok2vec.py; the same in spacy_transformers/layers/listener.py.
    """
    if have_tensors:
        return
    fed: list[Any] = []
    for name, proc in nlp.pipeline:
        model = getattr(proc, "model", None)
        if name not in frozen and is_trained(proc) and isinstance(model, Model):
            for node in model.walk():
                if hasattr(node, "upstream_name") and node not in fed:
                    raise ConfigError(f"Can't train '{name}': {_why_unfed(nlp, name, node.upstream_name, frozen)}")
        if name not in frozen:
            fed += getattr(proc, "listeners", ())
        # A component of the user's may set the same as they do.
        if name in annotating and (hasattr(proc, "listeners") or not type(proc).__module__.startswith("spacy.")):
            return


def _why_unfed(nlp: Language, name: str, upstream: str, frozen: Collection[str]) -> str:
    """Why a listener gets no output, and what to do. upstream (str): The component that it names; "*": any."""
    heard = [one for one, proc in nlp.pipeline if hasattr(proc, "listeners") and upstream in ("*", one)]
    before = [one for one in heard if one in nlp.pipe_names[: nlp.pipe_names.index(name)]]
    if not heard:
        what = "a tok2vec or transformer" if upstream == "*" else f"'{upstream}'"
        return f"it listens to {what}, and 'pipeline' in [nlp] has none. Add it before '{name}'."
    if not before:
        return f"it listens to '{heard[0]}', which comes after it. Put that before '{name}' in 'pipeline' of [nlp]."
    if before[-1] in frozen:
        return (
            f"it listens to '{before[-1]}', which is frozen and does not annotate. Add '{before[-1]}' to "
            "annotating_components in [training], or remove it from frozen_components."
        )
    return (
        f"it listens to '{before[-1]}', and spaCy does not connect a new component with one that has a 'source'. Give "
        "both of them one, or neither."
    )


def stopped_gradients(nlp: Language, names: Collection[str], frozen: Collection[str]) -> Iterator[str]:
    """Find a tok2vec or transformer that learns nothing, in words: the last component that listens to it is frozen, and
    spaCy sends it the gradients of all others through that one.

    names (Collection[str]): Components that are trained.
    SOURCE: spacy/pipeline/tok2vec.py, `Tok2Vec.update`.
    """
    for name in names:
        heard = getattr(nlp.get_pipe(name), "listening_components", ())
        if heard and (last := heard[-1]) in frozen:
            yield (
                f"'{name}' learns nothing: spaCy sends it gradients through the last component that listens to it, "
                f"'{last}', which is frozen. Let '{last}' keep a '{name}' of its own, by replace_listeners; or add "
                f"'{name}' to [training] frozen_components."
            )


def sums_of_gradients(nlp: Language) -> list[str]:
    """The components whose "loss" is not a loss: for a tok2vec or transformer with listeners, spaCy reports the sum of
    the squared gradients.
    """
    return [name for name, proc in nlp.pipeline if getattr(proc, "listening_components", None)]


def warn_of_nothing_to_train(nlp: Language, exclude: list[str]) -> None:
    """Warn if no component is trained. The run continues, as in spaCy."""
    if not any(is_trained(proc) for name, proc in nlp.pipeline if name not in exclude):
        warnings.warn(
            PipelineWarning(
                f"Nothing to train in the pipeline {nlp.pipe_names}: no trainable component, or all are frozen "
                f"({exclude}). If that is not intended, remove one from [training] frozen_components."
            ),
            stacklevel=4,
        )
