"""The report as one HTML file that needs nothing else: no server, no network, no script to be
readable.

Texts come from files, command lines and tracebacks, so the template escapes all of them, and a
Content-Security-Policy lets the browser run only the script whose hash it names. Nothing depends on
the time: same entries, same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedbench.core.files import write_atomically
from fedbench.report.experiments.experiment import OWN
from fedbench.report.judgement.claims import describe
from fedbench.report.judgement.outcomes import OUTCOMES, Claim, Comparison, Panel
from fedbench.report.output.catalogue import Row
from fedbench.report.output.model import SYMBOLS, Entry, Grid, GridCell, Picture, Setting

FIRST_CLAIMS = 4  # of a paper whose files call no claim a main one
IN_ADDRESSES = " !$()*+,-./:;<=>?@[]_{}~'"  # what an address in double quotes may have as it is
SHORT = 60  # letters of a reason that is repeated rather than referred to
LARGEST_SVG = (
    400_000  # bytes: a larger drawing (many thousand marks) is slow to show, and its PNG is smaller
)


@dataclass
class Section:
    """An entry with what only a page needs: where it stands and what it links to."""

    entry: Entry
    id: str
    position: int

    @property
    def outcomes(self) -> dict[str, int]:
        return self.entry.outcomes()

    @property
    def search(self) -> str:
        """Lower-case words that the filter finds this experiment by."""
        entry = self.entry
        labels = [label for grid in entry.grids for row in grid.rows for label in row.labels]
        labels += [label for grid in entry.grids for column in grid.columns for label in column]
        words = [entry.name, entry.paper, entry.number, entry.title, entry.scale, *labels]
        return " ".join(dict.fromkeys(words)).lower()

    def note(self, mark: str) -> str:
        """The anchor of a footnote, or nothing when the entry has none with this mark."""
        marks = list(self.entry.footnotes)
        return f"n{self.position}-{marks.index(mark) + 1}" if mark in marks else ""

    def shared(self, grid: Grid) -> list[str]:
        """The marks of all cells of a grid that show something: they stand once, below it."""
        shown = [cell.marks for row in grid.rows for cell in row.cells if cell.measured]
        if len(shown) < 2:
            return []
        return [mark for mark in shown[0] if all(mark in marks for marks in shown)]


@dataclass
class Finding:
    """What was found about a paper: its main claims, each with the section that it belongs to."""

    paper: str
    id: str  # of the paper's section
    claims: list[tuple[Section, Claim]]
    outcomes: dict[str, int]  # of all claims that count
    limits: dict[str, float]  # by unit, the end of the axis on which differences are drawn
    plumbing: bool


def write_page(
    entries: list[Entry], target: Path, results: Path, others: Sequence[Row] = ()
) -> None:
    """Write `target`; links to runs lead from there into `results`, so that both can be moved
    together. The overview names `others`, too: tables and figures that the page does not show.
    """
    style, script = (_file(name) for name in ("report.css", "report.js"))
    sections = _sections(entries)
    groups = itertools.groupby(sections, key=lambda section: section.entry.paper)
    papers = [
        (paper, f"paper-{number}", list(members))
        for number, (paper, members) in enumerate(groups, 1)
    ]
    shown = {paper for paper, _, _ in papers}
    beside: dict[str, list[Row]] = {}
    for row in others:
        beside.setdefault(row.paper, []).append(row)
    page = _environment(target, results).get_template("report.html")
    text = page.render(
        papers=papers,
        findings=[_finding(*paper) for paper in papers],
        beside=beside,
        papers_beside=[paper for paper in beside if paper not in shown],
        sections=sections,
        scales=_unique(entry.scale for entry in entries),
        commits=_unique(
            _short_commit(commit) for entry in entries for commit in entry.runs["commit"]
        ),
        totals={
            outcome: sum(section.outcomes[outcome] for section in sections) for outcome in OUTCOMES
        },
        with_claims=any(entry.claims for entry in entries),
        judged=any(entry.claims and not entry.plumbing for entry in entries),
        of_papers=any(entry.paper != OWN for entry in entries),
        style=Markup(style),
        script=Markup(script),
        policy=_policy(script),
    )
    write_atomically(target, re.sub(r"\n\s+<", "\n<", text))  # indentation is a tenth of it


def _environment(target: Path, results: Path) -> Environment:
    environment = Environment(
        loader=PackageLoader("fedbench.report.output", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def run_link(path: str) -> str:
        return quote(Path(os.path.relpath(results / path, target.parent)).as_posix())

    environment.filters |= {
        "run_link": run_link,
        "source": _once(),
        "reason": _told_once(),
        "sort_value": _sort_value,
        "short_commit": _short_commit,
        "last_line": lambda text: text.strip().splitlines()[-1] if text.strip() else "",
    }
    environment.filters |= {"describe": describe, "places": _places}
    environment.globals |= {"symbols": SYMBOLS, "outcome_names": OUTCOMES, "own": OWN}
    return environment


def _file(name: str) -> str:
    return (resources.files("fedbench.report.output") / "templates" / name).read_text(
        encoding="utf-8"
    )


def _policy(script: str) -> str:
    """Only this script runs, only embedded pictures are shown, nothing is fetched or sent."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sources = {"default-src": "'none'", "img-src": "data:", "style-src": "'unsafe-inline'"}
    sources |= {"script-src": f"'sha256-{digest}'", "base-uri": "'none'", "form-action": "'none'"}
    return "; ".join(f"{kind} {allowed}" for kind, allowed in sources.items())


