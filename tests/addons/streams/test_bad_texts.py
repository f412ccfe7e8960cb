"""Texts that can't be learned: nothing of them reaches the model, and nothing else is lost."""

import itertools
import json
from contextlib import suppress

import pytest
import spacy

from thinc_torchopt.addons.streams import LearnSettings, StreamLearner
from thinc_torchopt.addons.streams.source import LineReader
from thinc_torchopt.addons.streams.state import LearnerFolder
from thinc_torchopt.core import step
from thinc_torchopt.core.errors import StateError, StreamError

from .streams import files, learn, load, make_model, rows, write_stream

CATS = {"RED": 1.0, "BLUE": 0.0}
# Each changes a good record, and what the error says.
BAD = {
    "shares of exclusive labels": ({"cats": {"RED": 0.7, "BLUE": 0.3}}, "E851"),
    "two exclusive labels": ({"cats": {"RED": 1.0, "BLUE": 1.0}}, "E895"),
    "not a number": ({"cats": {"RED": float("nan"), "BLUE": 0.0}}, "expected a finite number for 'RED', found nan"),
    "a huge head": ({"heads": [10**20, 1, 1], "deps": ["a", "ROOT", "b"], "words": ["a", "b", "c"]}, "don't fit"),
    "cyclic heads": ({"words": ["a", "b"], "tags": ["JJ", "JJ"], "heads": [1, 0], "deps": ["amod", "amod"]}, ""),
    "a text that a hook refuses": ({"words": ["boom"], "tags": ["JJ"]}, "ZeroDivisionError: the hook"),
    "no JSON": (None, "expected JSON"),
    "a new label": ({"words": ["a"], "entities": [[0, 1, "NEW"]]}, "found 'NEW'"),
}


class Hook:
    """A component after the others that refuses a text: they have their gradients by then."""

    def __init__(self, nlp, name):
        pass

    def __call__(self, doc):
        return doc

    def update(self, examples, *, losses, **_):
        if any(example.text.strip() == "boom" for example in examples):
            raise ZeroDivisionError("the hook")
        return losses


spacy.Language.factory("textcat-test-hook", func=lambda nlp, name: Hook(nlp, name))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    components = ["tagger", "ner", "parser", "textcat", "textcat-test-hook"]
    return make_model(tmp_path_factory.mktemp("model") / "model", components)


def changed(i, found):
    """Texts that annotate some components only."""
    kept = [("tags",), ("entities",), ("cats",), ("tags", "cats")][i % 4]
    return {key: value for key, value in {**found, "cats": CATS}.items() if key in ("words", *kept)}


@pytest.fixture(scope="module")
def good(model, tmp_path_factory):
    """The lines of good texts, and what a run learns from them."""
    folder = tmp_path_factory.mktemp("good")
    stream = write_stream(folder / "stream.jsonl", 12, changed=changed)
    learn(model, stream, folder / "out", replay=1, memory=4)
    return stream.read_text().splitlines(), folder / "out"


def bad_line(kind, good_line):
    change = BAD[kind][0]
    if change is None:
        return "{"
    return json.dumps(change if "words" in change else {**json.loads(good_line), **change})


def write(path, lines):
    path.write_text("".join(line + "\n" for line in lines))
    return path


# Those that are found in another place; all of them are in the stream of the next test.
@pytest.mark.parametrize("kind", sorted(BAD.keys() - {"two exclusive labels"}))
def test_bad_texts_end_the_run_and_nothing_is_lost(model, good, tmp_path, kind):
    """Again and again, until the text is repaired; then the weights are as if it had been right from the start."""
    lines, expected = good
    stream = write(tmp_path / "stream.jsonl", [*lines[:7], bad_line(kind, lines[7]), *lines[8:]])
    for _ in range(2):
        with pytest.raises(StreamError, match=r"Can't learn from line 8 of the stream: .*--skip-bad") as found:
            learn(model, stream, tmp_path / "out", replay=1, memory=4)
        assert BAD[kind][1] in str(found.value)
        assert rows(tmp_path / "out")[-1]["texts"] == 7
    write(stream, lines)
    learn(model, stream, tmp_path / "out", replay=1, memory=4)
    assert files(tmp_path / "out") == files(expected) and rows(tmp_path / "out") == rows(expected)


def rejected(folder):
    return [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]


