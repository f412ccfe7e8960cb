"""Matrix products of thinc's layers on a CPU, by whichever library is the fastest on this machine.

thinc multiplies with BLIS, which knows few processors: on others, all of AMD's since Zen 3 among them, it runs plain C
code, at a third of the speed of NumPy's or torch's products. `FastOps` is thinc's `NumpyOps` with another `gemm`, and
differs in rounding only. `fastest` chooses by measuring, `PipelineOps` gives the choice to the nodes of a pipeline for
a time, and `fastest_ops` is both for the user's own loops.

`FastOps` is not registered: `thinc.api.get_ops` looks for classes by their `name`, and would give it to everybody.
Other classes than `NumpyOps` itself (for GPUs, Apple's) are left alone, and so are products inside Cython code, which
go through `Ops.cblas()`: those of the parser's and NER's predictions. Their backward passes are batched:
parser_backprop.py.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import Any, Literal

import numpy
import torch
from spacy.language import Language
from thinc.api import Model, NumpyOps

from .checks import Section, check_ops_threads
from .host import code_of_blis, swap
from .launched import processes_here
from .params import components_with_model
from .parser_backprop import batch_backprop
from .schema import Positive
from .types import OpsThreads

Library = Literal["thinc", "numpy", "torch"]
Multiply = Callable[[Any, Any, Any], Any]

_FLOAT32 = numpy.dtype("float32")
# Multiply-adds below which torch's products are left to NumPy: torch takes some microseconds to begin.
_SMALL = 500_000
# How much faster another library must be: less may be chance, and is not worth other roundings.
_GAIN = 1.1
# Measuring: seconds, turns at the least, words of a batch, and the number of different shapes, the most costly ones.
_SECONDS = 0.02
_TURNS = 4
_ROWS = 128
_SHAPES = 4


@dataclass(frozen=True)
class Products:
    """The library that computes matrix products.

    threads (int): How many of them compute one product.
    kernel (str): The library's version, and the processors that it takes this one for. Others round otherwise.
    """

    library: Library
    threads: Positive
    kernel: str

    def __str__(self) -> str:
        return f"{self.kernel}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def products_by(library: Library, threads: int = 1) -> Products:
    """The products of a library on this machine."""
    return Products(library, threads, _KERNELS[library]())


class FastOps(NumpyOps):  # type: ignore[misc]  # written in Cython, without types
    """thinc's NumpyOps, with products of float32 matrices by another library, and the same dropout masks in less time.

    ops (NumpyOps): The ops that they stand for. They compute whatever the library can't, or refuse it.
    multiply (Callable): Computes a product of two matrices, into `out` if it is not None.

    Public: `multiply` (None: all products are as before). Copies and pickles are plain NumpyOps: the pipeline goes
    where this package may be missing.
    """

    def __init__(self, ops: NumpyOps, multiply: Multiply):
        super().__init__(ops.device_type, ops.device_id, use_blis=ops.use_blis)
        self.multiply: Multiply | None = multiply

    def gemm(self, x: Any, y: Any, out: Any = None, trans1: bool = False, trans2: bool = False) -> Any:
        multiply = self.multiply
        if (
            multiply is None
            or not (_is_matrix(x) and _is_matrix(y))
            or x.shape[0 if trans1 else 1] != y.shape[1 if trans2 else 0]
        ):
            return super().gemm(x, y, out=out, trans1=trans1, trans2=trans2)
        if trans1:
            x = x.T
        if trans2:
            y = y.T
        if out is None or out.flags.c_contiguous:
            return multiply(x, y, out)
        out[...] = multiply(x, y, None)
        return out

    def get_dropout_mask(self, shape: Any, drop: float | None) -> Any:
        """The same numbers, from the same draws. thinc divides in float64."""
        if self.multiply is None or drop is None or not 0.0 < drop < 1.0:
            return super().get_dropout_mask(shape, drop)
        mask = (numpy.random.random_sample(shape) >= drop).astype(_FLOAT32)
        mask *= numpy.float32(1.0 / (1.0 - drop))
        return mask

    def __reduce__(self) -> Any:
        return partial(NumpyOps, use_blis=self.use_blis), (self.device_type, self.device_id)


def _is_matrix(array: Any) -> bool:
    return type(array) is numpy.ndarray and array.dtype == _FLOAT32 and array.ndim == 2


# ---------------------------------------------------------------------- libraries


def _by_torch(threads: int) -> Multiply:
    def multiply(x: Any, y: Any, out: Any) -> Any:
        is_small = x.shape[0] * x.shape[1] * y.shape[1] < _SMALL
        if is_small or out is not None or not (_is_viewable(x) and _is_viewable(y)):
            return numpy.dot(x, y, out=out)
        before = torch.get_num_threads()
        if before == threads:
            return torch.mm(torch.from_numpy(x), torch.from_numpy(y)).numpy()
        # Those of torch's own modules stay as they are.
        torch.set_num_threads(threads)
        try:
            return torch.mm(torch.from_numpy(x), torch.from_numpy(y)).numpy()
        finally:
            torch.set_num_threads(before)

    return multiply


def _is_viewable(array: Any) -> bool:
    """Whether torch takes an array as it is: it warns of read-only ones, and refuses negative strides."""
    return bool(array.flags.forc and array.flags.behaved)


def _by_numpy(x: Any, y: Any, out: Any) -> Any:
    return numpy.dot(x, y, out=out)


def _multiply(products: Products) -> Multiply:
    return _by_torch(products.threads) if products.library == "torch" else _by_numpy


def _limits(products: Products, libraries: Any = None) -> AbstractContextManager[Any]:
    """Inside, NumPy computes each product with so many threads, and so none fights with other processes.

    libraries (ThreadpoolController): Those in memory. Default: they are found first, which takes a millisecond.
    """
    from threadpoolctl import ThreadpoolController

    threads = products.threads if products.library == "numpy" else 1
    limited: AbstractContextManager[Any] = (libraries or ThreadpoolController()).limit(limits=threads, user_api="blas")
    return limited


def _kernel_of_thinc() -> str:
    code = code_of_blis()
    return f"BLIS {version('blis')}" + (f" ({code})" if code else "")


def _kernel_of_numpy() -> str:
    from threadpoolctl import threadpool_info

    found = [info for info in threadpool_info() if info["user_api"] == "blas"]
    # SciPy may have brought another one.
    own = [info for info in found if "numpy" in info["filepath"]] or found
    parts = [own[0].get(part) for part in ("internal_api", "version", "architecture")] if own else []
    blas = " ".join(part for part in parts if part)
    return f"NumPy {numpy.__version__}" + (f" ({blas})" if blas else "")


def _kernel_of_torch() -> str:
    return f"torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}, {platform.machine()})"


_KERNELS: dict[Library, Callable[[], str]] = {
    "thinc": _kernel_of_thinc,
    "numpy": _kernel_of_numpy,
    "torch": _kernel_of_torch,
}

# ---------------------------------------------------------------------- the choice


@dataclass(frozen=True)
class Choice:
    """products (Products): The ones to use. reason (str): Why these, for the log. gain (float | None): How many times
    as fast as thinc's they are. None: there was nothing to measure.
    """

    products: Products
    reason: str
    gain: float | None = None


def fastest(nlp: Language, threads: OpsThreads = 1) -> Choice:
    """Measure which library computes the products of a pipeline fastest. Uses no random generator of the process.

    threads (int | "auto"): Threads for each product, of NumPy or torch. "auto": as many as are fastest.
    """
    shapes = _shapes(nlp)
    if not shapes:
        return Choice(products_by("thinc"), "the pipeline has no layers of thinc's NumpyOps with a matrix.")
    numbers = _numbers_of_threads() if threads == "auto" else [int(threads)]
    others: list[Library] = ["numpy", "torch"]
    candidates = [products_by("thinc"), *(products_by(library, n) for n in numbers for library in others)]
    return choose(_measure(candidates, shapes))


def choose(seconds: Mapping[Products, float]) -> Choice:
    """Choose among products by the time that they took: the first, unless a later one is faster by 10% or more.

    seconds (Mapping): By products. thinc's come first.
    """
    candidates = list(seconds)
    thincs = best = candidates[0]
    for other in candidates[1:]:
        if seconds[other] * _GAIN < seconds[best]:
            best = other
    if best is not thincs:
        gain = seconds[thincs] / seconds[best]
        return Choice(best, f"{gain:.1f} times as fast as {thincs.kernel}.", gain)
    if len(candidates) == 1:
        return Choice(best, "there is no other.")
    second = min(candidates[1:], key=seconds.__getitem__)
    return Choice(best, f"{second} takes {seconds[second] / seconds[best]:.1f} times as long.", 1.0)


def _numbers_of_threads() -> list[int]:
    """1, 2, 4 and so on, up to the processors of this process: its part of them, if there are several processes."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    at_most = max(1, processors // processes_here())
    return sorted({*(1 << i for i in range(at_most.bit_length())), at_most})


