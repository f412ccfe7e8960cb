"""Runs all tests of what CUDA changes on the GPU of this machine: `python -m tests.gpu`. Other arguments go to pytest.

It needs no network. Whatever is missing is named at once.
"""

import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKS = ("pytest.mark.device", "pytest.mark.gpu")
NEEDED = {
    "torch": "torch",
    "cupy": "cupy-cuda12x or cupy-cuda13x, as torch.version.cuda is",
    "spacy": "spacy",
    "pytest": "pytest",
    "hypothesis": "hypothesis",
}


def what_is_missing() -> str:
    """Why the tests can't run here, in words. Empty: they can."""
    if missing := [project for module, project in NEEDED.items() if find_spec(module) is None]:
        return f"expected {', '.join(missing)} to be installed in {sys.executable}. Install them with pip."
    import cupy
    import torch

    if torch.version.cuda is None:
        return f"expected a build of torch with CUDA, found torch {torch.__version__} in {sys.executable}."
    if not torch.cuda.is_available():
        return f"expected a GPU, found none: torch {torch.__version__} with CUDA {torch.version.cuda} sees no device."
    try:
        found = float(cupy.arange(4).sum())
    except Exception as error:
        return f"expected CuPy to add four numbers on the GPU, found {type(error).__name__}: {error}"
    return "" if found == 6 else f"expected CuPy to add 0 to 3, found {found}."


def main() -> int:
    if reason := what_is_missing():
        print(f"Can't run the tests on a GPU: {reason}", file=sys.stderr)
        return 1
    import cupy
    import pytest
    import torch

    print(
        f"{torch.cuda.get_device_name()}, {torch.cuda.device_count()} GPUs; Python {platform.python_version()}, torch "
        f"{torch.__version__}, CuPy {cupy.__version__}, CUDA {torch.version.cuda}"
    )
    os.chdir(ROOT)
    files = sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if any(mark in path.read_text("utf8") for mark in MARKS) and path.name != "test_marked.py"
    )
    options = ["-p", "tests.doubles.plugin", "--device", "cuda", "-m", "gpu or device", "--durations", "10"]
    return int(pytest.main([*options, *files, *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
