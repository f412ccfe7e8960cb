"""Labels for components that are trained already. The oracle for predictions is spaCy: what the same pipeline predicted
before, and what it predicts when it is loaded without this package. For states: what torch kept before.
"""

import copy
import math
import re

import numpy
import pytest
import spacy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Linear, PyTorchWrapper, chain, list2ragged, reduce_mean

from thinc_torchopt import Adam, TorchOptimizer, add_labels
from thinc_torchopt.core.algorithms.torch_classes import Adafactor, AdamW
from thinc_torchopt.core.averages import EMA
from thinc_torchopt.core.errors import ConfigError, ConfigTypeError, GrowthWarning, PipelineError
from thinc_torchopt.core.labels.add_labels import layer_of_transitions

from ...forks import python
from ...models import TOK2VEC, optimizer_for

TAGGER = {"model": {"tok2vec": TOK2VEC}}
SPANS = TAGGER | {"suggester": {"@misc": "spacy.ngram_suggester.v1", "sizes": [1, 2]}}


def bow(version, exclusive, **changes):
    return {
        "@architectures": f"spacy.TextCatBOW.v{version}",
        "exclusive_classes": exclusive,
        "ngram_size": 1,
        "no_output_layer": False,
        **changes,
        **({"length": 4096} if version == 3 else {}),
    }


def heads(exclusive):
    """All of spaCy's text classifiers."""
    ensemble = {"@architectures": "spacy.TextCatEnsemble.v2", "tok2vec": TOK2VEC}
    of_tok2vec = {"tok2vec": TOK2VEC, "exclusive_classes": exclusive}
    reductions = {f"use_reduce_{name}": True for name in ("first", "last", "max", "mean")}
    return {
        "bow1": bow(1, exclusive),
        "bow2": bow(2, exclusive),
        "bow3": bow(3, exclusive),
        "bow-scores": bow(3, exclusive, no_output_layer=True),
        "ensemble": ensemble | {"linear_model": bow(3, exclusive)},
        "ensemble-scores": ensemble | {"linear_model": bow(3, exclusive, no_output_layer=True)},
        "cnn1": {"@architectures": "spacy.TextCatCNN.v1"} | of_tok2vec,
        "cnn2": {"@architectures": "spacy.TextCatCNN.v2"} | of_tok2vec,
        "reduce": {"@architectures": "spacy.TextCatReduce.v1"} | of_tok2vec | reductions,
        "attention": {"@architectures": "spacy.TextCatParametricAttention.v1"} | of_tok2vec,
    }


CASES = {
    "ner": ("ner", TAGGER),
    "ner-one-layer": ("ner", {"model": {"tok2vec": TOK2VEC, "use_upper": False}}),
    "parser": ("parser", TAGGER | {"min_action_freq": 1}),
    "tagger": ("tagger", TAGGER),
    "morphologizer": ("morphologizer", TAGGER),
    "lemmatizer": ("trainable_lemmatizer", TAGGER | {"min_tree_freq": 1}),
    "spancat": ("spancat", SPANS),
    "spancat_singlelabel": ("spancat_singlelabel", SPANS),
    **{f"textcat-{head}": ("textcat", {"model": model}) for head, model in heads(True).items()},
    **{f"multilabel-{head}": ("textcat_multilabel", {"model": model}) for head, model in heads(False).items()},
}
NEW = {"morphologizer": ["Foo=Bar|POS=NOUN", "POS=X"], "lemmatizer": [("mice", "mouse"), ("went", "go")]}
TEXTS = ["Anna likes red London .", "x y z", "London", "red red blue", "likes . Anna", "Anna"]


def new_labels(case):
    return NEW.get(case, ["NEW", "B-2"])


