"""A config from texts: the components that they can teach, in spaCy's own template for these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Final

from confection import Config
from spacy.language import Language
from spacy.training import Example
from spacy.util import is_package, load_model_from_config

from ...core import kinds
from ...core.errors import ConfigError
from ...core.kinds import Annotations, Kind
from ...core.words import count, listed

# The order of spaCy's own pipelines. A senter is for texts without trees, which say where sentences start, too.
_ORDER: Final = (kinds.Tags(), kinds.Morphology(), kinds.Lemmas(), kinds.Trees(), kinds.Sentences(), kinds.Entities())
# A kind on fewer texts than this share of those of the most common kind is left out.
LEAST_SHARE: Final = 0.1
# The suggester of spaCy's template proposes spans of up to 3 tokens: enough, if at most this share is longer.
_LONGER: Final = 0.05
_LONGEST: Final = 12
# A score's name has the key of its spans, and is a key of the config, too.
_NO_KEY: Final = ":=\n\r$"


@dataclass(frozen=True)
class Component:
    """A component that has something to learn.

    found (str): What it learns from, in words: "entities on 711 of 711 texts, 1 label".
    """

    name: str
    kind: Kind
    found: str


@dataclass
class Choice:
    """The components for some texts.

    left_out (list[str]): Kinds of annotations that are there and are not learned, with the reason.
    """

    components: list[Component] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def choose_components(found: Annotations) -> Choice:
    """Choose the components that texts can teach."""
    choice = Choice()
    rest = found.of(kinds.Categories())
    wanted = [
        *_ORDER,
        *sorted(found.spans, key=lambda kind: (-found.of(kind).texts, kind.key)),
        kinds.OneCategory() if rest.are_exclusive and len(rest.names) > 1 else kinds.Categories(),
    ]
    there, chosen = list[Kind](), list[Kind]()
    for kind in (kind for kind in wanted if found.of(kind).texts):
        key = kind.key if isinstance(kind, kinds.Spans) else ""
        if key != key.strip() or any(char in key for char in _NO_KEY):
            choice.left_out.append(f"{kind.in_words}: a config can't name the scores of this key")
        elif not (fault := found.fault(kind)):
            there.append(kind)
        elif not isinstance(kind, kinds.Sentences):  # a text with one sentence is annotated, too
            choice.left_out.append(f"{kind.in_words}: {fault}")
    most = max((found.of(kind).texts for kind in there), default=0)
    for kind in there:
        of_kind = found.of(kind)
        on = f"on {of_kind.texts:,} of {found.texts:,} texts"
        if of_kind.texts < LEAST_SHARE * most:
            choice.left_out.append(f"{kind.in_words}: {on} only")
        elif not (isinstance(kind, kinds.Sentences) and any(isinstance(one, kinds.Trees) for one in chosen)):
            labels = f", {count(len(of_kind.labels), 'label')}" if kind.has_labels else ""
            name = _name(kind, [component.name for component in choice.components])
            choice.components.append(Component(name, kind, f"{kind.in_words} {on}{labels}"))
            chosen.append(kind)
    if found.of(kinds.Links()).texts:
        choice.left_out.append(f"{kinds.Links().in_words}: {kinds.Links().factory} needs the knowledge base itself")
    return choice


def _name(kind: Kind, taken: Sequence[str]) -> str:
    """A name for a component: of several for spans, those after the first have their key in theirs."""
    name = kind.factory
    if name in taken and isinstance(kind, kinds.Spans):
        name += "_"
        name += "".join(char if char.isascii() and char.isalnum() else "_" for char in kind.key).strip("_") or "other"
    plain, number = name, 2
    while name in taken:
        name, number = f"{plain}_{number}", number + 1
    return name


# ---------------------------------------------------------------------- the config


def make_config(
    choice: Choice, found: Annotations, *, lang: str, gpu: bool, pretrained: bool, vectors: str | None = None
) -> Config:
    """Fill in spaCy's template for the chosen components.

    gpu (bool): On a transformer. pretrained (bool): With pretrained word vectors, in spaCy's larger network.
    vectors (str | None): A package or folder of word vectors. Default: spaCy's for the language.
    RAISES (ConfigError): A package for it is not installed.
    """
    from spacy.cli.init_config import init_config

    if gpu and find_spec("spacy_transformers") is None:
        raise ConfigError(
            "Can't make a config for --gpu: it trains a transformer, which needs spacy-transformers, and this is not "
            "installed. Install it: pip install 'thinc-torchopt[transformers]'. Or leave --gpu out: spacy train "
            "--gpu-id 0 also trains the config for a CPU on a GPU."
        )
    factories = list(dict.fromkeys(component.kind.factory for component in choice.components))
    optimize = "accuracy" if pretrained and not gpu else "efficiency"
    config: Config = init_config(lang=lang, pipeline=factories, optimize=optimize, gpu=gpu)
    if optimize == "accuracy":
        config["paths"]["vectors"] = vectors or config["paths"]["vectors"]
        _check_vectors(config["paths"]["vectors"], lang)
    keys = {one.kind.key: one for one in choice.components if isinstance(one.kind, kinds.Spans)}
    if keys:
        _set_spans(config, keys, found)
    return config


def _check_vectors(name: str | None, lang: str) -> None:
    if name is None:
        raise ConfigError(
            f"Can't make a config with --pretrained: spaCy's template has no word vectors for the language '{lang}'. "
            "Name some: --paths.vectors FOLDER. Or leave --pretrained out, or use --gpu: transformers are pretrained."
        )
    if not is_package(name) and not Path(name).exists():
        raise ConfigError(
            f"Can't make a config with --pretrained: it needs the word vectors of '{name}', which is not installed. "
            f"Install it: python -m spacy download {name}. Or leave --pretrained out."
        )


def _set_spans(config: Config, keys: Mapping[str, Component], found: Annotations) -> None:
    """Give each key of spans its component, scores, and suggestions that are long enough."""
    blocks, pipeline = config["components"], config["nlp"]["pipeline"]
    factory = kinds.Spans().factory
    template = deepcopy(blocks[factory])
    weights = config["training"]["score_weights"]
    of_spans = {name: weights.pop(name) for name in list(weights) if name.startswith("spans_sc_")}
    at = pipeline.index(factory)
    pipeline[at : at + 1] = [component.name for component in keys.values()]
    for key, component in keys.items():
        block = deepcopy(template)
        block["spans_key"] = key
        longest = _longest(found.of(component.kind).lengths)
        if longest > 3:
            block["suggester"] = {
                "@misc": "spacy.ngram_range_suggester.v1",
                "min_size": 1,
                "max_size": min(longest, _LONGEST),
            }
        blocks[component.name] = block
        for name, weight in of_spans.items():
            share = weight / len(keys) if isinstance(weight, (int, float)) else weight
            weights[name.replace("spans_sc_", f"spans_{key}_", 1)] = share
    # spaCy's template weights the key "sc", and fills that in again unless it is said not to count.
    weights.update({name: None for name in of_spans if "sc" not in keys})


def _longest(lengths: Mapping[int, int]) -> int:
    """The length that no more than a small share of spans exceeds."""
    sizes, total = sorted(lengths), sum(lengths.values())
    seen = accumulate(lengths[size] for size in sizes)
    return next((size for size, n in zip(sizes, seen) if n >= (1 - _LONGER) * total))


def notes_on(choice: Choice, found: Annotations) -> list[str]:
    """Notes on what the components won't learn from these texts."""
    notes = []
    for component in choice.components:
        kind, of_kind = component.kind, found.of(component.kind)
        # Of one category for each text, the check before a training tells it.
        if of_kind.texts < found.texts and not isinstance(kind, kinds.OneCategory):
            rest = found.texts - of_kind.texts
            nothing = f"it takes them as texts without {kind.in_words}"
            how = nothing if kind.is_nothing_without else "it learns nothing there"
            notes.append(f"'{component.name}': {rest:,} of {found.texts:,} texts are not annotated for it: {how}.")
        if isinstance(kind, kinds.Spans) and (longest := _longest(of_kind.lengths)) > _LONGEST:
            notes.append(
                f"'{component.name}' finds spans of up to {_LONGEST} tokens, and some in the texts have {longest} and "
                "more."
            )
    return notes


