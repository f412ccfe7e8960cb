import re
from pathlib import Path

import numpy
import pytest
import spacy
import srsly
import torch
from confection import Config
from hypothesis import given
from hypothesis import strategies as st
from spacy.ml.staticvectors import StaticVectors
from thinc.api import (
    LayerNorm,
    Linear,
    Maxout,
    Model,
    PyTorchShim,
    PyTorchWrapper,
    Shim,
    chain,
    clone,
    concatenate,
    residual,
)
from torch.nn.utils import parametrizations, parametrize, prune

from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.params.names import Pattern, clean, escape, shim_paths, torch_params, unescape, walk
from thinc_torchopt.core.params.pipeline import all_names
from thinc_torchopt.core.settings.cascade import layers_of

from ...forks import python
from ...models import TOK2VEC, ready_pipeline

COMPONENTS = ["tagger", "morphologizer", "parser", "ner", "senter", "textcat", "textcat_multilabel", "spancat"]
ALLOWED = re.compile(r"[A-Za-z0-9_+/-]+")


def names_of(nlp):
    return [
        (param.name, type(param.owner).__name__)
        for name, proc in nlp.pipeline
        if hasattr(proc, "model")
        for param in walk(proc.model, name)
    ]


def big_pipeline():
    return ready_pipeline(COMPONENTS, shared=False)[0]


def test_names_of_torch_modules_are_torchs_with_slashes():
    module = torch.nn.ModuleDict({"encoder": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))})
    root = Model("transformer", lambda model, X, is_train: (X, lambda dY: dY), layers=[PyTorchWrapper(module)])
    expected = [f"transformer/encoder/{layer}/{name}" for layer in (0, 1) for name in ("weight", "bias")]
    assert [param.name for param in walk(root, "transformer")] == expected


def test_names_are_unique_and_survive_a_config():
    names = [name for name, _ in names_of(big_pipeline())]
    assert len(names) > 100 and len(set(names)) == len(names)
    assert all(ALLOWED.fullmatch(name) for name in names)
    config = Config({"training": {"rates": {name: {"learn_rate": 0.1} for name in names}}})
    assert Config().from_str(config.to_str()) == config


def test_names_are_the_same_after_save_and_load_and_in_another_process(tmp_path):
    nlp = big_pipeline()
    nlp.to_disk(tmp_path / "model")
    expected = names_of(nlp)
    assert names_of(spacy.load(tmp_path / "model")) == expected
    code = (
        "import sys, spacy; from thinc.api import Linear; [Linear(2, 2) for _ in range(7)]; from "
        "thinc_torchopt.core.params.names import walk;"
        "nlp = spacy.load(sys.argv[1]); print('\\n'.join(p.name for n, q in nlp.pipeline for p in walk(q.model, n)))"
    )
    printed = python(code, tmp_path / "model").stdout
    assert printed.split() == [name for name, _ in expected]


LAYERS = st.recursive(
    st.sampled_from(["linear", "maxout", "norm", "torch"]),
    lambda inner: st.tuples(
        st.sampled_from(["chain", "concatenate", "residual", "clone", "odd name: a.b"]),
        st.lists(inner, min_size=1, max_size=4),
    ),
    max_leaves=12,
)


def build(spec):
    leaves = {
        "linear": lambda: Linear(2, 2),
        "maxout": lambda: Maxout(2, 2, nP=2),
        "norm": lambda: LayerNorm(2),
        "torch": lambda: PyTorchWrapper(torch.nn.Linear(2, 2)),
    }
    if isinstance(spec, str):
        return leaves[spec]()
    kind, inner = spec[0], [build(layer) for layer in spec[1]]
    if kind == "residual":
        return residual(inner[0])
    if kind == "clone":
        return clone(inner[0], 2)
    if kind == "odd name: a.b":
        return Model(
            kind, lambda model, X, is_train: (X, lambda dY: dY), layers=inner, params={"W x": numpy.zeros(2, dtype="f")}
        )
    return {"chain": chain, "concatenate": concatenate}[kind](*inner) if len(inner) > 1 else inner[0]


@given(LAYERS)
def test_names_of_any_model_are_unique_lasting_and_complete(spec):
    first, second = build(spec), build(spec)
    names = [param.name for param in walk(first, "my pipe.v2")]
    assert names == [param.name for param in walk(second, "my pipe.v2")]
    assert len(set(names)) == len(names)
    assert all(ALLOWED.fullmatch(name) and name.startswith("my_pipe_v2/") for name in names)
    count = sum(len(node.param_names) + sum(2 for _ in node.shims) for node in first.walk())
    assert len(names) == count


