"""What a training costs: steps, words, time, memory, and disk space; and whether the machine has them."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from timeit import default_timer
from typing import Any

import torch
from spacy.training import Example
from spacy.training.loop import create_train_batches
from thinc.api import fix_random_seed

from ...core.algorithms import StateSizes
from ...core.errors import TorchOptWarning
from ...core.host import cli_util
from ...core.ops import Choice, PipelineOps, Products
from ...core.types import OpsChoice, ParamInfo
from ...core.words import count, size_in_words, time_in_words
from ...loop.checkpoint_folder import nearest, room_for
from ...loop.data_check import Corpus
from ...loop.data_stream import batcher_of
from ...loop.setup import Setup
from ..trials import WRITES, begin_training
from .params import ParamRow

# At most this many batches are counted; the rest is assumed to be like them.
_MOST_BATCHES = 5_000
_FLOAT = 4
_UNTIMED, _TIMED = 3, 10
# This many words of the development data are enough to time an evaluation.
_EVALUATED = 5_000


@dataclass(frozen=True)
class TrainingWork:
    """The size of a training.

    steps (int | None): None: only patience ends the training.
    batch_words (float): Words of a batch, on average.
    epochs (float | None): None: the corpus is streamed.
    evaluations (int | None): None: as for steps.
    """

    steps: int | None
    batch_words: float
    epochs: float | None
    evaluations: int | None

    @property
    def words(self) -> int | None:
        return None if self.steps is None else round(self.steps * self.batch_words)


def count_work(setup: Setup, train: Corpus) -> TrainingWork | None:
    """Count the batches of a training as spaCy draws them.

    RETURNS (TrainingWork | None): None: there is no batch at all, and spaCy's loop would never end.
    """
    training = setup.config["training"]
    if training["seed"] is not None:
        fix_random_seed(training["seed"])

    def batcher() -> Any:
        return batcher_of(setup.nlp, training)

    first = [_words(batch) for batch in batcher()(iter(train.examples))]
    if not first:
        return None
    max_epochs, budget = training["max_epochs"], setup.optimizer.attachments.get("budget")
    limits = [training["max_steps"] + 1] if training["max_steps"] else []
    if budget is not None and budget.unit == "steps":
        limits.append(round(budget.amount))
    batches = create_train_batches(setup.nlp, lambda nlp: iter(train.examples), batcher(), max_epochs)
    # A training without an end: count one epoch.
    most = min([_MOST_BATCHES, *(limits or [len(first)] * (max_epochs <= 0))])
    words = [_words(batch) for _, batch in islice(batches, most)]
    mean = sum(words) / len(words)
    if budget is not None and budget.unit == "words":
        limits.append(max(2, int(budget.amount / mean)))  # it ends within: the rate falls after the first step
    if max_epochs > 0:
        # Fewer batches than requested: these are all.
        is_all = len(words) < most
        limits.append(len(words) if is_all else round(max_epochs * sum(first) / mean))
    steps = min(limits, default=None)
    in_epoch = sum(first) or 1
    epochs = None if max_epochs < 0 or steps is None else steps * mean / in_epoch
    every, evaluations = training["eval_frequency"], None
    if steps is not None:
        evaluations = (steps - 1) // every + 1 if budget is None else budget.count_evaluations(steps, every)
    return TrainingWork(steps, mean, epochs, evaluations)


def _words(batch: Sequence[Example]) -> int:
    return sum(len(example.reference) for example in batch)


# ---------------------------------------------------------------------- memory and disk


@dataclass(frozen=True)
class Sizes:
    """Memory of the parts of a training, in bytes. device (str): The device of the params."""

    params: int
    gradients: int
    state: int
    averages: int
    masters: int
    vectors: int
    device: str

    @property
    def total(self) -> int:
        return self.params + self.gradients + self.state + self.averages + self.masters + self.vectors

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint on disk. It has no static vectors."""
        return self.params + self.state + self.averages + self.masters

    @property
    def model(self) -> int:
        """Bytes of a pipeline on disk, without its vocabulary."""
        return self.params + self.vectors


def find_sizes(setup: Setup, rows: Sequence[ParamRow], infos: Mapping[str, ParamInfo], *, is_averaged: bool) -> Sizes:
    trained = [row for row in rows if row.frozen_until is not None]
    with_master = [row for row in trained if infos[row.name].has_master]
    algorithms, sizes = setup.optimizer.algorithms, StateSizes()
    state = sum(
        sizes.bytes_of(
            algorithms[info.algorithm],
            info.options,
            info.shape,
            torch.float32 if info.has_master else getattr(torch, info.dtype),
        )
        for row in trained
        if (info := infos[row.name])
    )
    return Sizes(
        sum(map(_bytes_of, rows)),
        # Those of params with a master are converted for the update.
        sum(map(_bytes_of, trained)) + _FLOAT * sum(row.size for row in with_master),
        state,
        _FLOAT * sum(row.size for row in trained) if is_averaged else 0,
        _FLOAT * sum(row.size for row in with_master),
        int(setup.nlp.vocab.vectors.data.nbytes),
        trained[0].device if trained else "cpu",
    )


