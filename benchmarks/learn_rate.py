"""What the learn rate controller costs, against its budgets.

    python benchmarks/learn_rate.py [--calls 1000]

At 200 param groups and 1,000 params: `step` (budget at p99: 5 ms), the integrity check (2 ms), adding a group (20 ms).
Then `step` at 2 groups and 40 params, as small pipelines have it, for which no budget but the update's own time counts.
Each call is timed by itself.

On a busy machine p99 is the time that other processes took: run this alone, or as root with `chrt -f 10` before it.

An optimizer grows with each group that is added, so adding is timed in turns with building a fresh one.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from thinc_torchopt.addons.own_loops.controller import LearnRateController

GROUPS_TO_ADD = 20


def build(n_groups: int, n_params: int) -> tuple[LearnRateController, torch.optim.Optimizer]:
    params = [torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(n_params)]
    groups = [{"params": params[i::n_groups], "lr": 1e-3 / (1 + i)} for i in range(n_groups)]
    optimizer = torch.optim.AdamW(groups)
    controller = LearnRateController(on_outside_write="raise")
    controller.register_optimizer("model", optimizer, "cosine", total_steps=10**6)
    controller.step(0)
    return controller, optimizer


def timed(calls: int, function: Callable[[], Any]) -> list[float]:
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def times_of_adding(calls: int, n_groups: int, n_params: int) -> list[float]:
    times: list[float] = []
    while len(times) < calls:
        controller, _ = build(n_groups, n_params)
        times += timed(
            min(GROUPS_TO_ADD, calls - len(times)),
            lambda: controller.add_params("model", [torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(5)]),  # noqa: B023
        )
    return times


def report(name: str, times: list[float], budget: float | None = None) -> None:
    times = sorted(times)
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    against = "" if budget is None else f"{budget:8.1f}   {'ok' if p99 < budget else 'OVER BUDGET'}"
    print(f"{name:44} {p50:8.4f} {p99:8.4f} {against}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    calls = parser.parse_args().calls
    print(f"{'milliseconds, of ' + str(calls) + ' calls':44} {'p50':>8} {'p99':>8} {'budget':>8}")
    large, _ = build(200, 1000)
    report("step: 200 groups, 1,000 params", timed(calls, lambda: large.step(0)), 5.0)
    report("integrity check: 200 groups, 1,000 params", timed(calls, large.verify), 2.0)
    report("adding a group: 200 groups, 1,000 params", times_of_adding(calls, 200, 1000), 20.0)
    small, _ = build(2, 40)
    report("step: 2 groups, 40 params", timed(calls, lambda: small.step(0)))
    report("integrity check: 2 groups, 40 params", timed(calls, small.verify))


if __name__ == "__main__":
    main()
