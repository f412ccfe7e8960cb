"""Replace functions of thinc and spaCy, once. Each replacement calls the original, or does what it did.

hooks.py lists the functions that are replaced for our optimizer, cli/_train_command.py those of `spacy train`.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FunctionType, ModuleType
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
        """Whether the current function is ours, or one of another package that can call ours."""
        return any(map(self._is_ours, _callables_of(self.function)))

    @property
    def was_put_back(self) -> bool:
        """Whether it was replaced, and is no longer in place."""
        return (self.owner, self.name) in _replaced and not self.is_in_place

    def _is_ours(self, function: Any) -> bool:
        """`functools.wraps` copies our mark to other functions, and two classes have functions of one name."""
        return getattr(function, _MARK, None) == (id(function), self.owner, self.name)

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
        setattr(hook, _MARK, (id(hook), self.owner, self.name))
        setattr(self.owner, self.name, hook)
        _replaced.add((self.owner, self.name))
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


# Places of functions that were replaced.
_replaced: set[tuple[Any, str]] = set()


def warn_of_put_back(functions: Sequence[Replaced]) -> None:
    """Warn of functions that another package has put back or replaced since."""
    if found := [function for function in functions if function.was_put_back]:
        names = ", ".join(f"{function.name} (from {_origin(function.function)})" for function in found)
        effects = "; ".join(dict.fromkeys(function.without for function in found))
        warnings.warn(
            HostWarning(
                f"Functions of thinc and spaCy are no longer replaced by ours: {names}. Other code has put back a "
                f"function that it had saved, or its own does not call ours. The effects: {effects}. Remove that code, "
                "or import thinc_torchopt after it has put its functions back."
            ),
            stacklevel=3,
        )


def _origin(function: Any) -> str:
    return str(getattr(getattr(function, "__code__", None), "co_filename", None) or type(function).__module__)


def _callables_of(function: Any) -> Iterator[Any]:
    """A function, and those that it may call as a wrapper does: from its closure, its globals, or its attributes."""
    found, seen = [function], dict[int, Any]()
    while found:
        one = found.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, (list, tuple, dict)):
            found += one.values() if isinstance(one, dict) else one
        if not callable(one) or isinstance(one, type):
            continue
        yield one
        if isinstance(one, FunctionType):
            if str(one.__globals__.get("__name__")).partition(".")[0] in _HOSTS:
                continue  # its module, where `functools.wraps` has copied another's to `__module__`
            # Not `__wrapped__`: it may be set to ours by a function that does not call it.
            with suppress(ValueError):  # a name that has no value yet
                names = inspect.getclosurevars(one)
                used = [*names.nonlocals.values(), *names.globals.values()]
                found += [*used, *(vars(value) for value in used if _is_plain_object(value))]
            found += [one.__defaults__, one.__kwdefaults__]
        else:
            found += [getattr(one, name, None) for name in ("func", "__wrapped__", "__func__", "__dict__")]
            found += [getattr(getattr(one, "__self__", None), "__dict__", None), vars(type(one)).get("__call__")]


_HOSTS: Final = ("thinc", "spacy", "thinc_torchopt")


def _is_plain_object(value: Any) -> bool:
    return hasattr(value, "__dict__") and not callable(value) and not isinstance(value, ModuleType)


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
