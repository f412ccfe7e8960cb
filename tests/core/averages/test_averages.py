"""Oracles: thinc's averages, torch's AveragedModel, torch-ema's formula, and a loop in float64.

What `use_params` with averages does to a pipeline is tested in test_hooks.py.
"""

import copy
import json
import math

import numpy
import pytest
import spacy
import thinc.api
import torch
from confection import Config
from hypothesis import example, given
from hypothesis import strategies as st
from thinc.api import PyTorchWrapper, chain, require_cpu, require_gpu
from thinc.util import to_numpy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from thinc_torchopt import SGD, TorchOptimizer
from thinc_torchopt.core.algorithms import torch_classes as torch_optimizers
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.averages.averages import Averages
from thinc_torchopt.core.averages.settings import EMA, SWA, THINC, AverageSettings
from thinc_torchopt.core.errors import ScheduleError, StateError
from thinc_torchopt.core.params.names import shim_paths
from thinc_torchopt.core.params.param import Param
from thinc_torchopt.core.schedules.schedules import Schedules
from thinc_torchopt.core.state.trees import flatten

from ...conftest import CONFIGS, needs_gpu
from ...models import backprop, mixed_model, params_of, ready_pipeline, same, thinc_model, toy_pipeline
from ...peek import average_settings_in, averages_in, params_in, schedules_in, take_average_settings


def train(model, optimizer, steps=10, seed=0):
    rng = numpy.random.default_rng(seed)
    for _ in range(steps):
        backprop(model, rng)
        model.finish_update(optimizer)
        yield


def train_fully(*args, **kwargs):
    for _ in train(*args, **kwargs):
        pass


