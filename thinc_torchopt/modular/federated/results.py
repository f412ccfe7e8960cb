"""What the server writes: `result.json`, with the scores of each round, and the global model as a spaCy pipeline.

`flwr run` ends with exit code 0 whatever happens to the server. So "status" in the file says how the run went:
"running", "finished" or "failed".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...state import replacing, write_text
from .house import House
from .weights import Tensors

RESULT = "result.json"
LAST, BEST = "model-last", "model-best"


class Results:
    """Rounds, scores and models of a run, in a folder.

    path (Path): The folder. Files of a run before are replaced.

    Public: `rounds` (one row each; row 0 is the model at the start), `best` (row of the best model so far, or None).
    """

    def __init__(self, path: Path):
        self._path = path
        self.rounds: list[dict[str, Any]] = [_row(0)]
        self.best: int | None = None
        self._write("running")

    def begin_round(self) -> dict[str, Any]:
        """RETURNS (dict): The row of the round, to be filled."""
        self.rounds.append(_row(len(self.rounds)))
        return self.rounds[-1]

    def score(self, row: int, score: float, scores: Mapping[str, float], house: House, weights: Tensors) -> None:
        """Note how good a model is, and save it if it is the best. weights (Tensors): Its weights, for this house."""
        self.rounds[row]["score"], self.rounds[row]["scores"] = score, dict(scores)
        if self.best is None or score > self.rounds[self.best]["score"]:
            self.best = row
            self._save(BEST, house, weights, scores)
        self._write("running")

    def end_round(self, house: House, weights: Tensors) -> None:
        """A round is done. weights (Tensors): The new model's, which is saved."""
        self._save(LAST, house, weights, {})
        self._write("running")

    def finish(self) -> None:
        self._write("finished")

    def fail(self, error: BaseException) -> None:
        self._write("failed", f"{type(error).__name__}: {error}")

    def _save(self, name: str, house: House, weights: Tensors, scores: Mapping[str, float]) -> None:
        """Whole or not there."""
        nlp = house.to_save(weights)
        wanted = house.config["training"]["score_weights"]
        nlp.meta["performance"] = {metric: scores[metric] for metric in wanted if metric in scores}
        with replacing(self._path / name) as unfinished:
            nlp.to_disk(unfinished)

    def _write(self, status: str, error: str | None = None) -> None:
        content = {"status": status, "error": error, "best": self.best, "rounds": self.rounds}
        write_text(self._path / RESULT, json.dumps(content, indent=2) + "\n")


def _row(number: int) -> dict[str, Any]:
    """round: Which made the model. clients: What each reported. failed: Why others were left out. repeated: The same of
    each attempt that was not accepted. score, scores: Of the model, when they are known.
    """
    return {"round": number, "clients": {}, "failed": {}, "repeated": [], "score": None, "scores": {}}
