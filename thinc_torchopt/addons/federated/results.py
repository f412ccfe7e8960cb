"""The output of the server: `result.json` with the reports and scores of each round, the global model as a spaCy
pipeline, and the state from which a stopped run goes on.

`flwr run` always ends with exit code 0: "ended" in result.json tells whether a run has finished or failed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from ...core.errors import StateError
from ...core.schema import Count, check_version, read, write
from ...core.state import clear_leftovers, read_folder, replacing, write_folder, write_text
from ...loop.run_lock import RunLock
from .pipeline import FederatedPipeline
from .weights import Tensors

LOG = logging.getLogger("flwr.thinc-torchopt")

RESULT = "result.json"
LAST, BEST = "model-last", "model-best"
STATE = "state"

_VERSION = 2


@dataclass
class Round:
    """A row of the results.

    round (int): The round. clients (dict): The reports of clients. failed (dict): Why other clients were left out.
    score, scores: Scores of the model after the round.
    """

    round: Count
    clients: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    score: float | None = None
    scores: dict[str, float] = field(default_factory=dict)


@dataclass
class Result:
    """The content of result.json.

    run (str): The name of the run. ended, error: How it ended. best (int | None): The round of the best model.
    rounds (list): One row each; row 0 is the model at the start. refused (dict): Why clients take no part.
    """

    run: str = field(default_factory=lambda: uuid4().hex)
    ended: Literal["finished", "failed"] | None = None
    error: str | None = None
    best: Count | None = None
    rounds: list[Round] = field(default_factory=lambda: [Round(0)])
    refused: dict[str, str] = field(default_factory=dict)


@dataclass
class SavedFederation:
    """The state of a run after a round. server (dict): The states of the parts of `Rounds`."""

    version: Count
    run: str
    round: Count
    server: dict[str, Any]


class Results:
    """Rounds, scores, models and state of a run, in a folder.

    folder (Path): The folder.
    resume (str): As in [federated].
    RAISES (StateError): Another run uses the folder; or its state is damaged, or missing, and "must" be there.
        (ConfigError): The folder is not writable.

    Public: `folder`, `result`, `saved` (the state from which the run goes on, or None).
    """

    def __init__(self, folder: Path, resume: Literal["auto", "must", "never"] = "auto"):
        self.folder = folder
        self._lock = RunLock(folder, what="results", setting="'output' in [tool.flwr.app.config]")
        self._lock.acquire()
        clear_leftovers(folder)
        self.result = Result()
        self.saved = None if resume == "never" else self._read()
        if self.saved is None and resume == "must":
            raise StateError(
                f"Can't go on with a run: expected its state in '{folder}', found none. Change 'output', or set resume "
                '= "auto" in [federated].'
            )

    def _read(self) -> SavedFederation | None:
        """Read the last state of an earlier run, and its results up to then. RAISES (StateError): They are damaged."""
        path, state = self.folder / RESULT, self.folder / STATE
        if not path.exists() or not state.exists():
            return None
        check_version(content := read_folder(state), _VERSION, what := f"the state of the run in '{state}'")
        saved = read(SavedFederation, content, what)
        try:
            result = read(Result, json.loads(path.read_text(encoding="utf8")), f"'{path}'")
        except (OSError, json.JSONDecodeError, RecursionError) as error:
            raise StateError(f"Can't load '{path}': it is not valid JSON ({error!r}).") from error
        if result.run != saved.run or len(result.rounds) <= saved.round:
            LOG.warning("The state in '%s' is not that of the run in '%s': a new run begins", state, path)
            return None
        # A run that was stopped may have been in the next round.
        self.result = replace(result, ended=None, error=None, refused={}, rounds=result.rounds[: saved.round + 1])
        return saved

    def begin_round(self) -> Round:
        """Begin a new row."""
        self.result.rounds.append(row := Round(len(self.result.rounds)))
        self._write()
        return row

    def score(
        self, row: Round, score: float, scores: Mapping[str, float], pipeline: FederatedPipeline, weights: Tensors
    ) -> None:
        """Record the score of a model, and save it if it is the best. weights (Tensors): Its weights."""
        row.score, row.scores = score, dict(scores)
        best = None if self.result.best is None else self.result.rounds[self.result.best].score
        if best is None or score > best:
            self.result.best = row.round
            self.save(BEST, pipeline, weights, scores)
        self._write()

    def end_round(self, pipeline: FederatedPipeline, weights: Tensors, server: Mapping[str, Any]) -> None:
        """End a round: save the state, and the new model.

        weights (Tensors): Its weights. server (Mapping): See `SavedFederation`.
        """
        # The file may be a round ahead of the state, see `_read`.
        self._write()
        state = SavedFederation(_VERSION, self.result.run, self.result.rounds[-1].round, dict(server))
        write_folder(self.folder / STATE, write(state))
        self.save(LAST, pipeline, weights, {})

    def save(self, name: str, pipeline: FederatedPipeline, weights: Tensors, scores: Mapping[str, float]) -> None:
        """Save a model, completely or not at all."""
        self._lock.check()
        nlp = pipeline.to_save(weights)
        wanted = pipeline.config["training"]["score_weights"]
        nlp.meta["performance"] = {metric: scores[metric] for metric in wanted if metric in scores}
        with replacing(self.folder / name) as unfinished:
            nlp.to_disk(unfinished)

    def finish(self) -> None:
        self.result.ended = "finished"
        self._write()
        self._lock.release()

    def fail(self, error: BaseException) -> None:
        self.result.ended, self.result.error = "failed", f"{type(error).__name__}: {error}"
        with suppress(StateError):  # another run has the folder: that was the error
            self._write()
        self._lock.release()

    def _write(self) -> None:
        self._lock.check()
        write_text(self.folder / RESULT, json.dumps(write(self.result), indent=2) + "\n")
