"""What is read of a run's results, while it runs and after it ended, however it ended: real processes."""

import json
import signal

import pytest

from thinc_torchopt.addons.federated.results import Results, read_result
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
results.finish({})
"""


def begin(folder):
    """A server that has begun a run, and ends when it is told to."""
    process = Started(RUN, folder, stdin=True)
    assert process.readline() == "begun\n"
    return process


def test_results_tell_a_run_that_goes_on_from_one_that_ended(tmp_path):
    with begin(tmp_path) as process:
        assert read_result(tmp_path)["status"] == "running"
        process.communicate(b"\n")
    found = read_result(tmp_path)
    assert found["status"] == "finished" and [row["round"] for row in found["rounds"]] == [0, 1]


def test_results_tell_that_a_server_was_killed(tmp_path):
    """With -9. It can't write that; so the file must not say that it runs."""
    with begin(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert read_result(tmp_path)["status"] == "killed"


def test_results_do_not_guess_about_another_machine(tmp_path):
    """Some disks share files, and not their locks."""
    with begin(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "host": "elsewhere"}))
    assert read_result(tmp_path)["status"] == "unknown"


def test_results_say_why_a_run_failed(tmp_path):
    results = Results(tmp_path)
    assert read_result(tmp_path)["status"] == "running"  # in this process, too
    results.fail(ValueError("too few"))
    found = read_result(tmp_path)
    assert (found["status"], found["error"]) == ("failed", "ValueError: too few")


def test_results_of_a_run_before_are_kept(tmp_path, caplog):
    """Also its models and its state. They stay in place until the new run has a model."""
    for n in (1, 2, 3):
        results = Results(tmp_path)
        for _ in range(n):
            results.begin_round()
            results.rounds[-1].clients = {"north": {}}
        if n > 1:
            found = read_result(tmp_path)
            assert (found["status"], len(found["rounds"])) == ("running", n) and (tmp_path / "model-best").is_dir()
        results.finish({})
        for name in ("model-last", "model-best"):
            (tmp_path / name).mkdir()
    names = ["earlier-1", "earlier-2", "model-best", "model-last", "result.json", "state"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    folders = (tmp_path / "earlier-1", tmp_path / "earlier-2", tmp_path)
    assert [len(read_result(folder)["rounds"]) for folder in folders] == [2, 3, 4]
    assert all(read_result(folder)["status"] == "finished" for folder in folders)
    assert all((folder / "model-best").is_dir() and (folder / "state").is_dir() for folder in folders)
    assert f"moved to '{tmp_path / 'earlier-1'}'" in caplog.text


def test_results_of_a_run_before_stay_if_the_new_one_has_nothing(tmp_path):
    """It fails before its first model. The file says so, and keeps rounds and models."""
    results = Results(tmp_path)
    results.begin_round()
    results.finish({})
    (tmp_path / "model-best").mkdir()
    results = Results(tmp_path)
    results.fail(ValueError("too few"))
    found = read_result(tmp_path)
    assert (found["status"], found["error"], len(found["rounds"])) == ("failed", "ValueError: too few", 2)
    assert (tmp_path / "model-best").is_dir() and not list(tmp_path.glob("earlier*"))


def test_results_are_those_of_one_run(tmp_path):
    """A second server is refused, and the first one goes on."""
    with begin(tmp_path) as process:
        with pytest.raises(StateError, match=rf"for results: another run uses it: process {process.pid} on .*'output'"):
            Results(tmp_path)
        process.communicate(b"\n")
    assert read_result(tmp_path)["status"] == "finished" and not list(tmp_path.glob("earlier*"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("3", "expected a dict, found 3"),
        ('"finished"', "expected a dict, found 'finished'"),
        ('{"run": "a", "ended": null, "error": null, "best": null, "refused": {}}', "found one without rounds"),
        (
            '{"run": "a", "ended": 1, "error": null, "best": null, "refused": {}, "rounds": []}',
            "'ended' to be 'finished' or 'failed', found 1",
        ),
        (
            '{"run": "a", "ended": null, "error": null, "best": null, "refused": {}, "rounds": 3}',
            "'rounds' to be a list, found 3",
        ),
        (
            '{"run": "a", "ended": null, "error": null, "best": null, "refused": {}, "rounds": "two"}',
            "'rounds' to be a list, found 'two'",
        ),
        (
            '{"run": "a", "ended": null, "error": null, "best": null, "refused": {}, "rounds": [3]}',
            "'rounds/0' to be a dict, found 3",
        ),
    ],
)
def test_results_that_are_damaged_are_refused(text, message, tmp_path):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(StateError, match=message):
        read_result(tmp_path)


def test_results_that_are_not_there(tmp_path):
    with pytest.raises(StateError, match="The training has not begun"):
        read_result(tmp_path)
