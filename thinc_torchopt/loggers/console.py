"""A training log in the console: spaCy's table, with learning rates and the gradient norm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import IO, Literal, Optional, Union

import tqdm
from spacy.language import Language
from spacy.training.loggers import console_logger_v3

from .console_table import ConsoleTable, lowest_and_highest, terminal_width
from .steps import Info, Logger, LogStep, block_of, check_path

_TOLD = {
    "skipped_updates": "skipped",
    "rollbacks": "rolled back",
    "outside_writes": "rates changed from outside",
}


def ConsoleLogger(
    progress_bar: Optional[Literal["train", "eval"]] = None,
    console_output: bool = True,
    output_file: Optional[Union[str, Path]] = None,
) -> Logger:
    """spaCy's table, with the learning rates and the norm of the gradients. Registered as
    `thinc-torchopt.ConsoleLogger.v1`.

    spaCy's columns come first, unchanged. The header is printed with the first row, and again when param groups change.
    A row ends with a remark if updates were skipped or rules of the trainer controller fired since the row before.

    progress_bar ("train" | "eval" | None): Show the progress to the end of the training or to the next evaluation, with
        the learning rate. Only if stderr is a terminal.
    console_output (bool): Print the table. Without it there is no progress bar either.
    output_file (str | Path | None): As in spacy.ConsoleLogger.v3, which writes it.
    RETURNS (Callable): The logger for [training.logger].
    RAISES (ConfigError): An argument is invalid.
    """
    block = block_of("thinc-torchopt.ConsoleLogger.v1")
    block.choice("progress_bar", progress_bar, ("train", "eval", None))
    block.flag("console_output", console_output)
    if output_file is not None:
        output_file = check_path(block, "output_file", output_file, "the path of a file, or null")
    spacys = console_logger_v3(progress_bar=None, console_output=console_output, output_file=output_file)

    def setup(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        from ..training import latest_info

        printed = StringIO()
        log_theirs, finalize_theirs = spacys(nlp, printed, stderr)
        lines = printed.getvalue().splitlines()
        header = [lines.pop(-2), lines.pop()] if console_output else []
        for line in lines:
            print(line, file=stdout, flush=True)
        table = ConsoleTable(nlp, *header) if header else None
        bar: tqdm.tqdm | None = None

        def log_step(info: Info | None) -> None:
            nonlocal bar
            if info is None:
                if bar is not None:
                    if not bar.disable and (latest := latest_info(nlp)):
                        bar.set_postfix_str(_rates_in_brief(latest), refresh=False)
                    bar.update(1)
                return
            printed.seek(0)
            printed.truncate()
            log_theirs(info)
            if bar is not None:
                bar.close()
            if table is None:
                return
            since = info.get("since_evaluation", {})
            told = [f"{since[counter]} {word}" for counter, word in _TOLD.items() if since.get(counter)]
            told += [f"{name} fired" + f" {n} times" * (n > 1) for name, n in info.get("fired", {}).items()]
            remark = "  ".join(told)
            for line in table.lines(printed.getvalue(), info, remark, terminal_width(stdout)):
                print(line, file=stdout, flush=True)
            if progress_bar is not None:
                bar = _start_bar(nlp, progress_bar, info, stderr)

        def finalize() -> None:
            if bar is not None:
                bar.close()
            finalize_theirs()

        return log_step, finalize

    return setup


def _rates_in_brief(info: Info) -> str:
    low, high = lowest_and_highest(info["learn_rates"])
    return f"LR {high:.2e}" if low == high else f"LR {low:.2e} to {high:.2e}"


def _start_bar(nlp: Language, kind: str, info: Info, stderr: IO[str]) -> tqdm.tqdm:
    """SOURCE: spacy/training/loggers.py (3.8), console_logger_v3."""
    training = nlp.config.interpolate()["training"]
    total, initial = (training["max_steps"], info["step"]) if kind == "train" else (training["eval_frequency"], 0)
    # disable=None: off if stderr is no terminal.
    bar = tqdm.tqdm(total=total, disable=None, leave=False, file=stderr, initial=initial)
    bar.set_description(f"Last Eval Epoch: {info['epoch']}" if kind == "train" else f"Epoch {info['epoch'] + 1}")
    return bar
