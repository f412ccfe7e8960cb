"""Describe a training in lines: what is trained, by which optimizer, at which rates, until when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from itertools import groupby, pairwise
from typing import Any

from spacy.util import registry
from thinc.api import Model

from ...core.optimizer import TorchOptimizer, create_optimizer
from ...core.rates import RateWriter
from ...core.stability import tiers_in
from ...core.types import ParamInfo
from ...core.words import count, plain
from ...loop.schedule_check import Rates
from ...loop.setup import Setup
from ..budget import Budget
from ..controller import ControllerSpec, HFControls
from ..distributed import Distributed
from ..online import describe as describe_layers
from ..recipes import THINC
from .params import ParamRow, sums_by_component

# Label and text.
Line = tuple[str, str]

# The settings that a line is about. At their defaults they have never hurt anybody.
_SETTINGS = {
    "Rates": ("on_outside_write", "enable_runtime_guards"),
    "Clipping": ("grad_clip", "clip_by"),
    "On NaN": ("max_nonfinite",),
    "Averages": ("averages", "use_averages"),
}
_MOST_GROUPS = 6
_MOST_TURNS = 6
_MODULAR = "thinc-torchopt.Modular.v1"
_ON_OUTSIDE_WRITE = {
    "restore": "that is undone, with a warning",
    "adopt": "it is kept, and schedules go on from there",
    "raise": "the training stops with an error",
}
_PRECISION = {
    "bf16": "While they are trained, torch modules compute in bfloat16 where that is safe. Params, gradients and "
    "evaluations are in float32.",
    "tf32": "While they are trained, torch modules multiply matrices in TF32, on GPUs that have it. Evaluations are in "
    "full float32.",
}
_MAY_CHANGE = {
    "provisional": "Provisional, may change in a minor version",
    "experimental": "Experimental, may change in any version",
}
_ON_THREADS: dict[Any, str] = {1: "one thread", "auto": "as many threads as are fastest"}
_REASONS = {"freeze": "always frozen, by the optimizer's settings", "disabled": "disabled in [nlp]"}


def lines_of(setup: Setup, rows: Sequence[ParamRow], now: Mapping[str, ParamInfo], rates: Rates) -> Iterator[Line]:
    """Describe the settings of a training. rates (Rates): Of each param group at each step."""
    block = setup.config["training"]["optimizer"]
    is_thinc = block["@optimizers"] in THINC
    settings = registry.fill({"optimizer": block})["optimizer"]
    yield "Trains", _trained(rows)
    if left := _not_trained(rows):
        yield "Doesn't train", left
    if recurrent := _recurrent(setup):
        yield "Recurrent", recurrent
    if (precision := setup.optimizer.precision) != "float32":
        yield "Precision", _PRECISION[precision]
    if setup.optimizer.ops == "fastest":
        yield "Products", _products(setup.optimizer.ops_threads)
    yield "Optimizer", _algorithm(settings, list(now.values()), is_thinc)
    yield from _rates(setup, now, rows, rates)
    if not is_thinc:
        yield "Rates", _control(setup.optimizer.rates)
    yield "Clipping", clipping_of(settings, setup.optimizer)
    yield "On NaN", _on_nan(settings, is_thinc)
    if settings.get("spike_factor"):
        does = "is not made" if settings["on_spike"] == "skip" else "is scaled down to that"
        times = plain(settings["spike_factor"])
        yield "Spikes", f"An update whose gradients are more than {times} times as large as usual {does}."
    if (rollback := setup.optimizer.rollback) is not None:
        yield (
            "Goes back",
            f"After {count(rollback.after, 'such update')} in a row the training goes back to the last checkpoint, "
            f"and on at {plain(rollback.factor)} times the learning rates; it stops when that has happened "
            f"{count(rollback.at_most, 'time')}.",
        )
    yield "Averages", _averages(settings, is_thinc)
    yield "Ends", _end(setup.config["training"], _rules_that_stop(setup.optimizer))
    if (rules := setup.optimizer.attachments.get("controller")) is not None:
        for i, spec in enumerate(rules.definition.controllers):
            does, events = ", ".join(actions_of(spec)), ", ".join(spec.triggers)
            yield "" if i else "Rules", f"{spec.name} takes {does} on {events}: {tell_limits(spec)}."
    if (budget := setup.optimizer.attachments.get("budget")) is not None:
        yield "Budget", _budget(budget)
    yield "Saves", _saves(setup.optimizer, setup.config["training"])
    if (several := setup.optimizer.attachments.get("distributed")) is not None:
        yield "Processes", _processes(several)
    for name, attachment in setup.optimizer.attachments.items():
        if name.startswith("attachments."):
            yield "Attached", f"{type(attachment).__name__}, by [training.optimizer.{name}]."
    if unstable := _stability(setup.config):
        yield "Stability", unstable


def usual_labels(block: dict[str, Any]) -> set[str]:
    """The labels of lines about settings that are at their defaults. block (dict): [training.optimizer]."""
    settings = registry.fill({"optimizer": block})["optimizer"]
    defaults = {name: param.default for name, param in signature(create_optimizer).parameters.items()}
    usual = {
        label
        for label, names in _SETTINGS.items()
        if all(settings.get(name, defaults[name]) == defaults[name] for name in names)
    }
    return usual - {"On NaN"} if block["@optimizers"] in THINC else usual  # thinc's have no guard


def _stability(config: Mapping[str, Any]) -> str:
    """Say which names of a config may change in a later version."""
    tiers = tiers_in(config)
    names = {tier: [name for name, its in tiers.items() if its == tier] for tier in _MAY_CHANGE}
    return " ".join(f"{_MAY_CHANGE[tier]}: {', '.join(found)}." for tier, found in names.items() if found)


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


def _products(threads: int | str) -> str:
    return (
        "On a CPU, thinc's layers multiply matrices by thinc's BLIS, NumPy or torch, whichever is the fastest when the "
        f"training begins, on {_ON_THREADS.get(threads, f'{threads} threads')}. They differ in rounding."
        " Parsers and NER make fewer products."
    )


def _trained(rows: Sequence[ParamRow]) -> str:
    trained = [row for row in rows if row.frozen_until is not None]
    if not trained:
        return "Nothing."
    parts = [
        f"{found['component']} {found['trained_size']:,}"
        for found in sums_by_component(list(rows))
        if found["trained_size"]
    ]
    where = " and ".join(sorted({"the CPU" if row.device == "cpu" else row.device for row in trained}))
    return (
        f"{sum(row.size for row in trained):,} numbers in {count(len(trained), 'param')} on {where}: "
        f"{', '.join(parts)}."
    )


def _not_trained(rows: Sequence[ParamRow]) -> str:
    reasons: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.frozen_until is None and row.frozen != "no value":
            key = row.component, _REASONS.get(str(row.frozen), str(row.frozen))
            reasons[key] = reasons.get(key, 0) + row.size
    # spaCy does not initialize frozen components that have no source: they have no numbers yet.
    return "; ".join(
        f"{f'{size:,} numbers of ' * bool(size)}{component}: {reason}" for (component, reason), size in reasons.items()
    )


def _algorithm(settings: Mapping[str, Any], infos: Sequence[ParamInfo], is_thinc: bool) -> str:
    name = settings["@optimizers"]
    if is_thinc:
        text = f"thinc's {name}."
    elif "algorithm" not in settings:
        text = f"{name}: the arithmetic of thinc's {name.removeprefix('thinc-torchopt.')}, computed by torch."
    else:
        algorithm = settings["algorithm"]
        text = f"{_named_algorithm(algorithm)}."
        if algorithm.get("fallback"):
            text += f" Params that it can't optimize are optimized by {algorithm['fallback']['@torch_optimizers']}."
        for name, block in settings.get("param_groups", {}).items():
            if block.get("algorithm"):
                text += f" The params of '{name}' are optimized by {_named_algorithm(block['algorithm'])}."
    decays = sorted({_decay_of(info) for info in infos if info.frozen_until != float("inf")} - {0.0})
    if not decays:
        return f"{text} No weight decay."
    none = sum(1 for info in infos if not _decay_of(info))
    moves = any(
        isinstance(value, (dict, list)) for key, value in _options(settings).items() if key in ("weight_decay", "L2")
    )
    text += f" Weight decay {' or '.join(map(plain, decays))}{' at first' if moves else ''}"
    return f"{text}, none for {count(none, 'param')}." if none else f"{text}."


def _named_algorithm(algorithm: Mapping[str, Any]) -> str:
    name = str(algorithm["@torch_optimizers"])
    if name == _MODULAR:
        return f"{name}: {_chain(algorithm)}"
    return f"{algorithm['name']} of pytorch-optimizer" if name == "pytorch-optimizer.create.v1" else name


def _chain(algorithm: Mapping[str, Any]) -> str:
    """The regularizers and modules of Modular, in order."""
    kinds = [algorithm["regularizers"], algorithm["modules"]]
    found = [", ".join(_named(label, block) for label, block in blocks.items()) for blocks in kinds if blocks]
    return ", then ".join(found) or "without modules"


def _named(label: str, block: Mapping[str, Any]) -> str:
    name = str(block.get("@gradient_modules") or block.get("@regularizers"))
    return f"{label} ({name.removeprefix('thinc-torchopt.').removesuffix('.v1')})"


def _options(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    algorithm: Mapping[str, Any] = settings.get("algorithm", settings)
    return algorithm.get("options", algorithm)


def _decay_of(info: ParamInfo) -> float:
    return float(info.options.get("weight_decay", info.options.get("L2", 0.0)) or 0.0)


def clipping_of(settings: Mapping[str, Any], optimizer: TorchOptimizer) -> str:
    """How gradients are clipped. settings (Mapping): [training.optimizer], filled in."""
    limit = settings.get("grad_clip", 0.0)
    by = [text for text in (_clipping_by_limit(limit, optimizer), _clipping_by_modules(settings, optimizer)) if text]
    return " ".join(by) or "None."


def _clipping_by_modules(settings: Mapping[str, Any], optimizer: TorchOptimizer) -> str:
    given = {"algorithm": settings.get("algorithm")} | {
        f"param_groups.{name}.algorithm": block.get("algorithm")
        for name, block in settings.get("param_groups", {}).items()
    }
    found = [
        _named(label, block)
        for path, modular in optimizer.torch_optimizers.items()
        if (algorithm := given.get(path)) and algorithm["@torch_optimizers"] == _MODULAR
        for (label, block), module in zip(algorithm["modules"].items(), modular.modules)  # type: ignore[attr-defined]
        if module.clips
    ]
    return f"By {'the module' if len(found) == 1 else 'the modules'} {' and '.join(found)}." if found else ""


def _clipping_by_limit(limit: Any, optimizer: TorchOptimizer) -> str:
    if limit == 0:
        return ""
    shown = plain(optimizer.grad_clip) + (" at first, then by its schedule" if isinstance(limit, (dict, list)) else "")
    if optimizer.clip_by == "value":
        return f"Each number of a gradient is cut to {shown}."
    if optimizer.clip_by == "adaptive":
        return f"The gradient of each unit is scaled down to {shown} of the norm of its weights."
    whose = {"global": "all gradients together", "component": "a component's gradients", "param": "a param's gradient"}
    if optimizer.clip_by not in whose:
        return f'Gradients are clipped to {shown} (clip_by = "{optimizer.clip_by}").'
    return (
        f"Where the norm of {whose[optimizer.clip_by]} is above {shown}, "
        f"{'it is' if optimizer.clip_by == 'param' else 'they are'} scaled down to that."
    )


def _on_nan(settings: Mapping[str, Any], is_thinc: bool) -> str:
    if is_thinc:
        return "thinc does not check: one gradient with a NaN makes weights NaN for good."
    most = settings.get("max_nonfinite", 20)
    if not most:
        return "Not checked: updates with NaN or infinite gradients are made (max_nonfinite = 0)."
    return (
        f"An update with a NaN or infinite gradient is skipped, with a warning; after {most} in a row the training "
        "stops with an error."
    )


def _averages(settings: Mapping[str, Any], is_thinc: bool) -> str:
    averages = settings.get("averages")
    if not averages and not settings.get("use_averages"):
        return "None. The params themselves are evaluated and saved."
    if is_thinc:
        return "Of thinc's params; torch models are evaluated and saved without. They look back over 10,000 updates."
    saved = "They are evaluated and saved, and the training goes on with the params."
    if not averages:
        return f"Moving averages of all params, by thinc's formula. {saved}"
    begin = f", from update {averages['start_step']:,} of a param on" if averages.get("start_step") else ""
    if averages["@misc"] == "thinc-torchopt.SWA.v1":
        return f"The plain mean of all values of a param{begin}. {saved}"
    decay = averages["decay"]
    shown = "a decay by schedule" if isinstance(decay, (dict, list)) else f"decay {plain(decay)}"
    return f"Moving averages of all params with {shown}{begin}. {saved}"


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


def _end(training: Mapping[str, Any], rules: Sequence[str]) -> str:
    ends = []
    if training["max_steps"]:
        ends.append(f"at step {training['max_steps']:,} (max_steps)")
    if training["max_epochs"] > 0:
        ends.append(f"after epoch {training['max_epochs']:,} (max_epochs)")
    if training["patience"]:
        ends.append(f"when the score got no better for {training['patience']:,} steps (patience)")
    ends += [f"by rule {name}" for name in rules]
    text = (
        f"{', or '.join(ends)}, whichever comes first."
        if len(ends) > 1
        else f"{ends[0]}."
        if ends
        else "Never by itself."
    )
    if training["max_epochs"] < 0:
        text += " The corpus is streamed again and again (max_epochs = -1): its end does not end the training."
    return f"{text[0].upper()}{text[1:]} It is evaluated every {count(training['eval_frequency'], 'step')}."


def _saves(optimizer: TorchOptimizer, training: Mapping[str, Any]) -> str:
    text = "model-best and model-last, in the folder of --output."
    checkpoint = optimizer.attachments.get("checkpoint")
    if checkpoint is None:
        return f"{text} No checkpoints: a training that is killed has to start again."
    every = f"every {count(checkpoint.every, 'step')} and " if checkpoint.every else ""
    kept = "the newest is kept" if checkpoint.keep == 1 else f"the newest {checkpoint.keep} are kept"
    again = {
        "auto": "The same command resumes from the newest, if there is one.",
        "must": "The run resumes from the newest, and stops if there is none.",
        "never": "Each run starts from scratch, and removes the checkpoints of the one before.",
    }[checkpoint.resume]
    return f"{text} The whole state in '{checkpoint.path}' {every}after each evaluation; {kept}. {again}"


def _budget(budget: Budget) -> str:
    fall = f"The learning rate falls in the last {budget.decay_ratio:.0%} of it."
    return f"The training ends after {budget.limit}. {fall}"


def _processes(settings: Distributed) -> str:
    """Describe the differences when several processes train."""
    reduced = "sum" if settings.reduce == "sum" else "mean"
    by = {"none": "", "linear": ", learning rates n times as high", "sqrt": ", learning rates sqrt(n) times as high"}
    state = " Each process keeps a part of the optimizer's state." if settings.shard_state else ""
    return (
        f"With n processes (spacy torchopt train --nproc-per-node n), each step uses the {reduced} of the gradients of "
        f"n batches{by[settings.scale_learn_rate]}.{state}"
    )


# ---------------------------------------------------------------------- learning rates


def _rates(setup: Setup, now: Mapping[str, ParamInfo], rows: Sequence[ParamRow], rates: Rates) -> Iterator[Line]:
    """One line per group of params, and one for params that are frozen at first."""
    if not now:
        return
    steps = len(next(iter(rates.values()))) - 1
    sizes = {row.name: row.size for row in rows}
    # layer_decay and skip_decay split torch's param groups: put them together by the user's blocks.
    groups: dict[tuple[str, ...], dict[str, list[ParamInfo]]] = {}
    for info in now.values():
        groups.setdefault(_blocks_of(info), {}).setdefault(info.group, []).append(info)
    told = 0
    for blocks, labels in groups.items():
        begins = {label: min(info.frozen_until for info in infos) for label, infos in labels.items()}
        trained = {label: rates[label][int(begin) :] for label, begin in begins.items() if begin <= steps}
        if not trained:
            continue
        told += 1
        if told > _MOST_GROUPS:
            continue
        infos = [info for found in labels.values() for info in found]
        size = sum(sizes[info.name] for info in infos)
        highest = max(trained, key=lambda label: max(trained[label]))
        text = tell_rates(trained[highest], int(begins[highest]))
        lowest = min(max(values) for values in trained.values())
        if lowest < max(trained[highest]) * 0.999:
            text += f"; lower layers less, the lowest {plain(lowest / max(trained[highest]))} times as much"
        if len(groups) > 1:
            text = f"{'+'.join(blocks)} ({count(len(infos), 'param')}, {size:,} numbers): {text}"
        yield "Learning rate" if told == 1 else "", f"{text[0].upper() if len(groups) == 1 else text[0]}{text[1:]}."
    if told > _MOST_GROUPS:
        yield "", f"{told - _MOST_GROUPS} more groups: spacy torchopt params and spacy torchopt schedule list them all."
    waiting = [info for info in now.values() if 0 < info.frozen_until < float("inf")]
    frozen = sorted((info.frozen_until, "+".join(_blocks_of(info)), sizes[info.name]) for info in waiting)
    for (until, name), found in groupby(frozen, key=lambda entry: entry[:2]):
        members = list(found)
        numbers = sum(size for *_, size in members)
        what = f"{name} ({count(len(members), 'param')}, {numbers:,} numbers)"
        yield "Frozen", f"{what} until step {until:,.0f}, which is the first to train it."


def _control(controller: RateWriter) -> str:
    """What happens when other code writes learning rates."""
    if not controller.enable_runtime_guards:
        return "Writes of other code to learning rates are not checked (enable_runtime_guards = false)."
    return f"If other code writes a learning rate, {_ON_OUTSIDE_WRITE[controller.on_outside_write]}."


def _blocks_of(info: ParamInfo) -> tuple[str, ...]:
    """The blocks of a param's group, without skip_decay."""
    return tuple(block for block in info.blocks if block != "skip_decay") or ("default",)


