"""TaughtCorpus: a reader of training data in which a teacher fills in what is open.

Around any other reader, for new labels:

    [corpora.train]
    @readers = "thinc-torchopt.TaughtCorpus.v1"
    teacher = "training/old/model-best"
    [corpora.train.corpus]
    @readers = "spacy.Corpus.v1"
    path = ${paths.train}

and with `texts`, so that a small pipeline learns from a large one. The teacher reads the reference's tokens. If
spaCy's Corpus augments, its texts are annotated first and augmented afterwards; another reader that augments by itself
has its augmented references annotated.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Union, cast

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Corpus, Example
from spacy.training.augment import dont_augment

from ...core.checks import Section
from ...core.config_checks import names_our_optimizer
from ...core.errors import ConfigError, PipelineWarning
from ...core.kinds import Entities, Rule, Spans, kind_in
from ...core.log import inform
from ...core.words import count
from ...loop.filling import Filled, fill, leave_open, rules_for
from ...loop.teacher import Teacher
from .texts import MAX_WORDS, draw_pieces, files_of, read_texts

if TYPE_CHECKING:
    from ...core.hooks import Source

Reader = Callable[[Language], Iterable[Example]]

_SECTION = Section("the block of 'thinc-torchopt.TaughtCorpus.v1'", allows_texts=False)
_IN = f" in {_SECTION.path}"
# Texts that are read and annotated at once.
_LEAST, _MOST = 128, 4096
# More texts for each annotated one are more than can be counted.
_MOST_SHARE = 1e9
# Messages that this process has printed. spaCy makes two readers, one to initialize and one to train.
_told: set[str] = set()


class TaughtCorpus:
    """Read texts, and fill in what they leave open. Registered as `thinc-torchopt.TaughtCorpus.v1`.

    corpus (Callable): The reader of the annotated texts.
    teacher (str | Path | None): The folder of a pipeline, or the name of its package. None: the pipeline that the
        components that learn have as their source.
    components (list[str] | None): Those to fill in for. None: all that learn, and that the teacher has too.
    complete (list[str]): Labels that the annotated texts annotate completely: they are not filled in there.
    replaces (dict[str, str | list[str]]): By new label, the teacher's labels in whose place it stands.
    cache (str | Path | None): The folder of the teacher's predictions. None: those of the latest 100,000 texts are kept
        in memory, and made again by the next reader.
    texts (str | Path | None): Texts that nobody has annotated: .txt, .jsonl or .spacy, or a folder of them.
    share (float): How many of these for each annotated text.
    max_words (int): Longer ones are cut, at the ends of sentences where there are. 0: never.
    old (Callable | None): The reader of texts on which only the old labels are annotated.
    seed (int): For drawing from `texts`.
    RAISES (ConfigError): The texts or the teacher are not there, or a setting has an impossible value.
    """

    def __init__(
        self,
        corpus: Reader,
        teacher: Optional[Union[str, Path]] = None,
        components: Optional[List[str]] = None,
        complete: List[str] = [],
        replaces: Dict[str, Union[str, List[str]]] = {},
        cache: Optional[Union[str, Path]] = None,
        texts: Optional[Union[str, Path]] = None,
        share: float = 2.0,
        max_words: int = MAX_WORDS,
        old: Optional[Reader] = None,
        seed: int = 0,
    ):
        self._corpus = _reader("corpus", corpus)
        self._old = None if old is None else _reader("old", old)
        expected = "names of components, or null for all"
        self._components = None if components is None else _names("components", components, expected)
        if components is not None and not components:
            _SECTION.refuse("components", expected, components)
        self._complete = _names("complete", complete, "names of labels")
        for new, found in _SECTION.section("replaces", replaces).items():
            _names(f"replaces.{new}", [found] if isinstance(found, str) else found, "the name of a label, or several")
        self._replaces = replaces
        self._cache = None if cache is None else _SECTION.file("cache", cache, "the path of a folder, or null for none")
        expected = "the path of a file or a folder, or null for none"
        self._texts = None if texts is None else _SECTION.file("texts", texts, expected)
        self._share = _SECTION.number("share", share, at_most=_MOST_SHARE)
        self._max_words, self._seed = _SECTION.whole("max_words", max_words), _SECTION.whole("seed", seed)
        if self._texts is not None:
            files_of(self._texts, f"'texts'{_IN}")
        self._teacher = None if teacher is None else self._open(teacher)

    def _open(self, pipeline: Union[str, Path]) -> Teacher:
        return Teacher(pipeline, cache=self._cache, where=f"'teacher'{_IN}")

    def __call__(self, nlp: Language) -> Iterator[Example]:
        """Read the texts.

        YIELDS (Example): An annotated one with its reference filled in; then, for each, its share of the others.
        RAISES (ConfigError): The teacher does not fit the pipeline.
        """
        teacher = self.teacher_of(nlp)
        rules = self.rules_of(nlp)
        self._check(nlp, rules)
        # Nobody has annotated the others, for no label.
        of_texts = [replace(rule, complete=frozenset()) for rule in rules]
        counted = {kind: Filled() for kind in ("annotated", "texts", "old")}
        pieces = self._draw(nlp)
        old = iter(() if self._old is None else self._old(nlp))
        try:
            for examples in _some_at_once(_without_augmenter(self._corpus)(nlp)):
                before = counted["annotated"].texts
                filled = _filled(teacher, examples, rules, counted["annotated"])
                more = round(self._share * (before + len(examples))) - round(self._share * before)
                drawn = [_unannotated(piece) for piece in islice(pieces, more)]
                taught = iter(_filled(teacher, drawn, of_texts, counted["texts"]))
                for i, example in enumerate(filled):
                    yield from _augmented(self._corpus, nlp, example)
                    yield from islice(taught, len(drawn) * (i + 1) // len(filled) - len(drawn) * i // len(filled))
                    yield from _opened(islice(old, 1), rules, counted["old"])
            yield from _opened(old, rules, counted["old"])
            self._tell(counted)
        finally:
            teacher.free()

    def teacher_of(self, nlp: Language) -> Teacher:
        """The teacher of a pipeline.

        RAISES (ConfigError): None is set, and not all components have the same source.
        """
        if self._teacher is None:
            frozen = nlp.config["training"].get("frozen_components", [])
            wanted = self._components or [name for name in nlp.component_names if name not in frozen]
            found = {source.pipeline for name, source in _sources_of(nlp).items() if name in wanted}
            if len(found) != 1:
                several = " and ".join(f"'{path}'" for path in sorted(found)) or "none"
                if not found and not names_our_optimizer(nlp.config):
                    several += ", as sources are known only where [training.optimizer] is one of ours"
                raise ConfigError(
                    f"Can't find the teacher, which is not set{_IN}: expected one pipeline as the 'source' of the "
                    f"components, found {several}. Set 'teacher' to a folder, or to the name of a package."
                )
            self._teacher = self._open(found.pop())
        return self._teacher

    def rules_of(self, nlp: Language) -> List[Rule]:
        """The rules that fill in annotations. RAISES (ConfigError): The teacher does not fit the pipeline."""
        return rules_for(
            nlp,
            self.teacher_of(nlp).components,
            self._components,
            complete=self._complete,
            replaces=self._replaces,
            names={name: source.component for name, source in _sources_of(nlp).items()},
            where=_IN,
        )

    def identity(self, nlp: Language) -> Dict[str, str]:
        """Data of this reader that no setting tells: a run that is resumed must have the same."""
        return {"weights of the teacher": self.teacher_of(nlp).digest[:16]}

    # ------------------------------------------------------------------ texts without annotations

    def _draw(self, nlp: Language) -> Iterator[Doc]:
        if self._texts is None or not self._share:
            return iter(())
        texts = read_texts(self._texts, f"'texts'{_IN}")
        return draw_pieces(nlp, texts, self._max_words, self._seed)

    def _check(self, nlp: Language, rules: Sequence[Rule]) -> None:
        """RAISES (ConfigError): Texts would teach a component that there is nothing in them."""
        teacher = self.teacher_of(nlp)
        here, there = _language_of(nlp), teacher.language
        if here != there:
            _warn(f"The teacher{_IN} is a pipeline for '{there}', and reads texts in the tokens of one for '{here}'.")
        of_spans = [rule.component for rule in rules if isinstance(rule.kind, Spans)]
        if self._old is not None and of_spans:
            _SECTION.refuse(
                "old",
                "components in whose texts something can be open",
                of_spans[0],
                "A span categorizer takes all spans without a label as none: annotate the new labels there too.",
            )
        if self._texts is None:
            return
        for rule in (rule for rule in rules if not isinstance(rule.kind, Entities)):  # they are open in them
            if rule.own and rule.labels is not None and (new := sorted(rule.own - rule.labels)):
                _warn(
                    f"The teacher{_IN} does not have {', '.join(new)} of '{rule.component}': its 'texts' say that "
                    "there are none. Leave them out, or give a teacher with these labels."
                )
        frozen = nlp.config["training"].get("frozen_components", [])
        for name in nlp.pipe_names:
            is_taught = name in frozen or name in [rule.component for rule in rules]
            if kind_in(nlp, name).is_nothing_without and not is_taught:
                raise ConfigError(
                    f"Can't use 'texts'{_IN}: nothing annotates them for '{name}', which would learn that there is "
                    "nothing in them. Give a teacher that has it, or freeze it."
                )

    # ------------------------------------------------------------------ what is told

    def _tell(self, counted: Dict[str, Filled]) -> None:
        """Say once what was filled in."""
        teacher = self._teacher
        assert teacher is not None
        annotated, texts, old = counted["annotated"], counted["texts"], counted["old"]
        lines = [f"Filled in by the teacher {teacher.path}: {annotated.in_words()}"]
        if annotated.texts and annotated.complete == annotated.texts:
            lines = [f"Nothing is open in the {count(annotated.texts, 'annotated text')}: they stay as they are."]
        if self._texts is not None:
            lacks = round(self._share * annotated.texts) - texts.texts
            rest = f" There are {lacks:,} fewer than 'share' asks for." * (lacks > 0)
            lines.append(f"Texts of {self._texts}, annotated by it: {texts.in_words()}{rest}")
        if self._old is not None:
            lines.append(f"Of 'old': {count(old.texts, 'text')}, in which the new labels are open.")
        for line in lines:
            if line not in _told:
                _told.add(line)
                inform(line)


def _reader(name: str, value: Any) -> Reader:
    """Check a reader. RAISES (ConfigError): It can't be called."""
    if not callable(value):
        _SECTION.refuse(name, 'a reader, such as @readers = "spacy.Corpus.v1"', value)
    return cast(Reader, value)


