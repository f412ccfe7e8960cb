"""How good is the rate that `spacy torchopt find-lr` suggests? Rules for it, compared on recorded range tests.

    python benchmarks/find_lr.py run                        # what is missing in find_lr.jsonl, in the order of its plan
    python benchmarks/find_lr.py run --tasks food --algorithms SGD --seeds 0 1
    python benchmarks/find_lr.py table --tasks food genres  # each rule: how close it comes to the best rate of a grid
    python benchmarks/find_lr.py grid                       # the best rates, and what is suggested

A range test is recorded once, with the loss of every step, so that rules are compared without training again. For each
task and algorithm there is a grid of rates, half a decade apart: the score after 200 steps with that rate as the peak
of a warm-up of 20 steps and a fall to 0. It begins with three rates and grows until the best is inside it. What a rule
suggests is scored by interpolation between the neighbours on the grid, over the logarithm of the rate.

The tasks are those of score.py. Rules are chosen on some of them, and reported on the others. Everything is appended to
find_lr.jsonl as it is done: a table is continued with the same command.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "find_lr.jsonl"
STEPS = 200

sys.path.insert(0, str(HERE))
import score  # noqa: E402

# Of each task: how many words a batch has (0: as score.py says), and how many examples the loss is computed of for the
# probe, at most.
TASKS = {
    "food": (0, 40),
    "genres": (0, 100),
    "docs-bow": (0, 50),
    "ewt": (500, 40),
    "spancat": (0, 40),
    "docs-issues": (0, 16),
    "minilm": (200, 16),
}
CHOOSING = ["food", "genres", "docs-bow", "ewt"]
CONFIRMING = ["spancat", "docs-issues", "minilm"]
_ADAMW = {"@torch_optimizers": "torch.AdamW.v1", "weight_decay": 0.01}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "AdamW": _ADAMW,
    "SGD": {"@torch_optimizers": "torch.SGD.v1", "momentum": 0.9},
    "Muon": {
        "@torch_optimizers": "torch.Muon.v1",
        "weight_decay": 0.01,
        "adjust_lr_fn": "match_rms_adamw",
        "fallback": _ADAMW,
    },
}
# The middle of the grid at first, in half-decades: 10 ** (k / 2).
MIDDLE = {"AdamW": -5, "SGD": -2, "Muon": -5}
DEFAULTS = {"AdamW": 1e-3, "SGD": 1e-3, "Muon": 1e-3}
# What `spacy torchopt init --recipe best` takes for AdamW, by task, or about that.
RECIPE = {"genres": 3e-3, "docs-bow": 3e-3, "minilm": 1e-4}
MIDDLE_OF = {("minilm", "AdamW"): -8, ("genres", "AdamW"): -3, ("docs-bow", "AdamW"): -3, ("genres", "SGD"): 0,
    ("docs-bow", "SGD"): 0, ("genres", "Muon"): -3, ("docs-bow", "Muon"): -3}  # fmt: skip
MIN_RATE, MAX_RATE, RAMP = 1e-6, 10.0, 141

# ----------------------------------------------------------------------------------------------------------- recording


@functools.cache
def config_of(task: str) -> Any:
    """Its corpora stay in a folder until the process ends."""
    return score.config_of(score.TASKS[task], 0, Path(tempfile.mkdtemp()))


def prepare(task: str, algorithm: str, seed: int, rates: Any) -> tuple[Any, Any]:
    """A pipeline that is initialized, and its config. rates: What [training.optimizer] learn_rate is."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from spacy.training.initialize import init_nlp
    from thinc.api import fix_random_seed

    config = config_of(task).copy()
    score.put(config, "system.seed", seed)
    if TASKS[task][0]:
        score.put(config, "training.batcher.size", TASKS[task][0])
    config["training"]["optimizer"] = {
        "@optimizers": "thinc-torchopt.TorchOptimizer.v1",
        "algorithm": ALGORITHMS[algorithm],
        "learn_rate": rates,
    }
    fix_random_seed(seed)
    nlp = init_nlp(config)
    return nlp, nlp.config.interpolate()


def loss_of(nlp: Any, losses: dict[str, Any]) -> float:
    from thinc_torchopt.loop.components import sums_of_gradients

    return sum(float(loss) for name, loss in losses.items() if name not in sums_of_gradients(nlp))


