"""The precision in which torch modules compute while they are trained.

Oracles: torch.autocast around the module by hand, and models loaded in a fresh process.
"""

import copy
import pickle
import threading
import warnings
from collections import namedtuple
from contextlib import nullcontext
from dataclasses import dataclass

import numpy
import pytest
import spacy
import torch
from thinc.api import Adam as ThincAdam
from thinc.api import Model, PyTorchWrapper, Softmax, chain, fix_random_seed, with_array

from thinc_torchopt import Adam, TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.core.errors import ConfigError, ConfigWarning, PrecisionWarning
from thinc_torchopt.core.params.precision import in_float32
from thinc_torchopt.core.state.files import read_folder
from thinc_torchopt.loop.dev_loss import DevLosses

from ...models import TOK2VEC, params_of, ready_pipeline, same, toy_examples, toy_pipeline
from ...runs import config_for, digests, run, run_and_tell
from ...spacy_cli import toy_corpus

X = numpy.linspace(-1, 1, 24, dtype="f").reshape(4, 6)


class Seen(torch.nn.Module):
    """A layer that notes the dtypes in which it computes."""

    def __init__(self, width=6):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)
        self.dtypes = []

    def forward(self, x):
        y = self.layer(x)
        self.dtypes.append(str(y.dtype).removeprefix("torch."))
        return torch.tanh(y)


