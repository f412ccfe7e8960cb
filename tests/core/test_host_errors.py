"""Errors that spaCy and confection raise for real, as errors of ours."""

import builtins
import re
import warnings
from collections.abc import Callable
from configparser import Error as ParserError
from configparser import InterpolationMissingOptionError
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Dict, List, Literal, Optional, Tuple, TypeVar, Union

import pytest
import spacy
import srsly
from catalogue import RegistryError
from confection import Config, ConfigValidationError
from spacy.language import DEFAULT_CONFIG_PRETRAIN_PATH
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.util import import_file, load_config
from thinc.api import NumpyOps

from thinc_torchopt.core.algorithms.algorithm import Algorithm
from thinc_torchopt.core.errors import ConfigError, ConfigKeyError
from thinc_torchopt.core.host_errors import check_versions, in_words, line_of_others, plain_error, plain_errors
from thinc_torchopt.core.types import FloatOrSchedule

from ..conftest import CONFIGS
from ..spacy_cli import spacy_cli

ROWS = srsly.read_yaml(Path(__file__).with_name("host_errors.yaml"))


@pytest.fixture
def config():
    return Config().from_disk(CONFIGS / "cnn.cfg", interpolate=False)


def raised(config, section="training"):
    """What is raised when a section is resolved, and the same in our words."""
    with pytest.raises(Exception) as caught:
        spacy.registry.resolve(config.interpolate()[section])
    return plain_error(caught.value, config)


def test_several_faults_of_a_section_are_told_at_once(config):
    config["training"]["optimizer"] |= {"learn_rte": 0.1, "clip_by": "globl"}
    error = raised(config)
    lines = str(error).splitlines()
    assert len(lines) == 2 and all("[training.optimizer]" in line for line in lines) and type(error) is ConfigError
    assert any(line.endswith("found 'globl'. Did you mean 'global'?") for line in lines)
    with pytest.raises(ConfigValidationError) as caught:
        spacy.registry.resolve({"optimizer": config.interpolate()["training"]["optimizer"]})
    assert str(plain_error(caught.value, within="pretraining")).count("in [pretraining.optimizer]") == 1


@pytest.mark.parametrize(("path", "value", "kind", "told"), [*map(dict.values, ROWS["faults"])])
def test_a_fault_is_told_with_its_whole_section(path, value, kind, told, config):
    *sections, name = path.split(".")
    block = config["training"]
    for section in sections:
        block = block[section]
    block[name] = value
    error = raised(config)
    assert type(error).__name__ == kind and told in str(error) and "None" not in str(error)


def test_what_can_be_told_better_by_nobody_is_left(config):
    error = RuntimeError("a fault in somebody's code")
    with pytest.raises(RuntimeError) as caught, plain_errors(config):
        raise error
    assert caught.value is error
    config["components"]["textcat"] = {"factory": "textcat"}
    assert str(plain_error(ValueError("[E913] ..."), config)) == "[E913] ..."
    assert plain_error(ValueError("[E913] ...")) is None
    kinds = (ValueError, NotImplementedError, OSError, RegistryError)
    for other in (RuntimeError("[E913] ..."), *(kind("...") for kind in kinds)):
        assert plain_error(other, config) is None
    for unclear in (
        {"desc": "something else"},
        {"errors": [{"loc": [], "msg": "bad"}]},
        {"title": "Config error for 'x'"},
    ):
        assert plain_error(ConfigValidationError(**unclear), config) is None


@pytest.mark.parametrize(("kind", "text", "told"), [*map(dict.values, ROWS["of spaCy"])])
def test_errors_of_spacy_are_told_with_their_section(kind, text, told, config):
    config["components"] = {
        "x": {"factory": "coref"},
        "y": {"source": "none_md"},
        "p": {"factory": "parser", "min_action_freq": 7},
        "n": {"factory": "ner"},
    }
    config["training"] |= {"annotating_components": ["y", "p"], "seed": "x"}
    assert str(plain_error(getattr(builtins, kind)(text), config)).startswith(told)
    refused = ConfigValidationError(errors=[{"loc": [key], "msg": "Value is not"} for key in ("seed", "lang")])
    assert str(plain_error(refused, config)) == (
        "Can't set 'seed' in [training]: value is not, found 'x'.\nCan't set 'lang' in [nlp]: value is not, found 'en'."
    )


