"""The settings of checkpoints: `thinc-torchopt.Checkpoint.v1`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..checks import Section
from ..types import CheckpointSettings

CHECKPOINT = "[training.optimizer.checkpoint]"


def Checkpoint(
    path: str,
    *,
    every: int = 0,
    keep: int = 2,
    resume: Literal["auto", "must", "never"] = "auto",
    on_config_change: Literal["refuse", "warn"] = "refuse",
    in_background: bool = True,
    progress_bar: bool = True,
) -> CheckpointSettings:
    """Save the state of a training run, and resume from it. Registered as `thinc-torchopt.Checkpoint.v1`.

    path (str): A folder for this run alone.
    every (int): Steps between two checkpoints, beside those after each evaluation. 0: only after evaluations.
    keep (int): Number of checkpoints to keep, the newest ones.
    resume ("auto" | "must" | "never"): "auto" resumes from the newest undamaged checkpoint, if there is one; "must"
        raises an error if there is none; "never" starts from scratch, and removes the checkpoints of an earlier run.
    on_config_change ("refuse" | "warn"): Whether to raise an error or warn if the config differs from the checkpoint's.
        Paths, `max_steps`, `max_epochs`, `patience`, `eval_frequency`, the logger, and the blocks `checkpoint`,
        `distributed` and `budget` may always change; a budget only until its learning rate falls.
    in_background (bool): Copy the state, and write it while the training continues. The copy takes as much main memory
        as the checkpoint takes on the disk. False: the training waits until it is written.
    progress_bar (bool): Show a progress bar while a resumed run skips the batches that it trained on before. Only in a
        terminal or notebook.
    RAISES (ConfigError): An argument is out of its range.
    """
    section = Section(CHECKPOINT)
    folder = str(path) if isinstance(path, Path) else path
    if not isinstance(folder, str) or not folder or Path(folder).is_file():
        section.refuse("path", "a folder", path)
    return CheckpointSettings(
        folder,
        section.whole("every", every),
        section.whole("keep", keep, at_least=1),
        section.choice("resume", resume, ("auto", "must", "never")),
        section.choice("on_config_change", on_config_change, ("refuse", "warn")),
        section.flag("in_background", in_background),
        section.flag("progress_bar", progress_bar),
    )