class WithBuffers(torch.nn.Module):
    """Buffers of many kinds, a frozen param and tied ones."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(5)
        self.first, self.second = torch.nn.Linear(5, 5), torch.nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.frozen = torch.nn.Parameter(torch.ones(5), requires_grad=False)
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, X):
        if self.training:
            self.scratch = self.scratch + 1
        return self.second(self.first(self.norm(X) * self.frozen))[:, :3]


def feed(averages, param, values):
    """Show the values of a param after each of its updates."""
    for value in values:
        averages.before_update([param])
        param.tensor.copy_(torch.as_tensor(value))
        param.steps += 1
        averages.update([param])


def new_param(value=0.0, *, dtype=torch.float32, name="a/W"):
    tensor = torch.full((2, 3), value, dtype=dtype)
    param = Param(name, (name, "W"), tensor.numpy() if dtype != torch.bfloat16 else tensor, tensor)
    param.group = "not frozen"
    return param


# ---------------------------------------------------------------------- formulas


@pytest.mark.device
def test_averages_equal_thincs():
    ours, theirs = thinc_model(), thinc_model()
    theirs.from_bytes(ours.to_bytes())
    optimizer, reference = SGD(0.01), thinc.api.SGD(0.01)
    for _ in zip(train(ours, optimizer), train(theirs, reference)):
        pass
    averages = [optimizer.averages[node.id, name] for node in ours.walk() for name in node.param_names]
    expected = [reference.averages[node.id, name] for node in theirs.walk() for name in node.param_names]
    for a, b in zip(averages, expected):
        # float32: two ways to write one linear interpolation, rounded ten times.
        numpy.testing.assert_allclose(to_numpy(a), to_numpy(b), rtol=1e-6, atol=1e-7)


def test_averages_default_is_thincs():
    ema, ops = numpy.zeros(1, dtype="f8"), thinc.api.NumpyOps()
    for t in (1, 2, 100, 10**5, 10**6):
        ema[:] = 0
        ops.update_averages(ema, numpy.ones(1), t)
        assert ema[0] == pytest.approx(THINC.weight(t), abs=1e-12)  # float64
    assert EMA() == THINC == Averages().settings


AVERAGED_MODELS = {
    "ema": (
        lambda start, every: EMA(0.9, warmup="torch", start_step=start, every=every),
        {"multi_avg_fn": get_ema_multi_avg_fn(0.9)},
    ),
    "swa": (lambda start, every: SWA(start, every=every), {}),
}


@pytest.mark.parametrize(("start", "every"), [(0, 1), (5, 1), (4, 3)])
@pytest.mark.parametrize("kind", AVERAGED_MODELS)
def test_averages_equal_torchs_averaged_model_with_its_buffers(kind, start, every):
    settings, options = AVERAGED_MODELS[kind]
    module = WithBuffers()
    del module._buffers["mask"]  # of which AveragedModel makes NaN
    model, optimizer = PyTorchWrapper(module), TorchOptimizer(AdamW(), 0.01, averages=settings(start, every))
    oracle = AveragedModel(module, use_buffers=True, **options)
    for step, _ in enumerate(train(model, optimizer, 17)):
        if step >= start and (step - start) % every == 0:
            oracle.update_parameters(module)
    with model.use_params(optimizer.averages):
        found = {name: value.clone() for name, value in module.state_dict().items()}
    assert found["norm.num_batches_tracked"] == 17
    saved = averages_in(optimizer).state_dict([("a", model.shims[0])])["tensors"]
    assert [name for name in saved if "buffer" in name] == ["buffer:a/norm.running_mean", "buffer:a/norm.running_var"]
    expected = oracle.module.state_dict()
    expected.pop("norm.num_batches_tracked")
    for name, value in expected.items():
        # EMA: the same kernel. SWA: torch's divides where ours multiplies, in float32.
        torch.testing.assert_close(
            found[name], value, rtol=0 if kind == "ema" else 1e-6, atol=0 if kind == "ema" else 1e-7
        )
    assert not torch.equal(found["norm.running_var"], module.norm.running_var)


@pytest.mark.parametrize("warmup", ["thinc", "torch", "torch_ema", "ignite"])
@pytest.mark.parametrize("stop", [None, 5])
def test_averages_decay_may_be_a_schedule(warmup, stop):
    """Also of a run that goes on in another process."""
    decays = [min(i / 11, 1.0) for i in range(14)]
    model, optimizer = mixed_model(), TorchOptimizer(AdamW(), 0.01, averages=EMA(iter(decays), warmup=warmup))
    values, first = [], params_of(model)[0].double()
    for step, _ in enumerate(train(model, optimizer, 12)):
        values.append(params_of(model)[0].double())
        optimizer.step_schedules()
        if step == stop:
            schedules = schedules_in(optimizer).state_dict()
            state = averages_in(optimizer).state_dict([])
            json.dumps({part: value for part, value in state.items() if part != "tensors"})
            resumed = TorchOptimizer(AdamW(), 0.01, averages=EMA(iter(decays), warmup=warmup))
            schedules_in(resumed).load(**schedules)
            take_average_settings(optimizer, resumed)
    average = {"thinc": torch.zeros_like(first), "torch": values[0]}.get(warmup, first)
    for taken, (value, decay) in enumerate(zip(values, decays), start=1):
        keep = min((1 + taken) / (10 + taken), decay) if warmup in ("thinc", "torch_ema") else decay
        average = value if warmup == "torch" and taken == 1 else keep * average + (1 - keep) * value
    with model.use_params(optimizer.averages):
        torch.testing.assert_close(
            params_of(model)[0], average.float(), rtol=1e-5, atol=1e-6
        )  # float32, moved twelve times
    assert "averages.decay" in optimizer.schedules


@pytest.mark.parametrize("bad", [-0.5, 1.5])
def test_averages_refuse_a_decay_of_a_schedule_before_anything_is_updated(bad):
    model, optimizer = mixed_model(), TorchOptimizer(AdamW(), 0.01, averages=EMA(iter([0.0, 1.0, bad])))
    for step in range(3):
        backprop(model, numpy.random.default_rng(step))
        if step < 2:
            model.finish_update(optimizer)
            optimizer.step_schedules()
    before = params_of(model)
    with pytest.raises(ScheduleError, match=rf"'averages\.decay' at step 2: expected .* from 0 to 1, found {bad}"):
        model.finish_update(optimizer)
    assert same(before, params_of(model))


def test_averages_of_cells_that_came_late_keep_their_count_while_decay_moves():
    """A low decay makes all shares equal for a while, and a higher one different again."""
    schedules = Schedules()
    settings = EMA([0.05] * 6 + [0.9] * 20).tracked(schedules)
    averages, alone, param, old = Averages(settings), Averages(settings), new_param(), new_param()
    rng = numpy.random.default_rng(0)
    for step in range(16):
        if step == 4:
            param = grow(averages, param, (4, 3))
        value = rng.normal(size=tuple(param.shape)).astype("f")
        feed(averages, param, [value])
        feed(alone, old, [value[:2]])
        schedules.step()
    assert torch.equal(averages.tensor_of(param.key)[:2], alone.tensor_of(old.key))
    assert averages._of[param.key].ages.taken == [16, 12]


@pytest.mark.parametrize("settings", [SWA(0, buffers="copy"), EMA(0.9, warmup="torch", buffers="copy")], ids=str)
def test_averages_leave_buffers_as_they_are_if_that_is_wanted(settings):
    """As torch's AveragedModel with use_buffers = False."""
    model, optimizer = PyTorchWrapper(module := WithBuffers3()), TorchOptimizer(AdamW(), 0.01, averages=settings)
    averaging = TorchOptimizer(AdamW(), 0.01, averages=SWA(0))
    rng = numpy.random.default_rng(0)
    for _ in range(4):
        for by in (averaging, optimizer):
            Y, back = model.begin_update(rng.normal(size=(7, 3)).astype("f"))
            back(Y)
            model.finish_update(by)
    before = [buffer.clone() for buffer in module.buffers()]
    with model.use_params(optimizer.averages):
        assert same(before, list(module.buffers()))
    state = averages_in(averaging).state_dict(paths_of(model))
    assert any(name.startswith("buffer:") for name in state["tensors"])
    averages_in(optimizer).load_state_dict(state, params_in(averaging), paths_of(model))  # of a run that averaged them
    with model.use_params(optimizer.averages):
        assert same(before, list(module.buffers()))


