"""All that a config and a controller's definition can name, and what each needs to be built: for tests that go through
all of it.
"""

from __future__ import annotations

import inspect
from configparser import ConfigParser
from pathlib import Path
from typing import Any, NamedTuple

from spacy.util import registry

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.controller import trainer_controller

from .conftest import HAS_MUON

# A definition whose rule never fires.
QUIET = {
    "controller_metrics": [{"name": "loss", "class": "Loss"}],
    "controllers": [
        {
            "name": "quiet",
            "triggers": ["on_step_end"],
            "rule": "loss['step'] == -2",
            "operations": ["control.should_log"],
        }
    ],
}

SETUP = Path(__file__).resolve().parents[1] / "setup.cfg"
MODULAR = "thinc-torchopt.Modular.v1"
_OURS = "thinc-torchopt.TorchOptimizer.v1"
ADAMW = {"@torch_optimizers": "torch.AdamW.v1"}
_RISE = {"initial_rate": 0.5, "warmup_steps": 10, "total_steps": 60}
# What a budget needs beside it.
FOR_BUDGET = {
    "checkpoint": {"@misc": "thinc-torchopt.Checkpoint.v1", "path": "no-such-folder"},
    "learn_rate": {
        "@schedules": "thinc-torchopt.warmup_stable_decay.v1",
        "initial_rate": 0.01,
        "warmup_steps": 2,
        "decay_steps": 5,
        "decay_begins": "when told",
    },
}
# What an entry needs beside its defaults.
NEEDED: dict[str, dict[str, Any]] = {
    "optimizers TorchOptimizer.v1": {"algorithm": ADAMW},
    "optimizers SGD.v1": {"learn_rate": 0.01},
    "torch_optimizers pytorch-optimizer.create.v1": {"name": "lion"},
    "gradient_modules GaussianNoise.v1": {"safe_mode": False, "seed": 1},
    "gradient_modules TorchOptim.v1": {"optim_cls": "torch.optim.RMSprop"},
    "schedules inverse_sqrt.v1": {"initial_rate": 0.5, "warmup_steps": 10},
    "schedules one_cycle.v1": {"max_rate": 0.5, "total_steps": 60},
    "schedules plateau.v1": {"initial_rate": 0.5, "patience": 1},
    "schedules polynomial.v1": _RISE,
    "schedules sequence.v1": {"parts": {"one": {"schedule": 0.1}}},
    "schedules warmup_cosine.v1": _RISE,
    "schedules warmup_linear.v1": _RISE,
    "schedules warmup_stable_decay.v1": {**_RISE, "decay_steps": 20},
    "loggers JSONLinesLogger.v1": {"path": "log.jsonl"},
    "loggers TensorBoardLogger.v1": {"path": "board"},
    "misc SWA.v1": {"start_step": 2},
    "misc Budget.v1": {"limit": "20m"},
    "misc Checkpoint.v1": {"path": "no-such-folder"},
    "misc Federated.v1": {"local_steps": 5},
    "misc Privacy.v1": {"clip": 1.0, "delta": 1e-5, "noise_multiplier": 1.0},
    "batchers batch_by_padded_pieces.v1": {"size": 2},
    "batchers poisson.v1": {"size": 2},
    "misc TrainerController.v1": {"definition": QUIET},
    "layers OnlineRNN.v1": {"nO": 4, "nI": 3},
    "architectures OnlineRNNEncoder.v1": {"width": 4},
    "readers PythonDocs.v1": {"split": "dev"},
    "readers Texts.v1": {"path": "no-such.jsonl"},
    "readers TaughtCorpus.v1": {
        "corpus": {"@readers": "spacy.Corpus.v1", "path": "no-such.spacy", "gold_preproc": False}
    },
    "controller_operations FreezeControl": {"params": ["tagger/*"]},
    "controller_operations LearnRateControl": {"factor": 0.5, "rate": 0.1},
    "controller_operations LogControl": {"log_format": "{step}"},
}
# torch's classes that can't train a pipeline, and say so whatever the arguments.
_NOT_USABLE = ["torch.LBFGS.v1", "torch.SparseAdam.v1"]
if not HAS_MUON:
    _NOT_USABLE.append("torch.Muon.v1")


