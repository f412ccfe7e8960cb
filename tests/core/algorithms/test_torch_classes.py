"""Oracle: the same algorithm in a bare torch loop, fed with the same gradients."""

import inspect

import numpy
import pytest
import spacy
import torch

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms import torch_classes as torch_optimizers
from thinc_torchopt.core.compat import has_pytorch_optimizer
from thinc_torchopt.core.errors import ConfigError

from ...conftest import HAS_MUON, needs_gpu, needs_muon
from ...models import (
    backprop,
    grads_of,
    mixed_model,
    params_of,
    ready_pipeline,
    slots,
    thinc_model,
    torch_model,
)

NAMES = [
    "ASGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
]
FUSED = {"Adagrad", "Adam", "AdamW", "SGD"}
OPTIONS = [(name, {}) for name in NAMES] + [
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"betas": (0.8, 0.9), "fused": False}),
    ("AdamW", {"foreach": True}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.5}),
]


def resolve(registered, **options):
    block = {"@torch_optimizers": registered, **options}
    return spacy.registry.resolve({"algorithm": block})["algorithm"]


def train_beside_torch(model, optimizer, bare):
    """Train a model with ours; give each step's gradients to bare torch optimizers too.

    bare (Callable): Builds torch optimizers for a list of params. RETURNS (tuple): Our params, torch's.
    """
    params = [torch.nn.Parameter(value) for value in params_of(model)]
    theirs = bare(params)
    rng = numpy.random.default_rng(0)
    for _ in range(20):
        backprop(model, rng)
        for param, grad in zip(params, grads_of(model)):
            param.grad = grad
        for algorithm in theirs:
            algorithm.step()
        model.finish_update(optimizer)
        optimizer.step_schedules()
    return params_of(model), [param.detach() for param in params]


@pytest.mark.parametrize("build", [thinc_model, torch_model, mixed_model])
@pytest.mark.parametrize("name, options", OPTIONS)
def test_torch_optimizers_equal_bare_torch(name, options, build):
    optimizer = TorchOptimizer(resolve(f"torch.{name}.v1", **options), 0.01, grad_clip=0.0)
    settings = {"fused": True, **options} if name in FUSED and "foreach" not in options else options
    model = build()
    before = params_of(model)
    ours, theirs = train_beside_torch(
        model, optimizer, lambda params: [getattr(torch.optim, name)(params, lr=0.01, **settings)]
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
    assert not any(torch.equal(a, b) for a, b in zip(ours, before))


@needs_muon
def test_torch_optimizers_muon_takes_matrices_and_its_fallback_the_rest():
    optimizer = TorchOptimizer(resolve("torch.Muon.v1", adjust_lr_fn="match_rms_adamw"), 0.01, grad_clip=0.0)

    def bare(params):
        matrices = [p for p in params if p.ndim == 2]
        assert matrices and len(matrices) < len(params)
        rest = torch.optim.AdamW([p for p in params if p.ndim != 2], lr=0.01, fused=True)
        return [torch.optim.Muon(matrices, lr=0.01, adjust_lr_fn="match_rms_adamw"), rest]

    ours, theirs = train_beside_torch(mixed_model(), optimizer, bare)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


@needs_muon
def test_torch_optimizers_muon_leaves_matrices_to_the_algorithm_of_a_block():
    sgd = {"@torch_optimizers": "torch.SGD.v1", "momentum": 0.5}
    block = {"params": ["*/hashembed/E", "ner/upper/W"], "algorithm": resolve("torch.SGD.v1", momentum=0.5)}
    optimizer = TorchOptimizer(
        resolve("torch.Muon.v1", fallback=sgd), 0.01, grad_clip=0.0, param_groups={"others": block}
    )
    nlp, examples = ready_pipeline(["ner"], shared=False, sgd=optimizer)
    twins = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in optimizer.params.items()}
    muon = [twins["ner/tok2vec/linear/W"]]
    bare = (
        torch.optim.Muon(muon, lr=0.01),
        torch.optim.SGD([p for p in twins.values() if p is not muon[0]], lr=0.01, momentum=0.5, fused=True),
    )
    for _ in range(5):
        nlp.update(examples, sgd=False)
        for (name, tensor), (_, grad) in zip(twins.items(), slots(nlp.get_pipe("ner").model)):
            assert name in optimizer.params
            tensor.grad = torch.from_numpy(grad.copy())
        for algorithm in bare:
            algorithm.step()
        nlp.get_pipe("ner").finish_update(optimizer)
    assert all(torch.equal(tensor, twins[name]) for name, tensor in optimizer.params.items())


