"""The definitions in configs/controllers/, and rules by name: each fires in a small training that calls for it, and
stays quiet in one that does not.
"""

from itertools import count

import pytest
import srsly
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import registry

from thinc_torchopt.addons.controller.controller import TrainerController
from thinc_torchopt.core.errors import RollbackWarning
from thinc_torchopt.loop.checkpoint_folder import steps_of

from ...conftest import CONFIGS
from ...models import toy_examples, toy_pipeline
from ...spacy_cli import spacy_cli
from .kit import config_for, firings, run

FOLDER = CONFIGS / "controllers"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
RISING = [i / 50 for i in range(50)]  # a score that gets better all the time


@pytest.fixture
def train(corpus, tmp_path, monkeypatch):
    """Train a tagger with a shipped definition.

    name (str | dict): Of the file; or the block of a rule by name.
    changes (dict): In the text of the definition.
    scores (list): Of the evaluations, after every fourth step; the last is repeated.
    bad (Collection[int]): Steps whose examples have wrong tags.
    RETURNS: Steps and actions of what fired; and what loggers got at each step.
    """
    monkeypatch.chdir(tmp_path)
    folders = (tmp_path / str(i) for i in count())

    def train(name, *, steps=24, changes=None, scores=None, rate=0.01, bad=(), checkpoint=False):
        text = "" if isinstance(name, dict) else (FOLDER / f"{name}.yaml").read_text()
        for old, new in (changes or {}).items():
            assert text.count(old) > 1  # the comment names it too
            text = text.replace(old, new)
        given = iter(scores or ())
        latest = [0.0]

        @registry.scorers("test-shipped.Scores.v1")
        def scorer():
            def score(examples, **kwargs):
                latest[0] = next(given, latest[0])
                return {"tag_acc": latest[0]}

            return score

        @registry.readers("test-shipped.Corpus.v1")
        def corpus_reader():
            def read(nlp):
                for i in count():  # seven a batch
                    example = examples[i % len(examples)]
                    yield wrong(example) if i // 7 in bad else example

            examples = toy_examples(toy_pipeline(["tagger"]), 90)
            return read

        rules = srsly.yaml_loads(text) if text else None
        config = config_for(next(folders), corpus, rules, steps=steps, checkpoint=checkpoint)
        if rules is None:
            blocks = {"@misc": "thinc-torchopt.TrainerController.v1", "rules": {"rule": name}}
            config["training"]["optimizer"]["controller"] = blocks
        config["training"]["optimizer"]["learn_rate"] = rate
        config["corpora"]["train"] = {"@readers": "test-shipped.Corpus.v1"}
        config["training"]["batcher"] = {"@batchers": "spacy.batch_by_sequence.v1", "size": 7}
        config["training"]["max_epochs"] = -1
        if scores is not None:
            config["components"]["tagger"]["scorer"] = {"@scorers": "test-shipped.Scores.v1"}
            config["training"]["score_weights"] = {"tag_acc": 1.0}
        _, infos, _ = run(config)
        return [(step, action) for step, _, action in firings(infos)], infos

    return train


def wrong(example):
    """Each word has a tag that some other word should have."""
    words, tags = [token.text for token in example.reference], [token.tag_ for token in example.reference]
    return Example.from_dict(Doc(example.reference.vocab, words=words), {"tags": tags[1:] + tags[:1]})


STOP = "should_training_stop"


def by_name(name, **settings):
    return {"@controller_rules": f"thinc-torchopt.{name}.v1", **settings}


@pytest.mark.parametrize("name", NAMES)
def test_shipped_definition_is_documented_and_passes_the_check(name):
    path = FOLDER / f"{name}.yaml"
    assert f"{path.name} can be used" in "".join(spacy_cli("torchopt", "controller", path).stdout.split("\n"))
    assert path.read_text().startswith("# ") and "\n#\n# Change " in path.read_text()
    assert f"](../configs/controllers/{name}.yaml)" in (CONFIGS.parent / "docs" / "controller.md").read_text()
    assert name in [spec.name for spec in TrainerController(path).definition.controllers]


def test_shipped_stop_on_loss(train):
    fired, infos = train("stop-on-loss")
    assert fired == [(max(infos), STOP)] and 4 <= max(infos) < 24
    fired, infos = train("stop-on-loss", rate=1e-6)
    assert fired == [] and max(infos) == 24


def test_shipped_stop_when_loss_rises(train):
    """The data is bad from step 45 on; or only for a while."""
    fired, infos = train("stop-when-loss-rises", steps=90, bad=range(45, 90))
    assert fired == [(max(infos), STOP)] and 54 <= max(infos) < 60
    fired, infos = train("stop-when-loss-rises", steps=60, bad=())
    assert fired == [] and max(infos) == 60