# ---------------------------------------------------------------------- the language


def blank_pipeline(lang: str, paths: Mapping[str, str | None], *, like: Language | None = None) -> Language:
    """An empty pipeline, to read texts with.

    like (Language | None): With the tokenizer and vocabulary of this one.
    RAISES (ConfigError): spaCy does not have the language.
    """
    config = Config({"nlp": {"lang": lang}, "paths": dict(paths)})
    try:
        if like is None:
            return load_model_from_config(config, auto_fill=True)
        nlp = load_model_from_config(config, vocab=like.vocab, auto_fill=True)
        nlp.tokenizer = like.tokenizer
        return nlp
    except ImportError as error:
        if "[E048]" in str(error):
            raise ConfigError(
                f"Can't use --lang {lang}: spaCy has no language of that code. They are listed in "
                "https://spacy.io/usage/models#languages; xx is for any or several."
            ) from error
        found = " ".join(str(error).split())
        raise ConfigError(f"Can't use --lang {lang}: its tokenizer says: {found}") from error


def languages_of(examples: Iterable[Example]) -> Counter[str]:
    """The languages that texts say to be in: `doc.user_data["lang"]`."""
    said = (example.reference.user_data.get("lang") for example in examples)
    return Counter(lang for lang in said if isinstance(lang, str) and lang)


def notes_on_language(lang: str, examples: Sequence[Example]) -> list[str]:
    """Whether texts say that they are in another language, or in several."""
    notes = []
    said = languages_of(examples)
    others = [other for other, _ in said.most_common() if other != lang]
    if others and lang != "xx":
        found = listed([f"'{other}' ({count(said[other], 'text')})" for other in others])
        notes.append(
            f"The config is for '{lang}', but the texts say that they are in {found}. For several languages: --lang xx."
        )
    return notes
