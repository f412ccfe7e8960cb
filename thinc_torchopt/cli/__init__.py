"""The commands of `spacy torchopt`.

spaCy imports this for each of its commands, so it must be cheap: each command imports what it needs when it runs.
"""

import sys
from pathlib import Path
from typing import Optional

import typer
from typer import Argument as Arg
from typer import Option as Opt

from ..host import cli_util
from ._screen import is_main_program, is_ours, show_errors

torchopt_cli = typer.Typer(
    name="torchopt",
    help="Put a thinc-torchopt optimizer into a config, check it before training, and look at runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
cli_util().app.add_typer(torchopt_cli)

# Extra arguments override settings of the config, as in spaCy's own commands.
_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
_CONFIG = Arg(..., help="Path to config file, or to the folder of a trained pipeline", exists=True, allow_dash=True)
_LOGS = Arg(..., help="Log files of JSONLinesLogger. Several are drawn together", exists=True, dir_okay=False)
_CHECKPOINTS = Arg(..., help="Folder with a run's checkpoints, or one checkpoint", exists=True, file_okay=False)
_JSON = Opt(False, "--json", help="Print only JSON to stdout")
_PICTURE = Opt(None, "--output", "-o", help="File for the picture: .png, .svg or .pdf. Needs matplotlib")
_REPORT = Opt(None, "--output", "-o", help="File for the report: .html, .png, .svg or .pdf. Needs matplotlib")
_CODE = Opt(None, "--code", "-c", help="Path to Python file with additional code (registered functions) to be imported")
_RECIPES = ("best", "drop-in", "adamw", "fine-tune", "low-memory", "robust")
_TRIED = "best,adamw,robust"
_RECIPE = Opt(..., "--recipe", "-r", help=f"How to set up the optimizer: {', '.join(_RECIPES)}")
_LOG = Opt(None, "--log", help="Also write a log of each step, for spacy torchopt report", dir_okay=False)
_CONFIG_FILE = Arg(..., help="Path to config file, or - for stdin")
_OUTPUT_FILE = Arg(..., help="Path to output .cfg file (may be the input file), or - for stdout")
_DEFINITION = Arg(..., help="YAML or JSON file with the rules, config file, or folder of a pipeline", exists=True)
_REPLAY = Opt(
    None, "--replay", help="Log file of JSONLinesLogger: show which rules would have fired", exists=True, dir_okay=False
)
_CHANGES = Opt(
    None, "--set", metavar="NAME.KEY=VALUE", help="Another setting of a rule: stop.max_firings=3. Repeatable"
)
_MORE_LOGS = Arg(None, metavar="LOG", help="With --replay: more logs of the same run")
_CONFIG_OF_TRAINING = Arg(..., help="Path to config file", exists=True, dir_okay=False)
_TRAINED = Opt(None, "--output", "--output-path", "-o", help="Output directory to store trained pipeline in")
_BEST = Opt(None, "--output", "-o", help="File for the best config: yours, with the better settings found")
_SIDE_PICTURE = Opt(None, "--picture", "-p", help="File for a picture: .png, .svg or .pdf. Needs matplotlib")
_MODEL = Arg(..., help="Folder of a trained pipeline", exists=True, file_okay=False)
_STREAM = Arg(..., help="JSONL file with texts and labels, which may grow, or - for stdin", allow_dash=True)
_LEARNED = Opt(..., "--output", "-o", help="Folder for the pipeline, the state and learn.jsonl")
_OLD = Opt(None, "--old", help="Texts the pipeline was trained on (.spacy or .jsonl), for --replay", exists=True)
_WATCH = Opt(None, "--watch", help="Development data (.spacy or .jsonl), to see what is forgotten", exists=True)
_PLOT = Opt(None, "--plot", "-p", help="File for a picture of the scores: .png, .svg or .pdf. Needs matplotlib")
_SET = Opt(
    None,
    "--set",
    metavar="PATH=VALUES",
    help="Setting to search: 1e-4..1e-2:log, 0.0..0.5, 1..8, 16|32. Repeatable",
)
_STUDY = Opt(
    Path("tune.db"), "--study", help="SQLite file of the study. An existing study is continued", dir_okay=False
)
_GPU = Opt(-1, "--gpu-id", "-g", help="GPU ID or -1 for CPU")


# spaCy's own commands stay as they are, unless their config names something of ours.
if is_main_program() and is_ours(sys.argv[1:]):
    show_errors()
    if sys.argv[1] == "train":
        from ._train_command import guide_command

        guide_command()


@torchopt_cli.command("train", context_settings=_OVERRIDES)
def train_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG_OF_TRAINING,
    output_path: Optional[Path] = _TRAINED,
    code_path: Optional[Path] = _CODE,
    verbose: bool = Opt(False, "--verbose", "-V", "-VV", help="Display more information for debugging purposes"),
    use_gpu: int = Opt(-1, "--gpu-id", "-g", help="0: each process uses its own GPU. -1: CPU"),
    processes: int = Opt(1, "--nproc-per-node", "-n", min=1, help="Number of processes on this machine"),
    machines: int = Opt(1, "--nnodes", min=1, help="Number of machines. Run the same command on each"),
    machine: int = Opt(0, "--node-rank", min=0, help="Rank of this machine. Machine 0 writes the output"),
    endpoint: Optional[str] = Opt(None, "--rdzv-endpoint", help="host:port of the machine with --node-rank 0"),
    max_restarts: int = Opt(0, "--max-restarts", min=0, help="How often to restart after a process died"),
    budget: Optional[str] = Opt(None, "--budget", "-b", help='How long to train: 20m, 1h30m, "5000 steps", "2M words"'),
) -> None:
    """
    Train in several processes, or within a budget. Works as `spacy train` does, on one machine or several: the
    processes split the batches, and each update uses the gradients of all processes. With --budget, the learning rate
    stays at its highest value in the config, then falls so that it ends with the budget; schedules, max_steps and
    patience have no effect. Pass overrides such as --paths.train train.spacy as in `spacy train`.
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
    )


@torchopt_cli.command("params", context_settings=_OVERRIDES)
def params_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG,
    steps: Optional[int] = Opt(None, "--steps", "-n", min=0, help="Also show the learning rate at this step"),
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    List every param, with its group and learning rate. Shows name, shape, size, device, kind, group, learning rate,
    weight decay, and whether the param is frozen; totals by group and component; patterns in the config that match
    nothing. The pipeline is built and initialized as in `spacy train`, so pass the same overrides, such as
    --paths.train train.spacy. A trained pipeline is loaded instead. Nothing is trained or written.
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
    log: bool = Opt(False, "--log", help="Draw rates on a logarithmic scale"),
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    Show the learning rate of each param group over the steps. As text, as JSON, or as a picture. The pipeline is built
    and initialized as in `spacy train`, so pass the same overrides, such as --paths.train train.spacy. Nothing is
    trained.
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


@torchopt_cli.command("learn", context_settings=_OVERRIDES)
def learn_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    model: Path = _MODEL,
    stream: Path = _STREAM,
    output_path: Path = _LEARNED,
    learn_rate: Optional[float] = Opt(None, "--learn-rate", help="Constant rate, in place of that of the config"),
    batch_size: int = Opt(1, "--batch-size", "-b", help="Texts of an update"),
    follow: bool = Opt(False, "--follow", "-f", help="Wait for more texts at the end of the file"),
    prequential: bool = Opt(True, help="Score each text before it is learned"),
    every: int = Opt(100, "--every", "-n", help="Texts of a row, with their score"),
    save_every: int = Opt(1000, "--save-every", help="Texts between two saves"),
    new_labels: str = Opt("refuse", "--new-labels", help="Labels that the pipeline does not have: refuse, add or skip"),
    skip_bad: bool = Opt(False, "--skip-bad", help="Leave out texts that can't be learned: see rejected.jsonl"),
    replay: int = Opt(0, "--replay", help="Old texts that are learned again in each update"),
    memory: int = Opt(1000, "--memory", help="How many old texts to keep for --replay"),
    old: Optional[Path] = _OLD,
    watch: Optional[Path] = _WATCH,
    watch_every: int = Opt(1000, "--watch-every", help="Texts between two evaluations of --watch"),
    plot: Optional[Path] = _PLOT,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    Go on learning from texts with labels, as they come in. The stream is a file that grows, or stdin. Each text is
    scored before it is learned. All of the state is saved: after a stop or a crash, the same command goes on, and reads
    no text of the file twice.
    """
    from .learn import learn

    learn(
        model,
        stream,
        ctx.args,
        output_path,
        {
            "batch_size": batch_size,
            "every": every,
            "save_every": save_every,
            "watch_every": watch_every,
            "replay": replay,
            "memory": memory,
            "new_labels": new_labels,
            "prequential": prequential,
            "skip_bad": skip_bad,
        },
        learn_rate=learn_rate,
        follows=follow,
        old=old,
        watched=watch,
        picture=plot,
        code_path=code_path,
        use_gpu=use_gpu,
    )


