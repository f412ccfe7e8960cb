"""Why a process ends that a launcher has started: for the launcher, which says it last."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from types import TracebackType

from ..errors import DistributedError
from .group import reason_of


def report_failures() -> None:
    """From now on, tell the launcher of an exception that ends this process. A DistributedError is shown without a
    traceback: it is of another process, or says all.
    """
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, DistributedError):
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        else:
            before(kind, error, trace)
        if isinstance(error, Exception):
            with suppress(OSError):
                _write(reason_of(error))

    sys.excepthook = report


def _write(reason: str) -> None:
    """SOURCE: torch.distributed.elastic.multiprocessing.errors, whose launcher reads it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path is not None:
        more = {"py_callstack": reason, "timestamp": str(int(time.time()))}
        with open(path, "w", encoding="utf8") as file:
            json.dump({"message": {"message": reason, "extraInfo": more}}, file)
