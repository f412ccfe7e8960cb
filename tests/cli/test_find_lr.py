"""`spacy torchopt find-lr`: what it suggests, prints and draws. Its rule: tests/addons/trials/test_lr_finder.py."""

import json
import random
import re
import shutil
from itertools import pairwise

import pytest
import spacy
from spacy.tokens import DocBin

from thinc_torchopt.core.compat import has_matplotlib

from ..configs import smaller
from ..conftest import CONFIGS
from ..pictures import drawn, series
from ..runs import contents
from ..spacy_cli import refusal, spacy_cli, torchopt


@pytest.mark.skipif(not has_matplotlib, reason="matplotlib is not installed")
def test_find_lr(folder, monkeypatch):
    """What it suggests trains; nothing of the user's is changed, and the picture is the one new file."""
    (folder / "my.cfg").write_text(smaller((CONFIGS / "param_groups.cfg").read_text(), depth=4))
    # As it is, each rate learns the toy corpus to the last bit, and there is nothing to suggest.
    for part, rng in (("train", random.Random(0)), ("dev", random.Random(1))):
        docs = list(DocBin().from_disk(folder / f"{part}.spacy").get_docs(spacy.blank("en").vocab))
        tags = sorted({token.tag_ for doc in docs for token in doc})
        for token in (token for doc in docs for token in doc if rng.random() < 0.3):
            token.tag_ = rng.choice(tags)
        DocBin(docs=docs).to_disk(folder / f"{part}.spacy")
    before, figures = contents(folder), drawn(monkeypatch)
    few = ("--training.batcher.size", "60", "--steps")
    run = torchopt(folder, "find-lr", folder / "my.cfg", "--output", folder / "lr.png", "--json", *few, 80)
    found = json.loads(run.stdout)
    after = contents(folder)
    assert after.pop(folder / "lr.png")[0].startswith(b"\x89PNG") and after == before

    rates, losses = found["learn_rates"], found["losses"]
    assert rates[0] == 1e-6 and len(rates) == len(losses) <= 40 and found["steps"] <= 80
    assert all(high / low == pytest.approx(1e7 ** (2 / 79), rel=1e-9) for low, high in pairwise(rates))
    suggestion, (low, high) = found["suggestion"], found["stretch"]
    assert suggestion == pytest.approx(0.5 * (low * high) ** 0.5) and {low, high} <= set(rates)
    peaks = {tuple(entry["setting"]): entry["peak"] for entry in found["settings"]}
    expected = {("learn_rate",): 0.002, ("per_param_lr", "tagger/*"): 0.003, ("per_param_lr", "ner/*"): 0.001}
    assert peaks == pytest.approx(expected)
    for entry in found["settings"]:
        assert entry["suggestion"] == pytest.approx(entry["peak"] / 0.003 * suggestion)
    assert found["groups"]["ner/*"] == pytest.approx(suggestion / 3)
    assert found["groups"]["shared/layer-3"] == pytest.approx(suggestion / 1.5 * 0.5 * 0.9)
    assert "shared+embeddings/layer-0" not in found["groups"]  # frozen until step 200

    # The picture has the same numbers. The first point does not count, nor the one at which it diverged.
    [axes] = figures[0].axes
    (_, *counted, diverged), first, last = rates, rates.index(low), rates.index(high)
    smoothed = [*zip(counted, found["smoothed"], strict=True)]
    assert found["ended"] == "diverged" and [line for *_, line in series(axes)] == [
        [*zip(counted, losses[1:-1])],
        smoothed,
        smoothed[first - 1 : last],
        [(suggestion, 0), (suggestion, 1)],
        [(1e-6, min(losses[0], axes.get_ylim()[1])), (diverged, axes.get_ylim()[1])],
    ]
    assert losses[first] < 0.8 * losses[1]  # in the stretch they are lower

    text = torchopt(folder, "find-lr", folder / "my.cfg", *few, 50).stdout
    [suggestion] = re.findall(r"\[training\.optimizer\.per_param_lr\.tagger/\*]\ninitial_rate = (\S+)", text)
    [third] = re.findall(r"\[training\.optimizer\.per_param_lr]\nner/\* = (\S+)", text)
    assert float(suggestion) / 3 == pytest.approx(float(third), rel=0.1)  # both have two digits
    [line] = [line for line in text.splitlines() if line.startswith("shared+embeddings/layer-0")]
    assert line.split() == ["shared+embeddings/layer-0", "frozen", "frozen", "frozen"]


def test_find_lr_of_a_trained_model(trained, folder, monkeypatch):
    made, _ = trained("cnn.cfg")
    model = shutil.copytree(made / "training" / "cnn" / "model-last", folder / "model")
    monkeypatch.chdir(folder)  # the model's config says train.spacy
    before = contents(folder)
    # A rate that does nothing, and few steps: nothing to suggest is said, and is an error for scripts.
    args = ("--min-lr", "1e-12", "--max-lr", "1e-11", "--steps", "24")
    run = spacy_cli("torchopt", "find-lr", model, "--json", *args, check=False)
    found = json.loads(run.stdout)
    assert run.returncode == 1 and "expected a loss that falls" in found["problem"] and len(found["losses"]) == 12
    assert (found["suggestion"], found["settings"], found["ended"]) == (None, [], "max_rate")
    assert "Error: Can't suggest a learning rate" in refusal("torchopt", "find-lr", model, *args)
    assert contents(folder) == before
