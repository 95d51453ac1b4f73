"""`fedbench-tables`: run what is missing of tables and figures, render what was run, archive it.

fedbench-tables run --scale smoke --only fedpgvc/table2
fedbench-tables render results --only fedpgvc
fedbench-tables archive results --only fedpgvc/table2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from fedbench.core.errors import FINISHED, INTERRUPTED, UNEXPECTED, BadInput, OneLineParser
from fedbench.core.terminal import escape_what_the_terminal_cannot_show, streams_without_readers
from fedbench.report.by import render_by
from fedbench.report.endings import one_line_endings
from fedbench.report.engine import Options, run_tables, say, show_result
from fedbench.report.experiments.experiment import (
    Experiment,
    absolute,
    chosen,
    load,
    names,
    own_names,
)
from fedbench.report.experiments.spec import DECISIVE, SCALES, SMOKE
from fedbench.report.output.render import render_all
from fedbench.report.running.archive import archive_plans
from fedbench.report.running.ledger import kept_plans, planned_names
from fedbench.report.running.plan import Plan
from fedbench.runs.archive import ARCHIVE

PROGRAM = "fedbench-tables"
RESULTS = Path("results")
ONLY = "one experiment (fedpgvc/table2) or all of a folder (fedpgvc)"


def main() -> None:
    escape_what_the_terminal_cannot_show()
    with streams_without_readers():
        _run_command()


def _run_command() -> None:
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 140)
    with one_line_endings(PROGRAM, RESULTS):
        arguments = parse(sys.argv[1:])
    with one_line_endings(PROGRAM, arguments.results):
        sys.exit(arguments.command(arguments, console))


def parse(words: list[str]) -> argparse.Namespace:
    parser = OneLineParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run_parser = _command(commands, "run", run, "run what is missing, then render")
    run_parser.add_argument(
        "--results", type=Path, default=RESULTS, help="the folder for all files"
    )
    run_parser.add_argument("--only", help=ONLY)
    run_parser.add_argument(
        "--config-dir",
        action="append",
        default=[],
        help="a folder of one's own with experiment/*.yaml; all of these, unless --only is given",
    )
    run_parser.add_argument(
        "--scale", choices=SCALES, help="how much is run; smoke unless given, all of one's own"
    )
    run_parser.add_argument("--jobs", type=int, help="runs at a time; one a core or GPU otherwise")
    run_parser.add_argument(
        "--ranks-per-gpu", type=int, default=1, help="processes of a run, which has one GPU"
    )
    run_parser.add_argument("--dry-run", action="store_true", help="stop after the ledger")
    run_parser.add_argument(
        "--wandb", action="store_true", help="send runs and tables to W&B, an experiment a group"
    )
    render_parser = _command(commands, "render", render, "render what was run; nothing is run")
    archive_parser = _command(commands, "archive", archive, "add finished runs to the archive")
    for own in (render_parser, archive_parser):
        own.add_argument(
            "results", nargs="?", type=Path, default=RESULTS, help="the folder with runs/"
        )
        own.add_argument("--only", help=ONLY)
        own.add_argument(
            "--scale", choices=SCALES, help="the largest that was planned, unless given"
        )
    render_parser.add_argument(
        "--by", help="settings to compare any runs by, such as algo,partition.alpha"
    )
    render_parser.add_argument("--wandb", action="store_true", help="send the tables to W&B")
    arguments = parser.parse_args(words)
    for key in ("jobs", "ranks_per_gpu"):
        given = getattr(arguments, key, None)
        if given is not None and given < 1:
            option = key.replace("_", "-")
            raise BadInput(f"--{option}={given}: must be an integer of at least 1")
    return arguments


def _command(
    commands: argparse._SubParsersAction[OneLineParser],
    name: str,
    function: Callable[[argparse.Namespace, Console], int],
    words: str,
) -> OneLineParser:
    parser = commands.add_parser(name, help=words, description=words)
    parser.set_defaults(command=function)
    return parser


def _with_anything_to_run(
    studies: list[tuple[Experiment, str]], arguments: argparse.Namespace
) -> list[tuple[Experiment, str]]:
    """Leave out the experiments that have nothing at the scale that is asked for."""
    found = [(study, scale) for study, scale in studies if not study.axes or study.has_scale(scale)]
    if arguments.scale == DECISIVE:
        found = [(study, scale) for study, scale in found if study.axes]
    if not found:
        raise BadInput(
            f"--scale={arguments.scale}: must be smoke or paper; --only={arguments.only} does not"
            " say what would decide its claims"
        )
    return found


def archive(arguments: argparse.Namespace, console: Console) -> int:
    """Add the finished runs of the chosen experiments to the archive."""
    results = arguments.results
    plans = _plans(arguments)
    if arguments.scale is None:  # smoke proves the plumbing, and nothing that is worth keeping
        plans = [plan for plan in plans if plan.scale != SMOKE]
    new = archive_plans(plans, results)
    say(console, f"{new} runs added to {results / ARCHIVE}")
    return FINISHED


def _plans(arguments: argparse.Namespace) -> list[Plan]:
    """The plans in the results folder of the chosen experiments."""
    results, only = arguments.results, arguments.only
    known = [*names(), *planned_names(results)]
    plans = kept_plans(results, chosen(only, known), arguments.scale)
    if not plans:
        what = f" of {only}" if only else ""
        raise BadInput(
            f"results={results}: no plan{what} there; `fedbench experiment=...` makes one"
        )
    return plans


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run what is missing of the chosen experiments, and render them."""
    folders = absolute(arguments.config_dir)
    own = own_names(folders)
    known = [*names(), *own] if arguments.only or not own else own
    experiments = [load(name, folders) for name in chosen(arguments.only, known)]
    studies = [
        (experiment, arguments.scale or ("paper" if experiment.is_own else SMOKE))
        for experiment in experiments
    ]
    studies = _with_anything_to_run(studies, arguments)
    words = ("logger=wandb",) if arguments.wandb else ()
    options = Options(
        results=arguments.results,
        jobs=arguments.jobs,
        ranks_per_gpu=arguments.ranks_per_gpu,
        words=words,
        dry_run=arguments.dry_run,
        wandb=arguments.wandb,
    )
    result = run_tables(studies, options, console)
    if arguments.dry_run:
        return FINISHED
    show_result(result, options, console)
    if result.stopped:
        say(console, "interrupted; the same command goes on where this one stopped")
        return INTERRUPTED
    # On stand-in data nothing can be lacking: what is refused there is a fault of an experiment
    # file.
    smoke = any(scale == SMOKE for _, scale in studies)
    wrong = result.failed or result.unrendered or (result.refused and smoke)
    return UNEXPECTED if wrong else FINISHED


def render(arguments: argparse.Namespace, console: Console) -> int:
    """Tables, figures and report from finished runs alone."""
    if arguments.by is not None:
        entry, page = render_by(arguments.results, arguments.by.split(","))
        say(console, f"{entry.number}: {entry.done} runs, {len(entry.grids)} tables")
        say(console, f"report: {page}")
        return FINISHED
    results = arguments.results
    entries = render_all(_plans(arguments), results, console, wandb=arguments.wandb)
    for entry in entries:
        counts = ", ".join(
            f"{number} {outcome}" for outcome, number in entry.outcomes().items() if number
        )
        line = f"{entry.name} ({entry.scale}): {entry.done} of {entry.wanted} runs"
        say(console, f"{line}; {counts or entry.state}")
        if entry.problems:
            say(console, f"  {entry.problems[0].splitlines()[-1]}")
    say(console, f"report: {results / 'report' / 'index.html'}")
    return UNEXPECTED if any(entry.unrendered for entry in entries) else FINISHED
