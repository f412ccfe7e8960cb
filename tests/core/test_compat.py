"""The message of a missing library says how to install it."""

from configparser import ConfigParser
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec

import pytest
from packaging.requirements import Requirement

from thinc_torchopt.core import compat

from ..conftest import ROOT

LIBRARIES = {
    "flwr": ("federated", "check_flwr"),
    "matplotlib": ("plot", "import_figure"),
    "opacus": ("privacy", "import_opacus_accountants"),
    "optuna": ("tune", "import_optuna"),
    "pytorch_optimizer": ("optimizers", "import_pytorch_optimizer"),
    "tensorboard": ("tensorboard", "import_tensorboard"),
    "torchao": ("low-bit", "import_torchao_optim"),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_compat_names_the_versions_of_setup_cfg(library, monkeypatch):
    extra, function = LIBRARIES[library]
    assert getattr(compat, f"has_{library}") == (find_spec(library) is not None)
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    monkeypatch.setattr(compat, f"has_{library}", False)
    with pytest.raises(ImportError, match="Install it with: pip install '") as found:
        getattr(compat, function)()
    assert Requirement(str(found.value).split("'")[-2]) == Requirement(setup["options.extras_require"][extra].strip())


def test_compat_in_a_clone_that_is_not_installed(monkeypatch):
    def requires(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(compat, "requires", requires)
    monkeypatch.setattr(compat, "has_matplotlib", False)
    with pytest.raises(ImportError, match="pip install 'matplotlib'"):
        compat.import_figure()
