"""Learning from a stream: against a loop by hand, and a run that was never stopped."""

import itertools
import json
import os
import shutil
from types import SimpleNamespace

import numpy
import pytest
import spacy
import torch
from spacy.scorer import Scorer
from spacy.training import Example
from spacy.util import registry
from thinc.api import PyTorchWrapper, chain, fix_random_seed, with_array

from thinc_torchopt.addons.streams import LearnSettings, StreamLearner
from thinc_torchopt.addons.streams.records import make_example, read_examples
from thinc_torchopt.addons.streams.source import LineReader
from thinc_torchopt.addons.streams.state import LearnerFolder
from thinc_torchopt.core.compat import has_pytorch_optimizer
from thinc_torchopt.core.errors import ConfigError, StateError, StreamError
from thinc_torchopt.core.params.names import walk
from thinc_torchopt.core.state.files import read_folder

from ...models import pipeline_params, same
from .streams import files, learn, load, make_model, rows, stops, write_stream

needs_library = pytest.mark.skipif(not has_pytorch_optimizer, reason="pytorch-optimizer is not installed")
SCHEDULE_FREE = {"@torch_optimizers": "pytorch-optimizer.create.v1", "name": "schedulefreeadamw"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def unbroken(model, tmp_path_factory):
    """A run of 18 texts that is never stopped: the stream, and its output."""
    folder = tmp_path_factory.mktemp("unbroken")
    stream = write_stream(folder / "stream.jsonl", 18)
    learn(model, stream, folder / "out", replay=1, memory=4)
    return stream, folder / "out"


@pytest.mark.parametrize("batch_size, ends", [(1, []), (3, []), (3, [2])])
def test_learner_is_a_loop_by_hand(model, tmp_path, batch_size, ends):
    """Weights to the bit, and the scores of texts before they are learned, by spaCy's own scorer. Also after a stop."""
    stream = write_stream(tmp_path / "stream.jsonl", 12)
    settings = {"every": 6, "batch_size": batch_size}
    parts = [learn(model, stream, tmp_path / "out", **settings, is_stopped=end) for end in (*map(stops, ends), None)]
    by_texts, told = {row.texts: row for rows, _ in parts for row in rows}, parts[-1][1]
    found = [by_texts[6], by_texts[12]]
    nlp, optimizer = load(model)
    fix_random_seed(nlp.config.interpolate()["training"]["seed"])
    optimizer.initialize(nlp)
    records = [json.loads(line) for line in stream.read_text().splitlines()]
    scored, losses = [], {}
    for start in range(0, 12, batch_size):
        examples = [make_example(nlp, one, "") for one in records[start : start + batch_size]]
        for example in examples:
            doc = spacy.tokens.Doc(nlp.vocab, words=[token.text for token in example.predicted])
            scored.append(Example(nlp(doc), example.reference))
        nlp.update(examples, drop=0.1, losses=losses, sgd=False)
        with optimizer.joint_step():
            for _, component in nlp.pipeline:
                component.finish_update(optimizer)
        optimizer.step_schedules()
    learned = spacy.load(tmp_path / "out" / "model-last")
    for name, params in pipeline_params(nlp).items():
        assert same(params, pipeline_params(learned)[name]), name
    expected = [Scorer(nlp=nlp).score(scored[:6]), Scorer(nlp=nlp).score(scored[6:])]
    assert [row.scores["tag_acc"] for row in found] == [one["tag_acc"] for one in expected]
    assert [row.scores["ents_f"] for row in found] == [one["ents_f"] for one in expected]
    # The weights of a new pipeline's scores: half for each component.
    assert found[1].score == pytest.approx(0.5 * expected[1]["tag_acc"] + 0.5 * expected[1]["ents_f"])
    assert sum(row.losses["ner"] for row in found) * 6 == pytest.approx(losses["ner"], rel=1e-6)
    assert [(row.texts, row.tokens) for row in parts[-1][0]] == [(6, 27), (12, 54)] and told == []
    assert not ends or [row.texts for row in parts[0][0]] == [3]  # it was stopped


def test_learner_has_a_row_of_a_single_text(model, tmp_path):
    """Also where it only watches another corpus, in another run."""
    stream = write_stream(tmp_path / "stream.jsonl", 1)
    for watched in (None, stream):
        learn(model, stream, tmp_path / "out", watched=watched)
        assert [(row["texts"], row["watched"] is None) for row in rows(tmp_path / "out")] == [(1, watched is None)]


def test_learner_reads_nothing_twice(model, unbroken, tmp_path):
    stream, expected = unbroken
    output = shutil.copytree(expected, tmp_path / "out")
    # As after a kill in the midst of a save.
    (output / "state").rename(output / ".unfinished-old-state-1")
    (output / ".unfinished-new-model-last-1").mkdir()
    found, _ = learn(model, stream, output, replay=1, memory=4)
    assert [row.texts for row in found] == [18]  # of the block that has not ended
    assert files(output) == files(expected) and rows(output) == rows(expected)
    assert not list(output.glob(".unfinished*"))


@pytest.mark.parametrize("damage", ["changed", "shorter", "removed"])
def test_learner_refuses_another_file(model, unbroken, tmp_path, damage):
    stream, expected = tmp_path / "stream.jsonl", shutil.copytree(unbroken[1], tmp_path / "out")
    lines = unbroken[0].read_bytes().splitlines(keepends=True)
    if damage == "changed":
        stream.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b'"', b"'")]))
    elif damage == "shorter":
        stream.write_bytes(b"".join(lines[:12]))
    before = files(expected)
    with pytest.raises(StreamError if damage == "removed" else StateError, match=r"Can't (go on with|read) the stream"):
        learn(model, stream, expected, replay=1, memory=4)
    assert files(expected) == before


