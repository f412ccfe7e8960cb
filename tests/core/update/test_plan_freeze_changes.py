"""What is frozen by hand: it belongs to the param, whatever becomes of that. Oracle: the values, which stay or move."""

import copy
import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from thinc.api import Linear, PyTorchWrapper, chain

from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.labels import add_labels
from thinc_torchopt.core.params.param import Param
from thinc_torchopt.core.params.param_settings import ParamSettings
from thinc_torchopt.core.settings.changes import FreezeChange, with_freeze_change

from ...models import backprop, grads_of, optimizer_for, params_of, pipeline_params, ready_pipeline, same, toy_pipeline

TWO = ("tagger", "morphologizer")


def kind_of(kind):
    if kind == "thinc":
        return chain(Linear(4, 5), Linear(3, 4)).initialize()
    return PyTorchWrapper(torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)))


def two_pipes(kind="thinc"):
    nlp = toy_pipeline(TWO, shared=False)
    for name in TWO:
        nlp.get_pipe(name).model = kind_of(kind)
    return nlp


def told(nlp, **options):
    return optimizer_for(nlp, AdamW(), 0.01, **options)


def update(nlp, optimizer):
    for _, pipe in nlp.pipeline:
        for shim in pipe.model.shims:
            for param in shim._model.parameters():
                param.grad = torch.ones_like(param)
        if not pipe.model.shims:
            backprop(pipe.model, numpy.random.default_rng(0))
    with optimizer.joint_step():
        for _, pipe in nlp.pipeline:
            pipe.model.finish_update(optimizer)
    optimizer.step_schedules()


def frozen(optimizer):
    """The components of frozen params."""
    return {info.name.partition("/")[0] for info in optimizer.describe() if info.frozen_until == math.inf}


def moved(nlp, optimizer):
    """The components whose params an update moves."""
    before = {name: param.detach().clone() for name, param in optimizer.params.items()}
    update(nlp, optimizer)
    return {name.partition("/")[0] for name, param in optimizer.params.items() if not torch.equal(param, before[name])}


def rename(nlp, optimizer):
    nlp.rename_pipe("tagger", "tags")
    optimizer.introduce(nlp)
    return "tags"


def copy_model(nlp, optimizer):
    pipe = nlp.get_pipe("tagger")
    pipe.model = pipe.model.copy()
    optimizer.introduce(nlp)
    return "tagger"


def copy_and_rename(nlp, optimizer):
    copy_model(nlp, optimizer)
    return rename(nlp, optimizer)


def grow(nlp, optimizer, name="tagger"):
    """As spaCy's add_label does it."""
    model = nlp.get_pipe(name).model
    if model.shims:
        old, new = model.shims[0]._model[1], torch.nn.Linear(4, 4)
        with torch.no_grad():
            new.weight[:3], new.bias[:3] = old.weight, old.bias
        model.shims[0]._model[1] = new
    else:
        old, new = model.layers[1], Linear(4, 4).initialize()
        for param in ("W", "b"):
            new.get_param(param)[:3] = old.get_param(param)
        model._layers[1] = new
    optimizer.introduce(nlp)
    return name


def rename_and_grow(nlp, optimizer):
    return grow(nlp, optimizer, rename(nlp, optimizer))


def replace(nlp, optimizer, name="tagger"):
    """Another model, which has nothing of the old one but the names of its params."""
    model = nlp.get_pipe(name).model
    nlp.get_pipe(name).model = kind_of("torch" if model.shims else "thinc")
    optimizer.introduce(nlp)
    return name


def rename_and_replace(nlp, optimizer):
    return replace(nlp, optimizer, rename(nlp, optimizer))


def reload_model(nlp, optimizer):
    model = nlp.get_pipe("tagger").model
    model.from_bytes(model.to_bytes())
    return "tagger"


WAYS = [rename, copy_model, copy_and_rename, grow, rename_and_grow, replace, rename_and_replace, reload_model]


@pytest.mark.parametrize("kind", ["thinc", "torch"])
def test_freeze_changes_within_a_joint_step_hold_for_its_update(kind):
    """Gradients of these params are there already: they are dropped, and no update is counted."""
    nlp = two_pipes(kind)
    optimizer = told(nlp, use_averages=True)
    update(nlp, optimizer)
    before = params_of(nlp.get_pipe("tagger").model)
    with optimizer.joint_step():
        update(nlp, optimizer)
        optimizer.freeze(["tagger/*"])
    assert same(before, params_of(nlp.get_pipe("tagger").model))
    assert not any(map(torch.any, grads_of(nlp.get_pipe("tagger").model)))
    updates = {info.name.partition("/")[0]: info.updates for info in optimizer.describe()}
    assert updates == {"tagger": 0, "morphologizer": 2}


