"""`spacy torchopt params`: a table of every param."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
import typer
from rich.console import Console
from spacy.language import Language
from thinc.api import Model, Shim
from typer import Option as Opt

from ..core.errors import ConfigError, TorchOptError
from ..core.params import NamedParam, all_names, components_with_model, trainable_components, walk
from ..core.types import ParamInfo
from ._command import CODE, CONFIG, GPU, JSON
from ._screen import errors_shown, make_console, print_error
from ._setup import Setup, build, note_on_scores, schedule_notes
from ._terminal import print_json, print_notes, print_table, short

_LIST_THEM = " List them: spacy torchopt params."


class ParamRow(NamedTuple):
    """One param, with the field names of the JSON.

    shape (list[int] | None): None: it has no value.
    group (str | None): None: the optimizer does not train it.
    learn_rate_at_steps (float | None): None: not requested.
    algorithm (str | None): Its name in the config. None: the optimizer does not train it.
    weight_decay (float | None): None: the algorithm has none, or the param is not trained.
    frozen (str | None): Why it is not trained, or until when. None: it is trained from the start.
    frozen_until (int | None): The first step that updates it. None: never updated.
    """

    name: str
    component: str
    shape: list[int] | None
    size: int
    dtype: str
    device: str
    kind: str
    group: str | None
    algorithm: str | None
    learn_rate: float
    learn_rate_at_steps: float | None
    weight_decay: float | None
    frozen: str | None
    frozen_until: int | None


def params(
    ctx: typer.Context,
    config_path: Path = CONFIG,
    steps: Optional[int] = Opt(None, "--steps", "-n", min=0, help="Also show the learning rate at this step"),
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
    use_gpu: int = GPU,
) -> None:
    """
    List every param, with its group and learning rate. Shows name, shape, size, device, kind, group, learning rate,
    weight decay, and whether the param is frozen; totals by group and component; patterns in the config that match
    nothing. The pipeline is built and initialized as in `spacy train`, so pass the same overrides, such as
    --paths.train train.spacy. A trained pipeline is loaded instead. Nothing is trained or written.
    """
    with errors_shown(as_json=as_json), schedule_notes() as notes:
        setup = build(config_path, ctx.args, code_path=code_path, use_gpu=use_gpu)
        unmatched, problem = tell_pipeline(setup)
        now = describe(setup)
        if steps is not None:
            for _ in range(steps):
                setup.optimizer.step_schedules()
        rows = list(rows_of(setup, now, None if steps is None else describe(setup)))
    notes += note_on_scores(setup.optimizer)
    groups, components = _sums_by_group(rows), sums_by_component(rows)
    if as_json:
        print_json(
            {
                "steps": steps,
                "params": [row._asdict() for row in rows],
                "groups": groups,
                "components": components,
                "unmatched_patterns": unmatched,
                "problem": problem,
                "notes": notes,
            }
        )
    else:
        console = make_console()
        _print(console, rows, groups, components, steps)
        print_notes(console, notes)
        for text in [*(found["message"] for found in unmatched), *([problem] if problem else [])]:
            print_error(console, text)
    if unmatched or problem:
        sys.exit(1)


# ---------------------------------------------------------------------- rows


def tell_pipeline(setup: Setup) -> tuple[list[dict[str, str]], str | None]:
    """Tell the optimizer its pipeline.

    RETURNS (tuple): All patterns that match nothing, and another error that training would raise.
    """
    names = all_names(setup.nlp)
    unmatched: list[dict[str, str]] = []
    for pattern in setup.optimizer.patterns:
        try:
            pattern.check(names)
        except ConfigError as error:
            unmatched.append(
                {"pattern": pattern.text, "where": pattern.where, "message": str(error).removesuffix(_LIST_THEM)}
            )
    if not unmatched:
        try:
            setup.initialize()
            return [], None
        except TorchOptError as error:
            problem = str(error)
            setup.introduce()
            return [], problem
    setup.introduce()
    return unmatched, None


def describe(setup: Setup) -> dict[str, ParamInfo]:
    return {info.name: info for info in setup.optimizer.describe()}


def rows_of(setup: Setup, now: dict[str, ParamInfo], later: dict[str, ParamInfo] | None) -> Iterator[ParamRow]:
    """Every param in the order of the pipeline, also those that the optimizer doesn't know."""
    reasons = _why_not_trained(setup.nlp, setup.frozen)
    seen: set[Any] = set()
    for component, model in components_with_model(setup.nlp):
        for found in walk(model, component):
            if found.key in seen:  # a model that several components share
                continue
            seen.add(found.key)
            value = _value_of(found)
            shape = None if value is None else list(value.shape)
            size = 0 if shape is None else math.prod(shape)
            kind = "torch" if isinstance(found.owner, Shim) else "thinc"
            info = now.get(found.name)
            if info is None:
                reason = reasons.get(id(model)) or ("no value" if not size else "requires_grad = false")
                rate_later = None if later is None else 0.0
                yield ParamRow(
                    found.name,
                    component,
                    shape,
                    size,
                    _dtype_of(value),
                    _device_of(value),
                    kind,
                    None,
                    None,
                    0.0,
                    rate_later,
                    None,
                    reason,
                    None,
                )
            else:
                yield ParamRow(
                    found.name,
                    component,
                    shape,
                    size,
                    info.dtype,
                    info.device,
                    info.kind,
                    info.group,
                    info.algorithm,
                    info.learn_rate,
                    None if later is None else later[found.name].learn_rate,
                    info.options.get("weight_decay", info.options.get("L2")),
                    None
                    if not info.frozen_until
                    else "freeze"
                    if info.frozen_until == math.inf
                    else f"until step {info.frozen_until:.0f}",
                    None if info.frozen_until == math.inf else int(info.frozen_until),
                )


