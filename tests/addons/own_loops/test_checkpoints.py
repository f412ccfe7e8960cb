"""Training without a config: loops of the user's own, and their checkpoints. What was stopped and went on ends as what
was not.
"""

import json
import random

import numpy
import pytest
import torch
from spacy.util import minibatch
from thinc.api import fix_random_seed

from thinc_torchopt import Checkpoints, TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.errors import CheckpointWarning, ConfigError, ConfigWarning, StateError
from thinc_torchopt.core.schedules.curves import warmup_linear
from thinc_torchopt.core.state.files import read_folder, write_folder
from thinc_torchopt.loop.checkpoint_folder import steps_of
from thinc_torchopt.loop.checkpoint_settings import Checkpoint

from ...core.state.test_files import damage
from ...forks import python
from ...models import (
    backprop,
    finish_step,
    grads_of,
    mixed_model,
    pipeline_params,
    ready_pipeline,
    same,
)
from ...spacy_cli import spacy_cli


class Stop(Exception):
    """The loop is stopped in the middle of a step."""


def pipeline(components=("tagger", "ner")):
    fix_random_seed(1)
    optimizer = TorchOptimizer(
        AdamW(weight_decay=0.01),
        warmup_linear(0.01, 4, 40),
        averages=EMA(decay=0.9),
        param_groups={"embeddings": {"params": ["tok2vec/embed/*"], "unfreeze_at": 5}},
    )
    nlp, examples = ready_pipeline(components, sgd=optimizer)
    return nlp, optimizer, examples


def batches_of(examples, epochs=4):
    for _ in range(epochs):
        yield from minibatch(random.sample(examples, len(examples)), size=4)


def train(folder, parts, *, stop_at=None, epochs=4, joint=False, every=3, **settings):
    """A run of 12 steps. parts (tuple): Pipeline, optimizer and examples. RETURNS: all that there is at its end, and
    the steps made.
    """
    nlp, optimizer, examples = parts
    made = []
    with Checkpoints(folder, nlp, optimizer, **settings) as checkpoints:
        checkpoints.extra = {"losses": {}, "drawn": []}
        for step, batch in checkpoints.resume(batches_of(examples, epochs)):
            nlp.update(batch, drop=0.2, losses=checkpoints.extra["losses"], sgd=False if joint else optimizer)
            if step == stop_at:
                raise Stop
            if joint:
                finish_step(nlp, optimizer)
            optimizer.step_schedules()
            checkpoints.extra["drawn"].append((random.random(), numpy.random.rand(), float(torch.rand(1))))
            made.append(step)
            if step % every == 0:
                checkpoints.save()
        checkpoints.save()
    return flat(nlp, optimizer), checkpoints.extra, optimizer.learn_rates, made


def flat(nlp, optimizer):
    """All params, averages and moments."""
    weights = [tensor for tensors in pipeline_params(nlp).values() for tensor in tensors]
    with nlp.use_params(optimizer.averages):
        weights += [tensor for tensors in pipeline_params(nlp).values() for tensor in tensors]
    state = optimizer.state_dict()["params"]
    return weights + [
        value.clone()
        for name in sorted(state)
        for _, value in sorted(state[name]["state"].items())
        if isinstance(value, torch.Tensor)
    ]


@pytest.mark.parametrize("joint", [False, True], ids=["nlp.update", "joint_step"])
def test_python_loop_goes_on_in_the_same_process(joint, tmp_path):
    """With a pipeline of its own, and with the very one that was stopped in mid-step, which has gradients by then."""
    whole = train(tmp_path / "whole", pipeline(), joint=joint)
    assert whole[-1] == list(range(12)) and whole[1]["losses"]["ner"] > 0 and len(whole[0]) > 50
    for stop_at in (2, 8):
        with pytest.raises(Stop):
            train(tmp_path / "parts", pipeline(), joint=joint, stop_at=stop_at)
    found = train(tmp_path / "parts", pipeline(), joint=joint)
    assert found[-1] == [7, 8, 9, 10, 11]
    assert same(found[0], whole[0]) and found[1:3] == whole[1:3]

    nlp, _, examples = parts = pipeline()
    with pytest.raises(Stop):
        train(tmp_path / "once more", parts, joint=joint, stop_at=8)
    anew = pipeline()[1]
    found = train(tmp_path / "once more", (nlp, anew, examples), joint=joint)
    assert same(found[0], whole[0]) and found[1:3] == whole[1:3]


