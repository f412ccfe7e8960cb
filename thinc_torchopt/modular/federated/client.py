"""The client, as Flower's `ClientApp`: `clientapp = "thinc_torchopt.modular.federated.client:app"`.

Flower starts a new process for each message. The client's state is in `context.state`, which Flower keeps as long as
the supernode lives. It has the optimizer's states after this round and after the one before, to which the client goes
back if the server did not accept its report.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

from safetensors.torch import load, save
from thinc.api import require_gpu

from ...errors import ConfigError, MessageError
from ...schema import read
from ...state import flatten, unflatten
from .agreement import differences
from .flower import ClientApp, ConfigRecord, Context, Message
from .house import House, read_config
from .messages import Introduction, Report, answer, read_question, read_task, report_records

LOG = logging.getLogger("flwr.thinc-torchopt")

_NOW, _BEFORE = "optimizer-now", "optimizer-before"

app = ClientApp()


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Reply with the client's name, and its differences from the server."""
    name, house = open_house(context.node_config)
    found = differences(read_question(message.content), house.describe())
    for line in found:
        LOG.error("Client '%s' can't take part: %s", name, line)
    counts = (0, 0) if found else house.count_examples()
    return Message(answer(Introduction(name, found, *counts)), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Evaluate the global model, and train it for a round."""
    name, house = open_house(context.node_config)
    task = read_task(message.content, house.weights.collect())
    if found := differences(task.agreement, house.describe()):
        raise MessageError(
            f"Can't train at client '{name}': expected the same pipeline as before round one, found {'; '.join(found)}."
        )
    round, state = find_state(context.state, task.taken, name)
    score, scores, dev_examples = house.evaluate(task.weights)
    LOG.info("Client '%s' begins round %s: the global model has a score of %.4f", name, task.plan.round, score)
    outcome = house.train(task.weights, task.plan, score=score, aux_vars=task.aux_vars, state=state, name=name)
    reported = {what: value for what, value in vars(outcome).items() if what != "state"}
    report = Report(name, score, scores, dev_examples, **reported)
    reply = Message(report_records(report), reply_to=message)
    keep_state(context.state, (round, state), (task.plan.round, outcome.state))
    return reply


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the global model."""
    name, house = open_house(context.node_config)
    task = read_task(message.content, house.weights.collect())
    return Message(report_records(Report(name, *house.evaluate(task.weights))), reply_to=message)


# ---------------------------------------------------------------------- settings


def open_house(node_config: Mapping[str, Any]) -> tuple[str, House]:
    """The client's name and pipeline.

    node_config (Mapping): The supernode's --node-config: `name`, `config` (path of a spaCy config), `gpu` (its number;
        default: the CPU), and values for settings of the config by their dotted path, e.g. `paths.train`.
    RAISES (ConfigError): A key is missing or unknown.
    """
    name, path = node_config.get("name"), node_config.get("config")
    for key, found, what in (("name", name, "a name of its own"), ("config", path, "the path of a spaCy config")):
        if not isinstance(found, str) or not found:
            raise ConfigError(
                f"Can't take part in a federated training: expected '{key}', {what}, in --node-config, found "
                f"{found!r}. For example: --node-config \"name='north' config='/home/me/config.cfg'\""
            )
    overrides = {key: value for key, value in node_config.items() if "." in key}
    if unknown := sorted(node_config.keys() - overrides.keys() - {"name", "config", "gpu"}):
        raise ConfigError(
            f"Can't take part in a federated training: expected 'name', 'config', 'gpu', and settings by their dotted "
            f"path in --node-config, found {', '.join(unknown)}."
        )
    if "gpu" in node_config:
        require_gpu(int(node_config["gpu"]))
    return str(name), House(read_config(str(path), overrides))


# ---------------------------------------------------------------------- state


def find_state(kept: MutableMapping[str, Any], taken: int, name: str) -> tuple[int, dict[str, Any] | None]:
    """The state after the last round that the server has accepted from this client. That is its last round, or the one
    before if the report came too late or the round was not accepted.

    taken (int): That round. 0: none.
    RETURNS (tuple): The round, and the state. None: start fresh.
    """
    rounds = [int(kept[key]["round"]) for key in (_NOW, _BEFORE) if key in kept]
    if rounds and rounds[0] != taken:
        LOG.warning("Client '%s' undoes round %s, which the server has not accepted", name, rounds[0])
    for key in (_NOW, _BEFORE):
        if key in kept and int(kept[key]["round"]) == taken:
            return taken, _read_state(kept, key)
    if taken:
        LOG.warning(
            "Client '%s' has lost the state of its optimizer, as its supernode was restarted: moments and SCAFFOLD's "
            "corrections start from zero",
            name,
        )
    return 0, None


def keep_state(
    kept: MutableMapping[str, Any], before: tuple[int, Mapping[str, Any] | None], now: tuple[int, Mapping[str, Any]]
) -> None:
    """Save the states after two rounds. If that fails, nothing changes: `before` was saved already."""
    record = _state_record(*now)
    round, state = before
    if state is None:
        kept.pop(_BEFORE, None)
    else:
        kept[_BEFORE] = _state_record(round, state)
    kept[_NOW] = record


def _state_record(round: int, state: Mapping[str, Any]) -> ConfigRecord:
    values, tensors = flatten(state)
    return ConfigRecord({"round": round, "values": json.dumps(values), "tensors": save(tensors)})


def _read_state(kept: Mapping[str, Any], key: str) -> dict[str, Any]:
    record = kept[key]
    state = unflatten(json.loads(str(record["values"])), load(record["tensors"]))
    return read(dict[str, Any], state, f"the state of round {record['round']}")
