"""Accuracy over epsilon: a tagger trained privately on UD English EWT, one sentence an example.

    python benchmarks/private_tagging.py ../shared/data --steps 300 --size 512 > private.jsonl

Needs Opacus. One line of JSON at each evaluation of each training: seed, target, step, epsilon, dev accuracy. Noise and
batches come from known seeds here, so that a run can be repeated: nothing is private.
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path

import typer
from confection import Config
from spacy.language import Language
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import registry

CONFIG = Path(__file__).parents[1] / "configs" / "privacy.cfg"


@registry.loggers("benchmarks.PrivateTagging.v1")
def logger(seed: int, target: str) -> object:
    def setup(nlp: Language, stdout: object, stderr: object) -> object:
        def log(info: dict | None) -> None:
            if info is not None:
                line = {"seed": seed, "target": target, "step": info["step"], "epsilon": info["epsilon"]}
                line |= {"noise_multiplier": info["privacy"]["noise_multiplier"], "seconds": info["seconds"]}
                print(json.dumps({**line, "accuracy": info["other_scores"]["tag_acc"]}), flush=True)

        return log, lambda: None

    return setup


def config_for(data: Path, seed: int, target: str, steps: int, size: int, rate: float, clip: float) -> Config:
    config = Config().from_disk(CONFIG, interpolate=False)
    config["paths"] |= {name: str(data / f"ud-english-ewt-{name}.spacy") for name in ("train", "dev")}
    config["system"]["seed"] = seed
    for name in ("train", "dev"):
        config["corpora"][name]["gold_preproc"] = True  # sentence by sentence
    config["training"] |= {"max_steps": steps - 1, "eval_frequency": max(1, steps // 4), "patience": 0}
    config["training"]["score_weights"] = {"tag_acc": 1.0}
    config["training"]["batcher"]["size"] = size
    config["training"]["optimizer"]["learn_rate"] = rate
    config["training"]["logger"] = {"@loggers": "benchmarks.PrivateTagging.v1", "seed": seed, "target": target}
    privacy = config["training"]["optimizer"]["privacy"]
    privacy |= {"clip": clip, "seed": seed}
    if target == "inf":
        privacy.pop("target_epsilon")
        privacy["noise_multiplier"] = 0.0
    else:
        privacy["target_epsilon"] = float(target)
    return config


def main(
    data: Path,
    targets: str = "inf,8,3,1",
    seeds: int = 1,
    steps: int = 300,
    size: int = 512,
    rate: float = 0.005,
    clip: float = 1.0,
) -> None:
    for seed in range(seeds):
        for target in targets.split(","):
            nlp = init_nlp(config_for(data, seed, target, steps, size, rate, clip).interpolate())
            with tempfile.TemporaryDirectory() as folder:
                train(nlp, Path(folder), stdout=io.StringIO(), stderr=io.StringIO())


if __name__ == "__main__":
    typer.run(main)
