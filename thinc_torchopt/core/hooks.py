"""The few places where thinc and spaCy call our code. No other file changes their classes.

Functions are replaced once. Each replacement calls the original, unless the optimizer is ours, or the averages are.
When TorchOptimizer is first imported (a config that names it does that):

- `thinc.model.Model.finish_update`: passes the model's gradients to the optimizer.
- `thinc.shims.PyTorchShim.begin_update`: saves the module's buffers, for updates that are skipped; computes in the
  precision of our optimizer; in thinc's mixed precision, scales each backward pass by itself.
- `spacy.training.loop.train_while_improving`: runs our loop.
- `spacy.training.loop.train` and `clean_output_dir`: tell our loop the output folder, and when the training ends. With
  several processes, only rank 0 has an output folder, a logger and printed output. Code that imported `train` by name,
  before this package, has spaCy's own: it trains with our loop, but without the check before the first step
  (loop/training_check.py), as that loop can't tell spaCy's trainer from one of the user's.
- `spacy.training.loop.create_before_to_disk_callback`: lets our loop write the models that spaCy saves.
- `spacy.training.pretrain.create_pretraining_model`: refuses settings that pretraining does not support, and a missing
  corpus.
- `spacy.language.Language.initialize` and `resume_training`: pass the pipeline to the optimizer. In `spacy train`, the
  training data is read once.
- `spacy.language.Language.create_pipe_from_source`: notes where a component comes from.
- `thinc.model.Model.copy`: records the names of its layers.
- `thinc.model.Model.use_params` and `spacy.language.Language.use_params`: restore params even after an exception.

`spacy train` calls two more, if its config names something of ours: see cli/_train_command.py.

An unknown version of spaCy or thinc is left alone, with a warning; so is a function with other arguments than expected.
Without the hook in thinc every param is updated by itself, as by thinc's own optimizers; without the hooks in spaCy,
once per component. Training in several processes is refused then.
"""

from __future__ import annotations

import logging
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import spacy.language
import spacy.training.loop
import spacy.training.pretrain
import thinc.model
from thinc.api import Optimizer, PyTorchShim

from .averages import AveragedParams, is_in_use, use_in_model, use_in_pipeline
from .config_checks import check_corpora, names_our_optimizer
from .errors import ConfigError, TorchOptWarning
from .host import first_optimizer, module_of
from .launched import is_launched, rank_in_environment
from .log import LOGGER
from .params import backprop_apart, begin_update_in_precision, components_with_model, leave_to_others, name_as_original
from .read_once import read_once_in_initialize
from .replaced import SPACY, THINC, Replaced, replace, warn_of_put_back
from .update import keep_before_pass

UseParams = Callable[[Any, Any], AbstractContextManager[None]]
_ours: type[Optimizer] = type("NoOptimizer", (Optimizer,), {})


def install(optimizer_class: type[Optimizer]) -> None:
    """Install the hooks. A second call changes nothing.

    optimizer_class (type[Optimizer]): The class of optimizers for which the hooks work.
    """
    global _ours
    _ours = optimizer_class
    replace(*_THINC)
    replace(*_SPACY)


def replaced_functions() -> list[Replaced]:
    """The functions that `install` replaces."""
    return [*_THINC[-1], *_SPACY[-1]]


def check_all_in_place() -> None:
    """RAISES (ConfigError): Functions are not replaced, or were replaced again since. The processes would not train
    together.
    """
    missing = [function.name for function in replaced_functions() if not function.is_in_place]
    if missing:
        raise ConfigError(
            "Can't train in several processes: some functions of thinc and spaCy are not replaced by ours: "
            f"{', '.join(missing)}. Without that, each process would train a model of its own. Another package has "
            "replaced them without functools.wraps, or the versions are not supported: see the warning. Train in one "
            "process, or remove the code that replaces them."
        )


def check_not_put_back() -> None:
    """Warn of functions that are no longer replaced: other code has put back what it had saved. With several processes
    that is an error: see `check_all_in_place`.
    """
    if not is_launched():
        warn_of_put_back(replaced_functions())


