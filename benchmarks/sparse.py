"""Time of an update of a wide layer, with `sparse = "lazy"` and without, in turns.

    python benchmarks/sparse.py [--labels 20] [--docs 32] [--rounds 60] [--embedding] [--json out.json]

A text classifier on a bag of words (textcat_multilabel, TextCatBOW.v3, `labels` x 262,144 weights) on texts whose words
have Zipf's frequencies; with `--embedding` a table of 30,522 x 256 in a PyTorchWrapper, of which a batch looks up 2,000
words. Four contestants: dense and lazy, each without averages and with. An update is a whole `finish_update`: the
guard, clipping by the global norm, AdamW, averages, gradients away. Forward and backward pass run before each, and are
not timed: they leave the caches as they are in a training.

Figures are milliseconds of processor time on one thread, the middle of all rounds. `ratio` is the middle of lazy by
dense of the same round.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy
import spacy
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import ArgsKwargs, Model, PyTorchWrapper

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.torch_optimizers import AdamW

WORDS = 50_000
Contestant = tuple[Callable[[], None], Callable[[], None]]  # forward and backward (not timed), update (timed)


def texts(docs: int, words: int = 100) -> list[str]:
    rng = numpy.random.default_rng(0)
    return [" ".join(f"w{i}" for i in rng.zipf(1.2, words) % WORDS) for _ in range(docs)]


def bag_of_words(optimizer: TorchOptimizer, labels: int, docs: int) -> Contestant:
    nlp = spacy.blank("en")
    model = {
        "@architectures": "spacy.TextCatBOW.v3",
        "exclusive_classes": False,
        "ngram_size": 1,
        "no_output_layer": False,
        "length": 262144,
    }
    pipe: Any = nlp.add_pipe("textcat_multilabel", config={"model": model})
    for i in range(labels):
        pipe.add_label(f"L{i}")
    found = texts(40 * docs)
    examples = [
        Example.from_dict(nlp.make_doc(text), {"cats": {f"L{i}": float(i == k % labels) for i in range(labels)}})
        for k, text in enumerate(found)
    ]
    nlp.initialize(lambda: examples)
    optimizer.initialize(nlp)
    draw = random.Random(0)
    return lambda: pipe.update(draw.sample(examples, docs)), lambda: update(optimizer, pipe.model)


def embedding(optimizer: TorchOptimizer, labels: int, docs: int) -> Contestant:
    torch.manual_seed(0)
    model: Model[Any, Any] = PyTorchWrapper(
        torch.nn.Embedding(30_522, 256),
        convert_inputs=lambda model, ids, is_train: (ArgsKwargs((torch.from_numpy(ids),), {}), lambda _: ids),
    )
    nlp = Language()
    nlp.add_pipe("holder").model = model  # type: ignore[attr-defined]
    optimizer.initialize(nlp)
    rng = numpy.random.default_rng(0)

    def run() -> None:
        out, backprop = model.begin_update(rng.zipf(1.3, 2_000) % 30_522)
        backprop(out)

    return run, lambda: update(optimizer, model)


@Language.factory("holder")
class Holder:
    """A pipe that holds a model."""

    def __init__(self, nlp: Language, name: str):
        self.model: Any = None
        self.is_trainable = True

    def __call__(self, doc: Any) -> Any:
        return doc

    def update(self, *args: Any, **kwargs: Any) -> None:
        pass


def update(optimizer: TorchOptimizer, model: Model) -> None:
    model.finish_update(optimizer)
    optimizer.step_schedules()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=20)
    parser.add_argument("--docs", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--embedding", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    build = embedding if args.embedding else bag_of_words
    names = [(sparse, averages) for averages in (False, True) for sparse in ("dense", "lazy")]
    contestants = []
    for sparse, averages in names:
        optimizer = TorchOptimizer(
            AdamW(),
            0.001,
            use_averages=averages,
            param_groups={"wide": {"params": ["*"], "sparse": sparse}},
        )
        contestants.append(build(optimizer, args.labels, args.docs))
    times: dict[tuple[str, bool], list[float]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name, (run, step) in zip(names, contestants):
            run()
            before = time.thread_time_ns()
            step()
            times[name].append((time.thread_time_ns() - before) / 1e6)
    figures = {}
    for averages in (False, True):
        dense, lazy = (times[sparse, averages][5:] for sparse in ("dense", "lazy"))
        figures["with averages" if averages else "without averages"] = found = {
            "dense": statistics.median(dense),
            "lazy": statistics.median(lazy),
            "ratio": statistics.median(one / other for one, other in zip(lazy, dense)),
        }
        print(f"{'with' if averages else 'without'} averages: " + ", ".join(f"{k} {v:.2f}" for k, v in found.items()))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(figures, file)


if __name__ == "__main__":
    main()
