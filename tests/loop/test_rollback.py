"""Going back to a checkpoint when updates go wrong. The oracles: what was saved there, and the same run without a
stop.
"""

import re
from unittest.mock import Mock

import pytest
import torch
from spacy.util import registry

from thinc_torchopt import add_labels
from thinc_torchopt.core.compat import has_pytorch_optimizer
from thinc_torchopt.core.errors import CheckpointWarning, NonFiniteGradWarning, RollbackError, RollbackWarning
from thinc_torchopt.core.state.files import read_folder
from thinc_torchopt.loop import checkpoint_folder
from thinc_torchopt.loop.checkpoint_folder import steps_of

from ..runs import config_for, run, run_with_stops, train

# numpy computes with NaN as well, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

# A rate that makes all params infinite or NaN, after which no gradient is finite.
ROLLBACK = {
    "training__optimizer__rollback_after": 2,
    "training__optimizer__averages": {"@misc": "thinc-torchopt.EMA.v1"},
}
ROLLBACK |= {"training__optimizer__use_averages": False}


def rates(*broken, rate=1e39):
    return [rate if step in broken else 0.01 for step in range(40)]


def rollbacks_of(state, step):
    return [tuple(one) for one in read_folder(state / f"step-{step:08d}")["progress"]["rollbacks"]]


def numbers(tree):
    """A tree with lists of numbers in the place of its tensors, which can be compared."""
    if isinstance(tree, dict):
        return {name: numbers(part) for name, part in tree.items()}
    return tree.tolist() if isinstance(tree, torch.Tensor) else tree


@pytest.mark.parametrize("algorithm", [pytest.param("torch.AdamW.v1", marks=pytest.mark.device), "torch.Adagrad.v1"])
def test_rollback_brings_back_params_state_and_averages(algorithm, corpus, tmp_path):
    """The rate of step 8 ruins the params, so 9 and 10 go wrong. After 10 all is as it was after 5. At 7 the embeddings
    thaw.

    Adagrad makes a param's state before the first step.
    """
    config = config_for(
        tmp_path, corpus, steps=10, training__optimizer__learn_rate=rates(8), training__eval_frequency=50, **ROLLBACK
    )
    config["training"]["optimizer"]["algorithm"] = {"@torch_optimizers": algorithm}
    config["training"]["optimizer"]["checkpoint"] |= {"every": 5, "keep": 3}
    config["training"]["optimizer"]["param_groups"] = {
        "lower": {"params": ["tok2vec/embed/*"], "unfreeze_at": 7, "lr_scale": 0.5}
    }
    with (
        pytest.warns(NonFiniteGradWarning),
        pytest.warns(
            RollbackWarning, match=r"params of step 5 after step 10.* 0.5 times .*rollback 1 of max_rollbacks = 3"
        ),
    ):
        infos = run(config, tmp_path / "out")
    assert sorted(infos) == list(range(11))
    assert "('rollbacks', 0)" in infos[9] and "('rollbacks', 1)" in infos[10] and "('skipped_updates', 2)" in infos[10]
    before, after = (read_folder(tmp_path / "state" / f"step-{step:08d}") for step in (5, 10))
    assert after["progress"]["rollbacks"] == [[10, 5]] and after["progress"]["step"] == 10
    assert numbers(after["model"]) == numbers(before["model"])
    assert numbers(after["optimizer"]["averages"]) == numbers(before["optimizer"]["averages"])
    old, new = numbers(before["optimizer"]["params"]), numbers(after["optimizer"]["params"])
    thawed = {name for name in old if name.startswith("tok2vec/embed")}
    assert {name: new[name] for name in old.keys() - thawed} == {name: old[name] for name in old.keys() - thawed}
    assert {new[name]["updates"] for name in thawed} == {0} and not any(old[name]["state"] for name in thawed)
    assert after["optimizer"]["learn_rates"]["step_count"] > before["optimizer"]["learn_rates"]["step_count"]
    config["training"]["max_steps"] = 11
    infos = run(config, tmp_path / "out")
    assert "'default': 0.005, 'lower': 0.0025" in infos[11] and "('rollbacks', 1)" in infos[11]
    assert "('skipped_updates', 2)" in infos[11]
    last = read_folder(tmp_path / "state" / "step-00000011")["optimizer"]["params"]
    assert {last[name]["updates"] - old[name]["updates"] for name in old} == {1}


SCHEDULE_FREE = {
    "training__optimizer__algorithm": {"@torch_optimizers": "pytorch-optimizer.create.v1", "name": "schedulefreeadamw"},
    "training__optimizer__averages": None,
    # It computes with the rate in float32.
    "training__optimizer__learn_rate": rates(8, rate=1e30),
}


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        pytest.param(
            SCHEDULE_FREE,
            marks=pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed"),
        ),
    ],
    ids=["AdamW", "schedule-free"],
)
def test_rollback_and_resume_are_exact(algorithm, corpus, tmp_path):
    """Stopped while updates go wrong, before there is a checkpoint after the way back, and after it."""
    changes = {"steps": 14, "training__optimizer__learn_rate": rates(8), **ROLLBACK, **algorithm}
    with pytest.warns(NonFiniteGradWarning), pytest.warns(RollbackWarning):
        whole = run_with_stops(config_for(tmp_path / "whole", corpus, **changes), tmp_path / "whole")
        broken = run_with_stops(config_for(tmp_path / "broken", corpus, **changes), tmp_path / "broken", 10, 11, 13)
    assert broken == whole
    assert rollbacks_of(tmp_path / "broken" / "state", 14) == [(10, 6)]