@pytest.mark.parametrize("change", [{"batch_size": 2}, {"replay": 2}, {"replay": 0}, {"memory": 5}])
def test_learner_refuses_other_settings(model, unbroken, tmp_path, change):
    """Those that give other weights."""
    stream, expected = unbroken[0], shutil.copytree(unbroken[1], tmp_path / "out")
    before = files(expected)
    option = f"--{next(iter(change)).replace('_', '-')}"
    with pytest.raises(StateError, match=f"expected the pipeline and settings that it began with.*{option}"):
        learn(model, stream, expected, **{"replay": 1, "memory": 4, **change})
    assert files(expected) == before


def test_learner_goes_on_with_other_settings_of_what_is_printed_and_left_out(model, unbroken, tmp_path):
    output = shutil.copytree(unbroken[1], tmp_path / "out")
    learn(model, unbroken[0], output, replay=1, memory=4, every=7, save_every=3, skip_bad=True, new_labels="skip")


def test_learner_refuses_another_pipeline_and_a_damaged_state(model, unbroken, tmp_path):
    stream, output = unbroken[0], shutil.copytree(unbroken[1], tmp_path / "out")
    other = make_model(tmp_path / "other", ["ner"])
    with pytest.raises(StateError, match="expected the pipeline and settings that it began with"):
        learn(other, stream, output, replay=1, memory=4)
    assert not (output / "lock.json").exists()
    nlp, _ = load(model)
    nlp.get_pipe("ner").model.get_ref("upper").get_param("b")[:] += 1
    nlp.to_disk(tmp_path / "moved")
    with pytest.raises(StateError, match=r"weights of MODEL: checksum \w+ "):
        learn(tmp_path / "moved", stream, output, replay=1, memory=4)
    values = output / "state" / "values.json"
    values.write_bytes(values.read_bytes()[:-20])
    with pytest.raises(StateError, match="is damaged"):
        learn(model, stream, output, replay=1, memory=4)


def test_learner_saves_before_it_ends_with_an_error_of_the_stream(model, unbroken, tmp_path):
    class Shortened(LineReader):
        def read(self, start):
            for line in super().read(start):
                if line.place.lines == 8:
                    raise StateError("it has become shorter")
                yield line

    nlp, optimizer = load(model)
    learner = StreamLearner(nlp, optimizer, tmp_path / "out", LearnSettings(every=5, replay=1, memory=4))
    with learner, pytest.raises(StateError, match="shorter"):
        list(learner.learn(Shortened(unbroken[0])))
    assert rows(tmp_path / "out")[-1]["is_last"]
    learn(model, unbroken[0], tmp_path / "out", replay=1, memory=4)
    assert files(tmp_path / "out") == files(unbroken[1]) and rows(tmp_path / "out") == rows(unbroken[1])


