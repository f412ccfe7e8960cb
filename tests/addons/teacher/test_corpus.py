"""The reader of taught texts, in trainings too."""

import inspect
import logging
import random
import re
import shutil

import pytest
import spacy
from confection import Config
from spacy.tokens import Doc, Span
from spacy.training import Corpus, Example
from spacy.training.initialize import init_nlp
from spacy.util import resolve_dot_names

from thinc_torchopt import add_labels
from thinc_torchopt.addons.teacher import corpus as module
from thinc_torchopt.addons.teacher.corpus import TaughtCorpus
from thinc_torchopt.core.errors import ConfigError, PipelineWarning, StateError

from ...conftest import ROOT
from ...runs import config_for, digests, run
from .pipelines import small_pipeline


@pytest.fixture
def told(monkeypatch, caplog):
    """What is told of the texts, as in a process of its own."""
    monkeypatch.setattr(module, "_told", set())
    caplog.set_level(logging.INFO, logger="spacy.torchopt")
    return lambda: [record.getMessage() for record in caplog.records]


def student(teacher):
    nlp = spacy.load(teacher)
    add_labels(nlp, "ner", ["COLOR"])
    return nlp


def said(examples):
    """Words with their entity and tag."""
    return [[(t.text, t.ent_type_, t.tag_) for t in example.reference] for example in examples]


def test_corpus_fills_in_what_texts_leave_open(teacher, texts, told):
    nlp = student(teacher)
    examples = list(TaughtCorpus(Corpus(texts / "train.spacy"), teacher)(nlp))
    expected = [("Anna", "PERSON", "NNP"), ("likes", "", "VBZ"), ("blue", "COLOR", "JJ"), ("London", "CITY", "NNP")]
    assert said(examples)[0] == expected and len(examples) == 30
    assert all(example.reference.has_annotation("ENT_IOB", require_complete=True) for example in examples)
    [line] = told()
    assert line.endswith("30 texts: tagger 30 VBZ; ner 30 CITY, 30 PERSON.")
    # Once, however often spaCy reads.
    list(TaughtCorpus(Corpus(texts / "train.spacy"), teacher)(nlp))
    assert len(told()) == 1


def test_corpus_draws_no_random_number_and_frees_its_teacher(teacher, texts):
    reader = TaughtCorpus(Corpus(texts / "train.spacy"), teacher, texts=texts / "raw.txt")
    nlp = spacy.load(teacher)
    before = random.getstate()
    list(reader(nlp))
    assert random.getstate() == before
    assert reader._teacher._nlp is None


def test_corpus_reads_no_more_than_spacy_wants(teacher):
    """A stream may have no end."""

    def endless(nlp):
        while True:
            doc = Doc(nlp.vocab, words=["Anna", "likes", "London"])
            yield Example(doc.copy(), doc)

    reader = TaughtCorpus(endless, teacher)(student(teacher))
    assert said([next(reader)])[0][0] == ("Anna", "PERSON", "NNP")
    reader.close()


def test_corpus_is_annotated_before_it_is_augmented(teacher, texts):
    """The teacher, which has never seen such words, gets the text as it is; the augmented one has its annotations."""

    def shout(nlp, example):
        found = example.to_dict()
        found["token_annotation"]["ORTH"] = [word.upper() for word in found["token_annotation"]["ORTH"]]
        yield example
        yield Example.from_dict(nlp.make_doc(example.reference.text.upper()), found)

    reader = Corpus(texts / "train.spacy", augmenter=shout)
    first, second, *rest = TaughtCorpus(reader, teacher)(student(teacher))
    assert len(rest) == 58 and reader.augmenter is shout
    one, two = said([first, second])
    assert [(word.upper(), *labels) for word, *labels in one] == two


