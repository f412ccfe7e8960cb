"""The block [training.optimizer.distributed], for Python. It lives in addons/distributed/."""

from .addons.distributed import Distributed

__all__ = ["Distributed"]
