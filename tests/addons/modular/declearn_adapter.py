"""A pytest plugin for declearn's own tests of its optimizer: under declearn's names, it puts ours in place.

A module of declearn's takes vectors, and has its state; ours works in a `Modular`. So `Adapted` has one `Modular` each,
and translates. Loaded by test_declearns_tests.py, in an environment with declearn: `pytest -p`.
"""

import inspect

import declearn.model.torch
import declearn.optimizer
import torch
from declearn.model.api import Vector
from declearn.model.sklearn import NumpyVector
from declearn.optimizer import modules as their_modules
from declearn.optimizer import regularizers as their_regularizers
from declearn.utils import _register
from declearn.utils.serialize import add_serialization_support

from thinc_torchopt.addons.modular.module import Module, Regularizer
from thinc_torchopt.addons.modular.optimizer import Modular
from thinc_torchopt.addons.modular.scaffold import ScaffoldAuxVar
from thinc_torchopt.addons.modular.specs import MODULES, REGULARIZERS, build_part

_ADAM = {"exp_avg": "momentum/state", "exp_avg_sq": "velocity/state", "max_exp_avg_sq": "vmax", "step": "steps"}
# Our names of a module's state, and declearn's. "step" is a number for all params.
NAMES = {
    "adagrad": {"sum": "state"},
    "adam": _ADAM,
    "ewma": {"exp_avg": "state"},
    "momentum": {"momentum_buffer": "velocity"},
    "rmsprop": {"square_avg": "state"},
    "scaffold-client": {"correction": "state", "server_correction": "sglob"},
    "scaffold-server": {"correction_sum": "s_state"},
    "yogi": _ADAM,
    "yogi-momentum": {"exp_avg": "state"},
}
# Shared state: our name and declearn's.
SHARED = {"scaffold-client": ("client", "uuid"), "scaffold-server": ("clients", "clients")}


def to_tensors(vector):
    return {name: torch.as_tensor(value) for name, value in vector.coefs.items()}


def to_vector(tensors, kind):
    return kind(
        {name: tensor.numpy().copy() if kind is NumpyVector else tensor.clone() for name, tensor in tensors.items()}
    )


def vectors_in(tree):
    if isinstance(tree, Vector):
        return [tree]
    values = tree.values() if isinstance(tree, dict) else ()
    return [found for value in values for found in vectors_in(value)]


class TheirAuxVar(their_modules.ScaffoldAuxVar, register=False):
    """Ours in declearn's form: sums are ours."""

    kind = NumpyVector

    @classmethod
    def of(cls, ours, kind):
        fields = {
            name: value if value is None or isinstance(value, float) else to_vector(value, kind)
            for name, value in (("state", ours.state), ("delta", ours.delta))
        }
        found = cls(**fields, clients=set(ours.clients))
        found.kind = kind
        return found

    def to_dict(self):
        found = super().to_dict()
        return {**found, "clients": sorted(found["clients"])} if "clients" in found else found

    def ours(self):
        fields = {"state": self.state, "delta": self.delta}
        tensors = {key: to_tensors(value) if isinstance(value, Vector) else value for key, value in fields.items()}
        return ScaffoldAuxVar(**tensors, clients=tuple(sorted(self.clients)))

    def __add__(self, other):
        return TheirAuxVar.of(self.ours() + other.ours(), self.kind)


