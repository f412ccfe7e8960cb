"""The layer of thinc and spaCy: against torch's modules, against eligibility_gradients, and in spacy train."""

import pickle

import numpy
import pytest
import spacy
import torch
from thinc.api import SGD, Ragged, get_current_ops, set_dropout_rate

from thinc_torchopt.addons.online import adjoint, gradients
from thinc_torchopt.addons.online.cells import CELLS, Cell
from thinc_torchopt.addons.online.gradients import eligibility_gradients
from thinc_torchopt.addons.online.node import describe, recurrent_nodes, weights_of
from thinc_torchopt.addons.online.online_rnn import OnlineRNN, OnlineRNNEncoder, copy_torch_weights
from thinc_torchopt.addons.online.online_trainer import OnlineTrainer
from thinc_torchopt.addons.online.relations import Dense
from thinc_torchopt.core.errors import ConfigError, ConfigWarning, ShapeError
from thinc_torchopt.core.params.names import walk
from thinc_torchopt.core.params.pipeline import all_names

from ...models import LISTENER, WIDTH, toy_examples
from ...runs import config_for, digests, run

# float32, some dozen steps, values around 1.
NEAR = 2e-5
LENGTHS = (3, 0, 9, 5)
WAYS = [{"traces": "forward"}, {"traces": "adjoint"}, {"traces": "auto"}, {"normalize_matrix_spectrum": True}]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(gradients, "BLOCK", 4)


def some(*shape):
    return get_current_ops().asarray(numpy.random.normal(size=shape).astype("f"))


def built(nO=4, nI=3, lengths=LENGTHS, **settings):
    X = [some(n, nI) for n in lengths]
    model = OnlineRNN(nO, nI, **settings)
    model.initialize(X)
    return model, X, [some(n, nO) for n in lengths]


def grads_of(model):
    return [{name: node.get_grad(name) for name in node.param_names} for node in recurrent_nodes(model)]


def near(found, expected):
    return numpy.allclose(found, expected, rtol=1e-4, atol=NEAR)


# ---------------------------------------------------------------------- torch's modules


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("cell", "cls"), [("torch-gru", "GRU"), ("torch-lstm", "LSTM"), ("rnn", "RNN")])
def test_online_rnn_with_bptt_is_torchs_module(cell, cls, depth, bidirectional):
    """Outputs, and gradients of all params and of the input, with the weights of the module."""
    model, X, dY = built(cell=cell, depth=depth, bidirectional=bidirectional, learning="bptt")
    module = getattr(torch.nn, cls)(3, 2 if bidirectional else 4, depth, bidirectional=bidirectional)
    copy_torch_weights(model, module)
    Y, backprop = model(X, is_train=True)
    dX = backprop(dY)
    loss = 0.0
    inputs = [torch.from_numpy(x).requires_grad_() for x in X]
    for x, y, dy in zip(inputs, Y, dY):
        assert y.shape == dy.shape
        if len(x):
            expected, _ = module(x[:, None])
            assert near(y, expected[:, 0].detach())
            loss = loss + (expected[:, 0] * torch.from_numpy(dy)).sum()
    loss.backward()
    assert all(near(found, x.grad) for found, x in zip(dX, inputs) if len(x))
    gates = {"GRU": "rz", "LSTM": "ifgo", "RNN": [""]}[cls]
    for i, found in enumerate(grads_of(model)):
        suffix = f"_l{i // (1 + bidirectional)}" + "_reverse" * (bidirectional and i % 2)
        ends = [f"_{gate}" if gate else "" for gate in gates] + ["_n"] * (cls == "GRU")
        W = numpy.concatenate([found[f"W{end}"] for end in ends])
        U = numpy.concatenate([found[f"U{'_hn' if end == '_n' else end}"] for end in ends])
        b = numpy.concatenate([found[f"b{end}"] for end in ends])
        for ours, theirs in ((W, "weight_ih"), (U, "weight_hh"), (b, "bias_ih")):
            assert near(ours, getattr(module, theirs + suffix).grad)
        if cls == "GRU":
            assert near(found["b_hn"], getattr(module, "bias_hh" + suffix).grad[-len(found["b_hn"]) :])


