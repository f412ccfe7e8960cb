"""`spacy torchopt train --budget`: rewrite a config so that its training ends with a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confection import Config
from spacy import util

from ..checks import Section
from ..errors import ConfigError
from ..host import cli_util
from ..training import rates_of_settings, read_limit
from ._in_words import plain
from ._util import config_errors_shown, put

_spacy = cli_util()
_SECTION = Section("spacy torchopt train", verb="use")
_OURS = "thinc-torchopt.TorchOptimizer.v1"
_DEFAULT_RATE = 0.001
# The config's warm-up is kept, up to this part of the training.
_LONGEST_WARMUP = 0.05
# Length of the decay if a signal starts it, in a run without its budget.
_DECAY_STEPS = 500


def with_budget(
    config_path: Path,
    args: Sequence[str],
    budget: str,
    *,
    output_path: Path | None = None,
    code_path: Path | None = None,
) -> tuple[Path, list[str]]:
    """Write the config of a training within a budget.

    args (Sequence[str]): Overrides. budget (str): As in `training.Budget`.
    output_path (Path | None): Where spaCy will save models.
    RETURNS (tuple): The path of the new config (in that folder, or beside the checkpoints), and what was changed.
    RAISES (ConfigError): The config can't be trained within a budget.
    """
    limit, unit = read_limit(budget, _SECTION, "--budget")
    overrides = _spacy.parse_config_overrides(list(args))
    _spacy.import_code(code_path)
    with config_errors_shown(config_path, hint_fill=True):
        config = util.load_config(config_path, overrides=overrides, interpolate=False)
        plain_config = config.interpolate()
    block = config.get("training", {}).get("optimizer")
    if not isinstance(block, Mapping):
        raise ConfigError(
            "Can't train with --budget: expected a section [training.optimizer], found "
            f"{'none' if block is None else f'a value, {block}'}. Write its settings into such a section."
        )
    block = plain_config["training"]["optimizer"]
    _check(block)
    if "checkpoint" not in block and output_path is None:
        _SECTION.refuse("--budget", "--output, or a block [training.optimizer.checkpoint], for checkpoints", None)
    folder = output_path if output_path is not None else Path(block["checkpoint"]["path"]).parent
    path = folder / "budget.cfg"
    before = _rates_before(path)
    optimizer, told = config["training"]["optimizer"], []
    for place, rates in {("learn_rate",): [_DEFAULT_RATE], **rates_of_settings(plain_config)}.items():
        schedule = _stable(rates, limit if unit == "steps" else _steps_of(plain_config))
        if (begun := _at(before, place)) is not None:
            # A run that was killed may resume with a larger budget: its warm-up must stay the same.
            schedule["warmup_steps"] = begun.get("warmup_steps", schedule["warmup_steps"])
        put(optimizer, place, schedule)
        steps = schedule["warmup_steps"]
        rise = (
            f"rises to {plain(schedule['initial_rate'])} in {'1 step' if steps == 1 else f'{steps:,} steps'}, and stays"
        )
        told.append(f"{'.'.join(place)}: {rise} until it falls for the end of the budget.")
    optimizer["budget"] = {"@misc": "thinc-torchopt.Budget.v1", "limit": budget}
    if "checkpoint" not in block:
        optimizer["checkpoint"] = {"@misc": "thinc-torchopt.Checkpoint.v1", "path": str(Path(output_path) / "state")}  # type: ignore[arg-type]
    training = config["training"]
    training |= {"max_steps": int(limit) - 1 if unit == "steps" else 0, "patience": 0}
    training["max_epochs"] = min(0, plain_config["training"].get("max_epochs", 0))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config.to_disk(path, interpolate=False)
    except OSError as error:
        raise ConfigError(
            f"Can't write '{path}': expected a folder that can be written to, found: {error}. Change --output."
        ) from error
    return path, [*told, f"max_steps, max_epochs and patience have no effect. The config is saved to {path}."]


def _rates_before(path: Path) -> Any:
    """[training.optimizer] of an earlier run with a budget. RAISES (ConfigError): The file is not a config."""
    try:
        return Config().from_disk(path, interpolate=False)["training"]["optimizer"] if path.exists() else {}
    except (ValueError, KeyError, OSError) as error:
        raise ConfigError(
            f"Can't read '{path}': expected the config of a training with --budget, found another file. Remove it, "
            "and the training begins with another warm-up; or change --output."
        ) from error


def _check(block: Mapping[str, Any]) -> None:
    """RAISES (ConfigError): The optimizer's rates can't be made to fall on demand."""
    if block["@optimizers"] != _OURS:
        raise ConfigError(
            f'Can\'t train with --budget: expected @optimizers = "{_OURS}" in [training.optimizer], found '
            f'"{block["@optimizers"]}", which has no checkpoints. Convert it, for example with spacy torchopt init '
            "--recipe adamw."
        )


def _steps_of(config: Mapping[str, Any]) -> int:
    return int(config["training"].get("max_steps") or 20_000)


def _stable(rates: Sequence[float], steps: float) -> dict[str, Any]:
    """A schedule with the warm-up of given rates that stays at their peak. steps (float): Expected training steps."""
    peak = max(rates)
    return {
        "@schedules": "thinc-torchopt.warmup_stable_decay.v1",
        "initial_rate": peak,
        "warmup_steps": min(rates.index(peak), int(_LONGEST_WARMUP * steps)),
        "decay_steps": _DECAY_STEPS,
        "decay_begins": "when told",
        "decay_type": "linear",
    }


def _at(block: Any, place: Sequence[str]) -> Mapping[str, Any] | None:
    """The section at a place, if there is one."""
    for part in place:
        block = block.get(part) if isinstance(block, Mapping) else None
    return block if isinstance(block, Mapping) else None
