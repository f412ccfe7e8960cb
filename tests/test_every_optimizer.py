"""Every optimizer there is: ten steps are the same, to the last bit, as five, a save, a load in another process, and
five more.
"""

import re
import warnings
from pathlib import Path

import numpy
import pytest
import spacy
import torch
from thinc.api import PyTorchWrapper

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.modular.registered import (
    AGC,
    EWMA,
    L2SP,
    AdaGrad,
    Adam,
    Centralize,
    FedProx,
    GaussianNoise,
    L2Clipping,
    L2GlobalClipping,
    Lasso,
    Lion,
    Lookahead,
    Momentum,
    Ridge,
    RMSProp,
    ScaffoldClient,
    ScaffoldServer,
    TorchOptim,
    Yogi,
    YogiMomentum,
)
from thinc_torchopt.addons.modular.registered import create as create_modular
from thinc_torchopt.core import drop_ins
from thinc_torchopt.core.algorithms.torch_classes import create
from thinc_torchopt.core.compat import has_pytorch_optimizer
from thinc_torchopt.core.errors import ConfigError, GrowthWarning
from thinc_torchopt.core.schema import read, write
from thinc_torchopt.core.state.files import read_folder, write_folder
from thinc_torchopt.loop.random_state import RandomState, collect_random, restore_random

from .conftest import CONFIGS, HAS_MUON
from .forks import python
from .models import same, toy_pipeline

LAYOUTS = ("grown",), ("float32", "masters", "bfloat16", "transposed", "frozen")
# What they can't do without, variants that keep more than the plain ones, and what takes less time.
OPTIONS = {
    "torch.Adagrad.v1": [{"lr_decay": 0.1}],
    "torch.Adam.v1": [{"amsgrad": True}, {"foreach": True}],
    "torch.RMSprop.v1": [{"momentum": 0.9, "centered": True}],
    "torch.SGD.v1": [{"momentum": 0.9}],
    "dadaptsgd": [{"d0": 0.01}],
    "lion": [{"cautious": True, "use_gc": True}],
    "ranger21": [{"num_iterations": 20}],
    "sgdw": [{"momentum": 0.9}],
    "pid": [{"momentum": 0.9}],
    "spam": [{"density": 0.5, "update_proj_gap": 4, "warmup_epoch": 3, "grad_accu_steps": 2}],
    "spectralsphere": [{"solver_max_iterations": 10}],
    "stablespam": [{"t_max": 8, "update_proj_gap": 3}],
}
# Not without these.
NOT_PLAIN = ("ranger21", "spectralsphere")
# Between them, all modules and regularizers.
MODULARS = {
    "adam": lambda: {
        "weight_decay": 0.1,
        "regularizers": {"a": FedProx(alpha=0.1), "b": L2SP(alpha=0.1, params=["tagger/*"])},
        "modules": {"a1": L2GlobalClipping(), "b1": GaussianNoise(std=0.1, safe_mode=False), "c": Adam(amsgrad=True)},
    },
    "momentum": lambda: {
        "decay": "declearn",
        "regularizers": {"a": Lasso(), "b": Ridge()},
        "modules": {
            "a1": ScaffoldClient(),
            "b1": Momentum(nesterov=True),
            "c": L2GlobalClipping(max_norm=0.5),
            "d": Yogi(),
            "e": Lookahead(k=2),
        },
    },
    "others": lambda: {
        "modules": {
            "a": AGC(),
            "b": EWMA(),
            "c": Centralize(),
            "d": AdaGrad(),
            "e": L2Clipping(),
            "f": RMSProp(),
            "g": YogiMomentum(),
            "h": Lion(),
            "i": ScaffoldServer(),
        }
    },
    "torch-optim": lambda: {
        "modules": {"a": TorchOptim(optim_cls="torch.optim.RMSprop", kwargs={"centered": True, "momentum": 0.9})}
    },
}
THINCS = {"Adam": {"L2": 0.1}, "RAdam": {}, "SGD": {"L2": 0.1}}


