"""Checks of a config as a whole: does it name anything of ours, do its corpora exist, are its settings known, is the
device there? spaCy tells these late, or not at all.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from confection import Config
from spacy.schemas import ConfigSchemaInit, ConfigSchemaNlp, ConfigSchemaTraining
from spacy.training.corpus import walk_corpus
from thinc.api import require_gpu

from .errors import ConfigError, ConfigKeyError
from .kinds import Entities, Trees, kind_of
from .near_misses import did_you_mean, there_are
from .text_files import check_encoding

# Prefixes of our registered names, and the registries in which all names are ours.
PREFIXES: Final = ("thinc-torchopt.", "thinc_torchopt.", "torch.", "torch.optim.", "pytorch-optimizer.")
REGISTRIES: Final = ("torch_optimizers", "gradient_modules", "regularizers")
# spaCy's readers of files, with the endings of their files; and the first byte of its binary format: a header of
# zlib's, at its usual settings.
_READERS: Final = {"spacy.Corpus.v1": ".spacy", "spacy.JsonlCorpus.v1": ".jsonl", "spacy.PlainTextCorpus.v1": ".txt"}
_ZLIB: Final = b"\x78"
_LFS: Final = b"version https://git-lfs"


class ConfigSection(NamedTuple):
    """A section of a config: its dotted path, and its contents."""

    path: str
    block: Mapping[str, Any]


def sections_of(config: Mapping[str, Any], prefix: str = "") -> Iterator[ConfigSection]:
    """All sections of a config, each before its subsections."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield ConfigSection(f"{prefix}{key}", value)
            yield from sections_of(value, f"{prefix}{key}.")


def names_ours(config: Mapping[str, Any]) -> bool:
    """Whether a config names something of ours, or tries to."""
    return any(
        key.startswith("@") and (key[1:] in REGISTRIES or str(value).startswith(PREFIXES))
        for section in sections_of(config)
        for key, value in section.block.items()
    )


def names_our_optimizer(config: Mapping[str, Any]) -> bool:
    """Whether one of our optimizers trains."""
    block = config.get("training", {}).get("optimizer", {})
    return str(block.get("@optimizers", "")).startswith("thinc-torchopt.")


def mentions_ours(text: str) -> bool:
    """Whether the text of a config does, before it is parsed."""
    return _MENTIONED.search(text) is not None


_MENTIONED: Final = re.compile(
    rf"""^\s*@(?:\w+\s*=\s*"(?:{"|".join(map(re.escape, PREFIXES))})|(?:{"|".join(REGISTRIES)})\b)""", re.MULTILINE
)


def check_gpu(use_gpu: int) -> None:
    """Use a GPU, as spaCy's commands do. use_gpu (int): Its number, as in --gpu-id; -1: none.

    RAISES (ConfigError): It can't be used.
    """
    if use_gpu < 0:
        return
    try:
        require_gpu(use_gpu)
    except Exception as error:  # thinc raises a ValueError, and CuPy errors of its own
        found = (" ".join(str(error).split()) or type(error).__name__).removeprefix("Cannot use GPU, ").rstrip(".")
        raise ConfigError(
            f"Can't use --gpu-id {use_gpu}: {found}. spaCy needs CuPy, too: pip install cupy-cuda12x, or cupy-cuda13x "
            "if nvidia-smi shows CUDA 13. To train on the CPU, leave --gpu-id out."
        ) from error


def check_training_section(config: Mapping[str, Any]) -> None:
    """Check the keys of [training], and of spaCy's other sections, where it ignores unknown ones.

    RAISES (ConfigError): There is no section [training], or no such setting.
    """
    if not isinstance(config.get("training"), Mapping):
        raise ConfigError(
            "Can't train with this config: expected a section [training], found none. Make a config from texts: spacy "
            "torchopt init config.cfg --lang en --paths.train train.spacy. Or fill in spaCy's defaults: spacy init "
            "fill-config."
        )
    _check_numbers(config.get("training", {}))
    _check_components(config)
    check_names(f"{section}.{key}" for section in _SCHEMAS for key in config.get(section, {}))


# The sections in which spaCy knows all settings.
_SCHEMAS: Final[Mapping[str, Any]] = {
    "training": ConfigSchemaTraining,
    "nlp": ConfigSchemaNlp,
    "initialize": ConfigSchemaInit,
}


def check_names(paths: Iterable[str]) -> None:
    """Check the names of settings, by dotted paths: spaCy ignores unknown ones in its own sections.

    RAISES (ConfigError): There is no such setting.
    """
    for path in paths:
        section, _, rest = path.partition(".")
        key = rest.partition(".")[0]
        if section in _SCHEMAS and key not in (known := [*_SCHEMAS[section].model_fields]):
            raise ConfigKeyError(
                f"Can't read [{section}]: there is no setting '{key}', and spaCy would ignore it."
                f"{did_you_mean(key, known, is_setting=True) or there_are(known)}"
            )


