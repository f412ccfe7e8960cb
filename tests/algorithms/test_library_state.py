"""State of other libraries as trees for files. Oracle: the library's own objects and optimizers."""

from collections import deque

import numpy
import pytest
import torch
from thinc.api import Linear, chain

from thinc_torchopt import Algorithm, TorchOptimizer
from thinc_torchopt.algorithms.library_state import collect_beside, from_tree, map_tensors, restore_beside, to_tree
from thinc_torchopt.algorithms.pytorch_optimizer import create
from thinc_torchopt.errors import ConfigError, StateError
from thinc_torchopt.state.files import read_folder, write_folder
from thinc_torchopt.training.checkpoint_settings import Checkpoint

from ..models import backprop, params_of, same, toy_pipeline

library = pytest.importorskip("pytorch_optimizer", reason="pytorch-optimizer is not installed")
NAME = "pytorch_optimizer"


def projector():
    from pytorch_optimizer.optimizer.utils.galore import GaLoreProjector

    made = GaLoreProjector(rank=2, update_proj_gap=3)
    made.project(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), 1)
    return made


def preconditioner_type():
    from pytorch_optimizer.optimizer.shampoo import PreConditionerType

    return PreConditionerType.ALL


def pipeline(algorithm, **settings):
    nlp = toy_pipeline(["tagger"], shared=False)
    model = nlp.get_pipe("tagger").model = chain(Linear(6, 5), Linear(3, 6)).initialize()
    optimizer = TorchOptimizer(algorithm, 0.01, **settings)
    optimizer.initialize(nlp)
    return nlp, model, optimizer


def steps(optimizer, model, n, *, start=0):
    for step in range(start, start + n):
        backprop(model, numpy.random.default_rng(step))
        model.finish_update(optimizer)


def test_library_state_goes_through_a_file(tmp_path):
    ones = torch.ones(2, 3)
    value = {
        "by beta": {0.9: ones, 0.99: ones * 2},
        "queue": deque([ones, ones * 3], maxlen=4),
        "shape": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "enum": preconditioner_type(),
        "projector": projector(),
        "plain": [None, True, 1, 0.5, "text", (ones.t(), {1, 2})],
    }
    write_folder(tmp_path / "folder", to_tree(value, NAME, "it"))
    found = from_tree(read_folder(tmp_path / "folder"), NAME)
    assert found["by beta"].keys() == {0.9, 0.99} and torch.equal(found["by beta"][0.99], ones * 2)
    assert isinstance(found["queue"], deque) and found["queue"].maxlen == 4 and torch.equal(found["queue"][1], ones * 3)
    assert type(found["shape"]) is torch.Size and found["shape"] == (2, 3)
    assert found["dtype"] is torch.bfloat16 and found["enum"] is value["enum"]
    assert type(found["projector"]) is type(value["projector"])
    assert torch.equal(found["projector"].ortho_matrix, value["projector"].ortho_matrix)
    assert found["projector"].ortho_matrix.stride() == value["projector"].ortho_matrix.stride()
    assert (
        found["plain"][:5] == value["plain"][:5]
        and found["plain"][5][0].stride() == (1, 3)
        and found["plain"][5][1] == {1, 2}
    )


