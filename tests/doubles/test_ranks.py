"""Processes that train on a GPU or its double, against one that does the same work there."""

import pytest
import torch

from ..addons.distributed.conftest import launch_on_double, launch_on_gpu
from ..addons.distributed.test_ranks import assert_close, assert_same_on_both, one_process


@pytest.mark.device
def test_ranks_on_a_gpu_equal_one_process(request, tmp_path):
    """Both on one GPU: so they tell each other by gloo."""
    device = request.config.getoption("--device", "cpu")
    if device == "cpu":
        pytest.skip("runs with --device")
    (launch_on_gpu if device == "cuda" else launch_on_double)(tmp_path, "on_gpu")
    found = [torch.load(tmp_path / f"on_gpu-{rank}.pt", weights_only=False) for rank in range(2)]
    assert_same_on_both(*found)
    expected = one_process(["tagger"])
    pairs = [*zip(found[0]["steps"], expected["steps"], strict=True), (found[0]["averages"], expected["averages"])]
    for one, other in pairs:
        if device == "double":
            assert_close(one, other)
            continue
        # CuPy adds rows of embeddings up in any order. AdamW makes much of the last digits of small gradients.
        together = [torch.cat([weights[name].flatten() for name in other]) for weights in (one, other)]
        assert (together[0] - together[1]).norm() <= 1e-3 * together[1].norm()


@pytest.mark.device
def test_one_rank_over_nccl(request, tmp_path):
    """NCCL takes one process for each GPU."""
    if request.config.getoption("--device", "cpu") != "cuda":
        pytest.skip("NCCL needs a GPU")
    launch_on_gpu(tmp_path, "on_nccl", ranks=1)
    found = torch.load(tmp_path / "on_nccl-0.pt", weights_only=False)
    assert len(found["steps"]) > 3 and found["averages"]
