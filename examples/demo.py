"""The script behind `make demo`: train a small pipeline with torch's AdamW, then with thinc's Adam, and compare them.

The pipeline finds code in English prose about Python. Its config is configs/demo.cfg, and
thinc_torchopt/addons/corpora.py reads its data. The two trainings differ only in the block [training.optimizer]: data,
seed, steps and learning rates are the same.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import spacy
from spacy.language import Language
from spacy.util import load_config, registry
from wasabi import msg

CONFIG = Path(__file__).parent.parent / "configs" / "demo.cfg"
SENTENCES = (
    "Call the __enter__() method of the context manager before the with statement runs.",
    "If the list is too short, an IndexError is raised, which the except clause can catch.",
    "The isinstance() function returns True for every str, and it never returns None.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help_output = "folder for both models (default: %(default)s)"
    parser.add_argument("--output", type=Path, default=Path("training/demo"), help=help_output)
    # All other arguments are overrides for both trainings, as in `spacy train`: --training.max_steps 100
    args, overrides = parser.parse_known_args()
    output = args.output
    output.mkdir(parents=True, exist_ok=True)

    msg.divider("1. spacy train with torch's AdamW")
    torch_seconds = train(CONFIG, output / "torch-adamw", overrides)
    msg.divider("2. The same with thinc's Adam")
    msg.info("Training for about as long as before, without the table")
    thinc_seconds = train(write_thinc_config(output / "thinc-adam.cfg"), output / "thinc-adam", overrides, show=False)
    msg.good(f"Trained in {thinc_seconds:.0f} seconds")

    names = ("torch's AdamW", "thinc's Adam")
    models = [spacy.load(output / folder / "model-best") for folder in ("torch-adamw", "thinc-adam")]
    msg.divider("Side by side")
    print_scores(names, models, (torch_seconds, thinc_seconds))
    print_sentences(names, models)
    best = output / "torch-adamw" / "model-best"
    usage = f'Use it in Python: nlp = spacy.load("{best.as_posix()}")'
    msg.good(f"The model that torch's AdamW trained is in {best}", usage)


def train(config: Path, output: Path, overrides: list[str], *, show: bool = True) -> float:
    """Run `spacy train`, and return how many seconds it took from start to exit."""
    command = [sys.executable, "-m", "spacy", "train", str(config), "--output", str(output), *overrides]
    # Otherwise, with output to a pipe, our lines would come after those of the process.
    sys.stdout.flush()
    start = time.perf_counter()
    hidden = {} if show else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, text=True, **hidden)
    if done.returncode != 0:
        msg.fail(f"spacy train {config} stopped with exit code {done.returncode}", done.stdout or "See above.", exits=1)
    return time.perf_counter() - start


def write_thinc_config(path: Path) -> Path:
    """Write the demo's config with thinc's Adam instead of our optimizer."""
    config = load_config(CONFIG, interpolate=False)
    ours = config["training"]["optimizer"]
    config["training"]["optimizer"] = {
        "@optimizers": "Adam.v1",
        "L2": ours["algorithm"]["weight_decay"],
        "L2_is_weight_decay": True,
        "grad_clip": ours["grad_clip"],
        "use_averages": ours["use_averages"],
        "learn_rate": ours["learn_rate"],
    }
    config.to_disk(path)
    return path


def print_scores(names: tuple[str, str], models: list[Language], seconds: tuple[float, float]) -> None:
    """Score both models on chapters that were not used in training."""
    rows = []
    for name, nlp, took in zip(names, models, seconds):
        dev = registry.resolve(nlp.config["corpora"])["dev"]
        scores = nlp.evaluate(list(dev(nlp)))
        rows.append((name, *(f"{scores[key]:.1%}" for key in ("ents_f", "ents_p", "ents_r")), f"{took:.0f}"))
    header = ("Trained by", "F-score", "Precision", "Recall", "Seconds")
    msg.table(rows, header=header, divider=True, aligns=("l", "r", "r", "r", "r"))
    msg.text("Precision: the share of marked text that is code. Recall: the share of code that is marked.")
    msg.text("F-score: precision and recall combined. Scores are on chapters that were not used in training.")
    msg.text("Seconds are for the whole `spacy train` command, with its start and all evaluations.")


def print_sentences(names: tuple[str, str], models: list[Language]) -> None:
    """Show what each model marks as code in text that is not from the documentation."""
    for sentence in SENTENCES:
        print(f"\n{sentence}")
        for name, nlp in zip(names, models):
            found = ", ".join(ent.text for ent in nlp(sentence).ents) or "nothing"
            print(f"  {name + ' finds':20} {found}")
    print()


if __name__ == "__main__":
    main()
