"""What a sweep leaves beside its runs: a table on the terminal, summary.csv and comparison.png."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedbench.core.errors import BAD_INPUT, FINISHED, INTERRUPTED, UNEXPECTED, spelled_out
from fedbench.core.files import write_atomically
from fedbench.runs.curves import Curve, drawn, save_comparison
from fedbench.runs.folder import RunFolder
from fedbench.runs.sweeps import Outcome, short_path

TABLE, PICTURE = "summary.csv", "comparison.png"
STATUSES = {
    None: "no report",
    UNEXPECTED: "failed",
    BAD_INPUT: "refused",
    INTERRUPTED: "interrupted",
    FINISHED: "missing",  # somebody removed or changed the finished run meanwhile
}
MEASURES = {  # of summary.json: what the table on the terminal shows of it
    "final_accuracy": "final",
    "best_accuracy": "best",
    "best_round": "round",
    "best_val_accuracy": "validation",  # these two only where a run has a validation set
    "accuracy_at_best_val": "test in that round",
    "wall_time": "seconds",
}
VALIDATION = ("best_val_accuracy", "accuracy_at_best_val")
LONGEST_TABLE = 40  # rows on the terminal; the file has all
WIDEST_VALUE = 40  # characters


def report_sweep(folder: Path, outcomes: Sequence[Outcome]) -> str:
    """Write the files into the sweep's folder. Returns the table for the terminal."""
    varied = varied_settings([one.words for one in outcomes])
    rows = [_row(one, own) for one, own in zip(outcomes, varied, strict=True)]
    keys = list(dict.fromkeys(key for own in varied for key in own))
    validated = any(row[VALIDATION[0]] is not None for row in rows)
    measures = [name for name in MEASURES if validated or name not in VALIDATION]
    table = pd.DataFrame(rows, columns=["job", *keys, "status", *measures, "run"])
    table = table.astype({"best_round": "Int64"})  # whole numbers, or nothing
    write_atomically(folder / TABLE, table.to_csv(index=False), durable=False)
    curves = _curves(rows, varied)
    if curves:
        drawn(save_comparison, folder / PICTURE, curves)
    return _text(rows, keys, measures)


def _curves(
    rows: Sequence[dict[str, Any]], varied: Sequence[dict[str, str]]
) -> dict[str, list[Curve]]:
    """The curves of finished runs, by everything that varies but the seed.

    A name says how many runs of a group are missing: a mean of those that did not diverge is no
    mean of all.
    """
    groups: dict[str, list[Curve | None]] = {}
    for row, own in zip(rows, varied, strict=True):
        name = ", ".join(f"{key}={value}" for key, value in own.items() if key != "seed")
        groups.setdefault(name or "all runs", []).append(_curve(row))
    curves = {}
    for name, members in groups.items():
        found = [curve for curve in members if curve is not None]
        missing = "" if len(found) == len(members) else f" ({len(found)} of {len(members)} runs)"
        if found:
            curves[name + missing] = found
    return curves


def _curve(row: dict[str, Any]) -> Curve | None:
    if row["status"] != "finished":
        return None
    try:
        metrics = pd.read_csv(Path(row["run"]) / "metrics.csv", index_col="round")
        return metrics["test_accuracy"].to_dict()
    except (OSError, ValueError, KeyError):  # somebody removed or changed it meanwhile
        return None


def varied_settings(jobs: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Of each job's overrides those that another job does not have: {"seed": "1"}.

    A sweep of one job varies nothing.
    """
    common = set.intersection(*map(set, jobs))
    return [
        {
            word.lstrip("+~").partition("=")[0]: word.partition("=")[2]
            for word in words
            if word not in common
        }
        for words in jobs
    ]


def _row(outcome: Outcome, varied: dict[str, str]) -> dict[str, Any]:
    summary: dict[str, Any] | None = None
    if outcome.status == FINISHED:
        summary = RunFolder(Path(outcome.run)).finished()
    status = STATUSES[outcome.status]
    if summary is not None:
        status = summary["status"]
    measures = {name: (summary or {}).get(name) for name in MEASURES}
    run = short_path(outcome.run)
    return {"job": outcome.number, **varied, "status": status, **measures, "run": run}


def _text(rows: list[dict[str, Any]], keys: list[str], measures: list[str]) -> str:
    """Aligned columns: job, varied settings, status, accuracies in percent, seconds."""
    header = ["job", *keys, "status", *(MEASURES[name] for name in measures)]
    lines = [header]
    for row in rows[:LONGEST_TABLE]:
        settings = [spelled_out(str(row.get(key, "")))[:WIDEST_VALUE] for key in keys]
        lines.append([str(row["job"]), *settings, row["status"], *_shown(row, measures)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numbers = len(header) - len(measures)  # the first column that is aligned to the right
    text = ""
    for line in lines:
        cells = [
            cell.rjust(width) if place in (0, *range(numbers, len(line))) else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text += "  ".join(cells).rstrip() + "\n"
    if len(rows) > LONGEST_TABLE:
        text += f"and {len(rows) - LONGEST_TABLE} more in {TABLE}\n"
    return text


def _shown(row: dict[str, Any], measures: list[str]) -> list[str]:
    cells = []
    for name in measures:
        value = row[name]
        if value is None:
            cells.append("")
        elif "accuracy" in name:
            cells.append(f"{100 * value:.2f} %")
        else:
            cells.append(f"{value:.1f}" if name == "wall_time" else str(value))
    return cells
