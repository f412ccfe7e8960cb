"""Oracles: a spike detector that looks at the whole past each time, and trainings without the update in question."""

import copy
import json
import math
import warnings
from contextlib import nullcontext
from pathlib import Path

import numpy
import pytest
import srsly
import torch
from hypothesis import given
from hypothesis import strategies as st
from thinc.api import PyTorchShim, fix_random_seed

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.core.errors import (
    ConfigError,
    GradSpikeWarning,
    NonFiniteGradError,
    NonFiniteGradWarning,
    StateError,
)
from thinc_torchopt.core.params.param import Param
from thinc_torchopt.core.types import RollbackSettings
from thinc_torchopt.core.update.clipping import grad_norms, total_norm
from thinc_torchopt.core.update.guard import MIN_UPDATES, GradGuard
from thinc_torchopt.loop.checkpoint_settings import Checkpoint

from ...models import (
    backprop,
    grads_of,
    params_of,
    pipeline_params,
    ready_pipeline,
    same,
    thinc_model,
    toy_examples,
    toy_pipeline,
)
from ...peek import guard_in
from ...runs import loop_over

W = [Param("tagger/W", 0, None, torch.ones(1))]


def judge(guard, norm, params=W):
    """One update, as the optimizer does it."""
    verdict = guard.judge(params, [norm], norm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GradSpikeWarning)
        warnings.simplefilter("ignore", NonFiniteGradWarning)
        guard.report(verdict, "tagger")
    return verdict.factor


def weighted_mean(norms):
    """An exponential moving average by its definition: each norm counts 1% less than the one after it."""
    weights = [0.99 ** (len(norms) - 1 - i) for i in range(len(norms))]
    return math.fsum(w * norm for w, norm in zip(weights, norms)) / math.fsum(weights)


def naive_guard(norms, factor, policy):
    """By what each update is scaled, 0 for those that are skipped; how many spikes there are; how many of the last
    updates were bad.
    """
    past, scales, spikes, in_a_row = [], [], 0, 0
    for norm in norms:
        before = spikes
        scales.append(1.0 if math.isfinite(norm) else 0.0)
        if math.isfinite(norm) and norm > 0:
            if len(past) >= 20 and norm > factor * weighted_mean(past):
                spikes += 1
                limit = factor * weighted_mean(past)
                scales[-1] = limit / norm if policy == "clip" else 0.0
                norm = limit
            past.append(norm)
        in_a_row = in_a_row + 1 if spikes > before or not math.isfinite(norm) else 0
    return scales, spikes, in_a_row


def test_guard_leaves_it_to_max_nonfinite_what_is_not_finite():
    for max_nonfinite, scale in ((0, 1.0), (20, None)):
        guard = GradGuard(max_nonfinite, spike_factor=2.0, on_spike="clip")
        for _ in range(30):
            judge(guard, 1.0)
        assert judge(guard, math.inf) == scale and judge(guard, math.nan) == scale
        judge(guard, 2.0 * guard.averages["tagger/W"].norm)
        assert guard.spikes == 0 and judge(guard, 2.1) < 1.0


NORMS = st.one_of(st.floats(0.5, 2.0), st.floats(1e-3, 1e5), st.sampled_from([0.0, math.inf, math.nan]))


@given(
    norms=st.lists(NORMS, min_size=10, max_size=120),
    level=st.integers(0, 40),
    factor=st.floats(1.1, 20.0),
    policy=st.sampled_from(["skip", "clip"]),
)
def test_guard_equals_one_that_looks_at_the_whole_past(norms, level, factor, policy):
    norms = [1.0] * level + norms
    guard = GradGuard(1000, spike_factor=factor, on_spike=policy)
    scales = [judge(guard, norm) or 0.0 for norm in norms]
    expected, spikes, in_a_row = naive_guard(norms, factor, policy)
    assert scales == pytest.approx(expected, rel=1e-9)
    assert guard.spikes == spikes and guard.skipped == expected.count(0.0)
    assert guard.nonfinite == sum(not math.isfinite(norm) for norm in norms) and guard.bad_in_a_row == in_a_row


