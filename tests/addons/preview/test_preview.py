"""What notebooks show before a training: the same as the commands print, with everything escaped."""

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spacy.util import load_config

from thinc_torchopt.addons.preview.description import Description
from thinc_torchopt.addons.preview.params import ParamRow, ParamTable, TableData
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.notebook import compare_recipes, explain, params

from ...conftest import CONFIGS
from ...spacy_cli import spacy_cli

texts = st.text("abc <&", min_size=1, max_size=300).map(lambda text: f"x{text}")


class Tags(HTMLParser):
    """Collects what a page has."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def parsed(page):
    found = Tags()
    found.feed(page)
    return found


@pytest.fixture(scope="module")
def paths(corpus):
    return {f"paths.{name}": corpus[name] for name in ("train", "dev")}


@given(
    stops=st.lists(texts, max_size=3),
    notes=st.lists(texts, max_size=30),
    checked=st.lists(texts, max_size=3),
    lines=st.lists(st.tuples(st.sampled_from(["Trains", "Steps", "Memory"]), texts), max_size=25),
)
def test_preview_explain_has_everything(stops, notes, checked, lines):
    """As text, in 80 columns; and as HTML, escaped."""
    groups = TableData(["params", "numbers"], [["<all>", "1"]], ["numbers"])
    told = Description(stops, notes, name="a.cfg", checked=checked, groups=groups, lines=lines)
    assert all(len(line) <= 80 or max(map(len, line.split())) > 60 for line in repr(told).splitlines())
    words, every = " ".join(repr(told).split()), [*stops, *notes, *checked, *(text for _, text in lines)]
    page = parsed(told._repr_html_())
    assert set(page.tags) <= {"div", "style", "p", "table", "thead", "tbody", "tr", "th", "td", "b"}
    assert all(" ".join(text.split()) in words and text in page.text for text in [*every, "<all>"])


def test_preview_explain_as_text():
    told = Description([f"{'a' * 60} no-hyphen-breaks", "b" * 99], name="x", lines=[("Memory", "c")])
    title, *lines = repr(told).splitlines()
    assert title == "What a training with x does"
    assert lines == [f"Stops   {'a' * 60}", "        no-hyphen-breaks", f"Stops   {'b' * 99}", "Memory  c"]
    told = [Description(["why"] * n, **more) for n, more in ((0, {}), (1, {}), (2, {}), (1, {"notes": ["a"]}))]
    assert [one.is_one_error for one in told] == [False, True, False, False]


def test_preview_explain_is_what_the_command_prints(paths):
    found = explain(CONFIGS / "cnn.cfg", paths)
    flags = [part for name, value in paths.items() for part in (f"--{name}", value)]
    whole = json.loads(spacy_cli("torchopt", "explain", CONFIGS / "cnn.cfg", *flags, "--json").stdout)
    assert json.loads(json.dumps(found.as_dict())) == whole and not found.stops
    shown = spacy_cli("torchopt", "explain", CONFIGS / "cnn.cfg", *flags).stdout
    assert repr(found).split() == shown.split()


def test_preview_takes_a_config_as_well(paths):
    """And leaves it as it is."""
    config = load_config(CONFIGS / "param_groups.cfg", interpolate=False)
    before = config.to_str(interpolate=False)
    from_file, from_config = (params(source, paths, steps=9) for source in (CONFIGS / "param_groups.cfg", config))
    assert from_config.as_dict() == from_file.as_dict() and config.to_str(interpolate=False) == before
    flags = [part for name, value in paths.items() for part in (f"--{name}", value)]
    shown = spacy_cli("torchopt", "params", CONFIGS / "param_groups.cfg", "--steps", 9, *flags).stdout
    assert repr(from_file).split() == shown.split()


def test_preview_params_are_escaped():
    row = ParamRow("<i>'&\"", "<b>", [1], 1, "float32", "cpu", "thinc", "<u>", "a", 0.1, None, None, None, 0)
    page = parsed(ParamTable([row], notes=["<s>"], problem="<em>")._repr_html_())
    assert not {"i", "u", "s", "em"} & set(page.tags)
    assert {"<i>'&\"", "<u>", "<s>", "<em>"} <= set(page.text)


@pytest.mark.parametrize(
    ("source", "overrides", "said"),
    [
        ("gone.cfg", {}, "Can't read 'gone.cfg': expected the file of a config"),
        (CONFIGS / "cnn.cfg", {"max_steps": 3}, "found 'max_steps'"),
        (CONFIGS / "cnn.cfg", {"training.optimizer": {"grad_clip": 1.0}}, "found a dict at 'training.optimizer'"),
        (CONFIGS / "cnn.cfg", {"trainin.max_steps": 3}, "trainin"),
    ],
    ids=["no file", "no dot", "dict", "section"],
)
def test_preview_raises_our_errors(source, overrides, said):
    """Where spaCy's command line ends the program, a notebook goes on."""
    for look in (params, explain, compare_recipes):
        with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
            look(source, overrides)


def test_preview_explain_says_what_would_stop_the_training(paths):
    found = explain(CONFIGS / "cnn.cfg", {**paths, "paths.train": "gone.spacy"})
    assert "gone.spacy" in found.stops[0] and "gone.spacy" in found._repr_html_()
    found = explain(CONFIGS / "cnn.cfg", {**paths, "training.max_steps": "many"})
    assert "max_steps" in found.stops[0] and "max_steps" in repr(found)
