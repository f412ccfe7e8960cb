"""Draw passages with errors as HTML: what is annotated, and what was predicted, each by spaCy's displaCy.

Texts and labels may come from anyone. displaCy escapes texts, but not labels: they are escaped here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from html import escape
from itertools import accumulate, pairwise
from typing import Any

from spacy.displacy.render import DependencyRenderer, EntityRenderer, SpanRenderer

from .errors import Mark, Passage
from .labels import shown

# As displaCy's own. The page has the colours; and a label does not decide in which direction a text is written.
_MARK = '<mark class="{verdict}">{text}<bdi>{label}</bdi></mark>'
_WRONG = " \u2717"
# Words on each side of the arcs that are drawn, and the most words.
_AROUND, _MOST_DRAWN = 2, 40
_LONGEST_WORD = 40


def draw(passage: Passage, kind: str, name: str, *, is_right_to_left: bool) -> list[tuple[str, str]]:
    """Draw a passage. name (str): Begins its ids, which are unique on the page.

    RETURNS (list[tuple]): What is shown, and its HTML.
    """
    if kind == "cats":
        return []
    rows = [("annotated", passage.annotated), ("predicted", passage.predicted)]
    if kind == "dep":
        starts = _starts(passage)
        arcs = [[_by_words(mark, starts) for mark in marks] for _, marks in rows]
        first, last = _stretch([*arcs[0], *arcs[1]], len(passage.words))
        return [
            (what, _tree(passage.words[first:last], marks, first, f"{name}-{what}", is_right_to_left))
            for (what, _), marks in zip(rows, arcs)
        ]
    return [(what, _spans(passage, marks) if _overlap(marks) else _entities(passage, marks)) for what, marks in rows]


def _overlap(marks: Sequence[Mark]) -> bool:
    return any(after.start < before.end for before, after in pairwise(sorted(marks)))


def _starts(passage: Passage) -> list[int]:
    """Where each word begins, and the end of the last one."""
    return list(accumulate(map(len, passage.words), initial=0))


def _entities(passage: Passage, marks: Sequence[Mark]) -> str:
    ents: list[dict[str, Any]] = []
    for mark in marks:
        start, end = mark.start, mark.end
        if not ents or start >= ents[-1]["end"]:  # cut at the same place
            verdict = "right" if mark.is_right else "wrong"
            ents.append({"start": start, "end": end, "label": _label(mark), "params": {"verdict": verdict}})
    renderer = EntityRenderer({"template": _MARK})
    return renderer.render([{"text": _text(passage.text), "ents": ents, "settings": {"direction": "auto"}}])


def _spans(passage: Passage, marks: Sequence[Mark]) -> str:
    starts = _starts(passage)
    ends = [start + len(word.rstrip()) for start, word in zip(starts, passage.words)]
    spans: list[dict[str, Any]] = []
    for mark in marks:
        inside = [i for i, end in enumerate(ends) if starts[i] < mark.end and mark.start < end]
        if inside:
            label = _label(mark) + ("" if mark.is_right else _WRONG)
            spans.append({"start_token": inside[0], "end_token": inside[-1] + 1, "label": label})
    words = [_text(word).rstrip() for word in passage.words]
    colours = {
        span["label"]: "var(--wrong-mark)" if span["label"].endswith("\u2717") else "var(--right-mark)"
        for span in spans
    }
    renderer = SpanRenderer({"colors": colours})
    return renderer.render([{"tokens": words, "spans": spans, "settings": {"direction": "auto"}}])


def _by_words(mark: Mark, starts: Sequence[int]) -> Mark:
    """An arc from word to word, in place of characters. One within a word has no head there."""
    child, head = (None if at is None else bisect_right(starts, at) - 1 for at in (mark.start, mark.head))
    assert child is not None
    return mark._replace(start=child, end=child + 1, head=None if head == child and mark.head != mark.start else head)


def _stretch(marks: Sequence[Mark], n_words: int) -> tuple[int, int]:
    """The words from the first to the last arc that differs, with some around."""
    ends = [i for mark in marks for i in (mark.start, mark.head) if i is not None]
    first = max(0, min(ends, default=0) - _AROUND)
    return first, min(n_words, max(ends, default=0) + 1 + _AROUND, first + _MOST_DRAWN)


def _tree(words: Sequence[str], marks: Sequence[Mark], first: int, name: str, is_right_to_left: bool) -> str:
    n, tags = len(words), [""] * len(words)
    arcs = []
    for mark in marks:
        child, head = mark.start - first, None if mark.head is None else mark.head - first
        if not 0 <= child < n:
            continue
        if head == child:
            tags[child] = "root"
        elif head is None or not 0 <= head < n:
            tags[child] = f"{_label(mark)} (of another part)"
        else:
            start, end = sorted((child, head))
            side = "left" if child < head else "right"
            arcs.append({"start": start, "end": end, "label": _label(mark), "dir": side})
    look = {"compact": True, "distance": 92, "color": "currentColor", "bg": "transparent", "font": "inherit"}
    renderer = DependencyRenderer({**look, "offset_x": 60, "word_spacing": 24})
    renderer.direction = "rtl" if is_right_to_left else "ltr"
    texts = [_text(word).strip()[:_LONGEST_WORD] for word in words]
    svg = renderer.render_svg(name, [{"text": word, "tag": tag} for word, tag in zip(texts, tags)], arcs)
    # displaCy leaves room for round arcs, which are three times as high.
    top = max(0.0, renderer.offset_y - renderer.highest_level * renderer.distance / 6 - 10)
    height = renderer.height - top
    svg = svg.replace(f'height="{renderer.height}"', f'height="{height}"', 1)
    svg = svg.replace(f"height: {renderer.height}px", f"height: {height}px", 1)
    return svg.replace("<svg ", f'<svg viewBox="0 {top} {renderer.width} {height}" ', 1)


def _label(mark: Mark) -> str:
    return escape(shown(mark.label))


def _text(text: str) -> str:
    """A text without control characters, which HTML and SVG don't allow. As long as it was."""
    return "".join(character if character.isprintable() or character in "\n\t " else " " for character in text)
