"""What a training consists of beside its optimizer goes on in another process, or the first save says that it can't."""

import shutil
import tempfile
import warnings
import zlib
from contextlib import suppress
from pathlib import Path

import hypothesis
import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from thinc.api import Linear, Model, PyTorchWrapper, chain

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import StateError, TorchOptError, TorchOptWarning
from thinc_torchopt.core.params.pipeline import walk_pipeline
from thinc_torchopt.core.schema import write
from thinc_torchopt.core.state.by_name import collect_grads, restore_grads
from thinc_torchopt.core.state.files import write_folder
from thinc_torchopt.loop.checkpoint_folder import newest_whole
from thinc_torchopt.loop.checkpoint_settings import Checkpoint
from thinc_torchopt.loop.model_state import checksum_of, collect_model, restore_model

from ..core.params.test_shims import StoreShim
from ..core.state.test_by_name import JUNK, REMOVED, changed, paths_of
from ..doubles.torch_cuda import to_cuda
from ..models import backprop, grads_of, mixed_model, params_of, same, toy_examples, toy_pipeline
from ..runs import Crash, loop_over


class Component:
    """One that trains its model on random data, and its second model, if there is one."""

    is_trainable = True
    second = None

    def __init__(self, name, model):
        self.name = name
        self.model = model

    def __call__(self, doc):
        return doc

    def update(self, examples, *, drop=0.0, sgd=None, losses=None):
        losses.setdefault(self.name, 0.0)
        rng = numpy.random.default_rng(len(examples[0].reference.text))
        for model in filter(None, (self.model, self.second)):
            backprop(model, rng)
            shims = [shim for node in model.walk() for shim in node.shims if isinstance(shim, StoreShim)]
            for shim in shims:
                shim.gradients = [rng.normal(size=value.shape).astype("f") for value in shim.values]

    def finish_update(self, sgd):
        for model in filter(None, (self.model, self.second)):
            model.finish_update(sgd)


@Language.factory("torchopt-test-component", default_config={})
def make_component(nlp, name):
    return Component(name, None)


def pipeline(make_model, names=("one",)):
    torch.manual_seed(0)
    numpy.random.seed(0)
    nlp = toy_pipeline([], shared=False)
    for name in names:
        nlp.add_pipe("torchopt-test-component", name=name).model = make_model()
    return nlp


def train(nlp, folder, *, steps=8, crash_at=None, before_update=None, every=2, **settings):
    """A training, in this process. RETURNS: how many steps it made."""
    torch.manual_seed(1)  # from which lazy layers draw
    checkpoint = None if folder is None else Checkpoint(str(folder), every=every, keep=9)
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True, checkpoint=checkpoint, **settings)

    def hook(nlp, args):
        if args["step"] == crash_at:
            raise Crash
        if before_update is not None:
            before_update(nlp, args["step"])

    examples = toy_examples(nlp, 12)
    run = loop_over(nlp, optimizer, [examples[i : i + 2] for i in range(steps)], before_update=hook)
    try:
        return sum(1 for _ in run)
    except Crash:
        return -1


def values(nlp):
    """All that the pipeline has learned, as bytes."""

    def flat(tree):
        if isinstance(tree, torch.Tensor):
            return tree.numpy().tobytes()
        if isinstance(tree, dict):
            return {key: flat(value) for key, value in tree.items()}
        return [flat(value) for value in tree] if isinstance(tree, list) else repr(tree)

    return flat(write(collect_model(nlp)))


def with_store():
    shim = StoreShim([numpy.ones((2, 3)), numpy.arange(4.0)])
    return chain(Linear(3, 5), Model("store", lambda model, X, is_train: (X, lambda dY: dY), shims=[shim])).initialize()


def with_torch():
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3))
    module[0].requires_grad_(False)
    return chain(Linear(5, 5), PyTorchWrapper(module)).initialize()


def thaw_once(nlp, step):
    if step == 1:
        nlp.get_pipe("one").model.layers[1].shims[0]._model.requires_grad_(True)


def with_lazy_torch():
    return chain(
        Linear(5, 5), PyTorchWrapper(torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.Linear(4, 3)))
    ).initialize()


def lazy_forward(model, X, is_train):
    if not model.has_param("W"):
        model.set_param("W", numpy.ones((3, X.shape[1]), "f"))
    W = model.get_param("W")

    def backward(dY):
        model.inc_grad("W", dY.T @ X)
        return dY @ W

    return X @ W.T, backward


def with_lazy_thinc():
    return chain(Linear(5, 5), Model("lazy", lazy_forward, params={"W": None})).initialize()


def count(model, X, is_train):
    model.attrs["seen"][:] += X.shape[0]
    model.attrs["scale"] = numpy.float32(model.attrs["scale"] * numpy.float32(0.9))
    model.attrs["by_number"] = {**model.attrs["by_number"], len(model.attrs["by_number"]): 1}
    factor = numpy.float32(model.attrs["seen"].mean() * 0.01) * model.attrs["scale"]
    return X * factor, lambda dY: dY * factor


def with_attrs():
    attrs = {"seen": numpy.zeros(3), "scale": numpy.float32(1.0), "by_number": {}}
    return chain(Linear(3, 5), Model("count", count, attrs=attrs)).initialize()


def disable(nlp, step):
    if step == 1:
        nlp.disable_pipe("two")


RESUMABLE = {
    "thawed by a callback": (with_torch, thaw_once, {}),
    "lazy torch params": (with_lazy_torch, None, {}),
    "lazy thinc params": (with_lazy_thinc, None, {}),
    "arrays in attrs": (with_attrs, None, {}),
    "disabled by a callback": (lambda: Linear(3, 5).initialize(), disable, {}),
    "frozen block": (with_torch, thaw_once, {"param_groups": {"late": {"params": ["*/1/bias"], "unfreeze_at": 5}}}),
}


