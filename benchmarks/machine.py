"""Where benchmarks ran, and one file for the figures of several."""

import json
import platform
from pathlib import Path
from typing import Any

import spacy
import thinc
import torch


def describe(device: str) -> dict[str, str]:
    """The machine, and the versions of what is measured. device (str): "cpu" or "cuda"."""
    found = {
        "machine": platform.node(),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "threads": str(torch.get_num_threads()),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "thinc": thinc.__version__,
        "spaCy": spacy.__version__,
    }
    if device == "cuda":
        import cupy

        found |= {"CUDA": str(torch.version.cuda), "CuPy": cupy.__version__}
    return found


def write(path: str, part: str, device: str, figures: dict[str, Any]) -> None:
    """Put the figures of one benchmark into a JSON file, beside those of others of the same machine."""
    file = Path(path)
    found = json.loads(file.read_text()) if file.exists() else {}
    where = describe(device)
    if found.get("machine") != where:
        found = {"machine": where}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**found, part: figures}, indent=2) + "\n")
