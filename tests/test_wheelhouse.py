"""Wheels for another machine, from a registry in a folder: pip reads where it is from the environment."""

import base64
import csv
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from shutil import which
from zipfile import ZipFile

import cymem.cymem
import numpy
import pytest
import torch
from packaging.requirements import Requirement

from . import wheelhouse
from .conftest import ROOT
from .wheelhouse import PLATFORM, Target, Wheelhouse, pins, strip


def wheel_of(folder, name, version, *requires, tag="py3-none-any", files=None):
    """A wheel, made by hand."""
    info = f"{name}-{version}.dist-info"
    metadata = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    contents = {f"{name}/__init__.py": b"", **(files or {})}
    contents[f"{info}/METADATA"] = "\n".join(["Metadata-Version: 2.1", *metadata, ""]).encode("utf8")
    contents[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    contents[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"]).encode("utf8")
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with ZipFile(path, "w") as archive:
        for file, content in contents.items():
            archive.writestr(file, content)
    return path


@pytest.fixture
def registry(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "registry"))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setattr(wheelhouse, "call_pip", pip_in_this_process)
    return tmp_path / "registry"


def pip_in_this_process(args):
    """pip takes most of its time to start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # also of setuptools, if another test has imported distutils
        from pip._internal.cli.main import main

        return main(args)


def collected(tmp_path, *requires, python="3.12", platform=PLATFORM, extras=(), **settings):
    house = Wheelhouse(tmp_path / "house", Target(python, platform), **settings)
    wheels = house.collect(wheel_of(house.folder, "ours", "1", *requires), extras)
    assert set(wheels.values()) == set(house.folder.iterdir())
    return {name: path.name.split("-")[1] for name, path in wheels.items() if name != "ours"}


def test_wheelhouse_has_what_the_other_python_requires(registry, tmp_path):
    """Of which this one knows nothing: pip itself would read these conditions as if they were about it."""
    for name in ("old", "new", "windows", "linux", "tested"):
        wheel_of(registry, name, "1")
    wheel_of(registry, "first", "1", 'new; python_version >= "3.99"', 'old; python_version < "3.99"')
    requires = (
        "first",
        'windows; sys_platform == "win32"',
        'linux; sys_platform == "linux"',
        'tested; extra == "test"',
    )
    assert set(collected(tmp_path, *requires, python="3.99")) == {"first", "new", "linux"}
    assert set(collected(tmp_path, *requires)) == {"first", "old", "linux"}  # and what was there is gone
    assert set(collected(tmp_path, *requires, platform="win_amd64")) == {"first", "old", "windows"}
    assert set(collected(tmp_path, *requires, extras=["test"])) == {"first", "old", "linux", "tested"}


def test_wheelhouse_has_versions_that_fit_together(registry, tmp_path):
    for version in ("1.0", "1.5", "2.0"):
        wheel_of(registry, "shared", version)
        wheel_of(registry, "pinned", version)
    wheel_of(registry, "second", "1", "shared<2")
    wheel_of(registry, "first", "1", "second[more]", "pinned")
    constraints = pins(Target("3.12", PLATFORM), written(tmp_path, 'pinned==1.0; python_version >= "3.12"\n# no\n'))
    found = collected(tmp_path, "shared>=1", "first", constraints=constraints)
    assert found == {"shared": "1.5", "first": "1", "second": "1", "pinned": "1.0"}


def test_wheelhouse_asks_only_what_it_takes(registry, tmp_path):
    """The newest version of `first` wants a newer `shared`, but is not the one that is taken."""
    wheel_of(registry, "first", "2", "shared>=2")
    wheel_of(registry, "first", "1", "shared<2")
    wheel_of(registry, "second", "1", "first<2")
    for version in ("1", "2"):
        wheel_of(registry, "shared", version)
    found = collected(tmp_path, "first", "second", "shared")
    assert found == {"first": "1", "second": "1", "shared": "1"}


def test_wheelhouse_ends_where_nothing_fits_together(registry, tmp_path):
    """`first` and `second` each want the other's other version."""
    for version, other in (("1", ">=2"), ("2", "<2")):
        wheel_of(registry, "first", version, f"second{other}")
        wheel_of(registry, "second", version, "first<2" if version == "1" else "first>=2")
    with pytest.raises(SystemExit, match=r"expected versions that fit together|pip failed"):
        collected(tmp_path, "first", "second")


def written(folder, text):
    (folder / "constraints.txt").write_text(text)
    return folder / "constraints.txt"


def test_wheelhouse_leaves_out_what_only_the_left_out_requires(registry, tmp_path):
    wheel_of(registry, "shared", "1")
    wheel_of(registry, "first", "1", "Large_One", "shared")
    assert set(collected(tmp_path, "first", "large.one>=2", without=["large-one"])) == {"first", "shared"}


def test_wheelhouse_takes_wheels_of_older_platforms(registry, tmp_path):
    wheel_of(registry, "compiled", "1", tag="cp312-cp312-manylinux2014_x86_64")
    wheel_of(registry, "compiled", "2", tag="cp312-cp312-manylinux_2_39_x86_64")
    wheel_of(registry, "compiled", "3", tag="cp311-cp311-manylinux2014_x86_64")
    wheel_of(registry, "stable", "1", tag="cp310-abi3-manylinux_2_17_x86_64")
    assert collected(tmp_path, "compiled", "stable") == {"compiled": "1", "stable": "1"}
    newer = collected(tmp_path / "newer", "compiled", platform="manylinux_2_39_x86_64")
    assert newer == {"compiled": "2"}


def source_of(folder, name, setup):
    """An sdist."""
    project = folder.parent / "source" / f"{name}-1"
    project.mkdir(parents=True)
    (project / "setup.py").write_text(
        f"from setuptools import setup, Extension\nsetup(name={name!r}, version='1', {setup})"
    )
    (project / f"{name}.c").write_text("")
    (project / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / f"{name}-1.tar.gz", "w:gz") as archive:
        archive.add(project, project.name)


def test_wheelhouse_builds_what_there_is_only_as_source(registry, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip reads it the other way around: with what is installed
    source_of(registry, "pure", "py_modules=[]")
    assert collected(tmp_path, "pure") == {"pure": "1"}
    assert (tmp_path / "house" / "pure-1-py3-none-any.whl").is_file()


def test_wheelhouse_says_what_is_missing(registry, tmp_path, capfd):
    registry.mkdir()
    with pytest.raises(SystemExit, match="Can't collect wheels: pip failed, for the reason above"):
        collected(tmp_path, "absent>=3")
    assert "absent>=3" in capfd.readouterr().err
    with pytest.raises(SystemExit, match=r"expected a version, as 3\.12"):
        Target("python3.12", PLATFORM)


@pytest.mark.skipif(not which("strip"), reason="there is no `strip`")
def test_wheelhouse_strips_shared_objects(tmp_path):
    """They still work, and RECORD tells their hashes."""
    original = Path(cymem.cymem.__file__)
    path = f"stripped/cymem{EXTENSION_SUFFIXES[0]}"
    files = {path: original.read_bytes(), "stripped/not.so.txt": b"text", "stripped/a,b.txt": b"comma"}
    wheel = wheel_of(tmp_path, "stripped", "1", files=files)
    strip(wheel)
    with ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    assert set(files) < set(contents) and len(contents[path]) < original.stat().st_size / 2
    rows = {
        name: (digest, size)
        for name, digest, size in csv.reader(contents["stripped-1.dist-info/RECORD"].decode().splitlines())
    }
    assert rows.keys() == contents.keys()
    for name, (digest, size) in rows.items():
        if name.endswith("RECORD"):
            assert (digest, size) == ("", "")
        else:
            kind, _, expected = digest.partition("=")
            found = hashlib.new(kind, contents[name]).digest()
            assert base64.urlsafe_b64decode(expected + "=") == found and int(size) == len(contents[name])
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--target", tmp_path / "there", wheel]
    subprocess.run(command, check=True)
    code = "import cymem; cymem.__path__[:] = ['stripped']; import cymem.cymem as it; print(it.__file__, it.Pool())"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "there", capture_output=True, text=True)
    assert f"{path} <cymem.cymem.Pool" in run.stdout, run.stderr


PATCHED = sorted((Path(numpy.__file__).parents[1] / "numpy.libs").glob("lib[gq]*.so*"))


@pytest.mark.skipif(not which("strip") or not PATCHED, reason="there is no `strip`, or NumPy brings no libraries")
def test_wheelhouse_leaves_what_strip_would_break(tmp_path):
    """Objects that patchelf has changed, as those of NumPy's wheel: the system loads them afterwards."""
    wheel = wheel_of(
        tmp_path, "patched", "1", files={f"patched.libs/{path.name}": path.read_bytes() for path in PATCHED}
    )
    strip(wheel)
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # Libraries of older NumPys do not know that those which they need lie beside them.
    beside = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "patched.libs")}
    for path in PATCHED:
        code = f"import ctypes; ctypes.CDLL({str(tmp_path / 'patched.libs' / path.name)!r})"
        run = subprocess.run([sys.executable, "-S", "-c", code], env=beside, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr


def test_wheelhouse_pins_are_those_of_constraints():
    """With the versions for the other Python, not for this one."""
    found = {python: pins(Target(python, PLATFORM), ROOT / "constraints.txt") for python in ("3.10", "3.12")}
    assert found["3.10"]["numpy"] != found["3.12"]["numpy"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    names = {Requirement(line).name for line in lines if not line.startswith("#")}
    assert found["3.12"].keys() == names


def test_wheelhouse_is_installed_over_another_pythons_packages(tmp_path):
    """The commands of docs/offline.md, over the packages of this Python; with a wheel that requires nothing."""
    [commands] = re.findall(r"(?ms)^```sh\n(.*?)^```", (ROOT / "docs" / "offline.md").read_text())
    wheel_of(tmp_path / "wheelhouse-3.12", "ours", "1")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    commands = commands.replace("thinc-torchopt", "ours")
    run = subprocess.run(["bash", "-e", "-c", commands], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    code = "import sys, ours, importlib.util as i; print(sys.prefix, ours.__file__, i.find_spec('torch').origin)"
    command = [tmp_path / "offline" / "bin" / "python", "-c", code]
    shown = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout.split()
    assert shown[0] == str(tmp_path / "offline") and shown[1].startswith(shown[0]) and shown[2] == torch.__file__
