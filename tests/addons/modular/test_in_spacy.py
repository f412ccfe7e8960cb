"""Modular in spaCy pipelines, and where it meets other features."""

import pytest
import spacy
import torch
from confection import Config
from spacy.training import Example

from thinc_torchopt import TorchOptimizer, preserve_optimizer_state
from thinc_torchopt.addons.modular.module import Module
from thinc_torchopt.addons.modular.optimizer import Modular
from thinc_torchopt.addons.modular.registered import (
    L2SP,
    Adam,
    FedProx,
    GaussianNoise,
    L2GlobalClipping,
    Lookahead,
    Momentum,
    ScaffoldClient,
    create,
)
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.types import BatchSize

from ... import runs
from ...models import params_of, ready_pipeline, torch_model, toy_examples, toy_pipeline
from .compare import assert_same

CONFIG = """
[optimizer]
@optimizers = "thinc-torchopt.TorchOptimizer.v1"
learn_rate = 0.01
grad_clip = 0.0

[optimizer.algorithm]
@torch_optimizers = "thinc-torchopt.Modular.v1"
weight_decay = 0.01

[optimizer.algorithm.regularizers]

[optimizer.algorithm.regularizers.proximal]
@regularizers = "thinc-torchopt.FedProx.v1"
alpha = 0.01

[optimizer.algorithm.modules]

[optimizer.algorithm.modules.clip]
@gradient_modules = "thinc-torchopt.L2GlobalClipping.v1"
max_norm = 1.0

[optimizer.algorithm.modules.adam]
@gradient_modules = "thinc-torchopt.Adam.v1"
"""
# float32, with another order of operations.
CLOSE = {"rtol": 2e-5, "atol": 1e-6}


def resolve(text, **changes):
    """changes: Config paths below [optimizer], with __ for dots."""
    config = Config().from_str(text)["optimizer"]
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = config
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    # As spacy train does: written down, parsed and filled.
    config = Config().from_str(Config({"optimizer": config}).to_str())
    return spacy.registry.resolve(config)["optimizer"]


def inner(optimizer) -> Modular:
    return optimizer.torch_optimizers["algorithm"]


def pipeline(optimizer=None):
    nlp, examples = ready_pipeline()
    if optimizer is not None:
        optimizer.initialize(nlp)
    return nlp, examples


def train(nlp, examples, optimizer, n):
    for _ in range(n):
        nlp.update(examples, sgd=optimizer)
        optimizer.step_schedules()


def test_in_spacy_equals_a_bare_torch_loop():
    """A thinc layer and a torch module, against torch.optim.AdamW with clip_grad_norm_ on copies of both."""
    model = torch_model()
    model.initialize()
    assert create().options == {"weight_decay": 0.0}
    copy = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.LayerNorm(6), torch.nn.GELU(), torch.nn.Linear(6, 3))
    copy.load_state_dict(model.shims[0]._model.state_dict())
    bare = torch.optim.AdamW(copy.parameters(), lr=0.01, betas=(0.9, 0.999), weight_decay=0.1)
    optimizer = TorchOptimizer(
        create(
            weight_decay=0.1, modules={"clip": L2GlobalClipping(max_norm=0.5), "adam": Adam(beta_2=0.999, eps=1e-8)}
        ),
        0.01,
        grad_clip=0.0,
    )
    for step in range(5):
        X = torch.randn(7, 5, generator=torch.Generator().manual_seed(step)).numpy()
        Y, back = model.begin_update(X)
        back(2 * Y)
        model.finish_update(optimizer)
        bare.zero_grad()
        copy(torch.from_numpy(X)).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(copy.parameters(), 0.5)
        bare.step()
        for one, other in zip(model.shims[0]._model.parameters(), copy.parameters()):
            torch.testing.assert_close(one, other, **CLOSE)


