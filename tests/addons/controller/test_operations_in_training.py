"""Operations of rules in short trainings. Oracles: formulas in plain Python over the params of each step, and
the same training without a stop.
"""

import json
import warnings
from contextlib import nullcontext

import pytest
import spacy
import torch

from thinc_torchopt.addons.controller.operations import Operation, register_operation_handlers
from thinc_torchopt.core.errors import CheckpointWarning, ControllerError, RollbackWarning
from thinc_torchopt.loop import run as run_module

from ...models import pipeline_params
from .kit import LOG, SCORES, STEP, config_for, definition, firings, make, part, rule, run, same_params
from .test_going_back import prepared as prepared_with_scores
from .test_going_back import scores  # noqa: F401  # a fixture
from .test_saved_models import digests

# No component computes the score that these tests give.
pytestmark = pytest.mark.filterwarnings("ignore:.*score_weights. counts score_of_test")

LAST = part("last", "RollbackControl", to="last")
EMA = {"@misc": "thinc-torchopt.EMA.v1", "decay": 0.5, "warmup": "ignite", "start_step": 1000}
FALL = {"@schedules": "thinc-torchopt.warmup_stable_decay.v1", "initial_rate": 0.01, "warmup_steps": 0}
BUDGETED = {
    "budget": {"@misc": "thinc-torchopt.Budget.v1", "limit": "4 steps"},
    "learn_rate": {**FALL, "decay_steps": 2, "decay_begins": "when told"},
}


def at(step, *operations, event="on_step_end"):
    return rule(f"at-{step}", event, f"state['step'] == {step}", *operations)


def copied(nlp):
    return [value for values in pipeline_params(nlp).values() for value in values]


@pytest.mark.parametrize("event", ["on_step_end", "on_pre_optimizer_step"])
def test_averages_begin_when_a_rule_says_so(event, corpus, tmp_path, monkeypatch):
    """And begin anew: the mean forgets what was before."""
    rules = definition(
        at(3, "avg.should_begin", event=event),
        at(6, "avg.should_begin_anew", event=event),
        operations=[part("avg", "AveragesControl")],
    )
    seen, original = [], run_module.Run.begin_step

    def begin_step(self, batch):
        seen.append(copied(self.nlp))  # before the update of this step
        original(self, batch)

    monkeypatch.setattr(run_module.Run, "begin_step", begin_step)
    nlp, _, _ = run(config_for(tmp_path, corpus, rules, steps=9, averages=EMA), tmp_path / "out")
    seen.append(copied(nlp))
    saved = copied(spacy.load(tmp_path / "out" / "model-last"))
    expected = seen[7]
    for values in seen[8:]:
        expected = [0.5 * average + 0.5 * value for average, value in zip(expected, values)]
    # Averages are moved in float32: one rounding a step.
    assert all(torch.allclose(*pair, rtol=0.0, atol=1e-6) for pair in zip(saved, expected))
    assert not all(torch.allclose(*pair, rtol=0.0, atol=1e-4) for pair in zip(saved, seen[-1]))


class TestAsks(Operation):
    waits_for_update = True

    def should_ask(self, *, control, **kwargs):
        control.should_evaluate = True


def test_operations_that_wait_for_the_update_may_ask(corpus, tmp_path):
    register_operation_handlers([TestAsks])
    asks = part("asks", "TestAsks")
    rules = definition(at(2, "asks.should_ask", event="on_pre_optimizer_step"), operations=[asks])
    _, infos, _ = run(config_for(tmp_path, corpus, rules, steps=5))
    assert [step for step, info in infos.items() if info["score"] is not None] == [0, 2, 4]


def test_rates_are_raised_up_to_a_limit(corpus, tmp_path):
    rules = definition(
        rule("raise", "on_step_end", "True", "up.should_raise"),
        operations=[part("up", "LearnRateControl", factor=2.0, max_rate=0.05)],
    )
    _, infos, _ = run(config_for(tmp_path, corpus, rules, steps=5))
    found = [info["learn_rates"]["default"] for info in infos.values()]
    assert found == pytest.approx([0.01, 0.02, 0.04, 0.05, 0.05, 0.05])


def test_accumulation_is_set(corpus, tmp_path, monkeypatch):
    rules = definition(at(2, "acc.should_set"), operations=[part("acc", "AccumulationControl", substeps=3)])
    seen, original = [], run_module.subdivide_batch

    def subdivide(batch, count):
        seen.append(count)
        return original(batch, count)

    monkeypatch.setattr(run_module, "subdivide_batch", subdivide)
    run(config_for(tmp_path, corpus, rules, steps=5, checkpoint=True), crash_at=4)
    assert seen == [1, 1, 1, 3]
    run(config_for(tmp_path, corpus, rules, steps=5, checkpoint=True))
    assert set(seen[4:]) == {1, 3} and seen[-2:] == [3, 3]


