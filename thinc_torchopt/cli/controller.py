"""`spacy torchopt controller`: check the rules of a controller, and try them on the log of a training."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from reprlib import repr as limited
from typing import Any

from spacy import util

from ..controller import ControllerSettings, ControllerSpec
from ..errors import ConfigError
from ..host import cli_util
from ..report import Panel, check_picture, plot_firings, read_history
from ._replay import Fired, Replay, replay
from ._util import config_errors_shown, errors_shown, make_console, print_json, print_notes, print_table, short

_spacy = cli_util()

# The JSON has all rows.
_MAX_ROWS = 50
_MAX_STEPS = 5
# More would be too small to see.
_MAX_PANELS = 12


def run_controller(
    path: Path,
    *,
    is_check: bool,
    log_paths: Sequence[Path],
    more_logs: Sequence[Path] = (),
    changes: Sequence[str] = (),
    output_path: Path | None,
    as_json: bool,
    code_path: Path | None = None,
) -> None:
    """Check a definition, or try it on a log.

    path (Path): The definition, or a config with rules.
    changes (Sequence[str]): Other settings of rules: "stop.rule=loss['loss'] < 1".
    is_check (bool): Only check it.
    log_paths, more_logs (Sequence[Path]): Logs of JSONLinesLogger, of one run. Empty: the definition is checked.
    output_path (Path | None): The picture of a replay.
    """
    with errors_shown(as_json=as_json):
        if more_logs and not log_paths:
            raise ConfigError(f"Can't use {more_logs[0]}: logs are given after --replay. Add --replay.")
        if is_check and log_paths:
            raise ConfigError("Can't use --check with --replay: a replay checks the rules too. Remove --check.")
        if not log_paths and output_path is not None:
            raise ConfigError("Can't use --output alone: without a log there is nothing to draw. Add --replay.")
        _spacy.import_code(code_path)
        settings = _settings_of(path)
        changed = settings.changed(dict(map(_change, changes))) if changes else None
    log_paths = [*log_paths, *more_logs]
    if not log_paths:
        _check(path, changed or settings, as_json=as_json)
    else:
        _replay(path, settings, changed, log_paths, output_path=output_path, as_json=as_json)


def _settings_of(path: Path) -> ControllerSettings:
    """The rules of a definition, or of a config.

    RAISES (ConfigError): The config has none. (ControllerError): The rules have errors.
    """
    if path.suffix != ".cfg":
        return ControllerSettings(path)
    with config_errors_shown(path):
        config = util.load_config(path, interpolate=True)
    optimizer = config.get("training", {}).get("optimizer", {})
    if "controller" not in optimizer:
        raise ConfigError(
            f"Can't check the rules of {path}: expected a block [training.optimizer.controller], found none."
        )
    with config_errors_shown(path, config):
        found = util.registry.resolve({"controller": optimizer["controller"]})["controller"]
    if not isinstance(found, ControllerSettings):
        raise ConfigError(
            f"Can't check the rules of {path}: expected a block [training.optimizer.controller] with @misc = "
            '"thinc-torchopt.TrainerController.v1".'
        )
    return found


def _change(text: str) -> tuple[tuple[str, ...], Any]:
    """A setting of a rule from the command line: its path and value. A value is JSON, or else a text."""
    path, sign, value = text.partition("=")
    keys = tuple(part.strip() for part in path.split("."))
    if not sign or len(keys) < 2 or not all(keys):
        raise ConfigError(f"Can't use --set {text!r}: expected NAME.KEY=VALUE, as in stop.max_firings=3.")
    if keys[1] != "rule":
        with suppress(ValueError):
            return keys, json.loads(value)
    return keys, value


def _check(path: Path, settings: ControllerSettings, *, as_json: bool) -> None:
    """Print the rules of a definition."""
    definition = settings.definition
    specs = definition.controllers
    if as_json:
        metrics = {name: part.kind for name, part in definition.metrics.items()}
        print_json({"definition": str(path), "metrics": metrics, "controllers": [_as_dict(spec) for spec in specs]})
        return
    console = make_console()
    console.print(
        f"{path} can be used: {_count(len(definition.metrics), 'metric')}, {_count(len(specs), 'controller')}."
    )
    headers = ["controller", "on", "does", "when its rule holds"]
    print_table(
        console,
        headers,
        [[spec.name, ", ".join(spec.triggers), ", ".join(_operations(spec)), _limits(spec)] for spec in specs],
    )


def _replay(
    path: Path,
    settings: ControllerSettings,
    changed: ControllerSettings | None,
    log_paths: Sequence[Path],
    *,
    output_path: Path | None,
    as_json: bool,
) -> None:
    """Print which rules would have fired when in the training of a log, and draw them. Changed rules beside those of
    before.
    """
    with errors_shown(as_json=as_json):
        if output_path is not None:
            check_picture(output_path, [path, *log_paths])
        controller = (changed or settings).build(is_replay=True)
        records, notes = read_history(log_paths)
        found = replay(controller, records)
        unchanged = None if changed is None else replay(settings.build(is_replay=True), records)
        notes += found.notes
        if output_path is not None:
            notes += _draw(found, output_path, f"Rules of {path.name}, tried on {log_paths[0]}")
    specs = controller.definition.controllers
    if as_json:
        print_json(_replay_as_dict(path, log_paths, specs, found, unchanged, notes))
        return
    console = make_console()
    steps = f"step {found.steps[0]:,} to {found.steps[-1]:,}"
    logs = ", ".join(map(str, log_paths))
    console.print(f"{logs}: {_count(len(found.steps), 'line')}, {steps}. Nothing was done in this replay.")
    headers = ["controller", "fired", "at step", *([] if unchanged is None else ["unchanged"]), "operations"]
    rows = []
    for spec in specs:
        fired = found.steps_of(spec.name)
        before = [] if unchanged is None else [_steps(unchanged.steps_of(spec.name))]
        rows.append([spec.name, f"{len(fired):,}", _steps(fired), *before, ", ".join(_operations(spec))])
    print_table(console, headers, rows, numbers=["fired"])
    if found.fired:
        rows = [[f"{fired.step:,}", fired.event, fired.controller, _values(fired)] for fired in found.fired[:_MAX_ROWS]]
        print_table(console, ["step", "event", "controller", "values"], rows, numbers=["step"])
    if len(found.fired) > _MAX_ROWS:
        notes.append(f"Shown are the first {_MAX_ROWS} of {len(found.fired):,} firings. --json has all.")
    print_notes(console, notes)
    if output_path is not None:
        console.print(f"Saved the picture to {output_path}")


def _draw(found: Replay, path: Path, title: str) -> list[str]:
    """RETURNS (list[str]): Notes. RAISES (ConfigError): There is nothing to draw."""
    if not found.series:
        raise ConfigError(f"Can't draw {path}: none of the metrics that rules name has a number in this log.")
    panels = {}
    for place, values in found.series.items():
        firings = {
            name: list(dict.fromkeys(found.steps_of(name)))
            for name, paths in found.looked_up.items()
            if any(place[: len(looked_up)] == looked_up for looked_up in paths)
        }
        fired = {name: steps for name, steps in firings.items() if steps}
        thresholds = {words: compared for (at, words), compared in found.thresholds.items() if at == place}
        panels["/".join(place)] = Panel(values, fired, thresholds)
    shown = dict(list(panels.items())[:_MAX_PANELS])
    plot_firings(found.steps, shown, path, title)
    left_out = list(panels)[_MAX_PANELS:]
    return [f"Not in the picture, which has room for {_MAX_PANELS}: {', '.join(left_out)}."] if left_out else []


# ---------------------------------------------------------------------- as text and as JSON


def _operations(spec: ControllerSpec) -> list[str]:
    return [f"{operation}.{action}" for operation, action in spec.actions]


def _limits(spec: ControllerSpec) -> str:
    """The limits on a controller's firings, in words."""
    parts = []
    if spec.patience is not None:
        in_a_row = " in a row" if spec.patience.resets else ""
        parts.append(f"more than {spec.patience.threshold} times{in_a_row}")
    if spec.cooldown:
        parts.append(f"then not for {_count(spec.cooldown, 'step')}")
    if spec.max_firings is not None:
        parts.append(f"at most {_count(spec.max_firings, 'firing')}")
    return ", ".join(parts) or "each time"


