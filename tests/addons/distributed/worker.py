"""What each rank of tests/addons/distributed/test_ranks.py does: trainings one after the other, whose results it writes
to a folder.
"""

import io
import os
import random
import shutil
import signal
import sys
import warnings
from pathlib import Path

import numpy
import spacy.training.loop
import torch
import torch.distributed as dist
from spacy.tokens import Doc
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.util import registry
from thinc.api import require_gpu
from thinc.shims.pytorch_grad_scaler import PyTorchGradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer

from tests.addons.distributed import differences, features, pipelines  # noqa: F401  its scenarios
from tests.addons.distributed.scenarios import RANK, SCENARIOS, scenario, train
from tests.doubles.torch_cuda import CudaTensor, tensors_in, to_cuda
from tests.runs import config_for
from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.controller import TrainerController, trainer_controller
from thinc_torchopt.addons.distributed.reduce import FlatReduce
from thinc_torchopt.addons.distributed.settings import Distributed
from thinc_torchopt.addons.distributed.shard import Shards
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.averages.settings import EMA
from thinc_torchopt.core.errors import DistributedError

HELD = []  # until the process ends


@scenario
def sums(folder):
    nlp = pipelines.pipeline()
    return train(nlp, pipelines.optimizer())


@scenario
def on_gpu(folder):
    """All ranks on one GPU, or on the double of one, which has no NCCL."""
    nlp = pipelines.pipeline(["tagger"])
    return train(nlp, pipelines.optimizer(distributed=Distributed(backend="gloo", check_every=2)))


@scenario
def on_nccl(folder):
    nlp = pipelines.pipeline(["tagger"])
    return train(nlp, pipelines.optimizer(distributed=Distributed(check_every=2)))


@scenario
def means(folder):
    nlp = pipelines.pipeline(["tagger"])
    return train(nlp, pipelines.optimizer(distributed=Distributed(reduce="mean", scale_learn_rate="linear")))


@scenario
def sharded(folder):
    nlp = pipelines.pipeline()
    return train(nlp, pipelines.optimizer(distributed=Distributed(shard_state=True)))


@scenario
def zero_redundancy(folder):
    """What torch's own class makes of the summed gradients, and what is made of them here."""
    nlp = pipelines.pipeline()
    grads, names = [], []
    original = FlatReduce.__call__

    def record(self, params, *others):
        updated, *rest = original(self, params, *others)
        grads.append([param.grad.clone() for param in updated])
        names[:] = [param.name for param in updated]
        return (updated, *rest)

    optimizer = TorchOptimizer(AdamW(), 0.01, grad_clip=0.0, distributed=Distributed(shard_state=True))
    optimizer.initialize(nlp)
    before = {name: param.detach().clone() for name, param in optimizer.params.items()}
    FlatReduce.__call__ = record
    try:
        train(nlp, optimizer)
    finally:
        FlatReduce.__call__ = original
    dist.init_process_group("gloo", init_method=f"file://{folder}/zero", rank=RANK, world_size=2)
    theirs = [torch.nn.Parameter(before[name]) for name in names]
    zero = ZeroRedundancyOptimizer(theirs, torch.optim.AdamW, lr=0.01, weight_decay=0.01, fused=True)
    for of_step in grads:
        for param, grad in zip(theirs, of_step):
            param.grad = grad
        zero.step()
    HELD.append(dist.group.WORLD._get_backend(torch.device("cpu")))  # see RankGroup.close: `zero` outlives the group
    dist.destroy_process_group()
    cells = sum(state["exp_avg"].numel() for state in zero.optim.state.values())
    return {
        "ours": [optimizer.params[name].detach() for name in names],
        "theirs": [param.detach() for param in theirs],
        "cells": cells,
    }


@scenario
def torch_model(folder):
    nlp = pipelines.pipeline(["torch"])
    return train(nlp, pipelines.optimizer())


@scenario
def replayed(folder):
    """Parser and NER, with dropout: what each rank computed is kept, for one process to add up."""
    nlp = pipelines.pipeline(["parser", "ner"])
    grads = []
    original = FlatReduce.__call__

    def record(self, params, *others):
        grads.append({param.name: param.grad.clone() for param in params})
        return original(self, params, *others)

    FlatReduce.__call__ = record
    try:
        found = train(nlp, pipelines.optimizer(), dropout=0.2)
    finally:
        FlatReduce.__call__ = original
    return found | {"grads": grads}


