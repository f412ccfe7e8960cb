"""`spacy torchopt checkpoint`: show the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from typer import Argument as Arg

from ..core.errors import StateError, StateReadError
from ..core.schema import write
from ..core.state import MANIFEST, read_folder
from ..core.tables import print_table
from ..core.words import short
from ..loop.checkpoint_folder import bytes_of, read_checkpoint, resumable, step_of
from ._command import JSON
from ._screen import errors_shown, make_console, print_json, print_notes


def checkpoint(
    path: Path = Arg(..., help="Folder with a run's checkpoints, or one checkpoint", exists=True, file_okay=False),
    as_json: bool = JSON,
) -> None:
    """
    Show what is inside the checkpoints of a run. Step, epoch, scores, param groups with their learning rates, sizes,
    and whether each checkpoint is whole, damaged or unreadable. Nothing is changed.
    """
    with errors_shown(as_json=as_json):
        looked = [(folder, _look_into(folder)) for folder in _checkpoints_in(path)]
        found = [entry for folder, entry in looked if folder.is_dir()]  # a running training may have removed others
    whole = [entry for entry in found if entry["whole"]]
    if as_json:
        print_json(found)
    else:
        console = make_console()
        headers = ["checkpoint", "step", "epoch", "score (0-1)", "best (0-1)", "params", "MB", "state"]
        print_table(console, headers, [_row(entry) for entry in found], numbers=headers[1:-1])
        if whole:
            rows = [[group["name"], str(group["params"]), short(group["learn_rate"])] for group in whole[-1]["groups"]]
            print_table(console, ["group", "tensors", "learn rate"], rows, numbers=["tensors", "learn rate"])
        print_notes(console, [entry["problem"] for entry in found if not entry["whole"]])
    if not whole:
        with errors_shown(as_json=as_json):
            unread = sum(entry["whole"] is None for entry in found)
            advice = "Start the training again." if resumable(path) else "Look at the others in its folder."
            others = f" and {unread} unreadable. Make these readable." if unread else f". {advice}"
            raise StateError(
                f"Can't resume from '{path}': expected an undamaged checkpoint, found {len(found) - unread} damaged"
                f"{others}"
            )


def _checkpoints_in(path: Path) -> list[Path]:
    """The checkpoints in a folder, or the folder itself if it is one. Some may be damaged.

    RAISES (StateError): It has none. (StateReadError): It can't be read.
    """
    if found := resumable(path) or ([path] if step_of(path) is not None else []):
        return found
    if (path / MANIFEST).exists() and "progress" in read_folder(path):  # under another name
        return [path]
    raise StateError(
        f"Can't show '{path}': expected the checkpoints of spacy train, such as step-00000100, found none in it. Give "
        "the folder of 'path' in [training.optimizer.checkpoint]."
    )


def _row(entry: dict[str, Any]) -> list[str]:
    size = f"{entry['bytes'] / 1e6:.1f}"
    if not entry["whole"]:
        state = "unreadable" if entry["whole"] is None else "damaged"
        return [entry["name"], "", "", "", "", "", size, state]
    scores = ["" if entry[key] is None else f"{entry[key]:.4f}" for key in ("score", "best_score")]
    return [entry["name"], str(entry["step"]), str(entry["epoch"]), *scores, f"{entry['params']:,}", size, "whole"]


def _look_into(folder: Path) -> dict[str, Any]:
    """The entry of a checkpoint. Its "whole" is None if it can't be read."""
    entry: dict[str, Any] = {"name": folder.name, "bytes": bytes_of(folder)}
    try:
        saved = read_checkpoint(folder)
        progress, optimizer = saved.progress, saved.optimizer
        scores = [score if isfinite(score) else None for score, _ in progress.results]
        return entry | {
            "whole": True,
            "step": progress.step,
            "epoch": progress.epoch,
            "score": scores[-1] if scores else None,
            "best_score": max((score for score in scores if score is not None), default=None),
            "params": sum(tensor.numel() for tensor in _tensors(write(saved.model))),
            "groups": [
                {"name": name, "params": len(group["params"]), "learn_rate": group["applied_rate"]}
                for name, group in optimizer["groups"].items()
            ],
        }
    except (StateError, StateReadError) as error:
        return entry | {"whole": False if isinstance(error, StateError) else None, "problem": str(error)}
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        return entry | {
            "whole": False,
            "problem": f"Can't read '{folder}': it is not a checkpoint ({error!r}).",
        }


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
