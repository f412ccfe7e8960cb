"""`spacy torchopt`, run as a user would run it: all commands, `params` against spaCy's own pipeline, and tables."""

import json
import shutil
import sys
from collections import Counter
from io import StringIO
from itertools import islice

import pytest
import spacy
from confection import Config
from spacy.training.initialize import init_nlp
from thinc.api import compounding
from typer.main import get_command

from thinc_torchopt.cli import torchopt_cli
from thinc_torchopt.cli._screen import errors_shown, make_console, print_notes
from thinc_torchopt.core.errors import ConfigError
from thinc_torchopt.core.schedules.curves import warmup_cosine, warmup_linear

from ..conftest import CONFIGS
from ..forks import python
from ..models import slots
from ..runs import contents
from ..spacy_cli import Terminal, spacy_cli, torchopt

PARAM_GROUPS = CONFIGS / "param_groups.cfg"

# A tok2vec with a torch module on top, one layer of which is not to be trained.
TORCH_TOK2VEC = """
import torch
from spacy import registry
from spacy.ml.models import build_hash_embed_cnn_tok2vec
from thinc.api import PyTorchWrapper, chain, with_array

@registry.architectures("toy.TorchTok2Vec.v1")
def build():
    print("what others print")
    module = torch.nn.Sequential(torch.nn.Linear(96, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 96))
    module[2].bias.requires_grad_(False)
    sizes = {"width": 96, "depth": 1, "embed_size": 50, "window_size": 1, "maxout_pieces": 2}
    inner = build_hash_embed_cnn_tok2vec(**sizes, subword_features=False, pretrained_vectors=None)
    model = chain(inner, with_array(PyTorchWrapper(module)))
    model.set_dim("nO", 96)
    return model
"""


def value(schedule, step):
    return next(islice(schedule, step, None))


# ---------------------------------------------------------------------- all commands


def test_cli_is_cheap_to_import():
    """Every command of spaCy imports it."""
    code = (
        "import sys, spacy.cli; before = set(sys.modules); import thinc_torchopt.cli; "
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('thinc_torchopt')), "
        "sorted(name for name in sys.modules if name.startswith('thinc_torchopt.')))"
    )
    run = python(code)
    names = "about cli cli._command cli._screen core core.config_checks core.errors "
    names += "core.host core.kinds core.kinds.categories core.kinds.kind core.kinds.spans "
    names += "core.kinds.survey core.kinds.words core.launched core.near_misses core.text_files core.words"
    assert run.stdout.strip() == f"[] {[f'thinc_torchopt.{name}' for name in names.split()]}"


def test_cli_commands_are_in_spacys_help():
    assert "torchopt" in python(["--help"]).stdout


def test_cli_help_shows_whole_summaries_in_80_columns(monkeypatch):
    """What does not fit is cut, and ends with three dots."""
    monkeypatch.setenv("COLUMNS", "80")
    _, _, listed = spacy_cli("torchopt", "--help").stdout.partition("Commands:")
    assert listed.count("\n  ") > 10 and "..." not in listed


def test_cli_lists_the_first_sentence_of_each_commands_help():
    """The list is made without the commands themselves."""
    for name, listed in get_command(torchopt_cli).commands.items():
        loaded = listed.make_context(name, [], resilient_parsing=True).command
        assert " ".join(loaded.help.split()).startswith(f"{listed.help} "), name
        # Both are in the table: the settings in which commands differ.
        assert loaded.context_settings == listed.context_settings


def test_cli_loads_no_command_to_list_complete_or_suggest_its_name():
    code = (
        "import sys, spacy; from spacy.cli import app; from typer.main import get_command\n"
        "spacy.registry.cli.get_all(); command = get_command(app)\n"
        "for args in (['torchopt', '--help'], ['torchopt', 'trin']):\n"
        "    try: command(args=args, prog_name='spacy')\n"
        "    except SystemExit: pass\n"
        "group = command.commands['torchopt']\n"
        "context = group.make_context('torchopt', [], resilient_parsing=True)\n"
        "print([item.value for item in group.shell_complete(context, 'tr')])\n"
        "print(sorted(name for name in sys.modules if name.startswith('thinc_torchopt.cli.')))"
    )
    run = python(code)
    *_, completed, loaded = run.stdout.splitlines()
    assert completed == "['train', 'try']"
    assert loaded == "['thinc_torchopt.cli._command', 'thinc_torchopt.cli._screen']"


# ---------------------------------------------------------------------- params


