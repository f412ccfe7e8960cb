"""Annotations that may be wrong: those that a test made wrong are found, told, and can be put right."""

import json
import shutil
from collections import Counter

import numpy
import pytest
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Corpus, Example
from spacy.util import registry
from spacy.vocab import Vocab

from thinc_torchopt.addons.report import kinds, suspects
from thinc_torchopt.addons.report.report import _beside, read_report
from thinc_torchopt.addons.report.suspects import OfComponent, Suspects, read_suspects
from thinc_torchopt.core.errors import ConfigError, StateError
from thinc_torchopt.core.readers import read_docs
from thinc_torchopt.core.record import FOLDER, Record, digest, hardness_of

from ...models import toy_examples, toy_pipeline
from ...runs import config_for, run

RECORDER = {"@misc": "thinc-torchopt.Recorder.v1"}
LOWER = {"@augmenters": "spacy.lower_case.v1", "level": 1.0}


def units_of(hardness, hits=0, updates=10):
    record = Record(10_000)
    for i in range(updates):
        record.add("one", b"0" * 16, numpy.array(hardness, "f4"), numpy.full(len(hardness), i < hits))
    return record.units["one"][b"0" * 16]


def suspects_of(kind, examples, hardness, *, labels=(), predict=lambda doc: doc, most=10, label=None):
    """Those of a component with this hardness, whose predictions a function makes."""

    class Pipeline:
        def pipe(self, docs):
            return map(predict, docs)

    one = OfComponent("one", kind, labels, examples, [units_of(values) for values in hardness])
    return one.hardest(Pipeline(), most, label)


@pytest.fixture
def examples():
    return toy_examples(toy_pipeline([]), 6)


# ---------------------------------------------------------------------- ranking


def test_suspects_are_the_hardest_words_with_what_stands_elsewhere(examples):
    examples[2].reference[1].tag_ = "NN"

    def predict(doc):
        for token, tag in zip(doc, ["NNP", "VBZ", "JJ", "NNP", "."]):
            token.tag_ = tag
        return doc

    hardness = [[0.1] * len(one) for one in examples]
    hardness[2][1], hardness[4][0] = 0.9, 0.5
    first, second = suspects_of(kinds.TokenLabels("tag"), examples, hardness, predict=predict, most=2)
    told = first.number, first.words, first.said(first.annotated), first.said(first.predicted)
    assert told == (3, "likes", "NN", "VBZ")
    assert first.why == "predicted in 0 of 10 updates; elsewhere VBZ 5x"
    assert (second.number, second.words, second.why) == (5, "Anna", "predicted in 0 of 10 updates, and at the end")
    assert (first.context, first.is_as_proposed) == ("Anna [likes] blue London", False)
    assert (second.context[:12], second.is_as_proposed) == ("[Anna] likes", True)
    [only] = suspects_of(kinds.TokenLabels("tag"), examples, hardness, predict=predict, label="VBZ", most=1)
    assert only.number == 3


def test_scores_of_words_are_hardness_and_rarity_in_standard_deviations(examples):
    examples[2].reference[1].tag_ = "NN"
    hardness = [numpy.linspace(0, 1, len(one)) + i for i, one in enumerate(examples)]
    units = [units_of(values) for values in hardness]
    one = OfComponent("one", kinds.TokenLabels("tag"), (), examples, units)
    rarity = [[0.0] * len(example) for example in examples]
    for values in rarity:
        values[1] = 1 / 6  # of six words "likes", one has another tag
    rarity[2][1] = 5 / 6

    def spread(parts):  # with one 0, so that an empty corpus has one, too
        return numpy.std([*(value for part in parts for value in part), 0.0])

    means = [hardness_of(values) for values in units]
    for i, (mean, rare) in enumerate(zip(means, rarity)):
        expected = mean / spread(means) + 0.3 * numpy.array(rare) / spread(rarity)
        assert one.scores[i] == pytest.approx(expected, rel=1e-5)
        assert one.cost(i) == pytest.approx(max(expected), rel=1e-5)


def test_suspects_are_shown_with_four_words_on_each_side():
    doc = Doc(Vocab(), [*"abcdefghijklm"], tags=[*"XXXXXXYZXXXXX"])
    [first, *_] = suspects_of(kinds.TokenLabels("tag"), [Example(doc, doc)], [[0.0] * 6 + [1.0] + [0.0] * 6])
    assert first.context == "c d e f [g] h i j k"


