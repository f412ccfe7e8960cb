"""Make the output layer of a model larger, for more labels.

*rows*: the weights of one label: a row of W, and a cell of b. All old rows keep their values, and the new ones begin
where they do no harm:

softmax: as the mean of the old rows, with a bias that is lower by `MARGIN`. A mean is never above the largest score,
    whatever the text: no new label is predicted before it was learned, and its probability is at most 1/10 of the
    average of the old ones. (Weights of 0 would win wherever all old scores are below 0. A softmax does not see what
    all of its rows share, so for it a mean of rows is what 0 is for others.)
sigmoid: weights of 0, and the bias of a probability of `PRIOR`, or of half the threshold if that is less. The scores of
    old labels don't depend on it.
    SOURCE: Lin et al. 2017, Focal Loss for Dense Object Detection, https://arxiv.org/abs/1708.02002, section 3.3.
none: weights and bias of 0, which is the target for "no".

An ensemble for text categories reads the scores of a bag of words. That grows in the same way. The output layer gets a
column for each new score: 0 for old labels, and for the new label itself the mean of the others' own columns.

A layer is not changed but replaced, as spaCy's own `resize_output` does it: optimizers keep state by the node's id.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from thinc.api import Model
from thinc.layers.chain import forward as _chain
from thinc.layers.concatenate import forward as _concatenate
from thinc.layers.linear import forward as _linear
from thinc.layers.logistic import forward as _logistic
from thinc.layers.residual import forward as _residual
from thinc.layers.sigmoid import forward as _sigmoid
from thinc.layers.sigmoid_activation import forward as _sigmoid_activation
from thinc.layers.softmax import forward as _softmax
from thinc.layers.softmax_activation import forward as _softmax_activation
from thinc.layers.sparselinear import forward as _sparse_linear

from ..errors import PipelineError
from ..host import forward_of, insertions_into, original_refs, set_insertions
from ..inserted import Insertion

# A tagger on UD English EWT learned two new tags as fast with 0, log 100 and 7: F 84.9 to 86.1 after 200 updates.
MARGIN = math.log(10)
PRIOR = 0.05
# spaCy's `add_label` begins labels of text classifiers with a bias of -5000. An update moves it by about the
# learning rate. No bias that was learned is below this. SOURCE: spacy/ml/models/textcat.py, `NEG_VALUE`.
LOWEST_BIAS = -2500.0
_WITH_ROWS = (_linear, _softmax, _sparse_linear, _sigmoid)
_SOFTMAX = (_softmax, _softmax_activation)
_SIGMOID = (_sigmoid, _logistic, _sigmoid_activation)


class OutputLayer(NamedTuple):
    """The layer whose rows are the labels.

    layer (Model): The layer. around (list[Model]): The layers that it is in, the outermost first.
    before (Model | None): The layer whose output it gets, if it is known.
    is_softmax, is_sigmoid (bool): Whether its scores go through one.
    """

    layer: Model[Any, Any]
    around: list[Model[Any, Any]]
    before: Model[Any, Any] | None
    is_softmax: bool
    is_sigmoid: bool

    @property
    def is_initialized(self) -> bool:
        return bool(self.layer.param_names) and all(self.layer.has_param(name) for name in self.layer.param_names)


def find_output_layer(model: Model[Any, Any]) -> OutputLayer:
    """Find the output layer of a model. RAISES (PipelineError): It is of a kind that can't grow; without a name."""
    around: list[Model[Any, Any]] = []
    after: list[Model[Any, Any]] = []
    before: Model[Any, Any] | None = None
    layer = model
    while not layer.param_names:
        if layer.shims:
            raise PipelineError(
                f"its last layer with weights, '{layer.name}', is a module of torch or another library, which only its "
                "own code can make larger"
            )
        bearing = [i for i, below in enumerate(layer.layers) if _has_weights(below)]
        is_chain = forward_of(layer) is _chain
        if not bearing or not (is_chain or (len(layer.layers) == 1 and forward_of(layer) is not _residual)):
            raise PipelineError(f"its output comes from a layer '{layer.name}', which has no part for each label")
        around.append(layer)
        if is_chain:
            after += layer.layers[bearing[-1] + 1 :]
            before = layer.layers[bearing[-1] - 1] if bearing[-1] else before
        layer = layer.layers[bearing[-1]]
    if forward_of(layer) not in _WITH_ROWS:
        raise PipelineError(
            f"its output layer is '{layer.name}': expected Linear, Softmax, SparseLinear or Sigmoid, with a row of "
            "weights for each label"
        )
    forwards = {forward_of(node) for one in (layer, *after) for node in one.walk()}
    return OutputLayer(layer, around, before, not forwards.isdisjoint(_SOFTMAX), not forwards.isdisjoint(_SIGMOID))


