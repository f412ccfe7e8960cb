"""One param: a torch tensor on the memory of thinc's array, without a copy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Optional

import numpy
import torch
import torch.utils.dlpack
from thinc.api import Model, PyTorchShim, Shim
from torch.nn.parameter import is_lazy

from .. import kernels
from ..errors import ParamError, ShapeError
from ..host import module_of
from ..inserted import Insertion, Order, order_after
from ..rates import RateScale
from ..schema import Count, FirstStep, Limit
from ..types import Key, OnGrowth
from .param_settings import ParamSettings

# Elements in one sum by BLAS. torch's own norm of 20M elements is off by a thousandth, and slower
# (benchmarks/README.md).
CHUNK = 1 << 20


DType = Annotated[
    str,
    Limit(
        "a dtype of torch's", lambda text: isinstance(getattr(torch, text.removeprefix("torch."), None), torch.dtype)
    ),
]


@dataclass
class ParamRow:
    """The values that a param leaves to the one that takes its name: in a saved state, or in this process.

    shim (str | None): The name in the calls of a shim with its own store.
    updates (int): The number of its updates.
    joined_at, rate_scale, frozen_until: As in `Param`.
    label: Of its settings.
    state (dict): torch's state of it.
    master (Tensor | None): Its float32 master, if it is of half precision and has one.
    """

    shape: list[Count]
    dtype: DType
    shim: Optional[str]
    updates: Count
    joined_at: Optional[Count]
    label: str
    rate_scale: RateScale
    frozen_until: Optional[FirstStep]
    state: dict[str, Any]
    master: Optional[torch.Tensor]

    @property
    def torch_dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype.removeprefix("torch."))
        return found


class Half(NamedTuple):
    """The model's values of a param that has a master while it is trained.

    tensor (Tensor): The model's tensor, or a view on the memory of its array. dtype, strides: When it was last seen.
    """

    tensor: torch.Tensor
    dtype: torch.dtype
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Half:
        return cls(tensor, tensor.dtype, tensor.stride())


class Param:
    """One param: a torch tensor that shares its memory with the model's array or tensor.

    name (str): Its lasting name.
    aliases (tuple[str, ...]): Its other names, if it is used in several places: in two components, or tied in a module.
    key (Key): Its key in this process.
    lineage (object): Stays when it is renamed, and is passed on to the param that takes its name, such as a larger one.
    source (Any): The model's NumPy or CuPy array, or torch tensor.
    holder (Model | Shim | None): The node or shim of the pipeline that has it. None: it is outside the pipeline.
    module (torch.nn.Module | None): The module of its shim, as last seen.
    tensor (torch.Tensor): The tensor that torch optimizes: a view of `source`, `source` itself, a buffer of ours if
        `callback` is set, or the float32 master of `half`.
    half (Half | None): The model's values in half precision, of which `tensor` is the master while it is trained. None:
        it never has one.
    callback (Callable): Gets the values after the update, for models that keep their params elsewhere.
    is_bias_or_norm (bool): Whether it is a bias, or belongs to a normalization layer.
    is_array (bool): Whether `source` is an array.
    is_torch (bool): Whether `source` is a param of a torch module, whose gradients torch computes.
    settings (ParamSettings): Its settings in the config.
    group (Group | None): Its torch param group: see core/update. None: it is frozen.
    rate_scale (RateScale): The effect of rules, or of other code, on its learning rate.
    frozen_until (float | None): The first step that trains it, if it was frozen or unfrozen during the training,
        whatever the settings say; infinite: none.
    row_size (int): Cells in a row, if the weights are flat with rows one after the other. Otherwise 1.
    insertions (tuple[Insertion, ...]): Into its node, if it got cells in its middle.
    joined_at (int | None): The number of updates before it was added, if in mid-training.
    steps (int): The number of its updates.
    flat_grad (torch.Tensor | None): The gradient of an array as one vector on the same memory. None: the gradient is
        torch's, a copy, too large for one sum, or not on the CPU.
    """

    __slots__ = (
        "aliases",
        "callback",
        "device",
        "dtype",
        "flat_grad",
        "frozen_until",
        "grad_copy",
        "grad_source",
        "group",
        "half",
        "holder",
        "insertions",
        "is_array",
        "is_bias_or_norm",
        "is_torch",
        "joined_at",
        "key",
        "lineage",
        "module",
        "name",
        "rate_scale",
        "row_size",
        "settings",
        "shape",
        "source",
        "steps",
        "strides",
        "tensor",
    )

    def __init__(self, name: str, key: Key, source: Any, tensor: torch.Tensor, *, is_bias_or_norm: bool = False):
        self.name = name
        self.aliases: tuple[str, ...] = ()
        self.key = key
        self.lineage = object()
        self.set_source(source)
        self.holder: Model[Any, Any] | Shim | None = None
        self.module: torch.nn.Module | None = None
        self.tensor = tensor
        self.half: Optional[Half] = None
        self.shape = tensor.shape
        self.device = tensor.device
        self.dtype = tensor.dtype
        self.strides = tensor.stride()
        self.grad_source: Any = None
        self.grad_copy: Optional[torch.Tensor] = None
        self.flat_grad: Optional[torch.Tensor] = None
        self.callback: Callable[[Any], None] | None = None
        self.is_bias_or_norm = is_bias_or_norm
        self.settings: ParamSettings = None  # type: ignore[assignment]  # until the plan sets it
        self.group: Any = None
        self.rate_scale = RateScale()
        self.frozen_until: Optional[float] = None
        self.row_size = 1
        self.insertions: tuple[Insertion, ...] = ()
        self.joined_at: Optional[int] = None
        self.steps = 0

    def row(self) -> ParamRow:
        """Everything that its successor takes. Tensors are shared."""
        return ParamRow(
            list(self.shape),
            str(self.dtype),
            self.key[2] if self.is_of_shim else None,  # type: ignore[index]
            self.steps,
            self.joined_at,
            self.settings.label,
            self.rate_scale,
            self.frozen_until,
            {} if self.group is None else self.group.owner.states.get(self),
            self.tensor if self.has_master else None,
        )

    def take_settings(self, row: ParamRow) -> None:
        """Take what decides on its group, before it has one."""
        self.joined_at, self.rate_scale, self.frozen_until = row.joined_at, row.rate_scale, row.frozen_until

    def take_state(self, row: ParamRow, on_growth: OnGrowth = "mean") -> None:
        """Take the state and the master of a row, which may have another shape.

        RAISES (StateError): They don't fit.
        """
        if self.group is not None:
            fill: Literal["mean", "zero"] = "zero" if on_growth == "zero" else "mean"
            states = self.group.owner.states
            states.put(self, row.state, shape=row.shape, dtype=row.torch_dtype, on_growth=fill)
        if row.master is not None:
            self.take_master(row.master)

    @torch.no_grad()
    def take_master(self, old: torch.Tensor) -> None:
        """Take the master of its predecessor, which may have another shape, as far as both reach. Cells that do not
        fit the model follow it before the next update.
        """
        if self.has_master and old.ndim == self.tensor.ndim:
            common = tuple(slice(min(sizes)) for sizes in zip(old.shape, self.shape))
            order = self.order_after(old.shape)
            master = self.tensor if order is None else order.old_first(self.tensor)
            master[common] = old[common].to(master)
            if order is not None:
                self.tensor.copy_(order.in_place(master))

    def order_after(self, shape: Sequence[int]) -> Order | None:
        """Where its cells are, if it got some in its middle since it had another shape. None: it did not."""
        return order_after(self.insertions, self.key[1], shape, self.shape) if self.insertions else None  # type: ignore[index]

    def set_source(self, source: Any) -> None:
        """Set the model's array or tensor."""
        self.source = source
        self.is_array = not isinstance(source, torch.Tensor)
        self.is_torch = isinstance(source, torch.nn.Parameter)

    def set_holder(self, holder: Model[Any, Any] | Shim | None) -> None:
        """Set the node or shim that has it."""
        self.holder = holder
        self.module = module_of(holder) if isinstance(holder, PyTorchShim) else None

    @property
    def values(self) -> Any:
        """The array or tensor that its holder has now: not `source` if it was replaced since the last update."""
        if isinstance(self.holder, Model) and self.holder.has_param(name := self.key[1]):  # type: ignore[index]
            return self.holder.get_param(name)
        return self.source

    def is_on(self, source: Any) -> bool:
        """Whether the param is on this array or tensor, with the shape, dtype, device and strides that it had."""
        half = self.half
        tensor, dtype, strides = (self.tensor, self.dtype, self.strides) if half is None else half
        return (
            self.source is source
            and self.shape == source.shape
            and self.device == tensor.device
            and dtype == tensor.dtype
            and strides == tensor.stride()
        )

    @property
    def has_master(self) -> bool:
        """Whether `tensor` is a float32 master."""
        return self.half is not None and self.tensor is not self.half.tensor

    @property
    def in_model(self) -> torch.Tensor:
        """The tensor with the model's values: `tensor`, unless that is a master."""
        return self.tensor if self.half is None else self.half.tensor

    def in_form(self, tensor: torch.Tensor) -> Any:
        """A tensor in the model's form of the param: as it is, or as an array on its memory."""
        return array_of(tensor) if self.is_array else tensor.detach()

    def put_on(self, tensor: torch.Tensor) -> None:
        """Move to a tensor on another device, of another dtype, or in another memory order."""
        # A torch param keeps its identity: torch's gradient may already be on it.
        self.grad_source = self.grad_copy = self.flat_grad = None
        self.tensor, self.device, self.dtype, self.strides = tensor, tensor.device, tensor.dtype, tensor.stride()

    @property
    def is_stopped(self) -> bool:
        """Whether it is a torch param that takes no gradients."""
        return self.is_torch and not self.source.requires_grad

    @property
    def names(self) -> tuple[str, ...]:
        """All its names. A pattern may match any of them."""
        return self.name, *self.aliases

    @property
    def is_of_shim(self) -> bool:
        """Whether a shim keeps it elsewhere, and passes it to its optimizer: see `shims.update_in_calls`."""
        return is_key_of_shim(self.key)

    @property
    def component(self) -> str:
        """The first part of the name."""
        return self.name.partition("/")[0]

    def has_grad(self, grad: Any) -> bool:
        """Whether this array is its gradient from `set_grad`, not dropped since, as by torch's `zero_grad`."""
        return self.grad_source is grad and self.grad_copy is None and self.tensor.grad is not None

    def set_grad(self, grad: Any, copies: Optional[list[tuple[torch.Tensor, torch.Tensor]]] = None) -> None:
        """Make `grad` the gradient of the tensor, without a copy where torch can work on its memory.

        grad (Any): Array or tensor. Shape: as the param.
        copies (list): If a copy is needed, it is added here with its values, for the caller to copy many at once.
        RAISES (ShapeError): Its shape differs from the param's.
        """
        own = self.tensor.grad
        if own is not None and grad is own and own.stride() == self.strides:
            return  # torch's
        if tuple(grad.shape) != tuple(self.shape):
            raise ShapeError(
                f"Can't use the gradient of param '{self.name}': expected shape {tuple(self.shape)}, found "
                f"{tuple(grad.shape)}. The backward pass of its layer is wrong, or the param was resized between "
                "forward and backward pass."
            )
        self.grad_source = grad
        is_plain = isinstance(grad, torch.Tensor) or not hasattr(grad, "flags") or is_viewable(grad)
        source = grad if is_plain else own_copy(grad)
        view = (
            source if isinstance(source, torch.Tensor) else view_of(source, f"use the gradient of param '{self.name}'")
        )
        like = self.tensor
        if is_plain and view.dtype == like.dtype and view.device == like.device and view.stride() == like.stride():
            self.grad_copy = None
            like.grad = view
            # A view of torch's array would keep the memory of a dropped gradient.
            self.flat_grad = None if source is view else as_one_vector(view)
        else:
            # Rare: a layer that computes in another precision or memory order. torch's kernels need both alike.
            if view.layout != torch.strided:
                raise ParamError(
                    f"Can't use the gradient of param '{self.name}': expected a dense tensor, found one of layout "
                    f"{view.layout}. Build the layer without sparse gradients: torch.nn.Embedding has sparse = False."
                )
            self.flat_grad = None
            if self.grad_copy is None:
                self.grad_copy = torch.empty_like(like)
            like.grad = self.grad_copy
            if copies is None:
                self.grad_copy.copy_(view)
            else:
                copies.append((self.grad_copy, view))

    def drop_grad(self) -> None:
        """Drop the gradient."""
        self.tensor.grad = self.grad_source = self.grad_copy = self.flat_grad = None
        if self.half is not None:
            self.half.tensor.grad = None

    @property
    def grad(self) -> torch.Tensor:
        """The gradient that torch uses."""
        assert self.tensor.grad is not None
        return self.tensor.grad


