"""Write the tables, figures and the report of planned studies; nothing is run."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedbench.core.files import write_atomically
from fedbench.core.machine import available_cores
from fedbench.report.experiments.experiment import OWN, load, names
from fedbench.report.numbers.runs import DONE
from fedbench.report.output.catalogue import rows
from fedbench.report.output.entry import build_entry
from fedbench.report.output.model import Entry
from fedbench.report.output.page import write_page
from fedbench.report.output.text import csv_rows, latex, markdown
from fedbench.report.output.wandb import publish
from fedbench.report.running.ledger import statuses, study_of
from fedbench.report.running.plan import Plan
from fedbench.report.running.pool import Pool


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
    order = {name: place for place, name in enumerate(names())}  # users' own ones come last
    tasks = [
        (plan, results)
        for plan in sorted(
            [*plans, *beside], key=lambda plan: order.get(plan.experiment, len(order))
        )
    ]
    entries = []
    with console.status("rendering") as status:
        for number, entry in enumerate(Pool(render, available_cores()).values(tasks), start=1):
            entries.append(entry)
            status.update(f"rendering: {number} of {len(tasks)} experiments")
    mark_repeats(entries)
    of_papers = any(entry.paper != OWN for entry in entries)
    others = rows(results, but=[entry.name for entry in entries]) if of_papers else []
    write_page(entries, results / "report" / "index.html", results, others)
    if wandb:
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
        entry = build_entry(study_of(plan, results))
    except Exception:
        entry = _unrendered(plan, results, traceback.format_exc())
    write_tables(entry, results / "tables" / entry.scale / plan.experiment)
    return entry


def write_tables(entry: Entry, stem: Path) -> None:
    """`stem`.md; when there are numbers, `stem`.csv and `stem`.tex; and `stem`.runs.csv, a row a
    run.
    """
    texts = {"md": markdown(entry, stem.parent)}
    if entry.grids:
        texts["csv"] = csv_rows(entry)
        texts["tex"] = "\n\n".join(latex(grid, entry.footnotes) for grid in entry.grids)
    if not entry.table.empty:
        texts["runs.csv"] = entry.table.to_csv(index=False)
    for kind in ("md", "csv", "tex", "runs.csv"):
        file = stem.with_name(f"{stem.name}.{kind}")
        if kind in texts:
            write_atomically(file, texts[kind])
        else:  # nothing of an earlier rendering is left beside a page that lacks it
            file.unlink(missing_ok=True)


def _unrendered(plan: Plan, results: Path, problem: str) -> Entry:
    experiment = load(plan.experiment, plan.folders)
    return Entry(
        name=experiment.name,
        paper=experiment.paper,
        number=experiment.number,
        title=experiment.title,
        scale=experiment.scale_name(plan.scale),
        command=experiment.command(plan.scale),
        reduction=experiment.reduction(plan.scale),
        stand_in="",
        seeds=[],
        done=int(statuses(plan, results)["status"].isin(DONE).sum()),
        wanted=len(plan.runs),
        problems=[f"This experiment could not be rendered:\n{problem}"],
        unrendered=True,
    )


def mark_repeats(entries: Sequence[Entry]) -> None:
    """A claim that an earlier table of the paper has already, on the same runs, counts there."""
    known: list[tuple[str, frozenset[str], str]] = []
    for entry in entries:
        for claim in entry.claims:
            first = next(
                (
                    where
                    for paper, key, where in known
                    if paper == entry.paper and claim.key and claim.key <= key
                ),
                "",
            )
            claim.repeats = first
            if not first and not claim.reading:
                known.append((entry.paper, claim.key, entry.number))
