"""Checkpoints for a training loop of your own: what [training.optimizer.checkpoint] is for `spacy train`.

    with Checkpoints("training/state", nlp, optimizer) as checkpoints:
        for step, batch in checkpoints.resume(batches):
            nlp.update(batch, sgd=optimizer)
            optimizer.step_schedules()
            if step % 500 == 0:
                checkpoints.save()

A loop that was stopped, by whatever, and is run again goes on after its newest checkpoint, and ends with the same
weights to the last bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, TypeVar

from spacy.language import Language

from ..checks import Section
from ..errors import ConfigWarning, StateError
from ..optimizers import TorchOptimizer
from .checkpoint import RunCheckpoints
from .checkpoint_settings import Checkpoint
from .progress import Progress

Batch = TypeVar("Batch")

_SECTION = Section("thinc_torchopt.Checkpoints")


class Checkpoints:
    """Save the state of a training loop, and go on from it. See the module's docstring.

    Use it in a `with` block, or call `close` at the end: as long as it is open, other processes are kept out of the
    folder.

    path (str | Path): A folder for this run alone.
    nlp (Language): The pipeline, initialized.
    optimizer (TorchOptimizer): What trains it.
    keep (int): How many checkpoints to keep, the newest.
    resume ("auto" | "must" | "never"): Go on from the newest whole checkpoint if there is one; stop if there is none;
        or start anew, and remove those that are there.
    on_config_change ("refuse" | "warn"): When the pipeline's config, vectors or labels are others than those of the
        checkpoint.
    in_background (bool): `save` copies the state and returns; a thread writes it to the disk. False: `save` writes it.
    allow_foreign_shims (bool): Load what is loaded by code that is not ours: see `Checkpoint`.
    progress_bar (bool): Show how far it has read past the batches of before; only in a terminal or a notebook.
    RAISES (ConfigError): An argument is out of its range.

    Public: `step` (the last one that was done, or begun, counted from 0; -1 before the first) and `extra` (a dict for
    values of your own, such as losses or the best score, which are saved and restored: numbers, texts, lists, dicts,
    arrays, tensors. Its keys are texts).
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
        allow_foreign_shims: bool = False,
        progress_bar: bool = True,
    ):
        self._settings = Checkpoint(
            str(path) if isinstance(path, Path) else path,
            keep=keep,
            resume=resume,
            on_config_change=on_config_change,
            in_background=in_background,
            allow_foreign_shims=allow_foreign_shims,
            progress_bar=progress_bar,
        )
        self._nlp: Language = _SECTION.kind("nlp", nlp, Language, "a spaCy pipeline")
        self._optimizer: TorchOptimizer = _SECTION.kind("optimizer", optimizer, TorchOptimizer, "a TorchOptimizer")
        if optimizer.rollback is not None:
            warnings.warn(
                ConfigWarning(
                    "'rollback_after' of the optimizer has no effect in a training loop of your own: only spacy train "
                    "goes back to a checkpoint by itself. Remove it."
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
        """Go on from the newest whole checkpoint, if there is one, and give the batches that are left, each with its
        step.

        The weights, the optimizer and `extra` are restored at once; the random generators when the first batch is
        drawn.

        batches (Iterable): All batches of the run, from its beginning, the same as when it was begun: those that were
            trained on are drawn again, and left out. They are drawn with random generators of their own, which begin as
            Python's and NumPy's global ones are now, and are saved. That batches of Examples are the same is verified;
            batches may be anything else.
        RETURNS (Iterator): Step, counted from 0, and batch.
        RAISES (ConfigError): The folder can't be used. (StateError): It is another process's; there must be a
            checkpoint and is none; it is of another pipeline, config or data. (ScheduleError): A schedule is further
            than the checkpoint: build the optimizer anew. (PipelineError): Nothing to train, or not initialized.
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
        """Save the state as it is after this step: call it when the step's update is done. If the disk is full, that is
        a warning: of this call, or of the next one or `close`, which wait until it is written.

        RAISES (StateError): `resume` was not called before; another run has taken the folder; or there is something
            that can't be saved.
        """
        if self._run is None:
            raise StateError(
                f"Can't save a checkpoint to '{self._settings.path}': expected a run that has begun, found none. Take "
                "the batches from checkpoints.resume(batches), and save before checkpoints.close()."
            )
        if self.step >= 0:
            self._run.own = self.extra
            self._run.save()

    def close(self) -> None:
        """Wait until what was saved is written, and let the folder go. Nothing else is saved."""
        if self._run is not None:
            self._run.close()
            self._run = None
