"""Components that get no gradient. The oracle is what a component does with its gradients: `Scripted` does as told."""

import io
import json
import warnings

import numpy
import pytest
import spacy
import spacy.training.loop
from spacy.kb import InMemoryLookupKB
from spacy.language import Language
from spacy.pipeline import TrainablePipe
from spacy.training import Example
from spacy.util import registry
from thinc.api import Linear

import thinc_torchopt.loop.training_check
from thinc_torchopt import Attachment
from thinc_torchopt.core.errors import ConfigError, PipelineWarning

from ..models import TOK2VEC, toy_pipeline
from ..runs import OPTIMIZER

PLACE = {}
# The gradient of each batch for `Scripted`. None: no gradient at all.
SCRIPT = {}


@registry.readers("test-gradients.Examples.v1")
def reader():
    return lambda nlp: [Example(nlp.make_doc(one.reference.text), one.reference) for one in PLACE["train"]]


@registry.callbacks("test-gradients.Stop.v1")
def stop():
    def before_update(nlp, args):
        PLACE["step"] = args["step"]
        if args["step"] == PLACE["stop"]:
            raise InterruptedError

    return before_update


class Scripted(TrainablePipe):
    """Its gradients are those of `SCRIPT`."""

    labels = ()

    def __init__(self, vocab, name):
        self.vocab, self.name, self.cfg = vocab, name, {}
        self.model = SCRIPT.get("model", Linear)(1, 1)

    def initialize(self, get_examples, *, nlp=None):
        self.model.initialize()

    def update(self, examples, *, drop=0.0, sgd=None, losses=None):
        losses.setdefault(self.name, 0.0)
        value = SCRIPT[self.name](PLACE["step"])
        if value is not None:
            self.model.inc_grad("W", numpy.full((1, 1), value, dtype="float32"))

    def predict(self, docs):
        return None

    def set_annotations(self, docs, scores):
        pass


@Language.factory("test-gradients-scripted")
def scripted(nlp, name):
    return Scripted(nlp.vocab, name)


def alike(nlp):
    """Texts with one tag."""
    return [Example.from_dict(nlp.make_doc("a b"), {"tags": ["X", "X"]}) for _ in range(4)]


def pipeline(*names):
    nlp = spacy.blank("xx")
    nlp.add_pipe("tagger", config={"model": {"tok2vec": TOK2VEC}})
    for name in names:
        nlp.add_pipe("test-gradients-scripted", name=name)
    return nlp


def train(nlp, n_texts=12, optimizer={}, *, stop=-1, examples=None, evaluate_every=1000, **training):
    """`spacy train`, a text in each batch, for three epochs. RETURNS (tuple): The last step, and warnings."""
    tags = [["N", "V", "N", last] for last in "YX"]
    examples = examples or [
        Example.from_dict(nlp.make_doc(f"Anna likes London {i}"), {"tags": tags[i % 2]}) for i in range(n_texts)
    ]
    PLACE.update(train=examples, step=0, stop=stop)
    nlp.config["corpora"] = {name: {"@readers": "test-gradients.Examples.v1"} for name in ("train", "dev")}
    nlp.config["training"] |= {
        "batcher": {"@batchers": "spacy.batch_by_sequence.v1", "size": 1},
        "before_update": {"@callbacks": "test-gradients.Stop.v1"},
        "optimizer": OPTIMIZER | optimizer,
        "max_epochs": 3, "max_steps": 0, "eval_frequency": evaluate_every, "seed": 0, "patience": 0,
        "score_weights": {"tag_acc": 1.0}, **training,
    }  # fmt: skip
    nlp.initialize(lambda: examples)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PipelineWarning)
        spacy.training.loop.train(nlp, stdout=io.StringIO(), stderr=io.StringIO())
    return PLACE["step"], [str(one.message) for one in caught if "learns nothing" in str(one.message)]


def always(value):
    return lambda step: value


def only_at(step, value=1e-30):
    """A value whose square is 0 in float32."""
    return lambda now: value if now == step else 0.0


@registry.misc("test-gradients.Cut.v1")
class Cut(Attachment):
    """Ends each epoch after three batches."""

    name = "cut"

    def join(self, run):
        return [self]

    def on_step_end(self, event, control):
        control.should_epoch_stop = event.step % 3 == 2