def test_a_corpus_that_was_cut_off_is_told_with_its_section(config, tmp_path):
    DocBin(docs=[spacy.blank("xx")("A text")]).to_disk(tmp_path / "a.spacy")
    (tmp_path / "b.spacy").write_bytes((tmp_path / "a.spacy").read_bytes()[:-9])
    config["paths"] |= {"train": str(tmp_path / "a.spacy"), "dev": str(tmp_path)}
    mine = {"@readers": "mine.v1", "path": str(tmp_path / "b.spacy")}
    config["corpora"] = {"mine": mine, "none": {"@readers": "spacy.Corpus.v1", "path": None}, **config["corpora"]}
    told = f"Can't read [corpora.dev]: '{tmp_path / 'b.spacy'}' is damaged, or was cut off."
    assert str(plain_error(ValueError("[E1014] ..."), config)).startswith(told)


class _Curated:
    """Has float(cum_loss) in its source."""

    __module__ = "spacy_curated_transformers.pipeline"
    model = SimpleNamespace(ops=NumpyOps())


def test_versions_that_do_not_go_together(monkeypatch):
    nlp = SimpleNamespace(pipeline=[("tagger", spacy.blank("xx").create_pipe("tagger")), ("curated", _Curated())])
    monkeypatch.setattr("thinc_torchopt.core.host_errors.version", str.upper)
    older = lambda n: warnings.warn("Arrays of one are numbers no longer.", stacklevel=2) or [0.0][n - 1]  # noqa: E731
    for takes in (True, False):
        monkeypatch.setattr("numpy.zeros", older if takes else list)
        monkeypatch.setattr("thinc_torchopt.core.host_errors.getsource", lambda kind: kind.__doc__)
        check_versions(nlp, ["curated"])
        with nullcontext() if takes else pytest.raises(ConfigError, match="Can't train 'curated': spacy-curated-trans"):
            check_versions(nlp, [])
    monkeypatch.setattr(_Curated, "__doc__", "Has none.")
    check_versions(nlp, [])


def test_what_stands_twice_is_named_with_its_line(tmp_path):
    path = tmp_path / "twice.cfg"
    path.write_text("[training]\nseed = 1\n\n[training]\n")
    told = r"twice.cfg': the section \[training\] appears twice.* in line 4"
    with pytest.raises(ConfigError, match=told) as caught, plain_errors(path=path):
        Config().from_disk(path)
    assert isinstance(caught.value.__cause__, ParserError)


ADD = "even if they are empty: add the line "


@pytest.mark.parametrize(("text", "told"), [*map(dict.values, ROWS["configs"])])
@pytest.mark.parametrize("path", ["-", "my.cfg"])
def test_configs_that_can_not_be_read(text, told, path):
    with pytest.raises(ConfigError) as caught, plain_errors(path=Path(path)):
        Config().from_str(text)
    error = str(caught.value)
    assert error.startswith("Can't read the config: " if path == "-" else "Can't read 'my.cfg': ")
    assert error.endswith(told) if "line" not in told or ADD in told else told in error


@pytest.mark.parametrize(
    ("option", "advice"),
    [("trainng.a", "Did you mean '--training.a'?"), ("trainin.a.b", "Did you mean '--training.b'?"),
     ("zzz.a", "Overrides only change existing sections: add the line [zzz] to the config.")],
)  # fmt: skip
def test_overrides_of_sections_that_are_not_there(option, advice, tmp_path):
    (tmp_path / "my.cfg").write_text("[training]\na = 1\n")
    section = option.rpartition(".")[0]
    add = f"add the line [{section}] to the config."
    for path, found in ((tmp_path / "my.cfg", advice), (tmp_path, add), (None, add)):
        with pytest.raises(ConfigKeyError) as caught, plain_errors(path=path):
            Config().from_str("[training]\na = 1\n", overrides={option: 2})
        file = f"'{path}'" if path else "the config"
        assert str(caught.value).startswith(f"Can't use '--{option}': {file} has no section [{section}].")
        assert str(caught.value).endswith(found)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (bool, "true or false"),
        (Optional[int], "a whole number or null"),
        (Literal["a", "b", "c"], "'a', 'b' or 'c'"),
        (FloatOrSchedule, "a number, a list or a schedule"),
        (Union[Tuple[float, float], List[float], Dict[str, float]], "a list of 2 or a block [x]"),
        (Algorithm, "a block [x]"),
        (Callable[[int], float], "a block [x]"),
        (TypeVar("Some"), "~Some"),
    ],
)
def test_types_in_words(hint, words):
    assert in_words(hint, "[x]") == words


