"""docs/controller.md: each definition in it fires when it should, and stays quiet when not; each list is complete."""

import re
from unittest.mock import Mock

import pytest
import srsly

from thinc_torchopt.controller import FUNCTIONS, Control, Steering, TrainerController, compiler, guard

from ..conftest import CONFIGS

PAGE = (CONFIGS.parent / "docs" / "controller.md").read_text()
BLOCKS = [srsly.yaml_loads(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)]


def steps(*losses):
    return [("on_step_end", {"losses": {"ner": loss}, "batch_words": 10}) for loss in losses]


def scores(*values, step=2000):
    return [("on_evaluate", {"metrics": {"ents_f": value}, "score": value, "step": step}) for value in values]


def norm(value):
    return [("on_step_end", {"grad_norm": value})]


def norms(values):
    return [event for value in values for event in norm(value)]


def dev_loss(*per_word):
    """Each is asked for with what the metric's definition says."""
    return [
        (
            "on_evaluate",
            {
                "dev_losses": lambda at_most, loss=loss: {
                    "losses": {"ner": loss * (at_most or 9)},
                    "words": at_most or 9,
                    "examples": 9,
                }
            },
        )
        for loss in per_word
    ]


# Of each controller: events at whose end it fires, and events on which it does not.
RUNS = {
    "stop-at-loss": (steps(5.0, 0.4), steps(5.0, 0.6)),
    "stop-early": (dev_loss(0.5, 0.5, 0.6, 0.7, 0.5, 0.5), dev_loss(0.5, 0.5, 0.6, 0.7, 0.4, 0.5)),
    "save-when-gradients-double": (norms(50 * [1.0] + 26 * [3.0]), norms(200 * [1.0, 3.0])),
    "tell-of-errors": (
        [("on_exception", {"error_type": "RuntimeError", "error_text": "no memory"})],
        [("on_train_end", {}), ("on_exception", {"error_type": "KeyboardInterrupt", "error_text": ""})],
    ),
    "put-together": ([("on_train_begin", {})], steps(1.0)),
    "cut-on-plateau": (scores(0.5, 0.4, 0.4, 0.4), scores(0.5, 0.4, 0.4, 0.6, 0.4)),
}


def fired(controller, events):
    """Which controllers fire at each event."""
    control = Control(steering=Mock(spec=Steering))
    found = []
    for step, (event, payload) in enumerate(events):
        found.append(
            {firing.controller for firing in controller.on_event(event, **{"step": step, **payload}, control=control)}
        )
    return found


def test_docs_every_definition_has_a_run():
    assert {spec["name"] for block in BLOCKS for spec in block["controllers"]} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_docs_definitions_fire_and_stay_quiet(name):
    [block] = [block for block in BLOCKS if name in [spec["name"] for spec in block["controllers"]]]
    fires, stays_quiet = (fired(TrainerController(block), events) for events in RUNS[name])
    assert name in fires[-1] and not any(name in names for names in fires[:-1])
    assert not any(name in names for names in stays_quiet)


def words_of(heading):
    return set(re.findall(r"`(\w+)`", PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]))


def test_docs_name_all_functions():
    assert words_of("Rules") >= {name for name in FUNCTIONS if not name.startswith("math_")}


def test_docs_limits_are_true():
    section = PAGE.split("\n## Rules\n")[1].split("\n## ")[0]
    numbers = [
        int(text.replace(",", ""))
        for line in section.splitlines()
        if line.startswith("|")
        for text in re.findall(r"\d[\d,]*\d", line)
    ]
    assert numbers == [
        *(compiler.MAX_TEXT, compiler.MAX_NODES, compiler.MAX_DEPTH),
        *(guard.MAX_BITS, guard.MAX_PASSES, guard.MAX_KEYS, guard.MAX_WORK),
    ]
