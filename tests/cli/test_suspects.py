"""`spacy torchopt suspects`, as it is typed: list, write, accept, train again."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from spacy.tokens import DocBin
from spacy.vocab import Vocab

from thinc_torchopt.cli.suspects import _cells

from ..addons.recorder.test_recorder import recorded
from ..runs import run
from ..spacy_cli import refusal, spacy_cli


@pytest.fixture(scope="module")
def trained(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("suspects")
    run(recorded(folder, corpus, steps=20), folder / "run")
    return folder / "run"


def test_suspects_are_listed_written_accepted_and_trained_on(trained, tmp_path):
    found = spacy_cli("torchopt", "suspects", trained, "--most", 3, "--output", tmp_path / "rows.jsonl")
    assert "tagger:" in found.stdout
    assert "Saved 3 rows" in found.stdout
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["answer"] for row in rows] == ["ignore"] * 3
    for row in rows:
        assert row["meta"]["annotated"] in found.stdout
        assert f"{row['meta']['text']:,}" in found.stdout
        assert f"{row['meta']['score']:.1f}" in found.stdout
        assert f"[{row['meta']['words']}]" in row["meta"]["context"]
        assert row["meta"]["proposed"] in found.stdout
    same = sum(row["meta"]["proposed"] == row["meta"]["annotated"] for row in rows)
    assert (f"Proposed as annotated: {same} row" in found.stdout) == bool(same)
    rows[0] |= {"answer": "accept", "tags": ["NEW", *rows[0]["tags"][1:]]}
    rows.append(rows[0] | {"tags": ["NEW"]})
    rows.append({"text": "foreign", "words": ["foreign"], "spaces": [False], "tags": ["JJ"], "answer": "accept"})
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    new = tmp_path / "corpus.spacy"
    again = spacy_cli("torchopt", "suspects", trained, "--output", tmp_path / "rows.jsonl", check=False)
    assert "rows.jsonl': it has 3 answers. Give another name." in again.stderr
    found = spacy_cli("torchopt", "suspects", trained, "--accepted", tmp_path / "rows.jsonl", "--output", new)
    otherwise = sum(doc[0].tag_ == "NEW" for doc in DocBin().from_disk(new).get_docs(Vocab()))
    assert f"Saved the corpus to {new}: 2 accepted rows, {otherwise} texts annotated otherwise." in found.stdout
    assert "Texts whose annotations don't fit them: 1 (" in found.stdout
    assert "Left out, as the corpus lacks them or has them in other words: 1 text." in found.stdout
    found = spacy_cli(
        "torchopt", "init", tmp_path / "again.cfg", "--lang", "xx", "--paths.train", new, "--paths.dev", new
    )
    assert "5 labels" in found.stdout + found.stderr  # NEW, VBZ, JJ, NNP, "."


def test_suspects_of_a_component_or_label_only(trained):
    found = spacy_cli("torchopt", "suspects", trained, "--component", "tagger", "--label", "VBZ", "--most", 2)
    assert found.stdout.count("likes") == 2


def test_suspects_have_cells_of_40_letters():
    texts = {"context": "x" * 40, "annotated": "y" * 41, "proposed": "a\n b", "why": "w"}
    one = SimpleNamespace(number=1234, score=1.26, said=str, **texts)
    assert _cells(one) == ["1,234", "x" * 40, "y" * 39 + "…", "a b", "1.3", "w"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--component", "ner"), "Can't show 'ner': expected one of tagger, which were recorded."),
        (("--label", "VBX"), "Can't show 'VBX': no annotation or prediction with this label was recorded."),
        (("--output", "x.txt"), "Can't write 'x.txt': expected --output with a name that ends in .jsonl."),
        (("--output", "folder.jsonl"), "Can't write folder.jsonl: expected a file, found a folder."),
        (("--output", "/dev/null/x.jsonl"), "Can't write /dev/null/x.jsonl: "),
        (("--accepted", __file__), "expected --output with a name that ends in .spacy."),
        (
            ("--accepted", __file__, "--label", "X", "--output", "x.spacy"),
            "Can't use --accepted with --component or --label: all accepted rows are taken.",
        ),
    ],
)
def test_suspects_refuses(trained, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder.jsonl").mkdir()
    assert said in refusal("torchopt", "suspects", trained, *arguments)