def test_learner_keeps_the_last_save_when_the_disk_is_full(model, unbroken, tmp_path, monkeypatch):
    def full(path, tree):
        raise OSError(28, "No space left on device")

    output = tmp_path / "out"
    for end, texts in ((0, 0), (10, 9)):
        with monkeypatch.context() as patch:
            learn(model, unbroken[0], output, replay=1, memory=4, is_stopped=stops(end)) if end else None
            patch.setattr("thinc_torchopt.addons.streams.state.write_folder", full)
            with pytest.raises(
                StateError, match=rf"Can't save in .*No space left.*The last save was after {texts} texts"
            ):
                learn(model, unbroken[0], output, replay=1, memory=4)
    learn(model, unbroken[0], output, replay=1, memory=4)
    assert files(output) == files(unbroken[1]) and rows(output) == rows(unbroken[1])


# ---------------------------------------------------------------------- labels


ADDED = {"tagger": "ODD", "ner": "NEW"}


def with_new_label(i, found):
    """From the tenth text on, some have labels that the pipeline does not know."""
    entities = [(start, end, "NEW") for start, end, _ in found["entities"]]
    return found if i < 9 or i % 3 else found | {"entities": entities, "tags": ["ODD"] * len(found["words"])}


def test_learner_refuses_new_labels_and_keeps_what_it_has_learned(model, tmp_path):
    stream = write_stream(tmp_path / "stream.jsonl", 20, changed=with_new_label)
    with pytest.raises(StreamError, match=r"line 10 of the stream: expected labels that 'tagger' has, found 'ODD'"):
        learn(model, stream, tmp_path / "out")
    assert rows(tmp_path / "out")[-1]["texts"] == 9
    found, told = learn(model, stream, tmp_path / "out", new_labels="skip")
    assert (found[-1].texts, found[-1].skipped) == (16, 4) and "'ODD'" in told[0] and len(told) == 1


def test_learner_adds_labels_and_goes_on_to_the_bit(model, tmp_path):
    """The optimizer's state grows with them, and so does the pipeline that a stopped run loads. That of a tagger, too,
    to which spaCy's own `add_label` adds none.
    """
    stream = write_stream(tmp_path / "stream.jsonl", 13, changed=with_new_label)
    _, told = learn(model, stream, tmp_path / "one", new_labels="add")
    assert "filled in by the pipeline as it is now" in told.pop(0)
    expected = [f"'{name}' has got the label '{label}', of line 10 of the stream." for name, label in ADDED.items()]
    assert told[:2] == expected
    learned = spacy.load(tmp_path / "one" / "model-last")
    assert all(label in learned.get_pipe(name).labels for name, label in ADDED.items())
    learn(model, stream, tmp_path / "two", new_labels="add", is_stopped=stops(13))
    assert rows(tmp_path / "two")[-1]["texts"] == 11
    learn(model, stream, tmp_path / "two", new_labels="add")
    assert files(tmp_path / "one") == files(tmp_path / "two") and rows(tmp_path / "one") == rows(tmp_path / "two")


def test_learner_cannot_add_labels_to_a_head_of_torch(model, tmp_path):
    nlp, optimizer = load(model)
    tagger = nlp.get_pipe("tagger")
    tok2vec, n = tagger.model.get_ref("tok2vec"), len(tagger.labels)
    module = torch.nn.Sequential(torch.nn.Linear(tok2vec.get_dim("nO"), n), torch.nn.Softmax(-1))
    tagger.model = chain(tok2vec, with_array(PyTorchWrapper(module)))
    tagger.model.set_ref("tok2vec", tok2vec)
    stream = write_stream(
        tmp_path / "stream.jsonl",
        5,
        changed=lambda i, found: found if i < 2 else {**found, "tags": ["ODD"] * len(found["words"])},
    )
    chosen = {"new_labels": "add", "teacher": False, "prequential": False, "every": 2}
    with StreamLearner(
        nlp, optimizer, tmp_path / "out", LearnSettings(skip_bad=True, **chosen), is_stopped=stops(99)
    ) as learner:
        assert [row.texts for row in learner.learn(LineReader(stream))] == [2]
        assert learner.progress.rejected == 3
    reason = json.loads((tmp_path / "out" / "rejected.jsonl").read_text().splitlines()[0])["reason"]
    assert "line 3 of the stream: Can't add 'ODD' to 'tagger'" in reason and "a module of torch" in reason
    with (
        pytest.raises(StreamError) as error,
        StreamLearner(nlp, optimizer, tmp_path / "two", LearnSettings(**chosen)) as learner,
    ):
        list(learner.learn(LineReader(stream)))
    assert str(error.value) == reason
    assert "'texts': 2" in str(read_folder(tmp_path / "two" / "state"))


