"""Writes the table of docs/which-recipe.md from what was measured: thinc_torchopt/addons/recipes/measured.yaml.

`make reference` runs it. tests/addons/recipes/test_measured.py checks that the page is up to date.
"""

import textwrap
from pathlib import Path

from thinc_torchopt.addons.recipes.measured import measurements

PAGE = Path(__file__).resolve().parents[1] / "which-recipe.md"
BEGIN = "<!-- Written by `make reference` from measured.yaml. Change it there. -->"
END = "<!-- End of the generated part. -->"
# Of measured.yaml, which `init` prints a row of at a time. In the table they would stand in each row.
IN_THE_HEADING = (" points against spaCy's template", " of its time", " against its optimizer, tuned")


def table() -> str:
    """The words above the table, and the table."""
    rows, about = measurements()
    points = "points beside spaCy's template (time), beside its optimizer, tuned (time)"
    lines = [f"| you train | on | take | what to expect: {points} |", "| --- | --- | --- | --- |"]
    for row in rows:
        expect = row.expect
        for words in IN_THE_HEADING if row.factories else ():
            expect = expect.replace(words, "")
        lines.append(f"| {row.train} | {row.on} | {row.instead or f'`{row.take}`'} | {expect} |")
    return "\n".join([*textwrap.wrap(about, 120, break_long_words=False, break_on_hyphens=False), "", *lines])


def written() -> str:
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