def with_bad_texts(lines, path):
    """One of each kind, before good ones."""
    kinds = list(BAD)
    mixed = [line for i, one in enumerate(lines) for line in [*[bad_line(kind, one) for kind in kinds[i : i + 1]], one]]
    return write(path, mixed)


@pytest.mark.parametrize(
    "ends", [[], [(3, False), (5, True), (0, True), (4, True)], [(6, True), (9, False), (2, True)]]
)
def test_bad_texts_are_left_out(model, good, tmp_path, ends):
    """With --skip-bad: to the bit as if they were not in the stream, with stops and kills. Each is written once."""
    lines, expected = good
    stream = with_bad_texts(lines, tmp_path / "stream.jsonl")
    options = {"replay": 1, "memory": 4, "skip_bad": True}
    for after, is_crash in ends:
        asked = itertools.count()

        def is_stopped(asked=asked, after=after, is_crash=is_crash):
            if next(asked) >= after and is_crash:
                raise KeyboardInterrupt
            return next(asked) >= 2 * after

        with suppress(KeyboardInterrupt):
            learn(model, stream, tmp_path / "out", is_stopped=is_stopped, **options)
    learn(model, stream, tmp_path / "out", **options)
    assert files(tmp_path / "out") == files(expected)
    assert [row["scores"] for row in rows(tmp_path / "out")] == [row["scores"] for row in rows(expected)]
    found = rejected(tmp_path / "out")
    assert [row["text"] for row in found] == [bad_line(kind, lines[i]) for i, kind in enumerate(BAD)]
    assert [row["where"] for row in found] == [f"line {2 * i + 1} of the stream" for i in range(len(BAD))]
    assert all(BAD[kind][1] in row["reason"] for kind, row in zip(BAD, found))
    last = rows(tmp_path / "out")[-1]
    assert (last["rejected"], last["skipped"]) == (len(BAD), 0)


def test_bad_texts_may_be_half_written(model, good, tmp_path):
    """The last line is left for the next run, so that a good text is not lost."""
    lines, expected = good
    options = {"replay": 1, "memory": 4, "skip_bad": True}
    stream = write(tmp_path / "stream.jsonl", lines[:7])
    with stream.open("a") as file:
        file.write(lines[7][:20])
    found, told = learn(model, stream, tmp_path / "out", **options)
    assert (found[-1].texts, found[-1].rejected) == (7, 0)
    assert told[0] == "Left for the next run: line 8 of the stream, which has no line end yet, and is not JSON."
    learn(model, write(stream, lines), tmp_path / "out", **options)
    assert files(tmp_path / "out") == files(expected) and rows(tmp_path / "out") == rows(expected)


def test_bad_texts_are_found_in_their_batch(model, good, tmp_path):
    """Against a loop by hand, which makes an update of the others."""
    lines = good[0]
    kinds = ["shares of exclusive labels", "a text that a hook refuses", "no JSON"]
    whole = [*lines[:5], *(bad_line(kind, lines[5]) for kind in kinds), *lines[5:9]]
    stream = write(tmp_path / "stream.jsonl", whole)
    learn(model, stream, tmp_path / "out", batch_size=4, skip_bad=True)
    assert [row["where"] for row in rejected(tmp_path / "out")] == [f"line {i} of the stream" for i in (6, 7, 8)]
    write(stream, lines[:5])
    learn(model, stream, tmp_path / "one", batch_size=4)  # a batch of four, and one of one
    write(stream, lines[:9])
    learn(model, stream, tmp_path / "one", batch_size=4)
    assert files(tmp_path / "out") == files(tmp_path / "one")
    with pytest.raises(StreamError, match=r"line 6 of the stream: \[E851\]"):
        learn(model, write(stream, whole[:7]), tmp_path / "two", batch_size=4)
    assert rows(tmp_path / "two")[-1]["texts"] == 4  # its batch waits: another one would give other weights


def test_bad_texts_of_the_memory_are_forgotten(model, good, tmp_path):
    """They came with --old, where nothing was learned from them before."""
    old = write(tmp_path / "old.jsonl", [bad_line("two exclusive labels", good[0][0]), good[0][0]])
    stream = write(tmp_path / "stream.jsonl", good[0])
    with pytest.raises(StreamError, match=r"a text of the memory, drawn with line \d+ of the stream: .E895"):
        learn(model, stream, tmp_path / "one", old=old, replay=2, memory=8)
    found, told = learn(model, stream, tmp_path / "two", old=old, replay=2, memory=8, skip_bad=True)
    assert found[-1].texts == 12 and found[-1].rejected == 0
    assert [text for text in told if "A text of the memory can't be learned" in text]


