"""The help of the commands: their order, and that each example works as it stands there."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import srsly
from confection import Config
from typer.main import get_command

from thinc_torchopt.cli import COMMANDS, torchopt_cli
from thinc_torchopt.core.compat import has_matplotlib

from ..addons.streams.streams import make_model, write_stream
from ..registered import QUIET
from ..spacy_cli import QUICK, spacy_cli, toy_corpus

ORDER = "init convert explain train report suspects params schedule checkpoint try tune find-lr learn controller"
# These train, for long: see the tests of these commands. Here, their arguments are read.
LONG = ("train", "try", "tune", "find-lr")


def test_help_lists_commands_in_the_order_of_use():
    listed = spacy_cli("torchopt", "--help").stdout.partition("Commands:")[2]
    assert re.findall(r"^  (\S+)", listed, flags=re.MULTILINE) == ORDER.split()


@pytest.mark.skipif(not has_matplotlib, reason="matplotlib is not installed")
def test_help_examples_work(tmp_path, monkeypatch):
    """One after the other, as in a first hour, with a training after the config was made."""
    monkeypatch.chdir(tmp_path)
    toy_corpus(tmp_path)
    srsly.write_yaml("rules.yaml", QUIET)
    loaded = get_command(torchopt_cli).commands
    for name, _, example in COMMANDS:
        words = shlex.split(example)
        assert words[:3] == ["spacy", "torchopt", name]
        assert spacy_cli("torchopt", name, "--help").stdout.endswith(f"  Example:\n  {example}\n")
        if name == "learn":
            shutil.rmtree("training/config/model-best")
            make_model(Path("training/config/model-best"))
            write_stream(Path("stream.jsonl"), 3)
        if name in LONG:
            loaded[name].make_context(name, words[3:])
        else:
            spacy_cli(*words[1:])
        if name == "init":
            spacy_cli("torchopt", "init", "config.cfg", "config.cfg", "--recipe", "robust")
            # Written down, as explain compares the config with that of the checkpoints.
            config = Config().from_disk("config.cfg", interpolate=False, overrides=QUICK)
            config["training"]["optimizer"]["recorder"] = {"@misc": "thinc-torchopt.Recorder.v1"}
            config.to_disk("config.cfg")
            spacy_cli("train", "config.cfg", "--output", "training/config")
