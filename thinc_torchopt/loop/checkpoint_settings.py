"""The settings of checkpoints: `thinc-torchopt.Checkpoint.v1`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ..core.attachments import Attachment
from ..core.checks import Section
from ..core.errors import ConfigError

CHECKPOINT = "[training.optimizer.checkpoint]"


@dataclass
class Checkpoint(Attachment):
    """Save the state of a training run, and resume from it. Registered as `thinc-torchopt.Checkpoint.v1`.

    path (str | None): A folder for this run alone. None: `state` in the folder of `--output`.
    every (int): Steps between two checkpoints, beside those after each evaluation. 0: only after evaluations.
    keep (int): Number of checkpoints to keep, the newest ones.
    resume ("auto" | "must" | "never"): "auto" resumes from the newest undamaged checkpoint, if there is one; "must"
        raises an error if there is none; "never" starts from scratch, and removes the checkpoints of an earlier run.
    on_config_change ("refuse" | "warn"): Whether to raise an error or warn if the config differs from the checkpoint's.
        Paths, `max_steps`, `max_epochs` (not to or from -1), `patience`, `eval_frequency`, the logger, and the blocks
        `checkpoint`, `distributed` and `budget` may always change; a budget only until its learning rate falls. The
        batcher and the training corpus may change only if the batches stay the same.
    in_background (bool): Copy the state, and write it while the training continues. The copy takes as much main memory
        as the checkpoint takes on the disk. False: the training waits until it is written.
    progress_bar (bool): Show a progress bar while a resumed run skips the batches that it trained on before. Only in a
        terminal or notebook.
    RAISES (ConfigError): An argument is out of its range.
    """

    made_by: ClassVar[str] = (
        'a block with @misc = "thinc-torchopt.Checkpoint.v1", or in Python the result of '
        "thinc_torchopt.training.Checkpoint()"
    )
    may_change: ClassVar[bool] = True
    own_block: ClassVar[str] = "checkpoint"
    decides_alike: ClassVar[bool] = True

    path: str | None = None
    _: KW_ONLY
    every: int = 0
    keep: int = 2
    resume: Literal["auto", "must", "never"] = "auto"
    on_config_change: Literal["refuse", "warn"] = "refuse"
    in_background: bool = True
    progress_bar: bool = True

    def __post_init__(self) -> None:
        section = Section(CHECKPOINT)
        given = self.path
        self.path = str(given) if isinstance(given, Path) else given
        if self.path is not None and (not isinstance(self.path, str) or not self.path or Path(self.path).is_file()):
            section.refuse("path", "a folder", given)
        self.every = section.whole("every", self.every)
        self.keep = section.whole("keep", self.keep, at_least=1)
        section.choice("resume", self.resume, ("auto", "must", "never"))
        section.choice("on_config_change", self.on_config_change, ("refuse", "warn"))
        section.flag("in_background", self.in_background)
        section.flag("progress_bar", self.progress_bar)

    def folder(self, output: Path | None = None) -> Path:
        """The folder of the checkpoints. output (Path | None): That for models.

        RAISES (ConfigError): There is none.
        """
        if self.path is not None:
            return Path(self.path)
        if output is None:
            raise ConfigError(
                f"Can't save checkpoints: expected --output, or 'path' in {CHECKPOINT}, found neither. Add --output. "
                "(In Python, import thinc_torchopt before `train` of spacy.training.loop.)"
            )
        return output / "state"
