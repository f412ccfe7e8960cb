"""Errors of spaCy, thinc and confection about a config or a command, in words for users: they name the section, and
suggest what was meant.
"""

from __future__ import annotations

import re
import sys
import types
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from configparser import (
    DuplicateOptionError,
    DuplicateSectionError,
    InterpolationMissingOptionError,
)
from contextlib import contextmanager, suppress
from importlib.metadata import version
from inspect import getsource, signature
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import numpy
from catalogue import RegistryError
from confection import Config, ConfigValidationError
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training.corpus import walk_corpus
from spacy.util import registry
from thinc.api import NumpyOps

from .config_checks import REGISTRIES, ConfigSection, leaves_out, sections_of
from .errors import ConfigError, ConfigKeyError, ConfigTypeError
from .kinds import (
    LEAST_ACTIONS,
    LEAST_CHANGES,
    Categories,
    Entities,
    Kind,
    Lemmas,
    OneCategory,
    Sentences,
    Trees,
    kind_of,
)
from .near_misses import did_you_mean, near_misses, there_are
from .registry import names_in

# Registries of thinc and spaCy that have names of ours too.
_SHARED: Final = ("optimizers", "schedules", "misc", "loggers", "architectures", "layers", "readers")
# Packages that load pretrained models.
_HUGGING_FACE: Final = ("transformers", "huggingface_hub")
# Packages whose code runs between a command and a function that a config names.
_HOSTS: Final = frozenset(
    ("thinc_torchopt", "spacy", "thinc", "confection", "catalogue", "pydantic", "srsly", "wasabi", "typer", "click")
)


@contextmanager
def plain_errors(config: Mapping[str, Any] | None = None, *, path: Path | None = None) -> Iterator[None]:
    """Raise errors of the hosts inside as errors of ours.

    config (Mapping | None): The config, not interpolated, if it could be read.
    path (Path | None): Its file.
    RAISES (ConfigError): From the error that was raised.
    """
    try:
        yield
    except Exception as error:
        found = plain_error(error, config, path=path)
        if found is None:
            raise
        raise found from error


def plain_error(
    error: Exception, config: Mapping[str, Any] | None = None, *, path: Path | None = None, within: str = "training"
) -> ConfigError | None:
    """An error of confection or spaCy as one of ours. None: it is another error, or clear enough.

    within (str): The section that has the optimizer, if the config is not known.
    """
    if isinstance(error, (DuplicateSectionError, DuplicateOptionError)):
        # A reader or a component may read files of that format, too.
        return ConfigError(_message_of_duplicate(error, path)) if _raised_by(error) in ("confection", None) else None
    if isinstance(error, InterpolationMissingOptionError) and _raised_by(error) in ("confection", None):
        return ConfigError(f"Can't read {_file(path)}: {error}")  # newer confections raise the error below
    if isinstance(error, ConfigValidationError):
        if "no section headers" in str(error):
            return ConfigError(
                f"Can't read {_file(path)}: expected sections, as in [training], found text before the first one. Is "
                "it a config?"
            )
        return _plain_validation(error, config or {}, path, within)
    if isinstance(error, RegistryError):
        return _plain_unknown(str(error), config or {})
    if isinstance(error, NotImplementedError) and (unset := re.match(r"\[E200\] Can't set (\w+)", str(error))):
        return ConfigError(_message_of_unset(unset[1], error, config or {}))
    if config is not None and isinstance(error, OSError) and _raised_by(error) in _HUGGING_FACE:
        return _message_of_unloaded(error, config)
    if config is not None and _raised_in(error, "init_tok2vec"):
        return _message_of_weights(error, config)
    if config is None or not is_spacys_own(error):
        return None
    text = str(error)
    found = _message_of_unannotated(text, config) or _message_of_broken_corpus(text, config)
    return ConfigError(found or _message_of_others(text, config) or text)


def is_spacys_own(error: BaseException) -> bool:
    """Whether spaCy raised an error whose message explains it, e.g. a component without a section, or vectors that are
    not installed. If other code provoked it, the user needs the line of that code.
    """
    kinds = (ValueError, OSError, AssertionError, ImportError)
    is_numbered = isinstance(error, kinds) and re.match(r"\[E\d+\]", str(error))
    return bool(is_numbered) and line_of_others(error) is None


