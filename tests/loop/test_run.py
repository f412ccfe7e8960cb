"""Oracle: spaCy's own loop around the same optimizer."""

import math
import signal
from types import SimpleNamespace

import numpy
import pytest
import spacy.training.loop
import torch
from spacy.language import Language
from thinc.api import PyTorchWrapper, chain, fix_random_seed, with_array

import thinc_torchopt.loop.run
from thinc_torchopt import Attachment, TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.core.errors import ConfigError, LearnRateWarning, PipelineError, PipelineWarning
from thinc_torchopt.loop.checkpoint_settings import Checkpoint
from thinc_torchopt.loop.events import EVENT_TYPES
from thinc_torchopt.loop.processes import Alone
from thinc_torchopt.loop.progress import TimeSpent
from thinc_torchopt.loop.run import train_while_improving

from ..models import WIDTH, initialized, pipeline_params, ready_pipeline, same, toy_examples, toy_pipeline
from ..runs import SETTINGS, config_for, contents, loop_over, train

SPACYS = spacy.training.loop.train_while_improving.__wrapped__


COUNTS = ("skipped_updates", "grad_spikes", "rollbacks", "outside_writes")
OURS = ("run_id", "step_losses", "learn_rates", "learn_rate_default", "grad_norm", "since_evaluation", *COUNTS)


def blank_pipeline():
    nlp = toy_pipeline(["tagger", "ner", "textcat"], shared=False)
    nlp.rename_pipe("textcat", "frozen")
    return nlp


def run(loop, *, steps=8, exclude=(), **settings):
    """Train a small pipeline; return its params, what was yielded, and the calls of before_update."""
    nlp = blank_pipeline().from_bytes(initialized(blank_pipeline))
    examples = toy_examples(nlp)
    fix_random_seed(1)
    optimizer = TorchOptimizer(AdamW(), [0.01 / (i + 1) for i in range(50)], grad_clip=0.0, use_averages=True)
    calls = []
    options = SETTINGS | {"dropout": 0.2, "eval_frequency": 3, "exclude": list(exclude), **settings}
    options["before_update"] = lambda nlp, args: calls.append(args)
    data = ((i // 4, examples[(3 * i) % 12 :][:3]) for i in range(steps))

    def evaluate():
        scores = nlp.evaluate(examples)
        return scores["tag_acc"], scores

    yielded = []
    for batch, info, is_best in loop(nlp, optimizer, data, evaluate, **options):
        for time in ("seconds", "elapsed", "time_spent"):
            info.pop(time, None)
        ours = {key: info.pop(key, None) for key in OURS}
        if loop is not SPACYS:
            rate = 0.01 / (info["step"] + 1)
            assert ours["learn_rates"] == {"default": rate} and ours["learn_rate_default"] == rate
            assert ours["grad_norm"] == optimizer.grad_norm and ours["skipped_updates"] == 0
            assert not optimizer.params or optimizer.grad_norm > 0
        scores = {key: value for key, value in (info.pop("other_scores") or {}).items() if key != "speed"}
        losses = {key: float(value) for key, value in info.pop("losses").items()}
        yielded.append((len(batch), dict(info, checkpoints=list(info["checkpoints"])), scores, losses, is_best))
    return pipeline_params(nlp), yielded, calls, optimizer


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"accumulate_gradient": 2},
        {"patience": 2, "eval_frequency": 1},
        {"max_steps": 5},
        {"dropout": iter([0.5 / (i + 1) for i in range(99)])},
        {"annotating_components": ["tagger"]},
        {"exclude": ["frozen"]},
    ],
    ids=lambda settings: next(iter(settings), "defaults"),
)
def test_run_gives_what_spacys_gives(settings):
    """Same weights, scores, losses and stops. Without clipping, one step for all and one per component are the same."""
    if "dropout" in settings:
        runs = [run(loop, dropout=iter([0.5 / (i + 1) for i in range(99)])) for loop in (SPACYS, train_while_improving)]
    else:
        runs = [run(loop, **settings) for loop in (SPACYS, train_while_improving)]
    (theirs, their_yields, their_calls, _), (ours, our_yields, our_calls, _) = runs
    assert our_yields == their_yields and our_calls == their_calls
    assert all(same(ours[name], theirs[name]) for name in theirs)


