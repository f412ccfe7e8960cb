"""Trees of values and tensors."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from thinc_torchopt.core.state import in_main_memory


@dataclass
class Part:
    value: Any


@pytest.mark.parametrize("copy", [None, False, True])
def test_trees_in_main_memory_are_copies_if_wanted(copy):
    tensors = [torch.ones(2, requires_grad=True) for _ in range(3)]
    tree = {"a": [tensors[0], 1], "b": Part(tensors[1]), "c": {"d": tensors[2], "e": {1, 2}}, "f": Part}
    found = in_main_memory(tree) if copy is None else in_main_memory(tree, copy=copy)
    assert found["a"][1] == 1 and found["c"]["e"] == {1, 2} and found["f"] is Part and type(found["b"]) is Part
    assert (found["c"]["e"] is tree["c"]["e"]) == (not copy)
    for one, other in zip(tensors, (found["a"][0], found["b"].value, found["c"]["d"])):
        assert torch.equal(one, other) and not other.requires_grad
        assert (one.data_ptr() == other.data_ptr()) == (not copy)
    assert tree["b"].value is tensors[1]
