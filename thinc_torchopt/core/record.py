"""How hard each annotation was for the components of a training: what a recorder keeps, and `suspects` reads.

*unit*: for each component, the parts of a text of which it learns: its tokens, or the labels of a classifier.
*hardness* of a unit: a norm of its gradient, in one update. A text is known by a digest of its words and annotations,
so it is found again in shuffled batches, in other processes, and in the corpus.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy
import torch
from spacy.attrs import DEP, ENT_IOB, ENT_TYPE, HEAD, LEMMA, MORPH, ORTH, POS, SENT_START, SPACY, TAG
from spacy.training import Example

from .schema import Whole, read, refuse
from .state import read_folder, write_folder

_ANNOTATED = [ORTH, SPACY, TAG, POS, MORPH, LEMMA, HEAD, DEP, SENT_START, ENT_IOB, ENT_TYPE]
# In the folder of a run.
FOLDER: Final = "recorder"
_SIZE = 16
# Of a unit: the sum of its hardness over updates, that in the first and the last one, the number of updates, and in how
# many of them the annotation was predicted.
_UNIT: Final = numpy.dtype([("total", "f4"), ("first", "f4"), ("last", "f4"), ("updates", "i4"), ("hits", "i4")])
_WHAT = "the record of a training"
Digest = bytes


def digest(example: Example) -> Digest:
    """A text with its annotations, in 16 bytes."""
    reference = example.reference
    spans = {
        key: [(span.start, span.end, span.label_) for span in spans] for key, spans in sorted(reference.spans.items())
    }
    found = hashlib.blake2b(example.predicted.to_array([ORTH, SPACY]).tobytes(), digest_size=_SIZE)
    found.update(reference.to_array(_ANNOTATED).tobytes())
    if reference.cats or spans:
        found.update(repr((sorted(reference.cats.items()), spans)).encode())
    return found.digest()


@dataclass
class _Saved:
    """The texts of a component. digests (Tensor): Shape: (texts, 16). lengths (Tensor): Units of each text, which are
    in the other tensors one after the other.
    """

    digests: torch.Tensor
    lengths: torch.Tensor
    total: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    updates: torch.Tensor
    hits: torch.Tensor


@dataclass
class _SavedRecord:
    components: dict[str, _Saved]
    left_out: Whole


@dataclass
class Record:
    """The hardness of units, by component and text.

    max_tokens (int): Units that are kept in all. Of more, the hardest half stays, and a sample of the rest.

    Public: `units` (arrays with the fields total, first, last, updates, hits; by component and digest), `left_out`
    (texts that were dropped).
    """

    max_tokens: int
    units: dict[str, dict[Digest, Any]] = field(default_factory=dict)
    left_out: int = 0
    _size: int = 0

    def add(self, component: str, text: Digest, hardness: Any, hits: Any) -> None:
        """Add an update. hardness (ndarray): Of each unit of the text; where it is not finite, it is left out.
        hits (ndarray): Where the annotation was predicted.
        """
        texts, known = self.units.setdefault(component, {}), numpy.isfinite(hardness)
        units = texts.get(text)
        if units is None or len(units) != len(hardness):  # new, or the component has another label
            self._size += len(hardness) - (0 if units is None else len(units))
            units = texts[text] = numpy.zeros(len(hardness), _UNIT)
        hardness, is_first = numpy.where(known, hardness, 0), known & (units["updates"] == 0)
        numpy.copyto(units["first"], hardness, where=is_first)
        numpy.copyto(units["last"], hardness, where=known)
        units["total"] += hardness
        units["updates"] += known
        units["hits"] += hits & known
        if self._size > self.max_tokens:
            self._drop()

    def _drop(self) -> None:
        """Keep the texts with the hardest units in half of the room, and others by their digest in a quarter."""
        texts = [(component, text) for component, found in self.units.items() for text in found]
        texts.sort(key=lambda one: (-float(hardness_of(self.units[one[0]][one[1]]).max(initial=0.0)), one[1]))
        hardest = self._fitting(texts, self.max_tokens // 2)
        rest = sorted(set(texts) - hardest, key=lambda one: one[1])
        for component, text in set(rest) - self._fitting(rest, self.max_tokens // 4):
            self._size -= len(self.units[component].pop(text))
            self.left_out += 1

    def _fitting(self, texts: list[tuple[str, Digest]], room: int) -> set[tuple[str, Digest]]:
        found = set()
        for component, text in texts:
            room -= len(self.units[component][text])
            if room < 0:
                break
            found.add((component, text))
        return found

    # ------------------------------------------------------------------ saving

    def state_dict(self) -> dict[str, Any]:
        found = {}
        for component, texts in self.units.items():
            units = numpy.concatenate([*texts.values(), numpy.zeros(0, _UNIT)])
            digests = numpy.frombuffer(b"".join(texts), "uint8").reshape(-1, _SIZE)
            lengths = numpy.array([len(one) for one in texts.values()], "int64")
            fields = {name: torch.from_numpy(units[name].copy()) for name in _UNIT.names or ()}
            found[component] = {
                "digests": torch.from_numpy(digests.copy()),
                "lengths": torch.from_numpy(lengths),
                **fields,
            }
        return {"components": found, "left_out": self.left_out}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """RAISES (StateError): It is invalid."""
        state = read(_SavedRecord, saved, _WHAT)
        self.units = {component: _texts_of(one) for component, one in state.components.items()}
        self.left_out = state.left_out
        self._size = sum(len(units) for texts in self.units.values() for units in texts.values())

    def to_disk(self, folder: Path) -> None:
        """Write it whole or not at all. folder (Path): Of the run. RAISES (OSError): It can't be written."""
        write_folder(folder / FOLDER, self.state_dict())

    @classmethod
    def from_disk(cls, folder: Path) -> Record:
        """RAISES (StateError): The folder of the run has none, or it is damaged."""
        record = cls(max_tokens=sys.maxsize)
        record.load_state_dict(read_folder(folder / FOLDER))
        return record


def _texts_of(saved: _Saved) -> dict[Digest, Any]:
    """RAISES (StateError): The tensors don't belong together."""
    lengths, names = saved.lengths, _UNIT.names or ()
    columns = {name: getattr(saved, name) for name in names}
    shapes = {tuple(column.shape) for column in columns.values()} | {(int(lengths.sum()),)}
    if len(shapes) > 1 or (lengths < 0).any() or saved.digests.shape != (len(lengths), _SIZE):
        refuse(_WHAT, "", "tensors for the same texts", f"lengths {sorted(shapes)}")
    units = numpy.zeros(int(lengths.sum()), _UNIT)
    for name, column in columns.items():
        units[name] = column.numpy()
    parts = numpy.split(units, lengths.numpy().cumsum())[: len(lengths)]
    return {bytes(key): part.copy() for key, part in zip(saved.digests.numpy(), parts)}


def hardness_of(units: Any) -> Any:
    """The mean over updates, and one of 0: of a unit that few updates reached, less is known. Shape: (units,)."""
    return units["total"] / (units["updates"] + 1)