def spoil(nlp, what):
    """Let the tagger go wrong on rank 1 in step 2."""
    tagger, calls = nlp.get_pipe("tagger"), iter(range(100))
    original = tagger.update

    def update(*args, **kwargs):
        losses = original(*args, **kwargs)
        if next(calls) == 2 and RANK == 1:
            if what == "nan":
                tagger.model.get_ref("softmax").get_grad("W")[0, 0] = float("nan")
            else:
                raise ValueError("[E910] Encountered NaN value when computing loss for component 'tagger'.")
        return losses

    tagger.update = update


@scenario
def nan_on_one_rank(folder):
    nlp = pipelines.pipeline(["tagger"])
    spoil(nlp, "nan")
    return train(nlp, pipelines.optimizer())


@scenario
def e910_on_one_rank(folder):
    nlp = pipelines.pipeline(["tagger"])
    spoil(nlp, "E910")
    losses = []

    class Losses:
        name = "losses"

        def on_step_end(self, event, control):
            losses.append(event.run.losses["tagger"])

    return train(nlp, pipelines.optimizer(), listeners=[Losses()]) | {"of_steps": losses}


@scenario
def other_start(folder):
    """Weights that differ at first, labels that are added in mid-training, fewer examples than ranks, and a listener
    that only rank 0 heeds.
    """
    nlp = pipelines.pipeline(["tagger", "ner"])
    nlp.get_pipe("tagger").model.get_ref("softmax").get_param("W")[...] = RANK
    seen, hook_drew, drew = [], [], []

    def draw():
        return random.random(), numpy.random.rand(), float(torch.rand(1))

    def before_update(nlp, args):
        hook_drew.append(draw())
        if args["step"] == 2:
            nlp.get_pipe("ner").add_label("NEW")
            output = nlp.get_pipe("ner").model.get_ref("upper").get_param("W")
            output[-1] = RANK + 1

    class Stop:
        name = "stop"

        def on_step_begin(self, event, control):
            drew.append(draw())

        def on_pre_optimizer_step(self, event, control):
            hook_drew.append(draw())

        def on_step_end(self, event, control):
            seen.append(len(event.batch))
            control.should_stop = RANK == 0 and event.step == 4

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    few = pipelines.batches(nlp)
    only_one_meets = {"tags": ["A", "B"], "entities": ["U-NEW", "O"]}
    example = Example.from_dict(Doc(nlp.vocab, words=["w1", "w2"]), only_one_meets)
    few = [*few[:4], (0, [example]), *((1, batch) for _, batch in few[5:])]
    # Drawn by random generators that are not the same at first.
    pipelines.fix_random_seed(RANK)
    few = ((epoch, random.sample(batch, len(batch))) for epoch, batch in few)
    found = train(nlp, pipelines.optimizer(), batches=few, before_update=before_update, listeners=[Stop()], dropout=0.1)
    sets = [sorted(nlp.get_pipe("ner").model.attrs["unseen_classes"])]
    return found | {"seen": seen, "sets": sets, "hook_drew": hook_drew, "drew": drew}


@scenario
def rules(folder):
    """Of which rank 0 decides: in a substep to freeze, after a step to cut the rate, then to stop."""
    if RANK:
        TrainerController.decide = None
    nlp = pipelines.pipeline(["tagger", "ner"])
    groups = {"rest": {"params": ["tagger/*", "ner/*"]}}
    settings = trainer_controller(definition=RULES)
    return train(nlp, pipelines.optimizer(controller=settings, param_groups=groups, use_averages=False))


RULES = {
    "controller_metrics": [{"name": "state", "class": "TrainingState"}],
    "operations": [
        {"name": "rates", "class": "LearnRateControl", "arguments": {"groups": ["rest"], "factor": 0.5}},
        {"name": "freeze", "class": "FreezeControl", "arguments": {"params": ["tok2vec/*"]}},
    ],
    "controllers": [
        {"name": name, "triggers": [event], "rule": f"state['step'] == {step}", "operations": [action]}
        for name, event, step, action in (
            ("a", "on_substep_end", 1, "freeze.should_freeze"),
            ("b", "on_step_end", 2, "rates.should_cut"),
            ("c", "on_step_end", 4, "hfcontrols.should_training_stop"),
        )
    ],
}


@scenario
def more_rules(folder):
    """Of which rank 0 decides: other numbers of parts, averages that begin, a rate that rises, a fall of the rate."""
    if RANK:
        TrainerController.decide = None
    nlp = pipelines.pipeline(["tagger", "ner"])
    rate = {"@schedules": "thinc-torchopt.warmup_stable_decay.v1", "initial_rate": 0.02, "warmup_steps": 0}
    rate = registry.resolve({"rate": {**rate, "decay_steps": 9, "total_steps": 40}})["rate"]
    averages = EMA(0.5, warmup="ignite", start_step=1000)
    settings = trainer_controller(definition=MORE_RULES)
    optimizer = pipelines.optimizer(controller=settings, use_averages=False, averages=averages, learn_rate=rate)
    found = train(nlp, optimizer)
    return found | {"averages": [torch.as_tensor(value) for value in optimizer.averages.values()]}


