"""Make a config from texts, for `spacy torchopt init` without an input config; also with a teacher (`--teacher`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confection import Config
from spacy import util
from spacy.language import Language
from spacy.training import Example

from ..addons.recipes import (
    Choice,
    Recipe,
    Setting,
    blank_pipeline,
    choose_components,
    find_pretrained,
    languages_of,
    make_config,
    measured_of,
    nested_in,
    notes_on,
    notes_on_language,
    read_corpus,
    rewrite,
    split_corpus,
    with_fast_products,
    with_settings,
)
from ..addons.teacher import count_pieces
from ..core.config_checks import check_training_section, pipeline_in
from ..core.errors import ConfigError
from ..core.host_errors import plain_errors
from ..core.kinds import Annotations, OfSpans, survey
from ..core.readers import Misaligned
from ..core.words import count, listed, plain
from ..loop.data_check import Corpus, Facts
from ..loop.filling import components_of, counterpart
from ..loop.progress_bars import show_activity
from ..loop.training_check import check
from ._texts import as_binary, is_binary

# Texts of a teacher for each annotated one, unless --share says another number.
_SHARE = 2.0
_PATHS = ("paths.train", "paths.dev")
_NO_LANGUAGE = (
    "Can't make a config: expected the language of the texts, found none. Name it: --lang en for English, --lang xx "
    "for any or several."
)


@dataclass
class Wish:
    """The choices of the command line.

    recipes (list[Recipe]): None named: `best`.
    split (float | None): Share of the texts to evaluate on.
    teacher (str | None): A pipeline that annotates `texts`, `share` of them for each annotated text.
    pipeline (list[str] | None): The components to train, of those that the texts can teach. None: all.
    source (str | None): A pipeline to go on with. old, old_dev (Path | None): Texts with its labels.
    misaligned: For spans that begin or end within a token, in files that are converted.
    overrides (dict): Values by dotted path, which are written into the config.
    """

    lang: str | None
    gpu: bool
    pretrained: bool
    recipes: list[Recipe]
    split: float | None
    log_path: Path | None
    overrides: dict[str, Any]
    teacher: str | None = None
    texts: Path | None = None
    share: float | None = None
    source: str | None = None
    old: Path | None = None
    old_dev: Path | None = None
    misaligned: Misaligned = "expand"
    pipeline: list[str] | None = None


@dataclass
class NewConfig:
    """A config that was made or changed.

    lines (list[str]): What was found and chosen. warnings (list[str]): What the user should check.
    command (list[str]): Of spaCy, to type next.
    """

    text: str
    lines: list[str]
    warnings: list[str]
    command: list[str]
    title: str = "Saved config"

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """The commands to type next, with titles. `explain` takes the options of `train`."""
        look = "To check it and see what it will do:"
        if self.command[0] != "train":
            return [(look, self.command)]
        return [(look, ["torchopt", "explain", *self.command[1:]]), ("To train:", self.command)]


def make(path: Path, stem: str, wish: Wish) -> NewConfig:
    """Make a config from the texts that the command line names.

    path (Path): The config's, for errors. stem (str): Its name.
    RAISES (ConfigError): The texts can't be read, or no component can learn from them.
    """
    paths, output = paths_of(path, wish), output_for(stem, wish.teacher)
    converted = convert(paths, None if wish.lang is None else blank_pipeline(wish.lang, {}), wish)
    examples, lang = _read(paths, wish.lang)
    found = survey(example.reference for example in examples)
    choice = choose_components(found)
    if not choice.components:
        raise ConfigError(_nothing_to_learn(paths["train"], found, choice))
    train = paths["train"]
    if wish.pipeline is not None:
        _keep_only(wish.pipeline, choice, train)
    taught = Taught()
    if wish.teacher is not None:
        dev = read_dev(paths, lang)
        taught = taught_by(wish.teacher, choice, found, None if dev is None else dev.annotations, wish, output)
        if wish.texts is not None:
            _count_texts(taught, blank_pipeline(lang, paths), found.texts, wish)
    if wish.split is not None:
        paths |= split_off(paths, wish)
        examples, _ = _read(paths, lang)
    with plain_errors(path=path):
        vectors = wish.overrides.get("paths.vectors")
        config = make_config(choice, found, lang=lang, gpu=wish.gpu, pretrained=wish.pretrained, vectors=vectors)
        config["paths"].update(paths)
        if wish.teacher is not None:
            config["paths"] |= {"teacher": wish.teacher, "texts": None if wish.texts is None else str(wish.texts)}
        text, told, warned = write(config, path, wish, taught=taught.readers, more=taught.share)
    dev = read_dev(paths, lang)
    by, by_hand = "", ""
    if wish.teacher is not None:
        by = f" {wish.teacher} teaches {listed(taught.readers['corpora.train']['components'])}{_with_texts(wish)}."
    if taught.filled:
        by += f" It fills in {listed(taught.filled)}, which {train} does not have."
    if "corpora.dev" in taught.readers and dev is not None:
        by_hand = f" In the score, what {wish.teacher} fills in counts as right, too."
    lines = [
        *converted,
        f"Found in {train}: {count(found.texts, 'text')}, {count(found.words, 'word')}. "
        + _listed([component.found for component in choice.components])
        + ".",
        *found.lines(),
        f"Chose {', '.join(component.name for component in choice.components)}, in spaCy's template for '{lang}' "
        f"{_hardware(wish, config)}.{by} {told}",
        evaluation(paths, wish, dev, output) + by_hand,
    ]
    warnings = [f"Left out: {one}." for one in choice.left_out]
    warnings += notes_on(choice, found) + notes_on_language(lang, examples)
    warnings += taught.doubts + warned + doubts_of(text, path, Corpus("corpora.train", examples), dev)
    return NewConfig(text, lines, warnings, command_to_train(path, output, paths, gpu=wish.gpu))


def _keep_only(names: list[str], choice: Choice, train: str | None) -> None:
    """Leave out the components that are not named. RAISES (ConfigError): There is no component of a name."""
    there = {component.name: component for component in choice.components}
    choice.components = [component for name, component in there.items() if name in names]
    if not choice.components or set(names) - {*there, "tok2vec", "transformer"}:
        raise ConfigError(
            f"Can't use --pipeline {','.join(names)}: expected components that learn from the annotations of "
            f"'{train}'. Choose from: {', '.join(there)}."
        )


def paths_of(path: Path, wish: Wish) -> dict[str, str | None]:
    """The files of the texts. RAISES (ConfigError): One is missing, or can't be used."""
    train, dev = (wish.overrides.get(name) for name in _PATHS)
    if train is None:
        raise ConfigError(
            f"Can't make the config '{path}' from texts: expected their file, found none. Give it: --paths.train "
            f"train.spacy. To change an existing config, name two: init {path} new.cfg --recipe best."
        )
    if dev is not None and wish.split is not None:
        raise ConfigError(
            "Can't use --split: there is --paths.dev too, so the texts to evaluate on are known. Leave one of them out."
        )
    paths = {"train": str(train), "dev": None if dev is None else str(dev)}
    others = (wish.teacher, wish.texts, wish.source, wish.old, wish.old_dev)
    if dollar := [str(given) for given in (*paths.values(), *others) if given is not None and "$" in str(given)]:
        raise ConfigError(
            f"Can't make a config for '{dollar[0]}': a config reads $ in a path as the start of a variable. Rename the "
            "file or the folder."
        )
    return paths


