"""`make test-gpu` on a machine without a GPU."""

import subprocess
import sys

import pytest
import torch

from ..conftest import ROOT


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_tests_say_at_once_what_is_missing():
    run = subprocess.run([sys.executable, "-m", "tests.gpu"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1 and not run.stdout
    assert run.stderr.startswith("Can't run the tests on a GPU: expected ")
