import math

import pytest
import torch

from thinc_torchopt.loop import progress
from thinc_torchopt.loop.progress import Progress, TimeSpent


def test_progress_ranks_evaluations():
    """Of equal scores the first is the best."""
    done = Progress(step=9, results=[(0.5, 0), (math.nan, 2), (0.7, 4), (0.7, 6), (0.6, 8)])
    assert [done.ranked(until) for until in (None, 6, 5)] == [[4, 6, 8, 0], [4, 6, 0], [4, 0]]
    assert (done.best_step, done.best_score) == (4, 0.7)
    assert [done.is_over(patience, 0) for patience in (0, 5, 6)] == [False, True, False]
    assert [done.is_over(0, max_steps) for max_steps in (9, 10)] == [True, False]


def not_supported():
    raise RuntimeError("NVML: Not Supported")


def failing_later():
    """As a driver that fails in the middle of a run."""
    percents = iter([0])
    return lambda: next(percents)


@pytest.mark.parametrize(
    ("on_gpu", "utilization", "idle"),
    [
        # Sampled at 2.5 and 4.0: not at 0.5, as NVML tells of up to a second.
        (True, iter([0, 80, 20]).__next__, {"gpu_idle": pytest.approx(2.5 * 0.2 + 1.5 * 0.8)}),
        (True, not_supported, {}),
        (True, failing_later(), {}),
        (False, lambda: 50, {}),
    ],
)
def test_time_spent_tells_how_long_a_gpu_had_nothing_to_do(on_gpu, utilization, idle, monkeypatch):
    now = iter([0.0, 10.0, 10.5, 12.5, 14.0])
    monkeypatch.setattr(progress, "default_timer", lambda: next(now))
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    spent = TimeSpent()
    spent.begin(on_gpu=on_gpu)
    for phase in ("data", "updates", "evaluations"):
        spent.on(phase)
    assert spent.seconds == {"data": 0.5, "updates": 2.0, "evaluations": 1.5, "saving": 0.0, **idle}