class ByHand(Seen):
    """The same with torch.autocast in its own forward pass."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.training):
            return super().forward(x).float()


@spacy.registry.architectures("test-precision.Tok2Vec.v1")
def torch_tok2vec(by_hand: bool) -> Model:
    torch.manual_seed(0)
    tok2vec = spacy.registry.resolve({"tok2vec": {**TOK2VEC, "width": 8, "depth": 1}})["tok2vec"]
    seen = PyTorchWrapper(ByHand(8) if by_hand else Seen(8))
    seen.set_dim("nO", 8)
    model = chain(tok2vec, with_array(seen))
    model.set_dim("nO", 8)
    return model


@spacy.registry.architectures("test-precision.Tagger.v1")
def tagger(by_hand: bool = False) -> Model:
    tok2vec = torch_tok2vec(by_hand)
    model = chain(tok2vec, with_array(Softmax(nI=8)))
    model.set_ref("tok2vec", tok2vec)
    return model


def wrapped(module):
    model = PyTorchWrapper(module)
    model.initialize()
    return model


def dtypes_of(model):
    return shim_in(model)._model.dtypes


def pipeline(sgd, *, mixed=False):
    fix_random_seed(0)
    nlp = toy_pipeline((), shared=False)
    nlp.add_pipe("tagger", config={"model": {"@architectures": "test-precision.Tagger.v1"}})
    examples = toy_examples(nlp)
    nlp.initialize(lambda: examples, sgd=sgd)
    shim_in(nlp.get_pipe("tagger").model)._mixed_precision = mixed
    return nlp, examples


def shim_in(model):
    [shim] = [shim for node in model.walk() for shim in node.shims]
    return shim


def seen_in(nlp):
    return dtypes_of(nlp.get_pipe("tagger").model)


def test_forward_pass_is_torchs_autocast_and_the_output_is_float32():
    torch.manual_seed(0)
    model = wrapped(Seen())
    module = copy.deepcopy(model.shims[0]._model)
    with TorchOptimizer(SGD(), 0.1, precision="bf16").training():
        y, backprop = model.begin_update(X)
    assert y.dtype == numpy.float32
    backprop(numpy.ones_like(y))
    x = torch.from_numpy(X)
    with torch.autocast("cpu", torch.bfloat16):
        expected = module(x)
    expected.float().backward(torch.ones_like(expected, dtype=torch.float32))
    assert numpy.array_equal(y, expected.detach().float().numpy())
    for mine, theirs in zip(model.shims[0]._model.parameters(), module.parameters()):
        assert mine.grad.dtype is torch.float32
        assert torch.equal(mine.grad, theirs.grad)


def test_predictions_are_float32_before_during_and_after_a_training():
    model = wrapped(Seen())
    optimizer = TorchOptimizer(SGD(), 0.1, precision="bf16")
    model.predict(X)
    with optimizer.training():
        _, backprop = model.begin_update(X)
        backprop(numpy.ones((4, 6), dtype="f"))
        model.predict(X)
    model.finish_update(optimizer)
    model.predict(X)
    assert dtypes_of(model) == ["float32", "bfloat16", "float32", "float32"]


def test_no_hook_is_left_on_the_module_or_saved():
    model = wrapped(Seen())
    optimizer = TorchOptimizer(SGD(), 0.1, precision="bf16")
    for _ in range(2):
        with optimizer.training():
            _, backprop = model.begin_update(X)
            backprop(numpy.ones((4, 6), dtype="f"))
            model.finish_update(optimizer)
    module = model.shims[0]._model
    assert not module._forward_hooks and not module._forward_pre_hooks
    copied = model.copy()
    copied.begin_update(X)
    assert dtypes_of(copied)[-1] == "float32"
    pickle.dumps(module)


def test_rehearse_leaves_the_precision():
    """It collects gradients with a function in place of an optimizer."""
    nlp, examples = pipeline(optimizer := TorchOptimizer(SGD(), 0.1, precision="bf16"))
    nlp.resume_training(sgd=optimizer)
    for _ in range(2):
        nlp.rehearse(examples, sgd=optimizer)
        assert seen_in(nlp)[-1] == "bfloat16"
        nlp.update(examples, sgd=optimizer)
        assert seen_in(nlp)[-1] == "bfloat16"


def test_error_in_the_forward_pass_leaves_autocast():
    class Broken(Seen):
        def forward(self, x):
            raise RuntimeError("broken")

    model = wrapped(Broken())
    with TorchOptimizer(SGD(), 0.1, precision="bf16").training(), pytest.raises(RuntimeError, match="broken"):
        model.begin_update(X)
    assert not torch.is_autocast_enabled("cpu")
    assert not model.shims[0]._model._forward_hooks


def test_autocast_is_inside_thincs_own():
    """thinc's shim switches autocast of GPUs off around the module: ours must be within."""
    found = []

    class Asks(Seen):
        def forward(self, x):
            found.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
            return self.layer(x)

    model = wrapped(Asks())
    model.shims[0]._model.register_forward_pre_hook(lambda *_: found.append(torch.is_autocast_enabled("cpu")))
    with TorchOptimizer(SGD(), 0.1, precision="bf16").training(), torch.autocast("cpu", enabled=False):
        model.begin_update(X)
        assert not torch.is_autocast_enabled("cpu")
    assert found == [True, (True, torch.bfloat16)]


def test_another_thread_predicts_in_float32_in_the_middle_of_a_pass():
    entered, done = threading.Event(), threading.Event()

    class Waits(Seen):
        def forward(self, x):
            if threading.current_thread() is not threading.main_thread():
                return super().forward(x)
            y = super().forward(x)
            entered.set()
            assert done.wait(30)
            return y

    model = wrapped(Waits())

    def predict():
        entered.wait(30)
        model.predict(X)
        done.set()

    thread = threading.Thread(target=predict)
    thread.start()
    with TorchOptimizer(SGD(), 0.1, precision="bf16").training():
        model.begin_update(X)
    thread.join()
    assert sorted(dtypes_of(model)) == ["bfloat16", "float32"]


