"""The messages between server and clients, as Flower's records, and their checks.

Tensors are `ArrayRecord`s, everything else `ConfigRecord`s and `MetricRecord`s; nothing is pickled. All input is
checked before it is used: the other side may have another version, another pipeline, or a training that has diverged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...core.errors import AuxVarError, MessageError
from ..modular import AuxVar, from_tensors, to_tensors
from .flower import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from .pipeline import RoundPlan
from .weights import Tensors

# Version of the messages. Both sides must have the same.
PROTOCOL = 4
# Limits for the numbers in a report, which no honest client reaches, whatever [federated.guard] says. One number beyond
# them, and the model of the round or its score is infinite, or all clients diverge in the next round.
# Scores are mostly from 0 to 1, or to 100.
MOST_SCORE = 1e6
# How many times the server's largest weight a number of a client may be.
MOST_GROWTH = 1e6
# A higher count of examples is a mistake, and would outweigh all other clients.
MOST_EXAMPLES = 10**10
# Names are shown in logs and tables.
_LONGEST_NAME = 100

_ARRAYS, _HEAD, _METRICS, _SCORES, _LOSSES = "arrays", "head", "metrics", "scores", "losses"
_AUX_ARRAYS, _AUX_VALUES = "aux-arrays", "aux-values"
# The norm of the change of all weights, beside the names of auxiliary variables.
UPDATE = "update"
_COUNTS = ("num-examples", "num-dev-examples", "steps", "words", "skipped-updates")


@dataclass(frozen=True)
class Introduction:
    """A client's first message to the server.

    name (str): Its name.
    differences (list[str]): Its differences from the server.
    examples, dev_examples (int): Number of its examples. 0: unknown in advance.
    """

    name: str
    differences: list[str]
    examples: int = 0
    dev_examples: int = 0


@dataclass(frozen=True)
class Task:
    """The server's message to a client in each round.

    run (str): The name of the run, by which clients know what they have saved in it.
    agreement (Mapping): The server's pipeline, for comparison: see agreement.py.
    taken (int): The last round whose report the server has accepted from this client. 0: none.
    aux_vars (Mapping): The server's auxiliary variables, by name.
    weights (Tensors): The global model.
    """

    run: str
    plan: RoundPlan
    agreement: Mapping[str, Any]
    taken: int
    aux_vars: Mapping[str, AuxVar]
    weights: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A client's message to the server after a round.

    name (str): The client's name. round (int): That of the task.
    score (float): The main score of the received weights on the client's dev corpus. `scores`: all scores.
        `dev_examples`: number of dev examples; 0: there is no score.
    examples, steps, words, skipped, losses, aux_vars, weights: See `pipeline.Outcome`. A report that was read has no
        weights: they are checked, and stay in the message.
    norms (dict): Of a report that was read: the norm of the change of all weights, as "update", and of the tensors of
        each auxiliary variable, by its name.
    """

    name: str
    round: int
    score: float
    scores: dict[str, float]
    dev_examples: int
    examples: int = 0
    steps: int = 0
    words: int = 0
    skipped: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    aux_vars: Mapping[str, AuxVar] = field(default_factory=dict)
    weights: Tensors = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)


# ---------------------------------------------------------------------- from the server


def question(agreement: Mapping[str, Any]) -> RecordDict:
    """The server's first message: asks for a client's name and differences."""
    return RecordDict({_HEAD: _head(agreement=json.dumps(agreement))})


def read_question(content: RecordDict) -> dict[str, Any]:
    """Read the server's agreement. RAISES (MessageError): The message is invalid."""
    return _json(_read_head(content), "agreement", dict)


def task_records(task: Task, arrays: ArrayRecord) -> RecordDict:
    """arrays (ArrayRecord): The weights, shared by many messages."""
    plan = task.plan
    head = _head(
        run=task.run,
        round=plan.round,
        steps=plan.steps,
        epochs=plan.epochs,
        taken=task.taken,
        agreement=json.dumps(task.agreement),
    )
    return RecordDict({_HEAD: head, _ARRAYS: arrays, **_aux_records(task.aux_vars)})


