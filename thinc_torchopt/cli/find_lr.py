"""`spacy torchopt find-lr`: the learning-rate range test."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ..progress_bars import show_progress
from ..report import check_picture, plot_range_test
from ..training import RangeTest, learn_rate_settings, make_ramp, run_range_test
from ._util import build, errors_shown, make_console, print_error, print_json, print_table, short, sparkline

_CHART_WIDTH = 60
_FAR_APART = 3.0
_ENDED = {
    "max_rate": "the highest rate was reached",
    "diverged": "the loss diverged",
    "not_finite": "the loss or a gradient was not finite",
}


def show_range_test(
    path: Path,
    args: list[str],
    *,
    min_rate: float,
    max_rate: float,
    steps: int,
    smoothing: float,
    output_path: Path | None,
    as_json: bool,
    code_path: Path | None,
    use_gpu: int,
) -> None:
    """Run the test and print what it found. Ends the program with 1 if there is nothing to suggest.

    path (Path): A config, or the folder of a trained pipeline.
    args (list[str]): Overrides of settings.
    min_rate, max_rate, steps, smoothing: As in `run_range_test`.
    output_path (Path | None): The picture.
    """
    with errors_shown(as_json=as_json):
        # What can be refused is refused before the work.
        make_ramp(min_rate, max_rate, steps)
        if output_path is not None:
            check_picture(output_path)
        setup = build(path, args, code_path=code_path, use_gpu=use_gpu)
        peaks = learn_rate_settings(setup.config)
        with show_progress(steps, "Training at rising rates") as bar:
            found = run_range_test(
                setup.nlp,
                setup.config,
                min_rate=min_rate,
                max_rate=max_rate,
                steps=steps,
                smoothing=smoothing,
                progress=bar.update,
            )
        if output_path is not None:
            plot_range_test(found.rates, found.losses, found.smoothed, found.suggestions, output_path)
    block = setup.config["training"]["optimizer"]
    highest = max(peaks.values())
    settings = [
        {
            "setting": list(place),
            "peak": peak,
            **{name: peak / highest * rate for name, rate in found.suggestions.items()},
        }
        for place, peak in peaks.items()
    ]
    if as_json:
        print_json(
            {
                "learn_rates": found.rates,
                "losses": [loss if math.isfinite(loss) else None for loss in found.losses],
                "smoothed": found.smoothed,
                "ended": found.ended,
                "suggestions": found.suggestions,
                "settings": settings if found.suggestions else [],
                "groups": found.rates_by_group(),
                "problem": found.problem,
            }
        )
    else:
        _print(make_console(), found, settings, block, output_path)
    if found.problem is not None:
        sys.exit(1)


def _print(
    console: Console,
    found: RangeTest,
    settings: list[dict[str, Any]],
    block: Mapping[str, Any],
    output_path: Path | None,
) -> None:
    console.print(
        f"{len(found.rates)} steps, learning rate {short(found.rates[0])} to {short(found.rates[-1])}. Stopped because "
        f"{_ENDED[found.ended]}."
    )
    if found.breaks is not None:
        console.print(f"From a rate of {short(found.rates[found.breaks])} on the loss was far above all before.")
    if found.smoothed:
        low, high = min(found.smoothed), max(found.smoothed)
        width = min(_CHART_WIDTH, console.width - 40)
        chart = sparkline(console, [(loss - low) / (high - low or 1.0) for loss in found.smoothed], width)
        console.print(f"Loss per word, smoothed: {chart} {short(low)} to {short(high)}")
    if output_path is not None:
        console.print(f"Saved the picture to {output_path}")
    if found.problem is not None:
        print_error(console, found.problem)
        return
    if found.may_go_higher and found.lowest == len(found.smoothed) - 1:
        console.print("Note: the loss was still falling at the end. A higher --max-lr may find a higher rate.")
    console.print()
    rates = found.rates_by_group()
    print_table(
        console,
        ["group", "lowest/10", "steepest"],
        [
            [group, short(rates[group]["lowest/10"]), short(rates[group]["steepest"])]
            if group in rates
            else [group, "frozen", "frozen"]
            for group in found.group_rates[0]
        ],
        numbers=["lowest/10", "steepest"],
    )
    console.print(
        "lowest/10: a tenth of the rate at which the loss was lowest. steepest: the rate at which it fell fastest."
    )
    if max(found.suggestions.values()) > _FAR_APART * min(found.suggestions.values()):
        console.print(
            "Note: the two are far apart, so the curve says little. More --steps may tell more; a short training at "
            "each of them tells which is better."
        )
    console.print("To use the rates of 'lowest/10', change in the config:")
    for line in _config_lines(block, settings):
        console.print(line)


def _config_lines(block: Mapping[str, Any], settings: list[dict[str, Any]]) -> Iterator[str]:
    """What to write into the config."""
    section = ""
    for setting in settings:
        if not setting["peak"]:
            continue
        places = list(find_peak(block, setting["setting"], setting["peak"]))
        is_one = len(places) == 1
        *sections, key = places[0] if is_one else setting["setting"]
        if section != (section := ".".join(["training", "optimizer", *sections])):
            yield f"\n[{section}]"
        rate = f"{setting['lowest/10']:.2g}"
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
