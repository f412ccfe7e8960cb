"""The text of a config, and what is loaded from it."""

import difflib

import pytest
from confection import Config

from thinc_torchopt.addons.recipes import check_output, open_source, read_text, rewrite, with_settings
from thinc_torchopt.addons.recipes.config_text import ConfigText, Raw
from thinc_torchopt.core.errors import ConfigError

from ...cli.test_init import KEEPING, OWN

TEXT = "[paths]\ntrain = null\n\n[corpora]\n\n[corpora.train]\npath = ${paths.train}\n\n[search]\na.b = 1\n\n"


def test_config_text_keeps_its_variables(tmp_path):
    """They are filled in where all overrides are known."""
    (tmp_path / "a.cfg").write_text(TEXT)
    source = open_source(tmp_path / "a.cfg", {"paths.train": "a.spacy"})
    assert source.search == {"a.b": "1"} and source.text.endswith("${paths.train}\n\n")
    loaded = source.load()
    assert loaded["paths"]["train"] == "a.spacy" and loaded["corpora"]["train"]["path"] == "${paths.train}"
    assert source.load(overrides={"paths.train": "b.spacy"}).interpolate()["corpora"]["train"]["path"] == "b.spacy"


@pytest.mark.parametrize("whole", [False, True], ids=["settings", "headers too"])
@pytest.mark.parametrize("recipe", [None, *KEEPING], ids=str)
def test_config_text_keeps_the_indentation(recipe, whole, tmp_path):
    """A setting with less white space before it would take those below as a part of it."""

    def change(text):
        new = with_settings(text, {"training.dropout": 0.3, "training.optimizer.new.value": 1})
        return new if recipe is None else rewrite(text, tmp_path / "c.cfg", recipe, {})[1]

    lines = OWN.splitlines(keepends=True)
    indented = "".join(f"  {line}" if line.strip() and (whole or line[0] != "[") else line for line in lines)
    found, expected = (Config().from_str(change(text), interpolate=False) for text in (indented, OWN))
    assert found == expected


LONG = """[other]
a = 1

# of x
[x]
# one
one = 1
two = [1,
  2]

# three
three: "c"
# tail

# of y
[x.y]

# z
z = 0

[x.y.deep]
d = 1

[last]
b = 1"""
# What is done to [x], and the lines that go and come.
CHANGES = {
    "one = 1 again": (lambda x: x.put("one", 1, "no"), ""),
    "another value": (lambda x: x.put("one", 2, "more"), "-one = 1\n+# more\n+one = 2"),
    "in place of a section": (
        lambda x: x.put("y", 3, "of three"),
        "+# of three\n+y = 3\n-\n-# of y\n-[x.y]\n-\n-# z\n-z = 0\n-\n-[x.y.deep]\n-d = 1",
    ),
    "in a section": (lambda x: x.section("y", "no").put("z", 1), "-z = 0\n+z = 1"),
    "in a section of it": (
        lambda x: x.section("y").section("deep").put("d", 2),
        "+[x.y.deep]\n+d = 2\n+\n-[x.y.deep]\n-d = 1\n-",
    ),
    "a new section": (
        lambda x: x.section("new", "of new").put("k", Raw("${a.b}")),
        "+# of new\n+[x.new]\n+k = ${a.b}\n+",
    ),
    "a setting dropped": (lambda x: x.drop("three"), '-\n+# tail\n-three: "c"\n-# tail'),
    "a section dropped": (lambda x: x.drop("y"), "-\n-[x.y]\n-\n-z = 0\n-\n-[x.y.deep]\n-d = 1"),
    "nothing dropped": (lambda x: x.drop("zero"), ""),
    "renamed": (lambda x: x.add("four", x.pop("three")), '-three: "c"\n+four = "c"'),
    "moved": (
        lambda x: x.section("y").section("deep").add("one", x.pop("one").changed("1")),
        "-# one\n-one = 1\n+[x.y.deep]\n+d = 1\n+# one\n+one = 1\n+\n-[x.y.deep]\n-d = 1\n-",
    ),
    "a moved section": (lambda x: x.add("z", x.pop("y")), "-[x.y]\n+[x.z]\n-[x.y.deep]\n+[x.z.deep]"),
}


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"], ids=["none", "lf", "crlf"])
@pytest.mark.parametrize("name", CHANGES)
def test_config_text_changes_these_lines_alone(name, ending):
    """Whether the last line has an ending or not, which stays so."""
    change, expected = CHANGES[name]
    text = LONG.replace("\n", ending or "\n") + ending
    config = ConfigText(text, "x")
    change(config.section)
    lines = difflib.unified_diff(text.splitlines(), str(config).splitlines(), n=0, lineterm="")
    assert [line for line in lines if not line.startswith(("---", "+++", "@@"))] == expected.splitlines()
    assert str(config).endswith(f"b = 1{ending}") and str(config).count("\n") == str(config).count(ending or "\n")


@pytest.mark.parametrize("ending", ["", "\n"])
@pytest.mark.parametrize(
    ("path", "before", "new"),
    [
        ("n", LONG, "\n\n[n]\nk = 1"),
        ("last", LONG, "\nk = 1"),
        ("last.n.m", LONG, "\n\n[last.n]\n\n[last.n.m]\nk = 1"),
        ("u.v.w", LONG, "\n\n[u]\n\n[u.v]\n\n[u.v.w]\nk = 1"),
        ("other.n", "[other]\na = 1", "\n\n[other.n]\nk = 1"),
    ],
)
def test_config_text_has_a_new_section(path, before, new, ending):
    assert with_settings(before + ending, {f"{path}.k": 1}) == before + new + ending
    for value, written in (("${a.b}", "${a.b}"), ("a.b", '"a.b"'), (None, "null"), ([1, 2], "[1, 2]")):
        assert with_settings(before, {f"{path}.k": value}) == before + new[:-1] + written


def test_config_text_says_what_can_not_be_read_or_written(tmp_path):
    with pytest.raises(ConfigError, match="expected the file of a config, found No such file or directory"):
        read_text(tmp_path / "none.cfg")
    with pytest.raises(ConfigError, match="found a folder"):
        check_output(tmp_path)
    with pytest.raises(ConfigError, match="found that of texts"):
        check_output(tmp_path / "a.spacy")