def naive(settings, first, values):
    """The average in plain Python, or None while there is none."""
    average, taken = None, 0
    for update, value in enumerate(values, start=1):
        if update == settings.start_step + 1:
            before = values[update - 2] if update > 1 else first
            average = {"thinc": 0.0, "torch": value, "torch_ema": before, "ignite": before}[settings.warmup]
        if update > settings.start_step and (update - settings.start_step) % settings.every == (
            1 if settings.every > 1 else 0
        ):
            taken += 1
            if settings.kind == "SWA":
                average = (average * (taken - 1) + value) / taken
            elif settings.warmup in ("torch", "ignite"):
                average = (
                    average
                    if taken == 1 and settings.warmup == "torch"
                    else settings.decay * average + (1 - settings.decay) * value
                )
            else:
                decay = min((1 + taken) / (10 + taken), settings.decay)
                average = decay * average + (1 - decay) * value
    return average


ANY_SETTINGS = st.builds(
    AverageSettings,
    kind=st.sampled_from(["EMA", "SWA"]),
    decay=st.floats(0.0, 1.0),
    warmup=st.sampled_from(["thinc", "torch", "torch_ema", "ignite"]),
    start_step=st.integers(0, 12),
    every=st.integers(1, 5),
    dtype=st.just("float64"),
)


@given(ANY_SETTINGS, st.floats(-10, 10), st.lists(st.floats(-10, 10, width=32), max_size=15))
@example(AverageSettings(start_step=3, every=2, dtype="float64"), 1.0, [1.0, 2.0, 3.0])
def test_averages_equal_a_naive_loop(settings, first, values):
    averages, param = Averages(settings), new_param(first, dtype=torch.float64)
    feed(averages, param, values)
    found, expected = averages.tensor_of(param.key), naive(settings, first, values)
    assert (found is None) == (expected is None)
    if found is not None:
        # float64, rounded fifteen times at most.
        numpy.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_averages_take_one_call_for_equal_factors(monkeypatch):
    model = chain(mixed_model(), PyTorchWrapper(WithBuffers3()))
    optimizer = TorchOptimizer(AdamW(), 0.01, averages=EMA(0.9, warmup="torch"))
    calls, lerp = [], torch._foreach_lerp_

    def counted(averages, values, weight):
        calls.append(len(averages))
        lerp(averages, values, weight)

    monkeypatch.setattr(torch, "_foreach_lerp_", counted)
    train_fully(model, optimizer, 3)
    assert calls == [2 + 6 + 6 + 2] * 3  # Linear, the torch layers, BatchNorm with its two buffers


class WithBuffers3(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))


@pytest.mark.parametrize("is_resumed", [False, True])
def test_averages_of_a_torch_param_that_takes_no_gradients_begin_anew_when_it_does(is_resumed):
    """As with `optimizer.freeze` and `unfreeze`: the oracle, but for the moments, which SGD has none of."""

    def values_after(freeze, unfreeze):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 5))
        nlp = toy_pipeline(["tagger"], shared=False)
        nlp.get_pipe("tagger").model = model = PyTorchWrapper(module)
        optimizer = TorchOptimizer(torch_optimizers.SGD(), 0.1, averages=EMA(0.9))
        optimizer.initialize(nlp)

        def train():
            backprop(model, numpy.random.default_rng(0))
            model.finish_update(optimizer)

        found = []
        for step in range(9):
            if step in (3, 6):
                (freeze if step == 3 else unfreeze)(module[0], optimizer)
            if step == 5 and is_resumed:
                saved = optimizer.state_dict()
                (optimizer := TorchOptimizer(torch_optimizers.SGD(), 0.1, averages=EMA(0.9))).initialize(nlp)
                optimizer.load_state_dict(saved)
            train()
            with nlp.use_params(optimizer.averages):
                found += params_of(model)
        return found

    names = ["tagger/0/*"]
    by_torch = values_after(lambda layer, _: layer.requires_grad_(False), lambda layer, _: layer.requires_grad_(True))
    by_hand = values_after(lambda _, optimizer: optimizer.freeze(names), lambda _, optimizer: optimizer.unfreeze(names))
    assert same(by_torch, by_hand)


