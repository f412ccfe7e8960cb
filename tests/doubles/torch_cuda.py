"""Tensors on a GPU without a GPU: as much of `torch.cuda` as trainings use.

A `CudaTensor` holds a tensor of the main memory, its `host`. To Python it is on `cuda:0`. To torch it has no memory,
and its operations come to `__torch_dispatch__`, which lets the hosts do them. It is as strict as CUDA: an operation
does not mix the two places, except where torch allows it; lists of `_foreach_` are checked row by row; everything
that a `_fused_` kernel gets must be in one place. The host waits (`waits.py`) for each value that it reads.

torch's C++ takes a `CudaTensor` for one of the CPU. So functions that ask C++ where a tensor is are replaced
(`install`).

A copy to the main memory that nobody waits for is made when its event is over; until then there is nonsense.

What it can't show: memory, rounding that is other on a GPU, and what happens on two streams without waiting.
"""

import functools
import os
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import torch
import torch.utils.dlpack
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._pytree import tree_flatten, tree_map

from .waits import count, count_op

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class CudaTensor(torch.Tensor):
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host):
        return torch.Tensor._make_wrapper_subclass(
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype, device="cpu"
        )

    def __init__(self, host):
        self.host = host.detach()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    # ------------------------------------------------------------------ the border

    def to(self, *args, copy=False, **kwargs):
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        value = self if dtype in (None, self.dtype) else super().to(dtype)
        if device is not None and device.type == "cpu":
            assert not non_blocking, "the values of a copy that nobody waits for are read"
            return _ToHost.apply(value)
        if memory_format is not None:
            return value.contiguous(memory_format=memory_format)
        return value.clone() if copy and value is self else value

    def cpu(self):
        return self.to("cpu")

    def cuda(self, *args, **kwargs):
        return self

    def tolist(self):
        count("tolist")
        return self.host.tolist()

    def numpy(self, *args, **kwargs):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )

    __array__ = numpy

    def get_device(self):
        return 0

    def __dlpack__(self, **kwargs):
        return self

    # ------------------------------------------------------------------ memory

    def data_ptr(self):
        return self.host.data_ptr()

    def untyped_storage(self):
        return self.host.untyped_storage()

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, value):
        torch.Tensor.data.__set__(self, value)
        self.host = value.host

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            with torch.no_grad():
                made = self.clone().requires_grad_(self.requires_grad)
            if getattr(self, "_is_param", False):
                made._is_param = True
            memo[id(self)] = made
        return memo[id(self)]

    def __reduce_ex__(self, protocol):
        return _unpickled, (os.getpid(), self.host, self.requires_grad, getattr(self, "_is_param", False))

    def __repr__(self, **kwargs):
        return f"cuda:0 {self.host!r}"


def _unpickled(process, host, requires_grad, is_param):
    if process != os.getpid():
        raise RuntimeError("a tensor of another process comes to the GPU that it had there")
    made = CudaTensor(host).requires_grad_(requires_grad)
    if is_param:
        made._is_param = True
    return made


class _ToHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        count("to the host")
        return tensor.host.clone()

    @staticmethod
    def backward(ctx, grad):
        return CudaTensor(grad.clone())


