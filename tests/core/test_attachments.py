"""Blocks of [training.optimizer] that take part in a run: an attachment that is no part of the package.

The oracle of a resumed run is one that was not stopped; that of a param which an attachment adds, SGD in
float32 by hand.
"""

import inspect
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import catalogue
import numpy
import pytest
from spacy.util import registry

from thinc_torchopt import SGD, Adam, Attachment, TorchOptimizer
from thinc_torchopt.core import attachments
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.attachments import GROUP
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.loop.checkpoint_folder import read_checkpoint, steps_of
from thinc_torchopt.loop.checkpoint_settings import Checkpoint
from thinc_torchopt.loop.config_check import collect_values

from ..conftest import ROOT
from ..models import ready_pipeline, toy_examples, toy_pipeline
from ..runs import config_for, digests, loop_over, run


@registry.misc("test-attachment.Pull.v1")
@dataclass
class Pull(Attachment):
    """Adds a param to the parser's model, pulls it to 1, counts its updates, and logs both."""

    strength: float = 0.5

    def prepare(self, nlp):
        node = nlp.get_pipe("parser").model
        if "pulled" not in node.param_names:
            node.set_param("pulled", numpy.zeros(3, dtype="float32"))

    def join(self, run):
        return [PullOfRun(self, run)]


class PullOfRun:
    name = "pull"

    def __init__(self, settings, run):
        self.node, self.strength, self.updates = run.nlp.get_pipe("parser").model, settings.strength, 0
        self.inside = self.parts = self.substeps = self.closings = 0

    def before_run(self):
        assert self.inside == 0

    def close(self):
        self.closings += 1
        assert self.closings == 1

    def around_part(self, examples):
        return self

    def __enter__(self):
        self.inside += 1

    def __exit__(self, *error):
        self.inside -= 1
        self.parts += 1

    def after_backward(self, losses):
        assert self.inside == 0
        assert "parser" in losses
        self.node.inc_grad("pulled", self.strength * (self.node.get_param("pulled") - 1))

    def on_substep_end(self, event, control):
        assert self.inside == 0
        self.substeps += 1
        assert self.substeps == self.parts

    def on_optimizer_step(self, event, control):
        self.updates += not event.skipped

    def on_log(self, event, control):
        pulled = self.node.get_param("pulled").tolist()
        event.info.update(pulls=self.updates, pulled=pulled, parts=self.parts)

    def state_dict(self):
        return {"updates": self.updates, "parts": self.parts}

    def load_state_dict(self, state):
        self.updates, self.parts = state["updates"], state["parts"]
        self.substeps = self.parts


BLOCK = {"pull": {"@misc": "test-attachment.Pull.v1", "strength": 0.25}}


def test_attachment_adds_a_param_saves_state_and_logs(tmp_path, corpus):
    config = config_for(
        tmp_path / "whole",
        corpus,
        steps=12,
        parser=True,
        training__optimizer__attachments=BLOCK,
        training__optimizer__algorithm={"@torch_optimizers": "torch.SGD.v1"},
        training__optimizer__grad_clip=0.0,
        training__optimizer__learn_rate=0.001,
        training__optimizer__use_averages=False,
        training__accumulate_gradient=2,
    )
    whole = run(config, tmp_path / "whole")
    expected = numpy.float32(0.0)
    for step, info in whole.items():
        expected -= numpy.float32(0.001) * (numpy.float32(0.25) * (expected - numpy.float32(1)))
        found = json.loads(re.search(r"'pulled', (\[.*?\])", info)[1])
        assert f"('pulls', {step + 1})" in info
        numpy.testing.assert_allclose(found, [expected] * 3, rtol=1e-6)  # another order of the same float32 operations
    assert len(whole) == 13

    config = config.copy()
    config["paths"]["state"] = str(tmp_path / "stopped" / "state")
    before = run(config, tmp_path / "stopped", crash_at=8)
    after = run(config, tmp_path / "stopped")
    assert min(after) > 0
    assert before | after == whole
    assert digests(tmp_path / "stopped") == digests(tmp_path / "whole")
    saved = read_checkpoint(steps_of(tmp_path / "whole" / "state")[-1])
    assert saved.listeners["pull"]["updates"] == 13 < saved.listeners["pull"]["parts"]
    assert any(name.endswith("/pulled") for name in saved.optimizer["params"])


class Plain(Attachment):
    """acts: what its listener does, by the name of a method. joins: what its `join` does."""

    def __init__(self, name="plain", joins=None, **acts):
        self.acts, self.joins = {"name": name, **acts}, joins

    def join(self, run):
        found = [SimpleNamespace(**self.acts)]
        return found if self.joins is None else self.joins(run, found)


