"""A config from a trained pipeline and new texts: what they train goes on from its weights, and the rest stays.

Texts with a new label say of everything else that it is nothing, unless the pipeline as it was fills in what they leave
open. So the config names that pipeline twice: as the source of its components, and as the teacher of the texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from confection import Config, ConfigValidationError
from spacy.language import Language
from spacy.pipeline import Morphologizer
from spacy.training import Example
from spacy.util import combine_score_weights

from ...core import kinds
from ...core.errors import ConfigError
from ...core.kinds import Annotations, Kind, kind_in
from ...loop.data_check import labels_in
from ...loop.label_conflicts import Comparison, compare

_ADD_LABELS: Final = "thinc-torchopt.add_labels.v1"


@dataclass
class Learner:
    """A component that has something to learn from the texts.

    kind (Kind): What it learns from.
    new (Counter[str]): The labels that it gets, with their number in the texts.
    missing (Counter[str]): Labels that the pipeline finds often, and the texts never have.
    is_open (bool): Whether there is something to fill in.
    complete (list[str]): Its labels that the texts have, if not to have one means something.
    lost (list[str]): Exclusive categories that no text has: nothing can be filled in, as each text has another one.
    """

    name: str
    kind: Kind
    new: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    is_open: bool = False
    complete: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


@dataclass
class Plan:
    """Plan of a training on new texts with a pipeline.

    learners (dict[str, Learner]): By component. encoders (list[str]): What these listen to, and is trained with them.
    frozen (list[str]): All else that could be trained.
    own_copies (dict[str, list[str]]): Learners that share an encoder with others, and get a copy of it: the
        places of their listeners.
    annotating (list[str]): Frozen components whose predictions learners need.
    compared (Comparison): Of the texts with the pipeline's predictions.
    unsupported (list[str]): Labels that can't be learned, with the reason.
    """

    learners: dict[str, Learner]
    encoders: list[str]
    frozen: list[str]
    own_copies: dict[str, list[str]]
    annotating: list[str]
    compared: Comparison
    unsupported: list[str]

    @property
    def new(self) -> dict[str, list[str]]:
        """By component, its new labels, the most frequent ones first."""
        return {name: [label for label, _ in one.new.most_common()] for name, one in self.learners.items() if one.new}

    @property
    def to_add(self) -> dict[str, list[str] | None]:
        """By component, what thinc-torchopt.add_labels.v1 adds. None: what it finds in the texts. So for the edit trees
        of a lemmatizer, and for labels with a "$", which a config reads as part of a variable.
        """
        unwritten = [name for name, labels in self.new.items() if any("$" in label for label in labels)]
        unwritten += [name for name, one in self.learners.items() if isinstance(one.kind, kinds.Lemmas)]
        return {**self.new, **dict.fromkeys(unwritten)}

    @property
    def taught(self) -> list[str]:
        """The components for which there is something to fill in."""
        return [name for name, one in self.learners.items() if one.is_open]

    def complete_for(self, names: Sequence[str]) -> list[str]:
        """The labels of components that the texts annotate completely."""
        return sorted({label for name in names for label in self.learners[name].complete})


def plan_for(nlp: Language, found: Annotations, examples: Sequence[Example]) -> Plan:
    """Find out what a trained pipeline has to learn from texts.

    found (Annotations): Those of the texts.
    RAISES (ConfigError): There is nothing that it can learn.
    """
    learners, unsupported = {}, {}
    for name in nlp.pipe_names:
        kind = kind_in(nlp, name)
        if getattr(nlp.get_pipe(name), "is_trainable", False) and _has(found, kind):
            learners[name] = Learner(name, kind)
            new = _new_labels(nlp, name, examples)
            strange = {label for label in new if not _can_have(kind, label, new[label])}
            learners[name].new = Counter({label: n for label, n in new.items() if label not in strange})
            unsupported[name] = [f"'{name}' can't learn '{label}'" for label in sorted(strange)]
    if not learners:
        raise ConfigError(_nothing_to_learn(nlp, found))
    _drop_strangers(nlp, learners, examples)
    compared = compare(nlp, list(learners), examples, needs=nlp.pipe_names)
    for learner in learners.values():
        _find_open(nlp, learner, examples, compared.missing.get(learner.name, Counter()))
    finders = [name for name, one in learners.items() if isinstance(one.kind, kinds.Entities)]
    if len(finders) > 1 and any(learners[name].is_open for name in finders):
        raise ConfigError(
            f"Can't train {' and '.join(map(repr, finders))} together: expected one component that learns from "
            "entities, or texts with the labels of all. The entities that are filled in for one would be learned by "
            "the others, too. Remove the others with nlp.remove_pipe, save that pipeline, and give it with --from."
        )
    encoders, own_copies = _listened_to(nlp, list(learners))
    trainable = [name for name in nlp.component_names if _is_trainable(nlp, name)]
    frozen = [name for name in trainable if name not in learners and name not in encoders]
    refused = [one for name in learners for one in unsupported[name]]
    return Plan(learners, encoders, frozen, own_copies, _annotating(nlp, learners, frozen), compared, refused)


def _drop_strangers(nlp: Language, learners: dict[str, Learner], examples: Sequence[Example]) -> None:
    """Of several components that find entities, leave out those that know none of the labels, if others do."""
    there = {
        name: labels_in(nlp, name, examples) or Counter()
        for name, one in learners.items()
        if isinstance(one.kind, kinds.Entities)
    }
    knowing = [name for name, labels in there.items() if labels.keys() & set(getattr(nlp.get_pipe(name), "labels", ()))]
    for name in there:
        if knowing and name not in knowing:
            del learners[name]


def _is_trainable(nlp: Language, name: str) -> bool:
    # Also those that are disabled.
    return bool(getattr(dict(nlp.components)[name], "is_trainable", False))


def _has(found: Annotations, kind: Kind) -> bool:
    """Whether texts have something that a trained component can learn. Knowledge bases are made by other means."""
    of_kind = found.of(kind)
    return kind.is_filled and kind.has_some(of_kind) and bool(of_kind.labels or not kind.is_of_each_word)


def _nothing_to_learn(nlp: Language, found: Annotations) -> str:
    wanted = []
    for name in nlp.pipe_names:
        if what := kind_in(nlp, name).in_words:
            wanted.append(f"{what} ('{name}')")
    there = [kind.in_words for kind in found.kinds if _has(found, kind)]
    return (
        f"Can't go on with this pipeline: expected texts with {' or '.join(dict.fromkeys(wanted)) or 'annotations'}, "
        f"found {found.texts:,} texts with {', '.join(there) or 'no annotations'}. To train new components, make a "
        "config without --from."
    )


# ---------------------------------------------------------------------- labels


def _new_labels(nlp: Language, name: str, examples: Sequence[Example]) -> Counter[str]:
    known = set(getattr(nlp.get_pipe(name), "labels", ()))
    found = labels_in(nlp, name, examples) or Counter()
    # Of categories also those that no text has, which spaCy would initialize a new component with, too.
    return Counter({label: n for label, n in found.items() if label not in known})


def _can_have(kind: Kind, label: str, n: int) -> bool:
    if isinstance(kind, kinds.Trees):
        return n >= kinds.LEAST_ACTIONS
    return not isinstance(kind, kinds.Morphology) or f"{Morphologizer.POS_FEAT}=" in label


def _find_open(nlp: Language, learner: Learner, examples: Sequence[Example], missing: Counter[str]) -> None:
    """Find what a teacher can fill in for a component."""
    kind, known = learner.kind, [str(label) for label in getattr(nlp.get_pipe(learner.name), "labels", ())]
    there = {label for label, n in (labels_in(nlp, learner.name, examples) or Counter()).items() if n}
    if kind.can_forget:
        learner.missing = missing
    if isinstance(kind, kinds.OfSpans):
        learner.complete = [label for label in known if label in there and label not in missing]
        rest = set(known) - set(learner.complete)
        learner.is_open = bool(missing or (learner.new and rest) or not kind.has_labels)
    else:
        learner.is_open = bool(missing) or any(kind.has_open(example.reference, known) for example in examples)
    if isinstance(kind, kinds.OneCategory) and learner.new:
        learner.lost = [label for label in known if label not in there]


# ---------------------------------------------------------------------- components


def _listened_to(nlp: Language, learners: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Encoders that only learners listen to, which are trained with them; and the places of the
    listeners of all that get a copy of their own.

    RAISES (ConfigError): A copy is needed, and the config does not tell where the listener is, or of which encoder.
    """
    encoders: list[str] = []
    copies: dict[str, list[str]] = {}
    heard = {name: list(getattr(pipe, "listening_components", ())) for name, pipe in nlp.pipeline}
    for name in nlp.pipe_names:
        listening = [one for one in heard[name] if one in nlp.component_names]
        ours = [one for one in listening if one in learners]
        if ours and len(ours) == len(listening):
            encoders.append(name)
        elif ours:
            others = ", ".join(one for one in listening if one not in learners)
            for learner in ours:
                # A listener with upstream = "*" is fed by the last encoder, and spaCy copies the first.
                if beside := [one for one in nlp.pipe_names if one != name and learner in heard[one]]:
                    raise ConfigError(
                        f"Can't train '{learner}' alone: it shares '{name}' with {others}, and listens to "
                        f"'{beside[0]}', and spaCy can copy an encoder for it only if there is just one. Train all of "
                        "them, on texts that are annotated for each, or begin with a pipeline in which the listener of "
                        f"'{learner}' has the name of its encoder as `upstream`, and not '*'."
                    )
                copies[learner] = [".".join(place) for place in _listeners_in(nlp.get_pipe_config(learner))]
                if not copies[learner]:
                    raise ConfigError(
                        f"Can't train '{learner}' alone: it shares '{name}' with {others}, and its config has no "
                        "listener to replace by a copy. Train all of them, on texts that are annotated for each."
                    )
    return encoders, copies


