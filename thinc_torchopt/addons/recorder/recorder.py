"""The recorder of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from textwrap import shorten
from typing import Any, Final

import numpy
from spacy.tokens import Doc
from spacy.training import Example

from ...core.errors import ConfigError
from ...core.kinds import Kind, kind_in
from ...core.log import inform
from ...core.params import trainable_components, unescape
from ...core.record import Digest, Record, digest
from ...core.state import advice_on
from ...loop.events import Control, Evaluate, OptimizerStep, Save, StepEnd, TrainBegin
from ...loop.run import Run
from .signals import Signal, is_recorded, listening

# Texts that are named when an update is skipped, or the run goes back.
_NAMED: Final = 3
# Signals that may wait on a GPU until they are read.
_WAITING: Final = 256


@dataclass
class _Part:
    """A signal. digests (list): Of its docs."""

    step: int
    component: str
    digests: list[Digest]
    signal: Signal


class RunRecorder:
    """Collects the signals of a run. A listener.

    max_tokens (int): From the config. run (Run): The run.
    """

    name = "recorder"

    def __init__(self, max_tokens: int, run: Run):
        self._run = run
        self._record = Record(max_tokens)
        self._examples: list[tuple[Example, Digest]] = []
        self._kinds: dict[str, Kind] = {}
        self._waiting: list[_Part] = []
        self._told: set[str] = set()

    def on_train_begin(self, event: TrainBegin, control: Control) -> None:
        """RAISES (ConfigError): The run has no folder."""
        if self._run.ranks.writes and self._run.models.folder is None:
            raise ConfigError(
                "Can't use [training.optimizer.recorder]: expected a folder for the record, found a training without "
                "--output. Add it: spacy train config.cfg --output training/config."
            )

    # ------------------------------------------------------------------ one step

    @contextmanager
    def around_part(self, examples: Sequence[Example]) -> Iterator[None]:
        """Listen to all components that are trained."""
        self._examples = [(example, digest(example)) for example in examples]
        nlp = self._run.nlp
        with ExitStack() as stack:
            for escaped, model in trainable_components(nlp, self._run.exclude):
                name = unescape(escaped)
                kind = self._kinds.get(name) or self._kinds.setdefault(name, kind_in(nlp, name))
                if is_recorded(kind):
                    stack.enter_context(listening(model, kind, partial(self._receive, name)))
                elif not hasattr(nlp.get_pipe(name), "listeners"):  # as those have that others listen to
                    self._tell(f"Component '{name}' is not recorded: its factory, '{kind.factory}', is none that is.")
            yield

    def _receive(self, component: str, signal: Signal) -> None:
        digests, rest = [], iter(self._examples)
        for doc in signal.docs:
            found = next((key for example, key in rest if _is_same(doc, example.predicted)), None)
            if found is None:
                self._tell(f"Texts of component '{component}' are not recorded: it gets others than the batch has.")
                return
            digests.append(found)
        self._waiting.append(_Part(self._run.progress.step, component, digests, signal))

    def on_optimizer_step(self, event: OptimizerStep, control: Control) -> None:
        if event.skipped:
            self._name_texts("was skipped")

    def on_step_end(self, event: StepEnd, control: Control) -> None:
        rollbacks = self._run.progress.rollbacks
        if rollbacks and rollbacks[-1][0] == self._run.progress.step:
            self._name_texts("was given up: the training went back")
        if self._run.ranks.size > 1 or len(self._waiting) > _WAITING:
            self._merge()

    def _name_texts(self, what: str) -> None:
        """Log the texts of this step with the largest gradients."""
        step, hardest = self._run.progress.step, dict[str, tuple[float, str]]()
        for part in self._waiting:
            for doc, (hardness, _) in zip(part.signal.docs, part.signal.by_text()) if part.step == step else ():
                found = float(numpy.nan_to_num(hardness, nan=math.inf).max(initial=0.0)), part.component
                hardest[doc.text] = max(hardest.get(doc.text, found), found)
        for text in sorted(hardest, key=lambda text: hardest[text], reverse=True)[:_NAMED]:
            size, component = hardest[text]
            shown = shorten(text, 80, placeholder=" ...")
            inform("Step %d %s. A text with large gradients (%s: %.3g): %s", step, what, component, size, shown)

    # ------------------------------------------------------------------ the record

    def on_evaluate(self, event: Evaluate, control: Control) -> None:
        self._write()

    def on_save(self, event: Save, control: Control) -> None:
        self._write()

    def _write(self) -> None:
        self._merge()
        folder = self._run.models.folder
        if self._run.ranks.writes and folder is not None:
            try:
                self._record.to_disk(folder)
            except OSError as error:
                self._tell(f"The record can't be written: {error}. {advice_on(error)}")

    def _merge(self) -> None:
        """Add what waits in all processes."""
        for rows in self._run.ranks.gather(self._read()):
            for row in rows:
                self._record.add(*row)

    def _read(self) -> list[tuple[str, Digest, Any, Any]]:
        """Read the waiting signals of this process from their device."""
        waiting, self._waiting = self._waiting, []
        return [
            (part.component, key, hardness, hits)
            for part in waiting
            for key, (hardness, hits) in zip(part.digests, part.signal.by_text())
        ]

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            inform("Recorder: %s", message)

    def state_dict(self) -> dict[str, Any]:
        for row in self._read():
            self._record.add(*row)
        return self._record.state_dict()

    def load_state_dict(self, saved: Any) -> None:
        """RAISES (StateError): It is invalid."""
        self._record.load_state_dict(saved)


def _is_same(doc: Doc, other: Doc) -> bool:
    """Whether a text is another one, or a copy of it."""
    return doc is other or (len(doc) == len(other) and doc.text == other.text)
