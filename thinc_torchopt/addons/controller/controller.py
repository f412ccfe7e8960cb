"""The controller: gets the events of a training run, computes metrics, evaluates rules, and acts when they fire.

At each event it computes the metrics of the event, evaluates the controllers that it triggers, and then runs their
actions, each in the order of the definition. Nothing here knows of spaCy or torch: an event is a name with keyword
arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ...core.checks import own_errors
from ...core.errors import ConfigError, ControllerError
from ...core.log import LOGGER, inform
from ...core.near_misses import did_you_mean
from ...core.schema import Count, check_names, check_version, read, write
from ...loop.events import ALIASES, EVENTS
from .definition import FIRED, ControllerSpec, Definition, Source, keys_of_fired, list_faults, load
from .evaluator import MetricUnavailable
from .metrics import EXCLUDED, EvalLoss, EvalMetrics, HistoryBasedMetric, Loss
from .operations import KeepBestControl
from .rules import Rule, compared_with, shown
from .series import Best, Series, Window
from .values import Keys, looked_up, plain, repr_of

_VERSION = 1
_WHAT = "the state of the trainer controller"
# The ends of the names of spaCy's scores that are from 0 to 1, and of those that are no part of the main score. Scores
# of the user may be of any size.
_FRACTIONS = ("_p", "_r", "_f", "_acc", "_uas", "_las", "_auc", "cats_score")
_NO_PARTS = ("speed", "_desc", "_per_type", "_per_feat")


@dataclass(frozen=True)
class Firing:
    """One action of a rule that fired.

    controller (str): The controller with the rule.
    operation, action (str): The action.
    event (str), step (int): The event and the step.
    values (dict): The values that the rule looked up, by metric and key. Of lists the newest.
    """

    controller: str
    operation: str
    action: str
    event: str
    step: int
    values: dict[str, Any]

    def __str__(self) -> str:
        return (
            f"Controller '{self.controller}' took {self.operation}.{self.action} on {self.event} at step {self.step}, "
            f"with {repr_of(self.values)}"
        )


@dataclass
class RuleState:
    """The saved state of one controller.

    rule (str): Its rule. patience (dict): How often the rule held, by trigger. last (int | None): The step of its last
        firing. firings (int): Number of firings.
    """

    rule: str
    patience: dict[str, Count] = field(default_factory=dict)
    last: int | None = None
    firings: Count = 0


@dataclass
class SavedPart:
    """The saved state of a metric or operation, with its class and arguments."""

    kind: str
    arguments: dict[str, Any]
    state: dict[str, Any]

    @classmethod
    def of(cls, part: Any) -> SavedPart:
        state = part.instance.state_dict() if hasattr(part.instance, "state_dict") else {}
        return cls(part.kind, plain(part.arguments), plain(state))

    def is_of(self, part: Any) -> bool:
        """Whether it is the state of this part: the definition may have changed since."""
        return (self.kind, self.arguments) == (part.kind, part.arguments)

    def load_into(self, part: Any) -> None:
        if hasattr(part.instance, "load_state_dict"):
            part.instance.load_state_dict(self.state)


@dataclass
class TrainerControllerState:
    """The saved state of a trainer controller. values (dict): Values of metrics."""

    version: Count
    step: int
    values: dict[str, Any]
    metrics: dict[str, SavedPart]
    operations: dict[str, SavedPart]
    controllers: dict[str, RuleState]


class TrainerController:
    """Rules that steer a training run.

    definition (str | Path | Mapping): Path of a YAML or JSON file, or its content.
    label (str | None), places (Mapping): For errors, as for `definition.load`.
    RAISES (ControllerError): The definition has errors. One message lists all of them.

    Public: `definition` (as objects), `events` (those on which it does anything), `values` (of metrics).
    """

    def __init__(
        self,
        definition: Source,
        *,
        label: str | None = None,
        places: Mapping[str, str] = {},
    ):
        self.definition: Definition = load(definition, label, places)
        self._values: dict[str, Any] = dict.fromkeys(self.definition.metrics)
        self.values: Mapping[str, Any] = MappingProxyType(self._values)
        self._states = {spec.name: RuleState(spec.rule.text) for spec in self.definition.controllers}
        self._step = 0
        self._warned: set[str] = set()
        self._levels = {spec.name: spec.log_level or logging.DEBUG for spec in self.definition.controllers}
        # By event: metrics to compute, and controllers to evaluate.
        self._metrics: dict[str, list[tuple[str, Any, bool]]] = {event: [] for event in EVENTS}
        self._controllers: dict[str, list[ControllerSpec]] = {event: [] for event in EVENTS}
        for spec in self.definition.controllers:
            for event in spec.triggers:
                self._controllers[event].append(spec)
        kept = self._kept_events()
        for name, part in self.definition.metrics.items():
            for event in dict.fromkeys(part.instance.events):
                if event in kept[name] or self._controllers[event]:
                    self._metrics[event].append((name, part.instance, getattr(part.instance, "is_plain", False)))
        self.events = frozenset(event for event in EVENTS if self._metrics[event] or self._controllers[event])

    def _kept_events(self) -> dict[str, set[str]]:
        """The events on which each metric must be computed, also if no rule is evaluated there: for its own memory, and
        for series over it.
        """
        kept: dict[str, set[str]] = {}
        for name, part in reversed(self.definition.metrics.items()):  # a series is after its metrics
            keeps = getattr(part.instance, "keeps", None)
            kept.setdefault(name, set()).update(part.instance.events if keeps is None else keeps)
            if isinstance(part.instance, Series):
                for used in part.instance.of.names:
                    kept.setdefault(used, set()).add(part.instance.event)
        return kept

    def reads(self, event: str) -> frozenset[str] | None:
        """The names in the payload that metrics read on an event, beside step and epoch. None: all. A loop need not
        compute other values.
        """
        names: set[str] = set()
        for _, metric, _ in self._metrics[event]:
            if (reads := getattr(metric, "reads", None)) is None:
                return None
            names.update(ALIASES.get(name, name) for name in reads)
        return frozenset(names)

    def check_keys(
        self, groups: Collection[str], components: Collection[str], scores: Collection[str] = ()
    ) -> list[str]:
        """Check the keys in rules and the components in `exclude`, now that the names in the run are known.

        groups, components, scores (Collection[str]): The names of param groups, of components, and of scores. Without
            any, these are not known.
        RETURNS (list[str]): Possible mistakes, as sentences.
        RAISES (ControllerError): A key does not exist. One message lists all faults.
        """
        instances = {name: part.instance for name, part in self.definition.metrics.items()}
        keys = {name: _keys_in_run(metric, groups, components, scores) for name, metric in instances.items()}
        certain = {name: keys[name] for name, one in instances.items() if not getattr(one, "may_hold_more", False)}
        faults = self._faults(certain)
        if faults:
            raise ControllerError(f"Can't use {self.definition.label} in this training: {list_faults(faults)}")
        doubts = [f"A rule may fail in the training: {doubt}" for doubt in self._faults(keys)]
        doubts += self._doubts_of_scale(scores)
        for name, part in self.definition.metrics.items():
            if isinstance(part.instance, (Loss, EvalLoss, HistoryBasedMetric)):
                given = part.arguments.get("exclude", ())
                unknown = ", ".join(one for one in given if one not in components and one not in EXCLUDED)
                if unknown:
                    doubts.append(
                        f"The metric '{name}' may exclude less than you want: expected names of components in "
                        f"'exclude' ({', '.join(sorted(components))}), found {unknown}."
                    )
        return doubts

    def _doubts_of_scale(self, scores: Collection[str]) -> list[str]:
        """Find scores that are taken for percent. scores (Collection[str]): The names of all."""
        metrics = [name for name, part in self.definition.metrics.items() if isinstance(part.instance, EvalMetrics)]
        keys = [key for key in scores if key.endswith(_FRACTIONS)]
        if keys and all(key.endswith((*_FRACTIONS, *_NO_PARTS)) for key in scores):
            keys += ["score", "best_score"]
        places = [f"{metric}[{key!r}]" for metric in metrics for key in keys]
        doubts = []
        for spec in self.definition.controllers:
            for place, number in compared_with(spec.rule.text, places):
                if number > 1:
                    doubts.append(
                        f"The rule '{spec.name}' compares {place} with {number:g}, and scores in rules are from 0 to "
                        f"1: what spaCy's table shows as {number:.2f} is {number / 100:g}."
                    )
        for name, part in self.definition.metrics.items():
            of = part.arguments.get("of") if isinstance(part.instance, Best) else None
            is_score = of in places or (isinstance(part.instance, EvalMetrics) and "score" in keys)
            delta = part.arguments.get("min_delta", 0.0)
            if is_score and part.arguments.get("min_delta_mode") != "relative" and float(delta) >= 1:
                doubts.append(
                    f"min_delta = {delta:g} of the metric '{name}' is more than any score can rise, as scores in rules "
                    f"are from 0 to 1: {delta:g} points in spaCy's table are {delta / 100:g}."
                )
        return doubts

    def _faults(self, keys: Mapping[str, Keys | None]) -> list[str]:
        found = []
        known = {name: keys.get(name) for name in self.definition.metrics}
        for name, part in self.definition.metrics.items():
            try:
                if isinstance(part.instance, Series):
                    part.instance.check_keys(known)
            except ControllerError as error:
                found.append(f"metric '{name}': {error}")
        for spec in self.definition.controllers:
            try:
                Rule(spec.rule.text, {**self.definition.metrics, FIRED: None}, {**keys, FIRED: self._keys_of_fired()})
            except ControllerError as error:
                found.append(f"controller '{spec.name}': {error}")
        for name, part in self.definition.operations.items():
            if isinstance(part.instance, KeepBestControl):
                try:
                    copy(part.instance).prepare(known)
                except ControllerError as error:
                    found.append(f"operation '{name}': {error}")
        return found

    def on_event(self, event: str, **payload: Any) -> list[Firing]:
        """Handle an event: compute metrics, evaluate rules, run actions.

        event (str), payload: See loop/events.py.
        RETURNS (list[Firing]): The actions that ran.
        RAISES (ControllerError): A metric, rule or operation failed.
        """
        firings = self.decide(event, **payload)
        if firings:
            self.act(firings, **payload)
        return firings

    def decide(self, event: str, **payload: Any) -> list[Firing]:
        """As `on_event`, without running actions: for one of several processes, or to try rules."""
        if event not in EVENTS:
            raise ControllerError(
                f"Can't handle the event {event!r}: expected one of {', '.join(EVENTS)}.{did_you_mean(event, EVENTS)}"
            )
        if event not in self.events:
            return []
        step = self._set_step(payload)
        for name, metric, is_plain in self._metrics[event]:
            try:
                value = metric.compute(event, values=self.values, **payload)
                if value is not None:
                    self._values[name] = value if is_plain else plain(value)
            except Exception as error:
                raise ControllerError(
                    f"Can't compute the metric '{name}' on {event} at step {step}: {_reason(error)}"
                ) from error
        firings: list[Firing] = []
        for spec in self._controllers[event]:
            firings += self._fired(spec, event, step)
        return firings

    def act(self, firings: Sequence[Firing], *, decided_by: Mapping[str, Any] | None = None, **payload: Any) -> None:
        """Run the actions of firings, which another process may have decided on. Without a `control` in the payload
        they are only logged.

        decided_by (Mapping): The metric values of that process. None: this process decided.
        """
        payload = {
            key: value
            for key, value in payload.items()
            if key not in ("event_name", "control_name", "firing", "values")
        }
        if firings:
            payload.setdefault("step", firings[0].step)
        _add_aliases(payload)
        for firing in firings:
            operation = self.definition.operations[firing.operation].instance
            inform(
                "Taking [%s] action in controller [%s] triggered at event [%s] at step %d, with %s",
                firing.action,
                firing.controller,
                firing.event,
                firing.step,
                repr_of(firing.values),
                level=self._levels[firing.controller],
            )
            if payload.get("control") is None:
                continue
            try:
                getattr(operation, firing.action)(
                    event_name=firing.event,
                    control_name=firing.controller,
                    firing=firing,
                    values=self.values if decided_by is None else decided_by,
                    **payload,
                )
            except Exception as error:
                raise ControllerError(
                    f"Can't run the action {firing.operation}.{firing.action} of the controller '{firing.controller}' "
                    f"on {firing.event} at step {firing.step}: {_reason(error)}"
                ) from error

    def _set_step(self, payload: dict[str, Any]) -> int:
        """Set the step in a payload. An event without one has the step of the event before."""
        _add_aliases(payload)
        if payload.get("step") is not None:
            self._step = int(payload["step"])
        payload["step"] = payload["global_step"] = self._step
        return self._step

    def _fired(self, spec: ControllerSpec, event: str, step: int) -> list[Firing]:
        state = self._states[spec.name]
        if spec.max_firings is not None and state.firings >= spec.max_firings:
            return []
        if spec.cooldown and state.last is not None and step - state.last <= spec.cooldown:
            return []
        if FIRED in spec.rule.names:
            self._values[FIRED] = self._what_fired(step)
        try:
            holds = spec.rule.evaluate(self._values, step)
        except MetricUnavailable as error:
            if spec.name not in self._warned and not self._is_filling(spec.rule):
                self._warned.add(spec.name)
                LOGGER.warning(
                    "Ignoring the rule of controller [%s] on %s at step %d because: %s yet.",
                    spec.name,
                    event,
                    step,
                    error,
                )
            return []
        except ControllerError as error:
            raise ControllerError(
                f"Can't evaluate the rule of the controller '{spec.name}' on {event} at step {step}: {error}. "
                f"The rule is: {spec.rule.text}"
            ) from None
        if not holds:
            if spec.patience is not None and spec.patience.resets:
                state.patience.pop(event, None)
            return []
        if spec.patience is not None:
            held = state.patience.pop(event, 0) + 1
            if held <= spec.patience.threshold:
                state.patience[event] = held
                return []
        state.last, state.firings = step, state.firings + 1
        values = looked_up(self._values, spec.rule.paths)
        return [Firing(spec.name, operation, action, event, step, values) for operation, action in spec.actions]

    def _keys_of_fired(self) -> Keys:
        return {name: keys_of_fired() for name in self._states}

    def _what_fired(self, step: int) -> dict[str, Any]:
        """The value of `fired` in rules."""
        return {
            name: {
                "times": state.firings,
                "step": state.last,
                "steps_since": None if state.last is None else step - state.last,
            }
            for name, state in self._states.items()
        }

    def _is_filling(self, rule: Rule) -> bool:
        """Whether a window that a rule needs has some values, but not enough yet."""
        instances = [self.definition.metrics[name].instance for name in rule.names if name != FIRED]
        series = [one for one in instances if isinstance(one, Series)]
        return any((isinstance(one, Window) and one.is_filling) or self._is_filling(one.of) for one in series)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """The state in plain values: values and windows of metrics, patience, cool-downs, and numbers of firings."""
        parts = self.definition.metrics, self.definition.operations
        metrics, operations = ({name: SavedPart.of(part) for name, part in group.items()} for group in parts)
        values = {
            name: None if getattr(part.instance, "is_in_memory", False) else plain(self._values[name])
            for name, part in self.definition.metrics.items()
        }
        return write(TrainerControllerState(_VERSION, self._step, values, metrics, operations, self._states))

    def load_state_dict(self, state: Any) -> None:
        """Restore a state. Parts that the definition has changed since (metrics and operations with other arguments,
        controllers with other rules) start fresh, with the series and controllers over such metrics, and are logged.

        RAISES (StateError): The state is invalid. Nothing has changed then.
        """
        check_version(state, _VERSION, _WHAT)
        saved = read(TrainerControllerState, state, _WHAT)
        check_names(saved.values, saved.metrics, _WHAT, "values")
        before = read(TrainerControllerState, self.state_dict(), _WHAT)
        try:
            with own_errors("the trainer controller"):  # errors of the user's own metrics and operations
                self._load(saved)
        except BaseException:
            self._load(before)
            raise

    def _load(self, saved: TrainerControllerState) -> None:
        definition, anew = self.definition, []
        changed: set[str] = set()  # metrics, with the series over them
        for name, part in definition.metrics.items():
            used = part.instance.of.names if isinstance(part.instance, Series) else ()
            found = saved.metrics.get(name)
            if found is None or not found.is_of(part) or not changed.isdisjoint(used):
                changed.add(name)
                anew.append(f"metric {name}")
                continue
            found.load_into(part)
            is_in_memory = getattr(part.instance, "is_in_memory", False)
            self._values[name] = part.instance.value_of_memory() if is_in_memory else plain(saved.values[name])
        for name, part in definition.operations.items():
            found = saved.operations.get(name)
            if found is None or not found.is_of(part):
                anew.append(f"operation {name}")
            else:
                found.load_into(part)
        for spec in definition.controllers:
            state = saved.controllers.get(spec.name)
            if state is None or state.rule != spec.rule.text or not changed.isdisjoint(spec.rule.names):
                anew.append(f"controller {spec.name}")
                state = RuleState(spec.rule.text)
            patience = {event: count for event, count in state.patience.items() if event in spec.triggers}
            self._states[spec.name] = replace(state, patience=patience)
        self._step = saved.step
        if anew:
            LOGGER.warning(
                "Not restored, because the controller definition has changed since the state was saved: %s.",
                ", ".join(anew),
            )


def _reason(error: Exception) -> str:
    """An error of a metric or operation as the end of a message."""
    text = str(error) if isinstance(error, ConfigError) else shown(error)
    return text if text.endswith((".", "?")) else f"{text}."


def _add_aliases(payload: dict[str, Any]) -> None:
    """Give each fact that has two names both of them."""
    for alias, name in ALIASES.items():
        value = payload.get(alias) if payload.get(name) is None else payload[name]
        if value is not None:
            payload[name] = payload[alias] = value


def _keys_in_run(
    metric: Any, groups: Collection[str], components: Collection[str], scores: Collection[str]
) -> Keys | None:
    """The keys of a metric in a run. The metric may be any class with `compute`."""
    keys_in_run = getattr(metric, "keys_in_run", None)
    keys: Keys | None = getattr(metric, "keys", None) if keys_in_run is None else keys_in_run(groups, components)
    return metric.keys_with_scores(keys, scores) if scores and hasattr(metric, "keys_with_scores") else keys