def is_key_of_shim(key: Key) -> bool:
    """Whether a key is from `ParamTable.name_shim_param`: ("shim", id of the shim, name of the param there)."""
    return isinstance(key, tuple) and len(key) == 3 and key[0] == "shim"


def as_one_vector(grad: torch.Tensor) -> torch.Tensor | None:
    """A gradient as a vector on the same memory, if the vector can be summed at once."""
    is_plain = grad.is_cpu and grad.dtype.itemsize >= 4 and grad.numel() <= CHUNK and grad.is_contiguous()
    return grad.reshape(-1) if is_plain else None  # a view, and faster than `view`


def clear_grads(params: Sequence[Param]) -> None:
    """Clear gradients, as thinc and torch do: arrays become zero in place, gradients of torch params become None."""
    arrays: list[Any] = []
    for param in params:
        if param.is_torch:
            param.tensor.grad = param.grad_source = param.grad_copy = None
            if param.half is not None:
                param.half.tensor.grad = None
        else:
            arrays.append(param.tensor.grad)
            if param.grad_copy is not None:
                param.grad_source[...] = 0
    kernels.zero_(arrays)


def view_of_param(source: Any, name: str, *, is_copied: bool = False) -> torch.Tensor:
    """The tensor that torch optimizes for a param.

    source (Any): Array or tensor. name (str): The param's name, for errors. is_copied (bool): It will be copied first.
    RETURNS (torch.Tensor): Shares memory with the source, unless it is to be copied.
    RAISES (ParamError): It can't be optimized in place.
    """
    purpose = f"optimize param '{name}'"
    if isinstance(source, torch.Tensor):
        if is_lazy(source):
            raise ParamError(
                f"Can't {purpose}: expected a param with a shape, found one that its module creates in the first "
                "forward pass. Run the module on a batch first."
            )
        if source.is_meta:
            raise ParamError(
                f"Can't {purpose}: expected a tensor with values, found one on the device 'meta', which has none. Load "
                "the module on another device: module.to_empty(device='cpu'), and then its weights."
            )
        view = source
    else:
        view = view_of(own_copy(source) if is_copied and not is_viewable(source) else source, purpose)
    if view.layout != torch.strided:
        raise ParamError(
            f"Can't {purpose}: expected a dense tensor, found one of layout {view.layout}. Make it dense: "
            "param.to_dense()."
        )
    if not view.is_floating_point():
        raise ParamError(f"Can't {purpose}: expected a tensor of floats, found {view.dtype}.")
    if not is_copied and kernels.may_overlap(view):
        raise ParamError(
            f"Can't {purpose}: expected a tensor without overlapping memory, found shape {tuple(view.shape)} with "
            f"strides {view.stride()}, where several elements share memory. It was made by expand() or as_strided(): "
            "clone it before it becomes a param."
        )
    return view


