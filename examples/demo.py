"""The script behind `make demo`: train a small pipeline with torch's AdamW, and see what it finds.

The pipeline finds code in English prose about Python. Its config is configs/demo.cfg, and
thinc_torchopt/addons/corpora.py reads its data: the documentation that comes with Python.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import spacy

CONFIG = Path(__file__).parent.parent / "configs" / "demo.cfg"
SENTENCES = (
    "Call the __enter__() method of the context manager before the with statement runs.",
    "If the list is too short, an IndexError is raised, which the except clause can catch.",
    "The isinstance() function returns True for every str, and it never returns None.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help_output = "folder for the models (default: %(default)s)"
    parser.add_argument("--output", type=Path, default=Path("training/demo"), help=help_output)
    # All other arguments are overrides, as in `spacy train`: --training.max_steps 100
    args, overrides = parser.parse_known_args()
    command = ["spacy", "train", os.path.relpath(CONFIG), "--output", str(args.output), *overrides]
    print(f"1. Train: {' '.join(command)}", flush=True)
    start = time.perf_counter()
    code = run([sys.executable, "-m", *command])
    if code != 0:
        sys.exit(f"spacy train stopped with exit code {code}: see above.")
    seconds = time.perf_counter() - start

    best = args.output / "model-best"
    nlp = spacy.load(best)
    scores = nlp.meta["performance"]
    print("\n2. The scores, on chapters that were not used in training")
    print(f"  {scores['ents_p']:.1%} of what is marked as code is code (precision).")
    print(f"  {scores['ents_r']:.1%} of the code is marked (recall).")
    print(f"  {scores['ents_f']:.1%} is both combined (F-score). It took {seconds:.0f} seconds, with all evaluations.")

    print("\n3. What it marks in other texts")
    for sentence in SENTENCES:
        found = ", ".join(ent.text for ent in nlp(sentence).ents) or "nothing"
        print(f"  {sentence}\n    {found}")
    print(f'\nThe model is in {best}. Use it in Python: nlp = spacy.load("{best.as_posix()}")')


def run(command: list[str]) -> int:
    """Run a command, and return its exit code. spaCy prints colours into files and pipes, too: there they are left
    out.
    """
    if sys.stdout.isatty():
        return subprocess.run(command).returncode
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf8") as process:
        for line in process.stdout:
            print(re.sub(r"\x1b\[[\d;]*m", "", line), end="", flush=True)
    return process.returncode


if __name__ == "__main__":
    main()
