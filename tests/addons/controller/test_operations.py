"""What operations do: with flags, and with a loop that can be steered."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from thinc_torchopt.addons.controller.metrics import Metric, register_metric_handlers
from thinc_torchopt.addons.controller.operations import (
    Operation,
    RunHandle,
    controller_operations,
    register_operation_handlers,
)
from thinc_torchopt.core.errors import ControllerError
from thinc_torchopt.core.optimizer import TorchOptimizer
from thinc_torchopt.loop.events import Control

from .kit import LOSS, SCORES, STEP, make, part, rule


def doing(action, kind=None, arguments=None, event="on_step_end"):
    operations = [] if kind is None else [part("op", kind, **(arguments or {}))]
    return make(rule("c", event, "True", action), metrics=[LOSS, STEP], operations=operations)


REQUESTS = ["should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log"]


@pytest.mark.parametrize("name", ["hfcontrols", "control"])
@pytest.mark.parametrize("action", REQUESTS)
def test_controls_make_requests(name, action):
    controller, control = doing(f"{name}.{action}"), Control()
    [firing] = controller.on_event("on_step_end", step=3, control=control)
    assert (firing.operation, firing.action, firing.step) == (name, action, 3)
    assert control == Control(**{action.replace("training_", ""): True})
    assert controller.on_event("on_step_end", step=4)  # without a control nothing is done


@pytest.mark.parametrize("request_name", [*REQUESTS, "should_stop_training"])
def test_operation_in_the_form_of_the_framework(request_name):
    """It sets what the framework's control has. What that has not is an error, and not an action without effect."""

    class TestAsks(Operation):
        def should_ask(self, control=None, **kwargs):
            setattr(control, request_name, True)

    register_operation_handlers([TestAsks])
    controller, control = doing("op.should_ask", "TestAsks"), Control()
    if request_name not in REQUESTS:
        expected = f"'{request_name}' of a Control.*Did you mean 'should_training_stop'"
        with pytest.raises(ControllerError, match=expected):
            controller.on_event("on_step_end", step=3, control=control)
        return
    controller.on_event("on_step_end", step=3, control=control)
    assert getattr(control, request_name) and len(control.requests) == 1


def test_operation_ends_a_training_whose_control_is_the_framework_own():
    control = SimpleNamespace(should_training_stop=False)
    doing("control.should_training_stop").on_event("on_step_end", step=3, control=control)
    assert control.should_training_stop is True


@pytest.mark.parametrize("given", ["scores", "metrics"])
@pytest.mark.parametrize("asked", ["scores", "metrics"])
def test_scores_have_the_framework_name_too(given, asked):
    """In `on_event`, and for metrics and operations of one's own, whatever else they get."""
    seen = []

    class TestScores(Metric):
        events = ("on_evaluate",)
        reads = (asked,)

        def compute(self, event_name, **kwargs):
            return kwargs[asked]["f"]

    class TestSees(Operation):
        def should_see(self, **kwargs):
            seen.append((kwargs[asked]["f"], kwargs["mine"]))

    register_metric_handlers([TestScores])
    register_operation_handlers([TestSees])
    controller = make(
        rule("r", "on_evaluate", "own > 0.5 and scores['f'] == own", "op.should_see"),
        metrics=[part("own", "TestScores"), SCORES],
        operations=[part("op", "TestSees")],
    )
    assert controller.reads("on_evaluate") == {"scores", "score"}
    controller.on_event("on_evaluate", global_step=2, mine=1, control=Control(), **{given: {"f": 0.7}})
    assert seen == [(0.7, 1)]


CUT = {"groups": ["enc*"], "factor": 0.5, "min_rate": 1e-6}
RAISE = {"factor": 2.0, "max_rate": 0.1}