def examples_of(nlp, n=6, *, new=()):
    """Sentences with all kinds of annotation. new (Sequence): New labels, of which every third text has the first."""
    found = []
    for i in range(n):
        words = ["Anna", "likes", "red" if i % 2 else "blue", "London", "."]
        gold = {
            "tags": ["NNP", "VBZ", "JJ", "NNP", "."],
            "morphs": ["Number=Sing", "Tense=Pres", "", "Number=Sing", ""],
            "pos": ["PROPN", "VERB", "ADJ", "PROPN", "PUNCT"],
            "lemmas": ["Anna", "like", words[2], "London", "."],
            "spans": {"sc": [(0, 4, "X"), (5, 10, "Y")]},
            "heads": [1, 1, 3, 1, 1],
            "deps": ["nsubj", "ROOT", "amod", "dobj", "punct"],
            "entities": ["U-PERSON", "O", "O", "U-CITY", "O"],
            "cats": {"RED": float(i % 2), "BLUE": float(1 - i % 2), **dict.fromkeys(new[:1], 0.0)},
        }
        if new and i % 3 == 0:
            words[3], at, label = "mice", 12 + len(words[2]), new[0] if isinstance(new[0], str) else "NEW"
            gold |= {
                "tags": ["NNP", "VBZ", "JJ", label, "."],
                "morphs": ["Number=Sing", "Tense=Pres", "", "Foo=Bar", ""],
                "pos": ["PROPN", "VERB", "ADJ", "NOUN", "PUNCT"],
                "lemmas": ["Anna", "like", words[2], "mouse", "."],
                "spans": {"sc": [(0, 4, "X"), (5, 10, "Y"), (at, at + 4, label)]},
                "deps": ["nsubj", "ROOT", "amod", label, "punct"],
                "entities": ["U-PERSON", "O", "O", f"U-{label}", "O"],
                "cats": {"RED": 0.0, "BLUE": 0.0, label: 1.0},
            }
        found.append(Example.from_dict(Doc(nlp.vocab, words=words), gold))
    return found


def trained(case, steps=12, optimizer=None):
    """A pipeline of one component after some updates."""
    component, config = CASES[case]
    nlp = spacy.blank("xx")
    nlp.add_pipe(component, config=copy.deepcopy(config))
    examples = examples_of(nlp)
    nlp.initialize(lambda: examples)
    optimizer = nlp.create_optimizer() if optimizer is None else optimizer
    if isinstance(optimizer, TorchOptimizer):
        optimizer.initialize(nlp)
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp, component, examples


def predicted(nlp):
    """All predictions, and the probabilities of text categories."""
    docs = list(nlp.pipe(TEXTS))
    spans = [[(span.start, span.end, span.label_) for span in doc.spans.get("sc", ())] for doc in docs]
    return [doc.to_json(underscore=[]) | {"cats": None, "spans": found} for doc, found in zip(docs, spans)], [
        doc.cats for doc in docs
    ]


# ---------------------------------------------------------------------- predictions


@pytest.mark.parametrize("case", CASES)
def test_add_labels_old_predictions_stay(case, tmp_path):
    nlp, name, _ = trained(case)
    before, cats = predicted(nlp)
    old = list(nlp.get_pipe(name).labels)
    assert add_labels(nlp, name, new_labels(case)) == new_labels(case)
    assert add_labels(nlp, name, new_labels(case)) == []  # it has them
    labels = list(nlp.get_pipe(name).labels)
    if name in ("ner", "parser"):  # spaCy sorts them
        assert set(labels) == {*old, "NEW", "B-2"}
    else:
        assert labels[: len(old)] == old and len(labels) == len(old) + 2
    after, new_cats = predicted(nlp)
    assert after == before
    for text, found in zip(cats, new_cats):
        if name == "textcat_multilabel" or case.endswith("bow-scores"):
            assert {label: found[label] for label in text} == text  # to the bit: no score depends on another
            # An ensemble adds a little of the score that its bag of words gives the label.
            begins = pytest.approx(0.05, rel=0.05)
            assert case.endswith("-scores") or (found["NEW"] == begins and found["B-2"] == begins)
        elif text and sum(text.values()):
            assert max(found, key=found.get) == max(text, key=text.get)
            # Each new label has at most a tenth of the average probability of the two old ones; in an ensemble it takes
            # as much from the scores of the bag of words, which go through a softmax too.
            assert all(abs(found[label] - text[label]) < 0.1 for label in text)
            assert all(found[label] < 0.05 for label in ("NEW", "B-2"))
    for node in nlp.get_pipe(name).model.walk():
        if node.has_param("W") and node.get_param("W").ndim == 2:  # which sizes the weights, if they begin again
            assert node.get_param("W").shape == (node.get_dim("nO"), node.get_dim("nI"))
    nlp.to_disk(tmp_path / "model")
    loaded = spacy.load(tmp_path / "model")
    assert list(loaded.get_pipe(name).labels) == labels and predicted(loaded) == (after, new_cats)
    assert loaded.get_pipe(name).label_data == nlp.get_pipe(name).label_data


