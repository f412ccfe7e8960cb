"""Without the extra `federated` all else works, and what needs it says so."""

import pytest

from ...forks import python

HIDDEN = """
import sys
from importlib.machinery import PathFinder

class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "flwr" else super().find_spec(name, path, target)

sys.meta_path[:] = [Hidden if finder is PathFinder else finder for finder in sys.meta_path]
"""


@pytest.mark.parametrize("module", ["client", "server"])
def test_without_flwr_the_apps_name_the_extra(module):
    code = f"""{HIDDEN}
import thinc_torchopt.addons.federated, thinc_torchopt.addons.federated.pipeline
import thinc_torchopt.addons.federated.{module}

"""
    run = python(code, check=False)
    assert run.returncode == 1 and run.stderr.strip().endswith(
        "MissingPackageError: Can't train federated: the library flwr is not installed. Install it with: pip install "
        "'flwr<1.42,>=1.41'"
    )
