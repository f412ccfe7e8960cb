"""Drop-ins for thinc's `Adam.v1`, `RAdam.v1` and `SGD.v1`: the same arguments and defaults, torch's speed. Beside them
`ops`, as of TorchOptimizer.

Adam and SGD compute the same as thinc's: see core/algorithms/thinc.py. RAdam is torch's: thinc's counts its steps one
ahead, and adds `L2` before clipping when it is no weight decay.

Better than thinc's: averages reach torch models, an update with a gradient that is not finite is skipped, a gradient of
the whole pipeline is applied at once.
SOURCE: thinc/optimizers.py (8.3).
"""

from __future__ import annotations

from typing import Any

from .algorithms import Algorithm, ThincAdam, ThincSGD, check_numbers
from .algorithms import RAdam as TorchRAdam
from .checks import OPTIMIZER, known_settings
from .optimizer import TorchOptimizer
from .types import FloatOrSchedule, OpsChoice


@known_settings
def Adam(
    learn_rate: FloatOrSchedule = 0.001,
    *,
    L2: FloatOrSchedule = 0.0,
    beta1: FloatOrSchedule = 0.9,
    beta2: FloatOrSchedule = 0.999,
    eps: FloatOrSchedule = 1e-08,
    grad_clip: FloatOrSchedule = 1.0,
    L2_is_weight_decay: bool = True,
    use_averages: bool = True,
    ops: OpsChoice = "thinc",
) -> TorchOptimizer:
    """thinc's Adam.v1, computed by torch. Arguments and defaults are thinc's; `grad_clip` clips tensor by tensor.
    `ops` is that of TorchOptimizer.
    """
    beta1, beta2, eps, L2 = check_numbers(beta1=beta1, beta2=beta2, eps=eps, L2=L2)
    is_decay = OPTIMIZER.flag("L2_is_weight_decay", L2_is_weight_decay)
    options = {"betas": (beta1, beta2), "eps": eps, "L2": L2, "L2_is_weight_decay": is_decay}
    algorithm = Algorithm("thinc-torchopt.Adam.v1", ThincAdam, options)
    return _as_thinc(algorithm, learn_rate, grad_clip=grad_clip, use_averages=use_averages, ops=ops)


@known_settings
def RAdam(
    learn_rate: FloatOrSchedule = 0.001,
    *,
    beta1: FloatOrSchedule = 0.9,
    beta2: FloatOrSchedule = 0.999,
    eps: FloatOrSchedule = 1e-08,
    L2: FloatOrSchedule = 0.0,
    L2_is_weight_decay: bool = True,
    grad_clip: FloatOrSchedule = 1.0,
    use_averages: bool = True,
    ops: OpsChoice = "thinc",
) -> TorchOptimizer:
    """torch's RAdam under the arguments and defaults of thinc's RAdam.v1. `grad_clip` clips tensor by tensor.
    `ops` is that of TorchOptimizer.
    """
    beta1, beta2, eps, L2 = check_numbers(beta1=beta1, beta2=beta2, eps=eps, L2=L2)
    is_decay = OPTIMIZER.flag("L2_is_weight_decay", L2_is_weight_decay)
    algorithm = TorchRAdam(betas=(beta1, beta2), eps=eps, weight_decay=L2, decoupled_weight_decay=is_decay)
    return _as_thinc(algorithm, learn_rate, grad_clip=grad_clip, use_averages=use_averages, ops=ops)


@known_settings
def SGD(
    learn_rate: FloatOrSchedule,
    *,
    L2: FloatOrSchedule = 0.0,
    grad_clip: FloatOrSchedule = 1.0,
    L2_is_weight_decay: bool = True,
    use_averages: bool = True,
    ops: OpsChoice = "thinc",
) -> TorchOptimizer:
    """thinc's SGD.v1, computed by torch. Arguments and defaults are thinc's; `grad_clip` clips tensor by tensor.
    `ops` is that of TorchOptimizer.
    """
    (L2,) = check_numbers(L2=L2)
    is_decay = OPTIMIZER.flag("L2_is_weight_decay", L2_is_weight_decay)
    algorithm = Algorithm("thinc-torchopt.SGD.v1", ThincSGD, {"L2": L2, "L2_is_weight_decay": is_decay})
    return _as_thinc(algorithm, learn_rate, grad_clip=grad_clip, use_averages=use_averages, ops=ops)


def _as_thinc(algorithm: Algorithm, learn_rate: FloatOrSchedule, **settings: Any) -> TorchOptimizer:
    """With thinc's clipping, and its rate for params that are added in mid-training."""
    return TorchOptimizer(algorithm, learn_rate, clip_by="param", new_params_warmup=0, **settings)