def test_bad_texts_leave_a_half_made_update_nowhere(model, good, tmp_path, monkeypatch):
    """An error while the weights change: nothing is saved, and the run goes on from the last save."""
    stream = write(tmp_path / "stream.jsonl", good[0])
    with monkeypatch.context() as patch:
        original, count = step.round_to_models, itertools.count()

        def failing(params):
            if next(count) == 7:
                raise MemoryError("out of memory")
            original(params)

        patch.setattr(step, "round_to_models", failing)
        with pytest.raises(StreamError, match=r"line 8 of the stream.*nothing since text 5 is saved.*MemoryError"):
            learn(model, stream, tmp_path / "out", replay=1, memory=4, save_every=5, skip_bad=True)
    learn(model, stream, tmp_path / "out", replay=1, memory=4)
    assert files(tmp_path / "out") == files(good[1]) and rows(tmp_path / "out") == rows(good[1])


def test_bad_texts_that_cannot_be_scored_are_told(model, good, tmp_path, monkeypatch):
    from spacy.scorer import Scorer

    def score(self, examples, **_):
        raise ValueError("odd annotations")

    monkeypatch.setattr(Scorer, "score", score)
    found, told = learn(model, write(tmp_path / "stream.jsonl", good[0]), tmp_path / "out")
    assert [row.score for row in found] == [None] * 3 and "odd annotations" in told[0]
    assert told[1:] == ["'parser' has learned nothing: 12 texts without dependency trees."]
    with pytest.raises(StreamError, match=r"Can't evaluate '.*' of --watch: ValueError: odd annotations\."):
        learn(model, tmp_path / "stream.jsonl", tmp_path / "two", watched=tmp_path / "stream.jsonl")


# ---------------------------------------------------------------------- the watched corpus


def test_bad_texts_are_written_when_the_disk_has_space_again(model, good, tmp_path, monkeypatch):
    append, failed = LearnerFolder.append, []

    def full(self, name, rows):
        if not failed:
            failed.append(name)
            raise StateError("the disk is full")
        return append(self, name, rows)

    monkeypatch.setattr(LearnerFolder, "append", full)
    stream = write(tmp_path / "stream.jsonl", ["{", *good[0]])
    with pytest.raises(StateError, match="full"):
        learn(model, stream, tmp_path / "out", replay=1, memory=4, skip_bad=True)
    for _ in range(2):
        assert failed == ["rejected.jsonl"] and [row["number"] for row in rejected(tmp_path / "out")] == [1]
        learn(model, stream, tmp_path / "out", replay=1, memory=4, skip_bad=True)
    assert files(tmp_path / "out") == files(good[1])


@pytest.mark.parametrize("damage", ["vanished", "damaged"])
def test_bad_texts_of_the_watched_corpus_end_nothing(model, good, tmp_path, damage):
    """It is evaluated again when it is back, and one warning tells of it."""
    watched = write(tmp_path / "watched.jsonl", good[0][:3])
    stream = write(tmp_path / "stream.jsonl", ["{", *good[0]])
    nlp, optimizer = load(model)
    told = []
    settings = LearnSettings(every=2, watch_every=2, replay=1, memory=4, skip_bad=True)
    found = []
    with StreamLearner(nlp, optimizer, tmp_path / "out", settings, watched=watched, notify=told.append) as learner:
        for row in learner.learn(LineReader(stream)):
            found.append(row)
            if row.texts == 2:
                assert len(rejected(tmp_path / "out")) == 1  # before it is saved
                watched.unlink() if damage == "vanished" else watched.write_bytes(b"{\xff")
            elif row.texts == 8:
                write(watched, good[0][:3])
    assert [row.texts for row in found] == [0, 2, 4, 6, 8, 10, 12]
    assert [row.watched is not None for row in found] == [True, True, False, False, False, True, True]
    assert told[0] == f"Texts that can't be learned are left out, and are in '{tmp_path / 'out' / 'rejected.jsonl'}'."
    assert "watched.jsonl" in told[1] and "goes on" in told[1]
    assert told[2:] == ["'parser' has learned nothing: 12 texts without dependency trees."]
    assert files(tmp_path / "out") == files(good[1])
