"""Any torch optimizer as a module: its update of a param that is zero, at a learning rate of 1.

So its weight decay has no effect, and setting it is an error: use the `weight_decay` of Modular, or `ridge`. The
learning rate is that of Modular. The optimizer's state of each param is kept; optimizers with other state are refused.
"""

import inspect
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Dict, List, Optional, Type, Union

import torch
from torch import Tensor

from ...core.checks import Section
from ...core.errors import ConfigArgumentError, ConfigError
from .module import Block, Module, opmath, where_it_stands

# Prefix of values in the optimizer's param group, which are kept in the state of the param.
IN_GROUP = "group:"


class TorchOptim(Module):
    """Any torch optimizer as a module, with the learning rate and weight decay of Modular.

    optim_cls (str): The name of a class of torch.optim, such as "torch.optim.SGD"; in Python also a class.
    kwargs (dict): Its arguments, without `params` and `lr`. They can also be arguments of this module.
    validate (bool): Must be True, as in declearn: classes are always checked.
    """

    name = "torch-optim"

    def __init__(
        self,
        optim_cls: Union[str, Type[torch.optim.Optimizer], None] = None,
        kwargs: Optional[Dict[str, Any]] = None,
        validate: bool = True,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
        **options: Any,
    ):
        where = where_it_stands.get() or "the module 'torch-optim'"
        section = Section(where)
        section.choice("validate", validate, (True,))
        if optim_cls is None:
            raise ConfigArgumentError(f"Can't make {where}: 'optim_cls' is missing.")
        self.cls = find_class(section, optim_cls)
        kwargs = {**section.section("kwargs", {} if kwargs is None else kwargs), **options}
        if kwargs.setdefault("lr", 1.0) != 1.0:
            section.refuse("lr", "1.0", kwargs["lr"], "The learning rate is that of Modular: set it there.")
        if kwargs.get("weight_decay"):
            section.refuse(
                "weight_decay",
                "none",
                kwargs["weight_decay"],
                "It has no effect here. Set weight_decay of Modular, or add the regularizer 'ridge'.",
            )
        self.kwargs: Dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in kwargs.items()
        }
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in kwargs.items()}
        path = f"{self.cls.__module__}.{self.cls.__qualname__}"
        super().__init__({}, {"optim_cls": path, "kwargs": plain}, params=params, label=label)
        self._try()

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {**config, "kwargs": dict(config["kwargs"])}

    def example_state(self, weights: Tensor, options: Mapping[str, Any]) -> dict[str, Any]:
        # Run it on a small param with sizes of 2, and replace that shape by this param's.
        ones, small = torch.ones((2,) * weights.ndim, dtype=opmath(weights.dtype)), dict[str, Any]()
        self.update(ones, small)
        return {
            key: value.new_empty(weights.shape if value.shape == ones.shape else value.shape)
            if isinstance(value, Tensor)
            else value
            for key, value in small.items()
        }

    def run(self, block: Block) -> None:
        block.put(self.update(block.read(), block.state))

    def update(self, values: Tensor, whole: MutableMapping[str, Any]) -> Tensor:
        """Let the optimizer make a step from zero. whole (MutableMapping): The state of the param."""
        own = {key: value for key, value in whole.items() if not key.startswith(IN_GROUP)}
        param = torch.nn.Parameter(torch.zeros_like(values))
        param.grad = values.clone()  # some optimizers keep it
        optimizer = self.build(param)
        [group] = optimizer.param_groups
        group.update({key.removeprefix(IN_GROUP): value for key, value in whole.items() if key.startswith(IN_GROUP)})
        if own:
            optimizer.state[param] = own
        before = dict(group)
        with torch.no_grad():
            optimizer.step()
        whole.update(optimizer.state[param])
        for key, value in group.items():
            if key != "params" and (key not in before or value is not before[key]) and isinstance(value, (int, float)):
                whole[IN_GROUP + key] = value
        return param.detach().neg_()

    def build(self, param: Tensor) -> torch.optim.Optimizer:
        return self.cls([param], **self.kwargs)

    def _try(self) -> None:
        """RAISES (ConfigError): The class refuses its arguments, or can't be a module."""
        values = torch.ones(2, 2)
        whole: Dict[str, Any] = {}
        try:
            with torch.random.fork_rng([]), torch.enable_grad():
                for grad in (values, -values):
                    self.update(grad, whole)
                optimizer = self.build(torch.nn.Parameter(values))
                before = _beside(optimizer)
                optimizer.param_groups[0]["params"][0].grad = values
                optimizer.step()
        except Exception as error:
            raise ConfigError(
                f"Can't make {self.where} of {self.cls.__name__}: it does not accept these arguments, or its step "
                f"needs more than gradients: {error!r}. Arguments: {self.kwargs}."
            ) from error
        beside = {key for key, value in _beside(optimizer).items() if key not in before or value != before[key]}
        unknown = [key for key, value in whole.items() if not isinstance(value, (Tensor, int, float))]
        if beside or unknown:
            raise ConfigError(
                f"Can't make {self.where} of {self.cls.__name__}: its state must be numbers and tensors of each param, "
                f"but it also keeps {', '.join(sorted([*beside, *unknown]))}. Use it as the algorithm."
            )


def _beside(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Attributes that belong to no param, as texts."""
    return {
        key: repr(value)
        for key, value in vars(optimizer).items()
        if not key.startswith("_") and key not in ("state", "param_groups", "defaults")
    }


def find_class(section: Section, found: Union[str, type]) -> Type[torch.optim.Optimizer]:
    """Find a class by its name. Nothing is imported.

    RAISES (ConfigError): There is no such class, or it is no optimizer.
    """
    cls: Any = found
    if isinstance(found, str):
        path, _, name = found.rpartition(".")
        cls = getattr(sys.modules.get(path or "torch.optim"), name, None)
        if cls is None:
            section.refuse("optim_cls", 'the name of a class of torch.optim, as in "torch.optim.SGD"', found)
    if not inspect.isclass(cls) or not issubclass(cls, torch.optim.Optimizer) or cls is torch.optim.Optimizer:
        section.refuse("optim_cls", "a torch optimizer", found)
    return cls
