"""What a run does where several processes, the *ranks*, train one pipeline: see distributed/.

All ranks run the same loop over the same batches, of each of which they train on a part. What they must not decide
alone comes from rank 0, or from all: see the methods of `Ranks`. `Alone` does nothing of it, for a single process.
"""

from __future__ import annotations

import logging
import random
import zlib
from collections.abc import Callable
from dataclasses import asdict
from textwrap import shorten
from typing import Any, TypeVar

from spacy.language import Language
from spacy.training import Example
from torch.nn.parameter import is_lazy

from .. import hooks
from ..controller import Firing
from ..distributed import (
    FlatReduce,
    Group,
    Shards,
    SharedSets,
    check_can_be_split,
    check_same_params,
    deal,
    seed_of,
    sharing_pipe,
)
from ..errors import ConfigError, DistributedError, StateError
from ..optimizers import TorchOptimizer
from ..params import components_with_model, shim_paths, torch_params
from ..state import in_main_memory
from ..types import DistributedSettings
from .checkpoint_folder import RanksState
from .config_check import collect_identity, collect_values_of_all, compare_configs, compare_identities
from .data_stream import checksums_of
from .events import EVENTS, Control, Event
from .model_state import check_model, collect_model, restore_model
from .random_state import load_generators, read_generators, save_generators, seed_all, set_generators

T = TypeVar("T")
Scores = tuple[float, dict[str, Any]]

logger = logging.getLogger("spacy.torchopt")

# Of an error. All of another config are too many.
_LINES = 20


class Alone:
    """A single process.

    Public: `rank`, `size` (the world size).
    """

    rank = 0
    size = 1

    @property
    def writes(self) -> bool:
        """Whether this process writes files, and shows what goes on."""
        return self.rank == 0

    def share_generators(self) -> None:
        """Let the data begin with the random generators of rank 0."""

    def compare_settings(self, arguments: dict[str, Any]) -> None:
        """What decides what is learned is the same on all ranks. arguments (dict): Of the run, by their config path.

        RAISES (DistributedError): It is not.
        """

    def compare_data(self, examples: Callable[[], list[Example]]) -> None:
        """All ranks train on the same examples. RAISES (DistributedError): They don't."""

    def begin(self, seed: int | None) -> None:
        """The run begins, or goes on. seed (int | None): Of the run that goes on."""

    def begin_step(self, step: int, hook: Callable[[], None] | None) -> None:
        """hook (Callable): The user's, which may change the pipeline."""
        if hook is not None:
            hook()

    def begin_update(
        self, batch: list[Example], losses: dict[str, Any], checksum: int
    ) -> tuple[list[Example], dict[str, Any]]:
        """What this process trains on, and where its losses are added up. checksum (int): Of all batches so far, of 32
        bits.
        """
        return batch, losses

    def end_backward(self) -> None:
        """All gradients of this process are there."""

    def end_update(self, losses: dict[str, Any]) -> None:
        """Add the losses of all ranks."""

    def end_step(self, step: int) -> None:
        """The step is done. RAISES (DistributedError): Ranks have different params."""

    def compare_params(self, step: int) -> None:
        """Params are to be evaluated or saved. RAISES (DistributedError): Ranks have different ones."""

    def evaluate(self, evaluate: Callable[[], Scores]) -> Scores:
        """Score and scores."""
        return evaluate()

    def stopped_by(self, noted: int | None) -> int | None:
        """The number of the signal that stops the run after this step. noted (int | None): That this process got."""
        return noted

    def is_told_to_decay(self, noted: bool) -> bool:
        """Whether learning rates are to fall after this step. noted (bool): This process was told so."""
        return noted

    def from_rank_0(self, compute: Callable[[], T]) -> T:
        """What rank 0 computes."""
        return compute()

    def share_firings(self, firings: list[Firing], values: Any) -> tuple[list[Firing], Any]:
        """What rules of rank 0 do, and the values of its metrics."""
        return firings, values

    def whole_state(self, optimizer: TorchOptimizer) -> dict[str, Any] | None:
        """The state of an optimizer. None: where it is not written."""
        return optimizer.state_dict()

    def meet(self) -> None:
        """Wait until all ranks are here."""

    def snapshot(self) -> RanksState | None:
        """What a checkpoint has of it."""
        return None

    def close(self, error: BaseException | None) -> None:
        """The process is through with the run. error (BaseException | None): That ended it."""


