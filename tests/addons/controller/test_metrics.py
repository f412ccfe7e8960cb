"""Each metric, fed with a few events."""

import json
import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy
import pytest
import torch

from thinc_torchopt.addons.controller.metrics import Metric, controller_metrics, register_metric_handlers
from thinc_torchopt.addons.controller.values import plain
from thinc_torchopt.core.errors import ControllerError, StateError
from thinc_torchopt.core.registry import registry
from thinc_torchopt.loop.events import EVENTS

from .kit import LOG, STEP, make, part, rule


def watch(kind, arguments=None, event="on_step_end", text="True"):
    """A controller that fires at each event, with the value of one metric."""
    return make(rule("c", event, f"m != None and {text}", LOG), metrics=[STEP, part("m", kind, **(arguments or {}))])


def value(controller, event, **payload):
    firings = controller.on_event(event, **payload)
    return firings[0].values["m"] if firings else None


def test_loss_in_all_by_component_per_word_and_per_example():
    losses = {"ner": 6.0, "tagger": numpy.float32(2.0), "tok2vec": torch.tensor(9.0)}
    told = {"step": 3, "epoch": 1, "losses": losses, "batch_words": numpy.int64(4), "batch_size": 2}
    found = value(watch("Loss"), "on_step_end", **told)
    per_word = found.pop("components_per_word")
    components = {"ner": 6.0, "tagger": 2.0, "tok2vec": 9.0}
    expected = {"loss": 8.0, "per_word": 2.0, "per_example": 4.0, "components": components, "epoch": 1.0, "step": 3}
    assert found == expected and per_word == {"ner": 1.5, "tagger": 0.5, "tok2vec": 2.25}
    assert {type(x) for x in (found["loss"], found["per_word"], *found["components"].values())} == {float}
    assert value(watch("Loss", {"exclude": []}), "on_step_end", losses={"ner": 1, "tok2vec": 2})["loss"] == 3.0


def test_loss_from_a_log_keeps_its_value_where_nothing_is_logged():
    controller = watch("Loss", event="on_log")
    assert value(controller, "on_log", log_history=[{"eval_loss": 1.0}]) is None
    assert value(controller, "on_log", log_history=[{"loss": 0.5, "epoch": 0.25}]) == {"loss": 0.5, "epoch": 0.25}
    assert value(controller, "on_log") == {"loss": 0.5, "epoch": 0.25}


@pytest.mark.parametrize(
    "kind, arguments", [("Loss", {}), ("HistoryBasedMetric", {"window_size": 2, "source_event": "on_step_end"})]
)
def test_losses_of_a_step_are_not_those_that_were_logged(kind, arguments):
    """What was logged is of an earlier step, or a mean."""
    controller = watch(kind, arguments)
    history = [{"loss": 0.5, "epoch": 0.25}]
    before = value(controller, "on_step_end", step=1, log_history=history)
    assert before is None or before["training_loss"]["loss"] == []
    found = value(controller, "on_step_end", step=2, losses={"ner": 3.0}, log_history=history)
    again = value(controller, "on_step_end", step=3, log_history=history)
    assert found == again and (found if kind == "Loss" else found["training_loss"])["loss"] in (3.0, [3.0])


@pytest.mark.parametrize("whole_history", [True, False])
def test_history_slides_and_keeps_repeated_values(whole_history):
    controller, logs = watch("HistoryBasedMetric", {"window_size": 3}, "on_log"), []
    for step, loss in enumerate([5.0, 4.0, 4.0, 4.0]):
        logs.append({"loss": loss, "epoch": 0.0, "step": step})
        found = value(controller, "on_log", step=step, log_history=logs if whole_history else logs[-1:])
        assert found["training_loss"]["steps"] == list(range(max(0, step - 2), step + 1))
    assert found["training_loss"] == {"loss": [4.0, 4.0, 4.0], "steps": [1, 2, 3], "epoch": [0.0] * 3}
    assert found["window_size"] == 3
    again = value(controller, "on_log", step=9, log_history=logs if whole_history else logs[-1:])
    assert again["training_loss"]["steps"] == [1, 2, 3]  # the same log once more


