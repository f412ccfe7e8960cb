"""declearn's own tests of its optimizer, with our modules, regularizers and optimizer under its names.

declearn and its tests are fetched from the index; declearn_adapter.py puts ours in their place. All pass that test how
the optimizer behaves.
"""

import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
VERSION = "2.9.1"
COUNTS_CALLS = "its modules or models are mocks, of which it counts calls"
SCHEDULES = "it gives a scheduler; ours takes the number of each step"
IMPORTS = "it is about importing any path after a question to the user; ours takes torch.optim only"
# Tests that don't pass, with the reason.
OTHERS = {
    "TestOptimizer::test_init_with_lrate_scheduler_instance": SCHEDULES,
    "TestOptimizer::test_init_with_decay_scheduler_instance": SCHEDULES,
    "TestOptimizer::test_init_with_scheduler_specs": SCHEDULES,
    "TestOptimizer::test_compute_updates_from_gradients": COUNTS_CALLS,
    "TestOptimizer::test_collect_aux_var": COUNTS_CALLS,
    "TestOptimizer::test_process_aux_var": COUNTS_CALLS,
    "TestOptimizer::test_start_round": COUNTS_CALLS,
    "TestOptimizer::test_run_train_step": COUNTS_CALLS,
    "TestOptimizer::test_apply_gradients": COUNTS_CALLS,
    "TestOptimizer::test_get_state": COUNTS_CALLS,
    "TestOptimizer::test_set_state": COUNTS_CALLS,
    "TestOptimizer::test_set_state_invalid_dict": COUNTS_CALLS,
    "TestOptimizer::test_set_state_invalid_empty": COUNTS_CALLS,
    "TestOptimizer::test_set_state_invalid_mislabeled": COUNTS_CALLS,
    "TestOptimizer::test_set_state_invalid_second": COUNTS_CALLS,
    "TestOptimizer::test_set_state_flawed_module": COUNTS_CALLS,
    "TestScaffoldServer::test_run": "its vector is a mock, and must come back as the same object",
    "TestTorchOptiModuleValidateImports::test_validate_accept": IMPORTS,
    "TestTorchOptiModuleValidateImports::test_validate_deny": IMPORTS,
    "TestTorchOptiModuleValidateImports::test_validate_wrong_class": IMPORTS,
}


@pytest.fixture(scope="module")
def declearn(tmp_path_factory):
    """A Python with declearn and all that is installed here, and the folder of declearn's source."""
    folder = tmp_path_factory.mktemp("declearn")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    commands = [
        [*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", str(folder), f"declearn=={VERSION}"],
        [*pip, "install", f"declearn=={VERSION}"],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        if done.returncode:
            pytest.skip(f"declearn {VERSION} can't be fetched: {done.stderr.strip().splitlines()[-1]}")
    with tarfile.open(folder / f"declearn-{VERSION}.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    [site] = (folder / "venv").glob("**/site-packages")
    (site / "ours.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return python, folder / f"declearn-{VERSION}"


def run_tests(declearn, folder, *arguments):
    """Run pytest in the environment with declearn, without our settings."""
    return subprocess.run(
        [
            *(str(declearn[0]), "-m", "pytest", "-q", "-rf", "-c", os.devnull, "--rootdir", ".", "--tb=short"),
            *("-p", "no:cacheprovider", *arguments),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1800,
    )


def test_declearns_tests_pass(declearn):
    tests = ("test/optimizer", "--ignore", "test/optimizer/test_schedulers.py")  # those are left to declearn
    done = run_tests(declearn, declearn[1], "-p", "tests.addons.modular.declearn_adapter", *tests)
    failed = {name.partition("[")[0] for name in re.findall(r"^FAILED \S+?\.py::(\S+)", done.stdout, re.MULTILINE)}
    assert failed == set(OTHERS), done.stdout[-5000:] + done.stderr[-2000:]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= 320  # with vectors of NumPy and torch


def test_declearns_results_are_ours(declearn):
    done = run_tests(declearn, ROOT, "--noconftest", "tests/addons/modular/compare_with_declearn.py")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
