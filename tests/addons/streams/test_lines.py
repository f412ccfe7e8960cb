"""Texts as lines of JSON: nothing that is annotated is lost, and nothing that is missing is made up."""

import json

import numpy
import pytest
import spacy
from spacy.attrs import DEP, ENT_IOB, ENT_KB_ID, ENT_TYPE, LEMMA, MORPH, POS, SENT_START, TAG
from spacy.tokens import Doc, DocBin, Span

from thinc_torchopt.addons.streams.records import as_line, make_example, read_examples

VOCAB = spacy.blank("xx").vocab
WORDS = ["Anna", "sings", "Oslo", "listens"]


def nothing():
    return Doc(VOCAB, words=WORDS)


def some_tokens():
    doc = Doc(VOCAB, words=WORDS, tags=["N", "", "N", ""], lemmas=["", "sing", "", ""], pos=["", "VERB", "", ""])
    doc[0].set_morph("Number=Sing")
    doc[2].set_morph("")
    return doc


def some_entities():
    doc = nothing()
    doc.set_ents([Span(doc, 0, 1, "PERSON", kb_id="Q1")], outside=[Span(doc, 1, 2)], default="missing")
    return doc


def some_boundaries():
    return Doc(VOCAB, words=WORDS, sent_starts=[True, False, True, None])


def some_trees():
    return Doc(VOCAB, words=WORDS, heads=[1, 1, 2, 3], deps=["nsubj", "ROOT", "", ""])


def the_rest():
    doc = nothing()
    doc.cats = {"A": 1.0}
    doc.spans["sc"] = [Span(doc, 0, 2, "S", kb_id="Q2")]
    doc.spans["incorrect"] = [Span(doc, 2, 3)]
    doc.user_data["complete"] = ["CITY"]
    return doc


def annotations(doc):
    columns = doc.to_array([TAG, POS, MORPH, LEMMA, DEP, ENT_IOB, ENT_TYPE, ENT_KB_ID, SENT_START])
    columns[0, -1] = 1  # the first token always starts a sentence
    spans = {key: [(one.start, one.end, one.label_, one.kb_id_) for one in group] for key, group in doc.spans.items()}
    heads = [token.head.i for token in doc if token.dep]
    return numpy.asarray(columns).tolist(), heads, doc.cats, spans, doc.user_data.get("complete")


@pytest.mark.parametrize("make", [nothing, some_tokens, some_entities, some_boundaries, some_trees, the_rest])
def test_lines_and_files_have_the_annotations_of_a_text(make, tmp_path):
    nlp, doc = spacy.blank("xx"), make()
    said = {key: doc.user_data[key] for key in ("complete",) if key in doc.user_data}
    DocBin(docs=[doc], store_user_data=True).to_disk(tmp_path / "old.spacy")
    [(line, of_file)] = read_examples(nlp, tmp_path / "old.spacy")
    of_line = make_example(nlp, json.loads(as_line({"text": doc.text.strip(), **said}, doc)), "it")
    again = make_example(nlp, json.loads(line), "it")
    expected = annotations(doc)
    assert [annotations(one.reference) for one in (of_line, of_file, again)] == [expected] * 3
