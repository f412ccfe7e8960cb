"""The schedules of the registry `@schedules`: what a setting is at each step of the training.

A schedule is a function of the step, counted from 0, and comes as thinc's do, as a generator of one value a step:
thinc's own optimizers take it too. Any setting may be one, so *rate* below stands for whatever it drives. Arguments are
checked when the config is read. No schedule ends: after `total_steps` it stays at its last value.

`warmup_linear` starts above 0. The other warm-ups start at 0, as in transformers, whose values they are.

A schedule may also *watch* the score of the development data. Beside what any iterator has, it then offers:

    metric              the name of the score that it watches, if it is not "score", the main one
    observe(score)      called after each evaluation, when the value of the step that comes next was drawn
    value               that value, the last that was drawn, as it is after what was observed
    state_dict(), load_state_dict(state)
                        if it has them: what the scores made of it, for JSON. Restarting draws the values up to the
                        position first. An error if that can't be; then all schedules get back the state that they
                        had

`plateau` is one, and so is `sequence`, for the part whose turn it is. Only our training loop calls `observe`.

A schedule may *span* the training, which is to say that it ends where that ends. It then offers:

    spans_training              True
    total_steps                 of the training; None before it was told
    set_total_steps(n)          tells it, before the first value is drawn. Again: the value is that of the same step on
                                the new curve
    value                       that of step 0, before

All curves without `total_steps` do. And one may be told to fall (*decay*), as `warmup_stable_decay`:

    can_begin_decay             True
    begin_decay(decay_steps)    it falls from the value of the step that comes. False: it falls already
    decay_was_told              whether it was told
    decay_is_over               whether it was told, and is down
    cancel_decay()           it stays, as if it had not been told
    waits_to_be_told            whether it stays for good otherwise

Functions of the step are in curves.py.
"""

from .curves import cosine_at, inverse_sqrt, one_cycle, polynomial, warmup_cosine, warmup_linear, warmup_stable_decay
from .plateau import Mode, PlateauSchedule, ThresholdMode, comparison, plateau, worst_score
from .schedule import Schedule, Schedules, current, is_moving
from .sequence import SequenceSchedule, sequence
from .to_the_end import is_waiting, with_end

__all__ = [
    "Mode",
    "PlateauSchedule",
    "Schedule",
    "Schedules",
    "SequenceSchedule",
    "ThresholdMode",
    "comparison",
    "cosine_at",
    "current",
    "inverse_sqrt",
    "is_moving",
    "is_waiting",
    "one_cycle",
    "plateau",
    "polynomial",
    "sequence",
    "warmup_cosine",
    "warmup_linear",
    "warmup_stable_decay",
    "with_end",
    "worst_score",
]
