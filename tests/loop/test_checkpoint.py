"""Exact resume: what was stopped at any moment and went on ends as what was not, to the last bit."""

import errno
import json
import os
import random
import re
import shutil
import signal
import time
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy
import pytest
import spacy
import spacy.training.loop
import srsly
import torch
from confection import Config
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_train_batches, subdivide_batch
from spacy.util import registry, resolve_dot_names
from thinc.api import fix_random_seed

from thinc_torchopt import Checkpoints, TorchOptimizer
from thinc_torchopt.addons.preview import explain
from thinc_torchopt.core.algorithms.torch_classes import AdamW
from thinc_torchopt.core.errors import CheckpointWarning, ConfigError, StateError
from thinc_torchopt.core.schedules.curves import warmup_linear
from thinc_torchopt.core.schema import read, write
from thinc_torchopt.core.state.files import read_folder, write_folder
from thinc_torchopt.loop.checkpoint_folder import name_of, newest_whole, step_of, steps_of
from thinc_torchopt.loop.progress import Progress

from ..core.labels.test_add_labels import CASES, examples_of
from ..core.state.test_files import damage
from ..forks import Started
from ..models import ready_pipeline
from ..runs import EXACT_ON_GPU, LARGE, Crash, config_for, contents, digests, run, run_and_tell, train
from ..spacy_cli import spacy_cli
from .test_run_lock import hold

VARIANTS = {
    "plain": {},
    "no averages": {"training__optimizer__use_averages": False},
    "accumulate_gradient": {"training__accumulate_gradient": 2},
    "groups": {
        "training__optimizer__skip_decay": "bias_and_norm",
        "training__optimizer__param_groups": {
            "lower": {"params": ["tok2vec/embed/*"], "unfreeze_at": 5, "weight_decay": 0.5},
            "never": {"params": ["tok2vec/encode/0/*"], "freeze": True},
            "top": {
                "params": ["tagger/*"],
                "learn_rate": {"@schedules": "thinc-torchopt.plateau.v1", "initial_rate": 0.01, "patience": 0},
            },
        },
        "training__optimizer__per_param_lr": {
            "parser/*": {
                "@schedules": "thinc-torchopt.warmup_cosine.v1",
                "initial_rate": 0.003,
                "warmup_steps": 2,
                "total_steps": 10,
            }
        },
    },
    "thawed into the group of others": {
        "training__optimizer__param_groups": {"embeddings": {"params": ["tok2vec/embed/*"], "unfreeze_at": 5}},
    },
    "streamed": {"training__max_epochs": -1},
    "augmented": {"corpora__train__augmenter": {"@augmenters": "spacy.lower_case.v1", "level": 0.5}},
    "algorithms": {
        "training__optimizer__param_groups": {
            "encoder": {
                "params": ["tok2vec/*"],
                "algorithm": {
                    "@torch_optimizers": "torch.RMSprop.v1",
                    "momentum": {"@schedules": "decaying.v1", "base_rate": 0.5, "decay": 0.1},
                },
            },
            "late": {
                "params": ["parser/*"],
                "unfreeze_at": 5,
                "algorithm": {"@torch_optimizers": "torch.Adagrad.v1"},
            },
        },
    },
    "annotating": {"training__annotating_components": ["tagger"]},
}
# Between checkpoints, right after one, and right after an evaluation; where something thaws, before and after that. The
# others differ in what is saved, and not in when.
STOPS = {
    "plain": (5, 6, 7),
    **dict.fromkeys(["groups", "thawed into the group of others", "algorithms"], (5, 7)),
}
# A parser draws random numbers in each update, with the generator that shuffles and augments texts.
WITH_PARSER = ("plain", "groups", "augmented", "algorithms", "annotating")


def plain_loop(config, steps):
    """A training as a `for`: spaCy's texts and gradients, torch's SGD and clipping, thinc's averages."""
    nlp, seen = init_nlp(config.interpolate()), []
    config = nlp.config.interpolate()  # with all defaults
    settings = config["training"]
    [read] = resolve_dot_names(config, [settings["train_corpus"]])
    batcher = registry.resolve({"batcher": settings["batcher"]})["batcher"]
    nodes = [(node, name) for _, pipe in nlp.pipeline for node in pipe.model.walk() for name in node.param_names]
    params = [torch.from_numpy(node.get_param(name)) for node, name in nodes]
    averages = [numpy.zeros(param.shape, dtype="f") for param in params]
    optimizer = torch.optim.SGD(params, momentum=0.9)
    fix_random_seed(settings["seed"])
    for step, (epoch, batch) in zip(range(steps), create_train_batches(nlp, read, batcher, 0)):
        [batch] = subdivide_batch(batch, 1)  # by length
        seen.append((epoch, [example.text for example in batch]))
        nlp.update(batch, sgd=False, drop=settings["dropout"])
        for param, (node, name) in zip(params, nodes):
            param.grad = torch.from_numpy(node.get_grad(name))
        torch.nn.utils.clip_grad_norm_(params, 0.5)
        optimizer.param_groups[0]["lr"] = 0.2 * (step / 2 if step < 2 else (20 - step) / 18)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        for average, (node, name) in zip(averages, nodes):
            node.ops.update_averages(average, node.get_param(name), step + 1)
    return seen, params, averages


