"""Fill in what an annotator has left open, with the predictions of a teacher.

Texts on which only a new label is annotated say of all else that it is nothing, and a pipeline that learns from them
forgets what it knew. So a *teacher*, a frozen pipeline, annotates what is *open*. What an annotator says is never
changed. For each kind of annotations, a rule says what is open:

    entities, spans   tokens outside of the annotated spans. Afterwards, tokens that nobody names are outside ("O"). But
                      in texts with no word on entities they stay missing, if there are labels that the teacher lacks
    categories        labels that the text does not name; exclusive ones: all, if the text names none
    tags, morphology, lemmas, sentences   tokens without
    trees             sentences without any arc: single arcs of another tree could make cycles

A text may declare labels as annotated completely, in `doc.user_data["complete"]`: a list of labels, or True for all.
These are not open.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import numpy
from spacy.attrs import DEP, ENT_IOB, ENT_TYPE, HEAD, LEMMA, MORPH, POS, SENT_START, TAG
from spacy.language import Language
from spacy.morphology import Morphology
from spacy.pipeline import Morphologizer
from spacy.tokens import Doc

from ..core.annotations import LEARNS_FROM, Kind, has_annotation
from ..core.errors import ConfigError
from ..core.near_misses import did_you_mean, there_are
from ..core.words import count, listed

# A teacher's predictions for a text, by kind, as JSON has them.
Predicted = dict[str, Any]
# A span: start, end, label.
Span = tuple[int, int, str]
COMPLETE: Final = "complete"
_MOST_LISTED: Final = 12
# Values of ENT_IOB. Missing is 0. SOURCE: spacy/tokens/token.pyx, `iob_strings`.
_INSIDE, _OUTSIDE, _BEGIN = 1, 2, 3
# Trees come before sentence boundaries, which follow from them. Nothing can be filled in for the others.
_FILLED: Final[tuple[Kind, ...]] = (
    "trees", "sentences", "tags", "morphology", "lemmas", "entities", "spans", "categories",
)  # fmt: skip
# Factories to which a text without annotations is one in which there is nothing.
NEVER_OPEN: Final = ("textcat", "spancat", "spancat_singlelabel", "span_finder")
# Those whose labels are in the texts as they are.
_LABELLED: Final[tuple[Kind, ...]] = ("tags", "morphology", "entities", "spans", "categories")


@dataclass(frozen=True)
class Rule:
    """How the annotations of one component are filled in.

    component (str): Its name. kind (Kind): What it learns from. teacher (str): The teacher's component.
    is_exclusive (bool): Of categories: exactly one holds. threshold (float): Of the others: from this score on.
    spans_key, teachers_key (str): Of spans.
    incorrect_key (str | None): Of entities: the spans under this key are none.
    closes (bool): Of entities: tokens that nobody names are outside afterwards, where somebody knows of all labels.
        False: those that are missing stay so.
    labels (frozenset[str] | None): Those that may be filled in: both components have them. None: all.
    own (frozenset[str] | None): All labels of the component. None: unknown until it is initialized.
    theirs (frozenset[str] | None): All labels of the teacher's component. None: they are made of others.
    complete (frozenset[str]): Labels that are annotated completely.
    replaces (Mapping[str, frozenset[str]]): By annotated label, those of the teacher in whose place it stands.
    """

    component: str
    kind: Kind
    teacher: str = ""
    is_exclusive: bool = False
    threshold: float = 0.5
    spans_key: str = "sc"
    teachers_key: str = "sc"
    incorrect_key: str | None = None
    closes: bool = True
    labels: frozenset[str] | None = None
    own: frozenset[str] | None = None
    theirs: frozenset[str] | None = None
    complete: frozenset[str] = frozenset()
    replaces: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def may_fill(self, label: str) -> bool:
        """Whether a label is open anywhere."""
        return label not in self.complete and (self.labels is None or label in self.labels)

    @property
    def knows_all(self) -> bool:
        """Whether the teacher has all labels of the component."""
        return self.own is not None and self.theirs is not None and self.own <= self.theirs

    def stands_for(self, annotated: str, predicted: str) -> bool:
        """Whether an annotated label takes the place of a predicted one: no contradiction."""
        return predicted in self.replaces.get(annotated, ())


@dataclass
class Filled:
    """Counts of the annotations that were filled in.

    texts (int): All of them. complete (int): Those in which nothing was open.
    labels (dict[str, Counter]): By component and label, what was filled in: spans, tokens, or texts that have it.
    conflicts (dict[str, Counter]): By component and predicted label, what contradicts an annotation, which was kept.
    """

    texts: int = 0
    complete: int = 0
    labels: dict[str, Counter[str]] = field(default_factory=dict)
    conflicts: dict[str, Counter[str]] = field(default_factory=dict)

    def of(self, rule: Rule) -> tuple[Counter[str], Counter[str]]:
        """The counts of a component: what was filled in, and the conflicts."""
        found = self.labels.setdefault(rule.component, Counter())
        return found, self.conflicts.setdefault(rule.component, Counter())

    def in_words(self) -> str:
        """For example "300 texts: ner 812 PERSON, 4 ORG. Left out, as annotations contradict it: ner 3 PERSON."."""
        parts = [f"{name} {_listed(labels) or 'nothing'}" for name, labels in self.labels.items()]
        left_out = [f"{name} {told}" for name, labels in self.conflicts.items() if (told := _listed(labels))]
        text = f"{count(self.texts, 'text')}: {'; '.join(parts) or 'nothing'}."
        if left_out:
            text += f" Left out, as annotations contradict it: {'; '.join(left_out)}."
        if self.complete:
            text += f" Nothing was open in {count(self.complete, 'text')}."
        return text


def _listed(labels: Mapping[str, int]) -> str:
    """The most frequent labels, with their numbers."""
    found = sorted((-n, label) for label, n in labels.items() if n)
    more = f" and {len(found) - _MOST_LISTED:,} more" if len(found) > _MOST_LISTED else ""
    return ", ".join(f"{-n:,} {label}" for n, label in found[:_MOST_LISTED]) + more


class Taught(NamedTuple):
    """A component of a teacher, as far as rules need it. labels (frozenset[str] | None): None: made of others.

    spans_key (str): Of spans. threshold (float): Of categories: from this score on, one holds.
    """

    factory: str
    labels: frozenset[str] | None
    spans_key: str = "sc"
    threshold: float = 0.5

    @property
    def kind(self) -> Kind | None:
        """The kind of its annotations. None: they can't be filled in."""
        return LEARNS_FROM.get(self.factory)