def _shapes(nlp: Language) -> list[tuple[tuple[int, int], int]]:
    """The shapes of the weights that are multiplied with, the most costly ones, and how often there are some."""
    counts: Counter[tuple[int, int]] = Counter()
    for node in _nodes(nlp):
        weights = node.get_param("W") if "W" in node.param_names and node.has_param("W") else None
        if type(node.ops) is NumpyOps and isinstance(weights, numpy.ndarray) and weights.ndim > 1 and weights.size:
            width = weights.shape[-1]
            counts[weights.size // width, width] += 1
    return sorted(counts.items(), key=lambda found: -found[0][0] * found[0][1] * found[1])[:_SHAPES]


def _measure(candidates: list[Products], shapes: list[tuple[tuple[int, int], int]]) -> dict[Products, float]:
    """Seconds by candidate for the products of a step, forward and backward: each product's best of some turns.

    The candidates take turns, as whatever else runs on the machine would slow down one of them.
    """
    from threadpoolctl import ThreadpoolController

    plain = NumpyOps()
    work = []
    for (n_out, n_in), count in shapes:
        sizes = (_ROWS, n_in), (n_out, n_in), (_ROWS, n_out)
        work.append(([numpy.ones(size, dtype="float32") for size in sizes], count))
    all_ops = [plain if products.library == "thinc" else FastOps(plain, _multiply(products)) for products in candidates]
    libraries = ThreadpoolController()
    turns: list[list[list[float]]] = []
    began = perf_counter()
    while len(turns) < _TURNS or perf_counter() - began < _SECONDS:
        turns.append([])
        for products, ops in zip(candidates, all_ops):
            with _limits(products, libraries):
                turns[-1].append(_time_each(ops, work))
    return {products: sum(map(min, zip(*times))) for products, times in zip(candidates, zip(*turns))}


def _time_each(ops: NumpyOps, work: list[tuple[list[Any], int]]) -> list[float]:
    found = []
    for (X, W, dY), count in work:
        for x, y, trans in ((X, W, {"trans2": True}), (dY, W, {}), (dY, X, {"trans1": True})):
            began = perf_counter()
            ops.gemm(x, y, **trans)
            found.append(count * (perf_counter() - began))
    return found


# ---------------------------------------------------------------------- in a pipeline


class PipelineOps:
    """The ops of a pipeline's nodes, while other products are in use: a context manager. The backward passes of parsers
    and NER, which make the most products, make fewer of them, also where products stay thinc's.

    nlp (Language): The pipeline. products (Products): The ones to use inside.
    """

    def __init__(self, nlp: Language, products: Products):
        self._nlp = nlp
        self._products = products
        self._stack = ExitStack()
        # The ops before, by the `id` of ours. Each of a pipeline's ops has one, that its nodes share as before.
        self._ours: dict[int, tuple[NumpyOps, FastOps]] = {}
        self._put_back: list[Callable[[], None]] = []

    def __enter__(self) -> PipelineOps:
        if self._products.library != "thinc":
            self._stack.enter_context(_limits(self._products))
        self._stack.callback(self._end)
        self.cover()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def changes_anything(self) -> bool:
        """Whether the pipeline has layers that compute otherwise inside."""
        return bool(self._put_back)

    def cover(self) -> None:
        """Give the products to nodes that are new, or were moved to the CPU."""
        for node in _nodes(self._nlp):
            ops: Any = node.ops
            if type(ops) is not NumpyOps:
                continue
            self._put_back += batch_backprop(node)
            if self._products.library != "thinc":
                _, ours = self._ours.setdefault(id(ops), (ops, FastOps(ops, _multiply(self._products))))
                self._put_back.append(swap(node, "ops", ours))

    def _end(self) -> None:
        """Also in layers that were taken out of the pipeline. Whatever else has our ops computes as before."""
        for put_back in self._put_back:
            put_back()
        for _, ours in self._ours.values():
            ours.multiply = None
        self._put_back, self._ours = [], {}


@contextmanager
def fastest_ops(nlp: Language, *, threads: OpsThreads = 1) -> Iterator[Choice]:
    """Inside, the layers of a pipeline compute matrix products by the library that is fastest here: in training and in
    prediction. Nodes that are added inside keep thinc's.

    threads (int | "auto"): Threads for each product. "auto": as many as are fastest.
    YIELDS (Choice): The library, and why.
    """
    choice = fastest(nlp, check_ops_threads(Section("fastest_ops", verb="use"), "threads", threads))
    with PipelineOps(nlp, choice.products):
        yield choice


def _nodes(nlp: Language) -> Iterator[Model[Any, Any]]:
    for _, model in components_with_model(nlp):
        yield from model.walk()
