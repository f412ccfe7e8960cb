"""The result of a `@torch_optimizers` block in the config: a torch optimizer that is still to be built."""

from __future__ import annotations

import inspect
import math
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from ..checks import Section
from ..errors import ConfigError, ScheduleError, StateError
from ..host import call_without_compiler, step
from ..kernels import NO_KERNEL, FusedKernel
from ..schedules import Schedule, current
from .facts import roles_of
from .state_beside import check_plain, collect_beside

call_without_compiler()

IN_ALGORITHM = "[training.optimizer.algorithm]"
# How to make one.
AN_ALGORITHM = (
    'a block with @torch_optimizers = "torch.AdamW.v1" or another, or in Python the result of a function in '
    "torch_optimizers.py"
)


def accepts_all(name: str, param: torch.Tensor) -> bool:
    return True


@dataclass(frozen=True)
class TryOutResult:
    """Facts about a torch optimizer, found by a few steps on a small matrix.

    in_group (frozenset[str]): Options that each param group has for itself.
    reads (frozenset[str]): Keys that its steps read from a param group without having put them there.
    has_eval_form (bool): It trains other values than those to evaluate: it has `eval()` and `train()`.
    """

    in_group: frozenset[str]
    reads: frozenset[str]
    has_eval_form: bool


@dataclass(frozen=True)
class Algorithm:
    """A torch optimizer that is still to be built.

    label (str): Its name in the config, for error messages, e.g. "torch.AdamW.v1".
    build (Callable): `build(params, lr=..., **options)` returns a `torch.optim.Optimizer`.
    options (Mapping[str, Any]): Hyper-parameters by torch's names; a value may be a schedule.
    accepts (Callable): Whether the algorithm can optimize a param, by its name and tensor. `fallback` gets the rest.
    fallback (Algorithm): Optimizes what `accepts` refuses.
    kernel (FusedKernel): Its fused kernel in torch.
    limits (Mapping[str, tuple[str, ...]]): Options that are switches, such as "clip_enabled": off for params whose name
        matches none of these patterns.
    counts_for_group (bool): It has one step count for all params of a group, as in pytorch-optimizer, and perhaps other
        values of the group.
    finds_rate (bool): It finds the size of its steps, one for all groups, and uses the rate and options of the first:
        groups of other rates or options are updated apart, and find their own.
    state_bytes (Callable | None): The size of a float32 param's state in bytes, by options and shape. None: estimated,
        see `StateSizes`.
    RAISES (ConfigError): It can't be used with these options: see `try_out`.

    Public: `trial` (TryOutResult), `ranges` (OptionRanges).
    """

    label: str
    build: Callable[..., torch.optim.Optimizer]
    options: Mapping[str, Any] = field(default_factory=dict)
    accepts: Callable[[str, torch.Tensor], bool] = accepts_all
    fallback: Algorithm | None = None
    kernel: FusedKernel = NO_KERNEL
    limits: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    counts_for_group: bool = False
    finds_rate: bool = False
    state_bytes: Callable[[Mapping[str, Any], tuple[int, ...]], int] | None = None
    trial: TryOutResult = field(init=False)
    ranges: OptionRanges = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "trial", try_out(self.build, self.label, self.options))
        object.__setattr__(self, "ranges", OptionRanges(self))

    def fuses(self, tensor: torch.Tensor, options: Mapping[str, Any]) -> bool:
        """Whether a fused kernel should update a param with these options."""
        fused = options.get("fused", False)
        if fused is None:  # the device has a kernel, and the config does not choose another one
            fused = not options.get("foreach") and tensor.device.type in self.kernel.devices
        return bool(fused) and self.kernel.accepts(tensor)

    def check_options(self, given: Mapping[str, Any], where: str, own: str = IN_ALGORITHM) -> dict[str, Any]:
        """Check options for some of the params, from a config.

        given (Mapping[str, Any]): Some of its options.
        where (str): Config path, for the error.
        own (str): Config path of the algorithm.
        RETURNS (dict[str, Any]): The options in torch's form.
        RAISES (ConfigError): An option is refused, or has one value for all params.
        """
        checked = {name: as_torch_option(name, self.options[name], value, where) for name, value in given.items()}
        trial = try_out(self.build, self.label, {**self.options, **checked}, where)
        shared = sorted(set(checked) - trial.in_group)
        if shared:
            raise ConfigError(
                f"Can't set {', '.join(shared)} in {where}: '{self.label}' takes one value for all params. Set it in "
                f"{own}."
            )
        return checked

    def check_allows_averages(self) -> None:
        """RAISES (ConfigError): Averages don't work with the algorithm."""
        if self.trial.has_eval_form:
            raise ConfigError(
                f"Can't keep averages in [training.optimizer] with '{self.label}': the algorithm averages by itself, "
                "and its own averages are evaluated and saved. Remove 'use_averages' or [training.optimizer.averages]."
            )