def test_corpus_adds_texts_that_the_teacher_annotates(teacher, texts, told):
    nlp = spacy.load(teacher)
    annotated = Corpus(texts / "old.spacy")
    examples = list(TaughtCorpus(annotated, teacher, texts=texts / "raw.txt", share=1.5)(nlp))
    assert len(examples) == 10 + 15
    drawn = [found for found in said(examples) if any(word.isdecimal() for word, *_ in found)]
    assert len(drawn) == 15 and all(found[0] == ("Anna", "PERSON", "NNP") for found in drawn)
    # The same by the same seed, others by another.
    again, other = (said(TaughtCorpus(annotated, teacher, texts=texts / "raw.txt", share=1.5, seed=seed)(nlp))
                    for seed in (0, 1))  # fmt: skip
    assert again == said(examples) != other
    assert re.search(r"annotated by it: 15 texts: tagger .*; ner \d+ CITY, 15 PERSON\.$", told()[1])
    list(TaughtCorpus(annotated, teacher, texts=texts / "raw.txt", share=8)(nlp))
    assert told()[-1].endswith("There are 30 fewer than 'share' asks for.")
    list(TaughtCorpus(annotated, teacher, ["ner"], complete=["CITY", "PERSON"])(nlp))
    assert told()[-1] == "Nothing is open in the 10 annotated texts: they stay as they are."


def test_corpus_leaves_new_labels_open_in_old_texts(teacher, texts, told):
    nlp = student(teacher)
    reader = TaughtCorpus(Corpus(texts / "train.spacy"), teacher, old=Corpus(texts / "old.spacy"))
    examples = list(reader(nlp))
    assert len(examples) == 40
    old = [example for example in examples if not example.reference.has_annotation("ENT_IOB", require_complete=True)]
    assert len(old) == 10
    assert [token.ent_iob_ for token in old[0].reference][:4] == ["B", "", "", "B"]
    assert told()[-1] == "Of 'old': 10 texts, in which the new labels are open."
    # All come, also if they are more than those with the new labels.
    more = TaughtCorpus(Corpus(texts / "old.spacy"), teacher, old=Corpus(texts / "train.spacy"))
    assert len(list(more(nlp))) == 40 and told()[-1].startswith("Of 'old': 30 texts")


def test_corpus_with_complete_and_replaced_labels(teacher, texts, told):
    nlp = student(teacher)
    docs = [Doc(nlp.vocab, words=["Anna", "likes", "red", "London"]) for _ in range(3)]
    docs[1].set_ents([Span(docs[1], 0, 1, "COLOR")])
    reader = TaughtCorpus(
        lambda nlp: [Example(doc.copy(), doc) for doc in docs], teacher, ["ner"],
        complete=["CITY"], replaces={"COLOR": "PERSON"},
    )  # fmt: skip
    found = [[token.ent_type_ for token in example.reference] for example in reader(nlp)]
    assert found == [["PERSON", "", "", ""], ["COLOR", "", "", ""], ["PERSON", "", "", ""]]
    assert told() == [
        f"Filled in by the teacher {teacher}: 3 texts: ner 2 PERSON. Left out, as annotations contradict it: ner 3 "
        "CITY."
    ]


