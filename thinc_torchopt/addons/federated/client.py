"""The client, as Flower's `ClientApp`: `clientapp = "thinc_torchopt.addons.federated.client:app"`.

Flower starts a new process for each message, and keeps a client's state only as long as a run. So the state of its
optimizer is in a folder of the client: after this round, and after the last one that the server has accepted, to which
the client goes back if it does not accept this one.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from thinc.api import require_gpu

from ...core.checks import Section
from ...core.errors import MessageError, StateError
from ...core.schema import Count, check_version, read, write
from ...core.state import clear_leftovers, read_folder, write_folder
from .agreement import differences
from .flower import ClientApp, Context, Message
from .messages import Introduction, Question, Report, Task, from_arrays, pack, to_arrays, unpack, unpack_aux
from .pipeline import FederatedPipeline, read_config

LOG = logging.getLogger("flwr.thinc-torchopt")

_SETTINGS = Section("--node-config")
_TASK = "the server's task"
_VERSION = 1
_ROUND = "round-"

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Reply with the client's name, and its differences from the server."""
    name, pipeline, _ = open_pipeline(context.node_config)
    question = unpack(Question, message.content, "the server's question")
    found = differences(question.agreement, pipeline.describe())
    for line in found:
        LOG.error("Client '%s' can't take part: %s", name, line)
    return Message(pack(Introduction(name, found)), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Evaluate the global model, and train it for a round."""
    name, pipeline, folder = open_pipeline(context.node_config)
    task, own = unpack(Task, message.content, _TASK), pipeline.weights.collect()
    weights, aux_vars = from_arrays(message.content, own), unpack_aux(message.content, own)
    if found := differences(task.agreement, pipeline.describe()):
        raise MessageError(
            f"Can't train at client '{name}': expected the same pipeline as before round one, found {'; '.join(found)}."
        )
    state = find_state(folder, task.run, task.taken, name)
    score, scores, dev_examples = pipeline.evaluate(weights)
    LOG.info("Client '%s' begins round %s: the global model has a score of %.4f (0 to 1)", name, task.plan.round, score)
    outcome = pipeline.train(weights, task.plan, score=score, aux_vars=aux_vars, state=state, name=name)
    report = Report(
        name,
        task.plan.round,
        score,
        scores,
        dev_examples,
        outcome.examples,
        outcome.steps,
        outcome.words,
        outcome.skipped,
        outcome.losses,
    )
    reply = Message(pack(report, to_arrays(outcome.weights), outcome.aux_vars), reply_to=message)
    keep_state(folder, task.run, task.taken, task.plan.round, outcome.state)
    return reply


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the global model."""
    name, pipeline, _ = open_pipeline(context.node_config)
    task = unpack(Task, message.content, _TASK)
    scores = pipeline.evaluate(from_arrays(message.content, pipeline.weights.collect()))
    return Message(pack(Report(name, task.plan.round, *scores)), reply_to=message)


# ---------------------------------------------------------------------- settings


def open_pipeline(node_config: Mapping[str, Any]) -> tuple[str, FederatedPipeline, Path]:
    """The client's name, pipeline, and folder for its state.

    node_config (Mapping): The supernode's --node-config: `name`, `config` (path of a spaCy config), `state` (a folder;
        default: one beside the config), `gpu` (its number; default: the CPU), and values for settings of the config by
        their dotted path, e.g. `paths.train`.
    RAISES (ConfigError): A key is missing or unknown, or the folder is not writable.
    """
    name, path = node_config.get("name"), node_config.get("config")
    example = "For example: --node-config \"name='north' config='/home/me/config.cfg'\""
    for key, found, what in (("name", name, "a name of its own"), ("config", path, "the path of a spaCy config")):
        if not isinstance(found, str) or not found:
            _SETTINGS.refuse(key, what, found, example)
    overrides = {key: value for key, value in node_config.items() if "." in key}
    if unknown := sorted(node_config.keys() - overrides.keys() - {"name", "config", "state", "gpu"}):
        known = "one of 'name', 'config', 'state', 'gpu', or a setting by its dotted path"
        _SETTINGS.refuse(unknown[0], known, unknown[0])
    if "gpu" in node_config:
        require_gpu(int(node_config["gpu"]))
    pipeline = FederatedPipeline(read_config(str(path), overrides))
    folder = Path(str(node_config.get("state") or f"{path}.state/{quote(str(name), safe='')}"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        kept = f"Client '{name}' keeps the state of its optimizer there from round to round."
        _SETTINGS.refuse("state", "a folder that can be written to", str(folder), f"{error}. {kept}")
    return str(name), pipeline, folder


# ---------------------------------------------------------------------- state


@dataclass
class ClientState:
    """The saved state after a round. run (str): The run of the server. state (dict): Of the optimizer."""

    version: Count
    run: str
    round: Count
    state: dict[str, Any]


def find_state(folder: Path, run: str, taken: int, name: str) -> dict[str, Any] | None:
    """The state after the last round that the server has accepted from this client.

    run (str), taken (int): That round of that run. 0: none.
    RETURNS (dict | None): None: start fresh.
    """
    saved = {}
    for path in folder.glob(f"{_ROUND}*"):
        try:
            check_version(content := read_folder(path), _VERSION, what := f"the client's state in '{path}'")
            found = read(ClientState, content, what)
        except StateError as error:
            LOG.warning("Client '%s' can't use its state: %s", name, error)
            continue
        if found.run == run:
            saved[found.round] = found.state
    for round in sorted(round for round in saved if round > taken):
        LOG.warning("Client '%s' undoes round %s, which the server has not accepted", name, round)
    if taken and taken not in saved:
        LOG.warning(
            "Client '%s' has lost the state of its optimizer after round %s, which is not in '%s': moments and "
            "SCAFFOLD's corrections start from zero",
            name,
            taken,
            folder,
        )
    return saved.get(taken)


def keep_state(folder: Path, run: str, taken: int, round: int, state: Mapping[str, Any]) -> None:
    """Save the state after a round. Those of earlier ones are removed, but that of round `taken`."""
    clear_leftovers(folder)
    path = folder / f"{_ROUND}{round}"
    write_folder(path, write(ClientState(_VERSION, run, round, dict(state))))
    for other in folder.glob(f"{_ROUND}*"):
        if other not in (path, folder / f"{_ROUND}{taken}"):
            shutil.rmtree(other, ignore_errors=True)
