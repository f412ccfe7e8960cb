"""One round of local training."""

import numpy
import pytest
import torch
from spacy.tokens import DocBin

from thinc_torchopt.addons.federated.pipeline import RoundPlan
from thinc_torchopt.core.state.trees import flatten, unflatten

from .by_hand import Client
from .pipelines import pipeline, shared_config, small_config

WARMUP = {
    "training": {
        "optimizer": {
            "learn_rate": {"@schedules": "warmup_linear.v1", "warmup_steps": 4, "total_steps": 40, "initial_rate": 0.01}
        }
    }
}


def copied(state):
    """As it comes back from Flower."""
    values, tensors = flatten(state)
    return unflatten(values, {name: tensor.clone() for name, tensor in tensors.items()})


@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        ({"steps": 8}, lambda: small_config(training__max_epochs=1)),
        ({"epochs": 2}, small_config),
        ({"steps": 3}, shared_config),
    ],
)
def test_pipeline_trains_as_a_loop_by_hand(texts, plan, settings):
    """Two rounds; in the second, moments, schedules and random numbers go on as in a process that never ended."""
    config = settings().merge(WARMUP)
    by_hand = Client("north", texts, config)
    start = by_hand.weights()
    weights, state = start, None
    for round in (1, 2):
        expected = by_hand.train(weights, round, **plan)
        outcome = pipeline(texts, config=config).train(
            weights, RoundPlan(round, plan.get("steps", 0), plan.get("epochs", 0)), state=state, name="north"
        )
        for name, value in expected.items():
            assert torch.equal(outcome.weights[name], value), (round, name)
            assert not torch.equal(value, weights[name])
        weights, state = outcome.weights, copied(outcome.state)
    assert outcome.examples == 40 and outcome.skipped == 0
    assert outcome.steps == by_hand.optimizer.state_dict()["step"] // 2
    assert outcome.words > outcome.steps and outcome.losses["ner"] > 0


def test_pipeline_that_begins_anew_has_the_learning_rate_of_the_others(texts):
    """It missed two rounds of three steps, or lost its state."""
    config = small_config(WARMUP)
    one = pipeline(texts, config=config)
    outcome = one.train(one.weights.collect(), RoundPlan(3, 3, 0), name="north")
    assert outcome.state["step"] == 9


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.NonFiniteGradWarning")
@pytest.mark.parametrize("keeps_process", [True, False])
def test_pipeline_counts_skipped_updates_of_the_round(texts, keeps_process):
    """One loss and its gradient are NaN, in round 1. The sum of losses is that of the others."""
    one, state, skipped = pipeline(texts), None, []
    update, spoiled, told = one.nlp.update, [], []

    def spoil(*args, **kwargs):
        result = update(*args, **kwargs)
        told.append(kwargs["losses"]["ner"])
        if not spoiled:
            node = next(node for node in one.nlp.get_pipe("ner").model.walk() if node.grad_names)
            node.get_grad(node.grad_names[0])[...] = numpy.nan
            kwargs["losses"]["ner"] = numpy.nan
            spoiled.append(told.pop())
        return result

    one.nlp.update = spoil
    for round in (1, 2, 3):
        outcome = one.train(one.weights.collect(), RoundPlan(round, 3, 0), state=state, name="north")
        state = copied(outcome.state)
        skipped.append(outcome.skipped)
        assert round > 1 or outcome.losses["ner"] == pytest.approx(told[-1])  # a sum
        assert 0.0 < outcome.losses["ner"] < numpy.inf
        one = one if keeps_process else pipeline(texts)
    assert skipped == [1, 0, 0]


def test_pipeline_without_texts_to_evaluate(texts, tmp_path):
    one = pipeline(texts)
    DocBin().to_disk(tmp_path / "empty.spacy")
    one.config["corpora"]["dev"]["path"] = str(tmp_path / "empty.spacy")
    assert one.evaluate(one.weights.collect()) == (0.0, {}, 0)


def test_pipeline_does_not_depend_on_what_it_did_before(texts):
    first = pipeline(texts)
    weights = first.weights.collect()
    outcome = pipeline(texts).train(weights, RoundPlan(1, 3, 0), name="north")
    score, scores, examples = first.evaluate({name: value * 1.5 for name, value in weights.items()})
    assert examples == 10 and score == scores["ents_f"] and "speed" not in scores
    again = first.train(weights, RoundPlan(1, 3, 0), name="north")
    assert all(torch.equal(value, again.weights[name]) for name, value in outcome.weights.items())
    other = pipeline(texts).train(weights, RoundPlan(1, 3, 0), name="south")
    assert any(not torch.equal(value, other.weights[name]) for name, value in outcome.weights.items())


def test_pipeline_tells_learning_rates_the_score_of_the_global_model(texts):
    """A plateau: without a better score for one evaluation, the rate falls."""
    plateau = {"@schedules": "thinc-torchopt.plateau.v1", "initial_rate": 0.01, "patience": 1, "factor": 0.5}
    config = small_config({"training": {"optimizer": {"learn_rate": plateau}}})
    state, rates = None, []
    for round, score in enumerate((0.5, 0.4, 0.4), start=1):
        one = pipeline(texts, config=config)
        outcome = one.train(one.weights.collect(), RoundPlan(round, 2, 0), score=score, state=state)
        state = copied(outcome.state)
        rates.append(one.optimizer.learn_rate)
    assert rates[0] == 0.01 and rates[-1] < 0.01
