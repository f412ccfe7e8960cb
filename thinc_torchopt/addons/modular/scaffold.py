"""SCAFFOLD, with option II of the paper.

A client's gradients are corrected by their difference from those of all clients:

    client, each step:     G = G + g, K = K + 1        out: g - (c_i - c)
    client, end of round:  c_new = G / K, sends c_new - c_i, c_i = c_new
    server:                s = s + the sum of the received changes, sends c = s / number of known clients
    client, next round:    c as received, G = K = 0

A round of a client: `process_aux_var` with the server's values, `start_round`, steps, `collect_aux_var`. The server:
`process_aux_var` with the clients' values, and a step with the mean of (start - end) as gradient. Put the client's
module first: after a module that is not linear, its input is not a gradient. K is counted for each param, so that the
mean is over the steps in which the param had a gradient.
"""

import math
import uuid
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, List, Optional, Union

import torch
from torch import Tensor

from ...core.errors import AuxVarError, AuxVarKeyError, AuxVarTypeError
from .aux_vars import AUX_VARS, AuxVar, How
from .module import Block, Module

# 0.0 stands for zeros of any shape.
Vector = Union[Mapping[str, Tensor], float]
States = Mapping[str, Mapping[str, Any]]
Changes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ScaffoldAuxVar(AuxVar):
    """The auxiliary variable of SCAFFOLD. Exactly one of `state` and `delta` is set.

    state (Mapping[str, Tensor] | float | None): From the server: the mean correction of all clients.
    delta (Mapping[str, Tensor] | float | None): From a client: the change of its correction.
    clients (tuple[str, ...]): The clients that sent `delta`.
    """

    state: Optional[Vector] = None
    delta: Optional[Vector] = None
    clients: tuple[str, ...] = ()

    name = "scaffold"

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", tuple(self.clients))
        for field in ("state", "delta"):
            value = getattr(self, field)
            is_zero = isinstance(value, float) and value == 0.0
            is_vector = isinstance(value, Mapping) and all(
                isinstance(name, str) and isinstance(tensor, Tensor) and tensor.is_floating_point()
                for name, tensor in value.items()
            )
            if not (value is None or is_zero or is_vector):
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
    def aggregate(cls, received: "Sequence[ScaffoldAuxVar]", how: How = "sum") -> "ScaffoldAuxVar":
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
    def from_wire(cls, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> "ScaffoldAuxVar":
        expected = {"field": str, "zero": bool, "clients": list}
        if not isinstance(values, Mapping) or {key: type(value) for key, value in values.items()} != expected:
            raise AuxVarError(
                f"Can't read the auxiliary variables '{cls.name}': expected {sorted(expected)}, found {values!r}."
            )
        if values["field"] not in ("state", "delta") or (values["zero"] and tensors):
            raise AuxVarError(f"Can't read a ScaffoldAuxVar: expected 'state' or 'delta', found {dict(values)!r}.")
        return cls(**{values["field"]: 0.0 if values["zero"] else dict(tensors)}, clients=tuple(values["clients"]))


AUX_VARS[ScaffoldAuxVar.name] = ScaffoldAuxVar


class ScaffoldClient(Module):
    """The client's part of SCAFFOLD: Karimireddy et al. 2020, https://arxiv.org/abs/1910.06378.

    Corrects gradients by their difference from those of all clients. Put it before all other modules.

        out: g - (c_i - c)
    """

    name = "scaffold-client"
    has_aux = True
    aux_name = "scaffold"
    tensors = ("correction", "server_correction", "grad_sum")
    counts_steps = True

    def __init__(self, *, params: Optional[List[str]] = None, label: Optional[str] = None):
        super().__init__(params=params, label=label)

    def first_shared(self) -> dict[str, Any]:
        return {"client": uuid.uuid4().hex}

    def run(self, block: Block) -> None:
        values = block.own()
        block.state["grad_sum"].add_(values)
        values.sub_(block.state["correction"]).add_(block.state["server_correction"])

    def collect_aux(
        self, states: Mapping[str, MutableMapping[str, Any]], shared: Mapping[str, Any]
    ) -> tuple[Optional[AuxVar], Changes]:
        if not any(state.get("step") for state in states.values()):
            return None, {}
        changes = {
            name: {"correction": state["grad_sum"] / state["step"]}
            for name, state in states.items()
            if state.get("step")
        }
        delta = {
            name: changes[name]["correction"] - state["correction"]
            if name in changes
            else torch.zeros_like(state["correction"])
            for name, state in states.items()
        }
        return ScaffoldAuxVar(delta=delta, clients=(shared["client"],)), changes

    def process_aux(self, aux: Any, states: States, shared: Mapping[str, Any]) -> tuple[Changes, dict[str, Any]]:
        check_kind(self, aux)
        if aux.state is None:
            raise AuxVarKeyError(
                f"Can't use auxiliary variables in {self.where}: expected 'state', which a server sends, found "
                "'delta', which a client sends."
            )
        check_vector(self, aux.state, states, "correction")
        return {
            name: {
                "server_correction": like(state["correction"], aux.state, name),
                "grad_sum": torch.zeros_like(state["grad_sum"]),
                "step": 0,
            }
            for name, state in states.items()
        }, {}


class ScaffoldServer(Module):
    """The server's part of SCAFFOLD: Karimireddy et al. 2020, https://arxiv.org/abs/1910.06378.

    Averages the corrections of clients, and sends the result to them. It does not change the server's update.
    """

    name = "scaffold-server"
    has_aux = True
    aux_name = "scaffold"
    tensors = ("correction_sum",)

    def __init__(self, *, params: Optional[List[str]] = None, label: Optional[str] = None):
        super().__init__(params=params, label=label)

    def first_shared(self) -> dict[str, Any]:
        return {"clients": []}

    def run(self, block: Block) -> None:
        pass

    def collect_aux(
        self, states: Mapping[str, MutableMapping[str, Any]], shared: Mapping[str, Any]
    ) -> tuple[Optional[AuxVar], Changes]:
        n = len(shared["clients"])
        mean = {name: state["correction_sum"] / n for name, state in states.items()} if n else 0.0
        return ScaffoldAuxVar(state=mean), {}

    def process_aux(self, aux: Any, states: States, shared: Mapping[str, Any]) -> tuple[Changes, dict[str, Any]]:
        check_kind(self, aux)
        if aux.delta is None:
            raise AuxVarKeyError(
                f"Can't use auxiliary variables in {self.where}: expected 'delta', which clients send, found 'state', "
                "which a server sends."
            )
        check_vector(self, aux.delta, states, "correction_sum")
        return {
            name: {"correction_sum": state["correction_sum"] + like(state["correction_sum"], aux.delta, name)}
            for name, state in states.items()
        }, {"clients": sorted({*shared["clients"], *aux.clients})}


def check_kind(module: Module, aux: Any) -> None:
    if not isinstance(aux, ScaffoldAuxVar):
        raise AuxVarTypeError(
            f"Can't use auxiliary variables in {module.where}: expected a ScaffoldAuxVar, found {type(aux).__name__}."
        )


def check_vector(module: Module, vector: Vector, states: States, key: str) -> None:
    """RAISES (AuxVarError): The vector has other params, or is not finite."""
    if not isinstance(vector, Mapping):
        return
    missing, unexpected = sorted(states.keys() - vector.keys()), sorted(vector.keys() - states.keys())
    if missing or unexpected:
        raise AuxVarKeyError(
            f"Can't use auxiliary variables in {module.where}: expected the {len(states)} params of this model; "
            f"missing: {', '.join(missing[:5]) or 'none'}; unknown: {', '.join(unexpected[:5]) or 'none'}."
        )
    for name, state in states.items():
        if vector[name].shape != state[key].shape:
            raise AuxVarError(
                f"Can't use auxiliary variables in {module.where}: expected shape {tuple(state[key].shape)} for param "
                f"'{name}', found {tuple(vector[name].shape)}."
            )
        if not math.isfinite(float(vector[name].detach().double().abs().sum())):
            raise AuxVarError(
                f"Can't use the auxiliary variables '{module.key}': expected finite numbers, found NaN or infinite "
                f"ones for param '{name}'."
            )


def like(state: Tensor, vector: Vector, name: str) -> Tensor:
    """The vector's value for a param, as a copy like a state tensor."""
    found = torch.zeros_like(state)
    return found.copy_(vector[name]) if isinstance(vector, Mapping) else found


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
