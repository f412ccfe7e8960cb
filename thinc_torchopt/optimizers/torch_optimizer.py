"""TorchOptimizer: a thinc optimizer that hands all params of a pipeline to one torch optimizer.

One training step:

 1. `nlp.update` piles up gradients in thinc's nodes and torch's params.
 2. `Model.finish_update(optimizer)` comes here (see hooks.py) as `finish_update`: `set_grad` notes each param with its gradient.
 3. `step` measures the gradients, skips the update if one is not finite, clips,
 4. writes the learning rate, and lets torch's own step update every param in place.
 5. Shims that keep their params elsewhere get the new values; thinc's gradients become zero in place, torch's None; averages follow.
 6. `step_schedules` moves every schedule on by one.

In spaCy's training loop (see loop.py) step 2 notes the gradients of all components, and step 3 comes once: `joint_step`. Everywhere
else `finish_update` does 3 to 5 before it returns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Dict, Literal, Optional, get_args

import torch
from spacy.language import Language
from thinc.api import Model, Optimizer, PyTorchShim, Shim

from .. import hooks
from ..algorithms import Algorithm
from ..averages import AverageSettings, chosen_averages
from ..checks import OPTIMIZER, check_count, check_number, check_parts, check_version, own_errors
from ..errors import ConfigError, ParamError, PipelineError, ScheduleWarning
from ..gradients import JOINT, Guard, KeptBuffers, Verdict, clip_grads, grad_norms, rollback_settings, total_norm
from ..groups import Cascade, FrozenGrads
from ..learn_rate import LearnRateController
from ..params import (
    Param,
    Pattern,
    WriteBack,
    all_names,
    array_of,
    backprop_through_frozen,
    clear_grads,
    foreign_grads,
    is_viewable,
    own_copy,
    renamed_components,
    torch_grads,
)
from ..registry import registry  # noqa: F401  (makes @torch_optimizers known before the config resolves what is inside our block)
from ..schedules import Schedule, Schedules
from ..state import by_name as state
from ..state import match as state_match
from ..state import read_folder, write_folder
from ..types import (
    Blocks,
    CheckpointSettings,
    ClipBy,
    FloatOrSchedule,
    IntOrSchedule,
    Key,
    OnGrowth,
    OnOutsideWrite,
    OnSpike,
    ParamInfo,
    SkipDecay,
)
from .threads import threads_for
from .trained import TrainedParams

_AN_ALGORITHM = 'a block with @torch_optimizers = "torch.AdamW.v1" or another, or in Python what a function of torch_optimizers.py returns'
_A_CHECKPOINT = 'a block with @misc = "thinc-torchopt.Checkpoint.v1", or in Python what the function checkpoint.Checkpoint returns'
# After so many updates at a rate of 0 a warning says that the schedule does not move.
IDLE_UPDATES = 50


def create_optimizer(
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
    per_param_lr: Dict[str, FloatOrSchedule] = {},
    layer_decay: Dict[str, float] = {},
    skip_decay: Optional[SkipDecay] = None,
    on_outside_write: OnOutsideWrite = "restore",
    on_growth: OnGrowth = "mean",
    new_params_warmup: int = 100,
    enable_runtime_guards: bool = True,
    runtime_budgets: Dict[str, float] = {},
    checkpoint: Optional[CheckpointSettings] = None,
) -> TorchOptimizer:
    """Train the whole pipeline with a torch optimizer. Registered as `thinc-torchopt.TorchOptimizer.v1`.

    algorithm (Algorithm): A block with `@torch_optimizers`.
    learn_rate (float | schedule): The learning rate.
    grad_clip (float | schedule): Largest 2-norm of the gradients. 0: no clipping.
    clip_by (str): Whose norm: "global": of all gradients together; "component": of each component's; "param": of each tensor's. Or "value":
        each number; "adaptive": each unit's norm, `grad_clip` being its largest part of the norm of the unit's weights.
    use_averages (bool): Keep averages of all params by thinc's formula, and evaluate and save those.
    averages (AverageSettings): The same as a block with `@misc = "thinc-torchopt.EMA.v1"` or `"thinc-torchopt.SWA.v1"` says.
    max_nonfinite (int): An update with a NaN or infinite gradient is skipped; training stops after so many in a row. 0: such updates are
        made; without clipping, that saves a pass over the gradients.
    spike_factor (float): An update whose gradient norm is above so many times its moving average is a spike. 0: nothing is.
    on_spike ("skip" | "clip"): Spikes are skipped, or scaled down to `spike_factor` times the average.
    rollback_after (int): After so many updates in a row that were not finite, or spikes, go back to the last checkpoint. 0: never.
    rollback_factor (float): What all learning rates are multiplied with then.
    max_rollbacks (int): After so many times the training stops.
    param_groups (dict): Blocks of settings for some of the params: `params` (a list of patterns over names, or "re:" and a regular
        expression), and any of `learn_rate`, `lr_scale`, `freeze`, `unfreeze_at` (step) and the algorithm's options. Where several
        blocks set the same for a param, the last one wins.
    per_param_lr (dict): Learning rates by pattern, in short.
    layer_decay (dict): By pattern, by how much the learning rate falls from each layer to the one below.
    skip_decay ("bias_and_norm"): No weight decay for biases and the params of normalization layers.
    on_outside_write ("restore" | "adopt" | "raise"): What happens when something else writes learning rates.
    on_growth ("mean" | "zero" | "reset"): When a param grows, because labels were added for example, its state grows with it: what new
        cells get. "reset": the param starts anew.
    new_params_warmup (int): Params that come in mid-training learn at a tenth of the rate of others, to which they warm up in so many
        updates. 0: at the full rate from the start.
    enable_runtime_guards (bool): False: learning rates are not checked for changes by other code.
    runtime_budgets (dict): Milliseconds that the learn rate controller may take: `rate_step` (5), `integrity_check` (2),
        `state_preservation` (100), `adding_params` (20). Overruns are only counted.
    checkpoint (CheckpointSettings): A block with `@misc = "thinc-torchopt.Checkpoint.v1"`: save the training state, and go on from it.
    """
    return TorchOptimizer(
        algorithm,
        learn_rate,
        grad_clip=grad_clip,
        clip_by=clip_by,
        use_averages=use_averages,
        averages=averages,
        max_nonfinite=max_nonfinite,
        spike_factor=spike_factor,
        on_spike=on_spike,
        rollback_after=rollback_after,
        rollback_factor=rollback_factor,
        max_rollbacks=max_rollbacks,
        param_groups=param_groups,
        per_param_lr=per_param_lr,
        layer_decay=layer_decay,
        skip_decay=skip_decay,
        on_outside_write=on_outside_write,
        on_growth=on_growth,
        new_params_warmup=new_params_warmup,
        enable_runtime_guards=enable_runtime_guards,
        runtime_budgets=runtime_budgets,
        checkpoint=checkpoint,
    )


class TorchOptimizer(Optimizer):
    """A `thinc.api.Optimizer` around torch optimizers. For the arguments see `create_optimizer`.

    Public beside thinc's attributes: `params`, `grad_norm` (of the last step, before clipping; 2-norm over all gradients, or None),
    `checkpoint` and `rollback` (settings, for the training loop; or None).
    """

    def __init__(
        self,
        algorithm: Algorithm,
        learn_rate: FloatOrSchedule = 0.001,
        *,
        grad_clip: FloatOrSchedule = 1.0,
        clip_by: ClipBy = "global",
        use_averages: bool = False,
        averages: AverageSettings | None = None,
        max_nonfinite: int = 20,
        spike_factor: float = 0.0,
        on_spike: OnSpike = "skip",
        rollback_after: int = 0,
        rollback_factor: float = 0.5,
        max_rollbacks: int = 3,
        param_groups: Blocks | None = None,
        per_param_lr: Mapping[str, FloatOrSchedule] | None = None,
        layer_decay: Mapping[str, float] | None = None,
        skip_decay: SkipDecay | None = None,
        on_outside_write: OnOutsideWrite = "restore",
        on_growth: OnGrowth = "mean",
        new_params_warmup: int = 100,
        enable_runtime_guards: bool = True,
        runtime_budgets: Mapping[str, float] | None = None,
        checkpoint: CheckpointSettings | None = None,
    ):
        self._schedules = Schedules()
        self._settings: dict[str, Schedule] = {}
        self._set_or_schedule("learn_rate", learn_rate)
        self._set_or_schedule("grad_clip", grad_clip)
        self.clip_by: ClipBy = OPTIMIZER.choice("clip_by", clip_by, get_args(ClipBy))
        self.grad_norm: float | None = None
        self._guard = Guard(max_nonfinite, spike_factor=spike_factor, on_spike=on_spike)
        self._idle_updates = 0
        self._cascade = Cascade(
            OPTIMIZER.kind("algorithm", algorithm, Algorithm, _AN_ALGORITHM),
            self._schedules,
            param_groups={} if param_groups is None else param_groups,
            per_param_lr={} if per_param_lr is None else per_param_lr,
            layer_decay={} if layer_decay is None else layer_decay,
            skip_decay=skip_decay,
            new_params_warmup=new_params_warmup,
        )
        self._on_growth: OnGrowth = OPTIMIZER.choice("on_growth", on_growth, get_args(OnGrowth))
        if checkpoint is not None:
            OPTIMIZER.kind("checkpoint", checkpoint, CheckpointSettings, _A_CHECKPOINT)
        self.checkpoint = checkpoint
        self.rollback = rollback_settings(rollback_after, rollback_factor, max_rollbacks, self._guard, checkpoint)
        self._on_outside_write: OnOutsideWrite = OPTIMIZER.choice("on_outside_write", on_outside_write, get_args(OnOutsideWrite))
        self._enable_runtime_guards = enable_runtime_guards
        self._runtime_budgets = runtime_budgets
        self._schedule_steps = 0
        self._joint = False
        chosen = chosen_averages(OPTIMIZER.flag("use_averages", use_averages), averages)
        self._average_settings = None if chosen is None else chosen.tracked(self._schedules)
        for algorithm in self._cascade.algorithms:
            algorithm.check_settings(averages=chosen is not None, checkpoint=checkpoint is not None)
        self._meet_no_params()

    def _meet_no_params(self) -> None:
        self._pending: dict[Key, Param] = {}
        self._taking_part: list[Shim] = []
        self._buffers = KeptBuffers()
        self._frozen_grads = FrozenGrads()
        self._trained = self._no_params(self._schedule_steps)

    def _no_params(self, step: int) -> TrainedParams:
        return TrainedParams(
            self._cascade,
            lambda: self._learn_rate,
            step,
            self._frozen_grads,
            average_settings=self._average_settings,
            on_outside_write=self._on_outside_write,
            on_growth=self._on_growth,
            enable_runtime_guards=self._enable_runtime_guards,
            runtime_budgets=self._runtime_budgets,
        )

    # ------------------------------------------------------------------ pipeline and params

    def initialize(self, nlp: Language, exclude: Collection[str] = ()) -> None:
        """Take in all params of a pipeline under their lasting names. Params that turn up later are taken in then.

        An optimizer that knew another pipeline begins anew with this one: no moments, averages or counts pass from one to the other. Only
        its schedules go on, which can't go back.

        nlp (Language): The pipeline, initialized.
        exclude (Collection[str]): Components that are not trained.
        RAISES (PipelineError): Nothing to train, or a component that was not initialized. (ConfigError): A pattern in the settings that
            matches no param.
        """
        self._trained.groups.check(all_names(nlp))
        self._meet(nlp)
        self._trained.table.bind(nlp, exclude)
        self._keep_all_buffers()

    def introduce(self, nlp: Language, *, anew: bool = False) -> None:
        """As `initialize`, for spaCy, which calls this before all is ready: what is wrong is said when training begins.

        anew (bool): The pipeline has got new weights, to which nothing of what was learned before belongs.
        """
        self._meet(nlp, anew)
        with suppress(PipelineError):
            self._trained.table.bind(nlp, ())
            self._keep_all_buffers()

    def knows(self, nlp: Language) -> bool:
        """Whether this is the pipeline that it was told last."""
        return self._trained.table.is_bound_to(nlp)

    def _meet(self, nlp: Language, anew: bool = False) -> None:
        """Begin anew if this is another pipeline than before, or the same with new weights: so in cross-validation, for example."""
        if anew or not self._trained.table.may_be_of(nlp):
            self._meet_no_params()
            self._guard.begin_anew()

    def keep_buffers(self) -> None:
        """Note what the buffers of torch modules hold: an update that is skipped brings that back. Done after each update that is made.

        Call it before the forward pass if something else may have written to them since.
        """
        self._buffers.keep()

    def _keep_all_buffers(self) -> None:
        if self._guard.wants_norms:
            self._buffers.keep(shim for _, shim in self._trained.table.shim_paths())

    @property
    def params(self) -> dict[str, torch.Tensor]:
        """The params that are optimized, by lasting name. Thinc's arrays as tensors that share their memory. Frozen ones are left out."""
        return {param.name: param.tensor for param in self._trained.params if param.group is not None}

    @property
    def controller(self) -> LearnRateController:
        """The controller of the learning rates: their history, changes by other code, and more. A new object after loading a state."""
        return self._trained.controller

    @property
    def learn_rates(self) -> dict[str, float]:
        """The learning rate of the last step by param group: its name in the config, or several joined by "+"; else "default"."""
        return self._trained.groups.learn_rates() or {"default": self._learn_rate}

    def describe(self, names: Collection[str] | None = None) -> list[ParamInfo]:
        """Describe each param, frozen ones too: its group, learning rate and options at this step.

        names (Collection[str]): Only of these. None: of all.
        """
        return [self._trained.groups.describe(param) for param in self._trained.params if names is None or param.name in names]

    @property
    def patterns(self) -> list[Pattern]:
        """All patterns over names in the settings."""
        return self._cascade.patterns

    @property
    def torch_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The torch optimizers inside: "algorithm", and "algorithm.fallback" if there is one. They are built when params come."""
        return {found.name: found.optimizer for found in self._trained.groups.algorithms if found.optimizer is not None}

    @contextmanager
    def training(self) -> Iterator[None]:
        """Inside, torch computes no gradients for frozen params, as in each update of spaCy's loop; afterwards all is as before."""
        with self._frozen_grads.stopping(self._trained.groups.frozen_params), backprop_through_frozen(self._trained.table.shims.values()):
            yield

    @property
    def stopped_grads(self) -> set[int]:
        """The ids of torch params for which, inside `training`, no gradients are computed."""
        return self._frozen_grads.ids

    def set_grad(self, param: Any, grad: Any, callback: Callable[[Any], None] | None = None, *, key: Key | None = None) -> None:
        """Register a param and its gradient for the next `step`. Computes nothing.

        param (Any): NumPy or CuPy array, or torch tensor, of floats. Arrays are viewed by torch in place, once each.
        grad (Any): Its gradient, of the same kind. The step sets it to zero in place; that of a `torch.nn.Parameter` becomes None.
            Shape: as the param.
        callback (Callable): For params that are kept elsewhere: values are copied into a buffer of ours, allocated once, and the
            callback gets the array with the new values after the step.
        key (Key): What the param is known by when its array is replaced. Default: the object `param` itself.
        RAISES (ParamError): The param is not of floats. (ShapeError): It has another shape than before, or than its gradient.
        """
        if key is None:
            key = id(param)
        if callback is None and hasattr(param, "flags") and not is_viewable(param):
            raise ParamError(
                "Can't update an array in place: expected a writable one in C order, found one that is read-only or in another order. "
                "Copy it first, or give a callback that takes the new values."
            )
        known = self._trained.table.see(key, param, callback)
        if known is not None:
            known.callback = callback
            self._note(known, grad)
        elif callback is not None:
            callback(param)  # it is empty

    def finish_update(self, model: Model) -> None:
        """Take the gradients of a model, and update its params unless a joint step will. `Model.finish_update` calls this.

        model (Model): A component's model, or any other.
        """
        try:
            for node in model.walk():
                for shim in node.shims:
                    self._collect_shim(shim, model)
                for name in node.param_names:
                    if node.has_grad(name):
                        self._note(self._trained.table.see_node_param(node, name, model), node.get_grad(name))
            if not self._joint:
                self.step()
        except BaseException:
            self._forget_gradients()
            raise

    @contextmanager
    def joint_step(
        self, spoiled_by: Exception | None = None, *, epoch: float | None = None, metrics: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """Inside, `finish_update` only notes gradients; at the end all params are updated together.

        spoiled_by (Exception | None): What a component raised because of a value that is not finite. The update is skipped then.
        epoch (float): For the history of learning rates.
        metrics (Mapping[str, float]): Of this step, e.g. "loss", for learning rates that go by them.
        """
        if self._joint:  # inside another one, whose end is the end
            yield
            return
        self._joint = True
        try:
            yield
            self.step(spoiled_by, epoch, metrics)
        finally:
            self._joint = False
            self._forget_gradients()

    def step(self, spoiled_by: Exception | None = None, epoch: float | None = None, metrics: Mapping[str, Any] | None = None) -> None:
        """Update every param whose gradient was noted since the last step.

        spoiled_by, epoch, metrics: As for `joint_step`.
        RAISES (NonFiniteGradError): `max_nonfinite` updates in a row were skipped.
        """
        self._step(1.0, spoiled_by, epoch, metrics)

    def step_schedules(self) -> None:
        """Move every schedule on by one, each exactly once."""
        self._idle_updates = 0
        self._schedule_steps += 1
        self._schedules.step()
        self._read_schedules()
        self._trained.groups.move_to_step(self._schedule_steps)

    def observe(self, score: float, scores: Mapping[str, Any] | None = None) -> None:
        """Tell schedules and learning rates that go by the score how the last evaluation went. spaCy's training loop does that.

        score (float): The main score. Higher is better.
        scores (Mapping[str, Any]): All scores, e.g. "ents_f".
        """
        self._trained.controller.observe({**(scores or {}), "score": score})
        self._schedules.observe(score)
        self._read_schedules()

    def __call__(self, key: Key, weights: Any, gradient: Any, *, lr_scale: float = 1.0) -> tuple[Any, Any]:
        """Update one param at once: thinc's own interface.

        key (Key): Thinc's `(node.id, name)`.
        weights (Any): Array of floats, updated in place where it can be.
        gradient (Any): Its gradient; zero afterwards. Shape: as the weights.
        lr_scale (float): Scales the learning rate.
        RETURNS (tuple[Any, Any]): Weights and gradient.
        """
        if len(gradient) < 1:
            return weights, gradient
        if not isinstance(weights, torch.Tensor) and not is_viewable(weights):
            weights = own_copy(weights)
        waiting = self._pending, self._taking_part, self._joint
        self._pending, self._taking_part, self._joint = {}, [], False
        try:
            self.set_grad(weights, gradient, key=key)
            self._step(lr_scale)
        finally:
            self._pending, self._taking_part, self._joint = waiting
        return weights, gradient

    @property
    def skipped_updates(self) -> int:
        """How many updates were skipped because of a gradient that was not finite, or of a spike."""
        return self._guard.skipped

    @property
    def grad_spikes(self) -> int:
        """How many spikes were found, skipped or scaled down."""
        return self._guard.spikes

    @property
    def bad_updates_in_a_row(self) -> int:
        """How many of the last updates in a row had gradients that were not finite, or a spike."""
        return self._guard.bad_in_a_row

    # ------------------------------------------------------------------ thinc's attributes

    @property
    def learn_rate(self) -> float:
        """The learning rate of this step."""
        return self._learn_rate

    @learn_rate.setter
    def learn_rate(self, value: float) -> None:
        self._learn_rate = check_number("learn_rate", value)

    @property
    def grad_clip(self) -> float:
        """The largest gradient norm of this step. 0: no clipping."""
        return self._grad_clip

    @grad_clip.setter
    def grad_clip(self, value: float) -> None:
        self._grad_clip = check_number("grad_clip", value)

    @property
    def averages(self) -> dict[Any, Any]:
        """The averages, for `nlp.use_params` and `Model.use_params`; empty while there are none. See `Averages.as_thinc`."""
        return self._trained.averages_for_thinc()

    @averages.setter  # type: ignore[override]
    def averages(self, value: None) -> None:
        if value is not None:
            raise ConfigError(
                f"Can't set 'averages' of the optimizer: expected None, found {type(value).__name__}. None drops the averages and keeps "
                "no more; to keep some, build the optimizer with use_averages = true."
            )
        self._average_settings = None
        self._trained.drop_averages()

    @property
    def schedules(self) -> dict[str, Any]:  # type: ignore[override]
        """The sources of all schedules by config path, e.g. "learn_rate", "algorithm.weight_decay"."""
        return {name: schedule.source for name, schedule in self._schedules.by_name.items()}

    @property
    def nr_update(self) -> dict[Key, int]:  # type: ignore[override]
        """How many updates each param had."""
        return {key: param.steps for key, param in self._trained.table.by_key.items()}

    @property
    def b1(self) -> float:  # type: ignore[override]
        """The first of the algorithm's `betas`, else its `momentum`, else 0."""
        options = self._trained.groups.options
        return float(options["betas"][0] if "betas" in options else options.get("momentum", 0.0))

    @property
    def b2(self) -> float:  # type: ignore[override]
        """The second of the algorithm's `betas`, else 0."""
        return float(self._trained.groups.options.get("betas", (0.0, 0.0))[1])

    @property
    def eps(self) -> float:  # type: ignore[override]
        """The algorithm's `eps`, or 0."""
        eps = self._trained.groups.options.get("eps", 0.0)
        return float(eps[-1] if isinstance(eps, tuple) else eps)

    @property
    def L2(self) -> float:  # type: ignore[override]
        """The algorithm's weight decay, or 0."""
        options = self._trained.groups.options
        return float(options.get("L2", options.get("weight_decay", 0.0)))

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """All that another process needs to go on exactly where this one stands, by lasting names: see state.py.

        RETURNS (dict): Dicts, lists, numbers, texts, and tensors, which are the optimizer's own: copy them to keep them.
        RAISES (PipelineError): The optimizer does not know its pipeline. (StateError): It trains a model that is not in the pipeline.
        """
        return {
            "version": state.VERSION,
            "step": self._schedule_steps,
            "settings": {"learn_rate": self._learn_rate, "grad_clip": self._grad_clip},
            "schedules": self._schedules.state_dict(),
            "guard": self._guard.state_dict(),
            **self._trained.state_dict(),
        }

    def load_state_dict(
        self,
        saved: Mapping[str, Any],
        *,
        on_growth: Literal["mean", "zero"] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """Go on where another process stood. Everything is checked first; what fails changes nothing.

        saved (Mapping): From `state_dict`, of an optimizer with the same settings for the same pipeline.
        on_growth ("mean" | "zero" | None): The pipeline has changed since. Where labels were added, old rows keep their state, and new ones
            get this; state of what is gone or frozen is dropped, what came begins anew, and a warning lists both. None: all is as it was.
        renamed (Mapping[str, str]): The new names of components, or of parts of names of params, by their old ones.
        RAISES (StateError): It is of another pipeline, or not a state. (ScheduleError, ConfigError): It is of other settings.
            (PipelineError): The optimizer does not know its pipeline.
        """
        nlp, exclude = self._trained.table.bound_to()
        if on_growth not in (None, "mean", "zero"):
            raise ConfigError(f"Can't load the state of the optimizer: expected on_growth to be 'mean' or 'zero', found {on_growth!r}.")
        check_version("the optimizer", saved, state.VERSION)
        check_parts("the optimizer", saved, state.PARTS, optional=("algorithms",))
        check_parts("the settings", saved["settings"], ("learn_rate", "grad_clip"))
        step = check_count("step", saved["step"])
        settings = {name: check_number(name, value) for name, value in saved["settings"].items()}
        # Built beside the current one, and replaces it once everything has succeeded.
        trained, guard = self._no_params(step), copy(self._guard)
        with own_errors("the optimizer"), self._frozen_grads.put_aside():
            state.check_params_are_dicts(saved["params"])
            paths = renamed_components(saved, nlp) | state_match.as_paths(renamed or {})
            trained.load(nlp, exclude, saved, on_growth, paths)
            guard.load_state_dict(saved["guard"], paths)
            state.check_scalers(trained.table.shim_paths(), saved["grad_scalers"])
            self._schedules.load_state_dict(saved["schedules"], at_most=step)
        state.restore_scalers(trained.table.shim_paths(), saved["grad_scalers"])
        self._frozen_grads.stop_only(trained.groups.frozen_params)
        self._trained, self._guard, self._schedule_steps = trained, guard, step
        self._learn_rate, self._grad_clip = settings["learn_rate"], settings["grad_clip"]

    def roll_back(self, saved: Mapping[str, Any]) -> None:
        """Give all params the state and the averages that they had before. The values of params are the caller's affair: see rollback.py.

        Learning rates go on at `rollback_factor` times what they are; schedules, history and counters go on as they are.
        saved (Mapping): From `state_dict`, of this run.
        RAISES (StateError): Params have come or grown since. Nothing is changed then.
        """
        nlp, _ = self._trained.table.bound_to()
        if paths := renamed_components(saved, nlp):
            saved = state_match.rename(saved, paths)
        self._trained.roll_back(saved)
        self._trained.controller.scale *= 1.0 if self.rollback is None else self.rollback.factor
        self._guard.bad_in_a_row = 0

    def check_can_be_saved(self) -> None:
        """RAISES (ConfigError): An algorithm keeps what no file takes."""
        for algorithm in self._cascade.algorithms:
            algorithm.check_settings(averages=False, checkpoint=True)

    def to_disk(self, path: str | Path) -> None:
        """Write the state: tensors as safetensors, the rest as JSON, with checksums. path (str | Path): A folder."""
        write_folder(Path(path), self.state_dict())

    def from_disk(
        self, path: str | Path, *, on_growth: Literal["mean", "zero"] | None = None, renamed: Mapping[str, str] | None = None
    ) -> None:
        """Load what `to_disk` wrote. RAISES (StateError): It is damaged. Arguments and others: as `load_state_dict`."""
        self.load_state_dict(read_folder(Path(path)), on_growth=on_growth, renamed=renamed)

    # ------------------------------------------------------------------ pickle and copy

    def __getstate__(self) -> dict[str, Any]:
        """Settings and schedules. Params and their state stay behind: a copied pipeline has other arrays, under other keys."""
        left_behind = ("_pending", "_taking_part", "_buffers", "_trained", "_frozen_grads")
        return {name: value for name, value in self.__dict__.items() if name not in left_behind}

    def __setstate__(self, settings: dict[str, Any]) -> None:
        self.__dict__.update(settings)
        self._meet_no_params()

    # ------------------------------------------------------------------ one step

    def _step(
        self,
        lr_scale: float,
        spoiled_by: Exception | None = None,
        epoch: float | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        updated = [param for param in self._pending.values() if param.tensor.grad is not None]
        shims = self._taking_part
        self._forget_gradients()
        if spoiled_by is not None:
            self._skip(updated, shims, spoiled_by)
            return
        if not updated:
            return
        chosen, averages = self._trained.groups.choose(updated), self._trained.averages
        with threads_for([param.tensor for param in updated]):
            try:
                for algorithm, groups in chosen:
                    algorithm.begin_step(groups)
                factor, verdict = self._measure_and_clip(updated)
                if factor is not None:
                    if averages is not None:
                        averages.before_update(updated)
                    self._trained.controller.step(epoch, metrics, scale=lr_scale)
                    for algorithm, groups in chosen:
                        algorithm.step(groups, factor)
                    self._count(updated)
                # After a skipped update too: who keeps params elsewhere waits for this to let go of their gradients.
                for param in updated:
                    if param.callback is not None:
                        param.callback(array_of(param.tensor))
                if factor is None:
                    self._buffers.put_back(shims)
                elif self._guard.wants_norms:
                    self._buffers.keep(shims)
                self._guard.report(verdict, self._updated_together(updated))
            finally:
                clear_grads(updated)
            if factor is not None and averages is not None:
                averages.update(updated, self._trained.table.shims.values())

    def _skip(self, noted: list[Param], shims: list[Shim], spoiled_by: Exception) -> None:
        """Make no update, because not all gradients could be computed. noted (list[Param]): Those that have one."""
        self.grad_norm = None
        try:
            verdict = self._guard.refuse(spoiled_by)
            self._buffers.put_back(shims)
            for param in noted:
                if param.callback is not None:
                    param.callback(array_of(param.tensor))
            self._guard.report(verdict, self._updated_together(noted))
        finally:
            if noted:
                clear_grads(noted)

    def _updated_together(self, params: list[Param]) -> str:
        """The key under which the guard counts an update of these params."""
        if self._joint:
            return JOINT
        return params[0].name if len(params) == 1 else "+".join(sorted({param.component for param in params}))

    def _forget_gradients(self) -> None:
        self._pending.clear()
        self._taking_part = []

    def _count(self, updated: list[Param]) -> None:
        for param in updated:
            param.steps += 1
        if self._learn_rate == 0.0 and "learn_rate" in self._settings:
            self._idle_updates += 1
            if self._idle_updates == IDLE_UPDATES:
                warnings.warn(
                    ScheduleWarning(
                        f"The schedule of 'learn_rate' in [training.optimizer] stayed at 0 for {IDLE_UPDATES} updates in a row, so nothing "
                        "is learned. A schedule moves on when optimizer.step_schedules() is called. spaCy's training loop does that after "
                        "each step. In a loop of your own, call it yourself. For spacy pretrain, which never calls it, set learn_rate to a "
                        "number."
                    ),
                    stacklevel=5,
                )

    def _measure_and_clip(self, updated: list[Param]) -> tuple[float | None, Verdict]:
        """Clip, or say by how much to clip.

        RETURNS (tuple[float | None, Verdict]): A factor for all gradients that is still to be applied; None: skip the update. And why.
        """
        by_norm = self._grad_clip and self.clip_by in ("global", "component", "param")
        norms: list[float] = []
        verdict = Verdict()
        if by_norm or self._guard.wants_norms:
            norms = grad_norms([param.grad for param in updated])
            self.grad_norm = total_norm(norms)
            verdict = self._guard.judge(updated, norms, self.grad_norm)
        if verdict.factor is None or not self._grad_clip:
            return verdict.factor, verdict
        return clip_grads(updated, norms, self._grad_clip, self.clip_by, scale=verdict.factor), verdict

    # ------------------------------------------------------------------ collecting gradients

    def _note(self, param: Param | None, grad: Any) -> None:
        if param is None:
            return
        if param.grad_source is not grad or param.grad_copy is not None:  # or else it is thinc's buffer, as ever
            param.set_grad(grad)
        if param.group is None:
            clear_grads([param])
            if param.callback is not None:
                param.callback(array_of(param.tensor))
        else:
            self._pending[param.key] = param

    def _collect_shim(self, shim: Shim, model: Model) -> None:
        self._taking_part.append(shim)
        if isinstance(shim, PyTorchShim):
            for param, grad in torch_grads(shim, self):
                self._note(self._trained.table.see_torch_param(param, shim, model), grad)
        elif found := foreign_grads(shim):
            back = WriteBack(shim, [name for name, _, _ in found], self)
            for name, weights, gradient in found:
                key = self._trained.table.name_shim_param(shim, name, model)
                self.set_grad(weights, gradient, partial(back.take, name), key=key)

    def _read_schedules(self) -> None:
        for name, schedule in self._settings.items():
            setattr(self, name, schedule.value)

    def _set_or_schedule(self, name: str, value: FloatOrSchedule | IntOrSchedule) -> None:
        tracked = self._schedules.track(name, value)
        if isinstance(tracked, Schedule):
            self._settings[name] = tracked
            tracked = tracked.value
        setattr(self, name, tracked)


hooks.install(TorchOptimizer)
