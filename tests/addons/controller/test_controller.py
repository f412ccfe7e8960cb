"""The controller: when rules fire, what is told of it, and that a run can be taken up at any point."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thinc_torchopt.addons.controller.controller import Firing, TrainerController
from thinc_torchopt.core.errors import ControllerError, StateError
from thinc_torchopt.loop.events import Control


def define(rule="loss['loss'] < 1.0", triggers=("on_log",), operations=("hfcontrols.should_training_stop",), **more):
    return {
        "controller_metrics": [{"name": "loss", "class": "Loss"}],
        "controllers": [
            {"name": "c", "triggers": list(triggers), "rule": rule, "operations": list(operations), **more}
        ],
    }


def log(controller, loss, step):
    return controller.on_event(
        "on_log", log_history=[{"loss": loss, "epoch": 0.0}], epoch=0.0, global_step=step, scores=None
    )


def steps(controller, losses):
    return [step for step, loss in enumerate(losses) if log(controller, loss, step)]


def test_controller_as_in_the_docs():
    controller = TrainerController(define())
    firings = controller.on_event(
        "on_log", log_history=[{"loss": 0.5, "epoch": 0.0}], epoch=0.0, global_step=0, scores=None
    )
    values = {"loss": {"loss": 0.5}}
    assert firings == [
        Firing(
            controller="c", operation="hfcontrols", action="should_training_stop", event="on_log", step=0, values=values
        )
    ]
    what = "Controller 'c' took hfcontrols.should_training_stop on on_log at step 0"
    assert str(firings[0]) == f"{what}, with {{'loss': {{'loss': 0.5}}}}"


def test_controller_fires_for_each_action_and_logs_it(caplog):
    definition = define(
        operations=("control.should_save", "hfcontrols.should_log"), config={"trigger_log_level": "warning"}
    )
    controller, control = TrainerController(definition), Control()
    firings = controller.on_event("on_log", step=4, log_history=[{"loss": 0.5}], control=control)
    assert (
        [firing.action for firing in firings] == ["should_save", "should_log"]
        and control.should_save
        and control.should_log
    )
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert caplog.messages[0].startswith(
        "Taking [should_save] action in controller [c] triggered at event [on_log] at step 4, with {'loss'"
    )


def test_controller_cooldown_and_max_firings():
    assert steps(TrainerController(define(cooldown=2)), [0.5] * 8) == [0, 3, 6]
    assert steps(TrainerController(define(max_firings=2)), [0.5] * 8) == [0, 1]
    assert steps(TrainerController(define(cooldown=2, max_firings=2)), [2, 0.5, 2, 2, 0.5, 0.5, 0.5, 0.5]) == [1, 4]
    patience = {"patience_threshold": 1}
    assert steps(TrainerController(define(cooldown=2, patience=patience)), [0.5] * 9) == [
        1,
        5,
    ]  # at rest nothing is counted


def test_controller_patience_modes():
    losses = [0.5, 2, 0.5, 0.5, 0.5, 2, 0.5]
    reset = {"patience_threshold": 2, "mode": "reset_on_failure"}
    assert steps(TrainerController(define(patience=reset)), losses) == [4]
    assert steps(TrainerController(define(patience={**reset, "mode": "no_reset_on_failure"})), losses) == [3]


def test_controller_patience_is_counted_by_trigger():
    controller = TrainerController(define(triggers=("on_log", "on_epoch_end"), patience={"patience_threshold": 1}))
    assert not log(controller, 0.5, 0)
    assert not controller.on_event("on_epoch_end", step=0)
    assert log(controller, 0.5, 1)
    assert controller.on_event("on_epoch_end", step=1)


def test_controller_values_in_firings_are_copies():
    controller = TrainerController(
        {
            "controller_metrics": [{"name": "w", "class": "HistoryBasedMetric", "arguments": {"window_size": 5}}],
            "controllers": [
                {
                    "name": "c",
                    "triggers": ["on_log"],
                    "rule": "len(w['training_loss']['loss']) <= w['window_size']",
                    "operations": ["control.should_log"],
                }
            ],
        }
    )
    firings = [log(controller, float(step), step)[0] for step in range(3)]
    assert [firing.values["w"]["training_loss"]["loss"] for firing in firings] == [[0.0], [0.0, 1.0], [0.0, 1.0, 2.0]]


def test_controller_skips_with_one_warning(caplog):
    controller = TrainerController(define(triggers=("on_step_end", "on_log")))
    for step in range(5):
        assert controller.on_event("on_step_end", step=step) == []
    assert (
        len(caplog.records) == 1
        and "Ignoring the rule of controller [c] on on_step_end at step 0 because" in caplog.text
    )
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

EVERYTHING = {
    "controller_metrics": [
        {"name": "loss", "class": "Loss"},
        {
            "name": "window",
            "class": "HistoryBasedMetric",
            "arguments": {"window_size": 3, "source_event": "on_step_end"},
        },
        {"name": "logs", "class": "HistoryBasedMetric", "arguments": {"window_size": 2}},
        {"name": "scores", "class": "EvalMetrics", "arguments": {"min_delta": 0.05}},
        {"name": "state", "class": "TrainingState"},
        {"name": "norms", "class": "GradNorm"},
        {"name": "rates", "class": "LearnRates"},
    ],
    "controllers": [
        {"name": name, "triggers": triggers, "rule": rule, "operations": ["control.should_log"], **more}
        for name, triggers, rule, more in [
            (
                "rises",
                ["on_step_end"],
                "len(window['training_loss']['loss']) == 3 and window['training_loss']['loss'][0] < loss['loss']",
                {},
            ),
            ("patient", ["on_step_end", "on_log"], "loss['loss'] > 1", {"patience": {"patience_threshold": 2}}),
            (
                "stubborn",
                ["on_step_end"],
                "loss['loss'] > 1",
                {"patience": {"patience_threshold": 2, "mode": "no_reset_on_failure"}},
            ),
            ("rests", ["on_step_end"], "loss['loss'] > 0.5", {"cooldown": 3}),
            ("rarely", ["on_step_end", "on_evaluate"], "loss['loss'] > 0.5", {"max_firings": 3}),
            (
                "best",
                ["on_evaluate", "on_epoch_end"],
                "scores['evaluations_since_best'] >= 2 or state['best_score'] > 0.9",
                {},
            ),
            ("logged", ["on_log"], "logs['training_loss']['loss'][-1] > logs['training_loss']['loss'][0]", {}),
            ("steep", ["on_optimizer_step", "on_epoch_end"], "norms['total'] > 1.5 or rates['a'] > 1.5", {}),
        ]
    ],
}
numbers = st.sampled_from([0.0, 0.5, 0.75, 1.0, 1.5, 2.0, float("inf"), float("nan")])
run = st.lists(
    st.one_of(
        st.tuples(
            st.just("on_step_end"),
            st.fixed_dictionaries({"losses": st.fixed_dictionaries({"ner": numbers}), "words": st.integers(0, 50)}),
        ),
        st.tuples(
            st.just("on_step_end"), st.fixed_dictionaries({"learn_rates": st.fixed_dictionaries({"a": numbers})})
        ),
        st.tuples(
            st.just("on_evaluate"),
            st.fixed_dictionaries({"scores": st.fixed_dictionaries({"f": numbers}), "score": numbers}),
        ),
        st.tuples(
            st.just("on_log"),
            st.fixed_dictionaries({"log_history": st.lists(st.fixed_dictionaries({"loss": numbers}), max_size=3)}),
        ),
        st.tuples(st.just("on_optimizer_step"), st.fixed_dictionaries({"grad_norm": numbers})),
        st.tuples(st.just("on_epoch_end"), st.just({})),
    ),
    max_size=25,
)


def play(controller, events, first=0):
    return [
        [
            repr(firing)
            for firing in controller.on_event(
                event, step=step, epoch=step // 5, seconds=float(step), **copy.deepcopy(payload)
            )
        ]
        for step, (event, payload) in enumerate(events, first)
    ]


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


def test_controller_state_of_a_definition_that_has_changed(caplog):
    old = TrainerController(define(patience={"patience_threshold": 1}))
    log(old, 0.5, 0)
    same, changed = (
        TrainerController(define(patience={"patience_threshold": 1})),
        TrainerController(define("loss['loss'] < 2.0", patience={"patience_threshold": 1})),
    )
    same.load_state_dict(old.state_dict())
    assert not caplog.records and log(same, 0.5, 1)
    changed.load_state_dict(old.state_dict())
    assert (
        "Not restored, because the controller definition has changed" in caplog.text and "controller c" in caplog.text
    )
    assert not log(changed, 0.5, 1) and log(changed, 0.5, 2)


def test_controller_state_over_a_metric_that_has_changed(caplog):
    """What was measured by the old metric is no measure for the new one."""

    def make(exclude):
        return TrainerController(
            {
                "controller_metrics": [
                    {"name": "loss", "class": "Loss", "arguments": {"exclude": exclude}},
                    {"name": "scores", "class": "EvalMetrics"},
                    {"name": "low", "class": "Best", "arguments": {"of": "loss['loss']", "mode": "min"}},
                    {"name": "lately", "class": "Window", "arguments": {"of": "loss['loss']", "size": 3}},
                    {"name": "span", "class": "Window", "arguments": {"of": "lately['max'] - low['value']", "size": 1}},
                    {"name": "high", "class": "Best", "arguments": {"of": "scores['score']", "mode": "max"}},
                ],
                "controllers": [
                    {
                        "name": name,
                        "triggers": ["on_step_end"],
                        "rule": rule,
                        "operations": ["control.should_training_stop"],
                        "patience": {"patience_threshold": 9},
                    }
                    for name, rule in (("high_loss", "loss['loss'] > 2 * low['value']"), ("good", "high['value'] > 0"))
                ],
            }
        )

    def step(controller, number):
        controller.on_event("on_step_end", step=number, losses={"ner": 1.0, "parser": 9.0 - number})

    old, new = make(["parser"]), make([])
    old.on_event("on_evaluate", step=0, scores={}, score=0.9)
    for number in range(4):
        step(old, number)
    new.load_state_dict(old.state_dict())
    assert "was saved: metric loss, metric low, metric lately, metric span, controller high_loss." in caplog.text
    assert {name for name, value in new.values.items() if value is not None} == {"scores", "high"}
    assert new.state_dict()["controllers"]["good"]["patience"] == {"on_step_end": 4}
    step(new, 4)
    assert new.values["low"]["value"] == 6.0
