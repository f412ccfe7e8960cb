"""The trained components, and their labels: scores, and how often each is annotated, predicted, and predicted rightly.

*kind*: a kind of annotation, as the names of spaCy's scores begin: "ents", "spans_sc", "cats", "tag", "pos", "morph",
"lemma", "dep", "sents".
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confection import Config
from spacy.tokens import Doc, DocBin
from spacy.training.corpus import walk_corpus
from spacy.vocab import Vocab

from ...core.config_checks import pipeline_in, sections_of
from ...core.errors import ConfigError
from ...loop.config_check import MAY_CHANGE, compare_configs
from .log_file import number, printable

if TYPE_CHECKING:
    from .errors import KindOfErrors

# "ents_per_type", "spans_sc_per_type", "dep_las_per_type", "morph_per_feat", "cats_f_per_type", "cats_auc_per_type"
_BY_LABEL = re.compile(r"(.+?)(?:_(las|uas|f|auc|macro_f|micro_f))?_per_(?:type|feat)")
_TITLES = {
    "ents": "Entities",
    "cats": "Categories",
    "tag": "Tags",
    "pos": "Parts of speech",
    "dep": "Dependencies",
    "morph": "Morphology",
    "lemma": "Lemmas",
    "sents": "Sentences",
}
_COLUMNS = (
    ("precision", "p"),
    ("recall", "r"),
    ("F-score", "f"),
    ("AUC", "auc"),
    ("in training", "in_train"),
    ("annotated", "annotated"),
    ("predicted", "predicted"),
    ("right", "right"),
)
_LONGEST = 60
_UNKNOWN = "\u2013"
# Of a larger corpus, the first texts are counted.
MOST_WORDS = 300_000
Counts = dict[str, Counter[str]]


@dataclass
class Label:
    """A label. p, r, f, auc (float): NaN: unknown. Counts: None: unknown.

    in_train (int | None): Annotations with it in the training texts.
    annotated, predicted, right (int | None): In the texts that the scores are of.
    """

    p: float = math.nan
    r: float = math.nan
    f: float = math.nan
    auc: float = math.nan
    in_train: int | None = None
    annotated: int | None = None
    predicted: int | None = None
    right: int | None = None


@dataclass
class Labels:
    """The labels of a kind, the most frequent first. name (str): Of the kind; that of its component too if there are
    several.
    """

    name: str
    rows: dict[str, Label]

    @property
    def title(self) -> str:
        return title_of(self.name)

    @property
    def headers(self) -> list[str]:
        """The columns of a table. Those without a number are left out."""
        return ["label", *(header for header, _ in self._columns)]

    def cells(self, most: int) -> list[list[str]]:
        """The rows of a table. most (int): The most rows."""
        return [
            [shown(label), *(_cell(getattr(row, key)) for _, key in self._columns)]
            for label, row in list(self.rows.items())[:most]
        ]

    @property
    def _columns(self) -> list[tuple[str, str]]:
        rows = self.rows.values()
        return [column for column in _COLUMNS if any(_cell(getattr(row, column[1])) != _UNKNOWN for row in rows)]


@dataclass
class Texts:
    """The texts of a corpus.

    path (str): As the config has it.
    n_texts, n_words (int | None): None: the file was not found.
    counts (dict): Of labels, by kind.
    is_whole (bool): Whether `counts` are of all texts.
    """

    path: str
    n_texts: int | None = None
    n_words: int | None = None
    counts: Counts = field(default_factory=dict)
    is_whole: bool = True


def title_of(name: str) -> str:
    """The title of a kind. name (str): As in `Labels`."""
    kind, of, component = name.partition(" of ")
    title = f"Spans in '{kind.removeprefix('spans_')}'" if kind.startswith("spans_") else _TITLES.get(kind, kind)
    return title + of + component


def tables_of(scores: Mapping[str, Any], train: Counts, dev: Counts) -> list[Labels]:
    """A table for each kind.

    scores (Mapping): All scores, as meta.json has them.
    train, dev (dict): Counts of annotated labels by kind: in the training texts, and in those that the scores are of.
        Empty: unknown.
    """
    tables: dict[str, dict[str, Label]] = defaultdict(dict)
    for key, values in scores.items():
        named = _BY_LABEL.fullmatch(key)
        if named is None or not isinstance(values, dict):
            continue
        rows, which = tables[named[1]], named[2]
        for label, value in values.items():
            row = rows.setdefault(str(label), Label())
            if isinstance(value, dict):
                row.p, row.r, row.f = (number(value.get(name)) for name in "prf")
            elif which == "auc":
                row.auc = number(value)
    for kind, rows in tables.items():
        for label, row in rows.items():
            row.in_train = train[kind][label] if kind in train else None
            row.annotated = dev[kind][label] if kind in dev else None
    return [_sorted(kind, rows) for kind, rows in tables.items() if rows]


def table_of(found: KindOfErrors, train: Counts) -> Labels:
    """The table of a kind whose predictions were compared with annotations. train (dict): As for `tables_of`."""
    rows = {}
    for label in found.annotated.keys() | found.predicted.keys():
        counts = found.annotated[label], found.predicted[label], found.right[label]
        in_train = train[found.kind][label] if found.kind in train else None
        rows[label] = Label(*prf(*counts), number(found.auc.get(label)), in_train, *counts)
    return _sorted(found.name, rows)


def _sorted(name: str, rows: dict[str, Label]) -> Labels:
    by_size = sorted(rows, key=lambda label: (-(rows[label].annotated or rows[label].in_train or 0), label))
    return Labels(name, {label: rows[label] for label in by_size})


def shown(label: str) -> str:
    """A label as a page shows it: on one line, and not too long."""
    label = printable(label)
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}\u2026"


def prf(annotated: int, predicted: int, right: int) -> tuple[float, float, float]:
    """Precision, recall and F-score, as spaCy computes them."""
    p, r = right / predicted if predicted else 0.0, right / annotated if annotated else 0.0
    return p, r, 2 * p * r / (p + r) if p + r else 0.0


def _cell(value: float | None) -> str:
    if value is None or math.isnan(value):
        return _UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


# ---------------------------------------------------------------------- counts


def count_texts(path: str) -> Texts:
    """Count the texts of a corpus in spaCy's format, and its labels."""
    texts = Texts(path)
    try:
        files = [file for file in walk_corpus(path, ".spacy") if file.is_file()] if path and Path(path).exists() else []
        bins = [DocBin().from_disk(file) for file in files]
    except Exception:  # of another format; it is not what the report is about
        return texts
    if not bins:
        return texts
    texts.n_texts = sum(len(one) for one in bins)
    texts.n_words = sum(len(tokens) for one in bins for tokens in one.tokens)
    texts.counts, texts.is_whole = _count(doc for one in bins for doc in one.get_docs(Vocab()))
    return texts


