"""CPU seconds and wall time of whole commands: `spacy train` with a stock config, and with ours, in turns.

    python benchmarks/whole.py [--tasks food,ewt,issues,spancat,lstm] [--steps 200] [--runs 3] [--threads 1,2]
                               [--json out.json]

Imports, reading the corpora, initialization, evaluations and saving are in. Corpora: ../shared/data. Contestants:

    stock     spacy init config (-o efficiency): thinc's Adam, thinc's products
    numpy     the same command, where thinc's NumpyOps multiply by NumPy: NumpyOps(use_blis=False)
    ours      the recipe `best` (spacy torchopt init), thinc's products
    fastest   the same, with ops = "fastest"
    plain     the same, with THINC_TORCHOPT_FASTER=0: spaCy's own way in a step, and Python's garbage collector
    drop-in   the recipe `drop-in`, which writes ops = "fastest" too

All train on batches of the same size, and evaluate after the same steps. Each run is a process of its own, without
limits on the kernels of OpenBLAS (OPENBLAS_CORETYPE, OPENBLAS_L2_SIZE), and contestants take turns. Printed are all
runs, the medians in parts of stock's, and where the time of a run went: before the first step, in steps, in
evaluations. Machines where BLIS is as fast show nothing: its sub-configuration stands on top.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import spacy
from confection import Config
from spacy.tokens import DocBin

from thinc_torchopt.core.host import code_of_blis

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
TASKS = {
    "food": ("food", "ner"),
    "ewt": ("ud-english-ewt", "tagger,parser"),
    "issues": ("docs-issues", "textcat"),
    "spancat": ("food", "spancat"),
    "lstm": ("food", "ner"),
}
CONTESTANTS = ("stock", "numpy", "ours", "fastest", "plain", "drop-in")
BATCH_WORDS = 400
CNN: dict[str, Any] = {
    "@architectures": "spacy.HashEmbedCNN.v2",
    "pretrained_vectors": None,
    "width": 96,
    "depth": 4,
    "embed_size": 2000,
    "window_size": 1,
    "maxout_pieces": 3,
    "subword_features": True,
}
LSTM = {"@architectures": "spacy.TorchBiLSTMEncoder.v1", "width": 96, "depth": 2, "dropout": 0.1}

# In the process of a run: what it spent until the first step, and in evaluations.
_RUN = """
import json, resource, sys, time
import spacy.cli, spacy.cli.train as command, spacy.training.loop as loop, thinc.api
from spacy.language import Language

def spent():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

parts = {"before": 0.0, "evaluations": 0.0}
evaluate, update = Language.evaluate, Language.update

def timed(self, *args, **kwargs):
    began = spent()
    try:
        return evaluate(self, *args, **kwargs)
    finally:
        parts["evaluations"] += spent() - began

def first(self, *args, **kwargs):
    parts["before"], Language.update = spent(), update
    return update(self, *args, **kwargs)

Language.evaluate, Language.update = timed, first
if sys.argv[1] == "numpy":
    thinc.api.set_current_ops(thinc.api.NumpyOps(use_blis=False))
    command.setup_gpu = lambda use_gpu, silent=None: None
try:
    spacy.cli.app(sys.argv[3:], standalone_mode=False)
finally:
    with open(sys.argv[2], "w") as file:
        json.dump({**parts, "all": spent()}, file)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--json")
    args = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"This benchmark needs the corpora in {DATA}.")
    print(f"BLIS: {code_of_blis() or 'not told'}. {len(os.sched_getaffinity(0))} processors.", flush=True)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for task in args.tasks.split(","):
            for threads in map(int, args.threads.split(",")):
                runs = measure(Path(folder), task, args.contestants.split(","), args.steps, args.runs, threads)
                found[f"{task}, {args.steps} steps, threads {threads}"] = runs
                tell(task, threads, runs)
    if args.json:
        machine.write(args.json, "whole", "cpu", found)


def measure(
    folder: Path, task: str, contestants: list[str], steps: int, n_runs: int, threads: int
) -> dict[str, list[dict[str, float]]]:
    configs = {name: config_for(folder, task, name) for name in contestants}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for turn in range(n_runs):
        for name in contestants if turn % 2 == 0 else contestants[::-1]:
            runs[name].append(run(folder, name, configs[name], steps, threads))
    return runs


