"""Summarize a run in a few numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from .runs import Run


class Fact(NamedTuple):
    """One number. value (str): Empty: unknown. more (str): Details."""

    name: str
    value: str
    more: str = ""


def facts_of(run: Run) -> list[Fact]:
    """The facts of a run, the same ones in the same order for all runs."""
    found = summarize(run)
    best = f"at step {found['best_step']:,}" if found["best_step"] is not None else ""
    low, high = found["lowest_final_rate"], found["highest_final_rate"]
    return [
        Fact("best score", _short(found["best_score"]), best),
        Fact("last score", _short(found["last_score"])),
        Fact("last step", f"{found['last_step']:,}", "" if found["epoch"] is None else f"epoch {found['epoch']}"),
        Fact("words per second", "" if found["words_per_second"] is None else f"{found['words_per_second']:,.0f}"),
        Fact("duration", "" if found["seconds"] is None else duration(found["seconds"])),
        Fact("skipped updates", _count(found["skipped_updates"])),
        Fact("gradient spikes", _count(found["grad_spikes"])),
        Fact("rollbacks", _count(found["rollbacks"])),
        Fact("final rate", "" if high is None else f"{high:.3g}", "" if low == high else f"down to {low:.3g}"),
    ]


def summarize(run: Run) -> dict[str, Any]:
    """The numbers of a summary, for JSON. None: not in the log."""
    # A rate of 0: the group is frozen, or its schedule is over.
    rates = [rate for rate in run.final_rates.values() if rate] or list(run.final_rates.values())
    counts = {name: run.last(name) for name in ("epoch", "skipped_updates", "grad_spikes", "rollbacks", "words")}
    return {
        "run": run.label,
        "logs": [str(path) for path in run.paths],
        "first_step": int(run.steps[0]),
        "last_step": int(run.steps[-1]),
        "best_score": None if run.best is None else run.best[0],
        "best_step": None if run.best is None else run.best[1],
        "last_score": run.last("score"),
        "words_per_second": run.speed,
        "seconds": run.last("seconds"),
        **{name: None if count is None else int(count) for name, count in counts.items()},
        "lowest_final_rate": min(rates, default=None),
        "highest_final_rate": max(rates, default=None),
        "notes": run.notes,
    }


def duration(seconds: float) -> str:
    """A duration in words: 42 s, 7 min 5 s, 3 h 20 min."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
