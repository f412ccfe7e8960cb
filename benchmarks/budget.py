"""A budget against a cosine that knew the end: the score at 25, 50 and 100% of the steps.

    python benchmarks/budget.py --data ../shared/data [--steps 400] [--words 1000] [--seeds 2] [--output budget.json]

Tagger and parser on UD English EWT, a CNN of width 96 and depth 4, AdamW at 0.003. Two ways:

cosine      falls from step 0 on to the end, which it knows
budget      --budget: stays, and falls in the last fifth

and `known`, three trainings with a cosine that end at 25, 50 and 100%: what could be had at that time at best, if one
had decided for it beforehand. Budgets are in steps, so that the result is the same on each machine. Scores are those of
the development data.
"""

import argparse
import io
import json
from pathlib import Path
from typing import Any

from confection import Config
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config, registry

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "schedules_to_the_end.cfg"
PARTS = (0.25, 0.5, 1.0)
COSINE = {"@schedules": "thinc-torchopt.warmup_cosine.v1", "initial_rate": 0.003, "warmup_steps": 20}
STABLE = {
    "@schedules": "thinc-torchopt.warmup_stable_decay.v1",
    "initial_rate": 0.003,
    "warmup_steps": 20,
    "decay_steps": 100,
    "decay_begins": "when told",
    "decay_type": "linear",
}


def scores_of(config: Config) -> dict[int, float]:
    """Train, and return the score of each step that was evaluated."""
    scores: dict[int, float] = {}

    @registry.loggers("benchmark.Scores.v1")
    def logger() -> Any:
        def setup(nlp: Any, stdout: Any, stderr: Any) -> Any:
            def log(info: Any) -> None:
                if info is not None:
                    scores[info["step"]] = info["score"]

            return log, lambda: None

        return setup

    config["training"]["logger"] = {"@loggers": "benchmark.Scores.v1"}
    train(init_nlp(config), None, stdout=io.StringIO(), stderr=io.StringIO())
    return scores


def run(data: Path, seed: int, steps: int, words: int, way: str) -> dict[str, float]:
    """The score at each part; one that the run does not have is that of the evaluation before."""
    overrides = {
        "paths.train": str(data / "ud-english-ewt-train.spacy"),
        "paths.dev": str(data / "ud-english-ewt-dev.spacy"),
    }
    config = load_config(CONFIG, overrides=overrides, interpolate=True)
    config["training"] |= {"seed": seed, "max_steps": steps - 1, "eval_frequency": max(1, steps // 4)}
    config["system"]["seed"] = seed
    config["training"]["batcher"]["size"] = words
    optimizer = config["training"]["optimizer"]
    optimizer["learn_rate"] = COSINE
    if way == "budget":
        optimizer["learn_rate"] = STABLE
        optimizer["budget"] = {"@misc": "thinc-torchopt.Budget.v1", "limit": f"{steps} steps"}
    scores = scores_of(config)
    last = max(scores)
    return {f"{part:.0%}": scores[max(step for step in scores if step <= part * (last + 1))] for part in PARTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder with ud-english-ewt-*.spacy")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--words", type=int, default=1000, help="in a batch")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, help="JSON, written as results come")
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(args.seeds):
        known = {}
        for part in PARTS[:-1]:
            known[f"{part:.0%}"] = run(args.data, seed, int(part * args.steps), args.words, "cosine")["100%"]
        for way in ("cosine", "budget"):
            found.setdefault(way, []).append(run(args.data, seed, args.steps, args.words, way))
            print(seed, way, found[way][-1], flush=True)
        found.setdefault("known", []).append(known | {"100%": found["cosine"][-1]["100%"]})
        print(seed, "known", found["known"][-1], flush=True)
        if args.output is not None:
            args.output.write_text(json.dumps(found, indent=2), encoding="utf8")
    print(f"{'':10}" + "".join(f"{part:>10.0%}" for part in PARTS))
    for way, results in found.items():
        means = [sum(result[f"{part:.0%}"] for result in results) / len(results) for part in PARTS]
        print(f"{way:10}" + "".join(f"{mean:10.4f}" for mean in means))


if __name__ == "__main__":
    main()
