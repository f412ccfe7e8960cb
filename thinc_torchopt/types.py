"""Types that cross the borders between modules."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Union

from thinc.types import Generator

# A number in a config: the number, a list of numbers, or a schedule (thinc 8.3's are generators).
FloatOrSchedule = Union[float, list[float], Generator]
IntOrSchedule = Union[int, list[int], Generator]
ClipBy = Literal["global", "component", "param", "value", "adaptive"]
SkipDecay = Literal["bias_and_norm"]
# What stands in [training.optimizer.param_groups]: by name, `params` and any settings.
Blocks = dict[str, dict[str, Any]]
OnGrowth = Literal["mean", "zero", "reset"]
OnOutsideWrite = Literal["restore", "adopt", "raise"]
OnSpike = Literal["skip", "clip"]
# thinc's `(node.id, name)`, or the `id` of a torch tensor. Means nothing outside this process.
Key = Hashable


class BatchSize(NamedTuple):
    """How large the batch of a step is: over how much its gradients are summed."""

    words: int
    examples: int


class ParamInfo(NamedTuple):
    """Describes a param. `TorchOptimizer.describe` returns one for each."""

    name: str
    shape: tuple[int, ...]
    device: str
    kind: Literal["thinc", "torch", "shim"]
    group: str  # blocks of the config, e.g. "encoder+no_decay"
    learn_rate: float  # of the step that comes; 0 while it is frozen
    options: dict[str, Any]  # of its algorithm, as they are at this step
    frozen_until: float  # the first step that updates it; infinite: none does
    updates: int  # how many it had
    blocks: tuple[str, ...]  # of which the name of the group is made
    algorithm: str  # what the config calls it, e.g. "torch.AdamW.v1"


@dataclass(frozen=True)
class RollbackSettings:
    """When a training goes back to a checkpoint.

    after (int): So many updates in a row were not finite, or spikes.
    factor (float): Multiplies all learning rates each time.
    at_most (int): How many times.
    """

    after: int
    factor: float
    at_most: int


@dataclass(frozen=True)
class CheckpointSettings:
    """What stands in [training.optimizer.checkpoint]: see `checkpoint.Checkpoint`, which makes it."""

    path: str
    every: int
    keep: int
    resume: Literal["auto", "must", "never"]
    on_config_change: Literal["refuse", "warn"]
    in_background: bool = True
    allow_foreign_shims: bool = False
    progress_bar: bool = True


@dataclass(frozen=True)
class BudgetSettings:
    """What stands in [training.optimizer.budget]: see `budget.Budget`, which makes it.

    limit (float): How much there is. unit (str): Of what.
    decay_ratio (float): Which part of it the fall has.
    marks (tuple[float, ...]): At which parts of it there is to be a model that has fallen, the last but one before 1.
    """

    limit: float
    unit: Literal["seconds", "steps", "words"]
    decay_ratio: float
    marks: tuple[float, ...]


@dataclass(frozen=True)
class DistributedSettings:
    """What stands in [training.optimizer.distributed]: see `distributed.Distributed`, which makes it."""

    reduce: Literal["sum", "mean"] = "sum"
    backend: str | None = None
    timeout_seconds: float = 60.0
    check_every: int = 100
    share_evaluation: bool = True
    shard_state: bool = False
    scale_learn_rate: Literal["none", "linear", "sqrt"] = "none"

    def rate_factor(self, ranks: int) -> float:
        """What all learning rates are multiplied by."""
        return {"none": 1.0, "linear": float(ranks), "sqrt": ranks**0.5}[self.scale_learn_rate]
