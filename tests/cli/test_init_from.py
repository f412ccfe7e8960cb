"""`spacy torchopt init --from` and `--teacher`: configs that train at once, and what they train and leave as it was."""

import json
import shutil
from pathlib import Path

import numpy
import pytest
import spacy
from confection import Config
from spacy.schemas import ConfigSchemaInit, ConfigSchemaTraining
from spacy.tokens import Doc, DocBin, Span
from spacy.training.initialize import init_nlp
from spacy.util import load_config, load_model_from_config
from thinc.api import fix_random_seed

from thinc_torchopt.core.config_checks import check_removed
from thinc_torchopt.core.errors import ConfigError

from ..models import TOK2VEC, pipeline_params, same, toy_examples, toy_pipeline
from ..spacy_cli import refusal, spacy_cli

TWO = ("--training.max_steps", 2, "--training.eval_frequency", 1)


def write(path, docs):
    DocBin(docs=docs, store_user_data=True).to_disk(path)
    return path


def bare(doc):
    return Doc(doc.vocab, [token.text for token in doc], [bool(token.whitespace_) for token in doc])


def colors(doc):
    """The same text with the new label alone."""
    new = bare(doc)
    new.set_ents([Span(new, 2, 3, label="COLOR")], default="outside")
    return new


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A pipeline with a tagger and a recognizer on one tok2vec, which finds two labels, and texts."""
    folder = tmp_path_factory.mktemp("desk")
    fix_random_seed(0)
    nlp = toy_pipeline(["tagger", "ner"])
    nlp.tokenizer.add_special_case("Lon-don", [{"ORTH": "Lon"}, {"ORTH": "-don"}])
    examples = toy_examples(nlp, 4)
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(40):
        nlp.update(examples, sgd=optimizer)
    assert [(ent.text, ent.label_) for ent in nlp("Anna likes red London").ents] == [
        ("Anna", "PERSON"), ("London", "CITY")
    ]  # fmt: skip
    nlp.to_disk(folder / "old")
    docs = [example.reference for example in toy_examples(nlp, 30)]
    write(folder / "new.spacy", [colors(doc) for doc in docs])
    write(folder / "more.spacy", [Doc(nlp.vocab, [t.text for t in doc], ents=_iob(doc)) for doc in docs])
    write(folder / "all.spacy", docs)
    write(folder / "bare.spacy", [bare(doc) for doc in docs])
    (folder / "raw.jsonl").write_text(
        "".join(json.dumps({"text": f"Anna likes {i} London."}) + "\n" for i in range(99))
    )
    return folder


def _iob(doc):
    return [f"{token.ent_iob_}-{token.ent_type_}" if token.ent_type_ else "O" for token in doc]


@pytest.fixture
def folder(desk, tmp_path, monkeypatch):
    shutil.copytree(desk, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*args):
    return spacy_cli("torchopt", "init", "new.cfg", *args)


def made():
    return Config().from_disk("new.cfg", interpolate=False)


WITH_VECTORS = {**TOK2VEC, "pretrained_vectors": True}
PATHS = ("--paths.train", "new.spacy", "--paths.dev", "new.spacy")


def test_init_from_trains_a_new_label_at_once(folder):
    """The recognizer gets a copy of the tok2vec, and the tagger stays as it was, to the last bit."""
    told = init("--from", "old", *PATHS, *TWO).stdout
    assert "Found in new.spacy: 30 texts" in told and "new to 'ner': COLOR (30)." in told
    assert "They do not have PERSON or CITY, where the pipeline finds 60." in told
    assert "Chose to train ner of old, with a copy of the layers that ner shared with others;" in told
    assert "tok2vec and tagger stay as before. The pipeline as it was fills in labels" in told
    assert "python -m spacy train new.cfg --output training/new\n" in told
    config = made()
    assert config["components"]["ner"] == {"source": "${paths.pipeline}", "replace_listeners": ["model.tok2vec"]}
    assert config["training"]["frozen_components"] == ["tok2vec", "tagger"]
    assert config["initialize"]["after_init"]["labels"] == {"ner": ["COLOR"]}
    reader = config["corpora"]["train"]
    assert reader["teacher"] == "${paths.pipeline}" and reader["components"] == ["ner"] and reader["complete"] == []
    run = spacy_cli("train", "new.cfg", "--output", "training/new")
    assert "30 CITY, 30 PERSON" in run.stderr + run.stdout
    assert "they will teach it" not in run.stderr
    old, new = spacy.load("old"), spacy.load("training/new/model-last")
    assert set(new.get_pipe("ner").labels) == {"PERSON", "CITY", "COLOR"}
    before, after = pipeline_params(old), pipeline_params(new)
    assert all(same(before[name], after[name]) for name in ("tok2vec", "tagger"))
    assert [token.text for token in new.tokenizer("Lon-don")] == ["Lon", "-don"]
    doc = new("Anna likes red London")
    assert [token.tag_ for token in doc] == [token.tag_ for token in old("Anna likes red London")]
    assert ("Anna", "PERSON") in [(ent.text, ent.label_) for ent in doc.ents]  # after two steps
    log = [json.loads(line) for line in Path("training/new/log.jsonl").read_text().splitlines()]
    assert {"PERSON", "CITY", "COLOR"} <= set(log[-1]["scores"]["ents_per_type"])


def test_init_from_writes_all_settings(folder):
    """Some of spaCy's commands, such as `debug data`, fill in none."""
    init("--from", "old", *PATHS)
    assert "Config is valid" in spacy_cli("debug", "config", "new.cfg").stdout
    filled = load_model_from_config(load_config("new.cfg"), auto_fill=True).config
    for section, schema in (("training", ConfigSchemaTraining), ("initialize", ConfigSchemaInit)):
        spacy.registry.resolve(made().interpolate()[section], schema=schema)
        assert set(made()[section]) == set(filled[section])