def convert(paths: dict[str, str | None], nlp: Language | None, wish: Wish) -> list[str]:
    """Convert texts that spaCy's reader does not take, and replace their paths.

    nlp (Language | None): With the tokenizer of the pipeline. None: no language is named.
    RETURNS (list[str]): What was found, in words.
    RAISES (ConfigError): They can't be read, or there is no language.
    """
    told = []
    for name, given in paths.items():
        if given is not None and not is_binary(given):
            if nlp is None:
                raise ConfigError(_NO_LANGUAGE)
            paths[name], lines = as_binary(nlp, given, wish.misaligned)
            told += lines
    if not told and wish.misaligned != "expand" and "train" in paths:
        raise ConfigError(
            f"Can't use --misaligned {wish.misaligned}: it is for files that are converted, and spaCy reads "
            f"'{paths['train']}' itself. Leave it out."
        )
    return told


def split_off(paths: Mapping[str, str | None], wish: Wish) -> dict[str, str]:
    """Split texts to evaluate on off. RETURNS (dict): The files of the two parts."""
    train = Path(str(paths["train"]))
    files = split_corpus(train, wish.split or 0.0)
    return {name: _as_given(file, train) for name, file in zip(("train", "dev"), files)}


def output_for(stem: str, pipeline: str | None) -> str:
    """The folder for a training, named after its config: all that it writes. A pipeline that it needs is not in it,
    where spaCy would remove that.
    """
    output = f"training/{stem.replace('$', '_')}"  # a config reads $ as a variable
    while pipeline is not None and Path(pipeline).resolve().is_relative_to(Path(output).resolve()):
        output += "-next"
    return output