@pytest.mark.parametrize("saved_at", [None, 2, 4], ids=["goes_on", "rolled_back", "resumed"])
@pytest.mark.parametrize("by_torch", [False, True])
def test_averages_of_buffers_of_a_frozen_module_are_not_used_and_begin_anew(by_torch, saved_at):
    """The oracle: the mean of the values since it is trained. Its batch normalization moves while it is frozen."""
    torch.manual_seed(0)
    nlp, module = toy_pipeline(["tagger"], shared=False), WithBuffers3()
    nlp.get_pipe("tagger").model = model = chain(thinc.api.Linear(3, 5), PyTorchWrapper(module))
    model.initialize(numpy.zeros((2, 5), dtype="f"))
    optimizer = TorchOptimizer(torch_optimizers.SGD(), 0.1, averages=SWA(0))
    optimizer.initialize(nlp)
    rng, frozen = numpy.random.default_rng(0), range(3, 6)

    def values():
        return torch.cat([module[1].running_mean, module[1].running_var])

    since = []
    for step in range(9):
        if step in (frozen.start, frozen.stop):
            since = []
            if by_torch:
                module.requires_grad_(step == frozen.stop)
            else:
                (optimizer.freeze if step == frozen.start else optimizer.unfreeze)(["tagger/pytorch/*"])
        backprop(model, rng)
        model.finish_update(optimizer)
        since.append(values())
        with nlp.use_params(optimizer.averages):
            expected = since[-1] if step in frozen else torch.stack(since).mean(0)
            assert torch.allclose(values(), expected, rtol=0.0, atol=1e-6), step  # a sum in another order
        if step == saved_at:
            saved = copy.deepcopy(optimizer.state_dict())
        if step == 4 and saved_at == 2:
            optimizer.roll_back(saved)
        elif step == saved_at == 4:
            (optimizer := TorchOptimizer(torch_optimizers.SGD(), 0.1, averages=SWA(0))).initialize(nlp)
            optimizer.load_state_dict(saved)


def test_averages_begin_anew_for_a_param_of_another_shape():
    averages, param = Averages(SWA(0)), new_param()
    feed(averages, param, [1.0, 2.0])
    grown = Param("a/W", param.key, None, torch.full((5,), 9.0))
    grown.group, grown.steps = "not frozen", 3
    averages.update([grown])
    assert averages.tensor_of(param.key).tolist() == [9.0] * 5
    averages.release(param)
    assert averages.tensor_of(param.key) is None


EVERY_WARMUP = [EMA(0.8), EMA(0.8, warmup="torch"), EMA(0.8, warmup="torch_ema"), EMA(0.8, warmup="ignite")]
GROWN = [*EVERY_WARMUP, SWA(0), SWA(2, every=2), EMA(0.8, dtype="float64", every=3)]


def grow(averages, param, shape):
    """Let a param of another shape, with the same name, take a param's place: old cells as they are, new ones at 8."""
    tensor = torch.full(shape, 8.0)
    common = tuple(slice(min(sizes)) for sizes in zip(param.shape, shape))
    tensor[common] = param.tensor[common]
    grown = Param(param.name, (*param.key, len(averages._of)), None, tensor)
    grown.group, grown.steps = "not frozen", param.steps
    averages.inherit(grown, averages.release(param))
    assert averages.tensor_of(param.key) is None
    return grown


@pytest.mark.parametrize("settings", GROWN, ids=str)
@pytest.mark.parametrize("resumed", [False, True])
def test_averages_of_old_cells_are_as_if_their_param_had_not_grown(settings, resumed):
    """Rows, then columns, then both at once; then it shrinks. Also across processes."""
    averages, alone = Averages(settings), Averages(settings)
    param, old = new_param(), new_param()
    rng = numpy.random.default_rng(0)
    for shape in ((2, 3), (4, 3), (4, 5), (7, 6), (5, 4)):
        if shape != (2, 3):
            param = grow(averages, param, shape)
            new_cells = averages.tensor_of(param.key)
            assert new_cells is None or shape == (5, 4) or (new_cells[-1, -1] == 8.0).all()  # as the param is
        for _ in range(7):
            value = rng.normal(size=shape).astype("f")
            feed(averages, param, [value])
            feed(alone, old, [value[:2, :3]])
            if resumed:
                state = copy.deepcopy(averages.state_dict([]))
                json.dumps(flatten(state)[0])
                averages = Averages(settings)
                averages.load_state_dict(state, [param], [])
            expected = alone.tensor_of(old.key)
            found = averages.tensor_of(param.key)
            assert found is expected is None or torch.equal(found[:2, :3], expected)


