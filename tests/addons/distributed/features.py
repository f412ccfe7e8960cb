"""Scenarios where several ranks meet other features: Modular, losses and attributes of the user's own, averages."""

import gc
import time
from unittest.mock import patch

import spacy
import torch.distributed as dist
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import NumpyOps

from tests.addons.distributed import pipelines
from tests.addons.distributed.scenarios import RANK, scenario, train
from thinc_torchopt import Attachment
from thinc_torchopt.addons.budget import Budget
from thinc_torchopt.addons.distributed.group import RankGroup
from thinc_torchopt.addons.distributed.settings import Distributed
from thinc_torchopt.core.errors import ConfigError, DistributedError
from thinc_torchopt.core.host import forward_of
from thinc_torchopt.core.schedules.curves import warmup_stable_decay
from thinc_torchopt.core.state import in_main_memory
from thinc_torchopt.loop import run
from thinc_torchopt.loop.checkpoint_settings import Checkpoint
from thinc_torchopt.loop.training_check import GradientCheck


@scenario
def noise(folder):
    """That no seed foretells: before Adam, whose state sees it."""
    found = []
    for options in ({}, {"safe_mode": False}, {"safe_mode": False, "seed": 1}):
        optimizer = pipelines.modular({"GaussianNoise": {"std": 0.01, **options}, "Adam": {}})
        found.append(train(pipelines.pipeline(["tagger"]), optimizer))
    return {"runs": found}


@scenario
def noise_of_a_block(folder):
    """That no seed foretells, by an algorithm that is there from step 2 on."""
    algorithm = {
        "@torch_optimizers": "thinc-torchopt.Modular.v1",
        "modules": {"noise": {"@gradient_modules": "thinc-torchopt.GaussianNoise.v1", "std": 0.01}},
    }
    late = {"params": ["tok2vec/*"], "unfreeze_at": 2} | spacy.registry.resolve({"algorithm": algorithm})
    optimizer = pipelines.optimizer(param_groups={"late": late}, distributed=Distributed(check_every=1))
    return train(pipelines.pipeline(["tagger"]), optimizer)


@scenario
def words_of_all(folder):
    """Sums over words, divided by those of all ranks; before it, weights that differ."""
    nlp = pipelines.pipeline(["tagger"])
    nlp.get_pipe("tagger").model.get_ref("softmax").get_param("W")[...] += RANK
    return train(nlp, pipelines.modular_words())


class NotesMultiply:
    """The functions by which nodes multiply."""

    name = "notes"

    def __init__(self):
        self.seen = []

    def on_step_end(self, event, control):
        nodes = [node for _, pipe in event.run.nlp.pipeline for node in pipe.model.walk()]
        self.seen.append(sorted({node.ops.multiply.__name__ for node in nodes}))


@scenario
def fastest_ops(folder):
    """Each rank measures another library as the fastest."""
    from thinc_torchopt.core import ops
    from thinc_torchopt.loop import run_ops

    library = ("numpy", "torch")[RANK]
    run_ops.fastest = lambda nlp, threads: ops.Choice(ops.products_by(library), "measured.")
    listener = NotesMultiply()
    optimizer = pipelines.optimizer(ops="fastest", distributed=Distributed(check_every=1))
    return train(pipelines.pipeline(["tagger"]), optimizer, listeners=[listener]) | {"seen": listener.seen}


@scenario
def fastest_ops_of_parsers(folder):
    """With their backward passes in one piece."""
    from thinc_torchopt.core import ops
    from thinc_torchopt.loop import run_ops

    run_ops.fastest = lambda nlp, threads: ops.Choice(ops.products_by("numpy"), "measured.")
    nlp = pipelines.pipeline(["parser", "ner"])
    seen = []

    def note(nlp, args):
        seen.append(type(forward_of(nlp.get_pipe("parser").model)).__name__)

    optimizer = pipelines.optimizer(ops="fastest", distributed=Distributed(check_every=1))
    with patch.object(NumpyOps, "get_dropout_mask", pipelines.no_dropout):
        return train(nlp, optimizer, before_update=note) | {"seen": seen}


class StopsOnRank0(Attachment):
    """And its own listener."""

    name = "stops"

    def __init__(self, comes_first):
        self.comes_first = comes_first

    def join(self, run):
        return [self]

    def on_step_end(self, event, control):
        control.should_stop |= RANK == 0 and event.step == 2


