"""Averages by Flower's strategies, from the config: against Flower's own run of them, and by hand."""

import inspect

import numpy
import pytest
import torch

from thinc_torchopt.addons.federated.settings import ARGUMENTS, FlowerStrategy
from thinc_torchopt.core.errors import ConfigError

from . import needs_flwr  # noqa: F401  isort:skip

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

from thinc_torchopt.addons.federated.averages import ModelAverage
from thinc_torchopt.addons.federated.messages import from_arrays, to_arrays

from .grid import LocalGrid
from .pipelines import pipeline, small_config
from .test_rounds import Run, close

# Those that need no more than five clients, with arguments that are not Flower's defaults.
SETTINGS = {
    "FedAvg": {},
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.25},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 3},
    "FedAvgM": {"server_learning_rate": 0.5, "server_momentum": 0.9},
    "FedAdam": {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 0.01},
    "FedYogi": {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 0.01},
    "FedAdagrad": {"eta": 0.05, "tau": 0.01},
}
NAMES = ["north", "east", "south", "west", "centre"]


def models(seed, n=5):
    """The models of n clients, near a global one."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {"a/W": torch.randn(3, 2, generator=generator), "a/b": torch.randn(4, generator=generator)} for _ in range(n)
    ]


def replies(found):
    """As they come from clients of 1, 2, 3 ... examples."""
    LocalGrid({})  # or messages can't be made
    sent = []
    for i, model in enumerate(found):
        message = Message(RecordDict(), dst_node_id=i + 1, message_type="train")
        content = {"arrays": to_arrays(model), "metrics": MetricRecord({"num-examples": i + 1})}
        sent.append(Message(RecordDict(content), reply_to=message))
    return sent


def by_flower(strategy, start, rounds):
    """What Flower's own class makes of these models, when Flower begins its rounds, with nodes that it waits for."""
    weights = start
    for i, found in enumerate(rounds, start=1):
        strategy.configure_train(i, to_arrays(weights), ConfigRecord(), Nodes({}))
        arrays, _ = strategy.aggregate_train(i, replies(found))
        weights = {key: torch.from_numpy(arrays[key].numpy().astype(numpy.float32)) for key in start}
    return weights