BEGUN = ["time of data", "begin_step", "hook"]
STEP = [
    *("step_begin", "begin_update", "substep_end", "end_backward", "pre_optimizer_step", "end_update", "is_spoiled"),
    *("optimizer_step", "step_schedules", "step_end", "is_told_to_decay", "end_step", "time of updates"),
]
SAVED = ["save", "whole_state", "snapshot", "barrier", "time of saving"]


def test_run_asks_its_processes_in_order(tmp_path, monkeypatch):
    """Two steps, of which the first is evaluated: what all processes do at the same time, what a listener hears, and
    which time is counted.
    """
    told, settings, ranks, (nlp, examples) = [], [], Alone(), ready_pipeline(["tagger", "ner"])

    def noting(name, method):
        return lambda *args: [told.append(name), method(*args)][1]

    for name, method in vars(Alone).items():
        if callable(method):
            setattr(ranks, name, noting(name, getattr(ranks, name)))
    ranks.compare_settings = noting("compare_settings", settings.append)
    monkeypatch.setattr(thinc_torchopt.loop.run, "processes_of", lambda *_: ranks)
    monkeypatch.setattr(TimeSpent, "on", lambda self, phase: told.append(f"time of {phase}"))
    optimizer = TorchOptimizer(AdamW(), 0.01, checkpoint=Checkpoint(str(tmp_path), every=1))
    for name in ("initialize", "step_schedules"):
        setattr(optimizer, name, noting(name, getattr(optimizer, name)))
    listener = SimpleNamespace(name="test", events=[*EVENT_TYPES], on_event=lambda name, *_: told.append(name[3:]))
    options = {"max_steps": 1, "dropout": 0.2, "listeners": [listener], "exclude": ["frozen"]}
    hook = {"before_update": lambda nlp, args: told.append("hook")}
    for _ in loop_over(nlp, optimizer, [examples] * 3, **options, **hook):
        told.append("yield")
    assert told == [
        *("initialize", "compare_settings", "share_generators", "from_rank_0", "same_requests", "from_rank_0"),
        *("compare_data", "begin", "train_begin", "epoch_begin", *BEGUN, "initialize", *STEP),
        *("compare_params", "evaluate", "evaluate", "time of evaluations", "log", "yield", "stopped_by", *SAVED),
        *(*BEGUN, *STEP, "time of evaluations", "log", "yield", "compare_params", *SAVED),
        *("compare_params", "train_end", "close"),
    ]
    [found] = settings
    expected = {
        "training.patience": 0,
        "training.max_steps": 1,
        "training.dropout": 0.2,
        "training.eval_frequency": 100,
    }
    assert found.items() >= expected.items() and found["training.frozen_components"] == ["frozen"]
    assert found["listeners"] == ["SimpleNamespace"]


class Deciding(Attachment):
    def __init__(self, comes_first, decides_alike):
        self.comes_first, self.decides_alike = comes_first, decides_alike

    def join(self, run):
        return []


@pytest.mark.parametrize(
    ("attachments", "asked"),
    [
        ([], []),
        ([Deciding(True, True), Deciding(False, True)], []),
        ([Deciding(True, False)], ["same requests"]),
        ([Deciding(False, False)], ["same requests at last"]),
        ([Deciding(True, False), Deciding(False, False)], ["same requests", "same requests at last"]),
    ],
)
def test_run_gives_all_processes_the_requests_of_one(attachments, asked, monkeypatch):
    """Behind those who may not decide alike everywhere."""
    found, (nlp, _) = [], ready_pipeline(["tagger"])
    monkeypatch.setattr(Alone, "same_requests", lambda self, name: found.append(name))
    optimizer = TorchOptimizer(AdamW(), 0.01, attachments={f"n{i}": one for i, one in enumerate(attachments)})
    loop_over(nlp, optimizer, [])
    assert found == asked