def test_python_loop_goes_on_in_another_process(tmp_path):
    """Ended in mid-step, without another word."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tests.addons.own_loops.test_checkpoints import Stop, pipeline, train\n"
        "try:\n"
        "    train(Path(sys.argv[1]), pipeline(), stop_at=int(sys.argv[2]))\n"
        "except Stop:\n"
        "    os._exit(9)\n"
    )
    run = python(code, tmp_path / "parts", 8, check=False)
    assert run.returncode == 9, run.stderr
    assert [path.name for path in steps_of(tmp_path / "parts")] == ["step-00000003", "step-00000006"]
    whole, found = train(tmp_path / "whole", pipeline()), train(tmp_path / "parts", pipeline())
    assert found[-1] == [7, 8, 9, 10, 11]
    assert same(found[0], whole[0]) and found[1:3] == whole[1:3]


def test_python_loop_that_was_finished_has_nothing_to_do(tmp_path):
    before = train(tmp_path / "state", pipeline())
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "state").rglob("*")}
    again = train(tmp_path / "state", pipeline())
    assert again[-1] == [] and same(again[0], before[0])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "state").rglob("*")} == files
    assert train(tmp_path / "state", pipeline(), epochs=5)[-1] == [12, 13, 14]


def test_python_loop_starts_anew_when_told_so(tmp_path):
    whole = train(tmp_path / "state", pipeline())
    anew = train(tmp_path / "state", pipeline(), resume="never", every=5)
    assert anew[-1] == list(range(12)) and same(anew[0], whole[0])
    assert [path.name for path in steps_of(tmp_path / "state")] == ["step-00000010", "step-00000011"]
    with pytest.raises(StateError, match="expected an undamaged checkpoint, found none"):
        train(tmp_path / "nothing", pipeline(), resume="must")


def test_python_loop_takes_batches_of_any_kind(tmp_path):
    """Where the data stands is the user's own affair here."""
    made = []
    for end in (5, 8):
        nlp, optimizer, examples = pipeline()
        with Checkpoints(tmp_path / "state", nlp, optimizer, keep=1) as checkpoints:
            for step, number in checkpoints.resume(range(end)):
                nlp.update(examples[number : number + 4], sgd=optimizer)
                made.append((step, number, checkpoints.step))
                checkpoints.extra["place"] = {"file": "b.jsonl", "lines": numpy.arange(step)}
                checkpoints.save()
            assert checkpoints.extra["place"]["lines"].tolist() == list(range(end - 1))
    assert made == [(i, i, i) for i in range(8)]
    assert len(steps_of(tmp_path / "state")) == 1