def test_in_spacy_schedules_move_options_and_groups_have_their_own():
    beta = {"@schedules": "compounding.v1", "start": 0.5, "stop": 0.9, "compound": 1.2}
    group = {"params": ["ner/*"], "clip_max_norm": 0.5, "proximal_enabled": False, "adam_beta_2": 0.9}
    optimizer = resolve(CONFIG, algorithm__modules__adam__beta_1=beta, param_groups={"ner": group})
    nlp, examples = pipeline(optimizer)
    seen = []
    for _ in range(4):
        train(nlp, examples, optimizer, 1)
        [value] = {entry["adam_beta_1"] for entry in inner(optimizer).param_groups}
        seen.append(value)
    assert seen == pytest.approx([0.5, 0.6, 0.72, 0.864])
    options = {info.name: info.options for info in optimizer.describe()}
    assert options["ner/lower/W"]["clip_max_norm"] == 0.5 and not options["ner/lower/W"]["proximal_enabled"]
    assert options["tagger/output_layer/W"]["clip_max_norm"] == 1.0
    with pytest.raises(ConfigError, match=r"adam_beta_3 in \[training\.optimizer\.param_groups\.ner\].*adam_beta_2"):
        resolve(CONFIG, param_groups={"ner": {"params": ["ner/*"], "adam_beta_3": 0.5}})
    with pytest.raises(ConfigError, match=r"\[training\.optimizer\.param_groups\.ner\].*beta_2"):
        resolve(CONFIG, param_groups={"ner": {"params": ["ner/*"], "adam_beta_2": 1.5}})


def test_in_spacy_a_schedule_that_leaves_the_range_is_an_error_before_the_update():
    beta = {"@schedules": "compounding.v1", "start": 0.9, "stop": 2.0, "compound": 1.2}
    optimizer = resolve(CONFIG, algorithm__modules__adam__beta_1=beta)
    nlp, examples = pipeline(optimizer)
    train(nlp, examples, optimizer, 1)
    with pytest.raises(ConfigError, match=r"adam_beta_1.*expected a value that"):
        train(nlp, examples, optimizer, 1)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"algorithm__modules__adam__beta_1": 1.5},
            r"'beta_1' in \[training\.optimizer\.algorithm\.modules\].*Adam\.v1",
        ),
        ({"algorithm__modules__clip__max_norm": -1.0}, r"'max_norm' in \[training\.optimizer\.algorithm\.modules\]"),
        ({"algorithm__regularizers__proximal__alpha": -1.0}, r"'alpha' in \[training\.optimizer\.algorithm\.regulariz"),
        ({"algorithm__modules__x": {"eps": 0.1}}, r"\[training\.optimizer\.algorithm\.modules\.x\].*@gradient_modules"),
        (
            {"algorithm__regularizers__x": {"@gradient_modules": "thinc-torchopt.Lion.v1"}},
            r"\[training\.optimizer\.algorithm\.regularizers\.x\].*@regularizers.*found.*lion",
        ),
        (
            {"algorithm__modules__proximal": {"@gradient_modules": "thinc-torchopt.Lion.v1"}},
            r"algorithm\.regularizers\.proximal\] and .*algorithm\.modules\.proximal\].*Rename one",
        ),
        (
            {"algorithm__modules__x": {"@gradient_modules": "thinc-torchopt.TorchOptim.v1", "optim_cls": "SGDD"}},
            r"'optim_cls' in \[training\.optimizer\.algorithm\.modules\].*TorchOptim\.v1",
        ),
        (
            {"algorithm__modules__x": {"@gradient_modules": "thinc-torchopt.TorchOptim.v1"}},
            r"\[training\.optimizer\.algorithm\.modules\].*TorchOptim\.v1.*optim_cls",
        ),
        ({"algorithm__decay": "adam"}, "decay"),
        ({"algorithm__normalize": "sentences"}, "normalize"),
        ({"algorithm__weight_decay": -0.1}, "weight_decay"),
        ({"algorithm__modules__adam__beta": 0.9}, "beta"),
    ],
    ids=str,
)
def test_in_spacy_errors_name_the_place_in_the_config(changes, message):
    with pytest.raises(ValueError, match=message):
        resolve(CONFIG, **changes)
    assert Module().where == "the module ''"  # not the place of the one before


def test_in_spacy_patterns_limit_modules():
    optimizer = resolve(CONFIG, algorithm__regularizers__proximal__params=["tagger/*"])
    nlp, examples = pipeline(optimizer)
    train(nlp, examples, optimizer, 1)
    kept = {
        name: {key.partition("/")[0] for key in inner(optimizer).state[param]}
        for name, param in optimizer.params.items()
    }
    assert all(("proximal" in labels) == name.startswith("tagger/") for name, labels in kept.items())
    assert set(optimizer.learn_rates) == {"default", "proximal"}
    bad = resolve(CONFIG, algorithm__regularizers__proximal__params=["taggre/*"])
    with pytest.raises(ConfigError, match=r"'taggre/\*'.*matches none"):
        bad.initialize(nlp)