def range_test(task: str, algorithm: str, seed: int) -> dict[str, Any]:
    """Losses and words of each step, and the loss of the same examples of dev after each second one."""
    from spacy.util import resolve_dot_names

    from thinc_torchopt.addons.trials.trial import begin_training
    from thinc_torchopt.loop.dev_loss import DevLosses

    is_flat = algorithm == "flat"
    ramp = [MIN_RATE * (MAX_RATE / MIN_RATE) ** (i / (RAMP - 1)) for i in range(RAMP)]
    rates = [1e-12] * (RAMP + 1) if is_flat else [*ramp, MAX_RATE]
    nlp, config = prepare(task, "SGD" if is_flat else algorithm, seed, rates)
    training = begin_training(
        nlp,
        config,
        config["training"]["optimizer"],
        max_steps=RAMP - 1,
        eval_frequency=RAMP + 1,
        evaluate=lambda: (0.0, {}),
    )
    probe = DevLosses(nlp, training.optimizer, [], [])
    [dev] = resolve_dot_names(config, ["corpora.dev"])
    examples = list(dev(nlp))
    # Corpora are in order of their sources.
    examples = random.Random(0).sample(examples, min(len(examples), TASKS[task][1]))
    probe._corpus = lambda nlp: examples
    found: dict[str, Any] = {"losses": [], "words": [], "probe": [], "seconds": [0.0, 0.0]}
    total, words, best = 0.0, 0, math.inf
    began = time.process_time()
    try:
        for step, (batch, info, is_best) in enumerate(training.steps):
            now = loss_of(nlp, info["losses"])
            found["losses"].append(round(now - total, 5))
            found["words"].append(info["words"] - words)
            found.setdefault("examples", []).append(len(batch))
            total, words = now if is_best is None else 0.0, info["words"]
            if step % 2 == 0 and not is_flat:
                probed = time.process_time()
                value = probe()
                found["probe"].append(loss_of(nlp, value["losses"]) / value["words"])
                found["seconds"][1] += time.process_time() - probed
                best = min(best, found["probe"][-1])
                if not math.isfinite(found["probe"][-1]) or found["probe"][-1] > 8 * abs(best):
                    break
            if info["skipped_updates"] or not math.isfinite(now):
                break
    except ValueError as error:
        if "[E910]" not in str(error):
            raise
    found["seconds"][0] = time.process_time() - began
    return found


def train(task: str, algorithm: str, seed: int, half_decades: int) -> dict[str, Any]:
    """The score after 200 steps with a rate."""
    from thinc_torchopt.addons.trials.trial import begin_training

    rate = 10 ** (half_decades / 2)
    learn_rate = {
        "@schedules": "thinc-torchopt.warmup_linear.v1",
        "initial_rate": rate,
        "warmup_steps": STEPS // 10,
        "total_steps": STEPS,
    }
    nlp, config = prepare(task, algorithm, seed, learn_rate)
    training = begin_training(
        nlp,
        config,
        config["training"]["optimizer"],
        max_steps=STEPS - 1,
        eval_frequency=STEPS + 1,
        evaluate=lambda: (0.0, {}),
    )
    try:
        for _ in training.steps:
            pass
        value = training.evaluate()[0]
    except ValueError as error:
        if "[E910]" not in str(error):
            raise
        value = 0.0
    return {"score": round(float(value), 4)}


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf8").splitlines() if line] if path.exists() else []


def missing_rates(lines: list[dict[str, Any]], task: str, algorithm: str, seed: int) -> list[int]:
    """The rates of the grid that are still to be trained with, in half-decades. Seed 0 decides how far it goes: the
    best has neighbours, and so do what the rule of find-lr suggests and the default.
    """
    middle = MIDDLE_OF.get((task, algorithm), MIDDLE[algorithm])
    of = [line for line in lines if line["kind"] == "train" and (line["task"], line["algorithm"]) == (task, algorithm)]
    first = {line["rate"]: line["score"] for line in of if line["seed"] == 0}
    done = {line["rate"] for line in of if line["seed"] == seed}
    wanted = {middle - 1, middle, middle + 1} | set(first)
    if seed == 0 and wanted <= done:
        best = max(first, key=lambda k: first[k])
        wanted |= {best - 2, best - 1, best + 1}
        found = suggestions(lines, "same docs", RULES[RULE])
        rates = [rate for line, rate in found if (line["task"], line["algorithm"]) == (task, algorithm)]
        for rate in (*rates, DEFAULTS[algorithm]):
            wanted |= {math.floor(2 * math.log10(rate)), math.ceil(2 * math.log10(rate))}
    return sorted(wanted - done)


