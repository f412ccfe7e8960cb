"""`spacy train` tells schedules without total_steps how long the training is."""

import random
import re
import shutil
from itertools import islice

import pytest
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_train_batches
from spacy.util import registry
from thinc.api import fix_random_seed

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import ConfigError, ScheduleWarning, StateError
from thinc_torchopt.core.schedules.curves import polynomial, warmup_cosine
from thinc_torchopt.loop.data_stream import Batches, DataStream, count_steps
from thinc_torchopt.loop.setup import build

from ..models import ready_pipeline
from ..runs import config_for, contents, digests, loop_over, run

COSINE = {"@schedules": "thinc-torchopt.warmup_cosine.v1", "initial_rate": 0.01, "warmup_ratio": 0.1}


def rates_in(infos):
    """The learning rate of each step, as loggers got it."""
    return [float(re.search(r"'learn_rate_default', ([^)]+)\)", infos[step])[1]) for step in sorted(infos)]


def train(folder, corpus, *, crash_at=None, **changes):
    changes = {"training__optimizer__learn_rate": COSINE, "training__eval_frequency": 10, **changes}
    return run(config_for(folder, corpus, **changes), folder / "output", crash_at=crash_at)


def test_total_steps_are_those_that_are_made(corpus, tmp_path):
    """spaCy makes one step more than max_steps, as its first is step 0. At the last one the rate is not 0 yet. Slices
    of gradient accumulation are no steps.
    """
    rates = rates_in(train(tmp_path, corpus, steps=20, training__accumulate_gradient=2))
    assert rates == list(islice(warmup_cosine(0.01, 3, 21), 21)) and rates[-1] > 0


@pytest.mark.parametrize(("max_epochs", "max_steps"), [(4, 0), (4, 5), (2, 1000)])
def test_total_steps_of_epochs(max_epochs, max_steps, corpus, tmp_path):
    """As many as the batches of the first epoch, times epochs; or fewer."""
    changes = {"training__max_epochs": max_epochs, "training__batcher__size": 150}
    rates = rates_in(train(tmp_path, corpus, steps=max_steps, **changes))
    nlp = init_nlp(config_for(tmp_path, corpus, steps=max_steps, **changes).interpolate())
    total = count_steps(nlp, nlp.config.interpolate())
    assert total == min(max_epochs * per_epoch(nlp), max_steps + 1 if max_steps else 10**9)
    # Batches of so many words: a later epoch may have one more or less.
    assert abs(len(rates) - total) < max_epochs
    assert rates == list(islice(warmup_cosine(0.01, total_steps=total, warmup_ratio=0.1), len(rates)))


def per_epoch(nlp):
    """In a plain loop over the first epoch."""
    training = nlp.config.interpolate()["training"]
    fix_random_seed(training["seed"])
    batcher = registry.resolve({"b": training["batcher"]})["b"]
    corpus = registry.resolve(nlp.config.interpolate()["corpora"])["train"]
    examples = list(corpus(nlp))
    random.shuffle(examples)
    return len(list(batcher(examples)))


def examples_in(batches):
    return [(epoch, [id(example) for example in batch]) for epoch, batch in batches]


@pytest.mark.parametrize("stream", [Batches, DataStream, lambda batches: DataStream(batches, 2)])
def test_total_steps_batches_that_wait_come_in_their_order(stream):
    nlp, examples = ready_pipeline(["tagger"])

    def batches():
        random.seed(0)
        return create_train_batches(
            nlp, lambda nlp: examples, registry.batchers.get("spacy.batch_by_sequence.v1")(5), 3
        )

    plain = examples_in(stream(batches()))
    counted = stream(batches())
    assert counted.count_first_epoch() == counted.count_first_epoch() == sum(epoch == 0 for epoch, _ in plain)
    assert counted.count_steps(0) == len(plain) and counted.count_steps(3) == 4
    assert examples_in(counted) == plain
    assert counted.count_steps(0) == len(plain)  # also when all were drawn