def test_init_from_goes_on_without_a_teacher_if_nothing_is_missing(folder):
    told = init("--from", "old", "--paths.train", "more.spacy", "--paths.dev", "more.spacy", *TWO).stdout
    assert "Entities for 'ner', with no new label." in told and "fills in" not in told
    config = made()
    assert config["corpora"]["train"]["@readers"] == "spacy.Corpus.v1" and config["initialize"]["after_init"] is None
    peak = config["training"]["optimizer"]["learn_rate"]["initial_rate"]
    assert 0.0002 < peak < 0.0014  # about a third of that for a new network
    spacy_cli("train", "new.cfg", "--output", "training/new")


def test_init_from_trains_what_texts_are_annotated_for(folder):
    """All components of the tok2vec, so it is shared as before."""
    told = init("--from", "old", "--paths.train", "all.spacy", "--paths.dev", "all.spacy").stdout
    assert "Chose to train tok2vec, tagger and ner of old." in told
    assert made()["training"]["frozen_components"] == []
    assert made()["components"]["ner"] == {"source": "${paths.pipeline}"}


def test_init_from_with_old_texts(folder):
    told = init("--from", "old", *PATHS, "--old", "more.spacy", "--paths.old_dev", "more.spacy", *TWO).stdout
    assert "Evaluates on 30 texts of more.spacy, too." in told and "use training/new/model-last." in told
    config = made()
    assert config["paths"]["old"] == config["paths"]["old_dev"] == "more.spacy"
    assert config["corpora"]["train"]["old"]["path"] == "${paths.old}"
    assert config["corpora"]["dev"]["old"]["path"] == "${paths.old_dev}"
    spacy_cli("train", "new.cfg", "--output", "training/new")


def test_init_from_a_pipeline_with_one_reader_for_both_corpora(folder):
    """Its settings may be called as the corpora are. New texts are not read by it."""
    config = Config().from_disk("old/config.cfg", interpolate=False)
    config["corpora"] = {"@readers": "mine.Both.v1", "train": "${paths.train}", "dev": "${paths.dev}"}
    config.to_disk("old/config.cfg")
    init("--from", "old", *PATHS)
    assert "mine.Both.v1" not in Path("new.cfg").read_text()


def test_init_from_refuses_a_copy_of_one_encoder_of_two(folder):
    """Of which spaCy would copy the first, while the listener reads the last."""
    nlp = spacy.load("old")
    nlp.add_pipe("tok2vec", "second", config={"model": TOK2VEC}, first=True)
    nlp.initialize(lambda: toy_examples(nlp, 4))
    assert nlp.get_pipe("second").listening_components == nlp.get_pipe("tok2vec").listening_components
    nlp.to_disk("old")
    said = refusal("torchopt", "init", "new.cfg", "--from", "old", *PATHS)
    assert "it shares 'second' with tagger, and listens to 'tok2vec'" in said
    assert not Path("new.cfg").exists()