def _has_weights(model: Model[Any, Any]) -> bool:
    return any(node.param_names or node.shims for node in model.walk())


def grow(
    model: Model[Any, Any],
    n_labels: int,
    n_new: int,
    *,
    n_last: int = 0,
    is_exclusive: bool = False,
    prior: float = PRIOR,
) -> None:
    """Make the output layer of an initialized model larger.

    n_labels (int): The labels so far. n_new (int): The labels to add.
    n_last (int): Outputs that are no labels, and stay the last ones.
    is_exclusive (bool): Whether only the largest score counts, whatever it goes through.
    prior (float): The probability that new labels begin with, after a sigmoid.
    RAISES (PipelineError): It can't grow; without the name of the component. Nothing has changed.
    """
    _grow_layers(model, model, n_labels, n_new, n_last=n_last, is_exclusive=is_exclusive, prior=prior)


def lift(found: OutputLayer, *, is_exclusive: bool = False, prior: float = PRIOR) -> list[int]:
    """Let rows begin again that can't be learned, as their bias is below `LOWEST_BIAS`: as those that `grow` adds.

    is_exclusive, prior: As in `grow`.
    RETURNS (list[int]): The indices of these rows.
    """
    layer = found.layer
    is_low = layer.get_param("b") < LOWEST_BIAS
    low: list[int] = is_low.nonzero()[0].tolist()
    for name in layer.param_names if low else ():
        rows = _rows_of(layer, name, layer.get_param(name))  # a view
        if _is_apart(layer, name):
            rows[is_low] = _new_rows(found, name, rows[~is_low], len(low), None if is_exclusive else prior)
    return low


def _grow_layers(
    root: Model[Any, Any],
    model: Model[Any, Any],
    n_labels: int,
    n_new: int,
    *,
    n_last: int = 0,
    is_exclusive: bool,
    prior: float,
) -> None:
    """See `grow`. model (Model): The root, or the part of it that has a score for each label."""
    found = find_output_layer(model)
    n_outputs = found.layer.get_dim("nO")
    if n_outputs != n_labels + n_last:
        raise PipelineError(
            f"its output layer '{found.layer.name}' has {n_outputs:,} outputs: expected {n_labels + n_last:,}, one for "
            "each label"
        )
    layer, inner = found.layer, _classifier_below(found)
    if inner is not None:
        _grow_layers(root, inner, n_labels, n_new, is_exclusive=is_exclusive, prior=prior)
    larger = _larger(layer, n_new, has_scores_below=inner is not None)
    for name in layer.param_names:
        rows = _rows_of(layer, name, layer.get_param(name))
        new = _new_rows(found, name, rows[:n_labels], n_new, None if is_exclusive else prior)
        larger.set_param(name, values := _insert(layer, name, rows, new, n_labels, in_columns=inner is not None))
        if inner is not None and name == "W":
            for i in range(n_labels, n_labels + n_new):
                values[i, i] = rows.diagonal()[:n_labels].mean()
        if layer.has_grad(name):  # an update waits for more texts
            grads = _rows_of(layer, name, layer.get_grad(name))
            none = layer.ops.xp.zeros_like(new)
            larger.set_grad(name, _insert(layer, name, grads, none, n_labels, in_columns=inner is not None))
    if n_last:
        _note_insertions(larger, layer, 0, n_labels, n_new)
    if inner is not None:
        _note_insertions(larger, layer, 1, n_labels, n_new)
    for outer in found.around:
        if outer.has_dim("nO"):
            outer.set_dim("nO", outer.get_dim("nO") + n_new, force=True)
    _replace(root, layer, larger)