class Nodes(LocalGrid):
    def get_node_ids(self):
        return [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", SETTINGS)
def test_averages_are_flowers_own(name):
    """Three rounds, of which the state goes from one to the next; once it is saved and loaded in between."""
    [start], rounds = models(0, 1), [models(seed) for seed in (1, 2, 3)]
    expected = by_flower(getattr(flower, name)(**SETTINGS[name]), start, rounds)
    weights, average = start, ModelAverage(FlowerStrategy(name, **SETTINGS[name]))
    for i, found in enumerate(rounds, start=1):
        if i == 3:
            state, average = average.state_dict(), ModelAverage(FlowerStrategy(name, **SETTINGS[name]))
            average.load_state_dict(state)
        weights = average.compute(i, weights, replies(found))
        assert all(value.dtype == torch.float32 for value in weights.values())
    for key, value in expected.items():
        # Flower keeps FedAvgM's model itself, in the same precision.
        torch.testing.assert_close(weights[key], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["FedAvg", "FedAvgM", "FedAdam"])
def test_averages_keep_what_no_client_has_moved(name):
    """To the last digit: a server's optimizer may make a large step of a small difference."""
    [start], found = models(0, 1), [model | {"a/W": models(0, 1)[0]["a/W"]} for model in models(1)]
    average = ModelAverage(FlowerStrategy(name, **SETTINGS[name])).compute(1, start, replies(found))
    assert torch.equal(average["a/W"], start["a/W"]) and not torch.equal(average["a/b"], start["a/b"])


@pytest.mark.parametrize("inner", ["FedAvg", "FedMedian", "FedAdam"])
@pytest.mark.parametrize(
    ("wrapper", "norm"), [("FixedClipping", "clipping_norm"), ("AdaptiveClipping", "initial_clipping_norm")]
)
def test_averages_of_strategies_that_wrap_others(wrapper, norm, inner):
    """Flower's own classes for privacy at the server. Their noise is of NumPy's global generator."""

    def made():
        own = getattr(flower, inner)(**SETTINGS[inner])
        outer = getattr(flower, f"DifferentialPrivacyServerSide{wrapper}")
        return outer(own, noise_multiplier=0.1, num_sampled_clients=5, **{norm: 0.5})

    [start], rounds = models(0, 1), [models(seed) for seed in (1, 2, 3)]
    numpy.random.seed(3)
    expected = by_flower(made(), start, rounds)
    numpy.random.seed(3)
    weights, average = start, ModelAverage(made())
    for i, found in enumerate(rounds, start=1):
        if i == 3:
            state, average = average.state_dict(), ModelAverage(made())
            average.load_state_dict(state)
        weights = average.compute(i, weights, replies(found))
    assert average.name == f"DifferentialPrivacyServerSide{wrapper} of {inner}"
    for key, value in expected.items():
        torch.testing.assert_close(weights[key], value, rtol=1e-6, atol=1e-7)


def test_averages_have_the_arguments_of_flower():
    """But those of its own sampling and records, and `eta_l`, which has no effect."""
    common = set(inspect.signature(flower.FedAvg.__init__).parameters)
    left_out = {"eta_l", "selection_rule"}
    for name, own in ARGUMENTS.items():
        theirs = set(inspect.signature(getattr(flower, name).__init__).parameters) - common - left_out
        assert theirs == set(own), name


def test_averages_keep_half_precision():
    weights = {"a/W": torch.ones(2, dtype=torch.bfloat16)}
    sent = replies([{"a/W": torch.full((2,), value, dtype=torch.bfloat16)} for value in (1.0, 2.0, 6.0)])
    found = ModelAverage(FlowerStrategy("FedMedian")).compute(1, weights, sent)
    assert torch.equal(found["a/W"], torch.full((2,), 2.0, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", ["FedMedian", "FedTrimmedAvg", "Krum", "FedAdam", "FedAvgM"])
def test_averages_from_a_config(texts, tmp_path, name):
    """In a run with five clients, of which one sends a model of a million in each round."""

    def spoil(kind, client, reply):
        if kind == "train":
            if client == "centre" and name not in ("FedAdam", "FedAvgM"):
                arrays = {key: torch.full_like(torch.from_numpy(one.numpy()), 1e6) for key, one in of(reply).items()}
                reply.content["arrays"] = to_arrays(arrays)
            sent.setdefault(client, []).append(from_arrays(reply.content, weights))
        return reply

    def of(reply):
        return reply.content["arrays"]

    sent, settings = {}, {"@misc": "thinc-torchopt.FlowerStrategy.v1", "strategy": name, **SETTINGS[name]}
    config = small_config({"federated": {"average": settings}}, federated__clients=5, federated__min_clients=5)
    config["federated"]["wait_seconds"] = 5
    run = Run(texts, tmp_path, config, spoil=spoil, names=NAMES)
    weights = pipeline(texts, config=config).weights.collect()
    assert run.train()["status"] == "finished"
    rounds = [[sent[client][i] for client in sorted(NAMES)] for i in (0, 1)]
    counts = [run.result["rounds"][1]["clients"][client]["examples"] for client in sorted(NAMES)]
    strategy = getattr(flower, name)(**SETTINGS[name])
    expected = weights
    for i, found in enumerate(rounds, start=1):
        strategy.configure_train(i, to_arrays(expected), ConfigRecord(), Nodes({}))
        messages = replies(found)
        for message, n in zip(messages, counts):
            message.content["metrics"]["num-examples"] = n
        arrays, _ = strategy.aggregate_train(i, messages)
        expected = {key: torch.from_numpy(arrays[key].numpy().astype(numpy.float32)) for key in weights}
    close(run.weights(), expected)
    assert all(float(value.abs().max()) < 100 for value in run.weights().values())


# ---------------------------------------------------------------------- what can't work


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "FedMean"}, "'strategy' in .federated.average.: expected 'FedAvg', .* or 'FedAdagrad'"),
        ({"strategy": "FedMedian", "beta": 0.1}, "'beta' in .*: expected no argument for FedMedian, found 0.1"),
        ({"strategy": "Krum", "num_nodes_to_select": 2}, "expected only num_malicious_nodes for Krum, found 2"),
        ({"strategy": "FedTrimmedAvg", "beta": 0.5}, "'beta' .* a number above 0 and below 0.5, found 0.5"),
        ({"strategy": "FedTrimmedAvg", "beta": 0.0}, "'beta' .* a number above 0 and below 0.5, found 0.0"),
        ({"strategy": "Krum", "num_malicious_nodes": -1}, "'num_malicious_nodes'"),
        ({"strategy": "MultiKrum", "num_nodes_to_select": 0}, "'num_nodes_to_select' .* at least 1"),
        ({"strategy": "FedAdam", "beta_2": 1.0}, "'beta_2' .* below 1"),
        ({"strategy": "FedAvgM", "server_learning_rate": 0.0}, "'server_learning_rate' .* above 0"),
    ],
)
def test_averages_with_impossible_numbers_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        FlowerStrategy(**settings)


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"strategy": "FedAvg"}, 1),
        ({"strategy": "FedMedian"}, 3),
        ({"strategy": "FedTrimmedAvg"}, 5),
        ({"strategy": "FedTrimmedAvg", "beta": 0.3}, 4),
        ({"strategy": "Krum"}, 3),
        ({"strategy": "Krum", "num_malicious_nodes": 1}, 5),
        ({"strategy": "MultiKrum", "num_malicious_nodes": 1, "num_nodes_to_select": 5}, 6),
        ({"strategy": "Bulyan", "num_malicious_nodes": 1}, 7),
        ({"strategy": "Bulyan", "num_malicious_nodes": 2}, 11),
    ],
)
def test_averages_of_too_few_clients_are_refused(settings, least):
    found = FlowerStrategy(**settings)
    found.check_clients(least)
    if least > 1:
        with pytest.raises(ConfigError, match=f"at least {least} for {found.strategy} .*, found {least - 1}"):
            found.check_clients(least - 1)


@pytest.mark.parametrize(("name", "faulty", "n"), [("Bulyan", 1, 6), ("Bulyan", 2, 10)])
def test_averages_that_are_refused_would_leave_the_model_as_it_is(name, faulty, n):
    """Why there is a limit: with fewer, Flower gives nothing. With as many, it does."""
    strategy = getattr(flower, name)(num_malicious_nodes=faulty)
    assert strategy.aggregate_train(1, replies(models(0, n)))[0] is None
    assert isinstance(strategy.aggregate_train(1, replies(models(0, n + 1)))[0], ArrayRecord)


@pytest.mark.parametrize(("beta", "n"), [(0.2, 4), (0.2, 5), (0.3, 3), (0.3, 4), (0.49, 2), (0.49, 3)])
def test_averages_that_are_refused_would_trim_nothing(beta, n):
    found = models(0, n)
    average = ModelAverage(FlowerStrategy("FedTrimmedAvg", beta=beta)).compute(1, found[0], replies(found))
    mean = {key: sum(model[key] for model in found) / n for key in found[0]}
    is_mean = all(torch.allclose(value, mean[key], atol=1e-6) for key, value in average.items())
    try:
        FlowerStrategy("FedTrimmedAvg", beta=beta).check_clients(n)
        assert not is_mean
    except ConfigError:
        assert is_mean
