"""Two processes, where they meet other features. Their trainings are in features.py."""

import torch
from spacy.training.loop import subdivide_batch
from thinc.api import NumpyOps

from thinc_torchopt.addons.distributed.ranks import deal
from thinc_torchopt.core.types import BatchSize

from ...models import finish_step
from . import pipelines
from .test_ranks import assert_close, assert_same_on_both, grouped


def test_features_noise_is_the_same_on_all_ranks(ranks):
    """Where no seed foretells it, rank 0 makes the updates, and has the only state during the run."""
    first, second = (found["runs"] for found in ranks("noise"))
    for one, other in zip(first, second):
        assert_same_on_both(one, other)
    assert [run["cells"] > 0 for run in first] == [True, True, True]
    assert [run["cells"] > 0 for run in second] == [False, False, True]
    secret, unseeded, seeded = (torch.cat([w.flatten() for w in run["steps"][-1].values()]) for run in first)
    assert not torch.equal(secret, unseeded) and not torch.equal(secret, seeded)


def test_features_noise_of_params_that_thaw_is_the_same_on_all_ranks(ranks):
    assert_same_on_both(*ranks("noise_of_a_block"))


def test_features_modular_knows_the_words_of_all(ranks):
    """And pulls towards the weights of rank 0. As one process that accumulates."""
    first, second = ranks("words_of_all")
    assert_same_on_both(first, second)
    nlp, optimizer = pipelines.pipeline(["tagger"]), pipelines.modular_words()
    optimizer.initialize(nlp)
    for found, batch in zip(first["steps"], grouped(pipelines.batches(nlp))):
        for part in deal(batch, 2):
            if part:
                nlp.update(part, drop=0.0, sgd=False)
        optimizer.batch_size = BatchSize(sum(map(len, batch)), len(batch))
        finish_step(nlp, optimizer)
        optimizer.step_schedules()
        assert_close(found, pipelines.weights(nlp))


def test_features_budget_goes_by_the_clock_of_rank_0(ranks):
    """All ranks fall and end together."""
    first, second = ranks("budget_of_seconds")
    assert_same_on_both(first, second)
    rates = [info["learn_rates"]["default"] for info in first["infos"]]
    falls = [step for step, rate in enumerate(rates) if step > 2 and rate < 0.02]
    assert len(falls) > 1 and falls == list(range(falls[0], len(rates)))
    evaluations = sum(info["score"] is not None for info in first["infos"])
    assert 40 - 4 <= len(rates) + 3 * evaluations <= 41


def test_features_requests_of_attachments_on_rank_0_hold_for_all(ranks):
    for found in ranks("requests_of_attachments"):
        assert found["steps"] == [3, 3]


def test_features_a_gradient_on_any_rank_is_one(ranks):
    for found in ranks("gradients_on_one_rank"):
        assert found["error"].startswith("Can't train: 'senter' learns nothing: all its gradients were 0")
        assert "in 13 batches" in found["error"] and "Can't train" not in found["error"][1:]


def test_features_products_are_those_of_rank_0(ranks):
    first, second = ranks("fastest_ops")
    assert_same_on_both(first, second)
    assert first["seen"] == second["seen"] == [["_by_numpy"]] * len(first["steps"])


def test_features_fast_parsers_are_as_in_one_process(ranks, monkeypatch):
    """And as with thinc's products and spaCy's backward pass, to rounding."""
    first, second = ranks("fastest_ops_of_parsers")
    assert_same_on_both(first, second)
    assert first["seen"] == ["Batched"] * len(first["steps"])
    monkeypatch.setattr(NumpyOps, "get_dropout_mask", pipelines.no_dropout)
    nlp, optimizer = pipelines.pipeline(["parser", "ner"]), pipelines.optimizer(distributed=None)
    optimizer.initialize(nlp)
    begin = pipelines.weights(nlp)
    for found, batch in zip(first["steps"], grouped(pipelines.batches(nlp))):
        step_alone(nlp, optimizer, batch)
        expected = pipelines.weights(nlp)
        found, whole = (torch.cat([weights[name].flatten() for name in expected]) for weights in (found, expected))
        # Ten times that of `assert_close`: scores of one step of a parser are the sums of many words.
        assert (found - whole).norm() / whole.norm() <= 1e-5
    below = [f"{name}/2/W" for name in ("parser", "ner")]
    assert not any(torch.equal(begin[name], expected[name]) for name in below)


def test_features_losses_under_other_names_are_added(ranks):
    """Also where a name comes in mid-training."""
    first, second = ranks("own_losses")
    assert_same_on_both(first, second)
    sizes = [len(batch) for batch in grouped(pipelines.batches(pipelines.pipeline(["tagger"])))]
    for found in (first, second):
        losses = [info["losses"].get("tagger/second", 0.0) for info in found["infos"]]
        # Evaluated, and so begun anew, after step 0.
        assert losses == [0.0, 0.0, *(float(sum(sizes[2 : i + 1])) for i in range(2, len(sizes)))]


def test_features_attributes_of_documents_are_shared(ranks):
    for found in ranks("own_attributes"):
        assert len(found["found"]) == 9 and all(words == [n] for words, n in found["found"])


