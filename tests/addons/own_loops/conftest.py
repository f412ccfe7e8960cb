import math

import pytest

from thinc_torchopt.addons.own_loops import watchdog


@pytest.fixture(autouse=True)
def no_hurry(request, monkeypatch):
    """On a busy machine anything may take too long for a budget, which is logged: see test_runtime_guards.py."""
    if not request.module.__name__.endswith("test_runtime_guards"):
        monkeypatch.setattr(watchdog, "BUDGETS", dict.fromkeys(watchdog.BUDGETS, math.inf))
