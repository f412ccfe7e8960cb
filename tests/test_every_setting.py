"""Every setting of whatever a config can name: what it may not be is refused, in words that say what it may be.

`settings.yaml` has these words. The values that are refused, and the nearest that are not, follow from them.
"""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import srsly
import torch

from thinc_torchopt.core.errors import ConfigError

from .registered import entries

WARMED_UP = ("polynomial", "warmup_cosine", "warmup_linear", "warmup_stable_decay")
SETTINGS = srsly.read_yaml(Path(__file__).with_name("settings.yaml"))
# A controller's definition is checked as a whole.
ENTRIES = {
    str(entry): entry
    for entry in entries()
    if entry.name.startswith("thinc-torchopt.") and "Controller" not in entry.name and entry.where != "controller_rules"
}
ROWS = [(name, argument) for name, entry in ENTRIES.items() for argument in entry.arguments]
# What a setting wants beside it. None: that this is not there.
BESIDE: dict[str, dict[str, Any]] = {
    **{f"schedules {name}.v1 warmup_ratio": {"warmup_steps": None} for name in WARMED_UP},
    "schedules warmup_stable_decay.v1 decay_ratio": {"decay_steps": None, "warmup_steps": 0},
    "misc Federated.v1 clients": {"min_clients": 1},
    "misc Federated.v1 local_epochs": {"local_steps": 1},
    "misc Federated.v1 local_steps": {"local_epochs": 1},
    "layers OnlineRNN.v1 window": {"vjp_method": "multi-step"},
    "architectures OnlineRNNEncoder.v1 window": {"vjp_method": "multi-step"},
    **{f"schedules {name}.v1 total_steps": {"warmup_steps": 0} for name in WARMED_UP},
}
for one in ("total_steps", "warmup_ratio"):
    BESIDE[f"schedules warmup_stable_decay.v1 {one}"] |= {"decay_steps": 0}
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


def refused(words, argument):
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
    takes_none = argument.default is None or re.search("None|Optional|Dict", str(argument.annotation))
    return values if takes_none else [*values, None]


@pytest.mark.parametrize("name", ENTRIES)
def test_every_setting_is_known(name):
    assert set(SETTINGS[name]) == {"at", *(argument.name for argument in ENTRIES[name].arguments)}


@pytest.mark.parametrize(("name", "argument"), ROWS, ids=lambda part: getattr(part, "name", part))
def test_every_setting_refuses_what_can_not_be(name, argument):
    words, beside = SETTINGS[name], BESIDE.get(f"{name} {argument.name}", {})
    for value in refused(words[argument.name], argument):
        with pytest.raises(ConfigError) as error:
            ENTRIES[name].call(**beside, **{argument.name: value})
        text = str(error.value)
        assert f"'{argument.name}'" in text and words["at"] in text and words[argument.name] in text
        assert repr(value) in text or str(value) in text
    for _, near in bounds_of(words[argument.name]):
        ENTRIES[name].call(**beside, **{argument.name: near})
