"""The table of docs/modular.md, computed again by Opacus."""

import re

import pytest

from ...conftest import CONFIGS

PAGE = CONFIGS.parent / "docs" / "modular.md"


@pytest.mark.filterwarnings("ignore")
def test_privacy_table_is_what_opacus_says():
    accountants = pytest.importorskip("opacus.accountants", reason="opacus is not installed")
    text = PAGE.read_text(encoding="utf8").partition("| noise multiplier |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, flags=re.MULTILINE)
    assert len(rows) == 6
    for multiplier, *expected in rows:
        for name, epsilon in zip(("RDPAccountant", "PRVAccountant"), expected):
            accountant = getattr(accountants, name)()
            accountant.history = [(float(multiplier), 0.01, 1000)]
            assert f"{accountant.get_epsilon(delta=1e-5):.2f}" == epsilon, (multiplier, name)