def _listeners_in(block: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in block.items():
        if isinstance(value, Mapping):
            if "Listener" in str(value.get("@architectures", "")):
                yield (*place, key)
            else:
                yield from _listeners_in(value, (*place, key))


def _annotating(nlp: Language, learners: Mapping[str, Learner], frozen: Sequence[str]) -> list[str]:
    """Components that are not trained, and set what learners need; and those of the pipeline's own training."""
    own = nlp.config.interpolate()["training"].get("annotating_components") or []
    found = []
    for name in nlp.pipe_names:
        if name in learners:
            continue
        later = [one for one in learners if nlp.pipe_names.index(one) > nlp.pipe_names.index(name)]
        needed = {attr for one in later for attr in nlp.get_pipe_meta(one).requires}
        if name in own or needed & set(nlp.get_pipe_meta(name).assigns):
            found.append(name)
    return found


# ---------------------------------------------------------------------- the config


def make_config_from(nlp: Language, source: str, plan: Plan) -> Config:
    """The config of a training that goes on with a pipeline, with spaCy's own readers and optimizer.

    source (str): The folder or package of the pipeline.
    """
    before = nlp.config.interpolate()
    components: dict[str, dict[str, Any]] = {name: {"source": "${paths.pipeline}"} for name in nlp.component_names}
    for name, places in plan.own_copies.items():
        components[name]["replace_listeners"] = places
    copied = {"vocab": "${paths.pipeline}"}
    if hasattr(nlp.tokenizer, "to_bytes"):
        copied["tokenizer"] = "${paths.pipeline}"
    training = deepcopy(dict(before["training"]))
    for name in ("optimizer", "logger", "score_weights"):
        training.pop(name, None)
    training |= {
        "seed": "${system.seed}",
        "gpu_allocator": "${system.gpu_allocator}",
        "train_corpus": "corpora.train",
        "dev_corpus": "corpora.dev",
        "frozen_components": plan.frozen,
        "annotating_components": plan.annotating,
        "max_epochs": max(0, training.get("max_epochs", 0)),
        "before_to_disk": None,
        "score_weights": _score_weights(nlp, before["training"].get("score_weights", {}), plan),
        "optimizer": {"@optimizers": "Adam.v1"},
    }
    # With all settings, as `spacy debug data` fills in none.
    initialize: dict[str, Any] = {
        "vectors": None,
        "init_tok2vec": None,
        "vocab_data": None,
        "lookups": None,
        "before_init": {"@callbacks": "spacy.copy_from_base_model.v1", **copied},
        "after_init": None,
        "components": {},
        "tokenizer": {},
    }
    own = before.get("initialize", {}).get("after_init")
    if own and own.get("@callbacks") == _ADD_LABELS:  # the pipeline has these labels by now
        own = own.get("callback")
    initialize["after_init"] = own
    if plan.to_add:
        # Null: for all learners those of the texts.
        labels = plan.to_add if all(map(_is_key, plan.to_add)) else None
        initialize["after_init"] = {"@callbacks": _ADD_LABELS, "labels": labels, "callback": own}
    return Config(
        {
            "paths": {"train": None, "dev": None, "pipeline": source},
            "system": {
                "gpu_allocator": before["training"].get("gpu_allocator"),
                "seed": before["training"].get("seed", 0),
            },
            "nlp": dict(before["nlp"]),
            "components": components,
            "corpora": {name: _reader_of(before, name) for name in ("train", "dev")},
            "training": training,
            "initialize": initialize,
        }
    )


def _is_key(name: str) -> bool:
    """Whether the name of a component can be a key in a config, which is not so with a ":" in it, for example."""
    config = {"section": {name: None}}
    try:
        return bool(Config().from_str(Config(config).to_str()) == config)
    except ConfigValidationError:
        return False


def _reader_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The reader of new texts: with the settings of the old one, if it is spaCy's."""
    settings = {"@readers": "spacy.Corpus.v1", "gold_preproc": False, "max_length": 0, "augmenter": None}
    old = config.get("corpora", {}).get(name)
    # Of a reader for both corpora, it is one of its settings.
    if isinstance(old, Mapping) and old.get("@readers") == settings["@readers"]:
        settings |= old
    return settings | {"path": f"${{paths.{name}}}", "limit": 0}


def _score_weights(nlp: Language, weights: Mapping[str, float | None], plan: Plan) -> dict[str, float | None]:
    """Count the scores of the trained components: as before, or by spaCy's defaults."""
    # Also of disabled components: spaCy fills in their scores, too.
    names = nlp.component_names
    defaults = {name: nlp.get_pipe_meta(name).default_score_weights or {} for name in names}
    ours = combine_score_weights([defaults[name] for name in plan.learners])
    kept = {key: weight for key, weight in weights.items() if key in ours}
    if total := sum(weight or 0.0 for weight in kept.values()):
        ours = {key: None if weight is None else round(weight / total, 2) for key, weight in kept.items()}
    # spaCy fills in the scores of the others, unless they are said not to count.
    rest = {key: None for name in names for key in defaults[name] if key not in ours}
    return {**ours, **rest}