class Ranks(Alone):
    """One of several processes.

    nlp (Language), optimizer (TorchOptimizer): The run's.
    introduce (Callable): Tells the optimizer its pipeline.
    noted (Callable): The number of the signal that this process got, or None.
    told_to_decay (Callable): Whether it was told to let learning rates fall.
    RAISES (DistributedError): Not all ranks came. (ConfigError): Several processes can't train this pipeline.
    """

    def __init__(
        self,
        nlp: Language,
        optimizer: TorchOptimizer,
        introduce: Callable[[], object],
        noted: Callable[[], int | None],
        told_to_decay: Callable[[], bool] = lambda: False,
    ):
        hooks.check_all_in_place()
        _check_begins_anew(nlp)
        self.settings = optimizer.distributed or DistributedSettings()
        self.group = Group.open(self.settings, on_gpu=any(param.is_cuda for param in optimizer.params.values()))
        self.rank, self.size = self.group.rank, self.group.size
        self.group.hurries = lambda: noted() is not None
        self.seed = 0
        self._nlp = nlp
        self._optimizer = optimizer
        self._introduce = introduce
        self._noted = noted
        self._told_to_decay = told_to_decay
        self._shards = Shards(self.group) if self.settings.shard_state else None
        self._looked_at: set[str] = set()  # config paths of algorithms
        rate_factor = self.settings.rate_factor(self.size)
        self._reduce = FlatReduce(self.group, self.settings.reduce, rate_factor, self._shards)
        self._sets = SharedSets(nlp)
        self._shape: Any = None
        self._step = -1
        self._own_losses: dict[str, Any] = {}
        optimizer.reduce_by(self._reduce)

    def share_generators(self) -> None:
        set_generators(load_generators(self.group.broadcast(save_generators(read_generators()))))

    def compare_settings(self, arguments: dict[str, Any]) -> None:
        block = {f"training.optimizer.distributed.{name}": value for name, value in asdict(self.settings).items()}
        own = collect_values_of_all(self._nlp) | {path: repr(value) for path, value in (arguments | block).items()}
        (config, identity), *others = self.group.gather((own, collect_identity(self._nlp)))
        found = []
        for rank, (its_config, its_identity) in enumerate(others, 1):
            words = "on rank 0", f"on rank {rank}"
            found += compare_configs(config, its_config, words=words, left_out=())
            found += compare_identities(identity, its_identity, words=words)
        if found:
            lines = [*found[:_LINES], *([f"and {len(found) - _LINES} more"] if len(found) > _LINES else [])]
            raise DistributedError(
                f"Can't train in {self.size} processes: expected the same config, vectors and labels on all ranks, "
                "found others:\n  " + "\n  ".join(lines) + "\nRun the same command on all machines. Only what stands "
                "in [paths], and what follows from it, may differ."
            )

    def compare_data(self, examples: Callable[[], list[Example]]) -> None:
        own = examples()
        checksums = checksums_of(own)
        sums = self.group.gather((len(own), zlib.crc32(repr(checksums).encode())))
        rank = next((rank for rank, found in enumerate(sums) if found != sums[0]), 0)
        if not rank:
            return
        if sums[rank][0] != sums[0][0]:
            found = f"{sums[0][0]:,} examples on rank 0 and {sums[rank][0]:,} on rank {rank}"
        else:
            all_checksums = self.group.gather(checksums)
            pairs = enumerate(zip(all_checksums[0], all_checksums[rank]))
            different = [i for i, (one, other) in pairs if one != other]
            texts = self.group.gather(own[different[0]].reference.text)
            one, other = (shorten(texts[i], 80, placeholder=" ...") for i in (0, rank))
            what = "the annotations of" if texts[0] == texts[rank] else f"{one!r} on rank 0 where there is"
            more = f", and {len(different) - 1:,} others" if len(different) > 1 else ""
            found = f"that {len(different):,} of {len(own):,} differ: {what} {other!r} on rank {rank}{more}"
        raise DistributedError(
            f"Can't train in {self.size} processes: expected the same training data on all ranks, found {found}. Copy "
            "the corpus of one machine to all others."
        )

    def begin(self, seed: int | None) -> None:
        self._look_at_algorithms()
        self.seed = self.group.broadcast(random.getrandbits(48) if seed is None else seed)
        self._share_model()
        if not self.writes:
            return
        factor = self.settings.rate_factor(self.size)
        rates = f"multiplied by {factor:g}" if factor != 1.0 else "as the config says (scale_learn_rate is 'none')"
        logger.info(
            "Training in %d processes: each step trains on %d batches at once, and takes the %s of their gradients. "
            "Learning rates are %s. max_steps, eval_frequency and patience count such steps.",
            self.size,
            self.size,
            self.settings.reduce,
            rates,
        )

    def _look_at_algorithms(self) -> None:
        """Look who can make updates, if there are algorithms that were not there before: of params that have thawed,
        for example.
        """
        by_path = self._optimizer.torch_optimizers
        if by_path.keys() == self._looked_at:
            return
        self._looked_at, found = set(by_path), by_path.values()
        if self.settings.shard_state:
            check_can_be_split(found)
        elif self._shards is None and any(getattr(one, "draws_alone", False) for one in found):
            # Noise of no known seed: rank 0 adds it, and the others get the params.
            self._shards = self._reduce.shards = Shards(self.group, owners=1)

    # ------------------------------------------------------------------ one model

    def _share_model(self) -> None:
        """Give all ranks the params of rank 0, and all that layers keep beside them."""
        # A tensor on a GPU would come to the GPU of that number, in the other process.
        saved = self.from_rank_0(lambda: in_main_memory(collect_model(self._nlp, self._optimizer.stopped_grads)))
        if self.rank:
            try:
                check_model(self._nlp, saved)
                restore_model(self._nlp, saved)
            except StateError as error:
                raise DistributedError(
                    f"Can't train on rank {self.rank} with the model of rank 0: expected the same pipeline on all "
                    f"ranks, found another one. The config, the data and the code must be the same. ({error})"
                ) from error
        self._follow()

    def _follow(self) -> None:
        """Look at the pipeline as it is."""
        components = list(components_with_model(self._nlp))
        shims = [shim for name, model in components for _, shim in shim_paths(model, name)]
        self._reduce.follow(shims, self._nlp.component_names)
        self._sets = SharedSets(self._nlp)
        self._shape = _shape_of(self._nlp)

    # ------------------------------------------------------------------ one step

    def begin_step(self, step: int, hook: Callable[[], None] | None) -> None:
        self._step = step
        if hook is not None:
            # The same on all ranks, also where it draws random numbers. New params are rank 0's.
            seed_all(seed_of(self.seed, step))
            hook()
            self.group.at_step(step)
            if self.group.any(_shape_of(self._nlp) != self._shape):
                self._share_model()
                self._introduce()  # here and now: some may get no gradient on this rank
        self._look_at_algorithms()
        seed_all(seed_of(self.seed, step, self.rank))

    def begin_update(
        self, batch: list[Example], losses: dict[str, Any], checksum: int
    ) -> tuple[list[Example], dict[str, Any]]:
        part = deal(batch, self.size)[self.rank]
        self._reduce.notes = {
            "has_examples": float(bool(part)),
            "data": float(checksum & 0xFFFF),
            "more_data": float(checksum >> 16),
        }
        self._own_losses = self._reduce.losses = {}
        return part, self._own_losses

    def end_backward(self) -> None:
        reduce = self._reduce
        # Algorithms that draw random numbers draw the same ones on all ranks.
        seed_all(seed_of(self.seed, self._step, -1))
        self.group.at_step(self._step)
        reduce.look_at_scalers()
        reduce.notes |= {
            "signal": float(self._noted() or 0),
            "decay": float(self._told_to_decay()),
            "new_sets": float(self._sets.has_changed),
        }

    def end_update(self, losses: dict[str, Any]) -> None:
        for name, loss in self._reduce.losses.items():
            if loss or name in self._own_losses:
                losses[name] = losses.get(name, 0.0) + loss
        if any(self._reduce.found["new_sets"]):
            self._sets.merge(self.group)

    def end_step(self, step: int) -> None:
        if self.settings.check_every and step % self.settings.check_every == 0:
            self.compare_params(step)

    def compare_params(self, step: int) -> None:
        if self.settings.check_every:
            check_same_params(self.group, self._optimizer.params, self._optimizer.controller.rates, step)

    def stopped_by(self, noted: int | None) -> int | None:
        return next((signal for signal in self._reduce.found["signal"] if signal), None)

    def is_told_to_decay(self, noted: bool) -> bool:
        return any(self._reduce.found["decay"])

    # ------------------------------------------------------------------ what rank 0 says

    def evaluate(self, evaluate: Callable[[], Scores]) -> Scores:
        if not self.settings.share_evaluation:
            return self.from_rank_0(evaluate)
        with sharing_pipe(self._nlp, self.group):
            return self.group.broadcast(evaluate())

    def from_rank_0(self, compute: Callable[[], T]) -> T:
        return self.group.from_rank_0(compute)

    def share_firings(self, firings: list[Firing], values: Any) -> tuple[list[Firing], Any]:
        found, values = self.group.broadcast(  # patient: a metric may have read the development data
            ([asdict(firing) for firing in firings], dict(values) if firings else {})
        )
        return [Firing(**firing) for firing in found], values

    def whole_state(self, optimizer: TorchOptimizer) -> dict[str, Any] | None:
        if self._shards is None:
            return optimizer.state_dict() if self.writes else None
        return self._shards.gather_state(optimizer.state_dict())

    def meet(self) -> None:
        self.group.meet()

    def snapshot(self) -> RanksState:
        return RanksState(self.seed, self.size)

    def close(self, error: BaseException | None) -> None:
        self._optimizer.reduce_by(None)
        self.group.close(error)