def test_run_takes_over_for_our_optimizer_only():
    _, yielded, _, optimizer = run(spacy.training.loop.train_while_improving, steps=4)
    assert len(yielded) == 4 and set(optimizer.nr_update.values()) == {4}


def test_run_evaluates_the_averages():
    optimizer = TorchOptimizer(SGD(), 0.1, use_averages=True)
    nlp, examples = ready_pipeline(["tagger"], shared=False, sgd=optimizer)
    layer = nlp.get_pipe("tagger").model.get_ref("output_layer")
    seen = []

    def evaluate():
        seen.append((layer.get_param("W").copy(), optimizer.averages[layer.id, "W"].copy()))
        return 0.0, {}

    for _ in loop_over(nlp, optimizer, [examples] * 3, evaluate, eval_frequency=1):
        assert not numpy.array_equal(layer.get_param("W"), seen[-1][0])
    assert len(seen) == 3 and all(numpy.array_equal(used, average) for used, average in seen)


@pytest.mark.parametrize(
    ("scores", "best", "patience"),
    [
        ([math.nan, 0.5, 0.4, 0.6, math.nan], [False, True, False, True, False], 0),
        ([math.nan, 0.5, math.nan, math.nan, 0.9], [False, True, False, False], 2),  # two steps after the best one
        ([math.nan, math.nan, math.nan, 0.5], [False, False, False], 2),
    ],
    ids=["any-time", "patience", "all"],
)
def test_run_takes_no_nan_for_the_best_score(scores, best, patience):
    """In spaCy's loop a NaN that comes first stays the best for good: `max` can't compare it."""
    nlp, examples = ready_pipeline(["tagger"])
    left, batches = iter(scores), [examples[:2]] * len(scores)
    steps = loop_over(
        nlp, TorchOptimizer(AdamW(), 0.01), batches, lambda: (next(left), {}), eval_frequency=1, patience=patience
    )
    assert [is_best for _, _, is_best in steps] == best


def test_run_says_when_there_is_nothing_to_train():
    """And goes on, as spaCy does: its users run pipelines of rules through the loop, for the scores."""
    with pytest.warns(PipelineWarning, match="no trainable component, or all are frozen") as warned:
        _, yielded, *_ = run(train_while_improving, exclude=["tagger", "ner", "frozen"], steps=3)
    assert len(warned) == 1 and len(yielded) == 3


def test_run_calls_components_with_models_that_are_not_thincs():
    class Pipe:
        is_trainable, model, finished = True, object(), 0

        def __call__(self, doc):
            return doc

        def update(self, examples, **kwargs):
            return {}

        def finish_update(self, sgd):
            self.finished += 1

    nlp, examples = ready_pipeline(["tagger"], shared=False)
    Language.component("foreign", func=(pipe := Pipe()))
    nlp.add_pipe("foreign")
    list(loop_over(nlp, TorchOptimizer(AdamW(), 0.01), [examples] * 3, eval_frequency=1))
    assert pipe.finished == 3


def test_run_lets_the_first_hook_put_the_pipeline_in_order():
    nlp = toy_pipeline(["tagger"], shared=False)
    examples, optimizer = toy_examples(nlp), TorchOptimizer(AdamW(), 0.01)

    def before_update(nlp, args):
        if args["step"] == 0:
            nlp.initialize(lambda: examples)

    steps = loop_over(nlp, optimizer, [examples] * 2, eval_frequency=1, before_update=before_update)
    assert len(list(steps)) == 2 and set(optimizer.nr_update.values()) == {2}


