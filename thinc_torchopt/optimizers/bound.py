"""Which pipeline an optimizer trains, and what is done around its updates."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from spacy.language import Language

from ..errors import PipelineError
from ..params import all_names, backprop_through_frozen
from .parts import Parts


class Bound(Parts):
    """An optimizer that is told its pipeline."""

    def initialize(self, nlp: Language, exclude: Collection[str] = ()) -> None:
        """Take in all params of a pipeline under their lasting names. Params that turn up later are taken in then.

        An optimizer that knew another pipeline begins anew with this one: no moments, averages or counts pass from one
        to the other. Only its schedules go on, which can't go back.

        nlp (Language): The pipeline, initialized.
        exclude (Collection[str]): Components that are not trained.
        RAISES (PipelineError): Nothing to train, or a component that was not initialized. (ConfigError): A pattern in
            the settings that matches no param.
        """
        self._trained.groups.check(all_names(nlp))
        self._meet(nlp)
        self._trained.table.take_in(nlp, exclude)
        self._keep_all_buffers()

    def introduce(self, nlp: Language, *, anew: bool = False) -> None:
        """As `initialize`, for spaCy, which calls this before all is ready: what is wrong is said when training begins.

        anew (bool): The pipeline has got new weights, to which nothing of what was learned before belongs.
        """
        self._meet(nlp, anew)
        with suppress(PipelineError):
            self._trained.table.take_in(nlp, ())
            self._keep_all_buffers()

    def knows(self, nlp: Language) -> bool:
        """Whether this is the pipeline that it was told last."""
        return self._trained.table.is_bound_to(nlp)

    def _meet(self, nlp: Language, anew: bool = False) -> None:
        """Begin anew if this is another pipeline than before, or the same with new weights: so in cross-validation, for
        example.
        """
        if anew or not self._trained.table.may_be_of(nlp):
            self._meet_no_params()
            self._step.guard.begin_anew()

    def keep_buffers(self) -> None:
        """Note what the buffers of torch modules hold: an update that is skipped brings that back. Done after each
        update that is made.

        Call it before the forward pass if something else may have written to them since.
        """
        self._step.buffers.keep()

    def _keep_all_buffers(self) -> None:
        if self._step.guard.wants_norms:
            self._step.buffers.keep(shim for _, shim in self._trained.table.shim_paths())

    @contextmanager
    def training(self) -> Iterator[None]:
        """Inside, torch computes no gradients for frozen params, as in each update of spaCy's loop; afterwards all is
        as before.
        """
        with (
            self._frozen_grads.stopping(self._trained.groups.frozen_params),
            backprop_through_frozen(self._trained.table.shims.values()),
        ):
            yield
