"""What the docs show is true: every config block resolves, every command runs, every link leads somewhere."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from configparser import ConfigParser
from functools import cache
from importlib.util import find_spec
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
import spacy
import srsly
from confection import Config
from spacy.tokens import Doc, DocBin, Span
from thinc.api import warmup_linear

from thinc_torchopt import Adam, TorchOptimizer
from thinc_torchopt.about import __version__
from thinc_torchopt.core.compat import has_flwr, has_matplotlib, has_opacus, has_pytorch_optimizer, has_tensorboard
from thinc_torchopt.loop.checkpoint_folder import steps_of

from .addons.streams.streams import make_model, write_stream
from .configs import NAMES, commands_in_head
from .conftest import HAS_MUON
from .forks import RUN_SCRIPT, Started, python
from .models import WIDTH, pipeline_params, ready_pipeline, same
from .registered import QUIET
from .runs import config_for
from .spacy_cli import flags_of, spacy_cli, toy_corpus

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "README.md",
]
REGISTRIES = ["architectures", "layers", "loggers", "misc", "optimizers", "torch_optimizers", "readers", "schedules"]
REGISTRIES += ["batchers", "callbacks", "gradient_modules", "regularizers", "controller_rules"]
SERVICES = {"WandbLogger": "wandb", "MLflowLogger": "mlflow", "ClearMLLogger": "clearml"}

LOG = """{"step": 0, "words": 9, "losses": {"ner": 2.0}, "score": 0.5, "scores": {"ents_f": 0.5}}
{"step": 1, "words": 18, "losses": {"ner": 1.0}}
"""
OPTIMIZER = """[training.optimizer]
@optimizers = "thinc-torchopt.TorchOptimizer.v1"

[training.optimizer.algorithm]
@torch_optimizers = "torch.AdamW.v1"

"""


def blocks(language):
    found = []
    for page in PAGES:
        for i, text in enumerate(
            re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        ):
            found.append(pytest.param(text, id=f"{page.name}-{i}"))
    return found


def commands():
    """The commands of each block in the docs, with the settings that stand above them in their section. Left out are
    commands in the heads of the configs, which test_configs.py runs; those that start several processes:
    tests/addons/distributed/test_docs.py; and those of pages that have a test below.
    """
    in_heads = [command for name in NAMES for command in commands_in_head(name)]
    found = {}
    for page in PAGES:
        for section in re.split(r"^(?=##? )", page.read_text(), flags=re.MULTILINE):
            settings = ""
            for language, block in re.findall(r"^```(bash|ini)\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL):
                if language == "ini":
                    settings += block
                    continue
                lines = [shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines()]
                kept = [line for line in lines if line and line not in in_heads and "--nproc-per-node" not in line]
                shown = " && ".join(map(" ".join, kept))
                if kept and page.name not in ("README.md", "start-here.md", "extend.md"):
                    found.setdefault((shown, settings), pytest.param(kept, settings, page.name, id=shown))
    return list(found.values())


@pytest.mark.parametrize("text", blocks("ini"))
def test_docs_config_blocks_resolve(text):
    """A block below [training.optimizer] without it: below the shortest one."""
    if "[training.optimizer." in text and "[training.optimizer]" not in text:
        text = OPTIMIZER + text
    config = Config().from_str(text.replace("[training.", "["))
    if "pytorch-optimizer.create.v1" in text and not has_pytorch_optimizer:
        pytest.skip("pytorch-optimizer is not installed")
    if "torch.Muon.v1" in text and not HAS_MUON:
        pytest.skip("this torch has no Muon")
    if "TensorBoardLogger" in text and not has_tensorboard:
        pytest.skip("tensorboard is not installed")
    if not all(find_spec(module) for logger, module in SERVICES.items() if logger in text):
        # These loggers import their service when they are built: without it, only names and settings can be checked.
        assert spacy.registry.fill(config)
        return
    resolved = spacy.registry.resolve(config)
    assert resolved and set(resolved) == set(config)
    assert "optimizer" not in resolved or isinstance(resolved["optimizer"], TorchOptimizer)


@pytest.fixture(scope="module")
def plain_config(tmp_path_factory):
    """What `init` makes of spaCy's config for some components, with a smaller tok2vec, as text."""

    @cache
    def written(components):
        folder = tmp_path_factory.mktemp("init")
        spacy_cli("init", "config", folder / "start.cfg", "--lang", "en", "--pipeline", components)
        config = Config().from_disk(folder / "start.cfg", interpolate=False)
        model = config["components"]["tok2vec"]["model"]
        model["encode"]["width"], model["embed"]["rows"] = WIDTH, [100] * len(model["embed"]["rows"])
        if "ner" in config["components"]:
            config["components"]["ner"]["model"]["hidden_width"] = WIDTH
        config.to_disk(folder / "start.cfg")
        toy_corpus(folder)
        paths = ("--paths.train", folder / "train.spacy")
        spacy_cli("torchopt", "init", folder / "start.cfg", folder / "config.cfg", "--recipe", "best", *paths)
        return (folder / "config.cfg").read_text()

    return written