def test_errors_that_code_of_others_provokes_are_left_to_their_traceback(tmp_path):
    """spaCy's numbered errors, and a file of its own that a reader reads."""
    (tmp_path / "theirs.py").write_text(
        "import configparser, spacy\nfrom spacy.tokens import Doc, Span\n"
        "def overlap():\n    doc = Doc(spacy.blank('en').vocab, words=['a', 'b', 'c'])\n"
        "    doc.ents = [Span(doc, 0, 2, label='X'), Span(doc, 1, 3, label='Y')]\n"
        "def twice():\n    configparser.ConfigParser().read_string('[a]\\n[a]')\n"
    )
    theirs = import_file("theirs", tmp_path / "theirs.py")
    for function, line in ((theirs.overlap, 5), (theirs.twice, 7)):
        with pytest.raises(Exception) as caught:
            function()
        assert plain_error(caught.value, Config()) is None
        assert line_of_others(caught.value) == f"line {line} of '{tmp_path / 'theirs.py'}'"


LEARNED = {
    "tagger": "tags",
    "morphologizer": "morphological features",
    "trainable_lemmatizer": "lemmas whose change from the word occurs at least 3 times (min_tree_freq in "
    "[components.mine])",
    "textcat": "at least two categories",
    "textcat_multilabel": "categories",
    "spancat": "spans under the key 'mine'",
    "spancat_singlelabel": "spans under the key 'mine'",
}


@pytest.mark.parametrize(("factory", "streamed"), [*((factory, False) for factory in LEARNED), ("tagger", True)])
def test_a_component_without_annotations_is_told_in_words_of_the_config(factory, streamed, tmp_path):
    """For texts with entities only, as in spaCy's tutorials."""
    nlp = spacy.blank("xx")
    doc = Doc(nlp.vocab, words=["Anna", "sings"], ents=["B-PER", "O"])
    DocBin(docs=[doc] * 5).to_disk(tmp_path / "train.spacy")
    nlp.add_pipe(factory, "mine", config={"spans_key": "mine"} if "spancat" in factory else {})
    config = nlp.config.copy()
    config["paths"] |= {"train": str(tmp_path / "train.spacy"), "dev": str(tmp_path / "train.spacy")}
    config["training"]["max_epochs"] = -1 if streamed else 0
    where = "the first 100 texts" if streamed else "the texts"
    with pytest.raises(ValueError) as caught:
        init_nlp(config)
    error = caught.value.with_traceback(caught.tb.tb_next)  # this test is not a command of spaCy's
    told = str(plain_error(error, config))
    begin = f"Can't initialize [components.mine]: expected {LEARNED[factory]} in {where} of [corpora.train], found"
    assert told.startswith(begin) and "'pipeline' in [nlp]" in told
    # The advice helps.
    advice = re.search(r"spacy (init config) start.cfg (--lang \w+ --pipeline \w+)", told)
    spacy_cli(*advice[1].split(), tmp_path / "start.cfg", *advice[2].split())
    begun = spacy.util.load_config(tmp_path / "start.cfg", {f"paths.{n}": config["paths"][n] for n in ("train", "dev")})
    assert init_nlp(begun).get_pipe("ner").labels == ("PER",)


