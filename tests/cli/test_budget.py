"""`spacy torchopt train --budget`: the config that it makes, and the command as it is typed."""

import re

import pytest
from confection import Config
from spacy.util import registry

from thinc_torchopt.cli.train import with_budget
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.loop.checkpoint_folder import read_checkpoint, steps_of

from ..configs import smaller
from ..conftest import CONFIGS
from ..forks import python
from ..runs import config_for, contents
from ..spacy_cli import flags_of, spacy_cli

STABLE = {
    "@schedules": "thinc-torchopt.warmup_stable_decay.v1",
    "decay_steps": 500,
    "decay_begins": "when told",
    "decay_type": "linear",
}


def derived(config, folder, budget="20m", machine=0):
    """The config that is made, the lines, and the optimizer."""
    config.to_disk(folder / "given.cfg")
    path, told = with_budget(folder / "given.cfg", {}, budget, folder / "out", machine)
    found = Config().from_disk(path, interpolate=False)
    registry.resolve({"optimizer": found.interpolate()["training"]["optimizer"]})
    return found, told


@pytest.mark.parametrize(
    ("rate", "peak", "warmup"),
    [
        (0.002, 0.002, 0),
        ({"@schedules": "warmup_linear.v1", "initial_rate": 0.01, "warmup_steps": 30, "total_steps": 2000}, 0.01, 30),
        ({"@schedules": "thinc-torchopt.warmup_cosine.v1", "initial_rate": 0.01, "warmup_steps": 30}, 0.01, 30),
        # It rises for a third of 2,000 steps: here for a twentieth.
        ({"@schedules": "thinc-torchopt.one_cycle.v1", "max_rate": 0.01}, 0.01, 100),
        ({"@schedules": "thinc-torchopt.inverse_sqrt.v1", "initial_rate": 0.01, "warmup_steps": 7}, 0.01, 7),
    ],
)
def test_budget_keeps_peak_and_warm_up(rate, peak, warmup, corpus, tmp_path):
    config = config_for(tmp_path, corpus, steps=2000, training__optimizer__learn_rate=rate)
    found, told = derived(config, tmp_path)
    optimizer, training = found["training"]["optimizer"], found["training"]
    assert optimizer["learn_rate"] == {**STABLE, "initial_rate": pytest.approx(peak), "warmup_steps": warmup}
    assert optimizer["budget"] == {"@misc": "thinc-torchopt.Budget.v1", "limit": "20m"}
    assert (training["max_steps"], training["max_epochs"], training["patience"]) == (0, 0, 0)
    assert optimizer["checkpoint"] == config["training"]["optimizer"]["checkpoint"]
    assert told[0].startswith(f"learn_rate: rises to {peak} in {warmup} steps, and stays")
    assert told[-1].endswith(f"The config is saved to {tmp_path / 'out' / 'budget.cfg'}.")


@pytest.mark.parametrize("steps", [7, 8, 57])
def test_budget_has_the_rate_of_the_config_to_the_last_bit(steps, corpus, tmp_path):
    """A warm-up computes it from steps: after 8 of them it is a last bit above, after 57 below."""
    rate = {"@schedules": "thinc-torchopt.warmup_linear.v1", "initial_rate": 0.0019, "warmup_steps": steps}
    config = config_for(tmp_path, corpus, steps=5000, training__optimizer__learn_rate=rate)
    assert derived(config, tmp_path)[0]["training"]["optimizer"]["learn_rate"]["initial_rate"] == 0.0019


