"""[federated.controller]: rules about the mean of the clients' scores."""

import json

import pytest
import torch

from thinc_torchopt.errors import ControllerError

from . import needs_flwr  # noqa: F401  isort:skip

from .houses import small_config
from .test_rounds import Run

SGD = {"@torch_optimizers": "torch.SGD.v1"}


def with_rules(*, rounds, algorithm=None, **controller):
    added = {"controller": {"@misc": "thinc-torchopt.TrainerController.v1", **controller}} if controller else {}
    if algorithm is not None:
        added["algorithm"] = algorithm
    return small_config({"federated": added}, federated__rounds=rounds, federated__local_steps=1)


def named(name, **arguments):
    return {name: {"@controller_rules": f"thinc-torchopt.{name}.v1", **arguments}}


def says(*scores):
    """Reports with these scores, one for each model from that at the start on."""
    told = {}

    def spoil(kind, name, reply):
        if kind in ("train", "evaluate"):
            n = told[name] = told.get(name, -1) + 1
            reply.content["metrics"]["score"] = scores[n]
            reply.content["scores"]["ents_f"] = scores[n]
        return reply

    return spoil


def test_server_rules_stop_early(texts, tmp_path):
    """The score of a model is known when clients have trained it further. So one round more is trained, and scored."""
    run = Run(
        texts,
        tmp_path,
        with_rules(rounds=9, rules=named("stop_early", evaluations=2)),
        spoil=says(0.1, 0.3, 0.2, 0.25, 0.1, 0.1),
    )
    result = run.train()
    assert [row["score"] for row in result["rounds"]] == pytest.approx([0.1, 0.3, 0.2, 0.25, 0.1])
    assert result["status"] == "finished" and result["best"] == 1
    # It has ended: the next run is another one, also with more rounds.
    assert len(Run(texts, tmp_path, with_rules(rounds=5), spoil=says(*[0.5] * 6)).train()["rounds"]) == 6
    assert (run.output / "earlier-1" / "state").is_dir()


def test_server_rules_go_on_where_they_were(texts, tmp_path):
    """What they remember is saved: two rounds, and then the others, stop where one run does."""
    scores, found = (0.1, 0.3, 0.2, 0.1, 0.1), {}
    for folder, parts in (("whole", (9,)), ("parts", (2, 9))):
        (tmp_path / folder).mkdir()
        told = 0
        for rounds in parts:
            config = with_rules(rounds=rounds, rules=named("stop_early", evaluations=2))
            found[folder] = Run(texts, tmp_path / folder, config, spoil=says(*scores[told:])).train()
            # The last model of a part is evaluated at its end, and again when it is trained further: it counts once.
            told = rounds
    assert found["parts"]["rounds"][3:] == found["whole"]["rounds"][3:] and len(found["parts"]["rounds"]) == 5
    assert found["parts"]["best"] == found["whole"]["best"] == 1


def test_server_rules_keep_the_best_models(texts, tmp_path):
    run = Run(
        texts,
        tmp_path,
        with_rules(rounds=3, rules=named("keep_best", of="scores['ents_f']", keep=2)),
        spoil=says(0.1, 0.3, 0.2, 0.4),
    )
    run.train()
    kept = {
        path.name: json.loads((path / "kept-as-best.json").read_text()) for path in run.output.glob("model-*-[0-9]")
    }
    assert {mark["step"]: mark["score"] for mark in kept.values()} == pytest.approx({1: 0.3, 3: 0.4})
    [last] = [name for name, mark in kept.items() if mark["step"] == 3]
    assert all(torch.equal(value, run.weights(last)[key]) for key, value in run.weights().items())
    [first] = [name for name, mark in kept.items() if mark["step"] == 1]
    (tmp_path / "one").mkdir()
    one = Run(texts, tmp_path / "one", with_rules(rounds=1), spoil=says(0.1, 0.3))
    one.train()
    assert all(torch.equal(value, run.weights(first)[key]) for key, value in one.weights().items())


def test_server_rules_cut_the_rate_of_the_server(texts, tmp_path):
    """SGD at a rate of 1.0 takes the average, until a rule sets the rate to 0: then the model stays as it is."""
    operations = {"rate": {"@controller_operations": "LearnRateControl", "rate": 0.0}}
    rules = {"halt": {"triggers": ["on_evaluate"], "rule": "scores['score'] > 0.25", "operations": ["rate.should_set"]}}
    metrics = {"scores": {"@controller_metrics": "EvalMetrics"}}
    config = with_rules(rounds=3, rules=rules, operations=operations, metrics=metrics, algorithm=SGD)
    run = Run(texts, tmp_path, config, spoil=says(0.1, 0.3, 0.3, 0.3))
    run.train()
    (tmp_path / "one").mkdir()
    one = Run(texts, tmp_path / "one", with_rules(rounds=1, algorithm=SGD), spoil=says(0.1, 0.3))
    one.train()
    # The score of the model after round 1 comes with the replies of round 2, whose update is the first one left out.
    assert all(torch.equal(value, run.weights()[key]) for key, value in one.weights().items())


@pytest.mark.parametrize(
    ("controller", "message"),
    [
        (
            {"rules": named("roll_back_on_spike")},
            r"the rule 'roll_back_on_spike' in .*: expected on_evaluate alone, .* found on_step_end",
        ),
        ({"rules": named("cut_on_plateau")}, r"rates_down.should_cut .*: it needs an optimizer of the server"),
        ({"rules": named("stop_early", of="dev['per_word']", mode="min")}, r"the metric 'dev' \(EvalLoss\)"),
        (
            {
                "operations": {"frozen": {"@controller_operations": "FreezeControl", "params": ["ner/*"]}},
                "metrics": {"scores": {"@controller_metrics": "EvalMetrics"}},
                "rules": {
                    "f": {"triggers": ["on_evaluate"], "rule": "True", "operations": ["frozen.should_freeze"]},
                },
            },
            r"frozen.should_freeze in \[federated.controller\]: expected control.should_training_stop, or one of",
        ),
        # Faults of rules anywhere name this section, not that of [training].
        ({"rules": {}}, r"Can't use \[federated.controller\]: expected a 'definition'"),
        ({"rules": {"f": {"name": "f"}}}, r"'name' in \[federated.controller.rules.f\]"),
        (
            {"rules": {"f": {"triggers": ["on_evaluate"], "rule": "unknown > 1", "operations": ["x.should_y"]}}},
            r"(?s)Can't use \[federated.controller\]: .*rules.f",
        ),
    ],
)
def test_server_rules_that_cannot_work_are_refused(texts, tmp_path, controller, message):
    with pytest.raises(ControllerError, match=message):
        Run(texts, tmp_path, with_rules(rounds=1, **controller)).train()
