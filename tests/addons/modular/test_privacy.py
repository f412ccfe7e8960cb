"""The epsilons of docs/modular.md, computed again by Opacus."""

import re

import pytest

from ...conftest import CONFIGS

PAGE = CONFIGS.parent / "docs" / "modular.md"


@pytest.mark.filterwarnings("ignore")
def test_privacy_epsilons_are_what_opacus_says():
    accountants = pytest.importorskip("opacus.accountants", reason="opacus is not installed")
    text = " ".join(PAGE.read_text(encoding="utf8").split())
    said = re.search(r"z = (1) gives an epsilon of ([\d.]+\d), and z = (0\.5) ([\d.]+\d)\.", text)
    for multiplier, epsilon in (said.group(1, 2), said.group(3, 4)):
        accountant = accountants.PRVAccountant()
        accountant.history = [(float(multiplier), 0.01, 1000)]
        assert f"{accountant.get_epsilon(delta=1e-5):.2f}" == epsilon, multiplier
