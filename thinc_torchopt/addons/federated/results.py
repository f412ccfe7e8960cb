"""The output of the server: `result.json` with the scores of each round, the global model as a spaCy pipeline, and the
state from which a stopped run goes on.

`flwr run` always ends with exit code 0, and a server that is killed can't write its status. So the status of a run is
not in the file: `read_result` finds it by the lock on the folder that the server holds while it runs.

A new run leaves the results of an earlier one in place until it has a model of its own, and then moves them aside.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from ...core.errors import StateError
from ...core.schema import AnyNumber, Count, check_version, read, write
from ...core.state import clear_leftovers, read_folder, replacing, write_folder, write_text
from ...loop.run_lock import RunLock, is_in_use
from .pipeline import FederatedPipeline
from .weights import Tensors

LOG = logging.getLogger("flwr.thinc-torchopt")

RESULT = "result.json"
LAST, BEST = "model-last", "model-best"
STATE = "state"

_VERSION = 1

Ended = Literal["finished", "failed"] | None


@dataclass
class Round:
    """A row of the results.

    round (int): The round. clients (dict): The reports of clients. failed (dict): Why other clients were left out.
    repeated (list): `failed` of each attempt that was not
    accepted. interrupted (int): How often the server was stopped in the round, which was then done again. score,
    scores: Scores of the model after the round. privacy (dict): The epsilon that it has used, with [federated.privacy].
    """

    round: Count
    clients: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, Any] = field(default_factory=dict)
    repeated: list[Any] = field(default_factory=list)
    interrupted: Count = 0
    score: AnyNumber | None = None
    scores: dict[str, Any] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """The content of result.json.

    run (str): The run that wrote it; a run that was resumed keeps its own. refused (dict): Why clients take no part.
    """

    run: str
    ended: Ended
    error: str | None
    best: Count | None
    rounds: list[Round]
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def has_models(self) -> bool:
        """Whether a round has made one."""
        return any(row.clients for row in self.rounds)


@dataclass
class SavedFederation:
    """The state of a run after a round.

    finished (bool): The run has ended as planned. server (dict): The states of the parts of `Rounds`.
    """

    version: Count
    finished: bool
    result: Result
    server: dict[str, Any]

    @property
    def round(self) -> int:
        return self.result.rounds[-1].round


class Results:
    """Rounds, scores, models and state of a run, in a folder.

    folder (Path): The folder.
    RAISES (StateError): Another run uses the folder. (ConfigError): It is not writable.

    Public: `folder`, `run` (its name), `rounds` (one row each; row 0 is the model at the start), `best` (row of the
    best model so far, or None), `refused` (why clients take no part, by their names).
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._lock = RunLock(folder, what="results", setting="'output' in [tool.flwr.app.config]")
        self._lock.acquire()
        clear_leftovers(folder)
        self.run = uuid4().hex
        self.rounds = [Round(0)]
        self.best: int | None = None
        self.refused: dict[str, str] = {}
        # How often the next round was begun before.
        self._interrupted = 0
        # The results of an earlier run, which stay in place as long as this one has no model. They may be damaged.
        self._earlier: Result | None = None
        self._is_own = False
        with suppress(StateError):
            self._earlier = _read_file(folder)
        if not (folder / STATE).exists() and (self._earlier is None or not self._earlier.has_models):
            if self._earlier is None:
                self._claim()
            else:
                self.run, self._is_own = self._earlier.run, True
                self._count_interrupted(self._earlier)
        self._write()

    def read_state(self) -> SavedFederation | None:
        """The state of an earlier run, if there is one. RAISES (StateError): It is damaged, or of a newer version."""
        path = self.folder / STATE
        if not path.exists():
            return None
        check_version(content := read_folder(path), _VERSION, what := f"the state of the run in '{path}'")
        return read(SavedFederation, content, what)

    def resume(self, saved: SavedFederation, pipeline: FederatedPipeline, weights: Tensors) -> None:
        """Go on with an earlier run. Scores that came in after its last state are kept.

        weights (Tensors): Of its model, which is saved again: the run may have been killed before that.
        """
        earlier, result = self._earlier, saved.result
        self.run, self.rounds, self.best = result.run, result.rounds, result.best
        self._is_own = True
        if earlier is not None and earlier.run == self.run:
            for row, later in zip(self.rounds, earlier.rounds):
                if row.score is None:
                    row.score, row.scores = later.score, later.scores
            self.best = self.best if earlier.best is None else earlier.best
            self._count_interrupted(earlier)
        self._save(LAST, pipeline, weights, {})
        self._write()

    def _count_interrupted(self, earlier: Result) -> None:
        """Count how often the next round was begun."""
        for row in earlier.rounds[len(self.rounds) :]:
            self._interrupted = row.interrupted + 1
            LOG.warning("The server stopped in round %s: it is done again, by all clients", row.round)

    def begin_round(self) -> None:
        """Begin a new row."""
        self.rounds.append(Round(len(self.rounds), interrupted=self._interrupted))
        self._interrupted = 0
        self._write()

    def score(
        self, row: int, score: float, scores: Mapping[str, float], pipeline: FederatedPipeline, weights: Tensors
    ) -> None:
        """Record the score of a model, and save it if it is the best. weights (Tensors): Its weights."""
        self._claim()
        self.rounds[row].score, self.rounds[row].scores = score, dict(scores)
        best = None if self.best is None else self.rounds[self.best].score
        if best is None or score > best:
            self.best = row
            self._save(BEST, pipeline, weights, scores)
        self._write()

    def end_round(self, pipeline: FederatedPipeline, weights: Tensors, server: Mapping[str, Any]) -> None:
        """End a round: save the state, and the new model.

        weights (Tensors): Its weights. server (Mapping): See `SavedFederation`.
        """
        self._claim()
        self._save_state(server)
        self._save(LAST, pipeline, weights, {})
        self._write()

    def finish(self, server: Mapping[str, Any]) -> None:
        """End the run, and say so in its state."""
        self._claim()
        self._write("finished")
        self._save_state(server, finished=True)
        self._lock.release()

    def fail(self, error: BaseException) -> None:
        with suppress(StateError):  # another run has the folder: that was the error
            self._write("failed", f"{type(error).__name__}: {error}")
        self._lock.release()

    def _claim(self) -> None:
        """Move the results of an earlier run aside, as they were, before this one writes its own."""
        if self._is_own:
            return
        if self._earlier is not None:
            write_text(self.folder / RESULT, _as_text(self._earlier))
        if (before := set_aside(self.folder)) is not None:
            LOG.warning("The results of an earlier run in '%s' were moved to '%s'", self.folder, before)
        self._is_own = True

    def _save_state(self, server: Mapping[str, Any], *, finished: bool = False) -> None:
        self._lock.check()
        result = Result(self.run, None, None, self.best, self.rounds)
        write_folder(self.folder / STATE, write(SavedFederation(_VERSION, finished, result, dict(server))))

    def _save(self, name: str, pipeline: FederatedPipeline, weights: Tensors, scores: Mapping[str, float]) -> None:
        """Save a model, completely or not at all."""
        self._lock.check()
        nlp = pipeline.to_save(weights)
        wanted = pipeline.config["training"]["score_weights"]
        nlp.meta["performance"] = {metric: scores[metric] for metric in wanted if metric in scores}
        with replacing(self.folder / name) as unfinished:
            nlp.to_disk(unfinished)

    def _write(self, ended: Ended = None, error: str | None = None) -> None:
        """Write result.json. A run without a model of its own only changes the status of the earlier one."""
        self._lock.check()
        result = Result(self.run, ended, error, self.best, self.rounds, self.refused)
        if not self._is_own and self._earlier is not None:
            result = replace(self._earlier, ended=ended, error=error, refused=self.refused)
        write_text(self.folder / RESULT, _as_text(result))