def test_cli_params_json_agrees_with_the_pipeline(folder):
    args = ("params", PARAM_GROUPS, "--steps", "1000", "--json")
    found = json.loads(torchopt(folder, *args, run=lambda *args, check: python(args)).stdout)
    overrides = {f"paths.{name}": str(folder / f"{name}.spacy") for name in ("train", "dev")}
    nlp = init_nlp(spacy.util.load_config(PARAM_GROUPS, overrides=overrides, interpolate=False))
    sizes = {name: [param.size for param, _ in slots(proc.model)] for name, proc in nlp.pipeline}
    params = {param["name"]: param for param in found["params"]}
    for name, of_component in sizes.items():
        found_sizes = [param["size"] for param in found["params"] if param["component"] == name]
        assert sorted(found_sizes) == sorted(of_component)
    assert len(params) == len(found["params"])
    output = nlp.get_pipe("tagger").model.get_ref("output_layer")
    assert params["tagger/output_layer/W"]["shape"] == list(output.get_param("W").shape)
    assert params["tagger/output_layer/W"]["size"] == output.get_param("W").size
    assert {(param["device"], param["kind"]) for param in params.values()} == {("cpu", "thinc")}

    # What the config says, by hand.
    for name, param in params.items():
        component, is_embedding = param["component"], name.endswith("/E")
        assert component == name.split("/")[0]
        for rate, step in ((param["learn_rate"], 0), (param["learn_rate_at_steps"], 1000)):
            if component == "ner":
                expected = 0.001
            elif component == "tagger":
                expected = value(warmup_cosine(0.003, 100, 2000), step)
            else:
                layer = int(name.split("/")[2]) if "encode" in name else 0
                expected = value(warmup_linear(0.002, 100, 2000), step) * 0.5 * 0.9 ** (4 - layer)
                expected *= not (is_embedding and step < 200)
            assert rate == pytest.approx(expected, rel=1e-9), name
        assert (param["frozen"], param["frozen_until"]) == (("until step 200", 200) if is_embedding else (None, 0))
        if name.endswith("/b") or "layernorm" in name or "output_layer" in name:
            assert param["weight_decay"] == 0.0
        else:
            assert param["weight_decay"] == (
                value(compounding(0.001, 0.1, 1.005), 0) if component == "tok2vec" else 0.01
            )
    assert found["unmatched_patterns"] == [] and found["problem"] is None and found["notes"] == []


def test_cli_params_text_is_complete_where_there_is_no_terminal(folder):
    lines = torchopt(folder, "params", PARAM_GROUPS, "--steps", "7").stdout.splitlines()
    names = [line.split()[0] for line in lines if "  cpu  " in line]
    assert "tok2vec/embed/2/0/hashembed/E" in names and len(names) == 33
    [line] = [line for line in lines if line.startswith("tok2vec/encode/3/maxout/W")]
    cells = "tok2vec/encode/3/maxout/W 96 x 3 x 288 82,944 cpu thinc shared/layer-3 9e-06 7.2e-05 0.001"
    assert " ".join(line.split()) == cells
    assert " ".join(lines[0].split()) == "name shape size device kind group rate at step 7 decay frozen"


def test_cli_params_of_a_trained_model(trained, tmp_path):
    """Without a corpus, from any place; what is frozen, disabled or not trained is listed with the reason."""
    model = shutil.copytree(
        trained("param_groups.cfg")[0] / "training" / "param_groups" / "model-last", tmp_path / "model"
    )
    config = Config().from_disk(model / "config.cfg", interpolate=False)
    config["paths"].update(train=None, dev=None)
    config.to_disk(model / "config.cfg")
    before = contents(tmp_path)
    args = ("--nlp.disabled", '["tagger"]', "--training.frozen_components", '["ner"]')
    found = json.loads(spacy_cli("torchopt", "params", model, "--json", *args).stdout)
    assert contents(tmp_path) == before
    nlp = spacy.load(model)
    sizes, trained = Counter(), Counter()
    for param in found["params"]:
        sizes[param["component"]] += param["size"]
        trained[param["component"]] += param["size"] if param["frozen_until"] is not None else 0
    assert {name: (size, trained[name]) for name, size in sizes.items()} == {
        name: (size := sum(param.size for param, _ in slots(proc.model)), size if name == "tok2vec" else 0)
        for name, proc in nlp.pipeline
    }
    for param in found["params"]:
        if param["component"] != "tok2vec":
            assert param["frozen"] == {"ner": "frozen_components", "tagger": "disabled"}[param["component"]]
            assert param["group"] is None and param["learn_rate"] == 0.0 and param["learn_rate_at_steps"] is None
    # With nothing to train there still is a table, and training would run.
    everything = ("--training.frozen_components", '["ner", "tok2vec", "tagger"]')
    assert "frozen_components" in spacy_cli("torchopt", "params", model, *everything).stdout


