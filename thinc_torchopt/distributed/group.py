"""The ranks: how they come together, talk, wait for each other, and find out who is missing.

torch's launcher starts them, and sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. They meet in the launcher's store,
a small server of keys and values, and build a process group, whose *collectives* all ranks enter in the same order.

*Collectives* of a step wait `timeout_seconds`: ranks do the same work there. *Patient* ones come after work that may
take longer on one rank, such as an evaluation, or saving a model: there ranks wait as long as the others live. Each
rank has a thread for that which counts up a number in the store, its *pulse*.

gloo's errors name no rank. So each rank also writes to the store which step it is at; after an error, who is behind, or
has no pulse, is named.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import count
from textwrap import shorten
from typing import Any, TypeVar

import torch

from ..errors import DistributedError
from ..host import default_store, gloo_of_world
from ..launched import master_in_environment, rank_in_environment, world_size_in_environment
from ..types import DistributedSettings
from .addresses import choose_interface

T = TypeVar("T")

# Ranks read their data before they meet, which takes longer on some machines than on others.
JOIN_SECONDS = 600.0
# A store answers at once, also if the process that has it is busy.
ANSWER_SECONDS = 20.0
# When a rank has died, the launcher kills those that have not ended some seconds after its signal.
HURRY_SECONDS = 5.0
_POLL_SECONDS = 0.01
_PULSE_SECONDS = 1.0
_groups = count()


class Group:
    """This process among the others. `Group.open` makes one.

    Public: `rank` (0 to `size` - 1), `size` (the world size), `timeout_seconds`, `sends` (bytes that were given to
    `sum_`, for benchmarks), `hurries` (set it: whether this process got a signal to end).
    """

    def __init__(self, rank: int, size: int, store: Any, timeout_seconds: float, *, is_own: bool):
        self.rank = rank
        self.size = size
        self.timeout_seconds = timeout_seconds
        self.sends = 0
        self.hurries: Callable[[], bool] = lambda: False
        self._store = store
        self._is_own = is_own
        self._step = -1
        self._meetings = count()
        self._is_closed = threading.Event()
        self._has_noticed = False  # that another one is gone
        self._pulse = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._pulse.start()

    @classmethod
    def open(cls, settings: DistributedSettings, *, on_gpu: bool) -> Group:
        """Come together with the other ranks, or join the process group that there is.

        on_gpu (bool): Params are on a GPU.
        RAISES (DistributedError): Not all ranks came.
        """
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        timeout = timedelta(seconds=settings.timeout_seconds)
        if dist.is_initialized():
            store = PrefixStore(f"torchopt-{next(_groups)}", default_store())
            return cls(dist.get_rank(), dist.get_world_size(), store, settings.timeout_seconds, is_own=False)
        rank, size = rank_in_environment(), world_size_in_environment()
        master, port = master_in_environment()
        choose_interface(master, port, one_machine=int(os.environ.get("LOCAL_WORLD_SIZE", 0)) == size)
        # Params may be on a GPU, but what ranks tell each other beside gradients is not.
        backend = settings.backend or ("nccl" if on_gpu else "gloo")
        try:
            if rank:
                wait_for_store(master, port)
            base, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=JOIN_SECONDS)))
            # The store outlives ranks that are started again, with all that those before them wrote.
            store = PrefixStore(f"torchopt-{_meet_anew(base, rank, size, next(_groups))}", base)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if backend == "nccl" else backend,
                store=PrefixStore("group", store),
                rank=rank,
                world_size=size,
                timeout=timeout,
            )
        except DistributedError:
            raise
        except RuntimeError as error:
            raise DistributedError(
                f"Can't bring {size} ranks together at {master}:{port}: expected all of them to be reached, found "
                f"{_first_line(error)} on rank {rank}. Check that machines reach each other at that address, and that "
                f"GLOO_SOCKET_IFNAME ({os.environ.get('GLOO_SOCKET_IFNAME', 'not set')}) is the interface for it."
            ) from error
        return cls(rank, size, store, settings.timeout_seconds, is_own=True)

    def close(self, error: BaseException | None = None) -> None:
        """Leave. error (BaseException | None): Because of which this rank can't go on: others will tell it."""
        if self._is_closed.is_set():
            return
        if isinstance(error, Exception) and not self._has_noticed:
            with suppress(RuntimeError):
                self._ask(lambda: self._store.set(f"failed/{self.rank}", reason_of(error)), _PULSE_SECONDS)
        self._is_closed.set()
        if self._is_own and error is None:
            import torch.distributed as dist

            # In torch 2.6 the end of a process group waits for gloo's threads and holds Python's lock, which these
            # may need to let go of a tensor: all wait for ever. The end of gloo's own object does not hold it.
            gloo = gloo_of_world()
            dist.destroy_process_group()
            del gloo

    # ------------------------------------------------------------------ in a step

    def at_step(self, step: int) -> None:
        """Let others know which step this rank is at."""
        self._step = step
        self._store.set(f"step/{self.rank}", str(step))

    def sum_(self, tensor: torch.Tensor, what: str = "sum gradients") -> None:
        """Sum a tensor over all ranks, in place. RAISES (DistributedError): A rank is gone, or hangs."""
        import torch.distributed as dist

        self.sends += tensor.numel() * tensor.element_size()
        with self._named(what):
            dist.all_reduce(tensor)

    def any(self, flag: bool) -> bool:
        """Whether a flag is set on any rank."""
        flags = torch.tensor([float(flag)])
        self.sum_(flags, "compare what ranks found")
        return bool(flags.item())

    def differs(self, values: torch.Tensor) -> torch.Tensor:
        """Where whole numbers are not the same on all ranks. values (Tensor): Of int64, on the CPU. Shape: (n,)."""
        import torch.distributed as dist

        limits = torch.cat([values, ~values])  # the largest of ~x is ~ the smallest of x
        with self._named("compare params"):
            dist.all_reduce(limits, dist.ReduceOp.MAX)
        largest, smallest = limits.split(len(values))
        return largest != ~smallest

    def broadcast_tensor(self, tensor: torch.Tensor, source: int) -> None:
        """Let a tensor be that of one rank, in place."""
        import torch.distributed as dist

        with self._named(f"hear from rank {source}"):
            dist.broadcast(tensor, source)

    # ------------------------------------------------------------------ patient

    def barrier(self) -> None:
        """Wait until all ranks are here, as long as they live.

        RAISES (DistributedError): One has no pulse for `timeout_seconds`.
        """
        name = f"meeting/{next(self._meetings)}"
        missing = {rank for rank in range(self.size) if rank != self.rank}
        seen: dict[int, tuple[bytes, float]] = {}
        with self._named("wait for others"):
            self._store.set(f"{name}/{self.rank}", "here")
            pause = _POLL_SECONDS / 10
            while missing:
                found = self._ask(partial(self._look_for, name, missing))
                missing, now = set(found), time.monotonic()
                for rank, pulse in found.items():
                    if rank not in seen or seen[rank][0] != pulse:
                        seen[rank] = pulse, now
                    elif (
                        (silent := now - seen[rank][1]) > self.timeout_seconds
                        or (silent > HURRY_SECONDS and self.hurries())
                        or (silent > 2 * _PULSE_SECONDS and self._ask(partial(self._has_failed, rank)))
                    ):
                        raise RuntimeError(f"no pulse of rank {rank} for {silent:.0f} seconds")
                if missing:
                    time.sleep(pause)
                    pause = min(2 * pause, 5 * _POLL_SECONDS)

    def gather(self, value: T) -> list[T]:
        """What each rank gives, in the order of ranks. Patient."""
        import torch.distributed as dist

        self.barrier()
        found: list[Any] = [None] * self.size
        with self._named("gather"):
            dist.all_gather_object(found, value)
        return found

    def gather_on_0(self, value: T) -> list[T] | None:
        """As `gather`, for rank 0. On others None."""
        import torch.distributed as dist

        self.barrier()
        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self._named("gather"):
            dist.gather_object(value, found)
        return found

    def broadcast(self, value: T) -> T:
        """What rank 0 gives. Patient."""
        self.barrier()
        return self._broadcast(value)

    def broadcast_now(self, value: T) -> T:
        """What rank 0 gives, in a step."""
        return self._broadcast(value)

    def from_rank_0(self, compute: Callable[[], T]) -> T:
        """What rank 0 computes. An error of it is an error of all. Patient.

        RAISES (DistributedError): Rank 0 raised something; there it is raised itself.
        """
        value: Any = None
        error: Exception | None = None
        if self.rank == 0:
            try:
                value = compute()
            except Exception as raised:
                error = raised
        text, value = self.broadcast((None if error is None else _first_line(error), value))
        if error is not None:
            raise error
        if text is not None:
            raise DistributedError(f"Rank {self.rank} ends because rank 0 could not go on: {text}")
        return value

    def _broadcast(self, value: Any) -> Any:
        import torch.distributed as dist

        values = [value]
        with self._named("hear from rank 0"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.broadcast_object_list(values, src=0)
        return values[0]

    # ------------------------------------------------------------------ who is missing

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Inside, errors of torch's become one that names who is missing."""
        try:
            yield
        except RuntimeError as error:
            self._has_noticed = True
            if failed := self._failed():
                raise DistributedError(f"Rank {self.rank} ends at step {self._step} because {failed}") from None
            raise DistributedError(
                f"Can't {what} on rank {self.rank} at step {self._step}: expected all {self.size} ranks to take part "
                f"within {self.timeout_seconds:g} seconds, found {self._missing()}. ({_first_line(error)}) If it was "
                "only slow, raise timeout_seconds in [training.optimizer.distributed]. To go on from the last "
                "checkpoint, run the same command again, or use --max-restarts."
            ) from error

    def _failed(self) -> str:
        """Who said that it can't go on, and why, in words. Empty: none did."""

        def look() -> list[str]:
            reasons = {rank: self._read(f"failed/{rank}").decode() for rank in range(self.size)}
            return [f"rank {rank} could not go on: {reason}" for rank, reason in reasons.items() if reason]

        with suppress(RuntimeError):
            if found := self._ask(look, seconds=2.5):
                time.sleep(_PULSE_SECONDS)  # the launcher is to see first that the other one ends
                return "; ".join(found)
        return ""

    def _has_failed(self, rank: int) -> bool:
        return bool(self._store.check([f"failed/{rank}"]))

    def _missing(self) -> str:
        """Who is behind, or has no pulse, in words."""
        try:
            return self._ask(self._look_who_is_missing, seconds=4 * _PULSE_SECONDS + 2.5)
        except RuntimeError:
            return "that the machine with the launcher's store can't be reached"

    def _look_who_is_missing(self) -> str:
        self._store.set(f"failed/{self.rank}", "")
        before = [self._read(f"pulse/{rank}") for rank in range(self.size)]
        time.sleep(2.5 * _PULSE_SECONDS)
        found = []
        for rank in range(self.size):
            step = int(self._read(f"step/{rank}") or -1)
            has_pulse = self._read(f"pulse/{rank}") != before[rank]
            if rank == self.rank or self._store.check([f"failed/{rank}"]):
                continue  # it noticed, too
            if step < self._step or not has_pulse:
                state = "is alive" if has_pulse else "has ended, hangs or can't be reached"
                found.append(f"that rank {rank} did not: it was last seen at step {step} and {state}")
        return "; ".join(found) or "that the connection to one of them broke"

    def _look_for(self, meeting: str, ranks: set[int]) -> dict[int, bytes]:
        """Which ranks have not come to a meeting, with their pulse."""
        return {rank: self._read(f"pulse/{rank}") for rank in ranks if not self._store.check([f"{meeting}/{rank}"])}

    def _ask(self, question: Callable[[], T], seconds: float | None = None) -> T:
        """Ask the store something. If the network is cut, its client waits for ever.

        RAISES (RuntimeError): There is no answer.
        """
        try:
            return _asked(question).result(self.timeout_seconds if seconds is None else seconds)
        except TimeoutError:
            raise RuntimeError("the launcher's store does not answer") from None

    def _read(self, key: str) -> bytes:
        return self._store.get(key) if self._store.check([key]) else b""

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store is gone: the main thread will notice
            for i in count():
                self._store.set(f"pulse/{self.rank}", str(i))
                if self._is_closed.wait(_PULSE_SECONDS):
                    return


def _asked(question: Callable[[], T]) -> Future[T]:
    """Let a thread find something out that may take for ever."""
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return answer


def wait_for_store(master: str, port: int) -> None:
    """Wait until a store of torch's is where ranks meet.

    RAISES (DistributedError): Something else is there, or nothing.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    deadline = time.monotonic() + JOIN_SECONDS
    while not _listens(master, port):
        if time.monotonic() > deadline:
            raise DistributedError(
                f"Can't meet at {master}:{port}: expected the store of rank 0 there within {JOIN_SECONDS:g} seconds, "
                "found that nothing takes connections. Check the address, and that the machine of rank 0 has begun."
            )
        time.sleep(10 * _POLL_SECONDS)
    timeout = timedelta(seconds=ANSWER_SECONDS)
    found = _asked(lambda: TCPStore(master, port, None, False, timeout, wait_for_workers=False))
    try:
        found.result(ANSWER_SECONDS)  # torch waits for ever where something listens and says nothing
    except (TimeoutError, RuntimeError):
        raise DistributedError(
            f"Can't meet at {master}:{port}: expected the store of rank 0 there, found something that does not answer "
            f"as one for {ANSWER_SECONDS:g} seconds. Another program uses that port, as a rule. Choose one that is "
            "free on the machine of rank 0."
        ) from None


def _listens(host: str, port: int) -> bool:
    """Whether something takes connections there."""
    with suppress(OSError), socket.create_connection((host, port), timeout=_PULSE_SECONDS):
        return True
    return False


def _meet_anew(store: Any, rank: int, size: int, nth: int) -> str:
    """Find the ranks that live now, among what earlier ones of the same numbers left in the store.

    Each rank says hello with a word of its own. Rank 0 answers each word that it finds with its own, until all have
    heard that one.
    nth (int): How many groups this process had before.
    RETURNS (str): A word that only these ranks have.
    RAISES (DistributedError): Not all came.
    """
    own = f"{nth}-{uuid.uuid4().hex}"
    missing = set(range(1, size))
    deadline = time.monotonic() + JOIN_SECONDS
    answer = f"answer/{rank}/{own}"
    store.set(f"hello/{rank}", own)
    while time.monotonic() < deadline:
        if rank == 0:
            missing = {other for other in missing if not store.check([f"heard/{own}/{other}"])}
            if not missing:
                store.set(f"go/{own}", "")
                return own
            for other in missing:
                if store.check([f"hello/{other}"]):
                    store.set(f"answer/{other}/{store.get(f'hello/{other}').decode()}", own)
        elif store.check([answer]):
            word = store.get(answer).decode()
            if store.check([f"go/{word}"]):
                return word
            store.set(f"heard/{word}/{rank}", "")
        time.sleep(_POLL_SECONDS)
    who = f"no rank {_listed(missing)}" if rank == 0 else "no word from rank 0, or not all others came"
    raise DistributedError(
        f"Can't bring {size} ranks together: expected all of them within {JOIN_SECONDS:g} seconds, found {who}. Start "
        "the same command on all machines, with the same --nnodes and --nproc-per-node."
    )


def _listed(ranks: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def reason_of(error: BaseException) -> str:
    """An error in a line, as Python shows it."""
    name, text = type(error).__name__, shorten(str(error), 1000, placeholder=" ...")
    return f"{name}: {text}" if text else name


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
