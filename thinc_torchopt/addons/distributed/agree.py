"""Keep ranks equal: seeds, sets in the attrs of layers, and a check of params."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from spacy.language import Language

from ...core.errors import DistributedError
from ...core.params import components_with_model
from .group import RankGroup

_INT_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def seed_of(base: int, step: int, rank: int | None = None) -> int:
    """The seed of a step, 32 bits: for one rank, or for all (None)."""
    return int.from_bytes(hashlib.blake2b(f"{base}/{step}/{rank}".encode(), digest_size=4).digest(), "big")


# ---------------------------------------------------------------------- params


@torch.no_grad()
def checksums(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A checksum of the bits of each tensor, computed on its device. Shape: (n,), int64, on the CPU."""
    sums = [tensor.detach().view(_INT_OF_SIZE[tensor.dtype.itemsize]).sum(dtype=torch.int64) for tensor in tensors]
    found = torch.zeros(len(sums), dtype=torch.int64)
    for device in {one.device for one in sums}:  # one copy for each
        chosen = [i for i, one in enumerate(sums) if one.device == device]
        found[chosen] = torch.stack([sums[i] for i in chosen]).cpu()
    return found


def check_same_params(
    group: RankGroup, tensors: Mapping[str, torch.Tensor], rates: Mapping[str, float], step: int
) -> None:
    """Check that params and learning rates are bit-identical on all ranks.

    tensors (Mapping[str, torch.Tensor]): By name. rates (Mapping[str, float]): By param group.
    RAISES (DistributedError): They differ.
    """
    names = [*sorted(tensors), *(f"the learning rate of '{name}'" for name in sorted(rates))]
    bits = torch.tensor([rates[name] for name in sorted(rates)], dtype=torch.float64).view(torch.int64)
    found = torch.cat([checksums([tensors[name] for name in sorted(tensors)]), bits])
    wrong = [name for name, differs in zip(names, group.differs(found).tolist()) if differs]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise DistributedError(
            f"Can't continue after step {step}: expected the same params on all {group.size} ranks, but they "
            f"differ in {', '.join(wrong[:3])}{more}. Code that changes params must do so on all ranks alike. "
            "Different kinds of processors may round differently: to allow that, set check_every = 0 in "
            "[training.optimizer.distributed]."
        )


# ---------------------------------------------------------------------- attrs of layers


class SharedSets:
    """The sets in the attrs of layers, such as the classes that the parser has not seen. Changes of one rank are
    applied on all ranks.

    nlp (Language): The pipeline, whose sets are equal on all ranks at this point.
    """

    def __init__(self, nlp: Language):
        self._sets = dict(_sets_of(nlp))
        self._before = {key: frozenset(found) for key, found in self._sets.items()}

    @property
    def has_changed(self) -> bool:
        """Whether a set has changed on this rank."""
        return any(
            len(found) != len(self._before[key]) or found != self._before[key] for key, found in self._sets.items()
        )

    def merge(self, group: RankGroup) -> None:
        """Apply the changes of all ranks. All ranks must call this."""
        changes = {
            key: (found - before, before - found)
            for key, found in self._sets.items()
            if found != (before := self._before[key])
        }
        for of_rank in group.gather(changes):
            for key, (added, removed) in of_rank.items():
                self._sets[key].difference_update(removed)
                self._sets[key].update(added)
        self._before = {key: frozenset(found) for key, found in self._sets.items()}


def _sets_of(nlp: Language) -> Iterator[tuple[tuple[str, int, str], set[Any]]]:
    for name, model in components_with_model(nlp):
        for i, node in enumerate(model.walk()):
            yield from (((name, i, key), value) for key, value in node.attrs.items() if isinstance(value, set))