def test_checkpoint_resumed_run_is_a_plain_loop(corpus, tmp_path, monkeypatch):
    """Texts, epochs, weights, and the averages in the saved pipeline: the parts are not only equal to our own whole."""
    optimizer = {"@optimizers": "thinc-torchopt.TorchOptimizer.v1", "grad_clip": 0.5, "use_averages": True}
    optimizer |= {"learn_rate": {"@schedules": "warmup_linear.v1", "initial_rate": 0.2, "warmup_steps": 2}}
    optimizer["learn_rate"]["total_steps"] = 20
    optimizer |= {"algorithm": {"@torch_optimizers": "torch.SGD.v1", "momentum": 0.9}}
    optimizer |= {"checkpoint": {"@misc": "thinc-torchopt.Checkpoint.v1", "path": str(tmp_path / "state"), "every": 3}}
    docs = [([f"text{i}", *["likes", "Anna", "."][: 1 + i % 3]], ["X", *"VNP"[: 1 + i % 3]]) for i in range(60)]
    vocab = spacy.blank("xx").vocab
    DocBin(docs=[Doc(vocab, words=words, tags=tags) for words, tags in docs]).to_disk(tmp_path / "train.spacy")
    files = {**corpus, "train": tmp_path / "train.spacy"}
    config = config_for(tmp_path, files, steps=9, training__optimizer=optimizer)
    seen, params, averages = plain_loop(config, 10)
    texts, epochs, at, told = {}, {}, [], []
    update = Language.update

    def noted(self, examples, **kwargs):
        texts[at[-1]] = [example.text for example in examples]
        return update(self, examples, **kwargs)

    monkeypatch.setattr(Language, "update", noted)

    def tell(info):
        epochs[info["step"]] = info["epoch"]

    for stop in (5, None):
        nlp, _ = run_and_tell(config, tmp_path / "out", tell, crash_at=stop, act=at.append)
        told.append(newest_whole(tmp_path / "state").progress)
    assert [(one.step, one.epoch, one.in_epoch) for one in told] == [(step, *[seen[step][0]] * 2) for step in (3, 9)]
    assert at == [*range(6), *range(4, 10)]  # the run went on after its checkpoint of step 3
    assert [(epochs[step], texts[step]) for step in range(10)] == seen and epochs[9] == 3
    saved = spacy.load(tmp_path / "out" / "model-last")
    for found, expected in ((nlp, params), (saved, averages)):
        values = [
            node.get_param(name)
            for _, pipe in found.pipeline
            for node in pipe.model.walk()
            for name in node.param_names
        ]
        for one, other in zip(values, expected, strict=True):
            # Sums of ten updates in float32, of weights up to 2.
            numpy.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore:The learning rate of lower is 0")  # as the variant says
@pytest.mark.parametrize("variant", [pytest.param("plain", marks=pytest.mark.device), *[*VARIANTS][1:]])
def test_checkpoint_resume_is_exact(request, variant, corpus, tmp_path):
    changes, stops = {"steps": 10, "parser": variant in WITH_PARSER, **VARIANTS[variant]}, STOPS.get(variant, (7,))
    if request.config.getoption("--device", "cpu") == "cuda":
        changes |= EXACT_ON_GPU
    whole = run(config_for(tmp_path / "whole", corpus, **changes), tmp_path / "whole")
    config = config_for(tmp_path / "broken", corpus, **changes)
    parts = [run(config, tmp_path / "broken", crash_at=step) for step in (*stops, None)]
    together = {step: info for part in parts for step, info in part.items()}
    assert together == whole and len(whole) == 11
    assert min(parts[-1]) == stops[-1]  # it went on, and not from the start
    assert digests(tmp_path / "broken") == digests(tmp_path / "whole")


def test_checkpoint_resume_is_exact_where_a_component_has_nothing_to_learn_from(corpus, tmp_path):
    """thinc's params move on by momentum then, in a run that goes on as well: here the second half of the data has no
    trees.
    """
    docs = list(DocBin().from_disk(corpus["train"]).get_docs(spacy.blank("en").vocab))
    docs[36:] = [
        Doc(doc.vocab, words=[token.text for token in doc], tags=[token.tag_ for token in doc]) for doc in docs[36:]
    ]
    DocBin(docs=docs).to_disk(tmp_path / "train.spacy")
    changes = {"steps": 6, "parser": True, "training__max_epochs": -1}
    paths = {**corpus, "train": tmp_path / "train.spacy"}
    whole = run(config_for(tmp_path / "whole", paths, **changes), tmp_path / "whole")
    config = config_for(tmp_path / "broken", paths, **changes)
    parts = [run(config, tmp_path / "broken", crash_at=step) for step in (4, None)]
    assert list(parts[1]) == [4, 5, 6] and parts[0] | parts[1] == whole
    assert digests(tmp_path / "broken") == digests(tmp_path / "whole")


