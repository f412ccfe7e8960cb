"""The events of a training run and their payloads, which are all that metrics and operations know of it.

An event is a name with keyword arguments: `controller.on_event("on_step_end", step=3, losses={"ner": 0.5})`. A loop may
leave out values; metrics that need them then have no value. Numbers may be NumPy's or torch's.
"""

from __future__ import annotations

from typing import Final

# Values that every event may have.
COMMON: Final = {
    "step": "the current step, or the last one between steps; counted from 0. `global_step` is the same",
    "epoch": "the epoch",
    "words": "words trained on since the run began",
    "seconds": "seconds since the run began",
    "counts": "counts since the run began, by name: `skipped_updates`, `grad_spikes`, `rollbacks` and others",
    "learn_rates": "learning rates by param group",
    "max_steps": "the last step of the run, if it has a limit",
    "warmup_steps": "the number of steps of the learning rate's warm-up",
    "rank": "the rank of this process",
    "world_size": "the number of processes",
    "is_final": "whether the run ends here",
    "control": "a `Control`, through which operations act. Without one, rules fire without effect",
}

_LOSSES = {
    "losses": "losses of this step alone, by component",
    "batch_words": "words in the batch of this step",
    "batch_size": "examples in the batch of this step",
    "grad_norm": "norm of all gradients, before clipping",
    "grad_norms": "the same by component",
}

# More values of each event. A loop sends the events that it has; spaCy's has no `on_predict`.
EVENTS: Final[dict[str, dict[str, str]]] = {
    "on_init_end": {},
    "on_train_begin": {},
    "on_epoch_begin": {},
    "on_step_begin": {},
    "on_substep_end": {},
    "on_pre_optimizer_step": {key: _LOSSES[key] for key in ("grad_norm", "grad_norms")}
    | {"group_grad_norms": "a function that computes the same by param group"},
    "on_optimizer_step": {key: _LOSSES[key] for key in ("grad_norm", "grad_norms")}
    | {
        "param_norms": "a function that computes the norm of the params: `{'total': 9.0, 'components': {'ner': 9.0}, "
        "'groups': {'default': 9.0}}`",
        "update_norms": "a function that computes the norm of the change by the update, in the same form. "
        "It has no result unless a metric has it in `reads`",
    },
    "on_step_end": _LOSSES,
    "on_evaluate": {
        "metrics": "all scores, by name",
        "score": "the weighted score, by which the best model is chosen",
        "dev_losses": "a function that computes the loss on the development data: `{'losses': {'ner': 3.0}, 'words': "
        "100, 'examples': 8}`. Its argument is the most examples to read (None: all)",
    },
    "on_log": _LOSSES
    | {"log_history": 'log entries, the newest last: `[{"loss": 0.5, "epoch": 0.1}]`; the newest is enough'},
    "on_save": {"path": "the folder that was written"},
    "on_epoch_end": {},
    "on_train_end": {},
    "on_exception": {
        "error_type": "the name of the error's class, such as `OutOfMemoryError` or `KeyboardInterrupt`",
        "error_text": "its text",
    },
    "on_prediction_step": {},
    "on_predict": {"metrics": "all scores, by name"},
}
