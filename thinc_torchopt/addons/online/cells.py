"""Recurrent cells: the definition of one step, and closed forms of its derivatives.

A cell defines one step, in terms of its relations (see relations.py), and nothing else:

    class Leaky(Cell):
        relations = (Dense("W"),)

        def step(self, x, state, relate):
            (h,) = state
            return (0.9 * h + 0.1 * torch.tanh(relate("W", x, h)),)

`relate(name, *parts)` computes y of a relation. Samples are the leading dimensions, if any. The first state is the
output. A trace needs the derivatives

    decay[a][c]     D:  d s_a[k] / d s_c of the step before, of the same unit k
    reach[name][a]  Df: d s_a[k] / d y[k]

which torch.func computes (functional.py), unless a cell has a closed form, as those of this file do: `linearize`.

    rnn         h = act(W)
    gru         h = (1 - z) h + z act(Wh), Wh reads r * h
    mgu         h = (1 - f) h + f act(Wh), Wh reads f * h                Zhou et al. 2016,
    https://arxiv.org/abs/1603.09420 lstm        c = sigmoid(f + 1) c + sigmoid(i) act(g), h = sigmoid(o) act(c)
    indrnn      h = act(W x + b + u * h)                                 Li et al. 2018,
    https://arxiv.org/abs/1803.04831 mingru      h = (1 - z) h + z act(Wn), both read x alone             Feng et al.
    2024, https://arxiv.org/abs/2410.01201 torch-gru   torch.nn.GRU: h = (1 - z) n + z h, n = act(Wn + r * Whn)
    torch-lstm  torch.nn.LSTM: as lstm, without the 1

In `gru` and `mgu` a gate is multiplied with the state before a matmul, so it reaches all units in the same step. A
trace follows only the effect of a weight on its own unit. The rest is left out (`truncated`), which is nearly all of
that gate's gradient. torch's forms have no such gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ...core.checks import Section
from .relations import Dense, Elementwise, Relation, Weights, apply_all, check_names, own_weight

State = tuple[Tensor, ...]


# The derivative of an activation, times `grad`, as a function of its output. Functions with names, so that models can
# be pickled.
def _through_tanh(grad: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward.default(grad, y)


def _through_relu(grad: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward.default(grad, y, 0.0)


def _through_sigmoid(grad: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.sigmoid_backward.default(grad, y)


def _through_identity(grad: Tensor, y: Tensor) -> Tensor:
    return grad


def _identity(y: Tensor) -> Tensor:
    return y


Through = Callable[[Tensor, Tensor], Tensor]
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Through]] = {
    "tanh": (torch.tanh, _through_tanh),
    "relu": (torch.relu, _through_relu),
    "sigmoid": (torch.sigmoid, _through_sigmoid),
    "linear": (_identity, _through_identity),
}


class Relate(Protocol):
    """Computes y of a relation from the parts of its input."""

    def __call__(self, name: str, *parts: Tensor) -> Tensor: ...


@dataclass
class Linearized:
    """A step and its derivatives.

    state (tuple[Tensor, ...]): After the step. Shape of each: (..., H).
    decay (list): D, as [a][c]. None: zero.
    reach (dict): Df of each relation, by state. None: zero.
    inputs (dict): The input of each relation.
    again (dict): Of relations that are used more than once: the keys of their further uses in `reach` and `inputs`.
    """

    state: State
    decay: list[list[Tensor | None]]
    reach: dict[str, list[Tensor | None]]
    inputs: dict[str, Tensor]
    again: dict[str, list[str]] = field(default_factory=dict)

    def uses_of(self, relation: Relation) -> list[tuple[str, Tensor, list[Tensor | None]]]:
        """The key, input and Df of each use of a relation."""
        keys = [relation.name, *self.again.get(relation.name, ())]
        return [(key, self.inputs[key], self.reach[key]) for key in keys]


class Cell:
    """A recurrent cell. See the module's docstring.

    states (tuple[str, ...]): The numbers that each unit carries from step to step, in any order. The first is the
        output.
    relations (tuple[Relation, ...]): Hold the weights. Each is used in a step, once or more often.
    truncated (tuple[str, ...] | None): Relations that reach other units in the same step, which traces don't follow.
        None: found by `check_cell`.
    memory_gates (Mapping[str, tuple[int, float]]): For chrono initialization, by relation: 1 if the state is kept where
        the gate is open, -1 if where it is closed; and what the cell adds to its bias.
    """

    states: tuple[str, ...] = ("h",)
    relations: tuple[Relation, ...] = ()
    truncated: tuple[str, ...] | None = None
    memory_gates: ClassVar[Mapping[str, tuple[int, float]]] = {}

    @property
    def is_exact(self) -> bool:
        """Whether each unit reads only its own state, so that traces leave nothing out. Of a cell of your own: only if
        it says that nothing is `truncated`.
        """
        return self.truncated == () and all(
            isinstance(relation, Elementwise) or relation.inputs == ("x",) for relation in self.relations
        )

    def step(self, x: Tensor, state: State, relate: Relate) -> State:
        """One step. x (Tensor): Shape: (..., I). state (tuple[Tensor, ...]): Shape of each: (..., H)."""
        raise NotImplementedError

    def linearize(self, x: Tensor, state: State, weights: Weights) -> Linearized | None:
        """The closed form of a step and its derivatives. None: there is none."""
        return None

    def coefficients(self, x: Tensor, weights: Weights) -> tuple[Tensor, Tensor] | None:
        """a and b of a step that is linear in its one state, h = a h + b. Shape of both: (..., H). None: it is not."""
        return None


class _Builtin(Cell):
    """activation (str): One of `ACTIVATIONS`."""

    truncated: tuple[str, ...] | None = ()

    def __init__(self, activation: str = "tanh"):
        self.activation = activation
        self.act, self.through = ACTIVATIONS[activation]


class RNN(_Builtin):
    W = Dense("W")
    relations = (W,)

    def step(self, x: Tensor, state: State, relate: Relate) -> State:
        return (self.act(relate("W", x, *state)),)

    def linearize(self, x: Tensor, state: State, weights: Weights) -> Linearized:
        xh = torch.cat((x, *state), -1)
        h = self.act(self.W.apply(weights, xh))
        reach = self.through(torch.ones_like(h), h)
        return Linearized((h,), [[reach * own_weight(self.W, weights)]], {"W": [reach]}, {"W": xh})


class IndRNN(_Builtin):
    W = Dense("W", ("x",))
    u = Elementwise("u")
    relations = (W, u)

    def step(self, x: Tensor, state: State, relate: Relate) -> State:
        return (self.act(relate("W", x) + relate("u", *state)),)

    def linearize(self, x: Tensor, state: State, weights: Weights) -> Linearized:
        h = self.act(self.W.apply(weights, x) + self.u.apply(weights, state[0]))
        reach = self.through(torch.ones_like(h), h)
        return Linearized((h,), [[reach * weights["u"]]], {"W": [reach], "u": [reach]}, {"W": x, "u": state[0]})


class GRU(_Builtin):
    Wz = Dense("Wz")
    Wr = Dense("Wr")
    Wh = Dense("Wh", ("x", "r*h"))
    relations = (Wz, Wr, Wh)
    truncated = ("Wr",)
    memory_gates: ClassVar = {"Wz": (-1, 0.0)}

    def step(self, x: Tensor, state: State, relate: Relate) -> State:
        (h,) = state
        z, r = torch.sigmoid(relate("Wz", x, h)), torch.sigmoid(relate("Wr", x, h))
        return (torch.lerp(h, self.act(relate("Wh", x, r * h)), z),)

    def linearize(self, x: Tensor, state: State, weights: Weights) -> Linearized:
        (h,) = state
        xh = torch.cat((x, h), -1)
        z, r = map(torch.sigmoid, apply_all((self.Wz, self.Wr), weights, xh))
        xrh = torch.cat((x, r * h), -1)
        n = self.act(self.Wh.apply(weights, xrh))
        dz, dn, hdr = _through_sigmoid(n - h, z), self.through(z, n), _through_sigmoid(h, r)
        Ur, Uh = self.Wr.recurrent(weights), self.Wh.recurrent(weights)
        own = own_weight(self.Wh, weights)
        decay = (1 - z) + dz * own_weight(self.Wz, weights) + dn * (r * own + hdr @ (Ur.T * Uh))
        return Linearized(
            (torch.lerp(h, n, z),),
            [[decay]],
            {"Wz": [dz], "Wr": [dn * own * hdr], "Wh": [dn]},
            {"Wz": xh, "Wr": xh, "Wh": xrh},
        )


class MGU(_Builtin):
    Wf = Dense("Wf")
    Wh = Dense("Wh", ("x", "f*h"))
    relations = (Wf, Wh)
    truncated = ("Wf",)
    memory_gates: ClassVar = {"Wf": (-1, 0.0)}

    def step(self, x: Tensor, state: State, relate: Relate) -> State:
        (h,) = state
        f = torch.sigmoid(relate("Wf", x, h))
        return (torch.lerp(h, self.act(relate("Wh", x, f * h)), f),)

    def linearize(self, x: Tensor, state: State, weights: Weights) -> Linearized:
        (h,) = state
        xh = torch.cat((x, h), -1)
        f = torch.sigmoid(self.Wf.apply(weights, xh))
        xfh = torch.cat((x, f * h), -1)
        n = self.act(self.Wh.apply(weights, xfh))
        df, dn, hdf = _through_sigmoid(n - h, f), self.through(f, n), _through_sigmoid(h, f)
        Uf, Uh = self.Wf.recurrent(weights), self.Wh.recurrent(weights)
        own = own_weight(self.Wh, weights)
        decay = (1 - f) + df * own_weight(self.Wf, weights) + dn * (f * own + hdf @ (Uf.T * Uh))
        return Linearized(
            (torch.lerp(h, n, f),), [[decay]], {"Wf": [df + dn * own * hdf], "Wh": [dn]}, {"Wf": xh, "Wh": xfh}
        )


class LSTM(_Builtin):
    states = ("h", "c")
    Wi = Dense("Wi")
    Wg = Dense("Wg")
    Wf = Dense("Wf")
    Wo = Dense("Wo")
    relations = (Wi, Wg, Wf, Wo)
    forget_bias = 1.0
    memory_gates: ClassVar = {"Wf": (1, 1.0), "Wi": (-1, 0.0)}

    def step(self, x: Tensor, state: State, relate: Relate) -> State:
        h, c = state
        i, g, f, o = (relate(relation.name, x, h) for relation in self.relations)
        c = torch.sigmoid(f + self.forget_bias) * c + torch.sigmoid(i) * self.act(g)
        return torch.sigmoid(o) * self.act(c), c

    def linearize(self, x: Tensor, state: State, weights: Weights) -> Linearized:
        h, c = state
        xh = torch.cat((x, h), -1)
        i, g, f, o = apply_all(self.relations, weights, xh)
        i, g, f, o = torch.sigmoid(i), self.act(g), torch.sigmoid(f + self.forget_bias), torch.sigmoid(o)
        new_c = torch.addcmul(i * g, f, c)
        a = self.act(new_c)
        s = self.through(o, a)
        in_c = _through_sigmoid(g, i), self.through(i, g), _through_sigmoid(c, f)
        do = _through_sigmoid(a, o)
        *own, own_o = (own_weight(relation, weights) for relation in self.relations)
        ch = _dot(in_c, own)
        reach: dict[str, list[Tensor | None]] = {
            relation.name: [s * of_c, of_c] for relation, of_c in zip(self.relations, in_c)
        }
        return Linearized(
            (o * a, new_c),
            [[_dot((s, do), (ch, own_o)), s * f], [ch, f]],
            reach | {"Wo": [do, None]},
            dict.fromkeys(reach | {"Wo": 0}, xh),
        )


class TorchLSTM(LSTM):
    forget_bias = 0.0
    memory_gates: ClassVar = {"Wf": (1, 0.0), "Wi": (-1, 0.0)}


class TorchGRU(_Builtin):
    Wr = Dense("Wr")
    Wz = Dense("Wz")
    Wn = Dense("Wn", ("x",))
    Whn = Dense("Whn", ("h",))
    relations = (Wr, Wz, Wn, Whn)
    memory_gates: ClassVar = {"Wz": (1, 0.0)}

    def step(self, x: Tensor, state: State, relate: Relate) -> State:
        (h,) = state
        r, z = torch.sigmoid(relate("Wr", x, h)), torch.sigmoid(relate("Wz", x, h))
        n = self.act(torch.addcmul(relate("Wn", x), r, relate("Whn", h)))
        return (torch.lerp(n, h, z),)

    def linearize(self, x: Tensor, state: State, weights: Weights) -> Linearized:
        (h,) = state
        xh = torch.cat((x, h), -1)
        r, z = map(torch.sigmoid, apply_all((self.Wr, self.Wz), weights, xh))
        m = self.Whn.apply(weights, h)
        n = self.act(torch.addcmul(self.Wn.apply(weights, x), r, m))
        dz, dn = _through_sigmoid(h - n, z), self.through(1 - z, n)
        dm, dr = dn * r, _through_sigmoid(dn * m, r)
        Ur, Uz, Um = (own_weight(relation, weights) for relation in (self.Wr, self.Wz, self.Whn))
        return Linearized(
            (torch.lerp(n, h, z),),
            [[z + _dot((dr, dz, dm), (Ur, Uz, Um))]],
            {"Wr": [dr], "Wz": [dz], "Wn": [dn], "Whn": [dm]},
            {"Wr": xh, "Wz": xh, "Wn": x, "Whn": h},
        )


class MinGRU(_Builtin):
    Wz = Dense("Wz", ("x",))
    Wn = Dense("Wn", ("x",))
    relations = (Wz, Wn)
    memory_gates: ClassVar = {"Wz": (-1, 0.0)}

    def step(self, x: Tensor, state: State, relate: Relate) -> State:
        return (torch.lerp(state[0], self.act(relate("Wn", x)), torch.sigmoid(relate("Wz", x))),)

    def linearize(self, x: Tensor, state: State, weights: Weights) -> Linearized:
        (h,) = state
        z, n = self._gates(x, weights)
        return Linearized(
            (torch.lerp(h, n, z),),
            [[1 - z]],
            {"Wz": [_through_sigmoid(n - h, z)], "Wn": [self.through(z, n)]},
            {"Wz": x, "Wn": x},
        )

    def coefficients(self, x: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
        z, n = self._gates(x, weights)
        return 1 - z, z * n

    def _gates(self, x: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
        z, n = apply_all(self.relations, weights, x)
        return torch.sigmoid(z), self.act(n)


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """The sum of products."""
    total = one[0] * other[0]
    for a, b in zip(one[1:], other[1:]):
        total.addcmul_(a, b)
    return total


CELLS: dict[str, type[_Builtin]] = {
    "rnn": RNN,
    "gru": GRU,
    "mgu": MGU,
    "lstm": LSTM,
    "indrnn": IndRNN,
    "mingru": MinGRU,
    "torch-gru": TorchGRU,
    "torch-lstm": TorchLSTM,
}


def make_cell(cell: str | Cell, activation: str, where: Section) -> Cell:
    """A cell by its name; a cell object is returned unchanged.

    where (Section): For errors: the owner of the argument.
    RAISES (ConfigError): An unknown cell or activation; a cell without relations, or with two of one name.
    """
    if isinstance(cell, Cell):
        if not cell.relations:
            where.refuse("cell", "a cell with at least one relation", cell)
        check_names(cell.relations, where)
        return cell
    where.choice("activation", activation, tuple(ACTIVATIONS))
    return CELLS[where.choice("cell", cell, tuple(CELLS))](activation)
