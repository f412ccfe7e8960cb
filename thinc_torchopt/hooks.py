"""The few places where thinc and spaCy call our code. No other file changes their classes.

Functions are replaced once. Each replacement calls the original, unless the optimizer is ours, or the averages are.
When TorchOptimizer is first imported (a config that names it does that):

- `thinc.model.Model.finish_update`: passes the model's gradients to the optimizer.
- `thinc.shims.PyTorchShim.begin_update`: computes in the precision of our optimizer; in thinc's mixed precision, scales
  each backward pass by itself.
- `spacy.training.loop.train_while_improving`: runs our loop.
- `spacy.training.loop.train` and `clean_output_dir`: tell our loop the output folder, and when the training ends. With
  several processes, only rank 0 has an output folder, a logger and printed output.
- `spacy.training.pretrain.create_pretraining_model`: refuses settings that pretraining does not support, and a missing
  corpus.
- `spacy.language.Language.initialize` and `resume_training`: pass the pipeline to the optimizer.
- `thinc.model.Model.copy`: records the names of its layers.
- `thinc.model.Model.use_params` and `spacy.language.Language.use_params`: restore params even after an exception.

When `spacy train` is the main program, or with several processes:

- `spacy.cli.train.train`: reports errors of the config in our words. With several processes, it begins only if all of
  the above are in place, and only rank 0 makes a folder and prints.
- `init_nlp`, as called there: reports errors of the config in our words, and a missing corpus.

An unknown version of spaCy or thinc is left alone, with a warning; so is a function with other arguments than expected.
Without the hook in thinc every param is updated by itself, as by thinc's own optimizers; without the hooks in spaCy,
once per component. Training in several processes is refused then.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import InterpolationError
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import spacy.about
import spacy.language
import spacy.training.loop
import spacy.training.pretrain
import spacy.util
import thinc
import thinc.model
from thinc.api import Optimizer, PyTorchShim

import thinc_torchopt

from .averages import AveragedParams, use_in_model, use_in_pipeline
from .config_checks import check_corpora, check_gpu, check_training_section, mentions_ours, names_ours
from .errors import ConfigError, HostWarning, TorchOptWarning
from .host import first_optimizer
from .host_errors import plain_errors
from .launched import is_launched, rank_in_environment
from .params import (
    backprop_apart,
    begin_update_in_precision,
    components_with_model,
    leave_to_others,
    name_as_original,
)

_MARK = "__thinc_torchopt_hook__"
UseParams = Callable[[Any, Any], AbstractContextManager[None]]
_ours: type[Optimizer] = type("NoOptimizer", (Optimizer,), {})


class Replaced(NamedTuple):
    """A function that is replaced.

    owner (Any): Its module or class. name (str): Its name there.
    params (str): The names of its parameters in the supported versions.
    hook_for (Callable): Makes the replacement from the original.
    without (str): The effect if it is not replaced.
    """

    owner: Any
    name: str
    params: str
    hook_for: Callable[[Any], Any]
    without: str

    @property
    def function(self) -> Any:
        """The current function."""
        return getattr(self.owner, self.name, None)

    @property
    def is_in_place(self) -> bool:
        """Whether the current function is ours."""
        return hasattr(self.function, _MARK)

    @property
    def found(self) -> str:
        """The current function, with its parameters."""
        found = () if self.function is None else inspect.signature(self.function).parameters
        return f"{self.name}({' '.join(found)})"

    @property
    def is_known(self) -> bool:
        """Whether it has the expected parameters, or passes any parameters on to the function before it."""
        if self.function is None:
            return False
        found, expected = list(inspect.signature(self.function).parameters.values()), self.params.split()
        if [param.kind for param in found[-2:]] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]:
            found = found[:-2]
            expected = expected[: len(found)]
        return [param.name for param in found] == expected

    def replace(self) -> None:
        """Install the hook."""
        original = self.function
        hook = functools.wraps(original)(self.hook_for(original))
        setattr(hook, _MARK, True)
        setattr(self.owner, self.name, hook)
        # `spacy train` keeps spaCy's `train` under another name.
        command = sys.modules.get("spacy.cli.train")
        if getattr(command, "train_nlp", None) is original:
            command.train_nlp = hook  # type: ignore[union-attr]


def install(optimizer_class: type[Optimizer]) -> None:
    """Install the hooks. A second call changes nothing.

    optimizer_class (type[Optimizer]): The class of optimizers for which the hooks work.
    """
    global _ours
    _ours = optimizer_class
    _replace(*_THINC)
    _replace(*_SPACY)


def guide_command() -> None:
    """Let `spacy train` report errors of the config in our words, if the config names something of ours. With several
    processes: let it begin only with all hooks in place; processes other than the first make no folder, and print
    nothing but errors.
    """
    module = import_module("spacy.cli.train")
    without = "each process makes a folder, and prints its output"
    commands = [
        Replaced(module, "train", "config_path output_path use_gpu overrides", _train_command, without),
        Replaced(module, "init_nlp", "config use_gpu", _init_nlp, "errors in the config are not in our words"),
    ]
    _, version, known, _ = _SPACY
    # In one process, only wording is at stake: no warning for an unknown spaCy.
    # A wrong environment is no concern of other configs.
    if (version.startswith(known) and all(command.is_known for command in commands)) or is_launched():
        _replace(*_SPACY[:-1], commands)


def check_all_in_place() -> None:
    """RAISES (ConfigError): Functions are not replaced, or were replaced again since. The processes would not train
    together.
    """
    missing = [function.name for function in (*_THINC[-1], *_SPACY[-1]) if not function.is_in_place]
    if missing:
        raise ConfigError(
            "Can't train in several processes: expected the hooks in thinc and spaCy in place, found other functions: "
            f"{', '.join(missing)}. Each process would train by itself. Another package has replaced them without "
            "functools.wraps, or the versions are not supported: see the warning. Train in one process, or remove the "
            "code that replaces them."
        )


def _replace(host: str, version: str, known: str, functions: Sequence[Replaced]) -> None:
    """Replace functions of a host. known (str): The prefix of its supported versions."""
    if not version.startswith(known):
        _leave_alone(host, f"version {known}x", version, functions)
        return
    changed = [function for function in functions if not function.is_known]
    if changed:
        found = ", ".join(function.found for function in changed)
        _leave_alone(host, "the functions of that version", found, changed)
    for function in functions:
        if function not in changed and not function.is_in_place:
            function.replace()


def _leave_alone(host: str, expected: str, found: str, functions: Sequence[Replaced]) -> None:
    names = [function.name for function in functions]
    warnings.warn(
        HostWarning(
            f"Can't hook into {host}: expected {expected}, found {found}. Left alone: {', '.join(names)}. Without "
            f"{'it' if len(names) == 1 else 'them'} TorchOptimizer still works, but not all of it: "
            f"{'; '.join(dict.fromkeys(function.without for function in functions))}. Install a {host} that "
            "thinc-torchopt supports, or remove the code that replaces its functions."
        ),
        stacklevel=4,
    )


def _finish_update(original: Callable[..., None]) -> Callable[..., None]:
    def finish_update(self: thinc.model.Model, optimizer: Any) -> None:
        if isinstance(optimizer, _ours):
            optimizer.finish_update(self)  # type: ignore[attr-defined]
        else:
            leave_to_others(self)
            original(self, optimizer)

    return finish_update


def _begin_update(original: Callable[..., Any]) -> Callable[..., Any]:
    def begin_update(self: PyTorchShim, inputs: Any) -> Any:
        output, backprop = begin_update_in_precision(original, self, inputs)
        return output, backprop_apart(self, backprop)

    return begin_update


def _train_while_improving(original: Callable[..., Any]) -> Callable[..., Any]:
    def train_while_improving(nlp: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        _begun.set(lambda: None)
        if isinstance(optimizer, _ours):
            # The loop is in a higher room than the optimizer, which imports this: it is imported late, by its public
            # name.
            return thinc_torchopt.train_while_improving(nlp, optimizer, *args, **kwargs)
        return original(nlp, optimizer, *args, **kwargs)

    return train_while_improving


class OutputListener(Protocol):
    """An object that needs to know where spaCy saves models."""

    def before_cleaning(self, output: Path | None) -> None: ...

    def after_cleaning(self, output: Path | None) -> None: ...


# The training that was started and has not begun yet, and the end of the current one.
_begun: ContextVar[Callable[[], OutputListener | None]] = ContextVar("_begun", default=lambda: None)
_end: ContextVar[ExitStack | None] = ContextVar("_end", default=None)


def tell_output_to(run: OutputListener) -> None:
    """Tell a run the folder that spaCy cleans for it, which is the next thing that `spacy.training.loop.train` does."""
    _begun.set(weakref.ref(run))


def end_of_training() -> ExitStack | None:
    """Callbacks for the end of the current `spacy.training.loop.train`, which also run after an exception."""
    return _end.get()


def _train(original: Callable[..., Any]) -> Callable[..., Any]:
    def train(nlp: Any, output_path: Any = None, **kwargs: Any) -> Any:
        with ExitStack() as end:
            if _is_for_us(nlp) and is_launched():
                check_all_in_place()
            if _is_for_us(nlp) and rank_in_environment() > 0:
                output_path, kwargs["stdout"] = None, StringIO()
                end.enter_context(_silence(nlp))
            token = _end.set(end)
            try:
                return original(nlp, output_path, **kwargs)
            finally:
                _end.reset(token)

    return train


def _is_for_us(nlp: Any) -> bool:
    """Whether our optimizer will train a pipeline."""
    return isinstance(first_optimizer(nlp), _ours) or _is_ours(nlp.config)


def _train_command(original: Callable[..., None]) -> Callable[..., None]:
    def train(
        config_path: Any, output_path: Any = None, *, use_gpu: int = -1, overrides: Any = MappingProxyType({})
    ) -> None:
        text = ""
        with suppress(Exception):  # spaCy will report errors of the file
            text = Path(config_path).read_text("utf8")
        is_ours = False
        if mentions_ours(text):
            with plain_errors(path=Path(config_path)), suppress(InterpolationError):
                is_ours = _is_ours(spacy.util.load_config(config_path, overrides=overrides))
            check_gpu(use_gpu)
        if is_ours and is_launched():
            import_module("thinc_torchopt.optimizers")  # installs the hooks
            check_all_in_place()
        if is_ours and rank_in_environment() > 0:
            with redirect_stdout(StringIO()):
                original(config_path, None, use_gpu=use_gpu, overrides=overrides)
        else:
            original(config_path, output_path, use_gpu=use_gpu, overrides=overrides)

    return train


def _init_nlp(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_nlp(config: Any, *, use_gpu: int = -1) -> Any:
        if not names_ours(config):
            return original(config, use_gpu=use_gpu)
        with plain_errors(config):
            check_training_section(config)
            check_corpora(config)
            return original(config, use_gpu=use_gpu)

    return init_nlp


def _is_ours(config: Mapping[str, Any]) -> bool:
    """Whether a config names one of our optimizers."""
    block = config.get("training", {}).get("optimizer", {})
    return str(block.get("@optimizers", "")).startswith("thinc-torchopt.")


@contextmanager
def _silence(nlp: Any) -> Iterator[None]:
    """Inside, a training logs nothing and shows none of our warnings."""
    training, log = nlp.config["training"], logging.getLogger("spacy.torchopt")
    logger, level = training["logger"], log.level
    training["logger"] = {"@loggers": "spacy.ConsoleLogger.v3", "progress_bar": None, "console_output": False}
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TorchOptWarning)
            yield
    finally:
        training["logger"] = logger
        log.setLevel(level)


def _clean_output_dir(original: Callable[..., None]) -> Callable[..., None]:
    def clean_output_dir(path: Path | None) -> None:
        run = _begun.get()()
        _begun.set(lambda: None)
        if run is not None:
            run.before_cleaning(path)
        original(path)
        if run is not None:
            run.after_cleaning(path)

    return clean_output_dir


def _create_pretraining_model(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_pretraining_model(nlp: Any, pretrain_config: Any) -> Any:
        optimizer = pretrain_config["optimizer"]
        if isinstance(optimizer, _ours) and is_launched():
            raise ConfigError(
                f"Can't run spacy pretrain in {os.environ['WORLD_SIZE']} processes: all would do the same and write to "
                "the same folder. Run it without torchrun; only spacy train shares the work."
            )
        if isinstance(optimizer, _ours) and optimizer.checkpoint is not None:  # type: ignore[attr-defined]
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
            optimizer = original(self, *args, **kwargs)
            if isinstance(optimizer, _ours):
                optimizer.introduce(self, anew=anew)  # type: ignore[attr-defined]
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


def _copy(original: Callable[..., thinc.model.Model]) -> Callable[..., thinc.model.Model]:
    def copy(self: thinc.model.Model) -> thinc.model.Model:
        made = original(self)
        name_as_original(self, made)
        return made

    return copy


_AVERAGES = "averages reach thinc's params only"
_THINC = (
    "thinc",
    thinc.__version__,
    "8.3.",
    [
        Replaced(
            thinc.model.Model,
            "finish_update",
            "self optimizer",
            _finish_update,
            "it updates each param by itself, and measures no norm of all gradients",
        ),
        Replaced(thinc.model.Model, "use_params", "self params", _use_params(use_in_model), _AVERAGES),
        Replaced(
            PyTorchShim,
            "begin_update",
            "self inputs",
            _begin_update,
            "the setting precision has no effect, and in mixed precision only the last backward pass before an update "
            "counts",
        ),
        Replaced(thinc.model.Model, "copy", "self", _copy, "params of a copied model have other names"),
    ],
)
_SPACY = (
    "spaCy",
    spacy.about.__version__,
    "3.8.",
    [
        Replaced(
            spacy.training.loop,
            "train_while_improving",
            "nlp optimizer train_data evaluate dropout eval_frequency accumulate_gradient patience max_steps exclude "
            "annotating_components before_update",
            _train_while_improving,
            "spaCy's own loop trains, without checkpoints, rules and going back, and each component is updated by "
            "itself",
        ),
        Replaced(
            spacy.training.loop,
            "train",
            "nlp output_path use_gpu stdout stderr",
            _train,
            "a run does not notice its end",
        ),
        Replaced(
            spacy.training.loop,
            "clean_output_dir",
            "path",
            _clean_output_dir,
            "runs with checkpoints do not keep the best model",
        ),
        Replaced(
            spacy.training.pretrain,
            "create_pretraining_model",
            "nlp pretrain_config",
            _create_pretraining_model,
            "settings that pretraining does not support are not refused",
        ),
        Replaced(
            spacy.language.Language,
            "initialize",
            "self get_examples sgd",
            _introduce(anew=True),
            "state of a pipeline from before its new initialization is kept",
        ),
        Replaced(
            spacy.language.Language,
            "resume_training",
            "self sgd",
            _introduce(anew=False),
            "state of a pipeline from before it was resumed is kept",
        ),
        Replaced(spacy.language.Language, "use_params", "self params", _use_params(use_in_pipeline), _AVERAGES),
    ],
)
