"""The recipes of `spacy torchopt init`.

A recipe changes the text of [training.optimizer]. Values that it doesn't change are kept as written, variables and
schedules included. It lists what it did in `changes`, and what the user should check in `warnings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from typing import Any

from confection import Config
from spacy.language import Language
from spacy.util import registry
from thinc.api import Model

from ...core.errors import ConfigError
from ...core.kinds import Categories, OneCategory, kind_in
from ...core.near_misses import did_you_mean
from ...core.params import all_names, components_with_model, escape, shim_paths, trainable_components
from ...core.schedules import with_end
from .config_text import SectionText, SettingText, moved_value
from .corpora import EPOCHS, End, find_end
from .measured import are_bags, is_on_bags, measured_of
from .translation import PREFIX, THINC, TORCH, Translation

# A peak rate up to this one is meant for a transformer.
_SMALL_RATE = 2e-4
_ENCODER_RATE = 5e-5
_HEAD_RATE = 1e-3
_GROUPS = ("param_groups", "per_param_lr", "layer_decay")


@dataclass(frozen=True)
class BestSettings:
    """The settings of the recipe best for a kind of pipeline: docs/recipes.md.

    words (int): Words of a batch, in place of batches that grow. 0: batches stay as they are.
    texts (int): Texts of a batch at least, on average: a text classifier learns from each once. 0: does not matter.
    peak (float): The highest rate. With `scales`, it is for batches of 400 words, and grows with the square root of
    their words: gradients of more words have less noise. A span categorizer learns from the annotated spans among its
    suggestions: with fewer than 18 in a batch, the rate falls with the square root of their number. It does with fewer
    than `texts` texts, too.
    epochs (int): Of the training, if it is neither short nor long.
    """

    what: str
    words: int
    peak: float
    scales: bool
    texts: int = 0
    epochs: int = EPOCHS

    def peak_for(self, end: End) -> float:
        """The highest rate for the batches of a training."""
        low, high = BEST_SCALES
        size = min(end.words / 400, end.spans / 18, end.texts / self.texts if self.texts else math.inf)
        return _rounded(self.peak * min(max(math.sqrt(size), low), high)) if self.scales else self.peak

    def continued(self) -> BestSettings:
        """The settings if all that learns was trained before."""
        return replace(self, what="what was trained before", peak=_rounded(self.peak * BEST_CONTINUED))


# In steps. With fewer, a span categorizer's outputs may all become 0 at the start, and stay 0.
BEST_WARMUP = 150
BEST_HORIZON = 0.05
BEST_SCALES = 0.5, 2.0
BEST_ENCODER = 1e-4
# The window_pieces that [training.optimizer.fine_tuning] has by itself.
BEST_WINDOW = 128
# In place of spaCy's batches of so many padded words: as many texts, in English.
BEST_BATCHER = "thinc-torchopt.batch_by_padded_pieces.v1"
BEST_PIECES, BEST_BUFFER = 1.25, 1024
# Of a network that is trained from scratch, if all that learns was trained before.
BEST_CONTINUED = 1 / 3
BEST = {
    "cnn": BestSettings("a network that is trained from scratch", 400, 0.002, True),
    "texts": BestSettings("a text classifier that is trained from scratch", 400, 0.002, True, texts=8),
    "labels": BestSettings("a classifier that gives a text several labels", 400, 0.001, True, texts=8, epochs=8),
    "bow": BestSettings("bags of words", 1000, 0.003, False),
    "transformer": BestSettings("new components on a transformer", 0, 0.001, False),
}
BEST["words"] = replace(BEST["cnn"], epochs=10)


class Recipe(str, Enum):
    best = "best"
    drop_in = "drop-in"
    fine_tune = "fine-tune"
    robust = "robust"

    @classmethod
    def names(cls) -> str:
        """All of them, in words."""
        return ", ".join(recipe.value for recipe in cls)

    @classmethod
    def of(cls, name: str) -> Recipe:
        """A recipe by its name. RAISES (ConfigError): Unknown name."""
        known = [recipe.value for recipe in cls]
        if name not in known:
            raise ConfigError(
                f"Can't use the recipe '{name}': expected one of {cls.names()}.{did_you_mean(name, known)} What "
                "each does: spacy torchopt init --help."
            )
        return cls(name)


@dataclass(kw_only=True)
class Draft:
    """A config whose optimizer is being rewritten.

    optimizer (Translation): The optimizer, in the text of the config.
    build_nlp (Callable): Builds the pipeline, not initialized.
    more_texts (float): Those that a teacher annotates, for each text of the corpus.

    Public: `beside` (settings outside the section, by dotted paths), `batcher` (all of [training.batcher]; empty: it
    stays as it is), `end` (of the training; None: the config's own), `is_unchanged`.
    """

    optimizer: Translation
    build_nlp: Callable[[], Language]
    more_texts: float = 0.0
    is_unchanged: bool = False
    beside: dict[str, int] = field(default_factory=dict)
    batcher: dict[str, Any] = field(default_factory=dict)
    end: End | None = None

    @property
    def changes(self) -> list[str]:
        """The changes that were made, in words."""
        return self.optimizer.changes

    @property
    def warnings(self) -> list[str]:
        """Doubts that the user should look into."""
        return self.optimizer.warnings

    def apply(self, recipe: Recipe) -> None:
        """Rewrite the optimizer.

        RAISES (ConfigError): This optimizer can't be rewritten.
        """
        if self.optimizer.kind not in (*THINC, *(PREFIX + kind for kind in THINC), TORCH):
            raise ConfigError(
                f"Can't rewrite [training.optimizer]: expected @optimizers to be one of thinc's ({', '.join(THINC)}) "
                f'or one of thinc-torchopt, found "{self.optimizer.kind}". Its settings are not known here. Write the '
                "block by hand, or remove [training.optimizer] to start from spaCy's default."
            )
        if self.optimizer.kind == TORCH and recipe == Recipe.drop_in:
            raise ConfigError(
                f'Can\'t use the recipe drop-in: [training.optimizer] already has "{TORCH}", and this recipe is for '
                "thinc's optimizers. Use another one, which keeps its settings: "
                f"{', '.join(other.value for other in Recipe if other != recipe)}."
            )
        if self.optimizer.kind != TORCH:
            self.optimizer.check_thinc()
            self.optimizer.fill_in()
        {
            Recipe.best: self._best,
            Recipe.drop_in: self._drop_in,
            Recipe.fine_tune: self._fine_tune,
            Recipe.robust: self._robust,
        }[recipe]()
        if self.optimizer.kind != TORCH and recipe != Recipe.drop_in:
            name = self.optimizer.algorithm_name(self.optimizer.section.sections["algorithm"])
            place = next(i for i, line in enumerate(self.changes) if line.startswith("@optimizers")) + 1
            self.changes.insert(
                place,
                f'[training.optimizer.algorithm]: "{name}", with the settings of the algorithm under torch\'s names.',
            )

    def _drop_in(self) -> None:
        kind = self.optimizer.kind
        if kind.startswith(PREFIX):
            self.changes.append(f'@optimizers = "{kind}" is a drop-in already: its settings stay.')
            self.is_unchanged = True
            return
        self.optimizer.set_optimizer(
            PREFIX + kind,
            f'Was: "{kind}". The settings and what they mean are the same; torch computes them.',
        )
        self.changes.append(f'@optimizers: "{kind}" is "{PREFIX + kind}" now. All settings are as they were.')
        if kind == "RAdam.v1":
            self.warnings.append(
                "thinc's RAdam counts its steps one ahead of torch's, so the first updates differ a little."
            )
        if self.optimizer.value("use_averages"):
            self.changes.append("use_averages: averages reach torch models too; with thinc's optimizer they don't.")

    # ------------------------------------------------------------------ best

    def _best(self) -> None:
        nlp = self.build_nlp()
        found = find_pretrained(nlp, self.optimizer.config)
        if found.encoders or found.sourced:
            self._check_groups(Recipe.best)
        kind = "bow" if are_bags(all_names(nlp)) else _kind_of_network(nlp)
        best = BEST["transformer" if found.encoders else kind]
        goes_on = bool(found.sourced) and not found.heads
        best = best.continued() if goes_on else best
        words = best.words if _grows(nlp) else 0
        if words and isinstance(nlp.config["training"]["batcher"], str):
            self.warnings.append(
                "[training] batcher is a variable, so it stays as it is: batches that grow. The recipe was measured "
                f"with size = {words}: set that where the variable points to, and use the recipe again."
            )
            words = 0
        self.batcher = _by_pieces(nlp) if found.encoders else {}
        end = self.end = find_end(
            nlp, words, best.texts, batcher=self.batcher, epochs=best.epochs, more=self.more_texts
        )
        self.optimizer.as_torch(clip_by="param", kept="grad_clip is")
        self.optimizer.use_adamw()
        if self.optimizer.kind != TORCH:
            self.optimizer.tell_decay()
        self.optimizer.section.put("clip_by", "param")
        if self.optimizer.section.drop("budget"):
            self.changes.append("budget: removed. max_steps ends the training.")
        self._average(end)
        self._rise_and_fall(best, end)
        peak = best.peak_for(end)
        bags = self._bags_beside(nlp, found.heads, peak) if best.scales and not goes_on else []
        if found.encoders or (found.sourced and not goes_on):
            # All other new params learn at the one rate that was measured.
            heads = [pattern for pattern in found.heads if pattern not in bags]
            groups = Pretrained(found.encoders, [] if goes_on else found.sourced, heads=heads)
            rate = BEST_ENCODER * (BEST_CONTINUED if goes_on else 1.0)
            self._group(groups, peak, encoder_rate=rate, layer_decay=False)
        if found.encoders and "fine_tuning" not in self.optimizer.section:
            self._read_in_windows(nlp)
        ends = {"max_steps": end.steps, "max_epochs": 0, "patience": 0, "eval_frequency": end.eval_every}
        self.beside = {f"training.{key}": value for key, value in ends.items()}
        if words:
            self.beside["training.batcher.size"] = end.size
            texts = f", {end.texts:.0f} texts" * (end.size > words)
            self.changes.append(
                f"[training.batcher] size = {end.size}: all batches have about this many words{texts}. Before, they "
                "grew from small ones, whose noisy gradients need more steps."
            )
        if self.batcher:
            self.changes.append(
                f"[training.batcher] size = {self.batcher['size']}, in wordpieces: texts with similar numbers of them "
                "are read together, in batches of about as many texts as before. By words, they pad each other."
            )
        self.optimizer.changes += [
            f"[training] max_steps = {end.steps}: {end.reason}.",
            "[training] patience = 0, max_epochs = 0: the training goes on to its end, where the rate is low and the "
            "score is best. For another end change max_steps: the schedule goes with it.",
            f"[training] eval_frequency = {end.eval_every}: the last step is evaluated too.",
            _measured_in_words(nlp, self.optimizer.config, has_encoder=bool(found.encoders)),
        ]

    def _read_in_windows(self, nlp: Language) -> None:
        block = self.optimizer.section.section(
            "fine_tuning", "Windows that are counted in wordpieces: none is lost, and a batch takes less memory."
        )
        block.put("@misc", "thinc-torchopt.FineTuning.v1")
        longest = longest_inputs(nlp)
        window = min((length for length in longest.values() if length is not None), default=BEST_WINDOW)
        if window < BEST_WINDOW:
            block.put("window_pieces", int(window), "The transformer can read no more at once.")
        told = (
            f"fine_tuning: the transformer reads windows of {min(window, BEST_WINDOW):.0f} wordpieces, and loses none."
        )
        if unknown := [name for name, length in longest.items() if length is None]:
            told += (
                f" It is not known how many '{unknown[0]}' can read, as its model is not on this machine. If fewer, "
                "set window_pieces."
            )
        self.changes.append(told)

    def _rise_and_fall(self, best: BestSettings, end: End) -> None:
        of_batches = f" in batches of about {end.words:.0f} words" if best.scales else ""
        if of_batches and math.isfinite(end.spans):
            of_batches += f" with {end.spans:.1f} annotated spans"
        schedule = SectionText(above=["# Rises, and falls to zero at the end of the training.\n"])
        schedule.put("@schedules", "thinc-torchopt.warmup_linear.v1")
        peak = best.peak_for(end)
        schedule.put("initial_rate", peak, f"The highest rate, for {best.what}{of_batches}.")
        warmup = _rounded(BEST_WARMUP / end.steps)
        schedule.put("warmup_ratio", warmup)
        self._replace("learn_rate", schedule)
        self.changes.append(
            f"learn_rate: up to {peak:.3g}, for {best.what}{of_batches}; rises in {warmup * end.steps:.0f} steps, "
            f"{warmup:.0%} of the training, and falls to 0 in a line. It replaces the config's own learn_rate."
        )

    def _bags_beside(self, nlp: Language, heads: Sequence[str], peak: float) -> list[str]:
        """Let new bags of words learn at the rate that was measured for them, also beside a network.

        heads (Sequence[str]): Patterns of new components. RETURNS (list[str]): Those of bags of words.
        """
        patterns = {name: f"{escape(name)}/*" for name in nlp.pipe_names if is_on_bags(nlp, name)}
        patterns = {name: pattern for name, pattern in patterns.items() if pattern in heads}
        if not patterns:
            return []
        told = ", ".join(patterns)
        if kept := [key for key in _GROUPS if key in self.optimizer.section]:
            self.changes.append(f"{kept[0]}: kept. Bags of words ({told}) learn at the rate there, or at learn_rate.")
            return []
        bags = BEST["bow"]
        groups = self.optimizer.section.section("param_groups", "Which params learn at another rate.")
        group = groups.section("bags", f"{bags.what.capitalize()}: up to {bags.peak:.3g}.")
        group.put("params", list(patterns.values()))
        group.put("lr_scale", _rounded(bags.peak / peak))
        self.changes.append(f"{bags.what.capitalize()} ({told}): up to {bags.peak:.3g}.")
        return list(patterns.values())

    def _average(self, end: End) -> None:
        horizon = max(2, round(BEST_HORIZON * end.steps))
        averages = SectionText(above=[f"# Of about {horizon} updates. They are evaluated and saved.\n"])
        averages.put("@misc", "thinc-torchopt.EMA.v1")
        averages.put("decay", round(1 - 1 / horizon, 4))
        self._replace("averages", averages)
        self.optimizer.section.put("use_averages", False, "The averages are those of the block below.")
        self.changes.append(
            f"averages: of about {horizon} updates, {BEST_HORIZON:.0%} of the training. They are evaluated and saved."
        )

    def _replace(self, key: str, section: SectionText) -> None:
        """Replace an entry by a section, and put it first. Comments stay, unless an earlier use of this recipe wrote
        them.
        """
        self.optimizer.section.drop(key)
        own = {*section.above, *(line for setting in section.settings.values() for line in setting.above)}
        self.optimizer.section.below = [line for line in self.optimizer.section.below if line not in own]
        self.optimizer.section.sections = {key: section, **self.optimizer.section.sections}

    # ------------------------------------------------------------------ robust

    def _robust(self) -> None:
        self.optimizer.as_torch()
        section = self.optimizer.section
        changes = self.changes
        for key, value, comment in (
            (
                "max_nonfinite",
                20,
                "An update with a NaN or infinite gradient is skipped; after this many in a row the training stops.",
            ),
            (
                "spike_factor",
                10.0,
                "Gradients with a norm above this many times the usual are a spike: they are scaled down to that.",
            ),
            ("on_spike", "clip", '"skip" if single batches are known to be bad.'),
            (
                "rollback_after",
                5,
                "After this many such updates in a row: back to the last checkpoint, and on at half the learning rate.",
            ),
            ("rollback_factor", 0.5, ""),
            ("max_rollbacks", 3, "After this many times the training stops."),
        ):
            if key not in section:
                section.put(key, value, *([comment] if comment else []))
        changes.append(
            "max_nonfinite, spike_factor, on_spike: updates with a NaN are skipped, far too large gradients are "
            "scaled down."
        )
        changes.append(
            "rollback_after, rollback_factor, max_rollbacks: when updates go wrong one after the other, the training "
            "goes back."
        )
        if "averages" not in section and not self.optimizer.value("use_averages"):
            section.put("use_averages", True, "Averages of all params are evaluated and saved.")
            changes.append("use_averages = true: averages of all params are evaluated and saved.")
        if "checkpoint" not in section:
            checkpoint = section.section("checkpoint", "The same command resumes a run that was killed.")
            checkpoint.put("@misc", "thinc-torchopt.Checkpoint.v1")
            checkpoint.put("every", 500)
            checkpoint.put("keep", 3, "More than one, so that there is an older one to go back to.")
            changes.append(
                "checkpoint: the state is saved below --output every 500 steps and after each evaluation. The same "
                "command resumes from it after a crash."
            )
            changes.append(
                "With a checkpoint, the data comes in another order from the second epoch on, as with another seed, so "
                "scores differ a little from those before."
            )

    # ------------------------------------------------------------------ fine-tune

    def _fine_tune(self) -> None:
        self._check_groups(Recipe.fine_tune)
        self.optimizer.as_torch()
        self.optimizer.use_adamw()
        if self.optimizer.kind != TORCH:
            self.optimizer.tell_decay()
            self.optimizer.tell_rate()
        found = find_pretrained(self.build_nlp(), self.optimizer.config)
        peak = self._peak_rate()
        if not found.encoders and not found.sourced and not found.vectors:
            self.warnings.append(
                "Nothing that learns here was trained before: no transformer, no static vectors, no component with a "
                "source that is not frozen, no init_tok2vec. So all params learn at one rate."
            )
        self.optimizer.section.put(
            "skip_decay", "bias_and_norm", "No weight decay for biases and normalization layers."
        )
        self.changes.append('skip_decay = "bias_and_norm": no weight decay for biases and normalization layers.')
        if found.encoders or found.sourced:
            self._warm_up()
        if found.encoders or found.sourced or found.vectors:
            self._group(found, peak)

    def _check_groups(self, recipe: Recipe) -> None:
        for key in _GROUPS:
            if key in self.optimizer.section:
                raise ConfigError(
                    f"Can't use the recipe {recipe.value}: it makes groups of params, and the config already has "
                    f"[training.optimizer.{key}]. Change the rates there, or remove it and try again."
                )

    def _group(
        self, found: Pretrained, peak: float, *, encoder_rate: float = _ENCODER_RATE, layer_decay: bool = True
    ) -> None:
        # One of the two rates is the config's, with its schedule; the other is a multiple of it.
        is_encoders = bool(found.encoders) and 0.0 < peak <= _SMALL_RATE
        head_rate = _HEAD_RATE if is_encoders else peak
        groups = self.optimizer.section.section(
            "param_groups", "Which params learn at which rate. A param that is in no group learns at learn_rate."
        )

        def add(name: str, params: list[str], rate: float, what: str) -> None:
            scale = _rounded(rate / peak) if peak else 1.0
            # A group at the common rate is kept only for the transformer, as a name.
            if params and (scale != 1.0 or name == "encoder"):
                group = groups.section(name, f"{what}: up to {peak * scale:.3g}.")
                group.put("params", params)
                if scale != 1.0:
                    group.put("lr_scale", scale)
            if params:
                times = "which is learn_rate" if scale == 1.0 else f"{scale:g} times learn_rate"
                self.changes.append(f"{what} ({', '.join(params)}): up to {peak * scale:.3g}, {times}.")

        add("heads", found.heads, head_rate, "New components")
        add(
            "encoder",
            found.encoders,
            peak if is_encoders else encoder_rate,
            "The transformer, which was trained before",
        )
        add("trained", found.sourced, head_rate / 10, "Components that were trained before")
        add(
            "static_vectors",
            found.vectors,
            head_rate / 10,
            "The layer that maps static vectors, which themselves are never trained",
        )
        if found.encoders and layer_decay:
            decay = self.optimizer.section.section(
                "layer_decay", "From each layer of the transformer to the one below, the rate falls to 0.9 of it."
            )
            for pattern in found.encoders:
                decay.put(pattern, 0.9)
            self.changes.append(
                "layer_decay: the lower a layer of the transformer, the less it changes, 0.9 from layer to layer."
            )
        if not groups.sections:
            self.optimizer.section.drop("param_groups")

    def _peak_rate(self) -> float:
        """The highest learning rate of the training."""
        rate = self.optimizer.values.get("learn_rate", 0.001)
        if isinstance(rate, dict):
            rate = registry.resolve({"learn_rate": rate})["learn_rate"]
        if isinstance(rate, (int, float)):
            return float(rate)
        steps = (self.optimizer.max_steps or 20000) + 1
        return max((float(value) for value in islice(with_end(rate, steps), steps)), default=0.0)

    def _warm_up(self) -> None:
        """Give a constant rate a warm-up."""
        rate = self.optimizer.values.get("learn_rate", 0.001)
        if not isinstance(rate, (int, float)):
            return
        given = self.optimizer.section.pop("learn_rate")
        schedule = SectionText(
            above=["# Rises slowly, for what was trained before, and falls to the end of the training.\n"]
        )
        steps = self.optimizer.max_steps
        name = "warmup_linear" if steps else "inverse_sqrt"
        schedule.put("@schedules", f"thinc-torchopt.{name}.v1")
        if isinstance(given, SettingText):
            value = moved_value(given.value, rate)
            schedule.settings["initial_rate"] = SettingText("initial_rate", value, given.above)
        else:
            schedule.put("initial_rate", rate)
        warmup = min(250, steps // 10) if steps else 250
        schedule.put("warmup_steps", warmup)
        self.optimizer.section.sections = {"learn_rate": schedule, **self.optimizer.section.sections}
        self.changes.append(
            f"learn_rate: was {rate:.3g} all the time. Now it rises to that over {warmup} steps, and falls from there."
        )


def _measured_in_words(nlp: Language, config: Config, *, has_encoder: bool) -> str:
    frozen = config.get("training", {}).get("frozen_components", [])
    rows = measured_of(nlp, frozen, has_encoder=has_encoder)
    if not any(row.is_measured for row in rows):
        return "Nothing was measured for this kind of pipeline. Compare with spaCy's optimizer: spacy torchopt try."
    told = " ".join(f"{row.train}: {row.expect.rstrip('.')}." for row in rows)
    return f"Measured: {told}"


def _grows(nlp: Language) -> bool:
    """Whether batches are counted in words and grow by a schedule, as spaCy's default."""
    batcher = nlp.config.interpolate()["training"]["batcher"]
    return batcher["@batchers"] == "spacy.batch_by_words.v1" and isinstance(batcher["size"], Mapping)


def _by_pieces(nlp: Language) -> dict[str, Any]:
    """[training.batcher] by wordpieces. Empty: it can't be so, or is not spaCy's by padded words, with a fixed size."""
    block = nlp.config.interpolate()["training"]["batcher"]
    nodes = [node for _, model in components_with_model(nlp) for node in model.walk()]
    is_theirs = block["@batchers"] == "spacy.batch_by_padded.v1" and block.get("get_length") is None
    is_fixed = isinstance(block["size"], int) and not isinstance(nlp.config["training"]["batcher"], str)
    if not is_theirs or not is_fixed or sum("has_transformer" in node.attrs for node in nodes) != 1:
        return {}
    return {
        "@batchers": BEST_BATCHER,
        "discard_oversize": block["discard_oversize"],
        "size": round(BEST_PIECES * block["size"]),
        "buffer": max(BEST_BUFFER, block["buffer"]),
    }


def _kind_of_network(nlp: Language) -> str:
    """The key of `BEST`, by all that learns, what it listens to aside: whether something is learned of each word, or
    nothing but categories of texts, with several labels.
    """
    trained = {name for name, _ in trainable_components(nlp, nlp.config["training"]["frozen_components"])}
    kinds = [kind_in(nlp, name) for name in nlp.pipe_names if escape(name) in trained]
    kinds = [kind for kind in kinds if kind.factory != "tok2vec"]
    if any(kind.is_of_each_word for kind in kinds):
        return "words"
    if not kinds or not all(isinstance(kind, Categories) for kind in kinds):
        return "cnn"
    return "texts" if any(isinstance(kind, OneCategory) for kind in kinds) else "labels"


def _rounded(number: float) -> float:
    """Round to two digits."""
    return float(f"{number:.2g}") if math.isfinite(number) else 1.0


# ---------------------------------------------------------------------- what was trained before


@dataclass
class Pretrained:
    """Patterns over the params of a pipeline.

    encoders (list[str]): Transformers.
    sourced (list[str]): Other pretrained components.
    vectors (list[str]): Layers that map static vectors, in new components.
    heads (list[str]): New components.
    """

    encoders: list[str] = field(default_factory=list)
    sourced: list[str] = field(default_factory=list)
    vectors: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)


