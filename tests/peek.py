"""The one place that looks inside an optimizer, for what nothing public tells."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spacy.language import Language
from thinc.api import Optimizer

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.averages.averages import Averages
from thinc_torchopt.core.averages.settings import AverageSettings
from thinc_torchopt.core.params.param import Param
from thinc_torchopt.core.schedules import current
from thinc_torchopt.core.schedules.schedules import Schedules
from thinc_torchopt.core.update.guard import GradGuard
from thinc_torchopt.core.update.plan import GroupPlan
from thinc_torchopt.loop import log_numbers


def averages_in(optimizer: TorchOptimizer) -> Averages:
    """The averages, which can be saved by themselves; `state_dict()["averages"]` needs a pipeline."""
    averages = optimizer._trained.averages
    assert averages is not None
    return averages


def average_settings_in(optimizer: TorchOptimizer) -> AverageSettings:
    """What the block `averages` came to."""
    settings = optimizer._average_settings
    assert settings is not None
    return settings


def groups_in(optimizer: TorchOptimizer) -> GroupPlan:
    """The param groups, to which params can be added by hand."""
    return optimizer._trained.plan


def option_of(optimizer: TorchOptimizer, name: str) -> Any:
    """An option of the algorithm at this step, also before there are params."""
    return current(optimizer._cascade.candidates[0].options[name])


def as_thincs(optimizer: Optimizer) -> tuple[float, ...]:
    """Rate, betas, eps and decay of an Adam at this step: ours, or thinc's."""
    if not isinstance(optimizer, TorchOptimizer):
        return optimizer.learn_rate, optimizer.b1, optimizer.b2, optimizer.eps, optimizer.L2
    eps = current(optimizer._cascade.candidates[0].options.get("eps", 0.0))
    return optimizer.learn_rate, optimizer.b1, optimizer.b2, eps, decay_of(optimizer)


def decay_of(optimizer: TorchOptimizer) -> float:
    """Its weight decay, or 0, by thinc's name or torch's."""
    options = optimizer._cascade.candidates[0].options
    return float(current(options.get("L2", options.get("weight_decay", 0.0))))


@contextmanager
def without_params(optimizer: TorchOptimizer) -> Iterator[None]:
    """Inside, it has no params; afterwards it has them again."""
    by_key, plan = optimizer._trained.table.by_key, optimizer._trained.plan
    params = dict(by_key)
    by_key.clear()
    plan.sync()
    yield
    by_key.update(params)
    plan.sync(params.values())


def add_params(optimizer: TorchOptimizer, params: list[Param]) -> None:
    """Add params by hand, of a pipeline of which these are all."""
    plan = optimizer._trained.plan
    plan.see_names([param.name for param in params])
    optimizer._trained.table.by_key.update({param.key: param for param in params})
    plan.sync(params)


def guard_in(optimizer: TorchOptimizer) -> GradGuard:
    """The guard, with its settings; `state_dict()["guard"]` needs a pipeline."""
    return optimizer._step.guard


def params_in(optimizer: TorchOptimizer) -> list[Param]:
    """The params as the optimizer keeps them, frozen ones too."""
    return list(optimizer._trained.params)


def schedules_in(optimizer: TorchOptimizer) -> Schedules:
    """All schedules, which can be saved by themselves."""
    return optimizer._settings


def take_average_settings(optimizer: TorchOptimizer, other: TorchOptimizer) -> None:
    """Give an optimizer the settings of averages of another one, which may be schedules, and those schedules."""
    averages_in(optimizer).settings = average_settings_in(other)
    optimizer._settings = other._settings


def tell_latest(nlp: Language, info: dict[str, Any]) -> None:
    """Say what the training loop says to loggers after each step."""
    log_numbers._latest[nlp] = info


def forget_latest(nlp: Language) -> None:
    """The training is over."""
    del log_numbers._latest[nlp]
