"""Learning token by token: the same gradients as of whole sequences, and streams that are killed and go on."""

import numpy
import pytest
import torch
from thinc.api import SGD, Linear, Model, PyTorchWrapper, chain, fix_random_seed, warmup_linear
from thinc.api import Adam as ThincAdam

from thinc_torchopt import Adam, TorchOptimizer
from thinc_torchopt.addons.online import online_trainer
from thinc_torchopt.addons.online.online_rnn import OnlineRNN
from thinc_torchopt.addons.online.online_trainer import OnlineTrainer
from thinc_torchopt.core.errors import ConfigError, PipelineError, ShapeError, StateError
from thinc_torchopt.torch_optimizers import SGD as TorchSGD
from thinc_torchopt.torch_optimizers import AdamW

T, B = 12, 2
# float32, a dozen steps, values around 1.
NEAR = {"rtol": 1e-4, "atol": 1e-5}


def some(*shape, seed=0):
    return numpy.random.default_rng(seed).normal(size=shape).astype("f")


def layer(**settings):
    model = OnlineRNN(4, 3, **settings)
    model.initialize([some(2, 3)])
    return model


def params_of(*models):
    return [node.get_param(name).copy() for m in models for node in m.walk() for name in node.param_names]


def same(left, right):
    return all(numpy.array_equal(a, b) for a, b in zip(left, right))


@pytest.mark.parametrize(
    "settings",
    [{}, {"cell": "torch-lstm"}, {"depth": 2, "cell": "torch-lstm"}, {"normalize_matrix_spectrum": True}],
    ids=str,
)
@pytest.mark.parametrize("update_every", [T, 1000])
def test_online_trainer_gradients_are_those_of_the_whole(settings, update_every):
    """With SGD and a rate of 1, params move by the gradient; it is that of the layer on the whole sequence."""
    model = layer(**settings)
    X, dY = some(T, B, 3, seed=1), some(T, B, 4, seed=2) * 0.1
    dY[3:5] = 0.0  # no loss
    expected = model.copy()
    Y, backprop = expected(X, is_train=True)
    dX = backprop(dY)
    before = params_of(model)
    trainer = OnlineTrainer(model, SGD(1.0), batch_size=B, update_every=update_every)
    for t in range(T):
        assert numpy.allclose(trainer.predict(X[t]), Y[t], **NEAR)
        assert numpy.allclose(trainer.update(X[t], dY[t] if dY[t].any() else None), dX[t], **NEAR)
    if update_every > T:
        assert same(params_of(model), before)
        trainer.apply()
    grads = [node.get_grad(name) for node in expected.walk() for name in node.param_names]
    for old, new, grad in zip(before, params_of(model), grads):
        assert numpy.allclose(old - new, grad, **NEAR) and grad.any()
    assert trainer.tokens == T


