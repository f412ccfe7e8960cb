"""Curves of a training for TensorBoard."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import IO, Union

from spacy.language import Language
from wasabi.printer import Printer

from ..compat import import_tensorboard
from ..errors import ConfigError
from .steps import COUNTS, Info, Logger, LogStep, added_to, block_of, check_path, log_steps, numbered, plain


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
    path = check_path(block, "path", path, "the path of a folder")

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
    found |= added_to(info)
    for tag, value in found.items():
        number = value if isinstance(value, Real) else plain(value)
        if isinstance(number, Real):
            yield tag, float(number)
