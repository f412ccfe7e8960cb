"""CuPy without a GPU: what spaCy, thinc and this package use of it. It stands in `sys.modules["cupy"]`.

An `ndarray` holds an array of NumPy, its `host`, and is none: thinc tells the two apart by `isinstance`. NumPy does all
computing. It is as strict as CuPy's: NumPy can't convert it, and nothing computes with it and an array of NumPy, except
for indices. The host waits (`waits.py`) for each value that it reads.

thinc's own kernels are C++ for a GPU. `_replace_kernels` puts the methods of its `NumpyOps` in their place.

What it can't show: streams, memory, and rounding that is other on a GPU.
"""

import sys
from inspect import isfunction
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy

from .waits import count, count_op

__version__ = "13.6.0"


class Flags:
    """Without `writeable`, which CuPy's have not."""

    def __init__(self, host):
        self.c_contiguous, self.f_contiguous = host.flags.c_contiguous, host.flags.f_contiguous
        self.owndata = host.flags.owndata

    def __getitem__(self, name):
        return getattr(self, name.lower())


class ndarray:
    def __init__(self, shape, dtype=float, order="C"):
        self.host = numpy.empty(shape, dtype, order)

    # ------------------------------------------------------------------ what the host waits for

    def get(self, stream=None, order="C", out=None, blocking=True):
        count("get")
        return self.host.copy(order)

    def item(self, *args):
        count("item")
        return self.host.item(*args)

    def tolist(self):
        count("tolist")
        return self.host.tolist()

    def __bool__(self):
        count("bool")
        return bool(self.host)

    def __int__(self):
        count("int")
        return int(self.host)

    def __float__(self):
        count("float")
        return float(self.host)

    def __index__(self):
        count("index")
        return self.host.__index__()

    # ------------------------------------------------------------------ what NumPy does for it

    def __getattr__(self, name):
        """A method or a property, as NumPy's."""
        if name.startswith("__") or name in ("host", "ctypes", "setflags", "resize", "tofile"):
            raise AttributeError(f"'ndarray' object has no attribute {name!r}")
        found = getattr(self.host, name)
        return _on_hosts(found) if callable(found) else found

    @property
    def T(self):
        return _wrap(self.host.T)

    @property
    def flags(self):
        return Flags(self.host)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.host.ctypes.data, device=cuda.Device(0))

    @property
    def device(self):
        return cuda.Device(0)

    def set(self, host, stream=None):
        assert isinstance(host, numpy.ndarray), type(host)
        self.host[...] = host

    def __getitem__(self, index):
        found = self.host[_index(index)]
        _count("getitem", found, self.host)
        return _wrap(found)

    def __setitem__(self, index, value):
        _count("setitem", self.host, self.host)
        self.host[_index(index)] = _host(value)

    def __len__(self):
        return len(self.host)

    def __iter__(self):
        return iter([_wrap(row) for row in self.host])

    def __repr__(self):
        return f"cupy.{self.host!r}"

    __hash__ = None

    # ------------------------------------------------------------------ the border

    def __array__(self, *args, **kwargs):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array "
            "explicitly."
        )

    def __array_ufunc__(self, ufunc, method, *args, **kwargs):
        return _on_hosts(getattr(ufunc, method))(*args, **kwargs)

    def __array_function__(self, function, types, args, kwargs):
        return _on_hosts(function)(*args, **kwargs)

    @property
    def __cuda_array_interface__(self):
        return {**self.host.__array_interface__, "version": 3}

    def __dlpack__(self, **kwargs):
        return self

    def __dlpack_device__(self):
        return 2, 0

    def __copy__(self):
        return _wrap(self.host.copy())

    def __deepcopy__(self, memo):
        return _wrap(self.host.copy())

    def __reduce__(self):
        return array, (self.get(),)


def _wrap(value):
    """What NumPy gave, as CuPy gives it: numbers too are arrays."""
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        made = ndarray.__new__(ndarray)
        made.host = numpy.asarray(value)
        return made
    return type(value)(map(_wrap, value)) if type(value) in (list, tuple) else value