@pytest.mark.parametrize("steps", [None, 3])
def test_decay_begins_when_a_rule_says_so(steps, corpus, tmp_path):
    """The rate falls from the next step on, and the training ends with it."""
    rules = definition(
        rule("fall", "on_evaluate", "state['step'] == 4", "fall.should_begin"),
        operations=[part("fall", "DecayControl", **({} if steps is None else {"steps": steps}))],
    )
    config = config_for(tmp_path, corpus, rules, steps=40, learn_rate={**FALL, "decay_steps": 4})
    _, infos, _ = run(config)
    rates = [info["learn_rates"]["default"] for info in infos.values()]
    assert rates[:5] == [0.01] * 5 and rates[5:] == sorted(rates[5:], reverse=True) and rates[-1] < 0.01
    assert max(infos) == 4 + (steps or 4)


@pytest.mark.parametrize(
    "operation, action, more, reason",
    [
        (part("op", "AveragesControl"), "should_begin", {}, "use_averages = true"),
        (part("op", "DecayControl"), "should_begin", {}, "warmup_stable_decay"),
        (part("op", "DecayControl"), "should_begin", BUDGETED, "Remove one of them"),
        (part("op", "LearnRateControl", rate=0.01), "should_set", BUDGETED, "Use should_cut or should_raise"),
    ],
)
def test_operations_that_a_run_cannot_do(operation, action, more, reason, corpus, tmp_path):
    rules = definition(at(2, f"op.{action}"), operations=[operation])
    config = config_for(tmp_path, corpus, rules, **more)
    config["training"]["patience"] = 0  # a budget ends alone
    with pytest.raises(ControllerError, match=reason):
        run(config)


VALUES = [0.1, 0.8, 0.5, 0.8, 0.4, 0.9, 0.2, 0.6]
KEEP = definition(
    rule("keep", "on_evaluate", "True", "top.should_keep"),
    metrics=[SCORES],
    operations=[part("top", "KeepBestControl", of="scores['score_of_test']")],
)


def kept(folder):
    """The step of the best model."""
    return json.loads((folder / "model-best-top" / "kept-as-best.json").read_text())["step"]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_best_model_is_kept(checkpoint, scores, corpus, tmp_path):  # noqa: F811
    """The best of all evaluations, the older of equal ones; with the params of its step. A later run replaces it."""
    scores([0.1, 0.8, 0.5, 0.8, 0.4, 0.9, 0.2, 0.9])
    config = prepared_with_scores(tmp_path, corpus, KEEP, steps=28)
    if not checkpoint:
        config["training"]["optimizer"].pop("checkpoint")
    run(config, tmp_path / "out")
    assert kept(tmp_path / "out") == 20
    meta = spacy.load(tmp_path / "out" / "model-best-top").meta
    assert meta["performance"]["score_of_test"] == 0.9
    plain = prepared_with_scores(tmp_path / "plain", corpus, None, steps=20)
    run(plain, tmp_path / "plain" / "out")
    assert digests(tmp_path / "out" / "model-best-top").items() >= digests(tmp_path / "plain/out/model-last").items()
    scores([0.1, 0.2])
    run(prepared_with_scores(tmp_path / "later", corpus, KEEP, steps=4), tmp_path / "out")
    assert kept(tmp_path / "out") == 4


@pytest.mark.parametrize("event", ["on_step_end", "on_save", "on_epoch_end", "on_epoch_begin"])
def test_best_models_are_those_of_their_step(event, scores, corpus, tmp_path):  # noqa: F811
    """Also if that is over when a rule asks for them, if the training goes back at once, and if it is killed next."""
    scores(VALUES)
    goes_back = event in ("on_step_end", "on_save")
    actions = ["top.should_keep", *["last.should_rollback"] * goes_back]
    rules = definition(
        rule("keep", event, "state['step'] >= 4", *actions, max_firings=1),
        metrics=[STEP, SCORES],
        operations=[part("top", "KeepBestControl", of="scores['score_of_test']"), *[LAST] * goes_back],
    )
    config, out = prepared_with_scores(tmp_path, corpus, rules, steps=9), tmp_path / "out"
    with pytest.warns(RollbackWarning) if goes_back else nullcontext():
        _, infos, _ = run(config, out, crash_at=6)
        _, more, _ = run(config, out)
    step = kept(out)
    run(prepared_with_scores(tmp_path / "plain", corpus, None, steps=step), tmp_path / "plain" / "out")
    expected = digests(tmp_path / "plain" / "out" / "model-last")
    assert digests(out / "model-best-top").items() >= expected.items() and len(firings(infos | more)) == 1 + goes_back


