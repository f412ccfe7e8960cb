"""The messages between server and clients, as Flower's records, and their checks.

A message is a form, as JSON, and tensors as `ArrayRecord`s; nothing is pickled. All input is checked before it is used:
the other side may have another version, another pipeline, or a training that has diverged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import torch

from ...core.errors import AuxVarError, MessageError, StateError
from ...core.schema import Count, Limit, read, write
from ..modular import AuxVar, from_tensors, to_tensors
from .flower import ArrayRecord, ConfigRecord, RecordDict
from .pipeline import RoundPlan
from .weights import Tensors

Form = TypeVar("Form")

# Version of the messages. Both sides must have the same.
PROTOCOL = 5
# Limits for the numbers in a report, which no honest client reaches. One number beyond them, and the model of the round
# or its score is infinite, or all clients diverge in the next round.
# Scores are mostly from 0 to 1, or to 100.
MOST_SCORE = 1e6
# How many times the server's largest weight a number of a client may be.
MOST_GROWTH = 1e6
# A higher count of examples is a mistake, and would outweigh all other clients.
MOST_EXAMPLES = 10**10
# Names are shown in logs and tables.
_LONGEST_NAME = 100

_HEAD, _ARRAYS, _AUX = "head", "arrays", "aux-arrays"

Score = Annotated[
    float,
    Limit(f"from -{MOST_SCORE:,.0f} to {MOST_SCORE:,.0f}, as a score is", lambda score: abs(score) <= MOST_SCORE),
]
Examples = Annotated[int, Limit(f"a count up to {MOST_EXAMPLES:,}", lambda count: 0 <= count <= MOST_EXAMPLES)]
Name = Annotated[
    str,
    Limit(
        f"a name of 1 to {_LONGEST_NAME} printable characters",
        lambda name: 0 < len(name) <= _LONGEST_NAME and name.isprintable(),
    ),
]


@dataclass(frozen=True)
class Question:
    """The server's first message. agreement (dict): Its pipeline, for comparison: see agreement.py."""

    agreement: dict[str, Any]


@dataclass(frozen=True)
class Introduction:
    """A client's first message to the server. name (str): Its name. differences (list[str]): From the server."""

    name: Name
    differences: list[str]


@dataclass(frozen=True)
class Task:
    """The server's message to a client in each round. Beside it: the global model, and auxiliary variables.

    run (str): The name of the run, by which clients know what they have saved in it.
    agreement (dict): The server's pipeline, for comparison: see agreement.py.
    taken (int): The last round whose report the server has accepted from this client. 0: none.
    """

    run: str
    plan: RoundPlan
    agreement: dict[str, Any]
    taken: Count


@dataclass(frozen=True)
class Report:
    """A client's message to the server after a round. Beside it: its model, and auxiliary variables.

    name (str): The client's name. round (int): That of the task.
    score (float): The main score of the received weights on the client's dev corpus. `scores`: all scores.
        `dev_examples`: number of dev examples; 0: there is no score.
    examples, steps, words, skipped, losses: See `pipeline.Outcome`.
    """

    name: str
    round: Count
    score: Score
    scores: dict[str, Score]
    dev_examples: Examples
    examples: Examples = 0
    steps: Examples = 0
    words: Examples = 0
    skipped: Examples = 0
    losses: dict[str, float] = field(default_factory=dict)


def pack(form: Any, arrays: ArrayRecord | None = None, aux_vars: Mapping[str, AuxVar] | None = None) -> RecordDict:
    """Make a message of a form, weights and auxiliary variables."""
    tensors, values = to_tensors(aux_vars or {})
    head = {"protocol": PROTOCOL, "form": json.dumps(write(form)), "aux": json.dumps(values)}
    content = RecordDict({_HEAD: ConfigRecord(head)})
    if arrays is not None:
        content[_ARRAYS] = arrays
    if values:
        content[_AUX] = to_arrays(tensors)
    return content


def unpack(form: type[Form], content: RecordDict, what: str, key: str = "form") -> Form:
    """Read a part of a message's head. what (str): Its name, for errors.

    RAISES (MessageError): The message is damaged, or of another version.
    """
    head = content.get(_HEAD)
    found = head.get("protocol") if isinstance(head, ConfigRecord) else None
    if found != PROTOCOL:
        raise MessageError(
            f"Can't read a message: expected protocol {PROTOCOL}, found {found!r}. Server and clients must have the "
            "same version of thinc-torchopt."
        )
    try:
        return read(form, json.loads(head[key]), what)
    except StateError as error:
        raise MessageError(str(error)) from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise MessageError(f"Can't read {what}: expected JSON as '{key}', found something else ({error!r}).") from error


