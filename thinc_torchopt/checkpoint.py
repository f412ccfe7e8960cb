"""Checkpoints: the whole state of a training run on disk, from which `spacy train` goes on as if it had never stopped.

    training/state/
      step-00001000/        tensors.safetensors, values.json, manifest.json (their checksums)
      step-00001500/
      best/                 the best model so far: spaCy removes its own when it is started again

A checkpoint is written after a step is done, and logged and saved by spaCy; see files.py for how. The newest whole one counts.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from spacy.language import Language

from .errors import CheckpointWarning, ConfigError, ScheduleError, StateError
from .files import UNFINISHED, read_folder, write_folder
from .optimizers import TorchOptimizer
from .training_state import (
    DataStream,
    Progress,
    check_model,
    collect_config,
    collect_model,
    collect_random,
    compare_configs,
    restore_model,
    restore_random,
)
from .types import CheckpointSettings

# spaCy shows warnings, and hides what is only information; that a run goes on should be seen.
logger = logging.getLogger("spacy.torchopt")
logger.setLevel(logging.INFO)

_BLOCK = "[training.optimizer.checkpoint]"
_BEST = "best"


def Checkpoint(
    path: str,
    *,
    every: int = 0,
    keep: int = 2,
    resume: Literal["auto", "must", "never"] = "auto",
    on_config_change: Literal["refuse", "warn"] = "refuse",
) -> CheckpointSettings:
    """Save the state of a training run, and go on from it. Registered as `thinc-torchopt.Checkpoint.v1`.

    path (str): A folder for this run alone.
    every (int): Save after every so many steps; always after an evaluation. 0: only then.
    keep (int): How many checkpoints to keep, the newest.
    resume ("auto" | "must" | "never"): Go on from the newest whole checkpoint if there is one; stop if there is none; or start anew.
    on_config_change ("refuse" | "warn"): When the config is another than that of the checkpoint. Paths, `max_steps`, `patience`,
        `eval_frequency`, the logger and this block may change.
    RAISES (ConfigError): An argument is out of its range.
    """
    for name, value, least in (("every", every, 0), ("keep", keep, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"Can't set '{name}' in {_BLOCK}: expected a whole number of at least {least}, found {value!r}.")
    if resume not in ("auto", "must", "never"):
        raise ConfigError(f"Can't set 'resume' in {_BLOCK}: expected 'auto', 'must' or 'never', found {resume!r}.")
    if on_config_change not in ("refuse", "warn"):
        raise ConfigError(f"Can't set 'on_config_change' in {_BLOCK}: expected 'refuse' or 'warn', found {on_config_change!r}.")
    if not isinstance(path, str) or not path or Path(path).is_file():
        raise ConfigError(f"Can't set 'path' in {_BLOCK}: expected a folder, found {path!r}.")
    return CheckpointSettings(path, every, keep, resume, on_config_change)


class Checkpoints:
    """The checkpoints of a run. As a context manager: SIGTERM and SIGINT let the step be finished and saved.

    settings (CheckpointSettings): From the config.
    nlp (Language), optimizer (TorchOptimizer): The run's.
    """

    def __init__(self, settings: CheckpointSettings, nlp: Language, optimizer: TorchOptimizer):
        self.settings = settings
        self.folder = Path(settings.path)
        self._nlp = nlp
        self._optimizer = optimizer
        self._stream: DataStream | None = None
        self._output: str | None = None
        self._random: Mapping[str, Any] = {}
        self._signal: int | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Checkpoints:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._note_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def own_stream(self, batches: Iterator[Any]) -> DataStream:
        """The batches of the run, which a run that goes on can draw again."""
        self._stream = DataStream(batches)
        return self._stream

    # ------------------------------------------------------------------ going on

    def find(self) -> dict[str, Any] | None:
        """The newest whole checkpoint, if the run is to go on from one.

        RAISES (StateError): There must be one and is none; or it is of another config.
        """
        for leftover in self.folder.glob(f"{UNFINISHED}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if self.settings.resume == "never":
            remove(steps_of(self.folder))
            shutil.rmtree(self.folder / _BEST, ignore_errors=True)
            return None
        saved = newest_whole(self.folder)
        if saved is None:
            if self.settings.resume == "must":
                raise StateError(
                    f"Can't go on from '{self.folder}': expected a checkpoint, found none that is whole. Check 'path' in {_BLOCK}, or set "
                    'resume = "auto".'
                )
            if steps_of(self.folder):
                warnings.warn(
                    CheckpointWarning(f"None of the checkpoints in '{self.folder}' is whole: the training starts anew."), stacklevel=2
                )
            return None
        changes = compare_configs(saved["config"], collect_config(self._nlp))
        if changes:
            text = f"the config has changed since the checkpoint in '{self.folder}' was written:\n  " + "\n  ".join(changes)
            if self.settings.on_config_change == "refuse":
                raise StateError(
                    f"Can't go on: {text}\nTo go on all the same: --training.optimizer.checkpoint.on_config_change warn. To start anew: "
                    "--training.optimizer.checkpoint.resume never, or another path."
                )
            warnings.warn(CheckpointWarning(f"Going on although {text}"), stacklevel=2)
        check_model(self._nlp, saved["model"])
        return saved

    def restore(self, saved: Mapping[str, Any], progress: Progress, dropouts: Iterator[float]) -> None:
        """Bring model, optimizer and data to where they were. The optimizer knows its pipeline. `restore_random` comes when all begins.

        RAISES (StateError): The pipeline or the data is another.
        """
        assert self._stream is not None
        try:
            self._optimizer.load_state_dict(saved["optimizer"])
        except (ConfigError, ScheduleError) as error:
            raise StateError(f"{error} The checkpoint is in '{self.folder}'.") from error
        self._stream.load_state_dict(saved["data"])
        restore_model(self._nlp, saved["model"])
        progress.load_state_dict(saved["progress"])
        for _ in range(self._stream.position):
            next(dropouts)
        self._output = saved["output"]
        self._nlp.meta["performance"] = dict(saved["performance"])
        self._random = saved["random"]

    def restore_random(self) -> None:
        """Set the random generators to where they were."""
        restore_random(self._random)

    def report(self, progress: Progress, is_over: bool) -> None:
        """Tell where a run goes on that was restored. is_over (bool): It does not."""
        if is_over:
            logger.info(
                "Nothing to do: the training in %s was finished, after step %d. To train on, raise max_steps or patience in [training]; to "
                "start anew, --training.optimizer.checkpoint.resume never, or another path.",
                self.folder,
                progress.step,
            )
        else:
            logger.info("Going on after step %d, from the checkpoint in %s.", progress.step, self.folder)

    # ------------------------------------------------------------------ saving

    def after_step(self, progress: Progress, info: Mapping[str, Any], is_best: bool | None, is_over: bool) -> None:
        """Save what is due after a step, and stop if a signal asked for it.

        info (Mapping): What spaCy was given, and added to. is_best (bool | None): None: the step was not evaluated.
        """
        self._output = info.get("output_path", self._output)
        if is_best:
            self._keep_best()
        elif is_best is not None or is_over:
            self.put_best_back()
        every = self.settings.every
        is_last = is_over or self._signal is not None
        if self._goes_wrong(progress):
            # That is no point to go back to, and must not push one out. A run that goes on from before comes here again.
            if is_last:
                self._write(progress, keep=None)
        elif is_last or is_best is not None or (every and progress.step % every == 0):
            self._write(progress, keep=self.settings.keep)
        if self._signal is not None and not is_over:
            logger.warning(
                "Stopped by %s after step %d; the state is saved in %s. To go on, run the same command again.",
                signal.Signals(self._signal).name,
                progress.step,
                self.folder,
            )
            raise SystemExit(128 + self._signal)

    def put_best_back(self) -> None:
        """Give spaCy's output folder the best model, if it is not there: spaCy removes it when it is started again."""
        if self._output is not None and (self.folder / _BEST).is_dir():
            model_best = Path(self._output).parent / "model-best"
            if not model_best.exists() and model_best.parent.is_dir():
                _link_folder(self.folder / _BEST, model_best)

    def _keep_best(self) -> None:
        if self._output is not None and (model_best := Path(self._output).parent / "model-best").is_dir():
            try:
                _link_folder(model_best, self.folder / _BEST)
            except OSError as error:
                self._warn(error)

    def _goes_wrong(self, progress: Progress) -> bool:
        """Whether the training may go back soon, or just did."""
        just_did = bool(progress.rollbacks) and progress.rollbacks[-1][0] == progress.step
        return just_did or (self._optimizer.rollback is not None and self._optimizer.bad_updates_in_a_row > 0)

    def _write(self, progress: Progress, *, keep: int | None) -> None:
        assert self._stream is not None
        tree = {
            "config": collect_config(self._nlp),
            "progress": progress.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "model": collect_model(self._nlp),
            "data": self._stream.state_dict(),
            "random": collect_random(),
            "output": self._output,
            "performance": dict(self._nlp.meta.get("performance", {})),
        }
        try:
            write_folder(self.folder / name_of(progress.step), tree)
            if keep is not None:
                remove(steps_of(self.folder)[:-keep])
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        warnings.warn(
            CheckpointWarning(
                f"Can't write a checkpoint to '{self.folder}': {error}. Training goes on; older checkpoints are as they were. Make room on "
                "the disk, or lower 'keep'."
            ),
            stacklevel=4,
        )

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # the second time, at once
        self._signal = number


