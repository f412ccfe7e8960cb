"""Oracles: spaCy's own table for the numbers, rich for how wide a character is on the screen."""

import re
from io import StringIO

import pytest
import spacy
from rich.cells import cell_len
from spacy.training.loggers import console_logger_v3
from spacy.util import combine_score_weights

from thinc_torchopt.addons.loggers.console import ConsoleLogger, shorten

from ...spacy_cli import Terminal

TYPICAL = ["tok2vec", "tagger", "parser", "ner"]
GROUPS = {"embeddings": 2e-5, "encoder+no_decay": 3e-4, "head": 1e-3, "ner/*": 5e-4, "frozen": 0.0}


def pipeline(components):
    """A pipeline whose components have the names and factories given, and listen to a tok2vec if there is one."""
    nlp = spacy.blank("en")
    for name, factory in components.items():
        nlp.add_pipe(factory, name=name)
    if "tok2vec" in components:
        nlp.get_pipe("tok2vec").listener_map = {"tagger": [object()]}
    weights = [nlp.get_pipe_meta(name).default_score_weights for name in nlp.pipe_names]
    nlp.config["training"]["score_weights"] = combine_score_weights(weights)
    return nlp


def info_of(nlp, step, rates=None, **changes):
    losses = {name: 131378.27 / (i + 1) / (step + 1) for i, name in enumerate(nlp.pipe_names)}
    scores = dict.fromkeys(nlp.config["training"]["score_weights"], 1.0 if step else 0.9486)
    ours = {} if rates is None else {"learn_rates": rates, "grad_norm": 44894.87 / (step + 1)}
    return {
        "epoch": step,
        "step": 400 * step,
        "score": 0.5,
        "other_scores": scores,
        "losses": losses,
        **ours,
        **changes,
    }


def log(nlp, *infos, maker=ConsoleLogger, stdout=StringIO):
    """What the logger prints, without colours."""
    output = stdout()
    log_step, finalize = maker()(nlp, output, StringIO())
    for info in infos:
        log_step(info)
    finalize()
    return re.sub(r"\x1b\[[\d;]*m", "", output.getvalue())


