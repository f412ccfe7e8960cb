"""benchmarks/fine_tuning.py: its tables, and that it says what it leaves out."""

import argparse
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from spacy.util import import_file

PATH = Path(__file__).parent.parent / "benchmarks" / "fine_tuning.py"


@pytest.fixture(scope="module")
def benchmark():
    return import_file("fine_tuning_benchmark", PATH)


def test_differences_of_seeds_are_paired(benchmark):
    """Oracle: the mean of differences and its standard error, by hand."""
    f = {"template": [0.60, 0.70, 0.80], "windows 128/96": [0.62, 0.71, 0.81]}
    runs = [
        {"row": row, "seed": seed, "peak": peak, "seconds": 2.0, "in training": score, "loaded": score}
        for row, peak in (("template", 4e9), ("windows 128/96", 1e9))
        for seed, score in enumerate(f[row])
    ]
    args = argparse.Namespace(part="food", device="cpu", most=12.0)
    lines = benchmark.table(runs, [*f], args)
    differences = [2.0, 1.0, 1.0]
    error = statistics.stdev(differences) / 3**0.5
    told = f"+{statistics.mean(differences):.1f} ± {error:.1f}"
    assert lines[2:] == [
        "| template | 4.00 | 1.00 | 2.00 | 60.0, 70.0, 80.0 |  | 60.0, 70.0, 80.0 |",
        f"| windows 128/96 | 1.00 | 0.25 | 2.00 | 62.0, 71.0, 81.0 | {told} | 62.0, 71.0, 81.0 |",
    ]


def test_what_did_not_run_is_told(benchmark):
    runs = [
        {"row": "template", "seed": 0, "ended": 3.0},
        {"row": "windows 128/96", "seed": 0, "peak": 1e9, "seconds": 2.0, "words": 3000},
        {"row": "EDS-NLP 128/96", "seed": 0, "left out": "No module named 'edsnlp'"},
    ]
    lines = benchmark.table(runs, [one["row"] for one in runs], argparse.Namespace(part="batch", device="cpu", most=12))
    assert lines[2:] == [
        "| template | more than 12: ended | | | |",
        "| windows 128/96 | 1.00 |  | 2.00 | 1,500 |",
        "EDS-NLP 128/96: left out: No module named 'edsnlp'",
    ]


@pytest.mark.skipif(find_spec("spacy_transformers") is not None, reason="spacy-transformers is here")
def test_nothing_runs_without_a_transformer():
    command = [sys.executable, str(PATH), "batch", "--device", "cuda"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said == "fine_tuning batch: left out: spacy-transformers is not installed.\n"
