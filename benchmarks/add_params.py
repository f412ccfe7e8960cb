"""How long it takes to take in the params of a model, before the first step.

    python benchmarks/add_params.py [--tensors 400 800 1600 3000]

Half of the tensors are matrices, half are biases, all of them small. They belong to a torch module or to thinc's
layers. `initialize` is what `spacy train` does at the start; `first update` is what an optimizer does that was not told
its pipeline, with the update itself. The time should grow as the number of tensors does: the last column has the time
per tensor, as a multiple of that in the first line.
"""

import argparse
import time
from collections.abc import Callable

import spacy
import torch
from thinc.api import Linear, Model, PyTorchWrapper, chain

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW


def torch_model(n_tensors: int) -> Model:
    return PyTorchWrapper(torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(n_tensors // 2))))


def thinc_model(n_tensors: int) -> Model:
    return chain(*(Linear(4, 4) for _ in range(n_tensors // 2))).initialize()


def fill_grads(model: Model) -> None:
    """Give each param a gradient of zeros."""
    for node in model.walk():
        for shim in node.shims:
            for param in shim._model.parameters():
                param.grad = torch.zeros_like(param)
        for name in node.param_names:
            node.inc_grad(name, node.ops.alloc(node.get_param(name).shape))


def initialize(model: Model) -> float:
    nlp = spacy.blank("en")
    nlp.add_pipe("tagger").model = model
    return seconds(lambda: build().initialize(nlp))


def first_update(model: Model) -> float:
    fill_grads(model)
    return seconds(lambda: model.finish_update(build()))


def build() -> TorchOptimizer:
    return TorchOptimizer(AdamW(), 0.001, skip_decay="bias_and_norm")


def seconds(function: Callable[[], object]) -> float:
    started = time.thread_time()
    function()
    return time.thread_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, nargs="+", default=[400, 800, 1600, 3000])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for model in (torch_model(8), thinc_model(8)):  # for what is imported or built once
        initialize(model)
        first_update(model)
    for kind, make in (("torch", torch_model), ("thinc", thinc_model)):
        for what, measure in (("initialize", initialize), ("first update", first_update)):
            first = None
            for n_tensors in args.tensors:
                took = min(measure(make(n_tensors)) for _ in range(args.repeats))
                first = first or took / n_tensors
                print(
                    f"{kind}, {what}: {n_tensors:5d} tensors {took:7.3f} s   per tensor x "
                    f"{took / n_tensors / first:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
