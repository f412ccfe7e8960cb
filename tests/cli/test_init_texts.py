"""`spacy torchopt init` without an input: a config for what texts are annotated with, or a refusal by name."""

import json
import math
import shlex
import shutil
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import numpy
import pytest
import spacy
from confection import Config
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.training.loop import create_train_batches
from spacy.vocab import Vocab

from thinc_torchopt.addons.recipes import choose_components
from thinc_torchopt.addons.recipes.measured import measurements
from thinc_torchopt.core.kinds import survey

from ..spacy_cli import refusal, spacy_cli

KINDS = ("tags", "morphology", "lemmas", "trees", "sentences", "entities", "spans", "categories")
COMPONENTS = {
    "tags": "tagger",
    "morphology": "morphologizer",
    "lemmas": "trainable_lemmatizer",
    "trees": "parser",
    "sentences": "senter",
    "entities": "ner",
    "spans": "spancat",
    "categories": "textcat",
}
EVAL = ("--training.max_steps", 2, "--training.eval_frequency", 1)


def text(number, *kinds, key="sc"):
    """A text with two sentences, and the annotations of some kinds."""
    words = ["Ada", "went", "home", ".", f"Bob{number}", "sleeps", "."]
    annotations = {
        "tags": {"tags": ["NNP", "VBD", "RB", ".", "NNP", "VBZ", "."]},
        "morphology": {"pos": ["PROPN", "VERB", "ADV", "PUNCT", "PROPN", "VERB", "PUNCT"]},
        "lemmas": {"lemmas": ["Ada", "go", "home", ".", f"Bob{number}", "sleep", "."]},
        "trees": {
            "heads": [1, 1, 1, 1, 5, 5, 5],
            "deps": ["nsubj", "ROOT", "advmod", "punct", "nsubj", "ROOT", "punct"],
        },
        "sentences": {"sent_starts": [True, False, False, False, True, False, False]},
        "entities": {"ents": ["B-PERSON", "O", "O", "O", "B-PERSON", "O", "O"]},
    }
    merged = {name: value for kind in kinds for name, value in annotations.get(kind, {}).items()}
    if "trees" in kinds:
        merged.pop("sent_starts", None)
    doc = Doc(Vocab(), words=words, **merged)
    if "categories" in kinds:
        doc.cats = {"A": float(number % 2), "B": float(1 - number % 2)}
    if "spans" in kinds:
        doc.spans[key] = [Span(doc, 0, 1, label="X"), Span(doc, 0, 3, label="Y")]
    return doc


def write(path, docs):
    DocBin(docs=docs, store_user_data=True).to_disk(path)
    return path


def init(folder, *args):
    return spacy_cli("torchopt", "init", folder / "new.cfg", *args)


def made(folder):
    return Config().from_disk(folder / "new.cfg", interpolate=False)


def trained(config):
    return [name for name in config["nlp"]["pipeline"] if name not in ("tok2vec", "transformer")]


@pytest.fixture
def refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*args):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        found = spacy_cli("torchopt", "init", *args, check=False)
        assert found.returncode == 1 and not found.stdout
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        return found.stderr

    return run


# ---------------------------------------------------------------------- the components


@pytest.mark.parametrize("kind", KINDS)
def test_init_chooses_the_component_of_each_kind(kind, tmp_path):
    train = write(tmp_path / "train.spacy", [text(i, kind) for i in range(15)])
    run = init(tmp_path, "--lang", "en", "--paths.train", train, "--recipe", "drop-in")
    # A tree says where sentences start, too.
    assert trained(made(tmp_path)) == [COMPONENTS[kind]]
    assert "on 15 of 15 texts" in run.stdout and "--paths.dev dev.spacy" in run.stdout


