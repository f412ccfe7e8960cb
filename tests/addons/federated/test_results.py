"""The output of a server: real processes."""

import json
import signal

import pytest

from thinc_torchopt.addons.federated.results import Results
from thinc_torchopt.core.errors import StateError

from ...forks import Started

RUN = """
import sys
from pathlib import Path
from thinc_torchopt.addons.federated.results import Results
results = Results(Path(sys.argv[1]))
results.begin_round()
print("begun", flush=True)
sys.stdin.readline()
results.finish()
"""


def begin(folder):
    """A server that has begun a run, and ends when it is told to."""
    process = Started(RUN, folder, stdin=True)
    assert process.readline() == "begun\n"
    return process


def read(folder):
    return json.loads((folder / "result.json").read_text())


def test_results_tell_whether_a_run_has_ended(tmp_path):
    with begin(tmp_path) as process:
        assert read(tmp_path)["ended"] is None
        process.communicate(b"\n")
    found = read(tmp_path)
    assert found["ended"] == "finished" and [row["round"] for row in found["rounds"]] == [0, 1]


def test_results_do_not_say_that_a_server_has_ended_that_was_killed(tmp_path):
    """With -9. The next one gets the folder."""
    with begin(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert read(tmp_path)["ended"] is None
    Results(tmp_path).finish()


def test_results_say_why_a_run_failed(tmp_path):
    results = Results(tmp_path)
    results.fail(ValueError("too few"))
    assert (read(tmp_path)["ended"], read(tmp_path)["error"]) == ("failed", "ValueError: too few")


def test_results_are_those_of_one_run(tmp_path):
    """A second server is refused, and the first one goes on."""
    with begin(tmp_path) as process:
        with pytest.raises(StateError, match=rf"for results: another run uses it: process {process.pid} on .*'output'"):
            Results(tmp_path)
        process.communicate(b"\n")
    assert read(tmp_path)["ended"] == "finished"
