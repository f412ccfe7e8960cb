"""What a training run consists of beside its optimizer and its model: the random generators, the place in the data, how far it got.

An exact resume needs all of it. The data has random generators of its own: spaCy shuffles each epoch with Python's `random`, from which the
parser draws in between, so that one could not be replayed without the other.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from spacy.attrs import DEP, ENT_ID, ENT_IOB, ENT_KB_ID, ENT_TYPE, HEAD, LEMMA, MORPH, ORTH, POS, SENT_START, SPACY, TAG
from spacy.tokens import Doc
from spacy.training import Example

from ..checks import check_parts, own_errors
from ..errors import StateError
from ..progress_bars import show_progress

Batch = tuple[int, list[Example]]


@dataclass
class Progress:
    """How far a run got.

    step (int): The last step that was done; -1 before the first.
    losses (dict): Of each component, added up since the last evaluation.
    results (list): Score and step of each evaluation.
    rollbacks (list): Each time that the training went back: at which step, and to the params of which step.
    counts (dict): What there was of skipped updates and the like at the last evaluation.
    seconds (float): Spent so far, in all parts of the run.
    """

    step: int = -1
    epoch: int = 0
    words: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    results: list[tuple[float, int]] = field(default_factory=list)
    rollbacks: list[tuple[int, int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def is_over(self, patience: int, max_steps: int) -> bool:
        """Whether training is to stop after this step: `patience` steps without a better score, or `max_steps` done. 0: no such limit."""
        best_step = self.best_step
        return bool((patience and best_step is not None and self.step - best_step >= patience) or (max_steps and self.step >= max_steps))

    @property
    def best_step(self) -> int | None:
        """The first step with the best score."""
        return max(self.results, key=lambda result: (result[0], -result[1]))[1] if self.results else None

    def state_dict(self) -> dict[str, Any]:
        losses = {name: _save_loss(loss) for name, loss in self.losses.items()}
        results = [(number, step) for score, step in self.results if (number := _as_float(score)) is not None]
        return {
            **vars(self),
            "losses": {name: saved for name, saved in losses.items() if saved is not None},
            "results": results,
            "rollbacks": list(self.rollbacks),
            "counts": dict(self.counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """RAISES (StateError): Not such a state. Nothing is changed then."""
        check_parts("the progress", state, ("step",), optional=vars(self).keys() - {"step"})
        wrong = [name for name, value in state.items() if not _IS_PROGRESS[name](value)]
        if wrong:
            raise StateError(f"Can't load the state of the progress: expected another kind of '{wrong[0]}', found {state[wrong[0]]!r}.")
        self.__dict__.update(state)
        self.losses = {
            name: loss if dtype is None else numpy.dtype(dtype).type(loss) for name, (loss, dtype) in state.get("losses", {}).items()
        }


def _as_float(value: Any) -> float | None:
    """A score or loss as a float, also from an array or tensor of one element. None: not a number."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _save_loss(loss: Any) -> list[Any] | None:
    # Sums of float32 are other sums than those of float64.
    number = _as_float(loss)
    return None if number is None else [number, loss.dtype.name if isinstance(loss, numpy.generic) else None]


