"""Modular under operations in any order, against formulas as a beginner would write them down, param after param."""

import copy
import json

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from thinc_torchopt.addons.modular.optimizer import Modular

# float64: what is left is the order of operations, over some 40 steps.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
NAMES = ["head", "table", "tied", "view"]
FIRST = {"lr": 0.05, "weight_decay": 0.1, "fedprox_alpha": 0.3, "momentum_beta": 0.5, "adam_beta_1": 0.9}
FIRST |= {"adam_eps": 1e-3, "lookahead_alpha": 0.5}
FIRST |= {f"{label}_enabled": True for label in ("fedprox", "momentum", "l2_global_clipping", "adam", "lookahead")}
VALUES = {
    "lr": [0.0, 0.01, 0.1],
    "weight_decay": [0.0, 0.2],
    "fedprox_alpha": [0.0, 0.5],
    "momentum_beta": [0.0, 0.9],
    "adam_beta_1": [0.5, 0.8],
    "adam_eps": [1e-8, 1e-2],
    "lookahead_alpha": [0.0, 1.0],
    **{key: [True, False] for key in FIRST if key.endswith("enabled")},
}
MOST, K = 1.0, 3
WITHOUT_LOOKAHEAD = ("head",)  # by its patterns


def first_values():
    generator = torch.Generator().manual_seed(0)
    found = {"head": (3, 2), "table": (2, 4), "tied": (5,), "view": (4, 3)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in found.items()}


def as_param(name, value):
    """In a memory order of its own."""
    if name == "table":
        return torch.nn.Parameter(value.t().clone().t())
    if name == "view":
        return torch.nn.Parameter(torch.zeros(len(value), 5, dtype=value.dtype)[:, 1:4].copy_(value))
    return torch.nn.Parameter(value.clone())


class Naive:
    """The formulas of docs/modular.md. One param; what is None has not begun."""

    def __init__(self, name, value):
        self.name, self.value = name, value
        self.options = dict(FIRST)
        self.reference, self.new_round = None, False
        self.velocity, self.mean, self.square, self.t = None, None, None, 0
        self.slow, self.looks = None, 0
        self.trains = True

    def before_clipping(self, grad):
        o = self.options
        if o["fedprox_enabled"]:
            if self.reference is None or self.new_round:
                self.reference, self.new_round = self.value.clone(), False
            grad = grad + o["fedprox_alpha"] * (self.value - self.reference)
        if o["momentum_enabled"]:
            self.velocity = o["momentum_beta"] * (0.0 if self.velocity is None else self.velocity) + grad
            grad = self.velocity
        return grad

    def after_clipping(self, grad):
        o = self.options
        looks = o["lookahead_enabled"] and self.name not in WITHOUT_LOOKAHEAD
        if looks and self.slow is None:
            self.slow = self.value.clone()
        if o["adam_enabled"]:
            self.t += 1
            b1, b2 = o["adam_beta_1"], 0.99
            self.mean = b1 * (0.0 if self.mean is None else self.mean) + (1 - b1) * grad
            self.square = b2 * (0.0 if self.square is None else self.square) + (1 - b2) * grad**2
            grad = (self.mean / (1 - b1**self.t)) / ((self.square / (1 - b2**self.t)).sqrt() + o["adam_eps"])
        self.value = self.value - o["lr"] * grad - o["lr"] * o["weight_decay"] * self.value
        if looks:
            self.looks += 1
            if self.looks % K == 0:
                self.slow = self.slow + o["lookahead_alpha"] * (self.value - self.slow)
                self.value = self.slow.clone()

    def start_round(self):
        """round_reset is set for Adam. A param that has not begun has nothing to begin anew."""
        self.new_round = self.reference is not None
        if self.mean is not None:
            self.mean, self.square, self.t = None, None, 0


def naive_step(params, grads):
    grads = {name: params[name].before_clipping(grad) for name, grad in grads.items()}
    clipped = [name for name in grads if params[name].options["l2_global_clipping_enabled"]]
    norm = sum(float((grads[name] ** 2).sum()) for name in clipped) ** 0.5
    for name, grad in grads.items():
        params[name].after_clipping(grad * min(1.0, MOST / norm) if name in clipped and norm else grad)


