import pytest

from ..spacy_cli import toy_corpus


@pytest.fixture
def folder(tmp_path):
    """With the toy corpus in it."""
    toy_corpus(tmp_path)
    return tmp_path
