"""PythonDocs on the documentation of the Python that runs the tests. What was quoted is the oracle of what becomes an
entity.
"""

import os
import re
import subprocess
import sys

import pytest
import spacy
from spacy.util import registry

from thinc_torchopt.addons.corpora import PythonDocs, is_dev, load_topics, read_paragraphs, unquote
from thinc_torchopt.core.errors import ConfigError

from ..conftest import CONFIGS
from ..forks import python


@pytest.fixture(scope="module")
def nlp():
    return spacy.blank("en")


@pytest.fixture(scope="module")
def paragraphs():
    return list(read_paragraphs(load_topics()))


@pytest.fixture(scope="module")
def splits(nlp):
    return {split: list(PythonDocs(split)(nlp)) for split in ("train", "dev")}


def run_python(code, **env):
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True)


def test_readers_come_by_their_name_in_a_config(nlp, splits):
    corpora = registry.resolve(spacy.util.load_config(CONFIGS / "demo.cfg")["corpora"])
    for split, examples in splits.items():
        assert [example.text for example in corpora[split](nlp)] == [example.text for example in examples]


def test_readers_find_enough_to_train_on(splits):
    # Python 3.10 has the least of all: 831 paragraphs to train on, 155 for dev.
    assert len(splits["train"]) > 700 and len(splits["dev"]) > 100
    for examples in splits.values():
        entities = sum(len(example.reference.ents) for example in examples)
        assert entities > len(examples)


def test_readers_take_every_quote_away(splits):
    for example in splits["train"] + splits["dev"]:
        assert '"' not in example.text
        assert example.predicted.text == example.reference.text and not example.predicted.ents


def test_readers_make_entities_of_what_was_quoted(paragraphs, splits):
    quoted = {paragraph.replace('"', ""): paragraph.split('"')[1::2] for _, paragraph in paragraphs}
    for example in splits["train"] + splits["dev"]:
        assert [ent.text for ent in example.reference.ents] == quoted[example.text]
        assert {ent.label_ for ent in example.reference.ents} <= {"CODE"}


def test_readers_unquote_by_offsets():
    text, offsets = unquote('Call "f()", then "with".')
    assert text == "Call f(), then with."
    assert [text[start:end] for start, end in offsets] == ["f()", "with"]


def test_readers_lose_few_paragraphs_to_the_tokenizer(paragraphs, splits):
    assert len(splits["train"]) + len(splits["dev"]) > 0.97 * len(paragraphs)


def test_readers_split_topics_and_paragraphs_disjointly(paragraphs, splits):
    train, dev = ({example.text for example in splits[split]} for split in ("train", "dev"))
    assert len(train) == len(splits["train"]) and len(dev) == len(splits["dev"])
    assert not train & dev
    topics = {paragraph.replace('"', ""): topic for topic, paragraph in paragraphs}
    assert not {topics[text] for text in train} & {topics[text] for text in dev}


def test_readers_read_a_repeated_paragraph_once():
    prose = 'The "with" statement calls "__enter__()" before anything else.'
    found = list(
        read_paragraphs({"with": f"{prose}\n\nHere is another one, which only stands here.", "compound": f"   {prose}"})
    )
    assert found == [("compound", prose), ("with", "Here is another one, which only stands here.")]


@pytest.mark.parametrize("dev_share", [0.1, 0.4])
def test_readers_dev_share_counts_topics(dev_share):
    topics = load_topics()
    share = sum(is_dev(topic, dev_share) for topic in topics) / len(topics)
    # A binomial's standard deviation for 79 topics is at most 0.056: three of them.
    assert share == pytest.approx(dev_share, abs=0.17)


def test_readers_yield_the_same_each_time(nlp, splits):
    read = PythonDocs("dev")
    first, second = list(read(nlp)), list(read(nlp))
    assert [example.to_dict() for example in first] == [example.to_dict() for example in second]
    assert not {id(example) for example in first} & {id(example) for example in second}
    assert [example.text for example in first] == [example.text for example in splits["dev"]]