def taught_by(factory: str, labels: Iterable[str], settings: Mapping[str, Any]) -> Taught:
    """A component of a teacher, from its factory, its labels and its settings in the config."""
    kind, threshold = LEARNS_FROM.get(factory), settings.get("threshold")
    return Taught(
        factory,
        frozenset(labels) if kind in _LABELLED else None,
        settings.get("spans_key", "sc"),
        0.5 if threshold is None else threshold,
    )


def components_of(nlp: Language) -> dict[str, Taught]:
    """The components of a pipeline, as a teacher's."""
    return {
        name: taught_by(nlp.get_pipe_meta(name).factory, getattr(pipe, "labels", ()), nlp.get_pipe_config(name))
        for name, pipe in nlp.pipeline
    }


def rules_for(
    nlp: Language,
    teacher: Language | Mapping[str, Taught],
    components: Sequence[str] | None = None,
    *,
    complete: Collection[str] = (),
    replaces: Mapping[str, str | Sequence[str]] | None = None,
    names: Mapping[str, str] | None = None,
    where: str = "",
) -> list[Rule]:
    """The rule of each component that a teacher can fill in for.

    nlp (Language): The pipeline that learns. teacher (Language): The one that annotates.
    components (Sequence[str] | None): Those of `nlp`. None: all that the teacher has too.
    complete, replaces: See `Rule`.
    names (Mapping[str, str] | None): The teacher's components by those of `nlp`, where they have other names.
    where (str): The section of the settings, for errors: " in [corpora.train]".
    RAISES (ConfigError): A component is unknown or can't be filled in for; the teacher has none like it, or none of its
        labels; or a label of `complete` or `replaces` is unknown to both.
    """
    frozen = nlp.config["training"].get("frozen_components", [])
    # spaCy switches those with a source off while it initializes the others.
    able = [name for name in nlp.component_names if name in nlp.pipe_names or name in (names or {})]
    wanted = [name for name in able if name not in frozen] if components is None else list(components)
    taught = components_of(teacher) if isinstance(teacher, Language) else teacher
    rules = []
    for name in wanted:
        if name not in nlp.component_names:
            near = did_you_mean(name, nlp.component_names) or there_are(nlp.component_names)
            raise ConfigError(f"Can't set 'components'{where}: there is no component '{name}' in the pipeline.{near}")
        factory = nlp.get_pipe_meta(name).factory
        theirs = counterpart(taught, (names or {}).get(name, name), factory)
        rule = None if theirs is None else _rule(nlp, taught, name, theirs, complete, replaces or {})
        if rule is not None and (rule.labels is None or rule.labels):
            rules.append(rule)
        elif components is not None:
            raise ConfigError(
                f"Can't fill in for '{name}'{where}: expected {_lacking(nlp, taught, name, rule)} Take it out of "
                "'components', or give another teacher."
            )
    if not rules:
        raise ConfigError(
            f"Can't fill in for any component{where}: expected one that learns here and that the teacher has too, with "
            f"labels in common; found {', '.join(wanted) or 'none'} here, and in the teacher "
            f"{', '.join(taught) or 'none'}."
        )
    _check_labels(nlp, rules, complete, replaces or {}, where)
    return sorted(rules, key=lambda rule: _FILLED.index(rule.kind))