@pytest.mark.filterwarnings("ignore:.*does not have COLOR")
def test_corpus_ignores_no_setting(teacher, texts, tmp_path, told, monkeypatch):
    """Each changes what is read, kept or told."""
    nlp = student(teacher)
    docs = [Doc(nlp.vocab, words=["Anna", "likes", "red", "London"]) for _ in range(4)]
    docs[0].set_ents([Span(docs[0], 0, 1, "COLOR")])

    def corpus(nlp):
        return [Example(doc.copy(), doc) for doc in docs]

    beside = {"texts": texts / "raw.txt"}
    changes = {
        "corpus": (Corpus(texts / "old.spacy"), {}),
        "teacher": (None, {}),
        "components": (["ner"], {}),
        "complete": (["CITY"], {}),
        "replaces": ({"COLOR": ["PERSON"]}, {}),
        "cache": (tmp_path / "cache", {}),
        "texts": (beside["texts"], {}),
        "share": (1.0, beside),
        "max_words": (2, beside),
        "old": (Corpus(texts / "old.spacy"), {}),
        "seed": (1, beside),
    }
    assert changes.keys() == inspect.signature(TaughtCorpus).parameters.keys()

    def seen(**settings):
        monkeypatch.setattr(module, "_told", set())
        before, kept = len(told()), len(list(tmp_path.rglob("*.jsonl")))
        try:
            found = said(TaughtCorpus(**{"corpus": corpus, "teacher": teacher, **settings})(nlp))
        except ConfigError as error:
            found = str(error)
        return found, told()[before:], len(list(tmp_path.rglob("*.jsonl"))) - kept

    plain, with_texts = seen(), seen(**beside)
    for name, (value, others) in changes.items():
        assert seen(**others, **{name: value}) != (with_texts if others else plain), name


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"teacher": "gone"}, "Can't use 'teacher' in the block of 'thinc-torchopt.TaughtCorpus.v1': expected the fol"),
        ({"teacher": ROOT}, "a folder without config.cfg"),
        ({"teacher": ROOT / "setup.cfg"}, "a file"),
        ({"components": []}, "Can't set 'components'"),
        ({"components": "ner"}, "expected names of components, or null for all, found 'ner'"),
        ({"texts": 3}, "expected the path of a file or a folder, or null"),
        ({"texts": "gone.txt"}, "found nothing at 'gone.txt'"),
        ({"texts": ROOT / "setup.cfg"}, "found a file of another kind"),
        ({"texts": ROOT / "tests" / "doubles"}, "found a folder without such files"),
    ],
)
def test_corpus_refuses_impossible_settings(teacher, settings, said):
    with pytest.raises(ConfigError) as error:
        TaughtCorpus(lambda nlp: [], **{"teacher": teacher, **settings})
    assert said in str(error.value)


def test_corpus_refuses_a_teacher_that_does_not_fit(teacher, texts):
    corpus = Corpus(texts / "train.spacy")
    with pytest.raises(ConfigError, match=r"'textcat' in the block of .* expected one of its kind in the teacher"):
        next(TaughtCorpus(corpus, teacher, ["textcat"])(small_pipeline(["textcat"])))
    with pytest.raises(
        ConfigError, match=r"expected one pipeline as the 'source' .* found none, as .* is one of ours\. Set 'teacher'"
    ):
        next(TaughtCorpus(corpus)(small_pipeline()))
    with pytest.raises(ConfigError, match="nothing annotates them for 'textcat'"):
        next(TaughtCorpus(corpus, teacher, texts=texts / "raw.txt")(small_pipeline(["ner", "textcat"])))
    with_tag = student(teacher)
    add_labels(with_tag, "tagger", ["UH"])  # entities are open in such texts
    with pytest.warns(PipelineWarning, match="does not have UH of 'tagger': its 'texts' say that there are none"):
        next(TaughtCorpus(corpus, teacher, texts=texts / "raw.txt")(with_tag))
    english = spacy.blank("en")
    english.add_pipe("ner")
    with pytest.warns(PipelineWarning, match="is a pipeline for 'xx', and reads texts in the tokens of one for 'en'"):
        next(TaughtCorpus(corpus, teacher)(english))


# ---------------------------------------------------------------------- trainings


