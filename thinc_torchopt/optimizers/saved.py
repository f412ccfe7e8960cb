"""The state of an optimizer: in memory, on disk, and in a copy."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, Literal

from ..checks import check_count, check_parts, check_version, own_errors
from ..errors import ConfigError
from ..state import by_name, match, read_folder, write_folder
from .lock import give_lock
from .parts import Parts


class Saved(Parts):
    """Saves and loads. What is in a state: see state/by_name.py."""

    def check_can_be_saved(self) -> None:
        """RAISES (ConfigError): An algorithm keeps what no file takes."""
        for algorithm in self._cascade.algorithms:
            algorithm.check_settings(averages=False, checkpoint=True)

    def state_dict(self) -> dict[str, Any]:
        """All that another process needs to go on exactly where this one stands, by lasting names: see
        state/by_name.py.

        RETURNS (dict): Dicts, lists, numbers, texts, and tensors, which are the optimizer's own: copy them to keep
            them.
        RAISES (PipelineError): The optimizer does not know its pipeline. (StateError): It trains a model that is not in
            the pipeline.
        """
        with self._lock:
            guard = {"guard": self._step.guard.state_dict()}
            return {"version": by_name.VERSION, **self._settings.state_dict(), **guard, **self._trained.state_dict()}

    def load_state_dict(
        self,
        saved: Mapping[str, Any],
        *,
        on_growth: Literal["mean", "zero"] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """Go on where another process stood. Everything is checked first; what fails changes nothing.

        saved (Mapping): From `state_dict`, of an optimizer with the same settings for the same pipeline.
        on_growth ("mean" | "zero" | None): The pipeline has changed since. Where labels were added, old rows keep their
            state, and new ones get this; state of what is gone or frozen is dropped, what came begins anew, and a
            warning lists both. None: all is as it was.
        renamed (Mapping[str, str]): The new names of components, or of parts of names of params, by their old ones.
        RAISES (StateError): It is of another pipeline, or not a state. (ScheduleError, ConfigError): It is of other
            settings. (PipelineError): The optimizer does not know its pipeline.
        """
        nlp, exclude = self._trained.table.bound_to()
        if on_growth not in (None, "mean", "zero"):
            raise ConfigError(
                "Can't load the state of the optimizer: expected on_growth to be 'mean' or 'zero', found "
                f"{on_growth!r}."
            )
        check_version("the optimizer", saved, by_name.VERSION)
        check_parts("the optimizer", saved, by_name.PARTS)
        self._settings.check_state_dict(saved)
        step = check_count("step", saved["step"])
        with self._lock:
            # Built beside the current one, and replaces it once everything has succeeded.
            trained, guard = self._no_params(step), copy(self._step.guard)
            with own_errors("the optimizer"), self._frozen_grads.put_aside():
                by_name.check_params_are_dicts(saved["params"])
                paths = match.as_paths(renamed or {})
                trained.load(nlp, exclude, saved, on_growth, paths)
                guard.load_state_dict(saved["guard"], paths)
                by_name.check_scalers(trained.table.shim_paths(), saved["grad_scalers"])
                self._settings.load_state_dict(saved, step)
            by_name.restore_scalers(trained.table.shim_paths(), saved["grad_scalers"])
            self._frozen_grads.stop_only(trained.groups.frozen_params)
            self._trained, self._step.guard = trained, guard

    def roll_back(self, saved: Mapping[str, Any]) -> None:
        """Give all params the state and the averages that they had before. The values of params are the caller's
        affair: see rollback.py.

        Learning rates go on at `rollback_factor` times what they are; schedules, history and counters go on as they
        are.
        saved (Mapping): From `state_dict`, of this run.
        RAISES (StateError): Params have come or grown since. Nothing is changed then.
        """
        with self._lock:
            self._trained.table.bound_to()
            self._trained.roll_back(saved)
            self._trained.controller.scale *= 1.0 if self.rollback is None else self.rollback.factor
            self._step.guard.bad_in_a_row = 0

    def to_disk(self, path: str | Path) -> None:
        """Write the state: tensors as safetensors, the rest as JSON, with checksums. path (str | Path): A folder."""
        write_folder(Path(path), self.state_dict())

    def from_disk(
        self,
        path: str | Path,
        *,
        on_growth: Literal["mean", "zero"] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """Load what `to_disk` wrote. RAISES (StateError): It is damaged. Arguments and others: as `load_state_dict`."""
        self.load_state_dict(read_folder(Path(path)), on_growth=on_growth, renamed=renamed)

    def __getstate__(self) -> dict[str, Any]:
        """Settings and schedules. Params and their state stay behind: a copied pipeline has other arrays, under other
        keys.
        """
        left_behind = ("_lock", "_noted", "_trained", "_frozen_grads")
        kept = {name: value for name, value in self.__dict__.items() if name not in left_behind}
        return {**kept, "_step": copy(self._step), "_settings": copy(self._settings)}

    def __setstate__(self, settings: dict[str, Any]) -> None:
        give_lock(self)
        self.__dict__.update(settings)
        self._meet_no_params()
