"""Training within a budget. By steps and words all is known beforehand; seconds are of a clock that tests move."""

import os
import re
import signal
import time
from itertools import islice
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language

from thinc_torchopt.addons.budget import Budget
from thinc_torchopt.addons.budget.budget import BudgetKeeper, Cost
from thinc_torchopt.core.errors import ConfigError, NonFiniteGradWarning, RollbackWarning, StateError
from thinc_torchopt.core.schedules.curves import warmup_stable_decay
from thinc_torchopt.loop.processes import Alone

from ...loop.test_decay import STABLE
from ...loop.test_total_steps import rates_in
from ...runs import config_for, digests, run

RATE = {**STABLE, "decay_type": "linear"}


def train(folder, corpus, limit, *, output=None, crash_at=None, act=lambda step: None, **changes):
    changes = {
        "steps": 0,
        "training__patience": 0,
        "training__eval_frequency": 7,
        "training__optimizer__learn_rate": RATE,
        "training__optimizer__checkpoint__keep": 2,
        "training__optimizer__budget": {"@misc": "thinc-torchopt.Budget.v1", "limit": limit},
        **changes,
    }
    return run(config_for(folder, corpus, **changes), output, crash_at=crash_at, act=act)


def falling(begin, steps):
    """The rates of a fall from the full rate. begin (int): Its first step."""
    return list(islice(warmup_stable_decay(0.01, 2, steps, begin + steps, decay_type="linear"), begin, begin + steps))


def evaluations_in(infos):
    """The steps that were evaluated."""
    return [step for step in sorted(infos) if "('score', None)" not in infos[step]]


# ---------------------------------------------------------------------- what a config says


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("20m", 1200, "seconds"),
        ("1h30m", 5400, "seconds"),
        ("1h 30m 5s", 5405, "seconds"),
        ("90s", 90, "seconds"),
        ("0.5h", 1800, "seconds"),
        ("2d", 172_800, "seconds"),
        ("5000steps", 5000, "steps"),
        ("5,000 steps", 5000, "steps"),
        ("5k steps", 5000, "steps"),
        ("2M words", 2_000_000, "words"),
        ("1.5M words", 1_500_000, "words"),
        ("4.1M words", 4_100_000, "words"),
        ("1.001k steps", 1001, "steps"),
        ("1,234.5k steps", 1_234_500, "steps"),
        ("1 word", 1, "words"),
        (" 200_000 words ", 200_000, "words"),
    ],
)
def test_budget_reads_a_limit(text, amount, unit):
    found = Budget(text)
    assert (found.amount, found.unit, found.decay_ratio) == (amount, unit, 0.2)


@pytest.mark.parametrize(
    "text",
    [
        *("", "20", "20 minutes", "m", "-5m", "0m", "0 steps", "1.5 steps", "5 epochs", "m20", 20, None),
        *("1,5M words", "1,5k steps", "1,5h", "1,50,000 steps", "5000,000 words", "1.0001k steps"),
    ],
)
def test_budget_refuses_other_limits(text):
    with pytest.raises(ConfigError, match=r"'limit' in \[training.optimizer.budget\]: expected a time such as \"20m\""):
        Budget(text)


@pytest.mark.parametrize("text", ["1 step", "1 steps"])
def test_budget_has_room_for_a_fall(text):
    with pytest.raises(ConfigError, match=r"'limit'.*expected at least 2 steps"):
        Budget(text)


# ---------------------------------------------------------------------- steps


def test_budget_of_steps_is_a_schedule_that_knew_the_end(corpus, tmp_path):
    infos = train(tmp_path, corpus, "20 steps")
    assert rates_in(infos) == list(islice(warmup_stable_decay(0.01, 2, 4, 20, decay_type="linear"), 20))
    # By eval_frequency = 7, and after a ninth of the budget at the latest.
    assert evaluations_in(infos) == [0, 3, 6, 7, 10, 13, 14, 17, 19]
    assert Budget("20 steps").count_evaluations(20, 7) == 9
    assert Budget("90 steps").count_evaluations(90, 200) == 10  # at 0, 10, ... 80, and the last one
    assert train(tmp_path, corpus, "20 steps") == {}  # it is over


def test_budget_beside_an_end_that_is_not_earlier(corpus, tmp_path):
    assert len(train(tmp_path, corpus, "20 steps", steps=19)) == 20


