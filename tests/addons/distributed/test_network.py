"""Two "machines" that are network namespaces, with a cable between them that can be cut."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from ...runs import digests
from .test_mishaps import ENV, config_with

ADDRESSES = "10.213.77.1", "10.213.77.2"


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


@pytest.fixture
def machines():
    """The names of two namespaces, with an interface each."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("only root can make network namespaces, with the program ip")
    names = [f"torchopt-{os.getpid()}-{i}" for i in range(2)]
    if (made := ip("netns", "add", names[0])).returncode:
        pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
    try:
        ip("netns", "add", names[1])
        cable = f"link add cable0 netns {names[0]} type veth peer name cable1 netns {names[1]}".split()
        if (made := ip(*cable)).returncode:
            pytest.skip(f"no virtual cables here: {made.stderr.strip()}")
        for i, name in enumerate(names):
            ip("-n", name, "addr", "add", f"{ADDRESSES[i]}/24", "dev", f"cable{i}")
            for device in ("lo", f"cable{i}"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            ip("netns", "delete", name)


def start(machines, command):
    """The same command on both machines."""
    several = ["--nnodes", "2", "--rdzv-endpoint", f"{ADDRESSES[0]}:29500", "--nproc-per-node", "1"]
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-m", "spacy", "torchopt"]
            + [str(word) for word in (*command, *several, "--node-rank", i)],
            env=ENV | {"PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i, name in enumerate(machines)
    ]


def end(launchers, timeout):
    try:
        return [launcher.communicate(timeout=timeout)[0] for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.terminate()


@pytest.mark.slow
def test_network_cut_and_resumed(machines, tmp_path):
    """The cable is cut in mid-training: both sides end, and say why. The same commands end as the unbroken run."""
    unbroken = start(machines, config_with(tmp_path, "unbroken", timeout=5))
    outputs = end(unbroken, 120)
    assert [launcher.returncode for launcher in unbroken] == [0, 0], outputs
    command = config_with(tmp_path, "cut", [7], "SIGSTOP", timeout=5)
    launchers = start(machines, command)
    marker = tmp_path / "cut" / "mishap-7"
    try:
        # Rank 1 halts in step 7, and the cable is cut; then it goes on.
        for _ in range(1200):
            if marker.exists():
                break
            time.sleep(0.1)
        ip("-n", machines[0], "link", "set", "cable0", "down")
        cut = time.monotonic()
        subprocess.run(["ip", "netns", "pids", machines[1]], check=True)
        for pid in subprocess.run(["ip", "netns", "pids", machines[1]], capture_output=True, text=True).stdout.split():
            subprocess.run(["kill", "-CONT", pid])
        outputs = end(launchers, 60)
    finally:
        for launcher in launchers:
            launcher.kill()
    assert all(launcher.returncode != 0 for launcher in launchers)
    assert time.monotonic() - cut < 45
    assert all("expected all 2 ranks to take part within 5 seconds" in output for output in outputs)
    ip("-n", machines[0], "link", "set", "cable0", "up")
    resumed = start(machines, command)
    outputs = end(resumed, 120)
    assert [launcher.returncode for launcher in resumed] == [0, 0], outputs
    assert "Resuming after step 6" in outputs[0]
    assert digests(tmp_path / "cut" / "out") == digests(tmp_path / "unbroken" / "out")