@pytest.mark.filterwarnings("ignore:Relation")
@pytest.mark.parametrize(
    "settings",
    [{}, {"learning": "bptt"}, {"normalize_matrix_spectrum": True}, {"vjp_method": "multi-step", "window": 3}],
    ids=str,
)
@pytest.mark.parametrize(("depth", "bidirectional"), [(1, False), (1, True), (3, False), (2, True)])
@pytest.mark.parametrize("cell", sorted(CELLS))
def test_online_rnn_says_whether_its_gradients_are_exact(cell, depth, bidirectional, settings):
    model, X, dY = built(cell=cell, depth=depth, bidirectional=bidirectional, lengths=(4, 5), chrono=None, **settings)
    for node in recurrent_nodes(model):
        for name in node.param_names:
            node.set_param(name, node.get_param(name) * 4)  # so that the states depend much on those before
    exact = OnlineRNN(4, 3, cell=cell, depth=depth, bidirectional=bidirectional, learning="bptt").from_bytes(
        model.to_bytes()
    )
    for one in (model, exact):
        one.begin_update(X)[1](dY)
    told = describe(model)
    assert [(info.cell, info.learning) for info in told] == [
        (cell, settings.get("learning", "d-rtrl")) for _ in recurrent_nodes(model)
    ]
    for info, found, expected in zip(told, grads_of(model), grads_of(exact)):
        same = all(numpy.allclose(found[name], grad, rtol=1e-3, atol=1e-3) for name, grad in expected.items())
        if info.gradient == "exact":
            assert same, info
        elif not {"window", "normalize_matrix_spectrum"} & settings.keys():  # with these, often little is left out
            assert not same, info


@pytest.mark.parametrize("settings", [{"bidirectional": True}, {"depth": 2}], ids=str)
@pytest.mark.parametrize("cell", ["indrnn", "mingru"])
@pytest.mark.parametrize("are_kept", [True, False])
def test_online_rnn_with_bptt_has_the_whole_gradient_of_an_exact_cell(cell, settings, are_kept, monkeypatch):
    """It is computed without a graph: of params and of the input, it is that of autograd over the steps. The states of
    very long texts are not kept.
    """
    if not are_kept:
        monkeypatch.setattr(adjoint, "_KEPT_ROWS", 0)
        monkeypatch.setattr(adjoint, "_ROWS", 2 * len(LENGTHS))
    model, X, dY = built(cell=cell, learning="bptt", **settings)
    built_cell = CELLS[cell]()
    assert built_cell.is_exact and not CELLS["torch-gru"]().is_exact and not Cell().is_exact
    for _ in range(2):
        Y, backprop = model(X, is_train=True)
        dX = backprop(dY)
        nodes = recurrent_nodes(model)
        leaves = [
            {name: w.clone().requires_grad_() for name, w in weights_of(node, built_cell).items()} for node in nodes
        ]
        inputs = [torch.from_numpy(x).requires_grad_() for x in X]
        loss = 0.0
        for x, y, dy in zip(inputs, Y, dY):
            if settings.get("bidirectional"):
                halves = [steps_of(built_cell, w, one, torch.zeros(2)) for w, one in zip(leaves, (x, x.flip(0)))]
                found = torch.cat((halves[0], halves[1].flip(0)), 1)
            else:
                found = x
                for w in leaves:
                    found = steps_of(built_cell, w, found, torch.zeros(4))
            assert near(y, found.detach())
            loss = loss + (found * torch.from_numpy(dy)).sum()
        loss.backward()
        assert all(near(found, x.grad) for found, x in zip(dX, inputs) if len(x))
        for node, weights in zip(nodes, leaves):
            found = node_weight_grads(node, built_cell)
            assert all(near(found[name], weight.grad) for name, weight in weights.items())
            for name in node.param_names:
                node.set_grad(name, node.get_grad(name) * 0)