def find_pretrained(nlp: Language, config: Config) -> Pretrained:
    """Find the pretrained parts of a pipeline.

    nlp (Language): The pipeline, not initialized. config (Config): Its config, interpolated.
    """
    frozen = config.get("training", {}).get("frozen_components", [])
    components = config.get("components", {})
    initialize, found = config.get("initialize", {}), Pretrained()
    pretrained = {name for name, block in components.items() if "source" in block}
    if initialize.get("init_tok2vec"):
        # spaCy loads it into the component that [pretraining] names.
        pretrained.add(config.get("pretraining", {}).get("component", "tok2vec"))
    trained = {escape(name): name for name in nlp.pipe_names if name not in frozen}
    for escaped, model in components_with_model(nlp):
        if escaped not in trained:
            continue
        paths = [path for path, shim in shim_paths(model, escaped) if type(shim).__name__ == "HFShim"]
        is_encoder = type(nlp.get_pipe(trained[escaped])).__name__ in ("Transformer", "CuratedTransformer")
        if is_encoder:
            found.encoders.append(f"{escaped}/*")
        else:
            (found.sourced if trained[escaped] in pretrained else found.heads).append(f"{escaped}/*")
            found.encoders += [f"{path}/*" for path in paths]
    names = [name for name in all_names(nlp) if f"{name.split('/')[0]}/*" in found.heads and "/static_vectors/" in name]
    found.vectors = sorted({f"{name.split('/')[0]}/*static_vectors/*" for name in names})
    return found


