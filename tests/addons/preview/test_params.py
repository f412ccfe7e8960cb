"""The table of all params: what each is, and why it is not trained."""

import re

import pytest

from thinc_torchopt.addons.preview import params

from ...models import ready_pipeline, toy_pipeline

RISING = {"@schedules": "warmup_linear.v1", "initial_rate": 0.1, "warmup_steps": 10, "total_steps": 20}
SGD = {"@torch_optimizers": "torch.SGD.v1"}
GROUPS = {
    "head": {"params": ["tagger/*"], "learn_rate": 0.5, "algorithm": SGD},
    "never": {"params": ["tok2vec/*/b"], "freeze": True},
    "late": {"params": ["tok2vec/*/W"], "unfreeze_at": 7},
}
AS_TEXT = {
    "tok2vec/embed/2/0/hashembed/E": "100 x 16|1,600|cpu|thinc|default|torch.AdamW.v1|0|0.05|0.01",
    "tok2vec/embed/3/maxout/b": "16 x 3|48|cpu|thinc|never|torch.AdamW.v1|0|0|0.01|freeze",
    "tagger/output_layer/b": "4|4|cpu|thinc|head|torch.SGD.v1|0.5|0.5|0",
    "senter/output_layer/W": "0|cpu|thinc|-|-|0|0|disabled",
}


@pytest.fixture
def config(corpus, tmp_path):
    nlp, _ = ready_pipeline(["tagger", "senter", "morphologizer"])
    nlp.to_disk(tmp_path / "model")
    config = toy_pipeline(["tagger", "senter", "morphologizer"]).config.copy()
    config["nlp"]["disabled"] = ["senter"]
    config["components"]["morphologizer"] = {"source": str(tmp_path / "model")}
    config["training"]["frozen_components"] = ["morphologizer"]
    for name in ("train", "dev"):
        config["corpora"][name]["path"] = str(corpus[name])
    algorithm = {"@torch_optimizers": "torch.AdamW.v1"}
    optimizer = {"@optimizers": "thinc-torchopt.TorchOptimizer.v1", "learn_rate": RISING, "algorithm": algorithm}
    config["training"]["optimizer"] = optimizer
    return config


def test_params_as_text(config):
    config["training"]["optimizer"]["param_groups"] = GROUPS
    found = params(config, steps=5)
    shown = {name: "|".join(cells) for name, *cells in (re.split(" {2,}", line) for line in repr(found).splitlines())}
    assert {name: shown[name].rstrip("|") for name in AS_TEXT} == AS_TEXT and not found.stops
    rows = {row["name"]: row for row in found.as_dict()["params"]}
    assert len(rows) == len(found.rows) == 22
    assert rows["morphologizer/output_layer/W"]["frozen"] == "frozen_components"
    assert rows["tok2vec/embed/3/maxout/W"]["frozen"] == "until step 7"
    assert rows["senter/output_layer/W"]["shape"] is None and rows["senter/output_layer/W"]["frozen_until"] is None
    assert [rows[f"tok2vec/embed/3/maxout/{name}"]["frozen_until"] for name in "bW"] == [None, 7]
    block = config["training"]["optimizer"] | {"param_groups": {}}
    none, no_layers = {"param_groups": {"head": {"params": ["none/*"]}}}, {"layer_decay": {"tagger/*": 0.9}}
    for settings, patterns in ((none, ["none/*"]), (no_layers, [])):
        config["training"]["optimizer"] = block | settings
        found = params(config)
        assert [one["pattern"] for one in found.as_dict()["unmatched_patterns"]] == patterns
        assert [row.group for row in found.rows[:2]] == ["default"] * 2 and f"Error: {found.stops[0]}" in repr(found)
        assert (found.problem is None) == bool(patterns) and len(found.stops) == 1
