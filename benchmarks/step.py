"""Time of one update, side by side in one run: bare torch, TorchOptimizer, thinc's Adam.

    python benchmarks/step.py [--rounds 30] [--busy 2] [--json out.json]

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
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy
import spacy
import thinc
import torch
from spacy.training import Example
from thinc.api import Adam as ThincAdam
from thinc.api import Model, PyTorchWrapper

from thinc_torchopt import Adam, TorchOptimizer
from thinc_torchopt.algorithms.torch_classes import AdamW

LEARN_RATE = 1e-4
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


def bert_models() -> list[Model]:
    """BERT base's shapes, nested as in a real implementation."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.output = (torch.nn.Linear(768, 768) for _ in range(4))
            self.up, self.down = torch.nn.Linear(768, 3072), torch.nn.Linear(3072, 768)
            self.norm_1, self.norm_2 = torch.nn.LayerNorm(768), torch.nn.LayerNorm(768)

    class Bert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.positions, self.types = (torch.nn.Embedding(n, 768) for n in (30522, 512, 2))
            self.norm = torch.nn.LayerNorm(768)
            self.layers = torch.nn.ModuleList(Layer() for _ in range(12))

    return [PyTorchWrapper(Bert())]


def arrays_of(models: list[Model]) -> Iterator[Any]:
    """Every param, as an array that shares its memory."""
    for model in models:
        for node in model.walk():
            yield from (node.get_param(name) for name in node.param_names)
            for shim in node.shims:
                yield from (param.detach().numpy() for param in shim._model.parameters())


def grads_of(models: list[Model]) -> list[tuple[torch.nn.Parameter | None, torch.Tensor]]:
    """Every gradient, allocated, as a tensor that shares its memory; with the torch param whose it will be, if it is
    one's.
    """
    found: list[tuple[torch.nn.Parameter | None, torch.Tensor]] = []
    for model in models:
        for node in model.walk():
            for name in node.param_names:
                node.set_grad(name, numpy.zeros_like(node.get_param(name)))
                found.append((None, torch.from_numpy(node.get_grad(name))))
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
    arrays: list[Any], values: list[torch.Tensor], *, clips: bool, averages: bool, keeps_grads: bool
) -> Contestant:
    params = [torch.nn.Parameter(torch.from_numpy(array.copy())) for array in arrays]
    grads = [(param, torch.zeros_like(param)) for param in params]
    data = [param.detach() for param in params]
    averaged = [torch.zeros_like(param) for param in data]
    optimizer = torch.optim.AdamW(params, lr=LEARN_RATE, fused=True)

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


def race(contestants: dict[str, Contestant], rounds: int) -> dict[str, float]:
    """Median milliseconds of each, after two rounds to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 2):
        for name, (fill, update) in contestants.items():
            fill()
            start = time.perf_counter()
            update()
            if turn >= 2:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(found) for name, found in times.items()}


def contestants_for(
    build: Callable[[], list[Model]], features: dict[str, Any], *, clips: bool, averages: bool
) -> dict[str, Contestant]:
    models = build()
    arrays, keeps_grads = list(arrays_of(models)), not any(node.shims for model in models for node in model.walk())
    rng = numpy.random.default_rng(0)
    values = [torch.from_numpy(rng.normal(size=array.shape, scale=1e-3).astype("f")) for array in arrays]
    ours = TorchOptimizer(AdamW(), LEARN_RATE, max_nonfinite=20 if clips else 0, **features)
    return {
        "torch AdamW(fused)": torch_contestant(arrays, values, clips=clips, averages=averages, keeps_grads=keeps_grads),
        "TorchOptimizer + torch.AdamW": thinc_contestant(build(), ours, values),
        "drop-in Adam": thinc_contestant(build(), Adam(LEARN_RATE, L2=0.01, **features), values),
        "thinc Adam": thinc_contestant(build(), ThincAdam(LEARN_RATE, L2=0.01, **features), values),
    }


def measure(build: Callable[[], list[Model]], rounds: int, *, full: bool) -> dict[str, float]:
    features: dict[str, Any] = {"grad_clip": MAX_NORM if full else 0.0, "use_averages": full}
    return race(contestants_for(build, features, clips=full, averages=full), rounds)


def models_of_shape(n_tensors: int, size: int) -> list[Model]:
    """A model with so many params of one dimension."""
    rng = numpy.random.default_rng(0)
    layers = []
    for _ in range(n_tensors):
        layers.append(Model("layer", lambda model, X, is_train: (X, lambda dY: dY), params={"W": None}))
        layers[-1].set_param("W", rng.normal(size=size).astype("f"))
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


def measure_shapes(rounds: int, results: dict[str, dict[str, float]]) -> None:
    """Measure four shapes, and print what comes out."""
    for n_tensors, size in ((33, 30_000), (200, 5_000), (1_000, 100), (1, 1_000)):
        title = f"{n_tensors:,} x {size:,}"
        build = functools.partial(models_of_shape, n_tensors, size)
        contestants = contestants_for(build, {"grad_clip": MAX_NORM, "use_averages": False}, clips=True, averages=False)
        found = results[title] = processor_time(contestants, rounds)
        bare = found["torch AdamW(fused)"]
        print(f"\n{title}")
        for name, ms in found.items():
            print(f"  {name:30} {1e3 * ms / n_tensors:8.2f} us a tensor  {ms / bare:5.2f} x torch")


def keep_busy(stack: ExitStack, processes: int) -> None:
    """Start processes that do nothing but keep a core busy each, until the stack is closed."""
    for _ in range(processes):
        stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--busy", type=int, default=0, help="How many other processes keep a core busy meanwhile.")
    parser.add_argument("--json", help="Also write the figures to this file.")
    parser.add_argument("--shapes", action="store_true", help="Measure the shapes alone.")
    args = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads; ", end="")
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, thinc {thinc.__version__}, spaCy "
        f"{spacy.__version__}"
    )
    results: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        keep_busy(stack, args.busy)
        if not args.shapes:
            measure_all(args.rounds, results)
        measure_shapes(args.rounds, results)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=2)


def measure_all(rounds: int, results: dict[str, dict[str, float]]) -> None:
    """Measure both models with both sets of features, and print what comes out."""
    for title, build, turns in (("(a) CNN pipeline", cnn_models, 10 * rounds), ("(b) BERT base", bert_models, rounds)):
        arrays = list(arrays_of(build()))
        print(f"\n{title}: {len(arrays)} tensors, {sum(array.size for array in arrays) / 1e6:.1f}M params")
        for features in ("plain", "full"):
            found = results[f"{title} {features}"] = measure(build, turns, full=features == "full")
            bare, theirs = found["torch AdamW(fused)"], found["thinc Adam"]
            for name, ms in found.items():
                print(
                    f"  {features:5}  {name:30} {ms:8.2f} ms  {ms / bare:5.2f} x torch  {theirs / ms:5.2f} x faster "
                    "than thinc"
                )


if __name__ == "__main__":
    main()