@pytest.mark.parametrize("cell", ["torch-gru", "torch-lstm", "mingru"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_online_trainer_blocks_are_steps(cell, size, monkeypatch):
    """The same updates, whether steps are applied one by one or as blocks, with tokens without a loss among them."""
    X, dY = some(T, B, 3, seed=1), some(T, B, 4, seed=2) * 0.1

    def trained(of_block):
        monkeypatch.setattr(online_trainer, "BLOCK", of_block)
        numpy.random.seed(0)
        model = layer(cell=cell, depth=2)
        trainer = OnlineTrainer(model, SGD(1.0), batch_size=B, update_every=6)
        for t in range(T):
            trainer.update(X[t], None if t in (1, 2, 7) else dY[t])
            if t == 4:
                trainer.detach([1])
            if t == 8:
                trainer.reset([0])
        trainer.apply()
        return params_of(model)

    for found, expected in zip(trained(size), trained(1)):
        assert numpy.allclose(found, expected, **NEAR)


@pytest.mark.parametrize("settings", [{"cell": "torch-lstm", "depth": 2}, {"normalize_matrix_spectrum": True}], ids=str)
@pytest.mark.parametrize("update_every", [1, 5])
def test_online_trainer_slow_and_fast_solve_agree(settings, update_every, tmp_path):
    """Params, dL/dx and state, over updates; a state that one saved is the other's, too."""
    model, made = layer(**settings), {}
    for fast in (True, False):
        trained = model.copy()
        optimizer = TorchOptimizer(AdamW(), 0.001)
        trainer = OnlineTrainer(trained, optimizer, batch_size=B, update_every=update_every, fast_solve=fast)
        signals = [trainer.update(some(B, 3, seed=t), some(B, 4, seed=t) * 0.1) for t in range(T)]
        made[fast] = trainer, [*signals, *params_of(trained)]
    for fast, slow in zip(made[True][1], made[False][1]):
        assert numpy.allclose(fast, slow, **NEAR)
    made[True][0].to_disk(tmp_path / "state")
    made[False][0].from_disk(tmp_path / "state")
    assert same(params_of(made[True][0].model), params_of(made[False][0].model))


@pytest.mark.parametrize("update_every", [1, 4])
def test_online_trainer_predicts_with_averages_and_changes_nothing(update_every):
    """Of each token: by the weights, by the averages, and by both again. Another trainer never looks."""
    X, dY = some(T, B, 3, seed=1), some(T, B, 4, seed=2)
    model = layer()
    models = model, model.copy()
    looking, other = (
        OnlineTrainer(m, TorchOptimizer(TorchSGD(), 0.5, use_averages=True), batch_size=B, update_every=update_every)
        for m in models
    )
    for t in range(T):
        own = looking.predict(X[t])
        if averages := looking.optimizer.averages:
            with model.use_params(averages):
                averaged = looking.predict(X[t])
            assert t <= update_every or not numpy.array_equal(averaged, own)
            assert numpy.array_equal(looking.predict(X[t]), own)
            with model.use_params(averages):
                assert numpy.array_equal(looking.predict(X[t]), averaged)
        assert numpy.array_equal(looking.update(X[t], dY[t]), other.update(X[t], dY[t]))
    assert same(params_of(model), params_of(other.model))


def test_online_trainer_reads_one_stream_without_a_dimension_for_it():
    X, dY = some(T, 1, 3, seed=1), some(T, 1, 4, seed=2)
    model = layer()
    one, other = (OnlineTrainer(m, SGD(0.1), update_every=4) for m in (model, model.copy()))
    for x, dy in zip(X, dY):
        assert one.predict(x[0]).shape == (4,)
        assert numpy.array_equal(one.predict(x[0]), other.predict(x)[0])
        assert numpy.array_equal(one.update(x[0], dy[0]), other.update(x, dy)[0])
    assert same(params_of(one.model), params_of(other.model))
    with pytest.raises(ShapeError, match=r"expected shape \(2, 3\).*found \(3,\)"):
        OnlineTrainer(model, SGD(0.1), batch_size=2).predict(X[0, 0])


@pytest.mark.parametrize("cell", ["torch-lstm", "mingru"])
def test_online_trainer_traces_in_another_dtype(cell, tmp_path, monkeypatch):
    """Half the memory; updates are near those with traces in float32, and a resume is exact."""
    monkeypatch.setattr(online_trainer, "BLOCK", 2)
    X, dY = some(2 * T, B, 3, seed=1), some(2 * T, B, 4, seed=2)

    def read(trainer, tokens):
        for t in tokens:
            trainer.update(X[t], dY[t])
        return trainer

    model, optimizer = layer(cell=cell), lambda: TorchOptimizer(AdamW(), 0.01)
    full, half = (
        read(OnlineTrainer(model.copy(), optimizer(), batch_size=B, update_every=5, trace_dtype=dtype), range(2 * T))
        for dtype in (None, torch.bfloat16)
    )
    sizes = [
        sum(trace.nbytes for layer in trainer.state_dict()["layers"] for of in layer["traces"].values() for trace in of)
        for trainer in (full, half)
    ]
    assert sizes[0] == 2 * sizes[1] > 0 and not full.state_dict()["block"]  # of 4 tokens since the last update
    differences = [abs(a - b).max() for a, b in zip(params_of(full.model), params_of(half.model))]
    # Adam moves a param by up to the rate at each of four updates; a trace in bfloat16 is rounded to 1/256.
    assert 0 < max(differences) < 0.01
    begun = OnlineTrainer(model.copy(), optimizer(), batch_size=B, update_every=5, trace_dtype=torch.bfloat16)
    read(begun, range(7)).to_disk(tmp_path / "stream")
    resumed = OnlineTrainer(model.copy(), optimizer(), batch_size=B, update_every=5, trace_dtype=torch.bfloat16)
    resumed.from_disk(tmp_path / "stream")
    assert same(params_of(read(resumed, range(7, 2 * T)).model), params_of(half.model))
    with pytest.raises(StateError, match=r"trace_dtype of this trainer.*float32 here.*bfloat16 there"):
        OnlineTrainer(model.copy(), optimizer(), batch_size=B, update_every=5).from_disk(tmp_path / "stream")


def test_online_trainer_predictions_see_what_changed():
    trainer, x = OnlineTrainer(layer(), SGD(1.0), batch_size=B, update_every=100), some(B, 3)
    for change in (lambda: trainer.update(x, some(B, 4)), trainer.apply, trainer.reset):
        before = trainer.predict(x)
        change()
        assert not numpy.allclose(trainer.predict(x), before)


def test_online_trainer_reset_and_detach():
    """At a boundary: of one stream, the other goes on; detached, outputs stay, and no gradient reaches back."""
    X, dY = some(4, B, 3), some(B, 4)

    def after(action):
        model = layer()
        numpy.random.seed(0)
        model = layer()
        trainer = OnlineTrainer(model, SGD(1.0), batch_size=B, update_every=100)
        for t in range(3):
            trainer.update(X[t])
        action(trainer)
        out = trainer.predict(X[3])
        trainer.update(X[3], dY)
        trainer.apply()
        return out, params_of(model)

    plain, moved = after(lambda trainer: None)
    kept, detached = after(lambda trainer: trainer.detach())
    begun, fresh = after(lambda trainer: trainer.reset())
    assert same([plain], [kept]) and not same(moved, detached)
    numpy.random.seed(0)
    assert numpy.allclose(begun, OnlineTrainer(layer(), SGD(1.0), batch_size=B).predict(X[3]))
    for rows in ([1], slice(1, None)):
        one, _ = after(lambda trainer, rows=rows: trainer.reset(rows))
        assert same([one[0], one[1]], [plain[0], begun[1]]) and not same(fresh, detached)


def stream(seed=0):
    """Embeddings, a stack, an output layer of torch, and an optimizer that has moments, averages and a schedule."""
    fix_random_seed(seed)
    embed, rnn, output = Linear(3, 5), OnlineRNN(4, 3, depth=2), PyTorchWrapper(torch.nn.Linear(4, 2))
    embed.initialize(some(2, 5), some(2, 3))
    rnn.initialize([some(2, 3)])
    optimizer = TorchOptimizer(
        AdamW(),
        warmup_linear(0.01, 5, 100),
        use_averages=True,
        param_groups={"rnn": {"params": ["rnn/*"], "lr_scale": 0.5}},
    )
    models = {"embed": embed, "rnn": rnn, "output": output}
    return OnlineTrainer(rnn, optimizer, batch_size=B, update_every=5, models=models)


def read(trainer, tokens):
    for t in tokens:
        x, back_embed = trainer.models["embed"](some(B, 5, seed=t), is_train=True)
        guess, back_output = trainer.models["output"](trainer.predict(x), is_train=True)
        back_embed(trainer.update(x, back_output(guess - some(B, 2, seed=1000 + t))))
        if t % 6 == 2:
            trainer.detach([1])


@pytest.mark.parametrize("at", [0, 3, 10, 17])
def test_online_trainer_goes_on_bit_for_bit(at, tmp_path):
    """From disk, between two updates too, where gradients of all models wait."""
    whole, first, second = stream(), stream(), stream(seed=1)
    read(whole, range(30))
    read(first, range(at))
    first.to_disk(tmp_path / "state")
    read(first, range(at, at + 2))
    read(second, range(2))
    second.from_disk(tmp_path / "state")
    assert second.tokens == at
    read(second, range(at, 30))
    states = [trainer.state_dict() for trainer in (whole, second)]
    for name, param in states[0]["params"].items():
        assert torch.equal(param, states[1]["params"][name])
    traces = [state["layers"][1]["traces"]["Wz.weight"][0] for state in states]
    assert torch.equal(*traces) and traces[0].any()
    assert whole.optimizer.learn_rate == second.optimizer.learn_rate
    assert {"rnn/torch-gru-0/W_z", "output/weight"} < states[0]["params"].keys()


def test_online_trainer_refuses_states_of_others(tmp_path):
    trainer = stream()
    read(trainer, range(7))
    before, saved = params_of(*trainer.models.values()), trainer.state_dict()
    odd, layers = (
        (torch.Tensor.double, lambda tensor: tensor * float("nan"), lambda tensor: tensor + 1j),
        saved["layers"],
    )
    for change in (
        {"version": 1},
        {"tokens": -1},
        {"params": {}},
        {"layers": saved["layers"][:1]},
        {"block": None},
        {"block": [{"x": torch.zeros(B, 3), "dh": torch.zeros(B, 3)}]},
        {"block": [{"x": torch.zeros(B, 2), "dh": None}]},
        {"block": [{"x": torch.zeros(B, 3) * float("nan"), "dh": None}]},
        {"block": [{"x": torch.zeros(B, 3)}]},
        {"layers": [{**of_layer, "state": []} for of_layer in saved["layers"]]},
        {"layers": [{}, {}]},
        {"optimizer": {}},
        {"optimizer": {**saved["optimizer"], "grads": {name: torch.zeros(1) for name in saved["params"]}}},
        {"layers": [{**of_layer, "is_zero": "no"} for of_layer in saved["layers"]]},
        *({"layers": [{**of, "state": [change(s) for s in of["state"]]} for of in saved["layers"]]} for change in odd),
        *(
            {
                "layers": [
                    {**of, "traces": {k: [change(t) for t in v] for k, v in of["traces"].items()}} for of in layers
                ]
            }
            for change in odd
        ),
        *({"params": {name: change(param) for name, param in saved["params"].items()}} for change in odd),
    ):
        with pytest.raises(StateError):
            trainer.load_state_dict({**saved, **change})
        assert same(params_of(*trainer.models.values()), before) and trainer.tokens == 7
    with pytest.raises(StateError, match="missing"):
        trainer.from_disk(tmp_path / "missing")
    with pytest.raises(StateError, match="Adam"):
        OnlineTrainer(layer(), ThincAdam(0.1)).state_dict()
    assert OnlineTrainer(layer(), Adam(0.1)).state_dict()["tokens"] == 0


@pytest.mark.parametrize(
    ("x", "dh", "error", "says"),
    [
        (some(B, 4), None, ShapeError, r"x .*\(2, 3\).*\(2, 4\)"),
        (some(1, 3), None, ShapeError, "one token of each of 2 streams"),
        (some(B, 3), some(B, 3), ShapeError, r"dh .*\(2, 4\)"),
        (some(B, 3) * numpy.nan, None, ConfigError, "'x'.*finite"),
        (some(B, 3), some(B, 4) * numpy.inf, ConfigError, "'dh'.*finite"),
        (some(B, 3) + 1j, None, ConfigError, "'x'.*real numbers.*complex"),
        (some(B, 3), some(B, 4) + 1j, ConfigError, "'dh'.*real numbers.*complex"),
        (some(B, 3).astype("f8") * 1e300, None, ConfigError, "'x'.*infinite in float32"),
        (None, None, ConfigError, "'x'.*an array"),
        (some(B, 3), [[1.0]], ConfigError, "'dh'.*an array"),
    ],
)
def test_online_trainer_errors_change_nothing(x, dh, error, says):
    model = layer()
    trainer = OnlineTrainer(model, SGD(1.0), batch_size=B, update_every=5)
    before, out = params_of(model), trainer.predict(some(B, 3))
    with pytest.raises(error, match=says):
        trainer.update(x, dh)
    assert trainer.tokens == 0 and same(params_of(model), before) and same([trainer.predict(some(B, 3))], [out])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"bidirectional": True}, "backwards.*True"),
        ({"learning": "bptt"}, "bptt"),
        ({"vjp_method": "multi-step", "window": 4}, "multi-step"),
        ({"dropout": 0.1}, "dropout"),
    ],
)
def test_online_trainer_refuses_layers(settings, says):
    with pytest.raises(ConfigError, match=says):
        OnlineTrainer(layer(**settings), SGD(0.1))