def unpack_report(
    content: RecordDict, name: str, round: int, weights: Mapping[str, torch.Tensor], exchanged: list[str]
) -> tuple[Report, Tensors, dict[str, AuxVar]]:
    """Read and check a report with a model. Finds what would spoil the global model or stop the server.

    name (str), round (int): The expected client and round.
    weights (Mapping): The global model.
    exchanged (list[str]): The names of the auxiliary variables that must be in it.
    RETURNS (tuple): The report, the model, and the auxiliary variables.
    RAISES (MessageError): It can't be used.
    """
    report = unpack_scores(content, name, round)
    if not (report.examples and report.steps):
        raise MessageError(
            f"Can't use the report of '{name}': expected at least one example and one step, found {report.examples} "
            f"and {report.steps}."
        )
    model, aux_vars = from_arrays(content, weights), unpack_aux(content, weights)
    if sorted(aux_vars) != sorted(exchanged):
        raise MessageError(
            f"Can't use the report of '{name}': expected the auxiliary variables {sorted(exchanged)}, found "
            f"{sorted(aux_vars)}."
        )
    largest = max((float(value.abs().max()) for value in weights.values() if value.numel()), default=0.0) or 1.0
    for key, tensor in [*model.items(), *to_tensors(aux_vars)[0].items()]:
        _check_size(name, key, tensor, largest)
    return report, model, aux_vars


def unpack_scores(content: RecordDict, name: str, round: int) -> Report:
    """Read a report without its model. RAISES (MessageError): It can't be used."""
    report = unpack(Report, content, f"the report of '{name}'")
    if (report.name, report.round) != (name, round):
        raise MessageError(
            f"Can't use the report of '{name}': expected that name and round {round} in it, found '{report.name}' and "
            f"round {report.round}."
        )
    return report


def _check_size(client: str, name: str, tensor: torch.Tensor, largest: float) -> None:
    """largest (float): The server's largest weight. RAISES (MessageError): A number is too large for it."""
    if bool((tensor.abs() > MOST_GROWTH * largest).any()):
        raise MessageError(
            f"Can't use the report of '{client}': expected numbers of at most {MOST_GROWTH:,.0f} times the server's "
            f"largest weight, {largest:.3g}, in '{name}', found {float(tensor.abs().max()):.3g}. The training of that "
            "client has diverged."
        )


# ---------------------------------------------------------------------- tensors


def to_arrays(tensors: Mapping[str, torch.Tensor]) -> ArrayRecord:
    """Half precision is sent as float32: NumPy has no bfloat16, and averages need more digits."""
    sent = {
        name: tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
        for name, tensor in tensors.items()
    }
    return ArrayRecord({name: tensor.detach().contiguous().clone() for name, tensor in sent.items()})


def from_arrays(content: RecordDict, expected: Mapping[str, torch.Tensor]) -> Tensors:
    """The weights in a message, in the precision of the expected ones.

    expected (Mapping): Weights with the expected names, shapes and dtypes.
    RAISES (MessageError): Names, shapes or dtypes differ, or numbers are not finite.
    """
    found = dict(_tensors(content, _ARRAYS))
    missing, unexpected = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or unexpected:
        raise MessageError(
            f"Can't use the weights: expected {len(expected)} of known names, found {len(missing)} missing "
            f"({', '.join(missing[:3]) or 'none'}) and {len(unexpected)} unexpected "
            f"({', '.join(unexpected[:3]) or 'none'})."
        )
    for name, like in expected.items():
        tensor, is_half = found[name], like.dtype in (torch.bfloat16, torch.float16)
        dtype = torch.float32 if is_half else like.dtype
        if tensor.shape != like.shape or tensor.dtype != dtype:
            raise MessageError(
                f"Can't use the weights of param '{name}': expected {dtype} of shape {tuple(like.shape)}, found "
                f"{tensor.dtype} of shape {tuple(tensor.shape)}."
            )
    return {name: _finite(name, found[name].to(like.dtype)) for name, like in expected.items()}


def unpack_aux(content: RecordDict, weights: Mapping[str, torch.Tensor]) -> dict[str, AuxVar]:
    """The auxiliary variables in a message. weights (Mapping): The model, for the shapes of params.

    RAISES (MessageError): They are damaged.
    """
    values = unpack(dict[str, Any], content, "auxiliary variables", "aux")
    tensors = {key: _finite(key, tensor) for key, tensor in _tensors(content, _AUX)} if values else {}
    for key, tensor in tensors.items():
        name, _, param = key.partition(":")
        if name not in values or (param in weights and tensor.shape != weights[param].shape):
            raise MessageError(f"Can't use the auxiliary variable '{key}': its name or its shape is unknown.")
    try:
        return from_tensors(tensors, values)
    except (AuxVarError, KeyError) as error:
        raise MessageError(f"Can't use the auxiliary variables {sorted(values)}: {error}") from error


def _tensors(content: RecordDict, key: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a record. RAISES (MessageError): There is none, or it is damaged."""
    record = content.get(key)
    if not isinstance(record, ArrayRecord):
        raise MessageError(f"Can't use the weights: expected an ArrayRecord as '{key}', found none.")
    for name, array in record.items():
        try:
            tensor = torch.from_numpy(array.numpy())
        except Exception as error:  # the sender may have written anything
            raise MessageError(f"Can't use the array '{name}': it can't be read by NumPy ({error!r}).") from error
        yield name, tensor


def _finite(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """RAISES (MessageError): A number is not finite."""
    if not bool(tensor.isfinite().all()):
        raise MessageError(
            f"Can't use '{name}': expected finite numbers, found NaN or infinite ones. A training has diverged."
        )
    return tensor
