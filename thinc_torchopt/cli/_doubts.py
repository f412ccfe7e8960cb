"""Find possible mistakes in the settings of a training: schedules, its end, learning rates, device, disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core.algorithms import FAR, usual_rates
from ..core.host import cli_util
from ..core.params import trainable_components
from ..core.types import ParamInfo
from ._costs import Sizes, look_at_disk, memory_of
from ._lines import Rates
from ._setup import Setup
from ._terminal import count, plain, size_in_words

_THINCS_WARMUP = "warmup_linear.v1"
# Worth a note: a larger share of steps without a learning rate; a last rate above this part of the highest.
_MANY_STEPS, _LARGE_RATE = 0.02, 0.2
# A schedule longer than this many times the training does not end with it.
_LONGER = 1.1
# The largest part of a training after its last evaluation that is not worth a note.
_UNSCORED = 0.1


class Trained:
    """The rates of a param group, from the first step that trains it.

    infos (list[ParamInfo]): Its params. begin (int): That step. rates (Sequence[float]): From there to the last step.
    """

    def __init__(self, group: str, infos: list[ParamInfo], rates: Rates):
        first = min(info.frozen_until for info in infos)
        self.group = group
        self.infos = infos
        self.begin = int(min(first, len(rates[group])))
        self.rates = rates[group][self.begin :]

    @property
    def peak(self) -> float:
        return max(self.rates, default=0.0)


def trained_groups(now: Mapping[str, ParamInfo], rates: Rates) -> list[Trained]:
    """The groups that have a learning rate above 0 at some step."""
    groups: dict[str, list[ParamInfo]] = {}
    for info in now.values():
        groups.setdefault(info.group, []).append(info)
    found = [Trained(group, infos, rates) for group, infos in groups.items()]
    return [group for group in found if group.peak > 0.0]


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


# ---------------------------------------------------------------------- schedules


def doubts_of_schedules(setup: Setup, trained: Sequence[Trained], last: int, *, has_end: bool) -> Iterator[str]:
    """Find schedules that end too early or too late. last (int): The last step. has_end (bool): Whether the training
    has an end.
    """
    training, optimizer = setup.config["training"], setup.optimizer
    found = dict(_blocks_with_schedules(training["optimizer"], ""))
    is_thincs = False
    for path, block in found.items():
        if block["@schedules"] == _THINCS_WARMUP and not block.get("total_steps"):
            is_thincs = True
            yield (
                f"{path} is thinc's {_THINCS_WARMUP} with total_steps = 0: it falls to 0 when its warm-up is over, and "
                "from there on nothing is learned. Set total_steps = ${training.max_steps}; or use "
                "thinc-torchopt.warmup_linear.v1 without total_steps."
            )
    if has_end:
        if not is_thincs:
            yield from _too_short(trained, found, last)
        yield from _too_long(trained, found, last)
    ends = (training["max_steps"], training["max_steps"] + 1) if training["max_steps"] else ()
    to_the_end = [path for path, block in found.items() if block.get("total_steps") in ends]
    to_the_end += [path for path, source in optimizer.schedules.items() if getattr(source, "spans_training", False)]
    # The first score is that of step 0.
    if to_the_end and 0 < training["patience"] < last:
        yield (
            f"{', '.join(to_the_end)} falls until step {last:,}, but patience = {training['patience']:,} "
            "may end the training long before: then the small rates at the end, which help most, never come. Set "
            "patience = 0, and max_steps to the number of steps that you want."
        )
    falls = {path: getattr(source, "cooldown", None) for path, source in optimizer.schedules.items()}
    at_will = [path for path, cooldown in falls.items() if cooldown is not None and cooldown.only_at_will]
    if at_will and "budget" not in optimizer.attachments:
        yield (
            f"{', '.join(at_will)} falls only on demand: by optimizer.begin_decay(), or by the signal SIGUSR1 (kill "
            "-USR1 with the id of the process). When it has fallen, the training ends."
        )


def _too_short(trained: Sequence[Trained], found: Mapping[str, Mapping[str, Any]], last: int) -> Iterator[str]:
    """Find rates that are 0 long before the training ends."""
    by_end: dict[int, list[str]] = {}
    for group in trained:
        end = group.begin + max(i for i, rate in enumerate(group.rates) if rate) + 1
        if last - end > _MANY_STEPS * last:
            by_end.setdefault(end, []).append(group.group)
    for end, groups in by_end.items():
        causes = [
            f"total_steps = {steps:,} in {path}"
            for path, block in found.items()
            if isinstance(steps := block.get("total_steps"), int) and steps and abs(steps - end) <= 1
        ]
        of = "" if len(groups) == len(trained) else f" of {', '.join(groups)}"
        yield (
            f"The learning rate{of} is 0 from step {end:,} on, and the training ends at step {last:,}: its last "
            f"{last - end:,} steps learn nothing{f' ({causes[0]})' if causes else ''}. Let both end at the same step."
        )


def _too_long(trained: Sequence[Trained], found: Mapping[str, Mapping[str, Any]], last: int) -> Iterator[str]:
    """Find rates that are still high, or still rise, when the training ends."""
    far = [
        (path, steps)
        for path, block in found.items()
        if isinstance(steps := block.get("total_steps"), int)
        if steps > _LONGER * (last + 1) and ("learn_rate" in path or "per_param_lr" in path)
    ]
    rising = [group for group in trained if len(group.rates) > 2 and group.rates[-1] > group.rates[-2] * (1 + 1e-9)]
    if any(group.rates[-1] == group.peak for group in rising):
        yield (
            f"The learning rate still rises at step {last:,}, the last one: the warm-up is longer than the training, "
            f"which never has its highest rate{_told(far)}. Shorten it."
        )
    elif far and any(group.rates[-1] > _LARGE_RATE * group.peak for group in trained):
        highest = max(group.rates[-1] / group.peak for group in trained)
        yield (
            f"The learning rate is still at {plain(highest)} of its highest when the training ends at step "
            f"{last:,}{_told(far)}: the small rates at the end, which help most, never come. Let both end at the same "
            "step: total_steps = ${training.max_steps}."
        )


def _told(far: Sequence[tuple[str, int]]) -> str:
    return f" ({', '.join(f'total_steps = {steps:,} in {path}' for path, steps in far)})" if far else ""


def _blocks_with_schedules(block: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All blocks with a schedule, by their paths."""
    if "@schedules" in block:
        yield path, block
    for name, value in block.items():
        if isinstance(value, Mapping):
            yield from _blocks_with_schedules(value, f"{path}.{name}" if path else name)


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
    """Find rates far above the usual ones for their algorithm, with advice."""
    for text in rates_far_above(setup, trained):
        yield f"{text} At such rates the loss mostly grows. To find a better one: spacy torchopt find-lr."


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
