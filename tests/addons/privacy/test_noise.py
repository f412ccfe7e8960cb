import math
import warnings
from unittest.mock import Mock

import numpy
import pytest
import torch
from thinc.api import Linear, chain, with_array

from thinc_torchopt.addons.privacy.accounting import epsilon_of, least_noise, most_steps
from thinc_torchopt.addons.privacy.noise import Noise, slots_of
from thinc_torchopt.core.compat import has_opacus, import_opacus_accountants
from thinc_torchopt.core.errors import ConfigError, StateError

from .test_book import embedding, grads_of, tagged, tagger_of


def pipeline():
    nlp = tagger_of(chain(embedding(), with_array(Linear(8, 8))))
    examples = tagged(nlp, [4, 3])
    nlp.initialize(lambda: examples)
    return nlp


def test_noise_is_as_large_as_said_on_all_params_that_are_trained():
    nlp = pipeline()
    frozen = {(node.id, "G") for node in nlp.get_pipe("tagger").model.walk() if node.name == "layernorm"}
    noise, found = Noise(seed=3), []
    noise.add(nlp, [], frozen, std=4.0, divide_by=2.0)  # no gradients yet, as after an empty batch
    for (_, _, node, name), grad in grads_of(nlp).items():
        assert grad.any() != ((node, name) in frozen)
        found.append(grad.ravel() if grad.any() else grad[:0].ravel())
    values = numpy.concatenate(found)
    # Five standard errors of a mean, and of a standard deviation.
    assert abs(values.mean()) < 5 * 2.0 / len(values) ** 0.5
    assert abs(values.std() - 2.0) < 5 * 2.0 / (2 * len(values)) ** 0.5
    before = grads_of(nlp)
    noise.add(nlp, [], frozen, std=0.0, divide_by=2.0)
    for key, grad in grads_of(nlp).items():
        numpy.testing.assert_array_equal(grad, before[key] / 2.0)


def noise_of(secret=None, *, sums=1.0, params=1.0, std=1.0, about=(3,)):
    """The noise of one update, in units of `std`. sums, params: One of their numbers."""
    noise = Noise(0)
    if secret is not None:
        noise.secret = secret
    total, weights = torch.zeros(60, 50), torch.ones(60, 50)
    total[7, 3], weights[59, 49] = float(sums), float(params)
    found = total.clone()
    noise.add_to([found], [weights], std, about=about)
    return (found - total).flatten().double() / std


def test_noise_is_the_same_if_an_update_is_repeated_exactly():
    assert torch.equal(noise_of(), noise_of())
    assert torch.equal(noise_of("ab" * 32), noise_of("ab" * 32))
    one, other = Noise(None), Noise(None)
    assert one.secret != other.secret  # from the system
    other.secret = one.secret
    assert other.secret == one.secret


@pytest.mark.parametrize(
    "changed",
    [
        {"secret": "ab" * 32},
        {"about": (4,)},  # the number of the update
        {"about": (3, "another config, or other data")},
        {"std": 0.9},
        {"sums": numpy.nextafter(numpy.float32(1.0), numpy.float32(2.0))},  # as on another machine
        {"params": numpy.nextafter(numpy.float32(1.0), numpy.float32(2.0))},
    ],
)
def test_noise_of_updates_that_differ_in_anything_is_independent(changed):
    one, other = noise_of(), noise_of(**changed)
    # Five standard errors of the correlation of independent values.
    assert abs(float(one @ other) / len(one)) < 5 / len(one) ** 0.5
    assert abs(float(other.std()) - 1.0) < 5 / (2 * len(one)) ** 0.5


@pytest.mark.parametrize("secret", ["", "ab" * 31, "xy" * 32, "AB" * 32])
def test_noise_refuses_a_damaged_secret(secret):
    noise = Noise(0)
    before = noise.secret
    with pytest.raises(StateError, match="the secret of its noise is damaged"):
        noise.secret = secret
    assert noise.secret == before


def test_noise_is_drawn_once_for_what_components_share_and_not_for_those_left_out():
    nlp = pipeline()
    nlp.add_pipe("tagger", name="other").model = nlp.get_pipe("tagger").model
    slots = [(node.id, name) for node, name in slots_of(nlp, (), ())]
    assert len(slots) == len(set(slots)) > 0
    Noise(0).add(nlp, ["tagger", "other"], (), std=1.0, divide_by=1.0)
    assert not any(grad.any() for grad in grads_of(nlp).values())


HISTORY = [(1.1, 0.02, 3), (0.9, 0.03, 2)]
opacus = pytest.mark.skipif(not has_opacus, reason="opacus is not installed")


@opacus
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["rdp", "prv"])
def test_accounting_is_opacus_own(kind):
    accountant = getattr(import_opacus_accountants(), f"{kind.upper()}Accountant")()
    for noise, rate, steps in HISTORY:
        for _ in range(steps):
            accountant.step(noise_multiplier=noise, sample_rate=rate)
    expected = accountant.get_epsilon(delta=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Opacus warns of the orders that RDP tries
        assert epsilon_of(HISTORY, 1e-5, kind) == expected
        noise = least_noise(2.0, 1e-5, 0.02, 200, kind)
        assert 1.98 < epsilon_of([(noise, 0.02, 200)], 1e-5, kind) <= 2.0


# PRV takes seconds. By day, test_private_run.py has a training that it ends.
@opacus
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["rdp", pytest.param("prv", marks=pytest.mark.slow)])
def test_accounting_finds_the_last_step(kind):
    steps = most_steps(HISTORY, 2.0, 1e-5, 1.1, 0.02, kind)
    guesses = (1, steps - 3, steps, steps + 1, 10 * steps) if kind == "rdp" else (steps - 1,)  # PRV takes long
    assert {most_steps(HISTORY, 2.0, 1e-5, 1.1, 0.02, kind, guess=guess) for guess in guesses} == {steps}
    assert (used := epsilon_of([*HISTORY, (1.1, 0.02, steps)], 1e-5, kind)) <= 2.0
    assert most_steps(HISTORY, used, 1e-5, 1.1, 0.02, kind, guess=steps) == steps  # just what is allowed
    assert epsilon_of([*HISTORY, (1.1, 0.02, steps + 1)], 1e-5, kind) > 2.0


@opacus
@pytest.mark.parametrize("error", [ValueError, RuntimeError, MemoryError])
def test_accounting_is_infinite_where_prv_finds_no_bound(error, monkeypatch):
    """With a noise multiplier of 0.01, for example, it would need hundreds of GiB."""
    monkeypatch.setattr(import_opacus_accountants().PRVAccountant, "get_epsilon", Mock(side_effect=error))
    assert epsilon_of([(0.01, 0.5, 1000)], 1e-5, "prv") == math.inf


@opacus
def test_accounting_at_its_ends(monkeypatch):
    assert most_steps([], 1e-3, 1e-5, 1.1, 0.02, "rdp") == 0
    monkeypatch.setattr(import_opacus_accountants().utils, "get_noise_multiplier", Mock(side_effect=ValueError))
    with pytest.raises(ConfigError, match="target_epsilon = 2: none is large enough for 1,000 updates"):
        least_noise(2.0, 1e-5, 0.5, 1000, "rdp")
