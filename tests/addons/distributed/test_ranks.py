"""Two processes that train together, against one that does the same work.

All trainings of the two are in one launch: see worker.py.
"""

import math
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinc_torchopt.addons.distributed.ranks import deal
from thinc_torchopt.core.errors import CheckpointWarning
from thinc_torchopt.loop.checkpoint_folder import read_checkpoint

from ...runs import config_for, run
from ...spacy_cli import toy_corpus
from . import pipelines
from .conftest import launch


def one_process(components, *, grads=None, factor=1.0, batches=None, **settings):
    """What one process gets that accumulates what two ranks train on: the weights after each step, the averages, the
    norms of the gradients, and the learning rates.

    grads: Of each step, instead of computing them: of each rank, by name.
    """
    nlp, optimizer = pipelines.pipeline(components), pipelines.optimizer(**settings)
    optimizer.initialize(nlp)
    steps, norms, rates = [], [], []
    for i, batch in enumerate(grouped(batches or pipelines.batches(nlp))):
        for rank, part in enumerate(deal(batch, 2)):
            if part and grads is None:
                nlp.update(part, drop=0.0, sgd=False)
            elif part:
                for param in optimizer._trained.params:
                    if param.name in grads[rank][i]:
                        add_grad(nlp, param, grads[rank][i][param.name])
        with optimizer.joint_step():
            for _, pipe in nlp.pipeline:
                pipe.finish_update(optimizer)
        norms.append(optimizer.grad_norm)
        rates.append(dict(optimizer.learn_rates))
        optimizer.step_schedules()
        steps.append(pipelines.weights(nlp))
    with nlp.use_params(optimizer.averages):
        return {"steps": steps, "averages": pipelines.weights(nlp), "norms": norms, "rates": rates}


def grouped(batches):
    """Two batches of an epoch as one, as ranks take them."""
    found, rest = [], list(batches)
    while rest:
        epoch, batch = rest.pop(0)
        found.append([*batch, *(rest.pop(0)[1] if rest and rest[0][0] == epoch else [])])
    return found


def add_grad(nlp, param, grad):
    for _, pipe in nlp.pipeline:
        for node in pipe.model.walk():
            for name in node.param_names:
                if (node.id, name) == param.key:
                    node.inc_grad(name, grad.numpy())
                    return
    raise AssertionError(param.name)


def assert_close(found, expected):
    """The relative error of all weights, and of those of each param. float32 has 7 digits, and sums in another order
    differ in the last one. AdamW divides gradients by their size, so that those of small biases count as much as all.
    """
    assert found.keys() == expected.keys()
    together = [torch.cat([weights[name].flatten() for name in expected]) for weights in (found, expected)]
    assert (together[0] - together[1]).norm() / together[1].norm() <= 1e-6
    for name, value in expected.items():
        error = (found[name] - value).norm() / value.norm().clamp(min=1e-12)
        assert error <= 1e-5, (name, float(error))


def assert_same_on_both(first, second):
    assert len(first["steps"]) == len(second["steps"]) >= pipelines.STEPS
    for step, (one, other) in enumerate(zip(first["steps"], second["steps"])):
        for name, value in one.items():
            assert torch.equal(value, other[name]), (step, name)


@pytest.mark.parametrize(
    ("scenario", "components"), [("sums", pipelines.ADDITIVE), ("torch_model", ["torch"])], ids=["cnn", "torch"]
)
def test_ranks_equal_one_process_that_accumulates(ranks, scenario, components):
    first, second = ranks(scenario)
    assert_same_on_both(first, second)
    expected = one_process(components)
    for found, one in zip(first["steps"], expected["steps"]):
        assert_close(found, one)
    assert_close(first["averages"], expected["averages"])
    infos = first["infos"]
    assert [info["grad_norm"] for info in infos] == pytest.approx(expected["norms"], rel=1e-5)
    assert [info["learn_rates"] for info in infos] == expected["rates"]
    assert max(expected["norms"]) > 1.0  # so that clipping counts


