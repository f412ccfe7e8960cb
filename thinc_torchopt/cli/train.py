"""`spacy torchopt train`: run `spacy train` in several processes, by torch's launcher; also within a budget."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import typer
from confection import Config
from typer import Option as Opt

from ..addons.budget import read_limit
from ..addons.distributed import wait_for_store
from ..addons.recipes import TORCH, put
from ..core.checks import Section
from ..core.config_checks import check_corpora
from ..core.errors import ConfigError
from ..core.words import count, plain
from ..loop.checkpoint_folder import resumable
from ..loop.schedule_check import rates_of_settings
from ..loop.setup import config_errors, load_config, resolve_optimizer
from ._command import CODE, TRAINING_CONFIG
from ._screen import errors_shown, make_console, print_error, show_plain_headings
from ._setup import read_overrides

_SECTION = Section("spacy torchopt train", verb="use")
_DEFAULT_RATE = 0.001
# The config's warm-up is kept, up to this part of the training.
_LONGEST_WARMUP = 0.05
# Length of the decay if a signal starts it, in a run without its budget.
_DECAY_STEPS = 500


def train(
    ctx: typer.Context,
    config_path: Path = TRAINING_CONFIG,
    output_path: Optional[Path] = Opt(
        None, "--output", "--output-path", "-o", help="Output directory to store trained pipeline in"
    ),
    code_path: Optional[Path] = CODE,
    verbose: bool = Opt(False, "--verbose", "-V", "-VV", help="Display more information for debugging purposes"),
    use_gpu: int = Opt(-1, "--gpu-id", "-g", help="GPU ID, or -1 for CPU. Of several processes, each has its own: 0"),
    processes: int = Opt(1, "--nproc-per-node", "-n", min=1, help="Number of processes on this machine"),
    machines: int = Opt(1, "--nnodes", min=1, help="Number of machines. Run the same command on each"),
    machine: int = Opt(0, "--node-rank", min=0, help="Number of this machine, from 0. Machine 0 writes the output"),
    endpoint: Optional[str] = Opt(None, "--rdzv-endpoint", help="host:port of the machine with --node-rank 0"),
    max_restarts: int = Opt(0, "--max-restarts", min=0, help="How often to restart after a process died"),
    budget: Optional[str] = Opt(None, "--budget", "-b", help='How long to train: 20m, 1h30m, "5000 steps", "2M words"'),
) -> None:
    """
    Train in several processes, or within a budget. Works as `spacy train` does, on one machine or several: the
    processes split the batches, and each update uses the gradients of all processes. With --budget, the learning rate
    rises to its highest value in the config, stays there, and falls to 0 at the end of the budget; schedules, max_steps
    and patience have no effect. Pass overrides such as --paths.train train.spacy as in `spacy train`.
    """
    args = ctx.args
    with errors_shown(as_json=False):
        is_launched = (processes, machines, max_restarts) != (1, 1, 0)
        if machine >= machines:
            _SECTION.refuse("--node-rank", f"a number below --nnodes, {machines}", machine)
        if is_launched and use_gpu > 0:
            _SECTION.refuse("--gpu-id", "0 with a launcher, where each process has its own GPU", use_gpu)
        host, port = ("", 0) if machines == 1 else _address_of(endpoint)
        overrides = read_overrides(args, code_path)
        if budget is not None:
            config_path, told = with_budget(config_path, overrides, budget, output_path, machine)
            args, overrides = [], read_overrides([])
            for line in told:
                make_console().print(line)
        # Before any process is started.
        config = load_config(config_path, overrides)
        with config_errors(config, path=config_path):
            resolve_optimizer(config.interpolate()["training"]["optimizer"])
            check_corpora(config)
        if machine:
            wait_for_store(host, port)
    if not sys.stdout.isatty():
        os.environ.setdefault("ANSI_COLORS_DISABLED", "1")  # spaCy writes codes of colours to files and pipes, too
    if not is_launched:
        ctx.args = args
        _train_here(ctx, config_path, output_path, verbose=verbose, use_gpu=use_gpu)
        return
    command = ["--nproc-per-node", str(processes), "--max-restarts", str(max_restarts)]
    if machines == 1:
        command += ["--standalone"]
    else:
        command += ["--nnodes", str(machines), "--node-rank", str(machine)]
        command += ["--master-addr", host, "--master-port", str(port)]
    if use_gpu >= 0:
        # Each process sees only its own GPU, as device 0.
        command += ["--virtual-local-rank"]
        use_gpu = 0
    else:
        # As a rule, each process has one core. More threads than cores are slower than one.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    command += ["-m", "spacy", "train", str(config_path), "--gpu-id", str(use_gpu)]
    command += ["--output", str(output_path)] if output_path is not None else []
    command += ["--code", str(code_path)] if code_path is not None else []
    command += ["--verbose"] if verbose else []
    sys.exit(_launch([*command, *args]))


def _address_of(endpoint: str | None) -> tuple[str, int]:
    """Split an endpoint into host and port. RAISES (ConfigError): One of them is missing or invalid."""
    host, _, port = (endpoint or "").rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        _SECTION.refuse(
            "--rdzv-endpoint", "host:port of the machine with --node-rank 0, with a port of 1 to 65535", endpoint
        )
    return host, int(port)


def _train_here(ctx: typer.Context, config_path: Path, output_path: Path | None, **options: Any) -> None:
    """Run `spacy train` in this process, which has imported the user's code: one process may use all cores."""
    from spacy.cli.train import train_cli

    from ._train_command import guide_command

    guide_command()
    show_plain_headings()
    train_cli(ctx, config_path, output_path, code_path=None, **options)


