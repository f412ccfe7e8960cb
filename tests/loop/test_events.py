"""What listeners are told, in which order, and what they may ask for. The oracle for a run that goes on: one that was
not stopped.
"""

import json
import math
import random
import signal
from types import SimpleNamespace

import numpy
import pytest
import spacy
import torch
from spacy.training import Example
from thinc.api import PyTorchWrapper, chain, decaying, fix_random_seed, with_array

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.loggers.files import JSONLinesLogger
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ConfigError, ConfigWarning, RollbackError, RollbackWarning, StateError
from thinc_torchopt.loop.checkpoint_folder import steps_of
from thinc_torchopt.loop.checkpoint_settings import Checkpoint
from thinc_torchopt.loop.events import EVENT_TYPES, Control, Listeners, Log
from thinc_torchopt.loop.progress import Progress
from thinc_torchopt.loop.run import train_while_improving

from ..models import TOK2VEC, initialized, pipeline_params, same, toy_examples
from ..runs import SETTINGS


class Listener:
    """Without state. `acts`: by event, what it does."""

    name = "test"

    def __init__(self, **acts):
        self.__dict__.update(acts)


class Recorder:
    """Notes all events, also those of a run before that it goes on with. `ask`: what it asks for, by event and step."""

    name = "recorder"
    events = tuple(EVENT_TYPES)

    def __init__(self, ask=None):
        self.seen, self._ask = [], ask or {}

    def on_event(self, name, event, control):
        self.seen.append((name.removeprefix("on_"), event.step, event.epoch))
        for request in self._ask.get((name, event.step), ()):
            setattr(control, request, True)

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = [tuple(entry) for entry in state["seen"]]

    def steps(self, name):
        return [step for found, step, _ in self.seen if found == name]


def blank_pipeline():
    nlp = spacy.blank("xx")
    for name in ("tagger", "ner"):
        nlp.add_pipe(name, config={"model": {"tok2vec": TOK2VEC}})
    return nlp


def train(
    *listeners,
    folder=None,
    until=None,
    per_epoch=3,
    epochs=3,
    log=None,
    module=None,
    data=None,
    evaluate=None,
    **settings,
):
    """Train a small pipeline. until (int): Give up after this step. data, evaluate (Callable): Called before each batch
    and evaluation. RETURNS: its params, and the infos by step."""
    nlp = blank_pipeline().from_bytes(initialized(blank_pipeline))
    examples = toy_examples(nlp)
    fix_random_seed(1)
    if module is not None:
        tok2vec = nlp.get_pipe("tagger").model.get_ref("tok2vec")
        nlp.get_pipe("tagger").model.replace_node(tok2vec, chain(tok2vec, with_array(PyTorchWrapper(module))))
    checkpoint = None if folder is None else Checkpoint(str(folder), every=settings.pop("every", 1), keep=9)
    groups = {} if module is None else {"x": {"params": ["*/bias"], "freeze": True}}
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True, checkpoint=checkpoint, param_groups=groups)

    def batches():
        for epoch in range(epochs):
            random.shuffle(examples)
            for i in range(per_epoch):
                if data is not None:
                    data()
                yield epoch, examples[4 * i :][:4]

    def score():
        if evaluate is not None:
            evaluate()
        return len(infos) / 100, {"tag_acc": 0.5}

    options = SETTINGS | {"dropout": 0.2, "eval_frequency": 4, "accumulate_gradient": 2, **settings}
    infos = {}
    steps = train_while_improving(nlp, optimizer, batches(), score, listeners=listeners, **options)
    for _, info, is_best in steps:
        infos[info["step"]] = {**info, "losses": dict(info["losses"])}
        if log is not None:
            log(nlp, info, is_best)
        if info["step"] == until:
            steps.close()
    return pipeline_params(nlp), infos


def same_params(one, other):
    return all(same(one[name], other[name]) for name in one)


def test_events_come_in_order():
    """Two epochs of two steps, with two slices each; the first step is evaluated, and no other."""
    recorder = Recorder()
    train(recorder, per_epoch=2, epochs=2)

    def step(i, epoch):
        before = ["step_begin", "substep_end", "substep_end", "pre_optimizer_step", "optimizer_step", "step_end"]
        return [(name, i, epoch) for name in (*before, *(["evaluate"] if i == 0 else []), "log")]

    assert recorder.seen == [
        ("train_begin", -1, 0),
        ("epoch_begin", -1, 0),
        *step(0, 0),
        *step(1, 0),
        ("epoch_end", 1, 0),
        ("epoch_begin", 1, 1),
        *step(2, 1),
        *step(3, 1),
        ("epoch_end", 3, 1),
        ("train_end", 3, 1),
    ]


