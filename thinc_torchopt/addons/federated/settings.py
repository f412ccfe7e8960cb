"""The block of a federated run: `[federated]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Optional

from spacy.util import registry

from ...core.algorithms import Algorithm, may_move
from ...core.checks import Section
from ...core.errors import ConfigError
from ...core.types import FloatOrSchedule

BLOCK = "thinc-torchopt.Federated.v1"
SECTION = Section("[federated]")
_ALGORITHM = 'a block with @torch_optimizers = "thinc-torchopt.Modular.v1" or another'


@dataclass(kw_only=True)
class Federated:
    """Train a pipeline in rounds, at clients that keep their texts. Registered as `thinc-torchopt.Federated.v1`.

    Only the server's block counts: clients get their part of it with each message.

    rounds (int): Number of rounds.
    local_steps (int): Steps that a client trains in a round. 0: see `local_epochs`.
    local_epochs (int): Epochs that a client trains in a round. 0: see `local_steps`. Exactly one of the two must be
        set.
    clients (int): Number of expected clients. The first round begins when all are there, or after `wait_seconds`.
    min_clients (int): Least number of clients for a round. With fewer, the run fails after `wait_seconds`. With fewer
        usable reports, the round is not accepted, and is repeated from the same model.
    wait_seconds (float): Seconds to wait for clients before a round.
    timeout_seconds (float): Seconds to wait for the replies of a round. Clients that are late are left out.
    attempts (int): How often a round is tried before the run fails.
    weigh_by ("examples" | "client"): Whether clients count by their number of training examples in the average of the
        models, or all the same.
    algorithm (Algorithm | None): The server's optimizer, which applies the averaged update: a block with
        `@torch_optimizers`. None: the average is the new model.
    learn_rate (float | schedule): The learning rate of `algorithm`; schedules step with each round. 1.0 applies the
        whole update.
    resume ("auto" | "must" | "never"): "auto" goes on from the last round of a run, if its state is in the folder
        `output`; "must" raises an error if there is no state; "never" starts from scratch, and replaces what is there.
    RAISES (ConfigError): An argument is out of its range.
    """

    rounds: int = 10
    local_steps: int = 0
    local_epochs: int = 0
    clients: int = 2
    min_clients: int = 2
    wait_seconds: float = 120.0
    timeout_seconds: float = 90.0
    attempts: int = 3
    weigh_by: Literal["examples", "client"] = "examples"
    algorithm: Optional[Algorithm] = None
    learn_rate: FloatOrSchedule = 1.0
    resume: Literal["auto", "must", "never"] = "auto"

    def __post_init__(self) -> None:
        self.local_steps = SECTION.whole("local_steps", self.local_steps)
        self.local_epochs = SECTION.whole("local_epochs", self.local_epochs)
        if bool(self.local_steps) == bool(self.local_epochs):
            raise ConfigError(
                f"Can't set 'local_steps' and 'local_epochs' in {SECTION.path}: expected one of the two to be above 0, "
                f"found {self.local_steps} and {self.local_epochs}."
            )
        for name in ("rounds", "clients", "min_clients", "attempts"):
            setattr(self, name, SECTION.whole(name, getattr(self, name), at_least=1))
        self.wait_seconds = SECTION.number("wait_seconds", self.wait_seconds)
        self.timeout_seconds = SECTION.number("timeout_seconds", self.timeout_seconds, above=0.0)
        SECTION.choice("weigh_by", self.weigh_by, ("examples", "client"))
        SECTION.choice("resume", self.resume, ("auto", "must", "never"))
        self.learn_rate = _learn_rate(self.learn_rate)
        if self.min_clients > self.clients:
            SECTION.refuse("min_clients", f"at most as many as 'clients', which are {self.clients}", self.min_clients)
        if self.algorithm is not None:
            SECTION.kind("algorithm", self.algorithm, Algorithm, _ALGORITHM)


def _learn_rate(value: FloatOrSchedule) -> FloatOrSchedule:
    """RAISES (ConfigError): It is neither a number of at least 0, nor a list of them, nor a schedule."""
    if isinstance(value, list):
        if not value:
            SECTION.refuse("learn_rate", "a rate for each round, at least one", value)
        return [SECTION.number("learn_rate", rate) for rate in value]
    return value if may_move(value) else SECTION.number("learn_rate", value)


def federated_settings(config: Mapping[str, Any]) -> Federated:
    """Read [federated] of a config. config (Mapping): Interpolated.

    RAISES (ConfigError): The block is missing.
    """
    section = config.get("federated")
    if not isinstance(section, Mapping) or section.get("@misc") != BLOCK:
        raise ConfigError(
            f'Can\'t train federated: expected a block with @misc = "{BLOCK}" in {SECTION.path}, found '
            f"{'no such section' if section is None else dict(section)}. Add it to the server's config, with rounds, "
            "local_steps and clients."
        )
    found: Federated = registry.resolve({"federated": dict(section)})["federated"]
    return found
