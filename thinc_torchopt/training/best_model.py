"""The best model of a run, kept beside its checkpoints: spaCy removes its own when it is started again.

It is a copy of the model that spaCy wrote, with our manifest of checksums. Hard links would not do: writing to one of
two linked files changes the other.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ..errors import ConfigError, StateError
from ..state import clear_leftovers, crc32_of, replacing

_MANIFEST = "torchopt-manifest.json"


class BestModel:
    """The copy of the best model. folder (Path): The folder of the checkpoints."""

    def __init__(self, folder: Path):
        self.path = folder / "best"

    @property
    def is_there(self) -> bool:
        """Whether there is a copy."""
        return (self.path / _MANIFEST).is_file()

    def check_place(self) -> None:
        """Check that the copy can be kept. RAISES (ConfigError): Something else is in its place."""
        if (
            os.path.lexists(self.path)
            and not self.is_there
            and not (self.path.is_dir() and not any(self.path.iterdir()))
        ):
            raise ConfigError(
                f"Can't keep the best model in '{self.path}': expected a copy made by this package, or nothing, found "
                "other files. They were not changed. Move them elsewhere, or set 'path' in "
                "[training.optimizer.checkpoint] to a folder for this run alone."
            )

    def keep(self, model: Path, step: int) -> None:
        """Copy a model here. step (int): The step after which it was the best.

        RAISES (OSError): The disk is full, for example. The old copy is unchanged.
        """
        with replacing(self.path) as unfinished:
            shutil.copytree(model, unfinished)
            (unfinished / _MANIFEST).write_text(_manifest_of(unfinished, step), encoding="utf8")

    def put_back(self, model: Path) -> int:
        """Copy it to the place where spaCy keeps the best model.

        model (Path): Must not exist yet.
        RETURNS (int): The step of the model.
        RAISES (StateError): The copy is damaged. (OSError): The disk is full, for example. `model` does not exist then.
        """
        manifest = self._read_manifest()
        clear_leftovers(model.parent, model.name)
        with replacing(model) as unfinished:
            shutil.copytree(self.path, unfinished, ignore=lambda folder, names: {_MANIFEST} & set(names))
            # Checks the new copy, and so the old one too.
            if _checksums(unfinished) != manifest["files"]:
                raise StateError(
                    f"Can't use the best model in '{self.path}': expected its files as they were written, found "
                    "others. It is damaged, or another program changed it."
                )
        step: int = manifest["step"]
        return step

    def remove(self) -> None:
        """Remove the copy, if there is one."""
        if self.is_there and not self.path.is_symlink():
            shutil.rmtree(self.path, ignore_errors=True)

    def _read_manifest(self) -> dict[str, Any]:
        try:
            manifest = json.loads((self.path / _MANIFEST).read_text(encoding="utf8"))
            return {"step": int(manifest["step"]), "files": dict(manifest["files"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"Can't use the best model in '{self.path}': expected {_MANIFEST}, found {type(error).__name__}: "
                f"{error}. It is damaged."
            ) from error


def _manifest_of(folder: Path, step: int) -> str:
    return json.dumps({"step": step, "files": _checksums(folder)}, sort_keys=True)


def _checksums(folder: Path) -> dict[str, list[int]]:
    """Size and checksum of each file below a folder, by its path there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, crc32_of(path)] for path in files}