# ---------------------------------------------------------------------- a teacher


def load_pipeline(name: str, option: str) -> Language:
    """Load a pipeline. option (str): It comes from there. RAISES (ConfigError): It can't be loaded."""
    if not (name and util.is_package(name)) and not (Path(name) / "config.cfg").is_file():
        found = "a folder without config.cfg" if Path(name).is_dir() else "a file" if Path(name).exists() else "nothing"
        raise ConfigError(
            f"Can't use {option} {name}: expected the folder of a trained pipeline, such as training/model-best, or "
            f"the name of an installed one, found {found} there. {pipeline_in(Path(name))}"
        )
    with plain_errors(path=Path(name)), show_activity("Loading the pipeline"):
        try:
            return util.load_model(name)
        except ConfigError:
            raise
        except Exception as error:  # a pipeline may have any code
            found = " ".join(str(error).split())
            raise ConfigError(
                f"Can't use {option} {name}: it can't be loaded. {type(error).__name__}: {found}"
            ) from error


@dataclass
class Taught:
    """The part of a teacher in a config.

    readers (dict): By corpus, the settings of its reader. filled (list[str]): Labels that the texts lack.
    share (float): How many of its texts there are for each annotated one. doubts (list[str]): Warnings.
    """

    readers: dict[str, dict[str, Any]] = field(default_factory=dict)
    filled: list[str] = field(default_factory=list)
    share: float = 0.0
    doubts: list[str] = field(default_factory=list)


def taught_by(
    name: str, choice: Choice, found: Annotations, dev: Annotations | None, wish: Wish, output: str
) -> Taught:
    """Find what a teacher can fill in for.

    choice (Choice): Components that the teacher's texts would teach that there is nothing are taken out.
    dev (Annotations | None): Of the texts to evaluate on. If they lack labels that the teacher fills in, it does so
        there, too: the pipeline would be wrong wherever it finds them.
    RAISES (ConfigError): It has nothing to teach here.
    """
    nlp = load_pipeline(name, "--teacher")
    theirs = components_of(nlp)
    complete, in_dev, filled = set[str](), set[str](), set[str]()
    components, doubts, lacking = [], [], []
    for component in choice.components:
        kind = component.kind
        labels = found.of(kind).labels.keys()
        one = counterpart(theirs, component.name, kind)
        if one is None:
            lacking.append(component)
            continue
        components.append(component.name)
        known = theirs[one].labels or frozenset()
        unknown = sorted(labels - known) if kind.fills_labels and not kind.is_of_each_word else []
        if unknown and wish.texts is not None:
            doubts.append(
                f"'{component.name}': {name} does not know {listed(unknown)}. Its texts teach that there "
                f"{'is none' if len(unknown) == 1 else 'are none'}: choose a teacher with all labels."
            )
        if isinstance(kind, OfSpans):
            complete |= labels
            in_dev |= set() if dev is None else dev.of(kind).labels.keys()
            filled |= known - labels
            if wish.texts is None and known <= labels:
                doubts.append(f"{name} has nothing to fill in for '{component.name}': the texts have all its labels.")
    if not components:
        raise ConfigError(
            f"Can't use --teacher {name}: expected a component that finds "
            f"{listed([one.kind.in_words for one in choice.components])}, found "
            f"{', '.join(theirs) or 'none'}."
        )
    for component in lacking if wish.texts is not None else ():
        if component.kind.is_nothing_without:
            choice.components.remove(component)
            choice.left_out.append(
                f"{component.kind.in_words}: {name} has no component for them, so {wish.texts} would have none"
            )
    if others := [component.name for component in lacking if component in choice.components]:
        doubts.append(f"{name} teaches nothing to {listed(others)}: it has no such component.")
    readers = {
        "corpora.train": taught_settings(
            "teacher", components, sorted(complete), output, texts=wish.texts, share=wish.share
        )
    }
    if filled - in_dev:
        of_both = sorted(complete | in_dev)
        readers["corpora.dev"] = taught_settings("teacher", components, of_both, output)
    return Taught(readers, sorted(filled), doubts=doubts)


