"""The settings of a federated run: `[federated]`, with `@misc = "thinc-torchopt.Federated.v1"`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Optional

from spacy.util import registry

from ...algorithms import Algorithm, may_move
from ...checks import Section
from ...errors import ConfigError
from ...types import FloatOrSchedule
from .client_privacy import ClientPrivacySettings
from .guard import LEAST, GuardSettings
from .strategies import OPTIMIZERS, AverageSettings

BLOCK = "thinc-torchopt.Federated.v1"
SECTION = Section("[federated]")

_AN_ALGORITHM = 'a block with @torch_optimizers = "thinc-torchopt.Modular.v1" or another'
_BLOCKS = {
    "average": (AverageSettings, 'a block with @misc = "thinc-torchopt.FlowerStrategy.v1"'),
    "guard": (GuardSettings, 'a block with @misc = "thinc-torchopt.UpdateGuard.v1"'),
    "privacy": (ClientPrivacySettings, 'a block with @misc = "thinc-torchopt.ClientPrivacy.v1"'),
}


@dataclass(frozen=True)
class FederatedSettings:
    """The settings in [federated]: see `Federated`."""

    rounds: int
    local_steps: int
    local_epochs: int
    clients: int
    min_clients: int
    wait_seconds: float
    timeout_seconds: float
    attempts: int
    max_examples: int
    weigh_by: Literal["examples", "client"]
    algorithm: Algorithm | None
    learn_rate: FloatOrSchedule
    average: AverageSettings | None
    guard: GuardSettings | None
    privacy: ClientPrivacySettings | None
    resume: Literal["auto", "must", "never"]


def Federated(
    *,
    rounds: int = 10,
    local_steps: int = 0,
    local_epochs: int = 0,
    clients: int = 2,
    min_clients: int = 2,
    wait_seconds: float = 120.0,
    timeout_seconds: float = 90.0,
    attempts: int = 3,
    max_examples: int = 0,
    weigh_by: Literal["examples", "client"] = "examples",
    algorithm: Optional[Algorithm] = None,
    learn_rate: FloatOrSchedule = 1.0,
    average: Optional[AverageSettings] = None,
    guard: Optional[GuardSettings] = None,
    privacy: Optional[ClientPrivacySettings] = None,
    resume: Literal["auto", "must", "never"] = "auto",
) -> FederatedSettings:
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
    max_examples (int): Clients that report more training examples are refused. 0: no limit.
    weigh_by ("examples" | "client"): Whether clients count by their number of training examples in the average of the
        models, or all the same.
    algorithm (Algorithm | None): The server's optimizer, which applies the averaged update: a block with
        `@torch_optimizers`. None: the average is the new model.
    learn_rate (float | schedule): The learning rate of `algorithm`; schedules step with each round. 1.0 applies the
        whole update.
    average (AverageSettings | None): A block with `@misc = "thinc-torchopt.FlowerStrategy.v1"`: how the clients' models
        are averaged. None: the mean.
    guard (GuardSettings | None): A block with `@misc = "thinc-torchopt.UpdateGuard.v1"`: leave out updates that are
        much larger than those of the other clients.
    privacy (ClientPrivacySettings | None): A block with `@misc = "thinc-torchopt.ClientPrivacy.v1"`: train with
        differential privacy for each client. Needs `weigh_by = "client"`, and neither `average` nor `guard`.
    resume ("auto" | "must" | "never"): "auto" goes on from the last round of a run that has not finished, if its state
        is in the folder `output`, or of one that has, if `rounds` is larger now; "must" raises an error if there is no
        state; "never" starts from scratch.
    RAISES (ConfigError): An argument is out of its range.
    """
    steps, epochs = SECTION.whole("local_steps", local_steps), SECTION.whole("local_epochs", local_epochs)
    if bool(steps) == bool(epochs):
        raise ConfigError(
            f"Can't set 'local_steps' and 'local_epochs' in {SECTION.path}: expected one of the two to be above 0, "
            f"found {local_steps} and {local_epochs}."
        )
    expected, least = (
        SECTION.whole("clients", clients, at_least=1),
        SECTION.whole("min_clients", min_clients, at_least=1),
    )
    if least > expected:
        SECTION.refuse("min_clients", f"at most as many as 'clients', which are {expected}", min_clients)
    if algorithm is not None:
        SECTION.kind("algorithm", algorithm, Algorithm, _AN_ALGORITHM)
    blocks = {"average": average, "guard": guard, "privacy": privacy}
    for name, block in blocks.items():
        if block is not None:
            SECTION.kind(name, block, *_BLOCKS[name])
    if average is not None:
        average.check_clients(least)
        if algorithm is not None and average.strategy in OPTIMIZERS:
            SECTION.refuse("algorithm", f"none, as {average.strategy} in [federated.average] is one", algorithm.label)
    if privacy is not None:
        _check_privacy(blocks, weigh_by)
    if guard is not None and expected < LEAST:
        SECTION.refuse("clients", f"at least {LEAST} for [federated.guard], which compares clients", clients)
    return FederatedSettings(
        SECTION.whole("rounds", rounds, at_least=1),
        steps,
        epochs,
        expected,
        least,
        SECTION.number("wait_seconds", wait_seconds),
        SECTION.number("timeout_seconds", timeout_seconds, above=0.0),
        SECTION.whole("attempts", attempts, at_least=1),
        SECTION.whole("max_examples", max_examples),
        SECTION.choice("weigh_by", weigh_by, ("examples", "client")),
        algorithm,
        _learn_rate(learn_rate),
        average,
        guard,
        privacy,
        SECTION.choice("resume", resume, ("auto", "must", "never")),
    )


def _check_privacy(blocks: Mapping[str, Any], weigh_by: str) -> None:
    """RAISES (ConfigError): A setting by which a client may change the average by more than its clipped update."""
    if weigh_by != "client":
        SECTION.refuse(
            "weigh_by", '"client" with [federated.privacy], as numbers of examples are not private', weigh_by
        )
    for name in ("average", "guard"):
        if blocks[name] is not None:
            SECTION.refuse(
                name, "none with [federated.privacy], whose noise is for a mean of clipped updates", "a block"
            )


def _learn_rate(value: FloatOrSchedule) -> FloatOrSchedule:
    """RAISES (ConfigError): It is neither a number of at least 0, nor a list of them, nor a schedule."""
    if isinstance(value, list):
        if not value:
            SECTION.refuse("learn_rate", "a rate for each round, at least one", value)
        return [SECTION.number("learn_rate", rate) for rate in value]
    return value if may_move(value) else SECTION.number("learn_rate", value)


def federated_settings(config: Mapping[str, Any]) -> FederatedSettings:
    """Read [federated] of a config. config (Mapping): Interpolated.

    RAISES (ConfigError): The block is missing.
    """
    section = config.get("federated")
    if not isinstance(section, Mapping) or section.get("@misc") != BLOCK:
        raise ConfigError(
            f'Can\'t train federated: expected a block with @misc = "{BLOCK}" in {SECTION.path}, found '
            f"{'no such section' if section is None else dict(section)}. See docs/federated.md."
        )
    found: FederatedSettings = registry.resolve({"federated": dict(section)})["federated"]
    return found
