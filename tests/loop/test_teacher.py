"""A frozen pipeline, and the cache of what it says."""

import json
import random
import re
import shutil
import weakref
from pathlib import Path

import numpy
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc

from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.host import cli_util
from thinc_torchopt.loop.filling import rules_for
from thinc_torchopt.loop.teacher import Teacher, _digest, _needed, annotate, digest_of

from ..models import ready_pipeline


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pipeline that was not trained: what it says is odd, and the same each time."""
    path = tmp_path_factory.mktemp("teacher") / "pipeline"
    nlp, _ = ready_pipeline(["tagger", "parser", "ner"], n=30)
    nlp.to_disk(path)
    return path


@pytest.fixture
def nlp(folder):
    return spacy.load(folder)


@pytest.fixture
def rules(nlp):
    return rules_for(nlp, nlp)


def docs(nlp, n=6):
    return [Doc(nlp.vocab, words=["Anna", str(i), "London", "."], spaces=[True, i % 2 == 0, False, False])
            for i in range(n)]  # fmt: skip


def test_teacher_says_what_its_pipeline_says(folder, nlp, rules):
    texts = docs(nlp)
    for said, doc in zip(Teacher(folder).predict(texts, rules), nlp.pipe([doc.copy() for doc in texts])):
        assert said["tags"] == [token.tag_ for token in doc]
        assert said["entities"] == [[one.start, one.end, one.label_] for one in doc.ents]
        assert said["trees"] == [[token.head.i, token.dep_] for token in doc]


def test_teacher_annotates_each_text_once(folder, nlp, rules, tmp_path, monkeypatch):
    first = Teacher(folder, cache=tmp_path / "cache")
    found = first.predict([*docs(nlp), *docs(nlp)], rules)
    assert first.n_predicted == 6 and found[:6] == found[6:]
    # Another one reads it, and does not load its pipeline.
    second = Teacher(folder, cache=tmp_path / "cache")
    monkeypatch.setattr(Teacher, "nlp", property(lambda self: pytest.fail("loaded")))
    assert second.predict(docs(nlp), rules) == found[:6]
    assert not second.n_predicted
    monkeypatch.undo()
    # Of one more text, one more is annotated; other components are in another folder.
    second.predict(docs(nlp, 7), rules)
    assert second.n_predicted == 1
    second.predict(docs(nlp, 7), rules[:1])
    assert second.n_predicted == 8 and len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("cache", ["cache", None])
def test_teacher_of_a_stream_keeps_the_latest_in_memory(folder, nlp, rules, tmp_path, monkeypatch, cache):
    """A stream has no end. With a cache, nothing is annotated twice for it."""
    monkeypatch.setattr("thinc_torchopt.loop.teacher._MOST_IN_MEMORY", 5)
    expected = Teacher(folder).predict(docs(nlp, 20), rules)
    teacher = Teacher(folder, cache=cache and tmp_path / cache)
    for _ in range(2):
        for start in range(0, 20, 4):
            assert teacher.predict(docs(nlp, 20)[start : start + 4], rules) == expected[start : start + 4]
            assert cache or {len(known) for known in teacher._known.values()} <= {4, 5}
        loaded = weakref.ref(teacher.nlp)
        teacher.free()
        assert loaded() is None
    assert teacher.n_predicted == (20 if cache else 40)
    # One piece may be larger.
    assert teacher.predict(docs(nlp, 20), rules) == expected


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xff", None])
def test_teacher_makes_damaged_predictions_again(folder, nlp, rules, tmp_path, damage):
    expected = Teacher(folder, cache=tmp_path).predict(docs(nlp), rules)
    [file] = tmp_path.rglob("*.jsonl")
    content = file.read_bytes()
    file.write_bytes(content.replace(b"0", b"1", 1) if damage is None else damage)
    with pytest.warns(UserWarning, match=r"Predictions of 'teacher' in '.*' are damaged, and are made again"):
        assert Teacher(folder, cache=tmp_path).predict(docs(nlp), rules) == expected
    assert file.read_bytes() == content


OTHER_FORMS = {
    "an entity out of the text": ("entities", [[2, 5, "PERSON"]]),
    "an entity without a label": ("entities", [[0, 1, 7]]),
    "too few tags": ("tags", ["NN"]),
    "a head out of the text": ("trees", [[4, "x"]] * 4),
    "no kind": ("entities", None),
}


@pytest.mark.parametrize("kind", OTHER_FORMS)
def test_teacher_takes_no_cache_of_another_form(folder, nlp, rules, tmp_path, kind):
    """Under the right name, as of a version that forgot to count itself up."""
    expected = Teacher(folder, cache=tmp_path).predict(docs(nlp), rules)
    [file] = tmp_path.rglob("*.jsonl")
    name, value = OTHER_FORMS[kind]
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[2][2] = {**rows[2][2], name: value} if value is not None else {}
    content = "".join(json.dumps(row) + "\n" for row in rows)
    file.unlink()
    (file.parent / f"{_digest(content)}.jsonl").write_text(content)
    with pytest.warns(UserWarning, match=r"are damaged, and are made again: its content has another form"):
        assert Teacher(folder, cache=tmp_path).predict(docs(nlp), rules) == expected
    assert list(tmp_path.rglob("*.jsonl")) == [file]


@pytest.mark.parametrize("change", ["the form", "spaCy", "the code", "nothing"])
def test_teacher_takes_no_cache_of_another_version(folder, nlp, rules, tmp_path, monkeypatch, change):
    code = tmp_path / "functions.py"
    code.write_text(f"import spacy\n@spacy.Language.component('test-code {change}')\ndef one(doc):\n    return doc\n")
    cli_util().import_code(code)
    Teacher(folder, cache=tmp_path / "cache").predict(docs(nlp), rules)
    if change == "the form":
        monkeypatch.setattr("thinc_torchopt.loop.teacher._VERSION", 1)
    elif change == "spaCy":
        monkeypatch.setattr("spacy.about.__version__", "3.9.0")
    elif change == "the code":
        code.write_text(code.read_text() + "# changed\n")
    again = Teacher(folder, cache=tmp_path / "cache")
    again.predict(docs(nlp), rules)
    assert again.n_predicted == (0 if change == "nothing" else 6)
    assert all(re.fullmatch(r"v[13]-[0-9a-f]{16}", path.name) for path in (tmp_path / "cache").iterdir())


def test_teacher_reads_a_cache_that_it_may_not_change(folder, nlp, rules, tmp_path, monkeypatch):
    """A damaged file stays there. What is missing can't be kept, and says so."""
    expected = Teacher(folder, cache=tmp_path).predict(docs(nlp), rules)
    [file] = tmp_path.rglob("*.jsonl")
    (file.parent / "damaged.jsonl").write_bytes(b"{")

    def refuse(*args, **kwargs):
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr("thinc_torchopt.core.state.write_text", refuse)
    second = Teacher(folder, cache=tmp_path)
    with pytest.warns(UserWarning, match="are damaged") as told:
        assert second.predict(docs(nlp), rules) == expected
        with pytest.raises(ConfigError, match=r"Can't keep the predictions .* Set another 'cache', or null for none"):
            second.predict(docs(nlp, 7), rules)
    assert len(told) == 1