def test_events_tell_the_facts():
    found, norms, skipped = {}, {}, []

    def on_pre_optimizer_step(event, control):
        norms[event.step] = dict(event.run.grad_norms)
        assert event.spoiled_by is None

    def on_optimizer_step(event, control):
        skipped.append(event.skipped)
        assert event.run.grad_norm == pytest.approx(numpy.linalg.norm(list(norms[event.step].values())), rel=1e-5)
        assert not any(event.run.grad_norms.values())

    def on_log(event, control):
        run = event.run
        assert run.nlp.pipe_names == ["tagger", "ner"] and isinstance(run.optimizer, TorchOptimizer)
        assert run.counts["skipped_updates"] == 0 and 0 < run.seconds < 600 and event.info["step"] == event.step
        found[event.step] = run.losses, run.words, list(run.results), run.learn_rates

    examples, ended = [], []
    listener = Listener(
        on_pre_optimizer_step=on_pre_optimizer_step,
        on_optimizer_step=on_optimizer_step,
        on_log=on_log,
        on_substep_end=lambda event, control: examples.append((event.substep, event.examples)),
        on_step_end=lambda event, control: [examples.append((2, event.batch)), ended.append(event.run.words)],
    )
    _, infos = train(listener)
    assert sorted(norms[3]) == ["ner", "tagger"] and norms[3]["ner"] != norms[3]["tagger"] and skipped == [False] * 9
    for step, info in infos.items():
        losses, words, results, rates = found[step]
        # Loggers get sums since the last evaluation, of single precision among others.
        before = {} if step % 4 == 1 or step == 0 else infos[step - 1]["losses"]
        for name, loss in info["losses"].items():
            assert losses[name] == pytest.approx(float(loss) - float(before.get(name, 0.0)), rel=1e-6, abs=1e-6)
        assert words == info["words"] and results == info["checkpoints"][: len(results)] and rates == {"default": 0.01}
    elapsed = [info["elapsed"] for info in infos.values()]
    assert elapsed == sorted({*elapsed}) and ended == [info["words"] for info in infos.values()]
    assert [i for i, _ in examples] == [0, 1, 2] * 9
    assert all(isinstance(example, Example) for _, part in examples for example in part)
    assert sorted(map(id, examples[0][1] + examples[1][1])) == sorted(map(id, examples[2][1]))


def test_events_tell_of_an_update_that_is_skipped():
    skipped, spoiled = [], []

    def spoil(event, control):
        if event.step == 1:
            next(event.run.nlp.get_pipe("tagger").model.walk()).get_ref("softmax").get_grad("W")[...] = numpy.nan

    listener = Listener(
        on_substep_end=spoil,
        on_pre_optimizer_step=lambda event, control: spoiled.append(event.spoiled_by),
        on_optimizer_step=lambda event, control: skipped.append(event.skipped),
    )
    with pytest.warns(UserWarning, match="Skipped an update"):
        train(listener, epochs=1)
    assert skipped == [False, True, False] and spoiled == [None] * 3


@pytest.mark.filterwarnings("ignore:Skipped an update")
@pytest.mark.parametrize("bad", [1, 2])
@pytest.mark.parametrize("how", ["NaN", "E910"])
def test_events_tell_the_losses_of_a_step_alone_after_a_bad_batch(how, bad):
    """If a component raises an error there, its loss is unknown, and not 0. Loggers get these losses too, and sums of
    those that are finite.
    """
    known, told = {}, {}

    def on_train_begin(event, control):
        tagger = event.run.nlp.get_pipe("tagger")
        update = tagger.update

        def update_with_a_bad_batch(examples, *, losses, **more):
            own = update(examples, losses={}, **more)["tagger"]
            if len(known) == bad:
                if how == "E910":
                    known[bad] = math.nan
                    raise ValueError("[E910] Encountered NaN value when computing loss for component 'tagger'.")
                own = math.nan
            known[len(known)] = own
            losses["tagger"] = losses.get("tagger", 0.0) + own

        tagger.update = update_with_a_bad_batch

    listener = Listener(
        on_train_begin=on_train_begin, on_step_end=lambda event, control: told.update({event.step: event.run.losses})
    )
    _, infos = train(listener, epochs=2, accumulate_gradient=1)
    # Sums of single precision among others.
    assert {step: losses["tagger"] for step, losses in told.items()} == pytest.approx(known, rel=1e-6, nan_ok=True)
    assert [step for step in told if math.isnan(told[step]["ner"])] == [bad] * (how == "E910")
    assert repr({step: info["step_losses"] for step, info in infos.items()}) == repr(told)  # NaN is not itself
    parts = [[0], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [5]]  # evaluated at steps 0 and 4
    sums = [sum(known[i] for i in part if i != bad) if part != [bad] else math.nan for part in parts]
    assert [info["losses"]["tagger"] for info in infos.values()] == pytest.approx(sums, rel=1e-6, nan_ok=True)


