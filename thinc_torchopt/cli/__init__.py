"""`spacy torchopt`: show every param with its learning rate, show the rates of a whole run, find a rate.

spaCy imports this for each of its commands, so it must be cheap: what a command needs is imported when it runs.
"""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Optional

import typer
from typer import Argument as Arg
from typer import Option as Opt

from ..errors import ConfigError
from ..host import cli_util
from ..launched import is_launched
from ._screen import is_main_program, show_errors

torchopt_cli = typer.Typer(
    name="torchopt",
    help="Give a config an optimizer of thinc-torchopt; see what it will do, and what it did.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
cli_util().app.add_typer(torchopt_cli)

# What is left over are overrides of settings in the config, as in spaCy's own commands.
_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
_CONFIG = Arg(..., help="Path to config file, or to the folder of a trained pipeline", exists=True, allow_dash=True)
_LOGS = Arg(
    ..., help="Logs that JSONLinesLogger wrote. Several: their runs in one picture", exists=True, dir_okay=False
)
_CHECKPOINTS = Arg(..., help="Folder of a run's checkpoints, or one of them", exists=True, file_okay=False)
_JSON = Opt(False, "--json", help="Print JSON, and nothing else, to stdout")
_PICTURE = Opt(None, "--output", "-o", help="File for the picture: .png, .svg or .pdf. Needs the extra 'plot'")
_REPORT = Opt(None, "--output", "-o", help="File for the report: .html, .png, .svg or .pdf. Needs the extra 'plot'")
_CODE = Opt(None, "--code", "-c", help="Path to Python file with additional code (registered functions) to be imported")
_RECIPES = ("best", "drop-in", "adamw", "fine-tune", "low-memory", "robust")
_TRIED = "best,adamw,robust"
_RECIPE = Opt(..., "--recipe", "-r", help=f"What to make of the optimizer: {', '.join(_RECIPES)}")
_CONFIG_FILE = Arg(..., help="Path to config file, or - for stdin")
_OUTPUT_FILE = Arg(..., help="Path to output .cfg file, which may be the same, or - for stdout")
_DEFINITION = Arg(..., help="YAML or JSON file with the rules", exists=True, dir_okay=False)
_REPLAY = Opt(
    None, "--replay", help="Log that JSONLinesLogger wrote: which rules would have fired", exists=True, dir_okay=False
)
_MORE_LOGS = Arg(None, metavar="LOG", help="With --replay: more logs of the same run", exists=True, dir_okay=False)
_CONFIG_OF_TRAINING = Arg(..., help="Path to config file", exists=True, dir_okay=False)
_TRAINED = Opt(None, "--output", "--output-path", "-o", help="Output directory to store trained pipeline in")
_BEST = Opt(None, "--output", "-o", help="File for the best config: yours, with what was found better")
_SIDE_PICTURE = Opt(None, "--picture", "-p", help="File for a picture: .png, .svg or .pdf. Needs the extra 'plot'")
_SET = Opt(
    None,
    "--set",
    metavar="PATH=VALUES",
    help="Setting to search: 1e-4..1e-2:log, 0.0..0.5, 1..8, 16|32. Repeatable",
)
_STUDY = Opt(Path("tune.db"), "--study", help="SQLite file of the study; if it is there, it goes on", dir_okay=False)
_GPU = Opt(-1, "--gpu-id", "-g", help="GPU ID or -1 for CPU")


_launched = False
with suppress(ConfigError):  # what is wrong with the environment, a training in several processes will say
    _launched = is_launched()
if _launched:
    from ..distributed import report_failure

    show_errors(report_failure)
elif is_main_program():
    show_errors()
if _launched or (is_main_program() and sys.argv[1:2] == ["train"]):
    from ..hooks import guide_command

    guide_command()


@torchopt_cli.command("train", context_settings=_OVERRIDES)
def train_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG_OF_TRAINING,
    output_path: Optional[Path] = _TRAINED,
    code_path: Optional[Path] = _CODE,
    verbose: bool = Opt(False, "--verbose", "-V", "-VV", help="Display more information for debugging purposes"),
    use_gpu: int = Opt(-1, "--gpu-id", "-g", help="0: each process has a GPU of its own. -1: CPU"),
    processes: int = Opt(1, "--nproc-per-node", "-n", min=1, help="Processes on this machine"),
    machines: int = Opt(1, "--nnodes", min=1, help="Machines. Run the same command on each"),
    machine: int = Opt(0, "--node-rank", min=0, help="Which of them this is. 0 has the output"),
    endpoint: Optional[str] = Opt(None, "--rdzv-endpoint", help="host:port of the machine with --node-rank 0"),
    max_restarts: int = Opt(0, "--max-restarts", min=0, help="How often to go on after a process has died"),
    budget: Optional[str] = Opt(None, "--budget", "-b", help='How long to train: 20m, 1h30m, "5000 steps", "2M words"'),
    any_time: bool = Opt(False, "--any-time", help="With --budget: finished models at a quarter and a half of it, too"),
) -> None:
    """
    Train in several processes, or within a budget. As `spacy train` does, on one machine or several: each batch is
    shared between the processes, and each update takes the gradients of all. With --budget, the learning rate stays at
    the highest of the config, and falls in time to end with the budget, in the place of schedules, max_steps and
    patience. Overrides such as --paths.train train.spacy are needed as in `spacy train`.
    """
    from .train import launch

    launch(
        config_path,
        ctx.args,
        output_path=output_path,
        code_path=code_path,
        use_gpu=use_gpu,
        verbose=verbose,
        processes=processes,
        machines=machines,
        machine=machine,
        endpoint=endpoint,
        max_restarts=max_restarts,
        budget=budget,
        any_time=any_time,
    )


