"""The benchmarks that run on a GPU, quickly. Without one they run on the CPU."""

import json
import subprocess
import sys

import pytest

from ..conftest import ROOT


@pytest.mark.gpu
@pytest.mark.slow
def test_benchmarks_write_one_file(request, tmp_path):
    device = request.config.getoption("--device", "cpu")
    for name in ("step", "train"):
        command = [
            sys.executable,
            f"benchmarks/{name}.py",
            "--quick",
            "--device",
            device,
            "--json",
            tmp_path / "all.json",
        ]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads((tmp_path / "all.json").read_text())
    assert set(found) == {"machine", "step", "train"} and found["machine"]["torch"]
    assert all(ms > 0 for times in found["step"].values() for ms in times.values())
    assert found["train"]["CNN: spaCy, torch.AdamW"] > 0 and found["train"]["CNN: spaCy, thinc's Adam"] > 0
