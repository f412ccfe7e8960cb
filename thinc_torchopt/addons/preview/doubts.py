"""Find possible mistakes in the settings of a training: its end, learning rates, device, disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ...core.algorithms import FAR, usual_rates
from ...core.host import cli_util
from ...core.params import trainable_components
from ...core.words import count, plain, size_in_words
from ...loop.schedule_check import Rates, Trained
from ...loop.setup import Setup
from .costs import Sizes, look_at_disk, memory_of

# The largest part of a training after its last evaluation that is not worth a note.
_UNSCORED = 0.1


def why_nothing_is_trained(setup: Setup, trained: Sequence[Trained], rates: Rates) -> str | None:
    """RETURNS (str | None): None: something is trained."""
    if trained:
        return None
    if not trainable_components(setup.nlp, setup.frozen):
        names = [name for name in setup.nlp.pipe_names if name in setup.frozen]
        why = (
            f"[training] frozen_components lists every component that could be trained: {', '.join(names)}"
            if names
            else "no component of the pipeline can be trained"
        )
    elif any(any(values) for values in rates.values()):
        why = "all params are frozen by [training.optimizer] until after the last step"
    else:
        why = "each learning rate in [training.optimizer] is 0 at all steps"
    return f"Nothing would be trained: {why}."


# ---------------------------------------------------------------------- the end


def doubts_of_end(training: Mapping[str, Any], last: int, *, has_end: bool, has_budget: bool) -> Iterator[str]:
    """Find mistakes in the end of the training and in its evaluations."""
    patience, every = training["patience"], training["eval_frequency"]
    if not has_end and not patience and not has_budget:
        yield (
            "Nothing ends this training: max_steps, max_epochs and patience set no limit. Set max_steps in [training]."
        )
    if 0 < patience < every and (not has_end or patience <= last):
        yield (
            f"The training ends at step {patience:,}, whatever the score does: patience = {patience:,} is over before "
            f"the second evaluation, at step {every:,} (eval_frequency). Both count steps: set patience to several "
            "times eval_frequency."
        )
    elif has_end and every > last:
        yield (
            f"The only evaluation is at step 0, before anything is learned: eval_frequency = {every:,} is more than "
            f"the {count(last, 'step')} that follow. model-best is then the model of step 0."
        )
    elif has_end and last % every > _UNSCORED * last:
        skipped = last % every
        yield (
            f"{count(skipped, 'step')} at the end {'is' if skipped == 1 else 'are'} not scored, as eval_frequency = "
            f"{every:,} does not divide the last step, {last:,}: model-best is at best the model of step "
            f"{last - skipped:,}."
        )


# ---------------------------------------------------------------------- rates


def doubts_of_rates(setup: Setup, trained: Sequence[Trained]) -> Iterator[str]:
    """Find rates far above the usual ones for their algorithm, or far below where it finds its rate, with advice."""
    for text in rates_far_above(setup, trained):
        yield f"{text} At such rates the loss mostly grows. To find a better one: spacy torchopt find-lr."
    too_small: dict[str, float] = {}
    for group in trained:
        label = group.infos[0].algorithm
        usual = usual_rates(label)
        if usual is not None and usual.is_factor and 0 < group.peak < usual.lowest / FAR:
            too_small[label] = max(group.peak, too_small.get(label, 0.0))
    for label, peak in too_small.items():
        yield (
            f"The learning rate goes up to {plain(peak)}, but {label} finds its rate itself, and multiplies it by "
            f"learn_rate: here, by {plain(peak)}. Set learn_rate = 1.0 in [training.optimizer]."
        )


def rates_far_above(setup: Setup, trained: Sequence[Trained]) -> Iterator[str]:
    """Find rates far above the usual ones for their algorithm."""
    nlp = setup.nlp
    encoders = [name for name in nlp.pipe_names if nlp.get_pipe_meta(name).factory.endswith("transformer")]
    found: dict[tuple[str, str], tuple[float, list[str]]] = {}
    for group in trained:
        of_encoder = [info for info in group.infos if info.name.partition("/")[0] in encoders]
        label = group.infos[0].algorithm
        usual = usual_rates(label, pretrained=bool(of_encoder))
        if usual is not None and group.peak > FAR * usual.highest:
            what = f"a trained transformer with {label}" if of_encoder else label
            text = f"{what}, {plain(usual.lowest)} to {plain(usual.highest)} ({usual.source})"
            peak, groups = found.get((label, text), (0.0, []))
            found[label, text] = max(peak, group.peak), [*groups, group.group]
    for (_, text), (peak, groups) in found.items():
        of = "" if len(groups) == len(trained) else f" of {', '.join(groups)}"
        yield f"The learning rate{of} goes up to {plain(peak)}, far above what is usual for {text}."


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
    disk = look_at_disk(Path(checkpoint.path), sizes.checkpoint, checkpoint.keep)
    setting = f"[training.optimizer.checkpoint] path = '{checkpoint.path}'"
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
