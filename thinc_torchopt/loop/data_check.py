"""Whether the corpora of a training have the annotations that its components learn from and are scored by.

A whole corpus in memory is looked at as a whole. spaCy's scorers get the annotations themselves as predictions: a score
of 0 even then means that the corpus has no annotations for it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy
from spacy.attrs import LEMMA, ORTH
from spacy.language import Language
from spacy.pipeline import EditTreeLemmatizer, SpanCategorizer, TextCategorizer
from spacy.training import Example
from spacy.training.corpus import FILE_TYPE, walk_corpus
from spacy.util import registry
from thinc.api import Model

from ..core.config_checks import sections_of
from ..core.errors import ConfigError
from ..core.host import new_edit_trees
from ..core.kinds import Annotations, Categories, Entities, Kind, OneCategory, Spans, Trees, kind_in, survey
from ..core.words import count, counted, plain
from .components import stopped_gradients
from .data_stream import batcher_of
from .random_state import preserved_random

if TYPE_CHECKING:
    from ..core.optimizer import TorchOptimizer

# Tokens are aligned in so many words, as that takes long: some 40,000 words a second.
_MOST_WORDS = 20_000
# A suggester is asked for texts with so many spans.
_MOST_SPANS = 500
_MOST_NAMED, _MOST_CHARACTERS = 5, 60
# A larger share of tokens that don't align, or whose lemmas can't be learned, is worth a note.
_MISALIGNED, _RARE_LEMMAS = 0.02, 0.25
# A smaller share of proposed spans is. SOURCE: SPAN_LENGTH_THRESHOLD_PERCENTAGE in spacy/cli/debug_data.py.
_PROPOSED = 0.9
# In a corpus of fewer texts, 1% is less than one. A label in fewer texts is hardly learned.
_LEAST_TEXTS, _LEAST_OF_LABEL = 100, 10
# Larger shares of texts of one class, of those that stand there twice with other annotations, and of those that the
# other corpus has, are worth a note. Texts of fewer words may recur by chance: "Thanks a lot!".
_ONE_CLASS, _DIFFERENT, _IN_BOTH, _LEAST_WORDS = 0.9, 0.01, 0.01, 5
_OF_TOKENIZER = {"token_acc", "token_p", "token_r", "token_f", "speed"}
# SOURCE: spacy/pipeline/tagger.pyx, `get_loss`; spacy/pipeline/spancat.py, `get_loss`.
_KEY_ERROR = "spaCy's loop stops with a KeyError at the first of them"


class Finding(NamedTuple):
    """A finding of a check.

    kind (str): "stops": an error would end the training. "in vain": it would run to its end and learn nothing, or could
        not be scored; `allow_untrainable` allows that. "doubt": a possible mistake.
    text (str): In words, with what to do.
    """

    kind: Literal["stops", "in vain", "doubt"]
    text: str


# Of a check. A text alone is a doubt.
Found: TypeAlias = Finding | str


@dataclass
class Corpus:
    """A corpus.

    name (str): Its section in the config: "corpora.train".
    examples (list[Example]): What was read of it.
    is_whole (bool): Whether that is all. If not, these are its first texts.
    """

    name: str
    examples: list[Example]
    is_whole: bool = True

    @property
    def words(self) -> int:
        return sum(len(example.reference) for example in self.examples)

    @property
    def told(self) -> str:
        """In words: "72 texts in [corpora.train]"."""
        return f"{'' if self.is_whole else 'first '}{count(len(self.examples), 'text')} in [{self.name}]"

    @cached_property
    def annotations(self) -> Annotations:
        return survey(self.examples)

    def part(self, words: int) -> list[Example]:
        """Texts from all parts, with about so many words at most."""
        return self.examples[:: max(1, -(-self.words // words))]


@dataclass
class Facts:
    """The facts of a training that are known before its first step. All that is None, or empty, is not looked at.

    nlp (Language): The pipeline. config (Mapping): Its config, interpolated.
    train, dev (Corpus | None): None: the corpus was not read, or could not be.
    sourced (Sequence[str]): Components from another pipeline.
    is_initialized (bool): Whether components have their labels.
    optimizer (TorchOptimizer | None): It knows the pipeline. last (int): The last step. 0: it is unknown.
    """

    nlp: Language
    config: Mapping[str, Any]
    train: Corpus | None = None
    dev: Corpus | None = None
    sourced: Sequence[str] = ()
    is_initialized: bool = True
    optimizer: TorchOptimizer | None = None
    last: int = 0

    @property
    def training(self) -> Mapping[str, Any]:
        training: Mapping[str, Any] = self.config["training"]
        return training

    @property
    def frozen(self) -> Sequence[str]:
        frozen: Sequence[str] = self.training["frozen_components"]
        return frozen

    @property
    def trained(self) -> list[str]:
        """The components that are trained."""
        return [
            name for name, pipe in self.nlp.pipeline if name not in self.frozen and getattr(pipe, "is_trainable", False)
        ]

    def kind(self, name: str) -> Kind:
        return kind_in(self.nlp, name)


# ---------------------------------------------------------------------- are there texts, and annotations


def texts_to_score(facts: Facts) -> Iterator[Found]:
    dev = facts.dev
    if dev is not None and not dev.examples:
        yield Finding(
            "in vain", f"there is no text in [{dev.name}], so nothing can be scored. Add texts, or correct its path."
        )


def texts_left_out(facts: Facts) -> Iterator[Found]:
    """Find texts that spaCy's reader leaves out: all of a file that are too long, and have no sentences to cut."""
    for name in dict.fromkeys((facts.training["train_corpus"], facts.training["dev_corpus"])):
        for section in sections_of(facts.config):
            is_within = f"{section.path}.".startswith(f"{name}.")
            most = section.block.get("max_length") if section.block.get("@readers") == "spacy.Corpus.v1" else None
            if not is_within or not most:
                continue
            with preserved_random():
                reader = registry.resolve({"reader": dict(section.block)})["reader"]
            shortest = []  # of each text, the tokens of its shortest sentence
            for doc in reader.read_docbin(facts.nlp.vocab, walk_corpus(reader.path, FILE_TYPE)):
                sents = doc.sents if doc.has_annotation("SENT_START") else [doc]
                shortest.append(min(map(len, sents), default=0))
            left = sum(n >= most for n in shortest)
            if left:
                of = f"{left:,} of the {count(len(shortest), 'text')} of [{section.path}]"
                yield (
                    f"{of} {'is' if left == 1 else 'are'} left out: they have {most:,} tokens or more, and no "
                    f"sentences that are shorter (max_length = {most:,} in [{section.path}]). Set max_length = 0, or "
                    "annotate sentences."
                )


