"""Which cells of a study stand in which panel of a figure, as which line, and what has to be said
about them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fedbench.report.figures.style import Style, name_of, style_of
from fedbench.report.runs import DIVERGED, Study, StudyCell, StudyRun
from fedbench.report.spec import Show

MOST_COLUMNS = 5
NO_RUNS, NOTHING = "no finished runs", "nothing to show"
Form = TypeVar("Form", bound=Show)
NAMED, NAMED_PANELS = 8, 2  # lines, and panels of a line, that a note lists before it only counts


@dataclass
class Line:
    """One cell in a panel: a line, a series of points, a bar."""

    name: str
    cell: StudyCell
    style: Style


@dataclass
class Panel:
    title: str
    labels: dict[str, str]
    lines: list[Line]

    @property
    def why_empty(self) -> str:
        """What a panel in which nothing is drawn says; the notes say more."""
        return NOTHING if any(line.cell.finished for line in self.lines) else NO_RUNS


@dataclass
class Part(Generic[Form]):
    """A form with its fields and the cells it is made of: the whole of `show`, or one part of
    several.
    """

    study: Study
    show: Form
    cells: list[StudyCell] = field(init=False)

    def __post_init__(self) -> None:
        self.cells = self.study.select(self.show.keep)

    def rest(self, *used: str) -> list[str]:
        """Axes with several labels that are not used: their cells must not fall onto one
        another.
        """
        axes = [axis for axis in self.study.experiment.axes if axis not in used]
        return [axis for axis in axes if self._count(axis) > 1]

    def panels(self, panel_axes: list[str], line_axes: list[str]) -> list[Panel]:
        """In the order of the file's labels, the first axis outermost."""
        experiment = self.study.experiment
        grouped: dict[str, list[Line]] = {}
        for cell in sorted(
            self.cells, key=lambda cell: self._order(cell, [*self._grid(panel_axes), *line_axes])
        ):
            style = style_of(experiment, cell.labels, line_axes)
            line = Line(name_of(cell.labels, line_axes), cell, style)
            grouped.setdefault(name_of(cell.labels, panel_axes), []).append(line)
        return [
            Panel(title, {axis: lines[0].cell.labels[axis] for axis in panel_axes}, lines)
            for title, lines in grouped.items()
        ]

    def _order(self, cell: StudyCell, axes: list[str]) -> list[int]:
        return [list(self.study.experiment.axes[axis]).index(cell.labels[axis]) for axis in axes]

    def _count(self, axis: str) -> int:
        return len({cell.labels[axis] for cell in self.cells})

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

    def see(self, cell: StudyCell, name: str, panel: str = "") -> list[StudyRun]:
        """The runs of a cell that can be drawn; what is wrong with the others is noted."""
        runs = cell.runs
        for run in runs:
            if run.done and run.summary.get("data", {}).get("source") == "synthetic":
                self.stand_ins[str(run.summary["data"].get("note") or "synthetic")] = None
        self.panels[panel] = self.panels.get(panel, False) or bool(cell.finished)
        diverged = sum(run.status == DIVERGED for run in runs)
        if diverged:
            self.diverged[name, panel] = f"{diverged} of {len(runs)} seeds"
            self.starred.add(name)
        done = sum(run.done for run in runs)
        if done < len(runs):
            self.missing[name, panel] = f"{done} of {len(runs)} seeds"
        return cell.finished

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
        if scale != "paper" and self.study.cells:
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
