"""Check that server and clients have the same pipeline before round one.

Weights are matched by name and averaged number by number. So each number must mean the same at all clients: the row of
a label, a feature of the tokenizer, a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spacy.language import Language

from ...core.errors import ConfigError
from ...loop.config_check import collect_identity, collect_values

if TYPE_CHECKING:  # configs name the block, and weights take the optimizer
    from .weights import Weights

# Settings of the pipeline that may differ, as they don't affect training.
_MAY_DIFFER = ("nlp.batch_size", "nlp.before_", "nlp.after_")
# The most items of a difference in an error.
_SHOWN = 5


def describe(nlp: Language, weights: Weights, exchanged: Sequence[str]) -> dict[str, Any]:
    """Describe a pipeline for comparison, as JSON.

    exchanged (Sequence[str]): Names of the auxiliary variables that its optimizer exchanges.
    """
    identity = collect_identity(nlp)
    settings = {
        path: text
        for path, text in collect_values(nlp).items()
        if path.startswith(("nlp.", "components.")) and not path.startswith(_MAY_DIFFER)
    }
    return {
        "components": [f"{name} ({nlp.get_pipe_meta(name).factory})" for name in nlp.component_names],
        "labels": identity.labels,
        "params": {name: _form(value) for name, value in weights.collect().items()},
        "settings": settings,
        "vectors": identity.vectors,
        "frozen params": weights.checksums(),
        "auxiliary variables": sorted(exchanged),
    }


def differences(
    server: Mapping[str, Any],
    client: Mapping[str, Any],
    places: tuple[str, str] = ("at the server", "at the client"),
) -> list[str]:
    """List how a client differs from the server, one line each, the most important first. places: Where they are, in
    words.
    """
    one, other = places
    found: list[str] = []
    for kind, here in server.items():
        there: Any = client.get(kind)
        if here == there:
            continue
        if kind == "labels" and isinstance(there, Mapping):
            found += [_labels(name, here.get(name, []), there.get(name, []), places) for name in _unlike(here, there)]
        elif isinstance(here, Mapping) and isinstance(there, Mapping):
            found += _some(
                kind,
                [
                    f"{name}: {here.get(name, 'not there')} {one}, {there.get(name, 'not there')} {other}"
                    for name in _unlike(here, there)
                ],
            )
        else:
            found.append(f"{kind}: {_text(here)} {one}, {_text(there)} {other}")
    return found


def _form(value: Any) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} ({', '.join(map(str, value.shape))})"


def _labels(name: str, here: Sequence[str], there: Sequence[str], places: tuple[str, str]) -> str:
    one, other = places
    counts = f"labels of '{name}': {len(here)} {one}, {len(there)} {other}"
    missing, unexpected = [x for x in here if x not in there], [x for x in there if x not in here]
    if not missing and not unexpected:
        place = next(i for i, pair in enumerate(zip(here, there)) if pair[0] != pair[1])
        return f"{counts}, the same in another order: number {place} is {here[place]!r} and {there[place]!r}"
    parts = [
        f"{what} {', '.join(map(repr, labels[:_SHOWN]))}{', ...' if len(labels) > _SHOWN else ''}"
        for what, labels in ((f"only {one}", missing), (f"only {other}", unexpected))
        if labels
    ]
    return f"{counts}; {'; '.join(parts)}"


def _unlike(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))


def _some(kind: str, lines: list[str]) -> list[str]:
    shown = [f"{kind}: {line}" for line in lines[:_SHOWN]]
    return shown + ([f"{kind}: {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])


def _text(value: Any) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)


def merge_labels(found: Sequence[Any]) -> Any:
    """The union of labels, in an order that does not depend on the order of clients.

    found (Sequence): The contents of the JSON files of one component, one per client. Counts of labels are summed.
    RETURNS (Any): The content of a JSON file for [initialize.components], which server and clients all need.
    RAISES (ConfigError): The files have different kinds of content, or one that can't be merged.
    """
    if not found:
        raise ConfigError("Can't merge labels: expected the labels of at least one client, found none.")
    if all(isinstance(one, (list, tuple)) for one in found):
        labels = [label for one in found for label in one]
        if all(isinstance(label, str) for label in labels):
            return sorted(set(labels))
    if all(isinstance(one, Mapping) for one in found):
        keys = sorted({str(key) for one in found for key in one})
        parts = {key: [one[own] for one in found for own in one if str(own) == key] for key in keys}
        if all(key.isdecimal() for key in keys):  # a parser's counts by action and label
            return {key: _sum(part) for key, part in parts.items()}
        return {key: merge_labels(part) for key, part in parts.items()}
    if all(one == found[0] for one in found):
        return found[0]
    raise ConfigError(
        f"Can't merge labels: expected lists of texts, or counts by label, found {found[0]!r} and others that differ. "
        "Merge them by hand, and use the result everywhere."
    )


def _sum(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Sum counts of labels. Frequent labels come first, as in spaCy."""
    total: dict[str, int] = {}
    for one in counts:
        for label, count in one.items():
            total[label] = total.get(label, 0) + count
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
