"""The recorder of a run. What it says of a pass is computed again, from spaCy's own losses."""

import logging
import shutil
from contextlib import ExitStack
from types import SimpleNamespace

import numpy
import pytest
import spacy
from spacy.tokens import Doc, DocBin
from spacy.training import Example

from thinc_torchopt.addons.recorder.recorder import RunRecorder
from thinc_torchopt.addons.recorder.signals import Signal, listening
from thinc_torchopt.core import whole_batches
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.kinds import kind_in
from thinc_torchopt.core.record import FOLDER, Record, digest
from thinc_torchopt.loop.faster import SWITCH

from ...models import ready_pipeline
from ...runs import config_for, contents, digests, run

# Sums in another order: float32.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def recorded(folder, corpus, **changes):
    return config_for(folder, corpus, training__optimizer__recorder={"@misc": "thinc-torchopt.Recorder.v1"}, **changes)


def signals_of(nlp, name, examples):
    """What listening gives in an update of a component: hardness and hits by text."""
    found = []
    proc = nlp.get_pipe(name)
    with listening(proc.model, kind_in(nlp, name), found.append):
        proc.update(examples, sgd=None, drop=0.0)
    [signal] = found
    assert len(signal.docs) == len(examples)
    return list(signal.by_text())


def without_dropout(examples):
    return [Example(Doc(one.predicted.vocab, words=[t.text for t in one.predicted]), one.reference) for one in examples]


# ---------------------------------------------------------------------- one pass


@pytest.mark.parametrize(("name", "has_input"), [("tagger", True), ("tagger", False), ("morphologizer", True)])
def test_signal_of_words_is_the_gradient_at_the_input(name, has_input):
    """Or at the scores, where the input is unknown. Without an annotation nothing is hit."""
    nlp, examples = ready_pipeline([name], shared=False)
    pipe = nlp.get_pipe(name)
    if not has_input:
        pipe.model.set_ref("tok2vec", None)
        examples[0].reference[1].tag_ = ""
    softmax = pipe.model.layers[-1].layers[0]
    softmax.set_param("W", numpy.random.default_rng(0).normal(size=softmax.get_param("W").shape).astype("f4"))
    found = signals_of(nlp, name, without_dropout(examples))
    scores, _ = pipe.model.begin_update([one.predicted for one in without_dropout(examples)])
    _, errors = pipe.get_loss(examples, scores)
    weights = softmax.get_param("W") if has_input else numpy.eye(len(pipe.labels))  # its input gets errors @ W
    for (hardness, hits), score, error, example in zip(found, scores, errors, examples):
        assert hardness == pytest.approx(numpy.linalg.norm(error @ weights, axis=1), rel=1e-4, abs=1e-6)
        labels = [pipe.labels[i] for i in score.argmax(axis=1)]
        if name == "tagger":
            assert hits.tolist() == [label == token.tag_ for label, token in zip(labels, example.reference)]


@pytest.mark.parametrize("name", ["ner", "parser"])
def test_signal_of_steps_is_the_worst_error_at_a_token(name):
    nlp, examples = ready_pipeline([name], shared=False)
    pipe = nlp.get_pipe(name)
    pipe.cfg["update_with_oracle_cut_size"] = 0  # whole texts: cuts are drawn
    found = signals_of(nlp, name, without_dropout(examples))
    # SOURCE: spacy/pipeline/transition_parser.pyx, `Parser.update`.
    examples = without_dropout(examples)
    expected = {id(one.predicted): numpy.full(len(one), numpy.nan) for one in examples}
    states, golds, _ = pipe.moves.init_gold_batch(examples)
    model, _ = pipe.model.begin_update([one.predicted for one in examples])
    pairs = list(zip(states, golds))
    while pairs:
        states, golds = zip(*pairs)
        scores, _ = model.begin_update(states)
        for state, error in zip(states, pipe.get_batch_loss(states, golds, scores, None)):
            if state.queue:
                worst = expected[id(state.doc)]
                worst[state.queue[0]] = numpy.fmax(worst[state.queue[0]], error[error > 0].sum())
        pipe.transition_states(states, scores)
        pairs = [(state, gold) for state, gold in zip(states, golds) if not state.is_final()]
    for (hardness, hits), example in zip(found, examples):
        numpy.testing.assert_allclose(hardness, expected[id(example.predicted)], **CLOSE)
        assert hits.tolist() == (hardness < 0.5).tolist()


