"""Blocks of [training.optimizer.param_groups] with an algorithm of their own: against plain torch optimizers, each of
its own params.
"""

import copy
import json
from pathlib import Path

import numpy
import pytest
import torch
from confection import Config
from thinc.api import PyTorchWrapper

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.modular import moments
from thinc_torchopt.core.algorithms.algorithm import Algorithm
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW, Muon
from thinc_torchopt.core.compat import has_pytorch_optimizer
from thinc_torchopt.core.errors import ConfigError, GrowthWarning
from thinc_torchopt.core.registry import registry

from ...conftest import CONFIGS, needs_muon
from ...models import backprop, optimizer_for, params_of, ready_pipeline, same, slots, toy_pipeline
from ...spacy_cli import spacy_cli

CONFIG = Path(__file__).with_name("cascade.cfg").read_text()


def resolved(text=CONFIG):
    return registry.resolve(Config().from_str(text))["optimizer"]


class Twin:
    """The same params in plain torch optimizers, which get the same gradients."""

    def __init__(self, nlp, optimizer):
        self.nlp = nlp
        self.params = {name: torch.nn.Parameter(value.clone()) for name, value in optimizer.params.items()}
        found = {"muon": [], "rmsprop": [], "embeddings": [], "heads": [], "sgd": []}
        for name, param in self.params.items():
            if "output_layer" in name or name.startswith("ner/upper/"):
                found["heads"].append(param)
            elif name.endswith("/E"):
                found["embeddings"].append(param)
            elif name.startswith("ner"):
                found["muon" if param.ndim == 2 and not name.endswith("/b") else "rmsprop"].append(param)
            else:
                found["sgd"].append(param)
        assert all(found.values())
        self.adamw = torch.optim.AdamW(
            [
                {"params": found["embeddings"], "weight_decay": 0.05},
                {"params": found["heads"], "weight_decay": 0.1},
            ],
            lr=0.001,
            fused=True,
        )
        self.optimizers = [
            torch.optim.Muon(found["muon"], lr=0.01, weight_decay=0.01),
            torch.optim.RMSprop(found["rmsprop"], lr=0.01),
            self.adamw,
            torch.optim.SGD(found["sgd"], lr=0.01, momentum=0.9, fused=True),
        ]

    def grads(self, component):
        """Its gradients by name, in the order of its params."""
        values = slots(self.nlp.get_pipe(component).model)
        names = [name for name in self.params if name.startswith(f"{component}/")]
        return dict(zip(names, (torch.from_numpy(grad.copy()) for _, grad in values), strict=True))

    def step(self, step, components):
        for param in self.params.values():
            param.grad = None
        for component in components:
            for name, grad in self.grads(component).items():
                self.params[name].grad = grad
        self.adamw.param_groups[1]["weight_decay"] = 0.1 / (1 + step)
        for optimizer in self.optimizers:
            optimizer.step()

    def forget(self, component):
        for name, param in self.params.items():
            for optimizer in self.optimizers if name.startswith(f"{component}/") else ():
                optimizer.state.pop(param, None)

    def grow(self):
        """Params of ner with more rows: the state of the new ones is 0."""
        names = [name for name in self.params if name.startswith("ner/")]
        before = dict(self.params)
        for name, (value, _) in zip(names, slots(self.nlp.get_pipe("ner").model), strict=True):
            value, old = torch.from_numpy(value.copy()), self.params[name]
            if old.shape == value.shape:
                continue
            self.params[name] = param = torch.nn.Parameter(value.clone())
            group = self.adamw.param_groups[1]
            group["params"] = [param if found is old else found for found in group["params"]]
            state = self.adamw.state.pop(old)
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.cat([state[key], torch.zeros(len(value) - len(old), *value.shape[1:])])
            self.adamw.state[param] = state
        assert sum(self.params[name] is not before[name] for name in names) == 2


def train(nlp, examples, optimizer, twin, steps, components=("tagger", "ner")):
    for step in steps:
        nlp.update(examples, sgd=False)
        twin.step(step, components)
        with optimizer.joint_step():
            for component in components:
                nlp.get_pipe(component).finish_update(optimizer)
        optimizer.step_schedules()
    ours = optimizer.params
    assert all(torch.equal(value, twin.params[name]) for name, value in ours.items())
    assert set(ours) == {name for name in twin.params if name.split("/")[0] in components} or len(components) < 2


