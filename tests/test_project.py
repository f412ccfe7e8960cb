"""`spacy project run all` in copies of the projects in examples/, with fewer steps."""

import json
import shutil

import pytest
import spacy
import srsly

from thinc_torchopt.core.compat import has_matplotlib

from .conftest import ROOT
from .forks import RUN_SCRIPT, python
from .spacy_cli import spacy_cli, spacy_process

EXAMPLES = ROOT / "examples"
PROJECTS = ["project", "teacher_project"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Copies a project, without what an earlier run made. No proxy leads anywhere: what wants the network fails."""

    def copied(name):
        made = (EXAMPLES / name / ".gitignore").read_text().replace("/", "").split()
        shutil.copytree(EXAMPLES / name, tmp_path / "project", ignore=shutil.ignore_patterns(*made, "project.lock"))
        return tmp_path / "project"

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return copied


def run_twice(folder, *quick, run=spacy_process):
    """Run all steps, and return how many a second run skips."""
    run("project", "run", "all", folder, *quick)
    return run("project", "run", "all", folder, *quick).stdout.count("Skipping")


@pytest.fixture
def forked_steps(monkeypatch):
    """Each step of a project is run in a process of its own that need not import everything."""

    def run_command(command, capture):
        _, *words = command
        python(words[2:]) if words[:2] == ["-m", "spacy"] else python(RUN_SCRIPT, *words)

    monkeypatch.setattr("weasel.cli.run.run_command", run_command)


def check_package(folder, version="0.0.1"):
    """The package has a pipeline that finds code, or nothing."""
    package = folder / "packages" / f"en_code_in_prose-{version}"
    assert (package / "setup.py").is_file()
    nlp = spacy.load(package / "en_code_in_prose" / package.name)
    assert [ent.label_ for ent in nlp("Use the str.format() method here .").ents] in (["CODE"], [])
    return nlp


@pytest.mark.skipif(not has_matplotlib, reason="matplotlib is not installed")
def test_project_runs_without_a_network(project, forked_steps):
    folder = project("project")
    skipped = run_twice(folder, "--vars.max_steps", "60", "--vars.eval_frequency", "60", run=spacy_cli)
    assert json.loads((folder / "metrics" / "scores.json").read_text())["ents_f"] > 0.3
    assert "<html" in (folder / "metrics" / "report.html").read_text()
    check_package(folder)
    assert skipped == 7 - 1  # `check` has no output: it says what it says each time


@pytest.mark.slow  # two trainings, in twelve processes
@pytest.mark.skipif(not has_matplotlib, reason="matplotlib is not installed")
def test_project_with_a_teacher_runs_without_a_network(project):
    """The small pipeline learns from texts that only the large one has annotated, and is the one in the package."""
    folder = project("teacher_project")
    assert run_twice(folder, "--vars.steps", "20", "--vars.eval_frequency", "10") == 7
    assert all((folder / "metrics" / f"{name}.json").is_file() for name in ("large", "small"))
    page = (folder / "metrics" / "report.html").read_text()
    assert "small" in page and "large" in page
    config = (folder / "configs" / "small.cfg").read_text()
    assert "thinc-torchopt.TaughtCorpus.v1" in config and "training/large/model-best" in config
    large = spacy.load(folder / "training" / "large" / "model-best")
    assert check_package(folder).config["components"]["tok2vec"]["model"]["encode"]["width"] == 96
    assert large.config["components"]["tok2vec"]["model"]["encode"]["width"] == 128


@pytest.mark.parametrize("name", PROJECTS)
def test_project_says_what_it_does(name):
    """Each step of project.yml has a line in the README."""
    project = srsly.read_yaml(EXAMPLES / name / "project.yml")
    text = (EXAMPLES / name / "README.md").read_text()
    names = [command["name"] for command in project["commands"]]
    assert project["workflows"]["all"] == names and all(f"| `{step}` |" in text for step in names)
    assert not project.get("assets") and "http" not in (EXAMPLES / name / "project.yml").read_text()
