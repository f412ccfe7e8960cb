"""Recipes: what `spacy torchopt init` writes into a config, and why. Open recipes.py first.

from_texts.py makes a config from the annotations of texts, from_pipeline.py one that goes on with a trained pipeline.
rewrite.py applies a recipe to a config, or spaCy's own Adam, to compare with; translation.py translates other
optimizers, config_text.py reads the config of a user, changes it and keeps its comments. corpora.py reads the corpora,
splits them, and decides where a training ends. measured.yaml says what was measured.
"""

from .config_text import (
    ConfigSource,
    check_output,
    nested_in,
    open_source,
    put,
    read_text,
    value_at,
    with_settings,
    write_config,
)
from .corpora import Setting, read_corpus, split_corpus, words_of_batches
from .from_pipeline import Plan, make_config_from, plan_for
from .from_texts import (
    Choice,
    blank_pipeline,
    choose_components,
    languages_of,
    make_config,
    notes_on,
    notes_on_language,
)
from .measured import measured_of
from .recipes import Recipe, find_pretrained
from .rewrite import ENCODER_PEAKS, PEAKS, TUNING_TRIALS, Stock, not_written, rewrite, tune, with_fast_products
from .translation import THINC, TORCH
