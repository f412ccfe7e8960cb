"""Types that cross the borders between modules."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Union

import torch
from thinc.types import Generator

# What a config may give for a number: the number, a list of numbers, or a schedule (thinc 8.3's are generators).
FloatOrSchedule = Union[float, list[float], Generator]
IntOrSchedule = Union[int, list[int], Generator]
ClipBy = Literal["global", "component", "param"]
# thinc's `(node.id, name)`, or the `id` of a torch tensor. Means nothing outside this process.
Key = Hashable


def accepts_all(name: str, param: torch.Tensor) -> bool:
    return True


@dataclass(frozen=True)
class Algorithm:
    """A torch optimizer that is still to be built: what a `@torch_optimizers` block in the config becomes.

    label (str): What the config calls it, for error messages, e.g. "torch.AdamW.v1".
    build (Callable): `build(params, lr=..., **options)` returns a `torch.optim.Optimizer`.
    options (Mapping[str, Any]): Hyper-parameters by torch's names; a value may be a schedule.
    accepts (Callable): Whether the algorithm can optimize a param, by its name and tensor. The rest goes to `fallback`.
    fallback (Algorithm): Optimizes what `accepts` refuses and what `fallback_params` matches.
    fallback_params (tuple[str, ...]): Patterns over the names of params.
    fused_devices (frozenset[str]): Device types on which its fused step runs.
    counts_for_group (bool): It counts steps for all params together, as if each were updated every time: so in pytorch-optimizer.
    """

    label: str
    build: Callable[..., torch.optim.Optimizer]
    options: Mapping[str, Any] = field(default_factory=dict)
    accepts: Callable[[str, torch.Tensor], bool] = accepts_all
    fallback: Algorithm | None = None
    fallback_params: tuple[str, ...] = ()
    fused_devices: frozenset[str] = frozenset()
    counts_for_group: bool = False
