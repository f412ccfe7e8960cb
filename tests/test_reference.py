"""docs/reference/ says what the code says."""

import importlib.util
import sys
from configparser import ConfigParser
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WRITER = ROOT / "docs" / "_site" / "reference.py"


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference", WRITER)
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module  # where a dataclass looks for it
    spec.loader.exec_module(module)
    yield module
    del sys.modules["reference"]


def test_reference_is_up_to_date(reference):
    """`make reference` writes it. The defaults of torch's classes are those of the version that is pinned."""
    if f"torch=={version('torch').partition('+')[0]}\n" not in (ROOT / "constraints.txt").read_text():
        pytest.skip("the reference is written with another version of torch")
    pages = reference.pages()
    assert {path.name for path in reference.FOLDER.glob("*.md")} == set(pages)
    for name, text in pages.items():
        assert (reference.FOLDER / name).read_text(encoding="utf-8") == text, f"{name} is out of date: make reference"


def test_reference_has_all_that_is_registered(reference):
    setup = ConfigParser()
    setup.optionxform = str
    setup.read(ROOT / "setup.cfg")
    groups = setup["options.entry_points"]
    shown = {group for _, _, of_page in reference.REGISTERED.values() for group in of_page}
    assert shown == {group for group in groups if group != "spacy_cli" and "torchopt" not in group}
    text = "".join(path.read_text(encoding="utf-8") for path in reference.FOLDER.glob("*.md"))
    for group in shown:
        for line in groups[group].strip().splitlines():
            assert f"# {line.partition(' = ')[0]}\n" in text, line


def test_reference_reads_docstrings(reference):
    """Settings on lines of their own, several on a line, several of one meaning; what follows them; the source."""

    def fall(rate: float, *, steps: int = 5, low: float = 0.0, high: float = 1.0, times=(), mode="a", of=""):
        """Fall. Registered as `x.Fall.v1`; needs luck.

        rate (float | schedule): Goes *down*,
            and down.
        steps (int): How many. low, high (float): The ends.
        times (list[float, int]), mode ("a" | "b"), of: As there.
        RETURNS (int): Nothing of use.

        More.
        SOURCE: Newton 1687, https://example.org/apple.
        """

    lines = [line for part in reference.described("x.Fall.v1", fall, "##") for line in part.splitlines()]
    assert lines == [
        "## x.Fall.v1",
        "Fall. Needs luck.",
        "| setting | type | default | meaning |",
        "| --- | --- | --- | --- |",
        "| `rate` | float or schedule | required | Goes \\*down\\*, and down. |",
        "| `steps` | int | `5` | How many. |",
        "| `low` | float | `0.0` | The ends. |",
        "| `high` | float | `1.0` | The ends. |",
        "| `times` | list[float, int] | `[]` | As there. |",
        '| `mode` | "a" or "b" | `"a"` | As there. |',
        '| `of` |  | `""` | As there. |',
        "More.",
        "Source: Newton 1687, <https://example.org/apple>.",
    ]