@needs_muon
@pytest.mark.parametrize("frozen", [[], ["tagger"]])
def test_torch_optimizers_patterns_may_name_sourced_and_frozen_components(frozen, tmp_path):
    """`spacy train` shows the optimizer one part of such a pipeline after the other."""
    from confection import Config
    from spacy.training.initialize import init_nlp

    from ...conftest import CONFIGS
    from ...spacy_cli import toy_corpus

    source, _ = ready_pipeline(["tagger"], shared=False)
    source.to_disk(tmp_path / "source")
    corpus = toy_corpus(tmp_path)
    config = Config().from_disk(
        CONFIGS / "muon.cfg", overrides={f"paths.{name}": str(corpus[name]) for name in ("train", "dev")}
    )
    config["nlp"] |= {"lang": source.lang, "pipeline": ["tagger", "ner"]}
    config["components"] = {"tagger": {"source": str(tmp_path / "source")}, "ner": {"factory": "ner"}}
    config["training"]["frozen_components"] = frozen
    blocks = config["training"]["optimizer"]["param_groups"]
    blocks["embeddings_and_heads"]["params"] = ["tagger/*", "ner/upper/W"]
    nlp = init_nlp(config)
    optimizer = spacy.registry.resolve({"o": config["training"]["optimizer"]})["o"]
    optimizer.initialize(nlp, exclude=frozen)
    assert {name.split("/")[0] for name in optimizer.params} == {"tagger", "ner"} - set(frozen)
    nlp._optimizer.initialize(nlp)


@pytest.mark.parametrize("option", ["weight_decay", "eps", "betas.beta1"])
def test_torch_optimizers_options_may_be_schedules(option):
    values = [0.1 / (1 + step) for step in range(30)]
    schedule = {"@schedules": "decaying.v1", "base_rate": 0.1, "decay": 1.0}
    options = {"betas": {"beta2": 0.9, "beta1": schedule}} if option == "betas.beta1" else {option: schedule}
    optimizer = TorchOptimizer(resolve("torch.AdamW.v1", **options), 0.01, grad_clip=0.0)
    model = thinc_model()
    params = [torch.nn.Parameter(value) for value in params_of(model)]
    bare = torch.optim.AdamW(params, lr=0.01, fused=True)
    rng = numpy.random.default_rng(0)
    for step in range(20):
        backprop(model, rng)
        for param, grad in zip(params, grads_of(model)):
            param.grad = grad
        name, value = ("betas", (values[step], 0.9)) if option == "betas.beta1" else (option, values[step])
        bare.param_groups[0][name] = value
        bare.step()
        model.finish_update(optimizer)
        optimizer.step_schedules()
    assert all(torch.equal(a, b) for a, b in zip(params_of(model), params))


@pytest.mark.parametrize("name", [*NAMES, "Muon"])
def test_torch_optimizers_have_torchs_arguments_and_defaults(name):
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    ours = inspect.signature(getattr(torch_optimizers, name)).parameters
    extra = {"fallback"} if name == "Muon" else set()
    assert set(ours) - extra == set(theirs) - {"params", "lr", "differentiable"}
    assert all(ours[key].default == theirs[key].default for key in set(ours) - extra)


@pytest.mark.parametrize(
    "options",
    [
        {"betas": [0.9, 1.5]},
        {"betas": [0.9]},
        {"betas": {"beta1": 0.9, "b2": 0.99}},
    ],
)
def test_torch_optimizers_refuse_a_wrong_value_early(options):
    with pytest.raises(ConfigError, match=r"training\.optimizer\.algorithm"):
        resolve("torch.AdamW.v1", **options)


