"""Saved state of a run, with which another one goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ...core.schema import AnyNumber, Count, NotNegative, Whole
from ...loop.label_conflicts import ComparedTexts
from ...loop.model_state import SavedPipeline
from .annotated import AnnotatedTexts
from .records import Memory
from .source import Place

VERSION = 6


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
