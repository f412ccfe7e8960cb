"""Add labels to a component, trained or not.

| component | outputs | new ones |
| --- | --- | --- |
| ner, parser | transitions: actions with labels | spaCy adds them; they begin as the mean of their action's |
| tagger, morphologizer | labels | at the end |
| textcat, textcat_multilabel | labels; in an ensemble those of the bag of words, too | at the end |
| spancat, spancat_singlelabel | labels, then perhaps one for "none of them" | after the last label |
| trainable_lemmatizer | edit trees, which make a lemma of a word | at the end |

All that is saved is spaCy's own: the pipeline loads without this package.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from typing import Any

from spacy.language import Language
from spacy.morphology import Morphology
from spacy.parts_of_speech import IDS
from spacy.pipeline import (
    EditTreeLemmatizer,
    Morphologizer,
    SentenceRecognizer,
    SpanCategorizer,
    Tagger,
    TextCategorizer,
)
from spacy.pipeline.textcat_multilabel import MultiLabel_TextCategorizer
from spacy.pipeline.transition_parser import Parser
from thinc.api import Model

from ..errors import ConfigError, ConfigTypeError, GrowthWarning, PipelineError
from ..host import rehearsal_model_of
from ..types import Key
from ..words import listed
from .output_layer import MARGIN, PRIOR, OutputLayer, find_output_layer, grow, lift

Label = str | tuple[str, str]


def add_labels(nlp: Language, name: str, labels: Iterable[str | Sequence[str]]) -> list[Label]:
    """Add labels to a component. It keeps what it has learned, and predicts the same as before until it is trained on
    texts with the new labels.

    An optimizer needs no call: it notices the larger layer at the next update, and its state grows.

    nlp (Language): The pipeline.
    name (str): The component.
    labels (Iterable[str]): The labels. Those that it has are left alone. For a trainable_lemmatizer: pairs of a word
        and its lemma, such as ("mice", "mouse"), each an example of an edit tree.
    RETURNS (list[str]): Those that are new, in their order in the component.
    RAISES (ConfigError): No such component, or labels that it can't have. (PipelineError): The component can't get
        labels. Nothing has changed.
    """
    if name not in nlp.component_names:
        raise ConfigError(
            f"Can't add labels to '{name}': expected a component of the pipeline, found none of that name. There are: "
            f"{', '.join(nlp.component_names) or 'none'}."
        )
    pipe: Any = nlp.get_pipe(name)
    new = _check(pipe, name, labels)
    try:
        if new:
            _add(pipe, new)
    except PipelineError as error:
        raise PipelineError(
            f"Can't add {listed([repr(label) for label in new])} to '{name}': {error}. Train a component with all "
            "labels from the start, or give it another model."
        ) from error
    return new


def _check(pipe: Any, name: str, labels: Iterable[str | Sequence[str]]) -> list[Label]:
    """RETURNS (list): The labels that a component does not have, as it writes them, each once."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise ConfigTypeError(f"Can't add labels to '{name}': expected a list of them, found {labels!r}.")
    labels = list(labels)
    if isinstance(pipe, EditTreeLemmatizer):
        return _new_trees(pipe, name, labels)
    found = []
    for label in labels:
        if not isinstance(label, str) or not label:
            raise ConfigTypeError(f"Can't add a label to '{name}': expected a text that is not empty, found {label!r}.")
        found.append(_normalized(pipe, name, label) if isinstance(pipe, Morphologizer) else label)
    if isinstance(pipe, Parser):  # its `labels` leave out those of pseudo-projective trees
        known = {label for labels in pipe.label_data.values() for label in labels}
    else:
        known = set(getattr(pipe, "labels", ()))
    return [label for label in dict.fromkeys(found) if label not in known]


def _new_trees(pipe: EditTreeLemmatizer, name: str, pairs: list[Any]) -> list[Label]:
    found: dict[int, tuple[str, str]] = {}
    for pair in pairs:
        if (
            isinstance(pair, str)
            or not isinstance(pair, Sequence)
            or len(pair) != 2
            or not all(isinstance(one, str) and one for one in pair)
        ):
            raise ConfigTypeError(
                f"Can't add a label to '{name}': expected a word and its lemma, such as ['mice', 'mouse'], found "
                f"{pair!r}. The labels of a {type(pipe).__name__} are edit trees, which it makes of such pairs."
            )
        found.setdefault(pipe.trees.add(*pair), (pair[0], pair[1]))
    return [pair for tree, pair in found.items() if tree not in pipe.labels]


def _normalized(pipe: Morphologizer, name: str, label: str) -> str:
    """A label of a morphologizer in spaCy's spelling. SOURCE: spacy/pipeline/morphologizer.pyx, `add_label`."""
    try:
        pos = Morphology.feats_to_dict(label).get(Morphologizer.POS_FEAT, "")
    except ValueError:
        raise ConfigError(
            f"Can't add a label to '{name}': expected features as in 'Number=Sing|POS=NOUN', found '{label}'."
        ) from None
    if pos not in IDS:
        raise ConfigError(
            f"Can't add the label '{label}' to '{name}': expected a coarse part of speech as {Morphologizer.POS_FEAT}, "
            f"such as NOUN, found '{pos}'."
        )
    normalized: str = pipe.vocab.morphology.normalize_features(label)
    return normalized


