"""A trial, against `spacy.training.loop.train` of the same config; and what is made of a config for it."""

import math
from time import process_time

import pytest
import spacy
from confection import Config
from hypothesis import example, given
from hypothesis import strategies as st
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus
from spacy.training.initialize import init_nlp
from spacy.training.loop import train

from thinc_torchopt.addons.trials.comparison import part_of
from thinc_torchopt.addons.trials.trial import run_trial, shorten
from thinc_torchopt.core.errors import ConfigError

from ...configs import smaller
from ...conftest import CONFIGS
from ...runs import contents
from ...spacy_cli import toy_corpus

RECORDED = []


@spacy.registry.loggers("test_trials.Record.v1")
def record():
    def setup(nlp, stdout=None, stderr=None):
        return lambda info: RECORDED.append((info["step"], info["score"])) if info else None, lambda: None

    return setup


@spacy.registry.loggers("test_trials.Refuse.v1")
def refuse():
    raise AssertionError("a trial has no logger")


THINC = {"@optimizers": "Adam.v1", "learn_rate": 0.001, "use_averages": True}


def load(folder, name="cnn.cfg", **training):
    paths = {f"paths.{part}": str(path) for part, path in toy_corpus(folder).items() if part != "raw_text"}
    config = Config().from_str(smaller((CONFIGS / name).read_text()), overrides=paths, interpolate=False)
    config["training"]["batcher"] |= {"size": 60}
    config["training"] |= training
    return config


def dev_docs(config):
    return list(DocBin().from_disk(config.interpolate()["paths"]["dev"]).get_docs(spacy.blank("en").vocab))


def spacys_config(short, docs, folder):
    """Of a training that records its scores, on some of the development data."""
    DocBin(docs=docs).to_disk(folder / "half.spacy")
    RECORDED.clear()
    config = short.copy()
    config["corpora"]["dev"]["path"] = str(folder / "half.spacy")
    config["training"] |= {"seed": 3, "logger": {"@loggers": "test_trials.Record.v1"}}
    return config


# ---------------------------------------------------------------------- a trial


@pytest.mark.filterwarnings("ignore::thinc_torchopt.errors.PipelineWarning")  # half of a toy corpus lacks labels
@pytest.mark.parametrize("optimizer", [None, THINC], ids=["ours", "thinc's"])
def test_trial_is_what_spacy_trains(tmp_path, optimizer):
    """The oracle is `spacy train` with one half of the development data, and again with the other."""
    config = load(tmp_path, **({} if optimizer is None else {"optimizer": optimizer}))
    short, _ = shorten(config, 10)
    seen = []
    found = run_trial(short, seed=3, draws=4, on_evaluation=lambda *args: seen.append(args))

    curves = []
    for begin in (0, 1):
        train(init_nlp(spacys_config(short, dev_docs(short)[begin::2], tmp_path)), None)
        curves.append(list(RECORDED))
    choosing, judging = curves
    assert found.evaluations == seen == choosing and choosing != judging
    assert [step for step, _ in seen] == [0, 2, 4, 6, 8, 10]
    assert found.chosen == max(score for _, score in seen) > 0 and found.problem is None
    assert found.kept == dict(judging)[max(step for step, score in seen if score == found.chosen)]
    assert found.last == judging[-1][1] and len(found.resampled) == 4
    assert found.words > 0 and 0.0 < found.seconds < process_time()