def name_of(step: int) -> str:
    """The name of a checkpoint's folder."""
    return f"step-{step:08d}"


def remove(folders: list[Path]) -> None:
    """Remove checkpoints."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def steps_of(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def newest_whole(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is not damaged. Warns of those that are."""
    return next(whole_ones(folder), None)


def whole_ones(folder: Path) -> Iterator[dict[str, Any]]:
    """The checkpoints that are not damaged, newest first. Warns of those that are."""
    for path in reversed(steps_of(folder)):
        try:
            saved = read_folder(path)
            missing = {"config", "progress", "optimizer", "model", "data", "random", "output", "performance"} - saved.keys()
            if missing:
                raise StateError(f"Can't read '{path}': expected a checkpoint, found none of its parts {sorted(missing)}.")
        except StateError as error:
            warnings.warn(CheckpointWarning(f"{error} The next older checkpoint is taken, if there is one."), stacklevel=4)
        else:
            yield saved


def _link_folder(source: Path, target: Path) -> None:
    """Copy a folder, by links to its files where the disk can do that. Nobody changes them in place: spaCy writes model-best anew."""

    def link(old: str, new: str) -> str:
        try:
            os.link(old, new)
        except OSError:
            shutil.copy2(old, new)
        return new

    unfinished = target.parent / f"{UNFINISHED}{target.name}-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, unfinished, copy_function=link)
        shutil.rmtree(target, ignore_errors=True)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
