"""Shared by loggers: the content of a log entry, how often to write it, and the path of the file.

spaCy calls a logger after every step, but passes a log entry at evaluations only. Between them, ours get it from the
training loop (`latest_info`). With another optimizer they only log evaluations, without our numbers.

*info*: the log entry of a step, a dict.
*losses*: in the console, sums since the last evaluation, as in spaCy. In files, means per step since the last line.
"""

from __future__ import annotations

import math
import os.path
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice, takewhile
from numbers import Integral, Real
from pathlib import Path
from typing import IO, Any, Optional

from spacy.language import Language

from ..checks import Section
from ..errors import TorchOptWarning

Info = dict[str, Any]
LogStep = Callable[[Optional[Info]], None]
Logger = Callable[[Language, IO[str], IO[str]], tuple[LogStep, Callable[[], None]]]

# Counts of our loop since the training began.
COUNTS = ("skipped_updates", "grad_spikes", "rollbacks", "outside_writes")
# Keys that are only there if there is something to report.
IF_ANY = (
    *("last_checkpoint", "last_rollback", "last_resume", "dev_losses", "controller"),
    *("epsilon", "privacy"),
)


# ---------------------------------------------------------------------- console


# ---------------------------------------------------------------------- every step


def block_of(logger: str) -> Section:
    """The section of a logger, for errors."""
    return Section(f"the block of '{logger}'", allows_texts=False)


def check_path(block: Section, name: str, path: Any, expected: str) -> Path:
    """RAISES (ConfigError): The value is no path, or empty, which would be the current folder."""
    if not isinstance(path, (str, Path)) or not str(path):
        block.refuse(name, expected, path)
    return Path(path)


def log_steps(nlp: Language, every: int, write: Callable[[Info, dict[str, float]], None], path: Path) -> LogStep:
    """The function that spaCy calls after each step.

    every (int): Steps between two writes, beside those at evaluations.
    write (Callable): Called with the info of a step, and the mean losses per step since its last call.
    path (Path): For the warning if writing fails, e.g. on a full disk. Nothing is written after that.
    """
    from ..training import latest_info

    steps = 0
    sums: dict[str, float] = {}
    has_failed = False

    def log_step(evaluated: Info | None) -> None:
        nonlocal steps, sums, has_failed
        steps += 1
        info = latest_info(nlp) if evaluated is None else evaluated
        if info is not None and "losses_before" in info:  # sums from before the run was resumed
            sums = {pipe: float(loss) for pipe, loss in info["losses_before"].items()}
        if has_failed or info is None or (evaluated is None and info["step"] % every and not info.get("log_now")):
            return
        losses = {pipe: float(loss) for pipe, loss in info["losses"].items()}
        try:
            write(info, {pipe: (loss - sums.get(pipe, 0.0)) / steps for pipe, loss in losses.items()})
        except OSError as error:
            has_failed = True
            warnings.warn(
                TorchOptWarning(
                    f"Can't write the training log {path} at step {info['step']}: {error}. The training continues "
                    "without this log. Make room, or choose another path."
                ),
                stacklevel=2,
            )
        # spaCy's loop resets the sums after each evaluation.
        steps, sums = 0, losses if evaluated is None else {}

    return log_step


# ---------------------------------------------------------------------- files


def numbered(path: Path, suffix: str = "") -> Iterator[Path]:
    """log.jsonl, log-2.jsonl, log-3.jsonl ..."""
    yield path
    yield from (path.parent / f"{path.name.removesuffix(suffix)}-{i}{suffix}" for i in count(2))


def until_free(path: Path) -> list[Path]:
    """The numbered files that exist, and the first that doesn't."""
    taken = list(takewhile(os.path.lexists, numbered(path, path.suffix)))
    return [*taken, next(islice(numbered(path, path.suffix), len(taken), None))]


def plain(value: Any) -> Any:
    """A value for JSON. NaN and infinities become None; numbers and arrays of NumPy, CuPy and torch become numbers and
    lists.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)
