"""Annotations that may be wrong: those that were hard in training, by the record of a run.

*score*: the hardness of an annotation, in standard deviations over its component; of labels of words with how rarely
the same word is annotated so elsewhere. The texts are read again from the corpus of the run, and the trained pipeline
is asked about the hardest alone.

SOURCE: Dickinson and Meurers 2003, Detecting Errors in Part-of-Speech Annotation: the same words, annotated otherwise.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy
from confection import Config
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.util import resolve_dot_names

from ...core.errors import ConfigError
from ...core.kinds import kind_in
from ...core.readers import read_docs
from ...core.record import FOLDER, Record, digest, hardness_of
from ...core.words import count, listed
from .errors import Passage, load, passages_of
from .kinds import Categories, Item, Items, Kind, Place, TokenLabels, Trees, kinds_of
from .labels import shown
from .style import save_whole

# Of the rarity of an annotation, beside its hardness. Chosen on the first half of the tags of EWT as of 2019.
_OF_RARITY: Final = 0.3
# When an annotation was learned.
WHEN: Final = ("early", "late", "never")
# Words shown on each side of a suspect.
_AROUND: Final = 4
# Settings of spaCy's readers with which they give every text, in one piece.
_ALL: Final = {"limit": 0, "max_length": 0, "min_length": 0, "gold_preproc": False}
# Texts that the pipeline is asked about at once.
_AT_ONCE: Final = 64


@dataclass
class Suspect:
    """An annotation that may be wrong, or one that may be missing.

    number (int): Of its text in the corpus, from 1. score (float): See above.
    start, end (int): Its tokens in the annotated text. Of categories: all.
    annotated, predicted (Items): What is annotated there, and what the trained pipeline predicts.
    elsewhere (Counter[str]): How often the same words have which label in the corpus. Empty text: none.
    hits, updates (int): In how many of the updates it was predicted.
    """

    component: str
    kind: Kind
    number: int
    score: float
    example: Example
    start: int
    end: int
    annotated: Items
    predicted: Items
    elsewhere: Counter[str]
    hits: int
    updates: int

    @property
    def labels(self) -> set[str]:
        """Annotated and predicted."""
        return {item.label for item in (*self.annotated, *self.predicted)}

    @property
    def words(self) -> str:
        """Those that it is about."""
        return self.example.reference[self.start : self.end].text

    @property
    def context(self) -> str:
        """The same in brackets, with some words around them. Of categories: the text."""
        doc, start, end = self.example.reference, self.start, self.end
        if end - start == len(doc):
            return self.words
        return f"{doc[max(0, start - _AROUND) : start]} [{self.words}] {doc[end : end + _AROUND]}".strip()

    @property
    def is_as_proposed(self) -> bool:
        """Whether nothing else is proposed: it was hard to learn, but the trained pipeline predicts it."""
        return self.annotated.keys() == set(self.proposed)

    @property
    def proposed(self) -> list[Item]:
        """The annotation that may be right: the predicted one; if that is annotated, the usual one of these words."""
        if self.predicted.keys() != self.annotated.keys() or not self.elsewhere:
            return list(self.predicted)
        [(label, _)] = self.elsewhere.most_common(1)
        return [Item(label, label, self.start, self.end)] if label else []

    @property
    def why(self) -> str:
        """In words."""
        labels = {item.label for item in self.annotated} or {""}
        counts = ((one, n) for one, n in self.elsewhere.most_common() if n and one not in labels)
        others = [f"{shown(one) or 'nothing'} {n:,}x" for one, n in counts]
        told = f"predicted in {self.hits} of {self.updates} updates"
        if self.hits < self.updates and self.predicted.keys() == self.annotated.keys():
            told += ", and at the end"
        return f"{told}; elsewhere {', '.join(others[:2])}" if others else told

    @property
    def passage(self) -> Passage | None:
        """The part of the text that it is in, with what is annotated, and what is predicted or proposed."""
        span = self.example.reference[self.start : self.end]
        place = Place(span.start_char, span.end_char)
        differ = self.predicted if self.predicted != self.annotated else {}
        other = differ or (dict.fromkeys(self.proposed, place) if not self.labels else {})
        found = passages_of(self.kind, self.example, self.annotated, other)
        return next((one for one in found if one.annotated or one.predicted or one.categories), None)

    def said(self, items: Sequence[Item] | Items) -> str:
        """Annotations in words."""
        reference = self.example.reference
        if isinstance(self.kind, Trees):
            return ", ".join(f"{item.label} of {reference[item.head].text}" for item in items) or "nothing"
        whole = all((item.start, item.end) in ((self.start, self.end), (0, 0)) for item in items)  # of categories: 0
        at = [item.label if whole else f"{item.label}: {reference[item.start : item.end].text}" for item in items]
        return ", ".join(map(shown, at)) or "nothing"

    def row(self) -> dict[str, Any]:
        """The text with what is proposed, as a row of JSONL that `spacy torchopt init` reads once it is accepted."""
        doc = self.example.reference.copy()
        self.kind.put(doc, list(self.annotated), self.proposed)
        given = Example(doc, doc).to_dict()
        words = given["token_annotation"]
        row: dict[str, Any] = {"text": doc.text, "words": words.pop("ORTH"), "spaces": words.pop("SPACY")}
        if self.kind.key == "ents" and not doc.spans:
            row["spans"] = [{"start": one.start_char, "end": one.end_char, "label": one.label_} for one in doc.ents]
        else:
            row |= {key: given["doc_annotation"][key] for key in ("entities", "spans")}
        keys = ("tags", "pos", "morphs", "lemmas", "heads", "deps", "sent_starts")
        for key, name in zip(keys, ("TAG", "POS", "MORPH", "LEMMA", "HEAD", "DEP", "SENT_START")):
            if doc.has_annotation(name):
                row[key] = words[name]
        if doc.cats:
            row["cats"] = doc.cats
        meta: dict[str, Any] = {"text": self.number, "component": self.component, "words": self.words}
        meta |= {"context": self.context, "score": round(self.score, 3)}
        meta |= {"annotated": self.said(self.annotated), "proposed": self.said(self.proposed), "why": self.why}
        return row | {"answer": "ignore", "meta": meta}


class OfComponent:
    """The record of a component, beside the corpus.

    kind (Kind): Of its annotations. labels (Sequence[str]): Those that a classifier has, in order.
    examples (Sequence[Example]): The corpus. units (Sequence): The record of each text; None: it has none.

    Public: `annotated` (the items of each text), `hardness` and `scores` (of each recorded text, by its index: of the
    tokens of the annotated text, or of labels).
    """

    def __init__(self, name: str, kind: Kind, labels: Sequence[str], examples: Sequence[Example], units: Sequence[Any]):
        self.name, self.kind = name, kind
        self._labels, self._examples, self._units = labels, examples, units
        self.annotated = [kind.compare(example)[0] for example in examples]
        self._counts: dict[tuple[int, ...], Counter[str]] = defaultdict(Counter)
        self._lengths: list[int] = []
        self._is_by_start = kind.is_of_tokens or kind.key == "sents"
        if not isinstance(kind, (Categories, Trees)) and kind.key != "sents":
            self._count()
        self.hardness = {i: self._by_unit(i, hardness_of(one)) for i, one in enumerate(units) if one is not None}
        self.scores = _scaled(self.hardness)
        if isinstance(kind, TokenLabels):
            rarity = _scaled({i: self._rarity(i) for i in self.scores})
            self.scores = {i: scores + _OF_RARITY * rarity[i] for i, scores in self.scores.items()}

    # ------------------------------------------------------------------ the same words elsewhere

    def _count(self) -> None:
        """Count the labels of each word, or of each sequence of words that is annotated somewhere."""
        for i, items in enumerate(self.annotated):
            norms = self._norms(i)
            for item in items:
                self._counts[norms[item.start : item.end]][item.label] += 1
        if not self.kind.is_of_tokens:
            self._lengths = sorted({len(words) for words in self._counts})
            for i, items in enumerate(self.annotated):
                there = {(item.start, item.end) for item in items}
                for place, counts in self._known_words(i):
                    counts[""] += place not in there

    def _norms(self, i: int) -> tuple[int, ...]:
        return tuple(token.norm for token in self._examples[i].reference)

    def _known_words(self, i: int) -> Iterator[tuple[tuple[int, int], Counter[str]]]:
        """Where a text has words that are annotated somewhere, and their labels everywhere."""
        norms = self._norms(i)
        for n in self._lengths:
            for start in range(len(norms) - n + 1):
                if (counts := self._counts.get(norms[start : start + n])) is not None:
                    yield (start, start + n), counts

    def _rarity(self, i: int) -> Any:
        """Of the label of each token: the part of the same words with another one."""
        found, norms = numpy.zeros(len(self._examples[i].reference), "f4"), self._norms(i)
        for item in self.annotated[i]:
            counts = self._counts[norms[item.start : item.end]]
            found[item.start] = 1 - counts[item.label] / counts.total()
        return found

    # ------------------------------------------------------------------ suspects

    def _by_unit(self, i: int, values: Any) -> Any:
        """Values of the tokens that were trained on, for those of the annotated text. Of labels: as they are."""
        if isinstance(self.kind, Categories):
            return values
        align = self._examples[i].alignment.y2x
        found = numpy.zeros(len(align.lengths), values.dtype)
        numpy.maximum.at(found, numpy.repeat(numpy.arange(len(align.lengths)), align.lengths), values[align.data])
        return found

    def cost(self, i: int) -> float:
        """The score of a text as a whole."""
        scores = self.scores[i]
        return float(numpy.linalg.norm(scores) if isinstance(self.kind, Categories) else scores.max(initial=0.0))

    def hardest(self, nlp: Language, most: int, label: str | None = None) -> list[Suspect]:
        """The hardest annotations, the hardest first. most (int): The most of them. label (str | None): Only those that
        have it, or are predicted to.
        """
        ranked = sorted(self.scores, key=lambda i: (-self.cost(i), i))
        found: list[Suspect] = []
        for first in range(0, len(ranked), _AT_ONCE):
            part = ranked[first : first + _AT_ONCE]
            if len(found) == most and found[-1].score >= self.cost(part[0]):
                break
            docs = nlp.pipe([self._examples[i].predicted.copy() for i in part])
            for i, doc in zip(part, docs):
                suspects = self._in_text(i, Example(doc, self._examples[i].reference))
                found += (one for one in suspects if label is None or label in one.labels)
            found = heapq.nlargest(most, found, key=attrgetter("score"))
        return found

    def _in_text(self, i: int, example: Example) -> Iterator[Suspect]:
        sides = [[*filter(_is_in_text, items.items())] for items in self.kind.compare(example)]
        units = self._units[i]
        hits, updates = (self._by_unit(i, units[name]) for name in ("hits", "updates"))
        for start, end in self._places(i, [item for items in sides for item, _ in items]):
            annotated, predicted = (dict(one for one in items if start <= one[0].start < end) for items in sides)
            if isinstance(self.kind, Categories):
                score, at = self.cost(i), [self._labels.index(one.label) for one in {*annotated, *predicted}]
            else:
                score, at = float(self.scores[i][start:end].max()), [*range(start, end)]
            words = self._norms(i)[start:end]
            n = int(updates[at].max(initial=0))
            yield Suspect(
                *(self.name, self.kind, i + 1, score, example, start, end, annotated, predicted),
                elsewhere=self._counts.get(words, Counter()),
                hits=int(hits[at].min(initial=n)),
                updates=n,
            )

    def _places(self, i: int, items: Sequence[Item]) -> list[tuple[int, int]]:
        """Where a text has annotations or predictions, or words that are mostly annotated elsewhere. Those that overlap
        are one place.
        """
        if isinstance(self.kind, Categories):
            return [(0, max(1, len(self._examples[i].reference)))]
        if self._is_by_start:
            return [(start, start + 1) for start in sorted({item.start for item in items})]
        places = {(item.start, item.end) for item in items}
        places |= {place for place, counts in self._known_words(i) if 2 * counts[""] < counts.total()}
        found: list[tuple[int, int]] = []
        for start, end in sorted(places):
            if found and start < found[-1][1]:
                start, end = found[-1][0], max(found.pop()[1], end)
            found.append((start, end))
        return found

    # ------------------------------------------------------------------ what was learned

    def learned(self) -> dict[str, Counter[str]]:
        """For each label, how many of its annotations were predicted in half of the updates or more ("early"), in fewer
        ("late"), or in none ("never").
        """
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for i in self.scores:
            hits, updates = (self._by_unit(i, self._units[i][name]) for name in ("hits", "updates"))
            for item in self.annotated[i]:
                at = self._labels.index(item.label) if isinstance(self.kind, Categories) else item.start
                when = WHEN[0 if 2 * hits[at] >= updates[at] else 1 if hits[at] else 2]
                found[item.label][when] += bool(updates[at])
        return found


def _is_in_text(item: tuple[Item, Any]) -> bool:
    """And not in words that the tokenizer has cut otherwise."""
    return item[0].start >= 0


def _scaled(values: dict[int, Any]) -> dict[int, Any]:
    """In standard deviations over all of them."""
    spread = float(numpy.concatenate([*values.values(), numpy.zeros(1)]).std()) or 1.0
    return {i: one / spread for i, one in values.items()}


# ---------------------------------------------------------------------- a run


class Suspects:
    """The record of a run, beside its corpus and its pipeline.

    folder (Path): Of the run. nlp (Language): The trained pipeline.
    RAISES (StateError): It has no record. (ConfigError): The corpus can't be read.

    Public: `record`, `examples` (of the corpus), `components` (by name, as far as they were recorded).
    """

    def __init__(self, folder: Path, nlp: Language):
        self.nlp = nlp
        self.record = Record.from_disk(folder)
        self.examples = _corpus_of(nlp)
        self._digests = [digest(example) for example in self.examples]
        self._kinds, kinds = kinds_of(nlp, self.examples), dict[str, Kind]()
        for kind, names in self._kinds:
            for name in names:
                kinds.setdefault(name, kind)
        self.components = {name: self._component(name, kinds[name]) for name in self.record.units if name in kinds}

    def _component(self, name: str, kind: Kind) -> OfComponent:
        texts, labels = self.record.units[name], list(getattr(self.nlp.get_pipe(name), "labels", ()))
        sizes = (len(labels) if isinstance(kind, Categories) else len(example.predicted) for example in self.examples)
        units = [texts.get(key) for key in self._digests]
        units = [one if one is not None and len(one) == size else None for one, size in zip(units, sizes)]
        return OfComponent(name, kind, labels, self.examples, units)

    @property
    def notes(self) -> Iterator[str]:
        """Texts that are left out."""
        there = set(self._digests)
        for name, texts in self.record.units.items():
            if gone := len(texts.keys() - there):
                yield (
                    f"{name}: {gone:,} of {len(texts):,} recorded texts are not in the corpus as it is now. They were "
                    "changed in training, as by an augmenter or a teacher; or the file was changed."
                )
        if self.record.left_out:
            yield f"{self.record.left_out:,} of the easier texts were not kept: raise max_tokens of the recorder."

    def of(self, component: str, most: int, label: str | None = None) -> list[Suspect]:
        """The hardest annotations of a component: see `OfComponent.hardest`."""
        return self.components[component].hardest(self.nlp, most, label)

    def hardest_texts(self, most: int) -> list[tuple[int, float]]:
        """The texts that were hardest, by index in the corpus, with their scores over all components."""
        costs: dict[int, float] = defaultdict(float)
        for one in self.components.values():
            for i in one.scores:
                costs[i] += one.cost(i)
        return heapq.nlargest(most, costs.items(), key=lambda one: one[1])

    def replace(self, accepted: Path, path: Path) -> tuple[int, int, list[str]]:
        """Write the corpus with the annotations of a file for the texts with the same words. What no component of the
        pipeline learns stays. Of several rows of a text, each puts its own change there. A row of `Suspect` changes no
        annotations that differ from those that it was made from.

        accepted (Path): In any form that `init` reads. path (Path): The new file, in spaCy's format.
        RETURNS (tuple): The rows that were accepted; the texts that have other annotations now; and what was left
            out, in words.
        RAISES (ConfigError): It can't be read or written, or has categories that the corpus lacks.
        """
        given: dict[str, list[tuple[Doc, Doc | None]]] = defaultdict(list)
        accepted_docs, told = read_docs(self.nlp, accepted)
        for new, row in zip(accepted_docs, told.rows):
            given[new.text].append((new, self._made_from(new, row.meta)))
        # Texts that the training has left out or cut stay in the corpus.
        references = [example.reference for example in _corpus_of(self.nlp, is_whole=True)]
        known = {name for reference in references for name in reference.cats}
        unknown = {name for new in accepted_docs for name in new.cats} - known
        if known and unknown:
            raise ConfigError(
                f"Can't use '{accepted}': expected categories of the corpus, {listed(sorted(known))}, found "
                f"{listed(sorted(unknown))}. Correct the rows."
            )
        docs, n_changed, n_lost, found = [reference.copy() for reference in references], 0, 0, set()
        for doc, reference in zip(docs, references):
            put: list[tuple[Kind, set[Item]]] = []
            for new, base in (pair for pair in given.get(doc.text, ()) if len(pair[0]) == len(doc)):
                found.add(doc.text)
                for kind, names in self._kinds:
                    old, before, items = (
                        kind.compare(Example(one, one))[0].keys() for one in (reference, base or reference, new)
                    )
                    if items != old == before and kind_in(self.nlp, names[0]).has(new):
                        kind.put(doc, [*(old - items)], [*(items - old)])
                        put.append((kind, items - old))
            n_changed += bool(put)
            n_lost += any(there - kind.compare(Example(doc, doc))[0].keys() for kind, there in put)
        with save_whole(path) as unfinished:
            DocBin(docs=docs, store_user_data=True).to_disk(unfinished)
        notes = [*told.misfits.lines()]
        if n_lost:
            notes.append(f"Rows of one text contradict each other, and not all are put there: {count(n_lost, 'text')}.")
        if lost := len(given) - len(found):
            notes.append(f"Left out, as the corpus lacks them or has them in other words: {count(lost, 'text')}.")
        return sum(map(len, given.values())), n_changed, notes

    def _made_from(self, new: Doc, meta: Any) -> Doc | None:
        """The text of the corpus that a row of `Suspect` was made from. None: it is another row."""
        number = meta.get("text") if isinstance(meta, dict) else None
        if not isinstance(number, int) or not 0 < number <= len(self.examples):
            return None
        base = self.examples[number - 1].reference
        return base if [token.text for token in base] == [token.text for token in new] else None


def recorded_run(model: Path) -> Path | None:
    """The folder of the run that a pipeline lies in. None: it was not recorded; a record there is of an earlier run."""
    config = model / "config.cfg"
    if not (model.parent / FOLDER).is_dir() or not config.is_file():
        return None
    optimizer = Config().from_disk(config, interpolate=False)["training"]["optimizer"]
    return model.parent if optimizer.get("recorder") else None


def read_suspects(folder: Path) -> Suspects:
    """Read the record of a run, and its best pipeline.

    RAISES (ConfigError): It has no record, no pipeline, or its corpus can't be read. (StateError): It is damaged.
    """
    models = [folder / name for name in ("model-best", "model-last") if (folder / name).is_dir()]
    if not models or recorded_run(models[0]) is None:
        raise ConfigError(
            f"Can't look for wrong annotations in '{folder}': expected the folder of a training with '{FOLDER}' and "
            "model-best, found another. Add [training.optimizer.recorder] with @misc = "
            '"thinc-torchopt.Recorder.v1" to the config, train, and give the folder of --output. If the config has it, '
            "the run in this folder was finished without it: train with another --output."
        )
    return Suspects(folder, load(models[0]))


def _corpus_of(nlp: Language, *, is_whole: bool = False) -> list[Example]:
    """The texts that a pipeline was trained on, without what an augmenter makes of them.

    is_whole (bool): With those that the reader leaves out or cuts.
    RAISES (ConfigError): They can't be read, or have no end.
    """
    config = nlp.config.interpolate()
    name = config["training"]["train_corpus"]
    block: Any = config
    for part in name.split("."):
        block = block.get(part) if isinstance(block, dict) else None
    block = block if isinstance(block, dict) else {}  # one function may read all corpora
    if "augmenter" in block:
        block["augmenter"] = None
    if is_whole and str(block.get("@readers")).startswith("spacy."):
        block |= {name: value for name, value in _ALL.items() if name in block}
    if config["training"]["max_epochs"] == -1:
        raise ConfigError(
            "Can't look for wrong annotations in a stream: max_epochs is -1. Train on a corpus that ends."
        )
    try:
        [corpus] = resolve_dot_names(config, [name])
        return list(corpus(nlp))
    except Exception as error:  # of any reader
        raise ConfigError(
            f"Can't read the training texts of [{name}]: {' '.join(str(error).split())} Run the command where the "
            "training ran: its paths start there."
        ) from error
