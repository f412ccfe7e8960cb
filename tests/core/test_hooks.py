"""With any other optimizer, everything is as it is without us, to the last bit."""

import functools
import gc
import json
import sys
import warnings
from contextlib import contextmanager, suppress
from contextvars import copy_context
from unittest.mock import Mock, call

import numpy
import pytest
import spacy.about
import spacy.language
import spacy.training.loop
import spacy.training.pretrain
import thinc
import thinc.model
import torch
from spacy.training.initialize import init_nlp
from thinc.api import Linear, PyTorchShim, PyTorchWrapper, Shim, chain

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core import hooks, replaced
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.averages.averages import AveragedParams
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.errors import ConfigError, DistributedError, HostWarning
from thinc_torchopt.core.log import inform

from ..conftest import CONFIGS
from ..forks import python
from ..models import (
    backprop,
    mixed_model,
    params_of,
    pipeline_params,
    ready_pipeline,
    same,
    slots,
    snapshot,
    thinc_model,
    toy_examples,
    toy_pipeline,
)
from ..runs import config_for, loop_over

TRAIN = """
import hashlib, json, sys
import numpy, spacy
from thinc.api import Adam, fix_random_seed
from tests.models import toy_examples, toy_pipeline, params_of
from spacy.training.loop import train_while_improving
assert ("thinc_torchopt.core.hooks" in sys.modules) == False
if sys.argv[1] == "with":
    import thinc_torchopt.core.optimizer
fix_random_seed(3)
nlp = toy_pipeline(["tagger", "parser", "ner"])
nlp.add_pipe("textcat")
examples = toy_examples(nlp)
optimizer = nlp.initialize(lambda: examples, sgd=Adam(0.01, L2=0.01))
data = ((i // 4, examples[(3 * i) % 12:][:3]) for i in range(12))
evaluate = lambda: (nlp.evaluate(examples)["tag_acc"], {})
steps = spacy.training.loop.train_while_improving(nlp, optimizer, data, evaluate, dropout=0.1, eval_frequency=4,
    accumulate_gradient=2, patience=0, max_steps=0, exclude=[], annotating_components=[], before_update=None)
losses = [{k: float(v) for k, v in info["losses"].items()} for _, info, _ in steps]
params = [param for _, proc in nlp.pipeline for param in params_of(proc.model)]
digest = hashlib.sha256(b"".join(param.numpy().tobytes() for param in params)).hexdigest()
averages = hashlib.sha256(b"".join(optimizer.averages[key].tobytes() for key in optimizer.averages)).hexdigest()
print(json.dumps([digest, averages, losses]))
"""


def test_hooks_leave_other_optimizers_bit_identical():
    runs = [python(TRAIN, how) for how in ("without", "with")]
    without, with_us = (json.loads(run.stdout.splitlines()[-1]) for run in runs)
    assert without == with_us


HOOKED = [(function.owner, function.name) for function in (*hooks._THINC[-1], *hooks._SPACY[-1])]


def hooked():
    return [getattr(owner, name) for owner, name in HOOKED]


def test_hooks_are_idempotent():
    before = hooked()
    hooks.install(TorchOptimizer)
    assert all(a is b for a, b in zip(before, hooked()))
    assert all(
        hasattr(function, replaced._MARK) and not hasattr(function.__wrapped__, replaced._MARK) for function in before
    )


def test_hooks_keep_signatures_and_docstrings():
    for function in hooked():
        assert function.__doc__ == function.__wrapped__.__doc__ and function.__name__ == function.__wrapped__.__name__


@pytest.mark.parametrize("host", ["thinc", "spaCy"])
def test_hooks_leave_an_unknown_version_alone(monkeypatch, host):
    original = thinc.model.Model.finish_update.__wrapped__
    monkeypatch.setattr(thinc.model.Model, "finish_update", original)
    table = {"thinc": "_THINC", "spaCy": "_SPACY"}[host]
    monkeypatch.setattr(hooks, table, (host, "9.0.0", *getattr(hooks, table)[2:]))
    with pytest.warns(HostWarning, match=rf"Can't hook into {host}: expected version .*found 9\.0\.0") as warned:
        hooks.install(TorchOptimizer)
    assert len(warned) == 1
    assert (thinc.model.Model.finish_update is original) == (host == "thinc")


