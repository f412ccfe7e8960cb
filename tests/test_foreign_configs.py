"""Configs as public spaCy projects have them are trained with our optimizers as they are with thinc's.

See foreign_configs/README.md.
"""

import io
import json
from collections import Counter
from functools import cache
from typing import NamedTuple

import pytest
import spacy
import torch
from confection import Config
from numpy.linalg import norm
from spacy.language import Language
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.training.pretrain import pretrain
from spacy.util import registry
from thinc.api import Optimizer

from .foreign import FOLDER, FUNCTIONS, make_files
from .models import pipeline_params, same
from .runs import digests, run
from .spacy_cli import spacy_cli

STEPS = 4

# Which components each of them trains.
TRAINED = {
    "biaffine_parser.cfg": {"tok2vec", "senter", "biaffine_parser"},
    "character_tokenizer.cfg": {"ner"},
    "characters.cfg": {"tok2vec", "ner", "textcat"},
    "entity_linker.cfg": {"entity_linker"},
    "ner_floret.cfg": {"ner"},
    "ner_static_vectors.cfg": {"tok2vec", "ner"},
    "parser_senter_characters.cfg": {"parser", "senter"},
    "pretrain.cfg": {"tok2vec", "tagger", "parser"},
    "relations.cfg": {"tok2vec", "relation_extractor"},
    "sourced_and_frozen.cfg": {"parser", "ner_tok2vec", "ner"},
    "spancat.cfg": {"tok2vec", "spancat", "span_finder", "spancat_singlelabel"},
    "tagger_morphologizer_lemmatizer.cfg": {"tok2vec", "tagger", "morphologizer", "trainable_lemmatizer"},
    "textcat_ensemble.cfg": {"tok2vec", "textcat", "textcat_bow", "textcat_cnn"},
    "textcat_multilabel.cfg": {"textcat_multilabel", "attention"},
    "torch_encoder.cfg": {"encoder", "ner", "tagger"},
    "transformer.cfg": {"transformer", "ner"},
}

all_configs = pytest.mark.parametrize("name", sorted(TRAINED))
# spancat.cfg has another spans_key than its weights of scores, as such configs do.
# A classifier needs more than four steps.
pytestmark = pytest.mark.filterwarnings("ignore:.*gives each text of .corpora.dev. the category")
unscored = pytest.mark.filterwarnings("ignore:.*score_weights. counts spans_sc_f")


class Result(NamedTuple):
    """Of a training.

    before, after (dict): All params by component.
    losses (list[dict[str, float]]): At each evaluation.
    """

    nlp: Language
    before: dict[str, list[torch.Tensor]]
    after: dict[str, list[torch.Tensor]]
    losses: list[dict[str, float]]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(scope="module")
def with_thinc(files, tmp_path_factory):
    """A training with the optimizer that is in the config, once for all tests."""
    return cache(lambda name: few_steps(name, files, tmp_path_factory.mktemp("thinc")))


def as_is(block):
    return block


def drop_in(block):
    """One word changes."""
    return {**block, "@optimizers": f"thinc-torchopt.{block['@optimizers']}"}


def lockstep(block):
    return {"@optimizers": "test-foreign.Lockstep.v1", "ours": drop_in(block), "theirs": block}


def adamw(block):
    """The block that README.md shows, with the settings of the old one."""
    kept = {key: block[key] for key in ("learn_rate", "grad_clip", "use_averages") if key in block}
    algorithm = {"@torch_optimizers": "torch.AdamW.v1", "weight_decay": block.get("L2", 0.0)}
    return {"@optimizers": "thinc-torchopt.TorchOptimizer.v1", "algorithm": algorithm, **kept}


def flat(params):
    return torch.cat([param.flatten() for param in params])


def config_for(name, files, optimizer=as_is):
    """A config, with everything that it finds on disk, for a few steps."""
    if name == "transformer.cfg":
        pytest.importorskip("spacy_transformers", reason="spacy-transformers is not installed")
    config = Config().from_disk(FOLDER / name, interpolate=False)
    for key in set(config["paths"]) & set(files):
        config["paths"][key] = str(files[f"zh_{key}" if config["nlp"]["lang"] == "zh" else key])
    config["training"] |= {"max_steps": STEPS, "eval_frequency": STEPS}
    for section in {"training", "pretraining"} & set(config):
        config[section]["optimizer"] = optimizer(config[section]["optimizer"])
    return config