@torchopt_cli.command("try", context_settings=_OVERRIDES)
def try_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG_OF_TRAINING,
    recipes: str = Opt(_TRIED, "--recipes", "-r", help=f"Recipes to try, comma-separated: {', '.join(_RECIPES)}"),
    steps: int = Opt(200, "--steps", "-n", help="Steps of each trial"),
    seeds: int = Opt(2, "--seeds", "-s", help="Number of seeds to try each recipe with"),
    output_path: Optional[Path] = _BEST,
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    Try recipes on your data, in short trainings. Trains for a few steps with the config as it is and with each recipe,
    with several seeds, and says which is better and whether the difference is more than chance. Each trial builds its
    own pipeline, without loggers, checkpoints or output folders. Pass overrides such as --paths.train train.spacy as in
    `spacy train`.
    """
    from .try_ import try_recipes

    try_recipes(
        config_path,
        ctx.args,
        recipes=recipes,
        steps=steps,
        seeds=seeds,
        output_path=output_path,
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
    trials: int = Opt(30, "--trials", "-t", help="Trials of the study in total, over all its runs"),
    seeds: int = Opt(2, "--seeds", "-s", help="Number of other seeds to repeat the best five trials with"),
    prune: bool = Opt(True, "--prune/--no-prune", help="Stop a trial early if it is worse than most others"),
    study_path: Path = _STUDY,
    output_path: Optional[Path] = _BEST,
    picture_path: Optional[Path] = _SIDE_PICTURE,
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    Search for better settings on your data, by Optuna. Tries values in short trainings (needs Optuna 5).
    Searches the settings given by --set or by a section [search] in the config; by default, the learning rate, weight
    decay and dropout. Run the same command again to continue, or at the same time to share the work. Pass overrides
    such as --paths.train train.spacy as in `spacy train`.
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
    log_path: Optional[Path] = _LOG,
    code_path: Optional[Path] = _CODE,
) -> None:
    """
    Put one of our optimizers into a config. Rewrites [training.optimizer] by a recipe. best: the settings that scored
    best in our benchmark, with a learning rate and a number of steps computed from the corpus (--paths.train
    train.spacy); drop-in: thinc's arithmetic, computed by torch; adamw: torch's AdamW; fine-tune: a low rate for
    pretrained params, a higher one for new ones; low-memory: Adafactor; robust: guards, checkpoints and averages. All
    recipes but best keep the learning rate and its schedules. The rest of the config stays as it is, comments too.
    """
    from .init import init_config

    init_config(config_path, output_path, ctx.args, recipe=recipe, log_path=log_path, code_path=code_path)


@torchopt_cli.command("explain", context_settings=_OVERRIDES)
def explain_cli(
    ctx: typer.Context,  # This is only used to read additional arguments
    config_path: Path = _CONFIG,
    is_timed: bool = Opt(False, "--time", help="Train for a few steps, to estimate how long the training takes"),
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
    use_gpu: int = _GPU,
) -> None:
    """
    Check a training before it begins, and say what it will do. Shows problems that would stop it (corpora, annotations,
    labels, device, disk), possible mistakes, which params learn at which rate, what is frozen, clipped, averaged and
    saved, and what the training costs. The pipeline is built and initialized as in `spacy train`, so pass the same
    overrides, such as --paths.train train.spacy. Nothing is written. The exit code is 1 if something would stop the
    training.
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
    and whether each checkpoint is intact or damaged. Nothing is changed.
    """
    from .checkpoint import show_checkpoint

    show_checkpoint(path, as_json=as_json)


@torchopt_cli.command("report")
def report_cli(
    log_paths: list[Path] = _LOGS,
    output_path: Optional[Path] = _REPORT,
    watch: bool = Opt(False, "--watch", "-w", help="Rewrite the report every ten seconds until the training ends"),
    as_json: bool = _JSON,
) -> None:
    """
    Draw a training from its log, or compare several. Shows losses, scores, learning rates, gradient norms, the speed,
    and when rules fired, updates were skipped, the run was rolled back, and checkpoints were saved. Without --output,
    only the summary is printed.
    """
    from .report import show_report

    show_report(log_paths, output_path=output_path, watch=watch, as_json=as_json)


@torchopt_cli.command("controller", context_settings=_OVERRIDES)
def controller_cli(
    definition_path: Path = _DEFINITION,
    check: bool = Opt(False, "--check", help="Check the rules, and show what they do. Default without --replay"),
    log_path: Optional[list[Path]] = _REPLAY,
    more_logs: Optional[list[str]] = _MORE_LOGS,
    changes: Optional[list[str]] = _CHANGES,
    output_path: Optional[Path] = _PICTURE,
    as_json: bool = _JSON,
    code_path: Optional[Path] = _CODE,
) -> None:
    """
    Check the rules of a controller, or try them on a log. Lists all errors of the definition at once; without errors,
    shows on which events the rules run and what they do. With --replay, tries the rules on the log of a training and
    shows which would have fired when; --output draws the metrics that the rules use. --set tries other settings: --set
    "stop.rule=loss['loss'] < 1", or of a rule by name --set stop.evaluations=3. Nothing is trained, and no operation
    runs.
    """
    from .controller import run_controller

    run_controller(
        definition_path,
        is_check=check,
        log_paths=log_path or (),
        more=more_logs or (),
        changes=changes or (),
        output_path=output_path,
        as_json=as_json,
        code_path=code_path,
    )
