"""The files that nothing here runs, .github/ and .pre-commit-config.yaml, name what there is."""

import re
from configparser import ConfigParser

import pytest
import srsly

from .conftest import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.fixture(scope="module")
def jobs():
    return srsly.read_yaml(WORKFLOW)["jobs"]


def commands_of(job):
    return "\n".join(step.get("run", "") for step in job["steps"])


def test_ci_runs_each_python_that_the_package_supports(jobs):
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    supported = re.findall(r"Python :: (3\.\d+)", setup["metadata"]["classifiers"])
    assert jobs["linux"]["strategy"]["matrix"]["python"] == supported
    assert jobs["lowest"]["steps"][1]["with"]["python-version"] == supported[0]
    assert jobs["newest"]["steps"][1]["with"]["python-version"] == supported[-1]


def test_ci_names_what_there_is(jobs):
    """Targets of make, tests, modules and extras."""
    commands = "\n".join(map(commands_of, jobs.values()))
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
    assert set(re.findall(r"\bmake ([\w-]+)", commands)) and set(re.findall(r"\bmake ([\w-]+)", commands)) <= targets
    files = re.findall(r"(?<= )tests/[\w/]+(?:\.py)?|\.ci/run", commands)
    assert files and all((ROOT / name).exists() for name in files)
    assert all((ROOT / f"{name.replace('.', '/')}.py").is_file() for name in re.findall(r"-m (tests\.\w+)", commands))
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = {extra for found in re.findall(r"\.\[([\w,-]+)\]", commands) for extra in found.split(",")}
    assert extras <= set(setup["options.extras_require"])


def test_pre_commit_runs_what_make_check_runs():
    [local] = srsly.read_yaml(ROOT / ".pre-commit-config.yaml")["repos"]
    hooks = [hook["entry"].split()[:2] for hook in local["hooks"]]
    [rule] = re.findall(r"^check:.*\n((?:\t.+\n)+)", MAKEFILE, re.MULTILINE)
    checks = [line.strip().replace("$(BIN)", ".venv/bin").split()[:2] for line in rule.splitlines()]
    assert hooks == checks


@pytest.mark.parametrize("name", ["SECURITY.md", ".github/pull_request_template.md"])
def test_pages_of_the_repository_name_what_there_is(name):
    text = (ROOT / name).read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r"`([\w/]+\.md)`", text)
    assert all((ROOT / link).is_file() for link in links)
    assert set(re.findall(r"`make ([\w-]+)`", text)) <= set(re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE))
