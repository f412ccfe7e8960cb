"""Fill in what an annotator has left open, with the predictions of a teacher.

Texts on which only a new label is annotated say of all else that it is nothing, and a pipeline that learns from them
forgets what it knew. So a *teacher*, a frozen pipeline, annotates what is *open*. What an annotator says is never
changed. Each kind of component knows what is open (core/kinds):

    entities, spans   tokens outside of the annotated spans. Afterwards, tokens that nobody names are outside ("O"). But
                      in texts with no word on entities they stay missing, if there are labels that the teacher lacks
    categories        labels that the text does not name; exclusive ones: all, if the text names none
    tags, morphology, lemmas, sentences   tokens without
    trees             sentences without any arc: single arcs of another tree could make cycles

A text may declare labels as annotated completely, in `doc.user_data["complete"]`: a list of labels, or True for all.
These are not open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from spacy.language import Language
from spacy.tokens import Doc

from ..core.errors import ConfigError
from ..core.kinds import KINDS, Entities, Kind, Rule, kind_in
from ..core.near_misses import did_you_mean, there_are
from ..core.words import count, listed

# A teacher's predictions for a text, by place, as JSON has them.
Predicted = dict[str, Any]
COMPLETE: Final = "complete"
_MOST_LISTED: Final = 12
# The order in which kinds are filled in.
_ORDER: Final = [kind.name for kind in KINDS]


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
    """A component of a teacher, as far as rules need it. labels (frozenset[str] | None): None: made of others."""

    kind: Kind
    labels: frozenset[str] | None


def taught_by(kind: Kind, labels: Iterable[str]) -> Taught:
    """A component of a teacher. labels (Iterable[str]): All that it has."""
    return Taught(kind, frozenset(labels) if kind.fills_labels else None)


def components_of(nlp: Language) -> dict[str, Taught]:
    """The components of a pipeline, as a teacher's."""
    return {name: taught_by(kind_in(nlp, name), getattr(pipe, "labels", ())) for name, pipe in nlp.pipeline}


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
    stands = {new: frozenset([of] if isinstance(of, str) else of) for new, of in (replaces or {}).items()}
    rules = []
    for name in wanted:
        if name not in nlp.component_names:
            near = did_you_mean(name, nlp.component_names) or there_are(nlp.component_names)
            raise ConfigError(f"Can't set 'components'{where}: there is no component '{name}' in the pipeline.{near}")
        kind = kind_in(nlp, name)
        one = counterpart(taught, (names or {}).get(name, name), kind)
        own = frozenset(getattr(nlp.get_pipe(name), "labels", ())) if kind.fills_labels else frozenset[str]()
        theirs = None if one is None else taught[one].labels
        labels = theirs if not own or theirs is None else theirs & own
        if one is not None and (labels is None or labels):
            rule = Rule(name, kind, one, taught[one].kind, labels=labels, own=own or None, taught=theirs)
            rules.append(replace(rule, complete=frozenset(complete), replaces=stands))
        elif components is not None:
            lacks = f"one of its kind in the teacher, found {', '.join(taught) or 'none'}."
            if one is not None:
                lacks = f"one of its labels, {listed(sorted(own))}, in the teacher's '{one}', found none of them."
            elif not kind.is_filled:
                lacks = f"a component that a teacher can fill in for, found '{kind.factory}'."
            raise ConfigError(
                f"Can't fill in for '{name}'{where}: expected {lacks} Take it out of 'components', or give another "
                "teacher."
            )
    if not rules:
        raise ConfigError(
            f"Can't fill in for any component{where}: expected one that learns here and that the teacher has too, with "
            f"labels in common; found {', '.join(wanted) or 'none'} here, and in the teacher "
            f"{', '.join(taught) or 'none'}."
        )
    _check_labels(nlp, rules, complete, stands, where)
    return sorted(rules, key=lambda rule: _ORDER.index(rule.kind.name))


def counterpart(taught: Mapping[str, Taught], name: str, kind: Kind) -> str | None:
    """The component of a teacher that fills in for one: by its name, or the only one of its kind. None: there is none.

    taught (Mapping): The teacher's. name, kind: Of the component that learns.
    """
    wanted = kind.name, kind.fills_labels  # of spans, some have no labels
    same = [one for one, found in taught.items() if (found.kind.name, found.kind.fills_labels) == wanted]
    if not kind.is_filled:
        return None
    return name if name in same else same[0] if len(same) == 1 else None


def _check_labels(
    nlp: Language,
    rules: Sequence[Rule],
    complete: Collection[str],
    replaces: Mapping[str, Collection[str]],
    where: str,
) -> None:
    """RAISES (ConfigError): A setting names a label that nothing has."""
    taught = {label for rule in rules for label in rule.labels or ()}
    known = taught | {label for rule in rules for label in rule.own or ()}
    # Labels of the texts are unknown until a component is initialized; other labels are not looked at. A component with
    # a source is switched off meanwhile, and may get labels at the end.
    with_labels = [rule for rule in rules if rule.kind.fills_labels]
    is_known = all(rule.own is not None and rule.component not in nlp.disabled for rule in with_labels)
    replaced = {label for theirs in replaces.values() for label in theirs}
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
    return {rule.theirs.place: rule.theirs.read(doc) for rule in rules}


def fits(predicted: Predicted, n_tokens: int, rules: Iterable[Rule]) -> bool:
    """Whether predictions have the form that `predicted_in` gives them, for a text of so many tokens."""
    try:
        return all(rule.theirs.fits(predicted[rule.theirs.place], n_tokens) for rule in rules)
    except (LookupError, TypeError, ValueError, AttributeError):
        return False


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
        if complete:
            rule = replace(rule, complete=rule.complete | set(complete))
        if isinstance(rule.kind, Entities) and not rule.knows_all and not rule.kind.has(reference):
            rule = replace(rule, closes=False)
        if rule.labels is None or rule.labels - rule.complete:
            is_any_open |= rule.kind.fill(doc, said[rule.theirs.place], rule, *counted.of(rule))
    counted.complete += not is_any_open
    return doc if is_any_open else reference


def leave_open(reference: Doc, rules: Sequence[Rule]) -> Doc:
    """Leave open, in a text on which only old labels are annotated, where new ones may be. Categories that the text
    does not name are open already.

    RETURNS (Doc): A copy; the text itself if nothing is to be left open, or if it declares all labels as complete.
    """
    entities = [rule.kind for rule in rules if isinstance(rule.kind, Entities)]
    if not entities or _declared(reference) is True:
        return reference
    doc = reference.copy()
    entities[0].leave_open(doc)
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
