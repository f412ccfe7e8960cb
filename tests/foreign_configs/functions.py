"""What some of the configs name: components, models, tokenizers and readers of their own, as projects of spaCy's users
have them.

They import spaCy, thinc and torch, and nothing of ours.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import permutations

import numpy
import torch
from spacy import Language, registry
from spacy.pipeline import TrainablePipe
from spacy.scorer import PRFScore
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.vocab import Vocab
from thinc.api import ArgsKwargs, Linear, Logistic, Model, PyTorchWrapper, chain, torch2xp, xp2torch

if not Doc.has_extension("relations"):
    Doc.set_extension("relations", default=None)


# ---------------------------------------------------------------------- a tokenizer, and a reader of corpora


class CharTokenizer:
    """Each character is a token."""

    def __init__(self, vocab: Vocab):
        self.vocab = vocab

    def __call__(self, text: str) -> Doc:
        words = [char for char in text if not char.isspace()]
        followed = [text[i + 1 : i + 2].isspace() for i, char in enumerate(text) if not char.isspace()]
        return Doc(self.vocab, words=words, spaces=followed)

    def to_bytes(self, exclude=()):
        return b""

    def from_bytes(self, data, exclude=()):
        return self

    def to_disk(self, path, exclude=()):
        pass

    def from_disk(self, path, exclude=()):
        return self


@registry.tokenizers("foreign.CharTokenizer.v1")
def create_char_tokenizer() -> Callable[[Language], CharTokenizer]:
    return lambda nlp: CharTokenizer(nlp.vocab)


@registry.readers("foreign.GoldEntities.v1")
def create_reader(path: str) -> Callable[[Language], Iterator[Example]]:
    """Docs that know their entities before they are predicted."""

    def read(nlp: Language) -> Iterator[Example]:
        for gold in DocBin().from_disk(path).get_docs(nlp.vocab):
            doc = Doc(
                nlp.vocab, words=[token.text for token in gold], spaces=[bool(token.whitespace_) for token in gold]
            )
            doc.ents = [Span(doc, ent.start, ent.end, label=ent.label) for ent in gold.ents]
            yield Example(doc, gold)

    return read


# ---------------------------------------------------------------------- relation extraction, in thinc


@registry.misc("foreign.EntityPairs.v1")
def create_pairs(max_length: int) -> Callable[[Doc], list[tuple[Span, Span]]]:
    return lambda doc: [(a, b) for a, b in permutations(doc.ents, 2) if abs(a.start - b.start) <= max_length]


@registry.architectures("foreign.Relations.v1")
def build_relation_model(
    tok2vec: Model[list[Doc], list], get_pairs: Callable[[Doc], list[tuple[Span, Span]]], nO: int | None = None
) -> Model[list[Doc], numpy.ndarray]:
    """A row for each pair of entities, a column for each label."""
    pairs = Model(
        "entity_pairs",
        forward_pairs,
        init=init_pairs,
        layers=[tok2vec],
        dims={"nO": None},
        attrs={"get_pairs": get_pairs},
    )
    output = Linear(nO=nO)
    model = chain(pairs, output, Logistic())
    model.attrs["get_pairs"] = get_pairs
    model.set_ref("output", output)
    return model


def init_pairs(model, X=None, Y=None):
    model.layers[0].initialize(X)
    model.set_dim("nO", model.layers[0].get_dim("nO") * 2)


def forward_pairs(model, docs, is_train):
    """For each pair the means of its two entities, side by side."""
    vectors, backprop_tok2vec = model.layers[0](docs, is_train)
    pairs = [model.attrs["get_pairs"](doc) for doc in docs]
    width = model.get_dim("nO") // 2
    rows = [
        model.ops.xp.hstack([vecs[a.start : a.end].mean(axis=0), vecs[b.start : b.end].mean(axis=0)])
        for vecs, found in zip(vectors, pairs)
        for a, b in found
    ]
    Y = model.ops.xp.vstack(rows) if rows else model.ops.alloc2f(0, 2 * width)

    def backprop(dY):
        d_vectors = [model.ops.alloc2f(*vecs.shape) for vecs in vectors]
        gradients = iter(dY)
        for d_vecs, found in zip(d_vectors, pairs):
            for a, b in found:
                gradient = next(gradients)
                d_vecs[a.start : a.end] += gradient[:width] / len(a)
                d_vecs[b.start : b.end] += gradient[width:] / len(b)
        return backprop_tok2vec(d_vectors)

    return Y, backprop


@Language.factory("relation_extractor", assigns=["doc._.relations"], default_score_weights={"relations_f": 1.0})
def create_relation_extractor(nlp: Language, name: str, model: Model, threshold: float):
    return RelationExtractor(nlp.vocab, model, name, threshold=threshold)


class RelationExtractor(TrainablePipe):
    """Says of pairs of entities which relations they have. `doc._.relations`: label -> probability, by the starts of
    two entities.
    """

    def __init__(self, vocab, model, name, *, threshold):
        self.vocab, self.model, self.name = vocab, model, name
        self.cfg = {"labels": [], "threshold": threshold}

    @property
    def labels(self):
        return tuple(self.cfg["labels"])

    def add_label(self, label):
        if label in self.labels:
            return 0
        if self.model.has_dim("nO"):
            raise ValueError("Can't add labels to a model that is initialized")
        self.cfg["labels"] = [*self.labels, label]
        return 1

    def initialize(self, get_examples, *, nlp=None, labels=None):
        examples = list(get_examples())
        for example in examples:
            for found in (example.reference._.relations or {}).values():
                for label in found:
                    self.add_label(label)
        docs = [example.reference for example in examples if example.reference.ents][:10]
        self.model.initialize(X=docs, Y=self.truths(examples[:10])[0])

    def predict(self, docs):
        return self.model.predict(docs)

    def set_annotations(self, docs, scores):
        rows = iter(scores)
        for doc in docs:
            pairs = self.model.attrs["get_pairs"](doc)
            doc._.relations = {(a.start, b.start): dict(zip(self.labels, map(float, next(rows)))) for a, b in pairs}

    def update(self, examples, *, drop=0.0, sgd=None, losses=None):
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        truths, docs = self.truths(examples)
        scores, backprop = self.model.begin_update(docs)
        gradient = scores - truths
        backprop(gradient)
        if sgd is not None:
            self.finish_update(sgd)
        losses[self.name] += float((gradient**2).sum())
        return losses

    def truths(self, examples):
        """What is right for each pair of the predicted docs, and these docs."""
        rows = []
        for example in examples:
            gold = example.reference._.relations or {}
            for a, b in self.model.attrs["get_pairs"](example.predicted):
                found = gold.get((a.start, b.start), {})
                rows.append([found.get(label, 0.0) for label in self.labels])
        return self.model.ops.asarray2f(numpy.array(rows, dtype="f").reshape(-1, len(self.labels))), [
            eg.predicted for eg in examples
        ]

    def score(self, examples, **kwargs):
        score = PRFScore()
        for example in examples:
            gold, predicted = (
                {
                    (pair, label)
                    for pair, found in (doc._.relations or {}).items()
                    for label in found
                    if found[label] > self.cfg["threshold"]
                }
                for doc in (example.reference, example.predicted)
            )
            score.score_set(predicted, gold)
        return {"relations_p": score.precision, "relations_r": score.recall, "relations_f": score.fscore}


# ---------------------------------------------------------------------- torch modules over the tokens of docs


def pad(model, vectors, is_train):
    """Arrays of docs, as one tensor and a mask: True where there is no token."""
    tensors = [xp2torch(array, requires_grad=is_train) for array in vectors]
    X = torch.nn.utils.rnn.pad_sequence([tensor.detach() for tensor in tensors], batch_first=True).requires_grad_(
        is_train
    )
    lengths = torch.tensor([len(tensor) for tensor in tensors])
    mask = (torch.arange(X.shape[1])[None, :] >= lengths[:, None]).to(X.device)

    def backprop(d_inputs):
        d_X = torch2xp(d_inputs.args[0])
        return [d_X[i, : len(array)] for i, array in enumerate(vectors)]

    return ArgsKwargs(args=(X, mask), kwargs={}), backprop


def unpad(model, inputs_outputs, is_train):
    """A tensor, as the arrays of docs."""
    vectors, Y_torch = inputs_outputs
    Y = torch2xp(Y_torch)
    lengths = [len(array) for array in vectors]

    def backprop(d_arrays):
        d_Y = model.ops.alloc(Y.shape)
        for i, (length, array) in enumerate(zip(lengths, d_arrays)):
            d_Y[i, :length] = array
        return ArgsKwargs(args=((Y_torch,),), kwargs={"grad_tensors": xp2torch(d_Y)})

    return [Y[i, :length] for i, length in enumerate(lengths)], backprop


class Encoder(torch.nn.Module):
    """A small transformer. Nobody uses its pooler, as nobody uses BERT's."""

    def __init__(self, width: int, depth: int, heads: int, max_length: int = 128):
        super().__init__()
        self.position = torch.nn.Embedding(max_length, width)
        layer = torch.nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = torch.nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.pooler = torch.nn.Linear(width, width)

    def forward(self, X, mask):
        return self.encoder(X + self.position(torch.arange(X.shape[1], device=X.device)), src_key_padding_mask=mask)


