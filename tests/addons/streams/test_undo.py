"""A batch that was undone leaves no trace: the next update is as if it had never been."""

import numpy
import torch
from spacy.training import Example
from thinc.api import PyTorchWrapper, fix_random_seed, with_array

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.streams.backward import Undo
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.loop.model_state import collect_model

from ...models import WIDTH, pipeline_params, ready_pipeline, same, toy_examples


def pipeline():
    """With a recognizer, which notes the labels that it has seen, and a torch module with dropout and BatchNorm."""
    fix_random_seed(0)
    nlp, _ = ready_pipeline(["ner", "tagger"], shared=False)
    nlp.get_pipe("ner").add_label("NEW")
    tagger = nlp.get_pipe("tagger").model
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(WIDTH))
    tagger._layers.insert(1, with_array(PyTorchWrapper(module)))
    optimizer = TorchOptimizer(AdamW(weight_decay=0.1), 0.01)
    optimizer.initialize(nlp)
    return nlp, optimizer


def backprop(nlp, example):
    nlp.update([example], drop=0.2, sgd=False)


def update(nlp, optimizer, example):
    backprop(nlp, example)
    with optimizer.joint_step():
        for _, proc in nlp.pipeline:
            proc.finish_update(optimizer)


def test_undo_leaves_no_trace():
    found = []
    for is_undone in (False, True):
        nlp, optimizer = pipeline()
        tags, both = toy_examples(nlp, 2)
        tags = Example.from_dict(tags.predicted.copy(), {"tags": ["NNP", "VBZ", "JJ", "NNP"]})
        new = Example.from_dict(tags.predicted.copy(), {"entities": ["U-NEW", "O", "O", "O"]})
        update(nlp, optimizer, tags)
        undo = Undo(nlp)
        for example in (new, both) if is_undone else ():  # the recognizer had no gradient before
            undo.keep()
            backprop(nlp, example)
            numpy.random.random(3)
            undo.undo()
        for example in (tags, tags, both):
            undo.keep()
            update(nlp, optimizer, example)
        found.append((pipeline_params(nlp), collect_model(nlp), optimizer.state_dict()))
    (one, model, state), (other, other_model, other_state) = found
    assert all(same(params, other[name]) for name, params in one.items())
    assert model.attrs == other_model.attrs and state["grads"].keys() == other_state["grads"].keys()
    [buffers], [others] = ([*kept.modules.values()] for kept in (model, other_model))
    assert all(torch.equal(value, others[name]) for name, value in buffers.items())