def _steps(steps: Sequence[int]) -> str:
    """The first steps of a list."""
    return ", ".join(f"{step:,}" for step in steps[:_MAX_STEPS]) + (" ..." if len(steps) > _MAX_STEPS else "")


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def _as_dict(spec: ControllerSpec) -> dict[str, Any]:
    patience = spec.patience
    return {
        "name": spec.name,
        "triggers": spec.triggers,
        "rule": spec.rule.text,
        "operations": _operations(spec),
        "patience": None if patience is None else patience.threshold,
        "in_a_row": None if patience is None else patience.resets,
        "cooldown": spec.cooldown,
        "max_firings": spec.max_firings,
    }


def _replay_as_dict(
    path: Path,
    log_paths: Sequence[Path],
    specs: Sequence[ControllerSpec],
    found: Replay,
    unchanged: Replay | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    steps = {
        spec.name: {"steps": found.steps_of(spec.name)}
        | ({} if unchanged is None else {"unchanged_steps": unchanged.steps_of(spec.name)})
        for spec in specs
    }
    return {
        "definition": str(path),
        "log": str(log_paths[0]),
        "logs": list(map(str, log_paths)),
        "first_step": found.steps[0],
        "last_step": found.steps[-1],
        "controllers": [_as_dict(spec) | steps[spec.name] for spec in specs],
        "firings": [vars(fired) for fired in found.fired],
        "without_value": found.without_value,
        "notes": list(notes),
    }


def _values(fired: Fired) -> str:
    return ", ".join(f"{name} {_shown(value)}" for name, value in fired.values.items())


def _shown(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return short(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return "-" if value is None else limited(value)
