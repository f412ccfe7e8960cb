"""`spacy torchopt controller`: check the rules of a controller, and try them on the log of a training.

A replay runs a controller over the log of a finished training: which rules would have fired when. A line of a log is
one step. Steps between two lines are unknown: the losses and batch words of a line are then means over them, as
JSONLinesLogger writes them.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from reprlib import repr as limited
from typing import Any, Optional

from confection import Config
from spacy import util
from spacy.language import DEFAULT_CONFIG
from typer import Argument as Arg
from typer import BadParameter
from typer import Option as Opt

from ..addons.controller import (
    RULE_KEYS,
    ControllerSettings,
    ControllerSpec,
    Firing,
    MetricUnavailable,
    TrainerController,
    value_at,
)
from ..addons.controller.run_rules import names_in_run
from ..addons.preview import actions_of, tell_limits
from ..addons.recipes import put
from ..addons.report import COUNTS, read_history
from ..core.errors import ConfigError, ControllerError
from ..core.host import cli_util
from ..core.words import count
from ..loop.events import EVENTS
from ..loop.setup import resolve_optimizer
from ._command import CODE, JSON
from ._screen import errors_shown, make_console
from ._setup import config_errors_shown, read_overrides
from ._terminal import print_json, print_notes, print_table, short

# The JSON has all rows.
_MAX_ROWS = 50
_MAX_STEPS = 5
# Newest items shown of a list.
_MAX_ITEMS = 10

Record = Mapping[str, Any]


def controller(
    definition_path: Path = Arg(
        ..., help="YAML or JSON file with the rules, config file, or folder of a pipeline", exists=True
    ),
    check: bool = Opt(False, "--check", help="Check the rules, and show what they do. Default without --replay"),
    log_paths: Optional[list[Path]] = Opt(
        None,
        "--replay",
        help="Log file of JSONLinesLogger: show which rules would have fired",
        exists=True,
        dir_okay=False,
    ),
    more_logs: Optional[list[str]] = Arg(None, metavar="LOG", help="With --replay: more logs of the same run"),
    changes: Optional[list[str]] = Opt(
        None, "--set", metavar="NAME.KEY=VALUE", help="Change a setting of a rule: stop.max_firings=3. Repeatable"
    ),
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
) -> None:
    """
    Check the rules of a controller, or try them on a log. Lists all errors of the definition at once; without errors,
    shows on which events the rules run and what they do. With --replay, tries the rules on the log of a training and
    shows which would have fired when. With --set, a rule gets another setting for this check or replay, as in --set
    "stop.rule=loss['loss'] < 1", or --set stop.evaluations=3 for an argument of a rule by name. Nothing is trained, and
    no operation runs.
    """
    logs, args = _divided(more_logs or ())
    with errors_shown(as_json=as_json):
        if logs and not log_paths:
            raise ConfigError(f"Can't use {logs[0]}: logs are given after --replay. Add --replay.")
        if check and log_paths:
            raise ConfigError("Can't use --check with --replay: a replay checks the rules too. Remove --check.")
        cli_util().import_code(code_path)
        source = _RulesSource(definition_path, args)
        changed = source.changed(dict(map(_change, changes))) if changes else None
    if not log_paths:
        _check(source, changed or source.settings, as_json=as_json)
    else:
        _replay(source, changed, [*log_paths, *logs], as_json=as_json)


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


class _RulesSource:
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
                raise ConfigError(
                    f"Can't use {args[0]}: {path} is a file of rules, in which a config's settings can't be changed."
                )
            self.settings = ControllerSettings(path)
            return
        overrides = read_overrides(args)
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


def _check(source: _RulesSource, settings: ControllerSettings, *, as_json: bool) -> None:
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
    source: _RulesSource, changed: ControllerSettings | None, log_paths: Sequence[Path], *, as_json: bool
) -> None:
    """Print which rules would have fired when in the training of a log. Changed rules beside the original ones."""
    path = source.path
    with errors_shown(as_json=as_json):
        controller = (changed or source.settings).build(is_replay=True)
        records, notes = read_history(log_paths)
        facts = source.facts(records[-1]["step"])
        found = replay(controller, records, facts)
        unchanged = None if changed is None else replay(source.settings.build(is_replay=True), records, facts)
        notes += found.notes
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


# ---------------------------------------------------------------------- the replay


@dataclass(frozen=True)
class Fired:
    """A firing of a rule. values (dict): The values it used, by `metric/key/key`."""

    controller: str
    event: str
    step: int
    operations: list[str]
    values: dict[str, Any]


@dataclass
class Replay:
    """The result of a replay.

    steps (list[int]): The steps of the lines.
    fired (list[Fired]): In the order in which they fired.
    without_value (list[str]): Metrics that rules name and that never had a value.
    notes (list[str]): Notes for the user.
    """

    steps: list[int]
    fired: list[Fired] = field(default_factory=list)
    without_value: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def steps_of(self, controller: str) -> list[int]:
        """The steps at which a controller fired."""
        return [fired.step for fired in self.fired if fired.controller == controller]


def replay(controller: TrainerController, records: Sequence[Record], facts: Mapping[str, int] = {}) -> Replay:
    """Run a controller over the lines of a log. No operation runs.

    controller (TrainerController): With `is_replay`.
    records (Sequence[Mapping]): The lines, with rising steps.
    facts (Mapping): What all events carry that is not in the log: `max_steps`, `warmup_steps`.
    RAISES (ControllerError): A metric or a rule failed, as it would have in the training.
    """
    specs = {spec.name: spec for spec in controller.definition.controllers}
    found = Replay([record["step"] for record in records])
    for events in _events_of(records, facts):
        for event, payload in events:
            for name, firings in groupby(controller.decide(event, **payload), lambda firing: firing.controller):
                found.fired.append(_fired(list(firings), specs[name]))
    named = {name for spec in specs.values() for name in spec.rule.names}
    found.without_value = [name for name, value in controller.values.items() if value is None and name in named]
    found.notes = list(_notes(controller, records, found.without_value))
    return found


# ---------------------------------------------------------------------- events


def _events_of(records: Sequence[Record], facts: Mapping[str, int] = {}) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The events of each line, with their payloads."""
    max_steps = facts.get("max_steps", 0)
    before: dict[str, Any] = {}
    for i, record in enumerate(records):
        last = records[i - 1] if i else None
        step, epoch = record["step"], _number(record.get("epoch"))
        epoch = None if epoch is None else int(epoch)
        now = _common(record)
        place = {**facts, "step": step, "epoch": epoch, "learn_rates": now.get("learn_rates")}
        place["is_final"] = 0 < max_steps <= step
        events = [] if i else [("on_train_begin", {**place, "step": step - 1})]
        if epoch is not None and epoch != before.get("epoch"):
            events.append(("on_epoch_begin", {**before, **place, "step": step - 1}))
        now |= place
        grads = {"grad_norm": norm} if (norm := _number(record.get("grad_norm"))) is not None else {}
        trained = now | grads | {"losses": _losses(record)} | _batch(record, last)
        events += [
            ("on_step_begin", {**before, **place}),
            ("on_pre_optimizer_step", {**before, **place, **grads}),
            ("on_optimizer_step", now | grads),
            ("on_step_end", trained),
        ]
        if "score" in record:  # null: it was not finite
            score, scores = _number(record["score"]), record.get("scores")
            scores = scores if isinstance(scores, dict) else {}
            now_evaluated = now | {"score": math.nan if score is None else score, "scores": scores}
            events.append(("on_evaluate", now_evaluated | _dev_losses(record)))
        events.append(("on_log", trained))
        following = records[i + 1] if i + 1 < len(records) else record
        if epoch is not None and (_number(following.get("epoch")) or 0) > epoch:
            events.append(("on_epoch_end", now))
        yield events
        before = now


