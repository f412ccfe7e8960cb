"""The settings of a run, and what it writes: the saved state with which another one goes on, and files of rows, one
JSON object a line, which are its log and the texts that could not be learned.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from ...core.checks import Section
from ...core.errors import StateError
from ...core.schema import AnyNumber, Count, NotNegative, Whole, check_version, read, write
from ...core.state import clear_leftovers, read_folder, replacing, write_folder
from ...core.words import count, listed
from ...loop.checkpoint_folder import resumable
from ...loop.label_conflicts import ComparedTexts
from ...loop.model_state import SavedPipeline
from ...loop.run_lock import RunLock
from .records import Memory
from .source import Place
from .teaching import TEACHER, AnnotatedTexts

STATE, LAST, LOG, REJECTED = "state", "model-last", "learn.jsonl", "rejected.jsonl"
VERSION = 6
_COMMAND = Section("spacy torchopt learn")


@dataclass(frozen=True)
class LearnSettings:
    """How to learn.

    batch_size (int): Texts of an update. Texts of the memory come on top.
    every (int): Texts of a block, which has a score and a row in the log.
    save_every (int): Texts between two saves, at ends of blocks.
    watch_every (int): Texts between two evaluations of the watched corpus, at ends of blocks.
    replay (int): Texts of the memory in each update. 0: there is no memory.
    memory (int): The most texts in it.
    new_labels ("refuse" | "add" | "skip"): Whether a label that the pipeline does not have ends the run, is added, or
        its text is skipped.
    teacher (bool): If labels are added, let the pipeline as it was at the start fill in what texts leave open. False:
        they annotate everything.
    prequential (bool): Score each text before it is learned.
    skip_bad (bool): Leave out texts that can't be learned, and write them to rejected.jsonl. False: the first one ends
        the run.
    RAISES (ConfigError): One is out of its range.
    """

    batch_size: int = 1
    every: int = 100
    save_every: int = 1000
    watch_every: int = 1000
    replay: int = 0
    memory: int = 1000
    new_labels: Literal["refuse", "add", "skip"] = "refuse"
    teacher: bool = True
    prequential: bool = True
    skip_bad: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "every", "save_every", "watch_every", "memory"):
            _COMMAND.whole(f"--{name.replace('_', '-')}", getattr(self, name), at_least=1)
        _COMMAND.whole("--replay", self.replay)
        _COMMAND.choice("--new-labels", self.new_labels, ("refuse", "add", "skip"))

    @property
    def is_taught(self) -> bool:
        """Whether there is a teacher."""
        return self.teacher and self.new_labels == "add"

    @property
    def lasting(self) -> dict[str, str]:
        """Those that a run can't change, by option: with others, the same texts would give other weights."""
        kept = {"--batch-size": self.batch_size, "--replay": self.replay, "--memory": self.replay and self.memory}
        kept["--teacher"] = self.teacher
        return {name: str(value) for name, value in kept.items()}


@dataclass
class TextBlock:
    """The texts since the last row. losses (dict): Sums. n (int): Texts of the updates, those of the memory too."""

    texts: Count = 0
    n: Count = 0
    losses: dict[str, AnyNumber] = field(default_factory=dict)


@dataclass
class StreamProgress:
    """How far a run has come, as it is saved.

    texts, tokens (int): Learned so far. skipped, rejected (int): Texts that were left out so far: by their labels or
        annotators, or as they can't be learned. logged, watched (int): The texts at the last row, and at the last
        evaluation of the watched corpus. seconds (float): Spent so far, in earlier processes.
    sizes (dict): By file of rows, its bytes; without the row of a run's end.
    place (Place): In the stream. memory (Memory): Old texts. block (TextBlock): The texts since the last row.
    scored (list): Their docs in spaCy's binary format, as predicted and as they should be.
    added (list): Component and label, for those that were added.
    compared (ComparedTexts | None): None: what is missing was told, or nothing is.
    """

    memory: Memory
    texts: Count = 0
    tokens: Whole = 0
    skipped: Count = 0
    rejected: Count = 0
    logged: Count = 0
    watched: Count = 0
    sizes: dict[str, Count] = field(default_factory=dict)
    seconds: NotNegative = 0.0
    place: Place = field(default_factory=Place)
    block: TextBlock = field(default_factory=TextBlock)
    scored: list[torch.Tensor] = field(default_factory=list)
    added: list[tuple[str, str]] = field(default_factory=list)
    compared: ComparedTexts | None = None
    annotated: AnnotatedTexts = field(default_factory=AnnotatedTexts)