@pytest.mark.parametrize("kinds", [("entities",), ("categories", "spans"), KINDS[:4]], ids="+".join)
def test_init_config_trains_without_more(kinds, tmp_path, monkeypatch):
    """The two commands, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    train = write(tmp_path / "train.spacy", [text(i, *kinds, key="my key") for i in range(15)])
    shutil.copy(train, tmp_path / "dev.spacy")
    paths = ("--paths.train", "train.spacy", "--paths.dev", "dev.spacy")
    told = spacy_cli("torchopt", "init", "new.cfg", "--lang", "en", *paths, *EVAL).stdout
    assert "python -m spacy train new.cfg --output training/new\n" in told
    config = made(tmp_path)
    assert config["paths"]["train"] == "train.spacy" and config["training"]["max_steps"] == 2
    logger = config["training"]["logger"]
    assert logger["logger1"]["@loggers"] == "spacy.ConsoleLogger.v3" and logger["logger1"]["progress_bar"] == "train"
    spacy_cli("train", "new.cfg", "--output", "training/new")
    assert (tmp_path / "training" / "new" / "model-best").is_dir()
    assert '"step": 1' in (tmp_path / "training" / "new" / "log.jsonl").read_text()


def test_init_gives_each_config_a_folder_of_its_own(tmp_path, monkeypatch):
    """As typed from what is printed: the second project leaves the first alone, whatever their names are; a config
    names no path, so all of a run follows --output.
    """
    monkeypatch.chdir(tmp_path)
    names = ["drugs", "моя имена", "it's", "C:\\x", "a$b"]
    for i, name in enumerate(names):
        write(tmp_path / f"{i}.spacy", [text(j, "entities") for j in range(15)])
        given = ("--paths.train", f"{i}.spacy", "--paths.dev", f"{i}.spacy", *EVAL)
        told = spacy_cli("torchopt", "init", f"{name}.cfg", "--lang", "en", "--recipe", "best,robust", *given).stdout
        command = shlex.split(told.splitlines()[-1])
        config = Config().from_disk(f"{name}.cfg", interpolate=False)
        assert "path" not in config["training"]["logger"]["logger2"] | config["training"]["optimizer"]["checkpoint"]
        folder = f"training/{name.replace('$', '_')}"
        assert command == ["python", "-m", "spacy", "train", f"{name}.cfg", "--output", folder]
        if i < 2:
            spacy_cli(*command[3:])
            assert {path.name for path in Path(folder).iterdir()} == {"model-best", "model-last", "log.jsonl", "state"}
            assert f'"{i}.spacy"' in (Path(folder) / "log.jsonl").read_text()
    assert {path.name for path in Path("training").iterdir()} == set(names[:2])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ner,textcat", ["ner", "textcat"]),
        ("textcat", ["textcat"]),
        ("tok2vec, ner", ["ner"]),
        ("ner,tagger", "Choose from: ner, textcat."),
        ("tok2vec", "Choose from: ner, textcat."),
        ("", "Choose from: ner, textcat."),
    ],
)
def test_init_takes_the_option_pipeline_as_spacy_does(given, expected, tmp_path):
    train = write(tmp_path / "train.spacy", [text(i, "entities", "categories") for i in range(15)])
    args = ("--lang", "en", "--paths.train", train, "--recipe", "drop-in", "--pipeline", given)
    run = spacy_cli("torchopt", "init", tmp_path / "new.cfg", *args, check=False)
    if isinstance(expected, list):
        assert trained(made(tmp_path)) == expected
    else:
        assert run.returncode == 1 and expected in " ".join(run.stderr.split())


def test_init_reads_folders(tmp_path):
    (tmp_path / "corpus").mkdir()
    for i in range(3):
        write(tmp_path / "corpus" / f"{i}.spacy", [text(i, "entities")])
    assert "on 3 of 3 texts" in init(tmp_path, "--lang", "en", "--paths.train", tmp_path / "corpus").stdout


def test_init_again_needs_force(tmp_path):
    train = write(tmp_path / "train.spacy", [text(i, "entities") for i in range(4)])
    args = ("--lang", "en", "--paths.train", train)
    init(tmp_path, *args)
    once = (tmp_path / "new.cfg").read_bytes()
    assert "give it as input and name an output" in refusal("torchopt", "init", tmp_path / "new.cfg", *args)
    init(tmp_path, *args, "--force")
    assert (tmp_path / "new.cfg").read_bytes() == once
    printed = spacy_cli("torchopt", "init", "-", *args)
    assert printed.stdout.encode() == once and "Entities on 4 of 4 texts" in printed.stderr


def test_init_recipes_in_a_row(tmp_path):
    train = write(tmp_path / "train.spacy", [text(i, "entities") for i in range(4)])
    told = init(tmp_path, "--lang", "en", "--paths.train", train, "--recipe", "best,robust").stdout
    optimizer = made(tmp_path)["training"]["optimizer"]
    assert "Recipes best, then robust" in told
    assert optimizer["learn_rate"]["@schedules"] == "thinc-torchopt.warmup_linear.v1" and "checkpoint" in optimizer
    both = init(tmp_path, tmp_path / "two.cfg", "--recipe", "fine-tune, robust")
    assert "the recipes 'fine-tune', 'robust'" in both.stdout
    assert "max_rollbacks" in Config().from_disk(tmp_path / "two.cfg")["training"]["optimizer"]
    options = ("--force", "--recipe", "best,best", "--recipe", "robust")
    again = init(tmp_path, "--lang", "en", "--paths.train", train, *options).stdout
    assert "Recipes best, then robust" in again and made(tmp_path)["training"]["optimizer"] == optimizer


# ---------------------------------------------------------------------- languages


@pytest.mark.parametrize(
    ("said", "args", "lang", "note"),
    [
        ([], ("--lang", "de"), "de", ""),
        (["fi"], (), "fi", ""),
        (["fi", "de"], (), "xx", ""),
        (["fi"], ("--lang", "de"), "de", "the texts say that they are in 'fi' (4 texts)."),
        (["fi", "sv"], ("--lang", "de"), "de", "in 'fi' (2 texts) and 'sv' (2 texts)."),
    ],
)
def test_init_language(said, args, lang, note, tmp_path):
    docs = [text(i, "entities") for i in range(4)]
    for i, doc in enumerate(docs):
        if said:
            doc.user_data["lang"] = said[i % len(said)]
    told = init(tmp_path, *args, "--paths.train", write(tmp_path / "train.spacy", docs)).stdout
    assert made(tmp_path)["nlp"]["lang"] == lang and note in told


# ---------------------------------------------------------------------- --split


def test_init_split_is_by_documents_and_never_overwrites(tmp_path):
    docs = [text(i % 20, "entities", "categories") for i in range(40)]  # each twice
    train = write(tmp_path / "all.spacy", docs)
    args = ("--lang", "en", "--paths.train", train, "--split", "0.2")
    init(tmp_path, *args)
    paths = made(tmp_path)["paths"]
    assert paths["train"].endswith("all-split-train.spacy") and paths["dev"].endswith("all-split-dev.spacy")
    parts = [[*DocBin(store_user_data=True).from_disk(paths[name]).get_docs(Vocab())] for name in ("train", "dev")]
    assert [len(part) for part in parts] == [32, 8]
    assert not {doc.text for doc in parts[0]} & {doc.text for doc in parts[1]}
    whole, rest = survey([*parts[0], *parts[1]]), survey(docs)
    assert whole == rest
    before = {path: path.read_bytes() for path in tmp_path.glob("*.spacy")}
    init(tmp_path, *args, "--force")  # the same parts
    other = refusal("torchopt", "init", tmp_path / "new.cfg", *args[:-1], "0.3", "--force")
    assert "it already exists, with other texts" in other
    assert {path: path.read_bytes() for path in tmp_path.glob("*.spacy")} == before


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (("--paths.train", "train.spacy", "--lang", "en", "--split", "0.2"), "at least two different ones, found 1"),
        (("--paths.train", "train.spacy", "--lang", "fi", "--pretrained"), "Can't make a config with --pretrained"),
        (("out.cfg", "--lang", "en", "--gpu"), "Can't use --lang and --gpu: for a new config only"),
        (("out.cfg",), "expected a recipe, found none"),
        (("--paths.train", "train.spacy", "--lang", "en", "--training.max_step", "3"), "no setting 'max_step'"),
    ],
)
def test_init_refuses(args, names, refused, tmp_path):
    """Others: tests/mistakes."""
    write(tmp_path / "train.spacy", [text(0, "entities")])
    assert names in " ".join(refused("new.cfg", *args).split())


def test_init_gpu_needs_a_transformer(refused, tmp_path):
    if find_spec("spacy_transformers"):
        pytest.skip("spacy-transformers is installed")
    write(tmp_path / "train.spacy", [text(0, "entities")])
    said = refused("new.cfg", "--paths.train", "train.spacy", "--lang", "en", "--gpu")
    assert "pip install 'thinc-torchopt[transformers]'" in said


# ---------------------------------------------------------------------- what was measured


def test_init_takes_the_recipe_that_was_measured(tmp_path, monkeypatch):
    """`best` and its products, and whether it was measured; another one if it is asked for."""
    train = write(tmp_path / "train.spacy", [text(i, "categories", "entities") for i in range(4)])
    vectors = tmp_path / "vectors"
    nlp = spacy.blank("en")
    nlp.vocab.set_vector("Ada", numpy.ones(4, dtype="f"))
    nlp.to_disk(vectors)
    args = ("--lang", "en", "--paths.train", train, "--pretrained", "--paths.vectors", vectors)
    told = init(tmp_path, *args).stdout
    assert made(tmp_path)["components"]["textcat"]["model"]["@architectures"] == "spacy.TextCatEnsemble.v2"
    assert 'ops = "fastest"' in told and made(tmp_path)["training"]["optimizer"]["ops"] == "fastest"
    mine = init(tmp_path, *args, "--force", "--recipe", "best", "--training.optimizer.ops", "thinc").stdout
    assert "ops" not in mine and made(tmp_path)["training"]["optimizer"]["ops"] == "thinc"
    assert made(tmp_path)["training"]["optimizer"]["@optimizers"] == "thinc-torchopt.TorchOptimizer.v1"
    assert "Recipe best." in told
    rows, about = measurements()
    assert {row.take for row in rows if row.factories} == {"best"}
    unknown = [replace(row, expect="not measured yet") for row in rows]
    monkeypatch.setattr("thinc_torchopt.addons.recipes.measured.measurements", lambda: (unknown, about))
    told = init(tmp_path, *args, "--force").stdout
    assert "Recipe best, which was not measured for such a pipeline." in told
    told = init(tmp_path, *args, "--force", "--recipe", "drop-in").stdout
    assert made(tmp_path)["training"]["optimizer"]["@optimizers"] == "thinc-torchopt.Adam.v1"
    assert 'ops = "fastest"' in told and made(tmp_path)["training"]["optimizer"]["ops"] == "fastest"


# ---------------------------------------------------------------------- a property


@settings(max_examples=settings.default.max_examples // 5)
@given(kinds=st.lists(st.sets(st.sampled_from(KINDS)), min_size=1, max_size=5))
def test_init_chooses_what_can_be_learned(kinds):
    """Whatever annotations are taken away: spaCy finds labels for each component."""
    docs = [text(i, *of_text) for i, of_text in enumerate(kinds)]
    choice = choose_components(survey(docs))
    nlp = spacy.blank("en")
    for component in choice.components:
        nlp.add_pipe(component.kind.factory, name=component.name)
    examples = [Example(nlp.make_doc(doc.text), doc) for doc in DocBin(docs=docs).get_docs(nlp.vocab)]
    nlp.initialize(lambda: examples)  # E143, E867 or E895 for one that can't learn
    for name, pipe in nlp.pipeline:
        assert len(pipe.labels) > 0, name
    learned = {component.kind.factory for component in choice.components}
    for kind in ("entities", "tags", "spans", "morphology"):
        n = sum(kind in of_text for of_text in kinds)
        assert (COMPONENTS[kind] in learned) == (n > 0), kind


# ---------------------------------------------------------------------- counts

# One text in so many lacks these annotations.
LACKS = {"tags": 5, "entities": 4, "spans": 3, "categories": 99}


def labels_in(docs):
    """By kind, as `init` calls it, the labels of each text."""
    return {
        "Tags": [[token.tag_ for token in doc if token.tag_] for doc in docs],
        "Entities": [[ent.label_ for ent in doc.ents] for doc in docs],
        "Spans under the key 'sc'": [[span.label_ for span in doc.spans.get("sc", ())] for doc in docs],
        "Categories": [[label for label, value in doc.cats.items() if value] for doc in docs],
    }


def counts_in(of_texts):
    *most, least = (f"{label} {n}" for label, n in Counter(chain(*of_texts)).most_common())
    return f"{', '.join(most)} and {least}" if most else least


@pytest.mark.parametrize("share", [None, 0.2])
def test_init_prints_the_numbers_of_its_texts(share, tmp_path, monkeypatch):
    """Counted once more, text by text; the batches are spaCy's own. All texts have seven words."""
    monkeypatch.chdir(tmp_path)
    for name, numbers in (("train.spacy", range(1, 91)), ("dev.spacy", range(200, 231))):
        write(name, [text(i, *(kind for kind, n in LACKS.items() if i % n)) for i in numbers])
    dev = ("--paths.dev", "dev.spacy") if share is None else ("--split", share)
    shown = spacy_cli("torchopt", "init", "new.cfg", "--lang", "en", "--paths.train", "train.spacy", *dev).stdout
    paths, training = (made(tmp_path)[name] for name in ("paths", "training"))
    given, train, dev = (
        [*DocBin().from_disk(path).get_docs(Vocab())] for path in ("train.spacy", paths["train"], paths["dev"])
    )
    found, chose, evaluates = (
        next(line for line in shown.splitlines() if line.startswith(begin)) for begin in ("Found", "Chose", "Evaluates")
    )
    assert found.startswith("Found in train.spacy: 90 texts, 630 words.")
    in_dev = labels_in(dev)
    for (kind, of_texts), pipe in zip(labels_in(given).items(), ("tagger", "ner", "spancat", "textcat")):
        n, labels = sum(map(bool, of_texts)), len({*chain(*of_texts)})
        assert f"{kind} on {n} of 90 texts, {labels} label{'s' * (labels > 1)}".lower() in found.lower()
        assert f"{kind}: {counts_in(of_texts)}." in shown.splitlines()
        assert f" {kind}: {counts_in(in_dev[kind])}." in evaluates
        assert (f"'{pipe}': {90 - n} of 90 texts are not annotated for it" in shown) == (n < 90)
    assert f"Evaluates on {len(dev)} texts of {paths['dev']}" in evaluates
    if share is not None:
        assert (len(train), len(dev)) == (72, 18) and ", 20% of the texts, drawn at random; the others" in evaluates

    examples = [Example(doc, doc) for doc in train]
    batcher = spacy.registry.resolve({"batcher": training["batcher"]})["batcher"]
    batches = sum(1 for _ in create_train_batches(spacy.blank("en"), lambda nlp: iter(examples), batcher, 20))
    part = sum(len(doc) for doc in train if doc.ents) / (7 * len(train))
    spans = sum(map(len, labels_in(train)["Spans under the key 'sc'"]))
    steps, least = training["max_steps"], math.ceil(600 / part)
    assert least <= steps < least + training["eval_frequency"] and steps % training["eval_frequency"] == 0
    assert (
        f" Ends at step {steps}: the minimum is {least}, as 'ner' learns from {part:.0%} of the words; 20 epochs "
        f"(more than 10, as {spans} spans are few) over {len(train)} texts with {7 * len(train)} words would be only "
        f"{batches} steps. "
    ) in chose


