"""A learning curve: whether more texts help, in a sentence that follows from `try`'s own verdict."""

import re

import pytest
import spacy
from confection import Config
from hypothesis import given
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin
from spacy.training import Example

from thinc_torchopt.addons.preview import draw_learning_curve
from thinc_torchopt.addons.preview.comparison import Candidate
from thinc_torchopt.addons.preview.learning_curve import LearningCurve, steps_of_part
from thinc_torchopt.addons.trials.comparison import compare, size_of_part
from thinc_torchopt.addons.trials.trial import TrialResult
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.tables import as_text

from ...configs import smaller
from ...conftest import CONFIGS
from ...spacy_cli import toy_corpus

SHARES = {"25%": 0.25, "50%": 0.5, "75%": 0.75, "100%": 1.0}
FRUITS = ["яблоко", "груша", "слива"]


def curve(**scores):
    """As after trials. scores: Of each seed, by part: `of_75`."""
    tried = {name: Candidate("", Config({"training": {"max_steps": 4}}), share) for name, share in SHARES.items()}
    for name, found in scores.items():
        trials = {seed: TrialResult(kept=score, texts=50, resampled=[score, score]) for seed, score in enumerate(found)}
        tried[name.replace("of_", "") + "%"].trials = trials
    return LearningCurve(tried, dict(zip(tried, (2, 4, 6, 8))), [], False)


@pytest.mark.parametrize(
    ("most", "all_", "told"),
    [
        # Differences of 1, 1.2 and 1.4: a standard error of 0.2 / sqrt(3).
        ([0.80, 0.81, 0.82], [0.81, 0.822, 0.834], "the score rose by 1.2 ± 0.1 points: more texts will still help."),
        # -2, -1 and 0. The t of two degrees of freedom at 95% is 4.303: up to -1 + 4.303 * 0.577.
        ([0.80, 0.81, 0.82], [0.78, 0.80, 0.82], "-1.0 ± 0.6 points, no clear rise: .* by more than 1.5 points.$"),
        ([0.82, 0.82, 0.82], [0.80, 0.801, 0.799], "-2.0 ± 0.1 points, no clear rise: .* by more than 0.0 points.$"),
        ([0.80, 0.81], [0.80, 0.81], "Nothing can be said: 75% and 100% have the same scores."),
        ([0.0, 0.0], [0.0, 0.0], "Nothing can be said: all scores are 0."),
        ([0.7], [0.8], "100% has the best score, 0.8000. One seed can't tell a difference from chance."),
        ([], [0.8], "Nothing can be said: it takes trials on 75% and on 100% of the texts."),
    ],
    ids=["rise", "no rise", "fall", "same", "zero", "one seed", "stopped"],
)
def test_learning_curve_in_words(most, all_, told):
    found = curve(of_25=[0.5], of_75=most, of_100=all_)
    assert re.search(told, found.verdict), found.verdict
    assert found.as_dict()["verdict"] == found.verdict and "\n" not in found.verdict
    assert found.points == {texts: scores for texts, scores in ((2, [0.5]), (6, most), (8, all_)) if scores}


def test_learning_curve_tells_of_a_part_that_failed():
    found = curve(of_25=[0.5], of_75=[0.80, 0.81], of_100=[0.81, 0.83])
    found.tried["75%"].problem = "the loss was not finite"
    shown = as_text(found.print)
    assert "75% did not finish its trials: the loss was not finite" in shown and "0.8200  0.0141" in shown
    assert "Nothing can be said" in shown and found.as_dict()["rise"] is None


@given(st.lists(st.tuples(st.floats(0.1, 0.9), st.floats(0.1, 0.9)), min_size=2, max_size=6))
def test_learning_curve_rises_where_try_has_a_winner(pairs):
    most, all_ = zip(*pairs)
    found = compare({"most": dict(enumerate(most)), "all": dict(enumerate(all_))}, "most")
    assert ("will still help" in curve(of_75=most, of_100=all_).verdict) == (found.winner == "all")


@given(st.integers(4, 50_000), st.integers(4, 50_000))
def test_learning_curve_parts_have_as_many_steps_per_text(steps, texts):
    sizes = [size_of_part(share, texts) for share in SHARES.values()]
    assert sizes == sorted(set(sizes)) and sizes[-1] == texts
    for size in sizes:
        found = steps_of_part(steps, size, texts)
        assert found >= 1 and 2 * abs(found * texts - steps * size) <= texts  # to half a step
    assert steps_of_part(steps, texts, texts) == steps


# ---------------------------------------------------------------------- whole curves


