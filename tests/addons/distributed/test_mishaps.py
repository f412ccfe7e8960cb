"""Ranks that die, hang, or can't be reached."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confection import Config

from ...forks import Started, python
from ...runs import config_for, digests
from ...spacy_cli import toy_corpus
from .conftest import variables_of_ranks

CODE = Path(__file__).parent / "mishaps.py"
ENV = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def config_with(folder, name, at=(), how="SIGKILL", timeout=60, **changes):
    """Write a config for two ranks, with something that happens to them."""
    (folder / name).mkdir()
    config = config_for(folder / name, toy_corpus(folder), steps=14, **changes)
    config["training"]["optimizer"]["distributed"] = {
        "@misc": "thinc-torchopt.Distributed.v1",
        "timeout_seconds": timeout,
        "check_every": 1,
    }
    config["training"]["before_update"] = {
        "@callbacks": "test-distributed.Mishap.v1",
        "signal_name": how,
        "at": list(at),
        "markers": str(folder / name),
    }
    path = folder / name / "config.cfg"
    Config(config).to_disk(path)
    return ["train", path, "--output", folder / name / "out", "--code", CODE]


def by_hand(command, *, timeout, more=((), ()), all_end=False):
    """Two ranks without a launcher, which would end the one that is left.

    more: Further arguments of each. all_end: Wait for both, or else for rank 0. RETURNS: How they ended, and their
    output.
    """
    processes = [
        Started([*command, *own], variables=variables)
        for own, variables in zip(more, variables_of_ranks(), strict=True)
    ]
    try:
        waited = processes if all_end else processes[:1]
        outputs = [process.communicate(timeout=timeout)[0] for process in waited]
        return [(process.returncode, output) for process, output in zip(waited, outputs)]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("how", ["SIGSTOP", pytest.param("SIGKILL", marks=pytest.mark.slow)])
def test_mishaps_end_the_others(how, tmp_path):
    """A rank that hangs, or is killed, in step 4: the other one ends."""
    [(code, output)] = by_hand(config_with(tmp_path, "run", [4], how, timeout=4), timeout=120)
    assert code == 1
    assert "Can't compare what ranks found on rank 0: expected all 2 ranks to take part within 4 seconds" in output


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "group.close(ValueError()), time.sleep(99)"])
def test_mishaps_end_others_that_wait_patiently(how):
    """One rank is killed while another waits for it, as in an evaluation; or it fails, and its process lives on."""
    code = f"""if True:
        import os, signal, time
        from thinc_torchopt.addons.distributed.group import RankGroup
        from thinc_torchopt.core.errors import DistributedError
        from thinc_torchopt.distributed import Distributed
        group = RankGroup.open(Distributed(), on_gpu=False)
        assert group.gather(group.rank) == [0, 1] and group.broadcast(group.rank) == 0
        if group.rank == 1:
            {how}
        for collective in (group.barrier, lambda: group.gather(0), lambda: group.broadcast(0)):
            try:
                collective()
            except DistributedError as error:
                print(error, flush=True)
        os._exit(0)
    """
    processes = [Started(code, variables=variables) for variables in variables_of_ranks()]
    output = processes[0].communicate(timeout=60)[0]
    processes[1].kill()
    assert output.count("on rank 0: expected all 2 ranks to take part") >= 2, output


def test_mishaps_of_another_command(tmp_path):
    """One rank has another limit of steps: both say so, and end as failed. Paths may be others."""
    command = config_with(tmp_path, "run")
    more = (), ("--training.max_steps", 5, "--paths.state", tmp_path / "elsewhere")
    for code, output in by_hand(command, timeout=120, more=more, all_end=True):
        assert code == 1 and "Traceback" not in output, output
        [*_, fact, advice] = (
            line.partition("]: ")[2].strip() for line in output.splitlines()
        )  # after torch's "[rank0]: "
        assert fact == "training.max_steps: 14 on rank 0, 5 on rank 1" and advice.startswith("Run the same command")
    assert not list((tmp_path / "run" / "out").glob("*"))


def test_mishaps_without_hooks(tmp_path, monkeypatch):
    """Another package has replaced functions of spaCy's: each rank would train by itself, and write to one folder."""
    command = config_with(tmp_path, "run", training__max_steps=1)
    code = tmp_path / "patches.py"
    code.write_text(
        f"{CODE.read_text()}\n"
        "import spacy.training.loop as loop\n"
        "def replaced_by(original):\n"
        "    return lambda first, *others, **options: original(first, *others, **options)\n"
        "for name in ('train', 'train_while_improving'):\n"
        "    setattr(loop, name, replaced_by(getattr(loop, name)))\n"
    )
    command[command.index(CODE)] = code
    launched = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    run = python(command, check=False)
    assert run.returncode == 1 and not (tmp_path / "run" / "out").exists()
    assert "Error: Can't train in several processes" in run.stderr
    assert "not replaced by ours: train_while_improving, train." in run.stderr


@pytest.mark.slow
def test_mishaps_restart(tmp_path):
    """`kill -9` of ranks in mid-training: the launcher starts all of them again, and they end as if nothing had
    been."""
    run_torchopt(config_with(tmp_path, "unbroken"), "--nproc-per-node", 2)
    command = config_with(tmp_path, "killed", [4, 7, 11])
    run_torchopt(command, "--nproc-per-node", 2, "--max-restarts", 3)
    assert len(list((tmp_path / "killed").glob("mishap-*"))) == 3
    assert digests(tmp_path / "killed" / "out") == digests(tmp_path / "unbroken" / "out")


@pytest.mark.slow
def test_mishaps_interrupt(tmp_path):
    """Ctrl-C at the launcher: all ranks stop after their step, with a checkpoint."""
    command = config_with(tmp_path, "run", training__max_steps=5_000)
    launcher = subprocess.Popen(
        [sys.executable, "-m", "spacy", "torchopt", *map(str, command), "--nproc-per-node", "2"],
        env=ENV | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        for line in launcher.stdout:
            if line.strip().startswith("1 "):
                break
        os.killpg(launcher.pid, signal.SIGINT)
        output, _ = launcher.communicate(timeout=60)
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
    assert launcher.returncode == 128 + signal.SIGINT and "the state is saved in" in output
    assert list((tmp_path / "run" / "state").glob("step-*"))


@pytest.mark.slow
def test_mishaps_say_why_last(tmp_path):
    """A component of rank 1 raises something: the last lines are its reason, and what to do."""
    command = config_with(tmp_path, "run", [4], "raise")
    run = run_torchopt(command, "--nproc-per-node", 2, check=False)
    last = " ".join("".join(run.stderr.splitlines(keepends=True)[-3:]).split())
    reason = "Rank 1 was the first to fail: it failed: ValueError: the widget has no handle"
    assert run.returncode == 1 and reason in last and last.endswith("if there is one.")
    assert run.stderr.count("Traceback") == 1


def run_torchopt(command, *options, check=True):
    run = subprocess.run(
        [sys.executable, "-m", "spacy", "torchopt", *map(str, [*command, *options])],
        capture_output=True,
        text=True,
        env=ENV,
        timeout=300,
    )
    assert run.returncode == 0 or not check, run.stdout + run.stderr
    return run
