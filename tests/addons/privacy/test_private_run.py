"""Private training from the config: against plain training where nothing is hidden, and against Opacus' own numbers."""

import io
import math
import shutil

import numpy
import pytest
import spacy
import srsly
import torch
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as spacy_train
from spacy.util import registry

from thinc_torchopt.addons.modular.optimizer import Modular
from thinc_torchopt.addons.privacy import private_run
from thinc_torchopt.addons.privacy.accounting import Account, epsilon_of, least_noise
from thinc_torchopt.addons.privacy.private_run import (
    Privacy,
    plan_privacy,
    plan_private_training,
    what_is_not_covered,
)
from thinc_torchopt.addons.trials.trial import WRITES, begin_training
from thinc_torchopt.core import compat
from thinc_torchopt.core.compat import has_opacus
from thinc_torchopt.core.errors import ConfigError, MissingPackageError, NonFiniteGradError, ParamError, RollbackWarning
from thinc_torchopt.core.state.files import read_folder
from thinc_torchopt.loop.checkpoint_folder import newest_whole
from thinc_torchopt.loop.run import Run

from ...models import TOK2VEC, WIDTH, params_of
from ...runs import config_for, digests, run
from ..controller.kit import BEST, definition, rule

PRIVACY = {"@misc": "thinc-torchopt.Privacy.v1", "clip": 0.5, "delta": 1e-4, "noise_multiplier": 0.0}
needs_opacus = pytest.mark.skipif(not has_opacus, reason="opacus is not installed")
# Without Opacus, all but the noise and its accounting.
noises = pytest.mark.parametrize("noise", [0.0, pytest.param(1.0, marks=needs_opacus)])


def private(folder, corpus, *, steps=12, size=5, noise=0.0, **changes):
    settings = {"noise_multiplier": noise} if noise is not None else {"noise_multiplier": None}
    changes = {
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
    return len(list(DocBin().from_disk(corpus["train"]).get_docs(spacy.blank("xx").vocab)))


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
        steps=2,
        size=n,
        training__optimizer__learn_rate=0.3,
        **plain,
        training__optimizer__privacy=with_all,
    )
    theirs = private(tmp_path, corpus, steps=2, size=n, training__optimizer__learn_rate=0.3 / n, **plain)
    theirs["training"]["optimizer"].pop("privacy")
    theirs["training"]["batcher"] = {"@batchers": "spacy.batch_by_sequence.v1", "size": n, "get_length": None}
    found, expected = (trained(config) for config in (ours, theirs))
    for name in ("tok2vec", "tagger"):
        for one, other in zip(params_of(found.get_pipe(name).model), params_of(expected.get_pipe(name).model)):
            # float32, summed in another order over three updates
            numpy.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)


@noises
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_private_run_that_was_killed_ends_as_one_that_was_not(tmp_path, corpus, noise):
    changes = {"training__optimizer__param_groups": {"later": {"params": ["tok2vec/embed/*"], "unfreeze_at": 5}}}
    whole = private(tmp_path / "whole", corpus, noise=noise, steps=9, **changes)
    run(whole, tmp_path / "whole" / "output")
    broken = private(tmp_path / "broken", corpus, noise=noise, steps=9, **changes)
    run(broken, tmp_path / "broken" / "output", crash_at=7)
    run(broken, tmp_path / "broken" / "output")
    assert digests(tmp_path / "broken" / "output") == digests(tmp_path / "whole" / "output")
    saved = newest_whole(tmp_path / "broken" / "state")
    assert saved.listeners["privacy"]["history"] == [[noise, 5 / population(corpus), 10]]


