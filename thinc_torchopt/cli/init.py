"""`spacy torchopt init`: put one of our optimizers into a config."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from confection import Config, ConfigValidationError
from spacy import util
from spacy.language import Language
from wasabi.printer import Printer

from ..errors import ConfigError
from ..host import cli_util
from ..near_misses import did_you_mean
from ..state import write_text
from ._config_text import ConfigText, Section, Setting, with_settings
from ._recipes import Draft, Recipe
from ._util import config_errors_shown, errors_shown, put, resolve_optimizer

_spacy = cli_util()

_SECTION = "training.optimizer"
_LOGGER = "training.logger"
_LOG = "thinc-torchopt.JSONLinesLogger."


def init_config(
    config_path: Path,
    output_path: Path,
    args: Sequence[str] = (),
    *,
    recipe: str,
    log_path: Path | None = None,
    code_path: Path | None = None,
) -> None:
    """Rewrite the optimizer of a config, and print what was done.

    config_path, output_path (Path): "-": stdin and stdout. Then only the config is printed to stdout.
    args (Sequence[str]): Overrides from the command line, e.g. the path of the corpus. They are not written.
    log_path (Path | None): Also let the training write a log there.
    """
    to_stdout = str(output_path) == "-"
    with errors_shown(as_json=to_stdout):
        _spacy.import_code(code_path)
        chosen = recipe_of(recipe)
        stem = next((path.stem for path in (output_path, config_path) if str(path) != "-"), "config")
        overrides = _spacy.parse_config_overrides(list(args))
        draft, text = rewrite(
            read_config(config_path), config_path, chosen, f"training/{stem}-state", overrides, log_path
        )
        if not to_stdout:
            write_config(output_path, text)
    if to_stdout:
        sys.stdout.write(text)
        for line in draft.warned:
            print(f"Warning: {line}", file=sys.stderr)
        return
    msg = Printer(pretty=sys.stdout.isatty())
    msg.good(f"Saved config with the recipe '{chosen.value}'", output_path)
    for line in draft.told:
        msg.text(f"- {line}")
    for line in draft.warned:
        msg.warn(line)
    msg.text("To check it and see what it will do:")
    print(f"{_spacy.COMMAND} torchopt explain {output_path} --paths.train ./train.spacy --paths.dev ./dev.spacy")


def rewrite(
    text: str,
    path: Path,
    recipe: Recipe,
    state_path: str,
    overrides: Mapping[str, Any] | None = None,
    log_path: Path | None = None,
) -> tuple[Draft, str]:
    """Rewrite the optimizer in the text of a config.

    path (Path): The config's path, for errors. state_path (str): A folder for checkpoints.
    overrides (Mapping): Values by dotted path, "paths.train" for example. They are used, but not written.
    log_path (Path | None): Also let the training write a log there.
    RETURNS (tuple[Draft, str]): What was done, and the new text.
    RAISES (ConfigError): The optimizer can't be rewritten, or other sections would change.
    """
    with config_errors_shown(path):
        raw = Config().from_str(text, interpolate=False, overrides=dict(overrides or {}))
        config = raw.interpolate()
    lines = ConfigText(text, _SECTION)
    inline = lines.setting(_SECTION)
    if inline is not None:
        raise ConfigError(
            f"Can't rewrite 'optimizer' in [training]: expected a section [{_SECTION}], found a value, {inline.value}. "
            "Write its settings into such a section."
        )

    def build_nlp() -> Language:
        with config_errors_shown(path, raw):
            return util.load_model_from_config(raw, auto_fill=True)

    with config_errors_shown(path, raw):
        draft = Draft(section=lines.section, config=config, build_nlp=build_nlp, state_path=state_path)
        draft.apply(recipe)
    passing = [f"--{key}" for key in overrides or () if key.startswith("training.") and key not in draft.beside]
    if passing:
        draft.warned.append(
            f"{', '.join(passing)}: used here, but not written to the config. Pass it to the training, too."
        )
    new = text if draft.is_unchanged else str(lines)
    new = with_settings(new, draft.beside)
    sections = [_SECTION]
    if log_path is not None:
        new, told = with_log(new, log_path)
        draft.told.append(told)
        sections.append(_LOGGER)
    with config_errors_shown(path):
        resolve_optimizer(_check_rest(text, new, draft.beside, sections)["training"]["optimizer"])
    return draft, new


def _check_rest(text: str, new: str, beside: Mapping[str, Any], sections: Sequence[str]) -> Config:
    """Check that nothing else has changed.

    beside (Mapping): Values set on purpose, by dotted paths. sections (Sequence[str]): Sections rewritten on purpose.

    RETURNS (Config): The new config, interpolated.
    RAISES (ConfigError): Another setting refers to one that has moved.
    """
    found = []
    for interpolate in (False, True):
        before = Config().from_str(text, interpolate=interpolate)
        try:
            after = Config().from_str(new, interpolate=interpolate)
        except ConfigValidationError as error:
            raise _refers(sections, error.desc or str(error)) from error
        for config in (rest := [_without(before, sections), _without(after, sections)]):
            for path, value in beside.items():
                put(config, path.split("."), value)
        if rest[0] != rest[1]:
            changed = sorted(name for name in rest[0] | rest[1] if rest[0].get(name) != rest[1].get(name))
            raise _refers(sections, f"other values in [{'], ['.join(changed)}]")
        found.append(after)
    return found[-1]


def _refers(sections: Sequence[str], found: str) -> ConfigError:
    where = "] and [".join(sections)
    return ConfigError(
        f"Can't rewrite [{where}]: a variable elsewhere refers to a setting there, and would change: "
        f"{found.strip()}. Move the value to another section, e.g. [vars], and let both refer to that."
    )


def _without(config: Config, sections: Sequence[str]) -> dict[str, Any]:
    rest = config.copy()
    for section in sections:
        rest.setdefault("training", {}).pop(section.removeprefix("training."), None)
    return rest


def with_log(text: str, path: Path) -> tuple[str, str]:
    """Add a JSONLinesLogger to the text of a config. Loggers that it has stay, in a chain; our ConsoleLogger takes the
    place of spaCy's.

    RETURNS (tuple[str, str]): The new text, and what was done.
    RAISES (ConfigError): There is no room in the chain, or the logger is no section.
    """
    lines = ConfigText(text, _LOGGER)
    inline = lines.setting(_LOGGER)
    if inline is not None:
        raise ConfigError(
            f"Can't add a log to 'logger' in [training]: expected a section [{_LOGGER}], found a value, "
            f"{inline.value}. Write its settings into such a section."
        )
    logger = lines.section
    if any(f'"{_LOG}' in found for found in _names_of(logger)):
        return text, "The log: as it was, as [training.logger] has a JSONLinesLogger already."
    if not logger.settings.get("@loggers", Setting("", "")).value.startswith('"spacy.ChainLogger.'):
        inner = Section()
        for key in [*logger.settings, *logger.sections]:
            if (entry := logger.pop(key)) is not None:
                inner.add(key, entry)
        _use_our_console(inner)
        logger.put("@loggers", "spacy.ChainLogger.v1")
        logger.add("logger1", inner)
    free = [f"logger{i}" for i in range(1, 11) if f"logger{i}" not in logger]
    if not free:
        raise ConfigError(
            "Can't add a log to [training.logger]: spaCy's ChainLogger has room for 10 loggers, and all are in use. "
            "Leave out --log."
        )
    added = logger.section(free[0])
    added.put("@loggers", f"{_LOG}v1")
    added.put("path", str(path))
    return str(lines), f"The log of each step: {path}. Draw it: {_spacy.COMMAND} torchopt report {path}"


def _names_of(section: Section) -> Iterator[str]:
    if "@loggers" in section.settings:
        yield section.settings["@loggers"].value
    for inner in section.sections.values():
        yield from _names_of(inner)


def _use_our_console(logger: Section) -> None:
    """Replace spaCy's console logger, or none at all, by ours: the same table, with learning rates and norms."""
    name = logger.settings.get("@loggers")
    if name is not None and not name.value.startswith('"spacy.ConsoleLogger.'):
        return
    logger.put("@loggers", "thinc-torchopt.ConsoleLogger.v1")
    # In v1 and v2 a bar is on or off.
    bar = {"true": "eval", "false": None}
    if "progress_bar" in logger.settings and (value := logger.settings["progress_bar"].value) in bar:
        logger.put("progress_bar", bar[value])


def recipe_of(name: str) -> Recipe:
    """A recipe by its name. RAISES (ConfigError): Unknown name."""
    try:
        return Recipe(name)
    except ValueError:
        known = [recipe.value for recipe in Recipe]
        raise ConfigError(
            f"Can't use the recipe '{name}': expected one of {', '.join(known)}.{did_you_mean(name, known)} They are "
            "explained in docs/command-line.md."
        ) from None


def read_config(path: Path) -> str:
    """Read the text of a config. "-": from stdin. RAISES (ConfigError): It can't be read."""
    try:
        return (sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()).decode("utf8")
    except OSError as error:
        raise ConfigError(
            f"Can't read '{path}': expected the file of a config, found {error.strerror}. Check the path."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"Can't read '{path}': it is not a text in UTF-8 ({error}). Is it a config?") from error


def write_config(path: Path, text: str) -> None:
    """Write the text of a config, whole or not at all. RAISES (ConfigError): It can't be written."""
    try:
        write_text(path, text)
    except OSError as error:
        raise ConfigError(f"Can't write '{path}': {error}. An existing file was not changed.") from error
