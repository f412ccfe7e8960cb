"""What is installed, and the one place that imports optional packages."""

from importlib.util import find_spec
from types import ModuleType

has_pytorch_optimizer = find_spec("pytorch_optimizer") is not None


def import_pytorch_optimizer() -> ModuleType:
    """Import the library behind the extra `optimizers`.

    RAISES (ImportError): It is not installed.
    """
    if not has_pytorch_optimizer:
        raise ImportError(
            "Can't build 'pytorch-optimizer.create.v1': the library pytorch-optimizer is not installed. "
            "Install it with: pip install 'thinc-torchopt[optimizers]'"
        )
    import pytorch_optimizer

    return pytorch_optimizer