def test_checkpoint_of_a_stop_is_exact_after_a_run_with_nothing_left_to_do(corpus, tmp_path):
    def changed(name, steps):
        return config_for(tmp_path / name, corpus, steps=steps, training__optimizer__learn_rate=0.01)

    whole = run(changed("whole", 9), tmp_path / "whole")
    with pytest.raises(SystemExit):
        run(changed("out", 9), tmp_path / "out", act=lambda step: step == 7 and os.kill(os.getpid(), signal.SIGTERM))
    assert run(changed("out", 4), tmp_path / "out") == {}
    assert run(changed("out", 9), tmp_path / "out") == {step: whole[step] for step in (8, 9)}
    assert not (tmp_path / "out" / "state" / "stopped").exists()
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_checkpoint_of_a_stop_is_kept_beside_a_damaged_one_of_a_later_step(corpus, tmp_path):
    config, damaged = config_for(tmp_path, corpus), pytest.warns(CheckpointWarning, match="damaged")
    for step, warned in ((8, nullcontext()), (7, damaged)):
        with warned, pytest.raises(SystemExit):
            run(config, tmp_path / "out", act=lambda at, step=step: at == step and os.kill(os.getpid(), signal.SIGTERM))
        file = tmp_path / "state" / "stopped" / name_of(8) / "tensors.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    with damaged:
        assert newest_whole(tmp_path / "state").progress.step == 7


def test_checkpoint_of_a_finished_run_changes_nothing(corpus, tmp_path, caplog):
    config = config_for(tmp_path, corpus, steps=5, initialize__vectors="${paths.vectors}")
    config["paths"]["vectors"] = None
    run(config, tmp_path / "out")
    before = digests(tmp_path / "out"), contents(tmp_path / "state")
    assert run(config, tmp_path / "out") == {}
    assert "was finished, after step 5. To train longer, raise max_steps" in caplog.text
    assert (digests(tmp_path / "out"), contents(tmp_path / "state")) == before
    # The config of the saved pipeline, in which the variables of [paths] are filled in.
    saved = Config().from_disk(tmp_path / "out" / "model-last" / "config.cfg", interpolate=False)
    assert saved["initialize"]["vectors"] is None
    saved["training"]["max_steps"] = 7
    assert sorted(run(saved, tmp_path / "out")) == [6, 7] and "Resuming after step 5" in caplog.text


def test_checkpoint_is_told_by_explain_as_by_the_run(corpus, tmp_path, caplog):
    """Where it resumes, that it is finished, or why it would be refused. Nothing is written."""

    def told(config):
        config["training"]["before_update"] = {"@callbacks": "test-checkpoint.Crash.v1"}
        before = contents(tmp_path / "state")
        found = explain(config)
        assert contents(tmp_path / "state") == before
        return found

    config = config_for(tmp_path, corpus, steps=0, training__max_epochs=1)
    run(config, tmp_path / "out", crash_at=4)
    found = told(config)
    assert not found.stops and f"Resuming after step 3, from the checkpoint in {tmp_path / 'state'}." in found.notes
    other = config_for(tmp_path, corpus | {"train": corpus["dev"]}, steps=0, training__max_epochs=1)
    for changed in (config_for(tmp_path, corpus, training__dropout=0.25), other):
        with pytest.raises(StateError) as caught:
            run(changed, tmp_path / "out")
        assert str(caught.value) in told(changed).stops
    run(config, tmp_path / "out")
    run(config, tmp_path / "out")
    [note] = [note for note in told(config).notes if note.startswith("Nothing to do: the training in")]
    assert note in caplog.text
    damage(steps_of(tmp_path / "state")[-1], random.Random(0))
    found = told(config)
    assert any("The next one is used" in note for note in found.notes)
    assert any(note.startswith("Resuming after step") for note in found.notes)


def test_checkpoint_takes_the_next_older_one_when_one_is_damaged(corpus, tmp_path):
    """Ten random damages."""
    config = config_for(tmp_path, corpus, steps=8)
    whole = run(config_for(tmp_path / "whole", corpus, steps=8), None)
    run(config, None, crash_at=7)
    shutil.copytree(tmp_path / "state", tmp_path / "kept")
    rng = random.Random(0)
    for _ in range(10):
        shutil.rmtree(tmp_path / "state")
        shutil.copytree(tmp_path / "kept", tmp_path / "state")
        _older, newer = steps_of(tmp_path / "state")
        damage(newer, rng)
        with pytest.warns(CheckpointWarning, match=f"Can't read '{newer}.*The next one"):
            assert newest_whole(tmp_path / "state").progress.step == 5
    with pytest.warns(CheckpointWarning):
        part = run(config, None)
    assert part == {step: info for step, info in whole.items() if step > 5}
    assert list(map(step_of, steps_of(tmp_path / "state"))) == [6, 8]  # the damaged one was written again


@pytest.mark.parametrize("of", ["random", "data"])
def test_checkpoint_refuses_generators_that_it_can_not_set(of, corpus, tmp_path):
    """Its checksums are right, as if another program had written it."""
    config = config_for(tmp_path, corpus)
    run(config, None, crash_at=1)
    [path] = steps_of(tmp_path / "state")
    state = read_folder(path)
    generators = state["random"] if of == "random" else state["data"]["start"]
    generators["python"] = [3, torch.zeros(3, dtype=torch.int64), None]
    shutil.rmtree(path)
    write_folder(path, state)
    with pytest.raises(StateError, match="the random generators"):
        run(config, None)


