"""The commands of docs/distributed.md that start several processes."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from thinc_torchopt.loop.checkpoint_folder import steps_of

from ...conftest import CONFIGS, ROOT
from ...spacy_cli import flags_of, toy_corpus

PAGE = (ROOT / "docs" / "distributed.md").read_text()
ENV = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
QUICK = shlex.join(
    map(str, flags_of({"training.max_steps": 6, "training.eval_frequency": 3, "training.batcher.size": 40}))
)


def commands():
    return [line for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]


def run_together(lines, folder, **env):
    """Run commands as they stand, at the same time, in a folder with a small corpus: those of several machines."""
    toy_corpus(folder)
    text = (CONFIGS / "distributed.cfg").read_text()
    for name in ("train", "dev"):
        text = text.replace(f"\n{name} = null\n", f'\n{name} = "{name}.spacy"\n')
    (folder / "config.cfg").write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines = [line.replace("machine0:29500", f"127.0.0.1:{port}").replace(":29500", f":{port}") for line in lines]
    started = [
        subprocess.Popen(
            ["bash", "-c", line],
            cwd=folder,
            env=ENV | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in lines
    ]
    try:
        for process in started:
            output, _ = process.communicate(timeout=200)
            assert process.returncode == 0, output
    finally:
        for process in started:
            process.kill()
    assert (folder / "training" / "model-best" / "meta.json").is_file()
    # Ranks above 0 have no --output, and agree on its state.
    assert steps_of(folder / "training" / "state")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["spacy torchopt train", "torchrun"])
def test_docs_one_machine(launcher, tmp_path):
    [command] = [line for line in commands() if line.startswith(launcher) and "--nnodes" not in line]
    run_together([f"{command} {QUICK}"], tmp_path)


@pytest.mark.slow
def test_docs_several_machines(tmp_path):
    pair = [line for line in commands() if "--nnodes 2" in line]
    assert len(pair) == 2 and len(commands()) == 4
    run_together([f"{line} {QUICK}" for line in pair], tmp_path)


@pytest.mark.slow
def test_docs_slurm(tmp_path):
    """With stand-ins for Slurm's commands: `srun` runs a command on each of two machines."""
    [script] = re.findall(r"^```slurm\n(.*?)^```", PAGE, re.M | re.S)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "scontrol").write_text("#!/bin/bash\necho localhost\n")
    (folder / "srun").write_text(
        '#!/bin/bash\nSLURM_NODEID=0 "$@" & first=$!\nSLURM_NODEID=1 "$@" & second=$!\nwait $first && wait $second\n'
    )
    for name in ("scontrol", "srun"):
        (folder / name).chmod(0o755)
    script = script.replace("--max-restarts 3", f"--max-restarts 3 {QUICK.replace(chr(34), '')}")
    slurm = {"SLURM_JOB_NODELIST": "n[0-1]", "SLURM_NNODES": "2", "SLURM_CPUS_PER_TASK": "1"}
    run_together([script], tmp_path, PATH=f"{folder}:{ENV['PATH']}", **slurm)
