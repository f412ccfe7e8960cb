"""FedProx, SCAFFOLD, and modules at the server, over Flower's apps and messages: the same as Modular by hand."""

import json

import pytest
import torch

from . import needs_flwr  # noqa: F401  isort:skip

from thinc_torchopt.addons.federated.server_step import ServerStep
from thinc_torchopt.addons.modular.optimizer import Modular
from thinc_torchopt.core.state.files import read_folder

from .by_hand import Client, average, fed_avg
from .pipelines import SIZES, small_config
from .test_rounds import Run, close, in_round, trained

MODULAR = {"@torch_optimizers": "thinc-torchopt.Modular.v1"}
# Plain steps at a small rate: differences of the last digit don't grow, as they do where Adam divides.
PLAIN = {"optimizer": {"learn_rate": 0.001, "grad_clip": 0.0, "algorithm": MODULAR | {"weight_decay": 0.0}}}


def with_algorithm(client, server=None, **overrides):
    config = small_config({"training": PLAIN}, **overrides)
    config["training"]["optimizer"]["algorithm"] = MODULAR | client
    if server is not None:
        config["federated"]["algorithm"] = MODULAR | server
    return config


SCAFFOLD = (
    {"modules": {"scaffold": {"@gradient_modules": "thinc-torchopt.ScaffoldClient.v1"}}},
    {"modules": {"scaffold": {"@gradient_modules": "thinc-torchopt.ScaffoldServer.v1"}}},
)


def modular_of(client: Client) -> Modular:
    [found] = client.optimizer.torch_optimizers.values()
    assert isinstance(found, Modular)
    return found


def test_methods_fedprox_over_the_apps_is_fedprox_by_hand(texts, tmp_path):
    """And not FedAvg: references are those of each round."""
    block = {"regularizers": {"proximal": {"@regularizers": "thinc-torchopt.FedProx.v1", "alpha": 50.0}}}
    config = with_algorithm(block, federated__rounds=3)
    run = trained(texts, tmp_path, config)

    def begin(optimizer):
        for one in optimizer.torch_optimizers.values():
            one.start_round()

    close(run.weights(), fed_avg(texts, config, 3, begin, steps=3), atol=1e-6)
    without = fed_avg(texts, with_algorithm({}), 3, steps=3)
    assert any(float((value - without[name]).abs().max()) > 1e-3 for name, value in run.weights().items())


def test_methods_scaffold_over_the_apps_is_scaffold_by_hand(texts, tmp_path):
    """Three rounds, as declearn orders them; the exchange itself is tested against declearn's numbers."""
    config = with_algorithm(*SCAFFOLD, federated__rounds=3)
    run = Run(texts, tmp_path, config)
    result = run.train()

    clients = [Client(name, texts, config) for name in SIZES]
    weights = clients[0].weights()
    server = Modular(
        [(name, torch.nn.Parameter(value.clone())) for name, value in weights.items()],
        lr=1.0,
        modules=["scaffold-server"],
    )
    params = server.named_params()
    for round in (1, 2, 3):
        sent = server.collect_aux_var()
        ends, received = [], []
        for client in clients:

            def begin(optimizer, client=client, sent=sent):
                modular_of(client).process_aux_var(sent)
                modular_of(client).start_round()

            ends.append(client.train(weights, round, steps=3, begin=begin))
            received.append(modular_of(client).collect_aux_var())
        server.process_aux_var(received)
        mean = average(ends, list(SIZES.values()))
        server.apply_gradients({name: weights[name] - mean[name] for name in weights})
        weights = {name: param.detach().clone() for name, param in params.items()}
    # Sums of gradients in single precision, of some hundreds, in another order.
    close(run.weights(), weights, atol=1e-5)
    assert result["ended"] == "finished"
    without = fed_avg(texts, with_algorithm({}), 3, steps=3)
    assert any(float((value - without[name]).abs().max()) > 1e-3 for name, value in run.weights().items())


def test_methods_scaffold_knows_clients_by_name(texts, tmp_path):
    """Of a client that has lost its state there is still one: its correction begins at 0, those of others go on."""
    is_now = in_round(1)

    def spoil(kind, name, reply):
        if is_now(kind, name):
            clients.append(json.loads(reply.content["head"]["aux"])["scaffold"]["clients"])
            run.grid.start("south")
            run.grid.forget("south")
        elif kind == "train" and name == "south":
            clients.append(json.loads(reply.content["head"]["aux"])["scaffold"]["clients"])
        return reply

    clients, sums = [], []
    run = Run(texts, tmp_path, with_algorithm(*SCAFFOLD, federated__rounds=2), spoil=spoil)
    before = ServerStep.apply

    def apply(self, weights, mean):
        sums.append(dict(self._modular.shared.parts["scaffold"]))
        return before(self, weights, mean)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerStep, "apply", apply)
        result = run.train()
    assert [sorted(row["clients"]) for row in result["rounds"][1:]] == [["north", "south"]] * 2
    assert clients[0] != clients[1]  # what they call themselves
    assert sums == [{"clients": ["north", "south"]}] * 2


