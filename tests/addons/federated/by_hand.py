"""Federated training as a loop by hand: the oracle. Nothing of the federated room is used but to build a pipeline."""

import random
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from zlib import crc32

import torch
from confection import Config
from spacy.training import Corpus
from spacy.util import registry
from thinc.api import fix_random_seed

from thinc_torchopt import TorchOptimizer

from ...models import finish_step
from .pipelines import SIZES, pipeline

Weights = dict[str, torch.Tensor]


class Client:
    """A client that lives as long as the test, with one optimizer for all rounds."""

    def __init__(self, name: str, texts: Path, config: Config):
        self.name = name
        self.nlp = pipeline(texts, name, config).nlp
        settings = self.nlp.config.interpolate()["training"]
        self.seed = settings["seed"]
        self.dropout = settings["dropout"]
        self.batcher = registry.resolve({"batcher": settings["batcher"]})["batcher"]
        self.optimizer: TorchOptimizer = registry.resolve({"optimizer": settings["optimizer"]})["optimizer"]
        self.optimizer.initialize(self.nlp)
        self.corpus = Corpus(texts / name / "train.spacy")

    def weights(self) -> Weights:
        return {name: param.detach().clone() for name, param in self.optimizer.params.items()}

    def train(
        self,
        weights: Weights,
        round: int,
        *,
        steps: int = 0,
        epochs: int = 0,
        begin: Callable[[TorchOptimizer], None] = lambda optimizer: None,
    ) -> Weights:
        """A round. begin (Callable): Called when the weights are loaded, before the first step."""
        for name, param in self.optimizer.params.items():
            with torch.no_grad():
                param.copy_(weights[name])
        fix_random_seed((self.seed + 1_000_003 * round + crc32(self.name.encode("utf8"))) % 2**31)
        begin(self.optimizer)
        examples = list(self.corpus(self.nlp))

        def batches():
            for _ in range(epochs) if epochs else count():
                random.shuffle(examples)
                yield from self.batcher(examples)

        for batch in islice(batches(), steps or None):
            # spaCy's loop sorts what it divides into slices, also if there is one.
            batch = sorted(batch, key=lambda example: len(example.predicted))
            self.nlp.update(batch, drop=self.dropout, sgd=False)
            finish_step(self.nlp, self.optimizer)  # one norm of all components, as in training
            self.optimizer.step_schedules()
        return self.weights()


def average(found: list[Weights], counts: list[int]) -> Weights:
    return {name: sum(one[name] * (n / sum(counts)) for one, n in zip(found, counts)) for name in found[0]}


def fed_avg(texts: Path, config: Config, rounds: int, begin=lambda optimizer: None, **plan: int) -> Weights:
    """FedAvg, weighted by examples."""
    clients = [Client(name, texts, config) for name in SIZES]
    weights = clients[0].weights()
    for round in range(1, rounds + 1):
        weights = average(
            [client.train(weights, round, begin=begin, **plan) for client in clients], list(SIZES.values())
        )
    return weights
