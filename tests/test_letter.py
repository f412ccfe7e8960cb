"""The letter of the sources: each name, default, error and number that ../shared/sources give, and where it is proven.

A row says what a source says, and has a proof: a check in place; or the name of the test that proves it, or its end, if
a test may move to another file; or, where we differ on purpose, a page and its words that say so. A redesign does not
edit this file.
"""

import inspect
import re
from functools import cache
from pathlib import Path

import pytest
import spacy
import torch
from spacy.training import Example
from thinc.api import Optimizer, constant
from torch import nn
from torch.optim import SGD, Adam, RMSprop

from thinc_torchopt import LearnRateController, StateMapping, TorchOptimizer, layers, modular, preserve_optimizer_state
from thinc_torchopt import controller as public
from thinc_torchopt.controller import Metric, TrainerController
from thinc_torchopt.errors import ControllerError, LearnRateIntegrityError
from thinc_torchopt.layers import Dense, OnlineRNN, ParamDimTraces, eligibility_gradients
from thinc_torchopt.modular import Modular, list_optim_modules, list_optim_regularizers
from thinc_torchopt.registry import registry
from thinc_torchopt.torch_optimizers import AdamW

from .conftest import CONFIGS

TESTS, ROOT = Path(__file__).parent, CONFIGS.parent
SETUP = (ROOT / "setup.cfg").read_text(encoding="utf8")


def default(name, *functions):
    """The default of an argument, the same in all functions."""
    [found] = {inspect.signature(function).parameters[name].default for function in functions}
    return found


def takes(function, *names):
    """Whether these are the first arguments, in this order."""
    found = [name for name in inspect.signature(function).parameters if name != "self"]
    return found[: len(names)] == list(names)


def has(owner, *names):
    return all(callable(getattr(owner, name, None)) for name in names)


def raises(kind, call, *args, **settings):
    with pytest.raises(kind):
        call(*args, **settings)
    return True


# 000: rates, and state that grows


def controlled(policy, rate=1.0, *, mode="restore", **settings):
    optimizer = SGD([nn.Parameter(torch.ones(2))], lr=rate)
    controller = LearnRateController(on_outside_write=mode)
    controller.register_optimizer("primary", optimizer, policy, **settings)
    return controller, optimizer


def rates(policy, steps=1, **settings):
    """The rates of the first steps, from the base 1.0."""
    controller, _ = controlled(policy, **settings)
    return [controller.step(epoch=0, metrics={"loss": 1.0})["primary"] for _ in range(steps)]


def is_violation(factor, rate=1.0):
    """Whether it is an error that other code multiplies a rate."""
    controller, optimizer = controlled(rate, rate, mode="raise")
    controller.step()
    optimizer.param_groups[0]["lr"] *= factor
    return any(isinstance(error, LearnRateIntegrityError) for error in controller.verify())


def added_rate(**settings):
    """The first rate of params that were added where the rate is 2.0."""
    controller, optimizer = controlled(2.0)
    label = controller.add_params(optimizer, [nn.Parameter(torch.ones(1))], **settings)
    return pytest.approx(controller.step()[label])


def grown(cls=Adam, shape=(4, 3), kind=None, *, more=None, **options):
    """The state of a param of shape (2, 3) before and after, and the new optimizer."""
    old = nn.ParameterDict({"w": torch.ones(2, 3)})
    optimizer = cls(old.parameters(), lr=0.5, **options)
    old["w"].grad = torch.arange(1.0, 7.0).reshape(2, 3)
    optimizer.step()
    before = {key: value.clone() for key, value in optimizer.state[old["w"]].items()}
    new = nn.ParameterDict({"w": torch.ones(shape), **(more or {})})
    mappings = [StateMapping("w", "w", kind)] if kind else None
    made = preserve_optimizer_state(optimizer, new, old, mappings)
    assert type(made) is cls
    return before, made.state[new["w"]], made


def fills_with(factor, name, cls=Adam, **options):
    """Whether new rows have this part of the mean of the old ones, which stay."""
    before, after, _ = grown(cls, **options)
    mean = before[name].mean(0, keepdim=True).expand(2, 3)
    return torch.equal(after[name][:2], before[name]) and torch.allclose(after[name][2:], factor * mean)


