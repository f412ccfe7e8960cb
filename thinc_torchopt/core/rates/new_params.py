"""The learning rates of params that are added in mid-training: a tenth of their parent's, after a warm-up.

For a torch optimizer without a writer of rates, a hook writes them before each step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..checks import Section
from .records import TorchGroup, option_names_of, rate_of
from .writer import writer_of

# The rate of params added in mid-training, as a fraction of their parent's.
NEW_PARAMS_FACTOR = 0.1
# The key in a group of new params: the index of its parent, its steps so far, and those of the warm-up.
_KEY = "new_params"


class Warmup:
    """Rise linearly to the base, then stay. For new params.

    steps (int): The step that reaches the base.
    start_factor (float): The first rate, as a fraction of the base, 0 to 1.
    RAISES (ConfigError): An argument is out of its range.
    SOURCE: torch.optim.lr_scheduler.LinearLR.
    """

    def __init__(self, steps: int = 100, start_factor: float = 0.01):
        check = Section("the learn rate policy 'warmup'", allows_texts=False)
        self.steps = check.whole("steps", steps)
        self.start_factor = check.number("start_factor", start_factor, at_most=1.0)

    def rate(self, step: int, base: float) -> float:
        if step >= self.steps:
            return base
        return base * (self.start_factor + (1.0 - self.start_factor) * step / self.steps)


def add_new_params(optimizer: torch.optim.Optimizer, params: Iterable[Any], parent: int, warmup_steps: int) -> None:
    """Give new params a group of their own.

    params (Iterable): As for torch.
    parent (int): Index of the group whose options they get, and whose rate they follow.
    """
    above = optimizer.param_groups[parent]
    options = {name: above[name] for name in option_names_of(type(optimizer)) if name in above}
    lr = above["lr"].clone() if isinstance(above["lr"], torch.Tensor) else 0.0
    place = {"parent": parent, "step": 0, "warmup_steps": warmup_steps}
    optimizer.add_param_group({**options, "params": list(params), "lr": lr, _KEY: place})
    _write(optimizer, optimizer.param_groups[-1])


def warm_up_new_params(optimizer: torch.optim.Optimizer) -> None:
    """Let a new optimizer warm up its groups of new params, also those that the one before it had."""
    late = [group for group in optimizer.param_groups if _KEY in group]
    for group in late:
        group[_KEY] = dict(group[_KEY])
    if late:
        optimizer.register_step_pre_hook(_before_step)


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if writer_of(optimizer) is None:  # a controller writes its own rates
        for group in optimizer.param_groups:  # `load_state_dict` makes new ones
            if _KEY in group:
                _write(optimizer, group)
                group[_KEY]["step"] += 1


def _write(optimizer: torch.optim.Optimizer, group: TorchGroup) -> None:
    of = group[_KEY]
    base = NEW_PARAMS_FACTOR * rate_of(optimizer.param_groups[of["parent"]])
    rate = Warmup(of["warmup_steps"]).rate(of["step"], base)
    if isinstance(group["lr"], torch.Tensor):
        with torch.no_grad():
            group["lr"].fill_(rate)
    else:
        group["lr"] = rate