@needs_muon
def test_cascade_algorithms_of_blocks_are_plain_torch_optimizers(tmp_path):
    """To the last bit: also where only some params are updated, after loading, after thawing, and with a new label."""
    optimizer = resolved()
    nlp, examples = ready_pipeline(["tagger", "ner"], shared=False, sgd=optimizer)
    optimizer.initialize(nlp)
    assert set(optimizer.torch_optimizers) == {
        "algorithm",
        "param_groups.all_of_ner.algorithm",
        "param_groups.all_of_ner.algorithm.fallback",
        "param_groups.embeddings_and_heads.algorithm",
    }
    assert set(optimizer.schedules) == {"param_groups.heads.weight_decay"}
    twin = Twin(nlp, optimizer)
    train(nlp, examples, optimizer, twin, range(4))
    train(nlp, examples, optimizer, twin, range(4, 6), ["tagger"])  # the gradients of ner add up
    optimizer.to_disk(tmp_path / "state")
    optimizer = resolved()
    optimizer.initialize(nlp)
    optimizer.from_disk(tmp_path / "state")
    train(nlp, examples, optimizer, twin, range(6, 9))
    optimizer.freeze(["ner/*"])
    for step in (9, 10):
        nlp.update(examples, sgd=False)
        twin.step(step, ["tagger"])
        with optimizer.joint_step():
            for component in ("tagger", "ner"):
                nlp.get_pipe(component).finish_update(optimizer)
        optimizer.step_schedules()
    optimizer.unfreeze(["ner/*"])
    twin.forget("ner")
    train(nlp, examples, optimizer, twin, range(11, 13))
    before = optimizer.torch_optimizers["param_groups.embeddings_and_heads.algorithm"]
    assert nlp.get_pipe("ner").add_label("NEW")
    twin.grow()
    train(nlp, examples, optimizer, twin, range(13, 16))
    assert optimizer.torch_optimizers["param_groups.embeddings_and_heads.algorithm"] is before
    labels = {info.name: info.algorithm for info in optimizer.describe()}
    assert labels["tagger/output_layer/W"] == labels["ner/tok2vec/embed/2/0/hashembed/E"] == "torch.AdamW.v1"


def two_parts():
    """A pipeline of one torch module with two matrices and two biases."""
    nlp = toy_pipeline(["tagger"], shared=False)
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3))
    nlp.get_pipe("tagger").model = PyTorchWrapper(module)
    return nlp, module


def told(algorithm, blocks, nlp, **settings):
    return optimizer_for(nlp, algorithm, 0.01, grad_clip=0.0, param_groups=blocks, **settings)


def steps(nlp, optimizer, n, start=0):
    for step in range(start, start + n):
        backprop(nlp.get_pipe("tagger").model, numpy.random.default_rng(step))
        nlp.get_pipe("tagger").finish_update(optimizer)
        optimizer.step_schedules()


def options_of(optimizer):
    return {info.name.removeprefix("tagger/"): (info.algorithm, info.options) for info in optimizer.describe()}


def test_cascade_the_last_block_with_an_algorithm_says_all_of_its_options():
    """What blocks before it say of options holds for other params, and what blocks after it say holds for these too."""
    blocks = {
        "before": {"params": ["*"], "weight_decay": 0.5, "momentum": 0.5},
        "one": {"params": ["*/0/*"], "algorithm": SGD(weight_decay=0.25), "momentum": 0.25},
        "two": {"params": ["*/0/bias"], "algorithm": AdamW(), "weight_decay": 0.125},
        "after": {"params": ["*"], "momentum": 0.75, "betas": [0.5, 0.5]},
    }
    nlp, _ = two_parts()
    found = options_of(told(SGD(), blocks, nlp))
    assert {name: algorithm for name, (algorithm, _) in found.items()} == {
        "0/weight": "torch.SGD.v1",
        "0/bias": "torch.AdamW.v1",
        "1/weight": "torch.SGD.v1",
        "1/bias": "torch.SGD.v1",
    }
    assert {name: (o["weight_decay"], o.get("momentum"), o.get("betas")) for name, (_, o) in found.items()} == {
        "0/weight": (0.25, 0.75, None),
        "0/bias": (0.125, None, (0.5, 0.5)),
        "1/weight": (0.5, 0.75, None),
        "1/bias": (0.5, 0.75, None),
    }


