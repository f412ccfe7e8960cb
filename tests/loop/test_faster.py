"""Oracle: spaCy's own `Language.update`, in the same run."""

import gc
from functools import wraps

import pytest
from spacy.language import Language
from spacy.training import Example
from spacy.training.loop import create_train_batches
from thinc.api import fix_random_seed

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.truths import KeptExample
from thinc_torchopt.loop import faster
from thinc_torchopt.loop.faster import Faster
from thinc_torchopt.loop.run import train_while_improving

from ..models import pipeline_params, same, toy_examples, toy_pipeline
from ..runs import SETTINGS, config_for, run, run_and_tell

ALL = ("tagger", "morphologizer", "senter", "parser", "ner", "trainable_lemmatizer", "textcat", "spancat")


def pipeline(names=ALL):
    nlp = toy_pipeline(names)
    fix_random_seed(0)
    examples = toy_examples(nlp)
    for token in (token for example in examples for token in example.y):
        token.lemma_ = token.text.lower()
    nlp.initialize(lambda: examples)
    return nlp, examples


def update(nlp, examples, *, times, **arguments):
    """Steps of the whole pipeline. RETURNS: its losses, and the classes of examples that its tagger saw."""
    optimizer = TorchOptimizer(AdamW(), 0.01)
    optimizer.initialize(nlp)
    fast, losses = Faster(nlp, keeps=True), {}
    fix_random_seed(1)
    for _ in range(times):
        fast.update(examples, drop=0.1, losses=losses, **{"exclude": [], "annotates": [], **arguments})
        with optimizer.joint_step(None, epoch=0):
            for _, proc in nlp.pipeline:
                if hasattr(proc, "finish_update"):
                    proc.finish_update(optimizer)
    return losses


def seen_by(nlp, monkeypatch, name="tagger"):
    found = []
    cls = type(nlp.get_pipe(name))
    original = cls.update
    monkeypatch.setattr(
        cls, "update", lambda self, examples, **more: found.append(list(examples)) or original(self, examples, **more)
    )
    return found


def test_updates_are_spacys(monkeypatch):
    """Losses and params to the last bit, with every component that spaCy trains; texts stay as they are."""
    results = []
    for switch in ("0", "1"):
        monkeypatch.setenv(faster.SWITCH, switch)
        nlp, examples = pipeline()
        before = [(example.x.to_bytes(), example.y.to_bytes()) for example in examples]
        losses = update(nlp, examples, times=4)
        assert [(example.x.to_bytes(), example.y.to_bytes()) for example in examples] == before
        results.append((losses, pipeline_params(nlp)))
    (losses, params), (fast_losses, fast_params) = results
    assert losses == fast_losses and len(losses) == len(ALL) + 1 and params.keys() == fast_params.keys()
    assert all(same(params[name], fast_params[name]) for name in params)


def test_training_is_spacys(tmp_path, corpus, monkeypatch):
    """`spacy train` with a parser that cuts texts, over epochs; stopped in between, and resumed."""
    found = {}
    for switch in ("0", "1"):
        monkeypatch.setenv(faster.SWITCH, switch)
        found[switch] = run(config_for(tmp_path / switch, corpus, parser=True), tmp_path / switch / "output")
    config = config_for(tmp_path / "stopped", corpus, parser=True)
    first = run(config, tmp_path / "stopped" / "output", crash_at=13)
    found["stopped"] = first | run(config, tmp_path / "stopped" / "output")
    assert found["0"] == found["1"] == found["stopped"] and len(found["0"]) == 21


def test_examples_are_kept_over_updates(monkeypatch):
    nlp, examples = pipeline(["tagger"])
    seen = seen_by(nlp, monkeypatch)
    update(nlp, examples, times=2)
    first, second = seen
    assert all(type(one) is KeptExample and one is other for one, other in zip(first, second))
    assert all(one.x is example.x for one, example in zip(first, examples))