# The least and the largest values of numbers in [training].
_RANGES: Final = {
    "max_steps": (0, math.inf),
    "max_epochs": (-1, math.inf),
    "patience": (0, math.inf),
    "eval_frequency": (1, math.inf),
    "accumulate_gradient": (1, math.inf),
    "dropout": (0, 1),
}


def _check_numbers(training: Mapping[str, Any]) -> None:
    """RAISES (ConfigError): A number that spaCy would stumble over in the middle of a training, or take as it is."""
    for key, (least, most) in _RANGES.items():
        value = training.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not least <= value <= most:
            bounds = f"at least {least}" if most == math.inf else f"a number from {least} to {most}"
            raise ConfigError(f"Can't set '{key}' in [training]: expected {bounds}, found {value}.")
    weights = training.get("score_weights", {})
    for key, value in weights.items() if isinstance(weights, Mapping) else ():
        if isinstance(value, str) and value.startswith("${"):
            continue
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ConfigError(
                f"Can't set '{key}' in [training.score_weights]: expected a number, or null to leave this score out, "
                f"found {value!r}."
            )


def _check_components(config: Mapping[str, Any]) -> None:
    """RAISES (ConfigError): [training] names a component that is not in the pipeline."""
    pipeline = config.get("nlp", {}).get("pipeline")
    for key in ("frozen_components", "annotating_components"):
        for name in config.get("training", {}).get(key) or ():
            if isinstance(pipeline, list) and isinstance(name, str) and name not in pipeline and "${" not in name:
                raise ConfigError(
                    f"Can't set '{key}' in [training]: there is no component '{name}' in the pipeline."
                    f"{did_you_mean(name, pipeline) or there_are(pipeline)}"
                )


def check_corpora(
    config: Mapping[str, Any],
    which: Sequence[str] = ("train_corpus", "dev_corpus"),
    *,
    within: str = "training",
    files: bool = True,
) -> None:
    """Check the files of a training, if spaCy's own readers read them.

    config (Mapping): If it is not interpolated, the errors say how to set a path.
    which (Sequence[str]): Settings that name the corpora. within (str): The section of these settings.
    files (bool): Look at the files too, not only whether their paths are set.
    RAISES (ConfigError): A path is not set, does not exist, or leads to an empty file or one of another format.
    """
    values = config.interpolate() if isinstance(config, Config) else config
    for setting in which:
        name = values.get(within, {}).get(setting, f"corpora.{setting.removesuffix('_corpus')}")
        if not isinstance(name, str):
            raise ConfigError(
                f"Can't set '{setting}' in [{within}]: expected the name of a section, found {name!r}. To use "
                "several corpora, put their files into one folder, and set it as the path of one section."
            )
        block = _at(values, name)
        corpora = values.get("corpora", {})
        known = {"corpora.train", "corpora.dev", *(section.path for section in sections_of({"corpora": corpora}))}
        # One function may give several corpora.
        if name.startswith("corpora.") and name not in known and "@readers" not in corpora:
            raise ConfigError(
                f"Can't set '{setting}' in [{within}]: there is no section [{name}]."
                f"{did_you_mean(name, known - {'corpora'})}"
            )
        # One reader may be within another.
        for section in (ConfigSection(name, block), *sections_of(block, f"{name}.")):
            ending = _READERS.get(str(section.block.get("@readers")))
            if ending is not None:
                written = _at(config, section.path).get("path")
                _check_file(section.path, section.block.get("path"), written, ending, files=files)


def leaves_out(config: Mapping[str, Any], corpus: str) -> str:
    """The setting by which spaCy's reader leaves out texts of a corpus, in words. Empty: there is none."""
    values = config.interpolate() if isinstance(config, Config) else config
    block = _at(values, corpus)
    for section in (ConfigSection(corpus, block), *sections_of(block, f"{corpus}.")):
        if section.block.get("@readers") == "spacy.Corpus.v1" and (most := section.block.get("max_length")):
            return (
                f" max_length = {most} in [{section.path}] leaves out texts with so many tokens, unless sentences in "
                "them are shorter: 0 keeps all."
            )
    return ""


def check_labels(config: Mapping[str, Any]) -> None:
    """Check the files of labels that components are initialized with.

    config (Mapping): Interpolated, or with variables.
    RAISES (ConfigError): One is missing, although it is required, is not JSON in UTF-8, or is not what the component
        reads.
    """
    values = config.interpolate() if isinstance(config, Config) else config
    for section in sections_of({"initialize": values.get("initialize", {})}):
        if isinstance(given := section.block.get("labels"), list):
            _check_form(values, section.path, given, f"'labels' in [{section.path}]")
        path = section.block.get("path")
        if section.block.get("@readers") != "spacy.read_labels.v1" or path is None:
            continue
        file = Path(str(path))
        if not file.is_file():
            if section.block.get("require", False):
                raise ConfigError(
                    f"Can't read [{section.path}]: there is no file '{path}'. Correct the path; spacy init labels "
                    "writes such files."
                )
            continue
        check_encoding(file, f"[{section.path}], '{path}'")
        try:
            labels = json.loads(file.read_text("utf8"))
        except ValueError as error:
            raise ConfigError(
                f"Can't read [{section.path}]: '{path}' is not JSON ({error}). Write it with spacy init labels."
            ) from None
        _check_form(values, section.path.rpartition(".")[0], labels, f"[{section.path}], '{path}'")


