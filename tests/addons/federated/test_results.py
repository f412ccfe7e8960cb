"""The output of a server: real processes."""

import json
import signal
from types import SimpleNamespace

import pytest
import spacy

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
        assert read(tmp_path)["ended"] is None and len(read(tmp_path)["rounds"]) == 2
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
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]  # the folder is free


def test_results_keep_the_first_of_the_best_models(tmp_path):
    results = Results(tmp_path)
    saved = SimpleNamespace(to_save=lambda weights: spacy.blank(weights), config={"training": {"score_weights": {}}})
    for lang, score in (("en", 0.2), ("de", 0.5), ("fr", 0.5), ("xx", 0.4)):
        results.score(results.begin_round(), score, {}, saved, lang)
        assert read(tmp_path)["rounds"][-1]["score"] == score
    assert read(tmp_path)["best"] == 2 and spacy.load(tmp_path / "model-best").lang == "de"


def test_results_are_not_written_where_another_run_is(tmp_path):
    results = Results(tmp_path)
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"run": "another"}))
    with pytest.raises(StateError, match="another run uses this folder now") as error:
        results.begin_round()
    with pytest.raises(StateError, match="another run uses this folder now"):
        results.save("model-last", None, {}, {})
    results.fail(error.value)
    assert not (tmp_path / "result.json").exists()


def test_results_are_those_of_one_run(tmp_path):
    """A second server is refused, and the first one goes on."""
    with begin(tmp_path) as process:
        with pytest.raises(StateError, match=rf"for results: another run uses it: process {process.pid} on .*'output'"):
            Results(tmp_path)
        process.communicate(b"\n")
    assert read(tmp_path)["ended"] == "finished"
