"""Private training from the config: against plain training where nothing is hidden, and against Opacus' own numbers."""

import io
import math

import numpy
import pytest
import spacy
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as spacy_train

from thinc_torchopt.compat import has_opacus
from thinc_torchopt.errors import ConfigError, MissingPackageError, ParamError
from thinc_torchopt.privacy import epsilon_of
from thinc_torchopt.training.checkpoint_folder import newest_whole
from thinc_torchopt.training.run import Run

from ..models import params_of
from ..runs import config_for, digests, run

PRIVACY = {"@misc": "thinc-torchopt.Privacy.v1", "clip": 0.5, "delta": 1e-4, "noise_multiplier": 0.0}
needs_opacus = pytest.mark.skipif(not has_opacus, reason="opacus is not installed")
# Without Opacus, all but the noise and its accounting.
noises = pytest.mark.parametrize("noise", [0.0, pytest.param(1.0, marks=needs_opacus)])


def private(folder, corpus, *, steps=12, size=5, noise=0.0, **changes):
    settings = {"noise_multiplier": noise} if noise is not None else {"noise_multiplier": None}
    changes = {
        "nlp__pipeline": ["tok2vec", "tagger"],
        "components__parser": None,
        "training__batcher": {"@batchers": "thinc-torchopt.poisson.v1", "size": size},
        "training__optimizer__grad_clip": 0.0,
        "training__optimizer__privacy": {**PRIVACY, **settings, "seed": 1},
        **changes,
    }
    return config_for(folder, corpus, steps=steps, **changes)


def trained(config):
    nlp = init_nlp(config.interpolate())
    spacy_train(nlp, None, stdout=io.StringIO(), stderr=io.StringIO())
    return nlp


def entry(info):
    """The log entry that a run of tests/runs.py has kept."""
    return dict(eval(info, {"nan": math.nan})[0])


def population(corpus):
    return len(list(DocBin().from_disk(corpus["train"]).get_docs(spacy.blank("en").vocab)))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_private_without_noise_and_clipping_is_plain_training(tmp_path, corpus, accumulate):
    n = population(corpus)
    sgd = {"@torch_optimizers": "torch.SGD.v1"}
    plain = {
        "training__optimizer__algorithm": sgd,
        "training__optimizer__use_averages": False,
        "training__optimizer__checkpoint": None,
        "training__optimizer__param_groups": {"frozen": {"params": ["tok2vec/embed/*"], "freeze": True}},
        "training__dropout": 0.0,
        "training__accumulate_gradient": accumulate,
    }
    with_all = {**PRIVACY, "clip": 1e9}
    ours = private(
        tmp_path,
        corpus,
        steps=4,
        size=n,
        training__optimizer__learn_rate=0.3,
        **plain,
        training__optimizer__privacy=with_all,
    )
    theirs = private(tmp_path, corpus, steps=4, size=n, training__optimizer__learn_rate=0.3 / n, **plain)
    theirs["training"]["optimizer"].pop("privacy")
    theirs["training"]["batcher"] = {"@batchers": "spacy.batch_by_sequence.v1", "size": n, "get_length": None}
    found, expected = (trained(config) for config in (ours, theirs))
    for name in ("tok2vec", "tagger"):
        for one, other in zip(params_of(found.get_pipe(name).model), params_of(expected.get_pipe(name).model)):
            # float32, summed in another order over five updates
            numpy.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)


@noises
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_private_run_that_was_killed_ends_as_one_that_was_not(tmp_path, corpus, noise):
    changes = {"training__optimizer__param_groups": {"later": {"params": ["tok2vec/embed/*"], "unfreeze_at": 6}}}
    whole = private(tmp_path / "whole", corpus, noise=noise, **changes)
    run(whole, tmp_path / "whole" / "output")
    broken = private(tmp_path / "broken", corpus, noise=noise, **changes)
    run(broken, tmp_path / "broken" / "output", crash_at=8)
    run(broken, tmp_path / "broken" / "output")
    assert digests(tmp_path / "broken" / "output") == digests(tmp_path / "whole" / "output")
    saved = newest_whole(tmp_path / "broken" / "state")
    assert saved.listeners["privacy"]["history"] == [[noise, 5 / population(corpus), 13]]


@needs_opacus
def test_private_target_ends_the_training_with_opacus_own_epsilon(tmp_path, corpus):
    from opacus.accountants import PRVAccountant, RDPAccountant

    settings = {**PRIVACY, "noise_multiplier": 1.0, "target_epsilon": 6.0}
    config = private(tmp_path, corpus, steps=500, training__optimizer__privacy=settings, training__patience=0)
    infos = run(config, tmp_path / "output")
    steps, rate = max(infos) + 1, 5 / population(corpus)

    def epsilon(accountant, n):
        accountant.history = [(1.0, rate, n)]
        return accountant.get_epsilon(delta=1e-4)

    assert epsilon(PRVAccountant(), steps) <= 6.0 < epsilon(PRVAccountant(), steps + 1)
    last = entry(infos[max(infos)])
    assert last["epsilon"] == pytest.approx(epsilon(PRVAccountant(), steps))
    assert last["privacy"]["epsilon_rdp"] == pytest.approx(epsilon(RDPAccountant(), steps))
    assert last["privacy"]["updates"] == steps
    # It is over, also when it is started again.
    assert run(config, tmp_path / "output") == {}


