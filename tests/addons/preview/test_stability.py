"""Which parts may change: what the code says, and what docs/stability.md says."""

import re
from importlib import import_module
from pkgutil import iter_modules
from typing import get_args

import pytest
from spacy.util import load_config

from thinc_torchopt import addons
from thinc_torchopt.addons.preview.lines import Tier, tier_of, tiers_in

from ...conftest import CONFIGS, ROOT


def rooms(tier):
    """The folders below addons/ of a tier."""
    names = {name for _, name, _ in iter_modules(addons.__path__)}
    modules = {name: import_module(f"thinc_torchopt.addons.{name}") for name in names}
    return {name for name, module in modules.items() if tier_of(module.__name__) == tier}


def test_stability_is_as_the_docs_say():
    """A page about a part begins with the name of its folder."""
    text = (ROOT / "docs" / "stability.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \| .* \|$", text, re.MULTILINE))
    assert set(get_args(Tier)) < set(rows)
    for tier in ("provisional", "experimental"):
        linked = {re.match(r"[a-z]+", link)[0] for link in re.findall(r"\]\(([^)]+)\)", rows[tier])}
        sections = {"command": "budget", "memory": "fine_tuning", "suspects": "recorder"}  # of longer pages
        assert {sections.get(name, name) for name in linked} == rooms(tier)
    assert {"recipes", "report", "loggers", "trials"} <= rooms("stable")


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ("cnn.cfg", {}),
        ("controller.cfg", {"thinc-torchopt.TrainerController.v1": "provisional"}),
        ("taught.cfg", {"thinc-torchopt.TaughtCorpus.v1": "provisional"}),
        ("privacy.cfg", {"thinc-torchopt.Privacy.v1": "experimental", "thinc-torchopt.poisson.v1": "experimental"}),
    ],
)
def test_stability_of_a_config(config, found):
    tiers = tiers_in(load_config(CONFIGS / config))
    assert {name: tier for name, tier in tiers.items() if tier != "stable"} == found
    assert tiers["thinc-torchopt.TorchOptimizer.v1"] == "stable"


def test_stability_of_a_module_is_that_of_the_innermost_folder():
    import_module("thinc_torchopt.addons.modular.registered")
    assert tier_of("thinc_torchopt.addons.modular.registered") == "experimental"
    assert tier_of("thinc_torchopt.addons.recipes.recipes") == tier_of("thinc_torchopt.core.optimizer") == "stable"
    assert tier_of("another_package.addons") == "stable"