def few_steps(name, files, folder, optimizer=as_is, output=None):
    """`spacy train` in this process, and `spacy pretrain` before it where the config has that."""
    losses = []

    @registry.loggers("test-foreign.Losses.v1")
    def create_logger():
        return lambda nlp, stdout, stderr: (
            lambda info: losses.append(dict(info["losses"])) if info else None,
            lambda: None,
        )

    config = config_for(name, files, optimizer)
    if "pretraining" in config:
        pretrain(config.interpolate(), folder, silent=True)
        config["paths"]["init_tok2vec"] = str(folder / "model-last.bin")
    config["training"]["logger"] = {"@loggers": "test-foreign.Losses.v1"}
    nlp = init_nlp(config)
    before = pipeline_params(nlp)
    if output is not None:
        output.mkdir()
    train(nlp, output, stdout=io.StringIO(), stderr=io.StringIO())
    return Result(nlp, before, pipeline_params(nlp), losses)


def weights_of(model):
    """Each param of a model, thinc's or torch's, that has a gradient: by key, the live value as an array, and the
    gradient.
    """
    for node in model.walk():
        for name in node.param_names:
            if node.has_grad(name):
                yield (node.id, name), node.get_param(name), node.get_grad(name)
        for shim in node.shims:
            for name, param in shim._model.named_parameters():
                if param.grad is not None:
                    yield (f"shim {shim.id}", name), param.detach().numpy(), param.grad.numpy()


@registry.optimizers("test-foreign.Lockstep.v1")
def create_lockstep(ours: Optimizer, theirs: Optimizer) -> Optimizer:
    """Ours, with thinc's beside it: at each step thinc's gets copies of the same weights and gradients, and both have
    to come to the same.

    Two trainings side by side would be compared more simply, but a training is chaotic: after a few steps a rounding
    decides which piece of a maxout is the largest.
    """
    live, copies = {}, {}
    finish_update, step_schedules = ours.finish_update, ours.step_schedules

    def gather(model):
        for key, weights, gradient in weights_of(model):
            live[key], copies[key] = weights, (weights.copy(), weights.copy(), gradient.copy())
        finish_update(model)

    def compare():
        assert copies
        for key, (before, weights, gradient) in copies.items():
            expected, _ = theirs(key, weights, gradient)
            # A few roundings, of the weight and of the way that it goes.
            allowed = 1e-5 * norm(expected - before) + 2**-23 * norm(expected)
            assert norm(live[key] - expected) <= allowed, f"{key}, shape {before.shape}"
            if isinstance(key[0], int) and theirs.averages is not None:
                assert norm(ours.averages[key] - theirs.averages[key]) <= 1e-4 * norm(theirs.averages[key]), (
                    f"average of {key}"
                )
        live.clear()
        copies.clear()
        theirs.step_schedules()
        step_schedules()

    ours.finish_update, ours.step_schedules = gather, compare
    return ours


def test_foreign_configs_are_all_tested():
    assert {path.name for path in FOLDER.iterdir() if path.is_file()} == {*TRAINED, "README.md", FUNCTIONS.name}


@all_configs
@unscored
def test_foreign_configs_train_as_with_thinc(name, files, with_thinc, tmp_path):
    """With the drop-in: step by step the same updates, so about the same losses."""
    theirs, ours = with_thinc(name), few_steps(name, files, tmp_path, lockstep)
    # What `spacy pretrain` made is not the same to the last bit.
    tolerance = 1e-4 if name == "pretrain.cfg" else 0.0
    for component, params in theirs.before.items():
        assert torch.allclose(flat(params), flat(ours.before[component]), rtol=0.0, atol=tolerance)
    assert ours.losses[0] == pytest.approx(theirs.losses[0], rel=1e-3)
    assert ours.losses[1] == pytest.approx(theirs.losses[1], rel=0.05)