@pytest.mark.parametrize(
    "action, kind, arguments, call, args",
    [
        ("should_cut", "LearnRateControl", CUT, "scale_learn_rates", (["enc*"], 0.5, 1e-6, None)),
        ("should_raise", "LearnRateControl", RAISE, "scale_learn_rates", (["*"], 2.0, 0.0, 0.1)),
        ("should_begin", "DecayControl", {"steps": 50}, "begin_decay", (50,)),
        ("should_begin", "DecayControl", {}, "begin_decay", (None,)),
        ("should_set", "LearnRateControl", {"rate": 0.1}, "set_learn_rates", (["*"], 0.1)),
        ("should_freeze", "FreezeControl", {"params": ["ner/*"]}, "freeze", (["ner/*"],)),
        ("should_unfreeze", "FreezeControl", {"params": ["ner/*"]}, "unfreeze", (["ner/*"],)),
    ],
)
def test_operations_change_the_optimizer(action, kind, arguments, call, args):
    controller, run = doing(f"op.{action}", kind, arguments), RunHandle(Mock(spec=TorchOptimizer))
    controller.on_event("on_step_end", step=1, run=run)
    assert not run.optimizer.mock_calls
    controller.on_event("on_step_end", step=2, control=Control(), run=run)
    assert [(c[0], c.args) for c in run.optimizer.mock_calls] == [(call, args)]
    refuses_without_run(controller, f"op.{action}")


@pytest.mark.parametrize(
    "action, kind, arguments, asked, substeps",
    [
        ("should_set", "AccumulationControl", {"substeps": 4}, Control(), 4),
        ("should_rollback", "RollbackControl", {"to": "last"}, Control(should_roll_back=True), None),
        ("should_rollback", "RollbackControl", {"to": "best"}, Control(should_roll_back_to_best=True), None),
    ],
)
def test_operations_change_the_run(action, kind, arguments, asked, substeps):
    controller, control, run = doing(f"op.{action}", kind, arguments), Control(), RunHandle()
    controller.on_event("on_step_end", step=1, run=run)
    assert run == RunHandle()
    controller.on_event("on_step_end", step=2, control=control, run=run)
    assert control == asked and run == RunHandle(substeps=substeps)
    refuses_without_run(controller, f"op.{action}")


def refuses_without_run(controller, action):
    reason = f"{action} of the controller 'c' on on_step_end at step 3: this training loop can't"
    with pytest.raises(ControllerError, match=reason):
        controller.on_event("on_step_end", step=3, control=Control())


@pytest.mark.parametrize(
    "action, kind, arguments, reason",
    [
        ("should_cut", "LearnRateControl", {}, "the argument 'factor'"),
        ("should_set", "LearnRateControl", {"factor": 0.5}, "the argument 'rate'"),
        ("should_cut", "LearnRateControl", {"factor": 1.0}, "between 0 and 1 to cut"),
        ("should_cut", "LearnRateControl", {"factor": 2.0}, "'factor', below 1"),
        ("should_cut", "LearnRateControl", {"factor": 0}, "between 0 and 1"),
        ("should_raise", "LearnRateControl", {"factor": 2.0}, "'factor', above 1, and 'max_rate'"),
        ("should_raise", "LearnRateControl", {"factor": 0.5}, "'factor', above 1"),
        ("should_raise", "LearnRateControl", {"factor": 2.0, "min_rate": 0.1, "max_rate": 1.0}, "below 1"),
        ("should_cut", "LearnRateControl", {"factor": 0.5, "max_rate": 0.1}, "above 1"),
        ("should_set", "AccumulationControl", {"substeps": 0}, "substeps"),
        ("should_begin", "DecayControl", {"steps": 0}, "steps"),
        ("should_keep", "KeepBestControl", {"of": "los['loss']"}, "'of'.*Did you mean 'loss'"),
        ("should_keep", "KeepBestControl", {"of": "1"}, "an expression with a metric"),
        ("should_keep", "KeepBestControl", {"of": "loss['loss']", "mode": "best"}, "'max' or 'min'"),
        ("should_cut", "LearnRateControl", {"factor": 0.5, "min_rate": -1}, "min_rate"),
        ("should_set", "LearnRateControl", {"rate": 0.1, "min_rate": 0.01}, "'factor' beside it"),
        ("should_cut", "LearnRateControl", {"factor": 0.5, "groups": "enc"}, "list of names"),
        ("should_freeze", "FreezeControl", {}, "the arguments of 'FreezeControl'"),
        ("should_freeze", "FreezeControl", {"params": []}, "list of names"),
        ("should_rollback", "RollbackControl", {"to": "first"}, "'best' or 'last'"),
        ("should_log", "LogControl", {"log_format": "x", "log_level": "loud"}, "debug, info"),
        ("should_log", "LogControl", {"log_format": "{loss/los}"}, "fields of loss among loss/loss, "),
        ("should_log", "LogControl", {"log_format": "a\n[INFO] b"}, "one line without control characters"),
        ("should_log", "LogControl", {"log_format": "a\u202eb"}, "one line without control characters"),
        ("should_sing", "RollbackControl", {}, r"an action of 'op', found .should_sing"),
        ("state_dict", "RollbackControl", {}, "an action of 'op'"),
    ],
)
def test_operations_that_cant_work_are_refused(action, kind, arguments, reason):
    with pytest.raises(ControllerError, match=rf"operations\[0\].*{reason}"):
        doing(f"op.{action}", kind, arguments)


