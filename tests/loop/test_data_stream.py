"""The batches of a run: which come, what they cost, and that changed ones are noticed."""

import random
from itertools import chain, count, groupby, islice

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import DocBin
from spacy.training import Corpus
from spacy.training.augment import create_lower_casing_augmenter
from spacy.training.loop import create_train_batches
from spacy.util import registry

from thinc_torchopt.core.read_once import ReadOnce
from thinc_torchopt.loop import data_stream, random_state
from thinc_torchopt.loop.data_stream import DataStream, identity_of_texts

from ..models import toy_examples, toy_pipeline

NLP = toy_pipeline(["tagger"])
EXAMPLES = toy_examples(NLP, 30)


def drawing_batcher(examples):
    """One that draws from both generators, for each batch."""
    examples = list(examples)
    for start in range(0, len(examples), 4):
        yield [*random.sample(examples, random.randint(1, 4)), examples[start + numpy.random.randint(2)]]


BATCHERS = {"of spaCy": registry.batchers.get("spacy.batch_by_sequence.v1")(4), "that draws": drawing_batcher}


def batches(batcher="of spaCy", max_epochs=0, examples=EXAMPLES):
    """As `spacy train` makes them, from the seed on."""
    random.seed(1)
    numpy.random.seed(1)
    return create_train_batches(NLP, lambda nlp: list(examples), BATCHERS[batcher], max_epochs)


def own_batches(examples=EXAMPLES):
    """As in a loop of one's own."""
    random.seed(1)
    numpy.random.seed(1)
    return ((epoch, random.sample(examples, 3)) for epoch in count())


def ids(drawn):
    return [(epoch, list(map(id, batch))) for epoch, batch in drawn]


def draw_others(drawn):
    """What a training does between two batches. `drawn`: gets the numbers."""
    drawn.append((random.random(), numpy.random.normal(), random.gauss(0, 1), numpy.random.randint(9)))


@given(
    st.sampled_from([*BATCHERS, "own"]), st.integers(0, 3), st.integers(1, 90), st.integers(0, 90), st.integers(1, 3)
)
def test_data_stream_has_generators_of_its_own(batcher, max_epochs, n, stopped, size):
    """The batches are those of a loop that draws nothing else, and the other numbers those of one that draws no
    batches; interrupted or not.
    """

    def begin():
        return own_batches() if batcher == "own" else batches(batcher, max_epochs)

    joined = []
    for epoch, drawn in groupby(islice(begin(), n * size), key=lambda one: one[0]):
        parts = [batch for _, batch in drawn]
        joined += [(epoch, [*chain(*parts[i : i + size])]) for i in range(0, len(parts), size)]
    begin()
    numbers = []
    for _ in range(n):
        draw_others(numbers)
    stream, found, drawn = DataStream(begin(), size), [], []
    saved = stream.snapshot()
    for i in range(n):
        if (batch := next(stream, None)) is None:
            break
        found.append(batch)
        draw_others(drawn)
        if i + 1 == stopped:
            saved = stream.snapshot()
    assert drawn == numbers[: len(drawn)]
    assert ids(found) == ids(joined[: len(found)]) and len(found) == min(n, len(joined))
    again, other = DataStream(begin(), size), DataStream(begin(), size + 1)
    random.seed(9)
    before = random.getstate()
    again.go_on_from(saved)
    assert random.getstate() == before
    assert ids(islice(again, len(found) - saved.position)) == ids(found[saved.position :])
    assert (again.position, again.checksum) == (stream.position, stream.checksum)
    assert again.snapshot().sizes == [(size, len(found))]
    assert other.go_on_from(saved) and (next(other, None) is None or other.snapshot().sizes[-1] == (size + 1, 1))


@pytest.fixture
def counted(monkeypatch):
    """How often each of these functions is called."""
    calls = dict.fromkeys(["get_state", "set_state", "_checksum"], 0)

    def counting(module, name):
        original = getattr(module, name)

        def function(*args):
            calls[name] += 1
            return original(*args)

        monkeypatch.setattr(module, name, function)

    for name in ("get_state", "set_state"):
        counting(random_state.numpy.random, name)
    counting(data_stream, "_checksum")
    return calls


