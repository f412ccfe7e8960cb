"""Training loggers, for [training.logger]: a table in the console, a line of JSON a step, curves for TensorBoard.

spaCy calls a logger after every step, but tells it something at evaluations only. Between them, ours ask the training loop
(`loop.latest_info`). With an optimizer that is not ours there is nothing to ask: then they log evaluations, without what spaCy's loop
doesn't know.

*info*: what the loop tells of a step, a dict.
*losses*: in the console, as in spaCy's, the sum since the evaluation before. In files, the mean per step since what was written before.
"""

from __future__ import annotations

import json
import math
import os.path
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import FileIO, StringIO
from itertools import count, islice, takewhile
from numbers import Integral, Real
from pathlib import Path
from typing import IO, Any, Literal, Optional, Union

import tqdm
from spacy.language import Language
from spacy.training.loggers import console_logger_v3
from wasabi.printer import Printer

from ..compat import import_tensorboard
from ..errors import ConfigError, TorchOptWarning
from ..training import latest_info
from .console_table import ConsoleTable, lowest_and_highest, terminal_width

Info = dict[str, Any]
LogStep = Callable[[Optional[Info]], None]
Logger = Callable[[Language, IO[str], IO[str]], tuple[LogStep, Callable[[], None]]]

# What our loop counts since the training began; and what the table calls those that it tells of.
_COUNTS = ("skipped_updates", "grad_spikes", "rollbacks", "outside_writes", "conservative_mode")
_TOLD = {
    "skipped_updates": "skipped",
    "rollbacks": "rolled back",
    "outside_writes": "rates changed from outside",
    "conservative_mode": "times in conservative mode",
}
# What it tells if there was any.
_IF_ANY = ("overruns", "last_checkpoint", "last_rollback")


def ConsoleLogger(
    progress_bar: Optional[Literal["train", "eval"]] = None,
    console_output: bool = True,
    output_file: Optional[Union[str, Path]] = None,
) -> Logger:
    """spaCy's table, with the learning rate and the norm of the gradients. Registered as `thinc-torchopt.ConsoleLogger.v1`.

    spaCy's columns come first and are spaCy's own, to the character. The header comes with the first row, when the param groups are
    known, and again when they change. Where updates were skipped since the row before, the row ends by saying how many.

    progress_bar ("train" | "eval" | None): Show the steps until the end of the training or until the next evaluation, with the rate.
        Not shown where stderr is no terminal.
    console_output (bool): Show the table. Without it there is no progress bar either.
    output_file (str | Path | None): As in spacy.ConsoleLogger.v3, which writes it.
    RETURNS (Callable): For [training.logger].
    RAISES (ConfigError): Unknown progress bar.
    """
    if progress_bar not in (None, "train", "eval"):
        raise ConfigError(
            "Can't set 'progress_bar' in the block of 'thinc-torchopt.ConsoleLogger.v1': expected \"train\", \"eval\" or null, "
            f"found {progress_bar!r}."
        )
    spacys = console_logger_v3(progress_bar=None, console_output=console_output, output_file=output_file)

    def setup(nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr) -> tuple[LogStep, Callable[[], None]]:
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
            remark = "  ".join(f"{since[counter]} {word}" for counter, word in _TOLD.items() if since.get(counter))
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


def JSONLinesLogger(path: Union[str, Path], every: int = 1) -> Logger:
    """One line of JSON for each step. Registered as `thinc-torchopt.JSONLinesLogger.v1`.

    A file that is there already is never changed, except by a run that goes on after its last step: such a run adds its lines. Any other
    run writes to a new file, of "log.jsonl", "log-2.jsonl", "log-3.jsonl" ... the first that is free. Which file a run may go on with, the
    newest of them, is seen at its first line.

    path (str | Path): Folders that are missing are made.
    every (int): Write every so many steps. Evaluations are always written.
    RETURNS (Callable): For [training.logger].
    RAISES (ConfigError): `every` below 1, or `path` is a folder.
    """
    _check_every(every, "thinc-torchopt.JSONLinesLogger.v1")
    path = Path(path)

    def setup(nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr) -> tuple[LogStep, Callable[[], None]]:
        if path.is_dir():
            raise ConfigError(f"Can't write the training log {path}: expected a file, found a folder. Add the name of a file to 'path'.")
        path.parent.mkdir(parents=True, exist_ok=True)
        *taken, free = _until_free(path)
        which = f"{free} (a resumed run: {taken[-1]}, if it ends before it)" if taken else free
        print(Printer(no_print=True).info(f"Logging steps to {which}"), file=stdout, flush=True)
        file: FileIO | None = None

        def write(info: Info, losses: dict[str, float]) -> None:
            nonlocal file
            if file is None:
                file = _open_log(path, info["step"])
            _append(file, (json.dumps(_plain(_record(info, losses)), allow_nan=False) + "\n").encode("utf8"))

        def finalize() -> None:
            if file is not None:
                with suppress(OSError):
                    file.close()

        return _log_steps(nlp, every, write, path), finalize

    return setup


