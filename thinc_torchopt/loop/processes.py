"""The processes of a run: how it asks for what all of them must share. Here for a single one.

Several processes are an add-on, the entry point `several` of the group `thinc_torchopt_processes`: a subclass of
`Alone` that is made with the same arguments as `processes_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from spacy.language import Language
from spacy.training import Example

from ..core.errors import ConfigError
from ..core.launched import is_launched
from ..core.optimizer import TorchOptimizer
from ..core.registry import entry_points
from .checkpoint_folder import RanksState
from .events import Listener

T = TypeVar("T")
Scores = tuple[float, dict[str, Any]]


class Alone:
    """A single process.

    Public: `rank`, `size` (the world size).
    """

    rank = 0
    size = 1

    @property
    def writes(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    def share_generators(self) -> None:
        """Start the data with the random generators of rank 0."""

    def compare_settings(self, arguments: dict[str, Any]) -> None:
        """Check that settings are equal on all ranks. arguments (dict): The run's arguments, by config path.

        RAISES (DistributedError): They differ.
        """

    def compare_data(self, examples: Callable[[], list[Example]]) -> None:
        """Check that all ranks have the same training data. RAISES (DistributedError): They differ."""

    def begin(self, seed: int | None) -> None:
        """Begin or resume the run. seed (int | None): The seed of a resumed run."""

    def begin_step(self, step: int, changes: Sequence[Callable[[], None]]) -> None:
        """Begin a step. changes (Sequence[Callable]): Called: all that may change the pipeline, in all processes."""
        for change in changes:
            change()

    def begin_update(
        self, batch: list[Example], losses: dict[str, Any], checksum: int
    ) -> tuple[list[Example], dict[str, Any]]:
        """This process's part of the batch, and the dict for its losses. checksum (int): Of all batches so far, 32
        bits.
        """
        return batch, losses

    def end_backward(self) -> None:
        """Called when all gradients of this process are computed."""

    def end_update(self, losses: dict[str, Any]) -> None:
        """Add the losses of all ranks."""

    def is_spoiled(self, noted: bool) -> bool:
        """Whether a component found a value that is not finite in this step. noted (bool): In this process."""
        return noted

    def end_step(self, step: int) -> None:
        """End a step. RAISES (DistributedError): Params differ between ranks."""

    def compare_params(self, step: int) -> None:
        """Check params before they are evaluated or saved. RAISES (DistributedError): They differ between ranks."""

    def evaluate(self, evaluate: Callable[[], Scores]) -> Scores:
        """Score and scores."""
        return evaluate()

    def stopped_by(self, noted: int | None) -> int | None:
        """The number of the signal that stops the run after this step. noted (int | None): The one this process got."""
        return noted

    def same_requests(self, name: str) -> Listener | None:
        """A listener that gives all processes the requests of rank 0. name (str): Its name."""
        return None

    def is_told_to_decay(self, noted: bool) -> bool:
        """Whether learning rates start to fall after this step. noted (bool): Whether this process was told so."""
        return noted

    def gather(self, value: T) -> list[T]:
        """The value of each process, in their order. On all of them."""
        return [value]

    def from_rank_0(self, compute: Callable[[], T]) -> T:
        """Rank 0's result of a function, on all ranks."""
        return compute()

    def share(self, value: T) -> T:
        """Rank 0's value, on all ranks: of plain data, which may take rank 0 long to compute."""
        return value

    def whole_state(self, optimizer: TorchOptimizer) -> dict[str, Any] | None:
        """The whole state of an optimizer. None: on ranks that don't write it."""
        return optimizer.state_dict()

    def barrier(self) -> None:
        """Wait until all ranks have called it."""

    def snapshot(self) -> RanksState | None:
        """The part of a checkpoint about ranks."""
        return None

    def close(self, error: BaseException | None) -> None:
        """End the run in this process. error (BaseException | None): The error that ended it."""


def processes_of(
    nlp: Language,
    optimizer: TorchOptimizer,
    introduce: Callable[[], object],
    noted: Callable[[], int | None],
    told_to_decay: Callable[[], bool],
) -> Alone:
    """The processes that train a pipeline, as the launcher's environment says.

    nlp (Language), optimizer (TorchOptimizer): The run's.
    introduce (Callable): Tells the optimizer its pipeline.
    noted (Callable): Returns the number of the signal that this process got, or None.
    told_to_decay (Callable): Returns whether this process was told to lower learning rates.
    RAISES (DistributedError): Not all processes started. (ConfigError): Several can't train this pipeline.
    """
    if not is_launched():
        return Alone()
    points = entry_points("thinc_torchopt_processes")
    found = {point.value: point for point in points if point.name == "several"}
    if len(found) != 1:
        raise ConfigError(
            "Can't train in several processes: expected one installed package with the entry point 'several' in "
            f"thinc_torchopt_processes, found {len(found)}. Install thinc_torchopt again, once."
        )
    [several] = found.values()
    processes: Alone = several.load()(nlp, optimizer, introduce, noted, told_to_decay)
    return processes