class Entry(NamedTuple):
    """Something that is registered.

    where (str): Its registry. name (str): What it is called there.
    """

    where: str
    name: str

    def __str__(self) -> str:
        return f"{self.where} {self.name.removeprefix('thinc-torchopt.')}"

    @property
    def is_of_controller(self) -> bool:
        """Whether a controller's definition names it, and not a config."""
        return self.where.startswith("controller_")

    @property
    def is_of_federation(self) -> bool:
        """Whether it is in [federated], and not in [training.optimizer]."""
        return "Federated" in self.name

    @property
    def needed(self) -> dict[str, Any]:
        return NEEDED.get(str(self), {})

    @property
    def arguments(self) -> list[inspect.Parameter]:
        made = getattr(registry, self.where).get(self.name)
        others = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        found = inspect.signature(made, eval_str=True).parameters.values()
        return [argument for argument in found if argument.kind not in others]

    def build(self, **arguments: Any) -> Any:
        """As a config does; what a definition names, as that does: then it is the settings of a controller."""
        given = {**self.needed, **arguments}
        if not self.is_of_controller:
            return registry.resolve({"block": {f"@{self.where}": self.name, **given}})["block"]
        part = {"name": "it", "class": self.name, "arguments": given}
        loss = {"name": "loss", "class": "Loss"}
        rule = {"name": "rule", "triggers": ["on_step_end", "on_log", "on_evaluate", "on_predict"]}
        if self.where == "controller_metrics":
            value, keys = "it", registry.controller_metrics.get(self.name).keys
            while keys:
                value, keys = f"{value}['{next(iter(keys))}']", next(iter(keys.values()))
            rule["rule"] = f"{value} != 7"
            rules = [{**rule, "operations": ["control.should_save"]}]
            return trainer_controller({"controller_metrics": [part], "controllers": rules})
        cls = registry.controller_operations.get(self.name)
        # Rates can be cut or raised, not both with one factor: tests/addons/controller/test_operations.py.
        actions = [f"it.{name}" for name in dir(cls) if name.startswith("should_") and name != "should_raise"]
        rules = [{**rule, "triggers": ["on_step_end"], "rule": "loss['step'] == 2", "operations": actions}]
        return trainer_controller({"controller_metrics": [loss], "operations": [part], "controllers": rules})

    def call(self, **arguments: Any) -> Any:
        """As Python does, where confection has checked nothing."""
        given = {**registry.resolve({"needed": self.needed})["needed"], **arguments}
        return getattr(registry, self.where).get(self.name)(**given)


def optimizer_block(entry: Entry, **arguments: Any) -> dict[str, Any]:
    """[training.optimizer] of a config, with something in it."""
    block = {f"@{entry.where}": entry.name, **entry.needed, **arguments}
    if entry.where == "optimizers":
        return block
    if entry.where in ("gradient_modules", "regularizers"):
        place = {"gradient_modules": "modules"}.get(entry.where, entry.where)
        block = {"@torch_optimizers": MODULAR, place: {"it": block}}
    if entry.where == "misc":
        beside = FOR_BUDGET if "Budget" in entry.name else {"learn_rate": 0.01}
        return {"@optimizers": _OURS, "algorithm": ADAMW, **beside, _place(entry): block}
    return {"@optimizers": _OURS, "algorithm": block, "learn_rate": 0.01}


def _place(entry: Entry) -> str:
    """What the block of an entry of the registry `misc` is called."""
    name = entry.name.split(".")[1]
    return {"EMA": "averages", "SWA": "averages", "TrainerController": "controller"}.get(name, name.lower())


def optimizer_with(entry: Entry, made: Any) -> Any:
    """The optimizer in which something stands; or the thing itself, where it stands in none."""
    if entry.where == "gradient_modules":
        made = registry.torch_optimizers.get(MODULAR)(modules={"it": made})
    elif entry.where == "regularizers":
        made = registry.torch_optimizers.get(MODULAR)(regularizers={"it": made})
    elif entry.where == "misc" and not entry.is_of_federation:
        adamw = registry.resolve({"algorithm": ADAMW})["algorithm"]
        beside = registry.resolve(FOR_BUDGET) if "Budget" in entry.name else {}
        return TorchOptimizer(adamw, **beside, **{_place(entry): made})
    elif entry.where != "torch_optimizers":
        return made
    return TorchOptimizer(made, 0.01)


def entries() -> list[Entry]:
    """All that setup.cfg registers and a config or a definition can name."""
    setup = ConfigParser(delimiters="=")
    setup.optionxform = str  # type: ignore[assignment,method-assign]
    setup.read(SETUP, encoding="utf8")
    groups = setup["options.entry_points"]
    found = [
        Entry(group.partition("_")[2], line.partition("=")[0].strip())
        for group, lines in groups.items()
        if group != "spacy_cli" and "torchopt" not in group
        for line in lines.strip().splitlines()
        if not line.startswith("torchao.")  # none works without the library: tests/core/algorithms/test_torchao.py
    ]
    for where in ("controller_metrics", "controller_operations"):
        classes = getattr(registry, where).get_all().items()
        found += [Entry(where, name) for name, cls in classes if cls.__module__.startswith("thinc_torchopt.")]
    return [entry for entry in found if entry.name not in _NOT_USABLE]


__all__ = ["ADAMW", "FOR_BUDGET", "MODULAR", "Entry", "entries", "optimizer_block", "optimizer_with"]
