"""Metrics and operations of another package, found by its entry points: in processes of their own."""

import json
import os

import pytest

from ...forks import python
from ...spacy_cli import flags_of
from .kit import STEP, config_for, definition, rule

MODULE = """
from pathlib import Path
from thinc_torchopt.addons.controller.metrics import Metric
from thinc_torchopt.addons.controller.operations import Operation

class LongestDoc(Metric):
    events = ("on_step_end",)
    keys = {"words": None}
    def __init__(self, times: int = 1):
        super().__init__()
        self.times = times
    def compute(self, event_name, *, batch_words=None, batch_size=None, **kwargs):
        return {"words": self.times * batch_words / batch_size}

class Notebook(Operation):
    def __init__(self, path: str):
        self.path = Path(path)
    def should_note(self, *, step, values, **kwargs):
        with self.path.open("a") as file:
            print(step, values["longest"]["words"] > 0, file=file)
"""
ENTRY_POINTS = """
[thinc_controller_metrics]
acme.LongestDoc.v1 = acme_rules:LongestDoc
acme.Gone.v1 = acme_rules:Gone
[thinc_controller_operations]
acme.Notebook.v1 = acme_rules:Notebook
"""
# spaCy's command line, where a folder with a package comes first.
SPACY = """
import runpy, sys
from importlib.metadata import entry_points
import catalogue
sys.path.insert(0, sys.argv.pop(1))
catalogue.AVAILABLE_ENTRY_POINTS = entry_points()
runpy.run_module("spacy", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """Install a package into a folder. RETURNS: A definition that uses it."""
    installed = tmp_path / "site" / "acme_rules-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed.parent / "acme_rules.py").write_text(MODULE)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-rules\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    paths = [str(installed.parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    return definition(
        rule("long", "on_step_end", "longest['words'] > 3 and state['step'] % 2 == 0", "book.should_note"),
        metrics=[STEP, {"name": "longest", "class": "acme.LongestDoc.v1", "arguments": {"times": 2}}],
        operations=[{"name": "book", "class": "acme.Notebook.v1", "arguments": {"path": str(tmp_path / "notes")}}],
    )


def test_entry_points_are_found_in_a_run(rules, corpus, tmp_path):
    config_for(tmp_path, corpus, rules, steps=4).to_disk(tmp_path / "config.cfg")
    paths = flags_of({f"paths.{name}": corpus[name] for name in ("train", "dev")})
    run = python(SPACY, tmp_path / "site", "train", tmp_path / "config.cfg", *paths)
    assert (tmp_path / "notes").read_text() == "0 True\n2 True\n4 True\n"
    assert "Controller 'long' took book.should_note on on_step_end at step 2" in run.stdout + run.stderr


def test_entry_points_are_checked(rules, tmp_path):
    """What a package says of its metrics counts; one that it does not have is a fault like others."""
    rules["controllers"][0]["rule"] = "longest['word'] > 3"
    rules["controller_metrics"] += [
        {"name": "gone", "class": "acme.Gone.v1"},
        {"name": "typo", "class": "acme.Goner.v1"},
    ]
    rules["operations"][0]["arguments"] = {}
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    run = python(SPACY, tmp_path / "site", "torchopt", "controller", tmp_path / "rules.json", check=False)
    assert run.returncode == 1 and "found 4 faults" in run.stderr and "Traceback" not in run.stderr
    text = " ".join(run.stderr.split())
    assert "a key of longest, found 'word'. Did you mean 'words'?" in text
    assert "the arguments of 'acme.Notebook.v1' (path)" in text and "Did you mean 'acme.Gone.v1'" in text
    assert "controller_metrics[2].class: module 'acme_rules' has no attribute 'Gone'" in text