def test_readers_yield_the_same_in_every_process():
    """This one hashes otherwise. Tokens are those of the rules alone: tests leave out most exceptions."""
    code = (
        "import spacy; from thinc_torchopt.addons.corpora import PythonDocs; nlp = spacy.blank('en')\n"
        "nlp.tokenizer.rules = {}; print(ascii([e.text for e in PythonDocs('dev')(nlp)]))"
    )
    found = run_python(code, PYTHONHASHSEED="1").stdout.rstrip()
    nlp = spacy.blank("en")
    nlp.tokenizer.rules = {}
    assert len(found) > 10_000 and found == ascii([example.text for example in PythonDocs("dev")(nlp)])


@pytest.mark.parametrize(
    "block",
    [
        'with_stmt ::= "with" with_item ("," with_item)* ":" suite "."',
        '   >>> print("One two three four five six.")\n   One two three four five six.',
        'The "with" statement of the language Python.\n********************************************',
        'Boolean operations are the "or" and the others.\n===============================================',
        "+------------+-------------------------------+\n| Operator   | Does this and does that.      "
        "|\n+------------+---",
        "   with EXPRESSION as TARGET:\n       SUITE of statements that follow here",
        "object.__exit__(self, exc_type, exc_value, traceback, and, more)",
        'Integers of the type ("int")\n   These represent numbers in an unlimited range.',
        "   f(a)  # Calls the function with a as its argument.\n   G(a)  # Does the same.",
        'A quote that does not "end is not readable at all.',
        'Conditional expressions are those such as "x if C else y" and the like.',
        "Too short a sentence.",
    ],
)
def test_readers_leave_out_what_is_no_prose(block):
    prose = "This paragraph is prose, and stands before the other."
    assert list(read_paragraphs({"topic": f"{prose}\n\n{block}\n"})) == [("topic", prose)]


def test_readers_leave_no_grammar_in_the_real_text(splits):
    for example in splits["train"] + splits["dev"]:
        assert not re.search(r"::=|>>>|\*{4}|={4}|\n", example.text)


@pytest.mark.parametrize(
    "block, words",
    [
        (
            '* The "with" statement is in a list,\n  over two lines.',
            'The "with" statement is in a list, over two lines.',
        ),
        ('  2. The "__exit__()" method is\n     called then.', 'The "__exit__()" method is called then.'),
        (
            'Changed in version 3.8: The "continue"\nstatement is allowed here.',
            'The "continue" statement is allowed here.',
        ),
        ("A non-\nvirtual base class is meant here. [1]", "A non-virtual base class is meant here. [1]"),
        ('"pass" is a null operation and\ndoes nothing.', '"pass" is a null operation and does nothing.'),
    ],
)
def test_readers_join_lines_to_a_sentence(block, words):
    assert list(read_paragraphs({"topic": block})) == [("topic", words)]


@pytest.mark.parametrize("dev_share", [-0.1, 0.0, 1.0, 1.5, float("nan")])
def test_readers_refuse_a_share_out_of_range(dev_share):
    with pytest.raises(
        ConfigError, match=r"'dev_share'.*'thinc-torchopt.PythonDocs.v1': expected a number above 0 and below 1, found"
    ):
        PythonDocs("train", dev_share=dev_share)


@pytest.mark.parametrize("split, dev_share", [("dev", 1e-9), ("train", 1 - 1e-9)])
def test_readers_refuse_a_share_that_leaves_a_split_empty(split, dev_share):
    with pytest.raises(ConfigError, match=f"split '{split}'.*found none with dev_share = {dev_share}"):
        PythonDocs(split, dev_share=dev_share)


@pytest.mark.parametrize("topics", ["topics = {}", "raise ImportError"])
def test_readers_say_when_python_has_no_documentation(tmp_path, topics):
    # A real Python that has none: a folder on its path comes before the standard library.
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "__init__.py").touch()
    (tmp_path / "pydoc_data" / "topics.py").write_text(topics)
    code = "import sys; sys.path.insert(0, sys.argv[1]); from thinc_torchopt.addons.corpora import PythonDocs; "
    done = python(f"{code}PythonDocs('train')", tmp_path, check=False)
    assert "ConfigError: Can't read Python's documentation" in done.stderr and "found none" in done.stderr
