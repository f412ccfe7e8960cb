"""The few places where thinc and spaCy hand over to us. No other file touches a class of theirs.

Four functions are replaced, once, when TorchOptimizer is first imported (a config that names it does that). Each replacement does what the
original did, by calling it, unless the optimizer is ours:

- `thinc.model.Model.finish_update`: gives the model's gradients to the optimizer.
- `spacy.training.loop.train_while_improving`: runs our loop.
- `spacy.language.Language.initialize` and `resume_training`: tell the optimizer its pipeline.

A spaCy or thinc that we don't know is left alone, with a warning. Without the hook in thinc every param is updated by itself, as
thinc's own optimizers do; without those in spaCy, once per component.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import spacy.about
import spacy.language
import spacy.training.loop
import thinc
import thinc.model
from thinc.api import Optimizer

from .errors import HostWarning

_MARK = "__thinc_torchopt_hook__"
_ours: type[Optimizer] = type("NoOptimizer", (Optimizer,), {})

# What we replace is what these versions have: module or class, name of the function, its parameters.
_THINC = ("thinc", thinc.__version__, "8.3.", [(thinc.model.Model, "finish_update", "self optimizer")])
_SPACY = (
    "spaCy",
    spacy.about.__version__,
    "3.8.",
    [
        (
            spacy.training.loop,
            "train_while_improving",
            "nlp optimizer train_data evaluate dropout eval_frequency accumulate_gradient patience max_steps exclude "
            "annotating_components before_update",
        ),
        (spacy.language.Language, "initialize", "self get_examples sgd"),
        (spacy.language.Language, "resume_training", "self sgd"),
    ],
)


def install(optimizer_class: type[Optimizer]) -> None:
    """Put the hooks in place. Doing it again changes nothing.

    optimizer_class (type[Optimizer]): For optimizers of this class the hooks take over.
    """
    global _ours
    _ours = optimizer_class
    for host, version, known, functions in (_THINC, _SPACY):
        if not version.startswith(known):
            _leave_alone(host, f"version {known}x", version)
            continue
        changed = [f"{name}({_params_of(owner, name)})" for owner, name, params in functions if _params_of(owner, name) != params]
        if changed:
            _leave_alone(host, "the functions of that version", ", ".join(changed))
            continue
        for owner, name, _ in functions:
            original = getattr(owner, name)
            if not hasattr(original, _MARK):
                hook = functools.wraps(original)(_HOOKS[name](original))
                setattr(hook, _MARK, True)
                setattr(owner, name, hook)


def _leave_alone(host: str, expected: str, found: str) -> None:
    warnings.warn(
        HostWarning(
            f"Can't hook into {host}: expected {expected}, found {found}. TorchOptimizer works without, but updates params in smaller "
            f"portions than one step for the whole pipeline. Install a {host} that thinc-torchopt supports."
        ),
        stacklevel=3,
    )


def _params_of(owner: Any, name: str) -> str:
    function = getattr(owner, name, None)
    return "" if function is None else " ".join(inspect.signature(function).parameters)


def _finish_update(original: Callable[..., None]) -> Callable[..., None]:
    def finish_update(self: thinc.model.Model, optimizer: Any) -> None:
        if isinstance(optimizer, _ours):
            optimizer.finish_update(self)  # type: ignore[attr-defined]
        else:
            original(self, optimizer)

    return finish_update


def _train_while_improving(original: Callable[..., Any]) -> Callable[..., Any]:
    def train_while_improving(nlp: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(optimizer, _ours):
            from .loop import train_while_improving as ours

            return ours(nlp, optimizer, *args, **kwargs)  # type: ignore[arg-type]
        return original(nlp, optimizer, *args, **kwargs)

    return train_while_improving


def _introduce(original: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
    """For a method of Language that hands out an optimizer: tell the optimizer its pipeline."""

    def hook(self: spacy.language.Language, *args: Any, **kwargs: Any) -> Optimizer:
        optimizer = original(self, *args, **kwargs)
        if isinstance(optimizer, _ours):
            optimizer.introduce(self)  # type: ignore[attr-defined]
        return optimizer

    return hook


_HOOKS: dict[str, Callable[[Any], Any]] = {
    "finish_update": _finish_update,
    "train_while_improving": _train_while_improving,
    "initialize": _introduce,
    "resume_training": _introduce,
}
