"""Run what is missing of the studies in conf/experiment, then render them all: `make
reproduce-tables`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

import torch
from rich.console import Console

from fedbench.core.errors import FINISHED, INTERRUPTED, UNEXPECTED, BadInput, OneLineParser
from fedbench.core.terminal import escape_what_the_terminal_cannot_show
from fedbench.runs.identity import source_commit
from fedbench.study.calibrate import estimate_all
from fedbench.study.endings import one_line_endings
from fedbench.study.execute import Executor
from fedbench.study.experiment import SCALES, SMOKE, chosen, load, names
from fedbench.study.ledger import Ledger, duration, kept_plans
from fedbench.study.plan import Job, make_plans
from fedbench.study.render import render_all


def parse(words: list[str]) -> argparse.Namespace:
    parser = OneLineParser(prog="reproduce_tables.py", description=__doc__)
    parser.add_argument(
        "--scale", choices=SCALES, default="smoke", help="how much of each study is run"
    )
    parser.add_argument(
        "--only", help="one experiment (fedpgvc/table2) or all of a paper (fedpgvc)"
    )
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="where runs and reports go"
    )
    parser.add_argument(
        "--jobs", type=int, default=None, help="runs at a time; one a core or GPU unless given"
    )
    parser.add_argument("--dry-run", action="store_true", help="stop after the ledger")
    parser.add_argument(
        "--wandb",
        action="store_true",
        help="send each experiment to W&B as a group, with its table",
    )
    arguments = parser.parse_args(words)
    if arguments.jobs is not None and arguments.jobs < 1:
        raise BadInput(f"--jobs={arguments.jobs}: an integer above 0 is allowed")
    return arguments


def reproduce(arguments: argparse.Namespace, console: Console) -> int:
    torch.set_num_threads(1)  # runs are forked from here
    source_commit()  # now, and not when the files may have changed
    results, cores = arguments.results, len(os.sched_getaffinity(0))
    studies = [(load(name), arguments.scale) for name in chosen(arguments.only)]
    with console.status("planning") as status:
        told = lambda done, wanted: status.update(f"planning: {done} of {wanted} runs")  # noqa: E731
        plans = make_plans(studies, results, cores, told)
        ledger = Ledger(plans, results)
        told = lambda done, wanted: status.update(f"calibrating: {done} of {wanted} kinds of runs")  # noqa: E731
        estimates = estimate_all(ledger.missing, results, told)
    processes = arguments.jobs or max(
        1, torch.cuda.device_count() if torch.cuda.is_available() else cores
    )
    ledger.show(console, estimates, processes)
    if arguments.dry_run:
        return FINISHED
    longest_first = sorted(ledger.missing, key=lambda job: -estimates[job.folder].seconds)
    failed, interrupted = run_missing(longest_first, arguments, processes, console)
    failed += [
        (f"fedbench {' '.join(job.words)}", last_line(job.problem))
        for job in ledger.unplanned
        if job.broken
    ]
    refused = [job for job in ledger.unplanned if not job.broken]
    others = kept_plans(results, [name for name in names() if name not in chosen(arguments.only)])
    entries = render_all(plans, results, console, wandb=arguments.wandb, beside=others)
    for line, problem in failed:
        console.print(f"failed: {line}\n  {problem}", markup=False, highlight=False)
    for reason, count in Counter(last_line(job.problem) for job in refused).items():
        console.print(f"refused, {count} runs: {reason}", markup=False, highlight=False)
    words = (
        f"{len(entries)} experiments in the report; {len(failed)} runs failed, {len(refused)}"
        " refused"
    )
    console.print(words, highlight=False)
    console.print(f"report: {results / 'report' / 'index.html'}", markup=False, highlight=False)
    broken = [entry.name for entry in entries if entry.unrendered]
    if broken:
        console.print(f"could not be rendered: {', '.join(broken)}", markup=False, highlight=False)
    # On stand-in data nothing can be lacking: what is refused there is a fault of an experiment
    # file.
    wrong = failed or broken or (refused and arguments.scale == SMOKE)
    return INTERRUPTED if interrupted else UNEXPECTED if wrong else FINISHED


def last_line(problem: str) -> str:
    return (problem.strip().splitlines() or [""])[-1]


def run_missing(
    jobs: list[Job], arguments: argparse.Namespace, processes: int, console: Console
) -> tuple[list[tuple[str, str]], bool]:
    """Run them; returns the failed ones with the last line of why, and whether Ctrl-C ended it."""
    if not jobs:
        return [], False
    cores = len(os.sched_getaffinity(0))
    processes = min(processes, len(jobs))
    executor = Executor(arguments.results, processes, max(1, cores // processes), arguments.wandb)
    failed, started, number, interrupted = [], time.monotonic(), 0, 0
    for number, outcome in enumerate(executor.run(jobs), start=1):
        words = (
            f"[{number}/{len(jobs)}] {outcome.status} in {duration(outcome.seconds)}:"
            f" {outcome.job.folder}"
        )
        console.print(words, markup=False, highlight=False)
        interrupted += outcome.status == "interrupted"
        if outcome.status == "failed":
            reason = last_line(outcome.problem.split("\nIts output:")[0])
            failed.append((f"fedbench {' '.join(outcome.job.words)}", reason))
    done = number - interrupted
    console.print(
        f"{done} of {len(jobs)} runs in {duration(time.monotonic() - started)}", highlight=False
    )
    if executor.stopping:
        console.print(
            "interrupted; the same command goes on where this one stopped", highlight=False
        )
    return failed, executor.stopping


def main() -> None:
    escape_what_the_terminal_cannot_show()
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 140)
    with one_line_endings("reproduce_tables.py", Path("results")):
        arguments = parse(sys.argv[1:])
    with one_line_endings("reproduce_tables.py", arguments.results):
        sys.exit(reproduce(arguments, console))