def test_shipped_stop_early(train):
    """The best score is that of the second evaluation, after step 4; 0.0005 more is not better."""
    rule = by_name("stop_early", min_delta=0.001)
    fired, infos = train(rule, steps=40, scores=[0.5, 0.6, 0.6005, 0.5, 0.6, 0.4, 0.6])
    assert fired == [(24, STOP)] and max(infos) == 24
    fired, infos = train(rule, steps=40, scores=[0.5, 0.6, 0.6, 0.5, 0.6, 0.4, 0.61, 0.6, 0.6, 0.6, 0.6])
    assert fired == [] and max(infos) == 40


def test_shipped_freeze_component(train):
    """What is frozen is not updated: its gradients and rates are gone."""
    fired, infos = train("freeze-component", steps=32, scores=[0.1, 0.5, 0.5, 0.4, 0.5, 0.5, 0.5])
    assert fired == [(24, "should_freeze")] and max(infos) == 32
    rates = [info["learn_rates"]["default"] for info in infos.values()]
    assert rates[24] == 0.01 and rates[26:] == [0.0] * 7
    fired, infos = train("freeze-component", steps=32, scores=RISING)
    assert fired == []


def test_shipped_save_at_score(train, tmp_path):
    """The evaluation after step 4 is not good enough, and that after step 12 not the best."""

    def saved(run):
        return [int(path.name[5:]) for path in steps_of(tmp_path / run / "state")]

    fired, _ = train("save-at-score", steps=13, scores=[0.5, 0.9, 0.95, 0.94], checkpoint=True)
    assert fired == [(8, "should_save")] and 8 in saved("0")
    fired, _ = train("save-at-score", steps=8, scores=[0.5, 0.9], checkpoint=True)
    assert fired == []


def test_shipped_log_large_gradients(train, caplog):
    with caplog.at_level("INFO", "spacy.torchopt"):
        fired, _ = train("log-large-gradients", steps=8, changes={"100": "1e-3"})
        assert fired == [(step, "should_log") for step in range(9) for _ in range(2)]
        [message] = [text for text in caplog.messages if text.startswith("step 3: loss per word")]
        assert message.endswith("norms {'tagger': " + message.split("'tagger': ")[1]) and "'default': 0.01" in message
        caplog.clear()
        fired, _ = train("log-large-gradients", steps=8)
        assert fired == [] and "loss per word" not in caplog.text


def test_shipped_cut_on_plateau(train):
    """Each time that three evaluations were no better."""
    fired, infos = train(by_name("cut_on_plateau"), steps=36, scores=[0.5, 0.6, 0.6])
    assert fired == [(16, "should_cut"), (28, "should_cut")]
    rates = [infos[step]["learn_rates"]["default"] for step in (16, 17, 28, 29)]
    assert rates == [0.01, 0.005, 0.005, 0.0025]
    fired, infos = train(by_name("cut_on_plateau"), steps=36, scores=[0.5, 0.6, 0.6, 0.6, 0.7, 0.6, 0.6, 0.8, 0.8])
    assert fired == [] and infos[36]["learn_rates"]["default"] == 0.01


def test_shipped_unfreeze_when(train):
    """Frozen before the first step; the gradient norm shows what is trained."""
    rule = by_name("unfreeze_when", params=["*tok2vec/*"], when="scores['score'] > 0.5")
    fired, infos = train(rule, steps=12, scores=[0.2, 0.5, 0.51])
    assert fired == [(-1, "should_freeze"), (8, "should_unfreeze")]
    fired, others = train(rule, steps=12, scores=[0.2, 0.5])
    assert fired == [(-1, "should_freeze")]
    norms = [[info["grad_norm"] for info in run.values()] for run in (infos, others)]
    assert norms[0][:9] == norms[1][:9] and norms[0][9] > norms[1][9]


def test_shipped_roll_back_on_spike(train):
    """Two bad batches, of which the second comes too soon after the first."""
    rule = by_name("roll_back_on_spike", times=5.0, size=20, at_least=0.5)
    with pytest.warns(RollbackWarning, match="params of step 20 after step 22"):
        fired, infos = train(rule, steps=40, bad={22, 35}, checkpoint=True)
    assert fired == [(22, "should_rollback"), (22, "should_cut")] and infos[32]["rollbacks"] == 1
    assert [infos[step]["learn_rates"]["default"] for step in (22, 23, 40)] == [0.01, 0.005, 0.005]
    fired, infos = train(rule, steps=32, checkpoint=True)
    assert fired == [] and infos[32]["rollbacks"] == 0
