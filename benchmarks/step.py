"""Time of one update, side by side in one run: bare torch, TorchOptimizer, thinc's Adam.

    python benchmarks/step.py [--rounds 30] [--busy 2] [--json out.json]
    python benchmarks/step.py --device cuda [--json out.json]

Two models: (a) a CNN pipeline (tok2vec, tagger, parser, about 35 tensors, thinc's arrays), (b) BERT base's shapes (197
tensors, 109M params, a torch module in a PyTorchWrapper). Two sets of features: `plain` is the algorithm, and doing
away with the gradients; `full` adds clipping (by the global norm; thinc: tensor by tensor), skipping of gradients that
are not finite (not thinc), and averages.

An update starts with the gradients in their places and ends with the params updated and the gradients gone: those of
thinc's arrays are zero, in place; those of a torch module are None, but for thinc's own optimizer, which sets them to
zero too. The contestants take turns, each on tensors of its own with the same values, so that a slow moment of the
machine meets all of them. Figures are medians.

Then four shapes of thinc's arrays, with clipping and the guard: 33 x 30,000, 200 x 5,000, 1,000 x 100, 1 x 1,000.
There the figures are microseconds of processor time a tensor, on one thread, the smallest of all rounds: what the code
itself takes. `--shapes` measures these alone.
"""

import argparse
import functools
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import machine
import numpy
import spacy
import torch
from spacy.training import Example
from thinc.api import Adam as ThincAdam
from thinc.api import Model, PyTorchWrapper, require_gpu

from thinc_torchopt import Adam, TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW

LEARN_RATE = 1e-4
BARE = "torch AdamW(fused)"
MAX_NORM = 1.0
Contestant = tuple[Callable[[], None], Callable[[], None]]  # fill in the gradients (not timed), update (timed)


def cnn_models() -> list[Model]:
    """The models of a pipeline as spaCy builds it."""
    nlp = spacy.blank("en")
    listener = {"model": {"tok2vec": {"@architectures": "spacy.Tok2VecListener.v1", "width": 96, "upstream": "*"}}}
    nlp.add_pipe("tok2vec")
    nlp.add_pipe("tagger", config=listener)
    nlp.add_pipe("parser", config=listener)
    words = [f"w{i}" for i in range(60)]
    example = Example.from_dict(
        spacy.tokens.Doc(nlp.vocab, words=words),
        {
            "tags": [f"T{i % 50}" for i in range(60)],
            "heads": [max(i - 1, 0) for i in range(60)],
            "deps": [f"d{i % 40}" for i in range(60)],
        },
    )
    nlp.initialize(lambda: [example])
    return [proc.model for _, proc in nlp.pipeline]


