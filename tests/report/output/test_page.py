"""The report's page: everything is in it, nothing gets out of its place, and it asks for nothing
from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from support.study_entries import HOSTILE, LONG, SCRIPT, draw, hostile, made_up, table

from fedbench.report.judgement.outcomes import OUTCOMES
from fedbench.report.output.catalogue import Row
from fedbench.report.output.model import Grid, GridCell, GridRow
from fedbench.report.output.page import LARGEST_SVG, write_page


class Reader(HTMLParser):
    """Tags with their attributes, the texts between them, and the contents of script and style."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.inside: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag  # every tag is closed where it was opened

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            self.inside[self.open[-1]] = data
        else:
            self.texts.append(data)

    def values(self, attribute: str) -> list[str]:
        return [
            attributes[attribute] or "" for _, attributes in self.tags if attribute in attributes
        ]


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    target = folder / "results" / "report" / "index.html"
    write_page(made_up(folder), target, folder / "results")
    return target


@pytest.fixture(scope="module")
def page(report) -> Reader:
    reader = Reader(report.read_text(encoding="utf-8"))
    assert not reader.open
    return reader


def written(tmp_path: Path, *entries) -> str:
    write_page(list(entries), tmp_path / "index.html", tmp_path)
    return (tmp_path / "index.html").read_text(encoding="utf-8")


def test_what_the_page_does_not_show_is_named_with_its_state(tmp_path):
    entries = made_up(tmp_path)
    others = [
        Row(entries[0].paper, "Figure 99", "A sketch", "not an experiment"),
        Row("Another paper", "Table 7", "Losses", "not decided yet"),
    ]
    write_page(entries, tmp_path / "index.html", tmp_path, others)
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    overview = text[text.index('<table class="sortable overview">') :].split("</table>")[0]
    for other in others:
        (line,) = re.findall(rf"<tr [^>]*>(?:(?!</tr>).)*{other.title}.*?</tr>", overview, re.S)
        assert all(word in line for word in (other.paper, other.number, other.state))
    assert ">Another paper</th>" in overview


def test_all_experiments_are_there(page, tmp_path):
    names = [entry.name for entry in made_up(tmp_path)]
    rows = [
        attributes["data-name"]
        for tag, attributes in page.tags
        if tag == "tr" and "data-name" in attributes
    ]
    articles = [attributes["data-name"] for tag, attributes in page.tags if tag == "article"]
    assert rows == articles == names


def test_links_inside_the_page_lead_somewhere(page):
    anchors = page.values("id")
    assert len(anchors) == len(set(anchors))
    assert {link[1:] for link in page.values("href") if link.startswith("#")} <= set(anchors)


def test_nothing_is_fetched_from_elsewhere(page, report):
    text = re.sub(r'src="data:[^"]*"', "", report.read_text(encoding="utf-8"))
    assert not re.search(r"https?:|//\w+\.|url\(|@import", text)
    assert all(source.startswith("data:image/") for source in page.values("src"))
    assert all(link.startswith(("#", "data:,", "../")) for link in page.values("href"))