def as_torch_option(name: str, default: Any, value: Any, where: str) -> Any:
    """Return a pair as a tuple, and everything else unchanged.

    name (str): The option's name. default (Any): A value that torch accepts. where (str): Config path, for the error.
    RAISES (ConfigError): A string for a number, a number for a flag, or not a pair where one is expected.
    """
    value = as_plain(value)
    is_switch = isinstance(default, bool) or (default is None and name in ("foreach", "fused"))
    if is_switch and not isinstance(value, (bool, type(default))):
        Section(where).refuse(name, "true or false", value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(default, (int, float)) and not is_switch and not is_number and not may_move(value):
        Section(where).refuse(name, "a number", value)
    if not isinstance(default, tuple):
        return value
    # A section for `betas` has `beta1` and `beta2`, in any order: confection puts plain values before sections.
    entries = [option_entry(name, place) for place in range(len(default))]
    if (
        not isinstance(value, (tuple, list, dict))
        or len(value) != len(entries)
        or (isinstance(value, dict) and set(value) != set(entries))
    ):
        expected = f"{len(entries)} values, as in {list(default)}, or a section with {' and '.join(entries)}"
        Section(where).refuse(name, expected, value)
    return tuple(as_plain(value[key] if isinstance(value, dict) else value[i]) for i, key in enumerate(entries))


def as_plain(value: Any) -> Any:
    """Return a NumPy number as a Python number, and everything else unchanged."""
    return value.item() if isinstance(value, numpy.generic) else value


def option_entry(name: str, place: int | None) -> str:
    """The name in the config of an option, or of one number of an option with several: "beta2"."""
    if place is None:
        return name
    return f"{name if name == 'eps' else name.removesuffix('s')}{place + 1}"


def small_matrix(options: Mapping[str, Any]) -> torch.Tensor:
    """A param to try options on."""
    # capturable: torch checks for a device that has graphs.
    device = "cuda" if options.get("capturable") and torch.cuda.is_available() else "cpu"
    return torch.ones(2, 2, device=device, requires_grad=True)


def try_out(
    build: Callable[..., Any], label: str, options: Mapping[str, Any], where: str = IN_ALGORITHM
) -> TryOutResult:
    """Build a torch optimizer for a small matrix and let it step, to find errors before the training.

    Values of schedules can't be checked here. Random generators keep their state.
    RAISES (ConfigError): It refuses an option, reads an option only once that a schedule moves, needs more than
        gradients, has no learning rate, changes its options, or has state that can't be saved.
    """
    fixed = {name: value for name, value in options.items() if not may_move(value)}
    _check_finite(build, label, fixed, where)
    param = small_matrix(fixed)
    device = param.device.type
    try:
        with same_generators(device):
            optimizer = build([param], lr=_RATE, **fixed)
            if isinstance(getattr(type(optimizer), "param_groups", None), property):
                raise TypeError(
                    "it wraps another optimizer and takes no params itself. Name the other optimizer instead"
                )
            entry = _RecordingGroup(optimizer.param_groups[0])
            before = dict(entry)
            optimizer.param_groups = [entry]
            for number in range(_STEPS):
                param.grad = torch.eye(2, device=device) + number
                step(optimizer)
            reads = frozenset(entry.read - (entry.keys() - options.keys()))
            entry.read = set()
            if has_eval_form := hasattr(optimizer, "eval") and hasattr(optimizer, "train"):
                optimizer.eval()
            read_by_eval = entry.read
    except Exception as error:
        reason = f"it also needs the option {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise ConfigError(f"Can't build '{label}' in {where}: {reason}. Options found: {fixed}.") from error
    if "lr" not in before:
        raise ConfigError(
            f"Can't train with '{label}' in {where}: expected an algorithm with a learning rate, found one without, so "
            "schedules, warm-ups and param groups would have no effect. Choose another algorithm."
        )
    stuck = sorted(set(options) - set(fixed) - set(before))
    if stuck:
        raise ConfigError(
            f"Can't set {', '.join(stuck)} in {where} to a schedule: '{label}' reads it only once, when it is built. "
            "Set a number."
        )
    moving_form = sorted((set(options) - set(fixed)) & read_by_eval)
    if moving_form:
        raise ConfigError(
            f"Can't set {', '.join(moving_form)} in {where} to a schedule: '{label}' computes averages of the weights "
            "with it, over all steps, so it must stay the same. Set a number."
        )
    given = {**before, "lr": _RATE}
    changed = sorted(name for name in ("lr", *fixed) if not _same(entry.get(name), given.get(name)))
    if changed:
        raise ConfigError(
            f"Can't train with '{label}' in {where}: expected an algorithm that leaves its learning rate and options "
            f"unchanged, found one that changes {', '.join(changed)}, so schedules and param groups would not show the "
            "values in use. Choose another algorithm."
        )
    try:
        check_plain(optimizer.state.get(param, {}), "the state of a param")
        collect_beside(optimizer, options)
    except StateError as error:
        raise ConfigError(
            f"Can't train with '{label}' in {where}: its state can't be saved. {error} Choose another algorithm."
        ) from error
    roles_of(type(optimizer))
    return TryOutResult(frozenset(before), reads, has_eval_form)


@contextmanager
def same_generators(device: str) -> Iterator[None]:
    """Restore random generators afterwards."""
    generators = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng([torch.cuda.current_device()] if device == "cuda" else []):
            yield
    finally:
        random.setstate(generators[0])
        numpy.random.set_state(generators[1])


# Steps of a trial. Some change their rate from the second step on.
_RATE = 0.001
_STEPS = 3


class _RecordingGroup(dict[str, Any]):
    """A param group that records which of its keys were read."""

    def __init__(self, group: dict[str, Any]):
        super().__init__(group)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)


