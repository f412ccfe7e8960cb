"""Labels for sourced components, before a training begins.

spaCy 3.8 gives components labels in [initialize] so:

| component | its labels |
| --- | --- |
| without `source` | those of [corpora.train]; or those of `labels` in [initialize.components.NAME] alone |
| with `source` | those of the pipeline that it comes from alone: spaCy does not initialize it |

So one of the two is forgotten. In the training, a sourced ner gets a label with the first text that has it; a parser
learns it as "dep"; textcat, morphologizer and trainable_lemmatizer ignore it; tagger and spancat stop with a KeyError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Optional

from spacy.language import Language
from spacy.pipeline import DependencyParser, EditTreeLemmatizer
from spacy.training import Example
from spacy.util import resolve_dot_names
from thinc.api import Config

from ..core.checks import Section
from ..core.errors import ConfigError
from ..core.near_misses import did_you_mean
from .data_check import labels_in
from .random_state import preserved_random

# As spaCy's own initialization reads of a corpus that is streamed. SOURCE: spacy/training/initialize.py, `init_nlp`.
_OF_STREAM = 100
_SECTION = Section("[initialize.after_init]")


def create_add_labels(
    labels: dict[str, Any] | None = None, callback: Optional[Callable[[Language], Language]] = None
) -> Callable[[Language], Language]:
    """Add labels to components before the training, with the labels that they have. For [initialize.after_init].
    Registered as `thinc-torchopt.add_labels.v1`.

    labels (dict[str, list | None] | None): The labels by component; for a trainable_lemmatizer pairs of a word and its
        lemma. None for a component: those that [training.train_corpus] has, as spaCy would initialize it with; of the
        first 100 texts if that is streamed. None for all: so for each sourced component that is trained.
    callback (Callable): Another callback for [initialize.after_init], which has room for one. Called first.
    RETURNS (Callable): Gets the pipeline. In a run that goes on after a checkpoint it does the same again: the texts
        must be the same then, or the labels be given.
    RAISES (ConfigError): Labels that are no list. When it is called: no such component, one that is frozen, or labels
        that it can't have. (PipelineError): The component can't get labels.
    """
    for name, given in _SECTION.section("labels", {} if labels is None else labels).items():
        if not isinstance(given, list | None):
            raise ConfigError(
                f"Can't set '{name}' in [initialize.after_init.labels]: expected a list of labels, or null for those "
                f"of the texts, found {given!r}."
            )

    if callback is not None and not callable(callback):
        _SECTION.refuse("callback", "a section with @callbacks, or null", callback)

    def after_init(nlp: Language) -> Language:
        from ..core.labels import add_labels  # who lists spaCy's registries does not need the optimizer

        if callback is not None:
            nlp = callback(nlp)
        config = nlp.config.interpolate()
        frozen = config["training"]["frozen_components"]
        wanted: Mapping[str, Sequence[Any] | None] = labels or {}
        if labels is None:
            # Those that are switched off while spaCy initializes the others.
            wanted = dict.fromkeys(name for name in nlp.disabled if name not in frozen)
        elif stuck := [name for name in labels if name in frozen]:
            raise ConfigError(
                f"Can't add labels to '{stuck[0]}' in [initialize.after_init.labels]: expected a component that is "
                "trained, found one in [training] frozen_components. Its new labels would never be predicted. Take it "
                "out of one of the two."
            )
        if missing := [name for name in wanted if name not in nlp.component_names]:
            raise ConfigError(
                f"Can't add labels to '{missing[0]}' in [initialize.after_init.labels]: expected a component of [nlp] "
                f"pipeline, found none of that name.{did_you_mean(missing[0], nlp.component_names)}"
            )
        examples = _examples(nlp, config) if None in wanted.values() else []
        for name, given in wanted.items():
            add_labels(nlp, name, _labels_of(nlp, name, examples) if given is None else given)
        return nlp

    return after_init


def _examples(nlp: Language, config: Config) -> list[Example]:
    """The training data."""
    training = config["training"]
    with preserved_random():
        (reader,) = resolve_dot_names(config, [training["train_corpus"]])
        return list(islice(reader(nlp), _OF_STREAM if training["max_epochs"] == -1 else None))


def _labels_of(nlp: Language, name: str, examples: Sequence[Example]) -> Sequence[Any]:
    """The labels that spaCy would initialize a component with. Empty for one without labels."""
    pipe: Any = nlp.get_pipe(name)
    if isinstance(pipe, DependencyParser):
        actions = pipe.moves.get_actions(
            examples=examples, min_freq=pipe.cfg["min_action_freq"], learn_tokens=pipe.cfg["learn_tokens"]
        )
        return sorted({label for labels in actions.values() for label in labels if label})
    if isinstance(pipe, EditTreeLemmatizer):
        pairs = Counter((token.text, token.lemma_) for one in examples for token in one.reference if token.lemma)
        trees: Counter[int] = Counter()
        by_tree: dict[int, tuple[str, str]] = {}
        for pair, number in pairs.items():
            tree = pipe.trees.add(*pair)
            trees[tree] += number
            by_tree.setdefault(tree, pair)
        return [pair for tree, pair in by_tree.items() if trees[tree] >= pipe.min_tree_freq]
    return sorted(labels_in(nlp, name, examples) or ())
