"""Where `EMA` and `SWA` were until 0.1; now `from thinc_torchopt.averages import EMA, SWA`."""

from .averages import EMA, SWA, AverageSettings

__all__ = ["EMA", "SWA", "AverageSettings"]
