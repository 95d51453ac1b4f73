"""`fedbench-tables [results] [--only NAME] [--scale SCALE]`: tables, figures and report from
finished runs alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from fedbench.core.errors import FINISHED, UNEXPECTED, BadInput, OneLineParser
from fedbench.core.terminal import escape_what_the_terminal_cannot_show
from fedbench.study.endings import one_line_endings
from fedbench.study.experiment import SCALES, chosen
from fedbench.study.ledger import kept_plans
from fedbench.study.render import render_all


def parse(words: list[str]) -> argparse.Namespace:
    parser = OneLineParser(prog="fedbench-tables", description=__doc__)
    parser.add_argument(
        "results", nargs="?", type=Path, default=Path("results"), help="the folder with runs/"
    )
    parser.add_argument(
        "--only", help="one experiment (fedpgvc/table2) or all of a paper (fedpgvc)"
    )
    parser.add_argument(
        "--scale", choices=SCALES, help="the largest that was planned, unless given"
    )
    parser.add_argument(
        "--wandb", action="store_true", help="send each experiment's table to W&B, into its group"
    )
    return parser.parse_args(words)


def main() -> None:
    escape_what_the_terminal_cannot_show()
    with one_line_endings("fedbench-tables", Path("results")):
        arguments = parse(sys.argv[1:])
    with one_line_endings("fedbench-tables", arguments.results):
        sys.exit(show(arguments, Console(soft_wrap=True)))


def show(arguments: argparse.Namespace, console: Console) -> int:
    results, only = arguments.results, arguments.only
    plans = kept_plans(results, chosen(only), arguments.scale)
    if not plans:
        what = f" of {only}" if only else ""
        raise BadInput(
            f"results={results}: no plan{what} there; `fedbench experiment=...` makes one"
        )
    entries = render_all(plans, results, console, wandb=arguments.wandb)
    for entry in entries:
        counts = ", ".join(
            f"{number} {verdict}" for verdict, number in entry.counts().items() if number
        )
        line = (
            f"{entry.name} ({entry.scale}): {entry.done} of {entry.wanted} runs;"
            f" {counts or 'no numbers'}"
        )
        console.print(line, markup=False, highlight=False)
        if entry.problems:
            console.print(f"  {entry.problems[0].splitlines()[-1]}", markup=False, highlight=False)
    console.print(
        f"report: {arguments.results / 'report' / 'index.html'}", markup=False, highlight=False
    )
    return UNEXPECTED if any(entry.unrendered for entry in entries) else FINISHED