def run(
    tasks: Iterable[str], algorithms: Iterable[str], seeds: Iterable[int], kinds: Iterable[str], path: Path
) -> None:
    """Do what is missing, in this process."""

    def add(kind: str, task: str, algorithm: str, seed: int, found: dict[str, Any], **more: Any) -> None:
        line = {"kind": kind, "task": task, "algorithm": algorithm, "seed": seed, **more, **found}
        with path.open("a", encoding="utf8") as file:
            file.write(json.dumps(line) + "\n")
        print(kind, task, algorithm, seed, more, found.get("score", ""), round(time.process_time()), file=sys.stderr)

    for seed in seeds:
        for task in tasks:
            for algorithm in algorithms:
                known = {(line["kind"], line["task"], line["algorithm"], line["seed"]) for line in read(path)}
                if "range" in kinds and ("range", task, algorithm, seed) not in known:
                    add("range", task, algorithm, seed, range_test(task, algorithm, seed))
                if "flat" in kinds and ("flat", task, "flat", seed) not in known:
                    add("flat", task, "flat", seed, range_test(task, "flat", seed))
                while "train" in kinds and (rates := missing_rates(read(path), task, algorithm, seed)):
                    add("train", task, algorithm, seed, train(task, algorithm, seed, rates[0]), rate=rates[0])


# ------------------------------------------------------------------------------------------------------------ the rules

Curve = tuple[list[float], list[float]]


def ramp() -> list[float]:
    return [MIN_RATE * (MAX_RATE / MIN_RATE) ** (i / (RAMP - 1)) for i in range(RAMP)]


def train_curve(line: dict[str, Any], flats: dict[Any, Any]) -> Curve:
    """The loss per word of each batch."""
    return ramp()[: len(line["losses"])], [loss / words for loss, words in zip(line["losses"], line["words"])]


def flat_curve(line: dict[str, Any], flats: dict[Any, Any]) -> Curve:
    """The loss of each batch, divided by that of the same batch at a rate of about 0."""
    flat = flats[line["task"], line["seed"]]
    pairs = [loss / base for loss, base in zip(line["losses"], flat["losses"])]
    return ramp()[: len(pairs)], pairs


def probe_curve(line: dict[str, Any], flats: dict[Any, Any]) -> Curve:
    """The loss per word of the same docs of dev, after each second step."""
    losses = [loss for loss in line["probe"] if math.isfinite(loss)]
    return ramp()[::2][: len(losses)], losses


CURVES = {"batches": train_curve, "batches at rate 0": flat_curve, "same docs": probe_curve}


def gaussian(losses: list[float], width: float) -> list[float]:
    found = []
    for i in range(len(losses)):
        weights = [math.exp(-0.5 * ((i - j) / width) ** 2) for j in range(len(losses))]
        found.append(sum(w * loss for w, loss in zip(weights, losses)) / sum(weights))
    return found


def trailing(losses: list[float], beta: float = 0.98) -> list[float]:
    average, found = 0.0, []
    for i, loss in enumerate(losses):
        average = beta * average + (1 - beta) * loss
        found.append(average / (1 - beta ** (i + 1)))
    return found


def until_diverged(curve: Curve) -> Curve:
    """As fastai and Lightning end it: at four times the best smoothed loss."""
    rates, smoothed = curve[0], trailing(curve[1])
    best = math.inf
    for i, loss in enumerate(smoothed):
        best = min(best, loss)
        if loss > 4 * best and i > len(smoothed) // 20:
            return rates[:i], smoothed[:i]
    return rates, smoothed


def steepest_at(rates: list[float], losses: list[float]) -> float:
    return rates[min(range(len(losses) - 1), key=lambda i: losses[i + 1] - losses[i])]


def lightning(curve: Curve) -> float:
    rates, losses = until_diverged(curve)
    return steepest_at(rates[10:-1], losses[10:-1])


