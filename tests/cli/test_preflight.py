"""What `spacy torchopt explain` says before a training, against that training."""

import json

import pytest
import spacy
from confection import Config
from spacy.tokens import DocBin

from thinc_torchopt.core.algorithms.facts import FAR, usual_rates
from thinc_torchopt.loop.checkpoint_folder import steps_of

from ..configs import smaller
from ..conftest import CONFIGS, resize
from ..spacy_cli import flags_of, refusal, spacy_cli

CNN = CONFIGS / "cnn.cfg"
RATE = "training.optimizer.learn_rate"


@pytest.fixture
def preflight(corpus):
    """Explains a config: gives the exit code, and the JSON."""

    def run(config, is_timed=False, **settings):
        given = {"paths.train": corpus["train"], "paths.dev": corpus["dev"], "training.max_steps": 50}
        given |= {key.replace("__", "."): value for key, value in settings.items()}
        timed = ["--time"] * is_timed
        shown = spacy_cli("torchopt", "explain", config, *flags_of(given), *timed, "--json", check=False)
        found = json.loads(shown.stdout)
        assert shown.returncode == (1 if found["stops"] else 0)
        return found

    return run


def test_preflight_of_a_config_that_cant_be_read_is_json_too(preflight):
    [stop] = preflight(CNN, training__optimizer__lr=1)["stops"]
    assert "'lr'" in stop and "Did you mean 'learn_rate'?" in stop


# ---------------------------------------------------------------------- corpora


def test_preflight_dev_that_is_not_there_leaves_the_rest(preflight, tmp_path):
    """spaCy would stop at the first evaluation."""
    found = preflight(CNN, paths__dev=tmp_path / "none.spacy")
    assert len(found["stops"]) == 1 and found["groups"]


def test_preflight_component_without_annotations(preflight, tmp_path):
    """spaCy's own error for it is not told beside it."""
    docs = [spacy.blank("en")("Words without any tags.") for _ in range(5)]
    DocBin(docs=docs).to_disk(tmp_path / "train.spacy")
    found = preflight(CNN, paths__train=tmp_path / "train.spacy")
    seen = [stop.split(":")[0] for stop in found["stops"]]
    assert seen == ["'tagger' has nothing to learn", "'parser' has nothing to learn"]


def test_preflight_changes_no_file(preflight, tmp_path, monkeypatch, corpus):
    config, here = tmp_path / "guards.cfg", tmp_path / "here"
    config.write_text(smaller((CONFIGS / "guards.cfg").read_text()))
    here.mkdir()
    monkeypatch.chdir(here)
    preflight(config, is_timed=True)
    preflight(CONFIGS / "checkpoint.cfg")
    assert not list(here.iterdir())


# ---------------------------------------------------------------------- nothing to train, schedules, ends


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"training__frozen_components": '["tok2vec"]'}, "which is frozen and does not annotate"),
        ({"nlp__pipeline": '["tagger", "tok2vec", "parser"]'}, "which comes after it"),
    ],
)
def test_preflight_components_that_listen(settings, words, preflight):
    said = f"Can't train 'tagger': it listens to 'tok2vec', {words}"
    assert any(said in stop for stop in preflight(CNN, **settings)["stops"])


def test_preflight_usual_rates():
    """Each range holds the default of torch, or of what is known; and what is far is outside of it."""
    import torch

    from thinc_torchopt.core.algorithms.torch_classes import AdamW

    for name in ("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD"):
        found = usual_rates(f"torch.{name}.v1")
        [default] = torch.optim.__dict__[name]([torch.ones(1, requires_grad=True)]).param_groups
        assert found.lowest <= default["lr"] <= found.highest < FAR * found.highest
    assert usual_rates(AdamW().label) == usual_rates("thinc-torchopt.Adam.v1")
    assert usual_rates("pytorch-optimizer.create.v1 (lion)").highest < usual_rates("torch.AdamW.v1").highest
    assert usual_rates("thinc-torchopt.Modular.v1") is None
    assert usual_rates("torch.AdamW.v1", pretrained=True).highest < usual_rates("torch.AdamW.v1").highest
    assert usual_rates("torch.SGD.v1", pretrained=True) == usual_rates("torch.SGD.v1")


