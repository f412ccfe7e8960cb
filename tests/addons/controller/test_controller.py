"""The controller: when rules fire, what is told of it, and that a run can be taken up at any point."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thinc_torchopt.addons.controller.controller import TrainerController
from thinc_torchopt.core.errors import ControllerError, StateError
from thinc_torchopt.loop.events import Control

from .kit import LOG, LOSS, NORMS, SCORES, STEP, STOP, definition, make, part, rule


def define(text="loss['loss'] < 1.0", triggers="on_log", operations=("hfcontrols.should_training_stop",), **more):
    return definition(rule("c", triggers, text, *operations, **more), metrics=[LOSS])


def log(controller, loss, step):
    return controller.on_event(
        "on_log", log_history=[{"loss": loss, "epoch": 0.0}], epoch=0.0, global_step=step, scores=None
    )


def test_controller_fires_for_each_action_and_logs_it(caplog):
    operations = ("control.should_save", "hfcontrols.should_log")
    controller, control = (
        TrainerController(define(operations=operations, config={"trigger_log_level": "warning"})),
        Control(),
    )
    firings = controller.on_event("on_log", step=4, log_history=[{"loss": 0.5}], control=control)
    assert [firing.action for firing in firings] == ["should_save", "should_log"]
    assert control.should_save and control.should_log
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    said = "Taking [should_save] action in controller [c] triggered at event [on_log] at step 4, with {'loss'"
    assert caplog.messages[0].startswith(said)


REST = {"patience_threshold": 1}
RESET = {"patience_threshold": 2, "mode": "reset_on_failure"}


def test_controller_patience_is_counted_by_trigger():
    controller = TrainerController(define(triggers=("on_log", "on_epoch_end"), patience={"patience_threshold": 1}))
    assert not log(controller, 0.5, 0)
    assert not controller.on_event("on_epoch_end", step=0)
    assert log(controller, 0.5, 1)
    assert controller.on_event("on_epoch_end", step=1)


def test_controller_values_in_firings_are_copies():
    controller = make(
        rule("c", "on_log", "len(w['training_loss']['loss']) <= w['window_size']", "control.should_log"),
        metrics=[part("w", "HistoryBasedMetric", window_size=5)],
    )
    firings = [log(controller, float(step), step)[0] for step in range(3)]
    assert [firing.values["w"]["training_loss"]["loss"] for firing in firings] == [[0.0], [0.0, 1.0], [0.0, 1.0, 2.0]]


def test_controller_skips_with_one_warning(caplog):
    controller = TrainerController(define(triggers=("on_step_end", "on_log")))
    for step in range(5):
        assert controller.on_event("on_step_end", step=step) == []
    assert len(caplog.records) == 1
    assert "Ignoring the rule of controller [c] on on_step_end at step 0 because" in caplog.text
    assert log(controller, 0.5, 5) and controller.on_event("on_step_end", step=6)


def test_controller_decides_here_and_acts_there():
    """Where several processes train: one decides, all act."""
    decides, obeys, control = TrainerController(define()), TrainerController(define()), Control()
    firings = decides.decide("on_log", step=3, log_history=[{"loss": 0.5}], control=control)
    assert firings and not control.should_stop
    obeys.act(firings, control=control)
    assert control.should_stop


def test_controller_refuses_unknown_events_and_names_what_failed():
    controller = TrainerController(define("loss['components']['nothing'] < 1"))
    with pytest.raises(ControllerError, match="the event 'on_nothing': expected one of on_init_end"):
        controller.on_event("on_nothing")
    with pytest.raises(
        ControllerError,
        match=r"'c' on on_log at step 7: expected a key of loss\[.*\] \(ner\), found 'nothing'\. The rule is: loss",
    ):
        controller.on_event("on_log", step=7, losses={"ner": 1.0})


# ---------------------------------------------------------------------- state

SINCE = "scores['evaluations_since_best'] >= 2 or state['best_score'] > 0.9"
RISES = "len(window['training_loss']['loss']) == 3 and window['training_loss']['loss'][0] < loss['loss']"
EVERYTHING = definition(
    rule("rises", "on_step_end", RISES, LOG),
    rule("patient", ["on_step_end", "on_log"], "loss['loss'] > 1", LOG, patience={"patience_threshold": 2}),
    rule("stubborn", "on_step_end", "loss['loss'] > 1", LOG, patience={**RESET, "mode": "no_reset_on_failure"}),
    rule("rests", "on_step_end", "loss['loss'] > 0.5", LOG, cooldown=3),
    rule("rarely", ["on_step_end", "on_evaluate"], "loss['loss'] > 0.5", LOG, max_firings=3),
    rule("best", ["on_evaluate", "on_epoch_end"], SINCE, LOG),
    rule("logged", "on_log", "logs['training_loss']['loss'][-1] > logs['training_loss']['loss'][0]", LOG),
    rule("steep", ["on_optimizer_step", "on_epoch_end"], "norms['total'] > 1.5 or rates['a'] > 1.5", LOG),
    metrics=[
        LOSS,
        part("window", "HistoryBasedMetric", window_size=3, source_event="on_step_end"),
        part("logs", "HistoryBasedMetric", window_size=2),
        part("scores", "EvalMetrics", min_delta=0.05),
        STEP,
        NORMS,
        part("rates", "LearnRates"),
    ],
)
numbers = st.sampled_from([0.0, 0.5, 0.75, 1.0, 1.5, 2.0, float("inf"), float("nan")])
kept = st.fixed_dictionaries
run = st.lists(
    st.one_of(
        st.tuples(st.just("on_step_end"), kept({"losses": kept({"ner": numbers}), "words": st.integers(0, 50)})),
        st.tuples(st.just("on_step_end"), kept({"learn_rates": kept({"a": numbers})})),
        st.tuples(st.just("on_evaluate"), kept({"scores": kept({"f": numbers}), "score": numbers})),
        st.tuples(st.just("on_log"), kept({"log_history": st.lists(kept({"loss": numbers}), max_size=3)})),
        st.tuples(st.just("on_optimizer_step"), kept({"grad_norm": numbers})),
        st.tuples(st.just("on_epoch_end"), st.just({})),
    ),
    max_size=25,
)


def play(controller, events, first=0):
    found = []
    for step, (event, payload) in enumerate(events, first):
        told = {"step": step, "epoch": step // 5, "seconds": float(step), **copy.deepcopy(payload)}
        found.append(list(map(repr, controller.on_event(event, **told))))
    return found


@given(run, st.integers(0, 25))
@settings(derandomize=True, suppress_health_check=list(HealthCheck))
def test_controller_goes_on_from_its_state_at_any_point(events, at):
    whole = TrainerController(EVERYTHING)
    expected = play(whole, events)
    before, after = TrainerController(EVERYTHING), TrainerController(EVERYTHING)
    found = play(before, events[:at])
    state = before.state_dict()
    text = json.dumps(state)
    after.load_state_dict(json.loads(text))
    assert json.dumps(after.state_dict()) == text
    found += play(after, events[at:], at)
    assert found == expected
    assert json.dumps(after.state_dict()) == json.dumps(whole.state_dict())
    assert json.dumps(state) == text  # what was given away did not change since


def test_controller_state_test_fires_everything():
    """A comparison of runs in which nothing happens proves nothing."""
    losses = [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    events = [("on_step_end", {"losses": {"ner": loss}, "words": 20 * i}) for i, loss in enumerate(losses)]
    events += [("on_evaluate", {"scores": {}, "score": score}) for score in (0.5, 0.5, 0.5)]
    events += [
        ("on_log", {"log_history": [{"loss": 1.0}]}),
        ("on_log", {"log_history": [{"loss": 2.0}]}),
        ("on_optimizer_step", {"grad_norm": 2.0}),
    ]
    fired = str(play(TrainerController(EVERYTHING), events))
    assert all(f"controller='{spec['name']}'" in fired for spec in EVERYTHING["controllers"])


@pytest.mark.parametrize(
    "break_it",
    [
        lambda state: state.update(version=99),
        lambda state: state.pop("version"),
        lambda state: state.pop("controllers"),
        lambda state: state.update(more=1),
        lambda state: state.update(metrics=[]),
        lambda state: state["metrics"]["window"].pop("state"),
        lambda state: state["metrics"]["window"]["state"].update(training_loss=3),
        lambda state: state["metrics"]["scores"]["state"].update(score="x"),
        lambda state: state["controllers"]["patient"].update(patience={"on_log": -1}),
        lambda state: state["controllers"]["rests"].update(last="x"),
        lambda state: state["controllers"]["rarely"].update(firings=None),
        lambda state: state.update(step=None),
        lambda state: state["values"].pop("rates"),
    ],
)
def test_controller_state_that_is_damaged_changes_nothing(break_it):
    events = [("on_step_end", {"losses": {"ner": 2.0}, "words": 20}), ("on_evaluate", {"scores": {}, "score": 0.5})]
    controller, other = TrainerController(EVERYTHING), TrainerController(EVERYTHING)
    play(controller, events)
    play(other, events[:1])
    state = controller.state_dict()
    break_it(state)
    before = json.dumps(other.state_dict())
    with pytest.raises(StateError):
        other.load_state_dict(state)
    assert json.dumps(other.state_dict()) == before


NOTED = rule("c", "on_log", "True", "note.should_log")


def test_controller_state_of_a_definition_that_has_changed(caplog):
    old, same = (TrainerController(define(patience=REST)) for _ in range(2))
    changed = TrainerController(define("loss['loss'] < 2.0", patience=REST))
    log(old, 0.5, 0)
    same.load_state_dict(old.state_dict())
    assert not caplog.records and log(same, 0.5, 1)
    changed.load_state_dict(old.state_dict())
    assert "because the controller definition has changed since the state was saved: controller c." in caplog.text
    assert not log(changed, 0.5, 1) and log(changed, 0.5, 2)
    one, other = (make(NOTED, operations=[part("note", "LogControl", log_format=text)]) for text in "ab")
    other.load_state_dict(one.state_dict())
    assert "since the state was saved: operation note." in caplog.text


def test_controller_state_over_a_metric_that_has_changed(caplog):
    """What was measured by the old metric is no measure for the new one."""
    patient = {"patience": {"patience_threshold": 9}}

    def measured(*exclude):
        return make(
            rule("high_loss", "on_step_end", "loss['loss'] > 2 * low['value']", STOP, **patient),
            rule("good", "on_step_end", "high['value'] > 0", STOP, **patient),
            metrics=[
                part("loss", "Loss", exclude=list(exclude)),
                SCORES,
                part("low", "Best", of="loss['loss']", mode="min"),
                part("lately", "Window", of="loss['loss']", size=3),
                part("span", "Window", of="lately['max'] - low['value']", size=1),
                part("high", "Best", of="scores['score']", mode="max"),
            ],
        )

    def step(controller, number):
        controller.on_event("on_step_end", step=number, losses={"ner": 1.0, "parser": 9.0 - number})

    old, new = measured("parser"), measured()
    old.on_event("on_evaluate", step=0, scores={}, score=0.9)
    for number in range(4):
        step(old, number)
    new.load_state_dict(old.state_dict())
    assert "was saved: metric loss, metric low, metric lately, metric span, controller high_loss." in caplog.text
    assert {name for name, value in new.values.items() if value is not None} == {"scores", "high"}
    assert new.state_dict()["controllers"]["good"]["patience"] == {"on_step_end": 4}
    step(new, 4)
    assert new.values["low"]["value"] == 6.0
