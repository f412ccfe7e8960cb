"""The rounds of a run, and the server as Flower's `ServerApp`:
`serverapp = "thinc_torchopt.addons.federated.server:app"`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...core.checks import Section
from ...core.errors import AuxVarError, FederationError, MessageError, StateError
from ...core.schema import Count, read, write
from ..modular import AuxVar
from .agreement import differences
from .flower import Context, Grid, Message, MessageType, ServerApp
from .messages import Introduction, Question, Report, Task, pack, to_arrays, unpack, unpack_report, unpack_scores
from .pipeline import FederatedPipeline, RoundPlan, read_config
from .results import LAST, Results, Round, SavedFederation
from .server_step import ServerStep, weighted_mean
from .settings import Federated, federated_settings
from .weights import Tensors

LOG = logging.getLogger("flwr.thinc-torchopt")


@dataclass
class ServerState:
    """The saved state of the server.

    agreement (dict): Its pipeline. weights (dict): The global model. step (dict | None): The state of `ServerStep`.
    taken (dict): By client, the last round whose report was accepted.
    """

    agreement: dict[str, Any]
    weights: dict[str, torch.Tensor]
    step: dict[str, Any] | None
    taken: dict[str, Count]


@dataclass
class Accepted:
    """A report that can be used, with its model. A report of an evaluation has none."""

    report: Report
    model: Tensors
    aux_vars: dict[str, AuxVar]


class Rounds:
    """Trains a spaCy pipeline in rounds.

    pipeline (FederatedPipeline): The server's pipeline.
    settings (Federated): The settings of the run.
    results (Results): The output. If it has the state of an earlier run, this one goes on with it.
    RAISES (ConfigError): Settings that don't go together. (StateError): The earlier run had another pipeline.
    """

    def __init__(self, pipeline: FederatedPipeline, settings: Federated, results: Results):
        self._pipeline = pipeline
        self._settings = settings
        self._results = results
        self._weights = pipeline.weights.collect()
        self._step = ServerStep(pipeline, settings)
        self._agreement = pipeline.describe(self._step.aux_names)
        self._exchanged = list(self._agreement["auxiliary variables"])
        # By node: names of clients that take part, and reasons of refused ones.
        self._members: dict[int, str] = {}
        self._refused: dict[int, str] = {}
        # Names of clients without a usable report in the last attempt.
        self._silent: set[str] = set()
        # By client: the last round whose report was accepted.
        self._taken: dict[str, int] = {}
        self._has_begun = False
        if results.saved is not None:
            self._resume(results.saved)

    def run(self, grid: Grid) -> None:
        """Run all rounds, or those that are left.

        RAISES (FederationError): There are too few clients or reports, or the model has diverged.
        """
        s = self._settings
        LOG.info("%s clients are expected, at least %s; %s rounds", s.clients, s.min_clients, s.rounds)
        LOG.info("Auxiliary variables: %s", ", ".join(self._exchanged) or "none")
        self._grid = grid
        if self._row.round >= s.rounds:
            LOG.warning(
                "All %s rounds are done. To go on, raise 'rounds' in [federated]; to begin again, change 'output', or "
                'set resume = "never"',
                self._row.round,
            )
        while self._row.round < s.rounds:
            self._run_round()
        self._evaluate()
        self._results.finish()

    @property
    def _row(self) -> Round:
        """The row of the last round."""
        return self._results.result.rounds[-1]

    # ------------------------------------------------------------------ training

    def _run_round(self) -> None:
        number, s = self._row.round + 1, self._settings
        LOG.info("Round %s of %s", number, s.rounds)
        self._gather(number)
        before, row = self._row, self._results.begin_round()
        found = self._ask(MessageType.TRAIN)
        for attempt in range(2, s.attempts + 1):
            if len(found) >= s.min_clients:
                break
            LOG.warning(
                "Round %s is not accepted: %s. Attempt %s of %s", number, self._too_few(found), attempt, s.attempts
            )
            self._gather(number)
            found = self._ask(MessageType.TRAIN)
        if len(found) < s.min_clients:
            raise FederationError(
                f"Can't accept round {number}: {self._too_few(found)}, in attempt {s.attempts} of {s.attempts}. "
                f"{' '.join(f'{name}: {reason}' for name, reason in row.failed.items())} Look into the logs of these "
                "clients, raise 'timeout_seconds' in [federated] if they are late, or lower 'min_clients'."
            )
        self._note_score(before, found)
        row.clients = {one.report.name: write(one.report) for one in found}
        counts = [one.report.examples if s.weigh_by == "examples" else 1 for one in found]
        average = weighted_mean(self._weights, [one.model for one in found], counts)
        self._step.process({one.report.name: one.aux_vars for one in found})
        self._weights = self._step.apply(self._weights, average)
        self._taken |= dict.fromkeys(row.clients, number)
        LOG.info(
            "Round %s: accepted the reports of %s",
            number,
            ", ".join(
                f"{one.report.name} ({count / sum(counts):.0%} of the average)" for one, count in zip(found, counts)
            ),
        )
        self._results.end_round(self._pipeline, self._weights, self._state())

    def _too_few(self, found: list[Accepted]) -> str:
        """In words, for errors."""
        names = ", ".join(one.report.name for one in found)
        return (
            f"expected usable reports of at least {self._settings.min_clients} clients, found {len(found) or 'none'}"
            f"{names and ': '}{names}"
        )

    # ------------------------------------------------------------------ evaluation

    def _evaluate(self) -> None:
        """Evaluate the last model. Clients evaluate all others when they train them further."""
        row, s = self._row, self._settings
        if row.score is not None:
            return
        if not self._members:
            self._gather(row.round)
        found = self._ask(MessageType.EVALUATE)
        if len(found) >= s.min_clients:
            self._note_score(row, found)
        else:
            LOG.warning("The model after round %s has no score: %s", row.round, self._too_few(found))

    def _note_score(self, row: Round, found: list[Accepted]) -> None:
        """Average the clients' scores of a model, weighted by their numbers of dev examples."""
        scored = [one.report for one in found if one.report.dev_examples]
        if not scored or row.score is not None:  # it was evaluated before the run was stopped
            return
        total = sum(report.dev_examples for report in scored)
        names = set.intersection(*(set(report.scores) for report in scored))
        score = sum(report.score * report.dev_examples for report in scored) / total
        scores = {
            name: sum(report.scores[name] * report.dev_examples for report in scored) / total for name in sorted(names)
        }
        self._results.score(row, score, scores, self._pipeline, self._weights)
        LOG.info("The model after round %s has a score of %.4f (0 to 1) on %s dev examples", row.round, score, total)

    # ------------------------------------------------------------------ state

    def _state(self) -> dict[str, Any]:
        return write(ServerState(self._agreement, self._weights, self._step.state_dict(), self._taken))

    def _resume(self, saved: SavedFederation) -> None:
        """Go on after the round of a state. RAISES (StateError): It is damaged, or of another pipeline."""
        state = read(ServerState, saved.server, "the state of the server")
        if found := differences(state.agreement, self._agreement, ("in the saved run", "now")):
            raise StateError(
                f"Can't go on with the run in '{self._results.folder}': expected the same pipeline, found "
                f"{'; '.join(found)}. Set the config back, change 'output', or start again with resume = \"never\" "
                "in [federated]."
            )
        self._step.load_state_dict(state.step)
        self._weights = {name: value.clone() for name, value in state.weights.items()}
        self._taken = state.taken
        # The run may have been stopped before it was saved.
        self._results.save(LAST, self._pipeline, self._weights, {})
        LOG.info("The run goes on after round %s, whose state was saved", saved.round)

    # ------------------------------------------------------------------ clients

    def _gather(self, number: int) -> None:
        """Wait for clients, and introduce new ones. RAISES (FederationError): There are too few."""
        s = self._settings
        wanted = s.min_clients if self._has_begun else s.clients
        end = time.monotonic() + s.wait_seconds
        # Those of earlier rounds are asked again: a supernode with a registered key keeps its id when it is repaired.
        self._refused = {}
        refused: set[int] = set()
        while True:
            online = set(self._grid.get_node_ids())
            for node in self._members.keys() - online:
                LOG.warning("Client '%s' is gone", self._members.pop(node))
            refused |= self._introduce(sorted(online - self._members.keys() - refused))
            if len(self._members) >= wanted or time.monotonic() >= end:
                break
            time.sleep(min(1.0, s.wait_seconds))
        if len(self._members) < s.min_clients:
            reasons = "".join(f" {reason}" for reason in self._refused.values())
            raise FederationError(
                f"Can't begin round {number}: expected at least {s.min_clients} clients within "
                f"{s.wait_seconds:g} seconds, found {len(self._members)}"
                f"{': ' + ', '.join(sorted(self._members.values())) if self._members else ''}.{reasons} Start more "
                "clients, or change 'min_clients' in [federated]."
            )
        self._has_begun = True

    def _introduce(self, nodes: list[int]) -> set[int]:
        """Ask nodes for their names and differences. RETURNS (set[int]): Nodes that can't take part in the next
        round.
        """
        if not nodes:
            return set()
        waiting = set()
        content = pack(Question(self._agreement))
        for node, reply in self._send(MessageType.QUERY, dict.fromkeys(nodes, content)).items():
            try:
                found = unpack(Introduction, _content(reply), "the introduction of a client")
            except MessageError as error:
                self._turn_away(node, f"node {node}", f"Client at node {node}: {error}")
                continue
            name = found.name
            if found.differences:
                self._turn_away(node, name, f"Client '{name}' does not fit the server: {'; '.join(found.differences)}.")
                continue
            old = next((other for other, known in self._members.items() if known == name), None)
            if old is not None and name not in self._silent:
                LOG.error(
                    "Two clients are called '%s': the second one, node %s, has to wait until the first is gone",
                    name,
                    node,
                )
                waiting.add(node)
                continue
            if old is not None:
                del self._members[old]
            self._members[node] = name
            self._results.result.refused.pop(name, None)
            LOG.info("Client '%s' takes part", name)
        return waiting | self._refused.keys()

    def _turn_away(self, node: int, name: str, reason: str) -> None:
        """Record why a client takes no part."""
        self._refused[node] = self._results.result.refused[name] = reason
        LOG.error("%s", reason)

    def _ask(self, kind: str) -> list[Accepted]:
        """Let clients train or evaluate the global model. RETURNS (list): The usable reports. The reasons of others are
        recorded.
        """
        s, row, trains = self._settings, self._row, kind == MessageType.TRAIN
        plan, arrays = RoundPlan(row.round, s.local_steps, s.local_epochs), to_arrays(self._weights)
        aux_vars = self._step.collect() if trains else {}
        # In the order of the clients' names: sums depend on the order.
        members = dict(sorted(self._members.items(), key=lambda member: member[1]))
        sent = {
            node: pack(
                Task(self._results.result.run, plan, self._agreement, self._taken.get(name, 0)), arrays, aux_vars
            )
            for node, name in members.items()
        }
        replies = self._send(kind, sent)
        usable, failed = [], {}
        for node, name in members.items():
            try:
                if node not in replies:
                    raise MessageError(f"There was no reply within {s.timeout_seconds:g} seconds.")
                content = _content(replies[node])
                if trains:
                    found = Accepted(*unpack_report(content, name, row.round, self._weights, self._exchanged))
                    self._step.check(name, found.aux_vars)
                else:
                    found = Accepted(unpack_scores(content, name, row.round), {}, {})
                usable.append(found)
            except (AuxVarError, MessageError) as error:
                failed[name] = str(error)
                LOG.warning("Client '%s' is left out of this round: %s", name, error)
        self._silent = set(failed)
        row.failed = failed if trains else row.failed | failed
        return usable

    def _send(self, kind: str, contents: dict[int, Any]) -> dict[int, Message]:
        """Send messages, and wait. RETURNS (dict): Replies by node."""
        ttl = self._settings.timeout_seconds
        sent = [Message(content, dst_node_id=node, message_type=kind, ttl=ttl) for node, content in contents.items()]
        replies: Iterable[Message] = self._grid.send_and_receive(sent, timeout=ttl)
        # Flower's link also replies for nodes that are gone.
        nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in sent}
        return {
            nodes[reply.metadata.reply_to_message_id]: reply
            for reply in replies
            if reply.metadata.reply_to_message_id in nodes
        }


