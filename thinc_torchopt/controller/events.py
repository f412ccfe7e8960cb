"""The events that rules are evaluated on, and what each carries: all that metrics and operations know of a training
run.

An event is a name and a payload of keyword arguments: `controller.on_event("on_step_end", step=3, losses={"ner":
0.5})`. What a loop does not know it leaves out; metrics that need it then have no value. Numbers may be NumPy's or
torch's.
"""

from __future__ import annotations

from typing import Final

# What every event may carry.
COMMON: Final = {
    "step": "the step under way, or the last one; counted from 0. `global_step` is the same",
    "epoch": "the epoch",
    "words": "trained on since the run began",
    "seconds": "spent since the run began",
    "counts": "by name: `skipped_updates`, `grad_spikes`, `rollbacks` and others, since the run began",
    "learn_rates": "by param group",
    "max_steps": "of the run, if it has a limit",
    "rank": "of this process",
    "world_size": "how many processes train together",
    "is_final": "whether the run ends here",
    "control": "a `Control`, through which operations act. Without one rules fire, and nothing is done",
}

_LOSSES = {
    "losses": "of this step alone, by component",
    "batch_words": "in the batch of this step",
    "batch_size": "examples in the batch of this step",
    "grad_norm": "over all gradients, before clipping",
    "grad_norms": "the same by component",
}

# What each event carries beside that. A loop sends those that it has; spaCy's has no `on_predict`.
EVENTS: Final[dict[str, dict[str, str]]] = {
    "on_init_end": {},
    "on_train_begin": {},
    "on_epoch_begin": {},
    "on_step_begin": {},
    "on_substep_end": {},
    "on_pre_optimizer_step": {key: _LOSSES[key] for key in ("grad_norm", "grad_norms")},
    "on_optimizer_step": {key: _LOSSES[key] for key in ("grad_norm", "grad_norms")},
    "on_step_end": _LOSSES,
    "on_evaluate": {
        "metrics": "all scores, by name",
        "score": "the weighted score, by which the best model is chosen",
        "dev_losses": "a function, of how many examples to read at most (None: all), that computes the loss on the "
        "development data: `{'losses': {'ner': 3.0}, 'words': 100, 'examples': 8}`",
    },
    "on_log": _LOSSES
    | {"log_history": 'what was logged, the newest last: `[{"loss": 0.5, "epoch": 0.1}]`; the newest alone will do'},
    "on_save": {"path": "of the folder that was written"},
    "on_epoch_end": {},
    "on_train_end": {},
    "on_prediction_step": {},
    "on_predict": {"metrics": "all scores, by name"},
}