def test_guard_keeps_an_average_for_each_set_of_params():
    guard = GradGuard(20, spike_factor=3.0)
    tagger = [Param(name, name, None, torch.ones(1)) for name in ("tagger/W", "tagger/b")]
    ner = [Param(name, name, None, torch.ones(1)) for name in ("ner/W", "ner/b")]
    names = "tagger (2 params)", "ner (2 params)", "ner+tagger (4 params)", "ner/W"
    sets = dict(zip(names, [(tagger, 1.0), (ner, 100.0), (tagger + ner, 1e4), (ner[:1], 1e-4)]))
    for _ in range(50):
        for params, norm in sets.values():
            assert guard.judge(params, [norm] * len(params), norm).factor == 1.0
    assert {name: average.norm for name, average in guard.averages.items()} == {name: sets[name][1] for name in sets}
    # Order does not matter, the number of params does: after unfreezing, norms are others.
    assert guard.judge((ner + tagger)[::-1], [4e4] * 4, 4e4).factor is None
    assert guard.judge(tagger + ner[:1], [4e4] * 3, 4e4).factor == 1.0


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"spike_factor": 1.0}, "spike_factor"),
        ({"rollback_factor": 0.0}, "rollback_factor"),
        ({"rollback_factor": 1.1}, "rollback_factor"),
        ({"rollback_after": 1, "max_nonfinite": 1}, "rollback_after"),
        ({"rollback_after": 2, "max_nonfinite": 0}, "rollback_after"),
        ({"rollback_after": 2, "max_nonfinite": 0, "spike_factor": 2.0}, None),
    ],
)
def test_guard_settings_at_their_limits(settings, refused):
    settings = {"checkpoint": Checkpoint("x"), **settings}
    with pytest.raises(ConfigError, match=f"'{refused}'") if refused else nullcontext():
        assert TorchOptimizer(SGD(), **settings).rollback == RollbackSettings(2, 0.5, 3)


def test_guard_that_is_off_keeps_no_averages():
    guard = GradGuard(20)
    assert [judge(guard, 10.0**i) for i in range(30)] == [1.0] * 30 and guard.averages == {}
    assert guard.wants_norms and not GradGuard(0).wants_norms and GradGuard(0, spike_factor=2.0).wants_norms


# ---------------------------------------------------------------- in training


def train(optimizer, *, components=("tagger", "ner"), steps=26, spike_at=22, change=lambda optimizer, grads: None):
    """Train a small pipeline as spaCy's loop does; before one of the updates, `change` its gradients. False: make no
    update.
    """
    fix_random_seed(0)
    nlp, examples = ready_pipeline(components, sgd=optimizer)
    for step in range(steps):
        fix_random_seed(step)
        nlp.update(examples[step % 3 :][:4], drop=0.2, sgd=False)
        models = [proc.model for _, proc in nlp.pipeline]
        grads = [
            node.get_grad(name)
            for model in models
            for node in model.walk()
            for name in node.param_names
            if node.has_grad(name)
        ]
        if step == spike_at and change(optimizer, grads) is False:
            for grad in grads:
                grad[...] = 0
        else:
            with optimizer.joint_step():
                for model in models:
                    model.finish_update(optimizer)
        optimizer.step_schedules()
    return pipeline_params(nlp)


def multiply(optimizer, grads):
    for grad in grads:
        grad *= 1e4


def build(**guard):
    return TorchOptimizer(AdamW(), [0.01 / (i + 1) for i in range(50)], grad_clip=5.0, use_averages=True, **guard)


def assert_same_training(ours, theirs):
    """Params, averages, counts of updates and torch's own state: all bit-identical. Keys differ, in this one
    process.
    """
    (params, optimizer), (expected, oracle) = ours, theirs
    assert list(params) == list(expected) and all(same(params[name], expected[name]) for name in params)
    for a, b in zip(optimizer.averages.values(), oracle.averages.values(), strict=True):
        assert numpy.array_equal(a, b)
    assert list(optimizer.nr_update.values()) == list(oracle.nr_update.values())
    states = [list(found.torch_optimizers["algorithm"].state.values()) for found in (optimizer, oracle)]
    assert len(states[0]) == len(states[1]) > 10
    for a, b in zip(*states):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("clip_by", ["global", "param", "adaptive"])
def test_guard_skips_a_spike_as_if_the_batch_had_not_been(clip_by):
    """The step passes, for schedules. There was no update: none for the params, their averages, and the moments and
    counts of AdamW.
    """
    optimizer, oracle = build(spike_factor=10.0, clip_by=clip_by), build(clip_by=clip_by)
    with pytest.warns(GradSpikeWarning):
        params = train(optimizer, change=multiply)
    assert_same_training((params, optimizer), (train(oracle, change=lambda optimizer, grads: False), oracle))
    assert set(optimizer.nr_update.values()) == {25} and optimizer.skipped_updates == optimizer.grad_spikes == 1