def _content(reply: Message) -> Any:
    """RAISES (MessageError): The reply is an error."""
    if reply.has_error():
        raise MessageError(f"It failed: {reply.error.reason}")
    return reply.content


_SETTINGS = Section("[tool.flwr.app.config]")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a pipeline, or go on with its training. Results are written to the folder `output`: see results.py."""
    train(grid, context.run_config)


def train(grid: Grid, run_config: Mapping[str, Any]) -> None:
    """Train a pipeline.

    run_config (Mapping): [tool.flwr.app.config] of the app: `config` (path of a spaCy config), `output` (a folder), and
        values for settings of the config by their dotted path, e.g. `federated.rounds`.
    RAISES (ConfigError): A key is missing. (FederationError): There are too few clients.
    """
    for key in ("config", "output"):
        if not isinstance(run_config.get(key), str) or not run_config[key]:
            example = f"For example: flwr run . --run-config \"{key}='/home/me/...'\""
            _SETTINGS.refuse(key, "an absolute path", run_config.get(key), example)
    config = read_config(str(run_config["config"]), {key: value for key, value in run_config.items() if "." in key})
    settings = federated_settings(config.interpolate())
    results = Results(Path(str(run_config["output"])), settings.resume)
    try:
        Rounds(FederatedPipeline(config), settings, results).run(grid)
    except BaseException as error:
        results.fail(error)
        raise
