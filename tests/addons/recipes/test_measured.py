"""What was measured stands in measured.yaml alone."""

import importlib.util
import re
from pathlib import Path

from spacy.cli.init_config import init_config
from spacy.util import load_model_from_config

from thinc_torchopt.addons.recipes import Recipe, measured_of
from thinc_torchopt.addons.recipes.measured import measurements

ROOT = Path(__file__).resolve().parents[3]


def rows_of(*pipeline, **options):
    nlp = load_model_from_config(init_config(lang="en", pipeline=[*pipeline], **options), auto_fill=True)
    return [row.train for row in measured_of(nlp, (), has_encoder=False)]


def test_measured_by_kind_of_pipeline():
    assert rows_of("tagger", "ner") == ["tagger, parser, CNN or BiLSTM", "NER"]
    assert rows_of("textcat") == ["text classifier, bag of words"]
    assert rows_of("textcat", "ner") == ["NER", "text classifier, bag of words"]
    assert rows_of("textcat_multilabel", optimize="accuracy") == ["text classifier with a CNN"]


def test_measured_names_recipes():
    assert {row.take for row in measurements()[0]} <= {recipe.value for recipe in Recipe}


def test_measured_is_what_the_docs_say():
    spec = importlib.util.spec_from_file_location("measured_page", ROOT / "docs" / "_site" / "measured.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.PAGE.read_text(encoding="utf-8") == page.written(), (
        "docs/which-recipe.md is out of date: make reference"
    )


def test_measured_figures_are_not_in_code():
    code = (ROOT / "thinc_torchopt" / "addons" / "recipes" / "recipes.py").read_text(encoding="utf-8")
    assert not re.search(r"\d points|of its (steps|time)|±", code)