def test_outputs_of_all_kinds_become_float32():
    half, whole, ids = torch.ones(2, dtype=torch.bfloat16), torch.ones(2), torch.arange(2)
    Pair = namedtuple("Pair", "left right")

    @dataclass(frozen=True)
    class Output:
        states: list
        text: str = "x"

    found = in_float32({"a": [half, (ids, Pair(half, None))], "b": Output([half, whole])})
    [first, (second, pair)] = found["a"]
    assert first.dtype is pair.left.dtype is found["b"].states[0].dtype is torch.float32
    assert second is ids and pair.right is None and found["b"].states[1] is whole
    assert found["b"].text == "x"


def test_output_may_refer_to_itself():
    """As an output does that knows its parent."""

    class Node:
        def __init__(self, parent):
            self.parent, self.values = parent, torch.ones(2, dtype=torch.bfloat16)

    root = Node(None)
    root.child = Node(root)
    found = in_float32(root)
    assert found.values.dtype is found.child.values.dtype is torch.float32
    assert root.values.dtype is root.child.values.dtype is torch.bfloat16


def test_bf16_ends_with_the_training_of_spacy(tmp_path):
    config = config_of(tmp_path, toy_corpus(tmp_path), "bf16", steps=2)
    nlp, _ = run_and_tell(config, None, lambda info: None)
    model = nlp.get_pipe("tagger").model
    model.begin_update([nlp.make_doc("red cars")])
    assert "bfloat16" in dtypes_of(model) and dtypes_of(model)[-1] == "float32"


def test_loss_on_development_data_is_of_float32():
    optimizer = TorchOptimizer(AdamW(), 0.01, precision="bf16")
    nlp, examples = pipeline(optimizer)
    nlp.update(examples, sgd=optimizer)
    model = nlp.get_pipe("tagger").model
    before = len(dtypes_of(model))
    DevLosses(nlp, optimizer, [], [], examples=examples)()
    assert set(dtypes_of(model)[before:]) == {"float32"}


# ---------------------------------------------------------------------- what can't work


def test_mixed_precision_of_the_model_is_refused_before_the_training():
    optimizer = TorchOptimizer(SGD(), 0.1, precision="bf16")
    nlp, examples = pipeline(optimizer, mixed=True)
    with pytest.raises(ConfigError, match="mixed_precision = true in the model of 'tagger/"):
        optimizer.initialize(nlp)
    with pytest.raises(ConfigError, match="mixed_precision = true"):
        nlp.update(examples, sgd=optimizer)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_pipeline_without_torch_is_told_once(precision):
    optimizer = TorchOptimizer(SGD(), 0.1, precision=precision)
    nlp, _ = ready_pipeline(["tagger"], sgd=optimizer)
    with pytest.warns(ConfigWarning, match="has no effect: it is for torch modules"):
        optimizer.initialize(nlp)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.initialize(nlp)


def test_emulated_bf16_is_told_and_a_device_without_it_refused(monkeypatch):
    monkeypatch.setattr("thinc_torchopt.core.params.precision.cpu_computes_bf16", lambda: False)
    optimizer = TorchOptimizer(SGD(), 0.1, precision="bf16")
    nlp, _ = pipeline(optimizer)
    with pytest.warns(PrecisionWarning, match="torch emulates it"):
        optimizer.initialize(nlp)
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda kind: False)
    with pytest.raises(ConfigError, match="expected a device on which torch has it, found 'cpu'"):
        TorchOptimizer(SGD(), 0.1, precision="bf16").initialize(nlp)


@pytest.mark.parametrize("has_lstm", [True, False])
def test_lstm_that_torch_can_not_emulate_is_refused(has_lstm, monkeypatch):
    monkeypatch.setattr("thinc_torchopt.core.params.precision.cpu_has_bf16_lstm", lambda: has_lstm)
    nlp = spacy.blank("xx")
    encoder = {"@architectures": "spacy.TorchBiLSTMEncoder.v1", "width": 8, "depth": 1, "dropout": 0.0}
    embed = {"@architectures": "spacy.MultiHashEmbed.v2", "width": 8, "attrs": ["NORM"], "rows": [50]}
    tok2vec = {"@architectures": "spacy.Tok2Vec.v2", "embed": embed | {"include_static_vectors": False}}
    nlp.add_pipe("tagger", config={"model": {"tok2vec": tok2vec | {"encode": encoder}}})
    optimizer = TorchOptimizer(SGD(), 0.1, precision="bf16")
    nlp.initialize(lambda: toy_examples(nlp), sgd=optimizer)
    with nullcontext() if has_lstm else pytest.raises(ConfigError, match=r"bf16.*an LSTM in 'tagger/.*Remove"):
        optimizer.initialize(nlp)


