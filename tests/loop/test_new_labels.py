"""Labels that sourced components get before a training. The oracle: spaCy's own initialization, and an unbroken run."""

import pytest
import spacy
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp

from thinc_torchopt.core.errors import ConfigError, PipelineWarning

from ..core.labels.test_add_labels import CASES, examples_of
from ..runs import config_for, digests, run

COMPONENTS = ["tagger", "ner", "spancat_singlelabel", "textcat-bow3", "lemmatizer"]
NAMES = [CASES[case][0] for case in COMPONENTS]
CALLBACK = {"@callbacks": "thinc-torchopt.add_labels.v1"}


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A pipeline, trained; and a corpus with new labels."""
    folder = tmp_path_factory.mktemp("old")
    nlp = spacy.blank("xx")
    for case in COMPONENTS:
        component, config = CASES[case]
        nlp.add_pipe(component, config=config)
    examples = examples_of(nlp)
    nlp.initialize(lambda: examples)
    sgd = nlp.create_optimizer()
    for _ in range(3):
        nlp.update(examples, sgd=sgd)
    nlp.to_disk(folder / "model")
    docs = [example.reference for example in examples_of(nlp, 36, new=["NEW"])]
    DocBin(docs=docs, store_user_data=True).to_disk(folder / "train.spacy")
    return folder


def config_of(old, folder, labels, *, frozen=(), steps=5):
    corpus = {"train": old / "train.spacy", "dev": old / "train.spacy"}
    config = config_for(folder, corpus, steps=steps, training__frozen_components=list(frozen))
    config["nlp"]["pipeline"] = NAMES
    config["components"] = {name: {"source": str(old / "model")} for name in NAMES}
    if labels != "no callback":
        config["initialize"] = {"after_init": CALLBACK | {"labels": labels}}
    return config


@pytest.mark.parametrize("labels", [None, dict.fromkeys(NAMES), {
    "tagger": ["NEW"], "ner": ["NEW", "CITY"], "spancat_singlelabel": ["NEW"], "textcat": ["NEW", "RED"],
    "trainable_lemmatizer": [["mice", "mouse"]],
}])  # fmt: skip
def test_new_labels_of_the_texts_are_added_to_those_of_the_sourced_pipeline(old, tmp_path, labels):
    """spaCy alone leaves them out, and so does a component that is initialized with `labels`."""
    before = spacy.load(old / "model")
    alone = init_nlp(config_of(old, tmp_path, "no callback").interpolate())
    nlp = init_nlp(config_of(old, tmp_path, labels).interpolate())
    for name in NAMES:
        had = list(before.get_pipe(name).labels)
        assert list(alone.get_pipe(name).labels) == had
        found = list(nlp.get_pipe(name).labels)
        if name == "trainable_lemmatizer":
            assert found[: len(had)] == had and len(found) == len(had) + 1
        else:
            assert found == (sorted([*had, "NEW"]) if name == "ner" else [*had, "NEW"])
    text = "Anna likes red London ."
    assert [token.tag_ for token in nlp(text)] == [token.tag_ for token in before(text)]
    fresh = config_of(old, tmp_path, "no callback")
    fresh["components"]["tagger"] = {"factory": "tagger"}
    fresh["initialize"] = {"components": {"tagger": {"labels": [".", "NNP"]}}}
    assert init_nlp(fresh.interpolate()).get_pipe("tagger").labels == (".", "NNP")


@pytest.mark.filterwarnings("ignore::thinc_torchopt.core.errors.PipelineWarning")
def test_new_labels_without_the_callback_are_an_error(old, tmp_path):
    """Before the first step, in the words of the config; but NER learns them."""
    (tmp_path / "out" / "model-best").mkdir(parents=True)
    with pytest.raises(ConfigError) as error:
        run(config_of(old, tmp_path, "no callback"), tmp_path / "out")
    assert (tmp_path / "out" / "model-best").exists()
    for name, why in [
        ("tagger", "KeyError"),
        ("spancat_singlelabel", "KeyError"),
        ("textcat", "ignores it"),
    ]:
        [line] = [line for line in str(error.value).split("\n") if f"'{name}' (sourced)" in line]
        assert "does not know NEW, which [corpora.train] has" in line and why in line
        assert f'{name} = ["NEW"] in [initialize.after_init.labels]' in line and "init --from" in line
    assert "'ner'" not in str(error.value)
    frozen = [name for name in NAMES if name not in ("textcat", "ner")]
    config = config_of(old, tmp_path, {"textcat": ["NEW"]}, frozen=frozen, steps=2)
    with pytest.warns(PipelineWarning, match=r"'ner' \(sourced\) does not know NEW.* in the middle of the training"):
        assert len(run(config, tmp_path / "out")) == 3
    assert "NEW" in spacy.load(tmp_path / "out" / "model-last").get_pipe("ner").labels


def test_new_labels_of_a_run_that_goes_on(old, tmp_path):
    """The labels are there before the state is loaded: it ends as the unbroken run."""
    whole = run(config_of(old, tmp_path / "whole", None), tmp_path / "whole")
    config = config_of(old, tmp_path / "broken", None)
    parts = [run(config, tmp_path / "broken", crash_at=step) for step in (4, None)]
    assert parts[0] | parts[1] == whole and min(parts[1]) > 0
    assert digests(tmp_path / "broken") == digests(tmp_path / "whole")


def test_new_labels_of_frozen_components(old, tmp_path):
    with pytest.raises(ConfigError, match=r"Can't add labels to 'ner' in \[initialize.after_init.labels\].*frozen"):
        init_nlp(config_of(old, tmp_path, {"ner": ["NEW"]}, frozen=["ner"]).interpolate())
    nlp = init_nlp(config_of(old, tmp_path, None, frozen=["ner"]).interpolate())
    assert "NEW" not in nlp.get_pipe("ner").labels and "NEW" in nlp.get_pipe("tagger").labels
    with pytest.raises(
        ConfigError, match=r"'nerd' in \[initialize.after_init.labels\]: expected a component of .*Did you mean 'ner'"
    ):
        init_nlp(config_of(old, tmp_path, {"nerd": ["NEW"]}).interpolate())


def test_new_labels_of_a_component_that_is_initialized_here(old, tmp_path):
    """Its labels are those of the texts, and the given ones."""
    config = config_of(old, tmp_path, {"tagger": ["RARE"]})
    config["components"]["tagger"] = {"factory": "tagger"}
    nlp = init_nlp(config.interpolate())
    assert nlp.get_pipe("tagger").labels == (".", "JJ", "NEW", "NNP", "VBZ", "RARE")


def test_new_labels_that_are_declared_as_complete(old, tmp_path):
    """They are read from the texts before a component has them."""
    config = config_of(old, tmp_path, None)
    config["corpora"]["train"] = {
        "@readers": "thinc-torchopt.TaughtCorpus.v1",
        "complete": ["NEW"],
        "corpus": config["corpora"]["train"] | {"gold_preproc": False},
    }
    assert "NEW" in init_nlp(config.interpolate()).get_pipe("ner").labels


def test_new_labels_of_a_streamed_corpus_are_those_of_its_first_texts(old, tmp_path):
    """Of 100, as where spaCy initializes with a stream."""
    nlp, config = spacy.blank("xx"), config_of(old, tmp_path, None)
    examples = [*examples_of(nlp, 99), *examples_of(nlp, 1, new=["NEW"]), *examples_of(nlp, 1, new=["LATE"])]
    DocBin(docs=[example.reference for example in examples]).to_disk(tmp_path / "train.spacy")
    config["paths"]["train"] = str(tmp_path / "train.spacy")
    config["training"] |= {"max_epochs": -1}
    assert {"NEW", "LATE"} & {*init_nlp(config.interpolate()).get_pipe("ner").labels} == {"NEW"}


def test_new_labels_of_a_parser_are_those_that_spacy_would_learn(old, tmp_path):
    """Rare ones are "dep" to it. The oracle: the same component, initialized with these texts."""
    nlp = spacy.blank("xx")
    nlp.add_pipe("parser", config=CASES["parser"][1] | {"min_action_freq": 20})
    examples = examples_of(nlp)
    nlp.initialize(lambda: examples)
    nlp.to_disk(tmp_path / "model")
    assert "NEW" not in nlp.get_pipe("parser").labels
    for least, is_there in ((20, False), (5, True)):
        config = config_of(old, tmp_path, None)
        config["nlp"]["pipeline"] = ["parser"]
        config["components"] = {"parser": {"source": str(tmp_path / "model")}}
        made = spacy.load(tmp_path / "model")
        made.get_pipe("parser").cfg["min_action_freq"] = least
        made.to_disk(tmp_path / "model")
        assert ("NEW" in init_nlp(config.interpolate()).get_pipe("parser").labels) == is_there
