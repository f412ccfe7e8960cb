"""Put a recipe, or a log, into the text of a config; nothing else there may change."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import InterpolationError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confection import Config, ConfigValidationError
from spacy import util
from spacy.language import DEFAULT_CONFIG
from spacy.util import registry

from ...core.errors import ConfigError
from ...core.host_errors import plain_errors
from .config_text import ConfigText, Raw, SectionText, SettingText, put, value_at, with_settings
from .recipes import Draft, Recipe
from .translation import Translation

_SECTION = "training.optimizer"
_LOGGER = "training.logger"
_BATCHER = "training.batcher"
_LOG = "thinc-torchopt.JSONLinesLogger."


def rewrite(
    text: str,
    path: Path,
    recipe: Recipe,
    overrides: Mapping[str, Any] | None = None,
    log_path: Path | None = None,
    more_texts: float = 0.0,
) -> tuple[Draft, str]:
    """Rewrite the optimizer in the text of a config.

    path (Path): The config's path, for errors.
    overrides (Mapping): Values by dotted path, "paths.train" for example. They are read, but not written: see
        `not_written`.
    log_path (Path | None): Also let the training write a log there.
    more_texts (float): Those that a teacher annotates, for each text of the corpus.
    RETURNS (tuple[Draft, str]): What was done, and the new text.
    RAISES (ConfigError): The optimizer can't be rewritten, or other sections would change.
    """
    with plain_errors(path=path):
        raw = Config().from_str(text, interpolate=False, overrides=dict(overrides or {}))
        config = raw.interpolate()
    lines = _lines_of(text, _SECTION, "rewrite")
    with plain_errors(raw, path=path):
        draft = Draft(
            optimizer=Translation(lines.section, config),
            build_nlp=lambda: util.load_model_from_config(raw, auto_fill=True),
            more_texts=more_texts,
        )
        draft.apply(recipe)
    new = text if draft.is_unchanged else str(lines)
    new = with_settings(new, draft.beside)
    sections = [_SECTION]
    if draft.batcher:
        new = _with_section(new, _BATCHER, draft.batcher)
        sections.append(_BATCHER)
    if log_path is not None:
        new, change = with_log(new, log_path)
        draft.changes.append(change)
        sections.append(_LOGGER)
    with plain_errors(path=path):
        checked = _check_rest(text, new, draft.beside, sections)
        registry.resolve({"optimizer": checked["training"]["optimizer"]})
    return draft, new


def not_written(overrides: Mapping[str, Any], text: str, new: str, *, in_trials: bool = False) -> list[str]:
    """Warnings of overrides of [training] that a rewritten config does not have.

    text, new (str): The config, before and after. in_trials (bool): It is tried with the overrides, all the same.
    """
    before, after = (Config().from_str(found, interpolate=False) for found in (text, new))
    lost = [path for path in overrides if path.startswith("training.") and value_at(after, path) != overrides[path]]
    replaced = [] if in_trials else [path for path in lost if value_at(after, path) != value_at(before, path)]
    passing = [path for path in lost if path not in replaced]
    told = {
        f"{'used here, but ' * in_trials}not written to the config. Pass it to the training, too.": passing,
        "not used, as the recipe sets its own. Change it in the new config.": replaced,
    }
    return [f"{', '.join(f'--{path}' for path in paths)}: {words}" for words, paths in told.items() if paths]


def _lines_of(text: str, path: str, verb: str) -> ConfigText:
    """The text of a config, to change a section of it. verb (str): For the error: "Can't {verb} ...".

    RAISES (ConfigError): It is no section, but a value.
    """
    lines = ConfigText(text, path)
    section, _, key = path.rpartition(".")
    if (inline := lines.setting(path)) is not None:
        raise ConfigError(
            f"Can't {verb} '{key}' in [{section}]: expected a section [{path}], found a value, {inline.value}. Write "
            "its settings into such a section."
        )
    return lines


def _with_section(text: str, path: str, settings: Mapping[str, Any]) -> str:
    """Give a section of the text of a config these settings, and no others."""
    lines = _lines_of(text, path, "rewrite")
    for key in [*lines.section.settings, *lines.section.sections]:
        if key not in settings:
            lines.section.drop(key)
    for key, value in settings.items():
        lines.section.put(key, value)
    return str(lines)


def _check_rest(text: str, new: str, beside: Mapping[str, Any], sections: Sequence[str]) -> Config:
    """Check that nothing else has changed.

    beside (Mapping): Values set on purpose, by dotted paths. sections (Sequence[str]): Sections rewritten on purpose.

    RETURNS (Config): The new config, interpolated.
    RAISES (ConfigError): Another setting refers to one that has moved.
    """
    found = []
    for interpolate in (False, True):
        before = _read(text, interpolate=interpolate)
        try:
            after = _read(new, interpolate=interpolate)
        except (ConfigValidationError, InterpolationError) as error:  # the latter by older confections
            raise _refers(sections, getattr(error, "desc", None) or str(error)) from error
        for config in (rest := [_without(before, sections), _without(after, sections)]):
            for path, value in beside.items():
                put(config, path.split("."), value)
        if rest[0] != rest[1]:
            changed = sorted(name for name in rest[0] | rest[1] if rest[0].get(name) != rest[1].get(name))
            raise _refers(sections, f"other values in [{'], ['.join(changed)}]")
        found.append(after)
    return found[-1]


def _read(text: str, *, interpolate: bool) -> Config:
    # As spaCy does. Variables that are filled in at once would make an error of a "$" in a label.
    config = Config().from_str(text, interpolate=False)
    return config.interpolate() if interpolate else config


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


def with_fast_products(text: str, overrides: Mapping[str, Any] | None = None) -> tuple[str, str]:
    """Let a training on a CPU compute matrix products by the fastest library.

    overrides (Mapping): Values by dotted path, which are not written.
    RETURNS (tuple[str, str]): The new text, and what was done. Empty: nothing, as it is for a GPU, or says how.
    """
    training = Config().from_str(text, interpolate=False, overrides=dict(overrides or {})).interpolate()["training"]
    if training.get("gpu_allocator") or "ops" in training["optimizer"]:
        return text, ""
    text = with_settings(text, {f"{_SECTION}.ops": "fastest"})
    return text, 'ops = "fastest": matrix products by the library that is the fastest on the CPU.'


def with_log(text: str, path: Path) -> tuple[str, str]:
    """Add a JSONLinesLogger to the text of a config. Loggers that it has stay, in a chain; our ConsoleLogger takes the
    place of spaCy's.

    RETURNS (tuple[str, str]): The new text, and what was done.
    RAISES (ConfigError): There is no room in the chain, or the logger is no section.
    """
    lines = _lines_of(text, _LOGGER, "add a log to")
    logger, table = lines.section, ""
    if any(f'"{_LOG}' in found for found in _names_of(logger)):
        return text, "The log: as it was, as [training.logger] has a JSONLinesLogger already."
    if not logger.settings.get("@loggers", SettingText("", "")).value.startswith('"spacy.ChainLogger.'):
        inner = SectionText()
        for key in [*logger.settings, *logger.sections]:
            if (entry := logger.pop(key)) is not None:
                inner.add(key, entry)
        if _use_our_console(inner):
            table = " thinc-torchopt.ConsoleLogger.v1 takes the place of spaCy's, with learning rates and norms."
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
    draw = f"python -m spacy torchopt report {shlex.quote(str(path))}"
    return str(lines), f"The log of each step: {path}.{table} Draw it: {draw}"


def _names_of(section: SectionText) -> Iterator[str]:
    if "@loggers" in section.settings:
        yield section.settings["@loggers"].value
    for inner in section.sections.values():
        yield from _names_of(inner)


def _use_our_console(logger: SectionText) -> bool:
    """Replace spaCy's console logger, or none at all, by ours: the same table, with learning rates and norms.

    RETURNS (bool): Whether it was spaCy's.
    """
    name = logger.settings.get("@loggers")
    if name is not None and not name.value.startswith('"spacy.ConsoleLogger.'):
        return False
    logger.put("@loggers", "thinc-torchopt.ConsoleLogger.v1")
    # In v1 and v2 a bar is on or off.
    bar = {"true": "eval", "false": None}
    if "progress_bar" in logger.settings and (value := logger.settings["progress_bar"].value) in bar:
        logger.put("progress_bar", bar[value])
    return name is not None


# Highest rates, from low to high: for networks that are trained from scratch, and for transformers.
PEAKS = 0.0005, 0.001, 0.002, 0.004
ENCODER_PEAKS = 2e-5, 5e-5, 1e-4, 2e-4
# Of `tune`.
TUNING_TRIALS = 4


@dataclass(frozen=True)
class Stock:
    """The tuned settings. peak (float): The highest rate."""

    peak: float
    use_averages: bool = True

    def __str__(self) -> str:
        return f"a rate of up to {self.peak:g}, {'averages' if self.use_averages else 'no averages'}"

    def write(self, text: str, training: Mapping[str, Any]) -> str:
        """Put it into the text of a config with the recipe best. training (Mapping): [training] of that config."""
        config = ConfigText(text, "training.optimizer")
        section, warmup = config.section, training["optimizer"]["learn_rate"]["warmup_ratio"] * training["max_steps"]
        section.settings, section.sections, section.below = {}, {}, []
        settings = DEFAULT_CONFIG["training"]["optimizer"] | {"use_averages": self.use_averages}
        for key, value in settings.items():
            if key != "learn_rate":
                section.put(key, value)
        rate = section.section("learn_rate")
        rate.put("@schedules", "warmup_linear.v1")
        rate.put("initial_rate", self.peak)
        rate.put("warmup_steps", round(warmup))
        rate.put("total_steps", Raw("${training.max_steps}"))
        return str(config)


def tune(peaks: Sequence[float], score: Callable[[Stock], float]) -> Stock:
    """Find the best settings in `TUNING_TRIALS` trials.

    peaks (Sequence[float]): Four, from low to high. The highest one is tried if the third is better than the second,
        and otherwise the lowest.
    score (Callable): Trains once.
    """
    lowest, low, high, highest = peaks
    found: dict[Stock, float] = {}

    def best_of(*candidates: Stock) -> Stock:
        for candidate in candidates:
            if candidate not in found:
                found[candidate] = score(candidate)
        return max(candidates, key=lambda candidate: found[candidate])

    best = best_of(Stock(low), Stock(high))
    best = best_of(best, Stock(highest if best.peak == high else lowest))
    return best_of(best, replace(best, use_averages=False))