@pytest.mark.parametrize("name", ["textcat", "textcat_multilabel"])
def test_signal_of_classifiers_is_the_error_of_each_label(name):
    nlp, examples = ready_pipeline([name])
    pipe = nlp.get_pipe(name)
    found = signals_of(nlp, name, without_dropout(examples))
    for (hardness, hits), example in zip(found, examples):
        doc = pipe(example.predicted.copy())
        errors = [abs(doc.cats[label] - example.reference.cats[label]) for label in pipe.labels]
        # The linear layer has dropout of its own in training, and these are predictions: it is off in both.
        assert hardness == pytest.approx(errors, rel=1e-4, abs=1e-5)
        assert hits.tolist() == [error < 0.5 for error in errors]


def test_signal_of_spans_is_the_worst_span_around_a_token():
    nlp, examples = ready_pipeline(["spancat"], shared=False)
    pipe = nlp.get_pipe("spancat")
    fresh = without_dropout(examples)
    found = signals_of(nlp, "spancat", fresh)
    docs = [one.predicted for one in fresh]
    spans, scores = pipe.predict(docs)
    _, errors = pipe.get_loss(fresh, (spans, scores))
    begin = 0
    for (hardness, _), doc, n in zip(found, docs, spans.lengths):
        for i in range(len(doc)):
            around = [
                numpy.abs(errors[begin + k]).max()
                for k, (start, end) in enumerate(spans.data[begin : begin + n])
                if start <= i < end
            ]
            assert hardness[i] == pytest.approx(max(around), rel=1e-5)
        begin += n


def test_listening_leaves_the_models_as_they_were():
    nlp, examples = ready_pipeline(["tagger", "ner", "textcat", "spancat"], shared=False)
    before = {node.id: node._func for _, proc in nlp.pipeline for node in proc.model.walk()}
    for name in nlp.pipe_names:
        signals_of(nlp, name, without_dropout(examples))
        with pytest.raises(KeyError), listening(nlp.get_pipe(name).model, kind_in(nlp, name), print):
            raise KeyError
    assert before == {node.id: node._func for _, proc in nlp.pipeline for node in proc.model.walk()}


# ---------------------------------------------------------------------- a run


def test_recorder_changes_no_weight_and_records_every_text(tmp_path, corpus):
    """Also in the steps behind the last evaluation."""
    changes = {"parser": True, "training__accumulate_gradient": 2}
    changes |= {"training__max_steps": 0, "training__max_epochs": 2, "training__eval_frequency": 4}
    tagger = config_for(tmp_path, corpus)["components"]["tagger"]
    changes |= {"components__tagger": None, "components__tägger+": tagger}
    changes |= {"nlp__pipeline": ["tok2vec", "tägger+", "parser"], "training__score_weights": {"tag_acc": 1.0}}
    run(config_for(tmp_path / "without", corpus, **changes), tmp_path / "without")
    run(recorded(tmp_path / "with", corpus, **changes), tmp_path / "with")
    assert digests(tmp_path / "with") == digests(tmp_path / "without")
    record = Record.from_disk(tmp_path / "with")
    nlp = spacy.load(tmp_path / "with" / "model-last")
    docs = [*DocBin().from_disk(corpus["train"]).get_docs(nlp.vocab)]
    keys = [digest(Example(nlp.make_doc(doc.text), doc)) for doc in docs]
    assert {name: texts.keys() for name, texts in record.units.items()} == {"tägger+": {*keys}, "parser": {*keys}}
    updates = {key: int(units["updates"].max()) for key, units in record.units["tägger+"].items()}
    assert updates == {key: 2 * keys.count(key) for key in keys}