def _sections(entries: list[Entry]) -> list[Section]:
    """The papers one after the other, each with its entries in the given order and an anchor of its
    own.
    """
    papers = _unique(entry.paper for entry in entries)
    ordered = sorted(entries, key=lambda entry: papers.index(entry.paper))
    slugs = [re.sub(r"[^a-z0-9]+", "-", entry.name.lower()).strip("-") for entry in ordered]
    sections = []
    for position, (entry, slug) in enumerate(zip(ordered, slugs, strict=True), 1):
        unique = slug and slugs.count(slug) == 1
        sections.append(
            Section(
                entry, f"experiment-{slug}" if unique else f"experiment-{position}-{slug}", position
            )
        )
    return sections


def _finding(paper: str, paper_id: str, sections: list[Section]) -> Finding:
    """Those claims that the files call main ones; of a paper without any, the first few."""
    counted = [
        (section, claim)
        for section in sections
        for claim in section.entry.claims
        if not claim.reading and not claim.repeats
    ]
    main = [pair for pair in counted if pair[1].main] or counted[:FIRST_CLAIMS]
    limits: dict[str, float] = {}
    for _, claim in main:
        numbers = [
            abs(number)
            for one in claim.comparisons
            for number in (one.mean, one.low, one.high, one.published)
            if number is not None
        ]
        limits[claim.unit] = max([limits.get(claim.unit, 0.0), *numbers])
    outcomes = {
        outcome: sum(section.outcomes[outcome] for section in sections) for outcome in OUTCOMES
    }
    plumbing = all(section.entry.plumbing for section in sections)
    return Finding(paper, paper_id, main, outcomes, limits, plumbing)


def _places(one: Comparison | Panel, limit: float) -> dict[str, float]:
    """Where the numbers of a difference stand on an axis from -limit to limit, in percent."""
    numbers = {"mean": one.mean, "low": one.low, "high": one.high, "published": one.published}
    return {
        name: round(50 + 48 * max(-1.0, min(1.0, number / limit)), 2) if limit else 50.0
        for name, number in numbers.items()
        if number is not None
    }


def _once() -> Callable[[Picture], tuple[str, str]]:
    """The address of a picture and nothing, or nothing and the title under which it is embedded
    already.
    """
    known: dict[str, str] = {}

    def source(picture: Picture) -> tuple[str, str]:
        address = _picture_source(picture)
        if address in known:
            return "", known[address]
        if address:
            known[address] = picture.title or "an earlier one"
        return Markup(address), ""  # its quotes and ampersands are encoded

    return source


def _told_once() -> Callable[[Setting, Section], tuple[str, Section | None]]:
    """Why a setting is what it is; or the section that has said so already."""
    known: dict[tuple[str, str, str], Section] = {}

    def reason(setting: Setting, section: Section) -> tuple[str, Section | None]:
        first = known.setdefault((section.entry.paper, setting.key, setting.why), section)
        if first is section or len(setting.why) < SHORT:
            return setting.why, None
        return "", first

    return reason


def _picture_source(picture: Picture) -> str:
    """As a data address: inside <img> an SVG runs no script, and its ids do not meet those of other
    pictures.
    """
    if picture.svg.is_file() and picture.svg.stat().st_size <= LARGEST_SVG:
        kind, file = "svg+xml", picture.svg
    elif picture.png.is_file():
        kind, file = "png", picture.png
    else:
        return ""
    if kind == "png":
        return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
    # As text, which is smaller than base64; single quotes need not be encoded.
    drawing = re.sub(r'="([^"\']*)"', r"='\1'", file.read_text(encoding="utf-8"))
    return "data:image/svg+xml," + quote(drawing, safe=IN_ADDRESSES)


def _sort_value(cell: GridCell) -> str:
    """The number that a column is sorted by; cells without one come last."""
    return f"{cell.value:.6g}" if cell.value is not None and math.isfinite(cell.value) else ""


def _short_commit(commit: str) -> str:
    """Ten digits of a commit's name; whatever follows it (that there were changes) stays."""
    return re.sub(r"^([0-9a-f]{10})[0-9a-f]{30}", r"\1", commit)


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))
