"""Skips the module that imports this where flwr is not installed."""

import pytest

from thinc_torchopt.core.compat import has_flwr

if not has_flwr:
    pytest.skip("flwr is not installed: make test-federated", allow_module_level=True)