def _names(name: str, value: Any, expected: str) -> List[str]:
    """Check a list of names. RAISES (ConfigError): Anything else, for example one text."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) and text for text in value):
        _SECTION.refuse(name, expected, value)
    return list(value)


def _sources_of(nlp: Language) -> Mapping[str, Source]:
    from ...core.hooks import sources_of  # who lists spaCy's readers does not need the optimizer

    return sources_of(nlp)


def _warn(text: str) -> None:
    warnings.warn(PipelineWarning(text), stacklevel=4)


def _language_of(nlp: Language) -> str:
    return str(nlp.config["nlp"]["lang"])


# ---------------------------------------------------------------------- examples


def _some_at_once(examples: Iterable[Example]) -> Iterator[List[Example]]:
    """Examples in pieces: few at first, as spaCy may want no more, and then more."""
    rest, size = iter(examples), _LEAST
    while piece := list(islice(rest, size)):
        yield piece
        size = min(_MOST, 2 * size)


def _filled(teacher: Teacher, examples: Sequence[Example], rules: Sequence[Rule], counted: Filled) -> List[Example]:
    predicted = teacher.predict([example.reference for example in examples], rules)
    return [
        Example(example.predicted, fill(example.reference, said, rules, counted))
        for example, said in zip(examples, predicted)
    ]


def _opened(examples: Iterable[Example], rules: Sequence[Rule], counted: Filled) -> Iterator[Example]:
    for example in examples:
        counted.texts += 1
        yield Example(example.predicted, leave_open(example.reference, rules))


def _unannotated(doc: Doc) -> Example:
    return Example(doc, doc.copy())


def _without_augmenter(reader: Reader) -> Reader:
    """spaCy's Corpus as it reads before it augments. Another reader stays as it is."""
    if not _augments(reader):
        return reader
    plain = copy.copy(reader)
    plain.augmenter = dont_augment  # type: ignore[attr-defined]
    return plain


def _augmented(reader: Reader, nlp: Language, example: Example) -> Iterator[Example]:
    if not _augments(reader):
        return iter([example])
    return iter(reader.augmenter(nlp, example))  # type: ignore[attr-defined]


def _augments(reader: Reader) -> bool:
    return isinstance(reader, Corpus) and reader.augmenter is not dont_augment