def taught(folder, teacher, texts, *, steps=5, source=True, **changes):
    """A config for a training of the teacher's components, or of a new tagger."""
    corpora = {
        "train": {
            "@readers": "thinc-torchopt.TaughtCorpus.v1",
            "teacher": None if source else str(teacher),
            "cache": str(folder / "cache"),
            "texts": str(texts / "raw.txt"),
            "share": 1.0,
            "corpus": {"@readers": "spacy.Corpus.v1", "path": "${paths.train}", "gold_preproc": False},
        },
        "dev": {"@readers": "spacy.Corpus.v1", "path": "${paths.dev}"},
    }
    config = config_for(folder, {"train": texts / "train.spacy", "dev": texts / "old.spacy"}, steps=steps, **changes)
    config["corpora"] = corpora
    config["nlp"]["pipeline"] = ["tagger", "ner"]
    config["components"] = {
        name: {"source": str(teacher)} if source else small_pipeline().config["components"][name]
        for name in ("tagger", "ner")
    }
    if source:
        config["initialize"] = {
            "after_init": {"@callbacks": "thinc-torchopt.add_labels.v1", "labels": {"ner": ["COLOR"]}}
        }
    return config


IGNORED = pytest.mark.filterwarnings("ignore:.*does not have COLOR of 'ner'")


@IGNORED
@pytest.mark.parametrize("source", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_training_is_resumed_to_the_bit(teacher, texts, tmp_path, source):
    """In the second epoch."""
    unbroken = run(taught(tmp_path / "a", teacher, texts, steps=9, source=source), tmp_path / "a" / "out")
    config = taught(tmp_path / "b", teacher, texts, steps=9, source=source)
    first = run(config, tmp_path / "b" / "out", crash_at=8)
    second = run(config, tmp_path / "b" / "out")
    assert min(second) > 0 and {**first, **second} == unbroken
    assert digests(tmp_path / "a" / "out") == digests(tmp_path / "b" / "out")


@IGNORED
def test_training_is_resumed_after_the_cache_is_gone_or_damaged(teacher, texts, tmp_path):
    config = taught(tmp_path, teacher, texts)
    run(config, None, crash_at=4)
    [folder] = (tmp_path / "cache").iterdir()
    file, *_ = files = sorted(folder.iterdir())
    file.write_text(file.read_text()[:-20])
    with pytest.warns(UserWarning, match="Predictions of 'teacher' .* are damaged, and are made again"):
        run(config, None, crash_at=4)
    assert {path.name for path in files} == {path.name for path in folder.iterdir()}
    shutil.rmtree(tmp_path / "cache")
    assert min(run(config, None)) > 0


@IGNORED
def test_training_is_not_resumed_with_another_teacher(teacher, texts, tmp_path):
    """Its path is the same: only the weights are others."""
    own = shutil.copytree(teacher, tmp_path / "own")
    config = taught(tmp_path, own, texts, source=False)
    run(config, None, crash_at=4)
    model = own / "tagger" / "model"
    content = model.read_bytes()
    nlp = spacy.load(own)
    nlp.get_pipe("tagger").model.get_ref("softmax").get_param("b")[0] += 0.25
    nlp.to_disk(own)
    with pytest.raises(StateError, match=r"corpora.train, weights of the teacher: \w+ before, \w+ now"):
        run(config, None)
    model.write_bytes(content)
    run(config, None)


@IGNORED
def test_training_finds_the_source_of_components(teacher, texts, tmp_path):
    config = Config().from_str(taught(tmp_path, teacher, texts).to_str())
    nlp = init_nlp(config)
    [reader] = resolve_dot_names(nlp.config.interpolate(), ["corpora.train"])
    assert reader.teacher_of(nlp).path == teacher and nlp.get_pipe("ner").labels == ("CITY", "COLOR", "PERSON")
    config["components"]["ner"] = {"source": str(shutil.copytree(teacher, tmp_path / "another"))}
    nlp = init_nlp(config)
    with pytest.raises(ConfigError, match=r"as the 'source' of the components, found '.*' and '.*'\. Set"):
        next(reader_of(nlp)(nlp))
    # Nothing is filled in for one that does not learn.
    nlp.config["training"]["frozen_components"] = ["ner"]
    assert reader_of(nlp).teacher_of(nlp).path == teacher


def reader_of(nlp):
    [reader] = resolve_dot_names(nlp.config.interpolate(), ["corpora.train"])
    return reader
