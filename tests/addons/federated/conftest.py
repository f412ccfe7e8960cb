"""Texts of two clients."""

import pytest

from .pipelines import write_texts


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A folder with texts: see `pipelines.write_texts`. Only to be read."""
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return folder
