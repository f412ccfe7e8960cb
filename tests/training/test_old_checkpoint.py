"""A checkpoint that version 0.1 wrote is read for ever: tests/data/checkpoint-0.1 (its README tells how it was made).

The oracle: the weights with which version 0.1 ended, when it had not stopped.
"""

import io
import shutil

import pytest
import spacy
import torch
from confection import Config
from safetensors.torch import load_file
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as spacy_train

from thinc_torchopt.errors import StateError
from thinc_torchopt.state.files import read_folder, write_folder
from thinc_torchopt.training.checkpoint_folder import VERSION

from ..conftest import DATA

OLD = DATA / "checkpoint-0.1"

CONFIG = """
[paths]
train = null
state = null

[nlp]
lang = "en"
pipeline = ["tagger"]

[components]

[components.tagger]
factory = "tagger"

[components.tagger.model]
@architectures = "spacy.Tagger.v2"

[components.tagger.model.tok2vec]
@architectures = "spacy.HashEmbedCNN.v2"
width = 8
depth = 1
embed_size = 24
window_size = 1
maxout_pieces = 2
subword_features = false
pretrained_vectors = null

[corpora]

[corpora.train]
@readers = "spacy.Corpus.v1"
path = ${paths.train}

[corpora.dev]
@readers = "spacy.Corpus.v1"
path = ${paths.train}

[training]
seed = 0
gpu_allocator = null
max_steps = 12
eval_frequency = 4

[training.batcher]
@batchers = "spacy.batch_by_sequence.v1"
size = 6

[training.optimizer]
@optimizers = "thinc-torchopt.TorchOptimizer.v1"
use_averages = true
skip_decay = "bias_and_norm"
spike_factor = 4.0

[training.optimizer.checkpoint]
@misc = "thinc-torchopt.Checkpoint.v1"
path = ${paths.state}
every = 3

[training.optimizer.algorithm]
@torch_optimizers = "torch.AdamW.v1"
weight_decay = 0.05

[training.optimizer.learn_rate]
@schedules = "thinc-torchopt.warmup_linear.v1"
initial_rate = 0.05
warmup_steps = 4
total_steps = 20

[training.optimizer.param_groups]

[training.optimizer.param_groups.embeddings]
params = ["*/embed/*"]
lr_scale = 0.5
"""


def train(folder):
    """Train the pipeline, or go on with it, with the checkpoints in `folder/state`. RETURNS: params, and their
    averages.
    """
    nlp = spacy.blank("en")
    words, tags = ["Anna", "likes", "red", "London", "boats", "."], ["NNP", "VBZ", "JJ", "NNP", "NNS", "."]
    docs = [Doc(nlp.vocab, words=words[i % 4 : 6 - i % 2], tags=tags[i % 4 : 6 - i % 2]) for i in range(30)]
    DocBin(docs=docs).to_disk(folder / "train.spacy")
    config = Config().from_str(CONFIG, interpolate=False)
    config["paths"] = {"train": str(folder / "train.spacy"), "state": str(folder / "state")}
    (folder / "out").mkdir()
    nlp, path = spacy_train(init_nlp(config.interpolate()), folder / "out", stdout=io.StringIO(), stderr=io.StringIO())
    return {
        f"{kind}:{i}:{name}": torch.from_numpy(node.get_param(name).copy())
        for kind, trained in (("params", nlp), ("averages", spacy.load(path)))
        for i, node in enumerate(trained.get_pipe("tagger").model.walk())
        for name in node.param_names
    }


def test_old_checkpoint_goes_on_to_the_same_end(tmp_path, caplog):
    """To the last bit where it was written. Another processor may round differently: by 2e-7 with torch's kernels for
    old ones.
    """
    shutil.copytree(OLD, tmp_path / "state", ignore=shutil.ignore_patterns("README.md", "end.safetensors"))
    found, expected = train(tmp_path), load_file(OLD / "end.safetensors")
    assert "Resuming after step 6" in caplog.text
    assert found.keys() == expected.keys() and len(found) > 10
    for name, tensor in expected.items():
        assert torch.linalg.vector_norm(found[name] - tensor) <= 1e-5 * torch.linalg.vector_norm(tensor), name


def copy_with(folder, step=6, **changes):
    """A copy of the old checkpoint with other parts. None: without that part."""
    tree = {**read_folder(OLD / "step-00000006"), **changes}
    write_folder(folder / "state" / f"step-{step:08d}", {name: part for name, part in tree.items() if part is not None})


def test_checkpoint_of_a_newer_version_is_refused_and_not_passed_over(tmp_path):
    """Whatever else is in it: the next older one would lose what was trained since."""
    copy_with(tmp_path)
    write_folder(tmp_path / "state" / "step-00000009", {"version": VERSION + 1, "what": "is not known"})
    with pytest.raises(
        StateError, match=rf"expected at most version {VERSION}, found version {VERSION + 1}. It was written by a newer"
    ):
        train(tmp_path)


def test_checkpoint_without_parts_that_came_later_is_read(tmp_path, caplog):
    """What the first versions did not write at all: values of variables, labels; and some of the progress."""
    progress = read_folder(OLD / "step-00000006")["progress"]
    copy_with(
        tmp_path,
        values=None,
        identity=None,
        progress={"step": 6, "results": progress["results"], "losses": progress["losses"]},
    )
    found, expected = train(tmp_path), load_file(OLD / "end.safetensors")
    assert "Resuming after step 6" in caplog.text
    assert all(torch.allclose(found[name], tensor, rtol=1e-4) for name, tensor in expected.items())


def test_checkpoint_says_its_version(tmp_path):
    copy_with(tmp_path)
    train(tmp_path)
    assert "version" not in read_folder(OLD / "step-00000006")
    assert read_folder(tmp_path / "state" / "step-00000012")["version"] == VERSION
