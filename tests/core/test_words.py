"""Numbers and names in words."""

from collections import Counter

import pytest

from thinc_torchopt.core.words import count, counted, listed, plain, short, size_in_words, time_in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0.031, "0.031 seconds"), (42.4, "42 seconds"), (89.4, "89 seconds"), (90, "2 minutes"), (840, "14 minutes")),
        *((5_399, "90 minutes"), (5_400, "1.5 hours"), (9_000, "2.5 hours")),
    ],
)
def test_words_of_times(seconds, words):
    assert time_in_words(seconds) == words


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (9_940, "9.9 kB"),
        (9_950, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (999_500_000, "1.0 GB"),
        (2.34e12, "2,340 GB"),
    ],
)
def test_words_of_sizes(size, words):
    assert size_in_words(size) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (1e-6, "0.000001"), (9.9e-7, "9.9e-07"), (-12.345, "-12.3"), (999_400, "999000"), (1e6, "1e+06")],
)
def test_words_of_numbers(value, words):
    assert plain(value) == words


@pytest.mark.parametrize(
    ("n", "words"), [(0, ""), (1, "a"), (2, "a and b"), (5, "a, b, c, d and e"), (6, "a, b, c, d, e and 1 more")]
)
def test_words_of_names(n, words):
    assert listed("abcdef"[:n]) == words


def test_words_of_counts():
    labels = Counter(dict.fromkeys("abcdefghij", 1000))
    assert counted(labels).endswith(", i 1,000 and j 1,000") and counted(labels + Counter("k")).endswith(" and 1 more")
    assert [count(1, "text"), count(2000, "text")] == ["1 text", "2,000 texts"]
    assert [short(None), short(0.12345)] == ["", "0.123"]