def _check_form(config: Mapping[str, Any], section: str, labels: Any, where: str) -> None:
    """RAISES (ConfigError): A component that learns transitions gets a list: spaCy's error does not say so."""
    factory = _at(config, f"components.{section.rpartition('.')[2]}").get("factory")
    if isinstance(kind_of(str(factory)), (Trees, Entities)) and not isinstance(labels, Mapping):
        raise ConfigError(
            f"Can't read {where}: expected the transitions of a {factory}, as spacy init labels writes them, found a "
            "list. Write them with that command; or leave 'labels' out, and they are read from the training data."
        )


def pipeline_in(folder: Path) -> str:
    """Advice for a folder that is no pipeline: the one in it, if spaCy has saved one there."""
    inside = [folder / name for name in ("model-best", "model-last") if (folder / name / "config.cfg").is_file()]
    return f"Give the one in it: {inside[0]}." if inside else "Give the folder that spacy train has saved."


def check_output(path: Path) -> None:
    """Check the folder for models before anything is computed. Nothing is left there.

    RAISES (ConfigError): It is a file, or can't be written to.
    """
    if path.is_symlink() and not path.exists():
        raise ConfigError(
            f"Can't save models to --output '{path}': it is a link to '{os.readlink(path)}', which does not exist. "
            "Make that folder, or give another name."
        )
    there = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if not there.is_dir():
        raise ConfigError(
            f"Can't save models to --output '{path}': expected a folder, found a file, '{there}'. Give another name."
        )
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(65_536))
    except OSError as error:
        raise ConfigError(
            f"Can't save models to --output '{path}': '{there}' can't be written to ({error.strerror or error}). Make "
            "room on the disk, change the folder's permissions, or give another folder."
        ) from error


def check_removed(config: Config, output: Path) -> None:
    """Check that no corpus needs a model that `spacy train` removes from the folder for models, such as its teacher.

    config (Config): Not interpolated. RAISES (ConfigError): One does.
    """
    corpora: Mapping[str, Any] = {}
    with suppress(Exception):  # spaCy will report it
        corpora = config.interpolate().get("corpora", {})
    removed = [(output / name).resolve() for name in ("model-best", "model-last")]
    for section in sections_of(corpora, "corpora."):
        for key, value in section.block.items():
            if isinstance(value, str) and any(Path(value).resolve().is_relative_to(folder) for folder in removed):
                raise ConfigError(
                    f"Can't save models to --output '{output}': spacy train removes model-best and model-last there "
                    f"when it begins, and {key} = '{value}' in [{section.path}] needs them. Give another folder."
                )


def _check_file(name: str, path: Any, written: Any, ending: str, *, files: bool) -> None:
    variable = re.fullmatch(r"\$\{(.+)\}", written) if isinstance(written, str) else None
    flag = f"--{variable[1].replace(':', '.')}" if variable else f"--{name}.path"
    example = f"{flag} {name.rpartition('.')[2]}{ending}"
    if path is None:
        raise ConfigError(
            f"Can't read [{name}]: its path is not set. Give it on the command line, as in {example}, or in the config."
        )
    if not files:
        return
    file = Path(str(path))
    if not file.exists():
        raise ConfigError(
            f"Can't read [{name}]: there is no file or folder '{path}'. Correct the path in the config, or give "
            f"another: {example}."
        )
    is_binary = ending == ".spacy"
    if not is_binary:
        check_encoding(file, f"[{name}], '{path}'")
    if is_binary and file.is_file() and file.stat().st_size:
        with file.open("rb") as opened:
            start = opened.read(len(_LFS))
            if start == _LFS:
                raise ConfigError(
                    f"Can't read [{name}]: '{path}' is a pointer of Git LFS. Fetch the file: git lfs pull."
                )
            if start[:1] != _ZLIB:
                raise ConfigError(
                    f"Can't read [{name}]: '{path}' is not in spaCy's binary format. Convert it, and give the result: "
                    f"spacy torchopt convert {path} {file.stem}.spacy."
                )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # spaCy's, about the same
        found = walk_corpus(file, ending)
    if not found:
        there = f"there is no such file in '{path}'" if file.is_dir() else f"'{path}' does not"
        raise ConfigError(
            f"Can't read [{name}]: its reader reads files that end in {ending}, and {there}. Correct the path, rename "
            f"the files, or use the reader for their format."
        )
    if not any(one.stat().st_size for one in found):
        raise ConfigError(f"Can't read [{name}]: '{path}' is empty. Write the corpus again, or correct the path.")


def _at(config: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    for part in path.split("."):
        found = config.get(part)
        if not isinstance(found, Mapping):
            return {}
        config = found
    return config
