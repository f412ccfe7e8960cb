"""What it costs to keep the state of an optimizer when its model grows: `preserve_optimizer_state`, against its
budgets.

    python benchmarks/state.py [--rounds 20] [--params 1000] [--elements 25000000]

1,000 params of 25M elements in all, in 500 layers of weight and bias. Of them grow: none; one head (the usual case:
labels came); a tenth of the layers; all of them, by a tenth of their rows. Budgets: 100 ms, and no more memory than the
grown tensors need. Memory is what the process held at most meanwhile, beyond what it held before.

Times are medians, and the quickest of all rounds: on a busy machine the median is also the time that other processes
took.
"""

import argparse
import ctypes
import gc
import statistics
import time
from pathlib import Path

import torch

from thinc_torchopt.core.state.preserve import preserve_optimizer_state

BUDGET = 100.0
MIB = 2**20
OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "Adam, amsgrad": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True),
}


def build(n_params: int, n_elements: int, n_grown: int, rows: float) -> torch.nn.Module:
    """Layers of weight and bias, the last of them with more rows."""
    n_layers, width = n_params // 2, round((n_elements / (n_params // 2)) ** 0.5)
    sizes = [width if i < n_layers - n_grown else round(width * rows) for i in range(n_layers)]
    with torch.device("meta"):
        model = torch.nn.ModuleList(torch.nn.Linear(width, size) for size in sizes)
    return model.to_empty(device="cpu")


def peak_memory() -> int:
    """The most that the process held in memory since `reset_peak_memory`, in bytes. Linux only."""
    return next(
        1024 * int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )


def reset_peak_memory() -> None:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # or else what the last round freed would be used again, unseen
    Path("/proc/self/clear_refs").write_text("5")


def measure(name: str, n_grown: int, rows: float, args: argparse.Namespace) -> None:
    old_model = build(args.params, args.elements, n_grown, 1.0)
    new_model = build(args.params, args.elements, n_grown, rows)
    with torch.no_grad():
        for param in [*old_model.parameters(), *new_model.parameters()]:
            param.zero_()
    optimizer = OPTIMIZERS[name](old_model.parameters())
    for param in old_model.parameters():
        param.grad = torch.full_like(param, 0.1)
    optimizer.step()
    optimizer.zero_grad()
    times, memory = [], 0
    for _ in range(args.rounds):
        reset_peak_memory()
        before = peak_memory()
        start = time.perf_counter()
        made = preserve_optimizer_state(optimizer, new_model, old_model)
        times.append(1e3 * (time.perf_counter() - start))
        memory = max(memory, peak_memory() - before)
        del made
    made = preserve_optimizer_state(optimizer, new_model, old_model)
    pairs = zip(old_model.parameters(), new_model.parameters())
    grown = sum(
        value.nbytes for old, new in pairs if old.shape != new.shape for value in made.state[new].values() if value.ndim
    )
    median = statistics.median(times)
    verdict = "ok" if median < BUDGET else "OVER BUDGET"
    print(
        f"{name:16} {2 * n_grown:6} {median:10.1f} {min(times):10.1f} {memory / MIB:10.0f} {grown / MIB:10.0f}   "
        f"{verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--params", type=int, default=1000)
    parser.add_argument("--elements", type=int, default=25_000_000)
    args = parser.parse_args()
    layers = args.params // 2
    print(
        f"{args.params} params, {args.elements / 1e6:.0f}M elements, {torch.get_num_threads()} threads. Milliseconds, "
        "MiB"
    )
    print(f"{'':16} {'grown':>6} {'median':>10} {'quickest':>10} {'memory':>10} {'of grown':>10}")
    for name in OPTIMIZERS:
        for n_grown in (0, 1, layers // 10, layers):
            measure(name, n_grown, 1.1, args)


if __name__ == "__main__":
    main()
