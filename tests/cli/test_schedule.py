"""`spacy torchopt schedule`, against schedules called by hand."""

import json
import re
from itertools import islice

import pytest
from pytest import approx

from thinc_torchopt.core import compat
from thinc_torchopt.core.schedules.curves import warmup_cosine, warmup_linear

from ..conftest import CONFIGS
from ..pictures import curves, drawn
from ..spacy_cli import torchopt

PARAM_GROUPS, PLATEAU = CONFIGS / "param_groups.cfg", CONFIGS / "schedules_plateau.cfg"
ENDS = ("--training.optimizer.per_param_lr.ner/*", "[0.1, 0.2, 0.3]")
RISE = [0.002 * min(1, i / 100) for i in range(1, 122)]  # as long as the score gets better
CURVES = (warmup_cosine, 0.003), (warmup_linear, 0.002)


def by_hand(last, ner):
    """By the groups that share them, the rates of PARAM_GROUPS up to a step. Embeddings are frozen until step 200."""
    cosine, linear = (list(islice(curve(rate, 100, 2000), last + 1)) for curve, rate in CURVES)
    layers = [[0.5 * 0.9 ** (4 - layer) * rate for rate in linear] for layer in range(4)]
    found = {f"shared/layer-{i}, shared+skip_decay/layer-{i}": layers[i] for i in range(4)}
    found["shared+embeddings/layer-0"] = [0.0] * min(200, last + 1) + layers[0][200:]
    return {"no_decay+tagger/*, no_decay+tagger/*+skip_decay": cosine, "ner/*, ner/*+skip_decay": ner} | found


@pytest.mark.parametrize(
    ("args", "expected", "note"),
    [
        ([PARAM_GROUPS], by_hand(2000, [0.001] * 2001), None),
        ([PARAM_GROUPS, "--steps", 6, *ENDS], by_hand(6, [0.1, 0.2, *[0.3] * 5]), ".* ended after 3 steps"),
        ([PLATEAU, "--steps", 120], {"default": RISE}, "These depend on the scores in training: learn_rate"),
    ],
    ids=["to the end", "ends", "by scores"],
)
def test_schedule_prints_and_draws_the_rates(folder, monkeypatch, args, expected, note):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    figures = drawn(monkeypatch)
    run = torchopt(folder, "schedule", *args, "--json", "--output", folder / "rates.svg")
    found = json.loads(run.stdout)
    by_group = {name: approx(rates, rel=1e-12) for names, rates in expected.items() for name in names.split(", ")}
    assert found["learn_rates"] == by_group and "ScheduleWarning" not in run.stderr
    assert re.match(note or "$", "".join(found["notes"]))
    [axes] = figures[0].axes
    assert axes.get_title(loc="left") == f"Learning rates of {args[0]}"
    shown = {name.replace("\n", " ").removesuffix(" (always 0)"): points for name, points in curves(axes).items()}
    assert shown == {names: [*enumerate(found["learn_rates"][names.split(", ")[0]])] for names in expected}


def test_schedule_that_ends_keeps_its_last_value(folder):
    found = json.loads(torchopt(folder, "params", PARAM_GROUPS, "--steps", 4, *ENDS, "--json").stdout)
    rates = [param["learn_rate_at_steps"] for param in found["params"] if param["component"] == "ner"]
    assert rates == approx([0.3] * len(rates)) and "ended after 3 steps" in found["notes"][0]
    assert "--steps" in torchopt(folder, "schedule", PLATEAU, "--training.max_steps", 0, check=False).stderr


def test_schedule_text(folder):
    lines = torchopt(folder, "schedule", PARAM_GROUPS).stdout.splitlines()
    assert lines[0].split() == ["group", "step", "0", "highest", "at", "step", "step", "2000", "curve"]
    [line] = [line for line in lines if line.startswith("shared/layer-3 ")]
    *cells, chart = line.split()
    assert cells == ["shared/layer-3", "9e-06", "0.0009", "99", "0"]
    assert len(chart) == 60 and chart[0] == "▃" and "█" in chart and chart[-1] == "▁"
    [line] = [line for line in lines if line.startswith("shared+embeddings")]
    assert line.split()[-1].startswith("▁▁▁▁▁▁█")


def test_schedule_without_matplotlib(folder, monkeypatch):
    monkeypatch.setattr(compat, "has_matplotlib", False)
    for command in ("schedule", "find-lr"):
        run = torchopt(folder, command, PARAM_GROUPS, "--output", folder / "rates.png", check=False)
        assert run.returncode == 1 and "pip install 'matplotlib>=3.7'" in run.stderr and "Traceback" not in run.stderr
    assert not (folder / "rates.png").exists()
