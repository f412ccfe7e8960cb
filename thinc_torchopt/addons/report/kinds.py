"""The kinds of annotations that trained components predict, each counted as spaCy's scorer counts it.

A kind compares a text's annotations with the predictions for it. Both are sets of items in the tokens of the annotated
text: an item that is in both is right. What the tokenizer cut otherwise counts as in spaCy's scores: a tag of a word
that was not found is missed, an arc of a word that is none is wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy
from spacy.attrs import DEP, HEAD
from spacy.language import Language
from spacy.pipeline import MultiLabel_TextCategorizer, SpanFinder, TextCategorizer
from spacy.tokens import Doc, Span, Token
from spacy.training import Example

from .labels import shown, title_of
from .log_file import number

# The scores of a kind that a sentence is about, by its key.
_SCORED = re.compile(r"(ents|sents|spans_.+|cats|tag|pos|morph|lemma|dep)_(?:micro_f|f|acc|las)")
# spaCy's scorer of trees leaves them out.
_NO_DEPS = ("p", "punct")
# The row of arcs of words that are not those of the annotated text: spaCy counts them in its total alone.
_CUT_OTHERWISE = "(words cut otherwise)"


class Item(NamedTuple):
    """An annotation or a prediction. row (str): Of the table of labels. start, end (int): Tokens of the annotated text;
    below 0: it is none of them. head (int): Of trees.
    """

    row: str
    label: str
    start: int = 0
    end: int = 0
    head: int = 0


class Place(NamedTuple):
    """Where an item is shown. start, end, head (int): Characters of the text; the last one of trees."""

    start: int
    end: int
    head: int | None = None


Items = dict[Item, Place]


class Kind:
    """A kind of annotations.

    key (str): As the names of spaCy's scores begin.

    Public: `is_of_tokens` (each token has one, and those that are wrong are shown).
    """

    is_of_tokens: ClassVar[bool] = False
    # How good it is: a sentence, and the scores in it.
    _sentence = "Finds {} {what}; {} that it names are right."
    _in_sentence: Sequence[str] = ("r", "p")

    def __init__(self, key: str):
        self.key = key

    def compare(self, example: Example) -> tuple[Items, Items]:
        """The annotated and the predicted items of a text. Both are empty if it is not annotated."""
        raise NotImplementedError

    def in_rows(self, items: Items, annotated: Items) -> Iterable[Item]:
        """Items as the table of labels counts them. annotated (Items): Of the same text."""
        return items

    def told(self, scores: Mapping[str, Any]) -> str:
        """How many predictions are right, in a sentence. scores (Mapping): spaCy's. Empty: this is not in them."""
        found = [number(scores.get(f"{self.key}_{name}")) for name in self._in_sentence]
        if any(map(math.isnan, found)):
            return ""
        return self._sentence.format(*map(_of_100, found), what=self._what(scores.get(f"{self.key}_per_type")))

    def _what(self, of_labels: Any) -> str:
        """The predictions in words. of_labels (dict): The scores of each label, if there are some."""
        if isinstance(of_labels, Mapping) and len(of_labels) == 1:
            return shown(*of_labels)
        title = title_of(self.key)
        return title[:1].lower() + title[1:]

    def put(self, doc: Doc, old: Sequence[Item], new: Sequence[Item]) -> None:
        """Annotate a text otherwise. old, new (Sequence[Item]): What goes, and what comes in its place."""
        raise NotImplementedError


def _of_100(share: float) -> str:
    """A share in words: "66 of 100". Only all are 100, and only none are 0."""
    return f"{max(min(round(100 * share), 99 + (share == 1)), share > 0):d} of 100"


# ---------------------------------------------------------------------- of tokens