WHY = (
    "' learns nothing: .* Its factory is 'test-gradients-scripted'.*"
    "To train all the same: allow_untrainable = true in .training.optimizer..$"
)
GROUPS = {"kept": {"params": ["two/*"], "freeze": True}, "late": {"params": ["three/*"], "unfreeze_at": 100}}
CASES = {
    "no gradient in an epoch": ({"idle": always(None)}, {}, 11, "in 12 batches"),
    "frozen": (
        {"one": always(None), "two": always(0.0), "three": always(0.0)},
        {"optimizer": {"param_groups": GROUPS}, "frozen_components": ["one"]}, 35, None,
    ),
    # In the middle of the first epoch: what is left of it is no epoch.
    "frozen at first": (
        {"idle": always(0.0)}, {"optimizer": {"param_groups": {"late": {"params": ["idle/*"], "unfreeze_at": 3}}}},
        23, "in 21 batches",
    ),
    # In an epoch of nothing but skipped updates, the guard alone has something to say.
    "skipped updates": (
        {"idle": always(0.0), "bad": lambda step: float("nan") if step < 13 else 1.0}, {}, 23, "in 11 batches"
    ),
    "epochs of three batches": (
        {"rare": only_at(13)}, {"optimizer": {"attachments": {"cut": {"@misc": "test-gradients.Cut.v1"}}},
                                "max_epochs": 8}, 23, None,
    ),
}  # fmt: skip
# In the last batch of the epoch, and never again. One that is not finite is one too: the guard tells of it.
for value, training in (
    (1e-30, {"accumulate_gradient": 3}),
    (float("nan"), {}),
    (-numpy.inf, {"frozen_components": ["tagger"]}),
):
    CASES[f"one gradient of {value}, {training}"] = {"rare": only_at(11, value)}, training, 35, None


@pytest.mark.parametrize("case", CASES)
def test_gradient_check(case):
    script, training, step, refused = CASES[case]
    SCRIPT.update(script)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if refused is None:
            assert train(pipeline(*script), **training) == (step, [])
            return
        with pytest.raises(ConfigError, match=f"(?s)^Can't train: 'idle{WHY}") as error:
            train(pipeline(*script), **training)
    assert PLACE["step"] == step and refused in str(error.value) and str(error.value).count("learns nothing") == 1


def test_gradient_check_after_many_batches(monkeypatch):
    monkeypatch.setattr(thinc_torchopt.loop.training_check, "MOST_BATCHES", 11)
    SCRIPT.update(idle=always(0.0), rare=only_at(9))
    with pytest.raises(ConfigError, match=r"'idle' learns nothing: .* in 11 batches") as error:
        train(pipeline("idle", "rare"), 40)
    assert PLACE["step"] == 10 and "'rare'" not in str(error.value)


def test_gradient_check_allows_it_when_told():
    """With a warning, once."""
    SCRIPT["idle"] = always(0.0)
    step, told = train(pipeline("idle"), optimizer={"allow_untrainable": True})
    assert step == 35 and len(told) == 1 and told[0].startswith("'idle' learns nothing")


def test_gradient_check_of_a_run_that_ends_before():
    SCRIPT.update(idle=always(0.0), rare=only_at(3))
    step, told = train(pipeline("idle", "rare"), 40, max_steps=14)
    assert step == 14 and [one[:36] for one in told] == ["'idle' learns nothing: all its gradi"]
    assert "in 15 batches" in told[0]


def test_gradient_check_of_shared_params():
    """Those of a model in two components are nobody's own. A rate of 0 does not matter: there is a gradient."""
    shared = Linear(1, 1)
    SCRIPT.update(one=always(1.0), two=always(0.0), model=lambda *dims: shared)
    try:
        assert train(pipeline("one", "two"), optimizer={"learn_rate": 0.0}) == (35, [])
    finally:
        del SCRIPT["model"]


def test_gradient_check_of_components_that_may_know_everything(monkeypatch):
    """A tagger with one tag can't be wrong; one with a 'source' may be as good as it gets."""
    nlp = pipeline()
    step, told = train(nlp, examples=alike(nlp))
    assert step == 11 and [one[:25] for one in told] == ["'tagger' learns nothing: "]
    SCRIPT["idle"] = always(0.0)
    nlp = pipeline("idle")
    monkeypatch.setattr(thinc_torchopt.loop.training_check, "resumed_components", lambda nlp: ["idle"])
    step, told = train(nlp)
    assert step == 35 and [one[:23] for one in told] == ["'idle' learns nothing: "]