def _same(value: Any, other: Any) -> bool:
    return value is other or (
        type(value) is type(other) and not isinstance(value, torch.Tensor) and bool(value == other)
    )


def _check_finite(build: Callable[..., Any], label: str, options: Mapping[str, Any], where: str) -> None:
    """RAISES (ConfigError): A number is NaN, or infinite where that is not the option's default."""
    known = inspect.signature(build).parameters
    for name, value in options.items():
        for number in value if isinstance(value, tuple) else (value,):
            is_default = name in known and known[name].default == value
            if isinstance(number, float) and not math.isfinite(number) and not is_default:
                raise ConfigError(
                    f"Can't set '{name}' of '{label}' in {where}: expected a finite number, found {number}."
                )


def may_move(value: Any) -> bool:
    """Whether a value from the config is a schedule, or a tuple with one."""
    if isinstance(value, tuple):
        return any(map(may_move, value))
    return isinstance(value, list) or hasattr(value, "__next__")


# ---------------------------------------------------------------------- values of schedules

# The first values to try. Valid ranges usually begin at 0, and some end at 1.
_TRIED = (1e-12, 1.0 - 1e-7, 1000.0)


class OptionRanges:
    """The valid values of an algorithm's options that schedules move, as far as they are known.

    A torch class checks its options only when it is built: a NaN that a schedule puts in `weight_decay` later goes into
    the weights. So each value is checked before it is written. The class itself checks a value, when a small optimizer
    is built with it. That is too slow for every step, so each option has a range, which spans all values accepted so
    far, beginning with a few that are tried at first.

    algorithm (Algorithm): The algorithm.
    """

    def __init__(self, algorithm: Algorithm):
        self.algorithm = algorithm
        self._ranges: dict[tuple[str, int | None], tuple[float, float]] = {}

    def check(self, name: str, sources: Mapping[str, Any]) -> None:
        """Check the value of an option at this step.

        name (str): The option.
        sources (Mapping[str, Any]): All options of the algorithm, including schedules, and tuples with schedules.
        RAISES (ScheduleError): It is not finite, or the algorithm does not accept it.
        """
        source = sources[name]
        for place, schedule in enumerate(source) if isinstance(source, tuple) else ((None, source),):
            if isinstance(schedule, Schedule):
                low, high = self._ranges.get((name, place)) or self._begin(name, place, sources)
                if not low <= schedule.value <= high:
                    self._try(name, place, schedule, sources)

    def _begin(self, name: str, place: int | None, sources: Mapping[str, Any]) -> tuple[float, float]:
        taken = [value for value in _TRIED if self._refusal(_with(sources, name, place, value)) is None]
        self._ranges[name, place] = found = (min(taken), max(taken)) if taken else (math.inf, -math.inf)
        return found

    def _try(self, name: str, place: int | None, schedule: Schedule, sources: Mapping[str, Any]) -> None:
        """Try a value outside the range; if it is accepted, the range grows."""
        value = schedule.value
        refusal = self._refusal(_with(sources, name, place, value)) if math.isfinite(value) else "It is not finite"
        if refusal is not None:
            raise ScheduleError(
                f"Can't use the schedule of '{schedule.name}' at step {schedule.position}: expected a value that "
                f"'{self.algorithm.label}' accepts for {option_entry(name, place)}, found {value}. "
                f"{refusal.rstrip('.')}. No param was updated at this step. Give the schedule values in the range of "
                "the option."
            )
        low, high = self._ranges[name, place]
        self._ranges[name, place] = min(low, value), max(high, value)

    def _refusal(self, options: Mapping[str, Any]) -> str | None:
        """The algorithm's reason for refusing options. None: it accepts them."""
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.algorithm.build([small_matrix(options)], lr=0.001, **options)
            except Exception as error:
                return str(error)
        return None


