"""The one writer of learning rates: nothing else in the package writes the `lr` of a torch param group."""

import torch


def write_learn_rate(optimizer: torch.optim.Optimizer, learn_rate: float) -> None:
    """Set the learning rate of all param groups for the step that comes.

    optimizer (torch.optim.Optimizer): Any torch optimizer.
    learn_rate (float): The rate, as a plain number.
    """
    for group in optimizer.param_groups:
        group["lr"] = learn_rate
