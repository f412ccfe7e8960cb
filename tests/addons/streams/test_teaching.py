"""New labels in a stream: what was known is kept, by a teacher."""

import json
import shutil
from contextlib import nullcontext

import pytest
import spacy
from spacy.training import Example
from thinc.api import fix_random_seed

from thinc_torchopt import add_labels
from thinc_torchopt.addons.streams import LearnSettings, StreamLearner
from thinc_torchopt.addons.streams.records import as_line, make_example, read_examples
from thinc_torchopt.addons.streams.scores import old_and_new
from thinc_torchopt.addons.streams.source import LineReader
from thinc_torchopt.addons.streams.teaching import StreamTeacher
from thinc_torchopt.core.errors import StateError, StreamError
from thinc_torchopt.loop.teacher import Teacher

from ...models import toy_examples, toy_pipeline
from .streams import OPTIMIZER, files, learn, load, rows, stops, write_stream


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A pipeline that knows PERSON and CITY."""
    fix_random_seed(0)
    nlp = toy_pipeline(["ner"])
    examples = toy_examples(nlp, 30)
    sgd = nlp.initialize(lambda: examples)
    sgd.learn_rate = 0.01
    for _ in range(25):
        nlp.update(examples, sgd=sgd)
    assert nlp.evaluate(examples)["ents_f"] == 1.0
    nlp.config["training"]["optimizer"] = OPTIMIZER
    folder = tmp_path_factory.mktemp("model") / "model"
    nlp.to_disk(folder)
    return folder


def colors(i, found):
    """Only the color is annotated."""
    text = " ".join(found["words"])
    color = "red" if i % 2 else "blue"
    return {"text": text, "entities": [[text.index(color), text.index(color) + len(color), "COLOR"]]}


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """stream.jsonl with COLOR alone; watched.jsonl with all labels; old.jsonl with PERSON and CITY."""
    folder = tmp_path_factory.mktemp("streams")

    def all_labels(i, found):
        return {**colors(i, found), "entities": colors(i, found)["entities"] + found["entities"]}

    write_stream(folder / "stream.jsonl", 24, changed=colors)
    write_stream(folder / "watched.jsonl", 12, changed=all_labels)
    write_stream(folder / "old.jsonl", 12, changed=lambda i, found: {k: v for k, v in found.items() if k != "tags"})
    return folder


def per_label(folder, watched):
    nlp = spacy.load(folder / "model-last")
    scores = nlp.evaluate([example for _, example in read_examples(nlp, watched)])["ents_per_type"]
    return {label: found["f"] for label, found in scores.items()}


def test_teaching_keeps_old_labels(model, streams, tmp_path):
    watched = streams / "watched.jsonl"
    forgets, _ = learn(model, streams / "stream.jsonl", tmp_path / "a", watched=watched, new_labels="add",
                       teacher=False, every=20, watch_every=20)  # fmt: skip
    keeps, told = learn(model, streams / "stream.jsonl", tmp_path / "b", watched=watched, new_labels="add", every=20,
                        watch_every=20)  # fmt: skip
    assert per_label(tmp_path / "b", watched) == {"PERSON": 1.0, "CITY": 1.0, "COLOR": 1.0}
    assert per_label(tmp_path / "a", watched)["PERSON"] < 0.5
    # Apart in the rows; before there are new labels there is nothing to tell apart.
    assert (keeps[0].watched_old, keeps[0].watched_new) == (None, None)
    assert (keeps[-1].watched_old, keeps[-1].watched_new) == (1.0, 1.0)
    assert forgets[-1].watched_old < 0.5 and forgets[-1].watched_new == 1.0
    assert "filled in by the pipeline as it is now" in told[0] and not (tmp_path / "a" / "teacher").exists()


@pytest.mark.parametrize("stop", [3, 11])
def test_teaching_goes_on_to_the_bit(model, streams, tmp_path, stop):
    options = {"new_labels": "add", "replay": 2, "memory": 8, "old": streams / "old.jsonl", "batch_size": 2}
    learn(model, streams / "stream.jsonl", tmp_path / "one", **options)
    learn(model, streams / "stream.jsonl", tmp_path / "two", is_stopped=stops(stop + 1), **options)
    learn(model, streams / "stream.jsonl", tmp_path / "two", **options)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    kept = [[row for row in rows(tmp_path / name) if not row["is_last"]][-1] for name in ("one", "two")]
    assert kept[0] == kept[1]


def test_teaching_goes_on_only_with_its_teacher(model, streams, tmp_path):
    learn(model, streams / "stream.jsonl", tmp_path, new_labels="add", is_stopped=stops(5))
    with pytest.raises(StateError, match="--teacher: True before, False now"):
        learn(model, streams / "stream.jsonl", tmp_path, new_labels="add", teacher=False)
    shutil.move(tmp_path / "teacher", tmp_path / "away")
    with pytest.raises(StateError, match=r"expected the teacher that the run began with in .* found none. Put it back"):
        learn(model, streams / "stream.jsonl", tmp_path, new_labels="add")
    shutil.copytree(tmp_path / "model-last", tmp_path / "teacher")
    with pytest.raises(StateError, match="found another one"):
        learn(model, streams / "stream.jsonl", tmp_path, new_labels="add")
    shutil.rmtree(tmp_path / "teacher")
    shutil.move(tmp_path / "away", tmp_path / "teacher")
    learn(model, streams / "stream.jsonl", tmp_path, new_labels="add")


def test_teaching_begins_where_labels_are_added_from_then_on(model, streams, tmp_path):
    """The pipeline as it is then is the teacher."""
    old = [json.loads(line) for line in (streams / "old.jsonl").read_text().splitlines()]
    new = (streams / "stream.jsonl").read_text()
    stream = tmp_path / "stream.jsonl"
    stream.write_text("".join(json.dumps(one) + "\n" for one in old))
    learn(model, stream, tmp_path / "out", new_labels="refuse")
    assert not (tmp_path / "out" / "teacher").exists()
    with stream.open("a") as file:
        file.write(new)
    learn(model, stream, tmp_path / "out", new_labels="add")
    assert (tmp_path / "out" / "teacher" / "config.cfg").exists()
    assert per_label(tmp_path / "out", streams / "watched.jsonl")["PERSON"] == 1.0


def learner(model, folder, **settings):
    return StreamLearner(*load(model), folder, LearnSettings(new_labels="add", **settings))


def test_teaching_keeps_filled_texts_in_the_memory(model, streams, tmp_path):
    with learner(model, tmp_path / "out", replay=1, memory=50) as found:
        list(found.learn(LineReader(streams / "stream.jsonl")))
        lines = [(json.loads(line), n) for line, n in found.progress.memory.lines]
        assert len(lines) == 24 and all(n == 1 for _, n in lines)
        assert lines[0][0]["doc_annotation"]["entities"][:4] == ["U-PERSON", "O", "U-COLOR", "U-CITY"]
        assert lines[0][0]["text"] == "Anna likes blue London"
        assert found.teacher.filled.labels["ner"] == {"PERSON": 24, "CITY": 24}


def test_teaching_fills_in_labels_that_came_later(model, streams, tmp_path):
    """In texts of the memory that were there before, as the pipeline predicts them now."""
    with learner(model, tmp_path / "out") as found:
        list(found.learn(LineReader(streams / "stream.jsonl")))
        nlp = found._nlp
        old = [example for _, example in read_examples(nlp, streams / "old.jsonl")]
        filled = found.teacher.fill_in_later(old[:2], [0, 1], [("ner", "COLOR")])
        assert [[one.label_ for one in example.reference.ents] for example in filled] == [
            ["PERSON", "COLOR", "CITY"], ["PERSON", "CITY"],
        ]  # fmt: skip
        assert filled[1] is old[1]


def test_teaching_leaves_missing_what_is_missing_in_old_texts(model, streams, tmp_path):
    """A text that nobody annotated for entities does not say that there are none, once a label is added."""
    with learner(model, tmp_path / "out") as found:
        list(found.learn(LineReader(streams / "stream.jsonl")))
        nlp = found._nlp
        words = {"words": ["Anna", "likes", "red", "London"]}
        old = [make_example(nlp, {**words, **more}, "it") for more in ({}, {"entities": ["-", "O", "O", "U-CITY"]})]
        one, other = (example.reference for example in found.teacher.fill_in_later(old, [0, 0], [("ner", "COLOR")]))
    assert [(token.ent_iob_, token.ent_type_) for token in one] == [("", ""), ("", ""), ("B", "COLOR"), ("", "")]
    assert [token.ent_iob_ for token in other] == ["", "O", "B", "B"]


def test_teaching_gives_no_category_that_came_later_to_texts_without(tmp_path):
    """It is the only one that may be filled in, but not the one that is predicted."""
    nlp = toy_pipeline(["textcat"])
    examples = toy_examples(nlp, 20)
    for i, example in enumerate(examples):
        example.reference.cats = {"A": float(i % 2), "B": float(not i % 2)}
    nlp.initialize(lambda: examples)
    StreamTeacher.keep(nlp, tmp_path)
    add_labels(nlp, "textcat", ["C"])
    nlp.get_pipe("textcat").model.get_ref("output_layer").get_param("b")[-1] = -9
    old = [make_example(nlp, {"words": ["Anna", "likes", "red", "London"]}, "it")]
    [filled] = StreamTeacher(nlp, tmp_path).fill_in_later(old, [0], [("textcat", "C")])
    assert filled.reference.cats == {}


def test_teaching_says_nothing_of_new_labels_in_texts_without_annotations(model, tmp_path):
    """Neither of entities nor of exclusive categories: each of these texts may be of the new kind."""
    nlp = spacy.load(model)
    examples = toy_examples(nlp, 2)
    nlp.add_pipe("textcat").initialize(lambda: examples, nlp=nlp, labels=["A", "B"])
    StreamTeacher.keep(nlp, tmp_path)
    add_labels(nlp, "textcat", ["C"])
    add_labels(nlp, "ner", ["COLOR"])
    [filled] = StreamTeacher(nlp, tmp_path).fill_in([make_example(nlp, {"words": ["Anna", "likes", "red"]}, "it")])
    assert filled.reference.cats == {} and [one.ent_iob_ for one in filled.reference] == ["B", "", ""]


@pytest.mark.parametrize("new_labels", ["refuse", "skip"])
def test_teaching_goes_on_where_no_more_labels_are_added(model, streams, tmp_path, new_labels):
    learn(model, streams / "stream.jsonl", tmp_path, new_labels="add", is_stopped=stops(5))
    learn(model, streams / "stream.jsonl", tmp_path, new_labels=new_labels)
    assert per_label(tmp_path, streams / "watched.jsonl")["PERSON"] == 1.0


def test_teaching_keeps_what_a_text_of_the_memory_calls_complete(model, streams, tmp_path):
    """A label that comes later is not filled in there, if the text names it: True is for those that there were."""
    texts = [{"text": "Anna likes red London", "entities": [], "complete": complete} for complete in (["COLOR"], True)]
    with learner(model, tmp_path / "out") as found:
        list(found.learn(LineReader(streams / "stream.jsonl")))
        lines = [as_line(text, make_example(found._nlp, text, "it").reference) for text in texts]
        old = [found._read_old(line) for line in lines]
        filled = found.teacher.fill_in_later(old, [0, 0], [("ner", "COLOR")])
    assert ["COLOR" in [one.label_ for one in example.reference.ents] for example in filled] == [False, True]


def test_teaching_leaves_what_a_text_calls_complete(model, tmp_path):
    texts = [{"text": "Anna likes red London", "entities": [[11, 14, "COLOR"]], "complete": complete}
             for complete in (["PERSON"], True, [])]  # fmt: skip
    stream = tmp_path / "stream.jsonl"
    stream.write_text("".join(json.dumps(one) + "\n" for one in texts))
    with learner(model, tmp_path / "out", replay=1, memory=9) as found:
        list(found.learn(LineReader(stream)))
        kept = [json.loads(line)["doc_annotation"]["entities"] for line, _ in found.progress.memory.lines]
    assert kept == [["O", "O", "U-COLOR", "U-CITY"], ["O", "O", "U-COLOR", "O"], ["U-PERSON", "O", "U-COLOR", "U-CITY"]]
    stream.write_text(json.dumps({"text": "Anna", "complete": "PERSON"}) + "\n")
    with pytest.raises(StreamError, match="expected a list of labels, or true, as 'complete', found 'PERSON'"):
        learn(model, stream, tmp_path / "bad", new_labels="add")


def said(text):
    """Words with what is said of each, or of all: "a:U-OLD b:O", {"OLD": 1.0}. None: nothing."""
    if not isinstance(text, str):
        return {"words": ["a", "b", "c"]} | ({} if text is None else {"cats": text})
    words, marks = zip(*(part.split(":") for part in text.split()))
    return {"text": "ab c", "words": list(words), "entities": list(marks), "tags": [mark[2:] for mark in marks]}


@pytest.mark.parametrize(
    ("factory", "texts", "scores"),
    [
        # OLD: 2 right of 4 predicted and 3 annotated; NEW: 0 of 1 and 1. The last text says nothing of entities.
        ("ner", [("a:U-OLD b:U-NEW c:O", "a:U-OLD b:O c:U-NEW"), ("ab:U-OLD c:U-OLD", "a:B-OLD b:L-OLD c:O"),
                 ("a:U-OLD b:O c:O", "a:O b:O c:U-OLD"), ("a:U-OLD b:O c:O", None)], (4 / 7, 0.0)),
        # Against a text that has none, each is wrong.
        ("ner", [("a:U-OLD b:O c:O", "a:O b:O c:O")], (0.0, None)),
        # OLD: 1 of 1 and 2; NEW: 1 of 1 and 1, as the first text does not name it.
        ("textcat_multilabel", [({"OLD": 0.9, "NEW": 0.7}, {"OLD": 1.0}), ({"OLD": 0.9, "NEW": 0.9}, None),
                                ({"OLD": 0.1, "NEW": 0.5}, {"OLD": 1.0, "NEW": 1.0})], (2 / 3, 1.0)),
        # The best one, if any: OLD 1 of 1 and 2; NEW 1 of 2 and 1. The last text has neither.
        ("textcat", [({"OLD": 0.6, "NEW": 0.4}, {"OLD": 1.0, "NEW": 0.0}), ({"OLD": 0.4, "NEW": 0.6}, {"NEW": 1.0}),
                     ({"OLD": 0.2, "NEW": 0.8}, {"OLD": 1.0, "NEW": 0.0}), ({"OLD": 0.0}, {"OLD": 0.0})],
         (2 / 3, 2 / 3)),
        # OLD: 1 of 2 and 2; NEW: 0 of 1 and 0. A word that is divided otherwise is another one.
        ("tagger", [("ab:U-OLD c:U-OLD", "a:U-OLD b:O c:U-OLD"), ("a:U-NEW b:O c:O", "a:O b:O c:O")], (0.5, None)),
    ],
)  # fmt: skip
def test_scores_of_old_and_new_labels_by_hand(factory, texts, scores):
    nlp = toy_pipeline([factory], shared=False)
    for label in ("OLD", "NEW"):
        nlp.get_pipe(factory).add_label(label)
    examples = [Example(*(make_example(nlp, said(one), "it").reference for one in pair)) for pair in texts]
    assert old_and_new(nlp, examples, {factory: {"NEW"}}) == pytest.approx(scores)
    assert old_and_new(nlp, examples, {}) == (None, None)


@pytest.mark.parametrize("skip_bad", [True, False])
def test_teaching_without_an_answer_of_the_teacher(model, streams, tmp_path, monkeypatch, skip_bad):
    """Only the text that it can't annotate is left out, or ends the run."""
    predict = Teacher.predict

    def refusing(self, docs, rules):
        if any("red" in doc.text for doc in docs):
            raise ZeroDivisionError("the teacher")
        return predict(self, docs, rules)

    monkeypatch.setattr(Teacher, "predict", refusing)
    stream = write_stream(tmp_path / "stream.jsonl", 8, changed=colors)
    reason = "of the stream: the teacher can't annotate it. ZeroDivisionError: the teacher."
    with nullcontext() if skip_bad else pytest.raises(StreamError, match=reason):
        found, _ = learn(model, stream, tmp_path / "out", new_labels="add", batch_size=2, skip_bad=skip_bad)
        kept = [json.loads(line) for line in (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()]
        assert (found[-1].texts, found[-1].skipped, len(kept)) == (4, 0, 4)
        assert all(row["reason"].endswith(reason) and "red" in row["text"] for row in kept)


def test_teaching_without_anything_that_can_be_taught(tmp_path):
    """The pipeline has no labels in common with its teacher: texts stay as they are."""
    nlp = toy_pipeline(["ner"])
    nlp.initialize()
    StreamTeacher.keep(nlp, tmp_path)
    add_labels(nlp, "ner", ["COLOR"])
    example = make_example(nlp, {"words": ["red"], "entities": ["U-COLOR"]}, "it")
    [filled] = StreamTeacher(nlp, tmp_path).fill_in([example])
    assert filled is example
