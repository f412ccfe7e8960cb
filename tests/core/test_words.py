"""Numbers in words."""

import pytest

from thinc_torchopt.core.words import size_in_words, time_in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.031, "0.031 seconds"), (42.4, "42 seconds"), (89.4, "89 seconds"), (840, "14 minutes"), (9_000, "2.5 hours")],
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
        (2.34e12, "2,340 GB"),
    ],
)
def test_words_of_sizes(size, words):
    assert size_in_words(size) == words
