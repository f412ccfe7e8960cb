"""Messages of a run, beside those of spaCy."""

from __future__ import annotations

import logging
import traceback
from typing import Any

LOGGER = logging.getLogger("spacy.torchopt")


def inform(message: str, *args: Any, level: int = logging.INFO) -> None:
    """Log a message, which is shown by default if its level is INFO.

    Python shows only warnings unless a level was set. That a run is resumed, and from where, is shown all the same: by
    the handlers that the loggers have. A level that the user has set counts, and no logger is changed.
    """
    spacys = logging.getLogger("spacy")
    is_set = LOGGER.level or spacys.level or logging.root.level != logging.WARNING or LOGGER.manager.disable
    if is_set or level < logging.INFO:
        LOGGER.log(level, message, *args, stacklevel=2)
    elif not LOGGER.disabled:
        caller, _ = traceback.extract_stack(limit=2)  # LOGGER.findCaller begins elsewhere before Python 3.11
        place = caller.filename, caller.lineno or 0
        LOGGER.handle(LOGGER.makeRecord(LOGGER.name, level, *place, message, args, None, caller.name))