def test_torch_optimizers_name_the_known_ones_for_an_unknown():
    with pytest.raises(Exception, match=r"(?s)AdamW2.*torch\.AdamW\.v1"):
        resolve("torch.AdamW2.v1")


@pytest.mark.parametrize("name, why", [("LBFGS", "closure"), ("SparseAdam", "sparse gradients")])
def test_torch_optimizers_say_why_some_cannot_be_used(name, why):
    with pytest.raises(ConfigError, match=rf"{why}.*Use 'torch\.Adam"):
        resolve(f"torch.{name}.v1")


def test_torch_optimizers_name_an_unknown_argument_in_python():
    with pytest.raises(
        ConfigError, match=r"'torch\.AdamW\.v1': it has no option weigth_decay\. It has: .*weight_decay"
    ):
        torch_optimizers.AdamW(weigth_decay=0.5)
    for name, value, expected in (("weight_decay", "x", "a number"), ("amsgrad", 1, "true or false")):
        with pytest.raises(ConfigError, match=rf"'{name}'.*expected {expected}, found {value!r}"):
            torch_optimizers.AdamW(**{name: value})


def test_torch_optimizers_without_muon_in_torch(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    offered = torch_optimizers._offer("Muon")
    assert {"weight_decay", "ns_steps", "fallback"} <= inspect.signature(offered).parameters.keys()
    with pytest.raises(ConfigError, match=r"has no torch\.optim\.Muon"):
        offered(weight_decay=0.1)


@pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
def test_torch_optimizers_create_names_what_is_wrong():
    with pytest.raises(ConfigError, match=r"no optimizer of the name 'lyon'.*lion"):
        resolve("pytorch-optimizer.create.v1", name="lyon")
    with pytest.raises(ConfigError, match="nonsense"):
        resolve("pytorch-optimizer.create.v1", name="lion", options={"nonsense": 1})


def test_torch_optimizers_create_names_its_extra(monkeypatch):
    monkeypatch.setattr("thinc_torchopt.core.compat.has_pytorch_optimizer", False)
    with pytest.raises(ImportError, match=r"pip install 'pytorch-optimizer>="):
        resolve("pytorch-optimizer.create.v1", name="lion")


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_torch_optimizers_equal_bare_torch_on_a_gpu(name):
    from thinc.api import prefer_gpu, require_cpu

    prefer_gpu()
    try:
        model = mixed_model()
        optimizer = TorchOptimizer(resolve(f"torch.{name}.v1"), 0.01, grad_clip=0.0)
        params = [torch.nn.Parameter(torch.as_tensor(value).detach().clone()) for value, _ in slots(model)]
        fused = {"fused": True} if name in FUSED - {"Adagrad"} else {}
        bare = getattr(torch.optim, name)(params, lr=0.01, **fused)
        rng = torch.Generator("cuda").manual_seed(0)
        for _ in range(20):
            X = model.ops.asarray(torch.randn(7, 5, generator=rng, device="cuda").cpu().numpy())
            Y, back = model.begin_update(X)
            back(Y)
            for param, (_, grad) in zip(params, slots(model)):
                param.grad = torch.as_tensor(grad).clone()
            bare.step()
            model.finish_update(optimizer)
        assert all(
            torch.equal(torch.as_tensor(value).detach(), param.detach())
            for (value, _), param in zip(slots(model), params)
        )
    finally:
        require_cpu()


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("Muon", "ns_steps", 0),
        ("Muon", "eps", -1.0),
        ("ASGD", "lambd", -0.1),
        ("ASGD", "t0", -1e-9),
        ("SGD", "dampening", {}),
    ],
)
def test_torch_classes_refuse_what_torch_takes_and_ignores(name, option, value):
    if name == "Muon" and not HAS_MUON:
        pytest.skip("this torch has no Muon")
    with pytest.raises(ConfigError, match=option):
        getattr(torch_optimizers, name)(**{option: value})
