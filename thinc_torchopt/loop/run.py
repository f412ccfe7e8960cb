"""spaCy's training loop for our optimizer: the same steps, results and log, with one update for the whole pipeline.

`spacy.training.loop.train_while_improving` calls ours (see core/hooks.py) when the optimizer is a TorchOptimizer.
`spacy train` does everything else: corpora, batches, logging, saving. `Run` has the parts of a step. Checkpoints,
rollbacks and the like are listeners: see events.py.

SOURCE: spacy/training/loop.py (3.8), whose results it reproduces.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from timeit import default_timer
from typing import Any, Optional

from spacy.language import Language
from spacy.training import Example
from spacy.training.loop import subdivide_batch

from ..core import hooks
from ..core.errors import ConfigError, ConfigWarning, NonFiniteGradError, PipelineError
from ..core.host_errors import plain_error
from ..core.optimizer import TorchOptimizer
from ..core.params import components_with_model, compute_in, trainable_components
from ..core.read_once import batches_of_kept, dev_reader_of, evaluation_of_kept
from ..core.types import BatchSize
from .checkpoint import RunCheckpoints
from .checkpoint_settings import Checkpoint
from .components import check_listeners, is_trained, may_read_tensors, warn_of_nothing_to_train
from .data_stream import Batches, DataStream
from .dev_loss import DevLosses
from .events import (
    EpochBegin,
    EpochEnd,
    Evaluate,
    Event,
    Listener,
    Listeners,
    Log,
    OptimizerStep,
    PreOptimizerStep,
    Save,
    StepBegin,
    StepEnd,
    SubstepEnd,
    TrainBegin,
    TrainEnd,
)
from .faster import Faster
from .late_labels import LateLabels
from .log_numbers import LogNumbers
from .param_norms import ParamNorms
from .processes import Alone, Scores, processes_of
from .progress import Progress, TimeSpent
from .rollback import Rollback
from .run_ops import RunOps
from .saved_models import SavedModels
from .signals import RunCooldown
from .training_check import GradientCheck, OneLabelCheck, TrainingCheck

# spaCy's errors for a loss, and for scores, that are NaN.
_NOT_FINITE = ("[E910]", "[E940]")
# Those for annotations that a component can't learn.
_UNLEARNABLE = ("[E024]", "[E1031]", "[E851]")
# Settings that all processes must have alike, beside those that have other names here.
_SETTINGS = ("eval_frequency", "accumulate_gradient", "patience", "max_steps", "annotating_components")

_Step = tuple[list[Example], dict[str, Any], Optional[bool]]


def train_while_improving(
    nlp: Language,
    optimizer: TorchOptimizer,
    train_data: Iterable[tuple[int, list[Example]]],
    evaluate: Callable[[], Scores],
    *,
    listeners: Sequence[Listener] = (),
    **arguments: Any,
) -> Iterator[_Step]:
    """Train until the score stops improving.

    train_data (Iterable): Epoch and batch of each step.
    evaluate (Callable): Returns the main score, higher is better, and all scores.
    arguments (Any): The others of spaCy's loop, by their names there: see `Run`.
    listeners (Sequence[Listener]): More listeners. They get events before the package's own.
    RETURNS (Iterator[tuple]): For each step the batch, the log entry (see log_numbers.py), and whether this is the best
        model so far (None: not evaluated).
    """
    # Not in the generator: here spaCy has not yet removed the old models, so errors that can be found early are raised
    # now.
    run = Run(nlp, optimizer, train_data, evaluate, listeners, **arguments)
    steps = _steps(run)
    return steps if run.checkpoints is None else run.checkpoints.signals.within_each(steps)


def _steps(run: Run) -> Iterator[_Step]:
    with run:
        if not run.begin():
            return
        spent = run.time_spent
        spent.begin(on_gpu=any(param.is_cuda for param in run.optimizer.params.values()))
        while (batch := run.next_batch()) is not None:
            spent.on("data")
            run.begin_step(batch)
            run.update(batch)
            run.optimizer.step_schedules()
            run.end_step(batch)
            spent.on("updates")
            score, scores, is_best = run.evaluate()
            spent.on("evaluations")
            info = run.info(score, scores)
            yield batch, info, run.is_best_to_spacy(is_best)
            is_over = run.save(info, is_best)
            spent.on("saving")
            if is_over:
                break
        run.end()


class Run:
    """A training run. For the arguments, see `train_while_improving`, and [training] in spaCy's config.

    Errors that can be found before the first step are raised here.

    Public, for attachments and listeners, beside the arguments: `progress`; `batches`; `batch` (the current one, or the
    last one); `control`; `ranks` (the processes); `checkpoints` (None without such a block); `models` (saves models);
    `cooldown` (the fall of learning rates at will); `substeps` (into how many parts batches are divided; None: as in
    the config); `learn_rates` (of this step, by param group); `norms` (of params, gradients and updates, computed when
    they are asked for). Some facts below are computed on access, and wait for the GPU.
    """

    def __init__(
        self,
        nlp: Language,
        optimizer: TorchOptimizer,
        train_data: Iterable[tuple[int, list[Example]]],
        evaluate: Callable[[], Scores],
        listeners: Sequence[Listener] = (),
        *,
        dropout: float | Iterator[float],
        eval_frequency: int,
        accumulate_gradient: int,
        patience: int,
        max_steps: int,
        exclude: list[str],
        annotating_components: list[str],
        before_update: Callable[[Language, dict[str, Any]], None] | None,
    ):
        self.nlp = nlp
        self.optimizer = optimizer
        self.dropout = dropout
        self.eval_frequency = eval_frequency
        self.accumulate_gradient = accumulate_gradient
        self.patience = patience
        self.max_steps = max_steps
        self.exclude = exclude
        self.annotating_components = annotating_components
        self.before_update = before_update
        self.progress = Progress()
        self.time_spent = TimeSpent()
        self.learn_rates: dict[str, float] = {}
        self.batch: list[Example] = []
        self.substeps: int | None = None
        self.norms = ParamNorms(optimizer)
        self.cooldown = RunCooldown(optimizer)
        self.ranks = Alone()
        self.checkpoints: RunCheckpoints | None = None
        self.models = SavedModels(nlp, optimizer, self.progress)
        self._late_labels = LateLabels(nlp, exclude)
        self._evaluate = evaluation_of_kept(nlp, evaluate)
        self._dropouts = itertools.repeat(dropout) if isinstance(dropout, (int, float)) else dropout
        # Losses by component: before this step, and with it.
        self._losses: tuple[dict[str, Any], dict[str, Any]] = {}, {}
        self._dev_losses: DevLosses | None = None
        self._started = default_timer()
        self._listeners = Listeners()
        self.control = self._listeners.control
        self._is_open = self._has_told_error = self._is_closed = False
        end = hooks.end_of_training()
        hooks.check_not_put_back()
        try:
            self._name_params()
            self._open_processes(listeners, end)
            self._open_data(batches_of_kept(iter(train_data)))
            self._join(listeners)
            if end is not None:
                self._add(GradientCheck(), OneLabelCheck())
            self._is_ready = self.checkpoints is not None and self.checkpoints.open(
                self.progress, self._dropouts, self._listeners
            )
            self._is_open = True
            self._listeners.before_run()
            # spaCy cleans its folder next.
            hooks.tell_output_to(self.models)
            if end is not None:  # errors of spaCy's part of a step, as in loggers
                end.push(lambda kind, error, trace: self.close(error))
            if isinstance(self.batches, DataStream):
                self.ranks.compare_data(self.batches.all_examples)
            if optimizer.spans_training:
                self._tell_end()
            if end is not None and not (self.checkpoints is not None and self.checkpoints.goes_on):
                self._check_training()
            self.ranks.begin(None if self.checkpoints is None else self.checkpoints.seed)
        except BaseException as error:
            self.close(error)
            raise

    # ------------------------------------------------------------------ before the first step

    def _name_params(self) -> None:
        """Let attachments prepare the pipeline, and the optimizer name its params."""
        for attachment in self.optimizer.attachments.values():
            attachment.prepare(self.nlp)
        if self.before_update is None:  # otherwise at the first step
            self._check_listeners(have_tensors=may_read_tensors(self.nlp))
        try:
            self._introduce()
        except PipelineError:
            if self.before_update is None:
                raise  # otherwise the hook may still complete the pipeline

    def _open_processes(self, listeners: Sequence[Listener], end: ExitStack | None) -> None:
        """Find the other processes of the run, and check that they have the same settings."""
        self.ranks = processes_of(
            self.nlp, self.optimizer, self._introduce, lambda: self._noted_signal, lambda: self.cooldown.noted
        )
        if self.ranks.size > 1 and end is not None:
            end.push(lambda kind, error, trace: self.ranks.close(error))
        of_run = {name: getattr(self, name) for name in _SETTINGS}
        of_run |= {"dropout": self.dropout} if isinstance(self.dropout, float) else {}
        of_run |= {"frozen_components": self.exclude}
        names = [type(listener).__qualname__ for listener in listeners]
        self.ranks.compare_settings({**{f"training.{name}": of_run[name] for name in of_run}, "listeners": names})
        self.ranks.share_generators()

    def _open_data(self, data: Iterator[tuple[int, list[Example]]]) -> None:
        """Prepare the batches, with checkpoints where there is such a block."""
        block = self.optimizer.attachments.get("checkpoint")
        if isinstance(block, Checkpoint):
            dev = dev_reader_of(self._evaluate)
            output = self.ranks.from_rank_0(hooks.output_of_training)
            self.checkpoints = RunCheckpoints(
                block, self.nlp, self.optimizer, data, dev=dev, output=output, ranks=self.ranks
            )
            self.models.checkpoints = self.checkpoints
            self.batches: Batches = self.checkpoints.stream
        else:
            self.batches = DataStream(data, self.ranks.size) if self.ranks.size > 1 else Batches(data)

    def _join(self, listeners: Sequence[Listener]) -> None:
        """Let attachments join, and put all listeners in order."""
        max_epochs = self.batches.max_epochs
        self._faster = Faster(self.nlp, keeps=max_epochs is not None and max_epochs >= 0)
        self._log_numbers = LogNumbers()
        if self.optimizer.ops == "fastest":
            self._add(RunOps(self.nlp, self.ranks, self.optimizer.ops_threads))
        differ = {one.comes_first for one in self.optimizer.attachments.values() if not one.decides_alike}
        for listener in listeners:
            self._listeners.add(listener)
        self._let_join(comes_first=True)
        if listeners or True in differ:
            self._add(self.ranks.same_requests("same requests"))
        self._add(Rollback(self.optimizer), self.cooldown, self._log_numbers)
        self._let_join(comes_first=False)
        if False in differ:
            self._add(self.ranks.same_requests("same requests at last"))
        self._add(self.models, self.checkpoints)
        self._add(self._faster)  # last: what others put over it is put back first

    def _add(self, *listeners: Listener | None) -> None:
        for listener in listeners:
            if listener is not None:
                self._listeners.add(listener)

    def _let_join(self, *, comes_first: bool) -> None:
        for name, attachment in self.optimizer.attachments.items():
            if attachment.comes_first is comes_first:
                found = attachment.join(self)
                if not isinstance(found, (list, tuple)):
                    raise ConfigError(
                        f"Can't use [training.optimizer.{name}]: expected join() of {type(attachment).__name__} to "
                        f"return a list of listeners, found {found!r}."
                    )
                self._add(*found)

    def _introduce(self) -> bool:
        """Tell the optimizer its pipeline. RETURNS (bool): Whether there is something to train."""
        is_something = bool(trainable_components(self.nlp, self.exclude))
        if is_something:
            self.optimizer.initialize(self.nlp, self.exclude)
        return is_something

    def _check_listeners(self, *, have_tensors: bool) -> None:
        check_listeners(self.nlp, self.exclude, self.annotating_components, have_tensors=have_tensors)

    def _tell_end(self) -> None:
        """Tell schedules how many steps there will be."""
        may_change = self.checkpoints is not None and self.checkpoints.settings.on_config_change == "warn"
        self.optimizer.set_total_steps(self.batches.count_steps(self.max_steps), may_change=may_change)

    def _check_training(self) -> None:
        """Tell what keeps a new run of `spacy train` from learning. RAISES (ConfigError): Nothing can be learned."""
        check = TrainingCheck(self.nlp, self.optimizer, self._evaluate)
        examples = self.batches.all_examples()
        self._evaluate = check.begin(examples, self.ranks.size)
        if not examples:
            self._add(check)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def close(self, error: BaseException | None) -> None:
        """End the run in this process, also after an error. error (BaseException | None): The error."""
        is_new = self._is_open and not self._has_told_error
        if is_new and isinstance(error, (Exception, KeyboardInterrupt)):
            self._has_told_error = True
            self._listeners.emit_error(error, self)
        try:
            if not self._is_closed:
                self._is_closed = self.models.is_over = True
                self._listeners.close()
        finally:
            for _, model in components_with_model(self.nlp):
                compute_in((shim for node in model.walk() for shim in node.shims), "float32")
            self.ranks.close(error)

    def emit(self, kind: type[Event], *carried: Any) -> None:
        """Send an event of the current step to listeners."""
        self._listeners.emit(kind, self, *carried)

    # ------------------------------------------------------------------ between steps

    def begin(self) -> bool:
        """Begin or resume. RETURNS (bool): False: the run was finished already."""
        if self.checkpoints is not None:
            self.checkpoints.begin()
            if self.checkpoints.goes_on:
                is_over = self._is_over or self.batches.next_epoch is None
                self.checkpoints.report(is_over)
                self.checkpoints.restore_random()  # also for a checkpoint at the end
                if is_over:
                    (self.end if self._listeners.await_end else self.checkpoints.end)()
                    return False
        self._started = default_timer() - self.progress.seconds
        self.emit(TrainBegin, self.progress.step >= 0)
        return True

    def next_batch(self) -> list[Example] | None:
        """Draw the batch of the next step, and emit the epoch events before it. None: no batch is left, or the run
        should stop.
        """
        progress, epoch = self.progress, self.batches.next_epoch
        if progress.in_epoch is not None and progress.in_epoch != epoch:
            self.emit(EpochEnd)
            progress.in_epoch = None
        if epoch is None or self.control.should_stop:
            return None
        begins = progress.in_epoch is None
        progress.epoch = progress.in_epoch = epoch
        if begins:
            self.emit(EpochBegin)
            if self.control.should_stop:
                return None
        return next(self.batches)[1]

    def end(self) -> None:
        """End the run after its last step."""
        if self.control.should_stop and not self.progress.was_stopped:  # asked for since the step was saved
            self.progress.was_stopped = True
            self.control.should_save |= self.checkpoints is not None
        if self.control.should_evaluate:  # spaCy's loop takes no score after its last step
            warnings.warn(
                ConfigWarning(
                    f"Step {self.progress.step} is not evaluated, although a rule or listener asked for it after this "
                    "step: it was the last one. Run spacy evaluate with model-last, or ask at on_step_end."
                ),
                stacklevel=4,
            )
        self.ranks.compare_params(self.progress.step)
        self.emit(TrainEnd)

    # ------------------------------------------------------------------ one step

    def begin_step(self, batch: list[Example]) -> None:
        """Count the step, and call what may change the pipeline: the user's hook, and labels that the batch brings."""
        self.progress.step += 1
        self.batch = batch
        changes = [self._call_hook] if self.before_update is not None else []
        if (add_labels := self._late_labels.look(batch)) is not None:
            changes.append(add_labels)
        self.ranks.begin_step(self.progress.step, changes)
        if not self._is_ready:
            # Again, as the hook may have changed the pipeline.
            self._check_listeners(have_tensors=all(example.predicted.tensor.size for example in batch))
            if not self._introduce():
                warn_of_nothing_to_train(self.nlp, self.exclude)
            self._is_ready = True
        self.emit(StepBegin, batch)

    def update(self, batch: list[Example]) -> None:
        """Compute the gradients of a batch, and update the whole pipeline."""
        nlp, optimizer = self.nlp, self.optimizer
        all_losses, spoiled_by = self.progress.losses, None
        # A sum that is not finite would hide the losses of this step: it is set aside until the end of the update.
        not_finite = {name: loss for name, loss in all_losses.items() if not math.isfinite(float(loss))}
        all_losses |= dict.fromkeys(not_finite, 0.0)
        before = {name: _kept(loss) for name, loss in all_losses.items()}
        self._losses = before, all_losses
        part, losses = self.ranks.begin_update(batch, all_losses, self.batches.checksum)
        drop = next(self._dropouts)
        optimizer.keep_buffers()  # also after resuming or a rollback
        # For one step at a time, as an abandoned training can't be noticed.
        with optimizer.training():
            try:
                for i, examples in enumerate(subdivide_batch(part, self.substeps or self.accumulate_gradient)):
                    with self._listeners.around_part(examples):
                        self._faster.update(
                            examples,
                            drop=drop,
                            losses=losses,
                            exclude=self.exclude,
                            annotates=self.annotating_components,
                        )
                    self.emit(SubstepEnd, i, examples)
                self._listeners.after_backward(losses)
            except ValueError as error:
                if str(error).startswith(_UNLEARNABLE) and (plain := plain_error(error, nlp.config)) is not None:
                    raise plain from error
                if not str(error).startswith(_NOT_FINITE):
                    raise
                if reason := self._listeners.need_each_update:
                    raise NonFiniteGradError(
                        f"Can't make the update of step {self.progress.step}: {error} {reason}"
                    ) from error
                spoiled_by = error
        self.ranks.end_backward()
        skipped = optimizer.skipped_updates
        optimizer.batch_size = BatchSize(sum(len(example) for example in batch), len(batch))
        before_update = partial(self.emit, PreOptimizerStep, spoiled_by)
        with optimizer.joint_step(spoiled_by, epoch=self.progress.epoch, before_update=before_update):
            for name, proc in nlp.pipeline:
                if name not in self.exclude and is_trained(proc):
                    proc.finish_update(optimizer)  # type: ignore[attr-defined]
                    # spaCy's table wants one, also of an empty batch, and of components behind one that raised.
                    losses.setdefault(name, 0.0)
        optimizer.batch_size = None
        self.ranks.end_update(all_losses)
        unknown = all_losses if self.ranks.is_spoiled(spoiled_by is not None) else ()  # spaCy stops at the first NaN
        self._losses = before, {**all_losses, **dict.fromkeys(unknown, math.nan)}
        # Sums leave out losses that are not finite, unless there is no other yet.
        sums = {**before, **not_finite}
        left_out = [name for name, loss in self._losses[1].items() if not math.isfinite(float(loss))]
        all_losses |= {name: sums.get(name, math.nan) for name in left_out}
        self.learn_rates = optimizer.learn_rates
        self.emit(OptimizerStep, optimizer.skipped_updates > skipped)

    def end_step(self, batch: list[Example]) -> None:
        """End the step, after the update and the schedules."""
        self.progress.words += sum(len(example) for example in batch)
        self.emit(StepEnd, batch)
        self.progress.seconds = self.seconds
        self.ranks.end_step(self.progress.step)

    def evaluate(self) -> tuple[float | None, dict[str, Any] | None, bool | None]:
        """Evaluate, if it is due; the averages, if there are some. RETURNS (tuple): Score, all scores, and whether none
        was better. All None: not evaluated.
        """
        if self.progress.step % self.eval_frequency and not self.control.should_evaluate:
            return None, None, None
        self.ranks.compare_params(self.progress.step)  # spaCy saves these params
        with self.nlp.use_params(self.optimizer.averages):
            score, scores = self.ranks.evaluate(self._evaluate)
        self.optimizer.observe(score, scores)
        self.progress.results.append((score, self.progress.step))
        is_best = score == self.progress.best_score
        self.emit(Evaluate, score, scores, is_best)
        return score, scores, is_best

    def info(self, score: float | None, scores: dict[str, Any] | None) -> dict[str, Any]:
        """The log entry of the step: that of spaCy's loop, and the numbers that listeners add."""
        progress = self.progress
        info = {
            "epoch": progress.epoch,
            "step": progress.step,
            "score": score,
            "other_scores": scores,
            "losses": progress.losses,
            "checkpoints": progress.results,
            "seconds": int(progress.seconds),
            "words": progress.words,
            "time_spent": {phase: round(seconds, 3) for phase, seconds in self.time_spent.seconds.items()},
        }
        self.emit(Log, info)
        return info

    def is_best_to_spacy(self, is_best: bool | None) -> bool | None:
        """The answer for spaCy before it saves its model: who writes spaCy's models keeps the best one, too."""
        self.models.is_next_best = bool(is_best) and self.models.folder is not None
        return False if self.models.is_next_best else is_best

    def save(self, info: dict[str, Any], is_best: bool | None) -> bool:
        """Save the state, if it is due. spaCy has logged the step and saved its model. RETURNS (bool): Whether the run
        is over.
        """
        progress, control = self.progress, self.control
        if self.models.is_next_best:
            self.models.keep_best()  # the model was not written by ours
        self.models.keep_asked()
        if is_best is not None:
            progress.losses, progress.counts = {}, self.counts
        progress.was_stopped = control.should_stop
        is_over = self._is_over
        if control.should_epoch_stop and not is_over:
            while self.batches.next_epoch == progress.epoch:
                next(self.batches)
                progress.left_out += 1
        stopped_by = None if is_over else self.ranks.stopped_by(self._noted_signal)
        is_due = is_over or control.should_save
        if is_due or stopped_by is not None:
            if is_best is None:
                self.ranks.compare_params(progress.step)
            progress.seconds = self.seconds  # with the evaluation and spaCy's saving
        if is_due:
            self.emit(Save, info, is_best)
        if self.checkpoints is not None and stopped_by is not None:
            self.checkpoints.stop(stopped_by, is_saved=is_due)
        if is_due or is_best is not None:
            self.ranks.barrier()  # wait until rank 0 has written
        control.end_step()
        return is_over

    # ------------------------------------------------------------------ facts

    @property
    def losses(self) -> dict[str, float]:
        """Losses of this step alone, by component. All NaN: one found a value that is not finite, where spaCy stops."""
        before, losses = self._losses
        return {name: float(loss) - float(before.get(name, 0.0)) for name, loss in losses.items()}

    @property
    def grad_norm(self) -> float | None:
        """Norm of all gradients of the last update, before clipping. None: not measured."""
        return self.optimizer.grad_norm

    @property
    def grad_norms(self) -> dict[str, float]:
        """Gradient norms by component. Read it at `on_pre_optimizer_step`: gradients are zero before and after."""
        norms: dict[str, float] = self.norms.of_grads()["components"]
        return norms

    @property
    def counts(self) -> dict[str, int]:
        """Counts since the start of the run."""
        return {
            "skipped_updates": self.optimizer.skipped_updates,
            "grad_spikes": self.optimizer.grad_spikes,
            "rollbacks": len(self.progress.rollbacks),
            "outside_writes": self.optimizer.rates.outside_writes,
        }

    @property
    def words(self) -> int:
        """Words trained on since the start of the run."""
        return self.progress.words

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run, with the time before it was resumed."""
        return default_timer() - self._started

    def dev_losses(self, at_most: int | None = None) -> dict[str, Any]:
        """Compute the losses on the development data without dropout: `losses` by component, and the number of `words`
        and `examples`. Uses averages, if there are some. Takes longer than an evaluation, and changes nothing.

        at_most (int | None): Use only the first examples, up to this many.
        """
        self.prepare_dev_losses()
        assert self._dev_losses is not None
        found, logged = self._dev_losses(at_most), self._log_numbers.dev_losses
        if logged is None or logged["examples"] < found["examples"]:
            self._log_numbers.dev_losses = found
        return found

    def prepare_dev_losses(self) -> None:
        """Prepare `dev_losses`. RAISES (ControllerError): The config has no development data."""
        if self._dev_losses is None:
            self._dev_losses = DevLosses(self.nlp, self.optimizer, self.exclude, self.annotating_components)

    @property
    def results(self) -> list[tuple[float, int]]:
        """Score and step of each evaluation."""
        return self.progress.results

    @property
    def _is_over(self) -> bool:
        return self.progress.is_over(self.patience, self.max_steps)

    @property
    def _noted_signal(self) -> int | None:
        return None if self.checkpoints is None else self.checkpoints.signals.noted

    def _call_hook(self) -> None:
        assert self.before_update is not None
        self.before_update(self.nlp, {"step": self.progress.step, "epoch": self.progress.epoch})


def _kept(loss: Any) -> Any:
    """A copy of a loss, as arrays and tensors may be changed in place."""
    copy = getattr(loss, "clone", None) or getattr(loss, "copy", None)
    return loss if copy is None else copy()
