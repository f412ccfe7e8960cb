"""Auxiliary variables: values that optimizers in a federation exchange beside weights.

Each is a dataclass of numbers, texts, and tensors by the lasting names of params. They can be aggregated over clients,
and are sent as tensors and JSON. Nothing is pickled.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from safetensors.torch import load, save
from torch import Tensor

from ...core.errors import AuxVarError

How = Literal["sum", "mean"]


class AuxVar(ABC):
    """An auxiliary variable. Subclasses are dataclasses, and define how they are aggregated and sent.

    name: The name under which modules exchange it.
    """

    name: ClassVar[str] = ""

    def __add__(self, other: Any) -> Any:
        """The sum over two clients. `sum` adds any number of them."""
        return self.aggregate([self, other]) if type(other) is type(self) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return self if other == 0 else NotImplemented  # where `sum` begins

    def to_dict(self) -> dict[str, Any]:
        """Its fields by name, for `from_dict`."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}  # type: ignore[attr-defined]

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Any:
        """Undo `to_dict`. RAISES (AuxVarError): A field is unknown, or has an invalid value."""
        known = cls.__dataclass_fields__  # type: ignore[attr-defined]
        if unknown := sorted(set(fields) - set(known)):
            raise AuxVarError(
                f"Can't make a {cls.__name__}: expected some of {', '.join(known)}, found {', '.join(unknown)}."
            )
        return cls(**fields)

    @classmethod
    @abstractmethod
    def aggregate(cls, received: Sequence[Any], how: How = "sum") -> Any:
        """Sum or average over clients.

        received (Sequence): At least one, all of this class.
        RAISES (AuxVarError): They can't be added.
        """

    @abstractmethod
    def to_wire(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name, and values for JSON."""

    @classmethod
    @abstractmethod
    def from_wire(cls, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> Any:
        """Undo `to_wire`. RAISES (AuxVarError): The values are invalid."""


# By name: of SCAFFOLD, and those that other packages add.
AUX_VARS: dict[str, type[AuxVar]] = {}


def aggregate(received: Sequence[Mapping[str, AuxVar]], how: How = "sum") -> dict[str, AuxVar]:
    """Sum or average the auxiliary variables of several clients.

    received (Sequence[Mapping[str, AuxVar]]): From `collect_aux_var` of each client.
    RAISES (AuxVarError): Their kinds differ, or they can't be added.
    """
    names = {name for aux in received for name in aux}
    found = {}
    for name in sorted(names):
        of_name = [aux[name] for aux in received if name in aux]
        kind, *others = {type(aux) for aux in of_name}
        if others or not issubclass(kind, AuxVar):
            raise AuxVarError(
                f"Can't aggregate the auxiliary variables '{name}': expected one kind from all clients, found "
                f"{', '.join(sorted(one.__name__ for one in (kind, *others)))}."
            )
        found[name] = kind.aggregate(of_name, how)
    return found


def to_tensors(aux: Mapping[str, AuxVar]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by "name:key", and values for JSON by name."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name, value in aux.items():
        own, values[name] = value.to_wire()
        tensors |= {f"{name}:{key}": tensor for key, tensor in own.items()}
    return tensors, values


def from_tensors(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> dict[str, AuxVar]:
    """Undo `to_tensors`. RAISES (KeyError): A name is unknown. (AuxVarError): Values are invalid."""
    by_name: dict[str, dict[str, Tensor]] = {name: {} for name in values}
    for path, tensor in tensors.items():
        name, _, key = path.partition(":")
        by_name[name][key] = tensor
    return {name: AUX_VARS[name].from_wire(by_name[name], values[name]) for name in values}


def to_bytes(aux: Mapping[str, AuxVar]) -> bytes:
    """Serialize auxiliary variables: safetensors, with JSON in the header."""
    tensors, values = to_tensors(aux)
    copies = {name: tensor.detach().contiguous().cpu().clone() for name, tensor in tensors.items()}
    return save(copies, metadata={"aux_vars": json.dumps(values)})


def from_bytes(data: bytes) -> dict[str, AuxVar]:
    """Undo `to_bytes`. RAISES (AuxVarError): The data is damaged, or of an unknown kind."""
    try:
        size = int.from_bytes(data[:8], "little")
        values = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["aux_vars"])
        return from_tensors(load(bytes(data)), values)
    except AuxVarError:
        raise
    except Exception as error:
        raise AuxVarError(
            f"Can't read auxiliary variables: the data is damaged, or of an unknown kind ({error!r}). Known kinds: "
            f"{', '.join(sorted(AUX_VARS))}."
        ) from error
