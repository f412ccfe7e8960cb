"""Programs that do not use this package are as if it were not installed: what they print, import, and call."""

import re
import subprocess
import sys

import pytest
import spacy
from spacy.tokens import DocBin

from .foreign_programs import room_of, run
from .models import TOK2VEC, toy_examples, toy_pipeline
from .spacy_cli import QUICK, flags_of, toy_corpus

# A program that trains nothing of ours needs none of these.
HEAVY = {"hooks", "optimizer", "params", "run", "update"}
PATHS = ["--paths.train", "train.spacy", "--paths.dev", "dev.spacy"]
TRAIN = ["train", "plain.cfg", *PATHS, *flags_of(QUICK)]
# Registries in which something is registered, with a name that is in none.
LISTED = ["architectures", "batchers", "cli", "layers", "loggers", "misc", "readers", "schedules"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Configs and pipelines as spaCy writes them, and corpora."""
    folder = tmp_path_factory.mktemp("foreign")
    toy_corpus(folder)
    nlp = toy_pipeline(["tagger"])
    nlp.config.to_disk(folder / "plain.cfg")
    nlp.initialize(lambda: toy_examples(nlp))
    nlp.to_disk(folder / "pipeline")
    old = spacy.blank("xx")
    # A name that spaCy looks up among the old ones, after it has listed all.
    old.add_pipe("tok2vec", config={"model": {**TOK2VEC, "@architectures": "spacy.HashEmbedCNN.v1"}})
    old.initialize()
    old.to_disk(folder / "old")
    docs = [nlp.make_doc("A text without tags .")] * 3
    DocBin(docs=docs).to_disk(folder / "untagged.spacy")
    (folder / "tags.py").write_text("")
    return folder


def in_python(*arguments):
    return f"from spacy.cli.train import train; train('plain.cfg', overrides={dict(arguments)!r})"


OVERRIDES = [(f"paths.{name}", f"{name}.spacy") for name in ("train", "dev")] + list(QUICK.items())
PROGRAMS = {
    "blank": "import spacy; print(spacy.blank('en').pipe_names)",
    "load": "import spacy; print([doc.text for doc in spacy.load('pipeline').pipe(['One text.'])])",
    "load an old one": "import spacy; print(spacy.load('old').pipe_names)",
    "a registry": f"import spacy; [getattr(spacy.registry, name).get_all() for name in {LISTED}]",
    "a logger with a slip": "import spacy; spacy.registry.get('loggers', 'spacy.ConsolLogger.v1')",
    "info": ["info"],
    "info of a pipeline": ["info", "pipeline"],
    "help": ["--help"],
    "no such command": ["tran"],
    "init config": ["init", "config", "-", "--lang", "xx", "--pipeline", "ner"],
    "debug config": ["debug", "config", "plain.cfg", *PATHS],
    "debug config of nowhere": ["debug", "config", "nowhere.cfg"],
    "debug data": ["debug", "data", "plain.cfg", *PATHS],
    "debug a bad value": ["debug", "config", "plain.cfg", "--nlp.batch_size", "abc"],
    "evaluate": ["evaluate", "pipeline", "dev.spacy"],
    "pretrain without a section": ["pretrain", "plain.cfg", "out"],
    "train": TRAIN,
    "train help": ["train", "--help"],
    "train in Python": in_python(*OVERRIDES),
    "train without a corpus in Python": in_python(),
    "train without a corpus": ["train", "plain.cfg"],
    "train from nowhere": [*TRAIN, "--paths.train", "nowhere.spacy"],
    "train without annotations": [*TRAIN, "--paths.train", "untagged.spacy"],
    "train a factory with a slip": [*TRAIN, "--components.tagger.factory", "taggr"],
    "train an architecture with a slip": [*TRAIN, "--components.tagger.model.@architectures", "spacy.Tager.v2"],
    "train a logger with a slip": [*TRAIN, "--training.logger.@loggers", "spacy.ConsolLogger.v1"],
    "train a bad value": [*TRAIN, "--training.max_steps", "abc"],
    "train a bad learn rate": [*TRAIN, "--training.optimizer.learn_rate", "abc"],
    "train a setting with a slip": [*TRAIN, "--training.optimizer.learn_rte", "0.1"],
    "train a section with a slip": [*TRAIN, "--trainin.max_steps", "3"],
    "train with a flag with a slip": [*TRAIN, "--outptu", "here"],
    "train a config of nowhere": ["train", "nowhere.cfg"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_foreign_programs_are_as_without_us(name, folder):
    found, without = (run(PROGRAMS[name], folder, installed=installed) for installed in (True, False))
    assert without.modules == [] and without.replaced == []
    assert (found.status, *printed(found)) == (without.status, *printed(without))
    assert found.replaced == [] and found.rooms & HEAVY == set()


def printed(ended):
    """Without addresses and speeds, and without what is ours by right: names in a list of all that is registered, and
    our command in the help.
    """
    for text in (ended.stdout, ended.stderr):
        text = re.sub(r"(, )?thinc-torchopt\.\w+\.v\d+", "", text)
        text = re.sub(r"(?m)^[ │]*torchopt .*\n(^[ │]{15}.*\n)*", "", text)
        yield re.sub(r" at 0x\w+|(?m:^SPEED .*$)", "", text)


def test_foreign_programs_see_nothing_in_a_new_process():
    """The others fork, after spaCy's command line was imported."""
    code = "import sys, spacy; spacy.blank('en'); print(*(name for name in sys.modules if 'torchopt.' in name))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {room_of(name) for name in ended.stdout.split()}
    assert found and not found & HEAVY


@pytest.mark.parametrize("where", ["file", "overrides", "environment"])
def test_foreign_programs_become_ours_by_a_name_in_the_config(where, folder):
    overrides = ["--training.optimizer.@optimizers", "thinc-torchopt.Adam.v1", "--training.optimizer.learn_rte", "0.1"]
    text = (folder / "plain.cfg").read_text()
    ours = text.replace('"Adam.v1"', '"thinc-torchopt.Adam.v1"\nlearn_rte = 0.1')
    (folder / "config.txt").write_text(ours if where == "file" else text)
    typed = ["train", "config.txt", *TRAIN[2:], *(overrides if where == "overrides" else ())]
    found = run(typed, folder, SPACY_CONFIG_OVERRIDES=" ".join(overrides) if where == "environment" else "")
    assert found.status == 1 and found.stderr.startswith("Error: Can't read [training.optimizer]"), found.stderr
    assert "Did you mean 'learn_rate'?" in found.stderr