def read_task(content: RecordDict, weights: Mapping[str, torch.Tensor]) -> Task:
    """Read a task. weights (Mapping): The client's own weights, for comparison.

    RAISES (MessageError): The message is invalid.
    """
    head = _read_head(content)
    round, steps, epochs, taken = (_count(head, key) for key in ("round", "steps", "epochs", "taken"))
    return Task(
        _text(head, "run"),
        RoundPlan(round, steps, epochs),
        _json(head, "agreement", dict),
        taken,
        _read_aux(content, weights),
        from_arrays(content, weights),
    )


# ---------------------------------------------------------------------- from a client


def answer(found: Introduction) -> RecordDict:
    """The client's reply to `question`."""
    counts = dict(zip(_COUNTS, (found.examples, found.dev_examples)))
    return RecordDict({_HEAD: _head(name=found.name, differences=json.dumps(found.differences), **counts)})


def read_answer(content: RecordDict) -> Introduction:
    """RAISES (MessageError): The message is invalid."""
    head = _read_head(content)
    name = _text(head, "name")
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise MessageError(
            f"Can't accept a client: expected a name of at most {_LONGEST_NAME} printable characters, found "
            f"{name[:_LONGEST_NAME]!r}."
        )
    differences = [str(line) for line in _json(head, "differences", list)]
    return Introduction(name, differences, *(_count(head, key) for key in _COUNTS[:2]))


def report_records(report: Report) -> RecordDict:
    values = (report.examples, report.dev_examples, report.steps, report.words, report.skipped)
    metrics = MetricRecord({**dict(zip(_COUNTS, values)), "score": report.score})
    content = RecordDict({_HEAD: _head(name=report.name, round=report.round), _METRICS: metrics})
    content[_SCORES], content[_LOSSES] = MetricRecord(dict(report.scores)), MetricRecord(dict(report.losses))
    if report.weights:
        content[_ARRAYS] = to_arrays(report.weights)
    for key, record in _aux_records(report.aux_vars).items():
        content[key] = record
    return content


def read_report(
    content: RecordDict,
    name: str,
    round: int,
    weights: Mapping[str, torch.Tensor] | None,
    exchanged: list[str] | None = None,
) -> Report:
    """Read and check a report. Finds everything that would spoil the global model or stop the server.

    name (str), round (int): The expected client and round.
    weights (Mapping | None): The global model. None: an evaluation, whose report has no weights.
    exchanged (list[str] | None): The names of the auxiliary variables that must be in it.
    RAISES (MessageError): It can't be used.
    """
    head = _read_head(content)
    if (found := _text(head, "name")) != name:
        raise MessageError(f"Can't use the report of '{name}': expected that name in it, found '{found}'.")
    if (of := _count(head, "round")) != round:
        raise MessageError(
            f"Can't use the report of '{name}': expected that of round {round}, found one of round {of}."
        )
    metrics = _record(content, _METRICS)
    examples, dev_examples, steps, words, skipped = (_count(metrics, key) for key in _COUNTS)
    report = Report(
        name,
        round,
        check_score(name, "score", _finite(metrics, "score")),
        {key: check_score(name, key, score) for key, score in _numbers(content, _SCORES).items()},
        dev_examples,
        examples,
        steps,
        words,
        skipped,
        _numbers(content, _LOSSES),
        {} if weights is None else _read_aux(content, weights),
    )
    if weights is not None:
        largest = largest_of(weights)
        changes = (
            check_size(name, key, tensor, largest).double() - weights[key] for key, tensor in _checked(content, weights)
        )
        report.norms[UPDATE] = _norm(changes)
        for key, aux in report.aux_vars.items():
            report.norms[key] = _norm(check_size(name, key, one, largest) for one in aux.to_wire()[0].values())
        if not (examples and steps):
            raise MessageError(
                f"Can't use the report of '{name}': expected at least one example and one step, found {examples} and "
                f"{steps}."
            )
        if exchanged is not None and sorted(report.aux_vars) != sorted(exchanged):
            raise MessageError(
                f"Can't use the report of '{name}': expected the auxiliary variables {sorted(exchanged)}, found "
                f"{sorted(report.aux_vars)}."
            )
    return report


