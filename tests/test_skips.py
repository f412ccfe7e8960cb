"""What a session says of skipped tests, and when it fails."""

import os
import subprocess
import sys

import pytest

from .conftest import ROOT
from .skips import main

FLOWER = "flwr is not installed: make test-federated"
TESTS = """
import pytest

@pytest.mark.parametrize("i", range(3))
def test_on_a_gpu(i):
    pytest.skip("no CUDA device")

@pytest.mark.skipif({reason!r} != "", reason={reason!r})
def test_sometimes(): pass
"""


def session(folder, reason, *options, **env):
    (folder / "test_some.py").write_text(TESTS.format(reason=reason))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.skips", "-p", "no:cacheprovider", *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TESTS_RAN": "", **env}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("options", [["-p", "no:xdist"], ["-n", "1"]], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    "reason, needed, passes", [(FLOWER, "torchao", True), (FLOWER, "torchao|flwr", False), ("tired", "flwr", False)]
)
def test_skips_for_another_reason_fail_the_session(tmp_path, reason, needed, passes, options):
    run = session(tmp_path, reason, *options, TESTS_NEED=needed)
    assert "\n    3  no CUDA device: make test-gpu\n" in run.stdout and f"\n    1  {reason}: " in run.stdout
    assert run.returncode == (0 if passes else 1)
    assert ("test_some.py::test_sometimes: expected a reason of tests/skips.py" in run.stdout) is not passes


def test_skips_of_several_sessions_are_those_that_none_of_them_ran(tmp_path, capsys):
    (ran := tmp_path / "ran").mkdir()
    for reason in (FLOWER, ""):
        session(tmp_path, reason, TESTS_RAN=str(ran))
    main(ran, "make test-federated")
    assert capsys.readouterr().out.splitlines()[1:] == ["    3  no CUDA device: make test-gpu"]
    with pytest.raises(SystemExit, match=r"make test-gpu run these .* none did:\n.*::test_on_a_gpu"):
        main(ran, "make test-gpu")
