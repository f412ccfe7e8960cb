"""With any other optimizer, everything is as it is without us, to the last bit."""

import json
import subprocess
import sys
import warnings

import pytest
import spacy.about
import spacy.language
import spacy.training.loop
import thinc
import thinc.model

from thinc_torchopt import TorchOptimizer, hooks
from thinc_torchopt.errors import HostWarning

TRAIN = """
import hashlib, json, sys
import numpy, spacy
from thinc.api import Adam, fix_random_seed
from tests.models import toy_examples, toy_pipeline, params_of
from spacy.training.loop import train_while_improving
assert ("thinc_torchopt.hooks" in sys.modules) == False
if sys.argv[1] == "with":
    import thinc_torchopt.optimizers
fix_random_seed(3)
nlp = toy_pipeline(["tagger", "parser", "ner"])
nlp.add_pipe("textcat")
examples = toy_examples(nlp)
optimizer = nlp.initialize(lambda: examples, sgd=Adam(0.01, L2=0.01))
data = ((i // 4, examples[(3 * i) % 12:][:3]) for i in range(12))
evaluate = lambda: (nlp.evaluate(examples)["tag_acc"], {})
steps = spacy.training.loop.train_while_improving(nlp, optimizer, data, evaluate, dropout=0.1, eval_frequency=4,
    accumulate_gradient=2, patience=0, max_steps=0, exclude=[], annotating_components=[], before_update=None)
losses = [{k: float(v) for k, v in info["losses"].items()} for _, info, _ in steps]
digest = hashlib.sha256(b"".join(p.numpy().tobytes() for _, proc in nlp.pipeline for p in params_of(proc.model))).hexdigest()
averages = hashlib.sha256(b"".join(optimizer.averages[key].tobytes() for key in optimizer.averages)).hexdigest()
print(json.dumps([digest, averages, losses]))
"""


def test_hooks_leave_other_optimizers_bit_identical():
    runs = [subprocess.run([sys.executable, "-c", TRAIN, how], capture_output=True, text=True) for how in ("without", "with")]
    assert not any(run.returncode for run in runs), runs[0].stderr + runs[1].stderr
    without, with_us = (json.loads(run.stdout.splitlines()[-1]) for run in runs)
    assert without == with_us


def hooked():
    return [
        thinc.model.Model.finish_update,
        spacy.training.loop.train_while_improving,
        spacy.language.Language.initialize,
        spacy.language.Language.resume_training,
    ]


def test_hooks_are_idempotent():
    before = hooked()
    hooks.install(TorchOptimizer)
    assert all(a is b for a, b in zip(before, hooked()))
    assert all(not hasattr(function.__wrapped__, "__wrapped__") for function in before)


def test_hooks_keep_signatures_and_docstrings():
    for function in hooked():
        assert function.__doc__ == function.__wrapped__.__doc__ and function.__name__ == function.__wrapped__.__name__


@pytest.mark.parametrize("host", ["thinc", "spaCy"])
def test_hooks_leave_an_unknown_version_alone(monkeypatch, host):
    original = thinc.model.Model.finish_update.__wrapped__
    monkeypatch.setattr(thinc.model.Model, "finish_update", original)
    table = {"thinc": "_THINC", "spaCy": "_SPACY"}[host]
    monkeypatch.setattr(hooks, table, (host, "9.0.0", *getattr(hooks, table)[2:]))
    with pytest.warns(HostWarning, match=rf"Can't hook into {host}: expected version .*found 9\.0\.0") as warned:
        hooks.install(TorchOptimizer)
    assert len(warned) == 1
    assert (thinc.model.Model.finish_update is original) == (host == "thinc")


def test_hooks_leave_a_changed_signature_alone(monkeypatch):
    def finish_update(self, optimizer, scale):
        pass

    monkeypatch.setattr(thinc.model.Model, "finish_update", finish_update)
    with pytest.warns(HostWarning, match=r"found finish_update\(self optimizer scale\)"):
        hooks.install(TorchOptimizer)
    assert thinc.model.Model.finish_update is finish_update


def test_hooks_are_not_needed_for_a_correct_update(monkeypatch):
    """With a thinc that we left alone, each param is updated by itself."""
    import numpy

    from thinc_torchopt.torch_optimizers import AdamW

    from .models import backprop, mixed_model, params_of, same

    found = []
    for with_hook in (True, False):
        thinc.api.fix_random_seed(0)
        model, optimizer, rng = mixed_model(), TorchOptimizer(AdamW(), 0.01, grad_clip=0.0), numpy.random.default_rng(0)
        if not with_hook:
            monkeypatch.setattr(thinc.model.Model, "finish_update", thinc.model.Model.finish_update.__wrapped__)
        for _ in range(5):
            backprop(model, rng)
            model.finish_update(optimizer)
        found.append(params_of(model))
    assert same(*found)


def test_hooks_do_not_warn_on_the_hosts_that_we_test():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hooks.install(TorchOptimizer)
    assert spacy.about.__version__.startswith("3.8.") and thinc.__version__.startswith("8.3.")
