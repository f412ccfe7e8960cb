"""The oracle of all tests here: one example at a time, by the layers' own backward passes."""

import math
import re

import numpy
import pytest
import spacy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.ml._character_embed import CharacterEmbed
from spacy.ml.featureextractor import FeatureExtractor
from spacy.ml.staticvectors import StaticVectors
from spacy.pipeline.tagger import DEFAULT_TAGGER_MODEL
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry
from thinc.api import (
    Gelu,
    HashEmbed,
    Linear,
    Logistic,
    Maxout,
    Mish,
    Model,
    Padded,
    ParametricAttention,
    PyTorchWrapper,
    Ragged,
    Relu,
    Softmax_v2,
    chain,
    clone,
    concatenate,
    expand_window,
    list2ragged,
    ragged2list,
    reduce_mean,
    residual,
    with_array,
)

from thinc_torchopt.addons.privacy.book import Book, check_layers, clip_each_example
from thinc_torchopt.addons.privacy.forms import FORMS
from thinc_torchopt.addons.privacy.records import Product, Rows
from thinc_torchopt.core.errors import ConfigError, ParamError
from thinc_torchopt.core.host import forward_of

from ...models import ready_pipeline, toy_examples

# float32 sums of hundreds of terms, in another order, relative to the largest number of a tensor: a few times its
# epsilon of 1.2e-7. Norms are sums of squares, of which products by Gram matrices cancel in part.
CLOSE = 3e-6
WORDS = ["a", "red", "London", "likes", "the", "of", "and", "Anna", "sees", "green", ".", "not", "every", "house"]


def grads_of(nlp):
    """Copies of all gradients of a pipeline, as float64; zeros where there is none."""
    found = {}
    for name, proc in nlp.pipeline:
        for node in proc.model.walk():
            for param in node.param_names:
                grad = node.get_grad(param) if node.has_grad(param) else numpy.zeros_like(node.get_param(param))
                found[name, node.name, node.id, param] = grad.astype("d")
    return found


def clear(nlp):
    for _, proc in nlp.pipeline:
        for node in proc.model.walk():
            for param in node.param_names:
                if node.has_grad(param):
                    node.get_grad(param)[...] = 0.0


def one_at_a_time(nlp, examples, clip, frozen=(), exclude=(), drop=0.0):
    """The norms of the examples, and the sum of their clipped gradients."""
    norms, total = [], {}
    for example in examples:
        clear(nlp)
        numpy.random.seed(0)  # of dropout: the same each time
        nlp.update([example], sgd=False, drop=drop, exclude=exclude)
        found = {key: grad for key, grad in grads_of(nlp).items() if key not in frozen}
        norms.append(math.sqrt(sum((grad**2).sum() for grad in found.values())))
        for key, grad in found.items():
            total[key] = total.get(key, 0.0) + grad * min(1.0, clip / (norms[-1] or 1.0))
    clear(nlp)
    return numpy.array(norms), total


def assert_as_one_at_a_time(nlp, examples, clip=None, drop=0.0):
    norms, _ = one_at_a_time(nlp, examples, 1.0, drop=drop)
    clip = float(numpy.median(norms)) if clip is None else clip  # so that some are clipped, and some are not
    norms, total = one_at_a_time(nlp, examples, clip, drop=drop)
    numpy.random.seed(0)
    found = clip_each_example(nlp, examples, clip, drop=drop)
    numpy.testing.assert_allclose(found, norms, rtol=CLOSE, atol=1e-12)
    grads = grads_of(nlp)
    assert any(grad.any() for grad in grads.values())
    for key, expected in total.items():
        scale = max(abs(expected).max(), 1e-6 * clip)
        assert abs(grads[key] - expected).max() <= CLOSE * scale, key


def shaken(nlp, seed=0):
    """Move all params away from zeros and ones, of which layers are made in part."""
    rng = numpy.random.default_rng(seed)
    for _, proc in nlp.pipeline:
        for node in proc.model.walk():
            for name in node.param_names:
                values = node.get_param(name)
                values += rng.normal(size=values.shape, scale=0.1).astype("f")
    return nlp