def test_history_takes_the_newest_of_the_new_logs_that_has_a_loss():
    controller, logs, dev = watch("HistoryBasedMetric", {"window_size": 9}, "on_log"), [], {"eval_loss": 9.0}
    expected = []
    for step, new in enumerate([[4.0, dev], [3.0, 2.0, dev], [dev], [1.0], [1.0]]):
        logs += [one if one is dev else {"loss": one} for one in new]
        found = value(controller, "on_log", step=step, log_history=logs)
        expected += [one for one in new if one is not dev][-1:]
        assert found["training_loss"]["loss"] == expected


def test_history_of_steps_and_evaluations():
    controller = watch("HistoryBasedMetric", {"window_size": 2, "source_event": "on_step_end"})
    for step in range(3):
        value(controller, "on_step_end", step=step, epoch=0, losses={"ner": step, "tok2vec": 100.0}, batch_words=2)
        scores = {"ents_f": numpy.float64(step), "per": {"A": 1}}
        controller.on_event("on_evaluate", step=step, epoch=0, scores=scores, score=step)
    found = value(controller, "on_step_end", step=3, losses={"ner": 3})
    assert found["training_loss"]["loss"] == [2.0, 3.0] and found["training_loss"]["components"]["ner"] == [2.0, 3.0]
    assert found["training_loss"]["per_word"] == [0.5, 1.0] and found["training_loss"]["epoch"] == [0.0, None]
    scores = {"ents_f": [1.0, 2.0], "steps": [1, 2], "score": [1.0, 2.0], "epoch": [0.0] * 2, "per": [{"A": 1}] * 2}
    assert found["metrics"] == scores and type(found["metrics"]["ents_f"][0]) is float


def test_history_before_the_first_evaluation_makes_rules_skip(caplog):
    controller = watch("HistoryBasedMetric", {}, "on_log", "m['metrics']['eval_loss'][-1] < 1")
    for step in range(3):
        assert controller.on_event("on_log", step=step, log_history=[{"loss": 1.0, "step": step}]) == []
    assert caplog.text.count("not available") == 1
    controller.on_event("on_evaluate", step=3, scores={"eval_loss": 0.5})
    assert len(controller.on_event("on_log", step=4)) == 1


def test_eval_metrics_tell_the_best_score():
    controller = watch("EvalMetrics", event="on_evaluate")
    found = [
        value(controller, "on_evaluate", step=10 * i, scores={"f": s}, score=s)
        for i, s in enumerate([math.nan, 0.5, math.nan, 0.4, 0.6])
    ]
    assert [f["best_score"] for f in found] == [None, 0.5, 0.5, 0.5, 0.6]
    assert [f["best_step"] for f in found] == [None, 10, 10, 10, 40]
    assert [f["evaluations_since_best"] for f in found] == [1, 0, 1, 2, 0]
    assert [f["steps_since_best"] for f in found] == [None, 0, 10, 20, 0]
    [doubt] = watch("EvalMetrics", event="on_evaluate", text="m['g'] > 0").check_keys(["default"], ["ner"], ["f"])
    assert f"found 'g'. There are: {', '.join(sorted(found[1]))}" in doubt


@pytest.mark.parametrize(
    "mode, scores, best",
    [("absolute", [0.5, 0.59, 0.61], 0.61), ("relative", [10.0, 10.5, 11.5], 11.5), ("relative", [10.0, 11.0], 10.0)],
)
def test_eval_metrics_min_delta(mode, scores, best):
    controller = watch("EvalMetrics", {"min_delta": 0.1, "min_delta_mode": mode}, "on_evaluate")
    assert [value(controller, "on_evaluate", scores={}, score=score) for score in scores][-1]["best_score"] == best
    with pytest.raises(ControllerError, match="'absolute' or 'relative'"):
        watch("EvalMetrics", {"min_delta_mode": f"{mode}ly"}, "on_evaluate")


