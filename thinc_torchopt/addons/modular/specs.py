"""Build modules and regularizers from instances, names, or pairs of a name and its settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ...core.errors import ConfigArgumentError, ConfigError, ConfigKeyError, ConfigTypeError
from ...core.near_misses import did_you_mean
from ...core.registry import registry
from .clipping import AGC, Centralize, GaussianNoise, L2Clipping, L2GlobalClipping
from .module import ModularPart, Module, Regularizer
from .moments import EWMA, AdaGrad, Adam, Lion, Lookahead, Momentum, RMSProp, Yogi, YogiMomentum
from .regularizers import REGULARIZERS
from .scaffold import ScaffoldClient, ScaffoldServer
from .torch_optim import TorchOptim

P = TypeVar("P", bound=ModularPart)
MODULES: dict[str, type[Module]] = {
    cls.name: cls
    for cls in (
        AdaGrad,
        Adam,
        AGC,
        Centralize,
        EWMA,
        GaussianNoise,
        L2Clipping,
        L2GlobalClipping,
        Lion,
        Lookahead,
        Momentum,
        RMSProp,
        ScaffoldClient,
        ScaffoldServer,
        TorchOptim,
        Yogi,
        YogiMomentum,
    )
}
REGISTRIES = {Module: "gradient_modules", Regularizer: "regularizers"}


def build_parts(specs: Any, base: type[P]) -> list[P]:
    """Build modules or regularizers.

    specs (Sequence | Mapping | None): Instances, names, or pairs of a name and its settings. The keys of a mapping are
        their labels. None: none.
    base (type): `Module` or `Regularizer`.
    RAISES (ConfigTypeError, ConfigKeyError, ConfigError): A specification is invalid.
    """
    what = f"{base.kind}s"
    if specs is None:
        return []
    if isinstance(specs, Mapping):
        return [build_part(spec, base).named(str(label)) for label, spec in specs.items()]  # type: ignore[misc]
    if isinstance(specs, (str, bytes)) or not isinstance(specs, Sequence):
        example = "adam" if base is Module else "ridge"
        raise ConfigTypeError(f'Can\'t read the {what}: expected a list, as in ["{example}"], found {specs!r}.')
    return [build_part(spec, base) for spec in specs]


def build_part(spec: Any, base: type[P]) -> P:
    """Build a module or regularizer from one specification."""
    if isinstance(spec, base):
        return spec
    spec = (spec, {}) if isinstance(spec, str) else spec
    is_pair = isinstance(spec, (tuple, list)) and len(spec) == 2
    if not is_pair or not isinstance(spec[0], str) or not isinstance(spec[1], Mapping):
        raise ConfigTypeError(
            f"Can't make a {base.kind}: expected an instance, a name, or a pair of a name and a dict of settings, "
            f"found {spec!r}."
        )
    name, settings = spec
    cls = find_class(name, base)
    check_arguments(f"the {base.kind} '{name}'", inspect.signature(cls).parameters, settings)
    made = cls(**settings)
    if not isinstance(made, base):
        raise ConfigTypeError(f"Can't make the {base.kind} '{name}': expected a {base.kind}, found {made!r}.")
    return made


def check_arguments(what: str, accepted: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]) -> None:
    """RAISES (ConfigArgumentError): A setting is unknown, or missing."""
    unknown = sorted(key for key in settings if key not in accepted)
    if unknown and not any(param.kind is param.VAR_KEYWORD for param in accepted.values()):
        raise ConfigArgumentError(
            f"Can't make {what}: expected some of {', '.join(accepted) or 'no settings'}, found "
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
        raise ConfigArgumentError(f"Can't make {what}: {', '.join(missing)} must be given.")


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
    theirs = {cls.name: cls for cls in _subclasses(base) if vars(cls).get("name") and cls not in ours.values()}
    return {**theirs, **ours}


def _subclasses(base: type[P]) -> Iterator[type[P]]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def check_can_be_built_again(part: ModularPart) -> None:
    """RAISES (ConfigError): Another class would be built from the name of this part."""
    base = Module if isinstance(part, Module) else Regularizer
    try:
        found = find_class(part.name, base) if part.name else None
    except ConfigKeyError:
        found = None
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
    return {f"{part.label}_{key}": value for key, value in {**part.options, "enabled": True}.items()}