def test_cascade_skip_decay_and_rates_hold_for_every_algorithm():
    decayed = AdamW(weight_decay=0.1)
    blocks = {
        "all": {"params": ["*"], "lr_scale": 0.25},
        "low": {"params": ["*/0/*"], "algorithm": decayed, "lr_scale": 0.5},
        "rest": {"params": ["*/1/*"], "lr_scale": 1.0},
    }
    nlp, _ = two_parts()
    optimizer = told(torch_sgd_without_decay(), blocks, nlp, skip_decay="bias_and_norm", per_param_lr={"*/bias": 0.5})
    steps(nlp, optimizer, 2)
    found = {info.name.removeprefix("tagger/"): info for info in optimizer.describe()}
    assert found["0/weight"].options["weight_decay"] == 0.1 and found["0/bias"].options["weight_decay"] == 0.0
    rates = {name: info.learn_rate for name, info in found.items()}
    assert rates == {"0/weight": 0.005, "0/bias": 0.25, "1/weight": 0.01, "1/bias": 0.5}
    groups = {"all+low", "all+rest", "all+low+*/bias+skip_decay", "all+rest+*/bias+skip_decay"}
    assert set(optimizer.learn_rates) == groups


def torch_sgd_without_decay():
    return Algorithm("a.SGD", lambda params, **options: torch.optim.SGD(params, **options), {"momentum": 0.9})


def test_cascade_schedules_of_a_blocks_algorithm_have_its_path():
    values = [0.5, 0.25, 0.125, 0.0625]
    blocks = {"a": {"params": ["*/0/*"], "algorithm": AdamW(weight_decay=iter(values)), "eps": iter(values)}}
    nlp, _ = two_parts()
    optimizer = told(SGD(), blocks, nlp)
    assert set(optimizer.schedules) == {"param_groups.a.algorithm.weight_decay", "param_groups.a.eps"}
    steps(nlp, optimizer, 3)
    options = options_of(optimizer)["0/weight"][1]
    assert (options["weight_decay"], options["eps"]) == (0.0625, 0.0625)
    [group] = optimizer.torch_optimizers["param_groups.a.algorithm"].param_groups
    assert group["weight_decay"] == 0.125


def test_cascade_params_of_a_blocks_algorithm_thaw_at_their_step():
    blocks = {"a": {"params": ["*/0/*"], "algorithm": AdamW(), "unfreeze_at": 2}}
    nlp, module = two_parts()
    optimizer = told(SGD(momentum=0.9), blocks, nlp)
    twins = [torch.nn.Parameter(param.detach().clone()) for param in module.parameters()]
    sgd = torch.optim.SGD(twins[2:], lr=0.01, momentum=0.9, fused=True)
    adamw = torch.optim.AdamW(twins[:2], lr=0.01, fused=True)
    for step in range(5):
        assert set(optimizer.torch_optimizers) == {"algorithm"} | ({"param_groups.a.algorithm"} if step >= 2 else set())
        backprop(nlp.get_pipe("tagger").model, numpy.random.default_rng(step))
        for twin, param in zip(twins, module.parameters()):
            twin.grad = None if param.grad is None else param.grad.clone()
        for other in [sgd, *[adamw] * (step >= 2)]:
            other.step()
        nlp.get_pipe("tagger").finish_update(optimizer)
        optimizer.step_schedules()
        assert same([param.detach() for param in module.parameters()], [twin.detach() for twin in twins])


# ---------------------------------------------------------------------- state


def modular():
    from thinc_torchopt.addons.modular.registered import create

    return create(modules={"adam": moments.Adam(), "average": moments.EWMA(0.5)})


def block_with(name, algorithm):
    return {name: {"params": ["*/0/*"], "algorithm": algorithm}}


