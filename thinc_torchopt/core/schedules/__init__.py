"""The schedules of the registry `@schedules`: the value of a setting at each step of the training.

A schedule is a function of the step, counted from 0, in thinc's form: a generator of one value a step, which thinc's
own optimizers accept too. Any setting may be one; *rate* below stands for its value. Arguments are checked when the
config is read. No schedule ends: after `total_steps` it stays at its last value.

`warmup_linear` starts above 0. The other warm-ups start at 0 and have the values of transformers.

A schedule may *watch* a score of the development data. Beside the methods of an iterator, it then has:

    metric              the name of the watched score; without it, "score", the main one
    observe(score)      called after each evaluation, when the value of the next step was drawn
    value               that value, which `observe` may change
    moves_with_steps    optional: False if it moves with scores alone
    state_dict(), load_state_dict(state)
                        optional: what it learned from scores, for JSON. When a run resumes, the values up to the
                        position are drawn first. An error leaves all schedules as they were

`plateau` is one, and so is `sequence` while a part that watches is on. Only our training loop calls `observe`.

A schedule may *span* the training: it ends where the training ends. It then has:

    spans_training              True
    total_steps                 of the training; None before `set_total_steps`
    set_total_steps(n)          called before the first value is drawn. A later call moves to the same step of the
                                new curve
    value                       before the first step, the value of step 0

All curves without `total_steps` do. One that begins with a warm-up has its length, `warmup_steps`. One that may fall at
will has a `cooldown`, as `warmup_stable_decay` has: see to_the_end.py.

curves.py has the functions of the step; schedules.py has all schedules of an optimizer.
"""

from .curves import cosine_at, inverse_sqrt, one_cycle, polynomial, warmup_cosine, warmup_linear, warmup_stable_decay
from .plateau import Mode, PlateauSchedule, ThresholdMode, lowered, plateau
from .schedule import Schedule, current, is_moving, try_to_load
from .schedules import Schedules
from .sequence import sequence
from .to_the_end import with_end