def _why_not_trained(nlp: Language, frozen: list[str]) -> dict[int, str]:
    """Why components are not trained, by the `id` of their model."""
    trained = {id(model) for _, model in trainable_components(nlp, frozen)}
    reasons: dict[int, str] = {}
    for name, proc in nlp.components:
        model = getattr(proc, "model", None)
        if isinstance(model, Model) and id(model) not in trained:
            reasons[id(model)] = (
                "frozen_components" if name in frozen else "disabled" if name in nlp.disabled else "not trainable"
            )
    return reasons


def _value_of(found: NamedParam) -> Any:
    """The array or tensor behind a name, or None."""
    if found.param is not None:
        return None if torch.nn.parameter.is_lazy(found.param) else found.param
    return found.owner.maybe_get_param(found.key[1])  # type: ignore[index]


def _dtype_of(value: Any) -> str:
    """The dtype of an array or tensor. Without one yet, it will be float32."""
    return "float32" if value is None else str(value.dtype).removeprefix("torch.")


def _device_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return str(value.device)
    return f"cuda:{value.device.id}" if hasattr(value, "get") else "cpu"  # CuPy's arrays have `get`


# ---------------------------------------------------------------------- sums


def _sums_by_group(rows: list[ParamRow]) -> list[dict[str, Any]]:
    sums: dict[str | None, dict[str, Any]] = {}
    for row in rows:
        rates = {"learn_rate": row.learn_rate, "learn_rate_at_steps": row.learn_rate_at_steps}
        found = sums.setdefault(row.group, {"group": row.group, "params": 0, "size": 0, **rates})
        found["params"] += 1
        found["size"] += row.size
    return sorted(sums.values(), key=lambda found: found["group"] is None)


def sums_by_component(rows: list[ParamRow]) -> list[dict[str, Any]]:
    sums: dict[str, dict[str, Any]] = {}
    for row in rows:
        found = sums.setdefault(row.component, {"component": row.component, "params": 0, "size": 0, "trained_size": 0})
        found["params"] += 1
        found["size"] += row.size
        found["trained_size"] += row.size if row.frozen_until is not None else 0
    return list(sums.values())


# ---------------------------------------------------------------------- tables


def _print(
    console: Console,
    rows: list[ParamRow],
    groups: list[dict[str, Any]],
    components: list[dict[str, Any]],
    steps: int | None,
) -> None:
    rates = ["rate"] if steps is None else ["rate", f"at step {steps}"]

    def rates_of(now: float, later: float | None) -> list[str]:
        return [short(now)] if steps is None else [short(now), short(later)]

    several = len({row.algorithm for row in rows} - {None}) > 1
    print_table(
        console,
        ["name", "shape", "size", "device", "kind", "group", *["algorithm"] * several, *rates, "decay", "frozen"],
        [
            [
                row.name,
                "" if row.shape is None else " x ".join(map(str, row.shape)),
                f"{row.size:,}",
                row.device,
                row.kind,
                row.group or "-",
                *[row.algorithm or "-"] * several,
                *rates_of(row.learn_rate, row.learn_rate_at_steps),
                short(row.weight_decay),
                row.frozen or "",
            ]
            for row in rows
        ],
        numbers=["size", *rates, "decay"],
    )
    print_table(
        console,
        ["group", "params", "size", *rates],
        [
            [
                found["group"] or "- (not trained)",
                f"{found['params']:,}",
                f"{found['size']:,}",
                *rates_of(found["learn_rate"], found["learn_rate_at_steps"]),
            ]
            for found in groups
        ],
        numbers=["params", "size", *rates],
    )
    total = {
        "component": "all",
        **{key: sum(found[key] for found in components) for key in ("params", "size", "trained_size")},
    }
    print_table(
        console,
        ["component", "params", "size", "trained"],
        [
            [found["component"], f"{found['params']:,}", f"{found['size']:,}", f"{found['trained_size']:,}"]
            for found in [*components, total]
        ],
        numbers=["params", "size", "trained"],
    )