def test_ranks_parser_and_ner_take_the_sum_of_gradients(ranks):
    """Their gradients depend on the other examples of a batch: so each rank's are kept, and added up here."""
    first, second = ranks("replayed")
    assert_same_on_both(first, second)
    expected = one_process(["parser", "ner"], grads=[first["grads"], second["grads"]])
    for found, one in zip(first["steps"], expected["steps"]):
        assert_close(found, one)
    # Dropout is not the same on both: with the same, params that see each word once would have the same gradients.
    assert any(not torch.equal(first["grads"][0][name], second["grads"][0][name]) for name in first["grads"][0])


def test_ranks_mean_and_scaled_rate(ranks):
    """The mean is half of the sum, and "linear" doubles the rates."""
    first, second = ranks("means")
    assert_same_on_both(first, second)
    rates = [info["learn_rates"] for info in first["infos"]]
    single = one_process(["tagger"])
    assert rates == [{name: 2 * rate for name, rate in found.items()} for found in single["rates"]]
    assert first["infos"][0]["grad_norm"] == pytest.approx(single["norms"][0] / 2, rel=1e-5)


@pytest.mark.parametrize("scenario", ["nan_on_one_rank", "e910_on_one_rank"])
def test_ranks_skip_together(ranks, scenario):
    first, second = ranks(scenario)
    assert_same_on_both(first, second)
    for found in (first, second):
        assert [info["counts"]["skipped_updates"] for info in found["infos"]] == [0, 0, 1, 1, 1, 1, 1, 1]
        assert all(torch.equal(value, found["steps"][1][name]) for name, value in found["steps"][2].items())
        assert any(not torch.equal(value, found["steps"][2][name]) for name, value in found["steps"][3].items())
        if scenario == "e910_on_one_rank":  # a loss that is not known on one
            assert [math.isnan(loss) for loss in found["of_steps"]] == [i == 2 for i in range(8)]


def test_ranks_obey_the_rules_of_rank_0(ranks):
    """On rank 1 nothing can decide."""
    first, second = ranks("rules")
    assert [len(found["steps"]) for found in (first, second)] == [5, 5]
    for found in (first, second):
        steps, rates = found["steps"], [info["learn_rates"]["rest"] for info in found["infos"]]
        frozen = [name for name in steps[0] if name.startswith("tok2vec/")]
        assert frozen and all(torch.equal(steps[1][name], steps[4][name]) for name in frozen)
        assert not any(torch.equal(steps[0][name], steps[1][name]) for name in frozen if name.endswith("W"))
        assert rates[3:] == [pytest.approx(0.5 * 0.02 * (20 - step) / 17) for step in (3, 4)]
    for one, other in zip(first["steps"], second["steps"]):
        assert same(one, other)


def test_ranks_obey_all_operations_of_rank_0(ranks):
    first, second = ranks("more_rules")
    assert len(first["steps"]) == len(second["steps"]) == 7  # the fall ends the training
    for one, other in zip(first["steps"], second["steps"]):
        assert same(one, other)
    for found in (first, second):
        rates = [info["learn_rates"]["default"] for info in found["infos"]]
        assert rates[:4] == pytest.approx([0.02, 0.02, 0.02, 0.03]) and rates[4:] == sorted(rates[4:], reverse=True)
        assert rates[-1] < 0.02
    assert first["averages"]
    assert all(torch.equal(one, other) for one, other in zip(first["averages"], second["averages"]))


def test_ranks_have_the_statistics_of_rank_0(ranks):
    first, second = ranks("batch_norm")
    assert_same_on_both(first, second)
    means = [step[name] for step in first["steps"] for name in step if name.endswith("running_mean")]
    assert len(means) == len(first["steps"]) and not torch.equal(means[0], means[1])


