"""The one launch of two processes, for all tests that look at what they did."""

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
import torch

from ...conftest import ROOT
from ...forks import Started, begin
from ...spacy_cli import toy_corpus

WORKER = "tests.addons.distributed.worker"
RUN_WORKER = f"import runpy; runpy.run_module({WORKER!r}, run_name='__main__', alter_sys=True)"


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


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def variables_of_ranks(size=2):
    """What torch's launcher sets for each rank."""
    all_have = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    all_have |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    return [all_have | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def launch(folder, *names, ranks=2):
    """Run worker.py. Without torch's launcher, which has tests of its own, ranks need not import everything."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(Started(RUN_WORKER, folder, *names, variables=variables))
            for variables in variables_of_ranks(ranks)
        ]
        for process in processes:
            printed, _ = process.communicate(timeout=900)
            assert process.returncode == 0, printed


def launch_on_double(folder, *names):
    """In forks of this process, which has imported the double."""
    with (folder / "printed").open("wb") as file:
        options = {"stdout": file.fileno(), "stderr": file.fileno(), "folder": str(ROOT)}
        words = [str(folder), *names]
        processes = [begin(RUN_WORKER, *words, **options, variables=variables) for variables in variables_of_ranks()]
        statuses = [os.waitpid(process, 0)[1] for process in processes]
    assert statuses == [0, 0], (folder / "printed").read_text("utf8")


def launch_on_gpu(folder, *names, ranks=2):
    """With torch's launcher: a process that has forked can't use CUDA."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", WORKER, str(folder), *names]
    run = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=900
    )
    assert run.returncode == 0, run.stdout + run.stderr