def test_checkpoint_refuses_a_changed_config_before_anything_is_lost(corpus, tmp_path):
    config = config_for(tmp_path, corpus, steps=6)
    run(config, tmp_path / "out", crash_at=4)
    before = digests(tmp_path / "out")
    changes = {"training__optimizer__algorithm__weight_decay": 0.5, "training__dropout": 0.25}
    changed = config_for(tmp_path, corpus, steps=6, **changes)
    with pytest.raises(StateError) as caught:
        run(changed, tmp_path / "out")
    assert "training.optimizer.algorithm.weight_decay: 0.01 before, 0.5 now" in str(caught.value)
    assert "training.dropout: 0.1 before, 0.25 now" in str(caught.value)
    assert "on_config_change warn" in str(caught.value)
    assert digests(tmp_path / "out") == before
    changed["training"]["optimizer"]["checkpoint"]["on_config_change"] = "warn"
    changed["training"]["optimizer"]["learn_rate"]["initial_rate"] = 0.0
    rates = {}
    with (
        pytest.warns(CheckpointWarning, match="Resuming although the config has changed"),
        pytest.warns(CheckpointWarning, match=r"'default' has other options .*weight_decay is 0\.5, was 0\.01\."),
    ):
        run_and_tell(changed, tmp_path / "out", lambda info: rates.update({info["step"]: info["learn_rates"]}))
    assert min(rates) == 4 and all(rate == {"default": 0.0} for rate in rates.values())
    changed["training"] |= {"max_steps": 8, "eval_frequency": 2, "patience": 5000}
    changed["training"]["optimizer"]["checkpoint"] |= {"every": 0, "on_config_change": "refuse"}
    assert sorted(run(changed, tmp_path / "out")) == [7, 8]


def test_checkpoint_refuses_another_pipeline(corpus, tmp_path):
    config = config_for(tmp_path, corpus)
    run(config, None, crash_at=1)
    config["components"]["tagger"]["model"]["tok2vec"]["width"] = 48
    config["components"]["tok2vec"]["model"]["width"] = 48
    config["training"]["optimizer"]["checkpoint"]["on_config_change"] = "warn"
    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(
            StateError, match="expected the params of this pipeline in the saved model, found others, or other shapes"
        ),
    ):
        run(config, tmp_path / "out")


KINDS = {
    CASES[case][0]: CASES[case][1]
    for case in ("ner", "parser", "tagger", "morphologizer", "lemmatizer", "spancat", "textcat-bow3", "multilabel-bow3")
}


def in_another_order(data):
    """The labels of a component as [initialize.components] takes them, the same ones, in another order."""
    if isinstance(data, list):
        return data[::-1]
    if "trees" in data:
        return data | {"labels": data["labels"][::-1]}
    if "morph" in data:
        return {kind: dict(reversed(labels.items())) for kind, labels in data.items()}
    return {action: {label: 1 + i for i, label in enumerate(labels)} for action, labels in data.items()}


def test_checkpoint_refuses_labels_in_another_order(tmp_path, monkeypatch):
    """Of all kinds of components whose rows follow labels, whatever `on_config_change` says. With the labels that the
    message prints the run goes on, and ends as the unbroken one.
    """
    monkeypatch.chdir(tmp_path)
    nlp = spacy.blank("xx")
    for name, settings in KINDS.items():
        nlp.add_pipe(name, config=settings)
    examples = examples_of(nlp, 12)
    for example in examples:
        example.reference[4].tag_ = "$"  # which a config takes for a variable
    DocBin(docs=[example.reference for example in examples], store_user_data=True).to_disk("texts.spacy")
    nlp.initialize(lambda: examples)
    labels = {}
    for name in KINDS:
        srsly.write_json(f"{name}-labels.json", nlp.get_pipe(name).label_data)
        labels[name] = {"labels": {"@readers": "spacy.read_labels.v1", "path": f"{name}-labels.json"}}

    def config_of(name, steps):
        paths = {"train": tmp_path / "texts.spacy", "dev": tmp_path / "texts.spacy"}
        config = config_for(tmp_path / name, paths, steps=steps, training__optimizer__learn_rate=0.01)
        config["components"] = {kind: {"factory": kind, **settings} for kind, settings in KINDS.items()}
        config["nlp"]["pipeline"] = [*KINDS]
        config["initialize"] = {"components": labels}
        return config

    whole = run(config_of("whole", 6), tmp_path / "whole")
    first = run(config_of("broken", 3), tmp_path / "broken")
    for name in KINDS:
        file = tmp_path / f"{name}-labels.json"
        srsly.write_json(file, in_another_order(srsly.read_json(file)))
    config = config_of("broken", 6)
    config["training"]["optimizer"]["checkpoint"]["on_config_change"] = "warn"
    with pytest.raises(StateError, match="so they would get the weights of others") as caught:
        run(config, tmp_path / "broken")
    assert [name for name in KINDS if f"labels of {name}: " in str(caught.value)] == [*KINDS]
    text, *files = str(caught.value).partition("\n\nTo start")[0].split("\n\nIn a file ")
    assert len(files) == len(KINDS)
    given = Config().from_str("[initialize]\n\n[initialize.components]\n\n" + text.partition("any labels there:")[2])
    for file in files:
        name, data = file.split(":\n", 1)
        Path(name).write_text(data)
    config["initialize"] = given["initialize"]
    config["training"]["optimizer"]["checkpoint"]["on_config_change"] = "refuse"
    rest = run(config, tmp_path / "broken")
    assert min(rest) == 4 and first | rest == whole
    assert digests(tmp_path / "broken") == digests(tmp_path / "whole")


UNFIT = {
    "training__batcher__size": 40,
    "corpora__train__limit": 10,
    "training__max_epochs": -1,
    "training__frozen_components": ["tagger"],
    "training__optimizer__algorithm__amsgrad": True,
}


