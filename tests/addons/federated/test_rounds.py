"""Rounds over Flower's apps and messages, in one process: what comes out, and what happens to clients that fail."""

import json
import math
from types import SimpleNamespace

import pytest
import spacy
import torch

from thinc_torchopt.core.errors import ConfigError, FederationError

from . import needs_flwr  # noqa: F401  isort:skip

from flwr.app import Array

from thinc_torchopt.addons.federated import server
from thinc_torchopt.addons.federated.pipeline import FederatedPipeline
from thinc_torchopt.addons.federated.weights import Weights

from .by_hand import average, fed_avg
from .grid import LocalGrid, change_form
from .pipelines import SIZES, paths, small_config


class Run:
    """A run with the clients of `texts`. config: Of all. own (dict): Configs of some clients."""

    def __init__(self, texts, folder, config, *, own=None, spoil=lambda kind, name, reply: reply, names=SIZES):
        folder.mkdir(exist_ok=True)
        self.output = folder / "out"
        self.texts = texts
        clients = {}
        for name in names:
            path = folder / f"{name}.cfg"
            (own or {}).get(name, config).to_disk(path)
            corpus = name if name in SIZES else "north"
            clients[name] = {"name": name, "config": str(path), **paths(texts, corpus)}
        config.to_disk(folder / "server.cfg")
        self.config = folder / "server.cfg"
        self.grid = LocalGrid(clients, spoil)

    def train(self):
        labels = paths(self.texts, "north")["paths.labels"]
        server.train(self.grid, {"config": str(self.config), "output": str(self.output), "paths.labels": labels})
        return self.result

    @property
    def result(self):
        return json.loads((self.output / "result.json").read_text())

    def weights(self, name="model-last"):
        return Weights(spacy.load(self.output / name)).collect()

    def errors(self):
        return [(kind, name) for kind, name, error in self.grid.log if error is not None]


def trained(*args, **options):
    run = Run(*args, **options)
    run.train()
    return run