def _count(name, found, *given):
    """Count an operation, unless its result is no array, a view of what was given, or memory without values."""
    is_array = isinstance(found, (numpy.ndarray, numpy.generic))
    is_new = all(found is one or not numpy.may_share_memory(found, one) for one in given if hasattr(one, "shape"))
    if (is_array and is_new and not name.startswith("empty")) or found is None:
        count_op(f"cupy {name}")


def _host(value):
    """What CuPy takes, as NumPy takes it."""
    if isinstance(value, ndarray):
        return value.host
    if isinstance(value, numpy.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if type(value) in (list, tuple):
        return type(value)(map(_host, value))
    return value


def _index(value):
    if isinstance(value, tuple):
        return tuple(map(_index, value))
    return value.host if isinstance(value, ndarray) else value


def _on_hosts(function):
    """A function of NumPy, for arrays of CuPy. What it returns of what it was given, it gives back."""

    def run(*args, **kwargs):
        hosts, named = [_host(arg) for arg in args], {key: _host(value) for key, value in kwargs.items()}
        found = function(*hosts, **named)
        owner = getattr(function, "__self__", None)
        _count(getattr(function, "__name__", "ufunc"), found, *hosts, *named.values(), owner)
        given = next(
            (arg for arg in (*args, kwargs.get("out")) if isinstance(arg, ndarray) and arg.host is found), None
        )
        return _wrap(found) if given is None else given

    return run


def _operator(name):
    def operate(self, *others):
        if any(isinstance(other, numpy.ndarray) for other in others):
            return NotImplemented if not name.startswith("__i") else _host(others[0])
        found = getattr(self.host, name)(*map(_host, others))
        if found is NotImplemented:
            return found
        _count(name, found, self.host)
        return self if found is self.host else _wrap(found)

    return operate


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
_OTHERS = ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert")
for _name in (*(prefix + name for name in _BINARY for prefix in ("", "r", "i")), *_OTHERS):
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))


# ---------------------------------------------------------------------- the module


def array(data, dtype=None, copy=True, order="K"):
    """From anything: it is here that values come to the GPU."""
    host = data.host if isinstance(data, ndarray) else data
    if type(data) in (list, tuple) and any(isinstance(item, ndarray) for item in data):
        host = [item.host for item in data]
    found = numpy.array(host, dtype, copy=bool(copy) or None, order=order)
    _count("array", found)
    return _wrap(found)


def asarray(data, dtype=None, order=None):
    if isinstance(data, ndarray) and (dtype is None or data.dtype == dtype):
        return data
    return array(data, dtype, copy=not isinstance(data, ndarray), order=order or "K")


def ascontiguousarray(data, dtype=None):
    data = asarray(data, dtype)
    return data if data.flags.c_contiguous else data.copy(order="C")


def split(data, indices_or_sections, axis=0):
    """Places may be NumPy's, as all indices."""
    return _wrap(numpy.split(data.host, _index(indices_or_sections), axis))


def asnumpy(data, *args, **kwargs):
    return data.get() if isinstance(data, ndarray) else numpy.asarray(data)


def save(file, data, **kwargs):
    numpy.save(file, asnumpy(data), **kwargs)


def load(file, **kwargs):
    return _wrap(numpy.load(file, **kwargs))


def from_dlpack(tensor):
    """On the memory of a tensor of the other double."""
    return _wrap(tensor.host.numpy())


def get_array_module(*args):
    return sys.modules[__name__] if any(isinstance(arg, ndarray) for arg in args) else numpy


def get_default_memory_pool():
    return SimpleNamespace(free_all_blocks=lambda: None)


class _FromNumpy(ModuleType):
    """A module with the functions of one of NumPy's."""

    def __init__(self, name, of_numpy):
        super().__init__(name)
        self._of_numpy = of_numpy

    def __getattr__(self, name):
        return _like_numpy(getattr(self._of_numpy, name))


def _like_numpy(found):
    return _on_hosts(found) if callable(found) and not isinstance(found, type) else found


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _like_numpy(getattr(numpy, name))


linalg = _FromNumpy("cupy.linalg", numpy.linalg)


class RandomState:
    """Can't be read, as CuPy's can't."""

    def __init__(self, seed=None):
        self._drawn_by = numpy.random.RandomState(seed)

    def __getattr__(self, name):
        if name in ("get_state", "set_state") or name.startswith("__"):
            raise AttributeError(name)
        return _on_hosts(getattr(self._drawn_by, name))


