"""What others do to the torch optimizer inside. Oracle: a plain torch loop with the same gradients."""

import contextlib
import copy
import warnings

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.algorithm import Algorithm
from thinc_torchopt.core.algorithms.torch_classes import SGD, Muon, NAdam, RMSprop
from thinc_torchopt.core.errors import ConfigError, LearnRateIntegrityError, LearnRateWarning, ScheduleError

from ...conftest import needs_muon
from ...models import ready_pipeline
from ...peek import without_params
from ..rates.test_writer import POLICIES, RATES, Run, load, load_another_rate, new_dicts


@pytest.mark.parametrize("policy", POLICIES)
def test_built_algorithm_momentum_and_options_that_are_loaded_are_used(policy):
    run = Run(on_outside_write=policy)
    run.step()
    for optimizer in (run.inside, run.plain):
        state = copy.deepcopy(optimizer.state_dict())
        for found in state["state"].values():
            found["momentum_buffer"] *= 2
        if policy != "raise":
            state["param_groups"][0]["weight_decay"] = 0.5
        optimizer.load_state_dict(state)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.step()
        run.step()
    assert len(caught) == (policy != "raise") and run.agrees


@pytest.mark.parametrize("change", [load, load_another_rate, new_dicts])
def test_built_algorithm_params_may_come_and_go_after_groups_were_loaded(change):
    run = Run(on_outside_write="restore")
    run.step()
    change(run)
    expectation = pytest.warns(LearnRateWarning) if change is load_another_rate else contextlib.nullcontext()
    with expectation, without_params(run.optimizer):
        assert run.inside.param_groups == []
    assert [len(group["params"]) for group in run.inside.param_groups] == [4]


def test_built_algorithm_options_that_schedules_move_stay_in_range():
    run = Run()
    run.optimizer = TorchOptimizer(SGD(momentum=iter([0.5, -0.5])), 0.1)
    run.step()
    with pytest.raises(ScheduleError, match=r"'algorithm\.momentum' at step 1.*-0\.5"):
        run.step()


class NoVectors(torch.optim.SGD):
    def __init__(self, params, **options):
        params = list(params)
        if any(param.ndim == 1 for param in params):
            raise ValueError("No vectors.")
        super().__init__(params, **options)


def test_built_algorithm_names_the_param_that_is_refused():
    run = Run()
    run.optimizer = TorchOptimizer(Algorithm("picky", NoVectors, {}), 0.1)
    with pytest.raises(ConfigError, match=r"Can't train param 'pytorch/0/bias' .*'picky' refuses .*No vectors"):
        run.step()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("everywhere", [False, True])
def test_built_algorithm_hooks_do_not_get_around_the_controller(policy, everywhere):
    run = Run(on_outside_write=policy)
    run.step()

    def write(optimizer, *_):
        if optimizer is run.inside:
            optimizer.param_groups[0]["lr"] = 5.0

    register = register_optimizer_step_pre_hook if everywhere else run.inside.register_step_pre_hook
    hook = register(write)
    try:
        if policy == "raise":
            with pytest.raises(LearnRateIntegrityError, match=r"expected 0\.2, found 5"):
                run.step()
            return
        with pytest.warns(LearnRateWarning, match=r"expected 0\.2, found 5"):
            run.step(factor=1.0 if policy == "restore" else 5.0 / 0.2)
    finally:
        hook.remove()
    assert run.agrees and len(run.inside._optimizer_step_pre_hooks) == 0


def test_built_algorithm_adopted_rates_survive_growth_and_are_shown():
    run = Run(on_outside_write="adopt")
    run.step()
    run.inside.param_groups[0]["lr"] *= 5
    with pytest.warns(LearnRateWarning):
        run.step(factor=5.0)
    with without_params(run.optimizer):
        assert run.inside.param_groups == []
    shown = {info.learn_rate for info in run.optimizer.describe()}
    run.step(factor=5.0)
    assert run.optimizer.learn_rates == {"default": pytest.approx(RATES[2] * 5)}
    assert shown == {run.optimizer.learn_rates["default"]}


@pytest.mark.parametrize("algorithm", [pytest.param(Muon, marks=needs_muon), NAdam, RMSprop])
def test_built_algorithm_rates_that_no_param_can_take_are_named(algorithm):
    """torch says that a value overflows, and not which."""
    nlp, examples = ready_pipeline(["tagger"], shared=False)
    optimizer = TorchOptimizer(algorithm(), param_groups={"top": {"params": ["*/output_layer/W"], "learn_rate": 1e39}})
    optimizer.initialize(nlp)
    with pytest.raises(
        ConfigError,
        match=rf"Can't update params by torch\.{algorithm.__name__}\.v1: expected learning rates .*"
        r"found 1e\+39 in 'top'\. torch says: .*overflow.* Lower 'learn_rate'",
    ):
        nlp.update(examples, sgd=optimizer)