@pytest.mark.parametrize("path", UNFIT)
def test_checkpoint_advises_what_helps(path, corpus, tmp_path):
    """Against a state that does not fit, or other batches, none does; and these are named as the cause."""
    batches = not path.startswith("training__optimizer") and "frozen" not in path
    run(config_for(tmp_path, corpus), None, crash_at=4)
    changed = config_for(tmp_path, corpus, **{path: UNFIT[path]})
    setting = path.replace("__", ".")
    with pytest.raises(StateError, match=rf"(?s){setting}: .*\sTo resume, ") as caught:
        run(changed, None)
    advice = f"To resume, set back: {setting}. Or, if the batches are the same with it: --training.optimizer"
    assert ("on_config_change" in str(caught.value)) is (advice in str(caught.value)) is batches
    changed["training"]["optimizer"]["checkpoint"]["on_config_change"] = "warn"
    cause = f"The likely cause is the change of {setting}. Undo it, or start again" if batches else "optimizer"
    with pytest.warns(CheckpointWarning, match=setting), pytest.raises(StateError, match=cause):
        run(changed, None)
    if path == "training__max_epochs":
        assert min(run(config_for(tmp_path, corpus, training__max_epochs=9), None, crash_at=5)) == 4


def test_checkpoint_that_is_refused_leaves_the_optimizer_alone(tmp_path):
    """The advice is chosen without loading. A schedule that is ahead is named."""

    def resume(dropout, steps=0, updates=0):
        nlp, examples = ready_pipeline(["tagger"], n=4)
        nlp._config["training"]["dropout"] = dropout
        optimizer = TorchOptimizer(AdamW(), warmup_linear(0.01, warmup_steps=2, total_steps=30))
        for _ in range(updates):
            nlp.update(examples, sgd=optimizer)
            optimizer.step_schedules()
        before = optimizer.learn_rate, sum(optimizer.nr_update.values())
        try:
            with Checkpoints(tmp_path / "state", nlp, optimizer) as checkpoints:
                for _, batch in checkpoints.resume([examples] * steps):
                    nlp.update(batch, sgd=optimizer)
                    optimizer.step_schedules()
                checkpoints.save()
        except StateError:
            assert (optimizer.learn_rate, sum(optimizer.nr_update.values())) == before
            raise

    resume(0.1, steps=8)
    with pytest.raises(StateError, match=r'(?s)dropout: 0.1 before, 0.3 now.*on_config_change="warn"'):
        resume(0.3, steps=8)
    with pytest.raises(StateError, match=r"(?s)dropout: 0.1 before, 0.3 now.*build a new optimizer"):
        resume(0.3, steps=8, updates=12)


def test_checkpoint_compares_scores_of_the_same_texts_only(corpus, tmp_path):
    """Other development data: the best score so far is of other texts. At another path, in another order: the same."""

    def with_dev(name, change=lambda docs: docs, **changes):
        docs = list(DocBin(store_user_data=True).from_disk(corpus["dev"]).get_docs(spacy.blank("xx").vocab))
        DocBin(docs=change(docs), store_user_data=True).to_disk(tmp_path / f"{name}.spacy")
        return config_for(tmp_path, {**corpus, "dev": tmp_path / f"{name}.spacy"}, **changes)

    def all_wrong(docs):
        for token in docs[0]:
            token.tag_ = "WRONG"
        return docs[:1]

    run(config_for(tmp_path, corpus), tmp_path / "out", crash_at=4)
    before = digests(tmp_path / "out")
    with pytest.raises(StateError, match=r"corpora\.dev, texts: \d+ with checksum .* before, 1 with checksum .* now"):
        run(with_dev("wrong", all_wrong), tmp_path / "out")
    assert digests(tmp_path / "out") == before
    assert min(run(with_dev("same", lambda docs: docs[::-1]), tmp_path / "out", crash_at=5)) == 4

    best = newest_whole(tmp_path / "state").progress.best_score
    changed = with_dev("wrong", all_wrong, steps=10, training__optimizer__checkpoint__on_config_change="warn")
    changed["training"]["patience"] = 5  # over, by the old scores
    with pytest.warns(CheckpointWarning, match="the best model, its score and patience start again"):
        run(changed, tmp_path / "out")
    progress = newest_whole(tmp_path / "state").progress
    assert [step for _, step in progress.results] == [5, 10] and progress.best_score < best
    kept = json.loads((tmp_path / "out" / "model-best" / "kept-as-best.json").read_text())
    assert kept["step"] in (5, 10)  # equal scores: spaCy keeps the newest


RATE = {"@schedules": "thinc-torchopt.plateau.v1", "initial_rate": 0.002, "patience": 0}
RULE = {"@controller_rules": "thinc-torchopt.stop_early.v1", "of": "scores['tag_acc']", "evaluations": 9}
REMEMBERING = {
    "learn_rate": RATE,
    "learn_rate, in a sequence": {
        "@schedules": "thinc-torchopt.sequence.v1",
        "parts": {"first": {"steps": 2, "schedule": 0.001}, "then": {"schedule": RATE}},
    },
    "controller": {"@misc": "thinc-torchopt.TrainerController.v1", "rules": {"stop": RULE}},
}


