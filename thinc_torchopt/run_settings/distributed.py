"""The settings for several processes: `thinc-torchopt.Distributed.v1`."""

from __future__ import annotations

from typing import Literal, Optional

from ..checks import Section
from ..types import DistributedSettings

DISTRIBUTED = "[training.optimizer.distributed]"


def Distributed(
    *,
    reduce: Literal["sum", "mean"] = "sum",
    backend: Optional[str] = None,
    timeout_seconds: float = 60.0,
    check_every: int = 100,
    share_evaluation: bool = True,
    shard_state: bool = False,
    scale_learn_rate: Literal["none", "linear", "sqrt"] = "none",
) -> DistributedSettings:
    """Train one pipeline in several processes. Registered as `thinc-torchopt.Distributed.v1`.

    It has no effect in a single process. Several processes without this block use the defaults.

    reduce ("sum" | "mean"): Sum or average the gradients of all ranks. "sum" gives the gradients of one process that
        accumulates them, which algorithms need that divide by the batch size.
    backend (str | None): torch's backend: "gloo" or "nccl". None: gloo for params on CPUs, NCCL on GPUs.
    timeout_seconds (float): How long to wait in a step for a rank that has died or hangs. At least 1. In evaluations
        and saves, ranks wait as long as the others are alive.
    check_every (int): Steps between two checks that all ranks have the same params and learning rates, to the last
        bit. They are checked before each evaluation and checkpoint too. 0: never.
    share_evaluation (bool): Whether each rank processes a part of the development data. If not, rank 0 evaluates alone.
    shard_state (bool): Whether each rank keeps only a part of the optimizer's state, and updates these params, as in
        ZeRO stage 1. With AdamW and n ranks, it saves 2 (n-1)/n times the size of the model on each. For torch's
        algorithms, except LBFGS, and for the drop-ins. Checkpoints hold the whole state.
    scale_learn_rate ("none" | "linear" | "sqrt"): Multiply all learning rates, also those set by rules, by the number
        of ranks ("linear") or its square root ("sqrt").
    RAISES (ConfigError): An argument is out of its range.
    """
    section = Section(DISTRIBUTED)
    return DistributedSettings(
        section.choice("reduce", reduce, ("sum", "mean")),
        section.choice("backend", backend, (None, "gloo", "nccl")),
        section.number("timeout_seconds", timeout_seconds, "a number of at least 1", at_least=1.0),
        section.whole("check_every", check_every),
        section.flag("share_evaluation", share_evaluation),
        section.flag("shard_state", shard_state),
        section.choice("scale_learn_rate", scale_learn_rate, ("none", "linear", "sqrt")),
    )
