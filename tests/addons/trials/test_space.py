"""Texts that say which values are tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.trials.study import Choice, NumberRange, parse_space
from thinc_torchopt.core.errors import ConfigError

PATH = "training.optimizer.learn_rate"


def parse(text):
    return parse_space([("--set", PATH, text)])[PATH]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-4..1e-2:log", NumberRange(1e-4, 1e-2, True)),
        ("0.0..0.5", NumberRange(0.0, 0.5)),
        ("0..1:0.25", NumberRange(0, 1, False, 0.25)),
        ("1..4:3", NumberRange(1, 4, False, 3)),
        ("-1..8", NumberRange(-1, 8)),
        ("16..256:log", NumberRange(16, 256, True)),
        ('"1..8"', NumberRange(1, 8)),
        ("16|32", Choice(("16", "32"))),
        (" true | false ", Choice(("true", "false"))),
        ("[0.9, 0.99]|[0.9, 0.999]", Choice(("[0.9, 0.99]", "[0.9, 0.999]"))),
    ],
)
def test_space_texts(text, expected):
    assert parse(text) == expected


def test_space_kinds_of_values():
    assert parse("1..8").is_whole and not parse("1..8.0").is_whole and not parse("0..1:0.25").is_whole
    assert parse("0|0.5|null|true|a b|[1, 2]").ends == [0, 0.5, None, True, "a b", [1, 2]]
    assert 1 in parse("1..8.0") and 0.5 not in parse("0..1:0.25") and 1 in parse("0..1:0.25")
    assert [one for one in (0, 1, 1.5, 8, 9, True, "1") if one in parse("1..8")] == [1, 8]
    assert True in parse("true|1.5") and 1 not in parse("true|1.5")
    assert parse("true|1.5").text_of(1.5) == "1.5"


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        (PATH, "0.001", "expected a range or choices, found '0.001'. Ranges are 1e-4..1e-2:log"),
        (PATH, "1..2..3", "expected a range or choices"),
        (PATH, "a..b", "expected a range or choices"),
        (PATH, "1..inf", "expected a range or choices"),
        (PATH, f"1..{'9' * 400}", "expected a range or choices"),  # too large for a float
        (PATH, "1..8:exp", "expected a range or choices"),
        (PATH, "8..1", "expected a range from a lower number to a higher one"),
        (PATH, "1..1", "expected a range from a lower number to a higher one"),
        (PATH, "0..1:log", "expected numbers above 0"),
        (PATH, "0..1:2", "expected a step above 0"),
        (PATH, "0..1:0", "expected a step above 0"),
        (PATH, "0..0.9:0.2", "expected a step above 0 that leads from one end to the other"),
        (PATH, "a|a", "expected choices that differ"),
        (PATH, "a|", "expected choices that differ"),
        (PATH, "0.1|NaN", "expected finite numbers, found '0.1|NaN'"),
        (PATH, "[0.9, 0.99]|[0.9, -Infinity]", "expected finite numbers"),
        ("dropout", "0.0..0.5", "expected the path of a setting with its sections, found 'dropout'"),
        ("training..x", "0.0..0.5", "expected the path of a setting"),
    ],
)
def test_space_refuses(path, text, message):
    with pytest.raises(ConfigError, match="Can't search in ") as error:
        parse_space([("--set", path, text)])
    assert message in str(error.value) and "--set" in str(error.value)


NUMBERS = st.floats(-1e6, 1e6) | st.integers(-1000, 1000)


@given(low=NUMBERS, high=NUMBERS, is_log=st.booleans())
def test_space_is_read_as_it_is_written(low, high, is_log):
    """A study compares spaces by their texts."""
    if low < high and (low > 0 or not is_log):
        dimension = NumberRange(low, high, is_log)
        assert parse(str(dimension)) == dimension