def test_ranks_share_an_overflow(ranks):
    """The params of its module are not updated on any rank, and both scales are halved; the others are updated."""
    first, second = ranks("overflow")
    assert_same_on_both(first, second)
    for found in (first, second):
        assert found["scales"][2] == 2 * found["scales"][3] == 2 * found["scales"][-1]
        before, after = found["steps"][1], found["steps"][2]
        of_module = [name for name in before if name.endswith((".weight", ".bias"))]
        assert of_module and all(torch.equal(before[name], after[name]) for name in of_module)
        assert any(not torch.equal(before[name], after[name]) for name in before)


def test_ranks_begin_with_rank_0_and_grow_together(ranks):
    """They end together when rank 0 wants to, also where one has no examples."""
    first, second = ranks("other_start")
    assert [len(found["steps"]) for found in (first, second)] == [5, 5]
    for step in range(5):
        assert all(torch.equal(value, second["steps"][step][name]) for name, value in first["steps"][step].items())
    assert first["seen"] == second["seen"] and first["seen"] == [16, 16, 1, 16, 16]
    assert first["sets"] == second["sets"]  # a class that only one has met is known to both


def test_ranks_draw_other_random_numbers(ranks):
    """In their forward passes; the user's hook and the optimizer draw the same ones on all."""
    first, second = ranks("other_start")
    assert first["hook_drew"] == second["hook_drew"] and len(set(first["hook_drew"])) == 10
    for one, other in zip(first["drew"], second["drew"]):
        assert all(a != b for a, b in zip(one, other))


def test_ranks_share_a_model_that_is_on_gpus(ranks):
    """Each on one of its own: what they share is in the main memory."""
    first, second = ranks("on_gpus")
    assert len(first["model"]) == len(second["model"]) > 0
    assert all(map(torch.equal, first["model"], second["model"]))


def test_ranks_find_drift(ranks):
    for found in ranks("drift"):
        assert "after step 4" in found["error"] and "differ in tagger/output_layer/W" in found["error"]


def test_ranks_share_an_evaluation(ranks):
    """Scores are those of each rank by itself, for it has all of the model; and each processed a part."""
    first, second = ranks("evaluation")
    assert first["alone"] == second["alone"]
    evaluated = [info for info in first["infos"] if info["score"] is not None]
    assert [info["score"] for info in second["infos"] if info["score"] is not None] == [
        info["score"] for info in evaluated
    ]
    assert first["shared_scores"] == second["shared_scores"] == first["alone"][0][1]
    assert first["documents"] + second["documents"] == 33 and abs(first["documents"] - second["documents"]) <= 1


def test_ranks_losses_and_words_are_those_of_all(ranks):
    """As one process counts them that trains on both parts."""
    first, second = ranks("sums")
    nlp = pipelines.pipeline()
    optimizer = pipelines.optimizer()
    optimizer.initialize(nlp)
    losses = {}
    batch = grouped(pipelines.batches(nlp))[0]
    for part in deal(batch, 2):
        nlp.update(part, drop=0.0, sgd=False, losses=losses)
    info = first["infos"][0]
    assert info["words"] == second["infos"][0]["words"] == sum(map(len, batch))
    assert info["losses"].keys() == losses.keys()
    for name, loss in losses.items():
        assert info["losses"][name] == pytest.approx(float(loss), rel=1e-5), name
    assert info["losses"] == second["infos"][0]["losses"]


def test_ranks_spacy_train_has_one_voice(ranks):
    first, second = ranks("unbroken")
    assert first["said"] and not second["said"]
    assert first["spoke"] == [0] and second["spoke"] == []


def test_ranks_stop_together_and_resume_exactly(ranks):
    """A signal to one rank stops both after the step; run again, they end with the weights of the unbroken run."""
    for stopped, resumed, unbroken in zip(ranks("stopped"), ranks("resumed"), ranks("unbroken")):
        assert stopped["code"] == 128 + 15 and resumed["code"] is None
        assert not same(stopped["weights"], unbroken["weights"])
        assert same(resumed["weights"], unbroken["weights"])
    first, second = ranks("unbroken")
    assert same(first["weights"], second["weights"])


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_ranks_go_back_together(ranks):
    """To the last checkpoint that rank 0 has written, because of bad updates on rank 1."""
    first, second = ranks("rolled_back")
    assert same(first["weights"], second["weights"])
    assert not same(first["weights"], ranks("unbroken")[0]["weights"])
    saved = read_checkpoint(ranks.folder / "state-4" / "state" / "step-00000009")
    assert [tuple(one) for one in saved.progress.rollbacks] == [(6, 3)] and saved.optimizer["guard"]["skipped"] == 2


