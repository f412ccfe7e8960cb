"""Logs of each step in files: JSON lines, which a resumed run continues, and curves for TensorBoard.

spaCy calls a logger after every step, but passes a log entry at evaluations only. Between them, ours get it from the
training loop (`latest_info`). With another optimizer they only log evaluations, without our numbers.

*info*: the log entry of a step, a dict.
*losses*: in the console, sums since the last evaluation, as in spaCy. In files, means per step since the last line.
"""

from __future__ import annotations

import json
import math
import os.path
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import FileIO
from itertools import count, islice, takewhile
from numbers import Integral, Real
from pathlib import Path
from typing import IO, Any, Optional, Union

from spacy.language import Language
from wasabi.printer import Printer

from ...core.checks import Section
from ...core.compat import import_tensorboard
from ...core.errors import ConfigError, TorchOptWarning

Info = dict[str, Any]
LogStep = Callable[[Optional[Info]], None]
Logger = Callable[[Language, IO[str], IO[str]], tuple[LogStep, Callable[[], None]]]

# Counts of our loop since the training began.
COUNTS = ("skipped_updates", "grad_spikes", "rollbacks", "outside_writes")
# Keys of a log entry that are no numbers of their own: other keys have them, or they are for the loop and the console.
_OTHERS = ("checkpoints", "elapsed", "since_evaluation", "step_losses", "fired", "log_now", "output_path", "run_id")
# Labels of a component in the first line of a log.
_MOST_LABELS = 100
# Keys that each logger has its own way for.
_KNOWN = ("step", "epoch", "seconds", "words", "losses", "score", "other_scores", "learn_rates", "grad_norm", *COUNTS)


# ---------------------------------------------------------------------- JSON lines