@scenario
def requests_of_attachments(folder):
    """Of rank 0 alone, before and after the loop's own listeners."""
    optimizers = [pipelines.optimizer(attachments={"stops": StopsOnRank0(first)}) for first in (True, False)]
    return {"steps": [len(train(pipelines.pipeline(["tagger"]), one)["infos"]) for one in optimizers]}


class ChecksGradients(Attachment):
    """As in `spacy train`."""

    def join(self, run):
        return [GradientCheck()]


@scenario
def gradients_on_one_rank(folder):
    """Of a tagger, and the tok2vec below it, on rank 1 alone; of a senter on none."""
    nlp = pipelines.pipeline(["senter", "tagger"])
    for name in ["senter"] + ["tagger"] * (RANK == 0):
        nlp.get_pipe(name).update = lambda examples, *, losses=None, **options: losses
    try:
        train(
            nlp,
            pipelines.optimizer(attachments={"gradients": ChecksGradients()}),
            batches=pipelines.batches(nlp, n=26),
        )
    except ConfigError as error:
        return {"error": str(error)}


@scenario
def budget_of_seconds(folder):
    """The clock of rank 1 goes faster, and an evaluation takes as long as three steps."""
    nlp, now = pipelines.pipeline(["tagger"]), 0.0

    def moved(seconds, result):
        nonlocal now
        now += seconds * (1 + RANK)
        return result

    tagger = nlp.get_pipe("tagger")
    update = tagger.update
    tagger.update = lambda examples, **options: moved(1.0, update(examples, **options))
    optimizer = pipelines.optimizer(
        learn_rate=warmup_stable_decay(0.02, 2, 5, decay_begins="when told", decay_type="linear"),
        budget=Budget("40s"),
    )
    with patch.object(run, "default_timer", lambda: now):
        return train(
            nlp,
            optimizer,
            batches=pipelines.batches(nlp, 120),
            evaluate=lambda: moved(3.0, (nlp.evaluate(pipelines.examples(nlp, 9, 5))["tag_acc"], {})),
            eval_frequency=10,
        )


@scenario
def own_losses(folder):
    """A component that counts two, the second one from step 2 on."""
    nlp = pipelines.pipeline(["tagger"])
    tagger, calls = nlp.get_pipe("tagger"), iter(range(100))
    original = tagger.update

    def update(examples, *, losses=None, **options):
        original(examples, losses=losses, **options)
        if next(calls) >= 2:
            losses["tagger/second"] = losses.get("tagger/second", 0.0) + len(examples)
        return losses

    tagger.update = update
    return train(nlp, pipelines.optimizer())


@scenario
def own_attributes(folder):
    """A component that leaves things on documents, some of which can't be sent."""
    nlp = pipelines.pipeline(["tagger"])
    dev = pipelines.examples(nlp, 9, 5)
    tagger, found = nlp.get_pipe("tagger"), []
    original = tagger.pipe

    def pipe(docs, **options):
        for doc in original(docs, **options):
            doc.user_data |= {"thing": object(), "words": [len(doc)]}
            yield doc

    def scorer(examples, **options):
        docs = [example.predicted for example in examples]
        found[:] = [(doc.user_data["words"], len(doc)) for doc in docs]
        return {"tag_acc": 1.0}

    def evaluate():
        return nlp.evaluate(dev)["tag_acc"], {}

    tagger.pipe, tagger.scorer = pipe, scorer
    train(nlp, pipelines.optimizer(), evaluate=evaluate, eval_frequency=4)
    return {"found": found}


@scenario
def other_development_data(folder):
    nlp = pipelines.pipeline(["tagger"])
    dev = pipelines.examples(nlp, 9, RANK)
    try:
        train(nlp, pipelines.optimizer(), evaluate=lambda: (nlp.evaluate(dev)["tag_acc"], {}))
    except DistributedError as error:
        return {"error": str(error)}


@scenario
def recurrent(folder):
    """Trained by eligibility traces. The embedding is frozen: its gradient is approximate."""
    nlp, optimizer = pipelines.recurrent("d-rtrl"), pipelines.optimizer(param_groups={})
    optimizer.initialize(nlp)
    optimizer.freeze(["*/embed/*"])
    return train(nlp, optimizer)


