"""Check that the corpora of a training have the annotations that its components learn from and are scored by.

spaCy answers both questions. Its scorers get the annotations themselves as predictions: a score of 0 even then means
that the corpus has no annotations for it. A thorough check also looks for unusable annotations, by the slow code of
`spacy debug data`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from spacy.attrs import DEP, MORPH, ORTH, POS, SPACY, TAG
from spacy.language import Language
from spacy.morphology import Morphology
from spacy.pipeline import Morphologizer, SpanCategorizer, TextCategorizer
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Model

from ..core.annotations import NERS, PARSERS, annotations_of
from ..core.host import compile_gold
from ..core.words import count, listed

# Labels are counted in the first texts, up to this many words: spaCy's code looks at some 40,000 words a second.
MOST_WORDS = 200_000
_MOST_NAMED = 5
# A label with a smaller share of those in the training data may be missing in the development data by chance.
_FREQUENT = 0.01
# A larger share of tokens that don't align is worth a note.
_MISALIGNED = 0.02
_NO_SCORE = (
    "The score is 0 at each evaluation: model-best is then not the best model, and 'patience' ends the training for no "
    "reason."
)
_OF_TOKENIZER = {"token_acc", "token_p", "token_r", "token_f", "speed"}
# An unknown label is a KeyError in these; other components treat it as missing.
# SOURCE: spacy/pipeline/tagger.pyx, `get_loss`; spacy/pipeline/spancat.py, `get_loss`.
_STRICT = ("tagger", "spancat", "spancat_singlelabel")
# Labels that these may unlearn are those that they find in the texts: label_conflicts.py.
_COMPARED = (*NERS, "spancat", "spancat_singlelabel")
_KEY_ERROR = "spaCy's loop stops with a KeyError at the first of them"
# The ways of others with labels that they lack. NER learns them: late_labels.py.
# SOURCE: spacy/pipeline/_parser_internals/arc_eager.pyx, `_replace_unseen_labels`; `get_loss` of the others.
_OF_UNKNOWN = {
    **dict.fromkeys(PARSERS, 'spaCy learns {it} as "dep"'),
    **dict.fromkeys(("textcat", "textcat_multilabel", "morphologizer"), "spaCy ignores {it}"),
}


@dataclass
class Corpus:
    """A corpus.

    name (str): Its section in the config: "corpora.train".
    examples (list[Example]): What was read of it.
    is_whole (bool): Whether all of it was read.
    is_first (bool): If not, whether these are its first texts.
    best (dict): By component, its main scores with the annotations as predictions. None: its scorer raised an error.
    """

    name: str
    examples: list[Example]
    is_whole: bool = True
    is_first: bool = True
    best: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    @property
    def words(self) -> int:
        return sum(len(example.reference) for example in self.examples)

    @property
    def told(self) -> str:
        """In words: "72 texts in [corpora.train]"."""
        n = count(len(self.examples), "text")
        if self.is_whole:
            return f"{n} in [{self.name}]"
        return f"first {n} in [{self.name}]" if self.is_first else f"{n} looked at in [{self.name}]"

    def counted(self) -> tuple[list[Example], bool]:
        """The texts whose labels are counted, and whether these are all."""
        sums = accumulate(len(example.reference) for example in self.examples)
        kept = next((i for i, words in enumerate(sums, 1) if words >= MOST_WORDS), len(self.examples))
        return self.examples[:kept], self.is_whole and kept == len(self.examples)


@dataclass
class Findings:
    """stops (list[str]): Why a training would stop, or learn nothing. notes (list[str]): Possible mistakes.

    allowable (list[str]): Those of `stops` with which it would run to its end.
    """

    stops: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    allowable: list[str] = field(default_factory=list)


def check_data(
    nlp: Language,
    config: Mapping[str, Any],
    train: Corpus | None,
    dev: Corpus | None,
    *,
    sourced: Sequence[str],
    is_initialized: bool,
    is_thorough: bool = True,
) -> Findings:
    """Compare corpora with the components of a pipeline.

    config (Mapping): Interpolated.
    train, dev (Corpus | None): None: the corpus could not be read.
    sourced (Sequence[str]): Components from another pipeline.
    is_initialized (bool): Whether components have their labels.
    is_thorough (bool): Also look for unusable annotations, which takes seconds.
    """
    found = Findings()
    frozen = config["training"]["frozen_components"]
    for corpus in (train, dev):
        if corpus is not None:
            corpus.best = dict(_best_scores(nlp, corpus.examples, is_initialized, is_thorough))
    if is_initialized:
        _check_frozen(nlp, frozen, found)
    if train is not None:
        _check_train(nlp, train, frozen, sourced, found)
    if dev is not None:
        _check_scores(nlp, config["training"]["score_weights"], dev, found)
    if train is not None and is_initialized:
        _check_labels(nlp, train, dev, frozen, sourced, found)
        if is_thorough:
            _check_annotations(nlp, train, dev, found)
    if train is not None and dev is not None:
        texts = set(map(_digest, train.examples))
        twice = sum(_digest(example) in texts for example in dev.examples)
        if twice:
            found.notes.append(
                f"{twice:,} of the {dev.told} {'is' if twice == 1 else 'are'} in [{train.name}] too: scores look "
                "better than they would on new texts."
            )
    return found


def _digest(example: Example) -> bytes:
    """The text of an example, in a form that is quick to compute: its words, by the keys of any vocabulary."""
    found: bytes = example.reference.to_array([ORTH, SPACY]).tobytes()
    return found


# ---------------------------------------------------------------------- are there annotations


def _best_scores(
    nlp: Language, examples: Sequence[Example], is_initialized: bool, is_thorough: bool
) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """For each component with a scorer, its main scores with the annotations as predictions."""
    for name, pipe in nlp.pipeline:
        if not callable(getattr(pipe, "score", None)):
            continue
        # One of the user may count its calls: in a training it is left to spaCy.
        if not is_thorough and not str(getattr(getattr(pipe, "scorer", None), "__module__", "spacy.")).startswith(
            "spacy."
        ):
            yield name, None
            continue
        # Categories are scored by the component's labels, and it has none yet.
        is_blank = not is_initialized and "textcat" in _factory(nlp, name)
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
            except Exception:  # a user's scorer may need more than annotations
                scores = None
                break
            weights = nlp.get_pipe_meta(name).default_score_weights or {}
            counts = [key for key in raw if weights.get(key)] or list(raw)
            for key in counts:
                if isinstance(raw[key], (int, float, type(None))):
                    scores[key] = max(scores.get(key) or 0.0, raw[key] or 0.0)
            if all(scores.values()):
                break
        yield name, scores


def _check_frozen(nlp: Language, frozen: Sequence[str], found: Findings) -> None:
    """Find frozen components without weights: they run in each evaluation, and spaCy does not initialize them."""
    for name, pipe in nlp.pipeline:
        model = getattr(pipe, "model", None)
        # None: the param exists, but has no values yet.
        if (
            name in frozen
            and isinstance(model, Model)
            and any(node.has_param(param) is None for node in model.walk() for param in node.param_names)
        ):
            found.stops.append(
                f"'{name}' is frozen and was never trained: the first evaluation stops with spaCy's error E900. Give "
                f"[components.{name}] a 'source', or remove it from [training] frozen_components."
            )


def _check_train(nlp: Language, train: Corpus, frozen: Sequence[str], sourced: Sequence[str], found: Findings) -> None:
    trained = [name for name, pipe in nlp.pipeline if name not in frozen and getattr(pipe, "is_trainable", False)]
    empty = [name for name in trained if _is_empty(nlp, name, train)]
    for name in empty:
        what = f"none of the {train.told} has {_what(nlp, name)}."
        other = _other_spans(nlp, name, train)
        if name in sourced or not train.is_whole or not _is_spacys(nlp, name):
            of = " (sourced)" * (name in sourced)
            advice = other or " To keep it as it is, add it to [training] frozen_components."
            found.notes.append(f"'{name}'{of} has nothing to learn: {what}{advice}")
        else:
            advice = other or " Add them, or remove the component from [nlp] pipeline."
            found.stops.append(f"'{name}' has nothing to learn: {what}{advice}")
            found.allowable.append(found.stops[-1])
    bare = sum(not example.reference.cats for example in train.examples)
    for name in (name for name in trained if bare and name not in empty and _factory(nlp, name) == "textcat"):
        found.notes.append(
            f"'{name}' learns that no category holds in {bare:,} of the {train.told}, as they have none. If they are "
            "not annotated for it, leave them out, or use textcat_multilabel."
        )


def _check_scores(nlp: Language, weights: Mapping[str, float | None], dev: Corpus, found: Findings) -> None:
    wanted = {key: weight for key, weight in weights.items() if weight}
    known = {key: value for scores in dev.best.values() for key, value in (scores or {}).items()}
    is_known = None not in dev.best.values()
    counted = [name for name, scores in dev.best.items() if any(key in wanted for key in scores or {})]
    if is_known and len(counted) > 1 and all(_is_empty(nlp, name, dev) for name in counted):
        kinds = listed(list(dict.fromkeys(_what(nlp, name) for name in counted)), "or")
        found.notes.append(
            f"Nothing can be scored: none of the {dev.told} has {kinds}. {_NO_SCORE}"
            + "".join(_other_spans(nlp, name, dev) for name in counted)
        )
        return
    for name, scores in dev.best.items():
        missing = [key for key, value in (scores or {}).items() if not value and key in wanted]
        if missing and _is_empty(nlp, name, dev):
            found.notes.append(
                f"'{name}' can't be scored: none of the {dev.told} has {_what(nlp, name)}. {_listed(missing)} "
                f"{'says' if len(missing) == 1 else 'say'} nothing about the training.{_other_spans(nlp, name, dev)}"
            )
        elif missing:
            found.notes.append(
                f"{_listed(missing)} of '{name}' can't rise above 0 on [{dev.name}], even if all predictions are "
                "right. Are its annotations all alike, or is a part of them missing?"
            )
    unknown = [key for key in wanted if key not in known and key not in _OF_TOKENIZER]
    if unknown and is_known:
        found.notes.append(
            f"[training.score_weights] counts {_listed(unknown)}, which no component computes: left out of the score. "
            f"There are: {_listed(sorted(known), most=12) or 'none'}."
        )
    if is_known and not any(known.get(key) or key in _OF_TOKENIZER for key in wanted):
        found.notes.append(f"Nothing that [training.score_weights] counts can be computed. {_NO_SCORE}")


def _is_empty(nlp: Language, name: str, corpus: Corpus) -> bool:
    """Whether a corpus has no annotations that a component could learn."""
    scores = corpus.best.get(name)
    # If all texts have the same categories, some scores are 0.
    has_cats = "textcat" in _factory(nlp, name) and any(example.reference.cats for example in corpus.examples)
    # A tree after a text without one is not counted. SOURCE: spacy/scorer.py, `score_deps`: `missing_indices`.
    is_parser = _factory(nlp, name) in PARSERS
    has_trees = is_parser and any(example.reference.has_annotation("DEP") for example in corpus.examples)
    return bool(scores) and not any(scores.values()) and not has_cats and not has_trees  # type: ignore[union-attr]


def _is_spacys(nlp: Language, name: str) -> bool:
    """Whether it is a component of spaCy that learns from annotations that are known."""
    return bool(annotations_of(_factory(nlp, name), ""))


def _factory(nlp: Language, name: str) -> str:
    return nlp.get_pipe_meta(name).factory


def _what(nlp: Language, name: str) -> str:
    return annotations_of(_factory(nlp, name), getattr(nlp.get_pipe(name), "key", "")) or (
        "annotations that its scorer counts"
    )


def _other_spans(nlp: Language, name: str, corpus: Corpus) -> str:
    """For a span categorizer, the keys that the corpus has spans under."""
    if not isinstance(nlp.get_pipe(name), SpanCategorizer):
        return ""
    keys = {key for example in corpus.examples for key in example.reference.spans}
    return (
        f" The corpus has spans under '{_listed(sorted(keys))}': set spans_key in [components.{name}]." if keys else ""
    )


# ---------------------------------------------------------------------- do labels fit


def _check_labels(
    nlp: Language, train: Corpus, dev: Corpus | None, frozen: Sequence[str], sourced: Sequence[str], found: Findings
) -> None:
    texts, is_all = train.counted()
    for name, pipe in nlp.pipeline:
        labels = set(getattr(pipe, "labels", ()))
        of_train = labels_in(nlp, name, texts)
        is_trained = name not in frozen and getattr(pipe, "is_trainable", False)
        if of_train is None:
            continue
        if is_trained and labels:
            known = _known(nlp, name, of_train, is_sourced=name in sourced)
            _check_known(name, _factory(nlp, name), known, of_train, train, found, is_sourced=name in sourced)
        if _factory(nlp, name) in PARSERS:  # rare labels are "dep" to it
            labels = labels | of_train.keys() if is_trained else labels
        elif is_trained:
            gone = sorted(labels - of_train.keys())
            if gone and is_all and name in sourced and of_train and _factory(nlp, name) not in _COMPARED:
                found.notes.append(
                    f"'{name}' (sourced) knows {_listed(gone)}, which [{train.name}] does not have: it may unlearn "
                    f"{'it' if len(gone) == 1 else 'them'}."
                )
        of_dev = None if dev is None else labels_in(nlp, name, dev.counted()[0])
        if dev is None or not of_dev:
            continue
        # It is said above that a trained component does not know some of the training data.
        if labels and (never := sorted(of_dev.keys() - labels - (of_train.keys() if is_trained else set()))):
            share = sum(of_dev[label] for label in never) / max(1, sum(of_dev.values()))
            why = f"[{train.name}] does not have" if is_trained else "it does not know (it is frozen)"
            if is_all or not is_trained:
                found.notes.append(
                    f"'{name}' is never right on {_listed(never)} ({share:.1%} of the labels in [{dev.name}]), which "
                    f"{why}."
                )
        least = _FREQUENT * sum(of_train.values())
        unscored = sorted(label for label, n in of_train.items() if n > least and not of_dev[label])
        if is_trained and unscored and dev.counted()[1]:
            found.notes.append(
                f"'{name}' is not scored on {_listed(unscored)}: [{dev.name}] does not have "
                f"{'it' if len(unscored) == 1 else 'them'}, and [{train.name}] does."
            )


def labels_in(nlp: Language, name: str, examples: Sequence[Example]) -> Counter[str] | None:
    """How often a corpus has each label of a component. None: unknown for this kind of component."""
    pipe, factory = nlp.get_pipe(name), _factory(nlp, name)
    docs = [example.reference for example in examples]
    found: Counter[str] = Counter()
    if isinstance(pipe, SpanCategorizer):
        for doc in docs:
            found.update(span.label_ for span in doc.spans.get(pipe.key, ()))
    elif isinstance(pipe, TextCategorizer):
        for doc in docs:
            for label, value in doc.cats.items():
                found[label] += value >= 0.5  # it knows a label that no text has
    elif factory in NERS:
        found.update(ent.label_ for doc in docs for ent in doc.ents)
    elif factory == "tagger":
        found = _of_tokens(nlp, docs, TAG)
    elif factory in PARSERS:
        found = _of_tokens(nlp, docs, DEP)
    elif factory == "morphologizer":
        pairs: Counter[tuple[int, int]] = Counter()
        for doc in docs:
            pairs.update(map(tuple, doc.to_array([MORPH, POS]).tolist()))
        for (morph, pos), number in pairs.items():
            features = Morphology.feats_to_dict(nlp.vocab.strings[morph])
            if pos:
                features[Morphologizer.POS_FEAT] = nlp.vocab.strings[pos]
            found[Morphology.dict_to_feats(features)] += number
    else:
        return None
    found.pop("", None)
    return found


def _of_tokens(nlp: Language, docs: Sequence[Doc], attr: int) -> Counter[str]:
    keys: Counter[int] = Counter()
    for doc in docs:
        keys.update(doc.to_array(attr).tolist())
    return Counter({nlp.vocab.strings[key]: number for key, number in keys.items()})


def _known(nlp: Language, name: str, of_train: Mapping[str, int], *, is_sourced: bool) -> set[str]:
    """The labels that a component can learn, as a corpus has them. A parser learns rare ones as "dep"."""
    pipe: Any = nlp.get_pipe(name)
    known = set(pipe.labels)
    if _factory(nlp, name) in PARSERS:
        least = pipe.cfg["min_action_freq"] if is_sourced else math.inf
        known |= {label for label, number in of_train.items() if number < least or label.upper() == "ROOT"}
    return known


def _check_known(
    name: str,
    factory: str,
    labels: set[str],
    of_train: Mapping[str, int],
    train: Corpus,
    found: Findings,
    *,
    is_sourced: bool,
) -> None:
    """Find labels of the corpus that a component does not know, as it was not initialized with the corpus."""
    unknown = sorted(of_train.keys() - labels)
    if not unknown:
        return
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
    if factory in NERS:
        advice = to_add if is_sourced else f"To have {it} from the start: [initialize.components.{name}.labels]."
        found.notes.append(
            f"{text}: it learns {it} from the first text on that has {it}, in the middle of the training. {advice}"
        )
    elif is_sourced:
        found.stops.append(f"{text}: {_OF_UNKNOWN.get(factory, _KEY_ERROR).format(it=it)}. {to_add}")
    elif factory in _STRICT:
        found.stops.append(
            f"{text}: {_KEY_ERROR}. Let it be initialized with the corpus (without 'source', and without labels in "
            "[initialize.components]), or freeze it."
        )
    else:
        found.notes.append(f"{text}: it can't learn {it}.")


def _check_annotations(nlp: Language, train: Corpus, dev: Corpus | None, found: Findings) -> None:
    """Find the faults in annotations that `spacy debug data` counts."""
    try:
        in_train = compile_gold(train.counted()[0], nlp)
    except Exception as error:  # e.g. annotations that contradict each other
        found.notes.append(
            f"Annotations that can't be used were not counted: spacy debug data failed ({type(error).__name__})."
        )
        return
    words = in_train["n_words"]
    if (misaligned := in_train["n_misaligned_words"]) > _MISALIGNED * words:
        found.notes.append(
            f"{misaligned:,} of {words:,} tokens in [{train.name}] do not line up with the tokenizer of this pipeline: "
            "most of their annotations are not learned. Was the corpus made with another tokenizer?"
        )
    if in_train["ws_ents"]:
        found.notes.append(
            f"{in_train['ws_ents']:,} tokens at the ends of entities in [{train.name}] are white space, which spaCy "
            "calls invalid."
        )
    if in_train["n_cycles"]:
        found.notes.append(f"{count(in_train['n_cycles'], 'tree')} in [{train.name}] have cycles: not learned.")
    factories = {_factory(nlp, name) for name in nlp.pipe_names}
    if "textcat" in factories and dev is not None:
        cats = [example.reference.cats for example in dev.counted()[0] if example.reference.cats]
        # Texts without a category are not annotated for it, and not scored.
        if wrong := sum(list(values.values()).count(1.0) != 1 for values in cats):
            found.notes.append(
                f"{count(wrong, 'text')} in [{dev.name}] have none or several categories, where textcat expects one. "
                "Use textcat_multilabel."
            )


def _listed(names: Sequence[str], most: int = _MOST_NAMED) -> str:
    """In words: "A, B and 3 more"."""
    shown = [f"'{name}'" if not name.isidentifier() else name for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most:,} more" if len(names) > most else "")