@pytest.mark.parametrize(
    "fused, grad_clip, clip_by",
    [
        *((True, 0.0, "global"), (True, 0.5, "global"), (True, 0.5, "component")),
        *((True, 0.5, "value"), (True, 0.05, "adaptive"), (False, 0.0, "global"), (False, 0.5, "component")),
    ],
)
def test_guard_scales_a_spike_down(fused, grad_clip, clip_by):
    """As if its gradients had been smaller from the start."""

    def scale_down(optimizer, grads):
        norm = total_norm(grad_norms([torch.from_numpy(grad) for grad in grads]))
        for grad in grads:
            grad *= limit / norm

    settings = {"learn_rate": 0.01 if grad_clip else 1e-5, "grad_clip": grad_clip, "clip_by": clip_by}
    optimizer, oracle = (
        TorchOptimizer(SGD(fused=fused), **settings, spike_factor=3.0, on_spike="clip"),
        TorchOptimizer(SGD(fused=fused), **settings),
    )
    limits = []

    def multiply_and_note(optimizer, grads):
        multiply(optimizer, grads)
        limits.append(3.0 * next(iter(guard_in(optimizer).averages.values())).norm)

    with pytest.warns(GradSpikeWarning):
        params = train(optimizer, change=multiply_and_note, components=["tagger"], steps=23)
    [limit] = limits
    expected = train(oracle, change=scale_down, components=["tagger"], steps=23)
    for name in params:
        for a, b in zip(params[name], expected[name]):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)  # 1e4 and back again, in float32
    assert optimizer.grad_spikes == 1 and optimizer.skipped_updates == 0 and optimizer.grad_norm > 10 * limit


def loop(nlp, optimizer, batches, before_update=None):
    return [info for _, info, _ in loop_over(nlp, optimizer, batches, before_update=before_update)]