@needs_opacus
def test_private_target_ends_the_training_with_opacus_own_epsilon(tmp_path, corpus, caplog):
    from opacus.accountants import PRVAccountant, RDPAccountant

    settings = {**PRIVACY, "noise_multiplier": 1.0, "target_epsilon": 2.0}
    config = private(tmp_path, corpus, steps=500, training__optimizer__privacy=settings, training__patience=0)
    infos = run(config, tmp_path / "output")
    steps, rate = max(infos) + 1, 5 / population(corpus)

    def epsilon(accountant, n):
        accountant.history = [(1.0, rate, n)]
        return accountant.get_epsilon(delta=1e-4)

    assert epsilon(PRVAccountant(), steps) <= 2.0 < epsilon(PRVAccountant(), steps + 1)
    last = entry(infos[max(infos)])
    assert last["epsilon"] == pytest.approx(epsilon(PRVAccountant(), steps))
    assert last["privacy"]["epsilon_rdp"] == pytest.approx(epsilon(RDPAccountant(), steps))
    assert last["privacy"]["updates"] == steps
    # It is over, also when it is started again.
    for again in (False, True):
        assert "Private training ends: one more update would exceed epsilon 2." in caplog.text
        caplog.clear()
        assert again or run(config, tmp_path / "output") == {}


@needs_opacus
@pytest.mark.filterwarnings("ignore:Resuming although the config has changed")
def test_private_run_that_has_used_more_than_a_lower_target_is_over(tmp_path, corpus):
    settings = {**PRIVACY, "noise_multiplier": 1.0, "target_epsilon": 99.0, "accountant": "rdp"}
    config = private(tmp_path, corpus, steps=9, training__optimizer__privacy=settings)
    config["training"]["optimizer"]["checkpoint"]["on_config_change"] = "warn"
    run(config, tmp_path / "output", crash_at=7)
    config["training"]["optimizer"]["privacy"]["target_epsilon"] = 0.1
    assert run(config, tmp_path / "output") == {}


@needs_opacus
@pytest.mark.filterwarnings("ignore:Optimal order")
def test_private_noise_is_the_least_for_the_target(tmp_path, corpus, caplog):
    from opacus.accountants.utils import get_noise_multiplier

    settings = {"@misc": PRIVACY["@misc"], "clip": 0.5, "delta": 1e-4, "target_epsilon": 5.0, "accountant": "rdp"}
    config = private(*(tmp_path, corpus), steps=10, training__optimizer__privacy=settings, training__eval_frequency=10)
    last = entry(run(config, tmp_path / "output")[10])
    rate = 5 / population(corpus)
    least = get_noise_multiplier(target_epsilon=5.0, target_delta=1e-4, sample_rate=rate, steps=11, accountant="rdp")
    assert last["privacy"]["noise_multiplier"] == least
    assert last["epsilon"] == last["privacy"]["epsilon_rdp"] <= 5.0
    # Whoever trains longer keeps the noise, and has used the epsilon.
    config["training"]["max_steps"] = 20
    assert run(config, tmp_path / "output") == {}
    assert caplog.text.count(f"noise multiplier {least:.4g}") == 2


@noises
def test_private_empty_batches_count_and_get_noise(tmp_path, corpus, noise):
    config = private(tmp_path, corpus, steps=10, size=1, noise=noise, training__optimizer__checkpoint=None)
    config["training"]["optimizer"]["algorithm"] = {"@torch_optimizers": "thinc-torchopt.Modular.v1"}
    sizes, values, told = [], [], []
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
        patch.setattr(Modular, "begin_step", lambda self, **sizes: told.append(sizes))
        spacy_train(nlp, None, stdout=io.StringIO(), stderr=io.StringIO())
    assert len(sizes) == 11 and 0 in sizes and not told  # of the size of a batch
    if noise:
        assert all(values)


def test_table_of_a_run_that_begins_with_an_empty_batch(tmp_path, corpus):
    """spaCy's table wants a loss for each component, also of a run that is not private."""
    config = private(tmp_path, corpus, steps=4, training__optimizer__checkpoint=None, training__eval_frequency=1)
    config["training"]["optimizer"]["privacy"] = None
    config["training"]["batcher"] = {"@batchers": "test-private.FirstEmpty.v1"}

    @spacy.registry.batchers("test-private.FirstEmpty.v1")
    def create_batcher():
        return lambda items: iter([[], list(items)])

    table = io.StringIO()
    spacy_train(init_nlp(config.interpolate()), None, stdout=table, stderr=io.StringIO())
    rows = table.getvalue().split("------\n", 1)[1].splitlines()
    losses = [float(row.split()[3]) for row in rows if row]  # of the tagger: every other batch is empty
    assert [loss > 0.0 for loss in losses] == [False, True, False, True, False]