def bert_models(width: int = 768, depth: int = 12, *, device: str = "cpu") -> list[Model]:
    """The shapes of BERT, nested as in a real implementation. By default BERT base's."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.output = (torch.nn.Linear(width, width) for _ in range(4))
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
            self.norm_1, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    class Bert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.positions, self.types = (torch.nn.Embedding(n, width) for n in (30522, 512, 2))
            self.norm = torch.nn.LayerNorm(width)
            self.layers = torch.nn.ModuleList(Layer() for _ in range(depth))

    return [PyTorchWrapper(Bert().to(device))]


def tensor_on(array: Any) -> torch.Tensor:
    """A tensor on the memory of an array of NumPy's or CuPy's."""
    return torch.from_numpy(array) if isinstance(array, numpy.ndarray) else torch.from_dlpack(array)


def tensors_of(models: list[Model]) -> Iterator[torch.Tensor]:
    """Every param, as a tensor that shares its memory."""
    for model in models:
        for node in model.walk():
            yield from (tensor_on(node.get_param(name)) for name in node.param_names)
            for shim in node.shims:
                yield from (param.detach() for param in shim._model.parameters())


def grads_of(models: list[Model]) -> list[tuple[torch.nn.Parameter | None, torch.Tensor]]:
    """Every gradient, allocated, as a tensor that shares its memory; with the torch param whose it will be, if it is
    one's.
    """
    found: list[tuple[torch.nn.Parameter | None, torch.Tensor]] = []
    for model in models:
        for node in model.walk():
            for name in node.param_names:
                node.set_grad(name, node.ops.xp.zeros_like(node.get_param(name)))
                found.append((None, tensor_on(node.get_grad(name))))
            for shim in node.shims:
                found += [(param, torch.zeros_like(param)) for param in shim._model.parameters()]
    return found


def put_in(grads: list[tuple[torch.nn.Parameter | None, torch.Tensor]], values: list[torch.Tensor]) -> None:
    """Put gradients in their places. They are small, as in real training."""
    torch._foreach_copy_([grad for _, grad in grads], values)
    for param, grad in grads:
        if param is not None:
            param.grad = grad


def thinc_contestant(models: list[Model], optimizer: Any, values: list[torch.Tensor]) -> Contestant:
    grads = grads_of(models)

    def fill() -> None:
        put_in(grads, values)

    def update() -> None:
        if isinstance(optimizer, TorchOptimizer):
            with optimizer.joint_step():
                for model in models:
                    model.finish_update(optimizer)
        else:
            for model in models:
                model.finish_update(optimizer)

    return fill, update


def torch_contestant(
    tensors: list[torch.Tensor],
    values: list[torch.Tensor],
    *,
    clips: bool,
    averages: bool,
    keeps_grads: bool,
    **how: bool,
) -> Contestant:
    params = [torch.nn.Parameter(tensor.clone()) for tensor in tensors]
    grads = [(param, torch.zeros_like(param)) for param in params]
    data = [param.detach() for param in params]
    averaged = [torch.zeros_like(param) for param in data]
    optimizer = torch.optim.AdamW(params, lr=LEARN_RATE, **how)

    def fill() -> None:
        put_in(grads, values)

    def update() -> None:
        if clips:
            torch.nn.utils.clip_grad_norm_(params, MAX_NORM)
        optimizer.step()
        if averages:
            torch._foreach_lerp_(averaged, data, 1e-4)
        optimizer.zero_grad(set_to_none=not keeps_grads)

    return fill, update


def seconds_taken(update: Callable[[], object], device: str) -> float:
    """The time of an update. On a GPU by events of its own, which come in the order of its work."""
    if device == "cpu":
        start = time.perf_counter()
        update()
        return time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    update()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / 1e3


def race(contestants: dict[str, Contestant], rounds: int, device: str) -> dict[str, float]:
    """Median milliseconds of each, after two rounds to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 2):
        for name, (fill, update) in contestants.items():
            fill()
            seconds = seconds_taken(update, device)
            if turn >= 2:
                times[name].append(1e3 * seconds)
    return {name: statistics.median(found) for name, found in times.items()}


