"""Programs that use spaCy and not this package, each in a process of its own, with its entry points and without them:
see forks.py.
"""

from __future__ import annotations

import json
import os
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from .forks import ROOT, Program, fork, server

PACKAGE = ROOT / "thinc_torchopt"


def room_of(module: str) -> str:
    """The file or folder in a layer; else the layer."""
    _, layer, *parts = module.split(".")
    return parts[0] if parts else layer


class Ended(NamedTuple):
    """A program that has ended.

    status (int): Its exit status. stdout, stderr (str): What it printed.
    modules (list[str]): Modules of ours that it imported.
    replaced (list[str]): Functions of thinc and spaCy, and of Python for errors and warnings, that are ours now.
    """

    status: int
    stdout: str
    stderr: str
    modules: list[str]
    replaced: list[str]

    @property
    def rooms(self) -> set[str]:
        return {room_of(name) for name in self.modules if "." in name}


def run(program: Program, folder: Path, *, installed: bool = True, **variables: str) -> Ended:
    """Run a program in a folder.

    installed (bool): With the entry points of this package. variables (str): Of the environment.
    """
    return Ended(*server().ask("foreign", program, str(folder), installed, variables))


def fork_foreign(program: Program, folder: str, installed: bool, variables: dict[str, str | None]) -> Ended:
    with TemporaryFile("w+") as found:
        ended = fork(
            program,
            folder=folder,
            variables=variables,
            first=lambda: None if installed else _hide_entry_points(),
            at_the_end=lambda: print(json.dumps([_modules(), sorted(set(_replaced()))]), file=found, flush=True),
        )
        found.seek(0)
        return Ended(*ended, *json.load(found))


def _hide_entry_points() -> None:
    import catalogue

    catalogue.AVAILABLE_ENTRY_POINTS = {
        group: [one for one in points if not one.value.startswith(PACKAGE.name)]
        for group, points in catalogue.AVAILABLE_ENTRY_POINTS.items()
    }


def _modules() -> list[str]:
    return sorted(name for name in sys.modules if name.partition(".")[0] == PACKAGE.name)


def _replaced() -> Iterator[str]:
    """By where the code of a function is written, whatever its name."""
    ours = f"{PACKAGE}{os.sep}"
    owners: list[tuple[str, Any]] = [("sys", sys), ("warnings", warnings)]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("spacy", "thinc") and isinstance(module, types.ModuleType):
            owners += [(name, module), *((name, value) for value in vars(module).values() if isinstance(value, type))]
    for name, owner in owners:
        for key, value in list(vars(owner).items()):
            code = getattr(value, "__code__", None)
            if code is not None and code.co_filename.startswith(ours):
                yield f"{name}.{key}"