def test_entities_are_dropped_moved_added_or_usual_elsewhere(examples):
    for i, ents in {0: [(3, 4, "CITY")], 1: [(0, 2, "PERSON"), (3, 4, "CITY")]}.items():
        examples[i].reference.set_ents([Span(examples[i].reference, *one) for one in ents])

    def predict(doc):
        doc.set_ents([Span(doc, 0, 1, "PERSON"), Span(doc, 2, 3, "COLOR")])
        return doc

    hardness = [[0.1] * len(one) for one in examples]
    hardness[0], hardness[1] = [0.9, 0, 0.8, 0], [0, 0.95, 0, 0, 0]
    found = suspects_of(kinds.Entities("ents"), examples[:3], hardness[:3], predict=predict)
    told = [(one.number, one.words, one.said(one.annotated), one.said(one.predicted)) for one in found]
    assert told[:3] == [
        (2, "Anna likes", "PERSON", "PERSON: Anna"),
        (1, "Anna", "nothing", "PERSON"),
        (1, "blue", "nothing", "COLOR"),
    ]
    [city] = [one for one in found if (one.number, one.words) == (1, "London")]  # as everywhere
    assert (city.said(city.annotated), city.said(city.predicted)) == ("CITY", "nothing") and "elsewhere" not in city.why
    [right] = [one.passage for one in found if (one.number, one.words) == (3, "Anna")]
    assert [mark.label for mark in right.annotated] == ["PERSON"] and not right.predicted


def test_words_that_are_mostly_annotated_elsewhere_are_suspects_without_a_prediction(examples):
    """London is annotated in four of six texts, Anna in half of them: not mostly."""
    for i, example in enumerate(examples):
        ents = [(0, 1, "PERSON")] * (i < 3) + [(3, 4, "CITY")] * (i > 1)
        example.reference.set_ents([Span(example.reference, *one) for one in ents])
    hardness = [[0.0] * len(one) for one in examples]
    hardness[1][3] = 0.9

    def predict(doc):
        doc.set_ents([])
        return doc

    found = suspects_of(kinds.Entities("ents"), examples, hardness, predict=predict)
    assert (found[0].number, found[0].words, found[0].said(found[0].proposed)) == (2, "London", "CITY")
    assert found[0].why == "predicted in 0 of 10 updates, and at the end; elsewhere CITY 4x"
    assert not found[0].is_as_proposed
    assert {one.words for one in found if not one.annotated} == {"London"}
    # What is shown: the proposed one, where nothing is annotated or predicted.
    passages = [one.passage for one in found if one.number == 2]
    marks = [[(one.start, one.label) for one in side] for it in passages for side in (it.annotated, it.predicted)]
    assert marks == [[], [(15, "CITY")], [(0, "PERSON")], []]


def test_classes_are_judged_by_text_and_heads_are_shown_with_their_words(examples):
    def predict(doc):
        doc.cats = {"RED": 0.9, "BLUE": 0.2}
        for token in doc:
            token.dep_, token.head = "dep", doc[0]
        return doc

    examples[0].reference.cats = {"BLUE": 0.0}  # nothing to judge
    hardness = [[0.1, 0.1]] * 5 + [[0.8, 0.9]]
    kind = kinds.Categories("cats", ("RED", "BLUE"), 0.5)
    found = suspects_of(kind, examples, hardness, labels=["RED", "BLUE"], predict=predict)
    first, last = found[0], next(one for one in found if one.number == 1)
    assert (first.number, first.words, first.said(first.annotated)) == (6, examples[5].text.strip(), "RED")
    assert (first.why, last.why) == ("predicted in 0 of 10 updates, and at the end", "predicted in 0 of 0 updates")
    hardness = [[0, 0, 0.5, 0, 0][: len(one)] for one in examples]
    examples[5].reference[2].dep_ = "nmod"  # of trees, nothing is said of the same words elsewhere
    first = suspects_of(kinds.Trees("dep"), examples, hardness, predict=predict)[0]
    assert (first.said(first.annotated), first.said(first.predicted)) == ("amod of London", "dep of Anna")
    assert first.why == "predicted in 0 of 10 updates"


