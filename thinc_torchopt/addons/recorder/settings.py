"""The block [training.optimizer.recorder]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from ...core.attachments import Attachment
from ...core.checks import Section

_SECTION = Section("[training.optimizer.recorder]")


@dataclass
class Recorder(Attachment):
    """Record how hard each annotation is for each component, in the folder of the run, for `spacy torchopt suspects`:
    a list of those that may be wrong. Registered as `thinc-torchopt.Recorder.v1`.

    It changes no number of the training.

    max_tokens (int): Tokens that are kept, of all components together, in 20 bytes each. Of more, those of the hardest
        texts are kept, and a sample.
    RAISES (ConfigError): An argument is out of its range.
    """

    made_by: ClassVar[str] = (
        'a block with @misc = "thinc-torchopt.Recorder.v1", or in Python the result of '
        "thinc_torchopt.training.Recorder()"
    )
    own_block: ClassVar[str] = "recorder"
    may_change: ClassVar[bool] = True

    _: KW_ONLY
    max_tokens: int = 10_000_000

    def __post_init__(self) -> None:
        self.max_tokens = _SECTION.whole("max_tokens", self.max_tokens, at_least=1000)

    def join(self, run: Any) -> Sequence[Any]:
        from .recorder import RunRecorder  # it takes torch

        return [RunRecorder(self.max_tokens, run)]

    def in_short_training(self, nlp: Any, config: Any, optimizer: Any, corpus: Any) -> Attachment | None:
        return None  # it writes files