@pytest.mark.device
def test_guard_in_spacys_loop():
    """One set of params: the whole pipeline. A gradient piles up on one that somebody else left there."""
    nlp, examples = ready_pipeline(["tagger", "ner"])
    optimizer = build(spike_factor=10.0)

    def before_update(nlp, args):
        if args["step"] in (22, 24):
            node = nlp.get_pipe("tagger").model.get_ref("output_layer")
            node.inc_grad("W", numpy.full_like(node.get_param("W"), 1e6))

    batches = [examples[i % 3 :][:8] for i in range(27)]
    with pytest.warns(
        GradSpikeWarning, match=r"^Skipped an update of ner\+tagger\+tok2vec \(\d+ params\): .*'tagger/.*/W'"
    ) as warned:
        found = loop(nlp, optimizer, batches, before_update)
    infos = [(info["grad_spikes"], info["skipped_updates"], info["grad_norm"] > 1e5) for info in found]
    assert len([one for one in warned if one.category is GradSpikeWarning]) == 1
    assert infos == [(0, 0, False)] * 22 + [(1, 1, True), (1, 1, False), (2, 2, True)] + [(2, 2, False)] * 2
    assert set(optimizer.nr_update.values()) == {25}


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_guard_skips_updates_of_which_spacy_says_that_scores_are_nan():
    """The oracle: a run without the batches of steps 3 and 4, in which the tagger's scores are NaN and spaCy raises its
    error E940.
    """

    def pipeline():
        fix_random_seed(0)
        nlp = toy_pipeline(["ner", "tagger"])
        nlp.initialize(lambda: examples)
        return nlp

    def optimizer(**guard):
        return TorchOptimizer(
            AdamW(), 0.01, use_averages=True, **guard
        )  # one rate: schedules move on at steps that are skipped

    examples = toy_examples(toy_pipeline(["ner", "tagger"]))
    batches = [examples[i % 3 :][:8] for i in range(8)]
    expected = pipeline()
    # spaCy's entity recognizer draws from a random generator.
    loop(expected, optimizer(), batches[:3] + batches[5:], lambda nlp, args: fix_random_seed(args["step"]))
    kept = {}

    def spoil(nlp, args):
        fix_random_seed(args["step"] - 2 * (args["step"] > 4))
        node = nlp.get_pipe("tagger").model.get_ref("output_layer")
        if args["step"] == 3:
            kept["b"] = node.get_param("b").copy()
            node.get_param("b")[0] = math.nan
        elif args["step"] == 5:
            assert not any(
                grad.any() for grad in grads_of(nlp.get_pipe("ner").model)
            )  # those of the entity recognizer, which comes first
            node.get_param("b")[...] = kept["b"]

    nlp = pipeline()
    with pytest.warns(
        NonFiniteGradWarning, match=r"Skipped an update: \[E940\] Found NaN values in scores\. All params are unchanged"
    ):
        infos = loop(nlp, optimizer(), batches, spoil)
    for found in (infos, [info["since_evaluation"] for info in infos]):  # evaluated at step 0 only
        assert [info["skipped_updates"] for info in found] == [0, 0, 0, 1, 2, 2, 2, 2]
    assert [info["grad_norm"] is None for info in infos] == [i in (3, 4) for i in range(8)]
    trained = pipeline_params(nlp)
    assert all(same(trained[name], params) for name, params in pipeline_params(expected).items())
    with (
        pytest.warns(NonFiniteGradWarning),
        pytest.raises(NonFiniteGradError, match=r"2 updates in a row .*E940.*Lower learn_rate"),
    ):
        loop(pipeline(), optimizer(max_nonfinite=2), batches, spoil)
    with pytest.raises(ValueError, match="E940"):
        loop(pipeline(), optimizer(max_nonfinite=0), batches, spoil)
    # At the very first update, when no component has a gradient yet. spaCy's table wants a loss of each of them.
    nlp = toy_pipeline(["tagger", "ner"])
    nlp.initialize(lambda: examples)
    nlp.get_pipe("tagger").model.get_ref("output_layer").get_param("b")[0] = math.nan
    with pytest.warns(NonFiniteGradWarning):
        [info] = loop(nlp, optimizer(), batches[:1])
    assert info["skipped_updates"] == 1 and set(info["losses"]) == {"tok2vec", "tagger", "ner"}


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_guard_counts_bad_updates_in_a_row_of_what_is_updated_together():
    """Single bad batches far from each other don't add up: not in params either that are never updated, such as BERT's
    unused pooler.
    """
    nlp, examples = ready_pipeline(["tagger"])
    unused = torch.nn.Linear(2, 2)
    nlp.get_pipe("tok2vec").model.shims.append(PyTorchShim(unused))
    kept = nlp.get_pipe("tagger").model.get_ref("output_layer").get_param("b").copy()

    def before_update(nlp, args):
        bias = nlp.get_pipe("tagger").model.get_ref("output_layer").get_param("b")
        bias[...] = math.nan if args["step"] % 2 else kept

    optimizer = TorchOptimizer(AdamW(), 0.001, max_nonfinite=3)
    with pytest.warns(NonFiniteGradWarning, match="E940"):
        infos = loop(nlp, optimizer, [examples] * 12, before_update)
    assert infos[-1]["skipped_updates"] == 6
    # In a row they do.
    with pytest.raises(NonFiniteGradError, match="3 updates in a row"):
        loop(nlp, optimizer, [examples] * 3, lambda nlp, args: before_update(nlp, {"step": 1}))


def test_guard_counts_anew_after_a_rollback():
    """Else `max_nonfinite` would end a run that may go back again."""
    optimizer = TorchOptimizer(AdamW(), 0.001, max_nonfinite=3)
    nlp, examples = ready_pipeline(["tagger"], shared=False, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    saved = optimizer.state_dict()
    bias = nlp.get_pipe("tagger").model.get_ref("output_layer")

    def skip(times):
        for _ in range(times):
            nlp.update(examples, sgd=False)
            bias.get_grad("b")[...] = math.nan
            nlp.get_pipe("tagger").finish_update(optimizer)

    with pytest.warns(NonFiniteGradWarning):
        skip(2)
    optimizer.roll_back(saved)
    assert optimizer.bad_updates_in_a_row == 0 and optimizer.skipped_updates == 2 and optimizer.rates.scale == 1.0
    skip(2)
    with pytest.raises(NonFiniteGradError, match="3 updates in a row"):
        skip(1)


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy])
def test_guard_of_a_copied_optimizer_counts_by_itself(make_copy):
    def skip(optimizer):
        optimizer((0, "W"), numpy.ones(2, dtype="f"), numpy.full(2, math.nan, dtype="f"))

    first = TorchOptimizer(SGD(), 0.1, max_nonfinite=2)
    with pytest.warns(NonFiniteGradWarning):
        skip(first)
    second = make_copy(first)
    assert second.skipped_updates == second.bad_updates_in_a_row == 0
    with pytest.warns(NonFiniteGradWarning):
        skip(second)
    assert first.skipped_updates == second.skipped_updates == 1
    with pytest.raises(NonFiniteGradError, match="2 updates in a row"):
        skip(second)


