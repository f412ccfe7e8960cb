"""The matrix products of a run: `ops` in [training.optimizer]. Chosen at its beginning, kept when it is resumed."""

from __future__ import annotations

import warnings
from typing import Any

from spacy.language import Language

from ..core.errors import CheckpointWarning
from ..core.log import inform
from ..core.ops import PipelineOps, Products, fastest, products_by
from ..core.schema import read, write
from ..core.types import OpsThreads
from .events import Control, StepBegin, TrainBegin
from .processes import Alone


class RunOps:
    """Gives the nodes of the pipeline the fastest products for the time of the run.

    All ranks use those of rank 0. A resumed run goes on with those that it began with, as others round otherwise.

    threads (int | "auto"): For each product.
    """

    name = "ops"

    def __init__(self, nlp: Language, ranks: Alone, threads: OpsThreads):
        self._nlp = nlp
        self._ranks = ranks
        self._threads = threads
        self._products: Products | None = None
        self._in_use: PipelineOps | None = None

    def on_train_begin(self, event: TrainBegin, control: Control) -> None:
        products = self._choose() if self._products is None else self._same_as_before(self._products)
        self._products = products
        self._in_use = PipelineOps(self._nlp, products).__enter__()

    def on_step_begin(self, event: StepBegin, control: Control) -> None:
        assert self._in_use is not None
        self._in_use.cover()  # the user's hook may have added labels

    def close(self) -> None:
        if self._in_use is not None:
            self._in_use.__exit__()

    def _choose(self) -> Products:
        state, reason = self._ranks.from_rank_0(self._measure)
        products = read(Products, state, "the matrix products of rank 0")
        inform("Matrix products by %s: %s", products, reason)
        return products

    def _measure(self) -> tuple[dict[str, Any], str]:
        choice = fastest(self._nlp, self._threads)
        return write(choice.products), choice.reason

    def _same_as_before(self, saved: Products) -> Products:
        """The saved library, on this machine."""
        found = products_by(saved.library, saved.threads)
        if found != saved:
            warnings.warn(
                CheckpointWarning(
                    f"Matrix products are not computed as before the run was stopped: expected {saved.kernel}, found "
                    f"{found.kernel}. This is another machine, or another version. The run goes on, but its results "
                    "differ in rounding from those of a run that was not stopped."
                ),
                stacklevel=2,
            )
        inform("Matrix products by %s: as before the run was stopped.", found)
        return found

    def state_dict(self) -> dict[str, Any]:
        return {} if self._products is None else write(self._products)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """RAISES (StateError): The state is invalid."""
        self._products = read(Products, state, "the matrix products of the run")
