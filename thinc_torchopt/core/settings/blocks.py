"""Read and check the blocks of [training.optimizer.param_groups], and the sections with patterns as keys."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..algorithms import AN_ALGORITHM, Algorithm
from ..checks import OPTIMIZER, Section, check_number
from ..errors import ConfigError
from ..near_misses import did_you_mean
from ..params import Pattern
from ..schedules import Schedule, Schedules
from ..types import FloatOrSchedule

GROUPS = "[training.optimizer.param_groups.{}]"
PER_PARAM_LR = "[training.optimizer.per_param_lr]"
LAYER_DECAY = "[training.optimizer.layer_decay]"
_NOT_OPTIONS = ("params", "algorithm", "learn_rate", "lr_scale", "freeze", "unfreeze_at")

_NO_POLICY = (
    " Instead of a policy, make learn_rate a schedule, such as thinc-torchopt.warmup_cosine.v1, or "
    "thinc-torchopt.plateau.v1, which follows a score. For params that are not trained, set freeze = true."
)


@dataclass(frozen=True)
class BlockAlgorithm:
    """An algorithm of the config. Its fallback, if it has one, is the next candidate.

    path (str): Config path below [training.optimizer], e.g. "algorithm.fallback".
    options (Mapping[str, Any]): Its options, with schedules.
    limits (Mapping[str, Sequence[Pattern]]): As in `Algorithm`.
    """

    path: str
    algorithm: Algorithm
    options: Mapping[str, Any]
    limits: Mapping[str, Sequence[Pattern]]

    @property
    def section(self) -> str:
        return f"[training.optimizer.{self.path}]"


@dataclass(eq=False)
class SettingsBlock:
    """One block of the config, checked.

    algorithm (int | None): The candidate that is its own algorithm, if it has one.
    given (Collection[str]): The names of its options.
    options (Mapping[int, dict | ConfigError]): By candidate, the options that this has, or its error about them.
    """

    name: str
    patterns: list[Pattern]
    algorithm: int | None = None
    learn_rate: float | Schedule | None = None
    lr_scale: float | Schedule | None = None
    frozen_until: float | None = None
    given: Collection[str] = ()
    options: Mapping[int, dict[str, Any] | ConfigError] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """The settings beside options, as in `ParamSettings`."""
        said = {name: getattr(self, name) for name in ("learn_rate", "lr_scale", "frozen_until")}
        return {name: value for name, value in said.items() if value is not None}


class BlockReader:
    """Reads blocks.

    schedules (Schedules): Gets the schedules among their settings.

    Public: `candidates` (all algorithms so far, with their fallbacks).
    """

    def __init__(self, schedules: Schedules):
        self.candidates: list[BlockAlgorithm] = []
        self._schedules = schedules

    def add(self, algorithm: Algorithm, path: str) -> int:
        """Make candidates of an algorithm and its fallbacks. RETURNS (int): The place of the first one."""
        place = len(self.candidates)
        options = {name: self._schedules.track(f"{path}.{name}", value) for name, value in algorithm.options.items()}
        limits = {
            option: [Pattern(text, f"[training.optimizer.{path}] ({option})") for text in texts]
            for option, texts in algorithm.limits.items()
        }
        self.candidates.append(BlockAlgorithm(path, algorithm, options, limits))
        if algorithm.fallback is not None:
            self.add(algorithm.fallback, f"{path}.fallback")
        return place

    def with_fallbacks(self, first: int) -> range:
        """A candidate and its fallbacks."""
        last = first
        while self.candidates[last].algorithm.fallback is not None:
            last += 1
        return range(first, last + 1)

    def read_block(self, name: str, given: Mapping[str, Any]) -> SettingsBlock:
        where, path = GROUPS.format(name), f"param_groups.{name}"
        if not isinstance(given, Mapping):
            raise ConfigError(f"Can't read {where}: expected a section with 'params', found {given!r}.")
        texts = given.get("params")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            Section(where).refuse("params", 'a list of patterns, as in ["transformer/*"]', texts)
        options = {option: value for option, value in given.items() if option not in _NOT_OPTIONS}
        first = None
        if given.get("algorithm") is not None:
            own = Section(where).kind("algorithm", given["algorithm"], Algorithm, AN_ALGORITHM)
            first = self.add(own, f"{path}.algorithm")
        # Without an algorithm of its own, its params may also belong to earlier blocks with an algorithm.
        possible = range(len(self.candidates)) if first is None else self.with_fallbacks(first)
        known = {option for i in possible for option in self.candidates[i].options}
        if not set(options) <= known:
            label = self.candidates[first or 0].algorithm.label
            unknown, there_are = sorted(set(options) - known), sorted(known | set(_NOT_OPTIONS))
            advice = _NO_POLICY if "policy" in unknown else did_you_mean(unknown[0], there_are, is_setting=True)
            raise ConfigError(
                f"Can't set {', '.join(unknown)} in {where}: param groups and '{label}' have no such setting."
                f"{advice} Available: {', '.join(there_are)}."
            )
        read: dict[int, dict[str, Any] | ConfigError] = {}
        for i in possible:
            try:
                read[i] = self._read_options(i, options, where, path)
            except ConfigError as error:
                if i in self.with_fallbacks(first or 0):
                    raise
                # Perhaps the two blocks share no param.
                read[i] = error.with_traceback(None)
        return SettingsBlock(
            name,
            [Pattern(text, where) for text in texts],
            learn_rate=self._number(path, given, "learn_rate"),
            lr_scale=self._number(path, given, "lr_scale"),
            frozen_until=_frozen_until(given, where),
            algorithm=first,
            given=tuple(options),
            options=read,
        )

    def _read_options(self, place: int, options: Mapping[str, Any], where: str, path: str) -> dict[str, Any]:
        """The options of a block that a candidate has. RAISES (ConfigError): It refuses one."""
        candidate = self.candidates[place]
        own = {name: value for name, value in options.items() if name in candidate.options}
        checked = candidate.algorithm.check_options(own, where, candidate.section) if own else {}
        return {name: self._schedules.track(f"{path}.{name}", value) for name, value in checked.items()}

    def read_rate(self, text: str, rate: FloatOrSchedule) -> SettingsBlock:
        _check_key(text, rate, PER_PARAM_LR)
        learn_rate = self._number("per_param_lr", {text: rate}, text)
        return SettingsBlock(text, [Pattern(text, PER_PARAM_LR)], learn_rate=learn_rate)

    def read_layer_decay(self, text: str, decay: float) -> tuple[Pattern, float]:
        _check_key(text, decay, LAYER_DECAY)
        section, expected = Section(LAYER_DECAY), "a number above 0 and at most 1"
        number = section.number(text, decay, expected, at_most=1.0) or section.refuse(text, expected, decay)
        return Pattern(text, LAYER_DECAY), number

    def _number(self, path: str, given: Mapping[str, Any], name: str) -> float | Schedule | None:
        """A rate or scale: a number of at least 0, or a schedule, or None if it is not given."""
        if given.get(name) is None:
            return None
        value = self._schedules.track(f"{path}.{name}", given[name])
        return value if isinstance(value, Schedule) else check_number(f"{path}.{name}", value)


_AS_BLOCK = (
    "Write it in a list: a block of [training.optimizer.param_groups] with params = [...], and learn_rate or lr_scale."
)


def patterns_of(name: str, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A section with patterns as keys. None, or an empty one: no patterns. RAISES (ConfigError): Not a section."""
    return {} if given is None else OPTIMIZER.section(name, given)


def _check_key(text: str, value: Any, where: str) -> None:
    """RAISES (ConfigError): A config can't hold this pattern as a key."""
    what = None
    if text == "re" and isinstance(value, str):
        what = f"a regular expression: the key ends at the colon, so it is 're' with the value {value!r}"
    elif text.startswith(("[", "#", ";")):
        what = f"{text!r}, which a config takes for a section or a comment"
    elif text.startswith(("'", '"')):
        what = f"{text}: the quotes belong to the key, and no name has any"
    if what is not None:
        raise ConfigError(
            f"Can't use a pattern as a key in {where}: expected one that a config can hold, found {what}. {_AS_BLOCK}"
        )


def _frozen_until(given: Mapping[str, Any], where: str) -> float | None:
    section, unfreeze_at = Section(where), given.get("unfreeze_at")
    freeze = None if given.get("freeze") is None else section.flag("freeze", given["freeze"])
    if unfreeze_at is None:
        return None if freeze is None else math.inf if freeze else 0.0
    step = section.whole("unfreeze_at", unfreeze_at)
    if freeze is False:
        raise ConfigError(
            f"Can't set 'unfreeze_at' in {where}: freeze = false is not allowed beside it. Remove one of them."
        )
    return float(step)