def test_hooks_leave_a_changed_signature_alone(monkeypatch):
    def finish_update(self, optimizer, scale):
        pass

    monkeypatch.setattr(thinc.model.Model, "finish_update", finish_update)
    with pytest.warns(HostWarning, match=r"found finish_update\(self optimizer scale\)"):
        hooks.install(TorchOptimizer)
    assert thinc.model.Model.finish_update is finish_update


def plain_hooks(monkeypatch):
    """Take all hooks away for a test."""
    for function, (owner, name) in zip(hooked(), HOOKED):
        monkeypatch.setattr(owner, name, function.__wrapped__)


@pytest.mark.parametrize("nth", range(len(HOOKED)))
def test_hooks_fall_back_function_by_function(nth, monkeypatch):
    """One that something else has replaced, with other parameters: all others are in place."""
    plain_hooks(monkeypatch)
    owner, name = HOOKED[nth]
    monkeypatch.setattr(owner, name, lambda strange: None)
    with pytest.warns(HostWarning, match=rf"found {name}\(strange\)\. Left alone: {name}\. Without it TorchOptimizer"):
        hooks.install(TorchOptimizer)
    assert [hasattr(function, replaced._MARK) for function in hooked()] == [i != nth for i in range(len(HOOKED))]


@pytest.mark.parametrize("patch", ["none", "all", "self"])
def test_hooks_go_on_top_of_a_patch_without_wraps(patch, monkeypatch):
    """It takes all arguments, so it can be called as the function was; its gradients are clipped by one norm."""
    plain_hooks(monkeypatch)
    original = thinc.model.Model.finish_update
    called = []

    def patched(*args, **kwargs):
        called.append(args)
        return original(*args, **kwargs)

    def patched_method(self, *args, **kwargs):
        return patched(self, *args, **kwargs)

    if patch != "none":
        monkeypatch.setattr(thinc.model.Model, "finish_update", patched if patch == "all" else patched_method)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hooks.install(TorchOptimizer)
    model, optimizer, rng = mixed_model(), TorchOptimizer(AdamW(), 0.01), numpy.random.default_rng(0)
    backprop(model, rng)
    with optimizer.joint_step():
        model.finish_update(optimizer)
    assert optimizer.grad_norm > 0 and not called
    backprop(model, rng)
    model.finish_update(thinc.api.Adam())
    assert bool(called) == (patch != "none")


def test_hooks_without_one_tell_no_norm_of_a_single_param(monkeypatch):
    """The last one's is not that of the update."""
    monkeypatch.setattr(thinc.model.Model, "finish_update", thinc.model.Model.finish_update.__wrapped__)
    model, optimizer = mixed_model(), TorchOptimizer(AdamW(), 0.01)
    backprop(model, numpy.random.default_rng(0))
    with optimizer.joint_step():
        model.finish_update(optimizer)
    assert optimizer.grad_norm is None and optimizer.params


def test_hooks_several_processes_need_all_of_them(monkeypatch, corpus, tmp_path):
    """Each would train by itself, and all would write to one folder."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        spacy.training.loop, "train_while_improving", spacy.training.loop.train_while_improving.__wrapped__
    )
    nlp = init_nlp(config_for(tmp_path, corpus).interpolate())
    with pytest.raises(ConfigError, match=r"several processes.*.* not replaced by ours: train_while_improving"):
        spacy.training.loop.train(nlp, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_hooks_several_processes_refuse_to_update_one_param(monkeypatch):
    """A component that calls the optimizer itself, or what has replaced `finish_update` since."""
    model, optimizer = mixed_model(), TorchOptimizer(AdamW(), 0.01)
    backprop(model, numpy.random.default_rng(0))
    before = params_of(model)
    optimizer.reduce_by(object())
    alone = pytest.raises(DistributedError, match=r"Can't update param \(.*'W'\) by itself in one of several")
    with alone, optimizer.joint_step():
        thinc.model.Model.finish_update.__wrapped__(model.layers[0], optimizer)
    assert same(before, params_of(model))


def test_hooks_are_not_needed_for_a_correct_update(monkeypatch):
    """With a thinc that we left alone, each param is updated by itself."""
    found = []
    for with_hook in (True, False):
        thinc.api.fix_random_seed(0)
        model, optimizer, rng = mixed_model(), TorchOptimizer(AdamW(), 0.01, grad_clip=0.0), numpy.random.default_rng(0)
        if not with_hook:
            monkeypatch.setattr(thinc.model.Model, "finish_update", thinc.model.Model.finish_update.__wrapped__)
        for _ in range(5):
            backprop(model, rng)
            model.finish_update(optimizer)
        found.append(params_of(model))
    assert same(*found)


def test_hooks_reach_the_command_line():
    """It holds on to spaCy's function under a name of its own, and is loaded before us."""
    code = "import sys, spacy.cli, thinc_torchopt.core.optimizer, spacy.training.loop as loop; "
    code += (
        f"sys.exit(not hasattr(sys.modules['spacy.cli.train'].train_nlp, '{replaced._MARK}') or not "
        f"hasattr(loop.train, '{replaced._MARK}'))"
    )
    python(code)