def blank_components(facts: Facts) -> Iterator[Found]:
    """Find frozen components without weights: they run in each evaluation, and spaCy does not initialize them."""
    for name, pipe in facts.nlp.pipeline if facts.is_initialized else ():
        model = getattr(pipe, "model", None)
        # None: the param exists, but has no values yet.
        if (
            name in facts.frozen
            and isinstance(model, Model)
            and any(node.has_param(param) is None for node in model.walk() for param in node.param_names)
        ):
            yield Finding(
                "stops",
                f"'{name}' is frozen and was never trained: the first evaluation stops with spaCy's error E900. Give "
                f"[components.{name}] a 'source', or remove it from [training] frozen_components.",
            )


def gradients_that_stop(facts: Facts) -> Iterator[Found]:
    """See `stopped_gradients`. spaCy does not connect a new tok2vec with components that are frozen.

    SOURCE: spacy/training/initialize.py, `init_nlp`.
    """
    sourced = [name for name in facts.trained if name in facts.sourced]
    yield from (Finding("in vain", text) for text in stopped_gradients(facts.nlp, sourced, facts.frozen))


def nothing_to_learn(facts: Facts) -> Iterator[Found]:
    """Find components that have no annotations to learn from."""
    train = facts.train
    if train is None:
        return
    for name in facts.trained:
        if not _is_empty(facts, name, train):
            continue
        is_sourced = name in facts.sourced
        advice = _other_spans(facts, name, train) or (
            " To keep it as it is, add it to [training] frozen_components."
            if is_sourced
            else " Add them, or remove the component from [nlp] pipeline."
        )
        yield Finding(
            "in vain" if train.is_whole else "doubt",
            f"'{name}'{' (sourced)' * is_sourced} has nothing to learn: none of the {train.told} has "
            f"{facts.kind(name).in_words}.{advice}",
        )


