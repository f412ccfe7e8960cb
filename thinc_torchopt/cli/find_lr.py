"""`spacy torchopt find-lr`: the learning-rate range test."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import typer
from rich.console import Console
from typer import Option as Opt

from ..addons.preview import describe, tell_pipeline
from ..addons.report import check_picture, plot_range_test
from ..addons.trials import RangeTest, learn_rate_settings, make_ramp, run_range_test
from ..core.tables import print_table, sparkline
from ..core.words import short
from ..loop.progress_bars import show_progress
from ..loop.schedule_check import Trained, rates_far_above
from ._command import CODE, CONFIG, GPU, JSON, PICTURE
from ._screen import errors_shown, make_console, print_error, print_json
from ._setup import build

_CHART_WIDTH = 60
# Worth a try: the suggestion divided by that, up to it multiplied.
_AROUND = 3.0
# Below this number of examples their loss may be that of no others.
_FEW = 10
# benchmarks/find_lr.py: fewer than 9 of 10 suggestions were as good as the best rate.
_CAUTION = (
    "Often it is not the best rate. Keep a rate that is known to be good, such as that of the recipe best (spacy "
    "torchopt init). If there is none, compare rates: spacy torchopt tune."
)
_ENDED = {
    "max_rate": "the highest rate was reached",
    "diverged": "the loss diverged",
    "not_finite": "the loss or a gradient was not finite",
}


def find_lr(
    ctx: typer.Context,
    config_path: Path = CONFIG,
    min_rate: float = Opt(1e-6, "--min-lr", help="Learning rate of the first step"),
    max_rate: float = Opt(10.0, "--max-lr", help="Learning rate of the last step"),
    steps: int = Opt(140, "--steps", "-n", help="How many steps to train at most"),
    output_path: Optional[Path] = PICTURE,
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
    use_gpu: int = GPU,
) -> None:
    """
    Find a learning rate, in a test of a few steps. The rate rises from step to step, and the loss is measured on some
    of the development data: it falls at good rates, and rises again at rates that are too high. The pipeline is built
    or loaded for the test only; nothing but the picture is written. The rates of param groups keep their ratios. Pass
    overrides such as --paths.train train.spacy as in `spacy train`.
    """
    with errors_shown(as_json=as_json):
        # Refuse bad arguments before the work.
        make_ramp(min_rate, max_rate, steps)
        if output_path is not None:
            check_picture(output_path)
        setup = build(config_path, ctx.args, code_path=code_path, use_gpu=use_gpu, reads_dev=True)
        peaks = learn_rate_settings(setup.config)
        try:
            with show_progress(steps, "Training at rising rates") as bar:
                found = run_range_test(
                    setup.nlp,
                    setup.config,
                    min_rate=min_rate,
                    max_rate=max_rate,
                    steps=steps,
                    progress=bar.update,
                )
        except KeyboardInterrupt:
            print_error(make_console(stderr=True), f"Stopped before all {steps} steps were done: nothing is suggested.")
            sys.exit(130)
        if output_path is not None:
            plot_range_test(found, output_path)
        tell_pipeline(setup)
        infos = describe(setup).values()
    block = setup.config["training"]["optimizer"]
    settings = []
    if found.suggestion is not None:
        part = found.suggestion / max(peaks.values())
        settings = [{"setting": list(place), "peak": peak, "suggestion": part * peak} for place, peak in peaks.items()]
    if as_json:
        print_json(
            {
                "learn_rates": found.rates,
                "losses": [loss if math.isfinite(loss) else None for loss in found.losses],
                "smoothed": found.smoothed,
                "steps": found.steps,
                "examples": found.examples,
                "ended": found.ended,
                "suggestion": found.suggestion,
                "stretch": None if found.stretch is None else [found.rates[point] for point in found.stretch],
                "settings": settings,
                "groups": found.rates_by_group(),
                "problem": found.problem,
            }
        )
    else:
        groups = {group: [info for info in infos if info.group == group] for group in found.rates_by_group()}
        trained = [Trained(group, [rate], infos=groups[group]) for group, rate in found.rates_by_group().items()]
        _print(make_console(), found, settings, block, output_path, list(rates_far_above(setup.nlp, trained)))
    if found.problem is not None:
        sys.exit(1)


def _print(
    console: Console,
    found: RangeTest,
    settings: list[dict[str, Any]],
    block: Mapping[str, Any],
    output_path: Path | None,
    doubts: list[str],
) -> None:
    console.print(
        f"{found.steps} steps, learning rate {short(found.rates[0])} to {short(found.rates[-1])}. Stopped because "
        f"{_ENDED[found.ended]}."
    )
    if found.smoothed:
        low, high = min(found.smoothed), max(found.smoothed)
        examples = "1 example" if found.examples == 1 else f"{found.examples} examples"
        console.print(f"Loss per word on {examples} of the development data, {short(low)} to {short(high)}:")
        width = min(_CHART_WIDTH, console.width)
        console.print(sparkline(console, [(loss - low) / (high - low or 1.0) for loss in found.smoothed], width))
    if output_path is not None:
        console.print(f"Saved the picture to {output_path}")
    if found.problem is not None or found.stretch is None:
        print_error(console, found.problem or "")
        return
    console.print(
        f"It is lowest, or nearly so, at rates of {short(found.rates[found.stretch[0]])} to "
        f"{short(found.rates[found.stretch[1]])}."
    )
    console.print()
    rates = found.rates_by_group()
    print_table(
        console,
        ["group", "suggestion", "a third", "three times"],
        [
            [group, *(short(times * rates[group]) for times in (1.0, 1.0 / _AROUND, _AROUND))]
            if group in rates
            else [group, *["frozen"] * 3]
            for group in found.group_rates[0]
        ],
        numbers=["suggestion", "a third", "three times"],
    )
    if found.examples < _FEW:
        console.print("Note: so few examples say little about all of the development data.")
    for doubt in doubts:
        console.print(f"Note: {doubt} Choose a usual one.")
    console.print(_CAUTION)
    console.print("To use the suggestion, change in the config:")
    for line in _config_lines(block, settings):
        console.print(line)


def _config_lines(block: Mapping[str, Any], settings: list[dict[str, Any]]) -> Iterator[str]:
    """The lines to write into the config."""
    section = ""
    for setting in settings:
        if not setting["peak"]:
            continue
        places = list(find_peak(block, setting["setting"], setting["peak"]))
        is_one = len(places) == 1
        *sections, key = places[0] if is_one else setting["setting"]
        if section != (section := ".".join(["training", "optimizer", *sections])):
            yield f"\n[{section}]"
        rate = f"{setting['suggestion']:.2g}"
        yield (
            f"{key} = {rate}"
            if is_one
            else f"# {key}: its highest value should be {rate} instead of {short(setting['peak'])}"
        )


def find_peak(block: Mapping[str, Any], place: list[str], peak: float) -> Iterator[list[str]]:
    """Where a number stands that is the peak: the setting itself, or the arguments of its schedule."""
    value: Any = block
    for part in place:
        value = value[part]
    if isinstance(value, Mapping):
        for name in value:
            yield from find_peak(block, [*place, name], peak)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and value == peak:
        yield place
