"""Build the config of a command, with its overrides; its pipeline; and its optimizer."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import spacy
from confection import Config
from spacy import util
from spacy.language import Language
from spacy.training.initialize import init_nlp
from spacy.util import registry

from ..addons.recipes import cut_section, with_settings
from ..core.config_checks import check_corpora, check_gpu, check_training_section
from ..core.errors import ConfigError, ConfigWarning, PrecisionWarning, ScheduleWarning
from ..core.host import cli_util
from ..core.host_errors import plain_errors
from ..core.optimizer import TorchOptimizer
from ..core.params import trainable_components
from ..core.state import write_text
from ..core.text_files import check_encoding, decode
from ..loop.data_stream import count_steps
from ..loop.progress_bars import show_activity

_spacy = cli_util()


class Setup(NamedTuple):
    """The pipeline and optimizer that `spacy train` would train.

    nlp (Language): The pipeline, initialized.
    config (Config): Its config, interpolated.
    optimizer (TorchOptimizer): A new one, as spaCy makes before training. It does not know its pipeline yet.
    sourced (Sequence[str]): The pretrained components.
    """

    nlp: Language
    config: Config
    optimizer: TorchOptimizer
    sourced: Sequence[str] = ()

    @property
    def frozen(self) -> list[str]:
        """The components in [training] frozen_components."""
        return list(self.config["training"].get("frozen_components", []))

    def count_steps(self) -> int:
        """The number of training steps. RAISES (ConfigError): The training has no end."""
        return count_steps(self.nlp, self.config)

    def introduce(self) -> None:
        """Tell the optimizer its pipeline, without errors for patterns that match nothing."""
        with self.nlp.select_pipes(disable=[name for name in self.frozen if name in self.nlp.pipe_names]):
            self.optimizer.introduce(self.nlp)

    def initialize(self) -> None:
        """Tell the optimizer its pipeline, as training does. RAISES (TorchOptError): As in training."""
        # spaCy also trains a pipeline with nothing to train.
        if trainable_components(self.nlp, self.frozen):
            self.optimizer.initialize(self.nlp, self.frozen)


def build(
    path: Path,
    args: list[str],
    *,
    code_path: Path | None = None,
    use_gpu: int = -1,
    resolve: Callable[[dict[str, Any]], TorchOptimizer] | None = None,
    reads_dev: bool = False,
) -> Setup:
    """Build pipeline and optimizer.

    path (Path): A config, or the folder of a trained pipeline.
    args (list[str]): Overrides from the command line.
    resolve (Callable): Builds the optimizer. Default: `resolve_optimizer`.
    reads_dev (bool): The command reads the development data: check now that it is there.
    RAISES (ConfigError): The optimizer is not ours; or a schedule has no total_steps and the training no end.
    """
    overrides = read_overrides(args, code_path)
    check_gpu(use_gpu)
    if path.is_dir():
        with config_errors_shown(path), show_activity("Loading the pipeline"):
            nlp = spacy.load(path, config=overrides)
        if reads_dev:
            check_corpora(nlp.config)
        sourced = list(nlp.component_names)
    else:
        config = load_config(path, overrides)
        with config_errors_shown(path, config):
            check_training_section(config)
            check_corpora(config, files=False)  # spaCy builds both readers, whichever is read
            check_corpora(config, ["train_corpus", *["dev_corpus"] * reads_dev])
            # This reads all of the data, to find the labels.
            with show_activity("Building the pipeline"):
                nlp = init_nlp(config, use_gpu=use_gpu)
        sourced = list(util.get_sourced_components(config))
    config = nlp.config.interpolate()
    with config_errors_shown(path, config):
        setup = Setup(nlp, config, (resolve or resolve_optimizer)(config["training"]["optimizer"]), sourced)
    if setup.optimizer.spans_training:
        setup.optimizer.set_total_steps(setup.count_steps())
    return setup


def resolve_optimizer(block: dict[str, Any]) -> TorchOptimizer:
    """Build the optimizer of a config.

    block (dict): [training.optimizer].
    RAISES (ConfigError): It is not ours.
    """
    optimizer = registry.resolve({"optimizer": block})["optimizer"]
    if not isinstance(optimizer, TorchOptimizer):
        raise ConfigError(
            "Can't use [training.optimizer]: expected an optimizer of thinc-torchopt, found "
            f'"{block.get("@optimizers")}". Set @optimizers = "thinc-torchopt.TorchOptimizer.v1" and add a block '
            '[training.optimizer.algorithm] with @torch_optimizers = "torch.AdamW.v1". Or run spacy torchopt init, '
            "which does it for you."
        )
    return optimizer


def read_overrides(args: Sequence[str], code_path: Path | None = None) -> dict[str, Any]:
    """Read overrides from the command line, and import the user's code."""
    overrides: dict[str, Any] = _spacy.parse_config_overrides(list(args))
    _spacy.import_code(code_path)
    return overrides


