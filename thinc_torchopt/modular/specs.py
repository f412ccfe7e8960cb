"""From what a user writes to modules and regularizers: instances, names, pairs of a name and its settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ..errors import ConfigArgumentError, ConfigError, ConfigKeyError, ConfigTypeError
from ..near_misses import did_you_mean
from ..registry import registry
from .module import Module, Part, Regularizer
from .modules import MODULES
from .regularizers import REGULARIZERS

P = TypeVar("P", bound=Part)
REGISTRIES = {Module: "gradient_modules", Regularizer: "regularizers"}


def build_parts(specs: Any, base: type[P]) -> list[P]:
    """Modules, or regularizers.

    specs (Sequence | Mapping | None): Of each an instance, its name, or a pair of its name and its settings. A mapping
        gives them labels. None: none.
    base (type): `Module` or `Regularizer`.
    RAISES (ConfigTypeError, ConfigKeyError, ConfigError): One can't be made of it.
    """
    what = f"{base.kind}s"
    if specs is None:
        return []
    if isinstance(specs, Mapping):
        return [build_part(spec, base).named(str(label)) for label, spec in specs.items()]  # type: ignore[misc]
    if isinstance(specs, (str, bytes)) or not isinstance(specs, Sequence):
        raise ConfigTypeError(f'Can\'t read the {what}: expected a list, as in ["{example(base)}"], found {specs!r}.')
    return [build_part(spec, base) for spec in specs]


def build_part(spec: Any, base: type[P]) -> P:
    """A module, or a regularizer, from one specification."""
    if isinstance(spec, base):
        return spec
    name, settings = (spec, {}) if isinstance(spec, str) else pair(spec, base)
    cls = find_class(name, base)
    accepted = inspect.signature(cls).parameters
    unknown = sorted(key for key in settings if key not in accepted)
    if unknown and not any(param.kind is param.VAR_KEYWORD for param in accepted.values()):
        raise ConfigArgumentError(
            f"Can't make the {base.kind} '{name}': expected some of {', '.join(accepted) or 'no settings'}, found "
            f"{', '.join(map(str, unknown))}.{did_you_mean(unknown[0], accepted)}"
        )
    missing = sorted(
        key
        for key, param in accepted.items()
        if param.default is param.empty
        and param.kind not in (param.VAR_KEYWORD, param.VAR_POSITIONAL)
        and key not in settings
    )
    if missing:
        raise ConfigArgumentError(f"Can't make the {base.kind} '{name}': expected also {', '.join(missing)}.")
    made = cls(**settings)
    if not isinstance(made, base):
        raise ConfigTypeError(f"Can't make the {base.kind} '{name}': expected a {base.kind}, found {made!r}.")
    return made


def find_class(name: str, base: type[P]) -> Any:
    """What makes a part, by its name, or by that under which another package registered it."""
    known: Mapping[str, Any] = MODULES if base is Module else REGULARIZERS
    if name in known:
        return known[name]
    in_config = getattr(registry, REGISTRIES[base])
    if name in in_config:
        return in_config.get(name)
    raise ConfigKeyError(
        f"Can't make the {base.kind} '{name}': expected one of {', '.join(sorted(known))}, or a name registered in "
        f"@{REGISTRIES[base]}, found '{name}'.{did_you_mean(name, known)}"
    )


def pair(spec: Any, base: type[Part]) -> tuple[str, Mapping[str, Any]]:
    if isinstance(spec, (tuple, list)) and len(spec) == 2 and isinstance(spec[0], str) and isinstance(spec[1], Mapping):
        return spec[0], spec[1]
    raise ConfigTypeError(
        f"Can't make a {base.kind}: expected an instance, a name, or a pair of a name and a dict of settings, found "
        f"{spec!r}."
    )


def example(base: type[Part]) -> str:
    return "adam" if base is Module else "ridge"


def with_labels(parts: Sequence[Part]) -> list[Part]:
    """Give parts that have the same label others: "momentum", "momentum_2".

    RAISES (ConfigError): Two were given the same label, or their options would have the same name in a param group.
    """
    found: list[Part] = []
    for part in parts:
        label, n = re.sub(r"\W+", "_", part.label), 1
        while same := [other for other in found if other.label == label]:
            if part._label is not None:
                raise ConfigError(
                    f"Can't use {same[0].where} and {part.where}: expected two labels that differ by more than signs, "
                    f"found '{label}' for both. Give one of them another name."
                )
            n += 1
            label = f"{re.sub(r'[^a-zA-Z0-9_]+', '_', part.label)}_{n}"
        found.append(part if part.label == label else part.named(label))
    names = [name for part in found for name in options_in_group(part)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"Can't tell the options {', '.join(twice)} apart: expected labels of modules and regularizers that give "
            "each option another name. Choose other labels."
        )
    return found


def options_in_group(part: Part) -> dict[str, Any]:
    """The options of a part, by their names in a param group, with their values."""
    return {f"{part.label}_{key}": value for key, value in {**part.options, "enabled": True}.items()}
