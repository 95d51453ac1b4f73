"""Run what is missing of tables and figures, and render them.

`fedbench-tables run` and `fedbench experiment=...` both end here: a study is planned (every job is
composed and checked), the ledger says what there is to do, the missing runs go through one pool of
processes, and what there is by then becomes tables, figures and the report.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console

from fedbench.core.machine import available_cores
from fedbench.parallel.devices import gpus
from fedbench.report.experiments.experiment import Experiment
from fedbench.report.output.model import Entry
from fedbench.report.output.render import render_all
from fedbench.report.running.calibrate import estimate_all
from fedbench.report.running.execute import FAILURE, Executor
from fedbench.report.running.ledger import Ledger, duration, plans_beside
from fedbench.report.running.plan import Job, Plan, make_plans, settle
from fedbench.report.running.tune import trial_plan, tuned
from fedbench.runs.identity import source_commit


@dataclass(frozen=True)
class Options:
    """How the missing runs are run. `words` are overrides of every run that change no number."""

    results: Path
    jobs: int | None = None  # runs at a time; one a core or GPU unless given
    ranks_per_gpu: int = 1  # processes of a run that has one GPU
    words: tuple[str, ...] = ()
    dry_run: bool = False  # stop after the ledger
    wandb: bool = False  # send tables, too
    force: bool = False  # run again what is finished

    def ranks(self) -> int | None:
        """The processes of one run, if the words give them."""
        given = [word.partition("=")[2] for word in self.words if "runtime.workers=" in word]
        if "runtime=serial" in self.words:
            given.append("1")
        return int(given[-1]) if given and given[-1].isdigit() else None

    def processes(self) -> int:
        """How many runs are worked on at a time."""
        if self.jobs:
            return self.jobs
        return len(gpus()) or max(1, available_cores() // (self.ranks() or 1))


@dataclass
class Result:
    """How every job ended that was not done before, and what was rendered."""

    finished: list[Job] = field(default_factory=list)
    failed: list[tuple[Job, str]] = field(default_factory=list)  # with the last line of why
    refused: list[Job] = field(default_factory=list)
    interrupted: list[Job] = field(default_factory=list)
    stopped: bool = False
    entries: list[Entry] = field(default_factory=list)

    def with_earlier(self, other: Result) -> Result:
        """Together with the trials that were run before."""
        self.finished = [*other.finished, *self.finished]
        self.failed = [*other.failed, *self.failed]
        self.refused = [*other.refused, *self.refused]
        self.interrupted = [*other.interrupted, *self.interrupted]
        self.stopped = other.stopped or self.stopped
        return self

    @property
    def unrendered(self) -> list[str]:
        return [entry.name for entry in self.entries if entry.unrendered]


def run_tables(
    studies: Sequence[tuple[Experiment, str]], options: Options, console: Console
) -> Result:
    """Run what is missing of these experiments at their scales, and render them."""
    torch.set_num_threads(1)  # runs are forked from here
    source_commit()  # now, and not when the files may have changed
    first = Result()
    studies = _after_their_trials(studies, options, console, first)
    if not studies:
        return first
    with console.status("planning") as status:
        plans = make_plans(
            studies,
            options.results,
            available_cores(),
            lambda done, wanted: status.update(f"planning: {done} of {wanted} runs"),
        )
    result = run_plans(plans, options, console).with_earlier(first)
    if not options.dry_run:
        others = plans_beside(options.results, plans)
        result.entries = render_all(
            plans, options.results, console, wandb=options.wandb, beside=others
        )
    return result


def _after_their_trials(
    studies: Sequence[tuple[Experiment, str]], options: Options, console: Console, result: Result
) -> list[tuple[Experiment, str]]:
    """The studies with the settings that their trials chose; these are run first.

    A study whose trials did not all finish is left out.
    """
    tried = [(study, trial_plan(study, scale)) for study, scale in studies if study.tune]
    if not tried:
        return list(studies)
    # What follows the trials is planned with them: a misspelt word is found before the first one.
    after = [(one, Plan.of(one, scale, one.cells(scale))) for one, scale in studies if one.tune]
    with console.status("planning trials"):
        settle([*tried, *after], options.results, available_cores())
    for _, plan in tried:
        plan.write(options.results, "")
    say(console, "Trials, by whose validation accuracy settings are chosen:")
    result.with_earlier(run_plans([plan for _, plan in tried], options, console))
    ready: list[tuple[Experiment, str]] = []
    for study, scale in studies:
        plans = [plan for one, plan in tried if one is study]
        chosen = tuned(study, plans[0], options.results) if plans else study
        if chosen is None:
            say(console, f"{study.name}: its runs follow when all of its trials are finished")
        else:
            ready.append((chosen, scale))
    return ready


def run_other_jobs(
    experiment: Experiment, scale: str, own: Sequence[Sequence[str]], options: Options, out: Console
) -> Result:
    """The jobs of a study with a user's own overrides over them, for each combination of these.

    Equal jobs are one. No table is made of them: they are not the runs of the experiment.
    """
    torch.set_num_threads(1)
    source_commit()
    jobs: dict[tuple[str, ...], Job] = {}
    for combination in own:
        for cell in experiment.cells(scale):
            for seed in cell.seeds:
                given = [*experiment.job(cell, seed, scale), *combination]
                words = {word.lstrip("+~").partition("=")[0]: word for word in given}
                chosen = words["seed"].removeprefix("seed=")
                job = Job(list(words.values()), int(chosen) if chosen.isdigit() else seed)
                jobs.setdefault(tuple(sorted(words.values())), job)
    plan = Plan.of_jobs(experiment, scale, list(jobs.values()))
    with out.status("planning"):
        settle([(experiment, plan)], options.results, available_cores())
    return run_plans([plan], options, out)


def run_plans(plans: list[Plan], options: Options, console: Console) -> Result:
    """Show the ledger of the plans, then run what is missing, longest first."""
    ledger = Ledger(plans, options.results, all_again=options.force)
    with console.status("calibrating") as status:
        estimates = estimate_all(
            ledger.missing,
            options.results,
            lambda done, wanted: status.update(f"calibrating: {done} of {wanted} kinds of runs"),
        )
    ledger.show(console, estimates, options.processes())
    result = Result()
    for job in ledger.unplanned:
        if job.broken:
            result.failed.append((job, last_line(job.problem)))
        else:
            result.refused.append(job)
    if not options.dry_run:
        longest_first = sorted(ledger.missing, key=lambda job: -estimates[job.folder].seconds)
        run_missing(longest_first, options, console, result)
    return result


def run_missing(jobs: list[Job], options: Options, console: Console, result: Result) -> None:
    """Run the jobs, and note in `result` how they ended."""
    if not jobs:
        return
    processes = min(options.processes(), len(jobs))
    share = options.ranks_per_gpu if len(gpus()) else max(1, available_cores() // processes)
    ranks = options.ranks() or share
    executor = Executor(options.results, processes, ranks, options.words)
    started = time.monotonic()
    for number, outcome in enumerate(executor.run(jobs), start=1):
        line = f"[{number}/{len(jobs)}] {outcome.status} in {duration(outcome.seconds)}:"
        say(console, f"{line} {outcome.job.folder}")
        if outcome.status == "interrupted":
            result.interrupted.append(outcome.job)
        elif outcome.status == "failed":
            reason = last_line(outcome.problem.split("\nIts output:")[0])
            result.failed.append((outcome.job, reason))
        else:
            result.finished.append(outcome.job)
    seconds = duration(time.monotonic() - started)
    say(console, f"{len(result.finished)} of {len(jobs)} runs finished in {seconds}")
    result.stopped = executor.pool.stopping


def show_result(result: Result, options: Options, console: Console) -> None:
    """List what failed and what was refused, and say where the report is."""
    for job, problem in result.failed:
        log = options.results / job.folder / FAILURE
        where = f"; log: {log}" if job.folder and log.is_file() else ""
        say(console, f"failed: fedbench {' '.join(job.words)}\n  {problem}{where}")
    for reason, count in Counter(last_line(job.problem) for job in result.refused).items():
        say(console, f"refused, {count} run{'s' if count != 1 else ''}: {reason}")
    shown = "1 experiment" if len(result.entries) == 1 else f"{len(result.entries)} experiments"
    words = f"{shown} in the report; {len(result.failed)} runs failed"
    say(console, f"{words}, {len(result.refused)} refused")
    say(console, f"report: {options.results / 'report' / 'index.html'}")
    if result.unrendered:
        say(console, f"could not be rendered: {', '.join(result.unrendered)}")


def last_line(problem: str) -> str:
    return (problem.strip().splitlines() or [""])[-1]


def say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False)
