"""Words per second of n ranks that train one pipeline, against n processes that have nothing to do with each other, and
against one.

    python benchmarks/distributed.py [--ranks 2] [--words 1000 4000] [--rounds 5] [--steps 8] [--data FOLDER]

A tok2vec, a tagger and a parser on the treebank, one BLAS thread a process. n independent processes are what the
machine can do: they share its memory and its caches. All are the same n processes, which take turns in each round: all
of them independent, all of them as ranks, and one of them alone; so a slow moment of the machine meets all. Figures are
medians of the rounds.

The time of a step of ranks has three parts: *waiting* for the slowest, measured by a barrier before the sum;
*communication*, the sum after it; and *compute*, all the rest. Bytes are those that the loopback interface counts.

Then a simulation of more ranks, on the measured times of steps: see `simulate`. With --score instead: one process with
batches of n times the size, and n ranks, for the same number of steps: seconds of the whole command, and the score on
the development data.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import spacy
import torch
import torch.distributed as dist
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.training.batchers import minibatch_by_words
from thinc.api import fix_random_seed

from thinc_torchopt import TorchOptimizer, train_while_improving
from thinc_torchopt.addons.distributed.group import RankGroup
from thinc_torchopt.addons.distributed.settings import Distributed
from thinc_torchopt.core.algorithms.torch_classes import AdamW

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
LISTENER = {"model": {"tok2vec": {"@architectures": "spacy.Tok2VecListener.v1", "width": 96, "upstream": "*"}}}
# A switch and the system's own part of each message of a ring, in seconds.
LATENCY = 50e-6
WARM_UP = 2


# ---------------------------------------------------------------------- in each process


def read(nlp, path, n):
    gold = itertools.islice(DocBin().from_disk(path).get_docs(nlp.vocab), n)
    sentences = [sentence.as_doc() for doc in gold for sentence in doc.sents]
    return [Example(nlp.make_doc(doc.text), doc) for doc in sentences if len(doc) > 1]


def pipeline(examples_of):
    fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec")
    nlp.add_pipe("tagger", config=LISTENER)
    nlp.add_pipe("parser", config=LISTENER)
    examples = examples_of(nlp)
    nlp.initialize(lambda: examples)
    return nlp, examples


class Parts:
    """The parts of the time of a step of ranks, in seconds, one for each step."""

    def __init__(self):
        self.waiting, self.communication, self.bytes = [], [], []
        original = RankGroup.sum_

        def sum_(group, tensor, *what):
            started = time.perf_counter()
            dist.barrier()
            waited = time.perf_counter()
            sent = _bytes_sent()
            original(group, tensor, *what)
            self.waiting.append(waited - started)
            self.communication.append(time.perf_counter() - waited)
            self.bytes.append((_bytes_sent() - sent, tensor.numel() * tensor.element_size()))

        RankGroup.sum_ = sum_


def _bytes_sent():
    try:
        return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())
    except OSError:
        return 0


def train(nlp, optimizer, batches, *, as_ranks):
    """RETURNS: The seconds of each step, and the words of all."""
    environment = {name: os.environ.pop(name) for name in ("WORLD_SIZE",) if not as_ranks}
    seconds, words = [], 0
    try:
        started = time.perf_counter()
        for _, info, _ in train_while_improving(
            nlp,
            optimizer,
            iter([(0, batch) for batch in batches]),
            lambda: (0.0, {}),
            dropout=0.1,
            eval_frequency=10**6,
            accumulate_gradient=1,
            patience=0,
            max_steps=0,
            exclude=[],
            annotating_components=[],
            before_update=None,
        ):
            now = time.perf_counter()
            seconds.append(now - started)
            started, words = now, info["words"]
    finally:
        os.environ.update(environment)
    return seconds, words


def process(options):
    """One of the n processes. Rank 0 writes what was measured."""
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    nlp, examples = pipeline(lambda nlp: read(nlp, options.data / "ud-english-ewt-train.spacy", options.docs))
    optimizer = TorchOptimizer(AdamW(), 0.001, distributed=Distributed(check_every=0))
    parts = Parts()
    rng, found = random.Random(0), []
    for words, _ in itertools.product(options.words, range(options.rounds)):
        rng.shuffle(examples)
        needed = n * (options.steps + WARM_UP)
        stream = itertools.cycle(minibatch_by_words(examples, words, tolerance=0.2))
        batches = list(itertools.islice(stream, needed))
        row = {"words": words}
        for kind in ("independent", "ranks", "one"):
            dist.barrier()
            own = batches if kind == "ranks" else batches[rank::n]
            if kind == "one" and rank:
                own = []  # it waits at the barrier
            del parts.waiting[:], parts.communication[:], parts.bytes[:]
            seconds, _ = train(nlp, optimizer, own, as_ranks=kind == "ranks") if own else ([], 0)
            if kind == "independent":
                dist.barrier()
            seconds = seconds[WARM_UP:]
            size = sum(len(example) for batch in batches[n * WARM_UP :] for example in batch)
            everyone = [None] * n
            dist.all_gather_object(
                everyone, (seconds, list(parts.waiting[WARM_UP:]), list(parts.communication[WARM_UP:]))
            )
            if kind == "one":
                size = sum(len(example) for batch in own[WARM_UP:] for example in batch)
            totals = [sum(times) for times, _, _ in everyone if times]
            row[kind] = {"words_per_second": size / max(totals), "seconds": [times for times, _, _ in everyone]}
            if kind == "ranks":
                row[kind] |= {
                    "waiting": [sum(waited) for _, waited, _ in everyone],
                    "communication": [sum(sent) for _, _, sent in everyone],
                    "bytes": parts.bytes[-1],
                }
        found.append(row)
    if rank == 0:
        options.output.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


# ---------------------------------------------------------------------- what it says


def median(values):
    return statistics.median(list(values))


def report(rows, n):
    for words in dict.fromkeys(row["words"] for row in rows):
        chosen = [row for row in rows if row["words"] == words]
        speed = {
            kind: median(row[kind]["words_per_second"] for row in chosen) for kind in ("one", "independent", "ranks")
        }
        ratio = median(row["ranks"]["words_per_second"] / row["independent"]["words_per_second"] for row in chosen)
        gain = median(row["ranks"]["words_per_second"] / row["one"]["words_per_second"] for row in chosen)
        totals = [sum(row["ranks"]["seconds"][0]) for row in chosen]
        waiting = median(statistics.mean(row["ranks"]["waiting"]) / all for row, all in zip(chosen, totals))
        talking = median(statistics.mean(row["ranks"]["communication"]) / all for row, all in zip(chosen, totals))
        step = median(second for row in chosen for second in row["ranks"]["seconds"][0])
        sent, size = chosen[-1]["ranks"]["bytes"]
        ring = 2 * (n - 1) / n * size
        print(
            f"{words} words a batch: one {speed['one']:,.0f} words/s; {n} independent {speed['independent']:,.0f}; {n} "
            f"ranks {speed['ranks']:,.0f} = {ratio:.1%} of independent, {gain:.2f} x one"
        )
        print(
            f"  step {1000 * step:.0f} ms: compute {1 - waiting - talking:.1%}, communication {talking:.1%}, waiting "
            f"{waiting:.1%}; (compute + communication) / all {1 - waiting:.1%}"
        )
        print(f"  sent per rank and step {sent / n / 1e6:.2f} MB; a ring's minimum {ring / 1e6:.2f} MB")
        simulate([second for row in chosen for second in row["independent"]["seconds"][0]], size)


def simulate(compute, size, rounds=2000):
    """Efficiency of more ranks: the time of computing, in all of the time of a step.

    Assumptions: each rank has a core of its own like those measured, and memory too; its time for a step is drawn from
    the measured ones, so it has their spread; the slowest counts. The sum is a ring, as gloo's is: 2 (n - 1) / n times
    the size goes through each link, in 2 (n - 1) messages of 50 microseconds; nothing overlaps with computing, and
    nobody else uses the network. Data, evaluation and saving are left out.

    compute (list[float]): Seconds of steps of a process by itself. size (int): Bytes of the gradients.
    """
    rng = random.Random(0)
    for n, gigabit in itertools.product((8, 64), (10, 100)):
        ring = 2 * (n - 1) / n * size / (gigabit * 1e9 / 8) + 2 * (n - 1) * LATENCY
        slowest = statistics.mean(max(rng.choices(compute, k=n)) for _ in range(rounds))
        mean = statistics.mean(compute)
        print(
            f"  simulated: {n} ranks, {gigabit} Gbit/s: communication {1000 * ring:.1f} ms a step, efficiency "
            f"{mean / (slowest + ring):.0%}, without the spread of step times {mean / (mean + ring):.0%}"
        )


def compare_scores(options):
    """One process with batches of n times the size, and n ranks."""
    config = Path(__file__).resolve().parents[1] / "configs" / "cnn.cfg"
    for words, n in itertools.product(options.words[:1], (1, options.ranks)):
        command = [sys.executable, "-m", "spacy", "torchopt", "train", config, "--nproc-per-node", n]
        settings = {
            "paths.train": options.data / "ud-english-ewt-train.spacy",
            "paths.dev": options.data / "ud-english-ewt-dev.spacy",
            "training.max_steps": options.score,
            "training.eval_frequency": options.score,
            "training.batcher.size": words * options.ranks // n,
        }
        command += [part for name, value in settings.items() for part in (f"--{name}", value)]
        started = time.perf_counter()
        run = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=_environment(), check=True)
        seconds = time.perf_counter() - started
        print(f"{n} processes, {words * options.ranks // n} words each: {seconds:.0f} seconds for the whole command")
        shown = [line for line in run.stdout.splitlines() if "LOSS" in line or f" {options.score} " in line]
        print("\n".join(shown))


def _environment():
    return os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--words", type=int, nargs="+", default=[1000, 4000], help="Words of a batch, for each rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--docs", type=int, default=300, help="Documents to read")
    parser.add_argument("--score", type=int, default=0, metavar="STEPS", help="Compare scores after so many steps")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=Path("distributed.json"), help="What was measured, as JSON")
    options = parser.parse_args()
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        process(options)
        return
    if options.score:
        compare_scores(options)
        return
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks), *sys.argv]
    subprocess.run([sys.executable, *command], env=_environment(), check=True)
    report(json.loads(options.output.read_text()), options.ranks)


if __name__ == "__main__":
    main()
