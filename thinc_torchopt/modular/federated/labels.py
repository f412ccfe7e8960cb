"""The labels of all clients, made of what `spacy init labels` writes at each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigError


def merge_labels(found: Sequence[Any]) -> Any:
    """The union of labels, in an order that does not depend on that of the clients.

    found (Sequence): What is in the JSON files of one component, one of each client. Counts of labels are summed up.
    RETURNS (Any): The same for all, to be written to a JSON file for [initialize.components]. Everybody needs the same.
    RAISES (ConfigError): They are of different kinds, or of one that has no union.
    """
    if not found:
        raise ConfigError("Can't merge labels: expected those of at least one client, found none.")
    if all(isinstance(one, (list, tuple)) for one in found):
        labels = [label for one in found for label in one]
        if all(isinstance(label, str) for label in labels):
            return sorted(set(labels))
    if all(isinstance(one, Mapping) for one in found):
        keys = sorted({str(key) for one in found for key in one})
        parts = {key: [one[own] for one in found for own in one if str(own) == key] for key in keys}
        if all(key.isdecimal() for key in keys):  # of a parser: counts by action and label
            return {key: _sum(part) for key, part in parts.items()}
        return {key: merge_labels(part) for key, part in parts.items()}
    if all(one == found[0] for one in found):
        return found[0]
    raise ConfigError(
        f"Can't merge labels: expected lists of texts, or counts by label, found {found[0]!r} and others that differ. "
        "Make one list of them by hand, and give it to all."
    )


def _sum(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Those that are frequent first, as spaCy has them."""
    total: dict[str, int] = {}
    for one in counts:
        for label, count in one.items():
            total[label] = total.get(label, 0) + count
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
