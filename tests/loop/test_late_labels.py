"""Labels of entities that come in the middle of a training. The oracles: a run that was never stopped, and spaCy's own
way to add a label.
"""

import random

import pytest
import spacy
import srsly
import torch
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp

from thinc_torchopt.core.errors import NonFiniteGradWarning, RollbackWarning
from thinc_torchopt.core.schema import read
from thinc_torchopt.core.state.files import read_folder
from thinc_torchopt.loop.checkpoint_folder import SavedTraining
from thinc_torchopt.loop.late_labels import LateLabels, add_late, late_labels
from thinc_torchopt.loop.model_state import collect_model, restore_model

from ..core.labels.test_add_labels import examples_of
from ..models import LISTENER, TOK2VEC
from ..runs import config_for, digests, run

PARSER_MODEL = {
    "@architectures": "spacy.TransitionBasedParser.v2",
    "state_type": "ner",
    "extra_state_tokens": False,
    "hidden_width": 8,
    "maxout_pieces": 2,
    "use_upper": True,
    "nO": None,
}
# The step with the first texts that have the new labels.
CAME = 5
BATCH = 4


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A corpus whose later texts have two new labels, and the labels of the earlier ones."""
    folder = tmp_path_factory.mktemp("late")
    nlp = spacy.blank("xx")
    docs = [example.reference for example in examples_of(nlp, CAME * BATCH)]
    late = [example.reference for example in examples_of(nlp, 20, new=["ZEBRA"])]
    for doc in late[1::3]:
        doc.ents = [doc.ents[0], spacy.tokens.Span(doc, 3, 4, label="ALPHA")]
    docs += [late[0], late[1], *late]
    random.Random(1).shuffle(docs[CAME * BATCH + BATCH :])
    DocBin(docs=docs, store_user_data=True).to_disk(folder / "train.spacy")
    DocBin(docs=docs[-8:], store_user_data=True).to_disk(folder / "dev.spacy")
    srsly.write_json(folder / "labels.json", {str(action): {"CITY": 2, "PERSON": 1} for action in (1, 2, 3)} | {
        "0": {}, "4": {"": 1, "CITY": 2, "PERSON": 1}, "5": {"": 1}
    })  # fmt: skip
    return folder


def config_of(texts, folder, *, steps=9, **changes):
    corpus = {"train": texts / "train.spacy", "dev": texts / "dev.spacy"}
    labels = {"@readers": "spacy.read_labels.v1", "path": str(texts / "labels.json")}
    ours = {
        "components__ner": {"factory": "ner", "model": PARSER_MODEL | {"tok2vec": LISTENER}},
        "nlp__pipeline": ["tok2vec", "tagger", "ner"],
        "initialize__components__ner__labels": labels,
        "training__batcher": {"@batchers": "spacy.batch_by_sequence.v1", "size": BATCH},
        "training__max_epochs": -1,
        "training__optimizer__checkpoint__every": 1,
        "training__optimizer__learn_rate": 0.01,
    }
    return config_for(folder, corpus, steps=steps, **ours | changes)


VARIANTS = {
    "plain": {},
    "groups, parts of batches, no hidden layer": {
        "training__accumulate_gradient": 2,
        "components__ner__model__use_upper": False,
        "training__optimizer__param_groups": {
            "output": {"params": ["ner/lower/*"], "algorithm": {"@torch_optimizers": "torch.RMSprop.v1"}},
            "below": {"params": ["tok2vec/*"], "unfreeze_at": CAME},
        },
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_late_labels_resume_is_exact(variant, texts, tmp_path):
    """Killed before the new labels, at their step and after it."""
    changes = VARIANTS[variant]
    whole = run(config_of(texts, tmp_path / "whole", **changes), tmp_path / "whole")
    config = config_of(texts, tmp_path / "broken", **changes)
    stops = (CAME, CAME + 1, None) if variant == "plain" else (CAME + 1, None)
    parts = [run(config, tmp_path / "broken", crash_at=step) for step in stops]
    assert {step: info for part in parts for step, info in part.items()} == whole
    assert [min(part) for part in parts] == [0, *stops[:-1]]
    assert digests(tmp_path / "broken") == digests(tmp_path / "whole")
    moves = [(tmp_path / name / "model-last" / "ner" / "moves").read_bytes() for name in ("whole", "broken")]
    assert moves[0] == moves[1]
    assert spacy.load(tmp_path / "whole" / "model-last").get_pipe("ner").labels == ("ALPHA", "CITY", "PERSON", "ZEBRA")


def test_late_labels_are_added_as_spacy_adds_them(texts, tmp_path, monkeypatch):
    """The same weights, to the bit, where spaCy's order is not left to chance: with one new label."""
    docs = DocBin().from_disk(texts / "train.spacy").get_docs(spacy.blank("xx").vocab)
    one = [doc for doc in docs if "ALPHA" not in {ent.label_ for ent in doc.ents}]
    DocBin(docs=one, store_user_data=True).to_disk(tmp_path / "one.spacy")
    run(config_of(texts, tmp_path, paths__train=str(tmp_path / "one.spacy")), tmp_path / "ours")
    monkeypatch.setattr(LateLabels, "look", lambda self, batch: None)
    config = config_of(texts, tmp_path / "spacys", paths__train=str(tmp_path / "one.spacy"))
    run(config, tmp_path / "spacys")
    assert digests(tmp_path / "ours") == digests(tmp_path / "spacys")


