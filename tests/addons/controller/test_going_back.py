"""Rules that take a training back to its best evaluation. The oracles: what the checkpoints of an equal training
without rules hold, and the same training without a stop.
"""

import os
import shutil
import signal
from contextlib import nullcontext

import pytest
import torch

from thinc_torchopt.core.errors import (
    CheckpointWarning,
    ControllerError,
    NonFiniteGradWarning,
    RollbackError,
    RollbackWarning,
)
from thinc_torchopt.core.state.files import read_folder
from thinc_torchopt.loop.checkpoint_folder import prune, resumable, steps_of
from thinc_torchopt.loop.progress import Progress

from .kit import BEST, CUT, LAST, SCORES, config_for, definition, firings, part, rule, run, same_params

# The score of each evaluation, at 0, 4, 8, ...: the test tells it, so that the best is where the test wants it.
RISE_AND_FALL = [0.1, 0.8, 0.5, 0.8, 0.4]

# No component computes the score that these tests give.
pytestmark = pytest.mark.filterwarnings("ignore:.*score_weights. counts score_of_test")


@pytest.fixture
def scores(monkeypatch):
    """Let evaluations give these scores, in their order by steps, also in a training that goes on."""
    from thinc_torchopt.loop.run import Run

    def use(values):
        def evaluate(self):
            return values[self.progress.step // 4], {"score_of_test": values[self.progress.step // 4]}

        evaluate_of_run = Run.evaluate

        def evaluate_with(self):
            self._evaluate = lambda: evaluate(self)
            return evaluate_of_run(self)

        monkeypatch.setattr(Run, "evaluate", evaluate_with)

    return use


def prepared(folder, corpus, rules, *, steps=16, keep=2, **optimizer):
    config = config_for(folder, corpus, rules, steps=steps, checkpoint=True, **optimizer)
    config["training"]["optimizer"]["checkpoint"]["keep"] = keep
    config["training"]["score_weights"] = {"score_of_test": 1.0}
    return config


def back_at(step, event="on_step_end", *more, **limits):
    return definition(
        rule("back", event, f'state["step"] == {step}', "best.should_rollback", *more, **limits),
        operations=[BEST, *[CUT] * ("cut.should_cut" in more)],
    )


def steps_in(folder):
    return [int(path.name[5:]) for path in steps_of(folder / "state")]


def numbers(tree):
    if isinstance(tree, dict):
        return {name: numbers(part) for name, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [numbers(part) for part in tree]
    return tree.tolist() if isinstance(tree, torch.Tensor) else tree


def state_of(folder, step):
    return read_folder(folder / "state" / f"step-{step:08d}")


@pytest.mark.parametrize("guard", [{}, {"rollback_after": 3}])
def test_best_is_raw_params_and_state_of_the_best_evaluation(guard, scores, corpus, tmp_path):
    """All is as an equal training without rules had it there: params, not their averages, moments and averages. Of two
    equal scores the first counts, which is older than `keep` allows. The rates stay as they were cut: the guard's
    `rollback_factor` is for bad updates.
    """
    scores(RISE_AND_FALL)
    run(prepared(tmp_path / "plain", corpus, None, keep=9, use_averages=True))
    rules = back_at(15, "on_step_end", "cut.should_cut")
    told = r"params of step 4 after step 15: a rule or listener asked for the best one\. This"
    with pytest.warns(RollbackWarning, match=told):
        _, infos, _ = run(prepared(tmp_path / "rules", corpus, rules, use_averages=True, **guard))
    best, back = state_of(tmp_path / "plain", 4), state_of(tmp_path / "rules", 15)
    assert numbers(back["model"]) == numbers(best["model"])
    cut = {
        name: {**found, "rate_scale": {"factor": 0.5, "held": None}}
        for name, found in best["optimizer"]["params"].items()
    }
    assert numbers(back["optimizer"]["params"]) == numbers(cut)
    assert numbers(back["optimizer"]["averages"]) == numbers(best["optimizer"]["averages"])
    assert numbers(back["model"]) != numbers(state_of(tmp_path / "plain", 15 - 3)["model"])
    assert back["progress"]["step"] == 15 and back["progress"]["rollbacks"] == [[15, 4]]
    assert [infos[step]["learn_rates"]["default"] for step in (15, 16)] == [0.01, 0.005]


def test_best_keeps_one_checkpoint_more_and_only_then(scores, corpus, tmp_path):
    scores(RISE_AND_FALL)
    run(prepared(tmp_path / "best", corpus, back_at(99)))
    assert steps_in(tmp_path / "best") == [4, 12, 16]
    to_last = definition(rule("back", "on_step_end", 'state["step"] == 99', "last.should_rollback"), operations=[LAST])
    run(prepared(tmp_path / "last", corpus, to_last))
    run(prepared(tmp_path / "none", corpus, None))
    assert steps_in(tmp_path / "last") == steps_in(tmp_path / "none") == [12, 16]


def test_best_is_where_the_training_is(scores, corpus, tmp_path):
    """Asked for at the best evaluation itself, there is nowhere to go."""
    scores(RISE_AND_FALL)
    text = 'scores["evaluations_since_best"] == 0 and scores["score"] > 0.5'
    back = rule("back", "on_evaluate", text, "best.should_rollback")
    rules = definition(back, metrics=[SCORES], operations=[BEST])
    nlp, infos, _ = run(prepared(tmp_path / "a", corpus, rules))
    assert firings(infos) == [(4, "back", "should_rollback")] and infos[16]["rollbacks"] == 0
    plain, *_ = run(prepared(tmp_path / "b", corpus, None))
    assert same_params(nlp, plain)


def test_best_takes_the_next_best_if_it_is_damaged(scores, corpus, tmp_path):
    scores(RISE_AND_FALL)
    config = prepared(tmp_path, corpus, back_at(13), keep=9)
    run(config, crash_at=13)
    (tmp_path / "state" / "step-00000004" / "tensors.safetensors").write_bytes(b"x")
    with (
        pytest.warns(RollbackWarning, match="params of step 12 after step 13"),
        pytest.warns(CheckpointWarning, match="The next one is used"),
    ):
        run(config)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_best_passes_over_params_that_are_not_finite(scores, corpus, tmp_path):
    """The rate of step 4 makes them so; the score does not tell."""
    scores(RISE_AND_FALL)
    rates = [1e39 if step == 4 else 0.01 for step in range(20)]
    config = prepared(tmp_path, corpus, back_at(6), steps=7, keep=9, learn_rate=rates)
    with pytest.warns(RollbackWarning, match="params of step 0 after step 6"), pytest.warns(NonFiniteGradWarning):
        run(config)


def test_best_needs_an_evaluation(corpus, scores, tmp_path):
    """NaN is none."""
    scores([float("nan")] * 9)
    with pytest.raises(RollbackError, match=r"expected an earlier one.*evaluated.*found none.*let the rule wait"):
        run(prepared(tmp_path, corpus, back_at(6)))


def test_best_is_asked_for_too_late(corpus, tmp_path):
    with pytest.raises(ControllerError, match=r"best\.should_rollback on on_train_end: the training does not continue"):
        run(prepared(tmp_path, corpus, back_at(6, "on_train_end")))


@pytest.mark.parametrize(("given", "at_most"), [({}, 3), ({"max_rollbacks": 1}, 1)])
def test_best_goes_back_only_so_often(given, at_most, scores, corpus, tmp_path):
    """Also without rollback_after."""
    scores(RISE_AND_FALL)
    rules = definition(rule("back", "on_step_end", 'state["step"] > 8', "best.should_rollback"), operations=[BEST])
    with (
        pytest.warns(RollbackWarning) as warned,
        pytest.raises(RollbackError, match=f"went back max_rollbacks = {at_most} times already"),
    ):
        run(prepared(tmp_path, corpus, rules, **given))
    assert sum(warning.category is RollbackWarning for warning in warned) == at_most


@pytest.mark.parametrize("stops", [[9, 10], [8]], ids=["between two checkpoints", "at a checkpoint"])
def test_last_is_the_same_where_a_signal_stopped_the_run(stops, scores, corpus, tmp_path):
    """Its own checkpoint is for resuming alone, and no rule sees that it is written. It is gone after a rollback."""
    scores(RISE_AND_FALL)
    rules = definition(
        rule("back", "on_step_end", 'state["step"] == 11', "last.should_rollback"),
        rule("saved", "on_save", 'state["step"] % 4 != 0', "cut.should_cut"),
        operations=[LAST, CUT],
    )
    ends, left = [], []
    for name, stopped_at in (("whole", []), ("stopped", stops)):
        config, state = prepared(tmp_path / name, corpus, rules, steps=13, keep=1), tmp_path / name / "state"
        for step in stopped_at:
            with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
                run(config, at={step: lambda: os.kill(os.getpid(), signal.SIGTERM)})
            assert [int(path.name[5:]) for path in resumable(state)] == sorted({8, step})
        with pytest.warns(RollbackWarning, match="step 8 after step 11"):
            _, infos, _ = run(config, at={12: lambda state=state: left.append(len(resumable(state)))})
        seen = {step: info.get("last_checkpoint") for step, info in infos.items() if step > max(stops)}
        assert not (state / "stopped").exists()
        ends.append((seen, steps_in(tmp_path / name), numbers(state_of(tmp_path / name, 13)["model"])))
    assert ends[0] == ends[1] and left == [1, 1]


def test_best_and_freezing(scores, corpus, tmp_path):
    """What was frozen since stays frozen, with the params of before; what was unfrozen since begins anew."""
    scores(RISE_AND_FALL)
    rules = definition(
        rule("freeze", "on_step_end", 'state["step"] == 6', "lower.should_freeze", "output.should_unfreeze"),
        rule("back", "on_step_end", 'state["step"] == 9', "best.should_rollback"),
        operations=[
            BEST,
            part("lower", "FreezeControl", params=["*embed*"]),
            part("output", "FreezeControl", params=["*output_layer*"]),
        ],
    )
    frozen = {"top": {"params": ["*output_layer*"], "freeze": True}}
    config = prepared(tmp_path, corpus, rules, steps=12, keep=9, use_averages=True, param_groups=frozen)
    with pytest.warns(RollbackWarning, match="step 4 after step 9"):
        run(config)
    best, back, last = (state_of(tmp_path, step) for step in (4, 9, 12))
    assert numbers(back["model"]) == numbers(best["model"])
    changed = {
        name: not torch.equal(last["model"]["params"][name], value) for name, value in best["model"]["params"].items()
    }
    assert all(has == ("embed" not in name) for name, has in changed.items()), changed
    assert {found["updates"] for name, found in last["optimizer"]["params"].items() if "output_layer" in name} == {3}


def test_best_and_what_is_frozen_in_between(scores, corpus, tmp_path):
    """Back while a part is frozen, which is then trained again, and back once more to where it was frozen: it begins
    anew then, and so does a run that was killed there.
    """
    scores([0.1, 0.9, 0.95, 0.3])
    rules = definition(
        rule("freeze", "on_step_end", 'state["step"] == 5', "lower.should_freeze"),
        rule("unfreeze", "on_step_end", 'state["step"] == 9', "lower.should_unfreeze"),
        rule("back", "on_step_end", 'state["step"] in [6, 10]', "best.should_rollback"),
        operations=[BEST, part("lower", "FreezeControl", params=["*embed*"])],
    )
    models = []
    for name, crashes in (("whole", [None]), ("killed", [7, 11, None])):
        config = prepared(tmp_path / name, corpus, rules, steps=12, keep=9, use_averages=True)
        for crash_at in crashes:
            with pytest.warns(RollbackWarning) if crash_at != crashes[-1] or name == "whole" else nullcontext():
                run(config, crash_at=crash_at)
        models.append(state_of(tmp_path / name, 12))
    assert numbers(models[0]["model"]) == numbers(models[1]["model"])
    updates = {name: found["updates"] for name, found in models[0]["optimizer"]["params"].items()}
    assert {updates[name] for name in updates if "embed" in name} == {2}


def test_prune_keeps_the_best_of_each_that_stays(tmp_path, corpus):
    """The oracle is a search through all steps."""
    from thinc_torchopt.core.state.files import write_folder

    results = [(0.5, 0), (0.9, 1), (0.7, 2), (float("nan"), 3), (0.9, 4), (0.95, 5)]
    progress = Progress(results=results)
    for step in range(6):
        write_folder(tmp_path / f"step-{step:08d}", {"step": step})
    shutil.rmtree(tmp_path / "step-00000002")
    prune(tmp_path, 2, ranked=progress.ranked)
    assert [int(path.name[5:]) for path in steps_of(tmp_path)] == [1, 4, 5]
    prune(tmp_path, 1, ranked=progress.ranked)
    assert [int(path.name[5:]) for path in steps_of(tmp_path)] == [5]
    assert progress.ranked() == [5, 1, 4, 2, 0] and progress.ranked(3) == [1, 2, 0]