@pytest.mark.parametrize("settings", [SWA(0), *EVERY_WARMUP], ids=str)
@pytest.mark.parametrize("across_processes", [False, True])
def test_averages_of_new_cells_are_as_if_they_were_a_new_param(settings, across_processes):
    averages, alone = Averages(settings), Averages(settings)
    param, new = new_param(), new_param(8.0)
    rng = numpy.random.default_rng(0)
    feed(averages, param, rng.normal(size=(5, 2, 3)))
    if across_processes:
        state, averages = averages.state_dict([]), Averages(settings)
        grown = Param(param.name, param.key, None, torch.full((4, 3), 8.0))
        grown.group, grown.steps = "not frozen", param.steps
        averages.load_state_dict(state, [grown], [], may_grow=True)
    else:
        grown = grow(averages, param, (4, 3))
    values = rng.normal(size=(6, 4, 3)).astype("f")
    for i, value in enumerate(values):
        feed(averages, grown, [value])
        feed(alone, new, [value[2:]])
        expected = alone.tensor_of(new.key).clone()
        if settings == EMA(0.8):  # thinc's begins at zero; that of new cells never does, but as the first value
            expected = torch.from_numpy(values[0, 2:])
            for n, later in enumerate(values[1 : i + 1], start=2):
                expected = torch.lerp(expected, torch.from_numpy(later[2:]), settings.weight(n))
        assert torch.equal(averages.tensor_of(grown.key)[2:], expected)


def test_averages_that_grew_are_one_again_when_all_cells_keep_the_same():
    averages, param = Averages(EMA(0.9, warmup="torch")), new_param()
    feed(averages, param, [1.0, 2.0])
    grown = grow(averages, param, (4, 3))
    feed(averages, grown, [1.0])
    [ages] = averages.state_dict([])["ages"].values()
    assert ages["taken"] == [3, 1] and ages["of"].tolist() == [[0] * 3] * 2 + [[1] * 3] * 2
    feed(averages, grown, [1.0])
    assert averages.state_dict([])["ages"] == {} and averages.state_dict([])["taken"] == {"a/W": 4}


@pytest.mark.parametrize(
    "ages",
    [
        3,
        {"taken": [2, 1]},
        {"taken": [2, "1"]},
        {"taken": [2, -1]},
        {"taken": [1, 2]},
        {"taken": [2]},
        {"of": torch.zeros(4, 2, dtype=torch.int32)},
        {"of": torch.zeros(4, 3)},
        {"of": torch.full((4, 3), -1, dtype=torch.int32)},
    ],
)
def test_averages_refuse_ages_that_do_not_fit(ages):
    averages, param = Averages(SWA(0)), new_param()
    feed(averages, param, [1.0])
    grown = grow(averages, param, (4, 3))
    feed(averages, grown, [1.0])
    state = averages.state_dict([])
    averages.load_state_dict(state, [grown], [])
    if ages == {"taken": [2, 1]}:
        ages = {"a/V": state["ages"].pop("a/W")}
    else:
        ages = {"a/W": {**state["ages"]["a/W"], **ages} if isinstance(ages, dict) else ages}
    with pytest.raises(StateError, match=r"Can't load the averages: expected 'ages/a/[WV][\w/]*' to be .*found "):
        averages.load_state_dict({**state, "ages": ages}, [grown], [])


# ---------------------------------------------------------------------- device and dtype


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [(torch.float16, "float32"), (torch.float32, "float64"), (torch.float64, "float32"), (torch.bfloat16, None)],
)
def test_averages_are_kept_in_one_dtype_and_used_in_that_of_the_param(dtype, kept):
    averages, param = Averages(EMA(0.5, warmup="torch", dtype=kept)), new_param(dtype=dtype)
    feed(averages, param, [1.0, 2.0, 2.0])
    assert averages.tensor_of(param.key).dtype == getattr(torch, kept or "float32")
    used = averages.as_thinc([])[param.key]
    assert used.dtype == param.source.dtype and (used == 1.75).all()


def test_averages_stay_on_their_device():
    averages, param = Averages(EMA(0.5, start_step=9, device="meta")), new_param()
    averages.begin()
    feed(averages, param, [1.0, 2.0])
    assert averages.tensor_of(param.key).is_meta and averages._of[param.key].taken == 2


def test_averages_of_the_same_dtype_are_not_copied():
    averages, param = Averages(), new_param()
    feed(averages, param, [1.0])
    assert averages.as_thinc([])[param.key].__array_interface__["data"][0] == averages.tensor_of(param.key).data_ptr()


@pytest.fixture
def on_gpu():
    require_gpu()
    yield
    require_cpu()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("device", [None, "cpu"])
def test_averages_of_a_gpu_model_can_be_kept_on_the_cpu(on_gpu, device):
    module = WithBuffers()
    del module._buffers["mask"]
    model, optimizer = (
        PyTorchWrapper(module),
        TorchOptimizer(AdamW(), 0.01, averages=EMA(0.9, warmup="torch", device=device)),
    )
    oracle = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in train(model, optimizer):
        oracle.update_parameters(module)
    assert {value.device.type for name, value in optimizer.averages.items() if "first" in name} == {device or "cuda"}
    with model.use_params(optimizer.averages):
        torch.testing.assert_close(module.first.weight, oracle.module.first.weight)
        torch.testing.assert_close(module.norm.running_var, oracle.module.norm.running_var)