def test_guard_warns_once_of_each_kind():
    model, optimizer = thinc_model(), TorchOptimizer(SGD(), 1e-4, spike_factor=5.0, max_nonfinite=3)
    rng = numpy.random.default_rng(0)

    def update(*, scale=1.0):
        backprop(model, rng, scale=scale)
        model.finish_update(optimizer)

    for _ in range(MIN_UPDATES):
        update()
    before = params_of(model)
    message = (
        r"^Skipped an update of \S+ \(\d+ params\): the norm of its gradients is \S+, more than spike_factor = 5 "
        r"times its moving "
        r"average of \S+; the largest is that of param '\S+'\. Further updates are skipped without a warning\. Their "
        r"number is in "
        r"optimizer\.grad_spikes"
    )
    with pytest.warns(GradSpikeWarning, match=message) as warned:
        update(scale=1e4)
        update(scale=1e4)
    assert len(warned) == 1 and warned[0].filename == __file__
    with pytest.warns(NonFiniteGradWarning, match="not finite") as warned:
        update(scale=numpy.nan)
        update(scale=1e4)
        update(scale=numpy.nan)
    assert len(warned) == 1 and warned[0].filename == __file__ and same(before, params_of(model))
    # Spikes are no reason to stop, and don't hide one.
    update(scale=1e4)
    with pytest.raises(
        NonFiniteGradError, match=r"'max_nonfinite' in \[training.optimizer\]: 3 updates in a row.*raise max_nonfinite"
    ):
        update(scale=numpy.nan)
    assert same(before, params_of(model)) and optimizer.skipped_updates == 7 and optimizer.grad_spikes == 4


def test_guard_warns_of_a_spike_that_it_scales_down():
    guard = GradGuard(20, spike_factor=5.0, on_spike="clip")
    for _ in range(MIN_UPDATES):
        judge(guard, 2.0)
    verdict = guard.judge(W, [40.0], 40.0)
    assert verdict.factor == pytest.approx(0.25)
    with pytest.warns(
        GradSpikeWarning, match=r"^Scaled down an update of tagger/W: the norm of its gradients is 40, .* average of 2;"
    ):
        guard.report(verdict, "tagger")


# ---------------------------------------------------------------- state and settings


@given(norms=st.lists(NORMS, min_size=20, max_size=80), data=st.data())
def test_guard_resumes_exactly(norms, data):
    cut = data.draw(st.integers(0, len(norms)))
    whole, first, second = (GradGuard(1000, spike_factor=2.0) for _ in range(3))
    expected = [judge(whole, norm) for norm in norms]
    found = [judge(first, norm) for norm in norms[:cut]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    found += [judge(second, norm) for norm in norms[cut:]]
    assert found == expected and second.averages == whole.averages
    assert second.state_dict() == whole.state_dict()


def test_guard_state_follows_components_to_other_names():
    guard = GradGuard(20)
    state = {**guard.state_dict(), "spikes": 7, "bad_in_a_row": 2}
    names = "ner (2 params)", "ner+tagger (4 params)", "ner/W", "tagger (2 params)"
    state["averages"] = dict.fromkeys(names, AVERAGE)
    state["nonfinite_in_a_row"] = {"ner": 1, "tagger": 2}
    guard.load_state_dict(state, {"ner": "z"})
    assert [*guard.averages] == ["z (2 params)", "tagger+z (4 params)", "z/W", "tagger (2 params)"]
    assert guard.nonfinite_in_a_row == {"z": 1, "tagger": 2}
    guard.begin_anew()
    assert guard.state_dict() == {**GradGuard(20).state_dict(), "spikes": 7}


AVERAGE = {"norm": 1.0, "updates": 3}


@pytest.mark.parametrize(("change", "message"), srsly.read_yaml(Path(__file__).with_name("guard.yaml"))["changes"])
def test_guard_refuses_a_bad_state_and_stays_as_it_is(change, message):
    guard = GradGuard(20, spike_factor=2.0)
    judge(guard, 3.0)
    before = guard.state_dict()
    with pytest.raises(StateError, match=message):
        counts = {"nonfinite": 7, "spikes": 8, "skipped": 9, "bad_in_a_row": 0, "nonfinite_in_a_row": {}}
        guard.load_state_dict({**counts, "averages": {"x": AVERAGE}} | change)
    assert guard.state_dict() == before
