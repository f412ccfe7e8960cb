"""`spacy torchopt explain`: check whether a training can begin, and say what it will do and cost."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

import typer
from click import NoSuchOption
from confection import Config
from spacy import util
from spacy.language import Language
from spacy.util import registry
from typer import Option as Opt
from wasabi.printer import Printer
from wasabi.util import color, supports_ansi

from ..addons.controller.run_rules import Rules
from ..addons.privacy import Privacy, PrivacyHistory, epsilon_of
from ..addons.privacy.private_run import plan_private_training, what_is_not_covered
from ..addons.recipes import THINC, Setting, read_corpus
from ..core.config_checks import check_corpora, check_training_section
from ..core.errors import ConfigError, ControllerError, MissingPackageError, ParamError
from ..core.host import cli_util
from ..core.host_errors import is_spacys_own, line_of_others, plain_errors
from ..core.optimizer import TorchOptimizer
from ..core.types import ParamInfo
from ..core.words import count, plain
from ..loop.data_check import MOST_WORDS, Corpus, Findings, check_data
from ..loop.data_stream import count_steps
from ..loop.progress_bars import show_activity
from ..loop.schedule_check import doubts_of_schedules, rates_over_steps, trained_groups
from ._command import CODE, CONFIG, GPU, JSON
from ._costs import count_work, find_sizes, look_at_disk, tell_memory, tell_time, tell_work, time_steps
from ._doubts import (
    device_problem,
    doubts_of_device,
    doubts_of_end,
    doubts_of_rates,
    lack_of_room,
    why_nothing_is_trained,
)
from ._lines import Line, lines_of
from ._screen import errors_shown, wants_traceback
from ._setup import Setup, build, note_on_scores, resolve_optimizer, schedule_notes
from ._terminal import print_json, size_in_words
from .params import ParamRow, describe, rows_of, tell_pipeline

# Steps that are described of a training without an end.
_NO_END = 20_000
# Texts that are read of a streamed corpus.
_STREAMED = 1_000
_WIDTH = 110
# spaCy's errors for a corpus without a path, texts or labels.
_OF_DATA = re.compile(r"\[E(913|143|867|923|930|986)\]")


@dataclass
class Description(Findings):
    """The description of a training.

    checked (list[str]): What was read, and what was left out.
    lines (list[Line]): What it will do. cost_lines (list[Line]): What it costs. costs (dict): The same in numbers.
    """

    checked: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    cost_lines: list[Line] = field(default_factory=list)
    costs: dict[str, Any] = field(default_factory=dict)

    def add(self, found: Findings) -> None:
        self.stops += found.stops
        self.notes += found.notes


def explain(
    ctx: typer.Context,
    config_path: Path = CONFIG,
    is_timed: bool = Opt(False, "--time", help="Train for a few steps, to estimate how long the training takes"),
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
    use_gpu: int = GPU,
) -> None:
    """
    Check a training before it begins, and say what it will do. Shows problems that would stop it (corpora, annotations,
    labels, device, disk), possible mistakes, which params learn at which rate, what is frozen, clipped, averaged and
    saved, and what the training costs. The pipeline is built and initialized as in `spacy train`, so pass the same
    overrides, such as --paths.train train.spacy. Nothing is written. The exit code is 1 if something would stop the
    training.
    """
    told = Description()
    with errors_shown(as_json=as_json), schedule_notes() as notes:
        if problem := device_problem(use_gpu):
            told.stops.append(problem)
            use_gpu = -1
        try:
            setup = build(config_path, ctx.args, code_path=code_path, use_gpu=use_gpu, resolve=_resolve)
        except (NoSuchOption, ImportError):
            raise
        except Exception as error:  # components may raise anything when they are initialized
            _tell_without_pipeline(told, config_path, ctx.args, error, as_json=as_json)
        else:
            _tell(told, setup, is_timed=is_timed, use_gpu=use_gpu)
            notes += note_on_scores(setup.optimizer)
    told.notes += notes
    if as_json:
        lines = [{"about": about, "text": text} for about, text in _filled([*told.lines, *told.cost_lines])]
        whole = {"stops": told.stops, "notes": told.notes, "checked": told.checked}
        print_json({**whole, "lines": lines, "costs": told.costs})
    else:
        _print(config_path, told)
    if told.stops:
        sys.exit(1)


def _resolve(block: dict[str, Any]) -> TorchOptimizer:
    """The optimizer of a config. For one of thinc's, our drop-in, which does the same."""
    name = block["@optimizers"]
    return resolve_optimizer(block | {"@optimizers": f"thinc-torchopt.{name}"} if name in THINC else block)