def steps_of(cell, weights, x, state):
    """The outputs of a cell for one sequence, one step after the other."""
    relations, rows = {relation.name: relation for relation in cell.relations}, []
    for x_t in x:
        (state,) = cell.step(x_t, (state,), lambda name, *parts: relations[name].apply(weights, torch.cat(parts)))
        rows.append(state)
    return torch.stack(rows) if rows else torch.zeros(0, len(state))


@pytest.mark.parametrize("cell", sorted(CELLS))
def test_online_rnn_begins_as_torchs_modules_do(cell):
    """Uniform in +-1/sqrt(nO). The recurrent weights of an IndRNN, which torch lacks, are between 0 and 1."""
    model = OnlineRNN(400, 3, cell=cell, learning="bptt")
    model.initialize()
    (node,) = recurrent_nodes(model)
    for name in node.param_names:
        low, high = (0.0, 1.0) if name == "u" else (-0.05, 0.05)
        values = (node.get_param(name) - low) / (high - low)
        assert 0.0 <= values.min() < 0.05 and 0.95 < values.max() <= 1.0  # of 400 at least: all but once in 1e8


@pytest.mark.parametrize("cell", sorted(CELLS))
def test_online_rnn_chrono_biases_keep_the_state(cell):
    """A unit that begins at 1 is still above 1/e after as many steps as its bias is for, if it reads only zeros."""
    if cell in ("rnn", "indrnn"):
        with pytest.raises(ConfigError, match=r"'chrono'.*a gate that keeps the state"):
            OnlineRNN(4, 3, cell=cell, chrono=10)
        return
    model = OnlineRNN(500, 3, cell=cell, activation="relu", learning="bptt", chrono=40)
    model.initialize()
    (node,) = recurrent_nodes(model)
    built_cell = CELLS[cell]("relu")
    weights = {name: w if w.ndim == 1 else w * 0 for name, w in weights_of(node, built_cell).items()}
    relate = {relation.name: relation for relation in built_cell.relations}
    for name, w in weights.items():
        if name.removesuffix(".bias") not in built_cell.memory_gates:
            w.zero_()
    state = tuple(torch.ones(500) for _ in built_cell.states)
    state = built_cell.step(torch.zeros(3), state, lambda name, *parts: relate[name].apply(weights, torch.cat(parts)))
    # What is left of the state after one step is 1 - 1 / (u + 1), with u uniform in 1 to 39.
    left = state[-1]
    steps = 1 / (1 - left) - 1
    assert 1 - 1e-3 < steps.min() < 2 and 38 < steps.max() < 39 + 1e-3 and 18.5 < steps.mean() < 21.5


def test_online_rnn_copies_only_what_fits():
    model, _, _ = built(depth=2)
    with pytest.raises(ConfigError, match="2 layers"):
        copy_torch_weights(model, torch.nn.GRU(3, 4))
    with pytest.raises(ConfigError, match=r"'torch-gru'.*LSTM"):
        copy_torch_weights(model, torch.nn.LSTM(3, 4, 2))
    square = OnlineRNN(4, 4, depth=2)
    square.initialize()
    with pytest.raises(ConfigError, match="2 layers, 1 directions"):
        copy_torch_weights(square, torch.nn.GRU(4, 4, bidirectional=True))
    with pytest.raises(ConfigError, match="proj_size 2"):
        copy_torch_weights(built(cell="torch-lstm")[0], torch.nn.LSTM(3, 4, proj_size=2))
    with pytest.raises(ConfigError, match="'tanh', found 'relu'"):
        copy_torch_weights(built(cell="rnn")[0], torch.nn.RNN(3, 4, nonlinearity="relu"))
    before = model.to_bytes()
    with pytest.raises(ShapeError, match=r"layer 0.*\(4, 3\).*\(4, 5\)"):
        copy_torch_weights(model, torch.nn.GRU(5, 4, 2))
    assert model.to_bytes() == before
    copy_torch_weights(model, torch.nn.GRU(3, 4, 2, bias=False))
    assert not recurrent_nodes(model)[1].get_param("b_n").any()


# ---------------------------------------------------------------------- d-rtrl


