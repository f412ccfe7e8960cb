"""Find the settings of each param: its algorithm, the options, the learning rate, and the first step that trains it.

[training.optimizer.algorithm] and `learn_rate` hold for all params. Where several of these set the same for a param,
the later one wins:

1. the blocks of [training.optimizer.param_groups], in their order in the config; a block with an algorithm replaces
   all options of the blocks before it
2. the patterns of [training.optimizer.per_param_lr], in their order: confection puts those with a section before those
   with a number
3. `skip_decay`: no weight decay for biases and norms

`lr_scale` and [training.optimizer.layer_decay] multiply the learning rate.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from ..algorithms import Algorithm
from ..checks import OPTIMIZER
from ..errors import ConfigError, ConfigWarning
from ..params import Param, ParamSettings, Pattern, matches_any
from ..rates import Warmup
from ..schedules import Schedule, Schedules, is_moving
from ..types import Blocks, FloatOrSchedule, SkipDecay
from .blocks import GROUPS, LAYER_DECAY, PER_PARAM_LR, BlockReader, SettingsBlock, patterns_of

_DECAYS = ("weight_decay", "L2")
# A second stack counts if its layers have at least this fraction of the params of the largest stack's layers: a decoder
# does, a head does not.
_PART_OF_LAYER = 0.5


class Cascade:
    """All settings that differ between params.

    algorithm (Algorithm): The algorithm, perhaps with a fallback.
    schedules (Schedules): Gets the schedules among the settings.
    param_groups, per_param_lr, layer_decay, skip_decay, new_params_warmup: As in `create_optimizer`.
    keep_apart (bool): Put params of different blocks into different groups, even if the blocks say the same.
    RAISES (ConfigError): An invalid setting. Patterns are checked later, when the names are known.

    Public: `candidates` (all algorithms; the first is the default); `frozen` (names of params that are frozen as by a
        block with freeze = true, whatever blocks say).
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
        new_params_warmup: int,
        keep_apart: bool,
    ):
        reader = BlockReader(schedules)
        self.candidates = reader.candidates
        self._with_fallbacks = reader.with_fallbacks
        self._new_params = (
            Warmup(updates) if (updates := OPTIMIZER.whole("new_params_warmup", new_params_warmup)) else None
        )
        self._keep_apart = keep_apart
        self.frozen: frozenset[str] = frozenset()
        reader.add(algorithm, "algorithm")
        self._blocks = [
            reader.read_block(name, block) for name, block in OPTIMIZER.section("param_groups", param_groups).items()
        ]
        _check_joined([block.name for block in self._blocks])
        rates = patterns_of("per_param_lr", per_param_lr)
        self._rates = [reader.read_rate(pattern, rate) for pattern, rate in rates.items()]
        self._blocks += self._rates
        decays = patterns_of("layer_decay", layer_decay)
        self._layer_decay = [reader.read_layer_decay(pattern, decay) for pattern, decay in decays.items()]
        self._layers: dict[str, tuple[int, int]] = {}
        self._known: dict[tuple[Any, ...], ParamSettings] = {}  # cache, by everything that they depend on
        OPTIMIZER.choice("skip_decay", skip_decay, ("bias_and_norm", None))
        self._decays = (
            [name for name in _DECAYS if any(name in found.options for found in self.candidates)] if skip_decay else []
        )
        if skip_decay and not self._decays:
            advice = "Remove the setting, or choose another algorithm."
            OPTIMIZER.refuse("skip_decay", "an algorithm with weight decay", algorithm.label, advice)

    def __getstate__(self) -> dict[str, Any]:
        """Without the cache: a copy has schedules of its own."""
        return {**self.__dict__, "_known": {}}

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
        """The options of a candidate that schedules move, for at least some params."""
        sources = [self.candidates[algorithm].options, *(block.options.get(algorithm, {}) for block in self._blocks)]
        return {
            name
            for options in sources
            if not isinstance(options, ConfigError)
            for name, value in options.items()
            if is_moving(value)
        }

    def check(self, names: Sequence[str], modules: Collection[str]) -> None:
        """Check that every pattern matches a name, that every pattern of [layer_decay] matches a name with a layer, and
        that every block sets only options that its params have.

        names, modules: As for `see_names`.
        RAISES (ConfigError): A pattern matches no param, or an option belongs to another algorithm.
        """
        for pattern in self.patterns:
            pattern.check(names)
        self._check_options(names)
        self._warn_of_beaten(names)
        layers = layers_of(names, modules=modules)
        for pattern, _ in self._layer_decay:
            found = [name for name in names if pattern(name)]
            if not any(name in layers for name in found):
                raise ConfigError(
                    f"Can't use pattern '{pattern.text}' in {LAYER_DECAY}: expected params with the number of their "
                    "layer in the name, as in transformer/encoder/layer/3/output/dense/weight, found "
                    f"{', '.join(found[:3])}. Use lr_scale in a param group."
                )

    def _check_options(self, names: Sequence[str]) -> None:
        """RAISES (ConfigError): A block has an option that the algorithms of its params don't have."""
        for block in self._blocks:
            if block.algorithm is not None or not block.given:
                continue
            chosen = {self._first_and_blocks([name])[0] for name in names if matches_any(block.patterns, [name])}
            found = [self.candidates[i] for first in sorted(chosen) for i in self._with_fallbacks(first)]
            unknown = sorted(set(block.given) - {option for candidate in found for option in candidate.options})
            if unknown:
                labels = ", ".join(dict.fromkeys(f"'{candidate.algorithm.label}'" for candidate in found))
                raise ConfigError(
                    f"Can't set {', '.join(unknown)} in {GROUPS.format(block.name)}: expected options of {labels}, "
                    "which optimize the params of the block, found an option of another block's algorithm. Remove it, "
                    "or change the patterns."
                )

    def _warn_of_beaten(self, names: Sequence[str]) -> None:
        """Warn of schedules in [per_param_lr] without effect: a number for the same params wins, as the config system
        puts numbers last.
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
                            f"'{block.name}' in {PER_PARAM_LR} has no effect: the number of '{later.name}' replaces it "
                            "for all of its params. The later one wins, and in a config numbers come after sections, "
                            "wherever they were written. Write both as blocks of [training.optimizer.param_groups], "
                            "which keep "
                            f'their order: first params = ["{later.name}"], then params = ["{block.name}"].'
                        ),
                        stacklevel=2,
                    )

    def see_names(self, names: Sequence[str], embeddings: Collection[str] = (), modules: Collection[str] = ()) -> bool:
        """Set all names of the pipeline, and count the layers of each component.

        embeddings (Collection[str]): The names of embeddings. modules (Collection[str]): The paths of torch modules.
        RETURNS (bool): Whether the names differ from before.
        """
        before, self._layers = self._layers, layers_of(names, embeddings, modules) if self._layer_decay else {}
        return before != self._layers

    def settings_of(self, param: Param) -> ParamSettings:
        """The settings of a param.

        RAISES (ConfigError): The algorithm can't optimize it and has no fallback, or can't with the options of a block.
        """
        first, blocks, of_options = self._first_and_blocks(param.names)
        algorithm = self._choose(param, first)
        limits = self.candidates[algorithm].limits.items()
        enabled = tuple(option for option, patterns in limits if matches_any(patterns, param.names))
        skips_decay = bool(param.is_bias_or_norm and self._decays)
        joined_at = param.joined_at if self._new_params is not None else None
        layer, layer_scale = self._layer_of(param)
        is_frozen = not self.frozen.isdisjoint(param.names)
        alike = (first, algorithm, *blocks, enabled, skips_decay, joined_at, layer, layer_scale, is_frozen)
        if alike not in self._known:
            values: dict[str, Any] = {}
            for block in blocks:
                values |= block.values
            if is_frozen:
                values["frozen_until"] = math.inf
            labels = [block.name for block in blocks] + ["fallback"] * (algorithm != first)
            labels += [option.removesuffix("_enabled") for option in enabled]
            labels += ["skip_decay"] * skips_decay + ["new"] * (joined_at is not None)
            self._known[alike] = ParamSettings(
                tuple(labels) or ("default",),
                algorithm,
                self._options_of(algorithm, of_options, enabled, skips_decay=skips_decay),
                layer=layer,
                layer_scale=layer_scale,
                apart=self._keep_apart,
                joined_at=joined_at,
                new_params=None if joined_at is None else self._new_params,
                **values,
            )
        return self._known[alike]

    def _options_of(
        self, algorithm: int, blocks: Sequence[SettingsBlock], enabled: Collection[str], *, skips_decay: bool
    ) -> dict[str, Any]:
        """The options of params. blocks (Sequence[SettingsBlock]): The blocks whose options count."""
        options = dict(self.candidates[algorithm].options)
        options |= {option: False for option in self.candidates[algorithm].limits if option not in enabled}
        for block in blocks:
            found = block.options.get(algorithm, {})
            if isinstance(found, ConfigError):
                raise found
            options |= found
        return options | {name: 0.0 for name in self._decays if skips_decay and name in options}

    def _layer_of(self, param: Param) -> tuple[int | None, float]:
        """Layer and scale of a param, by the last pattern of [layer_decay] that matches one of its names."""
        for pattern, decay in reversed(self._layer_decay):
            for name in param.names:
                if pattern(name):
                    layer, depth = self._layers.get(name, (None, 0))
                    return layer, 1.0 if layer is None else decay ** (depth - layer)
        return None, 1.0

    def _first_and_blocks(self, names: Collection[str]) -> tuple[int, list[SettingsBlock], list[SettingsBlock]]:
        """RETURNS (tuple): The candidate for a param with these names, all blocks that match it, and the blocks whose
        options count.
        """
        blocks = [block for block in self._blocks if matches_any(block.patterns, names)]
        for place, block in reversed(list(enumerate(blocks))):
            if block.algorithm is not None:
                return block.algorithm, blocks, blocks[place:]
        return 0, blocks, blocks

    def _choose(self, param: Param, first: int) -> int:
        """The first of a candidate and its fallbacks that can optimize a param."""
        for i in self._with_fallbacks(first):
            if self.candidates[i].algorithm.accepts(param.name, param.tensor):
                return i
        last = self.candidates[i]
        other = "choose another algorithm for all params" if not first else "change the patterns of the block"
        raise ConfigError(
            f"Can't optimize param '{param.name}' with {last.algorithm.label} of {last.section}: it does not accept a "
            f"param of shape {tuple(param.shape)} and strides {param.tensor.stride()}. Set an algorithm for such "
            f"params in [training.optimizer.{last.path}.fallback], or {other}."
        )


def _check_joined(names: Sequence[str]) -> None:
    """RAISES (ConfigError): The name of a block is ambiguous: it could also join the names of others."""
    for name in names:
        for other in names:
            if other != name and f"+{other}+" in f"+{name}+":
                raise ConfigError(
                    f"Can't call a block '{name}' in [training.optimizer.param_groups]: '+' is not allowed beside the "
                    f"block '{other}'. Params that are from several blocks are called by the names of all, as in "
                    f"'{other}+...'. Choose another name."
                )


# ---------------------------------------------------------------------- layers, for [training.optimizer.layer_decay]


def layers_of(
    names: Iterable[str], embeddings: Collection[str] = (), modules: Collection[str] = ()
) -> dict[str, tuple[int, int]]:
    """The layer of each param.

    A component's layers are its numbered parts, e.g. `encoder/layer/0` to `encoder/layer/11`. Of several such stacks,
    the one with most params counts, and those with similar layers, such as the decoder beside an encoder. Each stack is
    numbered by itself. Embeddings are layer 0 of the nearest or deepest stack; params above the layers get the number
    of layers, the depth.

    names (Iterable[str]): All names.
    embeddings (Collection[str]): The names of embeddings. Names with "embed" in them count too, e.g. the norm of the
        embeddings.
    modules (Collection[str]): The paths of torch modules. One with numbered parts holds its own layers, wherever it is;
        unless there are others with the same path but for its numbers: then it is a layer of a stack itself.
    RETURNS (dict[str, tuple[int, int]]): Layer and depth of each name. Components without layers are left out.
    """
    of_component: dict[str, list[str]] = {}
    for name in names:
        of_component.setdefault(name.partition("/")[0], []).append(name)
    found: dict[str, tuple[int, int]] = {}
    alike = Counter(map(_without_numbers, modules))
    alone = [path for path in modules if alike[_without_numbers(path)] == 1]
    for members in of_component.values():
        lowest = {*embeddings, *_beside_relative_embeddings(members)}
        stacked = [path for path in alone if any(_has_number_below(path, name) for name in members)]
        placed = {name: place for name in members if (place := _place_in_stack(name, stacked)) is not None}
        depths = _depths_of_stacks(placed)
        for name in members if depths else ():
            stack, layer = placed.get(name, ("", 0))
            if stack in depths:
                found[name] = layer, depths[stack]
            else:
                depth = depths[max(depths, key=lambda other: (_parts_in_common(name, other), depths[other]))]
                found[name] = 0 if name in lowest or _says_embed(name) else depth, depth
    return found


def _place_in_stack(name: str, modules: Collection[str]) -> tuple[str, int] | None:
    """The path of the numbered parts to which a param belongs, and its number there.

    modules (Collection[str]): The paths of those whose parts are numbered inside of them.
    """
    parts = name.split("/")
    start = max((path.count("/") + 1 for path in modules if name.startswith(f"{path}/")), default=1)
    for i, part in enumerate(parts[start:-1], start=start):
        if part.isdigit():
            path = "/".join(parts[:i])
            return None if _says_embed(path) else (path, int(part))
    return None


def _beside_relative_embeddings(names: Collection[str]) -> Iterator[str]:
    """DeBERTa's norm of the positions that all layers read, and the convolution above its lowest layer."""
    paths = {name.rpartition("rel_embeddings/")[0] for name in names if "/rel_embeddings/" in name}
    beside = tuple(f"{path}{part}/" for path in paths for part in ("LayerNorm", "conv"))
    return (name for name in names if name.startswith(beside))