def _lacking(nlp: Language, taught: Mapping[str, Taught], name: str, rule: Rule | None) -> str:
    """Why a component can't be filled in for: what is expected, and what was found."""
    if rule is not None:
        own = listed(sorted(rule.own or ()))
        return f"one of its labels, {own}, in the teacher's '{rule.teacher}', found none of them."
    factory = nlp.get_pipe_meta(name).factory
    if LEARNS_FROM.get(factory) not in _FILLED:
        return f"a component that a teacher can fill in for, found '{factory}'."
    return f"one of its kind in the teacher, found {', '.join(taught) or 'none'}."


def counterpart(taught: Mapping[str, Taught], name: str, factory: str) -> str | None:
    """The component of a teacher that fills in for one: by its name, or the only one of its kind. None: there is none.

    taught (Mapping): The teacher's. name, factory (str): Of the component that learns.
    """
    kind = LEARNS_FROM.get(factory)
    same = [one for one, found in taught.items() if found.kind == kind and kind in _FILLED]
    # Both find spans, but one of them gives them no labels.
    is_finder = factory == "span_finder"
    same = [one for one in same if (taught[one].factory == "span_finder") is is_finder]
    return name if name in same else same[0] if len(same) == 1 else None


def _rule(
    nlp: Language,
    teacher: Mapping[str, Taught],
    name: str,
    theirs: str,
    complete: Collection[str],
    replaces: Mapping[str, str | Sequence[str]],
) -> Rule:
    pipe, of_teacher = nlp.get_pipe(name), teacher[theirs]
    factory, kind = nlp.get_pipe_meta(name).factory, of_teacher.kind
    assert kind is not None
    own = frozenset(getattr(pipe, "labels", ())) if kind in _LABELLED else frozenset()
    taught = of_teacher.labels if factory != "span_finder" else None
    return Rule(
        component=name,
        kind=kind,
        teacher=theirs,
        is_exclusive=factory == "textcat",
        threshold=of_teacher.threshold,
        spans_key=nlp.get_pipe_config(name).get("spans_key", "sc"),
        teachers_key=of_teacher.spans_key,
        incorrect_key=getattr(pipe, "incorrect_spans_key", None),
        labels=taught if not own or taught is None else taught & own,
        own=own or None,
        theirs=taught,
        complete=frozenset(complete),
        replaces={label: frozenset(_as_list(of)) for label, of in replaces.items()},
    )


def _as_list(labels: str | Sequence[str]) -> list[str]:
    return [labels] if isinstance(labels, str) else list(labels)


