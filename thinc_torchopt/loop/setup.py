"""The pipeline and the optimizer that `spacy train` would train, for all that looks before training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import spacy
from confection import Config, ConfigValidationError
from spacy import util
from spacy.language import Language
from spacy.training.initialize import init_nlp
from spacy.util import registry

from ..core.config_checks import check_corpora, check_gpu, check_names, check_training_section, pipeline_in
from ..core.errors import CheckpointWarning, ConfigError, ConfigWarning, PrecisionWarning, ScheduleWarning
from ..core.host_errors import plain_errors
from ..core.optimizer import TorchOptimizer
from ..core.params import trainable_components
from ..core.text_files import check_config_file
from .components import check_listeners, may_read_tensors
from .data_stream import count_steps
from .progress_bars import show_activity

# A config, its file, or the folder of a trained pipeline.
AnyConfig: TypeAlias = str | Path | Config


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
        annotating = self.config["training"].get("annotating_components", [])
        check_listeners(self.nlp, self.frozen, annotating, have_tensors=may_read_tensors(self.nlp))
        # spaCy also trains a pipeline with nothing to train.
        if trainable_components(self.nlp, self.frozen):
            self.optimizer.initialize(self.nlp, self.frozen)


def build(
    source: AnyConfig,
    overrides: Mapping[str, Any] = {},
    *,
    use_gpu: int = -1,
    resolve: Callable[[dict[str, Any]], TorchOptimizer] | None = None,
    reads_dev: bool = False,
) -> Setup:
    """Build pipeline and optimizer.

    source (AnyConfig): A config, or the folder of a trained pipeline.
    overrides (Mapping): Other values, by paths such as "training.max_steps".
    resolve (Callable): Builds the optimizer. Default: `resolve_optimizer`.
    reads_dev (bool): The development data is read too: check now that it is there.
    RAISES (ConfigError): The optimizer is not ours; or a schedule has no total_steps and the training no end.
    """
    check_gpu(use_gpu)
    path = path_of(source)
    if path is not None and path.is_dir():
        if not (path / "config.cfg").is_file():
            raise ConfigError(
                f"Can't load the pipeline '{path}': expected a folder with config.cfg, found one without. "
                f"{pipeline_in(path)}"
            )
        with config_errors(path=path), show_activity("Loading the pipeline"):
            check_names(overrides)
            nlp = spacy.load(path, config=checked_overrides(overrides))
        if reads_dev:
            check_corpora(nlp.config)
        sourced = list(nlp.component_names)
    else:
        config = load_config(source, overrides)
        with config_errors(config, path=path):
            check_training_section(config)
            check_corpora(config, files=False)  # spaCy builds both readers, whichever is read
            check_corpora(config, ["train_corpus", *["dev_corpus"] * reads_dev])
            # This reads all of the data, to find the labels.
            with show_activity("Building the pipeline"):
                nlp = init_nlp(config, use_gpu=use_gpu)
        sourced = list(util.get_sourced_components(config))
    config = nlp.config.interpolate()
    with config_errors(config, path=path):
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


def load_config(source: AnyConfig, overrides: Mapping[str, Any] = {}) -> Config:
    """Load a config, not interpolated.

    overrides (Mapping): Other values, by paths such as "training.max_steps".
    RAISES (ConfigError): It has an error, or can't be read.
    """
    path, given = path_of(source), checked_overrides(overrides)
    if path is not None:
        check_config_file(path)
    with config_errors(path=path):
        if isinstance(source, Config):
            return Config().from_str(source.to_str(interpolate=False), overrides=given, interpolate=False)
        return util.load_config(source, overrides=given, interpolate=False)


def path_of(source: AnyConfig) -> Path | None:
    """The file or folder of a config; "-" is stdin. None: it has none. RAISES (ConfigError): There is no such file."""
    if isinstance(source, Config):
        return None
    path = Path(source)
    if str(path) != "-" and not path.exists():
        raise ConfigError(
            f"Can't read '{path}': expected the file of a config, or the folder of a trained pipeline, found nothing "
            "there. Check the path."
        )
    return path


def checked_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides as confection reads them. RAISES (ConfigError): One is not the path of a setting."""
    for path, value in overrides.items():
        if "." not in path or isinstance(value, Mapping):
            found = f"'{path}'" if "." not in path else f"a dict at '{path}'"
            raise ConfigError(
                f"Can't override settings: expected a path with dots and its value, such as 'training.max_steps': "
                f"100, found {found}. Write the whole path of each setting."
            )
    return {path: str(value) if isinstance(value, Path) else value for path, value in overrides.items()}


# ---------------------------------------------------------------------- errors and notes


@contextmanager
def config_errors(config: Mapping[str, Any] | None = None, *, path: Path | None = None) -> Iterator[None]:
    """Raise all errors in a config as ours.

    config (Mapping | None): The config, not interpolated, if it could be read.
    path (Path | None): Its file.
    RAISES (ConfigError): The config has an error.
    """
    try:
        with plain_errors(config, path=path):
            yield
    except ConfigValidationError as error:
        # Without the dump of the whole section.
        text = str(error.from_error(error, show_config=False)).strip()
        if "value_error.missing" in error.error_types and path is not None:
            text += f"\nTo fill in missing values: spacy init fill-config {path} {path}"
        raise ConfigError(text) from error


@contextmanager
def schedule_notes() -> Iterator[list[str]]:
    """Collect warnings about schedules and checkpoints, and of settings without effect, in the list that it yields.
    Other warnings are shown as usual.
    """
    notes: list[str] = []
    noted = (ScheduleWarning, CheckpointWarning, ConfigWarning, PrecisionWarning)
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
    found = watching_scores(optimizer)
    if not found:
        return []
    return [
        f"These depend on the scores in training: {', '.join(found)}. They are shown as if the score always got better."
    ]


def watching_scores(optimizer: TorchOptimizer) -> list[str]:
    """The schedules that depend on scores."""
    return [name for name, source in optimizer.schedules.items() if _watches_scores(source)]


def _watches_scores(source: Any) -> bool:
    # A sequence passes scores to its parts, and has a state only if one of them has.
    return hasattr(source, "observe") and (not hasattr(source, "state_dict") or bool(source.state_dict()))