def test_training_state():
    controller = watch("TrainingState", event="on_epoch_end")
    controller.on_event("on_evaluate", step=5, score=0.5)
    controller.on_event("on_evaluate", step=6, score=0.4)
    told = {"words": 100.0, "seconds": 2.5, "max_steps": 10.0}
    counts = {"skipped_updates": 2, "grad_spikes": 1, "rollbacks": 0}
    best = {"score": 0.4, "best_score": 0.5, "best_metric": 0.5, "best_step": 5}
    rest = {"warmup_steps": 0, "error_type": None, "error_text": None, "is_final": False}
    found = value(controller, "on_epoch_end", global_step=7, epoch=1, counts=counts, **told)
    assert found == {"step": 7, "global_step": 7, "epoch": 1.0, **told, **counts, **best, **rest}


def test_training_state_is_not_computed_where_nobody_asks():
    controller = watch("TrainingState", event="on_epoch_end")
    assert controller.events == {"on_epoch_end", "on_evaluate"}
    assert controller.reads("on_epoch_end") >= {"words", "score"} and controller.reads("on_step_end") == set()


def test_per_process_state():
    controller = watch("PerProcessState")
    assert value(controller, "on_step_end") == {"rank": 0, "world_size": 1}
    assert value(controller, "on_step_end", rank=1, world_size=2) == {"rank": 1, "world_size": 2}


def test_learn_rates_and_grad_norm():
    assert value(watch("LearnRates"), "on_step_end", learn_rates={"encoder": numpy.float32(0.5)}) == {"encoder": 0.5}
    controller = watch("GradNorm")
    controller.on_event("on_pre_optimizer_step", grad_norms={"ner": 3.0, "tagger": torch.tensor(4.0)})
    assert value(controller, "on_step_end") == {"total": 5.0, "components": {"ner": 3.0, "tagger": 4.0}}
    assert value(controller, "on_step_end", grad_norm=6.0) == {"total": 6.0, "components": {"ner": 3.0, "tagger": 4.0}}


OURS = [
    name
    for name, cls in sorted(registry.controller_metrics.get_all().items())
    if cls.__module__.startswith("thinc_torchopt.")
]
TREE = {"total": 1.0, "components": {"ner": 1.0}, "groups": {"default": 1.0}}
NEEDED = {"Best": {"of": "state['step']", "mode": "min"}, "Window": {"of": "state['step']", "size": 1}}
TOLD = {
    "step": 1,
    "epoch": 0,
    "words": 9,
    "seconds": 2.0,
    "counts": {},
    "score": 0.5,
    "max_steps": 9,
    "learn_rates": {"default": 0.1},
    "losses": {"ner": 1.0},
    "batch_words": 3,
    "batch_size": 1,
    "grad_norm": 1.0,
    "grad_norms": {"ner": 1.0},
    "scores": {"ents_f": 0.5},
    "param_norms": lambda: TREE,
    "update_norms": lambda: TREE,
    "dev_losses": lambda at_most: {"losses": {"ner": 1.0}, "words": 9, "examples": 2},
}


@pytest.mark.parametrize("kind", OURS)
def test_metrics_without_anything_in_the_payload_fail_at_nothing(kind):
    controller = watch(kind, NEEDED.get(kind))
    for event in EVENTS:
        controller.on_event(event)
    state = json.loads(json.dumps(controller.state_dict()))
    again = watch(kind, NEEDED.get(kind))
    again.load_state_dict(state)
    assert again.state_dict() == controller.state_dict()


