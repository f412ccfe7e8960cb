"""The union of the labels of several clients."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.federated.agreement import merge_labels
from thinc_torchopt.core.errors import ConfigError

from ...models import toy_examples, toy_pipeline

NAMES = st.sampled_from("ABCDE")


def initialized(component, examples):
    nlp = toy_pipeline([component], shared=False)
    nlp.initialize(lambda: examples)
    return nlp.get_pipe(component)


def labels_of(component, examples):
    """As `spacy init labels` writes them."""
    return json.loads(json.dumps(initialized(component, examples).label_data))


@pytest.mark.parametrize("component", ["ner", "parser", "tagger", "textcat", "morphologizer"])
def test_labels_of_all_components_are_those_of_all_texts(component):
    """What spaCy finds in all texts together is the oracle, but for the order."""
    nlp = toy_pipeline([component], shared=False)
    examples = toy_examples(nlp, 80)
    merged = merge_labels([labels_of(component, examples[:40]), labels_of(component, examples[40:])])
    expected = labels_of(component, examples)
    if isinstance(expected, list):
        assert merged == sorted(expected)
    elif component in ("ner", "parser"):
        # "dep" is spaCy's own, and the empty label is counted once in each corpus.
        assert {key: set(own) for key, own in merged.items()} == {key: set(own) for key, own in expected.items()}
        assert merged["2"] == expected["2"]
    else:
        assert merged == expected
    pipe = nlp.get_pipe(component)
    pipe.initialize(lambda: examples[:3], nlp=nlp, labels=merged)
    assert set(pipe.labels) == set(initialized(component, examples).labels)


@given(st.lists(st.lists(NAMES, min_size=1), min_size=1, max_size=4), st.randoms())
def test_labels_do_not_depend_on_the_order_of_clients(found, random):
    merged = merge_labels(found)
    random.shuffle(found)
    assert merge_labels(found) == merged == sorted({label for one in found for label in one})


@given(
    st.lists(st.dictionaries(st.sampled_from("01"), st.dictionaries(NAMES, st.integers(1, 9))), min_size=1),
    st.randoms(),
)
def test_labels_of_parsers_are_counted(found, random):
    merged = merge_labels(found)
    random.shuffle(found)
    again = merge_labels(found)
    assert [(key, list(own.items())) for key, own in again.items()] == [
        (key, list(own.items())) for key, own in merged.items()
    ]
    for key, own in merged.items():
        assert own == {label: sum(one.get(key, {}).get(label, 0) for one in found) for label in own}
        assert list(own.values()) == sorted(own.values(), reverse=True)


@pytest.mark.parametrize("found", [[], [["A"], {"0": {}}], [[{"tree": 1}], [{"tree": 2}]], [{"A": "x"}, {"A": "y"}]])
def test_labels_without_a_union_are_refused(found):
    with pytest.raises(ConfigError, match="Can't merge labels"):
        merge_labels(found)
    assert merge_labels([{"A": "x"}]) == {"A": "x"}