class TokenLabels(Kind):
    """Tags, parts of speech, or lemmas. SOURCE: spacy/scorer.py, `score_token_attr`."""

    is_of_tokens = True
    _sentence = "{} words get the right {what}."
    _in_sentence = ("acc",)

    def _what(self, of_labels: Any) -> str:
        return {"pos": "part of speech", "morph": "morphology"}.get(self.key, self.key)

    def compare(self, example: Example) -> tuple[Items, Items]:
        annotated = {
            token.i: (self._item(value, token.i), _place(token))
            for token in example.reference
            if (value := self._value(token))
        }
        predicted = {
            self._item(self._value(token), i): _place(token)
            for token, i in zip(example.predicted, _aligned(example))
            if i in annotated and not token.is_space
        }
        return dict(annotated.values()), predicted

    def put(self, doc: Doc, old: Sequence[Item], new: Sequence[Item]) -> None:
        for item in new:
            setattr(doc[item.start], f"{self.key}_", item.label)

    def _value(self, token: Token) -> str:
        return str(getattr(token, f"{self.key}_"))

    def _item(self, value: str, i: int) -> Item:
        return Item("lemma" if self.key == "lemma" else value, value, i, i + 1)


class Morphology(TokenLabels):
    """Morphological features. SOURCE: spacy/scorer.py, `score_token_attr_per_feat`."""

    def put(self, doc: Doc, old: Sequence[Item], new: Sequence[Item]) -> None:
        for item in new:
            token: Any = doc[item.start]
            token.set_morph(item.label)

    def _value(self, token: Token) -> str:
        morph: Any = token.morph
        return str(token.vocab.strings[morph.key])

    def in_rows(self, items: Items, annotated: Items) -> Iterable[Item]:
        """By the name of the feature. Words that are annotated as having none are left out."""
        there = {item.start for item in annotated if item.label != "_"}
        for item in items:
            if item.start in there and item.label not in ("", "_"):
                for feature in item.label.split("|"):
                    yield item._replace(row=feature.partition("=")[0], label=feature)


class Trees(Kind):
    """Dependencies. SOURCE: spacy/scorer.py, `score_deps`, which also takes words for missing that were so in other
    texts: here they are not.
    """

    is_of_tokens = True
    _sentence = "{} words get the right head; {} the right label, too."
    _in_sentence = ("uas", "las")

    def compare(self, example: Example) -> tuple[Items, Items]:
        reference = example.reference
        deps = [token.dep_.lower() for token in reference]
        annotated = {
            Item(dep, dep, token.i, token.i + 1, token.head.i): _place(token, token.head)
            for token, dep in zip(reference, deps)
            if dep and dep not in _NO_DEPS
        }
        if not any(deps):
            return {}, {}
        predicted: Items = {}
        there = _aligned(example)
        for token, i in zip(example.predicted, there):
            dep, head = token.dep_.lower(), there[token.head.i]
            if token.is_space or dep in _NO_DEPS or (i is not None and not deps[i]):
                continue
            if i is None or head is None:
                item = Item(_CUT_OTHERWISE, dep, -1 - token.i)
            else:
                item = Item(dep, dep, i, i + 1, head)
            predicted[item] = _place(token, token.head)
        return annotated, predicted

    def put(self, doc: Doc, old: Sequence[Item], new: Sequence[Item]) -> None:
        heads, deps = [token.head.i for token in doc], [token.dep_ for token in doc]
        as_written = {"root": "ROOT", **{dep.lower(): dep for dep in deps}}
        for item in new:
            heads[item.start], deps[item.start] = item.head, as_written.get(item.label, item.label)
        if not _are_trees(heads):  # another word of the circle is wrong, too: nothing is changed
            return
        offsets = [(head - i) % 2**64 for i, head in enumerate(heads)]
        rows = [[offset, doc.vocab.strings.add(dep)] for offset, dep in zip(offsets, deps)]
        values: Any = numpy.array(rows, dtype="uint64")
        doc.from_array([HEAD, DEP], values)


def _are_trees(heads: Sequence[int]) -> bool:
    """Whether the heads of heads end in roots, which are their own heads."""
    tops = list(heads)
    for _ in range(len(heads).bit_length()):
        tops = [tops[top] for top in tops]  # twice as far up
    return all(heads[top] == top for top in tops)


