"""What a rendered study consists of, whatever it is rendered to: grids of cells, pictures, facts,
and the claims as they were judged.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from fedbench.report.judgement.outcomes import OUTCOMES, Claim, state_of

VERDICTS = ("match", "near", "miss", "unmeasured", "unpublished")
SYMBOLS = {  # beside every colour, for those who do not see it, and in plain text
    **{"match": "✓", "near": "≈", "miss": "✗", "unmeasured": "○", "unpublished": ""},
    **{"supported": "✓", "supported in part": "◐", "contradicted": "✗"},
    **{"undecided": "?", "not testable": "-"},
}
# The columns of the list of runs; `path` is relative to the results folder.
LINKS = ("labels", "seed", "status", "id", "path", "partition_hash", "commit", "problem")


@dataclass
class GridCell:
    """One number of a table. Texts are plain, to be escaped by whoever writes them."""

    measured: str  # "88.65 ± 0.22", "*", "> 100", "-" when there is no run
    published: str = ""  # as the paper prints it
    difference: str = ""  # measured minus published, with its sign
    verdict: str = "unpublished"  # one of VERDICTS
    marks: list[str] = field(default_factory=list)  # of footnotes: "a", "b" ...
    value: float | None = None  # to sort by
    detail: str = ""  # one line: seeds, values, why diverged


@dataclass
class GridRow:
    labels: list[str]
    cells: list[GridCell]


@dataclass
class Grid:
    title: str
    row_names: list[str]  # of the axes whose labels begin a row
    columns: list[list[str]]  # for every column its labels, outermost first
    rows: list[GridRow]
    caption: str = ""
    column_names: list[str] = field(
        default_factory=list
    )  # of the axes whose labels head a column, outermost first
    measure: str = ""  # what all cells show, when no column says it

    def header(self) -> list[list[tuple[str, int]]]:
        """The lines above the columns, outermost first: labels with the number of columns they
        span.

        Neighbours with the same label share it below a label that they share; the last line has one
        for each column.
        """
        depth = max(map(len, self.columns), default=0) or 1
        columns = [(*labels, *[""] * (depth - len(labels))) for labels in self.columns]
        lines = []
        for level in range(1, depth):
            groups = itertools.groupby(columns, key=operator.itemgetter(slice(level)))
            lines.append([(shared[-1], len(list(members))) for shared, members in groups])
        return [*lines, [(labels[-1], 1) for labels in columns]]


@dataclass
class Picture:
    title: str
    png: Path
    svg: Path
    text: str = ""  # what is to be seen, for those who cannot


@dataclass
class Setting:
    """A value that the runs use, and where it comes from."""

    key: str
    values: str
    source: str  # paper, code, choice
    why: str


@dataclass
class Entry:
    """One experiment, rendered."""

    name: str  # fedpgvc/table2
    paper: str
    number: str
    title: str
    scale: str
    command: str
    reduction: str
    stand_in: str  # which data are synthetic, or nothing
    seeds: list[int]
    done: int  # runs
    wanted: int
    grids: list[Grid] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    footnotes: dict[str, str] = field(default_factory=dict)  # mark -> text
    remarks: list[str] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    runs: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(LINKS)))
    # A row a run, with the measures (see runs.py).
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    problems: list[str] = field(default_factory=list)
    unrendered: bool = False  # the program failed on it; `problems` has the traceback
    plumbing: bool = False  # a scale that proves that everything runs, and judges nothing

    def outcomes(self) -> dict[str, int]:
        """How many claims that are counted here came out how."""
        found = [claim.outcome for claim in self.claims if claim.counted]
        return {outcome: found.count(outcome) for outcome in OUTCOMES}

    @property
    def state(self) -> str:
        """What this table or figure decides, further readings aside."""
        return "plumbing only" if self.plumbing else state_of(self.claims)