@pytest.mark.parametrize(("block", "settings", "page"), commands())
def test_docs_commands_run(block, settings, page, plain_config, tmp_path, monkeypatch):
    """All commands of a block, one after the other, in one folder. Its `config.cfg` is one that `init` wrote, with its
    paths, and with the settings of the section above the command.
    """
    makes_it = "--lang" in block[0] and block[0][:4] == ["spacy", "torchopt", "init", "config.cfg"]
    if not makes_it and any("config.cfg" in command for command in block):
        # Private training is for a tagger, and not for an entity recognizer.
        config = Config().from_str(plain_config("tagger" if page == "privacy.md" else "tagger,ner"), interpolate=False)
        added = Config().from_str(settings.replace("[training.", "["), interpolate=False) if settings else {}
        config["paths"] |= {"train": "train.spacy", "dev": "dev.spacy"}
        for name, section in added.items():
            if name == "components":
                config[name] |= section
            else:
                config["training"][name] = section
        config.to_disk(tmp_path / "config.cfg")
    if page == "privacy.md" and not has_opacus:
        pytest.skip("opacus is not installed")
    for program, *args in block:
        if program == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
            assert {arg for arg in args if "=" not in arg} <= set(
                targets
            )  # CI runs `make check` and `make test`; `make demo` has a test below
        elif program == "pip":
            check_pip(args)
        elif program == "cd":
            assert (ROOT / args[0]).is_dir()
        elif program == "python" and args[0] == "-m":
            assert find_spec(args[1])
        elif program == "python":
            # Examples have tests of their own.
            script = ROOT / args[0]
            assert script.is_file()
            if "from flwr" in script.read_text() and not has_flwr:
                pytest.skip("flwr is not installed: make test-federated")
            if script.parent.name in ("benchmarks", "federated"):
                assert help_of(script)
        elif program in ("flower-superlink", "flower-supernode", "flwr"):
            check_flower(program, args)
        elif args[0] == "project":
            pass  # tests/test_project.py
        else:
            assert program == "spacy"
            run_spacy(args, tmp_path, monkeypatch)


@cache
def help_of(script):
    """Many commands are of the same script."""
    return python(RUN_SCRIPT, script, "--help").stdout


