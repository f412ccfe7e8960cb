"""Updates of spaCy's parsers and NER that keep what texts teach over the epochs.

A gold state has a text's annotation, aligned with its tokens. Texts are cut to a length that is drawn for each update:
at the states that the annotation's own transitions arrive at, which an oracle finds. Both depend on the text, its
annotation and the labels alone. Of a tagger, parser and NER on one transformer, they took a quarter of the updates.

Gradients, losses and draws are the same to the bit.

SOURCE: spacy/pipeline/transition_parser.pyx (3.8), `Parser.update` and `Parser._init_gold_batch`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy
from spacy.pipeline import DependencyParser, EntityRecognizer
from thinc.api import set_dropout_rate

from .host import add_labels_of, has_multitasks
from .truths import KeptExample


class _Truth:
    """The lesson of a text. gold: The gold state. None: there is no annotation."""

    def __init__(self, moves: Any, example: KeptExample):
        [state] = moves.init_batch([example.x])
        self.gold = moves.init_gold(state, example) if moves.has_gold(example) and not state.is_final() else None
        self._transitions: Any = None

    def transitions(self, moves: Any, state: Any) -> Any:
        """The oracle's ids. state: The first one of the text."""
        if self._transitions is None:
            found = moves.get_oracle_sequence_from_state(state.copy(), self.gold)
            self._transitions = numpy.array(found, dtype="i")
        return self._transitions


def update_of_parser(pipe: Any) -> Callable[..., Any] | None:
    """A parser's or NER's update with kept examples. None: the component is another, or learns in another way."""
    if type(pipe) not in (DependencyParser, EntityRecognizer):
        return None
    cuts = pipe.cfg["update_with_oracle_cut_size"] >= 1 and pipe.cfg["beam_width"] == 1
    return partial(_update, pipe) if cuts and not has_multitasks(pipe) and pipe.moves.neg_key is None else None


def _update(
    pipe: Any, examples: Sequence[KeptExample], *, drop: float, sgd: None, losses: dict[str, float]
) -> dict[str, float]:
    losses.setdefault(pipe.name, 0.0)
    key = pipe.name, tuple(pipe.labels)
    truths = [example.answer(key, partial(_read, pipe, example)) for example in examples]
    if all(truth.gold is None for truth in truths):
        return losses
    set_dropout_rate(pipe.model, drop)
    size = pipe.cfg["update_with_oracle_cut_size"]
    length = int(random.uniform(size // 2, size * 2))
    pairs = list(_cut(pipe, examples, truths, length))
    if not pairs:
        return losses
    model, backprop = pipe.model.begin_update([example.x for example in examples])
    for _ in range(length + 1):
        states, golds = zip(*pairs)
        scores, backprop_scores = model.begin_update(states)
        backprop_scores(pipe.get_batch_loss(states, golds, scores, losses))
        pipe.transition_states(states, scores)
        pairs = [pair for pair in pairs if not pair[0].is_final()]
        if not pairs:
            break
    backprop(golds)
    model.clear_memory()
    return losses


def _read(pipe: Any, example: KeptExample) -> _Truth:
    add_labels_of(pipe, [example.x, example.y])
    return _Truth(pipe.moves, example)


def _cut(
    pipe: Any, examples: Sequence[KeptExample], truths: Sequence[_Truth], length: int
) -> Iterator[tuple[Any, Any]]:
    """YIELDS: The first states of texts, and of parts of those that are not shorter than `length`, with gold states."""
    moves, to_cut = pipe.moves, []
    for state, example, truth in zip(moves.init_batch([one.x for one in examples]), examples, truths):
        if truth.gold is not None and len(example.x) < length:
            yield state, truth.gold
        elif truth.gold is not None:
            to_cut.append((state, example, truth.gold, truth.transitions(moves, state)))
    one_hot = numpy.eye(moves.n_moves, dtype="f")
    for state, example, gold, transitions in to_cut:
        for i in range(0, len(transitions), length):
            first, scores = state.copy(), one_hot[transitions[i : i + length]]
            pipe.transition_states([state] * len(scores), scores)  # one after another
            if moves.has_gold(example, first.B(0), state.B(0)):
                yield first, gold
