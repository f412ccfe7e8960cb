"""Optimizers of thinc under the names of torch."""

import pytest

from .kit import check, rows


@pytest.mark.parametrize("row", rows("translation"))
def test_translation_writes(row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check(row)
