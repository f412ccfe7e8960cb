"""A run in several processes, the *ranks*, that train one pipeline.

All ranks run the same loop over the same batches, and each trains on its part of a batch. Decisions that must be equal
come from rank 0 or from all ranks: see the methods of `Ranks`.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import asdict
from textwrap import shorten
from typing import Any, TypeVar

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from torch.nn.parameter import is_lazy

from ...core import hooks
from ...core.errors import ConfigError, DistributedError, StateError
from ...core.log import LOGGER, inform
from ...core.optimizer import TorchOptimizer
from ...core.params import components_with_model, shim_paths, torch_params
from ...core.state import in_main_memory
from ...loop.checkpoint_folder import RanksState
from ...loop.config_check import collect_identity, collect_values_of_all, compare_configs, compare_identities
from ...loop.data_stream import checksums_of
from ...loop.events import EVENT_TYPES, Control, Event, Listener
from ...loop.model_state import check_model, collect_model, restore_model
from ...loop.processes import Alone, Scores
from ...loop.random_state import load_generators, read_generators, save_generators, seed_all, set_generators
from .group import RankGroup
from .reduce import FlatReduce, SharedSets, check_same_params, seed_of
from .settings import Distributed
from .shard import Shards, check_can_be_split

T = TypeVar("T")
S = TypeVar("S", bound=Sized)

# The most lines of an error about different configs.
_LINES = 20


class Ranks(Alone):
    """One of several processes.

    nlp (Language), optimizer (TorchOptimizer): The run's.
    introduce (Callable): Tells the optimizer its pipeline.
    noted (Callable): Returns the number of the signal that this process got, or None.
    told_to_decay (Callable): Returns whether this process was told to lower learning rates.
    RAISES (DistributedError): Not all ranks started. (ConfigError): Several processes can't train this pipeline.
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
        block = optimizer.attachments.get("distributed")
        self.settings = block if isinstance(block, Distributed) else Distributed()
        self.group = RankGroup.open(self.settings, on_gpu=any(param.is_cuda for param in optimizer.params.values()))
        self.rank, self.size = self.group.rank, self.group.size
        self.seed = 0
        self._nlp = nlp
        self._optimizer = optimizer
        self._introduce = introduce
        self._noted = noted
        self._told_to_decay = told_to_decay
        self._shards = Shards(self.group) if self.settings.shard_state else None
        self._looked_at: set[str] = set()  # config paths of algorithms that were checked
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
            found += compare_configs(config, its_config, words=words)
            found += compare_identities(identity, its_identity, words=words)
        if found:
            lines = [*found[:_LINES], *([f"and {len(found) - _LINES} more"] if len(found) > _LINES else [])]
            raise DistributedError(
                f"Can't train in {self.size} processes: expected the same config, vectors and labels on all ranks, "
                "found others:\n  " + "\n  ".join(lines) + "\nRun the same command on all machines. Only values in "
                "[paths], and settings that refer to them, may differ."
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
        inform(
            "Training in %d processes: each step trains on %d batches at once, and uses the %s of their gradients. "
            "Learning rates are %s. max_steps, eval_frequency and patience count such steps.",
            self.size,
            self.size,
            self.settings.reduce,
            rates,
        )

    def _look_at_algorithms(self) -> None:
        """Check new algorithms, for example those of unfrozen params."""
        by_path = self._optimizer.torch_optimizers
        if by_path.keys() == self._looked_at:
            return
        self._looked_at, found = set(by_path), by_path.values()
        if self.settings.shard_state:
            check_can_be_split(found)
        elif self._shards is None and any(getattr(one, "draws_alone", False) for one in found):
            # Noise without a shared seed: rank 0 makes the update, and the others get its params.
            self._shards = self._reduce.shards = Shards(self.group, owners=1)

    # ------------------------------------------------------------------ one model

    def _share_model(self) -> None:
        """Give all ranks the model of rank 0: params, and attrs of layers."""
        # A GPU tensor would arrive on the GPU of the same number in the other process.
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
        """Use the current pipeline."""
        components = list(components_with_model(self._nlp))
        shims = [shim for name, model in components for _, shim in shim_paths(model, name)]
        self._reduce.follow(shims, self._nlp.component_names)
        self._sets = SharedSets(self._nlp)
        self._shape = _shape_of(self._nlp)

    # ------------------------------------------------------------------ one step

    def begin_step(self, step: int, changes: Sequence[Callable[[], None]]) -> None:
        self._step = step
        if changes:
            # Same seed on all ranks, as they may draw random numbers. New params come from rank 0.
            seed_all(seed_of(self.seed, step))
            for change in changes:
                change()
            if self.group.any(_shape_of(self._nlp) != self._shape):
                self._share_model()
                self._introduce()  # now, as some params may get no gradient on this rank
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
        # Same seed on all ranks for algorithms that draw random numbers.
        seed_all(seed_of(self.seed, self._step, -1))
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

    def is_spoiled(self, noted: bool) -> bool:
        return any(self._reduce.found["spoiled"])

    def end_step(self, step: int) -> None:
        if self.settings.check_every and step % self.settings.check_every == 0:
            self.compare_params(step)

    def compare_params(self, step: int) -> None:
        if self.settings.check_every:
            check_same_params(self.group, self._optimizer.params, self._optimizer.rates.learn_rates, step)

    def stopped_by(self, noted: int | None) -> int | None:
        return next((signal for signal in self._reduce.found["signal"] if signal), None)

    def is_told_to_decay(self, noted: bool) -> bool:
        return any(self._reduce.found["decay"])

    def gather(self, value: T) -> list[T]:
        return self.group.gather(value)

    # ------------------------------------------------------------------ values of rank 0

    def evaluate(self, evaluate: Callable[[], Scores]) -> Scores:
        if not self.settings.share_evaluation:
            return self.from_rank_0(evaluate)
        with sharing_pipe(self._nlp, self.group):
            return self.group.broadcast(evaluate())

    def from_rank_0(self, compute: Callable[[], T]) -> T:
        return self.group.from_rank_0(compute)

    def share(self, value: T) -> T:
        return self.group.broadcast(value)

    def same_requests(self, name: str) -> Listener:
        return SameRequests(self.group, name)

    def whole_state(self, optimizer: TorchOptimizer) -> dict[str, Any] | None:
        if self._shards is None:
            return optimizer.state_dict() if self.writes else None
        return self._shards.gather_state(optimizer.state_dict(), optimizer.trained_params)

    def barrier(self) -> None:
        self.group.barrier()

    def snapshot(self) -> RanksState:
        return RanksState(self.seed, self.size)

    def close(self, error: BaseException | None) -> None:
        try:
            if self._shards is not None and self._shards.have_begun:
                self._end_split(error)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._shards = None
            self._optimizer.reduce_by(None)
            self.group.close(error)

    def _end_split(self, error: BaseException | None) -> None:
        """Give all ranks the whole state of the optimizer, which may be saved or used again after the run. Not after an
        error: other ranks may not come.
        """
        if error is None:
            whole = self.whole_state(self._optimizer)
            if whole is not None:
                whole |= {"averages": None, "grads": {}}  # all ranks have them
            self._optimizer.roll_back(self.share(in_main_memory(whole)))
        elif isinstance(error, GeneratorExit):
            LOGGER.warning(
                "The training was left before its end, so the optimizer on rank %d has a part of its state only. To "
                "use it again, end the training by max_steps, or by a listener that sets should_stop.",
                self.rank,
            )


class SameRequests:
    """Makes the requests of listeners on rank 0 apply to all ranks. A listener after those that may differ.

    group (RankGroup): The ranks. name (str): The listener's.
    """

    # Those that all ranks have.
    events = tuple(name for name in EVENT_TYPES if name not in ("on_substep_end", "on_exception"))

    def __init__(self, group: RankGroup, name: str):
        self._group = group
        self.name = name

    def on_event(self, name: str, event: Event, control: Control) -> None:
        for request, is_made in self._group.broadcast_now(asdict(control)).items():
            setattr(control, request, is_made)


def _check_begins_anew(nlp: Language) -> None:
    """RAISES (ConfigError): A torch module makes its params in its first batch, differently on each rank."""
    for name, model in components_with_model(nlp):
        params = (param for _, shim in shim_paths(model, name) for _, param in torch_params(shim))
        if any(map(is_lazy, params)):
            raise ConfigError(
                f"Can't train component '{name}' in several processes: a lazy torch module makes its params in the "
                "first forward pass, with other values on each rank. Run a batch through it in [initialize], or train "
                "in one process."
            )


def _shape_of(nlp: Language) -> list[Any]:
    """The nodes and modules, with the shapes of their params."""
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


def deal(batch: Sequence[S], ranks: int) -> list[list[S]]:
    """Split a batch: the longest examples first, each to the rank with the fewest words so far.

    batch (Sequence[Example]): The batch of all ranks.
    RETURNS (list[list[Example]]): The part of each rank, in the order of the batch. Equal on all ranks. With fewer
        examples than ranks, some parts are empty.
    """
    words = [0] * ranks
    chosen: list[list[int]] = [[] for _ in range(ranks)]
    for i in sorted(range(len(batch)), key=lambda i: (-len(batch[i]), i)):
        rank = min(range(ranks), key=lambda rank: (words[rank], len(chosen[rank]), rank))
        words[rank] += len(batch[i])
        chosen[rank].append(i)
    return [[batch[i] for i in sorted(part)] for part in chosen]


# ---------------------------------------------------------------------- an evaluation


@contextmanager
def sharing_pipe(nlp: Language, group: RankGroup) -> Iterator[None]:
    """Share `nlp.pipe` between the ranks. All ranks must call it with the same documents.

    RAISES (DistributedError): The documents differ.
    """
    original: Any = nlp.pipe

    def pipe(texts: Any, *, as_tuples: bool = False, batch_size: int | None = None, **options: Any) -> Iterator[Any]:
        docs = list(texts)
        if as_tuples or not all(isinstance(doc, Doc) for doc in docs):
            yield from original(docs, as_tuples=as_tuples, batch_size=batch_size, **options)
            return
        parts = split_documents(len(docs), group.size, nlp.batch_size if batch_size is None else batch_size)
        own = parts[group.rank]
        done = dict(zip(own, original([docs[i] for i in own], batch_size=batch_size, **options)))
        texts = "\n".join(doc.text for doc in docs).encode("utf8")
        found = group.gather((zlib.crc32(texts), [_sent(done[i]) for i in own]))
        for rank, (part, (checksum, contents)) in enumerate(zip(parts, found)):
            if checksum != found[0][0]:
                raise DistributedError(
                    f"Can't share an evaluation: rank {rank} reads other development data than rank 0. It must be "
                    "the same on all machines. Or set share_evaluation = false in [training.optimizer.distributed]: "
                    "then rank 0 evaluates alone."
                )
            for i, (content, user_data) in zip(part, contents):
                if i not in done:
                    done[i] = Doc(nlp.vocab, user_data=user_data).from_bytes(content, exclude=["user_data"])
        yield from (done[i] for i in range(len(docs)))

    nlp.pipe = pipe  # type: ignore[method-assign]
    try:
        yield
    finally:
        del nlp.pipe


def _sent(doc: Doc) -> tuple[bytes, dict[Any, Any]]:
    """The parts of a document to send."""
    user_data = {key: value for key, value in doc.user_data.items() if _is_plain((key, value))}
    return doc.to_bytes(exclude=["tensor", "user_data"]), user_data


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, bytes))


def split_documents(n: int, ranks: int, batch_size: int) -> list[list[int]]:
    """The documents of each rank: whole batches, as in one process; smaller ones if there are fewer batches than
    ranks.
    """
    size = max(1, min(batch_size, math.ceil(n / ranks)))
    return [[i for i in range(n) if i // size % ranks == rank] for rank in range(ranks)]
