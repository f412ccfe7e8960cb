"""Restore buffers of torch modules after a skipped batch: its NaN must not stay in BatchNorm's running statistics.

A forward pass writes to buffers before the optimizer sees a gradient. So their values are saved after each update, and
again before the first pass since then, as weights may have been loaded. After a skipped update they are restored.

Floats are copied each time: BatchNorm's kernel writes to them without a new version. Others, such as masks and counts,
are copied if the tensor's version has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakSet

import torch
from thinc.api import Shim
from torch.nn.parameter import is_lazy

from ..host import Normalization, buffers_of, module_of, version_of

# Those that have had no forward pass since their buffers were saved or restored, with who did so.
_unused: WeakKeyDictionary[Shim, WeakSet[KeptBuffers]] = WeakKeyDictionary()


def keep_before_pass(shim: Shim) -> None:
    """Save the buffers of a module again, if a pass is the first one since."""
    for kept in _unused.pop(shim, ()):
        kept.keep([shim], is_used=True)


class KeptBuffers:
    """The values of the buffers of modules at the last call of `keep`, or before the first forward pass since."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Shim, _Module] = WeakKeyDictionary()

    @torch.no_grad()
    def keep(self, shims: Iterable[Shim] | None = None, *, is_used: bool = False) -> None:
        """Save the buffers of modules. Default: of all modules so far. is_used (bool): Their next pass saves none."""
        for shim in list(self._of) if shims is None else shims:
            kept = self._of.get(shim)
            if kept is None or kept.module is not module_of(shim):
                if module_of(shim) is None:
                    continue
                kept = self._of[shim] = _Module(module_of(shim))
            for buffer in kept.buffers:
                buffer.keep()
            if kept.buffers and not is_used:
                self._await_pass(shim)

    def _await_pass(self, shim: Shim) -> None:
        _unused.setdefault(shim, WeakSet()).add(self)

    @torch.no_grad()
    def put_back(self, shims: Iterable[Shim]) -> None:
        """Restore the saved buffers. Running statistics that were not saved are reset if they are not finite."""
        for shim in shims:
            kept = self._of.get(shim)
            if kept is not None and kept.module is module_of(shim):
                for buffer in kept.buffers:
                    buffer.put_back()
                if kept.buffers:
                    self._await_pass(shim)
                if any(buffer.tensor is None for buffer in kept.buffers):  # perhaps the batch created it
                    _reset_statistics(module_of(shim))
            elif module_of(shim) is not None:
                _reset_statistics(module_of(shim))


def _reset_statistics(module: torch.nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, Normalization) and not all(
            is_lazy(buffer) or buffer.isfinite().all() for buffer in part.buffers(recurse=False)
        ):
            part.reset_running_stats()


class _Module:
    def __init__(self, module: torch.nn.Module):
        self.module = module
        self.buffers = [_Buffer(owner, name) for owner in module.modules() for name in buffers_of(owner)]


@dataclass
class _Buffer:
    """A buffer's place in its module; its tensor, the tensor's version, and its saved values."""

    owner: torch.nn.Module
    name: str
    tensor: torch.Tensor | None = None
    version: int = -1
    values: torch.Tensor | None = None

    def keep(self) -> None:
        now = buffers_of(self.owner).get(self.name)
        if now is None or is_lazy(now) or now.is_inference():
            self.tensor = self.values = None
        elif (
            now is not self.tensor
            or self.values is None
            or self.values.shape != now.shape
            or self.values.device != now.device
        ):
            self.tensor, self.version, self.values = now, version_of(now), now.detach().clone()
        elif self._may_have_changed(now):
            self.values.copy_(now)
            self.version = version_of(now)

    def put_back(self) -> None:
        if self.tensor is None or self.values is None or self.name not in buffers_of(self.owner):
            return
        buffers_of(self.owner)[self.name] = self.tensor
        if self._may_have_changed(self.tensor):
            self.tensor.copy_(self.values)
            self.version = version_of(self.tensor)

    def _may_have_changed(self, tensor: torch.Tensor) -> bool:
        return tensor.is_floating_point() or version_of(tensor) != self.version