# ---------------------------------------------------------------------- buffers


def test_averages_of_buffers_never_begin_at_zero():
    """thinc's formula does: a variance of 0.8 of what it is would be as wrong as a mask of 0.8."""
    model, optimizer = PyTorchWrapper(module := WithBuffers()), TorchOptimizer(AdamW(), 0.01, use_averages=True)
    steps = train(model, optimizer)
    next(steps)
    first = module.norm.running_var.clone()
    with model.use_params(optimizer.averages):
        assert torch.equal(module.norm.running_var, first)
    next(steps)
    expected = torch.lerp(first, module.norm.running_var, 1 - 3 / 12)
    with model.use_params(optimizer.averages):
        assert torch.equal(module.norm.running_var, expected)


def test_averages_of_buffers_follow_only_updates_of_their_module():
    left, right = PyTorchWrapper(WithBuffers3()), PyTorchWrapper(WithBuffers3())
    rng, optimizer = numpy.random.default_rng(0), TorchOptimizer(AdamW(), 0.01, averages=SWA(0))
    means = []
    for i in range(6):
        for model in (left, right):
            Y, back = model.begin_update(rng.normal(size=(7, 3)).astype("f"))
            back(Y)
        (left if i % 3 else right).finish_update(optimizer)
        if i % 3 == 0:
            means.append(right.shims[0]._model[1].running_mean.clone())
    with right.use_params(optimizer.averages):
        torch.testing.assert_close(right.shims[0]._model[1].running_mean, (means[0] + means[1]) / 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_averages_of_buffers_take_no_value_that_is_not_finite(bad):
    model, optimizer = PyTorchWrapper(module := WithBuffers3()), TorchOptimizer(AdamW(), 0.01, averages=SWA(0))
    # The average stays where it is, and counts on: the last value has the share of a fifth one.
    for value, expected in ((2.0, 2.0), (4.0, 3.0), (bad, 3.0), (bad, 3.0), (13.0, 5.0)):
        module[1].running_mean.copy_(torch.tensor([value, 1.0, 1.0]))
        for param in module.parameters():
            param.grad = torch.ones_like(param)
        model.finish_update(optimizer)
        assert optimizer.averages[f"pytorch_{model.shims[0].id}_1.running_mean"].tolist() == [expected, 1.0, 1.0]


def test_averages_of_buffers_begin_when_they_are_numbers():
    """A mask, which has infinite values and no NaN, is never averaged."""
    model, optimizer = PyTorchWrapper(module := WithBuffers3()), TorchOptimizer(AdamW(), 0.01, averages=SWA(0))
    module.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    name = f"pytorch_{model.shims[0].id}_"
    for value in (math.nan, 2.0, 4.0):
        module[1].running_var.fill_(value)
        module.mask[0] = value
        for param in module.parameters():
            param.grad = torch.ones_like(param)
        model.finish_update(optimizer)
        assert optimizer.averages[name + "mask"].data_ptr() == module.mask.data_ptr()
    assert optimizer.averages[name + "1.running_var"].tolist() == [3.0] * 3


@pytest.mark.gpu
@needs_gpu
def test_averages_of_buffers_are_checked_without_waiting_for_the_gpu():
    module = WithBuffers3()
    model, optimizer = (
        PyTorchWrapper(module),
        TorchOptimizer(AdamW(), 0.01, averages=SWA(0), max_nonfinite=0, grad_clip=0.0),
    )
    module.cuda()
    for step in range(4):
        for param in module.parameters():
            param.grad = torch.ones_like(param)
        torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")
        try:
            model.finish_update(optimizer)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_averages_of_buffers_that_are_replaced_or_go():
    model, optimizer = PyTorchWrapper(module := WithBuffers3()), TorchOptimizer(AdamW(), 0.01, averages=SWA(0))
    norm, rng = module[1], numpy.random.default_rng(0)
    for buffer in (torch.full((3,), 2.0), torch.full((3,), 4.0), torch.full((1,), 6.0), torch.full((1,), 8.0), None):
        norm.extra = buffer
        if buffer is not None and "extra" not in norm._buffers:
            del norm.extra
            norm.register_buffer("extra", buffer)
        Y, back = model.begin_update(rng.normal(size=(7, 3)).astype("f"))
        back(Y)
        model.finish_update(optimizer)
        found = optimizer.averages.get(f"pytorch_{model.shims[0].id}_1.extra")
        expected = {2.0: [2.0] * 3, 4.0: [3.0] * 3, 6.0: [6.0], 8.0: [7.0]}
        assert found is None if buffer is None else found.tolist() == expected[buffer[0].item()]
    del norm.extra
    model.finish_update(optimizer)


def test_averages_do_not_keep_a_model_alive():
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True)
    model = PyTorchWrapper(WithBuffers())
    train_fully(model, optimizer, 2)
    assert len(averages_in(optimizer)._of_buffers) == 1
    del model
    import gc

    gc.collect()
    assert len(averages_in(optimizer)._of_buffers) == 0


