"""What notebooks show before a training: the same as the commands print, on one screen, with everything escaped."""

import json
import textwrap
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from spacy.util import load_config

from thinc_torchopt.addons.preview import Description, ParamTable
from thinc_torchopt.addons.preview.params import ParamRow
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.notebook import compare_recipes, explain, params

from ...configs import smaller
from ...conftest import CONFIGS
from ...spacy_cli import spacy_cli

LABELS = ["Trains", "Optimizer", "Learning rate", "", "Rates", "Clipping", "On NaN", "Ends", "Saves", "Other"]
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
    lines=st.lists(st.tuples(st.sampled_from(LABELS), texts), max_size=25),
    costs=st.lists(st.tuples(st.sampled_from(["Steps", "Memory", "Disk", "Time"]), texts), max_size=6),
)
@example([], ["x"] * 25, ["x"], [("Trains", "x")], [("Steps", "x")] * 5 + [("Memory", "x")])  # one too many
def test_preview_explain_is_one_screen(stops, notes, checked, lines, costs):
    """40 lines of 80 columns, unless what stops the training and what is doubtful needs more: that is never cut."""
    told = Description(
        stops, notes, name="a.cfg", checked=checked, lines=lines, cost_lines=costs, usual={"Rates", "On NaN"}
    )
    shown = repr(told).splitlines()
    assert all(len(line) <= 80 or max(map(len, line.split())) > 60 for line in shown)
    words = " ".join(repr(told).split())
    assert all(" ".join(text.split()) in words for text in [*stops, *notes])
    needed = sum(len(textwrap.wrap(text, 60)) for text in [*stops, *notes])
    assert len(shown) <= max(40, needed + 10)
    assert not any(line.startswith(("Rates", "On NaN")) for line in shown)
    whole = " ".join(" ".join(text for _, text in told.rows(is_whole=True)).split())
    every = [*stops, *notes, *checked, *(text for _, text in [*lines, *costs])]
    assert all(" ".join(text.split()) in whole for text in every)
    page = parsed(told._repr_html_())
    assert set(page.tags) <= {"div", "style", "p", "table", "tbody", "tr", "td", "b", "details", "summary"}
    assert all(text in page.text for text in every)


def test_preview_explain_leaves_out_what_matters_less():
    """Of 60 lines that don't all fit, the ends of the training stay, and all that is doubtful."""
    lines = [("Rules", "long " * 30)] * 60 + [("Ends", "At step 9."), ("Rates", "Nobody writes them.")]
    told = Description([], ["doubt " * 30], name="a.cfg", checked=["9 texts."], lines=lines, usual={"Rates"})
    shown = repr(told)
    assert 38 <= len(shown.splitlines()) <= 40
    assert "Ends" in shown and "9 texts." in shown and shown.count("doubt") == 30 and "Nobody" not in shown
    assert shown.endswith(f"{len(lines) - shown.count('At step') - shown.count('long') // 30} more lines")


def test_preview_explain_is_what_the_command_prints(paths):
    found = explain(CONFIGS / "cnn.cfg", paths)
    flags = [part for name, value in paths.items() for part in (f"--{name}", value)]
    whole = json.loads(spacy_cli("torchopt", "explain", CONFIGS / "cnn.cfg", *flags, "--json").stdout)
    assert json.loads(json.dumps(found.as_dict())) == whole and not found.stops
    assert len(repr(found).splitlines()) <= 40


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
    assert {"<i>'&\"", "<b>", "<u>", "<s>", "<em>"} <= set(page.text)


def test_preview_compare_recipes(paths, tmp_path):
    config = tmp_path / "small.cfg"
    config.write_text(smaller((CONFIGS / "cnn.cfg").read_text()))
    found = compare_recipes(config, paths, recipes="fine-tune", steps=2, seeds=1, output=tmp_path / "best.cfg")
    assert list(found.tried) == ["as it is", "tuned Adam", "fine-tune"] and found.verdict in repr(found)
    assert (tmp_path / "best.cfg").read_text() == found.config
    page = parsed(found._repr_html_())
    assert found.verdict in page.text and "fine-tune" in page.text


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
