"""Find components that are trained and learn nothing, whatever the reason: they get no gradient, or only zeros.

One is found after a whole epoch of at least `LEAST_BATCHES` batches (after several shorter ones), or after
`MOST_BATCHES`, since it is trained; those before a run was resumed count. That is an error. It is a warning with
`allow_untrainable`, if the run ends before, and of components that may know everything: those with a 'source', and
those that give each word a label and have only one.

A tok2vec gets only zeros in the first batches: output layers begin with weights of 0, and rates may, too.

A gradient counts if its param is in no other component: a shared tok2vec gets its gradients from others. One that is
not finite counts, too. Updates that were skipped don't count as batches. A component that got a gradient is never
looked at again, so a GPU is waited for about once in a run. In a private training all gradients have noise: nothing is
found.

This sees nothing of a span categorizer that is only told which spans have no label: that is a gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from spacy.language import Language

from ..core.errors import ConfigError, PipelineWarning
from ..core.hooks import resumed_components
from ..core.kinds import kind_in
from ..core.params import Param, escape, in_order
from ..core.schema import Count, read, write
from ..core.words import listed
from .components import is_trained
from .events import Control, EpochBegin, EpochEnd, OptimizerStep, PreOptimizerStep, TrainEnd
from .training_check import how_to_allow

LEAST_BATCHES: Final = 10
MOST_BATCHES: Final = 200


@dataclass
class GradientState:
    """The saved state.

    done (list[str]): The components that got a gradient, or had their warning.
    batches (dict): How many batches others were trained on.
    in_epoch, left_out (int): The batches of this epoch; those that were left out before it.
    """

    done: list[str] = field(default_factory=list)
    batches: dict[str, Count] = field(default_factory=dict)
    in_epoch: Count = 0
    left_out: Count = 0


class GradientCheck:
    """The check of one run. A listener."""

    name = "gradient check"

    def __init__(self) -> None:
        self._state = GradientState()
        self._found: set[str] = set()  # those that got a gradient in this process, and are not `done`
        self._waiting: list[str] = []  # those that are trained in this step, and are not `done`

    def on_epoch_begin(self, event: EpochBegin, control: Control) -> None:
        self._state.in_epoch, self._state.left_out = 0, event.run.progress.left_out

    def on_pre_optimizer_step(self, event: PreOptimizerStep, control: Control) -> None:
        """Look for gradients of components that had none so far."""
        run = event.run
        open_ones = {
            escape(name): name
            for name, pipe in run.nlp.pipeline
            if name not in run.exclude and name not in self._state.done and is_trained(pipe)
        }
        self._waiting = []
        if not open_ones:
            return
        owners = {_owner(param) for param in run.optimizer.trained_params}
        self._waiting = [name for escaped, name in open_ones.items() if escaped in owners]
        with in_order():
            for param in run.optimizer.params_to_update if self._waiting else ():
                name = open_ones.get(_owner(param), "")
                if name and name not in self._found and bool(param.grad.any()):
                    self._found.add(name)

    def on_optimizer_step(self, event: OptimizerStep, control: Control) -> None:
        if event.skipped:
            return
        batches = self._state.batches
        self._state.in_epoch += 1
        for name in self._waiting:
            batches[name] = batches.get(name, 0) + 1
        # After 1, 2, 4 ... batches: processes need not agree on it at each.
        if any((n := batches[name]) >= MOST_BATCHES or n & (n - 1) == 0 for name in self._waiting):
            self._tell_of_those_with(MOST_BATCHES, event.run)

    def on_epoch_end(self, event: EpochEnd, control: Control) -> None:
        if self._state.in_epoch and self._state.left_out == event.run.progress.left_out:
            self._tell_of_those_with(self._state.in_epoch, event.run)

    def on_train_end(self, event: TrainEnd, control: Control) -> None:
        self._tell_of_those_with(0, event.run, is_over=True)

    def _tell_of_those_with(self, least: int, run: Any, *, is_over: bool = False) -> None:
        """Tell, once, of components that got no gradient in so many batches. is_over (bool): The run ends by itself.

        RAISES (ConfigError): One of them is refused.
        """
        state, nlp = self._state, run.nlp
        if not state.batches:
            return
        self._finish(run.ranks.of_any(self._found))
        self._found = set()
        least = max(least, LEAST_BATCHES)
        names = [name for name, number in state.batches.items() if number >= least and name in nlp.pipe_names]
        told = {name: _in_words(nlp, name, state.batches[name]) for name in names}
        may_go_on = is_over or run.optimizer.allow_untrainable
        refused = [text for name, text in told.items() if not (may_go_on or _may_know_all(nlp, name))]
        if refused:
            lines = "\n".join(f"Can't train: {text}" for text in refused)
            raise ConfigError(lines + how_to_allow(nlp.config.interpolate()))
        self._finish(told)
        for text in told.values():
            warnings.warn(PipelineWarning(text), stacklevel=5)

    def _finish(self, names: Iterable[str]) -> None:
        self._state.done = sorted({*self._state.done, *names})
        for name in names:
            self._state.batches.pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        done = sorted({*self._state.done, *self._found})
        batches = {name: number for name, number in self._state.batches.items() if name not in self._found}
        return write(GradientState(done, batches, self._state.in_epoch, self._state.left_out))

    def load_state_dict(self, saved: Any) -> None:
        """RAISES (StateError): The state is invalid."""
        self._state = read(GradientState, saved, "the state of the gradient check")


def _may_know_all(nlp: Language, name: str) -> bool:
    pipe = nlp.get_pipe(name)
    has_one = kind_in(nlp, name).is_of_each_word and len(getattr(pipe, "labels", ())) == 1
    listening = getattr(pipe, "listening_components", ())
    return has_one or name in resumed_components(nlp) or any(_may_know_all(nlp, one) for one in listening)


def _in_words(nlp: Language, name: str, number: int) -> str:
    """number (int): Of batches."""
    return (
        f"'{name}' learns nothing: all its gradients were 0, or it had none, in {number:,} "
        f"batch{'es' * (number != 1)}. {_needs(nlp, name)} Or remove it from [nlp] pipeline."
    )


def _needs(nlp: Language, name: str) -> str:
    kind = kind_in(nlp, name)
    if not kind.is_known and (heard := getattr(nlp.get_pipe(name), "listening_components", None)):
        return f"It learns what {listed(heard)} need, and gets no gradient of theirs."
    return kind.needs(name)


def _owner(param: Param) -> str:
    """The only component that has a param, as in its names. Empty: several have it."""
    component = param.component
    return component if all(alias.partition("/")[0] == component for alias in param.aliases) else ""