def config_for(folder: Path, task: str, name: str) -> Path:
    corpus, pipes = TASKS[task]
    stock, ours = folder / f"{task}-stock.cfg", folder / f"{task}-{name}.cfg"
    spacy_cli("init", "config", "-p", pipes, "-o", "efficiency", "-F", stock)
    config = Config().from_disk(stock, interpolate=False)
    config["paths"] |= {part: str(DATA / f"{corpus}-{part}.spacy") for part in ("train", "dev")}
    config["training"]["batcher"]["size"] = BATCH_WORDS
    if task == "issues":
        config["components"]["textcat"]["model"] = {
            "@architectures": "spacy.TextCatReduce.v1",
            "exclusive_classes": True,
            "use_reduce_first": False,
            "use_reduce_last": False,
            "use_reduce_max": False,
            "use_reduce_mean": True,
            "nO": None,
            "tok2vec": CNN,
        }
    elif task == "spancat":
        config["paths"] |= {part: str(with_spans(Path(config["paths"][part]), folder)) for part in ("train", "dev")}
    elif task == "lstm":
        config["components"]["tok2vec"]["model"]["encode"] = LSTM
    config.to_disk(stock)
    if name in ("stock", "numpy"):
        return stock
    recipe = "drop-in" if name == "drop-in" else "best"
    spacy_cli("torchopt", "init", stock, ours, "--recipe", recipe, "--paths.train", config["paths"]["train"])
    config = Config().from_disk(ours, interpolate=False)
    config["training"]["batcher"]["size"] = BATCH_WORDS
    config["training"]["optimizer"]["ops"] = "thinc" if name == "ours" else "fastest"
    config.to_disk(ours)
    return ours


def with_spans(path: Path, folder: Path) -> Path:
    """The texts with their entities as spans."""
    written, nlp = folder / path.name, spacy.blank("en")
    if not written.exists():
        docs = list(DocBin().from_disk(path).get_docs(nlp.vocab))
        for doc in docs:
            doc.spans["sc"] = list(doc.ents)
        DocBin(docs=docs, store_user_data=True).to_disk(written)
    return written


def spacy_cli(*args: object) -> None:
    subprocess.run([sys.executable, "-m", "spacy", *map(str, args)], check=True, capture_output=True)


def run(folder: Path, name: str, config: Path, steps: int, threads: int) -> dict[str, float]:
    out = folder / "figures.json"
    env = {key: value for key, value in os.environ.items() if key not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}
    env |= {key: str(threads) for key in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    env |= {"THINC_TORCHOPT_FASTER": "0"} if name == "plain" else {}
    more = ["--training.optimizer.ops_threads", str(threads)] if name == "fastest" else []
    began, before = time.perf_counter(), spent_by_children()
    subprocess.run(
        [
            sys.executable,
            "-c",
            _RUN,
            name,
            str(out),
            "train",
            str(config),
            "--output",
            str(folder / f"{config.stem}-model"),
            "--training.max_steps",
            str(steps),
            "--training.eval_frequency",
            "100",
            "--training.patience",
            "0",
            *more,
        ],
        check=True,
        capture_output=True,
        env=env,
    )
    parts = json.loads(out.read_text())
    cpu, wall = spent_by_children() - before, time.perf_counter() - began
    steps_alone = parts["all"] - parts["before"] - parts["evaluations"]
    return {
        "cpu": cpu,
        "wall": wall,
        "before": parts["before"],
        "evaluations": parts["evaluations"],
        "steps": steps_alone,
    }


def spent_by_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tell(task: str, threads: int, runs: dict[str, list[dict[str, float]]]) -> None:
    print(f"\n{task}, {threads} thread{'s' if threads > 1 else ''}: CPU seconds")
    stock = statistics.median(run["cpu"] for run in next(iter(runs.values())))
    for name, found in runs.items():
        middle = {part: statistics.median(run[part] for run in found) for part in found[0]}
        each = " ".join(f"{run['cpu']:.1f}" for run in found)
        print(
            f"  {name:8s} {each}  ({middle['cpu'] / stock:.2f}); before the first step {middle['before']:.1f}, steps "
            f"{middle['steps']:.1f}, evaluations {middle['evaluations']:.1f}; wall {middle['wall']:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