@pytest.mark.filterwarnings("ignore::thinc_torchopt.errors.PipelineWarning")  # half of a toy corpus lacks labels
def test_trial_on_a_part_is_what_spacy_trains_on_its_file(tmp_path):
    """The oracle is a pipeline that is initialized with all texts, and `spacy train` with a file of the part."""
    short, _ = shorten(load(tmp_path), 10)
    before = short.copy()
    found = run_trial(short, seed=3, share=0.25)
    assert short == before
    nlp = init_nlp(spacys_config(short, dev_docs(short)[::2], tmp_path))
    examples = list(Corpus(short["paths"]["train"])(nlp))
    part = part_of(examples, 0.25, 3)
    assert len(part) == len(examples) // 4
    DocBin(docs=[example.reference for example in part]).to_disk(tmp_path / "part.spacy")
    nlp.config["corpora"]["train"]["path"] = str(tmp_path / "part.spacy")
    train(nlp, None)
    assert found.evaluations == RECORDED
    assert run_trial(short, seed=3, share=1.0).evaluations == run_trial(short, seed=3).evaluations != RECORDED


def test_trial_needs_texts_to_score(tmp_path):
    config = load(tmp_path)
    DocBin().to_disk(config.interpolate()["paths"]["dev"])
    with pytest.raises(ConfigError, match=r"expected texts in \[corpora.dev\], found none"):
        run_trial(shorten(config, 10)[0], seed=0)


def test_trial_keeps_the_last_of_equals(tmp_path):
    """As `spacy train` does. Here all evaluations that choose are 0, as that text has no annotations."""
    config = load(tmp_path)
    text = dev_docs(config)[0]
    DocBin(docs=[Doc(text.vocab, words=["bare"]), text]).to_disk(config.interpolate()["paths"]["dev"])
    found = run_trial(shorten(config, 10)[0], seed=0)
    assert len({score for _, score in found.evaluations}) == 1
    assert found.kept == found.last > 0


def test_trial_is_evaluated_at_its_end(tmp_path):
    """Also where that is no multiple of `eval_frequency`: with the averages, as the others."""
    config = load(tmp_path, eval_frequency=4, max_epochs=1)  # a trial ends by its steps alone
    short, _ = shorten(config, 6)
    short["training"]["eval_frequency"] = 4
    found = run_trial(short, seed=0)
    assert [step for step, _ in found.evaluations] == [0, 4, 6] and not found.resampled
    every, _ = shorten(config, 6)
    every["training"]["eval_frequency"] = 2
    assert run_trial(every, seed=0).evaluations[-1] == found.evaluations[-1]


def test_trial_without_a_score_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("thinc_torchopt.addons.trials.trial.score", lambda *args: math.nan)
    found = run_trial(shorten(load(tmp_path), 10)[0], seed=0)
    assert found.problem == "the loss, the gradients or the score were not finite at step 0"
    nothing = (found.evaluations, found.kept, found.last, found.texts, found.resampled, found.words)
    assert nothing == ([], 0.0, 0.0, 0, [], 0) and found.skipped_updates == 0


@pytest.mark.parametrize("optimizer", ["Adam.v1", "thinc-torchopt.SGD.v1"])
def test_trial_that_diverges_says_so(tmp_path, optimizer):
    config = load(tmp_path, optimizer={"@optimizers": optimizer, "learn_rate": 1e30, "grad_clip": 0.0})
    found = run_trial(shorten(config, 40)[0], seed=0)
    assert "not finite at step" in found.problem
    assert bool(found.skipped_updates) is (optimizer != "Adam.v1")  # which skips none


def test_trial_ends_with_what_is_raised_at_an_evaluation(tmp_path):
    def stop(step, score):
        if step >= 2:
            raise ValueError("enough")

    steps = []
    with pytest.raises(ValueError, match="enough"):
        run_trial(shorten(load(tmp_path), 10)[0], seed=0, on_evaluation=stop, on_step=lambda: steps.append(1))
    assert len(steps) == 2


