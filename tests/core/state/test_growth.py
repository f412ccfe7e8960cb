"""State that follows its param in a pipeline: new labels, new layers, components that come, go, and change their
names.
"""

import copy

import numpy
import pytest
import spacy
import torch
from spacy.training import Example
from thinc.api import Linear, PyTorchWrapper, chain

from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW, create
from thinc_torchopt.core.errors import ConfigError, GrowthWarning, StateError
from thinc_torchopt.core.labels import add_labels
from thinc_torchopt.core.rates.new_params import Warmup
from thinc_torchopt.core.state.files import read_folder

from ...models import backprop, optimizer_for, params_of, pipeline_of, ready_pipeline, same, toy_examples, toy_pipeline
from ..labels.test_add_labels import moments

BOW = {
    "model": {
        "@architectures": "spacy.TextCatBOW.v3",
        "exclusive_classes": True,
        "ngram_size": 1,
        "no_output_layer": False,
        "length": 4096,
    }
}
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*could never learn"
)  # of labels that spaCy's add_label adds to a text classifier

GROWS = ["ner", "parser", "textcat", "textcat_multilabel"]


def trained(component, **settings):
    """A pipeline of one component after five updates."""
    nlp = toy_pipeline([] if component.startswith("textcat") else [component], shared=False)
    if component.startswith("textcat"):
        nlp.add_pipe(component, config=BOW)
    examples = toy_examples(nlp, 8)
    nlp.initialize(lambda: examples)
    optimizer = optimizer_for(nlp, AdamW(), 0.01, use_averages=True, **settings)
    for _ in range(5):
        nlp.update(examples, sgd=optimizer)
    return nlp, examples, optimizer


def averages_of(optimizer):
    """By name."""
    return optimizer.state_dict()["averages"]["tensors"]


@pytest.mark.parametrize("component", GROWS)
@pytest.mark.device
def test_growth_old_rows_keep_their_state_when_a_label_is_added(component):
    nlp, examples, optimizer = trained(component)
    before = moments(optimizer)
    shapes = {name: tuple(param.shape) for name, param in optimizer.params.items()}
    averages = {name: average.clone() for name, average in averages_of(optimizer).items()}
    nlp.get_pipe(component).add_label("NEW")
    optimizer.initialize(nlp)
    grown = [name for name, param in optimizer.params.items() if tuple(param.shape) != shapes[name]]
    assert grown and set(optimizer.params) == set(shapes)
    after = moments(optimizer)
    for name in shapes:
        leading = tuple(slice(size) for size in shapes[name])
        assert torch.equal(after[name]["step"], before[name]["step"])
        for moment in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(after[name][moment][leading], before[name][moment]), (name, moment)
            assert after[name][moment].shape == optimizer.params[name].shape and after[name][moment].isfinite().all()
        average = averages_of(optimizer)[name]
        assert torch.equal(average[leading], averages[name]) and average.shape == optimizer.params[name].shape
    # New cells: the mean over the old ones; averages: as the param is.
    name = next(name for name in grown if name.endswith("b"))
    n = shapes[name][0]
    torch.testing.assert_close(after[name]["exp_avg_sq"][n], before[name]["exp_avg_sq"].mean())
    # Nothing stale is left, and training goes on.
    inner = optimizer.torch_optimizers["algorithm"]
    held = {id(tensor) for group in inner.param_groups for tensor in group["params"]}
    assert {id(tensor) for tensor in inner.state} == held and len(held) == len(shapes)
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    assert all(param.isfinite().all() for param in optimizer.params.values())
    with nlp.use_params(optimizer.averages):
        nlp(nlp.make_doc("Anna likes London"))


