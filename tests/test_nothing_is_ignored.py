"""No setting is ignored in silence: each argument of all that a config or a controller's definition can name.

(a) A value that can't work is an error of ours, or of confection's validation, that names the argument. Those of a
    definition: tests/addons/controller/test_definition.py.
(b) A value that works shows: in a schedule's values, in the weights and state after some steps, or in what the
    optimizer, its blocks and `spacy torchopt explain` tell.

Arguments and their types are read off the signatures. What is not so stands in a list here, with its reason, and each
list holds nothing that is not needed.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import logging
import math
import os
import typing
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy
import pytest
import spacy
import torch
from confection import ConfigValidationError
from spacy.util import registry
from thinc.api import fix_random_seed

from thinc_torchopt.addons.controller import trainer_controller
from thinc_torchopt.addons.controller.operations import RunHandle
from thinc_torchopt.addons.preview.lines import lines_of, table_of
from thinc_torchopt.addons.preview.params import describe, rows_of
from thinc_torchopt.core.attachments import Attachment
from thinc_torchopt.core.errors import TorchOptError
from thinc_torchopt.loop.events import Control
from thinc_torchopt.loop.schedule_check import rates_over_steps
from thinc_torchopt.loop.setup import Setup

from .addons.loggers.test_loggers import Terminal, info_of
from .conftest import needs_muon
from .peek import forget_latest, tell_latest
from .registered import FOR_BUDGET, QUIET, entries, optimizer_block, optimizer_with
from .test_every_optimizer import Run, Weights, tagger

NAN = math.nan
# ---------------------------------------------------------------------- (a) values that can't work

NUMBERS = [NAN, math.inf, -math.inf, -2.5, "fast", "", True, [], ["x"], {"no such": 1}]
WHOLE = [NAN, 1.5, -3, "many", "", True, [], {"no such": 1}]
FLAGS = [NAN, 2, "maybe", "", [], {"no such": 1}]
TEXTS = ["", 3, [], {"no such": 1}]
CHOICES = ["no such choice", "", 3, True, [], {"no such": 1}]
LISTS = [3, "x", [3], [""], {"no such": 1}]
SECTIONS = [3, "x", ["x"], {"no such": {"no such": 1}}, {"no such": 3}, {"": {}}, {3: {}}]
OBJECTS = [NAN, 3, "", "no such thing", [], {"no such": 1}]


def wrong_values(annotation):
    """What can't be a value of this type."""
    text = str(annotation)
    if annotation is bool or annotation == typing.Optional[bool]:
        return FLAGS
    if annotation is int or annotation in (typing.Optional[int], int | None):
        return WHOLE
    if "Literal" in text:
        return CHOICES
    if "Dict" in text or "dict[" in text:
        return SECTIONS
    if annotation in (list[str], typing.List[str], typing.Optional[typing.List[str]], list[str] | None):
        return LISTS
    if "float" in text:
        return NUMBERS
    return TEXTS if "str" in text else OBJECTS


ARGUMENTS = {f"{entry} {argument.name}": (entry, argument) for entry in entries() for argument in entry.arguments}

# Values of the lists above that work, by their repr, and why.
WORK = {
    "torch_optimizers torch.Adafactor.v1 beta2_decay": (["-2.5"], "torch wants one of at most 0"),
    "torch_optimizers torch.SGD.v1 dampening": (["-2.5"], "it makes steps larger instead of smaller"),
    "misc FineTuning.v1 gradient_checkpointing": (["3"], "a number of layers; a pipeline has too few, or enough"),
}


TAGGER = cache(tagger)


@contextmanager
def chdir(folder):
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def refused(entry, argument, value, *, by_config):
    """Whether a value is an error that names the argument."""
    try:
        made = (entry.build if by_config else entry.call)(**{argument.name: value})
        if hasattr(made := optimizer_with(entry, made), "initialize") and entry.where != "layers":
            Run(TAGGER(), made, "float32")
    except (TorchOptError, ConfigValidationError) as error:
        # Of a section it is enough to name what stands in it.
        names = [argument.name, *(value if isinstance(value, dict) else ())]
        return "" in names or any(str(name) in str(error) for name in names)
    return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ARGUMENTS)
