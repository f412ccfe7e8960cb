"""Every argument from Python, checked as confection checks it in a config: what can't be is refused, by its config
path.
"""

import math
from pathlib import Path

import numpy
import pytest

from thinc_torchopt import SGD, Adam, RAdam, TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.checks import Section, check_ops_threads, check_texts, known_settings, own_errors
from thinc_torchopt.core.errors import ConfigError, StateError
from thinc_torchopt.loop.checkpoint_settings import Checkpoint

from ..peek import option_of


@pytest.mark.parametrize("make", [lambda x: {"per_param_lr": {"*": x}}, lambda x: {"layer_decay": {"*": x}}])
@pytest.mark.parametrize("value", ["fast", None, True, -1.0, math.nan])
def test_checks_of_patterns_values(make, value):
    if value is None and "per_param_lr" in make(value):
        return  # as if it were not there
    with pytest.raises(ConfigError, match=r"per_param_lr|layer_decay"):
        TorchOptimizer(AdamW(), **make(value))


NUMPY = {
    "learn_rate": numpy.float32(0.5),
    "grad_clip": numpy.float64(2.0),
    "max_nonfinite": numpy.int64(3),
    "spike_factor": numpy.float32(4.0),
    "use_averages": numpy.bool_(True),
    "layer_decay": {"*": numpy.float32(0.5)},
    "per_param_lr": {"*": numpy.float64(0.25)},
    "param_groups": {
        "x": {
            "params": ["*"],
            "weight_decay": numpy.float32(0.5),
            "unfreeze_at": numpy.int32(3),
            "lr_scale": numpy.float16(2),
        }
    },
    "new_params_warmup": numpy.int32(7),
}


def test_checks_take_numpy_numbers_for_numbers():
    optimizer = TorchOptimizer(
        AdamW(weight_decay=numpy.float32(0.5), betas=[numpy.float32(0.5), numpy.float64(0.75)]), **NUMPY
    )
    assert type(optimizer.learn_rate) is float and optimizer.learn_rate == 0.5
    assert (option_of(optimizer, "betas")[1], option_of(optimizer, "weight_decay")) == (0.75, 0.5)
    weights = numpy.ones(2, dtype="f")
    for function in (Adam, RAdam, SGD):
        optimizer = function(numpy.float32(0.5), L2=numpy.float32(0.0), grad_clip=numpy.int64(0), use_averages=False)
        optimizer((0, "W"), weights, numpy.ones(2, dtype="f"))
    assert EMA(numpy.float32(0.5), start_step=numpy.int64(2)).as_saved()["decay"] == 0.5
    assert Checkpoint(Path("state"), every=numpy.int64(3)).every == 3 and Checkpoint(Path("state")).path == "state"


def test_checks_take_numbers_in_quotes_as_confection_does():
    assert TorchOptimizer(AdamW(), "0.5", max_nonfinite="3").learn_rate == 0.5


def test_checks_say_what_to_do():
    with pytest.raises(ConfigError, match=r"^Can't set 'x' in \[here\]: expected true or false, found 'no'\.$"):
        Section("[here]").flag("x", "no")
    with pytest.raises(ConfigError, match=r"^Can't set 'x' in \[here\]: expected 'a', 'b' or null, found 'c'\.$"):
        Section("[here]").choice("x", "c", ("a", "b", None))
    with pytest.raises(ConfigError, match=r"^Can't set 'x' in \[here\]: expected a or b, found 3\. Do this\.$"):
        Section("[here]").refuse("x", "a or b", 3, "Do this.")


def test_checks_of_a_section_know_their_limits():
    section = Section("[a.b]", allows_texts=False, verb="load")
    assert section.number("x", 3, at_least=2.0) == 3.0 and section.whole("x", 3) == 3
    for call, said in [
        (
            lambda: section.number("x", 1.0, above=1.0, at_most=2.0),
            "Can't load 'x' in [a.b]: expected a number above 1 and at most 2, found 1.0.",
        ),
        (lambda: section.number("x", math.inf, at_least=-math.inf), "expected a number that is finite, found inf."),
        (lambda: section.number("x", -1, below=1.0), "expected a number of at least 0 and below 1, found -1."),
        (lambda: section.number("x", "1"), "expected a number of at least 0, found '1'."),
        (lambda: section.number("x", 2, below=2.0), "expected a number of at least 0 and below 2, found 2."),
        (lambda: section.whole("x", "1"), "expected a whole number of at least 0, found '1'."),
        (lambda: section.kind("x", 1, str, "a text"), "expected a text, found 1."),
        (lambda: section.file("x", "", "a path"), "expected a path, found ''."),
        (lambda: section.file("x", 1, "a path"), "expected a path, found 1."),
        (lambda: section.section("x", {1: 2}), "a section, or in Python a dict with texts as keys, found {1: 2}."),
        (lambda: check_ops_threads(section, "x", True), 'a whole number of at least 1, or "auto", found True.'),
        (lambda: check_ops_threads(section, "x", 0), 'a whole number of at least 1, or "auto", found 0.'),
        (lambda: check_texts("do it", "a", "texts"), "Can't do it: expected texts, found 'a'."),
        (lambda: check_texts("do it", [1], "texts"), "Can't do it: expected texts, found [1]."),
        (lambda: known_settings(lambda rate: rate)(rte=1), "it has no setting 'rte'. Did you mean 'rate'?"),
        (lambda: known_settings(lambda lr: lr)(zz=1), "it has no setting 'zz'. There are: lr."),
        (lambda: known_settings(lambda learn_rate: 1)(lr=1), "no setting 'lr'. Did you mean 'learn_rate'?"),
    ]:
        with pytest.raises(ConfigError) as error:
            call()
        assert str(error.value).endswith(said)
    assert Section("[a.b]").number("x", "1") == section.number("x", 1, at_most=1) == 1.0
    assert section.file("x", "a", "a path") == Path("a") and check_ops_threads(section, "x", "auto") == "auto"


def test_checks_turn_errors_of_a_damaged_state_into_ours():
    with (
        pytest.raises(StateError, match=r"Can't load the state of it: it is damaged.*KeyError\('x'\)"),
        own_errors("it"),
    ):
        raise KeyError("x")
    with pytest.raises(ConfigError, match="ours"), own_errors("it"):
        raise ConfigError("ours")