def test_words_that_the_tokenizer_cuts_otherwise_have_the_worst_of_their_parts(examples):
    """Of two equal predictions, for two parts of a word, the first one stands in the annotated text."""
    cut = Doc(examples[0].predicted.vocab, ["Anna", "likes", "blue", "Lon", "don"], [True, True, True, False, False])

    def predict(doc):
        doc.set_ents([Span(doc, *one) for one in ((1, 2, "X"), (3, 4, "Y"), (4, 5, "Y"))])
        return doc

    example = Example(cut, examples[0].reference)
    found = suspects_of(kinds.Entities("ents"), [example], [[0.7, 0.0, 0.0, 0.2, 0.9]], predict=predict)
    told = [(one.words, one.said(one.annotated), one.said(one.predicted)) for one in found]
    assert told == [("London", "CITY", "Y"), ("Anna", "PERSON", "nothing"), ("likes", "nothing", "X")]


@pytest.mark.parametrize(("most", "numbers", "n_asked"), [(2, [6, 4], 2), (3, [6, 4, 5], 4)])
def test_pipeline_is_asked_about_the_hardest_texts_alone(examples, monkeypatch, most, numbers, n_asked):
    """Two at once, until no other text can have a harder annotation."""
    monkeypatch.setattr(suspects, "_AT_ONCE", 2)
    worst, asked = [0.1, 0.2, 0.3, 0.5, 0.5, 0.6], []
    hardness = [[worst[i]] + [0.1] * (len(one) - 1) for i, one in enumerate(examples)]
    hardness[5][1] = 0.35

    def predict(doc):
        asked.append(doc)
        return doc

    found = suspects_of(kinds.TokenLabels("tag"), examples, hardness, predict=predict, most=most)
    assert ([one.number for one in found], len(asked)) == (numbers, n_asked)


def test_labels_are_learned_early_late_or_never(examples):
    """Early: in half of the updates or more. What no update reached does not count."""
    units = [units_of([0.1] * len(one), hits, 10) for hits, one in zip((5, 4, 1, 0, 10, 0), examples)]
    units[5] = units_of([numpy.nan] * len(examples[5]), 0, 10)
    learned = OfComponent("one", kinds.TokenLabels("tag"), (), examples, units).learned()
    assert learned["NNP"] == Counter(early=4, late=4, never=2)


# ---------------------------------------------------------------------- what may be right

KINDS = {
    "tag": kinds.TokenLabels("tag"),
    "pos": kinds.TokenLabels("pos"),
    "lemma": kinds.TokenLabels("lemma"),
    "morph": kinds.Morphology("morph"),
    "dep": kinds.Trees("dep"),
    "ents": kinds.Entities("ents"),
    "spans": kinds.Spans("spans_sc"),
    "sents": kinds.Spans("sents", "sentence"),
    "cats": kinds.Categories("cats", (), 0.5),
}


def otherwise(doc):
    """Annotate a text in another way."""
    for token, pos in zip(doc, ["NOUN", "VERB", "ADJ", "NOUN"]):
        token.tag_, token.pos_, token.lemma_ = f"X{token.i}", pos, f"lemma{token.i}"
        token.set_morph(f"Case=C{token.i}")
    doc[2].head, doc[2].dep_ = doc[1], "obj"
    doc.set_ents([Span(doc, 1, 3, "THING")])
    doc.spans["sc"] = [Span(doc, 0, 1, "Y"), Span(doc, 0, 2, "Z")]
    doc.cats = {"RED": 1.0, "BLUE": 0.0}
    return doc


