"""A state that is loaded into another pipeline than that from which it was saved: as it would have been within one
process.
"""

import copy

import numpy
import pytest
import torch
from thinc.api import Linear

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.errors import ConfigError, GrowthWarning, StateError

from ...models import backprop, mixed_model, params_of, same, same_tree, toy_pipeline

SETTINGS = {"averages": EMA(), "param_groups": {"top": {"params": ["*/pytorch/3/*"], "lr_scale": 0.5}}}
PLACES = ("tagger", "morphologizer", "ner")  # spaCy's components, of which only names and models count here


def pipeline(*names):
    """A component of each name, each with a model of its own."""
    nlp = toy_pipeline(PLACES[: len(names)], shared=False)
    for place, name in zip(list(nlp.pipe_names), names):
        nlp.get_pipe(place).model = model = Linear(3, 5).initialize() if name.startswith("plain") else mixed_model()
        for shim in [shim for node in model.walk() for shim in node.shims]:
            shim._model[1] = torch.nn.BatchNorm1d(6)  # with buffers
        nlp.rename_pipe(place, name)
    return nlp


def make(nlp, exclude=(), **settings):
    optimizer = TorchOptimizer(AdamW(), 0.01, **{**SETTINGS, **settings})
    optimizer.initialize(nlp, exclude)
    return optimizer


def train(nlp, optimizer, steps, exclude=()):
    for step in steps:
        with optimizer.joint_step():
            for i, name in enumerate(nlp.pipe_names):
                if name not in exclude:
                    backprop(nlp.get_pipe(name).model, numpy.random.default_rng(10 * step + i))
                    nlp.get_pipe(name).model.finish_update(optimizer)
        optimizer.step_schedules()


def all_params(nlp):
    return [value for name in nlp.pipe_names for value in params_of(nlp.get_pipe(name).model)]


def averaged(nlp, optimizer):
    with nlp.use_params(optimizer.averages):
        return all_params(nlp)


def add(nlp):
    nlp.add_pipe("senter", name="new").model = Linear(3, 5).initialize()


def rename(nlp):
    nlp.rename_pipe("one", "uno")


CHANGES = {
    "added": (add, {}, "start without state: all 2 params of new"),
    "removed": (lambda nlp: nlp.remove_pipe("two"), {}, "dropped: all 8 params of two"),
    "renamed": (rename, {"one": "uno"}, None),
    "all": (
        lambda nlp: (nlp.remove_pipe("two"), add(nlp), rename(nlp)),
        {"one": "uno"},
        "dropped: all 8 params of two; start without state: all 2 params of new",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_state_match_is_as_within_one_process(name):
    """The pipeline changes, and the same optimizer goes on; or another one that takes its state."""
    change, renamed, message = CHANGES[name]
    nlp = pipeline("one", "two", "plain")
    first = make(nlp)
    train(nlp, first, range(4))
    saved = copy.deepcopy(first.state_dict())
    numpy.random.seed(0)
    change(nlp)
    before = all_params(nlp)
    first.initialize(nlp)
    train(nlp, first, range(4, 8))
    expected, expected_averages = all_params(nlp), averaged(nlp, first)
    for param, value in zip(raw_params(nlp), before):
        param[...] = value.numpy() if isinstance(param, numpy.ndarray) else value
    second = make(nlp)
    if message is None:
        second.load_state_dict(saved, renamed=renamed)
    else:
        with pytest.raises(StateError, match=r"expected the .* params of this pipeline, found .* (missing|unexpected)"):
            second.load_state_dict(saved, renamed=renamed)
        with pytest.warns(GrowthWarning) as warned:
            second.load_state_dict(saved, on_growth="mean", renamed=renamed)
        assert [str(found.message).partition("frozen params. ")[2] for found in warned] == [f"{message}."]
    train(nlp, second, range(4, 8))
    assert same(all_params(nlp), expected) and same(averaged(nlp, second), expected_averages)
    assert second.learn_rates == first.learn_rates
    assert same_tree(*(one.state_dict()["averages"]["module_steps"] for one in (first, second)))


def raw_params(nlp):
    """Arrays and tensors themselves, in the order of `params_of`."""
    from ...models import slots

    for name in nlp.pipe_names:
        for param, _ in slots(nlp.get_pipe(name).model):
            yield param if isinstance(param, numpy.ndarray) else param.detach()


@pytest.mark.parametrize("how", ["excluded", "by pattern"])
def test_state_match_drops_what_is_frozen_now(how):
    nlp = pipeline("one", "plain")
    first = make(nlp)
    train(nlp, first, range(3))
    exclude = ("plain",) if how == "excluded" else ()
    frozen = {**SETTINGS["param_groups"], "frozen": {"params": ["plain/*"], "freeze": True}}
    second = make(nlp, exclude, **({} if exclude else {"param_groups": frozen}))
    with pytest.raises(StateError):
        second.load_state_dict(first.state_dict())
    with pytest.warns(GrowthWarning, match="dropped: all 2 params of plain"):
        second.load_state_dict(first.state_dict(), on_growth="mean")
    before = params_of(nlp.get_pipe("plain").model)
    train(nlp, second, range(3, 5), exclude)
    assert (
        same(params_of(nlp.get_pipe("plain").model), before)
        and second.nr_update.values()
        and "plain/W" not in second.params
    )


def test_state_match_says_what_cannot_be_renamed():
    nlp = pipeline("one", "two", "plain")
    optimizer = make(nlp)
    train(nlp, optimizer, range(2))
    saved = optimizer.state_dict()
    with pytest.raises(ConfigError, match=r"Can't rename 'ten' .* The components are: one, plain, two"):
        optimizer.load_state_dict(saved, renamed={"ten": "one"})
    with pytest.raises(ConfigError, match=r"expected different names, found 'two/.*' for two of them"):
        optimizer.load_state_dict(saved, renamed={"one": "two"})
    optimizer.load_state_dict(saved, renamed={"one": "two", "two": "one"})  # they change places
