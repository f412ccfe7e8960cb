"""The blocks of a federated run: `[federated]`, and below it `average`, `guard` and `privacy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, Optional, get_args

from spacy.util import registry

from ...core.algorithms import Algorithm, may_move
from ...core.checks import Section
from ...core.errors import ConfigError
from ...core.types import FloatOrSchedule
from ..privacy import Privacy

BLOCK = "thinc-torchopt.Federated.v1"
SECTION = Section("[federated]")
_AVERAGE = Section("[federated.average]")
_GUARD = Section("[federated.guard]")


# ---------------------------------------------------------------------- [federated.average]

Name = Literal[
    "FedAvg",
    "FedMedian",
    "FedTrimmedAvg",
    "Krum",
    "MultiKrum",
    "Bulyan",
    "FedAvgM",
    "FedAdam",
    "FedYogi",
    "FedAdagrad",
]
_FAULTY, _CHOSEN = "num_malicious_nodes", "num_nodes_to_select"
_ADAPTIVE = ("eta", "beta_1", "beta_2", "tau")
# Flower's arguments of each. `eta_l` of Flower's adaptive strategies has no effect there.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "FedAvg": (),
    "FedMedian": (),
    "FedTrimmedAvg": ("beta",),
    "Krum": (_FAULTY,),
    "MultiKrum": (_FAULTY, _CHOSEN),
    "Bulyan": (_FAULTY,),
    "FedAvgM": ("server_learning_rate", "server_momentum"),
    "FedAdam": _ADAPTIVE,
    "FedYogi": _ADAPTIVE,
    "FedAdagrad": ("eta", "tau"),
}
# They apply the averaged update themselves.
OPTIMIZERS = ("FedAvgM", "FedAdam", "FedYogi", "FedAdagrad")


# Flower accepts numbers that can't work, and then leaves the model as it is, or protects from nothing. They are refused
# before the first round.
@dataclass
class FlowerStrategy:
    """Average the clients' models by a strategy of Flower. Registered as `thinc-torchopt.FlowerStrategy.v1`.

    Arguments have Flower's names, and its defaults. Those that the strategy does not have are errors.

    strategy (str): "FedAvg"; against clients that send wrong models "FedMedian", "FedTrimmedAvg", "Krum", "MultiKrum"
        or "Bulyan"; with an optimizer at the server "FedAvgM", "FedAdam", "FedYogi" or "FedAdagrad".
    beta (float | None): For FedTrimmedAvg: of each number, this part of the clients is left out at both ends.
    num_malicious_nodes (int | None): For Krum, MultiKrum, Bulyan: the number of wrong clients to withstand.
    num_nodes_to_select (int | None): For MultiKrum: the number of clients to average.
    server_learning_rate, server_momentum (float | None): For FedAvgM.
    eta, beta_1, beta_2, tau (float | None): For FedAdam, FedYogi, and without betas FedAdagrad: the learning rate, the
        betas of Adam, and the constant in the denominator.
    RAISES (ConfigError): An argument is out of its range, or not one of the strategy.
    """

    strategy: Name
    beta: Optional[float] = field(default=None, kw_only=True)
    num_malicious_nodes: Optional[int] = field(default=None, kw_only=True)
    num_nodes_to_select: Optional[int] = field(default=None, kw_only=True)
    server_learning_rate: Optional[float] = field(default=None, kw_only=True)
    server_momentum: Optional[float] = field(default=None, kw_only=True)
    eta: Optional[float] = field(default=None, kw_only=True)
    beta_1: Optional[float] = field(default=None, kw_only=True)
    beta_2: Optional[float] = field(default=None, kw_only=True)
    tau: Optional[float] = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _AVERAGE.choice("strategy", self.strategy, get_args(Name))
        own = ARGUMENTS[self.strategy]
        for name, value in self.arguments.items():
            if name in (_FAULTY, _CHOSEN):
                value = _AVERAGE.whole(name, value, at_least=int(name == _CHOSEN))
            elif name == "beta":
                value = _AVERAGE.number(name, value, above=0.0, below=0.5)
            elif name in ("server_momentum", "beta_1", "beta_2"):
                value = _AVERAGE.number(name, value, below=1.0)
            else:
                value = _AVERAGE.number(name, value, above=0.0)
            if name not in own:
                expected = f"only {', '.join(own)}" if own else "no argument"
                _AVERAGE.refuse(name, f"{expected} for {self.strategy}", value)
            setattr(self, name, value)

    @property
    def arguments(self) -> dict[str, Any]:
        """Flower's arguments that were given."""
        return {name: value for name, value in vars(self).items() if name != "strategy" and value is not None}

    def check_clients(self, n: int) -> None:
        """Check that the strategy works with the reports of n clients, the fewest that a round may have.

        RAISES (ConfigError): It does not.
        """
        faulty, chosen = self.arguments.get(_FAULTY, 0), self.arguments.get(_CHOSEN, 1)
        beta = self.arguments.get("beta", 0.2)
        needed = {
            "FedMedian": (3, "with fewer, a median is the mean"),
            "FedTrimmedAvg": (_least_trimmed(beta), f"with fewer, beta = {beta:g} leaves out no client"),
            "Krum": (2 * faulty + 3, f"2 x {_FAULTY} + 3"),
            "MultiKrum": (max(2 * faulty + 3, faulty + chosen), f"2 x {_FAULTY} + 3, and {_CHOSEN} + {_FAULTY}"),
            "Bulyan": (4 * faulty + 3, f"4 x {_FAULTY} + 3"),
        }  # fmt: skip
        least, reason = needed.get(self.strategy, (1, ""))
        if n < least:
            _AVERAGE.refuse(
                "strategy",
                f"'min_clients' in [federated] to be at least {least} for {self.strategy} ({reason})",
                n,
                "Raise it, or choose another strategy.",
            )