def texts_without_category(facts: Facts) -> Iterator[Found]:
    train = facts.train
    if train is None or not (bare := sum(not example.reference.cats for example in train.examples)):
        return
    for name in facts.trained:
        if isinstance(facts.kind(name), OneCategory) and not _is_empty(facts, name, train):
            yield (
                f"'{name}' learns that no category holds in {bare:,} of the {train.told}, as they have none. If they "
                "are not annotated for it, leave them out, or use textcat_multilabel."
            )


def nothing_to_score(facts: Facts) -> Iterator[Found]:
    """Find scores that can only be 0."""
    dev = facts.dev
    if dev is None or not dev.examples:
        return
    best = dict(_best_scores(facts, dev.examples))
    wanted = [key for key, weight in facts.training["score_weights"].items() if weight]
    known = {key: value for scores in best.values() for key, value in (scores or {}).items()}
    for name, scores in best.items():
        missing = [key for key, value in (scores or {}).items() if not value and key in wanted]
        if missing and _is_empty(facts, name, dev):
            yield (
                f"'{name}' can't be scored: none of the {dev.told} has {facts.kind(name).in_words}. {_listed(missing)} "
                f"{'says' if len(missing) == 1 else 'say'} nothing about the training."
                f"{_other_spans(facts, name, dev)}"
            )
        elif missing:
            yield (
                f"{_listed(missing)} of '{name}' can't rise above 0 on [{dev.name}], even if all predictions are "
                "right. Are its annotations all alike, or is a part of them missing?"
            )
    if None in best.values():
        return
    if unknown := [key for key in wanted if key not in known and key not in _OF_TOKENIZER]:
        yield (
            f"[training.score_weights] counts {_listed(unknown)}, which no component computes: left out of the score. "
            f"There are: {_listed(sorted(known), most=12) or 'none'}."
        )
    if not any(known.get(key) or key in _OF_TOKENIZER for key in wanted):
        yield (
            "Nothing that [training.score_weights] counts can be computed. The score is 0 at each evaluation: "
            "model-best is then not the best model, and 'patience' ends the training for no reason."
        )