def close(found, expected, *, atol=1e-7):
    """Averages are summed up in another order by Flower: single precision, values of about 1."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=atol, msg=name)


@pytest.mark.parametrize("plan", [{"steps": 3}, {"epochs": 1}])
def test_rounds_of_fedavg_are_a_loop_by_hand(texts, tmp_path, plan):
    epochs = {"federated__local_epochs": plan["epochs"]} if "epochs" in plan else {}
    config = small_config(federated__local_steps=plan.get("steps", 0), **epochs)
    run = Run(texts, tmp_path, config)
    result = run.train()
    expected = fed_avg(texts, config, 2, **plan)
    # Adam divides by small numbers: in the second round, differences of the first one grow to about 1e-5.
    close(run.weights(), expected, atol=2e-5)
    assert result["ended"] == "finished" and result["error"] is None and run.errors() == []
    assert [row["round"] for row in result["rounds"]] == [0, 1, 2]
    assert [set(row["clients"]) for row in result["rounds"]] == [set(), set(SIZES), set(SIZES)]
    assert {name: row["examples"] for name, row in result["rounds"][1]["clients"].items()} == SIZES
    assert all(row["score"] is not None and "ents_f" in row["scores"] for row in result["rounds"])


def test_rounds_write_models_that_score_what_the_file_says(texts, tmp_path):
    run = Run(texts, tmp_path, small_config(federated__rounds=3, federated__local_steps=15))
    result = run.train()
    for name, row in (("model-last", 3), ("model-best", result["best"])):
        nlp = spacy.load(run.output / name)
        found, n = 0.0, 0
        for client in SIZES:
            examples = list(spacy.training.Corpus(texts / client / "dev.spacy")(nlp))
            found, n = found + nlp.evaluate(examples)["ents_f"] * len(examples), n + len(examples)
        assert found / n == pytest.approx(result["rounds"][row]["score"])
    scores = [row["score"] for row in result["rounds"]]
    assert scores[result["best"]] == max(scores) and scores[0] < max(scores)
    best = spacy.load(run.output / "model-best").meta["performance"]
    assert best["ents_f"] == pytest.approx(max(scores))
    # Nothing is unfinished or locked.
    assert {path.name for path in run.output.iterdir()} == {"model-best", "model-last", "result.json", "state"}


def test_rounds_weigh_clients_alike_if_that_is_wanted(texts, tmp_path):
    kept = {}

    def spoil(kind, name, reply):
        if kind == "train":
            kept[name] = {key: torch.from_numpy(one.numpy()) for key, one in reply.content["arrays"].items()}
            change_form(reply.content, dev_examples=0)
        return reply

    run = trained(texts, tmp_path, small_config(federated__rounds=1, federated__weigh_by="client"), spoil=spoil)
    close(run.weights(), average(list(kept.values()), [1, 1]))
    # The model before the round was evaluated by nobody; the last one was.
    assert [row["score"] is None for row in run.result["rounds"]] == [True, False]


def test_rounds_apply_the_servers_optimizer_to_the_averaged_update(texts, tmp_path):
    """SGD at a rate of 0.5 goes half of the way; buffers and all else as the average."""
    sgd = {"algorithm": {"@torch_optimizers": "torch.SGD.v1"}, "learn_rate": 0.5}
    half = small_config({"federated": sgd}, federated__rounds=1)
    run, plain = trained(texts, tmp_path, half), small_config(federated__rounds=1)
    whole = trained(texts, tmp_path / "plain", plain)
    plain["paths"] = {"train": None, "dev": None, "labels": str(texts / "labels.json")}
    start = FederatedPipeline(plain).weights.collect()
    close(run.weights(), {name: (start[name] + value) / 2 for name, value in whole.weights().items()})


# ---------------------------------------------------------------------- clients that fail


def in_round(number, kind="train", name="south"):
    """Whether a message is the n-th of its kind to a client."""
    seen = []

    def check(of_kind, of_name):
        if (of_kind, of_name) == (kind, name):
            seen.append(1)
            return len(seen) == number
        return False

    return check


def lose(reply):
    return None


def spoil_with_nan(reply):
    array = reply.content["arrays"]["ner/lower/b"].numpy()
    array[0] = math.nan
    reply.content["arrays"]["ner/lower/b"] = Array(array)
    return reply


def spoil_losses(reply):
    change_form(reply.content, losses={"ner": math.nan})
    return reply


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (lose, "There was no reply within 5 seconds"),
        (spoil_with_nan, "expected finite numbers"),
        (spoil_losses, "the report of 'south': expected 'losses/ner' to be a number that is finite"),
    ],
    ids=["lost", "nan", "losses"],
)
def test_rounds_go_on_without_a_report_that_cannot_be_used(texts, tmp_path, what, reason, caplog):
    """And the client is back in the next round, where it goes on from the round before: that one did not count. All
    that can be wrong with a report is in test_messages.py.
    """
    is_now = in_round(2)

    def spoil(kind, name, reply):
        return what(reply) if is_now(kind, name) else reply

    run = Run(texts, tmp_path, small_config(federated__rounds=3), spoil=spoil)
    with caplog.at_level("WARNING", "flwr"):
        result = run.train()
    first, second, third = result["rounds"][1:]
    assert set(second["clients"]) == {"north"} and reason in second["failed"]["south"]
    assert set(first["clients"]) == set(third["clients"]) == set(SIZES) and not third["failed"]
    assert result["ended"] == "finished"
    json.dumps(result, allow_nan=False)
    assert f"Client 'south' is left out of this round: {second['failed']['south']}" in caplog.text
    assert "Client 'south' undoes round 2" in caplog.text and "'north' undoes" not in caplog.text


@pytest.mark.parametrize("is_lost", [False, True])
def test_rounds_go_on_without_a_client_that_died(texts, tmp_path, caplog, is_lost):
    """And with it, when it is started again: it has a new node, and its state unless its disk is gone too."""
    is_now, is_later = in_round(2), in_round(3, name="north")

    def spoil(kind, name, reply):
        if is_now(kind, name):
            run.grid.stop("south")
            return None
        if is_later(kind, name):
            run.grid.start("south")
            if is_lost:
                run.grid.forget("south")
        return reply

    run = Run(texts, tmp_path, small_config(federated__rounds=4), spoil=spoil)
    with caplog.at_level("INFO", "flwr"):
        result = run.train()
    clients = [sorted(row["clients"]) for row in result["rounds"][1:]]
    assert clients == [["north", "south"], ["north"], ["north"], ["north", "south"]]
    assert "Client 'south' is gone" in caplog.text and caplog.text.count("Client 'south' takes part") == 2
    assert ("Client 'south' has lost the state of its optimizer after round 1" in caplog.text) is is_lost
    assert "Client 'south' undoes round 2" in caplog.text or is_lost
    assert result["ended"] == "finished"


def test_rounds_take_a_client_whose_dead_node_is_still_there(texts, tmp_path):
    """Flower takes a supernode that was killed for alive until a minute has passed."""
    is_now, dead = in_round(2), []

    def spoil(kind, name, reply):
        if is_now(kind, name):
            dead.append("south")
            run.grid.clients["again"] = run.grid.clients["south"]
            run.grid.start("again")
        return None if name in dead else reply

    run = Run(texts, tmp_path, small_config(federated__rounds=4), spoil=spoil)
    rounds = run.train()["rounds"][1:]
    assert [sorted(row["clients"]) for row in rounds] == [list(SIZES), ["north"], list(SIZES), list(SIZES)]
    assert [sorted(row["failed"]) for row in rounds] == [[], ["south"], [], []]


def test_rounds_go_on_without_a_client_that_raises(texts, tmp_path):
    """Here in round 2, by its own hook. Its state stays as it was after round 1."""
    path = texts / "south" / "train.spacy"
    is_now = in_round(1)

    def spoil(kind, name, reply):
        if is_now(kind, name):
            run.grid.clients["south"]["paths.train"] = str(tmp_path / "gone.spacy")
        return reply

    run = Run(texts, tmp_path, small_config(federated__rounds=3), spoil=spoil)
    assert path.is_file()
    result = run.train()
    assert [sorted(row["clients"]) for row in result["rounds"][1:]] == [["north", "south"], ["north"], ["north"]]
    assert "gone.spacy" in result["rounds"][2]["failed"]["south"] and run.errors() == [("train", "south")] * 2
    assert [path.name for path in (tmp_path / "south.cfg.state" / "south").iterdir()] == ["round-1"]


def test_rounds_leave_out_a_client_with_another_pipeline(texts, tmp_path, caplog):
    other = small_config(components__ner__model__hidden_width=9)
    run = Run(texts, tmp_path, small_config(), own={"south": other})
    with caplog.at_level("ERROR", "flwr"):
        result = run.train()
    assert [sorted(row["clients"]) for row in result["rounds"][1:]] == [["north"], ["north"]]
    assert "Client 'south' does not fit the server: params: ner/lower/W" in caplog.text
    assert "Client 'south' can't take part: params: ner/lower/W" in caplog.text  # in its own log, too
    assert list(result["refused"]) == ["south"] and "params: ner/lower/W" in result["refused"]["south"]


@pytest.mark.parametrize("keeps_id", [True, False])
def test_rounds_take_a_client_that_was_mended(texts, tmp_path, keeps_id):
    """Its supernode is started again with the right config; one with a registered key keeps its id."""

    def spoil(kind, name, reply):
        if kind == "train" and name == "north":
            if len(done) == 0:
                run.grid.stop("south")
            elif len(done) == 1:
                run.grid.clients["south"]["config"] = str(tmp_path / "north.cfg")
                run.grid.start("south", node if keeps_id else None)
            done.append(name)
        return reply

    done = []
    other = small_config(components__ner__model__hidden_width=9)
    run = Run(texts, tmp_path, small_config(federated__rounds=3), own={"south": other}, spoil=spoil)
    node = next(node for node, name in run.grid.nodes.items() if name == "south")
    result = run.train()
    assert [sorted(row["clients"]) for row in result["rounds"][1:]] == [["north"], ["north"], ["north", "south"]]
    assert result["refused"] == {}


def test_rounds_leave_out_a_client_that_changes_its_pipeline(texts, tmp_path):
    is_now = in_round(1)

    def spoil(kind, name, reply):
        if is_now(kind, name):
            run.grid.clients["south"]["components.ner.model.hidden_width"] = 9
        return reply

    run = Run(texts, tmp_path, small_config(), spoil=spoil)
    failed = run.train()["rounds"][2]["failed"]["south"]
    # Its weights would have other shapes, which is found first.
    assert "of shape" in failed or "as before round one" in failed


@pytest.mark.parametrize("n", [1, 2])
def test_rounds_need_clients(texts, tmp_path, n):
    """And the file says that the run failed, as the exit code of `flwr run` does not."""
    other = small_config(components__ner__model__hidden_width=9)
    config = small_config(federated__min_clients=2)
    run = Run(texts, tmp_path, config, own={"south": other}, names=list(SIZES)[:n])
    with pytest.raises(FederationError, match=r"expected at least 2 clients within 0\.2 seconds, found 1: north"):
        run.train()
    assert run.result["ended"] == "failed" and "expected at least 2 clients" in run.result["error"]
    assert n == 1 or "Client 'south' does not fit the server: params: ner/lower/W" in run.result["error"]
    assert len(run.result["rounds"]) == 1 and len(run.grid.log) == n  # each was asked once


def test_rounds_take_one_of_two_clients_with_one_name(texts, tmp_path, caplog):
    run = Run(texts, tmp_path, small_config(federated__rounds=1), names=["north", "twin"])
    run.grid.clients["twin"]["name"] = "north"
    with caplog.at_level("ERROR", "flwr"):
        result = run.train()
    assert list(result["rounds"][1]["clients"]) == ["north"] and "Two clients are called 'north'" in caplog.text
    assert [kind for kind, name, _ in run.grid.log if name == "twin"] == ["query"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "'name' in --node-config: expected a name of its own"),
        ({"config": 3}, "'config' in --node-config: expected the path"),
        ({"partition": 3}, "or a setting by its dotted path, found 'partition'"),
    ],
)
def test_rounds_tell_why_a_client_cannot_begin(texts, tmp_path, settings, message):
    run = Run(texts, tmp_path, small_config(federated__min_clients=2, federated__rounds=1))
    run.grid.clients["south"] |= settings
    with pytest.raises(FederationError, match=message):
        run.train()


@pytest.mark.parametrize("missing", ["config", "output"])
def test_rounds_need_a_config_and_a_folder(missing, tmp_path):
    settings = {"config": "federated.cfg", "output": str(tmp_path)}
    with pytest.raises(ConfigError, match=f"'{missing}' in .tool.flwr.app.config.: expected an absolute path"):
        server.train(None, {**settings, missing: ""})


@pytest.mark.parametrize(("seconds", "told"), [(2, [["north", "south"], ["north"]]), (9, [["north"], ["north"]])])
def test_rounds_begin_when_all_clients_are_there_or_have_had_their_time(texts, tmp_path, monkeypatch, seconds, told):
    """The second round does not wait for south, which is gone."""
    pauses = []

    def sleep(pause):
        pauses.append(pause)
        assert len(pauses) < 20, "it waits on and on"
        if len(pauses) == seconds:
            run.grid.start("south")

    def spoil(kind, name, reply):
        if (kind, name) == ("train", "south"):
            run.grid.stop("south")
        return reply

    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: sum(pauses), sleep=sleep))
    run = Run(texts, tmp_path, small_config(federated__wait_seconds=3), spoil=spoil)
    run.grid.stop("south")
    assert [sorted(row["clients"]) for row in run.train()["rounds"][1:]] == told and pauses == [1.0] * min(seconds, 3)


# ---------------------------------------------------------------------- rounds that are not accepted


def test_rounds_with_too_few_reports_are_repeated(texts, tmp_path, caplog):
    """A silent client in round 2: nobody's model alone becomes that of all. Then it is back, and nothing was lost."""
    is_now = in_round(2)
    config = small_config(federated__min_clients=2, federated__rounds=3)
    run = Run(texts, tmp_path, config, spoil=lambda kind, name, reply: None if is_now(kind, name) else reply)
    with caplog.at_level("WARNING", "flwr"):
        result = run.train()
    assert result["ended"] == "finished"
    assert [set(row["clients"]) for row in result["rounds"][1:]] == [set(SIZES)] * 3
    assert "Client 'south' is left out of this round: There was no reply within 5 seconds." in caplog.text
    told = "Round 2 is not accepted: expected usable reports of at least 2 clients, found 1: north. Attempt 2 of 3"
    assert told in caplog.text
    plain = trained(texts, tmp_path / "plain", config)
    # Each client went back to where it was before: the same model to the last bit.
    assert all(torch.equal(value, plain.weights()[name]) for name, value in run.weights().items())
    assert sum(kind == "train" for kind, _, _ in run.grid.log) == 2 * (3 + 1)