@pytest.mark.parametrize("loaded", [False, True])
def test_growth_of_flat_weights_is_by_rows(loaded, tmp_path):
    """SparseLinear's, where the weights of a class lie one behind the other. The oracle: the mean of the rows."""
    nlp, _, optimizer = trained("textcat")
    name = "textcat/output_layer/W"
    before = {key: value.view(2, -1) for key, value in moments(optimizer)[name].items() if value.numel() > 1}
    assert before["exp_avg_sq"].std() and optimizer.params[name].dim() == 1
    optimizer.to_disk(tmp_path / "state")
    nlp.get_pipe("textcat").add_label("NEW")
    if loaded:
        optimizer = optimizer_for(nlp, AdamW(), 0.01, use_averages=True)
        optimizer.from_disk(tmp_path / "state", on_growth="mean")
    else:
        optimizer.initialize(nlp)
    for key, old in before.items():
        found = optimizer.torch_optimizers["algorithm"].state[optimizer.params[name]][key].view(3, -1)
        assert torch.equal(found[:2], old) and torch.equal(found[2], old.mean(0))


@pytest.mark.parametrize(("on_growth", "expected"), [("mean", "mean"), ("zero", "zero"), ("reset", "reset")])
@pytest.mark.device
def test_growth_fills_new_cells_as_the_setting_says(on_growth, expected):
    nlp, _, optimizer = trained("ner", on_growth=on_growth)
    name = "ner/upper/b"
    before, n = moments(optimizer)[name], optimizer.params[name].shape[0]
    nlp.get_pipe("ner").add_label("NEW")
    optimizer.initialize(nlp)
    after = optimizer.torch_optimizers["algorithm"].state[optimizer.params[name]]
    if expected == "reset":
        assert not after and [info.updates for info in optimizer.describe([name])] == [0]
    else:
        assert (after["exp_avg"][n:] == (before["exp_avg"].mean() if expected == "mean" else 0.0)).all()


@pytest.mark.parametrize("component", ["tagger", "morphologizer", "spancat"])
def test_growth_spacy_refuses_labels_for_some_components(component):
    """If this fails, spaCy has learned it, and the list in docs/growing-models.md has to grow too."""
    nlp, _, _ = trained(component)
    with pytest.raises(ValueError, match="E922"):
        nlp.get_pipe(component).add_label("Foo=Bar")


class Embeds(torch.nn.Module):
    def __init__(self, rows, layers=1):
        super().__init__()
        self.embed = torch.nn.Embedding(rows, 5)
        self.layer = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in range(layers))

    def forward(self, X):
        Y = X + self.embed.weight.mean(0)
        for layer in self.layer:
            Y = layer(Y)
        return Y


def torch_pipeline(algorithm, **settings):
    model = chain(PyTorchWrapper(Embeds(4)), Linear(3, 5)).initialize()
    nlp = pipeline_of(trf=model)
    optimizer = optimizer_for(nlp, algorithm, 0.01, grad_clip=0.0, **settings)
    update(optimizer, model, 3)
    return nlp, model, optimizer


def update(optimizer, model, n):
    for step in range(n):
        backprop(model, numpy.random.default_rng(step))
        model.finish_update(optimizer)
        optimizer.step_schedules()


@pytest.mark.parametrize("algorithm", [AdamW(), SGD(momentum=0.9)], ids=lambda a: a.label)
def test_growth_of_a_torch_module(algorithm):
    """A larger embedding keeps its rows; a new layer joins with a warm-up."""
    nlp, model, optimizer = torch_pipeline(algorithm, new_params_warmup=10)
    inner = optimizer.torch_optimizers["algorithm"]
    key = "exp_avg" if "betas" in algorithm.options else "momentum_buffer"
    before = inner.state[optimizer.params["trf/pytorch/embed/weight"]][key].clone()
    module = model.layers[0].shims[0]._model
    larger = torch.nn.Embedding(6, 5)
    with torch.no_grad():
        larger.weight[:4] = module.embed.weight
    module.embed = larger
    module.layer.append(torch.nn.Linear(5, 5))
    optimizer.initialize(nlp)
    state = inner.state[optimizer.params["trf/pytorch/embed/weight"]][key]
    assert state.shape == (6, 5) and torch.equal(state[:4], before)
    expected = before.mean(0) * (1.0 if key == "exp_avg" else 0.1)
    torch.testing.assert_close(state[5], expected)
    rates = []
    for step in range(12):
        backprop(model, numpy.random.default_rng(step))
        model.finish_update(optimizer)
        rates.append(optimizer.learn_rates)
    assert all(rate["default"] == 0.01 for rate in rates)
    warmup = Warmup(10)  # from a hundredth of a tenth, in ten updates, to a tenth
    assert [rate["new"] for rate in rates] == pytest.approx([warmup.rate(step, 0.001) for step in range(12)], rel=1e-12)
    assert rates[0]["new"] == pytest.approx(1e-5) and rates[-1]["new"] == pytest.approx(1e-3)
    assert len(inner.state) == len(optimizer.params) == 7


