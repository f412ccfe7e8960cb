"""The settings of a run that learns from a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...core.checks import Section

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