class SameWishes:
    """Lets what listeners ask for on rank 0 count on all ranks. A listener, behind those of the user.

    group (Group): The ranks.
    """

    name = "same wishes"

    def __init__(self, group: Group):
        self._group = group
        for event in EVENTS:
            if event != "on_substep_end":  # of which ranks have different numbers
                setattr(self, event, self._agree)

    def _agree(self, event: Event, control: Control) -> None:
        for name, wish in self._group.broadcast_now(asdict(control)).items():
            setattr(control, name, wish)


def _check_begins_anew(nlp: Language) -> None:
    """RAISES (ConfigError): A layer goes on where the last batch ended. Each rank would have to get the batches that
    follow its own, and to save what it carries. Or a torch module makes params in its first batch: on each rank others.
    """
    from ..layers import is_stateful  # a training in one process does not need that room

    for name, model in components_with_model(nlp):
        params = (param for _, shim in shim_paths(model, name) for _, param in torch_params(shim))
        if any(map(is_lazy, params)):
            raise ConfigError(
                f"Can't train component '{name}' in several processes: expected params that are there, found a lazy "
                "torch module, which makes its params in the first forward pass, with other values on each rank. Let "
                "a batch go through it in [initialize], or train in one process."
            )
        if is_stateful(model):
            raise ConfigError(
                f"Can't train component '{name}' in several processes: expected layers that begin anew with each "
                "batch, found stateful = true in an OnlineRNNEncoder or OnlineRNN. Set it to false, or train in one "
                "process."
            )


def _shape_of(nlp: Language) -> list[Any]:
    """Which nodes and modules there are, and the shapes of their params."""
    return [
        (
            name,
            node.id,
            [(param, node.get_param(param).shape if node.has_param(param) else None) for param in node.param_names],
            [
                [None if is_lazy(param) else tuple(param.shape) for _, param in torch_params(shim)]
                for shim in node.shims
            ],
        )
        for name, model in components_with_model(nlp)
        for node in model.walk()
    ]
