"""Numbers and scales of axes."""

import numpy
import pytest

from thinc_torchopt.addons.report.style import needs_log, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-3.0, "-3"),
        (0.1 + 0.2, "0.3"),
        (2_000.0, "2,000"),
        (999_999.0, "999,999"),
        (1e6, "1e6"),
        (1e-4, "0.0001"),
        (2.5e-5, "2.5e-5"),
    ],
)
def test_style_of_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("values", "is_log", "of_all"),
    [
        ([], False, False),
        ([0.0, 0.0], False, False),
        ([1.0, 2.0], False, False),
        ([1.0, 1e3], True, True),
        ([-1.0, 1.0, 1e3], False, False),
        ([*[1.0] * 10, *[1e3] * 9, 0.0], True, True),  # 5% are 0
        ([*[1.0] * 9, *[1e3] * 9, 0.0], False, False),
        ([*[1.0] * 199, 1e3], False, True),  # one outlier
    ],
)
def test_style_of_scales(values, is_log, of_all):
    found = numpy.array(values)
    assert (needs_log(found), needs_log(found, of_all=True)) == (is_log, of_all)
