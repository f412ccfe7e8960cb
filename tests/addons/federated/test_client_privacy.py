"""[federated.privacy]: the sum by hand, Opacus' own numbers, and Flower's way to clip."""

import numpy
import pytest
import torch

from thinc_torchopt.addons.federated.settings import ClientPrivacy, Federated, FlowerStrategy, UpdateGuard
from thinc_torchopt.core.compat import has_opacus
from thinc_torchopt.core.errors import ConfigError, StateError

from . import needs_flwr  # noqa: F401  isort:skip

from flwr.supercore.differential_privacy import compute_clip_model_update

from thinc_torchopt.addons.federated.averages import PrivateAverage

from .pipelines import pipeline, small_config
from .test_guard import Liar
from .test_methods import SCAFFOLD, with_algorithm
from .test_rounds import Run, close

NAMES = ["east", "north", "south"]
needs_opacus = pytest.mark.skipif(not has_opacus, reason="opacus is not installed")


def private(clients=3, rounds=2, **settings):
    block = {"@misc": "thinc-torchopt.ClientPrivacy.v1", "clip": 0.05, "delta": 1e-3, "noise_multiplier": 0.0}
    config = small_config(federated__clients=clients, federated__rounds=rounds, federated__wait_seconds=5)
    block |= settings
    config["federated"] |= {
        "privacy": {key: value for key, value in block.items() if value is not None},
        "weigh_by": "client",
    }
    return config


def train(texts, folder, config, names=NAMES, factor=1.0):
    folder.mkdir(exist_ok=True)
    sent = Liar(pipeline(texts, config=config).weights.collect(), factor)
    run = Run(texts, folder, config, spoil=sent, names=names)
    run.train()
    return run, sent


@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_client_privacy_is_the_mean_of_clipped_updates(texts, tmp_path, clip):
    """The oracle: Flower's clipping in place of ours. Without a clip that acts, it is FedAvg with equal weights."""
    config = private(rounds=1, clip=clip)
    run, sent = train(texts, tmp_path / "private", config)
    names = list(sent.start)
    start = [sent.start[name].numpy() for name in names]
    total = [numpy.zeros_like(value) for value in start]
    for name in NAMES:
        found = [sent.sent[name][0][key].numpy() for key in names]
        compute_clip_model_update(found, start, clip)
        total = [one + (new - old) for one, new, old in zip(total, found, start)]
    expected = {key: torch.from_numpy(old + one / 3) for key, old, one in zip(names, start, total)}
    # float32: Flower clips in it
    close(run.weights(), expected, atol=1e-6)
    row = run.result["rounds"][1]
    assert row["privacy"]["epsilon"] is None and row["privacy"]["updates"] == 1


def test_client_privacy_a_liar_moves_the_model_by_its_clip(texts, tmp_path):
    config = private(rounds=1)
    honest, _ = train(texts, tmp_path / "honest", config)
    lied, _ = train(texts, tmp_path / "lied", config, names=["liar", "north", "south"], factor=-1e4)
    without, _ = train(texts, tmp_path / "without", config, names=["north", "south"])
    change = [value - without.weights()[name] for name, value in lied.weights().items()]
    moved = sum(float(one.double().square().sum()) for one in change) ** 0.5
    # Divided by the clients in the config, whoever takes part.
    assert moved == pytest.approx(0.05 / 3, rel=1e-3)
    assert honest.result["status"] == "finished"


@needs_opacus
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
def test_client_privacy_noise_and_epsilon(texts, tmp_path):
    """The noise has the standard deviation that it should, and Opacus counts the same epsilon with a rate of 1."""
    from opacus.accountants import PRVAccountant, RDPAccountant

    quiet, _ = train(texts, tmp_path / "quiet", private(rounds=1))
    loud, _ = train(texts, tmp_path / "loud", private(rounds=1, noise_multiplier=2.0))
    change = torch.cat([(value - quiet.weights()[name]).flatten() for name, value in loud.weights().items()])
    # The deviation of a sample is within 5 of its own, std / sqrt(2 n), but once in a million runs.
    std, n = 2.0 * 0.05 / 3, len(change)
    assert n > 3_000 and abs(float(change.double().std()) - std) < 5 * std / (2 * n) ** 0.5
    assert abs(float(change.double().mean())) < 5 * std / n**0.5
    found = loud.result["rounds"][1]["privacy"]
    for name, accountant in (("prv", PRVAccountant()), ("rdp", RDPAccountant())):
        accountant.history = [(2.0, 1.0, 1)]
        assert found[f"epsilon_{name}"] == pytest.approx(accountant.get_epsilon(delta=1e-3))
    # A second run has other noise.
    again, _ = train(texts, tmp_path / "again", private(rounds=1, noise_multiplier=2.0))
    assert not torch.equal(*(torch.cat([v.flatten() for v in run.weights().values()]) for run in (loud, again)))


