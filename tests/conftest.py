"""Fixtures, and the folder of corpora and oracles beside the project, which not everybody has."""

from pathlib import Path

import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared"
CONFIGS = Path(__file__).resolve().parents[1] / "configs"

needs_corpora = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="the corpora in ../shared/data are absent")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(autouse=True)
def fixed_seed():
    from thinc.api import fix_random_seed

    fix_random_seed(0)