def _check_labels(
    nlp: Language,
    rules: Sequence[Rule],
    complete: Collection[str],
    replaces: Mapping[str, str | Sequence[str]],
    where: str,
) -> None:
    """RAISES (ConfigError): A setting names a label that nothing has."""
    taught = {label for rule in rules for label in rule.labels or ()}
    known = taught | {label for rule in rules for label in rule.own or ()}
    # Labels of the texts are unknown until a component is initialized; other labels are not looked at. A component with
    # a source is switched off meanwhile, and may get labels at the end.
    with_labels = [rule for rule in rules if rule.kind in _LABELLED]
    is_known = all(rule.own is not None and rule.component not in nlp.disabled for rule in with_labels)
    replaced = {label for theirs in replaces.values() for label in _as_list(theirs)}
    if unknown := sorted(replaced - taught):
        near = did_you_mean(unknown[0], taught) or there_are(taught)
        raise ConfigError(
            f"Can't set 'replaces'{where}: expected labels of the teacher as values, found '{unknown[0]}'.{near}"
        )
    for setting, named in (("complete", complete), ("replaces", replaces)):
        if is_known and (unknown := sorted(set(named) - known)):
            near = did_you_mean(unknown[0], known) or there_are(known)
            raise ConfigError(f"Can't set '{setting}'{where}: no component has the label '{unknown[0]}'.{near}")


# ---------------------------------------------------------------------- what a teacher says


def predicted_in(doc: Doc, rules: Iterable[Rule]) -> Predicted:
    """A teacher's predictions for a text, as plain values. doc (Doc): Annotated by the teacher."""
    found: Predicted = {}
    for rule in rules:
        if rule.kind == "spans":
            group = doc.spans.get(rule.teachers_key, ())
            found.setdefault("spans", {})[rule.teachers_key] = [(one.start, one.end, one.label_) for one in group]
        else:
            found[rule.kind] = _READ[rule.kind](doc)
    return found


_READ: Final[dict[Kind, Callable[[Doc], Any]]] = {
    "entities": lambda doc: [(one.start, one.end, one.label_) for one in doc.ents],
    "categories": lambda doc: {label: float(score) for label, score in doc.cats.items()},
    "tags": lambda doc: [token.tag_ for token in doc],
    "morphology": lambda doc: [
        (token.pos_, doc.vocab.strings[int(key)] if key else "") for token, key in zip(doc, _column(doc, MORPH))
    ],
    "lemmas": lambda doc: [token.lemma_ for token in doc],
    "sentences": lambda doc: [int(token.sent_start) for token in doc],
    "trees": lambda doc: [(token.head.i, token.dep_) for token in doc],
}


