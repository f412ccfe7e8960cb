"""What a launcher says in the environment, and what it can't mean."""

import pytest

from thinc_torchopt.errors import ConfigError
from thinc_torchopt.launched import is_launched, master_in_environment, rank_in_environment

from .conftest import CONFIGS
from .spacy_cli import spacy_process

LAUNCHED = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "launched"),
    [
        ({}, False),
        (LAUNCHED, True),
        (LAUNCHED | {"WORLD_SIZE": "1"}, False),
        (LAUNCHED | {"WORLD_SIZE": "1", "RANK": "x"}, False),
        ({"RANK": "1", "WORLD_SIZE": "2"}, False),
        ({"RANK": "1", "WORLD_SIZE": "two"}, False),
    ],
    ids=["none", "four", "one", "one that is nobody", "half", "half and wrong"],
)
def test_launched_is_known_by_the_environment(environment, launched, monkeypatch):
    set_environment(monkeypatch, environment)
    assert is_launched() == launched and rank_in_environment() == (2 if launched else 0)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("WORLD_SIZE", "two", "expected WORLD_SIZE in the environment to be a whole number of at least 1, found 'two'"),
        ("WORLD_SIZE", "0", "WORLD_SIZE in the environment to be a whole number of at least 1, found '0'"),
        ("RANK", "x", "expected RANK in the environment to be a whole number below WORLD_SIZE, 4, found 'x'"),
        ("RANK", "4", "a whole number below WORLD_SIZE, 4, found '4'"),
        ("RANK", "-1", "a whole number below WORLD_SIZE, 4, found '-1'"),
        ("MASTER_PORT", "99999", "to be a whole number, a port of 1 to 65535, found '99999'"),
        ("MASTER_PORT", "http", "to be a whole number, a port of 1 to 65535, found 'http'"),
    ],
)
def test_launched_refuses_what_cannot_be(name, value, message, monkeypatch):
    set_environment(monkeypatch, LAUNCHED | {name: value})
    with pytest.raises(ConfigError, match=f"Can't train in several processes: .*{message}.*spacy torchopt train"):
        assert is_launched() and rank_in_environment() and master_in_environment()


def test_launched_leaves_other_commands_alone(monkeypatch):
    """They train nothing: what stands in the environment is nothing to them. It is to spacy train."""
    set_environment(monkeypatch, LAUNCHED | {"WORLD_SIZE": "two"})
    assert "spacy" in spacy_process("info").stdout.lower()
    trained = spacy_process("train", CONFIGS / "cnn.cfg", check=False)
    assert trained.returncode == 1 and "WORLD_SIZE" in trained.stderr and "Traceback" not in trained.stderr


def set_environment(monkeypatch, environment):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