def _count(docs: Iterable[Doc]) -> tuple[Counts, bool]:
    counts: Counts = defaultdict(Counter)
    words = 0
    for doc in docs:
        if words >= MOST_WORDS:
            return counts, False
        words += len(doc)
        for kind, label in labels_in(doc):
            counts[kind][label] += 1
    return counts, True


def labels_in(doc: Doc) -> Iterator[tuple[str, str]]:
    """The kind and label of each annotation of a text."""
    for span in doc.ents:
        yield "ents", span.label_
    for key, spans in doc.spans.items():
        for span in spans:
            yield f"spans_{key}", span.label_
    for label, value in doc.cats.items():
        if value > 0.5:
            yield "cats", label
    has_tags, has_deps, has_morphs = (doc.has_annotation(what) for what in ("TAG", "DEP", "MORPH"))
    if has_tags or has_deps or has_morphs:
        for token in doc:
            if has_tags and token.tag:
                yield "tag", token.tag_
            if has_deps and token.dep:
                yield "dep", token.dep_.lower()
            for feature in token.morph if has_morphs else ():
                yield "morph", str(feature).partition("=")[0]


@dataclass(frozen=True)
class Trained:
    """A trained pipeline, or one in training.

    components (list[str]): Their names, and which are frozen.
    config (dict): The blocks of the config that say how, interpolated: at least "training", if it is known.
    scores (dict): Those of the saved pipeline, as meta.json has them. Empty: there is no such file.
    labels (dict): By component; of a log, the first of them when the training began.
    factories (list[str]): Of the components, as far as they are known.
    """

    components: list[str]
    config: dict[str, Any]
    scores: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, list[str]] = field(default_factory=dict)
    factories: list[str] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, str]:
        """Known settings that stay when a run is resumed, by dotted paths. Blocks of an attachment may change."""
        return {
            f"{section.path}.{key}": repr(value)
            for section in sections_of(self.config)
            for key, value in ({} if "@misc" in section.block else section.block).items()
            if not isinstance(value, dict) and value is not None and "${" not in repr(value)
        }

    def differences(self, other: Trained) -> list[str]:
        """Differences that a log, here, and the pipeline of its own training can't have."""
        here, there = self.settings, other.settings
        same = {path for path in here.keys() & there.keys() if not path.startswith(MAY_CHANGE)}
        here, there = ({path: settings[path] for path in same} for settings in (here, there))
        names = {"components": (self.components, other.components)}
        names |= {f"labels of {name}": (self.labels[name], other.labels.get(name, [])) for name in self.labels}
        for name, (known, others) in names.items():
            if not (set(known) <= set(others) or set(others) <= set(known)):  # some may come late, or not be saved
                here[name], there[name] = repr(known), repr(others)
        return compare_configs(here, there, words=("in the log", "in the pipeline"))

    def corpus(self, name: str) -> str:
        """The path of a corpus. name (str): "train" or "dev". RETURNS (str): Empty: its reader has none."""
        place = _block(self.config, "training").get(f"{name}_corpus")
        section: Any = self.config
        for part in place.split(".") if isinstance(place, str) else ("corpora", name):
            section = _block(section, part)
        path = section.get("path")
        return path if isinstance(path, str) else ""


