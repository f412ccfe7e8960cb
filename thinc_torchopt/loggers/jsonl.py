"""A training log as JSON lines: one object a step, in a file that a run that was resumed goes on with."""

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
from ..training import hold, sums_of_gradients
from .steps import COUNTS, IF_ANY, Info, Logger, LogStep, block_of, check_path, log_steps, plain, until_free


def JSONLinesLogger(path: Union[str, Path], every: int = 1) -> Logger:
    """One line of JSON for each step. Registered as `thinc-torchopt.JSONLinesLogger.v1`.

    A file that is there already is never changed, except by a run that goes on after its last step: such a run adds its
    lines. Any other run writes to a new file, of "log.jsonl", "log-2.jsonl", "log-3.jsonl" ... the first that is free.
    Which file a run may go on with, the newest of them, is seen at its first line.

    path (str | Path): Folders that are missing are made.
    every (int): Write every so many steps. Evaluations are always written.
    RETURNS (Callable): For [training.logger].
    RAISES (ConfigError): `every` below 1, or `path` is a folder.
    """
    block = block_of("thinc-torchopt.JSONLinesLogger.v1")
    every = block.whole("every", every, at_least=1)
    path = check_path(block, "path", path, "the path of a file")

    def setup(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
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
                hold(file.fileno())  # by which others see that the run goes on
                # Names, once: a reader knows a component by nothing else.
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
    """What a line of JSON holds."""
    record = {key: info[key] for key in ("step", "epoch", "seconds", "words") if key in info} | {"losses": losses}
    if "elapsed" in info:
        record["seconds"] = round(info["elapsed"], 3)
    if info["score"] is not None:
        record |= {"score": info["score"], "scores": info["other_scores"]}
    keys = ("learn_rates", "grad_norm", *COUNTS, *IF_ANY, "sums_of_gradients")
    return record | {key: info[key] for key in keys if key in info}


def _open_log(path: Path, step: int) -> FileIO:
    """Open the newest log if its last line is from before `step`, or else a new one."""
    *taken, free = until_free(path)
    if taken and _ends_before(taken[-1], step):
        return open(taken[-1], "ab", buffering=0)
    try:
        return open(free, "xb", buffering=0)
    except FileExistsError:  # another process was quicker
        return _open_log(path, step)


def _ends_before(path: Path, step: int) -> bool:
    """Whether a file is a log, or empty, and whole, with a last step before `step`."""
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
    """Write a line or nothing: half a line, on a full disk, is taken away again."""
    start = file.seek(0, 2)
    try:
        done = 0
        while done < len(line):
            done += file.write(line[done:])
    except OSError:
        file.truncate(start)
        raise
