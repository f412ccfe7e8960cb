"""Mistakes, typed as users type them: the answer fits on a screen, names what is wrong, and no file is lost."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import srsly
from spacy.tokens import Doc, DocBin, Span
from spacy.vocab import Vocab

from ..conftest import CONFIGS
from ..forks import python
from ..runs import contents
from ..spacy_cli import toy_corpus
from .prompt import ROWS, Prompt, environment

MISTAKES = srsly.read_yaml(Path(__file__).with_name("mistakes.yaml"))
PATHS = "--paths.train train.spacy --paths.dev dev.spacy"
QUICK = "--training.max_steps 2 --training.eval_frequency 2 --training.batcher.size 40"
KEYS = {"typed", "config", "base", "replace", "files", "rules", "names", "then", "without", "leaves", "status"}
# Where an answer begins, after what the command printed before.
ANSWER = re.compile(r"^\W*(Error|Warning|Stops)\b.*|^✘.*", re.MULTILINE)
RULES = {
    "class": "Loss",
    "triggers": "[on_step_end]",
    "rule": 'loss["per_word"] < 0.05',
    "operations": "[hfcontrols.should_training_stop]",
}


@pytest.fixture(scope="session")
def prompt():
    found = Prompt()
    yield found
    found.close()


@pytest.fixture(scope="session")
def desk(tmp_path_factory, prompt):
    """A folder as users have it: a corpus, notes, and the checkpoints of a run, whole and damaged."""
    folder = tmp_path_factory.mktemp("desk")
    for path in toy_corpus(folder).values():
        if path.suffix == ".spacy":  # a few texts will do
            docs = [*DocBin().from_disk(path).get_docs(Vocab())][:40]
            DocBin(docs=docs).to_disk(path)
            bare = [Doc(doc.vocab, words=[word.text for word in doc]) for doc in docs]
            shares = [Doc(doc.vocab, words=["Red", "."]) for doc in docs]
            for doc in shares:
                doc.cats = {"RED": 0.5, "BLUE": 0.5}
            # spaCy looks for entities that it can't learn in long texts only.
            spaced = Doc(docs[0].vocab, words=[" ", "Anna", "."] * 60, ents=["B-PERSON", "I-PERSON", "O"] * 60)
            crossed = Doc(docs[0].vocab, words=["Anna", ".", "Rome"] * 60, ents=["B-X", "I-X", "I-X"] * 60)
            spanned, lemmas = (
                Doc(docs[0].vocab, words=["a", "b", "c"]),
                Doc(docs[0].vocab, words=["went"], lemmas=["go"]),
            )
            spanned.spans["sc"] = [Span(spanned, 0, 3, "X")]
            for name, part in {
                "one": docs[:1],
                "none": [],
                "bare": bare,
                "shares": shares,
                "spaced": [spaced] * 4,
                "crossed": [crossed] * 4,
                "spanned": [spanned] * 20,
                "lemmas": [lemmas],
            }.items():
                DocBin(docs=part).to_disk(folder / f"{name}.spacy")
    (folder / "notes.txt").write_text("A line.\nAnother one.\n")
    (folder / "empty").mkdir()
    shutil.copy(CONFIGS / "checkpoint.cfg", folder / "config.cfg")
    run = prompt.type(f"train config.cfg {PATHS} {QUICK} --paths.state state".split(), folder)
    assert run.status == 0, run.text
    shutil.copytree(folder / "state", folder / "damaged")
    for path in (folder / "damaged").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-10])
    return folder


def prepared(desk, folder, mistake, **options):
    """A copy of the desk, with the files of a mistake."""
    shutil.copytree(desk, folder, **options)
    text = (CONFIGS / mistake.get("base", "cnn.cfg")).read_text()
    for old, new in mistake.get("replace", {}).items():
        assert old in text
        text = text.replace(old, new)
    for section, lines in mistake.get("config", {}).items():
        head = f"[{section}]\n"
        text = text.replace(head, f"{head}{lines}\n") if head in text else f"{text}\n{head}{lines}\n"
    (folder / "config.cfg").write_text(text)
    for name, content in mistake.get("files", {}).items():
        content = {"text": content} if isinstance(content, str) else content
        data = (folder / content["copy"]).read_bytes() if "copy" in content else content["text"].encode()
        data = data.decode().encode(content["encoding"]) if "encoding" in content else data
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data[: content.get("bytes")])
    rules = RULES | mistake.get("rules", {})
    (folder / "rules.yaml").write_text(
        f"controller_metrics:\n  - name: loss\n    class: {rules['class']}\ncontrollers:\n  - name: stop\n"
        f"    triggers: {rules['triggers']}\n    rule: {rules['rule']}\n    operations: {rules['operations']}\n"
    )
    return folder


def answer(text):
    """What a screen shows from the answer on."""
    begin = ANSWER.search(text)
    return text[begin.start() :] if begin else text


def joined(text):
    """A text without its spaces and lines: a long path is broken anywhere."""
    return "".join(text.split())


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_answered_on_one_screen(name, desk, prompt, tmp_path):
    mistake = MISTAKES[name]
    assert set(mistake) <= KEYS
    # Checkpoints are most of what there is to copy.
    others = [name for name in ("state", "damaged") if name not in str(mistake)]
    folder = prepared(desk, tmp_path / "desk", mistake, ignore=shutil.ignore_patterns(*others))
    before = contents(folder)
    screen = prompt.type(mistake["typed"].replace("$paths", PATHS).split(), folder)
    assert screen.status == mistake.get("status", 1), screen.text
    assert "Traceback" not in screen.text
    assert len(screen.text.splitlines()) <= ROWS, screen.text
    shown = joined(screen.text)
    first = joined("".join(answer(screen.text).splitlines(keepends=True)[:3]))
    assert [named for named in mistake["names"] if joined(named) not in first] == [], screen.text
    assert [named for named in mistake.get("then", ()) if joined(named) not in shown] == [], screen.text
    assert [named for named in mistake.get("without", ()) if joined(named) in shown] == [], screen.text
    after = contents(folder)
    assert {path: after.pop(path, None) for path in before} == before
    assert {str(path.relative_to(folder)) for path in after} == set(mistake.get("leaves", ()))


@pytest.mark.parametrize(
    "name",
    [
        "lr of torch",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("an option of spacy train with a slip", "a dev file that is not there")
        ),
    ],
)
def test_mistake_in_a_process_of_its_own(name, desk, prompt, tmp_path):
    """The prompt forks; a process that begins as a user's does says the same."""
    folder = prepared(desk, tmp_path / "desk", MISTAKES[name])
    arguments = MISTAKES[name]["typed"].replace("$paths", PATHS).split()
    command = [sys.executable, "-m", "spacy", *arguments]
    run = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
    assert run.returncode == 1
    found = prompt.type(arguments, folder).text
    assert " ".join(run.stderr.split()) == " ".join(found[found.index("Error:") :].split())