@pytest.mark.filterwarnings("ignore:Skipped an update")
def test_events_tell_the_sums_of_before_when_a_run_goes_on_with_a_bad_batch(tmp_path):
    """Though the losses of this step are unknown."""

    def update(examples, **more):
        raise ValueError("[E910] Encountered NaN value when computing loss for component 'tagger'.")

    def on_train_begin(event, control):
        event.run.nlp.get_pipe("tagger").update = update

    _, infos = train(folder=tmp_path, until=3)
    _, more = train(Listener(on_train_begin=on_train_begin), folder=tmp_path, max_steps=3)
    assert list(more) == [3] and more[3]["losses"] == infos[2]["losses"]
    assert all(map(math.isnan, more[3]["step_losses"].values()))


def test_events_that_nobody_wants_are_not_made():
    run = SimpleNamespace(progress=Progress())
    Listeners([]).emit(Log, run)  # without what it carries
    with pytest.raises(TypeError):
        Listeners([Listener(on_log=print)]).emit(Log, run)


def test_listeners_change_nothing_by_listening():
    params, infos = train()
    others, same_infos = train(Recorder())
    assert same_params(params, others)
    assert [info["losses"] for info in infos.values()] == [info["losses"] for info in same_infos.values()]


# ---------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("event", "last"),
    [
        ("on_step_begin", 1),
        ("on_pre_optimizer_step", 1),
        ("on_step_end", 1),
        ("on_evaluate", 1),
        ("on_log", 1),
        ("on_save", 1),
        ("on_epoch_end", 2),
        ("on_epoch_begin", 2),
    ],
)
def test_control_stops_the_run_after_its_step(event, last, tmp_path, caplog):
    """And it is finished for good: who runs it again finds nothing to do."""
    recorder = Recorder({(event, last): ["should_stop"]})
    _, infos = train(recorder, folder=tmp_path, eval_frequency=1)
    assert max(infos) == last and recorder.seen[-1][:2] == ("train_end", last)
    assert steps_of(tmp_path)[-1].name == f"step-{last:08d}"
    assert train(Recorder(), folder=tmp_path)[1] == {}
    assert f"was finished, after step {last}. A rule or listener ended it." in caplog.text


@pytest.mark.parametrize("event", ["on_epoch_begin", "on_train_begin"])
def test_control_stops_before_the_first_epoch(event, tmp_path):
    assert train(Recorder({(event, -1): ["should_stop"]}), folder=tmp_path)[1] == {}
    assert not [*tmp_path.glob("step*")]


def test_control_ends_an_epoch_early():
    recorder = Recorder({("on_step_end", 0): ["should_epoch_stop"], ("on_log", 5): ["should_epoch_stop"]})
    train(recorder)
    assert recorder.steps("epoch_end") == [0, 3, 5]
    assert [epoch for name, _, epoch in recorder.seen if name == "step_begin"] == [0, 1, 1, 1, 2, 2]


def test_control_evaluates_logs_and_saves_steps(tmp_path):
    asked = {
        ("on_step_end", 1): ["should_evaluate"],
        ("on_optimizer_step", 2): ["should_log"],
        ("on_log", 6): ["should_save"],
    }
    asked |= {
        ("on_epoch_end", 4): ["should_evaluate"],
        ("on_evaluate", 8): ["should_evaluate"],
        ("on_save", 8): ["should_save"],
    }
    recorder = Recorder(asked)
    log = []

    def log_step(nlp, info, is_best):
        if not log:
            log[:] = JSONLinesLogger(tmp_path / "log.jsonl", every=100)(nlp)
        log[0](None if is_best is None else info)

    train(recorder, folder=tmp_path / "state", every=0, per_epoch=5, epochs=2, log=log_step)
    log[1]()
    # Every fourth step by itself. What is asked for too late, at 8, is forgotten.
    assert recorder.steps("evaluate") == [0, 1, 4, 5, 8]
    told = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert told == [0, 1, 2, 4, 5, 8]
    assert recorder.steps("save") == [0, 1, 4, 5, 6, 8]
    assert [int(path.name[5:]) for path in steps_of(tmp_path / "state")] == [0, 1, 4, 5, 6, 8, 9]  # and the last