def test_budget_of_a_run_that_was_killed(corpus, tmp_path):
    """While the rate stays, as the fall begins, and in it: to the last bit as one that was not."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    expected = train(whole, corpus, "20 steps", output=whole / "output")
    found = [train(parts, corpus, "20 steps", output=parts / "output", crash_at=step) for step in (9, 16, 18, None)]
    assert {step: info for part in found for step, info in part.items()} == expected
    assert [min(part) for part in found] == [0, 8, 16, 18]  # it went on, and not from the start
    assert digests(parts / "output") == digests(whole / "output")


@pytest.mark.parametrize("limit", ["15 steps", "25 steps"])
def test_budget_may_change_until_the_fall_begins(limit, corpus, tmp_path):
    train(tmp_path, corpus, "20 steps", crash_at=9)
    amount = int(limit.split()[0])
    fall = amount // 5
    rest = train(tmp_path, corpus, limit)
    assert rates_in(rest) == [0.01] * (amount - fall - min(rest)) + falling(amount - fall, fall)


@pytest.mark.parametrize(
    ("limit", "crash_at"),
    [("15 steps", 9), ("9 steps", None)],
    ids=["more, in its fall", "less, when it is finished"],
)
def test_budget_may_not_change_from_then_on(limit, crash_at, corpus, tmp_path):
    settings = {"training__optimizer__checkpoint__every": 1}
    train(tmp_path, corpus, "10 steps", crash_at=crash_at, **settings)
    with pytest.raises(StateError, match=rf"limit of 10 steps, as when .* began to fall, found {limit}.*a new run"):
        train(tmp_path, corpus, limit, **settings)
    anew = train(tmp_path, corpus, limit, training__optimizer__checkpoint__resume="never", **settings)
    assert min(anew) == 0 and len(anew) == int(limit.split()[0])


def test_budget_in_another_unit(corpus, tmp_path):
    train(tmp_path, corpus, "40 steps", crash_at=10)
    with pytest.raises(StateError, match="expected a limit in steps, as before, found one in words"):
        train(tmp_path, corpus, "1000 words")


def test_budget_when_a_rollback_goes_to_before_the_fall(corpus, tmp_path, monkeypatch):
    """As after each rollback, schedules go on: the fall too."""
    update, at, bad = Language.update, [0], {33, 34}

    def spoiled(self, *args, **kwargs):
        result = update(self, *args, **kwargs)
        if at[0] in bad:
            bad.remove(at[0])  # a step may be done in parts
            node = next(node for node in self.get_pipe("tagger").model.walk() if node.has_param("W"))
            node.inc_grad("W", node.get_param("W") * float("nan"))
        return result

    monkeypatch.setattr(Language, "update", spoiled)
    rollback = {"training__optimizer__rollback_after": 1, "training__optimizer__rollback_factor": 1.0}
    with pytest.warns(RollbackWarning), pytest.warns(NonFiniteGradWarning):
        infos = train(tmp_path, corpus, "40 steps", act=lambda step: at.__setitem__(0, step), **rollback)
    rates = rates_in(infos)
    # The two updates that went wrong were left out, and no rate was written for them.
    assert rates[20:33] == [0.01] * 13 and rates[35:] == falling(32, 8)[3:]


def test_budget_ends_sooner_when_a_signal_comes(corpus, tmp_path):
    def act(step):
        if step == 7:
            os.kill(os.getpid(), signal.SIGUSR1)

    infos = train(tmp_path, corpus, "1000 steps", act=act)
    # A fifth of the whole: two steps after eight.
    assert rates_in(infos) == [0.0, 0.005, *[0.01] * 6, *falling(8, 2)]
    assert train(tmp_path, corpus, "1000 steps") == {}


def test_budget_of_words(corpus, tmp_path):
    infos = train(tmp_path, corpus, "1000 words")
    words = [int(re.search(r"'words', (\d+)", infos[step])[1]) for step in sorted(infos)]
    rates = rates_in(infos)
    first = next(step for step, rate in enumerate(rates) if step > 2 and rate < 0.01) - 1
    assert words[first - 2] < 800 <= words[first - 1]  # it begins as 80% are used
    per_batch = words[-1] / len(words)
    assert abs(words[-1] - 1000) <= 2 * per_batch and rates[first:] == falling(first, len(rates) - first)
    # Each of three epochs ends with a short batch, after which the next evaluation may come a step later.
    assert abs(Budget("1000 words").count_evaluations(len(words), 7) - len(evaluations_in(infos))) <= 3


# ---------------------------------------------------------------------- seconds


class Clock:
    """Moves by so many seconds in each step and each evaluation."""

    def __init__(self, monkeypatch, *, step, evaluation):
        self.now, self._done = 1000.0, 0
        monkeypatch.setattr("thinc_torchopt.loop.run.default_timer", lambda: self.now)
        evaluate, update = Language.evaluate, Language.update

        def slow_update(*args, **kwargs):
            self.now += step(self._done)
            self._done += 1
            return update(*args, **kwargs)

        def slow(*args, **kwargs):
            self.now += evaluation
            return evaluate(*args, **kwargs)

        monkeypatch.setattr(Language, "evaluate", slow)
        monkeypatch.setattr(Language, "update", slow_update)


@pytest.mark.parametrize(
    ("evaluation", "limit", "frequency", "least"),
    [(0.0, "40s", 1000, 8), (3.0, "1m10s", 7, 8), (3.0, "1m10s", 1000, 8), (20.0, "160s", 7, 4), (40.0, "160s", 7, 2)],
)
def test_budget_of_seconds_ends_in_time(evaluation, limit, frequency, least, corpus, tmp_path, monkeypatch):
    """Evaluations are counted in: the run ends within its budget, and less than an evaluation and two steps before.
    There are eight, unless they would take more than about half of the time.
    """
    clock = Clock(monkeypatch, step=lambda step: 1.0, evaluation=evaluation)
    began = []
    infos = train(tmp_path, corpus, limit, training__eval_frequency=frequency, act=lambda step: began.append(clock.now))
    rates, budget = rates_in(infos), Budget(limit).amount
    used = clock.now - 1000.0
    assert budget - 2.0 - evaluation <= used <= budget + 1.0
    # The rate falls in the last fifth, from the next step on; sooner if that has no room for two evaluations.
    begins = next(step for step in sorted(infos) if step > 2 and rates[step] < 0.01) - 1
    fall = max(0.2 * budget, 2.0 * (1.0 + evaluation) * bool(evaluation))
    assert budget - fall - 1.0 <= began[begins] - 1000.0 <= budget - fall + 1.0 + evaluation
    first = rates.index(rates[-1]) - len([rate for rate in rates if 0 < rate < 0.01]) + 2
    assert rates[-1] > 0 and first > 2 and max(rates) == 0.01
    assert len(evaluations_in(infos)) >= least


def test_budget_of_seconds_of_a_run_that_was_killed_in_its_fall(corpus, tmp_path, monkeypatch):
    """What was used before counts, and the fall goes on where it was."""
    clock = Clock(monkeypatch, step=lambda step: 1.0, evaluation=2.0)
    whole = train(tmp_path / "whole", corpus, "40s")
    used = clock.now - 1000.0
    clock.now = 1000.0
    begun = train(tmp_path / "parts", corpus, "40s", crash_at=len(whole) - 3)
    clock.now += 1e6  # between the two
    before = clock.now
    went_on = train(tmp_path / "parts", corpus, "40s")
    assert {**begun, **went_on} == whole
    assert clock.now - before < used / 2


def test_budget_of_seconds_goes_by_the_latest_speed(corpus, tmp_path, monkeypatch):
    """Steps became slower in the course of the training: the fall has fewer of them."""
    clock = Clock(monkeypatch, step=lambda step: 0.25 if step < 10 else 1.0, evaluation=0.0)
    train(tmp_path, corpus, "30s")
    assert 27.0 <= clock.now - 1000.0 <= 31.0


def keeper(limit, *, step, evaluation, frequency):
    """A budget that has measured these costs."""
    run = SimpleNamespace(
        patience=0,
        eval_frequency=frequency,
        max_steps=0,
        batches=SimpleNamespace(max_epochs=0),
        optimizer=None,
        ranks=Alone(),
        cooldown=SimpleNamespace(),
    )
    made = BudgetKeeper(Budget(limit), run)
    made._state.step_cost, made._state.eval_cost = Cost(step, 1.0), Cost(evaluation, 1.0)
    return made


def evaluations_step_by_step(budget, first, steps, now, *, step, evaluation, frequency):
    """The number of evaluations in a fall. The last step is always evaluated."""
    found, since = 1, now - budget._state.evaluated_at
    for at in range(first, first + max(1, steps) - 1):
        since += step
        if at % frequency == 0 or since >= budget._between:
            found, since = found + 1, evaluation
    return found


@given(
    step=st.integers(1, 5),
    evaluation=st.integers(1, 40),
    frequency=st.integers(1, 30),
    first=st.integers(0, 100),
    now=st.integers(0, 200),
    ago=st.integers(0, 60),
    limit=st.integers(1, 200),
)
def test_budget_falls_in_as_many_steps_as_there_is_room_for(step, evaluation, frequency, first, now, ago, limit):
    """As found by going through all steps and evaluations. Costs are whole, so that sums are exact."""
    costs = {"step": step, "evaluation": evaluation, "frequency": frequency}
    budget = keeper(f"{limit}s", **costs)
    budget._state.evaluated_at = max(0, now - ago)

    def cost(steps):
        return evaluation * evaluations_step_by_step(budget, first, steps, now, **costs)

    for steps in range(60):
        assert budget._cost_of_evaluations(first, steps, now) == cost(steps)
    fits = [steps for steps in range(1, limit + 1) if steps * step + cost(steps) <= limit - now]
    assert budget._steps_of_fall(first, now, limit) == max(fits, default=1)


def test_budget_of_hours_decides_at_once():
    """The time for it is missing in the fall: a walk through all steps and evaluations took 16 seconds."""
    budget = keeper("8h", step=0.1, evaluation=10.0, frequency=200)
    end = budget._settings.amount
    budget._state.evaluated_at = now = 0.7 * end
    began = time.process_time()
    steps = budget._steps_of_fall(1_000_000, now, end)
    assert time.process_time() - began < 1.0
    cost, next_cost = (n * 0.1 + budget._cost_of_evaluations(1_000_000, n, now) for n in (steps, steps + 1))
    assert cost <= end - now < next_cost
