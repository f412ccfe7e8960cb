"""The layers of thinc and spaCy whose gradients can be told apart by example, and how.

A form runs a layer forward. Its backward pass gives the same gradient to the layer below as the layer's own, but
records what the gradients of its params are made of (see records.py) and does not compute them. Layers are known by
their forward function. `FORMS` has those of spaCy's own architectures: a layer that is not in it is refused by name.

Most layers have no params, and keep rows as they are (`keep_rows`) or run other layers (`run_layers`). Lists with one
array per example, and `Ragged` arrays, say themselves which rows are whose.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from spacy.attrs import ORTH
from spacy.vectors import Mode
from thinc.api import Ragged, get_width

from ...core.errors import ParamError
from ...core.host import forward_of

# A layer. thinc's types for arrays are too narrow for what is done here.
Node = Any
# The `Book` of book.py, which runs forms.
Book = Any
Forward = Callable[..., Any]
Form = Callable[[Book, Forward, Node, Any, bool], tuple[Any, Callable[..., Any]]]


# ---------------------------------------------------------------------- layers without params


def run_layers(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    """A layer that runs others. An array that it returns has the rows of the last one's."""
    Y, backprop = forward(model, X, is_train)
    book.claim(Y)
    return Y, backprop


def keep_rows(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    """A layer that treats each row by itself."""
    Y, backprop = forward(model, X, is_train)
    if book.is_array(X):  # then Y is one, too: dropout takes lists as well, and returns what it got
        book.tell(Y, book.rows_of(model, X))
    return Y, backprop


def keep_examples(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    """A layer that treats each example by itself, and returns a list or `Ragged`."""
    return forward(model, X, is_train)


def one_row_each(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    """A layer that makes one row of each example."""
    rows = book.rows_by(model, [1] * len(X.lengths))
    Y, backprop = forward(model, X, is_train)
    book.tell(Y, rows)
    return Y, backprop


def with_array(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    """Lists get twice the padding: with thinc's, an example's last rows and the first ones of the next share it."""
    layer, pad = model.layers[0], 2 * model.attrs["pad"]
    if book.is_array(X):
        return run_layers(book, forward, model, X, is_train)
    if isinstance(X, Ragged):
        data, of_ragged = X.dataXd, X.lengths  # data is another object each time
        book.tell(data, book.rows_by(model, of_ragged))
        Y, backprop_layer = layer(data, is_train)
        return Ragged(Y, of_ragged), lambda dY: Ragged(backprop_layer(dY.dataXd), of_ragged)
    if not isinstance(X, (list, tuple)):
        raise ParamError(
            f"Can't clip the gradient of each example: layer '{model.name}' got an input of type {type(X).__name__}, "
            "which private training does not support. Use a layer that takes lists, as spaCy's own layers do."
        )
    lengths = [len(x) for x in X]
    flat = layer.ops.flatten(X, pad=pad)
    book.tell(flat, book.rows_by(model, lengths, pad=pad))
    Y, backprop_layer = layer(flat, is_train)

    def backprop(dYs: Any) -> Any:
        return layer.ops.unflatten(backprop_layer(layer.ops.flatten(dYs, pad=pad)), lengths, pad=pad)

    return layer.ops.unflatten(Y, lengths, pad=pad), backprop


def expand_window(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    Y, backprop = forward(model, X, is_train)
    if book.is_array(X):
        rows, window = book.rows_of(model, X), model.attrs["window_size"]
        _check_pad(model, window, rows.reach)
        book.tell(Y, rows.after(window))
    return Y, backprop


def check_windows(model: Node) -> None:
    """Check the padding of all windows in a model, as far as it is known before the first batch.

    RAISES (ParamError): A window would reach into the next example.
    """
    if FORMS.get(forward_of(model)) is with_array:
        _check_pad(model, _reach_of(model.layers[0]), model.attrs["pad"])
    else:
        for layer in model.layers:
            check_windows(layer)


def _reach_of(model: Node) -> int:
    """How many neighbours on each side a layer mixes into a row."""
    forward = forward_of(model)
    if FORMS.get(forward) is expand_window:
        return int(model.attrs["window_size"])
    parts = [_reach_of(layer) for layer in model.layers]
    return max(parts) if forward in _SIDE_BY_SIDE else sum(parts)


def _check_pad(model: Node, expected: int, found: int) -> None:
    """RAISES (ParamError): There is too little padding."""
    if found < expected:
        raise ParamError(
            f"Can't clip the gradient of each example: layer '{model.name}' mixes tokens of one example with those "
            f"of the next: expected padding of at least {expected} rows, found {found}. Give the with_array "
            "around it a 'pad' of the number of layers times the window."
        )


# ---------------------------------------------------------------------- layers with params


def linear(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    return _affine(book, model, X, lambda Y: (Y, lambda dY: dY))


def softmax(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    ops, temperature = model.ops, model.attrs["softmax_temperature"]
    return _affine(book, model, X, lambda Y: (ops.softmax(Y, temperature=temperature), lambda dY: dY / temperature))


def relu(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    def activate(before: Any) -> Any:
        Y = model.ops.relu(before)
        return Y, lambda dY: model.ops.backprop_relu(dY, Y)

    return _affine(book, model, X, activate)


def gelu(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    ops = model.ops
    return _affine(book, model, X, lambda Y: (ops.gelu(Y), lambda dY: ops.backprop_gelu(dY, Y)))


def _affine(book: Book, model: Node, X: Any, activate: Callable[[Any], Any]) -> Any:
    """A matrix product with a bias, and an activation with its backward pass."""
    rows, ops, W = book.rows_of(model, X), model.ops, model.get_param("W")
    before = ops.gemm(X, W, trans2=True)
    before += model.get_param("b")
    Y, backprop_activation = activate(before)
    book.tell(Y, rows)

    def backprop(dY: Any) -> Any:
        dY = backprop_activation(dY)
        book.record_product(model, rows, X, dY)
        return ops.gemm(dY, W)

    return Y, backprop


def maxout(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    rows, ops = book.rows_of(model, X), model.ops
    nO, nP, nI = (model.get_dim(name) for name in ("nO", "nP", "nI"))
    W = ops.reshape2f(model.get_param("W"), nO * nP, nI)
    pieces = ops.gemm(X, W, trans2=True)
    pieces += ops.reshape1f(model.get_param("b"), nO * nP)
    Y, which = ops.maxout(ops.reshape3f(pieces, len(pieces), nO, nP))
    book.tell(Y, rows)

    def backprop(dY: Any) -> Any:
        d_pieces = ops.reshape2f(ops.backprop_maxout(dY, which, nP), len(dY), nO * nP)
        book.record_product(model, rows, X, d_pieces)
        return ops.gemm(d_pieces, W)

    return Y, backprop


def layernorm(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    rows, G, width = book.rows_of(model, X), model.get_param("G"), get_width(X)
    centered = X - X.mean(axis=1, keepdims=True)
    scale = (X.var(axis=1, keepdims=True) + 1e-08) ** -0.5
    normed = centered * scale
    Y = normed * G
    Y += model.get_param("b")
    book.tell(Y, rows)

    def backprop(dY: Any) -> Any:
        for name, terms in (("b", dY), ("G", dY * normed)):
            book.record_terms(model, name, rows, terms)
        dY = dY * G
        mean = dY.sum(axis=1, keepdims=True) / width
        along = (dY * normed).sum(axis=1, keepdims=True) / width
        return (dY - mean - normed * along) * scale

    return Y, backprop


def hashembed(book: Book, forward: Forward, model: Node, ids: Any, is_train: bool) -> Any:
    rows, ops, E = book.rows_of(model, ids), model.ops, model.get_param("E")
    if len(ids) == 0:
        Y = ops.alloc2f(0, E.shape[1])
        book.tell(Y, rows)
        return Y, lambda dY: ids
    keys = ops.hash(ops.as_contig(ids, dtype="uint64"), model.attrs["seed"]) % E.shape[0]
    Y = ops.gather_add(E, keys)
    mask = ops.get_dropout_mask((Y.shape[1],), model.attrs.get("dropout_rate"))
    if mask is not None:
        Y *= mask
    book.tell(Y, rows)

    def backprop(dY: Any) -> Any:
        book.record_lookup(model, rows, keys, dY if mask is None else dY * mask)
        return ops.alloc1i(len(keys))

    return Y, backprop


def charembed(book: Book, forward: Forward, model: Node, docs: Any, is_train: bool) -> Any:
    """spaCy's table has one part for each character of a token: (nC, nV, nM). Its own gradient counts a character that
    several tokens of a doc have once; here each of them counts.
    """
    ops, (nC, nV, nM) = model.ops, model.get_param("E").shape
    rows = book.rows_by(model, [len(doc) * nC for doc in docs])
    Y, _ = forward(model, docs, is_train)
    keys = ops.flatten([ops.asarray(doc.to_utf8_array(nr_char=nC)) for doc in docs]).astype("int64")
    keys = (keys + ops.xp.arange(nC) * nV).ravel()[:, None]

    def backprop(dYs: Any) -> Any:
        book.record_lookup(model, rows, keys, ops.flatten(dYs).reshape(len(keys), nM), size=nC * nV)
        return []

    return Y, backprop


def static_vectors(book: Book, forward: Forward, model: Node, docs: Any, is_train: bool) -> Any:
    """An unknown word has zeros in the output, and the last vector in the gradient, as in spaCy's own."""
    ops, W, rows = model.ops, model.ops.as_contig(model.get_param("W")), book.rows_by(model, [len(doc) for doc in docs])
    if not len(rows):
        return Ragged(ops.alloc2f(0, W.shape[0]), ops.alloc1i(len(docs))), lambda dY: []
    vectors = docs[0].vocab.vectors
    keys = ops.flatten([doc.to_array(getattr(vectors, "attr", ORTH)) for doc in docs])
    if getattr(vectors, "mode", None) == Mode.default:
        found = vectors.find(keys=keys)
        V = ops.as_contig(ops.asarray(vectors.data)[found])
    else:
        found, V = None, ops.as_contig(vectors.get_batch(keys))
    Y = ops.gemm(V, W, trans2=True)
    if found is not None:
        Y[found < 0] = 0
    mask = ops.get_dropout_mask((W.shape[0],), model.attrs.get("dropout_rate"))
    if mask is not None:
        Y *= mask

    def backprop(dY: Ragged) -> list[Any]:
        book.record_product(model, rows, V, dY.data if mask is None else dY.data * mask)
        return []

    return Ragged(Y, ops.asarray1i([len(doc) for doc in docs])), backprop


def attention(book: Book, forward: Forward, model: Node, X: Any, is_train: bool) -> Any:
    """thinc's ParametricAttention, whose query is a param; and the second version, with a layer for keys."""
    ops, Q, lengths, data = model.ops, model.get_param("Q"), X.lengths, X.dataXd
    rows, keys, backprop_keys = book.rows_by(model, lengths), data, lambda d_keys: d_keys
    if model.layers:
        book.tell(data, rows)
        keys, backprop_keys = model.layers[0](data, is_train)
    weights = ops.softmax_sequences(ops.gemm(keys, ops.reshape2f(Q, len(Q), 1)), lengths)

    def backprop(dY: Ragged) -> Ragged:
        d_weights = (data * dY.dataXd).sum(axis=1, keepdims=True)
        d_scores = ops.backprop_softmax_sequences(d_weights, weights, lengths)
        book.record_terms(model, "Q", rows, keys * d_scores)
        return Ragged(dY.dataXd * weights + backprop_keys(ops.xp.outer(d_scores, Q)), lengths)

    return Ragged(data * weights, lengths), backprop


# ---------------------------------------------------------------------- all


def _forwards(names: str) -> list[Forward]:
    """Forward functions by the names of their modules. Where thinc's package has a function of a module's name, the
    module is hidden from `from ... import`."""
    return [import_module(name).forward for name in names.split()]


def _thinc(names: str) -> list[Forward]:
    return _forwards(" ".join(f"thinc.layers.{name}" for name in names.split()))


_BY_FORM: dict[Form, list[Forward]] = {
    run_layers: _thinc("chain concatenate residual resizable noop"),
    keep_rows: _thinc("dropout softmax_activation logistic array_getitem"),
    keep_examples: [
        *_thinc("list2ragged ragged2list"),
        *_forwards("spacy.ml.featureextractor spacy.pipeline.tok2vec"),
    ],
    one_row_each: _thinc("reduce_mean reduce_sum reduce_max reduce_first reduce_last"),
    with_array: _thinc("with_array"),
    expand_window: _thinc("expand_window"),
    linear: _thinc("linear"),
    softmax: _thinc("softmax"),
    relu: _thinc("relu"),
    gelu: _thinc("gelu"),
    maxout: _thinc("maxout"),
    layernorm: _thinc("layernorm"),
    hashembed: _thinc("hashembed"),
    charembed: _forwards("spacy.ml._character_embed"),
    static_vectors: _forwards("spacy.ml.staticvectors"),
    attention: _thinc("parametricattention parametricattention_v2"),
}
_SIDE_BY_SIDE = _thinc("concatenate")
FORMS: dict[Forward, Form] = {forward: form for form, forwards in _BY_FORM.items() for forward in forwards}
