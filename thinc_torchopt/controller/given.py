"""Objects that remember what they were made of."""

from __future__ import annotations

import inspect
from typing import Any


class Given:
    """Remembers the arguments of its constructor, so that each run can build its own from that of the config.

    Public: `given` (dict[str, Any]: the arguments by name).
    """

    given: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__new__(cls)
        made.given = dict(zip(inspect.signature(cls).parameters, args)) | kwargs
        return made