class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        values = first_values()
        self.naive = {name: Naive(name, value) for name, value in values.items()}
        self.build({name: as_param(name, value) for name, value in values.items()})
        self.saved = None

    def build(self, params):
        """Each param in a group of its own, so that each has options of its own."""
        self.params = params
        self.optimizer = Modular(
            [{"params": [pair]} for pair in params.items()],
            lr=FIRST["lr"],
            weight_decay=FIRST["weight_decay"],
            regularizers=[("fedprox", {"alpha": FIRST["fedprox_alpha"]})],
            modules=[
                ("momentum", {"beta": FIRST["momentum_beta"]}),
                ("l2-global-clipping", {"max_norm": MOST}),
                ("adam", {"eps": FIRST["adam_eps"], "round_reset": True}),
                ("lookahead", {"k": K, "params": [name for name in NAMES if name not in WITHOUT_LOOKAHEAD]}),
            ],
        )
        for group, own in zip(self.optimizer.param_groups, self.naive.values()):
            group.update(own.options)

    # ------------------------------------------------------------------ operations

    @rule(
        seed=st.integers(0, 10**6),
        left_out=st.sets(st.sampled_from(NAMES)),
        how=st.sampled_from(["step", "closure", "apply", "updates"]),
        size=st.sampled_from([0.0, 0.1, 10.0]),
    )
    def step(self, seed, left_out, how, size):
        generator = torch.Generator().manual_seed(seed)
        grads = {
            name: size * torch.randn(param.shape, generator=generator, dtype=param.dtype)
            for name, param in self.params.items()
            if name not in left_out and self.naive[name].trains
        }
        for name, param in self.params.items():
            param.grad = grads.get(name)
        given = {name: grads.get(name, torch.zeros_like(param)) for name, param in self.params.items()}
        if how in ("apply", "updates") and len(grads) == len(given):
            self.let_apply(given, how)
        else:
            self.optimizer.step((lambda: 1.0) if how == "closure" else None)
        naive_step(self.naive, grads)

    def let_apply(self, grads, how):
        if how == "apply":
            self.optimizer.apply_gradients(grads)
            return
        with torch.no_grad():
            for name, update in self.optimizer.compute_updates_from_gradients(list(grads.values())).items():
                self.params[name].add_(update)

    @rule()
    def start_round(self):
        self.optimizer.start_round()
        for own in self.naive.values():
            own.start_round()

    @rule(name=st.sampled_from(NAMES), option=st.sampled_from(sorted(VALUES)), data=st.data())
    def change_option(self, name, option, data):
        value = data.draw(st.sampled_from(VALUES[option]))
        self.naive[name].options[option] = value
        self.optimizer.param_groups[NAMES.index(name)][option] = value

    @rule(name=st.sampled_from(NAMES))
    def freeze_or_unfreeze(self, name):
        """As `requires_grad_` does it: there are no gradients, and the state waits."""
        self.naive[name].trains = not self.naive[name].trains

    @rule(name=st.sampled_from(NAMES))
    def set_weights(self, name):
        """What comes from a server: other values in the same param."""
        with torch.no_grad():
            self.params[name].mul_(0.5)
        self.naive[name].value = self.naive[name].value * 0.5

    @rule(how=st.sampled_from(["config", "state_dict", "copy"]))
    def go_on_elsewhere(self, how):
        """In another process, or as a copy."""
        old, groups = self.optimizer, [dict(group) for group in self.optimizer.param_groups]
        if how == "copy":
            self.optimizer, self.params = copy.deepcopy((old, self.params))
            return
        params = {name: as_param(name, param.detach()) for name, param in self.params.items()}
        if how == "config":
            self.params, config = params, json.loads(json.dumps(old.get_config()))
            self.optimizer = Modular.from_config([{"params": [pair]} for pair in params.items()], config)
            for group, before in zip(self.optimizer.param_groups, groups):
                group.update({key: before[key] for key in FIRST})
            self.optimizer.set_state(old.get_state())
        else:
            self.build(params)
            self.optimizer.load_state_dict(copy.deepcopy(old.state_dict()))

    @rule()
    def save(self):
        weights = {name: param.detach().clone() for name, param in self.params.items()}
        self.saved = self.optimizer.get_state(), weights, copy.deepcopy(self.naive)

    @rule()
    @precondition(lambda self: self.saved is not None)
    def roll_back(self):
        state, weights, naive = self.saved
        self.optimizer.set_state(state)
        with torch.no_grad():
            for name, value in weights.items():
                self.params[name].copy_(value)
        now = {name: (own.options, own.trains) for name, own in self.naive.items()}
        self.naive = copy.deepcopy(naive)
        for name, own in self.naive.items():
            own.options, own.trains = now[name]

    @rule(name=st.sampled_from(NAMES), what=st.sampled_from(["gone", "shape", "nan"]))
    def try_a_damaged_state(self, name, what):
        state = self.optimizer.get_state()
        kept = state["modules"][2][1]["params"]
        if what == "gone" or kept[name] is None:
            del kept[name]
        else:
            kept[name]["exp_avg"] = torch.ones(7) if what == "shape" else kept[name]["exp_avg"] * torch.nan
        try:
            self.optimizer.set_state(state)
        except ValueError:
            return
        raise AssertionError("it was taken")

    # ------------------------------------------------------------------ what must hold

    @invariant()
    def all_is_as_the_formulas_say(self):
        if not hasattr(self, "naive"):
            return
        state = self.optimizer.get_state()
        parts = {name: own["params"] for name, own in [*state["regularizers"], *state["modules"]]}
        for name, own in self.naive.items():
            torch.testing.assert_close(self.params[name].detach(), own.value, **CLOSE)
            kept = {part: values.get(name) or {} for part, values in parts.items()}
            pairs = [
                (kept["fedprox"].get("reference"), own.reference if not own.new_round else None),
                (kept["momentum"].get("momentum_buffer"), own.velocity),
                (kept["adam"].get("exp_avg"), own.mean),
                (kept["adam"].get("exp_avg_sq"), own.square),
                (kept["lookahead"].get("slow"), own.slow),
            ]
            for found, expected in pairs:
                if expected is not None:
                    torch.testing.assert_close(found, expected, **CLOSE)
            assert (kept["adam"].get("step", 0), kept["lookahead"].get("step", 0)) == (own.t, own.looks)


def test_stateful_operations_in_any_order_agree_with_the_formulas():
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=12, stateful_step_count=30, deadline=None, suppress_health_check=checks)
    )
