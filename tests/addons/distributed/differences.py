"""Scenarios where ranks differ in what they must have alike: settings, data, params."""

import shutil
from contextlib import contextmanager

import spacy
from spacy.tokens import DocBin
from spacy.training import Example
from thinc.api import get_current_ops

from tests.addons.distributed import pipelines
from tests.addons.distributed.scenarios import RANK, scenario, train
from thinc_torchopt.addons.distributed.settings import Distributed
from thinc_torchopt.core.errors import DistributedError


@contextmanager
def noting(found):
    """Inside, what ranks say to each other is the result."""
    try:
        yield
    except DistributedError as error:
        found["error"] = str(error)


@scenario
def other_settings(folder):
    """All that rank 1 may set to something else without any other sign of it; and paths, which may be others."""
    from tests.addons.distributed.worker import spacy_training

    changes = {
        "training__dropout": 0.3,
        "training__seed": 5,
        "training__accumulate_gradient": 2,
        "training__max_steps": 5,
        "training__optimizer__use_averages": False,
        "training__optimizer__distributed": {"@misc": "thinc-torchopt.Distributed.v1", "reduce": "mean"},
    }
    found = {}
    with noting(found):
        spacy_training(folder, "other-settings", f"state-of-{RANK}", steps=3, **(changes if RANK else {}))
    return found | {"wrote": sorted(path.name for path in (folder / "other-settings").glob("*"))}


@scenario
def other_arguments(folder):
    """Of a loop that Python calls."""
    nlp, found = pipelines.pipeline(["tagger"]), {}
    optimizer = pipelines.optimizer(distributed=Distributed(reduce="mean" if RANK else "sum"))
    with noting(found):
        train(nlp, optimizer, dropout=0.1 + 0.1 * RANK, accumulate_gradient=1 + RANK)
    return found


@scenario
def other_vectors_and_labels(folder):
    """The same table of another rank, in one number, and the same labels in another order."""
    nlp, found = pipelines.pipeline(["tagger"]), {}
    nlp.vocab.vectors = spacy.vocab.Vectors(shape=(2, 3))
    nlp.vocab.vectors.add("w1", vector=get_current_ops().asarray1f([0.0, 0.0, float(RANK)]))
    if RANK:
        labels = list(nlp.get_pipe("tagger").labels)
        nlp.get_pipe("tagger").cfg["labels"] = [labels[1], labels[0], *labels[2:]]
    with noting(found):
        train(nlp, pipelines.optimizer())
    return found


@scenario
def other_annotations(folder):
    """Of one document of the corpus on rank 1; its texts are the same."""
    from tests.addons.distributed.worker import spacy_training

    corpus = folder / f"corpus-{RANK}"
    corpus.mkdir()
    for part in ("train", "dev"):
        shutil.copy(folder / f"{part}.spacy", corpus)
    if RANK:
        docs = list(DocBin().from_disk(corpus / "train.spacy").get_docs(spacy.blank("en").vocab))
        [token] = [token for token in docs[-1] if token.tag_ == "JJ"]
        token.tag_ = "NNP"
        DocBin(docs=docs, store_user_data=True).to_disk(corpus / "train.spacy")
    found = {}
    with noting(found):
        found |= spacy_training(corpus, "out", "state", steps=3)
    return found | {"wrote": sorted(path.name for path in (corpus / "out").glob("model-*"))}


@scenario
def other_annotations_of_a_stream(folder):
    """Nobody knows what comes in step 3."""
    nlp, found = pipelines.pipeline(["tagger"]), {}
    batches = pipelines.batches(nlp)
    if RANK:
        epoch, batch = batches[6]
        words = [token.text for token in batch[0].reference]
        other = Example.from_dict(batch[0].predicted.copy(), {"words": words, "tags": ["A"] * len(words)})
        batches[6] = epoch, [other, *batch[1:]]
    steps = []

    def before_update(nlp, args):
        steps.append(pipelines.weights(nlp))

    with noting(found):
        train(nlp, pipelines.optimizer(), batches=batches, before_update=before_update)
    return found | {"before": steps[-1], "after": pipelines.weights(nlp), "steps": len(steps)}


def drift_at(step):
    def before_update(nlp, args):
        if args["step"] == step and RANK == 1:
            nlp.get_pipe("tagger").model.get_ref("softmax").get_param("W")[0, 0] += 1e-6

    return before_update


@scenario
def drift_before_the_end(folder):
    """After the last check, and before the last step."""
    nlp, found = pipelines.pipeline(["tagger"]), {}
    with noting(found):
        train(nlp, pipelines.optimizer(distributed=Distributed()), before_update=drift_at(3))
    return found


@scenario
def drift_before_a_save(folder):
    """spaCy saves what was evaluated."""
    nlp, found, evaluated = pipelines.pipeline(["tagger"]), {}, []

    def evaluate():
        evaluated.append(RANK)
        return 0.0, {}

    optimizer = pipelines.optimizer(distributed=Distributed())
    with noting(found):
        train(nlp, optimizer, before_update=drift_at(2), evaluate=evaluate, eval_frequency=4)
    return found | {"evaluated": len(evaluated)}


@scenario
def drift_before_a_checkpoint(folder):
    """Between two evaluations."""
    from tests.addons.distributed.worker import DRIFTS, spacy_training

    DRIFTS[:], found = [2], {}
    try:
        with noting(found):
            spacy_training(folder, "drift", "state-of-drift", steps=9)
    finally:
        DRIFTS.clear()
    steps = sorted(path.name for path in (folder / "state-of-drift" / "state").glob("step-*"))
    return found | {"written": steps}


@scenario
def drift_that_is_allowed(folder):
    """check_every = 0."""
    nlp, found = pipelines.pipeline(["tagger"]), {}
    with noting(found):
        train(nlp, pipelines.optimizer(distributed=Distributed(check_every=0)), before_update=drift_at(3))
    return found
