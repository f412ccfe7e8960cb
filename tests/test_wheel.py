"""`make test-wheel`: what is in the sdist and the wheel, and a training in a bare venv, outside of the repository."""

import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import pytest

from .conftest import ROOT
from .spacy_cli import toy_corpus
from .wheelhouse import build_wheel, clone_to, tracked

pytestmark = pytest.mark.slow  # two minutes, most of them to install torch

NO_CLONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command, cwd, check=True):
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=NO_CLONE, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def built():
    """A folder with the sdist, the wheel that it builds, and the wheel that the repository builds in `direct/`. Built
    from a copy of the tracked files.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        clone, direct = folder / "clone", folder / "direct"
        direct.mkdir()
        clone_to(clone)
        code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
        run(sys.executable, "-c", code, folder, cwd=clone)
        [sdist] = folder.glob("*.tar.gz")
        yield sdist, build_wheel(sdist, folder), build_wheel(clone, direct)


def test_wheel_has_the_package_and_nothing_else(built):
    _, wheel, _ = built
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == set(tracked("thinc_torchopt"))
    assert {"thinc_torchopt/py.typed", "thinc_torchopt/addons/report/page.html"} <= names


def test_wheel_describes_itself_without_dead_links(built):
    _, wheel, _ = built
    with ZipFile(wheel) as archive:
        [path] = (name for name in archive.namelist() if name.endswith("/METADATA"))
        described = archive.read(path).decode("utf8")
    assert "spacy torchopt init" in described and not re.findall(r"\]\((?!https://)", described)


def test_sdist_builds_the_wheel_that_the_repository_builds(built):
    _, wheel, direct = built
    first, second = ({file.filename: file.CRC for file in ZipFile(path).infolist()} for path in (wheel, direct))
    assert first == second


def test_sdist_has_no_part_of_the_tests(built):
    sdist, _, _ = built
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.cfg", "setup.py", *tracked("thinc_torchopt")} <= names
    assert not any(name.startswith("tests") for name in names)


def test_wheel_trains_in_a_bare_venv(built, tmp_path):
    """README's two commands: the requirements are enough, the entry points are found. A missing library is named as pip
    knows it.
    """
    _, wheel, _ = built
    toy_corpus(tmp_path)
    with TemporaryDirectory() as name:
        run(sys.executable, "-m", "venv", name, cwd=tmp_path)
        bin = Path(name) / "bin"
        run(bin / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
        run(bin / "python", "-m", "pip", "check", cwd=tmp_path)
        where = run(bin / "python", "-c", "import thinc_torchopt; print(thinc_torchopt.__file__)", cwd=tmp_path)
        assert where.stdout.startswith(name)
        made, trained = re.search(r"^```bash\n(spacy .*?)\n(.*?)\n```", (ROOT / "README.md").read_text(), re.M).groups()
        steps = ("--training.max_steps", "3", "--training.eval_frequency", "3")
        run(bin / "spacy", *shlex.split(made)[1:], cwd=tmp_path)
        run(bin / "spacy", *shlex.split(trained)[1:], *steps, cwd=tmp_path)
        assert (tmp_path / "training" / "config" / "model-last" / "meta.json").is_file()
        shown = run(bin / "spacy", "torchopt", "schedule", "config.cfg", "-o", "a.png", cwd=tmp_path, check=False)
        assert shown.returncode == 1 and "pip install 'matplotlib>=3.7'" in shown.stderr