@spacy.registry.readers("test_learning_curve.fruits.v1")
def fruits(texts: int):
    """Of a user. One fruit is in a single text."""

    def read(nlp):
        for i in range(texts):
            word = FRUITS[i % 2 if i else 2]
            doc = Doc(nlp.vocab, words=[f"{i}", word])
            doc[1].tag_, doc[0].tag_ = word.upper(), "NUM"
            yield Example(Doc(nlp.vocab, words=[f"{i}", word]), doc)

    return read


FRUITS_READER = {"@readers": "test_learning_curve.fruits.v1", "texts": 12}


@pytest.fixture
def config(tmp_path):
    toy_corpus(tmp_path)
    text = smaller((CONFIGS / "cnn.cfg").read_text()).replace(
        '["tok2vec", "tagger", "parser"]', '["tok2vec", "tagger"]'
    )
    config = Config().from_str(text.replace('lang = "en"', 'lang = "xx"'), interpolate=False)
    config["paths"] = {name: str(tmp_path / f"{name}.spacy") for name in ("train", "dev")}
    return config


def with_reader(config, **block):
    config["corpora"]["train"] = block
    config["corpora"]["dev"] = block
    return config


@pytest.mark.filterwarnings("ignore::thinc_torchopt.errors.PipelineWarning")  # a part lacks a label
def test_learning_curve_of_a_users_reader(config):
    """All parts know the label that most of them lack, so that they are scored alike."""
    with_reader(config, **FRUITS_READER)
    found = draw_learning_curve(config, steps=8, seeds=2)
    assert found.texts == {"25%": 3, "50%": 6, "75%": 9, "100%": 12}
    assert [part.config["training"]["max_steps"] for part in found.tried.values()] == [2, 4, 6, 8]
    assert [*found.points] == [3, 6, 9, 12] and {len(scores) for scores in found.points.values()} == {2}
    [told] = [note for note in found.notes if note.startswith("25%: in the part of at least one seed")]
    assert "'СЛИВА'" in told and not any(note.startswith("100%: in the part") for note in found.notes)
    again = draw_learning_curve(config, steps=8, seeds=2)
    assert again.points == found.points


def test_learning_curve_of_a_file_of_texts(tmp_path):
    """In epochs, as the config has its end."""
    rows = "".join(f"text number {i},{'AB'[i % 2]}\n" for i in range(8))
    (tmp_path / "тексты.csv").write_text(f"text,label\n{rows}", "utf8")
    nlp = spacy.blank("xx")
    nlp.add_pipe("textcat")
    config = nlp.config
    with_reader(config, **{"@readers": "thinc-torchopt.Texts.v1", "path": str(tmp_path / "тексты.csv")})
    config["training"] |= {"max_steps": 0, "max_epochs": 4, "patience": 0}
    config["training"]["batcher"] = {"@batchers": "spacy.batch_by_sequence.v1", "size": 1}
    found = draw_learning_curve(config, seeds=1)
    assert found.texts["100%"] == 8 and [*found.points] == [2, 4, 6, 8]
    # Four epochs of batches of one text, and steps are counted from 0.
    assert [part.config["training"]["max_steps"] for part in found.tried.values()] == [8, 16, 23, 31]


@pytest.mark.parametrize(
    ("training", "texts", "told"),
    [
        ({"max_epochs": -1}, 12, r"expected texts that are read into memory, found 'max_epochs = -1 in \[training\]'"),
        ({"max_steps": 0}, 12, "found 0. All parts get as many steps per text, so say where it ends on all texts"),
        # Before any text is read.
        ({"dropuot": 0.2}, 0, "no setting 'dropuot'"),
        ({}, 3, r"expected at least 4 texts in \[corpora.train\], one for each part, found 3"),
    ],
)
def test_learning_curve_needs_texts_and_an_end(config, training, texts, told):
    with_reader(config, **(FRUITS_READER | {"texts": texts}))
    config["training"] |= training
    with pytest.raises(ConfigError, match=told):
        draw_learning_curve(config, seeds=1)


def test_learning_curve_has_the_steps_of_the_config(config, tmp_path):
    DocBin().to_disk(tmp_path / "none.spacy")
    with pytest.raises(
        ConfigError, match=r"Can't draw a learning curve: expected texts in \[corpora.train\], found none"
    ):
        draw_learning_curve(config, {"paths.train": str(tmp_path / "none.spacy")})
    found = draw_learning_curve(config, {"training.max_steps": 20}, seeds=1)
    assert [part.config["training"]["max_steps"] for part in found.tried.values()] == [5, 10, 15, 20]
