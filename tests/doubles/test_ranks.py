"""Two processes that train on the double of a GPU, against one that does the same work there."""

import pytest
import torch

from ..distributed.conftest import launch
from ..distributed.test_ranks import assert_close, assert_same_on_both, one_process


@pytest.mark.device
def test_ranks_on_a_gpu_equal_one_process(request, tmp_path):
    if request.config.getoption("--device", "cpu") != "double":
        pytest.skip("runs with --device double")
    launch(tmp_path, "on_double")
    found = [torch.load(tmp_path / f"on_double-{rank}.pt", weights_only=False) for rank in range(2)]
    assert_same_on_both(*found)
    expected = one_process(["tagger"])
    for one, other in zip(found[0]["steps"], expected["steps"], strict=True):
        assert_close(one, other)
    assert_close(found[0]["averages"], expected["averages"])