@pytest.mark.parametrize("case", ["ner", "ner-one-layer", "parser"])
def test_add_labels_begins_transitions_as_the_mean_of_their_action(case):
    """With a tenth of its probability."""
    nlp, name, _ = trained(case, 3)
    pipe = nlp.get_pipe(name)
    n = layer_of_transitions(pipe).get_dim("nO")
    add_labels(nlp, name, ["NEW"])
    layer, rows = layer_of_transitions(pipe), (lambda weights: weights) if case != "ner-one-layer" else numpy.hstack
    weights, bias = rows(layer.get_param("W")), layer.get_param("b")
    actions = [pipe.moves.get_class_name(i).split("-")[0] for i in range(len(bias))]
    new = {i: [j for j in range(n) if actions[j] == actions[i]] for i in range(n, len(bias))}
    assert any(map(bool, new.values()))
    for i, same in new.items():
        if same:
            numpy.testing.assert_allclose(bias[i], bias[same].mean(axis=0) - math.log(10), rtol=1e-5)
            numpy.testing.assert_allclose(weights[i], weights[same].mean(axis=0), rtol=1e-4, atol=1e-6)


def test_add_labels_begins_below_a_low_threshold():
    nlp, name, _ = trained("multilabel-cnn2", 1)
    nlp.get_pipe(name).cfg["threshold"] = 0.02
    add_labels(nlp, name, ["NEW"])
    assert nlp(TEXTS[0]).cats["NEW"] == pytest.approx(0.01)


def test_add_labels_loads_without_this_package(tmp_path):
    """In a process that can't import it. Each pipeline has learned its new label."""
    cases = ["ner", "parser", "tagger", "morphologizer", "lemmatizer", "spancat_singlelabel", "textcat-ensemble"]
    expected = []
    for case in cases:
        nlp, name, _ = trained(case)
        add_labels(nlp, name, new_labels(case))
        sgd = nlp.create_optimizer()
        for _ in range(3):
            nlp.update(examples_of(nlp, new=new_labels(case)), sgd=sgd)
        nlp.to_disk(tmp_path / case)
        expected.append(repr([(doc.to_json(), doc.cats) for doc in nlp.pipe(TEXTS)]))
    code = (
        "import sys; sys.modules['thinc_torchopt'] = None; import spacy\n"
        f"for case in {cases}:\n"
        f"    nlp = spacy.load({str(tmp_path)!r} + '/' + case)\n"
        f"    print(repr([(doc.to_json(), doc.cats) for doc in nlp.pipe({TEXTS})]))\n"
    )
    run = python(code)
    assert run.stdout.splitlines() == expected