# ---------------------------------------------------------------------- costs


def test_preflight_sizes_are_those_on_disk(trained, preflight):
    """Of a checkpoint, and of a model: what is beside the params (JSON, strings) is small."""
    folder, _ = trained("checkpoint.cfg")
    found = preflight(CONFIGS / "checkpoint.cfg")["costs"]["bytes"]
    [newest] = steps_of(folder / "training" / "state")[-1:]
    on_disk = sum(file.stat().st_size for file in newest.iterdir())
    assert found["checkpoint"] == pytest.approx(on_disk, rel=0.05)
    models = [path.parent for path in folder.rglob("model-last/meta.json")]
    on_disk = sum(file.stat().st_size for file in models[0].rglob("*") if file.is_file())
    assert found["model"] == pytest.approx(on_disk, rel=0.1)
    assert found["params"] == found["gradients"] == found["averages"] == pytest.approx(found["state"] / 2, rel=0.01)


def test_preflight_room_for_checkpoints(small_disk, preflight):
    settings = {"paths.state": small_disk / "deep" / "state"}
    [stop] = preflight(CONFIGS / "checkpoint.cfg", **settings)["stops"]
    assert stop.startswith("No room for checkpoints: 3 checkpoints of 16 MB") and f"free in '{small_disk}'" in stop
    resize(small_disk, "100m")
    assert not preflight(CONFIGS / "checkpoint.cfg", **settings)["stops"]
    (small_disk / "deep").write_text("a file")
    [stop] = preflight(CONFIGS / "checkpoint.cfg", **settings)["stops"]
    assert stop.startswith("Can't write checkpoints")


def test_preflight_times_steps_that_fail(preflight, tmp_path):
    """What is seen only in a step: a hook that raises an error."""
    code = tmp_path / "code.py"
    code.write_text(
        "import spacy\n\n@spacy.registry.callbacks('fails.v1')\ndef fails():\n"
        "    def hook(nlp, args):\n        raise RuntimeError('no such thing')\n    return hook\n"
    )
    exec(code.read_text(), {})
    config = Config().from_disk(CNN, interpolate=False)
    config["training"]["before_update"] = {"@callbacks": "fails.v1"}
    config.to_disk(tmp_path / "config.cfg")
    assert not preflight(tmp_path / "config.cfg")["stops"]
    [stop] = preflight(tmp_path / "config.cfg", is_timed=True)["stops"]
    assert stop == "One of the first steps fails: RuntimeError: no such thing (at line 6 of '<string>')"


# ---------------------------------------------------------------------- output


def test_preflight_gpu_that_is_not_there(corpus):
    """The rest is told all the same."""
    paths = [part for name in ("train", "dev") for part in (f"--paths.{name}", corpus[name])]
    said = refusal("torchopt", "explain", CNN, *paths, "--gpu-id", "7")
    assert "Stops Can't train on the GPU of --gpu-id 7" in said and "highest rate" in said


def test_preflight_fits_a_terminal(corpus, monkeypatch):
    """In 80 columns but for the table, with what stops first."""
    monkeypatch.setenv("COLUMNS", "80")
    paths = [part for name in ("train", "dev") for part in (f"--paths.{name}", corpus[name])]
    run = spacy_cli("torchopt", "explain", CONFIGS / "guards.cfg", *paths)
    lines = run.stdout.splitlines()
    table = [line for line in lines if line.startswith(("params", "-----", "default"))]
    assert max(len(line) for line in lines if line not in table) <= 80 and len(table) == 3
    heads = [line.partition(" ")[0] for line in lines[1:] if line[:1].strip()]
    order = ["Stops", "Checked", "params", "Trains", "Ends", "Steps", "Memory", "Disk", "Time"]
    assert [head for head in dict.fromkeys(heads) if head in order] == order
