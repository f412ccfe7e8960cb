"""Attachments: the blocks of [training.optimizer] that take part in a run, such as checkpoints, rules or a budget.

A block's function returns an `Attachment`, or is the class itself. The optimizer carries it in `attachments`, by the
name of its block; a run lets each join. A package gives its attachment a block of its own name by an entry point in the
group `thinc_torchopt_attachments`; all others stand in [training.optimizer.attachments.NAME]. See docs/attachments.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint
from inspect import Parameter
from typing import Any, ClassVar, Optional, TypeVar

import catalogue

from .checks import OPTIMIZER, Section

_Function = TypeVar("_Function", bound=Callable[..., Any])
GROUP = "thinc_torchopt_attachments"


class Attachment:
    """A block of [training.optimizer] that takes part in a run. Every method may be left out.

    made_by (str): For errors: how to make one.
    comes_first (bool): Its listeners get each event before the loop acts on requests: for those that make requests, as
        rules do. Otherwise they get it after that, and before the state is saved.
    names_groups (bool): It names param groups, which then stay apart even if their settings are equal.
    plans_decay (bool): It decides when learning rates begin to fall. Only one may do so.
    may_change (bool): Its block may change when a run is resumed.
    """

    made_by: ClassVar[str] = "an object of a subclass of thinc_torchopt.Attachment"
    comes_first: ClassVar[bool] = False
    names_groups: bool = False
    plans_decay: ClassVar[bool] = False
    may_change: ClassVar[bool] = False

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

    def join(self, run: Any) -> Sequence[Any]:
        """Take part in a run of `spacy train`. Called before a saved state is loaded, and before spaCy removes old
        models, so it is the place for checks of the whole run.

        run (Run): The run.
        RETURNS (Sequence[Listener]): Listeners of this run.
        """
        return ()

    def in_short_training(self, nlp: Any, config: Any, optimizer: Any, corpus: Any) -> Attachment:
        """The attachment for a training of a few steps that measures or compares settings.

        nlp (Language): The pipeline, initialized. config (Config): Its config for the whole training, interpolated.
        optimizer (TorchOptimizer): That of the short training.
        corpus (Callable | None): The training corpus, if it is loaded already.
        RETURNS (Attachment): By default this one.
        """
        return self


@cache
def _entry_points() -> Mapping[str, EntryPoint]:
    found: Any = catalogue.AVAILABLE_ENTRY_POINTS  # read already, and the same that spaCy sees
    points = found.select(group=GROUP) if hasattr(found, "select") else found.get(GROUP, ())
    return {point.name: point for point in points}


def taking_blocks(function: _Function) -> _Function:
    """For a function with `**blocks`: show the names of all blocks in its signature, instead."""
    signature = inspect.signature(function)
    arguments = [one for one in signature.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    arguments += [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Optional[Attachment])
        for name in sorted(_entry_points())
    ]
    function.__signature__ = signature.replace(parameters=arguments)  # type: ignore[attr-defined]
    return function


def class_of_block(name: str) -> type[Attachment]:
    """The class of the attachment in a block. RAISES (KeyError): No package has such a block."""
    return _entry_points()[name].load()


def blocks_that_may_change() -> tuple[str, ...]:
    """The paths of blocks that may change when a run is resumed, without brackets."""
    return tuple(f"training.optimizer.{name}" for name in _entry_points() if class_of_block(name).may_change)


def collect_attachments(blocks: Mapping[str, Any], others: Any) -> dict[str, Any]:
    """Check attachments.

    blocks (Mapping): Those with a block of their own name; None where there is none. others (Mapping): All others.
    RETURNS (dict): By the name of their block; others by "attachments.NAME".
    RAISES (ConfigError): Something else is in their place.
    """
    found: dict[str, Any] = {}
    for name, block in blocks.items():
        if block is not None:
            cls = class_of_block(name)
            found[name] = OPTIMIZER.kind(name, block, cls, cls.made_by)
    section = Section(f"{OPTIMIZER.path[:-1]}.attachments]")
    for name, block in OPTIMIZER.section("attachments", others).items():
        section.kind(name, block, Attachment, f"a block whose function returns {Attachment.made_by}")
        for own in _entry_points():
            if isinstance(block, class_of_block(own)):
                section.refuse(name, "an attachment without a block of its own", block, f"Move it to '{own}'.")
        found[f"attachments.{name}"] = block
    return found
