"""Several threads that update one pipeline: each update is made alone, as with thinc's optimizers."""

import copy
import os
import pickle
import sys
import threading

import numpy
import pytest
from thinc.api import Linear

from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core import drop_ins
from thinc_torchopt.core.algorithms.torch_classes import AdamW

from ..forks import python
from ..models import backprop, mixed_model, params_of, thinc_model, toy_examples, toy_pipeline

N_THREADS, N_UPDATES = 4, 8


@pytest.fixture
def switching():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(work):
    """What threads raised. work (Callable): Called with the number of the thread."""
    errors = []

    def run(i):
        try:
            work(i)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)  # a deadlock is a failure, and no test that never ends
    assert not any(thread.is_alive() for thread in threads)
    return errors


@pytest.mark.parametrize(
    "make",
    [lambda: TorchOptimizer(AdamW(), 0.001, use_averages=True, enable_runtime_guards=False), lambda: drop_ins.Adam()],
)
def test_threads_update_one_pipeline(make, switching):
    nlp = toy_pipeline(["tagger", "morphologizer"], shared=False)
    examples = toy_examples(nlp)
    optimizer = make()
    nlp.initialize(lambda: examples, sgd=optimizer)

    def work(i):
        for _ in range(N_UPDATES):
            nlp.update(examples[i::N_THREADS], sgd=optimizer)
            optimizer.step_schedules()

    assert in_threads(work) == []
    assert set(optimizer.nr_update.values()) == {N_THREADS * N_UPDATES}
    assert all(value.isfinite().all() for _, pipe in nlp.pipeline for value in params_of(pipe.model))


def test_threads_update_models_of_their_own_by_one_optimizer(switching):
    """New params come to it all the while, also in joint steps and param by param."""
    optimizer = TorchOptimizer(AdamW(), 0.001, enable_runtime_guards=False)
    models, lone = [[], [], [], []], Linear(3, 5).initialize()

    def work(i):
        rng = numpy.random.default_rng(i)
        for _ in range(N_UPDATES):
            models[i] += [thinc_model(), mixed_model()]
            with optimizer.joint_step():
                for model in models[i]:
                    backprop(model, rng)
                    model.finish_update(optimizer)
            optimizer((lone.id, f"own-{i}"), numpy.ones(3, dtype="f"), numpy.ones(3, dtype="f"))

    assert in_threads(work) == []
    of_first = {name: model.get_param(name) for model in models[0][0].layers for name in model.param_names}
    assert of_first and N_UPDATES in set(optimizer.nr_update.values())


def test_threads_wait_for_a_joint_step(switching):
    """What another thread finishes meanwhile is no part of it, and is updated by itself."""
    optimizer = TorchOptimizer(AdamW(), 0.001)
    models = [thinc_model(), thinc_model()]
    for model in models:
        backprop(model, numpy.random.default_rng(0))
    begun = threading.Event()

    def other():
        begun.set()
        models[1].finish_update(optimizer)

    thread = threading.Thread(target=other, daemon=True)
    with optimizer.joint_step():
        models[0].finish_update(optimizer)
        thread.start()
        begun.wait(timeout=60)
        assert not optimizer.nr_update or set(optimizer.nr_update.values()) == {0}
    thread.join(timeout=60)
    assert not thread.is_alive() and set(optimizer.nr_update.values()) == {1}


def test_threads_of_a_copied_optimizer_do_not_wait_for_the_original():
    optimizer = TorchOptimizer(AdamW(), 0.001)
    model = thinc_model()
    with optimizer.joint_step():
        others = [copy.copy(optimizer), copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]

        def work(i):
            if i < len(others):
                own = model.copy()
                backprop(own, numpy.random.default_rng(i))
                own.finish_update(others[i])

        assert in_threads(work) == []


FORK = """
import copy, os, signal, threading
import numpy
from tests.models import backprop, thinc_model
from thinc_torchopt import TorchOptimizer
from thinc_torchopt.core.algorithms.torch_classes import AdamW

optimizer, model = TorchOptimizer(AdamW(), 0.001), thinc_model()
twin = copy.deepcopy(optimizer)
held, done = threading.Event(), threading.Event()

def hold():
    with optimizer.joint_step(), twin.joint_step():
        held.set()
        done.wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
if os.fork() == 0:  # in the middle of another thread's update
    signal.alarm(30)  # or else it would wait for ever
    optimizer.step_schedules()
    twin.step_schedules()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
done.set()
with optimizer.joint_step():  # and in the middle of its own
    child = os.fork()
    backprop(model, numpy.random.default_rng(0))
    model.finish_update(optimizer)
assert set(optimizer.nr_update.values()) == {1}
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_threads_hold_no_lock_in_a_forked_process():
    python(FORK)
