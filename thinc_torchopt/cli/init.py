"""`spacy torchopt init`: make a config from texts, or put one of our optimizers into a config."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import typer
from confection import Config
from spacy import util
from typer import Argument as Arg
from typer import Option as Opt
from wasabi.printer import Printer

from ..addons.recipes import (
    Recipe,
    check_output,
    not_written,
    read_corpus,
    read_text,
    rewrite,
    with_fast_products,
    write_config,
)
from ..core.config_checks import check_names
from ..core.errors import ConfigError
from ..core.host import cli_util
from ..loop.data_check import Corpus, Facts, nothing_to_learn
from ..loop.label_conflicts import doubts_of_labels
from ..loop.progress_bars import show_activity
from ..loop.random_state import preserved_random
from ..loop.setup import config_errors
from ..loop.training_check import check
from ._command import CODE
from ._from_pipeline import make_from
from ._new_config import NewConfig, Wish, make
from ._screen import errors_shown
from ._setup import read_overrides
from .convert import MISALIGNED_OPTION, checked

_RECIPES = Recipe.names()
_NOT_WITH_FROM = ("--lang", "--gpu", "--pretrained", "--teacher", "--texts", "--share", "--pipeline")
# Options that need another one: that, and an example of it.
_NEEDS = {
    **dict.fromkeys(("--old", "--old-dev"), ("--from", "training/model-best")),
    "--share": ("--texts", "raw.jsonl"),
    "--texts": ("--teacher", "training/large/model-best"),
}


def init(
    ctx: typer.Context,
    config_path: Path = Arg(..., help="The config to write; with two paths, the config to read, or - for stdin"),
    output_path: Optional[Path] = Arg(
        None, help="The config to write, if there is one to read (may be the same), or - for stdout"
    ),
    recipe: Optional[list[str]] = Opt(
        None,
        "--recipe",
        "-r",
        help=f"How to set up the optimizer: {_RECIPES}; or several, comma-separated. A new config needs none: it gets "
        "that of our benchmark",
    ),
    lang: Optional[str] = Opt(
        None, "--lang", "-l", help="For a new config: code of the texts' language, such as en; xx for several"
    ),
    pipeline: Optional[str] = Opt(
        None, "--pipeline", "-p", help="For a new config: components to train, comma-separated. Default: all that can"
    ),
    gpu: bool = Opt(False, "--gpu", help="For a new config: train a transformer. Needs spacy-transformers"),
    pretrained: bool = Opt(
        False, "--pretrained", help="For a new config: use spaCy's word vectors, which must be installed"
    ),
    split: Optional[float] = Opt(
        None, "--split", help="For a new config without --paths.dev: share of the texts to evaluate on, such as 0.2"
    ),
    teacher: Optional[str] = Opt(
        None, "--teacher", help="For a new config: a trained pipeline (folder or package) that annotates --texts"
    ),
    texts: Optional[Path] = Opt(
        None, "--texts", help="Texts without annotations for --teacher: .txt, .jsonl, .csv or .spacy"
    ),
    share: Optional[float] = Opt(
        None, "--share", help="How many of --texts to use for each annotated text. Default: 2"
    ),
    source: Optional[str] = Opt(
        None, "--from", help="Train this pipeline (folder or package) further: with new labels, or more texts"
    ),
    old: Optional[Path] = Opt(
        None, "--old", help="With --from: texts with the pipeline's old labels, to learn beside the new ones"
    ),
    old_dev: Optional[Path] = Opt(None, "--old-dev", help="With --from: texts with the old labels, to evaluate on"),
    misaligned: str = MISALIGNED_OPTION,
    force: bool = Opt(False, "--force", "-F", help="Write a new config over an existing file"),
    log_path: Optional[Path] = Opt(
        None, "--log", help="File for a log of each step, for spacy torchopt report", dir_okay=False
    ),
    code_path: Optional[Path] = CODE,
) -> None:
    """
    Make a config from texts, or put our optimizer into a config. With one path, a new config is made, with the
    components that can learn from the annotations of the texts; with --from, it trains an existing pipeline further,
    and keeps its labels. With two paths, the first config is read, a recipe rewrites its [training.optimizer], and the
    rest stays as it is, comments too. Recipes: best: the settings of our benchmark, with a learning rate and a number
    of steps computed from the corpus (--paths.train train.spacy); drop-in: thinc's arithmetic, computed by torch;
    fine-tune: a low rate for pretrained params, a higher one for new ones; robust: guards, checkpoints and averages.
    All but best and fine-tune keep the learning rate and its schedules.
    """
    if output_path is not None and str(output_path).startswith("--"):  # the first override
        ctx.args.insert(0, str(output_path))
        output_path = None
    written = output_path or config_path
    # With "-", only the config is printed to stdout.
    to_stdout = str(written) == "-"
    with errors_shown(as_json=to_stdout):
        if str(config_path).startswith("--"):  # the first override
            raise ConfigError(
                "Can't make a config: expected the name of the file to write, found none. Name it before the options: "
                f"{cli_util().COMMAND} torchopt init new.cfg --lang en --paths.train train.spacy"
            )
        names = [name.strip() for name in ",".join(recipe or []).split(",") if name.strip()]
        recipes = [Recipe.of(name) for name in dict.fromkeys(names)]
        overrides = read_overrides(ctx.args, code_path)
        check_output(written)
        if output_path is None:
            old, old_dev = overrides.pop("paths.old", old), overrides.pop("paths.old_dev", old_dev)
        options: dict[str, Any] = {"--lang": lang, "--gpu": gpu, "--pretrained": pretrained, "--split": split}
        options |= {"--pipeline": pipeline, "--teacher": teacher, "--texts": texts, "--share": share}
        options |= {"--from": source, "--old": old, "--old-dev": old_dev, "--misaligned": misaligned != "expand"}
        if output_path is None:
            _check_options(options)
            wish = Wish(lang, gpu, pretrained, recipes, split, log_path, overrides, teacher, texts, share)
            wish.misaligned = checked(misaligned)
            wish.pipeline = None if pipeline is None else [name.strip() for name in pipeline.split(",")]
            wish.source, wish.old, wish.old_dev = source, old, old_dev
            found = _made(config_path, wish, force=force, to_stdout=to_stdout)
        else:
            if given := [name for name, value in options.items() if value]:
                raise ConfigError(
                    f"Can't use {' and '.join(given)}: for a new config only, and there is an input, '{config_path}'. "
                    "Leave one of the two paths out, or leave these options out."
                )
            if not recipes:
                raise ConfigError(
                    f"Can't rewrite '{config_path}': expected a recipe, found none. Name one: --recipe best. There "
                    f"are: {_RECIPES}."
                )
            found = _rewritten(config_path, output_path, recipes, overrides, log_path)
        if not to_stdout:
            write_config(written, found.text)
    if to_stdout:
        sys.stdout.write(found.text)
        for line in (*found.lines, *(f"Warning: {line}" for line in found.warnings)):
            print(line, file=sys.stderr)
        return
    msg = Printer(pretty=sys.stdout.isatty())
    msg.good(found.title, written)
    for line in found.lines:
        msg.text(line)
    for line in found.warnings:
        msg.warn(line)
    for title, command in found.commands:
        msg.text(title)
        print(f"{cli_util().COMMAND} {shlex.join(command)}")


# ---------------------------------------------------------------------- a new config


def _check_options(given: Mapping[str, Any]) -> None:
    """RAISES (ConfigError): Options of a new config don't go together, or have an impossible value."""
    others = [name for name in _NOT_WITH_FROM if given[name]]
    if given["--from"] is not None and others:
        raise ConfigError(
            f"Can't use {' and '.join(others)} with --from: that pipeline has its language and its components, and is "
            "the teacher of the new texts. Leave one of them out."
        )
    for name, (other, example) in _NEEDS.items():
        if given[name] is not None and given[other] is None:
            raise ConfigError(f"Can't use {name} without {other}. Add it: {other} {example}.")
    share, texts = given["--share"], given["--texts"]
    if share is not None and not 0 < share < float("inf"):
        raise ConfigError(f"Can't use --share: expected a number above 0, found {share:g}. 2 is usual.")
    if texts is not None and not texts.exists():
        raise ConfigError(
            f"Can't use --texts {texts}: expected a file of texts, or a folder of them, found nothing there."
        )


