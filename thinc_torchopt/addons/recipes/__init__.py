"""Recipes: what `spacy torchopt init` writes into a config, and why. Open recipes.py first.

rewrite.py applies one to a config, translation.py translates other optimizers, config_text.py changes a config and
keeps its comments. source.py reads and writes the config of a user. corpora.py reads the corpora, and decides where a
training ends.
"""

from .config_text import cut_section, put, with_settings
from .corpora import Setting, read_corpus
from .recipes import Recipe
from .rewrite import rewrite
from .source import ConfigSource, open_source, read_text, write_config
from .translation import THINC, TORCH

__all__ = [
    "THINC",
    "TORCH",
    "ConfigSource",
    "Recipe",
    "Setting",
    "cut_section",
    "open_source",
    "put",
    "read_corpus",
    "read_text",
    "rewrite",
    "with_settings",
    "write_config",
]