@pytest.mark.parametrize("name", REMEMBERING)
def test_checkpoint_is_refused_where_something_remembers_other_scores(name, corpus, tmp_path):
    """No setting helps against that."""
    block = name.partition(",")[0]
    changes = {f"training__optimizer__{block}": REMEMBERING[name]}
    run(config_for(tmp_path, corpus, steps=8, **changes), None, crash_at=7)
    changed = config_for(tmp_path, corpus, steps=8, **changes, corpora__dev__limit=2)
    for advice in ("refuse", "warn"):
        changed["training"]["optimizer"]["checkpoint"]["on_config_change"] = advice
        with pytest.raises(
            StateError, match=rf"remembered by training\.optimizer\.{block}\. .* corpora\.dev\.limit\."
        ) as caught:
            run(changed, None)
        assert "on_config_change" not in str(caught.value)
    changed = config_for(tmp_path, corpus, steps=8, **changes, training__dropout=0.3)
    changed["training"]["optimizer"]["checkpoint"]["on_config_change"] = "warn"
    with pytest.warns(CheckpointWarning, match="dropout"):
        assert min(run(changed, None)) > 0


def test_checkpoint_must_and_never(corpus, tmp_path):
    config = config_for(tmp_path, corpus, steps=2)
    config["training"]["optimizer"]["checkpoint"]["resume"] = "must"
    with pytest.raises(StateError, match="expected an undamaged checkpoint, found none"):
        run(config, tmp_path / "out")
    config["training"]["optimizer"]["checkpoint"]["resume"] = "never"
    assert sorted(run(config, tmp_path / "out")) == [0, 1, 2]
    run(config, tmp_path / "out", crash_at=1)  # without the checkpoints of the first run
    config["training"]["optimizer"]["checkpoint"]["resume"] = "must"
    assert sorted(run(config, tmp_path / "out")) == [1, 2]


@pytest.mark.parametrize(
    ("error", "advice"), [(errno.ENOSPC, r"unchanged\. Make room on the disk\.$"), (errno.EACCES, r"unchanged\.$")]
)
def test_checkpoint_goes_on_training_when_it_cannot_be_written(error, advice, corpus, tmp_path, monkeypatch):
    config = config_for(tmp_path, corpus, steps=6)
    run(config, None, crash_at=4)
    before = read_folder(steps_of(tmp_path / "state")[-1])["progress"]["step"]

    full = OSError(error, os.strerror(error))
    monkeypatch.setattr("thinc_torchopt.loop.checkpoint_folder.write_parts", Mock(side_effect=full))
    with pytest.warns(CheckpointWarning, match=f"{os.strerror(error)}. Training continues, and older.*{advice}"):
        assert max(run(config, None)) == 6
    assert newest_whole(tmp_path / "state").progress.step == before


def test_checkpoint_touches_nothing_that_is_not_its_own(corpus, tmp_path):
    """Nor are damaged checkpoints of before kept in the place of new ones."""
    config = config_for(tmp_path, corpus, steps=5, training__optimizer__checkpoint__every=1)
    run(config, tmp_path / "out")
    for name, new in (("step-00000004", "step-00000025"), ("step-00000005", "step-00000027")):
        (tmp_path / "state" / name).rename(tmp_path / "state" / new)
        if new.endswith("5"):
            (tmp_path / "state" / new / "values.json").write_text("{}")
    with pytest.warns(CheckpointWarning) as told:
        assert min(run(config, tmp_path / "out")) == 0
    for warning, text in zip(
        told,
        (
            "of step 27, found that of step 5. The folder was renamed",
            "values.json': expected",
            "the training starts from the beginning",
        ),
    ):
        assert text in str(warning.message)
    left = ["step-00000004", "step-00000005", "step-00000025", "step-00000027"]
    assert sorted(os.listdir(tmp_path / "state")) == left
    with pytest.warns(CheckpointWarning):
        assert run(config, tmp_path / "out") == {}


def test_checkpoint_of_a_run_whose_data_ended(corpus, tmp_path, caplog):
    """It is finished, as after max_steps: the last step is not made once more."""
    config = config_for(tmp_path, corpus, steps=0, training__max_epochs=1, training__eval_frequency=2)
    first = run(config, tmp_path / "out")
    before, last = digests(tmp_path / "out"), max(first)
    assert [path.name for path in steps_of(tmp_path / "state")][-1] == f"step-{last:08d}" and last % 3
    assert run(config, tmp_path / "out") == {}
    assert f"was finished, after step {last}. To train longer, raise max_steps, max_epochs" in caplog.text
    assert digests(tmp_path / "out") == before
    config["training"]["max_epochs"] = 2
    assert min(run(config, tmp_path / "out")) == last + 1


def test_checkpoint_of_a_finished_run_whose_rate_fell_to_the_end(corpus, tmp_path, caplog):
    """More steps are no advice: the schedule has ended."""
    block = {"@schedules": "thinc-torchopt.warmup_linear.v1", "initial_rate": 0.01, "warmup_ratio": 0.2}
    run(config_for(tmp_path, corpus, steps=6, training__optimizer__learn_rate=block), tmp_path / "out")
    assert run(config_for(tmp_path, corpus, steps=6, training__optimizer__learn_rate=block), tmp_path / "out") == {}
    assert "so it can't be made longer. To start from the beginning, give another --output" in caplog.text


