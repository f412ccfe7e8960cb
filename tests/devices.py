"""Tensors that say that they are on a GPU, on machines that have none."""

import torch


class OnGpu(torch.Tensor):
    """As a tensor on a GPU is to Python: NumPy can't have it, but a copy of it in the main memory. torch computes with
    it as with any other on the CPU. (Those of torch's `FakeTensorMode` have no values, wherever they are.)
    """

    device = torch.device("cuda", 0)
    is_cuda = True
    is_cpu = False

    def numpy(self, *, force=False):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def cpu(self):
        return self.detach().as_subclass(torch.Tensor).clone()

    def to(self, device, *args, **kwargs):
        assert torch.device(device).type == "cpu", device
        return self.cpu()


def on_gpu(tensor):
    return tensor.detach().clone().as_subclass(OnGpu)


def in_tree(tree):
    """All tensors in dicts and lists."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ()
    return [found for value in values for found in in_tree(value)]