@needs_opacus
@pytest.mark.filterwarnings("ignore:Optimal order")
def test_private_noise_is_the_least_for_the_target(tmp_path, corpus):
    from opacus.accountants.utils import get_noise_multiplier

    settings = {"@misc": PRIVACY["@misc"], "clip": 0.5, "delta": 1e-4, "target_epsilon": 5.0, "accountant": "rdp"}
    config = private(tmp_path, corpus, steps=10, training__optimizer__privacy=settings)
    last = entry(run(config, tmp_path / "output")[10])
    rate = 5 / population(corpus)
    least = get_noise_multiplier(target_epsilon=5.0, target_delta=1e-4, sample_rate=rate, steps=11, accountant="rdp")
    assert last["privacy"]["noise_multiplier"] == least
    assert last["epsilon"] == last["privacy"]["epsilon_rdp"] <= 5.0


@noises
def test_private_empty_batches_count_and_get_noise(tmp_path, corpus, noise):
    config = private(tmp_path, corpus, steps=10, size=1, noise=noise, training__optimizer__checkpoint=None)
    sizes, values = [], []
    nlp = init_nlp(config.interpolate())
    original = Run.update

    def update(self, batch):
        before = params_of(self.nlp.get_pipe("tagger").model)
        original(self, batch)
        after = params_of(self.nlp.get_pipe("tagger").model)
        sizes.append(len(batch))
        values.append(sum(float((one - other).abs().sum()) for one, other in zip(before, after)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "update", update)
        spacy_train(nlp, None, stdout=io.StringIO(), stderr=io.StringIO())
    assert len(sizes) == 11 and 0 in sizes
    if noise:
        assert all(values)


def test_private_log_has_no_epsilon_without_noise(tmp_path, corpus):
    last = entry(run(private(tmp_path, corpus, steps=5), tmp_path / "output")[5])
    assert last["epsilon"] is None and last["privacy"]["updates"] == 6


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "changes, error, expected",
    [
        (
            {"training__batcher": {"@batchers": "spacy.batch_by_sequence.v1", "size": 4, "get_length": None}},
            ConfigError,
            r"Poisson sampling, found .*thinc-torchopt\.poisson\.v1",
        ),
        ({"training__max_epochs": -1}, ConfigError, "streamed corpus"),
        ({"training__optimizer__precision": "bf16"}, ConfigError, "precision = 'bf16'"),
        (
            {"training__batcher": {"@batchers": "thinc-torchopt.poisson.v1", "size": 5000}},
            ConfigError,
            "'size' in .*at most the number of examples",
        ),
        (
            {"training__optimizer__privacy": {**PRIVACY, "delta": 0.1}},
            ConfigError,
            "'delta' in .*far below 1 / ",
        ),
        (
            {
                "training__optimizer__algorithm": {
                    "@torch_optimizers": "thinc-torchopt.Modular.v1",
                    "normalize": "examples",
                }
            },
            ConfigError,
            "'normalize' in .*Remove 'normalize'",
        ),
        (
            {"nlp__pipeline": ["tok2vec", "tagger", "ner"], "components__ner": {"factory": "ner"}},
            ParamError,
            "component 'ner'",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:precision = .bf16. in")
def test_private_refuses_before_the_first_step(tmp_path, corpus, changes, error, expected):
    config = private(tmp_path, corpus, **changes)
    with pytest.raises(error, match=expected):
        trained(config)


def test_private_refuses_losses_as_guides(tmp_path, corpus):
    groups = {"all": {"params": ["*"], "policy": "adaptive", "metric": "loss"}}
    config = private(tmp_path, corpus, training__optimizer__param_groups=groups)
    with pytest.raises(ConfigError, match="follows losses or scores"):
        trained(config)


@pytest.mark.skipif(has_opacus, reason="opacus is installed")
def test_private_needs_opacus_for_noise(tmp_path, corpus):
    with pytest.raises(MissingPackageError, match=r"count the epsilon.*opacus"):
        trained(private(tmp_path, corpus, noise=1.0))


def test_epsilon_is_infinite_without_noise():
    assert epsilon_of([(0.0, 0.1, 3)], 1e-5, "prv") == math.inf
    assert epsilon_of([], 1e-5, "prv") == 0.0