def test_init_from_overrides(folder):
    """Settings of the reader of the texts, and of the training."""
    init(
        "--from", "old", *PATHS, "--corpora.train.complete", '["PERSON"]', "--training.dropout", 0.3, "--system.seed", 7
    )
    config = made()
    assert config["corpora"]["train"]["complete"] == ["PERSON"]
    assert config["training"]["dropout"] == pytest.approx(0.3) and config["system"]["seed"] == 7


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--from", "old", "--teacher", "old"), "Can't use --teacher with --from"),
        (("--old-dev", "all.spacy"), "Can't use --old-dev without --from. Add it: --from training/model-best."),
        (("--from", "old", "--old", "no.spacy"), "no.spacy"),
        (("--teacher", "old", "--texts", "no.jsonl"), "--texts no.jsonl: expected a file of texts"),
        (("--teacher", "old", "--texts", "raw.jsonl", "--share", "0"), "expected a number above 0, found 0"),
    ],
)
def test_init_from_refusals(args, says, folder):
    """Others: tests/mistakes."""
    before = sorted(folder.rglob("*"))
    lang = () if "--from" in args else ("--lang", "xx")
    assert says in refusal("torchopt", "init", "new.cfg", *lang, *args, *PATHS)
    assert sorted(folder.rglob("*")) == before


def test_init_from_adds_labels_with_dollars(folder):
    nlp = spacy.load("old")
    tags = ["PRP$", "$", "a$$b", "${paths.train}"]
    write(Path("new.spacy"), [Doc(nlp.vocab, ["Anna", "likes", "red", "London"], tags=tags) for _ in range(30)])
    init("--from", "old", *PATHS, *TWO)
    assert made()["initialize"]["after_init"]["labels"] == {"tagger": None}  # those of the texts
    spacy_cli("train", "new.cfg", "--output", "training/new")
    assert set(tags) <= set(spacy.load("training/new/model-last").get_pipe("tagger").labels)
    # One that is written by hand, as spaCy reads it.
    text = Path("new.cfg").read_text().replace("tagger = null", 'tagger = ["PRP$"]')
    Path("new.cfg").write_text(text)
    spacy_cli("torchopt", "init", "new.cfg", "other.cfg", "--recipe", "robust")
    assert 'tagger = ["PRP$"]' in Path("other.cfg").read_text()


@pytest.mark.parametrize(("name", "without"), [("ner:2", []), ("a=b", ["tagger"]), ("[ner]", []), ("#1", ["tagger"])])
def test_init_from_adds_labels_to_components_of_any_name(folder, name, without):
    """As keys, they would be read as other names, or not at all. Without a tagger, the tok2vec learns too."""
    nlp = spacy.load("old", exclude=without)
    nlp.rename_pipe("ner", name)
    nlp.to_disk("old")
    init("--from", "old", *PATHS)
    nlp = init_nlp(load_config("new.cfg"))
    assert nlp.get_pipe(name).labels == ("CITY", "COLOR", "PERSON")


def test_init_from_refuses_texts_that_teach_it_nothing(folder):
    said = refusal("torchopt", "init", "new.cfg", "--from", "old", "--paths.train", "bare.spacy")
    assert "expected texts with tags ('tagger') or entities ('ner'), found 30 texts with no annotations" in said
    said = refusal("torchopt", "init", "old/config.cfg", "x.cfg", "--recipe", "best", "--from", "old")
    assert "Can't use --from: for a new config only" in said


def test_init_from_never_lets_the_teacher_be_removed(folder):
    """spaCy removes the models of before from its output folder."""
    shutil.copytree("old", "training/new/model-best")
    told = init("--from", "training/new/model-best", *PATHS, *TWO).stdout
    assert "--output training/new-next\n" in told
    with pytest.raises(ConfigError, match=r"teacher = 'training/new/model-best' in .corpora.train. needs them"):
        check_removed(load_config("new.cfg"), Path("training/new"))
    check_removed(load_config("new.cfg"), Path("training/new-next"))


def test_init_with_a_teacher_in_the_usual_folder(folder):
    """The command that it prints is one that spacy train takes."""
    shutil.copytree("old", "training/model-last")
    told = init("--lang", "xx", "--teacher", "training/model-last", "--texts", "raw.jsonl", *PATHS, *TWO).stdout
    assert "--output training/new\n" in told and "Logs each step to training/new/log.jsonl" in told
    check_removed(load_config("new.cfg"), Path("training/new"))