def test_ranks_split_the_state(ranks):
    """Each keeps about half of it, and the weights are those of ranks that keep all of it."""
    first, second = ranks("sharded")
    assert_same_on_both(first, second)
    assert_same_on_both(first, ranks("sums")[0])
    whole = sum(value.numel() for value in first["steps"][0].values())
    assert first["cells"] + second["cells"] == whole
    assert abs(first["cells"] - second["cells"]) < 0.1 * whole


def test_ranks_split_the_state_as_torch_does(ranks):
    """ZeroRedundancyOptimizer makes the same of the same gradients, to the last bit, and keeps as much."""
    both = ranks("zero_redundancy")
    for found in both:
        assert found["ours"] and all(map(torch.equal, found["ours"], found["theirs"]))
        whole = sum(param.numel() for param in found["ours"])
        assert abs(found["cells"] - whole / 2) < 0.05 * whole


def test_ranks_save_the_whole_of_a_split_state(ranks):
    """A checkpoint of theirs has what one of ranks has that keep all of it."""
    whole, split = (
        read_checkpoint(ranks.folder / state / "state" / "step-00000009").optimizer for state in ("state-1", "state-3")
    )
    assert whole["params"].keys() == split["params"].keys()
    for name, found in whole["params"].items():
        assert found["state"].keys() == split["params"][name]["state"].keys() and found["state"]
        for key, value in found["state"].items():
            assert torch.equal(value, split["params"][name]["state"][key])


def test_ranks_resume_with_a_part_of_the_state(ranks):
    """Each forgets that of params which others update."""
    first, second = ranks("longer_sharded")
    assert first["left"] == second["left"] == [0, 0, 0]
    assert same(first["weights"], second["weights"])


@pytest.mark.parametrize("size", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:The best model so far")  # the state alone is copied
def test_ranks_of_another_number_go_on(ranks, size, tmp_path):
    """From the checkpoint at which two were stopped: with the same data from there on."""
    shutil.copytree(ranks.folder / "state-1", tmp_path / "state-1")
    for step in ("step-00000006", "step-00000009"):
        assert (tmp_path / "state-1" / "state" / step).is_dir()
    toy_corpus(tmp_path)
    if size == 1:
        corpus = {part: tmp_path / f"{part}.spacy" for part in ("train", "dev")}
        config = config_for(tmp_path / "state-1", corpus, steps=12)
        config["training"]["optimizer"]["checkpoint"]["on_config_change"] = "warn"
        with pytest.warns(CheckpointWarning, match="Resuming although the config has changed"):
            infos = run(config, tmp_path / "out")
        assert sorted(infos) == [10, 11, 12]
    else:
        launch(tmp_path, "longer", ranks=size)
    found = read_checkpoint(tmp_path / "state-1" / "state" / "step-00000012")
    assert found.data.sizes == [(2, 10), (size, 3)] and found.progress.step == 12


@given(lengths=st.lists(st.integers(0, 60), max_size=40), ranks=st.integers(1, 6))
def test_ranks_are_dealt_all_of_a_batch_evenly(lengths, ranks):
    """Nothing is lost or doubled, and no rank has more than one example's words above another."""
    batch = [range(i, i + length) for i, length in enumerate(lengths)]
    parts = deal(batch, ranks)
    assert sorted(part[i].start for part in parts for i in range(len(part))) == list(range(len(batch)))
    assert all([found.start for found in part] == sorted(found.start for found in part) for part in parts)
    words = [sum(map(len, part)) for part in parts]
    assert max(words) - min(words) <= max(lengths, default=0)
    assert sum(bool(part) for part in parts) == min(ranks, len(batch))
