"""`ops = "fastest"` in a run: chosen once, for its time, and kept by a resumed run."""

import json
import shutil

import pytest
import spacy
from numpy.testing import assert_allclose
from thinc.api import NumpyOps

from thinc_torchopt.core.errors import CheckpointWarning, StateError
from thinc_torchopt.core.ops import Choice, FastOps, PipelineOps, products_by
from thinc_torchopt.core.state.files import read_folder, write_folder
from thinc_torchopt.loop.checkpoint_folder import steps_of
from thinc_torchopt.loop.processes import Alone
from thinc_torchopt.loop.run_ops import RunOps

from ..forks import python
from ..models import LISTENER
from ..runs import config_for, digests, run

FASTEST = {"training__optimizer__ops": "fastest"}


@pytest.fixture
def chosen(monkeypatch):
    """The libraries that measuring finds to be the fastest, and the number of times it was done."""
    choices, made = ["numpy"], []

    def fastest(nlp, threads):
        made.append(threads)
        return Choice(products_by(choices[0]), "as the test wants it.")

    monkeypatch.setattr("thinc_torchopt.loop.run_ops.fastest", fastest)
    return choices, made


NER = {"factory": "ner", "model": {"@architectures": "spacy.TransitionBasedParser.v2", "state_type": "ner"}}
NER["model"] |= {"extra_state_tokens": False, "hidden_width": 16, "maxout_pieces": 2, "use_upper": True}
NER["model"]["tok2vec"] = LISTENER
OF_NER = {"nlp__pipeline": ["tok2vec", "ner"], "components__ner": NER, "training__score_weights": {"ents_f": 1.0}}
OF_NER |= {"components__tagger": None, "components__parser": None}


@pytest.mark.parametrize(
    ("changes", "library", "other"),
    [({}, "numpy", "thinc"), (OF_NER, "torch", "numpy"), (OF_NER, "thinc", "torch")],
    ids=["parser by NumPy", "NER by torch", "NER by thinc"],
)
def test_run_ops_resume_to_the_last_bit(tmp_path, corpus, chosen, caplog, changes, library, other):
    """Also where another library has become the fastest, and with the parser's backward pass in one piece."""
    choices, made = chosen
    choices[0] = library
    changes = FASTEST | changes
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    infos = run(config_for(whole, corpus, steps=7, parser=True, **changes), whole)
    config = config_for(stopped, corpus, steps=7, parser=True, **changes)
    run(config, stopped, crash_at=4)
    choices[0] = other
    caplog.clear()
    resumed = run(config, stopped)
    assert digests(stopped) == digests(whole)
    assert all(resumed[step] == infos[step] for step in resumed) and 7 in resumed
    assert f"Matrix products by {products_by(library)}: as before the run was stopped." in caplog.messages
    assert made == [1, 1]


def test_run_ops_from_another_machine(tmp_path, corpus, chosen, recwarn):
    """A checkpoint of a processor that the library takes for another one."""
    config = config_for(tmp_path, corpus, steps=12, **FASTEST)
    run(config, tmp_path, crash_at=5)
    for step in steps_of(tmp_path / "state"):
        state = read_folder(step)
        state["listeners"]["ops"]["kernel"] = "NumPy 0.1 (openblas Elsewhere)"
        shutil.rmtree(step)
        write_folder(step, state)
    with pytest.warns(CheckpointWarning, match="expected NumPy 0.1 .openblas Elsewhere., found NumPy"):
        run(config, tmp_path)


PIPELINES = []


@spacy.registry.callbacks("test-run-ops.Note.v1")
def note():
    return lambda nlp: PIPELINES.append(nlp) or nlp


def of_pipeline(nlp):
    return {type(node.ops) for _, pipe in nlp.pipeline for node in pipe.model.walk()}


@pytest.mark.parametrize("crash_at", [None, 3])
def test_run_ops_for_its_time_only(tmp_path, corpus, chosen, caplog, monkeypatch, crash_at):
    """In updates and evaluations; nodes get thinc's back at the end, also after an error. It is told in one line."""
    seen, begun = [], []

    @spacy.registry.scorers("test-run-ops.Score.v1")
    def scorer():
        def score(examples, **kwargs):
            if begun:  # not in the check of the data
                seen.append(of_pipeline(PIPELINES[-1]))
            return {"tag_acc": 0.5}

        return score

    changes = {
        "initialize__after_init": {"@callbacks": "test-run-ops.Note.v1"},
        "components__tagger__scorer": {"@scorers": "test-run-ops.Score.v1"},
        "training__optimizer__ops_threads": "auto",
        "training__optimizer__checkpoint": None,
    }
    config = config_for(tmp_path, corpus, steps=6, **FASTEST, **changes)
    run(config, tmp_path, crash_at=crash_at, act=begun.append)
    assert seen and all(found == {FastOps} for found in seen)
    assert of_pipeline(PIPELINES[-1]) == {NumpyOps}
    assert caplog.messages.count(f"Matrix products by {products_by('numpy')}: as the test wants it.") == 1
    assert chosen[1] == ["auto"]


def test_run_ops_reach_a_new_label(tmp_path, corpus, chosen):
    """Whose layer was made after the run began."""
    seen = {}

    def act(step):
        if step == 2:
            PIPELINES[-1].get_pipe("parser").add_label("NEW")
        seen[step] = of_pipeline(PIPELINES[-1])

    changes = {
        "initialize__after_init": {"@callbacks": "test-run-ops.Note.v1"},
        "training__optimizer__checkpoint": None,
        "training__optimizer__ops": "fastest",
    }
    run(config_for(tmp_path, corpus, steps=4, parser=True, **changes), tmp_path, act=act)
    assert seen[1] == {FastOps} and NumpyOps in seen[2] and seen[3] == {FastOps}


def test_run_ops_damaged_state():
    listener = RunOps(spacy.blank("xx"), Alone(), 1)
    for wrong in ({"library": "mine", "threads": 1, "kernel": "x"}, {"library": "numpy", "threads": 0, "kernel": "x"}):
        with pytest.raises(StateError, match="the matrix products of the run"):
            listener.load_state_dict(wrong)


def test_run_ops_leave_nothing_in_the_model(tmp_path, corpus, chosen):
    """It loads and predicts where this package is missing: the same, to rounding."""
    config = config_for(tmp_path, corpus, steps=6, parser=True, **FASTEST)
    run(config, tmp_path)
    code = """
import json, sys
sys.modules["thinc_torchopt"] = None  # can't be imported
import spacy
from thinc.api import NumpyOps
nlp = spacy.load(sys.argv[1])
assert {type(node.ops) for _, pipe in nlp.pipeline for node in pipe.model.walk()} == {NumpyOps}
assert not [name for name in sys.modules if name.startswith("thinc_torchopt.")]
doc = nlp("some words and others")
print(json.dumps([nlp.get_pipe("tagger").model.predict([doc])[0].tolist(), [t.head.i for t in doc]]))
"""
    scores, heads = json.loads(python(code, tmp_path / "model-last").stdout)
    nlp = spacy.load(tmp_path / "model-last")
    with PipelineOps(nlp, products_by("numpy")):
        doc = nlp("some words and others")
        assert_allclose(nlp.get_pipe("tagger").model.predict([doc])[0], scores, rtol=1e-4, atol=1e-6)
    assert [token.head.i for token in doc] == heads