class _ToCuda(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return CudaTensor(tensor.clone())

    @staticmethod
    def backward(ctx, grad):
        count("to the host")
        return grad.host.clone()


def to_cuda(tensor):
    """A copy on the GPU."""
    return tensor if isinstance(tensor, CudaTensor) else _ToCuda.apply(tensor)


# ---------------------------------------------------------------------- operations

# What takes tensors of both places: indices may be on the CPU.
_TAKES_BOTH = {aten.copy_, aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
# What takes no number of the CPU either: it is no loop over elements.
_TAKES_NO_NUMBERS = {aten.cat, aten.stack, aten.dot, aten.mm, aten.bmm, aten.addmm, aten.mv, aten.vdot}
# What does nothing with values.
_NOTHING_TO_DO = {aten.detach, aten.alias, aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty}
# What waits for the size of its result, or for a bool.
_WAITS = {aten.nonzero, aten.masked_select, aten._unique, aten._unique2, aten.unique_dim, aten.equal, aten.bincount}


def _host(value):
    return value.host if isinstance(value, CudaTensor) else value


def tensors_in(tree):
    """All tensors in dicts and lists."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _run(func, args, kwargs):
    """Let the hosts do an operation."""
    op, name = func.overloadpacket, func._schema.name.partition("::")[2]
    if not func.is_view and op not in _NOTHING_TO_DO:
        count_op(name)
    if name.startswith("_foreach_"):
        return _run_rows(func, args, kwargs)
    found = tensors_in((args, kwargs))
    if name.startswith(("_fused_", "_amp_")):
        _check(op, found, numbers=False)
    elif op is aten._local_scalar_dense:
        count("item")
        return args[0].host.item()
    elif op is aten.index_add:
        _check(op, found[1:], numbers=True)  # autograd of index_select makes zeros where C++ takes the gradient to be
    elif op not in _TAKES_BOTH:
        _check(op, found, numbers=op not in _TAKES_NO_NUMBERS)
        if func._schema.is_mutable and not isinstance(found[0], CudaTensor):
            raise RuntimeError(f"{op}: the result is to be on cpu, an operand is on cuda:0")
    elif op is aten.copy_ and not isinstance(args[0], CudaTensor):
        assert not kwargs.get("non_blocking") and args[2:] != (True,), "a copy that nobody waits for"
        count("copy to the host")
    elif op is not aten.copy_ and any(index is not None and index.dtype == torch.bool for index in args[1]):
        is_filled = op is not aten.index and args[2].numel() == 1  # nobody needs to know how many cells
        count("mask", 0 if is_filled else 1)
    if op in _WAITS:
        count(name)
    device = kwargs.get("device")
    is_on_cuda = isinstance(args[0], CudaTensor) if op in _TAKES_BOTH else True
    if device is not None:
        is_on_cuda = torch.device(device).type == "cuda"
        kwargs = {**kwargs, "device": CPU}
        if not is_on_cuda and op is aten._to_copy:
            count("to the host")
    result = func(*tree_map(_host, args), **tree_map(_host, kwargs))
    return _wrapped(result, found) if is_on_cuda else result


def _run_rows(func, args, kwargs):
    """An operation on lists: each row by itself may be anywhere."""
    lists = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple)) and tensors_in(value)]
    common = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    for row in zip(*lists):
        tensors = [*tensors_in(row), *common]
        if func.overloadpacket is not aten._foreach_copy_:
            _check(func.overloadpacket, tensors, numbers=True)
        elif isinstance(row[1], CudaTensor) and not isinstance(row[0], CudaTensor):
            count("copy to the host")
    result = func(*tree_map(_host, args), **tree_map(_host, kwargs))
    if result is None:
        return None
    return [CudaTensor(made) if isinstance(like, CudaTensor) else made for made, like in zip(result, lists[0])]


def _check(op, tensors, *, numbers):
    """Whether all are in one place. numbers (bool): But for numbers of the CPU."""
    if any(isinstance(tensor, CudaTensor) for tensor in tensors) and any(
        not isinstance(tensor, CudaTensor) and not (numbers and tensor.dim() == 0) for tensor in tensors
    ):
        raise RuntimeError(
            f"{op}: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        )


def _wrapped(result, given):
    """Results are on the GPU. One that is a tensor that was given is given back."""
    known = {id(tensor.host): tensor for tensor in given if isinstance(tensor, CudaTensor)}

    def wrap(value):
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else CudaTensor(value)

    return tree_map(wrap, result)


class _Creation(TorchFunctionMode):
    """Whatever is asked for on "cuda" is made on the CPU, and brought there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.to and not isinstance(args[0], CudaTensor):
            copy = kwargs.pop("copy", False)
            device, dtype, _, _ = torch._C._nn._parse_to(*args[1:], **kwargs)
            if device is not None and device.type == "cuda":
                count("to the GPU")  # from memory that is not pinned
                return to_cuda(args[0] if dtype is None else args[0].to(dtype))
            return func(*args, copy=copy, **kwargs)
        if func is torch.Tensor.cuda:
            count("to the GPU")
            return to_cuda(args[0])
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda" or any(isinstance(arg, CudaTensor) for arg in args):
            return func(*args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        if func is torch.as_tensor and hasattr(args[0], "__cuda_array_interface__"):
            return torch.from_dlpack(args[0])
        return to_cuda(func(*args, **{**kwargs, "device": CPU})).requires_grad_(requires_grad)


# ---------------------------------------------------------------------- what asks C++ for the place


def _from_dlpack(original, array, *args, **kwargs):
    if isinstance(array, CudaTensor):
        return array.detach()
    return original(array, *args, **kwargs) if not hasattr(array, "host") else CudaTensor(torch.from_numpy(array.host))


def _grouped(tensorlistlist, with_indices=False):
    """`torch.utils._foreach_utils._group_tensors_by_device_and_dtype`."""
    found = {}
    for i, row in enumerate(zip(*[column or [None] * len(tensorlistlist[0]) for column in tensorlistlist])):
        first = next(tensor for tensor in row if tensor is not None)
        lists, indices = found.setdefault((first.device, first.dtype), ([[] for _ in tensorlistlist], []))
        for column, tensor in zip(lists, row):
            if tensor is not None:
                column.append(tensor)
        indices.append(i)
    return found


def _load(original, file, map_location=None, **kwargs):
    is_cuda = map_location is not None and torch.device(map_location).type == "cuda"
    tree = original(file, map_location="cpu" if is_cuda else map_location, **kwargs)
    return tree_map(lambda leaf: to_cuda(leaf) if isinstance(leaf, torch.Tensor) else leaf, tree) if is_cuda else tree


@contextmanager
def _on_stream(stream):
    _streams.append(stream)
    yield
    _streams.pop()


def _save(original, tree, file, **kwargs):
    original(tree_map(_host, tree), file, **kwargs)


def install() -> None:
    """Have a GPU, for as long as this process lives. thinc is not imported yet."""
    from torch.optim import optimizer

    nothing = lambda *args, **kwargs: None  # noqa: E731
    cuda = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        # What draws on the GPU draws from the generator of the CPU.
        "get_rng_state": lambda device=0: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state": lambda state, device=0: torch.set_rng_state(state),
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        "memory_allocated": lambda device=0: 0,
        "max_memory_allocated": lambda device=0: 0,
        "get_device_properties": lambda device=0: SimpleNamespace(total_memory=1 << 34, name="a double"),
        "synchronize": lambda device=None: count("synchronize"),
        "Stream": lambda: SimpleNamespace(cuda_stream=7),
        "stream": _on_stream,
        "current_stream": lambda device=None: _streams[-1],
    }
    for name in ("set_device", "manual_seed", "manual_seed_all", "reset_peak_memory_stats", "empty_cache"):
        cuda[name] = nothing
    for name, function in cuda.items():
        setattr(torch.cuda, name, function)
    torch.from_dlpack = torch.utils.dlpack.from_dlpack = functools.partial(_from_dlpack, torch.utils.dlpack.from_dlpack)
    torch.utils.dlpack.to_dlpack = lambda tensor: tensor.detach()
    torch.load = functools.partial(_load, torch.load)
    torch.save = functools.partial(_save, torch.save)
    for module in (_foreach_utils, optimizer):
        module._group_tensors_by_device_and_dtype = _grouped
    optimizer._foreach_supported_types.append(CudaTensor)
    torch.__future__.set_swap_module_params_on_conversion(True)
    _stack.enter_context(_Creation())


_stack = ExitStack()
_streams = [SimpleNamespace(cuda_stream=0)]
