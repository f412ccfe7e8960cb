"""Attachments: the blocks of [training.optimizer] that take part in a run, such as checkpoints, rules or a budget.

A block's function returns an `Attachment`, or is the class itself. The optimizer carries it in `attachments`, by the
name of its block; a run lets each join. A package gives its attachment a block of its own name by an entry point in the
group `thinc_torchopt_attachments`; all others stand in [training.optimizer.attachments.NAME]. See docs/extend.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint
from inspect import Parameter
from typing import Any, ClassVar, Optional, TypeVar

from .checks import OPTIMIZER, Section
from .errors import ConfigError
from .registry import entry_points

_Function = TypeVar("_Function", bound=Callable[..., Any])
GROUP = "thinc_torchopt_attachments"


class Attachment:
    """A block of [training.optimizer] that takes part in a run. Every method may be left out.

    made_by (str): For errors: how to make one.
    own_block (str): The name of its own block. Empty: it stands in [training.optimizer.attachments].
    comes_first (bool): Its listeners get each event before the loop acts on requests to go back to a checkpoint: for
        those that make such requests, as rules do. Otherwise they get it after that, and before the state is saved.
    decides_alike (bool): In several processes its listeners make the same requests in each. If not, those of rank 0
        hold.
    names_groups (bool): It names param groups, which then stay apart even if their settings are equal.
    plans_decay (bool): It decides when learning rates begin to fall. Only one may do so.
    may_change (bool): Its block may change when a run is resumed.
    remembers_scores (bool): Its state holds scores: a run is not resumed with others.
    """

    made_by: ClassVar[str] = "an object of a subclass of thinc_torchopt.Attachment"
    own_block: ClassVar[str] = ""
    comes_first: ClassVar[bool] = False
    decides_alike: ClassVar[bool] = False
    names_groups: bool = False
    plans_decay: ClassVar[bool] = False
    may_change: ClassVar[bool] = False
    remembers_scores: bool = False

    def check(self, optimizer: Any) -> None:
        """Check settings that depend on others, when the optimizer is built.

        optimizer (TorchOptimizer): The optimizer, complete.
        RAISES (ConfigError): They don't fit.
        """

    def check_update(self, optimizer: Any) -> None:
        """Check an update before it is made, in any loop. RAISES (ConfigError): It must not be made."""

    def prepare(self, nlp: Any) -> None:
        """Change the pipeline before a run names its params, for example add some.

        nlp (Language): The pipeline, initialized.
        """

    def named(self, optimizer: Any, nlp: Any, exclude: Collection[str]) -> None:
        """Freeze params, or refuse some, when the optimizer has named those of a pipeline: before a run, a preview, and
        the first update of another loop.

        optimizer (TorchOptimizer): The optimizer. nlp (Language): The pipeline.
        exclude (Collection[str]): Components that are not trained.
        RAISES (ConfigError): It can't be trained with this block.
        """

    def join(self, run: Any) -> Sequence[Any]:
        """Take part in a run of `spacy train`. Called before a saved state is loaded, and before spaCy removes old
        models, so it is the place for checks of the whole run.

        run (Run): The run.
        RETURNS (Sequence[Listener]): Listeners of this run.
        """
        return ()

    def in_short_training(self, nlp: Any, config: Any, optimizer: Any, corpus: Any) -> Attachment | None:
        """The attachment for a training of a few steps that measures or compares settings.

        nlp (Language): The pipeline, initialized. config (Config): Its config for the whole training, interpolated.
        optimizer (TorchOptimizer): That of the short training.
        corpus (Callable | None): The training corpus, if it is loaded already.
        RETURNS (Attachment | None): By default this one. None: it takes no part, as if it writes files.
        """
        return self


@cache
def _entry_points() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(GROUP) if point.name.isidentifier()}


def taking_blocks(function: _Function) -> _Function:
    """For a function with `**blocks`: show the names of all blocks in its signature, instead."""
    signature = inspect.signature(function)
    arguments = [one for one in signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    arguments += [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Optional[Attachment])
        for name in sorted(_entry_points().keys() - signature.parameters.keys())
    ]
    function.__signature__ = signature.replace(parameters=arguments)  # type: ignore[attr-defined]
    return function


def _class_of_block(name: str) -> type[Attachment]:
    """RAISES (ConfigError): It can't be loaded, or is no class of attachments."""
    point = _entry_points()[name]
    try:
        found = point.load()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    if not (isinstance(found, type) and issubclass(found, Attachment)):
        raise ConfigError(
            f"Can't use [training.optimizer.{name}]: expected a subclass of thinc_torchopt.Attachment at the entry "
            f"point '{point.name} = {point.value}', found {found}. Repair or remove the package that has it."
        )
    return found


def paths_that_may_change(attachments: Mapping[str, Attachment], block: Mapping[str, Any]) -> list[str]:
    """The paths of blocks that may change when a run is resumed, without brackets. One that is null is as one that is
    not there.

    block (Mapping): [training.optimizer]. Its blocks count beside the attachments: some commands leave them out.
    """
    names = {name for name, attachment in attachments.items() if attachment.may_change}
    for name in _entry_points():
        with suppress(ConfigError):  # of a package that can't be loaded: this run does not use it
            names |= {name} if block.get(name) is None or _class_of_block(name).may_change else set()
    return [f"training.optimizer.{name}" for name in sorted(names)]


def collect_attachments(blocks: Mapping[str, Any], others: Any) -> dict[str, Any]:
    """Check attachments.

    blocks (Mapping): Those with a block of their own name; None where there is none. others (Mapping): All others.
    RETURNS (dict): By the name of their block; others by "attachments.NAME".
    RAISES (ConfigError): Something else is in their place, or two plan the decay.
    """
    found: dict[str, Any] = {}
    for name, block in blocks.items():
        if block is not None:
            cls = _class_of_block(name)
            found[name] = OPTIMIZER.kind(name, block, cls, cls.made_by)
    section = Section(f"{OPTIMIZER.path[:-1]}.attachments]")
    for name, block in OPTIMIZER.section("attachments", {} if others is None else others).items():
        if block is None:
            continue
        section.kind(name, block, Attachment, f"a block whose function returns {Attachment.made_by}")
        if block.own_block:
            section.refuse(name, "an attachment without a block of its own", block, f"Move it to '{block.own_block}'.")
        found[f"attachments.{name}"] = block
    planning = [name for name, attachment in found.items() if attachment.plans_decay]
    if len(planning) > 1:
        raise ConfigError(
            f"Can't use [training.optimizer.{planning[0]}] beside [training.optimizer.{planning[1]}]: both decide when "
            "learning rates begin to fall. Remove one of them."
        )
    return found
