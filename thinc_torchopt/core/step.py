"""One update of some params, from top to bottom:

 1. reduce      with several processes: combine each gradient
 2. follow      float32 masters take values that were changed in the model (core/params/masters.py)
 3. judge       look once at all gradients; skip the update if one is not finite, or if they are a spike
 4. clip        the factor for the gradients
 5. rates       the learning rate of each param group, by the one controller that writes them
 6. torch       the algorithm's own step, on the params that have a gradient
 7. write back  models get masters, rounded; shims that keep their params elsewhere get the new values
 8. zero        thinc's gradients become zero in place, torch's None
 9. averages    follow the new values

Gradients were collected before, see optimizer.py. A skipped update changes nothing but counters: even BatchNorm's
statistics are restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from thinc.api import Shim

from .host import uncounted_writes
from .kernels import threads_for
from .params import Param, clear_grads, follow_models, round_to_models
from .trained import TrainedParams
from .types import BatchSize, ClipBy
from .update import JOINT, GradGuard, KeptBuffers, Verdict, clip_grads, norms_of_grads, total_norm


class SplitState(Protocol):
    """Splits the updates of params, and their state, between processes."""

    def own(self, params: Sequence[Param]) -> list[Param]:
        """The params that this process updates, among those to update."""

    def exchange(self, params: Sequence[Param]) -> None:
        """Get the values of params that other processes have updated."""


class Reduce(Protocol):
    """Combines each gradient over all processes, in place.

    lr_scale (float): Multiplies all learning rates.
    shards (SplitState | None): None: each process updates all params.
    """

    lr_scale: float

    @property
    def shards(self) -> SplitState | None: ...

    def __call__(
        self, params: Sequence[Param], known: Sequence[Param], spoiled_by: Exception | None
    ) -> tuple[list[Param], Exception | None]:
        """Called by every process at each joint update, even without a gradient.

        params (Sequence[Param]): The params that have a gradient here. known (Sequence[Param]): All params.
        spoiled_by (Exception | None): The error that prevented gradients here.
        RETURNS (tuple): Over all processes: params with a gradient in any, and the first error.
        """


class Step:
    """Makes updates.

    guard (GradGuard): Decides which updates are made.
    clip_by (ClipBy): The kind of clipping.

    Public: `grad_norm` (of the last update, before clipping; 2-norm over all gradients; None if it was not measured),
        `buffers` (of torch modules, as of the last update), `reduce` (for joint updates; None: this is the only
        process).
    """

    def __init__(self, guard: GradGuard, clip_by: ClipBy):
        self.guard = guard
        self.clip_by: ClipBy = clip_by
        self.reduce: Reduce | None = None
        self.buffers = KeptBuffers()
        self.grad_norm: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Settings, for a copy."""
        return Step, (self.guard.anew(), self.clip_by)

    def make(
        self,
        params: Sequence[Param],
        shims: Sequence[Shim],
        trained: TrainedParams,
        *,
        grad_clip: float,
        together: str,
        lr_scale: float,
        counts: bool,
        epoch: float | None,
        spoiled_by: Exception | None,
        batch_size: BatchSize | None,
    ) -> bool:
        """Make one update, or skip it.

        params (Sequence[Param]): Each with a gradient.
        shims (Sequence[Shim]): The shims of the updated models.
        trained (TrainedParams): Groups, learning rates and averages of these params.
        grad_clip (float): The largest norm, or value. 0: no clipping.
        together (str): The guard's name for the set of params.
        lr_scale (float): Multiplies all learning rates.
        counts (bool): False: it is a part of a step, of one param by itself.
        epoch (float | None): For the history of learning rates.
        spoiled_by (Exception | None): The error that prevented gradients. The update is skipped then.
        batch_size (BatchSize | None): For algorithms that normalize gradients.
        RETURNS (bool): Whether it was made.
        RAISES (NonFiniteGradError): `max_nonfinite` updates in a row were skipped.
        """
        averages, reduce = trained.averages, self.reduce if together == JOINT else None
        with threads_for([param.tensor for param in params]):
            try:
                if reduce is not None:
                    params, spoiled_by = reduce(params, trained.params, spoiled_by)
                    lr_scale *= reduce.lr_scale
                    if not params and spoiled_by is None:
                        return False
                follow_models(params)
                if spoiled_by is not None:
                    self.grad_norm = factor = None
                    verdict = self.guard.refuse(spoiled_by)
                else:
                    chosen = trained.plan.choose(params)
                    for algorithm, groups in chosen:
                        algorithm.begin_step(groups, batch_size)
                    factor, verdict = self._measure_and_clip(params, grad_clip)
                if factor is not None:
                    if averages is not None:
                        averages.before_update(params)
                    if counts:
                        trained.writer.step(epoch, scale=lr_scale)
                    else:
                        trained.writer.write(lr_scale)
                    shards = None if reduce is None else reduce.shards
                    # `nlp.update` updates a shared tok2vec after its forward pass, and before its backward pass.
                    late = [param.in_model for param in params if param.is_torch and together != JOINT]
                    with uncounted_writes(late):
                        for algorithm, groups in chosen if shards is None else trained.plan.choose(shards.own(params)):
                            algorithm.step(groups, factor)
                        if shards is not None:
                            shards.exchange(params)
                        round_to_models(params)
                    for param in params:
                        param.steps += 1
                # After a skipped update too: shims that keep their params elsewhere then release their gradients.
                for param in params:
                    if param.callback is not None:
                        param.callback(param.in_form(param.tensor))
                if factor is None:
                    self.buffers.put_back(shims)
                elif self.guard.wants_norms:
                    self.buffers.keep(shims)
                self.guard.report(verdict, together)
            finally:
                clear_grads(params)
            if factor is not None and averages is not None:
                averages.update(params, trained.table.shims.values())
        return factor is not None

    def _measure_and_clip(self, params: Sequence[Param], grad_clip: float) -> tuple[float | None, Verdict]:
        """Clip, or return the factor to clip by.

        RETURNS (tuple[float | None, Verdict]): A factor that must still be applied to all gradients, or None to skip
            the update; and the reason.
        """
        by_norm = grad_clip and self.clip_by in ("global", "component", "param")
        norms: list[float] = []
        self.grad_norm, verdict = None, Verdict()
        if by_norm or self.guard.wants_norms:
            norms = norms_of_grads(params)
            self.grad_norm = total_norm(norms)
            verdict = self.guard.judge(params, norms, self.grad_norm)
        if verdict.factor is None or not grad_clip:
            return verdict.factor, verdict
        return clip_grads(params, norms, grad_clip, self.clip_by, scale=verdict.factor), verdict
