"""thinc's Adam and SGD as torch optimizers, for the drop-ins: thinc's arithmetic in one pass of torch's fused kernels.

thinc's Adam adds `eps` before the bias correction and decays after the step:

    w <- (w - lr sqrt(1 - b2^t) / (1 - b1^t) x m / (sqrt(v) + eps)) x (1 - lr L2)

torch's fused AdamW computes `w (1 - lr' wd') - lr' / (1 - b1^t) x m / (sqrt(v / (1 - b2^t)) + eps')`. The two are one
with

    lr' = lr (1 - lr L2)        wd' = L2 / (1 - lr L2)        eps' = eps / sqrt(1 - b2^t)

SGD folds its decay into the step in the same way.
SOURCE: thinc/optimizers.py and thinc/backends/numpy_ops.pyx (8.3); torch/optim/adamw.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from .. import kernels
from ..checks import OPTIMIZER
from ..errors import ConfigError
from ..types import FloatOrSchedule
from .algorithm import as_plain, may_move


class _ThincOptimizer(torch.optim.Optimizer):
    """Base of thinc's optimizers: `L2` is added to the gradient before clipping, or is a decay after the step."""

    @torch.no_grad()
    def before_clipping(self, group: dict[str, Any], tensors: Sequence[torch.Tensor]) -> None:
        """Add L2 to the gradients, unless it is weight decay. TorchOptimizer calls this before it measures the
        gradients.
        """
        if group["L2"] != 0 and not group["L2_is_weight_decay"]:
            kernels.add_(_grads(tensors), list(tensors), alpha=group["L2"])

    @staticmethod
    def fold_decay(group: dict[str, Any]) -> tuple[float, float]:
        """Learning rate and weight decay with which torch's decay before the step equals thinc's after it."""
        decay = group["L2"] if group["L2_is_weight_decay"] else 0.0
        keep = 1.0 - group["lr"] * decay
        if keep <= 0.0:
            raise ConfigError(
                "Can't use 'L2' in [training.optimizer] as weight decay: expected learn_rate x L2 below 1, found "
                f"{group['lr']} x {decay}, which would change the signs of the weights. Lower 'L2' or 'learn_rate'."
            )
        return group["lr"] * keep, decay / keep


class ThincAdam(_ThincOptimizer):
    """thinc's Adam as a torch optimizer.

    params (Iterable[Tensor]): Params of any shapes, devices and dtypes.
    lr (float): Learning rate.
    betas (tuple[float, float]): Decay of the first and second moment.
    eps (float): Added to the root of the second moment, before the bias correction.
    L2 (float): Weight decay, or L2 regularization.
    L2_is_weight_decay (bool): Which of the two.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        L2: float = 0.0,
        L2_is_weight_decay: bool = True,
    ):
        check_numbers(beta1=betas[0], beta2=betas[1], eps=eps, L2=L2)
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "L2": L2, "L2_is_weight_decay": L2_is_weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[tuple[int, torch.device, torch.dtype, bool], list[torch.Tensor]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    state = self.state[param]
                    if not state:
                        state.update(step=0, exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param))
                    state["step"] += 1
                    alike.setdefault(
                        (state["step"], param.device, param.dtype, kernels.ADAM.accepts(param)), []
                    ).append(param)
            for (step, *_, fused), params in alike.items():
                states = [self.state[param] for param in params]
                moments = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
                self.step_alike(group, params, _grads(params), moments, step, fused=fused)

    @classmethod
    def step_alike(
        cls,
        group: dict[str, Any],
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        moments: list[list[torch.Tensor]],
        step: int,
        *,
        fused: bool,
    ) -> None:
        """Make a step of params on one device and of one dtype.

        moments (list): `exp_avg` of each, and `exp_avg_sq`.
        step (int): The number of this step for all of them, counted from 1.
        """
        beta1, beta2 = group["betas"]
        lr, weight_decay = cls.fold_decay(group)
        exp_avgs, exp_avg_sqs = moments
        options: dict[str, Any] = {
            "lr": lr,
            "beta1": beta1,
            "beta2": beta2,
            "weight_decay": weight_decay,
            "eps": group["eps"] / math.sqrt(1.0 - beta2**step),
            "amsgrad": False,
            "maximize": False,
        }
        if fused:
            steps = [torch.full((), float(step), device=params[0].device)] * len(params)
            kernels.adam_(params, grads, moments, steps, decoupled=True, **options)
        else:
            # It counts this step itself, once for each param.
            steps = [torch.tensor(step - 1.0) for _ in params]
            adamw(params, grads, exp_avgs, exp_avg_sqs, [], steps, **options)


class ThincSGD(_ThincOptimizer):
    """thinc's SGD as a torch optimizer.

    params (Iterable[Tensor]): Params of any shapes, devices and dtypes.
    lr (float): Learning rate.
    L2 (float): Weight decay, or L2 regularization.
    L2_is_weight_decay (bool): Which of the two.
    """

    def __init__(self, params: Any, lr: float, L2: float = 0.0, L2_is_weight_decay: bool = True):
        check_numbers(L2=L2)
        super().__init__(params, {"lr": lr, "L2": L2, "L2_is_weight_decay": L2_is_weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[tuple[torch.device, torch.dtype, bool], list[torch.Tensor]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    alike.setdefault((param.device, param.dtype, kernels.SGD.accepts(param)), []).append(param)
            for (*_, fused), params in alike.items():
                self.step_alike(group, params, _grads(params), fused=fused)

    @classmethod
    def step_alike(
        cls, group: dict[str, Any], params: list[torch.Tensor], grads: list[torch.Tensor], *, fused: bool
    ) -> None:
        """Make a step of params on one device and of one dtype."""
        lr, weight_decay = cls.fold_decay(group)
        options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "maximize": False}
        if fused:
            kernels.sgd_(params, grads, **options)
        else:
            sgd(params, grads, [None] * len(params), momentum=0.0, dampening=0.0, nesterov=False, **options)


def check_numbers(**numbers: FloatOrSchedule) -> list[FloatOrSchedule]:
    """Check options that are numbers, and return them in torch's form. `OptionRanges` checks schedules at each step.

    RAISES (ConfigError): A number is out of its range.
    """
    for name, given in numbers.items():
        is_beta = name.startswith("beta")
        expected = f"a number of at least 0{' and below 1' if is_beta else ''}, or a schedule of such numbers"
        if isinstance(given, list) and not given:
            OPTIMIZER.refuse(name, expected, given)
        for value in given if isinstance(given, list) else () if may_move(given) else (given,):
            if isinstance(value, str):  # torch does not accept numbers in quotes
                OPTIMIZER.refuse(name, expected, given)
            OPTIMIZER.number(name, value, expected, below=1.0 if is_beta else math.inf)
    return list(map(as_plain, numbers.values()))


def _grads(params: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [param.grad for param in params if param.grad is not None]