def _bytes_of(row: ParamRow) -> int:
    return row.size * getattr(torch, row.dtype).itemsize


def memory_of(device: str) -> int | None:
    """Bytes of memory that a device has. None: unknown."""
    if device.startswith("cuda") and torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


@dataclass(frozen=True)
class Disk:
    """Disk space for checkpoints, in bytes.

    needed (int): For all checkpoints that are kept and the one being written, less the space of existing ones.
    folder (Path): The folder, or its nearest parent that exists.
    """

    needed: int
    free: int
    folder: Path
    is_writable: bool


def look_at_disk(folder: Path, each: int, keep: int) -> Disk:
    there = nearest(folder)
    needed = room_for(folder, each, keep)
    return Disk(needed, shutil.disk_usage(there).free, there, there.is_dir() and os.access(there, os.W_OK))


def lack_of_room(setup: Setup, sizes: Sizes) -> Iterator[str]:
    """Find a lack of memory or disk space."""
    there = memory_of(sizes.device)
    if there is not None and sizes.total > there:
        where = "this machine" if sizes.device == "cpu" else sizes.device
        yield (
            f"Params, gradients and the optimizer's state need {size_in_words(sizes.total)}, and {where} has "
            f"{size_in_words(there)} of memory."
        )
    checkpoint = setup.optimizer.attachments.get("checkpoint")
    if checkpoint is None:
        return
    disk = look_at_disk(Path(checkpoint.path or "."), sizes.checkpoint, checkpoint.keep)
    setting = f"[training.optimizer.checkpoint] path = '{checkpoint.path}'" if checkpoint.path else "--output"
    if not disk.is_writable:
        yield f"Can't write checkpoints: '{disk.folder}' is not a writable folder. It comes from {setting}."
    elif disk.needed > disk.free:
        kept = (
            f"{checkpoint.keep + 1} checkpoints of {size_in_words(sizes.checkpoint)} (keep = {checkpoint.keep}, and "
            "one that is being written)"
        )
        yield (
            f"No room for checkpoints: {kept} need {size_in_words(disk.needed)}, and {size_in_words(disk.free)} are "
            f"free in '{disk.folder}'. It comes from {setting}."
        )


def tell_memory(sizes: Sizes, copied: int) -> str:
    """copied (int): Bytes of main memory that a checkpoint takes while it is written in the background."""
    parts = {
        "params": sizes.params,
        "gradients": sizes.gradients,
        "the optimizer's state": sizes.state,
        "averages": sizes.averages,
        "float32 masters": sizes.masters,
        "static vectors": sizes.vectors,
    }
    listed = ", ".join(f"{name} {size_in_words(size)}" for name, size in parts.items() if size)
    text = f"About {size_in_words(sizes.total)}: {listed}. Each batch needs more on top of that."
    return f"{text} A checkpoint takes {size_in_words(copied)} of main memory while it is written." if copied else text


def tell_work(work: TrainingWork, train: Corpus) -> str:
    each = f"{work.batch_words:,.0f} words each"
    if work.steps is None:
        return f"No limit until something else ends the training, {each}."
    # spaCy trains on a batch at step 0 too: max_steps = 600 are 601 steps.
    text = f"{count(work.steps, 'step')} (0 to {work.steps - 1:,}) of {each}: {work.words:,} words"
    if work.epochs is None:
        return f"{text}, counted in the {train.told}."
    epochs = f"{work.epochs:,.{0 if work.epochs >= 10 else 1}f}"
    return f"{text}, {epochs} epochs of {count(len(train.examples), 'text')} with {train.words:,} words."


# ---------------------------------------------------------------------- time


@dataclass(frozen=True)
class Times:
    """step, evaluation (float): Seconds. words (float): Words a second, without evaluations. peak (int | None): Bytes
    on the GPU.
    """

    step: float
    evaluation: float
    words: float
    peak: int | None


def time_steps(
    setup: Setup, train: Corpus, dev: Corpus | None, products: Products | None, *, mean_words: float
) -> Times:
    """Train for a few steps. This changes the pipeline: don't use it afterwards.

    products (Products | None): What computes matrix products, whatever `ops` in the config is. None: as in thinc.
    mean_words (float): Words of a batch in the whole training. The first batches may be smaller.
    """
    with nullcontext() if products is None else PipelineOps(setup.nlp, products):
        return _time_steps(setup, train, dev, mean_words)