def line_of_others(error: BaseException) -> str | None:
    """The line at which other code, such as a reader from --code, raised or provoked an error: "line 7 of 'code.py'".
    None: no other code was involved.
    """
    found = None
    for frame, line in walk_tb(error.__traceback__):
        if _package(frame) not in _HOSTS | sys.stdlib_module_names:
            found = f"line {line} of '{frame.f_code.co_filename}'"
    return found


def _raised_by(error: BaseException) -> str | None:
    """The package that raised an error, leaving out Python's own. None: unknown."""
    packages = [_package(frame) for frame, _ in walk_tb(error.__traceback__)]
    return next((package for package in reversed(packages) if package not in sys.stdlib_module_names), None)


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _raised_in(error: BaseException, function: str) -> bool:
    """Whether an error was raised in a function of spaCy's training, or below."""
    names = ((frame.f_globals.get("__name__"), frame.f_code.co_name) for frame, _ in walk_tb(error.__traceback__))
    return ("spacy.training.initialize", function) in names


def _file(path: Path | None) -> str:
    return "the config" if path is None or str(path) == "-" else f"'{path}'"


def _message_of_duplicate(error: DuplicateSectionError | DuplicateOptionError, path: Path | None) -> str:
    what = f"the section [{error.section}]"
    if isinstance(error, DuplicateOptionError):
        what = f"'{error.option}' in [{error.section}]"
    return (
        f"Can't read {_file(path)}: {what} appears twice, the second time in line {error.lineno}. Keep one of them, "
        "with the settings of both."
    )


def _plain_validation(
    error: ConfigValidationError, config: Mapping[str, Any], path: Path | None, within: str
) -> ConfigError | None:
    found = [dict(one) for one in error.errors or ()]
    for one in found:
        place, text = [str(part) for part in one.get("loc", ())], str(one["msg"])
        missing = re.fullmatch(r"Section '(.*)' is not defined", text)
        places = [i for i, part in enumerate(place[:-1]) if missing is not None and part == missing[1]]
        if places:
            return ConfigError(_message_of_missing_section(path, place, places[-1]))
        if text == "not a section value that can be overridden":
            return ConfigKeyError(_message_of_override(place, path))
    function = re.fullmatch(r"Config error for '(.*)'", error.title or "")
    if function is None or not found:
        messages = [_message_of_schema(config, *map(str, one.get("loc", ())), text=str(one["msg"])) for one in found]
        return ConfigError("\n".join(filter(None, messages))) if messages and all(messages) else None
    block: Mapping[str, Any] = error.config if isinstance(error.config, Mapping) else {}
    parent = ".".join(str(part) for part in found[0]["loc"][:-1])
    section = _section_of(config, parent, block)
    if section.partition(".")[0] == "optimizer":
        section = f"{within}.{section}"
    faults = [_message_of_argument(section, function[1], block, str(one["loc"][-1]), str(one["msg"])) for one in found]
    kinds = {kind for kind, _ in faults}
    kind = kinds.pop() if len(kinds) == 1 else ConfigError
    return kind("\n".join(text for _, text in faults))


def _message_of_schema(config: Mapping[str, Any], *place: str, text: str) -> str | None:
    """The message for a setting that spaCy's own schema refuses. The schema tells only the key."""
    sections = ("training", "nlp", "initialize", "pretraining")
    section = next((name for name in sections if place and place[0] in config.get(name, {})), None)
    if section is None:
        return None
    value = config[section][place[0]]
    return f"Can't set '{'.'.join(place)}' in [{section}]: {text[:1].lower()}{text[1:]}, found {value!r}."


def _section_of(config: Mapping[str, Any], end: str, block: Mapping[str, Any]) -> str:
    """The full path of a section. end (str): Its end, as in confection's error. block (Mapping): Its contents."""
    names = {key: name for key, name in block.items() if key.startswith("@")}
    places = [section for section in sections_of(config) if f".{section.path}".endswith(f".{end}")]
    named = [section for section in places if all(section.block.get(key) == name for key, name in names.items())]
    return (*named, *places, ConfigSection(end, {}))[0].path


