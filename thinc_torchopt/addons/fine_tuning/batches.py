"""Windows of similar length run through the transformer together, so that a long one does not pad the others.

The windows of a batch are sorted by length, and split so that each part has at most so many wordpieces, with padding.
torch's module reads one part after the other, inside its forward pass: its outputs are in the order of the inputs, and
there is one backward pass, with the same gradients as without parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from types import MethodType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Less padding takes more parts, each of which takes its time on a GPU.
_PADDING = 0.25
_AT_MOST = "_thinc_torchopt_pieces_at_once"


def split_by_length(lengths: Sequence[int], at_most: int) -> list[list[int]]:
    """Split windows into parts of similar length: indices, the longest first.

    lengths (Sequence[int]): The length of each window.
    at_most (int): The most wordpieces of a part, with padding. A longer window is a part of its own.
    RETURNS (list[list[int]]): Parts of which at most a quarter is padding.
    """
    parts: list[list[int]] = []
    longest = text = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padded = longest * (len(parts[-1]) + 1) if parts else 0
        if parts and padded <= at_most and text + lengths[i] >= (1 - _PADDING) * padded:
            parts[-1].append(i)
            text += lengths[i]
        else:
            parts.append([i])
            longest = text = lengths[i]
    return parts


def run_in_parts(module: torch.nn.Module, at_most: int) -> None:
    """Let a transformer read the windows of each batch in parts, until `run_at_once` is called.

    module (Module): That of Hugging Face or of curated-transformers.
    at_most (int): The most wordpieces of a part, with padding.
    """
    is_curated = type(module).__module__.startswith("curated_transformers.")
    # A method, not a closure: a deep copy of the module reads with its own params.
    module.__dict__ |= {_AT_MOST: at_most, "forward": MethodType(_curated if is_curated else _hugging_face, module)}


def run_at_once(module: torch.nn.Module) -> None:
    """Let a transformer read all windows of a batch at once again, also inside a function that other code has put
    around ours.
    """
    if runs_in_parts(module):
        del module.__dict__[_AT_MOST]
        if getattr(vars(module).get("forward"), "__func__", None) in (_curated, _hugging_face):
            del module.__dict__["forward"]


def runs_in_parts(module: torch.nn.Module) -> bool:
    return _AT_MOST in module.__dict__


# ---------------------------------------------------------------------- forward passes


def _hugging_face(self: Any, **inputs: Tensor) -> Any:
    """SOURCE: spacy_transformers/layers/transformer_model.py, `_convert_transformer_inputs`."""
    forward, parts = type(self).forward, _parts_of(self, inputs["attention_mask"])
    if len(parts) < 2:
        return forward(self, **inputs)
    outputs = [forward(self, **{key: part.of(value) for key, value in inputs.items()}) for part in parts]
    merged = {
        key: _merge(found, parts, is_square=key.endswith("attentions"))
        for key, found in ((key, [output[key] for output in outputs]) for key in outputs[0])
        if all(_is_by_rows(value, len(part.rows)) for value, part in zip(found, parts))
    }
    return type(outputs[0])(**merged)


def _is_by_rows(value: Any, rows: int) -> bool:
    """Whether an output is of windows: spacy-transformers takes no others, such as GPT-2's and XLNet's caches.

    SOURCE: spacy_transformers/data_classes.py (1.4.0), `FullTransformerBatch.split_by_doc`.
    """
    tensors = value if isinstance(value, tuple) else (value,)
    return all(isinstance(one, Tensor) and one.shape[:1] == (rows,) for one in tensors)


def _curated(self: Any, piece_ids: Tensor, attention_mask: Any = None, *others: Any) -> Any:
    """SOURCE: curated_transformers/models/curated_transformer.py (0.1.1), which gives no mask: the model makes it; and
    spacy_curated_transformers/models/architectures.py (2.1.2), `_convert_inputs`.
    """
    is_given = attention_mask is not None
    mask = attention_mask.bool_mask[:, 0, 0, :] if is_given else piece_ids.ne(self.padding_idx)
    forward, parts = type(self).forward, _parts_of(self, mask)
    if len(parts) < 2:
        return forward(self, piece_ids, attention_mask, *others)
    outputs = [
        forward(self, part.of(piece_ids), *([type(attention_mask)(part.of(mask))] if is_given else []))
        for part in parts
    ]
    merged = copy(outputs[0])
    merged.all_outputs = [_merge([*one], parts) for one in zip(*(output.all_outputs for output in outputs))]
    return merged


class _Part(NamedTuple):
    """Windows that are read together. rows (Tensor): Their indices. begin, end (int): Their columns. length (int): The
    number of columns in the whole batch.
    """

    rows: Tensor
    begin: int
    end: int
    length: int

    def of(self, inputs: Tensor) -> Tensor:
        """Shape: (rows, end - begin). inputs (Tensor): Those of the whole batch."""
        return inputs[self.rows, self.begin : self.end]


def _parts_of(module: torch.nn.Module, mask: Tensor) -> list[_Part]:
    """mask (Tensor): Of the wordpieces that are not padding. Shape: (windows, length).

    RETURNS (list[_Part]): Empty: all windows at once.
    """
    if not runs_in_parts(module):
        return []
    mask, length = mask.bool(), mask.shape[1]
    parts = []
    for rows in split_by_length(mask.sum(1).tolist(), module.__dict__[_AT_MOST]):
        index = torch.tensor(rows, device=mask.device)
        used = mask[index].any(0).nonzero()  # some tokenizers pad on the left
        begin, end = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, length)
        parts.append(_Part(index, begin, end, length))
    return parts


def _merge(found: Sequence[Any], parts: Sequence[_Part], *, is_square: bool = False) -> Any:
    """Put the outputs of parts together, in the order of the inputs.

    found (Sequence): A tensor of each part, or a tuple of them. Shape: (rows, end - begin, width), or (rows, width).
    is_square (bool): Shape: (rows, heads, end - begin, end - begin).
    RETURNS (Tensor | tuple): Padded with zeros.
    """
    if isinstance(found[0], tuple):
        return tuple(_merge(layer, parts, is_square=is_square) for layer in zip(*found))
    padded = []
    for tensor, part in zip(found, parts):
        around = part.begin, part.length - part.end
        if is_square:
            tensor = F.pad(tensor, (*around, *around))
        elif tensor.ndim == 3:
            tensor = F.pad(tensor, (0, 0, *around))
        padded.append(tensor)
    return torch.cat(padded)[torch.cat([part.rows for part in parts]).argsort()]
