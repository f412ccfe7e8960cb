import logging

import pytest

from thinc_torchopt.core.log import LOGGER, inform

from ..forks import python

IMPORTS = """
import logging, spacy, sys
import thinc_torchopt.cli, thinc_torchopt.controller, thinc_torchopt.corpora, thinc_torchopt.training
ours = [name for name in logging.root.manager.loggerDict if name.startswith(("spacy", "thinc_torchopt"))]
for logger in map(logging.getLogger, ours):
    print(logger.name, logger.level, len(logger.handlers) - (logger.name == "spacy"))
"""


@pytest.fixture
def levels():
    loggers = [LOGGER, logging.getLogger("spacy"), logging.root]
    before = [logger.level for logger in loggers]
    for logger, level in zip(loggers, (logging.NOTSET, logging.NOTSET, logging.WARNING)):
        logger.setLevel(level)
    yield
    for logger, level in zip(loggers, before):
        logger.setLevel(level)


def test_log_is_shown_by_default(levels, caplog):
    inform("resumed at step %d", 7)
    [record] = caplog.records
    assert (record.levelno, record.getMessage(), record.filename) == (logging.INFO, "resumed at step 7", "test_log.py")


@pytest.mark.parametrize("name", ["spacy.torchopt", "spacy", None])
@pytest.mark.parametrize(("level", "is_shown"), [(logging.ERROR, False), (logging.INFO, True)])
def test_log_level_of_the_user_counts(levels, caplog, name, level, is_shown):
    logging.getLogger(name).setLevel(level)
    inform("resumed")
    assert [record.filename for record in caplog.records] == ["test_log.py"] * is_shown


def test_log_disabled_by_the_user(levels, caplog):
    logging.disable(logging.INFO)
    try:
        inform("resumed")
    finally:
        logging.disable(logging.NOTSET)
    assert not caplog.records


def test_imports_change_no_logger():
    printed = python(IMPORTS).stdout.split("\n")
    assert all(line.endswith(" 0 0") for line in printed if line), printed