@scenario
def error_on_one_rank(folder):
    """A component on rank 1 raises something. Other than in a run of its own, the process lives on."""
    nlp = pipelines.pipeline(["tagger"])
    tagger, calls = nlp.get_pipe("tagger"), iter(range(100))
    original = tagger.update

    def update(examples, **options):
        if next(calls) == 2 and RANK == 1:
            raise ValueError("the widget\nhas no handle")
        return original(examples, **options)

    tagger.update = update
    try:
        train(nlp, pipelines.optimizer(distributed=Distributed(timeout_seconds=1)))
    except (ValueError, DistributedError) as error:
        dist.destroy_process_group()
        return {"error": f"{type(error).__name__}: {error}"}


@scenario
def masters(folder):
    """Of a torch module in bfloat16, with the whole state on each rank, and with a part of it."""
    found = []
    for settings in ({}, {"shard_state": True}):
        nlp = pipelines.pipeline(["torch"])
        module = next(shim for node in nlp.get_pipe("tagger").model.walk() for shim in node.shims)._model.bfloat16()
        module.register_forward_pre_hook(lambda module, inputs: inputs[0].bfloat16())
        module.register_forward_hook(lambda module, inputs, output: output.float())
        optimizer = pipelines.optimizer(
            learn_rate=1e-4, master_weights=True, distributed=Distributed(check_every=1, **settings)
        )
        found.append(train(nlp, optimizer))
        saved = optimizer.state_dict()["params"]
        found[-1]["masters"] = {name: one["master"] for name, one in saved.items() if one["master"] is not None}
    return {"runs": found}


@scenario
def renamed(folder):
    """Components that swap their names, and one with a new name and a new label, with the whole state on each rank, and
    with a part of it.
    """

    def before_update(nlp, args):
        if args["step"] == 2:
            for old, new in (("tagger", "x"), ("morphologizer", "tagger"), ("x", "morphologizer")):
                nlp.rename_pipe(old, new)
        if args["step"] == 4:
            nlp.rename_pipe("ner", "a")
            nlp.get_pipe("a").add_label("NEW")

    found = []
    for settings in ({}, {"shard_state": True}):
        nlp = pipelines.pipeline(["tagger", "morphologizer", "ner"])
        optimizer = pipelines.optimizer(distributed=Distributed(check_every=1, **settings))
        found.append(train(nlp, optimizer, before_update=before_update))
    return {"runs": found}


@scenario
def late_labels(folder):
    """Labels of entities in a single text, which one rank has; without a stop, and resumed after them."""

    def trained(name, **settings):
        nlp = pipelines.pipeline(["tagger", "ner"])
        batches = pipelines.batches(nlp)
        gold = {"tags": ["A"] * 6, "entities": [f"U-L{i}" for i in reversed(range(6))]}
        batches[4][1][0] = Example.from_dict(Doc(nlp.vocab, words=[f"w{i}" for i in range(6)]), gold)
        checkpoint = Checkpoint(path=str(folder / name), every=1)
        optimizer = pipelines.optimizer(distributed=Distributed(check_every=1), checkpoint=checkpoint)
        found = train(nlp, optimizer, batches=batches, **settings)
        return found | {"moves": nlp.get_pipe("ner").move_names}

    return {"whole": trained("late-whole"), "parts": [trained("late-parts", max_steps=steps) for steps in (4, 0)]}


@scenario
def run_again(folder):
    """Two trainings with one optimizer, whose params are assigned to ranks in another order in the second one: with the
    whole state on each rank, and with a part of it. Rank 1 begins the second one before rank 0 has ended the first.
    """
    found = []
    close = RankGroup.close
    if RANK == 0:
        RankGroup.close = lambda *args: (time.sleep(0.5), close(*args))
    for settings in ({}, {"shard_state": True}):
        nlp = pipelines.pipeline(["tagger", "morphologizer"])
        late = {"late": {"params": ["tagger/*"], "unfreeze_at": 3}}
        optimizer = pipelines.optimizer(param_groups=late, distributed=Distributed(check_every=1, **settings))
        found.append(train(nlp, optimizer))
        found[-1]["saved"] = in_main_memory(optimizer.state_dict(), copy=True)
        gc.collect()
        found.append(train(nlp, optimizer))
    RankGroup.close = close
    return {"runs": found}


@scenario
def bf16(folder):
    """Matrix products of a torch module in bfloat16."""
    return train(pipelines.pipeline(["torch"]), pipelines.optimizer(precision="bf16"))