def test_init_from_a_pipeline_with_vectors(folder):
    """They come from it, with its other lexical data."""
    nlp = spacy.blank("en")
    for word in ("Anna", "likes", "red", "blue", "London"):
        nlp.vocab.set_vector(word, numpy.random.RandomState(len(word)).normal(size=8).astype("f"))
    nlp.add_pipe("ner", config={"model": {"tok2vec": WITH_VECTORS}})
    nlp.initialize(lambda: toy_examples(nlp, 10))
    nlp.to_disk("vectors")
    init("--from", "vectors", *PATHS, *TWO, "--training.optimizer.learn_rate.initial_rate", 1e-12)
    run = spacy_cli("train", "new.cfg", "--output", "training/new")
    assert "W113" not in run.stderr + run.stdout
    trained = spacy.load("training/new/model-last")
    found, expected = (one.vocab.vectors.to_bytes(exclude=["strings"]) for one in (trained, nlp))
    assert found == expected


def test_init_from_tells_of_callbacks_that_it_leaves_out(folder):
    """They could act twice, so they are named. Those of a pipeline that was made by --from itself are not."""
    before = Config().from_disk("old/config.cfg", interpolate=False)
    before["initialize"]["before_init"] = {"@callbacks": "test-init-from.Nothing.v1"}
    before["training"]["before_to_disk"] = {"@callbacks": "test-init-from.Nothing.v1"}
    before.to_disk("old/config.cfg")

    @spacy.registry.callbacks("test-init-from.Nothing.v1")
    def nothing():
        return lambda nlp: nlp

    told = init("--from", "old", *PATHS, *TWO)
    told = " ".join((told.stdout + told.stderr).split())
    for section, name in (("initialize", "before_init"), ("training", "before_to_disk")):
        assert (
            f'{name} in [{section}]: the pipeline was trained with "test-init-from.Nothing.v1", which is left' in told
        )
    assert made()["training"]["before_to_disk"] is None
    before["initialize"]["before_init"] = {"@callbacks": "spacy.copy_from_base_model.v1", "vocab": "old"}
    before["training"]["before_to_disk"] = None
    before.to_disk("old/config.cfg")
    again = init("--from", "old", *PATHS, *TWO, "--force")
    assert "left out" not in again.stdout + again.stderr


# ---------------------------------------------------------------------- a teacher


def test_init_with_a_teacher_trains_at_once(folder):
    args = ("--lang", "xx", "--teacher", "old", "--texts", "raw.jsonl", "--share", 3)
    told = init(*args, "--paths.train", "more.spacy", "--paths.dev", "more.spacy", *TWO).stdout
    assert "old teaches ner on raw.jsonl, 3 texts for each annotated one." in told
    config = made()
    reader = config["corpora"]["train"]
    assert reader["texts"] == "${paths.texts}" and reader["share"] == 3 and reader["complete"] == ["CITY", "PERSON"]
    assert config["paths"]["teacher"] == "old" and config["corpora"]["dev"]["@readers"] == "spacy.Corpus.v1"
    run = spacy_cli("train", "new.cfg", "--output", "training")
    assert "raw.jsonl" in run.stderr + run.stdout
    assert set(spacy.load("training/model-best").get_pipe("ner").labels) == {"PERSON", "CITY"}


def test_init_with_a_teacher_fills_in_both_corpora(folder):
    """Texts with one label, and a teacher with two others: what it finds in dev is not wrong there."""
    told = init("--lang", "xx", "--teacher", "old", *PATHS, *TWO).stdout
    assert "It fills in CITY and PERSON, which new.spacy does not have." in told
    assert "In the score, what old fills in counts as right, too." in told
    corpora = made()["corpora"]
    assert corpora["dev"] | {"corpus": None} == corpora["train"] | {"corpus": None}
    spacy_cli("train", "new.cfg", "--output", "training")
    assert set(spacy.load("training/model-best").get_pipe("ner").labels) == {"COLOR", "PERSON", "CITY"}
    # Labels that the texts to evaluate on have are theirs; with all of them, dev is read as it is.
    init("--lang", "xx", "--teacher", "old", *PATHS[:2], "--paths.dev", "all.spacy", "--force")
    assert "complete" in made()["corpora"]["train"] and "complete" not in made()["corpora"]["dev"]
    told = init("--lang", "xx", "--teacher", "old", *PATHS[2:], "--paths.train", "more.spacy", "--force").stdout
    assert "old has nothing to fill in for 'ner': the texts have all its labels." in told