class _Random(ModuleType):
    RandomState = RandomState
    _current = RandomState(0)

    def get_random_state(self):
        return self._current

    def set_random_state(self, state):
        self._current = state

    def seed(self, seed=None):
        self._current = RandomState(seed)

    def __getattr__(self, name):
        return getattr(self._current, name)


random = _Random("cupy.random")


# ---------------------------------------------------------------------- kernels and devices


class _Kernel:
    """A kernel in C++, which is never called: see `_replace_kernels`."""

    def __init__(self, *args, **kwargs):
        pass


ElementwiseKernel = ReductionKernel = RawKernel = RawModule = _Kernel


def _replace_kernels(cupyx):
    """Let thinc's `CupyOps` compute what it has kernels for as its `NumpyOps` does. thinc takes `cupy` for itself as it
    is imported.
    """
    from thinc.api import NumpyOps
    from thinc.backends import _custom_kernels, cupy_ops

    ops = NumpyOps()

    def by_numpy(name):
        run = _on_hosts(getattr(ops, name))

        def kernel(*args, threshold=None, **kwargs):
            for given in (*args, *kwargs.values()):
                # A kernel walks through memory.
                assert not isinstance(given, ndarray) or given.flags.c_contiguous, f"{name}: not contiguous"
            if threshold is not None and name.endswith("mish"):
                kwargs["threshold"] = threshold
            return run(*args, **kwargs)

        return kernel

    for name, found in list(vars(_custom_kernels).items()):
        if isfunction(found) and hasattr(ops, name):
            setattr(_custom_kernels, name, by_numpy(name))

    def adam(grad, learn_rate, one_minus_beta1, one_minus_beta2, eps, param, m, v):
        m += one_minus_beta1 * (grad - m)
        v += one_minus_beta2 * (grad * grad - v)
        param -= learn_rate * m / (sys.modules[__name__].sqrt(v) + eps)

    cupy_ops.adam_kernel = adam
    scatter_add = _on_hosts(ops.scatter_add)
    cupyx.scatter_add = lambda table, indices, values: scatter_add(table, _wrap(_index(indices)), values)


def _nothing(*args, **kwargs):
    return None


class _Stream:
    """What waits for what is written down in `waited`: (a stream that waits, a stream that it waits for)."""

    waited: ClassVar[list[tuple[int, int]]] = []
    current: ClassVar[list["_Stream"]] = []

    def __init__(self, ptr=0, **kwargs):
        self.ptr = ptr

    def __enter__(self):
        self.current.append(self)
        return self

    def __exit__(self, *error):
        self.current.pop()

    def synchronize(self):
        count("stream")

    def record(self, event=None):
        return SimpleNamespace(stream=self.ptr)

    def wait_event(self, event):
        self.waited.append((self.ptr, event.stream))


class _Device:
    def __init__(self, number=0):
        assert number == 0, "the double has one GPU"
        self.id = number

    use = synchronize = _nothing


def _module(name, **contents):
    made = ModuleType(name)
    made.__dict__.update(contents)
    return made


cublas = _module("cupy.cublas", nrm2=_on_hosts(numpy.linalg.norm))
cuda = _module(
    "cupy.cuda",
    Device=_Device,
    MemoryPool=lambda allocator=None: SimpleNamespace(malloc=_nothing),
    ExternalStream=_Stream,
    Stream=_Stream,
    get_current_stream=lambda: _Stream.current[-1] if _Stream.current else _Stream(),
    device=SimpleNamespace(Device=_Device),
    nvtx=SimpleNamespace(RangePush=_nothing, RangePop=_nothing),
    runtime=SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=RuntimeError),
    set_allocator=_nothing,
    stream=_module("cupy.cuda.stream", Stream=_Stream),
)


def install():
    """Be `cupy`, for all that is imported from now on."""
    this = sys.modules[__name__]
    cupyx = _module("cupyx")
    for name, module in {"cupy": this, "cupyx": cupyx, "cupy.cublas": cublas, "cupy.cuda": cuda}.items():
        sys.modules[name] = module
    sys.modules["cupy.cuda.stream"] = cuda.stream
    _replace_kernels(cupyx)
