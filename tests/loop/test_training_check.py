"""What `spacy train` tells before its first step, against what was taken away from the corpora."""

import io
import random
import warnings
from itertools import islice
from types import SimpleNamespace

import pytest
import spacy
import spacy.training.loop
import srsly
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.scorer import Scorer
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus, Example
from spacy.training.loop import create_evaluation_callback, create_train_batches
from spacy.util import registry

from thinc_torchopt.core.errors import ConfigError, PipelineWarning
from thinc_torchopt.core.read_once import evaluation_of_kept
from thinc_torchopt.loop import training_check
from thinc_torchopt.loop.data_check import Corpus as Read
from thinc_torchopt.loop.data_check import Facts, Finding, nothing_to_learn
from thinc_torchopt.loop.data_stream import Batches
from thinc_torchopt.loop.training_check import OneLabelCheck, TrainingCheck, label_of_all

from ..runs import OPTIMIZER
from .test_data_check import GOLD, LEARNERS, WORDS

PLACE = {}


@registry.readers("test-check.Examples.v1")
def reader(of: str):
    """The examples in PLACE, by a reader of the user: whoever reads them draws a number."""

    def read(nlp):
        for example in PLACE[of]:
            random.random()
            PLACE["reads"][of] += 1
            yield Example(nlp.make_doc(example.reference.text), example.reference)

    return read


def texts(name, kept):
    """Texts of which some have annotations."""
    vocab = spacy.blank("xx").vocab
    found = []
    for i, is_kept in enumerate(kept):
        doc = Doc(vocab, words=[*WORDS[:4], f"{name}{i}"])
        cats = {"RED": float(i % 2), "BLUE": 1.0 - i % 2}
        found.append(Example.from_dict(doc, GOLD | {"cats": cats} if is_kept else {}))
    return found


def run(component, train, dev, blank=None, **changes):
    """`spacy train` for one step. blank: A frozen component. RETURNS: The texts of the warnings."""
    PLACE.update(train=train, dev=dev, reads={"train": 0, "dev": 0})
    nlp = spacy.blank("xx")
    nlp.add_pipe(component)
    # The pipeline is made as if all texts had annotations: spaCy refuses others, with messages of its own.
    whole = texts("whole", [True] * 40)
    optimizer = OPTIMIZER | changes.pop("optimizer", {})
    weights = {key: weight for key, weight in nlp.get_pipe_meta(component).default_score_weights.items() if weight}
    nlp.config["corpora"] = {name: {"@readers": "test-check.Examples.v1", "of": name} for name in ("train", "dev")}
    nlp.config["training"] |= {
        "optimizer": optimizer, "max_steps": 1, "eval_frequency": 1, "seed": 0, "score_weights": weights, **changes
    }  # fmt: skip
    nlp.initialize(lambda: whole)
    if blank is not None:
        nlp.add_pipe(blank)
        nlp.config["training"]["frozen_components"] = [blank]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PipelineWarning)
        spacy.training.loop.train(nlp, stdout=io.StringIO(), stderr=io.StringIO())
    return [str(one.message) for one in caught if issubclass(one.category, PipelineWarning)]


KEPT = st.lists(st.booleans(), min_size=4, max_size=8)


