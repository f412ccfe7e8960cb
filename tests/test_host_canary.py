"""`python -m tests.host_canary`: functions of spaCy and thinc that are replaced or followed, as they were recorded."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import spacy

from . import host_canary

LOOP = Path(spacy.__file__).parent / "training" / "loop.py"


@pytest.fixture
def other_spacy(tmp_path):
    """Makes a folder with a spaCy whose training/loop.py has another text. There is no more of it."""

    def made(old, new):
        text = LOOP.read_text()
        assert old in text
        path = tmp_path / "spacy" / "training" / "loop.py"
        path.parent.mkdir(parents=True)
        path.write_text(text.replace(old, new))
        metadata = tmp_path / "spacy-9.9.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: spacy\nVersion: 9.9\n")
        return tmp_path

    return made


def told(folder, capsys):
    """What is said of each function of spacy.training.loop, by its name."""
    capsys.readouterr()
    host_canary.main([str(folder)])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("spacy 9.9: ") for line in lines) == 2
    within = [line.strip().removeprefix("spacy.training.loop.") for line in lines if "  spacy.training.loop." in line]
    return dict(line.split(": ", maxsplit=1) for line in within)


def test_canary_knows_the_installed_versions(capsys):
    """A new version in which a function changed: look at it with --diff, then record it."""
    status = host_canary.main([])
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert f"spacy {version('spacy')}, thinc {version('thinc')}: 0 of 16 functions that are replaced changed." in shown
    assert all(name in host_canary.RECORD.read_text() for name in ("Language.initialize", "create_train_batches"))


def test_canary_sees_other_parameters(other_spacy, capsys):
    old = "def clean_output_dir(path: Optional[Path]"
    assert told(other_spacy(old, f"{old}, keep: int = 2"), capsys) == {
        "clean_output_dir": "parameters: expected none more, found `keep: int=2`"
    }


def test_canary_sees_another_source_and_how_it_differs(other_spacy, capsys):
    folder = other_spacy("in subdivide_batch(batch, accumulate_gradient)", "in subdivide_batch(batch, 1)")
    assert told(folder, capsys) == {"train_while_improving": "same parameters, other source"}
    assert host_canary.main([str(folder), "--diff"]) == 1
    assert "+        for subbatch in subdivide_batch(batch, 1):" in capsys.readouterr().out


def test_canary_sees_functions_that_are_gone(other_spacy, capsys):
    assert told(other_spacy("def clean_output_dir(", "def clean_folder("), capsys) == {"clean_output_dir": "it is gone"}


def test_canary_leaves_comments_and_formatting_alone(other_spacy, capsys):
    old = "def clean_output_dir(path: Optional[Path]) -> None:\n"
    new = "def clean_output_dir(\n    path: Optional[Path],  # a folder\n) -> None:\n    # Remove them.\n"
    assert told(other_spacy(old, new), capsys) == {}


def test_canary_records_each_form_with_its_versions(other_spacy, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(host_canary, "RECORD", tmp_path / "record.json")
    folder = other_spacy("in subdivide_batch(batch, accumulate_gradient)", "in subdivide_batch(batch, 1)")
    host_canary.main(["--record", str(folder)])
    assert host_canary.main([]) == 0 and told(folder, capsys) == {}
    recorded = json.loads((tmp_path / "record.json").read_text())
    forms = recorded["spacy.training.loop.train_while_improving"]
    assert [form["versions"] for form in forms] == [["9.9"], [version("spacy")]]
    assert [form["versions"] for form in recorded["spacy.training.loop.train"]] == [["9.9", version("spacy")]]
