"""Time of one update of Modular, side by side in one run with bare torch: clipping by the global norm, Adam, decay.

    python benchmarks/modular.py [--rounds 15]

BERT base's shapes: 197 tensors, 109M params, float32, on the CPU, at one thread and at two. Bare torch is
`clip_grad_norm_` and `AdamW(fused=True)`. The contestants take turns, on the same params and gradients, so that a slow
moment of the machine meets all of them. Gradients are scaled by `clip_grad_norm_` in place: small ones are put in
before each round. Figures are medians, with the ratios of each round.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from thinc_torchopt.addons.modular.optimizer import Modular

CHAINS = {
    "adam": ["adam"],
    "clip + adam": ["l2-global-clipping", "adam"],
    "fedprox + clip + adam": ["l2-global-clipping", "adam"],
    "momentum + clip": ["momentum", "l2-global-clipping"],
    "clip + lion": ["l2-global-clipping", "lion"],
    "clip + yogi": ["l2-global-clipping", "yogi"],
    "adam after l2-clipping": ["l2-clipping", "adam"],
}


def bert_params() -> list[torch.nn.Parameter]:
    """BERT base's shapes."""
    layer = [(768, 768), (768,)] * 4 + [(3072, 768), (3072,), (768, 3072), (768,)] + [(768,)] * 4
    shapes = [(30522, 768), (512, 768), (2, 768), (768,), (768,), *(layer * 12)]
    return [torch.nn.Parameter(torch.randn(shape) * 0.02) for shape in shapes]


def measure(rounds: int, threads: int) -> None:
    torch.set_num_threads(threads)
    params = bert_params()
    grads = [torch.randn_like(param) * 1e-3 for param in params]
    for param, grad in zip(params, grads):
        param.grad = grad.clone()
    fused = torch.optim.AdamW(params, lr=1e-4, fused=True)

    def bare() -> None:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        fused.step()

    contestants: dict[str, Callable[[], object]] = {"torch: clip_grad_norm_ + AdamW(fused)": bare}
    for name, modules in CHAINS.items():
        regularizers = ["fedprox"] if name.startswith("fedprox") else []
        optimizer = Modular(params, 1e-4, 0.01, modules=modules, regularizers=regularizers)
        contestants[f"Modular: {name}"] = optimizer.step
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for i in range(rounds + 2):
        for name, update in contestants.items():
            torch._foreach_copy_([param.grad for param in params], grads)
            started = time.perf_counter()
            update()
            if i > 1:  # the first ones make state
                times[name].append(time.perf_counter() - started)
    base = next(iter(times.values()))
    print(f"\n{threads} thread(s), {sum(param.numel() for param in params) / 1e6:.0f}M params in {len(params)} tensors")
    print(f"{'':44}{'ms':>8}{'x torch':>9}")
    for name, found in times.items():
        ratio = statistics.median(time / other for time, other in zip(found, base))
        print(f"{name:44}{1000 * statistics.median(found):8.1f}{ratio:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    arguments = parser.parse_args()
    for threads in arguments.threads:
        measure(arguments.rounds, threads)


if __name__ == "__main__":
    main()