# ---------------------------------------------------------------------- limits


def check_score(client: str, name: str, score: float) -> float:
    """RAISES (MessageError): A score is too far from 0."""
    if not abs(score) <= MOST_SCORE:
        raise MessageError(
            f"Can't use the report of '{client}': expected '{name}' from -{MOST_SCORE:,.0f} to {MOST_SCORE:,.0f}, as a "
            f"score is, found {score:g}."
        )
    return score


def largest_of(weights: Mapping[str, torch.Tensor]) -> float:
    """The largest weight, whatever its sign. 1 if all are 0."""
    return max((float(value.abs().max()) for value in weights.values() if value.numel()), default=0.0) or 1.0


def check_size(client: str, name: str, tensor: torch.Tensor, largest: float) -> torch.Tensor:
    """largest (float): The server's largest weight. RAISES (MessageError): A number is too large for it."""
    found = float(tensor.abs().max()) if tensor.numel() else 0.0
    if found > MOST_GROWTH * largest:
        raise MessageError(
            f"Can't use the report of '{client}': expected numbers of at most {MOST_GROWTH:,.0f} times the server's "
            f"largest weight, {largest:.3g}, in '{name}', found {found:.3g}. The training of that client has diverged."
        )
    return tensor


# ---------------------------------------------------------------------- weights


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Half precision is sent as float32: NumPy has no bfloat16, and averages need more digits."""
    sent = {
        name: tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
        for name, tensor in tensors.items()
    }
    return ArrayRecord({name: tensor.detach().contiguous().clone() for name, tensor in sent.items()})


def cast_arrays(record: ArrayRecord, expected: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Arrays in the precision in which they are sent. Some of Flower's strategies compute in float64."""
    arrays = {name: _tensor(record, name) for name in record}
    return to_arrays({name: one.to(expected[name].dtype) if name in expected else one for name, one in arrays.items()})


def from_arrays(content: RecordDict, expected: Mapping[str, torch.Tensor]) -> Tensors:
    """The weights in a message, in the precision of the expected ones.

    expected (Mapping): Weights with the expected names, shapes and dtypes.
    RAISES (MessageError): Names, shapes or dtypes differ, or numbers are not finite.
    """
    return dict(_checked(content, expected))


