"""TorchOptimizer: a thinc optimizer that hands all params of a pipeline to one torch optimizer.

One training step:

 1. `nlp.update` adds up gradients in thinc's nodes and torch's params.
 2. `Model.finish_update(optimizer)` comes here (see hooks.py) as `finish_update`: `set_grad` notes each param with its
    gradient.
 3. `step` makes one update of them: see update/step.py.
 4. `step_schedules` moves every schedule on by one.

In spaCy's training loop (see training/loop.py) step 2 notes the gradients of all components, and step 3 comes once:
`joint_step`. Everywhere else `finish_update` does 3 before it returns. Threads do so one after the other: see lock.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any, Dict, Literal, Optional, get_args

import torch
from spacy.language import Language
from thinc.api import Model, Optimizer

from .. import hooks
from ..algorithms import AN_ALGORITHM, Algorithm
from ..averages import AveragedParams, AverageSettings, check_not_in_use, chosen_averages
from ..checks import OPTIMIZER, own_errors
from ..controller import ControllerSettings
from ..errors import ConfigError, DistributedError, PipelineError
from ..learn_rate import RateWriter
from ..params import Pattern, all_names, backprop_through_frozen, is_viewable, own_copy, scaling_all_apart
from ..registry import arguments_of, signed
from ..schema import check_version, read
from ..settings import Cascade, MovingSettings
from ..state import VERSION, WHAT, SavedState, by_name, match, read_folder, write_folder
from ..types import (
    BatchSize,
    BudgetSettings,
    CheckpointSettings,
    ClipBy,
    DistributedSettings,
    FloatOrSchedule,
    Key,
    OnGrowth,
    OnOutsideWrite,
    OnSpike,
    ParamInfo,
    SkipDecay,
)
from ..update import JOINT, FrozenGrads, Guard, NotedGrads, Reduce, Step, name_of_set, rollback_settings
from .lock import lock_for
from .trained import TrainedParams

_A_CHECKPOINT = (
    'a block with @misc = "thinc-torchopt.Checkpoint.v1", or in Python what the function checkpoint.Checkpoint returns'
)
_A_BUDGET = 'a block with @misc = "thinc-torchopt.Budget.v1", or in Python what the function training.Budget returns'
_A_CONTROLLER = (
    'a block with @misc = "thinc-torchopt.TrainerController.v1", or in Python what the function '
    "controller.trainer_controller returns"
)
_SEVERAL = (
    'a block with @misc = "thinc-torchopt.Distributed.v1", or in Python what the function distributed.Distributed '
    "returns"
)


class TorchOptimizer(Optimizer):
    """Train the whole pipeline with a torch optimizer. Registered as `thinc-torchopt.TorchOptimizer.v1`.

    algorithm (Algorithm): A block with `@torch_optimizers`.
    learn_rate (float | schedule): The learning rate.
    grad_clip (float | schedule): Largest 2-norm of the gradients. 0: no clipping.
    clip_by (str): Whose norm: "global": of all gradients together; "component": of each component's; "param": of each
        tensor's. Or "value": each number; "adaptive": each unit's norm, `grad_clip` being its largest part of the norm
        of the unit's weights.
    use_averages (bool): Keep averages of all params by thinc's formula, and evaluate and save those.
    averages (AverageSettings): The same as a block with `@misc = "thinc-torchopt.EMA.v1"` or `"thinc-torchopt.SWA.v1"`
        says.
    max_nonfinite (int): An update with a NaN or infinite gradient is skipped; training stops after so many in a row. 0:
        such updates are made; without clipping, that saves a pass over the gradients.
    spike_factor (float): An update whose gradient norm is above so many times its moving average is a spike. 0: nothing
        is.
    on_spike ("skip" | "clip"): Spikes are skipped, or scaled down to `spike_factor` times the average.
    rollback_after (int): After so many updates in a row that were not finite, or spikes, go back to the last
        checkpoint. 0: never.
    rollback_factor (float): What all learning rates are multiplied with then.
    max_rollbacks (int): After so many times the training stops. Rules of a trainer controller that go back count too.
    param_groups (dict): Blocks of settings for some of the params: `params` (a list of patterns over names, or "re:"
        and a regular expression), and any of `algorithm` (of its own), `learn_rate`, `lr_scale`, `freeze`,
        `unfreeze_at` (step) and the algorithm's options. Where several blocks set the same for a param, the last one
        wins.
    per_param_lr (dict): Learning rates by pattern, in short.
    layer_decay (dict): By pattern, by how much the learning rate falls from each layer to the one below.
    skip_decay ("bias_and_norm"): No weight decay for biases and the params of normalization layers.
    on_outside_write ("restore" | "adopt" | "raise"): What happens when something else writes learning rates.
    on_growth ("mean" | "zero" | "reset"): When a param grows, because labels were added for example, its state grows
        with it: what new cells get. "reset": the param starts anew.
    new_params_warmup (int): Params that come in mid-training learn at a tenth of the rate of others, to which they warm
        up in so many updates. 0: at the full rate from the start.
    enable_runtime_guards (bool): False: learning rates are not checked for changes by other code.
    runtime_budgets (dict): Milliseconds of CPU time that the learn rate controller may take: `rate_step` (5),
        `integrity_check` (2), `state_preservation` (100), `adding_params` (20). Overruns are only counted.
    checkpoint (CheckpointSettings): A block with `@misc = "thinc-torchopt.Checkpoint.v1"`: save the training state, and
        go on from it.
    distributed (DistributedSettings): A block with `@misc = "thinc-torchopt.Distributed.v1"`: how several processes
        train one pipeline.
    budget (BudgetSettings): A block with `@misc = "thinc-torchopt.Budget.v1"`: train for so long, and let the learning
        rate fall in time.
    controller (ControllerSettings): A block with `@misc = "thinc-torchopt.TrainerController.v1"`: steer `spacy train`
        by rules.

    Public beside thinc's attributes: `params`, `grad_norm`, `checkpoint`, `rollback`, `rules`, `distributed` and
    `budget` (settings, for the training loop; or None). `controller` is that of the learning rates. `batch_size`
    (`types.BatchSize`, or None): for algorithms that normalize gradients; spaCy's loop sets it for each step, others
    set it before an update.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        learn_rate: FloatOrSchedule = 0.001,
        *,
        grad_clip: FloatOrSchedule = 1.0,
        clip_by: ClipBy = "global",
        use_averages: bool = False,
        averages: Optional[AverageSettings] = None,
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
        runtime_budgets: Dict[str, float] = {},
        checkpoint: Optional[CheckpointSettings] = None,
        budget: Optional[BudgetSettings] = None,
        controller: Optional[ControllerSettings] = None,
        distributed: Optional[DistributedSettings] = None,
    ):
        self._lock = lock_for(self)
        if controller is not None:
            OPTIMIZER.kind("controller", controller, ControllerSettings, _A_CONTROLLER)
        self.rules = controller
        self._settings = MovingSettings(learn_rate, grad_clip)
        clip_by = OPTIMIZER.choice("clip_by", clip_by, get_args(ClipBy))
        guard = Guard(max_nonfinite, spike_factor=spike_factor, on_spike=on_spike)
        self._step = Step(guard, clip_by)
        self._cascade = Cascade(
            OPTIMIZER.kind("algorithm", algorithm, Algorithm, AN_ALGORITHM),
            self._settings.schedules,
            param_groups=param_groups,
            per_param_lr=per_param_lr,
            layer_decay=layer_decay,
            skip_decay=skip_decay,
            new_params_warmup=new_params_warmup,
            keep_apart=controller is not None and controller.names_groups,
        )
        on_growth = OPTIMIZER.choice("on_growth", on_growth, get_args(OnGrowth))
        if checkpoint is not None:
            OPTIMIZER.kind("checkpoint", checkpoint, CheckpointSettings, _A_CHECKPOINT)
        self.checkpoint = checkpoint
        if distributed is not None:
            OPTIMIZER.kind("distributed", distributed, DistributedSettings, _SEVERAL)
        self.distributed = distributed
        self.max_rollbacks = max_rollbacks
        self.rollback = rollback_settings(rollback_after, rollback_factor, max_rollbacks, guard, checkpoint)
        self._of_trained = {
            "on_outside_write": OPTIMIZER.choice("on_outside_write", on_outside_write, get_args(OnOutsideWrite)),
            "on_growth": on_growth,
            "enable_runtime_guards": enable_runtime_guards,
            "runtime_budgets": runtime_budgets,
        }
        chosen = chosen_averages(OPTIMIZER.flag("use_averages", use_averages), averages)
        self._average_settings = None if chosen is None else chosen.tracked(self._settings.schedules)
        for found in () if chosen is None else self._cascade.candidates:
            found.algorithm.check_takes_averages()
        if budget is not None:
            OPTIMIZER.kind("budget", budget, BudgetSettings, _A_BUDGET)
            self._check_budget()
        self.budget = budget
        self._joint = False
        self.batch_size: BatchSize | None = None
        self._meet_no_params()

    def _check_budget(self) -> None:
        """RAISES (ConfigError): There is something missing without which there can be no budget."""
        if self.checkpoint is None:
            raise ConfigError(
                "Can't use [training.optimizer.budget]: expected a block [training.optimizer.checkpoint], found none. "
                "The learning rate falls from a checkpoint. Add it, or let a command do it: spacy torchopt train "
                "--budget."
            )
        if not self.can_begin_decay:
            raise ConfigError(
                "Can't use [training.optimizer.budget]: expected a schedule that can be told to fall, found none. Set "
                "learn_rate to thinc-torchopt.warmup_stable_decay.v1, or let a command do it: spacy torchopt train "
                "--budget."
            )

    def _meet_no_params(self) -> None:
        self._is_settled = False
        self._noted = NotedGrads()
        self._step.forget_buffers()
        self._frozen_grads = FrozenGrads()
        self._trained = self._no_params(self._settings.step_count)

    def _no_params(self, step: int) -> TrainedParams:
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
        """Take in all params of a pipeline under their lasting names. Params that turn up later are taken in then.

        An optimizer that knew another pipeline begins anew with this one: no moments, averages or counts pass from one
        to the other. Only its schedules go on, which can't go back.

        nlp (Language): The pipeline, initialized.
        exclude (Collection[str]): Components that are not trained.
        RAISES (PipelineError): Nothing to train, or a component that was not initialized. (ConfigError): A pattern in
            the settings that matches no param.
        """
        with self._lock:
            self._trained.plan.check(all_names(nlp))
            self._meet(nlp)
            self._is_settled = False
            self._trained.table.take_in(nlp, exclude)
            self._keep_all_buffers()

    def introduce(self, nlp: Language, *, anew: bool = False) -> None:
        """As `initialize`, for spaCy, which calls this before all is ready: what is wrong is said when training begins.

        anew (bool): The pipeline has got new weights, to which nothing of what was learned before belongs.
        """
        with self._lock:
            self._meet(nlp, anew)
            with suppress(PipelineError):
                self._trained.table.take_in(nlp, ())
                self._keep_all_buffers()

    def knows(self, nlp: Language) -> bool:
        """Whether this is the pipeline that it was told last."""
        return self._trained.table.pipeline.is_(nlp)

    def settle(self) -> None:
        """The training is over, and params are now what is to be evaluated and saved: no averages are told of, until
        another one begins.
        """
        self._is_settled = True

    def _meet(self, nlp: Language, anew: bool = False) -> None:
        """Begin anew if this is another pipeline than before, or the same with new weights: so in cross-validation, for
        example.
        """
        known = self._trained.table.pipeline
        if anew or (known.was_told and not known.is_(nlp)):
            self._meet_no_params()
            self._step.guard.begin_anew()

    def _keep_all_buffers(self) -> None:
        if self._step.guard.wants_norms:
            self._step.buffers.keep(shim for _, shim in self._trained.table.pipeline.shim_paths())

    @contextmanager
    def training(self) -> Iterator[None]:
        """Inside, torch computes no gradients for frozen params, as in each update of spaCy's loop; afterwards all is
        as before.
        """
        with (
            self._frozen_grads.stopping(self._trained.plan.frozen_params),
            backprop_through_frozen(self._trained.table.shims.values()),
            scaling_all_apart(),
        ):
            yield

    # ------------------------------------------------------------------ gradients and updates

    def set_grad(
        self, param: Any, grad: Any, callback: Callable[[Any], None] | None = None, *, key: Key | None = None
    ) -> None:
        """Register a param and its gradient for the next `step`. Computes nothing.

        param (Any): NumPy or CuPy array, or torch tensor, of floats. Arrays are viewed by torch in place, once each.
        grad (Any): Its gradient, of the same kind. The step sets it to zero in place; that of a `torch.nn.Parameter`
            becomes None.
            Shape: as the param.
        callback (Callable): For params that are kept elsewhere: values are copied into a buffer of ours, allocated
            once, and the callback gets the array or tensor with the new values after the step.
        key (Key): What the param is known by when its array is replaced. Default: the object `param` itself.
        RAISES (ParamError): The param is not of floats. (ShapeError): It has another shape than before, or than its
            gradient.
        """
        with self._lock:
            self._noted.note(self._trained.table, id(param) if key is None else key, param, grad, callback)

    def finish_update(self, model: Model) -> None:
        """Take the gradients of a model, and update its params unless a joint step will. `Model.finish_update` calls
        this.

        model (Model): A component's model, or any other. `set_grad` sees each of its params that has a gradient, if a
            subclass has its own.
        RAISES (ParamError): Averages are in place of its params.
        """
        with self._lock:
            check_not_in_use(model, self._trained.table.names)
            try:
                sees_all = getattr(self.set_grad, "__func__", None) is not TorchOptimizer.set_grad
                self._noted.collect(self._trained.table, model, self.set_grad, self, sees_all=sees_all)
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
        metrics: Mapping[str, Any] | None = None,
    ) -> Iterator[None]:
        """Inside, `finish_update` only notes gradients; at the end all params are updated together. Other threads wait.

        spoiled_by (Exception | None): What a component raised because of a value that is not finite. The update is
            skipped then.
        epoch (float): For the history of learning rates.
        metrics (Mapping[str, float]): Of this step, e.g. "loss", for learning rates that go by them.
        """
        with self._lock:
            if self._joint:  # inside another one, whose end is the end
                yield
                return
            self._joint = True
            try:
                yield
                self.step(spoiled_by, epoch, metrics)
            finally:
                self._joint = False
                self._noted.forget()

    def step(
        self, spoiled_by: Exception | None = None, epoch: float | None = None, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Update every param whose gradient was noted since the last step.

        spoiled_by, epoch, metrics: As for `joint_step`.
        RAISES (NonFiniteGradError): `max_nonfinite` updates in a row were skipped.
        """
        with self._lock:
            self._update(1.0, spoiled_by, epoch, metrics)

    def _update(
        self,
        lr_scale: float,
        spoiled_by: Exception | None = None,
        epoch: float | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings.schedules.check_end_is_known()
        params, shims = self._noted.take()
        if params or spoiled_by is not None or (self._joint and self._step.reduce is not None):
            is_made = self._step.make(
                params,
                shims,
                self._trained,
                grad_clip=self.grad_clip,
                together=JOINT if self._joint else name_of_set(params),
                lr_scale=lr_scale,
                epoch=epoch,
                metrics=metrics,
                spoiled_by=spoiled_by,
                batch_size=self.batch_size,
            )
            if is_made:
                self._settings.count_update()

    def __call__(self, key: Key, weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> tuple[Any, Any]:
        """Update one param at once: thinc's own interface.

        key (Key): Thinc's `(node.id, name)`.
        weights (Any): Array of floats, updated in place where it can be.
        gradient (Any): Its gradient; zero afterwards. Shape: as the weights.
        lr_scale (float): Scales the learning rate.
        RETURNS (tuple[Any, Any]): Weights and gradient.
        RAISES (DistributedError): In a joint step of several processes, whose updates would be of this one alone.
        """
        with self._lock:
            if len(gradient) < 1:
                return weights, gradient
            if not isinstance(weights, torch.Tensor) and not is_viewable(weights):
                weights = own_copy(weights)
            if self._joint and self._step.reduce is not None:
                raise DistributedError(
                    f"Can't update param {key!r} by itself in one of several processes: expected "
                    "thinc.model.Model.finish_update to give all gradients to the optimizer at once, found a call for "
                    "one param. Something has replaced that function, or a component calls the optimizer itself. Train "
                    "in one process."
                )
            waiting = self._noted, self._joint
            self._noted, self._joint = NotedGrads(), False
            try:
                self.set_grad(weights, gradient, key=key)
                self._update(lr_scale)
            finally:
                self._noted, self._joint = waiting
            if self._joint:
                self._step.grad_norm = None  # this was one param's
            return weights, gradient

    def step_schedules(self) -> None:
        """Move every schedule on by one, each exactly once."""
        with self._lock:
            self._settings.step()
            self._trained.plan.move_to_step(self._settings.step_count)

    def observe(self, score: float, scores: Mapping[str, Any] | None = None) -> None:
        """Tell schedules and learning rates that go by the score how the last evaluation went. spaCy's training loop
        does that.

        score (float): The main score. Higher is better.
        scores (Mapping[str, Any]): All scores, e.g. "ents_f".
        RAISES (ScheduleError, ConfigError): A schedule or a policy goes by a score that is not there.
        """
        with self._lock:
            found = {**(scores or {}), "score": score}
            if scores is not None:
                self._trained.plan.rates.check_metrics(found)
            self._trained.writer.observe(found)
            self._settings.observe(found)

    @property
    def spans_training(self) -> bool:
        """Whether there is a schedule that ends where the training ends: one without `total_steps`."""
        return self._settings.schedules.span_training

    def set_total_steps(self, total_steps: int, *, may_change: bool = False) -> None:
        """Tell schedules without `total_steps` how many steps the training has, before its first update. spaCy's
        training loop does that.

        may_change (bool): Also if they were told something else before. They go on where the step that comes is on the
            new curve.
        RAISES (ConfigError): Not a number of steps. (ScheduleError): A warm-up does not fit. (StateError): They were
            told something else before, perhaps in the run that goes on.
        """
        with self._lock:
            self._settings.set_total_steps(total_steps, may_change=may_change)

    def begin_decay(self, decay_steps: int | None = None) -> bool:
        """Let the learning rate fall from here on, if its schedule is `warmup_stable_decay`: all schedules of that kind
        do. spaCy's training loop evaluates and ends the training when all are down. SIGUSR1 does the same.

        decay_steps (int): In so many steps. None: as the config says.
        RETURNS (bool): Whether any of them begins to fall: not if all are falling already.
        RAISES (ScheduleError): There is no such schedule, or such a number of steps can't be.
        """
        with self._lock:
            return self._settings.begin_decay(decay_steps)

    def take_back_decay(self) -> None:
        """Let schedules that were told to fall stay, as if they had not been."""
        with self._lock:
            self._settings.take_back_decay()

    @property
    def can_begin_decay(self) -> bool:
        """Whether there is a schedule that can be told to fall."""
        return bool(self._settings.schedules.of_decay)

    @property
    def decay_is_over(self) -> bool:
        """Whether schedules were told to fall, and all that were are down."""
        return self._settings.decay_is_over

    def reduce_by(self, reduce: Reduce | None) -> None:
        """From now on let joint updates be those of several processes. None: of this one."""
        self._step.reduce = reduce

    def keep_buffers(self) -> None:
        """Note what the buffers of torch modules hold: an update that is skipped brings that back. Done after each
        update that is made.

        Call it before the forward pass if something else may have written to them since.
        """
        self._step.buffers.keep()

    # ------------------------------------------------------------------ changes in the course of a training

    def freeze(self, params: Sequence[str]) -> None:
        """Train params no longer, from the next update on. What was learned stays; moments and averages are forgotten.
        They stay frozen under any name, and params that come later are frozen if a pattern matches them.

        params (Sequence[str]): Patterns over their names.
        RAISES (ConfigError): One matches no param.
        """
        with self._lock:
            self._trained.freeze(params, frozen=True)

    def unfreeze(self, params: Sequence[str]) -> None:
        """Train frozen params again, from the next update on: those that the settings freeze, too.

        params (Sequence[str]): Patterns over their names.
        RAISES (ConfigError): One matches no param.
        """
        with self._lock:
            self._trained.freeze(params, frozen=False)

    def scale_learn_rates(self, groups: Sequence[str], factor: float, min_rate: float = 0.0) -> None:
        """Multiply the learning rates of param groups, from the next step on.

        groups (Sequence[str]): Their names in the config, or patterns over these.
        factor, min_rate (float): As in `Plan.change_rates`.
        RAISES (ConfigError): There is no such group, or such a factor can't be.
        """
        with self._lock:
            self._trained.plan.change_rates(groups, factor=factor, min_rate=min_rate)

    def set_learn_rates(self, groups: Sequence[str], rate: float) -> None:
        """Set the learning rates of param groups, from the next step on, in place of their schedules.

        groups (Sequence[str]): Their names in the config, or patterns over these.
        RAISES (ConfigError): There is no such group, or such a rate can't be.
        """
        with self._lock:
            self._trained.plan.set_rates(groups, rate)

    def check_group_names(self, patterns: Sequence[str]) -> None:
        """RAISES (ConfigError): One matches no param group."""
        self._trained.plan.check_group_names(patterns)

    def check_param_names(self, patterns: Sequence[str]) -> None:
        """RAISES (ConfigError): One matches no param."""
        self._trained.check_patterns(patterns)

    # ------------------------------------------------------------------ what can be looked at

    @property
    def params(self) -> dict[str, torch.Tensor]:
        """The params that are optimized, by lasting name. Thinc's arrays as tensors that share their memory. Frozen
        ones are left out.
        """
        return {param.name: param.tensor for param in self._trained.params if param.group is not None}

    @property
    def controller(self) -> RateWriter:
        """The controller of the learning rates: their history, changes by other code, and more. A new object after
        loading a state.
        """
        return self._trained.writer

    @property
    def learn_rates(self) -> dict[str, float]:
        """The learning rate of the last step by param group: its name in the config, or several joined by "+"; else
        "default".
        """
        return self._trained.plan.learn_rates() or {"default": self.learn_rate}

    @property
    def rate_names(self) -> set[str]:
        """All names that `learn_rates` may ever have."""
        return {"default", *self._trained.plan.rate_names()}

    def describe(self, names: Collection[str] | None = None) -> list[ParamInfo]:
        """Describe each param, frozen ones too: its group, learning rate and options at this step.

        names (Collection[str]): Only of these. None: of all.
        """
        return [
            self._trained.plan.describe(param) for param in self._trained.params if names is None or param.name in names
        ]

    @property
    def patterns(self) -> list[Pattern]:
        """All patterns over names in the settings."""
        return self._cascade.patterns

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """All algorithms of the settings, by what the config calls them, e.g. "torch.AdamW.v1"."""
        return {found.algorithm.label: found.algorithm for found in self._cascade.candidates}

    @property
    def torch_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The torch optimizers inside by config path: "algorithm", "param_groups.embeddings.algorithm",
        "algorithm.fallback". Each is built when its first param comes.
        """
        return {found.name: found.optimizer for found in self._trained.plan.algorithms}

    @property
    def clip_by(self) -> ClipBy:
        """What `grad_clip` limits."""
        return self._step.clip_by

    @property
    def grad_norm(self) -> float | None:
        """The 2-norm over all gradients of the last update, before clipping. None: it was not measured."""
        return self._step.grad_norm

    @property
    def skipped_updates(self) -> int:
        """How many updates were skipped because of a gradient that was not finite, or of a spike."""
        return self._step.guard.skipped

    @property
    def grad_spikes(self) -> int:
        """How many spikes were found, skipped or scaled down."""
        return self._step.guard.spikes

    @property
    def bad_updates_in_a_row(self) -> int:
        """How many of the last updates in a row had gradients that were not finite, or a spike."""
        return self._step.guard.bad_in_a_row

    @property
    def stopped_grads(self) -> set[int]:
        """The ids of torch params for which, inside `training`, no gradients are computed."""
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
        """The averages, for `nlp.use_params` and `Model.use_params`; empty while there are none. See
        `Averages.as_thinc`.
        """
        with self._lock:
            return AveragedParams() if self._is_settled else self._trained.averages_for_thinc()

    @averages.setter  # type: ignore[override]
    def averages(self, value: None) -> None:
        if value is not None:
            raise ConfigError(
                f"Can't set 'averages' of the optimizer: expected None, found {type(value).__name__}. None drops the "
                "averages and keeps no more; to keep some, build the optimizer with use_averages = true."
            )
        with self._lock:
            self._average_settings = None
            self._trained.drop_averages()

    @property
    def schedules(self) -> dict[str, Any]:  # type: ignore[override]
        """The sources of all schedules by config path, e.g. "learn_rate", "algorithm.weight_decay"."""
        return {name: schedule.source for name, schedule in self._settings.schedules.by_name.items()}

    @property
    def nr_update(self) -> dict[Key, int]:  # type: ignore[override]
        """How many updates each param had."""
        return {key: param.steps for key, param in self._trained.table.by_key.items()}

    @property
    def b1(self) -> float:  # type: ignore[override]
        """The first of the algorithm's `betas`, else its `momentum`, else 0."""
        options = self._trained.plan.options
        return float(options["betas"][0] if "betas" in options else options.get("momentum", 0.0))

    @property
    def b2(self) -> float:  # type: ignore[override]
        """The second of the algorithm's `betas`, else 0."""
        return float(self._trained.plan.options.get("betas", (0.0, 0.0))[1])

    @property
    def eps(self) -> float:  # type: ignore[override]
        """The algorithm's `eps`, or 0."""
        eps = self._trained.plan.options.get("eps", 0.0)
        return float(eps[-1] if isinstance(eps, tuple) else eps)

    @property
    def L2(self) -> float:  # type: ignore[override]
        """The algorithm's weight decay, or 0."""
        options = self._trained.plan.options
        return float(options.get("L2", options.get("weight_decay", 0.0)))

    # ------------------------------------------------------------------ state

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
            return {"version": VERSION, **self._settings.state_dict(), **guard, **self._trained.state_dict()}

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
        RAISES (StateError): It is of another pipeline, or of other settings, or not a state. (ScheduleError): A
            schedule is further than the state: build the optimizer anew. (ConfigError): An argument that can't be.
            (PipelineError): The optimizer does not know its pipeline.
        """
        nlp, exclude = self._trained.table.pipeline.get()
        if on_growth not in (None, "mean", "zero"):
            raise ConfigError(
                "Can't load the state of the optimizer: expected on_growth to be 'mean' or 'zero', found "
                f"{on_growth!r}."
            )
        check_version(saved, VERSION, WHAT)
        state = read(SavedState, saved, WHAT)
        with self._lock:
            # Built beside the current one, and replaces it once everything has succeeded.
            trained, guard = self._no_params(state.step), copy(self._step.guard)
            with own_errors("the optimizer"), self._frozen_grads.put_aside():
                paths = match.as_paths(renamed or {})
                trained.load(nlp, exclude, state, on_growth, paths)
                guard.load_state_dict(state.guard, paths)
                shims = trained.table.pipeline.shim_paths()
                by_name.check_scalers(shims, state.grad_scalers)
                self._settings.load(vars(state.settings), state.schedules, state.step)
            by_name.restore_scalers(shims, state.grad_scalers)
            self._frozen_grads.stop_only(trained.plan.frozen_params)
            self._trained, self._step.guard = trained, guard

    def roll_back(self, saved: Mapping[str, Any], *, lower_rates: bool = True) -> None:
        """Give all params the state and the averages that they had before. The values of params are the caller's
        affair: see rollback.py.

        Learning rates go on at `rollback_factor` times what they are; schedules, history and counters go on as they
        are.
        saved (Mapping): From `state_dict`, of this run.
        lower_rates (bool): False: learning rates go on as they are.
        RAISES (StateError): Params have come or grown since. Nothing is changed then.
        """
        with self._lock:
            self._trained.table.pipeline.get()
            self._trained.roll_back(read(SavedState, saved, WHAT))
            if lower_rates and self.rollback is not None:
                self._trained.writer.scale *= self.rollback.factor
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
        self.__dict__.update(settings)
        self._lock = lock_for(self)
        self._meet_no_params()


create_optimizer = signed(
    lambda *args, **settings: TorchOptimizer(*args, **settings),
    "create_TorchOptimizer",
    arguments_of(TorchOptimizer),
    TorchOptimizer,
    TorchOptimizer.__doc__,
)
hooks.install(TorchOptimizer)
