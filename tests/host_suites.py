"""spaCy's and thinc's own tests, with our drop-ins in the place of thinc's optimizers, or our ops in that of thinc's.

    python tests/host_suites.py training       spaCy's tests of its training
    python tests/host_suites.py all            also its pipeline's and parser's, and thinc's of models and optimizers
    python tests/host_suites.py all --without  the same tests with thinc's optimizers, to compare with
    python tests/host_suites.py ops            thinc's tests of ops and layers, and spaCy's of pipelines and the parser,
                                               with our products in the place of thinc's

Other arguments go to pytest. The oracle: whatever passes without us passes with us. The session fails if a test does,
if no step was made by torch, or if one was made by thinc, which means that the swap missed a place.
"""

from __future__ import annotations

import argparse
import os
import sys
import unittest.mock
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import pytest
import spacy.util  # noqa: F401  (holds thinc's Adam under a name of its own)
import thinc
import thinc.api
import thinc.optimizers
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from thinc_torchopt.core import drop_ins, ops

SUITES = {
    "training": ["spacy.tests.training"],
    "all": [
        "spacy.tests.training",
        "spacy.tests.pipeline",
        "spacy.tests.parser",
        "spacy.tests.test_models",
        "thinc.tests.model",
        "thinc.tests.layers",
        "thinc.tests.shims",
        "thinc.tests.test_optimizers",
        "thinc.tests.test_config",
    ],
    "ops": [
        "thinc.tests.backends",
        "thinc.tests.layers",
        "thinc.tests.model",
        "spacy.tests.pipeline",
        "spacy.tests.parser",
        "spacy.tests.training",
    ],
}

# The hosts' tests run under the hosts' rules: no configuration and no cache of ours, and a warning is no error.
OPTIONS = ["-c", os.devnull, "--rootdir", str(Path(thinc.__file__).parents[1])]
OPTIONS += ["-p", "no:cacheprovider", "-p", "no:xdist"]
WARNINGS = ["-W", "default", "-W", "ignore::pytest.PytestUnknownMarkWarning"]


class Seeds:
    """A pytest plugin that starts each test from one seed. Some, as the beam parser's, fail from one seed in many with
    any optimizer.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        thinc.api.fix_random_seed(0)


class DropIns:
    """A pytest plugin that puts the drop-ins in the place of thinc's optimizers, before any test is imported."""

    def __init__(self) -> None:
        self.torch_steps: Counter[str] = Counter()
        self.thinc_steps = 0

    def pytest_configure(self) -> None:
        self._count_steps()
        for name in ("Adam", "RAdam", "SGD"):
            ours = getattr(drop_ins, name)
            replace_everywhere(getattr(thinc.optimizers, name), ours)
            thinc.api.registry.optimizers.register(f"{name}.v1", func=ours)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # thinc's tests of its optimizers call the class itself, which is also our base class.
        for item in items:
            if item.module.__name__ == "thinc.tests.test_optimizers":  # type: ignore[attr-defined]
                item.module.Optimizer = optimizer_as_thincs  # type: ignore[attr-defined]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (
            session.testscollected
            and not session.config.option.collectonly
            and (self.thinc_steps or not self.torch_steps)
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        counts = ", ".join(f"{count} by {name}" for name, count in sorted(self.torch_steps.items()))
        terminalreporter.section("optimizer steps")
        terminalreporter.line(f"torch: {counts or 'none: nothing was tested'}")
        terminalreporter.line(f"thinc: {self.thinc_steps or 'none'}")

    def _count_steps(self) -> None:
        def count_torch(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            self.torch_steps[type(optimizer).__name__] += 1

        def count_thinc(optimizer: thinc.api.Optimizer, *args: Any, **kwargs: Any) -> Any:
            self.thinc_steps += 1
            return step(optimizer, *args, **kwargs)

        register_optimizer_step_post_hook(count_torch)
        step = thinc.api.Optimizer.__call__
        thinc.api.Optimizer.__call__ = count_thinc  # type: ignore[method-assign]


class OurOps:
    """A pytest plugin that puts our ops in the place of thinc's NumpyOps, before any test is imported."""

    def __init__(self) -> None:
        self.products = 0

    def pytest_configure(self) -> None:
        def multiply(x: Any, y: Any, out: Any) -> Any:
            self.products += 1
            return numpy.dot(x, y, out=out)

        class NumpyOps(ops.FastOps):
            def __init__(self, device_type: Any = "cpu", device_id: int = -1, *, use_blis: bool = True):
                super().__init__(thincs(device_type, device_id, use_blis=use_blis), multiply)

        thincs = thinc.api.NumpyOps
        # Pickles name it as thinc's, in whose place it is.
        NumpyOps.__module__, NumpyOps.__qualname__ = thincs.__module__, thincs.__qualname__
        replace_everywhere(thincs, NumpyOps)
        thinc.api.registry.ops.register("NumpyOps", func=NumpyOps)
        thinc.api.set_current_ops(NumpyOps())

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # It makes floats of arrays with one number, which NumPy 2.4 refuses: it fails with thinc's ops too.
        items[:] = [item for item in items if "test_compare_activations_to_torch" not in item.name]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.testscollected and not session.config.option.collectonly and not self.products:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("products")
        terminalreporter.line(f"ours: {self.products or 'none: nothing was tested'}")


def replace_everywhere(old: Any, new: Any) -> None:
    """Put another object under every name that a loaded module has for `old`."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                setattr(module, name, new)


def optimizer_as_thincs(learn_rate: Any, *, use_radam: bool = False, **options: Any) -> thinc.api.Optimizer:
    """The drop-in for a call of thinc's `Optimizer`. Same arguments."""
    return (drop_ins.RAdam if use_radam else drop_ins.Adam)(learn_rate, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--without", action="store_true", help="leave thinc's optimizers in place")
    args, rest = parser.parse_known_args()
    # spaCy's tests import the package `mock`, of which Python has its own.
    sys.modules.setdefault("mock", unittest.mock)
    ours = OurOps() if args.suite == "ops" else DropIns()
    # Not here: pytest would load our conftest.py.
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        return pytest.main(
            [*OPTIONS, *WARNINGS, *rest, "--pyargs", *SUITES[args.suite]],
            plugins=[Seeds()] if args.without else [Seeds(), ours],
        )


if __name__ == "__main__":
    sys.exit(main())