def test_teacher_shows_its_progress(folder, nlp, monkeypatch, capsys):
    """Of many texts, in a terminal."""
    monkeypatch.setattr("thinc_torchopt.loop.progress_bars._is_watched", lambda: True)
    Teacher(folder).predict(docs(nlp, 128), rules_for(nlp, nlp))
    shown = capsys.readouterr().err
    assert "The teacher annotates 128 texts" in shown and "0/128" in shown
    Teacher(folder).predict(docs(nlp, 127), rules_for(nlp, nlp))
    assert not capsys.readouterr().err


def test_teacher_frees_each_batch(nlp, monkeypatch):
    """Of a transformer, each text keeps its activations."""
    monkeypatch.setattr("thinc_torchopt.loop.teacher._BATCH", 4)
    alive, counts = weakref.WeakSet(), []

    @Language.component("test-teacher-activations")
    def keep(doc):
        alive.add(activations := torch.zeros(9))
        doc.user_data["activations"] = activations
        return doc

    nlp.add_pipe("test-teacher-activations")
    found = annotate(nlp, docs(nlp, 40), rules_for(nlp, nlp), lambda: counts.append(len(alive)))
    assert len(found) == 40 and max(counts) <= 8


def test_teacher_leaves_random_generators_alone(folder, nlp):
    nlp = spacy.load(folder)
    before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    teacher = Teacher(folder)
    teacher.predict(docs(nlp), rules_for(nlp, teacher.components))
    assert (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_teacher_knows_its_components_before_it_is_loaded(folder, nlp):
    teacher = Teacher(folder)
    assert teacher._nlp is None and teacher.language == "xx"
    ours, theirs = (
        [(rule.component, rule.kind.place, rule.teacher, rule.theirs.place, rule.labels, rule.taught) for rule in rules]
        for rules in (rules_for(nlp, teacher.components), rules_for(nlp, nlp))
    )
    assert ours == theirs


def test_teacher_runs_no_component_in_vain(nlp):
    assert _needed(nlp, rules_for(nlp, nlp, ["tagger"])) == ["tok2vec", "tagger"]
    # A parser sets boundaries of sentences, as a senter does.
    nlp.add_pipe("senter")
    assert _needed(nlp, rules_for(nlp, nlp, ["senter"])) == ["tok2vec", "parser", "senter"]
    nlp.config["training"]["annotating_components"] = ["ner"]
    assert _needed(nlp, rules_for(nlp, nlp, ["tagger"])) == ["tok2vec", "tagger", "ner"]
    # They are all there afterwards.
    annotate(nlp, docs(nlp), rules_for(nlp, nlp, ["tagger"]))
    assert nlp.pipe_names == ["tok2vec", "tagger", "parser", "ner", "senter"]


def test_digest_is_of_weights_and_config(folder, tmp_path):
    nlp = spacy.load(folder)
    nlp.meta["name"] = "another"
    nlp.to_disk(tmp_path / "same")
    assert Teacher(tmp_path / "same").digest == Teacher(folder).digest
    nlp.get_pipe("tagger").model.get_ref("softmax").get_param("b")[0] += 1
    nlp.to_disk(tmp_path / "other")
    assert Teacher(tmp_path / "other").digest != Teacher(folder).digest


def test_digest_of_a_text_is_of_its_tokens(nlp):
    texts = [Doc(nlp.vocab, words=words, spaces=spaces) for words, spaces in
             ((["a", "b"], [True, False]), (["a", "b"], [False, False]), (["ab"], [False]))]  # fmt: skip
    assert len({digest_of(doc) for doc in texts}) == 3
    texts[0][0].tag_ = "X"
    assert digest_of(texts[0]) == digest_of(Doc(nlp.vocab, words=["a", "b"], spaces=[True, False]))


def test_teacher_is_found_by_the_name_of_its_package(folder, tmp_path, monkeypatch):
    """As `spacy package` makes it: the pipeline is in a folder beside the code."""
    shutil.copytree(folder, tmp_path / "xx_of_test" / "xx_of_test-1.0")
    (tmp_path / "xx_of_test" / "__init__.py").touch()
    (about := tmp_path / "xx_of_test-1.0.dist-info").mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: xx_of_test\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert Teacher("xx_of_test").digest == Teacher(folder).digest


def test_teacher_refuses_what_is_no_pipeline(tmp_path, folder):
    with pytest.raises(ConfigError, match=r"Can't use 'teacher': expected the folder .* found 'gone': nothing there"):
        Teacher("gone")
    (tmp_path / "config.cfg").write_text((folder / "config.cfg").read_text())
    with pytest.raises(ConfigError, match=r"meta.json can't be read"):
        Teacher(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({"lang": "xx", "labels": {}}))
    with pytest.raises(ConfigError, match="Can't load 'teacher'"):
        _ = Teacher(tmp_path).nlp