def read_result(folder: Path) -> dict[str, Any]:
    """Read the results of a server.

    folder (Path): Its `output`.
    RETURNS (dict): "run", "rounds", "best", "refused" and "error" as in result.json, and "status": "running",
        "finished", "failed", "killed", or "unknown" (running or killed, on another machine or on a disk without locks).
    RAISES (StateError): There is no result, or it is damaged.
    """
    in_use = is_in_use(folder)
    result = _read_file(folder)
    if result is None:
        raise StateError(
            f"Can't read '{folder / RESULT}': the file does not exist. The training has not begun, or writes elsewhere:"
            " see 'output' in [tool.flwr.app.config]."
        )
    # Checked twice, as a run may end or begin in between.
    status = result.ended or _STATUS[in_use or is_in_use(folder)]
    return {"status": status, **{name: part for name, part in write(result).items() if name != "ended"}}


_STATUS = {True: "running", False: "killed", None: "unknown"}


def _read_file(folder: Path) -> Result | None:
    """RETURNS (Result | None): None: there is no such file. RAISES (StateError): It is damaged."""
    path = folder / RESULT
    try:
        found = json.loads(path.read_text(encoding="utf8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"Can't load '{path}': it is not valid JSON ({error!r}).") from error
    return read(Result, found, f"'{path}'")


def _as_text(result: Result) -> str:
    return json.dumps(write(result), indent=2) + "\n"


def set_aside(folder: Path) -> Path | None:
    """Move the results of an earlier run to "earlier-1", "earlier-2" ... in the same folder.

    RETURNS (Path): The new folder. None: there were no results.
    """
    left = [path for name in (LAST, BEST, STATE, RESULT) if (path := folder / name).exists()]
    if not left:
        return None
    place = next(place for n in count(1) if not (place := folder / f"earlier-{n}").exists())
    place.mkdir()
    for path in left:
        path.rename(place / path.name)
    return place