def pretraining(corpus):
    overrides = {f"paths.{name}": str(path) for name, path in corpus.items()}
    return spacy.util.load_config(CONFIGS / "pretrain.cfg", overrides, interpolate=True)


def test_hooks_refuse_a_pretraining_in_several_processes(corpus, tmp_path, monkeypatch):
    """They would all write to the same folder."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="Can't run spacy pretrain in 2 processes: all would do the same"):
        spacy.training.pretrain.pretrain(pretraining(corpus), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_hooks_refuse_a_pretraining_without_texts(corpus, tmp_path):
    """spaCy reads none in a folder, and says that it has finished."""
    config = spacy.util.load_config(CONFIGS / "pretrain.cfg", {"paths.raw_text": str(tmp_path)}, interpolate=True)
    with pytest.raises(ConfigError, match=r"\[corpora.pretrain\]: its reader reads files that end in .jsonl"):
        spacy.training.pretrain.pretrain(config, tmp_path)


def test_hooks_refuse_a_checkpoint_of_a_pretraining(corpus, tmp_path):
    """Before anything is trained: nobody would write it."""
    config = pretraining(corpus)
    config["pretraining"]["optimizer"]["checkpoint"] = {
        "@misc": "thinc-torchopt.Checkpoint.v1",
        "path": str(tmp_path / "state"),
    }
    with pytest.raises(ConfigError, match=r"Can't use \[pretraining.optimizer.checkpoint\]: .* --resume-path"):
        spacy.training.pretrain.pretrain(config, tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- use_params


class Stop(Exception):
    pass


class WithBuffers(torch.nn.Module):
    """A module whose forward pass writes to its buffers, and puts others in their place, also when it is evaluated."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3)
        self.frozen = torch.nn.Parameter(torch.ones(5), requires_grad=False)
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, X):
        self.scratch += 1
        self.calls = self.calls + 1
        return self.linear(self.norm(X * self.frozen))


def model_with_buffers():
    model = chain(Linear(5, 5), PyTorchWrapper(WithBuffers()))
    model.initialize()
    return model


def steps_of(model, optimizer, n=3, seed=0):
    rng = numpy.random.default_rng(seed)
    for _ in range(n):
        backprop(model, rng)
        model.finish_update(optimizer)


def everything(model):
    """What a model holds: objects, where their memory is, what is set on them; and a copy of all values."""
    objects, values = [], []
    for node in model.walk():
        for name in node.param_names:
            array = node.get_param(name)
            objects.append((id(array), array.ctypes.data))
            values += [array, node.get_grad(name)]
        for shim in node.shims:
            for tensor in [*shim._model.parameters(), *shim._model.buffers()]:
                objects.append((id(tensor), tensor.data_ptr(), tensor.requires_grad, id(tensor.grad)))
                values += [tensor] if tensor.grad is None else [tensor, tensor.grad]
    return objects, snapshot(values)


def shares_memory(optimizer, *models):
    """Whether the params of an optimizer are some that the models hold, and not copies."""
    held = {
        param.data_ptr() if torch.is_tensor(param) else param.ctypes.data
        for model in models
        for param, _ in slots(model)
    }
    found = {param.data_ptr() for param in optimizer.params.values()}
    return bool(found) and found <= held


@pytest.mark.parametrize("raising", [False, True])
def test_hooks_use_params_restores_a_model_exactly(raising):
    model, optimizer = model_with_buffers(), TorchOptimizer(AdamW(), 0.01, averages=EMA(0.9))
    steps_of(model, optimizer)
    backprop(model, numpy.random.default_rng(1))
    objects, values = everything(model)
    averages = optimizer.averages
    raw = params_of(model)
    with suppress(Stop), model.use_params(averages):
        assert not same(raw, params_of(model))
        model.predict(numpy.ones((4, 5), dtype="f"))
        model(numpy.ones((4, 5), dtype="f"), is_train=True)
        if raising:
            raise Stop
    objects_after, values_after = everything(model)
    assert objects == objects_after and same(values, values_after)
    assert shares_memory(optimizer, model)