def _count_texts(taught: Taught, nlp: Language, annotated: int, wish: Wish) -> None:
    """Count the texts of a teacher, up to its share. RAISES (ConfigError): They can't be read."""
    assert wish.texts is not None
    share = _SHARE if wish.share is None else wish.share
    wanted = round(share * annotated)
    with show_activity("Reading the texts of the teacher"):
        there = count_pieces(nlp, wish.texts, f"--texts {wish.texts}", wanted)
    taught.share = share if there == wanted else round(there / annotated, 2)
    if there < wanted:
        taught.doubts.append(
            f"{wish.texts} has {count(there, 'text')}, cut where they are long: fewer than {plain(share)} for each "
            f"annotated one, which would be {wanted:,}."
        )


def taught_settings(
    teacher: str,
    components: Sequence[str],
    complete: Sequence[str],
    output: str,
    *,
    texts: Path | None = None,
    share: float | None = None,
) -> dict[str, Any]:
    """The settings of a reader in which a teacher fills in what is open. teacher (str): Its name in [paths]."""
    found: dict[str, Any] = {
        "@readers": "thinc-torchopt.TaughtCorpus.v1",
        "teacher": f"${{paths.{teacher}}}",
        "components": list(components),
        "complete": list(complete),
        "cache": f"{output}/taught",
    }
    if texts is not None:
        found |= {"texts": "${paths.texts}", "share": _SHARE if share is None else share}
    return found


def _with_texts(wish: Wish) -> str:
    if wish.texts is None:
        return ""
    return f" on {wish.texts}, {plain(_SHARE if wish.share is None else wish.share)} texts for each annotated one"


# ---------------------------------------------------------------------- the texts


def read_texts(
    paths: Mapping[str, str | None], lang: str, setting: Setting = "train_corpus", *, like: Language | None = None
) -> list[Example]:
    """Read a file of texts.

    like (Language): With its tokenizer.
    RAISES (ConfigError): It can't be read, or is empty.
    """
    nlp = blank_pipeline(lang, paths, like=like)
    with show_activity("Reading the texts"):
        return read_corpus(nlp, nlp.config.interpolate(), setting, purpose="make a config")


def _read(paths: Mapping[str, str | None], lang: str | None) -> tuple[list[Example], str]:
    """Read the texts, and find their language, if none is named."""
    examples = read_texts(paths, lang or "xx")
    if lang is not None:
        return examples, lang
    said = languages_of(examples)
    if not said:
        raise ConfigError(_NO_LANGUAGE)
    return examples, next(iter(said)) if len(said) == 1 else "xx"


def read_dev(paths: Mapping[str, str | None], lang: str, *, like: Language | None = None) -> Corpus | None:
    """Read the texts to evaluate on. None: there are none."""
    if paths["dev"] is None:
        return None
    return Corpus("corpora.dev", read_texts(paths, lang, "dev_corpus", like=like))


def _as_given(file: Path, given: Path) -> str:
    """The path of a file beside another one, relative if that was."""
    return str(file if given.is_absolute() or given.resolve().parent != file.parent else _beside(given, file))


def _beside(given: Path, file: Path) -> Path:
    return given.parent / file.name if given.name else file


def _nothing_to_learn(train: str | None, found: Annotations, choice: Choice) -> str:
    if choice.left_out:
        return (
            f"Can't make a config for '{train}': no component can learn from the annotations of its "
            f"{count(found.texts, 'text')}. {_listed(choice.left_out)}."
        )
    return (
        f"Can't make a config for '{train}': expected texts with annotations, such as entities or categories, found "
        f"{count(found.texts, 'text')} with nothing that a component learns from. Annotate them, or convert them "
        "again: spacy convert keeps annotations, a pipeline's make_doc has none."
    )


