"""Describe a training before it begins: whether it can begin, what it will do, and what it costs."""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from confection import Config
from rich.console import Console
from rich.text import Text
from spacy import util
from spacy.language import Language
from spacy.util import registry, resolve_dot_names

from ...core.config_checks import check_corpora, check_training_section
from ...core.errors import ConfigError, ControllerError, MissingPackageError, ParamError, TorchOptError
from ...core.host_errors import is_spacys_own, line_of_others, plain_errors
from ...core.ops import PipelineOps, fastest, products_by
from ...core.optimizer import TorchOptimizer
from ...core.tables import as_text, html_lines, html_of, html_table, print_table
from ...core.types import ParamInfo
from ...core.words import count, plain, size_in_words
from ...loop.checkpoint import RunCheckpoints
from ...loop.checkpoint_settings import Checkpoint
from ...loop.data_check import Corpus, Facts, Finding
from ...loop.data_stream import spacys_batches
from ...loop.progress_bars import show_activity
from ...loop.random_state import preserved_random
from ...loop.schedule_check import last_step, rates_over_steps
from ...loop.setup import (
    AnyConfig,
    Setup,
    build,
    load_config,
    note_on_scores,
    path_of,
    resolve_optimizer,
    schedule_notes,
)
from ...loop.training_check import check
from ..controller.run_rules import Rules
from ..privacy import Privacy, epsilon_of
from ..privacy.private_run import plan_private_training, what_is_not_covered
from ..recipes import THINC, Setting, read_corpus
from .costs import (
    TrainingWork,
    count_work,
    device_problem,
    doubts_of_device,
    find_sizes,
    lack_of_room,
    look_at_disk,
    tell_memory,
    tell_products,
    tell_time,
    tell_work,
    time_steps,
)
from .lines import Line, lines_of, table_of, tell_windows
from .params import ParamRow, TableData, describe, rows_of, tell_pipeline

# Steps that are described of a training without an end.
_NO_END = 20_000
# Texts that are read of a streamed corpus.
_STREAMED = 1_000
# spaCy's errors for a corpus without a path, texts or labels.
_OF_DATA = re.compile(r"\[E(913|143|867|923|930|986)\]")
# Columns of the text.
_WIDTH = 80


@dataclass(repr=False)
class Description:
    """The description of a training. A notebook shows it.

    stops (list[str]): Why the training would stop, or be in vain. notes (list[str]): Possible mistakes.
    name (str): The config's.
    checked (list[str]): What was read, and what was left out.
    groups (TableData | None): A row for the params that learn alike. None: there is no pipeline.
    lines (list[Line]): What it will do, and what it costs. costs (dict): The costs in numbers.
    error (Exception | None): What a component, a corpus or other code raised.
    """

    stops: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    name: str = ""
    checked: list[str] = field(default_factory=list)
    groups: TableData | None = None
    lines: list[Line] = field(default_factory=list)
    costs: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None

    def add(self, found: Sequence[Finding]) -> None:
        self.stops += [one.text for one in found if one.kind != "doubt"]
        self.notes += [one.text for one in found if one.kind == "doubt"]

    @property
    def is_one_error(self) -> bool:
        """Whether one error is all that can be said."""
        return len(self.stops) == 1 and not (self.notes or self.checked or self.lines)

    @property
    def title(self) -> str:
        return f"What a training with {self.name} does"

    @property
    def findings(self) -> list[Line]:
        """Reasons to stop the training, and possible mistakes; and what was checked."""
        return [
            *(("Stops", text) for text in self.stops or ["Nothing that can be seen before the training."]),
            *(("Note", note) for note in self.notes),
            *(("Checked", text) for text in self.checked),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "stops": self.stops,
            "notes": self.notes,
            "checked": self.checked,
            "groups": [] if self.groups is None else [dict(zip(self.groups.headers, row)) for row in self.groups.rows],
            "lines": [{"about": about, "text": text} for about, text in self.lines],
            "costs": self.costs,
        }

    def print(self, console: Console, width: int = _WIDTH) -> None:
        """Print what stops the training and what may be a mistake, the table, and the lines. width (int): Of texts."""
        console.print(self.title)
        self._print_lines(console, self.findings, width)
        if self.groups is not None:
            console.print()
            print_table(console, self.groups.headers, self.groups.rows, numbers=self.groups.numbers)
        self._print_lines(console, self.lines, width)

    def _print_lines(self, console: Console, lines: Sequence[Line], width: int) -> None:
        styles = {"Stops": "red" if self.stops else "green", "Note": "yellow"}
        indent = max((len(label) for label, _ in [*self.findings, *self.lines])) + 2
        for label, text in lines:
            parts = textwrap.wrap(text, width - indent, break_on_hyphens=False, break_long_words=False) or [""]
            for head, part in zip_longest([label], parts, fillvalue=""):
                console.print(Text.assemble((head.ljust(indent), styles.get(head, "blue")), part), soft_wrap=True)

    def __repr__(self) -> str:
        return as_text(self.print)

    def _repr_html_(self) -> str:
        kinds = {"Stops": "stops" if self.stops else "fine", "Note": "note"}
        groups = self.groups
        return html_of(
            f"<p>{escape(self.title)}</p>",
            html_lines(self.findings, kinds=kinds),
            "" if groups is None else html_table(groups.headers, groups.rows, numbers=groups.numbers),
            html_lines(self.lines),
        )