def test_private_log_has_no_epsilon_without_noise(tmp_path, corpus):
    infos = run(private(tmp_path, corpus, steps=5, training__eval_frequency=5), tmp_path / "output")
    last = entry(infos[5])
    assert last["epsilon"] is None and last["privacy"]["updates"] == 6 and "privacy" not in entry(infos[4])


def saved_at(folder, step):
    return read_folder(folder / "state" / f"step-{step:08d}")


@noises
def test_private_rollback_takes_back_params_and_not_the_count(tmp_path, corpus, noise):
    """A rule goes back to the best after step 9. The updates before it have used their epsilon."""
    back = definition(rule("back", "on_step_end", 'state["step"] == 9', "best.should_rollback"), operations=[BEST])
    (tmp_path / "rules.yaml").write_text(srsly.yaml_dumps(back))
    rules = {"@misc": "thinc-torchopt.TrainerController.v1", "definition": str(tmp_path / "rules.yaml")}
    config = private(tmp_path, corpus, noise=noise, training__optimizer__controller=rules)
    config["training"]["optimizer"]["checkpoint"]["keep"] = 9
    with pytest.warns(RollbackWarning, match="after step 9: a rule or listener asked for the best"):
        infos = run(config, tmp_path / "output")
    to = saved_at(tmp_path, 9)["progress"]["rollbacks"][0][1]
    before, after = saved_at(tmp_path, to), saved_at(tmp_path, 9)
    assert str(before["model"]) == str(after["model"])
    [(_, _, updates)] = after["listeners"]["privacy"]["history"]
    assert updates == 10 and entry(infos[10])["privacy"]["updates"] == 11


# ---------------------------------------------------------------------- several runs from one checkpoint


def branches(tmp_path, corpus):
    """A run of six steps without noise, and a function that goes on from its end for one step, with changes to the
    config. It returns the step, and the texts in its batches, from the first one.
    """
    changes = {
        "training__optimizer__algorithm": {"@torch_optimizers": "torch.SGD.v1"},
        "training__optimizer__learn_rate": 1.0,
        "training__optimizer__use_averages": False,
        "training__dropout": 0.0,
        "training__eval_frequency": 100,  # the accounting takes time
    }
    root = tmp_path / "root"
    run(private(root, corpus, steps=5, **changes), root / "output")

    def weights(folder):
        nlp = spacy.load(folder / "output" / "model-last")
        found = [params_of(nlp.get_pipe(name).model) for name in ("tok2vec", "tagger")]
        return torch.cat([one.flatten() for params in found for one in params]).double()

    def branch(name, corpus=corpus, **more):
        folder, drawn = tmp_path / name, []
        shutil.copytree(root / "state", folder / "state")
        config = private(folder, corpus, **{"steps": 6, **changes, **more})
        config["training"]["optimizer"]["checkpoint"]["on_config_change"] = "warn"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Run, "next_batch", lambda self, original=Run.next_batch: noted(original(self), drawn))
            run(config, folder / "output")
        return weights(root) - weights(folder), drawn

    return branch


def noted(batch, drawn):
    drawn += [example.reference.text for example in batch or ()]
    return batch


def cosine(one, other):
    return float(one @ other / (one.norm() * other.norm()))