def read(text):
    """The titles of a narrow table and its rows; and what is said above it. Every column ends where its rule ends."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if re.fullmatch("[- ]+", line))
    ends = [match.end() for match in re.finditer("-+", lines[at])]

    def cut(line):
        """By columns on the screen: some characters take two."""
        places = "".join(char + "\0" * (cell_len(char) - 1) for char in line)
        assert len(places) == ends[-1] and all(places[end : end + 1] in ("", " ") for end in ends)
        return [places[start:end].replace("\0", "").strip() for start, end in zip([0, *ends], ends)]

    titles = [" ".join(filter(None, parts)) for parts in zip(*map(cut, lines[at - 2 : at]))]
    return titles, [cut(line) for line in lines[at + 1 :]], " ".join(" ".join(lines[: at - 2]).split())


@pytest.fixture
def columns(monkeypatch):
    return lambda width: monkeypatch.setenv("COLUMNS", str(width))


@pytest.mark.parametrize("groups", [1, 2, 4, 5])
def test_console_table_of_a_typical_pipeline_fits_into_80_columns(groups, columns):
    columns(80)
    nlp = pipeline(dict(zip(TYPICAL, TYPICAL)))
    rates = dict(list(GROUPS.items())[:groups])
    infos = [info_of(nlp, step, rates) for step in range(3)]
    text = log(nlp, *infos, stdout=Terminal)
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    titles, rows, said = read(text)
    assert {
        "LOSS TAGGER",
        "LOSS PARSER",
        "LOSS NER",
        "TAG ACC",
        "DEP UAS",
        "DEP LAS",
        "ENTS F",
        "SCORE",
        "NORM",
    } <= set(titles)
    left_out = "LOSS TOK2VEC, POS_ACC, SENTS_F, ENTS_P, ENTS_R"
    assert f"Left out, as the terminal has 80 columns: {left_out}" in said and "A wider terminal shows them" in said
    # The same numbers as in spaCy's own table, but for digits.
    theirs = [row.split() for row in log(nlp, *infos, maker=console_logger_v3).splitlines()]
    titles_there = " ".join(theirs[0]).replace("LOSS ", "LOSS_").split()
    for row, numbers in zip(rows, theirs[2:]):
        there = dict(zip([title.replace("_", " ") for title in titles_there], map(float, numbers)))
        here = {title: float(cell) for title, cell in zip(titles, row)}
        assert all(here[title] == pytest.approx(there[title], rel=1e-3) for title in set(here) & set(there))
        assert len(set(here) & set(there)) == 10


def test_console_table_shows_the_rate_that_it_has_room_for(columns):
    nlp = pipeline({"ner": "ner"})
    rates = dict(list(GROUPS.items())[:3])
    found = {}
    for width in (200, 80):
        columns(width)
        text = log(nlp, info_of(nlp, 0, rates), stdout=Terminal)
        found[width] = (
            [title for title in read(text)[0] if title.startswith("LR")] if width < 100 else text.splitlines()[0]
        )
    assert found[200].endswith("LR EMBEDDINGS  LR ENCODER...  LR HEAD   NORM    ")
    assert found[80] == ["LR EMBED...", "LR ENCOD...", "LR HEAD"]
    columns(80)
    for more, shown in ((["tagger"], ["LR MIN", "LR MAX"]), (TYPICAL, ["LR MAX"])):
        nlp = pipeline({name: name for name in [*more, "ner"]})
        titles = read(log(nlp, info_of(nlp, 0, rates), stdout=Terminal))[0]
        assert [title for title in titles if title.startswith("LR")] == shown


@pytest.mark.parametrize("width", [1, 40, 79])
def test_console_table_of_a_smaller_terminal_is_that_of_80_columns(width, columns):
    nlp = pipeline(dict(zip(TYPICAL, TYPICAL)))
    info = info_of(nlp, 0, GROUPS, since_evaluation={"skipped_updates": 2})
    columns(80)
    expected = log(nlp, info, stdout=Terminal)
    columns(width)
    assert log(nlp, info, stdout=Terminal) == expected


def test_console_table_leaves_out_no_more_than_it_must(columns):
    """In any terminal: what fits is shown, what does not is named, and what is shown in a narrow one is shown in a
    wider one.
    """
    nlp = pipeline({name: name for name in [*TYPICAL, "morphologizer", "textcat"]})
    info = info_of(nlp, 0, {"a": 0.1, "b": 0.2})
    everything = log(nlp, info).splitlines()[0].replace("LOSS ", "LOSS_").replace("LR ", "LR_").split()
    before = set()
    for width in range(80, 240, 3):
        columns(width)
        text = log(nlp, info, stdout=Terminal)
        table = [line for line in text.splitlines() if re.fullmatch(r"[\d. e-]+", line)]
        assert len(table) == 2 and all(len(line) <= width for line in table)
        if "Left out" not in text:
            continue
        titles, _, said = read(text)
        left_out = re.search(r"columns: (.*)\. A wider", said)[1].split(", ")
        shown = {re.sub("[ _]", "_", title) for title in titles} - {"LR_MAX", "LR_MIN"}
        named = {re.sub("[ _]", "_", title) for title in left_out}
        assert not shown & named and {"E", "#", "SCORE", "NORM"} <= shown
        assert "LR MAX" in titles or {"LR_A", "LR_B"} <= shown
        assert len(shown) + len(named) == len(everything)
        assert before <= shown
        before = shown
    assert len(before) > 18


def test_console_table_is_spacys_own_where_there_is_room_or_no_terminal(columns):
    nlp = pipeline(dict(zip(TYPICAL, TYPICAL)))
    infos = [info_of(nlp, step) for step in range(3)]
    theirs = log(nlp, *infos, maker=console_logger_v3)
    columns(len(theirs.splitlines()[0]))
    assert log(nlp, *infos, stdout=Terminal) == theirs
    columns(80)
    assert log(nlp, *infos) == theirs  # a log file
    assert log(nlp, *infos, stdout=Terminal) != theirs


def test_console_table_goes_by_what_a_character_takes_on_the_screen(columns):
    nlp = pipeline({"品詞": "tagger", "固有表現抽出器": "ner"})
    infos = [info_of(nlp, step, {"词向量": 0.1, "b": 0.2}) for step in range(2)]
    lines = log(nlp, *infos).splitlines()
    assert len({cell_len(line) for line in lines}) == 1 and "LOSS 固有表現抽出器" in lines[0]
    at = [
        cell_len(lines[0][: lines[0].index(title)])
        for title in ("LOSS 品詞", "LOSS 固有表現抽出器", "TAG_ACC", "LR 词向量", "NORM")
    ]
    assert all(lines[1][:place].endswith("  ") and lines[1][place] == "-" for place in at)
    columns(80)
    titles, rows, _ = read(log(nlp, *infos, stdout=Terminal))
    assert {"LOSS 品詞", "LOSS 固有...", "LR 词向量"} <= set(titles) and len(rows) == 2


def test_console_table_tells_columns_with_the_same_title_apart(columns):
    nlp = pipeline({"textcat_of_titles": "textcat", "textcat_of_texts": "textcat"})
    info = info_of(nlp, 0, {"min": 0.1, "max": 0.3, "only": 0.5})
    for width, rates in [(200, [0.1, 0.3, 0.5]), (80, [0.1, 0.3, 0.5])]:
        columns(width)
        row = log(nlp, info, stdout=Terminal).splitlines()[-1].split()
        assert [float(cell) for cell in row[2:4]] == pytest.approx([131378.27, 65689.13], rel=1e-3)
        assert [float(cell) for cell in row[-1 - len(rates) : -1]] == rates


def test_console_table_puts_remarks_where_there_is_room(columns):
    nlp = pipeline(dict(zip(TYPICAL, TYPICAL)))
    info = info_of(nlp, 0, GROUPS, since_evaluation={"skipped_updates": 2, "rollbacks": 1})
    columns(80)
    assert log(nlp, info, stdout=Terminal).splitlines()[-1] == "    2 skipped  1 rolled back"
    columns(200)
    assert log(nlp, info, stdout=Terminal).splitlines()[-1].endswith("e-03  44894.87  2 skipped  1 rolled back")


def test_console_table_has_a_new_header_when_the_terminal_has_another_width(columns):
    nlp = pipeline(dict(zip(TYPICAL, TYPICAL)))
    output = Terminal()
    log_step, _ = ConsoleLogger()(nlp, output, StringIO())
    headers = []
    for step, width in enumerate([200, 190, 80, 80, 200]):
        columns(width)
        log_step(info_of(nlp, step, GROUPS))
        headers.append(sum(line.startswith("---") for line in output.getvalue().splitlines()))
    assert headers == [1, 1, 2, 2, 3]


def test_console_table_has_no_colours_and_messages_have_spacys(columns, monkeypatch):
    columns(80)
    nlp = pipeline(dict(zip(TYPICAL, TYPICAL)))

    def printed():
        output = Terminal()
        ConsoleLogger()(nlp, output, StringIO())[0](info_of(nlp, 0, GROUPS))
        return output.getvalue()

    monkeypatch.delenv("ANSI_COLORS_DISABLED", raising=False)
    coloured = [line for line in printed().splitlines() if "\x1b" in line]
    assert coloured and all("-----" not in line and "44894" not in line for line in coloured)
    monkeypatch.setenv("ANSI_COLORS_DISABLED", "1")
    assert "\x1b" not in printed() and "Left out" in printed()


@pytest.mark.parametrize(
    "cell,width,found",
    [
        ("435.24", 7, "435.24"),
        ("44894.87", 7, "44894.9"),
        ("131378.27", 7, "131378"),
        ("131378270.55", 7, "1.3e+08"),
        ("100.00", 5, "100.0"),
        ("2.00e-05", 7, "2.0e-05"),
        ("nan", 5, "nan"),
        ("", 7, ""),
    ],
)
def test_console_table_shortens_numbers(cell, width, found):
    assert shorten(cell, width) == found