def _place(token: Token, head: Token | None = None) -> Place:
    return Place(token.idx, token.idx + max(1, len(token)), None if head is None else head.idx)


def _aligned(example: Example) -> list[int | None]:
    """For each predicted token, the annotated one that it is, or is a part of. None: it is none, or several."""
    x2y = example.alignment.x2y
    return [int(x2y[i][0]) if length == 1 else None for i, length in enumerate(x2y.lengths)]


# ---------------------------------------------------------------------- of several tokens


class Entities(Kind):
    """Named entities. SOURCE: spacy/scorer.py, `get_ner_prf`."""

    def compare(self, example: Example) -> tuple[Items, Items]:
        reference, predicted = example.reference, Items()
        for n, span in enumerate(example.predicted.ents):
            tokens = [int(i) for i in example.alignment.x2y[span.start : span.end]]
            if tokens and all(token.ent_iob for token in reference[tokens[0] : tokens[-1] + 1]):
                item = Item(span.label_, span.label_, tokens[0], tokens[-1] + 1)
                if item in predicted:  # the other one is right, or both are wrong
                    item = item._replace(start=-1 - n)
                predicted[item] = Place(span.start_char, span.end_char)
        return _of_spans(reference.ents), predicted

    def put(self, doc: Doc, old: Sequence[Item], new: Sequence[Item]) -> None:
        gone = [Span(doc, item.start, item.end) for item in old]
        doc.set_ents([], outside=gone, default="unmodified")
        doc.set_ents([Span(doc, *item[2:4], label=item.label) for item in new], default="unmodified")


class Spans(Kind):
    """Spans under a key, or sentences. SOURCE: spacy/scorer.py, `score_spans`.

    label (str | None): In place of theirs. None: they have labels.
    """

    def __init__(self, key: str, label: str | None = None):
        super().__init__(key)
        self._label = label

    def compare(self, example: Example) -> tuple[Items, Items]:
        reference, doc = example.reference, example.predicted
        if not self._has(reference):
            return {}, {}
        predicted = self._spans(doc) if self._has(doc) else ()
        aligned = example.get_aligned_spans_x2y(predicted, self.key != "sents")
        return _of_spans(self._spans(reference), self._label), _of_spans(aligned, self._label)

    def put(self, doc: Doc, old: Sequence[Item], new: Sequence[Item]) -> None:
        if self.key != "sents":
            gone = {(item.start, item.end, item.label) for item in old}
            kept = [one for one in self._spans(doc) if (one.start, one.end, one.label_) not in gone]
            doc.spans[self._group] = [*kept, *(Span(doc, *item[2:4], label=item.label) for item in new)]
        elif not doc.has_annotation("DEP"):  # otherwise they are those of the trees
            for items, value in ((old, False), (new, True)):
                for item in items:
                    doc[item.start].is_sent_start = value

    def _has(self, doc: Doc) -> bool:
        return doc.has_annotation("SENT_START") if self.key == "sents" else self._group in doc.spans

    def _spans(self, doc: Doc) -> Iterable[Span]:
        return doc.sents if self.key == "sents" else doc.spans[self._group]

    @property
    def _group(self) -> str:
        return self.key.removeprefix("spans_")


def _of_spans(spans: Iterable[Span], label: str | None = None) -> Items:
    return {
        Item(name, name, span.start, span.end): Place(span.start_char, span.end_char)
        for span in spans
        for name in [span.label_ if label is None else label]
    }


# ---------------------------------------------------------------------- of texts