@dataclass
class LearnerState(SavedPipeline):
    """The saved state of a run.

    settings (dict): `LearnSettings.lasting` with a checksum of the weights at the start. teacher (str): The digest of
        the teacher; empty: there is none.
    """

    settings: dict[str, str]
    teacher: str
    progress: StreamProgress


@dataclass
class LogRow:
    """A row of the log.

    texts, tokens (int): Learned so far. skipped (int): Texts that were left out so far, by their labels or annotators.
    rejected (int): Texts that could not be learned so far. skipped_updates (int): Those that the optimizer has left out
        so far, as their gradients were not finite or spiked: nothing was learned of their texts.
    score, scores: Of the texts since the row before, each before it was learned. None: unknown.
    losses (dict): By component, the mean over these texts.
    learn_rate (float): The highest of all param groups. watched, watched_scores: Of the watched corpus.
    watched_old, watched_new: The F score there of all annotations with labels from before the run, and of those with
        labels that were added. None: there are none of them.
    seconds (float): Since the start of this process. is_last (bool): The stream has ended, or the run was stopped. The
        next run goes on with the block, and removes this row.
    """

    texts: int
    tokens: int
    skipped: int
    rejected: int
    skipped_updates: int
    score: float | None
    scores: dict[str, float]
    losses: dict[str, float]
    learn_rate: float
    watched: float | None
    watched_scores: dict[str, float]
    watched_old: float | None
    watched_new: float | None
    seconds: float
    is_last: bool = False


class LearnerFolder:
    """The output of a run, which is locked until `release`.

    path (Path): The folder.
    RAISES (StateError): Another run uses it.

    Public: `saved_texts` (how many were learned before the last save).
    """

    def __init__(self, path: Path):
        self._path = path
        self.saved_texts = 0
        self._lock = RunLock(path, what="what is learned", setting="--output")
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """RAISES (StateError): Inside, something could not be written; or another run has the folder."""
        try:
            self._lock.check()
            yield
        except OSError as error:
            raise StateError(
                f"Can't save in '{self._path}': {type(error).__name__}: {error}. The last save was after "
                f"{count(self.saved_texts, 'text')}. When the disk has space, run the same command to go on from there."
            ) from error

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> int:
        """Append rows to a file. RETURNS (int): Its size now, in bytes. RAISES (StateError): It can't be written."""
        with self.writing(), (self._path / name).open("ab") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows).encode("utf8"))
            file.flush()
            os.fsync(file.fileno())  # the state that has its size comes after it
            return file.tell()

    def trim(self, sizes: Mapping[str, int]) -> None:
        """Remove the rows that came after files had these sizes. RAISES (StateError): They can't be written."""
        with self.writing():
            for path, size in ((self._path / name, sizes.get(name, 0)) for name in (LOG, REJECTED)):
                if path.exists() and path.stat().st_size > size:
                    os.truncate(path, size)

    def save(self, state: LearnerState, write_pipeline: Callable[[Path], None]) -> None:
        """Save a state, then the pipeline. RAISES (StateError): It can't be written. What was saved before is kept."""
        with self.writing():
            write_folder(self._path / STATE, write(state))
            with replacing(self._path / LAST) as unfinished:
                write_pipeline(unfinished)
        self.saved_texts = state.progress.texts

    def read(self) -> LearnerState | None:
        """Read the state of an earlier run.

        RETURNS (LearnerState | None): None: there is none, or that of its start, before it read anything.
        RAISES (StateError): It is damaged; or there is none, but other files that the run would overwrite.
        """
        cant = f"Can't write what is learned to '{self._path}':"
        clear_leftovers(self._path, STATE)
        for folder in (self._path, self._path / STATE):
            if resumable(folder):
                raise StateError(f"{cant} the checkpoints of a training are in '{folder}'. Give another --output.")
        if not (self._path / STATE).exists():
            ours = (STATE, LAST, LOG, REJECTED, TEACHER)
            if found := [name for name in ours if os.path.lexists(self._path / name)]:
                raise StateError(
                    f"{cant} {listed(found)} {'is' if len(found) == 1 else 'are'} there without the state of an "
                    "earlier run, and would be overwritten. Give another --output."
                )
            return None
        what = f"the stream in '{self._path}'"
        check_version(content := read_folder(self._path / STATE), VERSION, what)
        saved = read(LearnerState, content, what)
        return None if saved.progress.place == Place() else saved
