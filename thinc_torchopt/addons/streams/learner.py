"""A pipeline that learns from a stream, text by text.

Each text is scored before it is learned: the score of a block of texts tells how good the pipeline was on texts that it
had not seen (prequential evaluation, Dawid 1984). All that a run needs to go on is saved every so many texts, and when
it ends; a run that was killed goes on from there, and ends with bit-identical weights. It is also saved at the start,
which tells the folder of a run from others: their files are not touched.

    output/
      state/            model, optimizer, random generators, place in the stream, memory
      model-last/       the pipeline, for spacy.load
      learn.jsonl       one row for each block of texts
      rejected.jsonl    texts that could not be learned, with the reason
      teacher/          the pipeline as it was at the start, if it fills in what texts leave open

A text that can't be learned changes nothing: its batch is undone (backward.py). Then the run saves and ends, or
leaves out that text.

With new labels, the pipeline as it was at the start is the teacher (loop/filling.py): it fills in what texts with new
labels leave open. A text of the memory has no labels that came later: there, the pipeline as it is then fills them in.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from spacy.language import Language
from spacy.training import Example
from spacy.util import registry
from thinc.api import fix_random_seed

from ...core.errors import ConfigError, NonFiniteGradError, PipelineError, StateError, StreamError, TorchOptError
from ...core.labels import add_labels
from ...core.optimizer import TorchOptimizer
from ...core.state import clear_leftovers
from ...core.types import BatchSize
from ...loop.components import check_listeners, is_trained, stopped_gradients
from ...loop.config_check import collect_identity, collect_values, compare_configs
from ...loop.label_conflicts import MOST_TEXTS, Comparison
from ...loop.model_state import check_model, checksum_of, collect_model, restore_model
from ...loop.random_state import check_generators, collect_random, preserved_random, restore_random
from .backward import Undo, backward
from .records import (
    Memory,
    Record,
    as_line,
    in_words,
    make_example,
    read_examples,
    read_record,
    row_of,
    unknown_keys,
    unknown_labels,
    without_half_line,
)
from .scores import StreamScores, pack, unpack
from .source import Line, LineReader
from .state import (
    LAST,
    LOG,
    REJECTED,
    VERSION,
    LearnerFolder,
    LearnerState,
    LearnSettings,
    LogRow,
    StreamProgress,
    TextBlock,
)
from .teaching import TEACHER, AnnotatedTexts, StreamTeacher, Teaches

# After so many texts, labels that they should have are told.
_COMPARED = 10
_ADVICE = (
    "Let the pipeline as it was fill {they} in: --new-labels add, without --no-teacher and with another --output. If "
    "the texts really have none, do nothing."
)


class _Text(NamedTuple):
    """A text of a batch. teaches (list[str]): The components that it has annotations for. unused (list[str]): Its keys
    that are not used.
    """

    line: Line
    example: Example
    teaches: list[str]
    unused: list[str]


class StreamLearner:
    """Learns from a stream, and saves. Use it in a `with` block: meanwhile the folder is locked.

    nlp (Language): The pipeline, trained or initialized.
    optimizer (TorchOptimizer): A new one.
    folder (Path): The output. If it has the state of a run, this one goes on with it.
    settings (LearnSettings): How to learn.
    old (Path | None): Texts that were learned before, to begin the memory with. watched (Path | None): A corpus to
        evaluate. Both are .jsonl as the stream, or .spacy.
    notify (Callable): Called with what the user should know.
    is_stopped (Callable): Asked after each update: whether to end.
    RAISES (StateError): Another run uses the folder, it has other files where a run writes, its state is damaged or of
        another pipeline, or that of this pipeline can't be saved. (PipelineError): There is nothing to train.
        (ConfigError): A component would get no output of the one that it listens to.

    Public: `progress`, `goes_on` (whether the run goes on with an earlier one), `teacher` (or None).
    """

    def __init__(
        self,
        nlp: Language,
        optimizer: TorchOptimizer,
        folder: Path,
        settings: LearnSettings,
        *,
        old: Path | None = None,
        watched: Path | None = None,
        notify: Callable[[str], None] = lambda text: None,
        is_stopped: Callable[[], bool] = lambda: False,
    ):
        self._nlp, self._optimizer = nlp, optimizer
        self.folder, self._settings = folder, settings
        self._watched, self._notify, self._is_stopped = watched, notify, is_stopped
        training = nlp.config.interpolate()["training"]
        self._dropout: float = training["dropout"]
        self._frozen: list[str] = training["frozen_components"]
        self._annotating: list[str] = training["annotating_components"]
        self._scores = StreamScores(nlp, training["score_weights"])
        self._seed: int | None = training["seed"]
        self._before_update = registry.resolve({"training": {"before_update": training.get("before_update")}})[
            "training"
        ]["before_update"]
        self._trained = set(nlp.pipe_names) - set(self._frozen)
        self._teaches = Teaches(nlp, self._trained)
        self._values, self._identity = collect_values(nlp), collect_identity(nlp)
        self.teacher: StreamTeacher | None = None
        self.progress = StreamProgress(Memory(settings.memory if settings.replay else 0))
        self._scored: list[Example] = []  # texts of the block, each as it was predicted before it was learned
        self._undo = Undo(nlp)
        self._compared: Comparison | None = Comparison(nlp, self._trained)
        self._changes = False  # the weights, at this moment
        self._unwritten: list[dict[str, Any]] = []  # rows of texts that can't be learned
        self._notified: set[str] = set()
        # By component and label, the line with it; and the texts that wait for them.
        self._new_labels: dict[tuple[str, str], str] = {}
        self._refused_labels: dict[tuple[str, str], str] = {}  # with the reason
        self._waiting: list[Line] = []
        self._start = time.monotonic()
        self._lasting = {**settings.lasting, "weights of MODEL": f"checksum {checksum_of(collect_model(nlp))}"}
        check_listeners(nlp, self._frozen, self._annotating)
        for text in stopped_gradients(nlp, sorted(self._trained), self._frozen):
            notify(text)
        self._output = LearnerFolder(folder)
        try:
            saved = self._output.read()
            clear_leftovers(folder)
            self.goes_on = saved is not None
            if saved is None:
                self._begin(old)
            else:
                self._restore(saved)
        except BaseException:
            self._output.release()
            raise

    @property
    def skipped_updates(self) -> int:
        """The updates that were left out so far, because of their gradients."""
        return self._optimizer.skipped_updates

    def __enter__(self) -> StreamLearner:
        return self

    def __exit__(self, *error: object) -> None:
        self._output.release()

    def _begin(self, old: Path | None) -> None:
        if self._seed is not None:
            fix_random_seed(self._seed)
        for name in (LOG, REJECTED):  # of a run that was killed before it saved what it had learned
            (self.folder / name).unlink(missing_ok=True)
        self._initialize()
        for line, _ in read_examples(self._nlp, old) if old is not None else ():
            self.progress.memory.add(line)
        self.save()  # before anything else is there: the folder is that of a run
        if self._settings.is_taught:
            self._begin_teacher()

    def _begin_teacher(self) -> None:
        """Let the pipeline as it is now be the teacher. RAISES (StateError): It can't be written."""
        with self._output.writing():
            StreamTeacher.keep(self._nlp, self.folder)
        self.teacher = StreamTeacher(self._nlp, self.folder)
        self._notify(
            f"Labels that texts leave open are filled in by the pipeline as it is now, '{self.folder / TEACHER}'. If "
            "they annotate all labels, set --no-teacher."
        )

    def _initialize(self) -> None:
        if not self._optimizer.knows(self._nlp):
            self._optimizer.initialize(self._nlp, self._frozen)

    # ------------------------------------------------------------------ learning

    def learn(self, source: LineReader) -> Iterator[LogRow]:
        """Learn all texts that are left in the stream.

        RETURNS (Iterator): A row for each block, when it was learned and saved; at the end, one with the score of the
            watched corpus, if the last block has none.
        RAISES (StreamError): A text can't be learned, or no text has anything to learn. (StateError): The file has
            changed. What was learned until then is saved.
        """
        batches = self._batches(source)
        if self._watched is not None and not self.goes_on:
            yield self._log(self._make_row(), is_last=False)
        is_over = False
        while not is_over:
            failed: TorchOptError | None = None
            row: LogRow | None = None
            # spaCy keeps words of the texts, and frees them at the end of the zone.
            with self._nlp.memory_zone():
                if packed := self.progress.scored:
                    self._scored, self.progress.scored = unpack(packed, self._nlp.vocab), []
                try:
                    is_over = self._learn_block(batches)
                except (StateError, StreamError) as error:
                    if self._changes:
                        raise
                    is_over, failed, self._new_labels = True, error, {}
                # The end of the stream may come at the end of a block, whose row was not due for the watched corpus.
                is_unscored = is_over and self._watched is not None and self.progress.texts > self.progress.watched
                if (self.progress.texts > self.progress.logged or is_unscored) and not self._new_labels:
                    row = self._make_row()
                if is_over or self._new_labels:  # else they are in the row
                    self.progress.scored = pack(self._scored)
                self._scored = []
            if self._new_labels:
                self._add_labels()
            if row is not None:
                row = self._log(row, is_last=is_over)
            if is_over or self.progress.texts - self._output.saved_texts >= self._settings.save_every:
                if failed is None:
                    self._check_annotated(at_end=is_over)
                if not self._teaches.in_vain(self.progress.annotated):
                    self.save()
            if row is not None:
                yield row
            if failed is not None:
                raise failed

    def _check_annotated(self, *, at_end: bool) -> None:
        """Tell what was not learned. at_end (bool): The stream has ended, or the run was stopped.

        RAISES (StreamError): It has ended, and no text had annotations for any component.
        """
        has_ended = at_end and not self._is_stopped()
        if has_ended:
            self._teaches.check(self.progress.annotated)
        if at_end or self._teaches.in_vain(self.progress.annotated):
            for doubt in self._teaches.doubts(self.progress.annotated):
                self._notify(doubt)
        if has_ended:
            self.progress.annotated = AnnotatedTexts()

    def _learn_block(self, batches: Iterator[list[Line]]) -> bool:
        """Learn until the block is full, or there are new labels to add. RETURNS (bool): The stream is over, or the run
        was stopped.
        """
        while self.progress.block.texts < self._settings.every and not self._new_labels:
            if self._is_stopped():
                return True
            batch: list[Line] | None = self._waiting or next(batches, None)
            if batch is None:
                return True
            self._waiting = []
            self._learn(batch)
        return False

    def _batches(self, source: LineReader) -> Iterator[list[Line]]:
        lines = source.read(self.progress.place)
        if self._settings.skip_bad:
            lines = without_half_line(lines, self._notify)
        while batch := list(islice(lines, self._settings.batch_size)):
            if len(batch) == self._settings.batch_size or not self._is_stopped():
                yield batch

    # ------------------------------------------------------------------ one batch

    def _learn(self, batch: list[Line]) -> None:
        """Score and learn texts, all or none of them.

        RAISES (StreamError): One of them can't be learned, and ends the run.
        """
        found: list[_Text] = []
        rejected: dict[Line, str] = {}
        for line in batch:
            try:
                new = self._read(line)
            except StreamError as error:
                if not self._settings.skip_bad:
                    raise StreamError(f"{error} {self._advice}") from error
                rejected[line] = str(error)
                continue
            if new is not None:
                found.append(new)
        if self._new_labels:
            self._waiting = batch
            return
        n_skipped = len(batch) - len(found) - len(rejected)
        found = self._fill_in(found, rejected)
        while found and (bad := self._try_update(found)):
            rejected |= bad
            found = [text for text in found if text.line not in bad]
        self.progress.skipped += n_skipped
        self.progress.place = batch[-1].place
        for line in filter(rejected.__contains__, batch):
            self.progress.rejected += 1
            text = line.content.decode("utf8", errors="backslashreplace")
            self._unwritten.append(
                {"number": self.progress.rejected, "where": line.where, "reason": rejected[line], "text": text}
            )
            self._notify_once(f"Texts that can't be learned are left out, and are in '{self.folder / REJECTED}'.")
        self._write_rejected()

    @property
    def _advice(self) -> str:
        return (
            "All that was learned before is saved. Repair the text and run the same command, or set --skip-bad to "
            "leave such texts out."
        )

    def _read(self, line: Line) -> _Text | None:
        """RETURNS (_Text | None): None: the text is skipped. RAISES (StreamError): It can't be learned."""
        record: Record = read_record(line.content, line.where)
        row = row_of(record, line.where)
        unused = unknown_keys(row)
        for key in unused:
            self._notify_once(f"'{key}' of texts is not used.")
        if row.left_out:
            return None
        example = make_example(self._nlp, record, line.where)
        for component, label in unknown_labels(self._nlp, example, self._frozen):
            if self._settings.new_labels == "skip":
                self._notify_once(f"Texts with the label '{label}', which '{component}' does not have, are skipped.")
                return None
            if self._settings.new_labels == "refuse":
                raise StreamError(
                    f"Can't learn from {line.where}: expected labels that '{component}' has, found '{label}'. Set "
                    '--new-labels to "add" or "skip".'
                )
            if (reason := self._refused_labels.get((component, label))) is not None:
                raise StreamError(reason)
            self._new_labels[component, label] = line.where
        return _Text(line, example, self._teaches.components(example), unused)

    def _fill_in(self, found: list[_Text], rejected: dict[Line, str]) -> list[_Text]:
        """Let the teacher fill in what texts leave open. rejected (dict): Gets those that it can't annotate.

        RAISES (StreamError): There is one, and it ends the run.
        """
        if self.teacher is None or not found:
            return found
        try:
            examples = self.teacher.fill_in([text.example for text in found])
        except Exception as error:  # spaCy's, torch's, or of a component of the user's
            if len(found) > 1:
                return [kept for text in found for kept in self._fill_in([text], rejected)]
            reason = f"Can't learn from {found[0].line.where}: the teacher can't annotate it. {in_words(error)}"
            if not self._settings.skip_bad:
                raise StreamError(f"{reason} {self._advice}") from error
            rejected[found[0].line] = reason
            return []
        return [text._replace(example=example) for text, example in zip(found, examples)]

    def _add_labels(self) -> None:
        """Add labels. Not in a memory zone, which would free their names.

        RAISES (StreamError): A component takes none. What was learned before is saved.
        """
        added, self._new_labels = self._new_labels, {}
        for (component, label), where in added.items():
            try:
                add_labels(self._nlp, component, [label])
            except (ConfigError, PipelineError) as error:
                reason = f'Can\'t learn from {where}: {error} Or set --new-labels to "skip".'
                if self._settings.skip_bad:
                    self._refused_labels[component, label] = reason
                    continue
                self.save()
                raise StreamError(reason) from error
            self.progress.added.append((component, label))
            self._notify(f"'{component}' has got the label '{label}', of {where}.")
        # Now, not with the next gradient: the state of new rows is a mean of the old ones, which rounds.
        self._optimizer.initialize(self._nlp, self._frozen)

    def _try_update(self, found: list[_Text]) -> dict[Line, str]:
        """Make an update, or undo it, and find out why it failed.

        RETURNS (dict): The texts that are to blame, with reasons; empty after an update. RAISES (StreamError): They end
            the run.
        """
        self._undo.keep()
        old: list[tuple[str, int]] = self.progress.memory.draw(self._settings.replay)
        try:
            self._update(found, old)
            return {}
        except Exception as error:  # spaCy's, torch's, or of a function of the user's
            if self._changes and not isinstance(error, NonFiniteGradError):
                raise StreamError(
                    f"Can't learn from {found[-1].line.where}: the update failed while it changed the weights, so "
                    f"nothing since text {self._output.saved_texts:,} is saved. To go on from there, run the same "
                    f"command. {in_words(error)}"
                ) from error
            self._changes = False
            self._undo.undo()
            bad, bad_old = self._find_bad(found, old, error)
            if not self._settings.skip_bad:
                first, reason = next(iter(bad.items()), (found[0].line, in_words(error)))
                where = first.where if bad else f"a text of the memory, drawn with {first.where}"
                raise StreamError(f"Can't learn from {where}: {reason} {self._advice}") from error
            for kept in bad_old:
                self.progress.memory.lines.remove(kept)
                self._notify_once(f"A text of the memory can't be learned, and is forgotten: {kept[0][:60]}")
            return bad or self._try_update(found)

    def _find_bad(
        self, found: list[_Text], old: list[tuple[str, int]], error: Exception
    ) -> tuple[dict[Line, str], list[tuple[str, int]]]:
        """Find the texts that can't be learned by themselves. If there are none, all new ones are to blame together.

        RETURNS (tuple): New ones, with reasons; if they all can be learned, old ones.
        """
        bad = {text.line: reason for text in found if (reason := self._why_not(text.example))}
        bad_old = [] if bad else [kept for kept in old if self._why_not(self._read_old(kept[0]))]
        return bad if bad or bad_old else {text.line: in_words(error) for text in found}, bad_old

    def _why_not(self, example: Example) -> str:
        """Why a text can't be learned by itself, if so. Changes nothing."""
        try:
            self._score_and_backprop([example], [])
        except Exception as error:
            return in_words(error)
        finally:
            self._undo.undo()
        return ""

    def _read_old(self, line: str) -> Example:
        return make_example(self._nlp, json.loads(line), "a text of the memory")

    def _score_and_backprop(
        self, examples: list[Example], old: list[Example]
    ) -> tuple[list[Example], dict[str, float]]:
        """Score new texts, then compute the gradients of these and of old ones.

        RETURNS (tuple): The scored texts, and the losses.
        """
        scored: list[Example] = []
        if self._settings.prequential:
            docs = self._nlp.pipe([example.predicted.copy() for example in examples])
            scored = [Example(doc, example.reference) for doc, example in zip(docs, examples)]
        if self._before_update is not None:
            self._before_update(self._nlp, {"step": self.progress.texts, "epoch": 0})
        return scored, backward(
            self._nlp, [*examples, *old], drop=self._dropout, exclude=self._frozen, annotates=self._annotating
        )

    def _update(self, found: list[_Text], lines: list[tuple[str, int]]) -> None:
        """Score new texts, then make an update with them and some of the memory.

        lines (list[tuple[str, int]]): Those of the memory.
        """
        read = [(self._read_old(line), n) for line, n in lines]
        known = [(example, n) for example, n in read if not unknown_labels(self._nlp, example, self._frozen)]
        old = [example for example, _ in known]
        if self.teacher is not None:
            old = self.teacher.fill_in_later(old, [n for _, n in known], self.progress.added)
        scored, losses = self._score_and_backprop([text.example for text in found], old)
        self._look_for_missing([text.example for text in found], scored)
        learned = [*(text.example for text in found), *old]
        self._optimizer.batch_size = BatchSize(sum(len(example) for example in learned), len(learned))
        with self._optimizer.joint_step():
            for name, proc in self._nlp.pipeline:
                if name not in self._frozen and is_trained(proc):
                    proc.finish_update(self._optimizer)  # type: ignore[attr-defined]
            self._changes = True
        self._changes, self._optimizer.batch_size = False, None
        self._optimizer.step_schedules()
        self._scored += scored
        now, block = self.progress, self.progress.block
        for line, example, teaches, unused in found:
            now.texts += 1
            now.annotated.add(teaches, unused)
            now.tokens += len(example.predicted)
            if now.memory.size:
                content = line.content.decode("utf-8-sig")
                if self.teacher is not None:  # with what it has filled in
                    content = as_line(json.loads(content), example.reference)
                now.memory.add(content, len(now.added))
        block.texts += len(found)
        block.n += len(found) + len(old)
        for name, loss in losses.items():
            block.losses[name] = block.losses.get(name, 0.0) + float(loss)

    def _look_for_missing(self, examples: list[Example], scored: list[Example]) -> None:
        """Warn of labels that the texts don't have and the pipeline finds, while it still does: in the first texts.

        examples (list[Example]): Texts that are about to be learned. scored (list[Example]): The same, as predicted.
        """
        if (found := self._compared) is None:
            return
        with suppress(Exception), preserved_random():  # an error of a component ends the run elsewhere
            for example in scored:
                found.add(example)
            if not scored:
                found.predict(examples, needs=self._annotating)
        missing = found.missing if found.predicted >= _COMPARED else {}
        for name, labels in missing.items():
            self._notify(found.tell(name, labels, f"first {found.predicted} texts", _ADVICE))
        if missing or found.predicted >= MOST_TEXTS:
            self._compared = None

    # ------------------------------------------------------------------ scores

    def _make_row(self) -> LogRow:
        now, block = self.progress, self.progress.block
        scores = self._scores_of(self._scored) if self._scored else {}
        watched: dict[str, float] = {}
        old = new = None
        is_due = not now.texts or now.texts - now.watched >= self._settings.watch_every
        if self._watched is not None and (is_due or block.texts < self._settings.every):
            try:
                with self._averaged():
                    watched, old, new = self._scores.of_corpus(self._watched, now.added)
                now.watched = now.texts if is_due else now.watched
            except StreamError as error:
                if not now.texts:
                    raise
                self._notify_once(f"{error} The run goes on, and tries again at the next row.")
        rates = self._optimizer.learn_rates
        if now.texts and not any(rates.values()):
            self._notify_once("All learning rates are 0: nothing more is learned. Set --learn-rate.")
        return LogRow(
            now.texts,
            now.tokens,
            now.skipped,
            now.rejected,
            self.skipped_updates,
            self._scores.total(scores),
            scores,
            {name: loss / block.n for name, loss in block.losses.items()},
            max(rates.values()),
            self._scores.total(watched),
            watched,
            old,
            new,
            round(time.monotonic() - self._start, 2),
        )

    def _scores_of(self, examples: list[Example]) -> dict[str, float]:
        try:
            return self._scores.of(examples)
        except Exception as error:  # a scorer's, about annotations that can be learned
            self._notify_once(f"The texts of a row can't be scored: {in_words(error)}")
            return {}

    def _averaged(self) -> AbstractContextManager[Any]:
        averages = self._optimizer.averages
        return self._nlp.use_params(averages) if averages else nullcontext()

    def _log(self, row: LogRow, *, is_last: bool) -> LogRow:
        """Write a row, and begin the next block, unless the run ends."""
        if is_last and self.progress.block.texts < self._settings.every:
            row.is_last = True
        else:
            self.progress.logged, self.progress.block = self.progress.texts, TextBlock()
        size = self._output.append(LOG, [vars(row)])
        if not row.is_last:  # else the next run removes it
            self.progress.sizes[LOG] = size
        return row

    def _notify_once(self, text: str) -> None:
        if text not in self._notified:
            self._notified.add(text)
            self._notify(text)

    # ------------------------------------------------------------------ state

    def _write_rejected(self) -> None:
        if self._unwritten:
            self.progress.sizes[REJECTED] = self._output.append(REJECTED, self._unwritten)
            self._unwritten = []

    def save(self) -> None:
        """Save the state, then the pipeline, with the averages of its params if the optimizer has them.

        RAISES (StateError): It can't be written. What was saved before is kept.
        """
        self.progress.seconds = time.monotonic() - self._start
        self.progress.compared = None if self._compared is None else self._compared.counts
        state = LearnerState(
            VERSION,
            self._values,
            self._identity,
            collect_model(self._nlp),
            dict(self._optimizer.state_dict()),
            collect_random(),
            self._lasting,
            "" if self.teacher is None else self.teacher.digest,
            self.progress,
        )
        self._write_rejected()
        self._output.save(state, self._write_pipeline)

    def _write_pipeline(self, path: Path) -> None:
        with self._averaged():
            self._nlp.to_disk(path)

    def _restore(self, saved: LearnerState) -> None:
        """RAISES (StateError): The state is damaged, or of another pipeline."""
        found = compare_configs(saved.settings, self._lasting) + saved.differences(self._values, self._identity)
        if found:
            raise StateError(
                f"Can't go on in '{self.folder}': expected the pipeline and settings that it began with, found others: "
                f"{'; '.join(found)}. Set them back. Or learn on with '{self.folder / LAST}' as MODEL and another "
                "--output; the optimizer then starts without state."
            )
        check_generators(saved.random)
        if saved.teacher:  # with labels that are there, whether more are added or not
            self.teacher = self._teacher_of(saved)
        for component, label in saved.progress.added:
            add_labels(self._nlp, component, [label])
        self._initialize()
        check_model(self._nlp, saved.model)
        restore_model(self._nlp, saved.model)
        saved.load_optimizer(self._optimizer, self.folder)
        self._optimizer.keep_buffers()
        if self._settings.is_taught and self.teacher is None:  # labels are added from now on
            self._begin_teacher()
        self.progress, self._output.saved_texts = saved.progress, saved.progress.texts
        self._start -= saved.progress.seconds
        known = saved.progress.compared
        self._compared = None if known is None else Comparison(self._nlp, self._trained, **vars(known))
        # Texts that are learned again, and the end of the run, get new rows.
        self._output.trim(self.progress.sizes)
        restore_random(saved.random)

    def _teacher_of(self, saved: LearnerState) -> StreamTeacher:
        """RAISES (StateError): The teacher is gone, or another one."""
        try:
            teacher = StreamTeacher(self._nlp, self.folder)
        except (ConfigError, OSError):
            teacher = None
        if teacher is None or teacher.digest != saved.teacher:
            raise StateError(
                f"Can't go on in '{self.folder}': expected the teacher that the run began with in "
                f"'{self.folder / TEACHER}', found {'none' if teacher is None else 'another one'}. Put it back. Or "
                f"learn on with '{self.folder / LAST}' as MODEL and another --output."
            )
        return teacher
