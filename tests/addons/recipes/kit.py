"""Configs that recipes rewrite, and what comes out: written.yaml has both."""

import difflib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import srsly
from spacy.cli.init_config import init_config
from spacy.language import Language
from spacy.pipeline.tok2vec import DEFAULT_TOK2VEC_MODEL
from spacy.util import load_model_from_config
from thinc.api import Model

from thinc_torchopt.addons.recipes import Recipe, rewrite

from ...cli.test_init import OWN, Transformer, put_spans, texts_in, with_optimizer
from ...models import toy_examples

ROWS = [
    {"of": of, "recipe": recipe, "name": name, "writes": "", **row}
    for of, recipes in srsly.read_yaml(Path(__file__).with_name("written.yaml")).items()
    for recipe, named in recipes.items()
    for name, row in named.items()
]


def rows(of):
    """Those of a file, as parameters of a test."""
    return [pytest.param(row, id=row["name"]) for row in ROWS if row["of"] == of]


def annotate(number, doc):
    """Tags in half of the texts, two categories, and in 100 texts twenty spans."""
    doc.cats = {"A": number % 2, "B": 1 - number % 2}
    put_spans(number, doc, 20)
    for token in doc if number % 2 else ():
        token.tag_ = token.text


class Reader(Model):
    """A layer of spacy-transformers that reads docs, as a recipe sees it."""


@Language.factory("test-recipes-transformer", default_config={"model": DEFAULT_TOK2VEC_MODEL})
def make_transformer(nlp, name, model, positions: int = 512, padding: int = 0, longest: int = 1000):
    reader = Reader("reader", lambda *_: ..., layers=[model], attrs={"has_transformer": True})
    config = SimpleNamespace(max_position_embeddings=positions, pad_token_id=padding)
    reader.transformer, reader.tokenizer = SimpleNamespace(config=config), SimpleNamespace(model_max_length=longest)
    return Transformer(nlp.vocab, reader, name)


def text_of(row):
    """The config of a row: OWN, with other components, another optimizer, and what stands there instead."""
    text = OWN if "optimizer" not in row else with_optimizer(f"[training.optimizer]\n{row['optimizer']}\n")
    if names := row.get("components"):
        pipeline = "".join(f'[components.{name}]\nfactory = "{name}"\n\n' for name in names)
        before, after = text[: text.index("pipeline =")], text[text.index("[corpora]") :]
        text = f"{before}pipeline = {json.dumps(names)}\n\n[components]\n\n{pipeline}{after}"
    for old, new in row.get("instead", ()):
        assert old in text, old
        text = text.replace(old, new)
    return text


def written(row):
    """What a recipe makes of a config, in this folder: the lines that go (-) and come (+), what it says (*), and
    what it warns of (!).
    """
    path, _ = texts_in(Path(), annotate)
    if row.get("trained"):
        nlp = load_model_from_config(init_config(lang="en", pipeline=["tagger"]), auto_fill=True)
        nlp.initialize(lambda: toy_examples(nlp))
        nlp.to_disk("model")
    text, recipe, more = text_of(row), Recipe(row["recipe"]), row.get("more", 0.0)
    draft, new = rewrite(text, Path("config.cfg"), recipe, {"paths.train": path}, more_texts=more)
    lines = difflib.unified_diff(text.splitlines(), new.splitlines(), n=0, lineterm="")
    found = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    said = [f"* {line}" for line in draft.changes] + [f"! {line}" for line in draft.warnings]
    return found + [re.sub("^(. Measured: .*?:).*", r"\1 ...", line) for line in said]  # by measured.yaml


def check(row):
    """Compare what a row writes with its file: how many lines, and those that no row before it has."""
    found, before = written(row), ROWS[: ROWS.index(row)]
    known = {line for one in before for line in one["writes"].splitlines()}
    assert [line for line in found if line not in known] == row["writes"].splitlines()
    assert len(found) == row["lines"]
