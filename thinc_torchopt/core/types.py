"""Types that cross the borders between modules."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import isinf
from typing import Any, Literal, NamedTuple, Union

from thinc.types import Generator
from wasabi.tables import table

# A number in a config: the number, a list of numbers, or a schedule (thinc 8.3's are generators).
FloatOrSchedule = Union[float, list[float], Generator]
IntOrSchedule = Union[int, list[int], Generator]
ClipBy = Literal["global", "component", "param", "value", "adaptive"]
SkipDecay = Literal["bias_and_norm"]
# The sections of [training.optimizer.param_groups]: by name, `params` and any settings.
Blocks = dict[str, dict[str, Any]]
OnGrowth = Literal["mean", "zero", "reset"]
OnOutsideWrite = Literal["restore", "adopt", "raise"]
OnSpike = Literal["skip", "clip"]
Accountant = Literal["prv", "rdp"]
OpsChoice = Literal["thinc", "fastest"]
OpsThreads = Union[int, str]  # a number, or "auto"
Precision = Literal["float32", "bf16", "tf32"]
# thinc's `(node.id, name)`, or the `id` of a torch tensor. Means nothing outside this process.
Key = Hashable


class BatchSize(NamedTuple):
    """The size of a step's batch: the number of terms in the sum of its gradients."""

    words: int
    examples: int


class ParamInfo(NamedTuple):
    """The facts about a param from `TorchOptimizer.describe`."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # of the model's values, e.g. "float32"
    has_master: bool  # it is updated by a float32 copy
    device: str
    kind: Literal["thinc", "torch", "shim"]
    group: str  # blocks of the config, e.g. "encoder+no_decay"
    learn_rate: float  # of the next step; 0 while it is frozen
    options: dict[str, Any]  # of its algorithm, at this step
    frozen_until: float  # the first step that updates it; infinite: none does
    updates: int  # so far
    blocks: tuple[str, ...]  # the parts of the group's name
    algorithm: str  # its name in the config, e.g. "torch.AdamW.v1"


class ParamInfos(list[ParamInfo]):
    """A list of params, printed as a table. Columns with one value for all params are one line below it."""

    def __repr__(self) -> str:
        if not self:
            return "[]"
        columns: dict[str, list[str]] = {
            "name": [info.name for info in self],
            "shape": [" x ".join(map(str, info.shape)) for info in self],
            "group": [info.group for info in self],
            "learn_rate": [f"{info.learn_rate:.3g}" for info in self],
            "frozen": [
                ""
                if not info.frozen_until
                else "always"
                if isinf(info.frozen_until)
                else f"until {info.frozen_until:g}"
                for info in self
            ],
            "updates": [str(info.updates) for info in self],
            "algorithm": [info.algorithm for info in self],
            "kind": [info.kind for info in self],
            "dtype": [f"{info.dtype}, master" if info.has_master else info.dtype for info in self],
            "device": [info.device for info in self],
        }
        alike = {name: cells[0] for name, cells in columns.items() if len(self) > 1 and len({*cells}) == 1}
        shown = {name: cells for name, cells in columns.items() if name not in alike}
        text = table([*zip(*shown.values())], header=[*shown], divider=True, max_col=10_000, spacing=2)
        lines = [line.rstrip() for line in text.strip("\n").splitlines()]
        same = ", ".join(f"{name} {cell}" for name, cell in alike.items() if cell)
        return "\n".join([*lines, f"All: {same}"] if same else lines)


@dataclass(frozen=True)
class RollbackSettings:
    """The settings for rollbacks.

    after (int): Bad updates in a row, non-finite or spikes, that cause one.
    factor (float): Multiplies all learning rates each time.
    at_most (int): The largest number of rollbacks.
    """

    after: int
    factor: float
    at_most: int