def view_of(array: Any, purpose: str) -> torch.Tensor:
    """A torch tensor on the memory of an array.

    array (Any): NumPy or CuPy array of floats. Shape: any.
    purpose (str): For errors: "Can't {purpose}", e.g. "optimize param 'ner/output/W'".
    RETURNS (torch.Tensor): Shares memory; writable. Shape: as the array.
    RAISES (ParamError): Not an array of floats, or of a float type that torch lacks.
    """
    dtype: Any = getattr(array, "dtype", None)
    if getattr(dtype, "kind", None) != "f":
        found = type(array).__name__ if dtype is None else f"dtype {dtype}"
        raise ParamError(
            f"Can't {purpose}: expected an array of floats, found {found}. Only floating point params have gradients; "
            "keep other data in the layer's attrs."
        )
    if dtype.itemsize > 8 or not dtype.isnative:
        raise ParamError(
            f"Can't {purpose}: expected float16, float32 or float64 in the byte order of this machine, found dtype "
            f"{_full_name(dtype)}. torch has no others. Convert it: array.astype('float32')."
        )
    if hasattr(array, "__cuda_array_interface__"):
        return torch.utils.dlpack.from_dlpack(array)
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor) -> Any:
    """The NumPy or CuPy array on the memory of a tensor."""
    if tensor.is_cuda:
        import cupy

        return cupy.from_dlpack(tensor.detach())
    return tensor.detach().numpy()


