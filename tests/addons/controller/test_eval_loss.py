"""The loss on the development data. The oracles: spaCy's own update, whose gradients nobody uses; and the same training
without the metric.
"""

import copy
import math
import random

import numpy
import pytest
import spacy
import torch
from spacy.tokens import Span
from spacy.util import registry
from thinc.api import Model, PyTorchWrapper, chain, with_array

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.controller.controller import TrainerController
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ControllerError
from thinc_torchopt.loop.dev_loss import DevLosses, untouched

from ...models import LISTENER, TOK2VEC, WIDTH, params_of, ready_pipeline, same, toy_examples, toy_pipeline
from .kit import LOG, STOP, config_for, definition, make, part, rule, run, same_params

EVAL_LOSS = part("dev", "EvalLoss")


@registry.architectures("test-eval-loss.Tok2Vec.v1")
def tok2vec(below: Model, width: int) -> Model:
    """With layers of torch that keep statistics and draw random numbers."""
    module = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.3))
    return chain(below, with_array(PyTorchWrapper(module)))


SHARED_TOK2VEC = {"@architectures": "test-eval-loss.Tok2Vec.v1", "below": TOK2VEC, "width": WIDTH}


@pytest.fixture
def pipeline():
    return make_pipeline(steps=3)


def make_pipeline(steps):
    """A pipeline that has learned for some steps, its optimizer, and examples, which are its development data too."""
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": SHARED_TOK2VEC})
    for name in ("tagger", "parser", "ner"):
        more = {"min_action_freq": 1} if name == "parser" else {}
        nlp.add_pipe(name, config={"model": {"tok2vec": LISTENER}, **more})
    examples = toy_examples(nlp, 30)
    nlp.initialize(lambda: examples)
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True)
    optimizer.initialize(nlp)
    for _ in range(steps):
        nlp.update(examples, drop=0.2, sgd=optimizer)

    @registry.readers("test-eval-loss.Examples.v1")
    def reader():
        return lambda nlp: iter(examples)

    nlp.config["corpora"] |= {key: {"@readers": "test-eval-loss.Examples.v1"} for key in ("dev", "train")}
    return nlp, optimizer, examples


# Those with a way of their own for unknown labels, in which the loss is another.
OF_THEIR_OWN = ("parser", "morphologizer", "trainable_lemmatizer")
AS_MISSING = ("tagger", "ner", "spancat", "spancat_singlelabel", "textcat")


@pytest.mark.parametrize("kind", [*AS_MISSING, *OF_THEIR_OWN])
def test_eval_loss_leaves_out_labels_that_the_training_data_has_not(kind):
    """As if they were missing. Real development data has such labels: spaCy would add them to the NER in training. The
    examples stay as they are.
    """
    nlp = toy_pipeline([kind])
    examples = toy_examples(nlp, 4)
    for example in examples:
        for token in example.reference:
            token.lemma_ = token.text
    nlp.initialize(lambda: examples)
    dev_losses = DevLosses(nlp, TorchOptimizer(AdamW(), 0.01), (), (), examples=examples)
    doc, pipe = examples[1].reference, nlp.get_pipe(kind)
    doc.set_ents([ent for ent in doc.ents if ent.label_ == "PERSON"], missing=[doc[3:4]])
    doc[2].tag_ = ""
    expected = dev_losses()
    doc.set_ents([*doc.ents, Span(doc, 3, 4, "NEVER SEEN")])
    doc.spans["sc"] = [*doc.spans["sc"], Span(doc, 1, 3, "NEVER SEEN")]
    doc.cats["NEVER SEEN"] = 0.0
    doc[2].tag_ = "NEVER SEEN" if kind != "tagger" else "!NEVER SEEN"
    if kind in OF_THEIR_OWN:
        doc[2].dep_ = doc[2].lemma_ = "NEVER SEEN"
        doc[2].set_morph("Number=Plur")
    labels, before, gold = pipe.labels, everything(nlp), (doc.to_json(), doc.to_bytes())
    trees = getattr(pipe, "trees", None)
    nodes = trees and trees.to_bytes()
    found = dev_losses()
    assert kind in OF_THEIR_OWN or found == expected
    assert pipe.labels == labels and everything(nlp) == before and (doc.to_json(), doc.to_bytes()) == gold
    assert getattr(pipe, "trees", None) is trees and (trees and trees.to_bytes()) == nodes


