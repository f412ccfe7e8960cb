"""Accuracy over epsilon: a tagger trained privately on UD English EWT, one sentence an example.

    python benchmarks/private_tagging.py run ../shared/data --seeds 3 > benchmarks/private_tagging.jsonl
    python benchmarks/private_tagging.py picture docs/privacy.svg

`run` needs Opacus. One line of JSON at each evaluation of each training: seed, target, step, epsilon, dev accuracy.
Noise and batches come from known seeds here, so that a run can be repeated: nothing is private.
"""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from statistics import mean, stdev

import typer
from confection import Config
from spacy.language import Language
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import registry

CONFIG = Path(__file__).parents[1] / "configs" / "privacy.cfg"
RESULTS = Path(__file__).with_suffix(".jsonl")

app = typer.Typer(add_completion=False)


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


@app.command()
def run(
    data: Path,
    targets: str = "inf,8,3,1",
    seeds: int = 1,
    steps: int = 120,
    size: int = 512,
    rate: float = 0.005,
    clip: float = 1.0,
) -> None:
    for seed in range(seeds):
        for target in targets.split(","):
            nlp = init_nlp(config_for(data, seed, target, steps, size, rate, clip).interpolate())
            with tempfile.TemporaryDirectory() as folder:
                train(nlp, Path(folder), stdout=io.StringIO(), stderr=io.StringIO())


@app.command()
def picture(path: Path) -> None:
    """Draw the accuracy over epsilon, at each evaluation but that before the training."""
    from matplotlib.figure import Figure

    from thinc_torchopt.addons.report.style import save, style

    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    found: dict[str, dict[int, list[dict]]] = {}
    for line in lines:
        if line["step"]:
            found.setdefault(line["target"], {}).setdefault(line["step"], []).append(line)
    with style(**{"svg.hashsalt": "private_tagging"}):
        figure = Figure(figsize=(6, 3.4), layout="constrained")
        axes = figure.subplots()
        for target, by_step in found.items():
            scores = [[100 * line["accuracy"] for line in lines] for lines in by_step.values()]
            means, spread = [mean(values) for values in scores], [stdev(values) for values in scores]
            if target == "inf":
                axes.axhline(means[-1], color="0.5", linestyle="--", label="without noise")
                continue
            epsilons = [lines[0]["epsilon"] for lines in by_step.values()]
            axes.errorbar(epsilons, means, spread, marker="o", capsize=3, label=f"target {target}")
        axes.set(xscale="log", xlabel="epsilon used so far", ylabel="tagging accuracy, %")
        axes.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
        axes.minorticks_off()
        axes.set_title("EWT, dev: after 31, 61 and 91 updates, three seeds", fontsize=10)
        axes.legend(loc="lower right")
        save(figure, path)


if __name__ == "__main__":
    app()
