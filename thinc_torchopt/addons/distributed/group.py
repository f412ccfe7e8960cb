"""The group of ranks: connect, communicate, and wait for each other.

torch's launcher starts the ranks, and sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. They find each other in the
launcher's store, a small key-value server, and build a process group. All ranks call its *collectives* in the same
order.

Collectives of a step time out after `timeout_seconds`, as all ranks do the same work. *Patient* ones come after work
that may take longer on one rank, such as an evaluation or saving a model: they are in a group of their own, with a
longer timeout. A rank that ends closes its connections, which ends the collectives of the others at once. The launcher
shows the first error: see `report_failure`.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any, TypeVar

import torch

from ...core.errors import DistributedError
from ...core.host import gloo_of
from ...core.launched import (
    LEFT_OVER,
    is_one_machine,
    master_in_environment,
    rank_in_environment,
    world_size_in_environment,
)
from .settings import Distributed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

# Ranks read their data before they connect, which may take longer on some machines.
JOIN_SECONDS = 600.0
# A store replies at once, even if its process is busy.
ANSWER_SECONDS = 20.0
# The longest evaluation, or save, on one rank.
_PATIENCE = timedelta(days=1)
_POLL_SECONDS = 0.01
# So that the launcher notices first the rank that failed first: it compares whole seconds.
_LATER_SECONDS = 2.0
_VARIABLE = "GLOO_SOCKET_IFNAME"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_groups = count()
# By address. Rank 0 goes on to serve it after a training: another rank may have begun the next one already.
_stores: dict[tuple[str, int], Any] = {}


class RankGroup:
    """This process among the others. Use `RankGroup.open`.

    Public: `rank` (0 to `size` - 1), `size` (the world size), `timeout_seconds`.
    """

    def __init__(self, rank: int, size: int, timeout_seconds: float, *, is_own: bool):
        import torch.distributed as dist

        self.rank = rank
        self.size = size
        self.timeout_seconds = timeout_seconds
        self._is_own = is_own
        self._patient: Any = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self._is_closed = False

    @classmethod
    def open(cls, settings: Distributed, *, on_gpu: bool) -> RankGroup:
        """Connect to the other ranks, or use the existing process group.

        on_gpu (bool): Whether params are on a GPU.
        RAISES (DistributedError): Not all ranks connected.
        """
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        timeout = timedelta(seconds=settings.timeout_seconds)
        if dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size(), settings.timeout_seconds, is_own=False)
        rank, size = rank_in_environment(), world_size_in_environment()
        master, port = master_in_environment()
        choose_interface(master, port, one_machine=is_one_machine())
        # Params may be on a GPU, but other values that ranks exchange are on the CPU.
        backend = settings.backend or ("nccl" if on_gpu else "gloo")
        try:
            if rank:
                wait_for_store(master, port)
            base, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=JOIN_SECONDS)))
            _stores[master, port] = base
            # The store outlives restarted ranks, with everything that earlier ranks have written.
            store = PrefixStore(f"torchopt-{_find_each_other(base, rank, size, next(_groups))}", base)
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
                f"Can't connect {size} ranks at {master}:{port}: {_first_line(error)} on rank {rank}. Check that "
                "machines reach each other at that address, and that GLOO_SOCKET_IFNAME "
                f"({os.environ.get('GLOO_SOCKET_IFNAME', 'not set')}) is the interface for it. {LEFT_OVER}"
            ) from error
        return cls(rank, size, settings.timeout_seconds, is_own=True)

    def close(self, error: BaseException | None = None) -> None:
        """Leave the group. error (BaseException | None): The error that ends this rank. Its process may live on:
        others that wait patiently end now.
        """
        if self._is_closed:
            return
        self._is_closed = True
        import torch.distributed as dist

        closes_all = self._is_own and error is None
        # In torch 2.6, destroying a process group waits for gloo's threads while it holds the GIL, which they may
        # need to free a tensor: a deadlock. Destroying gloo's own object does not hold the GIL.
        gloo = [gloo_of(self._patient), *([gloo_of(None)] if closes_all else [])]
        dist.destroy_process_group(None if closes_all else self._patient)
        self._patient = None
        del gloo

    # ------------------------------------------------------------------ in a step

    def sum_(self, tensor: torch.Tensor, what: str = "sum gradients") -> None:
        """Sum a tensor over all ranks, in place. RAISES (DistributedError): A rank is gone or hangs."""
        import torch.distributed as dist

        with self._named(what):
            dist.all_reduce(tensor)

    def any(self, flag: bool) -> bool:
        """Whether a flag is set on any rank."""
        flags = torch.tensor([float(flag)])
        self.sum_(flags, "compare what ranks found")
        return bool(flags.item())

    def differs(self, values: torch.Tensor) -> torch.Tensor:
        """Where integers differ between ranks. values (Tensor): int64, on the CPU. Shape: (n,)."""
        import torch.distributed as dist

        limits = torch.cat([values, ~values])  # the largest of ~x is ~ the smallest of x
        with self._named("compare params"):
            dist.all_reduce(limits, dist.ReduceOp.MAX)
        largest, smallest = limits.split(len(values))
        return largest != ~smallest

    def broadcast_tensor(self, tensor: torch.Tensor, source: int) -> None:
        """Copy a tensor from one rank to all, in place."""
        import torch.distributed as dist

        with self._named(f"hear from rank {source}"):
            dist.broadcast(tensor, source)

    # ------------------------------------------------------------------ patient

    def barrier(self) -> None:
        """Wait until all ranks have called this. RAISES (DistributedError): A rank is gone."""
        import torch.distributed as dist

        with self._named("wait for others"):
            dist.barrier(group=self._patient)

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in order. Patient."""
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        with self._named("gather"):
            dist.all_gather_object(found, value, group=self._patient)
        return found

    def gather_on_0(self, value: T) -> list[T] | None:
        """As `gather`, on rank 0. None on other ranks."""
        import torch.distributed as dist

        found: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self._named("gather"):
            dist.gather_object(value, found, group=self._patient)
        return found

    def broadcast(self, value: T) -> T:
        """The value of rank 0. Patient."""
        return self._broadcast(value, self._patient)

    def broadcast_now(self, value: T) -> T:
        """The value of rank 0, in a step."""
        return self._broadcast(value, None)

    def from_rank_0(self, compute: Callable[[], T]) -> T:
        """The result of a function on rank 0, for all ranks. Patient.

        RAISES (DistributedError): It raised an error. Rank 0 raises the original one.
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
            raise DistributedError(f"Rank {self.rank} ends because rank 0 failed: {text}")
        return value

    def _broadcast(self, value: Any, group: Any) -> Any:
        import torch.distributed as dist

        values = [value]
        with self._named("hear from rank 0"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.broadcast_object_list(values, src=0, group=group)
        return values[0]

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Turn errors of torch into ours."""
        try:
            yield
        except RuntimeError as error:
            time.sleep(_LATER_SECONDS)
            raise DistributedError(
                f"Can't {what} on rank {self.rank}: expected all {self.size} ranks to take part within "
                f"{self.timeout_seconds:g} seconds, found that another one has ended, hangs or can't be reached "
                f"({_first_line(error)}). Its own error says why. If a rank was only slow, raise timeout_seconds in "
                "[training.optimizer.distributed]. To resume from the last checkpoint, run the same command again, or "
                "use --max-restarts."
            ) from error