def plain_scores(value: Any) -> Any:
    """Scores as they can be saved, whatever a scorer gives: arrays as lists, and None for what is no number, text, list or dict."""
    if isinstance(value, Mapping):
        return {str(key): plain_scores(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_scores(item) for item in value]
    if hasattr(value, "tolist"):
        value = value.tolist()
        return plain_scores(value) if isinstance(value, list) else value
    return value if value is None or isinstance(value, (bool, int, float, str)) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_pair(value: Any, is_first: Callable[[Any], bool]) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and is_first(value[0]) and _is_count(value[1])


# In what NumPy may have added up losses; None: a plain number.
_LOSSES: tuple[str | None, ...] = (None, "float16", "float32", "float64", "int32", "int64")
_IS_PROGRESS: dict[str, Callable[[Any], bool]] = {
    "step": _is_count,
    "epoch": _is_count,
    "words": _is_count,
    "losses": lambda value: (
        isinstance(value, dict)
        and all(isinstance(loss, list) and len(loss) == 2 and _is_number(loss[0]) and loss[1] in _LOSSES for loss in value.values())
    ),
    "results": lambda value: isinstance(value, list) and all(_is_pair(result, _is_number) for result in value),
    "rollbacks": lambda value: isinstance(value, list) and all(_is_pair(rollback, _is_count) for rollback in value),
    "counts": lambda value: isinstance(value, dict) and all(map(_is_count, value.values())),
    "seconds": _is_number,
}


class DataStream:
    """The batches of a run, drawn with random generators of their own, so that a run that goes on gets the same ones.

    batches (Iterator): Epoch and batch of each step. Replayed from the start: the same generators must give the same batches.

    Public: `position` (how many were drawn).
    """

    def __init__(self, batches: Iterator[Batch]):
        self._batches = batches
        self._start = self._generators = read_generators()
        self._ahead: Batch | None = None
        self.position = 0
        # Checksums: of the texts of the last batch, and of all; and of all with their annotations.
        self._last = self._all = self._annotated = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        (epoch, batch), self._ahead = self._ahead or self._draw(), None
        self.position += 1
        examples = _examples_in(batch)
        texts = "\n".join(example.reference.text for example in examples).encode("utf8")
        self._last, self._all = zlib.crc32(texts), zlib.crc32(b"\0" + texts, self._all)
        for example in examples:
            self._annotated = _checksum(example.reference, self._annotated)
        return epoch, batch

    def _draw(self) -> Batch:
        others = read_generators()
        set_generators(self._generators)
        try:
            drawn = next(self._batches)
            self._generators = read_generators()
        finally:
            set_generators(others)
        return drawn

    @property
    def is_exhausted(self) -> bool:
        """Whether there are no more batches. To find out, one is drawn ahead."""
        try:
            self._ahead = self._ahead or self._draw()
        except StopIteration:
            return True
        return False

    def state_dict(self) -> dict[str, Any]:
        """Where it began, how many batches were drawn, and a checksum of them all."""
        return {"start": _save_generators(self._start), "position": self.position, "all": self._all, "annotated": self._annotated}

    def load_state_dict(self, state: Mapping[str, Any], *, progress_bar: bool = False) -> None:
        """Draw all batches that were drawn before.

        progress_bar (bool): Show how far it is: with much data that takes minutes.
        RAISES (StateError): The data is not what it was.
        """
        self._start = self._generators = _load_generators(state["start"])
        with suppress(StopIteration), show_progress(state["position"], "Reading past batches", wanted=progress_bar) as bar:
            for _ in range(state["position"]):
                next(self)
                bar.update()
        # Earlier versions had a checksum of the texts only, or of those of the last batch.
        checksums = {"annotated": self._annotated, "all": self._all, "last": self._last}
        found, expected = next((found, state[kind]) for kind, found in checksums.items() if kind in state)
        if (self.position, found) != (state["position"], expected):
            raise StateError(
                f"Can't resume in the training data: expected the same {state['position']} batches as in the saved run, found others, or "
                "fewer. The data has changed, or was used up or shuffled in place before, or its reader draws from random "
                "generators other than Python's and NumPy's global ones."
            )


def _examples_in(batch: Any) -> list[Example]:
    """What is compared of a batch. In a loop of the user's own it may be anything."""
    return [example for example in batch if isinstance(example, Example)] if isinstance(batch, (list, tuple)) else []


_OF_TOKENS = [ORTH, SPACY, TAG, POS, MORPH, LEMMA, DEP, HEAD, SENT_START, ENT_IOB, ENT_TYPE, ENT_KB_ID, ENT_ID]


def _checksum(doc: Doc, before: int) -> int:
    """A checksum of a document with its annotations, on top of another. The same in every process."""
    spans = {
        key: [(span.start_char, span.end_char, span.label_, span.kb_id_, span.id_) for span in group] for key, group in doc.spans.items()
    }
    of_tokens = zlib.crc32(doc.to_array(_OF_TOKENS).tobytes(), before)
    return zlib.crc32(repr((sorted(doc.cats.items()), sorted(spans.items()))).encode("utf8"), of_tokens)


# ---------------------------------------------------------------------- random generators

# Of Python's and NumPy's global generators, as they give them.
Generators = tuple[Any, Any]


def read_generators() -> Generators:
    return random.getstate(), numpy.random.get_state()


def set_generators(generators: Generators) -> None:
    random.setstate(generators[0])
    numpy.random.set_state(generators[1])


def _save_generators(generators: Generators) -> dict[str, Any]:
    (version, numbers, gauss), (kind, keys, position, has_gauss, cached) = generators
    return {
        "python": [version, torch.tensor(numbers, dtype=torch.int64), gauss],
        "numpy": [kind, torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached)],
    }


def _load_generators(saved: Mapping[str, Any]) -> Generators:
    version, numbers, gauss = saved["python"]
    kind, keys, *rest = saved["numpy"]
    return (version, tuple(numbers.tolist()), gauss), (kind, keys.numpy().astype("uint32"), *rest)


def check_random(saved: Any) -> None:
    """Check that random generators can be set to saved states, without doing it.

    RAISES (StateError): They can't.
    """
    check_parts("the random generators", saved, ("global", "torch", "cuda"))
    with own_errors("the random generators"):
        check_generators(saved["global"])
        torch.Generator().set_state(saved["torch"])
        for state in saved["cuda"]:
            state.clone()


def check_generators(saved: Any) -> None:
    """As `check_random`, of Python's and NumPy's alone."""
    with own_errors("the random generators"):
        python, of_numpy = _load_generators(saved)
        random.Random().setstate(python)
        numpy.random.RandomState().set_state(of_numpy)


def collect_random() -> dict[str, Any]:
    """The states of all random generators: Python's, NumPy's, torch's, and torch's on each GPU.

    CuPy's can't be read: it is seeded anew, here and in the run that goes on, from Python's.
    """
    _reseed_cupy()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"global": _save_generators(read_generators()), "torch": torch.get_rng_state(), "cuda": cuda}


def restore_random(saved: Mapping[str, Any]) -> None:
    """Set all random generators to saved states."""
    set_generators(_load_generators(saved["global"]))
    _reseed_cupy()
    torch.set_rng_state(saved["torch"].clone())
    if saved["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([generator.clone() for generator in saved["cuda"]])


def _reseed_cupy() -> None:
    if torch.cuda.is_available():
        try:
            import cupy
        except ImportError:
            return
        cupy.random.seed(zlib.crc32(repr(random.getstate()).encode("utf8")))
