"""`spacy torchopt learn`, in processes that are stopped and killed."""

import json
import re
import shutil
import signal
import time

import pytest
from confection import Config
from spacy.tokens import DocBin

from thinc_torchopt.cli.learn import _optimizer_for_streams

from ..addons.streams.streams import files, make_model, rows, write_stream
from ..forks import Started
from ..runs import OPTIMIZER
from ..spacy_cli import refusal, spacy_cli


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def started():
    """Starts the command as a process. None is left."""
    processes = []

    def start(*args, **options):
        processes.append(Started(["torchopt", "learn", *args], **options))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


def wait_for_rows(output, n, process):
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if (output / "learn.jsonl").exists() and len(rows(output)) >= n:
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate()[0])


def test_learn_goes_on_after_a_kill(model, started, tmp_path):
    """With the same weights, scores and files as a run that was never stopped."""
    stream = write_stream(tmp_path / "stream.jsonl", 120)
    flags = ["--every", "5", "--save-every", "20", "--replay", "1", "--watch", stream, "--watch-every", "40"]
    table = spacy_cli("torchopt", "learn", model, stream, "--output", tmp_path / "one", *flags).stdout
    assert "120 texts were learned" in table
    printed = []
    for n, row in zip(range(0, 121, 5), rows(tmp_path / "one"), strict=True):  # before the first text, too: --watch
        scores = [f"{score:.3f}" for score in (row["score"], row["watched"]) if score is not None]
        printed.append([str(n), str(sum(4 + i % 2 for i in range(n))), *scores, "0.005"])  # see `toy_examples`
    assert [line.split() for line in table.splitlines() if " 0." in line] == printed
    for n, number in ((3, signal.SIGKILL), (11, signal.SIGTERM)):
        process = started(model, stream, "--output", tmp_path / "two", *flags)
        wait_for_rows(tmp_path / "two", n, process)
        process.send_signal(number)
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number), printed
        if number == signal.SIGTERM:
            assert "Stopped by SIGTERM" in printed and "Error" not in printed
    run = spacy_cli("torchopt", "learn", model, stream, "--output", tmp_path / "two", *flags)
    n = int(re.search(r"Going on after (\d+) texts", run.stdout)[1])
    assert f"from line {n + 1} of the stream" in run.stdout and f"ended: {120 - n} texts were learned" in run.stdout
    assert files(tmp_path / "one") == files(tmp_path / "two") and rows(tmp_path / "one") == rows(tmp_path / "two")


def test_learn_follows_a_file_and_is_alone_in_its_folder(model, started, tmp_path):
    stream = write_stream(tmp_path / "stream.jsonl", 5)
    process = started(model, stream, "--output", tmp_path / "out", "--every", "5", "--follow")
    wait_for_rows(tmp_path / "out", 1, process)
    said = refusal("torchopt", "learn", model, stream, "--output", tmp_path / "out")
    assert "another run uses it" in said and "--output" in said
    with stream.open("a") as file:
        file.write(stream.read_text())
    wait_for_rows(tmp_path / "out", 2, process)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "10 texts were learned" in printed, printed


def test_learn_skips_bad_texts(model, tmp_path):
    stream = write_stream(tmp_path / "stream.jsonl", 4)
    stream.write_text(stream.read_text() + "{\n" + stream.read_text())
    said = refusal("torchopt", "learn", model, stream, "--output", tmp_path / "out")
    assert "line 5 of the stream" in said and "--skip-bad" in said
    run = spacy_cli("torchopt", "learn", model, stream, "--output", tmp_path / "out", "--skip-bad")
    assert "1 text could not be learned" in run.stdout and rows(tmp_path / "out")[-1]["texts"] == 8