@pytest.mark.parametrize("place", ["before ner", "after ner", "fails"])
def test_eval_loss_leaves_out_labels_of_a_ruler(place, monkeypatch):
    """Those that it has set in no text of the training data: spaCy would add them to the NER."""
    nlp, examples = ready_pipeline(["ner"], n=4)
    ruler = nlp.add_pipe("entity_ruler", before=None if place == "after ner" else "ner")
    dev_losses = DevLosses(nlp, TorchOptimizer(AdamW(), 0.01), (), ["entity_ruler"], examples=examples)
    expected = dev_losses()
    ruler.add_patterns([{"label": "NEVER SEEN", "pattern": token.text} for token in examples[1].reference])
    ner, names = nlp.get_pipe("ner"), nlp.pipe_names
    labels, params = ner.labels, params_of(ner.model)
    if place == "fails":
        monkeypatch.setattr(nlp, "update", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            dev_losses()
    else:
        assert dev_losses() == expected
    assert ner.labels == labels and nlp.pipe_names == names and same(params, params_of(ner.model))


def everything(nlp):
    """Whatever a pass could change: the objects and their values."""
    found = {"random": (random.getstate(), repr(numpy.random.get_state()), torch.get_rng_state().tolist())}
    for name, proc in nlp.pipeline:
        for i, node in enumerate(proc.model.walk()):
            plain = (float, int, str, bool, set, list, dict)
            known = {
                "params": {key: node.get_param(key).tolist() for key in node.param_names},
                "grads": {key: node.get_grad(key) for key in node.param_names if node.has_grad(key)},
                "attrs": {key: copy.deepcopy(value) for key, value in node.attrs.items() if isinstance(value, plain)},
                "keys": sorted(node.attrs),
            }
            known["grads"] = {key: (id(grad), grad.tolist()) for key, grad in known["grads"].items()}
            for shim in node.shims:
                module = shim._model
                tensors = {key: (id(tensor), tensor.tolist()) for key, tensor in module.named_buffers()}
                grads = {key: param.grad for key, param in module.named_parameters()}
                grads = {key: grad if grad is None else (id(grad), grad.tolist()) for key, grad in grads.items()}
                known["torch"] = tensors, grads
                known["scaler"] = {key: repr(value) for key, value in vars(shim._grad_scaler).items()}
                known["modules"] = [(part.training, getattr(part, "p", None)) for part in module.modules()]
            found[f"{name}/{i}/{node.name}"] = known
    return found


def spacys_losses(nlp, examples):
    """Without torch's own dropout as well. The parser draws random numbers whatever the dropout."""
    losses = {}
    for node in (node for _, proc in nlp.pipeline for node in proc.model.walk()):
        for shim in node.shims:
            shim._model[2].p = 0.0
    random.seed(0)
    numpy.random.seed(0)
    nlp.update(examples, drop=0.0, sgd=False, losses=losses)
    return {name: float(loss) for name, loss in losses.items()}


def test_eval_loss_is_spacys_own(pipeline):
    """Of the averages, without any dropout."""
    nlp, optimizer, examples = pipeline
    dev_losses = DevLosses(nlp, optimizer, [], [])
    found, first = dev_losses(), dev_losses(5)
    random.random()
    assert dev_losses() == found
    assert found["words"] == sum(map(len, examples)) and (found["examples"], first["examples"]) == (30, 5)
    with nlp.use_params(optimizer.averages):
        assert spacys_losses(nlp, examples) == found["losses"]
        assert spacys_losses(nlp, examples[:5]) == first["losses"]
    assert spacys_losses(nlp, examples)["tagger"] != pytest.approx(found["losses"]["tagger"], rel=1e-3)  # not averages
    without = DevLosses(nlp, optimizer, ["ner"], [])()["losses"]
    assert "ner" not in without and without["tagger"] == found["losses"]["tagger"]


@pytest.mark.parametrize("grads", ["none", "some"])
def test_eval_loss_leaves_everything_as_it_was(grads):
    """Also gradients that wait for an update; and where there were none there are none."""
    nlp, optimizer, examples = make_pipeline(steps=3 if grads == "some" else 0)
    if grads == "some":
        nlp.update(examples[:7], drop=0.2, sgd=False)
        assert any(known.get("grads") for key, known in everything(nlp).items() if key.startswith("ner"))
    else:
        assert not any(known["grads"] for key, known in everything(nlp).items() if "/" in key)
    parser = nlp.get_pipe("parser").model
    parser.attrs["unseen_classes"] = {1, 2, 3}  # which a pass takes out
    before, docs = everything(nlp), [example.predicted.to_bytes() for example in examples]
    DevLosses(nlp, optimizer, [], ["tagger"])()
    after = everything(nlp)
    assert after == before
    assert [example.predicted.to_bytes() for example in examples] == docs
    nlp.update(examples, drop=0.1, sgd=False)  # an update like any other does leave something
    changed = everything(nlp)
    pairs = [pair for pair in zip(before.values(), changed.values()) if isinstance(pair[0], dict)]
    assert {key for known, other in pairs for key in known if known[key] != other[key]} >= {"grads", "torch", "attrs"}
    assert changed["random"] != before["random"]


def test_eval_loss_leaves_everything_as_it_was_after_an_error(pipeline):
    nlp, *_ = pipeline
    before = everything(nlp)
    with pytest.raises(ZeroDivisionError), untouched(nlp):
        nlp.update(pipeline[2], drop=0.5, sgd=False)
        raise ZeroDivisionError
    assert everything(nlp) == before


def test_eval_loss_brings_back_gradient_scalers_and_rates(pipeline):
    nlp, *_ = pipeline
    [shim] = [shim for node in nlp.get_pipe("tok2vec").model.walk() for shim in node.shims]
    lstm = torch.nn.LSTM(4, 4, num_layers=2, dropout=0.4)
    shim._model.append(lstm)
    before = everything(nlp)
    with untouched(nlp):
        assert lstm.dropout == 0.0 and shim._model[2].p == 0.0
        shim._grad_scaler._found_inf = True
        shim._grad_scaler._scale.mul_(2)
        shim._model[1].running_mean = torch.zeros(WIDTH)
        shim._model.eval()
        nlp.get_pipe("ner").model.attrs["new"] = 1
    assert everything(nlp) == before and lstm.dropout == 0.4


def test_eval_loss_is_without_dropout_that_is_a_number(pipeline):
    """As in the attention of Hugging Face's models, also after an error."""

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout_prob, self.scale, self.drops = 0.5, 2.0, True

        def forward(self, X):
            seen.append((self.dropout_prob, self.scale, self.drops))
            return torch.nn.functional.dropout(X, self.dropout_prob if self.training else 0.0)

    nlp, _, examples = pipeline
    [shim] = [shim for node in nlp.get_pipe("tok2vec").model.walk() for shim in node.shims]
    seen, module = [], Attention()
    shim._model.append(module)
    with pytest.raises(ZeroDivisionError), untouched(nlp):
        nlp.update(examples, drop=0.0, sgd=False)
        raise ZeroDivisionError
    assert set(seen) == {(0.0, 2.0, True)}
    assert (module.dropout_prob, module.scale, module.drops) == (0.5, 2.0, True)


def test_eval_loss_that_is_nan(pipeline, monkeypatch):
    """spaCy refuses to add it up. A NaN is not smaller than anything, so no rule takes it for good."""
    nlp, optimizer, _ = pipeline

    def update(*args, **kwargs):
        raise ValueError("[E910] Encountered NaN value when computing loss for component 'tagger'.")

    monkeypatch.setattr(nlp.get_pipe("tagger"), "update", update)
    found = DevLosses(nlp, optimizer, [], [])()["losses"]
    assert set(found) == {"tok2vec", "tagger", "parser", "ner"} and all(map(math.isnan, found.values()))


def test_eval_loss_draws_the_same_numbers_each_time(pipeline, monkeypatch):
    """So equal params have equal losses, whatever components draw."""
    nlp, optimizer, _ = pipeline
    drawn = []

    def update(examples, *, losses, **kwargs):
        drawn.append((random.random(), numpy.random.rand(), torch.rand(1).item()))

    monkeypatch.setattr(nlp.get_pipe("tagger"), "update", update)
    dev_losses = DevLosses(nlp, optimizer, [], [])
    for seed in (1, 2):
        random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed)
        dev_losses()
    assert drawn[0] == drawn[1]


