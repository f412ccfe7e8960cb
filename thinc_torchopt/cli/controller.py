"""`spacy torchopt controller`: check the rules of a controller, and try them on the log of a training."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from reprlib import repr as limited
from typing import Any

from confection import Config
from spacy import util
from spacy.language import DEFAULT_CONFIG
from typer import BadParameter

from ..controller import RULE_KEYS, ControllerSettings, ControllerSpec
from ..errors import ConfigError
from ..host import cli_util
from ..report import Panel, check_picture, plot_firings, read_history
from ..training import names_in_run
from ._in_words import actions_of, count, tell_limits
from ._replay import Fired, Replay, replay
from ._util import (
    config_errors_shown,
    errors_shown,
    make_console,
    print_json,
    print_notes,
    print_table,
    put,
    resolve_optimizer,
    short,
)

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
    more: Sequence[str] = (),
    changes: Sequence[str] = (),
    output_path: Path | None,
    as_json: bool,
    code_path: Path | None = None,
) -> None:
    """Check a definition, or try it on a log.

    path (Path): The definition, a config with rules, or the folder of a trained pipeline.
    changes (Sequence[str]): Other settings of rules: "stop.rule=loss['loss'] < 1".
    is_check (bool): Only check it.
    log_paths (Sequence[Path]): Logs of JSONLinesLogger, of one run. Empty: the definition is checked.
    more (Sequence[str]): More logs, and overrides of the config.
    output_path (Path | None): The picture of a replay.
    """
    more_logs, args = _divided(more)
    with errors_shown(as_json=as_json):
        if more_logs and not log_paths:
            raise ConfigError(f"Can't use {more_logs[0]}: logs are given after --replay. Add --replay.")
        if is_check and log_paths:
            raise ConfigError("Can't use --check with --replay: a replay checks the rules too. Remove --check.")
        if not log_paths and output_path is not None:
            raise ConfigError("Can't use --output alone: without a log there is nothing to draw. Add --replay.")
        _spacy.import_code(code_path)
        source = _Source(path, args)
        settings = source.settings
        changed = source.changed(dict(map(_change, changes))) if changes else None
    log_paths = [*log_paths, *more_logs]
    if not log_paths:
        _check(source, changed or settings, as_json=as_json)
    else:
        _replay(source, changed, log_paths, output_path=output_path, as_json=as_json)


def _divided(more: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The logs, and the overrides of the config, among further arguments."""
    logs: list[Path] = []
    args: list[str] = []
    for text in more:
        if text.startswith("--") or (args and args[-1].startswith("--") and "=" not in args[-1]):
            args.append(text)
        elif not Path(text).is_file():
            raise BadParameter(f"File '{text}' does not exist.")
        else:
            logs.append(Path(text))
    return logs, args


class _Source:
    """The rules of a definition, or of a config.

    path (Path): Of a file, or of the folder of a trained pipeline. args (list[str]): Overrides of a config.
    RAISES (ConfigError): The config has no rules. (ControllerError): The rules have errors.

    Public: `path`, `config` (None: the rules are in a file of their own), `settings`.
    """

    def __init__(self, path: Path, args: list[str]):
        self.path = path
        self.config: Config | None = None
        if not path.is_dir() and path.suffix != ".cfg":
            if args:
                raise ConfigError(f"Can't use {args[0]}: {path} is no config, and has no settings but its rules.")
            self.settings = ControllerSettings(path)
            return
        overrides = _spacy.parse_config_overrides(args)
        with config_errors_shown(path):
            file = path / "config.cfg" if path.is_dir() else path
            self.config = util.load_config(file, overrides=overrides, interpolate=True)
        self._optimizer = self.config.get("training", {}).get("optimizer", {})
        if "controller" not in self._optimizer:
            raise ConfigError(
                f"Can't check the rules of {path}: expected a block [training.optimizer.controller], found none."
            )
        self.settings = _resolved(path, self.config, self._optimizer["controller"])

    def changed(self, changes: Mapping[tuple[str, ...], Any]) -> ControllerSettings:
        """The rules with other settings, by their paths: of a rule by name, its arguments too."""
        controller = deepcopy(self._optimizer["controller"]) if self.config is not None else {}
        others = dict(changes)
        for path, value in changes.items():
            block = controller.get("rules", {}).get(path[0], {})
            if (name := block.get("@controller_rules")) is None:
                continue
            arguments = inspect.signature(util.registry.controller_rules.get(name)).parameters  # type: ignore[attr-defined]
            if path[1] in arguments or path[1] not in RULE_KEYS:
                put(block, path[1:], value)
                del others[path]
        settings = self.settings
        if self.config is not None and len(others) < len(changes):
            settings = _resolved(self.path, self.config, controller)
        return settings.changed(others) if others else settings

    def doubts(self, settings: ControllerSettings) -> list[str]:
        """Names in rules that may be wrong. RAISES (ControllerError): Names that are."""
        if self.config is None or not self.config.get("nlp", {}).get("pipeline"):
            return []
        try:
            nlp = util.load_model_from_config(self.config, auto_fill=True)
        except Exception as error:  # components may raise anything
            return [f"Names of components and scores were not checked: no pipeline can be made of {self.path}. {error}"]
        return settings.build().check_keys((), *names_in_run(nlp))

    def facts(self, last: int) -> dict[str, int]:
        """Facts of a run that the config has. last (int): Its last step in a log."""
        if self.config is None:
            return {}
        default = DEFAULT_CONFIG["training"]["max_steps"]
        max_steps = self.config["training"].get("max_steps", default)
        found = {"max_steps": max_steps} if max_steps else {}
        if "@optimizers" in self._optimizer:
            with config_errors_shown(self.path, self.config):
                optimizer = resolve_optimizer(deepcopy(self._optimizer))
            if optimizer.spans_training:
                optimizer.set_total_steps((max_steps or last) + 1)
            found["warmup_steps"] = optimizer.warmup_steps
        return found