@settings(max_examples=settings.default.max_examples // 4, deadline=None)
@given(component=st.sampled_from(LEARNERS), train=KEPT, dev=KEPT)
def test_training_check_tells_of_annotations_that_were_taken_away(component, train, dev):
    """None in the training data: an error. None in the development data: a warning. Otherwise neither is told."""
    if not any(train):
        with pytest.raises(ConfigError, match=f"'{component}' has nothing to learn: none of the {len(train)} texts"):
            run(component, texts("train", train), texts("dev", dev))
        return
    told = " ".join(run(component, texts("train", train), texts("dev", dev)))
    assert told.count(f"'{component}' can't be scored: none of the {len(dev)} texts") == (not any(dev))
    assert "nothing to learn" not in told


def test_training_check_allows_it_when_told(tmp_path):
    """And is not made again in a run that goes on."""
    bare, block = texts("train", [False] * 6), {"@misc": "thinc-torchopt.Checkpoint.v1", "path": str(tmp_path)}
    allowed = {"allow_untrainable": True, "checkpoint": block}
    told, again = (run("parser", bare, texts("dev", [True] * 6), optimizer=dict(allowed)) for _ in range(2))
    assert told[0].startswith("'parser' has nothing to learn: none of the 6 texts in [corpora.train]") and not again
    with pytest.raises(ConfigError, match="allow_untrainable = true in"):
        run("parser", bare, texts("dev", [True] * 6))


@pytest.mark.parametrize("is_allowed", [False, True])
def test_training_check_of_a_frozen_component_without_weights(is_allowed):
    """The setting does not help: spaCy stops at the first evaluation, with E900."""
    kept = [True] * 6
    with pytest.raises(ConfigError, match="'ner' is frozen and was never trained") as error:
        run(
            "tagger", texts("train", kept), texts("dev", kept), blank="ner", optimizer={"allow_untrainable": is_allowed}
        )
    assert "allow_untrainable" not in str(error.value)


def test_training_check_of_a_stream():
    """The warning comes at the first evaluation after step 0, where a training without gradients may go on."""
    bare, dev, allowed = texts("train", [False] * 6), texts("dev", [True] * 6), {"allow_untrainable": True}
    told = run("parser", bare, dev, max_epochs=-1, optimizer=allowed)
    assert [one for one in told if one.startswith("'parser' has nothing to learn: none of the first 12 texts in")]
    assert not run("parser", texts("train", [True] * 6), texts("dev", [True] * 6), max_epochs=-1)


def test_training_check_reads_nothing_twice():
    """A reader of the user reads as often as spaCy's own trainer lets it."""
    run("tagger", texts("train", [True] * 6), texts("dev", [True] * 5))
    assert PLACE["reads"] == {"train": 6, "dev": 10}


def test_training_check_leaves_the_development_data_to_the_first_evaluation(tmp_path, monkeypatch):
    """spaCy's own evaluation has the same scores; the file is not read a second time for the first one."""
    path = tmp_path / "dev.spacy"
    DocBin(docs=[example.reference for example in texts("dev", [True] * 6)]).to_disk(path)
    nlp, train = spacy.blank("xx"), texts("train", [True] * 6)
    nlp.add_pipe("tagger")
    nlp.initialize(lambda: train)
    training = nlp.config["training"]
    training |= {"optimizer": OPTIMIZER, "score_weights": {"tag_acc": 1.0}}
    evaluate = create_evaluation_callback(nlp, Corpus(path), training["score_weights"])
    kept = evaluation_of_kept(nlp, evaluate)
    made = registry.resolve({"o": OPTIMIZER})["o"]
    made.initialize(nlp)
    found = TrainingCheck(nlp, made, kept).begin(train)
    expected = evaluate()
    monkeypatch.delattr(Corpus, "__call__")
    score, scores = found()
    assert score == expected[0] and {**scores, "speed": 0} == {**expected[1], "speed": 0}
    with pytest.raises(TypeError):
        evaluate()


def test_training_check_tells_of_a_schedule_longer_than_the_epochs():
    train, dev = (texts(name, [True] * 10) for name in ("train", "dev"))
    batcher = {"@batchers": "spacy.batch_by_sequence.v1", "size": 2, "get_length": None}
    rate = {"@schedules": "warmup_linear.v1", "initial_rate": 0.01, "warmup_steps": 1, "total_steps": 900}
    told = run("tagger", train, dev, optimizer={"learn_rate": rate}, max_epochs=6, max_steps=0, batcher=batcher)
    assert [one for one in told if "when the training ends at step 29 (total_steps = 900 in learn_rate)" in one]


def test_training_check_looks_at_all_of_a_large_corpus():
    """400,000 words without a tree are an error, not a warning; a tree in the last text is found."""
    vocab = spacy.blank("xx").vocab
    long = Example.from_dict(Doc(vocab, words=["word"] * 100_000), {})
    dev = texts("dev", [True] * 6)
    with pytest.raises(ConfigError, match="'parser' has nothing to learn: none of the 4 texts in"):
        run("parser", [long] * 4, dev, batcher={"@batchers": "test-check.last.v1"})
    told = run("parser", [*[long] * 4, *texts("train", [True])], dev, batcher={"@batchers": "test-check.last.v1"})
    assert not [one for one in told if "nothing to learn" in one]


@registry.batchers("test-check.last.v1")
def batch_short_texts():
    return lambda items: ([item] for item in [*items] if len(item) < 10)


def test_training_check_of_a_sourced_component_that_learns_nothing():
    nlp = spacy.blank("xx")
    nlp.add_pipe("tagger")
    nlp.initialize(lambda: texts("train", [True] * 6))
    train = Read("corpora.train", texts("train", [False] * 6))
    config = {"training": {"frozen_components": []}}
    [found] = nothing_to_learn(Facts(nlp, config, train, sourced=["tagger"]))
    assert found.kind == "in vain" and "add it to [training] frozen_components" in found.text
    assert not [
        *nothing_to_learn(Facts(nlp, {"training": {"frozen_components": ["tagger"]}}, train, sourced=["tagger"]))
    ]


def test_training_check_of_a_label_that_comes_late_in_a_stream():
    """After the first evaluations: it is told once, and only then."""
    kept = texts("train", [True] * 60)
    for example in kept[40:]:
        example.reference.cats = {"RED": 0.0, "BLUE": 0.0, "LATE": 1.0}
    one = {"@batchers": "spacy.batch_by_sequence.v1", "size": 2, "get_length": None}
    stream = {"max_epochs": -1, "eval_frequency": 5, "batcher": one}
    told = run("textcat", kept, texts("dev", [True] * 6), max_steps=15, **stream)
    assert not [text for text in told if "LATE" in text]
    told = run("textcat", kept, texts("dev", [True] * 6), max_steps=50, **stream)
    late = [text for text in told if "'textcat' does not know LATE, which [corpora.train] has" in text]
    assert len(late) == 1


# ---------------------------------------------------------------------- batches that there are not


@registry.batchers("test-check.first-epoch.v1")
def batch_first_epoch(epochs):
    """All batches of some epochs, and none after that."""
    left = [epochs]

    def batch(items):
        left[0] -= 1
        yield from ([item] for item in [*items] if left[0] >= 0)

    return batch


@settings(max_examples=12, deadline=None)
@given(max_epochs=st.sampled_from([-1, 0, 3]), epochs=st.integers(0, 2), n=st.integers(1, 4))
def test_training_check_stops_where_there_are_no_batches(max_epochs, epochs, n):
    """spaCy's loop would look for one for ever, or save an untrained pipeline. In memory the first epoch is known."""
    batcher = {"@batchers": "test-check.first-epoch.v1", "epochs": epochs}
    kept = texts("train", [True] * n)
    ends = {"max_epochs": max_epochs, "max_steps": 0 if max_epochs > 0 else 50, "batcher": batcher}
    known = max_epochs >= 0 and not epochs
    with pytest.raises(ConfigError, match="There would be no batch" if known else "in each epoch, and") as error:
        run("tagger", kept, texts("dev", [True] * 4), eval_frequency=100, **ends)
    assert known or f"made no batch of {n} text" in str(error.value)


def test_training_check_of_a_stream_without_texts():
    """spaCy's own loop never ends there."""
    with pytest.raises(ConfigError, match=r"\[training.batcher\] got no text in the last one"):
        run("tagger", Once(texts("train", [True] * 6)), texts("dev", [True] * 4), max_epochs=-1, max_steps=50)


class Once(list):
    """Texts that can be read once, as from standard input."""

    def __iter__(self):
        while self:
            yield self.pop()


@pytest.mark.parametrize(("n", "shown"), [(6, 6), (7, 5)])
def test_training_check_warns_of_the_first_findings(n, shown, monkeypatch):
    """Each is told once in a run."""
    monkeypatch.setattr(training_check, "check", lambda facts, checks: [Finding("doubt", f"{i}") for i in range(n)])
    nlp, batch = spacy.blank("xx"), texts("train", [True])
    checked = TrainingCheck(nlp, SimpleNamespace(allow_untrainable=False), None)
    with pytest.warns(PipelineWarning) as told:
        for _ in range(2):
            checked.on_step_begin(SimpleNamespace(step=0, batch=batch), None)
    expected = [*map(str, range(shown)), *["and 2 more: spacy torchopt explain"] * (n > shown)]
    assert [str(one.message) for one in told] == expected


def test_training_check_looks_at_a_stream_after_many_words(monkeypatch):
    """Where no evaluation comes before; and after as many once more, at labels alone."""
    looked, nlp, long = [], spacy.blank("xx"), texts("train", [True])
    short = [Example.from_dict(Doc(nlp.vocab, words=["a"]), {})]
    monkeypatch.setattr(training_check, "_MOST_WORDS", 11)
    monkeypatch.setattr(
        training_check, "check", lambda facts, checks: looked.append((len(facts.train.examples), len(checks))) or []
    )
    checked = TrainingCheck(nlp, SimpleNamespace(allow_untrainable=False), None)
    for step, batch in enumerate([long, long, short] * 2, 1):
        checked.on_step_begin(SimpleNamespace(step=step, batch=batch), None)
    assert looked == [(3, len(training_check.OF_TEXTS)), (3, 1)]


@pytest.mark.parametrize("max_epochs", [-1, 0, 2])
def test_training_check_draws_the_batches_of_spacy(max_epochs):
    """The same texts in the same order, whatever watches them, and read as often; nor is another number drawn."""
    PLACE.update(train=texts("train", [True] * 9), reads={"train": 0})
    batcher = registry.resolve({"b": {"@batchers": "spacy.batch_by_sequence.v1", "size": 2, "get_length": None}})["b"]

    def drawn(kind):
        random.seed(0)
        PLACE["reads"]["train"] = 0
        batches = kind(create_train_batches(spacy.blank("xx"), reader("train"), batcher, max_epochs))
        found = [(epoch, [one.reference.text for one in batch]) for epoch, batch in islice(batches, 12)]
        return found, random.random(), PLACE["reads"]["train"]

    def early(batches):
        made = Batches(batches)
        assert len(made.all_examples()) == 9 * (max_epochs >= 0)
        return made

    assert drawn(Batches) == drawn(iter) == drawn(early)
    assert Batches(create_train_batches(spacy.blank("xx"), reader("train"), batcher, max_epochs)).batcher is batcher


# ---------------------------------------------------------------------- at evaluations


@given(st.lists(st.tuples(st.sampled_from(["A", "B", "C", None]), st.sampled_from("ABC")), min_size=1, max_size=9))
def test_label_of_all_is_found_in_spacys_scores(pairs):
    """Annotated and predicted labels. None: a text without annotation, for which nothing is right."""
    vocab, examples = spacy.blank("xx").vocab, []
    for annotated, predicted in pairs:
        docs = [Doc(vocab, words=["a"]) for _ in range(2)]
        for doc, label in zip(docs, (predicted, annotated)):
            doc.cats = {one: float(one == label) for one in "ABC"} if label else {}
        examples.append(Example(*docs))
    scores = Scorer.score_cats(examples, "cats", labels=["A", "B", "C"], multi_label=False)
    said, right = {label for _, label in pairs}, sum(one == other for one, other in pairs)
    is_told = len(said) == 1 and 0 < right < len(pairs)
    # One rounding each: of a share, and of spaCy's, to whose denominator it adds 1e-100.
    assert label_of_all(scores) == ((*said, pytest.approx(right / len(pairs), rel=1e-15)) if is_told else None)


@pytest.mark.parametrize(
    ("component", "kept", "is_told"),
    [
        ("textcat", slice(None), True),
        ("textcat", slice(0, None, 2), False),  # all texts have one category
        ("textcat", slice(1, None, 2), False),
    ],
)
def test_training_tells_once_of_one_label_for_all(component, kept, is_told, tmp_path):
    """With a rate that learns nothing, in a training that goes on; not at step 0, which each training begins with."""
    log = tmp_path / "log.jsonl"
    logger = {"@loggers": "thinc-torchopt.JSONLinesLogger.v1", "path": str(log)}
    dev = texts("dev", [True] * 8)[kept]
    told = run(component, texts("train", [True] * 6), dev, max_steps=4, optimizer={"learn_rate": 1e-12}, logger=logger)
    found = [one for one in told if "gives each text of [corpora.dev] the category" in one]
    lines = [(line["step"], line["one_label"]) for line in srsly.read_jsonl(log) if "one_label" in line]
    assert len(found) == len(lines) == is_told
    if is_told:
        [(step, label)] = lines
        assert step == 1 and f"'textcat' gives each text of [corpora.dev] the category {label} at step 1" in found[0]
        assert "right for 50.0% of them" in found[0]


@pytest.mark.parametrize(
    ("components", "told"),
    [
        (["textcat"], "textcat"),
        (["textcat_multilabel", "textcat"], "textcat"),
        (["textcat", "textcat_multilabel"], None),  # whose scores these are
        (["textcat_multilabel"], None),  # it may say nothing of a text
        (["ner"], None),
    ],
)
def test_one_label_is_told_of_the_component_whose_scores_these_are(components, told):
    nlp = spacy.blank("xx")
    for name in components:
        nlp.add_pipe(name)
    scores = {"cats_micro_p": 0.9, "cats_f_per_type": {"A": {"p": 0.9, "r": 1.0}, "B": {"p": 0.0, "r": 0.0}}}
    event = SimpleNamespace(step=1, scores=scores, run=SimpleNamespace(nlp=nlp))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        OneLabelCheck().on_evaluate(event, None)
    found = [str(one.message) for one in caught]
    assert (
        found == []
        if told is None
        else found[0].startswith(f"'{told}' gives each text of [corpora.dev] the category A")
    )