def test_wrapped_losses_count(monkeypatch):
    """`functools.wraps` gives a function of the user's the module of spaCy's."""
    results = []
    for switch in ("0", "1"):
        monkeypatch.setenv(faster.SWITCH, switch)
        nlp, examples = pipeline(["tagger"])
        tagger = nlp.get_pipe("tagger")
        theirs = tagger.get_loss
        tagger.get_loss = wraps(theirs)(lambda *given, theirs=theirs: (2 * theirs(*given)[0], theirs(*given)[1]))
        results.append(update(nlp, examples, times=2))
    assert results[0] == results[1]


class Writer:
    """A component of the user's that writes to the texts while it learns."""

    def __call__(self, doc):
        return doc

    def update(self, examples, **_):
        for example in examples:
            example.x[0].tag_ = "WRITTEN"


Language.factory("torchopt_test_writer", func=lambda nlp, name: Writer())


@pytest.mark.parametrize("case", ["writer", "annotates", "linker", "own update", "class", "subclass", "switch"])
def test_others_get_copies(monkeypatch, case):
    """Where texts may be written to, or the update is not spaCy's, all is as in spaCy."""
    nlp, examples = pipeline(["tagger"])
    arguments = {}
    if case == "writer":
        nlp.add_pipe("torchopt_test_writer", first=True)
    elif case == "annotates":
        arguments = {"annotates": ["tagger"]}
    elif case == "linker":
        monkeypatch.setattr(faster, "EntityLinker", type(nlp.get_pipe("tagger")))
    elif case == "own update":
        nlp.update = lambda examples, **more: Language.update(nlp, examples, **more)
    elif case == "class":
        update_of_spacy = Language.update
        monkeypatch.setattr(Language, "update", lambda self, *args, **more: update_of_spacy(self, *args, **more))
    elif case == "subclass":
        monkeypatch.setattr(
            type(nlp), "update", lambda self, *args, **more: Language.update(self, *args, **more), False
        )
    else:
        monkeypatch.setenv(faster.SWITCH, "0")
    seen = seen_by(nlp, monkeypatch)
    update(nlp, examples, times=1, **arguments)
    assert type(seen[0][0]) is Example and seen[0][0].x is not examples[0].x
    assert all(example.x[0].tag_ == "" for example in examples)


@pytest.fixture
def thawed():
    """The suite itself has frozen objects."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_collector_leaves_the_corpus_alone_for_the_run(tmp_path, corpus, thawed):
    """Also where the run ends with an error. Objects that other code has frozen stay so."""
    frozen = []
    count = lambda step: frozen.append(gc.get_freeze_count())  # noqa: E731
    run_and_tell(config_for(tmp_path, corpus), tmp_path / "output", lambda info: None, crash_at=7, act=count)
    assert min(frozen) > 10_000 and gc.get_freeze_count() == 0
    gc.freeze()
    before = gc.get_freeze_count()
    run_and_tell(config_for(tmp_path, corpus, steps=4), None, lambda info: None)
    assert gc.get_freeze_count() == pytest.approx(before, rel=0.01)  # some were freed by their counts


@pytest.mark.parametrize(("max_epochs", "is_kept"), [(None, False), (-1, False), (0, True), (2, True)])
def test_only_a_corpus_in_memory_is_kept(max_epochs, is_kept, monkeypatch):
    """A stream has other texts each time, and batches of one's own may. None: such batches."""
    nlp, examples = pipeline(["tagger"])
    seen = seen_by(nlp, monkeypatch)
    batches = iter([(0, examples), (1, examples)])
    if max_epochs is not None:
        batches = create_train_batches(nlp, lambda nlp: examples, lambda items: [[*items]], max_epochs)
    settings = SETTINGS | {"max_steps": 1}
    list(train_while_improving(nlp, TorchOptimizer(AdamW(), 0.01), batches, lambda: (0.0, {}), **settings))
    first, second = ({*map(id, batch)} for batch in seen)
    assert (first == second) is is_kept
