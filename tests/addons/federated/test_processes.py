"""The example, with Flower's processes: a superlink, three supernodes, and `flwr run`. Each takes a minute or two."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import spacy

from thinc_torchopt.core.compat import has_flwr

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "federated" / "run.py"
CLIENTS = {"north", "east", "south"}

# Not skipped as a whole: without slow tests it would count as never run.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_flwr, reason="flwr is not installed: make test-federated")]


@pytest.fixture
def example(tmp_path):
    """Runs the example on few texts: what it printed, what the server has written, and where. No process is left."""

    def run(*args):
        env = {**os.environ, "NO_COLOR": "1"}
        # Tests run with two workers on two cores: processes take a while.
        done = subprocess.run(command(tmp_path, *args), capture_output=True, text=True, timeout=900, env=env)
        print(done.stdout)
        logs = "".join(f"\n== {log}\n{log.read_text()[-3000:]}" for log in sorted(tmp_path.glob("*/logs/*.log")))
        assert done.returncode == 0, done.stdout + done.stderr + logs
        method = next(arg for arg in args if not arg.startswith("-"))
        return done.stdout, read_result(tmp_path / method), tmp_path / method

    yield run
    assert left_by(tmp_path) == []


def command(folder, *args):
    return list(map(str, [sys.executable, EXAMPLE, "--output", folder, "--texts", 60, "--methods", *args]))


def read_result(folder):
    return json.loads((folder / "result.json").read_text())


def left_by(folder):
    """Processes of a run. The superlink knows the folder by its environment only."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,args="], capture_output=True, text=True, check=True).stdout
    found = []
    for line in table.splitlines():
        environment = ""
        with suppress(OSError):  # it is gone, or there is no /proc
            environment = Path(f"/proc/{line.split()[0]}/environ").read_text(errors="replace")
        if (str(folder) in line or f"FLWR_HOME={folder}" in environment) and "pytest" not in line:
            found.append(line)
    return found


def test_processes_go_on_when_a_client_is_killed(example):
    """With -9, in round 2. The round waits for it until its timeout; the third one does without."""
    args = ("--rounds", "3", "--local-steps", "15", "--timeout", "120", "--kill", "south=2")
    printed, result, folder = example("scaffold", *args)
    assert result["ended"] == "finished" and "Killed 'south' in round 2" in printed
    assert [set(row["clients"]) for row in result["rounds"][1:]] == [CLIENTS, CLIENTS - {"south"}, CLIENTS - {"south"}]
    assert "south" in result["rounds"][2]["failed"]
    assert result["rounds"][3]["score"] > result["rounds"][0]["score"]
    assert "Client 'south' is left out of this round" in (folder / "logs" / "run.log").read_text()


def test_processes_go_on_when_the_server_is_killed(example):
    """With -9, in round 2, with its link. It is started again, the clients come back, and all rounds are there: scores,
    a model, and corrections of all three.
    """
    args = ("--rounds", "3", "--local-steps", "15", "--timeout", "120", "--kill", "server=2")
    printed, result, folder = example("scaffold", *args)
    assert result["ended"] == "finished" and "Killed 'server' in round 2" in printed
    assert [set(row["clients"]) for row in result["rounds"]] == [set(), CLIENTS, CLIENTS, CLIENTS]
    scores = [row["score"] for row in result["rounds"]]
    assert scores[3] > max(0.2, scores[0]) and f"{scores[3]:.1%}" in printed
    assert spacy.load(folder / "model-last").pipe_names == ["ner"]
    log = (folder / "logs" / "run.log").read_text()
    assert "The run goes on after round 1" in log and "Auxiliary variables: scaffold" in log


def test_processes_are_gone_when_the_example_is_ended(example, tmp_path):
    """By SIGTERM, in the first round. `example` sees that none of them is left. The result does not say so."""
    with subprocess.Popen(command(tmp_path, "fedavg", "--timeout", 120), stdout=subprocess.DEVNULL) as process:
        end = time.monotonic() + 600
        log = tmp_path / "fedavg" / "logs" / "north.log"
        while not (log.is_file() and "begins round 1:" in log.read_text(errors="replace")):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM
    assert read_result(tmp_path / "fedavg")["ended"] is None


def test_processes_talk_over_tls_and_know_each_other(example):
    """As over a network: with a certificate for the server, and only clients whose keys are registered."""
    _, result, folder = example("fedavg", "--rounds", "1", "--local-steps", "5", "--timeout", "120", "--tls")
    assert result["ended"] == "finished" and set(result["rounds"][1]["clients"]) == CLIENTS
    log = (folder / "logs" / "superlink.log").read_text()
    assert "insecure" not in log and "SuperNode authentication is disabled" not in log
