"""Pipelines and batches for several ranks, the same in each process."""

import random

import spacy
import torch
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Model, PyTorchWrapper, Softmax, chain, fix_random_seed, warmup_linear, with_array
from thinc.util import to_numpy

from tests.models import LISTENER, TOK2VEC, WIDTH
from thinc_torchopt import TorchOptimizer
from thinc_torchopt.addons.distributed.settings import Distributed
from thinc_torchopt.core.algorithms.torch_classes import AdamW

# Components whose gradients are sums over the examples of a batch: of two batches together, they are those of each.
ADDITIVE = ("tagger", "morphologizer", "senter", "textcat_multilabel", "trainable_lemmatizer")
TAGS = ["A", "B", "C", "D"]
STEPS = 7


def examples(nlp, n, seed):
    """Sentences of random words, of different lengths, with all kinds of annotations that follow from the words."""
    rng, found = random.Random(seed), []
    for _ in range(n):
        ids = [rng.randrange(40) for _ in range(rng.randint(2, 12))]
        words = [f"w{i}" for i in ids]
        gold = {
            "tags": [TAGS[i % 4] for i in ids],
            "morphs": [f"Case={TAGS[i % 3]}" for i in ids],
            "lemmas": [word if i % 2 else word + "x" for i, word in zip(ids, words)],
            "sent_starts": [1] + [0] * (len(ids) - 1),
            "heads": [0] * len(ids),
            "deps": ["ROOT"] + [f"d{i % 3}" for i in ids[1:]],
            "entities": [("O", "U-X", "U-Y")[i % 3] for i in ids],
            "cats": {"ODD": float(ids[0] % 2), "BIG": float(ids[0] > 20)},
        }
        found.append(Example.from_dict(Doc(nlp.vocab, words=words), gold))
    return found


def pipeline(components=ADDITIVE):
    """With one tok2vec for all."""
    fix_random_seed(0)
    nlp = spacy.blank("xx")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    for name in components:
        if name.startswith("torch"):
            model = {"@architectures": "test-distributed.TorchTagger.v1", "batch_norm": name == "torch_norm"}
            nlp.add_pipe("tagger", config={"model": model})
        elif name == "textcat_multilabel":
            model = {
                "@architectures": "spacy.TextCatReduce.v1",
                "tok2vec": LISTENER,
                "exclusive_classes": False,
                "use_reduce_first": True,
                "use_reduce_last": False,
                "use_reduce_max": True,
                "use_reduce_mean": True,
            }
            nlp.add_pipe(name, config={"model": model})
        else:
            config = {"model": {"tok2vec": LISTENER}}
            nlp.add_pipe(name, config=config | ({"min_action_freq": 1} if name == "parser" else {}))
    gold = examples(nlp, 60, 1)
    nlp.initialize(lambda: gold)
    return nlp


def no_dropout(ops, shape, drop):
    """For `NumpyOps.get_dropout_mask`: parsers drop a part of their hidden layer also where nothing else is dropped."""
    return ops.alloc(shape) + 1


def recurrent(learning):
    """An exact recurrent layer, in both directions, above embeddings."""
    embed = {"@architectures": "spacy.MultiHashEmbed.v2", "width": 32, "attrs": ["NORM"], "rows": [100]}
    encode = {"@architectures": "thinc-torchopt.OnlineRNNEncoder.v1", "width": 32, "cell": "mingru"}
    tok2vec = {
        "@architectures": "spacy.Tok2Vec.v2",
        "embed": {**embed, "include_static_vectors": False},
        "encode": {**encode, "learning": learning, "traces": "forward", "bidirectional": True},
    }
    fix_random_seed(0)
    nlp = spacy.blank("xx")
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec}})
    gold = examples(nlp, 60, 1)
    nlp.initialize(lambda: gold)
    return nlp


@spacy.registry.architectures("test-distributed.TorchTagger.v1")
def torch_tagger(batch_norm: bool = False) -> Model:
    """A torch encoder above the tok2vec of the pipeline."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(WIDTH) if batch_norm else torch.nn.LayerNorm(WIDTH)
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), norm, torch.nn.GELU(), torch.nn.Linear(WIDTH, 16))
    listener = spacy.registry.resolve({"listener": LISTENER})["listener"]
    model = chain(listener, with_array(PyTorchWrapper(module)), with_array(Softmax(nI=16)))
    model.set_ref("tok2vec", listener)
    return model


def optimizer(**settings):
    """With clipping, averages, groups and schedules on."""
    options = {
        "grad_clip": 1.0,
        "use_averages": True,
        "param_groups": {"low": {"params": ["tok2vec/*"], "lr_scale": 0.5, "weight_decay": 0.1}},
        "skip_decay": "bias_and_norm",
    }
    return TorchOptimizer(
        AdamW(weight_decay=0.01),
        **{**options, "learn_rate": warmup_linear(0.02, 3, 20), "distributed": Distributed(check_every=2)} | settings,
    )


def modular(parts, **settings):
    """An optimizer of modules, whose ranks are compared after each step."""
    modules = {name: {"@gradient_modules": f"thinc-torchopt.{name}.v1", **options} for name, options in parts.items()}
    algorithm = {"@torch_optimizers": "thinc-torchopt.Modular.v1", "modules": modules, **settings}
    block = {"@optimizers": "thinc-torchopt.TorchOptimizer.v1", "learn_rate": 0.02, "algorithm": algorithm}
    optimizer = spacy.registry.resolve({"optimizer": block})["optimizer"]
    optimizer.attachments["distributed"] = Distributed(check_every=1)
    return optimizer


def modular_words():
    pull = {"l2-sp": {"@regularizers": "thinc-torchopt.L2SP.v1", "alpha": 0.1}}
    return modular({"L2GlobalClipping": {}, "Lookahead": {"k": 2}}, normalize="words", regularizers=pull)


def batches(nlp, n=2 * STEPS, size=8):
    """Epoch and batch of each step, for two ranks: the last group of an epoch is a single batch."""
    rest = examples(nlp, n * size, 2)
    return [(i // (n - 1), rest[i * size : (i + 1) * size]) for i in range(n)]


def weights(nlp):
    """Copies of all params, by place."""
    found = {}
    for name, pipe in nlp.pipeline:
        if not isinstance(getattr(pipe, "model", None), Model):
            continue
        for i, node in enumerate(pipe.model.walk()):
            for param in node.param_names:
                found[f"{name}/{i}/{param}"] = torch.from_numpy(to_numpy(node.get_param(param)).copy())
            for shim in node.shims:
                for key, value in shim._model.state_dict().items():
                    found[f"{name}/{i}/{key}"] = value.detach().cpu().clone()
    return found
