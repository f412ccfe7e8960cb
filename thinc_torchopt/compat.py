"""Optional packages: the one place that imports them."""

from importlib.util import find_spec
from types import ModuleType
from typing import Any

from .errors import MissingPackageError

has_flwr = find_spec("flwr") is not None
has_matplotlib = find_spec("matplotlib") is not None
has_optuna = find_spec("optuna") is not None
has_pytorch_optimizer = find_spec("pytorch_optimizer") is not None
has_tensorboard = find_spec("tensorboard") is not None


def check_flwr() -> None:
    """Check that the library behind the extra `federated` is there.

    RAISES (MissingPackageError): It is not installed.
    """
    if not has_flwr:
        raise MissingPackageError(
            "Can't train federated: the library flwr is not installed. Install it with: pip install "
            "'thinc-torchopt[federated]'"
        )


def import_figure() -> type:
    """Import the class behind the extra `plot`.

    RAISES (MissingPackageError): It is not installed.
    """
    if not has_matplotlib:
        raise MissingPackageError(
            "Can't draw a picture: the library matplotlib is not installed. Install it with: pip install "
            "'thinc-torchopt[plot]'"
        )
    from matplotlib.figure import Figure

    return Figure


def import_optuna() -> ModuleType:
    """Import the library behind the extra `tune`.

    RAISES (MissingPackageError): It is not installed.
    """
    if not has_optuna:
        raise MissingPackageError(
            "Can't tune: the library optuna is not installed. Install it with: pip install 'thinc-torchopt[tune]'"
        )
    import optuna

    return optuna


def import_pytorch_optimizer() -> ModuleType:
    """Import the library behind the extra `optimizers`.

    RAISES (MissingPackageError): It is not installed.
    """
    if not has_pytorch_optimizer:
        raise MissingPackageError(
            "Can't build 'pytorch-optimizer.create.v1': the library pytorch-optimizer is not installed. "
            "Install it with: pip install 'thinc-torchopt[optimizers]'"
        )
    import pytorch_optimizer

    return pytorch_optimizer


def import_tensorboard() -> tuple[Any, Any]:
    """Import the library behind the extra `tensorboard`.

    RETURNS (tuple): torch's SummaryWriter, and TensorBoard's Summary: several values of one step.
    RAISES (MissingPackageError): It is not installed.
    """
    if not has_tensorboard:
        raise MissingPackageError(
            "Can't build 'thinc-torchopt.TensorBoardLogger.v1': the library tensorboard is not installed. "
            "Install it with: pip install 'thinc-torchopt[tensorboard]'"
        )
    from tensorboard.compat.proto.summary_pb2 import Summary
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter, Summary
