"""Optional packages: the one place that imports them."""

import logging
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from .errors import MissingPackageError

has_flwr = find_spec("flwr") is not None
has_matplotlib = find_spec("matplotlib") is not None
has_opacus = find_spec("opacus") is not None
has_optuna = find_spec("optuna") is not None
has_pytorch_optimizer = find_spec("pytorch_optimizer") is not None
has_tensorboard = find_spec("tensorboard") is not None
has_torchao = find_spec("torchao") is not None


def check_flwr() -> None:
    """Check that Flower is installed.

    RAISES (MissingPackageError): It is not.
    """
    _require(has_flwr, "flwr", "train federated")


def import_figure() -> type:
    """Import matplotlib's Figure.

    RAISES (MissingPackageError): matplotlib is not installed.
    """
    _require(has_matplotlib, "matplotlib", "draw a picture")
    from matplotlib.figure import Figure

    return Figure


def check_opacus() -> None:
    """Check that Opacus is installed.

    RAISES (MissingPackageError): It is not.
    """
    _require(has_opacus, "opacus", "count the epsilon of a private training")


def import_opacus_accountants() -> ModuleType:
    """Import Opacus' accountants.

    RAISES (MissingPackageError): It is not installed.
    """
    check_opacus()
    handlers = list(logging.root.handlers)
    import_module("opacus.accountants.utils")
    logging.root.handlers[:] = handlers  # it adds one, and each of our lines would come twice
    return import_module("opacus.accountants")


def import_optuna() -> ModuleType:
    """Import optuna.

    RAISES (MissingPackageError): It is not installed.
    """
    _require(has_optuna, "optuna", "tune")
    import optuna

    return optuna


def import_pytorch_optimizer() -> ModuleType:
    """Import pytorch-optimizer.

    RAISES (MissingPackageError): It is not installed.
    """
    _require(has_pytorch_optimizer, "pytorch-optimizer", "build 'pytorch-optimizer.create.v1'")
    import pytorch_optimizer

    return pytorch_optimizer


def import_tensorboard() -> tuple[Any, Any]:
    """Import TensorBoard.

    RETURNS (tuple): torch's SummaryWriter, and TensorBoard's Summary: several values of one step.
    RAISES (MissingPackageError): It is not installed.
    """
    _require(has_tensorboard, "tensorboard", "write logs for TensorBoard")
    from tensorboard.compat.proto.summary_pb2 import Summary
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter, Summary


def import_torchao_optim() -> ModuleType:
    """Import torchao's optimizers.

    RAISES (MissingPackageError): It is not installed.
    """
    _require(has_torchao, "torchao", "build an algorithm of torchao")
    return import_module("torchao.optim")


def _require(is_installed: bool, library: str, action: str) -> None:
    """Check that a library is installed. The error names the library and not our extra: `thinc-torchopt[plot]` is on no
    index, and `.[plot]` needs a clone.

    RAISES (MissingPackageError): It is not.
    """
    if is_installed:
        return
    try:
        listed = [line.partition(";")[0].strip() for line in requires("thinc-torchopt") or []]
    except PackageNotFoundError:  # imported from a clone that is not installed
        listed = []
    requirement = next((line for line in listed if line.startswith(library)), library)
    raise MissingPackageError(
        f"Can't {action}: the library {library} is not installed. Install it with: pip install '{requirement}'"
    )
