"""The table of datasets: what this program knows of each, from its configuration, beside what a
paper says.
"""

from __future__ import annotations

from typing import Any

import yaml

from fedbench.config.validate import config_folder
from fedbench.report.experiments.experiment import Experiment, Published
from fedbench.report.experiments.spec import Datasets
from fedbench.report.numbers.statistics import plain
from fedbench.report.output.model import Grid, GridCell, GridRow

COLUMNS = ("Description", "Classes", "Images", "Resolution", "Year")


def datasets_grid(experiment: Experiment, show: Datasets) -> Grid:
    """A row a dataset. Numbers that differ are a miss; words cannot be compared, and the year is
    the paper's alone.
    """
    printed = {
        (number.labels["dataset"], number.measure): number
        for number in experiment.published_numbers()
    }
    rows = []
    for name in show.datasets:
        known = facts(name)
        rows.append(
            GridRow(
                [name],
                [_cell(known.get(column), printed.get((name, column))) for column in COLUMNS],
            )
        )
    return Grid(
        experiment.title, ["dataset"], [[column] for column in COLUMNS], rows, column_names=["fact"]
    )


def facts(name: str) -> dict[str, Any]:
    """From conf/data: the opening comment, and the sizes that every reader checks its files
    against.
    """
    text = (config_folder() / "data" / f"{name}.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    height, width, _ = content["shape"]
    return {
        "Description": text.splitlines()[0].lstrip("# "),
        "Classes": content["classes"],
        "Images": content["train_size"] + content["test_size"],
        "Resolution": f"{height}x{width}",
    }


def _cell(known: Any, published: Published | None) -> GridCell:
    cell = GridCell("-" if known is None else f"{known:,}" if isinstance(known, int) else known)
    if published is None:
        return cell
    cell.published = published.printed
    if known is None:
        cell.verdict = "unmeasured"
    elif isinstance(known, int) and published.value is not None:
        cell.value, away = float(known), known - published.value
        cell.verdict, cell.difference = (
            "match" if away == 0 else "miss",
            f"{'+' if away > 0 else ''}{plain(away)}",
        )
    elif published.printed == known:
        cell.verdict = "match"
    return cell
