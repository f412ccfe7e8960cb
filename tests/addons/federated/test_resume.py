"""Servers that are killed with -9, and runs that go on from their state: the same model, to the last bit."""

import json
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from thinc_torchopt.core.errors import FederationError, StateError

from . import needs_flwr  # noqa: F401  isort:skip

from .pipelines import small_config
from .server_that_dies import MOMENTS
from .test_methods import SCAFFOLD, with_algorithm
from .test_rounds import Run, trained

ROOT = __file__.partition("/tests/")[0]
MOMENTUM = {"momentum": {"@gradient_modules": "thinc-torchopt.Momentum.v1", "beta": 0.5}}


def config(rounds=3):
    """Everything with a state: SCAFFOLD and momentum at the server, Adam and SCAFFOLD at the clients."""
    client, server = SCAFFOLD
    adam = {"modules": {**client["modules"], "adam": {"@gradient_modules": "thinc-torchopt.Adam.v1"}}}
    return with_algorithm(adam, {"modules": {**server["modules"], **MOMENTUM}}, federated__rounds=rounds)


def serve(run, texts, moment="never", in_round=0):
    """Run a server as a process. RETURNS: Its exit code, and its log."""
    command = [sys.executable, "-m", "tests.addons.federated.server_that_dies", run.output.parent, texts, moment]
    done = subprocess.run([*map(str, command), str(in_round)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr + done.stdout


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def essence(result):
    """What does not depend on where a server was killed: scores, clients, the best model."""
    rows = [{key: row[key] for key in ("round", "clients", "failed", "score", "scores")} for row in result["rounds"]]
    return rows, result["best"], result["ended"], result["error"]


@pytest.fixture(scope="module")
def unbroken(texts, tmp_path_factory):
    """A run of three rounds, in this process."""
    return trained(texts, tmp_path_factory.mktemp("unbroken"), config())


def check(run, unbroken):
    assert same(run.weights(), unbroken.weights()) and same(run.weights("model-best"), unbroken.weights("model-best"))
    assert essence(run.result) == essence(unbroken.result)
    assert not list(run.output.glob(".unfinished*"))


def test_resume_after_a_server_was_killed_again_and_again(texts, tmp_path, unbroken):
    """At five moments of three rounds. Each time, the next server goes on."""
    run = Run(texts, tmp_path, config())
    kills = list(zip(MOMENTS, (1, 1, 2, 2, 2)))
    for moment, in_round in kills:
        code, log = serve(run, texts, moment, in_round)
        assert code == -signal.SIGKILL, log
        assert run.result["ended"] is None
    code, log = serve(run, texts)
    assert code == 0 and "The run goes on after round 2" in log and "undoes" not in log, log
    check(run, unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("in_round", [1, 2, 3, 0])
@pytest.mark.parametrize("moment", MOMENTS)
def test_resume_at_each_moment(texts, tmp_path, unbroken, moment, in_round):
    """Twenty kills: five moments of three rounds; and of all rounds in one run, which is 0."""
    run = Run(texts, tmp_path, config())
    for one in (1, 2, 3) if in_round == 0 else (in_round,):
        code, log = serve(run, texts, moment, one)
        assert code == -signal.SIGKILL, log
    code, log = serve(run, texts)
    assert code == 0, log
    check(run, unbroken)


def test_resume_of_a_run_that_has_finished(texts, tmp_path, unbroken, caplog):
    """With more rounds it goes on. Else there is nothing to do, and nothing is lost."""
    shutil.copytree(unbroken.output.parent, tmp_path / "copy")
    run = Run(texts, tmp_path / "copy", config(rounds=4))
    earlier = run.weights()
    run.train()
    assert [row["round"] for row in run.result["rounds"]] == [0, 1, 2, 3, 4] and not same(run.weights(), earlier)
    assert {name for _, name, _ in run.grid.log} == {"north", "south"}
    assert sum(kind == "train" for kind, _, _ in run.grid.log) == 2
    assert essence(run.result)[0][:3] == essence(unbroken.result)[0][:3]
    before, weights = run.result, run.weights()
    shutil.rmtree(run.output / "model-last")  # it was stopped before that was saved
    run = Run(texts, tmp_path / "copy", config(rounds=4))
    with caplog.at_level("WARNING", "flwr"):
        assert run.train() == before and same(run.weights(), weights) and not run.grid.log
    assert "All 4 rounds are done. To go on, raise 'rounds' in [federated]" in caplog.text


def test_resume_of_a_run_that_failed(texts, tmp_path):
    """A client that never replies in round 2. With it back, the run ends as if nothing had been."""
    is_away = [False]

    def spoil(kind, name, reply):
        is_away[0] |= not is_back and (kind, name) == ("train", "south") and len(run.result["rounds"]) == 3
        return None if is_away[0] and name == "south" else reply

    is_back = False
    plain = small_config(federated__min_clients=2, federated__rounds=3)
    run = Run(texts, tmp_path, plain, spoil=spoil)
    with pytest.raises(FederationError, match="Can't accept round 2"):
        run.train()
    assert run.result["ended"] == "failed" and len(run.result["rounds"]) == 3
    is_back, is_away[0] = True, False
    result = run.train()
    assert result["ended"] == "finished" and result["error"] is None
    other = trained(texts, tmp_path / "plain", plain)
    assert same(run.weights(), other.weights())


def test_resume_only_if_that_is_wanted(texts, tmp_path, unbroken):
    run = Run(texts, tmp_path, small_config(federated__resume="must"))
    with pytest.raises(StateError, match=r"Can't go on with a run: expected its state in .*, found none"):
        run.train()
    shutil.copytree(unbroken.output.parent, tmp_path / "copy")
    again = config(rounds=4)
    again["federated"]["resume"] = "never"
    run = Run(texts, tmp_path / "copy", again)
    assert len(run.train()["rounds"]) == 5 and run.result["run"] != unbroken.result["run"]
    assert sum(kind == "train" for kind, _, _ in run.grid.log) == 8


@pytest.mark.parametrize("what", ["shapes", "methods", "algorithms"])
def test_resume_of_another_training_is_refused(texts, tmp_path, unbroken, what):
    """And nothing of it is lost."""
    shutil.copytree(unbroken.output.parent, tmp_path / "copy")
    other = config(rounds=5)
    if what == "shapes":
        other["components"]["ner"]["model"]["hidden_width"] = 9
        message = r"expected the same pipeline, found params: ner/lower/W: .* now"
    elif what == "methods":
        del other["federated"]["algorithm"], other["training"]["optimizer"]["algorithm"]["modules"]["scaffold"]
        message = r"found auxiliary variables: scaffold in the saved run, none now"
    else:
        other["federated"]["algorithm"] = {"@torch_optimizers": "torch.AdamW.v1"}
        message = r"found auxiliary variables: scaffold in the saved run, none now"
    run = Run(texts, tmp_path / "copy", other)
    with pytest.raises(StateError, match=message):
        run.train()
    assert run.result["ended"] == "failed" and len(run.result["rounds"]) == 4
    assert same(run.weights(), unbroken.weights())


def test_resume_from_a_damaged_state_is_refused(texts, tmp_path, unbroken):
    shutil.copytree(unbroken.output.parent, tmp_path / "copy")
    run = Run(texts, tmp_path / "copy", config(rounds=5))
    tensors = run.output / "state" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"!")
    with pytest.raises(StateError, match=r"Can't read '.*tensors.safetensors': expected .* with checksum"):
        run.train()
    assert len(run.result["rounds"]) == 4 and same(run.weights(), unbroken.weights())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("3", "expected a dict, found 3"),
        (
            '{"run": "a", "ended": 1, "error": null, "best": null, "refused": {}, "rounds": []}',
            "'ended' to be 'finished'",
        ),
    ],
)
def test_resume_from_damaged_results_is_refused(texts, tmp_path, unbroken, text, message):
    shutil.copytree(unbroken.output, tmp_path / "out")
    run = Run(texts, tmp_path, config(rounds=5))
    (run.output / "result.json").write_text(text)
    with pytest.raises(StateError, match=message):
        run.train()
    assert (run.output / "result.json").read_text() == text and same(run.weights(), unbroken.weights())


@pytest.mark.parametrize(("change", "n_rows"), [({"run": "another"}, 4), ({}, 3)])
def test_resume_not_from_the_state_of_a_run_before(texts, tmp_path, unbroken, caplog, change, n_rows):
    """A run that was to start from scratch was stopped before its first state: it begins again."""
    shutil.copytree(unbroken.output, tmp_path / "out")
    run = Run(texts, tmp_path, config())
    (run.output / "result.json").write_text(
        json.dumps(unbroken.result | {"rounds": unbroken.result["rounds"][:n_rows]} | change)
    )
    with caplog.at_level("WARNING", "flwr"):
        run.train()
    assert "is not that of the run in" in caplog.text and run.result["run"] not in ("another", unbroken.result["run"])
    assert sum(kind == "train" for kind, _, _ in run.grid.log) == 6