@pytest.mark.parametrize("on_growth", [None, "mean"])
def test_cascade_state_goes_on_in_a_block_with_another_name(on_growth):
    """What an algorithm keeps beside its params goes on too."""
    nlp, module = two_parts()
    first, second = told(SGD(), block_with("a", modular()), nlp), told(SGD(), block_with("b", modular()), nlp)
    steps(nlp, first, 3)
    saved = copy.deepcopy(first.state_dict())
    assert "param_groups.a.algorithm" in saved["algorithms"]
    before = copy.deepcopy(module.state_dict())
    steps(nlp, first, 3, start=3)
    expected = params_of(nlp.get_pipe("tagger").model)
    module.load_state_dict(before)
    second.load_state_dict(saved, on_growth=on_growth)
    steps(nlp, second, 3, start=3)
    assert same(expected, params_of(nlp.get_pipe("tagger").model))


def test_cascade_state_rolls_back():
    nlp, module = two_parts()
    optimizer = told(SGD(momentum=0.9), block_with("a", AdamW()), nlp)
    steps(nlp, optimizer, 3)
    saved, before = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(module.state_dict())
    steps(nlp, optimizer, 2, start=3)
    expected = params_of(nlp.get_pipe("tagger").model)
    module.load_state_dict(before)
    optimizer.roll_back(saved)
    steps(nlp, optimizer, 2, start=3)
    assert same(expected, params_of(nlp.get_pipe("tagger").model))


def test_cascade_state_of_a_copy_without_the_blocks_params():
    """A component goes, and with it the algorithm that was for it alone."""
    blocks = {"a": {"params": ["*/output_layer/*"]}, "b": {"params": ["tagger/*"], "algorithm": modular()}}
    first = TorchOptimizer(AdamW(), 0.01, param_groups=blocks)
    nlp, examples = ready_pipeline(["tagger", "morphologizer"], shared=False, sgd=first)
    first.initialize(nlp)
    nlp.update(examples, sgd=first)
    saved = copy.deepcopy(first.state_dict())
    nlp.remove_pipe("tagger")
    second = optimizer_for(nlp, AdamW(), 0.01, param_groups={"a": blocks["a"]})
    with pytest.warns(GrowthWarning, match="dropped: all .* params of tagger"):
        second.load_state_dict(saved, on_growth="mean")
    assert set(second.torch_optimizers) == {"algorithm"} and set(second.nr_update.values()) == {1}


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"a": {"params": ["*"], "algorithm": 3}},
         r"'algorithm' in \[training.optimizer.param_groups.a\]: expected a block with @torch_optimizers.*found 3"),
        ({"a": {"params": ["*"], "algorithm": {"weight_decay": 0.1}}},
         r"'algorithm' in \[training.optimizer.param_groups.a\]: expected a block with @torch_optimizers"),
        ({"a": {"params": ["*"], "algorithm": AdamW(), "momentum": 0.9}},
         r"momentum in \[training.optimizer.param_groups.a\].*'torch.AdamW.v1' have no such setting.*betas"),
        ({"a": {"params": ["*"], "algorithm": AdamW(), "betas": [0.9, 1.5]}},
         r"\[training.optimizer.param_groups.a\].*beta"),
        ({"a": {"params": ["*/0/*"], "algorithm": AdamW()}, "b": {"params": ["*/1/*"], "betas": [0.9, 0.9]}},
         r"betas in \[training.optimizer.param_groups.b\]: expected options of 'torch.SGD.v1'"),
        ({"a": {"params": ["*/0/*"], "algorithm": AdamW()}, "b": {"params": ["*/1/*", "*"], "betas": [0.9, 1.9]}},
         r"\[training.optimizer.param_groups.b\].*beta"),
    ],
)  # fmt: skip
def test_cascade_refuses(blocks, message):
    nlp, _ = two_parts()
    with pytest.raises(ConfigError, match=message):
        told(SGD(), blocks, nlp)


def test_cascade_options_that_another_blocks_algorithm_refuses_are_no_matter():
    """SGD takes no momentum below 0; the other one does."""
    blocks = {"a": {"params": ["*/0/*"], "algorithm": SGD()}, "b": {"params": ["*/1/*"], "momentum": -1.0}}
    nlp, _ = two_parts()
    lenient = Algorithm("a.SGD", Lenient, {"momentum": 0.5})
    assert options_of(told(lenient, blocks, nlp))["1/bias"] == ("a.SGD", {"momentum": -1.0})
    blocks["b"]["params"] = ["*"]
    with pytest.raises(ConfigError, match=r"'torch.SGD.v1' in \[training.optimizer.param_groups.b\].*momentum"):
        told(lenient, blocks, nlp)