# ---------------------------------------------------------------------- the description


def _tell(told: Description, setup: Setup, *, is_timed: bool, use_gpu: int) -> None:
    training = setup.config["training"]
    train, dev = _read_corpora(told, setup.nlp, setup.config)
    told.add(check_data(setup.nlp, setup.config, train, dev, sourced=setup.sourced, is_initialized=True))
    unmatched, problem = tell_pipeline(setup)
    told.stops += [*(found["message"] for found in unmatched), *([problem] if problem else [])]
    now = describe(setup)
    rows = list(rows_of(setup, now, None))
    has_end = bool(training["max_steps"] or training["max_epochs"] > 0) and (train is not None or training["max_steps"])
    last = _count_steps(setup, train) - 1 if has_end else _NO_END
    # This moves the optimizer's schedules.
    rates = rates_over_steps(setup.optimizer, last)
    trained = trained_groups(now, rates)
    if nothing := why_nothing_is_trained(setup, trained, rates):
        told.stops.append(nothing)
    told.notes += [
        *doubts_of_rates(setup, trained),
        *doubts_of_schedules(training, setup.optimizer, trained, last, has_end=bool(has_end)),
        *doubts_of_end(training, last, has_end=bool(has_end), has_budget="budget" in setup.optimizer.attachments),
        *doubts_of_device(setup, use_gpu),
    ]
    if (rules := setup.optimizer.attachments.get("controller")) is not None:
        try:
            told.notes += Rules(rules, setup.optimizer).doubts_of_names(setup.nlp)
        except (ConfigError, ControllerError) as error:
            told.stops.append(str(error))
    if training["optimizer"]["@optimizers"] in THINC:
        told.notes.append(
            "This is thinc's own optimizer. The same by torch: spacy torchopt init CONFIG OUTPUT --recipe drop-in"
        )
    told.lines += lines_of(setup, rows, now, rates)
    privacy = setup.optimizer.attachments.get("privacy")
    if privacy is not None and train is not None:
        _tell_privacy(told, setup, privacy, train, last + 1 if has_end else None)
    _tell_costs(told, setup, rows, now, train, dev, is_timed=is_timed)


def _tell_privacy(told: Description, setup: Setup, settings: Privacy, train: Corpus, steps: int | None) -> None:
    """Say what a private training uses, or why it would be refused. steps (int | None): None: it has no end."""
    examples = train.examples
    try:
        plan = plan_private_training(settings, setup.nlp, setup.config, setup.optimizer, lambda nlp: iter(examples))
    except (ConfigError, ParamError, MissingPackageError) as error:
        told.stops.append(str(error))
        return
    text = f"Each example's gradient is clipped, and noise is added: {plan.in_words()}"
    if plan.last is None and steps is not None and plan.noise_multiplier:
        history: PrivacyHistory = [(plan.noise_multiplier, plan.sample_rate, steps)]
        epsilon = epsilon_of(history, settings.delta, settings.accountant)
        text += f" {count(steps, 'update')} {'uses' if steps == 1 else 'use'} epsilon {plain(epsilon)}."
    told.lines.append(("Privacy", text))
    told.notes += what_is_not_covered(settings, setup.config["training"]["seed"])
    if not plan.noise_multiplier:
        told.notes.append("Nothing is private: noise_multiplier = 0 in [training.optimizer.privacy].")


def _count_steps(setup: Setup, train: Corpus | None) -> int:
    examples = [] if train is None else train.examples
    return count_steps(setup.nlp, setup.config, lambda nlp: iter(examples))