# ---------------------------------------------------------------------- together with other features


@pytest.mark.parametrize(
    "block",
    [
        {"use_averages": True},
        {"grad_clip": 0.5, "learn_rate": {"@schedules": "warmup_linear.v1", "initial_rate": 0.01, "warmup_steps": 4,
                                          "total_steps": 60}},
        {"algorithm": {"@torch_optimizers": "thinc-torchopt.Modular.v1",
                       "modules": {"adam": {"@gradient_modules": "thinc-torchopt.Adam.v1"}}, "normalize": "words"}},
        pytest.param({"algorithm": SCHEDULE_FREE}, marks=needs_library),
    ],
)  # fmt: skip
def test_learner_goes_on_with_other_features(tmp_path, block):
    model = make_model(tmp_path / "model", **block)
    stream = write_stream(tmp_path / "stream.jsonl", 6)
    learn(model, stream, tmp_path / "one", replay=1)
    learn(model, stream, tmp_path / "two", replay=1, is_stopped=stops(5))
    learn(model, stream, tmp_path / "two", replay=1)
    assert files(tmp_path / "one") == files(tmp_path / "two") and rows(tmp_path / "one") == rows(tmp_path / "two")


@pytest.mark.parametrize(
    "block", [{"use_averages": True}, pytest.param({"algorithm": SCHEDULE_FREE}, marks=needs_library)]
)
def test_learner_saves_the_averages(tmp_path, block):
    """The last pipeline has the averages, and the state the params."""
    from thinc_torchopt.addons.streams.state import LearnerState
    from thinc_torchopt.core.schema import read

    model = make_model(tmp_path / "model", **block)
    learn(model, write_stream(tmp_path / "stream.jsonl", 5), tmp_path / "out")
    state = read(LearnerState, read_folder(tmp_path / "out" / "state"), "")
    params, averages = state.model.params, state.optimizer["averages"]
    learned = spacy.load(tmp_path / "out" / "model-last")
    [found] = [one for one in walk(learned.get_pipe("ner").model, "ner") if one.name.endswith("linear/W")]
    name, saved = found.name, torch.from_numpy(found.owner.get_param("W"))
    if averages is None:  # ScheduleFreeAdamW.eval()
        expected = params[name].lerp(state.optimizer["params"][name]["state"]["z"], weight=1.0 - 1.0 / 0.9)
    else:
        expected = averages["tensors"][name]
    assert torch.equal(saved, expected) and not torch.equal(params[name], saved)


def test_learner_warns_when_nothing_is_learned(tmp_path):
    schedule = {"@schedules": "warmup_linear.v1", "initial_rate": 0.01, "warmup_steps": 1, "total_steps": 5}
    model = make_model(tmp_path / "model", learn_rate=schedule)
    _, told = learn(model, write_stream(tmp_path / "stream.jsonl", 20), tmp_path / "out")
    assert [text for text in told if "All learning rates are 0" in text]


def test_learner_watches_another_corpus(model, tmp_path):
    """Before the first text, every so many texts, and at the end, as `nlp.evaluate` would."""
    watched = write_stream(tmp_path / "watched.jsonl", 6)
    stream = write_stream(tmp_path / "stream.jsonl", 17)
    found, _ = learn(model, stream, tmp_path / "out", watched=watched, watch_every=10)
    assert [(row.texts, row.is_last) for row in found] == [(0, False), (5, False), (10, False), (15, False), (17, True)]
    assert [row.watched is not None for row in found] == [True, False, True, False, True]
    for place, row in ((model, found[0]), (tmp_path / "out" / "model-last", found[-1])):
        nlp = spacy.load(place)
        scores = nlp.evaluate([example for _, example in read_examples(nlp, watched)])
        assert row.watched_scores["tag_acc"] == scores["tag_acc"]