@pytest.mark.parametrize("how", WAYS, ids=["forward", "adjoint", "auto", "normalized"])
@pytest.mark.parametrize("cell", sorted(CELLS))
@pytest.mark.filterwarnings("ignore:Relation")
def test_online_rnn_gradients_are_those_of_the_function(cell, how):
    """Of params; and of the input, exact for the same step: torch, with a state that is cut at each step."""
    model, X, dY = built(cell=cell, **how)
    Y, backprop = model(X, is_train=True)
    dX = backprop(dY)
    (node,) = recurrent_nodes(model)
    built_cell = CELLS[cell]()
    weights = weights_of(node, built_cell)
    padded = [torch.from_numpy(model.ops.pad(values).transpose(1, 0, 2).copy()) for values in (X, dY)]
    expected, outputs = eligibility_gradients(cell, weights, *padded, lengths=LENGTHS, **how)
    for i, n in enumerate(LENGTHS):
        assert near(Y[i], outputs[:n, i])
    for name, grad in node_weight_grads(node, built_cell).items():
        assert near(grad, expected[name])
    for x, dx, dy in zip(X, dX, dY):
        state = tuple(torch.zeros(4) for _ in built_cell.states)
        for t in range(len(x)):
            leaf = torch.from_numpy(x[t]).requires_grad_()
            relate = {r.name: r for r in built_cell.relations}
            state = built_cell.step(
                leaf,
                state,
                lambda name, *parts: relate[name].apply(weights, torch.cat(parts)),  # noqa: B023
            )
            (grad,) = torch.autograd.grad((state[0] * torch.from_numpy(dy[t])).sum(), leaf)
            assert near(dx[t], grad)
            state = tuple(s.detach() for s in state)


def node_weight_grads(node, cell):
    """The gradients of a node, by the names of its cell's weights."""
    other = node.copy()
    for name in node.param_names:
        other.set_param(name, node.get_grad(name))
    return weights_of(other, cell)


# ---------------------------------------------------------------------- input


@pytest.mark.parametrize("learning", ["d-rtrl", "bptt"])
@pytest.mark.device
def test_online_rnn_takes_all_forms_of_input(learning):
    model, X, dY = built(lengths=(5, 3), learning=learning)
    Y, backprop = model(X, is_train=True)
    dX = backprop(dY)
    lengths = numpy.array([5, 3], dtype="i")
    ragged, back_ragged = model(Ragged(numpy.concatenate(X), lengths), is_train=True)
    assert near(ragged.data, numpy.concatenate(Y))
    assert near(back_ragged(Ragged(numpy.concatenate(dY), lengths)).data, numpy.concatenate(dX))
    padded = model.ops.list2padded(X)
    Yp, back_padded = model(padded, is_train=True)
    dYp = model.ops.list2padded(dY)
    dYp.data[3:, 1] = numpy.nan  # beyond the end of the second: not read
    assert all(near(a, b) for a, b in zip(model.ops.padded2list(Yp), Y))
    assert all(near(a, b) for a, b in zip(model.ops.padded2list(back_padded(dYp)), dX))
    array, back_array = model(numpy.stack([X[0], X[0]], axis=1), is_train=True)
    assert near(array[:, 1], Y[0]) and back_array(array).shape == (5, 2, 3)
    assert all(near(a, b) for a, b in zip(model.predict(X), Y))


@pytest.mark.parametrize("settings", [{}, {"learning": "bptt"}, {"bidirectional": True, "depth": 2}])
@pytest.mark.parametrize("lengths", [(), (0,), (0, 0), (1, 0)])
def test_online_rnn_takes_empty_documents(lengths, settings):
    model, _, _ = built(**settings)
    X, dY = ([some(n, width) for n in lengths] for width in (3, 4))
    Y, backprop = model(X, is_train=True)
    assert [y.shape for y in Y] == [(n, 4) for n in lengths]
    assert [dx.shape for dx in backprop(dY)] == [(n, 3) for n in lengths]
    assert [y.shape for y in model.predict(X)] == [(n, 4) for n in lengths]


