"""What the learn rate controller costs, against the budgets of its source.

    python benchmarks/learn_rate.py [--calls 200] [--params 1000] [--groups 1000]

Printed are the median and the largest of all calls, in milliseconds of the thread's CPU time, as the controller's own
budgets count (own_loops/watchdog.py). State is preserved for a model in which every second param has grown by a
quarter of its rows, with AdamW in one param group. An optimizer grows with each group that is added, so these are added
to several.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from thinc_torchopt import preserve_optimizer_state
from thinc_torchopt.addons.own_loops.controller import LearnRateController
from thinc_torchopt.addons.own_loops.watchdog import BUDGETS

ADDED_TO_EACH = 20


class Model(torch.nn.Module):
    def __init__(self, n_params: int, *, grown: bool = False):
        super().__init__()
        for i in range(n_params):
            rows = 20 if grown and i % 2 else 16
            self.register_parameter(f"param{i}", torch.nn.Parameter(torch.ones(rows, 16)))


def build(n_params: int, n_groups: int) -> tuple[LearnRateController, torch.optim.Optimizer, Model]:
    """Everything after a first step."""
    model = Model(n_params)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": params[i::n_groups], "lr": 1e-3 / (1 + i)} for i in range(n_groups)])
    controller = LearnRateController(on_outside_write="raise")
    controller.register_optimizer("model", optimizer, "cosine", total_steps=10**6)
    for param in params:
        param.grad = torch.ones_like(param)
    controller.step(0)
    optimizer.step()
    return controller, optimizer, model


def milliseconds(function: Callable[[], Any]) -> float:
    began = time.thread_time()
    function()
    return 1e3 * (time.thread_time() - began)


def times_of_adding(calls: int, n_params: int, n_groups: int) -> list[float]:
    times: list[float] = []
    while len(times) < calls:
        controller, _, _ = build(n_params, n_groups)
        for _ in range(min(ADDED_TO_EACH, calls - len(times))):
            added = [torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(5)]
            times.append(milliseconds(lambda: controller.add_params("model", added)))  # noqa: B023
    return times


def times_of_preserving(calls: int, n_params: int) -> list[float]:
    times = []
    for _ in range(calls):
        _, optimizer, model = build(n_params, 1)
        grown = Model(n_params, grown=True)
        times.append(milliseconds(lambda: preserve_optimizer_state(optimizer, grown, model)))  # noqa: B023
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--params", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    controller, _, _ = build(args.params, args.groups)
    found = {
        "rate_step": [milliseconds(lambda: controller.step(0)) for _ in range(args.calls)],
        "state_preservation": times_of_preserving(max(1, args.calls // 10), args.params),
        "integrity_check": [milliseconds(controller.verify) for _ in range(args.calls)],
        "adding_params": times_of_adding(args.calls, args.params, args.groups),
    }
    print(f"{args.params:,} params, {args.groups:,} groups: milliseconds of CPU time")
    print(f"{'':20} {'budget':>8} {'median':>8} {'max':>8}")
    for kind, times in found.items():
        print(f"{kind:20} {BUDGETS[kind]:8g} {statistics.median(times):8.2f} {max(times):8.2f}")


if __name__ == "__main__":
    main()