def test_learner_watches_at_an_end_between_two_evaluations(model, tmp_path):
    """The last block is full, and its row was not due. The row of the end goes when the run goes on."""
    watched = write_stream(tmp_path / "watched.jsonl", 6)
    stream = write_stream(tmp_path / "stream.jsonl", 10)
    for memory in (8, 9):  # the second time, nothing is new; and without replay there is no memory
        found, _ = learn(model, stream, tmp_path / "out", watched=watched, watch_every=15, memory=memory)
        assert [(row.texts, row.watched is None, row.is_last) for row in found][-1] == (10, False, True)
        assert [row["texts"] for row in rows(tmp_path / "out")] == [0, 5, 10, 10]
    write_stream(stream, 15)
    found, _ = learn(model, stream, tmp_path / "out", watched=watched, watch_every=15)
    assert [(row.texts, row.watched is None, row.is_last) for row in found] == [(15, False, False)]
    whole, _ = learn(model, stream, tmp_path / "whole", watched=watched, watch_every=15)
    assert [row.texts for row in whole] == [0, 5, 10, 15]
    assert rows(tmp_path / "out") == rows(tmp_path / "whole")


def test_learner_begins_its_memory_with_old_texts(model, tmp_path):
    stream, old = write_stream(tmp_path / "stream.jsonl", 6), write_stream(tmp_path / "old.jsonl", 10, start=10)
    learner = StreamLearner(*load(model), tmp_path / "out", LearnSettings(replay=2, memory=8), old=old)
    with learner:
        assert learner.progress.memory.seen == 10 and len(learner.progress.memory.lines) == 8
        list(learner.learn(LineReader(stream)))
        assert learner.progress.memory.seen == 16 and len(learner.progress.memory.lines) == 8
        assert learner.progress.block.n == 6 * 3


def test_learner_does_not_look_at_labels_of_frozen_components(model, tmp_path):
    stream = write_stream(
        tmp_path / "stream.jsonl", 3, changed=lambda i, found: {**found, "tags": ["ODD"] * len(found["words"])}
    )
    nlp, optimizer = load(model)
    nlp.config["training"]["frozen_components"] = ["tagger"]
    before = [value.clone() for value in pipeline_params(nlp)["tagger"]]
    with StreamLearner(nlp, optimizer, tmp_path / "out", LearnSettings()) as learner:
        assert [row.texts for row in learner.learn(LineReader(stream))] == [3]
        assert learner.progress.memory.lines == []  # without replay
    assert same(pipeline_params(nlp)["tagger"], before)


def test_learner_keeps_the_words_of_no_text(model, tmp_path):
    """Memory zones: spaCy's string store would grow with each new word."""

    def odd(i, found):
        return {"words": [f"word{i}x{j}" for j in range(len(found["words"]))], "tags": found["tags"]}

    stream = write_stream(tmp_path / "stream.jsonl", 20, changed=odd)
    nlp, optimizer = load(model)
    before = len(nlp.vocab.strings)
    with StreamLearner(nlp, optimizer, tmp_path / "out", LearnSettings(every=10)) as learner:
        list(learner.learn(LineReader(stream)))
    assert len(nlp.vocab.strings) - before < 50
    assert not any(text.startswith("word3") for text in nlp.vocab.strings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"batch_size": 0}, "--batch-size"), ({"new_labels": "keep"}, "--new-labels"), ({"replay": -1}, "--replay")],
)
def test_learner_refuses_impossible_settings(arguments, message):
    usual = LearnSettings()
    assert (usual.batch_size, usual.every, usual.save_every, usual.watch_every) == (1, 100, 1000, 1000)
    assert (usual.replay, usual.memory, usual.teacher, usual.prequential) == (0, 1000, True, True)
    with pytest.raises(ConfigError, match=message):
        LearnSettings(**arguments)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *(
            (name, f"out': {name} is there without the state of an earlier run")
            for name in ("model-last", "learn.jsonl", "rejected.jsonl", "teacher")
        ),
        ("link to state", "out': state is there"),
        ("state/step-00000010", "the checkpoints of a training are in '.*state'"),
        ("step-00000010", "the checkpoints of a training are in '.*out'"),
    ],
)
def test_learner_overwrites_no_files_of_others(model, name, told, tmp_path):
    path = tmp_path / "out" / name.removeprefix("link to ")
    path.mkdir(parents=True)
    (path / "precious").write_text("x")
    if name.startswith("link"):
        path.rename(tmp_path / "away")
        path.symlink_to(tmp_path / "nowhere")
    (path.parent / ".unfinished-new-model-last-1").mkdir()  # of a training that may be writing it
    before = sorted(tmp_path.rglob("*"))
    stream = write_stream(tmp_path / "stream.jsonl", 3)
    with pytest.raises(StateError, match=told):
        learn(model, stream, tmp_path / "out")
    assert sorted(path for path in tmp_path.rglob("*") if path != stream) == before