def test_cli_params_of_torch_modules(folder):
    (folder / "code.py").write_text(TORCH_TOK2VEC)
    config = folder / "torch.cfg"
    text = PARAM_GROUPS.read_text().split("# Blocks")[0]
    config.write_text(
        text.replace(
            'factory = "tok2vec"',
            'factory = "tok2vec"\n\n[components.tok2vec.model]\n@architectures = "toy.TorchTok2Vec.v1"',
        )
    )
    run = torchopt(folder, "params", config, "--code", folder / "code.py", "--json")
    found = json.loads(run.stdout)  # nothing but JSON, whatever others print
    assert "what others print" in run.stderr
    params = {param["name"]: param for param in found["params"] if param["kind"] == "torch"}
    shapes = {name.split("/", 2)[2]: param["shape"] for name, param in params.items()}
    assert len(shapes) == 6 and sorted(map(tuple, shapes.values())) == [(32,), (32,), (32,), (32, 96), (96,), (96, 32)]
    frozen = [param for param in params.values() if param["frozen"]]
    assert [(param["shape"], param["frozen"], param["group"]) for param in frozen] == [
        ([96], "requires_grad = false", None)
    ]
    sizes = [param["size"] for param in found["params"] if param["frozen_until"] is not None]
    assert sum(sizes) == sum(param["size"] for param in found["params"]) - 96


def test_cli_params_shows_all_patterns_that_match_nothing(folder):
    config = folder / "bad.cfg"
    text = PARAM_GROUPS.read_text().replace('["tok2vec/*"]', '["tok2vec/*", "trf/*"]').replace("embed/*/E", "embd/*/E")
    config.write_text(text.replace("tok2vec/* = 0.9", "tok2vec/* = 0.9\ntger/* = 0.5"))
    run = torchopt(folder, "params", config, "--json", check=False)
    found = json.loads(run.stdout)
    assert run.returncode == 1
    assert [(entry["pattern"], entry["where"]) for entry in found["unmatched_patterns"]] == [
        ("trf/*", "[training.optimizer.param_groups.shared]"),
        ("tok2vec/embd/*/E", "[training.optimizer.param_groups.embeddings]"),
        ("tger/*", "[training.optimizer.layer_decay]"),
    ]
    messages = [entry["message"] for entry in found["unmatched_patterns"]]
    assert "tok2vec/embed/" in messages[1] and "Did you mean 'tagger/*'?" in messages[2]
    rates = {param["name"]: param["learn_rate"] for param in found["params"]}
    assert len(rates) == 33 and rates["ner/lower/W"] == 0.001  # the table, as far as it goes

    text = torchopt(folder, "params", config, check=False).stdout
    assert text.count("matches none of 33 params") == 3 and "tok2vec/embed/2/0/hashembed/E" in text
    # Training would refuse this one too, for another reason.
    config.write_text(PARAM_GROUPS.read_text().replace("tok2vec/* = 0.9", "tagger/* = 0.9"))
    run = torchopt(folder, "params", config, "--json", check=False)
    assert run.returncode == 1 and "expected params with the number of their layer" in json.loads(run.stdout)["problem"]
    assert len(json.loads(run.stdout)["params"]) == 33


# ---------------------------------------------------------------------- tables


def test_cli_errors_are_red_in_a_terminal_and_plain_elsewhere(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "ANSI_COLORS_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    outputs = []
    for stream in (Terminal(), StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.raises(SystemExit), errors_shown(as_json=False):
            raise ConfigError("Can't set [x]")
        outputs.append(stream.getvalue())
    assert outputs == ["\x1b[31mError: Can't set [x]\x1b[0m\n", "Error: Can't set [x]\n"]


def test_cli_colours_are_off_where_spacys_are(monkeypatch):
    for name in ("NO_COLOR", "ANSI_COLORS_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    for name in (None, "ANSI_COLORS_DISABLED", "WASABI_LOG_FRIENDLY"):
        with monkeypatch.context() as patch:
            if name is not None:
                patch.setenv(name, "1")
            print_notes(make_console(), ["a"])
        assert ("\x1b" in terminal.getvalue()) == (name is None)
        terminal.truncate(terminal.seek(0))
    monkeypatch.setattr(sys, "stdout", StringIO())
    print_notes(make_console(), ["a"])
    assert "\x1b" not in sys.stdout.getvalue()  # a file