@pytest.mark.parametrize("kind", OURS)
def test_metrics_hold_the_keys_that_they_declare(kind):
    """All that were told all there is to tell: neither more nor less. The others tell more than can be known."""
    controller = watch(kind, NEEDED.get(kind))
    for event in EVENTS:
        controller.on_event(event, **TOLD)
    keys = registry.controller_metrics.get(kind).keys
    assert keys is not None or kind in ("EvalMetrics", "LearnRates")

    def check(declared, found):
        if declared is not None:
            assert set(declared) == set(found)
            for key in declared:
                check(declared[key], found[key])

    check(keys, controller.values["m"])


def test_own_metrics():
    class TestWords:
        events = ("on_step_end",)

        def __init__(self, times):
            self.times = times

        def validate(self):
            return self.times > 0

        def compute(self, event_name, *, words=0, **kwargs):
            return {"words": numpy.int64(words * self.times), "where": event_name}

    @controller_metrics("TestBroken")
    class Broken(Metric):
        events = ("on_step_end",)

        def compute(self, event_name, **kwargs):
            return 1 / 0

    class TestLost(Broken):
        events = ("on_nothing",)

    class TestDeaf(Broken):
        def compute(self, event_name):
            return 1

    register_metric_handlers([TestWords, TestLost, TestDeaf])
    assert value(watch("TestWords", {"times": 2}), "on_step_end", words=4) == {"words": 8, "where": "on_step_end"}
    with pytest.raises(ControllerError, match="metric 'm' on on_step_end at step 4: ZeroDivisionError"):
        watch("TestBroken").on_event("on_step_end", step=4)
    for kind, arguments, reason in (
        ("TestWords", {"times": 0}, r"validate\(\) of .* refuses"),
        ("TestWords", {"often": 2}, r"expected the arguments of 'TestWords' \(times\)"),
        ("TestLost", {}, "to have `events` among"),
        ("TestDeaf", {}, r"a method compute\(\.\.\., \*\*kwargs\)"),
    ):
        with pytest.raises(ControllerError, match=rf"controller_metrics\[1\].arguments: .*{reason}"):
            watch(kind, arguments)
    with pytest.raises(TypeError, match="takes no keyword arguments"):
        type("TestWrong", (Metric,), {}, events=("on_step_end",))


@dataclass
class Counted:
    steps: int = 0
    names: list[str] = field(default_factory=list)


def test_metrics_remember_what_is_in_their_memory():
    class Counting(Metric):
        events = ("on_step_end",)

        def __init__(self):
            super().__init__()
            self.memory = Counted()

        def compute(self, event_name, **kwargs):
            self.memory.steps += 1
            self.memory.names.append(event_name)
            return self.memory.steps

    first, second = Counting(), Counting()
    first.compute("on_step_end")
    state = first.state_dict()
    assert state == {"steps": 1, "names": ["on_step_end"]}
    second.load_state_dict(state)
    assert second.compute("on_step_end") == 2 and state["names"] == ["on_step_end"]
    for wrong in ({**state, "steps": "x"}, {"steps": 1}, {**state, "more": 1}):
        with pytest.raises(StateError, match="the state of the metric Counting: expected"):
            second.load_state_dict(wrong)
    assert second.memory == Counted(2, ["on_step_end"] * 2)


def test_plain_copies_and_converts():
    class Text(str):
        pass

    source = {"a": [1, numpy.float32(0.5)], 2: (True, None), "t": torch.ones(2), "s": Text("x"), "o": object()}
    source |= {"b": numpy.bool_(True), "f": Fraction(1, 2), "i": numpy.int64(3)}
    found = plain(source)
    assert found == {
        "a": [1, 0.5],
        "2": [True, None],
        "t": [1.0, 1.0],
        "s": "x",
        "o": "<object>",
        "b": True,
        "f": 0.5,
        "i": 3,
    }
    assert type(found["s"]) is str and type(found["b"]) is bool and type(found["a"][1]) is float
    assert type(found["i"]) is int
    source["a"].append(3)
    assert found["a"] == [1, 0.5]
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested"):
        plain(loop)
