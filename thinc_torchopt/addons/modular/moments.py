"""Modules with averages or sums of past gradients, and Lookahead, which averages weights."""

import math
from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar, List, Optional

import torch
from torch import Tensor

from ...core import kernels
from ...core.checks import Section
from ...core.types import FloatOrSchedule
from .module import Block, Module, Ranges, opmath


class Momentum(Module):
    """Momentum: Polyak 1964, https://doi.org/10.1016/0041-5553(64)90137-5; Nesterov's form as in Sutskever et al. 2013,
    https://proceedings.mlr.press/v28/sutskever13.html.

        v = beta v + g        out: v, or with nesterov: beta v + g

    The same as momentum in torch.optim.SGD.

    beta (float): Decay of the sum.
    nesterov (bool): Use Nesterov's form.
    round_reset (bool): Reset the sum in each federated round.
    """

    name = "momentum"
    ranges: ClassVar[Ranges] = {"beta": "beta", "nesterov": "flag"}
    tensors = ("momentum_buffer",)
    is_linear = True

    def __init__(
        self,
        beta: FloatOrSchedule = 0.9,
        nesterov: bool = False,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"beta": beta, "nesterov": nesterov}, {"round_reset": round_reset}, params=params, label=label)

    def run(self, block: Block) -> None:
        velocity, beta = block.state["momentum_buffer"], block.options["beta"]
        velocity.mul_(beta).add_(block.read())
        if block.options["nesterov"]:
            block.own().add_(velocity, alpha=beta)
        else:
            block.put(velocity)


class EWMA(Module):
    """An exponentially weighted moving average of gradients, without bias correction.

        s = beta s + (1 - beta) g, from s = 0        out: s

    Not torch's `dampening`, whose first step is the full gradient.

    beta (float): Decay of the average.
    round_reset (bool): Reset the average in each federated round.
    """

    name = "ewma"
    ranges: ClassVar[Ranges] = {"beta": "beta"}
    tensors = ("exp_avg",)
    is_linear = True

    def __init__(
        self,
        beta: FloatOrSchedule = 0.9,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"beta": beta}, {"round_reset": round_reset}, params=params, label=label)

    def run(self, block: Block) -> None:
        block.put(block.state["exp_avg"].lerp_(block.read(), 1.0 - block.options["beta"]))


class YogiMomentum(EWMA):
    """Yogi's moving average, for the gradient itself: Zaheer et al. 2018,
    https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization. The paper has it for squares;
    declearn offers it as momentum.

        s = s - sign(s - g) (1 - beta) g, from s = 0        out: s

    beta (float): Decay of the average.
    round_reset (bool): Reset the average in each federated round.
    """

    name = "yogi-momentum"
    is_linear = False

    def run(self, block: Block) -> None:
        block.put(yogi_step(block.state["exp_avg"], block.read(), block.options["beta"]))


class Lion(Module):
    """Lion: Chen et al. 2023, https://arxiv.org/abs/2302.06675.

        out: sign(b1 m + (1 - b1) g)        m = b2 m + (1 - b2) g, from m = 0

    beta_1 (float): Weight of the average in the update.
    beta_2 (float): Decay of the average.
    round_reset (bool): Reset the average in each federated round.
    """

    name = "lion"
    ranges: ClassVar[Ranges] = {"beta_1": "beta", "beta_2": "beta"}
    tensors = ("exp_avg",)

    def __init__(
        self,
        beta_1: FloatOrSchedule = 0.9,
        beta_2: FloatOrSchedule = 0.99,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        options = {"beta_1": beta_1, "beta_2": beta_2}
        super().__init__(options, {"round_reset": round_reset}, params=params, label=label)

    def run(self, block: Block) -> None:
        values, mean = block.read(), block.state["exp_avg"]
        block.put(torch.lerp(mean, values, 1.0 - block.options["beta_1"]).sign_())
        mean.lerp_(values, 1.0 - block.options["beta_2"])


class AdaGrad(Module):
    """AdaGrad: Duchi et al. 2011, https://jmlr.org/papers/v12/duchi11a.html.

        s = s + g^2, from s = 0        out: g / (sqrt(s) + eps)

    The same as torch.optim.Adagrad with lr_decay = 0; eps is declearn's.

    eps (float): Added to the root.
    round_reset (bool): Reset the sum in each federated round.
    """

    name = "adagrad"
    ranges: ClassVar[Ranges] = {"eps": "at_least_0"}
    tensors = ("sum",)

    def __init__(
        self,
        eps: FloatOrSchedule = 1e-7,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"eps": eps}, {"round_reset": round_reset}, params=params, label=label)

    def run(self, block: Block) -> None:
        values = block.read()
        square = block.state["sum"].addcmul_(values, values)
        divisor = torch.sqrt(square).add_(block.options["eps"])
        block.put(torch.div(values, divisor, out=divisor))


