"""`spacy torchopt learn`: learn from a stream of texts with labels."""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Optional

import typer
from rich.console import Console
from typer import Argument as Arg
from typer import Option as Opt

from ..addons.streams import LearnSettings, LineReader, LogRow, StreamLearner
from ..addons.trials import WRITES
from ..core.errors import ConfigError
from ..core.optimizer import TorchOptimizer
from ..core.words import count, short
from ..loop.setup import resolve_optimizer, watching_scores
from ..loop.signals import Signals
from ._command import CODE, GPU
from ._screen import errors_shown, make_console, print_notes
from ._setup import build

_COLUMNS = {"texts": 10, "tokens": 12, "score (0-1)": 13, "watched (0-1)": 15, "learn rate": 12}
# Of the watched corpus, with labels that are added.
_APART = {"old labels": 12, "new labels": 12}
# Settings that have a value, also if nothing uses them.
_WITH_OTHERS = ("rollback_factor", "max_rollbacks")


def learn(
    ctx: typer.Context,
    model: Path = Arg(..., help="Folder of a trained pipeline", exists=True, file_okay=False),
    stream: Path = Arg(..., help="JSONL file with texts and labels, which may grow, or - for stdin", allow_dash=True),
    output_path: Path = Opt(..., "--output", "-o", help="Folder for the pipeline, the state and learn.jsonl"),
    learn_rate: Optional[float] = Opt(None, "--learn-rate", help="Constant learning rate, instead of the config's"),
    batch_size: int = Opt(LearnSettings.batch_size, "--batch-size", "-b", help="Number of texts in each update"),
    follow: bool = Opt(False, "--follow", "-f", help="Wait for more texts at the end of the file"),
    prequential: bool = Opt(LearnSettings.prequential, help="Score each text before it is learned"),
    every: int = Opt(LearnSettings.every, "--every", "-n", help="Print a row after this many texts, with their score"),
    save_every: int = Opt(LearnSettings.save_every, "--save-every", help="Save after this many texts"),
    new_labels: str = Opt(
        LearnSettings.new_labels,
        "--new-labels",
        help="For labels that the pipeline does not have: refuse (stop with an error), add, or skip (leave these texts "
        "out)",
    ),
    teacher: bool = Opt(
        LearnSettings.teacher,
        help="With --new-labels add: let the pipeline as it was annotate old labels that new texts leave open",
    ),
    skip_bad: bool = Opt(
        LearnSettings.skip_bad,
        "--skip-bad",
        help="Leave out texts that can't be learned, and list them in rejected.jsonl",
    ),
    replay: int = Opt(LearnSettings.replay, "--replay", help="Number of old texts to learn again in each update"),
    memory: int = Opt(LearnSettings.memory, "--memory", help="How many old texts to keep for --replay"),
    old: Optional[Path] = Opt(
        None, "--old", help="Texts the pipeline was trained on (.spacy or .jsonl), for --replay", exists=True
    ),
    watch: Optional[Path] = Opt(
        None, "--watch", help="Old development data (.spacy or .jsonl), to see what is forgotten", exists=True
    ),
    watch_every: int = Opt(LearnSettings.watch_every, "--watch-every", help="Evaluate --watch after this many texts"),
    code_path: Optional[Path] = CODE,
    use_gpu: int = GPU,
) -> None:
    """
    Go on learning from texts with labels, as they come in. The stream is a file that grows, or stdin. Each text is
    scored before it is learned. The whole state is saved: after a stop or a crash, the same command goes on from the
    last save.
    """
    console, from_stdin = make_console(), str(stream) == "-"
    with errors_shown(as_json=False):
        settings = LearnSettings(
            batch_size=batch_size,
            every=every,
            save_every=save_every,
            watch_every=watch_every,
            replay=replay,
            memory=memory,
            new_labels=new_labels,  # type: ignore[arg-type]  # checked there
            teacher=teacher,
            prequential=prequential,
            skip_bad=skip_bad,
        )
        _check(model, stream, output_path, follow and from_stdin, old, settings)
        notes: list[str] = []
        setup = build(
            model,
            ctx.args,
            code_path=code_path,
            use_gpu=use_gpu,
            resolve=lambda block: _optimizer_for_streams(block, learn_rate, notes),
        )
        if setup.config["training"]["accumulate_gradient"] > 1:
            notes.append("Not used: accumulate_gradient in [training]. Set --batch-size.")
        if learn_rate is not None:  # in the config that is saved, too
            setup.nlp.config["training"]["optimizer"]["learn_rate"] = learn_rate
        print_notes(console, notes)
        signals = Signals()
        with (
            signals,
            StreamLearner(
                setup.nlp,
                setup.optimizer,
                output_path,
                settings,
                old=old,
                watched=watch,
                notify=lambda text: print_notes(console, [text]),
                is_stopped=lambda: signals.noted is not None,
            ) as learner,
        ):
            columns = {**_COLUMNS, **_APART} if watch is not None and new_labels == "add" else _COLUMNS
            _tell_start(console, learner, output_path, columns, from_stdin=from_stdin)
            source = LineReader(
                None if from_stdin else stream, follows=follow, is_stopped=lambda: signals.noted is not None
            )
            before = learner.progress.texts
            for row in learner.learn(source):
                _print_row(console, row, columns)
            _tell_end(console, learner, before, output_path, signals.noted)
    if signals.noted is not None:
        sys.exit(128 + signals.noted)


