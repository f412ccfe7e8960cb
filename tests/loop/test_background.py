"""Checkpoints that are written beside the training. The oracle: the same run, which waits for its disk.

The disk is so slow here that several steps fit into the time of writing.
"""

import os
import queue
import signal
import threading
import time
from unittest.mock import Mock

import pytest

from thinc_torchopt import Checkpoints
from thinc_torchopt.core.errors import CheckpointWarning, NonFiniteGradWarning, RollbackWarning
from thinc_torchopt.core.state.files import read_folder
from thinc_torchopt.core.state.trees import flatten
from thinc_torchopt.loop import checkpoint, checkpoint_folder
from thinc_torchopt.loop.checkpoint_folder import name_of, newest_whole, steps_of

from ..addons.own_loops.test_checkpoints import pipeline
from ..runs import config_for, digests, run
from .test_rollback import ROLLBACK, rates


@pytest.fixture
def slow_disk(monkeypatch):
    """RETURNS (list[str]): The names of the folders that are being written, at each moment."""
    write, now = checkpoint_folder.write_parts, []

    def slow(path, values, tensors):
        now.append(path.name)
        time.sleep(0.08)
        write(path, values, tensors)
        now.remove(path.name)

    monkeypatch.setattr(checkpoint_folder, "write_parts", slow)
    return now


def learned(folder):
    """What a checkpoint holds."""
    tree = read_folder(folder)
    values, tensors = flatten({name: tree[name] for name in ("model", "optimizer", "listeners", "data", "own")})
    return values, {name: tensor.tolist() for name, tensor in tensors.items()}


def in_turn(folder, corpus, **changes):
    """The config of a run that waits for its disk."""
    return config_for(folder, corpus, training__optimizer__checkpoint__in_background=False, **changes)


def test_background_saves_the_step_that_was_and_not_the_next(corpus, tmp_path, monkeypatch):
    """The training goes on meanwhile, in place, in the same tensors."""
    settings = {"steps": 8, "training__eval_frequency": 50}
    settings |= {f"training__optimizer__checkpoint__{name}": value for name, value in {"every": 2, "keep": 20}.items()}
    run(in_turn(tmp_path / "b", corpus, **settings), tmp_path / "b")
    begun, may_write = queue.Queue(), threading.Semaphore(0)
    write = checkpoint_folder.write_parts

    def wait_for_a_step(path, *parts):
        begun.put(path.name)
        assert may_write.acquire(timeout=60)
        write(path, *parts)

    def act(step):
        """Before each step: a checkpoint is written from the begin of step 3, for example, to its end."""
        if step % 2:
            assert begun.get(timeout=60) == name_of(step - 1)
        if (step % 2 == 0 and step) or step == 7:
            may_write.release()

    monkeypatch.setattr(checkpoint_folder, "write_parts", wait_for_a_step)
    run(config_for(tmp_path / "a", corpus, **settings), tmp_path / "a", act=act)
    assert [path.name for path in steps_of(tmp_path / "a" / "state")] == [name_of(step) for step in range(0, 9, 2)]
    for path in steps_of(tmp_path / "b" / "state"):
        assert learned(tmp_path / "a" / "state" / path.name) == learned(path)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_background_writes_what_it_has_begun(corpus, tmp_path, slow_disk):
    """An error ends the training while a checkpoint is being written. Then no thread is left; nor at the end."""
    config = config_for(tmp_path / "a", corpus, steps=8)
    for crash_at in (4, None):
        run(config, tmp_path / "a", crash_at=crash_at)
        assert newest_whole(tmp_path / "a" / "state").progress.step == (crash_at or 9) - 1 and not slow_disk
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]
    run(in_turn(tmp_path / "b", corpus, steps=8), tmp_path / "b")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_background_tells_of_a_full_disk_while_the_training_goes_on(corpus, tmp_path, monkeypatch, slow_disk):
    """After the next steps, and not at the end; and the one that was not written is not taken for the newest."""
    write, told, steps = checkpoint_folder.write_parts, [], []

    def full_at_9(path, *parts):
        if path.name == name_of(9):
            raise OSError("No space left on device")
        write(path, *parts)

    monkeypatch.setattr(checkpoint_folder, "write_parts", full_at_9)
    warn = checkpoint_folder.CheckpointWriter.warn

    def note(writer, error):
        told.append((steps[-1], writer.newest))
        warn(writer, error)

    monkeypatch.setattr(checkpoint_folder.CheckpointWriter, "warn", note)
    config = config_for(tmp_path, corpus, steps=12, training__optimizer__checkpoint__keep=20)
    with pytest.warns(CheckpointWarning, match="No space left on device.*Training continues"):
        run(config, tmp_path / "out", act=steps.append)
    [(step, newest)] = told
    assert step == 10 and newest == 6
    assert {path.name for path in steps_of(tmp_path / "state")} == {name_of(step) for step in (0, 3, 5, 6, 10, 12)}


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_background_rolls_back_to_what_is_being_written(corpus, tmp_path, slow_disk):
    """The rate of step 6 ruins the params, after the checkpoint of step 5 was begun. 7 and 8 go wrong."""
    ends = {}
    for name, make in (("a", config_for), ("b", in_turn)):
        changes = {**ROLLBACK, "training__optimizer__learn_rate": rates(6), "training__eval_frequency": 50}
        config = make(tmp_path / name, corpus, steps=12, **changes)
        config["training"]["optimizer"]["checkpoint"]["every"] = 5
        with pytest.warns(NonFiniteGradWarning), pytest.warns(RollbackWarning, match="params of step 5 after step 8"):
            ends[name] = run(config, tmp_path / name)
    assert ends["a"] == ends["b"] and digests(tmp_path / "a") == digests(tmp_path / "b")