def explain(
    config: AnyConfig,
    overrides: Mapping[str, Any] = {},
    *,
    is_timed: bool = False,
    gpu_id: int = -1,
    output: str | Path | None = None,
) -> Description:
    """Check a training before it begins, and say what it will do and cost. Nothing is written.

    config (AnyConfig): A config, its file, or the folder of a trained pipeline.
    overrides (Mapping): Other values, by paths such as "paths.train".
    is_timed (bool): Train for a few steps, to estimate how long the training takes.
    gpu_id (int): The GPU. -1: the CPU.
    output (str | Path | None): The folder for models, to find a run there that would be resumed.
    RETURNS (Description): The description. Its `stops` say why the training would stop.
    RAISES (ConfigError): The config is so wrong that nothing can be said.
    """
    path = path_of(config)
    told = Description(name="this config" if path is None else path.name)
    if path is not None and str(path) == "-":
        config = load_config(path, overrides)  # stdin can't be read again
        overrides = {}
    with schedule_notes() as notes:
        if problem := device_problem(gpu_id):
            told.stops.append(problem)
            gpu_id = -1
        try:
            setup = build(config, overrides, use_gpu=gpu_id, resolve=_resolve)
        except ImportError:
            raise
        except Exception as error:  # components may raise anything when they are initialized
            _tell_without_pipeline(told, config, overrides, error)
        else:
            _tell(told, setup, None if output is None else Path(output), is_timed=is_timed, use_gpu=gpu_id)
            notes += note_on_scores(setup.optimizer)
    told.notes += notes
    return told


def _resolve(block: dict[str, Any]) -> TorchOptimizer:
    """The optimizer of a config. For one of thinc's, our drop-in, which does the same."""
    name = block["@optimizers"]
    return resolve_optimizer(block | {"@optimizers": f"thinc-torchopt.{name}"} if name in THINC else block)


# ---------------------------------------------------------------------- the description


