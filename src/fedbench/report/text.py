"""A study as text: Markdown to read, CSV to compute with, LaTeX to print.

Labels and details are plain text, so each writer escapes what its format would take for markup.
"""

# ruff: noqa: RUF001 (signs that look alike are what the table below is about)

from __future__ import annotations

import csv
import io
import os
import re
import unicodedata
from pathlib import Path

from fedbench.report.claims import describe
from fedbench.report.experiment import OWN
from fedbench.report.model import SYMBOLS, Claim, Entry, Grid, GridCell, GridRow

# What LaTeX takes for a command, and the signs that its text fonts do not have. None of it needs a
# package.
LATEX = {
    **{sign: f"\\{sign}" for sign in "{}$&#%_"},
    **{
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "|": r"\textbar{}",
    },
    **{
        "<": "$<$",
        ">": "$>$",
        '"': "''",
        "`": r"\textasciigrave{}",
        "–": "--",
        "—": "---",
        "…": r"\ldots{}",
    },
    **{
        "±": r"$\pm$",
        "−": "$-$",
        "×": r"$\times$",
        "·": r"$\cdot$",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "≈": r"$\approx$",
    },
    **{"→": r"$\to$", "∞": r"$\infty$", "²": "$^2$", "³": "$^3$", "°": r"$^\circ$", "µ": r"$\mu$"},
    **{
        "α": r"$\alpha$",
        "β": r"$\beta$",
        "γ": r"$\gamma$",
        "δ": r"$\delta$",
        "ε": r"$\varepsilon$",
        "η": r"$\eta$",
    },
    **{
        "λ": r"$\lambda$",
        "μ": r"$\mu$",
        "ρ": r"$\rho$",
        "σ": r"$\sigma$",
        "τ": r"$\tau$",
        "Δ": r"$\Delta$",
    },
    **{
        "‘": "`",
        "’": "'",
        "“": "``",
        "”": "''",
        "„": ",,",
        "*": "{*}",
        "[": "{[}",
        "]": "{]}",
    },  # options after \\
}
PLUMBING = "Smoke scale proves that everything runs. It judges nothing: no claim, no number."
METHOD_OF_CLAIMS = (
    "Positive: as claimed. Differences are paired by seed; intervals of 95 % by Student's t over"
    " seeds, p corrected by Holm for the panels of a comparison, at least 3 seeds."
)
FIELDS = (
    *("measured", "value", "published", "difference", "verdict", "marks", "detail"),
    *("scale", "stand_in", "notes"),  # what the marks stand for, for those who read one row alone
)


