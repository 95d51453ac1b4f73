"""Studies as Markdown, CSV and LaTeX: whatever a label contains, it is read back as it was."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from support.study_entries import HOSTILE, SCRIPT, UMLAUTS, hostile, made_up, table

from fedbench.report.experiments.experiment import OWN
from fedbench.report.output.model import Grid, GridCell, GridRow
from fedbench.report.output.text import csv_rows, latex, markdown

TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=30)
COMMANDS = {  # what stands for a sign that LaTeX does not print as it is
    **{
        r"\textbackslash{}": "\\",
        r"\textasciicircum{}": "^",
        r"\textasciitilde{}": "~",
        r"\textbar{}": "|",
    },
    **{
        r"\textasciigrave{}": "`",
        r"$\pm$": "±",
        "$<$": "<",
        "$>$": ">",
        "''": '"',
        "{*}": "*",
        "{[}": "[",
        "{]}": "]",
    },
    **{f"\\{sign}": sign for sign in "{}$&#%_"},
}


def tidy(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.split()))


def small_grid(label: str) -> Grid:
    return Grid(
        label,
        [label],
        [[label]],
        [GridRow([label], [GridCell(label, label, label, "near", [label])])],
        label,
    )


# Markdown


def read_tables(page: str) -> list[list[list[str]]]:
    """The cells of all tables, as a reader of the page sees them."""
    tables, row = [], []
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        if token.type == "table_open":
            tables.append([])
        elif token.type == "tr_open":
            row = []
        elif token.type == "inline":
            row.append(
                "".join(child.content for child in token.children if child.type != "html_inline")
            )
        elif token.type == "tr_close":
            tables[-1].append(row)
            row = []
    return tables


def test_a_markdown_page_has_everything():
    entry = table("fedpgvc/table2", "FedPGVC", "Table 2", "Best test accuracy")
    page = markdown(entry)
    assert page.startswith(
        "# FedPGVC, Table 2: Best test accuracy\n\n```\nfedbench experiment=fedpgvc/table2"
    )
    for text in [entry.reduction, entry.stand_in, *entry.footnotes.values(), *entry.remarks]:
        assert text.replace("_", "\\_") in page
    for claim in entry.claims:
        assert f"{claim.outcome}: {claim.text}" in page
    rows, *_ = read_tables(page)
    assert rows[0][:3] == ["method", "MNIST / 0.1", "MNIST / 0.5"]
    assert rows[1][:2] == ["FedAvg", "99.13 ± 0.22a (103.13 (±0.03); -4.00) ✗"]
    assert [len(row) for row in rows] == [10] * 9


def test_markdown_shows_hostile_labels_and_nothing_else(tmp_path):
    page = markdown(hostile(tmp_path))
    tags = re.findall(r"<[^>]*>", MarkdownIt("commonmark").enable("table").render(page))
    ordinary = (
        r"</?(h\d|p|ul|li|pre|code|table|thead|tbody|tr|sup|td|th)( style=\"text-align:right\")?>"
    )
    (picture,) = [tag for tag in tags if not re.fullmatch(ordinary, tag)]
    assert re.fullmatch(r'<img src="[^"]*" alt="[^"]*" />', picture)
    rows, *_ = read_tables(page)
    assert [row[0] for row in rows[1:]] == [tidy(text) for text in HOSTILE]


@given(TEXTS)
@example(
    "*a* **b** _c_ ~~d~~ [e](f) ![g](h) `i` &amp; <b> \\* \\. 1. j"
)  # chance seldom writes markup
@settings(max_examples=100, deadline=None)
def test_any_label_survives_markdown(label):
    entry = table("x/table1", "X", "Table 1", "Title")
    entry.grids = [small_grid(label)]
    rows, *_ = read_tables(markdown(entry))
    assert [row[0] for row in rows] == [" ".join(label.split())] * 2


def test_a_picture_is_linked_from_where_the_page_is(tmp_path):
    entry = made_up(tmp_path)[1]
    assert f"](<{tmp_path}/figure3.png>)" in markdown(entry)
    assert "![Five curves rise and level off](<../figure3.png>)" in markdown(
        entry, tmp_path / "tables"
    )
    entry.pictures[0].text = "a](b) *c*"
    assert r"![a\](b) \*c\*](<" in markdown(entry)


# CSV


@pytest.mark.parametrize("number", range(5))
def test_csv_has_a_row_for_each_cell(tmp_path, number):
    entry = made_up(tmp_path)[number]
    rows = list(csv.DictReader(io.StringIO(csv_rows(entry))))
    cells = [
        (grid, line, cell) for grid in entry.grids for line in grid.rows for cell in line.cells
    ]
    assert len(rows) == len(cells)
    for row, (grid, line, cell) in zip(rows, cells, strict=True):
        assert row["experiment"] == entry.name
        assert [row[name] for name in grid.row_names] == line.labels
        assert (row["measured"], row["published"], row["verdict"]) == (
            cell.measured,
            cell.published,
            cell.verdict,
        )
        assert (float(row["value"]) if row["value"] else None) == cell.value
        assert row["detail"] == cell.detail
        assert row["marks"] == " ".join(cell.marks)


def test_csv_names_axes_and_measure():
    rows = list(csv.DictReader(io.StringIO(csv_rows(table("a/b", "A", "B", "C")))))
    assert {key: rows[4][key] for key in ("method", "dataset", "alpha", "measure")} == {
        **{"method": "FedAvg", "dataset": "FMNIST", "alpha": "0.5", "measure": "Accuracy"}
    }


def test_csv_of_a_study_of_ones_own_has_no_published_numbers(tmp_path):
    entry = made_up(tmp_path)[0]
    beside = {"published", "difference", "verdict"}
    assert set(csv.DictReader(io.StringIO(csv_rows(entry))).fieldnames) >= beside
    entry.paper = OWN
    assert set(csv.DictReader(io.StringIO(csv_rows(entry))).fieldnames) >= beside
    for grid in entry.grids:
        for row in grid.rows:
            row.cells = [replace(cell, published="") for cell in row.cells]
    fields = csv.DictReader(io.StringIO(csv_rows(entry))).fieldnames
    assert not beside & set(fields)
    assert "measured" in fields


def test_csv_takes_the_measure_from_a_column():
    grid = Grid(
        "", ["method"], [["Rounds"], ["Speed-up"]], [GridRow(["x"], [GridCell("1"), GridCell("2")])]
    )
    grid.column_names = ["measure"]
    entry = table("a/b", "A", "B", "C")
    entry.grids = [grid]
    assert [row["measure"] for row in csv.DictReader(io.StringIO(csv_rows(entry)))] == [
        "Rounds",
        "Speed-up",
    ]


# LaTeX


def check_latex(text: str) -> None:
    """What would stop LaTeX: braces or dollars without a partner, a character that it takes for a
    command.
    """
    text = re.sub(r"(?m)^% needs .*$", "", text)
    plain = re.sub(r"\\(\\|[{}$&#%_]|[a-zA-Z]+)", "", text)  # without commands and escaped signs
    depth = 0
    for sign in plain:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0, text
    assert depth == 0, text
    assert plain.count("$") % 2 == 0, text
    assert not re.search(r"[#%_~\\]", plain), text
    assert not re.search(r"\^", re.sub(r"\$[^$]*\$", "", plain)), text
    assert not re.search(r"[^\x20-\x7eÀ-ž\n]", plain), text
    assert re.findall(r"\\begin\{(\w+)\}", text) == re.findall(r"\\end\{(\w+)\}", text)[::-1]


def latex_rows(text: str) -> list[list[str]]:
    """The cells of the tabular, with their commands."""
    body = text.split("\\toprule\n")[1].split("\\bottomrule")[0]
    lines = [line for line in body.splitlines() if line.endswith(r" \\")]
    return [re.split(r"(?<!\\) ?& ?", line.removesuffix(r" \\")) for line in lines]


def unescape(cell: str) -> str:
    pattern = "|".join(re.escape(command) for command in sorted(COMMANDS, key=len, reverse=True))
    return re.sub(pattern, lambda found: COMMANDS[found[0]], cell)


def test_a_latex_table_spans_nested_columns():
    entry = table("fedpgvc/table2", "FedPGVC", "Table 2", "Best test accuracy")
    text = latex(entry.grids[0], entry.footnotes)
    check_latex(text)
    assert (
        r" & \multicolumn{3}{c}{MNIST} & \multicolumn{3}{c}{FMNIST} &"
        r" \multicolumn{3}{c}{CIFAR-100} \\" in text
    )
    assert r"\cmidrule(lr){2-4} \cmidrule(lr){5-7} \cmidrule(lr){8-10}" in text
    assert r"FedAvg & 99.13 $\pm$ 0.22\textsuperscript{a} & " in text
    assert (
        r" & {\scriptsize\color{gray}103.13 ($\pm$0.03); " in text
    )  # then the difference and the verdict
    assert re.search(r"; (match|near|miss)\} &", text)
    assert r"\textsuperscript{b} diverged with 1 of 3 seeds" in text
    spans = [
        [int(number) for number in re.findall(r"multicolumn\{(\d+)\}", " ".join(row))]
        for row in latex_rows(text)
    ]
    widths = [
        len(row) - len(span) + sum(span) for row, span in zip(latex_rows(text), spans, strict=True)
    ]
    assert set(widths) == {10}


def test_hostile_labels_are_printed_by_latex(tmp_path):
    grid = hostile(tmp_path).grids[0]
    text = latex(grid, dict.fromkeys(HOSTILE, UMLAUTS))
    check_latex(text)
    labels = [unescape(row[0]) for row in latex_rows(text) if row[0]]
    assert labels == ["a|b", *(tidy(label) for label in HOSTILE)]
    assert SCRIPT not in text  # < and > stand in mathematics


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_latex_compiles_with_any_label(label):
    text = latex(small_grid(label), {label: label})
    check_latex(text)
    assert {len(row) for row in latex_rows(text)} == {2}


def test_a_sign_without_a_letter_is_named():
    assert "face {[}U+1F600{]}" in latex(small_grid("face \N{GRINNING FACE}"))
