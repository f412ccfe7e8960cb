"""Params that come to an optimizer in mid-training: whether it can take them, and the state that its class would have
made for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import torch

from ..errors import ConfigError
from .groups import NEW_PARAMS_FACTOR, Group, WatchedGroup, policy_rate_of
from .policies import Policy
from .watch import WatchedOptimizer


def append_group(
    to: WatchedOptimizer, parent: WatchedGroup, given: list[Any], policy: Policy, options: Mapping[str, Any]
) -> Group:
    """Put new params into a group of their own, behind the others.

    parent (WatchedGroup): The group that they follow.
    given (list): Tensors, or pairs of name and tensor.
    policy (Policy): Gives their rates.
    options (Mapping[str, Any]): Those that differ from the parent's.
    RAISES (ConfigError): A param can't be optimized or is already, or there are none; or there is no such option.
    """
    tensors = _check(to, parent, given, options)
    wanted = {option: parent.group[option] for option in to.all_options if option in parent.group} | dict(options)
    _make_state(to.optimizer, tensors, {**wanted, "lr": policy_rate_of(parent).base or 1e-3})
    rate = policy.rate(0, NEW_PARAMS_FACTOR * parent.rate)
    lr = rate if parent.lr_tensor is None else torch.full_like(parent.lr_tensor, rate)
    to.optimizer.add_param_group({**wanted, "params": given, "lr": lr})
    return to.optimizer.param_groups[-1]


def find_parent(to: WatchedOptimizer, parent: str | int | None) -> WatchedGroup:
    """The group that new params follow.

    parent (str | int | None): Its id or index. None: the first one.
    RAISES (ConfigError): No such group, or it is frozen.
    """
    place = 0 if parent is None else parent
    for i, watched in enumerate(to.groups):
        if place == watched.id or (place == i and not isinstance(place, bool)):
            if policy_rate_of(watched).is_frozen:
                _refuse(
                    to,
                    f"a parent that learns, found '{watched.id}', which is frozen: a tenth of its rate is 0. Name "
                    "another parent",
                )
            return watched
    _refuse(to, f"a parent among {[watched.id for watched in to.groups]}, or its index, found {parent!r}")


def _check(
    to: WatchedOptimizer, parent: WatchedGroup, given: list[Any], options: Collection[str]
) -> list[torch.Tensor]:
    """Check that an optimizer can take new params. RETURNS (list[Tensor]): Their tensors. RAISES (ConfigError): It
    can't.
    """
    if isinstance(to.optimizer, torch.optim.LBFGS):
        _refuse(to, "an optimizer that takes several param groups, found LBFGS")
    if not given:
        _refuse(to, "at least one param, found none")
    if unknown := sorted(set(options) - set(to.all_options)):
        _refuse(to, f"options among {to.all_options}, found {unknown}")
    has_names = "param_names" in parent.group
    known = {id(param) for group in to.optimizer.param_groups for param in group["params"]}
    tensors = []
    for i, param in enumerate(given):
        tensor = param[1] if isinstance(param, tuple) and len(param) == 2 else param
        if not isinstance(tensor, torch.Tensor):
            _refuse(to, f"tensors, found {tensor!r} at place {i}")
        if has_names != isinstance(param, tuple):
            _refuse(
                to,
                f"{'pairs of name and param' if has_names else 'params without names'}, as it has already, found "
                f"others at place {i}",
            )
        if not tensor.is_leaf:
            _refuse(
                to, f"leaf tensors, found one of shape {tuple(tensor.shape)} at place {i} that was computed from others"
            )
        if id(tensor) in known:
            _refuse(
                to, f"params that are new, found one of shape {tuple(tensor.shape)} at place {i} that it has already"
            )
        known.add(id(tensor))
        tensors.append(tensor)
    return tensors


def _make_state(optimizer: torch.optim.Optimizer, tensors: list[torch.Tensor], options: Mapping[str, Any]) -> None:
    """Make the state that a class makes when it is built, as Adagrad does, but not when params are added: build, and
    take it over.

    options (Mapping[str, Any]): Those of the group that the params will be in, with a `lr`.
    """
    signature = inspect.signature(type(optimizer))
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    taken = {name: value for name, value in options.items() if takes_all or name in signature.parameters}
    try:
        signature.bind(tensors, **taken)
    except TypeError:  # a class that is built in another way, around other optimizers for example
        return
    optimizer.state.update(type(optimizer)(tensors, **taken).state)


def _refuse(to: WatchedOptimizer, expected_and_found: str) -> NoReturn:
    raise ConfigError(f"Can't add params to optimizer '{to.name}': expected {expected_and_found}.")
