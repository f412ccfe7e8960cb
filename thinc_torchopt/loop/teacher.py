"""A teacher: a frozen pipeline that annotates texts for another one.

It is loaded when it is first needed, and freed when it is not: it and the pipeline that learns need not be in memory
together. What it says is kept in files, by a digest of the teacher and of the text. Each is written once, whole, and
has a digest of its content in its name: a damaged one is removed, and made again.

    cache/
      v3-3f0c.../           the version of this form, and a digest of the teacher and of its components that annotate
        8a1e....jsonl       texts: one a line, with its digest, its number of tokens, and what was predicted

Several processes may share a folder.
"""

from __future__ import annotations

import gc
import hashlib
import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import getclosurevars, isfunction
from itertools import islice
from pathlib import Path
from typing import Any, Final

import catalogue
import spacy
import torch
from confection import Config
from spacy import about
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import get_package_path, is_package

from ..core.errors import CheckpointWarning, ConfigError
from ..core.kinds import Rule, kind_of
from .filling import Predicted, Taught, fits, predicted_in, taught_by
from .progress_bars import show_progress
from .random_state import preserved_random

# Of the form of the cache, with the predictions in it.
_VERSION: Final = 3
# Texts that a pipeline annotates at once.
_BATCH: Final = 128
# Texts whose predictions are in memory without a cache, the latest ones: a stream has no end.
_MOST_IN_MEMORY: Final = 100_000
# Characters of a digest in the name of a file or folder.
_SHORT: Final = 16
# Neither the weights nor the settings of a pipeline.
_NOT_HASHED: Final = ("meta.json",)
# The module of a file that --code names. SOURCE: spacy/cli/_util.py, `import_code`.
_CODE: Final = "python_code"