def test_mistake_with_its_traceback(desk, prompt, tmp_path):
    """For those who look for a fault in code."""
    folder = prepared(desk, tmp_path / "desk", MISTAKES["a number below its range"])
    arguments = MISTAKES["a number below its range"]["typed"].replace("$paths", PATHS).split()
    shown = prompt.type(arguments, folder, THINC_TORCHOPT_TRACEBACK="1")
    assert shown.status == 1 and "Traceback" in shown.text and "ConfigError: Can't set 'grad_clip'" in shown.text
    assert "Traceback" not in prompt.type(arguments, folder, THINC_TORCHOPT_TRACEBACK="0").text


THEIRS = """import spacy
from spacy.tokens import Span
from spacy.training import Example

@spacy.registry.readers("mine.Reader.v1")
def reader():
    def read(nlp):
        doc = nlp.make_doc("a b c")
        doc.ents = [Span(doc, 0, 2, label="X"), Span(doc, 1, 3, label="Y")]
        yield Example(doc, doc)
    return read
"""


def test_faults_in_code_of_the_user_are_shown_with_their_line(desk, prompt, tmp_path):
    """Also where it is spaCy that refuses what the code does: its message does not say who did it."""
    reader = '[corpora.train]\n@readers = "spacy.Corpus.v1"\npath = ${paths.train}'
    changes = {"replace": {reader: "[corpora.train]"}, "config": {"corpora.train": '@readers = "mine.Reader.v1"'}}
    folder = prepared(desk, tmp_path / "desk", changes)
    (folder / "theirs.py").write_text(THEIRS)
    for command in ("train", "torchopt find-lr"):
        shown = prompt.type(f"{command} config.cfg {PATHS} --code theirs.py".split(), folder)
        assert shown.status == 1 and 'theirs.py", line 9, in read' in shown.text and "[E1010]" in shown.text
    shown = prompt.type(f"torchopt explain config.cfg {PATHS} --code theirs.py".split(), folder)
    words = " ".join(shown.text.split())
    assert shown.status == 1 and "Traceback" not in words
    assert "[E1010]" in words and re.search(r"at line 9 of '\S*theirs.py'", words)