# ---------------------------------------------------------------------- what is refused loses nothing


@pytest.mark.parametrize("checkpoint", [True, False], ids=["with checkpoint", "without"])
def test_run_refuses_before_spacy_removes_the_models_of_before(checkpoint, corpus, tmp_path):
    config = config_for(tmp_path, corpus, steps=3)
    if not checkpoint:
        del config["training"]["optimizer"]["checkpoint"]
    for name in ("model-best", "model-last"):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "meta.json").write_text(name)
    before = contents(tmp_path / "out")
    config["training"]["optimizer"]["param_groups"] = {"x": {"params": ["tagge/*"], "freeze": True}}
    with pytest.raises(ConfigError, match=r"'tagge/\*' .* matches none"):
        train(config, tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_run_refuses_a_component_without_params_before_it_begins():
    nlp = toy_pipeline(["tagger"], shared=False)
    with pytest.raises(PipelineError, match="Can't train component 'tagger': expected an initialized model"):
        loop_over(nlp, TorchOptimizer(AdamW()), [])


# ---------------------------------------------------------------------- nobody tells when a training is given up


def steps_of_a_training(folder=None):
    """A training that can be given up: its steps, and a torch param of which the optimizer knows that it is frozen."""
    nlp, examples = ready_pipeline(["tagger"], shared=False)
    module = torch.nn.Linear(WIDTH, WIDTH)
    tok2vec = nlp.get_pipe("tagger").model.get_ref("tok2vec")
    nlp.get_pipe("tagger").model.replace_node(tok2vec, chain(tok2vec, with_array(PyTorchWrapper(module))))
    checkpoint = None if folder is None else Checkpoint(str(folder))
    optimizer = TorchOptimizer(
        AdamW(), 0.01, param_groups={"x": {"params": ["*/bias"], "freeze": True}}, checkpoint=checkpoint
    )
    return loop_over(nlp, optimizer, [examples] * 9, max_steps=3), module


def test_run_that_is_given_up_leaves_nothing_changed(tmp_path):
    """Two of them, step by step in turn; and one goes on to its end, which the other must not notice."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    (first, one), (second, other) = steps_of_a_training(tmp_path / "a"), steps_of_a_training(tmp_path / "b")
    start = one.bias.detach().clone()
    for steps in (first, second, first, second):
        next(steps)
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
        assert one.bias.requires_grad and other.bias.requires_grad and not one._forward_hooks
        assert one.bias.grad is None and torch.equal(one.bias, start)
    assert len(list(first)) == 2
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    next(second)
    assert other.weight.requires_grad and other.bias.requires_grad


def test_run_shows_what_others_write_to_learning_rates():
    optimizer = TorchOptimizer(AdamW(), 0.01)
    nlp, examples = ready_pipeline(["tagger"], shared=False, sgd=optimizer)

    def before_update(nlp, args):
        if 2 <= args["step"] < 7:
            optimizer.torch_optimizers["algorithm"].param_groups[0]["lr"] = 5.0

    steps = loop_over(nlp, optimizer, [examples[:3]] * 9, eval_frequency=4, before_update=before_update)
    with pytest.warns(LearnRateWarning, match="expected 0.01, found 5"):
        infos = [info for _, info, _ in steps]
    assert [info["outside_writes"] for info in infos] == [0, 0, 1, 2, 3, 4, 5, 5, 5]
    assert infos[5]["since_evaluation"]["outside_writes"] == 1
    assert {info["learn_rates"]["default"] for info in infos} == {0.01}
    assert optimizer.rates.outside_writes == 5


def test_run_tells_the_writer_of_rates_the_epoch():
    *_, optimizer = run(train_while_improving, steps=9, accumulate_gradient=2)
    assert [snapshot.epoch for snapshot in optimizer.rates.history] == [0, 0, 0, 0, 1, 1, 1, 1, 2]
