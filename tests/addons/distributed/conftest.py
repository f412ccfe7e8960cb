"""The one launch of two processes, for all tests that look at what they did."""

import os
import subprocess
import sys
import time

import pytest
import torch

from ...conftest import ROOT
from ...spacy_cli import toy_corpus


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """What each rank found in a scenario of worker.py, by its name."""
    # Once, also where several processes of pytest-xdist have tests that want it.
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ranks"
    try:
        folder.mkdir()
    except FileExistsError:
        for _ in range(3000):
            if (folder / "outcome").exists():
                break
            time.sleep(0.1)
    else:
        try:
            toy_corpus(folder)
            launch(folder)
            (folder / "outcome").write_text("")
        except BaseException as error:
            (folder / "outcome").write_text(str(error) or repr(error))
            raise
    assert (folder / "outcome").read_text() == ""

    def found(name):
        return [torch.load(folder / f"{name}-{rank}.pt", weights_only=False) for rank in range(2)]

    found.folder = folder
    return found


def launch(folder, *names, ranks=2):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    run = subprocess.run(
        [*command, "-m", "tests.addons.distributed.worker", str(folder), *names],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ
        | {"OMP_NUM_THREADS": "1"}
        | ({} if "on_gpu" in names or "on_nccl" in names else {"CUDA_VISIBLE_DEVICES": ""}),
        timeout=900,
    )
    assert run.returncode == 0, run.stdout + run.stderr
