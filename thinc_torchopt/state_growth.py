"""Where `preserve_optimizer_state` was until 0.1; now `from thinc_torchopt import preserve_optimizer_state`."""

from .state import StateMapping, preserve_optimizer_state

__all__ = ["StateMapping", "preserve_optimizer_state"]