class Lenient(torch.optim.SGD):
    def __init__(self, params, lr, momentum):
        super().__init__([{"params": list(params), "momentum": momentum}], lr)


@needs_muon
def test_cascade_names_block_and_param_that_an_algorithm_does_not_take():
    """Muon's fallback takes what it does not; without one, it is an error."""
    nlp, _ = two_parts()
    blocks = {"matrices": {"params": ["*/0/*"], "algorithm": Muon()}}
    optimizer = told(SGD(), blocks, nlp)
    assert {name: algorithm for name, (algorithm, _) in options_of(optimizer).items() if name.startswith("0")} == {
        "0/weight": "torch.Muon.v1",
        "0/bias": "torch.AdamW.v1",
    }
    assert {info.group for info in optimizer.describe()} == {"default", "matrices", "matrices+fallback"}
    blocks = {"matrices": {"params": ["*/0/*"], "algorithm": Muon(fallback=Muon())}}
    assert options_of(told(SGD(), blocks, nlp))["0/bias"][0] == "torch.AdamW.v1"
    bare = Muon()
    object.__setattr__(bare, "fallback", None)
    with pytest.raises(
        ConfigError,
        match=r"'tagger/0/bias' with torch.Muon.v1 of \[training.optimizer.param_groups.matrices.algorithm\]",
    ):
        told(SGD(), {"matrices": {"params": ["*/0/*"], "algorithm": bare}}, nlp)


@pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
def test_cascade_settings_are_checked_for_the_algorithms_of_blocks():
    own = registry.resolve({"a": {"@torch_optimizers": "pytorch-optimizer.create.v1", "name": "schedulefreeadamw"}})
    nlp, _ = two_parts()
    with pytest.raises(ConfigError, match="averages by itself"):
        told(SGD(), block_with("x", own["a"]), nlp, use_averages=True)


# ---------------------------------------------------------------------- in a config


@needs_muon
def test_cascade_a_config_trains_and_tells_of_them(corpus, tmp_path):
    def shown(command, *flags):
        return spacy_cli("torchopt", command, CONFIGS / "muon.cfg", *paths, *flags).stdout

    paths = [part for name in ("train", "dev") for part in (f"--paths.{name}", str(corpus[name]))]
    rows = {row["name"]: row for row in json.loads(shown("params", "--json"))["params"]}
    assert rows["tagger/output_layer/W"]["algorithm"] == "torch.AdamW.v1"
    assert rows["tagger/output_layer/W"]["weight_decay"] == 0.0
    assert "torch.Muon.v1" in {row["algorithm"] for row in rows.values()}
    [line] = [line for line in shown("params").splitlines() if line.startswith("tagger/output_layer/W")]
    assert "torch.AdamW.v1" in line
    [line] = [line for line in shown("explain").splitlines() if line.startswith("embeddings_and_heads")]
    assert "torch.AdamW.v1" in line


def test_cascade_of_a_copied_optimizer_knows_its_own_schedules():
    """Settings that are alike are one object, which tells schedules apart by what they are in this process."""
    nlp, module = two_parts()
    rates = Counted()
    blocks = {
        "one": {"params": ["*/0/*"], "learn_rate": rates},
        "two": {"params": ["re:/(0/bias|late)$"], "learn_rate": rates},
    }
    optimizer = TorchOptimizer(SGD(), 0.1, param_groups=blocks, new_params_warmup=0)
    optimizer.introduce(nlp)
    steps(nlp, optimizer, 1)
    other = copy.deepcopy(optimizer)
    other.introduce(nlp)
    module[1].register_parameter("late", torch.nn.Parameter(torch.ones(2)))
    other.initialize(nlp)
    assert [len(group["params"]) for group in other.torch_optimizers["algorithm"].param_groups] == [3, 2]


class Counted:
    """A schedule that can be copied."""

    def __init__(self):
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        return 1.0 / self.count
