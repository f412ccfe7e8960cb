"""How the modules of transformers compute in a run: gradient checkpointing, frozen layers, attention."""

from functools import partial

import numpy
import pytest
import spacy
import torch
from spacy.training.initialize import init_nlp
from spacy.util import registry

from thinc_torchopt.addons.fine_tuning.batches import run_at_once, run_in_parts, runs_in_parts
from thinc_torchopt.addons.fine_tuning.modules import attending, checkpointing, layers_of
from thinc_torchopt.addons.fine_tuning.transformers import names_to_freeze, transformers_of
from thinc_torchopt.core.errors import ConfigError, RollbackWarning, StateError

from ...models import finish_step, toy_examples
from ...peek import averages_in, params_in
from ...runs import digests, run
from .small_transformers import LAYERS, config_with, kind, needs  # noqa: F401

ALL = {"gradient_checkpointing": True, "freeze_layers": 2, "attention": "eager"}


def build(config):
    """The pipeline, initialized, and its optimizer."""
    nlp = init_nlp(config.interpolate())
    optimizer = registry.resolve(config.interpolate()["training"], validate=False)["optimizer"]
    optimizer.initialize(nlp)
    [found] = transformers_of(nlp)
    return nlp, optimizer, found


def gradients(nlp, optimizer, found, *, drop=0.1):
    """Of one update, with torch's generator as it is after it."""
    torch.manual_seed(0)
    numpy.random.seed(0)
    with optimizer.training():
        nlp.update(toy_examples(nlp), sgd=False, drop=drop)
    grads = {name: param.grad for name, param in found.module.named_parameters() if param.grad is not None}
    for param in found.module.parameters():
        param.grad = None
    for _, pipe in nlp.pipeline:
        for node in pipe.model.walk():
            for name in node.grad_names:
                node.get_grad(name)[...] = 0
    return grads, torch.get_rng_state()