def _finish_update(original: Callable[..., None]) -> Callable[..., None]:
    def finish_update(self: thinc.model.Model[Any, Any], optimizer: Any) -> None:
        if isinstance(optimizer, _ours):
            optimizer.finish_update(self)  # type: ignore[attr-defined]
            return
        if isinstance(optimizer, Optimizer):  # `nlp.rehearse` collects gradients with a function, for any optimizer
            leave_to_others(self)
        original(self, optimizer)

    return finish_update


def _begin_update(original: Callable[..., Any]) -> Callable[..., Any]:
    def begin_update(self: PyTorchShim, inputs: Any) -> Any:
        if not is_in_use(module_of(self)):
            keep_before_pass(self)
        output, backprop = begin_update_in_precision(original, self, inputs)
        return output, backprop_apart(self, backprop)

    return begin_update


def _train_while_improving(original: Callable[..., Any]) -> Callable[..., Any]:
    def train_while_improving(nlp: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        _next_writer.set(None)
        _writer.set(None)  # that of a training before, by a `train` that was imported before the hooks
        if isinstance(optimizer, _ours):
            # The loop is in a higher room than the optimizer, which imports this: it is imported late, by its public
            # name.
            loop = import_module(__name__.partition(".")[0]).train_while_improving
            return loop(nlp, optimizer, *args, **kwargs)
        return original(nlp, optimizer, *args, **kwargs)

    return train_while_improving


class ModelWriter(Protocol):
    """An object that writes the models that spaCy saves."""

    def open(self, folder: Path | None) -> bool:
        """Called before spaCy removes models from a folder. RETURNS (bool): Whether it may."""

    def to_disk(self, nlp: Any, path: Path) -> None: ...


# Who writes the models of the training that was started and has not begun yet, and of the current one; and its end.
_next_writer: ContextVar[ModelWriter | None] = ContextVar("_next_writer", default=None)
_writer: ContextVar[ModelWriter | None] = ContextVar("_writer", default=None)
_end: ContextVar[ExitStack | None] = ContextVar("_end", default=None)
# Its folder for models.
_output: ContextVar[Path | None] = ContextVar("_output", default=None)


def tell_output_to(writer: ModelWriter) -> None:
    """Tell who writes the models of a training the folder that spaCy cleans for them, which is the next thing that
    `spacy.training.loop.train` does.
    """
    _next_writer.set(writer)
    _writer.set(writer)


def end_of_training() -> ExitStack | None:
    """Callbacks for the end of the current `spacy.training.loop.train`, which also run after an exception."""
    return _end.get()


def output_of_training() -> Path | None:
    """The folder for models of the current `spacy.training.loop.train`. None: it has none, as on ranks above 0."""
    return _output.get()


def _train(original: Callable[..., Any]) -> Callable[..., Any]:
    def train(nlp: Any, output_path: Any = None, **kwargs: Any) -> Any:
        with ExitStack() as end:
            if _is_for_us(nlp):
                check_not_put_back()
            if _is_for_us(nlp) and is_launched():
                check_all_in_place()
            if _is_for_us(nlp) and rank_in_environment() > 0:
                output_path, kwargs["stdout"] = None, StringIO()
                end.enter_context(_silence(nlp))
            tokens = _end.set(end), _writer.set(None), _output.set(None if output_path is None else Path(output_path))
            try:
                return original(nlp, output_path, **kwargs)
            finally:
                _end.reset(tokens[0])
                _writer.reset(tokens[1])
                _output.reset(tokens[2])

    return train


# The components that were trained before, as those with a 'source'.
_resumed: weakref.WeakKeyDictionary[spacy.language.Language, set[str]] = weakref.WeakKeyDictionary()


def resumed_components(nlp: spacy.language.Language) -> list[str]:
    """The components of a pipeline that `resume_training` was called for, as spaCy does for those with a 'source'."""
    return sorted(_resumed.get(nlp, ()))


class Source(NamedTuple):
    """Where a component comes from. pipeline (Path): The folder of a pipeline. component (str): Its name there."""

    pipeline: Path
    component: str


# spaCy keeps no source of a component.
_sources: weakref.WeakKeyDictionary[spacy.language.Language, dict[str, Source]] = weakref.WeakKeyDictionary()


def sources_of(nlp: spacy.language.Language) -> dict[str, Source]:
    """Where the components of a pipeline come from that have a 'source' in the config, by their names."""
    return {name: source for name, source in _sources.get(nlp, {}).items() if name in nlp.component_names}


def _create_pipe_from_source(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_pipe_from_source(
        self: spacy.language.Language, source_name: str, source: spacy.language.Language, *, name: str
    ) -> Any:
        created = original(self, source_name, source, name=name)
        if (path := source.path) is not None:
            _sources.setdefault(self, {})[name] = Source(Path(path), source_name)
        return created

    return create_pipe_from_source


def _is_for_us(nlp: Any) -> bool:
    """Whether our optimizer will train a pipeline."""
    return isinstance(first_optimizer(nlp), _ours) or names_our_optimizer(nlp.config)


# Lets no message of ours pass.
_NOBODY = logging.Filter("nobody")


@contextmanager
def _silence(nlp: Any) -> Iterator[None]:
    """Inside, a training logs nothing and shows none of our warnings."""
    training = nlp.config["training"]
    logger = training["logger"]
    training["logger"] = {"@loggers": "spacy.ConsoleLogger.v3", "progress_bar": None, "console_output": False}
    LOGGER.addFilter(_NOBODY)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TorchOptWarning)
            yield
    finally:
        training["logger"] = logger
        LOGGER.removeFilter(_NOBODY)


def _clean_output_dir(original: Callable[..., None]) -> Callable[..., None]:
    def clean_output_dir(path: Path | None) -> None:
        writer = _next_writer.get()
        _next_writer.set(None)
        if writer is None or writer.open(path):  # may refuse: then the models of an earlier training stay
            original(path)

    return clean_output_dir


class _ForDisk(NamedTuple):
    """A pipeline that spaCy is about to save."""

    nlp: Any
    writer: ModelWriter

    def to_disk(self, path: Path) -> None:
        self.writer.to_disk(self.nlp, path)


def _create_before_to_disk_callback(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_before_to_disk_callback(callback: Any) -> Any:
        prepare = original(callback)

        def before_to_disk(nlp: Any) -> Any:
            writer = _writer.get()
            return prepare(nlp) if writer is None else _ForDisk(prepare(nlp), writer)

        return before_to_disk

    return create_before_to_disk_callback


def _create_pretraining_model(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_pretraining_model(nlp: Any, pretrain_config: Any) -> Any:
        optimizer = pretrain_config["optimizer"]
        if isinstance(optimizer, _ours) and is_launched():
            raise ConfigError(
                f"Can't run spacy pretrain in {os.environ['WORLD_SIZE']} processes: all would do the same and write to "
                "the same folder. Run it without torchrun; only spacy train shares the work."
            )
        if isinstance(optimizer, _ours) and "checkpoint" in optimizer.attachments:  # type: ignore[attr-defined]
            raise ConfigError(
                "Can't use [pretraining.optimizer.checkpoint]: only spacy train saves and resumes the state of a "
                "training. Remove the block; to go on with a pretraining, spacy pretrain has --resume-path."
            )
        if isinstance(optimizer, _ours) and nlp.config.get("pretraining"):
            check_corpora(nlp.config, ["corpus"], within="pretraining")
        return original(nlp, pretrain_config)

    return create_pretraining_model


def _introduce(*, anew: bool) -> Callable[[Callable[..., Optimizer]], Callable[..., Optimizer]]:
    """For a method of Language that returns an optimizer: pass the pipeline to the optimizer. anew (bool): It has new
    weights.
    """

    def hook_for(original: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
        def hook(self: spacy.language.Language, *args: Any, **kwargs: Any) -> Optimizer:
            if anew and args and isinstance(kwargs.get("sgd"), _ours):
                args = (read_once_in_initialize(self, args[0]),)
            optimizer = original(self, *args, **kwargs)
            if isinstance(optimizer, _ours):
                optimizer.introduce(self, anew=anew)  # type: ignore[attr-defined]
                if not anew:
                    _resumed.setdefault(self, set()).update(self.pipe_names)
            else:
                for _, model in components_with_model(self):
                    leave_to_others(model)
            return optimizer

        return hook

    return hook_for


def _use_params(ours: UseParams) -> Callable[[UseParams], UseParams]:
    """For a `use_params`: use ours if the params are our averages."""

    def hook_for(original: UseParams) -> UseParams:
        def use_params(self: Any, params: Any) -> AbstractContextManager[None]:
            return ours(self, params) if isinstance(params, AveragedParams) else original(self, params)

        return use_params

    return hook_for


def _copy(original: Callable[..., thinc.model.Model[Any, Any]]) -> Callable[..., thinc.model.Model[Any, Any]]:
    def copy(self: thinc.model.Model[Any, Any]) -> thinc.model.Model[Any, Any]:
        made = original(self)
        name_as_original(self, made)
        return made

    return copy


_AVERAGES = "only thinc's params have averages"
_THINC = (
    *THINC,
    [
        Replaced(
            thinc.model.Model,
            "finish_update",
            "self optimizer",
            _finish_update,
            "each param is updated separately, and no norm of all gradients is measured",
        ),
        Replaced(thinc.model.Model, "use_params", "self params", _use_params(use_in_model), _AVERAGES),
        Replaced(
            PyTorchShim,
            "begin_update",
            "self inputs",
            _begin_update,
            "the setting precision has no effect, in mixed precision only the last backward pass before an update "
            "counts, and a skipped update undoes buffers that were loaded before it",
        ),
        Replaced(thinc.model.Model, "copy", "self", _copy, "params of a copied model have other names"),
    ],
)
_SPACY = (
    *SPACY,
    [
        Replaced(
            spacy.training.loop,
            "train_while_improving",
            "nlp optimizer train_data evaluate dropout eval_frequency accumulate_gradient patience max_steps exclude "
            "annotating_components before_update",
            _train_while_improving,
            "spaCy's own loop trains, without checkpoints, rules and rollbacks, and each component is updated "
            "separately",
        ),
        Replaced(
            spacy.training.loop,
            "train",
            "nlp output_path use_gpu stdout stderr",
            _train,
            "where models are saved is not known, and a run does not close its files when it ends",
        ),
        Replaced(
            spacy.training.loop,
            "clean_output_dir",
            "path",
            _clean_output_dir,
            "model-best is lost when a run resumes",
        ),
        Replaced(
            spacy.training.loop,
            "create_before_to_disk_callback",
            "callback",
            _create_before_to_disk_callback,
            "a full disk stops the training with an error",
        ),
        Replaced(
            spacy.training.pretrain,
            "create_pretraining_model",
            "nlp pretrain_config",
            _create_pretraining_model,
            "settings without effect in pretraining give no error",
        ),
        Replaced(
            spacy.language.Language,
            "initialize",
            "self get_examples sgd",
            _introduce(anew=True),
            "the optimizer keeps old state after nlp.initialize",
        ),
        Replaced(
            spacy.language.Language,
            "resume_training",
            "self sgd",
            _introduce(anew=False),
            "the optimizer does not know the pipeline of nlp.resume_training",
        ),
        Replaced(
            spacy.language.Language,
            "create_pipe_from_source",
            "self source_name source name",
            _create_pipe_from_source,
            "the 'source' of components is not known, and settings that use it must be set",
        ),
        Replaced(spacy.language.Language, "use_params", "self params", _use_params(use_in_pipeline), _AVERAGES),
    ],
)
