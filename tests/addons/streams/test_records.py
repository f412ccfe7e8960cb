"""Texts with labels, from lines of JSON."""

import json

import pytest
import spacy
from spacy.tokens import DocBin
from spacy.training import Example

from thinc_torchopt.addons.streams.records import make_example, read_examples, read_record, row_of, unknown_keys
from thinc_torchopt.core.errors import StreamError

from ...models import toy_examples, toy_pipeline
from .streams import record


@pytest.fixture(scope="module")
def nlp():
    return spacy.blank("en")


def test_records_are_examples_of_spacy(nlp):
    """Against `Example.from_dict`, from a text, from words, and as `Example.to_dict` gives them."""
    for example in toy_examples(nlp, 6):
        expected = example.to_dict()
        own = record(example)
        text = {"text": example.reference.text, **own}
        for found in (expected, json.loads(json.dumps(expected))):
            assert make_example(nlp, found, "").to_dict() == expected
        for found in (own, text):
            made = make_example(nlp, found, "").to_dict()
            assert made["token_annotation"]["TAG"] == expected["token_annotation"]["TAG"]
            assert made["doc_annotation"]["entities"] == expected["doc_annotation"]["entities"]


def test_records_of_prodigy(nlp):
    found = read_record(
        json.dumps(
            {
                "text": "Anna flew to Oslo",
                "_input_hash": 1,
                "tokens": [],
                "meta": {},
                "answer": "accept",
                "spans": [{"start": 0, "end": 4, "label": "PERSON"}],
                "options": [{"id": "A"}, {"id": "B"}],
                "accept": ["B"],
            }
        ).encode(),
        "",
    )
    doc = make_example(nlp, found, "").reference
    assert [(span.text, span.label_) for span in doc.ents] == [("Anna", "PERSON")]
    assert doc.cats == {"A": 0.0, "B": 1.0}
    assert unknown_keys(row_of({**found, "stars": 3}, "")) == ["stars"] and not row_of(found, "").left_out
    assert row_of({"text": "a", "answer": "reject"}, "").left_out


@pytest.mark.parametrize(
    ("found", "ents", "cats", "tags"),
    [
        ({"text": "Anna flew", "label": [[0, 4, "PER"]]}, ["Anna"], {}, ""),
        ({"text": "Anna flew", "entities": [{"start_offset": 0, "end_offset": 4, "label": "PER"}]}, ["Anna"], {}, ""),
        ({"tokens": ["Anna", "flew"], "ner_tags": ["B-PER", "O"]}, ["Anna"], {}, ""),
        ({"tokens": ["Anna", "flew"], "pos_tags": ["NNP", "VBD"]}, [], {}, "NNP"),
        ({"text": "Anna flew", "tokens": ["Anna", "flew"], "ner_tags": ["B-PER", "O"]}, ["Anna"], {}, ""),
        ({"text": "An-na flew", "words": ["An-na", "flew"], "tags": ["NNP", "VBD"]}, [], {}, "NNP"),
        ({"words": ["An", "na"], "spaces": [False, True], "entities": [[0, 4, "PER"]]}, ["Anna"], {}, ""),
        ({"text": "Anna flew", "label": "A"}, [], {"A": 1.0}, ""),
        ({"text": "Anna flew", "labels": ["A", "B"]}, [], {"A": 1.0, "B": 1.0}, ""),
    ],
)
def test_records_of_doccano_and_hugging_face(nlp, found, ents, cats, tags):
    doc = make_example(nlp, read_record(json.dumps(found).encode(), ""), "").reference
    assert ([ent.text for ent in doc.ents], doc.cats, doc[0].tag_) == (ents, cats, tags)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', "expected JSON.*--follow"),
        (b"\xff\xfe", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"3", "expected an object with a 'text' or 'words', found '3'"),
        (b'{"text": "a b", "tags": ["X"]}', "its annotations don't fit"),
        (b'{"words": ["a"], "tags": ["X", "Y"]}', "its annotations don't fit"),
        (b'{"place": "a"}', "expected an object with a 'text' or 'words'"),
        (b'{"words": [3]}', "expected an object with a 'text' or 'words'"),
        (b'{"words": "ab"}', "expected an object with a 'text' or 'words'"),
        (b'{"text": "a", "spans": [{"start": 0}]}', "its annotations don't fit"),
        (b'{"text": "a", "options": 3, "accept": ["A"]}', "its annotations can't be read"),
        (b'{"text": "a", "complete": 3}', "expected a list of labels, or true, as 'complete', found 3"),
    ],
)
def test_records_that_are_damaged_end_the_run_and_nothing_is_lost(nlp, tmp_path_factory, line, message):
    with pytest.raises(StreamError, match=rf"(?s)Can't learn from line 7: .*{message}"):
        make_example(nlp, read_record(line, "line 7"), "line 7")


def test_records_of_a_corpus_of_spacy(nlp, tmp_path):
    """A .spacy file gives the same examples as its texts in JSON, with everything that spaCy trains on."""
    docs = [example.reference for example in toy_examples(toy_pipeline(), 5)]
    docs[0].spans["sc"] = [docs[0][0:2]]
    DocBin(docs=docs).to_disk(tmp_path / "old.spacy")
    found = list(read_examples(nlp, tmp_path / "old.spacy"))
    (tmp_path / "old.jsonl").write_text("\n".join(line for line, _ in found))
    again = list(read_examples(nlp, tmp_path / "old.jsonl"))
    for doc, (_, one), (_, other) in zip(docs, found, again, strict=True):
        assert one.to_dict() == other.to_dict() == Example(doc, doc).to_dict()
    (tmp_path / "bad.spacy").write_bytes(b"no corpus")
    with pytest.raises(StreamError, match="expected texts with annotations in a form that is known"):
        list(read_examples(nlp, tmp_path / "bad.spacy"))