def tagged(nlp, lengths):
    words = iter(WORDS * 200)
    examples = []
    for i, length in enumerate(lengths):
        text = [next(words) for _ in range(length + i % 3)][i % 3 :]
        tags = [f"T{(len(word) + i) % 3}" for word in text]
        examples.append(Example.from_dict(Doc(nlp.vocab, words=text), {"tags": tags}))
    return examples


def tagger_of(tok2vec):
    """A tagger whose tok2vec is a model of a test."""

    @registry.architectures("test-privacy.Tok2Vec.v1")
    def make() -> Model:
        return tok2vec

    nlp = spacy.blank("xx")
    model = {"@architectures": "spacy.Tagger.v2", "tok2vec": {"@architectures": "test-privacy.Tok2Vec.v1"}}
    nlp.add_pipe("tagger", config={"model": model})
    return nlp


def embedding(width=8, **changes):
    config = {"@architectures": "spacy.MultiHashEmbed.v2", "width": width, "attrs": ["NORM", "SHAPE"]}
    config |= {"rows": [7, 50], "include_static_vectors": False} | changes
    return registry.resolve({"model": config})["model"]


LAYERS = {
    "maxout, normalized": lambda: with_array(Maxout(8, 8, nP=3, normalize=True, dropout=0.0)),
    "relu": lambda: with_array(with_array(Relu(8, 8))),
    "gelu": lambda: with_array(Gelu(8, 8)),
    "softmax": lambda: with_array(Softmax_v2(8, 8, temperature=2.0)),
    "concatenate": lambda: with_array(chain(concatenate(Linear(4, 8), Linear(4, 8)), Logistic(), Linear(8, 8))),
    "a layer used twice": lambda: with_array(twice(Linear(8, 8))),
    "windows of two": lambda: with_array(chain(expand_window(2), Linear(8, 40)), pad=2),
    "a deep encoder": lambda: with_array(
        clone(residual(chain(expand_window(1), Maxout(8, 24, nP=2, normalize=True, dropout=0.0))), 3), pad=3
    ),
}


def twice(layer):
    return chain(layer, layer)


@settings(max_examples=6)
@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=9), seed=st.integers(0, 99), data=st.data())
@pytest.mark.parametrize("name", LAYERS)
def test_book_each_layer_as_one_at_a_time(name, lengths, seed, data):
    lengths = [*lengths, 3]  # spaCy does nothing without a token
    nlp = tagger_of(chain(embedding(), LAYERS[name]()))
    examples = tagged(nlp, lengths)
    nlp.initialize(lambda: [*examples, *tagged(nlp, [5])])
    assert_as_one_at_a_time(shaken(nlp, seed), [example for example in examples if len(example.reference)])


def tok2vec_with(embed, **settings):
    """spaCy's usual tok2vec, with an embedding layer."""
    encode = {"@architectures": "spacy.MaxoutWindowEncoder.v2", "width": 8, "depth": 2}
    encode |= {"window_size": 1, "maxout_pieces": 2}
    embed = {"@architectures": embed, "width": 8, "include_static_vectors": False, **settings}
    config = {"@architectures": "spacy.Tok2Vec.v2", "embed": embed, "encode": encode}
    return tagger_of(registry.resolve({"model": config})["model"])


@pytest.mark.parametrize("alone", [None, StaticVectors, HashEmbed])
def test_book_vectors_as_one_at_a_time(alone):
    """Alone with dropout, which then is the same for all examples: of columns."""
    if alone is StaticVectors:
        nlp = tagger_of(chain(StaticVectors(8), ragged2list()))
    elif alone:
        ids = chain(FeatureExtractor(["NORM"]), list2ragged())
        nlp = tagger_of(chain(ids, with_array(chain(HashEmbed(8, 50, column=0), Linear(8, 8))), ragged2list()))
    else:
        nlp = tok2vec_with("spacy.MultiHashEmbed.v2", attrs=["NORM"], rows=[50], include_static_vectors=True)
    for i, word in enumerate(WORDS[:9]):  # not the other ones
        nlp.vocab.set_vector(word, numpy.random.default_rng(i).normal(size=5).astype("f"))
    examples = tagged(nlp, [4, 1, 19, 2, 2, 9])
    nlp.initialize(lambda: examples)
    for some in (examples, examples[:1]):
        assert_as_one_at_a_time(shaken(nlp), some, drop=0.5 if alone else 0.0)