def is_cut(*shape):
    before, after, _ = grown(shape=shape)
    return torch.equal(after["exp_avg"], before["exp_avg"][: shape[0], : shape[1]])


MODELS = "optimizer", "new_model", "old_model"
KINDS = {"identity": (2, 3), "expand": (3, 3), "contract": (1, 3), "reshape": (3, 2)}
BUDGETS = {"rate_step": 5.0, "integrity_check": 2.0, "state_preservation": 100.0, "adding_params": 20.0}
OF_000 = {
    "preserve_optimizer_state": lambda: takes(preserve_optimizer_state, *MODELS, "mappings"),
    "parameter_mappings = None": lambda: default("mappings", preserve_optimizer_state) is None,
    "params are mapped by name unless told": "test_preserve_optimizer_state_by_mappings",
    "Adam, SGD and RMSprop": lambda: all(grown(cls) for cls in (Adam, SGD, RMSprop)),
    "identity, expand, contract, reshape": lambda: all(grown(shape=shape, kind=kind) for kind, shape in KINDS.items()),
    "the old configuration": lambda: grown(betas=(0.8, 0.9))[2].param_groups[0]["betas"] == (0.8, 0.9),
    "identity: a copy": lambda: is_cut(2, 3),
    "expand, first moment: the mean": lambda: fills_with(1.0, "exp_avg"),
    "expand, second moment: the mean": lambda: fills_with(1.0, "exp_avg_sq"),
    "expand, momentum: a tenth of the mean": lambda: fills_with(0.1, "momentum_buffer", SGD, momentum=0.9),
    "contract: a slice": lambda: is_cut(1, 2),
    "reshape: interpolated": "interpolates_as_torch_does",
    "state is validated": "test_preserve_optimizer_state_refuses_a_damaged_state_and_changes_nothing",
    "the new optimizer is registered in place": "test_preserve_optimizer_state_gives_new_params_to_the_controller",
    "new params have a rate of their own": lambda: len(grown(more={"v": torch.ones(2)})[2].param_groups) == 2,
    "HOST_COSINE": lambda: rates("cosine", 5, total_steps=4)[2] == pytest.approx(0.5, abs=1e-5),
    "SEED_WARMUP": lambda: rates("warmup", 3, warmup_steps=2)[2] == 1.0,
    "MORPHO_ADAPTIVE, by metrics['loss']": lambda: rates("adaptive", 4, patience=1)[3] < 1.0,
    "FROZEN: 0": lambda: rates("frozen", 3) == [0.0] * 3,
    "FROZEN: no updates": "frozen_params_stay_as_they_are",
    "no warm-up": lambda: rates("cosine", total_steps=9) == [1.0],
    "warm-ups are counted in steps": "docs/learning-rates.md: warmup_steps",
    "min_lr = 1e-6": lambda: rates("cosine", 5, total_steps=4, warmup_type="linear")[4] == 1e-6,
    "max_lr = None": lambda: rates("cosine", total_steps=9, max_rate=None, min_rate=0.0) == [1.0],
    "warmup_factor = 0.1": lambda: rates("warmup", warmup_steps=5) == [pytest.approx(0.1)],
    "warmup_type = linear": lambda: rates("warmup", 2, warmup_steps=2)[1] == pytest.approx(0.55),
    "group_id is stable": "test_learn_rate_ids_are_stable",
    "register, unregister": lambda: has(LearnRateController, "register_optimizer", "unregister_optimizer"),
    "ValueError: registered": "refuses_what_can_not_be_registered",
    "step(epoch, metrics)": lambda: takes(LearnRateController.step, "epoch", "metrics"),
    "several optimizers": "several_optimizers_side_by_side",
    "enable_runtime_guards = True": lambda: default("enable_runtime_guards", LearnRateController) is True,
    "LRIntegrityError": lambda: is_violation(1 + 3e-6),
    "not within 1e-6 of the rate": lambda: not is_violation(1 + 5e-7),
    "not within 1e-12": lambda: not is_violation(1.5, 1e-12) and is_violation(4.0, 1e-12),
    "no other writes": "restores_what_user_code_wrote",
    "no scheduler.step() of others": "torch_schedulers_are_found_out",
    "failure_threshold = 3": lambda: LearnRateController().breaker.failures == 3,
    "conservative mode in place of a crash": "breaker_opens_after_three_failures",
    "1000 snapshots": lambda: LearnRateController().history.maxlen == 1000,
    "epoch, step, group_lrs, checksums, timestamp": "history_keeps_a_thousand_steps",
    "budgets of 5, 2, 100 and 20 ms": lambda: LearnRateController().guards.budgets == BUDGETS,
    "budgets and the breaker": "tell_the_breaker_what_repeats",
    "added params begin at a hundredth of a tenth": lambda: added_rate() == 2.0 * 0.1 * 0.01,
    "added params have a tenth": lambda: added_rate(warmup_steps=0) == 0.2,
    "added params: MORPHO_ADAPTIVE": lambda: added_rate(policy="adaptive") == 2.0 * 0.1 * 0.01,
}