def library_names():
    if not has_pytorch_optimizer:
        return []
    import pytorch_optimizer

    return sorted(pytorch_optimizer.get_supported_optimizers())


def refused(*, when_not_contiguous=False):
    """Names in the table of docs/optimizers.md that says what can't be used: at all, or with some params."""
    text = (CONFIGS.parent / "docs" / "optimizers.md").read_text(encoding="utf8")
    rows = text.partition("These can't be used.")[2].partition("| --- | --- |\n")[2].partition("\n\n")[0]
    return {
        name
        for row in rows.splitlines()
        if ("not contiguous" in row) == when_not_contiguous
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }


def cases(layout):
    """The optimizers, each with a name."""
    settings = {"master_weights": True} if layout == "masters" else {}
    left_out = refused() | (refused(when_not_contiguous=True) if layout == "transposed" else set())
    registered = spacy.registry.torch_optimizers.get_all()
    not_here = ("torch.LBFGS.v1", "torch.SparseAdam.v1", *(() if HAS_MUON else ("torch.Muon.v1",)))
    for name, factory in registered.items():
        if name.startswith("torch.") and name not in not_here:
            for options in [{}, *OPTIONS.get(name, [])]:
                yield f"{name} {options}", TorchOptimizer(factory(**options), 0.01, **settings)
    for name, options in THINCS.items() if layout != "masters" else ():
        yield f"thinc-torchopt.{name}.v1", getattr(drop_ins, name)(0.01, **options)
    for name, made in MODULARS.items():
        yield f"thinc-torchopt.Modular.v1 {name}", TorchOptimizer(create_modular(**made()), 0.01, **settings)
    for name in library_names():
        if name not in left_out:
            for options in [*([] if name in NOT_PLAIN else [{}]), *OPTIONS.get(name, [])]:
                yield f"{name} {options}", TorchOptimizer(create(name, options), 0.01, **settings)


class Weights(torch.nn.Module):
    """A matrix, a square one, a vector and a cube."""

    def __init__(self, layout, rows=6):
        super().__init__()
        generator = torch.Generator().manual_seed(rows)
        dtype = torch.bfloat16 if layout in ("bfloat16", "masters") else torch.float32
        for name, shape in {"matrix": (rows, 4), "square": (4, 4), "vector": (rows,), "cube": (3, 2, 4)}.items():
            value = torch.randn(shape, generator=generator).to(dtype)
            if layout == "transposed":
                value = value.permute(*reversed(range(value.ndim))).contiguous().permute(*reversed(range(value.ndim)))
            self.register_parameter(name, torch.nn.Parameter(value))


class Run:
    """One optimizer, and the params that it trains by random gradients."""

    def __init__(self, nlp, optimizer, layout, *, rows=6):
        # torch's own function keeps a traceback of each call for each kind of GPU.
        numpy.random.seed(0)
        torch.default_generator.manual_seed(0)
        self.nlp, self.layout, self.optimizer = nlp, layout, optimizer
        self.model = nlp.get_pipe("tagger").model = PyTorchWrapper(Weights(layout, rows)).initialize()
        self.optimizer.initialize(nlp)

    @property
    def weights(self):
        return list(self.model.shims[0]._model.parameters())

    def steps(self, first, n):
        for step in range(first, first + n):
            generator = torch.Generator().manual_seed(step)
            for i, param in enumerate(self.weights):
                param.grad = torch.empty_like(param).normal_(generator=generator)
                if self.layout == "frozen":  # the first two, from before the save until after the load
                    param.requires_grad_(i > 1 or not 3 <= step < 7)
                    param.grad = param.grad if param.requires_grad else None
            self.model.finish_update(self.optimizer)
            self.optimizer.step_schedules()
            if self.layout == "grown" and step == 2:
                self.grow()

    def grow(self):
        old, new = self.model.shims[0]._model, Weights("float32", 8)
        with torch.no_grad():
            for name, param in old.named_parameters():
                new.get_parameter(name)[: len(param)] = param
        for name in ("matrix", "vector"):
            setattr(old, name, new.get_parameter(name))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GrowthWarning)  # where state can't grow, its param starts anew
            self.optimizer.initialize(self.nlp)