def test_init_and_explain_count_doubts(tmp_path, monkeypatch):
    """The numbers are counted once more in the texts. `init` says what `explain` says, and names it before `train`."""
    monkeypatch.chdir(tmp_path)
    docs = [text(i, "entities", "categories") for i in [*range(110), *range(15)]]
    for i, doc in enumerate(docs):
        doc.ents = [Span(doc, 0, 1, "drug" if i < 4 else "DRUG")] if i < 60 else []
        doc.cats = {"OTHER": float(i % 20 > 0), "BUG": float(i % 20 == 0)}
    write(tmp_path / "train.spacy", docs)
    write(tmp_path / "dev.spacy", docs[:100])
    paths = ("--paths.train", "train.spacy", "--paths.dev", "dev.spacy")
    told = spacy_cli("torchopt", "init", "new.cfg", "--lang", "en", *paths).stdout
    ents = Counter(ent.label_ for doc in docs for ent in doc.ents)
    cats = Counter(max(doc.cats, key=doc.cats.get) for doc in docs)
    annotated = [(doc.cats, [(ent.text, ent.label_) for ent in doc.ents]) for doc in docs]
    same = sum(one == other for one, other in zip(annotated, annotated[110:]))
    both = f"{ents['DRUG'] + 56} and drug {2 * ents['drug']} in [corpora.train] and [corpora.dev]"
    doubts = [
        f"Labels of 'ner' in fewer than 10 of the 125 texts in [corpora.train]: drug {ents['drug']}.",
        f"Labels of 'textcat' in fewer than 10 of the 125 texts in [corpora.train]: BUG {cats['BUG']}.",
        f"'ner' learns as different labels: DRUG {both}.",
        f"{cats['OTHER']} of 125 texts in [corpora.train] are OTHER; a model that always says OTHER has an accuracy of "
        f"{cats['OTHER'] / 125:.3g}.",
        f"annotated in other ways: {15 - same} of the 125 texts in [corpora.train], such as 'Ada went home",
        "100 of the 100 texts in [corpora.dev] stand in [corpora.train], too, such as 'Ada went home",
    ]
    assert all(line in told for line in doubts)
    *_, one, explain, other, train = told.splitlines()
    assert (one, other) == ("To check it and see what it will do:", "To train:")
    assert "torchopt explain new.cfg --output" in explain and "spacy train new.cfg --output" in train
    found = json.loads(spacy_cli(*explain.split()[3:], "--json").stdout)
    assert not found["stops"] and all(any(doubt in note for note in found["notes"]) for doubt in doubts)