def test_eval_loss_without_data(pipeline):
    nlp, optimizer, _ = pipeline
    nlp.config["corpora"]["dev"] = {"@readers": "test-eval-loss.None.v1"}

    @registry.readers("test-eval-loss.None.v1")
    def reader():
        return lambda nlp: iter(())

    with pytest.raises(ControllerError, match=r"EvalLoss: expected examples in \[training\] dev_corpus, found none"):
        DevLosses(nlp, optimizer, [], [])()
    nlp.config["training"]["dev_corpus"] = "corpora.nothing"
    with pytest.raises(ControllerError, match=r"EvalLoss: expected examples in \[training\] dev_corpus, found "):
        DevLosses(nlp, optimizer, [], [])


def test_eval_loss_as_a_metric():
    """With a fake of what a run tells."""
    asked = []

    def dev_losses(at_most):
        asked.append(at_most)
        return {"losses": {"ner": numpy.float32(6.0), "tok2vec": 9.0, "tagger": 3.0}, "words": 30, "examples": 3}

    low = rule("low", "on_evaluate", 'dev["per_word"] < 0.5 and dev["components"]["ner"] == 6', LOG)
    rules = definition(low, metrics=[EVAL_LOSS, part("part", "EvalLoss", max_examples=8, exclude=[])])
    controller = TrainerController(rules)
    assert controller.on_event("on_evaluate", step=4, epoch=1, dev_losses=dev_losses)
    assert asked == [None, 8] and controller.reads("on_evaluate") == {"dev_losses"}
    assert controller.values["dev"] == {
        "loss": 9.0,
        "per_word": 0.3,
        "per_example": 3.0,
        "words": 30,
        "examples": 3,
        "epoch": 1.0,
        "step": 4,
        "components": {"ner": 6.0, "tok2vec": 9.0, "tagger": 3.0},
        "components_per_word": {"ner": 0.2, "tok2vec": 0.3, "tagger": 0.1},
    }
    assert controller.values["part"]["loss"] == 18.0
    assert not TrainerController(rules).on_event("on_evaluate", step=4, scores={})  # a log tells none
    with pytest.raises(ControllerError, match="max_examples"):
        make(metrics=[part("dev", "EvalLoss", max_examples=0)])