def _add(pipe: Any, labels: list[Any]) -> None:
    if isinstance(pipe, Parser):
        _add_moves(pipe, labels)
    elif isinstance(pipe, Tagger) and not isinstance(pipe, SentenceRecognizer):
        _grow(pipe, len(labels), is_exclusive=True)
        for label in labels:
            pipe.add_label(label)
    elif isinstance(pipe, SpanCategorizer):
        _grow(pipe, len(labels), n_last=int(pipe.add_negative_label), is_exclusive=pipe.cfg["max_positive"] == 1)
        _append(pipe, labels)
    elif isinstance(pipe, TextCategorizer):
        _grow(pipe, len(labels), is_exclusive=_is_exclusive(pipe))
        _append(pipe, labels)
    elif isinstance(pipe, EditTreeLemmatizer):
        _grow(pipe, len(labels), is_exclusive=True)
        pipe.cfg["labels"] += [pipe.trees.add(*pair) for pair in labels]
        _index_trees(pipe)
    else:
        _add_to_other(pipe, labels)


def restore_trees(nlp: Language) -> None:
    """Restore the table of labels of lemmatizers, which spaCy (3.8) does not load: a loaded one would be taught that
    each word has the first edit tree.

    SOURCE: spacy/pipeline/edit_tree_lemmatizer.py, `from_disk`, `from_bytes` and `get_loss`.
    """
    for _, pipe in nlp.components:
        if isinstance(pipe, EditTreeLemmatizer):
            _index_trees(pipe)


def _index_trees(pipe: EditTreeLemmatizer) -> None:
    pipe.tree2label = {tree: i for i, tree in enumerate(pipe.cfg["labels"])}


def lift_labels(nlp: Language, trained: Container[Key]) -> None:
    """Let text classifiers learn labels that spaCy's `add_label` added: they begin again, as with `add_labels`. Warns
    of each.

    trained (Container[Key]): The keys of the params that are trained. Others stay as they are.
    """
    for name, pipe in nlp.pipeline:
        if not isinstance(pipe, TextCategorizer):
            continue
        found: OutputLayer | None = None
        with suppress(PipelineError):  # its layer is of another kind
            found = find_output_layer(pipe.model)
        if found is None or not found.is_initialized or (found.layer.id, "b") not in trained:
            continue
        if low := lift(found, is_exclusive=_is_exclusive(pipe), prior=_prior(pipe)):
            labels = listed([repr(pipe.labels[i]) for i in low])
            warnings.warn(
                GrowthWarning(
                    f"'{name}' could never learn {labels}: spaCy's add_label begins labels with a bias of -5000. They "
                    "begin again, as with add_labels of thinc_torchopt."
                ),
                stacklevel=2,
            )


def _is_exclusive(pipe: TextCategorizer) -> bool:
    return not isinstance(pipe, MultiLabel_TextCategorizer)


def _append(pipe: Any, labels: list[str]) -> None:
    """As `add_label` does, which would resize the layer by itself, or refuse to.

    SOURCE: spacy/pipeline/textcat.py and spancat.py, `add_label`.
    """
    pipe.cfg["labels"] += labels
    for label in labels:
        pipe.vocab.strings.add(label)


def _add_to_other(pipe: Any, labels: list[str]) -> None:
    """Add labels to a component that is not spaCy's, or has none."""
    try:
        for label in labels:
            pipe.add_label(label)
    except (AttributeError, NotImplementedError, ValueError) as error:
        raise PipelineError(f"a component of the class {type(pipe).__name__} takes no labels ({error})") from error


# ---------------------------------------------------------------------- layers of labels


def _grow(pipe: Any, n_new: int, *, n_last: int = 0, is_exclusive: bool) -> None:
    """Make the output layer of a component larger, if it is initialized."""
    if not find_output_layer(pipe.model).is_initialized:
        return
    for model in filter(None, (pipe.model, rehearsal_model_of(pipe))):
        grow(model, len(pipe.labels), n_new, n_last=n_last, is_exclusive=is_exclusive, prior=_prior(pipe))


def _prior(pipe: Any) -> float:
    """The probability that new labels begin with, after a sigmoid."""
    threshold = pipe.cfg.get("threshold")
    return min(PRIOR, threshold / 2) if threshold else PRIOR


# ---------------------------------------------------------------------- transitions

# The dimension of the transitions in each param of a parser's last layer: with a hidden layer below it, and without.
# SOURCE: spacy/ml/models/parser.py, `_resize_upper` and `_resize_lower`.
_OF_MOVES = {"upper": {"W": 0, "b": 0}, "lower": {"W": 1, "b": 0, "pad": 2}}


def layer_of_transitions(pipe: Any) -> Model[Any, Any]:
    """The layer of a parser or entity recognizer whose rows are its transitions."""
    layer: Model[Any, Any] = pipe.model.get_ref(_layer_with_moves(pipe))
    return layer


def _layer_with_moves(pipe: Any) -> str:
    return "upper" if pipe.model.attrs["has_upper"] else "lower"


def _add_moves(pipe: Any, labels: list[str]) -> None:
    """Add labels to a parser or entity recognizer.

    spaCy takes new transitions for impossible until it has seen one in a text, but forgets this when the pipeline is
    saved. So they also begin with low scores: with the mean of the transitions with the same action, less `MARGIN`. One
    of these is always at least as good, and is possible wherever the new one is.
    """
    before = layer_of_transitions(pipe)
    n_before = before.get_dim("nO") if before.has_param("b") else 0
    for label in labels:
        pipe.add_label(label)
    layer = layer_of_transitions(pipe)
    if not n_before:
        return
    actions = [pipe.moves.get_class_name(i).partition("-")[0] for i in range(layer.get_dim("nO"))]
    for name, axis in _OF_MOVES[_layer_with_moves(pipe)].items():
        rows = layer.ops.xp.moveaxis(layer.get_param(name), axis, 0)  # a view
        for i in range(n_before, len(actions)):
            same = [j for j in range(n_before) if actions[j] == actions[i]]
            if same:
                rows[i] = rows[same].mean(axis=0) - (MARGIN if name == "b" else 0.0)