def test_budget_keeps_the_warm_up_only_of_a_run_that_is_resumed(corpus, tmp_path):
    def warmup(budget, steps=30, machine=0, **checkpoint):
        rate = {"@schedules": "thinc-torchopt.warmup_cosine.v1", "initial_rate": 0.01, "warmup_steps": steps}
        config = config_for(tmp_path, corpus, steps=2000, training__optimizer__learn_rate=rate)
        config["training"]["optimizer"]["checkpoint"] |= checkpoint
        found = derived(config, tmp_path, budget, machine)[0]["training"]["optimizer"]
        return found["learn_rate"]["warmup_steps"]

    assert [warmup("400 steps"), warmup("1000 steps"), warmup("400 steps")] == [20, 30, 20]
    (tmp_path / "state" / "step-00000009").mkdir(parents=True)
    assert [warmup("1000 steps"), warmup("1000 steps"), warmup("1h")] == [20, 20, 20]
    # A shorter one in the config is refused by the resumed run. Only machine 0 has the checkpoints.
    assert [warmup("1h", steps=40), warmup("1h"), warmup("1h", machine=1)] == [20, 20, 20]
    (tmp_path / "state" / "step-00000009").rmdir()
    assert [warmup("1h", machine=1), warmup("1h", steps=9, machine=1), warmup("1h")] == [20, 9, 30]
    assert [warmup("400 steps", resume="never"), warmup("1h", resume="never")] == [20, 30]


def test_budget_keeps_the_other_settings_of_its_block(corpus, tmp_path):
    block = {"@misc": "thinc-torchopt.Budget.v1", "limit": "1h", "decay_ratio": 0.5}
    config = config_for(tmp_path, corpus, steps=2000, training__optimizer__budget=block)
    assert derived(config, tmp_path)[0]["training"]["optimizer"]["budget"] == {**block, "limit": "20m"}


def test_budget_of_groups_and_of_steps(corpus, tmp_path):
    """Each rate of its own, and all else as it was, variables too; without a block for checkpoints, one in the output
    folder.
    """
    changes = {
        "training__optimizer__learn_rate": 0.002,
        "training__optimizer__checkpoint": None,
        "training__max_epochs": 5,
        "training__optimizer__param_groups": {
            "tagger": {"params": ["tagger/*"], "learn_rate": 0.004, "weight_decay": 0.5},
            "scaled": {"params": ["tok2vec/*"], "lr_scale": 0.1},
        },
        "training__optimizer__per_param_lr": {"tok2vec/*": {"@schedules": "warmup_linear.v1", "initial_rate": 0.03,
                                                            "warmup_steps": 3000, "total_steps": 9000}},
    }  # fmt: skip
    config = config_for(tmp_path, corpus, **changes)
    config["training"]["max_steps"] = 20_000
    found, told = derived(config, tmp_path, "1000 steps")
    block = found["training"]["optimizer"]
    assert len(told) == 4
    assert block["param_groups"]["tagger"]["learn_rate"] == {**STABLE, "initial_rate": 0.004, "warmup_steps": 0}
    assert block["param_groups"]["tagger"]["weight_decay"] == 0.5
    assert block["param_groups"]["scaled"] == {"params": ["tok2vec/*"], "lr_scale": 0.1}
    assert block["per_param_lr"]["tok2vec/*"] == {**STABLE, "initial_rate": 0.03, "warmup_steps": 50}
    assert found["training"]["max_steps"] == 999
    assert block["checkpoint"] == {"@misc": "thinc-torchopt.Checkpoint.v1"}  # in the folder of --output
    unchanged = Config().from_disk(CONFIGS / "cnn.cfg")
    assert found["training"]["batcher"] == {**unchanged["training"]["batcher"], "size": 60}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Adam.v1", 'found "Adam.v1", which has no checkpoints. Convert it'),
        ("thinc-torchopt.Adam.v1", 'found "thinc-torchopt.Adam.v1"'),
    ],
)
def test_budget_refuses_what_can_not_fall(name, said, corpus, tmp_path):
    config = config_for(tmp_path, corpus)
    config["training"]["optimizer"] = {"@optimizers": name}
    with pytest.raises(ConfigError, match=said):
        derived(config, tmp_path)


def test_budget_refuses_a_limit_and_wants_a_folder(corpus, tmp_path):
    config = config_for(tmp_path, corpus, training__optimizer__checkpoint=None)
    with pytest.raises(ConfigError, match=r"'--budget' in spacy torchopt train: expected a time such as .*found '20'"):
        derived(config, tmp_path, "20")
    with pytest.raises(ConfigError, match=r"expected --output, or a path in \[training.optimizer.checkpoint\]"):
        with_budget(tmp_path / "given.cfg", {}, "20m", None)


