"""What a training does: a table of the params that learn alike, and a few lines."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Literal

from spacy.tokens import Doc
from spacy.util import registry
from thinc.api import Model

from ...core.config_checks import PREFIXES, sections_of
from ...core.optimizer import TorchOptimizer
from ...core.types import ParamInfo
from ...core.words import count, plain
from ...loop.data_check import Corpus
from ...loop.schedule_check import Rates
from ...loop.setup import Setup
from ..controller import HFControls
from ..fine_tuning import (
    Transformer,
    count_lost,
    transformers_of,
)
from ..online import describe as describe_layers
from .params import ParamRow, TableData

# Label and text.
Line = tuple[str, str]
Tier = Literal["stable", "provisional", "experimental"]

_MOST_TURNS = 6
_MAY_CHANGE = {
    "provisional": "Provisional, may change in a minor version",
    "experimental": "Experimental, may change in any version",
}


def lines_of(setup: Setup, rows: Sequence[ParamRow]) -> Iterator[Line]:
    """Trained params, the optimizer, the end, and the parts of the package that may change."""
    yield "Trains", _trained(rows)
    block = setup.config["training"]["optimizer"]
    names = dict.fromkeys(row.algorithm for row in rows if row.algorithm and "algorithm" in block)
    yield "Optimizer", f"{', '.join(names) or block['@optimizers']}."
    if recurrent := _recurrent(setup):
        yield "Recurrent", recurrent
    yield "Ends", _end(setup.config["training"], setup.optimizer)
    if unstable := _stability(setup.config):
        yield "Stability", unstable


def _trained(rows: Sequence[ParamRow]) -> str:
    trained = [row for row in rows if row.frozen_until is not None]
    if not trained:
        return "Nothing."
    sizes: Counter[str] = Counter()
    for row in trained:
        sizes[row.component] += row.size
    parts = [f"{component} {size:,}" for component, size in sizes.items() if size]
    where = " and ".join(sorted({"the CPU" if row.device == "cpu" else row.device for row in trained}))
    return (
        f"{sum(row.size for row in trained):,} numbers in {count(len(trained), 'param')} on {where}: "
        f"{', '.join(parts)}."
    )


def _recurrent(setup: Setup) -> str:
    """The recurrent layers, and whether their gradients are exact."""
    ways = {"d-rtrl": "D-RTRL", "bptt": "BPTT"}
    found = [
        f"{name}: {layer.cell} by {ways[layer.learning]}, {layer.gradient}."
        for name, pipe in setup.nlp.pipeline
        if isinstance(model := getattr(pipe, "model", None), Model)
        for layer in describe_layers(model)
    ]
    return " ".join(dict.fromkeys(found))


def _end(training: Mapping[str, Any], optimizer: TorchOptimizer) -> str:
    ends = []
    if training["max_steps"]:
        ends.append(f"at step {training['max_steps']:,} (max_steps)")
    if training["max_epochs"] > 0:
        ends.append(f"after epoch {training['max_epochs']:,} (max_epochs)")
    if training["patience"]:
        ends.append(f"when the score got no better for {training['patience']:,} steps (patience)")
    if (budget := optimizer.attachments.get("budget")) is not None:
        ends.append(f"after {budget.limit} (budget)")
    ends += [f"by rule {name}" for name in _rules_that_stop(optimizer)]
    text = f"{', or '.join(ends) or 'never by itself'}{', whichever comes first' if len(ends) > 1 else ''}."
    if training["max_epochs"] < 0:
        text += " The corpus is streamed again and again (max_epochs = -1): its end does not end the training."
    every = count(training["eval_frequency"], "step")
    latest = "" if budget is None else ", and after each ninth of the budget at the latest"
    return f"{text[0].upper()}{text[1:]} It is evaluated every {every}{latest}."


def _rules_that_stop(optimizer: TorchOptimizer) -> list[str]:
    """The names of the rules that may end the training."""
    if (rules := optimizer.attachments.get("controller")) is None:
        return []
    operations = rules.definition.operations
    return [
        spec.name
        for spec in rules.definition.controllers
        if any(
            isinstance(operations[name].instance, HFControls) and action == "should_training_stop"
            for name, action in spec.actions
        )
    ]


def tier_of(module: str) -> Tier:
    """How much a module may change between versions: see docs/stability.md. A package that is not stable says so in its
    `__init__.py`: `STABILITY: Final = "experimental"`.

    module (str): Its dotted name. It is imported. The innermost package that names one decides.
    """
    while module:
        tier: Tier | None = getattr(sys.modules.get(module), "STABILITY", None)
        if tier is not None:
            return tier
        module = module.rpartition(".")[0]
    return "stable"


def tiers_in(config: Mapping[str, Any]) -> dict[str, Tier]:
    """The tiers of the registered functions of this package that a config names, by their names."""
    return {
        name: tier_of(registry.get(key[1:], name).__module__)
        for section in sections_of(config)
        for key, name in section.block.items()
        if key.startswith("@") and str(name).startswith(PREFIXES)
    }


def _stability(config: Mapping[str, Any]) -> str:
    """Say which names of a config may change in a later version."""
    tiers = tiers_in(config)
    names = {tier: [name for name, its in tiers.items() if its == tier] for tier in _MAY_CHANGE}
    return " ".join(f"{_MAY_CHANGE[tier]}: {', '.join(found)}." for tier, found in names.items() if found)


# ---------------------------------------------------------------------- the table


def table_of(
    optimizer: TorchOptimizer, rows: Sequence[ParamRow], now: Mapping[str, ParamInfo], rates: Rates
) -> TableData:
    """The params that learn alike: how many numbers, the highest learning rate, weight decay, clipping and schedule.

    now (Mapping[str, ParamInfo]): The params that the optimizer knows. rates (Rates): Of each param group at each step.
    """
    alike: dict[tuple[str, Any], list[ParamRow]] = {}
    for row in rows:
        info = now.get(row.name)
        if info is not None:
            alike.setdefault((_blocks_of(info), info.frozen_until), []).append(row)
        elif row.frozen != "no value":
            alike.setdefault((f"{row.component}/*", row.frozen), []).append(row)
    several = len({row.algorithm for row in rows} - {None}) > 1
    cells = []
    for (name, until), found in alike.items():
        infos = [now[row.name] for row in found if row.name in now]
        begin = until if infos else math.inf
        learn = _rates_of({info.group for info in infos}, rates, begin)
        cells.append(
            [
                name,
                f"{sum(row.size for row in found):,}",
                *[", ".join(dict.fromkeys(info.algorithm for info in infos))] * several,
                learn[0],
                _range([row.weight_decay or 0.0 for row in found]) if infos else "",
                _clipping_of(infos[0], optimizer) if infos else "",
                learn[1] if infos else str(until),
            ]
        )
    headers = ["params", "numbers", *["optimizer"] * several, "highest rate", "decay", "clip", "schedule"]
    return TableData(headers, cells, ["numbers", "highest rate", "decay"])


def _blocks_of(info: ParamInfo) -> str:
    """The blocks of a param's group. layer_decay and skip_decay make groups of their own in torch."""
    return "+".join(block for block in info.blocks if block != "skip_decay") or "default"


