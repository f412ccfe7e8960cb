"""`spacy torchopt schedule`: the learning rate of each param group over the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import typer
from rich.cells import cell_len
from rich.console import Console
from typer import Option as Opt

from ..addons.report import check_picture, plot_schedule
from ..core.errors import ConfigError
from ..core.tables import print_table, sparkline
from ..core.words import short
from ..loop.schedule_check import rates_over_steps
from ..loop.setup import note_on_scores, schedule_notes
from ._command import CODE, CONFIG, GPU, JSON, PICTURE
from ._screen import errors_shown, make_console, print_json, print_notes
from ._setup import build

_CHART_WIDTH = 60  # without a terminal


def schedule(
    ctx: typer.Context,
    config_path: Path = CONFIG,
    steps: Optional[int] = Opt(
        None, "--steps", "-n", min=1, help="Last step to show. Default: max_steps in [training]"
    ),
    output_path: Optional[Path] = PICTURE,
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
    use_gpu: int = GPU,
) -> None:
    """
    Show the learning rate of each param group over the steps. As text, as JSON, or as a picture. The pipeline is built
    and initialized as in `spacy train`, so pass the same overrides, such as --paths.train train.spacy. Nothing is
    trained.
    """
    with errors_shown(as_json=as_json), schedule_notes() as notes:
        if output_path is not None:
            check_picture(output_path)
        setup = build(config_path, ctx.args, code_path=code_path, use_gpu=use_gpu)
        if not steps and not setup.config["training"]["max_steps"] and setup.config["training"]["max_epochs"] <= 0:
            raise ConfigError(
                "Can't show the schedule up to the end of the training: max_steps = 0 in [training] means no limit. "
                "Add --steps."
            )
        steps = steps or setup.count_steps() - 1
        setup.initialize()
        rates = rates_over_steps(setup.optimizer, steps)
        if output_path is not None:
            plot_schedule(rates, output_path, title=f"Learning rates of {config_path}")
    notes += note_on_scores(setup.optimizer)
    if as_json:
        print_json({"steps": steps, "learn_rates": rates, "notes": notes})
        return
    console = make_console()
    _print(console, rates, steps)
    print_notes(console, notes)
    if output_path is not None:
        console.print(f"Saved the picture to {output_path}")


def _print(console: Console, rates: dict[str, list[float]], steps: int) -> None:
    headers = ["group", "step 0", "highest", "at step", f"step {steps}"]
    numbers = headers[1:]
    width = _CHART_WIDTH
    if console.is_terminal:
        width = max(
            10, console.width - max(map(cell_len, rates)) - 2 - sum(max(10, len(header) + 2) for header in numbers)
        )
    rows = []
    for group, values in rates.items():
        highest = max(values)
        chart = sparkline(console, [value / (highest or 1.0) for value in values], width)
        rows.append([group, short(values[0]), short(highest), str(values.index(highest)), short(values[-1]), chart])
    print_table(console, [*headers, "curve"], rows, numbers=numbers)