def test_book_character_embeddings_count_each_character():
    """spaCy's own gradient counts a character once, however many tokens of a doc have it."""
    nlp = tok2vec_with("spacy.CharacterEmbed.v2", rows=40, nM=4, nC=3, feature="LOWER")
    examples = tagged(nlp, [9, 1])
    nlp.initialize(lambda: examples)
    layer = next(node for node in shaken(nlp).get_pipe("tagger").model.walk() if node.name == "charembed")
    docs = [example.reference for example in examples]
    book = Book(1e9)
    with book.recording(nlp, 2):
        out, backprop = layer.begin_update(docs)
        grads = [numpy.random.default_rng(len(Y)).normal(size=Y.shape).astype("f") for Y in out]
        backprop(grads)
    expected = numpy.zeros_like(layer.get_param("E"))
    for doc, dY in zip(docs, grads):
        for token, row in zip(doc.to_utf8_array(nr_char=3), dY):
            for i, byte in enumerate(token):
                expected[i, byte] += row.reshape(3, 4)[i]
    numpy.testing.assert_allclose(layer.get_grad("E"), expected, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize(
    "components, shared",
    [
        (["tagger", "morphologizer", "senter"], True),
        (["tagger", "senter"], False),  # a morphologizer's own tok2vec has CharacterEmbed: see the tests above
    ],
)
def test_book_pipelines_as_one_at_a_time(components, shared):
    nlp, examples = ready_pipeline(components, shared=shared)
    assert_as_one_at_a_time(shaken(nlp), examples)


@pytest.mark.parametrize("architecture", ["spacy.TextCatReduce.v1", "spacy.TextCatParametricAttention.v1"])
@pytest.mark.parametrize("factory", ["textcat", "textcat_multilabel"])
def test_book_text_categorizers_as_one_at_a_time(architecture, factory):
    model = {"@architectures": architecture, "tok2vec": DEFAULT_TAGGER_MODEL["tok2vec"]}
    model["exclusive_classes"] = factory == "textcat"
    if architecture.endswith("Reduce.v1"):
        model |= {"use_reduce_first": True, "use_reduce_last": True, "use_reduce_max": True, "use_reduce_mean": True}
    nlp = spacy.blank("xx")
    nlp.add_pipe(factory, config={"model": model})
    examples = toy_examples(nlp)
    nlp.initialize(lambda: examples)
    assert_as_one_at_a_time(shaken(nlp), examples)


def test_book_dropout_still_clips():
    nlp, examples = ready_pipeline(["tagger"])
    for example in examples:
        clear(nlp)
        clip_each_example(shaken(nlp), [example], 0.01, drop=0.3)
        norm = math.sqrt(sum((grad**2).sum() for grad in grads_of(nlp).values()))
        assert norm == pytest.approx(0.01, rel=1e-4)  # float32


def test_book_frozen_params_are_out_of_the_norm():
    nlp, examples = ready_pipeline(["tagger", "senter"])
    shaken(nlp)
    hashed = {
        ("tok2vec", node.name, node.id, "E")
        for node in nlp.get_pipe("tok2vec").model.walk()
        if node.name == "hashembed"
    }
    norms, total = one_at_a_time(nlp, examples, 0.5, frozen=hashed, exclude=["senter"])
    book = Book(0.5)
    with book.recording(nlp, len(examples), ["senter"], {(node, name) for _, _, node, name in hashed}):
        nlp.update(examples, sgd=False, drop=0.0, exclude=["senter"])
    numpy.testing.assert_allclose(book.norms, norms, rtol=CLOSE)
    for key, grad in grads_of(nlp).items():
        assert (abs(grad - total.get(key, 0.0)) <= CLOSE * 0.5 * len(examples)).all(), key


def test_book_an_example_that_is_not_finite_counts_for_nothing():
    nlp = tagger_of(chain(embedding(), with_array(Linear(8, 8))))
    examples = tagged(nlp, [4, 3, 6])
    nlp.initialize(lambda: examples)
    shaken(nlp)
    _, expected = one_at_a_time(nlp, examples[:1] + examples[2:], 0.1)
    book = Book(0.1)
    with book.recording(nlp, 3):
        nlp.update(examples, sgd=False, drop=0.0)
        for [found] in book._records.values():
            values = found.terms if hasattr(found, "terms") else found.dY
            values[numpy.flatnonzero(found.rows.owner == 1)[:1]] = numpy.nan
    assert not numpy.isfinite(book.norms[1]) and numpy.isfinite(book.norms[[0, 2]]).all()
    grads = grads_of(nlp)
    for key in expected:
        assert abs(grads[key] - expected[key]).max() <= CLOSE * 0.1, key


def test_book_gradients_in_the_models_stay():
    nlp = tagger_of(chain(embedding(), LAYERS["a deep encoder"]()))
    examples = tagged(nlp, [4, 3, 6, 2])
    nlp.initialize(lambda: examples)
    clip_each_example(nlp, examples, 0.1)
    whole = grads_of(nlp)
    clear(nlp)
    clip_each_example(nlp, examples[:1], 0.1, drop=0.0)
    clip_each_example(nlp, examples[1:], 0.1, drop=0.0)
    for key, grad in grads_of(nlp).items():
        assert abs(grad - whole[key]).max() <= CLOSE * 0.1, key


def test_book_texts_without_tokens():
    """As a batch may be that is drawn at random. thinc's own backward pass of HashEmbed fails."""
    nlp, _ = ready_pipeline(["tagger"])
    vectors = chain(StaticVectors(8, 5).initialize(), ragged2list())
    vectors.set_dim("nO", 8)
    for embed in nlp.get_pipe("tok2vec").model, vectors:
        nlp.get_pipe("tok2vec").model = embed
        assert not clip_each_example(nlp, [Example(nlp.make_doc(""), nlp.make_doc(""))] * 2, 0.1).any()
        assert not any(grad.any() for grad in grads_of(nlp).values())


@pytest.mark.parametrize(("n_rows", "shape"), [(2, (1, 2, 2)), (3, (1, 12, 4))])
def test_book_norms_by_the_smaller_matrices(n_rows, shape, monkeypatch):
    """Of W, or of pairs of rows."""
    made, bmm = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda one, other: made.append(bmm(one, other)) or made[-1])
    X, dY = torch.rand(n_rows, 4), torch.rand(n_rows, 12)
    found = Product(Rows.of([n_rows]), X, dY).norms()
    assert torch.allclose(found, (dY.T @ X).square().sum()) and {tuple(one.shape) for one in made} == {shape}