def saved_tensor(array: Any, name: str) -> torch.Tensor:
    """The values of an array of numbers as a tensor for a file. Shares memory with the array where torch can.

    name (str): The param's name, for errors.
    RAISES (ParamError): torch has no such dtype.
    """
    if hasattr(array, "__cuda_array_interface__"):
        return torch.utils.dlpack.from_dlpack(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not is_viewable(array):
        array = own_copy(array)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise ParamError(
            f"Can't save param '{name}': expected a dtype that torch has, found dtype {array.dtype}. Convert it: "
            "array.astype('float32')."
        ) from error


def is_viewable(array: Any) -> bool:
    """Whether torch can work on the array's memory: torch's fused kernels read plain, writable memory in C order."""
    return array.flags.c_contiguous and getattr(array.flags, "writeable", True)


def own_copy(array: Any) -> Any:
    """A writable copy in C order, on the same device. A NumPy scalar becomes an array."""
    return numpy.array(array) if isinstance(array, numpy.generic) else array.copy(order="C")


def _full_name(dtype: Any) -> str:
    """NumPy's name of a dtype, or its code if the byte order is not the machine's: names don't show it."""
    return str(dtype) if dtype.isnative else str(dtype.str)


# ---------------------------------------------------------------------- streams of a GPU


@contextmanager
def in_order() -> Iterator[None]:
    """Inside, torch works on arrays of CuPy: after what CuPy has been given to do, and before what it will be given.

    Both are on the default stream as a rule, where all comes in order. Inside of `torch.cuda.stream(...)`, or with a
    stream of CuPy's, each waits for an event of the other. The host does not wait.

    A view that is made by DLPack waits once, when it is made. Ours are kept from step to step.
    """
    cupy = sys.modules.get("cupy")  # thinc has imported it, if it is installed
    if cupy is None or not torch.cuda.is_initialized():
        yield
        return
    of_cupy, pointer = cupy.cuda.get_current_stream(), torch.cuda.current_stream().cuda_stream
    if of_cupy.ptr == pointer:
        yield
        return
    of_torch = cupy.cuda.ExternalStream(pointer)
    of_torch.wait_event(of_cupy.record())
    try:
        yield
    finally:
        of_cupy.wait_event(of_torch.record())