def _tell_without_pipeline(told: Description, path: Path, args: list[str], error: Exception, *, as_json: bool) -> None:
    """Say why the pipeline could not be built, and check the corpora. error (Exception): The one that was raised."""
    read: list[str] = []
    if not path.is_dir() and str(path) != "-":  # stdin can't be read again
        try:
            config = util.load_config(path, overrides=cli_util().parse_config_overrides(args), interpolate=False)
            problems = _problems(config)
        except Exception:
            raise error from None
        try:
            nlp = util.load_model_from_config(config, auto_fill=True)
        except Exception:  # no pipeline can be made of the config
            texts = dict.fromkeys([str(error), *problems])
            if not isinstance(error, ConfigError) or (len(texts) == 1 and not as_json):
                raise error from None
            told.stops += texts
            return
        filled = nlp.config.interpolate()
        train, dev = _read_corpora(told, nlp, filled)
        sourced = util.get_sourced_components(config)
        told.add(check_data(nlp, filled, train, dev, sourced=list(sourced), is_initialized=False))
        read = [*told.stops]
        told.stops += [problem for problem in problems if problem not in read]
    text = str(error).strip() or type(error).__name__
    is_told = any(text.rstrip(".") in stop for stop in told.stops)
    if not is_told and not (read and (isinstance(error, OSError) or _OF_DATA.search(str(error.__cause__ or error)))):
        told.stops.append(
            text if isinstance(error, ConfigError) else f"The pipeline can't be initialized: {_in_full(error)}"
        )
    told.checked.append("The rest can be checked once this is fixed.")


def _problems(config: Config) -> list[str]:
    """The problems of a config that can be found without a pipeline. config (Config): Not interpolated."""
    problems = []
    for check in (
        lambda: check_training_section(config),
        lambda: check_corpora(config, ["train_corpus"]),
        lambda: check_corpora(config, ["dev_corpus"]),
        lambda: _resolve(config.interpolate()["training"]["optimizer"]),
    ):
        try:
            with plain_errors(config):
                check()
        except ConfigError as error:
            problems.append(str(error))
    return problems


def _in_full(error: Exception) -> str:
    """The text of an error, with the line if it is in other code."""
    if wants_traceback():
        raise error
    if is_spacys_own(error):
        return str(error)
    line = line_of_others(error)
    return f"{type(error).__name__}: {error}".rstrip(": ") + (f" (at {line})" if line else "")


def _read_corpora(told: Description, nlp: Language, config: Mapping[str, Any]) -> tuple[Corpus | None, Corpus | None]:
    """Read both corpora. None: it can't be read; the reason is in `told.stops`."""
    limit = _STREAMED if config["training"]["max_epochs"] < 0 else None
    with show_activity("Reading the corpora"):
        train, dev = _read(told, nlp, config, "train_corpus", limit), _read(told, nlp, config, "dev_corpus", None)
    for corpus in (train, dev):
        if corpus is not None:
            _, is_counted = corpus.counted()
            part = f", its labels in the first {MOST_WORDS:,} words" if corpus.is_whole and not is_counted else ""
            told.checked.append(f"{corpus.told} with {corpus.words:,} words{part}.")
    return train, dev


def _read(
    told: Description, nlp: Language, config: Mapping[str, Any], setting: Setting, limit: int | None
) -> Corpus | None:
    name = config["training"][setting]
    try:
        examples = read_corpus(nlp, config, setting, limit=limit)
    except ConfigError as error:
        told.stops.append(str(error))
        return None
    return Corpus(name, examples, is_whole=limit is None or len(examples) < limit)


# ---------------------------------------------------------------------- costs