def test_only_its_own_script_may_run(page):
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert scripts == [{}]
    digest = base64.b64encode(hashlib.sha256(page.inside["script"].encode()).digest()).decode()
    (policy,) = [
        a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    assert parts["script-src"] == f"'sha256-{digest}'"
    assert parts["default-src"] == parts["base-uri"] == parts["form-action"] == "'none'"
    assert parts["img-src"] == "data:"


def test_hostile_texts_stay_texts(page, report):
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert {
        tag for tag, _ in page.tags if tag in ("img", "script", "iframe", "object", "form")
    } == {"img", "script"}
    assert SCRIPT not in report.read_text(encoding="utf-8")
    shown = " ".join(" ".join(page.texts).split())
    for text in HOSTILE:
        assert " ".join(text.split()) in shown


def test_every_text_of_an_entry_is_shown(tmp_path):
    entry = table("a/table1", "Paper", "Table 1", "A title")
    entry.problems = ["Traceback (most recent call last):\n  line\nValueError: <nothing>"]
    shown = " ".join(" ".join(Reader(written(tmp_path, entry)).texts).split())
    claims = [text for claim in entry.claims for text in (claim.text, claim.detail)]
    settings = [
        text for one in entry.settings for text in (one.key, one.values, one.source, one.why)
    ]
    runs = [
        text
        for run in entry.runs.itertuples()
        for text in (run.labels, run.id, run.partition_hash, run.commit[:10])
    ]
    cells = [cell for row in entry.grids[0].rows for cell in row.cells]
    numbers = [
        text
        for cell in cells
        for text in (cell.measured, cell.published, cell.difference, cell.detail)
    ]
    facts = [
        entry.title,
        entry.command,
        entry.reduction,
        entry.stand_in,
        *entry.footnotes.values(),
        *entry.remarks,
    ]
    for text in [*facts, *claims, *settings, *runs, *numbers, "Problem: ValueError: <nothing>"]:
        assert text in shown


def test_links_to_runs_are_relative_and_right(page, report, tmp_path):
    results = report.parents[1]
    links = [link for link in page.values("href") if link.startswith("../")]
    wanted = [path for entry in made_up(tmp_path) for path in entry.runs["path"] if path]
    led_to = [os.path.normpath(report.parent / unquote(link)) for link in links]
    assert led_to == [os.path.normpath(results / path) for path in wanted]
    assert not [link for link in links if re.search(r"[#?:\"<> ]", link)]


def test_the_same_entries_give_the_same_bytes(tmp_path):
    entries = made_up(tmp_path)
    assert written(tmp_path, *entries) == written(tmp_path, *entries)


def test_a_warning_where_the_numbers_are_not_the_papers(tmp_path):
    entry = table("a/table1", "Paper", "Table 1", "A title")
    assert "Scale decisive leaves out" in written(tmp_path, entry)
    entry.scale = "paper"
    assert "1 experiment uses synthetic stand-ins" in written(tmp_path, entry)
    entry.stand_in = ""
    assert 'class="banner"' not in written(tmp_path, entry)


def test_where_all_is_plumbing_no_outcome_is_shown(tmp_path):
    """Neither a tile nor a column nor a legend, not even with a zero."""
    entries = made_up(tmp_path)
    reader = Reader(written(tmp_path, *entries))
    shown = " ".join(reader.texts).lower()
    assert all(outcome in shown for outcome in OUTCOMES)
    for entry in entries:
        entry.plumbing, entry.scale = True, "smoke"
        for claim in entry.claims:
            claim.outcome, claim.detail, claim.comparisons = "", "", []
    text = written(tmp_path, *entries)
    told = " ".join(Reader(text).texts).lower()
    assert "plumbing only" in told
    assert [outcome for outcome in OUTCOMES if outcome in told] == []
    assert "what was found" not in told
    overview = text[text.index('<table class="sortable overview">') :].split("</table>")[0]
    head, *rows = re.findall(r"<tr.*?</tr>", overview, re.S)
    assert {len(re.findall("<t[hd]", row)) for row in rows if "colspan" not in row} == {
        len(re.findall("<th", head))
    }


def test_a_large_drawing_is_embedded_as_pixels(tmp_path):
    entry = table("a/figure1", "Paper", "Figure 1", "A title")
    entry.pictures = [draw(tmp_path, "drawing")]
    assert "data:image/svg+xml," in written(tmp_path, entry)
    entry.pictures[0].svg.write_text(" " * (LARGEST_SVG + 1))
    (source,) = Reader(written(tmp_path, entry)).values("src")
    assert (
        base64.b64decode(source.removeprefix("data:image/png;base64,"))
        == entry.pictures[0].png.read_bytes()
    )


def test_a_picture_is_embedded_once(tmp_path):
    """As a drawing or as pixels, never both, and not again where another figure is the same."""
    entries = [table(f"a/figure{number}", "Paper", f"Figure {number}", "x") for number in (1, 2)]
    for entry in entries:
        entry.pictures = [draw(tmp_path, "drawing")]
    page = written(tmp_path, *entries)
    (source,) = Reader(page).values("src")
    assert source.startswith("data:image/svg+xml,")
    assert page.count("data:image/") == 1
    assert page.count("The same picture as above") == 1
    alone = written(tmp_path, entries[0])
    assert len(page) < 2 * len(alone) - len(source)


def test_headers_span_what_they_share():
    columns = [["A", "x", "1"], ["A", "x", "2"], ["A", "y", "2"], ["B", "y", "2"]]
    assert Grid("", [], columns, []).header() == [
        [("A", 3), ("B", 1)],
        [("x", 2), ("y", 1), ("y", 1)],
        [("1", 1), ("2", 1), ("2", 1), ("2", 1)],
    ]


def test_anchors_differ_even_when_names_do_not(tmp_path):
    twins = [
        table("a/table-1", "Paper", "Table 1", "x"),
        table("a/table.1", "Paper", "Table 1", "y"),
    ]
    anchors = Reader(written(tmp_path, *twins, hostile(tmp_path))).values("id")
    assert len(anchors) == len(set(anchors))


def test_empty_reports_and_grids_are_pages_too(tmp_path):
    assert "fedbench report" in written(tmp_path)
    entry = table("a/table1", LONG, "Table 1", "A title")
    entry.grids = [
        Grid("empty", [], [], []),
        Grid("one", ["m"], [[]], [GridRow(["x"], [GridCell("1")])]),
    ]
    assert Reader(written(tmp_path, entry)).open == []
