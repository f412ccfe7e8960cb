"""Train a pipeline that finds code in English prose about Python at three clients, each with other chapters of Python's
documentation, and compare what FedAvg, FedProx and SCAFFOLD make of it with a training on all texts in one place.

    python examples/federated/run.py --output training/federated

Server and clients are processes of their own, which talk over Flower on 127.0.0.1. With --kill north=2 the client
"north" is killed in round 2, and the others go on. With --kill server=2 the server is killed, and started again.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import spacy
from confection import Config
from processes import Federation, exit_on_signals, federation
from spacy.tokens import DocBin
from spacy.training import Corpus, Example
from wasabi import msg

from thinc_torchopt.core.compat import has_matplotlib, import_figure
from thinc_torchopt.corpora import PythonDocs
from thinc_torchopt.federated import merge_labels

HERE = Path(__file__).parent
CONFIG = HERE.parent.parent / "configs" / "federated.cfg"
CLIENTS = ("north", "east", "south")
# What each method adds to the config.
METHODS = {"fedavg": None, "fedprox": HERE / "fedprox.cfg", "scaffold": HERE / "scaffold.cfg"}
CENTRAL = "central"
SERVER = "server"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("training/federated"),
        help="folder; results in it are replaced (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=8, help="how many rounds (default: %(default)s)")
    parser.add_argument("--local-steps", type=int, default=20, help="steps in a round (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds that a round waits (default: %(default)s)")
    parser.add_argument(
        "--methods", nargs="+", choices=[*METHODS, CENTRAL], default=[*METHODS, CENTRAL], help="which (default: all)"
    )
    parser.add_argument("--texts", type=int, default=0, help="so many texts a client at most (default: all)")
    parser.add_argument("--tls", action="store_true", help="encrypt messages, and let only known clients take part")
    parser.add_argument(
        "--kill", default="", help="kill a client or the server in a round, e.g. north=2 (default: none)"
    )
    args = parser.parse_args()
    if args.kill and not re.fullmatch(rf"({'|'.join((*CLIENTS, SERVER))})=\d+", args.kill):
        parser.error(
            f"--kill: expected one of {', '.join((*CLIENTS, SERVER))} and a round, as in north=2, found {args.kill}"
        )
    output = args.output.resolve()
    exit_on_signals()

    msg.divider("Texts")
    write_corpora(output / "texts", args.texts)
    results, seconds = {}, {}
    for method in args.methods:
        msg.divider(method)
        start = time.monotonic()
        if method == CENTRAL:
            train_centrally(output, args.rounds * args.local_steps * len(CLIENTS))
        else:
            results[method] = train_federated(method, output, args)
            print_clients(results[method])
        seconds[method] = time.monotonic() - start
    msg.divider("Side by side")
    scores = {method: score(output / method / ("model-last"), output / "texts") for method in args.methods}
    print_rounds(results)
    msg.table(
        [(method, f"{scores[method]:.1%}", f"{seconds[method]:.0f}") for method in args.methods],
        header=("Trained by", "F-score", "Seconds"),
        divider=True,
        aligns=("l", "r", "r"),
    )
    msg.text("F-score: of the last model, on the dev texts of all clients together.")
    if has_matplotlib and results:
        draw(results, scores.get(CENTRAL), output / "scores.png")
        msg.good(f"Scores of each round: {output / 'scores.png'}")


# ---------------------------------------------------------------------- texts


def write_corpora(folder: Path, limit: int) -> None:
    """Deal out the chapters in alphabetical order, a third to each client, and agree on labels: the union of all."""
    nlp = spacy.blank("en")
    labels = []
    for split in ("train", "dev"):
        examples = list(PythonDocs(split)(nlp))
        size = -(-len(examples) // len(CLIENTS))
        for i, name in enumerate(CLIENTS):
            own = examples[i * size : (i + 1) * size][: limit or None]
            write(folder / name / f"{split}.spacy", own)
            if split == "train":
                labels.append(init_labels(folder / name, own))
        write(folder / CENTRAL / f"{split}.spacy", examples)
    merged = merge_labels(labels)
    for name in (*CLIENTS, CENTRAL):
        (folder / name / "labels.json").write_text(json.dumps(merged))


def write(path: Path, examples: Sequence[Example]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    DocBin(docs=[example.reference for example in examples]).to_disk(path)
    if path.stem == "train":
        msg.info(f"{path.parent.name}: {len(examples)} texts")


def init_labels(folder: Path, examples: Sequence[Example]) -> Any:
    """The labels in some texts: what `spacy init labels` writes."""
    nlp = spacy.blank("en")
    ner = nlp.add_pipe("ner")
    nlp.initialize(lambda: examples)
    data: Any = json.loads(json.dumps(ner.label_data))  # type: ignore[attr-defined]
    return data


def paths(folder: Path) -> dict[str, str]:
    files = {"train": "train.spacy", "dev": "dev.spacy", "labels": "labels.json"}
    return {f"paths.{name}": str(folder / file) for name, file in files.items()}


# ---------------------------------------------------------------------- trainings


def train_federated(method: str, output: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Start all processes, and wait for the end. RETURNS (dict): What the server has written."""
    folder = output / method
    # Or else the server would go on with the run before.
    shutil.rmtree(folder, ignore_errors=True)
    config = read_config(METHODS[method])
    config["federated"] |= {
        "rounds": args.rounds,
        "local_steps": args.local_steps,
        "clients": len(CLIENTS),
        "min_clients": len(CLIENTS) - 1,
        "timeout_seconds": args.timeout,
    }
    config["paths"]["labels"] = str(output / "texts" / CENTRAL / "labels.json")
    # Each has its own copy, as on machines of their own: only messages go from one to the other.
    for name in (*CLIENTS, "server"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        config.to_disk(folder / name / "federated.cfg")
    clients = {name: {"config": folder / name / "federated.cfg", **paths(output / "texts" / name)} for name in CLIENTS}
    victim, _, in_round = args.kill.partition("=")
    with federation(folder, clients, tls=args.tls) as running:
        running.run({"config": folder / "server" / "federated.cfg", "output": folder})
        if victim:
            kill_in_round(running, victim, int(in_round))
        running.wait(120 + args.rounds * (args.timeout + 60))
        result = folder / "result.json"
        found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {"ended": None, "error": None}
        if found["ended"] != "finished":
            print(running.log("run").read_text(errors="replace")[-5000:])
            msg.fail(
                f"The run has not finished: {found['error'] or 'no reason is known'}", str(folder / "logs"), exits=1
            )
    return found


def read_config(added: Path | None) -> Config:
    """The config, with the blocks of a method."""
    config = Config().from_disk(CONFIG, interpolate=False)
    return config if added is None else config.merge(Config().from_disk(added, interpolate=False))


def kill_in_round(running: Federation, name: str, in_round: int) -> None:
    """Kill a client as soon as it trains in a round; or the server, as soon as a client does, and start it again."""
    log = running.log(CLIENTS[0] if name == SERVER else name)
    while running.is_running:
        if f"begins round {in_round}:" in log.read_text(errors="replace"):
            if name == SERVER:
                running.kill_server()
            else:
                running.kill(name)
            msg.warn(f"Killed '{name}' in round {in_round}")
            return
        time.sleep(0.2)


def train_centrally(output: Path, steps: int) -> None:
    """Train on all texts in one place, for as many steps as all clients together."""
    overrides = {
        **paths(output / "texts" / CENTRAL),
        "training.max_steps": steps,
        "training.eval_frequency": steps // 10,
    }
    flags = chain.from_iterable((f"--{key}", str(value)) for key, value in overrides.items())
    command = [sys.executable, "-m", "spacy", "train", str(CONFIG), "--output", str(output / CENTRAL), *flags]
    sys.stdout.flush()
    if subprocess.run(command).returncode:
        msg.fail("spacy train stopped", "See above.", exits=1)


def score(model: Path, texts: Path) -> float:
    nlp = spacy.load(model)
    return float(nlp.evaluate(list(Corpus(texts / CENTRAL / "dev.spacy")(nlp)))["ents_f"])


# ---------------------------------------------------------------------- what is shown


def print_clients(result: Mapping[str, Any]) -> None:
    """What each client reported, round by round: the score of the model that it got, on its own dev texts."""
    rows = []
    for row in result["rounds"][1:]:
        cells = [
            "gone"
            if name in row["failed"]
            else f"{row['clients'][name]['score']:.1%}"
            if name in row["clients"]
            else ""
            for name in CLIENTS
        ]
        rows.append((row["round"], *cells, as_score(row["score"])))
    msg.table(rows, header=("Round", *CLIENTS, "After it"), divider=True, aligns=("r",) * 5)
    for row in result["rounds"]:
        for name, reason in row["failed"].items():
            msg.text(f"Round {row['round']}, {name}: {reason}")


def print_rounds(results: Mapping[str, Mapping[str, Any]]) -> None:
    if results:
        rounds = zip(*(result["rounds"] for result in results.values()))
        rows = [(of_all[0]["round"], *(as_score(row["score"]) for row in of_all)) for of_all in rounds]
        msg.table(rows, header=("Round", *results), divider=True, aligns=("r",) * (1 + len(results)))


def as_score(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def draw(results: Mapping[str, Mapping[str, Any]], central: float | None, path: Path) -> None:
    figure = import_figure()(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for method, result in results.items():
        scored = [row for row in result["rounds"] if row["score"] is not None]
        axes.plot([row["round"] for row in scored], [row["score"] for row in scored], marker=".", label=method)
    if central is not None:
        axes.axhline(central, color="grey", linestyle="--", label="all texts in one place")
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("F-score of the global model")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