class RMSProp(Module):
    """RMSProp: Hinton 2012, https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf.

        s = beta s + (1 - beta) g^2, from s = 0        out: g / (sqrt(s) + eps)

    The same as torch.optim.RMSprop; beta and eps are declearn's (torch: alpha = 0.99, eps = 1e-8).

    beta (float): Decay of the average.
    eps (float): Added to the root.
    round_reset (bool): Reset the average in each federated round.
    """

    name = "rmsprop"
    ranges: ClassVar[Ranges] = {"beta": "beta", "eps": "at_least_0"}
    tensors = ("square_avg",)

    def __init__(
        self,
        beta: FloatOrSchedule = 0.9,
        eps: FloatOrSchedule = 1e-7,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"beta": beta, "eps": eps}, {"round_reset": round_reset}, params=params, label=label)

    def run(self, block: Block) -> None:
        values = block.read()
        square = average_of_squares(block.state["square_avg"], values, block.options["beta"])
        divisor = torch.sqrt(square).add_(block.options["eps"])
        block.put(torch.div(values, divisor, out=divisor))


class Adam(Module):
    """Adam: Kingma and Ba 2014, https://arxiv.org/abs/1412.6980; AMSGrad: Reddi et al. 2018,
    https://openreview.net/forum?id=ryQu7f-RZ.

        m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2        from m = v = 0
        out: (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    The same as torch.optim.Adam, except for declearn's defaults (beta_2 = 0.99, eps = 1e-7) and AMSGrad: the maximum is
    that of v *after* its bias correction, as in declearn; torch uses v before it. `round_reset` does not reset the
    maximum, as in declearn.

    beta_1, beta_2 (float): Decays of the two averages.
    amsgrad (bool): Divide by the largest second moment so far.
    eps (float): Added to the root.
    round_reset (bool): Reset the averages in each federated round.
    """

    name = "adam"
    ranges: ClassVar[Ranges] = {"beta_1": "beta", "beta_2": "beta", "amsgrad": "flag", "eps": "at_least_0"}
    tensors = ("exp_avg", "exp_avg_sq")
    counts_steps = True
    optional_tensors = ("max_exp_avg_sq",)

    def __init__(
        self,
        beta_1: FloatOrSchedule = 0.9,
        beta_2: FloatOrSchedule = 0.99,
        amsgrad: bool = False,
        eps: FloatOrSchedule = 1e-7,
        round_reset: bool = False,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        options = {"beta_1": beta_1, "beta_2": beta_2, "amsgrad": amsgrad, "eps": eps}
        super().__init__(options, {"round_reset": round_reset}, params=params, label=label)

    def prepare(self, state: MutableMapping[str, Any], weights: Tensor, options: Mapping[str, Any]) -> None:
        super().prepare(state, weights, options)
        if options["amsgrad"] and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(weights, dtype=opmath(weights.dtype))

    def run(self, block: Block) -> None:
        options, step = block.options, block.step
        mean, square = self.move(block)
        # The bias corrections are numbers, which need no tensors of their own.
        first, second = 1.0 - options["beta_1"] ** step, 1.0 - options["beta_2"] ** step
        if options["amsgrad"]:
            largest = block.state["max_exp_avg_sq"]
            square, second = torch.maximum(largest, square / second, out=largest), 1.0
        divisor = torch.sqrt(square).add_(options["eps"] * second**0.5).mul_(first / second**0.5)
        block.put(torch.div(mean, divisor, out=divisor))

    def run_last(self, block: Block, rate: float, decay: float) -> None:
        options, weights, step = block.options, block.weights, block.step
        mean, square, values = block.state["exp_avg"], block.state["exp_avg_sq"], block.read()
        fits = kernels.ADAM.accepts(weights) and mean.stride() == weights.stride()
        if type(self) is not Adam or options["amsgrad"] or not rate or not fits or not math.isfinite(decay / rate):
            super().run_last(block, rate, decay)
            return
        if values.stride() != weights.stride():
            values = torch.empty_like(weights).copy_(values)
        kernels.adam_(
            [weights],
            [values],
            [[mean], [square]],
            [torch.full((), float(step), device=weights.device)],
            decoupled=True,
            lr=rate,
            beta1=options["beta_1"],
            beta2=options["beta_2"],
            weight_decay=decay / rate,  # torch multiplies it by the rate
            eps=options["eps"],
            amsgrad=False,
            maximize=False,
        )

    def move(self, block: Block) -> tuple[Tensor, Tensor]:
        """Update the two averages."""
        values, options = block.read(), block.options
        return (
            block.state["exp_avg"].lerp_(values, 1.0 - options["beta_1"]),
            average_of_squares(block.state["exp_avg_sq"], values, options["beta_2"]),
        )


class Yogi(Adam):
    """Yogi: Zaheer et al. 2018, https://papers.nips.cc/paper/8186-adaptive-methods-for-nonconvex-optimization.

    Adam with another second moment:

        v = v - sign(v - g^2) (1 - b2) g^2, from v = 0

    The paper starts with v = g^2 of a first batch, and has no bias correction; here both are as in declearn. The
    defaults are declearn's (paper: b2 = 0.999, eps = 1e-3).

    beta_1, beta_2 (float): Decays of the two averages.
    amsgrad (bool): Divide by the largest second moment so far.
    eps (float): Added to the root.
    round_reset (bool): Reset the averages in each federated round.
    """

    name = "yogi"

    def move(self, block: Block) -> tuple[Tensor, Tensor]:
        values, options = block.read(), block.options
        return (
            block.state["exp_avg"].lerp_(values, 1.0 - options["beta_1"]),
            yogi_step(block.state["exp_avg_sq"], values * values, options["beta_2"]),
        )


class Lookahead(Module):
    """Lookahead: Zhang et al. 2019, https://arxiv.org/abs/1907.08610. It works on the weights after the
    whole update, wherever it stands among the modules: every k updates, the weights go back to slow
    weights, which move towards them.

        slow = slow + alpha (w - slow), w = slow        from slow = the first weights

    k (int): Updates between two moves of the slow weights.
    alpha (float): How far the slow weights move, from 0 to 1.
    """

    name = "lookahead"
    ranges: ClassVar[Ranges] = {"alpha": "part"}
    counts_steps = True
    is_linear = True
    changes_weights = True

    def __init__(
        self,
        k: int = 5,
        alpha: FloatOrSchedule = 0.5,
        *,
        params: Optional[List[str]] = None,
        label: Optional[str] = None,
    ):
        super().__init__({"alpha": alpha}, {"k": k}, params=params, label=label)
        Section(self.where, allows_texts=False).whole("k", k, at_least=1)

    def first_state(self, weights: Tensor) -> dict[str, Any]:
        return {"step": 0, "slow": weights.detach().to(opmath(weights.dtype), copy=True)}

    def after_update(self, block: Block) -> None:
        if block.step % self.settings["k"] == 0:
            slow = block.state["slow"]
            slow.lerp_(block.weights, block.options["alpha"])
            block.weights.copy_(slow)


# ---------------------------------------------------------------------- shared formulas


def average_of_squares(mean: Tensor, values: Tensor, beta: float) -> Tensor:
    """`beta mean + (1 - beta) values^2`, in place."""
    return mean.mul_(beta).addcmul_(values, values, value=1.0 - beta)


def yogi_step(mean: Tensor, values: Tensor, beta: float) -> Tensor:
    """Yogi's step of a mean towards values, in place: by a part of the values, not of the distance.

    SOURCE: Zaheer et al. 2018, Adaptive Methods for Nonconvex Optimization, NeurIPS.
    """
    return mean.addcmul_(torch.sub(mean, values).sign_(), values, value=beta - 1.0)
