"""Reading texts that nobody has annotated."""

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin

from thinc_torchopt.addons.teacher.texts import cut, draw_pieces, read_texts
from thinc_torchopt.core.errors import ConfigError

NLP = spacy.blank("en")


def test_texts_of_each_kind(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffOne.\n\n  \nTwo ü.\r\n", encoding="utf8")
    (tmp_path / "b.jsonl").write_text('{"text": "Three."}\n\n{"text": "Four\\u2028.", "meta": 1}\n')
    DocBin(docs=[NLP("Five."), NLP("")]).to_disk(tmp_path / "c.spacy")
    assert [text.strip() for text in read_texts(tmp_path / "a.txt", "x")] == ["One.", "Two ü."]
    assert read_texts(tmp_path / "b.jsonl", "x") == ["Three.", "Four\u2028."]
    assert read_texts(tmp_path / "c.spacy", "x") == ["Five."]
    (tmp_path / "d.csv").write_text("text,label\nSix.,A\nSeven.,\n")
    assert read_texts(tmp_path / "d.csv", "x") == ["Six.", "Seven."]
    # In a folder each .txt is one text.
    assert sorted(text[:3] for text in read_texts(tmp_path, "x")) == ["Fiv", "Fou", "One", "Thr"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"\n \n", "expected texts, found none at"),
        ("a.txt", b"\xff\xfe", "expected text in UTF-8: "),
        ("a.jsonl", b'{"text": 1}\n', "expected a JSON object with a 'text' in each line: line 1 is '{"),
        ("a.jsonl", b'{"text": "a"}\n["b"]\n', "line 2 is"),
        ("a.jsonl", b"{", "expected a JSON object"),
        ("a.jsonl", b'{"text": "\\ud800 Anna"}\n', "the text of line 1 has half of a surrogate pair: '{"),
        ("a.spacy", b"x", "expected spaCy's binary format"),
        ("a.md", b"x", "found a file of another kind"),
        ("a.json", b"x", "expected texts with annotations in a form that is known, found 'x'"),
    ],
)
def test_texts_that_cannot_be_read(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_texts(tmp_path / name, "'texts'")
    assert said in str(error.value) and str(error.value).startswith("Can't read 'texts'")


def words(docs):
    return [[token.text for token in doc] for doc in docs]


def test_texts_are_cut_at_ends_of_sentences():
    doc = NLP("One two. Three four five. Six.\n\nSeven eight nine ten eleven twelve")
    assert words(cut(doc, 8)) == [
        ["One", "two", ".", "Three", "four", "five", "."],
        ["Six", "."],
        ["Seven", "eight", "nine", "ten", "eleven", "twelve"],
    ]
    assert words(cut(doc, 4)) == [
        ["One", "two", "."], ["Three", "four", "five", "."], ["Six", "."],
        ["Seven", "eight", "nine", "ten"], ["eleven", "twelve"],
    ]  # fmt: skip
    assert words(cut(doc, 0)) == [[token.text for token in doc]]
    assert words(cut(NLP(" \n "), 4)) == []


@given(st.text(st.sampled_from("ab .!?\n"), max_size=60), st.integers(1, 9))
def test_cutting_loses_only_white_space(text, most):
    doc = NLP.make_doc(text)
    pieces = list(cut(doc, most))
    assert all(0 < len(piece) <= most for piece in pieces)
    kept = [token.text for token in doc if not token.is_space]
    assert [token.text for piece in pieces for token in piece if not token.is_space] == kept
    assert all(not piece[0].is_space and not piece[-1].is_space for piece in pieces)


def test_drawing_by_a_seed():
    texts = [f"Text {i}." for i in range(20)]
    one, same, other = ([doc.text for doc in draw_pieces(NLP, texts, 9, seed)] for seed in (0, 0, 1))
    assert one == same != other and sorted(one) == sorted(texts) == sorted(other)


def test_texts_longer_than_a_tokenizer_takes():
    text = "word " * 250_000  # 1,250,000 characters, where spaCy refuses more than 1,000,000
    pieces = list(draw_pieces(NLP, [text], 1000, 0))
    assert sum(map(len, pieces)) == 250_000
    assert isinstance(pieces[0], Doc)
