"""The costs of averages and of the guard with honest clients, and their use with one liar of five.

    python benchmarks/federated_liars.py --seeds 3

Five clients have chapters of Python's documentation each, and train a pipeline that finds code in prose. The liar sends
its update with the opposite sign, also ten times as large. There are no processes: clients take their turns. Needs the
extra `federated`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from copy import deepcopy
from pathlib import Path
from typing import Any

import spacy
import torch
from confection import Config
from flwr.supercore.task_identity import TaskIdentity
from spacy.tokens import DocBin

from thinc_torchopt.addons.corpora import PythonDocs
from thinc_torchopt.addons.federated.averages import ModelAverage
from thinc_torchopt.addons.federated.flower import Message, MetricRecord, RecordDict
from thinc_torchopt.addons.federated.labels import merge_labels
from thinc_torchopt.addons.federated.messages import to_arrays
from thinc_torchopt.addons.federated.pipeline import FederatedPipeline, RoundPlan
from thinc_torchopt.addons.federated.settings import FlowerStrategy, UpdateGuard

CONFIG = Path(__file__).parent.parent / "configs" / "federated.cfg"
CLIENTS = 5
METHODS: dict[str, tuple[dict[str, Any], bool]] = {
    "FedAvg": ({"strategy": "FedAvg"}, False),
    "FedAvg with the guard": ({"strategy": "FedAvg"}, True),
    "FedMedian": ({"strategy": "FedMedian"}, False),
    "FedTrimmedAvg, beta 0.2": ({"strategy": "FedTrimmedAvg", "beta": 0.2}, False),
    "Krum, f = 1": ({"strategy": "Krum", "num_malicious_nodes": 1}, False),
    "MultiKrum, f = 1, 3 of 5": (
        {"strategy": "MultiKrum", "num_malicious_nodes": 1, "num_nodes_to_select": 3},
        False,
    ),
}
# The factor of the liar's update.
LIES = {"honest": 1.0, "opposite, 10 times": -10.0, "opposite": -1.0}

Tensors = dict[str, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="how many rounds (default: %(default)s)")
    parser.add_argument("--local-steps", type=int, default=10, help="steps in a round (default: %(default)s)")
    parser.add_argument("--texts", type=int, default=120, help="texts of a client (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("training/federated-liars"), help="(default: %(default)s)")
    args = parser.parse_args()
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # as Flower's processes do
    write_corpora(args.folder, args.texts)
    found: dict[str, dict[str, list[float]]] = {name: {lie: [] for lie in LIES} for name in METHODS}
    for seed in range(args.seeds):
        pipelines = [open_pipeline(args.folder, f"client-{i}", seed) for i in range(CLIENTS)]
        all_texts = open_pipeline(args.folder, "all", seed)
        start, fresh = (
            all_texts.weights.collect(),
            [deepcopy(one.optimizer.state_dict()) for one in pipelines],
        )
        for name in METHODS:
            for lie, factor in LIES.items():
                score = train(pipelines, all_texts, name, factor, start, fresh, args)
                found[name][lie].append(score)
                print(f"seed {seed}, {name}, {lie}: {score:.1%}", flush=True)
        (args.folder / "scores.json").write_text(json.dumps(found, indent=2))
    print(f"| average | {' | '.join(LIES)} |\n| --- |{' --- |' * len(LIES)}")
    for name, scores in found.items():
        print(f"| {name} | {' | '.join(shown(values) for values in scores.values())} |")


def shown(values: list[float]) -> str:
    return f"{statistics.mean(values):.1%} ({min(values):.1%} to {max(values):.1%})"


def write_corpora(folder: Path, n: int) -> None:
    """Deal out chapters in alphabetical order, so that clients have different texts."""
    nlp = spacy.blank("en")
    labels = []
    for split in ("train", "dev"):
        examples = list(PythonDocs(split)(nlp))
        size = len(examples) // CLIENTS
        parts = {f"client-{i}": examples[i * size : (i + 1) * size][:n] for i in range(CLIENTS)}
        for name, own in {**parts, "all": examples}.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            DocBin(docs=[example.reference for example in own]).to_disk(folder / name / f"{split}.spacy")
            if split == "train":
                blank = spacy.blank("en")
                ner = blank.add_pipe("ner")
                blank.initialize(lambda own=own: own)
                labels.append(json.loads(json.dumps(ner.label_data)))  # type: ignore[attr-defined]
    (folder / "labels.json").write_text(json.dumps(merge_labels(labels)))


def open_pipeline(folder: Path, name: str, seed: int) -> FederatedPipeline:
    config = Config().from_disk(CONFIG, interpolate=False)
    config["system"]["seed"] = seed
    files = {what: str(folder / name / f"{what}.spacy") for what in ("train", "dev")}
    config["paths"] = {**files, "labels": str(folder / "labels.json")}
    return FederatedPipeline(config)


def train(
    pipelines: list[FederatedPipeline],
    all_texts: FederatedPipeline,
    method: str,
    factor: float,
    start: Tensors,
    fresh: list[Any],
    args: Any,
) -> float:
    """start (Tensors), fresh (list): The weights and the optimizers' states before the first round.

    RETURNS (float): The F-score of the last model on the dev texts of all.
    """
    settings, is_guarded = METHODS[method]
    average, guard = ModelAverage(FlowerStrategy(**settings)), UpdateGuard()
    weights, states = start, list(fresh)
    for round in range(1, args.rounds + 1):
        models, counts = [], []
        for i, pipeline in enumerate(pipelines):
            outcome = pipeline.train(weights, RoundPlan(round, args.local_steps, 0), state=states[i], name=str(i))
            states[i] = deepcopy(outcome.state)
            is_liar = i == CLIENTS - 1
            own = outcome.weights
            if is_liar and factor != 1.0:
                own = {name: value + (own[name] - value) * factor for name, value in weights.items()}
            models.append(own)
            counts.append(outcome.examples)
        if is_guarded:
            norms = {str(i): {"update": norm(weights, model)} for i, model in enumerate(models)}
            limit = guard.limits(norms)["update"]
            left = [i for i in range(CLIENTS) if norms[str(i)]["update"] <= limit]
            models, counts = [models[i] for i in left], [counts[i] for i in left]
        weights = average.compute(round, weights, [reply(*one) for one in zip(models, counts)])
    return all_texts.evaluate(weights)[0]


def norm(start: Tensors, model: Tensors) -> float:
    return float(sum((model[name].double() - value).square().sum() for name, value in start.items())) ** 0.5


def reply(model: Tensors, examples: int) -> Message:
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    content = {"arrays": to_arrays(model), "metrics": MetricRecord({"num-examples": examples})}
    return Message(RecordDict(content), reply_to=message)


if __name__ == "__main__":
    main()
