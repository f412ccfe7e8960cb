"""Which pipeline an optimizer trains, and what is done around its updates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase

from spacy.language import Language

from ..errors import ConfigError, PipelineError
from ..gradients import Reduce
from ..params import Pattern, all_names, backprop_through_frozen, scaling_all_apart
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
        with self._lock:
            self._trained.groups.check(all_names(nlp))
            self._meet(nlp)
            self._is_settled = False
            self._trained.table.take_in(nlp, exclude)
            self._keep_all_buffers()

    def introduce(self, nlp: Language, *, anew: bool = False) -> None:
        """As `initialize`, for spaCy, which calls this before all is ready: what is wrong is said when training begins.

        anew (bool): The pipeline has got new weights, to which nothing of what was learned before belongs.
        """
        with self._lock:
            self._meet(nlp, anew)
            with suppress(PipelineError):
                self._trained.table.take_in(nlp, ())
                self._keep_all_buffers()

    def settle(self) -> None:
        """The training is over, and params are now what is to be evaluated and saved: no averages are told of, until
        another one begins.
        """
        self._is_settled = True

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

    # ------------------------------------------------------------------ changes in the course of a training

    def freeze(self, params: Sequence[str]) -> None:
        """Train params no longer, from the next update on. What was learned stays; moments and averages are forgotten.

        params (Sequence[str]): Patterns over their names.
        RAISES (ConfigError): One matches no param.
        """
        with self._lock:
            self._trained.freeze(params, frozen=True)

    def unfreeze(self, params: Sequence[str]) -> None:
        """Train frozen params again, from the next update on: those that the settings freeze, too.

        params (Sequence[str]): Patterns over their names.
        RAISES (ConfigError): One matches no param.
        """
        with self._lock:
            self._trained.freeze(params, frozen=False)

    def scale_learn_rates(self, groups: Sequence[str], factor: float, min_rate: float = 0.0) -> None:
        """Multiply the learning rates of param groups, from the next step on.

        groups (Sequence[str]): Their names in the config, or patterns over these.
        factor, min_rate (float): As in `LearnRateController.scale_rates`.
        RAISES (ConfigError): There is no such group, or such a factor can't be.
        """
        with self._lock:
            self._trained.controller.scale_rates(self._group_ids(groups), factor, min_rate)

    def set_learn_rates(self, groups: Sequence[str], rate: float) -> None:
        """Set the learning rates of param groups, from the next step on, in place of their schedules.

        groups (Sequence[str]): Their names in the config, or patterns over these.
        RAISES (ConfigError): There is no such group, or such a rate can't be.
        """
        with self._lock:
            self._trained.controller.set_rates(self._group_ids(groups), rate)

    def check_group_names(self, patterns: Sequence[str]) -> None:
        """RAISES (ConfigError): One matches no param group."""
        self._group_ids(patterns)

    @property
    def rate_names(self) -> set[str]:
        """All names that `learn_rates` may ever have."""
        groups = self._trained.groups.groups
        ids_and_labels = (name for group in groups for name in (group.id, *group.labels))
        return {"default", *ids_and_labels, *self._trained.groups.learn_rates()}

    def check_param_names(self, patterns: Sequence[str]) -> None:
        """RAISES (ConfigError): One matches no param."""
        names = [name for param in self._trained.params for name in param.names]
        for text in patterns:
            Pattern(text, "what is to be frozen").check(names)

    def _group_ids(self, patterns: Sequence[str]) -> list[str]:
        """Of all groups whose name matches. A group of several blocks has the names of all of them."""
        groups = self._trained.groups
        names = {group.id: {group.id, *_names_in(group.labels)} for group in groups.groups}
        frozen = _names_in(settings.label for _, settings in groups.frozen.values())
        for text in patterns:
            if not any(fnmatchcase(name, text) for name in set(frozen).union(*names.values())):
                known = ", ".join(sorted(set(frozen).union(*names.values()))) or "none"
                raise ConfigError(
                    f"Can't change the learning rates of '{text}': expected the name of a param group, or a pattern, "
                    f"found that it matches none of {known}."
                )
        return [id for id, own in names.items() if any(fnmatchcase(name, text) for name in own for text in patterns)]

    # ------------------------------------------------------------------ around updates

    def reduce_by(self, reduce: Reduce | None) -> None:
        """From now on let joint updates be those of several processes. None: of this one."""
        self._step.reduce = reduce

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
            scaling_all_apart(),
        ):
            yield


def _names_in(labels: Iterable[str]) -> list[str]:
    """Labels, and the names of blocks of which they are made: see `ParamSettings`."""
    return [name for label in labels for name in (label, *label.split("/layer-")[0].split("+"))]