@pytest.mark.parametrize("params", ["tagger/*", [], [1], None])
def test_freeze_changes_are_for_a_list_of_names(params):
    """A text would be taken for its letters, and nothing for nothing to do."""
    optimizer = told(two_pipes())
    for change in (optimizer.freeze, optimizer.unfreeze):
        with pytest.raises(ConfigError, match=r'expected a list of patterns over their names, as in \["tagger/\*"\]'):
            change(params)
    for change_rates in (optimizer.scale_learn_rates, optimizer.set_learn_rates):
        with pytest.raises(ConfigError, match="change learning rates: expected a list of names of param groups"):
            change_rates(params, 0.5)


@pytest.mark.parametrize("on_growth", ["mean", "reset"])
@pytest.mark.parametrize("kind", ["thinc", "torch"])
@pytest.mark.parametrize("way", WAYS)
def test_freeze_changes_stay_whatever_becomes_of_a_param(way, kind, on_growth):
    nlp = two_pipes(kind)
    optimizer = told(nlp, on_growth=on_growth, use_averages=True)
    update(nlp, optimizer)
    optimizer.freeze(["tagger/*"])
    name = way(nlp, optimizer)
    assert moved(nlp, optimizer) == {"morphologizer"}
    assert frozen(optimizer) == {name}
    other = told(nlp, on_growth=on_growth, use_averages=True)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert moved(nlp, other) == {"morphologizer"}
    for each in (optimizer, other):
        each.unfreeze([f"{name}/*"])
        assert moved(nlp, each) == {name, "morphologizer"}


@pytest.mark.parametrize("way", WAYS)
def test_freeze_changes_what_is_unfrozen_by_hand_is_trained_under_any_name(way):
    """The settings freeze it, by its old name or by its new one."""
    for pattern in ("tagger/*", "tag*"):
        nlp = two_pipes()
        optimizer = told(nlp, param_groups={"still": {"params": [pattern], "freeze": True}})
        assert moved(nlp, optimizer) == {"morphologizer"}
        optimizer.unfreeze(["tagger/*"])
        name = way(nlp, optimizer)
        assert moved(nlp, optimizer) == {name, "morphologizer"}


def test_freeze_changes_the_rest_of_the_settings_are_those_of_the_new_name():
    nlp = two_pipes()
    optimizer = told(nlp, param_groups={"tags": {"params": ["re:^(tags/|morph)"], "learn_rate": 0.5}})
    update(nlp, optimizer)
    optimizer.freeze(["tagger/*"])
    rename(nlp, optimizer)
    optimizer.unfreeze(["tags/*"])
    assert {info.learn_rate for info in optimizer.describe() if info.name.startswith("tags/")} == {0.5}


def test_freeze_changes_are_those_of_params_that_come_later(tmp_path):
    def with_another(nlp):
        model = nlp.get_pipe("tagger").model
        nlp.get_pipe("tagger").model = chain(*model.layers, Linear(2, 3).initialize())

    nlp = two_pipes()
    optimizer = told(nlp, new_params_warmup=0)
    update(nlp, optimizer)
    optimizer.freeze(["tagger/*"])
    optimizer.unfreeze(["tagger/*/b"])
    optimizer.to_disk(tmp_path / "state")
    other_nlp = copy.deepcopy(nlp)
    other = told(other_nlp, new_params_warmup=0)
    other.from_disk(tmp_path / "state")
    for pipeline, each in ((nlp, optimizer), (other_nlp, other)):
        with_another(pipeline)
        each.introduce(pipeline)
        states = {info.name: info.frozen_until for info in each.describe() if info.name.startswith("tagger/")}
        assert states == {
            f"tagger/linear-{i}/{name}": until for i in range(3) for name, until in (("W", math.inf), ("b", 1))
        }


def test_freeze_changes_are_loaded_under_other_names(tmp_path):
    """The pipe was renamed between two runs."""
    nlp = two_pipes()
    optimizer = told(nlp)
    update(nlp, optimizer)
    optimizer.freeze(["tagger/*"])
    optimizer.to_disk(tmp_path / "state")
    nlp.rename_pipe("tagger", "tags")
    for on_growth in (None, "mean"):
        other = told(nlp)
        other.from_disk(tmp_path / "state", renamed={"tagger": "tags"}, on_growth=on_growth)
        assert moved(nlp, other) == {"morphologizer"}