class Categories(Kind):
    """The categories of a text. SOURCE: spacy/scorer.py, `score_cats`.

    labels (Sequence[str]): Those of the component. Empty: it has no list of them, and all count.
    threshold (float | None): From this score on, one holds. None: that with the highest score does.
    """

    def __init__(self, key: str, labels: Sequence[str], threshold: float | None):
        super().__init__(key)
        self._labels, self._threshold = labels, threshold
        self._in_sentence = ("micro_r", "micro_p")
        if threshold is None:  # both are the same
            self._in_sentence, self._sentence = ("micro_p",), "{} texts get the right category."

    def compare(self, example: Example) -> tuple[Items, Items]:
        annotated, scores = self.values(example)
        if self._threshold is None:
            # Of a text without categories, spaCy takes what is predicted for wrong.
            held, chosen = ([max(all_, key=all_.__getitem__)] if all_ else [] for all_ in (annotated, scores))
        else:
            held = [name for name, value in annotated.items() if value > 0]
            chosen = [name for name in annotated if scores.get(name, 0.0) >= self._threshold]
        place = Place(0, len(example.text))
        annotated_items, predicted = ({Item(name, name): place for name in names} for names in (held, chosen))
        return annotated_items, predicted

    def put(self, doc: Doc, old: Sequence[Item], new: Sequence[Item]) -> None:
        doc.cats = {**doc.cats, **{item.label: 0.0 for item in old}, **{item.label: 1.0 for item in new}}

    def values(self, example: Example) -> tuple[dict[str, float], dict[str, float]]:
        """The annotated values and the scores of the component's categories."""
        annotated, scores = (
            {name: float(value) for name, value in doc.cats.items() if not self._labels or name in self._labels}
            for doc in (example.reference, example.predicted)
        )
        return annotated, scores


# ---------------------------------------------------------------------- of components


def kinds_of(nlp: Language, examples: Sequence[Example]) -> list[tuple[Kind, list[str]]]:
    """The kinds that trained components predict, each with its components: those that write to the same place."""
    found: dict[Any, tuple[Kind, list[str]]] = {}
    for name, pipe in nlp.pipeline:
        if not getattr(pipe, "is_trainable", False):
            continue
        for what in nlp.get_pipe_meta(name).assigns:
            for kind in _kinds(what, pipe, examples):
                # Each classifier has categories of its own.
                same = (type(kind), kind.key, name if isinstance(kind, Categories) else getattr(kind, "_label", None))
                found.setdefault(same, (kind, []))[1].append(name)
    return list(found.values())


def sentences(scores: Mapping[str, Any], factories: Collection[str]) -> Iterator[str]:
    """How good a pipeline is, in a sentence for each kind that scores are of. factories: Of its components."""
    keys = [found[1] for name in scores if (found := _SCORED.fullmatch(name))]
    is_exclusive = "textcat" in factories and "textcat_multilabel" not in factories
    for key in dict.fromkeys(keys):
        of_tokens = Trees if key == "dep" else TokenLabels if key in ("tag", "pos", "morph", "lemma") else Kind
        kind = Categories(key, (), None if is_exclusive else 0.5) if key == "cats" else of_tokens(key)
        if told := kind.told(scores):
            yield told


def _kinds(what: str, pipe: Any, examples: Sequence[Example]) -> Iterator[Kind]:
    """The kinds that a component predicts. what (str): One of the places that its factory assigns."""
    if what in ("token.tag", "token.pos", "token.lemma"):
        yield TokenLabels(what.removeprefix("token."))
    elif what == "token.morph":
        yield Morphology("morph")
    elif what == "token.dep":
        yield Trees("dep")
    elif what == "token.is_sent_start":
        yield Spans("sents", "sentence")
    elif what == "doc.ents":
        yield Entities("ents")
    elif what == "doc.spans":
        own = _settings(pipe).get("spans_key")
        for key in [own] if own else sorted({key for example in examples for key in example.reference.spans}):
            yield Spans(f"spans_{key}", "span" if isinstance(pipe, SpanFinder) else None)
    elif what == "doc.cats":
        is_exclusive = isinstance(pipe, TextCategorizer) and not isinstance(pipe, MultiLabel_TextCategorizer)
        threshold = _settings(pipe).get("threshold", 0.5)
        yield Categories("cats", tuple(getattr(pipe, "labels", ())), None if is_exclusive else threshold)


def _settings(pipe: Any) -> Mapping[str, Any]:
    found = getattr(pipe, "cfg", None)
    return found if isinstance(found, Mapping) else {}
