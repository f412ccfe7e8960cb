"""TorchOptimizer: a thinc optimizer that hands all params of a pipeline to one torch optimizer.

One training step:

 1. `nlp.update` adds up gradients in thinc's nodes and torch's params.
 2. `Model.finish_update(optimizer)` comes here (see hooks.py) as `finish_update`: `set_grad` notes each param with its
    gradient.
 3. `step` makes one update of them: see core/step.py.
 4. `step_schedules` moves every schedule on by one.

In spaCy's training loop (see loop/run.py) step 2 notes the gradients of all components, and step 3 comes once:
`joint_step`. Everywhere else `finish_update` does 3 before it returns. Threads do so one after the
other. No decorator holds the lock: warnings name the line that called, and count the frames up to it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from threading import RLock
from typing import Any, Dict, Literal, Optional, get_args
from weakref import WeakSet

import torch
from spacy.language import Language
from thinc.api import Model, Optimizer

from . import hooks
from .algorithms import AN_ALGORITHM, Algorithm
from .attachments import Attachment, collect_attachments, taking_blocks
from .averages import AverageSettings, check_not_in_use, check_param_not_in_use, chosen_averages
from .checks import OPTIMIZER, check_ops_threads, known_settings, own_errors
from .errors import CheckpointWarning, ConfigAttributeError, ConfigError, ConfigWarning, DistributedError, PipelineError
from .host_errors import check_versions
from .labels import restore_trees
from .near_misses import did_you_mean
from .noted_grads import NotedGrads
from .params import (
    NamedModel,
    Param,
    Pattern,
    backprop_through_frozen,
    check_precision,
    compute_in,
    computing_all_in,
    escape,
    in_order,
    is_viewable,
    own_copy,
    view_of_param,
    walk_pipeline,
)
from .rates import RateWriter
from .registry import arguments_of, signed
from .schedules import Schedules, current
from .schema import check_version, read
from .settings import Cascade
from .state import VERSION, WHAT, SavedState, by_name, read_folder, saved_state, write_folder
from .step import Reduce, Step
from .trained import TrainedParams
from .types import (
    BatchSize,
    ClipBy,
    FloatOrSchedule,
    Key,
    OnGrowth,
    OnOutsideWrite,
    OnSpike,
    OpsChoice,
    OpsThreads,
    ParamInfos,
    Precision,
    SkipDecay,
)
from .update import JOINT, FrozenGrads, GradGuard, KeptBuffers, name_of_set, rollback_settings

# thinc's attributes that have the same meaning here. The others are refused, and left out of completion.
_THINCS = {"learn_rate", "grad_clip", "averages", "schedules", "nr_update", "b1", "b2"}
_HIDDEN = {*Optimizer.__slots__} - _THINCS


class TorchOptimizer(Optimizer):
    """Train the whole pipeline with a torch optimizer. Registered as `thinc-torchopt.TorchOptimizer.v1`.

    algorithm (Algorithm): A block with `@torch_optimizers`.
    learn_rate (float | schedule): The learning rate.
    grad_clip (float | schedule): Largest 2-norm of the gradients. 0: no clipping.
    clip_by (str): The norm that `grad_clip` limits. "global": of all gradients together; "component": of each
        component's gradients; "param": of each tensor. "value" limits each number. "adaptive" limits each unit's
        gradient norm to `grad_clip` times the norm of the unit's weights.
    use_averages (bool): Keep averages of all params by thinc's formula; evaluate and save the averages.
    averages (AverageSettings): Averages by another formula: a block with `@misc = "thinc-torchopt.EMA.v1"` or
        `"thinc-torchopt.SWA.v1"`.
    master_weights (bool): Update params of half precision (bfloat16, float16) by float32 copies, which the model gets
        rounded. Without them small updates are rounded away.
    max_nonfinite (int): Updates with a NaN or infinite gradient are skipped. Training stops after this many in a row.
        0: never skip or stop; without clipping, that saves a pass over the gradients.
    spike_factor (float): An update is a spike if its gradient norm exceeds this many times the moving average of the
        norms. 0: no update is a spike.
    on_spike ("skip" | "clip"): Skip spikes, or scale them down to `spike_factor` times the average.
    rollback_after (int): Go back to the last checkpoint after this many non-finite updates or spikes in a row. 0:
        never.
    rollback_factor (float): A rollback after bad updates multiplies all learning rates by this.
    max_rollbacks (int): Training stops after this many rollbacks. Those of rules count too.
    param_groups (dict): Blocks of settings for some of the params. Each has `params` (a list of patterns over names, or
        "re:" and a regular expression), and any of `algorithm`, `learn_rate`, `lr_scale`, `freeze`, `unfreeze_at` (a
        step) and the algorithm's options. Where several blocks set the same for a param, the last one wins.
    per_param_lr (dict): Learning rates by pattern: short for `param_groups` that set only `learn_rate`.
    layer_decay (dict): By pattern, the factor between the learning rates of a layer and the layer above it.
    skip_decay ("bias_and_norm"): No weight decay for biases and the params of normalization layers.
    on_outside_write ("restore" | "adopt" | "raise"): What to do when other code writes learning rates.
    on_growth ("mean" | "zero" | "reset"): How to fill the new cells of the state of a param that grows, for example
        because labels were added. "reset": drop its state.
    new_params_warmup (int): Params added in mid-training have a tenth of the learning rate, to which they warm up in
        this many updates. 0: the full rate from the start.
    enable_runtime_guards (bool): Check learning rates for changes by other code.
    precision ("float32" | "bf16" | "tf32"): How torch modules compute while they are trained. "bf16": by
        torch.autocast, in bfloat16 where that is safe. "tf32": float32 with fewer digits, in the matrix products of
        NVIDIA's GPUs. Params, gradients, the optimizer and all evaluations stay in float32.
    ops ("thinc" | "fastest"): Which library computes matrix products of thinc's layers on a CPU in a training run.
        "thinc": BLIS. "fastest": that, NumPy or torch, as measured when the run begins. They differ in rounding.
    ops_threads (int | "auto"): With ops = "fastest", threads for each product. "auto": as many as are fastest.
    allow_untrainable (bool): Only warn if something keeps `spacy train` from learning, such as texts without the
        annotations of a component.
    attachments (dict): Blocks that take part in a run: any `Attachment`, by a name of your own.
        Those with a block of their own name, such as `checkpoint`, are arguments of that name, here `blocks`.

    Public beside thinc's attributes: `params`, `grad_norm`, `precision`; `ops`, `ops_threads` and `allow_untrainable`,
        which the training loop follows; `attachments` (by the names of their blocks);
        `rollback` (settings for the training loop, or None); `rates` (writes the learning rates); `batch_size`
        (`types.BatchSize` or None), for algorithms that normalize gradients: spaCy's loop sets it for each step, other
        loops set it before an update.
    """

    @known_settings
    @taking_blocks
    def __init__(
        self,
        algorithm: Algorithm,
        learn_rate: FloatOrSchedule = 0.001,
        *,
        grad_clip: FloatOrSchedule = 1.0,
        clip_by: ClipBy = "global",
        use_averages: bool = False,
        averages: Optional[AverageSettings] = None,
        master_weights: bool = False,
        max_nonfinite: int = 20,
        spike_factor: float = 0.0,
        on_spike: OnSpike = "skip",
        rollback_after: int = 0,
        rollback_factor: float = 0.5,
        max_rollbacks: int = 3,
        param_groups: Dict[str, Dict[str, Any]] = {},
        per_param_lr: Optional[Dict[str, FloatOrSchedule]] = None,
        layer_decay: Optional[Dict[str, float]] = None,
        skip_decay: Optional[SkipDecay] = None,
        on_outside_write: OnOutsideWrite = "restore",
        on_growth: OnGrowth = "mean",
        new_params_warmup: int = 100,
        enable_runtime_guards: bool = True,
        precision: Precision = "float32",
        ops: OpsChoice = "thinc",
        ops_threads: OpsThreads = 1,
        allow_untrainable: bool = False,
        attachments: Optional[Dict[str, Any]] = {},
        **blocks: Optional[Attachment],
    ):
        self._lock = _lock_for(self)
        self.precision: Precision = OPTIMIZER.choice("precision", precision, get_args(Precision))
        self.ops: OpsChoice = OPTIMIZER.choice("ops", ops, get_args(OpsChoice))
        self.ops_threads = check_ops_threads(OPTIMIZER, "ops_threads", ops_threads)
        if self.ops_threads != 1 and self.ops == "thinc":
            OPTIMIZER.refuse("ops_threads", 'ops = "fastest" beside it', ops_threads, "thinc's have one thread.")
        self.allow_untrainable = OPTIMIZER.flag("allow_untrainable", allow_untrainable)
        self.attachments = collect_attachments(blocks, attachments)
        self._settings = Schedules(learn_rate=learn_rate, grad_clip=grad_clip)
        clip_by = OPTIMIZER.choice("clip_by", clip_by, get_args(ClipBy))
        guard = GradGuard(max_nonfinite, spike_factor=spike_factor, on_spike=on_spike)
        self._step = Step(guard, clip_by)
        self._cascade = Cascade(
            OPTIMIZER.kind("algorithm", algorithm, Algorithm, AN_ALGORITHM),
            self._settings,
            param_groups=param_groups,
            per_param_lr=per_param_lr,
            layer_decay=layer_decay,
            skip_decay=skip_decay,
            new_params_warmup=new_params_warmup,
            keep_apart=any(attachment.names_groups for attachment in self.attachments.values()),
        )
        on_growth = OPTIMIZER.choice("on_growth", on_growth, get_args(OnGrowth))
        self.max_rollbacks = max_rollbacks
        self.rollback = rollback_settings(
            rollback_after, rollback_factor, max_rollbacks, guard, "checkpoint" in self.attachments
        )
        self._of_trained = {
            "on_outside_write": OPTIMIZER.choice("on_outside_write", on_outside_write, get_args(OnOutsideWrite)),
            "on_growth": on_growth,
            "master_weights": OPTIMIZER.flag("master_weights", master_weights),
            "enable_runtime_guards": OPTIMIZER.flag("enable_runtime_guards", enable_runtime_guards),
        }
        chosen = chosen_averages(OPTIMIZER.flag("use_averages", use_averages), averages)
        self._average_settings = None if chosen is None else chosen.tracked(self._settings)
        for found in () if chosen is None else self._cascade.candidates:
            found.algorithm.check_allows_averages()
        self._joint = False
        self.batch_size: BatchSize | None = None
        self._reset()
        for attachment in self.attachments.values():
            attachment.check(self)
        self._is_built = True

    def __setattr__(self, name: str, value: Any) -> None:
        """RAISES (ConfigAttributeError): No such attribute; thinc's class refuses unknown ones too. Classes derived
        from this one may have more.
        """
        is_known = name.startswith("_") or name in self.__dict__ or hasattr(TorchOptimizer, name)
        if not is_known and self.__dict__.get("_is_built") and type(self) is TorchOptimizer:
            settings = [setting.name for setting in arguments_of(TorchOptimizer)]
            near = did_you_mean(name, [*settings, *dir(self)], is_setting=True)
            why = (
                f"it is read when the optimizer is built. Build a new one: TorchOptimizer(..., {name}=...)."
                if name in settings
                else f"it has no such attribute.{near}"
            )
            raise ConfigAttributeError(f"Can't set '{name}' of TorchOptimizer: {why}")
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """Without thinc's attributes that are not of this class."""
        return [name for name in super().__dir__() if name not in _HIDDEN]

    def _reset(self) -> None:
        self._is_checked = self._lacks_state = False
        self._noted = NotedGrads()
        self._step.buffers = KeptBuffers()
        self._frozen_grads = FrozenGrads()
        self._trained = self._without_params(self._settings.step_count)

    def _without_params(self, step: int) -> TrainedParams:
        return TrainedParams(
            self._cascade,
            lambda: self.learn_rate,
            step,
            self._frozen_grads,
            average_settings=self._average_settings,
            **self._of_trained,
        )

    # ------------------------------------------------------------------ the pipeline

    def initialize(self, nlp: Language, exclude: Collection[str] = ()) -> None:
        """Add all params of a pipeline under their lasting names. Params that appear later are added then.

        With another pipeline than before, the optimizer starts again: no moments, averages or counts are kept. Only its
        schedules go on.

        nlp (Language): The pipeline, initialized.
        exclude (Collection[str]): Components that are not trained, until the next `initialize` or `resume_training`.
        RAISES (PipelineError): Nothing to train, or a component that was not initialized. (ConfigError): A pattern in
            the settings matches no param.
        """
        with self._lock:
            check_versions(nlp, exclude)
            restore_trees(nlp)
            hooks.check_not_put_back()
            walked = walk_pipeline(nlp)
            self._trained.plan.check(walked)
            self._reset_if_other(nlp)
            self._add_all(nlp, exclude, walked)
            self._check_named(nlp, exclude, walked)

    def introduce(self, nlp: Language, *, anew: bool = False) -> None:
        """Call `initialize` for spaCy, before everything is ready: settings are checked at the first update. No
        component is excluded any more.

        anew (bool): The pipeline has new weights: forget everything that was learned before.
        """
        with self._lock:
            restore_trees(nlp)
            hooks.check_not_put_back()
            self._reset_if_other(nlp, anew)
            with suppress(PipelineError):
                self._add_all(nlp, ())

    def knows(self, nlp: Language) -> bool:
        """Whether this is the current pipeline."""
        return self._trained.table.pipeline.is_(nlp)

    def _reset_if_other(self, nlp: Language, anew: bool = False) -> None:
        """Start again if the pipeline differs from before or has new weights, as in cross-validation."""
        known = self._trained.table.pipeline
        if anew or (known.was_known and not known.is_(nlp)):
            self._reset()
            self._step.guard.begin_anew()

    def _add_all(self, nlp: Language, exclude: Collection[str], walked: list[NamedModel] | None = None) -> None:
        table = self._trained.table
        table.add_all(nlp, exclude, walked=walked)
        if self._step.guard.wants_norms:
            self._step.buffers.keep(table.pipeline.shims)
        compute_in(table.pipeline.shims, self.precision)

    def _check_settings(self) -> None:
        """Check everything that `initialize` checks, and tell attachments, before the first update, if spaCy introduced
        the pipeline.
        """
        if not self._is_checked and self._trained.table.pipeline.is_there:
            nlp, exclude = self._trained.table.pipeline.get()
            walked = walk_pipeline(nlp)
            self._trained.plan.check(walked)
            self._check_named(nlp, exclude, walked)

    def _check_named(self, nlp: Language, exclude: Collection[str], walked: Iterable[NamedModel]) -> None:
        """Lift labels, tell attachments, and check the precision, once the params have names."""
        self._trained.table.lift_labels()
        for attachment in self.attachments.values():
            attachment.named(self, nlp, exclude)
        if not self._is_checked:
            trained = [model for model in walked if model.component not in map(escape, exclude)]
            check_precision(self.precision, [found for model in trained for found in model.shims])
            self._check_masters()
            self._is_checked = True

    def _check_masters(self) -> None:
        """Warn if there is nothing to have a master."""
        params = self._trained.params
        if self._of_trained["master_weights"] and all(param.half is None for param in params):
            dtypes = sorted({str(param.dtype).removeprefix("torch.") for param in params})
            warnings.warn(
                ConfigWarning(
                    "master_weights = true in [training.optimizer] has no effect: expected params of bfloat16 or "
                    f"float16, found {len(params)} of {' and '.join(dtypes)}. Remove it."
                ),
                stacklevel=3,
            )

    @contextmanager
    def training(self) -> Iterator[None]:
        """Inside, torch computes no gradients for frozen params, and torch modules compute in `precision`, as in each
        update of spaCy's loop.
        """
        with (
            self._frozen_grads.stopping(self._trained.plan.frozen_params),
            backprop_through_frozen(self._trained.table.shims.values()),
            computing_all_in(self.precision),
        ):
            yield

    # ------------------------------------------------------------------ gradients and updates

    def set_grad(
        self, param: Any, grad: Any, callback: Callable[[Any], None] | None = None, *, key: Key | None = None
    ) -> None:
        """Register a param and its gradient for the next `step`. Computes nothing.

        param (Any): NumPy or CuPy array, or torch tensor, of floats. torch works on the memory of arrays, in place.
        grad (Any): Its gradient, of the same kind. The step sets it to zero in place, or to None for a
            `torch.nn.Parameter`. Shape: as the param.
        callback (Callable): For params that are stored elsewhere: the values are copied into a buffer, allocated once,
            and the callback gets the new values after each step.
        key (Key): Identifies the param when its array is replaced. Default: the object `param` itself.
        RAISES (ParamError): The param is not of floats. (ShapeError): Its shape differs from before, or from its
            gradient's.
        """
        with self._lock:
            self._noted.note(self._trained.table, id(param) if key is None else key, param, grad, callback)

    def finish_update(self, model: Model[Any, Any]) -> None:
        """Collect the gradients of a model, and update its params unless a joint step will. `Model.finish_update` calls
        this.

        model (Model): A component's model, or any other. In a subclass with its own `set_grad`, that gets each param
            with a gradient.
        RAISES (ParamError): The averages are in use in place of its params.
        """
        with self._lock:
            check_not_in_use(model, self._trained.table.names)
            if not self._joint:
                self._trained.table.follow_renamed()
            try:
                sees_all = getattr(self.set_grad, "__func__", None) is not TorchOptimizer.set_grad
                self._noted.collect(
                    self._trained.table, model, self.set_grad, self, sees_all=sees_all, precision=self.precision
                )
                if not self._joint:
                    self.step()
            except BaseException:
                self._noted.forget()
                raise

    @contextmanager
    def joint_step(
        self,
        spoiled_by: Exception | None = None,
        *,
        epoch: float | None = None,
        before_update: Callable[[], None] | None = None,
    ) -> Iterator[None]:
        """Inside, `finish_update` only collects gradients; at the end all params are updated together. Other threads
        wait.

        spoiled_by (Exception | None): A component's error about a value that is not finite. The update is skipped.
        epoch (float): For the history of learning rates.
        before_update (Callable): Called before the update, when all gradients are known.
        """
        with self._lock:
            if self._joint:  # nested: the outer one updates
                yield
                if before_update is not None:
                    before_update()
                return
            self._trained.table.follow_renamed()
            self._joint = True
            try:
                yield
                self.step(spoiled_by, epoch, before_update)
            finally:
                self._joint = False
                self._noted.forget()

    def step(
        self,
        spoiled_by: Exception | None = None,
        epoch: float | None = None,
        before_update: Callable[[], None] | None = None,
    ) -> None:
        """Update every param with a gradient collected since the last step.

        spoiled_by, epoch, before_update: As for `joint_step`.
        RAISES (NonFiniteGradError): `max_nonfinite` updates in a row were skipped.
        """

        def update() -> None:
            if before_update is not None:
                before_update()
            self._update(spoiled_by, epoch)

        with self._lock:
            self._noted.update(self._trained.table, self.set_grad, self._update_of_shim, update)

    def _update(
        self,
        spoiled_by: Exception | None = None,
        epoch: float | None = None,
        *,
        lr_scale: float = 1.0,
        part: Key | None = None,
    ) -> None:
        """part (Key | None): The key of the only param, if it is updated by itself, as a part of a step."""
        self._settings.check_end_is_known()
        self._check_settings()
        self._tell_lack_of_state()
        params, shims = self._noted.pop_all()
        if params:
            for attachment in self.attachments.values():
                attachment.check_update(self)
        if params or spoiled_by is not None or (self._joint and self._step.reduce is not None):
            with in_order():
                is_made = self._step.make(
                    params,
                    shims,
                    self._trained,
                    grad_clip=self.grad_clip,
                    together=JOINT if self._joint else name_of_set(params),
                    lr_scale=lr_scale,
                    counts=part is None,
                    epoch=epoch,
                    spoiled_by=spoiled_by,
                    batch_size=self.batch_size,
                )
            if is_made:
                self._settings.count_update(part)

    def __call__(self, key: Key, weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> tuple[Any, Any]:
        """Update one param at once: thinc's own interface. It counts as a part of a step.

        key (Key): Thinc's `(node.id, name)`, or `(shim.id, name)` of a torch param.
        weights (Any): Array of floats, updated in place if possible.
        gradient (Any): Its gradient; zero afterwards. Shape: as the weights.
        lr_scale (float): Scales the learning rate.
        RETURNS (tuple[Any, Any]): Weights and gradient.
        RAISES (ParamError): The averages are in use in place of the param. (DistributedError): Called during a joint
            step of several processes.
        """
        with self._lock:
            if len(gradient) < 1:
                return weights, gradient
            param = self._trained.table.torch_param_of(key, weights)
            check_param_not_in_use(key, weights, param, self._trained.table.names)
            if param is None and not isinstance(weights, torch.Tensor) and not is_viewable(weights):
                weights = own_copy(weights)
            self._refuse_alone(key)
            with self._apart():
                if param is None:
                    self.set_grad(weights, gradient, key=key)
                    self._update(lr_scale=lr_scale, part=key)
                else:
                    self.set_grad(param, grad := view_of_param(gradient, f"{key}"))
                    self._update(lr_scale=lr_scale, part=key)
                    grad.zero_()
            if self._joint:
                self._step.grad_norm = None  # it was this one param's
            return weights, gradient

    def _update_of_shim(
        self, key: Key, weights: Any, gradient: Any, callback: Callable[[Any], None], *, lr_scale: float
    ) -> None:
        """Update a param of a shim by itself, after the update of all others. Arguments: As for `set_grad`."""
        self._refuse_alone(key)
        grad_norm = self._step.grad_norm
        with self._apart():
            self.set_grad(weights, gradient, callback, key=key)
            self._update(lr_scale=lr_scale, part=key)
        self._step.grad_norm = grad_norm

    def _refuse_alone(self, key: Key) -> None:
        """RAISES (DistributedError): It is a joint step of several processes."""
        if self._joint and self._step.reduce is not None:
            raise DistributedError(
                f"Can't update param {key!r} by itself in one of several processes: expected "
                "thinc.model.Model.finish_update to pass all gradients to the optimizer at once, found a call for "
                "one param. Other code has replaced that function, or a component calls the optimizer itself. "
                "Train in one process."
            )

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Inside, an update has none of the gradients that were noted before."""
        waiting = self._noted, self._joint
        self._noted, self._joint = NotedGrads(), False
        try:
            yield
        finally:
            self._noted, self._joint = waiting

    def step_schedules(self) -> None:
        """Move every schedule on by one, each exactly once."""
        with self._lock:
            self._settings.step()
            self._trained.plan.move_to_step(self._settings.step_count)

    def observe(self, score: float, scores: Mapping[str, Any] | None = None) -> None:
        """Pass the scores of an evaluation to schedules that follow them. spaCy's training loop calls this.

        score (float): The main score. Higher is better.
        scores (Mapping[str, Any]): All scores, e.g. "ents_f".
        RAISES (ScheduleError): A schedule follows a score that is missing.
        """
        with self._lock:
            self._settings.observe({**(scores or {}), "score": score})

    @property
    def remembers_scores(self) -> list[str]:
        """The schedules and attachments that compare scores with earlier ones, by their places in the config."""
        found = [name for name, schedule in self._settings.by_name.items() if schedule.watches_score]
        return found + [name for name, attachment in self.attachments.items() if attachment.remembers_scores]

    @property
    def spans_training(self) -> bool:
        """Whether any schedule ends with the training: one without `total_steps`."""
        return self._settings.span_training

    def set_total_steps(self, total_steps: int, *, may_change: bool = False) -> None:
        """Set the length of the training for schedules without `total_steps`, before the first update. spaCy's training
        loop calls this.

        may_change (bool): Also change a length that was set before. Schedules go on at the current step of the new
            curve.
        RAISES (ConfigError): Not a number of steps. (ScheduleError): A warm-up does not fit. (StateError): Another
            length was set before, perhaps in the saved run.
        """
        with self._lock:
            self._settings.set_total_steps(total_steps, may_change=may_change)

    def begin_decay(self, decay_steps: int | None = None) -> bool:
        """Start the decay of all `warmup_stable_decay` schedules now, as SIGUSR1 does. spaCy's training loop evaluates
        and ends the training when the decay is over.

        decay_steps (int): Length of the decay. None: as in the config.
        RETURNS (bool): Whether any schedule starts to decay: False if all have started before.
        RAISES (ScheduleError): No schedule has a decay to start, or the number of steps is not valid.
        """
        with self._lock:
            return self._settings.begin_decay(decay_steps)

    @property
    def can_begin_decay(self) -> bool:
        """Whether any schedule has a decay to start."""
        return bool(self._settings.cooldowns)

    @property
    def decay_is_over(self) -> bool:
        """Whether decays were started, and all of them are over."""
        return self._settings.decay_is_over

    def reduce_by(self, reduce: Reduce | None) -> None:
        """Reduce the gradients of several processes in joint updates from now on. None: only this process."""
        self._step.reduce = reduce

    def keep_buffers(self) -> None:
        """Save the buffers of torch modules: skipped updates restore them. Every other update saves them again, and so
        does the first forward pass since.

        Call it before a pass that is not thinc's, if other code may have written to the buffers since.
        """
        self._step.buffers.keep()

    # ------------------------------------------------------------------ changes in the course of a training

    def freeze(self, params: Sequence[str]) -> None:
        """Freeze params from the next update on. Their values stay; their moments and averages are dropped. The
        patterns also hold for params that are renamed or added later.

        params (Sequence[str]): Patterns over their names.
        RAISES (ConfigError): One matches no param.
        """
        with self._lock:
            self._trained.freeze(params, frozen=True)

    def freeze_by_settings(self, names: Collection[str]) -> None:
        """Freeze params as a param group with freeze = true does, for attachments that freeze: a state that was saved
        with others frozen can be loaded.

        names (Collection[str]): Their names, in place of those given before.
        """
        with self._lock:
            self._trained.freeze_by_settings(names)

    def unfreeze(self, params: Sequence[str]) -> None:
        """Train frozen params again from the next update on, also those that the settings freeze.

        params (Sequence[str]): Patterns over their names.
        RAISES (ConfigError): One matches no param.
        """
        with self._lock:
            self._trained.freeze(params, frozen=False)

    def scale_learn_rates(
        self, groups: Sequence[str], factor: float, min_rate: float = 0.0, max_rate: float | None = None
    ) -> None:
        """Multiply the learning rates of param groups, from the next step on.

        groups (Sequence[str]): Their names in the config, or patterns over these.
        factor, min_rate, max_rate: As in `GroupPlan.change_rates`.
        RAISES (ConfigError): No such group, or an invalid factor.
        """
        with self._lock:
            self._trained.table.follow()
            self._trained.plan.change_rates(groups, factor=factor, min_rate=min_rate, max_rate=max_rate)

    def set_learn_rates(self, groups: Sequence[str], rate: float) -> None:
        """Set the learning rates of param groups from the next step on, in place of their schedules.

        groups (Sequence[str]): Their names in the config, or patterns over these.
        RAISES (ConfigError): No such group, or an invalid rate.
        """
        with self._lock:
            self._trained.table.follow()
            self._trained.plan.set_rates(groups, rate)

    @property
    def keeps_averages(self) -> bool:
        """Whether there are averages of params, or will be."""
        return self._trained.averages is not None

    def begin_averages(self, *, anew: bool = False) -> None:
        """Begin averages at the next update, also those of params before their `start_step`.

        anew (bool): Drop the current averages. Otherwise they continue.
        RAISES (ConfigError): The settings keep no averages.
        """
        with self._lock:
            if self._trained.averages is None:
                raise ConfigError(
                    "Can't begin averages: expected use_averages = true, or a block [training.optimizer.averages], "
                    "found neither. Add one."
                )
            self._trained.averages.begin(anew=anew)

    def check_group_names(self, patterns: Sequence[str]) -> None:
        """RAISES (ConfigError): A pattern matches no param group."""
        with self._lock:
            self._trained.table.follow()
            self._trained.plan.check_group_names(patterns)

    def check_param_names(self, patterns: Sequence[str]) -> None:
        """RAISES (ConfigError): A pattern matches no param."""
        with self._lock:
            self._trained.check_patterns(patterns)

    # ------------------------------------------------------------------ for inspection

    @property
    def params(self) -> dict[str, torch.Tensor]:
        """The trained params by lasting name, as the model has them. Thinc's arrays are tensors that share their
        memory. Without frozen params.
        """
        return {param.name: param.in_model for param in self._trained.params if param.group is not None}

    @property
    def trained_params(self) -> list[Param]:
        """The rows of `params`."""
        return [param for param in self._trained.params if param.group is not None]

    @property
    def params_to_update(self) -> list[Param]:
        """The params with a gradient for the next update."""
        return [param for param in self._noted.params.values() if param.tensor.grad is not None]

    @property
    def rates(self) -> RateWriter:
        """The writer of the learning rates, with their history and changes by other code. Loading a state replaces
        it.
        """
        return self._trained.writer

    @property
    def frozen_until(self) -> dict[Key, float]:
        """The first step that trains each frozen param, by its key: thinc's, or the id of a torch tensor. Infinite:
        none does.
        """
        return {param.key: param.settings.frozen_until for param in self._trained.plan.frozen_params}

    @property
    def learn_rates(self) -> dict[str, float]:
        """The learning rate of the last step by param group: the name in the config, several joined by "+", or
        "default".
        """
        return self._trained.plan.learn_rates() or {"default": self.learn_rate}

    @property
    def rate_names(self) -> set[str]:
        """All names that `learn_rates` can have."""
        return {"default", *self._trained.plan.rate_names()}

    def describe(self, names: Collection[str] | None = None) -> ParamInfos:
        """Describe each param, frozen ones too: its group, learning rate and options at this step.

        names (Collection[str]): Only these. None: all.
        RETURNS (ParamInfos): A list, which is printed as a table.
        """
        return ParamInfos(
            self._trained.plan.describe(param) for param in self._trained.params if names is None or param.name in names
        )

    @property
    def patterns(self) -> list[Pattern]:
        """All patterns over names in the settings."""
        return self._cascade.patterns

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """All algorithms of the settings by their config names, e.g. "torch.AdamW.v1"."""
        return {found.algorithm.label: found.algorithm for found in self._cascade.candidates}

    @property
    def torch_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The torch optimizers by config path: "algorithm", "param_groups.embeddings.algorithm", "algorithm.fallback".
        Each is built when its first param is added.
        """
        return {found.name: found.optimizer for found in self._trained.plan.algorithms}

    @property
    def clip_by(self) -> ClipBy:
        """The norm that `grad_clip` limits."""
        return self._step.clip_by

    @property
    def grad_norm(self) -> float | None:
        """The 2-norm of all gradients of the last update, before clipping. None: it was not measured."""
        return self._step.grad_norm

    @property
    def skipped_updates(self) -> int:
        """The number of updates skipped because of a non-finite gradient or a spike."""
        return self._step.guard.skipped

    @property
    def grad_spikes(self) -> int:
        """The number of spikes, skipped or scaled down."""
        return self._step.guard.spikes

    @property
    def bad_updates_in_a_row(self) -> int:
        """The number of updates with non-finite gradients or spikes since the last good one."""
        return self._step.guard.bad_in_a_row

    @property
    def stopped_grads(self) -> set[int]:
        """The ids of torch params without gradients inside `training`."""
        return self._frozen_grads.ids

    # ------------------------------------------------------------------ thinc's attributes

    @property
    def learn_rate(self) -> float:
        """The learning rate of this step."""
        return self._settings["learn_rate"]

    @learn_rate.setter
    def learn_rate(self, value: float) -> None:
        self._settings["learn_rate"] = value

    @property
    def grad_clip(self) -> float:
        """The largest gradient norm of this step. 0: no clipping."""
        return self._settings["grad_clip"]

    @grad_clip.setter
    def grad_clip(self, value: float) -> None:
        self._settings["grad_clip"] = value

    @property
    def averages(self) -> dict[Any, Any]:
        """The averages for `nlp.use_params` and `Model.use_params`; perhaps empty. See `Averages.as_thinc`."""
        with self._lock:
            if self.keeps_averages:
                self._tell_lack_of_state()
            return self._trained.averages_for_thinc()

    @averages.setter  # type: ignore[override]
    def averages(self, value: None) -> None:
        if value is not None:
            raise ConfigError(
                f"Can't set 'averages' of the optimizer: expected None, found {type(value).__name__}. None drops the "
                "averages for good. To keep averages, build the optimizer with use_averages = true."
            )
        with self._lock:
            self._average_settings = None
            self._trained.drop_averages()

    @property
    def schedules(self) -> dict[str, Any]:  # type: ignore[override]
        """The schedules by config path, e.g. "learn_rate", "algorithm.weight_decay", in thinc's form."""
        return {name: schedule.source for name, schedule in self._settings.by_name.items()}

    @property
    def warmup_steps(self) -> int:
        """The number of steps before the last warm-up of a learning rate is over. 0: no schedule has one."""
        return self._settings.warmup_steps

    @property
    def nr_update(self) -> dict[Key, int]:  # type: ignore[override]
        """The number of updates of each param."""
        return {key: param.steps for key, param in self._trained.table.by_key.items()}

    @property
    def b1(self) -> float:  # type: ignore[override]
        """The first of the algorithm's `betas`, or 0. spaCy's `nlp.rehearse` reads both."""
        return self._betas[0]

    @property
    def b2(self) -> float:  # type: ignore[override]
        """The second of the algorithm's `betas`, or 0."""
        return self._betas[1]

    @property
    def _betas(self) -> tuple[float, float]:
        first, second, *_ = current(self._cascade.candidates[0].options.get("betas", (0.0, 0.0)))
        return float(first), float(second)

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """The whole state by lasting names, to resume exactly in another process: see core/state/by_name.py.

        RETURNS (dict): Dicts, lists, numbers, texts, and the optimizer's own tensors: copy them to keep them.
        RAISES (PipelineError): The optimizer has no pipeline. (StateError): It trains a model outside the pipeline.
        """
        with self._lock:
            guard = {"guard": self._step.guard.state_dict()}
            return {"version": VERSION, **self._settings.state_dict(), **guard, **self._trained.state_dict()}

    def load_state_dict(
        self,
        saved: Mapping[str, Any],
        *,
        on_growth: Literal["mean", "zero"] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """Resume from a saved state. Everything is checked first; an error changes nothing.

        saved (Mapping): From `state_dict`, of an optimizer with the same settings for the same pipeline.
        on_growth ("mean" | "zero" | None): For a pipeline that has changed since. Where labels were added, old rows
            keep their state and new ones get this; state of removed or frozen params is dropped, new params start
            without, and a warning lists both. None: nothing may have changed.
        renamed (Mapping[str, str]): New names of components, or of parts of names of params, by the old ones.
        RAISES (StateError): Not a state, or of another pipeline or other settings. (ScheduleError): A schedule is ahead
            of the state: build a new optimizer. (ConfigError): An invalid argument. (PipelineError): The optimizer has
            no pipeline.
        """
        if on_growth not in (None, "mean", "zero"):
            raise ConfigError(
                "Can't load the state of the optimizer: expected on_growth to be 'mean' or 'zero', found "
                f"{on_growth!r}."
            )
        check_version(saved, VERSION, WHAT)
        state = read(SavedState, saved, WHAT)
        with self._lock:
            nlp, exclude = self._known_pipeline()
            self._check_settings()  # what attachments freeze may be unfrozen in the state
            # Built beside the current one, and replaces it once everything has succeeded.
            trained, guard = self._without_params(state.step), self._step.guard.anew()
            with own_errors("the optimizer"), self._frozen_grads.put_aside():
                paths = saved_state.as_paths(renamed or {})
                state, walked = trained.load(nlp, exclude, state, on_growth, paths)
                guard.load_state_dict(state.guard, paths)
                self._settings.load(vars(state.settings), state.schedules, state.step)
            by_name.restore_scalers([found for model in walked for found in model.shims], state.grad_scalers)
            by_name.restore_grads(walked, state.grads)
            self._frozen_grads.stop_only(trained.plan.frozen_params)
            self._trained, self._step.guard, self._lacks_state = trained, guard, False

    def check_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Check that a state can be loaded, without loading it. saved, RAISES: As `load_state_dict`."""
        check_version(saved, VERSION, WHAT)
        state = read(SavedState, saved, WHAT)
        with self._lock, warnings.catch_warnings(), own_errors("the optimizer"), self._frozen_grads.put_aside():
            warnings.simplefilter("ignore")
            nlp, exclude = self._known_pipeline()
            self._without_params(state.step).load(nlp, exclude, state)
            self._step.guard.anew().load_state_dict(state.guard)
            self._settings.check_state(state.schedules, state.step)

    def _known_pipeline(self) -> tuple[Language, Collection[str]]:
        """The pipeline, and its excluded components by the names they have now. RAISES (PipelineError): None."""
        self._trained.table.follow_renamed()
        return self._trained.table.pipeline.get()

    def roll_back(self, saved: Mapping[str, Any], factor: float = 1.0) -> None:
        """Restore the state and the averages of all params from a checkpoint. The caller restores the values of params:
        see loop/rollback.py.

        Schedules, history and counters are not restored. New cells of params that have grown since get state as
        `on_growth` says.

        saved (Mapping): From `state_dict`, of this run. factor (float): Multiplies all learning rates.
        RAISES (StateError): Params were added since. Nothing changes then.
        """
        with self._lock:
            self._trained.table.pipeline.get()
            self._trained.roll_back(read(SavedState, saved, WHAT))
            self._trained.writer.scale *= factor
            self._step.guard.end_row()

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
        """Load the files of `to_disk`. Arguments as in `load_state_dict`. RAISES (StateError): Also if they are
        damaged. (StateReadError): They can't be read.
        """
        self.load_state_dict(read_folder(Path(path)), on_growth=on_growth, renamed=renamed)

    def __getstate__(self) -> dict[str, Any]:
        """Settings and schedules, without params and state: a copied pipeline has other arrays and keys. With a
        pipeline, it is pickled by `nlp.pipe(n_process=2)`; a copy that is used says what it lacks.
        """
        left_behind = ("_lock", "_noted", "_trained", "_frozen_grads")
        kept = {name: value for name, value in self.__dict__.items() if name not in left_behind}
        kept |= {"_step": copy(self._step), "_settings": copy(self._settings)}
        return {**kept, "_lacks_state": self._lacks_state or any(param.steps for param in self._trained.params)}

    def __setstate__(self, settings: dict[str, Any]) -> None:
        self.__dict__.update(settings)
        lacks_state = self._lacks_state
        self._reset()
        self._lacks_state = lacks_state
        self._lock = _lock_for(self)

    def _tell_lack_of_state(self) -> None:
        """Warn once if it is a copy of an optimizer that had made updates."""
        if self._lacks_state:
            self._lacks_state = False
            warnings.warn(
                CheckpointWarning(
                    "A copy of an optimizer starts without moments, averages and counts: copies and pickles have its "
                    "settings and schedules alone. To go on with its state, call initialize(nlp) and "
                    "load_state_dict(original.state_dict())."
                ),
                stacklevel=4,
            )


def _refused(name: str) -> property:
    """An attribute of thinc's optimizers that ours do not have."""
    text = (
        "only thinc's own optimizers have it. optimizer.algorithms has the algorithm with its options, "
        "optimizer.torch_optimizers the torch optimizers with their state."
    )

    def refuse(optimizer: Any, value: Any = None) -> None:
        raise ConfigAttributeError(f"Can't use '{name}' of TorchOptimizer: {text}")

    return property(refuse, refuse, doc=f"{text[:1].upper()}{text[1:]}")


hooks.install(TorchOptimizer)
for _name in _HIDDEN:
    setattr(TorchOptimizer, _name, _refused(_name))
TorchOptimizer.__init__.__doc__ = TorchOptimizer.__doc__
create_optimizer = signed(
    lambda *args, **settings: TorchOptimizer(*args, **settings),
    "create_TorchOptimizer",
    arguments_of(TorchOptimizer),
    TorchOptimizer,
    TorchOptimizer.__doc__,
)
# In a forked process each gets a new lock: the thread that would release the old one does not exist there.
_all: WeakSet[TorchOptimizer] = WeakSet()


def _lock_for(optimizer: TorchOptimizer) -> Any:
    _all.add(optimizer)
    return RLock()


def _renew_locks() -> None:
    for optimizer in list(_all):
        optimizer._lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
