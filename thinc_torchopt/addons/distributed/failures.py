"""Report the error of a process to its launcher, which shows it."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from .group import reason_of


def report_failure(error: Exception) -> None:
    """Tell the launcher of an exception that ends this process.

    SOURCE: torch.distributed.elastic.multiprocessing.errors, whose launcher reads it.
    """
    path, reason = os.environ.get("TORCHELASTIC_ERROR_FILE"), reason_of(error)
    if path is not None:
        more = {"py_callstack": reason, "timestamp": str(int(time.time()))}
        with suppress(OSError), open(path, "w", encoding="utf8") as file:
            json.dump({"message": {"message": reason, "extraInfo": more}}, file)
