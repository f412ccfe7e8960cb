"""The server, as Flower's `ServerApp`: `serverapp = "thinc_torchopt.addons.federated.server:app"`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.checks import Section
from .flower import Context, Grid, ServerApp
from .pipeline import FederatedPipeline, read_config
from .results import Results
from .rounds import Rounds
from .settings import federated_settings

_SETTINGS = Section("[tool.flwr.app.config]")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a pipeline, or go on with its training. Results are written to the folder `output`: see results.py."""
    train(grid, context.run_config)


def train(grid: Grid, run_config: Mapping[str, Any]) -> None:
    """Train a pipeline.

    run_config (Mapping): [tool.flwr.app.config] of the app: `config` (path of a spaCy config), `output` (a folder), and
        values for settings of the config by their dotted path, e.g. `federated.rounds`.
    RAISES (ConfigError): A key is missing. (FederationError): There are too few clients.
    """
    for key in ("config", "output"):
        if not isinstance(run_config.get(key), str) or not run_config[key]:
            example = f"For example: flwr run . --run-config \"{key}='/home/me/...'\""
            _SETTINGS.refuse(key, "an absolute path", run_config.get(key), example)
    config = read_config(str(run_config["config"]), {key: value for key, value in run_config.items() if "." in key})
    settings = federated_settings(config.interpolate())
    results = Results(Path(str(run_config["output"])), settings.resume)
    try:
        Rounds(FederatedPipeline(config), settings, results).run(grid)
    except BaseException as error:
        results.fail(error)
        raise