PLAIN = (
    "{event_name} of {control_name} at {step:05d}: {loss/loss:.2f}, {loss/components}, {state/best_score:.1f}, "
    "{path}, {{x}}, {loss/components/no}"
)


@pytest.mark.parametrize(
    "text, shown",
    [
        (PLAIN, "on_save of c at 00012: 1.50, {'ner': 1.5}, -, out/step-12, {x}, -"),
        ("{event_name:.3f} {step:%} {loss/loss:c}", "on_save 1200.000000% 1.5"),  # without formats that do not fit
    ],
)
def test_log_control_shows_plain_values(text, shown, caplog):
    controller = doing("op.should_log", "LogControl", {"log_format": text, "log_level": "WARNING"}, "on_save")
    controller.on_event("on_step_end", losses={"ner": 1.5}, control=Control())
    controller.on_event("on_save", step=12, path="out/step-12", control=Control())
    assert caplog.messages[-1] == shown


UNSAFE = ["\n", "\r", "\x1b[31m", "\x00", "\x7f", "\x9b2J", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\ud800"]
SAFE = "é\u00a0\N{ZERO WIDTH JOINER}…"


@pytest.mark.parametrize(
    "letter, shown", [*((one, one.encode("unicode_escape").decode()) for one in UNSAFE), (SAFE, SAFE)], ids=ascii
)
def test_log_control_writes_one_line(letter, shown, caplog):
    """Whatever is in values: paths, names of components, texts of metrics of one's own."""

    class TestText(Metric):
        events = ("on_save",)

        def compute(self, event_name, *, path, **kwargs):
            return {"text": path}

    register_metric_handlers([TestText])
    log = part("op", "LogControl", log_format="{path}, {m/text:>3}, {m}\n")
    made = make(rule("c", "on_save", "True", "op.should_log"), metrics=[part("m", "TestText")], operations=[log])
    path = f"a{letter}[INFO] b"
    with caplog.at_level("INFO", "spacy.torchopt"):
        made.on_event("on_save", step=1, path=path, control=Control())
    assert caplog.messages == [f"a{shown}[INFO] b, a{shown}[INFO] b, {{'text': {path!r}}}"]
    assert len(caplog.messages[0].splitlines()) == 1


def test_own_operations():
    seen = []

    @controller_operations("TestOperation")
    class TestOperation(Operation):
        def should_tell(self, *, event_name, control_name, firing, values, **kwargs):
            seen.append((event_name, control_name, firing.step, dict(values), kwargs))

    class TestFailing:
        def should_fail(self, **kwargs):
            raise KeyError("oh")

        def should_take_nothing(self):
            pass

    register_operation_handlers([TestFailing])
    doing("op.should_tell", "TestOperation").on_event("on_step_end", step=1, losses={"a": 1}, control=Control())
    [(event, name, step, values, payload)] = seen
    assert (event, name, step) == ("on_step_end", "c", 1)
    assert values["loss"]["loss"] == 1.0 and payload["losses"] == {"a": 1}
    failed = r"op\.should_fail of the controller 'c' on on_step_end at step 5: KeyError: oh"
    with pytest.raises(ControllerError, match=failed):
        doing("op.should_fail", "TestFailing").on_event("on_step_end", step=5, control=Control())
    with pytest.raises(ControllerError, match=r"should_take_nothing\(\.\.\., \*\*kwargs\)"):
        doing("op.should_take_nothing", "TestFailing")
