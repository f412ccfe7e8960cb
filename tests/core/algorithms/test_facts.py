"""Oracle: classes of torch's, of the library, and of ours, and what their code does with its state."""

import pytest
import torch
from torch import nn

from thinc_torchopt import Algorithm, TorchOptimizer, preserve_optimizer_state
from thinc_torchopt.core.algorithms.facts import _PYTORCH_OPTIMIZER, _TORCH, ROLES, check_states, roles_of, usual_rates
from thinc_torchopt.core.algorithms.torch_classes import create
from thinc_torchopt.core.compat import has_pytorch_optimizer
from thinc_torchopt.core.errors import ConfigError, StateError

SUMS = [name for name, row in _PYTORCH_OPTIMIZER.items() if "sum" in row.state_roles.values()]


class Slow(torch.optim.Optimizer):
    """Params go back to the mean of where they are and where they were."""

    state_roles = {"velocity": "sum", "slow": "copy", "size": "magnitude", "looks": "count"}  # noqa: RUF012

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state.update(
                        velocity=torch.zeros_like(param), slow=param.clone(), size=torch.zeros_like(param), looks=0
                    )
                state["velocity"].add_(param.grad)
                state["size"].add_(param.grad.abs())
                state["looks"] += 1
                param.sub_(state["velocity"], alpha=group["lr"])
                param.copy_(state["slow"].lerp_(param, 0.5))


class Slower(Slow):
    state_roles = {"velocity": "moment"}  # noqa: RUF012


class Model(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.W = nn.Parameter(torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows)))


@pytest.mark.parametrize("cls, share", [(Slow, 0.1), (Slower, 1.0)])
def test_facts_state_roles_of_a_class_are_those_of_its_state(cls, share):
    model, larger = Model(4), Model(6)
    optimizer = cls(model.parameters())
    model.W.grad = torch.randn(4, 3)
    optimizer.step()
    made = preserve_optimizer_state(optimizer, larger, model)
    was, found = optimizer.state[model.W], made.state[larger.W]
    assert all(torch.equal(found[key][:4], was[key]) for key in ("velocity", "slow", "size"))
    assert torch.equal(found["slow"][4:], larger.W[4:]) and found["looks"] == 1
    # A mean of float32.
    torch.testing.assert_close(found["velocity"][4:], share * was["velocity"].mean(0).expand(2, 3))
    torch.testing.assert_close(found["size"][4:], was["size"].mean(0).expand(2, 3))


def test_facts_state_roles_of_a_class_are_checked_in_its_state():
    model = Model(4)
    state = {"size": torch.full((4, 3), -1.0), "looks": 1}
    with pytest.raises(StateError, match="values of at least zero in size"):
        check_states(Slow, [("W", state, model.W)])
    with pytest.raises(StateError, match=r"slow has shape \(3,\)"):
        check_states(Slow, [("W", {"slow": torch.ones(3)}, model.W)])
    check_states(torch.optim.SGD, [("W", state, model.W)])  # who says nothing of it


def test_facts_state_roles_are_those_of_bases_and_libraries():
    assert roles_of(torch.optim.SGD)["momentum_buffer"] == "sum"
    assert roles_of(type("Mine", (torch.optim.RMSprop,), {}))["momentum_buffer"] == "sum"
    assert roles_of(Slower) == {**ROLES, **Slow.state_roles, "velocity": "moment"}
    # The same name in another package is another class.
    assert roles_of(type("SGD", (torch.optim.Optimizer,), {"__module__": "mine.sgd"})) == ROLES


@pytest.mark.parametrize("roles", [{"slow": "copie"}, ["slow"]])
def test_facts_state_roles_that_there_are_not_are_refused_early(roles):
    cls = type("Wrong", (Slow,), {"state_roles": roles})
    with pytest.raises(ConfigError, match=r"state_roles of Wrong: expected .*'copy'.*found .*slow"):
        TorchOptimizer(Algorithm("mine", cls))


def test_facts_are_of_classes_of_torch():
    known = {name.lower() for name in dir(torch.optim)}
    assert {name for name, row in _TORCH.items() if not row.options} <= known


def test_facts_usual_rates_are_a_range():
    """Of at most 1; of algorithms that find their rate themselves, it is a factor."""
    for row in (*_TORCH.values(), *_PYTORCH_OPTIMIZER.values()):
        rates = row.usual_rates
        assert row.finds_rate == (rates is not None and rates.is_factor)
        assert rates is None or 0.0 < rates.lowest < rates.highest <= 1.0
    assert 0.0 < usual_rates("torch.Adam.v1", pretrained=True).lowest < usual_rates("torch.Adam.v1").lowest


@pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
def test_facts_are_of_classes_of_the_library():
    import pytorch_optimizer

    assert set(_PYTORCH_OPTIMIZER) <= set(pytorch_optimizer.get_supported_optimizers())


@pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
@pytest.mark.parametrize("name", SUMS)
def test_facts_state_roles_of_the_library_say_what_is_a_sum(name):
    """With the same gradient all the time, a sum becomes several times what is added at each step; an average never."""
    param = nn.Parameter(torch.eye(2))
    algorithm = create(name, {"momentum": 0.9} if name in ("pid", "sgdp", "sgdw") else {})
    optimizer = algorithm.build([param], lr=1e-6, **algorithm.options)
    [key] = [key for key, role in _PYTORCH_OPTIMIZER[name].state_roles.items() if role == "sum"]
    sizes = []
    for _ in range(100):
        param.grad = torch.ones(2, 2)
        optimizer.step()
        if key in optimizer.state[param]:
            sizes.append(optimizer.state[param][key].abs().mean())
    assert sizes[-1] > 1.5 * sizes[0]
    assert roles_of(type(optimizer))[key] == "sum"