class Adapted:
    """One of our modules or regularizers, with the methods of declearn's."""

    ours: type = Module
    name = ""

    def __init__(self, *args, **settings):
        names = list(self.arguments())
        self.settings = {**dict(zip(names, args)), **settings}
        self.part = build_part((self.name, self.settings), self.ours)
        self.kind, self.given = NumpyVector, None
        self.optimizer = self.build({"none": torch.zeros(1)})

    def arguments(self):
        known = {**MODULES, **REGULARIZERS}[self.name]
        return inspect.signature(known).parameters

    def build(self, like):
        self.params = {name: torch.nn.Parameter(torch.zeros_like(value)) for name, value in like.items()}
        what = "modules" if self.ours is Module else "regularizers"
        return Modular(self.params.items(), 1.0, **{what: [(self.name, self.settings)]})

    def begin(self, like):
        shapes = {name: value.shape for name, value in like.items()}
        if shapes != {name: value.shape for name, value in self.params.items()}:
            if "none" not in self.params:
                raise KeyError("other params")
            shared = self.optimizer.shared
            self.optimizer = self.build(like)
            self.optimizer.shared = shared

    def run(self, gradients, weights=None):
        self.kind = type(gradients)
        grads = to_tensors(gradients)
        self.begin(grads)
        if weights is not None:
            with torch.no_grad():
                for name, value in to_tensors(weights).items():
                    self.params[name].copy_(value)
        updates = self.optimizer.compute_updates_from_gradients(grads)
        return to_vector({name: -update for name, update in updates.items()}, self.kind)

    def on_round_start(self):
        self.optimizer.start_round()

    def get_config(self):
        config = self.part.get_config()
        return {key: value for key, value in config.items() if key != "round_reset" or value}

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    # ------------------------------------------------------------------ state, in declearn's layout

    def own(self):
        [[_, state]] = self.optimizer.get_state()["modules"]
        return state

    def values(self, key):
        found = {name: kept[key] for name, kept in self.own()["params"].items() if kept and key in kept}
        # declearn has 0.0 before the first step, and after a reset.
        return to_vector(found, self.kind) if any(value.any() for value in found.values()) else 0.0

    def get_state(self):
        if self.name == "torch-optim":
            kept = self.own()["params"]
            if all(value is None for value in kept.values()):
                return {"specs": {}, "state": []}
            specs = {name: (tuple(p.shape), str(p.dtype).removeprefix("torch.")) for name, p in self.params.items()}
            plain = lambda value: value.numpy().copy() if isinstance(value, torch.Tensor) else value  # noqa: E731
            state = [(i, {key: plain(value) for key, value in kept[name].items()}) for i, name in enumerate(kept)]
            return {"specs": specs, "state": state}
        found = {}
        for key, path in NAMES.get(self.name, {}).items():
            value = self.values(key) if key != "step" else self.steps()
            first, _, second = path.partition("/")
            if key == "max_exp_avg_sq" and isinstance(value, float):
                value = None
            found.setdefault(first, {}).update({second: value}) if second else found.update({first: value})
        if self.name in SHARED:
            ours, theirs = SHARED[self.name]
            found[theirs] = self.own()["shared"][ours]
        return found

    def steps(self):
        return max([kept["step"] for kept in self.own()["params"].values() if kept] or [0])

    def set_state(self, state):
        found = vectors_in(state)
        if found:
            self.kind = type(found[0])
            self.begin(to_tensors(found[0]))
        elif self.name == "torch-optim" and state.get("specs"):
            self.begin(
                {name: torch.zeros(shape, dtype=getattr(torch, of)) for name, (shape, of) in state["specs"].items()}
            )
        whole = self.optimizer.get_state()
        [[_, module]] = whole["modules"]
        if self.name in SHARED:
            ours, theirs = SHARED[self.name]
            found = state[theirs]
            module["shared"][ours] = found if isinstance(found, str) else sorted(found)
        module["params"] = self.of_params(state)
        self.optimizer.set_state(whole)

    def of_params(self, state):
        """The state of each param, in our form."""
        if self.name == "torch-optim":
            found = dict.fromkeys(self.params)
            tensor = lambda value: value if isinstance(value, (int, float)) else torch.as_tensor(value)  # noqa: E731
            for name, (_, values) in zip(state["specs"], state["state"]):
                found[name] = {key: tensor(value) for key, value in values.items()}
            return found
        values = {}
        for key, path in NAMES.get(self.name, {}).items():
            values[key] = state
            for part in path.split("/"):
                values[key] = values[key][part]
        if not vectors_in(values):
            return dict.fromkeys(self.params)
        found = {}
        for name, param in self.params.items():
            zeros = torch.zeros_like(param)
            own = {
                key: torch.as_tensor(value.coefs[name]) if isinstance(value, Vector) else zeros
                for key, value in values.items()
                if value is not None and key != "step"
            }
            own |= {"step": values["step"]} if "step" in values else {}
            own |= {"grad_sum": zeros, "step": 0} if self.name == "scaffold-client" else {}
            found[name] = own
        return found

    def reset(self):
        self.optimizer = self.build({"none": torch.zeros(1)})

    # ------------------------------------------------------------------ auxiliary variables

    def collect_aux_var(self):
        found = self.optimizer.collect_aux_var()
        return TheirAuxVar.of(found["scaffold"], self.kind) if found else None

    def process_aux_var(self, aux):
        if isinstance(aux, TheirAuxVar):
            for vector in (aux.state, aux.delta):
                if isinstance(vector, Vector):
                    self.kind = type(vector)
                    self.begin(to_tensors(vector))
            aux = aux.ours()
        self.optimizer.process_aux_var({"scaffold": aux})

    def _edit(self, **changes):
        self.set_state({**self.get_state(), **changes})

    uuid = property(lambda self: self.get_state()["uuid"])
    state = property(lambda self: self.get_state()["state"])
    sglob = property(lambda self: self.get_state()["sglob"])
    delta = property(lambda self: self.state - self.sglob, lambda self, value: self._edit(state=value))
    s_state = property(lambda self: self.get_state()["s_state"], lambda self, value: self._edit(s_state=value))
    clients = property(lambda self: set(self.get_state()["clients"]), lambda self, value: self._edit(clients=value))


