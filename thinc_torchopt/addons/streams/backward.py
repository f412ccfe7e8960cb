"""The backward pass of a batch, in which a text teaches only the components whose annotations it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from spacy.language import Language
from spacy.training import Example

from ...core.kinds import kind_in


def backward(
    nlp: Language, examples: Sequence[Example], *, exclude: Sequence[str], **arguments: Any
) -> dict[str, float]:
    """Compute gradients, as `Language.update` does. But components to which a text without annotations is one in which
    there is nothing learn only from texts that have some.

    exclude (Sequence[str]): Components that are not trained. arguments: Others of `Language.update`.
    RETURNS (dict): The losses.
    """
    groups: dict[tuple[str, ...], list[Example]] = {}
    for example in examples:
        kinds = ((name, kind_in(nlp, name)) for name in nlp.pipe_names)
        without = (name for name, kind in kinds if kind.is_nothing_without and not kind.has(example.reference))
        groups.setdefault(tuple(without), []).append(example)
    losses: dict[str, float] = {}
    for left_out, group in groups.items():
        with _not_listening(nlp, left_out):
            nlp.update(group, exclude=[*exclude, *left_out], losses=losses, sgd=False, **arguments)  # type: ignore[arg-type]
    return losses


@contextmanager
def _not_listening(nlp: Language, components: Sequence[str]) -> Iterator[None]:
    """Inside, components don't listen to others.

    SOURCE: `update` in spacy/pipeline/tok2vec.py: the last listener starts the backward pass of the layers that all of
    them hear. If that one is not updated, these learn nothing. The same in spacy-transformers.
    """
    heard: list[Any] = [pipe for _, pipe in nlp.pipeline if hasattr(pipe, "listener_map")]
    kept = [pipe.listener_map for pipe in heard]
    for pipe in heard:
        pipe.listener_map = {name: found for name, found in pipe.listener_map.items() if name not in components}
    try:
        yield
    finally:
        for pipe, listeners in zip(heard, kept):
            pipe.listener_map = listeners