@needs_opacus
@pytest.mark.filterwarnings("ignore:The best model so far")  # the state alone is copied
@pytest.mark.filterwarnings("ignore:Resuming although the config has changed")
def test_private_runs_from_one_checkpoint_have_independent_noise(tmp_path, corpus, caplog):
    """The oracle is the clipped sum itself: a step without noise. With the same noise in two steps of 1.0 and 0.9 times
    its size, ten times the second less nine times the first is that sum.
    """
    branch = branches(tmp_path, corpus)
    clipped, _ = branch("quiet", noise=0.0)
    loud, _ = branch("loud", noise=1.0)
    less, _ = branch("less", noise=0.9)
    # Five standard errors of the cosine of independent vectors.
    chance = 5 / len(clipped) ** 0.5
    assert abs(cosine(10 * less - 9 * loud, clipped)) < chance
    assert abs(cosine(loud, less)) < chance
    # noise_multiplier * clip / size. Five standard errors of a standard deviation.
    assert abs((loud - clipped).std() / (1.0 * 0.5 / 5) - 1) < 5 / (2 * len(clipped)) ** 0.5
    # An exact repetition tells nothing new. A longer training repeats its first steps.
    again, _ = branch("again", noise=1.0, training__patience=77)
    assert torch.equal(again, loud)
    assert "goes on after 6 updates: epsilon is that of this run." in caplog.text


@needs_opacus
@pytest.mark.filterwarnings("ignore:The best model so far")  # the state alone is copied
@pytest.mark.filterwarnings("ignore:Resuming although the config has changed")
def test_private_noise_is_fresh_after_the_data_has_changed(tmp_path, corpus):
    """Also before a changed example is drawn: two runs that first differ then would tell when it is."""
    vocab, docs = spacy.blank("xx").vocab, []
    for i, doc in enumerate(DocBin().from_disk(corpus["train"]).get_docs(vocab)):
        words, tags = [token.text for token in doc], [token.tag_ for token in doc]
        docs.append(Doc(vocab, words=[*words, f"n{i}"], tags=[*tags, tags[0]]))
    changed = {**corpus, "train": tmp_path / "train.spacy"}
    DocBin(docs=docs).to_disk(changed["train"])
    branch = branches(tmp_path, changed)
    before, drawn = branch("before", noise=1.0)
    # The batches of both runs are the same, and the example is in none.
    doc = next(doc for doc in docs if doc.text not in drawn)
    doc[0].tag_ = next(token.tag_ for token in doc if token.tag_ != doc[0].tag_)
    DocBin(docs=docs).to_disk(changed["train"])
    after, same = branch("after", noise=1.0)
    assert same == drawn
    assert abs(cosine(before, after)) < 5 / len(before) ** 0.5


@needs_opacus
def test_private_new_label_gets_noise(tmp_path):
    """The oracle: the weights of a label that no example has move by noise alone."""
    nlp, docs = spacy.blank("xx"), []
    for i, text in enumerate(["a good day", "a bad one", "so good", "so very bad"] * 5):
        doc = nlp(text)
        doc.cats = {"GOOD": float(not i % 2), "BAD": float(i % 2)}
        docs.append(doc)
    DocBin(docs=docs, store_user_data=True).to_disk(tmp_path / "train.spacy")
    new = []

    @registry.callbacks("test-private.AddLabel.v1")
    def add_label():
        def before_update(nlp, args):
            textcat = nlp.get_pipe("textcat_multilabel")
            if args["step"] == 3:
                textcat.add_label("NEW")
            if args["step"] >= 3:
                new.append(textcat.model.get_ref("output_layer").get_param("b")[-1].item())

        return before_update

    model = {"@architectures": "spacy.TextCatReduce.v1", "exclusive_classes": False, "use_reduce_mean": True}
    model |= {"use_reduce_first": False, "use_reduce_last": False, "use_reduce_max": False, "tok2vec": TOK2VEC}
    corpus = {"train": tmp_path / "train.spacy", "dev": tmp_path / "train.spacy"}
    config = private(
        *(tmp_path, corpus),
        noise=1.0,
        steps=6,
        nlp__pipeline=["textcat_multilabel"],
        components={"textcat_multilabel": {"factory": "textcat_multilabel", "model": model}},
        training__before_update={"@callbacks": "test-private.AddLabel.v1"},
        training__score_weights={"cats_score": 1.0},
        training__optimizer__checkpoint=None,
        training__optimizer__new_params_warmup=0,
    )
    trained(config)
    assert len(new) == len(set(new)) == 4