def _check(
    model: Path, stream: Path, output: Path, follows_stdin: bool, old: Path | None, settings: LearnSettings
) -> None:
    """RAISES (ConfigError): The arguments don't go together."""
    if str(stream) != "-" and not stream.is_file():
        raise ConfigError(f"Can't learn: expected a JSONL file, or -, as STREAM, found '{stream}'.")
    if stream.suffix == ".spacy":
        raise ConfigError(
            f"Can't learn from '{stream}': expected a JSONL file, with a text and its labels on each line, found "
            f"one of spaCy's binary files. To train {model} on all of it: spacy torchopt init new.cfg --from {model} "
            f"--paths.train {stream}"
        )
    if follows_stdin:
        raise ConfigError("Can't use --follow with -: standard input is read until it is closed. Remove it.")
    if old is not None and not settings.replay:
        raise ConfigError("Can't use --old: its texts are learned again only with --replay above 0. Set --replay 1.")
    if output.resolve() == model.resolve():
        raise ConfigError(f"Can't write to '{output}': it is MODEL itself. Give another --output.")
    if (output / "model-last").resolve() == model.resolve():
        raise ConfigError(
            f"Can't write to '{output}': its model-last is MODEL, which would be overwritten. Give another --output."
        )


def _optimizer_for_streams(block: dict[str, Any], learn_rate: float | None, notes: list[str]) -> TorchOptimizer:
    """Build the optimizer, without settings for a training with checkpoints.

    RAISES (ConfigError): It is not ours, or a schedule ends with the training or follows a score.
    """
    without = [name for name in WRITES if block.get(name) and name not in _WITH_OTHERS]
    if without:
        notes.append(
            f"Not used, as they are for spacy train: {', '.join(without)} in [training.optimizer]. The state is "
            "saved in --output."
        )
    kept = {name: value for name, value in block.items() if name not in WRITES}
    optimizer = resolve_optimizer(kept if learn_rate is None else {**kept, "learn_rate": learn_rate})
    if optimizer.spans_training:
        raise ConfigError(
            "Can't learn from a stream with this 'learn_rate' in [training.optimizer]: expected a number, or a "
            "schedule that counts updates, found one that ends with the training, and a stream has no end. Set "
            "--learn-rate, for example to a third of the highest rate in training."
        )
    if watching := watching_scores(optimizer):
        raise ConfigError(
            f"Can't learn from a stream with this schedule of '{watching[0]}' in [training.optimizer]: expected a "
            "number, or a schedule that counts updates, found one that follows a score, which only spacy train gives "
            "it. Set --learn-rate."
        )
    if "privacy" in optimizer.attachments:
        raise ConfigError(
            "Can't learn from a stream with [training.optimizer.privacy]: its noise is for batches that are drawn from "
            "a known number of examples. Remove it: --training.optimizer.privacy null."
        )
    if "fine_tuning" in optimizer.attachments:
        notes.append(
            "Of [training.optimizer.fine_tuning], only freeze_layers is used: the rest is for spacy train. "
            "Transformers read the windows that the pipeline was saved with."
        )
    return optimizer


# ---------------------------------------------------------------------- what is printed


def _tell_start(
    console: Console, learner: StreamLearner, output: Path, columns: Mapping[str, int], *, from_stdin: bool
) -> None:
    if learner.goes_on:
        where = (
            f"standard input should begin with line {learner.progress.place.lines + 1:,}"
            if from_stdin
            else f"from line {learner.progress.place.lines + 1:,} of the stream"
        )
        console.print(
            f"Going on after {count(learner.progress.texts, 'text')}, with the state in {output}: {where}.",
            soft_wrap=True,
        )
    console.print(_in_columns(list(columns), columns))
    console.print(_in_columns(["-" * (width - 2) for width in columns.values()], columns))


def _print_row(console: Console, row: LogRow, columns: Mapping[str, int]) -> None:
    cells = [f"{row.texts:,}", f"{row.tokens:,}", _told(row.score), _told(row.watched), short(row.learn_rate)]
    console.print(_in_columns([*cells, _told(row.watched_old), _told(row.watched_new)], columns))


def _in_columns(cells: Collection[str], columns: Mapping[str, int]) -> str:
    return "".join(cell.rjust(width) for cell, width in zip(cells, columns.values()))


def _told(score: float | None) -> str:
    return "" if score is None else f"{score:.3f}"


def _tell_end(console: Console, learner: StreamLearner, before: int, output: Path, stopped_by: int | None) -> None:
    why = "The stream has ended" if stopped_by is None else f"Stopped by {signal.Signals(stopped_by).name}"
    if learner.progress.rejected:
        texts = count(learner.progress.rejected, "text")
        console.print(f"{texts} could not be learned: {output / 'rejected.jsonl'}.", soft_wrap=True)
    if learner.teacher is not None and learner.teacher.filled.texts:
        console.print(f"Filled in by the teacher: {learner.teacher.filled.in_words()}", soft_wrap=True)
    if learner.skipped_updates:
        console.print(
            f"{count(learner.skipped_updates, 'update')} left out, as gradients were not finite or spiked: nothing was "
            "learned of these texts.",
            soft_wrap=True,
        )
    learned = learner.progress.texts - before
    done = f"{count(learned, 'text')} {'was' if learned == 1 else 'were'} learned" if learned else "no text was new"
    console.print(f"{why}: {done}. Pipeline: {output / 'model-last'}. To go on, run the same command.", soft_wrap=True)