def _message_of_argument(
    section: str, function: str, block: Mapping[str, Any], name: str, text: str
) -> tuple[type[ConfigError], str]:
    """The message for a wrong setting of a section that names a function. text (str): confection's message."""
    hints, known = _arguments(block)
    if text.startswith("unexpected argument"):
        if function == "pytorch-optimizer.create.v1":
            return ConfigKeyError, (
                f"Can't read [{section}]: did you mean '{name}' in [{section}.options]? The options of the optimizer "
                f"that 'name' chooses have a section of their own."
            )
        is_in_training = section.partition(".")[0] in ("training", "pretraining", "optimizer")
        near = did_you_mean(name, known, is_setting=is_in_training) or there_are(known)
        return ConfigKeyError, f"Can't read [{section}]: '{function}' has no setting '{name}'.{near}"
    if text.startswith("missing required argument"):
        return ConfigKeyError, f"Can't read [{section}]: '{function}' needs the setting '{name}', which is missing."
    value = block.get(name)
    if name not in hints:
        return ConfigTypeError, f"Can't set '{name}' in [{section}]: {text.removeprefix('at root: ')}."
    expected, choices = in_words(hints[name], f"[{section}.{name}]"), _choices(hints[name])
    near = (
        did_you_mean(value, choices)
        if choices
        else _block_meant(value)
        if "a block" in in_words(hints[name], "")
        else ""
    )
    return ConfigTypeError, f"Can't set '{name}' in [{section}]: expected {expected}, found {value!r}.{near}"


