"""TorchOptimizer: a thinc optimizer that hands all params of a pipeline to one torch optimizer.

One training step:

 1. `nlp.update` adds up gradients in thinc's nodes and torch's params.
 2. `Model.finish_update(optimizer)` comes here (see hooks.py) as `finish_update`: `set_grad` notes each param with its
    gradient.
 3. `step` makes one update of them: see step.py.
 4. `step_schedules` moves every schedule on by one.

In spaCy's training loop (see training/loop.py) step 2 notes the gradients of all components, and step 3 comes once:
`joint_step`. Everywhere else `finish_update` does 3 before it returns. Threads do so one after the other: see lock.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Dict, Optional, get_args

import torch
from thinc.api import Model, PyTorchShim, Shim

from .. import hooks
from ..algorithms import Algorithm
from ..averages import AverageSettings, chosen_averages, nodes_in_use
from ..checks import OPTIMIZER
from ..controller import ControllerSettings
from ..errors import DistributedError, ParamError
from ..gradients import JOINT, Guard, rollback_settings
from ..groups import Cascade, FrozenGrads
from ..params import (
    WriteBack,
    clear_grads,
    foreign_grads,
    is_viewable,
    own_copy,
    scale_passes_apart,
    torch_grads,
)
from ..registry import registry  # noqa: F401  (makes @torch_optimizers known before the config resolves what is inside our block)
from ..types import (
    BatchSize,
    CheckpointSettings,
    ClipBy,
    DistributedSettings,
    FloatOrSchedule,
    Key,
    OnGrowth,
    OnOutsideWrite,
    OnSpike,
    SkipDecay,
)
from .bound import Bound
from .described import Described
from .lock import give_lock
from .noted import NotedGrads
from .registered import registered
from .saved import Saved
from .settings import MovingSettings
from .step import Step, name_of_set
from .thinc_attributes import ThincAttributes
from .trained import TrainedParams

_AN_ALGORITHM = (
    'a block with @torch_optimizers = "torch.AdamW.v1" or another, or in Python what a function of '
    "torch_optimizers.py returns"
)
_A_CHECKPOINT = (
    'a block with @misc = "thinc-torchopt.Checkpoint.v1", or in Python what the function checkpoint.Checkpoint returns'
)
_A_CONTROLLER = (
    'a block with @misc = "thinc-torchopt.TrainerController.v1", or in Python what the function '
    "controller.trainer_controller returns"
)
_SEVERAL = (
    'a block with @misc = "thinc-torchopt.Distributed.v1", or in Python what the function distributed.Distributed '
    "returns"
)


class TorchOptimizer(Bound, Described, Saved, ThincAttributes):
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
    max_rollbacks (int): After so many times the training stops.
    param_groups (dict): Blocks of settings for some of the params: `params` (a list of patterns over names, or "re:"
        and a regular expression), and any of `learn_rate`, `lr_scale`, `freeze`, `unfreeze_at` (step) and the
        algorithm's options. Where several blocks set the same for a param, the last one wins.
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
    controller (ControllerSettings): A block with `@misc = "thinc-torchopt.TrainerController.v1"`: steer `spacy train`
        by rules.

    Public beside thinc's attributes: `params`, `grad_norm`, `checkpoint`, `rollback`, `rules` and `distributed`
    (settings, for the training loop; or None). `controller` is that of the learning rates. `batch_size`
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
        controller: Optional[ControllerSettings] = None,
        distributed: Optional[DistributedSettings] = None,
    ):
        give_lock(self)
        if controller is not None:
            OPTIMIZER.kind("controller", controller, ControllerSettings, _A_CONTROLLER)
        self.rules = controller
        self._settings = MovingSettings(learn_rate, grad_clip)
        clip_by = OPTIMIZER.choice("clip_by", clip_by, get_args(ClipBy))
        guard = Guard(max_nonfinite, spike_factor=spike_factor, on_spike=on_spike)
        self._step = Step(guard, clip_by)
        self._cascade = Cascade(
            OPTIMIZER.kind("algorithm", algorithm, Algorithm, _AN_ALGORITHM),
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
        self.rollback = rollback_settings(rollback_after, rollback_factor, max_rollbacks, guard, checkpoint)
        self._of_trained = {
            "on_outside_write": OPTIMIZER.choice("on_outside_write", on_outside_write, get_args(OnOutsideWrite)),
            "on_growth": on_growth,
            "enable_runtime_guards": enable_runtime_guards,
            "runtime_budgets": runtime_budgets,
        }
        chosen = chosen_averages(OPTIMIZER.flag("use_averages", use_averages), averages)
        self._average_settings = None if chosen is None else chosen.tracked(self._settings.schedules)
        for found in self._cascade.algorithms:
            found.check_settings(averages=chosen is not None, checkpoint=checkpoint is not None)
        self._joint = False
        self.batch_size: BatchSize | None = None
        self._meet_no_params()

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
            if key is None:
                key = id(param)
            known = self._trained.table.by_key.get(key)
            # Else it is thinc's array, as ever.
            if known is None or known.source is not param or known.is_torch or callback is not None:
                if callback is None and hasattr(param, "flags") and not is_viewable(param):
                    raise ParamError(
                        "Can't update an array in place: expected a writable one in C order, found one that is "
                        "read-only or in another order. Copy it first, or give a callback that takes the new values."
                    )
                known = self._trained.table.see(key, param, callback)
                if known is None:  # it is empty
                    if callback is not None:
                        callback(param)
                    return
                known.callback = callback
            if known.grad_source is not grad or known.grad_copy is not None:  # or else it is thinc's buffer, as ever
                known.set_grad(grad)
            if known.group is not None:
                self._noted.params[known.key] = known
            else:
                clear_grads([known])
                if callback is not None:
                    callback(known.in_form(known.tensor))

    def finish_update(self, model: Model) -> None:
        """Take the gradients of a model, and update its params unless a joint step will. `Model.finish_update` calls
        this.

        model (Model): A component's model, or any other. `set_grad` sees each of its params that has a gradient.
        RAISES (ParamError): Averages are in place of its params.
        """
        with self._lock:
            self._check_weights(model)
            table = self._trained.table
            try:
                for node in model.walk():
                    for shim in node.shims:
                        self._finish_shim(shim, model)
                    for name in node.param_names:
                        if node.has_grad(name):
                            array, grad = table.array_of_node(node, name, model), table.grad_of_node(node, name)
                            self.set_grad(array, grad, key=(node.id, name))
                if not self._joint:
                    self.step()
            except BaseException:
                self._noted.forget()
                raise

    def _check_weights(self, model: Model) -> None:
        if nodes := nodes_in_use(model):
            names = self._trained.table.names
            known = [name for node in nodes for param in node.param_names for name in names.get((node.id, param), ())]
            raise ParamError(
                f"Can't update param '{[*known, nodes[0].name][0]}': expected the weights that are trained, found "
                "averages in their place. This is inside a block of use_params(optimizer.averages), at whose end the "
                "weights of before are put back: the update would be lost. Call it outside of the block."
            )

    def _finish_shim(self, shim: Shim, model: Model) -> None:
        table = self._trained.table
        self._noted.shims.append(shim)
        scale_passes_apart(shim)
        if isinstance(shim, PyTorchShim):
            for param, grad in torch_grads(shim, self):
                table.meet_torch_param(param, shim, model)
                self.set_grad(param, grad)
        elif found := foreign_grads(shim):
            back = WriteBack(shim, [name for name, _, _ in found], self)
            for name, weights, gradient in found:
                self.set_grad(weights, gradient, partial(back.take, name), key=table.name_shim_param(shim, name, model))

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

    def step_schedules(self) -> None:
        """Move every schedule on by one, each exactly once."""
        with self._lock:
            self._settings.step()
            self._trained.groups.move_to_step(self._settings.step_count)

    def observe(self, score: float, scores: Mapping[str, Any] | None = None) -> None:
        """Tell schedules and learning rates that go by the score how the last evaluation went. spaCy's training loop
        does that.

        score (float): The main score. Higher is better.
        scores (Mapping[str, Any]): All scores, e.g. "ents_f".
        """
        with self._lock:
            self._trained.controller.observe({**(scores or {}), "score": score})
            self._settings.observe(score)

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


create_optimizer = registered(TorchOptimizer)
hooks.install(TorchOptimizer)
