"""The weights of a pipeline by name."""

import pytest
import spacy
import torch
from thinc.api import Model, PyTorchWrapper

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.federated.weights import Weights
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.core.errors import PipelineError

from ...models import ready_pipeline, torch_model


def initialized(components=("tagger", "ner"), **settings):
    nlp, _ = ready_pipeline(components, **settings)
    return nlp


def test_weights_have_the_names_of_the_optimizer():
    """And are all that it trains."""
    nlp = initialized()
    optimizer = TorchOptimizer(AdamW())
    optimizer.initialize(nlp, ["tagger"])
    weights = Weights(nlp, ["tagger"])
    assert set(weights.params) == set(optimizer.params) and not weights.buffers
    for name, value in weights.collect().items():
        assert torch.equal(value, optimizer.params[name])


def test_weights_go_from_one_pipeline_to_another():
    first, second = initialized(), initialized()
    collected = {name: value + 1.0 for name, value in Weights(first).collect().items()}
    arrays = [node.get_param(name) for node in second.get_pipe("ner").model.walk() for name in node.param_names]
    arrays[0].flags.writeable = False
    Weights(second).load(collected)
    assert all(torch.equal(value, collected[name]) for name, value in Weights(second).collect().items())
    # In place, where that can be: what has a view of them sees the new values.
    again = [node.get_param(name) for node in second.get_pipe("ner").model.walk() for name in node.param_names]
    assert len(arrays) > 5 and [one is other for one, other in zip(arrays, again)] == [
        False,
        *[True] * (len(arrays) - 1),
    ]


def test_weights_of_torch_modules_come_with_their_buffers():
    nlp = initialized(["tagger"], shared=False)
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    module[0].bias.requires_grad_(False)
    nlp.get_pipe("tagger").model.layers.append(PyTorchWrapper(module))
    weights = Weights(nlp)
    assert any(name.endswith("0/weight") for name in weights.params)
    assert not any(name.endswith("0/bias") for name in weights.params)
    assert [name.rpartition("/")[2] for name in weights.buffers] == ["running_mean", "running_var"]
    weights.load({name: torch.full_like(value, 2.0) for name, value in weights.collect().items()})
    assert module[1].running_var.tolist() == [2.0] * 3 and module[0].weight.unique().tolist() == [2.0]
    assert module[0].bias.unique().tolist() != [2.0]
    assert set(weights.checksums()) == {"tagger"}


def test_weights_that_stay_have_checksums():
    nlp = initialized()
    weights = Weights(nlp, ["tagger", "tok2vec"])
    before = weights.checksums()
    assert set(before) == {"tagger", "tok2vec"} and not any(name.startswith("tagger") for name in weights.params)
    node = next(node for node in nlp.get_pipe("tagger").model.walk() if node.has_param("W"))
    node.get_param("W")[0] += 1.0
    after = weights.checksums()
    assert after["tagger"] != before["tagger"] and after["tok2vec"] == before["tok2vec"]


def test_weights_of_frozen_params_stay():
    nlp = initialized()
    optimizer = TorchOptimizer(AdamW(), param_groups={"embed": {"params": ["tok2vec/*"], "freeze": True}})
    optimizer.initialize(nlp)
    weights = Weights(nlp, (), optimizer.frozen_until)
    assert set(weights.params) == set(optimizer.params) and set(weights.checksums()) == {"tok2vec"}
    assert {name.partition("/")[0] for name in weights.fixed} == {"tok2vec"}


@pytest.mark.parametrize(
    ("exclude", "message"),
    [(("tagger",), "at least one trainable component"), ((), "expected params of thinc or torch")],
)
def test_weights_that_cannot_be_averaged_are_refused(exclude, message):
    class Foreign:
        is_trainable = True
        model = object()

        def __call__(self, doc):
            return doc

    nlp = initialized(["tagger"], shared=False)
    if not exclude:
        spacy.Language.factory("foreign_federated", func=lambda nlp, name: Foreign())
        nlp.add_pipe("foreign_federated")
    with pytest.raises(PipelineError, match=message):
        Weights(nlp, exclude)


def test_weights_of_a_layer_that_two_components_share_are_one():
    nlp = initialized(["tagger", "ner"], shared=False)
    shared: Model = torch_model()
    for name in ("tagger", "ner"):
        nlp.get_pipe(name).model.layers.append(shared)
    weights = Weights(nlp, ["tagger"])
    assert len([name for name in weights.params if name.endswith("3/weight")]) == 1
    assert not any(found.param is not None for found in weights._fixed.values())


def test_weights_move_by_their_gradients():
    """Params of thinc and of torch. SGD at a rate of 1 subtracts them."""
    nlp = initialized(["tagger"], shared=False)
    nlp.get_pipe("tagger").model.layers.append(torch_model())
    optimizer = TorchOptimizer(SGD(), 1.0, grad_clip=0.0)
    optimizer.initialize(nlp)
    weights = Weights(nlp)
    before = weights.collect()
    weights.set_grads(optimizer, {name: torch.ones_like(value) for name, value in before.items()})
    optimizer.step()
    assert all(torch.equal(value, before[name] - 1.0) for name, value in weights.collect().items())