def test_private_settings_are_refused_in_own_loops(tmp_path, corpus):
    """Nobody adds noise there. Nothing is trained."""
    config = private(tmp_path, corpus).interpolate()
    nlp = init_nlp(config)
    optimizer = registry.resolve({"optimizer": config["training"]["optimizer"]})["optimizer"]
    optimizer.set_total_steps(10)
    examples = list(Corpus(corpus["train"])(nlp))
    before = params_of(nlp.get_pipe("tagger").model)
    clipped = r"expected gradients that were clipped .* thinc_torchopt\.privacy\.clip_each_example"
    with pytest.raises(ConfigError, match=clipped):
        nlp.update(examples[:2], sgd=optimizer)
    for one, other in zip(before, params_of(nlp.get_pipe("tagger").model)):
        assert torch.equal(one, other)
    settings = optimizer.attachments["privacy"]
    settings.has_noise = True  # of one update
    settings.check_update(optimizer)
    with pytest.raises(ConfigError, match=clipped):
        settings.check_update(optimizer)


@needs_opacus
def test_private_short_trainings_have_the_noise_of_the_whole_one(tmp_path, corpus):
    """find-lr and explain --time."""
    given = {"clip": 0.5, "delta": 1e-4, "target_epsilon": 5.0, "accountant": "rdp"}
    settings = {"@misc": PRIVACY["@misc"], **given}
    nlp = init_nlp(private(tmp_path, corpus, steps=300, training__optimizer__privacy=settings).interpolate())
    config = nlp.config.interpolate()
    block = {name: value for name, value in config["training"]["optimizer"].items() if name not in WRITES}
    short = begin_training(nlp, config, block, max_steps=2, eval_frequency=9, evaluate=lambda: (0.0, {}))
    whole = plan_private_training(Privacy(**given), nlp, config, short.optimizer)
    few = least_noise(5.0, 1e-4, whole.sample_rate, 3, "rdp")
    assert short.optimizer.attachments["privacy"].noise_multiplier == whole.noise_multiplier > few
    assert len(list(short.steps)) == 3


# ---------------------------------------------------------------------- what is refused


BATCHER, OPTIMIZER = "training__batcher", "training__optimizer__"
EMBED = {"@architectures": "spacy.MultiHashEmbed.v2", "width": WIDTH, "attrs": ["NORM"], "rows": [50]}
MISH = {"@architectures": "spacy.MishWindowEncoder.v2", "width": WIDTH, "depth": 2, "window_size": 1}
WITH_MISH = {"@architectures": "spacy.Tok2Vec.v2", "embed": {**EMBED, "include_static_vectors": False}, "encode": MISH}
FALLS = {"@schedules": "thinc-torchopt.warmup_stable_decay.v1", "initial_rate": 0.01, "warmup_steps": 1}
BUDGETED = {
    OPTIMIZER + "privacy": {**PRIVACY, "noise_multiplier": 1.0, "target_epsilon": 8.0},
    OPTIMIZER + "budget": {"@misc": "thinc-torchopt.Budget.v1", "limit": "30 steps"},
    OPTIMIZER + "learn_rate": {**FALLS, "decay_ratio": 0.2},
    "training__max_steps": 0,
    "training__patience": 0,
}
ENDLESS = {
    OPTIMIZER + "privacy": {**PRIVACY, "noise_multiplier": None, "target_epsilon": 8.0},
    "training__max_steps": 0,
    "training__max_epochs": 0,
}
NORMALIZED = {"@torch_optimizers": "thinc-torchopt.Modular.v1", "normalize": "examples"}