def check_pip(args):
    """That the extras exist, and the version of a wheel is this one."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = {extra for arg in args for found in re.findall(r"\[(.*)\]", arg) for extra in found.split(",")}
    assert args[0] == "install" and extras <= set(setup["options.extras_require"])
    assert all(f"/thinc_torchopt-{__version__}-py3-" in arg for arg in args if arg.split("[")[0].endswith(".whl"))


def check_flower(program, args):
    """That Flower has such a command, with these options. tests/addons/federated/test_processes.py runs them."""
    if not has_flwr:
        pytest.skip("flwr is not installed: make test-federated")
    words = list(takewhile(lambda arg: arg.isalpha(), args)) if program == "flwr" else []
    command = [*words[: 2 if words[:1] == ["supernode"] else 1], "--help"]
    env = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "NO_COLOR": "1"}
    shown = subprocess.run([Path(sys.executable).parent / program, *command], capture_output=True, text=True, env=env)
    for arg in args:
        assert not arg.startswith("--") or arg in shown.stdout, shown.stdout + shown.stderr


def run_spacy(args, folder, monkeypatch):
    """Run a spaCy command of the docs as it stands, in a folder with a small corpus; those that train for two steps."""
    if args[0] == "torchopt" and args[1] != "train" and "--output" in args and not has_matplotlib:
        pytest.skip("matplotlib is not installed")
    toy_corpus(folder)
    monkeypatch.chdir(folder)
    if not (folder / "configs").exists():
        (folder / "configs").symlink_to(ROOT / "configs")
    if args[:2] == ["torchopt", "learn"]:
        make_model(folder / args[2])
        write_stream(folder / args[3], 4)
    if found := {"--from", "--teacher"} & set(args):
        make_model(folder / args[args.index(found.pop()) + 1])
        write_new_label(folder)
    for run in takewhile(lambda arg: not arg.startswith("--"), args[2:] if args[:2] == ["torchopt", "report"] else []):
        make_model(folder / run / "model-best")
        (folder / run / "log.jsonl").write_text(LOG)
    if "--accepted" in args:
        rows = folder / args[args.index("--accepted") + 1]
        rows.write_text(rows.read_text().replace('"ignore"', '"accept"'))
    for log in (arg for arg in args if args[:2] == ["torchopt", "controller"] and arg.endswith(".jsonl")):
        (folder / log).parent.mkdir(parents=True, exist_ok=True)
        (folder / log).write_text(LOG)
    for definition in (arg for arg in args if arg.endswith(".yaml") and not (folder / arg).exists()):
        srsly.write_yaml(folder / definition, QUIET)
    # Trials are short ones here: of an option that is given twice, the last one counts.
    small = flags_of({"training.batcher.size": 40})
    steps = "4" if "--amounts" in args else "2"
    quick = ["--steps", steps, "--seeds", "1"] if args[1] in ("try", "tune") else []
    if args[1] == "find-lr":  # above a rate of 1 the loss leaps: of so few points that may be chance
        quick = ["--steps", "40", "--max-lr", "1", *small]
    if args[1] == "tune":
        pytest.importorskip("optuna", reason="optuna is not installed")
        quick += ["--trials", "2"]
    if args[0] == "train":
        quick = flags_of({"training.max_steps": 2, "training.eval_frequency": 1})
    if "--budget" in args:
        quick = [*flags_of({"training.eval_frequency": 20}), *small]
    # That command replaces functions of spaCy for its process.
    run = python([*args, *quick]) if args[:2] == ["torchopt", "train"] else spacy_cli(*args, *quick)
    written = ("--output", "--picture")
    assert run.stdout and all((folder / output).exists() for flag, output in pairwise(args) if flag in written)


def write_new_label(folder):
    """Texts with entities and tags alone, as the pipeline has them; and such with one label that is new to it."""
    vocab = spacy.blank("en").vocab
    for part, copy, new in (("train", "old", "new"), ("dev", "old-dev", "new-dev")):
        docs = [
            Doc(
                vocab,
                words=[t.text for t in doc],
                tags=[t.tag_ for t in doc],
                ents=[f"{t.ent_iob_}-{t.ent_type_}".rstrip("-") for t in doc],
            )
            for doc in DocBin().from_disk(folder / f"{part}.spacy").get_docs(vocab)
        ]
        for name in (part, copy):
            DocBin(docs=docs).to_disk(folder / f"{name}.spacy")
        docs = [Doc(vocab, words=[t.text for t in doc]) for doc in docs]
        for doc in docs:
            doc.ents = [Span(doc, 2, 3, label="COLOR")]
        DocBin(docs=docs).to_disk(folder / f"{new}.spacy")


@pytest.mark.parametrize(
    "text", [b for b in blocks("python") if not b.id.startswith(("extend.md", "python.md", "start-here.md"))]
)
def test_docs_python_blocks_run(text, tmp_path, monkeypatch, capsys):
    """With the names that the text around them explains: an optimizer, and models with gradients."""
    optimizer = Adam(warmup_linear(0.1, 5, 10))
    nlp, examples = ready_pipeline(["tagger"], shared=False, sgd=optimizer)
    nlp.update(examples, sgd=False)
    (tmp_path / "training").mkdir()
    nlp.to_disk(tmp_path / "training" / "model-last")
    monkeypatch.chdir(tmp_path)
    names = {"nlp": nlp, "optimizer": optimizer, "models": [nlp.get_pipe("tagger").model], "examples": examples}
    exec(text, names)
    optimizer = names["optimizer"]
    if "joint_step" in text:
        assert set(optimizer.nr_update.values()) == {1} and optimizer.learn_rate > 0
    if "print(" in text and "optimizer.params" in text:
        assert "tagger/output_layer/W" in capsys.readouterr().out


def test_docs_python_page_runs(tmp_path, monkeypatch):
    """From top to bottom, as in a notebook. Then the cell with the checkpoints once more, in which nothing is left to
    do.
    """
    monkeypatch.chdir(tmp_path)
    cells = [block.values[0] for block in blocks("python") if block.id.startswith("python.md")]
    names = {}
    for cell in cells:
        exec(cell, names)
        if "Checkpoints(" in cell:
            weights = pipeline_params(names["nlp"])["ner"]
            exec(cell, names)
            assert same(pipeline_params(names["nlp"])["ner"], weights) and names["step"] == 19
            exec(cell.replace("keep=2", 'resume="never"'), names)
            assert same(pipeline_params(names["nlp"])["ner"], weights)
    assert (tmp_path / "model-best" / "meta.json").is_file() and names["scores"]["ents_f"] > 0.5
    found = [path.name for path in steps_of(tmp_path / "training" / "state")]
    assert found == ["step-00000015", "step-00000019"]


def test_docs_extend_page_trains(tmp_path, monkeypatch):
    """Its one file and its config, by its command, with smaller numbers: each of the four parts has its effect."""
    page = (ROOT / "docs" / "extend.md").read_text()
    code, block, command = (
        re.search(rf"^```{kind}\n(.*?)^```", page, re.M | re.S)[1] for kind in ("python", "cfg", "bash")
    )
    for shown, smaller in {"every = 500": "every = 2", "tagger < 0.1": "tagger > 0", "words = 30": "words = 3"}.items():
        assert block.count(shown) == 1
        block = block.replace(shown, smaller)
    config = config_for(tmp_path, toy_corpus(tmp_path), steps=6)
    config["training"]["logger"] = {"@loggers": "thinc-torchopt.JSONLinesLogger.v1", "path": "log.jsonl"}
    config["training"]["optimizer"] = Config().from_str(block.replace("[training.", "["))["optimizer"]
    config["training"]["optimizer"]["controller"]["rules"]["stop_when_learned"]["patience"] = {"patience_threshold": 4}
    config.to_disk(tmp_path / "config.cfg")
    (tmp_path / "own.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    spacy_cli(*shlex.split(command)[1:])
    lines = list(srsly.read_jsonl("log.jsonl"))
    assert [line["learn_rates"]["default"] for line in lines] == [0.001, 0.001, 0.0005, 0.0005, 0.00025]
    assert lines[-1]["controller"][0]["values"]["tagger"] == lines[-1]["losses"]["tagger"]
    assert lines[0]["long_texts"] < lines[-1]["long_texts"]
    saved = Config().from_disk("training/model-last/config.cfg")
    assert saved["training"]["optimizer"]["algorithm"]["@torch_optimizers"] == "sign_sgd.v1"


def test_docs_quick_start_needs_entities_alone(tmp_path, monkeypatch):
    """README's first commands, on texts without tags and trees, in a folder with nothing else."""
    monkeypatch.chdir(tmp_path)
    corpus = toy_corpus(tmp_path)
    for path in (corpus["train"], corpus["dev"]):
        docs = list(DocBin().from_disk(path).get_docs(spacy.blank("en").vocab))
        bare = [
            Doc(
                doc.vocab,
                words=[token.text for token in doc],
                ents=[f"{t.ent_iob_}-{t.ent_type_}".rstrip("-") for t in doc],
            )
            for doc in docs
        ]
        DocBin(docs=bare).to_disk(path)
    readme = (ROOT / "README.md").read_text()
    fresh, first, install, *_ = re.findall(r"^```bash\n(.*?)^```", readme, re.M | re.S)
    assert fresh == "make demo\nmake test\n"
    check_pip(shlex.split(install)[1:])
    for _, *args in map(shlex.split, first.splitlines()):
        quick = {"training.max_steps": 2, "training.eval_frequency": 1} if args[0] == "train" else {}
        spacy_cli(*args, *flags_of(quick))
    assert spacy.load(tmp_path / "training" / "config" / "model-last").pipe_names == ["tok2vec", "ner"]
    assert len(readme.splitlines()) <= 81


