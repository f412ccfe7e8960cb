"""What the settings say for each param: the algorithm, its options, the learning rate, and from which step on it is
trained.

[training.optimizer.algorithm] and `learn_rate` hold for all params. Where several of these set the same for a param,
the later one wins:

1. the blocks of [training.optimizer.param_groups], in their order in the config; one with an algorithm sets all options
   of it, so that those of the blocks before it no longer count
2. the patterns of [training.optimizer.per_param_lr], in their order: confection puts those with a section before those
   with a number
3. `skip_decay`: no weight decay for biases and norms

`lr_scale` and [training.optimizer.layer_decay] multiply the learning rate.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..algorithms import AN_ALGORITHM, Algorithm
from ..checks import OPTIMIZER, Section, check_number
from ..errors import ConfigError, ConfigWarning
from ..learn_rate import NAMED, NamedPolicy, Warmup, settings_of
from ..params import Param, Pattern, layers_of, matches_any
from ..schedules import Schedule, Schedules, is_moving
from ..types import Blocks, FloatOrSchedule, SkipDecay
from .settings import ParamSettings

_GROUPS = "[training.optimizer.param_groups.{}]"
_PER_PARAM_LR = "[training.optimizer.per_param_lr]"
_LAYER_DECAY = "[training.optimizer.layer_decay]"
_NOT_OPTIONS = ("params", "algorithm", "learn_rate", "lr_scale", "freeze", "unfreeze_at", "policy")
_DECAYS = ("weight_decay", "L2")


@dataclass(frozen=True)
class Candidate:
    """An algorithm of the config. Its fallback, if it has one, is the candidate behind it.

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


@dataclass
class _Block:
    """One block of the config, checked.

    algorithm (int | None): Which candidate is its own.
    given (Collection[str]): The names of its options.
    options (Mapping[int, dict | ConfigError]): Those that a candidate has, or why it refuses them.
    """

    name: str
    patterns: list[Pattern]
    algorithm: int | None = None
    learn_rate: float | Schedule | None = None
    lr_scale: float | Schedule | None = None
    frozen_until: float | None = None
    policy: NamedPolicy | None = None
    given: Collection[str] = ()
    options: Mapping[int, dict[str, Any] | ConfigError] = field(default_factory=dict)


