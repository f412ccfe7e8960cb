"""What a config says of checkpoints: `thinc-torchopt.Checkpoint.v1`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..checks import Section
from ..types import CheckpointSettings

BLOCK = "[training.optimizer.checkpoint]"


def Checkpoint(
    path: str,
    *,
    every: int = 0,
    keep: int = 2,
    resume: Literal["auto", "must", "never"] = "auto",
    on_config_change: Literal["refuse", "warn"] = "refuse",
    in_background: bool = True,
    allow_foreign_shims: bool = False,
    progress_bar: bool = True,
) -> CheckpointSettings:
    """Save the state of a training run, and go on from it. Registered as `thinc-torchopt.Checkpoint.v1`.

    path (str): A folder for this run alone.
    every (int): Save after every so many steps; always after an evaluation. 0: only then.
    keep (int): How many checkpoints to keep, the newest.
    resume ("auto" | "must" | "never"): Resume from the newest undamaged checkpoint if there is one; stop if there is
        none; or start again.
    on_config_change ("refuse" | "warn"): When the config is another than that of the checkpoint. Paths, `max_steps`,
        `patience`, `eval_frequency`, the logger, this block, that of several processes and that of a budget may change.
    in_background (bool): Copy the state, and write it to the disk while the training goes on. The copy takes as much
        main memory as a checkpoint takes on the disk. False: the training waits.
    allow_foreign_shims (bool): Load what is loaded by code that is not ours: shims that are not of torch modules, and
        components whose model is none of thinc's. Their `from_bytes` gets what is in the folder.
    progress_bar (bool): Show how far a run that goes on has read past the batches of before; only in a terminal or a
        notebook.
    RAISES (ConfigError): An argument is out of its range.
    """
    section = Section(BLOCK)
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
        section.flag("allow_foreign_shims", allow_foreign_shims),
        section.flag("progress_bar", progress_bar),
    )