class Teacher:
    """A frozen pipeline.

    pipeline (str | Path): Its folder, or the name of its package.
    cache (Path | None): The folder of its predictions. None: those of the latest 100,000 texts are kept in memory.
    where (str): The setting, for errors.
    RAISES (ConfigError): There is no such pipeline.

    Public: `path` (its folder), `components` (as rules need them), `language`, `n_predicted` (texts that it has
    annotated; others were in the cache).
    """

    def __init__(self, pipeline: str | Path, *, cache: str | Path | None = None, where: str = "'teacher'"):
        self._name, self._where = str(pipeline), where
        self.path = _folder_of(self._name, where)
        self.cache = None if cache is None else Path(cache)
        self.n_predicted = 0
        self.components = self._read_components()
        self._digest: str | None = None
        self._nlp: Language | None = None
        self._known: dict[str, dict[str, Predicted]] = {}  # by folder of the cache and digest of the text
        self._read: set[Path] = set()

    def _read_components(self) -> dict[str, Taught]:
        """From the config and the meta data: nothing is loaded."""
        try:
            config = Config().from_disk(self.path / "config.cfg", interpolate=True)
            labels = json.loads((self.path / "meta.json").read_text("utf8")).get("labels", {})
            self.language = str(config["nlp"]["lang"])
            disabled = config["nlp"].get("disabled", [])
            return {
                name: taught_by(kind_of(block["factory"], block), labels.get(name, ()))
                for name, block in ((name, config["components"][name]) for name in config["nlp"]["pipeline"])
                if name not in disabled
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"Can't use {self._where}: expected a trained pipeline, found '{self._name}', whose config.cfg or "
                f"meta.json can't be read: {' '.join(str(error).split()) or type(error).__name__}"
            ) from error

    @property
    def digest(self) -> str:
        """A digest of the weights and of the config. The pipeline is not loaded for it."""
        if self._digest is None:
            found = hashlib.sha256()
            for file in sorted(self.path.rglob("*")):
                if file.is_file() and file.name not in _NOT_HASHED:
                    found.update(f"{file.relative_to(self.path).as_posix()}:{file.stat().st_size}:".encode())
                    with file.open("rb") as opened:
                        while block := opened.read(1 << 20):
                            found.update(block)
            self._digest = found.hexdigest()
        return self._digest

    @property
    def nlp(self) -> Language:
        """The pipeline, loaded. RAISES (ConfigError): It can't be loaded."""
        if self._nlp is None:
            try:
                with preserved_random():
                    self._nlp = spacy.load(self.path)
            except Exception as error:  # of a package that is not installed, of spaCy, of torch
                raise ConfigError(
                    f"Can't load {self._where}, '{self._name}': {' '.join(str(error).split()) or type(error).__name__}"
                ) from error
        return self._nlp

    def forget(self) -> None:
        """Forget the predictions that are in memory. Those of the cache are read again when they are needed."""
        self._known, self._read = {}, set()

    def free(self) -> None:
        """Free the pipeline's memory, and what is in the cache. Both are loaded again when they are needed."""
        if self.cache is not None:
            self.forget()
        if self._nlp is not None:
            self._nlp = None
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    # ------------------------------------------------------------------ predictions

    def predict(self, docs: Sequence[Doc], rules: Sequence[Rule]) -> list[Predicted]:
        """Annotate texts, in batches, unless the cache has them. Random generators stay as they are.

        docs (Sequence[Doc]): Only their tokens are read.
        RETURNS (list[Predicted]): What the teacher says of each text.
        RAISES (ConfigError): The pipeline can't be loaded, or the cache can't be written.
        """
        folder = self._folder(rules)
        known = self._known.setdefault(folder, {})
        digests = [digest_of(doc) for doc in docs]
        missing = {digest: doc for digest, doc in zip(digests, docs) if digest not in known}
        if missing and self.cache is not None:
            self._read_cache(self.cache / folder, known, missing, rules)
            missing = {digest: doc for digest, doc in missing.items() if digest not in known}
        if missing:
            self._annotate(folder, missing, rules, known)
        found = [known[digest] for digest in digests]
        if self.cache is None:
            for digest in list(islice(known, max(0, len(known) - _MOST_IN_MEMORY))):
                del known[digest]
        return found

    def _folder(self, rules: Sequence[Rule]) -> str:
        """The name of the folder in the cache: of the teacher, the code that it runs with, and its components that
        annotate.
        """
        components = sorted({(rule.theirs.place, rule.teacher) for rule in rules})
        of = json.dumps([self.digest, about.__version__, _digest_of_code(), components])
        return f"v{_VERSION}-{_digest(of)[:_SHORT]}"

    def _annotate(
        self, folder: str, docs: Mapping[str, Doc], rules: Sequence[Rule], known: dict[str, Predicted]
    ) -> None:
        from ..core.state import write_text  # who lists spaCy's readers does not need the optimizer

        # A transformer takes minutes, before the training shows anything. A few texts, as of a stream, take no time.
        progress = show_progress(len(docs), f"The teacher annotates {len(docs):,} texts", wanted=len(docs) >= _BATCH)
        with self.nlp.memory_zone(), progress as bar:
            found = dict(zip(docs, annotate(self.nlp, list(docs.values()), rules, bar.update)))
        self.n_predicted += len(found)
        if self.cache is not None:
            content = "".join(
                json.dumps([digest, len(docs[digest]), predicted]) + "\n" for digest, predicted in found.items()
            )
            path = self.cache / folder / f"{_digest(content)}.jsonl"
            try:
                write_text(path, content)
            except OSError as error:
                raise ConfigError(
                    f"Can't keep the predictions of {self._where} in '{self.cache}': {type(error).__name__}: {error}. "
                    "Set another 'cache', or null for none."
                ) from error
            self._read.add(path)
        known.update(found)

    # ------------------------------------------------------------------ the cache

    def _read_cache(
        self, folder: Path, known: dict[str, Predicted], wanted: Collection[str], rules: Sequence[Rule]
    ) -> None:
        """Read files that are new, until all that is wanted is known."""
        for path in sorted({*folder.glob("*.jsonl")} - self._read):
            if all(digest in known for digest in wanted):
                break
            self._read.add(path)
            try:
                content = path.read_text("utf8")
                if _digest(content) != path.stem:
                    raise ValueError("its content has changed")
                known.update(dict(_from_line(line, rules) for line in content.splitlines()))
            except (OSError, ValueError) as error:
                warnings.warn(
                    CheckpointWarning(
                        f"Predictions of {self._where} in '{path}' are damaged, and are made again: {error}."
                    ),
                    stacklevel=5,
                )
                with suppress(OSError):  # on a disk that can only be read, it stays
                    path.unlink(missing_ok=True)


