"""How fast an optimizer's state goes to disk and comes back, against copying the file: `to_disk` and `from_disk`; and
how long a training waits for a checkpoint, with and without `in_background`.

    python benchmarks/checkpoint.py [--gigabytes 1] [--rounds 5] [--folder PATH]

A torch module in a pipeline, trained by AdamW for a step, so that its state has the size asked for. The copy is read,
written and synced.
Budgets: less than twice the time of the copy, and no second copy of the state in memory. Memory is what the process
    holds at most meanwhile
beyond what it held before, without pages of mapped files, which the kernel can drop at any time. Linux only.

Times are the quickest of all rounds, and medians: on a virtual machine fresh memory may have to come from the host,
which takes as long again as all the rest, now for the one and now for the other.
"""

import argparse
import gc
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import spacy
import torch
from thinc.api import PyTorchWrapper

from thinc_torchopt import Checkpoints, TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW

MIB = 2**20
WIDTH = 2048


def build(n_bytes: int) -> tuple[spacy.Language, TorchOptimizer]:
    """A pipeline of one torch module, and an optimizer that has made a step."""
    n_layers = max(1, round(n_bytes / (2 * 4 * WIDTH * WIDTH)))
    module = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(n_layers))
    nlp = spacy.blank("en")
    nlp.add_pipe("tagger").model = PyTorchWrapper(module)  # type: ignore[attr-defined]
    optimizer = TorchOptimizer(AdamW())
    optimizer.initialize(nlp)
    for param in module.parameters():
        param.grad = torch.full_like(param, 0.1)
    optimizer.finish_update(nlp.get_pipe("tagger").model)  # type: ignore[attr-defined]
    for param in module.parameters():
        param.grad = None
    return nlp, optimizer


def memory(function: Callable[[], object]) -> int:
    """The most that the process holds while a function runs, in bytes, beyond what it held before."""

    def held() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    gc.collect()
    before = most = held()
    thread = threading.Thread(target=function)
    thread.start()
    while thread.is_alive():
        most = max(most, held())
        thread.join(0.002)
    return most - before


def seconds(function: Callable[[], object], rounds: int) -> tuple[float, float]:
    """The quickest, and the median."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times), statistics.median(times)


def copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    for path in target.iterdir():
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def seconds_of_saves(
    nlp: spacy.Language, optimizer: TorchOptimizer, folder: Path, rounds: int, *, in_background: bool
) -> tuple[float, float]:
    """How long a training waits when it saves a checkpoint. RETURNS (tuple): The quickest, and the median."""
    times = []
    with Checkpoints(folder, nlp, optimizer, keep=1, in_background=in_background) as checkpoints:
        for step, _ in checkpoints.resume([None] * (rounds + 1)):
            start = time.perf_counter()
            checkpoints.save()
            if step:  # the first save also imports
                times.append(time.perf_counter() - start)
            while in_background and not (folder / f"step-{step:08d}").exists():
                time.sleep(0.01)  # steps of the training
    return min(times), statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, default=None, help="on the disk to measure; default: the one for temporary files"
    )
    args = parser.parse_args()
    nlp, optimizer = build(int(args.gigabytes * 2**30))
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        optimizer.to_disk(folder / "state")
        size = sum(path.stat().st_size for path in (folder / "state").iterdir())

        def load() -> None:
            fresh = TorchOptimizer(AdamW())
            fresh.initialize(nlp)
            fresh.from_disk(folder / "state")

        copied = seconds(lambda: copy(folder / "state", folder / "copy"), args.rounds)
        written = seconds(lambda: optimizer.to_disk(folder / "state"), args.rounds)
        read = seconds(load, args.rounds)
        print(f"{size / MIB:.0f} MiB, {torch.get_num_threads()} threads")
        print(f"{'':12} {'quickest':>8} {'x copy':>8} {'median':>8} {'x copy':>8} {'MiB more':>9}   budget")
        print(f"{'copy, synced':12} {copied[0]:8.2f} {1:8.2f} {copied[1]:8.2f} {1:8.2f}")
        for what, found, function, allowed in (
            ("to_disk", written, lambda: optimizer.to_disk(folder / "state"), 0.0),
            ("from_disk", read, load, 1.0),  # the state itself
        ):
            more = memory(function)
            ratios = [one / other for one, other in zip(found, copied)]
            verdict = "ok" if ratios[0] < 2 and more < (allowed + 0.1) * size else "OVER BUDGET"
            print(
                f"{what:12} {found[0]:8.2f} {ratios[0]:8.2f} {found[1]:8.2f} {ratios[1]:8.2f} {more / MIB:9.0f}   "
                f"{verdict}"
            )
        for what, in_background in (("save, waits", False), ("save", True)):
            found = seconds_of_saves(nlp, optimizer, folder / what, args.rounds, in_background=in_background)
            ratios = [one / other for one, other in zip(found, copied)]
            print(f"{what:12} {found[0]:8.2f} {ratios[0]:8.2f} {found[1]:8.2f} {ratios[1]:8.2f}")


if __name__ == "__main__":
    main()