def test_init_with_a_teacher_trains_for_all_texts(folder):
    """5 epochs of one batch each, and of 200 times as many texts beside; of fewer, if there are fewer."""
    args = ("--lang", "xx", "--teacher", "old", "--share", 200, "--paths.train", "more.spacy")
    told = init(*args, "--texts", "raw.jsonl").stdout
    assert "raw.jsonl has 99 texts, cut where they are long: fewer than 200 for each annotated one" in told
    assert "which would be 6,000" in told and made()["training"]["max_steps"] == 600
    assert "; 5 epochs over 30 texts with 135 words, and 3.3 of the teacher's for each would be" in told
    (folder / "many.txt").write_text("".join(f"Anna likes {i} London.\n" for i in range(6000)))
    assert "fewer than" not in init(*args, "--texts", "many.txt", "--force").stdout
    assert 5 * 201 <= made()["training"]["max_steps"] < 5 * 201 * 1.1


def test_init_with_a_teacher_that_lacks_something(folder):
    args = ("--lang", "xx", "--teacher", "old", "--texts", "raw.jsonl")
    told = init(*args, *PATHS).stdout
    assert "'ner': old does not know COLOR. Its texts teach that there is none" in told
    docs = [*DocBin().from_disk("all.spacy").get_docs(spacy.blank("xx").vocab)]
    for doc in docs:
        doc.set_ents([], missing=[doc[:]])
        for token in doc:
            token.tag_ = ""
    write(folder / "cats.spacy", docs)
    said = refusal("torchopt", "init", "new.cfg", *args, "--paths.train", "cats.spacy", "--force")
    assert "expected a component that finds" in said and "categories" in said


def test_init_with_a_teacher_leaves_out_what_its_texts_would_unteach(folder):
    """The training would be refused: nothing annotates the texts with spans."""
    docs = [*DocBin().from_disk("more.spacy").get_docs(spacy.blank("xx").vocab)]
    for i, doc in enumerate(docs):
        doc.spans["sc"] = [Span(doc, 0, 1, label="XY"[i % 2])]
    paths = ("--paths.train", write(folder / "spans.spacy", docs), "--paths.dev", folder / "spans.spacy")
    told = init("--lang", "xx", "--teacher", "old", "--texts", "raw.jsonl", *paths, *TWO).stdout
    assert "Left out: spans under the key 'sc': old has no component for them, so raw.jsonl would have none." in told
    assert "spancat" not in made()["nlp"]["pipeline"]
    spacy_cli("train", "new.cfg", "--output", "training")
    # Without texts, the teacher takes nothing from it.
    init("--lang", "xx", "--teacher", "old", *paths, "--force")
    assert "spancat" in made()["nlp"]["pipeline"]


# ---------------------------------------------------------------------- the trap


def trap(folder):
    """A config as users write it: with a source, and texts that have the new label alone."""
    init("--from", "old", *PATHS, *TWO)
    text = (folder / "new.cfg").read_text()
    for name in ("train", "dev"):
        begin = text.index(f"[corpora.{name}]")
        end = text.index(f"[corpora.{name}.corpus]")
        text = text[:begin] + text[end:].replace(f"[corpora.{name}.corpus]", f"[corpora.{name}]", 1)
    (folder / "trap.cfg").write_text(text)


def test_nobody_falls_into_the_trap(folder):
    """`explain`, `init` and `spacy train` say it; not for the config that `init --from` writes."""
    trap(folder)
    says = "the 30 texts in [corpora.train] have no PERSON or CITY, where the pipeline finds 30 PERSON and 30 CITY"
    runs = [
        spacy_cli("torchopt", "explain", "trap.cfg"),
        spacy_cli("torchopt", "init", "trap.cfg", "other.cfg", "--recipe", "robust", *PATHS),
        spacy_cli("train", "trap.cfg"),
    ]
    for run in runs:
        assert says in " ".join((run.stdout + run.stderr).split()), run
    for run in (spacy_cli("torchopt", "explain", "new.cfg"), spacy_cli("train", "new.cfg")):
        assert "they will teach it" not in " ".join((run.stdout + run.stderr).split())