def test_learn_from_standard_input(model, started, tmp_path):
    """It tells with which text to go on."""
    stream = write_stream(tmp_path / "stream.jsonl", 12)
    lines = stream.read_bytes().splitlines(keepends=True)
    for start, end in ((0, 7), (7, 12)):
        process = started(model, "-", "--output", tmp_path / "out", stdin=True)
        printed, _ = process.communicate(b"".join(lines[start:end]), timeout=120)
        assert process.returncode == 0, printed
    assert "standard input should begin with line 8" in printed
    spacy_cli("torchopt", "learn", model, stream, "--output", tmp_path / "one")
    assert files(tmp_path / "out") == files(tmp_path / "one")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--old", "stream.jsonl"], "Set --replay 1"),
        (["--output", "model"], "it is MODEL itself"),
        (["--output", "linked"], "its model-last is MODEL, which would be overwritten"),
        (["--training.optimizer.learn_rate", "x"], "learn_rate"),
        (["--watch", "model/config.cfg"], "expected texts with annotations in a form that is known"),
        (["--training.dropuot", "0.2"], "no setting 'dropuot', and spaCy would ignore it. Did you mean 'dropout'"),
        (["--training.frozen_components", '["tok2vec"]', "--skip-bad"], "'tagger': it listens .*annotating_components"),
    ],
)
def test_learn_refuses_what_cannot_work(model, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(model)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "model-last").symlink_to(model)
    write_stream(tmp_path / "stream.jsonl", 3)
    output = [] if "--output" in flags else ["--output", "out"]
    assert re.search(message, refusal("torchopt", "learn", "model", "stream.jsonl", *output, *flags))


@pytest.mark.parametrize("command", [["learn", "linked", "stream.jsonl", "--output", "out"], ["params", "linked"]])
def test_learn_names_the_model_in_the_folder_of_a_training(command, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "model-best").symlink_to(model)
    write_stream(tmp_path / "stream.jsonl", 3)
    assert "Give the one in it: linked/model-best." in refusal("torchopt", *command)


def test_learn_tells_of_what_a_terminal_cannot_show(model, tmp_path):
    stream = write_stream(tmp_path / "stream.jsonl", 3, changed=lambda i, found: {**found, "\ud800": 1})
    told = spacy_cli("torchopt", "learn", model, stream, "--output", tmp_path / "out").stdout
    assert r"Note: '\ud800' of texts is not used." in told and "3 texts were learned" in told


def test_learn_refuses_binary_texts(model, tmp_path):
    DocBin().to_disk(tmp_path / "train.spacy")
    args = (model, tmp_path / "train.spacy", "--output", tmp_path / "out", "--skip-bad")
    said = refusal("torchopt", "learn", *args)
    assert "expected a JSONL file" in said and "one of spaCy's binary files" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"@optimizers": "Adam.v1", "algorithm": None}, "Can't use .training.optimizer.: expected an optimizer of"),
        (
            {"learn_rate": {"@schedules": "thinc-torchopt.warmup_linear.v1", "initial_rate": 0.01, "warmup_steps": 2}},
            "a stream has no end",
        ),
        ({"learn_rate": {"@schedules": "thinc-torchopt.plateau.v1", "initial_rate": 0.01}}, "one that follows a score"),
    ],
)  # fmt: skip
def test_learn_refuses_optimizers_without_an_endless_rate(model, tmp_path, settings, message):
    config = Config().from_disk(model / "config.cfg", interpolate=False)
    block = {**config["training"]["optimizer"], **settings}
    config["training"]["optimizer"] = {key: value for key, value in block.items() if value is not None}
    other = tmp_path / "other"
    shutil.copytree(model, other)
    config.to_disk(other / "config.cfg")
    stream = write_stream(tmp_path / "stream.jsonl", 3)
    args = ("torchopt", "learn", other, stream, "--output", tmp_path / "out")
    assert re.search(message, refusal(*args))
    if "learn_rate" in settings:
        spacy_cli(*args, "--learn-rate", "0.001")
        assert json.loads((tmp_path / "out" / "learn.jsonl").read_text())["learn_rate"] == 0.001
        assert re.search(r"learn_rate.*0\.001.*0\.002", refusal(*args, "--learn-rate", "0.002"))


def test_learn_tells_what_it_does_not_use_of_fine_tuning():
    notes = []
    _optimizer_for_streams(OPTIMIZER, None, notes)
    assert not notes
    _optimizer_for_streams({**OPTIMIZER, "fine_tuning": {"@misc": "thinc-torchopt.FineTuning.v1"}}, None, notes)
    assert len(notes) == 1 and notes[0].startswith("Of [training.optimizer.fine_tuning], only freeze_layers is used")
