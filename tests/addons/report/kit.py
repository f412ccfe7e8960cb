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
