"""What a config says of the controller: `thinc-torchopt.TrainerController.v1`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Union

from .controller import TrainerController
from .definition import read
from .operations import LearnRateControl


class ControllerSettings:
    """A definition that was read and checked. `build` makes a controller by it, for one run.

    Public: `content` (what stands in it), `names_groups` (whether it changes the learning rates of some param groups,
    and not of others).
    """

    def __init__(self, definition: Union[str, Path, Dict[str, Any]]):
        self.content = read(definition)
        checked = TrainerController(definition)  # finds all faults, and names the file
        operations = [part.instance for part in checked.definition.operations.values()]
        self.names_groups = any(isinstance(one, LearnRateControl) and one.groups != ["*"] for one in operations)

    def build(self) -> TrainerController:
        return TrainerController(self.content)


def trainer_controller(definition: Union[str, Path, Dict[str, Any]]) -> ControllerSettings:
    """Steer `spacy train` by rules. Registered as `thinc-torchopt.TrainerController.v1`.

    definition (str | Path | dict): A YAML or JSON file, below the current folder; or what would stand in it. See
        docs/controller.md.
    RAISES (ControllerError): It can't work. All that is wrong with it stands in one message.
    """
    return ControllerSettings(definition)
