"""Output of commands: JSON and notes. Tables and numbers in words come from the core."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from ..core.tables import print_table, sparkline
from ..core.words import short, size_in_words, time_in_words

__all__ = ["print_json", "print_notes", "print_table", "short", "size_in_words", "sparkline", "time_in_words"]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(f"Note: {note}", style="blue")