def test_library_state_copies_tensors_and_their_objects():
    value = {"projector": projector(), "queue": deque([torch.ones(2)])}
    copied = map_tensors(torch.Tensor.clone, value)
    before = value["projector"].ortho_matrix.clone()
    copied["projector"].ortho_matrix.zero_()
    copied["projector"].last_svd_step = 99
    copied["queue"][0].zero_()
    assert torch.equal(value["projector"].ortho_matrix, before) and value["projector"].last_svd_step == 1
    assert value["queue"][0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("value", [lambda: 0, object(), {torch.ones(1): 2}, [torch.Generator()], projector])
def test_library_state_refuses_what_no_file_takes(value):
    with pytest.raises(StateError, match=r"Can't save it.*found \w+"):
        to_tree({"x": value}, NAME, "it")


@pytest.mark.parametrize(
    "tree",
    [
        {"__kind__": "object", "module": "subprocess", "class": "Popen", "attributes": {}},
        {
            "__kind__": "object",
            "module": "pytorch_optimizer.optimizer.utils.galore",
            "class": "torch.nn.Linear",
            "attributes": {},
        },
        {
            "__kind__": "object",
            "module": "pytorch_optimizer.optimizer.utils.galore",
            "class": "GaLoreProjector",
            "attributes": 3,
        },
        {
            "__kind__": "enum",
            "module": "pytorch_optimizer.optimizer.utils.galore",
            "class": "GaLoreProjector",
            "name": "project",
        },
        {"__kind__": "dtype", "name": "load"},
        {"__kind__": "code"},
        {"__kind__": []},
    ],
)
def test_library_state_that_is_damaged_makes_nothing(tree):
    with pytest.raises(StateError, match="Can't load the state of the optimizer"):
        from_tree({"x": tree}, NAME)


@pytest.mark.parametrize(
    "saved",
    [
        {"attributes": {"step": 1}},
        {"attributes": {"param_groups": []}},
        {"attributes": {"_state": {}}},
        {"parts": {"total_step": {}}},
    ],
)
def test_library_state_beside_params_writes_to_nothing_else(saved):
    optimizer = library.StableSPAM([torch.ones(2, 2, requires_grad=True)])
    with pytest.raises(
        StateError, match="Can't load the state of StableSPAM: expected what it keeps beside its params"
    ):
        restore_beside(optimizer, saved)


def test_library_state_beside_params_and_nothing_more():
    """Counters, and the state of parts; not settings, not what is derived."""
    params = [torch.ones(2, 2, requires_grad=True)]
    assert collect_beside(
        library.StableSPAM(params), {"maximize", "gamma1", "gamma2", "theta", "t_max", "update_proj_gap"}
    ) == {"attributes": {"total_step": 0, "warmup": None}}
    beside = collect_beside(library.SPAM(params), {})
    assert beside["state"] == {"total_step": 0, "current_step": 51} and beside["parts"].keys() == {"warmup"}
    assert collect_beside(torch.optim.Adam(params, fused=True), {}) == {}


@pytest.mark.parametrize("name", ["madgrad", "stablespam", "spam"])
def test_library_state_of_all_params_stays_when_params_come(name):
    """The library makes its counters when it is built, and ours builds for each param that comes."""
    nlp, model, optimizer = pipeline(create(name))
    steps(optimizer, model, 3)
    inner = optimizer.torch_optimizers["algorithm"]
    before = repr(collect_beside(inner, {}))
    nlp.get_pipe("tagger").model = larger = chain(model, Linear(3, 3)).initialize()
    optimizer.initialize(nlp)
    assert repr(collect_beside(inner, {})) == before
    steps(optimizer, larger, 1)
    assert repr(collect_beside(inner, {})) != before


@pytest.mark.parametrize("name", ["madgrad", "conda", "sara", "aggmo"])
def test_library_state_goes_back(name):
    """What a checkpoint holds is not changed by the steps after it, and going back to it gives the same steps once
    more.
    """
    options = {"threshold": 10.0} if name == "sara" else {}
    _nlp, model, optimizer = pipeline(create(name, options), rollback_after=3, checkpoint=Checkpoint(path="unused"))
    steps(optimizer, model, 2)
    saved = map_tensors(torch.Tensor.clone, optimizer.state_dict())
    weights, found = params_of(model), []
    for _ in range(2):
        steps(optimizer, model, 3, start=2)
        found.append(params_of(model))
        optimizer.roll_back(saved)
        optimizer.controller.scale = 1.0
        for tensor, value in zip(optimizer.params.values(), weights):
            tensor.copy_(value)
    assert same(*found) and not same(found[0], weights)


class Hoarder(torch.optim.SGD):
    """Keeps a function for each param."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["f"] = lambda: 0


def test_library_state_that_cannot_be_saved_is_refused_when_training_begins():
    algorithm = Algorithm("hoarder", Hoarder)
    TorchOptimizer(algorithm)  # without checkpoints it may train
    with pytest.raises(ConfigError, match=r"\[training\.optimizer\.checkpoint\] with 'hoarder'.*'f'.*found function"):
        TorchOptimizer(algorithm, checkpoint=Checkpoint(path="unused"))