def _made(path: Path, wish: Wish, *, force: bool, to_stdout: bool) -> NewConfig:
    """Make a config. RAISES (ConfigError): It can't be made, or something is in its place."""
    if path.exists() and not force and not to_stdout:
        raise ConfigError(
            f"Can't make the config '{path}': it already exists. To change it, give it as input and name an output, "
            f"which may be the same: init {path} {path} --recipe best. To replace it: --force."
        )
    return (make if wish.source is None else make_from)(path, "config" if to_stdout else path.stem, wish)


# ---------------------------------------------------------------------- an existing config


def _rewritten(
    path: Path, output_path: Path, recipes: Sequence[Recipe], overrides: Mapping[str, Any], log_path: Path | None
) -> NewConfig:
    """Apply recipes, one after the other."""
    text = before = read_text(path)
    changes, warnings = [], []
    check_names(overrides)
    with config_errors(path=path):
        if "paths.train" in overrides:
            warnings += _check_annotations(text, overrides)
        for recipe in recipes:
            log = log_path if recipe == recipes[-1] else None
            draft, text = rewrite(text, path, recipe, overrides, log)
            changes += draft.changes
            warnings += [line for line in draft.warnings if line not in warnings]
        warnings += not_written(overrides, before, text)
        text, products = with_fast_products(text, overrides)
        changes += [products] * bool(products)
    command = ["torchopt", "explain", str(output_path)]
    paths = Config().from_str(text, interpolate=False).get("paths", {})
    for part in ("train", "dev"):
        given = overrides.get(f"paths.{part}")
        if given is not None or (part in paths and paths[part] is None):
            command += [f"--paths.{part}", str(given or f"./{part}.spacy")]
    named = "', '".join(chosen.value for chosen in recipes)
    title = f"Saved config with the recipe{'s' * (len(recipes) > 1)} '{named}'"
    return NewConfig(text, [f"- {line}" for line in changes], warnings, command, title)