def _resolved(path: Path, config: Config, controller: dict[str, Any]) -> ControllerSettings:
    with config_errors_shown(path, config):
        found = util.registry.resolve({"controller": controller})["controller"]
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


def _check(source: _Source, settings: ControllerSettings, *, as_json: bool) -> None:
    """Print the rules of a definition."""
    with errors_shown(as_json=as_json):
        notes = source.doubts(settings)
    definition = settings.definition
    specs = definition.controllers
    if as_json:
        metrics = {name: part.kind for name, part in definition.metrics.items()}
        found = {"metrics": metrics, "controllers": [_as_dict(spec) for spec in specs], "notes": notes}
        print_json({"definition": str(source.path), **found})
        return
    console = make_console()
    console.print(
        f"{source.path} can be used: {count(len(definition.metrics), 'metric')}, {count(len(specs), 'controller')}."
    )
    headers = ["controller", "on", "does", "when its rule holds"]
    print_table(
        console,
        headers,
        [[spec.name, ", ".join(spec.triggers), ", ".join(actions_of(spec)), tell_limits(spec)] for spec in specs],
    )
    print_notes(console, notes)


def _replay(
    source: _Source,
    changed: ControllerSettings | None,
    log_paths: Sequence[Path],
    *,
    output_path: Path | None,
    as_json: bool,
) -> None:
    """Print which rules would have fired when in the training of a log, and draw them. Changed rules beside those of
    before.
    """
    path = source.path
    with errors_shown(as_json=as_json):
        if output_path is not None:
            check_picture(output_path, [path, *log_paths])
        controller = (changed or source.settings).build(is_replay=True)
        records, notes = read_history(log_paths)
        facts = source.facts(records[-1]["step"])
        found = replay(controller, records, facts)
        unchanged = None if changed is None else replay(source.settings.build(is_replay=True), records, facts)
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
    console.print(f"{logs}: {count(len(found.steps), 'line')}, {steps}. Nothing was done in this replay.")
    headers = ["controller", "fired", "at step", *([] if unchanged is None else ["unchanged"]), "operations"]
    rows = []
    for spec in specs:
        fired = found.steps_of(spec.name)
        before = [] if unchanged is None else [_steps(unchanged.steps_of(spec.name))]
        rows.append([spec.name, f"{len(fired):,}", _steps(fired), *before, ", ".join(actions_of(spec))])
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


def _steps(steps: Sequence[int]) -> str:
    """The first steps of a list."""
    return ", ".join(f"{step:,}" for step in steps[:_MAX_STEPS]) + (" ..." if len(steps) > _MAX_STEPS else "")


def _as_dict(spec: ControllerSpec) -> dict[str, Any]:
    patience = spec.patience
    return {
        "name": spec.name,
        "triggers": spec.triggers,
        "rule": spec.rule.text,
        "operations": actions_of(spec),
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
