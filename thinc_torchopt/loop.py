"""Where `latest_info` was until 0.1; now `from thinc_torchopt.training import latest_info`."""

from .training import latest_info

__all__ = ["latest_info"]