def test_in_spacy_normalizing_makes_clipping_independent_of_the_batch_size():
    """A batch with every example twice has twice the gradients, and the same update."""
    results = []
    for times in (1, 3):
        spacy.util.fix_random_seed(0)
        optimizer = resolve(CONFIG, algorithm__normalize="words", algorithm__modules__clip__max_norm=0.01)
        nlp = toy_pipeline(["tagger"])
        examples = toy_examples(nlp)
        nlp.initialize(lambda examples=examples: examples)
        list(runs.loop_over(nlp, optimizer, [examples * times] * 2))
        assert inner(optimizer).batch_size == sum(map(len, examples)) * times
        assert optimizer.batch_size is None
        results.append(params_of(nlp.get_pipe("tagger").model))
    for one, other in zip(*results):
        # The sums are of another order, and Adam divides by the root of their squares.
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_in_spacy_normalizing_comes_before_the_norm_is_measured_and_needs_the_size():
    norms = []
    for normalize in ("examples", None):
        spacy.util.fix_random_seed(0)
        optimizer = resolve(CONFIG, algorithm__normalize=normalize)
        nlp, examples = pipeline(optimizer)
        optimizer.batch_size = BatchSize(words=100, examples=len(examples))
        with optimizer.joint_step():
            nlp.update(examples, sgd=optimizer)
        norms.append(optimizer.grad_norm)
    assert norms[0] == pytest.approx(norms[1] / len(examples), rel=1e-5)
    optimizer = resolve(CONFIG, algorithm__normalize="examples")
    nlp, examples = pipeline(optimizer)
    optimizer.batch_size = BatchSize(words=100, examples=len(examples))
    nlp.update(examples, sgd=optimizer)
    optimizer.batch_size = None  # that of the step before is forgotten
    with pytest.raises(ConfigError, match=r"number of examples.*batch_size"):
        nlp.update(examples, sgd=optimizer)


def everything():
    return create(
        weight_decay=0.01,
        regularizers={"proximal": FedProx(alpha=0.1), "start": L2SP(alpha=0.1, params=["ner/*"])},
        modules={
            "scaffold": ScaffoldClient(),
            "noise": GaussianNoise(std=0.01, safe_mode=False, seed=1),
            "momentum": Momentum(),
            "clip": L2GlobalClipping(),
            "adam": Adam(amsgrad=True),
            "lookahead": Lookahead(k=2),
        },
    )


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.GrowthWarning")
@pytest.mark.device
def test_in_spacy_state_grows_with_labels():
    optimizer = TorchOptimizer(everything(), 0.01)
    nlp, examples = pipeline(optimizer)
    train(nlp, examples, optimizer, 3)
    param = optimizer.params["ner/upper/b"]
    before, n = dict(inner(optimizer).state[param]), len(param)
    nlp.get_pipe("ner").add_label("NEW")
    optimizer.initialize(nlp)
    grown = optimizer.params["ner/upper/b"]
    after = inner(optimizer).state[grown]
    assert len(grown) > n and after.keys() == before.keys()
    for key, value in before.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(after[key][:n], value) and len(after[key]) == len(grown), key
        else:
            assert after[key] == value
    for key in ("proximal/reference", "start/reference", "lookahead/slow"):
        assert torch.equal(after[key][n:], grown[n:]), key  # as new weights are
    torch.testing.assert_close(
        after["momentum/momentum_buffer"][n:], 0.1 * before["momentum/momentum_buffer"].mean().expand(len(grown) - n)
    )
    torch.testing.assert_close(after["adam/exp_avg"][n:], before["adam/exp_avg"].mean().expand(len(grown) - n))
    examples = [*examples, Example.from_dict(nlp.make_doc("Anna likes it"), {"entities": [(0, 4, "NEW")]})]
    train(nlp, examples, optimizer, 2)
    assert all(bool(value.isfinite().all()) for value in params_of(nlp.get_pipe("ner").model))


