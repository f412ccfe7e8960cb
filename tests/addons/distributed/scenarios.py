"""What a scenario is: a function that every rank runs, and whose result it writes to a folder. See worker.py."""

import os

import torch

from tests.addons.distributed import pipelines
from tests.runs import SETTINGS
from thinc_torchopt import train_while_improving

RANK = int(os.environ["RANK"])
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def train(nlp, optimizer, *, evaluate=lambda: (0.0, {}), batches=None, **settings):
    """spaCy's loop, without dropout. RETURNS: weights after each step; what was logged; and the
    number of cells of params whose state this rank had at the last step.
    """
    steps, infos, cells = [], [], 0
    batches = iter(batches or pipelines.batches(nlp))
    for _, info, _ in train_while_improving(nlp, optimizer, batches, evaluate, **SETTINGS | settings):
        steps.append(pipelines.weights(nlp))
        infos.append(
            {key: info[key] for key in ("step", "epoch", "losses", "learn_rates", "grad_norm", "words", "score")}
        )
        infos[-1]["losses"] = dict(info["losses"])
        infos[-1]["counts"] = dict(info["since_evaluation"])
        states = [found for one in optimizer.torch_optimizers.values() for found in one.state.items()]
        cells = sum(param.numel() for param, state in states if isinstance(param, torch.Tensor) and state)
    return {"steps": steps, "infos": infos, "cells": cells, "averages": averages(nlp, optimizer)}


def averages(nlp, optimizer):
    with nlp.use_params(optimizer.averages):
        return pipelines.weights(nlp)
