"""`[federated.average]`: the strategies of Flower that average the clients' models, by their names and arguments.

None is written again here: average.py calls Flower's. Flower accepts numbers that can't work, and then leaves the model
as it is, or protects from nothing. They are refused before the first round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Optional, get_args

from ...checks import Section

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
AVERAGE = Section("[federated.average]")

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


@dataclass(frozen=True)
class AverageSettings:
    """The settings in [federated.average]: see `FlowerStrategy`. arguments (Mapping): Those that were given."""

    strategy: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def check_clients(self, n: int) -> None:
        """Check that the strategy works with the reports of n clients, the fewest that a round may have.

        RAISES (ConfigError): It does not.
        """
        faulty, chosen = self.arguments.get(_FAULTY, 0), self.arguments.get(_CHOSEN, 1)
        beta = self.arguments.get("beta", 0.2)
        needed = {
            "FedMedian": (3, "with fewer, a median is the mean"),
            "FedTrimmedAvg": (_least_trimmed(beta), f"with fewer, beta = {beta:g} leaves out no client"),
            "Krum": (2 * faulty + 3, f"2 f + 3 for f = {faulty} '{_FAULTY}'"),
            "MultiKrum": (max(2 * faulty + 3, faulty + chosen), f"2 f + 3 for f = {faulty} '{_FAULTY}', and f more "
                          f"than '{_CHOSEN}'"),
            "Bulyan": (4 * faulty + 3, f"4 f + 3 for f = {faulty} '{_FAULTY}'"),
        }  # fmt: skip
        least, reason = needed.get(self.strategy, (1, ""))
        if n < least:
            AVERAGE.refuse(
                "strategy",
                f"'min_clients' in [federated] to be at least {least} for {self.strategy} ({reason})",
                n,
                "Raise it, or take another strategy.",
            )


def FlowerStrategy(
    strategy: Name,
    *,
    beta: Optional[float] = None,
    num_malicious_nodes: Optional[int] = None,
    num_nodes_to_select: Optional[int] = None,
    server_learning_rate: Optional[float] = None,
    server_momentum: Optional[float] = None,
    eta: Optional[float] = None,
    beta_1: Optional[float] = None,
    beta_2: Optional[float] = None,
    tau: Optional[float] = None,
) -> AverageSettings:
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
    AVERAGE.choice("strategy", strategy, get_args(Name))
    checked = {
        "beta": lambda name, value: AVERAGE.number(name, value, above=0.0, below=0.5),
        _FAULTY: lambda name, value: AVERAGE.whole(name, value),
        _CHOSEN: lambda name, value: AVERAGE.whole(name, value, at_least=1),
        "server_learning_rate": lambda name, value: AVERAGE.number(name, value, above=0.0),
        "server_momentum": lambda name, value: AVERAGE.number(name, value, below=1.0),
        "eta": lambda name, value: AVERAGE.number(name, value, above=0.0),
        "beta_1": lambda name, value: AVERAGE.number(name, value, below=1.0),
        "beta_2": lambda name, value: AVERAGE.number(name, value, below=1.0),
        "tau": lambda name, value: AVERAGE.number(name, value, above=0.0),
    }
    given = locals()
    arguments = {name: check(name, given[name]) for name, check in checked.items() if given[name] is not None}
    own = ARGUMENTS[strategy]
    for name in arguments:
        if name not in own:
            AVERAGE.refuse(
                name, f"{'only ' + ', '.join(own) if own else 'no argument'} for {strategy}", arguments[name]
            )
    return AverageSettings(strategy, arguments)


def _least_trimmed(beta: float) -> int:
    """The fewest clients of which Flower's trimmed mean leaves out any: it rounds down."""
    return next(n for n in range(1, 10**6) if int(beta * n) >= 1) if beta >= 1e-5 else 10**6