# 001: torch optimizers in thinc

RISE = {"@schedules": "warmup_linear.v1", "initial_rate": 0.5, "warmup_steps": 5, "total_steps": 10}
CONFIG = {
    "@optimizers": "thinc-torchopt.TorchOptimizer.v1",
    "algorithm": {"@torch_optimizers": "torch.AdamW.v1", "betas": [0.8, 0.9], "weight_decay": RISE},
    "learn_rate": 0.5,
    "per_param_lr": {"tagger/output_layer/*": RISE},
}


@cache
def trained():
    """An optimizer that has trained one of three components for three steps, and the groups of its torch optimizer."""
    optimizer = registry.resolve({"optimizer": CONFIG})["optimizer"]
    nlp = spacy.blank("en")
    for name in ("tagger", "senter", "sentencizer"):
        nlp.add_pipe(name)
    examples = [Example.from_dict(nlp.make_doc("a b"), {"tags": ["A", "B"], "sent_starts": [True, False]})]
    nlp.initialize(lambda: examples, sgd=optimizer)
    optimizer.initialize(nlp, exclude=["senter"])
    steps = []
    for _ in range(3):
        nlp.update(examples, sgd=optimizer, exclude=["senter"])
        steps.append([dict(group) for group in optimizer.torch_optimizers["algorithm"].param_groups])
        optimizer.step_schedules()
    return optimizer, steps


def in_steps(option):
    return [sorted({round(float(group[option]), 6) for group in step}) for step in trained()[1]]


OF_001 = {
    "a registry of torch optimizers": lambda: callable(registry.torch_optimizers.get("torch.AdamW.v1")),
    "the semantics of torch": lambda: tuple(trained()[1][0][0]["betas"]) == (0.8, 0.9),
    "a thinc optimizer": lambda: issubclass(TorchOptimizer, Optimizer),
    "initialize, set_grad, step": lambda: has(TorchOptimizer, "initialize", "set_grad", "step"),
    "initialize(nlp, exclude)": lambda: takes(TorchOptimizer.initialize, "nlp", "exclude"),
    "trainable pipes alone": lambda: {name.split("/")[0] for name in trained()[0].params} == {"tagger"},
    "Model.finish_update calls set_grad: thinc, torch, shims": "sees_arrays_torch_params_and_shims",
    "torch params as groups with rates of their own": "test_in_spacy_equals_a_bare_torch_loop",
    "views without copies": "step_in_place_without_copies",
    "zero_grad as in torch and thinc": "let_go_of_gradients_as_thinc_and_torch_do",
    "a callback receives the updated param": "params_from_a_shim_may_have_any_strides",
    "shims with a store of their own": "write_back_to_shims_with_a_store_of_their_own",
    "one buffer for the gradients of a shim": "reuse_one_buffer_for_a_shim",
    "gradient scaling": "overflow_in_one_pass_skips_the_module",
    "per_param_lr with nested @schedules": lambda: in_steps("lr") == [[0.0, 0.5], [0.1, 0.5], [0.2, 0.5]],
    "schedules for any option": lambda: in_steps("weight_decay") == [[0.0], [0.1], [0.2]],
    "a param of a component": lambda: "tagger/output_layer/W" in trained()[0].params,
    "params that are added in a run": "take_in_params_that_appear_later",
    "thinc's schedules": lambda: TorchOptimizer(AdamW(), constant(0.1)).learn_rate == 0.1,
    "a schedule moves once a step": "share_one_schedule_that_moves_once_a_step",
    "numpy 1.24": lambda: "numpy>=1.24.0\n" in SETUP,
    "cupy 12.0": lambda: "cupy-cuda12x>=12.0.0\n" in SETUP,
}