@registry.architectures("foreign.TorchEncoder.v1")
def build_encoder(embed: Model[list[Doc], list], width: int, depth: int, heads: int) -> Model[list[Doc], list]:
    layer = PyTorchWrapper(Encoder(width, depth, heads), convert_inputs=pad, convert_outputs=unpad)
    model = chain(embed, layer)
    model.set_dim("nO", width)
    return model


class Biaffine(torch.nn.Module):
    """How well each token (a column) is the head of each (a row)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.head = torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.LayerNorm(hidden), torch.nn.GELU())
        self.dependent = torch.nn.Sequential(
            torch.nn.Linear(width, hidden), torch.nn.LayerNorm(hidden), torch.nn.GELU()
        )
        self.weight = torch.nn.Parameter(torch.empty(hidden, hidden))
        self.prior = torch.nn.Parameter(torch.zeros(hidden))
        torch.nn.init.xavier_uniform_(self.weight)

    def forward(self, X, mask):
        heads = self.head(X)
        scores = (self.dependent(X) @ self.weight + self.prior) @ heads.transpose(1, 2)
        return scores.masked_fill(mask[:, None, :], -1e4)


@registry.architectures("foreign.Biaffine.v1")
def build_biaffine(tok2vec: Model[list[Doc], list], hidden: int) -> Model[list[Doc], list]:
    """The torch module is built when the width is known."""
    return Model("biaffine", forward_biaffine, init=init_biaffine, layers=[tok2vec], attrs={"hidden": hidden})


def init_biaffine(model, X=None, Y=None):
    tok2vec = model.layers[0]
    tok2vec.initialize(X)
    if len(model.layers) == 1:
        module = Biaffine(tok2vec.get_dim("nO"), model.attrs["hidden"])
        model.layers.append(PyTorchWrapper(module, convert_inputs=pad, convert_outputs=unpad))


def forward_biaffine(model, docs, is_train):
    tok2vec, scorer = model.layers
    vectors, backprop_tok2vec = tok2vec(docs, is_train)
    scores, backprop_scorer = scorer(vectors, is_train)
    lengths = [len(doc) for doc in docs]

    def backprop(d_scores):
        widest = max(lengths)
        wide = [model.ops.xp.pad(array, ((0, 0), (0, widest - array.shape[1]))) for array in d_scores]
        return backprop_tok2vec(backprop_scorer(wide))

    return [array[:, :length] for array, length in zip(scores, lengths)], backprop


@Language.factory("biaffine_parser", assigns=["token.head"], default_score_weights={"heads_acc": 1.0})
def create_biaffine_parser(nlp: Language, name: str, model: Model):
    return BiaffineParser(nlp.vocab, model, name)


class BiaffineParser(TrainablePipe):
    """Finds the head of each token, whatever tree that makes."""

    def __init__(self, vocab, model, name):
        self.vocab, self.model, self.name, self.cfg = vocab, model, name, {}

    def initialize(self, get_examples, *, nlp=None):
        init_biaffine(self.model, [example.reference for example in get_examples()][:10])

    def from_disk(self, path, exclude=()):
        self.initialize(lambda: [Example(doc := Doc(self.vocab, words=["a"]), doc)])
        return super().from_disk(path, exclude=exclude)

    def predict(self, docs):
        return [scores.argmax(axis=1) for scores in self.model.predict(docs)]

    def set_annotations(self, docs, heads):
        for doc, found in zip(docs, heads):
            doc.user_data["heads"] = [int(head) for head in found]

    def update(self, examples: Iterable[Example], *, drop=0.0, sgd=None, losses=None):
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        scores, backprop = self.model.begin_update([example.predicted for example in examples])
        gradients, total = [], sum(map(len, scores))
        for example, found in zip(examples, scores):
            probabilities = numpy.exp(found - found.max(axis=1, keepdims=True))
            probabilities /= probabilities.sum(axis=1, keepdims=True)
            for row, head in enumerate(example.get_aligned_parse()[0]):
                if head is None:
                    probabilities[row] = 0.0
                else:
                    losses[self.name] -= float(numpy.log(probabilities[row, head] + 1e-10)) / total
                    probabilities[row, head] -= 1.0
            gradients.append(probabilities / total)
        backprop(gradients)
        if sgd is not None:
            self.finish_update(sgd)
        return losses

    def score(self, examples, **kwargs):
        pairs = [
            pair
            for example in examples
            for pair in zip(example.predicted.user_data["heads"], example.get_aligned_parse()[0])
            if pair[1]
        ]
        return {"heads_acc": sum(a == b for a, b in pairs) / max(len(pairs), 1)}


# ---------------------------------------------------------------------- augmentation


@registry.augmenters("foreign.Shout.v1")
def create_shouting(level: float) -> Callable[[Language, Example], Iterator[Example]]:
    """Some texts once more, in capitals."""

    def augment(nlp: Language, example: Example) -> Iterator[Example]:
        yield example
        if random.random() < level:
            gold = example.to_dict()
            gold["token_annotation"]["ORTH"] = [token.text.upper() for token in example.reference]
            yield example.from_dict(nlp.make_doc(example.text.upper()), gold)

    return augment
