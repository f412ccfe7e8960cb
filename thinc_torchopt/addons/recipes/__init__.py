"""Recipes: what `spacy torchopt init` writes into a config, and why. Open recipes.py first.

from_texts.py makes a config from the annotations of texts, from_pipeline.py one that goes on with a trained pipeline;
split.py takes texts to evaluate on from a corpus. rewrite.py applies a recipe to a config, translation.py translates
other optimizers, config_text.py changes a config and keeps its comments. stock.py writes spaCy's own Adam, to compare
with. source.py reads and writes the config of a user; corpora.py reads the corpora, and decides where a training ends.
measured.yaml says what was measured.
"""

from .config_text import cut_section, nested_in, put, value_at, with_settings
from .corpora import Setting, read_corpus, words_of_batches
from .from_pipeline import Learner, Plan, make_config_from, plan_for
from .from_texts import (
    Choice,
    blank_pipeline,
    choose_components,
    languages_of,
    make_config,
    notes_on,
    notes_on_language,
)
from .measured import Measured, measured_of, measurements
from .recipes import Recipe, find_pretrained
from .rewrite import not_written, rewrite, with_fast_products
from .source import ConfigSource, check_output, open_source, read_text, write_config
from .split import split_corpus
from .stock import ENCODER_PEAKS, PEAKS, TUNING_TRIALS, Stock, tune
from .translation import THINC, TORCH

__all__ = [
    "ENCODER_PEAKS",
    "PEAKS",
    "THINC",
    "TORCH",
    "TUNING_TRIALS",
    "Choice",
    "ConfigSource",
    "Learner",
    "Measured",
    "Plan",
    "Recipe",
    "Setting",
    "Stock",
    "blank_pipeline",
    "check_output",
    "choose_components",
    "cut_section",
    "find_pretrained",
    "languages_of",
    "make_config",
    "make_config_from",
    "measured_of",
    "measurements",
    "nested_in",
    "not_written",
    "notes_on",
    "notes_on_language",
    "open_source",
    "plan_for",
    "put",
    "read_corpus",
    "read_text",
    "rewrite",
    "split_corpus",
    "tune",
    "value_at",
    "with_fast_products",
    "with_settings",
    "words_of_batches",
    "write_config",
]