def test_background_of_an_abandoned_run_is_done_before_the_next_begins(tmp_path, monkeypatch):
    """As in a notebook, where a cell without `with` was interrupted and runs again."""
    write, begun, may_write = checkpoint_folder.write_parts, threading.Event(), threading.Event()

    def wait_for_the_next(path, *parts):
        begun.set()
        may_write.wait(timeout=60)
        write(path, *parts)

    nlp, optimizer = pipeline()[:2]
    monkeypatch.setattr(checkpoint_folder, "write_parts", wait_for_the_next)
    first = Checkpoints(tmp_path, nlp, optimizer)
    next(first.resume([1, 2, 3]))
    first.save()
    assert begun.wait(timeout=60)
    clear = checkpoint.clear_leftovers
    wait = checkpoint_folder.futures.wait
    monkeypatch.setattr(checkpoint_folder.futures, "wait", lambda them: [may_write.set(), wait(them)])
    monkeypatch.setattr(checkpoint, "clear_leftovers", lambda folder: [clear(folder), may_write.set()])
    with Checkpoints(tmp_path, nlp, optimizer) as second:
        assert next(second.resume([1, 2, 3]))[0] == 1
    first.close()


def test_background_does_not_claim_a_saved_state_when_the_disk_is_full(corpus, tmp_path, monkeypatch):
    def stop(step):
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(checkpoint_folder, "write_parts", Mock(side_effect=OSError("No space left on device")))
    told = []
    monkeypatch.setattr(checkpoint.LOGGER, "warning", lambda text, *parts: told.append(text % parts))
    with pytest.warns(CheckpointWarning, match="No space left"), pytest.raises(SystemExit):
        run(config_for(tmp_path, corpus), tmp_path / "out", act=stop)
    assert "could not be saved" in told[-1]


def test_background_hides_no_other_error(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_folder, "write_parts", Mock(side_effect=ValueError("a fault")))
    with pytest.raises(ValueError, match="a fault"):
        run(config_for(tmp_path, corpus), tmp_path / "out")
