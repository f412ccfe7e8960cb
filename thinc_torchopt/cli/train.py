"""`spacy torchopt train`: run `spacy train` in several processes, by torch's launcher."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from spacy import util

from ..checks import Section
from ..config_checks import check_corpora
from ..distributed import wait_for_store
from ..host import cli_util
from ._budget import with_budget
from ._util import config_errors_shown, errors_shown, make_console, print_error, resolve_optimizer

_spacy = cli_util()

_SECTION = Section("spacy torchopt train", verb="use")


def launch(
    config_path: Path,
    args: Sequence[str],
    *,
    output_path: Path | None = None,
    code_path: Path | None = None,
    use_gpu: int = -1,
    verbose: bool = False,
    processes: int = 1,
    machines: int = 1,
    machine: int = 0,
    endpoint: str | None = None,
    max_restarts: int = 0,
    budget: str | None = None,
) -> None:
    """Train in several processes, and exit with their exit code.

    args (Sequence[str]): Overrides of the config. For the other arguments, see `train_cli`.
    """
    with errors_shown(as_json=False):
        if machine >= machines:
            _SECTION.refuse("--node-rank", f"a number below --nnodes, {machines}", machine)
        host, port = ("", 0) if machines == 1 else address_of(endpoint)
        if budget is not None:
            config_path, told = with_budget(config_path, args, budget, output_path=output_path, code_path=code_path)
            args = ()
            for line in told:
                make_console().print(line)
        check_config(config_path, args, code_path)
        if machine:
            wait_for_store(host, port)
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
    sys.exit(_run([*command, *args]))


def address_of(endpoint: str | None) -> tuple[str, int]:
    """Split an endpoint into host and port. RAISES (ConfigError): One of them is missing or invalid."""
    host, _, port = (endpoint or "").rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        _SECTION.refuse(
            "--rdzv-endpoint", "host:port of the machine with --node-rank 0, with a port of 1 to 65535", endpoint
        )
    return host, int(port)


def check_config(config_path: Path, args: Sequence[str], code_path: Path | None) -> None:
    """Check the optimizer and the corpora before any process is started.

    RAISES (ConfigError): The optimizer is not ours, or a corpus is missing.
    """
    overrides = _spacy.parse_config_overrides(list(args))
    _spacy.import_code(code_path)
    with config_errors_shown(config_path, hint_fill=True):
        config = util.load_config(config_path, overrides=overrides, interpolate=False)
    with config_errors_shown(config_path, config):
        resolve_optimizer(config.interpolate()["training"]["optimizer"])
        check_corpora(config)


def _run(command: list[str]) -> int:
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
        if isinstance(failure.message, dict):  # written by distributed/failures.py
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
