"""Checkpoints: the whole state of a training run on disk, from which `spacy train` resumes as if it had never stopped.

    training/state/
      step-00001000/        tensors.safetensors, values.json, manifest.json (their checksums)
      step-00001500/
      stopped/
        step-00001234/      of a run that a signal stopped between two checkpoints, until the next one

      lock.json             the run that uses the folder, while it trains

A checkpoint is taken after a step is done and spaCy has logged and saved it. It is written while the training
continues: checkpoint_folder.py. A run resumes from the newest undamaged one.
"""

from __future__ import annotations

import math
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from spacy.language import Language

from ..core.algorithms import StateSizes
from ..core.checks import own_errors
from ..core.errors import CheckpointWarning, ConfigError, ScheduleError, StateError
from ..core.hooks import resumed_components
from ..core.log import LOGGER, inform
from ..core.optimizer import TorchOptimizer
from ..core.params import NamedModel, walk_pipeline
from ..core.read_once import Reader
from ..core.schema import write
from ..core.state import clear_leftovers
from .checkpoint_folder import (
    STOPPED,
    VERSION,
    CheckpointWriter,
    SavedTraining,
    name_of,
    nearest,
    newest_whole,
    prune,
    remove,
    resumable,
    room_for,
    step_of,
    steps_of,
)
from .checkpoint_settings import CHECKPOINT, Checkpoint
from .config_check import (
    collect_identity,
    collect_label_data,
    collect_values,
    compare_identities,
    moved_labels,
)
from .data_stream import DataStream, identity_of_texts
from .events import Control, Evaluate, Listeners, Save, StepEnd, TrainEnd
from .late_labels import add_late, grown_params, late_labels
from .model_state import check_layout, check_model, check_parts, collect_model, layout_of, restore_model, restore_setup
from .processes import Alone
from .progress import Progress, plain_scores
from .random_state import RandomState, check_generators, collect_random, restore_random
from .run_lock import RunLock
from .signals import Signals

# The sections of a config that give a component the labels of a file.
_SECTION_OF_LABELS = """[initialize.components.{name}]

[initialize.components.{name}.labels]
@readers = "spacy.read_labels.v1"
path = "{name}.json\""""
# Bytes of an average, or of a master copy.
_FLOAT = 4
# Settings on which the batches, or the scores, depend beside those of the corpus.
_OF_BATCHES = ("training.train_corpus", "training.batcher", "training.max_epochs")
_OF_SCORES = ("training.dev_corpus", "training.score_weights")


