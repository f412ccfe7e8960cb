"""The rounds of the server, as a strategy of Flower.

A client that dies, is late, or sends an invalid report is left out of the round, with a log message. If too few are
left, the round is not accepted: it is repeated from the same model, until the run fails. Another strategy computes the
average: Flower's FedAvg by default; its medians and trimmed means work too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from ...errors import AuxVarError, FederationError, MessageError
from .flower import (
    ArrayRecord,
    ConfigRecord,
    FedAvg,
    Grid,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
    Result,
    Strategy,
)
from .house import House, Plan
from .messages import (
    Report,
    Task,
    from_arrays,
    question,
    read_answer,
    read_report,
    task_records,
    to_arrays,
)
from .results import Results
from .server_step import ServerStep
from .settings import FederatedSettings

LOG = logging.getLogger("flwr.thinc-torchopt")

_WEIGHT = "num-examples"


class ModularStrategy(Strategy):
    """Train a spaCy pipeline in rounds.

    house (House): The server's pipeline.
    settings (FederatedSettings): The settings of the run.
    results (Results): The output.
    average (Strategy | None): A Flower strategy, whose `aggregate_train` averages the clients' models. None: FedAvg.
    """

    def __init__(self, house: House, settings: FederatedSettings, results: Results, average: Strategy | None = None):
        self._house = house
        self._settings = settings
        self._results = results
        self._average = FedAvg(weighted_by_key=_WEIGHT) if average is None else average
        self._weights = house.weights.collect()
        self._step = ServerStep(house, settings)
        self._agreement = house.describe(self._step.aux_names)
        self._exchanged = list(self._agreement["auxiliary variables"])
        # By node: names of clients that take part, and reasons of refused ones. Messages of this round.
        self._members: dict[int, str] = {}
        self._refused: dict[int, str] = {}
        self._sent: list[Message] = []
        # By client: the last round whose report was accepted; numbers of examples and dev examples.
        self._taken: dict[str, int] = {}
        self._counts: dict[str, dict[str, int]] = {}
        # While a round is repeated: the clients that failed in the last attempt.
        self._silent: dict[str, str] = {}

    def run(self, grid: Grid) -> Result:
        """Run all rounds.

        RAISES (FederationError): There are too few clients or reports, or the model has diverged.
        """
        return self.start(
            grid,
            to_arrays(self._weights),
            num_rounds=self._settings.rounds,
            timeout=self._settings.timeout_seconds,
            evaluate_fn=self._after_round,
        )

    def summary(self) -> None:
        s = self._settings
        LOG.info("%s clients are expected, at least %s; %s rounds", s.clients, s.min_clients, s.rounds)
        LOG.info("Auxiliary variables: %s", ", ".join(self._exchanged) or "none")

    # ------------------------------------------------------------------ training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._grid = grid
        self._gather(grid, server_round)
        self._results.begin_round()
        self._sent = self._messages(server_round, MessageType.TRAIN, arrays)
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        found = self._read(replies, self._weights)
        while len(found) < self._settings.min_clients:
            self._refuse(server_round, [report.name for report, _ in found])
            found = self._read(self._repeat(server_round), self._weights)
        self._silent = {}
        claimed = [report for report, _ in found]
        reports = [self._capped(report) for report in claimed]
        found = [(report, reply) for report, (_, reply) in zip(reports, found)]
        self._note_score(server_round - 1, reports)
        row = self._results.rounds[server_round]
        row.clients = {
            report.name: {
                "examples": report.examples,
                "claimed_examples": said.examples,
                "steps": report.steps,
                "words": report.words,
                "skipped_updates": report.skipped,
                "losses": report.losses,
                "score_before": report.score if report.dev_examples else None,
            }
            for report, said in zip(reports, claimed)
        }
        averaged, _ = self._average.aggregate_train(server_round, [self._for_average(*one) for one in found])
        if averaged is None:
            raise FederationError(
                f"Can't make the model of round {server_round}: {type(self._average).__name__} gave no average of the "
                f"models of {', '.join(report.name for report in reports)}."
            )
        average = from_arrays(RecordDict({"arrays": averaged}), self._weights)
        self._step.process({report.name: report.aux_vars for report in reports})
        self._weights = self._step.apply(self._weights, average)
        for report in reports:
            self._taken[report.name] = server_round
        total = sum(report.examples for report in reports)
        LOG.info(
            "Round %s: accepted the reports of %s",
            server_round,
            ", ".join(f"{report.name} ({report.examples / total:.0%} of the examples)" for report in reports),
        )
        return to_arrays(self._weights), None

    def _refuse(self, server_round: int, names: list[str]) -> None:
        """Record that an attempt is not accepted. names (list[str]): The clients with usable reports.

        RAISES (FederationError): It was the last attempt.
        """
        row, s = self._results.rounds[server_round], self._settings
        self._silent = row.failed
        row.repeated.append(row.failed)
        row.failed = {}
        expected = (
            f"expected usable reports of at least {s.min_clients} clients, found {len(names) or 'none'}"
            f"{': ' if names else ''}{', '.join(names)}"
        )
        attempts = len(row.repeated)
        if attempts < s.attempts:
            LOG.warning(
                "Round %s is not accepted: %s. It is repeated: attempt %s of %s",
                server_round,
                expected,
                attempts + 1,
                s.attempts,
            )
            return
        times = "" if attempts == 1 else f", in each of {attempts} attempts"
        raise FederationError(
            f"Can't accept round {server_round}: {expected}{times}. "
            f"{' '.join(f'{name}: {reason}' for name, reason in row.repeated[-1].items())} Look into the logs of "
            "these clients, raise 'timeout_seconds' in [federated] if they are late, or lower 'min_clients'."
        )

    def _repeat(self, server_round: int) -> Iterable[Message]:
        """Request the round again."""
        self._gather(self._grid, server_round)
        self._sent = self._messages(server_round, MessageType.TRAIN, to_arrays(self._weights))
        return self._grid.send_and_receive(self._sent, timeout=self._settings.timeout_seconds)

    def _capped(self, report: Report) -> Report:
        """Limit a report's numbers of examples, which are weights in averages, to those that the client reported
        first.
        """
        known = self._counts.setdefault(report.name, {})
        capped = {}
        for what in ("examples", "dev_examples"):
            found = getattr(report, what)
            limit = known.setdefault(what, found)
            if found > limit:
                LOG.warning("Client '%s' reports %s %s, but counts for %s as before", report.name, found, what, limit)
            capped[what] = min(found, limit)
        return replace(report, **capped)

    def _check_examples(self, name: str, examples: int) -> None:
        """RAISES (MessageError): The client has more examples than allowed."""
        most = self._settings.max_examples
        if most and examples > most:
            raise MessageError(
                f"Client '{name}' can't take part: expected at most {most} examples, 'max_examples' in [federated], "
                f"found {examples}."
            )

    def _for_average(self, report: Report, reply: Message) -> Message:
        """Reduce a reply to the records that the other strategy needs: one ArrayRecord and one MetricRecord."""
        weight = report.examples if self._settings.weigh_by == "examples" else 1
        reply.content = RecordDict({"arrays": reply.content["arrays"], "metrics": MetricRecord({_WEIGHT: weight})})
        return reply

    # ------------------------------------------------------------------ evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Evaluate the last model. Clients evaluate all others when they train them further."""
        is_last = server_round == self._settings.rounds
        self._sent = self._messages(server_round, MessageType.EVALUATE, arrays) if is_last else []
        return self._sent

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        if self._sent:
            reports = [self._capped(report) for report, _ in self._read(replies, None)]
            if len(reports) >= self._settings.min_clients:
                self._note_score(server_round, reports)
            else:
                LOG.warning(
                    "The model after round %s has no score: expected those of at least %s clients, found %s",
                    server_round,
                    self._settings.min_clients,
                    len(reports),
                )
        return None

    def _note_score(self, row: int, reports: list[Report]) -> None:
        """Average the clients' scores of a model, weighted by their numbers of dev examples."""
        scored = [report for report in reports if report.dev_examples]
        if not scored:
            return
        total = sum(report.dev_examples for report in scored)
        names = set.intersection(*(set(report.scores) for report in scored))
        score = sum(report.score * report.dev_examples for report in scored) / total
        scores = {
            name: sum(report.scores[name] * report.dev_examples for report in scored) / total for name in sorted(names)
        }
        self._results.score(row, score, scores, self._house, self._weights)
        LOG.info("The model after round %s has a score of %.4f on %s dev examples", row, score, total)

    def _after_round(self, server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            self._results.end_round(self._house, self._weights)

    # ------------------------------------------------------------------ clients

    def _gather(self, grid: Grid, server_round: int) -> None:
        """Wait for clients, and introduce new ones. RAISES (FederationError): There are too few."""
        s = self._settings
        wanted = s.clients if server_round == 1 else s.min_clients
        end = time.monotonic() + s.wait_seconds
        refused = set(self._refused)
        while True:
            online = set(grid.get_node_ids())
            for node in self._members.keys() - online:
                LOG.warning("Client '%s' is gone", self._members.pop(node))
            refused |= self._introduce(grid, sorted(online - self._members.keys() - refused), server_round)
            if len(self._members) >= wanted or time.monotonic() >= end:
                break
            time.sleep(min(1.0, s.wait_seconds))
        if len(self._members) < s.min_clients:
            reasons = "".join(f" {reason}" for reason in self._refused.values())
            raise FederationError(
                f"Can't begin round {server_round}: expected at least {s.min_clients} clients within "
                f"{s.wait_seconds:g} seconds, found {len(self._members)}"
                f"{': ' + ', '.join(sorted(self._members.values())) if self._members else ''}.{reasons} Start more "
                "clients, or change 'min_clients' in [federated]."
            )

    def _introduce(self, grid: Grid, nodes: list[int], server_round: int) -> set[int]:
        """Ask nodes for their names and differences. RETURNS (set[int]): Nodes that can't take part in the next
        round.
        """
        if not nodes:
            return set()
        waiting = set()
        ttl = self._settings.timeout_seconds
        asked = [
            Message(question(self._agreement), dst_node_id=node, message_type=MessageType.QUERY, ttl=ttl)
            for node in nodes
        ]
        replies = grid.send_and_receive(asked, timeout=ttl)
        for node, reply in _by_node(asked, replies).items():
            try:
                found = read_answer(_content(reply))
                name = found.name
                if not found.differences:
                    self._check_examples(name, found.examples)
            except MessageError as error:
                self._refused[node] = f"Client at node {node}: {error}"
                LOG.error("%s", self._refused[node])
                continue
            if found.differences:
                self._refused[node] = f"Client '{name}' does not fit the server: {'; '.join(found.differences)}."
                LOG.error("%s", self._refused[node])
                continue
            old = next((other for other, known in self._members.items() if known == name), None)
            is_alive = self._taken.get(name, 0) == server_round - 1 and name not in self._silent
            if old is not None and is_alive:
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
            counts = {"dev_examples": found.dev_examples}
            self._counts.setdefault(name, counts | ({"examples": found.examples} if found.examples else {}))
            LOG.info("Client '%s' takes part, with %s examples", name, found.examples or "a stream of")
        return waiting | self._refused.keys()

    def _messages(self, server_round: int, kind: str, arrays: ArrayRecord) -> list[Message]:
        s, aux_vars = self._settings, self._step.collect() if kind == MessageType.TRAIN else {}
        plan = Plan(server_round, s.local_steps, s.local_epochs)
        sent = []
        for node, name in self._members.items():
            records = task_records(Task(plan, self._agreement, self._taken.get(name, 0), aux_vars), arrays)
            sent.append(Message(records, dst_node_id=node, message_type=kind, ttl=s.timeout_seconds))
        return sent

    def _read(
        self, replies: Iterable[Message], weights: dict[str, torch.Tensor] | None
    ) -> list[tuple[Report, Message]]:
        """The usable reports, with their messages. The reasons of others are recorded."""
        found, failed = _by_node(self._sent, replies), self._results.rounds[-1].failed
        reports = []
        for message in self._sent:
            node = message.metadata.dst_node_id
            name = self._members[node]
            try:
                if node not in found:
                    raise MessageError(f"There was no reply within {self._settings.timeout_seconds:g} seconds.")
                report = read_report(_content(found[node]), name, weights, self._exchanged)
                self._check_examples(name, self._counts[name].get("examples", report.examples))
                self._step.check(name, report.aux_vars)
                reports.append((report, found[node]))
            except (AuxVarError, MessageError) as error:
                failed[name] = str(error)
                LOG.warning("Client '%s' is left out of this round: %s", name, error)
        return reports


def _by_node(sent: Iterable[Message], replies: Iterable[Message]) -> dict[int, Message]:
    """Replies by the node that was asked, as Flower's link replies for nodes that are gone."""
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