def _common(record: Record) -> dict[str, Any]:
    """The part of the payload that all events have, as far as the line has it."""
    numbers = {key: _number(record.get(key)) for key in ("words", "seconds")}
    counts = {key: int(value) for key in COUNTS if (value := _number(record.get(key))) is not None}
    rates = record.get("learn_rates")
    rates = rates if isinstance(rates, dict) else {}
    rates = {name: rate for name, value in rates.items() if (rate := _number(value)) is not None}
    found = {**numbers, "counts": counts, "learn_rates": rates}
    return {key: value for key, value in found.items() if value is not None and value != {}}


def _losses(record: Record) -> dict[str, float]:
    """The losses of a line. null in the log: not finite."""
    losses = {name: math.nan if loss is None else _number(loss) for name, loss in record["losses"].items()}
    return {name: loss for name, loss in losses.items() if loss is not None}


def _dev_losses(record: Record) -> dict[str, Any]:
    """The dev losses of a line, if it has them."""
    found = record.get("dev_losses")
    if not isinstance(found, dict) or not isinstance(found.get("losses"), dict):
        return {}
    words, examples = _number(found.get("words")), _number(found.get("examples"))
    if words is None or examples is None:
        return {}
    return {"dev_losses": lambda at_most: {"losses": _losses(found), "words": words, "examples": examples}}


def _batch(record: Record, last: Record | None) -> dict[str, float]:
    """The words of a batch; the mean if there were several."""
    words = _number(record.get("words"))
    words_before, steps = (
        (0.0, record["step"] + 1) if last is None else (_number(last.get("words")), record["step"] - last["step"])
    )
    if words is None or words_before is None or words <= words_before or (last is None and record["step"]):
        return {}
    return {"batch_words": (words - words_before) / steps}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def _fired(firings: Sequence[Firing], spec: ControllerSpec) -> Fired:
    first = firings[0]
    values = {
        "/".join(path): _shortened(value_at(first.values, path)) for path in spec.rule.paths if path[0] in first.values
    }
    return Fired(
        first.controller, first.event, first.step, [f"{one.operation}.{one.action}" for one in firings], values
    )


def _shortened(value: Any) -> Any:
    """A value for JSON: NaN and infinities become None."""
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shortened(item) for item in value[-_MAX_ITEMS:]]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------------- notes


def _notes(controller: TrainerController, records: Sequence[Record], without_value: Sequence[str]) -> Iterator[str]:
    if without_value:
        kinds = (f"{name} ({controller.definition.metrics[name].kind})" for name in without_value)
        yield f"This log gives no value to {', '.join(kinds)}: rules that need one were skipped."
    for spec in controller.definition.controllers:
        if not spec.rule.names.isdisjoint(without_value):
            continue
        try:
            spec.rule.evaluate(controller.values)
        except MetricUnavailable as error:
            yield f"The rule of '{spec.name}' was skipped at every line: {error}."
        except ControllerError:
            pass  # the rule was never reached in the replay
    held = {event for events in _events_of(records) for event, _ in events}
    for spec in controller.definition.controllers:
        if unknown := [event for event in EVENTS if event in spec.triggers and event not in held]:
            yield f"This log has no {', '.join(unknown)}: the rule of '{spec.name}' was not tried there."
    if any(after["step"] - before["step"] > 1 for before, after in pairwise(records)):
        yield "Not all steps are in this log: rules were tried at its lines only, on mean losses since the line before."