def _time_steps(setup: Setup, train: Corpus, dev: Corpus | None, mean_words: float) -> Times:
    config = setup.config
    left_out = {*WRITES, "ops", "ops_threads"}
    block = {name: value for name, value in config["training"]["optimizer"].items() if name not in left_out}
    examples = [] if dev is None else dev.examples
    total = _UNTIMED + _TIMED
    if on_gpu := torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TorchOptWarning)
        training = begin_training(
            setup.nlp,
            config,
            block,
            max_steps=total - 1,
            eval_frequency=total + 1,
            evaluate=lambda: (0.0, {}),
            corpora=(lambda nlp: iter(train.examples), lambda nlp: iter(examples)),
        )
        words, started, steps = 0, default_timer(), 0
        with closing(training.steps) as batches:  # type: ignore[type-var]
            for i, (batch, _, _) in enumerate(batches):
                if i >= _UNTIMED:
                    words += _words(batch)
                    steps += 1
                if i == _UNTIMED - 1:
                    _wait(on_gpu)
                    started = default_timer()
        _wait(on_gpu)
    seconds = (default_timer() - started) / max(1, steps)
    rate = words / steps / seconds if steps else 0.0
    return Times(
        mean_words / rate if rate else seconds,
        _time_evaluation(setup, examples),
        rate,
        torch.cuda.max_memory_allocated() if on_gpu else None,
    )


def _time_evaluation(setup: Setup, examples: Sequence[Example]) -> float:
    evaluated, words = [], 0
    for example in examples:
        evaluated.append(Example(setup.nlp.make_doc(example.reference.text), example.reference))
        words += len(example.reference)
        if words >= _EVALUATED:
            break
    if not words:
        return 0.0
    started = default_timer()
    setup.nlp.evaluate(evaluated)
    return (default_timer() - started) * _words(examples) / words


def tell_products(
    choice: Choice, thincs: Products, ops: OpsChoice, steps: Sequence[float], *, has_setting: bool
) -> str:
    """Say which library computes products fastest here, and what `ops` has to do with it.

    thincs (Products): Those of thinc. steps (Sequence[float]): Seconds of a step as the config is, and with the choice,
    if that would change something. has_setting (bool): Whether the config's optimizer can be given `ops`.
    """
    stays = choice.gain is None or choice.products == thincs
    text = (
        f"{thincs.kernel} stays: {choice.reason}"
        if stays
        else f"{thincs.kernel}. {choice.products}, is {choice.gain:.1f} times as fast"
    )
    if ops == "fastest":
        return text if stays else f"{text}, and is what the training takes."
    if len(steps) == 1:
        return f'{text}{"" if stays else "."} ops = "fastest" changes nothing here.'
    where = "in [training.optimizer]" if has_setting else "of the optimizers of thinc-torchopt"
    does = "makes parsers and NER do fewer of them" if stays else "takes it"
    before, after = map(time_in_words, steps)
    return (
        f'{text}{"" if stays else ":"} ops = "fastest" {where} {does}. A step then takes {after} in place of {before}.'
    )


def _wait(on_gpu: bool) -> None:
    """Wait until the GPU has finished."""
    if on_gpu:
        torch.cuda.synchronize()


def tell_time(times: Times, work: TrainingWork) -> str:
    each = (
        f"{times.words:,.0f} words a second in {_TIMED} timed steps, {time_in_words(times.step)} a step, "
        f"{time_in_words(times.evaluation)} an evaluation"
    )
    if work.steps is None or work.evaluations is None:
        return f"{each[0].upper()}{each[1:]}."
    total = work.steps * times.step + work.evaluations * times.evaluation
    steps, evaluations = count(work.steps, "step"), count(work.evaluations, "evaluation")
    return (
        f"About {time_in_words(total)} for {steps} and {evaluations}: {each}. Measured with whatever else runs on this "
        "machine now."
    )


# ---------------------------------------------------------------------- the machine


def device_problem(use_gpu: int) -> str | None:
    """Why a device can't be used. None: it can. use_gpu (int): Its id, or -1 for the CPU."""
    if use_gpu < 0:
        return None
    try:
        cli_util().setup_gpu(use_gpu, silent=True)
    except Exception as error:  # CuPy raises its own errors for a missing device
        there = torch.cuda.device_count()
        found = f"{count(there, 'GPU')} here" if there else "no GPU here that torch can use"
        return (
            f"Can't train on the GPU of --gpu-id {use_gpu}: {str(error).strip().rstrip('.')}; {found}. The rest of "
            "this report is for the CPU."
        )
    return None


def doubts_of_device(setup: Setup, use_gpu: int) -> Iterator[str]:
    several = setup.optimizer.attachments.get("distributed")
    if use_gpu < 0 and torch.cuda.is_available():
        yield "The training runs on the CPU, but this machine has a GPU: add --gpu-id 0."
    if use_gpu >= 0 and setup.config["training"]["gpu_allocator"] is None:
        yield (
            "[training] gpu_allocator is not set: torch and CuPy each reserve memory of the GPU, and neither gives it "
            'back to the other. Set gpu_allocator = "pytorch".'
        )
    if several is not None and several.backend == "nccl" and use_gpu < 0:
        yield (
            'backend = "nccl" in [training.optimizer.distributed] is for GPUs, and this training is on the CPU. Set '
            'backend = "gloo", or train with --gpu-id 0.'
        )
    if several is not None and use_gpu >= 0:
        yield f"This machine has {count(torch.cuda.device_count(), 'GPU')}: --nproc-per-node can't be larger than that."
