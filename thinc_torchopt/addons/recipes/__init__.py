"""Recipes: what `spacy torchopt init` writes into a config, and why. Open recipes.py first.

end.py decides where a training ends, pretrained.py finds pretrained weights, translation.py translates other
optimizers. config_text.py changes a config and keeps its comments.
"""

from .config_text import cut_section, put, with_settings
from .corpora import Setting, read_corpus
from .recipes import Recipe
from .rewrite import rewrite
from .translation import THINC, TORCH

__all__ = [
    "THINC",
    "TORCH",
    "Recipe",
    "Setting",
    "cut_section",
    "put",
    "read_corpus",
    "rewrite",
    "with_settings",
]