def train_with(**blocks):
    """A training of four steps with an optimizer that has these attachments."""
    optimizer = TorchOptimizer(AdamW(), attachments=blocks)
    nlp, examples = ready_pipeline(["tagger"], shared=False, sgd=optimizer)
    return list(loop_over(nlp, optimizer, [examples[:4]] * 4, accumulate_gradient=2))


def test_attachments_end_once_each_also_after_an_error_of_another():
    closed, errors = [], []

    def fail(run, found):
        raise ConfigError("Can't join.")

    first = Plain(close=lambda: closed.append("first"), on_exception=lambda event, control: errors.append(event.error))
    with pytest.raises(ConfigError, match="Can't join"):
        train_with(first=first, second=Plain("other", joins=fail))
    assert (closed, errors) == (["first"], [])  # no run has begun, so it has no error

    def close():
        closed.append("second")
        raise RuntimeError("Can't close.")

    closed.clear()
    with pytest.raises(RuntimeError, match="Can't close"):
        train_with(second=Plain("other", close=close), first=first)
    assert closed == ["second", "first"]
    closed.clear()
    train_with(first=first)
    assert closed == ["first"]


def test_attachments_that_come_first_hear_each_event_first():
    heard = []
    blocks = {name: Plain(name, on_step_end=lambda *_, name=name: heard.append(name)) for name in ("late", "early")}
    blocks["early"].comes_first = True
    train_with(**blocks)
    assert heard == ["early", "late"] * 4


def test_attachments_leave_what_they_entered_around_a_part():
    entered = []

    @contextmanager
    def around(examples):
        entered.append(1)
        try:
            yield
        finally:
            entered.append(-1)

    def refuse(examples):
        raise ValueError("Not this part.")

    with pytest.raises(ValueError, match="Not this part"):
        train_with(first=Plain(around_part=around), second=Plain("other", around_part=refuse))
    assert entered == [1, -1]


@pytest.mark.parametrize(
    ("attachment", "message"),
    [
        (Plain(joins=lambda run, found: None), r"\[training.optimizer.attachments.one\]: expected join\(\) of Plain"),
        (Plain(joins=lambda run, found: found[0]), r"expected join\(\) of Plain to return a list of listeners"),
        (Plain(joins=lambda run, found: [SimpleNamespace()]), "expected an attribute 'name', a text, found None"),
        (Plain(joins=lambda run, found: found * 2), "another one has the same name"),
    ],
)
def test_attachments_that_join_wrongly_are_refused(attachment, message):
    with pytest.raises(ConfigError, match=message):
        train_with(one=attachment)


def test_attachment_can_end_a_run_when_it_joins_and_null_is_none():
    def stop(run, found):
        run.control.should_stop = True
        return found

    assert len(train_with(one=Plain(joins=stop), other=None)) == 0


def test_only_one_attachment_plans_the_decay():
    class Plans(Attachment):
        plans_decay = True

    with pytest.raises(ConfigError, match=r"attachments.a\] beside \[training.optimizer.attachments.b\]: both decide"):
        TorchOptimizer(AdamW(), attachments={"a": Plans(), "b": Plans()})


def test_block_that_may_change_does_and_its_neighbour_does_not():
    class Free(Attachment):
        may_change = True

    nlp = toy_pipeline(["tagger"])
    blocks = {"free": {"@misc": "x", "a": 1}, "freedom": {"@misc": "x", "a": 1}, "fixed": {"@misc": "x", "a": 1}}
    nlp.config["training"]["optimizer"] = {"attachments": blocks, "budget": {"x": 1}, "privacy": None, "budget_x": 2}
    found = collect_values(nlp, {"attachments.free": Free(), "attachments.fixed": Attachment()})
    paths = {path.removeprefix("training.optimizer.") for path in found if path.startswith("training.optimizer.")}
    assert paths == {f"attachments.{name}.{key}" for name in ("freedom", "fixed") for key in ("@misc", "a")} | {
        "budget_x"
    }


def test_blocks_whose_names_no_argument_can_have_are_left_out(monkeypatch):
    points = [EntryPoint(name, "math:pi", GROUP) for name in ("my-block", "precision", "fine")]
    monkeypatch.setattr(catalogue, "AVAILABLE_ENTRY_POINTS", {GROUP: points})
    monkeypatch.setattr(attachments, "_entry_points", attachments._entry_points.__wrapped__)

    @attachments.taking_blocks
    def build(precision="float32", **blocks):
        pass

    assert list(inspect.signature(build).parameters) == ["precision", "fine"]


def test_blocks_know_their_own_names():
    names = attachments._entry_points()
    assert {"budget", "checkpoint", "controller", "distributed", "privacy"} <= names.keys()
    assert all(attachments._class_of_block(name).own_block == name for name in names)