def load_config(path: Path, overrides: Mapping[str, Any]) -> Config:
    """Load a config, not interpolated. RAISES (ConfigError): It has an error."""
    if path.is_file():
        check_encoding(path, f"'{path}'")
        read_text(path)
    with config_errors_shown(path, hint_fill=True):
        return util.load_config(path, overrides=dict(overrides), interpolate=False)


# ---------------------------------------------------------------------- a config as text


@dataclass
class ConfigSource:
    """A config of the user, to load it with other settings.

    path (Path): Its file.
    text (str): Its text, without [search].
    overrides (dict[str, Any]): From the command line.
    search (dict[str, str]): The section [search]. confection never sees it: it would read sections from the dots in
    its keys.
    """

    path: Path
    text: str
    overrides: dict[str, Any]
    search: dict[str, str] = field(default_factory=dict)

    def load(self, text: str | None = None, overrides: Mapping[str, Any] = {}) -> Config:
        """Load the config with its variables. text (str | None): Another text. overrides (Mapping): More overrides."""
        with config_errors_shown(self.path):
            return util.load_config_from_str(
                self.text if text is None else text, overrides={**self.overrides, **overrides}, interpolate=False
            )

    def write_overrides(self, prefix: str) -> ConfigSource:
        """A copy with some overrides written into its text. prefix (str): The start of their paths."""
        self.load()  # raises for what can't be overridden
        written = {path: value for path, value in self.overrides.items() if path.startswith(prefix)}
        rest = {path: value for path, value in self.overrides.items() if path not in written}
        return replace(self, text=with_settings(self.text, written), overrides=rest)

    @property
    def seed(self) -> int:
        """The seed of the first trial."""
        return int(self.load().interpolate().get("training", {}).get("seed") or 0)


def open_source(path: Path, args: Sequence[str], *, code_path: Path | None, use_gpu: int) -> ConfigSource:
    """Read a config, with overrides, as spaCy's commands do.

    RAISES (ConfigError): It can't be read.
    """
    overrides = read_overrides(args, code_path)
    check_gpu(use_gpu)
    search, text = cut_section(read_text(path), "search")
    return ConfigSource(path, text, overrides, search)


def check_output_file(path: Path | None) -> None:
    """Check early that a config can be written. RAISES (ConfigError): It can't."""
    if path is not None and path.is_dir():
        raise ConfigError(f"Can't write {path}: expected a file, found a folder. Add the name of a file to --output.")


def read_text(path: Path) -> str:
    """Read the text of a config. "-": from stdin. RAISES (ConfigError): It can't be read."""
    try:
        return decode(sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"Can't read '{path}': expected the file of a config, found {error.strerror}. Check the path."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"Can't read '{path}': it is not a text in UTF-8 ({error}). Is it a config?") from error


def write_config(path: Path, text: str) -> None:
    """Write the text of a config, whole or not at all. RAISES (ConfigError): It can't be written."""
    try:
        write_text(path, text)
    except OSError as error:
        raise ConfigError(f"Can't write '{path}': {error}. An existing file was not changed.") from error


# ---------------------------------------------------------------------- errors and notes


@contextmanager
def config_errors_shown(
    path: Path, config: Mapping[str, Any] | None = None, *, hint_fill: bool = False
) -> Iterator[None]:
    """Turn errors in a config into ours; for the rest, spaCy shows its message and ends the program.

    path (Path): The config's path. config (Mapping | None): The config, not interpolated, if it could be read.
    hint_fill (bool): Also tell how to fill in missing settings with spaCy.
    RAISES (ConfigError): The config has an error.
    """
    with _spacy.show_validation_error(path, hint_fill=hint_fill), plain_errors(config, path=path):
        yield


@contextmanager
def schedule_notes() -> Iterator[list[str]]:
    """Collect warnings about schedules, and of settings without effect, in the list that it yields. Other warnings are
    shown as usual.
    """
    notes: list[str] = []
    noted = (ScheduleWarning, ConfigWarning, PrecisionWarning)
    with warnings.catch_warnings(record=True) as caught:
        for category in noted:
            warnings.simplefilter("always", category)
        yield notes
    for warning in caught:
        if issubclass(warning.category, noted):
            notes.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def note_on_scores(optimizer: TorchOptimizer) -> list[str]:
    """A note on schedules that depend on scores, as their values are unknown before training."""
    found = [name for name, source in optimizer.schedules.items() if _watches_scores(source)]
    if not found:
        return []
    return [
        f"These depend on the scores in training: {', '.join(found)}. They are shown as if the score always got better."
    ]


def _watches_scores(source: Any) -> bool:
    # A sequence passes scores to its parts, and has a state only if one of them has.
    return hasattr(source, "observe") and (not hasattr(source, "state_dict") or bool(source.state_dict()))