def test_checkpoint_leaves_the_best_model_in_place(corpus, tmp_path):
    """A resumed run may be stopped before its first evaluation. In another folder there is none, or another run's."""
    config = config_for(tmp_path, corpus, steps=9, training__optimizer__learn_rate=[0.01] * 6 + [3.0] * 30)
    run(config, tmp_path / "out", crash_at=7)
    best = digests(tmp_path / "out")["model-best scores"]
    for crash_at in (8, None):
        run(config, tmp_path / "out", crash_at=crash_at)
        assert digests(tmp_path / "out")["model-best scores"] == best
    told = r"The best model so far, that of step \d, is not in '.*model-best'"
    with pytest.warns(CheckpointWarning, match=told):
        assert run(config, tmp_path / "out2") == {}
    assert os.listdir(tmp_path / "out2") == ["model-last"]
    run(config_for(tmp_path / "other", corpus, steps=2), tmp_path / "out")
    with pytest.warns(CheckpointWarning, match=told):
        run(config, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["model-last"]


def test_checkpoint_counts_the_room_of_all_that_is_written(corpus, small_disk, tmp_path):
    """Against the files of a run on a disk with room."""
    config = config_for(tmp_path, corpus, steps=7, **LARGE)
    train(config, tmp_path / "out")

    def size(folder):
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    keep = config["training"]["optimizer"]["checkpoint"]["keep"]
    written = 3 * size(tmp_path / "out" / "model-last")
    written += (keep + 1) * size(steps_of(tmp_path / "state")[-1])
    config["paths"]["state"] = str(small_disk / "state")
    with pytest.raises(ConfigError, match=f"being written.* and {keep + 1} checkpoints, .* found") as error:
        train(config, small_disk / "out")
    told = 1e6 * int(re.search(r"checkpoints, ([\d,]+) MB", str(error.value))[1])
    assert abs(told - written) < 0.1 * written + 5e5  # told in MB; without the vocabulary, and headers of files


def test_checkpoint_room_is_that_of_the_first_start(corpus, tmp_path, monkeypatch):
    """A run that just fits on its disk is resumed there. One that does not fit leaves older models alone."""
    config = config_for(tmp_path, corpus, steps=9)
    capacity = 0

    def usage(path):
        used = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
        return SimpleNamespace(total=capacity, used=used, free=max(0, capacity - used))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(ConfigError, match="found 0 MB free") as error:
        run(config, tmp_path / "out")
    capacity = 1e6 * int(re.search(r"checkpoints, ([\d,]+) MB", str(error.value))[1]) + 5e5
    run(config, tmp_path / "out", crash_at=8)
    assert max(run(config, tmp_path / "out")) == 9
    capacity, before = 0, digests(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"of older models that are replaced\. Make room"):
        run(config_for(tmp_path / "other", corpus), tmp_path / "out")
    assert digests(tmp_path / "out") == before


def test_checkpoint_checks_all_batches(corpus, tmp_path):
    """The last one may be the same: here the first document is another. An older checkpoint knows the last one only."""
    config = config_for(tmp_path, corpus, training__max_epochs=-1)
    run(config, tmp_path / "out", crash_at=5)
    docs = list(DocBin().from_disk(corpus["train"]).get_docs(spacy.blank("en").vocab))
    docs[0][0].lemma_ = "other"
    DocBin(docs=docs, store_user_data=True).to_disk(tmp_path / "other.spacy")
    changed = config.copy()
    changed["corpora"]["train"]["path"] = str(tmp_path / "other.spacy")
    with pytest.raises(
        StateError, match="Can't resume in the training data: expected the same 4 batches as in the saved run"
    ):
        run(changed, tmp_path / "out")


def test_checkpoint_refuses_a_second_run_in_the_same_folder(corpus, tmp_path):
    config = config_for(tmp_path, corpus, steps=400)
    run(config, tmp_path / "out", crash_at=1)
    with hold(tmp_path / "state") as process:
        before = contents(tmp_path)
        with pytest.raises(StateError, match=f"another run uses it: process {process.pid}"):
            run(config, tmp_path / "out")
        assert contents(tmp_path) == before
        process.kill()
    config["training"]["seed"] = 1
    with pytest.raises(StateError, match=r"training\.seed: .* before, 1 now"):
        run(config, tmp_path / "out")
    assert not (tmp_path / "state" / "lock.json").exists()


ODD_SCORES = {
    "array": numpy.arange(3.0),
    "numpy": numpy.float32(0.5),
    "tensor": torch.tensor(0.5),
    "nan": float("nan"),
    "object": object(),
    "nested": {"a": {1: numpy.float64(0.5)}, "b": (object(), numpy.arange(2))},
}


def test_checkpoint_saves_whatever_scores_there_are(corpus, tmp_path):
    @registry.scorers("test-checkpoint.Odd.v1")
    def odd():
        return lambda examples, **kwargs: {"tag_acc": 0.5, **ODD_SCORES}

    config = config_for(tmp_path, corpus, steps=7)
    config["components"]["tagger"]["scorer"] = {"@scorers": "test-checkpoint.Odd.v1"}
    config["training"]["score_weights"] = {"tag_acc": 1.0, **dict.fromkeys(ODD_SCORES)}
    for steps in (7, 8):
        config["training"]["max_steps"] = steps
        train(config, None)
    saved = newest_whole(tmp_path / "state")
    assert saved.progress.step == 8 and [step for _, step in saved.progress.results] == [0, 5]
    found = {name: saved.performance[name] for name in ODD_SCORES}
    nested = {"a": {"1": 0.5}, "b": [None, [0, 1]]}
    assert repr(found) == repr(
        {"array": [0.0, 1.0, 2.0], "numpy": 0.5, "tensor": 0.5, "nan": None, "object": None, "nested": nested}
    )
    saved.progress.results = [(0.25, 0), (float("nan"), 5)]
    write_folder(tmp_path / "odd" / "step-00000008", write(saved))
    saved.progress.step, saved.progress.results = 9, []
    write_folder(tmp_path / "odd" / "step-00000009", write(saved))
    command = ("torchopt", "checkpoint", tmp_path / "odd")
    shown = json.loads(spacy_cli(*command, "--json").stdout)
    assert [(entry["score"], entry["best_score"]) for entry in shown] == [(None, 0.25), (None, None)]
    table = spacy_cli(*command).stdout
    assert table.count("whole") == 2 and "best (0-1)" in table and " 0.2500 " in table


class Score:
    """Can be compared, which is all that spaCy's loop needs."""

    def __lt__(self, other):
        return False


@pytest.mark.parametrize(
    "score", [numpy.array(0.5), numpy.float32(0.5), torch.tensor(0.5), float("nan"), Fraction(1, 2), Score()]
)
def test_progress_saves_whatever_losses_and_scores_there_are(score, tmp_path):
    progress = Progress(
        step=5, results=[(score, 0), (score, 5)], losses={"a": score, "b": numpy.float32(0.1), "c": numpy.arange(3)}
    )
    write_folder(tmp_path / "state", write(progress.snapshot()))
    again = Progress()
    again.go_on_from(read(Progress, read_folder(tmp_path / "state"), "the progress"))
    is_number = not isinstance(score, Score)
    assert repr(again.results) == repr([(float(score), 0), (float(score), 5)] if is_number else [])
    assert again.losses.keys() == ({"a", "b"} if is_number else {"b"}) and again.losses["b"].dtype == "float32"
    assert again.is_over(5, 0) == is_number and again.is_over(0, 5)


def test_checkpoint_leaves_nothing_behind_when_a_logger_raises(corpus, tmp_path):
    """Though the exception is kept, as notebooks do, and with it all that the loop holds. Then the next training finds
    all in order.
    """

    @registry.loggers("test-checkpoint.Raises.v1")
    def raises():
        def setup(nlp, stdout, stderr):
            def log(info):
                during.append([signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)])
                if len(during) > 3:
                    raise Crash

            return log, lambda: None

        return setup

    config = config_for(tmp_path, corpus, steps=5)
    config["training"]["logger"] = {"@loggers": "test-checkpoint.Raises.v1"}
    before, during, kept = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)], [], []
    (tmp_path / "out").mkdir()
    for function in (spacy.training.loop.train, spacy.training.loop.train.__wrapped__):
        during.clear()
        with pytest.raises(Crash) as caught:
            train(config, tmp_path / "out", function)
        kept.append(caught)
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
        # While spaCy logs and saves they are only if it tells when it ends.
        assert (during[0] == before) == (function is not spacy.training.loop.train)
        assert os.path.exists(tmp_path / "state" / "lock.json") == (function is not spacy.training.loop.train)
    del config["training"]["logger"]
    train(config, tmp_path / "out")
    assert newest_whole(tmp_path / "state").progress.step == 5 and len(kept) == 2


