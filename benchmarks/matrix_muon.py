"""Muon for layers of thinc whose weights are matrices with more than two dimensions: a lever of score.py."""

import torch
from spacy.util import registry

from thinc_torchopt import Algorithm


class MatrixMuon(torch.optim.Muon):
    """torch's Muon. Maxout weights, of shape (nO, nP, nI), are for it a matrix with nO * nP rows."""

    def __init__(self, params, lr=0.001, weight_decay=0.01):
        like = torch.optim.Muon([torch.zeros(1, 1)], lr, weight_decay, adjust_lr_fn="match_rms_adamw")
        torch.optim.Optimizer.__init__(self, params, like.defaults)  # Muon's own refuses what is not a matrix

    def _init_group(self, group, *lists):
        found = super()._init_group(group, *lists)
        for tensors in lists:
            tensors[:] = [tensor.view(-1, tensor.shape[-1]) for tensor in tensors]
        return found


@registry.torch_optimizers("matrix_muon.v1")
def matrix_muon(weight_decay: float = 0.01) -> Algorithm:
    return Algorithm("matrix_muon.v1", MatrixMuon, {"weight_decay": weight_decay})
