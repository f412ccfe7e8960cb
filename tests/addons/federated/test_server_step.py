"""The mean of the clients' models. With an algorithm: test_methods.py."""

import pytest
import torch
from spacy.util import registry

from thinc_torchopt.core.errors import FederationError, StateError

from . import needs_flwr  # noqa: F401  isort:skip

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from thinc_torchopt.addons.federated.messages import to_arrays
from thinc_torchopt.addons.federated.server_step import ServerStep, weighted_mean
from thinc_torchopt.addons.federated.settings import Federated

from .grid import LocalGrid
from .pipelines import pipeline


def models(seed, n):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a/W": (3, 2), "a/b": (4,), "a/number": ()}
    found = [{key: torch.randn(shape, generator=generator) for key, shape in shapes.items()} for _ in range(n)]
    return [one | {"a/double": one["a/W"].double() / 3} for one in found]


def by_flower(found, counts):
    LocalGrid({})  # or messages can't be made
    replies = []
    for i, (model, count) in enumerate(zip(found, counts)):
        content = {"arrays": to_arrays(model), "metrics": MetricRecord({"num-examples": count})}
        message = Message(RecordDict(), dst_node_id=i + 1, message_type="train")
        replies.append(Message(RecordDict(content), reply_to=message))
    arrays, _ = FedAvg().aggregate_train(1, replies)
    return {key: torch.from_numpy(arrays[key].numpy()) for key in arrays}


def test_mean_is_that_of_flower():
    """To the last bit."""
    [start], found, counts = models(0, 1), models(1, 5), [7, 1, 40, 3, 11]
    mean, expected = weighted_mean(start, found, counts), by_flower(found, counts)
    for key, value in start.items():
        assert mean[key].dtype == value.dtype and torch.equal(mean[key], expected[key].to(value.dtype))


def test_mean_keeps_what_no_client_has_moved():
    """To the last digit: a server's optimizer may make a large step of a small difference."""
    [start] = models(0, 1)
    found = [model | {"a/W": start["a/W"].clone()} for model in models(1, 3)]
    mean = weighted_mean(start, found, [1, 1, 1])
    assert torch.equal(mean["a/W"], start["a/W"]) and not torch.equal(mean["a/b"], start["a/b"])
    naive = sum(model["a/W"] * (1 / 3) for model in found)
    assert not torch.equal(naive, start["a/W"])


def test_mean_of_half_precision_is_of_more_digits():
    """As Flower's, of what is sent."""
    generator = torch.Generator().manual_seed(0)
    start, *found = ({"a/W": torch.randn(100, generator=generator).bfloat16()} for _ in range(6))
    counts = [7, 1, 40, 3, 11]
    mean = weighted_mean(start, found, counts)["a/W"]
    assert mean.dtype == torch.bfloat16 and torch.equal(mean, by_flower(found, counts)["a/W"].bfloat16())


def test_step_that_diverges_or_has_the_state_of_another_algorithm(texts):
    sgd = registry.resolve({"algorithm": {"@torch_optimizers": "torch.SGD.v1"}})["algorithm"]
    one = pipeline(texts)
    step = ServerStep(one, Federated(local_steps=1, algorithm=sgd, learn_rate=1e39))
    weights = one.weights.collect()
    with pytest.raises(FederationError, match=r"expected finite numbers, .* has diverged: lower 'learn_rate'"):
        step.apply(weights, {name: value + 1 for name, value in weights.items()})
    with pytest.raises(StateError, match=r"expected no block .*, found one"):
        step.load_state_dict(None)
    with pytest.raises(StateError, match=r"expected a block .*, found none"):
        ServerStep(one, Federated(local_steps=1)).load_state_dict(step.state_dict())
