"""`spacy torchopt explain`: its words against what the config says, and against rates counted by hand."""

import json
import os
import subprocess
import sys

import pytest
from spacy.tokens import DocBin
from spacy.util import load_config_from_str

from thinc_torchopt.addons.preview import explain
from thinc_torchopt.core.compat import has_opacus
from thinc_torchopt.core.ops import PipelineOps, Products, choose, products_by
from thinc_torchopt.core.words import plain

from ..configs import smaller
from ..conftest import CONFIGS
from ..spacy_cli import refusal, spacy_cli


def test_explain_numbers():
    found = [plain(value) for value in (0.0, 1.0, 10.0, 0.00005, 1e-6, 1.23456, 1e-8, 20000.0, 3e7)]
    assert found == ["0", "1", "10", "0.00005", "0.000001", "1.23", "1e-08", "20000", "3e+07"]


def told(config, corpus, *args):
    """The lines by label; and the rows of the table, by their first column."""
    paths = [part for name in ("train", "dev") for part in (f"--paths.{name}", str(corpus[name]))]
    # Each step is counted, and has its rates. What stops a training is told first.
    run = spacy_cli("torchopt", "explain", config, "--json", "--training.max_steps", 50, *paths, *args, check=False)
    found = json.loads(run.stdout)
    lines = {"Stops": " ".join(found["stops"]), "Note": " ".join(found["notes"])}
    for line in found["lines"]:
        lines[line["about"]] = f"{lines.get(line['about'], '')} {line['text']}".strip()
    return lines | {row["params"]: [*row.values()][1:] for row in found["groups"]}


def test_explain_param_groups(corpus):
    """Groups of several blocks, frozen ones, and rates that layers and factors change."""
    found = told(CONFIGS / "param_groups.cfg", corpus, "--training.max_steps", "2000")
    assert found["Trains"] == "957,102 numbers in 33 params on the CPU: tok2vec 924,768, tagger 388, ner 31,946."
    size, rate, decay, clip, schedule = found["shared+embeddings"]
    assert [size, decay, clip] == ["480,000", "0.001", "1 global"]
    assert schedule == f"from step 200 on: {rate}, 0 at step 2,000"
    assert found["ner/*"] == ["31,946", "0.001", "0..0.01", "1 global", "constant"]
    assert found["no_decay+tagger/*"] == ["388", "0.003", "0", "1 global", "0, 0.003 at step 100, 0 at step 2,000"]
    # 0.002 x 0.5 x 0.9 of the fourth of four layers; the lowest is at 0.9 ** 3 of that.
    assert found["shared"][1] == "0.000656..0.0009"
    assert found["shared"][4] == "0.000009, 0.0009 at step 100, 0 at step 2,000"
    assert found["Ends"].startswith(
        "At step 2,000 (max_steps), or when the score got no better for 1,600 steps (patience)"
    )
    assert "Recurrent" not in found and "Stability" not in found
    found = told(CONFIGS / "param_groups.cfg", corpus)
    assert found["shared+embeddings"] == ["480,000", "", "0.001", "1 global", "frozen until step 200, after the end"]


def test_explain_rules(corpus):
    """Those that end the training; a score that score_weights does not have is a note."""
    path = "--training.optimizer.controller.rules.stop_early"
    found = told(CONFIGS / "controller_in_config.cfg", corpus)
    assert "or by rule stop_early, or by rule stop_when_diverged, whichever comes first." in found["Ends"]
    assert "A rule may fail" not in found["Note"]
    assert found["Stability"].startswith(
        "Provisional, may change in a minor version: thinc-torchopt.TrainerController.v1"
    )
    found = told(CONFIGS / "controller_in_config.cfg", corpus, f"{path}.of", "scores['f1']")
    assert "A rule may fail in the training: metric 'stop_early_best_so_far'" in found["Note"]
    assert "expected a key of scores, found 'f1'" in found["Note"] and "found 'f1'" in found["Note"]


def test_explain_schedules_that_may_not_come_to_their_end(tmp_path, corpus):
    """What thinc's warm-up does without an end, and a fall that comes on demand."""
    text = (CONFIGS / "schedules.cfg").read_text()
    path = tmp_path / "thinc.cfg"
    path.write_text(text)
    block = '@schedules = "warmup_linear.v1"\ninitial_rate = 0.01\nwarmup_steps = 20\ntotal_steps = 0\n'
    before, rest = text.split("[training.optimizer.learn_rate]\n", 1)
    path.write_text(f"{before}[training.optimizer.learn_rate]\n{block}" + rest[rest.index("\n[") :])
    found = told(path, corpus, "--training.patience", "0")
    assert found["default"][-1] == "0, 0.0095 at step 19, 0 at step 20, 0 at step 50"
    block = '@schedules = "thinc-torchopt.warmup_stable_decay.v1"\ninitial_rate = 0.01\nwarmup_steps = 20\n'
    block += 'decay_steps = 5\ndecay_begins = "when told"\n'
    path.write_text(f"{before}[training.optimizer.learn_rate]\n{block}" + rest[rest.index("\n[") :])
    found = told(path, corpus, "--training.patience", "10")
    assert "learn_rate falls only on demand: by optimizer.begin_decay(), or by the signal" in found["Note"]