# 002: declearn's optimizer


def built(**settings):
    model = nn.Linear(2, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    return model, Modular(model.named_parameters(), **{"lrate": 0.5, **settings})


def update(**settings):
    """The update of weights of 2.0 by a gradient of 3.0, which `apply_gradients` makes."""
    model, optimizer = built(**settings)
    found = optimizer.compute_updates_from_gradients(model, {"weight": torch.full((1, 2), 3.0)})["weight"]
    optimizer.apply_gradients(model, {"weight": torch.full((1, 2), 3.0)})
    assert torch.equal(model.weight, 2.0 + found)
    return float(found[0, 0])


def of_config(**changes):
    """From declearn's config. None: without the key."""
    config = {"lrate": 0.1, "w_decay": 0.2, "regularizers": [("ridge", {"alpha": 0.1})], "modules": [("adam", {})]}
    config = {key: value for key, value in {**config, **changes}.items() if value is not None}
    return Modular.from_config(nn.Linear(2, 1).named_parameters(), config)


RIDGE, CLIP = ("ridge", {"alpha": 0.5}), ("l2-clipping", {"max_norm": 1.0})
API = "apply_gradients collect_aux_var compute_updates_from_gradients process_aux_var run_train_step start_round"
OF_002 = {
    "lrate is required": lambda: raises(TypeError, Modular, nn.Linear(2, 1).parameters()),
    "attributes": lambda: all(hasattr(of_config(), name) for name in ("lrate", "w_decay", "modules", "regularizers")),
    "w_decay = 0.0": lambda: built()[1].w_decay == 0.0,
    "regularizers = None, modules = None": lambda: update(regularizers=None, modules=None) == -1.5,
    "updates = -lrate * gradients": lambda: update() == -1.5,
    "w_decay is not scaled by lrate": lambda: update(w_decay=0.25) == -(0.5 * 3 + 0.25 * 2),
    "regularizers": lambda: update(regularizers=[RIDGE]) == -0.5 * (3 + 2 * 0.5 * 2),
    "regularizers come first": lambda: update(regularizers=[RIDGE], modules=[CLIP]) == pytest.approx(-0.5 / 2**0.5),
    "in their order": "test_declearn_weights_after_each_step",
    "the methods": lambda: has(Modular, *API.split()),
    "config and state": lambda: has(Modular, "get_config", "from_config", "get_state", "set_state"),
    "(model, gradients)": lambda: takes(Modular.compute_updates_from_gradients, "model", "gradients"),
    "run_train_step": lambda: takes(Modular.run_train_step, "model", "batch", "sclip"),
    "sclip = None": lambda: default("sclip", Modular.run_train_step) is None,
    "sclip clips each sample": "train_step_clips_the_gradient_of_each_sample",
    "by one norm": "docs/modular.md: declearn clips each tensor by its own",
    "specs: an instance": lambda: built(modules=[list_optim_modules()["adam"]()])[1].modules[0].name == "adam",
    "specs: a name": lambda: built(modules=["adam"])[1].modules[0].name == "adam",
    "specs: a pair": lambda: built(modules=[("adam", {"beta_1": 0.5})])[1].modules[0].name == "adam",
    "TypeError: another spec": lambda: raises(TypeError, built, modules=[3]),
    "list_optim_...": lambda: "adam" in list_optim_modules() and "fedprox" in list_optim_regularizers(),
    "their names and defaults": "test_declearn_names_and_defaults",
    "config and state come back": "config_rebuilds_and_state_resumes",
    "from_config": lambda: of_config().lrate == 0.1,
    "from_config, KeyError: a key lacks": lambda: raises(KeyError, of_config, lrate=None),
    "from_config, KeyError: an unused key": lambda: raises(KeyError, of_config, x=1),
    "set_state, KeyError: no modules": lambda: raises(KeyError, of_config().set_state, {}),
    "set_state, KeyError: other modules": lambda: raises(KeyError, of_config().set_state, {"modules": []}),
    "set_state, KeyError: nothing has changed": "test_declearn_set_state_errors",
    "collect_aux_var, by aux_name or name": "test_declearn_scaffold",
    "collect_aux_var: of those that have some": lambda: of_config().collect_aux_var() == {},
    "AuxVar": lambda: issubclass(modular.ScaffoldAuxVar, modular.AuxVar) and has(modular, "aggregate"),
    "process_aux_var, KeyError": lambda: raises(KeyError, of_config().process_aux_var, {"x": 1}),
    "start_round": "start_round_reaches_each_part",
    "start_round: FedProx": "l2_sp_holds_on_to_the_start_and_fedprox_to_the_round",
}

# 003: D-RTRL


WEIGHTS = {"W.weight": torch.full((5, 3), 0.1), "W.bias": torch.zeros(3)}
ONES = torch.ones(4, 2, 2), torch.ones(4, 2, 3)
BY_TRACES = eligibility_gradients, ParamDimTraces


def gradient(**settings):
    return eligibility_gradients("rnn", WEIGHTS, *ONES, **settings)[0]["W.weight"]


def traces():
    return ParamDimTraces(layers.CELLS["rnn"](), WEIGHTS, 2)


OF_003 = {
    "vjp_method = single-step": lambda: default("vjp_method", eligibility_gradients, OnlineRNN) == "single-step",
    "vjp_method = multi-step": "gradients_windows",
    "another vjp_method": lambda: raises(ValueError, gradient, vjp_method="multi"),
    "fast_solve = True": lambda: default("fast_solve", *BY_TRACES, layers.OnlineTrainer) is True,
    "fast_solve = False has the same numbers": lambda: torch.allclose(gradient(), gradient(fast_solve=False)),
    "normalize_matrix_spectrum = False": lambda: default("normalize_matrix_spectrum", *BY_TRACES, OnlineRNN) is False,
    "D / max(|eigenvalue|, 1), v / max(|v|, 1)": "test_gradients_normalized",
    "the largest value of a sample": "docs/online-rnn.md: divides by the largest value of each sample",
    "eps = D eps + Df x; grad = sum of dL/dh eps": "test_gradients_naive_loop",
    "num_state > 1": "traces_after_each_step",
    "ValueError: a relation has been added": "relations_have_different_names",
    "has_bias": lambda: [*Dense("W", has_bias=False).weight_names] == ["W.weight"],
    "without a bias": "without_biases_are_those_with_zeros",
    "conv, sparse, LoRA: not here": "docs/online-rnn.md: Convolutions, sparse and low-rank relations.",
    "O(B theta)": lambda: traces().trace_of("W.weight").shape == (2, 5, 3, 1),
    "ValueError: no such trace": lambda: raises(ValueError, traces().trace_of, "nope"),
    "states of traces": lambda: has(ParamDimTraces, "init", "reset", "trace_of"),
    "the sum over samples": "add_up_over_samples_in_any_order",
    "D_RTRL": lambda: default("learning", OnlineRNN) == "d-rtrl",
}

# 004: the trainer controller


def fires(rule, action="hfcontrols.should_training_stop", event="on_log", name="loss"):
    rules = [{"name": "loss-controller", "triggers": [event], "rule": rule, "operations": [action]}]
    metrics = [{"name": name, "class": "Loss", "arguments": {}}]
    controller = TrainerController({"controller-metrics": metrics, "operations": [], "controllers": rules})
    return len(controller.on_event("on_log", step=0, log_history=[{"loss": 0.5, "epoch": 0.0, "step": 0}])) == 1


def refused(rule, **settings):
    return raises(ControllerError, fires, rule, **settings)


ACTIONS = "training_stop", "epoch_stop", "save", "evaluate", "log"
HELD = "loss < 1.0"
OF_004 = {
    "keys of a definition; - in names": lambda: fires(HELD),
    "a rule that is false": lambda: not fires("loss < 0.1"),
    "- in names of metrics": lambda: fires("my_loss.loss < 1.0", name="my-loss"),
    "hfcontrols": lambda: all(fires(HELD, action=f"hfcontrols.should_{action}") for action in ACTIONS),
    "on_ begins valid events": lambda: refused(HELD, event="log") and refused(HELD, event="on_nothing"),
    "MetricHandler": lambda: has(Metric, "validate", "compute") and inspect.isabstract(Metric),
    "compute(event_name, **kwargs)": lambda: takes(Metric.compute, "event_name", "kwargs"),
    "metrics of one's own": "test_own_metrics",
    "should_ begins actions": lambda: refused(HELD, action="hfcontrols.validate"),
    "Operation: those of one's own": "test_own_operations",
    "the framework's firings and errors": "test_oracle_same_firings_and_errors",
    "compound types": lambda: fires("[1, 2] + [3] == [1, 2, 3] and {'a': {'b': 42}}['a']['b'] == 42"),
    "array multiplication": lambda: fires("['hello'] * 10 == ['hello'] * 10"),
    "array multiplication is limited": lambda: refused("len('a' * 4000001) > 1"),
    "comprehensions": lambda: fires("[x * 2 for x in [1, 2]] == [2, 4]"),
    "comprehensions are limited": lambda: refused("len([x for x in 'a' * 20000]) > 1"),
    "exponentiation": lambda: fires("9 ** 9 == 387420489"),
    "exponentiation is limited": lambda: refused("9 ** 9 ** 9 ** 9 > 1"),
    "shifts are limited": lambda: refused("1 << 4000001 > 1"),
    "the limit of 4000000": lambda: fires("4000000 ** 1 > 1") and refused("4000001 ** 1 > 1"),
    "no __class__": lambda: refused("loss.__class__ == 1"),
    "no _foo, no func_": lambda: refused("loss._foo == 1") and refused("loss.func_x == 1"),
    "no lambdas": lambda: refused("(lambda: 1)() == 1"),
    "abs, float, int, len, str, sqrt": lambda: fires("abs(float('-1')) == int(1.5) and len(str(10)) == sqrt(4)"),
    "rand, randint": lambda: fires("0 <= rand() < 1 and randint(3) in [0, 1, 2]"),
    "no other builtins": lambda: refused("open('x') == 1") and refused("eval('1') == 1"),
    "foo.bar": lambda: fires("loss.loss < 1.0"),
    "register_..._handlers": lambda: has(public, "register_metric_handlers", "register_operation_handlers"),
    "the names of Control": lambda: all(hasattr(public.Control(), f"should_{action}") for action in ACTIONS),
    "a rule gives a bool": lambda: refused("loss['loss']"),
}

SOURCES = enumerate((OF_000, OF_001, OF_002, OF_003, OF_004))
ROWS = [pytest.param(proof, id=f"00{i}: {says}") for i, rows in SOURCES for says, proof in rows.items()]


@cache
def names_of_tests():
    texts = [path.read_text(encoding="utf8") for path in TESTS.rglob("test_*.py")]
    return {name for text in texts for name in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE)}


@pytest.mark.parametrize("proof", ROWS)
def test_letter(proof):
    if callable(proof):
        assert proof()
        return
    page, _, words = proof.partition(": ")
    if words:
        text = " ".join((ROOT / page).read_text(encoding="utf8").split())
        assert words in text, f"{page} says where we differ: expected '{words}'."
    else:
        found = [name for name in names_of_tests() if f"_{name}".endswith(f"_{proof}")]
        assert found, f"Expected a test with the name '{proof}', or this at its end, which proves this row, found none."
