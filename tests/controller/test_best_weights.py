"""Components that are put together from their best steps. The oracle: spaCy's own models of those steps, of an equal
training without rules.
"""

import hashlib
import json
from functools import cache

import pytest
import spacy
from thinc.api import fix_random_seed

from thinc_torchopt.errors import ControllerError
from thinc_torchopt.training.run import Run

from ..runs import TOK2VEC, Crash
from .test_training import config_for, definition, rule, run

SMALL = {**TOK2VEC, "width": 32, "depth": 1}
# The scores at 0, 4, 8 and 12. Both components together are best at 12, the tagger at 4, the recognizer at 8.
TAGS, ENTS = [0.1, 0.9, 0.5, 0.8], [0.2, 0.3, 0.9, 0.8]


def rules_for(event="on_train_begin", text="True", **arguments):
    operation = {"name": "best", "class": "BestWeightsControl", "arguments": arguments}
    return definition(rule("x", event, text, "best.should_put_together"), operations=[operation])


def prepared(folder, corpus, rules, *, steps=12, **more):
    """Two components that share nothing."""
    config = config_for(folder, corpus, rules, steps=steps, **more)
    ner = {"factory": "ner", "model": {"@architectures": "spacy.TransitionBasedParser.v2", "state_type": "ner"}}
    ner["model"] |= {"extra_state_tokens": False, "hidden_width": 16, "maxout_pieces": 2, "use_upper": True}
    ner["model"]["tok2vec"] = SMALL
    config["nlp"]["pipeline"] = ["tagger", "ner"]
    config["components"]["ner"] = ner
    config["training"]["score_weights"] = {"tag_acc": 0.5, "ents_f": 0.5}
    return config


@pytest.fixture
def scores(given):
    yield given
    given.clear()