def _arguments(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the function that a block names: types by name, and names."""
    for key, name in block.items():
        if key.startswith("@") and registry.has(key[1:], name):
            function = registry.get(key[1:], name)
            known = [*signature(function).parameters]
            try:
                return get_type_hints(function), known
            except Exception:  # in code of others; the message goes without types
                return {}, known
    return {}, []


def _message_of_missing_section(path: Path | None, place: Sequence[str], at: int) -> str:
    """The message for a missing section. place (Sequence[str]): Its subsection, part by part. at (int): Index of the
    last part of its name.
    """
    needed, there, name = (".".join(parts) for parts in (place[: at + 1], place, place[at:]))
    block = place[2] if at > 2 and place[:2] == ["training", "optimizer"] else ""
    text = (
        f"Can't read {_file(path)}: expected the section [{needed}] above [{there}], found none. A section needs all "
        f"the sections around it, even if they are empty: add the line [{needed}]."
    )
    if block in ("per_param_lr", "layer_decay"):
        text += (
            f" If '{name}' is one pattern: a dot starts a new section, so write it with slashes: "
            f"'{name.replace('.', '/')}'."
        )
    elif block == "param_groups":
        text += (
            f" If '{name}' is the name of one block: a dot starts a new section, so call it '{name.replace('.', '_')}'."
        )
    return text


def _message_of_override(place: Sequence[str], path: Path | None) -> str:
    section, name, flag = ".".join(place[:-1]), place[-1], "--" + ".".join(place)
    text = f"Can't use '{flag}': {_file(path)} has no section [{section}]."
    known: list[str] = []
    if path is not None:
        with suppress(OSError, UnicodeError):
            known = re.findall(r"^\[([^\]\n]+)\]", path.read_text("utf8"), flags=re.MULTILINE)
    near = near_misses(section, known)
    if near:
        return text + did_you_mean(flag, [f"--{near[0]}.{name}"])
    return f"{text} Overrides only change existing sections: add the line [{section}] to the config."


# ---------------------------------------------------------------------- versions that don't go together


def check_versions(nlp: Language, exclude: Collection[str]) -> None:
    """RAISES (ConfigError): A component fails by itself when it is trained, with the packages that are installed.

    SOURCE: spacy_curated_transformers/pipeline/transformer.py (0.3.1, 2.1.2), `float(cum_loss)`.
    """
    for name, pipe in nlp.pipeline:
        is_curated = type(pipe).__module__.startswith("spacy_curated_transformers.")
        if not is_curated or name in exclude or not isinstance(pipe.model.ops, NumpyOps):  # type: ignore[attr-defined]
            continue
        if not _takes_arrays_of_one() and "float(cum_loss)" in getsource(type(pipe)):
            raise ConfigError(
                f"Can't train '{name}': spacy-curated-transformers {version('spacy-curated-transformers')} fails with "
                f"NumPy {numpy.__version__}, which no longer converts an array of one number to that number. Install "
                "an older NumPy: pip install 'numpy<2.4'."
            )


def _takes_arrays_of_one() -> bool:
    with warnings.catch_warnings(), suppress(TypeError):
        warnings.simplefilter("ignore")
        float(numpy.zeros(1))
        return True
    return False


# ---------------------------------------------------------------------- components without annotations

# The first texts of a stream, in which spaCy looks for labels. SOURCE: spacy/training/initialize.py (3.8), `init_nlp`.
_STREAMED: Final = 100


def _of_kind(kind: type[Kind] | tuple[type[Kind], ...], blocks: Mapping[str, Any]) -> list[str]:
    """The components of a kind. blocks (Mapping): Those of [components]."""
    return [name for name, block in blocks.items() if isinstance(kind_of(str(block.get("factory"))), kind)]


def _message_of_unannotated(text: str, config: Mapping[str, Any]) -> str | None:
    """The message for a component that finds no labels in the texts, from spaCy's: E143, and E867 of textcat."""
    blocks, training = config.get("components", {}), config.get("training", {})
    without = re.match(r"\[E143\] Labels for component '(.*?)' not initialized", text)
    names = [without[1]] if without else _of_kind(OneCategory, blocks)
    if not (without or text.startswith("[E867]")) or not names:
        return None
    name, block = names[0], blocks.get(names[0], {})
    where = f"in the {f'first {_STREAMED} ' * (training.get('max_epochs') == -1)}texts of "
    where += f"[{training.get('train_corpus', 'corpora.train')}]"
    if config.get("initialize", {}).get("components", {}).get(name, {}).get("labels") is not None:
        where = f"in 'labels' in [initialize.components.{name}]"
    kind = kind_of(str(block.get("factory")), block)
    what = kind.in_words or "labels"
    if isinstance(kind, Lemmas):
        least = block.get("min_tree_freq", LEAST_CHANGES)
        what += f" whose change from the word occurs at least {least} times (min_tree_freq in [components.{name}])"
    fault = f"{what} {where}, found none" if without else f"at least two {what} {where}, found fewer"
    one = "" if without else " For one category, use the factory textcat_multilabel."
    return (
        f"Can't initialize {' or '.join(f'[components.{name}]' for name in names)}: expected {fault}. Add them, remove "
        f"the component from 'pipeline' in [nlp], or begin with a config for what the texts have, such as entities: "
        f"spacy init config start.cfg --lang {config.get('nlp', {}).get('lang', 'en')} --pipeline ner{one}"
    )


def _message_of_broken_corpus(text: str, config: Mapping[str, Any]) -> str | None:
    """The message for a file that is no whole DocBin, from spaCy's, which does not say which file."""
    if not text.startswith("[E1014]"):
        return None
    config = config.interpolate() if isinstance(config, Config) else config
    for section in sections_of({"corpora": config.get("corpora", {})}):
        path = section.block.get("path")
        if section.block.get("@readers") == "spacy.Corpus.v1" and isinstance(path, str):
            for file in walk_corpus(path, ".spacy"):
                try:
                    DocBin().from_disk(file)
                except Exception:  # of zlib, msgpack or spaCy
                    return (
                        f"Can't read [{section.path}]: '{file}' is damaged, or was cut off. Write or copy the corpus "
                        "again."
                    )
    return None


# Packages to install for factories that are not spaCy's.
_FACTORIES_OF: Final = {
    "transformer": "spacy-transformers",
    "curated_transformer": "spacy-curated-transformers",
    "coref": "spacy-experimental",
    "span_resolver": "spacy-experimental",
    "llm": "spacy-llm",
}


def _message_of_others(text: str, config: Mapping[str, Any]) -> str | None:
    """The message for more errors of spaCy: E002, E050, E851, E923, E024 and E1031."""
    corpus = config.get("training", {}).get("train_corpus", "corpora.train")
    blocks = config.get("components", {})
    if missing := re.match(r"\[E002\] Can't find factory for '(.*?)' for language", text):
        factory = missing[1]
        where = next((f"[components.{name}]" for name, block in blocks.items() if block.get("factory") == factory), "")
        known = names_in(registry.factories)
        package = _FACTORIES_OF.get(factory) or ("spacy-experimental" * factory.startswith("experimental_"))
        advice = (
            f" It is in the package {package}: pip install {package}"
            if package
            else f"{did_you_mean(factory, known)} If it is your own, give its file with --code."
        )
        return f"Can't build {where or 'the pipeline'}: there is no factory '{factory}' here.{advice}"
    if missing := re.match(r"\[E050\] Can't find model '(.*?)'", text):
        places = [
            f"'{key}' in [{section.path}]"
            for section in sections_of(config.interpolate() if isinstance(config, Config) else config)
            for key, value in section.block.items()
            if value == missing[1]
        ]
        if not places:
            return None
        return f"Can't use {places[0]}: there is no pipeline '{missing[1]}', installed or as a folder."
    if text.startswith(("[E024]", "[E1031]")):
        return _message_of_no_move(text, config)
    if value := re.match(r"\[E851\] .*value of '(.*?)'", text):
        names = [f"[components.{name}]" for name in _of_kind(Categories, blocks)]
        return (
            f"Can't train {' or '.join(names) or 'a text categorizer'}: a text of [{corpus}] has a category with the "
            f"value {value[1]}, and spaCy expects 1 for a category that holds and 0 for one that doesn't. Set each to "
            "1 or 0."
        )
    if empty := re.match(r"\[E923\] .*Model of component '(.*?)'", text):
        block = blocks.get(empty[1], {})
        what = kind_of(str(block.get("factory")), block).in_words
        return (
            f"Can't initialize [components.{empty[1]}]: expected texts{f' with {what}' * bool(what)} in [{corpus}], "
            f"found none.{leaves_out(config, corpus)} Add them, or remove the component from 'pipeline' in [nlp]."
        )
    return None


def _message_of_no_move(text: str, config: Mapping[str, Any]) -> str:
    """The message for annotations that a parser or NER has no transition for, from E1031 of parsers, and E024.

    SOURCE: spacy/pipeline/_parser_internals: ner.pyx, `Begin.is_valid`; arc_eager.pyx, `get_actions` and `set_costs`.
    """
    corpus = config.get("training", {}).get("train_corpus", "corpora.train")
    blocks = config.get("components", {})
    found = _of_kind(Trees if text.startswith("[E1031]") else (Trees, Entities), blocks)
    names = " or ".join(f"[components.{name}]" for name in found) or "a parser"
    if not text.startswith("[E1031]"):
        annotating = config.get("training", {}).get("annotating_components", ())
        dividing = (*Trees.factories, *Sentences.factories, "sentencizer")
        name = next((name for name in annotating if blocks.get(name, {}).get("factory") in dividing), None)
        why = "an entity begins with white space. Move its start to the first word. spacy debug data counts them."
        if name is not None:
            why = (
                f"'{name}' begins a sentence within an entity, and spaCy learns none of two sentences. Remove '{name}' "
                f"from annotating_components in [training]. Or {why}"
            )
        return (
            f"Can't train {names}: a text of [{corpus}] is annotated in a way that spaCy can't learn, usually because "
            f"{why}"
        )
    least = next((blocks[name].get("min_action_freq", LEAST_ACTIONS) for name in found), LEAST_ACTIONS)
    return (
        f"Can't train {names}: it has no transition for a tree of [{corpus}]. It learns only transitions (a direction "
        f"and a label) that occur at least {least} times, and a small corpus may have fewer words before, or after, "
        f"their heads. Add texts, or set min_action_freq = 1 in {names}. If its labels are given in "
        "[initialize.components], write them again: spacy init labels."
    )


def _message_of_unloaded(error: OSError, config: Mapping[str, Any]) -> ConfigError | None:
    """The error for a pretrained model that could not be loaded."""
    values = config.interpolate() if isinstance(config, Config) else config
    for section in sections_of({"components": values.get("components", {})}):
        if "TransformerModel" in str(section.block.get("@architectures")) and (name := section.block.get("name")):
            found = str(error).partition("\n")[0].rstrip(".")
            return ConfigError(
                f"Can't load the pretrained model '{name}' of [{section.path}]: {found}. The first use downloads it "
                "from huggingface.co. Correct 'name', check the connection, or set 'name' to a folder with the model."
            )
    return None


def _message_of_weights(error: Exception, config: Mapping[str, Any]) -> ConfigError | None:
    """The error for the weights of `spacy pretrain`, which are not those of the config's model."""
    values = config.interpolate() if isinstance(config, Config) else config
    path = values.get("initialize", {}).get("init_tok2vec")
    pretraining = values.get("pretraining", {})
    if path is None or not Path(path).is_file() or not isinstance(pretraining.get("component"), str):
        return None
    found = str(error).partition(" for model ")[0].rstrip(".")
    return ConfigError(
        f"Can't load init_tok2vec = '{path}' of [initialize]: expected weights of [components."
        f"{pretraining['component']}.model], found those of a model with other layers or dimensions ({found}). Give "
        "the model the settings that it had in spacy pretrain, or leave init_tok2vec out."
    )


def _message_of_unset(attribute: str, error: Exception, config: Mapping[str, Any]) -> str:
    """The message for a reader that sets an attribute of a Span, E200."""
    corpus = config.get("training", {}).get("train_corpus", "corpora.train")
    at = f" at {line}" if (line := line_of_others(error)) else ""
    return (
        f"Can't read [{corpus}]: '{attribute}' of a Span can't be set later. Make it with Span(doc, start, end, label, "
        f"kb_id=..., span_id=...){at and f': it is set{at}'}."
    )


# ---------------------------------------------------------------------- registered names


def _plain_unknown(text: str, config: Mapping[str, Any]) -> ConfigError | None:
    """The error for a name that is not registered, from spaCy's message."""
    unknown = re.match(r"\[E893\] Could not find function '(.*?)' in function registry '(.*?)'\.", text)
    if unknown is None:
        return None
    name, kind = unknown.groups()
    place = next((path for path, block in sections_of(config) if block.get(f"@{kind}") == name), None)
    where = f"[{place}]" if place else "the config"
    known = _names_in(kind)
    message = f"Can't read {where}: no '{name}' is registered for @{kind}."
    others = [other for other in _ours() if other != kind and name in _names_in(other)]
    if others:
        message += f" It is one for @{others[0]}"
        if (kind, others[0]) == ("optimizers", "torch_optimizers"):
            section = place or "training.optimizer"
            message += (
                f", and belongs in a block [{section}.algorithm]; [{section}] itself has @optimizers = "
                '"thinc-torchopt.TorchOptimizer.v1"'
            )
        return ConfigKeyError(f"{message}.")
    near = did_you_mean(name, known)
    if not near:
        of_others = ((other, one) for other in _ours() for one in near_misses(name, _names_in(other)))
        near = next((f" Did you mean '{one}', which is one for @{other}?" for other, one in of_others), "")
    advice = near or (
        f"{there_are(known)} If it is your own, give its file with --code; if it is another package's, install it."
    )
    return ConfigKeyError(f"{message}{advice}")


def _names_in(kind: str) -> list[str]:
    return names_in(getattr(registry, kind))


def _ours() -> list[str]:
    """The registries with names of ours."""
    return [name for name in (*REGISTRIES, *_SHARED) if hasattr(registry, name)]


def _block_meant(value: Any) -> str:
    """The line of the block that is meant by a name alone, such as "adamw"."""
    if isinstance(value, str):
        for kind in _ours():
            for name in near_misses(value, _names_in(kind)):
                return f' Did you mean a block with @{kind} = "{name}"?'
    return ""


# ---------------------------------------------------------------------- types in words


def in_words(hint: Any, block: str) -> str:
    """A type of an argument in words. block (str): The name of its section, if it is a block."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _any_of([repr(arg) for arg in args])
    if origin in (Union, types.UnionType):
        return _any_of([in_words(arg, block) for arg in args])
    if hint in _WORDS:
        return _WORDS[hint]
    if origin in (list, Sequence, Iterable):
        return "a list"
    if origin is tuple:
        return f"a list of {len(args)}"
    if origin in (dict, Mapping):
        return f"a block {block}"
    if origin is Callable or isinstance(hint, type):
        return _SCHEDULE if getattr(hint, "__name__", "") in ("Generator", "Schedule") else f"a block {block}"
    return str(hint).replace("typing.", "")


_SCHEDULE: Final = "a schedule"
_WORDS: Final[dict[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    type(None): "null",
    list: "a list",
}


def _any_of(words: Sequence[str]) -> str:
    has_length = any(word.startswith("a list of ") for word in words)
    *others, last = dict.fromkeys(word for word in words if not (has_length and word == "a list"))
    return f"{', '.join(others)} or {last}" if others else last


def _choices(hint: Any) -> list[Any]:
    if get_origin(hint) is Literal:
        return [*get_args(hint)]
    if get_origin(hint) in (Union, types.UnionType):
        return [choice for arg in get_args(hint) for choice in _choices(arg)]
    return []
