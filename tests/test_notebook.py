"""The notebook in examples/, run from the first cell to the last."""

import json
import os
from pathlib import Path

import pytest

from thinc_torchopt.core.compat import has_matplotlib

from .conftest import ROOT

NOTEBOOK = ROOT / "examples" / "first_training.ipynb"


def test_notebook_is_committed_without_outputs():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.slow  # three processes import everything; what the cells call has tests of its own
@pytest.mark.skipif(not has_matplotlib, reason="matplotlib is not installed")
@pytest.mark.filterwarnings("ignore")  # of the kernel's client
def test_notebook_runs(tmp_path, monkeypatch):
    client = pytest.importorskip("nbclient")
    import nbformat

    monkeypatch.setenv("FIRST_TRAINING_STEPS", "4")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    found = nbformat.read(NOTEBOOK, 4)
    client.NotebookClient(found, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    shown = {cell.source.partition("(")[0]: cell.outputs for cell in found.cells if cell.cell_type == "code"}
    for name in ("explain", "params", "report"):
        assert "text/html" in shown[name][-1].data
    assert "Nothing that can be seen before the training." in shown["explain"][-1].data["text/html"]
    assert Path(tmp_path, "first-training", "training", "model-best").is_dir()
    drawn = [output for outputs in shown.values() for output in outputs if "image/png" in output.get("data", {})]
    assert len(drawn) == 1
    if folder := os.environ.get("KEEP_NOTEBOOK"):
        nbformat.write(found, Path(folder, "done.ipynb"))
