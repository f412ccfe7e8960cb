"""Run a controller over the log of a finished training: which rules would have fired when.

A line of a log is one step. Steps between two lines are unknown: the losses and batch words of a line are then means
over them, as JSONLinesLogger writes them.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from textwrap import shorten
from typing import Any

from ..controller import EVENTS, ControllerSpec, Firing, MetricUnavailable, Path, Rule, TrainerController, value_at
from ..errors import ControllerError
from ..report import COUNTS

Record = Mapping[str, Any]

# The events that a log has, in order. A log has no end of the training: it may continue.
REPLAYED = (
    "on_train_begin",
    "on_epoch_begin",
    "on_step_begin",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_step_end",
    "on_evaluate",
    "on_log",
    "on_epoch_end",
)
_SIGNS: dict[type, str] = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_TURNED: dict[type, str] = {**_SIGNS, ast.Lt: ">", ast.LtE: ">=", ast.Gt: "<", ast.GtE: "<="}
# Newest items shown of a list; characters shown of a part of a rule.
_MAX_ITEMS, _MAX_TEXT = 10, 50


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
    series (dict): The values that rules use after each line, by path. NaN: no number.
    looked_up (dict): By controller, the paths of the values that its rule uses.
    thresholds (dict): The thresholds of rules after each line, by the path of the compared number and its text.
    without_value (list[str]): Metrics that rules name and that never had a value.
    notes (list[str]): Notes for the user.
    """

    steps: list[int]
    looked_up: dict[str, list[Path]]
    thresholds: dict[tuple[Path, str], list[float]] = field(default_factory=dict)
    fired: list[Fired] = field(default_factory=list)
    series: dict[Path, list[float]] = field(default_factory=dict)
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
    specs = controller.definition.controllers
    found = Replay([record["step"] for record in records], {spec.name: spec.rule.paths for spec in specs})
    paths = list(dict.fromkeys(path for paths in found.looked_up.values() for path in paths))
    compared = {(path, words): other for spec in specs for path, words, other in _compared(spec)}
    for i, events in enumerate(_events_of(records, facts)):
        for event, payload in events:
            for name, firings in groupby(controller.decide(event, **payload), lambda firing: firing.controller):
                found.fired.append(_fired(list(firings), found.looked_up[name]))
        for path in paths:
            for place, number in _numbers_at(path, value_at(controller.values, path)):
                values = found.series.setdefault(place, [])
                values += [math.nan] * (i - len(values)) + [number]
        for key, other in compared.items():
            found.thresholds.setdefault(key, []).append(_value_of(other, controller.values))
    found.thresholds = {at: values for at, values in found.thresholds.items() if any(v == v for v in values)}
    for values in found.series.values():
        values += [math.nan] * (len(records) - len(values))
    named = {name for spec in specs for name in spec.rule.names}
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


# ---------------------------------------------------------------------- what rules look up


def _compared(spec: ControllerSpec) -> Iterator[tuple[Path, str, Rule]]:
    """The comparisons of a rule: path of a number, the comparison as text, and its other side."""
    for compare in ast.walk(ast.parse(spec.rule.text, mode="eval")):
        if isinstance(compare, ast.Compare):
            for (left, right), op in zip(pairwise([compare.left, *compare.comparators]), compare.ops):
                for node, other, signs in ((left, right, _SIGNS), (right, left, _TURNED)):
                    path, text = _path_of(node), ast.unparse(other)
                    is_number = path is not None and path[0] in spec.rule.names and path != _path_of(other)
                    if path is None or not is_number or type(op) not in signs:
                        continue
                    with suppress(ControllerError):  # a name of a comprehension
                        rule = Rule(text, spec.rule.names, gives="anything")
                        yield path, f"{spec.name}: {signs[type(op)]} {shorten(text, _MAX_TEXT)}", rule


def _path_of(node: ast.expr) -> Path | None:
    """The path of a number to draw. Of a window, the newest value counts."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "-1":
        node = node.value
    keys: list[str] = []
    while (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    ):
        keys, node = [node.slice.value, *keys], node.value
    return (node.id, *keys) if isinstance(node, ast.Name) else None


def _value_of(rule: Rule, values: Mapping[str, Any]) -> float:
    """The value of a rule as a number; NaN if it is anything else or unknown."""
    try:
        value = _number(rule.evaluate(values))
    except (ControllerError, MetricUnavailable):
        value = None
    return math.nan if value is None else float(value)


def _numbers_at(path: Path, value: Any) -> Iterator[tuple[Path, float]]:
    """The numbers to draw: the newest of a window, each of a dict."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(item, dict):
                yield from _numbers_at((*path, key), item)
        return
    if isinstance(value, list) and value:
        value = value[-1]
    if isinstance(value, (bool, int, float)) and math.isfinite(value):
        yield path, float(value)


def _fired(firings: list[Firing], paths: Sequence[Path]) -> Fired:
    first = firings[0]
    values = {"/".join(path): _shortened(value_at(first.values, path)) for path in paths if path[0] in first.values}
    operations = [f"{firing.operation}.{firing.action}" for firing in firings]
    return Fired(first.controller, first.event, first.step, operations, values)


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
            yield f"The rule of '{spec.name}' was skipped to the last line: {error}."
        except ControllerError:
            pass  # the rule was never reached in the replay
    held = {event for events in _events_of(records) for event, _ in events}
    for spec in controller.definition.controllers:
        if unknown := [event for event in EVENTS if event in spec.triggers and event not in held]:
            yield f"This log has no {', '.join(unknown)}: the rule of '{spec.name}' was not tried there."
    if any(after["step"] - before["step"] > 1 for before, after in pairwise(records)):
        yield "Not all steps are in this log. Losses are means since the line before; rules were tried at its lines."
