"""Who has a folder of checkpoints: real processes."""

import json
import os
import signal
from pathlib import Path

import pytest

from thinc_torchopt.core.errors import ConfigError, StateError
from thinc_torchopt.loop.run_lock import RunLock

from ..forks import Started, python

HOLD = """
import sys, time
from pathlib import Path
from thinc_torchopt.loop.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.acquire()
print("taken", flush=True)
sys.stdin.readline()
lock.release()
"""


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def hold(folder, code=HOLD):
    process = Started(code, folder, stdin=True)
    assert process.readline() == "taken\n"
    return process


def test_run_lock_is_for_one_process(tmp_path):
    lock = RunLock(tmp_path / "state")
    with hold(tmp_path / "state") as process:
        with pytest.raises(StateError, match=rf"another run uses it: process {process.pid} on .*, since 20") as caught:
            lock.acquire()
        assert "'path' in [training.optimizer.checkpoint]" in str(caught.value)
        process.communicate(b"\n")
    files = os.listdir("/proc/self/fd")
    lock.acquire()
    lock.release()
    assert os.listdir(tmp_path) == []  # nothing was written
    assert os.listdir("/proc/self/fd") == files


def test_run_lock_of_a_killed_process_does_not_block(tmp_path):
    with hold(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        (tmp_path / "lock.json").write_text((tmp_path / "lock.json").read_text() + " " * 200 + "x")
        lock = RunLock(tmp_path)
        lock.acquire()
        assert json.loads((tmp_path / "lock.json").read_text())["process"] == os.getpid()
        lock.check()
        lock.release()


def test_run_lock_is_not_inherited_by_processes_of_a_killed_run(tmp_path):
    """Such as those that load data: they may live longer."""
    forking = HOLD.replace("print(", "import os\nif os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)\nprint(")
    with hold(tmp_path, forking) as process:
        children = children_of(process.pid)
        process.kill()
        process.wait()
        try:
            lock = RunLock(tmp_path)
            lock.acquire()
            lock.release()
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
    assert len(children) == 1


def test_run_lock_goes_to_the_last_run_of_a_process(tmp_path):
    """As in a notebook, where the run before was given up. It must not write again, nor let go of what is another's."""
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.acquire()
    first.check()
    second.acquire()
    with pytest.raises(StateError, match=r"Can't write checkpoints to .* another run uses this folder now: process"):
        first.check()
    first.release()
    del first
    second.check()
    code = (
        "import sys; from pathlib import Path; from thinc_torchopt.loop.run_lock import RunLock; "
        "RunLock(Path(sys.argv[1])).acquire()"
    )
    other = python(code, tmp_path, check=False)
    assert other.returncode and "another run uses" in other.stderr
    second.release()
    assert os.listdir(tmp_path) == []


def test_run_lock_is_taken_again_if_the_folder_was_removed(tmp_path):
    lock = RunLock(tmp_path / "state")
    lock.acquire()
    (tmp_path / "state" / "lock.json").unlink()
    (tmp_path / "state").rmdir()
    lock.check()
    assert (tmp_path / "state" / "lock.json").exists()
    lock.release()


@pytest.mark.parametrize("path", ["file/state", "/proc/state", "x" * 300])
def test_run_lock_refuses_a_folder_that_can_not_be_written(path, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match=r"Can't save checkpoints in .*: expected a folder that can be written to, found '[A-Z]"
    ):
        RunLock(tmp_path / path).acquire()


def test_run_lock_does_not_follow_links(tmp_path):
    """Somebody else's file would be overwritten, or made. The folder itself may be a link."""
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to("state")
    for name in ("thesis.txt", "nothing.txt"):
        (tmp_path / "thesis.txt").write_text("years of work")
        (tmp_path / "state" / "lock.json").symlink_to(tmp_path / name)
        for folder in ("state", "link"):
            with pytest.raises(
                ConfigError, match=r"Can't lock '.*lock.json': expected a file .*, found a link to .*txt"
            ):
                RunLock(tmp_path / folder).acquire()
        (tmp_path / "state" / "lock.json").unlink()
    assert (tmp_path / "thesis.txt").read_text() == "years of work" and not (tmp_path / "nothing.txt").exists()
    lock = RunLock(tmp_path / "link")
    lock.acquire()
    (tmp_path / "state" / "lock.json").unlink()
    (tmp_path / "state" / "lock.json").symlink_to(tmp_path / "thesis.txt")
    with pytest.raises(ConfigError, match="Can't lock"):
        lock.check()
    lock.release()
    assert (tmp_path / "thesis.txt").read_text() == "years of work" and (tmp_path / "state" / "lock.json").is_symlink()


def test_run_lock_lets_a_full_disk_pass(small_disk):
    (small_disk / "full").write_bytes(b"")
    with (small_disk / "full").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(b"0" * 4096)
    lock = RunLock(small_disk / "state")
    lock.acquire()
    (small_disk / "full").unlink()
    lock.check()
    assert json.loads((small_disk / "state" / "lock.json").read_text())["process"] == os.getpid()
    lock.release()