def _best_scores(facts: Facts, examples: Sequence[Example]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """For each component with a scorer, its main scores with the annotations as predictions. None: they are unknown."""
    for name, pipe in facts.nlp.pipeline:
        if not callable(getattr(pipe, "score", None)):
            continue
        # One of the user may need more than annotations, or count its calls.
        if not str(getattr(getattr(pipe, "scorer", None), "__module__", "spacy.")).startswith("spacy."):
            yield name, None
            continue
        # Categories are scored by the component's labels, and it has none yet.
        is_blank = not facts.is_initialized and isinstance(pipe, TextCategorizer)
        if is_blank and any(example.reference.cats for example in examples):
            yield name, None
            continue
        scores: dict[str, Any] | None = {}
        begin, size = 0, 8
        # Usually the first texts are enough; if not, look in more and more texts.
        while begin < len(examples) and scores is not None:
            gold = [Example(example.reference, example.reference) for example in examples[begin : begin + size]]
            begin, size = begin + size, size * 4
            try:
                raw = pipe.score(gold)  # type: ignore[attr-defined]
            except Exception:  # the method may be the user's
                scores = None
                break
            weights = facts.nlp.get_pipe_meta(name).default_score_weights or {}
            counts = [key for key in raw if weights.get(key)] or list(raw)
            for key in counts:
                if isinstance(raw[key], (int, float, type(None))):
                    scores[key] = max(scores.get(key) or 0.0, raw[key] or 0.0)
            if all(scores.values()):
                break
        yield name, scores


def _is_empty(facts: Facts, name: str, corpus: Corpus) -> bool:
    """Whether a corpus has no annotations that a component could learn. False: also where this is unknown."""
    kind = facts.kind(name)
    return kind.is_known and not kind.has_some(corpus.annotations.of(kind))


def _other_spans(facts: Facts, name: str, corpus: Corpus) -> str:
    """For a span categorizer, the keys that the corpus has spans under."""
    if not isinstance(facts.kind(name), Spans):
        return ""
    keys = sorted(kind.key for kind in corpus.annotations.spans)
    return f" The corpus has spans under '{_listed(keys)}': set spans_key in [components.{name}]." if keys else ""


# ---------------------------------------------------------------------- do labels fit


def labels_unknown(facts: Facts) -> Iterator[Found]:
    """Find labels of the corpus that a component does not know, as it was not initialized with the corpus."""
    train = facts.train
    if train is None:
        return
    for name in facts.trained if facts.is_initialized else ():
        of_train = labels_in(facts.nlp, name, train.examples)
        if of_train is None:
            continue
        labels, kind, is_sourced = _known(facts, name, of_train), facts.kind(name), name in facts.sourced
        unknown = sorted(of_train.keys() - labels)
        if not unknown or not facts.nlp.get_pipe(name).labels:  # type: ignore[attr-defined]
            continue
        it = "it" if len(unknown) == 1 else "them"
        written = f"[{', '.join(map(json.dumps, unknown[:_MOST_NAMED]))}{', ...' * (len(unknown) > _MOST_NAMED)}]"
        if any("$" in label for label in unknown):  # which a config reads as part of a variable
            written = "null"
        text = f"'{name}'{' (sourced)' * is_sourced} does not know {_listed(unknown)}, which [{train.name}] has"
        to_add = (
            f"To add {it} before the training and keep what it has learned: @callbacks = "
            f'"thinc-torchopt.add_labels.v1" in [initialize.after_init], with {name} = {written} in '
            "[initialize.after_init.labels]. spacy torchopt init --from writes such a config."
        )
        if isinstance(kind, Entities):  # loop/late_labels.py
            advice = to_add if is_sourced else f"To have {it} from the start: [initialize.components.{name}.labels]."
            learns = f"it learns {it} from the first text on that has {it}, in the middle of the training"
            yield f"{text}: {learns}. {advice}"
        elif is_sourced:
            yield Finding("stops", f"{text}: {(kind.of_unknown or _KEY_ERROR).format(it=it)}. {to_add}")
        elif kind.is_known and not kind.of_unknown:
            yield Finding(
                "stops",
                f"{text}: {_KEY_ERROR}. Let it be initialized with the corpus (without 'source', and without labels in "
                "[initialize.components]), or freeze it.",
            )
        else:
            yield f"{text}: it can't learn {it}."


def labels_in(nlp: Language, name: str, examples: Sequence[Example]) -> Counter[str] | None:
    """How often a corpus has each label of a component. None: unknown for this kind of component."""
    pipe, kind = nlp.get_pipe(name), kind_in(nlp, name)
    if not kind.is_known and isinstance(pipe, (SpanCategorizer, TextCategorizer)):  # of another factory
        kind = Spans(settings={"spans_key": pipe.key}) if isinstance(pipe, SpanCategorizer) else Categories()
    return kind.labels_in(example.reference for example in examples)


def _known(facts: Facts, name: str, of_train: Mapping[str, int]) -> set[str]:
    """The labels that a component can learn, as a corpus has them. A parser learns rare ones as "dep"."""
    pipe: Any = facts.nlp.get_pipe(name)
    known = set(pipe.labels)
    if isinstance(facts.kind(name), Trees):
        least = pipe.cfg["min_action_freq"] if name in facts.sourced else math.inf
        known |= {label for label, number in of_train.items() if number < least or label.upper() == "ROOT"}
    return known


# ---------------------------------------------------------------------- how many are there


def labels_too_rare(facts: Facts) -> Iterator[Found]:
    for name, found, train in _counted(facts):
        rare = Counter({label: n for label, n in found.in_texts.items() if n < _LEAST_OF_LABEL})
        if rare and found.texts >= _LEAST_TEXTS:
            yield (
                f"Labels of '{name}' in fewer than {_LEAST_OF_LABEL} of the {train.told}: {counted(rare)}. So few are "
                "hardly learned: annotate more, or leave such a label out."
            )


def labels_alike(facts: Facts) -> Iterator[Found]:
    """Find labels that differ in capitals, spaces and hyphens alone, in one corpus or between both."""
    for name, found, train in _counted(facts):
        dev = Annotations() if facts.dev is None else facts.dev.annotations
        alike: dict[str, Counter[str]] = {}
        for label, n in (found.labels + dev.of(facts.kind(name)).labels).items():
            alike.setdefault(label.strip().casefold().replace("_", " ").replace("-", " "), Counter())[label] = n
        where = f"[{train.name}]" if facts.dev is None else f"[{train.name}] and [{facts.dev.name}]"
        for same in alike.values():
            if len(same) > 1:
                told = f"'{name}' learns as different labels: {counted(same)} in {where}"
                yield f"{told}. If they mean the same, write them alike."


def one_class(facts: Facts) -> Iterator[Found]:
    for name, found, train in _counted(facts):
        if isinstance(facts.kind(name), OneCategory) and found.labels and found.texts >= _LEAST_TEXTS:
            [(label, n)] = found.labels.most_common(1)
            if n > _ONE_CLASS * found.texts:
                yield (
                    f"{n:,} of {found.texts:,} texts in [{train.name}] are {label}; a model that always says {label} "
                    f"has an accuracy of {plain(n / found.texts)}. Look at the scores of each label, or add texts of "
                    "the others."
                )


def _counted(facts: Facts) -> Iterator[tuple[str, Any, Corpus]]:
    """The components with labels of texts or spans, their annotations, and the corpus, if all of it is known."""
    train = facts.train
    if train is None or not train.is_whole:
        return
    for name in facts.trained:
        kind = facts.kind(name)
        if kind.has_labels and not kind.is_of_each_word:
            yield name, train.annotations.of(kind), train


def texts_annotated_in_other_ways(facts: Facts) -> Iterator[Found]:
    train, what = facts.train, Annotations.DIFFERENT
    if train is None or not train.is_whole or len(train.examples) < _LEAST_TEXTS:
        return
    repeated = train.annotations.repeated
    if (n := repeated.counts[what]) > _DIFFERENT * len(train.examples):
        example = repeated.examples[what][0]
        yield f"{what}: {n:,} of the {train.told}, such as {example}. Correct one of the two."


def texts_in_both(facts: Facts) -> Iterator[Found]:
    train, dev = facts.train, facts.dev
    if train is None or dev is None or not train.is_whole or len(dev.examples) < _LEAST_TEXTS:
        return
    docs = [example.reference for example in dev.examples if len(example.reference) >= _LEAST_WORDS]
    there = [text for text in (doc.text for doc in docs) if hash(text) in train.annotations.seen]
    if len(there) > _IN_BOTH * len(dev.examples):
        yield (
            f"{len(there):,} of the {dev.told} stand in [{train.name}], too, such as "
            f"{there[0][:_MOST_CHARACTERS]!r}: the score is too good. Leave them out of one of the two."
        )


# ---------------------------------------------------------------------- can annotations be learned


def tokens_misaligned(facts: Facts) -> Iterator[Found]:
    """Find another tokenizer's tokens, in a part of the corpus."""
    if facts.train is None:
        return
    part = facts.train.part(_MOST_WORDS)
    words = sum(len(example.reference) for example in part)
    lost = 0
    for example in part:
        there, tokens = example.reference.to_array(ORTH), example.predicted
        if not numpy.array_equal(tokens.to_array(ORTH), there):
            lengths = example.alignment.x2y.lengths
            lost += sum(not token.is_space and lengths[token.i] != 1 for token in tokens)
    if lost > _MISALIGNED * words:
        of = "tokens" if len(part) == len(facts.train.examples) else "tokens looked at"
        yield (
            f"{lost:,} of {words:,} {of} in [{facts.train.name}] do not line up with the tokenizer of this pipeline: "
            "most of their annotations are not learned. Was the corpus made with another tokenizer?"
        )


def entities_of_white_space(facts: Facts) -> Iterator[Found]:
    if facts.train is None or not any(isinstance(facts.kind(name), Entities) for name in facts.trained):
        return
    docs = [example.reference for example in facts.train.examples]
    if n := sum(doc[ent.start].is_space or doc[ent.end - 1].is_space for doc in docs for ent in doc.ents):
        yield (
            f"Entities that begin or end with white space, which spaCy can't learn: {n:,} in [{facts.train.name}]. The "
            "training may stop with its error E024. Move their ends to words."
        )


def lemmas_too_rare(facts: Facts) -> Iterator[Found]:
    """Find lemmas whose change from the word is rarer than a lemmatizer learns."""
    train = facts.train
    if train is None:
        return
    for name in facts.trained:
        pipe = facts.nlp.get_pipe(name)
        if not isinstance(pipe, EditTreeLemmatizer) or name in facts.sourced:
            continue
        docs = [example.reference for example in train.examples]
        trees, of_tree = new_edit_trees(), Counter[int]()
        known: dict[tuple[int, int], int] = {}
        for doc in docs:
            strings = doc.vocab.strings  # a reader may have a vocabulary of its own
            for (word, lemma), n in Counter(map(tuple, doc.to_array([ORTH, LEMMA]).tolist())).items():
                if lemma:
                    if (word, lemma) not in known:
                        known[word, lemma] = trees.add(strings[word], strings[lemma])
                    of_tree[known[word, lemma]] += n
        least = pipe.min_tree_freq
        rare = sum(n for n in of_tree.values() if n < least)
        if rare > _RARE_LEMMAS * of_tree.total():
            yield (
                f"'{name}' does not learn {rare:,} of {of_tree.total():,} lemmas in [{train.name}]: their change from "
                f"the word occurs fewer than {least:,} times (min_tree_freq = {least:,} in [components.{name}]). Add "
                "texts, or lower it."
            )


def categories_of_another_kind(facts: Facts) -> Iterator[Found]:
    """Find models of text categorizers for another kind of categories."""
    for name in facts.trained:
        kind = facts.kind(name)
        if not isinstance(kind, Categories):
            continue
        is_one = isinstance(kind, OneCategory)
        model = facts.config["components"].get(name, {}).get("model", {})
        for section in sections_of({f"components.{name}.model": model}):
            if section.block.get("exclusive_classes", is_one) is not is_one:
                here, there = ("one", "several") if is_one else ("several", "one")
                yield (
                    f"'{name}' expects {here} of its categories to hold, and its model {there}: exclusive_classes = "
                    f"{str(not is_one).lower()} in [{section.path}]. Set it to {str(is_one).lower()}, or use the "
                    f"factory {(Categories if is_one else OneCategory)().factory}."
                )


def spans_not_proposed(facts: Facts) -> Iterator[Found]:
    """Find span categorizers whose suggester does not propose the spans of the first texts that have some."""
    train = facts.train
    if train is None or not facts.is_initialized:
        return
    for name in facts.trained:
        pipe: Any = facts.nlp.get_pipe(name)
        before = facts.nlp.pipe_names[: facts.nlp.pipe_names.index(name)]
        # It may need what others annotate.
        if not isinstance(pipe, SpanCategorizer) or {*before} & {*facts.training["annotating_components"]}:
            continue
        texts, spans = [], 0
        for example in train.examples:
            if spans < _MOST_SPANS and (n := len(example.reference.spans.get(pipe.key, ()))):
                texts.append(example)
                spans += n
        if not texts:
            continue
        where = f"[components.{name}.suggester]"
        try:
            found = pipe.suggester([example.predicted.copy() for example in texts], ops=pipe.model.ops)
        except Exception as error:  # one of the user may raise anything
            yield Finding(
                "stops",
                f"{where} raises {type(error).__name__}: {error} on the first texts of [{train.name}]. If it needs "
                "what others annotate, add these to annotating_components in [training].",
            )
            continue
        rows, proposed = pipe.model.ops.to_numpy(found.dataXd), 0
        ends = numpy.cumsum(pipe.model.ops.to_numpy(found.lengths))
        for example, of_text in zip(texts, numpy.split(rows, ends[:-1])):
            there = {(int(start), int(end)) for start, end in of_text}
            for span in example.get_aligned_spans_y2x(example.reference.spans[pipe.key], allow_overlap=True):
                proposed += (span.start, span.end) in there
        if proposed >= _PROPOSED * spans:
            continue
        lengths = sorted({len(span) for one in texts for span in one.reference.spans[pipe.key]})
        tokens = f"{lengths[0]} to {lengths[-1]} tokens" if len(lengths) > 1 else count(lengths[0], "token")
        if proposed:
            text = f"proposes {proposed:,} of {spans:,} spans: '{name}' can find no others"
        else:
            text = f"proposes none of {count(spans, 'span')}, so '{name}' has nothing to learn"
        yield Finding(
            "doubt" if proposed else "in vain",
            f"{where} {text}. In the first texts of [{train.name}] that have some under '{pipe.key}', spans have "
            f"{tokens}. Change its sizes, or take another suggester.",
        )


def vectors_that_are_gone(facts: Facts) -> Iterator[Found]:
    """Find sourced components that read word vectors, in a pipeline that has none, or shorter ones."""
    vectors, now = facts.nlp.vocab.vectors, json.dumps(facts.config["initialize"]["vectors"])
    for name, pipe in facts.nlp.pipeline:
        model = getattr(pipe, "model", None)
        if name not in facts.sourced or not isinstance(model, Model):
            continue
        needed = {node.get_dim("nM") for node in model.walk() if node.name == "static_vectors" and node.has_dim("nM")}
        if needed - {vectors.shape[1]} or (needed and not vectors.shape[0]):
            there = f"of {vectors.shape[1]} numbers" if vectors.shape[0] else "none"
            yield Finding(
                "stops",
                f"'{name}' (sourced) reads word vectors of {max(needed)} numbers, and this pipeline has {there}: set "
                f"vectors in [initialize] to the pipeline that it comes from. Now it is {now}.",
            )


def texts_in_no_batch(facts: Facts) -> Iterator[Found]:
    """Draw the batches of an epoch, in the order of the corpus."""
    train = facts.train
    if train is None or not train.examples:
        return
    with preserved_random():  # one of the user may draw numbers
        try:
            batcher = batcher_of(facts.nlp, facts.training)
            in_batches = sum(len(example.reference) for batch in batcher(iter(train.examples)) for example in batch)
        except ConfigError as error:
            yield Finding("stops", str(error))
            return
    leaves_out = facts.training["batcher"].get("discard_oversize") is True
    if not in_batches:
        yield Finding("stops", no_batch(train.name, leaves_out=leaves_out))
    elif leaves_out and train.is_whole and (left := train.words - in_batches):
        yield (
            f"{left:,} of the {train.words:,} words in [{train.name}] are in no batch: their texts are longer than a "
            "batch may be (discard_oversize = true in [training.batcher])."
        )


def no_batch(corpus: str, *, leaves_out: bool) -> str:
    """Why there is no batch, in words."""
    return "There would be no batch: " + (
        f"each text in [{corpus}] is longer than a batch may be. Set discard_oversize = false in [training.batcher], "
        "or a larger size."
        if leaves_out
        else f"[training.batcher] makes none of the texts in [{corpus}]."
    )


def _listed(names: Sequence[str], most: int = _MOST_NAMED) -> str:
    """In words: "A, B and 3 more"."""
    shown = [f"'{name}'" if not name.isidentifier() else name for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most:,} more" if len(names) > most else "")