# ---------------------------------------------------------------------- in thinc's form


@pytest.mark.device
def test_averages_are_what_is_evaluated_and_saved():
    optimizer = TorchOptimizer(AdamW(), 0.01, averages=EMA(0.9, every=2, dtype="float64"))
    nlp, examples = ready_pipeline(sgd=optimizer)
    assert optimizer.averages == {}
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    raw = [params_of(proc.model) for _, proc in nlp.pipeline]
    with nlp.use_params(optimizer.averages):
        averaged = [params_of(proc.model) for _, proc in nlp.pipeline]
        data = nlp.to_bytes()
    assert all(same(before, params_of(proc.model)) for before, (_, proc) in zip(raw, nlp.pipeline))
    assert not any(same(a, b) for a, b in zip(raw, averaged))
    nlp.from_bytes(data)
    assert all(same(expected, params_of(proc.model)) for expected, (_, proc) in zip(averaged, nlp.pipeline))


def test_averages_are_the_params_until_they_start():
    model, optimizer = mixed_model(), TorchOptimizer(AdamW(), 0.01, averages=SWA(5))
    for step, _ in enumerate(train(model, optimizer, 7), start=1):
        before = params_of(model)
        assert bool(optimizer.averages) == (step > 5)
        with model.use_params(optimizer.averages):
            assert same(before, params_of(model)) == (step < 7)


# ---------------------------------------------------------------------- settings


def test_averages_settings_come_from_a_config():
    config = Config().from_disk(CONFIGS / "averages.cfg")
    resolved = spacy.registry.resolve({"optimizer": config["training"]["optimizer"]})["optimizer"]
    assert averages_in(resolved).settings == EMA(0.99, warmup="torch", device="cpu")
    text = '[a]\n@misc = "thinc-torchopt.SWA.v1"\nstart_step = 7\nevery = 2\ndtype = "float64"\n'
    config = Config().from_str(text)
    assert spacy.registry.resolve(config)["a"] == SWA(7, every=2, dtype="float64")
    filled = Config().from_str(spacy.registry.fill(config).to_str())
    assert filled["a"] == {**config["a"], "device": None, "buffers": "average"}
    assert spacy.registry.resolve(filled)["a"] == SWA(7, every=2, dtype="float64")


def test_averages_decay_may_be_a_schedule_in_a_config():
    text = (
        '[optimizer]\n@optimizers = "thinc-torchopt.TorchOptimizer.v1"\n'
        '[optimizer.algorithm]\n@torch_optimizers = "torch.AdamW.v1"\n[optimizer.averages]\n@misc = '
        '"thinc-torchopt.EMA.v1"\n'
        '[optimizer.averages.decay]\n@schedules = "compounding.v1"\nstart = 0.5\nstop = 0.99\ncompound = 1.1\n'
    )
    optimizer = spacy.registry.resolve(Config().from_str(text))["optimizer"]
    optimizer.step_schedules()
    assert average_settings_in(optimizer).decay.value == 0.5 * 1.1


# ---------------------------------------------------------------------- checkpoints

CHECKPOINTED = [
    EMA(),
    EMA(0.9, warmup="torch", start_step=2, every=2, dtype="float64"),
    EMA(warmup="torch_ema"),
    EMA(warmup="torch_ema", start_step=7),
    SWA(3, every=3),
    SWA(100),
]


def paths_of(model):
    return list(shim_paths(model, "a"))


@pytest.mark.parametrize("settings", CHECKPOINTED, ids=str)
def test_averages_go_on_exactly(settings):
    module = WithBuffers3()
    module.register_buffer("mask", torch.tensor([-math.inf]))
    model, optimizer = (
        chain(mixed_model(), PyTorchWrapper(module)),
        TorchOptimizer(torch_optimizers.SGD(), 0.01, averages=settings),
    )
    train_fully(model, optimizer, 5)
    state = copy.deepcopy(averages_in(optimizer).state_dict(paths_of(model)))
    json.dumps({part: value for part, value in state.items() if part != "tensors"})
    # As in another process: other keys, other ids. One step, so that there are params.
    other, resumed = model.copy(), TorchOptimizer(torch_optimizers.SGD(), 0.01, averages=settings)
    train_fully(other, resumed, 1)
    other.from_bytes(model.to_bytes())
    steps = {param.name: param.steps for param in params_in(optimizer)}
    for param in params_in(resumed):
        param.steps = steps[param.name]
    averages_in(resumed).load_state_dict(state, params_in(resumed), paths_of(other))
    saved_again = averages_in(resumed).state_dict(paths_of(other))
    assert {name: value for name, value in saved_again.items() if name != "tensors"} == {
        k: v for k, v in state.items() if k != "tensors"
    }
    found = []
    for trained, by in ((model, optimizer), (other, resumed)):
        for i, _ in enumerate(train(trained, by, 6, seed=1)):
            trained.layers[-1].shims[0]._model.mask.fill_(i)  # finite too late, if averages have begun
        with trained.use_params(by.averages):
            found.append(
                [*params_of(trained), *(buffer.clone() for buffer in trained.layers[-1].shims[0]._model.buffers())]
            )
    assert same(*found)
    mine = [tensor.data_ptr() for tensor in averages_in(resumed).state_dict(paths_of(other))["tensors"].values()]
    assert not {tensor.data_ptr() for tensor in state["tensors"].values()} & set(mine)


