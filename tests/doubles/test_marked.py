"""The tests that are marked `device`, on the double of a GPU. They run in a process of their own: thinc looks for CuPy
when it is imported.
"""

import subprocess
import sys

import pytest
import torch

from ..conftest import ROOT

MARK = "pytest.mark.device"


@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(), reason="a torch with CUDA asks for the driver"
)
def test_marked_tests_pass_on_a_gpu(request):
    files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if MARK in path.read_text("utf8"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.doubles.plugin"]
    marks = " and ".join(filter(None, ["device", request.config.option.markexpr]))
    run = subprocess.run(
        [*command, "--device", "double", "-m", marks, *files], cwd=ROOT, capture_output=True, text=True, timeout=1200
    )
    assert run.returncode == 0, run.stdout[-10_000:] + run.stderr