MORE_RULES = {
    "controller_metrics": [{"name": "state", "class": "TrainingState"}],
    "operations": [
        {"name": "parts", "class": "AccumulationControl", "arguments": {"substeps": 2}},
        {"name": "averages", "class": "AveragesControl"},
        {"name": "rates", "class": "LearnRateControl", "arguments": {"factor": 2.0, "max_rate": 0.03}},
        {"name": "fall", "class": "DecayControl", "arguments": {"steps": 3}},
    ],
    "controllers": [
        {"name": action.split(".")[0], "triggers": ["on_step_end"], "rule": rule, "operations": [action]}
        for action, rule in (
            ("parts.should_set", "state['step'] == 0"),
            ("averages.should_begin", "state['step'] == 1"),
            ("rates.should_raise", "get(fired['averages'], 'steps_since', 0) == 1"),
            ("fall.should_begin", "state['step'] == 3"),
        )
    ],
}


@scenario
def batch_norm(folder):
    return train(pipelines.pipeline(["torch_norm"]), pipelines.optimizer())


@scenario
def overflow(folder):
    """The gradient scaler of a torch module on rank 1 finds an overflow in step 2."""
    nlp = pipelines.pipeline(["torch"])
    [shim] = [shim for node in nlp.get_pipe("tagger").model.walk() for shim in node.shims]
    scaler = shim._grad_scaler = PyTorchGradScaler(enabled=True)
    # It scales on GPUs only.
    scaler.scale = lambda tensors, inplace=False: tensors
    scaler.unscale = lambda tensors: scaler.found_inf
    tagger, calls, scales = nlp.get_pipe("tagger"), iter(range(100)), []
    original = tagger.update

    def update(*args, **kwargs):
        scales.append(float(scaler._scale))
        losses = original(*args, **kwargs)
        scaler._found_inf = next(calls) == 2 and RANK == 1
        return losses

    tagger.update = update
    return train(nlp, pipelines.optimizer(use_averages=False)) | {"scales": scales}


@scenario
def on_gpus(folder):
    """Params on a GPU of each rank. As such, only the model is shared."""
    from thinc_torchopt.addons.distributed.ranks import Ranks
    from thinc_torchopt.core.schema import write
    from thinc_torchopt.loop import model_state

    nlp = pipelines.pipeline(["torch"])
    [shim] = [shim for node in nlp.get_pipe("tagger").model.walk() for shim in node.shims]
    for module in shim._model.modules():
        for name, param in module._parameters.items():
            module._parameters[name] = torch.nn.Parameter(to_cuda(param.detach()))
    original = model_state.saved_tensor
    model_state.saved_tensor = lambda *args: to_cuda(original(*args))  # as CuPy's arrays
    for found in tensors_in(write(model_state.collect_model(nlp))):
        assert isinstance(found, CudaTensor)
        with torch.no_grad():
            found.add_(RANK)
    optimizer = pipelines.optimizer(distributed=Distributed(backend="gloo"))
    optimizer.initialize(nlp)
    ranks = Ranks(nlp, optimizer, lambda: None, lambda: None)
    try:
        ranks.begin(None)
        model_state.saved_tensor = original
        return {"model": [value.cpu() for value in tensors_in(write(model_state.collect_model(nlp)))]}
    finally:
        ranks.close(None)


@scenario
def drift(folder):
    """One rank changes a param by the smallest there is."""
    nlp = pipelines.pipeline(["tagger"])

    def before_update(nlp, args):
        if args["step"] == 3 and RANK == 1:
            nlp.get_pipe("tagger").model.get_ref("softmax").get_param("W")[0, 0] += 1e-6

    try:
        train(nlp, pipelines.optimizer(), before_update=before_update)
    except DistributedError as error:
        return {"error": str(error)}


@scenario
def evaluation(folder):
    """Scores of a shared evaluation, and of each rank's own."""
    nlp = pipelines.pipeline(["tagger", "ner", "textcat_multilabel", "trainable_lemmatizer"])
    dev = pipelines.examples(nlp, 33, 5)
    documents, shared = [], []
    pipe = nlp.get_pipe("tagger").pipe

    def counted(docs, **options):
        docs = list(docs)
        documents.append(len(docs))
        return pipe(docs, **options)

    nlp.get_pipe("tagger").pipe = counted

    def evaluate():
        scores = nlp.evaluate(dev)
        scores.pop("speed")
        shared.append(scores)
        return scores["tag_acc"], scores

    optimizer, batches = pipelines.optimizer(use_averages=False), pipelines.batches(nlp)
    found = train(nlp, optimizer, evaluate=evaluate, eval_frequency=2, batches=batches[:10])
    assert found["infos"][-1]["score"] is not None
    of_shared = documents[-1]
    alone = [evaluate()]
    return {"alone": alone, "shared_scores": shared[-2], "documents": of_shared, "infos": found["infos"]}