def annotate(
    nlp: Language, docs: Sequence[Doc], rules: Sequence[Rule], update: Callable[[], None] = lambda: None
) -> list[Predicted]:
    """Predict the annotations of texts. Random generators and the texts stay as they are.

    docs (Sequence[Doc]): Only their tokens are read. rules (Sequence[Rule]): What is wanted.
    update (Callable): Called after each text.
    """
    found = []
    with preserved_random(), nlp.select_pipes(enable=_needed(nlp, rules)):
        # One by one: a transformer's activations stay with their text.
        copies = (
            Doc(nlp.vocab, words=[token.text for token in doc], spaces=[bool(token.whitespace_) for token in doc])
            for doc in docs
        )
        for doc in nlp.pipe(copies, batch_size=_BATCH):
            found.append(predicted_in(doc, rules))
            update()
    # As JSON has it, whether it comes from a file or not.
    same: list[Predicted] = json.loads(json.dumps(found))
    return same


def _needed(nlp: Language, rules: Sequence[Rule]) -> list[str]:
    """The components that take part in what is wanted. Others, such as a parser for entities, take time.

    Left out are those that set other annotations only, and that no other component listens to or was trained on.
    """
    wanted = {rule.teacher for rule in rules}
    read = set(nlp.config["training"].get("annotating_components", []))
    attributes = {attribute for name in wanted for attribute in nlp.get_pipe_meta(name).assigns}
    kept: set[str] = set()
    for name, pipe in reversed(nlp.pipeline):  # what others listen to comes before them
        assigned = set(nlp.get_pipe_meta(name).assigns)
        is_heard = kept & set(getattr(pipe, "listening_components", []))
        if name in wanted or name in read or is_heard or not assigned or assigned & attributes:
            kept.add(name)
    return [name for name in nlp.pipe_names if name in kept]


def digest_of(doc: Doc) -> str:
    """A digest of a text's tokens."""
    return _digest(json.dumps([[token.text for token in doc], [bool(token.whitespace_) for token in doc]]))


def _from_line(line: str, rules: Sequence[Rule]) -> tuple[str, Predicted]:
    """The digest of a text, and its predictions. RAISES (ValueError): It has another form."""
    said: Any = json.loads(line)
    match said:
        case [str(digest), int(n_tokens), dict(predicted)] if fits(predicted, n_tokens, rules):
            return digest, predicted
    raise ValueError("its content has another form")


def _digest_of_code() -> str:
    """A digest of the files of --code whose functions are registered. Empty: there are none."""
    found = hashlib.sha256()
    for file in sorted({file for function in catalogue.REGISTRY.values() for file in _code_files(function)}):
        with suppress(OSError):  # it was moved since
            found.update(Path(file).read_bytes())
    return found.hexdigest()


def _code_files(function: Any) -> Iterator[str]:
    """The file of a function or class, if --code names it. spaCy wraps the function of a component."""
    wrapped = [value for _, value in sorted(getclosurevars(function).nonlocals.items())] if isfunction(function) else []
    for one in (function, *wrapped):
        if getattr(one, "__module__", None) == _CODE:
            for part in vars(one).values() if isinstance(one, type) else (one,):
                if isfunction(part):
                    yield part.__code__.co_filename


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf8", errors="surrogatepass")).hexdigest()[: 2 * _SHORT]


def _folder_of(name: str, where: str) -> Path:
    """The folder of a pipeline. RAISES (ConfigError): There is none."""
    path = Path(name)
    if name and is_package(name):  # with Python 3.10 any package has the name ""
        package = get_package_path(name)
        # The pipeline is in a folder of the package, beside its code. SOURCE: spacy.util.load_model_from_init_py
        folders = [file.parent for file in sorted(package.glob("*/config.cfg"))]
        if len(folders) == 1:
            return folders[0]
    if not (path / "config.cfg").is_file():
        found = "a folder without config.cfg" if path.is_dir() else "a file" if path.exists() else "nothing there"
        raise ConfigError(
            f"Can't use {where}: expected the folder of a trained pipeline, or the name of an installed package, found "
            f"'{name}': {found}. Correct it, or train that pipeline first."
        )
    return path