@pytest.mark.parametrize("make", [thinc_model, mixed_model, model_with_buffers])
def test_hooks_training_goes_on_as_if_there_had_been_no_evaluation(make):
    start, found = make(), []
    for evaluate in (False, True):
        model, optimizer = start.copy(), TorchOptimizer(AdamW(weight_decay=0.1), 0.01, averages=EMA(0.9))
        for i in range(6):
            steps_of(model, optimizer, 1, seed=i)
            if evaluate:
                before = optimizer.params
                with suppress(Stop), model.use_params(optimizer.averages):
                    model.predict(numpy.ones((4, 5), dtype="f"))
                    model.to_bytes()
                    if i % 2:
                        raise Stop
                after = optimizer.params
                assert after.keys() == before.keys() and all(after[name] is param for name, param in before.items())
        states = [state for group in optimizer.torch_optimizers.values() for state in group.state.values()]
        with model.use_params(optimizer.averages):
            averaged = params_of(model)
        found.append([*everything(model)[1], *averaged, *(tensor for state in states for tensor in state.values())])
    assert same(*found)


def test_hooks_use_params_can_be_nested():
    model, optimizer = model_with_buffers(), TorchOptimizer(AdamW(), 0.01, averages=EMA(0.9))
    steps_of(model, optimizer)
    early = AveragedParams(
        {key: numpy.copy(v) if isinstance(v, numpy.ndarray) else v.clone() for key, v in optimizer.averages.items()}
    )
    steps_of(model, optimizer)
    raw = everything(model)
    with model.use_params(optimizer.averages):
        outer = params_of(model)
        with suppress(Stop), model.use_params(early):
            assert not same(outer, params_of(model))
            raise Stop
        assert same(outer, params_of(model))
        with model.use_params({}):
            assert same(outer, params_of(model))
    assert raw[0] == everything(model)[0] and same(raw[1], everything(model)[1])