def test_names_of_shims_have_an_index_where_a_node_has_several():
    """Of torch params, a module in a shim of another kind has none that we know."""
    shims = [Shim(torch.nn.Linear(2, 2)), PyTorchShim(None)]
    pair = Model("pair", lambda model, X, is_train: (X, lambda dY: dY), shims=shims)
    model = chain(Linear(2, 2), PyTorchWrapper(torch.nn.Linear(2, 2)), pair)
    assert [path for path, _ in shim_paths(model, "m")] == ["m/pytorch", "m/pair/0", "m/pair/1"]
    assert walk(pair, "m") == []


def test_names_of_layers_with_a_ref_have_no_index_unless_they_need_one():
    parts = [chain(Linear(2, 2), Linear(2, 2)) for _ in range(2)]
    for part in parts:
        part.set_ref("output_layer", part.layers[1])
    names = {param.name for param in walk(chain(*parts), "7") if param.name.endswith("W")}
    assert names == {"7/0/linear-0/W", "7/output_layer/W", "7/1/linear-0/W", "7/1/output_layer/W"}
    assert len(walk(chain(parts[0], *parts[0].layers), "7")) == 4  # each layer once


def test_names_clean():
    assert clean("a.b c:d") == "a_b_c_d" and clean("x-1_y+z") == "x-1_y+z" and clean("") == "_"


ODD = ["ä", "ö", "x y", "x_y", "a/b", "a.b", "😀", "", "_", "+", "++", "+e4+", "c++", "a+b+c", "tok2vec-1"]


def test_names_of_components_are_escaped_so_that_different_ones_stay_different():
    assert escape("ä") == "+e4+" and escape("x y") == "x+20+y" and escape("😀") == "+1f600+"
    for plain in ("tagger", "x_y", "tok2vec-1", "c++", "a+b+c", "+"):
        assert escape(plain) == plain
    assert len(set(map(escape, ODD))) == len(ODD)
    nlp = spacy.blank("xx")
    built = [name for name in ODD if "." not in name]  # spaCy itself can't initialize a pipeline with such a component
    for name in built:
        nlp.add_pipe("tagger", name=name).add_label("A")
    nlp.initialize()
    names = all_names(nlp)
    assert all(ALLOWED.fullmatch(name) for name in names) and len(set(names)) == len(names)
    assert [unescape(part) for part in dict.fromkeys(name.partition("/")[0] for name in names)] == built


def test_names_of_torch_params_are_escaped_so_that_order_does_not_matter():
    """A module for each label. The same names in every process, whatever comes first, or before one that was there."""

    def names(labels):
        heads = torch.nn.ModuleDict({label: torch.nn.Linear(2, 1, bias=False) for label in labels})
        named = {id(head.weight): label for label, head in heads.items()}
        return {named[id(found.param)]: found.name for found in walk(PyTorchWrapper(heads), "heads")}

    labels = ["人物", "地点", "x y", "x:y", "x_y", "plain", "ä"]
    found = names(labels)
    assert found == names(labels[::-1]) and found.items() >= names(labels[2:]).items()
    assert found["plain"] == "heads/plain/weight" and found["x y"] == "heads/x+20+y/weight"
    assert all(map(ALLOWED.fullmatch, found.values()))
    for label, name in found.items():
        assert [one for one in found.values() if Pattern(f"heads/{label}/*", "[here]")(one)] == [name]


@given(st.text() | st.text("+0e4_ä"))
def test_names_of_components_can_be_read_back(name):
    assert unescape(escape(name)) == name
    assert ALLOWED.fullmatch(escape(name)) and "/" not in escape(name)


def test_names_patterns_know_components_as_users_call_them():
    name = "x+20+y/output/W"
    for text in ("x y/*", "x+20+y/*", "x ?/*/W", "re:^x y/", "re:^x.20"):
        assert Pattern(text, "[here]")(name)
    assert not Pattern("x_y/*", "[here]")(name) and not Pattern("x y/*", "[here]")("x_y/output/W")


def test_names_patterns_are_globs_and_regular_expressions_and_name_what_matches_nothing():
    names = ["ner/output/W", "ner/output/b", "tagger/output/W", "ner/layer/11/W"]
    assert [name for name in names if Pattern("*/b", "[here]")(name)] == ["ner/output/b"]
    assert [name for name in names if Pattern("re:^ner/.*W$", "[here]")(name)] == ["ner/output/W", "ner/layer/11/W"]
    assert not Pattern("ner", "[here]")(names[0]) and Pattern("re:ner", "[here]")(names[0])
    Pattern("ner/*", "[here]").check(names)
    says = (
        r"'nre/\*' in \[here\]: it matches none of 4 params.*Did you mean 'ner/\*'\? List them: spacy torchopt params"
    )
    with pytest.raises(ConfigError, match=says):
        Pattern("nre/*", "[here]").check(names)
    with pytest.raises(ConfigError, match=r"'re:\(' in \[here\]: expected a valid regular expression after 're:'"):
        Pattern("re:(", "[here]")


