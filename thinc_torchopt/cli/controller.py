"""`spacy torchopt controller`: check the rules of a controller."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from confection import Config
from spacy import util
from typer import Argument as Arg
from typer import Context

from ..addons.controller import ControllerSettings, ControllerSpec, trainer_controller
from ..addons.controller.run_rules import names_in_run
from ..core.errors import ConfigError
from ..core.host import cli_util
from ..core.tables import print_table
from ..core.words import count
from ..loop.setup import config_errors, load_config
from ._command import CODE, JSON
from ._screen import errors_shown, make_console, print_json, print_notes
from ._setup import read_overrides


def controller(
    ctx: Context,
    definition_path: Path = Arg(
        ..., help="YAML or JSON file with the rules, config file, or folder of a pipeline", exists=True
    ),
    as_json: bool = JSON,
    code_path: Optional[Path] = CODE,
) -> None:
    """
    Check the rules of a controller. Lists all errors of the definition at once; without errors, shows on which events
    the rules run and what they do. Nothing is trained, and no operation runs.
    """
    with errors_shown(as_json=as_json):
        cli_util().import_code(code_path)
        config, settings = _rules_of(definition_path, ctx.args)
        notes = _doubts(definition_path, config, settings)
    definition = settings.definition
    specs = definition.controllers
    if as_json:
        metrics = {name: part.kind for name, part in definition.metrics.items()}
        found = {"metrics": metrics, "controllers": [_as_dict(spec) for spec in specs], "notes": notes}
        print_json({"definition": str(definition_path), **found})
        return
    console = make_console()
    console.print(
        f"{definition_path} can be used: {count(len(definition.metrics), 'metric')}, {count(len(specs), 'controller')}."
    )
    headers = ["controller", "on", "does", "when its rule holds"]
    print_table(
        console,
        headers,
        [[spec.name, ", ".join(spec.triggers), ", ".join(_actions_of(spec)), _tell_limits(spec)] for spec in specs],
    )
    print_notes(console, notes)


def _rules_of(path: Path, args: list[str]) -> tuple[Config | None, ControllerSettings]:
    """The rules of a file, or of a config. args (list[str]): Overrides of a config.

    RETURNS (tuple): The config (None: the rules are in a file of their own), and the rules.
    RAISES (ConfigError): The config has no rules. (ControllerError): The rules have errors.
    """
    if not path.is_dir() and path.suffix != ".cfg":
        if args:
            raise ConfigError(
                f"Can't use {args[0]}: {path} is a file of rules, in which a config's settings can't be changed."
            )
        return None, trainer_controller(path)
    config = load_config(path / "config.cfg" if path.is_dir() else path, read_overrides(args)).interpolate()
    block = config.get("training", {}).get("optimizer", {}).get("controller")
    if block is None:
        raise ConfigError(
            f"Can't check the rules of {path}: expected a block [training.optimizer.controller], found none."
        )
    with config_errors(config, path=path):
        found = util.registry.resolve({"controller": block})["controller"]
    if not isinstance(found, ControllerSettings):
        raise ConfigError(
            f"Can't check the rules of {path}: expected a block [training.optimizer.controller] with @misc = "
            '"thinc-torchopt.TrainerController.v1".'
        )
    return config, found


def _doubts(path: Path, config: Config | None, settings: ControllerSettings) -> list[str]:
    """Names in rules that may be wrong. RAISES (ControllerError): Names that are."""
    if config is None or not config.get("nlp", {}).get("pipeline"):
        return []
    try:
        nlp = util.load_model_from_config(config, auto_fill=True)
    except Exception as error:  # components may raise anything
        return [f"Names of components and scores were not checked: no pipeline can be made of {path}. {error}"]
    return settings.build().check_keys((), *names_in_run(nlp))


def _as_dict(spec: ControllerSpec) -> dict[str, Any]:
    patience = spec.patience
    return {
        "name": spec.name,
        "triggers": spec.triggers,
        "rule": spec.rule.text,
        "operations": _actions_of(spec),
        "patience": None if patience is None else patience.threshold,
        "in_a_row": None if patience is None else patience.resets,
        "cooldown": spec.cooldown,
        "max_firings": spec.max_firings,
    }


def _actions_of(spec: ControllerSpec) -> list[str]:
    """The actions of a rule, as in its definition."""
    return [f"{operation}.{action}" for operation, action in spec.actions]


def _tell_limits(spec: ControllerSpec) -> str:
    """The limits on the firings of a rule."""
    parts = []
    if spec.patience is not None:
        in_a_row = " in a row" if spec.patience.resets else ""
        parts.append(f"more than {count(spec.patience.threshold, 'time')}{in_a_row}")
    if spec.cooldown:
        parts.append(f"then not for {count(spec.cooldown, 'step')}")
    if spec.max_firings is not None:
        parts.append(f"at most {count(spec.max_firings, 'firing')}")
    return ", ".join(parts) or "each time"