def _tell(told: Description, setup: Setup, output: Path | None, *, is_timed: bool, use_gpu: int) -> None:
    training = setup.config["training"]
    train, dev = _read_corpora(told, setup.nlp, setup.config)
    unmatched, problem = tell_pipeline(setup)
    examples = [] if train is None or not train.is_whole else train.examples
    last = last_step(setup.nlp, training, examples)
    facts = Facts(setup.nlp, setup.config, train, dev, setup.sourced, optimizer=setup.optimizer, last=last)
    with show_activity("Looking at the texts and settings"):
        told.add(check(facts))
    told.stops += [*(found["message"] for found in unmatched), *([problem] if problem else [])]
    now = describe(setup)
    rows = list(rows_of(setup, now, None))
    # This moves the optimizer's schedules.
    rates = rates_over_steps(setup.optimizer, last or _NO_END)
    if train is not None and dev is not None and not unmatched and problem is None:
        _tell_resuming(told, setup, output)
    told.notes += doubts_of_device(setup, use_gpu)
    falls = {path: getattr(source, "cooldown", None) for path, source in setup.optimizer.schedules.items()}
    at_will = [path for path, cooldown in falls.items() if cooldown is not None and cooldown.only_at_will]
    if at_will and "budget" not in setup.optimizer.attachments:
        told.notes.append(
            f"{', '.join(at_will)} falls only on demand: by optimizer.begin_decay(), or by the signal SIGUSR1 (kill "
            "-USR1 with the id of the process). When it has fallen, the training ends."
        )
    if (rules := setup.optimizer.attachments.get("controller")) is not None:
        try:
            told.notes += Rules(rules.build(), setup.optimizer).doubts_of_names(setup.nlp)
        except (ConfigError, ControllerError) as error:
            told.stops.append(str(error))
    if training["optimizer"]["@optimizers"] in THINC:
        told.notes.append(
            "This is thinc's own optimizer: one gradient with a NaN makes weights NaN for good. The same by torch, "
            "with a guard: spacy torchopt init CONFIG OUTPUT --recipe drop-in"
        )
    told.groups = table_of(setup.optimizer, rows, now, rates)
    told.lines += lines_of(setup, rows)
    if train is not None:
        lines, notes = tell_windows(setup, train)
        told.lines += lines
        told.notes += notes
    privacy = setup.optimizer.attachments.get("privacy")
    if privacy is not None and train is not None:
        _tell_privacy(told, setup, privacy, train, last + 1 if last else None)
    _tell_costs(told, setup, rows, now, train, dev, is_timed=is_timed)


def _tell_resuming(told: Description, setup: Setup, output: Path | None) -> None:
    """Say where a run resumes, or why it can't, if its folder is known. Reads the newest checkpoint."""
    settings, training = setup.optimizer.attachments.get("checkpoint"), setup.config["training"]
    if not isinstance(settings, Checkpoint) or (settings.path is None and output is None):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer that is described has given the same
        optimizer = _resolve(training["optimizer"])
        optimizer.initialize(setup.nlp, setup.frozen)
    with preserved_random():
        [dev] = resolve_dot_names(setup.config, [training["dev_corpus"]])
        batches = spacys_batches(setup.nlp, setup.config)
        checkpoints = RunCheckpoints(settings, setup.nlp, optimizer, batches, dev=dev, output=output)
        try:
            place = checkpoints.look(training["patience"], training["max_steps"])
        except TorchOptError as error:
            told.stops.append(str(error))
        else:
            told.notes += [place] * bool(place)


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
        history = [(plan.noise_multiplier, plan.sample_rate, steps)]
        epsilon = epsilon_of(history, settings.delta, settings.accountant)
        text += f" {count(steps, 'update')} {'uses' if steps == 1 else 'use'} epsilon {plain(epsilon)}."
    told.lines.append(("Privacy", text))
    told.notes += what_is_not_covered(settings, setup.config["training"]["seed"])
    if not plan.noise_multiplier:
        told.notes.append("Nothing is private: noise_multiplier = 0 in [training.optimizer.privacy].")


def _tell_without_pipeline(
    told: Description, source: AnyConfig, overrides: Mapping[str, Any], error: Exception
) -> None:
    """Say why the pipeline could not be built, and check the corpora. error (Exception): The one that was raised."""
    read: list[str] = []
    path = path_of(source)
    if path is None or not path.is_dir():
        try:
            config = load_config(source, overrides)
            problems = _problems(config)
        except Exception:
            raise error from None
        try:
            nlp = util.load_model_from_config(config, auto_fill=True)
        except Exception:  # no pipeline can be made of the config
            texts = dict.fromkeys([str(error), *problems])
            if not isinstance(error, ConfigError):
                raise error from None
            told.stops += texts
            return
        filled = nlp.config.interpolate()
        train, dev = _read_corpora(told, nlp, filled)
        sourced = util.get_sourced_components(config)
        told.add(check(Facts(nlp, filled, train, dev, list(sourced), is_initialized=False)))
        read = [*told.stops]
        told.stops += [problem for problem in problems if problem not in read]
    text = str(error).strip() or type(error).__name__
    is_told = any(text.rstrip(".") in stop for stop in told.stops)
    if not is_told and not (read and (isinstance(error, OSError) or _OF_DATA.search(str(error.__cause__ or error)))):
        told.stops.append(
            text if isinstance(error, ConfigError) else f"The pipeline can't be initialized: {_in_full(told, error)}"
        )
    told.checked.append("The rest can be checked once this is fixed.")