def test_rounds_that_are_repeated_keep_to_the_clients_that_replied(texts, tmp_path, caplog):
    """Another client that calls itself north comes while round 2 is repeated, as south is silent: it has to wait."""
    is_now = in_round(2)

    def spoil(kind, name, reply):
        if is_now(kind, name):
            run.grid.clients["twin"] = dict(run.grid.clients["north"])
            run.grid.start("twin")
            return None
        return reply

    run = Run(texts, tmp_path, small_config(federated__min_clients=2), spoil=spoil)
    with caplog.at_level("ERROR", "flwr"):
        result = run.train()
    assert result["ended"] == "finished" and "Two clients are called 'north'" in caplog.text
    assert {name for kind, name, _ in run.grid.log if kind == "train"} == set(SIZES)


def test_rounds_with_too_few_reports_end_the_run(texts, tmp_path):
    """The silent client stays silent. What there was before is in model-last."""

    def spoil(kind, name, reply):
        if (kind, name) == ("train", "south"):
            asked.append(1)
        return None if (kind, name) == ("train", "south") and len(asked) > 1 else reply

    asked = []
    config = small_config(federated__min_clients=2, federated__rounds=3, federated__attempts=2)
    run = Run(texts, tmp_path, config, spoil=spoil)
    with pytest.raises(FederationError, match=r"Can't accept round 2: expected usable reports of at least 2 clients"):
        run.train()
    result = run.result
    assert result["ended"] == "failed" and "in attempt 2 of 2" in result["error"]
    assert "south: There was no reply within 5 seconds." in result["error"]
    assert len(asked) == 3 and result["best"] == 0
    last = run.weights()
    plain = trained(texts, tmp_path / "plain", small_config(federated__min_clients=2, federated__rounds=1))
    assert all(torch.equal(value, last[name]) for name, value in plain.weights().items())


def test_rounds_without_any_report_fail(texts, tmp_path):
    """Nobody ever replies, so there is no trained model, and the run does not say that there is one."""
    config = small_config(federated__rounds=1)
    run = Run(texts, tmp_path, config, spoil=lambda kind, name, reply: None if kind == "train" else reply)
    with pytest.raises(FederationError, match=r"Can't accept round 1: .* found none, in attempt 3 of 3"):
        run.train()
    assert run.result["ended"] == "failed" and not run.result["rounds"][1]["clients"]
    assert not (run.output / "model-last").exists()


def test_rounds_score_no_model_by_too_few_clients(texts, tmp_path, caplog):
    """The last model is evaluated by one of two: its score would be that of another set of texts."""

    def spoil(kind, name, reply):
        return None if (kind, name) == ("evaluate", "south") else reply

    run = Run(texts, tmp_path, small_config(federated__min_clients=2), spoil=spoil)
    result = run.train()
    assert result["ended"] == "finished" and result["rounds"][2]["score"] is None
    assert "south" in result["rounds"][2]["failed"]
    run.grid.spoil = lambda kind, name, reply: reply
    assert run.train()["rounds"][2]["score"] is not None
