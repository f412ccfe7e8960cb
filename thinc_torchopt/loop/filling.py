"""Fill in what an annotator has left open, with the predictions of a teacher.

Texts on which only a new label is annotated say of all else that it is nothing, and a pipeline that learns from them
forgets what it knew. So a *teacher*, a frozen pipeline, annotates what is *open*. What an annotator says is never
changed. For each kind of annotations, a rule says what is open:

    entities, spans   tokens outside of the annotated spans. Afterwards, tokens that nobody names are outside ("O")
    categories        labels that the text does not name; exclusive ones: all, if the text names none
    tags, morphology, lemmas, sentences   tokens without
    trees             sentences without any arc

A text may declare labels as annotated completely, in `doc.user_data["complete"]`: a list of labels, or True for all of
them. These are not open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spacy.language import Language
from spacy.tokens import Doc

from ..core.annotations import Kind

# What a teacher says of a text, by kind: as JSON.
Predicted = dict[str, Any]
COMPLETE: Final = "complete"


@dataclass(frozen=True)
class Rule:
    """How the annotations of one component are filled in.

    component (str): Its name. kind (Kind): What it learns from. teacher (str): The teacher's component.
    is_exclusive (bool): Of categories: one holds. spans_key (str), teachers_key (str): Of spans.
    incorrect_key (str | None): Of entities: the spans under this key are none.
    labels (frozenset[str] | None): Those that the component has; others are not filled in. None: all.
    complete (frozenset[str]): Labels that are annotated completely.
    replaces (Mapping[str, frozenset[str]]): By annotated label, the teacher's labels in whose place it stands.
    """

    component: str
    kind: Kind
    teacher: str = ""
    is_exclusive: bool = False
    spans_key: str = "sc"
    teachers_key: str = "sc"
    incorrect_key: str | None = None
    labels: frozenset[str] | None = None
    complete: frozenset[str] = frozenset()
    replaces: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass
class Filled:
    """What was filled in, counted.

    texts (int): All of them. complete (int): Those in which nothing was open.
    labels (dict[str, Counter]): By component and label, what was filled in: spans, or tokens, or texts.
    conflicts (dict[str, Counter]): By component and label, predictions that contradict an annotation: it won.
    """

    texts: int = 0
    complete: int = 0
    labels: dict[str, Counter[str]] = field(default_factory=dict)
    conflicts: dict[str, Counter[str]] = field(default_factory=dict)


def rules_for(
    nlp: Language,
    teacher: Language,
    components: Sequence[str] | None = None,
    *,
    complete: Collection[str] = (),
    replaces: Mapping[str, str | Sequence[str]] | None = None,
) -> list[Rule]:
    """The rule of each component that a teacher can fill in for.

    nlp (Language): The pipeline that learns. teacher (Language): The one that annotates.
    components (Sequence[str] | None): Those of `nlp`. None: all that the teacher has too.
    RAISES (ConfigError): A component is unknown, or the teacher has none like it.
    """
    raise NotImplementedError


def predicted_in(doc: Doc, rules: Sequence[Rule]) -> Predicted:
    """What a teacher has said of a text, as plain values. doc (Doc): Annotated by the teacher."""
    raise NotImplementedError


def fill(reference: Doc, predicted: Doc | Predicted, rules: Sequence[Rule], counted: Filled | None = None) -> Doc:
    """Fill in what is open in a text. Nothing that is annotated changes.

    reference (Doc): The text with its annotations.
    predicted (Doc | Predicted): The same tokens, annotated by the teacher.
    counted (Filled | None): What is filled in is counted there.
    RETURNS (Doc): A copy; the same object if nothing was open.
    """
    raise NotImplementedError
