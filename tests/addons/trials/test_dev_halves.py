"""A model is chosen on one half of the development data, and scored on the other: with spaCy's own scores."""

import math
from statistics import stdev

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.training import Example
from spacy.training.loop import create_evaluation_callback

from thinc_torchopt.addons.trials.comparison import MOST_WORDS, halves, predict, resampled, score, thinned

WEIGHTS = {"ents_f": 0.75, "ents_p": 0.25, "ents_r": None, "tag_acc": 0.5}


@pytest.fixture
def nlp():
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "X", "pattern": "Berlin"}, {"label": "X", "pattern": "tea"}])
    return nlp


@pytest.fixture
def dev(nlp):
    texts = {"Berlin": [(0, 6)], "tea in Berlin": [(7, 13)], "Ada drinks": [(0, 3)], "": [], "no name": []}
    return [
        Example.from_dict(nlp.make_doc(text), {"entities": [(*span, "X") for span in spans]})
        for text, spans in texts.items()
    ]


def test_dev_halves_scores_as_spacy_does(nlp, dev):
    """The oracle is what `spacy train` calls; some components have no scores, as tag_acc here."""
    expected, _ = create_evaluation_callback(nlp, lambda nlp: dev, WEIGHTS)()
    predicted = predict(nlp, dev)
    assert score(nlp, predicted, WEIGHTS) == expected > 0
    for half, part in zip(halves(dev), halves(predicted)):
        assert score(nlp, part, WEIGHTS) == create_evaluation_callback(nlp, lambda nlp, half=half: half, WEIGHTS)()[0]
    assert not dev[0].predicted.ents  # the corpus is as it was


def test_dev_halves_refuses_scores_by_label(nlp, dev):
    with pytest.raises(ValueError, match="E915"):
        score(nlp, predict(nlp, dev), {"ents_per_type": 1.0})

    def scorer(examples, **settings):
        raise KeyError("of a component")

    nlp.get_pipe("entity_ruler").scorer = scorer
    with pytest.raises(KeyError, match="E900"):
        score(nlp, predict(nlp, dev), {"ents_f": 1.0})


@given(st.lists(st.integers(), max_size=9, unique=True))
def test_dev_halves_have_each_text_once(texts):
    one, other = halves(texts)
    if len(texts) > 1:
        assert sorted([*one, *other]) == sorted(texts) and 0 <= len(one) - len(other) <= 1
    else:
        assert one == other == texts


@given(st.lists(st.sampled_from([0, 1, MOST_WORDS // 10, MOST_WORDS]), max_size=30))
def test_dev_halves_of_thinned_texts_differ(lengths):
    """Also where few texts are very long. Texts of equal lengths have about as many words as are allowed."""
    texts = [range(length) for length in lengths]
    found = thinned(texts)
    assert len(found) >= min(2, len(texts))
    if sum(lengths) <= MOST_WORDS:
        assert found == texts
    if len(set(lengths)) == 1 and len(found) > 3:
        assert sum(map(len, found)) <= 1.5 * MOST_WORDS
    assert [len(thinned([range(length)] * 4)) for length in (12_500, 12_501)] == [4, 2]


def test_dev_halves_resampled_is_the_error_of_a_mean():
    """Of a plain mean, the standard error is known. 2,000 draws know it to 1.6%: 1 / sqrt(2 * 2000)."""
    texts = [float(i % 7) for i in range(200)]
    found = resampled(lambda drawn: sum(drawn) / len(drawn), texts, draws=2000)
    n = len(texts)
    assert stdev(found) == pytest.approx(stdev(texts) / math.sqrt(n) * math.sqrt((n - 1) / n), rel=3 * 0.016)
    assert found[:3] == resampled(lambda drawn: sum(drawn) / len(drawn), texts, draws=3)  # the same draws for all
