"""`spacy project run all` in a copy of examples/project, with fewer steps."""

import json
import shutil

import pytest
import spacy

from thinc_torchopt.core.compat import has_matplotlib

from .conftest import ROOT
from .spacy_cli import spacy_process

PROJECT = ROOT / "examples" / "project"


@pytest.mark.skipif(not has_matplotlib, reason="matplotlib is not installed")
def test_project_runs_without_a_network(tmp_path, monkeypatch):
    """And a second time nothing is left to do. No proxy leads anywhere: what wants the network fails."""
    folder = tmp_path / "project"
    made = shutil.ignore_patterns("corpus", "metrics", "packages", "training", "project.lock")
    shutil.copytree(PROJECT, folder, ignore=made)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    quick = ["--vars.max_steps", "60", "--vars.eval_frequency", "20"]
    spacy_process("project", "run", "all", folder, *quick)
    scores = json.loads((folder / "metrics" / "scores.json").read_text())
    assert scores["ents_f"] > 0.3
    assert "<html" in (folder / "metrics" / "report.html").read_text()
    package = folder / "packages" / "en_code_in_prose-0.0.1"
    model = package / "en_code_in_prose" / package.name
    assert (package / "setup.py").is_file()
    assert [ent.label_ for ent in spacy.load(model)("Use the str.format() method here .").ents] in (["CODE"], [])
    again = spacy_process("project", "run", "all", folder, *quick)
    assert again.stdout.count("Skipping") == 6 - 1  # `check` has no output: it says what it says each time


def test_project_says_what_it_does():
    """Each step of project.yml has a line in the README."""
    import srsly

    project = srsly.read_yaml(PROJECT / "project.yml")
    text = (PROJECT / "README.md").read_text()
    names = [command["name"] for command in project["commands"]]
    assert project["workflows"]["all"] == names and all(f"| `{name}` |" in text for name in names)
    assert not project.get("assets") and "http" not in (PROJECT / "project.yml").read_text()
