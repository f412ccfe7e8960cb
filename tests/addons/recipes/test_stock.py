"""The search for the best settings of spaCy's own Adam."""

import itertools

import pytest

from thinc_torchopt.addons.recipes import PEAKS, TUNING_TRIALS, Stock, tune


@pytest.mark.parametrize("averages", [True, False])
@pytest.mark.parametrize("peak", PEAKS)
def test_stock_finds_the_best_settings(peak, averages):
    """Where the score falls to both sides of the best rate, as it does; in as many trials as it says."""
    tried = []

    def score(stock):
        tried.append(stock)
        return -abs(PEAKS.index(stock.peak) - PEAKS.index(peak)) - 0.1 * (stock.use_averages != averages)

    assert tune(PEAKS, score) == Stock(peak, averages)
    assert len(tried) == len(set(tried)) == TUNING_TRIALS


def test_stock_takes_the_first_of_equals():
    counts = itertools.count()
    assert tune(PEAKS, lambda stock: 0.0 * next(counts)) == Stock(PEAKS[1])
    assert next(counts) == TUNING_TRIALS