def test_total_steps_wait_for_the_batch_that_ends_the_epoch():
    """Also in a run that goes on: batches that are drawn again count."""
    for drawn in range(7):
        batches = Batches(iter([(0, [1]), (0, [2]), (0, [3]), (1, [4]), (1, [5]), (2, [6])]))
        assert len(list(islice(batches, drawn))) == min(drawn, 6)
        assert batches.count_first_epoch() == 3
        assert [batch for _, batch in batches] == [[i] for i in range(drawn + 1, 7)]


def test_total_steps_of_batches_of_ones_own():
    nlp, examples = ready_pipeline(["tagger"])
    optimizer = TorchOptimizer(AdamW(), polynomial(0.1, 0))

    def rates(max_steps):
        settings = {"dropout": 0.1, "eval_frequency": 3, "max_steps": max_steps}
        loop = loop_over(nlp, optimizer, [examples[:4]] * 6, lambda: (0.5, {}), **settings)
        return [info["learn_rate_default"] for _, info, _ in loop]

    with pytest.raises(ConfigError, match="batches that are not spaCy's own, which can't be counted"):
        rates(0)
    assert rates(4) == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02])  # a rounding


@pytest.mark.parametrize(("crash_at", "changes"), [(2, {"steps": 9}), (7, {"steps": 0, "training__max_epochs": 2})])
def test_total_steps_of_a_run_that_goes_on(crash_at, changes, corpus, tmp_path):
    """To the last bit as one that was not stopped, with batches that were drawn ahead."""
    whole = train(tmp_path / "whole", corpus, **changes)
    begun = train(tmp_path / "parts", corpus, crash_at=crash_at, **changes)
    went_on = train(tmp_path / "parts", corpus, **changes)
    assert len(begun) == crash_at and min(went_on) > 0
    assert {**begun, **went_on} == whole
    assert digests(tmp_path / "parts" / "output") == digests(tmp_path / "whole" / "output")


def test_total_steps_another_end_is_a_choice(corpus, tmp_path):
    """Refused as it is; the old curve with the number in the config; or the new one, from this step on."""
    assert len(train(tmp_path / "run", corpus, steps=20, crash_at=11)) == 11
    before = contents(tmp_path / "run" / "state")
    with pytest.raises(StateError, match=r"training of 21 steps, as when it began, found one of 31.*total_steps = 21"):
        train(tmp_path / "run", corpus, steps=30)
    assert contents(tmp_path / "run" / "state") == before and not (tmp_path / "run" / "state" / "lock.json").exists()
    warn = {"training__optimizer__checkpoint__on_config_change": "warn", "steps": 30}
    for name in ("old", "new"):
        shutil.copytree(tmp_path / "run", tmp_path / name)
    with pytest.warns(ScheduleWarning, match="continues at step 11 of a training of 31 steps.*had 21"):
        rates = rates_in(train(tmp_path / "new", corpus, **warn))
    assert rates == list(islice(warmup_cosine(0.01, 4, 31), 31 - len(rates), 31)) and len(rates) in (20, 21)
    with pytest.warns(match="learn_rate.total_steps: None before, 21 now"):
        rates = rates_in(
            train(tmp_path / "old", corpus, **warn, training__optimizer__learn_rate={**COSINE, "total_steps": 21})
        )
    assert rates == list(islice(warmup_cosine(0.01, 3, 21), 31 - len(rates), 31))


def test_total_steps_are_known_to_commands(corpus, tmp_path):
    """As the training will have it."""
    for name, changes in (("steps", {"steps": 20}), ("epochs", {"steps": 0, "training__max_epochs": 2})):
        config = config_for(tmp_path, corpus, **changes, training__optimizer__learn_rate=COSINE)
        config.to_disk(tmp_path / f"{name}.cfg")
        setup = build(tmp_path / f"{name}.cfg")
        total = setup.count_steps()
        assert setup.optimizer.schedules["learn_rate"].total_steps == total == (21 if name == "steps" else total)
    config_for(tmp_path, corpus, steps=0, training__optimizer__learn_rate=COSINE).to_disk(tmp_path / "none.cfg")
    with pytest.raises(ConfigError, match="Can't find the end of the training"):
        build(tmp_path / "none.cfg")