@all_configs
@unscored
def test_foreign_configs_train_with_a_torch_optimizer(name, files, with_thinc, tmp_path):
    """Every param is updated that thinc's optimizer updates, and no other; what was trained is on disk."""
    theirs, ours = with_thinc(name), few_steps(name, files, tmp_path, adamw, output=tmp_path / "out")
    assert [set(losses) for losses in ours.losses] == [set(losses) for losses in theirs.losses]
    assert len(ours.losses) == 2
    assert torch.tensor([list(losses.values()) for losses in ours.losses]).isfinite().all()
    for component, params in ours.after.items():
        moved = [not torch.equal(a, b) for a, b in zip(ours.before[component], params)]
        assert moved == [not torch.equal(a, b) for a, b in zip(theirs.before[component], theirs.after[component])], (
            component
        )
        assert any(moved) == (component in TRAINED[name]), component
        assert all(param.isfinite().all() for param in params), component
    loaded = spacy.load(tmp_path / "out" / "model-last")
    averaged = ours.nlp.config["training"]["optimizer"].get("use_averages")
    for component, params in pipeline_params(loaded).items():
        assert same(params, ours.after[component]) != (bool(averaged) and component in TRAINED[name]), component
    loaded("Anna loves old houses in London. She lives there.")


@pytest.mark.parametrize("name", ["biaffine_parser.cfg", "sourced_and_frozen.cfg"])
def test_foreign_configs_resume(name, files, tmp_path):
    """What was stopped and went on ends with the weights of what was not."""

    def config(folder):
        found = config_for(name, files, adamw)
        found["training"]["optimizer"]["checkpoint"] = {
            "@misc": "thinc-torchopt.Checkpoint.v1",
            "path": str(folder / "state"),
            "every": 2,
        }
        return found

    run(config(tmp_path / "whole"), tmp_path / "whole" / "out")
    run(config(tmp_path / "stopped"), tmp_path / "stopped" / "out", crash_at=4)
    assert sorted(run(config(tmp_path / "stopped"), tmp_path / "stopped" / "out")) == [3, 4]
    assert digests(tmp_path / "stopped" / "out") == digests(tmp_path / "whole" / "out")


def overrides(name, files):
    """What a user adds to a command, to try ours without a change to the config."""
    config = config_for(name, files)
    settings = {f"paths.{key}": path for key, path in config["paths"].items() if path is not None}
    settings["training.optimizer.@optimizers"] = drop_in(config["training"]["optimizer"])["@optimizers"]
    return [str(part) for key, value in settings.items() for part in (f"--{key}", value)]


@all_configs
def test_foreign_configs_are_listed_by_torchopt_params(name, files, with_thinc):
    flags = ("--steps", STEPS, "--json", "--code", FUNCTIONS)
    found = json.loads(spacy_cli("torchopt", "params", FOLDER / name, *overrides(name, files), *flags).stdout)
    assert not found["problem"] and not found["unmatched_patterns"]
    params = with_thinc(name).after
    assert Counter(param["component"] for param in found["params"]) == {
        name: len(values) for name, values in params.items()
    }
    trained = [param for param in found["params"] if param["frozen_until"] is not None and param["size"]]
    assert {param["component"] for param in trained} == TRAINED[name]
    assert len({param["name"] for param in found["params"]}) == sum(map(len, params.values()))


def test_foreign_configs_change_by_one_word_of_the_command(files, tmp_path):
    """`spacy train`, as a user would try it."""
    command = [
        "train",
        FOLDER / "relations.cfg",
        "--output",
        tmp_path,
        "--code",
        FUNCTIONS,
        *overrides("relations.cfg", files),
    ]
    printed = spacy_cli(*command, "--training.max_steps", STEPS, "--training.eval_frequency", STEPS)
    assert "warn" not in (printed.stdout + printed.stderr).lower()
    config = Config().from_disk(tmp_path / "model-last" / "config.cfg")
    assert config["training"]["optimizer"]["@optimizers"] == "thinc-torchopt.SGD.v1"