@pytest.mark.parametrize("after", [0, 3])
def test_learner_begins_again_after_a_kill_before_it_saved(model, after, tmp_path):
    """Also with other settings: nothing of the run is lost."""
    stream = write_stream(tmp_path / "stream.jsonl", 6)
    taught = {"new_labels": "add", "watched": stream}
    with pytest.raises(KeyboardInterrupt):
        learn(model, stream, tmp_path / "out", is_stopped=stops(after, KeyboardInterrupt), batch_size=2, **taught)
    for output in ("out", "one"):
        learn(model, stream, tmp_path / output, **taught)
    assert files(tmp_path / "out") == files(tmp_path / "one") and rows(tmp_path / "out") == rows(tmp_path / "one")


def test_learner_has_rows_on_the_disk_before_their_size_is_saved(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    assert [LearnerFolder(tmp_path).append("learn.jsonl", [{"texts": 1}])] == sizes == [len('{"texts": 1}\n')]


def test_learner_saves_at_the_start_after_so_many_texts_and_at_the_end(model, unbroken, tmp_path, monkeypatch):
    saved, save = [], LearnerFolder.save
    monkeypatch.setattr(LearnerFolder, "save", lambda *args: (saved.append(args[1].progress.texts), save(*args)))
    learn(model, unbroken[0], tmp_path / "out", save_every=10)
    assert saved == [0, 10, 18]


def test_learner_counts_seconds_over_several_runs(model, unbroken, tmp_path, monkeypatch):
    ticks = itertools.count(1000, 1.125)
    monkeypatch.setattr("thinc_torchopt.addons.streams.learner.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    found = [learn(model, unbroken[0], tmp_path / "out", is_stopped=stops(end))[0] for end in (16, 99)]
    assert [row.seconds for row in found[0] + found[1]] == [2.25, 3.38, 5.62, 7.88]


NOTED = []


@registry.callbacks("streams-test-spoil.v1")
def make_spoiler():
    def spoil(nlp, args):
        NOTED.append(args)
        if args["step"] >= 5:
            nlp.get_pipe("tagger").model.get_ref("output_layer").inc_grad("b", numpy.float32(numpy.nan))

    return spoil


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.NonFiniteGradWarning")
def test_learner_counts_gradients_that_are_not_finite_and_saves_before_it_ends_with_them(unbroken, tmp_path):
    """Here they come by `before_update`, which is called with the number of texts."""
    nlp, optimizer = load(make_model(tmp_path / "model", max_nonfinite=2))
    nlp.config["training"]["before_update"] = {"@callbacks": "streams-test-spoil.v1"}
    learner = StreamLearner(nlp, optimizer, tmp_path / "out", LearnSettings(every=5, batch_size=5))
    with learner, pytest.raises(StreamError, match=r"line 11 of the stream: .*in a row"):
        list(learner.learn(LineReader(unbroken[0])))
    assert NOTED[:3] == [{"step": step, "epoch": 0} for step in (0, 5, 10)]
    assert [(row["texts"], row["skipped_updates"]) for row in rows(tmp_path / "out")] == [(5, 0), (10, 1)]
    assert learner.skipped_updates == 2
    assert "'texts': 10" in str(read_folder(tmp_path / "out" / "state"))
