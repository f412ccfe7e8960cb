"""Params that [training.optimizer] freezes: whatever the server does, they stay as they were."""

import pytest
import torch

from thinc_torchopt.addons.federated.agreement import differences
from thinc_torchopt.addons.federated.weights import Weights
from thinc_torchopt.core.errors import ConfigError, PipelineError

from . import needs_flwr  # noqa: F401  isort:skip

from .pipelines import pipeline, small_config
from .test_methods import MODULAR, SCAFFOLD, with_algorithm
from .test_rounds import Run, trained

FROZEN = "ner/tok2vec/"
# Each makes a large step of a difference in the last digit, or decays.
SERVERS = {
    "AdamW": {"algorithm": {"@torch_optimizers": "torch.AdamW.v1", "weight_decay": 0.1}, "learn_rate": 0.1},
    "FedAdam": {"algorithm": MODULAR | {"modules": {"adam": {"@gradient_modules": "thinc-torchopt.Adam.v1"}}}},
    "FedAvgM": {"algorithm": MODULAR | {"modules": {"m": {"@gradient_modules": "thinc-torchopt.Momentum.v1"}}}},
}


def freezing(config=None, patterns=(f"{FROZEN}*",), **settings):
    config = small_config() if config is None else config
    config["training"]["optimizer"]["param_groups"] = {"embed": {"params": list(patterns)} | settings}
    return config


def served(server, config):
    config["federated"] |= SERVERS[server]
    return config


def moved(run, config):
    """The params that are other ones than at the start."""
    start = Weights(pipeline(run.texts, config=config).nlp).collect()
    found = run.weights()
    assert found.keys() == start.keys() and any(name.startswith(FROZEN) for name in start)
    return {name for name, value in found.items() if not torch.equal(value, start[name])}


@pytest.mark.parametrize("server", SERVERS)
def test_frozen_params_stay_at_the_server(texts, tmp_path, server):
    """And are not sent."""
    config = freezing(served(server, small_config()), freeze=True)
    sent = []

    def spoil(kind, name, reply):
        sent.extend(reply.content["arrays"] if kind == "train" else ())
        return reply

    run = trained(texts, tmp_path, config, spoil=spoil)
    assert moved(run, config) == set(sent) and not any(name.startswith(FROZEN) for name in sent)


@pytest.mark.parametrize("server", SERVERS)
def test_frozen_params_that_wait_stay_until_clients_train_them(texts, tmp_path, server):
    """unfreeze_at = 3 is the first step of round 2."""
    for rounds in (1, 2):
        config = freezing(served(server, small_config(federated__rounds=rounds)), unfreeze_at=3)
        run = trained(texts, tmp_path / str(rounds), config)
        assert any(name.startswith(FROZEN) for name in moved(run, config)) == (rounds == 2)


def test_frozen_params_that_wait_are_refused(texts, tmp_path):
    """Beside SCAFFOLD, which is about all params in each round."""
    expected = r"'unfreeze_at' in \[training.optimizer.param_groups\]: expected none beside .*, found 3. Remove it"
    with pytest.raises(ConfigError, match=expected):
        Run(texts, tmp_path, freezing(with_algorithm(*SCAFFOLD), unfreeze_at=3)).train()


def test_frozen_params_have_no_corrections(texts, tmp_path):
    """SCAFFOLD's are of the same params at server and clients."""
    run = Run(texts, tmp_path, freezing(with_algorithm(*SCAFFOLD), freeze=True))
    result = run.train()
    assert result["ended"] == "finished" and [row["failed"] for row in result["rounds"]] == [{}] * 3


def test_frozen_params_must_be_the_same(texts):
    server = pipeline(texts, config=freezing(freeze=True))
    assert differences(server.describe(), pipeline(texts, "south", freezing(freeze=True)).describe()) == []
    found = differences(server.describe(), pipeline(texts, "south").describe())
    assert any(line.startswith(f"params: {FROZEN}") for line in found)
    assert any(line.startswith("frozen params: ner: ") and "not there at the client" in line for line in found)
    other = pipeline(texts, config=freezing(small_config(system__seed=1), freeze=True))
    [line] = differences(server.describe(), other.describe())
    assert line.startswith("frozen params: ner: ")


def test_frozen_params_may_not_be_all(texts):
    with pytest.raises(PipelineError, match=r"at least one param that is trained, found all of them frozen"):
        pipeline(texts, config=freezing(patterns=["*"], freeze=True))
