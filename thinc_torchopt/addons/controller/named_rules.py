"""Rules by name: `@controller_rules = "thinc-torchopt.stop_early.v1"`. Each function returns what a file may have.

Expressions may use the metrics of the config, and without defining them those of `STANDARD`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Dict, List, Literal, Optional

from ...core.checks import Section
from ...core.registry import registry
from .rules import names_in

Definition = Dict[str, Any]
Mode = Literal["min", "max"]

# Metrics that rules by name bring along, if an expression names them and the config does not define them.
STANDARD = {
    "loss": {"class": "Loss"},
    "dev": {"class": "EvalLoss"},
    "scores": {"class": "EvalMetrics"},
    "state": {"class": "TrainingState"},
    "norms": {"class": "GradNorm"},
    "param_norms": {"class": "ParamNorm"},
    "update_ratios": {"class": "UpdateRatio"},
    "rates": {"class": "LearnRates"},
}
_SECTION = Section("the arguments")


def rules_by_name(name: str) -> Callable[[Any], Any]:
    """Register a function that returns a definition."""
    return registry.controller_rules.register(name)  # type: ignore[attr-defined]


def define(
    *controllers: Dict[str, Any],
    metrics: Sequence[Dict[str, Any]] = (),
    operations: Sequence[Dict[str, Any]] = (),
    names: Collection[str] = (),
) -> Definition:
    """A definition of rules, with the standard metrics that they name. names: Those that their operations name."""
    texts = [one["rule"] for one in controllers] + [one["arguments"]["of"] for one in metrics]
    named = {*names, *(name for text in texts for name in names_in(text))} - {one["name"] for one in metrics}
    standard = [{"name": name, **STANDARD[name]} for name in STANDARD if name in named]
    return {
        "controller_metrics": [*standard, *metrics],
        "operations": list(operations),
        "controllers": list(controllers),
    }


def _metric(name: str, kind: str, **arguments: Any) -> Dict[str, Any]:
    return {"name": name, "class": kind, "arguments": arguments}


def _rule(name: str, event: str, text: str, *operations: str, **more: Any) -> Dict[str, Any]:
    return {"name": name, "triggers": [event], "rule": text, "operations": list(operations), **more}


def _best(of: str, mode: Mode, min_delta: float) -> Dict[str, Any]:
    return _metric("best_so_far", "Best", of=of, mode=mode, min_delta=min_delta, by="evaluations")


@rules_by_name("thinc-torchopt.stop_early.v1")
def stop_early(
    of: str = "scores['score']",
    mode: Mode = "max",
    evaluations: int = 5,
    min_delta: float = 0.0,
    stopping_threshold: Optional[float] = None,
    divergence_threshold: Optional[float] = None,
    check_finite: bool = True,
    min_steps: Optional[int] = None,
) -> Definition:
    """Stop when a number has not become better for several evaluations.

    of (str): The number, such as "scores['ents_f']" or "dev['per_word']". Scores are fractions: 0.9, not 90.
    mode (str): "min" or "max": which values are better.
    evaluations (int): Stop after so many evaluations without a better one.
    min_delta (float): How much better it must be.
    stopping_threshold (float | None): Stop as soon as it is better than this.
    divergence_threshold (float | None): Stop as soon as it is worse than this.
    check_finite (bool): Stop if it is NaN or infinite.
    min_steps (int | None): Count only evaluations from this step on. None: from the end of the learning rate's warm-up
        on, as its schedule tells it.
    """
    evaluations = _SECTION.whole("evaluations", evaluations, at_least=1)
    better, worse = ("<", ">") if _SECTION.choice("mode", mode, ("min", "max")) == "min" else (">", "<")
    parts = [f"not isfinite({of})"] if check_finite else []
    if stopping_threshold is not None:
        threshold = _SECTION.number("stopping_threshold", stopping_threshold, at_least=-math.inf)
        parts.append(f"({of}) {better} {threshold}")
    if divergence_threshold is not None:
        threshold = _SECTION.number("divergence_threshold", divergence_threshold, at_least=-math.inf)
        parts.append(f"({of}) {worse} {threshold}")
    begin = "state['warmup_steps']" if min_steps is None else _SECTION.whole("min_steps", min_steps)
    # The largest of these is that of the first evaluation from there on.
    counted = _metric("counted", "Best", of=f"min(state['step'], {begin})", mode="max", by="evaluations")
    parts.append(
        f"state['step'] >= {begin} and counted['evaluations_since'] >= {evaluations - 1} "
        f"and best_so_far['evaluations_since'] >= {evaluations}"
    )
    stop = _rule("stop_early", "on_evaluate", " or ".join(parts), "control.should_training_stop")
    return define(stop, metrics=[_best(of, mode, min_delta), counted])


@rules_by_name("thinc-torchopt.cut_on_plateau.v1")
def cut_on_plateau(
    of: str = "scores['score']",
    mode: Mode = "max",
    evaluations: int = 3,
    min_delta: float = 0.0,
    factor: float = 0.5,
    min_rate: float = 0.0,
    groups: List[str] = ["*"],
) -> Definition:
    """Cut learning rates each time that a number has not become better for several evaluations.

    of, mode, min_delta: As in `stop_early`.
    evaluations (int): Cut after so many evaluations in a row without a better one.
    factor (float), min_rate (float), groups (list[str]): As in `LearnRateControl`.
    """
    wait = _SECTION.whole("evaluations", evaluations, at_least=1) - 1
    arguments = {"factor": factor, "min_rate": min_rate, "groups": groups}
    cut = _rule(
        "cut_on_plateau",
        "on_evaluate",
        "best_so_far['evaluations_since'] > 0",
        "rates_down.should_cut",
        patience={"patience_threshold": wait},
    )
    return define(
        cut,
        metrics=[_best(of, mode, min_delta)],
        operations=[{"name": "rates_down", "class": "LearnRateControl", "arguments": arguments}],
    )


@rules_by_name("thinc-torchopt.roll_back_on_spike.v1")
def roll_back_on_spike(
    of: str = "loss['per_word']",
    times: float = 3.0,
    size: int = 50,
    at_least: float = 0.0,
    to: Literal["best", "last"] = "last",
    factor: Optional[float] = 0.5,
    max_firings: int = 3,
) -> Definition:
    """Go back to an earlier state when a number is much higher than it was, or not finite. Needs
    `[training.optimizer.checkpoint]`.

    of (str): The number, such as "loss['per_word']" or "norms['total']".
    times (float): Go back when it is so many times its median over the last steps.
    size (int): The number of steps for the median. Those with NaN or an infinite number are left out.
    at_least (float): The number must be above this too: small ones jump without harm.
    to (str): "best" or "last", as in `RollbackControl`.
    factor (float | None): Multiply all learning rates by it then. None: don't.
    max_firings (int): Go back at most so often.
    """
    times = _SECTION.number("times", times, above=1.0)
    size = _SECTION.whole("size", size, at_least=1)
    max_firings = _SECTION.whole("max_firings", max_firings, at_least=1)
    operations: List[Dict[str, Any]] = [{"name": "back", "class": "RollbackControl", "arguments": {"to": to}}]
    actions = ["back.should_rollback"]
    if factor is not None:
        operations.append({"name": "rates_down", "class": "LearnRateControl", "arguments": {"factor": factor}})
        actions.append("rates_down.should_cut")
    floor = _SECTION.number("at_least", at_least)
    text = f"not isfinite({of}) or ({of}) > max({floor}, {times} * lately['median'])"
    spike = _rule("roll_back_on_spike", "on_step_end", text, *actions, cooldown=size, max_firings=max_firings)
    finite = f"({of}) if isfinite({of}) else None"
    return define(spike, metrics=[_metric("lately", "Window", of=finite, size=size, by="steps")], operations=operations)


@rules_by_name("thinc-torchopt.unfreeze_when.v1")
def unfreeze_when(params: List[str], when: str, freeze_first: bool = True) -> Definition:
    """Begin with frozen params, and train them from an evaluation on at which an expression is true.

    params (list[str]): Patterns of names of params: ["tok2vec/*"].
    when (str): The expression, such as "scores['tag_acc'] > 0.8".
    freeze_first (bool): Freeze them at the start. False: the config has frozen them.
    """
    frozen = {"name": "frozen", "class": "FreezeControl", "arguments": {"params": params}}
    rules = [_rule("unfreeze", "on_evaluate", when, "frozen.should_unfreeze", max_firings=1)]
    if freeze_first:
        rules.insert(0, _rule("freeze", "on_train_begin", "True", "frozen.should_freeze"))
    return define(*rules, operations=[frozen])


@rules_by_name("thinc-torchopt.keep_best.v1")
def keep_best(of: str = "scores['score']", mode: Mode = "max") -> Definition:
    """Keep the best model by a number.

    of (str), mode (str): As in `stop_early`.
    """
    best = {"name": "best", "class": "KeepBestControl", "arguments": {"of": of, "mode": mode}}
    return define(_rule("keep_best", "on_evaluate", "True", "best.should_keep"), operations=[best], names=names_in(of))