def test_recorder_of_a_resumed_run_writes_the_same_file(tmp_path, corpus):
    run(recorded(tmp_path / "whole", corpus), tmp_path / "whole")
    run(recorded(tmp_path / "parts", corpus), tmp_path / "parts", crash_at=11)
    assert Record.from_disk(tmp_path / "parts").units
    run(recorded(tmp_path / "parts", corpus), tmp_path / "parts")
    whole, parts = ({p.name: b for p, (b, _) in contents(tmp_path / x / FOLDER).items()} for x in ("whole", "parts"))
    assert whole == parts


def test_recorder_without_output_is_refused_before_the_first_step(tmp_path, corpus):
    with pytest.raises(ConfigError, match="expected a folder for the record, found a training without --output"):
        run(recorded(tmp_path, corpus), None)


def fake_run(tmp_path, nlp, ranks=None):
    ranks = ranks or SimpleNamespace(writes=True, size=1, gather=lambda value: [value])
    progress = SimpleNamespace(step=0, rollbacks=[])
    return SimpleNamespace(nlp=nlp, exclude=[], ranks=ranks, progress=progress, models=SimpleNamespace(folder=tmp_path))


def update(recorder, nlp, examples):
    with recorder.around_part(examples):
        nlp.update(examples, sgd=False)


def test_recorder_adds_what_all_processes_saw(tmp_path):
    nlp, examples = ready_pipeline(["tagger"])
    other = RunRecorder(1000, fake_run(tmp_path, nlp))
    update(other, nlp, examples[:1])
    theirs = other._read()
    ranks = SimpleNamespace(writes=True, size=2, gather=lambda value: [value, theirs])
    recorder = RunRecorder(1000, fake_run(tmp_path, nlp, ranks))
    update(recorder, nlp, examples[1:2])
    recorder.on_step_end(None, None)
    assert {*recorder._record.units["tagger"]} == {digest(one) for one in examples[:2]}


def test_recorder_writes_at_evaluations_and_saves_in_one_process(tmp_path, caplog):
    nlp, examples = ready_pipeline(["tagger"])
    recorder = RunRecorder(1000, fake := fake_run(tmp_path, nlp))
    update(recorder, nlp, examples)
    fake.ranks.writes = False
    recorder.on_save(None, None)
    assert not (tmp_path / FOLDER).exists()
    fake.ranks.writes = True
    for write in (recorder.on_evaluate, recorder.on_save):
        write(None, None)
        assert Record.from_disk(tmp_path).units["tagger"]
        shutil.rmtree(tmp_path / FOLDER)
    fake.models.folder = tmp_path / "file"
    fake.models.folder.touch()
    with caplog.at_level(logging.INFO, "spacy.torchopt"):
        recorder.on_save(None, None)
    assert "Recorder: The record can't be written: " in caplog.text


def test_recorder_reads_a_gpu_at_last_when_enough_waits(tmp_path):
    nlp, examples = ready_pipeline(["tagger"])
    recorder = RunRecorder(1000, fake_run(tmp_path, nlp))
    update(recorder, nlp, examples)
    [part] = recorder._waiting
    for waiting, left in ((256, 256), (257, 0)):
        recorder._waiting = [part] * waiting
        recorder.on_step_end(None, None)
        assert len(recorder._waiting) == left


def test_recorder_finds_the_texts_that_a_component_gets(tmp_path, caplog):
    nlp, examples = ready_pipeline(["tagger"], shared=False)
    recorder = RunRecorder(1000, fake_run(tmp_path, nlp))
    other = Example.from_dict(nlp.make_doc("Anna likes old London"), {"tags": ["NNP", "VBZ", "JJ", "NNP"]})
    with caplog.at_level(logging.INFO, "spacy.torchopt"), recorder.around_part(examples[:3]):
        for some in (examples[1:3], without_dropout(examples[1:2]), [other]):
            nlp.get_pipe("tagger").update(some, sgd=False)
    keys = [digest(example) for example in examples]
    assert [part.digests for part in recorder._waiting] == [keys[1:3], keys[1:2]]
    assert "Texts of component 'tagger' are not recorded: it gets others than the batch has." in caplog.text


