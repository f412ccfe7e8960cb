"""What is said of a corpus that can't be read."""

import warnings

import pytest
import spacy
from spacy.util import registry

from thinc_torchopt.addons.recipes import read_corpus
from thinc_torchopt.core.errors import ConfigError

ERRORS = {
    "column": (
        ValueError("no column 'text'."),
        r"ValueError: no column 'text' at line \d+ of '.*test_corpora.py'\. Correct",
    ),
    "file": (
        FileNotFoundError(2, "No such file", "a.tsv"),
        r"No such file: 'a.tsv' at line \d+ of .*\. Correct the reader",
    ),
    "none": (None, r"none\. Check the path of the corpus, and whether its reader leaves texts out\."),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_corpora_say_where_a_reader_has_raised(kind):
    error, found = ERRORS[kind]

    @registry.readers("test-corpora.Reader.v1")
    def reader():
        def read(nlp):
            if error is not None:
                raise error
            warnings.warn("[W090] as spaCy's reader of no files, which the error tells", stacklevel=2)
            yield from ()

        return read

    nlp = spacy.blank("xx")
    nlp.config["corpora"]["train"] = {"@readers": "test-corpora.Reader.v1"}
    with pytest.raises(ConfigError, match=rf"^Can't try: expected texts in \[corpora\.train\], found:? {found}"):
        read_corpus(nlp, nlp.config.interpolate(), "train_corpus", purpose="try")
