"""Code for `spacy train --code`: ranks that die or hang, and a record of what each rank ended with."""

import os
import signal
from pathlib import Path

from spacy.util import registry


@registry.callbacks("test-distributed.Mishap.v1")
def mishap(signal_name: str, at: list[int], markers: str):
    """Send a signal to a rank at some steps, once each: to rank 1 at the first, to rank 0 at the second, and so on.
    With "raise", it raises an error instead.
    """

    def before_update(nlp, args):
        for i, step in enumerate(at):
            marker = Path(markers) / f"mishap-{step}"
            is_me = int(os.environ["RANK"]) == (i + 1) % int(os.environ["WORLD_SIZE"])
            if args["step"] == step and is_me and not marker.exists():
                marker.touch()
                if signal_name == "raise":
                    raise ValueError("the widget has no handle")
                os.kill(os.getpid(), getattr(signal, signal_name))

    return before_update