@pytest.mark.parametrize("name", KINDS)
def test_what_may_be_right_is_written_read_and_put_in_place(name, tmp_path):
    nlp = toy_pipeline([])
    [example], kind = toy_examples(nlp, 1), KINDS[name]
    for token in example.reference:
        token.lemma_, token.pos_ = "x", "X"
    if name in ("ents", "pos"):
        del example.reference.spans["sc"]
    wanted = otherwise(example.reference.copy())
    hardness = [[1.0, 0.7, 0.4, 0.2][: 2 if name == "cats" else 4]]
    found = suspects_of(kind, [example], hardness, labels=["RED", "BLUE"], predict=lambda doc: wanted.copy())
    changed = [one for one in found if one.annotated != one.predicted]
    assert changed or name == "sents"
    for one in changed:
        row = one.row()
        assert row["answer"] == "ignore"  # until somebody accepts it
        assert row["meta"]["score"] == round(one.score, 3)
        assert ("entities" in row) == (name != "ents")  # where they can be, as Prodigy shows them
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(row | {"answer": "accept"}))
        [doc], _ = read_docs(nlp, path)
        annotated, _ = kind.compare(Example(doc, doc))
        before, after = (kind.compare(Example(other, other))[0] for other in (example.reference, wanted))
        there = {item for item in after if name == "cats" or one.start <= item.start < one.end}
        others = {item for item in before if name != "cats" and not one.start <= item.start < one.end}
        assert annotated.keys() == there | others
        assert name != "cats" or doc.cats == wanted.cats


def test_report_and_suspects_of_a_run_with_a_planted_mistake(tmp_path, corpus):
    nlp = toy_pipeline([])
    docs = [*DocBin(store_user_data=True).from_disk(corpus["train"]).get_docs(nlp.vocab)]
    docs[7][1].tag_ = "JJ"
    DocBin(docs=docs, store_user_data=True).to_disk(tmp_path / "train.spacy")
    config = config_for(
        tmp_path, {**corpus, "train": tmp_path / "train.spacy"}, steps=40, training__optimizer__recorder=RECORDER
    )
    run(config, tmp_path / "run")
    found = read_suspects(tmp_path / "run")
    assert list(found.notes) == []
    first = found.of("tagger", 1)[0]
    assert (first.number, first.words, first.said(first.annotated)) == (8, "likes", "JJ")
    when = found.components["tagger"].learned()
    assert when["JJ"].total() == sum(token.tag_ == "JJ" for doc in docs for token in doc)
    assert when["JJ"]["never"] == 1

    row = first.row() | {"answer": "accept"}
    assert row["tags"][1] == "VBZ"
    told = {"annotated": "JJ", "proposed": "VBZ", "why": first.why, "context": first.context}
    assert row["meta"] == {**told, "text": 8, "component": "tagger", "words": "likes", "score": round(first.score, 3)}
    found.record.left_out = 1_200
    assert [*found.notes][-1].startswith("1,200 of the easier texts were not kept")
    about_another_word = row | {"tags": [token.tag_ for token in docs[7]]}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(about_another_word)}")
    # Others have the same words, and "VBZ".
    assert found.replace(tmp_path / "rows.jsonl", tmp_path / "new.spacy") == (2, 1, [])
    new = [*DocBin().from_disk(tmp_path / "new.spacy").get_docs(nlp.vocab)]
    assert [doc[1].tag_ for doc in new] == ["VBZ"] * len(docs)

    assert found.hardest_texts(1) == [(7, first.score)]
    docs[7][1].tag_ = "NNS"
    DocBin(docs=docs[7:], store_user_data=True).to_disk(tmp_path / "train.spacy")
    shutil.rmtree(tmp_path / "run" / "model-last")
    found = read_suspects(tmp_path / "run")
    gone, left = ({digest(Example(nlp.make_doc(doc.text), doc)) for doc in part} for part in (docs[:7], docs[8:]))
    assert next(found.notes).startswith(f"tagger: {len(gone - left) + 1} of ")
    assert [*found.components["tagger"].scores] == [*range(1, len(docs) - 7)]  # a new text has no score


def test_what_no_component_learns_stays_in_the_corpus(tmp_path, corpus):
    """Nor do texts go that the reader leaves out."""
    config = config_for(tmp_path, corpus, steps=5, training__optimizer__recorder=RECORDER, corpora__train__limit=20)
    run(config, tmp_path / "run")
    found = read_suspects(tmp_path / "run")
    before = [*DocBin(store_user_data=True).from_disk(corpus["train"]).get_docs(found.nlp.vocab)]
    assert len(found.examples) == 20 < len(before)
    row = found.of("tagger", 1)[0].row() | {"answer": "accept"}
    del row["heads"], row["deps"]
    row["tags"] = ["NEW"] * len(row["words"])
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    _, n, notes = found.replace(tmp_path / "rows.jsonl", tmp_path / "new.spacy")
    assert notes == []
    after = [*DocBin(store_user_data=True).from_disk(tmp_path / "new.spacy").get_docs(found.nlp.vocab)]
    assert n == sum(doc.text == row["text"] for doc in before) == sum(doc[0].tag_ == "NEW" for doc in after)
    assert len(before) == len(after)
    for old, new in zip(before, after):
        assert [(t.head.i, t.dep_, t.morph) for t in old] == [(t.head.i, t.dep_, t.morph) for t in new]
        assert (old.cats, [*map(str, old.ents)]) == (new.cats, [*map(str, new.ents)])
    (tmp_path / "rows.jsonl").write_text(json.dumps(row | {"cats": {"RDE": 1.0}}))
    with pytest.raises(ConfigError, match="expected categories of the corpus, BLUE and RED, found RDE"):
        found.replace(tmp_path / "rows.jsonl", tmp_path / "new.spacy")