def test_online_rnn_finds_its_widths():
    model = OnlineRNN(bidirectional=True, depth=2)
    model.initialize([some(4, 3)], [some(4, 6)])
    assert model.predict([some(2, 3)])[0].shape == (2, 6)
    assert [(node.get_dim("nI"), node.get_dim("nO")) for node in model.layers[0].layers] == [(3, 6), (6, 6)]
    with pytest.raises(ValueError, match="nO"):
        OnlineRNN(bidirectional=True).initialize([some(4, 3)], [some(4, 5)])


def test_online_rnn_dropout():
    model, X, dY = built(dropout=0.5, lengths=(200,))
    _, backprop = model(X, is_train=True)
    dX = backprop(dY)[0]
    assert 0.3 < (dX == 0).mean() < 0.7
    set_dropout_rate(model, 0.0)
    assert near(model(X, is_train=True)[0][0], model.predict(X)[0])


@pytest.mark.parametrize("learning", ["d-rtrl", "bptt"])
def test_online_rnn_works_on_one_thread(learning):
    seen = []

    class Watched(Cell):
        relations = (Dense("W"),)
        truncated = ()

        def step(self, x, state, relate):
            seen.append(torch.get_num_threads())
            return (torch.tanh(relate("W", x, *state)),)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model, X, dY = built(cell=Watched(), learning=learning)
        seen.clear()
        model(X, is_train=True)[1](dY)
        assert set(seen) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# ---------------------------------------------------------------------- saving, errors


def test_online_rnn_comes_back_from_bytes_and_copies(tmp_path):
    model, X, _ = built(depth=2, bidirectional=True)
    other, _, _ = built(depth=2, bidirectional=True)
    model.to_disk(tmp_path / "model")
    other.from_disk(tmp_path / "model")
    for twin in (other, model.copy(), pickle.loads(pickle.dumps(model))):  # spawned processes get it so
        assert all(numpy.array_equal(a, b) for a, b in zip(model.predict(X), twin.predict(X)))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"learning": "bptt", "normalize_matrix_spectrum": True}, "'learning'"),
        ({"window": 4}, "'window'"),
        ({"bidirectional": True, "nO": 5}, "'nO'.*even"),
    ],
)
def test_online_rnn_errors(settings, says):
    with pytest.raises(ConfigError, match=says):
        OnlineRNN(**{"nO": 4, "nI": 3, **settings})


@pytest.mark.parametrize("learning", ["d-rtrl", "bptt"])
def test_online_rnn_takes_other_dtypes(learning):
    """Layers below may compute in half precision, or give float64. It computes in that of its params."""
    model, X, _ = built(learning=learning)
    Y, backprop = model.begin_update([x.astype("f2").astype("f") for x in X])
    dX = backprop(Y)
    for dtype in ("f2", "f8"):
        other, other_back = model.begin_update([x.astype("f2").astype(dtype) for x in X])
        assert all(y.dtype == "f" and numpy.array_equal(a, y) for a, y in zip(Y, other))
        assert all(numpy.array_equal(a, b) for a, b in zip(dX, other_back([y.astype("f8") for y in Y])))


def test_online_rnn_refuses_another_width_and_complex_numbers():
    model, X, _ = built()
    with pytest.raises(ShapeError, match="expected 3 numbers for each token, found 5"):
        model.predict([numpy.zeros((2, 5), "f")])
    with pytest.raises(ConfigError, match=r"input or gradient.*torch-gru.*real numbers.*complex"):
        model.predict([x + 1j for x in X])
    Y, backprop = model.begin_update(X)
    with pytest.raises(ConfigError, match="real numbers"):
        backprop([y + 1j for y in Y])


def test_online_rnn_errors_of_cells():
    """At construction, or when the widths are known."""

    class Unused(Cell):
        relations = (Dense("W"),)

        def step(self, x, state, relate):
            return state

    with pytest.raises(ConfigError, match=r"used in a step, for 'W', found 'none'"):
        built(cell=Unused())

    class SameName(Cell):
        relations = (Dense("Wz"), Dense("z"))

    with pytest.raises(ConfigError, match="W_z"):
        OnlineRNN(4, 3, cell=SameName())
    with pytest.raises(ConfigError, match="only as the first"):
        Dense("W", ("h", "x"))


