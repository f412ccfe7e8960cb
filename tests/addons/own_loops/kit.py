"""What tests of the learn rate controller are made of."""

import warnings

import torch

from thinc_torchopt.addons.own_loops.controller import LearnRateController
from thinc_torchopt.core.errors import LearnRateWarning


def controlled(optimizer, policy, *, mode="restore", **options):
    """A controller of an optimizer, which it calls "m"."""
    controller = LearnRateController(on_outside_write=mode)
    controller.register_optimizer("m", optimizer, policy, **options)
    return controller


def make_params(n=1, shape=(3, 2)):
    return [torch.nn.Parameter(torch.randn(shape)) for _ in range(n)]


def sgd(*rates, **options):
    """An SGD with a param group of one param for each rate."""
    return torch.optim.SGD([{"params": make_params(), "lr": rate} for rate in rates], **options)


def fill_grads(optimizer):
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad = torch.ones_like(param)


def rates_in(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def quiet(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LearnRateWarning)
        return call()


def broken(policy, *, mode="restore", times=3):
    """A controller into whose group somebody wrote before each of three steps."""
    optimizer = sgd(0.5)
    controller = controlled(optimizer, policy, mode=mode)
    for _ in range(times):
        optimizer.param_groups[0]["lr"] += 0.1
        quiet(controller.step)
    return controller, optimizer


def checksum_of(optimizer, **options):
    controller = controlled(optimizer, 0.1, watch_steps=False, **options)
    return controller.checksums["m"]


def three_groups(mode="restore"):
    optimizer = sgd(0.1, 0.2, 0.3, momentum=0.9)
    controller = controlled(optimizer, {i: (i + 1) / 10 for i in range(3)}, mode=mode)
    controller.step()
    return controller, optimizer
