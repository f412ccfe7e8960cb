"""Fixtures, and the folder of corpora and oracles beside the project, which not everybody has."""

import ctypes
import gc
import os
import random
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from thinc_torchopt.core.compat import has_opacus, import_opacus_accountants

from .forks import save_time

pytest_plugins = ["tests.skips"]

SHARED = Path(__file__).resolve().parents[2] / "shared"
CONFIGS = Path(__file__).resolve().parents[1] / "configs"
ROOT = Path(__file__).resolve().parents[1]
MEMORY = "/dev/shm"

needs_corpora = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="the corpora in ../shared/data are absent")
HAS_MUON = hasattr(torch.optim, "Muon")  # since torch 2.9
needs_muon = pytest.mark.skipif(not HAS_MUON, reason="this torch has no Muon")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

save_time()

# To remove a folder from a disk is to wait, and to give the processor to other programs; checkpoints are many folders.
# So tests write to memory, where there is room for what a whole session keeps.
if os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK):
    disk = os.statvfs(MEMORY)
    if disk.f_bavail * disk.f_frsize > 4e9 and not disk.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# Examples of a property that says no number itself: the same ones each time before a change lands, and others each
# night. No deadline: another program may have the processor. For mutants, that one fails is enough.
for profile, examples in (("ci", 40), ("mutants", 40), ("nightly", 500)):
    settings.register_profile(
        profile,
        max_examples=examples,
        derandomize=profile != "nightly",
        deadline=None,
        phases=[phase for phase in Phase if profile != "mutants" or phase not in (Phase.shrink, Phase.explain)],
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_finish(session):
    """The tests themselves, and all that they import, are never garbage: it takes long to look through them again. So
    does what each makes, which is little.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch):
    """What tests write need not outlive a power cut, and waiting for the disk takes longer than to write."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(autouse=True)
def no_look_for_garbage(request, monkeypatch):
    """Before each trial, and after a teacher, the memory of pipelines is freed: here they are small, and to look
    through all that earlier tests left takes longer than a trial. In each epoch a run asks how many objects are frozen,
    and to count those of all tests takes longer than an epoch. `thawed`: of the test of that.
    """
    for name in ("addons.trials.trial", "loop.teacher", "loop.faster"):
        if (module := sys.modules.get(f"thinc_torchopt.{name}")) and "thawed" not in request.fixturenames:
            monkeypatch.setattr(module, "gc", SimpleNamespace(collect=lambda: None, get_freeze_count=lambda: 1))


@pytest.fixture(autouse=True)
def privacy_counted_once(request):
    """Opacus computes at each order what an update costs, which takes a while, anew for each number of updates."""
    if "privacy" in request.node.nodeid and has_opacus:
        import_opacus_accountants()
        rdp = sys.modules["opacus.accountants.analysis.rdp"]
        if not hasattr(rdp._compute_rdp, "cache_info"):
            rdp._compute_rdp = cache(rdp._compute_rdp)


@pytest.fixture(autouse=True)
def fixed_seed():
    random.seed(0)
    numpy.random.seed(0)
    # torch.manual_seed keeps a traceback of each call for each kind of GPU, which takes longer than many a test.
    if torch.cuda.is_available():
        from thinc.api import fix_random_seed

        fix_random_seed(0)  # CuPy's too
    else:
        torch.default_generator.manual_seed(0)


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount a small disk")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("can't mount a tmpfs here")
    yield disk
    gc.collect()  # tensors of files that were read are mapped from them
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def without_privileges():
    """In the test, permissions of files count for root too."""
    if not hasattr(os, "geteuid"):
        pytest.skip("Windows has other permissions")
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root may read everything here")
    libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    before, sets[0] = sets[0], sets[0] & ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    libc.capset(header, sets)
    yield
    sets[0] = before
    libc.capset(header, sets)


def resize(disk, size):
    """Make a small disk so many bytes large."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A small corpus on disk: see `toy_corpus`."""
    from .spacy_cli import toy_corpus

    return toy_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """What the commands in the head of a config made, in a few steps, each config once a session: by its name, the
    folder in which they ran, with `training/` in it, and the output of `spacy train`. Only to be read.
    """
    from .configs import run_head, skip_without

    @cache
    def train(name):
        skip_without(name)
        folder = tmp_path_factory.mktemp("trained")
        # The config that README.md begins with is trained in a process of its own, as its reader does, until it learns.
        is_first = name == "cnn.cfg"
        return folder, run_head(name, folder, steps=20 if is_first else 10, process=is_first)

    return train