def bandwidth(device: str) -> float:
    """Bytes a second that a copy reads and writes."""
    source = torch.zeros(2**28 if device == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    best = min(seconds_taken(lambda: target.copy_(source), device) for _ in range(10))
    return 2 * source.numel() * source.element_size() / best


def contestants_for(
    build: Callable[[], list[Model]], features: dict[str, Any], *, clips: bool, averages: bool
) -> dict[str, Contestant]:
    models = build()
    tensors, keeps_grads = list(tensors_of(models)), not any(node.shims for model in models for node in model.walk())
    rng = numpy.random.default_rng(0)
    values = [
        torch.from_numpy(rng.normal(size=tuple(tensor.shape), scale=1e-3).astype("f")).to(tensor.device)
        for tensor in tensors
    ]
    ours = TorchOptimizer(AdamW(), LEARN_RATE, max_nonfinite=20 if clips else 0, **features)
    bare = functools.partial(torch_contestant, tensors, values, clips=clips, averages=averages, keeps_grads=keeps_grads)
    foreach = {"torch AdamW(foreach)": bare(foreach=True)} if any(tensor.is_cuda for tensor in tensors) else {}
    return {
        BARE: bare(fused=True),
        **foreach,
        "TorchOptimizer + torch.AdamW": thinc_contestant(build(), ours, values),
        "drop-in Adam": thinc_contestant(build(), Adam(LEARN_RATE, L2=0.01, **features), values),
        "thinc Adam": thinc_contestant(build(), ThincAdam(LEARN_RATE, L2=0.01, **features), values),
    }


def measure(build: Callable[[], list[Model]], rounds: int, *, full: bool, device: str) -> dict[str, float]:
    features: dict[str, Any] = {"grad_clip": MAX_NORM if full else 0.0, "use_averages": full}
    return race(contestants_for(build, features, clips=full, averages=full), rounds, device)


def models_of_shape(n_tensors: int, size: int) -> list[Model]:
    """A model with so many params of one dimension."""
    rng = numpy.random.default_rng(0)
    layers = []
    for _ in range(n_tensors):
        layers.append(Model("layer", lambda model, X, is_train: (X, lambda dY: dY), params={"W": None}))
        layers[-1].set_param("W", layers[-1].ops.asarray(rng.normal(size=size).astype("f")))
    return [Model("root", lambda model, X, is_train: (X, lambda dY: dY), layers=layers)]


def processor_time(contestants: dict[str, Contestant], rounds: int) -> dict[str, float]:
    """The least processor time of each in milliseconds, on one thread, after three rounds to warm up."""
    least = dict.fromkeys(contestants, float("inf"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.disable()
    try:
        for turn in range(rounds + 3):
            for name, (fill, update) in contestants.items():
                fill()
                start = time.process_time()
                update()
                if turn >= 3:
                    least[name] = min(least[name], 1e3 * (time.process_time() - start))
    finally:
        gc.enable()
        torch.set_num_threads(threads)
    return least


def measure_shapes(rounds: int, results: dict[str, dict[str, float]], device: str) -> None:
    """Measure four shapes, and print what comes out."""
    for n_tensors, size in ((33, 30_000), (200, 5_000), (1_000, 100), (1, 1_000)):
        title = f"{n_tensors:,} x {size:,}"
        build = functools.partial(models_of_shape, n_tensors, size)
        contestants = contestants_for(build, {"grad_clip": MAX_NORM, "use_averages": False}, clips=True, averages=False)
        times = processor_time(contestants, rounds) if device == "cpu" else race(contestants, rounds, device)
        found = results[title] = times
        print(f"\n{title}")
        for name, ms in found.items():
            print(f"  {name:30} {1e3 * ms / n_tensors:8.2f} us a tensor  {ms / found[BARE]:5.2f} x torch")


def keep_busy(stack: ExitStack, processes: int) -> None:
    """Start processes that do nothing but keep a core busy each, until the stack is closed."""
    for _ in range(processes):
        stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--busy", type=int, default=0, help="How many other processes keep a core busy meanwhile.")
    parser.add_argument("--json", help="Also write the figures to this file.")
    parser.add_argument("--shapes", action="store_true", help="Measure the shapes alone.")
    parser.add_argument("--quick", action="store_true", help="Three rounds, and a small BERT.")
    args = parser.parse_args()
    if args.device == "cuda":
        require_gpu()
    rounds = 3 if args.quick else args.rounds
    print("; ".join(f"{name}: {value}" for name, value in machine.describe(args.device).items()))
    results: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        keep_busy(stack, args.busy)
        if not args.shapes:
            measure_all(rounds, results, args.device, quick=args.quick)
        measure_shapes(rounds, results, args.device)
    if args.json:
        machine.write(args.json, "step", args.device, results)


def measure_all(rounds: int, results: dict[str, dict[str, float]], device: str, *, quick: bool) -> None:
    """Measure all models with both sets of features, and print what comes out."""
    sizes = {"(b) BERT base": (768, 12), "(c) BERT large": (1024, 24)}
    if quick:
        sizes = {"(b) a small BERT": (64, 2)}
    elif device == "cpu":  # the large one takes 30 GB, and shows the same
        del sizes["(c) BERT large"]
    models: dict[str, tuple[Callable[[], list[Model]], int]] = {"(a) CNN pipeline": (cnn_models, 10 * rounds)}
    for title, (width, depth) in sizes.items():
        models[title] = functools.partial(bert_models, width, depth, device=device), rounds
    moved = bandwidth(device)
    results["a copy"] = {"GB/s": moved / 1e9}
    print(f"A copy reads and writes {moved / 1e9:,.0f} GB/s")
    for title, (build, turns) in models.items():
        sizes_of, is_torch = [tensor.numel() for tensor in tensors_of(build())], title != "(a) CNN pipeline"
        size = sum(sizes_of)
        print(f"\n{title}: {len(sizes_of)} tensors, {size / 1e6:.1f}M params")
        if device == "cuda":  # torch keeps what models before this one had
            gc.collect()
            torch.cuda.empty_cache()
        # Five contestants with params, gradients, values to fill in, two moments and averages.
        if device == "cuda" and 5 * 6 * 4 * size > torch.cuda.mem_get_info()[0]:
            print(f"  left out: it needs {5 * 6 * 4 * size / 1e9:.0f} GB of memory")
            continue
        for features in ("plain", "full"):
            found = results[f"{title} {features}"] = measure(build, turns, full=features == "full", device=device)
            n_bytes = 4 * size * (7 + (not is_torch) + (4 if features == "full" else 0))
            for name, ms in found.items():
                # Caches and threads make it another thing on a CPU.
                share = f"  {n_bytes / moved / (ms / 1e3):4.0%} of the bandwidth" if device == "cuda" else ""
                print(
                    f"  {features:5}  {name:30} {ms:8.2f} ms  {ms / found[BARE]:5.2f} x torch  "
                    f"{found['thinc Adam'] / ms:5.2f} x faster than thinc{share}"
                )


if __name__ == "__main__":
    main()