@torchopt_cli.command("params", context_settings=_OVERRIDES)
def params_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG,
    steps: Optional[int] = Opt(None, "--steps", "-n", min=0, help="Show the learning rate at this step as well"),
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    List every param, with its group and learning rate. For each: name, shape, size, device, kind, group, learning rate,
    weight decay, and whether it is frozen; sums by group and by component; patterns in the config that match nothing.
    The pipeline is built and initialized as `spacy train` would, so overrides such as --paths.train train.spacy are
    needed here too; a trained pipeline is loaded. Nothing is trained or written.
    """
    from .params import show_params

    show_params(config_path, ctx.args, steps=steps, as_json=as_json, code_path=code_path, use_gpu=use_gpu)


@torchopt_cli.command("schedule", context_settings=_OVERRIDES)
def schedule_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG,
    steps: Optional[int] = Opt(
        None, "--steps", "-n", min=1, help="Last step to show. Default: max_steps in [training]"
    ),
    output_path: Optional[Path] = _PICTURE,
    log: bool = Opt(False, "--log", help="Rates on a logarithmic scale"),
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    Show the learning rate of each param group over the steps. As text, as JSON, or as a picture. The pipeline is built
    and initialized as `spacy train` would, so overrides such as --paths.train train.spacy are needed here too. Nothing
    is trained.
    """
    from .schedule import show_schedule

    show_schedule(
        config_path,
        ctx.args,
        steps=steps,
        output_path=output_path,
        log=log,
        as_json=as_json,
        code_path=code_path,
        use_gpu=use_gpu,
    )


@torchopt_cli.command("find-lr", context_settings=_OVERRIDES)
def find_lr_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG,
    min_rate: float = Opt(1e-6, "--min-lr", help="Learning rate of the first step"),
    max_rate: float = Opt(10.0, "--max-lr", help="Learning rate of the last step"),
    steps: int = Opt(140, "--steps", "-n", help="How many steps to train at most"),
    output_path: Optional[Path] = _PICTURE,
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    Find a learning rate, in a test of a few steps. The rate rises, and the loss on some of the development data shows
    at which rates it falls, and at which it rises again. The pipeline is built or loaded for the test only; nothing
    but the picture is written. The rates of param groups keep their ratios. Overrides such as --paths.train
    train.spacy are needed as in `spacy train`.
    """
    from .find_lr import show_range_test

    show_range_test(
        config_path,
        ctx.args,
        min_rate=min_rate,
        max_rate=max_rate,
        steps=steps,
        output_path=output_path,
        as_json=as_json,
        code_path=code_path,
        use_gpu=use_gpu,
    )


@torchopt_cli.command("try", context_settings=_OVERRIDES)
def try_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG_OF_TRAINING,
    recipes: str = Opt(_TRIED, "--recipes", "-r", help=f"Which, with commas between them: {', '.join(_RECIPES)}"),
    steps: int = Opt(200, "--steps", "-n", help="Steps of each trial"),
    seeds: int = Opt(2, "--seeds", "-s", help="How many trials of each, which differ in their seed"),
    output_path: Optional[Path] = _BEST,
    picture_path: Optional[Path] = _SIDE_PICTURE,
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    Try recipes on your data, in short trainings. Train for a few steps with the config as it is and with each recipe,
    with several seeds, and say which is better, and whether that is more than chance. Each trial has a pipeline of its
    own; there are no loggers, checkpoints or output folders. Overrides such as --paths.train train.spacy are needed as
    in `spacy train`.
    """
    from .try_ import try_recipes

    try_recipes(
        config_path,
        ctx.args,
        recipes=recipes,
        steps=steps,
        seeds=seeds,
        output_path=output_path,
        picture_path=picture_path,
        as_json=as_json,
        code_path=code_path,
        use_gpu=use_gpu,
    )


