"""Gradients that params have between two updates: a thinc param keeps zeros once it had a gradient, which momentum and
weight decay move in each update of its model.
"""

import warnings
from types import SimpleNamespace

import pytest
import spacy
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import fix_random_seed

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import SGD, AdamW
from thinc_torchopt.core.errors import NonFiniteGradWarning, StateError
from thinc_torchopt.core.state import by_name
from thinc_torchopt.core.state.files import read_folder, write_folder
from thinc_torchopt.loop.model_state import collect_model, restore_model

from ...models import pipeline_params, same, toy_examples, toy_pipeline

ALGORITHMS = {"AdamW": lambda: AdamW(weight_decay=0.1), "SGD": lambda: SGD(momentum=0.9)}


class Run:
    """A tagger and an entity recognizer on one tok2vec, trained by texts that annotate one of them, or both."""

    def __init__(self, algorithm, *, jointly):
        self.algorithm, self.jointly = algorithm, jointly
        fix_random_seed(0)
        self.nlp = toy_pipeline()
        self.nlp.initialize(lambda: toy_examples(self.nlp))
        self.begin()

    def begin(self):
        self.optimizer = TorchOptimizer(ALGORITHMS[self.algorithm](), 0.01, max_nonfinite=1000)
        self.optimizer.initialize(self.nlp)

    def restart(self, folder):
        """As in a new process. spaCy's own files leave out which labels the recognizer has seen."""
        self.nlp.to_disk(folder / "model")
        self.optimizer.to_disk(folder / "state")
        model, self.nlp = collect_model(self.nlp), spacy.load(folder / "model")
        restore_model(self.nlp, model)
        self.begin()
        self.optimizer.from_disk(folder / "state")

    def update(self, keys, *, exclude=(), is_bad=False):
        gold = {"tags": ["NNP", "VBZ", "JJ"], "entities": [(0, 4, "PERSON")]}
        words = Doc(self.nlp.vocab, ["Anna", "likes", "red"])
        example = Example.from_dict(words, {key: gold[key] for key in keys})
        if not self.jointly:
            self.nlp.update([example], drop=0.0, sgd=self.optimizer, exclude=exclude)
            self.optimizer.step_schedules()
            return
        self.nlp.update([example], drop=0.0, sgd=False, exclude=exclude)
        if is_bad:
            node = self.nlp.get_pipe("tagger").model.get_ref("output_layer")
            node.inc_grad("b", node.get_param("b") * float("nan"))
        with self.optimizer.joint_step():
            for _, proc in self.nlp.pipeline:
                proc.finish_update(self.optimizer)
        self.optimizer.step_schedules()


KEYS = [("tags",), ("entities",), ("tags", "entities")]
OPERATIONS = st.one_of(
    st.tuples(st.just("update"), st.sampled_from(KEYS)),
    st.tuples(st.just("exclude ner"), st.just(("tags",))),
    st.tuples(st.just("bad"), st.sampled_from(KEYS)),
    st.tuples(st.just("freeze"), st.sampled_from(["ner/*", "tagger/*", "tok2vec/*"])),
    st.tuples(st.just("unfreeze"), st.sampled_from(["ner/*", "tagger/*", "tok2vec/*"])),
    st.tuples(st.just("add label"), st.just("NEW")),
)


@settings(max_examples=settings.default.max_examples // 7, phases=[Phase.generate])
@given(
    operations=st.lists(OPERATIONS, min_size=1, max_size=7),
    restarts=st.sets(st.integers(0, 6), min_size=1),
    algorithm=st.sampled_from(sorted(ALGORITHMS)),
    jointly=st.booleans(),
)
def test_grads_that_are_there_belong_to_the_state(tmp_path_factory, operations, restarts, algorithm, jointly):
    """Against a run in one process, to the bit: updates of some components, skipped updates, freezing, new labels."""
    runs = [Run(algorithm, jointly=jointly), Run(algorithm, jointly=jointly)]
    for i, (name, argument) in enumerate([*operations, ("update", ("tags",)), ("update", ("entities",))]):
        for run in runs:
            fix_random_seed(i)  # the recognizer drops cells at random
            if name in ("freeze", "unfreeze"):
                getattr(run.optimizer, name)([argument])
            elif name == "add label":
                run.nlp.get_pipe("ner").add_label(f"{argument}{i}")
                run.optimizer.initialize(run.nlp)  # labels that are noticed together get means of the same rows
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", NonFiniteGradWarning)
                    run.update(argument, exclude=("ner",) if name == "exclude ner" else (), is_bad=name == "bad")
        if i in restarts:
            runs[1].restart(tmp_path_factory.mktemp("run"))
    one, other = (pipeline_params(run.nlp) for run in runs)
    assert all(same(params, other[name]) for name, params in one.items())


def test_grads_on_a_gpu_are_zeros_only_if_no_cell_is_above(monkeypatch):
    """A double of CuPy's arrays. The square of a small number is 0 in float32."""
    cells = {"zeros": torch.zeros(2), "small": torch.tensor([0.0, 1e-30]), "one": torch.ones(1)}
    monkeypatch.setattr(by_name, "saved_tensor", lambda grad, name: cells[name])
    array = SimpleNamespace(__cuda_array_interface__={})
    owner = SimpleNamespace(has_grad=lambda name: name != "none", get_grad=lambda name: array)
    params = [SimpleNamespace(key=(1, name), name=name, param=None, owner=owner) for name in (*cells, "none")]
    assert by_name.collect_grads([SimpleNamespace(params=params)]) == cells | {"zeros": None}


def test_grads_of_another_shape_are_refused(tmp_path):
    run = Run("AdamW", jointly=False)
    for _ in range(2):  # the output layers are zeros at first
        run.update(("tags", "entities"))
    run.optimizer.to_disk(tmp_path)
    tree = read_folder(tmp_path)
    name = next(name for name, grad in tree["grads"].items() if grad is not None)
    write_folder(tmp_path, {**tree, "grads": {**tree["grads"], name: torch.zeros(7, 7)}})
    before = {key: grad.clone() for key, grad in run.optimizer.state_dict()["grads"].items() if grad is not None}
    with pytest.raises(StateError, match=r"'grads/.*shape .*found one of shape .7, 7."):
        run.optimizer.from_disk(tmp_path)
    after = run.optimizer.state_dict()["grads"]
    assert all(torch.equal(after[key], grad) for key, grad in before.items())
