"""Whether a difference is more than chance, against tables of Student's t and against chance itself."""

import math
from statistics import fmean, stdev

import numpy
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.training import Example

from thinc_torchopt.addons.trials.comparison import Comparison, Difference, compare, part_of, t_quantile

NLP = spacy.blank("xx")


def by_seed(**scores):
    return {name: dict(enumerate(found)) for name, found in scores.items()}


@pytest.mark.parametrize(
    ("level", "freedom", "value"),
    [
        # The table of any textbook, to its three digits.
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.995, 1, 63.657),
        (0.975, 120, 1.980),
        (0.975, 10_000, 1.960),
    ],
)
def test_comparison_knows_students_t(level, freedom, value):
    assert t_quantile(level, freedom) == pytest.approx(value, abs=5e-4 * max(1.0, value / 10))


def differences(scores, drawn, base, comparisons):
    """By name: the difference of the means, its standard error, and how large it may be by chance.

    scores, drawn: By name, for each seed. drawn: On texts that were drawn again.
    """
    names, seeds = list(scores), len(scores[base])
    # What least squares leave that give each candidate and each seed a mean of its own.
    means = numpy.repeat(numpy.eye(len(names)), seeds, axis=0), numpy.tile(numpy.eye(seeds)[:, 1:], (len(names), 1))
    left = numpy.linalg.lstsq(numpy.hstack(means), numpy.ravel(list(scores.values())), rcond=None)[1][0]
    freedom = (len(names) - 1) * (seeds - 1)
    of_seeds = math.sqrt(left / freedom * 2 / seeds)
    found = {}
    for name in set(names) - {base}:
        of_texts = stdev(numpy.mean(drawn[name], axis=0) - numpy.mean(drawn[base], axis=0))
        error = math.hypot(of_seeds, of_texts)
        # Welch and Satterthwaite, with endless degrees of freedom for texts. From 10,000 on, t is normal.
        t = t_quantile(1 - 0.05 / 2 / comparisons, min(freedom * (error / of_seeds) ** 4, 10_000.0))
        found[name] = fmean(scores[name]) - fmean(scores[base]), error, t * error
    return found


@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(2, 4), st.sampled_from([0.001, 0.05]))
def test_comparison_is_that_of_textbooks(seed, candidates, seeds, of_texts):
    rng, names = numpy.random.default_rng(seed), "abcd"[:candidates]
    scores = {name: rng.normal(0.8, 0.05, seeds).tolist() for name in names}
    drawn = {name: rng.normal(0.8, of_texts, (seeds, 7)) for name in names}
    found, expected = compare(by_seed(**scores), "a", by_seed(**drawn)), differences(scores, drawn, "a", candidates - 1)
    for name, one in found.differences.items():
        assert (one.value, one.error, one.margin) == pytest.approx(expected[name])
        assert found.is_told(name) == (abs(one.value) > expected[name][2])


def test_comparison_takes_seeds_that_all_have():
    found = compare({"a": {0: 0.8, 1: 0.9, 2: 0.1}, "b": {1: 0.91, 0: 0.81}}, "a")
    assert found.seeds == 2 and found.means == {"a": pytest.approx(0.85), "b": pytest.approx(0.86)}
    apart = compare({"a": {0: 0.8}, "b": {1: 0.9}}, "a")
    assert apart.means == {"a": 0.8, "b": 0.9} and not apart.differences and apart.winner == "a" and apart.seeds == 0


def test_comparison_says_how_many_seeds_would_do():
    found = compare(by_seed(a=[0.80, 0.82], b=[0.81, 0.835], c=[0.70, 0.72]), "a")
    assert found.best == "b" and found.winner == "a" and not found.is_told("b")
    assert found.is_told("c") and found.difference("c") == pytest.approx(-0.1)
    assert [found.cells(name)[1] for name in "abc"] == ["", "may be chance", "worse"]
    for seeds in range(3, 33):
        value = 1.000001 * t_quantile(1 - 0.05 / 4, 2 * (seeds - 1)) * math.sqrt(2 / seeds)
        of_seeds = Comparison({"a": 0.0, "b": value}, {"b": Difference(value, 1.0, 0.0, 2, 2)}, "a", 2)
        assert of_seeds.seeds_for("b") == (seeds if seeds <= 30 else None)
    # No number of seeds makes up for texts that are too few.
    drawn = {name: dict.fromkeys((0, 1), rows) for name, rows in {"a": [0.8] * 4, "b": [0.9, 0.7] * 2}.items()}
    assert compare(by_seed(a=[0.8, 0.82], b=[0.81, 0.831]), "a", drawn).seeds_for("b") is None


