"""examples/learn_while_reading.py learns, and a reader that is killed goes on to the same bits."""

import runpy
import sys
from pathlib import Path

import torch

from thinc_torchopt.core.state.files import read_folder

from ...forks import RUN_SCRIPT, Started

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "learn_while_reading.py"
QUICK = ["--characters", "900", "--every", "150", "--width", "16"]


def run_here(output, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--output", str(output), *QUICK])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_examples_learn_while_reading(tmp_path, monkeypatch, capsys):
    lines = run_here(tmp_path / "whole", monkeypatch, capsys)
    bits = [float(line.split()[2]) for line in lines]
    assert len(bits) == 6 and bits[-1] < bits[0] - 0.5
    with Started(RUN_SCRIPT, SCRIPT, "--output", tmp_path / "half", *QUICK) as process:
        assert "150 characters" in process.readline()
        while not (tmp_path / "half" / "state").is_dir():
            assert process.poll() is None
    resumed = run_here(tmp_path / "half", monkeypatch, capsys)
    assert resumed[0].startswith("Going on after") and len(resumed) > 1
    whole, half = (read_folder(tmp_path / name / "state") for name in ("whole", "half"))
    assert whole["tokens"] == half["tokens"] == 900
    assert all(torch.equal(tensor, half["params"][name]) for name, tensor in whole["params"].items())
    trace = [state["layers"][0]["traces"]["Wr.weight"][0] for state in (whole, half)]
    assert torch.equal(*trace) and trace[0].any()