def test_names_tell_layers_biases_and_norms_of_real_models():
    nlp, _ = ready_pipeline(["tagger"])
    walked = [*walk(nlp.get_pipe("tok2vec").model, "tok2vec"), *walk(nlp.get_pipe("tagger").model, "tagger")]
    layers = layers_of([found.name for found in walked])
    assert {name.split("/")[2] for name, (layer, _) in layers.items() if layer == 1} == {"1"}
    assert {layer for name, (layer, _) in layers.items() if "embed" in name} == {0}
    assert {depth for _, depth in layers.values()} == {TOK2VEC["depth"]}
    kinds = {(found.name.rpartition("/")[2], found.is_bias_or_norm, found.is_embedding) for found in walked}
    assert kinds == {("b", True, False), ("G", True, False), ("E", False, True), ("W", False, False)}
    assert [found.is_embedding for found in walk(StaticVectors(nO=2, nM=2), "m")] == [True]


class Twice(torch.nn.Module):
    def forward(self, values):
        return values * 2


def test_names_tell_parametrized_and_pruned_params_by_what_they_are():
    plain = [torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Embedding(4, 4)]
    others = [torch.nn.BatchNorm1d(4), torch.nn.LSTM(4, 4), torch.nn.MultiheadAttention(4, 2)]
    module = torch.nn.Sequential(*plain, torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 4), *others)
    for layer, name in ((0, "bias"), (0, "weight"), (1, "weight"), (2, "weight")):
        parametrize.register_parametrization(module[layer], name, Twice())
    for layer, name in ((3, "bias"), (3, "weight"), (4, "weight")):
        prune.random_unstructured(module[layer], name, 0.5)
    parametrizations.weight_norm(module[5])
    walked = walk(PyTorchWrapper(module), "m")
    expected = {"0/parametrizations/bias/original", "1/parametrizations/weight/original", "1/bias"}
    expected |= {"3/bias_orig", "4/weight_orig", "4/bias", "5/bias", "6/weight", "6/bias"}
    expected |= {"7/bias_ih_l0", "7/bias_hh_l0", "8/in_proj_bias", "8/out_proj/bias"}
    assert {found.name for found in walked if found.is_bias_or_norm} == {f"m/{name}" for name in expected}
    assert [found.name for found in walked if found.is_embedding] == ["m/2/parametrizations/weight/original"]


class T5LayerNorm(torch.nn.Module):
    """A norm of somebody's own, with one weight."""

    def __init__(self, width=4):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))


def named(**parts):
    """A torch module of given parts: modules, params, and lists of modules."""
    module = torch.nn.Module()
    for name, part in parts.items():
        setattr(module, name, torch.nn.ModuleList(part) if isinstance(part, list) else part)
    return module


def attention(*names, **more):
    return named(**{name: torch.nn.Linear(4, 4, bias=False) for name in names}, **more)


def gpt2():
    layers = [
        named(ln_1=torch.nn.LayerNorm(4), attn=attention("c_attn", "c_proj"), mlp=attention("c_fc")) for _ in range(3)
    ]
    return named(wte=torch.nn.Embedding(9, 4), wpe=torch.nn.Embedding(5, 4), h=layers, ln_f=torch.nn.LayerNorm(4))


def t5():
    shared = torch.nn.Embedding(9, 4)

    def stack(n_layers, *kinds):
        def block(i):
            biases = {"relative_attention_bias": torch.nn.Embedding(6, 2)} if i == 0 else {}
            parts = [named(SelfAttention=attention("q", "k", "v", "o", **biases), layer_norm=T5LayerNorm())]
            parts += [named(EncDecAttention=attention("q", "k", "v", "o"), layer_norm=T5LayerNorm()) for kind in kinds]
            parts.append(named(DenseReluDense=attention("wi", "wo"), layer_norm=T5LayerNorm()))
            return named(layer=parts)

        return named(embed_tokens=shared, block=[block(i) for i in range(n_layers)], final_layer_norm=T5LayerNorm())

    return named(shared=shared, encoder=stack(4), decoder=stack(2, "cross"))