def test_python_loop_says_what_is_wrong(tmp_path):
    nlp, optimizer, examples = parts = pipeline()
    for arguments, settings, message in (
        (("", nlp, optimizer), {}, "Can't set 'path' .*: expected a folder"),
        ((tmp_path, nlp, optimizer), {"keep": 0}, "Can't set 'keep'"),
        ((tmp_path, nlp, optimizer), {"resume": True}, "Can't set 'resume'"),
        ((tmp_path, nlp, optimizer), {"progress_bar": "yes"}, "Can't set 'progress_bar'"),
        (
            (tmp_path, nlp.get_pipe("ner"), optimizer),
            {},
            "Can't set 'nlp' in thinc_torchopt.Checkpoints: expected a spaCy pipeline",
        ),
        ((tmp_path, nlp, None), {}, "Can't set 'optimizer'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Checkpoints(*arguments, **settings)
    checkpoints = Checkpoints(tmp_path / "state", nlp, optimizer)
    with pytest.raises(StateError, match="Iterate over"):
        checkpoints.save()
    assert list(checkpoints.resume([])) == [] and checkpoints.step == -1
    checkpoints.save()  # nothing was done
    assert steps_of(tmp_path / "state") == []
    next(steps := checkpoints.resume([examples]))
    checkpoints.extra["function"] = print
    with pytest.raises(StateError, match="function"):
        checkpoints.save()
    del checkpoints.extra["function"], steps
    checkpoints.save()
    checkpoints.close()
    with pytest.raises(StateError, match="no run has begun"):
        checkpoints.save()

    # Other data, another pipeline, a schedule that is further.
    fresh = pipeline()
    with pytest.raises(StateError, match=r"used up or shuffled in place .*start again: resume=\"never\""):
        Checkpoints(tmp_path / "state", *fresh[:2]).resume([examples[:3]])
    other = pipeline(["tagger"])
    with pytest.raises(StateError, match=r"(?s)the config has changed.*the saved state does not fit the pipeline"):
        Checkpoints(tmp_path / "state", *other[:2]).resume([examples])
    for _ in range(3):
        optimizer.step_schedules()
    with pytest.raises(StateError, match="build a new optimizer"):
        Checkpoints(tmp_path / "state", *parts[:2]).resume([examples])


def test_python_loop_says_what_does_not_work_before_it_begins(tmp_path):
    nlp, _ = ready_pipeline(["tagger"])
    settings = {"rollback_after": 3, "checkpoint": Checkpoint(str(tmp_path / "state"))}
    with pytest.warns(ConfigWarning, match="'rollback_after' of the optimizer has no effect"):
        Checkpoints(tmp_path, nlp, TorchOptimizer(AdamW(), **settings))
    # An optimizer that was not told its pipeline is told.
    optimizer = TorchOptimizer(AdamW(), param_groups={"other": {"params": ["parser/*"]}})
    with pytest.raises(ConfigError, match="matches none of"):
        Checkpoints(tmp_path / "state", nlp, optimizer).resume([])


def test_python_loop_takes_the_older_one_when_the_newest_is_damaged(tmp_path):
    whole = train(tmp_path / "state", pipeline())
    damage(steps_of(tmp_path / "state")[-1], random.Random(0))
    shown = json.loads(spacy_cli("torchopt", "checkpoint", tmp_path / "state", "--json").stdout)
    assert [(entry["name"], entry["whole"]) for entry in shown] == [("step-00000009", True), ("step-00000011", False)]
    assert shown[0]["step"] == 9 and shown[0]["params"] > 1000
    with pytest.warns(CheckpointWarning, match="The next one is used"):
        found = train(tmp_path / "state", pipeline())
    assert found[-1] == [10, 11] and same(found[0], whole[0])


def test_python_loop_leaves_the_folder_to_the_last_run_of_a_notebook(tmp_path):
    """A cell that was interrupted is run again: its first run still holds the folder."""
    nlp, optimizer, examples = pipeline()
    given_up = Checkpoints(tmp_path / "state", nlp, optimizer)
    next(steps := given_up.resume([examples] * 3))
    given_up.save()
    nlp, optimizer, examples = pipeline()
    checkpoints = Checkpoints(tmp_path / "state", nlp, optimizer)
    assert [step for step, _ in checkpoints.resume([examples] * 3)] == [1, 2]
    next(steps)
    with pytest.raises(StateError, match="another run uses this folder now"):
        given_up.save()
    # The same object begins again where its folder stands.
    checkpoints.save()
    assert [step for step, _ in checkpoints.resume([examples] * 5)] == [3, 4]
    checkpoints.close()
    assert not (tmp_path / "state" / "lock.json").exists()


def test_python_loop_keeps_gradients_that_wait(tmp_path):
    """thinc's and torch's, by name; those that a broken step left behind go."""

    def mixed():
        nlp, _ = ready_pipeline(["tagger"], shared=False)
        nlp.get_pipe("tagger").model = model = mixed_model()
        return nlp, model

    nlp, model = mixed()
    rng = numpy.random.default_rng(0)
    with Checkpoints(tmp_path / "state", nlp, TorchOptimizer(AdamW())) as checkpoints:
        next(steps := checkpoints.resume(range(3)))
        backprop(model, rng)
        checkpoints.save()
        waiting = grads_of(model)
        backprop(model, rng)
        assert len(waiting) > 4 and not same(grads_of(model), waiting)
        del steps
    for pair in (nlp, model), mixed():
        with Checkpoints(tmp_path / "state", pair[0], TorchOptimizer(AdamW())) as checkpoints:
            checkpoints.resume(range(3))
            assert same(grads_of(pair[1]), waiting)
    tree = read_folder(path := steps_of(tmp_path / "state")[0])
    tree["optimizer"]["grads"] = {name: torch.zeros(7, 7) for name in tree["optimizer"]["grads"]}
    write_folder(path, tree)
    with pytest.raises(StateError, match="Can't load the state of the optimizer: expected 'grads/"):
        Checkpoints(tmp_path / "state", nlp, TorchOptimizer(AdamW())).resume(range(3))