def _checked(content: RecordDict, expected: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    record = content.get(_ARRAYS)
    if not isinstance(record, ArrayRecord):
        raise MessageError("Can't use the weights: expected an ArrayRecord, found none.")
    missing, unexpected = sorted(expected.keys() - record.keys()), sorted(record.keys() - expected.keys())
    if missing or unexpected:
        raise MessageError(
            f"Can't use the weights: expected {len(expected)} of known names, found {len(missing)} missing "
            f"({', '.join(missing[:3]) or 'none'}) and {len(unexpected)} unexpected "
            f"({', '.join(unexpected[:3]) or 'none'})."
        )
    for name, like in expected.items():
        tensor = _tensor(record, name)
        is_half = like.dtype in (torch.bfloat16, torch.float16)
        dtype = torch.float32 if is_half else like.dtype
        if tensor.shape != like.shape or tensor.dtype != dtype:
            raise MessageError(
                f"Can't use the weights of param '{name}': expected {dtype} of shape {tuple(like.shape)}, found "
                f"{tensor.dtype} of shape {tuple(tensor.shape)}."
            )
        tensor = tensor.to(like.dtype)
        if not bool(tensor.isfinite().all()):
            raise MessageError(
                f"Can't use the weights of param '{name}': expected finite numbers, found NaN or infinite ones. A "
                "training has diverged."
            )
        yield name, tensor


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def _tensor(record: ArrayRecord, name: str) -> torch.Tensor:
    try:
        return torch.from_numpy(record[name].numpy())
    except Exception as error:  # the sender may have written anything
        raise MessageError(f"Can't use the array '{name}': it can't be read by NumPy ({error!r}).") from error


# ---------------------------------------------------------------------- auxiliary variables


def _aux_records(aux_vars: Mapping[str, AuxVar]) -> dict[str, Any]:
    if not aux_vars:
        return {}
    tensors, values = to_tensors(aux_vars)
    return {_AUX_ARRAYS: to_arrays(tensors), _AUX_VALUES: ConfigRecord({"values": json.dumps(values)})}


def _read_aux(content: RecordDict, weights: Mapping[str, torch.Tensor]) -> dict[str, AuxVar]:
    if _AUX_VALUES not in content:
        return {}
    values, record = _json(_record(content, _AUX_VALUES), "values", dict), _record(content, _AUX_ARRAYS)
    tensors: Tensors = {}
    for key in record:
        name, _, param = key.partition(":")
        tensor = _tensor(record, key)
        if name not in values or (param in weights and tensor.shape != weights[param].shape):
            raise MessageError(f"Can't use the auxiliary variable '{key}': its name or its shape is unknown.")
        if not bool(tensor.isfinite().all()):
            raise MessageError(f"Can't use the auxiliary variable '{key}': expected finite numbers, found others.")
        tensors[key] = tensor
    try:
        return from_tensors(tensors, values)
    except (AuxVarError, KeyError) as error:
        raise MessageError(f"Can't use the auxiliary variables {sorted(values)}: {error}") from error


# ---------------------------------------------------------------------- values


def _head(**values: Any) -> ConfigRecord:
    return ConfigRecord({"protocol": PROTOCOL, **values})


def _read_head(content: RecordDict) -> Mapping[str, Any]:
    head = _record(content, _HEAD)
    if head.get("protocol") != PROTOCOL:
        raise MessageError(
            f"Can't read a message: expected protocol {PROTOCOL}, found {head.get('protocol')!r}. Server and clients "
            "must have the same version of thinc-torchopt."
        )
    return head


def _record(content: RecordDict, key: str) -> Any:
    if key not in content:
        raise MessageError(f"Can't read a message: expected the record '{key}', found {sorted(content)}.")
    return content[key]


def _numbers(content: RecordDict, key: str) -> dict[str, float]:
    record = _record(content, key)
    return {name: _finite(record, name) for name in record}


def _text(record: Mapping[str, Any], key: str) -> str:
    found = record.get(key)
    if not isinstance(found, str) or not found:
        raise MessageError(f"Can't read a message: expected a text as '{key}', found {found!r}.")
    return found


def _json(record: Mapping[str, Any], key: str, kind: type) -> Any:
    try:
        found = json.loads(_text(record, key))
    except (json.JSONDecodeError, RecursionError) as error:
        raise MessageError(f"Can't read a message: expected JSON as '{key}', found other text ({error}).") from error
    if not isinstance(found, kind):
        raise MessageError(
            f"Can't read a message: expected a {kind.__name__} as '{key}', found a {type(found).__name__}."
        )
    return found


def _count(record: Mapping[str, Any], key: str) -> int:
    found = record.get(key)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MOST_EXAMPLES:
        raise MessageError(f"Can't read a message: expected a count as '{key}', found {found!r}.")
    return found


def _finite(record: Mapping[str, Any], key: str) -> float:
    found = record.get(key)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
        raise MessageError(f"Can't read a message: expected a finite number as '{key}', found {found!r}.")
    return float(found)
