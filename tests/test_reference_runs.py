"""`python -m tests.reference_runs`: what it compares."""

import pytest
import torch
from safetensors.torch import save_file

from .reference_runs import digests


@pytest.mark.parametrize("file", ["model-last/ner/model", "state/step-3/state.safetensors"])
def test_reference_runs_see_a_single_bit(tmp_path, file):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    save_file({"W": torch.ones(3), "b": torch.zeros(2, dtype=torch.int64)}, path)
    before = digests(tmp_path)
    content = bytearray(path.read_bytes())
    for place in (len(content) - 1, len(content) - 12, len(content) - 17):
        changed = content.copy()
        changed[place] ^= 1
        path.write_bytes(changed)
        assert list(before) == [file] and digests(tmp_path) != before
    path.write_bytes(content)
    assert digests(tmp_path) == before
