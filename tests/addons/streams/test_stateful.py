"""Random streams and random interruptions: the weights, the rows and the rejected texts are those of a run that was
never interrupted, to the bit.
"""

import contextlib
import itertools
import json
import shutil
import tempfile
from pathlib import Path

import pytest
import srsly
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from thinc_torchopt.core.errors import StreamError
from thinc_torchopt.core.state import read_folder

from .streams import files, learn, make_model, rows, stops

GOOD = {
    "tags": ["NNP", "VBZ", "JJ"],
    "entities": [[0, 4, "PERSON"]],
    "cats": {"RED": 1.0, "BLUE": 0.0},
    "words": ["Anna", "likes", "red"],
}
KEYS = st.sets(st.sampled_from(["tags", "entities", "cats"]))
# Which components a text annotates; what is odd about it.
TEXTS = st.one_of(
    KEYS.map(lambda keys: json.dumps({key: GOOD[key] for key in ("words", *sorted(keys))})),
    KEYS.map(lambda keys: json.dumps({key: GOOD[key] for key in ("words", *sorted(keys))})),
    st.sampled_from([1, 2]).map(lambda i: json.dumps({**GOOD, "entities": [[0, 4, f"NEW{i}"]]})),
    st.sampled_from(
        [
            json.dumps({"words": [], "tags": []}),
            json.dumps({"text": "Oslo", "answer": "reject"}),
            json.dumps({**GOOD, "cats": {"RED": 0.7, "BLUE": 0.3}}),
            json.dumps({**GOOD, "cats": {"RED": float("nan")}}),
            json.dumps({**GOOD, "heads": [10**20, 1, 1], "deps": ["a", "ROOT", "b"]}),
            json.dumps({**GOOD, "tags": ["UNHEARD"] * 3}),
            json.dumps({"words": ["unlikely"], "spans": {"sc": []}, "odd": 3}),
            "{",
            "",
        ]
    ),
)


def with_a_good_one(texts):
    """It is an error if no text has annotations."""
    return [*texts, json.dumps(GOOD)]


class Machine(RuleBasedStateMachine):
    model: Path

    @initialize(
        texts=st.lists(TEXTS, min_size=4, max_size=10).map(with_a_good_one),
        batch_size=st.sampled_from([1, 3]),
        replay=st.sampled_from([0, 2]),
        is_watched=st.booleans(),
    )
    def begin(self, texts, batch_size, replay, is_watched):
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        self.stream, self.output, self.watched = root / "stream.jsonl", root / "out", root / "watched.jsonl"
        self.texts = list(texts)
        self.write()
        self.put_watched()
        self.options = {
            "batch_size": batch_size, "replay": replay, "memory": 3, "new_labels": "add", "skip_bad": True,
            "every": 3, "save_every": 4, "watch_every": 3, "watched": self.watched if is_watched else None,
        }  # fmt: skip

    def teardown(self):
        if hasattr(self, "folder"):
            try:
                self.compare()
            finally:
                self.folder.cleanup()

    def write(self):
        self.stream.write_text("".join(text + "\n" for text in self.texts))

    @property
    def has_read(self):
        """Whether a state is saved after a line was read: before that, a run begins again."""
        state = self.output / "state"
        return state.exists() and read_folder(state)["progress"]["place"]["lines"] != 0

    # ------------------------------------------------------------------ what happens to the run

    @rule(after=st.integers(0, 9), is_killed=st.booleans())
    def run(self, after, is_killed):
        is_stopped = stops(after, KeyboardInterrupt if is_killed else None)
        with contextlib.suppress(KeyboardInterrupt):
            learn(self.model, self.stream, self.output, is_stopped=is_stopped, **self.options)

    @rule(after=st.integers(0, 5))
    def run_and_be_killed_while_it_saves(self, after):
        """After rows were written, before the state was."""
        from thinc_torchopt.addons.streams import state

        count, original = itertools.count(), state.write_folder

        def write_folder(path, tree):
            if next(count) >= after % 3:
                raise KeyboardInterrupt
            original(path, tree)

        state.write_folder = write_folder
        try:
            with contextlib.suppress(KeyboardInterrupt):
                learn(self.model, self.stream, self.output, **self.options)
        finally:
            state.write_folder = original

    @rule()
    def run_without_skipping(self):
        """A bad text ends it; the next run goes on from there."""
        with contextlib.suppress(StreamError):
            learn(self.model, self.stream, self.output, **{**self.options, "skip_bad": False})

    # ------------------------------------------------------------------ what happens to the files

    @rule(texts=st.lists(TEXTS, min_size=1, max_size=4).map(with_a_good_one))
    @precondition(lambda self: self.options["batch_size"] == 1)  # a batch at the end of the file is not full
    def write_more(self, texts):
        self.texts += texts
        self.write()

    @rule(content=st.sampled_from([None, b"{\xff", b""]))
    @precondition(lambda self: self.has_read)
    def damage_watched(self, content):
        self.watched.unlink(missing_ok=True)
        if content is not None:
            self.watched.write_bytes(content)

    @rule()
    def put_watched(self):
        self.watched.write_text(json.dumps(GOOD) + "\n")

    # ------------------------------------------------------------------ what must hold

    def compare(self):
        """Against a run that was never interrupted, of the whole stream."""
        self.put_watched()
        learn(self.model, self.stream, self.output, **self.options)
        root = Path(self.folder.name)
        whole, expected = root / "whole.jsonl", root / "expected"
        whole.write_text("".join(text + "\n" for text in self.texts))
        learn(self.model, whole, expected, **self.options)
        assert without_dropout(files(self.output)) == without_dropout(files(expected))
        assert without_watched(rows(self.output)) == without_watched(rows(expected))
        assert rejected(self.output) == rejected(expected)


def without_dropout(found):
    """The models without the rate of dropout, which each update sets: an evaluation leaves 0 there."""
    models = {name: srsly.msgpack_loads(content) for name, content in found.items() if name.endswith("/model")}
    for model in models.values():
        for attrs in model["attrs"]:
            attrs.pop("dropout_rate", None)
    return found | {name: repr(model) for name, model in models.items()}


def without_watched(found):
    """The rows of texts. A watched corpus may have been away; then its score has a row of its own at the end."""
    left_out = ("watched", "watched_scores", "watched_old", "watched_new")
    kept = [row for before, row in itertools.pairwise([{"texts": 0}, *found]) if row["texts"] > before["texts"]]
    return [{name: value for name, value in row.items() if name not in left_out} for row in kept]


def rejected(folder):
    path = folder / "rejected.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(row["number"], row["text"]) for row in map(json.loads, lines)]


@pytest.mark.parametrize("n_examples", [4, pytest.param(300, marks=pytest.mark.slow)])
def test_stateful_learning_is_the_same_however_it_is_interrupted(tmp_path, n_examples):
    Machine.model = make_model(tmp_path / "model", ["tagger", "ner", "textcat"])
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=n_examples, stateful_step_count=6, deadline=None, suppress_health_check=checks),
    )
    shutil.rmtree(tmp_path)
