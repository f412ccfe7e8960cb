"""What the package costs: programs that import it, and programs that only use spaCy.

    python benchmarks/import_time.py [--rounds 9]

Medians of CPU time over fresh processes, taken in turns; that of `blank` and `load` after `import spacy`. `without`:
our entry points are hidden, as if the package were not installed. `first use` is what resolving a config with
TorchOptimizer in it imports.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile

HIDE = """import catalogue, spacy
points = catalogue.AVAILABLE_ENTRY_POINTS
catalogue.AVAILABLE_ENTRY_POINTS = {
    group: [one for one in points.select(group=group) if not one.value.startswith("thinc_torchopt")]
    for group in points.groups
}"""
# Like HIDE, but nothing is hidden: both look up entry points in the same way.
KEEP = HIDE.replace(' if not one.value.startswith("thinc_torchopt")', "")
SAVE = "import spacy; nlp = spacy.blank('en'); nlp.add_pipe('tok2vec'); nlp.initialize(); nlp.to_disk({!r})"
# By name: preparation, the timed code, and the name of the case that it is compared with.
CASES = {
    "import spacy": ("", "import spacy", "import spacy"),
    "import spacy, thinc_torchopt": ("", "import spacy, thinc_torchopt", "import spacy"),
    "... and first use": (
        "",
        "import spacy, thinc_torchopt.core.optimizer, thinc_torchopt.torch_optimizers",
        "import spacy",
    ),
    "spacy.blank, without": (HIDE, "spacy.blank('en')", "spacy.blank, without"),
    "spacy.blank": (KEEP, "spacy.blank('en')", "spacy.blank, without"),
    "spacy.load, without": (HIDE, "spacy.load({!r})", "spacy.load, without"),
    "spacy.load": (KEEP, "spacy.load({!r})", "spacy.load, without"),
}
TIMED = "{}\nimport time\nstart = time.process_time()\n{}\nprint(time.process_time() - start)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as pipeline:
        subprocess.run([sys.executable, "-c", SAVE.format(pipeline)], check=True)
        for _ in range(rounds + 1):
            for name, (before, code, _) in CASES.items():
                command = [sys.executable, "-c", TIMED.format(before, code.format(pipeline))]
                run = subprocess.run(command, capture_output=True, text=True, check=True)
                times[name].append(1e3 * float(run.stdout))
    medians = {name: statistics.median(found[1:]) for name, found in times.items()}
    for name, (_, _, other) in CASES.items():
        ms = medians[name]
        print(f"{name:32} {ms:8.1f} ms   {ms - medians[other]:+8.1f} ms")


if __name__ == "__main__":
    main()
