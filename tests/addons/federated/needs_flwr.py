"""Skips the module that imports this where flwr is not installed. `make test-federated` installs it, and skips none."""

import os

import pytest

from thinc_torchopt.core.compat import has_flwr

if not has_flwr and not os.environ.get("TEST_FEDERATED"):
    pytest.skip("flwr is not installed: make test-federated", allow_module_level=True)