class Cascade:
    """All settings by which params differ.

    algorithm (Algorithm): The algorithm, perhaps with a fallback.
    schedules (Schedules): Takes in the schedules among the settings.
    param_groups, per_param_lr, layer_decay, skip_decay, new_params_warmup: As in `create_optimizer`.
    keep_apart (bool): Params of different blocks are in different groups, even if the blocks say the same.
    RAISES (ConfigError): A setting that can't work. Patterns are checked later, when names are known.

    Public: `candidates` (all algorithms: the first is the one of params without a block that has one).
    """

    def __init__(
        self,
        algorithm: Algorithm,
        schedules: Schedules,
        *,
        param_groups: Blocks,
        per_param_lr: Mapping[str, FloatOrSchedule] | None,
        layer_decay: Mapping[str, float] | None,
        skip_decay: SkipDecay | None,
        new_params_warmup: int = 100,
        keep_apart: bool = False,
    ):
        self.candidates: list[Candidate] = []
        self._new_params = (
            Warmup(updates) if (updates := OPTIMIZER.whole("new_params_warmup", new_params_warmup)) else None
        )
        self._keep_apart = keep_apart
        self._schedules = schedules
        self._take_in(algorithm, "algorithm")
        self._blocks = [
            self._read_block(name, block) for name, block in OPTIMIZER.section("param_groups", param_groups).items()
        ]
        rates = _patterns("per_param_lr", per_param_lr)
        self._rates = [self._read_rate(pattern, rate) for pattern, rate in rates.items()]
        self._blocks += self._rates
        decays = _patterns("layer_decay", layer_decay)
        self._layer_decay = [self._read_layer_decay(pattern, decay) for pattern, decay in decays.items()]
        self._layers: dict[str, tuple[int, int]] = {}
        OPTIMIZER.choice("skip_decay", skip_decay, ("bias_and_norm", None))
        self._decays = (
            [name for name in _DECAYS if any(name in found.options for found in self.candidates)] if skip_decay else []
        )
        if skip_decay and not self._decays:
            raise ConfigError(
                "Can't set 'skip_decay' in [training.optimizer]: expected an algorithm with weight decay, found "
                f"'{algorithm.label}'. Remove the setting, or choose another algorithm."
            )

    def _take_in(self, algorithm: Algorithm, path: str) -> int:
        """Make candidates of an algorithm and its fallbacks. RETURNS (int): Which one it is."""
        place = len(self.candidates)
        options = {name: self._schedules.track(f"{path}.{name}", value) for name, value in algorithm.options.items()}
        limits = {
            option: [Pattern(text, f"[training.optimizer.{path}] ({option})") for text in texts]
            for option, texts in algorithm.limits.items()
        }
        self.candidates.append(Candidate(path, algorithm, options, limits))
        if algorithm.fallback is not None:
            self._take_in(algorithm.fallback, f"{path}.fallback")
        return place

    @property
    def goes_by_name(self) -> bool:
        """Whether any setting depends on the name of a param."""
        return bool(self._blocks or self._layer_decay or any(found.limits for found in self.candidates))

    @property
    def patterns(self) -> list[Pattern]:
        """All patterns of the settings."""
        return [
            *(pattern for found in self.candidates for patterns in found.limits.values() for pattern in patterns),
            *(pattern for block in self._blocks for pattern in block.patterns),
            *(found for found, _ in self._layer_decay),
        ]

    def moving(self, algorithm: int) -> set[str]:
        """The options of an algorithm that schedules move, for some params at least. algorithm (int): Which
        candidate.
        """
        sources = [self.candidates[algorithm].options, *(block.options.get(algorithm, {}) for block in self._blocks)]
        return {
            name
            for options in sources
            if not isinstance(options, ConfigError)
            for name, value in options.items()
            if is_moving(value)
        }

    def check(self, names: Sequence[str]) -> None:
        """Check that every pattern matches a name, and every one of [layer_decay] a name with a layer; and that the
        options of every block are such as its params have.

        RAISES (ConfigError): A pattern matches no param, or an option is of another algorithm.
        """
        for pattern in self.patterns:
            pattern.check(names)
        self._check_options(names)
        self._warn_of_beaten(names)
        layers = layers_of(names)
        for pattern, _ in self._layer_decay:
            found = [name for name in names if pattern(name)]
            if not any(name in layers for name in found):
                raise ConfigError(
                    f"Can't use pattern '{pattern.text}' in {_LAYER_DECAY}: expected params with the number of their "
                    "layer in the name, as in transformer/encoder/layer/3/output/dense/weight, found "
                    f"{', '.join(found[:3])}. Use lr_scale in a param group."
                )

    def _check_options(self, names: Sequence[str]) -> None:
        """RAISES (ConfigError): A block has an option that the algorithms of its params don't have."""
        for block in self._blocks:
            if block.algorithm is not None or not block.given:
                continue
            matches = matches_any(block.patterns)
            chosen = {self._first_and_blocks([name])[0] for name in names if matches(name)}
            found = [self.candidates[i] for first in sorted(chosen) for i in self._with_fallbacks(first)]
            unknown = sorted(set(block.given) - {option for candidate in found for option in candidate.options})
            if unknown:
                labels = ", ".join(dict.fromkeys(f"'{candidate.algorithm.label}'" for candidate in found))
                raise ConfigError(
                    f"Can't set {', '.join(unknown)} in {_GROUPS.format(block.name)}: expected options of {labels}, "
                    "which the params of the block are optimized by, found one of another block's algorithm. Remove "
                    "it, or change the patterns."
                )

    def _warn_of_beaten(self, names: Sequence[str]) -> None:
        """Warn of patterns of [per_param_lr] with a schedule that a number beats everywhere: the config system puts
        numbers last.
        """
        for place, block in enumerate(self._rates):
            (pattern,) = block.patterns
            matched = [name for name in names if pattern(name)]
            for later in self._rates[place + 1 :]:
                if (
                    isinstance(block.learn_rate, Schedule)
                    and isinstance(later.learn_rate, float)
                    and all(map(later.patterns[0], matched))
                ):
                    warnings.warn(
                        ConfigWarning(
                            f"'{block.name}' in {_PER_PARAM_LR} has no effect: expected a rate that holds for some "
                            "params, found that the "
                            f"number of '{later.name}' holds for all of them. The later one wins, and in a config "
                            "numbers come after "
                            "sections, wherever they were written. Write both as blocks of "
                            "[training.optimizer.param_groups], which keep "
                            f'their order: first params = ["{later.name}"], then params = ["{block.name}"].'
                        ),
                        stacklevel=2,
                    )

    def see_names(self, names: Sequence[str], embeddings: Collection[str] = ()) -> None:
        """Learn all names of the pipeline, from which follows how many layers each component has.

        embeddings (Collection[str]): Those of embeddings.
        """
        self._layers = layers_of(names, embeddings) if self._layer_decay else {}

    def settings_of(self, param: Param) -> ParamSettings:
        """What holds for a param.

        RAISES (ConfigError): The algorithm can't optimize it, and there is no fallback; or not with the options of a
            block.
        """
        first, blocks, of_options = self._first_and_blocks(param.names)
        algorithm = self._choose(param, first)
        labels = [block.name for block in blocks] + ["fallback"] * (algorithm != first)
        options = dict(self.candidates[algorithm].options)
        for option, patterns in self.candidates[algorithm].limits.items():
            if any(map(matches_any(patterns), param.names)):
                labels.append(option.removesuffix("_enabled"))
            else:
                options[option] = False
        for block in of_options:
            found = block.options.get(algorithm, {})
            if isinstance(found, ConfigError):
                raise found
            options |= found
        values: dict[str, Any] = {}
        for block in blocks:
            if block.policy is not None or block.learn_rate is not None:
                # Each says what the rate is: the later one holds. A learn_rate in the block of a policy is what the
                # policy begins with.
                values["policy"] = block.policy
            values |= {
                name: value
                for name in ("learn_rate", "lr_scale", "frozen_until")
                if (value := getattr(block, name)) is not None
            }
        if param.is_bias_or_norm and self._decays:
            options |= {name: 0.0 for name in self._decays if name in options}
            labels.append("skip_decay")
        joined_at = param.joined_at if self._new_params is not None else None
        if joined_at is not None:
            labels.append("new")
            values |= {"joined_at": joined_at, "new_params": self._new_params}
        layer, layer_scale = self._layer_of(param)
        return ParamSettings(
            tuple(labels) or ("default",),
            algorithm,
            options,
            layer=layer,
            layer_scale=layer_scale,
            apart=self._keep_apart,
            **values,
        )

    def _layer_of(self, param: Param) -> tuple[int | None, float]:
        """Layer and scale of a param, by the last pattern of [layer_decay] that matches it, and the first of its names
        that it matches.
        """
        for pattern, decay in reversed(self._layer_decay):
            for name in param.names:
                if pattern(name):
                    layer, depth = self._layers.get(name, (None, 0))
                    return layer, 1.0 if layer is None else decay ** (depth - layer)
        return None, 1.0

    def _first_and_blocks(self, names: Collection[str]) -> tuple[int, list[_Block], list[_Block]]:
        """RETURNS (tuple): The candidate that a param with these names is for, all blocks that match it, and those of
        them whose options count.
        """
        blocks = [block for block in self._blocks if any(map(matches_any(block.patterns), names))]
        for place, block in reversed(list(enumerate(blocks))):
            if block.algorithm is not None:
                return block.algorithm, blocks, blocks[place:]
        return 0, blocks, blocks

    def _with_fallbacks(self, first: int) -> range:
        """A candidate and its fallbacks."""
        last = first
        while self.candidates[last].algorithm.fallback is not None:
            last += 1
        return range(first, last + 1)

    def _choose(self, param: Param, first: int) -> int:
        """The first of a candidate and its fallbacks that takes a param."""
        for i in self._with_fallbacks(first):
            if self.candidates[i].algorithm.accepts(param.name, param.tensor):
                return i
        last = self.candidates[i]
        other = "choose another algorithm for all params" if not first else "change the patterns of the block"
        raise ConfigError(
            f"Can't optimize param '{param.name}' with {last.algorithm.label} of {last.section}: it does not take a "
            f"param of shape {tuple(param.shape)} and strides {param.tensor.stride()}. Set an algorithm for such "
            f"params in [training.optimizer.{last.path}.fallback], or {other}."
        )

    # ------------------------------------------------------------------ reading the config

    def _read_block(self, name: str, given: Mapping[str, Any]) -> _Block:
        where, path = _GROUPS.format(name), f"param_groups.{name}"
        if not isinstance(given, Mapping):
            raise ConfigError(f"Can't read {where}: expected a section with 'params', found {given!r}.")
        texts = given.get("params")
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise ConfigError(
                f"Can't set 'params' in {where}: expected a list of patterns, as in [\"transformer/*\"], found "
                f"{texts!r}."
            )
        policy, of_policy = _read_policy(given, where)
        options = {
            option: value for option, value in given.items() if option not in _NOT_OPTIONS and option not in of_policy
        }
        first = None
        if given.get("algorithm") is not None:
            own = Section(where).kind("algorithm", given["algorithm"], Algorithm, AN_ALGORITHM)
            first = self._take_in(own, f"{path}.algorithm")
        # Without one of its own, its params may also be those of the blocks before it that have one.
        possible = range(len(self.candidates)) if first is None else self._with_fallbacks(first)
        known = {option for i in possible for option in self.candidates[i].options}
        if not set(options) <= known:
            label = self.candidates[first or 0].algorithm.label
            raise ConfigError(
                f"Can't set {', '.join(sorted(set(options) - known))} in {where}: param groups and "
                f"'{label}' have no such setting. Available: "
                f"{', '.join(sorted(known | set(_NOT_OPTIONS)))}.{_advice_on_policies(given, set(options) - known)}"
            )
        read: dict[int, dict[str, Any] | ConfigError] = {}
        for i in possible:
            try:
                read[i] = self._read_options(i, options, where, path)
            except ConfigError as error:
                if i in self._with_fallbacks(first or 0):
                    raise
                # Perhaps no param of this block is one of that block.
                read[i] = error.with_traceback(None)
        return _Block(
            name,
            [Pattern(text, where) for text in texts],
            learn_rate=self._number(path, given, "learn_rate"),
            lr_scale=self._number(path, given, "lr_scale"),
            frozen_until=math.inf if given.get("policy") == "frozen" else _frozen_until(given, where),
            policy=policy,
            algorithm=first,
            given=tuple(options),
            options=read,
        )

    def _read_options(self, place: int, options: Mapping[str, Any], where: str, path: str) -> dict[str, Any]:
        """Those options of a block that a candidate has. RAISES (ConfigError): It refuses one."""
        candidate = self.candidates[place]
        own = {name: value for name, value in options.items() if name in candidate.options}
        checked = candidate.algorithm.check_options(own, where, candidate.section) if own else {}
        return {name: self._schedules.track(f"{path}.{name}", value) for name, value in checked.items()}

    def _read_rate(self, text: str, rate: FloatOrSchedule) -> _Block:
        _check_key(text, rate, _PER_PARAM_LR)
        learn_rate = self._number("per_param_lr", {text: rate}, text)
        return _Block(text, [Pattern(text, _PER_PARAM_LR)], learn_rate=learn_rate)

    def _read_layer_decay(self, text: str, decay: float) -> tuple[Pattern, float]:
        _check_key(text, decay, _LAYER_DECAY)
        section, expected = Section(_LAYER_DECAY), "a number above 0 and at most 1"
        number = section.number(text, decay, expected, at_most=1.0) or section.refuse(text, expected, decay)
        return Pattern(text, _LAYER_DECAY), number

    def _number(self, path: str, given: Mapping[str, Any], name: str) -> float | Schedule | None:
        """A rate or scale: a number of at least 0, or a schedule, or None where it is not given."""
        if given.get(name) is None:
            return None
        value = self._schedules.track(f"{path}.{name}", given[name])
        return value if isinstance(value, Schedule) else check_number(f"{path}.{name}", value)


