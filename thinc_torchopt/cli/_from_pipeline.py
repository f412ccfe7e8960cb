"""Make a config that goes on with a trained pipeline, for `spacy torchopt init --from`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confection import Config
from spacy.language import Language
from spacy.training import Example

from ..addons.recipes import Plan, make_config_from, plan_for
from ..core.errors import ConfigError
from ..core.host_errors import plain_errors
from ..core.kinds import survey
from ..core.words import count, listed
from ..loop.data_check import Corpus
from ..loop.progress_bars import show_activity
from ..loop.random_state import preserved_random
from ._new_config import (
    NewConfig,
    Wish,
    command_to_train,
    convert,
    doubts_of,
    evaluation,
    load_pipeline,
    output_for,
    paths_of,
    read_dev,
    read_texts,
    split_off,
    taught_settings,
    write,
)


def make_from(path: Path, stem: str, wish: Wish) -> NewConfig:
    """Make a config from a pipeline and texts. For the arguments, see `make`.

    RAISES (ConfigError): The pipeline or the texts can't be read, or it has nothing to learn from them.
    """
    assert wish.source is not None
    paths = paths_of(path, wish)
    nlp = load_pipeline(wish.source, "--from")
    converted = convert(paths, nlp, wish)
    examples = _read(nlp, paths["train"])
    found = survey(example.reference for example in examples)
    with show_activity("Comparing the texts with the pipeline"), preserved_random():
        plan = plan_for(nlp, found, examples)
    train = paths["train"]
    if wish.split is not None:
        paths |= split_off(paths, wish)
        examples = _read(nlp, paths["train"])
    given = {"old": wish.old, "old_dev": wish.old_dev}
    all_olds = {name: None if file is None else str(file) for name, file in given.items()}
    converted += convert(all_olds, nlp, wish)
    olds = {name: file for name, file in all_olds.items() if file is not None}
    n_old = {name: len(_read(nlp, file)) for name, file in olds.items()}
    if "old" in olds and (spans := [name for name, one in plan.learners.items() if one.kind == "spans"]):
        raise ConfigError(
            f"Can't use --old: '{spans[0]}' takes all spans without a label as none, so these texts would teach it "
            "that there are no new labels. Annotate them for the new labels, too, and put them into --paths.train."
        )
    output = output_for(stem, wish.source)
    with plain_errors(path=path):
        config = make_config_from(nlp, wish.source, plan)
        config["paths"] |= {**paths, **olds}
        text, told, warned = write(config, path, wish, taught=_taught(plan, olds, config, output))
    dev = read_dev(paths, str(nlp.lang), like=nlp)
    lines = [
        *converted,
        f"Found in {train}: {count(found.texts, 'text')}, {count(found.words, 'word')}. {_told_of(plan)}",
        *found.lines(),
        f"Chose {_chosen(nlp, plan, wish.source)} {told}",
        evaluation(paths, wish, dev, output),
    ]
    if "old_dev" in olds:
        lines[-1] += f" Evaluates on {count(n_old['old_dev'], 'text')} of {olds['old_dev']}, too."
    if plan.taught and dev is not None:
        lines[-1] += (
            " In the score, what the old pipeline fills in counts as right, so it is high before the new labels are "
            f"learned: use {output}/model-last."
        )
    warnings = _warnings(plan, wish) + _left_out(nlp) + warned
    warnings += doubts_of(text, path, Corpus("corpora.train", examples), dev)
    return NewConfig(text, lines, warnings, command_to_train(path, output, paths))


def _read(nlp: Language, path: str | None) -> list[Example]:
    return read_texts({"train": path, "dev": None}, str(nlp.lang), like=nlp)


def _taught(plan: Plan, olds: Mapping[str, str], config: Config, output: str) -> dict[str, dict[str, Any]]:
    """The readers around those of the texts. None, if there is nothing to fill in and nothing to add."""
    if not plan.taught and not olds:
        return {}
    components = plan.taught or list(plan.learners)
    found = {}
    for name, old in (("train", "old"), ("dev", "old_dev")):
        settings = taught_settings("pipeline", components, plan.complete_for(components), output)
        if old in olds:
            settings["old"] = config["corpora"][name] | {"path": f"${{paths.{old}}}"}
        found[f"corpora.{name}"] = settings
    return found


# ---------------------------------------------------------------------- in words


def _told_of(plan: Plan) -> str:
    """Labels to learn, and those that are missing."""
    parts = []
    for name, learner in plan.learners.items():
        rest = "with the edit trees that are new to it" if learner.kind == "lemmas" else "with no new label"
        new = f", new to '{name}': {_counted(learner.new)}" if learner.new else f" for '{name}', {rest}"
        parts.append(f"{learner.kind.in_words[:1].upper()}{learner.kind.in_words[1:]}{new}.")
        if learner.missing:
            few = [label for label, _ in learner.missing.most_common()]
            looked = plan.compared
            where = "" if looked.predicted == looked.texts else f" in {count(looked.predicted, 'text')}"
            parts.append(
                f"They do not have {listed(few, 'or')}, where the pipeline finds {learner.missing.total():,}{where}."
            )
    return " ".join(parts)


def _counted(labels: Counter[str]) -> str:
    return listed([f"{label} ({n:,})" for label, n in labels.most_common()])


def _chosen(nlp: Language, plan: Plan, source: str) -> str:
    """Components that are trained and those that are not, and who fills in the rest."""
    parts = [f"to train {listed([*plan.encoders, *plan.learners])} of {source}"]
    if plan.own_copies:
        parts[-1] += f", with a copy of the layers that {listed(list(plan.own_copies))} shared with others"
    if plan.frozen:
        parts[-1] += f"; {listed(plan.frozen)} {'stays' if len(plan.frozen) == 1 else 'stay'} as before"
    if plan.taught:
        parts.append(f"The pipeline as it was fills in labels that the texts leave open, for {listed(plan.taught)}")
    return ". ".join(parts) + "."


def _warnings(plan: Plan, wish: Wish) -> list[str]:
    found = [f"{one}: left out." for one in plan.unsupported]
    for name, learner in plan.learners.items():
        if learner.lost and wish.old is None:
            found.append(
                f"'{name}': the texts have no {listed(learner.lost, 'or')}, which will be forgotten: with exclusive "
                "categories, each text teaches that it has no other. Give texts that have them: --old old.spacy."
            )
    return found


def _left_out(nlp: Language) -> list[str]:
    """Callbacks of the pipeline's own training that the new config does not have: they may act twice."""
    config = nlp.config.interpolate()
    found = []
    for section, name in (("initialize", "before_init"), ("training", "before_to_disk")):
        function = str((config[section].get(name) or {}).get("@callbacks", ""))
        if function and not function.startswith(("spacy.copy_from_base_model.", "thinc-torchopt.")):
            found.append(
                f'{name} in [{section}]: the pipeline was trained with "{function}", which is left out. If the new '
                "training needs it, add it."
            )
    return found