def _listed(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return text[:1].upper() + text[1:]


def _hardware(wish: Wish, config: Config) -> str:
    if wish.gpu:
        name = config["components"]["transformer"]["model"]["name"]
        return f"with the transformer '{name}', for a GPU; the first training downloads it"
    return "with word vectors" if wish.pretrained else "for a CPU"


# ---------------------------------------------------------------------- the text of the config


def write(
    config: Config,
    path: Path,
    wish: Wish,
    *,
    taught: Mapping[str, Mapping[str, Any]],
    more: float = 0.0,
) -> tuple[str, str, list[str]]:
    """Put everything into the text.

    taught (Mapping): By corpus, the settings of a reader around its own. Recipes don't see it: counting texts is no
        reason to let a teacher annotate them.
    more (float): How many texts there are besides, for each annotated one.
    RETURNS (tuple): The text, what was chosen, and warnings.
    """
    # A recipe reads the corpora, and sets the end of the training: the user's own values come after it.
    before = {key: value for key, value in wish.overrides.items() if key not in _PATHS}
    later = ("training.", *(f"{name}." for name in taught))
    after = {key: before.pop(key) for key in list(before) if key.startswith(later)}
    text = Config().from_str(config.to_str(), interpolate=False, overrides=before).to_str()
    nlp = util.load_model_from_config(Config().from_str(text, interpolate=False), auto_fill=True)
    recipes = wish.recipes or [Recipe.best]
    names = ", then ".join(recipe.value for recipe in recipes)
    config = Config().from_str(text, interpolate=False)
    config["training"]["logger"] = _loggers(wish.log_path, recipes)
    text, warned, end = config.to_str(), [], ""
    for recipe in recipes:
        draft, text = rewrite(text, path, recipe, more_texts=more)
        warned += draft.warnings
        if draft.end is not None and "training.max_steps" not in after:
            end = f" Ends at step {draft.end.steps:,}: {draft.end.reason}."
    for name, settings in taught.items():
        text = nested_in(text, name, settings, "corpus")
    text, products = with_fast_products(with_settings(text, after))
    checked = Config().from_str(text, interpolate=False)
    check_training_section(checked)
    told = "" if Recipe.best not in recipes or _is_measured(nlp) else ", which was not measured for such a pipeline"
    return text, f"Recipe{'s' * (len(recipes) > 1)} {names}{told}.{end}{f' {products}' if products else ''}", warned


def doubts_of(text: str, path: Path, train: Corpus, dev: Corpus | None) -> list[str]:
    """The findings of `explain` in the texts of a config. path (Path): The config's, for errors."""
    raw = Config().from_str(text, interpolate=False)
    with plain_errors(path=path):
        nlp = util.load_model_from_config(raw, auto_fill=True)
        config = nlp.config.interpolate()
    sourced = list(util.get_sourced_components(raw))
    with show_activity("Looking at the texts"):
        found = check(Facts(nlp, config, train, dev, sourced, is_initialized=False))
    return [f"{'' if one.kind == 'doubt' else 'The training would stop: '}{one.text}" for one in found]


def _loggers(log_path: Path | None, recipes: Sequence[Recipe]) -> dict[str, Any]:
    """spaCy's table with its bar, and the log. The bar shows the whole training, if a recipe sets its end."""
    bar = "train" if Recipe.best in recipes else "eval"
    return {
        "@loggers": "spacy.ChainLogger.v1",
        "logger1": {
            "@loggers": "spacy.ConsoleLogger.v3",
            "progress_bar": bar,
            "console_output": True,
            "output_file": None,
        },
        "logger2": {
            "@loggers": "thinc-torchopt.JSONLinesLogger.v1",
            **({} if log_path is None else {"path": str(log_path)}),
        },
    }


def _is_measured(nlp: Language) -> bool:
    """Whether `best` was measured for a component that is trained."""
    config = nlp.config.interpolate()
    has_encoder = bool(find_pretrained(nlp, config).encoders)
    rows = measured_of(nlp, config["training"]["frozen_components"], has_encoder=has_encoder)
    return any(row.is_measured for row in rows)


def command_to_train(path: Path, output: str, paths: Mapping[str, str | None], *, gpu: bool = False) -> list[str]:
    """The command of spaCy that trains with a config. output (str): A folder."""
    without_dev = [] if paths["dev"] is not None else ["--paths.dev", "dev.spacy"]
    return ["train", str(path), "--output", output, *(["--gpu-id", "0"] if gpu else []), *without_dev]


# ---------------------------------------------------------------------- texts to evaluate on


def evaluation(paths: Mapping[str, str | None], wish: Wish, dev: Corpus | None, output: str) -> str:
    """The texts to evaluate on, and where the log will be, in words."""
    if dev is None:
        return (
            "There are no texts to evaluate on, which the training needs: give it --paths.dev dev.spacy. Or let init "
            "set some of the texts aside: --split 0.2."
        )
    told = f"Evaluates on {count(len(dev.examples), 'text')} of {paths['dev']}"
    if wish.split is not None:
        told += f", {wish.split:.0%} of the texts, drawn at random; the others are in {paths['train']}"
    log = wish.overrides.get("training.logger.logger2.path", wish.log_path or f"{output}/log.jsonl")
    return " ".join([f"{told}.", *dev.annotations.lines(), f"Logs each step to {log}."])