@pytest.mark.parametrize("name", RESUMABLE)
def test_model_state_lets_a_run_go_on_exactly(name, tmp_path):
    make_model, before_update, settings = RESUMABLE[name]
    whole, broken, other = (pipeline(make_model, ("one", "two")) for _ in range(3))
    assert train(whole, tmp_path / "whole", before_update=before_update, **settings) == 8
    assert train(broken, tmp_path / "broken", before_update=before_update, crash_at=5, **settings) == -1
    assert train(other, tmp_path / "broken", before_update=before_update, **settings) == 3
    assert values(other) == values(whole)


def second_model(nlp, step):
    nlp.get_pipe("one").second = nlp.get_pipe("one").second or Linear(3, 5).initialize()


def change_layers(nlp, step):
    if step == 1:
        nlp.get_pipe("one").model = chain(Linear(4, 5), Linear(3, 4)).initialize()


def add_component(nlp, step):
    if step == 1:
        nlp.add_pipe("sentencizer", first=True)


REFUSED = {
    "other layers": (
        change_layers,
        "expected the pipeline as it was when training began, found other components, params or shapes",
    ),
    "other components": (add_component, "found other components.*component 'sentencizer'.*add_pipe"),
    "second model": (
        second_model,
        "Can't save the state of param .*a second model of a component.*Make the model part of",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_model_state_that_cannot_be_taken_up_is_refused_at_the_first_save(name, tmp_path):
    before_update, message = REFUSED[name]
    with pytest.raises(StateError, match=message):
        train(pipeline(lambda: Linear(3, 5).initialize()), tmp_path, before_update=before_update)


def test_model_state_of_a_model_outside_the_pipeline_is_refused():
    nlp, outside = pipeline(lambda: Linear(3, 5).initialize()), Linear(3, 5).initialize()
    optimizer = TorchOptimizer(AdamW())
    optimizer.initialize(nlp)
    backprop(outside, numpy.random.default_rng(0))
    outside.finish_update(optimizer)
    with pytest.raises(
        StateError, match=r"Can't save the state of param 'linear/.*': expected params of the models of components"
    ):
        optimizer.state_dict()


class Counter(Component):
    """Its model is none of thinc's."""

    def update(self, examples, *, drop=0.0, sgd=None, losses=None):
        losses.setdefault(self.name, 0.0)
        self.model.append(len(examples[0].reference.text))

    def finish_update(self, sgd):
        pass


@pytest.mark.parametrize(
    ("part", "named"), [(with_store, "the StoreShim 'one/store'"), (list, "the component 'one'")], ids=["shim", "model"]
)
def test_model_state_of_other_frameworks_trains_without_checkpoints_only(part, named, tmp_path):
    """The error comes before anything is trained or written."""
    nlp = pipeline(lambda: Linear(3, 5).initialize(), ("one", "two"))
    nlp._components[-2] = ("one", (Counter if part is list else Component)("one", part()))
    with pytest.raises(StateError, match=rf"Can't save the state of this pipeline: .*{named}.*without \[training"):
        train(nlp, tmp_path / "state", before_update=lambda nlp, step: pytest.fail("it began"))
    assert not list(tmp_path.iterdir())
    assert train(nlp, None) == 8


# ---------------------------------------------------------------------- right checksums around anything at all


@pytest.fixture(scope="module")
def checkpoint_to_damage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    train(pipeline(with_torch, ("one", "two")), folder, crash_at=5)
    tree = write(newest_whole(folder))
    shutil.rmtree(folder)
    return tree


@given(st.data())
@hypothesis.settings(
    deadline=None,
    derandomize=True,
    max_examples=30,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_model_state_of_a_stranger_gives_errors_of_ours(checkpoint_to_damage, data):
    """A part of a checkpoint is gone, or another: the run goes on from it, or refuses it, and does not hang."""
    tree = checkpoint_to_damage
    for _ in range(data.draw(st.integers(1, 2))):
        keys = data.draw(st.sampled_from(sorted(paths_of(tree), key=repr)))
        tree = changed(tree, *keys, value=data.draw(st.sampled_from([REMOVED, *JUNK])))
    nlp = pipeline(with_torch, ("one", "two"))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchOptWarning)
        write_folder(Path(folder) / "step-00000004", tree)
        with suppress(TorchOptError):
            train(nlp, folder, steps=7)


def test_model_state_is_restored_from_a_gpu():
    """Each tensor, wherever it is: NumPy takes those in the main memory only."""
    nlp, other = pipeline(mixed_model), pipeline(mixed_model)
    models = [found.get_pipe("one").model for found in (nlp, other)]
    backprop(models[0], numpy.random.default_rng(0))
    saved, grads = collect_model(nlp), collect_grads(walk_pipeline(nlp))
    for part in (saved.params, *saved.modules.values(), grads):
        part.update({name: to_cuda(value.detach()) for name, value in part.items()})
    for layer in models[1].walk():
        for name in layer.param_names:
            layer.set_param(name, layer.get_param(name) + 1)
    backprop(models[1], numpy.random.default_rng(1))
    restore_model(other, saved)
    grads = {name: grad.cpu() if "torch" in name else grad for name, grad in grads.items()}
    restore_grads(walk_pipeline(other), grads)
    assert same(*map(params_of, models)) and same(*map(grads_of, models))


def test_model_state_has_the_checksum_of_all_weights():
    found = collect_model(pipeline(mixed_model))
    found.params["a view"] = torch.arange(6.0).reshape(2, 3).T
    tensors = [*found.params.values(), *(value for module in found.modules.values() for value in module.values())]
    data = b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)
    assert found.modules and checksum_of(found) == f"{zlib.crc32(data):08x}"