def _classifier_below(found: OutputLayer) -> Model[Any, Any] | None:
    """The first part of an ensemble, whose scores of the labels are the first columns of the output layer. None: it is
    no ensemble.

    RAISES (PipelineError): It can't grow.
    """
    before = found.before
    if before is None or forward_of(before) is not _concatenate or "multi_label" not in before.layers[0].attrs:
        return None
    inner: Model[Any, Any] = before.layers[0]
    find_output_layer(inner)
    return inner


def _note_insertions(larger: Model[Any, Any], layer: Model[Any, Any], axis: int, at: int, number: int) -> None:
    """Tell optimizers of new cells that are not the last ones. axis (int): The dimension of the params with as many."""
    new = [
        Insertion(name, axis, at, number, values.shape[axis])
        for name in layer.param_names
        if (values := layer.get_param(name)).ndim > axis
    ]
    set_insertions(larger, [*(insertions_into(larger) or insertions_into(layer)), *new])


def _larger(layer: Model[Any, Any], n_new: int, *, has_scores_below: bool) -> Model[Any, Any]:
    """A layer with more outputs, and no weights yet. has_scores_below (bool): It gets a score of each label."""
    dims: dict[str, Any] = {name: layer.maybe_get_dim(name) for name in layer.dim_names}
    dims["nO"] += n_new
    dims |= {"nI": layer.get_dim("nI") + n_new} if has_scores_below else {}
    return Model(
        layer.name,
        forward_of(layer),
        init=layer.init,
        dims=dims,
        params=dict.fromkeys(layer.param_names),
        attrs=dict(layer.attrs),
        ops=layer.ops,
    )


def _is_flat(layer: Model[Any, Any], name: str) -> bool:
    """Whether rows lie one behind the other, as in SparseLinear."""
    return name == "W" and layer.has_dim("length") is True


def _rows_of(layer: Model[Any, Any], name: str, values: Any) -> Any:
    """Weights or gradients of a layer. Shape: (nO, ...)."""
    return values.reshape((layer.get_dim("nO"), -1)) if _is_flat(layer, name) else values


def _is_apart(layer: Model[Any, Any], name: str) -> bool:
    """Whether rows share no cells. Those of SparseLinear.v1 do: each is the one before it, from the second cell on."""
    return not (_is_flat(layer, name) and layer.attrs.get("v1_indexing"))


def _insert(layer: Model[Any, Any], name: str, rows: Any, new: Any, at: int, *, in_columns: bool) -> Any:
    """Rows with new ones before the index `at`, in the form of the layer. in_columns (bool): Also as many columns of 0
    there.
    """
    xp = layer.ops.xp
    found = xp.concatenate([rows[:at], new, rows[at:]])
    if in_columns and found.ndim == 2:
        columns = xp.zeros((len(found), len(new)), dtype=found.dtype)
        found = xp.concatenate([found[:, :at], columns, found[:, at:]], axis=1)
    return found.reshape((-1,)) if _is_flat(layer, name) else found


def _new_rows(found: OutputLayer, name: str, rows: Any, n_new: int, prior: float | None) -> Any:
    """Rows for new labels. rows (Array): Those of the old ones. Shape: (n_labels, ...). prior (float | None): As in
    `grow`. None: only the largest score counts.
    """
    new = found.layer.ops.xp.zeros((n_new, *rows.shape[1:]), dtype=rows.dtype)
    if found.is_softmax or (prior is None and found.is_sigmoid):
        new += rows.mean(axis=0) if len(rows) and _is_apart(found.layer, name) else 0.0
        new -= MARGIN if name == "b" else 0.0
    elif prior is not None and found.is_sigmoid and name == "b":
        new += math.log(prior / (1 - prior))
    return new


def _replace(model: Model[Any, Any], old: Model[Any, Any], new: Model[Any, Any]) -> None:
    """Replace a layer wherever it is used."""
    for node in [*model.walk()]:
        for i, layer in enumerate(node.layers):
            if layer is old:
                node.layers[i] = new
    for node in model.walk():
        for name in node.ref_names:
            if node.maybe_get_ref(name) is old:
                node.set_ref(name, new)
    for refs in original_refs(model.walk()).values():
        refs |= {name: new.id for name, target in refs.items() if target == old.id}
