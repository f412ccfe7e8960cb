"""Saved state of a run, with which another one goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ...core.schema import AnyNumber, Count, NotNegative, Whole
from ...loop.config_check import Identity
from ...loop.label_conflicts import ComparedTexts
from ...loop.model_state import ModelState
from ...loop.random_state import RandomState
from .annotated import AnnotatedTexts
from .records import Memory
from .source import Place

VERSION = 5


@dataclass
class TextBlock:
    """The texts since the last row. losses (dict): Sums. n (int): Texts of the updates, those of the memory too."""

    texts: Count = 0
    n: Count = 0
    losses: dict[str, AnyNumber] = field(default_factory=dict)


@dataclass
class LearnerState:
    """The saved state of a run.

    values, settings (dict): Those of the config, and `LearnSettings.lasting` with a checksum of the weights. identity
        (Identity): Vectors and labels at the start. added (list): Component and label, for those that were added.
        teacher (str): The digest of the teacher; empty: there is none. scored (list): The docs of the block in spaCy's
        binary format, as predicted and as they should be. logged, watched (int): The texts at the last row, and at the
        last evaluation of the watched corpus. compared (ComparedTexts | None): None: what is missing was told, or
        nothing is.
    """

    version: Count
    values: dict[str, str]
    settings: dict[str, str]
    identity: Identity
    added: list[tuple[str, str]]
    teacher: str
    model: ModelState
    optimizer: dict[str, Any]
    random: RandomState
    place: Place
    memory: Memory
    block: TextBlock
    scored: list[torch.Tensor]
    texts: Count
    tokens: Whole
    skipped: Count
    rejected: Count
    logged: Count
    watched: Count
    seconds: NotNegative
    compared: ComparedTexts | None
    annotated: AnnotatedTexts