@pytest.mark.parametrize("killed_at", [4, 7, 13])
def test_gradient_check_in_a_resumed_run(killed_at, tmp_path):
    """It counts since the run began, and saves the same as without an interruption."""
    SCRIPT.update(idle=always(0.0), rare=only_at(6), soon=only_at(2))

    def go(folder, stop=-1):
        block = {"@misc": "thinc-torchopt.Checkpoint.v1", "path": str(folder), "every": 1, "keep": 50}
        train(pipeline("idle", "rare", "soon"), 16, {"checkpoint": block}, stop=stop)

    for folder, stops in {tmp_path / "whole": [], tmp_path / "killed": [killed_at]}.items():
        for at in stops:
            with pytest.raises(InterruptedError):
                go(folder, at)
        with pytest.raises(ConfigError, match=r"'idle' learns nothing: .* in 16 batches"):
            go(folder)
        assert PLACE["step"] == 15
    whole, killed = (
        [json.loads(path.read_text()) for path in sorted((tmp_path / name).rglob("*.json"))]
        for name in ("whole", "killed")
    )
    found = [[one["listeners"]["gradient check"] for one in all_ if "listeners" in one] for all_ in (whole, killed)]
    assert found[0] == found[1] and found[0]


# ---------------------------------------------------------------------- components of spaCy


def knowledge_base(vocab):
    kb = InMemoryLookupKB(vocab, entity_vector_length=4)
    kb.add_entity("Q1", 10, [1.0, 0.0, 0.0, 1.0])
    kb.add_alias("Anna", ["Q1"], [1.0])
    return kb


@pytest.mark.parametrize(("found", "annotates"), [("Anna", True), ("Anna", False), ("London", True)])
def test_gradient_check_of_an_entity_linker(found, annotates):
    """It learns if a component sets the entities, and those that are in the texts."""
    nlp = spacy.blank("xx")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("entity_ruler")
    nlp.config["initialize"]["components"]["entity_ruler"] = {"patterns": [{"label": "PER", "pattern": found}]}
    model = {"@architectures": "spacy.EntityLinker.v2", "tok2vec": TOK2VEC}
    nlp.add_pipe("entity_linker", config={"use_gold_ents": False, "model": model}).set_kb(knowledge_base)
    gold = {"links": {(0, 4): {"Q1": 1.0}}, "entities": [(0, 4, "PER")], "sent_starts": [1, 0, 0]}
    training = {
        "examples": [Example.from_dict(nlp.make_doc("Anna likes London"), gold) for _ in range(4)],
        "annotating_components": ["sentencizer", *["entity_ruler"] * annotates],
        "score_weights": {"nel_micro_f": 1.0},
    }
    if annotates and found == "Anna":
        assert train(nlp, **training) == (11, [])
    else:
        with pytest.raises(ConfigError, match=r"'entity_linker' learns nothing: .*use_gold_ents = true in .components"):
            train(nlp, **training)


@pytest.mark.parametrize("size", [2, 5])
def test_gradient_check_of_a_suggester_without_spans(size):
    """Behind a component that annotates, where no check before the training can ask it."""
    nlp = spacy.blank("xx")
    nlp.add_pipe("sentencizer")
    suggester = {"@misc": "spacy.ngram_suggester.v1", "sizes": [size]}
    nlp.add_pipe("spancat", config={"model": {"tok2vec": TOK2VEC}, "suggester": suggester})
    gold = {"spans": {"sc": [(0, 10, "PER")]}}
    examples = [Example.from_dict(nlp.make_doc("Anna likes London"), gold) for _ in range(4)]
    training = {"examples": examples, "score_weights": {"spans_sc_f": 1.0}, "annotating_components": ["sentencizer"]}
    if size == 2:
        assert train(nlp, **training) == (11, [])
    else:
        with pytest.raises(ConfigError, match=r"'spancat' learns nothing: .*such as a span_finder"):
            train(nlp, **training)


def test_gradient_check_of_a_tok2vec_whose_listeners_learn_nothing():
    nlp = toy_pipeline(["tagger"])
    _, (of_tok2vec, of_tagger) = train(nlp, examples=alike(nlp))
    assert "'tok2vec' learns nothing" in of_tok2vec and "It learns what tagger need" in of_tok2vec
    assert "'tagger' learns nothing" in of_tagger and "It learns from tags" in of_tagger


@pytest.mark.parametrize("epochs", [1, 12])
def test_gradient_check_of_weights_that_begin_with_0(epochs):
    """A tok2vec below an output layer gets only zeros until that is updated, at a rate that begins with 0."""
    nlp = toy_pipeline(["tagger"])
    rates = {"@schedules": "warmup_linear.v1", "initial_rate": 0.01, "warmup_steps": 5, "total_steps": 20}
    examples = [Example.from_dict(nlp.make_doc("a b"), {"tags": ["X", "Y"]})]
    assert train(nlp, 1, {"learn_rate": rates}, examples=examples, max_epochs=epochs) == (epochs - 1, [])