def markdown(entry: Entry, folder: Path | None = None) -> str:
    """A page of its own; pictures are linked relative to the folder that the page is written to."""
    facts = [f"Scale: {entry.scale}" + (f" ({entry.reduction})" if entry.reduction else "")]
    facts += [f"Stand-in data, not the real ones: {entry.stand_in}"] if entry.stand_in else []
    facts += [
        f"Seeds: {', '.join(map(str, entry.seeds)) or 'none'}",
        f"Runs: {entry.done} of {entry.wanted}",
    ]
    parts = [
        f"# {_plain(f'{entry.paper}, {entry.number}: {entry.title}')}",
        _fenced(entry.command),
        _items(facts),
    ]
    parts += [_plain(PLUMBING)] if entry.plumbing else []
    claims = [_claim(claim) for claim in entry.claims]
    heading = "Claims" if entry.paper == OWN else "What the paper claims"
    parts += [f"## {heading}", _items(claims)] if claims else []
    for grid in entry.grids:
        parts += [f"## {_plain(grid.title)}"] if grid.title else []
        parts += [_markdown_table(grid), _line(grid.caption)]
    parts += _differences(entry)
    parts += [
        _picture(picture.png, picture.title, picture.text, folder) for picture in entry.pictures
    ]
    parts += [_items([f"({mark}) {text}" for mark, text in entry.footnotes.items()])]
    parts += [_items(entry.remarks)]
    for problem in entry.problems:
        parts += ["## Problem", _fenced(problem)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _differences(entry: Entry) -> list[str]:
    """The comparisons behind the claims, panel by panel."""
    head = "| claim | comparison | panel | difference | p (Holm) | seeds | outcome |"
    lines = [
        f"| {number} | {_plain(f'{one.own} - {one.other}')} | {_plain(panel.setting or 'all')}"
        f" | {_plain(describe(panel, claim.unit))} | {'' if panel.p is None else f'{panel.p:.2g}'}"
        f" | {panel.seeds} | {panel.outcome} |"
        for number, claim in enumerate(entry.claims, start=1)
        for one in claim.comparisons
        for panel in one.panels
    ]
    if not lines:
        return []
    rule = "| --- | --- | --- | --- | --- | --- | --- |"
    return ["## Differences behind the claims", "\n".join([head, rule, *lines]), METHOD_OF_CLAIMS]


def _claim(claim: Claim) -> str:
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


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line, in a cell of a table as well."""
    text = re.sub(r"([\\`*_{}\[\]#|~$])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _line(text: str) -> str:
    """The same where a line begins, which must not become an item of a list."""
    return re.sub(r"^([-+])|^(\d+)([.)])", r"\2\\\1\3", _plain(text))


def _fenced(text: str) -> str:
    """A block of code whose fence is longer than any row of backticks inside."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _items(texts: list[str]) -> str:
    return "\n".join(f"- {_line(text)}" for text in texts)


def _picture(file: Path, title: str, text: str, folder: Path | None) -> str:
    path = Path(os.path.relpath(file, folder) if folder else file).as_posix()
    target = re.sub(r"[<>\\]", lambda found: f"%{ord(found[0]):02X}", path.replace("%", "%25"))
    return f"![{_plain(text or title)}](<{target}>)\n\n{_line(title)}"


def _markdown_table(grid: Grid) -> str:
    heads = [*grid.row_names, *(" / ".join(labels) for labels in grid.columns)]
    lines = [
        [_plain(head) for head in heads],
        [*["---"] * len(grid.row_names), *["---:"] * len(grid.columns)],
    ]
    lines += [[*map(_plain, row.labels), *map(_markdown_cell, row.cells)] for row in grid.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(cell: GridCell) -> str:
    marks = f"<sup>{_plain(','.join(cell.marks))}</sup>" if cell.marks else ""
    published = "; ".join(_plain(text) for text in (cell.published, cell.difference) if text)
    words = [
        _plain(cell.measured) + marks,
        f"({published})" if published else "",
        SYMBOLS.get(cell.verdict, "?"),
    ]
    return " ".join(word for word in words if word)


def csv_rows(entry: Entry) -> str:
    """One row for each cell of all grids, with its labels by axis: to be read by a program."""
    rows = [
        _csv_row(entry, grid, row, column)
        for grid in entry.grids
        for row in grid.rows
        for column in range(len(row.cells))
    ]
    names = list(dict.fromkeys(name for row in rows for name in row if name not in FIELDS)) or [
        "experiment",
        "table",
    ]
    file = io.StringIO()
    writer = csv.DictWriter(file, [*names, *FIELDS], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


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


def latex(grid: Grid, footnotes: dict[str, str] | None = None) -> str:
    """A table for a paper, with booktabs and xcolor; the published numbers stand small and grey
    below the measured.
    """
    before = len(grid.row_names)
    lines = [
        r"% needs \usepackage{booktabs,xcolor} and \usepackage[T1]{fontenc}",
        r"\begin{table}",
        r"\centering",
    ]
    lines += [rf"\caption{{{_latex(grid.title)}}}"] if grid.title else []
    lines += [rf"\begin{{tabular}}{{{'l' * before}{'r' * len(grid.columns)}}}", r"\toprule"]
    for line in grid.header()[:-1]:
        lines += _latex_heads(line, before)
    last = [*grid.row_names, *(label for label, _ in grid.header()[-1])]
    lines += [_latex_line(map(_latex, last)), r"\midrule"]
    for row in grid.rows:
        lines += _latex_rows(row)
    lines += [r"\bottomrule", r"\end{tabular}"]
    used = {mark for row in grid.rows for cell in row.cells for mark in cell.marks}
    notes = [(mark, text) for mark, text in (footnotes or {}).items() if mark in used]
    lines += [
        rf"\par\smallskip\footnotesize{_raised([mark])} {_latex(text)}" for mark, text in notes
    ]
    lines += [rf"\par\smallskip\footnotesize {_latex(grid.caption)}"] if grid.caption else []
    return "\n".join([*lines, r"\end{table}"]) + "\n"


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


def _latex_line(cells) -> str:
    return " & ".join(cells) + r" \\"


def _latex_heads(line: list[tuple[str, int]], before: int) -> list[str]:
    """Labels over several columns, each with a rule below it."""
    cells, rules, first = [""] * before, [], before + 1
    for label, span in line:
        cells.append(rf"\multicolumn{{{span}}}{{c}}{{{_latex(label)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + span - 1}}}")
        first += span
    return [_latex_line(cells), " ".join(rules)]


def _latex_rows(row: GridRow) -> list[str]:
    """The measured numbers and, where the paper has any, a second line with those."""
    measured = [
        _latex(cell.measured) + (_raised(cell.marks) if cell.marks else "") for cell in row.cells
    ]
    lines = [_latex_line([*map(_latex, row.labels), *measured])]
    if any(cell.published for cell in row.cells):
        grey = [
            (
                rf"{{\scriptsize\color{{gray}}{_latex('; '.join(_beside(cell)))}}}"
                if cell.published
                else ""
            )
            for cell in row.cells
        ]
        lines.append(_latex_line([*[""] * len(row.labels), *grey]))
    return lines


def _beside(cell: GridCell) -> list[str]:
    """The published number, the difference and the verdict, in a word that every font has."""
    return [text for text in (cell.published, cell.difference, cell.verdict) if text]


def _raised(marks: list[str]) -> str:
    return rf"\textsuperscript{{{_latex(','.join(marks))}}}"
