"""`spacy train`, if its config names something of ours: the functions of `spacy.cli.train` that are replaced.

- `train`: reports errors of the config in our words. With several processes, it begins only if all functions that
  core/hooks.py lists are replaced, and only rank 0 makes a folder and prints.
- `init_nlp`: reports errors of the config in our words, and a missing corpus.
- `parse_config_overrides`: names the option that was meant.
"""

from __future__ import annotations

from collections.abc import Callable
from configparser import InterpolationError
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

from click import NoSuchOption
from confection import Config
from spacy.util import load_config

from ..core.config_checks import (
    check_corpora,
    check_gpu,
    check_labels,
    check_output,
    check_removed,
    check_training_section,
    mentions_ours,
    names_our_optimizer,
    names_ours,
)
from ..core.errors import ConfigError
from ..core.host_errors import plain_errors
from ..core.launched import is_launched, rank_in_environment
from ..core.replaced import SPACY, Replaced, replace
from ..core.text_files import check_encoding, decode
from ._screen import no_such_option


def guide_command() -> None:
    """Replace the functions."""
    commands = replaced_in_command()
    _, version, known = SPACY
    # In one process, only wording is at stake: no warning for an unknown spaCy.
    if (version.startswith(known) and all(command.is_known for command in commands)) or is_launched():
        replace(*SPACY, commands)


def replaced_in_command() -> list[Replaced]:
    """The functions that are replaced, which imports spaCy's command."""
    module = import_module("spacy.cli.train")
    without = "each process makes a folder, and prints its output"
    return [
        Replaced(module, "train", "config_path output_path use_gpu overrides", _train, without),
        Replaced(module, "init_nlp", "config use_gpu", _init_nlp, "errors in the config are not in our words"),
        Replaced(module, "parse_config_overrides", "args env_var", _parse_config_overrides, "no option is suggested"),
    ]


def _train(original: Callable[..., None]) -> Callable[..., None]:
    def train(
        config_path: Any, output_path: Any = None, *, use_gpu: int = -1, overrides: Any = MappingProxyType({})
    ) -> None:
        text = ""
        with suppress(Exception):  # spaCy will report errors of the file
            text = decode(Path(config_path).read_bytes())
        is_ours, config = False, Config()
        if mentions_ours(text):
            check_encoding(Path(config_path), f"'{config_path}'")
            with plain_errors(path=Path(config_path)), suppress(InterpolationError):
                config = load_config(config_path, overrides=overrides)
                is_ours = names_our_optimizer(config)
            check_gpu(use_gpu)
        if is_ours and output_path is not None and rank_in_environment() == 0:
            check_output(Path(output_path))
            check_removed(config, Path(output_path))
        if is_ours and is_launched():
            import_module("thinc_torchopt.core.optimizer")  # installs the hooks
            import_module("thinc_torchopt.core.hooks").check_all_in_place()
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
            check_labels(config)
            return original(config, use_gpu=use_gpu)

    return init_nlp


def _parse_config_overrides(original: Callable[..., Any]) -> Callable[..., Any]:
    def parse_config_overrides(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except NoSuchOption as error:
            raise ConfigError(no_such_option(error.option_name)) from None

    return parse_config_overrides