def from_specs(group):
    return staticmethod(lambda name, config: _register.access_registered(name, group=group).from_config(config))


class OptiModule(Module):
    """declearn's base class is ours: subclasses are found by their names."""

    from_specs = from_specs("OptiModule")


class NoiseModule(OptiModule):
    """declearn's class of all modules with noise."""


class TorchOptiModule(Adapted, OptiModule):
    name = "torch-optim"

    def __init__(self, optim_cls, validate=True, **settings):
        super().__init__(optim_cls=optim_cls, **settings)  # ours always checks: there is nothing to ask


class OwnRegularizer(Regularizer):
    from_specs = from_specs("Regularizer")


def replace(namespaces, group, table, theirs):
    registry = _register.REGISTRIES[group]
    for name, cls in dict(registry.get_mapping()).items():
        if name in table and name != "torch-optim":
            bases = (Adapted, NoiseModule) if name == "gaussian-noise" else theirs
            base = Module if group == "OptiModule" else Regularizer
            adapted = type(cls.__name__, bases, {"name": name, "ours": base})
            registry._reg[name] = adapted
            for namespace in namespaces:
                if hasattr(namespace, cls.__name__):
                    setattr(namespace, cls.__name__, adapted)


# ---------------------------------------------------------------------- the optimizer


class Optimizer(Modular):
    """declearn's has no params before its first step: one param stands for them."""

    def __init__(self, lrate, w_decay=0.0, regularizers=(), modules=()):
        param = torch.nn.Parameter(torch.zeros(1))
        super().__init__([("none", param)], lrate=lrate, w_decay=w_decay, regularizers=regularizers, modules=modules)

    regularizers = property(lambda self: list(Modular.regularizers.fget(self)))
    modules = property(lambda self: list(Modular.modules.fget(self)))

    @classmethod
    def from_config(cls, config):
        made = Modular.from_config([("none", torch.nn.Parameter(torch.zeros(1)))], config)
        made.__class__ = cls
        return made


replace([their_modules], "OptiModule", MODULES, (Adapted, OptiModule))
replace([their_regularizers], "Regularizer", REGULARIZERS, (Adapted, OwnRegularizer))
their_modules.OptiModule = OptiModule
their_modules.ScaffoldAuxVar = TheirAuxVar
their_modules.NoiseModule = NoiseModule
their_regularizers.Regularizer = OwnRegularizer
declearn.model.torch.TorchOptiModule = _register.REGISTRIES["OptiModule"]._reg["torch-optim"] = TorchOptiModule
declearn.optimizer.Optimizer = Optimizer
add_serialization_support(Optimizer, "msgpack", lambda made: made.get_config(), Optimizer.from_config, "Ours")