def test_trial_writes_nothing(tmp_path, monkeypatch):
    refused = {"logger": {"@loggers": "test_trials.Refuse.v1"}, "before_to_disk": {"@callbacks": "of nobody"}}
    config = load(tmp_path, "controller.cfg", **refused)
    block = config["training"]["optimizer"]
    assert "controller" in block
    block["checkpoint"] = {"@misc": "thinc-torchopt.Checkpoint.v1", "path": str(tmp_path / "state"), "every": 1}
    block["rollback_after"] = 2
    (folder := tmp_path / "empty").mkdir()
    monkeypatch.chdir(folder)
    before, given_ = contents(tmp_path), config.copy()
    short, notes = shorten(config, 4)
    assert run_trial(short, seed=0).problem is None
    assert contents(tmp_path) == before and not list(folder.iterdir())
    assert "checkpoint" in notes[0] and "controller" in notes[0] and "rollback_after" in notes[0]
    assert block["checkpoint"] and config == given_  # the config itself is as it was


# ---------------------------------------------------------------------- the config


def config_of(text, max_steps=2000):
    return Config().from_str(f"[training]\nmax_steps = {max_steps}\n\n[training.optimizer]\n{text}", interpolate=False)


LINEAR = '[training.optimizer.learn_rate]\n@schedules = "warmup_linear.v1"\ninitial_rate = 0.1\n'


@pytest.mark.parametrize(("total", "warmup", "new"), [("2000", 100, 10), ("${training.max_steps}", 3, 1)])
def test_trial_shortens_schedules_as_a_whole(total, warmup, new):
    short, notes = shorten(config_of(f"{LINEAR}warmup_steps = {warmup}\ntotal_steps = {total}\n"), 200)
    block = short["training"]["optimizer"]["learn_rate"]
    assert (block["warmup_steps"], block["total_steps"], block["initial_rate"]) == (new, 200, 0.1)
    assert f"[training.optimizer.learn_rate] warmup_steps {warmup} is {new}, total_steps 2,000 is 200" in notes[0]
    assert short["training"]["max_steps"] == 200


def test_trial_leaves_schedules_that_end_earlier():
    config = config_of(f"{LINEAR}warmup_steps = 30\ntotal_steps = 200\n")
    short, notes = shorten(config, 200)
    assert short["training"]["optimizer"] == config["training"]["optimizer"] and not notes


def test_trial_lets_frozen_params_join_in_proportion():
    group = '[training.optimizer.param_groups]\n\n[training.optimizer.param_groups.a]\nparams = ["a/*"]\n'
    for was, now in (500, 50), (4, 1):
        short, notes = shorten(config_of(f"{group}unfreeze_at = {was}\n"), 200)
        assert short["training"]["optimizer"]["param_groups"]["a"]["unfreeze_at"] == now
        assert f"param_groups.a] unfreeze_at {was} is {now}" in notes[0]
    assert not shorten(config_of(f"{group}unfreeze_at = 50\n", max_steps=200), 200)[1]
    assert not shorten(config_of(f"{group}other_steps = 500\n"), 200)[1]  # no schedule


def test_trial_tells_of_long_warm_up():
    inverse = LINEAR.replace("warmup_linear.v1", "thinc-torchopt.inverse_sqrt.v1")
    _, notes = shorten(config_of(f"{inverse}warmup_steps = 101\n"), 200)
    assert len(notes) == 1 and "warm-up: training.optimizer.learn_rate." in notes[0]
    assert not shorten(config_of(f"{inverse}warmup_steps = 100\n"), 200)[1]


def test_trial_shortens_schedules_that_end_with_the_training():
    """Those whose `total_steps` may be left out."""

    @spacy.registry.schedules("test_trials.to_the_end.v1")
    def to_the_end(warmup_steps: int, total_steps: int | None = None):
        return iter([])

    text = '[training.optimizer.learn_rate]\n@schedules = "test_trials.to_the_end.v1"\nwarmup_steps = 100\n'
    short, _ = shorten(config_of(text), 200)
    assert short["training"]["optimizer"]["learn_rate"]["warmup_steps"] == 10
    assert "total_steps" not in short["training"]["optimizer"]["learn_rate"]
    short, _ = shorten(config_of(f"{text}decay_ratio = 1.0\n", max_steps=0), 50)  # leaves no room
    assert short["training"]["optimizer"]["learn_rate"]["warmup_steps"] == 50