def damage(state, how):
    name = next(iter(state["tensors"]))
    if how == "shape":
        state["tensors"][name] = torch.zeros(1)
    elif how == "name":
        state["tensors"]["b/W"], state["taken"]["b/W"] = torch.zeros(1), 1
    elif how == "buffer":
        state["tensors"]["buffer:b/running_var"], state["taken"]["buffer:b/running_var"] = torch.zeros(1), 1
    elif how == "counts":
        del state["taken"][name]
    elif how == "count":
        state["taken"][name] = "many"
    elif how == "tensor":
        state["tensors"][name] = [1.0]
    else:
        del state[how]
    return state


@pytest.mark.parametrize("how", ["shape", "name", "buffer", "counts", "count", "tensor", "taken", "nothing"])
def test_averages_refuse_a_state_that_does_not_fit(how):
    model, optimizer = PyTorchWrapper(WithBuffers3()), TorchOptimizer(AdamW(), 0.01, use_averages=True)
    rng = numpy.random.default_rng(0)
    Y, back = model.begin_update(rng.normal(size=(7, 3)).astype("f"))
    back(Y)
    model.finish_update(optimizer)
    good = averages_in(optimizer).state_dict(paths_of(model))
    before = copy.deepcopy(good)
    bad = None if how == "nothing" else damage(copy.deepcopy(good), how)
    with pytest.raises(StateError, match=r"Can't load the average.*expected .*found "):
        averages_in(optimizer).load_state_dict(bad, params_in(optimizer), paths_of(model))
    after = averages_in(optimizer).state_dict(paths_of(model))
    assert after["taken"] == before["taken"] and same(list(after["tensors"].values()), list(before["tensors"].values()))


def test_averages_that_were_begun_wait_again_after_an_earlier_state():
    """A rule may begin them, and a resumed run takes that back."""
    weights = torch.nn.Parameter(torch.zeros(3))
    optimizer = TorchOptimizer(torch_optimizers.SGD(), 1.0, averages=EMA(decay=0.5, start_step=100), grad_clip=0.0)

    def update():
        optimizer((0, "W"), weights, torch.ones(3))
        return averages_in(optimizer).state_dict({})["taken"]

    assert not update()
    before = averages_in(optimizer).state_dict({})
    averages_in(optimizer).begin()
    assert update()
    begun = averages_in(optimizer).state_dict({})
    for state, is_begun in ((before, False), (begun, True), (before, False)):
        averages_in(optimizer).load_state_dict(state, params_in(optimizer), {})
        assert bool(update()) == is_begun


def test_averages_that_were_begun_go_on_after_a_rollback():
    """As what was frozen since, and cut rates: a rule that fires once would not begin them again."""
    optimizer = TorchOptimizer(AdamW(), 0.01, averages=SWA(start_step=100))
    nlp, examples = ready_pipeline(["tagger"], shared=False, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.begin_averages()
    optimizer.roll_back(saved)
    assert not optimizer.averages
    nlp.update(examples, sgd=optimizer)
    assert optimizer.averages and optimizer.state_dict()["averages"]["has_begun"]
    optimizer.begin_averages()
    assert optimizer.averages


def test_averages_of_buffers_begin_when_due_in_a_resumed_run():
    """They were begun at the third update, and saved before the next value."""
    model, settings = chain(mixed_model(), PyTorchWrapper(WithBuffers3())), SWA(5, every=10)
    optimizer = TorchOptimizer(AdamW(), 0.01, averages=settings)
    train_fully(model, optimizer, 3)
    averages_in(optimizer).begin()
    train_fully(model, optimizer, 5)
    state = averages_in(optimizer).state_dict(paths_of(model))
    assert state["module_steps"] and not state["tensors"]
    averages_in(optimizer).load_state_dict(state, params_in(optimizer), paths_of(model))
    train_fully(model, optimizer, 3)
    saved = averages_in(optimizer).state_dict(paths_of(model))["tensors"]
    assert {name for name in saved if name.startswith("buffer:")} == {
        "buffer:a/pytorch/1.running_mean",
        "buffer:a/pytorch/1.running_var",
    }