def test_control_goes_back_to_a_checkpoint(tmp_path):
    recorder = Recorder({("on_step_end", 5): ["should_roll_back"]})
    with pytest.warns(RollbackWarning, match="params of step 4 after step 5: a rule or listener asked for it"):
        _, infos = train(recorder, folder=tmp_path, every=2)
    assert [info["rollbacks"] for info in infos.values()] == [0] * 5 + [1] * 4 and infos[6]["last_rollback"] == (5, 4)
    with pytest.raises(RollbackError, match=r"asked for it: there is no block \[training.optimizer.checkpoint\]"):
        train(Recorder({("on_step_end", 5): ["should_roll_back"]}))


@pytest.mark.parametrize("asked", ["should_roll_back", "should_roll_back_to_best"])
def test_control_goes_back_when_the_data_ends(asked, tmp_path):
    """Between steps, but no step comes next. The oracle: a run that ends at the checkpoint, after step 4."""
    plain, _ = train(folder=tmp_path / "plain", max_steps=4)
    settings = {"folder": tmp_path / "back", "every": 0, "epochs": 2}
    with pytest.warns(RollbackWarning, match="params of step 4 after step 5"):
        back, _ = train(Recorder({("on_epoch_end", 5): [asked]}), **settings)
    again, infos = train(Recorder(), **settings)
    assert infos == {} and same_params(back, plain) and same_params(again, plain)


@pytest.mark.parametrize(("epochs", "stops"), [(2, []), (3, ["should_stop"])])
def test_control_evaluates_nothing_when_the_run_is_over(epochs, stops):
    """It says so: spaCy's loop takes no score after its last step."""
    recorder = Recorder({("on_epoch_end", 2): ["should_evaluate"], ("on_epoch_end", 5): ["should_evaluate", *stops]})
    with pytest.warns(ConfigWarning, match="Step 5 is not evaluated, .* Run spacy evaluate with model-last") as warned:
        train(recorder, epochs=epochs)
    assert recorder.steps("evaluate") == [0, 3, 4]
    assert len([one for one in warned if one.category is ConfigWarning]) == 1


def test_control_forgets_all_but_the_end():
    control = Control(**dict.fromkeys(vars(Control()), True))
    control.end_step()
    assert control == Control(should_stop=True)


def test_control_has_the_framework_name_for_the_end():
    control = Control()
    control.should_training_stop = True
    assert control.should_stop and control.should_training_stop and control.requests == ["should_stop"]
    control.should_stop = False
    assert not control.should_training_stop


@pytest.mark.parametrize("name", ["should_stop_training", "requests", "end_step", "__dict__", "step"])
def test_control_refuses_other_attributes(name):
    with pytest.raises(AttributeError, match=f"Can't set '{name}' of a Control: expected one of should_stop, "):
        setattr(Control(), name, True)


# ---------------------------------------------------------------------- state