@pytest.mark.parametrize(
    "case",
    [
        *("ner", "ner-one-layer", "parser", "tagger", "morphologizer", "lemmatizer", "spancat", "spancat_singlelabel"),
        *("textcat-bow1", "textcat-bow3", "textcat-ensemble"),
        *("multilabel-bow3", "multilabel-ensemble", "multilabel-cnn2"),
    ],
)
def test_add_labels_the_new_label_is_learned(case):
    """And the old ones, from texts with all of them. SparseLinear.v1 keeps the weights of all labels in one place."""
    nlp, name, _ = trained(case)
    new = new_labels(case)
    add_labels(nlp, name, new)
    optimizer = optimizer_for(nlp, AdamW(), 0.02)
    examples = examples_of(nlp, new=new)
    for _ in range(30):
        nlp.update(examples, sgd=optimizer)
    scores = nlp.evaluate(examples := examples_of(nlp, new=new))
    main = {
        "ner": "ents_f", "parser": "dep_las", "tagger": "tag_acc", "morphologizer": "pos_acc", "spancat": "spans_sc_f",
        "trainable_lemmatizer": "lemma_acc", "spancat_singlelabel": "spans_sc_f",
    }.get(name, "cats_score")  # fmt: skip
    if name.startswith("textcat"):
        docs = nlp.pipe([one.predicted for one in examples])
        found = [max(doc.cats, key=doc.cats.get) for doc in docs]
        gold = [max(one.reference.cats, key=one.reference.cats.get) for one in examples]
        scores["cats_score"] = float(found == gold)
    assert scores[main] > 0.99, scores


@settings(max_examples=12, deadline=None)
@given(
    labels=st.lists(
        st.text(st.characters(categories=["Lu", "Ll", "Lo"]), min_size=1, max_size=4), min_size=1, max_size=5
    ),
    cut=st.integers(0, 5),
    case=st.sampled_from(["tagger", "ner", "spancat_singlelabel", "textcat-ensemble", "multilabel-cnn2"]),
)
def test_add_labels_sets_and_orders(labels, cut, case):
    """At once, or in two calls, some twice: each label is there once, in the order of its first mention, and old ones
    are predicted as before.
    """
    nlp, name, _ = PIPELINES.setdefault(case, trained(case))
    nlp = copy_of(nlp, case)
    before, _ = predicted(nlp)
    old = list(nlp.get_pipe(name).labels)
    added = [*add_labels(nlp, name, labels[:cut]), *add_labels(nlp, name, labels[cut:])]
    assert added == [label for label in dict.fromkeys(labels) if label not in old]
    found = list(nlp.get_pipe(name).labels)
    assert found == (sorted([*old, *added]) if name == "ner" else [*old, *added])
    assert predicted(nlp)[0] == before
    assert predicted(copy_of(nlp, case)) == predicted(nlp)


PIPELINES = {}


def copy_of(nlp, case):
    component, config = CASES[case]
    made = spacy.blank("xx")
    made.add_pipe(component, config=copy.deepcopy(config))
    return made.from_bytes(nlp.to_bytes())


# ---------------------------------------------------------------------- the state of an optimizer


def moments(optimizer):
    inner = optimizer.torch_optimizers["algorithm"]
    return {
        name: {key: value.clone() for key, value in inner.state[param].items() if torch.is_tensor(value)}
        for name, param in optimizer.params.items()
    }


def old_part(case, name, tensor, shape):
    """The cells that a param had before, of 2 labels and 2 new ones: computed here from what spaCy does with them."""
    if case == "spancat_singlelabel" and name.split("/")[-2] == "scorer":
        return tensor[[0, 1, 4]]  # X, Y, NEW, B-2, none of them
    if case.endswith("ensemble") and tensor.ndim == 2 and tensor.shape != shape:
        width = shape[1] - 2  # the scores of the bag of words, and then the vector of the text
        return tensor[:2][:, [0, 1, *range(4, 4 + width)]]
    return tensor[tuple(slice(size) for size in shape)]