@given(
    warmup=st.integers(0, 3000),
    decay=st.integers(1, 3000),
    steps=st.integers(1, 300),
    budget=st.sampled_from([0.0, 0.3, 1.0]),
)
@example(warmup=1, decay=1, steps=2, budget=1.0)
def test_trial_schedules_fit_without_a_known_end(warmup, decay, steps, budget):
    """Where `max_epochs` or a budget ends the training."""
    schedule = f'@schedules = "thinc-torchopt.warmup_stable_decay.v1"\ninitial_rate = 0.1\nwarmup_steps = {warmup}\n'
    text = f"[training.optimizer.learn_rate]\n{schedule}decay_steps = {decay}\n"
    if budget:
        text += 'decay_begins = "when told"\n\n[training.optimizer.budget]\n@misc = "thinc-torchopt.Budget.v1"\n'
        text += f'limit = "20m"\ndecay_ratio = {budget}\n'
    block = shorten(config_of(text, max_steps=0), steps)[0]["training"]["optimizer"]
    assert "budget" not in block
    schedule = spacy.registry.resolve({"schedule": block["learn_rate"]})["schedule"]
    schedule.set_total_steps(steps + 1)
    values = [next(schedule) for _ in range(steps + 2)]
    assert values[-1] == 0.0 and max(values[:-1]) > 0.0


def test_trial_takes_a_budget_for_its_steps(tmp_path):
    config = load(tmp_path, "budget.cfg")
    short, notes = shorten(config, 6)
    assert run_trial(short, seed=0).problem is None and "budget" in notes[0]
    assert short["training"]["optimizer"]["learn_rate"]["decay_ratio"] == 0.2


def test_trial_shortens_averages():
    text = '[training.optimizer.averages]\n@misc = "thinc-torchopt.{}.v1"\n{}\n'
    for kind, given_, expected in [
        ("EMA", "decay = 0.99", {"decay": 0.933333}),
        ("EMA", "decay = 0.9\nstart_step = 500", {"decay": 0.5, "start_step": 75}),
        ("SWA", "start_step = 1500", {"start_step": 225}),
    ]:
        short, notes = shorten(config_of(text.format(kind, given_)), 300)
        block = short["training"]["optimizer"]["averages"]
        assert {key: block[key] for key in expected} == expected
        assert all(f"{line.replace(' = ', ' ')} is " in notes[0].replace(",", "") for line in given_.splitlines())
        assert not shorten(config_of(text.format(kind, given_), max_steps=300), 300)[1]
    for decay in (0.5, 1.0):
        assert not shorten(config_of(text.format("EMA", f"decay = {decay}")), 300)[1]


@given(total=st.integers(1, 50_000), part=st.floats(0, 1), steps=st.integers(1, 3000))
def test_trial_schedules_can_be_built_and_end_in_time(total, part, steps):
    text = LINEAR.replace("warmup_linear", "thinc-torchopt.warmup_linear")
    config = config_of(f"{text}warmup_steps = {math.floor(part * total)}\ntotal_steps = {total}\n")
    block = shorten(config, steps)[0]["training"]["optimizer"]["learn_rate"]
    schedule = spacy.registry.resolve({"schedule": block})["schedule"]
    values = [next(schedule) for _ in range(steps + 1)]
    assert block["total_steps"] <= steps and values[-1] == 0.0 and max(values[:-1]) > 0.0


def test_trial_evaluates_five_times_at_least():
    for given_, steps, expected in ((None, 1000, 200), (50, 1000, 50), (200, 201, 41), (200, 3, 1)):
        config = config_of("learn_rate = 0.1\n")
        config["training"] |= {} if given_ is None else {"eval_frequency": given_}
        assert shorten(config, steps)[0]["training"]["eval_frequency"] == expected
