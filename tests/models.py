"""Small models, pipelines and training data for the tests."""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from itertools import islice
from typing import Any

import numpy
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example
from thinc.api import Linear, Maxout, Model, PyTorchWrapper, chain, fix_random_seed
from thinc.util import to_numpy

from .conftest import SHARED

# Of tok2vecs so small that it takes no time to train, save and load.
WIDTH = 16
TOK2VEC = {
    "@architectures": "spacy.HashEmbedCNN.v2",
    "width": WIDTH,
    "depth": 2,
    "embed_size": 100,
    "window_size": 1,
    "maxout_pieces": 2,
    "subword_features": True,
    "pretrained_vectors": None,
}
LISTENER = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "*"}


def thinc_model(width: int = 6) -> Model:
    """Linear, LayerNorm and Maxout layers, initialized."""
    model = chain(Linear(width, 5), Maxout(nO=width, nI=width, nP=2, normalize=True), Linear(3, width))
    model.initialize()
    return model


def torch_model(width: int = 6) -> Model:
    """A torch module in a thinc layer."""
    module = torch.nn.Sequential(
        torch.nn.Linear(5, width), torch.nn.LayerNorm(width), torch.nn.GELU(), torch.nn.Linear(width, 3)
    )
    return PyTorchWrapper(module)


def mixed_model() -> Model:
    """A thinc layer below a torch module."""
    model = chain(Linear(5, 5), torch_model())
    model.initialize()
    return model


def backprop(model: Model, rng: numpy.random.Generator, *, scale: float = 1.0) -> None:
    """One forward and backward pass over random data: gradients pile up in the model."""
    X = model.ops.asarray(rng.normal(size=(7, 5)).astype("f"))
    Y, back = model.begin_update(X)
    back((Y - model.ops.asarray(rng.normal(size=Y.shape).astype("f"))) * numpy.float32(scale))


def slots(model: Model) -> Iterator[tuple[Any, Any]]:
    """Each param of a model with its gradient (None if it has none), thinc's arrays and torch's params."""
    for node in model.walk():
        for shim in node.shims if not node.shims or node.shims[0]._model is not None else ():
            yield from ((param, param.grad) for param in shim._model.parameters())
        for name in node.param_names:
            yield node.get_param(name), node.get_grad(name) if node.has_grad(name) else None


def snapshot(values: Iterable[Any]) -> list[torch.Tensor]:
    """Copies, as tensors of the CPU."""
    return [
        (v.detach().cpu() if isinstance(v, torch.Tensor) else torch.from_numpy(to_numpy(v))).clone() for v in values
    ]


def params_of(model: Model) -> list[torch.Tensor]:
    """Copies of all params."""
    return snapshot(param for param, _ in slots(model))


def grads_of(model: Model) -> list[torch.Tensor]:
    """Copies of all gradients that there are."""
    return snapshot(grad for _, grad in slots(model) if grad is not None)


def pipeline_params(nlp: Language) -> dict[str, list[torch.Tensor]]:
    """Copies of all params by component."""
    return {
        name: params_of(proc.model) for name, proc in nlp.pipeline if isinstance(getattr(proc, "model", None), Model)
    }


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Whether tensors are bit-identical."""
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right))


def same_tree(one: Any, other: Any) -> bool:
    """Whether dicts, lists and values are equal, and of the same types; tensors are bit-identical."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_tree(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_tree, one, other))
    return bool(one == other or (one != one and other != other))  # NaN


def toy_examples(nlp: Language, n: int = 12) -> list[Example]:
    """Sentences with tags, a tree, entities and a category."""
    examples = []
    for i in range(n):
        words = ["Anna", "likes", "red" if i % 2 else "blue", "London", "."][: 4 + i % 2]
        gold = {
            "tags": ["NNP", "VBZ", "JJ", "NNP", "."][: len(words)],
            "morphs": ["Number=Sing", "Tense=Pres", "", "Number=Sing", ""][: len(words)],
            "spans": {"sc": [(0, 4, "X")]},
            "heads": [1, 1, 3, 1, 1][: len(words)],
            "deps": ["nsubj", "ROOT", "amod", "dobj", "punct"][: len(words)],
            "entities": ["U-PERSON", "O", "O", "U-CITY", "O"][: len(words)],
            "cats": {"RED": float(i % 2), "BLUE": float(1 - i % 2)},
        }
        examples.append(Example.from_dict(Doc(nlp.vocab, words=words), gold))
    return examples


def toy_pipeline(components: Iterable[str] = ("tagger", "ner"), *, shared: bool = True) -> Language:
    """A pipeline, not initialized. `shared`: with one tok2vec for all."""
    nlp = spacy.blank("xx")
    if shared:
        nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    for name in components:
        if "model" not in nlp.get_factory_meta(name).default_config:  # a test's own
            nlp.add_pipe(name)
            continue
        model = {"tok2vec": LISTENER if shared and not name.startswith("textcat") else TOK2VEC}
        if name.startswith("textcat"):
            model["linear_model"] = {"length": 4096}
        # A label that is seen less often than 30 times is no label to the parser otherwise.
        nlp.add_pipe(name, config={"model": model} | ({"min_action_freq": 1} if name == "parser" else {}))
    return nlp


def pipeline_of(**models: Model) -> Language:
    """A pipeline of components with these models, by their names."""
    nlp = spacy.blank("xx")
    for name, model in models.items():
        nlp.add_pipe("tagger", name=name).model = model  # type: ignore[attr-defined]
    return nlp


def ready_pipeline(*args: Any, n: int = 12, sgd: Any = None, **options: Any) -> tuple[Language, list[Example]]:
    """A `toy_pipeline` that was initialized on so many toy examples; and these."""
    nlp = toy_pipeline(*args, **options)
    examples = toy_examples(nlp, n)
    nlp.initialize(lambda: examples, sgd=sgd)
    return nlp, examples


def optimizer_for(nlp: Language, *args: Any, exclude: Collection[str] = (), **settings: Any) -> Any:
    """One that knows the params of a pipeline."""
    from thinc_torchopt import TorchOptimizer  # some tests use this file without it

    optimizer = TorchOptimizer(*args, **settings)
    optimizer.initialize(nlp, exclude)
    return optimizer


def finish_step(nlp: Language, optimizer: Any) -> None:
    """One step for the whole pipeline, with the gradients that there are."""
    with optimizer.joint_step():
        for _, pipe in nlp.pipeline:
            pipe.finish_update(optimizer)  # type: ignore[attr-defined]


@cache
def initialized(make: Callable[[], Language]) -> bytes:
    """A pipeline that was initialized on toy examples: to load it takes a fifth of the time."""
    fix_random_seed(1)
    nlp = make()
    nlp.initialize(lambda: toy_examples(nlp))
    return nlp.to_bytes()


def treebank(nlp: Language, n: int, *, split: str = "train") -> list[Example]:
    """The first sentences of the treebank, with fresh predicted docs. Its documents are long, which the parser's oracle
    takes ill.
    """
    docs = DocBin().from_disk(SHARED / "data" / f"ud-english-ewt-{split}.spacy").get_docs(nlp.vocab)
    gold = islice((sentence.as_doc() for doc in docs for sentence in doc.sents), n)
    return [
        Example(Doc(nlp.vocab, words=[t.text for t in doc], spaces=[bool(t.whitespace_) for t in doc]), doc)
        for doc in gold
    ]
