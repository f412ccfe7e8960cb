"""Plain English: phrases that make a reader guess, in docstrings, comments, messages, docs and configs."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A regular expression (a space stands for any white space), and the advice. Only what is wrong wherever it stands.
PHRASES = {
    r"^What (?!happen|a training )(?!.*\?)": (
        "Begin with a noun or a verb: 'Saved form of a schedule', not 'What a schedule is saved as'."
    ),
    r"\bof what\b": "Name the thing: 'the tensor's shape', not 'of what a module keeps'.",
    r"\bthat there are not\b": "'unknown': 'missing or unknown settings'.",
    r"\bthat there (is|are)\b(?=[.,;:)]|$)": "'the valid names', not 'the names that there are'.",
    r"\b(?-i:expected (no|none|nothing))\b": "\"'__' is not allowed\", not \"expected no '__', found one\".",
    r"\bfound some\b(?! of)": "Name what was found, or say that it is not allowed.",
    r"\b(is|are) (another|others) than\b": "'differs from'.",
    r"\band what (is|are|was|were) then\b": "'and what to do', or the verb itself.",
    r"\b(so|how) often at most\b": "'at most this often'.",
    r"\bfor so many\b": "'for this many', or the number's name.",
    r"\b(is|are|was|were) told (of|which|what)\b": "'gets', 'knows', 'is passed'.",
    r"\bof which there (is|are)\b": "'at least one', 'several', or a second sentence.",
    r"(?<!\bthere\s)\bis no (tensor|number|param|array|setting|option|function|name|list|text|JSON|config|gradient|"
    r"loss|torch module)\b": "'is not a ...'.",
    r"\bwhat (is|are|was) of (it|them|its|their|theirs)\b": "Name the thing.",
    r"\bnothing of (it|its)\b": "A verb: 'it is not saved', not 'nothing of it is saved'.",
    r"\bwarning tells\b": "'and a warning says so'.",
    r"\bmend(s|ed|ing)?\b": "'fix', 'repair', 'correct'.",
    r"\banew\b(?! \(bool\))": "'again', 'from the start', 'without state'.",
    r"\bof such\b(?=[.,;:)\"']|$)": "Repeat the noun: 'a schedule of such numbers'.",
    r"\b(is|are) there (already|twice|too)\b": "'already exists', 'appears twice', 'too' after the noun.",
    r"\b(those|that|models|batches|steps|lines) of before\b": "'the earlier ones', 'earlier models'.",
    r"\btells? (nothing|of|more than)\b": "'says nothing about', 'shows more'.",
    r"\bwho (has|knows|wants) (?!.*\?)(?=[^,.;:]*\b(can|may|should)\b)": "'whoever ...', 'those who ...'.",
    r"\bon as many (?!as\b)\w+\b(?! as\b)": "'on the same number of words'.",
    r"[.:;] take (a|an|another|one|the|those|these|texts|textcat\w*)\b": "'use', 'choose'.",
    r"^(none|no such \w+)(,| with| in| as)\b": "After 'expected': the value to write, such as 'null with ...'.",
}
_PATTERNS = {
    re.compile(phrase.replace(" ", r"\s+"), re.IGNORECASE if not phrase.startswith("^") else 0): advice
    for phrase, advice in PHRASES.items()
}


def python_texts(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a file, an f-string's in one, and its comments, several lines in one; each with its line."""
    source = path.read_text(encoding="utf8")
    inside: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            yield node.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.lineno, node.value
    with path.open("rb") as file:
        comments = [token for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT]
    yield from _blocks([(token.start[0], token.string) for token in comments])


def config_texts(path: Path) -> Iterator[tuple[int, str]]:
    lines = enumerate(path.read_text(encoding="utf8").splitlines(), 1)
    yield from _blocks([(number, line) for number, line in lines if line.startswith(("#", ";"))])


def _blocks(comments: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Comments in lines that follow each other, as one text."""
    first, texts = 0, list[str]()
    for number, text in comments:
        if texts and number != first + len(texts):
            yield first, "\n".join(texts)
            texts = []
        if not texts:
            first = number
        texts.append(text.lstrip("#; "))
    if texts:
        yield first, "\n".join(texts)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    if path.suffix == ".py":
        return python_texts(path)
    if path.suffix == ".cfg":
        return config_texts(path)
    return iter([(1, path.read_text(encoding="utf8"))])


def findings(path: Path) -> list[str]:
    found = []
    for line, text in texts(path):
        for pattern, advice in _PATTERNS.items():
            for match in pattern.finditer(text):
                at = line + text.count("\n", 0, match.start())
                found.append(f"{path}:{at}: '{' '.join(match.group().split())}': {advice}")
    return found


def files() -> list[Path]:
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").rglob("*.cfg")]
    return sorted([*found, *(ROOT / "thinc_torchopt").rglob("*.py")])


def test_english_has_no_riddles():
    found = [each for path in files() for each in findings(path)]
    assert not found, "\n".join(["Say it plainly (see CONTRIBUTING.md):", *found])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"""What a schedule is saved as."""', 1),
        ('"""Settings that are missing,\nor that there\nare not."""', 2),
        ("x = 1\n# a copy of\n# what was kept\n", 2),
        ("raise ValueError(f\"Can't load {x}: expected none, found \"\n    'some.')", 1),
    ],
)
def test_english_finds_a_riddle_across_lines(tmp_path, text, line):
    path = tmp_path / "file.py"
    path.write_text(text)
    assert findings(path)[0].startswith(f"{path}:{line}: ")


def test_english_leaves_plain_sentences_alone(tmp_path):
    path = tmp_path / "file.py"
    path.write_text(
        '"""The tensor that torch optimizes.\n\nWhat to do? Nothing."""\n# expected a number, found a list\n'
    )
    assert not findings(path)