@pytest.mark.parametrize("algorithm", [AdamW(), Adafactor()], ids=lambda found: found.label)
@pytest.mark.parametrize("in_one_process", [True, False])
@pytest.mark.parametrize(
    "case",
    ["ner-one-layer", "tagger", "spancat_singlelabel", "textcat-ensemble", "multilabel-ensemble", "textcat-bow3"],
)
def test_add_labels_state_of_old_rows_stays(case, in_one_process, algorithm, tmp_path):
    optimizer = TorchOptimizer(algorithm, 0.01, use_averages=True)
    nlp, name, examples = trained(case, 4, optimizer)
    before, weights = moments(optimizer), {key: param.clone() for key, param in optimizer.params.items()}
    averages = {key: average.clone() for key, average in optimizer.state_dict()["averages"]["tensors"].items()}
    optimizer.to_disk(tmp_path / "state")
    add_labels(nlp, name, new_labels(case))
    if not in_one_process:
        optimizer = optimizer_for(nlp, algorithm, 0.01, use_averages=True)
        optimizer.from_disk(tmp_path / "state", on_growth="mean")
    optimizer.initialize(nlp)
    after = moments(optimizer)
    grown = 0
    for key, old in weights.items():
        new = optimizer.params[key]
        grown += new.shape != old.shape
        assert torch.equal(old_part(case, key, new, old.shape), old), key
        average = optimizer.state_dict()["averages"]["tensors"][key]
        assert torch.equal(old_part(case, key, average, old.shape), averages[key]), key
        for moment, value in before[key].items():
            found = after[key][moment]
            if value.shape == old.shape:
                assert found.shape == new.shape and torch.equal(old_part(case, key, found, old.shape), value), key
            elif value.ndim == 2:  # Adafactor's, with a size of 1
                sizes = tuple(1 if size == 1 else full for size, full in zip(value.shape, new.shape))
                assert found.shape == sizes and found.isfinite().all()
                if case.endswith("ensemble") and new.shape != old.shape and value.shape[1] > 1:
                    assert torch.equal(found[:, [0, 1, *range(4, sizes[1])]], value)
                elif case == "spancat_singlelabel" and new.shape != old.shape and value.shape[0] > 1:
                    assert torch.equal(found[[0, 1, 4]], value)
    assert grown >= (3 if case.endswith("ensemble") else 2)
    assert len(set(optimizer.nr_update.values())) == 1
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    with nlp.use_params(optimizer.averages):
        assert predicted(nlp)
    optimizer.to_disk(tmp_path / "later")
    optimizer.from_disk(tmp_path / "later")


@pytest.mark.parametrize("make", [spacy.blank("xx").create_optimizer, lambda: Adam(0.01)], ids=["thinc", "drop-in"])
@pytest.mark.parametrize("case", ["tagger", "spancat_singlelabel", "textcat-ensemble"])
def test_add_labels_with_the_optimizers_of_thinc(case, make):
    """thinc keeps state by the node: that of the larger layer begins anew, and nothing fails. Our drop-in keeps it."""
    sgd = make()
    nlp, name, examples = trained(case, 4, sgd)
    add_labels(nlp, name, new_labels(case))
    for _ in range(3):
        nlp.update(examples, sgd=sgd)
    with nlp.use_params(sgd.averages):
        predicted(nlp)
    if isinstance(sgd, TorchOptimizer):
        assert set(sgd.nr_update.values()) == {7}


@pytest.mark.parametrize("case", ["tagger", "textcat-cnn2", "ner"])
def test_add_labels_rehearsal_goes_on(case):
    """`nlp.rehearse` compares with a copy of the model from when it was resumed."""
    nlp, name, examples = trained(case)
    sgd = nlp.resume_training()
    add_labels(nlp, name, new_labels(case))
    nlp.rehearse(examples, sgd=sgd)


# ---------------------------------------------------------------------- what can't get labels