def test_rows_of_similar_lengths_are_one_matrix():
    """At most a third more rows and four: 6 and 12, but not 13."""
    assert [tuple(index.shape) for index, _ in Rows.of([13, 6, 12]).blocks(torch.device("cpu"))] == [(2, 12), (1, 13)]


# ---------------------------------------------------------------------- what is refused


RAGGED = Ragged(numpy.zeros((2, 8), "f"), numpy.array([1, 1], dtype="i"))
DOCS = [Doc(spacy.blank("xx").vocab)] * 2
PADDED = Padded(numpy.zeros((1, 2, 8), "f"), *(numpy.zeros(2, "i") for _ in range(3)))


@pytest.mark.parametrize(
    ("layer", "X", "expected"),
    [
        (reduce_mean(), RAGGED, "2 parts for a batch of 0 examples"),
        (ParametricAttention(8).initialize(), RAGGED, "2 parts for a batch of 0 examples"),
        (with_array(Linear(8, 8)), RAGGED, "2 parts for a batch of 0 examples"),
        (with_array(Linear(8, 8)), [numpy.zeros((2, 8), "f")], "1 parts for a batch of 0 examples"),
        (with_array(Linear(8, 8)), PADDED, "an input of type Padded"),
        (CharacterEmbed(4, 3).initialize(), DOCS, "2 parts for a batch of 0 examples"),
        (StaticVectors(8, 5).initialize(), DOCS, "2 parts for a batch of 0 examples"),
    ],
)
def test_book_refuses_parts_that_are_not_the_examples(layer, X, expected):
    with pytest.raises(ParamError, match=f"layer '{re.escape(layer.name)}' got {expected}"):
        FORMS[forward_of(layer)](Book(1.0), None, layer, X, True)


