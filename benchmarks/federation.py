"""A federation of five clients over Flower's processes, with TLS and registered keys, in which nearly all goes wrong.

    python benchmarks/federation.py run --output training/federation
    python benchmarks/federation.py picture docs/federation.svg

Each client has chapters of its own of Python's documentation, and the pipeline finds code in prose. "west" lies: the
spans of its texts are one word too far to the right, and its rate is ten times as high. "centre" comes with labels of
its own, is refused, and is mended. "east" is killed, and comes back. "south" is late. The server is killed twice. One
line of benchmarks/federation.jsonl for each training: scores of the rounds, and what result.json says of clients; the
same command goes on where it was stopped. Needs the extra `federated`, openssl and ssh-keygen; a federation takes five
to ten minutes of two cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import spacy
from confection import Config
from spacy.tokens import DocBin
from spacy.training import Example

from thinc_torchopt.addons.corpora import PythonDocs
from thinc_torchopt.addons.federated.labels import merge_labels
from thinc_torchopt.addons.federated.results import read_result

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "federated"
sys.path.insert(0, str(EXAMPLE))
from processes import Federation, exit_on_signals, federation  # noqa: E402

CONFIG = HERE.parent / "configs" / "federated.cfg"
RESULTS = HERE / "federation.jsonl"
CLIENTS = ("north", "east", "south", "west", "centre")
GUARD = {"federated": {"guard": {"@misc": "thinc-torchopt.UpdateGuard.v1"}, "min_clients": 2}}
MEDIAN = {
    "federated": {"average": {"@misc": "thinc-torchopt.FlowerStrategy.v1", "strategy": "FedMedian"}, "min_clients": 3}
}
# The blocks of each method.
METHODS: dict[str, list[Path | dict[str, Any]]] = {
    "FedAvg": [GUARD],
    "FedProx": [EXAMPLE / "fedprox.cfg", GUARD],
    "SCAFFOLD": [EXAMPLE / "scaffold.cfg", GUARD],
    "FedMedian": [MEDIAN],
}
CENTRAL = "central"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train, and print results")
    run.add_argument("--output", type=Path, default=Path("training/federation"), help="folder (default: %(default)s)")
    run.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="which (default: 0 1 2)")
    run.add_argument("--methods", nargs="+", default=[*METHODS, CENTRAL], help="which (default: all)")
    run.add_argument("--rounds", type=int, default=8, help="how many rounds (default: %(default)s)")
    run.add_argument("--local-steps", type=int, default=10, help="steps in a round (default: %(default)s)")
    run.add_argument("--texts", type=int, default=120, help="texts of a client (default: %(default)s)")
    run.add_argument("--timeout", type=float, default=60, help="seconds that a round waits (default: %(default)s)")
    picture = commands.add_parser("picture", help="draw the results in benchmarks/federation.jsonl")
    picture.add_argument("path", type=Path)
    args = parser.parse_args()
    if args.command == "picture":
        draw(args.path)
        return
    exit_on_signals()
    output = args.output.resolve()
    write_corpora(output / "texts", args.texts)
    for seed in args.seeds:
        for method in args.methods:
            if any((one["method"], one["seed"]) == (method, seed) for one in results()):
                continue
            train = train_centrally if method == CENTRAL else train_federated
            shutil.rmtree(folder := output / f"{method}-{seed}", ignore_errors=True)
            found = train(folder, output / "texts", method, seed, args)
            with RESULTS.open("a") as file:
                file.write(json.dumps({"method": method, "seed": seed, **found}) + "\n")


def results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


# ---------------------------------------------------------------------- texts


def write_corpora(folder: Path, n: int) -> None:
    nlp = spacy.blank("en")
    for split in ("train", "dev"):
        examples = list(PythonDocs(split)(nlp))
        size = len(examples) // len(CLIENTS)
        parts = {name: examples[i * size : (i + 1) * size][:n] for i, name in enumerate(CLIENTS)}
        honest = list(chain.from_iterable(parts.values()))
        if split == "train":
            honest = [example for name, own in parts.items() if name != "west" for example in own]
            write_labels(folder, parts)
            parts["west"] = [wrong(nlp, example) for example in parts["west"]]
        for name, own in {**parts, CENTRAL: honest}.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            DocBin(docs=[example.reference for example in own]).to_disk(folder / name / f"{split}.spacy")


def wrong(nlp: Any, example: Example) -> Example:
    """The same text with each span one word further to the right."""
    doc = example.reference.copy()
    doc.ents = [
        spacy.tokens.Span(doc, one.start + 1, one.end + 1, one.label_) for one in doc.ents if one.end < len(doc)
    ]
    return Example(nlp.make_doc(doc.text), doc)


def write_labels(folder: Path, parts: dict[str, list[Example]]) -> None:
    """The labels of all; and for "centre" in its first config, one that nobody else has."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for own in parts.values():
        nlp = spacy.blank("en")
        ner = nlp.add_pipe("ner")
        nlp.initialize(lambda own=own: own)
        found.append(json.loads(json.dumps(ner.label_data)))  # type: ignore[attr-defined]
    (folder / "labels.json").write_text(json.dumps(merge_labels(found)))
    (folder / "other-labels.json").write_text(json.dumps(merge_labels([*found, {"1": {"OTHER": 3}}])))