def test_features_other_development_data_is_noticed(ranks):
    for found in ranks("other_development_data"):
        assert "rank 1 reads other development data than rank 0" in found["error"]


def step_alone(nlp, optimizer, batch):
    """A step of one process on the batches of two: it accumulates their gradients. The order within a batch, which is
    spaCy's, matters to parsers: they take its last word for words that are lacking.
    """
    for part in deal(batch, 2):
        for sorted_part in subdivide_batch(part, 1):
            with optimizer.training():
                nlp.update(sorted_part, drop=0.0, sgd=False)
    finish_step(nlp, optimizer)
    optimizer.step_schedules()


def test_features_exact_recurrent_layer_is_as_with_bptt_in_one_process(ranks):
    first, second = ranks("recurrent")
    assert_same_on_both(first, second)
    nlp, optimizer = pipelines.recurrent("bptt"), pipelines.optimizer(param_groups={}, distributed=None)
    optimizer.initialize(nlp)
    optimizer.freeze(["*/embed/*"])
    begin = pipelines.weights(nlp)
    for found, batch in zip(first["steps"], grouped(pipelines.batches(nlp))):
        step_alone(nlp, optimizer, batch)
        expected = pipelines.weights(nlp)
        assert_close(found, expected)
    moved = {name for name in begin if not torch.equal(begin[name], expected[name])}
    assert {name for name in begin if "/mingru" in name} <= moved
    assert not any("/embed/" in name for name in moved)


def test_features_error_of_one_rank_ends_others(ranks):
    first, second = ranks("error_on_one_rank")
    assert second["error"] == "ValueError: the widget\nhas no handle"
    assert first["error"].startswith(
        "DistributedError: Can't sum gradients on rank 0: expected all 2 ranks to take part"
    )


def test_features_masters_are_the_same_on_all_ranks(ranks):
    """To the last bit, also where each rank keeps a part of the state and sends the others its masters."""
    first, second = (found["runs"] for found in ranks("masters"))
    for one, other in zip(first, second):
        assert_same_on_both(one, other)
        assert_same_on_both(one, first[0])
        assert len(one["masters"]) == 6
        for name, master in one["masters"].items():
            assert torch.equal(master, other["masters"][name]) and torch.equal(master, first[0]["masters"][name])
            assert master.dtype == torch.float32 and not torch.equal(master, master.bfloat16().float())


def test_features_split_state_follows_renamed_components(ranks):
    """And a new label: its weights are those of ranks that keep all of it."""
    (whole, split), others = (found["runs"] for found in ranks("renamed"))
    assert_same_on_both(whole, split)
    for one, other in zip((whole, split), others):
        assert_same_on_both(one, other)


def test_features_labels_of_entities_that_come_with_the_texts_of_one_rank(ranks):
    """All ranks add them at the same step, in the same order; so does a run that is resumed."""
    first, second = ranks("late_labels")
    assert_same_on_both(first["whole"], second["whole"])
    assert [move for move in first["whole"]["moves"] if move.startswith("B-L")] == [f"B-L{i}" for i in range(6)]
    for found in (first, second):
        assert all(part["moves"] == first["whole"]["moves"] for part in (found["whole"], *found["parts"]))
        steps = [weights for part in found["parts"] for weights in part["steps"]]
        assert len(found["parts"][1]["steps"]) < len(steps) == len(found["whole"]["steps"])
        for one, other in zip(steps, found["whole"]["steps"]):
            assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_features_split_state_is_whole_after_a_run(ranks):
    """On all ranks, to the last bit, so that the optimizer can be saved, or train again."""
    (whole, whole_again, *split), others = (found["runs"] for found in ranks("run_again"))
    for first, second in (split, others[2:]):
        assert_same_on_both(whole, first)
        assert_same_on_both(whole_again, second)
        assert 0 < first["cells"] < whole["cells"]
        saved = first["saved"]["params"]
        assert saved.keys() == whole["saved"]["params"].keys()
        for name, found in whole["saved"]["params"].items():
            assert found["updates"] == saved[name]["updates"] and found["state"].keys() == saved[name]["state"].keys()
            assert all(torch.equal(value, saved[name]["state"][key]) for key, value in found["state"].items())


def test_features_bf16_is_as_in_one_process(ranks):
    """That accumulates. The rate of step 0 is 0, so both compute step 1 with the same weights. Then their last digits
    differ, and may be rounded apart: bfloat16 has 8 bits.
    """
    first, second = ranks("bf16")
    assert_same_on_both(first, second)
    nlp, optimizer = pipelines.pipeline(["torch"]), pipelines.optimizer(precision="bf16", distributed=None)
    optimizer.initialize(nlp)
    for i, (found, batch) in enumerate(zip(first["steps"], grouped(pipelines.batches(nlp)))):
        step_alone(nlp, optimizer, batch)
        expected = pipelines.weights(nlp)
        if i < 2:
            assert_close(found, expected)
        together = [torch.cat([weights[name].flatten() for name in expected]) for weights in (found, expected)]
        assert (together[0] - together[1]).norm() / together[1].norm() <= 2**-8