# ---------------------------------------------------------------------- spacy train


def spacy_training(folder, name, state, *, stop_at=None, **changes):
    corpus = {part: folder / f"{part}.spacy" for part in ("train", "dev")}
    config = config_for(folder / state, corpus, **changes)
    config["training"]["logger"] = {"@loggers": "test-distributed.Voice.v1"}
    config["training"]["before_update"] = {"@callbacks": "test-distributed.Stop.v1"}
    STOP[:] = [stop_at]
    SPOKE.clear()
    nlp = init_nlp(config.interpolate())
    output, said = folder / name, io.StringIO()
    if RANK == 0:
        output.mkdir(exist_ok=True)
    code = None
    try:
        spacy.training.loop.train(nlp, output, stdout=said, stderr=io.StringIO())
    except SystemExit as end:
        code = end.code
    return {"code": code, "said": said.getvalue(), "spoke": list(SPOKE), "weights": pipelines.weights(nlp)}


SPOKE = []
STOP = []
SPOILED = []
DRIFTS = []


@registry.loggers("test-distributed.Voice.v1")
def voice():
    def setup(nlp, stdout, stderr):
        SPOKE.append(RANK)
        return lambda info: None, lambda: None

    return setup


@registry.callbacks("test-distributed.Stop.v1")
def stop():
    def before_update(nlp, args):
        if args["step"] in STOP and RANK == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if args["step"] in DRIFTS and RANK == 1:
            nlp.get_pipe("tagger").model.get_ref("softmax").get_param("W")[0, 0] += 1e-6
        if args["step"] in SPOILED and RANK == 1:
            tagger = nlp.get_pipe("tagger")
            update = tagger.update

            def spoil(*args, **kwargs):
                losses = update(*args, **kwargs)
                tagger.model.get_ref("softmax").get_grad("W")[0, 0] = float("nan")
                tagger.update = update
                return losses

            tagger.update = spoil

    return before_update


@scenario
def unbroken(folder):
    return spacy_training(folder, "unbroken", "state-1", steps=9)


SHARDED = {"@misc": "thinc-torchopt.Distributed.v1", "shard_state": True}


@scenario
def unbroken_sharded(folder):
    return spacy_training(folder, "sharded", "state-3", steps=9, training__optimizer__distributed=SHARDED)


@scenario
def longer_sharded(folder):
    """Resumed from a checkpoint with the whole state, of which each rank keeps its own part."""
    left, own = [], Shards.own

    def look(self, params):
        found = own(self, params)
        others = [param for param in params if not any(param is one for one in found)]
        left.append(sum(bool(param.group.owner.states.get(param)) for param in others) if others else -1)
        return found

    if RANK == 0:
        shutil.copytree(folder / "state-3", folder / "state-5")
    Shards.own = look
    try:
        found = spacy_training(folder, "sharded", "state-5", steps=12, training__optimizer__distributed=SHARDED)
    finally:
        Shards.own = own
    return found | {"left": left}


@scenario
def rolled_back(folder):
    """Two updates in a row with NaN on rank 1, in steps 5 and 6."""
    SPOILED[:] = [5, 6]
    try:
        return spacy_training(folder, "rolled-back", "state-4", steps=9, training__optimizer__rollback_after=2)
    finally:
        SPOILED.clear()


@scenario
def stopped(folder):
    """By a signal to rank 1 in step 5."""
    return spacy_training(folder, "stopped", "state-2", steps=9, stop_at=5)


@scenario
def resumed(folder):
    return spacy_training(folder, "stopped", "state-2", steps=9)


@scenario
def longer(folder):
    return spacy_training(folder, "unbroken", "state-1", steps=12)


def main(folder, names):
    warnings.simplefilter("ignore")
    if names and names[0] in ("on_gpu", "on_nccl"):
        require_gpu()
    for name in names or [name for name in SCENARIOS if name not in ("longer", "on_gpu", "on_nccl")]:
        pipelines.fix_random_seed(RANK)  # nothing may depend on what random numbers there are at first
        torch.save(SCENARIOS[name](folder), folder / f"{name}-{RANK}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