@pytest.mark.parametrize(
    ("precision", "frozen", "chosen", "again"),
    [
        ("float32", 0, True, [1, 1, 1]),
        ("bf16", 0, True, [1, 1, 1]),
        ("float32", 0, 3, [1, 1, 1]),
        ("float32", 0, 1, [1, 0, 0]),
        ("bf16", 0, 2, [1, 1, 0]),
        ("float32", 1, 1, [0, 1, 0]),
        ("float32", 1, True, [0, 1, 1]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*has no instructions for bfloat16")
def test_checkpointing_gives_the_same_gradients(tmp_path, corpus, kind, precision, frozen, chosen, again):  # noqa: F811
    """To the last bit, with dropout: the same operations on the same numbers. again (list): How often the backward pass
    computes each layer.
    """
    config = config_with(kind, tmp_path, corpus, settings={"precision": precision}, block={"freeze_layers": frozen})
    nlp, optimizer, found = build(config)
    expected, state = gradients(nlp, optimizer, found)
    calls = []
    for i, layer in enumerate(layers_of(found.module)):
        next(layer.children()).register_forward_hook(lambda part, *_, i=i: calls.append((i, part.training)))
    gradients(nlp, optimizer, found)
    once = calls.count((0, True))
    with checkpointing(chosen, found.module):
        calls.clear()
        grads, after = gradients(nlp, optimizer, found)
        assert [calls.count((i, True)) for i in range(LAYERS)] == [once + once * more for more in again]
        calls.clear()
        nlp("Anna likes London .")
        assert calls == [(i, False) for i in range(LAYERS)]
    assert len(expected) > 15 and grads.keys() == expected.keys()
    assert all(torch.equal(grads[name], expected[name]) for name in expected)
    assert torch.equal(after, state)
    calls.clear()
    gradients(nlp, optimizer, found)
    assert calls.count((0, True)) == once
    assert not any("forward" in vars(module) for module in found.module.modules())


def test_checkpointing_of_the_lowest_layers_that_are_trained():
    """Whatever froze the others, and as long as they are frozen."""
    module = torch.nn.Module()
    module.layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(4, 4)) for _ in range(4))
    calls = []
    for i, layer in enumerate(module.layers):
        layer[0].register_forward_pre_hook(lambda *_, i=i: calls.append(i))

    def passes():
        calls.clear()
        output = torch.ones(1, 4)
        for layer in module.layers:
            output = layer(output)
        output.sum().backward()
        return [calls.count(i) for i in range(4)]

    with checkpointing(2, module):
        assert passes() == [2, 2, 1, 1]
        module.layers[0].requires_grad_(False)
        assert passes() == [1, 2, 2, 1]
        module.layers[0].requires_grad_(True)
        assert passes() == [2, 2, 1, 1]
    assert passes() == [1, 1, 1, 1]


def test_forward_functions_of_other_code_stay():
    """What it has put around ours in a run: it goes on with the plain module."""
    module, layer = torch.nn.Module(), torch.nn.Sequential(torch.nn.Linear(4, 4))
    module.layers = torch.nn.ModuleList([layer])
    with checkpointing(1, module):
        layer.forward = theirs = partial(layer.forward)
    assert vars(layer).pop("forward") is theirs
    run_in_parts(layer, 4)
    layer.forward = theirs = partial(layer.forward)
    run_at_once(layer)
    assert vars(layer).pop("forward") is theirs and not runs_in_parts(layer)


def test_checkpointing_of_a_decoder():
    """It keeps the keys of a pass, which are not there twice when layers are computed again."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 2, "vocab_size": 20, "n_positions": 16}
    module = transformers.GPT2Model(transformers.GPT2Config(**sizes)).train()
    assert module.config.use_cache
    inputs = torch.arange(12).reshape(2, 6)
    grads = []
    for chosen in (False, True, 2):
        torch.manual_seed(1)
        with checkpointing(chosen, module):
            module(input_ids=inputs).last_hidden_state.square().sum().backward()
        grads.append([param.grad for param in module.parameters()])
        module.zero_grad()
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(*grads))
    assert "past_key_values" in module.eval()(input_ids=inputs)


# spacy-transformers has no listener that mixes layers.
@pytest.mark.parametrize(
    "kind, weighting", [("spacy", False), ("curated", False), ("curated", True)], indirect=["kind"]
)
def test_frozen_layers_have_nothing(tmp_path, corpus, kind, weighting):  # noqa: F811
    """No gradient, no state, no average; nothing is kept for their backward pass. The other gradients are the same."""
    config = config_with(kind, tmp_path, corpus, weighting=weighting)
    expected, _ = gradients(*build(config))
    config = config_with(kind, tmp_path, corpus, weighting=weighting, block={"freeze_layers": 2})
    nlp, optimizer, found = build(config)
    needed = []
    for layer in layers_of(found.module):
        layer.register_forward_hook(lambda module, args, output: needed.append(output))
    grads, _ = gradients(nlp, optimizer, found)
    outputs = [one[0] if isinstance(one, tuple) else one for one in needed]
    assert [one.grad_fn is not None for one in outputs] == [False, False, True] * (len(outputs) // LAYERS)
    frozen = {name for name in expected if "embeddings" in name or any(f".{i}." in name for i in (0, 1))}
    assert len(frozen) > 20 and grads.keys() == expected.keys() - frozen
    assert all(torch.equal(grads[name], expected[name]) for name in grads)
    with optimizer.training():
        nlp.update(toy_examples(nlp), sgd=False)
        finish_step(nlp, optimizer)
    params = dict(found.module.named_parameters())
    kept = {id(param) for built in optimizer.torch_optimizers.values() for param in built.state}
    averages = averages_in(optimizer)
    kept |= {id(param.source) for param in params_in(optimizer) if averages.tensor_of(param.key) is not None}
    assert not kept & {id(params[name]) for name in frozen} and len(kept) > 20


def test_frozen_layers_inside_of_a_component(tmp_path, corpus):
    """In the names of an NER's params, the number of a part comes before those of layers: ner/tok2vec/0/..."""
    needs("spacy")
    config = config_with("spacy", tmp_path, corpus, names=("ner",))
    model = config["components"].pop("transformer")["model"]
    model |= {"@architectures": "spacy-transformers.Tok2VecTransformer.v3", "pooling": {"@layers": "reduce_mean.v1"}}
    config["components"]["ner"]["model"]["tok2vec"] = model | {"tokenizer_config": {"use_fast": True}}
    config["nlp"]["pipeline"] = ["ner"]
    nlp = init_nlp(config.interpolate())
    names = names_to_freeze(nlp, [], 2)
    assert {name.split("/")[2] for name in names} == {"0"}
    [found] = transformers_of(nlp)
    own = {name.replace(".", "/") for name, _ in found.module.named_parameters()}
    lowest = {name for name in own if "embeddings" in name or any(f"/{i}/" in name for i in (0, 1))}
    assert {next(one for one in own if name.endswith(one)) for name in names} == lowest


def test_frozen_layers_of_deberta_read_nothing_that_is_trained(tmp_path, corpus):
    """Its encoder has a norm of positions, which all layers read, and a convolution above the lowest layer."""
    needs("spacy")
    from transformers import DebertaV2Config, DebertaV2Model

    config = config_with("spacy", tmp_path, corpus, names=("tagger",))
    sizes = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 64}
    positions = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm"}
    settings = DebertaV2Config(**sizes, **positions, vocab_size=80, position_buckets=16, conv_kernel_size=3)
    DebertaV2Model(settings).save_pretrained(tmp_path / "bert")
    config["components"]["transformer"]["model"]["transformer_config"] = {}
    nlp = init_nlp(config.interpolate())
    [found] = transformers_of(nlp)
    trained = {f"transformer/{name.replace('.', '/')}" for name, _ in found.module.named_parameters()}
    trained -= {*names_to_freeze(nlp, [], 2)}
    assert {name.rpartition("/layer/")[2].partition("/")[0] for name in trained} == {"2"}


