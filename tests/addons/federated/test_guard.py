"""[federated.guard]: updates that are much larger than the others."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.federated.settings import Federated, UpdateGuard
from thinc_torchopt.core.errors import ConfigError, FederationError

from . import needs_flwr  # noqa: F401  isort:skip

from thinc_torchopt.addons.federated.messages import to_arrays

from .pipelines import pipeline, small_config
from .test_methods import SCAFFOLD, with_algorithm
from .test_rounds import Run

NAMES = ["liar", "north", "south"]


def guarded(times=3.0, **overrides):
    settings = {"@misc": "thinc-torchopt.UpdateGuard.v1", "times": times}
    return small_config({"federated": {"guard": settings, "clients": 3, "wait_seconds": 5}}, **overrides)


class Liar:
    """Sends its update times a factor, and keeps what all have sent."""

    def __init__(self, start, factor, in_rounds=(1,)):
        self.start, self.factor, self.in_rounds = start, factor, in_rounds
        self.sent = {}

    def __call__(self, kind, name, reply):
        if kind == "train":
            found = {key: torch.from_numpy(one.numpy()) for key, one in reply.content["arrays"].items()}
            n = len(self.sent.setdefault(name, [])) + 1
            if name == "liar" and n in self.in_rounds and self.factor != 1.0:
                found = {key: self.start[key] + (value - self.start[key]) * self.factor for key, value in found.items()}
                reply.content["arrays"] = to_arrays(found)
            self.sent[name].append(found)
        return reply

    def norms(self):
        changes = {name: [sent[0][key] - self.start[key] for key in self.start] for name, sent in self.sent.items()}
        return {
            name: math.sqrt(sum(float(one.double().square().sum()) for one in own)) for name, own in changes.items()
        }


def test_guard_of_the_config(texts, tmp_path):
    """configs/federated_guard.cfg: seven clients, of which one sends an update that is far too large."""
    names = ["liar", "north", "south", "east", "west", "centre", "coast"]
    config = small_config(of="federated_guard.cfg", federated__clients=7, federated__min_clients=5)
    liar = Liar(pipeline(texts, config=config).weights.collect(), -50.0, (1,))
    run = Run(texts, tmp_path, config, spoil=liar, names=names)
    first = run.train()["rounds"][1]
    assert list(first["failed"]) == ["liar"] and "[federated.guard]" in first["failed"]["liar"]
    assert sorted(first["clients"]) == sorted(names[1:])


def train(texts, folder, config, factor, in_rounds=(1,)):
    liar = Liar(pipeline(texts, config=config).weights.collect(), factor, in_rounds)
    run = Run(texts, folder, config, spoil=liar, names=NAMES)
    run.train()
    return run, liar


def test_guard_leaves_out_an_update_that_is_too_large(texts, tmp_path, caplog):
    """The new model is the mean of the others. In the next round the client is honest, and is back."""
    with caplog.at_level("WARNING", "flwr"):
        run, liar = train(texts, tmp_path, guarded(), 100.0)
    first, second = run.result["rounds"][1:]
    assert sorted(first["clients"]) == ["north", "south"] and sorted(second["clients"]) == NAMES
    norms = liar.norms()
    limit = 3.0 * sorted(norms.values())[1]
    assert first["failed"]["liar"] == (
        f"[federated.guard]: expected a norm of its update of at most {limit:.3g}, 3 times the median of the clients "
        f"in this round, found {norms['liar']:.3g}."
    )
    assert (
        f"Client 'liar' is left out of this round: expected a norm of its update of at most {limit:.3g}" in caplog.text
    )
    for name in ("north", "south"):
        assert first["clients"][name]["update_norm"] == pytest.approx(norms[name])
    # It goes back to the state before that round, as the server did not take it.
    assert "Client 'liar' undoes round 1" in caplog.text


def test_guard_changes_nothing_for_honest_clients(texts, tmp_path):
    run, _ = train(texts, tmp_path, guarded(), 1.0)
    (tmp_path / "plain").mkdir()
    plain = Run(texts, tmp_path / "plain", small_config(federated__clients=3, federated__wait_seconds=5), names=NAMES)
    plain.train()
    assert all(torch.equal(value, plain.weights()[name]) for name, value in run.weights().items())
    assert not any(row["failed"] for row in run.result["rounds"])


def test_guard_looks_at_what_modules_send(texts, tmp_path):
    """An honest update, and a correction of SCAFFOLD that is not: it would spoil the steps of all."""
    config = with_algorithm(*SCAFFOLD)
    config["federated"] |= {"guard": guarded()["federated"]["guard"], "clients": 3, "wait_seconds": 5}

    def spoil(kind, name, reply):
        if (kind, name) == ("train", "liar"):
            aux = reply.content["aux-arrays"]
            reply.content["aux-arrays"] = to_arrays(
                {key: torch.from_numpy(one.numpy() * 1e4) for key, one in aux.items()}
            )
        return reply

    run = Run(texts, tmp_path, config, spoil=spoil, names=NAMES)
    for row in run.train()["rounds"][1:]:
        assert "expected a norm of its 'scaffold' of at most" in row["failed"]["liar"]


def test_guard_ends_a_run_with_too_few_clients_left(texts, tmp_path):
    """It counts as a report that can't be used: the round is repeated, until the run fails."""
    with pytest.raises(FederationError, match=r"found 2: north, south, .* liar: \[federated.guard\]: expected a norm"):
        train(texts, tmp_path, guarded(federated__min_clients=3, federated__attempts=2), 100.0, in_rounds=(1, 2))


def test_guard_needs_three_reports(texts, tmp_path, caplog):
    """With two, the median is their mean: no norm is three times that."""
    run = Run(texts, tmp_path, guarded(federated__rounds=1, federated__wait_seconds=0.2), names=["north", "south"])
    with caplog.at_level("WARNING", "flwr"):
        run.train()
    assert "Norms of updates are not compared in round 1: 2 reports are too few" in caplog.text


@given(st.lists(st.floats(0.0, 1e30), min_size=3, max_size=9), st.floats(1.1, 10.0), st.floats(0.0, 1e30))
def test_guard_can_not_be_moved_by_a_minority(honest, times, lie):
    """Whatever less than half of the clients send, the limit stays within those of honest norms."""
    n = (len(honest) - 1) // 2
    norms = {f"honest {i}": {"update": norm} for i, norm in enumerate(honest)}
    norms |= {f"liar {i}": {"update": lie} for i in range(n)}
    limits = UpdateGuard(times=times).limits(norms)
    if limits:
        assert times * min(honest) <= limits["update"] <= times * max(honest)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"times": 1.0}, "'times' in .federated.guard.: expected a number above 1, found 1.0"),
        ({"times": math.inf}, "'times'"),
    ],
)
def test_guard_with_impossible_settings_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        UpdateGuard(**settings)


def test_guard_of_two_clients_is_refused():
    with pytest.raises(
        ConfigError, match=r"'clients' .* at least 3 for .federated.guard., which compares clients, found 2"
    ):
        Federated(local_steps=1, guard=UpdateGuard())