def test_freeze_changes_of_a_pattern_that_is_damaged_are_refused():
    nlp = two_pipes()
    optimizer = told(nlp)
    optimizer.freeze(["tagger/*"])
    saved = optimizer.state_dict()
    saved["freeze_changes"][0]["params"] = ["re:("]
    with pytest.raises(ConfigError, match=r"the params to freeze.*valid regular expression"):
        told(nlp).load_state_dict(saved)


@given(
    st.lists(st.tuples(st.sampled_from(["a/*", "*/x", "*"]), st.booleans()), min_size=1, max_size=40),
    st.sampled_from([0.0, 7.0, math.inf]),
)
def test_freeze_changes_are_few_however_often_rules_make_them(drawn, frozen_until):
    """Those that are kept do to a param what all of them do: it is trained now, later, or never."""
    everything = [FreezeChange([text], math.inf if freezes else step) for step, (text, freezes) in enumerate(drawn)]
    kept = []
    for change in everything:
        kept = with_freeze_change(kept, change)
    assert len(kept) <= 3  # patterns
    for name in ("a/x", "a/y", "b/x", "b/y"):
        found = []
        for changes in (everything, kept):
            param = Param(name, name, numpy.zeros(1, "f"), torch.zeros(1))
            param.settings = ParamSettings(("default",), 0, {}, frozen_until=frozen_until)
            for change in changes:
                if change.matches([name]):
                    change.apply_to(param)
            found.append(max(param.settings.frozen_until, len(drawn)))
        assert found[0] == found[1]


@pytest.mark.parametrize("when", ["before", "while"])
def test_freeze_of_a_component_and_another_name_make_no_new_params(when):
    """[training] frozen_components, and `rename_pipe` before or while it is in force. New ones would warm up."""
    nlp = two_pipes()
    optimizer = told(nlp, new_params_warmup=100)
    update(nlp, optimizer)

    def rename():
        nlp.rename_pipe("tagger", "tags")
        return "tags"

    name = rename() if when == "before" else "tagger"
    optimizer.initialize(nlp, exclude=[name])
    update(nlp, optimizer)
    if when == "while":
        optimizer.initialize(nlp, exclude=[rename()])
    optimizer.initialize(nlp)
    assert {info.group for info in optimizer.describe()} == {"default"}
    assert {info.name.partition("/")[0] for info in optimizer.describe()} == {"tags", "morphologizer"}


def pipeline_and_examples(*components, **options):
    nlp, examples = ready_pipeline(components, shared=False)
    optimizer = told(nlp, **options)
    nlp.update(examples, sgd=optimizer)
    return nlp, examples, optimizer


@pytest.mark.parametrize("change", ["freeze", "rate", "scale"])
def test_freeze_changes_reach_a_layer_that_grew_and_waits_for_its_update(change):
    """Another component, which grew too, was trained in between."""
    nlp, examples, optimizer = pipeline_and_examples("tagger", "ner", param_groups={"ner": {"params": ["ner/*"]}})
    for name, label in (("tagger", "XX"), ("ner", "ARTIST")):
        add_labels(nlp, name, [label])
    nlp.update(examples, sgd=optimizer, exclude=["ner"])
    if change == "freeze":
        optimizer.freeze(["ner/*"])
    elif change == "rate":
        optimizer.set_learn_rates(["ner"], 0.0)
    else:
        optimizer.scale_learn_rates(["ner"], 1e-30)
    before = params_of(nlp.get_pipe("ner").model)
    for _ in range(3):
        nlp.update(examples, sgd=optimizer)
    for one, other in zip(before, params_of(nlp.get_pipe("ner").model), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-29 if change == "scale" else 0)  # steps of 1e-32


def exchange(nlp, one, other):
    for old, new in ((one, "both"), (other, one), ("both", other)):
        nlp.rename_pipe(old, new)


@pytest.mark.parametrize("by", ["hand", "rate", "settings"])
def test_freeze_changes_go_by_the_names_of_now(by):
    """Two components exchange their names, and nothing else changes. At once, or in the next update."""
    block = {"params": ["tagger/*"], **({"freeze": True} if by == "settings" else {})}
    nlp, examples, optimizer = pipeline_and_examples("tagger", "senter", param_groups={"a": block})
    exchange(nlp, "tagger", "senter")
    if by == "hand":
        optimizer.freeze(["tagger/*"])
    elif by == "rate":
        optimizer.set_learn_rates(["a"], 0.0)
    before = pipeline_params(nlp)
    nlp.update(examples, sgd=optimizer)
    after = pipeline_params(nlp)
    assert same(before["tagger"], after["tagger"]) and not same(before["senter"], after["senter"])
    nlp.rename_pipe("senter", "new")
    optimizer.freeze(["new/*"])
    with pytest.raises(ConfigError, match=r"'senter/\*'"):
        optimizer.check_param_names(["senter/*"])