@pytest.mark.device
def test_in_spacy_frozen_params_and_skipped_updates_leave_state_alone():
    optimizer = TorchOptimizer(everything(), 0.01, max_nonfinite=5)
    nlp, examples = pipeline(optimizer)
    train(nlp, examples, optimizer, 2)
    state = inner(optimizer).get_state()
    node = next(node for node in nlp.get_pipe("tagger").model.walk() if node.has_grad("W"))
    node.inc_grad("W", node.get_param("W") * float("nan"))
    with pytest.warns(UserWarning, match="skipped"), optimizer.joint_step():
        nlp.update(examples, sgd=optimizer)
    assert optimizer.skipped_updates == 1
    assert_same(inner(optimizer).get_state(), state)
    optimizer.freeze(["ner/*"])
    assert not any(name.startswith("ner/") for name in inner(optimizer).named_params())
    train(nlp, examples, optimizer, 1)
    optimizer.unfreeze(["ner/*"])
    train(nlp, examples, optimizer, 1)
    assert inner(optimizer).state[optimizer.params["ner/upper/b"]]["adam/step"] == 1


def test_in_spacy_rounds_and_scaffold_between_pipelines():
    """Names are those of the pipeline, so two of them understand each other; also after a state was loaded."""
    first, optimizer = (TorchOptimizer(create(modules={"scaffold": ScaffoldClient()}), 0.01) for _ in range(2))
    nlp, examples = pipeline(first)
    train(nlp, examples, first, 1)
    optimizer.initialize(nlp)
    optimizer.load_state_dict(first.state_dict())
    server = Modular(
        [(name, param.clone()) for name, param in optimizer.params.items()], 1.0, modules=["scaffold-server"]
    )
    client = inner(optimizer)
    client.process_aux_var(server.collect_aux_var())
    client.start_round()
    train(nlp, examples, optimizer, 3)
    sent = client.collect_aux_var()
    assert set(sent["scaffold"].delta) == set(optimizer.params)
    server.process_aux_var([sent])
    client.process_aux_var(server.collect_aux_var())
    name = "tagger/output_layer/W"
    torch.testing.assert_close(
        client.state[optimizer.params[name]]["scaffold/server_correction"], sent["scaffold"].delta[name]
    )


def test_in_spacy_train_resumes_to_the_last_bit(tmp_path, corpus):
    """Stopped in mid-training, as by a power cut, and started again."""
    algorithm = {
        "@torch_optimizers": "thinc-torchopt.Modular.v1",
        "normalize": "words",
        "weight_decay": 0.01,
        "regularizers": {"proximal": {"@regularizers": "thinc-torchopt.FedProx.v1", "alpha": 0.1}},
        "modules": {
            "noise": {
                "@gradient_modules": "thinc-torchopt.GaussianNoise.v1",
                "std": 0.001,
                "safe_mode": False,
                "seed": 1,
            },
            "clip": {"@gradient_modules": "thinc-torchopt.L2GlobalClipping.v1"},
            "adam": {
                "@gradient_modules": "thinc-torchopt.Adam.v1",
                "beta_1": {"@schedules": "compounding.v1", "start": 0.5, "stop": 0.9, "compound": 1.1},
            },
        },
    }
    results = []
    for crash_at in (None, 8):
        folder = tmp_path / str(crash_at)
        config = runs.config_for(folder, corpus, steps=12, training__optimizer__algorithm=algorithm)
        if crash_at is not None:
            runs.run(config, folder, crash_at=crash_at)
        runs.run(config, folder)
        results.append(runs.digests(folder))
    assert results[0] == results[1]


def test_in_spacy_preserve_optimizer_state_takes_modular():
    old, new = torch.nn.Linear(4, 3), torch.nn.Linear(4, 5)
    optimizer = Modular(old.named_parameters(), 0.1, modules=["adam", "lookahead"])
    old(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    again = preserve_optimizer_state(optimizer, new, old)
    assert torch.equal(again.state[new.weight]["adam/exp_avg"][:3], optimizer.state[old.weight]["adam/exp_avg"])
    new(torch.ones(2, 4)).sum().backward()
    again.step()
    assert again.get_config() == optimizer.get_config()