def paths(texts: Path, name: str) -> dict[str, Any]:
    files = {"train": texts / name / "train.spacy", "dev": texts / name / "dev.spacy", "labels": texts / "labels.json"}
    return {f"paths.{key}": str(file) for key, file in files.items()}


# ---------------------------------------------------------------------- trainings


def train_federated(folder: Path, texts: Path, method: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    config = Config().from_disk(CONFIG, interpolate=False)
    for block in METHODS[method]:
        config = config.merge(Config().from_disk(block, interpolate=False) if isinstance(block, Path) else block)
    config["system"]["seed"] = seed
    config["federated"] |= {
        "rounds": args.rounds,
        "local_steps": args.local_steps,
        "clients": len(CLIENTS),
        "wait_seconds": 30,
        "timeout_seconds": args.timeout,
        "resume": "auto",
    }
    config["paths"]["labels"] = str(texts / "labels.json")
    folder.mkdir(parents=True)
    config.to_disk(folder / "federated.cfg")
    clients: dict[str, dict[str, Any]] = {
        name: {"config": folder / "federated.cfg", "state": folder / "states" / name, **paths(texts, name)}
        for name in CLIENTS
    }
    clients["west"]["training.optimizer.learn_rate"] = 10 * config["training"]["optimizer"]["learn_rate"]
    clients["centre"]["paths.labels"] = str(texts / "other-labels.json")
    start = time.monotonic()
    with federation(folder, clients, tls=True) as running:
        running.run({"config": folder / "federated.cfg", "output": folder})
        told = follow(running, events(running, clients, texts), 120 + args.rounds * (args.timeout + 60))
    found = read_result(folder)
    rows = found["rounds"]
    return {
        "status": found["status"],
        "error": found["error"],
        "scores": [row["score"] for row in rows],
        "clients": [sorted(row["clients"]) for row in rows],
        "failed": [row["failed"] for row in rows],
        "interrupted": [row["interrupted"] for row in rows],
        "refused": found["refused"],
        "events": told,
        "seconds": round(time.monotonic() - start),
    }


Event = tuple[int, str, Callable[[], None]]


def events(running: Federation, clients: dict[str, dict[str, Any]], texts: Path) -> list[Event]:
    """What happens when a client begins a round: the round, in words, and how."""

    def mend() -> None:
        running.end_client("centre")
        clients["centre"]["paths.labels"] = str(texts / "labels.json")
        running.start_client("centre")

    return [
        (2, "the server is killed", running.kill_server),
        (3, "east is killed", lambda: running.kill("east")),
        (3, "centre is mended", mend),
        (4, "the server is killed", running.kill_server),
        (5, "east comes back", lambda: running.start_client("east")),
        (6, "south stands still", lambda: running.signal("south", signal.SIGSTOP)),
        (7, "south goes on", lambda: running.signal("south", signal.SIGCONT)),
    ]


def follow(running: Federation, pending: list[Event], seconds: float) -> list[str]:
    """Let events happen in their order, until the run ends. RETURNS (list[str]): They, with the seconds since then."""
    start, told = time.monotonic(), []
    while running.is_running:
        if time.monotonic() - start > seconds:
            raise TimeoutError(f"The run did not end within {seconds:g} seconds: see {running.log('run')}")
        # South is the one that stands still, when it trains.
        if pending and f"begins round {pending[0][0]}:" in running.log(
            "south" if "still" in pending[0][1] else "north"
        ).read_text(errors="replace"):
            round, words, happen = pending.pop(0)
            happen()
            told.append(f"{time.monotonic() - start:.0f} s, round {round}: {words}")
            print(told[-1], file=sys.stderr, flush=True)
        time.sleep(0.2)
    return told


def train_centrally(folder: Path, texts: Path, method: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train on the texts of the honest clients in one place, for as many steps as all five together."""
    steps = args.local_steps * len(CLIENTS)
    settings = {
        **paths(texts, CENTRAL),
        "system.seed": seed,
        "training.max_steps": steps * args.rounds,
        "training.eval_frequency": steps,
    }
    command = [sys.executable, "-m", "spacy", "train", str(CONFIG), "--output", str(folder)]
    flags = chain.from_iterable((f"--{key}", str(value)) for key, value in settings.items())
    log = folder / "log.jsonl"
    logger = {"training.logger.@loggers": "spacy.ConsoleLogger.v3", "training.logger.output_file": str(log)}
    folder.mkdir(parents=True)
    config = Config().from_disk(CONFIG, interpolate=False)
    config["training"]["logger"] = {key.rpartition(".")[2]: value for key, value in logger.items()}
    config.to_disk(folder / "central.cfg")
    command[4] = str(folder / "central.cfg")
    subprocess.run([*command, *flags], check=True, stdout=sys.stderr)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return {"scores": [row["score"] for row in rows]}


# ---------------------------------------------------------------------- picture


def draw(path: Path) -> None:
    from thinc_torchopt.core.compat import import_figure

    rows = results()
    figure = import_figure()(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for method in [*METHODS, CENTRAL]:
        runs = [row["scores"] for row in rows if row["method"] == method]
        columns = list(zip(*runs))
        mean = [statistics.mean(values) for values in columns]
        style = {"color": "grey", "linestyle": "--"} if method == CENTRAL else {"marker": "."}
        [line] = axes.plot(mean, label="all honest texts in one place" if method == CENTRAL else method, **style)
        low, high = [min(values) for values in columns], [max(values) for values in columns]
        axes.fill_between(range(len(mean)), low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel("F-score, mean over clients")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