ASKED = {
    "nothing": {},
    "something": {("on_step_end", 1): ["should_epoch_stop"], ("on_step_end", 3): ["should_evaluate"]},
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_listeners_go_on_with_their_run(asked, tmp_path):
    """Stopped in an epoch, after its last step, and after it was ended early: the same weights, and each event once."""
    whole = Recorder(asked)
    params, infos = train(whole, folder=tmp_path / "whole", epochs=2, dropout=decaying(0.5, 0.3))
    found, resumed = {}, []
    for until in (1, 2, None):
        part = Recorder(asked)
        others, more = train(part, folder=tmp_path / "parts", until=until, epochs=2, dropout=decaying(0.5, 0.3))
        found |= more
        resumed.append({info.get("last_resume") for info in more.values()})
    elapsed = [info["elapsed"] for info in found.values()]
    assert elapsed == sorted(elapsed) and resumed == [{None}, {1}, {2}]
    assert same_params(params, others) and found.keys() == infos.keys()
    begun = [step for name, step, _ in part.seen if name == "train_begin"]
    assert begun == [-1, 0, 1]  # each time from the checkpoint of the step before: what is given up saves nothing
    # A listener's state is that at the save. What it hears of the save itself comes a moment before.
    assert [entry for entry in part.seen if entry[0] != "train_begin"] == [
        entry for entry in whole.seen if entry[0] != "train_begin"
    ]


def test_listeners_without_saved_state_begin_anew(tmp_path):
    train(folder=tmp_path, until=4)
    recorder = Recorder()
    train(recorder, folder=tmp_path)
    assert recorder.seen[0] == ("train_begin", 3, 1) and recorder.seen[-1] == ("train_end", 8, 2)


def test_listeners_refuse_a_state_that_is_not_theirs(tmp_path):
    class Picky(Recorder):
        def load_state_dict(self, state):
            raise StateError("not mine")

    train(Recorder(), folder=tmp_path, until=4)
    with pytest.raises(StateError, match="not mine"):
        train(Picky(), folder=tmp_path)


@pytest.mark.parametrize("event", [*(event for event in EVENT_TYPES if event != "on_exception"), "load"])
def test_listener_that_raises_leaves_nothing_behind(event, tmp_path):
    """Nor do random generators stay those of the data; and the folder is free for the next run."""

    def raises(event, control):
        generators.append(random.getstate())
        raise Broken

    module, generators, closed = torch.nn.Linear(16, 16), [], []
    settings = {"folder": tmp_path, "per_epoch": 1, "epochs": 2}
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    if event == "load":
        train(Recorder(), module=torch.nn.Linear(16, 16), until=1, **settings)
        listener = Listener(state_dict=dict, load_state_dict=lambda state: raises(None, None))
        listener.name = "recorder"
    else:
        listener = Listener(**{event: raises}, close=lambda: closed.append(1))
    with pytest.raises(Broken):
        train(listener, module=module, **settings)
    assert random.getstate() == generators[0] and closed == ([] if event == "load" else [1])
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert all(param.requires_grad for param in module.parameters()) and not (tmp_path / "lock.json").exists()
    assert len(train(module=torch.nn.Linear(16, 16), **settings)[1]) > 0 or event == "on_train_end"


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({}, "another one has the same name"),
        ({"on_step_ends": print}, "expected methods for on_train_begin, .*, found 'on_step_ends'"),
        (
            {"on_event": print, "events": ["on_step_end", "on_predict"]},
            "expected methods for on_train_begin, .*, found 'on_predict'",
        ),
        ({"on_event": print}, "expected the names of the events for its on_event in 'events'"),
        ({"state_dict": print}, "expected both state_dict and load_state_dict, or neither"),
        ({"load_state_dict": print}, "expected both state_dict and load_state_dict, or neither"),
    ],
)
def test_listeners_are_checked(methods, message):
    listeners = Listeners([Listener()] if not methods else [])
    with pytest.raises(ConfigError, match=f"Can't add listener 'test': {message}"):
        listeners.add(Listener(**methods))


class Broken(Exception):
    pass


def broken(*args, **kwargs):
    raise Broken("no more")


@pytest.mark.parametrize(
    ("place", "error"),
    [
        *((place, Broken("no more")) for place in ("data", "update", "evaluation", "listener", "hook")),
        ("update", KeyboardInterrupt()),
    ],
)
def test_listeners_hear_of_an_error(place, error):
    """Once, whichever part of a step raised it; and it is the one that ends the training."""

    def breaks(*args, **kwargs):
        if recorder.seen and recorder.seen[-1][1] >= 3:
            raise error

    class Breaks(torch.nn.Linear):
        def forward(self, X):
            breaks()
            return super().forward(X)

    told = []
    recorder = Recorder()
    listeners = [recorder, Listener(on_exception=lambda event, control: told.append(event.error))]
    options = {"module": Breaks(16, 16)} if place == "update" else {}
    if place == "listener":
        listeners[1].on_step_end = breaks
    places = {"data": "data", "evaluation": "evaluate", "hook": "before_update"}
    options |= {places[place]: breaks} if place in places else {}
    with pytest.raises(type(error)) as caught:
        train(*listeners, **options)
    assert caught.value is error and told == [error]
    assert recorder.seen[-1][0] == "exception" and recorder.seen[-1][1] in (3, 4)
    assert not recorder.steps("train_end")


def test_listeners_that_fail_at_an_error_do_not_hide_it(caplog):
    """The others hear of it all the same, and what failed is logged."""
    told = []
    first = Listener(on_exception=lambda event, control: 1 / 0)
    second = Listener(on_exception=lambda event, control: told.append(str(event.error)), on_step_end=broken)
    second.name = "second"
    with pytest.raises(Broken):
        train(first, second)
    assert told == ["no more"] and "A listener failed at on_exception. ZeroDivisionError" in caplog.text


def test_listeners_hear_of_no_error_when_a_run_is_given_up():
    recorder = Recorder()
    train(recorder, until=2)
    train(recorder)
    assert not recorder.steps("exception")