def tagger():
    return toy_pipeline(["tagger"], shared=False)


def bits(params):
    """Copies by which two NaNs are equal."""
    return [
        param.detach().clone().view(torch.int16 if param.dtype is torch.bfloat16 else torch.int32) for param in params
    ]


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.PrecisionWarning")
@pytest.mark.parametrize("layouts", [LAYOUTS[0], pytest.param(LAYOUTS[1], marks=pytest.mark.slow)], ids=str)
def test_every_optimizer_goes_on_in_another_process(layouts, tmp_path):
    """One process for several layouts: to import torch's compiler takes it longer than a layout."""
    nlp, expected = tagger(), {}
    for folder, layout, name, optimizer in all_cases(layouts, tmp_path):
        run = Run(nlp, optimizer, layout)
        run.steps(0, 5)
        run.optimizer.to_disk(folder / "optimizer")
        write_folder(
            folder / "model",
            {"weights": [param.detach() for param in run.weights], "random": write(collect_random())},
        )
        before = bits(run.weights)
        run.steps(5, 5)
        expected[layout, name] = bits(run.weights)
        # In float32, because some steps are too small for less.
        if layout in ("float32", "grown") and name != "dadaptsgd {}":
            assert not same(expected[layout, name], before), name
    python(f"from tests.test_every_optimizer import go_on; go_on({layouts!r}, {str(tmp_path)!r})")
    found = torch.load(tmp_path / "found.pt")
    assert found.keys() == expected.keys()
    for layout in layouts:
        assert sum(one == layout for one, _ in found) > (100 if has_pytorch_optimizer else 15)
    assert [case for case in expected if not same(found[case], expected[case])] == []


def all_cases(layouts, folder):
    """Those of some layouts, each with its folder."""
    for layout in layouts:
        for i, (name, optimizer) in enumerate(cases(layout)):
            yield folder / f"{layout}-{i}", layout, name, optimizer


def go_on(layouts, folder):
    """The other process."""
    nlp, found = tagger(), {}
    for part, layout, name, optimizer in all_cases(layouts, Path(folder)):
        run, model = Run(nlp, optimizer, layout, rows=8 if layout == "grown" else 6), read_folder(part / "model")
        with torch.no_grad():
            for param, value in zip(run.weights, model["weights"]):
                param.copy_(value)
        run.optimizer.from_disk(part / "optimizer")
        restore_random(read(RandomState, model["random"], "the random state"))
        run.steps(5, 5)
        found[layout, name] = bits(run.weights)
    torch.save(found, Path(folder, "found.pt"))


@pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
def test_every_optimizer_that_cannot_be_used_is_in_the_docs():
    cannot, not_strided = set(), set()
    for name in library_names():
        try:
            algorithm = create(
                name, {"num_iterations": 20} if name == "ranger21" else {"num_data": 100} if name == "bsam" else {}
            )
        except ConfigError:
            cannot.add(name)
        else:
            if algorithm.accepts("W", torch.ones(2, 3)) and not algorithm.accepts("W", torch.ones(2, 3).t()):
                not_strided.add(name)
    assert cannot | {"demo"} == refused()  # that one says so only if another library is missing
    assert not_strided == refused(when_not_contiguous=True)


@pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
def test_every_optimizer_that_takes_no_strides_says_so_when_training_begins():
    with pytest.raises(ConfigError, match=r"'tagger/matrix' .*sgdp.* shape \(6, 4\) and strides \(1, 6\)"):
        Run(tagger(), TorchOptimizer(create("sgdp"), 0.01), "transposed")
