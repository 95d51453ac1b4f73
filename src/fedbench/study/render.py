"""Write the tables, figures and the report of planned studies; nothing is run."""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedbench.core.files import write_atomically
from fedbench.study.entry import build_entry
from fedbench.study.experiment import load, names
from fedbench.study.ledger import status_of, study_of
from fedbench.study.model import Entry
from fedbench.study.page import write_page
from fedbench.study.plan import Plan, pool_of
from fedbench.study.text import csv_rows, latex, markdown


def render_all(
    plans: list[Plan],
    results: Path,
    console: Console,
    wandb: bool = False,
    beside: Sequence[Plan] = (),
) -> list[Entry]:
    """One experiment after another, in as many processes as there are cores, then the page of all.

    `beside`: experiments that are in the page, too, but that nobody asked for, so that they are not
    sent to W&B again.
    """
    order = names()
    tasks = [
        (plan, results)
        for plan in sorted([*plans, *beside], key=lambda plan: order.index(plan.experiment))
    ]
    entries = []
    processes = min(len(os.sched_getaffinity(0)), len(tasks))
    with console.status("rendering") as status, pool_of(processes) as pool:
        for number, entry in enumerate(pool.map(render, tasks), start=1):
            entries.append(entry)
            status.update(f"rendering: {number} of {len(tasks)} experiments")
    write_page(entries, results / "report" / "index.html", results)
    if wandb:
        from fedbench.study.wandb import publish

        asked = {plan.experiment for plan in plans}
        for entry in entries:
            if entry.name in asked:
                publish(entry, results)
    return entries


def render(task: tuple[Plan, Path]) -> Entry:
    """The files of one experiment. One that cannot be rendered says why, and does not keep the
    others from it.
    """
    plan, results = task
    try:
        entry = build_entry(study_of(plan, results), results)
    except Exception:
        entry = _unrendered(plan, results, traceback.format_exc())
    stem = results / "tables" / plan.scale / plan.experiment
    write_atomically(stem.with_suffix(".md"), markdown(entry, stem.parent))
    if entry.grids:
        write_atomically(stem.with_suffix(".csv"), csv_rows(entry))
        write_atomically(
            stem.with_suffix(".tex"),
            "\n\n".join(latex(grid, entry.footnotes) for grid in entry.grids),
        )
    else:  # no numbers of an earlier rendering are left beside a page that has none
        stem.with_suffix(".csv").unlink(missing_ok=True)
        stem.with_suffix(".tex").unlink(missing_ok=True)
    return entry


def _unrendered(plan: Plan, results: Path, problem: str) -> Entry:
    experiment = load(plan.experiment)
    return Entry(
        name=experiment.name,
        paper=experiment.paper,
        number=experiment.number,
        title=experiment.title,
        scale=plan.scale,
        command=experiment.command(plan.scale),
        reduction=experiment.reduction(plan.scale),
        stand_in="",
        seeds=[],
        done=sum(status_of(job, results).done for job in plan.jobs),
        wanted=len(plan.jobs),
        problems=[f"This experiment could not be rendered:\n{problem}"],
        unrendered=True,
    )