def test_docs_start_here_runs(tmp_path, monkeypatch, capsys):
    """From top to bottom, but for the set-up. The training is shorter."""
    monkeypatch.chdir(tmp_path)
    quick = flags_of({"training.max_steps": 12, "training.eval_frequency": 6, "training.batcher.size": 40})
    text = (ROOT / "docs" / "start-here.md").read_text()
    fence = re.compile(r"^```(bash|python)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
    (_, setup), (_, texts), *rest = fence.findall(text)
    *_, install = setup.splitlines()
    check_pip(shlex.split(install)[1:])
    exec(texts, {})
    for language, block in rest:
        if language == "python":
            exec(block, {})
            assert capsys.readouterr().out.startswith("[")
            continue
        for _, *args in map(shlex.split, block.splitlines()):
            if args[0] == "train":
                press_ctrl_c([*args, *quick], after_lines=3)
                spacy_cli(*args, *quick)
            else:
                spacy_cli(*args)
    steps = [srsly.json_loads(line)["step"] for line in Path("training/config/log.jsonl").read_text().splitlines()]
    assert steps == list(range(13)) and Path("report.html").is_file()


def press_ctrl_c(args, after_lines):
    """Run a training in a process of its own, and stop it when its log has so many lines."""
    log = Path("training/config/log.jsonl")
    with Started(args) as process:
        while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= after_lines):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 130, output


