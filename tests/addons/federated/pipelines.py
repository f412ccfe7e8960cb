"""Small configs and texts for server and clients."""

import json
from pathlib import Path
from typing import Any

import spacy
from confection import Config
from spacy.tokens import DocBin

from thinc_torchopt.addons.federated.agreement import merge_labels
from thinc_torchopt.addons.federated.pipeline import FederatedPipeline

from ...conftest import CONFIGS
from ...models import toy_examples, toy_pipeline

SIZES = {"north": 40, "south": 20}
# The model of configs/federated.cfg, made small, with plain batches.
SMALL = {
    "components.ner.model.hidden_width": 8,
    "components.ner.model.tok2vec.embed.width": 8,
    "components.ner.model.tok2vec.embed.rows": [50, 50, 50, 50, 10],
    "components.ner.model.tok2vec.encode.width": 8,
    "components.ner.model.tok2vec.encode.depth": 1,
    "training.batcher.size": 30,
}
ROUNDS = {
    "federated.rounds": 2,
    "federated.local_steps": 3,
    "federated.clients": 2,
    "federated.min_clients": 1,
    "federated.wait_seconds": 0.2,
    "federated.timeout_seconds": 5,
}


def write_texts(folder: Path) -> None:
    """Texts of two clients, of different size, with the labels of both."""
    examples = toy_examples(toy_pipeline(["tagger"]), sum(SIZES.values()))
    labels, start = [], 0
    for name, size in SIZES.items():
        own = examples[start : start + size]
        start += size
        (folder / name).mkdir()
        for split, part in (("train", own), ("dev", own[: size // 4])):
            DocBin(docs=[example.reference for example in part]).to_disk(folder / name / f"{split}.spacy")
        nlp = spacy.blank("en")
        ner = nlp.add_pipe("ner")
        nlp.initialize(lambda own=own: own)
        labels.append(json.loads(json.dumps(ner.label_data)))
    (folder / "labels.json").write_text(json.dumps(merge_labels(labels)))


def paths(texts: Path, name: str) -> dict[str, str]:
    """Overrides of the config for a client."""
    return {
        "paths.train": str(texts / name / "train.spacy"),
        "paths.dev": str(texts / name / "dev.spacy"),
        "paths.labels": str(texts / "labels.json"),
    }


def small_config(added: dict[str, Any] | None = None, *, of: str = "federated.cfg", **overrides: Any) -> Config:
    """A config of configs/ with a small model.

    added (dict): Sections that are added. overrides: Config paths with __ for dots.
    """
    config = Config().from_disk(
        CONFIGS / of,
        interpolate=False,
        overrides={**SMALL, **ROUNDS, **{key.replace("__", "."): value for key, value in overrides.items()}},
    )
    # What a loop by hand needs no help with: it does not know the number of words in a batch.
    config["training"]["optimizer"]["algorithm"] = {"@torch_optimizers": "torch.AdamW.v1"}
    return config.merge(added) if added else config


def pipeline(texts: Path, name: str = "north", config: Config | None = None) -> FederatedPipeline:
    own = Config(config or small_config())
    own["paths"] = {key.removeprefix("paths."): value for key, value in paths(texts, name).items()}
    return FederatedPipeline(own)


def shared_config() -> Config:
    """The same, with a tok2vec in a component of its own, to which the recognizer listens."""
    config = small_config()
    model = config["components"]["ner"]["model"]
    own = model.pop("tok2vec")
    model["tok2vec"] = {"@architectures": "spacy.Tok2VecListener.v1", "width": 8, "upstream": "*"}
    config["components"]["tok2vec"] = {"factory": "tok2vec", "model": own}
    config["nlp"]["pipeline"] = ["tok2vec", "ner"]
    return config
