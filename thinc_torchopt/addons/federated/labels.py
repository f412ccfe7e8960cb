"""Merge the labels of all clients, from the files of `spacy init labels`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.errors import ConfigError


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
