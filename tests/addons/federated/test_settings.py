"""[federated] in a config."""

import pytest
import spacy
from confection import Config

from thinc_torchopt.addons.federated.settings import Federated, federated_settings
from thinc_torchopt.core.errors import ConfigError

from ...conftest import CONFIGS


def test_settings_are_read_from_a_config():
    found = federated_settings(Config().from_disk(CONFIGS / "federated.cfg"))
    assert (found.rounds, found.local_steps, found.local_epochs, found.min_clients) == (10, 20, 0, 2)
    assert spacy.registry.misc.get("thinc-torchopt.Federated.v1") is Federated


def test_settings_name_the_servers_optimizer():
    config = Config().from_str(
        """
[federated]
@misc = "thinc-torchopt.Federated.v1"
local_epochs = 1
learn_rate = 0.5

[federated.algorithm]
@torch_optimizers = "torch.SGD.v1"
momentum = 0.9
"""
    )
    found = federated_settings(config)
    assert found.algorithm.label == "torch.SGD.v1" and found.learn_rate == 0.5
    assert (found.rounds, found.local_steps, found.clients, found.min_clients, found.attempts) == (10, 0, 2, 2, 3)
    assert (found.wait_seconds, found.timeout_seconds) == (120, 90)
    found = Federated(local_steps=1, timeout_seconds=0.5)
    assert (found.timeout_seconds, found.learn_rate) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "expected one of the two to be above 0, found 0 and 0"),
        ({"local_steps": 1, "local_epochs": 1}, "found 1 and 1"),
        ({"local_steps": 1, "clients": 2, "min_clients": 3}, "at most as many as 'clients', which are 2"),
        ({"local_steps": 1.5}, "'local_steps'"),
        ({"local_epochs": -1}, "'local_epochs'"),
        ({"local_steps": 1, "attempts": 0}, "'attempts'"),
        ({"local_steps": 1, "wait_seconds": -1}, "'wait_seconds'"),
        ({"local_steps": 1, "timeout_seconds": 0}, "'timeout_seconds'"),
        ({"local_steps": 1, "weigh_by": "words"}, "'weigh_by'"),
        ({"local_steps": 1, "resume": "no"}, "'resume'"),
        ({"local_steps": 1, "learn_rate": -1}, "'learn_rate'"),
        ({"local_steps": 1, "learn_rate": [1, -1]}, "'learn_rate'"),
        ({"local_steps": 1, "learn_rate": []}, "'learn_rate'.*a rate for each round"),
        ({"local_steps": 1, "algorithm": 3}, "'algorithm'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Federated(**settings)


@pytest.mark.parametrize("section", [None, {}, {"@misc": "thinc-torchopt.EMA.v1"}])
def test_settings_must_be_there(section):
    with pytest.raises(ConfigError, match=r"\[federated\]"):
        federated_settings({} if section is None else {"federated": section})
