"""The output of the server: `result.json` with the scores of each round, and the global model as a spaCy pipeline.

`flwr run` always ends with exit code 0, and a server that is killed can't write its status. So the status of a run is
not in the file: `read_result` finds it by the lock on the folder that the server holds while it runs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

from ...errors import StateError
from ...schema import AnyNumber, Count, read, write
from ...state import replacing, write_text
from ...training import RunLock, is_in_use
from .house import House
from .weights import Tensors

LOG = logging.getLogger("flwr.thinc-torchopt")

RESULT = "result.json"
LAST, BEST = "model-last", "model-best"


Ended = Literal["finished", "failed"] | None


@dataclass
class Round:
    """A row of the results.

    round (int): The round. clients (dict): The reports of clients. failed (dict): Why other clients were left out.
    repeated (list): `failed` of each attempt that was not accepted. score, scores: Scores of the model after the round.
    """

    round: Count
    clients: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, Any] = field(default_factory=dict)
    repeated: list[Any] = field(default_factory=list)
    score: AnyNumber | None = None
    scores: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """The content of result.json."""

    ended: Ended
    error: str | None
    best: Count | None
    rounds: list[Round]


class Results:
    """Rounds, scores and models of a run, in a folder.

    path (Path): The folder. The results of an earlier run are moved to a subfolder: see `set_aside`.
    RAISES (StateError): Another run uses the folder. (ConfigError): It is not writable.

    Public: `rounds` (one row each; row 0 is the model at the start), `best` (row of the best model so far, or None).
    """

    def __init__(self, path: Path):
        self._path = path
        self._lock = RunLock(path, what="results", setting="'output' in [tool.flwr.app.config]")
        self._lock.acquire()
        if (before := set_aside(path)) is not None:
            LOG.warning("The results of an earlier run in '%s' were moved to '%s'", path, before)
        self.rounds = [Round(0)]
        self.best: int | None = None
        self._write()

    def begin_round(self) -> None:
        """Begin a new row."""
        self.rounds.append(Round(len(self.rounds)))

    def score(self, row: int, score: float, scores: Mapping[str, float], house: House, weights: Tensors) -> None:
        """Record the score of a model, and save it if it is the best. weights (Tensors): Its weights."""
        self.rounds[row].score, self.rounds[row].scores = score, dict(scores)
        best = None if self.best is None else self.rounds[self.best].score
        if best is None or score > best:
            self.best = row
            self._save(BEST, house, weights, scores)
        self._write()

    def end_round(self, house: House, weights: Tensors) -> None:
        """End a round, and save the new model. weights (Tensors): Its weights."""
        self._save(LAST, house, weights, {})
        self._write()

    def finish(self) -> None:
        self._write("finished")
        self._lock.release()

    def fail(self, error: BaseException) -> None:
        with suppress(StateError):  # another run has the folder: that was the error
            self._write("failed", f"{type(error).__name__}: {error}")
        self._lock.release()

    def _save(self, name: str, house: House, weights: Tensors, scores: Mapping[str, float]) -> None:
        """Save a model, completely or not at all."""
        self._lock.check()
        nlp = house.to_save(weights)
        wanted = house.config["training"]["score_weights"]
        nlp.meta["performance"] = {metric: scores[metric] for metric in wanted if metric in scores}
        with replacing(self._path / name) as unfinished:
            nlp.to_disk(unfinished)

    def _write(self, ended: Ended = None, error: str | None = None) -> None:
        self._lock.check()
        content = write(Result(ended, error, self.best, self.rounds))
        write_text(self._path / RESULT, json.dumps(content, indent=2) + "\n")


def read_result(folder: Path) -> dict[str, Any]:
    """Read the results of a server.

    folder (Path): Its `output`.
    RETURNS (dict): "rounds", "best" and "error" as in result.json, and "status": "running", "finished", "failed",
        "killed", or "unknown" (running or killed, on another machine or on a disk without locks).
    RAISES (StateError): There is no result, or it is damaged.
    """
    in_use = is_in_use(folder)
    path = folder / RESULT
    try:
        found = json.loads(path.read_text(encoding="utf8"))
    except FileNotFoundError as error:
        raise StateError(
            f"Can't read '{path}': the file does not exist. The training has not begun, or writes elsewhere: see "
            "'output' in [tool.flwr.app.config]."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"Can't load '{path}': it is not valid JSON ({error!r}).") from error
    result = read(Result, found, f"'{path}'")
    # Checked twice, as a run may end or begin in between.
    status = result.ended or _STATUS[in_use or is_in_use(folder)]
    return {"status": status, **{name: part for name, part in write(result).items() if name != "ended"}}


_STATUS = {True: "running", False: "killed", None: "unknown"}


def set_aside(folder: Path) -> Path | None:
    """Move the results of an earlier run to "earlier-1", "earlier-2" ... in the same folder.

    RETURNS (Path): The new folder. None: there were no results.
    """
    left = [path for name in (LAST, BEST, RESULT) if (path := folder / name).exists()]
    if not left:
        return None
    place = next(place for n in count(1) if not (place := folder / f"earlier-{n}").exists())
    place.mkdir()
    for path in left:
        path.rename(place / path.name)
    return place
