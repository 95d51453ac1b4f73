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
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedbench.core.files import write_atomically
from fedbench.study.model import SYMBOLS, VERDICTS, Claim, Entry, GridCell, Picture, RunLink

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
    def counts(self) -> dict[str, int]:
        return self.entry.counts()

    @property
    def claims(self) -> dict[str, int]:
        return _claim_counts([self.entry])

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
        return f"{self.id}-note-{marks.index(mark) + 1}" if mark in marks else ""


def write_page(entries: list[Entry], target: Path, results: Path) -> None:
    """Write `target`; links to runs lead from there into `results`, so that both can be moved
    together.
    """
    style, script = (_file(name) for name in ("report.css", "report.js"))
    sections = _sections(entries)
    groups = itertools.groupby(sections, key=lambda section: section.entry.paper)
    page = _environment(target, results).get_template("report.html")
    text = page.render(
        papers=[
            (paper, f"paper-{number}", list(members))
            for number, (paper, members) in enumerate(groups, 1)
        ],
        sections=sections,
        scales=_unique(entry.scale for entry in entries),
        commits=_unique(_short_commit(run.commit) for entry in entries for run in entry.runs),
        totals={
            verdict: sum(section.counts[verdict] for section in sections) for verdict in VERDICTS
        },
        claims=_claim_counts(entries),
        style=Markup(style),
        script=Markup(script),
        policy=_policy(script),
    )
    write_atomically(target, text)


def _environment(target: Path, results: Path) -> Environment:
    environment = Environment(
        loader=PackageLoader("fedbench.study", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def run_link(run: RunLink) -> str:
        return (
            quote(Path(os.path.relpath(results / run.path, target.parent)).as_posix())
            if run.path
            else ""
        )

    environment.filters |= {
        "run_link": run_link,
        "source": _picture_source,
        "sort_value": _sort_value,
        "short_commit": _short_commit,
        "last_line": lambda text: text.strip().splitlines()[-1] if text.strip() else "",
    }
    environment.globals["symbols"] = SYMBOLS
    return environment


def _file(name: str) -> str:
    return (resources.files("fedbench.study") / "templates" / name).read_text(encoding="utf-8")


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


def _claim_counts(entries: list[Entry]) -> dict[str, int]:
    claims: list[Claim] = [claim for entry in entries for claim in entry.claims]
    counts = {
        verdict: sum(claim.verdict == verdict for claim in claims)
        for verdict in ("holds", "partly", "fails")
    }
    return {**counts, "tested": sum(counts.values()), "all": len(claims)}


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
    return f"data:image/{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"


def _sort_value(cell: GridCell) -> str:
    """The number that a column is sorted by; cells without one come last."""
    return repr(float(cell.value)) if cell.value is not None and math.isfinite(cell.value) else ""


def _short_commit(commit: str) -> str:
    """Ten digits of a commit's name; whatever follows it (that there were changes) stays."""
    return re.sub(r"^([0-9a-f]{10})[0-9a-f]{30}", r"\1", commit)


def _unique(texts) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))