@pytest.fixture(autouse=True, scope="module")
def given():
    """What evaluations give, by their step; at the end what a test says, for the recognizer."""
    last, monkeypatch = [], pytest.MonkeyPatch()
    evaluate = Run.evaluate

    def evaluate_with(self):
        self._evaluate = lambda: give(self)
        return evaluate(self)

    def give(self):
        if self.optimizer._is_over:
            found = {"tag_acc": 0.95, "ents_f": last[0] if last else 0.95}
        else:
            found = {"tag_acc": TAGS[self.progress.step // 4], "ents_f": ENTS[self.progress.step // 4]}
        return sum(found.values()) / 2, found

    finish = Run.finish

    def finish_with(self):
        self._evaluate = lambda: give(self)
        yield from finish(self)

    monkeypatch.setattr(Run, "evaluate", evaluate_with)
    monkeypatch.setattr(Run, "finish", finish_with)
    yield last
    monkeypatch.undo()


def weights(model, name):
    return hashlib.sha256((model / name / "model").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def models(corpus, given, tmp_path_factory):
    """What spaCy saves after some steps of an equal training. With checkpoints the order of the data is another."""

    @cache
    def train(steps, *, averages=False, checkpoint=False):
        fix_random_seed(0)
        folder = tmp_path_factory.mktemp("plain")
        run(prepared(folder, corpus, None, steps=steps, use_averages=averages, checkpoint=checkpoint), folder / "out")
        return {name: weights(folder / "out" / "model-last", name) for name in ("tagger", "ner")}

    return train


@pytest.mark.parametrize("averages", [False, True])
@pytest.mark.parametrize("event", ["on_train_begin", "on_evaluate", "on_train_end"])
def test_best_weights_are_put_together(event, averages, models, corpus, tmp_path):
    """Each component is as spaCy saved it after its best step; as `model-last`, and as `model-best` as it is better."""
    config = prepared(tmp_path, corpus, rules_for(event), use_averages=averages)
    nlp, infos, _ = run(config, tmp_path / "out")
    for model in ("model-last", "model-best"):
        found = {name: weights(tmp_path / "out" / model, name) for name in ("tagger", "ner")}
        assert found == {"tagger": models(4, averages=averages)["tagger"], "ner": models(8, averages=averages)["ner"]}
        meta = json.loads((tmp_path / "out" / model / "meta.json").read_text())
        assert meta["performance"]["tag_acc"] == meta["performance"]["ents_f"] == 0.95
    assert len({models(steps, averages=averages)[name] for steps in (4, 8, 12) for name in ("tagger", "ner")}) == 6
    assert infos[12]["put_together"] == {"tagger": 4, "ner": 8} and infos[12]["score"] == pytest.approx(0.95)
    doc = spacy.load(tmp_path / "out" / "model-last")("Anna likes red London .")
    assert [token.tag_ for token in nlp("Anna likes red London .")] == [token.tag_ for token in doc]


def test_best_weights_that_are_worse_are_not_the_best_model(scores, models, corpus, tmp_path, caplog):
    scores.append(0.1)
    run(prepared(tmp_path, corpus, rules_for()), tmp_path / "out")
    found = {model: weights(tmp_path / "out" / model, "tagger") for model in ("model-last", "model-best")}
    assert found == {"model-last": models(4)["tagger"], "model-best": models(12)["tagger"]}
    assert "below the score of model-best, 0.8000" in caplog.text


@pytest.mark.parametrize("event", ["on_train_begin", "on_train_end"])
def test_best_weights_survive_a_kill(event, models, corpus, tmp_path):
    """Stopped in between; and run again when all is done, which removes and saves the models anew."""
    config = prepared(tmp_path, corpus, rules_for(event), checkpoint=True, use_averages=True)
    for stop in (3, 6, 10, None, None):
        _, infos, _ = run(config, tmp_path / "out", crash_at=stop)
    assert list(infos) == [12]  # it is finished
    for model in ("model-last", "model-best"):
        found = {name: weights(tmp_path / "out" / model, name) for name in ("tagger", "ner")}
        assert found == {
            "tagger": models(4, averages=True, checkpoint=True)["tagger"],
            "ner": models(8, averages=True, checkpoint=True)["ner"],
        }


def test_best_weights_of_a_run_that_was_killed_at_its_very_end(models, corpus, tmp_path, monkeypatch):
    """After its last checkpoint, before rules heard of the end: the next one tells them, and the one after does not."""

    def crash(self):
        raise Crash

    config = prepared(tmp_path, corpus, rules_for("on_train_end"), checkpoint=True)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "end", crash)
        run(config, tmp_path / "out", crash_at=99)
    steps_before = sorted((tmp_path / "state").iterdir())
    for _ in range(2):
        _, infos, _ = run(config, tmp_path / "out")
        assert infos[12]["put_together"] == {"tagger": 4, "ner": 8}
        assert weights(tmp_path / "out" / "model-last", "tagger") == models(4, checkpoint=True)["tagger"]
        assert sorted((tmp_path / "state").iterdir()) == steps_before
    told = []
    monkeypatch.setattr(Run, "end", told.append)
    run(config, tmp_path / "out")
    assert not told


def test_best_weights_without_an_evaluation(corpus, tmp_path):
    """There are none: the end is that of any training."""
    rules = rules_for()
    rules["controllers"].append(rule("stop", "on_train_begin", "True", "control.should_training_stop"))
    _, infos, _ = run(prepared(tmp_path, corpus, rules), tmp_path / "out")
    assert not infos and [path.name for path in (tmp_path / "out").iterdir()] == ["model-last"]


def test_best_weights_change_nothing_before_the_end(corpus, tmp_path, models):
    """A rule that never fires, and a training that goes on longer than before: on from where it was."""
    run(prepared(tmp_path / "a", corpus, rules_for("on_evaluate", 'state["step"] < -9')), tmp_path / "out")
    assert weights(tmp_path / "out" / "model-last", "ner") == models(12)["ner"]
    rules = rules_for("on_evaluate", 'state["step"] == 8')
    config = prepared(tmp_path / "b", corpus, rules, checkpoint=True)
    config["training"]["max_steps"] = 8
    run(config, tmp_path / "out2")
    assert weights(tmp_path / "out2" / "model-last", "tagger") == models(4, checkpoint=True)["tagger"]
    config["training"]["max_steps"] = 12
    run(config, tmp_path / "out2")
    assert weights(tmp_path / "out2" / "model-last", "ner") == models(8, checkpoint=True)["ner"]


def test_best_weights_of_some_components(models, corpus, tmp_path):
    """The others are as they are at the end, as evaluated; a score can be named."""
    rules = rules_for(components=["ner"], scores={"ner": "tag_acc"})
    run(prepared(tmp_path, corpus, rules, use_averages=True), tmp_path / "out")
    found = {name: weights(tmp_path / "out" / "model-last", name) for name in ("tagger", "ner")}
    assert found == {"tagger": models(12, averages=True)["tagger"], "ner": models(4, averages=True)["ner"]}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"components": ["parser"]}, r"'parser'.*: expected a component that is trained \(tagger, ner\)"),
        ({"components": ["ner"], "scores": {"tagger": "x"}}, "'tagger'.*expected a component that is trained"),
        ({"scores": {"ner": "ents_x"}}, "best weights of 'ner': expected one of ents_x among the scores, found ents_f"),
        ({"scores": {"ner": 3}}, "scores"),
        ({"components": []}, "components"),
    ],
)
def test_best_weights_need_components_with_a_score(arguments, says, corpus, tmp_path):
    with pytest.raises(ControllerError, match=says):
        run(prepared(tmp_path, corpus, rules_for(**arguments)))


def test_best_weights_refuse_shared_layers(corpus, tmp_path):
    """Before the first step, and before old models are removed."""
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 32, "upstream": "*"}
    config = prepared(tmp_path, corpus, rules_for())
    config["nlp"]["pipeline"] = ["tok2vec", "tagger", "ner"]
    config["components"]["tok2vec"] = {"factory": "tok2vec", "model": SMALL}
    config["components"]["ner"]["model"]["tok2vec"] = listener
    (tmp_path / "out" / "model-best").mkdir(parents=True)
    with pytest.raises(ControllerError, match=r"'ner'.*layers of its own, found one that listens"):
        run(config, tmp_path / "out")
    assert (tmp_path / "out" / "model-best").is_dir()
    config = prepared(tmp_path, corpus, rules_for())
    config["nlp"]["pipeline"] = ["tagger", "ner", "again"]
    config["components"]["again"] = config["components"]["tagger"]
    with pytest.raises(ControllerError, match=r"'tagger'.*scores of its own, found those of 'again' too"):
        run(config)