def _without_numbers(path: str) -> tuple[str, ...]:
    return tuple("" if part.isdigit() else part for part in path.split("/"))


def _has_number_below(path: str, name: str) -> bool:
    """Whether a param is below a path, in a numbered part."""
    below = name.removeprefix(f"{path}/")
    return below != name and any(map(str.isdigit, below.split("/")[:-1]))


def _depths_of_stacks(placed: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """The number of layers of each stack that counts, by its path. placed (Mapping): Path and number, by name."""
    numbers: dict[str, set[int]] = {}
    for stack, number in placed.values():
        numbers.setdefault(stack, set()).add(number)
    sizes = Counter(stack for stack, _ in placed.values())
    params_per_layer = {stack: sizes[stack] / len(numbers[stack]) for stack in sizes}
    # Layers are numbered from 0 and have several params below them, unlike a head of numbered Linear layers.
    composed = {stack for name, (stack, number) in placed.items() if "/" in name.removeprefix(f"{stack}/{number}/")}
    composed = {stack for stack in composed if numbers[stack] == set(range(len(numbers[stack])))}
    largest = max(sizes, key=lambda stack: sizes[stack], default="")
    return {
        stack: 1 + max(numbers[stack])
        for stack in sizes
        if stack == largest
        or (stack in composed and params_per_layer[stack] >= _PART_OF_LAYER * params_per_layer[largest])
    }


def _parts_in_common(name: str, other: str) -> int:
    """The number of common parts at the beginning of two names."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name.split("/"), other.split("/"))))


def _says_embed(name: str) -> bool:
    """Whether a name mentions embeddings, except in the component's name."""
    return "embed" in name.partition("/")[2].lower()
