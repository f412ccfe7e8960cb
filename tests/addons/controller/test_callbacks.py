"""The rules that docs/controller.md gives for callbacks of other libraries: each acts when the callback would.

Oracles: torch's own ReduceLROnPlateau; Lightning's EarlyStopping in plain Python, as its source has it
(lightning/pytorch/callbacks/early_stopping.py, `_evaluate_stopping_criteria`); sorted lists.
"""

import math
import random
import re
from unittest.mock import Mock

import pytest
import torch

from thinc_torchopt.addons.controller import trainer_controller
from thinc_torchopt.addons.controller.operations import RunHandle
from thinc_torchopt.core.optimizer import TorchOptimizer
from thinc_torchopt.core.registry import registry
from thinc_torchopt.loop.events import Control
from thinc_torchopt.loop.saved_models import SavedModels

from ...conftest import CONFIGS
from .kit import make, part, rule

PAGE = (CONFIGS.parent / "docs" / "controller.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.split("| callback | rule | does |")[1].split("\n\n")[0].splitlines()[2:]
]


def called(text):
    """Name and arguments of `name(key=value)`."""
    name, arguments = re.fullmatch(r"`(\w+)\((.*?)\)(?:\.\w+)?`(?:, with .*)?", text).groups()
    return name, eval(f"dict({arguments})")


def controller_of(text, does):
    """The controller of a row of the table."""
    if " on `" not in text:
        name, arguments = called(text)
        made = registry.controller_rules.get(f"thinc-torchopt.{name}.v1")(**arguments)
        return trainer_controller(rules={"r": made}).build()
    text, event = re.fullmatch(r"`(.*)` on `(\w+)`", text).groups()
    if does.startswith("`control."):
        operations, action = [], re.match(r"`(.*?)`", does)[1]
    else:
        kind, arguments = called(does)
        operations = [part("op", kind, **arguments)]
        action = "op." + re.search(r"\.(should_\w+)`", does)[1]
    return make(rule("r", event, text, action), operations=operations)


def evaluations(controller, values):
    """Which evaluations a controller acts on, and what it asks for."""
    acted, run = [], RunHandle(Mock(spec=TorchOptimizer), Mock(spec=SavedModels))
    for step, value in enumerate(values):
        dev = {"losses": {"ner": 10 * value}, "words": 10, "examples": 2}
        payload = {"scores": {"ents_f": value}, "score": value, "dev_losses": lambda at_most, dev=dev: dev}
        if controller.on_event("on_evaluate", step=step, control=Control(), run=run, **payload):
            acted.append(step)
    return acted, run


def early_stopping(values, *, mode="min", patience=10**9, min_delta=0.0, stopping=None, divergence=None):
    """All evaluations at which Lightning would stop, if it went on."""
    better = (lambda a, b: a < b) if mode == "min" else (lambda a, b: a > b)
    min_delta = -min_delta if mode == "min" else min_delta
    best, wait, found = math.inf if mode == "min" else -math.inf, 0, []
    for step, value in enumerate(values):
        stops = not math.isfinite(value)
        stops |= stopping is not None and better(value, stopping)
        stops |= divergence is not None and better(-value, -divergence)
        if better(value - min_delta, best):
            best, wait = value, 0
        else:
            wait += 1
            stops |= wait >= patience
        if stops:
            found.append(step)
    return found


def walks(mode="max", seed=0):
    """Values that become better, and then worse; and a NaN."""
    chance = random.Random(seed)
    for _ in range(20):
        values = [0.5 + 0.4 * math.sin(i / 6) + chance.gauss(0, 0.05) for i in range(30)]
        yield values if mode == "max" else [5 * value for value in reversed(values)]
    yield [0.2, math.nan, 0.3]


STOPS = {
    'EarlyStopping(monitor="val_loss", patience=3': {"mode": "min", "patience": 3, "min_delta": 0.01},
    'EarlyStopping(mode="max", stopping_threshold': {"mode": "max", "stopping": 0.95, "patience": 5},
    "EarlyStopping(divergence_threshold=9.0": {"mode": "min", "divergence": 9.0, "patience": 5},
}


def row_of(start):
    [row] = [row for row in ROWS if row[0].startswith(f"`{start}")]
    return controller_of(row[1], row[2])


@pytest.mark.parametrize("start", STOPS)
def test_callbacks_early_stopping(start):
    seen = 0
    for values in walks(STOPS[start]["mode"]):
        values = [2 * value for value in values] if "divergence" in STOPS[start] else values
        expected = early_stopping(values, **STOPS[start])
        assert evaluations(row_of(start), values)[0] == expected
        seen += len(expected)
    assert seen > 20


def test_callbacks_reduce_on_plateau():
    """torch's factor 0.5 and patience 2."""
    cuts = 0
    for values in list(walks())[:-1]:
        rate = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(rate, mode="max", factor=0.5, patience=2, threshold=0.0)
        expected = []
        for step, value in enumerate(values):
            before = rate.param_groups[0]["lr"]
            plateau.step(value)
            if rate.param_groups[0]["lr"] < before:
                expected.append(step)
        acted, run = evaluations(row_of("ReduceLROnPlateau"), values)
        assert acted == expected
        calls = run.optimizer.scale_learn_rates.call_args_list
        assert [call.args[:2] for call in calls] == [(["*"], 0.5)] * len(expected)
        cuts += len(expected)
    assert cuts > 20


def test_callbacks_model_checkpoint():
    """Each evaluation is offered; the best of them stays: see test_operations_in_training.py."""
    acted, run = evaluations(row_of("ModelCheckpoint"), [0.5, 0.25, 0.75])
    assert acted == [0, 1, 2]
    offered = [(call.args[1], call.kwargs["mode"]) for call in run.models.keep.mock_calls]
    assert offered == [(0.5, "max"), (0.25, "max"), (0.75, "max")]


def test_callbacks_timer():
    one, hour = row_of("Timer"), 3600.0
    assert [
        bool(one.on_event("on_step_end", step=i, seconds=i * hour, control=Control())) for i in (1, 7.99, 8, 9)
    ] == [False, False, True, True]


@pytest.mark.parametrize("start, epoch", [("GradientAccumulationScheduler", 4), ("StochasticWeightAveraging", 10)])
def test_callbacks_at_an_epoch(start, epoch):
    one, run = row_of(start), RunHandle(Mock(spec=TorchOptimizer))
    acted = [i for i in range(12) if one.on_event("on_epoch_begin", step=i, epoch=i, control=Control(), run=run)]
    assert acted == [epoch]
    if start == "GradientAccumulationScheduler":
        assert run.substeps == 2
    else:
        run.optimizer.begin_averages.assert_called_once_with(anew=False)


def test_callbacks_each_row_is_tested():
    known = [*STOPS, "ReduceLROnPlateau", "ModelCheckpoint", "Timer", "GradientAccumulation", "StochasticWeight"]
    assert len(ROWS) == len(known) and all(any(row[0].startswith(f"`{start}") for start in known) for row in ROWS)