class RunCheckpoints:
    """The checkpoints of a run: of `spacy train`, where it is a listener, or of a user's own loop.

    settings (Checkpoint): From the config.
    nlp (Language), optimizer (TorchOptimizer): The run's.
    batches (Iterator): Epoch and batch of each step.
    dev (Reader | None): The development data: scores of other texts can't be compared with earlier ones.
    output (Path | None): The folder for models, for checkpoints without a folder of their own.
    own (dict[str, Any] | None): The user's own values, saved with each checkpoint. None: a run of `spacy train`.
    ranks (Alone): This process among several. Rank 0 reads and writes.

    Public: `stream` (the batches, which a resumed run draws again), `signals` (which stop the run after its step),
    `goes_on` (whether the run was resumed), `own`, `seed` (of a resumed
    run of several processes), `keeps_best` (keep the checkpoint of the best evaluation, as the run may go back to it).
    """

    name = "checkpoints"

    def __init__(
        self,
        settings: Checkpoint,
        nlp: Language,
        optimizer: TorchOptimizer,
        batches: Iterator[Any],
        *,
        dev: Reader | None = None,
        output: Path | None = None,
        own: dict[str, Any] | None = None,
        ranks: Alone | None = None,
    ):
        self.ranks = ranks or Alone()
        self.seed: int | None = None
        self.settings = settings
        self.own = {} if own is None else own
        self.keeps_best = False
        self.folder = settings.folder(output).absolute()
        self.stream = DataStream(batches, self.ranks.size)
        self.signals = Signals()
        self.goes_on = False
        self._is_spacys = own is None
        self._nlp = nlp
        self._optimizer = optimizer
        self._progress = Progress()
        self._listeners = Listeners([])
        self._lock = RunLock(self.folder)
        self._damaged: set[Path] = set()
        self._writer = CheckpointWriter(self.folder, self._lock, in_background=settings.in_background)
        self._random: RandomState | None = None
        self._layout: dict[str, Any] = {}
        self._values, self._identity = collect_values(nlp, optimizer.attachments), collect_identity(nlp)
        self._label_data = collect_label_data(nlp)
        train_name, dev_name = (nlp.config["training"].get(name, "") for name in ("train_corpus", "dev_corpus"))
        self._values |= {f"{train_name}, {what}": value for what, value in self.stream.identity_of_reader(nlp).items()}
        self._values |= {f"{dev_name}, {what}": value for what, value in identity_of_texts(dev, nlp).items()}
        if self.stream.max_epochs is not None:  # a limit may change; a stream has other batches
            self._values["training.max_epochs"] = "-1" if self.stream.max_epochs == -1 else "0 or more"
        self._of_batches = (f"{train_name}.", f"{train_name}, ", *_OF_BATCHES)
        self._of_scores = (f"{dev_name}.", f"{dev_name}, ", *_OF_SCORES)

    @property
    def newest(self) -> int | None:
        """The step of the newest checkpoint that this run has written or resumed from."""
        return self._writer.newest

    # ------------------------------------------------------------------ room

    def is_on_disk_of(self, folder: Path) -> bool:
        """Whether the checkpoints are on the same disk as a folder that exists."""
        return nearest(self.folder).stat().st_dev == folder.stat().st_dev

    def room(self) -> int:
        """Bytes that the checkpoints still need: those that are kept, and one being written, without those there."""
        each, sizes, algorithms = 0, StateSizes(), self._optimizer.algorithms
        for info in self._optimizer.describe():
            size = math.prod(info.shape)
            each += size * getattr(torch, info.dtype).itemsize + _FLOAT * size * info.has_master
            if not math.isinf(info.frozen_until):
                dtype = torch.float32 if info.has_master else getattr(torch, info.dtype)
                each += sizes.bytes_of(algorithms[info.algorithm], info.options, info.shape, dtype)
                each += _FLOAT * size * self._optimizer.keeps_averages
        return room_for(self.folder, each, self.settings.keep)

    # ------------------------------------------------------------------ resuming

    def open(self, progress: Progress, dropouts: Iterator[float], listeners: Listeners | None = None) -> bool:
        """Lock the folder, and restore the newest undamaged checkpoint, if there is one to resume from.

        The optimizer must know its pipeline. Call `restore_random` when the training begins. This does not change any
        checkpoint.

        progress (Progress), dropouts (Iterator), listeners (Listeners): The run's. Their state is saved with each
            checkpoint.
        RETURNS (bool): Whether the run was resumed.
        RAISES (ConfigError): The folder can't be used. (StateError): Another run uses it; there is no checkpoint, but
            resume = "must"; the checkpoint has another config, pipeline or data; or the pipeline can't be saved.
        """
        walked = walk_pipeline(self._nlp)
        check_parts(self._nlp, walked)
        # The pipeline as a resumed run builds it: no callback has changed it yet.
        self._layout = layout_of(self._nlp, walked)
        self._progress = progress
        if listeners is not None:
            self._listeners = listeners
        try:
            saved, newest = self.ranks.from_rank_0(self._claim_and_find)
            if saved is not None:
                self._restore(saved, walked, dropouts)
                self._writer.newest = newest
        except BaseException:
            self._lock.release()
            raise
        self.goes_on = saved is not None
        return self.goes_on

    def look(self, patience: int, max_steps: int) -> str:
        """Find where `open` would resume, without the lock. Only the optimizer and the stream are changed.

        patience, max_steps (int): From [training].
        RETURNS (str): Where that is, or that nothing is left to do. Empty: at the beginning.
        RAISES (StateError): The run would be refused.
        """
        self._layout = layout_of(self._nlp, walk_pipeline(self._nlp))
        saved = self._find()
        if saved is None:
            return ""
        saved.check_place(is_spacys=self._is_spacys)
        saved.load_optimizer(self._optimizer, self.folder)
        self._progress = saved.progress
        is_over = saved.progress.is_over(patience, max_steps)
        if self.stream.max_epochs != -1:  # to read a streamed corpus again may take long
            self._read_past(saved)
            is_over |= self.stream.next_epoch is None
        if self._optimizer.spans_training:
            may_change = self.settings.on_config_change == "warn"
            self._optimizer.set_total_steps(self.stream.count_steps(max_steps), may_change=may_change)
        return self._told(is_over)

    def _claim_and_find(self) -> tuple[SavedTraining | None, int | None]:
        """RETURNS (tuple): The checkpoint to resume from, and the step of the newest one to go back to, if any."""
        self._lock.acquire()
        self._writer.wait_for_earlier_run()
        for folder in (self.folder, self.folder / STOPPED):
            clear_leftovers(folder)
        saved = self._find()
        there = (step for step in map(step_of, steps_of(self.folder)) if step is not None)
        return saved, max((step for step in there if saved is not None and step <= saved.progress.step), default=None)

    def _find(self) -> SavedTraining | None:
        """The newest undamaged checkpoint, if the run should resume."""
        if self.settings.resume == "never":
            return None
        saved = newest_whole(self.folder, self._damaged)
        if saved is None:
            if self.settings.resume == "must":
                raise StateError(
                    f"Can't resume from 'path' in {CHECKPOINT}, '{self.folder}': expected an undamaged checkpoint, "
                    "found none. Check the path, "
                    'or set resume = "auto".'
                )
            if self._damaged:
                warnings.warn(
                    CheckpointWarning(
                        f"All checkpoints in '{self.folder}' are damaged: the training starts from the beginning."
                    ),
                    stacklevel=4,
                )
            return None
        if names := moved_labels(saved.identity, self._identity):
            raise StateError(self._about_moved_labels(saved, names))
        if saved.late_labels:
            add_late(self._nlp, saved.late_labels)
            self._layout = layout_of(self._nlp, walk_pipeline(self._nlp))
        if changes := saved.differences(self._values, self._identity):
            text = f"the config has changed since the checkpoint in '{self.folder}' was written:\n  " + "\n  ".join(
                changes
            )
            others = self._named(changes, self._of_scores)
            if self.settings.on_config_change == "refuse" or (others and self._optimizer.remembers_scores):
                raise StateError(
                    f"Can't resume: {text}.\n{self._how_to_resume(saved, changes)} To start from the beginning: "
                    f"{self._setting('resume', 'never')}, or another folder."
                )
            if others:
                saved.progress.results.clear()
                text += (
                    "\nScores can't be compared with earlier ones: the best model, its score and patience start again "
                    "at the next evaluation."
                )
            warnings.warn(CheckpointWarning(f"Resuming although {text}"), stacklevel=4)
        check_model(self._nlp, saved.model, self._layout)
        return saved

    def _about_moved_labels(self, saved: SavedTraining, names: Sequence[str]) -> str:
        """An error about labels that have other positions now, with the config that puts them back."""
        changes = compare_identities(saved.identity, self._identity)
        lines = [change for change in changes if change.startswith(tuple(f"labels of {name}:" for name in names))]
        text = (
            f"Can't resume: labels have other positions than in the checkpoint in '{self.folder}', so they would get "
            "the weights of others:\n  " + "\n  ".join(lines) + "\nTo resume, put them in the old order."
        )
        data, sourced = saved.label_data, resumed_components(self._nlp)
        in_config = [name for name in names if name in data and name not in sourced]
        if in_config:
            text += (
                " In the config, below [initialize] and [initialize.components], in place of any labels there:\n\n"
                + "\n\n".join(_SECTION_OF_LABELS.format(name=name) for name in in_config)
            )
        text += "".join(f"\n\nIn a file {name}.json:\n{data[name]}" for name in in_config)
        if others := [name for name in names if name not in in_config]:
            text += (
                f"\n\nThe labels of {', '.join(others)} don't come from there: restore the 'source', "
                "[initialize.after_init] or the code that they come from."
            )
        return f"{text}\n\nTo start from the beginning: {self._setting('resume', 'never')}, or another folder."

    @staticmethod
    def _named(changes: Sequence[str], which: tuple[str, ...]) -> str:
        """The changed settings on which something depends, for messages. which: How these begin."""
        return ", ".join(change.partition(":")[0] for change in changes if change.startswith(which))

    def _how_to_resume(self, saved: SavedTraining, changes: Sequence[str]) -> str:
        """Advice after the config has changed. No setting helps if the saved model or optimizer state does not fit."""
        try:
            check_model(self._nlp, saved.model, self._layout)
            self._optimizer.check_state_dict(saved.optimizer)
        except ScheduleError as error:
            return str(error)
        except (StateError, ConfigError):
            return "With these changes the saved state does not fit the pipeline. To resume, undo them."
        names, keepers = self._named(changes, self._of_scores), self._optimizer.remembers_scores
        if names and keepers:
            places = ", ".join(f"training.optimizer.{name}" for name in keepers)
            return f"New scores can't be compared with those remembered by {places}. To resume, set back: {names}."
        warn = self._setting("on_config_change", "warn")
        if names := self._named(changes, self._of_batches):
            return f"To resume, set back: {names}. Or, if the batches are the same with it: {warn}."
        return f"To resume anyway: {warn}."

    def _setting(self, name: str, value: str) -> str:
        """A setting as the user writes it, for messages."""
        return f"--training.optimizer.checkpoint.{name} {value}" if self._is_spacys else f'{name}="{value}"'

    def _restore(self, saved: SavedTraining, walked: Sequence[NamedModel], dropouts: Iterator[float]) -> None:
        saved.check_place(is_spacys=self._is_spacys)
        check_generators(saved.random)
        check_generators(saved.data.start)
        if saved.late_labels:
            add_late(self._nlp, saved.late_labels)
            walked = walk_pipeline(self._nlp)
        restore_model(self._nlp, saved.model, walked)
        restore_setup(self._nlp, saved.model, walked)
        saved.load_optimizer(self._optimizer, self.folder)
        with own_errors(f"the training in '{self.folder}'"):
            self._restore_run(saved)
            for _ in range(self._progress.step + 1):
                next(dropouts)

    def _read_past(self, saved: SavedTraining) -> None:
        if self.stream.go_on_from(saved.data, progress_bar=self.settings.progress_bar):
            return
        cause = (
            "The texts have changed, or were used up or shuffled in place before, or their reader uses random "
            "generators other than Python's and NumPy's global ones. Restore the old ones, or train in another folder"
        )
        if names := self._named(saved.differences(self._values, self._identity), self._of_batches):
            cause = f"The likely cause is the change of {names}. Undo it"
        raise StateError(
            f"Can't resume in the training data: expected the same {saved.data.position} batches as in the saved run, "
            f"found others, or fewer. {cause}, or start again: {self._setting('resume', 'never')}."
        )

    def _restore_run(self, saved: SavedTraining) -> None:
        self.own = saved.own
        inform("Reading past %s batches, to where the run stopped.", f"{saved.data.position:,}")
        self._read_past(saved)
        self._progress.go_on_from(saved.progress)
        self._listeners.load_state_dict(saved.listeners)
        self._nlp.meta["performance"] = dict(saved.performance)
        self._random = saved.random
        self.seed = None if saved.ranks is None else saved.ranks.seed

    def begin(self) -> None:
        """Begin the training. A run that must not be resumed removes the checkpoints of an earlier one."""
        if self.ranks.writes and self.settings.resume == "never":
            remove(resumable(self.folder))

    def close(self) -> None:
        """Wait until the last checkpoint is written, and unlock the folder."""
        try:
            self._writer.close()
        finally:
            self._lock.release()

    def restore_random(self) -> None:
        """Restore the random generators. Several ranks seed them at each step instead."""
        if self.ranks.size == 1 and self._random is not None:
            restore_random(self._random)

    def report(self, is_over: bool) -> None:
        """Log where a run resumes. is_over (bool): The run was finished."""
        inform("%s", self._told(is_over))

    def _told(self, is_over: bool) -> str:
        """Where a run resumes, in words."""
        step = self._progress.step
        if not is_over:
            return f"Resuming after step {step}, from the checkpoint in {self.folder}."
        more = "To train longer, raise max_steps, max_epochs or patience in [training]."
        if self._progress.was_stopped:
            more = "A rule or listener ended it."
        elif self._optimizer.spans_training:
            more = "Its learning rate has fallen to the end, so it can't be made longer."
        return (
            f"Nothing to do: the training in {self.folder} was finished, after step {step}. {more} To start from the "
            "beginning, give another --output, or add --training.optimizer.checkpoint.resume never."
        )

    # ------------------------------------------------------------------ as a listener

    def on_step_end(self, event: StepEnd, control: Control) -> None:
        self._writer.look()
        control.should_save |= bool(self.settings.every) and event.step % self.settings.every == 0

    def on_evaluate(self, event: Evaluate, control: Control) -> None:
        control.should_save = True

    def on_save(self, event: Save, control: Control) -> None:
        self._save()

    def on_train_end(self, event: TrainEnd, control: Control) -> None:
        self.end(again=control.should_save)

    # ------------------------------------------------------------------ saving

    def stop(self, number: int, *, is_saved: bool) -> None:
        """Save the last step, and end the program with a signal's exit status.

        number (int): Of the signal. is_saved (bool): The step was due, and `on_save` was called.
        RAISES (SystemExit): Always.
        """
        step, folder = self._progress.step, self.folder / STOPPED
        if not is_saved or not self._is_kept:
            self._write(folder, lambda: prune(folder, 1, self._damaged - {folder / name_of(step)}))
        self._writer.wait()
        self.ranks.barrier()  # the others wait too
        LOGGER.warning(
            "Stopped by %s after step %d; the state %s saved in %s. To resume%s, run the same command again.",
            signal.Signals(number).name,
            step,
            "is" if self.newest == step else "of this step could not be",
            self.folder,
            "" if self.newest == step else " from the newest checkpoint, if there is one",
        )
        raise SystemExit(128 + number)

    def end(self, *, again: bool = False) -> None:
        """Save at the end of the run, if it had a step. again (bool): Also if the last step is saved already."""
        self._writer.wait()
        if self._progress.step < 0:
            return
        if again or self.newest != self._progress.step:
            self._save(is_last=True)

    def _save(self, *, is_last: bool = False) -> None:
        if is_last or self._is_kept:
            # Where it goes wrong is no good point to go back to, unless it is the best: it must not replace one. A run
            # resumed from an earlier checkpoint gets here again.
            self._write_in_turn(keep=None if self._goes_wrong else self.settings.keep)

    @property
    def _is_kept(self) -> bool:
        """Whether a step that is due is saved."""
        return self.keeps_best or not self._goes_wrong

    @property
    def _goes_wrong(self) -> bool:
        """Whether the run may roll back soon, or just did."""
        rollbacks = self._progress.rollbacks
        just_did = bool(rollbacks) and rollbacks[-1][0] == self._progress.step
        return just_did or (self._optimizer.rollback is not None and self._optimizer.bad_updates_in_a_row > 0)

    def save(self) -> None:
        """Save this step, unless it is saved already."""
        if self.newest != self._progress.step:
            self._write_in_turn(keep=self.settings.keep)

    def _write_in_turn(self, *, keep: int | None) -> None:
        step = self._progress.step
        self._write(self.folder, lambda: self._tidy_up(step, keep))

    def _write(self, folder: Path, then: Callable[[], None]) -> None:
        snapshot = self._snapshot()
        if snapshot is None:
            self._writer.newest = self._progress.step
        else:
            self._writer.write(folder, self._progress.step, write(snapshot), then)

    def _tidy_up(self, step: int, keep: int | None) -> None:
        """After a checkpoint is written, remove old ones. keep (int | None): How many to keep; None: all."""
        self._damaged.discard(self.folder / name_of(step))
        stopped = self.folder / STOPPED
        remove(steps_of(stopped))
        with suppress(OSError):  # others' files are in it, or it is not there
            stopped.rmdir()
        if keep is not None:
            ranked = {"ranked": self._progress.ranked} if self.keeps_best else {}
            prune(self.folder, keep, self._damaged, **ranked)

    def wait(self) -> None:
        """Wait until the last checkpoint is written."""
        self._writer.wait()

    def _snapshot(self) -> SavedTraining | None:
        """The current state of the run. Its tensors are those in training, no copies. None: this rank writes
        nothing.
        """
        optimizer = self.ranks.whole_state(self._optimizer)
        if optimizer is None:
            return None
        walked = walk_pipeline(self._nlp)
        late = late_labels(self._nlp, self._identity.labels)
        check_layout(self._layout, layout_of(self._nlp, walked), grown_params(self._nlp, late, walked))
        return SavedTraining(
            version=VERSION,
            values=self._values,
            identity=self._identity,
            label_data=self._label_data,
            late_labels=late,
            progress=self._progress.snapshot(),
            optimizer=optimizer,
            model=collect_model(self._nlp, self._optimizer.stopped_grads, walked=walked),
            data=self.stream.snapshot(),
            random=collect_random(),
            performance=plain_scores(self._nlp.meta.get("performance", {})),
            listeners=self._listeners.state_dict(),
            ranks=self.ranks.snapshot(),
            own=self.own,
        )
