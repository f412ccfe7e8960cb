"""The learning rates of params that are added in mid-training: a tenth of their parent's, after a warm-up.

For a torch optimizer without a writer of rates, a hook writes them before each step, also in its copies and pickles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Any
from weakref import ref

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
    place = {"parent": parent, "step": 0, "warmup_steps": warmup_steps}
    optimizer.add_param_group({**options, "params": list(params), "lr": deepcopy(above["lr"])})
    group = optimizer.param_groups[-1]
    group[_KEY] = place  # now: a class may refuse unknown options
    _write(optimizer, group)


def warm_up_new_params(optimizer: torch.optim.Optimizer) -> None:
    """Let a torch optimizer warm up its groups of new params, from where its state says. Call it after
    `load_state_dict` into an optimizer that `preserve_optimizer_state` did not make. Copies and pickles of an optimizer
    go on by themselves.

    optimizer (torch.optim.Optimizer): With the state of one that `preserve_optimizer_state` made. Without new params,
        nothing happens.
    """
    if "__reduce_ex__" not in vars(optimizer) and any(_KEY in group for group in optimizer.param_groups):
        _follow(optimizer)


def _follow(optimizer: torch.optim.Optimizer) -> None:
    optimizer.register_step_pre_hook(_before_step)
    # torch leaves hooks out of copies and pickles.
    vars(optimizer)["__reduce_ex__"] = partial(_reduce, ref(optimizer))


def _reduce(of: ref[torch.optim.Optimizer], protocol: Any) -> tuple[Any, ...]:
    optimizer = of()
    cls: Any = type(optimizer)  # and not the optimizer itself, which has this function
    make, args, *state = cls.__reduce_ex__(optimizer, protocol)
    return _make_and_follow, (make, args), *state


def _make_and_follow(make: Callable[..., torch.optim.Optimizer], args: tuple[Any, ...]) -> torch.optim.Optimizer:
    """An optimizer that gets its state next, which leaves its hooks as they are."""
    made = make(*args)
    torch.optim.Optimizer.__setstate__(made, {"defaults": {}})
    _follow(made)
    return made


def _before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if writer_of(optimizer) is None:  # a controller writes its own rates
        for group in optimizer.param_groups:  # `load_state_dict` makes new ones
            if of := group.get(_KEY):
                _write(optimizer, group)
                group[_KEY] = {**of, "step": of["step"] + 1}  # a state dict shares the old one


def _write(optimizer: torch.optim.Optimizer, group: TorchGroup) -> None:
    of = group[_KEY]
    base = NEW_PARAMS_FACTOR * rate_of(optimizer.param_groups[of["parent"]])
    rate = Warmup(of["warmup_steps"]).rate(of["step"], base)
    if isinstance(group["lr"], torch.Tensor):
        with torch.no_grad():
            group["lr"].fill_(rate)
    else:
        group["lr"] = rate
