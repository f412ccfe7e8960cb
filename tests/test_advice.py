"""Advice leads somewhere: each name in an error, a warning or a help text exists.

Names are what stands there as code: calls and dotted names, commands, options, sections, settings with a value,
and registered names. No file of the repository is among them: who installed the wheel has none.
"""

import ast
import builtins
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy
import pytest
import spacy
import thinc.model
import torch
import typer.main
from spacy.cli._util import app
from spacy.schemas import ConfigSchema, ConfigSchemaNlp, ConfigSchemaPretrain, ConfigSchemaTraining
from spacy.util import registry

import thinc_torchopt.cli  # noqa: F401  # adds the commands
from thinc_torchopt import Checkpoints, LearnRateController, TorchOptimizer
from thinc_torchopt.addons.controller.definition import ControllerSpec
from thinc_torchopt.addons.controller.evaluator import FUNCTIONS
from thinc_torchopt.addons.controller.operations import HFControls
from thinc_torchopt.addons.modular.optimizer import Modular
from thinc_torchopt.core.config_checks import REGISTRIES
from thinc_torchopt.core.registry import names_in
from thinc_torchopt.core.settings.blocks import _NOT_OPTIONS
from thinc_torchopt.torch_optimizers import AdamW

from .conftest import ROOT
from .registered import entries

PACKAGE = ROOT / "thinc_torchopt"
# What the first word of a name stands for.
STAND_FOR: dict[str, tuple[Any, ...]] = {
    "optimizer": (TorchOptimizer(AdamW()), Modular([torch.nn.Parameter(torch.ones(1))], 0.1)),
    "controller": (LearnRateController(),),
    "checkpoints": (Checkpoints,),
    "control": (HFControls(),),
    "nlp": (spacy.blank("xx"),),
    "model": (thinc.model.Model, torch.nn.Module),
    "module": (torch.nn.Module,),
    "param": (torch.Tensor,),
    "array": (numpy.ndarray,),
    "doc": (spacy.tokens.Doc,),
    "original": (TorchOptimizer(AdamW()),),
    "shim": (thinc.shims.Shim(None),),
    "Shim": (thinc.shims.Shim,),
    "Example": (spacy.training.Example,),
}
# The classes whose methods are named without an object.
OWNERS = [one for ones in STAND_FOR.values() for one in ones] + [builtins, torch, FUNCTIONS, spacy.pipeline.Tagger]
MODULES = {"torch", "numpy", "thinc", "spacy", "functools", "pydoc_data", "thinc_torchopt"}
# Packages that may be absent, and names that stand for a user's own.
NOT_HERE = {"torchao.optim", "pytorch_optimizer.get_supported_optimizers", "operation.action", "stop.max_firings"}
NOT_HERE |= {"NAME.KEY", "e.g", "i.e", "rgba", "huggingface.co"}
# Options of torchrun and Flower.
OPTIONS_OF_OTHERS = {"--nnodes", "--nproc-per-node", "--node-rank", "--rdzv-endpoint", "--max-restarts"}
OPTIONS_OF_OTHERS |= {"--node-config", "--run-config"}


@cache
def package() -> tuple[list[tuple[str, str]], set[str]]:
    """The strings of the package with a space in them, with file and line; and the public names of its functions,
    methods and classes.
    """
    found, defined = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf8")))]
        found += [(f"{path.relative_to(ROOT)}:{line}", text) for line, text in texts(nodes) if " " in text]
        defined |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    return found, {name for name in defined if not name.startswith("_")}