_AS_BLOCK = (
    "Write it in a list: a block of [training.optimizer.param_groups] with params = [...], and learn_rate or lr_scale."
)


def _patterns(name: str, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A section with patterns as keys.

    RAISES (ConfigError): It is none, or an empty one: a config passes over keys that it can't hold.
    """
    if given is None:
        return {}
    if not OPTIMIZER.section(name, given):
        OPTIMIZER.refuse(
            name,
            "a section with at least one pattern",
            given,
            "A config takes a line that begins with '#' or ';' for a comment, and one that begins with '[' for a new "
            f"section. If that was to be a pattern: {_AS_BLOCK[0].lower()}{_AS_BLOCK[1:]} If not, remove the section.",
        )
    return given


def _check_key(text: str, value: Any, where: str) -> None:
    """RAISES (ConfigError): A pattern that a config can't hold as a key."""
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


def _read_policy(given: Mapping[str, Any], where: str) -> tuple[NamedPolicy | None, Mapping[str, Any]]:
    """The policy of a block, and those of its settings that are the policy's.

    RAISES (ConfigError): There is no such policy, or it can't be with other settings of the block.
    """
    name = given.get("policy")
    if name is None:
        return None, {}
    settings = {setting: given[setting] for setting in _settings_in_block(name) if setting in given}
    policy = NamedPolicy(name, tuple(settings.items()), where)
    beside = ("learn_rate", "lr_scale", "freeze", "unfreeze_at") if name == "frozen" else ("max_rate",)
    clash = [setting for setting in beside if given.get(setting) is not None]
    if name == "frozen" and clash:
        _refuse_policy(where, name, f"without {clash[0]}", "both")
    if given.get("freeze") is True:
        _refuse_policy(where, name, "without freeze = true", "both")
    if (rate := given.get("learn_rate")) is not None:
        if isinstance(rate, bool) or not isinstance(rate, (int, float)):
            _refuse_policy(where, name, "with a learn_rate that is a number", "a schedule, which a policy is itself")
        if clash:
            _refuse_policy(where, name, "with learn_rate or max_rate", "both")
    return None if name == "frozen" else policy, settings


def without_policy(block: Mapping[str, Any]) -> dict[str, Any]:
    """A block of [training.optimizer.param_groups] with the highest rate of its policy in the policy's place. Nothing
    is checked.
    """
    name = block.get("policy")
    if name is None:
        return dict(block)
    left = {key: value for key, value in block.items() if key != "policy" and key not in _settings_in_block(name)}
    if name == "frozen":
        return left | {"freeze": True}
    return left | ({} if block.get("max_rate") is None else {"learn_rate": block["max_rate"]})


def _settings_in_block(policy: Any) -> list[str]:
    """The keys of a block that are settings of its policy. `eps` is the algorithm's."""
    return (
        [setting for setting in settings_of(policy) if setting != "eps"]
        if isinstance(policy, str) and policy in NAMED
        else []
    )


def _refuse_policy(where: str, name: str, expected: str, found: str) -> NoReturn:
    raise ConfigError(
        f"Can't set policy = '{name}' in {where}: expected it {expected}, found {found}. Remove one of them."
    )


def _advice_on_policies(given: Mapping[str, Any], unknown: Collection[str]) -> str:
    """A hint for settings that belong to a policy."""
    name = given.get("policy")
    if name is not None:
        return f" The policy '{name}' has {', '.join(_settings_in_block(name)) or 'no settings'}."
    of_policies = {setting for name in NAMED for setting in _settings_in_block(name)}
    return (
        f" A block with a policy ({', '.join(sorted(NAMED))}) takes more settings."
        if of_policies & set(unknown)
        else ""
    )


def _frozen_until(given: Mapping[str, Any], where: str) -> float | None:
    section, unfreeze_at = Section(where), given.get("unfreeze_at")
    freeze = None if given.get("freeze") is None else section.flag("freeze", given["freeze"])
    if unfreeze_at is None:
        return None if freeze is None else math.inf if freeze else 0.0
    step = section.whole("unfreeze_at", unfreeze_at)
    if freeze is False:
        raise ConfigError(
            f"Can't set 'unfreeze_at' in {where}: expected it without freeze = false, found both. Remove one of them."
        )
    return float(step)