def test_growth_components_come_go_and_change_their_names():
    nlp, examples = ready_pipeline(["tagger", "ner"], n=8)
    optimizer = optimizer_for(nlp, AdamW(), 0.01)
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    before = moments(optimizer)
    nlp.rename_pipe("tagger", "tags")
    nlp.remove_pipe("ner")
    nlp.add_pipe("senter").initialize(lambda: examples, nlp=nlp)
    optimizer.initialize(nlp)
    assert {name.split("/")[0] for name in optimizer.params} == {"tok2vec", "tags", "senter"}
    after = moments(optimizer)
    kept = {name: name.replace("tagger", "tags") for name in before if not name.startswith("ner")}
    assert all(torch.equal(after[new][key], before[old][key]) for old, new in kept.items() for key in before[old])
    nlp.update([Example(nlp.make_doc(e.text), e.reference) for e in examples], sgd=optimizer)
    assert optimizer.learn_rates["new"] == pytest.approx(0.01 * 0.1 * 0.01) and optimizer.learn_rates["default"] == 0.01
    inner = optimizer.torch_optimizers["algorithm"]
    assert len(inner.state) == sum(len(group["params"]) for group in inner.param_groups) == len(optimizer.params)
    nlp.replace_listeners("tok2vec", "tags", ["model.tok2vec"])
    optimizer.initialize(nlp)
    assert any(name.startswith("tags/tok2vec/") for name in optimizer.params)
    nlp.update([Example(nlp.make_doc(e.text), e.reference) for e in examples], sgd=optimizer)


@pytest.mark.parametrize("seen_between", [True, False])
@pytest.mark.parametrize("component", GROWS)
def test_growth_of_a_component_with_another_name(component, seen_between):
    """It was renamed between the same two updates. The oracle: one with the old name."""
    found = []
    for name in (component, "other"):
        spacy.util.fix_random_seed(0)
        nlp, examples, optimizer = trained(component)
        nlp.get_pipe(component).add_label("NEW")
        if seen_between:
            optimizer.initialize(nlp)
        if name != component:
            nlp.rename_pipe(component, name)
        spacy.util.fix_random_seed(1)
        nlp.update(examples, sgd=optimizer)
        assert {param.partition("/")[0] for param in optimizer.params} == {name}
        updates = {info.name.removeprefix(name): info.updates for info in optimizer.describe()}
        assert max(updates.values()) == 6
        found.append((updates, {param.removeprefix(name): kept for param, kept in moments(optimizer).items()}))
    (expected_updates, expected), (updates, ours) = found
    assert updates == expected_updates
    assert all(torch.equal(ours[param][key], value) for param in expected for key, value in expected[param].items())


def test_growth_of_a_run_that_goes_on(tmp_path):
    """What joined in mid-training is still new after a restart."""
    nlp, model, optimizer = torch_pipeline(AdamW(), new_params_warmup=10)
    model.layers[0].shims[0]._model.layer.append(torch.nn.Linear(5, 5))
    optimizer.initialize(nlp)
    update(optimizer, model, 4)
    optimizer.to_disk(tmp_path / "state")
    other = optimizer_for(nlp, AdamW(), 0.01, grad_clip=0.0, new_params_warmup=10)
    other.from_disk(tmp_path / "state")
    update(other, model, 1)
    assert other.learn_rates["new"] == pytest.approx(Warmup(10).rate(4, 0.001), rel=1e-12)