# ---------------------------------------------------------------------- real processes


def command(config, folder, name):
    config.to_disk(folder / f"{name}.cfg")
    return ["train", folder / f"{name}.cfg", "--output", folder / name]


def rows(printed):
    return {int(line.split()[1]): line for line in printed.splitlines() if re.match(r"\s+\d+\s+\d+\s", line)}


def test_checkpoint_survives_a_kill(corpus, tmp_path):
    """After it wrote a checkpoint, perhaps in the middle of writing. The oracle is not killed."""
    configs = [config_for(tmp_path / one, corpus, steps=30, training__optimizer__checkpoint__every=1) for one in "ab"]
    expected = rows(spacy_cli(*command(configs[0], tmp_path, "whole")).stdout)
    args = command(configs[1], tmp_path, "broken")
    with Started(args) as process:
        while not steps_of(tmp_path / "b" / "state"):
            time.sleep(0.01)
        time.sleep(0.1)
        process.kill()
        found = rows(process.communicate()[0])
    assert 30 not in found
    end = spacy_cli(*args)
    assert "Resuming after step" in end.stdout + end.stderr
    assert found | rows(end.stdout) == expected and len(expected) == 7
    assert digests(tmp_path / "broken") == digests(tmp_path / "whole")


def test_checkpoint_and_log_lie_in_the_folder_for_models(corpus, tmp_path):
    """Without paths of their own."""
    config = config_for(tmp_path, corpus, steps=5)
    del config["training"]["optimizer"]["checkpoint"]["path"]
    config["training"]["logger"] = {"@loggers": "thinc-torchopt.JSONLinesLogger.v1"}
    for name in ("one", "two"):  # of the same config, and none resumes the other
        train(config, tmp_path / name)
        assert {path.name for path in (tmp_path / name).iterdir()} == {"log.jsonl", "model-best", "model-last", "state"}
        assert step_of(steps_of(tmp_path / name / "state")[-1]) == 5
    before = contents(tmp_path)
    train(config, tmp_path / "one")  # it is over
    assert {path for path in contents(tmp_path) if path not in before} == set()
    with pytest.raises(ConfigError, match=r"expected --output, or 'path' in \[training.optimizer.checkpoint\]"):
        train(config, None)
    del config["training"]["optimizer"]["checkpoint"]
    assert "Steps are not logged: " in train(config)
