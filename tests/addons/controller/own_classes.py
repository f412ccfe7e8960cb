"""Metrics and operations as a user writes them, for `--code`."""

from collections.abc import Sequence
from pathlib import Path

from thinc_torchopt.addons.controller.metrics import Metric, controller_metrics
from thinc_torchopt.addons.controller.operations import Operation, controller_operations


@controller_metrics("test-own.Plain.v1")
class Plain(Metric):
    events = ("on_step_end",)

    def compute(self, event_name, *, losses=None, **kwargs):
        return None if losses is None else len(losses)


@controller_metrics("test-own.Annotated.v1")
class Annotated(Metric):
    events: Sequence[str] = ("on_step_end",)
    times: float

    def __init__(self, times: int = 2):
        super().__init__()
        self.times = times

    def compute(self, event_name, *, losses=None, **kwargs):
        return self.times


@controller_metrics("test-own.AnnotatedAlone.v1")
class AnnotatedAlone(Plain):
    events: Sequence[str] = ("on_step_end", "on_log")


@controller_operations("test-own.Note.v1")
class Note(Operation):
    path: Path

    def __init__(self, path: str):
        self.path = Path(path)

    def should_note(self, **kwargs):
        self.path.write_text("noted")
