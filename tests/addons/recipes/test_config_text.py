"""The text of a config, and what is loaded from it."""

from confection import Config

from thinc_torchopt.addons.recipes import open_source

TEXT = "[paths]\ntrain = null\n\n[corpora]\n\n[corpora.train]\npath = ${paths.train}\n"


def test_config_text_keeps_its_variables():
    """They are filled in where all overrides are known."""
    source = open_source(Config().from_str(TEXT, interpolate=False), {"paths.train": "a.spacy"})
    loaded = source.load()
    assert loaded["paths"]["train"] == "a.spacy" and loaded["corpora"]["train"]["path"] == "${paths.train}"
    assert source.load(overrides={"paths.train": "b.spacy"}).interpolate()["corpora"]["train"]["path"] == "b.spacy"