@pytest.mark.parametrize(("cell", "relation"), [("gru", "Wr"), ("mgu", "Wf")])
def test_online_rnn_warns_of_gates_that_traces_cant_follow(cell, relation):
    with pytest.warns(ConfigWarning, match=f"'{relation}' .*torch-gru"):
        model = OnlineRNN(4, 3, cell=cell)
    model.initialize()
    OnlineTrainer(model, SGD(0.1))
    OnlineRNN(4, 3, cell=cell, learning="bptt")

    class Sum(Cell):
        relations = (Dense("W"),)

        def step(self, x, state, relate):
            return (torch.tanh(relate("W", x, *state).cumsum(-1)),)

    with pytest.warns(ConfigWarning, match="'W'"):
        model, *_ = built(cell=Sum())
    with pytest.warns(ConfigWarning, match="'W'.*OnlineTrainer"):
        OnlineTrainer(model, SGD(0.1))


# ---------------------------------------------------------------------- spaCy


def encoder(**settings):
    embed = {"@architectures": "spacy.MultiHashEmbed.v2", "width": WIDTH, "attrs": ["NORM"], "rows": [200]}
    return {
        "@architectures": "spacy.Tok2Vec.v2",
        "embed": {**embed, "include_static_vectors": False},
        "encode": {"@architectures": "thinc-torchopt.OnlineRNNEncoder.v1", "width": WIDTH, "depth": 1, **settings},
    }


@pytest.mark.device
def test_online_rnn_encoder_in_a_pipeline():
    nlp = spacy.blank("xx")
    nlp.add_pipe("tok2vec", config={"model": encoder(depth=2)})
    nlp.add_pipe("tagger", config={"model": {"tok2vec": LISTENER}})
    examples = toy_examples(nlp)
    nlp.initialize(lambda: examples)
    names = [name for name in all_names(nlp) if "encode" in name]
    assert names[:3] == [f"tok2vec/encode/torch-gru-0/{name}" for name in ("W_r", "U_r", "b_r")] and len(names) == 20
    biases = {found.name for found in walk(nlp.get_pipe("tok2vec").model, "tok2vec") if found.is_bias_or_norm}
    assert {name for name in names if name.split("/")[-1].startswith("b_")} == biases & set(names)
    assert nlp("")[:] is not None and len(list(nlp.pipe(["", "a b", ""]))) == 3
    again = spacy.blank("xx").from_config(nlp.config).from_bytes(nlp.to_bytes())
    assert again("Anna likes London.")[0].tag_ == nlp("Anna likes London.")[0].tag_
    assert OnlineRNNEncoder(8, 0).name == "noop"
    (node,), (same,) = (recurrent_nodes(made) for made in (OnlineRNNEncoder(1), OnlineRNN(1, 1, chrono=3)))
    assert describe(node) == describe(same) and node.attrs["dropout_rate"] == same.attrs["dropout_rate"] == 0.0


@pytest.mark.parametrize(
    "settings",
    [{"cell": "torch-lstm"}, {"depth": 2, "bidirectional": True, "learning": "bptt"}],
    ids=["d-rtrl", "bptt"],
)
def test_online_rnn_training_goes_on_bit_for_bit(settings, tmp_path, corpus):
    """spacy train, stopped and resumed, with averages and param groups."""
    changes = {
        "components__tok2vec__model": encoder(**settings),
        "training__optimizer__use_averages": True,
        "training__optimizer__param_groups": {"rnn": {"params": ["*/encode/*"], "lr_scale": 0.5}},
    }
    whole = config_for(tmp_path / "whole", corpus, steps=8, **changes)
    infos = run(whole, tmp_path / "whole" / "out")
    half = config_for(tmp_path / "half", corpus, steps=8, **changes)
    run(half, tmp_path / "half" / "out", crash_at=5)
    resumed = run(half, tmp_path / "half" / "out")
    assert min(resumed) > 0 and all(infos[step] == resumed[step] for step in resumed)
    assert digests(tmp_path / "half" / "out") == digests(tmp_path / "whole" / "out")