def prepared(folder, corpus, rules, **more):
    """Of a shared tok2vec, a tagger and a parser, with dropout."""
    config = config_for(folder, corpus, rules, steps=9, use_averages=True, **more)
    config["nlp"]["pipeline"] = ["tok2vec", "tagger", "parser"]
    config["components"] = {
        "tok2vec": {"factory": "tok2vec", "model": SHARED_TOK2VEC},
        "tagger": {"factory": "tagger", "model": {"@architectures": "spacy.Tagger.v2", "tok2vec": LISTENER}},
        "parser": {"factory": "parser", "min_action_freq": 1, "model": PARSER},
    }
    config["training"]["dropout"] = 0.3
    config["training"]["annotating_components"] = ["tagger"]
    return config


PARSER = {
    "@architectures": "spacy.TransitionBasedParser.v2",
    "state_type": "parser",
    "extra_state_tokens": False,
    "hidden_width": 16,
    "maxout_pieces": 2,
    "use_upper": True,
    "tok2vec": LISTENER,
}


def test_eval_loss_changes_nothing_in_a_training(corpus, tmp_path):
    rules = definition(rule("never", "on_evaluate", 'dev["per_word"] < 0', STOP), metrics=[EVAL_LOSS])
    told, infos, _ = run(prepared(tmp_path / "with", corpus, rules))
    plain, others, _ = run(prepared(tmp_path / "without", corpus, None))
    assert same_params(told, plain)
    assert [info["losses"] for info in infos.values()] == [info["losses"] for info in others.values()]
    assert [info["score"] for info in infos.values()] == [info["score"] for info in others.values()]