def test_online_trainer_refuses_arguments():
    with pytest.raises(ConfigError, match="an OnlineRNN"):
        OnlineTrainer(Linear(2, 2), SGD(0.1))
    with pytest.raises(PipelineError, match="initialize"):
        OnlineTrainer(OnlineRNN(4, 3), SGD(0.1))
    with pytest.raises(ConfigError, match="update_every"):
        OnlineTrainer(layer(), SGD(0.1), update_every=0)
    with pytest.raises(ConfigError, match="batch_size"):
        OnlineTrainer(layer(), SGD(0.1), batch_size=0)
    with pytest.raises(ConfigError, match=r"'fast_solve'.*true or false"):
        OnlineTrainer(layer(), SGD(0.1), fast_solve=1)
    with pytest.raises(ConfigError, match="optimizer"):
        OnlineTrainer(layer(), 0.1)
    with pytest.raises(ConfigError, match="OnlineRNN among them"):
        OnlineTrainer(layer(), SGD(0.1), models={"other": Linear(2, 2)})
    with pytest.raises(ConfigError, match=r"models\.other.*a thinc Model"):
        OnlineTrainer(layer(), SGD(0.1), models={"other": 3})
    for rows in ([B], "a", [None, 3, 4]):
        with pytest.raises(ConfigError, match=r"'rows'.*from 0 to 1"):
            OnlineTrainer(layer(), SGD(0.1), batch_size=B).reset(rows)


def test_online_trainer_finds_its_layer_in_a_chain():
    model: Model = chain(layer(), Linear(2, 4))
    trainer = OnlineTrainer(model, SGD(0.1))
    assert trainer.predict(some(1, 3)).shape == (1, 4)
    assert (trainer.batch_size, trainer.update_every, trainer.fast_solve) == (1, 1, True)
    assert numpy.isfinite(trainer.predict(numpy.full((1, 3), 1.2e38, "f"))).all()  # their sum is infinite
