"""`spacy torchopt convert`, and what `init`, `learn` and `try` do with files of other programs."""

import json
from collections import Counter

import pytest
import spacy
from confection import Config
from spacy.tokens import DocBin

from thinc_torchopt.core.readers import read_docs

from ..spacy_cli import refusal, spacy_cli, toy_corpus


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    toy_corpus(tmp_path)
    return tmp_path


def texts_in(path):
    docs = DocBin().from_disk(path).get_docs(spacy.blank("en").vocab)
    return [(doc.text, [(ent.text, ent.label_) for ent in doc.ents]) for doc in docs]


def test_convert_tells_what_it_found(corpus):
    """In 72 texts with entities and 40 without; its numbers are counted once more."""
    with open("texts.jsonl", "a") as file:
        file.write((corpus / "raw.jsonl").read_text())
    out = spacy_cli("torchopt", "convert", "texts.jsonl", "new/a.spacy", "--lang", "en").stdout
    nlp = spacy.blank("en")
    expected = [
        (doc.text, [(ent.text, ent.label_) for ent in doc.ents]) for doc in read_docs(nlp, corpus / "texts.jsonl")[0]
    ]
    assert texts_in("new/a.spacy") == expected and "112 texts, 72 annotated, read as JSON objects." in out
    labels = Counter(label for _, ents in expected for _, label in ents).most_common()
    assert f"Entities: {' and '.join(f'{label} {n}' for label, n in labels)}." in out
    spacy_cli("torchopt", "convert", "texts.jsonl", "new/a.spacy", "--lang", "en")  # over its own file


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["texts.jsonl", "a.json"], "expected a name that ends in .spacy. Give it: a.spacy"),
        (["texts.jsonl", "train.spacy"], "it already exists, and was not made from 'texts.jsonl'"),
        (["texts.jsonl", "a.spacy", "--misaligned", "x"], "expected one of expand, contract, drop"),
    ],
)
def test_convert_refuses(corpus, args, said):
    before = (corpus / "train.spacy").read_bytes()
    assert said in refusal("torchopt", "convert", *args)
    assert (corpus / "train.spacy").read_bytes() == before and not (corpus / "a.spacy").exists()


def test_init_of_each_form_makes_the_same_config(corpus):
    """And the same texts, whatever the form."""
    rows = [json.loads(line) for line in (corpus / "texts.jsonl").read_text().splitlines()]
    triples = [(row["text"], [[s["start"], s["end"], s["label"]] for s in row["spans"]]) for row in rows]
    files = {
        "doccano.jsonl": "".join(json.dumps({"text": text, "label": spans}) + "\n" for text, spans in triples),
        "tuples.json": json.dumps([[text, {"entities": spans}] for text, spans in triples]),
    }
    (corpus / "brat").mkdir()
    for i, (text, spans) in enumerate(triples):
        (corpus / f"brat/{i:02}.txt").write_text(text)
        marks = [f"T{k}\t{label} {a} {b}\t{text[a:b]}\n" for k, (a, b, label) in enumerate(spans, start=1)]
        (corpus / f"brat/{i:02}.ann").write_text("".join(marks))
    for name, content in files.items():
        (corpus / name).write_text(content)
    found = {}
    for name in ("texts.jsonl", *files, "brat"):
        out = spacy_cli("torchopt", "init", "c.cfg", "--lang", "en", "--paths.train", name, "--split", "0.2", "--force")
        stem = name.partition(".")[0]
        assert f"Converted {name} to corpus/{stem}.spacy." in out.stdout
        config = Config().from_disk("c.cfg", interpolate=False)
        assert config["paths"]["train"] == f"corpus/{stem}-split-train.spacy"
        config["paths"] = {}
        found[name] = (config.to_str(), texts_in(f"corpus/{stem}.spacy"))
    assert len({json.dumps(one) for one in found.values()}) == 1
    said = refusal("torchopt", "init", "d.cfg", "--paths.train", "texts.jsonl")
    assert "expected the language of the texts" in said
    for args in (["d.cfg", "--lang", "en"], ["c.cfg", "d.cfg", "--recipe", "best"]):
        said = refusal("torchopt", "init", *args, "--misaligned", "drop", "--paths.train", "train.spacy")
        assert "Can't use --misaligned" in said
