"""Auxiliary variables: values that optimizers in a federation exchange beside weights.

Each is a dataclass of numbers, texts, and tensors by the lasting names of params. They can be aggregated over clients,
and are sent as tensors and JSON. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Union

import torch
from safetensors.torch import load, save
from torch import Tensor

from ..errors import AuxVarError

# 0.0 stands for zeros of any shape.
Vector = Union[Mapping[str, Tensor], float]
How = Literal["sum", "mean"]


class AuxVar:
    """An auxiliary variable. Subclasses are dataclasses, and define how they are aggregated and sent.

    name: The name under which modules exchange it.
    """

    name: ClassVar[str] = ""

    def __add__(self, other: Any) -> Any:
        """The sum over two clients. `sum` adds any number of them."""
        return self.aggregate([self, other]) if type(other) is type(self) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return self if other == 0 and not isinstance(other, AuxVar) else NotImplemented  # where `sum` begins

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
    def aggregate(cls, received: Sequence[Any], how: How = "sum") -> Any:
        """Sum or average over clients.

        received (Sequence): At least one, all of this class.
        RAISES (AuxVarError): They can't be added.
        """
        raise NotImplementedError

    def to_wire(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name, and values for JSON."""
        raise NotImplementedError

    @classmethod
    def from_wire(cls, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> Any:
        """Undo `to_wire`. RAISES (AuxVarError): The values are invalid."""
        raise NotImplementedError


@dataclass(frozen=True)
class ScaffoldAuxVar(AuxVar):
    """The auxiliary variable of SCAFFOLD. Exactly one of `state` and `delta` is set.

    state (Mapping[str, Tensor] | float | None): From the server: the mean correction of all clients.
    delta (Mapping[str, Tensor] | float | None): From a client: the change of its correction.
    clients (tuple[str, ...]): The clients that sent `delta`.
    """

    state: Vector | None = None
    delta: Vector | None = None
    clients: tuple[str, ...] = ()

    name = "scaffold"

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(self.clients))
        for field in ("state", "delta"):
            value = getattr(self, field)
            is_zero = isinstance(value, float) and value == 0.0
            if not (value is None or is_zero or (isinstance(value, Mapping) and is_vector(value))):
                raise AuxVarError(
                    f"Can't make a ScaffoldAuxVar: expected tensors by the names of params, or 0.0, as '{field}', "
                    f"found {value!r}."
                )
        if (self.state is None) == (self.delta is None):
            raise AuxVarError(
                "Can't make a ScaffoldAuxVar: expected exactly one of 'state' and 'delta', found "
                f"{'none' if self.state is None else 'both'}."
            )
        if not all(isinstance(client, str) for client in self.clients) or (self.state is not None and self.clients):
            raise AuxVarError(
                f"Can't make a ScaffoldAuxVar: expected the names of the clients that sent 'delta', found "
                f"{self.clients!r}."
            )

    @classmethod
    def aggregate(cls, received: Sequence[ScaffoldAuxVar], how: How = "sum") -> ScaffoldAuxVar:
        if any(aux.delta is None for aux in received):
            raise AuxVarError(
                "Can't aggregate ScaffoldAuxVar: expected 'delta' of each client, found 'state', which is the server's."
            )
        names = [name for aux in received for name in aux.clients]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise AuxVarError(
                f"Can't aggregate ScaffoldAuxVar: expected one of each client, found several of {', '.join(twice)}."
            )
        return cls(delta=combine([aux.delta for aux in received], how), clients=tuple(sorted(names)))  # type: ignore[misc]

    def to_wire(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        field = "delta" if self.state is None else "state"
        value = getattr(self, field)
        tensors = dict(value) if isinstance(value, Mapping) else {}
        return tensors, {"field": field, "zero": not isinstance(value, Mapping), "clients": list(self.clients)}

    @classmethod
    def from_wire(cls, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> ScaffoldAuxVar:
        check_wire(cls.name, values, {"field": str, "zero": bool, "clients": list})
        if values["field"] not in ("state", "delta") or (values["zero"] and tensors):
            raise AuxVarError(f"Can't read a ScaffoldAuxVar: expected 'state' or 'delta', found {dict(values)!r}.")
        return cls(**{values["field"]: 0.0 if values["zero"] else dict(tensors)}, clients=tuple(values["clients"]))


# By name. Other packages may add theirs.
AUX_VARS: dict[str, type[AuxVar]] = {ScaffoldAuxVar.name: ScaffoldAuxVar}


# ---------------------------------------------------------------------- vectors


def is_vector(value: Mapping[Any, Any]) -> bool:
    """Whether a mapping has float tensors by name."""
    return all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.is_floating_point()
        for name, tensor in value.items()
    )


def combine(vectors: Sequence[Vector], how: How = "sum") -> Vector:
    """Sum or average vectors. RAISES (AuxVarError): Their names or shapes differ."""
    if how not in ("sum", "mean"):
        raise AuxVarError(f"Can't aggregate auxiliary variables: expected 'sum' or 'mean', found {how!r}.")
    found = [vector for vector in vectors if isinstance(vector, Mapping)]
    if not found:
        return 0.0
    shapes = [{name: tuple(tensor.shape) for name, tensor in vector.items()} for vector in found]
    for other in shapes[1:]:
        different = sorted(name for name in shapes[0].keys() | other.keys() if shapes[0].get(name) != other.get(name))
        if different:
            raise AuxVarError(
                "Can't aggregate auxiliary variables: expected the same params from each client, but "
                f"{', '.join(different[:5])} differ in shape, or are missing."
            )
    total = {}
    for name in found[0]:
        total[name] = torch.clone(found[0][name].detach())
        for vector in found[1:]:
            total[name] += vector[name].to(total[name].device)
        if how == "mean":
            total[name] /= len(vectors)
    return total


# ---------------------------------------------------------------------- sending


def aggregate(received: Sequence[Mapping[str, AuxVar]], how: How = "sum") -> dict[str, AuxVar]:
    """Sum or average the auxiliary variables of several clients.

    received (Sequence[Mapping[str, AuxVar]]): From `collect_aux_var` of each client.
    RAISES (AuxVarError): Their kinds differ, or they can't be added.
    """
    names = {name for aux in received for name in aux}
    found = {}
    for name in sorted(names):
        of_name = [aux[name] for aux in received if name in aux]
        kinds = {type(aux) for aux in of_name}
        if len(kinds) > 1 or not issubclass(next(iter(kinds)), AuxVar):
            raise AuxVarError(
                f"Can't aggregate the auxiliary variables '{name}': expected one kind from all clients, found "
                f"{', '.join(sorted(kind.__name__ for kind in kinds))}."
            )
        found[name] = next(iter(kinds)).aggregate(of_name, how)
    return found


def to_bytes(aux: Mapping[str, AuxVar]) -> bytes:
    """Serialize auxiliary variables: safetensors, with JSON in the header."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name, value in aux.items():
        own, values[name] = value.to_wire()
        tensors |= {f"{name}:{key}": tensor.detach().contiguous().cpu().clone() for key, tensor in own.items()}
    return save(tensors, metadata={"aux_vars": json.dumps(values)})


def from_bytes(data: bytes) -> dict[str, AuxVar]:
    """Undo `to_bytes`. RAISES (AuxVarError): The data is damaged, or of an unknown kind."""
    try:
        size = int.from_bytes(data[:8], "little")
        values = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["aux_vars"])
        tensors = load(bytes(data))
        by_name: dict[str, dict[str, Tensor]] = {name: {} for name in values}
        for path, tensor in tensors.items():
            name, _, key = path.partition(":")
            by_name[name][key] = tensor
        return {name: AUX_VARS[name].from_wire(by_name[name], values[name]) for name in values}
    except AuxVarError:
        raise
    except Exception as error:
        raise AuxVarError(
            f"Can't read auxiliary variables: the data is damaged, or of an unknown kind ({error!r}). Known kinds: "
            f"{', '.join(sorted(AUX_VARS))}."
        ) from error


def check_wire(name: str, values: Mapping[str, Any], expected: Mapping[str, type]) -> None:
    """RAISES (AuxVarError): Values are missing, unknown, or of another type."""
    if not isinstance(values, Mapping) or {key: type(value) for key, value in values.items()} != dict(expected):
        raise AuxVarError(
            f"Can't read the auxiliary variables '{name}': expected {sorted(expected)}, found {values!r}."
        )


def check_finite(name: str, vector: Vector) -> None:
    """RAISES (AuxVarError): A number is NaN or infinite."""
    for param, tensor in vector.items() if isinstance(vector, Mapping) else ():
        if not math.isfinite(float(tensor.detach().double().abs().sum())):
            raise AuxVarError(
                f"Can't use the auxiliary variables '{name}': expected finite numbers, found NaN or infinite ones for "
                f"param '{param}'."
            )