def recognizer(**config):
    nlp = spacy.blank("xx")
    nlp.add_pipe("ner", config={"model": PARSER_MODEL | {"tok2vec": TOK2VEC}} | config)
    nlp.initialize(lambda: examples_of(nlp))
    return nlp


def with_labels(nlp, labels):
    words = [f"word{i}" for i in range(len(labels))]
    doc = spacy.tokens.Doc(nlp.vocab, words=words, ents=[f"B-{label}" for label in labels])
    return Example(nlp.make_doc(" ".join(words)), doc)


def test_late_labels_come_in_the_same_order_everywhere():
    """spaCy takes the order of a set of texts, which is another one in each process."""
    nlp = recognizer()
    at_start = {"ner": nlp.get_pipe("ner").move_names}
    new = [f"L{i}" for i in range(20)]
    look = LateLabels(nlp, ()).look
    look([with_labels(nlp, new[::-1])])()
    assert late_labels(nlp, at_start) == {"ner": sorted(new)}
    assert look([with_labels(nlp, new)]) is None
    other = recognizer()
    add_late(other, {"ner": sorted(new)})
    assert other.get_pipe("ner").move_names == nlp.get_pipe("ner").move_names
    assert other.get_pipe("ner").label_data == nlp.get_pipe("ner").label_data
    assert LateLabels(nlp, ["ner"]).look([with_labels(nlp, ["FROZEN"])]) is None


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("on_growth, at", [("mean", CAME), ("zero", CAME - 1), ("reset", CAME)])
def test_late_labels_begin_again_when_a_run_goes_back_past_them(on_growth, at, texts, tmp_path):
    """As where spaCy adds them to the model of that step; the old cells of all states are those of then. The rate of
    one step ruins the params, so the run goes back after the next one, which may be the first with the labels.
    """
    broken = [1e39 if step == at else 0.01 for step in range(20)]
    changes = {"rollback_after": 1, "use_averages": False, "averages": {"@misc": "thinc-torchopt.EMA.v1"}}
    changes |= {"learn_rate": broken, "on_growth": on_growth}
    changes = {f"training__optimizer__{name}": value for name, value in changes.items()}
    config = config_of(texts, tmp_path, steps=at + 1, **changes, training__eval_frequency=50)
    config["training"]["optimizer"]["checkpoint"]["keep"] = 9
    with pytest.warns(NonFiniteGradWarning), pytest.warns(RollbackWarning, match=f"params of step {at - 1} after"):
        run(config, tmp_path / "out")
    before, after = (read_folder(tmp_path / "state" / f"step-{step:08d}") for step in (at - 1, at + 1))
    nlp = init_nlp(config.interpolate())
    saved = read(SavedTraining, before, "")
    restore_model(nlp, saved.model)
    add_late(nlp, {"ner": ["ALPHA", "ZEBRA"]})
    found = collect_model(nlp)
    assert after["late_labels"] == {"ner": ["ALPHA", "ZEBRA"]} and before["late_labels"] == {}
    assert found.params.keys() == after["model"]["params"].keys()
    assert all(torch.equal(value, after["model"]["params"][name]) for name, value in found.params.items())
    assert after["model"]["attrs"] == found.attrs
    states = [state["optimizer"]["params"]["ner/upper/W"]["state"] for state in (before, after)]
    averages = [state["optimizer"]["averages"]["tensors"] for state in (before, after)]
    if on_growth == "reset":
        assert not states[1] and "ner/upper/W" not in averages[1]
        return
    old, new = (state["exp_avg_sq"] for state in states)
    assert torch.equal(new[: len(old)], old) and torch.allclose(new[len(old) :], old.mean(0) * (on_growth == "mean"))
    assert torch.equal(averages[1]["ner/upper/W"][: len(old)], averages[0]["ner/upper/W"])
    assert min(run(config_of(texts, tmp_path, steps=at + 3, **changes), tmp_path / "out")) == at + 2