def test_each_accepted_row_of_a_text_puts_its_own_change_there(tmp_path):
    """Also that an annotation is none, where it is the only one."""
    nlp = toy_pipeline(["ner"])
    examples = toy_examples(nlp, 2)
    nlp.initialize(lambda: examples)
    examples[1].reference.set_ents([Span(examples[1].reference, 1, 2, "CITY")])
    examples[0].reference.user_data["id"] = 7
    DocBin(docs=[one.reference for one in examples], store_user_data=True).to_disk(tmp_path / "train.spacy")
    config = nlp.config
    config["corpora"]["train"]["path"] = config["corpora"]["dev"]["path"] = str(tmp_path / "train.spacy")
    nlp.config = config
    found = object.__new__(Suspects)
    found.nlp, found.examples, found._kinds = nlp, examples, kinds.kinds_of(nlp, examples)
    made = [found._made_from(examples[i].reference, {"text": n}) for i, n in ((1, 0), (0, 1), (1, 2), (1, 3))]
    assert made == [None, examples[0].reference, examples[1].reference, None]
    person, city = {"start": 0, "end": 4, "label": "PERSON"}, {"start": 16, "end": 22, "label": "CITY"}
    rows = [
        {"text": examples[i].text, "words": [token.text for token in examples[i].reference], "spans": spans}
        for i, spans in ((0, [city]), (0, [person]), (1, []))
    ]
    rows.append({"text": "Not there.", "spans": []})
    for end in (10, 14):  # "Anna likes", "Anna likes red"
        rows.append(rows[2] | {"spans": [{"start": 0, "end": end, "label": "PERSON"}]})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    n_rows, n, notes = found.replace(tmp_path / "rows.jsonl", tmp_path / "new.spacy")
    assert (n_rows, n) == (6, 2)
    assert notes == [
        "Rows of one text contradict each other, and not all are put there: 1 text.",
        "Left out, as the corpus lacks them or has them in other words: 1 text.",
    ]
    docs = [*DocBin(store_user_data=True).from_disk(tmp_path / "new.spacy").get_docs(nlp.vocab)]
    assert docs[0].user_data == {"id": 7}
    # Each row has dropped one of the two of the first text; the last one of the second holds.
    assert [[str(ent) for ent in doc.ents] for doc in docs] == [[], ["Anna likes red"]]


def test_a_head_that_would_close_a_circle_is_not_put_there(examples):
    doc, kind = examples[1].reference.copy(), kinds.Trees("dep")
    before = [(token.head.i, token.dep_) for token in doc]
    [item] = [item for item in kind.compare(Example(doc, doc))[0] if item.start == 3]
    kind.put(doc, [item], [item._replace(head=2)])  # the word below it
    assert [(token.head.i, token.dep_) for token in doc] == before
    kind.put(doc, [item], [item._replace(head=3, label="root")])
    assert (doc[3].head.i, doc[3].dep_) == (3, "ROOT")


def test_sentences_of_trees_change_with_them_alone(examples):
    """spaCy refuses other ones."""
    doc, both = examples[1].reference.copy(), [kinds.Trees("dep"), kinds.Spans("sents", "sentence")]
    other = doc.copy()
    both[0].put(other, [], [kinds.Item("root", "root", 3, 4, 3)])
    for kind in [*reversed(both), *both]:
        old, new = (kind.compare(Example(one, one))[0].keys() for one in (doc, other))
        kind.put(doc, [*(old - new)], [*(new - old)])
    assert [(sent.start, sent.end) for sent in doc.sents] == [(sent.start, sent.end) for sent in other.sents]
    assert len([*doc.sents]) == 2
    doc, other = (Doc(Vocab(), [*"abcd"], sent_starts=starts) for starts in ([1, 0, 1, 0], [1, 1, 0, 0]))
    old, new = (kinds.Spans("sents", "sentence").compare(Example(one, one))[0].keys() for one in (doc, other))
    kinds.Spans("sents", "sentence").put(doc, [*(old - new)], [*(new - old)])
    assert [bool(token.is_sent_start) for token in doc] == [True, True, False, False]