def TensorBoardLogger(path: Union[str, Path], every: int = 1) -> Logger:
    """Curves for TensorBoard. Registered as `thinc-torchopt.TensorBoardLogger.v1`; needs the extra `tensorboard`.

    Scalars: learn_rate/<group>, grad_norm, skipped_updates, grad_spikes, rollbacks, outside_writes, conservative_mode, loss/<pipe>; at
    evaluations score and score/<name>.

    path (str | Path): Folder of this run. If it holds a run already: "path-2", "path-3" ..., the first that is free.
    every (int): Write every so many steps. Evaluations are always written.
    RETURNS (Callable): For [training.logger].
    RAISES (ConfigError): `every` below 1, or `path` is a file.
    RAISES (ImportError): TensorBoard is not installed.
    """
    _check_every(every, "thinc-torchopt.TensorBoardLogger.v1")
    SummaryWriter, Summary = import_tensorboard()
    path = Path(path)

    def setup(nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr) -> tuple[LogStep, Callable[[], None]]:
        if path.is_file():
            raise ConfigError(f"Can't write events for TensorBoard to {path}: expected a folder, found a file. Change 'path'.")
        folder = next(folder for folder in _numbered(path) if not any(folder.glob("events.out.tfevents.*")))
        print(Printer(no_print=True).info(f"Logging to {folder}"), file=stdout, flush=True)
        writer = SummaryWriter(str(folder))

        def write(info: Info, losses: dict[str, float]) -> None:
            # All at once: with 30 param groups that is 20 times as quick as add_scalar.
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in _scalars(info, losses)]
            writer.file_writer.add_summary(Summary(value=values), info["step"])
            if info["score"] is not None:
                writer.flush()

        def finalize() -> None:
            # When writing failed, and we told so, closing fails once more. spaCy's loop has yet to save the model.
            with suppress(OSError):
                writer.close()

        return _log_steps(nlp, every, write, path), finalize

    return setup


# ---------------------------------------------------------------------- console


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


# ---------------------------------------------------------------------- every step


def _check_every(every: int, logger: str) -> None:
    if every < 1:
        raise ConfigError(f"Can't set 'every' in the block of '{logger}': expected a number of steps, 1 or more, found {every}.")


def _log_steps(nlp: Language, every: int, write: Callable[[Info, dict[str, float]], None], path: Path) -> LogStep:
    """What spaCy is to call after each step.

    every (int): Write every so many steps, and at evaluations.
    write (Callable): Gets the info of a step, and the mean losses per step since it was last called.
    path (Path): For the warning when writing fails, e.g. on a full disk. After it nothing more is written.
    """
    steps = 0
    sums: dict[str, float] = {}
    has_failed = False

    def log_step(evaluated: Info | None) -> None:
        nonlocal steps, sums, has_failed
        steps += 1
        info = latest_info(nlp) if evaluated is None else evaluated
        if has_failed or info is None or (evaluated is None and info["step"] % every):
            return
        losses = {pipe: float(loss) for pipe, loss in info["losses"].items()}
        try:
            write(info, {pipe: (loss - sums.get(pipe, 0.0)) / steps for pipe, loss in losses.items()})
        except OSError as error:
            has_failed = True
            warnings.warn(
                TorchOptWarning(
                    f"Can't write the training log {path} at step {info['step']}: expected to add to it, found: {error}. "
                    "The training goes on without this log. Make room, or choose another path."
                ),
                stacklevel=2,
            )
        # spaCy's loop begins a new sum after each evaluation.
        steps, sums = 0, losses if evaluated is None else {}

    return log_step


def _record(info: Info, losses: dict[str, float]) -> dict[str, Any]:
    """What a line of JSON holds."""
    record = {key: info[key] for key in ("step", "epoch", "seconds", "words") if key in info} | {"losses": losses}
    if "elapsed" in info:
        record["seconds"] = round(info["elapsed"], 3)
    if info["score"] is not None:
        record |= {"score": info["score"], "scores": info["other_scores"]}
    return record | {key: info[key] for key in ("learn_rates", "grad_norm", *_COUNTS, *_IF_ANY) if key in info}


def _scalars(info: Info, losses: dict[str, float]) -> Iterator[tuple[str, float]]:
    """Tags and values for TensorBoard."""
    found = {f"learn_rate/{group}": rate for group, rate in info.get("learn_rates", {}).items()}
    found |= {key: info.get(key) for key in ("grad_norm", *_COUNTS)}
    found |= {f"loss/{pipe}": loss for pipe, loss in losses.items()}
    if info["score"] is not None:
        found |= {"score": info["score"]} | {f"score/{name}": score for name, score in info["other_scores"].items()}
    for tag, value in found.items():
        number = value if isinstance(value, Real) else _plain(value)
        if isinstance(number, Real):
            yield tag, float(number)


# ---------------------------------------------------------------------- files


def _numbered(path: Path, suffix: str = "") -> Iterator[Path]:
    """log.jsonl, log-2.jsonl, log-3.jsonl ..."""
    yield path
    yield from (path.parent / f"{path.name.removesuffix(suffix)}-{i}{suffix}" for i in count(2))


def _until_free(path: Path) -> list[Path]:
    """The numbered files that exist, and the first that doesn't."""
    taken = list(takewhile(os.path.lexists, _numbered(path, path.suffix)))
    return [*taken, next(islice(_numbered(path, path.suffix), len(taken), None))]


def _open_log(path: Path, step: int) -> FileIO:
    """Open the newest log if its last line is from before `step`, or else a new one."""
    *taken, free = _until_free(path)
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
    return last.endswith(b"\n") and isinstance(record, dict) and isinstance(record.get("step"), int) and record["step"] < step


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


def _plain(value: Any) -> Any:
    """As JSON knows it. NaN and infinities become None; NumPy's, CuPy's and torch's numbers and arrays, numbers and lists."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)
