"""`spacy torchopt controller`: check the rules of a controller, and try them on the log of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from reprlib import repr as limited
from typing import Any

from ..controller import ControllerSpec, TrainerController
from ..errors import ConfigError
from ..host import cli_util
from ..report import Panel, check_picture, plot_firings, read_history
from ._replay import Fired, Replay, replay
from ._util import errors_shown, make_console, print_json, print_notes, print_table, short

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
    output_path: Path | None,
    as_json: bool,
    code_path: Path | None = None,
) -> None:
    """Check a definition, or try it on a log.

    path (Path): The definition.
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
    log_paths = [*log_paths, *more_logs]
    if not log_paths:
        _check(path, as_json=as_json, code_path=code_path)
    else:
        _replay(path, log_paths, output_path=output_path, as_json=as_json, code_path=code_path)


def _check(path: Path, *, as_json: bool, code_path: Path | None) -> None:
    """Print the rules of a definition, or all its errors."""
    with errors_shown(as_json=as_json):
        _spacy.import_code(code_path)
        definition = TrainerController(path).definition
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
    path: Path, log_paths: Sequence[Path], *, output_path: Path | None, as_json: bool, code_path: Path | None
) -> None:
    """Print which rules would have fired when in the training of a log, and draw them."""
    with errors_shown(as_json=as_json):
        if output_path is not None:
            check_picture(output_path, [path, *log_paths])
        _spacy.import_code(code_path)
        controller = TrainerController(path, is_replay=True)
        records, notes = read_history(log_paths)
        found = replay(controller, records)
        notes += found.notes
        if output_path is not None:
            notes += _draw(found, output_path, f"Rules of {path.name}, tried on {log_paths[0]}")
    specs = controller.definition.controllers
    if as_json:
        print_json(_replay_as_dict(path, log_paths, specs, found, notes))
        return
    console = make_console()
    steps = f"step {found.steps[0]:,} to {found.steps[-1]:,}"
    logs = ", ".join(map(str, log_paths))
    console.print(f"{logs}: {_count(len(found.steps), 'line')}, {steps}. Nothing was done in this replay.")
    rows = []
    for spec in specs:
        fired = found.steps_of(spec.name)
        at = ", ".join(f"{step:,}" for step in fired[:_MAX_STEPS]) + (" ..." if len(fired) > _MAX_STEPS else "")
        rows.append([spec.name, f"{len(fired):,}", at, ", ".join(_operations(spec))])
    print_table(console, ["controller", "fired", "at step", "operations"], rows, numbers=["fired"])
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
    path: Path, log_paths: Sequence[Path], specs: Sequence[ControllerSpec], found: Replay, notes: Sequence[str]
) -> dict[str, Any]:
    return {
        "definition": str(path),
        "log": str(log_paths[0]),
        "logs": list(map(str, log_paths)),
        "first_step": found.steps[0],
        "last_step": found.steps[-1],
        "controllers": [_as_dict(spec) | {"steps": found.steps_of(spec.name)} for spec in specs],
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