@pytest.mark.parametrize("reason", ["was skipped", "was given up: the training went back"])
def test_recorder_names_the_texts_of_a_bad_step(tmp_path, caplog, reason):
    """The three with the largest gradients, and no more of each than fits in 80 letters."""
    nlp = spacy.blank("xx")
    docs = [Doc(nlp.vocab, words=[f"{i}", *["Anna"] * 30]) for i in range(10, 15)]
    recorder = RunRecorder(1000, fake := fake_run(tmp_path, nlp))
    with recorder.around_part([Example(doc, doc) for doc in docs]):
        for step, name, hardness in (
            (0, "ner", [9.0, 9.0, 9.0, 9.0, 9.0]),
            (1, "ner", [0.1, 0.2, 0.9, numpy.nan, 0.3]),
            (1, "tagger", [0.4, 0.1, 0.2, 0.1, 0.6]),
        ):
            fake.progress.step = step
            recorder._receive(name, Signal(docs, numpy.array(hardness)[:, None]))
    with caplog.at_level(logging.INFO, "spacy.torchopt"):
        recorder.on_step_end(None, None)
        fake.progress.rollbacks += [(1, 0)] * ("back" in reason)
        recorder.on_optimizer_step(SimpleNamespace(skipped="skipped" in reason), None)
        recorder.on_step_end(None, None)
        fake.progress.step = 2
        recorder.on_step_end(None, None)
    assert [record.getMessage() for record in caplog.records] == [
        f"Step 1 {reason}. A text with large gradients ({size}): {text}{' Anna' * 14} ..."
        for size, text in (("ner: inf", 13), ("ner: 0.9", 12), ("tagger: 0.6", 14))
    ]


def test_recorder_tells_once_what_it_leaves_out(tmp_path, caplog):
    nlp, examples = ready_pipeline(["tagger", "span_finder"], shared=False)
    recorder = RunRecorder(1000, fake_run(tmp_path, nlp))
    with caplog.at_level(logging.INFO, "spacy.torchopt"):
        update(recorder, nlp, examples)
        update(recorder, nlp, examples)
    assert [record.getMessage() for record in caplog.records] == [
        "Recorder: Component 'span_finder' is not recorded: its factory, 'span_finder', is none that is."
    ]
    assert list(recorder.state_dict()["components"]) == ["tagger"]


# ---------------------------------------------------------------------- on a transformer


@pytest.mark.parametrize("kind", ["tagger", "three heads", "spancat", "textcat"])
def test_listening_leaves_batches_of_a_transformer_whole(tmp_path, monkeypatch, kind):
    """Weights and losses to the last bit, on the fast path: see core/whole_batches.py."""
    pytest.importorskip("spacy_transformers", reason="spacy-transformers is not installed")
    from ...core.test_whole_batches import KINDS, pipeline
    from ...loop.test_faster import update as update_faster

    monkeypatch.setenv(SWITCH, "1")
    found, calls, call = [], [], whole_batches._Head.__call__
    monkeypatch.setattr(
        whole_batches._Head,
        "__call__",
        lambda self, *given, **more: calls.append(self.batch is not None) or call(self, *given, **more),
    )
    for listens in (False, True):
        nlp, examples = pipeline(tmp_path, KINDS[kind])
        with ExitStack() as stack:
            signals = []
            for name in KINDS[kind] if listens else ():
                stack.enter_context(listening(nlp.get_pipe(name).model, kind_in(nlp, name), signals.append))
            losses = update_faster(nlp, examples, times=2)
        found.append((losses, nlp.to_bytes()))
    assert found[0] == found[1]
    assert calls == [True] * 4 * len(KINDS[kind])
    assert [len(signal.docs) for signal in signals] == [len(examples)] * 2 * len(KINDS[kind])
    assert all(numpy.isfinite(hardness).any() for signal in signals for hardness, _ in signal.by_text())
