"""A training log as JSON lines: one object per step, in a file that a resumed run continues."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, Union

from spacy.language import Language
from wasabi.printer import Printer

from ..errors import ConfigError
from .steps import COUNTS, Info, Logger, LogStep, added_to, block_of, check_path, log_steps, plain, until_free


def JSONLinesLogger(path: Union[str, Path], every: int = 1) -> Logger:
    """Write one line of JSON for each step. Registered as `thinc-torchopt.JSONLinesLogger.v1`.

    A resumed run adds its lines to the newest file, if that ends before its first step. Any other run writes to a new
    file: the first of "log.jsonl", "log-2.jsonl", "log-3.jsonl" ... that does not exist. Existing lines are never
    changed.

    path (str | Path): Path of the file. Missing folders are created.
    every (int): Steps between two lines. Evaluations are always written.
    RETURNS (Callable): The logger for [training.logger].
    RAISES (ConfigError): `every` is below 1, or `path` is a folder.
    """
    block = block_of("thinc-torchopt.JSONLinesLogger.v1")
    every = block.whole("every", every, at_least=1)
    path = check_path(block, "path", path, "the path of a file")

    def setup(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        from ..training import hold, sums_of_gradients

        if path.is_dir():
            raise ConfigError(
                f"Can't write the training log {path}: expected a file, found a folder. Add the name of a file to "
                "'path'."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        *taken, free = until_free(path)
        which = f"{free} (a resumed run: {taken[-1]}, if it ends before it)" if taken else free
        print(Printer(no_print=True).info(f"Logging steps to {which}"), file=stdout, flush=True)
        file: FileIO | None = None

        def write(info: Info, losses: dict[str, float]) -> None:
            nonlocal file
            if file is None:
                file = _open_log(path, info["step"])
                hold(file.fileno())  # so that others see that the run is going on
                # Only in the first line, for reports.
                if names := sums_of_gradients(nlp):
                    info = {**info, "sums_of_gradients": names}
            _append(file, (json.dumps(plain(record_of(info, losses)), allow_nan=False) + "\n").encode("utf8"))

        def finalize() -> None:
            if file is not None:
                with suppress(OSError):
                    file.close()

        return log_steps(nlp, every, write, path), finalize

    return setup


def record_of(info: Info, losses: dict[str, float]) -> dict[str, Any]:
    """The content of a line."""
    record = {key: info[key] for key in ("step", "epoch", "seconds", "words") if key in info} | {"losses": losses}
    if "elapsed" in info:
        record["seconds"] = round(info["elapsed"], 3)
    if info["score"] is not None:
        record |= {"score": info["score"], "scores": info["other_scores"]}
    keys = ("learn_rates", "grad_norm", *COUNTS)
    return record | {key: info[key] for key in keys if key in info} | added_to(info)


def _open_log(path: Path, step: int) -> FileIO:
    """Open the newest log if its last step is before `step`; otherwise a new one."""
    *taken, free = until_free(path)
    if taken and _ends_before(taken[-1], step):
        return open(taken[-1], "ab", buffering=0)
    try:
        return open(free, "xb", buffering=0)
    except FileExistsError:  # another process was faster
        return _open_log(path, step)


def _ends_before(path: Path, step: int) -> bool:
    """Whether a file is empty, or a complete log whose last step is before `step`."""
    if not path.is_file():
        return False
    last = b""
    with path.open("rb") as file:
        for last in file:  # noqa: B007
            pass
    if not last:
        return True
    try:
        record = json.loads(last)
    except ValueError:
        return False
    return (
        last.endswith(b"\n")
        and isinstance(record, dict)
        and isinstance(record.get("step"), int)
        and record["step"] < step
    )


def _append(file: FileIO, line: bytes) -> None:
    """Write a line completely or not at all: half a line, on a full disk, is removed again."""
    start = file.seek(0, 2)
    try:
        done = 0
        while done < len(line):
            done += file.write(line[done:])
    except OSError:
        file.truncate(start)
        raise
