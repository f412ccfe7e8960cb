"""The settings for several processes: `thinc-torchopt.Distributed.v1`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Optional

from ...core.attachments import Attachment
from ...core.checks import Section

DISTRIBUTED = "[training.optimizer.distributed]"


@dataclass(kw_only=True)
class Distributed(Attachment):
    """Train one pipeline in several processes. Registered as `thinc-torchopt.Distributed.v1`.

    It has no effect in a single process. Several processes without this block use the defaults.

    reduce ("sum" | "mean"): Sum or average the gradients of all ranks. "sum" gives the gradients of one process that
        accumulates them, which algorithms need that divide by the batch size.
    backend (str | None): torch's backend: "gloo" or "nccl". None: gloo for params on CPUs, NCCL on GPUs.
    timeout_seconds (float): How long to wait in a step for a rank that has died or hangs. At least 1. In evaluations
        and saves, ranks wait for one that hangs up to a day.
    check_every (int): Steps between two checks that all ranks have the same params and learning rates, to the last
        bit. They are checked before each evaluation and checkpoint too. 0: never.
    share_evaluation (bool): Whether each rank processes a part of the development data. If not, rank 0 evaluates alone.
    shard_state (bool): Whether each rank keeps only a part of the optimizer's state, and updates these params, as in
        ZeRO stage 1. With AdamW and n ranks, it saves 2 (n-1)/n times the size of the model on each. For torch's
        algorithms, except LBFGS, and for the drop-ins. Checkpoints hold the whole state, and so do ranks after the run.
    scale_learn_rate ("none" | "linear" | "sqrt"): Multiply all learning rates, also those set by rules, by the number
        of ranks ("linear") or its square root ("sqrt").
    RAISES (ConfigError): An argument is out of its range.
    """

    made_by: ClassVar[str] = (
        'a block with @misc = "thinc-torchopt.Distributed.v1", or in Python the result of '
        "thinc_torchopt.distributed.Distributed()"
    )
    may_change: ClassVar[bool] = True
    own_block: ClassVar[str] = "distributed"
    decides_alike: ClassVar[bool] = True

    reduce: Literal["sum", "mean"] = "sum"
    backend: Optional[str] = None
    timeout_seconds: float = 60.0
    check_every: int = 100
    share_evaluation: bool = True
    shard_state: bool = False
    scale_learn_rate: Literal["none", "linear", "sqrt"] = "none"

    def __post_init__(self) -> None:
        section = Section(DISTRIBUTED)
        section.choice("reduce", self.reduce, ("sum", "mean"))
        section.choice("backend", self.backend, (None, "gloo", "nccl"))
        self.timeout_seconds = section.number(
            "timeout_seconds", self.timeout_seconds, "a number of at least 1", at_least=1.0
        )
        self.check_every = section.whole("check_every", self.check_every)
        section.flag("share_evaluation", self.share_evaluation)
        section.flag("shard_state", self.shard_state)
        section.choice("scale_learn_rate", self.scale_learn_rate, ("none", "linear", "sqrt"))

    def rate_factor(self, ranks: int) -> float:
        """The factor for all learning rates."""
        return {"none": 1.0, "linear": float(ranks), "sqrt": ranks**0.5}[self.scale_learn_rate]