def with_head(head):
    nlp = spacy.blank("xx")
    textcat = nlp.add_pipe("textcat", config={"model": heads(True)["cnn2"]})
    tok2vec = textcat.model.get_ref("tok2vec")
    textcat.model = chain(tok2vec, list2ragged(), reduce_mean(), head)
    examples = examples_of(nlp, 4)
    nlp.initialize(lambda: examples)
    return nlp


def test_add_labels_refuses_heads_that_it_does_not_know():
    nlp = with_head(PyTorchWrapper(torch.nn.Linear(16, 2)))
    before = nlp.to_bytes()
    with pytest.raises(
        PipelineError, match=r"Can't add 'NEW' to 'textcat': .*a module of torch.*Train a component with all"
    ):
        add_labels(nlp, "textcat", ["NEW"])
    assert nlp.to_bytes() == before
    with pytest.raises(PipelineError, match="has 3 outputs: expected 2, one for each label"):
        add_labels(with_head(Linear(3, 16)), "textcat", ["NEW"])
    for component in ("senter", "tok2vec", "sentencizer"):
        nlp = spacy.blank("xx")
        nlp.add_pipe(component)
        with pytest.raises(PipelineError, match=f"'{component}': .*takes no labels"):
            add_labels(nlp, component, ["NEW"])


def test_add_labels_refuses_labels_that_a_component_cannot_have():
    nlp, _, _ = trained("morphologizer", 1)
    for wrong, error, match in [
        ("NEW", ConfigTypeError, "expected a list of them, found 'NEW'"),
        ([""], ConfigTypeError, "a text that is not empty, found ''"),
        ([3], ConfigTypeError, "found 3"),
        (["NEW"], ConfigError, "expected features as in 'Number=Sing.POS=NOUN', found 'NEW'"),
        (["POS=ODD"], ConfigError, "such as NOUN, found 'ODD'"),
    ]:
        with pytest.raises(error, match=match):
            add_labels(nlp, "morphologizer", wrong)
    with pytest.raises(ConfigError, match=r"'tagger': expected a component of the pipeline.*There are: morphologizer"):
        add_labels(nlp, "tagger", ["NEW"])
    assert add_labels(nlp, "morphologizer", ["POS=NOUN|Foo=Bar", "Foo=Bar|POS=NOUN"]) == ["Foo=Bar|POS=NOUN"]
    nlp, _, _ = trained("lemmatizer", 1)
    for wrong in ("mouse", ("mice", ""), ("mice", 3), ("a", "b", "c"), 3):
        with pytest.raises(
            ConfigTypeError, match=f"expected a word and its lemma, such as .*found {re.escape(repr(wrong))}"
        ):
            add_labels(nlp, "trainable_lemmatizer", [wrong])


@pytest.mark.parametrize("case", ["tagger", "textcat-ensemble", "ner", "spancat", "lemmatizer"])
def test_add_labels_to_a_component_that_was_not_initialized(case):
    """As spaCy's `add_label`: the labels of the texts come on top."""
    component, config = CASES[case]
    nlp = spacy.blank("xx")
    nlp.add_pipe(component, config=copy.deepcopy(config))
    add_labels(nlp, component, new_labels(case))
    examples = examples_of(nlp, 4)
    nlp.initialize(lambda: examples)
    labels = nlp.get_pipe(component).labels
    assert len(labels) > 2 and (case == "lemmatizer" or {"NEW", "B-2"} < {*labels})
    assert predicted(nlp)


def test_add_labels_a_loaded_lemmatizer_learns_again():
    """spaCy (3.8) does not load the table of a lemmatizer's labels, and then teaches the first one for all words."""
    nlp, *_ = trained("lemmatizer", 60)
    expected = [token.lemma_ for token in nlp(TEXTS[0])]
    for is_ours in (False, True):
        loaded = copy_of(nlp, "lemmatizer")
        optimizer = TorchOptimizer(AdamW(), 0.01) if is_ours else loaded.create_optimizer()
        loaded.resume_training(sgd=optimizer)
        for _ in range(60):
            loaded.update(examples_of(loaded), sgd=optimizer)
        assert ([token.lemma_ for token in loaded(TEXTS[0])] == expected) == is_ours


