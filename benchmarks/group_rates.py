"""What learning rates per group are worth: a pretrained encoder and a new NER head, against one rate for all.

    python benchmarks/group_rates.py --train train.spacy --dev dev.spacy --transformer path/to/all-MiniLM-L6-v2

Trains configs/fine_tuning.cfg three times for each seed, with the same steps, batches and seed, and prints the F-score
on dev.
"""

import argparse
import contextlib
import io
from pathlib import Path
from statistics import mean

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "fine_tuning.cfg"
ARMS = {
    "encoder 2e-5, head 1e-3, layer decay 0.9": None,
    "3e-5 for all": 3e-5,
    "1e-3 for all": 1e-3,
}


def train(args: argparse.Namespace, rate: float | None, seed: int) -> dict[int, float]:
    """Train once. RETURNS (dict[int, float]): F-score on dev, 0 to 100, by step."""
    from confection import Config
    from spacy.training.initialize import init_nlp
    from spacy.training.loop import train as spacy_train

    config = Config().from_disk(CONFIG, interpolate=False)
    config["paths"] |= {"train": args.train, "dev": args.dev, "transformer": args.transformer}
    config["system"] |= {"seed": seed, "gpu_allocator": None}
    config["training"] |= {"max_steps": args.steps, "eval_frequency": args.steps // 3}
    optimizer = config["training"]["optimizer"]
    if rate is not None:
        optimizer["learn_rate"]["initial_rate"] = rate
        del optimizer["param_groups"], optimizer["layer_decay"]
    for schedule in [
        optimizer["learn_rate"],
        *(block["learn_rate"] for block in optimizer.get("param_groups", {}).values()),
    ]:
        schedule |= {"total_steps": args.steps, "warmup_steps": args.steps // 10}
    nlp = init_nlp(config)
    printed = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()):
        spacy_train(nlp, stdout=printed)
    rows = [line.split() for line in printed.getvalue().splitlines() if line.strip()[:1].isdigit()]
    return {int(row[1]): 100 * float(row[-1]) for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="training corpus, .spacy")
    parser.add_argument("--dev", required=True, help="dev corpus, .spacy")
    parser.add_argument("--transformer", required=True, help="name or folder of the encoder")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args()
    for label, rate in ARMS.items():
        runs = [train(args, rate, seed) for seed in args.seeds]
        cells = [f"{mean(run[step] for run in runs):.0f}" for step in runs[0]]
        if label == next(iter(ARMS)):
            print("|  | " + " | ".join(f"step {step}" for step in runs[0]) + " | each seed's last |")
            print("| --- |" + " --- |" * (len(cells) + 1))
        last = ", ".join(f"{run[max(run)]:.0f}" for run in runs)
        print(f"| {label} | {' | '.join(cells)} | {last} |", flush=True)


if __name__ == "__main__":
    main()