@pytest.mark.parametrize("component", ["tagger", "ner"])
@pytest.mark.parametrize("most", [0, 2])
def test_texts_that_max_length_leaves_out_are_told_by_its_name(component, most, tmp_path):
    nlp = spacy.blank("xx")
    doc = Doc(nlp.vocab, words=["Anna", "sings"] if most else [], tags=["N", "V"] if most else None)
    DocBin(docs=[doc] * 5).to_disk(tmp_path / "train.spacy")
    nlp.add_pipe(component)
    config = nlp.config.copy()
    config["paths"] |= {"train": str(tmp_path / "train.spacy"), "dev": str(tmp_path / "train.spacy")}
    config["corpora"]["train"]["max_length"] = most
    config["initialize"]["components"] = {"tagger": {"labels": ["N"]}} if component == "tagger" else {}
    with pytest.raises(AssertionError) as caught:
        init_nlp(config)
    told = str(plain_error(caught.value.with_traceback(caught.tb.tb_next), config))
    assert "in [corpora.train], found none." in told
    assert (f"max_length = {most} in [corpora.train] leaves out texts" in told) == bool(most)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"width": 8}, "Attempt to change dimension"), ({"depth": 2}, "mismatched structure"), (None, "")],
)
def test_weights_of_another_pretrained_model_are_told_with_their_setting(change, words, tmp_path):
    model = {"@architectures": "spacy.HashEmbedCNN.v2", "width": 4, "depth": 1, "embed_size": 9, "window_size": 1}
    model |= {"maxout_pieces": 2, "subword_features": False, "pretrained_vectors": None}
    nlp = spacy.blank("xx")
    doc = Doc(nlp.vocab, words=["Anna", "sings"], tags=["N", "V"])
    DocBin(docs=[doc] * 5).to_disk(tmp_path / "train.spacy")
    for width in model, model | (change or {}):
        nlp = spacy.blank("xx")
        nlp.add_pipe("tok2vec", config={"model": width})
        if width is model:
            nlp.initialize(lambda: [Example(doc, doc)])
            (tmp_path / "weights.bin").write_bytes(nlp.get_pipe("tok2vec").model.to_bytes())
    config = nlp.config.copy()
    config["paths"] |= {"train": str(tmp_path / "train.spacy"), "dev": str(tmp_path / "train.spacy")}
    config["initialize"]["init_tok2vec"] = str(tmp_path / "weights.bin")
    config = Config({**config, "pretraining": dict(PRETRAINING)})
    if change is None:
        assert init_nlp(config)
        return
    with pytest.raises(ValueError) as caught:
        init_nlp(config)
    told = str(plain_error(caught.value, config))
    assert told.startswith(f"Can't load init_tok2vec = '{tmp_path / 'weights.bin'}' of [initialize]")
    assert "[components.tok2vec.model]" in told and words in told and "settings that it had in spacy pretrain" in told
    for other in ({"initialize": {"init_tok2vec": str(tmp_path)}}, {"pretraining": {}}):
        assert plain_error(caught.value, config | other) is None


PRETRAINING = load_config(DEFAULT_CONFIG_PRETRAIN_PATH)["pretraining"] | {"component": "tok2vec", "layer": ""}


def test_labels_that_are_given_are_told_with_their_section():
    config = spacy.blank("xx").config.copy()
    config["components"] = {"tags": {"factory": "tagger"}}
    config["initialize"]["components"] = {"tags": {"labels": []}}
    error = ValueError("[E143] Labels for component 'tags' not initialized.")
    told = "Can't initialize [components.tags]: expected tags in 'labels' in [initialize.components.tags], found none."
    assert str(plain_error(error, config)).startswith(told)


def test_variable_that_is_not_there_is_named_by_any_confection():
    told = r"option 'max_steps' in section 'training' .* 'vars\.nope'"
    with pytest.raises(ValueError, match=told) as caught, plain_errors():
        Config().from_str("[training]\nmax_steps = ${vars.nope}\n")
    assert isinstance(caught.value, (ConfigError, ConfigValidationError))
    older = InterpolationMissingOptionError("max_steps", "training", "", "vars.nope")  # of confection 1.3.2
    assert re.search(told, str(plain_error(older)))


def test_pretrained_model_that_can_not_be_loaded():
    """Raised in transformers, by a name that is not its: other OSErrors stay as they are."""
    model = {"@architectures": "spacy-transformers.TransformerModel.v3", "name": "no-bert"}
    config = Config({"components": {"transformer": {"factory": "transformer", "model": model}}})
    found = {}
    for package in ("transformers.utils.hub", "mine"):
        within = {"__name__": package}
        exec("def load(): raise OSError('no-bert is not a local folder.\\nIf this is private ...')", within)
        with pytest.raises(OSError) as caught:
            within["load"]()
        found[package] = plain_error(caught.value, config)
    told = "Can't load the pretrained model 'no-bert' of [components.transformer.model]: no-bert is not a local folder."
    assert str(found["transformers.utils.hub"]).startswith(told) and found["mine"] is None
