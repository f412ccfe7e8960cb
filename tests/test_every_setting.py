"""Every setting of whatever a config can name: what it may not be is refused, in words that say what it may be.

`settings.yaml` has these words. The values that are refused, and the nearest that are not, follow from them.
"""

import inspect
import math
import re
from importlib.metadata import distribution
from pathlib import Path

import pytest
import srsly
import torch

from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ConfigError

SETTINGS = srsly.read_yaml(Path(__file__).with_name("settings.yaml"))
FUNCTIONS = {
    entry.value.removeprefix("thinc_torchopt."): entry.load
    for entry in distribution("thinc-torchopt").entry_points
    if entry.name.startswith("thinc-torchopt.") and "addons.controller" not in entry.value  # a definition of its own
}
CURVE = {"initial_rate": 0.1, "warmup_steps": 0, "total_steps": 100}
# What a function can't do without.
GIVEN = {
    "core.optimizer:create_optimizer": {"algorithm": AdamW()},
    "core.drop_ins:SGD": {"learn_rate": 0.1},
    "core.averages:SWA": {"start_step": 3},
    "core.schedules:inverse_sqrt": {"initial_rate": 0.1, "warmup_steps": 5},
    "core.schedules:one_cycle": {"max_rate": 0.1, "total_steps": 100},
    "core.schedules:plateau": {"initial_rate": 0.1},
    "core.schedules:polynomial": CURVE,
    "core.schedules:sequence": {"parts": {"one": {"schedule": 0.1}}},
    "core.schedules:warmup_cosine": CURVE,
    "core.schedules:warmup_linear": CURVE,
    "core.schedules:warmup_stable_decay": {**CURVE, "decay_steps": 0},
    "loop.checkpoint_settings:Checkpoint": {"path": "state"},
    "addons.budget:Budget": {"limit": "20m"},
    "addons.corpora:PythonDocs": {"split": "train"},
    "addons.federated:Federated": {"local_steps": 1, "min_clients": 1},
    "addons.loggers:JSONLinesLogger": {"path": "log.jsonl"},
    "addons.loggers:TensorBoardLogger": {"path": "runs"},
    "addons.online:OnlineRNNEncoder": {"width": 8},
    "addons.privacy:Privacy": {"clip": 1.0, "delta": 1e-5, "noise_multiplier": 1.0},
    "addons.privacy:poisson": {"size": 4},
    "addons.teacher:TaughtCorpus": {"corpus": lambda nlp: []},
    "addons.modular.registered:GaussianNoise": {"safe_mode": False},
    "addons.modular.registered:TorchOptim": {"optim_cls": "torch.optim.SGD"},
}
# What a setting wants beside it. None: that this is not there.
BESIDE = {
    "local_epochs": {"local_steps": 1},
    "local_steps": {"local_epochs": 1},
    "core.schedules:warmup_stable_decay.decay_ratio": {"decay_steps": None},
    "warmup_ratio": {"warmup_steps": None},
    "window": {"vjp_method": "multi-step"},
}
BOUNDS = re.compile(r"(at least|above|at most|below) ([\d.e+]+)")


def bounds_of(words):
    """A range in words: its ends, each with the values that are just outside and just inside."""
    whole = "whole number" in words
    found = []
    for kind, end in BOUNDS.findall(words.replace("from 0 to 1", "of at least 0 and at most 1")):
        end = int(end) if whole else float(end)
        sign = 1 if kind in ("at least", "above") else -1
        near = end + sign if whole else math.nextafter(end, sign * math.inf)
        far = end - sign if whole else math.nextafter(end, -sign * math.inf)
        found.append((far, end) if kind.startswith("at ") else (end, near))
    return found


def refused(words, parameter):
    """Values that a setting can't have which may be what the words say."""
    if words == "true or false":
        values = ["no", 1, 0.0, {}]
    elif "whole number" in words:
        values = [2.5, 5.0, "many", [3], -1]
    elif "number" in words or words.startswith("the least"):
        values = ["fast", {}, torch.nn.Linear, math.nan, math.inf, -1]
    elif words.startswith(("'", "null, '")):
        values = ["wrong", 1, ["x"], {}]
    elif words.startswith("a section, or"):
        values = [3, "encoder", ["ner/*"], {3: {"params": ["*"]}}]
    else:
        values = [3, object(), [3], ""]
    values += [far for far, _ in bounds_of(words)]
    values += [True] if "true" not in words.lower() else []
    takes_none = parameter.default is None or re.search("None|Optional|Dict", str(parameter.annotation))
    return values if takes_none else [*values, None]


def build(function, name, value):
    beside = BESIDE.get(name) or BESIDE.get(f"{function}.{name}", {})
    return FUNCTIONS[function]()(**{**GIVEN.get(function, {}), **beside, name: value})


ROWS = [(function, name) for function, words in SETTINGS.items() for name in words if name != "at"]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_setting_is_known(function):
    assert {"at", *inspect.signature(FUNCTIONS[function]()).parameters} == set(SETTINGS[function])


@pytest.mark.parametrize(("function", "name"), ROWS)
def test_every_setting_refuses_what_can_not_be(function, name):
    words = SETTINGS[function]
    for value in refused(words[name], inspect.signature(FUNCTIONS[function]()).parameters[name]):
        with pytest.raises(ConfigError) as error:
            build(function, name, value)
        text = str(error.value)
        assert f"'{name}'" in text and words["at"] in text and words[name] in text
        assert repr(value) in text or str(value) in text
    for _, near in bounds_of(words[name]):
        build(function, name, near)
