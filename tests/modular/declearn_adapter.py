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
from declearn.optimizer import schedulers as their_schedulers
from declearn.utils import _register
from declearn.utils.serialize import add_serialization_support

from thinc_torchopt.modular import MODULES, REGULARIZERS, Modular, Module, Regularizer, ScaffoldAuxVar
from thinc_torchopt.modular.declearn_state import NAMES
from thinc_torchopt.modular.schedulers import SCHEDULERS, At, RoundSchedule
from thinc_torchopt.modular.specs import build_part

NO_RATES = {"lrate": {"steps": 0, "rounds": -1}, "w_decay": {"steps": 0, "rounds": -1}}


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
        if self.name == "scaffold-client":
            found["uuid"] = self.own()["shared"]["client"]
        if self.name == "scaffold-server":
            found["clients"] = list(self.own()["shared"]["clients"])
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
        self.optimizer.set_state({**NO_RATES, "modules": [(self.name, state)]})

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


# ---------------------------------------------------------------------- schedulers


class Scheduler:
    """declearn's base class, over our schedules. A subclass with a name is one of ours too."""

    from_specs = from_specs("Scheduler")
    name = ""

    def __init__(self, *args, **settings):
        names = [key for key in inspect.signature(SCHEDULERS[self.name]).parameters if key != "at"]
        given = {**dict(zip(names, args)), **settings}
        base = given["base"]
        given["base"] = (base.name, base.get_config()) if isinstance(base, Scheduler) else base
        if hasattr(type(self), "own_value"):
            self.base, self.settings = base, given
        else:
            self.schedule = RoundSchedule("lrate", (self.name, given))

    def __init_subclass__(cls, **kwargs):
        if "compute_value" in vars(cls):
            cls.own_value = cls.compute_value

            def value(at, *, base: float):
                return cls(base=base).compute_value(at.step, at.round)

            SCHEDULERS[cls.name] = value

    def compute_value(self, step, round_):
        counts = self.schedule.source
        return self.schedule.curve(At(step, round_, counts.warmup_rounds, counts.warmup_steps))

    steps = property(lambda self: self.schedule.position)
    rounds = property(lambda self: self.schedule.source.begun - 1)

    def get_next_rate(self):
        value = self.schedule.value
        self.schedule.step()
        return value

    def on_round_start(self):
        self.schedule.start_round()

    def get_config(self):
        return self.settings if hasattr(type(self), "own_value") else self.schedule.curve.get_config()[1]

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def get_state(self):
        return self.schedule.state_dict()

    def set_state(self, state):
        self.schedule.load_state_dict(state)


# ---------------------------------------------------------------------- the optimizer


class Optimizer(Modular):
    """declearn's has no params before its first step: one param stands for them."""

    def __init__(self, lrate, w_decay=0.0, regularizers=(), modules=()):
        rates = [(rate.name, rate.get_config()) if isinstance(rate, Scheduler) else rate for rate in (lrate, w_decay)]
        param = torch.nn.Parameter(torch.zeros(1))
        super().__init__(
            [("none", param)], lrate=rates[0], w_decay=rates[1], regularizers=regularizers, modules=modules
        )

    regularizers = property(lambda self: list(Modular.regularizers.fget(self)))
    modules = property(lambda self: list(Modular.modules.fget(self)))

    @classmethod
    def from_config(cls, config):
        made = Modular.from_config([("none", torch.nn.Parameter(torch.zeros(1)))], config)
        made.__class__ = cls
        return made


replace([their_modules], "OptiModule", MODULES, (Adapted, OptiModule))
replace([their_regularizers], "Regularizer", REGULARIZERS, (Adapted, OwnRegularizer))
replace([their_schedulers], "Scheduler", SCHEDULERS, (Scheduler,))
their_modules.OptiModule = OptiModule
their_modules.ScaffoldAuxVar = TheirAuxVar
their_modules.NoiseModule = NoiseModule
their_regularizers.Regularizer = OwnRegularizer
their_schedulers.Scheduler = Scheduler
declearn.model.torch.TorchOptiModule = _register.REGISTRIES["OptiModule"]._reg["torch-optim"] = TorchOptiModule
declearn.optimizer.Optimizer = Optimizer
add_serialization_support(Optimizer, "msgpack", lambda made: made.get_config(), Optimizer.from_config, "Ours")