def _problems(config: Config) -> list[str]:
    """The problems of a config that can be found without a pipeline. config (Config): Not interpolated."""
    problems = []
    for look in (
        lambda: check_training_section(config),
        lambda: check_corpora(config, ["train_corpus"]),
        lambda: check_corpora(config, ["dev_corpus"]),
        lambda: _resolve(config.interpolate()["training"]["optimizer"]),
    ):
        try:
            with plain_errors(config):
                look()
        except ConfigError as error:
            problems.append(str(error))
    return problems


def _in_full(told: Description, error: Exception) -> str:
    """The text of an error, with the line if it is in other code."""
    told.error = error
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
            lines = [f"{corpus.told} with {corpus.words:,} words.", *corpus.annotations.lines()]
            told.checked.append(" ".join(lines))
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
        with suppress(ConfigError):  # the batcher's, which is told already
            work = count_work(setup, train)
    if work is not None and train is not None:
        told.lines.append(("Steps", tell_work(work, train)))
        told.costs |= asdict(work) | {"words": work.words}
    sizes = find_sizes(setup, rows, infos, is_averaged=is_averaged)
    told.stops += lack_of_room(setup, sizes)
    models = f"About {size_in_words(sizes.model)} each for model-best and model-last"
    checkpoint = setup.optimizer.attachments.get("checkpoint")
    copied = sizes.checkpoint if checkpoint is not None and checkpoint.in_background else 0
    told.lines.append(("Memory", tell_memory(sizes, copied)))
    told.costs["bytes"] = asdict(sizes) | {"total": sizes.total, "model": sizes.model}
    if checkpoint is None:
        told.lines.append(("Disk", f"{models}."))
    else:
        disk = look_at_disk(Path(checkpoint.path or "."), sizes.checkpoint, checkpoint.keep)
        told.lines.append(
            (
                "Disk",
                f"{models}, and {size_in_words(sizes.checkpoint)} for each checkpoint: up to {checkpoint.keep + 1} of "
                f"them while one is written. {size_in_words(disk.free)} are free in '{disk.folder}'.",
            )
        )
        told.costs["bytes"] |= {"checkpoint": sizes.checkpoint, "free": disk.free}
    if not is_timed:
        told.lines.append(("Time", "Not measured. --time trains for a few steps to measure it."))
    elif train is not None and work is not None and not told.stops:
        try:
            with show_activity("Training for a few steps"):
                _tell_times(told, setup, train, dev, work)
        except Exception as error:  # it would stop the training too
            told.stops.append(f"One of the first steps fails: {_in_full(told, error)}")


def _tell_times(told: Description, setup: Setup, train: Corpus, dev: Corpus | None, work: TrainingWork) -> None:
    """Train for a few steps; where `ops` would change something, for a few more with that."""
    optimizer = setup.optimizer
    choice, thincs = fastest(setup.nlp, optimizer.ops_threads), products_by("thinc")
    in_use = choice.products if optimizer.ops == "fastest" else None
    times = time_steps(setup, train, dev, in_use, mean_words=work.batch_words)
    steps = [times.step]
    with PipelineOps(setup.nlp, choice.products) as other:
        changes_anything = other.changes_anything
    if in_use is None and changes_anything:
        steps.append(time_steps(setup, train, None, choice.products, mean_words=work.batch_words).step)
    if choice.gain is not None or optimizer.ops == "fastest":
        block = registry.fill({"optimizer": setup.config["training"]["optimizer"]})["optimizer"]
        products = tell_products(choice, thincs, optimizer.ops, steps, has_setting="ops" in block)
        told.lines.append(("Products", products))
        told.costs["products"] = {"thinc": str(thincs), "fastest": str(choice.products), "times_as_fast": choice.gain}
    told.lines.append(("Time", tell_time(times, work)))
    told.costs["seconds"] = asdict(times)
    if times.peak is not None:
        told.lines.append(("Memory", f"At most {size_in_words(times.peak)} of the GPU were in use."))