def test_report_of_a_corpus_that_has_moved_is_made_without_suspects(tmp_path, corpus):
    shutil.copy(corpus["train"], tmp_path / "train.spacy")
    config = config_for(
        tmp_path, {**corpus, "train": tmp_path / "train.spacy"}, steps=5, training__optimizer__recorder=RECORDER
    )
    run(config, tmp_path / "run")
    (tmp_path / "log.jsonl").write_text('{"step": 0, "losses": {"tagger": 2.0}}\n')
    found = read_report(tmp_path / "log.jsonl", model=tmp_path / "run" / "model-best")
    page = found.html()
    assert "Tags that may be wrong: the 50 hardest in training" in page and "The 20 hardest texts" in page
    [(_, _, learned), *_] = _beside(found)["learned"]
    assert learned == sorted(learned, key=lambda row: (-sum(map(int, row[1:])), row[0]))
    (tmp_path / "train.spacy").unlink()
    found = read_report(tmp_path / "log.jsonl", model=tmp_path / "run" / "model-best")
    [note] = [note for note in found.runs[0].notes if note.startswith("Annotations that may be wrong are not shown.")]
    assert "Can't read the training texts" in note


@registry.readers("suspects-both")
def both(first: str, second: str):
    return {"train": Corpus(first), "dev": Corpus(second)}


def test_suspects_of_corpora_that_one_function_reads(tmp_path, corpus):
    config = config_for(tmp_path, corpus, steps=5, training__optimizer__recorder=RECORDER)
    files = {"first": str(corpus["train"]), "second": str(corpus["dev"])}
    config["corpora"] = {"@readers": "suspects-both", **files}
    run(config, tmp_path / "run")
    assert len(read_suspects(tmp_path / "run").of("tagger", 1)) == 1


def test_suspects_without_a_record_are_refused(tmp_path, corpus):
    with pytest.raises(ConfigError, match="expected the folder of a training with 'recorder'"):
        read_suspects(tmp_path)
    run(config_for(tmp_path, corpus, steps=5, training__optimizer__recorder=RECORDER), tmp_path / "run")
    model = shutil.copytree(tmp_path / "run" / "model-last", tmp_path / "recorded")
    shutil.rmtree(tmp_path / "state")
    run(config_for(tmp_path, corpus, steps=5), tmp_path / "run")  # the record is of the run before
    with pytest.raises(ConfigError, match="the run in this folder was finished without it"):
        read_suspects(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model-best")
    shutil.rmtree(tmp_path / "run" / "model-last")
    model.rename(tmp_path / "run" / "model-last")
    (tmp_path / "run" / FOLDER / "values.json").write_text("{}")
    with pytest.raises(StateError):
        read_suspects(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / FOLDER)
    with pytest.raises(ConfigError, match="expected the folder of a training with 'recorder'"):
        read_suspects(tmp_path / "run")


def test_corpus_of_suspects_is_what_an_augmenter_reads_and_ends(corpus):
    nlp = toy_pipeline([])
    nlp.config["paths"] |= {name: str(corpus[name]) for name in ("train", "dev")}
    nlp.config["corpora"]["train"]["augmenter"] = LOWER
    assert {example.text[:4] for example in suspects._corpus_of(nlp)} == {"Anna"}
    reader = nlp.config["corpora"]["train"]
    n = len(suspects._corpus_of(nlp))
    reader |= {"limit": 3, "max_length": 4}
    assert len(suspects._corpus_of(nlp)) <= 3 < len(suspects._corpus_of(nlp, is_whole=True)) == n
    nlp.config["training"]["max_epochs"] = -1
    with pytest.raises(ConfigError, match="max_epochs is -1"):
        suspects._corpus_of(nlp)
