"""What importing the package costs, next to importing spaCy.

    python benchmarks/import_time.py [--rounds 9]

Medians over fresh processes, taken in turns. `first use` is what resolving a config with TorchOptimizer in it imports.
"""

import argparse
import statistics
import subprocess
import sys

CASES = {
    "import spacy": "import spacy",
    "import spacy, thinc_torchopt": "import spacy, thinc_torchopt",
    "... and first use": "import spacy, thinc_torchopt.optimizers, thinc_torchopt.torch_optimizers",
}
TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(rounds + 1):
        for name, code in CASES.items():
            run = subprocess.run([sys.executable, "-c", TIMED.format(code)], capture_output=True, text=True, check=True)
            times[name].append(1e3 * float(run.stdout))
    medians = {name: statistics.median(found[1:]) for name, found in times.items()}
    for name, ms in medians.items():
        print(f"{name:32} {ms:8.1f} ms   {ms / medians['import spacy']:6.3f} x spaCy")


if __name__ == "__main__":
    main()