def longest_inputs(nlp: Language) -> dict[str, float | None]:
    """The most wordpieces that each transformer can read at once, by the name of its component. None: it is not known,
    as the files of its model are not on this machine. No weights are read.

    nlp (Language): The pipeline, not initialized.
    """
    found: dict[str, float | None] = {}
    for name, proc in nlp.pipeline:
        model = getattr(proc, "model", None)
        for node in model.walk() if isinstance(model, Model) else ():
            if "has_transformer" in node.attrs:  # of spacy-transformers
                found[name] = _longest_input(node)
            elif node.name == "transformer_model":  # of spacy-curated-transformers
                block = nlp.get_pipe_config(name)["model"]
                positions = _positions(block.get("max_position_embeddings"), block.get("padding_idx"))
                found[name] = min(positions, block["model_max_length"]) if "model_max_length" in block else None
    return found


def _longest_input(node: Any) -> float | None:
    """node (Model): The layer of spacy-transformers that reads docs."""
    config, tokenizer = getattr(node.transformer, "config", None), node.tokenizer
    if config is None:
        from transformers import AutoConfig, AutoTokenizer

        how = {"local_files_only": True, "trust_remote_code": False}
        try:
            config, tokenizer = (one.from_pretrained(node.attrs["name"], **how) for one in (AutoConfig, AutoTokenizer))
        except (OSError, ValueError, ImportError):  # no such files, or they need other code
            return None
    positions = _positions(getattr(config, "max_position_embeddings", None), getattr(config, "pad_token_id", None))
    return float(min(positions, tokenizer.model_max_length))


def _positions(embeddings: int | None, padding: int | None) -> float:
    """RoBERTa and its kin, whose padding is 1, count positions from 2. embeddings (int | None): None: no limit."""
    return math.inf if embeddings is None else embeddings - (2 if padding == 1 else 0)