@pytest.mark.parametrize(
    ("site", "repository"),
    [
        ("", ""),
        ("https://docs.example.org/here", ""),
        ("", "https://code.example.org/it"),
        ("https://a.b", "https://c.d"),
    ],
)
def test_docs_links_of_the_wheel_lead_out_of_the_clone(site, repository):
    """The wheel's README: relative links become links to the site or the repository, or text while there is neither."""
    text = (ROOT / "README.md").read_text()
    # In a process of its own: setuptools replaces distutils, which another test may have imported.
    code = "import runpy, sys; print(runpy.run_path('setup.py')['description'](sys.stdin.read(), *sys.argv[1:]))"
    command = [sys.executable, "-c", code, site, repository]
    shown = subprocess.run(command, input=text, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not re.findall(r"\]\((?!https://)", shown)
    page, picture = (f"{site}/docs/start-here.html", f"{site}/docs/report.svg") if site else ("", "")
    if repository and not site:
        tag = f"v{__version__}"
        page, picture = f"{repository}/blob/{tag}/docs/start-here.md", f"{repository}/raw/{tag}/docs/report.svg"
    assert f"[Start here]({page})" in shown if page else "**Start here**" in shown
    assert page == "" or f"]({picture})" in shown
    assert re.findall(r"\]\((?!https://)[^)]*\.(?!md|svg)\w+\)", text) == []  # the site has these under other names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_commands_need_no_clone(page):
    """No command names a config of the repository, and what runs a script of it says so."""
    text = page.read_text()
    for found in re.finditer(r"^```bash\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        assert "configs/" not in found[1]
        if page.parent.name == "docs" and re.search(r"^python \w+/", found[1], flags=re.MULTILINE):
            assert "clone" in text[: found.start()].rstrip().splitlines()[-1], found[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_docs_tables_have_a_head_and_no_escapes(page):
    """What the site shows as it stands: a backslash before a bar in code, and a row of empty cells above a table."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^\|[ |]*\|\n\|[ :|-]+\|$", text, flags=re.MULTILINE)
    assert "\\<" not in text
    assert not re.findall(r"`[^`\n]*\\\|[^`\n]*`", text)


def test_docs_name_only_what_is_registered():
    """Every string in the docs that looks like ours or torch's can be found in a registry."""
    import thinc_torchopt.addons.controller.named_rules
    import thinc_torchopt.core.registry  # noqa: F401

    found = set()
    for page in [*PAGES, *(ROOT / "configs").glob("*.cfg")]:
        found |= set(re.findall(r"[`\"]((?:thinc-torchopt|torch|pytorch-optimizer)\.\w+\.v\d)[`\"]", page.read_text()))
    assert len(found) > 15
    for name in found:
        assert any(spacy.registry.has(group, name) for group in REGISTRIES), name


@pytest.mark.parametrize(("steps", "least"), [(60, 0.3), pytest.param(400, 0.8, marks=pytest.mark.slow)])
def test_docs_demo(steps, least, tmp_path, monkeypatch):
    """`make demo`, without its set-up: a model that scores well. At first for a few of its steps; the texts
    are those of this Python. In a pipe there are neither bars nor colours.
    """
    overrides = [] if steps == 400 else ["--training.max_steps", str(steps), "--training.eval_frequency", str(steps)]
    monkeypatch.chdir(tmp_path)
    run = python(RUN_SCRIPT, ROOT / "examples" / "demo.py", "--output", "demo", *overrides)
    score = spacy.load(tmp_path / "demo" / "model-best").meta["performance"]["ents_f"]
    assert score > least and f"{score:.1%} is both combined" in run.stdout
    assert not re.search("[\r\x1b]", run.stdout + run.stderr)


def test_docs_faq_answers_twenty_questions_in_brief():
    """Each in a few lines, with one config or command."""
    questions = re.split(r"^## ", (ROOT / "docs" / "faq.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(questions) >= 20
    for question in questions:
        title, _, answer = question.partition("\n")
        words, code = answer.split("```", 1)
        assert (
            len(words.strip().splitlines()) <= 3 and re.match(r"(ini|bash|python)\n", code) and code.count("```") == 1
        ), title
