"""Which cells of a study stand in which panel of a figure, as which line, and what has to be said
about them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pandas as pd

from fedbench.report.experiments.spec import Show
from fedbench.report.numbers.runs import DIVERGED, DONE, FINISHED, Study, groups
from fedbench.report.output.figures.style import Style, name_of, style_of

MOST_COLUMNS = 5
NO_RUNS, NOTHING = "no finished runs", "nothing to show"
Form = TypeVar("Form", bound=Show)
NAMED, NAMED_PANELS = 8, 2  # lines, and panels of a line, that a note lists before it only counts


@dataclass
class Line:
    """One cell in a panel: a line, a series of points, a bar."""

    name: str
    labels: dict[str, str]
    runs: pd.DataFrame  # the rows of the cell in the table of the study
    style: Style


@dataclass
class Panel:
    title: str
    labels: dict[str, str]
    lines: list[Line]

    @property
    def why_empty(self) -> str:
        """What a panel in which nothing is drawn says; the notes say more."""
        some = any((line.runs["status"] == FINISHED).any() for line in self.lines)
        return NOTHING if some else NO_RUNS


@dataclass
class Part(Generic[Form]):
    """A form with its fields and the cells it is made of: the whole of `show`, or one part of
    several.
    """

    study: Study
    show: Form
    runs: pd.DataFrame = field(init=False)

    def __post_init__(self) -> None:
        self.runs = self.study.select(self.show.keep)

    def rest(self, *used: str) -> list[str]:
        """Axes with several labels that are not used: their cells must not fall onto one
        another.
        """
        return [axis for axis in self.study.axes if axis not in used and self._count(axis) > 1]

    def panels(self, panel_axes: list[str], line_axes: list[str]) -> list[Panel]:
        """In the order of the file's labels, the first axis outermost."""
        experiment = self.study.experiment
        axes = [*self._grid(panel_axes), *line_axes]
        cells = [(self.study.labels(rows), rows) for _, rows in groups(self.runs, self.study.axes)]
        grouped: dict[str, list[Line]] = {}
        for labels, rows in sorted(cells, key=lambda cell: self.order(cell[0], axes)):
            style = style_of(experiment, labels, line_axes)
            line = Line(name_of(labels, line_axes), labels, rows, style)
            grouped.setdefault(name_of(labels, panel_axes), []).append(line)
        return [
            Panel(title, {axis: lines[0].labels[axis] for axis in panel_axes}, lines)
            for title, lines in grouped.items()
        ]

    def order(self, labels: dict[str, str], axes: list[str]) -> list[int]:
        """The places of a cell's labels in the file."""
        return [list(self.study.experiment.axes[axis]).index(labels[axis]) for axis in axes]

    def _count(self, axis: str) -> int:
        return int(self.runs[axis].nunique())

    def _grid(self, panel_axes: list[str]) -> list[str]:
        """Two axes span a grid, rows by the first one; but a sheet is wide rather than high."""
        if (
            len(panel_axes) == 2
            and self._count(panel_axes[1]) < self._count(panel_axes[0]) <= MOST_COLUMNS
        ):
            return panel_axes[::-1]
        return panel_axes

    def columns(self, panels: list[Panel], panel_axes: list[str]) -> int | None:
        """Columns of the grid when two axes span it; None leaves the choice to the number of
        panels.
        """
        if len(panel_axes) != 2:
            return None
        down, across = map(self._count, self._grid(panel_axes))
        return across if down * across == len(panels) and across <= MOST_COLUMNS else None


@dataclass
class Notes:
    """What stands below a figure, so that nothing is left out silently."""

    study: Study
    remarks: list[str] = field(default_factory=list)
    diverged: dict[tuple[str, str], str] = field(
        default_factory=dict
    )  # (name, panel) -> how many seeds
    missing: dict[tuple[str, str], str] = field(default_factory=dict)
    lacking: dict[str, dict[tuple[str, str], str]] = field(
        default_factory=dict
    )  # what -> (name, panel)
    stand_ins: dict[str, None] = field(default_factory=dict)
    starred: set[str] = field(default_factory=set)  # names of lines with a diverged run
    panels: dict[str, bool] = field(
        default_factory=dict
    )  # panel -> whether any run of it is finished

    def see(self, runs: pd.DataFrame, name: str, panel: str = "") -> pd.DataFrame:
        """Those runs of a cell that can be drawn; what is wrong with the others is noted."""
        finished, done = runs[runs["status"] == FINISHED], runs[runs["status"].isin(DONE)]
        for folder in done["folder"]:
            data = self.study.files(folder).summary.get("data", {})
            if data.get("source") == "synthetic":
                self.stand_ins[str(data.get("note") or "synthetic")] = None
        self.panels[panel] = self.panels.get(panel, False) or not finished.empty
        diverged = int((runs["status"] == DIVERGED).sum())
        if diverged:
            self.diverged[name, panel] = f"{diverged} of {len(runs)} seeds"
            self.starred.add(name)
        if len(done) < len(runs):
            self.missing[name, panel] = f"{len(done)} of {len(runs)} seeds"
        return finished

    def lacks(self, what: str, name: str, panel: str = "") -> None:
        self.lacking.setdefault(what, {})[name, panel] = ""

    def remark(self, text: str) -> None:
        if text not in self.remarks:
            self.remarks.append(text)

    def legend_name(self, name: str) -> str:
        return f"{name} *" if name in self.starred else name

    def sentences(self) -> list[str]:
        experiment, scale = self.study.experiment, self.study.scale
        sentences = list(self.remarks)
        if scale != "paper" and len(self.study.runs):
            sentences.append(f"Scale {scale}: {experiment.reduction(scale) or 'reduced'}")
        if self.stand_ins:
            sentences.append("Stand-in data: " + "; ".join(self.stand_ins))
        if self.diverged:
            sentences.append("* diverged, not drawn: " + self._listed(self.diverged))
        missing = {
            key: count for key, count in self.missing.items() if self.panels[key[1]]
        }  # a panel without any says so
        if missing:
            sentences.append("Runs missing, only " + self._listed(missing))
        for what, cells in self.lacking.items():
            sentences.append(": ".join(filter(None, (what, self._listed(cells)))))
        return [sentence if sentence.endswith(".") else f"{sentence}." for sentence in sentences]

    def _listed(self, cells: dict[tuple[str, str], str]) -> str:
        """2 of 3 seeds of FedAvg (MNIST), FedProx (8 panels); 1 of 3 seeds of MOON (MNIST)"""
        places: dict[tuple[str, str], list[str]] = {}
        for (name, panel), count in cells.items():
            places.setdefault((count, name), []).append(panel)
        groups: dict[str, list[str]] = {}
        for (count, name), panels in places.items():
            where = "; ".join(panels) if len(panels) <= NAMED_PANELS else f"{len(panels)} places"
            where = where if len(self.panels) > 1 else ""
            full = f"{name} ({where})" if name and where else name or where
            groups.setdefault(count, []).append(full)
        listed = []
        for count, names in groups.items():
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            listed.append(" of ".join(filter(None, (count, ", ".join(names[:NAMED]) + more))))
        return "; ".join(listed)