def _asked(question: Callable[[], T]) -> Future[T]:
    """Run a function that may never return in a thread."""
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return answer


def wait_for_store(master: str, port: int) -> None:
    """Wait until a store of torch replies at an address.

    RAISES (DistributedError): Nothing replies, or another program.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    deadline = time.monotonic() + JOIN_SECONDS
    while not _listens(master, port):
        if time.monotonic() > deadline:
            raise DistributedError(
                f"Can't connect to rank 0 at {master}:{port}: nothing accepted connections there for "
                f"{JOIN_SECONDS:g} seconds. Check the address, and that the machine of rank 0 has started. {LEFT_OVER}"
            )
        time.sleep(10 * _POLL_SECONDS)
    timeout = timedelta(seconds=ANSWER_SECONDS)
    found = _asked(lambda: TCPStore(master, port, None, False, timeout, wait_for_workers=False))
    try:
        found.result(ANSWER_SECONDS)  # torch would wait forever for a program that listens and sends nothing
    except (TimeoutError, RuntimeError):
        raise DistributedError(
            f"Can't connect to rank 0 at {master}:{port}: a program there does not answer as torch's store for "
            f"{ANSWER_SECONDS:g} seconds. Most likely another program uses that port. Choose one that is free on the "
            "machine of rank 0."
        ) from None


def report_failure(error: Exception) -> None:
    """Tell the launcher of an exception that ends this process, which it then shows."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    get_error_handler().record_exception(error)


def _listens(host: str, port: int) -> bool:
    """Whether a program accepts connections there."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


def _find_each_other(store: Any, rank: int, size: int, nth: int) -> str:
    """Find the ranks that live now, among the keys that earlier ranks left in the store.

    Each rank writes a random word. Rank 0 replies to each word with its own, until all ranks have confirmed it.

    nth (int): Number of earlier groups of this process.
    RETURNS (str): A word that only these ranks know.
    RAISES (DistributedError): Not all ranks came.
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
        f"Can't connect {size} ranks: expected all of them within {JOIN_SECONDS:g} seconds, found {who}. Start "
        f"the same command on all machines, with the same --nnodes and --nproc-per-node. {LEFT_OVER}"
    )


def _listed(ranks: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ---------------------------------------------------------------------- the network interface


def choose_interface(master: str, port: int, *, one_machine: bool) -> None:
    """Let gloo use the interface that reaches the master, unless the user has set one.

    one_machine (bool): Whether all ranks are on this machine. If not, the loopback is not used: the master's own name
        often resolves to it.
    """
    if os.environ.get(_VARIABLE):
        return
    name = interface_to(master, port)
    if name is not None and (one_machine or not _is_loopback(address_of(name))):
        os.environ[_VARIABLE] = name


def interface_to(host: str, port: int) -> str | None:
    """The name of the interface for packets to an address. None: unknown."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # sends nothing
        own = probe.getsockname()[0]
        loopback = None
        for _, name in socket.if_nameindex():
            address = address_of(name)
            if address == own:
                return name
            if _is_loopback(address):
                loopback = name
        return loopback if _is_loopback(own) else None
    return None


def address_of(name: str) -> str | None:
    """The IPv4 address of an interface, if it has one and this is Linux."""
    if fcntl is None:
        return None
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", name.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)[20:24])
    return None


def _is_loopback(address: str | None) -> bool:
    return address is not None and address.startswith("127.")