def read_line(found: Mapping[str, Any]) -> Trained:
    """Read what the first line of a log says. found (Mapping): The value of "trained"."""
    config = found.get("config")
    config = config if isinstance(config, dict) else {}
    components = found.get("components")
    components = components if isinstance(components, list) else []
    components = [one for one in components if isinstance(one, dict)]
    labels = {str(one.get("name")): _texts(one.get("labels")) for one in components}
    factories = _texts([one.get("factory") for one in components])
    names = [one.get("name") for one in components]
    return Trained(_told(names, config), config, labels=labels, factories=factories)


def read_folder(folder: Path) -> Trained:
    """Read what meta.json and config.cfg of a trained pipeline say.

    RAISES (ConfigError): The folder has no such files, or they are damaged.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf8"))
        config = Config().from_str((folder / "config.cfg").read_text(encoding="utf8"), interpolate=False)
    except OSError as error:
        raise ConfigError(
            f"Can't read the trained pipeline {folder}: expected a folder with meta.json and config.cfg, found "
            f"{'a file' if folder.is_file() else 'one without'}. {pipeline_in(folder)}"
        ) from error
    except Exception as error:  # of json, and confection's own kinds
        raise ConfigError(f"Can't read the trained pipeline {folder}: {error} Train or copy it again.") from error
    with suppress(Exception):  # variables are shown as they are
        config = config.interpolate()
    meta = meta if isinstance(meta, dict) else {}
    kept = {name: config.get(name, {}) for name in ("paths", "corpora", "training")}
    labels = {name: [str(label) for label in found] for name, found in _block(meta, "labels").items() if found}
    factories = _texts([_block(config["components"], name).get("factory") for name in _block(config, "components")])
    components = _told(_block(config, "nlp").get("pipeline"), config)
    return Trained(components, kept, _block(meta, "performance"), labels, factories)


def _told(names: Any, config: Mapping[str, Any]) -> list[str]:
    frozen = _texts(_block(config, "training").get("frozen_components"))
    return [f"{name} (frozen)" if name in frozen else name for name in _texts(names)]


def _block(config: Any, name: str) -> Any:
    found = config.get(name) if isinstance(config, dict) else None
    return found if isinstance(found, dict) else {}


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
