"""Build modules and regularizers from instances, names, or pairs of a name and its settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ...core.errors import ConfigArgumentError, ConfigError, ConfigKeyError, ConfigTypeError
from ...core.near_misses import did_you_mean
from ...core.registry import registry
from . import clipping, moments, regularizers, scaffold, torch_optim  # noqa: F401, they define the classes
from .module import ModularPart, Module, Regularizer

P = TypeVar("P", bound=ModularPart)
REGISTRIES = {Module: "gradient_modules", Regularizer: "regularizers"}


def _named_classes(base: type[P]) -> Iterator[type[P]]:
    """The classes of parts with a `name` in their body."""
    for cls in base.__subclasses__():
        if vars(cls).get("name"):
            yield cls
        yield from _named_classes(cls)


# Ours. Classes of users are defined later.
MODULES: dict[str, type[Module]] = {cls.name: cls for cls in _named_classes(Module)}
REGULARIZERS: dict[str, type[Regularizer]] = {cls.name: cls for cls in _named_classes(Regularizer)}


def build_parts(specs: Any, base: type[P], section: str = "") -> list[P]:
    """Build modules or regularizers.

    specs (Sequence | Mapping | None): Instances, names, or pairs of a name and its settings. The keys of a mapping are
        their labels. None: none.
    base (type): `Module` or `Regularizer`.
    section (str): The section of a config that has theirs, as "[training.optimizer.algorithm]".
    RAISES (ConfigTypeError, ConfigKeyError, ConfigError): A specification is invalid.
    """
    if specs is None:
        return []
    if isinstance(specs, Mapping):
        found: list[Any] = []
        for label, spec in specs.items():
            where = f"{section[:-1]}.{base.kind}s.{label}]" if section else None
            found.append(build_part(spec, base, where).named(str(label), where))
        return found
    if isinstance(specs, (str, bytes)) or not isinstance(specs, Sequence):
        raise ConfigTypeError(f"Can't read the {base.kind}s: expected a list of names, found {specs!r}.")
    return [build_part(spec, base) for spec in specs]


def build_part(spec: Any, base: type[P], where: str | None = None) -> P:
    """Build a module or regularizer from one specification. where (str | None): Its block in a config."""
    if isinstance(spec, base):
        return spec
    given, spec = spec, (spec, {}) if isinstance(spec, str) else spec
    is_pair = isinstance(spec, (tuple, list)) and len(spec) == 2
    if not is_pair or not isinstance(spec[0], str) or not isinstance(spec[1], Mapping):
        example = f'@{REGISTRIES[base]} = "thinc-torchopt.{"Adam" if base is Module else "Ridge"}.v1"'
        expected = "an instance, a name, or a pair of a name and a dict of settings"
        found = f"the {given.kind} {given.name!r}" if isinstance(given, ModularPart) else repr(given)
        raise ConfigTypeError(
            f"Can't make {where or f'a {base.kind}'}: expected {f'a block with {example}' if where else expected}, "
            f"found {found}."
        )
    name, settings = spec
    cls = find_class(name, base)
    accepted = inspect.signature(cls)
    try:
        accepted.bind(**settings)
    except TypeError as error:
        raise ConfigArgumentError(
            f"Can't make the {base.kind} '{name}': {error}. Settings: {', '.join(accepted.parameters) or 'none'}."
        ) from error
    made = cls(**settings)
    if not isinstance(made, base):
        raise ConfigTypeError(f"Can't make the {base.kind} '{name}': expected a {base.kind}, found {made!r}.")
    return made


def find_class(name: str, base: type[P]) -> Any:
    """The class or function of a part, by its name or its registered name.

    RAISES (ConfigKeyError): There is none.
    """
    known: dict[str, Any] = _classes(base)
    if name in known:
        return known[name]
    in_config = getattr(registry, REGISTRIES[base])
    if name in in_config:
        return in_config.get(name)
    raise ConfigKeyError(
        f"Can't make the {base.kind} '{name}': expected one of {', '.join(sorted(known))}, or a name registered in "
        f"@{REGISTRIES[base]}, found '{name}'.{did_you_mean(name, known)}"
    )


def list_optim_modules() -> dict[str, type[Module]]:
    """All modules by name, your own classes too."""
    return _classes(Module)


def list_optim_regularizers() -> dict[str, type[Regularizer]]:
    """All regularizers by name, your own classes too."""
    return _classes(Regularizer)


def _classes(base: type[P]) -> dict[str, type[P]]:
    """The classes of parts by name. A class of the user is found by the `name` in its body; of several, the one that
    was defined last.
    """
    ours: dict[str, Any] = dict(MODULES if base is Module else REGULARIZERS)
    return {**{cls.name: cls for cls in _named_classes(base)}, **ours}


def check_can_be_built_again(part: ModularPart) -> None:
    """RAISES (ConfigError): Another class would be built from the name of this part."""
    base = Module if isinstance(part, Module) else Regularizer
    found = _classes(base).get(part.name)
    if found is not type(part):
        raise ConfigError(
            f"Can't make a config of {part.where}: expected a class with a name of its own, found "
            f"{type(part).__qualname__}, which has {'none' if found is None else f'that of {found.__qualname__}'}. Set "
            "'name' in the class."
        )


def with_labels(parts: Sequence[ModularPart]) -> list[ModularPart]:
    """Make labels unique: "momentum", "momentum_2".

    RAISES (ConfigError): Two parts were given the same label, or their options would have the same name in a param
        group.
    """
    found: list[ModularPart] = []
    for part in parts:
        label, n = re.sub(r"\W+", "_", part.label), 1
        while same := [other for other in found if other.label == label]:
            if part._label is not None:
                raise ConfigError(
                    f"Can't use {same[0].where} and {part.where}: both have the label '{label}' (only letters, digits "
                    "and underscores count). Rename one of them."
                )
            n += 1
            label = f"{re.sub(r'[^a-zA-Z0-9_]+', '_', part.label)}_{n}"
        found.append(part if part.label == label else part.named(label))
    names = [name for part in found for name in options_in_group(part)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"Can't tell the options {', '.join(twice)} apart: several modules or regularizers have an option of that "
            "name. Choose other labels."
        )
    return found


def options_in_group(part: ModularPart) -> dict[str, Any]:
    """The options of a part, by their names in a param group."""
    return {f"{part.label}_{key}": value for key, value in {**part.options, **part.moving, "enabled": True}.items()}