def _launch(command: list[str]) -> int:
    """Run torch's launcher. RETURNS (int): The exit code."""
    from torch.distributed import DistNetworkError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    console = make_console(stderr=True)
    try:
        run(parse_args(command))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if isinstance(failure.message, dict):  # from report_failure of addons/distributed
            ended = f"failed: {failure.message['message']}"
        elif failure.exitcode < 0:
            ended = f"was killed by {signal.Signals(-failure.exitcode).name}."
        else:
            ended = f"ended with exit code {failure.exitcode}."
        advice = "Run the same command again to resume from the last checkpoint, if there is one."
        print_error(console, f"Training stopped. Rank {rank} was the first to fail: it {ended}\n{advice}")
        return failure.exitcode if failure.exitcode > 128 else 1
    except RuntimeError as error:
        # torch 2.6 raises a plain RuntimeError for a port in use.
        if not isinstance(error, DistNetworkError) and "EADDRINUSE" not in str(error):
            raise
        found = str(error).strip().splitlines()[0]
        advice = "Choose a port that is free here for --rdzv-endpoint." if "EADDRINUSE" in found else ""
        print_error(console, f"Training stopped: the launcher's store does not work: {found}. {advice}".rstrip())
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


# ---------------------------------------------------------------------- a budget


def with_budget(
    config_path: Path, overrides: Mapping[str, Any], budget: str, output_path: Path | None, machine: int = 0
) -> tuple[Path, list[str]]:
    """Write the config of a training within a budget.

    budget (str): As in `training.Budget`.
    output_path (Path | None): Where spaCy will save models.
    machine (int): Number of this machine. Only machine 0 needs the checkpoints.
    RETURNS (tuple): The path of the new config (in that folder, or beside the checkpoints), and what was changed.
    RAISES (ConfigError): The config can't be trained within a budget.
    """
    limit, unit = read_limit(budget, _SECTION, "--budget")
    config = load_config(config_path, overrides)
    with config_errors(path=config_path):
        plain_config = config.interpolate()
    block = config.get("training", {}).get("optimizer")
    if not isinstance(block, Mapping):
        raise ConfigError(
            "Can't train with --budget: expected a section [training.optimizer], found "
            f"{'none' if block is None else f'a value, {block}'}. Write its settings into such a section."
        )
    block = plain_config["training"]["optimizer"]
    if block["@optimizers"] != TORCH:
        raise ConfigError(
            f'Can\'t train with --budget: expected @optimizers = "{TORCH}" in [training.optimizer], found '
            f'"{block["@optimizers"]}", which has no checkpoints. Convert it, for example with spacy torchopt init '
            "--recipe robust."
        )
    checkpoint = _at(block, ("checkpoint",)) or {}
    state = checkpoint.get("path") or (output_path and output_path / "state")
    if state is None:
        _SECTION.refuse("--budget", "--output, or a path in [training.optimizer.checkpoint], for checkpoints", None)
    folder = output_path if output_path is not None else Path(state).parent
    path = folder / "budget.cfg"
    optimizer, training, told = config["training"]["optimizer"], plain_config["training"], []
    optimizer.setdefault("checkpoint", {"@misc": "thinc-torchopt.Checkpoint.v1"})
    before = _optimizer_before(path)
    if checkpoint.get("resume") == "never" or not (machine or resumable(Path(state))):
        before = {}  # as far as this machine can tell
    longest = int(_LONGEST_WARMUP * (limit if unit == "steps" else training.get("max_steps") or 20_000))
    for place, rates in {("learn_rate",): [_DEFAULT_RATE], **rates_of_settings(plain_config)}.items():
        given = rates.index(max(rates))
        peak = float(f"{max(rates):.15g}")  # as written in the config: a warm-up may end a last bit beside it
        # Another budget may allow a longer one: that of a run that has begun must stay the same.
        steps = (_at(before, place) or {}).get("warmup_steps", longest)
        steps = min(given, steps if steps <= given else longest)
        put(optimizer, place, _stable(peak, steps))
        rise = f"rises to {plain(peak)} in {count(steps, 'step')}, and stays"
        told.append(f"{'.'.join(place)}: {rise} until it falls for the end of the budget.")
    own = _at(optimizer, ("budget",)) or {}
    optimizer["budget"] = {"@misc": "thinc-torchopt.Budget.v1", **own, "limit": budget}
    config["training"] |= {
        "max_steps": int(limit) - 1 if unit == "steps" else 0,
        "max_epochs": min(0, training.get("max_epochs", 0)),
        "patience": 0,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(config.to_str(interpolate=False), encoding="utf8")
    except OSError as error:
        raise ConfigError(
            f"Can't write '{path}': expected a folder that can be written to, found: {error}. Change --output."
        ) from error
    return path, [*told, f"max_steps, max_epochs and patience have no effect. The config is saved to {path}."]


def _optimizer_before(path: Path) -> Mapping[str, Any]:
    """[training.optimizer] of the config that a run within a budget has there. Empty: there is none.

    RAISES (ConfigError): Another file is there.
    """
    if not path.exists():
        return {}
    try:
        block: Mapping[str, Any] = Config().from_disk(path, interpolate=False)["training"]["optimizer"]
        block["budget"]
        return block
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError(
            f"Can't read '{path}': expected the config of a training with --budget, found another file. Remove it "
            "(the training may then have another warm-up), or change --output."
        ) from error


def _stable(rate: float, warmup_steps: int) -> dict[str, Any]:
    """A schedule with a warm-up that stays at its peak. rate (float): The peak."""
    return {
        "@schedules": "thinc-torchopt.warmup_stable_decay.v1",
        "initial_rate": rate,
        "warmup_steps": warmup_steps,
        "decay_steps": _DECAY_STEPS,
        "decay_begins": "when told",
        "decay_type": "linear",
    }


def _at(block: Any, place: Sequence[str]) -> Mapping[str, Any] | None:
    """The section at a place, if there is one."""
    for part in place:
        block = block.get(part) if isinstance(block, Mapping) else None
    return block if isinstance(block, Mapping) else None