def test_best_model_spares_what_is_not_ours(scores, corpus, tmp_path):  # noqa: F811
    scores([0.1, 0.2])
    mine = tmp_path / "out" / "model-best-top" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.touch()
    with pytest.warns(CheckpointWarning, match="expected one that a rule has kept, found other files"):
        run(prepared_with_scores(tmp_path, corpus, KEEP, steps=4), tmp_path / "out")
    assert list(mine.parent.iterdir()) == [mine]


@pytest.mark.parametrize(
    ("stops", "to"),
    [
        pytest.param((4, 11), None, marks=pytest.mark.slow),
        ((4, 15, 18), "best"),
        pytest.param((18,), "last", marks=pytest.mark.slow),
    ],
)
def test_new_operations_in_a_run_that_goes_on(stops, to, scores, corpus, tmp_path):  # noqa: F811
    """As without a stop: params, averages, rates, what fired, and the models that are kept. Also where rules go back:
    windows, bests and what operations have set stay then.
    """
    scores(VALUES)
    again = "fired['at-5']['times'] > 0 and fired['at-5']['steps_since'] == 4"
    rules = definition(
        at(3, "avg.should_begin"),
        at(5, "acc.should_set", "up.should_raise"),
        rule("again", "on_step_end", again, "up.should_raise"),
        rule("keep", "on_evaluate", "scores['score_of_test'] > 0.2", "top.should_keep"),
        rule("window", "on_step_end", "lately['last'] < lately['median']", LOG),
        rule("best", "on_step_end", "highest['steps_since'] >= 3", LOG),
        *([at(14, "back.should_rollback"), at(17, "avg.should_begin_anew")] if to else []),
        metrics=[
            STEP,
            SCORES,
            part("losses", "Loss"),
            part("lately", "Window", of="losses['loss']", size=4),
            part("highest", "Best", of="lately['mean']", mode="max"),
        ],
        operations=[
            part("avg", "AveragesControl"),
            part("acc", "AccumulationControl", substeps=2),
            part("up", "LearnRateControl", factor=2.0, max_rate=0.03),
            part("top", "KeepBestControl", of="scores['score_of_test']"),
            *([part("back", "RollbackControl", to=to)] if to else []),
        ],
    )
    found = []
    for folder, crashes in (("whole", (None,)), ("stopped", (*stops, None))):
        config = prepared_with_scores(tmp_path / folder, corpus, rules, steps=20, averages=EMA)
        config["training"]["optimizer"]["checkpoint"]["every"] = 2
        out = tmp_path / folder / "out"
        infos = {}
        for crash_at in crashes:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RollbackWarning)
                nlp, more, _ = run(config, out, crash_at=crash_at)
            infos |= more
        told = dict(sorted(infos.items()))
        found.append((nlp, firings(told), [info["learn_rates"] for info in told.values()], kept(out), digests(out)))
    (nlp, *whole), (again, *stopped) = found
    assert whole == stopped and same_params(nlp, again)
    assert (9, "again", "should_raise") in whole[0] and whole[1][-1]["default"] == pytest.approx(0.03)
    assert ((14, "at-14", "should_rollback") in whole[0]) == bool(to)
    names = [name for _, name, _ in whole[0]]
    assert names.count("window") > 3 and "best" in names


def test_fired_counts_steps():
    late = rule("late", "on_step_end", "fired['at-5']['steps_since'] == 2", LOG)
    one = make(at(5, LOG), late)
    found = [(step, firing.controller) for step in range(9) for firing in one.on_event("on_step_end", step=step)]
    assert found == [(5, "at-5"), (7, "late")]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("fired['od']['times'] > 1", "Did you mean 'odd'"),
        ("fired['odd']['time'] > 1", "Did you mean 'times'"),
        ("fired['odd'] > 1", r"fired\['odd'\]\['times'\]"),
    ],
)
def test_fired_that_there_is_not(text, reason):
    odd = rule("odd", "on_step_end", text, LOG)
    with pytest.raises(ControllerError, match=reason):
        make(odd)
    with pytest.raises(ControllerError, match=r"none of .*fired"):
        make(odd, metrics=[{**STEP, "name": "fired"}])