def _tell_costs(
    told: Description,
    setup: Setup,
    rows: Sequence[ParamRow],
    infos: Mapping[str, ParamInfo],
    train: Corpus | None,
    dev: Corpus | None,
    *,
    is_timed: bool,
) -> None:
    block = registry.fill({"optimizer": setup.config["training"]["optimizer"]})["optimizer"]
    is_averaged = bool(block.get("averages") or block.get("use_averages"))
    work = None
    if train is not None:
        problem = (
            f"There would be no batch: each text in [{train.name}] is longer than a batch may be, and spaCy's loop "
            "would never end. Set discard_oversize = false in [training.batcher], or a larger size."
        )
        try:
            work = count_work(setup, train)
        except ConfigError as error:  # the batcher's
            problem = str(error)
        if work is None and problem not in told.stops:
            told.stops.append(problem)
    if work is not None and train is not None:
        if work.left_out:
            told.notes.append(
                f"{work.left_out:,} of the {train.words:,} words in [{train.name}] are in no batch: their texts are "
                "longer than a batch may be (discard_oversize = true in [training.batcher])."
            )
        told.cost_lines.append(("Steps", tell_work(work, train)))
        told.costs |= asdict(work) | {"words": work.words}
    sizes = find_sizes(setup, rows, infos, is_averaged=is_averaged)
    told.stops += lack_of_room(setup, sizes)
    models = f"About {size_in_words(sizes.model)} each for model-best and model-last"
    checkpoint = setup.optimizer.attachments.get("checkpoint")
    copied = sizes.checkpoint if checkpoint is not None and checkpoint.in_background else 0
    told.cost_lines.append(("Memory", tell_memory(sizes, copied)))
    told.costs["bytes"] = asdict(sizes) | {"total": sizes.total, "model": sizes.model}
    if checkpoint is None:
        told.cost_lines.append(("Disk", f"{models}."))
    else:
        disk = look_at_disk(Path(checkpoint.path), sizes.checkpoint, checkpoint.keep)
        told.cost_lines.append(
            (
                "Disk",
                f"{models}, and {size_in_words(sizes.checkpoint)} for each checkpoint: up to {checkpoint.keep + 1} of "
                f"them while one is written. {size_in_words(disk.free)} are free in '{disk.folder}'.",
            )
        )
        told.costs["bytes"] |= {"checkpoint": sizes.checkpoint, "free": disk.free}
    if not is_timed:
        told.cost_lines.append(("Time", "Not measured. --time trains for a few steps to measure it."))
    elif train is not None and work is not None and not told.stops:
        try:
            with show_activity("Training for a few steps"):
                times = time_steps(setup, train, dev, mean_words=work.batch_words)
        except Exception as error:  # it would stop the training too
            told.stops.append(f"One of the first steps fails: {_in_full(error)}")
        else:
            told.cost_lines.append(("Time", tell_time(times, work, setup.config["training"]["eval_frequency"])))
            told.costs["seconds"] = asdict(times)
            if times.peak is not None:
                told.cost_lines.append(("", f"At most {size_in_words(times.peak)} of the GPU were in use."))


# ---------------------------------------------------------------------- output


def _print(path: Path, told: Description) -> None:
    """Print stops, notes, checks, what will happen, and costs."""
    Printer(pretty=sys.stdout.isatty()).divider(f"What a training with {path.name} does")
    first = [("Stops", text) for text in told.stops] or [("Stops", "Nothing that can be seen before the training.")]
    checked = [("Checked", text) for text in told.checked]
    notes = [("Note", note) for note in told.notes]
    blocks = [first, notes, checked, told.lines, told.cost_lines]
    indent = max(len(label) for block in blocks for label, _ in block) + 2
    colors = {"Stops": "red" if told.stops else "green", "Note": "yellow"}
    for i, block in enumerate(block for block in blocks if block):
        if i:
            print()
        for label, text in block:
            _print_line(label, text, indent, colors.get(label, "blue"))


def _print_line(label: str, text: str, indent: int, fg: str) -> None:
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
    first, *others = textwrap.wrap(text, max(30, width - indent), break_on_hyphens=False, break_long_words=False)
    head = label.ljust(indent)
    print((color(head, fg=fg) if sys.stdout.isatty() and supports_ansi() else head) + first)
    for other in others:
        print(" " * indent + other)


def _filled(lines: Sequence[Line]) -> Iterator[Line]:
    """Fill in empty labels with the label of the line before."""
    about = ""
    for label, text in lines:
        about = label or about
        yield about, text
