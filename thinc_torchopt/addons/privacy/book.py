"""One batch, with the gradient of each example clipped: by book-keeping, in one forward and one backward pass.

with book.recording(nlp, len(examples)):     layers record what their gradients are made of: forms.py
    nlp.update(examples, sgd=False)
                                             at its end: the norm of each example, its factor, and one weighted
                                             sum for each param, which is added to the gradients in the model
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy
import torch
from spacy.language import Language
from spacy.training import Example
from thinc.api import Model, xp2torch
from thinc.util import is_xp_array, to_numpy

from ...core.checks import Section
from ...core.errors import ParamError
from ...core.host import forward_of, swap_forward
from ...core.types import Key
from .forms import FORMS, Form, check_windows
from .noise import Slot, add_grad, models_of
from .records import Lookup, Product, Record, Rows, Terms


def clip_each_example(
    nlp: Language,
    examples: Sequence[Example],
    clip: float,
    *,
    drop: float = 0.0,
    losses: dict[str, float] | None = None,
    exclude: Collection[str] = (),
) -> numpy.ndarray:
    """Compute the gradients of a batch with that of each example clipped, and add their sum to those in the models.

    Call `finish_update` of each component to make the update. The sum has no noise: see `Privacy` for that.

    nlp (Language): A pipeline, initialized.
    clip (float): The largest norm of an example's gradient, over all params that are trained.
    drop, losses, exclude: As for `nlp.update`.
    RETURNS (numpy.ndarray): The norms before clipping. Shape: (examples,)
    RAISES (ConfigError): `clip` is not above 0. (ParamError): A component or layer has no form.
    """
    book = Book(Section("clip_each_example", allows_texts=False).number("clip", clip, above=0.0))
    with book.recording(nlp, len(examples), exclude):
        nlp.update(examples, drop=drop, losses=losses, sgd=False, exclude=exclude)  # type: ignore[arg-type]
    return book.norms


def check_layers(nlp: Language, exclude: Collection[str] = ()) -> None:
    """RAISES (ParamError): A component or layer has no form, or a window reaches into the next example."""
    for model in models_of(nlp, exclude):
        for node in model.walk():
            _form_of(node)
        check_windows(model)


class Book:
    """Records one batch after the other.

    clip (float): The largest norm of an example's gradient.

    Public: `norms` (of the examples of the last batch, before clipping).
    """

    def __init__(self, clip: float):
        self.clip = clip
        self.norms: numpy.ndarray
        self._frozen: Collection[Key] = ()
        self._n = 0
        self._rows: dict[int, tuple[Any, Rows]] = {}
        self._last: Rows | None = None
        self._records: dict[Key, list[Record]] = {}
        self._slots: dict[Key, Slot] = {}

    # ------------------------------------------------------------------ a batch

    @contextmanager
    def recording(
        self, nlp: Language, n: int, exclude: Collection[str] = (), frozen: Collection[Key] = ()
    ) -> Iterator[None]:
        """Inside, one `nlp.update` is recorded. At the end the clipped sum is added to the gradients.

        n (int): The number of examples. exclude (Collection[str]): Components that are not trained.
        frozen (Collection[Key]): Keys of params that are not trained: they have no part in the norms.
        RAISES (ParamError): A component or layer has no form.
        """
        self._n, self._frozen = n, frozen
        self._rows, self._last, self._records, self._slots = {}, None, {}, {}
        models = models_of(nlp, exclude)
        nodes = {node.id: node for model in models for node in model.walk()}
        try:
            with ExitStack() as stack:
                for node in nodes.values():  # a layer's form in place of its forward function
                    form, forward = _form_of(node), forward_of(node)
                    stack.callback(swap_forward(node, partial(self._run, form, forward)))
                yield
            self._add_up()
        finally:
            self._rows, self._last, self._records, self._slots = {}, None, {}, {}

    def _run(self, form: Any, forward: Any, model: Model, X: Any, is_train: bool) -> Any:
        return form(self, forward, model, X, is_train) if is_train else forward(model, X, is_train)

    def _add_up(self) -> None:
        joined = {key: first.joined(rest) if rest else first for key, (first, *rest) in self._records.items()}
        squares = sum((one.norms().double().cpu() for one in joined.values()), torch.zeros(self._n, dtype=torch.double))
        norms = squares.sqrt()
        self.norms = norms.numpy()
        # An example whose gradient is not finite counts for nothing: it may not spoil or stop the others' update.
        factors = (self.clip / norms).nan_to_num().clamp(max=1.0).float()
        for key, record in joined.items():
            if not norms.isfinite().all():
                record.make_finite()
            add_grad(self._slots[key], record.sum(factors))

    # ------------------------------------------------------------------ for forms: which rows are whose

    def is_array(self, X: Any) -> bool:
        return is_xp_array(X)

    def tell(self, X: Any, rows: Rows) -> None:
        """Set whose the rows of an array are. The array is kept, so that no other gets its id."""
        self._rows[id(X)] = X, rows
        self._last = rows

    def claim(self, Y: Any) -> None:
        """An array that a layer made of others': its rows are those of the last one."""
        if is_xp_array(Y) and id(Y) not in self._rows and self._last is not None and len(Y) == len(self._last):
            self.tell(Y, self._last)

    def rows_of(self, model: Model, X: Any) -> Rows:
        """RAISES (ParamError): It is not known."""
        _, rows = self._rows.get(id(X), (None, None))
        if rows is None:
            raise ParamError(
                f"Can't clip the gradient of each example: layer '{model.name}' gets rows ({type(X).__name__}), and it "
                "is not known which row belongs to which example. Put a list, Ragged or with_array around the layer, "
                "as in spaCy's architectures."
            )
        return rows

    def rows_by(self, model: Model, lengths: Sequence[int], *, pad: int = 0) -> Rows:
        """The rows of sequences, one for each example, for `Rows.of`. RAISES (ParamError): There are more or fewer."""
        if len(lengths) != self._n:
            raise ParamError(
                f"Can't clip the gradient of each example: layer '{model.name}' got {len(lengths)} parts for a batch "
                f"of {self._n} examples: expected one for each. Use an architecture that keeps examples apart."
            )
        return Rows.of(to_numpy(lengths), pad=pad)

    # ------------------------------------------------------------------ for forms: records

    def record_product(self, model: Model, rows: Rows, X: Any, dY: Any) -> None:
        dY = xp2torch(dY)
        for name, record in (("W", Product(rows, xp2torch(X), dY)), ("b", Terms(rows, dY))):
            self._record(model, name, record)

    def record_terms(self, model: Model, name: str, rows: Rows, terms: Any) -> None:
        self._record(model, name, Terms(rows, xp2torch(terms)))

    def record_lookup(self, model: Model, rows: Rows, keys: Any, dY: Any, *, size: int | None = None) -> None:
        keys = xp2torch(keys.astype("int64"))
        self._record(model, "E", Lookup(rows, keys, xp2torch(dY), size or len(model.get_param("E"))))

    def _record(self, model: Model, name: str, record: Record) -> None:
        key = (model.id, name)
        if model.has_param(name) and key not in self._frozen:
            self._records.setdefault(key, []).append(record)
            self._slots[key] = model, name


def _form_of(node: Model) -> Form:
    """RAISES (ParamError): A layer has none."""
    forward = forward_of(node)
    form = FORMS.get(forward)
    if form is None:
        module = getattr(forward, "__module__", type(forward).__name__)
        raise ParamError(
            f"Can't clip the gradient of each example: private training does not support layer '{node.name}' "
            f"({module}). Use another architecture, or freeze the component (frozen_components)."
        )
    return form