def test_frozen_component_is_not_checked():
    optimizer = TorchOptimizer(SGD(), 0.1, precision="bf16")
    nlp, examples = pipeline(optimizer, mixed=True)
    nlp.add_pipe("tagger", name="other", config={"model": {"@architectures": "test-precision.Tagger.v1"}})
    nlp.get_pipe("other").initialize(lambda: examples, nlp=nlp)
    optimizer.initialize(nlp, ["tagger"])


# ---------------------------------------------------------------------- tf32


def test_tf32_is_on_in_both_passes_and_restored():
    """torch's switches work without a GPU, too."""

    def is_on():
        matmul = torch.backends.cuda.matmul
        return matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32

    found = []

    class Asks(Seen):
        def forward(self, x):
            found.append(is_on())
            y = self.layer(x)
            y.register_hook(lambda grad: found.append(is_on()))
            return y

    model = wrapped(Asks())
    before = is_on(), torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    with TorchOptimizer(SGD(), 0.1, precision="tf32").training():
        y, backprop = model.begin_update(X)
    found.append(is_on())
    backprop(numpy.ones_like(y))
    assert found == [True, False, True]
    assert (is_on(), torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before


def test_tf32_on_a_cpu_is_told():
    optimizer = TorchOptimizer(SGD(), 0.1, precision="tf32")
    nlp, _ = pipeline(optimizer)
    with pytest.warns(ConfigWarning, match="has no effect: it is for NVIDIA's GPUs"):
        optimizer.initialize(nlp)


def config_of(folder, corpus, precision, *, steps, by_hand=False, **settings):
    config = config_for(folder, corpus, steps=steps, training__optimizer__precision=precision)
    config["nlp"]["pipeline"] = ["tagger"]
    model = {"@architectures": "test-precision.Tagger.v1", "by_hand": by_hand}
    config["components"] = {"tagger": {"factory": "tagger", "model": model}}
    config["training"]["optimizer"] |= settings
    return config


# ---------------------------------------------------------------------- other features: as with autocast by hand


@pytest.mark.parametrize(
    "settings",
    [
        {"use_averages": True, "grad_clip": 0.1, "clip_by": "component"},
        {"param_groups": {"torch": {"params": ["*/layer/*"], "unfreeze_at": 3}}, "skip_decay": "bias_and_norm"},
        # A rate of 1e39 in step 4 ruins the params: they are restored as they were after step 3.
        {"learn_rate": [1e39 if i == 4 else 0.01 for i in range(30)], "rollback_after": 1, "rollback_factor": 1.0},
        {"accumulate": 2, "use_averages": False, "averages": {"@misc": "thinc-torchopt.EMA.v1", "decay": 0.5}},
    ],
    ids=["averages", "frozen", "rollback", "accumulation"],
)
@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.TorchOptWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_training_with_other_features_is_that_of_autocast_by_hand(corpus, tmp_path, settings):
    """And goes on after a crash, to the bit."""
    found = []
    settings = copy.deepcopy(settings)
    accumulate = settings.pop("accumulate", 1)
    for name, precision, crash_at in (("hand", "float32", None), ("whole", "bf16", None), ("parts", "bf16", 6)):
        config = config_of(tmp_path / name, corpus, precision, steps=8, by_hand=name == "hand", **settings)
        config["training"]["accumulate_gradient"] = accumulate
        if crash_at is not None:
            run(config, tmp_path / name / "out", crash_at=crash_at)
        run(config, tmp_path / name / "out")
        found.append(digests(tmp_path / name / "out"))
        saved = read_folder(max((tmp_path / name / "state").glob("step-*")))
        assert len(saved["progress"]["rollbacks"]) == ("rollback_after" in settings)
    assert found[0] == found[1] == found[2]


def entities(sgd, by_hand):
    """A pipeline with NER, whose output layer may grow."""
    fix_random_seed(0)
    nlp = toy_pipeline((), shared=False)
    tok2vec = {"@architectures": "test-precision.Tok2Vec.v1", "by_hand": by_hand}
    nlp.add_pipe("ner", config={"model": {"tok2vec": tok2vec}})
    examples = toy_examples(nlp)
    nlp.initialize(lambda: examples, sgd=sgd)
    return nlp, examples


def test_new_label_and_copied_model_are_as_with_autocast_by_hand():
    found = []
    for precision, by_hand in (("float32", True), ("bf16", False)):
        sgd = TorchOptimizer(AdamW(), 0.01, precision=precision, use_averages=True)
        nlp, examples = entities(sgd, by_hand)
        for change in (None, "label", "copy", "freeze", "unfreeze"):
            ner = nlp.get_pipe("ner")
            if change == "label":
                ner.add_label("NEW")
            elif change == "copy":
                ner.model = ner.model.copy()
            elif change is not None:
                getattr(sgd, change)(["*/layer/weight"])
            sgd.initialize(nlp)
            for _ in range(3):
                nlp.update(examples, sgd=sgd)
            with nlp.use_params(sgd.averages):
                nlp.evaluate(examples)
                found.append(params_of(ner.model))
            found.append(params_of(ner.model))
        dtypes = dtypes_of(ner.model)
        assert set(dtypes) == {"float32", "bfloat16"} and dtypes[-1] == "float32"
    assert len(found) == 20 and all(same(one, other) for one, other in zip(found[:10], found[10:]))


def test_module_in_two_layers_is_as_with_autocast_by_hand():
    """Two shims around one module, one of them around more."""
    found = []
    for kind, precision in ((ByHand, "float32"), (Seen, "bf16")):
        torch.manual_seed(0)
        shared = kind()
        layers = [wrapped(shared), wrapped(torch.nn.Sequential(shared, kind()))]
        sgd = TorchOptimizer(AdamW(), 0.01, precision=precision)
        for _ in range(3):
            with sgd.training():
                passes = [layer.begin_update(X) for layer in layers]
                for Y, backprop in passes:
                    backprop(Y)
            with sgd.joint_step():
                for layer in layers:
                    layer.finish_update(sgd)
        assert len(sgd.params) == 4
        found.append([*params_of(layers[0]), *params_of(layers[1])])
    assert same(*found)


@pytest.mark.parametrize("build", [ThincAdam, Adam, lambda rate: TorchOptimizer(AdamW(), rate)])
@pytest.mark.parametrize("is_new", [False, True])
def test_another_optimizer_trains_in_float32(build, is_new):
    """thinc's own, a drop-in, and one without the setting: from the second update on, or from the first one after
    `initialize`. And the first one in its own precision, later.
    """
    nlp, examples = pipeline(first := TorchOptimizer(SGD(), 0.1, precision="bf16"))
    nlp.update(examples, sgd=first)
    other = build(0.01)
    if is_new:
        nlp.initialize(lambda: examples, sgd=other)
    else:
        nlp.update(examples, sgd=other)
    seen_in(nlp).clear()
    for _ in range(2):
        nlp.update(examples, sgd=other)
    assert seen_in(nlp) == ["float32"] * 2
    for _ in range(2):
        nlp.update(examples, sgd=first)
    assert seen_in(nlp)[-1] == "bfloat16"
