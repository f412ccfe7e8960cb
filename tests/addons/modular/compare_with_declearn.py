"""Random chains and federations, here and in declearn. test_declearns_tests.py runs it where declearn is.

In float64, so that a difference is no rounding: in float32, a division by a tiny root can make one visible.
"""

import os
from random import Random

import numpy
import pytest
import torch
from declearn.model.sklearn import NumpyVector
from declearn.optimizer import Optimizer

from thinc_torchopt.addons.modular.optimizer import Modular

N = int(os.environ.get("CHAINS", "60"))
CLOSE = {"rtol": 1e-9, "atol": 1e-12}  # sums of float64 in another order
pytestmark = pytest.mark.filterwarnings("ignore")


class TheirModel:
    """What declearn's optimizer needs of a model."""

    def __init__(self, weights):
        self.weights = weights

    def get_weights(self, trainable=False):
        return self.weights

    def apply_updates(self, updates):
        self.weights = self.weights + updates


def a_part(random, name):
    beta, eps = random.random() * 0.95, 10.0 ** -random.randint(3, 8)
    settings = {
        "adagrad": {"eps": eps},
        "adam": {"beta_1": beta, "beta_2": 0.5 + random.random() * 0.49, "amsgrad": random.random() < 0.4, "eps": eps},
        "ewma": {"beta": beta},
        "l2-clipping": {"max_norm": random.random() * 3},
        "momentum": {"beta": beta, "nesterov": random.random() < 0.5},
        "rmsprop": {"beta": beta, "eps": eps},
    }
    alike = {"l2-global-clipping": "l2-clipping", "yogi": "adam", "yogi-momentum": "ewma"}
    return name, settings.get(alike.get(name, name), {"alpha": random.random() * 0.2})


MODULES = [
    "adagrad",
    "adam",
    "ewma",
    "l2-clipping",
    "l2-global-clipping",
    "momentum",
    "rmsprop",
    "yogi",
    "yogi-momentum",
]


def a_rate(random, top):
    """A number, or one of declearn's schedulers."""
    base = random.random() * top + 1e-3
    return random.choice([base, ("exponential-decay", {"base": base, "rate": random.random()})])


def rates_of(theirs):
    return {"lrate": theirs.lrate, "w_decay": theirs.w_decay}


def some_weights(random, numbers):
    shapes = {f"p{i}": [random.randint(1, 5) for _ in range(random.randint(1, 3))] for i in range(random.randint(1, 4))}
    return {name: numbers.normal(size=shape) for name, shape in shapes.items()}


def like(weights, numbers):
    return {name: numbers.normal(size=value.shape) for name, value in weights.items()}


def params_of(weights):
    return {name: torch.nn.Parameter(torch.tensor(value)) for name, value in weights.items()}


def assert_close(params, vector):
    for name, param in params.items():
        numpy.testing.assert_allclose(param.detach().numpy(), vector.coefs[name], **CLOSE, err_msg=name)


@pytest.mark.parametrize("seed", range(N))
def test_chain(seed):
    """Eight steps in rounds, with declearn's rates of each step. In the middle, a new optimizer of ours goes on from
    declearn's config.
    """
    random, numbers = Random(seed), numpy.random.default_rng(seed)
    names = random.sample(["lasso", "ridge", "fedprox"], random.choice([0, 0, 1, 2]))
    spec = {
        "lrate": a_rate(random, 0.2),
        "w_decay": random.choice([0.0, a_rate(random, 0.1)]),
        "regularizers": [a_part(random, name) for name in names],
        "modules": [a_part(random, random.choice(MODULES)) for _ in range(random.randint(0, 4))],
    }
    weights = some_weights(random, numbers)
    model, theirs = TheirModel(NumpyVector(weights)), Optimizer.from_config(spec)
    params = params_of(weights)
    ours, cut = Modular.from_config(params.items(), {**spec, **rates_of(theirs)}), random.randint(0, 7)
    for step in range(8):
        if random.random() < 0.3:
            theirs.start_round()
            ours.start_round()
        grads = like(weights, numbers)
        ours.lrate, ours.w_decay = rates_of(theirs).values()
        theirs.apply_gradients(model, NumpyVector(grads))
        ours.apply_gradients(grads)
        if step == cut:
            state = ours.get_state()
            ours = Modular.from_config(params.items(), {**theirs.get_config(), **rates_of(theirs)})
            ours.set_state(state)
        assert_close(params, model.weights)


@pytest.mark.parametrize("seed", range(N // 4))
def test_federation(seed):
    """Four rounds of SCAFFOLD, with a part of the clients in each."""
    random, numbers = Random(seed), numpy.random.default_rng(seed)
    of_client = random.sample(["momentum", "ewma", "adam", "l2-clipping"], random.randint(0, 2))
    regularizers = random.sample(["ridge", "fedprox", "lasso"], random.randint(0, 1))
    client = {
        "lrate": random.random() * 0.2 + 0.01,
        "w_decay": random.choice([0.0, 0.05]),
        "regularizers": [a_part(random, name) for name in regularizers],
        "modules": ["scaffold-client", *[a_part(random, name) for name in of_client]],
    }
    of_server = random.sample(["momentum", "adam"], random.randint(0, 1))
    server = {"lrate": 1.0, "modules": ["scaffold-server", *[a_part(random, name) for name in of_server]]}
    weights, n = some_weights(random, numbers), random.randint(2, 5)
    model, theirs = TheirModel(NumpyVector(weights)), Optimizer.from_config(server)
    their_clients = [Optimizer.from_config(client) for _ in range(n)]
    params, copies = params_of(weights), [params_of(weights) for _ in range(n)]
    ours = Modular.from_config(params.items(), server)
    our_clients = [Modular.from_config(copy.items(), client) for copy in copies]
    for _ in range(4):
        their_aux, our_aux = theirs.collect_aux_var(), ours.collect_aux_var()
        sent: list = []
        for i in random.sample(range(n), random.randint(1, n)):
            local = TheirModel(model.weights)
            with torch.no_grad():
                for name, copy in copies[i].items():
                    copy.copy_(params[name])
            for one, aux in ((their_clients[i], their_aux), (our_clients[i], our_aux)):
                one.process_aux_var(aux)
                one.start_round()
            for _ in range(random.randint(1, 4)):
                grads = like(weights, numbers)
                their_clients[i].apply_gradients(local, NumpyVector(grads))
                our_clients[i].apply_gradients(grads)
            moved = {name: (params[name] - copy).detach() for name, copy in copies[i].items()}
            aux = (their_clients[i].collect_aux_var(), our_clients[i].collect_aux_var())
            sent.append((model.weights - local.weights, moved, *[found["scaffold"] for found in aux]))
        their_moves, our_moves, their_sent, our_sent = zip(*sent)
        theirs.process_aux_var({"scaffold": sum(their_sent)})
        ours.process_aux_var({"scaffold": sum(our_sent)})
        theirs.apply_gradients(model, sum(their_moves[1:], their_moves[0]) / len(sent))
        ours.apply_gradients({name: sum(moved[name] for moved in our_moves) / len(sent) for name in params})
        assert_close(params, model.weights)
