"""The class of all kinds of components, and what a teacher needs to know about one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from spacy.tokens import Doc
from spacy.training import Example


@dataclass
class Found:
    """The annotations of one kind in texts.

    texts (int): Texts that have it. words (int): Their words.
    labels (Counter[str]): How often each label occurs. Of lemmas: "=" or "form>lemma"; of sentences: "start"; of
        categories: those that hold, with 1 as value.
    in_texts (Counter[str]): How many texts have it.
    """

    texts: int = 0
    words: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    in_texts: Counter[str] = field(default_factory=Counter)

    def add(self, doc: Doc, labels: Collection[str]) -> None:
        """Count a text that has it."""
        self.texts += 1
        self.words += len(doc)
        self.labels.update(labels)
        self.in_texts.update(set(labels))


class Kind:
    """A kind of component. This class itself: one of which nothing is known.

    factory (str): That of the component. settings (Mapping): Those of the component, as the config has them.

    Public:
    name (str): Its annotations. factories (tuple[str, ...]): Of spaCy, that make one.
    keys (tuple[str, ...]): Of its annotations. SOURCE: `Example.from_dict`.
    has_labels (bool): Whether it has labels, and texts name them.
    is_of_each_word (bool): Whether each word has an annotation.
    is_nothing_without (bool): Whether a text without annotations teaches that there is nothing in it.
    is_filled, fills_labels (bool): Whether a teacher can fill it in, and whether label by label.
    can_forget (bool): Whether it learns that there is none of a label wherever none is annotated.
    of_unknown (str): The way of spaCy with labels that it lacks, with {it} for them. Empty: a KeyError.
    """

    name: ClassVar[str] = ""
    _words: ClassVar[str] = ""
    factories: ClassVar[tuple[str, ...]] = ()
    keys: ClassVar[tuple[str, ...]] = ()
    found: ClassVar[type[Found]] = Found
    has_labels: ClassVar[bool] = False
    is_of_each_word: ClassVar[bool] = False
    is_nothing_without: ClassVar[bool] = False
    is_filled: ClassVar[bool] = False
    fills_labels: ClassVar[bool] = False
    can_forget: ClassVar[bool] = False
    of_unknown: ClassVar[str] = ""

    def __init__(self, factory: str = "", settings: Mapping[str, Any] | None = None):
        self.factory = factory or "".join(self.factories[:1])
        self.settings = settings or {}

    # ------------------------------------------------------------------ in words

    @property
    def is_known(self) -> bool:
        return bool(self.name)

    @property
    def place(self) -> str:
        """Its annotations, by a name that no other place in a text has."""
        return self.name

    @property
    def in_words(self) -> str:
        """Its annotations in words. Empty: unknown."""
        return self._words or self.name

    def needs(self, component: str) -> str:
        """Why a component with this name may get no gradient, in words."""
        if not self.is_known:
            return f"Its factory is '{self.factory}': look at its update() and get_loss()."
        return f"It learns from {self.in_words}: do the texts that it gets have them?"

    # ------------------------------------------------------------------ what a text has

    def in_text(self, doc: Doc) -> list[str] | None:
        """The label of each annotation of a text. None: nobody has annotated it, not even as having none."""
        return None

    def has(self, doc: Doc) -> bool:
        """Whether somebody has annotated a text, even as having none."""
        return self.in_text(doc) is not None

    def count(self, doc: Doc, found: Found) -> None:
        """Count the annotations of a text."""
        labels = self.in_text(doc)
        if labels is not None:
            found.add(doc, [label for label in labels if label])

    def labels_in(self, docs: Iterable[Doc]) -> Counter[str] | None:
        """How often texts have each label, as the component has them. None: it has no labels, or this is unknown."""
        if not self.has_labels:
            return None
        return Counter(label for doc in docs for label in self.in_text(doc) or () if label)

    def has_some(self, found: Found) -> bool:
        """Whether it could learn something from texts."""
        return bool(found.texts)

    def fault(self, found: Found) -> str:
        """Why it can't learn from texts that have it, in words. Empty: it can."""
        return "" if found.labels else f"the texts are annotated as having no {self.in_words}"

    # ------------------------------------------------------------------ what a teacher says

    def read(self, doc: Doc) -> Any:
        """Its predictions for a text, as plain values, as JSON has them."""
        raise NotImplementedError

    def fits(self, said: Any, n: int) -> bool:
        """Whether values have the form that `read` gives them, for a text of so many tokens. May raise an error."""
        raise NotImplementedError

    def fill(self, doc: Doc, said: Any, rule: Rule, filled: Counter[str], conflicts: Counter[str]) -> bool:
        """Fill in what is open in a text that is not empty.

        said (Any): What `read` gives. filled, conflicts (Counter): By predicted label, counted there.
        RETURNS (bool): Whether anything was open.
        """
        raise NotImplementedError

    def has_open(self, doc: Doc, labels: Collection[str]) -> bool:
        """Whether something is open in a text, whatever is predicted. labels (Collection[str]): Of the component."""
        return False

    def denied(self, example: Example) -> Iterator[tuple[str, str]]:
        """The label and the text of each prediction that an annotation says is none."""
        return iter(())


@dataclass(frozen=True)
class Rule:
    """How the annotations of one component are filled in.

    component (str): Its name. kind (Kind): Its kind.
    teacher (str): The teacher's component. theirs (Kind): Its kind.
    closes (bool): Of entities: tokens that nobody names are outside afterwards, where somebody knows of all labels.
        False: those that are missing stay so.
    labels (frozenset[str] | None): Those that may be filled in: both components have them. None: all.
    own (frozenset[str] | None): All labels of the component. None: unknown until it is initialized.
    taught (frozenset[str] | None): All labels of the teacher's component. None: they are made of others.
    complete (frozenset[str]): Labels that are annotated completely.
    replaces (Mapping[str, frozenset[str]]): By annotated label, those of the teacher in whose place it stands.
    """

    component: str
    kind: Kind
    teacher: str
    theirs: Kind
    closes: bool = True
    labels: frozenset[str] | None = None
    own: frozenset[str] | None = None
    taught: frozenset[str] | None = None
    complete: frozenset[str] = frozenset()
    replaces: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def may_fill(self, label: str) -> bool:
        """Whether a label is open anywhere."""
        return label not in self.complete and (self.labels is None or label in self.labels)

    @property
    def knows_all(self) -> bool:
        """Whether the teacher has all labels of the component."""
        return self.own is not None and self.taught is not None and self.own <= self.taught

    def stands_for(self, annotated: Sequence[str] | set[str], predicted: str) -> bool:
        """Whether one of some annotated labels takes the place of a predicted one: no contradiction."""
        return any(predicted in self.replaces.get(label, ()) for label in annotated)
