"""Checkpoints for your own training loop, as [training.optimizer.checkpoint] for `spacy train`.

    with Checkpoints("training/state", nlp, optimizer) as checkpoints:
        for step, batch in checkpoints.resume(batches):
            nlp.update(batch, sgd=optimizer)
            optimizer.step_schedules()
            if step % 500 == 0:
                checkpoints.save()

A loop that was stopped in any way and is run again resumes after its newest checkpoint, and ends with bit-identical
weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, TypeVar

from spacy.language import Language

from ...core.checks import Section
from ...core.errors import ConfigWarning, StateError
from ...core.optimizer import TorchOptimizer
from ...loop.checkpoint import RunCheckpoints
from ...loop.checkpoint_settings import Checkpoint
from ...loop.progress import Progress

Batch = TypeVar("Batch")

_SECTION = Section("thinc_torchopt.Checkpoints")


class Checkpoints:
    """Save the state of a training loop, and resume from it. See the module's docstring for an example.

    Use it in a `with` block, or call `close` at the end: while it is open, the folder is locked for other processes.

    path (str | Path): A folder for this run alone.
    nlp (Language): The pipeline, initialized.
    optimizer (TorchOptimizer): The optimizer that trains it.
    keep (int): Number of checkpoints to keep, the newest ones.
    resume ("auto" | "must" | "never"): "auto" resumes from the newest undamaged checkpoint, if there is one; "must"
        raises an error if there is none; "never" starts from scratch, and removes existing checkpoints.
    on_config_change ("refuse" | "warn"): Whether to raise an error or warn if the pipeline's config, vectors or labels
        differ from the checkpoint's.
    in_background (bool): `save` copies the state, and a thread writes it. False: `save` writes it.
    progress_bar (bool): Show a progress bar while earlier batches are skipped. Only in a terminal or notebook.
    RAISES (ConfigError): An argument is out of its range.

    Public: `step` (the current or last step, counted from 0; -1 before the first) and `extra` (a dict for your own
    values, such as losses or the best score, which are saved and restored: numbers, texts, lists, dicts, arrays,
    tensors. Its keys are texts).
    """

    def __init__(
        self,
        path: str | Path,
        nlp: Language,
        optimizer: TorchOptimizer,
        *,
        keep: int = 2,
        resume: Literal["auto", "must", "never"] = "auto",
        on_config_change: Literal["refuse", "warn"] = "refuse",
        in_background: bool = True,
        progress_bar: bool = True,
    ):
        self._settings = Checkpoint(
            str(_SECTION.file("path", path, "a folder")),
            keep=keep,
            resume=resume,
            on_config_change=on_config_change,
            in_background=in_background,
            progress_bar=progress_bar,
        )
        self._nlp: Language = _SECTION.kind("nlp", nlp, Language, "a spaCy pipeline")
        self._optimizer: TorchOptimizer = _SECTION.kind("optimizer", optimizer, TorchOptimizer, "a TorchOptimizer")
        if optimizer.rollback is not None:
            warnings.warn(
                ConfigWarning(
                    "'rollback_after' of the optimizer has no effect in your own training loop: only spacy train goes "
                    "back to a checkpoint by itself. Remove it."
                ),
                stacklevel=2,
            )
        self._run: RunCheckpoints | None = None
        self._progress = Progress()
        self.extra: dict[str, Any] = {}

    @property
    def step(self) -> int:
        return self._progress.step

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def resume(self, batches: Iterable[Batch]) -> Iterator[tuple[int, Batch]]:
        """Resume from the newest undamaged checkpoint, if there is one, and iterate over the remaining batches.

        The weights, the optimizer and `extra` are restored at once, the random generators when the first batch is
        drawn.

        batches (Iterable): All batches of the run from its beginning, the same as at the first start. Those that were
            trained on are drawn again and skipped. They are drawn with their own random generators, which start as
            copies of Python's and NumPy's global ones and are saved. Batches of Examples are checked to be the same;
            other batches may be anything.
        RETURNS (Iterator): Step, counted from 0, and batch.
        RAISES (ConfigError): The folder can't be used. (StateError): Another process uses it; there is no checkpoint,
            but resume = "must"; or the checkpoint has another pipeline, config or data. (ScheduleError): A schedule is
            ahead of the checkpoint: build a new optimizer. (PipelineError): Nothing to train, or not initialized.
        """
        self.close()
        if not self._optimizer.knows(self._nlp):
            self._optimizer.initialize(self._nlp)
        run, progress = (
            RunCheckpoints(self._settings, self._nlp, self._optimizer, zip(repeat(0), batches), own=self.extra),
            Progress(),
        )
        goes_on = run.open(progress, repeat(0.0))
        run.begin()
        if goes_on:
            self._optimizer.keep_buffers()
            run.report(is_over=False)
        self._run, self._progress, self.extra = run, progress, run.own
        return self._steps(run, progress, goes_on)

    @staticmethod
    def _steps(run: RunCheckpoints, progress: Progress, goes_on: bool) -> Iterator[tuple[int, Any]]:
        if goes_on:
            run.restore_random()
        for _, batch in run.stream:
            progress.step += 1
            yield progress.step, batch

    def save(self) -> None:
        """Save the state after this step. Call it after the step's update. Warns if the disk is full: here, in the next
        call or in `close`, which wait until the checkpoint is written.

        RAISES (StateError): `resume` was not called before, another run uses the folder, or a part can't be saved.
        """
        if self._run is None:
            raise StateError(
                f"Can't save a checkpoint to '{self._settings.path}': no run has begun. Iterate over "
                "checkpoints.resume(batches), and save before checkpoints.close()."
            )
        if self.step >= 0:
            self._run.own = self.extra
            self._run.save()

    def close(self) -> None:
        """Wait until the last checkpoint is written, and unlock the folder. Saves nothing more."""
        if self._run is not None:
            self._run.close()
            self._run = None
