"""The record of a training: sums by unit, the texts that stay, and what is saved."""

import numpy
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc, Span
from spacy.training import Example

from thinc_torchopt.core.errors import StateError
from thinc_torchopt.core.record import FOLDER, Record, digest, hardness_of

from ..models import toy_examples


def array(*values):
    return numpy.array(values, "f4")


def fields(units):
    return {name: units[name].tolist() for name in units.dtype.names}


def key(n):
    return n.to_bytes(16, "big")


def test_record_sums_updates_and_keeps_the_first_and_the_last():
    record = Record(1000)
    record.add("ner", key(1), array(4, numpy.nan), array(False, False) > 0)
    record.add("ner", key(1), array(2, 3), array(True, True) > 0)
    record.add("ner", key(1), array(numpy.inf, 1), array(True, False) > 0)
    assert fields(record.units["ner"][key(1)]) == {
        "total": [6, 4],
        "first": [4, 3],
        "last": [2, 1],
        "updates": [2, 2],
        "hits": [1, 1],
    }
    assert hardness_of(record.units["ner"][key(1)]).tolist() == [2, pytest.approx(4 / 3)]


def test_record_of_a_text_begins_again_when_a_classifier_has_another_label():
    record = Record(3)  # the units of the first one take no room any more
    record.add("cats", key(1), array(1, 1), array(0, 0) > 0)
    record.add("cats", key(1), array(2, 2, 2), array(1, 1, 1) > 0)
    assert fields(record.units["cats"][key(1)])["updates"] == [1, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        lambda doc: setattr(doc[0], "tag_", "XX"),
        lambda doc: setattr(doc[0], "lemma_", "xx"),
        lambda doc: doc.set_ents([]),
        lambda doc: doc.cats.update(RED=0.5),
        lambda doc: doc.spans.update(other=[Span(doc, 0, 1, "X")]),
        lambda doc: doc.spans["sc"].append(Span(doc, 1, 2, "X")),
    ],
)
def test_digest_is_of_words_and_annotations(change):
    nlp = spacy.blank("xx")
    [example], [again], [other] = (toy_examples(nlp, 1) for _ in range(3))
    again.predicted.user_data["x"], again.predicted[0].tag_ = 1, "YY"
    change(other.reference)
    assert digest(example) == digest(again) == digest(Example(example.predicted.copy(), example.reference.copy()))
    assert digest(example) != digest(other)
    assert digest(example) != digest(Example(Doc(nlp.vocab, words=["Anna", "likes"]), example.reference))


ADDED = st.tuples(
    st.sampled_from(["ner", "tagger"]), st.integers(0, 5), st.lists(st.floats(0, 9, width=32), min_size=2, max_size=2)
)


@given(st.lists(ADDED, max_size=20), st.integers(0, 20))
def test_record_goes_on_from_a_saved_state_to_the_bit(added, stop):
    whole, first, second = Record(8), Record(8), Record(8)
    for i, (component, text, hardness) in enumerate(added):
        hits = array(*hardness) < 1
        whole.add(component, key(text), array(*hardness), hits)
        (first if i < stop else second).add(component, key(text), array(*hardness), hits)
        if i + 1 == stop:
            second.load_state_dict(first.state_dict())
    found = second if len(added) > stop or stop == len(added) else first
    assert found.left_out == whole.left_out
    assert {name: {text: fields(units) for text, units in texts.items()} for name, texts in found.units.items()} == {
        name: {text: fields(units) for text, units in texts.items()} for name, texts in whole.units.items()
    }


def test_record_keeps_the_hardest_texts_and_a_sample(tmp_path):
    record = Record(100)
    for n in range(101):
        assert record.left_out == 0
        record.add("ner", key(n), array(n / 1000), array(0) > 0)
    kept = {int.from_bytes(text, "big") for text in record.units["ner"]}
    # Half of the room by hardness, a quarter by digest: here the lowest numbers.
    assert kept == {*range(51, 101), *range(25)}
    assert record.left_out == 26


def test_record_on_disk_is_read_or_refused(tmp_path):
    record = Record(100)
    record.add("ner", key(1), array(1, 2), array(0, 1) > 0)
    record.add("ner", key(2), array(), array() > 0)
    record.to_disk(tmp_path)
    assert fields(Record.from_disk(tmp_path).units["ner"][key(1)]) == fields(record.units["ner"][key(1)])
    state = record.state_dict()
    state["components"]["ner"]["total"] = state["components"]["ner"]["total"][:1]
    with pytest.raises(StateError, match="expected tensors for the same texts"):
        Record(100).load_state_dict(state)
    (tmp_path / FOLDER / "values.json").write_text("{}")
    with pytest.raises(StateError, match="values"):
        Record.from_disk(tmp_path)
