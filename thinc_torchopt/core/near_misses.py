"""Suggestions for unknown names: names with a similar spelling, or our names for those of other libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final, NamedTuple

# A message does not list more names than this.
_MOST_LISTED: Final = 30
# Letters of a text that is compared with names, which are shorter: a text may be as long as a file.
_LONGEST: Final = 200


class Ours(NamedTuple):
    """Our name for something. section (str): Its place. how (str): More, if name and section are not enough."""

    name: str
    section: str
    how: str = ""


_OPTIMIZER = "[training.optimizer]"
_ALGORITHM = "[training.optimizer.algorithm]"
_LEARN_RATE = "[training.optimizer.learn_rate]"
_TRAINING = "[training]"

_WITH_SCHEDULE = ', with @schedules = "thinc-torchopt.warmup_linear.v1"'
_RATE = Ours("learn_rate", _OPTIMIZER)
_BETAS = Ours("betas", _ALGORITHM, ", as in betas = [0.9, 0.999]")
_EPS = Ours("eps", _ALGORITHM)
_DECAY = Ours("weight_decay", _ALGORITHM)
_CLIP = Ours("grad_clip", _OPTIMIZER)
_WARMUP = Ours("warmup_steps", _LEARN_RATE, _WITH_SCHEDULE)
_WARMUP_RATIO = Ours("warmup_ratio", _LEARN_RATE, _WITH_SCHEDULE)
_SCHEDULE = Ours("@schedules", _LEARN_RATE, ', as in @schedules = "thinc-torchopt.warmup_linear.v1"')
_KIND = Ours("@torch_optimizers", _ALGORITHM, ', as in @torch_optimizers = "torch.AdamW.v1"')
_AVERAGES = Ours("averages", _OPTIMIZER, ', a block with @misc = "thinc-torchopt.EMA.v1"')
_EPOCHS = Ours("max_epochs", _TRAINING)
_STEPS = Ours("max_steps", _TRAINING)
_ACCUMULATE = Ours("accumulate_gradient", _TRAINING)
_SIZE = Ours("size", "[training.batcher]")
_CHECKPOINT = Ours("checkpoint", _OPTIMIZER, ', a block with @misc = "thinc-torchopt.Checkpoint.v1"')

# Names in thinc, torch, Hugging Face's Trainer and PyTorch Lightning, and our names for the same.
OF_OTHERS: Final[dict[str, Ours]] = {
    "lr": _RATE,
    "learning_rate": _RATE,
    "initial_lr": _RATE,
    "base_lr": _RATE,
    "L2": _DECAY,
    "l2": _DECAY,
    "L2_is_weight_decay": _DECAY,
    "l2_is_weight_decay": _DECAY,
    "weight_decay": _DECAY,
    "decay": _DECAY,
    "beta1": _BETAS,
    "beta2": _BETAS,
    "adam_beta1": _BETAS,
    "adam_beta2": _BETAS,
    "betas": _BETAS,
    "eps": _EPS,
    "epsilon": _EPS,
    "adam_epsilon": _EPS,
    "momentum": Ours("momentum", _ALGORITHM, ', with @torch_optimizers = "torch.SGD.v1"'),
    "nesterov": Ours("nesterov", _ALGORITHM, ', with @torch_optimizers = "torch.SGD.v1"'),
    "amsgrad": Ours("amsgrad", _ALGORITHM),
    "fused": Ours("fused", _ALGORITHM),
    "max_grad_norm": _CLIP,
    "grad_norm": _CLIP,
    "max_norm": _CLIP,
    "clip_grad_norm": _CLIP,
    "gradient_clip_val": _CLIP,
    "gradient_clip_algorithm": Ours("clip_by", _OPTIMIZER),
    "warmup": _WARMUP,
    "warmup_steps": _WARMUP,
    "num_warmup_steps": _WARMUP,
    "warmup_ratio": _WARMUP_RATIO,
    "lr_scheduler": _SCHEDULE,
    "lr_scheduler_type": _SCHEDULE,
    "scheduler": _SCHEDULE,
    "schedule": _SCHEDULE,
    "optim": _KIND,
    "optimizer": _KIND,
    "ema": _AVERAGES,
    "ema_decay": _AVERAGES,
    "use_ema": _AVERAGES,
    "num_train_epochs": _EPOCHS,
    "num_epochs": _EPOCHS,
    "n_epochs": _EPOCHS,
    "epochs": _EPOCHS,
    "max_epochs": _EPOCHS,
    "num_training_steps": _STEPS,
    "num_steps": _STEPS,
    "max_steps": _STEPS,
    "total_steps": _STEPS,
    "gradient_accumulation_steps": _ACCUMULATE,
    "accumulate_grad_batches": _ACCUMULATE,
    "accumulate_gradient": _ACCUMULATE,
    "batch_size": _SIZE,
    "train_batch_size": _SIZE,
    "per_device_train_batch_size": _SIZE,
    "eval_steps": Ours("eval_frequency", _TRAINING),
    "early_stopping_patience": Ours("patience", _TRAINING),
    "save_steps": _CHECKPOINT,
    "resume_from_checkpoint": _CHECKPOINT,
}


def did_you_mean(found: object, known: Iterable[object] = (), *, is_setting: bool = False) -> str:
    """The end of a message about an unknown name: " Did you mean 'learn_rate'?" Empty: no name is similar.

    known (Iterable[object]): The valid names.
    is_setting (bool): The name is a setting: names of other libraries are answered by ours, with the section if ours is
        not among `known`.
    """
    names = [str(name) for name in known]
    ours = OF_OTHERS.get(str(found)) if is_setting else None
    if ours is not None and ours.name in names:
        return _question([ours.name])
    near = near_misses(found, names)
    if ours is not None and (not near or ours.name == str(found)):
        return f" Did you mean '{ours.name}' in {ours.section}{ours.how}?"
    return _question(near)


# Options of other programs, and spaCy's.
_OPTIONS: Final = {
    "gpu": "--gpu-id",
    "use_gpu": "--gpu-id",
    "device": "--gpu-id",
    "train": "--paths.train",
    "train_path": "--paths.train",
    "train_data": "--paths.train",
    "dev": "--paths.dev",
    "dev_path": "--paths.dev",
    "dev_data": "--paths.dev",
    "valid": "--paths.dev",
    "output_dir": "--output",
    "out": "--output",
    "n_iter": "--training.max_epochs",
    "lang": "--nlp.lang",
    "pipeline": "--nlp.pipeline",
    "vectors": "--paths.vectors",
    "seed": "--training.seed",
    "dropout": "--training.dropout",
    "patience": "--training.patience",
    "eval_frequency": "--training.eval_frequency",
    "frozen_components": "--training.frozen_components",
    "learn_rate": "--training.optimizer.learn_rate",
    "grad_clip": "--training.optimizer.grad_clip",
}


def option_meant(found: str, options: Iterable[str]) -> str:
    """The end of a message about an unknown option: " Did you mean '--training.max_steps'?" Empty: none is similar.

    options (Iterable[str]): The options of the command. If it takes none with a dot, settings are no options of it.
    """
    names = [*options]
    key = found.lstrip("-").replace("-", "_")
    if (option := _OPTIONS.get(key)) is not None:
        return _question([option])
    ours = OF_OTHERS.get(key)
    near = near_misses(found, names)
    if ours is not None and not ours.how:
        return _question([f"--{ours.section.strip('[]')}.{ours.name}"])
    if ours is not None:
        return f" Did you mean '{ours.name}' in {ours.section}{ours.how}?"
    return _question(near) or _question(near_misses(found, [*_OPTIONS.values(), *_of_training()]))


def _of_training() -> list[str]:
    """Overrides of settings that have these names in other programs, too."""
    return [f"--{ours.section.strip('[]')}.{ours.name}" for ours in OF_OTHERS.values() if not ours.how]


def near_misses(found: object, known: Iterable[object], *, cutoff: float = 0.6) -> list[str]:
    """The names that are most similar to another one, by difflib, without upper case; or those whose short names are:
    without the version at the end of a registered name, and everything before its last dot.

    cutoff (float): The required similarity, from 0 to 1.
    """
    text, names = str(found)[:_LONGEST], list(map(str, known))
    for form in (str.lower, _stem):
        forms = {form(name): name for name in names}
        if near := get_close_matches(form(text), forms, cutoff=cutoff):
            return [forms[one] for one in near]
    return []


def _stem(name: str) -> str:
    """The short name of a registered one: "adamw" of "torch.AdamW.v1"."""
    return re.sub(r"\.v\d+$", "", name).rpartition(".")[2].lower()


def _question(names: list[str]) -> str:
    """names (list[str]): The most similar one first."""
    return f" Did you mean '{names[0]}'?" if names else ""


def there_are(known: Iterable[str]) -> str:
    """The known names, as the end of a message, unless there are too many."""
    names = sorted(known)
    return f" There are: {', '.join(names)}." if 0 < len(names) <= _MOST_LISTED else ""