def test_comparison_without_spread():
    one = compare(by_seed(a=[0.8], b=[0.9]), "a")
    assert not one.differences and not one.is_told("b") and one.winner == "a" and one.best == "b"
    same = compare(by_seed(a=[0.8, 0.8], b=[0.9, 0.9], c=[0.8, 0.8]), "a")
    assert same.differences["b"].error == 0.0 and same.winner == "b" and not same.is_told("c")
    assert same.cells("b") == ("+0.1000 ± 0.0000", "better") and same.cells("c")[1] == "may be chance"


@pytest.mark.parametrize(
    ("own", "other", "begin", "end"),
    [
        ([0.80, 0.82], [0.81, 0.84], "Nothing is better by more than chance: b is ahead by 0.0150, and", "show it."),
        ([0.9, 0.91], [0.8, 0.82], "Nothing is better than the config. With 2 seeds, up to", "may be chance."),
        ([0.80, 0.80], [0.90, 0.90], "b is better than the config: 0.9000 against 0.8000. With 2", "chance."),
        ([0.8], [0.9], "B has the best score, 0.9000. One seed can't tell", "Try --seeds 3."),
        ([0.0, 0.0], [0.0, 0.0], "Nothing can be said: all scores are 0.", "Try more --steps."),
        ([0.5, 0.5], [0.5, 0.5], "Nothing can be said: a and b have the same scores.", "to evaluate on."),
    ],
    ids=["ahead", "behind", "better", "one seed", "zero", "same"],
)
def test_comparison_in_words(own, other, begin, end):
    told = compare({"a": dict(enumerate(own)), "b": dict(enumerate(other))}, "a").verdict("the config")
    assert told.startswith(begin) and told.endswith(end)


def test_comparison_advises_more_texts():
    """Where they would help more than seeds."""
    few = {name: {0: row, 1: row} for name, row in {"a": [0.8, 0.8], "b": [0.81, 0.8]}.items()}
    told = compare({"a": {0: 0.80, 1: 0.82}, "b": {0: 0.81, 1: 0.831}}, "a", few).verdict("the config")
    assert told.endswith("More texts to evaluate on would help more than more seeds.")
    alike = Comparison({"a": 0.8, "b": 0.81}, {"b": Difference(0.01, 0.1, 0.1, 1, 1)}, "a", 2)
    assert alike.verdict("a").endswith("may be chance.")


@given(st.lists(st.sampled_from("abcdé字"), min_size=1, max_size=30), st.randoms(), st.integers(0, 5))
def test_comparison_parts_hold_the_smaller_ones(texts, random, seed):
    """Whatever the order of the texts, which may be there twice."""
    examples = [Example(NLP.make_doc(text), NLP.make_doc(text)) for text in texts]
    shuffled = random.sample(examples, len(examples))
    before: list[Example] = []
    for share in (0.25, 0.5, 0.75, 1.0):
        part = part_of(examples, share, seed)
        places = [next(i for i, one in enumerate(examples) if one is example) for example in part]
        assert places == sorted(set(places)) and len(part) == max(round(share * len(texts)), 1)
        assert all(any(one is example for one in part) for example in before)
        other = part_of(shuffled, share, seed)
        assert sorted(e.reference.text for e in part) == sorted(e.reference.text for e in other)
        before = part
    assert before == examples


def test_comparison_parts_of_seeds_differ():
    examples = [Example(NLP.make_doc(text), NLP.make_doc(text)) for text in "abcdefghijklmnopqrstuvwxyz"]
    assert len({"".join(e.reference.text for e in part_of(examples, 0.5, seed)) for seed in range(9)}) == 9