def fastai(curve: Curve) -> Curve:
    rates, losses = until_diverged(curve)
    return rates[len(curve[0]) // 10 : -5], losses[len(curve[0]) // 10 : -5]


def steep(curve: Curve) -> float:
    return steepest_at(*fastai(curve))


def tenth_of_lowest(curve: Curve) -> float:
    rates, losses = fastai(curve)
    return rates[losses.index(min(losses))] / 10


def valley(curve: Curve) -> float:
    """fastai/callback/schedule.py: two thirds into the longest fall."""
    rates, losses = fastai(curve)
    lengths, start, end = [1] * len(losses), 0, 0
    for i in range(1, len(losses)):
        for j in range(i):
            if losses[i] < losses[j] and lengths[i] < lengths[j] + 1:
                lengths[i] = lengths[j] + 1
            if lengths[end] < lengths[i]:
                end, start = i, i - lengths[i]
    section = (end - start) / 3
    return rates[max(start, 0) + int(section) + int(section / 2)]


def stretch_of(curve: Curve, share: float, width: float = 3.0) -> tuple[float, float, float]:
    """The ends of the stretch around the minimum whose loss is within a share of the fall, and the rate of the minimum.

    width (float): Of the Gaussian, in steps of a ramp of 20 steps a decade.
    """
    per_decade = 1 / math.log10(curve[0][1] / curve[0][0])
    width *= per_decade / 20
    skipped = round(per_decade / 10)  # two of 20 steps
    first = max(3, round(per_decade))
    middle = median(curve[1][skipped : skipped + first])
    rates, losses = [], []
    for i, (rate, loss) in enumerate(zip(*curve)):
        if i >= skipped + 4 and loss > 2 * middle:
            break
        if i >= skipped:
            rates.append(rate)
            losses.append(loss)
    smoothed = gaussian(losses, width)
    low = min(smoothed)
    at = smoothed.index(low)
    limit = low + share * (median(smoothed[:first]) - low)
    left = right = at
    while left > 0 and smoothed[left - 1] <= limit:
        left -= 1
    while right < len(smoothed) - 1 and smoothed[right + 1] <= limit:
        right += 1
    return rates[left], rates[at], rates[right]


def of_stretch(factor: float, share: float, power: float, width: float = 3.0) -> Callable[[Curve], float]:
    """power: Where between its ends, on the logarithm of the rate."""

    def rule(curve: Curve) -> float:
        low, _, high = stretch_of(curve, share, width)
        return factor * low ** (1 - power) * high**power

    return rule


RULES: dict[str, Callable[[Curve], float]] = {
    "Lightning": lightning,
    "fastai, steep": steep,
    "fastai, minimum / 10": tenth_of_lowest,
    "fastai, valley": valley,
    "half of the middle, 20%": of_stretch(0.5, 0.2, 0.5),
    "the middle, 20%": of_stretch(1.0, 0.2, 0.5),
    "half of the end, 20%": of_stretch(0.5, 0.2, 1.0),
    "half of the end, 10%": of_stretch(0.5, 0.1, 1.0),
    "a third of the end, 20%": of_stretch(0.3, 0.2, 1.0),
}

# That of find-lr.
RULE = "half of the middle, 20%"

# ----------------------------------------------------------------------------------------------------------- the table

Grid = dict[int, list[float]]


def grids_of(lines: list[dict[str, Any]]) -> dict[tuple[str, str], Grid]:
    """The scores by task and algorithm, and by rate: of seed 0, and of all seeds that have its rates."""
    runs: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    for line in lines:
        if line["kind"] == "train":
            of_seed = runs.setdefault((line["task"], line["algorithm"]), {}).setdefault(line["seed"], {})
            of_seed[line["rate"]] = line["score"]
    found: dict[tuple[str, str], Grid] = {}
    for key, seeds in runs.items():
        if 0 in seeds:
            whole = [scores for scores in seeds.values() if seeds[0].keys() <= scores.keys()]
            found[key] = {rate: [scores[rate] for scores in whole] for rate in seeds[0]}
    return found


def score_at(grid: Grid, rate: float) -> float:
    """Between the neighbours, over the logarithm of the rate; beyond the ends as at the end."""
    place = 2 * math.log10(rate)
    below = [half for half in grid if half <= place] or [min(grid)]
    above = [half for half in grid if half >= place] or [max(grid)]
    low, high = max(below), min(above)
    part = (place - low) / (high - low) if high > low else 0.0
    return (1 - part) * mean(grid[low]) + part * mean(grid[high])


def is_as_good(grid: Grid, rate: float) -> bool:
    """Whether the score at a rate is at least 0.97 of the best, or within the spread of its seeds."""
    best = max(grid.values(), key=mean)
    spread = stdev(best) if len(best) > 1 else 0.0
    return score_at(grid, rate) >= min(0.97 * mean(best), mean(best) - spread)


def suggestions(
    lines: list[dict[str, Any]], curve: str, rule: Callable[[Curve], float]
) -> Iterator[tuple[dict[str, Any], float]]:
    """The range tests that have what the curve is made of, and the rate that a rule finds in them."""
    flats = {(line["task"], line["seed"]): line for line in lines if line["kind"] == "flat"}
    for line in lines:
        if line["kind"] == "range" and (curve != "batches at rate 0" or (line["task"], line["seed"]) in flats):
            try:
                yield line, rule(CURVES[curve](line, flats))
            except (ValueError, IndexError):  # it ended too early for the rule
                yield line, MIN_RATE


def table(lines: list[dict[str, Any]], tasks: list[str], algorithms: list[str]) -> Iterator[str]:
    """Each rule on each curve, and the default rate."""
    yield "| loss | rule | suggestions | as good as the best | mean part of its score | lowest part |"
    yield "| --- " * 6 + "|"
    arms: list[tuple[str, str, Callable[[Curve], float] | None]] = [
        (curve, name, rule) for curve in CURVES for name, rule in RULES.items()
    ]
    grids = {key: grid for key, grid in grids_of(lines).items() if len(grid) >= 3}
    for curve, name, rule in [*arms, ("", "the default, 0.001", None), ("", "that of the recipe best", None)]:
        parts, good = [], 0
        for line, found in suggestions(lines, curve or "same docs", rule or (lambda curve: 0.0)):
            grid = grids.get((line["task"], line["algorithm"]))
            if grid is None or line["task"] not in tasks or line["algorithm"] not in algorithms:
                continue
            rate = DEFAULTS[line["algorithm"]] if rule is None else found
            if name == "that of the recipe best":
                if line["algorithm"] != "AdamW":
                    continue
                rate = RECIPE.get(line["task"], 2e-3)
            parts.append(score_at(grid, rate) / max(map(mean, grid.values())))
            good += is_as_good(grid, rate)
        if parts:
            yield f"| {curve} | {name} | {len(parts)} | {good} | {mean(parts):.2f} | {min(parts):.2f} |"


def grid_table(lines: list[dict[str, Any]], rule: Callable[[Curve], float]) -> Iterator[str]:
    """The best rates of the grids, and what a rule suggests for each seed."""
    yield "| task | algorithm | seeds | best rate | its score | at 0.001 | suggested | score there |"
    yield "| --- " * 8 + "|"
    found: dict[tuple[str, str], list[float]] = {}
    for line, rate in suggestions(lines, "same docs", rule):
        found.setdefault((line["task"], line["algorithm"]), []).append(rate)
    for (task, algorithm), grid in sorted(grids_of(lines).items(), key=lambda item: list(TASKS).index(item[0][0])):
        rates = found.get((task, algorithm), [])
        best = max(grid, key=lambda half: mean(grid[half]))
        cells = [
            task,
            algorithm,
            str(len(grid[best])),
            f"{10 ** (best / 2):.2g}",
            f"{100 * mean(grid[best]):.1f}",
            f"{100 * score_at(grid, DEFAULTS[algorithm]):.1f}",
            ", ".join(f"{rate:.2g}" for rate in rates),
            ", ".join(f"{100 * score_at(grid, rate):.1f}" for rate in rates),
        ]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    runs.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    runs.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    runs.add_argument("--kinds", nargs="+", choices=["range", "flat", "train"], default=["range", "train"])
    tables = commands.add_parser("table")
    tables.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    tables.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    grids = commands.add_parser("grid", help="the best rates, and those of a rule")
    grids.add_argument("--rule", choices=RULES, default=RULE)
    for command in commands.choices.values():
        command.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.command == "run":
        run(args.tasks, args.algorithms, args.seeds, args.kinds, args.results)
    elif args.command == "table":
        print(*table(read(args.results), args.tasks, args.algorithms), sep="\n")
    else:
        print(*grid_table(read(args.results), RULES[args.rule]), sep="\n")


if __name__ == "__main__":
    main()
