"""What is around the optimizer: the logger, overrides, and what must not change."""

from pathlib import Path

import pytest
from confection import Config

from thinc_torchopt.addons.recipes import Recipe, not_written, rewrite
from thinc_torchopt.addons.recipes.rewrite import with_log
from thinc_torchopt.core.errors import ConfigError

from ...cli.test_init import OWN
from ...spacy_cli import toy_corpus


def test_rewrite_tells_of_overrides_that_are_not_written(tmp_path):
    paths = {"paths.train": str(toy_corpus(tmp_path)["train"])}
    given = {**paths, "training.dropout": 0.3, "training.max_steps": 9}
    given["training.optimizer.learn_rate"] = 0.1
    _, new = rewrite(OWN, tmp_path / "config.cfg", Recipe.best, given)
    lost, not_used = "--training.dropout", "--training.max_steps, --training.optimizer.learn_rate"
    assert not_written(given, OWN, new) == [
        f"{lost}: not written to the config. Pass it to the training, too.",
        f"{not_used}: not used, as the recipe sets its own. Change it in the new config.",
    ]
    [told] = not_written(given, OWN, new, in_trials=True)
    assert told.startswith(f"{lost}, {not_used}: used here, but not written")
    assert not not_written(paths, OWN, new)
    assert not not_written({"training.max_steps": Config().from_str(new)["training"]["max_steps"]}, OWN, new)


WANDB = '@loggers = "spacy.WandbLogger.v5"\nproject_name = "mine"\n\n[training.logger.config]\na = 1\n'


@pytest.mark.parametrize(
    ("logger", "kept"),
    [
        ("", [{"@loggers": "thinc-torchopt.ConsoleLogger.v1"}]),
        (
            '@loggers = "spacy.ConsoleLogger.v1"\nprogress_bar = true\n',
            [{"@loggers": "thinc-torchopt.ConsoleLogger.v1", "progress_bar": "eval"}],
        ),
        (
            '@loggers = "spacy.ConsoleLogger.v3"\nprogress_bar = "train"\noutput_file = "out.jsonl"\n',
            [{"@loggers": "thinc-torchopt.ConsoleLogger.v1", "progress_bar": "train", "output_file": "out.jsonl"}],
        ),
        (WANDB, [{"@loggers": "spacy.WandbLogger.v5", "project_name": "mine", "config": {"a": 1}}]),
        (
            '@loggers = "spacy.ChainLogger.v1"\n\n[training.logger.logger1]\n@loggers = "mine.v1"\n\n'
            '[training.logger.logger3]\n@loggers = "mine.v2"\n',
            [{"@loggers": "mine.v1"}, {"@loggers": "thinc-torchopt.JSONLinesLogger.v1"}, {"@loggers": "mine.v2"}],
        ),
        (
            '@loggers = "spacy.ChainLogger.v1"\n\n[training.logger.logger2]\n@loggers = "mine.v1"\n',
            [{"@loggers": "thinc-torchopt.JSONLinesLogger.v1"}, {"@loggers": "mine.v1"}],
        ),
    ],
)
def test_log_keeps_the_loggers_that_are_there(logger, kept):
    """And all other lines. A second time nothing changes."""
    logger = f"# Mine.\n[training.logger]\n{logger}\n" if logger else ""
    before = f'[training]\nseed = 1\n\n{logger}[nlp]\nlang = "en"  # English\n'
    text, told = with_log(before, Path("training/log.jsonl"))
    assert ("takes the place of spaCy's" in told) == ("spacy.ConsoleLogger" in logger)
    found = Config().from_str(text, interpolate=False)
    chain = found["training"].pop("logger")
    assert chain.pop("@loggers") == "spacy.ChainLogger.v1"
    blocks = [chain[name] for name in sorted(chain)]
    ours = next(block for block in blocks if block["@loggers"] == "thinc-torchopt.JSONLinesLogger.v1")
    assert ours.pop("path") == "training/log.jsonl" and "training/log.jsonl" in told
    assert [block for block in blocks if block is not ours or ours in kept] == kept
    rest = Config().from_str(before)
    rest["training"].pop("logger", None)
    assert found == rest and 'lang = "en"  # English' in text and ("# Mine." in text) == bool(logger)
    again, told = with_log(text, Path("other.jsonl"))
    assert again == text and "already" in told


def test_log_of_a_full_chain():
    full = "".join(f'[training.logger.logger{i}]\n@loggers = "mine.v1"\n\n' for i in range(1, 11))
    with pytest.raises(ConfigError, match="room for 10 loggers"):
        with_log(f'[training.logger]\n@loggers = "spacy.ChainLogger.v1"\n\n{full}', Path("log.jsonl"))


def test_log_refuses_loggers_that_it_would_break(tmp_path):
    def with_a_log(text):
        rewrite(text, tmp_path / "config.cfg", Recipe.robust, log_path=Path("log.jsonl"))

    with pytest.raises(ConfigError, match="Can't add a log to 'logger' in"):
        with_a_log(OWN.replace("max_steps = 30", "max_steps = 30\nlogger = null"))
    logger = '[training.logger]\n@loggers = "spacy.ConsoleLogger.v3"\noutput_file = "x"\n'
    with_a_log(f"{OWN}\n{logger}")
    with pytest.raises(ConfigError, match=r"\[training.optimizer\] and \[training.logger\]: a variable elsewhere"):
        with_a_log(f"{OWN}\n{logger}\n[also]\npath = ${{training.logger.output_file}}\n")