def _check_annotations(text: str, overrides: Mapping[str, Any]) -> list[str]:
    """Check that the new components of a config have something to learn, and what the others may forget.

    RETURNS (list[str]): Doubts. RAISES (ConfigError): A new component has nothing to learn.
    """
    config = Config().from_str(text, interpolate=False, overrides=dict(overrides))
    if config.get("training", {}).get("max_epochs") == -1:  # a stream, of which the first texts may have none
        return []
    nlp = util.load_model_from_config(config, auto_fill=True)
    plain_config, sourced = nlp.config.interpolate(), list(util.get_sourced_components(config.interpolate()))
    with show_activity("Reading the texts"):
        examples = read_corpus(nlp, plain_config, "train_corpus", purpose="check")
    train = Corpus(plain_config["training"]["train_corpus"], examples)
    facts = Facts(nlp, plain_config, train, sourced=sourced, is_initialized=False)
    stops = [found.text for found in check(facts, [nothing_to_learn]) if found.kind != "doubt"]
    if stops and not plain_config["training"]["optimizer"].get("allow_untrainable"):
        raise ConfigError(
            f"{' '.join(stops)} For a config from these texts leave the input out: spacy torchopt init new.cfg --lang "
            f"{nlp.lang} --paths.train {overrides['paths.train']}."
        )
    with preserved_random():
        return list(doubts_of_labels(nlp, plain_config, train, sourced))
