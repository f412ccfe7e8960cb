"""Numbers in words."""

import pytest

from thinc_torchopt.core.words import time_in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.031, "0.031 seconds"), (42.4, "42 seconds"), (89.4, "89 seconds"), (840, "14 minutes"), (9_000, "2.5 hours")],
)
def test_words_of_times(seconds, words):
    assert time_in_words(seconds) == words