def bart():
    def stack(*more):
        layers = [
            named(self_attn=attention("k_proj", "q_proj"), **{name: attention("k_proj") for name in more})
            for _ in range(3)
        ]
        return named(embed_positions=torch.nn.Embedding(5, 4), layers=layers)

    return named(shared=torch.nn.Embedding(9, 4), encoder=stack(), decoder=stack("encoder_attn"))


def vit():
    """With the names of timm's: none of its embeddings is a layer of torch's for that, and one has no "embed" in its
    name.
    """
    blocks = [named(norm1=torch.nn.LayerNorm(4), attn=attention("qkv", "proj")) for _ in range(2)]
    cls_token, pos_embed = torch.nn.Parameter(torch.zeros(1, 1, 4)), torch.nn.Parameter(torch.zeros(1, 5, 4))
    patch_embed = named(proj=torch.nn.Conv2d(3, 4, 2))
    return named(
        cls_token=cls_token, pos_embed=pos_embed, patch_embed=patch_embed, blocks=blocks, head=torch.nn.Linear(4, 2)
    )


def bert():
    embeddings = named(word_embeddings=torch.nn.Embedding(9, 4), LayerNorm=torch.nn.LayerNorm(4))
    layers = [named(attention=attention("query"), output=attention("dense")) for _ in range(3)]
    classifier = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    return named(embeddings=embeddings, encoder=named(layer=layers), classifier=classifier)


def deberta():
    layers = [named(attention=attention("query_proj"), output=attention("dense")) for _ in range(3)]
    conv = named(conv=torch.nn.Conv1d(4, 4, 3), LayerNorm=torch.nn.LayerNorm(4))
    positions = {"rel_embeddings": torch.nn.Embedding(9, 4), "LayerNorm": torch.nn.LayerNorm(4)}
    return named(encoder=named(layer=layers, conv=conv, **positions), pooler=torch.nn.Linear(4, 4))


MODELS = srsly.read_yaml(Path(__file__).with_name("names.yaml"))["layers"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("component", ["trf", "embedder"])
def test_names_tell_layers_of_transformers_by_what_they_are(model, component):
    walked = list(walk(PyTorchWrapper(globals()[model]()), component))
    names = [*(param.name for param in walked), "ner/lower/W"]  # of a component without layers
    found = layers_of(names, {param.name for param in walked if param.is_embedding})
    assert "ner/lower/W" not in found
    assert {name: [*found[f"{component}/{name}"]] for name in MODELS[model]} == MODELS[model]


def test_names_tell_embeddings_of_torch_modules_by_what_they_are():
    """Tied ones under all names; of other params, single vectors beside a stack of layers."""
    tied, table = torch.nn.Linear(4, 9, bias=False), torch.nn.Embedding(9, 4)
    tied.weight = table.weight
    shapes = {"token": (1, 1, 4), "positions": (1, 5, 4), "two": (2, 1, 4), "matrix": (1, 4), "scale": (4,)}
    others = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
    model = PyTorchWrapper(
        named(tied=tied, table=table, conv=torch.nn.Conv1d(5, 1, 3), layers=[torch.nn.Linear(4, 4)], **others)
    )
    found = {param.name for param in walk(model, "m") if param.is_embedding}
    assert found == {"m/tied/weight", "m/table/weight", "m/token", "m/positions"}
    assert len(dict(torch_params(model.shims[0]))) == len(walk(model, "m")) - 1  # each once


def test_names_tell_matrices_of_biases_from_biases():
    table = torch.nn.Parameter(torch.zeros(9, 2))  # Swin's; XLNet's r_w_bias is such a matrix too
    swin = named(
        attn=named(relative_position_bias_table=table, bias=torch.nn.Parameter(torch.zeros(4))),
        norm=torch.nn.LayerNorm((2, 4)),
    )
    mpnet = named(relative_attention_bias=torch.nn.Embedding(9, 2))
    module = named(
        swin=swin, mpnet=mpnet, both=torch.nn.MultiheadAttention(4, 2, add_bias_kv=True), lazy=torch.nn.LazyLinear(3)
    )
    decayed = {param.name for param in walk(PyTorchWrapper(module), "m") if not param.is_bias_or_norm}
    weights = {"both/in_proj_weight", "both/out_proj/weight", "lazy/weight"}
    assert decayed == {
        f"m/{name}"
        for name in {"swin/attn/relative_position_bias_table", "mpnet/relative_attention_bias/weight"} | weights
    }
    # thinc's maxout has biases of two dimensions.
    maxout = Maxout(4, 3, nP=2).initialize()
    assert maxout.get_param("b").ndim == 2 and {p.name: p.is_bias_or_norm for p in walk(maxout, "m")} == {
        "m/W": False,
        "m/b": True,
    }