@pytest.mark.filterwarnings("ignore::thinc_torchopt.errors.TorchOptWarning")
def test_other_frozen_layers_are_not_ignored(tmp_path, corpus, kind):  # noqa: F811
    """As with freeze = true of a group: a state of other params can't be loaded. Rules can train frozen layers."""
    config = config_with(kind, tmp_path, corpus, block={"freeze_layers": 2}, steps=6)
    run(config, tmp_path / "output", crash_at=4)
    _, optimizer, _ = build(config)
    frozen = [param.name for param in params_in(optimizer) if param.group is None]
    optimizer.unfreeze(frozen[:1])
    assert [param.name for param in params_in(optimizer) if param.group is None] == frozen[1:] and len(frozen) > 20
    config["training"]["optimizer"]["fine_tuning"]["freeze_layers"] = 0
    config["training"]["optimizer"]["checkpoint"]["on_config_change"] = "warn"
    with pytest.raises(StateError, match="found it in none"):
        run(config, tmp_path / "output")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention(tmp_path, corpus, kind, attention):  # noqa: F811
    """The same values, but for rounding, with the same params; afterwards all is as before."""
    nlp, optimizer, found = build(config_with(kind, tmp_path, corpus, dropout=0.0))
    module, expected = found.module, gradients(nlp, optimizer, found, drop=0.0)[0]
    saved = nlp.to_bytes()
    count = []
    sdpa = torch.nn.functional.scaled_dot_product_attention
    with pytest.MonkeyPatch.context() as patch, attending(found.shim, attention):
        patch.setattr(
            torch.nn.functional,
            "scaled_dot_product_attention",
            lambda *args, **kw: count.append(1) or sdpa(*args, **kw),
        )
        assert all(a is b for a, b in zip(found.module.parameters(), module.parameters()))
        assert list(found.module.state_dict()) == list(module.state_dict())
        grads = gradients(nlp, optimizer, found, drop=0.0)[0]
        assert bool(count) is (attention == "sdpa")
        assert nlp.to_bytes() == saved
    assert found.module is module and nlp.to_bytes() == saved
    assert grads.keys() == expected.keys()
    # float32 of another order.
    assert all(torch.allclose(grads[name], expected[name], rtol=1e-3, atol=1e-5) for name in expected)


