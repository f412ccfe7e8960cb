"""The epsilons of docs/modular.md, computed again by Opacus."""

import re

import pytest

from ...conftest import CONFIGS

PAGE = CONFIGS.parent / "docs" / "modular.md"


@pytest.mark.filterwarnings("ignore")
def test_privacy_epsilons_are_what_opacus_says():
    accountants = pytest.importorskip("opacus.accountants", reason="opacus is not installed")
    text = " ".join(PAGE.read_text(encoding="utf8").split())
    [found] = re.findall(r"z = (\d+) gives an epsilon of ([\d.]+), and z = ([\d.]+) ([\d.]+)\.", text)
    for multiplier, epsilon in zip(found[::2], found[1::2]):
        accountant = accountants.PRVAccountant()
        accountant.history = [(float(multiplier), 0.01, 1000)]
        assert f"{accountant.get_epsilon(delta=1e-5):.2f}" == epsilon, multiplier
