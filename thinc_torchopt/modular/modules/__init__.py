"""The modules, one algorithm a file. Each opens with its paper, its formula, and where it differs."""

from ..module import Module
from .adagrad import AdaGrad
from .adam import Adam
from .agc import AGC
from .centralize import Centralize
from .ewma import EWMA
from .gaussian_noise import GaussianNoise
from .l2_clipping import L2Clipping
from .l2_global_clipping import L2GlobalClipping
from .lion import Lion
from .lookahead import Lookahead
from .momentum import Momentum
from .rmsprop import RMSProp
from .scaffold import ScaffoldClient, ScaffoldServer
from .torch_optim import TorchOptim
from .yogi import Yogi
from .yogi_momentum import YogiMomentum

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