def _with(sources: Mapping[str, Any], name: str, place: int | None, value: float) -> dict[str, Any]:
    """The options of this step, with one of them replaced."""
    options = {other: current(source) for other, source in sources.items()}
    if place is None:
        return options | {name: value}
    return options | {name: (*options[name][:place], value, *options[name][place + 1 :])}


# ---------------------------------------------------------------------- the state of a param that is still to come
#
# For the memory, the example has as many dimensions as the param, each of another prime size (a size of 1 stays). The
# prime factors of the sizes of its state tell its dimensions: 7 x 11 is one number for each cell, 7 one for each row.

# Larger than the factors 2 and 3, which algorithms may add.
_PRIMES = (7, 11, 13, 17, 19, 23)


def example_state(
    algorithm: Algorithm,
    options: Mapping[str, Any],
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """The state of a param of this shape after its first update. Random generators keep their state.

    options (Mapping[str, Any]): Options at some step: numbers, no schedules.
    RAISES (Exception): Whatever the algorithm says of such a param.
    """
    device = small_matrix(options).device.type
    with same_generators(device):
        param = torch.ones(shape, device=device, dtype=dtype, requires_grad=True)
        optimizer = algorithm.build([param], lr=0.001, **options)
        param.grad = torch.randn(shape, device=device, dtype=dtype)
        step(optimizer)
    return dict(optimizer.state.get(param, {}))


class StateSizes:
    """The sizes of the state of params. An algorithm is tried once for each kind of shape."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], list[tuple[int, dict[int, int]]]] = {}

    def bytes_of(
        self,
        algorithm: Algorithm,
        options: Mapping[str, Any],
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
    ) -> int:
        """The size of the state of a param after its first update, in bytes.

        algorithm (Algorithm): Optimizes it.
        options (Mapping[str, Any]): Its options at some step.
        """
        if algorithm.state_bytes is not None:
            return algorithm.state_bytes({**algorithm.options, **options}, shape)
        sizes = tuple(1 if size == 1 else prime for size, prime in zip(shape, _PRIMES))
        # Sizes don't depend on the values of options, except that 0 switches some off, e.g. momentum.
        switches = tuple(
            (name, value if isinstance(value, (bool, str, type(None))) else bool(value))
            for name, value in sorted(options.items())
        )
        key = id(algorithm), switches, sizes, dtype
        if key not in self._known:
            both = {**algorithm.options, **options}
            fixed = {name: value for name, value in both.items() if not may_move(value)}
            state = example_state(algorithm, fixed, sizes, dtype)
            self._known[key] = [_read_off(value) for value in state.values() if isinstance(value, torch.Tensor)]
        real = dict(zip(sizes, shape))
        return sum(
            fixed * math.prod(real[prime] ** power for prime, power in powers.items())
            for fixed, powers in self._known[key]
        )


def _read_off(tensor: torch.Tensor) -> tuple[int, dict[int, int]]:
    """The bytes per cell, and how often each prime divides the number of cells."""
    rest = tensor.numel()
    powers: dict[int, int] = {}
    for prime in _PRIMES:
        while rest and rest % prime == 0:
            rest //= prime
            powers[prime] = powers.get(prime, 0) + 1
    return rest * tensor.element_size(), powers