def tell_rates(values: Sequence[float], begin: int = 0) -> str:
    """Say in words how a rate moves.

    values (Sequence[float]): The rate of each step. begin (int): The step of the first.
    """
    runs = _runs(values)
    first, last = values[0], begin + len(values) - 1
    if not runs:
        return f"{plain(first)} all the time" if first else "0 all the time: nothing is learned"
    if len(runs) > _MOST_TURNS:
        return (
            f"moves between {plain(min(values))} and {plain(max(values))}, {len(runs) - 1} turns; to see them: "
            "spacy torchopt schedule"
        )
    texts = []
    for i, (direction, end) in enumerate(runs):
        step = begin + end
        if direction == 0:
            until = "from there on" if step == last else f"until step {step:,}"
            texts.append(f"stays at {plain(values[end])} {until}")
        else:
            start = f"from {plain(first)} " if i == 0 and first else ""
            texts.append(f"{'rises' if direction > 0 else 'falls'} {start}to {plain(values[end])} at step {step:,}")
    return ", then ".join(texts)


def _runs(values: Sequence[float]) -> list[tuple[int, int]]:
    """Split rates where they turn: direction (1, 0 or -1) and last index of each part. Empty: the rate is constant."""
    runs: list[tuple[int, int]] = []
    for i, (value, following) in enumerate(pairwise(values)):
        direction = (
            0 if abs(following - value) <= 1e-9 * max(abs(value), abs(following)) else 1 if following > value else -1
        )
        if runs and runs[-1][0] == direction:
            runs[-1] = direction, i + 1
        else:
            runs.append((direction, i + 1))
    # A single step at the top is a peak, not a plateau.
    kept: list[tuple[int, int]] = []
    for direction, end in runs:
        start = kept[-1][1] if kept else 0
        if direction == 0 and end - start <= 1 and kept:
            kept[-1] = kept[-1][0], end
        elif kept and kept[-1][0] == direction:
            kept[-1] = direction, end
        else:
            kept.append((direction, end))
    return [] if all(direction == 0 for direction, _ in kept) else kept


# ---------------------------------------------------------------------- rules


def actions_of(spec: ControllerSpec) -> list[str]:
    """The actions of a rule, as in its definition."""
    return [f"{operation}.{action}" for operation, action in spec.actions]


def tell_limits(spec: ControllerSpec) -> str:
    """The limits on the firings of a rule."""
    parts = []
    if spec.patience is not None:
        in_a_row = " in a row" if spec.patience.resets else ""
        parts.append(f"more than {count(spec.patience.threshold, 'time')}{in_a_row}")
    if spec.cooldown:
        parts.append(f"then not for {count(spec.cooldown, 'step')}")
    if spec.max_firings is not None:
        parts.append(f"at most {count(spec.max_firings, 'firing')}")
    return ", ".join(parts) or "each time"