def JSONLinesLogger(path: Optional[Union[str, Path]] = None, every: int = 1) -> Logger:
    """Write one line of JSON for each step. Registered as `thinc-torchopt.JSONLinesLogger.v1`.

    A resumed run adds its lines to its newest file, if that ends before its first step. Any other run writes to a new
    file: the first of "log.jsonl", "log-2.jsonl", "log-3.jsonl" ... that does not exist. Existing lines are never
    changed.

    path (str | Path | None): Path of the file. Missing folders are created. None: `log.jsonl` in the folder of
        `--output`; without one, there is no log.
    every (int): Steps between two lines. Evaluations are always written.
    RETURNS (Callable): The logger for [training.logger].
    RAISES (ConfigError): `every` is below 1, or `path` is a folder.
    """
    block = block_of("thinc-torchopt.JSONLinesLogger.v1")
    every = block.whole("every", every, at_least=1)
    given = None if path is None else block.file("path", path, "the path of a file, or null")

    def setup(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        from ...core.hooks import output_of_training
        from ...loop.components import sums_of_gradients
        from ...loop.run_lock import hold

        output = output_of_training()
        path = given if given is not None or output is None else output / "log.jsonl"
        if path is None:
            told = "Steps are not logged: the block of the log has no 'path', and no --output is known"
            print(Printer(no_print=True).info(told), file=stdout, flush=True)
            return lambda info: None, lambda: None
        if path.is_dir():
            raise ConfigError(
                f"Can't write the training log {path}: expected a file, found a folder. Add the name of a file to "
                "'path'."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        *taken, free = until_free(path)
        which = f"{free}, or if the run is resumed, to its own log" if taken else free
        print(Printer(no_print=True).info(f"Logging steps to {which}"), file=stdout, flush=True)
        file: FileIO | None = None

        def write(info: Info, losses: dict[str, float]) -> None:
            nonlocal file
            record, run_id = record_of(info, losses), info.get("run_id")
            if file is None:
                file = _open_log(path, info["step"], run_id)
                hold(file.fileno())  # so that others see that the run is going on
                # Only in the first line, for reports.
                if names := sums_of_gradients(nlp):
                    record["sums_of_gradients"] = names
                if "learn_rates" in info:
                    record |= {"trained": what_is_trained(nlp), "run_id": run_id}
            _append(file, (json.dumps(plain(record), allow_nan=False) + "\n").encode("utf8"))

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
    return record | {key: info[key] for key in keys if key in info} | _added_to(info)


def what_is_trained(nlp: Language) -> dict[str, Any]:
    """The components that are trained, the corpora, and the settings, for reports. Of each component at most
    `_MOST_LABELS` labels.
    """
    config = nlp.config.interpolate()
    training = {name: value for name, value in config["training"].items() if name not in ("logger", "score_weights")}
    components = []
    for name, proc in nlp.pipeline:
        labels = [str(label) for label in getattr(proc, "labels", ())]
        model = config["components"].get(name, {}).get("model")
        components.append(
            {
                "name": name,
                "factory": nlp.get_pipe_meta(name).factory,
                "architecture": model.get("@architectures") if isinstance(model, dict) else None,
                "labels": labels[:_MOST_LABELS],
                "n_labels": len(labels),
            }
        )
    kept = {"paths": config.get("paths", {}), "corpora": config.get("corpora", {}), "training": training}
    return {"lang": nlp.lang, "components": components, "config": kept}


def _open_log(path: Path, step: int, run_id: str | None) -> FileIO:
    """Open the newest log of a run if its last step is before `step`, or an empty file; otherwise a new one."""
    *taken, free = until_free(path)
    newest = next((log for log in reversed(taken) if _is_of(log, run_id)), None)
    if newest is not None and _ends_before(newest, step):
        return open(newest, "ab", buffering=0)
    try:
        return open(free, "xb", buffering=0)
    except FileExistsError:  # another process was faster
        return _open_log(path, step, run_id)


def _is_of(path: Path, run_id: str | None) -> bool:
    """Whether a file is empty, or a log of a run, by its first line. run_id (str | None): None: of no run."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline()
    return not first or (run_id is not None and _read_line(first).get("run_id") == run_id)


def _ends_before(path: Path, step: int) -> bool:
    """Whether a file is empty, or a complete log whose last step is before `step`."""
    last = b""
    with path.open("rb") as file:
        for last in file:  # noqa: B007
            pass
    last_step = _read_line(last).get("step")
    return not last or (last.endswith(b"\n") and isinstance(last_step, int) and last_step < step)


def _read_line(line: bytes) -> dict[str, Any]:
    """The content of a line. Empty: it is of no log."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


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


# ---------------------------------------------------------------------- TensorBoard


def TensorBoardLogger(path: Union[str, Path], every: int = 1) -> Logger:
    """Write curves for TensorBoard. Registered as `thinc-torchopt.TensorBoardLogger.v1`; needs the extra `tensorboard`.

    Scalars: learn_rate/<group>, grad_norm, skipped_updates, grad_spikes, rollbacks, outside_writes, loss/<pipe>;
    at evaluations also score and score/<name>.

    path (str | Path): Folder of this run. If it has a run already: the first of "path-2", "path-3" ... that has none.
    every (int): Steps between two writes. Evaluations are always written.
    RETURNS (Callable): The logger for [training.logger].
    RAISES (ConfigError): `every` is below 1, or `path` is a file. (ImportError): TensorBoard is not installed.
    """
    block = block_of("thinc-torchopt.TensorBoardLogger.v1")
    every = block.whole("every", every, at_least=1)
    SummaryWriter, Summary = import_tensorboard()
    path = block.file("path", path, "the path of a folder")

    def setup(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        if path.is_file():
            raise ConfigError(
                f"Can't write events for TensorBoard to {path}: expected a folder, found a file. Change 'path'."
            )
        folder = next(folder for folder in numbered(path) if not any(folder.glob("events.out.tfevents.*")))
        print(Printer(no_print=True).info(f"Logging to {folder}"), file=stdout, flush=True)
        writer = SummaryWriter(str(folder))

        def write(info: Info, losses: dict[str, float]) -> None:
            # All at once: with 30 param groups that is 20 times faster than add_scalar.
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in _scalars(info, losses)]
            writer.file_writer.add_summary(Summary(value=values), info["step"])
            if info["score"] is not None:
                writer.flush()

        def finalize() -> None:
            # After a failed write, closing fails too. Ignore it, as spaCy has yet to save the model.
            with suppress(OSError):
                writer.close()

        return log_steps(nlp, every, write, path), finalize

    return setup


def _scalars(info: Info, losses: dict[str, float]) -> Iterator[tuple[str, float]]:
    """Tags and values for TensorBoard."""
    found = {f"learn_rate/{group}": rate for group, rate in info.get("learn_rates", {}).items()}
    found |= {key: info.get(key) for key in ("grad_norm", *COUNTS)}
    found |= {f"loss/{pipe}": loss for pipe, loss in losses.items()}
    if info["score"] is not None:
        found |= {"score": info["score"]} | {f"score/{name}": score for name, score in info["other_scores"].items()}
    found |= _added_to(info)
    for tag, value in found.items():
        number = value if isinstance(value, Real) else plain(value)
        if isinstance(number, Real):
            yield tag, float(number)


# ---------------------------------------------------------------------- each step


def block_of(logger: str) -> Section:
    """The section of a logger, for errors."""
    return Section(f"the block of '{logger}'", allows_texts=False)


def _added_to(info: Info) -> Info:
    """The part of a log entry that the run and its listeners added."""
    added = (key for key in info if key not in _KNOWN and key not in _OTHERS and not key.startswith("learn_rate_"))
    return {key: info[key] for key in added}


def log_steps(nlp: Language, every: int, write: Callable[[Info, dict[str, float]], None], path: Path) -> LogStep:
    """The function that spaCy calls after each step.

    every (int): Steps between two writes, beside those at evaluations.
    write (Callable): Called with the info of a step, and the mean losses per step since its last call.
    path (Path): For the warning if writing fails, e.g. on a full disk. Nothing is written after that.
    """
    from ...loop.log_numbers import latest_info

    steps = 0
    sums: dict[str, float] = {}
    has_failed = False

    def log_step(evaluated: Info | None) -> None:
        nonlocal steps, sums, has_failed
        steps += 1
        info = latest_info(nlp) if evaluated is None else evaluated
        if has_failed or info is None:
            return
        # With another optimizer there are only spaCy's sums, at evaluations.
        for pipe, loss in info.get("step_losses", info["losses"]).items():
            sums[pipe] = sums.get(pipe, 0.0) + float(loss)
        if evaluated is None and info["step"] % every and not info.get("log_now"):
            return
        try:
            write(info, {pipe: loss / steps for pipe, loss in sums.items()})
        except OSError as error:
            from ...core.state import advice_on  # takes long to import, and loggers are found wherever spaCy is used

            has_failed = True
            warnings.warn(
                TorchOptWarning(
                    f"Can't write the training log {path} at step {info['step']}: {error}. The training continues "
                    f"without this log.{advice_on(error)}"
                ),
                stacklevel=2,
            )
        steps, sums = 0, {}

    return log_step


# ---------------------------------------------------------------------- names of files, and what is in them


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