def _rates_of(groups: set[str], rates: Rates, begin: float) -> tuple[str, str]:
    """The highest rates of param groups that move alike, and how they move. begin (float): The first step of these."""
    trained = [values for label in sorted(groups) if (values := rates[label][int(begin) :] if begin < math.inf else [])]
    if not trained:
        return "", "frozen" if begin == math.inf else f"frozen until step {begin:,.0f}, after the end"
    text = tell_rates(max(trained, key=max), int(begin))
    return _range([max(values) for values in trained]), f"from step {begin:,.0f} on: {text}" if begin else text


def _range(values: Sequence[float]) -> str:
    return "..".join(dict.fromkeys(plain(value) for value in (min(values), max(values))))


def _clipping_of(info: ParamInfo, optimizer: TorchOptimizer) -> str:
    """The limit of gradients at first, with `clip_by`; and the modules that clip."""
    modules = [
        module.label
        for modular in optimizer.torch_optimizers.values()
        for module in getattr(modular, "modules", ())
        if module.clips and f"{module.label}_enabled" in info.options
    ]
    limit = [f"{plain(optimizer.grad_clip)} {optimizer.clip_by}"] if optimizer.grad_clip else []
    return ", ".join(limit + modules)


def tell_rates(values: Sequence[float], begin: int = 0) -> str:
    """How a rate moves: its first value, and where it turns.

    values (Sequence[float]): The rate of each step. begin (int): The step of the first.
    """
    moves = [_direction(*pair) for pair in pairwise(values)]
    # A single step at the top is a peak, not a plateau.
    for i, (before, move) in enumerate(pairwise(moves), start=1):
        if before and not move and any(moves[i + 1 : i + 2] or [True]):
            moves[i] = before
    if not any(moves):
        return "constant" if values[0] else "0 all the time: nothing is learned"
    lengths = [sum(1 for _ in same) for _, same in groupby(moves)]
    if len(lengths) > _MOST_TURNS:
        return f"{_range(values)}, {len(lengths) - 1} turns: spacy torchopt schedule"
    told, step = [plain(values[0])], 0
    for length in lengths:
        step += length
        told.append(f"{plain(values[step])} at step {begin + step:,}")
    return ", ".join(told)


def _direction(value: float, following: float) -> int:
    """1, 0 or -1."""
    if math.isclose(value, following, rel_tol=1e-9):
        return 0
    return 1 if following > value else -1


# Words of the texts that are tokenized.
_WORDS = 100_000
_BLOCK = "[training.optimizer.fine_tuning]"


def tell_windows(setup: Setup, train: Corpus) -> tuple[list[Line], list[str]]:
    """Say which windows the transformers that are trained read, and what is lost of the training data.

    RETURNS (tuple): Lines, and notes on what is lost.
    """
    settings: Any = setup.optimizer.attachments.get("fine_tuning")
    window = None if settings is None else settings.window_pieces
    lines: list[Line] = []
    notes = []
    docs = _first(train)
    for one in transformers_of(setup.nlp, setup.frozen):
        text = f"'{one.component}' reads windows of {window} wordpieces, {settings and settings.stride} apart"
        lost = None if one.is_curated else count_lost(one, one.node.attrs["get_spans"], docs)
        if window is not None:
            text += (
                f", {settings.max_batch_pieces:,} wordpieces at once, and is saved with windows of words that lose none"
            )
            if lost is not None and lost.cut:
                text += f". With the windows of its own section, {lost}"
            lines.append(("Windows", f"{text}."))
        elif lost is not None and lost.cut:
            happens = "" if _cuts(one) else ": more are an error of torch"
            notes.append(
                f"{lost}. '{one.component}' reads at most {one.longest_input} at once{happens}. A block {_BLOCK} "
                'with @misc = "thinc-torchopt.FineTuning.v1" makes windows that lose none.'
            )
    return lines, notes


def _first(train: Corpus) -> list[Doc]:
    words, docs = 0, []
    for example in train.examples:
        if words >= _WORDS:
            break
        docs.append(example.predicted)
        words += len(example.predicted)
    return docs


def _cuts(transformer: Transformer) -> bool:
    """Whether what is too long is dropped. Otherwise it reaches torch, which has no positions for it."""
    return bool(transformer.tokenizer.model_max_length == transformer.longest_input)