def test_rollback_takes_an_older_one_if_the_newest_did_not_help(corpus, tmp_path):
    """Step 8 makes params so large that the checkpoint after it is finite, and yet leads nowhere."""
    config = config_for(tmp_path, corpus, steps=12, training__optimizer__learn_rate=rates(8, rate=1e30), **ROLLBACK)
    config["training"]["optimizer"]["checkpoint"] |= {"every": 1, "keep": 2}
    config["training"]["eval_frequency"] = 50
    with pytest.warns(NonFiniteGradWarning), pytest.warns(RollbackWarning):
        run(config, tmp_path / "out")
    assert rollbacks_of(tmp_path / "state", 12) == [(10, 8), (12, 7)]
    # None was written while it went wrong, but at the end; that of step 8 is given up.
    assert [path.name for path in steps_of(tmp_path / "state")] == ["step-00000007", "step-00000012"]
    config["training"]["max_steps"] = 13
    assert "'default': 0.0025" in run(config, tmp_path / "out")[13]
    # At the oldest that there is, it stays.
    config = config_for(
        tmp_path / "second", corpus, steps=16, training__optimizer__learn_rate=rates(0, rate=1e30), **ROLLBACK
    )
    config["training"]["eval_frequency"] = 50
    with (
        pytest.warns(NonFiniteGradWarning),
        pytest.warns(RollbackWarning) as found,
        pytest.raises(RollbackError, match=r"Can't continue after step 8: .*max_rollbacks = 3 times already"),
    ):
        run(config, tmp_path / "out2")
    told = [str(warning.message) for warning in found if warning.category is RollbackWarning]
    seen = [re.findall(r"of step (\d+) after step (\d+)", text) for text in told]
    assert seen == [[("0", "2")], [("0", "4")], [("0", "6")]]


def test_rollback_needs_a_checkpoint(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_folder, "write_parts", Mock(side_effect=OSError("No space left on device")))
    config = config_for(tmp_path, corpus, training__optimizer__learn_rate=rates(4), **ROLLBACK)
    with (
        pytest.warns(NonFiniteGradWarning),
        pytest.warns(CheckpointWarning, match="No space left"),
        pytest.raises(
            RollbackError,
            match=r"Can't go back to a checkpoint, although the last 2 updates .*undamaged and has finite .*found none",
        ),
    ):
        run(config, tmp_path / "out")


def test_rollback_at_an_evaluation(corpus, tmp_path):
    """spaCy's table wants the losses then."""
    config = config_for(tmp_path, corpus, training__optimizer__learn_rate=rates(8), **ROLLBACK)
    config["training"]["optimizer"]["checkpoint"]["every"] = 0
    with pytest.warns(NonFiniteGradWarning), pytest.warns(RollbackWarning, match="params of step 5 after step 10"):
        infos = run(config, tmp_path / "out")
    assert len(infos) == 21 and "'rollbacks': 1" in infos[10] and "'rollbacks': 0" in infos[15]
    assert [path.name for path in steps_of(tmp_path / "state")] == ["step-00000015", "step-00000020"]


def test_rollback_passes_over_params_that_are_not_finite(corpus, tmp_path):
    config = config_for(
        tmp_path, corpus, steps=12, training__optimizer__learn_rate=rates(8), training__eval_frequency=50, **ROLLBACK
    )
    config["training"]["optimizer"]["checkpoint"] |= {"every": 1, "keep": 2}
    with pytest.warns(NonFiniteGradWarning), pytest.warns(RollbackWarning):
        run(config, tmp_path / "out")
    assert rollbacks_of(tmp_path / "state", 12) == [(10, 7)]


def test_rollback_loses_nothing_when_a_run_ends_in_trouble(corpus, tmp_path):
    """The last update was bad. The run is finished all the same; and if it is made longer, it goes on with the second
    bad one.
    """
    config = config_for(tmp_path, corpus, steps=9, training__optimizer__learn_rate=rates(8, rate=1e30), **ROLLBACK)
    with pytest.warns(NonFiniteGradWarning):
        run(config, tmp_path / "out")
    assert run(config, tmp_path / "out") == {}
    config["training"]["max_steps"] = 12
    with pytest.warns(RollbackWarning, match="params of step 6 after step 10"):
        assert sorted(run(config, tmp_path / "out")) == [10, 11, 12]


@pytest.mark.parametrize(
    "add", [lambda nlp: nlp.get_pipe("parser").add_label("NEW"), lambda nlp: add_labels(nlp, "tagger", ["NEW"])]
)
def test_rollback_does_not_go_back_past_new_labels(corpus, tmp_path, add):
    @registry.callbacks("test-rollback.AddLabel.v1")
    def add_label():
        def before_update(nlp, args):
            if args["step"] == 7:
                add(nlp)

        return before_update

    config = config_for(
        tmp_path, corpus, parser=True, training__optimizer__learn_rate=rates(8), training__eval_frequency=50, **ROLLBACK
    )
    config["training"]["before_update"] = {"@callbacks": "test-rollback.AddLabel.v1"}
    (tmp_path / "out").mkdir()
    with (
        pytest.warns(NonFiniteGradWarning),
        pytest.raises(RollbackError, match=r"Can't go back to the checkpoint of step 6, .*: the model has grown since"),
    ):
        train(config, tmp_path / "out")