def test_saved_pipelines_are_ordinary(tmp_path, corpus, kind):  # noqa: F811
    """A second run in this process is as the first, and a saved model says nothing of the block."""
    files = []
    for name in ("a", "b"):
        config = config_with(kind, tmp_path, corpus, state=name, block=ALL, steps=4)
        run(config, tmp_path / name)
        files.append(digests(tmp_path / name))
    assert files[0] == files[1]
    nlp = spacy.load(tmp_path / "a" / "model-last")
    module = transformers_of(nlp)[0].module
    assert not getattr(module, "is_gradient_checkpointing", False)
    assert all(param.requires_grad for param in module.parameters())
    if kind == "spacy":
        plain = config_with(kind, tmp_path, corpus, state="plain", steps=4)
        run(plain, tmp_path / "plain")
        one, other = (spacy.load(tmp_path / name / "model-last") for name in ("a", "plain"))
        configs = [transformers_of(found)[0].module.config for found in (one, other)]
        kept = [{k: v for k, v in found.to_dict().items() if k != "_name_or_path"} for found in configs]
        assert kept[0] == kept[1]
        assert configs[0]._attn_implementation == configs[1]._attn_implementation


@pytest.mark.filterwarnings("ignore:.*:thinc_torchopt.errors.NonFiniteGradWarning")
def test_a_rollback_with_all_of_it(tmp_path, corpus, kind):  # noqa: F811
    """The checkpoint's values come into the same params, frozen ones stay."""
    seen = []
    settings = {"rollback_after": 1}
    block = {**ALL, "window_pieces": 16, "max_batch_pieces": 40}
    config = config_with(kind, tmp_path, corpus, block=block, settings=settings)

    @registry.callbacks("test-fine-tuning.Poison.v1")
    def poison():
        return lambda nlp: seen.append(nlp) or nlp

    config["nlp"]["after_pipeline_creation"] = {"@callbacks": "test-fine-tuning.Poison.v1"}
    before, hooks = {}, []

    def act(step):
        [found] = transformers_of(seen[0])
        params = dict(found.module.named_parameters())
        if not before:
            before.update({name: param.detach().clone() for name, param in params.items()})
        if step == 8:
            hooks.append([*params.values()][-3].register_hook(lambda grad: grad * float("nan")))
        elif step == 9:
            hooks.pop().remove()

    with pytest.warns(RollbackWarning, match="Went back to the params of step"):
        run(config, tmp_path / "output", act=act)
    trained = dict(transformers_of(spacy.load(tmp_path / "output" / "model-last"))[0].module.named_parameters())
    assert all(torch.isfinite(param).all() for param in trained.values())
    same = {name for name, param in trained.items() if torch.equal(param, before[name])}
    assert {name for name in same if "pooler" not in name} == {
        name for name in trained if "embeddings" in name or any(f".{i}." in name for i in (0, 1))
    }


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ({"freeze_layers": 4}, "Can't set 'freeze_layers' in [training.optimizer.fine_tuning]: expected at most 3, the "
        "number of layers of 'transformer', found 4."),
        ({"gradient_checkpointing": 4}, "Can't set 'gradient_checkpointing' in [training.optimizer.fine_tuning]: "
        "expected true, or at most 3, the number of layers of 'transformer', found 4."),
        ({"gradient_checkpointing": 2, "freeze_layers": 2}, "Can't set 'gradient_checkpointing' in "
        "[training.optimizer.fine_tuning]: expected true, or at most 1, the number of layers of 'transformer' that are "
        "trained, found 2."),
        ({"attention": "flash_attention_2"}, "Can't set 'attention' in [training.optimizer.fine_tuning]: expected "
        '"eager" or "sdpa", found \'flash_attention_2\'.'),
    ],
)  # fmt: skip
def test_refusals(tmp_path, corpus, kind, block, says):  # noqa: F811
    with pytest.raises(ConfigError) as error:
        build(config_with(kind, tmp_path, corpus, block=block))
    assert str(error.value).startswith(says) and "\n" not in str(error.value)


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("one", [{}, {"freeze_layers": 1}, {"gradient_checkpointing": True}, {"attention": "eager"}])
def test_refuses_a_frozen_transformer(tmp_path, corpus, kind, one, window):  # noqa: F811
    """Nothing of the block is ignored, also beside windows."""
    config = config_with(kind, tmp_path, corpus, block={**one, "window_pieces": window})
    nlp = init_nlp(config.interpolate())
    optimizer = registry.resolve(config.interpolate()["training"], validate=False)["optimizer"]
    with pytest.raises(ConfigError, match="expected a transformer that is trained, found 'transformer'"):
        optimizer.initialize(nlp, exclude=["transformer"])