@pytest.mark.parametrize("on_growth", ["mean", "zero"])
@pytest.mark.parametrize("component", GROWS)
def test_growth_between_saving_and_loading(component, on_growth, tmp_path):
    """The oracle: an optimizer that was there when the label came."""
    nlp, examples, optimizer = trained(component, on_growth=on_growth)
    optimizer.to_disk(tmp_path / "state")
    nlp.get_pipe(component).add_label("NEW")
    other = optimizer_for(nlp, AdamW(), 0.01, use_averages=True)
    with pytest.raises(
        StateError, match=r"of another shape \(.*, was \(.*labels were added since: then load it with on_growth"
    ):
        other.from_disk(tmp_path / "state")
    assert not any(other.nr_update.values()) and not other.torch_optimizers["algorithm"].state
    saved = read_folder(tmp_path / "state")
    saved["params"]["ner/upper/W" if component == "ner" else next(iter(saved["params"]))]["shape"] = 5
    with pytest.raises(StateError, match="/shape' to be a list, found 5"):
        other.load_state_dict(saved, on_growth=on_growth)
    other.from_disk(tmp_path / "state", on_growth=on_growth)
    optimizer.initialize(nlp)
    expected, found = moments(optimizer), moments(other)
    assert found.keys() == expected.keys()
    for name in expected:
        assert all(torch.equal(found[name][key], expected[name][key]) for key in ("step", "exp_avg", "exp_avg_sq")), (
            name
        )
    assert other.nr_update == optimizer.nr_update
    ours, theirs = other.averages, optimizer.averages
    assert ours.keys() == theirs.keys() and all(numpy.array_equal(ours[key], theirs[key]) for key in theirs)
    nlp.update(examples, sgd=other)
    with pytest.raises(ConfigError, match="expected on_growth to be 'mean' or 'zero', found 'reset'"):
        other.from_disk(tmp_path / "state", on_growth="reset")


def test_growth_of_state_that_cannot_grow():
    """SOAP keeps a matrix for each dimension. So it is with a state that is loaded."""
    pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")
    nlp, model, optimizer = torch_pipeline(create("soap"), use_averages=True)
    saved = copy.deepcopy(optimizer.state_dict())
    module = model.layers[0].shims[0]._model
    larger = torch.nn.Embedding(6, 5)
    with torch.no_grad():
        larger.weight[:4] = module.embed.weight
    module.embed = larger
    with pytest.warns(
        GrowthWarning, match=r"param 'trf/pytorch/embed/weight' to its new shape: .*'\w+'.*It starts without state"
    ):
        optimizer.initialize(nlp)
    updates = {info.name: info.updates for info in optimizer.describe()}
    assert {name for name, n in updates.items() if not n} == {"trf/pytorch/embed/weight"}
    resumed = optimizer_for(nlp, create("soap"), 0.01, use_averages=True)
    with pytest.warns(
        GrowthWarning, match=r"param 'trf/pytorch/embed/weight' to its new shape: .*'\w+'.*It starts without state"
    ):
        resumed.load_state_dict(saved, on_growth="mean")
    assert {info.name: info.updates for info in resumed.describe()} == updates
    assert averages_of(resumed).keys() == averages_of(optimizer).keys() == updates.keys() - {"trf/pytorch/embed/weight"}
    for by in (optimizer, resumed):
        update(by, model, 1)
        assert all(param.isfinite().all() for param in by.params.values())


@pytest.mark.parametrize("copies", [lambda model: model.copy(), copy.deepcopy], ids=["copy", "deepcopy"])
def test_growth_of_copied_models_goes_on_too(copies):
    """A new label after a copy: names, settings by name and states are as without it."""
    found = []
    for copied in (False, True):
        spacy.util.fix_random_seed(0)
        nlp = toy_pipeline(["tagger"], shared=False)
        examples = toy_examples(nlp)
        nlp.initialize(lambda examples=examples: examples)
        optimizer = optimizer_for(nlp, AdamW(), 0.01, per_param_lr={"tagger/output_layer/*": 0.02})
        pipe = nlp.get_pipe("tagger")
        for step in range(6):
            if step == 2 and copied:
                pipe.model = copies(pipe.model)
            if step == 4:
                add_labels(nlp, "tagger", ["XX"])
            nlp.update(examples, sgd=optimizer)
        infos = [(info.name, info.updates, info.learn_rate) for info in optimizer.describe()]
        found.append((params_of(pipe.model), infos, list(optimizer.state_dict()["params"])))
    assert same(found[0][0], found[1][0]) and found[0][1:] == found[1][1:]
