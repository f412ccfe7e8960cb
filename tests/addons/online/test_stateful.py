"""An exact cell in a pipeline: with any other feature, in any order, traces learn what back-propagation through time
does.

The reference is the same pipeline with learning = "bptt", which computes no traces, and is never stopped. The embedding
is frozen in both: its gradient lacks the effects of an input on later steps, as the docs say.
"""

import random
import tempfile
import warnings
from pathlib import Path

import numpy
import pytest
import spacy
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from spacy.training import Example
from thinc.api import fix_random_seed

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.modular.registered import Momentum, create
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.errors import NonFiniteGradWarning
from thinc_torchopt.torch_optimizers import SGD

WORDS = ["red", "blue", "Anna", "flew", "to", "Oslo", "rains", "cold"]
ENCODER = "cats/tok2vec/encode/*"


def build(learning):
    nlp = spacy.blank("xx")
    embed = {"@architectures": "spacy.MultiHashEmbed.v2", "width": 6, "attrs": ["NORM"], "rows": [50]}
    encode = {"@architectures": "thinc-torchopt.OnlineRNNEncoder.v1", "width": 6, "depth": 1, "cell": "mingru"}
    model = {
        "@architectures": "spacy.TextCatReduce.v1",
        "exclusive_classes": False,
        **{f"use_reduce_{kind}": kind == "mean" for kind in ("first", "last", "max", "mean")},
        "tok2vec": {
            "@architectures": "spacy.Tok2Vec.v2",
            "embed": {**embed, "include_static_vectors": False},
            "encode": {**encode, "learning": learning, "traces": "forward", "bidirectional": True},
        },
    }
    fix_random_seed(0)
    textcat = nlp.add_pipe("textcat_multilabel", name="cats", config={"model": model})
    textcat.add_label("A")
    nlp.initialize()
    return nlp


def examples_of(nlp, seed):
    """Texts of 1 to 9 words, one of which may be empty."""
    draw = random.Random(seed)
    found = []
    for length in [draw.randrange(0, 4), *(draw.randrange(1, 10) for _ in range(2))]:
        doc = nlp.make_doc(" ".join(draw.choices(WORDS, k=length)))
        cats = {label: float(draw.random() < 0.5) for label in nlp.get_pipe("cats").labels}
        found.append(Example.from_dict(doc, {"cats": cats}))
    return found


class Machine(RuleBasedStateMachine):
    @staticmethod
    def algorithm():
        return SGD(momentum=0.5)

    def made(self, nlp):
        optimizer = TorchOptimizer(
            self.algorithm(),
            0.1,
            grad_clip=0.5,
            averages=EMA(decay=0.9),
            param_groups={"gates": {"params": ["*/W_z", "*/b_z"], "lr_scale": 0.5}},
        )
        optimizer.initialize(nlp)
        return optimizer

    @initialize()
    def begin(self):
        self.pipelines = [build("d-rtrl"), build("bptt")]
        self.optimizers = [self.made(nlp) for nlp in self.pipelines]
        self.folder = tempfile.TemporaryDirectory()
        self.labels = 1
        self.both(lambda nlp, optimizer: optimizer.freeze(["*/embed/*"]))

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def both(self, function):
        return [function(nlp, optimizer) for nlp, optimizer in zip(self.pipelines, self.optimizers)]

    @rule(seed=st.integers(0, 10**6), drop=st.sampled_from([0.0, 0.3]))
    def update(self, seed, drop):
        def learn(nlp, optimizer):
            fix_random_seed(seed)
            nlp.update(examples_of(nlp, seed), drop=drop, sgd=False)
            with optimizer.joint_step():
                nlp.get_pipe("cats").finish_update(optimizer)
            optimizer.step_schedules()

        self.both(learn)

    @rule(seed=st.integers(0, 10**6))
    def skip(self, seed):
        """A value that is not finite in the gradient: the guard skips the update in both."""

        def spoil(nlp, optimizer):
            nlp.update(examples_of(nlp, seed), sgd=False)
            node = nlp.get_pipe("cats").model.get_ref("output_layer")
            node.inc_grad("b", numpy.full(node.get_grad("b").shape, numpy.nan, dtype="f"))
            skipped = optimizer.skipped_updates
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NonFiniteGradWarning)  # it comes once
                with optimizer.joint_step():
                    nlp.get_pipe("cats").finish_update(optimizer)
            optimizer.step_schedules()
            assert optimizer.skipped_updates == skipped + 1

        self.both(spoil)

    @rule(group=st.sampled_from(["gates", "default"]), factor=st.sampled_from([0.5, 2.0]))
    def change_rates(self, group, factor):
        """As a rule of the controller does."""
        self.both(lambda nlp, optimizer: optimizer.scale_learn_rates([group], factor, 0.0, 0.2))

    @rule(pattern=st.sampled_from([ENCODER, "*/W_z", "*/mingru-1/*"]), frozen=st.booleans())
    def freeze(self, pattern, frozen):
        def change(nlp, optimizer):
            optimizer.freeze([pattern]) if frozen else optimizer.unfreeze([pattern])

        self.both(change)

    @rule()
    def add_label(self):
        if self.labels < 4:
            self.labels += 1
            self.both(lambda nlp, optimizer: self.grow(nlp))

    def grow(self, nlp):
        fix_random_seed(self.labels)
        nlp.get_pipe("cats").add_label("ABCD"[self.labels - 1])

    @rule(seed=st.integers(0, 10**6))
    def look_at_averages(self, seed):
        def scores(nlp, optimizer):
            with nlp.use_params(optimizer.averages):
                return [doc.reference.cats | nlp(doc.reference.text).cats for doc in examples_of(nlp, seed)]

        ours, reference = self.both(scores)
        for found, expected in zip(ours, reference):
            assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)

    @rule()
    def be_killed_and_go_on(self):
        """Only files are left. Frozen patterns are part of the saved state."""
        nlp, optimizer = self.pipelines[0], self.optimizers[0]
        if self.labels > 1:
            optimizer.initialize(nlp)  # the state grows now
        model, state = Path(self.folder.name) / "model", Path(self.folder.name) / "state"
        nlp.to_disk(model)
        optimizer.to_disk(state)
        nlp = spacy.load(model)
        optimizer = self.made(nlp)
        optimizer.from_disk(state)
        self.pipelines[0], self.optimizers[0] = nlp, optimizer

    @invariant()
    def params_are_those_of_the_reference(self):
        if not hasattr(self, "optimizers"):
            return
        self.both(lambda nlp, optimizer: optimizer.initialize(nlp))
        ours, reference = (optimizer.params for optimizer in self.optimizers)
        assert ours.keys() == reference.keys()
        for name, value in reference.items():
            # Sums in single precision in another order, over up to 30 updates.
            torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-5, msg=name)


class WithModular(Machine):
    @staticmethod
    def algorithm():
        return create(modules={"momentum": Momentum(beta=0.5)})


@pytest.mark.parametrize("machine", [Machine, WithModular])
@pytest.mark.parametrize("n_examples", [6, pytest.param(80, marks=pytest.mark.slow)])
def test_stateful_operations_in_any_order_agree_with_bptt(machine, n_examples):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=n_examples, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