def test_nothing_is_ignored_that_can_not_work(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry, argument = ARGUMENTS[name]
    ways = (True,) if entry.is_of_controller else (True, False)
    taken = {
        repr(value)
        for value in wrong_values(argument.annotation)
        for by_config in ways
        if not refused(entry, argument, value, by_config=by_config)
    }
    assert taken == set(WORK.get(name, ((), ""))[0])


DEFINITION = {
    "controller_metrics": [{"name": "loss", "class": "Loss", "arguments": {}}],
    "operations": [{"name": "log", "class": "LogControl", "arguments": {"log_format": "{step}"}}],
    "controllers": [
        {
            "name": "one",
            "triggers": ["on_step_end"],
            "rule": "loss['loss'] != 5.5",
            "operations": ["log.should_log"],
            "patience": {"patience_threshold": 1, "mode": "reset_on_failure"},
            "config": {"trigger_log_level": "info"},
            "cooldown": 0,
            "max_firings": 5,
        }
    ],
}
# By the path of a key, another value that works. Those that can't: tests/addons/controller/test_definition.py.
KEYS = {
    "controller_metrics.0.class": "EvalLoss",
    "controller_metrics.0.arguments": {"exclude": ["tagger"]},
    "operations.0.arguments": {"log_format": "at {step}"},
    "controllers.0.name": "two",
    "controllers.0.triggers": ["on_evaluate"],
    "controllers.0.rule": "loss['loss'] > 3",
    "controllers.0.operations": ["log.should_log", "control.should_save"],
    "controllers.0.patience.patience_threshold": 2,
    "controllers.0.patience.mode": "no_reset_on_failure",
    "controllers.0.config.trigger_log_level": "error",
    "controllers.0.cooldown": 2,
    "controllers.0.max_firings": 1,
}


def definition_with(path, value):
    content = copy.deepcopy(DEFINITION)
    *above, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    place = content
    for key in above:
        place = place[key]
    place[last] = value
    return content


@pytest.mark.parametrize("path", KEYS)
def test_nothing_is_ignored_in_a_definition_that_works(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a file is touched there
    changed = definition_with(path, KEYS[path])
    before, after = (seen_in_controller(trainer_controller(definition))[0] for definition in (DEFINITION, changed))
    assert before != after


# ---------------------------------------------------------------------- (b) values that work


CONFIG = spacy.blank("en").config.interpolate()


def nothing():
    """What is told where only steps show."""


class Steps(Run):
    """Some steps with all that can happen: a round that begins, rates that other code writes, a gradient that is not
    finite, a spike, a param that grows, one that comes, a buffer that changes.
    """

    def __init__(self, optimizer):
        super().__init__(TAGGER(), optimizer, "float32")
        self.module = self.model.shims[0]._model
        self.module.register_buffer("seen", torch.zeros(2))
        self.module.bias = torch.nn.Parameter(torch.ones(3))
        self.optimizer.initialize(self.nlp)

    def go(self):
        for step in range(3):
            self.one(step)
        for inner in self.optimizer.torch_optimizers.values():
            if hasattr(inner, "start_round"):
                inner.start_round()
        self.one(3)
        for inner in self.optimizer.torch_optimizers.values():
            inner.param_groups[0]["lr"] *= 3.0
        self.one(4)
        self.one(5, scale=math.nan)
        self.one(6, scale=math.nan)
        self.one(7, scale=1000.0)
        self.grow()
        for step in range(8, 12):
            self.one(step)

    def grow(self):
        new = Weights("float32", 8)
        with torch.no_grad():
            for name in ("matrix", "vector"):
                new.get_parameter(name)[:6] = self.module.get_parameter(name)
                setattr(self.module, name, new.get_parameter(name))
        self.module.extra = torch.nn.Parameter(torch.ones(4))
        self.optimizer.initialize(self.nlp)

    def one(self, step, scale=1.0):
        self.module.seen += step
        generator = torch.Generator().manual_seed(step)
        for param in self.weights:
            param.grad = torch.empty_like(param).normal_(generator=generator) * scale
        self.model.finish_update(self.optimizer)
        self.optimizer.step_schedules()


def seen_in_optimizer(optimizer, block):
    """What steps do, and what is told."""
    random_state = torch.random.get_rng_state()
    torch.manual_seed(0)
    said = ""
    steps = Steps(optimizer)
    try:
        steps.go()
    except TorchOptError as error:
        said = type(error).__name__
    torch.random.set_rng_state(random_state)
    state = optimizer.state_dict()
    counts = optimizer.rates.outside_writes, optimizer.skipped_updates, optimizer.grad_spikes
    numbers = [*counts, optimizer.grad_clip, optimizer.learn_rate]
    done = said, digest([steps.weights, list(tensors_in(state))]), repr(numbers)

    def told():
        training = {**CONFIG["training"], "max_steps": 20, "optimizer": block}
        setup = Setup(steps.nlp, {**CONFIG, "training": training}, optimizer)
        now = describe(setup)
        rows = list(rows_of(setup, now, None))
        lines = [*lines_of(setup, rows), table_of(optimizer, rows, now, rates_over_steps(optimizer, 20))]
        facts = optimizer.precision, optimizer.ops, optimizer.ops_threads, optimizer.rollback
        joined = {name: [type(one).__name__, plain_values(one)] for name, one in optimizer.attachments.items()}
        return repr(([info.options for info in optimizer.describe()], lines, facts, joined))

    return done, told


def plain_values(block):
    return {name: value for name, value in vars(block).items() if isinstance(value, (int, float, str))}


def tensors_in(tree):
    if isinstance(tree, torch.Tensor):
        yield tree
    for item in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (list, tuple)) else ():
        yield from tensors_in(item)


def digest(tree):
    """Of tensors and arrays, and how they are put together."""
    found = hashlib.sha256()

    def add(item):
        if isinstance(item, (list, tuple)):
            for part in item:
                add(part)
        elif hasattr(item, "shape"):
            array = item.detach().numpy() if isinstance(item, torch.Tensor) else item
            found.update(repr((array.dtype, array.shape)).encode() + array.tobytes())
        else:
            found.update(repr(item).encode())

    add(tree)
    return found.hexdigest()


SCORES = [0.3, 0.30002, 0.30005, 0.1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.2, 0.2, 0.2, 0.2]


def seen_in_schedule(schedule):
    values = [next(schedule) for _ in range(80)]
    for score in SCORES if hasattr(schedule, "observe") else ():
        schedule.observe(score)
        values.append(next(schedule))
    return values, nothing


def seen_in_layer(model):
    """Two batches of two sequences, forwards and backwards."""
    numpy.random.seed(0)
    rng = numpy.random.default_rng(0)
    width = next(node.get_dim("nI") for node in model.walk() if node.has_dim("nI"))
    X = [rng.normal(size=(n, width)).astype("f") * 3 for n in (6, 4)]
    model.initialize(X)
    seen = []
    for _ in range(2):
        Y, backprop = model(X, is_train=True)
        seen += [*Y, *backprop([y * 0.5 + 0.1 for y in Y])]
    seen += [node.get_grad(name) for node in model.walk() for name in node.param_names]
    return digest(seen), nothing


def seen_in_logger(logger):
    """What is printed and written of six steps, of which the fourth and the last are evaluated."""
    nlp = TAGGER()
    nlp.config["training"].update(max_steps=6, eval_frequency=3)
    out, err = Terminal(), Terminal()
    log_step, finalize = logger(nlp, out, err)
    for step in range(6):
        info = info_of(step, losses={"tagger": 2.0})
        tell_latest(nlp, info)
        log_step(info if step % 3 == 0 else None)
    finalize()
    forget_latest(nlp)
    files = [
        ("board", len(list(event_steps(path)))) if "tfevents" in path.name else (str(path), path.read_text())
        for path in sorted(Path().rglob("*"))
        if path.is_file()
    ]
    return (out.getvalue(), err.getvalue() != "", files), nothing


def event_steps(path):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return EventFileLoader(str(path)).Load()


def seen_in_corpus(reader):
    return [example.reference.text for example in islice(reader(spacy.blank("en")), 40)], nothing


class Noted:
    """A training that notes what rules want of it."""

    def __init__(self):
        self.wants = []

    def __getattr__(self, name):
        return lambda *args: self.wants.append((name, args))


EVENTS = [
    (event, {"step": step, **payload})
    for step in range(6)
    for event, payload in (
        (
            "on_step_end",
            {
                "losses": {"tagger": 6.0 - step, "tok2vec": 1.0, "ner": 0.5},
                "batch_words": 10,
                "batch_size": 2,
                "words": 10 * step,
                "seconds": float(step**2),
                "log_history": [{"loss": float(step)}],
                "learn_rates": {"default": 0.1},
            },
        ),
        ("on_log", {"log_history": [{"loss": 100.0 + step}]}),
        (
            "on_evaluate",
            {
                "scores": {"tag_acc": 0.5 + step / 100},
                "score": 0.5 + step / 100,
                "dev_losses": lambda most: {
                    "losses": {"tagger": 1.0, "tok2vec": 1.0},
                    "words": 10 * (most or 9),
                    "examples": most or 9,
                },
            },
        ),
        ("on_predict", {"scores": {"tag_acc": 0.9 + step / 100}}),
    )
]


def seen_in_controller(settings):
    """Metrics after each event, what fired, what was logged, and what is wanted of the training."""
    logger, lines = logging.getLogger("spacy.torchopt"), []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append((record.levelname, record.getMessage()))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel("DEBUG")
    controller, noted, seen = settings.build(), Noted(), []
    try:
        for event, payload in EVENTS:
            control, run = Control(), RunHandle(noted, noted)
            fired = controller.on_event(event, **payload, control=control, run=run)
            seen.append(repr((event, controller.values, fired, control, run.substeps)))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return (seen, lines, repr(noted.wants)), nothing


def seen(entry, arguments):
    """What shows of an entry with these arguments: what it does, and what is told of it (None: nothing)."""
    fix_random_seed(0)
    with TemporaryDirectory() as folder, chdir(folder):
        if entry.where == "schedules":
            return seen_in_schedule(entry.build(**arguments))
        if entry.where == "loggers":
            return seen_in_logger(entry.build(**arguments))
        if entry.where == "readers":
            return seen_in_corpus(entry.build(**arguments))
        if entry.where in ("layers", "architectures"):
            return seen_in_layer(entry.build(**arguments))
        if entry.is_of_controller:
            return seen_in_controller(entry.build(**arguments))
        if entry.is_of_federation:
            settings = repr(entry.build(**arguments))
            return None, lambda: settings
        block = optimizer_block(entry, **arguments)
        return seen_in_optimizer(registry.resolve({"optimizer": block})["optimizer"], block)


def another(argument, now):
    """A value that is as good as the one that it has."""
    kind, text = argument.annotation, str(argument.annotation)
    if "Literal" in text:
        literal = next(arg for arg in (kind, *typing.get_args(kind)) if typing.get_origin(arg) is typing.Literal)
        return next(choice for choice in typing.get_args(literal) if choice != now)
    if isinstance(now, bool) or kind is bool or kind == typing.Optional[bool]:
        return not now
    if kind is int or kind == typing.Optional[int]:
        return (now or 0) + 1
    if isinstance(now, tuple):
        return [0.5 * value if value else 0.5 for value in now]
    return 0.5 * now if isinstance(now, (int, float)) and now else 0.5


SGD = {"@torch_optimizers": "torch.SGD.v1"}
RIDGE = {"@regularizers": "thinc-torchopt.Ridge.v1", "alpha": 0.1}
CHECKPOINT = {"@misc": "thinc-torchopt.Checkpoint.v1", "path": "no-such-folder"}
# Where that is no value that works, or changes nothing in these steps: another one, what is set beside it, and what is
# set with the other value only.
registry.misc.register("test-nothing.Attachment.v1", func=lambda: Attachment())

OTHER = {
    "optimizers TorchOptimizer.v1 algorithm": (SGD, {}),
    "optimizers TorchOptimizer.v1 averages": ({"@misc": "thinc-torchopt.EMA.v1"}, {}),
    "optimizers TorchOptimizer.v1 max_nonfinite": (1, {}),
    "optimizers TorchOptimizer.v1 spike_factor": (2.0, {}),
    "optimizers TorchOptimizer.v1 on_spike": ("clip", {"spike_factor": 2.0}),
    "optimizers TorchOptimizer.v1 rollback_after": (2, {"checkpoint": CHECKPOINT}),
    "optimizers TorchOptimizer.v1 rollback_factor": (0.2, {"checkpoint": CHECKPOINT, "rollback_after": 2}),
    "optimizers TorchOptimizer.v1 max_rollbacks": (1, {"checkpoint": CHECKPOINT, "rollback_after": 2}),
    "optimizers TorchOptimizer.v1 param_groups": ({"a": {"params": ["tagger/matrix"], "freeze": True}}, {}),
    "optimizers TorchOptimizer.v1 per_param_lr": ({"tagger/matrix": 0.5}, {}),
    "optimizers TorchOptimizer.v1 skip_decay": ("bias_and_norm", {}),
    "optimizers TorchOptimizer.v1 enable_runtime_guards": (False, {}),
    "optimizers TorchOptimizer.v1 attachments": ({"one": {"@misc": "test-nothing.Attachment.v1"}}, {}),
    "optimizers TorchOptimizer.v1 checkpoint": (CHECKPOINT, {}),
    "optimizers TorchOptimizer.v1 budget": ({"@misc": "thinc-torchopt.Budget.v1", "limit": "20m"}, FOR_BUDGET),
    "optimizers TorchOptimizer.v1 controller": (
        {"@misc": "thinc-torchopt.TrainerController.v1", "definition": QUIET},
        {},
    ),
    "optimizers TorchOptimizer.v1 privacy": (
        {"@misc": "thinc-torchopt.Privacy.v1", "clip": 1.0, "delta": 1e-5, "noise_multiplier": 1.0},
        {},
    ),
    "optimizers TorchOptimizer.v1 distributed": ({"@misc": "thinc-torchopt.Distributed.v1"}, {}),
    "optimizers TorchOptimizer.v1 recorder": ({"@misc": "thinc-torchopt.Recorder.v1"}, {}),
    "optimizers Adam.v1 L2_is_weight_decay": (False, {"L2": 0.1}),
    "optimizers RAdam.v1 L2_is_weight_decay": (False, {"L2": 0.1}),
    "optimizers RAdam.v1 eps": (0.1, {}),
    "optimizers SGD.v1 L2_is_weight_decay": (False, {"L2": 0.1}),
    "torch_optimizers torch.Adafactor.v1 d": (2.0, {}),
    "torch_optimizers torch.Adagrad.v1 eps": (0.1, {}),
    "torch_optimizers torch.Adam.v1 decoupled_weight_decay": (True, {"weight_decay": 0.1}),
    "torch_optimizers torch.ASGD.v1 t0": (2.0, {}),
    "torch_optimizers torch.Muon.v1 eps": (10.0, {}),
    "torch_optimizers torch.Muon.v1 adjust_lr_fn": ("match_rms_adamw", {}),
    "torch_optimizers torch.Muon.v1 fallback": (SGD, {}),
    "torch_optimizers torch.NAdam.v1 decoupled_weight_decay": (True, {"weight_decay": 0.1}),
    "torch_optimizers torch.RAdam.v1 decoupled_weight_decay": (True, {"weight_decay": 0.1}),
    "torch_optimizers torch.RAdam.v1 eps": (0.1, {}),
    "torch_optimizers torch.Rprop.v1 etas": ([0.4, 1.5], {}),
    "torch_optimizers torch.Rprop.v1 step_sizes": ([0.001, 0.02], {}),
    "torch_optimizers torch.SGD.v1 dampening": (0.5, {"momentum": 0.9}),
    "torch_optimizers torch.SGD.v1 nesterov": (True, {"momentum": 0.9}),
    "torch_optimizers pytorch-optimizer.create.v1 name": ("adabelief", {}),
    "torch_optimizers pytorch-optimizer.create.v1 options": ({"weight_decay": 0.1}, {}),
    "torch_optimizers Modular.v1 decay": ("declearn", {"weight_decay": 0.1}),
    "torch_optimizers Modular.v1 regularizers": ({"a": RIDGE}, {}),
    "torch_optimizers Modular.v1 modules": ({"a": {"@gradient_modules": "thinc-torchopt.Adam.v1"}}, {}),
    "gradient_modules AGC.v1 eps": (10.0, {}),
    "gradient_modules GaussianNoise.v1 safe_mode": (True, {"seed": None}),
    "gradient_modules TorchOptim.v1 optim_cls": ("torch.optim.Adam", {}),
    "gradient_modules TorchOptim.v1 kwargs": ({"momentum": 0.5}, {}),
    "schedules plateau.v1 metric": ("ents_f", {}),
    "schedules plateau.v1 threshold": (0.5, {}),
    **{
        f"schedules {name}.v1 warmup_ratio": (0.5, {}, {"warmup_steps": None})
        for name in ("polynomial", "warmup_cosine", "warmup_linear", "warmup_stable_decay")
    },
    "schedules warmup_stable_decay.v1 decay_ratio": (0.1, {}, {"decay_steps": None}),
    "schedules warmup_stable_decay.v1 decay_begins": ("when told", {}, {"total_steps": None}),
    "schedules plateau.v1 eps": (1.0, {}),
    "schedules sequence.v1 parts": ({"one": {"schedule": 0.1, "steps": 5}, "two": {"schedule": 0.2}}, {}),
    "loggers ConsoleLogger.v1 output_file": ("log.txt", {}),
    "loggers JSONLinesLogger.v1 path": ("other.jsonl", {}),
    "loggers TensorBoardLogger.v1 path": ("other", {}),
    "misc EMA.v1 device": ("cpu", {}),
    "misc EMA.v1 dtype": ("float64", {}),
    "misc SWA.v1 device": ("cpu", {}),
    "misc SWA.v1 dtype": ("float64", {}),
    "misc Budget.v1 limit": ("30m", {}),
    "misc Checkpoint.v1 path": ("another-folder", {}),
    "misc Federated.v1 local_epochs": (2, {"local_steps": 0, "local_epochs": 1}),
    "misc Federated.v1 min_clients": (1, {}),
    "misc Federated.v1 algorithm": (SGD, {}),
    "misc Distributed.v1 backend": ("gloo", {}),
    "misc TrainerController.v1 definition": ({**QUIET, "operations": []}, {}),
    "controller_metrics EvalMetrics min_delta": (0.015, {}),
    "controller_metrics EvalMetrics min_delta_mode": ("relative", {"min_delta": 0.015}),
    "controller_metrics PerProcessState events": (["on_evaluate"], {}),
    "controller_metrics LearnRates events": (["on_evaluate"], {}),
    "controller_operations LearnRateControl groups": (["default"], {}),
    "controller_operations FreezeControl params": (["tagger/matrix"], {}),
    "controller_operations LogControl log_format": ("at {step}", {}),
    "controller_operations LogControl log_level": ("error", {}),
}
for where in ("layers OnlineRNN.v1", "architectures OnlineRNNEncoder.v1"):
    OTHER |= {
        f"{where} cell": ("rnn", {}),
        f"{where} activation": ("relu", {}),
        f"{where} chrono": (10, {}),
        f"{where} vjp_method": ("multi-step", {}, {"window": 2}),
        f"{where} window": (4, {"vjp_method": "multi-step", "window": 2}),
    }
OTHER |= {name: (["tagger/matrix"], {}) for name in ARGUMENTS if name.endswith(" params") and "_modules" in name}
OTHER |= {name: (["tagger/matrix"], {}) for name in ARGUMENTS if name.endswith(" params") and "regularizers" in name}
OTHER |= {name: (["ner"], {}) for name in ARGUMENTS if name.endswith(" exclude")}
OTHER["controller_metrics HistoryBasedMetric exclude"] = (["ner"], {"source_event": "on_step_end"})
for name in ("L2Clipping.v1", "L2GlobalClipping.v1"):
    OTHER[f"gradient_modules {name} params"] = (["tagger/matrix"], {"max_norm": 0.1})
OTHER["optimizers TorchOptimizer.v1 ops_threads"] = ("auto", {"ops": "fastest"})
# What can't be set here at all, and the reason.
NOT_HERE = {name: "torch takes it on a GPU only" for name in ARGUMENTS if name.endswith(" capturable")}
NOT_HERE |= {"gradient_modules TorchOptim.v1 validate": "of declearn, which has only true"}
NOT_HERE |= {
    name: "of a training's params: tests/loop/test_param_norms.py"
    for name in ARGUMENTS
    if name.startswith(tuple(f"controller_metrics {kind}" for kind in ("ParamNorm", "UpdateRatio", "GradNorm")))
}
NOT_HERE |= {
    name: f"needs texts and a trained pipeline: tests/{file}"
    for name in ARGUMENTS
    for kind, file in (
        ("readers TaughtCorpus", "addons/teacher/test_corpus.py"),
        ("readers Texts", "core/readers/test_readers.py"),
        ("callbacks", "loop/test_new_labels.py"),
    )
    if name.startswith(kind)
}
NOT_HERE |= {"batchers poisson.v1 size": "of spaCy's batches: tests/addons/privacy/test_batcher.py"}
NOT_HERE |= {
    name: "of spaCy's batches: tests/addons/fine_tuning/test_batcher.py"
    for name in ARGUMENTS
    if name.startswith("batchers batch_by_padded_pieces.v1")
}
NOT_HERE |= {
    "optimizers TorchOptimizer.v1 layer_decay": "no layers with numbers here: tests/core/settings/test_param_groups.py"
}
NOT_HERE |= {
    f"misc TrainerController.v1 {name}": "blocks, not beside a definition: tests/addons/controller/test_settings.py"
    for name in ("metrics", "operations", "rules")
}
NOT_HERE |= {
    name: "there is no transformer here: tests/addons/fine_tuning/"
    for name in ARGUMENTS
    if name.startswith("misc FineTuning.v1") or name == "optimizers TorchOptimizer.v1 fine_tuning"
}
NEEDS_MORE = "needs metrics or actions that this definition has not: tests/addons/controller/test_"
NOT_HERE |= {
    name: NEEDS_MORE + file
    for name in ARGUMENTS
    for kinds, file in (
        (("controller_metrics Window", "controller_metrics Best"), "series.py"),
        (("controller_rules",), "named_rules.py"),
        (
            (
                *(f"controller_operations {kind}Control" for kind in ("KeepBest", "Accumulation", "Decay")),
                "controller_operations LearnRateControl max_rate",
            ),
            "operations.py",
        ),
    )
    if name.startswith(kinds)
}
# What no step shows, but what is told of the optimizer: the reason, and where it is tested.
SPIKES = "what is usual is known after more updates than these: tests/core/update/test_guard.py"
GOES_BACK = "the training loop goes back: tests/loop/test_rollback.py"
SAVES = "the training loop saves: tests/loop/test_checkpoint.py"
ENDS = "the training loop ends with it: tests/addons/budget/test_budget.py"
ROUNDS = "of the rounds of a federation: tests/addons/federated/test_rounds.py"
PRIVATE = "spaCy's training loop does it: tests/addons/privacy/test_private_run.py"
RECORDS = "a run records: tests/addons/recorder/test_recorder.py, tests/core/test_record.py"
RANKS = "with several processes only: tests/addons/distributed/"
TOLD = {
    "optimizers TorchOptimizer.v1 precision": "gradients here are made by hand: tests/core/params/test_precision.py",
    **{
        f"optimizers {name}.v1 ops": "of the training loop: tests/loop/test_run_ops.py, tests/core/test_drop_ins.py"
        for name in ("TorchOptimizer", "Adam", "RAdam", "SGD")
    },
    "optimizers TorchOptimizer.v1 ops_threads": "of the training loop: tests/loop/test_run_ops.py",
    "optimizers TorchOptimizer.v1 rollback_after": GOES_BACK,
    "optimizers TorchOptimizer.v1 rollback_factor": GOES_BACK,
    "optimizers TorchOptimizer.v1 max_rollbacks": GOES_BACK,
    "optimizers TorchOptimizer.v1 attachments": "a run lets it join: tests/core/test_attachments.py",
    "optimizers TorchOptimizer.v1 checkpoint": SAVES,
    "optimizers TorchOptimizer.v1 budget": ENDS,
    **{f"misc Budget.v1 {name}": ENDS for name in ("limit", "decay_ratio")},
    "optimizers TorchOptimizer.v1 controller": "the training loop asks it: tests/addons/controller/test_training.py",
    "optimizers TorchOptimizer.v1 distributed": RANKS,
    "optimizers TorchOptimizer.v1 recorder": RECORDS,
    "misc Recorder.v1 max_tokens": RECORDS,
    **{
        f"misc Checkpoint.v1 {name}": SAVES
        for name in ("path", "every", "keep", "resume", "on_config_change", "progress_bar")
    },
    "misc Checkpoint.v1 in_background": "the same is saved, at another time: tests/loop/test_background.py",
    **{name: PRIVATE for name in ARGUMENTS if name.startswith("misc Privacy.v1")},
    **{name: ROUNDS for name, (entry, _) in ARGUMENTS.items() if entry.is_of_federation},
    **{name: RANKS for name in ARGUMENTS if name.startswith("misc Distributed.v1")},
}
# What may show in a step by rounding alone: another kernel (tests/core/algorithms/test_torch_classes.py), and sums in
# another order, which some processors round differently. The kernel is told.
ROUNDING = {name for name in ARGUMENTS if name.endswith((" foreach", " fused", " traces"))}
# What neither shows.
SAME = "the same gradient, with less memory: tests/addons/online/test_gradients.py"
HIDDEN = {
    "optimizers TorchOptimizer.v1 allow_untrainable": "spacy train asks it: tests/loop/test_training_check.py",
    "schedules plateau.v1 metric": "the optimizer gives it this score: tests/core/schedules/test_schedules.py",
    "misc TrainerController.v1 definition": "the training loop asks it: tests/addons/controller/test_training.py",
    "optimizers TorchOptimizer.v1 master_weights": "params here are float32: tests/core/params/test_masters.py",
    "misc EMA.v1 device": "there is one device here: tests/core/averages/test_averages.py",
    "misc SWA.v1 device": "there is one device here: tests/core/averages/test_averages.py",
    **{f"optimizers TorchOptimizer.v1 {name}": SPIKES for name in ("spike_factor", "on_spike")},
    "layers OnlineRNN.v1 traces": SAME,
    "architectures OnlineRNNEncoder.v1 traces": SAME,
}


@cache
def before_it(entry, beside):
    """What shows with the defaults. Once for all arguments of an entry."""
    found = next(found for found, _ in ARGUMENTS.values() if str(found) == entry)
    return seen(found, ast.literal_eval(beside))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in ARGUMENTS if name not in NOT_HERE])
def test_nothing_is_ignored_that_works(name):
    entry, argument = ARGUMENTS[name]
    now = entry.needed.get(argument.name, argument.default)
    value, beside, *also = OTHER[name] if name in OTHER else (another(argument, now), {})
    before = before_it(str(entry), repr(beside))
    after = seen(entry, {**beside, argument.name: value, **(also[0] if also else {})})
    found = "a step" if before[0] != after[0] else "what is told" if before[1]() != after[1]() else "nothing"
    if name in ROUNDING and found == "a step":
        return
    assert found == ("nothing" if name in HIDDEN else "what is told" if name in {*TOLD, *ROUNDING} else "a step")


@needs_muon  # older torches have fewer arguments
def test_nothing_is_ignored_lists_hold_what_there_is():
    """And nothing else: the tests above see to it that each entry is needed."""
    assert {*WORK, *OTHER, *TOLD, *HIDDEN, *NOT_HERE} <= set(ARGUMENTS) and not set(TOLD) & set(HIDDEN)
