"""A run of spaCy's training loop: the parts of its steps. loop.py defines their order, and events.py the events."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from timeit import default_timer
from typing import Any

from spacy.language import Language
from spacy.training import Example
from spacy.training.loop import subdivide_batch

from .. import hooks
from ..errors import PipelineError
from ..events import (
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
from ..launched import is_launched
from ..optimizers import TorchOptimizer
from ..params import components_with_model, trainable_components
from ..types import BatchSize
from ..update import grad_norms, total_norm
from .budget import BudgetKeeper, check_ends_alone
from .checkpoint import RunCheckpoints
from .components import grads_of, is_trained, warn_of_nothing_to_train
from .data_stream import Batches, DataStream
from .decay import Decay
from .dev_loss import DevLosses
from .log_numbers import LogNumbers, counts_of
from .param_norms import ParamNorms
from .private import PrivateUpdates
from .progress import Progress
from .ranks import Alone, Ranks, SameWishes
from .rollback import Rollback
from .rules import Rules
from .saved_models import SavedModels

Scores = tuple[float, dict[str, Any]]

# spaCy's errors for a loss, and for scores, that are NaN.
_NOT_FINITE = ("[E910]", "[E940]")


class Run:
    """A training run. For the arguments, see `loop.train_while_improving`.

    Errors that can be found before the first step are raised here.

    Public: `progress`, `batches`, `control`, `checkpoints` (None without such a block), and the facts that listeners
    get: see `events.RunFacts`.
    """

    def __init__(
        self,
        nlp: Language,
        optimizer: TorchOptimizer,
        train_data: Iterable[tuple[int, list[Example]]],
        evaluate: Callable[[], Scores],
        *,
        dropout: float | Iterator[float],
        eval_frequency: int,
        accumulate_gradient: int,
        patience: int,
        max_steps: int,
        exclude: list[str],
        annotating_components: list[str],
        before_update: Callable[[Language, dict[str, Any]], None] | None,
        listeners: Sequence[Listener],
    ):
        self.nlp = nlp
        self.optimizer = optimizer
        self.progress = Progress()
        data = iter(train_data)
        self.batches = Batches(data)
        self.checkpoints: RunCheckpoints | None = None
        self.learn_rates: dict[str, float] = {}
        self.batch: list[Example] = []
        self.max_steps = max_steps
        self._evaluate = evaluate
        self._dropouts = itertools.repeat(dropout) if isinstance(dropout, (int, float)) else dropout
        self._eval_frequency = eval_frequency
        self._accumulate_gradient = accumulate_gradient
        self._limits = patience, max_steps
        self._exclude = exclude
        self._annotating_components = annotating_components
        self._before_update = before_update
        # Losses by component: at the end of the last step, and now.
        self._losses: tuple[dict[str, Any], dict[str, Any]] = {}, {}
        self._dev_losses: DevLosses | None = None
        self._started = default_timer()
        self._is_ready = self._has_told_error = False
        self.ranks = Alone()
        self.norms = ParamNorms(optimizer)
        if optimizer.budget is not None:
            max_epochs = self.batches.max_epochs
            check_ends_alone(optimizer.budget, patience=patience, max_steps=max_steps, max_epochs=max_epochs)
        decay = Decay(optimizer)
        self._rules = rules = None if optimizer.rules is None else Rules(optimizer.rules, optimizer)
        try:
            if self._introduce() and rules is not None:
                rules.check_names(nlp)
        except PipelineError:
            if before_update is None:
                raise  # otherwise the hook may still complete the pipeline
        end = hooks.end_of_training()
        if is_launched():
            self.ranks = Ranks(nlp, optimizer, self._introduce, lambda: self._noted_signal, lambda: decay.noted)
            decay.ranks = self.ranks
            if end is not None:
                end.push(lambda kind, error, trace: self.ranks.close(error))
            self.ranks.compare_settings(
                {
                    **({"training.dropout": dropout} if isinstance(dropout, float) else {}),
                    "training.eval_frequency": eval_frequency,
                    "training.accumulate_gradient": accumulate_gradient,
                    "training.patience": patience,
                    "training.max_steps": max_steps,
                    "training.frozen_components": exclude,
                    "training.annotating_components": annotating_components,
                    "listeners": [type(listener).__qualname__ for listener in listeners],
                }
            )
            self.ranks.share_generators()
            self.batches = DataStream(data, self.ranks.size)
            if rules is not None:
                rules.ranks = self.ranks
            listeners = [*listeners, SameWishes(self.ranks.group)] if listeners else []
        if optimizer.checkpoint is not None:
            keeps_best = rules is not None and rules.goes_back_to_best
            self.checkpoints = RunCheckpoints(
                optimizer.checkpoint, nlp, optimizer, data, keeps_best=keeps_best, ranks=self.ranks
            )
            self.batches = self.checkpoints.stream
        if rules is not None and rules.reads_dev_losses:
            self._dev_losses = DevLosses(nlp, optimizer, exclude, annotating_components)
        self._private: PrivateUpdates | None = None
        if optimizer.privacy is not None:
            self._private = PrivateUpdates(
                optimizer.privacy, nlp, optimizer, self.batches, exclude, max_steps=max_steps
            )
        self._log_numbers = LogNumbers(self.progress, self.checkpoints)
        ours: list[Listener] = [
            *([] if rules is None else [rules]),
            Rollback(nlp, optimizer, self.progress, self.checkpoints, self.ranks),
            decay,
            self._log_numbers,
            *([] if self._private is None else [self._private]),
        ]
        if optimizer.budget is not None:
            decay.budget = BudgetKeeper(optimizer.budget, optimizer, self.ranks, eval_frequency=eval_frequency)
            ours.append(decay.budget)
        self._models = models = SavedModels(
            nlp, optimizer, None if self.checkpoints is None else self.checkpoints.output
        )
        if rules is not None:
            rules.keep_models(models)
        self._listeners = Listeners([*listeners, *ours, models, *([self.checkpoints] if self.checkpoints else [])])
        self.control = self._listeners.control
        if self.checkpoints is not None:
            self._is_ready = self.checkpoints.open(self.progress, self._dropouts, self._listeners)
        if self._private is not None:
            try:
                self._private.prepare()
            except BaseException as error:
                self.close(error)
                raise
        hooks.tell_output_to(self.checkpoints.output if self.checkpoints else models)  # spaCy cleans its folder next
        if end is not None:  # errors of spaCy's part of a step, as in loggers
            end.push(lambda kind, error, trace: self.close(error))
        if isinstance(self.batches, DataStream):
            self.ranks.compare_data(self.batches.all_examples)
        if optimizer.spans_training:
            self._tell_end()
        self.ranks.begin(None if self.checkpoints is None else self.checkpoints.seed)

    def _tell_end(self) -> None:
        """Tell schedules how many steps there will be."""
        checkpoint = self.optimizer.checkpoint
        may_change = checkpoint is not None and checkpoint.on_config_change == "warn"
        try:
            total = self.batches.count_steps(self.max_steps)
            self.optimizer.set_total_steps(total, may_change=may_change)
        except BaseException as error:
            self.close(error)
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def close(self, error: BaseException | None) -> None:
        """End the run in this process, also after an error. error (BaseException | None): The error."""
        if isinstance(error, (Exception, KeyboardInterrupt)) and not self._has_told_error:
            self._has_told_error = True
            self._listeners.emit_error(error, self.progress.step, self.progress.epoch, self)
        self._listeners.close()
        self.ranks.close(error)

    def emit(self, kind: type[Event], *carried: Any) -> None:
        """Send an event of the current step to listeners."""
        self._listeners.emit(kind, self.progress.step, self.progress.epoch, self, *carried)

    # ------------------------------------------------------------------ between steps

    def begin(self) -> bool:
        """Begin or resume. RETURNS (bool): False: the run was finished already."""
        if self.checkpoints is not None:
            self.checkpoints.begin()
            if self.checkpoints.goes_on:
                is_over = self.progress.is_over(*self._limits) or self.batches.next_epoch is None
                self.checkpoints.report(is_over)
                if is_over:
                    (self.end if self._rules is not None and self._rules.awaits_end else self.checkpoints.end)()
                    return False
                self.checkpoints.restore_random()
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
        self.ranks.compare_params(self.progress.step)
        self.emit(TrainEnd)

    # ------------------------------------------------------------------ one step

    def begin_step(self, batch: list[Example]) -> None:
        """Count the step, and call the user's hook, which may change the pipeline."""
        self.progress.step += 1
        self.batch = batch
        hook = None if self._before_update is None else self._call_hook
        self.ranks.begin_step(self.progress.step, hook)
        if not self._is_ready:
            # Again, as the hook may have changed the pipeline.
            if not self._introduce():
                warn_of_nothing_to_train(self.nlp, self._exclude)
            self._is_ready = True
        self.emit(StepBegin, batch)

    def update(self, batch: list[Example]) -> None:
        """Compute the gradients of a batch, and update the whole pipeline."""
        nlp, optimizer, all_losses, spoiled_by = self.nlp, self.optimizer, self.progress.losses, None
        before = {name: _kept(loss) for name, loss in all_losses.items()}
        self._losses = before, all_losses
        part, losses = self.ranks.begin_update(batch, all_losses, self.batches.checksum)
        drop = next(self._dropouts)
        optimizer.keep_buffers()  # also after resuming or a rollback
        # For one step at a time, as an abandoned training can't be noticed.
        with optimizer.training():
            try:
                for i, examples in enumerate(subdivide_batch(part, self._substeps)):
                    with nullcontext() if self._private is None else self._private.recording(examples):
                        nlp.update(
                            examples,
                            drop=drop,
                            losses=losses,
                            sgd=False,  # type: ignore[arg-type]
                            exclude=self._exclude,
                            annotates=self._annotating_components,
                        )
                    self.emit(SubstepEnd, i, examples)
                if self._private is not None:
                    self._private.add_noise(losses)
            except ValueError as error:
                if not str(error).startswith(_NOT_FINITE) or self._private is not None:
                    raise
                spoiled_by = error
        self.ranks.end_backward()
        skipped = optimizer.skipped_updates
        if self._private is None:
            optimizer.batch_size = BatchSize(sum(len(example) for example in batch), len(batch))
        with optimizer.joint_step(spoiled_by, epoch=self.progress.epoch):
            for name, proc in nlp.pipeline:
                if name not in self._exclude and is_trained(proc):
                    proc.finish_update(optimizer)  # type: ignore[attr-defined]
                    if spoiled_by is not None:
                        losses.setdefault(
                            name, 0.0
                        )  # spaCy's table wants one, also of components behind the one that raised
            self.emit(PreOptimizerStep, spoiled_by)
        optimizer.batch_size = None
        self.ranks.end_update(all_losses)
        self.learn_rates = optimizer.learn_rates
        self.emit(OptimizerStep, optimizer.skipped_updates > skipped)

    @property
    def _substeps(self) -> int:
        """The number of parts into which a batch is divided: from the config, or as a rule has set it."""
        return (None if self._rules is None else self._rules.substeps) or self._accumulate_gradient

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
        if self.progress.step % self._eval_frequency and not self.control.should_evaluate:
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
        info = self._plain_info(score, scores)
        self.emit(Log, info)
        return info

    def _plain_info(self, score: float | None, scores: dict[str, Any] | None) -> dict[str, Any]:
        progress = self.progress
        return {
            "epoch": progress.epoch,
            "step": progress.step,
            "score": score,
            "other_scores": scores,
            "losses": progress.losses,
            "checkpoints": progress.results,
            "seconds": int(progress.seconds),
            "words": progress.words,
        }

    def save(self, info: dict[str, Any], is_best: bool | None) -> bool:
        """Save the state, if it is due. spaCy has logged the step and saved its model. RETURNS (bool): Whether the run
        is over.
        """
        progress, control = self.progress, self.control
        self._models.keep_asked()
        if is_best is not None:
            progress.losses, progress.counts = {}, self.counts
        progress.was_stopped = control.should_stop
        is_over = progress.is_over(*self._limits)
        if control.should_epoch_stop and not is_over:
            while self.batches.next_epoch == progress.epoch:
                next(self.batches)
                progress.left_out += 1
        stopped_by = None if is_over else self.ranks.stopped_by(self._noted_signal)
        is_saved = is_over or stopped_by is not None or control.should_save
        if is_saved:
            if is_best is None:
                self.ranks.compare_params(progress.step)
            progress.seconds = self.seconds  # with the evaluation and spaCy's saving
            self.emit(Save, info, is_best, stopped_by)
        if is_saved or is_best is not None:
            self.ranks.barrier()  # wait until rank 0 has written
        control.end_step()
        return is_over

    # ------------------------------------------------------------------ facts

    @property
    def losses(self) -> dict[str, float]:
        before, losses = self._losses
        return {name: float(loss) - float(before.get(name, 0.0)) for name, loss in losses.items()}

    @property
    def grad_norm(self) -> float | None:
        return self.optimizer.grad_norm

    @property
    def grad_norms(self) -> dict[str, float]:
        found = {name: list(grads_of(model)) for name, model in components_with_model(self.nlp)}
        return {name: total_norm(grad_norms(grads)) for name, grads in found.items() if grads}

    @property
    def counts(self) -> dict[str, int]:
        return counts_of(self.optimizer, self.progress)

    @property
    def words(self) -> int:
        return self.progress.words

    @property
    def seconds(self) -> float:
        return default_timer() - self._started

    def dev_losses(self, at_most: int | None = None) -> dict[str, Any]:
        if self._dev_losses is None:
            self._dev_losses = DevLosses(self.nlp, self.optimizer, self._exclude, self._annotating_components)
        found, logged = self._dev_losses(at_most), self._log_numbers.dev_losses
        if logged is None or logged["examples"] < found["examples"]:
            self._log_numbers.dev_losses = found
        return found

    @property
    def results(self) -> list[tuple[float, int]]:
        return self.progress.results

    @property
    def _noted_signal(self) -> int | None:
        return None if self.checkpoints is None else self.checkpoints.signals.noted

    def _call_hook(self) -> None:
        assert self._before_update is not None
        self._before_update(self.nlp, {"step": self.progress.step, "epoch": self.progress.epoch})

    def _introduce(self) -> bool:
        """Tell the optimizer its pipeline. RETURNS (bool): Whether there is something to train."""
        is_something = bool(trainable_components(self.nlp, self._exclude))
        if is_something:
            self.optimizer.initialize(self.nlp, self._exclude)
        return is_something


def _kept(loss: Any) -> Any:
    """A copy of a loss, as arrays and tensors may be changed in place."""
    copy = getattr(loss, "clone", None) or getattr(loss, "copy", None)
    return loss if copy is None else copy()