def test_budget_wants_a_section_and_a_folder(corpus, tmp_path):
    config = config_for(tmp_path, corpus)
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConfigError, match=r"Can't write '.*budget.cfg': expected a folder that can be written to"):
        derived(config, tmp_path)
    (tmp_path / "out").unlink()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "budget.cfg").write_text("no config")
    with pytest.raises(ConfigError, match="expected the config of a training with --budget, found another file"):
        derived(config, tmp_path)
    config["vars"] = {"optimizer": config["training"].pop("optimizer")}
    with pytest.raises(ConfigError, match=r"expected a section \[training.optimizer\], found none"):
        derived(config, tmp_path)
    config["training"]["optimizer"] = "${vars.optimizer}"
    with pytest.raises(ConfigError, match=r"expected a section \[training.optimizer\], found a value, \$\{vars.opt"):
        derived(config, tmp_path)


def test_budget_after_a_training_has_a_state_of_its_own(corpus, tmp_path, monkeypatch):
    """As the commands print it: init with checkpoints, its training, and a budget in another folder."""
    monkeypatch.chdir(tmp_path)
    paths = ("--paths.train", corpus["train"], "--paths.dev", corpus["dev"])
    short = ("--training.max_steps", 6, "--training.eval_frequency", 3)
    spacy_cli("torchopt", "init", "my.cfg", "--lang", "xx", "--recipe", "best,robust", *paths, *short)
    spacy_cli("train", "my.cfg", "--output", "training/my")
    before = contents(tmp_path / "training")
    found = spacy_cli("torchopt", "train", "my.cfg", "--budget", "10 steps", "--output", "other")
    assert "8 of 10 steps used after step 7. The learning rate falls in 2 steps" in found.stdout + found.stderr
    assert {path.name for path in (tmp_path / "other").iterdir()} == {
        *("budget.cfg", "log.jsonl", "model-best", "model-last", "state")
    }
    assert read_checkpoint(steps_of(tmp_path / "other" / "state")[-1]).progress.step == 9
    assert contents(tmp_path / "training") == before


def test_budget_as_it_is_typed(corpus, tmp_path):
    """In one process, without a launcher that allows one thread. The config that it wrote, with a larger limit, is
    refused: that is a new run.
    """
    paths = flags_of({"paths.train": corpus["train"], "paths.dev": corpus["dev"], "training.batcher.size": 40})
    quick = flags_of({"training.eval_frequency": 10})

    def text(run):
        return re.sub(r"\s+", " ", run.stdout + run.stderr)

    config, output = tmp_path / "my.cfg", ("--output", tmp_path / "out")
    config.write_text(smaller((CONFIGS / "schedules_to_the_end.cfg").read_text()))
    code = tmp_path / "code.py"
    code.write_text("import os; print('World:', os.environ.get('WORLD_SIZE'))")
    options = [*output, "--code", code, "--budget", "20 steps"]
    first = text(python(["torchopt", "train", config, *options, *paths, *quick]))
    assert "World: None" in first and first.count("World") == 1
    assert "learn_rate: rises to 0.003 in 1 step, and stays until it falls" in first
    assert "Training pipeline ====" in first and "\x1b" not in first  # not in a terminal
    fall = "16 of 20 steps used after step 15. The learning rate falls in 4 steps, and the training ends."
    assert fall in first and first.count("The learning rate falls in") == 1
    newest = read_checkpoint(steps_of(tmp_path / "out" / "state")[-1])
    assert newest.progress.step == 19 and [step for _, step in newest.progress.results][-1] == 19
    assert (tmp_path / "out" / "model-best" / "meta.json").exists()
    larger, _ = with_budget(config, {}, "30 steps", output_path=tmp_path / "out")
    more = text(spacy_cli("train", larger, *output, *paths, *quick, check=False))
    assert "expected a limit of 20 steps, as when the learning rate began to fall, found 30 steps" in more
    assert read_checkpoint(steps_of(tmp_path / "out" / "state")[-1]).progress.step == 19