def _least_trimmed(beta: float) -> int:
    """The fewest clients of which Flower's trimmed mean leaves out any: it rounds down."""
    return next(n for n in range(1, 10**6) if int(beta * n) >= 1) if beta >= 1e-5 else 10**6


# ---------------------------------------------------------------------- [federated.guard]


# A wrong model mostly shows in the norm of its update, the change of all weights in a round. The limit is a multiple of
# the median, which less than half of the clients can't move. A small wrong update passes.
@dataclass
class UpdateGuard:
    """Leave out updates of clients that are much larger than the others. Registered as `thinc-torchopt.UpdateGuard.v1`.

    Checked are the norm of a client's change of the weights, and the norms of its auxiliary variables, as SCAFFOLD has
    them. A round with fewer than three reports is not checked.

    times (float): The limit, in medians over the clients of the round.
    RAISES (ConfigError): An argument is out of its range.
    """

    times: float = field(default=3.0, kw_only=True)

    # A median of fewer numbers is a mean, or one of them.
    least_reports = 3

    def __post_init__(self) -> None:
        self.times = _GUARD.number("times", self.times, above=1.0)

    def limits(self, norms: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """The highest norms that pass, by kind. Without a limit: kinds with fewer than three norms, or all zero.

        norms (Mapping): By client and kind.
        """
        kinds = {kind for own in norms.values() for kind in own}
        found = {kind: [own[kind] for own in norms.values() if kind in own] for kind in sorted(kinds)}
        return {
            kind: self.times * middle
            for kind, values in found.items()
            if len(values) >= self.least_reports and (middle := median(values)) > 0.0
        }


# ---------------------------------------------------------------------- [federated.privacy]


class ClientPrivacy(Privacy):
    """Train with differential privacy for each client: its update is clipped, and noise is added to the sum. Registered
    as `thinc-torchopt.ClientPrivacy.v1`.

    clip (float): The largest norm of a client's update, the change of all weights in a round.
    delta (float): The delta of (epsilon, delta). Far below 1 / number of clients.
    noise_multiplier (float): The standard deviation of the noise, as a multiple of `clip`. Without it, the least noise
        for `target_epsilon` after all rounds.
    target_epsilon (float): The run ends before it would exceed this epsilon.
    accountant ("prv" | "rdp"): The accountant of Opacus that counts. The log has both.
    seed (int): For the noise, in experiments. Whoever knows it can remove the noise. Without it, the noise is seeded
        from the system's source of randomness.
    RAISES (ConfigError): An argument is out of its range, or both `noise_multiplier` and `target_epsilon` are missing.
    """

    section = Section("[federated.privacy]")


# ---------------------------------------------------------------------- [federated]


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
    max_examples (int): Clients that report more training examples are refused. 0: no limit.
    weigh_by ("examples" | "client"): Whether clients count by their number of training examples in the average of the
        models, or all the same.
    algorithm (Algorithm | None): The server's optimizer, which applies the averaged update: a block with
        `@torch_optimizers`. None: the average is the new model.
    learn_rate (float | schedule): The learning rate of `algorithm`; schedules step with each round. 1.0 applies the
        whole update.
    average (FlowerStrategy | None): A block with `@misc = "thinc-torchopt.FlowerStrategy.v1"`: how the clients' models
        are averaged. None: the mean.
    guard (UpdateGuard | None): A block with `@misc = "thinc-torchopt.UpdateGuard.v1"`: leave out updates that are
        much larger than those of the other clients.
    privacy (ClientPrivacy | None): A block with `@misc = "thinc-torchopt.ClientPrivacy.v1"`: train with
        differential privacy for each client. Needs `weigh_by = "client"`, and neither `average` nor `guard`.
    resume ("auto" | "must" | "never"): "auto" goes on from the last round of a run that has not finished, if its state
        is in the folder `output`, or of one that has, if `rounds` is larger now; "must" raises an error if there is no
        state; "never" starts from scratch.
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
    max_examples: int = 0
    weigh_by: Literal["examples", "client"] = "examples"
    algorithm: Optional[Algorithm] = None
    learn_rate: FloatOrSchedule = 1.0
    average: Optional[FlowerStrategy] = None
    guard: Optional[UpdateGuard] = None
    privacy: Optional[ClientPrivacy] = None
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
        self.max_examples = SECTION.whole("max_examples", self.max_examples)
        self.wait_seconds = SECTION.number("wait_seconds", self.wait_seconds)
        self.timeout_seconds = SECTION.number("timeout_seconds", self.timeout_seconds, above=0.0)
        SECTION.choice("weigh_by", self.weigh_by, ("examples", "client"))
        SECTION.choice("resume", self.resume, ("auto", "must", "never"))
        self.learn_rate = _learn_rate(self.learn_rate)
        if self.min_clients > self.clients:
            SECTION.refuse("min_clients", f"at most as many as 'clients', which are {self.clients}", self.min_clients)
        for name, (kind, expected) in _BLOCKS.items():
            if getattr(self, name) is not None:
                SECTION.kind(name, getattr(self, name), kind, expected)
        self._check_blocks()

    def _check_blocks(self) -> None:
        """RAISES (ConfigError): Blocks don't go together."""
        if self.average is not None:
            self.average.check_clients(self.min_clients)
            if self.algorithm is not None and self.average.strategy in OPTIMIZERS:
                one = f"null, as {self.average.strategy} in [federated.average] is an optimizer itself"
                SECTION.refuse("algorithm", one, self.algorithm.label)
        if self.guard is not None and self.clients < self.guard.least_reports:
            least = f"at least {self.guard.least_reports} for [federated.guard], which compares clients"
            SECTION.refuse("clients", least, self.clients)
        # A client may not change the average by more than its clipped update.
        if self.privacy is not None:
            if self.weigh_by != "client":
                of_all = '"client" with [federated.privacy], as numbers of examples are not private'
                SECTION.refuse("weigh_by", of_all, self.weigh_by)
            for name in ("average", "guard"):
                if getattr(self, name) is not None:
                    null = "null with [federated.privacy], whose noise is for a mean of clipped updates"
                    SECTION.refuse(name, null, "a block")


_BLOCKS: dict[str, tuple[type, str]] = {
    "algorithm": (Algorithm, 'a block with @torch_optimizers = "thinc-torchopt.Modular.v1" or another'),
    "average": (FlowerStrategy, 'a block with @misc = "thinc-torchopt.FlowerStrategy.v1"'),
    "guard": (UpdateGuard, 'a block with @misc = "thinc-torchopt.UpdateGuard.v1"'),
    "privacy": (ClientPrivacy, 'a block with @misc = "thinc-torchopt.ClientPrivacy.v1"'),
}


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
