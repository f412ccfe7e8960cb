"""What a launcher says in the environment, and what it can't mean."""

import pytest

from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.launched import (
    is_launched,
    is_one_machine,
    master_in_environment,
    processes_here,
    rank_in_environment,
)

from ..conftest import CONFIGS
from ..forks import python

LAUNCHED = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("environment", "launched"),
    [
        ({}, False),
        (LAUNCHED, True),
        (LAUNCHED | {"WORLD_SIZE": "1"}, False),
        (LAUNCHED | {"WORLD_SIZE": "1", "RANK": "x"}, False),
        ({"WORLD_SIZE": "1", "RANK": "0"}, False),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}, False),
        ({"RANK": "", "WORLD_SIZE": "", "MASTER_ADDR": "localhost"}, False),
    ],
    ids=["none", "four", "one", "one that is nobody", "one and half", "only an address", "empty"],
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
        ("MASTER_PORT", "65536", "to be a whole number, a port of 1 to 65535, found '65536'"),
        ("MASTER_PORT", "0", "to be a whole number, a port of 1 to 65535, found '0'"),
        ("MASTER_PORT", "http", "to be a whole number, a port of 1 to 65535, found 'http'"),
    ],
)
def test_launched_refuses_what_cannot_be(name, value, message, monkeypatch):
    set_environment(monkeypatch, LAUNCHED | {name: value})
    with pytest.raises(ConfigError, match=f"Can't train in several processes: .*{message}.*spacy torchopt train"):
        assert is_launched() and rank_in_environment() and master_in_environment()


@pytest.mark.parametrize(("rank", "port"), [("0", "1"), ("3", "65535")])
def test_launched_takes_the_least_and_the_largest_numbers(rank, port, monkeypatch):
    set_environment(monkeypatch, LAUNCHED | {"RANK": rank, "MASTER_PORT": port})
    assert rank_in_environment() == int(rank) and master_in_environment() == ("localhost", int(port))


@pytest.mark.parametrize(
    ("left", "unset"),
    [("RANK", "RANK"), ("WORLD_SIZE", "WORLD_SIZE"), ("RANK WORLD_SIZE MASTER_PORT", "RANK and WORLD_SIZE")],
)
@pytest.mark.parametrize("others", ["unset", "empty"])
def test_launched_says_what_is_left_over(left, unset, others, monkeypatch):
    environment = dict.fromkeys(LAUNCHED, "") if others == "empty" else {}
    set_environment(monkeypatch, environment | {name: LAUNCHED[name] for name in left.split()})
    found = ", ".join(left.split())
    with pytest.raises(ConfigError, match=f"found only {found}.* To train in one process, unset {unset}\\.$"):
        is_launched()


def test_launched_refuses_a_wrong_number_of_processes_here(monkeypatch):
    set_environment(monkeypatch, LAUNCHED)
    for local, is_one, here in (("", False, 1), ("1", False, 1), ("4", True, 4)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        assert (is_one_machine(), processes_here()) == (is_one, here)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "x")
    with pytest.raises(ConfigError, match="expected LOCAL_WORLD_SIZE in the environment to be a whole number"):
        is_one_machine()
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert processes_here() == 1


def test_launched_leaves_other_commands_alone(monkeypatch):
    """They train nothing: what stands in the environment is nothing to them. It is to spacy train."""
    set_environment(monkeypatch, LAUNCHED | {"WORLD_SIZE": "two"})
    assert "spacy" in python(["info"]).stdout.lower()
    trained = python(["train", CONFIGS / "cnn.cfg"], check=False)
    assert trained.returncode == 1 and "WORLD_SIZE" in trained.stderr and "Traceback" not in trained.stderr


def set_environment(monkeypatch, environment):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