@torchopt_cli.command("tune", context_settings=_OVERRIDES)
def tune_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG_OF_TRAINING,
    given: Optional[list[str]] = _SET,
    recipe: Optional[str] = Opt(None, "--recipe", "-r", help=f"Rewrite the optimizer first: {', '.join(_RECIPES)}"),
    steps: int = Opt(200, "--steps", "-n", help="Steps of each trial"),
    trials: int = Opt(30, "--trials", "-t", help="Trials of the study, those of all its runs together"),
    seeds: int = Opt(2, "--seeds", "-s", help="With how many other seeds the best five are done again"),
    prune: bool = Opt(True, "--prune/--no-prune", help="Stop trials early that are worse than most others"),
    study_path: Path = _STUDY,
    output_path: Optional[Path] = _BEST,
    picture_path: Optional[Path] = _SIDE_PICTURE,
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    Search for better settings on your data, by Optuna. It tries values in short trainings (extra 'tune'). Which
    settings: --set, or a section [search] in the config, or else the learning rate, weight decay and dropout. Run the
    same command again to go on, or at the same time to share the work. Overrides such as --paths.train train.spacy are
    needed as in `spacy train`.
    """
    from .tune import tune

    tune(
        config_path,
        ctx.args,
        given=given or (),
        recipe=recipe,
        steps=steps,
        trials=trials,
        seeds=seeds,
        prune=prune,
        study_path=study_path,
        output_path=output_path,
        picture_path=picture_path,
        as_json=as_json,
        code_path=code_path,
        use_gpu=use_gpu,
    )


@torchopt_cli.command("init", context_settings=_OVERRIDES)
def init_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG_FILE,
    output_path: Path = _OUTPUT_FILE,
    recipe: str = _RECIPE,
    code_path: Optional[Path] = _CODE,
) -> None:
    """
    Give a config one of our optimizers. [training.optimizer] is rewritten: best: what scored best in our benchmark,
    with a learning rate and an end of its own, counted from the corpus (--paths.train train.spacy); drop-in: the same
    arithmetic, computed by torch; adamw: torch's AdamW; fine-tune: a low rate for what was trained before, a higher one
    for what is new; low-memory: Adafactor; robust: guards, checkpoints and averages. All but best carry learning rate
    and schedules over. All else in the config stays as it is, comments too.
    """
    from .init import init_config

    init_config(config_path, output_path, ctx.args, recipe=recipe, code_path=code_path)


@torchopt_cli.command("explain", context_settings=_OVERRIDES)
def explain_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG,
    is_timed: bool = Opt(False, "--time", help="Train for a few steps, to tell how long the training will take"),
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    Check a training before it begins, and say in plain words what it will do: what stops it (corpora, annotations,
    labels, device, disk), what may be a mistake, which params learn at which rate when, what is frozen, clipped,
    averaged and saved, and what it costs. The pipeline is built and initialized as `spacy train` would, so overrides
    such as --paths.train train.spacy are needed here too. Nothing is written. The exit code is 1 if something stops
    the training.
    """
    from .explain import explain

    explain(config_path, ctx.args, is_timed=is_timed, as_json=as_json, code_path=code_path, use_gpu=use_gpu)


@torchopt_cli.command("checkpoint")
def checkpoint_cli(
    path: Path = _CHECKPOINTS,
    as_json: bool = _JSON,
) -> None:
    """
    Show what is inside the checkpoints of a run. Step, epoch, scores, param groups with their learning rates, sizes,
    and whether they are whole or damaged. Nothing is changed.
    """
    from .checkpoint import show_checkpoint

    show_checkpoint(path, as_json=as_json)


@torchopt_cli.command("report")
def report_cli(
    log_paths: list[Path] = _LOGS,
    output_path: Optional[Path] = _REPORT,
    watch: bool = Opt(False, "--watch", "-w", help="Write it every ten seconds while the training goes on"),
    as_json: bool = _JSON,
) -> None:
    """
    Draw a training from its log, or compare several. Losses, scores, learning rates, the norm of the gradients, the
    speed, and what happened when: rules that fired, skipped updates, rollbacks, checkpoints. Without --output, only the
    summary is printed.
    """
    from .report import show_report

    show_report(log_paths, output_path=output_path, watch=watch, as_json=as_json)


@torchopt_cli.command("controller")
def controller_cli(
    definition_path: Path = _DEFINITION,
    check: bool = Opt(False, "--check", help="Check the rules, and say what they do. Default without --replay"),
    log_path: Optional[list[Path]] = _REPLAY,
    more_logs: Optional[list[Path]] = _MORE_LOGS,
    output_path: Optional[Path] = _PICTURE,
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
) -> None:
    """
    Check the rules of a controller, or try them on a log. All that is wrong with its definition at once, or what its
    rules do on which events. Or try its rules on the log of a training (--replay): which would have fired when, and
    with --output a picture of what they look at. Nothing is trained, and no operation is done.
    """
    from .controller import run_controller

    run_controller(
        definition_path,
        is_check=check,
        log_paths=log_path or (),
        more_logs=more_logs or (),
        output_path=output_path,
        as_json=as_json,
        code_path=code_path,
    )
