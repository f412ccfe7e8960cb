"""What controllers cost whose rules don't fire, against budgets in microseconds a step: ten of all kinds, and ten and a
hundred over windows of a hundred values.

    python benchmarks/controller.py [--steps 20000]

A step is all events that spaCy's loop sends for it, from on_step_begin to on_log. The rules are those that people
write: thresholds, windows, patience, scores, rates.

Time of the processor, without that of other processes. On a busy machine the best of several rounds tells more than
their mean: both are shown.
"""

import argparse
import time
from typing import Any

from thinc_torchopt.addons.controller.controller import TrainerController

# Microseconds, by the number of rules over windows; 0: ten rules of all kinds.
BUDGETS = {0: 50.0, 10: 150.0, 100: 1_000.0}

RULES = [
    "loss['loss'] < -1.0",
    "loss['components']['ner'] < -1.0",
    "len(window['training_loss']['loss']) == 5 and window['training_loss']['loss'][-1] > 100.0",
    "len(window['training_loss']['loss']) == 5 and min(window['training_loss']['loss']) > 100.0",
    "scores['ents_f'] > 1.5",
    "scores['evaluations_since_best'] > 10 and scores['score'] < 0.2",
    "state['seconds'] > 1e9",
    "state['skipped_updates'] > 100 or state['epoch'] > 1000",
    "norms['total'] > 1000.0 and norms['components']['ner'] > 1000.0",
    "rates['encoder'] < 1e-12 and loss['per_word'] > 3.0",
]
DEFINITION = {
    "controller_metrics": [
        {"name": "loss", "class": "Loss"},
        {
            "name": "window",
            "class": "HistoryBasedMetric",
            "arguments": {"window_size": 5, "source_event": "on_step_end"},
        },
        {"name": "scores", "class": "EvalMetrics"},
        {"name": "state", "class": "TrainingState"},
        {"name": "norms", "class": "GradNorm"},
        {"name": "rates", "class": "LearnRates"},
    ],
    "controllers": [
        {
            "name": f"controller-{i}",
            "triggers": ["on_step_end"],
            "rule": rule,
            "patience": {"patience_threshold": 3},
            "operations": ["hfcontrols.should_training_stop"],
        }
        for i, rule in enumerate(RULES)
    ],
}
STATISTICS = ("mean", "median", "std", "slope", "max")


def over_windows(count: int) -> dict[str, Any]:
    """A definition of rules, each over a window of its own."""
    of = "loss['per_word']", "norms['total']"
    windows = [
        {"name": f"w{i}", "class": "Window", "arguments": {"of": of[i % 2], "size": 100 + i}} for i in range(count)
    ]
    rules = [
        {
            "name": f"rule-{i}",
            "triggers": ["on_step_end"],
            "rule": f"w{i}['{STATISTICS[i % 5]}'] > 1e9",
            "operations": ["hfcontrols.should_training_stop"],
        }
        for i in range(count)
    ]
    metrics = [{"name": "loss", "class": "Loss"}, {"name": "norms", "class": "GradNorm"}, *windows]
    return {"controller_metrics": metrics, "controllers": rules}


EVENTS = ("on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_log")


def microseconds_a_step(count: int, steps: int) -> float:
    controller = TrainerController(over_windows(count) if count else DEFINITION)
    controller.on_event("on_evaluate", step=0, epoch=0, scores={"ents_f": 0.5, "ents_p": 0.5}, score=0.5)
    rates, norms, losses = (
        {"encoder": 1e-5, "head": 1e-3},
        {"ner": 0.5, "tagger": 0.3},
        {"ner": 3.0, "tagger": 1.0, "tok2vec": 9.0},
    )
    started = time.process_time()
    for step in range(steps):
        payload = {
            "step": step,
            "epoch": step // 100,
            "words": 1000 * step,
            "seconds": 0.1 * step,
            "learn_rates": rates,
        }
        words = 1000 + step % 97  # losses that differ
        batch = {"losses": losses, "batch_words": words, "batch_size": 32, "grad_norm": 0.7 + 1 / words}
        for event in EVENTS:
            more = (
                batch
                if event in ("on_step_end", "on_log")
                else {"grad_norms": norms}
                if event == "on_pre_optimizer_step"
                else {}
            )
            if event in controller.events and controller.on_event(event, **payload, **more):
                raise SystemExit("a rule fired")
    return 1e6 * (time.process_time() - started) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="in each of five rounds")
    steps = parser.parse_args().steps
    found: dict[int, list[float]] = {count: [] for count in BUDGETS}
    for _ in range(5):
        for count, rounds in found.items():  # in turns, so that a busy moment meets all of them
            rounds.append(microseconds_a_step(count, steps // (count // 5 or 1)))
    for count, rounds in found.items():
        best, mean = min(rounds), sum(rounds) / len(rounds)
        verdict = "ok" if best < BUDGETS[count] else "OVER BUDGET"
        what = f"{count} rules over windows" if count else "ten controllers"
        print(f"{what}: {best:.1f} us a step at best, {mean:.1f} on average; budget {BUDGETS[count]:.0f}: {verdict}")


if __name__ == "__main__":
    main()
