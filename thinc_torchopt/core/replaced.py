"""Replace functions of thinc and spaCy, once. Each replacement calls the original, or does what it did.

hooks.py lists the functions that are replaced for our optimizer, cli/_train_command.py those of `spacy train`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import spacy.about
import thinc

from .errors import HostWarning

_MARK: Final = "__thinc_torchopt_hook__"
# Their names, versions, and the prefixes of the versions that are supported.
THINC: Final = ("thinc", thinc.__version__, "8.3.")
SPACY: Final = ("spaCy", spacy.about.__version__, "3.8.")


class Replaced(NamedTuple):
    """A function that is replaced.

    owner (Any): Its module or class. name (str): Its name there.
    params (str): The names of its parameters in the supported versions.
    hook_for (Callable): Makes the replacement from the original.
    without (str): The effect if it is not replaced.
    """

    owner: Any
    name: str
    params: str
    hook_for: Callable[[Any], Any]
    without: str

    @property
    def function(self) -> Any:
        """The current function."""
        return getattr(self.owner, self.name, None)

    @property
    def is_in_place(self) -> bool:
        """Whether the current function is ours."""
        return hasattr(self.function, _MARK)

    @property
    def found(self) -> str:
        """The current function, with its parameters."""
        found = () if self.function is None else inspect.signature(self.function).parameters
        return f"{self.name}({' '.join(found)})"

    @property
    def is_known(self) -> bool:
        """Whether it has the expected parameters, or passes any parameters on to the function before it."""
        if self.function is None:
            return False
        found, expected = list(inspect.signature(self.function).parameters.values()), self.params.split()
        if [param.kind for param in found[-2:]] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]:
            found = found[:-2]
            expected = expected[: len(found)]
        return [param.name for param in found] == expected

    def replace(self) -> None:
        """Install the hook."""
        original = self.function
        hook = functools.wraps(original)(self.hook_for(original))
        setattr(hook, _MARK, True)
        setattr(self.owner, self.name, hook)
        # `spacy train` keeps spaCy's `train` under another name.
        command = sys.modules.get("spacy.cli.train")
        if getattr(command, "train_nlp", None) is original:
            command.train_nlp = hook  # type: ignore[union-attr]


def replace(host: str, version: str, known: str, functions: Sequence[Replaced]) -> None:
    """Replace functions of a host. known (str): The prefix of its supported versions."""
    if not version.startswith(known):
        _leave_alone(host, f"version {known}x", version, functions)
        return
    changed = [function for function in functions if not function.is_known]
    if changed:
        found = ", ".join(function.found for function in changed)
        _leave_alone(host, "the functions of that version", found, changed)
    for function in functions:
        if function not in changed and not function.is_in_place:
            function.replace()


def _leave_alone(host: str, expected: str, found: str, functions: Sequence[Replaced]) -> None:
    names = [function.name for function in functions]
    warnings.warn(
        HostWarning(
            f"Can't hook into {host}: expected {expected}, found {found}. Left alone: {', '.join(names)}. Without "
            f"{'it' if len(names) == 1 else 'them'} TorchOptimizer works, with these limits: "
            f"{'; '.join(dict.fromkeys(function.without for function in functions))}. Install a {host} that "
            "thinc-torchopt supports, or remove the code that replaces its functions."
        ),
        stacklevel=4,
    )