def averaged_pipeline(components=("tagger",), **kwargs):
    optimizer = TorchOptimizer(AdamW(), 0.01, use_averages=True)
    nlp, examples = ready_pipeline(components, **kwargs, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    return nlp, optimizer


def test_hooks_use_params_does_nothing_until_it_is_entered():
    """spaCy calls it so at the end of a training."""
    nlp, optimizer = averaged_pipeline()
    before = pipeline_params(nlp)
    nlp.use_params(optimizer.averages)
    gc.collect()
    assert all(same(before[name], after) for name, after in pipeline_params(nlp).items())


def test_hooks_use_params_restores_layers_that_components_share():
    """What was taken last is put back first."""
    nlp, optimizer = averaged_pipeline(["tagger"])
    tok2vec = nlp.get_pipe("tok2vec").model
    nlp.get_pipe("tagger").model = chain(tok2vec, nlp.get_pipe("tagger").model)
    arrays = [(node, name, node.get_param(name)) for node in tok2vec.walk() for name in node.param_names]
    with pytest.raises(Stop), nlp.use_params(optimizer.averages):
        raise Stop
    assert all(node.get_param(name) is array for node, name, array in arrays)


def test_hooks_use_params_restores_what_it_had_begun_when_it_fails():
    left, right = PyTorchWrapper(torch.nn.Linear(5, 5)), PyTorchWrapper(torch.nn.Linear(5, 3))
    model, optimizer = chain(Linear(5, 5), left, right), TorchOptimizer(AdamW(), 0.01, use_averages=True)
    model.initialize()
    steps_of(model, optimizer)
    before = everything(model)
    averages = optimizer.averages
    averages[f"pytorch_{right.shims[0].id}_weight"] = torch.ones(7)
    with pytest.raises(RuntimeError), model.use_params(averages):
        pass
    assert before[0] == everything(model)[0] and same(before[1], everything(model)[1])


class ForeignShim(Shim):
    """As thinc's for TensorFlow: it restores its params at the end of a block that goes well."""

    value = "raw"

    @contextmanager
    def use_params(self, params):
        self.value = params["foreign"]
        yield
        self.value = "raw"


class OwnTorchShim(PyTorchShim):
    used = False

    @contextmanager
    def use_params(self, params):
        self.used = True
        yield
        self.used = False


def test_hooks_use_params_lets_other_shims_do_as_they_do():
    shims = [ForeignShim(None), OwnTorchShim(torch.nn.Linear(5, 3))]
    model = thinc.model.Model("foreign", lambda model, X, is_train: (X, lambda dY: dY), shims=shims)
    for raising in (False, True):
        with suppress(Stop), model.use_params(AveragedParams({"foreign": "averaged"})):
            assert shims[0].value == "averaged" and shims[1].used
            if raising:
                raise Stop
        assert shims[0].value == "raw" and not shims[1].used


def test_hooks_use_params_asks_components_as_spacy_does():
    """One with a `use_params` of its own is asked; all are restored, also when one of them fails to."""
    nlp, optimizer = averaged_pipeline(["tagger"], shared=False)
    calls = []

    class Component:
        model = None

        def __call__(self, doc):
            return doc

        def use_params(self, params):
            calls.append(type(params))
            yield
            calls.append("restored")
            raise Stop

    nlp.add_pipe("sentencizer")  # has none
    nlp._components.append(("own", Component()))
    before = pipeline_params(nlp)["tagger"]
    with pytest.raises(Stop), nlp.use_params(optimizer.averages):
        assert not same(before, params_of(nlp.get_pipe("tagger").model))
    assert calls == [AveragedParams, "restored"] and same(before, pipeline_params(nlp)["tagger"])


def test_hooks_use_params_leaves_other_dicts_to_thinc(monkeypatch):
    model, optimizer = model_with_buffers(), TorchOptimizer(AdamW(), 0.01, averages=EMA(0.9))
    steps_of(model, optimizer)
    averages, found = optimizer.averages, []
    for params in (averages, dict(averages)):
        with model.use_params(params):
            found.append(params_of(model))
    assert same(*found)
    with suppress(Stop), model.use_params(dict(averages)):
        raise Stop
    assert same(found[0], params_of(model))  # thinc does not restore them


def test_hooks_silence_other_ranks(caplog):
    nlp = spacy.blank("xx")
    training, before = nlp.config["training"], nlp.config["training"]["logger"]
    with hooks._silence(nlp):
        inform("told by rank 0 too")
        warnings.warn(HostWarning("told by rank 0 too"), stacklevel=2)
        assert training["logger"]["console_output"] is False
    inform("told")
    assert caplog.messages == ["told"] and training["logger"] is before


@pytest.mark.parametrize("rank", [0, 1])
def test_hooks_give_rank_0_alone_an_output(rank, monkeypatch, tmp_path):
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    nlp, found = spacy.blank("xx"), []
    nlp.config["training"]["optimizer"] = {"@optimizers": "thinc-torchopt.TorchOptimizer.v1"}

    def train(nlp, output_path, **kwargs):
        assert hooks.end_of_training() is not None and hooks.output_of_training() == output_path
        logger = nlp.config["training"]["logger"]
        found.append((output_path, kwargs["stdout"] is sys.stdout, logger.get("console_output") is not False))

    hooks._train(train)(nlp, tmp_path, stdout=sys.stdout)
    assert found == [(tmp_path, True, True) if rank == 0 else (None, False, False)]
    assert hooks.end_of_training() is hooks.output_of_training() is None


@pytest.mark.parametrize("may_clean", [True, False])
def test_hooks_ask_the_writer_of_models_once_and_let_it_write(may_clean, tmp_path):
    nlp, old = spacy.blank("xx"), tmp_path / "model-best"
    writer = Mock(**{"open.return_value": may_clean})
    old.mkdir()

    def train():
        hooks.tell_output_to(writer)
        spacy.training.loop.clean_output_dir(tmp_path)
        assert old.exists() is not may_clean
        spacy.training.loop.clean_output_dir(tmp_path)  # of another training
        spacy.training.loop.create_before_to_disk_callback(None)(nlp).to_disk(old)

    copy_context().run(train)
    assert writer.mock_calls == [call.open(tmp_path), call.to_disk(nlp, old)] and not old.exists()


def test_hooks_forget_who_wrote_the_models_of_the_training_before():
    hooks.tell_output_to(object())
    arguments = dict.fromkeys(
        ("dropout", "eval_frequency", "accumulate_gradient", "patience", "max_steps", "exclude",
         "annotating_components", "before_update")
    )  # fmt: skip
    spacy.training.loop.train_while_improving(spacy.blank("xx"), None, [], None, **arguments)
    spacy.training.loop.clean_output_dir(None)
    nlp = spacy.blank("xx")
    assert spacy.training.loop.create_before_to_disk_callback(None)(nlp) is nlp


# ---------------------------------------------------------------------- other packages


def saved_before_us(name):
    """What another package would put back: the host's own function."""
    owner = {"finish_update": thinc.model.Model, "train_while_improving": spacy.training.loop}[name]
    return owner, getattr(owner, name).__wrapped__


def put_back(name):
    """As a context manager does that was entered before us."""
    return saved_before_us(name)[1]


def wraps_and_leaves_out(name):
    """`functools.wraps` copies our mark, and `__wrapped__` is ours; it calls what was saved."""
    owner, saved = saved_before_us(name)

    @functools.wraps(getattr(owner, name))
    def wrapper(*args, **kwargs):
        return saved(*args, **kwargs)

    return wrapper


def wraps_and_calls(name):
    ours = getattr(saved_before_us(name)[0], name)

    @functools.wraps(ours)
    def wrapper(*args, **kwargs):
        return ours(*args, **kwargs)

    return wrapper


def calls(name):
    """Without `functools.wraps`, around a wrapper."""
    before = wraps_and_calls(name)
    return lambda *args, **kwargs: before(*args, **kwargs)


class Patch:
    """Keeps what it calls in an attribute."""

    def __init__(self, function):
        self.before = {"function": function}

    def patched(self, *args, **kwargs):
        return self.before["function"](*args, **kwargs)


def calls_from_an_object(name):
    patch = Patch(getattr(saved_before_us(name)[0], name))
    return lambda *args, **kwargs: patch.patched(*args, **kwargs)


def calls_a_default(name):
    ours = getattr(saved_before_us(name)[0], name)
    return lambda *args, ours=ours, **kwargs: ours(*args, **kwargs)


def calls_in_part(name):
    return functools.partial(calls(name))


JOINS = {
    "finish_update": lambda nlp, optimizer, examples: nlp.initialize(lambda: examples, sgd=optimizer),
    "train_while_improving": lambda nlp, optimizer, examples: nlp.resume_training(sgd=optimizer),
}


@pytest.mark.parametrize("name", ["finish_update", "train_while_improving"])
@pytest.mark.parametrize("other", [put_back, wraps_and_leaves_out])
def test_hooks_warn_when_ours_is_no_longer_called(monkeypatch, name, other):
    """When an optimizer joins a pipeline."""
    nlp, optimizer = toy_pipeline(["tagger"], shared=False), TorchOptimizer(AdamW(), 0.01)
    owner, _ = saved_before_us(name)
    monkeypatch.setattr(owner, name, other(name))
    with pytest.warns(HostWarning, match=rf"no longer replaced by ours: {name} \(from .*The effects: ") as warned:
        JOINS[name](nlp, optimizer, toy_examples(nlp))
    assert len(warned) == 1


@pytest.mark.parametrize("name", ["finish_update", "train_while_improving"])
@pytest.mark.parametrize("other", [wraps_and_calls, calls, calls_from_an_object, calls_a_default, calls_in_part])
def test_hooks_accept_a_wrapper_that_calls_ours(monkeypatch, name, other):
    nlp, optimizer = toy_pipeline(["tagger"], shared=False), TorchOptimizer(AdamW(), 0.01)
    owner, _ = saved_before_us(name)
    monkeypatch.setattr(owner, name, other(name))
    hooks.check_all_in_place()
    JOINS[name](nlp, optimizer, toy_examples(nlp))


def test_hooks_warn_when_a_run_begins(monkeypatch, corpus, tmp_path):
    """A function that was put back after the optimizer has joined: spaCy's own loop would train."""
    nlp = init_nlp(config_for(tmp_path, corpus, steps=1).interpolate())
    owner, saved = saved_before_us("train_while_improving")
    monkeypatch.setattr(owner, "train_while_improving", saved)
    with pytest.warns(HostWarning, match="train_while_improving .*without checkpoints, rules and rollbacks"):
        spacy.training.loop.train(nlp, tmp_path)
    assert hooks.end_of_training() is hooks.output_of_training() is None
    monkeypatch.undo()
    optimizer, examples = TorchOptimizer(AdamW(), 0.01), toy_examples(nlp)
    optimizer.initialize(nlp)
    owner, saved = saved_before_us("finish_update")
    monkeypatch.setattr(owner, "finish_update", saved)
    with pytest.warns(HostWarning, match="finish_update .*each param is updated separately"):
        next(loop_over(nlp, optimizer, [examples]))
    with pytest.warns(HostWarning, match="finish_update"):
        TorchOptimizer(AdamW(), 0.01).initialize(nlp)
