"""The panels of a report, drawn by matplotlib over the same steps. Panels without numbers are left out.

One run: a colour for each of its components, scores and param groups. Several runs: a colour for each run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy
from spacy.displacy.render import DependencyRenderer, EntityRenderer, SpanRenderer

from .errors import Mark, Passage
from .labels import shown
from .log_file import printable
from .runs import LoggedRun
from .style import BAD, COLOURS, TEXT, colour_of, needs_log, scale_rates, set_ticks

Runs = Sequence[LoggedRun]
# A curve with more points is reduced to the lowest and highest of neighbours.
_MAX_POINTS = 1200
# Curves with more points are smoothed, and drawn without dots.
_FEW_POINTS = 60
# Scores with these prefixes are only in the table.
_SECONDARY = ("token_", "speed")
# Kinds with more events are only in the panel of events.
_MAX_LINES = 5
# Events are joined to this many marks.
_MAX_MARKS = 400
_MAX_KINDS, _MAX_NAME = 16, 40
# The look of kinds of events: marker, colour, and dashes of lines through all panels.
_LOOKS: dict[str, tuple[str, str, str | None]] = {
    "checkpoint saved": ("^", COLOURS[7], None),
    "gradient spike": ("v", COLOURS[1], None),
    "update skipped": ("x", BAD, None),
    "went back": ("<", BAD, "--"),
    "resumed": (">", COLOURS[0], ":"),
    "rates written by others": ("D", COLOURS[4], None),
}
_OF_RULES = (COLOURS[2], COLOURS[3], COLOURS[6], COLOURS[5])


class Panel(NamedTuple):
    """A picture over the steps. height (float): In pixels. draw (Callable): Draws it into axes, and returns a
    caption.
    """

    title: str
    height: float
    draw: Callable[[Any], str]


def make_panels(runs: Runs) -> list[Panel]:
    """The panels of runs, the most interesting first."""
    components = list(dict.fromkeys(name for run in runs for name in run.losses))
    kinds = _kinds(runs)
    by_component = [(f"Loss of {printable(name)}", 220, partial(_losses, runs, [name])) for name in components]
    found = [
        ("Score", 220, partial(_scores, runs), any(run.best for run in runs)),
        *((*panel, True) for panel in by_component if len(runs) > 1),
        ("Loss", 220, partial(_losses, runs, components), components and len(runs) == 1),
        ("Learning rate", 220, partial(_rates, runs), any("learn_rates" in run.columns for run in runs)),
        ("Gradient norm", 220, partial(_norm, runs), any(run.last("grad_norm") is not None for run in runs)),
        ("Speed", 160, partial(_speed, runs), any(run.speed for run in runs)),
        ("What happened", 60 + 32 * len(kinds), partial(_events, runs, kinds), kinds),
    ]
    return [Panel(title, height, partial(_framed, runs, draw)) for title, height, draw, is_there in found if is_there]


def _framed(runs: Runs, draw: Callable[[Any], str], axes: Any) -> str:
    caption = draw(axes)
    first, last = min(run.steps[0] for run in runs), max(run.steps[-1] for run in runs)
    margin = 0.01 * (last - first) or 0.5
    axes.set_xlim(first - margin, last + margin)
    set_ticks(axes)
    axes.set_xlabel("step")
    return caption


# ---------------------------------------------------------------------- panels


def _scores(runs: Runs, axes: Any) -> str:
    caption = "At each evaluation, on the dev set."
    axes.set_ylabel("score (0 to 1)")
    found = [(run, "main score" if len(runs) == 1 else run.label, run.numbers("score")) for run in runs]
    if len(runs) == 1:
        [run], scores = runs, runs[0].columns.get("scores", {})
        # Don't draw a score again that equals the main score.
        others = [
            (run, printable(name), values)
            for name, values in scores.items()
            if _is_shown(name, scores) and not numpy.array_equal(values, run.numbers("score"), equal_nan=True)
        ]
        found += others[: len(COLOURS) - 1]
        if len(found) <= len(others):
            caption += f" {len(others) - len(found) + 1} more are in the table below."
    for i, (run, name, values) in enumerate(found):
        _plot(axes, run, values, name, colour_of(i, len(found)), **({"marker": "."} if i < len(runs) else {}))
    for i, run in enumerate(runs):
        if run.best is not None:
            score, step = run.best
            axes.plot([step], [score], "*", color=colour_of(i, len(found)), label=f"best: {score:.4g}")
    _lines(axes, runs)
    return caption


def _is_shown(name: str, scores: dict[str, numpy.ndarray]) -> bool:
    """Whether to draw a score: it is between 0 and 1, and no precision or recall beside an F-score."""
    if name.startswith(_SECONDARY) or (name[-2:] in ("_p", "_r") and f"{name[:-2]}_f" in scores):
        return False
    return bool(numpy.nanmin(scores[name]) >= 0.0 and numpy.nanmax(scores[name]) <= 1.0)


def _losses(runs: Runs, components: Sequence[str], axes: Any) -> str:
    is_per_word = all(run.counts_words for run in runs)
    axes.set_ylabel("loss per word" if is_per_word else "loss per step")
    curves, silent = [], []
    for name in components:
        for i, run in enumerate(runs):
            values = run.loss(name, per_word=is_per_word)
            if not numpy.isfinite(values).any():
                continue
            if numpy.nanmax(numpy.abs(values)) == 0.0:
                silent.append(printable(name) if len(runs) == 1 else run.label)
                continue
            curves.append((run, printable(name) if len(runs) == 1 else run.label, values, i))
            dev = run.columns.get("dev_losses", {}).get(name)
            if dev is not None and is_per_word:
                curves.append((run, f"{curves[-1][1]}, dev set", dev, i))
    n = len({(run.label, name.removesuffix(", dev set")) for run, name, _, _ in curves})
    colours: dict[str, str] = {}
    drawn = []
    for run, name, values, i in curves:
        of = name.removesuffix(", dev set")
        colour = colours.setdefault(of, colour_of(i, len(runs)) if len(runs) > 1 else colour_of(len(colours), n))
        if of != name:
            drawn += _plot(axes, run, values, name, colour, linestyle="--", marker=".")
        else:
            drawn += _smoothed(axes, run, values, name, colour)
    caption = _fit(axes, drawn)
    left_out = sorted({printable(name) for run in runs for name in run.sums_of_gradients if len(runs) == 1})
    if left_out:
        caption += f" Not shown, as they are not losses but sizes of gradients: {', '.join(left_out)}."
    if silent:
        caption += f" Always 0, and left out: {', '.join(silent)}."
    _lines(axes, runs)
    return caption


def _rates(runs: Runs, axes: Any) -> str:
    axes.set_ylabel("learning rate")
    caption = ""
    by_run = [run.columns.get("learn_rates", {}) for run in runs]
    is_log = scale_rates(axes, [values.tolist() for rates in by_run for values in rates.values()])
    if len(runs) > 1:
        for i, (run, rates) in enumerate(zip(runs, by_run)):
            if rates:
                top, bottom = _edges(list(rates.values()))
                _plot(axes, run, top, run.label, COLOURS[i % len(COLOURS)])
                if len(rates) > 1:
                    _plot(axes, run, bottom, "", COLOURS[i % len(COLOURS)])
        if any(len(rates) > 1 for rates in by_run):
            caption = "The highest and the lowest rate of a run's param groups, without those that are frozen."
    else:
        frozen = [name for name, values in by_run[0].items() if numpy.nanmax(values) == 0.0 and is_log]
        alike: dict[bytes, list[str]] = {}
        for name, values in by_run[0].items():
            if name not in frozen:
                alike.setdefault(values.tobytes(), []).append(name)
        groups = sorted(alike.values(), key=lambda names: -numpy.nanmax(by_run[0][names[0]]))
        for i, names in enumerate(groups):
            _plot(axes, runs[0], by_run[0][names[0]], name_groups(names), colour_of(i, len(groups)))
        if len(groups) < len(by_run[0]) - len(frozen):
            caption = "Param groups with the same rates at every step share a curve."
        if frozen:
            caption += f" Always at 0, and left out: {name_groups(frozen)}."
    _lines(axes, runs)
    return caption + (" The axis ends at a hundredth of the lowest peak, if not before." if is_log else "")


def _norm(runs: Runs, axes: Any) -> str:
    axes.set_ylabel("gradient norm")
    drawn = []
    for i, run in enumerate(runs):
        name = "norm" if len(runs) == 1 else run.label
        drawn += _smoothed(axes, run, run.numbers("grad_norm"), name, COLOURS[i % len(COLOURS)])
    _lines(axes, runs)
    return f"Of all gradients, before clipping. {_fit(axes, drawn, in_full=True)}"


def _speed(runs: Runs, axes: Any) -> str:
    axes.set_ylabel("words per second")
    for i, run in enumerate(runs):
        x, y = run.speeds()
        name = "words per second" if len(runs) == 1 else run.label
        axes.plot(x, y, color=COLOURS[i % len(COLOURS)], label=name, marker="." if len(x) == 1 else "")
    axes.set_ylim(bottom=0.0)
    _lines(axes, runs)
    return "Words of the training data, as means over stretches of time."


def _events(runs: Runs, kinds: Sequence[str], axes: Any) -> str:
    """Draw a row of marks for each kind, with its name above."""
    span = max(run.steps[-1] for run in runs) - min(run.steps[0] for run in runs)
    for row, kind in enumerate(kinds):
        marker, colour, _ = _look(kind, kinds)
        axes.text(0.01, -row - 0.1, kind, transform=axes.get_yaxis_transform(), va="top")
        for i, run in enumerate(runs):
            at = _merged([event.step for event in run.events if _kind_of(event.kind, kinds) == kind], span)
            shown = colour if len(runs) == 1 else COLOURS[i % len(COLOURS)]
            # In the lower part of the row, one below the other.
            axes.plot(at, [-row - (i + 2) / (len(runs) + 2)] * len(at), marker, color=shown)
    axes.set_ylim(-len(kinds), 0)
    axes.set_yticks([])
    return "Marks that are too close to each other are joined."


# ---------------------------------------------------------------------- events


def _kinds(runs: Runs) -> list[str]:
    """The kinds of events of runs. Of many rules, those that fired most."""
    counts = Counter(event.kind for run in runs for event in run.events)
    rules = sorted(set(counts) - set(_LOOKS), key=lambda kind: -counts[kind])
    room = _MAX_KINDS - len(_LOOKS)
    shown = rules if len(rules) <= room else [*rules[: room - 1], "other rules"]
    return [kind for kind in _LOOKS if kind in counts] + shown


def _kind_of(kind: str, kinds: Sequence[str]) -> str:
    return kind if kind in kinds else "other rules"


def _look(kind: str, kinds: Sequence[str]) -> tuple[str, str, str | None]:
    return _LOOKS.get(kind) or ("o", _OF_RULES[kinds.index(kind) % len(_OF_RULES)], "-.")


def _merged(steps: Sequence[int], span: int) -> list[int]:
    """Join steps that are too close to each other."""
    return list({step * _MAX_MARKS // max(1, span): step for step in reversed(steps)}.values())


def _lines(axes: Any, runs: Runs) -> None:
    """Draw rare events that change the course of a run as lines through the panel."""
    kinds = _kinds(runs)
    for kind in kinds:
        _, colour, dashes = _look(kind, kinds)
        of_runs = [[event.step for event in run.events if event.kind == kind] for run in runs]
        if dashes is None or not 0 < sum(map(len, of_runs)) <= _MAX_LINES:
            continue
        for i, steps in enumerate(of_runs):
            shown = colour if len(runs) == 1 else COLOURS[i % len(COLOURS)]
            for step in steps:
                axes.axvline(step, color=shown, linestyle=dashes)
        axes.plot([], [], color=colour if len(runs) == 1 else TEXT, linestyle=dashes, label=kind)


# ---------------------------------------------------------------------- curves


def _plot(
    axes: Any, run: LoggedRun, values: numpy.ndarray, name: str, colour: str, **look: Any
) -> list[tuple[numpy.ndarray, bool]]:
    """Draw the known values of a column. RETURNS (list): The curve, and whether it is faint."""
    known = numpy.isfinite(values)
    x, y = _thinned(run.steps[known], values[known])
    if not len(x):
        return []
    if len(x) > _FEW_POINTS or "marker" not in look:
        look["marker"] = "." if len(x) == 1 else ""
    axes.plot(x, y, color=colour, label=printable(name) or None, **look)
    return [(values[known], "alpha" in look)]


def _smoothed(
    axes: Any, run: LoggedRun, values: numpy.ndarray, name: str, colour: str
) -> list[tuple[numpy.ndarray, bool]]:
    """Draw values; if there are many, with a trimmed mean in front, in which a spike makes no plateau."""
    known = numpy.isfinite(values)
    x, y = run.steps[known], values[known]
    if len(x) <= _FEW_POINTS:
        return _plot(axes, run, values, name, colour)
    drawn = _plot(axes, run, values, "", colour, alpha=0.3, zorder=1)
    half = len(x) // 80
    centres = numpy.unique(numpy.linspace(0, len(x) - 1, min(len(x), _MAX_POINTS)).astype("int64"))
    means = []
    for centre in centres:
        near = numpy.sort(y[max(0, centre - half) : centre + half + 1])
        cut = len(near) // 8
        means.append(near[cut : len(near) - cut].mean())
    axes.plot(x[centres], means, color=colour, label=name)
    return [*drawn, (numpy.array(means), False)]


def _fit(axes: Any, drawn: Sequence[tuple[numpy.ndarray, bool]], *, in_full: bool = False) -> str:
    """Choose the scale, and cut off faint values far from the rest; with `in_full`, only at the lower end.

    RETURNS (str): A caption.
    """
    values = numpy.concatenate([y for y, _ in drawn] or [numpy.zeros(0)])
    is_log = needs_log(values, of_all=in_full)
    if is_log:
        axes.set_yscale("log", nonpositive="mask")
    if not any(is_faint for _, is_faint in drawn):
        return ""
    shown = [numpy.percentile(y, [1, 100 if in_full else 99]) if is_faint else y for y, is_faint in drawn]
    kept = numpy.concatenate([y[y > 0.0] if is_log else y for y in shown])
    axes.dataLim.intervaly = kept.min(), kept.max()
    return "Bold: mean of neighbours, without extremes. Faint: each line of the log."


def _thinned(x: numpy.ndarray, y: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Reduce a curve to the lowest and highest point of each stretch, so that no peak is lost."""
    if len(x) <= _MAX_POINTS:
        return x, y
    kept = [0, len(x) - 1]
    for part in numpy.array_split(numpy.arange(len(x)), _MAX_POINTS // 2):
        kept += [int(part[y[part].argmin()]), int(part[y[part].argmax()])]
    chosen = numpy.unique(kept)
    return x[chosen], y[chosen]


def _edges(rates: Sequence[numpy.ndarray]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The highest rate at each step, and the lowest above 0."""
    found = numpy.stack(rates)
    top = numpy.where(numpy.isfinite(found), found, -math.inf).max(axis=0)
    bottom = numpy.where(found > 0.0, found, math.inf).min(axis=0)
    top = numpy.where(numpy.isfinite(top), top, math.nan)
    return top, numpy.where(numpy.isfinite(bottom), bottom, top)


def name_groups(names: Sequence[str]) -> str:
    """Up to three names, and the number of others."""
    shown = ", ".join(map(printable, names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def keys_of(axes: Any, most: int | None = None) -> Iterator[tuple[Any, str]]:
    """The entries of a legend: look and name of each curve. most (int | None): The most entries."""
    handles, names = axes.get_legend_handles_labels()
    for handle, name in list(zip(handles, names))[:most]:
        yield handle, name if len(name) <= _MAX_NAME or most is None else f"{name[:20]}\u2026{name[-19:]}"


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
    ents = []
    for mark in marks:
        verdict = {"verdict": "right" if mark.is_right else "wrong"}
        ents.append({"start": mark.start, "end": mark.end, "label": _label(mark), "params": verdict})
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