def texts(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """The strings of a file that are no docstrings, an f-string's in one; each with its line."""
    left_out: set[ast.AST] = set()
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            left_out.add(body[0].value)
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            yield node.lineno, node.value


def resolves(owner: Any, path: list[str]) -> bool:
    for part in path:
        if isinstance(owner, dict) and part in owner:
            return True
        if not hasattr(owner, part) and part not in getattr(owner, "__slots__", ()):
            return False
        owner = getattr(owner, part)
    return True


def is_importable(path: list[str]) -> bool:
    for end in range(len(path), 0, -1):
        try:
            owner = importlib.import_module(".".join(path[:end]))
        except ImportError:
            continue
        return resolves(owner, path[end:])
    return False


def is_name(name: str) -> bool:
    """A function, method or attribute, as users can write it."""
    head, *rest = path = name.split(".")
    if re.search(r"\.v\d$", name):
        return name in registered()
    if name in NOT_HERE or path[-1] in ("py", "html", "jsonl", "json", "yaml", "cfg", "spacy", "txt"):
        return True
    if not rest:
        return any(resolves(owner, path) for owner in OWNERS) or head in package()[1]
    if head in STAND_FOR:
        return any(resolves(owner, rest) for owner in STAND_FOR[head])
    if head in MODULES:
        return is_importable(path)
    return False


@cache
def commands() -> dict[str, set[str]]:
    """The options of each command of spaCy and ours."""
    found: dict[str, set[str]] = {}

    def add(listed: Any, path: str) -> None:
        command = listed.make_context(path, [], resilient_parsing=True).command
        found[path] = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        for name, inner in getattr(command, "commands", {}).items():
            add(inner, f"{path} {name}")

    add(typer.main.get_command(app), "spacy")
    return found


def is_option(name: str) -> bool:
    path = name.removeprefix("--").split(".")
    known = set().union(*commands().values()) | OPTIONS_OF_OTHERS
    return name in known or (len(path) > 1 and is_section(path[:-1]) and (path[0] == "paths" or is_setting(path[-1])))


@cache
def settings_known() -> set[str]:
    """The names of all settings of configs and definitions, as `name = value`."""
    schemas = (ConfigSchema, ConfigSchemaTraining, ConfigSchemaNlp, ConfigSchemaPretrain)
    found = {name for schema in schemas for name in schema.model_fields}
    found |= {argument.name for entry in entries() for argument in entry.arguments}
    found |= {name for block in ("system", "paths", "training") for name in spacy.blank("xx").config[block]}
    functions = {"batchers": "spacy.batch_by_words.v1", "layers": "PyTorchWrapper.v2", "readers": "spacy.Corpus.v1"}
    for function in (registry.get(kind, name) for kind, name in functions.items()):
        found |= set(inspect.signature(function).parameters)
    for factory in ("parser", "entity_linker"):
        found |= {*spacy.blank("xx").get_factory_meta(factory).default_config}
    return found | {*ControllerSpec.__dataclass_fields__, *_NOT_OPTIONS, "patience_threshold", "requires_grad"}


def is_setting(name: str) -> bool:
    return name in settings_known()


def is_section(path: list[str]) -> bool:
    """A section of a config, down to a setting that is a block; below that, anything."""
    if path[0] in ("training", "pretraining") and len(path) > 1:
        known = {*ConfigSchemaTraining.model_fields, *ConfigSchemaPretrain.model_fields, "score_weights"}
        of_optimizer = {
            a.name for entry in entries() if str(entry) == "optimizers TorchOptimizer.v1" for a in entry.arguments
        }
        return path[1] in known and (path[1] != "optimizer" or len(path) < 3 or path[2] in of_optimizer)
    return path[0] in {*ConfigSchema.model_fields, "paths", "system", "federated"}


@cache
def registered() -> set[str]:
    kinds = (
        *REGISTRIES,
        *("optimizers", "schedules", "misc", "loggers", "architectures", "layers", "batchers", "readers", "callbacks"),
    )
    return {name for kind in kinds if hasattr(registry, kind) for name in names_in(getattr(registry, kind))}


KINDS = {
    "call": (r"(?<![\w.\[/'-])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)\((?!s\))", is_name),
    "name": (
        r"(?<![\w./\[@-])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?![\w(]|\.\w|-)",
        lambda name: is_name(name) or is_section(name.split(".")[:-1]),
    ),
    "command": (r"\b(spacy (?!or )(?:torchopt )?[a-z]+(?:-[a-z]+)*)(?= |:|,|\.|\)|$)", lambda name: name in commands()),
    "option": (r"(?<![\w-])(--[a-z][a-z-]*(?:\.\w+)*)", is_option),
    "section": (
        r"\[((?:training|nlp|initialize|pretraining|federated)(?:\.\w+)*)\]",
        lambda n: is_section(n.split(".")),
    ),
    "setting": (r"(?<![\w.@'\[-])([a-z]\w*) = (?=[\"\d\[]|true|false|null)", is_setting),
    "registered": (r"(?<![\w@])((?:thinc-torchopt|torch)\.\w+\.v\d)", lambda name: name in registered()),
    "file": (r"((?:docs|examples|benchmarks|configs)/[\w./-]+\.(?:md|py|cfg))", lambda name: False),
}


def findings(kind: str) -> list[str]:
    pattern, exists = KINDS[kind]
    return [f"{at}: {name}" for at, text in package()[0] for name in re.findall(pattern, text) if not exists(name)]


@pytest.mark.parametrize("kind", KINDS)
def test_advice_names_what_there_is(kind):
    assert findings(kind) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("call", "in Python the result of checkpoint.Checkpoint()"),
        ("call", "Call optimizer.stepp() first."),
        ("name", "Read optimizer.momentums, or training.optimzer.learn_rate."),
        ("command", "List them: spacy torchopt parms."),
        ("option", "Train without marks (--anytime)."),
        ("option", "pass --training.optimizer.learn_rat 0.1"),
        ("section", "Add a block [training.optimizer.checkpont]."),
        ("setting", "Set max_step = 100."),
        ("registered", "Set learn_rate to thinc-torchopt.warmup_linear.v9."),
        ("file", "See docs/optimizers.md."),
    ],
)
def test_advice_that_leads_nowhere_is_found(kind, text):
    pattern, exists = KINDS[kind]
    found = re.findall(pattern, text)
    assert found and not any(map(exists, found))
    assert kind == "file" or len({name for _, text in package()[0] for name in re.findall(pattern, text)}) > 5