def test_methods_go_on_without_auxiliary_variables_that_cannot_be_used(texts, tmp_path):
    """One is missing. Other damage: test_messages.py."""
    is_now = in_round(1)

    def spoil(kind, name, reply):
        if is_now(kind, name):
            del reply.content["aux-arrays"]["scaffold:ner/lower/b"]
        return reply

    run = Run(texts, tmp_path, with_algorithm(*SCAFFOLD), spoil=spoil)
    first, second = run.train()["rounds"][1:]
    assert list(first["clients"]) == ["north"] and "south" in first["failed"]
    assert set(second["clients"]) == set(SIZES) and run.result["ended"] == "finished"


@pytest.mark.parametrize(("client", "server"), [(SCAFFOLD[0], None), ({}, SCAFFOLD[1])])
def test_methods_must_be_the_same_at_server_and_clients(texts, tmp_path, client, server):
    run = Run(texts, tmp_path, with_algorithm(client, server))
    with pytest.raises(RuntimeError, match=r"auxiliary variables: .* at the server"):
        run.train()


def test_methods_momentum_at_the_server_is_modular_by_hand(texts, tmp_path):
    """With a pattern, and a rate that falls from round to round."""
    modules = {"m": {"@gradient_modules": "thinc-torchopt.Momentum.v1", "beta": 0.5, "params": ["ner/tok2vec/*"]}}
    config = with_algorithm({}, {"modules": modules}, federated__rounds=3)
    config["federated"]["learn_rate"] = {
        "@schedules": "warmup_linear.v1",
        "warmup_steps": 0,
        "total_steps": 4,
        "initial_rate": 1.0,
    }
    run = Run(texts, tmp_path, config)
    run.train()
    clients = [Client(name, texts, config) for name in SIZES]
    weights = clients[0].weights()
    velocity = {name: torch.zeros_like(value) for name, value in weights.items()}
    for round, rate in ((1, 1.0), (2, 0.75), (3, 0.5)):
        mean = average([client.train(weights, round, steps=3) for client in clients], list(SIZES.values()))
        for name, value in weights.items():
            velocity[name] = velocity[name] * (0.5 if name.startswith("ner/tok2vec/") else 0.0) + value - mean[name]
        weights = {name: value - rate * velocity[name] for name, value in weights.items()}
    close(run.weights(), weights, atol=1e-5)


def test_methods_that_need_a_batch_are_refused_at_the_server(texts, tmp_path):
    run = Run(texts, tmp_path, with_algorithm({}, {"normalize": "words"}))
    with pytest.raises(ValueError, match=r"'algorithm\.normalize' in \[federated\]: expected null, found 'words'"):
        run.train()
    assert run.result["ended"] == "failed"


def test_methods_scaffold_of_server_and_clients_agree_after_a_lost_report(texts, tmp_path):
    """The server's correction is the mean of the clients' own, also if a report was lost: that round did not count."""
    is_now, steps = in_round(2), []

    def spoil(kind, name, reply):
        return None if is_now(kind, name) else reply

    run = Run(texts, tmp_path, with_algorithm(*SCAFFOLD, federated__rounds=3), spoil=spoil)
    apply = ServerStep.apply
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerStep, "apply", lambda self, *args: steps.append(self) or apply(self, *args))
        result = run.train()
    told = [sorted(row["clients"]) for row in result["rounds"][1:]]
    assert told == [["north", "south"], ["north"], ["north", "south"]]
    own = [read_folder(tmp_path / f"{name}.cfg.state" / name / "round-3")["state"]["params"] for name in SIZES]
    sent = steps[-1].collect()["scaffold"].state
    for name, value in sent.items():
        mean = sum(params[name]["state"]["scaffold/correction"] for params in own) / len(SIZES)
        torch.testing.assert_close(value, mean, rtol=1e-4, atol=1e-4)  # sums of gradients of some hundreds
    assert any(float(value.abs().max()) > 1.0 for value in sent.values())
