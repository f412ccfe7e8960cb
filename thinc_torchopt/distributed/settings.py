"""What a config says of several processes: `thinc-torchopt.Distributed.v1`."""

from __future__ import annotations

from typing import Literal, Optional

from ..checks import Section
from ..types import DistributedSettings

BLOCK = "[training.optimizer.distributed]"


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
    """How several processes train one pipeline. Registered as `thinc-torchopt.Distributed.v1`.

    Without several processes it has no effect; without this block the defaults hold.

    reduce ("sum" | "mean"): What becomes of the gradients of all ranks. "sum": as if one process had accumulated them;
        needed by algorithms that divide by the size of the batch, which know that of all ranks.
    backend (str | None): torch's: "gloo" or "nccl". None: gloo for params on CPUs, NCCL for those on GPUs.
    timeout_seconds (float): How long to wait in a step for a rank that has died or hangs. During evaluations and saves,
        ranks wait as long as the others are alive.
    check_every (int): Check after so many steps that all ranks have the same params and learning rates, to the last
        bit; and before each evaluation and checkpoint, and at the end. 0: never.
    share_evaluation (bool): Each rank processes a part of the development data. False: rank 0 evaluates, and the others
        wait.
    shard_state (bool): Each rank keeps the optimizer's state of a part of the params, as in ZeRO stage 1. With AdamW
        and n ranks, this saves 2 (n-1)/n times the size of the model on each rank. Checkpoints hold the whole state.
        For torch's algorithms, except LBFGS, and for the drop-ins.
    scale_learn_rate ("none" | "linear" | "sqrt"): Multiply all learning rates, also those that rules set, by the number
        of ranks, or its root.
    RAISES (ConfigError): An argument is out of its range.
    """
    section = Section(BLOCK)
    return DistributedSettings(
        section.choice("reduce", reduce, ("sum", "mean")),
        section.choice("backend", backend, (None, "gloo", "nccl")),
        section.number("timeout_seconds", timeout_seconds, "a number of at least 1", at_least=1.0),
        section.whole("check_every", check_every),
        section.flag("share_evaluation", share_evaluation),
        section.flag("shard_state", shard_state),
        section.choice("scale_learn_rate", scale_learn_rate, ("none", "linear", "sqrt")),
    )
