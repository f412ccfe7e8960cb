"""A fall that is told to begin, in `spacy train`: by the optimizer, by a signal; and how the run ends then."""

import os
import signal
from itertools import islice

import pytest

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ScheduleError
from thinc_torchopt.core.schedules.curves import warmup_stable_decay

from ..models import ready_pipeline
from ..runs import config_for, digests, loop_over, run
from .test_total_steps import rates_in

STABLE = {
    "@schedules": "thinc-torchopt.warmup_stable_decay.v1",
    "initial_rate": 0.01,
    "warmup_steps": 2,
    "decay_steps": 5,
    "decay_begins": "when told",
}
TOLD = {"decay_begins": "when told"}


def expected(told_after, steps):
    """The rates of a run that was told after a step."""
    return list(islice(warmup_stable_decay(0.01, 2, 5, told_after + 1 + 5), steps))


def train(folder, corpus, *, told_after=(), crash_at=None, **changes):
    """told_after (tuple): The signal comes before the next update, and counts when that is done."""

    def act(step):
        if step in told_after:
            os.kill(os.getpid(), signal.SIGUSR1)

    changes = {"steps": 100, "training__optimizer__learn_rate": STABLE, "training__eval_frequency": 100, **changes}
    return run(config_for(folder, corpus, **changes), folder / "output", crash_at=crash_at, act=act)


def test_decay_falls_when_a_signal_comes_and_ends_the_run(corpus, tmp_path):
    """The last step is evaluated, so that the model after the fall is saved. A second signal changes nothing."""
    before = signal.getsignal(signal.SIGUSR1)
    infos = train(tmp_path, corpus, told_after=(4, 7))
    assert rates_in(infos) == expected(4, 10) and len(infos) == 10
    assert "('score', None)" not in infos[9] and "('score', None)" in infos[8]
    assert signal.getsignal(signal.SIGUSR1) == before == signal.SIG_DFL
    # Started again, there is nothing to do.
    assert train(tmp_path, corpus) == {}


@pytest.mark.parametrize("crash_at", [3, 7])
def test_decay_goes_on_where_it_stood(crash_at, corpus, tmp_path):
    """Killed before it was told, and in its fall: the same, to the last bit."""
    whole = train(tmp_path / "whole", corpus, told_after=(4,))
    begun = train(tmp_path / "parts", corpus, told_after=(4,), crash_at=crash_at)
    went_on = train(tmp_path / "parts", corpus, told_after=(4,))
    assert {**begun, **went_on} == whole and min(went_on) > 0
    assert digests(tmp_path / "parts" / "output") == digests(tmp_path / "whole" / "output")


def test_decay_leaves_the_signal_to_those_who_have_it(corpus, tmp_path):
    """Without such a schedule, and where something else handles it."""
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        assert len(train(tmp_path, corpus, told_after=(2,), steps=4)) == 5 and seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
    handlers = []
    run(
        config_for(tmp_path / "other", corpus, steps=2),
        tmp_path / "other" / "output",
        act=lambda step: handlers.append(signal.getsignal(signal.SIGUSR1)),
    )
    assert set(handlers) == {signal.SIG_DFL}


class Teller:
    """A listener of the user's."""

    name = "teller"

    def on_step_end(self, event, control):
        if event.step == 3:
            assert event.run.optimizer.begin_decay(4)


def test_decay_is_told_by_a_listener():
    """With the rates of groups, averages, what is frozen, and params that come in the fall."""
    nlp, examples = ready_pipeline(["tagger", "ner"], shared=False)
    groups = {
        "tagger": {"params": ["tagger/*"], "learn_rate": warmup_stable_decay(0.2, 0, 3, **TOLD)},
        "frozen": {"params": ["ner/*/b"], "freeze": True},
    }
    rate = warmup_stable_decay(0.1, 2, 9, 1000, decay_type="linear")
    optimizer = TorchOptimizer(AdamW(), rate, param_groups=groups, use_averages=True)
    optimizer.initialize(nlp)

    def grow(nlp, args):
        if args["step"] == 5:
            nlp.get_pipe("ner").add_label("NEW")

    loop = loop_over(nlp, optimizer, [examples] * 50, max_steps=40, before_update=grow, listeners=[Teller()])
    steps = [(info["learn_rates"]["default"], info["learn_rates"]["tagger"], is_best) for _, info, is_best in loop]
    falls = list(islice(warmup_stable_decay(0.2, 0, 4, 8), 8))
    assert [rate for rate, _, _ in steps] == list(islice(warmup_stable_decay(0.1, 2, 4, 8, decay_type="linear"), 8))
    assert [rate for _, rate, _ in steps] == falls
    assert [is_best is None for _, _, is_best in steps] == [False, *[True] * 6, False]


def test_decay_can_not_be_told_of_another_schedule():
    with pytest.raises(ScheduleError, match="expected a schedule that can decay"):
        TorchOptimizer(AdamW(), 0.1).begin_decay()
