"""The modules. Each docstring has the paper, the formula, and our differences."""

from ..module import Module
from .clipping import AGC, Centralize, L2Clipping, L2GlobalClipping
from .gaussian_noise import GaussianNoise
from .lookahead import Lookahead
from .moments import EWMA, AdaGrad, Adam, Lion, Momentum, RMSProp, Yogi, YogiMomentum
from .scaffold import ScaffoldClient, ScaffoldServer
from .torch_optim import TorchOptim

MODULES: dict[str, type[Module]] = {
    cls.name: cls
    for cls in (
        AdaGrad,
        Adam,
        AGC,
        Centralize,
        EWMA,
        GaussianNoise,
        L2Clipping,
        L2GlobalClipping,
        Lion,
        Lookahead,
        Momentum,
        RMSProp,
        ScaffoldClient,
        ScaffoldServer,
        TorchOptim,
        Yogi,
        YogiMomentum,
    )
}

__all__ = [
    "AGC",
    "EWMA",
    "MODULES",
    "AdaGrad",
    "Adam",
    "Centralize",
    "GaussianNoise",
    "L2Clipping",
    "L2GlobalClipping",
    "Lion",
    "Lookahead",
    "Momentum",
    "RMSProp",
    "ScaffoldClient",
    "ScaffoldServer",
    "TorchOptim",
    "Yogi",
    "YogiMomentum",
]
