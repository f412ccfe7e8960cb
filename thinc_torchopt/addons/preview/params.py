"""All params of a training: what each is, by which rate it is trained, and why it is not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from rich.console import Console
from spacy.language import Language
from thinc.api import Model, Shim

from ...core.errors import ConfigError, TorchOptError
from ...core.params import NamedParam, all_names, components_with_model, trainable_components, walk
from ...core.tables import as_text, html_lines, html_of, html_table, print_table
from ...core.types import ParamInfo
from ...core.words import short
from ...loop.setup import AnyConfig, Setup, build, note_on_scores, schedule_notes

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
    group: str | None = None
    algorithm: str | None = None
    learn_rate: float = 0.0
    learn_rate_at_steps: float | None = None
    weight_decay: float | None = None
    frozen: str | None = None
    frozen_until: int | None = None


class TableData(NamedTuple):
    """The cells of a table. numbers (list[str]): Headers of columns that are aligned to the right."""

    headers: list[str]
    rows: list[list[str]]
    numbers: list[str]


@dataclass(repr=False)
class ParamTable:
    """The params of a training. A notebook shows it.

    rows (list[ParamRow]): All params, in the order of the pipeline.
    steps (int | None): The step of the second learning rate. None: there is none.
    unmatched (list[dict]): Patterns in the config that match no param: "pattern", "where", "message".
    problem (str | None): Another error that a training would raise.
    notes (list[str]): What to know about the rates.
    """

    rows: list[ParamRow]
    steps: int | None = None
    unmatched: list[dict[str, str]] = field(default_factory=list)
    problem: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def stops(self) -> list[str]:
        """Why a training would stop."""
        return [*(found["message"] for found in self.unmatched), *([self.problem] if self.problem else [])]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "steps": self.steps,
            "params": [row._asdict() for row in self.rows],
            "unmatched_patterns": self.unmatched,
            "problem": self.problem,
            "notes": self.notes,
        }

    def print(self, console: Console) -> None:
        """Print a row for each param."""
        headers, rows, numbers = self._table()
        print_table(console, headers, rows, numbers=numbers)

    def __repr__(self) -> str:
        told = [*(f"Note: {note}" for note in self.notes), *(f"Error: {text}" for text in self.stops)]
        return "\n".join([as_text(self.print), *([""] if told else []), *told])

    def _repr_html_(self) -> str:
        told = [*(("Stops", text) for text in self.stops), *(("Note", note) for note in self.notes)]
        lines = html_lines(told, kinds={"Stops": "stops", "Note": "note"}) if told else ""
        headers, rows, numbers = self._table()
        return html_of(lines, html_table(headers, rows, numbers=numbers))

    def _table(self) -> TableData:
        several = len({row.algorithm for row in self.rows} - {None}) > 1
        rates = ["rate"] if self.steps is None else ["rate", f"at step {self.steps}"]
        return TableData(
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
                    *[short(row.learn_rate), short(row.learn_rate_at_steps)][: len(rates)],
                    short(row.weight_decay),
                    row.frozen or "",
                ]
                for row in self.rows
            ],
            ["size", *rates, "decay"],
        )


def params(
    config: AnyConfig, overrides: Mapping[str, Any] = {}, *, steps: int | None = None, gpu_id: int = -1
) -> ParamTable:
    """List every param, with its group and learning rate. The pipeline is built and initialized as in `spacy train`.

    config (AnyConfig): A config, its file, or the folder of a trained pipeline.
    overrides (Mapping): Other values, by paths such as "paths.train".
    steps (int | None): Also show the learning rate at this step.
    gpu_id (int): The GPU. -1: the CPU.
    RETURNS (ParamTable): The params.
    RAISES (ConfigError): The config has an error, or its optimizer is not ours.
    """
    with schedule_notes() as notes:
        setup = build(config, overrides, use_gpu=gpu_id)
        unmatched, problem = tell_pipeline(setup)
        now = describe(setup)
        if steps is not None:
            for _ in range(steps):
                setup.optimizer.step_schedules()
        rows = list(rows_of(setup, now, None if steps is None else describe(setup)))
    return ParamTable(rows, steps, unmatched, problem, [*notes, *note_on_scores(setup.optimizer)])


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
            setup.introduce()
            return [], str(error)
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
            row = ParamRow(found.name, component, shape, size, _dtype_of(value), _device_of(value), kind)
            if (info := now.get(found.name)) is None:
                reason = reasons.get(id(model)) or ("no value" if not size else "requires_grad = false")
                yield row._replace(frozen=reason, learn_rate_at_steps=None if later is None else 0.0)
                continue
            is_frozen = info.frozen_until == math.inf
            yield row._replace(
                dtype=info.dtype,
                device=info.device,
                kind=info.kind,
                group=info.group,
                algorithm=info.algorithm,
                learn_rate=info.learn_rate,
                learn_rate_at_steps=None if later is None else later[found.name].learn_rate,
                weight_decay=info.options.get("weight_decay", info.options.get("L2")),
                frozen="freeze" if is_frozen else f"until step {info.frozen_until:.0f}" if info.frozen_until else None,
                frozen_until=None if is_frozen else int(info.frozen_until),
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
