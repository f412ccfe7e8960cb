"""What tests of reports are made of: logs, and a page as it was read."""

import json
from html.parser import HTMLParser

import pytest

from thinc_torchopt.core import compat

needs_matplotlib = pytest.mark.skipif(not compat.has_matplotlib, reason="matplotlib is not installed")


def row(step, **changes):
    """A line of a log, as the logger writes them without an evaluation."""
    return {
        "step": step,
        "epoch": step // 10,
        "seconds": 0.5 + 0.25 * step,
        "words": 100 * (step + 1),
        "losses": {"tok2vec": 3.0, "ner": 100.0 / (step + 1)},
        "learn_rates": {"default": 0.001, "encoder": 0.0005},
        "grad_norm": 2.0 + step % 3,
        "skipped_updates": 0,
        "grad_spikes": 0,
        "rollbacks": 0,
        "outside_writes": 0,
        **changes,
    }


def evaluated(step, score, **changes):
    scores = {
        "token_acc": 1.0,
        "ents_p": 0.1,
        "ents_r": 0.2,
        "ents_f": score,
        "tag_acc": 0.25,
        "speed": 9e3,
        "ents_per_type": {"X": {"f": 1.0}},
    }
    return row(step, score=score, scores=scores, **changes)


def rows(n, every=5, **changes):
    return [evaluated(i, 1 - 1 / (i + 2), **changes) if i % every == 0 else row(i, **changes) for i in range(n)]


def losses(*values):
    """Lines from which one panel is drawn."""
    return [{"step": i, "losses": {"ner": value}} for i, value in enumerate(values)]


def log(steps, **columns):
    """The lines of a log. columns: By key, the values at the steps; under some keys, by name. None: a line has none."""
    lines = [{"step": step, "losses": {}} for step in steps]
    for i, line in enumerate(lines):
        for key, column in columns.items():
            if isinstance(column, dict):
                line[key] = {name: values[i] for name, values in column.items() if values[i] is not None}
            elif column[i] is not None:
                line[key] = column[i]
    return lines


# Numbers with few digits, so that what is computed of them is exact.
ONE = log(
    [0, 1, 2, 4, 6, 7],
    epoch=[0, 0, 0, 1, 1, 1],
    words=[8, 24, 56, 120, 136, 144],
    seconds=[1.5, 2.0, 4.0, 4.5, 5.5, 6.0],
    losses={"tok2vec": [9] * 6, "ner": [4, 2, None, 1, 8, 3], "tagger": [16, 8, 4, None, 2, 1]},
    dev_losses=[None, None, None, {"losses": {"ner": 3, "tagger": 1}, "words": 4}, None, None],
    learn_rates={
        "encoder": [0.0, 0.25, 0.25, 0.125, 0.0625, 0.0],
        "default": [0.0, 0.5, 0.5, 0.25, 0.125, 0.125],
        "head": [1.0, 1.0, None, 0.5, 0.25, 0.25],
    },
    grad_norm=[1.5, 2.0, None, 3.0, 1.0, 2.0],
    score=[0.25, None, None, 0.75, None, None],
    scores={
        "ents_f": [0.25, None, None, 0.75, None, None],
        "ents_p": [0.5, None, None, 1.0, None, None],
        "tag_acc": [0.125, None, None, 0.5, None, None],
    },
    grad_spikes=[0, 1, 1, 1, 1, 1],
    skipped_updates=[0, 0, 1, 1, 3, 3],
    rollbacks=[0, 0, 0, 0, 1, 1],
    last_rollback=[None] * 4 + [[5, 2]] * 2,
    last_checkpoint=[None, 0, 0, 2, 2, 2],
    time_spent={"updates": [0.5, 0.75, 1.0, 1.5, 2.5, 3.0], "evaluations": [0.5, 0.5, 0.5, 0.5, 1.0, 1.0]},
)
# Goes on with it at step 6.
LATER = log(
    [6, 9],
    words=[168, 200],
    seconds=[7.5, 8.5],
    losses={"ner": [6, 3]},
    learn_rates={"default": [0.125, 0.0625], "head": [0.25, 0.125]},
    grad_norm=[2.0, None],
    score=[None, 0.5],
    scores={"ents_f": [None, 0.5]},
)
TWO = log(
    [0, 2, 5],
    epoch=[0, 1, 2],
    words=[16, 48, 112],
    seconds=[1.25, 2.25, 6.25],
    losses={"ner": [2, 4, 8], "parser": [1, None, 3]},
    learn_rates={"default": [0.5, 0.25, 0.125]},
    grad_norm=[None, 4.0, 2.0],
    score=[None, 0.5, 0.875],
    scores={"ents_f": [None, 0.5, 0.875], "dep_las": [None, 0.25, 0.375]},
    last_resume=[None, 1, 1],
    time_spent={"updates": [0.25, 0.5, 1.5]},
)


def write(path, lines, end=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + end, encoding="utf8")
    return path


def only(runs):
    [run] = runs
    return run


def events(run):
    return [(event.kind, event.step, event.text) for event in run.events]


class Page(HTMLParser):
    """The tags and texts of a page."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(path.read_text(encoding="utf8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    def all(self, name, **attrs):
        return [
            found
            for tag, found in self.tags
            if tag == name and all(found.get(key) == value for key, value in attrs.items())
        ]
