import pytest
import torch

from thinc_torchopt.loop import progress
from thinc_torchopt.loop.progress import TimeSpent


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