def test_explain_clipping(tmp_path, corpus):
    """By modules, with a norm or alone."""
    given = "--training.optimizer."
    assert told(CONFIGS / "modular.cfg", corpus, given + "grad_clip", "2.0")["parser"][3] == "2 global, clip"
    path = tmp_path / "other_name.cfg"
    path.write_text((CONFIGS / "modular.cfg").read_text().replace("modules.clip]", "modules.by-norm]"))
    assert told(path, corpus)["parser"][3] == "by_norm"


@pytest.mark.skipif(not has_opacus, reason="opacus is not installed")
@pytest.mark.filterwarnings("ignore:Optimal order")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((), "tagger: torch-gru by D-RTRL, approximate: traces don't follow the effect of a unit on others."),
        (("cell=mingru",), "tagger: mingru by D-RTRL, exact."),
        (
            ("cell=mingru", "depth=2"),
            "tagger: mingru by D-RTRL, approximate: below the top layer, which gives it the gradient of the same step "
            "alone. tagger: mingru by D-RTRL, exact.",
        ),
        (("learning=bptt",), "tagger: torch-gru by BPTT, exact."),
    ],
    ids=["gru", "exact", "stack", "bptt"],
)
def test_explain_recurrent_layers(settings, words, corpus):
    at = "--components.tagger.model.tok2vec.encode"
    args = [part for setting in settings for part in (f"{at}.{setting.split('=')[0]}", setting.split("=")[1])]
    assert told(CONFIGS / "online_rnn.cfg", corpus, *args)["Recurrent"] == words


def test_explain_privacy(corpus):
    """The noise is Opacus' own for the target."""
    utils = pytest.importorskip("opacus.accountants.utils", reason="opacus is not installed")

    config, size = CONFIGS / "privacy.cfg", ["--training.batcher.size", "5", "--training.max_steps", "1000"]
    rdp = ["--training.optimizer.privacy.accountant", "rdp"]
    found = told(config, corpus, *size, *rdp, "--training.seed", "7")
    n = len(DocBin().from_disk(corpus["train"]))
    noise = utils.get_noise_multiplier(
        target_epsilon=8.0, target_delta=1e-5, sample_rate=5 / n, steps=1001, accountant="rdp"
    )
    assert f"{n} examples, batches of 5 on average" in found["Privacy"]
    assert f"noise multiplier {noise:.4g}, delta 1e-05; 1," in found["Privacy"]
    assert "reach epsilon 8" in found["Privacy"]
    assert "in no batch" not in found["Note"] and "seed = null" in found["Note"]


@pytest.mark.skipif(not has_opacus, reason="opacus is not installed")
@pytest.mark.parametrize(
    ("args", "stop"),
    [
        (["--training.batcher.size", "9999"], "'size' in [training.batcher]: expected at most the number of examples"),
        (["--training.optimizer.privacy.delta", "0.5"], "far below 1 divided by"),
        (["--training.max_epochs", "-1"], "a streamed corpus"),
        (["--training.optimizer.precision", "tf32"], "precision = 'tf32'"),
    ],
)
def test_explain_says_why_a_private_training_is_refused(args, stop, corpus):
    assert stop in told(CONFIGS / "privacy.cfg", corpus, "--training.batcher.size", "5", *args)["Stops"]


def test_explain_drop_in_and_thinc(tmp_path, corpus):
    found = told(CONFIGS / "drop_in.cfg", corpus)
    assert found["Optimizer"] == "thinc-torchopt.Adam.v1."
    thinc = tmp_path / "thinc.cfg"
    thinc.write_text((CONFIGS / "drop_in.cfg").read_text().replace('= "thinc-torchopt.Adam.v1"', '= "Adam.v1"'))
    other = told(thinc, corpus)
    assert other["Optimizer"] == "Adam.v1."
    assert "makes weights NaN for good" in other["Note"] and "--recipe drop-in" in other["Note"]
    assert all(other[label] == found[label] for label in ("Trains", "default", "Ends"))