# ---------------------------------------------------------------------- labels that spaCy's add_label added


def params_of(nlp):
    return {
        (i, name): node.get_param(name).copy()
        for i, node in enumerate(nlp.pipeline[0][1].model.walk())
        for name in node.param_names
    }


@pytest.mark.parametrize(
    ("case", "way"),  # spaCy begins the labels of other layers that it can resize with a bias of 0
    [
        ("textcat-bow2", "loaded"),
        ("textcat-bow3", "in mid-training"),
        ("textcat-cnn2", "resumed"),
        ("textcat-reduce", "loaded"),
        ("multilabel-bow2", "in mid-training"),
        ("multilabel-bow3", "loaded"),
    ],
)
def test_add_labels_lifts_labels_of_spacys_add_label(case, way):
    """They begin as with `add_labels`: learned by those who add them so, and never by spaCy's optimizer."""
    optimizer = TorchOptimizer(AdamW(), 0.02, averages=EMA(0.9))
    nlp, name, _ = trained(case, optimizer=optimizer)
    expected, stock = copy_of(nlp, case), copy_of(nlp, case)
    add_labels(expected, name, ["NEW"])
    for one in (nlp, stock):
        one.get_pipe(name).add_label("NEW")
    learned = examples_of(nlp, 12, new=["NEW"])
    with pytest.warns(GrowthWarning, match=f"'{name}' could never learn 'NEW': spaCy's add_label begins"):
        if way == "loaded":
            nlp = copy_of(nlp, case)
            optimizer = optimizer_for(nlp, AdamW(), 0.02, averages=EMA(0.9))
        elif way == "resumed":
            optimizer = nlp.resume_training(sgd=TorchOptimizer(AdamW(), 0.02, averages=EMA(0.9)))
            optimizer.freeze([f"{name}/*"])
            assert min(map(numpy.min, params_of(nlp).values())) == -5000
            optimizer.unfreeze([f"{name}/*"])
            nlp.update(learned, sgd=optimizer)
        else:
            nlp.update(learned, sgd=optimizer)
    if way == "loaded":
        found = params_of(nlp)
        assert all(numpy.array_equal(values, found[key]) for key, values in params_of(expected).items())
        assert predicted(nlp) == predicted(expected)
    sgd = stock.resume_training()
    for _ in range(30):
        nlp.update(learned, sgd=optimizer)
        stock.update(learned, sgd=sgd)
    with nlp.use_params(optimizer.averages):
        assert nlp(learned[0].text).cats["NEW"] > 0.5 > nlp(learned[1].text).cats["NEW"]
    assert stock(learned[0].text).cats["NEW"] < 0.01


@pytest.mark.parametrize("frozen", ["excluded", "a group", "switched off"])
def test_add_labels_leaves_frozen_labels_of_spacys_add_label(frozen):
    nlp, name, _ = trained("textcat-bow3")
    nlp.add_pipe("tagger", config=copy.deepcopy(TAGGER))
    nlp.get_pipe("tagger").initialize(lambda: examples_of(nlp), nlp=nlp)
    nlp.get_pipe(name).add_label("NEW")
    before = params_of(nlp)
    group = {"params": [f"{name}/*"], "freeze": True}
    optimizer = TorchOptimizer(AdamW(), 0.02, param_groups={"kept": group} if frozen == "a group" else {})
    if frozen == "switched off":
        nlp.disable_pipe(name)
    optimizer.initialize(nlp, [name] if frozen == "excluded" else ())
    nlp.update(examples_of(nlp), sgd=optimizer, exclude=[name])
    if frozen == "switched off":
        nlp.enable_pipe(name)
    after = params_of(nlp)
    assert all(numpy.array_equal(values, after[key]) for key, values in before.items())