def test_find_lr_stopped_by_hand(desk, prompt, tmp_path):
    """Ctrl-C in the middle of it: one line, no picture, and the exit status of other commands."""
    folder = prepared(desk, tmp_path / "desk", {})
    before = contents(folder)
    typed = f"torchopt find-lr config.cfg {PATHS} --steps 100000 --output lr.svg".split()
    screen = prompt.type(typed, folder, ctrl_c_at="Training at rising rates")
    assert screen.status == 130 and "Traceback" not in screen.text
    assert "Stopped before all 100000 steps were done: nothing is suggested." in " ".join(screen.text.split())
    assert contents(folder) == before


def test_warnings_show_no_line_of_ours(desk, prompt, tmp_path):
    """A run that goes on with another config: a warning, and no source."""
    folder = prepared(desk, tmp_path / "desk", {"base": "checkpoint.cfg"})
    warn = "--paths.state state --training.dropout 0.25 --training.optimizer.checkpoint.on_config_change warn"
    shown = prompt.type(f"train config.cfg {PATHS} {QUICK} {warn}".split(), folder)
    assert shown.status == 0 and "Warning: Resuming although the config has changed" in shown.text
    assert "warnings.warn" not in shown.text and ".py:" not in shown.text
    assert max(map(len, re.findall(r"Warning: .*", shown.text))) <= 80


def test_nothing_is_set_outside_of_the_command_line():
    """Who imports the commands in Python, or in a notebook, gets tracebacks and warnings as always."""
    code = (
        "import sys, warnings; hook, form = sys.excepthook, warnings.formatwarning; import spacy.cli; "
        "spacy.registry.cli.get_all(); import thinc_torchopt.cli; "
        "assert (sys.excepthook, warnings.formatwarning) == (hook, form); "
        "assert sys.modules['spacy.cli.train'].init_nlp.__module__ == 'spacy.training.initialize'"
    )
    python(code)


def test_configs_of_others_are_answered_as_before(desk, prompt, tmp_path):
    """spaCy's own optimizer: what spaCy says of it is none of our business."""
    algorithm = '[training.optimizer.algorithm]\n@torch_optimizers = "torch.AdamW.v1"\nweight_decay = 0.01'
    to_spacys = {'"thinc-torchopt.TorchOptimizer.v1"': '"Adam.v1"', algorithm: "", 'clip_by = "global"': ""}
    folder = prepared(desk, tmp_path / "desk", {"replace": to_spacys})
    shown = prompt.type(f"train config.cfg {PATHS} --training.optimizer.learn_rte 0.1".split(), folder)
    assert shown.status == 1 and "✘ Config error for 'Adam.v1'" in shown.text and "Did you mean" not in shown.text
    shown = prompt.type(["train", "config.cfg", "--paths.train", "train.spacy", "--paths.dev", "nowhere.spacy"], folder)
    assert shown.status == 1 and "FileNotFoundError" in shown.text
