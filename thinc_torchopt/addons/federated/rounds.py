"""The rounds of the server.

A client that dies, is late, or sends an invalid report is left out of the round, with a log message. If too few are
left, the round is not accepted: it is repeated from the same model, until the run fails. After each round the state of
the run is saved; a run that was stopped goes on from there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

import torch

from ...core.errors import AuxVarError, FederationError, MessageError, StateError
from ...core.schema import Count, read, write
from .agreement import differences
from .averages import WEIGHT, ModelAverage, PrivateAverage
from .flower import Grid, Message, MessageType, MetricRecord, RecordDict, strategies
from .messages import UPDATE, Report, Task, question, read_answer, read_report, task_records, to_arrays
from .pipeline import FederatedPipeline, RoundPlan
from .results import Results, SavedFederation
from .server_step import ServerStep
from .settings import SECTION, Federated

LOG = logging.getLogger("flwr.thinc-torchopt")

# How many times the median of all clients an update is that may have spoiled the model.
_SUSPECT = 1000.0


@dataclass
class ServerState:
    """The saved state of the server.

    agreement (dict): Its pipeline. weights (dict): The global model. step, average: The states of these parts.
    taken, counts (dict): By client, as in `Rounds`.
    """

    agreement: dict[str, Any]
    weights: dict[str, torch.Tensor]
    step: dict[str, Any] | None
    average: dict[str, Any]
    taken: dict[str, Count]
    counts: dict[str, dict[str, Count]]


class Rounds:
    """Trains a spaCy pipeline in rounds.

    pipeline (FederatedPipeline): The server's pipeline.
    settings (Federated): The settings of the run.
    results (Results): The output. If it has the state of a run that can go on, this one does.
    average (Strategy | None): A strategy of Flower, whose `aggregate_train` averages the clients' models. None: as in
        the settings.
    RAISES (ConfigError): Settings that don't go together. (StateError): The run can't go on as asked.
    """

    def __init__(
        self,
        pipeline: FederatedPipeline,
        settings: Federated,
        results: Results,
        average: strategies.Strategy | None = None,
    ):
        self._pipeline = pipeline
        self._settings = settings
        self._results = results
        self._private = None
        if settings.privacy is not None:
            if average is not None:
                SECTION.refuse("privacy", "null with another strategy, whose average has no noise", "a block")
            pipeline.refuse_unfreeze_at("[federated.privacy], whose noise would change params that wait")
            self._private = PrivateAverage(settings.privacy, clients=settings.clients, rounds=settings.rounds)
        self._average = self._private or ModelAverage(settings.average if average is None else average)
        self._weights = pipeline.weights.collect()
        self._step = ServerStep(pipeline, settings)
        self._agreement = pipeline.describe(self._step.aux_names)
        self._exchanged = list(self._agreement["auxiliary variables"])
        if self._exchanged and self._private is not None:
            SECTION.refuse(
                "privacy",
                "no modules that exchange auxiliary variables, which would have no noise",
                ", ".join(self._exchanged),
            )
        # By node: names of clients that take part, and reasons of refused ones. Messages of this round.
        self._members: dict[int, str] = {}
        self._refused: dict[int, str] = {}
        self._sent: list[Message] = []
        # By client: the last round whose report was accepted; numbers of examples and dev examples.
        self._taken: dict[str, int] = {}
        self._counts: dict[str, dict[str, int]] = {}
        # While a round is repeated: the clients that failed in the last attempt.
        self._silent: dict[str, str] = {}
        self._has_begun = False
        self._resume()

    def run(self, grid: Grid) -> None:
        """Run all rounds, or those that are left.

        RAISES (FederationError): There are too few clients or reports, or the model has diverged.
        """
        s = self._settings
        LOG.info("%s clients are expected, at least %s; %s rounds", s.clients, s.min_clients, s.rounds)
        LOG.info("Auxiliary variables: %s. Average: %s", ", ".join(self._exchanged) or "none", self._average.name)
        self._grid = grid
        if self._private is not None:
            self._private.announce()
        while self._done < s.rounds:
            if self._private is not None and self._private.is_over:
                LOG.info("The run ends: one more round would exceed 'target_epsilon' in [federated.privacy]")
                break
            self._run_round(self._done + 1)
        self._evaluate()
        self._results.finish(self._state())

    @property
    def _done(self) -> int:
        """The number of finished rounds."""
        return self._results.rounds[-1].round

    # ------------------------------------------------------------------ training

    def _run_round(self, server_round: int) -> None:
        LOG.info("Round %s of %s", server_round, self._settings.rounds)
        self._gather(server_round)
        self._results.begin_round()
        found = self._train(server_round)
        while len(found) < self._settings.min_clients:
            self._refuse(server_round, [report.name for report, _ in found])
            self._gather(server_round)
            found = self._train(server_round)
        self._silent = {}
        self._aggregate(server_round, found)
        self._results.end_round(self._pipeline, self._weights, self._state())

    def _train(self, server_round: int) -> list[tuple[Report, Message]]:
        """Let clients train. RETURNS (list): The reports that can be used, with their messages."""
        self._sent = self._messages(server_round, MessageType.TRAIN)
        replies = self._grid.send_and_receive(self._sent, timeout=self._settings.timeout_seconds)
        return self._guarded(self._read(server_round, replies, self._weights))

    def _guarded(self, found: list[tuple[Report, Message]]) -> list[tuple[Report, Message]]:
        """Leave out updates that are much larger than the others: see `UpdateGuard`."""
        guard, row = self._settings.guard, self._results.rounds[-1]
        if guard is None:
            return found
        if len(found) < guard.least_reports:
            LOG.warning("Norms of updates are not compared in round %s: %s reports are too few", row.round, len(found))
        limits = guard.limits({report.name: report.norms for report, _ in found})
        passed = []
        for report, reply in found:
            above = {kind: limit for kind, limit in limits.items() if report.norms[kind] > limit}
            for kind, limit in above.items():
                reason = (
                    f"expected a norm of its {kind if kind == UPDATE else repr(kind)} of at most {limit:.3g}, "
                    f"{guard.times:g} times the median of the clients in this round, found {report.norms[kind]:.3g}."
                )
                row.failed[report.name] = f"[federated.guard]: {reason}"
                LOG.warning("Client '%s' is left out of this round: %s", report.name, reason)
            if not above:
                passed.append((report, reply))
        return passed

    def _aggregate(self, server_round: int, found: list[tuple[Report, Message]]) -> None:
        """Make the new model of the reports."""
        claimed = [report for report, _ in found]
        reports = [self._capped(report) for report in claimed]
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
                "update_norm": report.norms[UPDATE],
                "score_before": report.score if report.dev_examples else None,
            }
            for report, said in zip(reports, claimed)
        }
        models = [self._for_average(report, reply) for report, (_, reply) in zip(reports, found)]
        average = self._average.compute(server_round, self._weights, models)
        if self._private is not None:
            row.privacy = self._private.used()
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
        if (cause := suspect(self._results.rounds[server_round - 1].clients)) is not None:
            raise FederationError(
                f"Can't accept round {server_round}: {expected}{times}. The model that was sent to them was probably "
                f"damaged before: in round {server_round - 1} {cause}. Leave that client out, or add a block "
                '[federated.guard], and start again with resume = "never" in [federated].'
            )
        raise FederationError(
            f"Can't accept round {server_round}: {expected}{times}. "
            f"{' '.join(f'{name}: {reason}' for name, reason in row.repeated[-1].items())} Look into the logs of "
            "these clients, raise 'timeout_seconds' in [federated] if they are late, or lower 'min_clients'."
        )

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
        reply.content = RecordDict({"arrays": reply.content["arrays"], "metrics": MetricRecord({WEIGHT: weight})})
        return reply

    # ------------------------------------------------------------------ evaluation

    def _evaluate(self) -> None:
        """Evaluate the last model. Clients evaluate all others when they train them further."""
        row = self._results.rounds[-1]
        if row.score is not None:
            return
        if not self._members:
            self._gather(row.round)
        self._sent = self._messages(row.round, MessageType.EVALUATE)
        replies = self._grid.send_and_receive(self._sent, timeout=self._settings.timeout_seconds)
        reports = [self._capped(report) for report, _ in self._read(row.round, replies, None)]
        if len(reports) >= self._settings.min_clients:
            self._note_score(row.round, reports)
        else:
            LOG.warning(
                "The model after round %s has no score: expected those of at least %s clients, found %s",
                row.round,
                self._settings.min_clients,
                len(reports),
            )

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
        if self._results.rounds[row].score is None:  # or it was evaluated before the run was stopped
            self._results.score(row, score, scores, self._pipeline, self._weights)
            LOG.info("The model after round %s has a score of %.4f (0 to 1) on %s dev examples", row, score, total)

    # ------------------------------------------------------------------ state

    def _state(self) -> dict[str, Any]:
        return write(
            ServerState(
                self._agreement,
                self._weights,
                self._step.state_dict(),
                self._average.state_dict(),
                self._taken,
                self._counts,
            )
        )

    def _resume(self) -> None:
        """Go on with the run whose state is in the output, if `resume` asks for it, and rounds are left.

        RAISES (StateError): There is none, it is damaged, or of another pipeline.
        """
        s = self._settings
        saved = None if s.resume == "never" else self._results.read_state()
        if saved is None and s.resume == "must":
            raise StateError(
                f"Can't go on with a run: expected its state in '{self._results.folder}', found none. Change 'output', "
                'or set resume = "auto" in [federated].'
            )
        if saved is None or not self._is_left(saved):
            return
        state = read(ServerState, saved.server, "the state of the server")
        if found := differences(state.agreement, self._agreement, ("in the saved run", "now")):
            raise StateError(
                f"Can't go on with the run in '{self._results.folder}': expected the same pipeline, found "
                f"{'; '.join(found)}. Set the config back, change 'output', or start again with resume = \"never\" "
                "in [federated]."
            )
        self._step.load_state_dict(state.step)
        self._average.load_state_dict(state.average)
        self._weights = {name: value.clone() for name, value in state.weights.items()}
        self._taken, self._counts = state.taken, state.counts
        self._results.resume(saved, self._pipeline, self._weights)
        LOG.info("The run goes on after round %s, whose state was saved", self._done)

    def _is_left(self, saved: SavedFederation) -> bool:
        """Whether a run has not finished, or has more rounds now. A finished one is not repeated: a new one begins."""
        return not saved.finished or saved.round < self._settings.rounds

    # ------------------------------------------------------------------ clients

    def _gather(self, server_round: int) -> None:
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
            refused |= self._introduce(sorted(online - self._members.keys() - refused), server_round)
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
        self._has_begun = True

    def _introduce(self, nodes: list[int], server_round: int) -> set[int]:
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
        replies = self._grid.send_and_receive(asked, timeout=ttl)
        for node, reply in _by_node(asked, replies).items():
            try:
                found = read_answer(_content(reply))
                name = found.name
                if not found.differences:
                    self._check_examples(name, found.examples)
            except MessageError as error:
                self._turn_away(node, f"node {node}", f"Client at node {node}: {error}")
                continue
            if found.differences:
                self._turn_away(node, name, f"Client '{name}' does not fit the server: {'; '.join(found.differences)}.")
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
            self._results.refused.pop(name, None)
            counts = {"dev_examples": found.dev_examples}
            self._counts.setdefault(name, counts | ({"examples": found.examples} if found.examples else {}))
            LOG.info("Client '%s' takes part, with %s examples", name, found.examples or "a stream of")
        return waiting | self._refused.keys()

    def _turn_away(self, node: int, name: str, reason: str) -> None:
        """Record why a client takes no part."""
        self._refused[node] = self._results.refused[name] = reason
        LOG.error("%s", reason)

    def _messages(self, server_round: int, kind: str) -> list[Message]:
        """Messages with the global model, in the order of the clients' names: sums depend on the order."""
        s, aux_vars = self._settings, self._step.collect() if kind == MessageType.TRAIN else {}
        plan, arrays = RoundPlan(server_round, s.local_steps, s.local_epochs), to_arrays(self._weights)
        sent = []
        for node, name in sorted(self._members.items(), key=lambda member: member[1]):
            task = Task(self._results.run, plan, self._agreement, self._taken.get(name, 0), aux_vars)
            sent.append(Message(task_records(task, arrays), dst_node_id=node, message_type=kind, ttl=s.timeout_seconds))
        return sent

    def _read(
        self, server_round: int, replies: Iterable[Message], weights: dict[str, torch.Tensor] | None
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
                report = read_report(_content(found[node]), name, server_round, weights, self._exchanged)
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


def suspect(clients: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The client whose update has probably spoiled the model of a round, with the reason. None: no update was much
    larger than the others.

    clients (Mapping): The reports of the round, as in its row of the results.
    """
    norms = {name: float(report["update_norm"]) for name, report in clients.items()}
    if not norms:
        return None
    name, middle = max(norms, key=lambda name: norms[name]), median_low(norms.values())
    if norms[name] <= _SUSPECT * middle:
        return None
    return f"the update of '{name}' had a norm of {norms[name]:.3g}, and the median of all was {middle:.3g}"
