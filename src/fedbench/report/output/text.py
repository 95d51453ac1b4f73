"""A study as text: Markdown to read, CSV to compute with, LaTeX to print.

Labels and details are plain text: in the templates, a filter escapes what the format would take
for markup.
"""

# ruff: noqa: RUF001 (signs that look alike are what the table below is about)

from __future__ import annotations

import os
import re
import unicodedata
from functools import cache
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fedbench.report.experiments.experiment import OWN
from fedbench.report.judgement.claims import describe
from fedbench.report.judgement.outcomes import Claim
from fedbench.report.output.model import SYMBOLS, Entry, Grid, GridRow

# What LaTeX takes for a command, and the signs that its text fonts do not have. None of it needs a
# package.
LATEX = {
    **{sign: f"\\{sign}" for sign in "{}$&#%_"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "|": r"\textbar{}",
    "<": "$<$",
    ">": "$>$",
    '"': "''",
    "`": r"\textasciigrave{}",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "→": r"$\to$",
    "∞": r"$\infty$",
    "²": "$^2$",
    "³": "$^3$",
    "°": r"$^\circ$",
    "µ": r"$\mu$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "η": r"$\eta$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
    "Δ": r"$\Delta$",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "„": ",,",
    # What \\ at the end of a row would take for options.
    "*": "{*}",
    "[": "{[}",
    "]": "{]}",
}
FIELDS = (
    *("measured", "value", "published", "difference", "verdict", "marks", "detail"),
    *("scale", "stand_in", "notes"),  # what the marks stand for, for those who read one row alone
)
BESIDE_PUBLISHED = ("published", "difference", "verdict")


def markdown(entry: Entry, folder: Path | None = None) -> str:
    """A page of its own; pictures are linked relative to the folder that the page is written to."""
    panels = [
        (number, claim.unit, comparison, panel)
        for number, claim in enumerate(entry.claims, start=1)
        for comparison in claim.comparisons
        for panel in comparison.panels
    ]
    return _template("table.md").render(entry=entry, panels=panels, folder=folder, own=OWN)


def latex(grid: Grid, footnotes: dict[str, str] | None = None) -> str:
    """A table for a paper, with booktabs and xcolor."""
    used = {mark for row in grid.rows for cell in row.cells for mark in cell.marks}
    notes = [(mark, text) for mark, text in (footnotes or {}).items() if mark in used]
    return _template("table.tex").render(grid=grid, notes=notes)


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("fedbench.report.output", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    if name.endswith(".tex"):  # where braces are LaTeX's
        environment = environment.overlay(
            variable_start_string="<<",
            variable_end_string=">>",
            block_start_string="<%",
            block_end_string="%>",
            comment_start_string="<#",
            comment_end_string="#>",
        )
    environment.filters |= {
        "markdown": _markdown,
        "line": _line,
        "fenced": _fenced,
        "target": _target,
        "latex": _latex,
        "told": _told,
        "describe": describe,
        "symbol": lambda verdict: SYMBOLS.get(verdict, "?"),
    }
    return environment.get_template(name)


def csv_rows(entry: Entry) -> str:
    """One row for each cell of all grids, with its labels by axis: to be read by a program.

    A study of one's own has no columns for published numbers, unless it has such numbers.
    """
    cells = [cell for grid in entry.grids for row in grid.rows for cell in row.cells]
    if entry.paper != OWN or any(cell.published for cell in cells):
        fields = list(FIELDS)
    else:
        fields = [field for field in FIELDS if field not in BESIDE_PUBLISHED]
    rows = [
        _csv_row(entry, grid, row, column)
        for grid in entry.grids
        for row in grid.rows
        for column in range(len(row.cells))
    ]
    axes = [name for row in rows for name in row if name not in FIELDS]
    names = list(dict.fromkeys(axes)) or ["experiment", "table"]
    frame = pd.DataFrame(rows, columns=[*names, *fields])
    return frame.to_csv(index=False, lineterminator="\n")


def _csv_row(entry: Entry, grid: Grid, row: GridRow, column: int) -> dict[str, str]:
    cell, labels = row.cells[column], grid.columns[column]
    names = grid.column_names or [f"column {level}" for level in range(1, len(labels) + 1)]
    values = {field: str(getattr(cell, field)) for field in FIELDS if hasattr(cell, field)}
    notes = " ".join(entry.footnotes.get(mark, "") for mark in cell.marks)
    values |= {"scale": entry.scale, "stand_in": entry.stand_in, "notes": notes}
    values |= {
        "value": "" if cell.value is None else repr(float(cell.value)),
        "marks": " ".join(cell.marks),
    }
    labels_by_axis = dict(zip([*grid.row_names, *names], [*row.labels, *labels], strict=True))
    return {
        "experiment": entry.name,
        "table": grid.title,
        "measure": grid.measure,
        **labels_by_axis,
        **values,
    }


def _told(claim: Claim) -> str:
    """One line: the outcome, the claim, the difference, and what it rests on."""
    facts = [
        claim.detail,
        f"not tested here: {claim.untested}" if claim.untested else "",
        "a further reading, not counted" if claim.reading else "",
        f"counted under {claim.repeats}" if claim.repeats else "",
        claim.rests_on if claim.outcome else "",
    ]
    told = "; ".join(fact for fact in facts if fact)
    outcome = f"{SYMBOLS.get(claim.outcome, '?')} {claim.outcome}: " if claim.outcome else ""
    return f"{outcome}{claim.text}" + (f" ({told})" if told else "")


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is, on one line, in a cell of a table as well."""
    text = re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _line(text: str) -> str:
    """The same where a line begins, which must not become an item of a list."""
    return re.sub(r"^([-+])|^(\d+)([.)])", r"\2\\\1\3", _markdown(text))


def _fenced(text: str) -> str:
    """A block of code whose fence is longer than any row of backticks inside."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _target(file: Path, folder: Path | None) -> str:
    """The address of a file in angle brackets, from the folder of the page."""
    path = Path(os.path.relpath(file, folder) if folder else file).as_posix()
    return re.sub(r"[<>\\]", lambda found: f"%{ord(found[0]):02X}", path.replace("%", "%25"))


def _latex(text: str) -> str:
    """One line that LaTeX prints as it is; a sign that its fonts lack is named by its number."""
    text = unicodedata.normalize("NFC", " ".join(text.split()))
    return "".join(
        LATEX.get(sign) or (sign if _printable(sign) else f"{{[}}U+{ord(sign):04X}{{]}}")
        for sign in text
    )


def _printable(sign: str) -> bool:
    """ASCII, and the letters of European languages, which LaTeX's utf8 input knows."""
    return " " <= sign <= "~" or ("À" <= sign <= "ž" and sign.isalpha())