@needs_opacus
@pytest.mark.filterwarnings("ignore:Optimal order")
def test_client_privacy_target_finds_the_noise_and_ends_the_run(texts, tmp_path):
    from opacus.accountants.utils import get_noise_multiplier

    settings = {"noise_multiplier": None, "target_epsilon": 20.0, "accountant": "rdp"}
    run, _ = train(texts, tmp_path / "least", private(rounds=2, **settings))
    least = get_noise_multiplier(target_epsilon=20.0, target_delta=1e-3, sample_rate=1.0, steps=2, accountant="rdp")
    last = run.result["rounds"][-1]["privacy"]
    assert last["noise_multiplier"] == least and last["epsilon"] <= 20.0 and last["updates"] == 2
    settings |= {"noise_multiplier": least}
    run, _ = train(texts, tmp_path / "over", private(rounds=9, **settings))
    rows = run.result["rounds"]
    assert run.result["status"] == "finished" and len(rows) - 1 < 9
    assert rows[-1]["privacy"]["epsilon"] <= 20.0


@pytest.mark.parametrize("noise", [0.0, pytest.param(1.0, marks=needs_opacus)])
def test_client_privacy_goes_on_with_its_noise_and_its_count(noise):
    settings = ClientPrivacy(1.0, 1e-3, noise_multiplier=noise)
    one = PrivateAverage(settings, clients=3, rounds=4)
    weights = {"W": torch.zeros(4, 3)}
    one.compute(1, weights, [])
    state = one.state_dict()
    other = PrivateAverage(settings, clients=3, rounds=4)
    other.load_state_dict(state)
    assert torch.equal(one.compute(2, weights, [])["W"], other.compute(2, weights, [])["W"])
    assert one.used() == other.used() and one.used()["updates"] == 2


def test_client_privacy_state_of_another_average_is_refused():
    average = PrivateAverage(ClientPrivacy(1.0, 1e-3, noise_multiplier=0.0), clients=3, rounds=4)
    with pytest.raises(StateError, match=r"expected the state of \[federated.privacy\], found another one"):
        average.load_state_dict({"strategy": "FedAvg", "values": {}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weigh_by": "examples"}, "'weigh_by' in .federated.: expected \"client\""),
        ({"average": FlowerStrategy("FedMedian")}, "'average' in .federated.: expected null with .federated.privacy."),
        ({"guard": UpdateGuard()}, "'guard' in .federated.: expected null with .federated.privacy."),
        ({"privacy": UpdateGuard()}, "thinc-torchopt.ClientPrivacy.v1"),
    ],
)
def test_client_privacy_refuses_settings_that_would_not_be_private(changes, message):
    settings = {"local_steps": 1, "clients": 3, "min_clients": 3, "weigh_by": "client"}
    settings |= {"privacy": ClientPrivacy(1.0, 1e-3, noise_multiplier=0.0)}
    with pytest.raises(ConfigError, match=message):
        Federated(**{**settings, **changes})


def test_client_privacy_refuses_what_modules_exchange(texts, tmp_path):
    config = with_algorithm(*SCAFFOLD)
    config["federated"] |= {"privacy": private()["federated"]["privacy"], "clients": 3, "weigh_by": "client"}
    with pytest.raises(ConfigError, match=r"no modules that exchange auxiliary variables.*scaffold"):
        Run(texts, tmp_path, config, names=NAMES).train()


def test_client_privacy_refuses_a_large_delta():
    with pytest.raises(
        ConfigError, match=r"'delta' in \[federated.privacy\]: expected a number far below 1 divided by .*1 / 3,"
    ):
        PrivateAverage(ClientPrivacy(1.0, 0.4, noise_multiplier=0.0), clients=3, rounds=1)