@pytest.mark.parametrize(
    "changes, error, expected",
    [
        (
            {BATCHER: {"@batchers": "spacy.batch_by_sequence.v1", "size": 4, "get_length": None}},
            ConfigError,
            r"Poisson sampling, found .*thinc-torchopt\.poisson\.v1",
        ),
        ({"training__max_epochs": -1}, ConfigError, "streamed corpus"),
        ({OPTIMIZER + "recorder": {"@misc": "thinc-torchopt.Recorder.v1"}}, ConfigError, "the record tells"),
        ({OPTIMIZER + "precision": "bf16"}, ConfigError, "precision = 'bf16'"),
        (ENDLESS, ConfigError, r"'noise_multiplier' in .*depends on the number of updates, found None\. Set max_steps"),
        (BUDGETED, ConfigError, "'target_epsilon' in .*could end the training before the learning rate falls"),
        ({OPTIMIZER + "privacy": {**PRIVACY, "delta": 0.1}}, ConfigError, "'delta' in .*far below 1 divided by the"),
        ({OPTIMIZER + "algorithm": NORMALIZED}, ConfigError, "'normalize' in .*Remove 'normalize'"),
        ({"components__tok2vec__model": WITH_MISH}, ParamError, "does not support layer 'mish'"),
    ],
)
@pytest.mark.filterwarnings("ignore:precision = .bf16. in")
def test_private_refuses_before_the_first_step(tmp_path, corpus, changes, error, expected, monkeypatch):
    config = private(tmp_path, corpus, **changes)
    monkeypatch.setattr(Run, "begin", lambda run: pytest.fail("the training begins"))
    with pytest.raises(error, match=expected):
        trained(config)


def test_private_refuses_several_processes(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(private_run, "is_launched", lambda: True)
    with pytest.raises(ConfigError, match="in several processes: train in one"):
        trained(private(tmp_path, corpus))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"delta": 0.25, "noise_multiplier": 0.0}, "'delta'.*1 / 4, found 0.25"),
        pytest.param(
            {"delta": 1e-4, "noise_multiplier": 0.1, "target_epsilon": 0.01}, "'target_epsilon'", marks=needs_opacus
        ),
    ],
)
def test_private_refuses_numbers_that_allow_no_update(given, expected):
    settings = Privacy(clip=0.5, accountant="rdp", **given)
    account = Account(settings.delta, "rdp")
    with pytest.raises(ConfigError, match=expected):
        plan_privacy(settings, population=4, size=1, count_steps=lambda: 1, account=account)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_private_update_that_can_not_be_made_ends_the_run(tmp_path, corpus):
    """As the scores of spaCy's tagger are NaN, error E940. Plain training skips such updates."""

    @registry.callbacks("test-private.Spoil.v1")
    def spoil():
        return lambda nlp, args: nlp.get_pipe("tagger").model.get_ref("output_layer").get_param("b").fill(math.nan)

    config = private(tmp_path, corpus, steps=1, training__before_update={"@callbacks": "test-private.Spoil.v1"})
    with pytest.raises(
        NonFiniteGradError, match=r"of step 0: \[E940\] .* With \[.*privacy\] it can't be .* Lower learn_rate"
    ):
        trained(config)


def test_private_needs_opacus_for_noise(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(compat, "has_opacus", False)
    with pytest.raises(MissingPackageError, match=r"count the epsilon.*opacus"):
        trained(private(tmp_path, corpus, noise=1.0))


def test_epsilon_is_infinite_without_noise():
    assert epsilon_of([(0.0, 0.1, 3)], 1e-5, "prv") == math.inf
    assert epsilon_of([], 1e-5, "prv") == 0.0


def test_private_settings_that_give_less_than_they_seem_to_are_told_or_refused():
    settings = {"clip": 0.5, "delta": 1e-4}
    for own, of_training, told in ((None, None, ""), (1, None, "N"), (None, 0, "L"), (0, 1, "LN")):
        found = what_is_not_covered(Privacy(**settings, noise_multiplier=1.0, seed=own), of_training)
        assert [line.partition(" is private from those who know")[0] for line in found] == [
            {"N": "Nothing", "L": "Less"}[one] for one in told
        ]
    with pytest.raises(ConfigError, match=r"a number above 0, as there is a target_epsilon, found 0\.0"):
        Privacy(**settings, noise_multiplier=0.0, target_epsilon=1.0)