def test_explain_says_what_training_refuses(corpus):
    paths = [part for name in ("train", "dev") for part in (f"--paths.{name}", corpus[name])]
    args = ("--training.optimizer.param_groups.embeddings.params", '["tok2vec/embd/*"]')
    said = refusal("torchopt", "explain", CONFIGS / "param_groups.cfg", *paths, *args)
    assert "Stops Can't use pattern 'tok2vec/embd/*'" in said and "highest rate" in said


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"paths.train": "gone.spacy", "paths.dev": "lost.spacy"}, ["gone.spacy", "lost.spacy"]),
        ({"paths.train": "gone.spacy", "training.optimizer.clip_by": "globl"}, ["gone.spacy", "'globl'"]),
        ({"paths.dev": "lost.spacy", "training.optimizer.clip_by": "globl"}, ["'globl'", "lost.spacy"]),
        ({"training.optimizer.clip_by": "globl"}, ["'globl'"]),
    ],
)
def test_explain_tells_several_problems_at_once(overrides, told, corpus):
    paths = {f"paths.{name}": str(corpus[name]) for name in ("train", "dev")} | {"training.optimizer.clip_by": "global"}
    args = [part for name, value in (paths | overrides).items() for part in (f"--{name}", value)]
    run = spacy_cli("torchopt", "explain", CONFIGS / "cnn.cfg", *args, "--json", check=False)
    stops = json.loads(run.stdout)["stops"]
    assert run.returncode == 1
    assert len(stops) == len(told) and all(text in stop for text, stop in zip(told, stops))


GAIN = "is 2.9 times as fast"


def fast_cpu(corpus, **overrides):
    """A small model, and a few small batches: all of them are counted, and some are timed."""
    settings = {f"paths.{name}": str(corpus[name]) for name in ("train", "dev")} | overrides
    settings |= {"training.max_steps": 20, "training.batcher.size": 40}
    return load_config_from_str(smaller((CONFIGS / "fast_cpu.cfg").read_text()), overrides=settings)


@pytest.mark.parametrize(
    ("seconds", "ops", "changes", "words"),
    [
        ((2.9, 1.0), "thinc", True, f'BLIS 1 (generic). NumPy 2, 1 thread, {GAIN}: ops = "fastest" in'),
        ((2.9, 1.0), "fastest", True, f"BLIS 1 (generic). NumPy 2, 1 thread, {GAIN}, and is what the training"),
        ((1.0, 1.0), "thinc", True, 'BLIS 1 (generic) stays: NumPy 2, 1 thread takes 1.0 times as long. ops = "'),
        ((1.0, 1.0), "thinc", False, 'BLIS 1 (generic) stays: NumPy 2, 1 thread takes 1.0 times as long. ops = "'),
        ((1.08, 1.0), "fastest", True, "BLIS 1 (generic) stays: NumPy 2, 1 thread takes 0.9 times as long."),
        ((1.0, 1.7), "fastest", True, "BLIS 1 (generic) stays: NumPy 2, 1 thread takes 1.7 times as long."),
    ],
    ids=["gain", "taken", "tie", "nothing else changes", "tie by chance", "slower"],
)
def test_explain_products(corpus, monkeypatch, seconds, ops, changes, words):
    """By measurements of other machines: the library, and what `ops` would change."""
    thincs, numpys = Products("thinc", 1, "BLIS 1 (generic)"), Products("numpy", 1, "NumPy 2")
    choice, made = choose(dict(zip((thincs, numpys), seconds))), []
    monkeypatch.setattr("thinc_torchopt.addons.preview.description.fastest", lambda nlp, threads: choice)
    monkeypatch.setattr("thinc_torchopt.addons.preview.description.products_by", lambda library: thincs)
    monkeypatch.setattr("thinc_torchopt.addons.preview.costs.PipelineOps", lambda nlp, one: Noted(nlp, one, made))
    config = fast_cpu(corpus, **{"training.optimizer.ops": ops})
    monkeypatch.setattr(PipelineOps, "changes_anything", changes)
    shown = explain(config, is_timed=True)
    [text] = [text for label, text in shown.lines if label == "Products"]
    assert text.startswith(words) and shown.costs["products"]["thinc"] == "BLIS 1 (generic), 1 thread"
    assert text[:60] in " ".join(repr(shown).split())
    assert ("A step then takes" in text) == (ops == "thinc" and changes)
    assert ("changes nothing" in text) == (ops == "thinc" and not changes)
    # thinc's own way is none of ours.
    assert made == [choice.products] * (ops == "fastest" or changes)


class Noted(PipelineOps):
    def __init__(self, nlp, products, made):
        super().__init__(nlp, products)
        made.append(products)


def test_explain_products_of_this_machine(corpus):
    """BLIS tells which code it runs, here where it says so itself."""
    found = told(CONFIGS / "cnn.cfg", corpus, "--time", "--training.optimizer.ops", "fastest")["Products"]
    run = subprocess.run(
        [sys.executable, "-c", "import blis.cy"],
        env={**os.environ, "BLIS_ARCH_DEBUG": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    named = [line.split("'")[1] for line in run.stderr.splitlines() if "selecting sub-configuration" in line]
    assert found.startswith(f"{products_by('thinc').kernel}") and all(f"({name})" in found for name in named)