@pytest.mark.parametrize("factory", ["ner", "parser"])
def test_book_refuses_transition_based_components(factory):
    nlp, examples = ready_pipeline(["tagger", factory])
    with pytest.raises(ParamError, match=rf"component '{factory}'.*missing features.*frozen_components"):
        clip_each_example(nlp, examples, 1.0)
    clip_each_example(nlp, examples, 1.0, exclude=[factory])


@pytest.mark.parametrize(
    ("layer", "pad", "expected"),
    [
        (lambda: expand_window(2), 1, 2),
        (lambda: chain(expand_window(1), Linear(8, 24), expand_window(1)), 1, 2),
        (lambda: concatenate(expand_window(1), expand_window(2)), 2, None),
        (lambda: chain(concatenate(expand_window(2), expand_window(1)), Linear(8, 64), expand_window(1)), 2, 3),
        (lambda: clone(residual(chain(expand_window(1), Maxout(8, 24))), 3), 3, None),
        (lambda: with_array(expand_window(1)), 1, None),  # the padding of the outer one counts
        (lambda: Linear(8, 8), 0, None),
    ],
)
def test_book_check_finds_windows_that_are_too_wide(layer, pad, expected):
    nlp = tagger_of(chain(embedding(), with_array(layer(), pad=pad)))
    if expected is None:
        check_layers(nlp)
    else:
        with pytest.raises(ParamError, match=f"expected padding of at least {expected} rows, found {pad}"):
            check_layers(nlp)


@pytest.mark.parametrize(
    "layer, expected",
    [
        (lambda: PyTorchWrapper(torch.nn.Linear(8, 8)), r"does not support layer 'pytorch'.*pytorchwrapper"),
        (lambda: Mish(8, 8), r"does not support layer 'mish'"),
        (
            lambda: chain(expand_window(2), Linear(8, 40)),
            r"layer 'expand_window' mixes tokens.*at least 2 rows, found 1",
        ),
        (
            lambda: chain(expand_window(1), Linear(8, 24), expand_window(1), Linear(8, 24)),
            r"layer 'expand_window' mixes tokens.*at least 1 rows, found 0",
        ),
    ],
)
def test_book_refuses_layers_that_mix_examples_or_have_no_form(layer, expected):
    nlp = tagger_of(chain(embedding(), with_array(layer(), pad=1)))
    examples = tagged(nlp, [4, 3, 6])
    nlp.initialize(lambda: examples)
    shaken(nlp)
    with pytest.raises(ParamError, match=expected):
        clip_each_example(nlp, examples, 1.0)
    clear(nlp)
    nlp.update(examples, sgd=False)  # its own forward functions are back
    assert any(grad.any() for grad in grads_of(nlp).values())


def test_book_refuses_rows_that_are_of_no_example():
    book, layer = Book(1.0), Linear(8, 8)
    with pytest.raises(ParamError, match=r"layer 'linear' gets rows \(ndarray\), and it is not known which"):
        book.rows_of(layer, numpy.zeros((4, 8)))


@pytest.mark.parametrize("clip", [0.0, "1.0"])
def test_clip_each_example_refuses_a_clip(clip):
    with pytest.raises(ConfigError, match=r"'clip'.*above 0"):
        clip_each_example(spacy.blank("xx"), [], clip)
