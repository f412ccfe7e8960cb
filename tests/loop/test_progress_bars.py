"""Bars are on stderr, where somebody sees them, and gone afterwards. Files and pipes get lines of results."""

import io
import logging
import sys
from contextlib import suppress

import pytest
import tqdm

from thinc_torchopt import Checkpoints, TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import StateError
from thinc_torchopt.loop.progress_bars import show_activity, show_progress

from ..models import ready_pipeline
from ..spacy_cli import Terminal


class Notebook(io.StringIO):
    """Says of itself what ipykernel's stderr does: it is no terminal."""


Notebook.__module__ = "ipykernel.iostream"


def is_gone(stream):
    """Whether the last thing that was written clears the line."""
    return not tqdm.tqdm._instances and stream.getvalue().rstrip("\r").rpartition("\r")[2].strip() == ""


@pytest.mark.parametrize("stream", [Terminal(), Notebook()], ids=["terminal", "notebook"])
def test_progress_bars_are_shown_and_gone_afterwards(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    with show_progress(2, "Counting") as bar:
        assert "Counting:   0%|" in stream.getvalue()
        bar.update()
    assert is_gone(stream)
    with suppress(ValueError), show_activity("Thinking"):
        assert stream.getvalue().endswith("Thinking ...")
        raise ValueError
    assert is_gone(stream)
    before = stream.getvalue()
    with show_progress(2, "Counting", wanted=False) as bar:
        bar.update()
    assert stream.getvalue() == before


@pytest.mark.parametrize("stream", [io.StringIO(), None], ids=["log", "none"])
def test_progress_bars_are_not_in_logs(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    with show_progress(2, "Counting") as bar, show_activity("Thinking"):
        bar.update()
    assert stream is None or stream.getvalue() == ""


def test_progress_bars_are_plain_lines_in_a_log(monkeypatch):
    """A line for each result."""
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with show_progress(10, "Counting", done=2) as bar:
        bar.update(2)
        bar.tell("one: 0.5")
        bar.move_to(8)
        bar.set_description("Weighing")
        bar.say("two: 0.7")
    with show_progress(10, "Counting", wanted=False) as bar:
        bar.tell("nothing")
        bar.say("nothing")
    assert stream.getvalue() == "one: 0.5\ntwo: 0.7\n"


def test_progress_bars_survive_a_closed_pipe(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with show_progress(10, "Counting") as bar:
        stream.close()
        bar.tell("nobody reads it")


def test_progress_bars_while_a_run_reads_past_its_batches(tmp_path, monkeypatch, capsys, caplog):
    optimizer = TorchOptimizer(AdamW())
    nlp, _ = ready_pipeline(["tagger"], sgd=optimizer)

    def read(batches, **settings):
        monkeypatch.setattr(sys, "stderr", stream := Terminal())
        try:
            with Checkpoints(tmp_path / "state", nlp, optimizer, **settings) as checkpoints:
                for step, _ in checkpoints.resume(batches):
                    if step == 1199:
                        checkpoints.save()
        finally:
            monkeypatch.undo()
        return stream

    assert read(range(1200)).getvalue() == "" and "Reading" not in caplog.text  # there was nothing to read past
    stream = read(range(1201))
    assert "Reading past batches:   0%|          | 0/1200" in stream.getvalue() and is_gone(stream)
    assert [text for *_, level, text in caplog.record_tuples if level == logging.INFO and "Reading" in text] == [
        "Reading past 1,200 batches, to where the run stopped."
    ]
    assert read(range(1201), progress_bar=False).getvalue() == ""

    def broken():
        yield from range(600)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        read(broken())
    with pytest.raises(StateError, match="found others, or fewer"):
        read(range(600))
    assert not tqdm.tqdm._instances and capsys.readouterr().out == ""