@pytest.mark.parametrize("value", ["no_such_package:Thing", "math:pi", "spacy.util:registry"])
def test_blocks_of_broken_packages_disturb_only_those_who_use_them(value, monkeypatch):
    broken = EntryPoint("theirs", value, GROUP)
    all_points = {**attachments._entry_points(), "theirs": broken}
    monkeypatch.setattr(attachments, "_entry_points", lambda: all_points)
    assert "training.optimizer.budget" in attachments.paths_that_may_change({}, {"theirs": 3, "budget": {}})
    assert attachments.collect_attachments({"checkpoint": Checkpoint("x"), "theirs": None}, {}).keys() == {"checkpoint"}
    with pytest.raises(ConfigError, match=rf"\[training.optimizer.theirs\].*entry point 'theirs = {value}'"):
        attachments.collect_attachments({"theirs": 3}, {})


def test_attachment_that_asks_for_nothing_changes_nothing():
    blocks = {name: {"params": [f"*/{name}"]} for name in ("W", "b")}
    optimizer = TorchOptimizer(AdamW(), attachments={"plain": Attachment()}, param_groups=blocks)
    ready_pipeline(["tagger"], shared=False, sgd=optimizer)
    assert len(optimizer.torch_optimizers["algorithm"].param_groups) == 1
    assert optimizer.remembers_scores == [] and not Attachment.decides_alike


@pytest.mark.parametrize("is_introduced", [True, False])
def test_attachment_freezes_params_before_the_first_update_of_another_loop(is_introduced):
    """Whether spaCy tells the optimizer its pipeline, or the loop does. Once: what is unfrozen later stays so, in a run
    that is resumed too.
    """
    seen = []

    class Freezing(Attachment):
        def named(self, optimizer, nlp, exclude):
            seen.append(nlp)
            optimizer.freeze(["tagger/output_layer/*"])

    def begin():
        nlp = toy_pipeline(["tagger", "morphologizer"])
        optimizer = TorchOptimizer(AdamW(), 0.01, attachments={"own": Freezing()})
        nlp.create_optimizer = lambda: optimizer
        nlp.initialize(lambda: toy_examples(nlp, 8))
        if not is_introduced:
            optimizer.initialize(nlp)
        return nlp, optimizer

    def changed_by_an_update(nlp, optimizer):
        layers = [nlp.get_pipe(name).model.get_ref("softmax") for name in ("tagger", "morphologizer")]
        before = [layer.get_param("W").copy() for layer in layers]
        nlp.update(toy_examples(nlp, 8), sgd=optimizer)
        return [not (layer.get_param("W") == old).all() for layer, old in zip(layers, before)]

    nlp, optimizer = begin()
    assert changed_by_an_update(nlp, optimizer) == [False, True]
    optimizer.unfreeze(["tagger/output_layer/*"])
    assert changed_by_an_update(nlp, optimizer) == [True, True]
    assert seen == [nlp]
    other_nlp, other = begin()
    other.load_state_dict(optimizer.state_dict())
    assert changed_by_an_update(other_nlp, other) == [True, True]
    assert seen == [nlp, other_nlp]


def test_attachment_checks_each_update():
    class Refuses(Attachment):
        def check_update(self, optimizer):
            raise ConfigError("Not this one.")

    optimizer = TorchOptimizer(AdamW(), attachments={"refuses": Refuses()})
    param = numpy.ones(2, dtype="float32")
    with pytest.raises(ConfigError, match="Not this one"):
        optimizer((1, "W"), param, numpy.ones_like(param))
    assert param.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attachments": {"a": 3}}, r"Can't set 'a' in \[training.optimizer.attachments\]: expected a block whose"),
        ({"attachments": 3}, r"Can't set 'attachments' in \[training.optimizer\]: expected a section"),
        ({"attachments": {"a": Checkpoint("x")}}, r"without a block of its own.*Move it to 'checkpoint'"),
    ],
)
def test_attachments_of_another_kind_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        TorchOptimizer(AdamW(), **settings)


def test_blocks_stand_in_the_config_and_in_the_optimizer():
    block = {"@optimizers": "thinc-torchopt.TorchOptimizer.v1", "algorithm": {"@torch_optimizers": "torch.AdamW.v1"}}
    filled = registry.fill({"optimizer": block})["optimizer"]
    own = {"budget", "checkpoint", "controller", "distributed", "privacy"}
    assert own < filled.keys()
    assert not any(filled[name] for name in own | {"attachments"})
    made = registry.resolve({"optimizer": block | {"attachments": BLOCK}})["optimizer"]
    assert made.attachments == {"attachments.pull": Pull(strength=0.25)}
    assert Adam().attachments == SGD(0.1).attachments == {}
    assert GROUP in (ROOT / "setup.cfg").read_text()