def test_data_stream_exchanges_generators_and_looks_at_examples_rarely(counted):
    """Both took more time than an update of a small pipeline."""
    stream = DataStream(batches())
    next(stream)
    assert counted["_checksum"] == len(EXAMPLES)
    drawn = list(islice(stream, 639))
    assert counted["_checksum"] == len(EXAMPLES)
    assert counted["get_state"] + counted["set_state"] <= 1 + 4 * 640 / 32
    saved, before = stream.snapshot(), counted.copy()
    again = DataStream(batches())
    again.go_on_from(saved)
    assert counted["get_state"] + counted["set_state"] <= sum(before.values()) - before["_checksum"] + 6
    assert counted["_checksum"] == 2 * len(EXAMPLES)
    assert len(drawn) == 639 and again.checksum == stream.checksum


def test_data_stream_waits_for_no_data_that_is_not_needed():
    """Data that is streamed, and batches of one's own, may come slowly."""
    read = []

    def corpus(nlp):
        for example in EXAMPLES:
            read.append(example)
            yield example

    for made in (
        DataStream(create_train_batches(NLP, corpus, BATCHERS["of spaCy"], -1)),
        DataStream((0, [example]) for example in corpus(NLP)),
    ):
        read.clear()
        next(made)
        assert len(read) <= 4


OTHERS = {
    "tag": lambda doc: setattr(doc[0], "tag_", "other"),
    "lemma": lambda doc: setattr(doc[0], "lemma_", "other"),
    "category": lambda doc: doc.cats.update(OTHER=1.0),
    "spans": lambda doc: doc.spans.update(other=[doc[:1]]),
}


@pytest.mark.parametrize("make", [batches, own_batches])
@pytest.mark.parametrize("change", [*OTHERS, "order", "fewer"])
def test_data_stream_notices_changed_data(make, change):
    examples = toy_examples(NLP, 30)
    stream = DataStream(make(examples=examples))
    drawn = [batch for _, batch in islice(stream, 40)]
    saved = stream.snapshot()
    assert DataStream(make(examples=toy_examples(NLP, 30))).go_on_from(saved)  # read again
    if change in OTHERS:
        OTHERS[change](drawn[-1][-1].reference)
    elif change == "order":
        examples = [examples[1], examples[0], *examples[2:]]
    else:
        examples = examples[:-1]
    assert not DataStream(make(examples=examples)).go_on_from(saved)


def test_data_stream_tells_all_examples_also_of_one_epoch():
    """Ranks compare them before they begin. All batches are drawn by then."""
    stream = DataStream(batches(max_epochs=1))
    assert sorted(map(id, stream.all_examples())) == sorted(map(id, EXAMPLES))
    assert len(list(stream)) == 8 and stream.next_epoch is None
    streamed = create_train_batches(NLP, lambda nlp: EXAMPLES, BATCHERS["of spaCy"], -1)
    assert not DataStream(streamed).all_examples()


def test_data_stream_goes_on_with_batches_that_have_begun():
    plain, begun = list(batches(max_epochs=2)), batches(max_epochs=2)
    assert ids([next(begun), *DataStream(begun)]) == ids(plain)


def test_identity_of_texts_is_that_of_the_files(tmp_path):
    """Whatever a reader of spaCy's files does to them by chance. Another reader may give others each time."""
    DocBin(docs=[example.reference for example in EXAMPLES]).to_disk(tmp_path / "dev.spacy")
    plain = Corpus(tmp_path / "dev.spacy")
    by_chance = Corpus(tmp_path / "dev.spacy", augmenter=create_lower_casing_augmenter(0.5), shuffle=True)
    state = random.getstate()
    found = [identity_of_texts(reader, NLP) for reader in (plain, by_chance, ReadOnce(plain))]
    assert found[0] == found[1] == found[2] and found[0]["texts"].startswith("30 with checksum ")
    assert random.getstate() == state and by_chance.shuffle
    assert identity_of_texts(Corpus(tmp_path / "dev.spacy", limit=29), NLP) != found[0]
    assert identity_of_texts(lambda nlp: EXAMPLES, NLP) == identity_of_texts(None, NLP) == {}