def fits(predicted: Predicted, n_tokens: int, rules: Iterable[Rule]) -> bool:
    """Whether predictions have the form that `predicted_in` gives them, for a text of so many tokens."""
    try:
        return all(
            _FITS[rule.kind](
                predicted["spans"][rule.teachers_key] if rule.kind == "spans" else predicted[rule.kind], n_tokens
            )
            for rule in rules
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return False


def _are_spans(found: Any, n: int) -> bool:
    return all(0 <= start < end <= n and isinstance(label, str) for start, end, label in found)


def _are_labels(found: Any, n: int) -> bool:
    return len(found) == n and all(isinstance(label, str) for label in found)


_FITS: Final[dict[Kind, Callable[[Any, int], bool]]] = {
    "entities": _are_spans,
    "spans": _are_spans,
    "categories": lambda found, n: all(math.isfinite(score) for score in found.values()),
    "tags": _are_labels,
    "morphology": lambda found, n: len(found) == n and all(_are_labels(one, 2) for one in found),
    "lemmas": _are_labels,
    "sentences": lambda found, n: len(found) == n and all(start in (-1, 0, 1) for start in found),
    "trees": lambda found, n: (
        len(found) == n and all(head in range(n) and isinstance(label, str) for head, label in found)
    ),
}


# ---------------------------------------------------------------------- filling


def fill(reference: Doc, predicted: Doc | Predicted, rules: Sequence[Rule], counted: Filled | None = None) -> Doc:
    """Fill in what is open in a text. Nothing that is annotated changes.

    reference (Doc): The text with its annotations.
    predicted (Doc | Predicted): The same tokens as the teacher has annotated them.
    rules (Sequence[Rule]): In the order of `rules_for`.
    counted (Filled | None): What is filled in is counted there.
    RETURNS (Doc): A copy; the text itself if nothing was open.
    RAISES (ConfigError): The text declares as complete what is not a list of labels.
    """
    counted = Filled() if counted is None else counted
    counted.texts += 1
    said = predicted_in(predicted, rules) if isinstance(predicted, Doc) else predicted
    complete = _declared(reference)
    if complete is True or not len(reference):
        counted.complete += 1
        return reference
    doc, is_any_open = reference.copy(), False
    for rule in rules:
        rule = _with_complete(rule, complete)
        if rule.kind == "entities" and not rule.knows_all and not has_annotation(reference, "entities"):
            rule = replace(rule, closes=False)
        if rule.labels is None or rule.labels - rule.complete:
            of_rule = said["spans"][rule.teachers_key] if rule.kind == "spans" else said[rule.kind]
            is_any_open |= _FILL[rule.kind](doc, of_rule, rule, *counted.of(rule))
    counted.complete += not is_any_open
    return doc if is_any_open else reference


def leave_open(reference: Doc, rules: Sequence[Rule]) -> Doc:
    """Leave open, in a text on which only old labels are annotated, where new ones may be.

    Only entities say of a token that it is none: tokens outside of them become missing, from which a component learns
    nothing. Categories that the text does not name are open already.
    SOURCE: spacy/pipeline/_parser_internals/ner.pyx: every move costs nothing at a missing token.
    RETURNS (Doc): A copy; the text itself if nothing is to be left open, or if it declares all labels as complete.
    """
    if not any(rule.kind == "entities" for rule in rules) or _declared(reference) is True:
        return reference
    doc = reference.copy()
    iob, types = _column(doc, ENT_IOB), _column(doc, ENT_TYPE)
    iob[iob == _OUTSIDE] = 0
    _set(doc, [ENT_IOB, ENT_TYPE], iob, types)
    return doc


def _declared(doc: Doc) -> Literal[True] | Collection[str]:
    """The labels that a text declares as complete. RAISES (ConfigError): Not a list of labels, or a truth value."""
    found = doc.user_data.get(COMPLETE) or ()
    if found is True:
        return True
    if isinstance(found, (list, tuple, set)) and all(isinstance(one, str) for one in found):
        return found
    raise ConfigError(
        f"Can't fill in for the text {doc.text[:60]!r}: expected a list of labels, or True, as "
        f"doc.user_data['{COMPLETE}'], found {found!r}."
    )


def _with_complete(rule: Rule, complete: Collection[str]) -> Rule:
    return replace(rule, complete=rule.complete | set(complete)) if complete else rule


def _column(doc: Doc, attr: int) -> numpy.ndarray:
    return numpy.asarray(doc.to_array([attr])).reshape(len(doc)).astype("uint64")


def _set(doc: Any, attrs: list[int], *columns: numpy.ndarray) -> None:
    doc.from_array(attrs, numpy.stack([column.astype("uint64") for column in columns], axis=1))


def _fill_entities(doc: Doc, spans: Sequence[Span], rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
    iob, types = _column(doc, ENT_IOB), _column(doc, ENT_TYPE)
    annotated = {(one.start, one.end, one.label_) for one in doc.ents}
    # A token that is "blocked", known to be no part of an entity, begins one without a label.
    taken = (iob == _INSIDE) | (iob == _BEGIN)
    refused = {
        (one.start, one.end, label)
        for one in (doc.spans.get(rule.incorrect_key, ()) if rule.incorrect_key else ())
        for label in ([one.label_] if one.label_ else {span[2] for span in spans})
    }
    names = [doc.vocab.strings[int(key)] if key else "" for key in types]
    for start, end, label in spans:
        if (start, end, label) in annotated:
            continue
        if taken[start:end].any():
            there = {name for name in names[start:end] if name}
            if not any(rule.stands_for(name, label) for name in there):
                conflicts[label] += 1
        elif (start, end, label) in refused or label in rule.complete:
            conflicts[label] += 1
        elif rule.may_fill(label):
            iob[start], iob[start + 1 : end] = _BEGIN, _INSIDE
            types[start:end] = doc.vocab.strings.add(label)
            if end < len(doc) and iob[end] == _INSIDE:
                iob[end] = _BEGIN  # an annotated entity begins here, and goes on being one of its own
            filled[label] += 1
    if rule.closes:
        iob[iob == 0] = _OUTSIDE
    _set(doc, [ENT_IOB, ENT_TYPE], iob, types)
    return True


def _fill_spans(doc: Doc, spans: Sequence[Span], rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
    group = doc.spans.get(rule.spans_key, ())
    annotated = [(one.start, one.end, one.label_) for one in group]
    new: list[Span] = []
    for start, end, label in spans:
        if (start, end, label) in annotated or (start, end, label) in new:
            continue
        there = [name for from_, to, name in annotated if from_ < end and start < to]
        if there or label in rule.complete:
            conflicts[label] += not any(rule.stands_for(name, label) for name in there)
        elif rule.may_fill(label):
            new.append((start, end, label))
            filled[label] += 1
    made = [
        *group,
        *(
            doc.char_span(doc[start].idx, doc[end - 1].idx + len(doc[end - 1]), label=label)
            for start, end, label in new
        ),
    ]
    doc.spans[rule.spans_key] = made
    return True


def _fill_categories(
    doc: Doc, scores: Mapping[str, float], rule: Rule, filled: Counter[str], conflicts: Counter[str]
) -> bool:
    if rule.is_exclusive:
        return _fill_exclusive(doc, scores, rule, filled, conflicts)
    taught = {label: score for label, score in scores.items() if rule.labels is None or label in rule.labels}
    held = [label for label, value in doc.cats.items() if value >= 0.5]
    is_open = False
    for label, score in taught.items():
        holds = score >= rule.threshold
        if label in doc.cats:
            conflicts[label] += holds != (doc.cats[label] >= 0.5)
        elif label in rule.complete:
            conflicts[label] += holds
        else:
            holds = holds and not any(rule.stands_for(name, label) for name in held)
            doc.cats[label], is_open = float(holds), True
            filled[label] += holds
    return is_open


def _fill_exclusive(
    doc: Doc, scores: Mapping[str, float], rule: Rule, filled: Counter[str], conflicts: Counter[str]
) -> bool:
    # Another component of the teacher may give the text categories too.
    scores = {label: score for label, score in scores.items() if rule.theirs is None or label in rule.theirs}
    if not scores:
        return False
    best = max(scores, key=lambda label: scores[label])
    named = [label for label in doc.cats if rule.own is None or label in rule.own]
    if named:
        held = [label for label in named if doc.cats[label] >= 0.5]
        conflicts[best] += bool(held) and best not in held and not any(rule.stands_for(name, best) for name in held)
        return False
    if best in rule.complete:
        conflicts[best] += 1
        return False
    if not rule.may_fill(best):  # no other label holds
        return True
    doc.cats = {**doc.cats, **{label: float(label == best) for label in rule.own or scores}}
    filled[best] += 1
    return True


def _fill_tags(doc: Doc, tags: Sequence[str], rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
    column = _column(doc, TAG)
    names = [doc.vocab.strings[int(key)] if key else "" for key in column]
    for i in _open(names, tags, rule, filled, conflicts):
        column[i] = doc.vocab.strings.add(tags[i])
    return _put(doc, names, [TAG], column)


def _fill_lemmas(doc: Doc, lemmas: Sequence[str], rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
    column = _column(doc, LEMMA)
    for i in (i for i, lemma in enumerate(lemmas) if lemma):
        if not column[i]:
            column[i] = doc.vocab.strings.add(lemmas[i])
            filled["lemma"] += 1
        else:
            conflicts["lemma"] += doc.vocab.strings[int(column[i])] != lemmas[i]
    is_open = not _column(doc, LEMMA).all()
    _set(doc, [LEMMA], column)
    return is_open


def _fill_morphology(
    doc: Doc, analyses: Sequence[tuple[str, str]], rule: Rule, filled: Counter[str], conflicts: Counter[str]
) -> bool:
    strings, pos, morph = doc.vocab.strings, _column(doc, POS), _column(doc, MORPH)
    names = [
        _label(strings[int(a)] if a else "", strings[int(b)] if b else "") if a or b else "" for a, b in zip(pos, morph)
    ]
    labels = [_label(*one) if any(one) else "" for one in analyses]
    for i in _open(names, labels, rule, filled, conflicts):
        pos[i], morph[i] = (strings.add(text) if text else 0 for text in analyses[i])
    return _put(doc, names, [POS, MORPH], pos, morph)


def _label(pos: str, morph: str) -> str:
    """The label of a morphologizer. SOURCE: spacy/pipeline/morphologizer.pyx, `get_loss`."""
    features = Morphology.feats_to_dict(morph)
    if pos:
        features[Morphologizer.POS_FEAT] = pos
    label: str = Morphology.dict_to_feats(features) or Morphology.EMPTY_MORPH
    return label


def _open(
    names: Sequence[str], predicted: Sequence[str], rule: Rule, filled: Counter[str], conflicts: Counter[str]
) -> Iterator[int]:
    """The tokens to fill in. names (Sequence[str]): The annotated labels; "": open."""
    for i, (name, label) in enumerate(zip(names, predicted)):
        if name:
            conflicts[label] += bool(label) and name != label and not rule.stands_for(name, label)
        elif label in rule.complete:
            conflicts[label] += 1
        elif label and rule.may_fill(label):
            filled[label] += 1
            yield i


def _put(doc: Doc, names: Sequence[str], attrs: list[int], *columns: numpy.ndarray) -> bool:
    """Write columns. RETURNS (bool): Whether something was open."""
    _set(doc, attrs, *columns)
    return not all(names)


def _fill_sentences(doc: Doc, starts: Sequence[int], rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
    column = _column(doc, SENT_START).astype("int64")
    is_open = not column[1:].all()
    for i in range(1, len(doc)):
        if not column[i]:
            column[i] = 1 if starts[i] == 1 else -1
            filled["start"] += starts[i] == 1
        else:
            conflicts["start"] += (column[i] == 1) != (starts[i] == 1)
    _set(doc, [SENT_START], column)
    return is_open


def _fill_trees(
    doc: Doc, tree: Sequence[tuple[int, str]], rule: Rule, filled: Counter[str], conflicts: Counter[str]
) -> bool:
    deps, heads = _column(doc, DEP), _column(doc, HEAD).astype("int64")
    starts = _column(doc, SENT_START).astype("int64")
    is_parsed = bool(deps.any())
    # Tokens with an arc, or that one leads to.
    taken = deps != 0
    taken[(numpy.arange(len(doc)) + heads)[taken]] = True
    sentences = _sentences(tree)
    # In a parsed text spaCy makes up the boundaries around tokens without an arc. In another one they are annotated:
    # some trees would hide which.
    if not is_parsed and any(_crosses(starts, start, end) for start, end in sentences):
        conflicts["sentence"] += sum(_crosses(starts, start, end) for start, end in sentences)
        return True
    for start, end in sentences:
        labels = [label for _, label in tree[start:end]]
        if taken[start:end].any():
            continue
        if any(label in rule.complete for label in labels):
            conflicts["sentence"] += 1
            continue
        for i in range(start, end):
            head, label = tree[i]
            deps[i], heads[i] = doc.vocab.strings.add(label), head - i
            filled[label] += 1
        starts[start], starts[start + 1 : end] = 1, -1
    _set(doc, [HEAD, DEP], heads, deps)
    if deps.any():
        _set(doc, [SENT_START], starts)  # spaCy has set them by the arcs alone
    return not taken.all()


def _crosses(starts: numpy.ndarray, start: int, end: int) -> bool:
    """Whether a sentence does not fit annotated boundaries: 1 begins one, -1 does not, 0 is open."""
    begins = start == 0 or starts[start] != -1
    ends = end == len(starts) or starts[end] != -1
    return not begins or not ends or bool((starts[start + 1 : end] == 1).any())


def _sentences(tree: Sequence[tuple[int, str]]) -> list[tuple[int, int]]:
    """The shortest pieces that no arc leads out of."""
    found, start, last = [], 0, 0
    reach = list(range(len(tree)))  # the last token that is joined to each token or to one before it
    for i, (head, _) in enumerate(tree):
        low = min(i, head)
        reach[low] = max(reach[low], i, head)
    for i in range(len(tree)):
        last = max(last, reach[i])
        if i == last:
            found.append((start, i + 1))
            start, last = i + 1, i + 1
    return found


_FILL: Final[dict[Kind, Callable[..., bool]]] = {
    "entities": _fill_entities,
    "spans": _fill_spans,
    "categories": _fill_categories,
    "tags": _fill_tags,
    "morphology": _fill_morphology,
    "lemmas": _fill_lemmas,
    "sentences": _fill_sentences,
    "trees": _fill_trees,
}
