"""The sweeper of conf/experiment, `hydra/sweeper=experiment_grid`: its jobs are the cells of the
study's axes.

Hydra takes plugins from the namespace package `hydra_plugins` alone, which is why this file lies
here. It imports all plugins whenever a program starts, so what makes tables, which loads pandas and
matplotlib, is imported when a sweep begins.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

from fedbench.core.errors import BAD_INPUT, FINISHED, INTERRUPTED, UNEXPECTED, BadInput
from fedbench.parallel.processes import under_torchrun
from fedbench.parallel.ranks import this_rank
from fedbench.runs.sweeps import BASIC, Outcome, SweepCallback

NEITHER_GRID_NOR_NUMBERS = (
    "experiment",
    "scale",
    "results",
    "logger",
    "runtime",
    "force",
    "checkpoint",
    "hydra",
)
BUT_NUMBERS = ("runtime.threads", "runtime.device")
WIDTH = 140  # of the ledger in a file
CHOSEN = ("experiment", "scale", "results")  # words that are in every job already


class GridSweeper(BasicSweeper):
    """`fedbench experiment=NAME [scale=SCALE] [words]`: these words win over those of a cell; equal
    jobs are one.

    The jobs go through the process pool of `fedbench-tables run`. Another launcher gets them one by
    one, as any sweep, and so does torchrun, whose ranks work on one run together.
    """

    def sweep(self, arguments: list[str]) -> Any:
        from fedbench.report.experiments.experiment import load

        choices = self.config.hydra.runtime.choices
        self.experiment = load(choices.experiment, self._own_folders())
        self.scale = choices.get("scale") or "paper"
        if self.experiment.axes and not self.experiment.has_scale(self.scale):
            raise BadInput(
                f"scale={self.scale}: must be smoke or paper; experiment={choices.experiment} does"
                " not say what would decide its claims"
            )
        self.changing = [word for word in arguments if _changes_numbers(_key(word))]
        if self.config.hydra.launcher.get("_target_") != BASIC or under_torchrun():
            if self.experiment.tune is not None:
                raise BadInput(
                    f"experiment={choices.experiment}: study.tune needs Hydra's basic launcher: its"
                    " runs depend on its trials"
                )
            return super().sweep(arguments)
        return self._run_tables(arguments)

    def _own_folders(self) -> list[str]:
        """The folders of configuration that the user named: --config-dir, hydra.searchpath."""
        return [
            source.path
            for source in self.config.hydra.runtime.config_sources
            if source.schema == "file" and source.provider != "main"
        ]

    def _run_tables(self, arguments: list[str]) -> None:
        from rich.console import Console

        from fedbench.report.engine import Options, run_other_jobs, run_tables, show_result

        own = [word for word in arguments if _key(word) not in CHOSEN]
        console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH)
        options = Options(
            Path(self.config.results),
            words=tuple(word for word in own if not _changes_numbers(_key(word))),
            force=bool(self.config.get("force")),
        )
        if self.changing:
            combinations = self._combinations([w for w in own if _changes_numbers(_key(w))])
            self._say_what_becomes_of_the_table()
            result = run_other_jobs(self.experiment, self.scale, combinations, options, console)
        else:
            result = run_tables([(self.experiment, self.scale)], options, console)
            show_result(result, options, console)
        _report(result, options.results)

    def _combinations(self, words: list[str]) -> list[list[str]]:
        """The user's own words, one list for every combination of the values that they list."""
        overrides = self.config_loader_overrides(words)
        return [list(batch) for batch in super().split_arguments(overrides, None)[0]]

    def config_loader_overrides(self, words: list[str]) -> Any:
        from hydra.core.override_parser.overrides_parser import OverridesParser

        return OverridesParser.create(self.hydra_context.config_loader).parse_overrides(words)

    def _say_what_becomes_of_the_table(self) -> None:
        if not this_rank().leader:
            return
        labels = [label for axis in self.experiment.axes.values() for label in axis.values()]
        words = [*(word for label in labels for word in shlex.split(label)), *self.changing]
        # Of modifiers, which are several, the name of the run's folder tells.
        keys = dict.fromkeys("label" if _key(word) == "modifier" else _key(word) for word in words)
        keys.pop("seed", None)  # runs are paired by it
        print(
            f"{' '.join(self.changing)}: not the runs of {self.experiment.name}, whose table and"
            f" plan stay as they are; `fedbench-tables render {self.config.results} --by"
            f" {','.join(keys)}` compares them",
            flush=True,
        )

    # With another launcher

    def split_arguments(self, overrides: Any, max_batch_size: int | None) -> list[list[list[str]]]:
        """In place of the product of the overrides: the study's jobs, for every combination of the
        user's own words.

        Without words that change numbers the plan, which composes and checks every job, is kept for
        the tables. Of torchrun's ranks only the leader makes it.
        """
        from fedbench.report.running.plan import make_plans

        results, scale = self.config.results, self.scale
        if not self.changing and this_rank().leader:
            (plan,) = make_plans(
                [(self.experiment, scale)], Path(results), 1, lambda done, wanted: None
            )
            planned = [job.words for job in plan.jobs]
        else:
            planned = [
                self.experiment.job(cell, seed, scale)
                for cell in self.experiment.cells(scale)
                for seed in cell.seeds
            ]
        jobs: dict[tuple[str, ...], list[str]] = {}
        for own in super().split_arguments(overrides, None)[0]:
            if "logger=wandb" in own and not any(word.startswith("logger.group=") for word in own):
                own.append(f"logger.group={self.experiment.name}")  # W&B shows the sweep as a group
            for given in planned:
                words = {_key(word): word for word in [*given, *own]}
                words.pop("hydra.searchpath", None)  # the launcher has it
                jobs[tuple(sorted(words.values()))] = list(words.values())
        batches = list(jobs.values())
        return (
            [batches]
            if max_batch_size is None
            else list(self.split_overrides_to_chunks(batches, max_batch_size))
        )

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        if self.changing:
            self._say_what_becomes_of_the_table()
            super().validate_batch_is_legal(batch)
        elif this_rank().leader:
            render = f"fedbench-tables render {self.config.results} --only {self.experiment.name}"
            print(
                f"{len(batch)} runs; afterwards `{render}` makes the table or figure of them",
                flush=True,
            )


def _report(result: Any, results: Path) -> None:
    """Write the outcome of every job where any sweep has it."""
    from fedbench.report.running.execute import FAILURE

    sweep = SweepCallback.current
    assert sweep is not None
    refused = [(job, BAD_INPUT, job.problem) for job in result.refused]
    failed = [(job, UNEXPECTED, reason) for job, reason in result.failed]
    stopped = [(job, INTERRUPTED, "on request") for job in result.interrupted]
    done: Iterable[tuple[Any, int, str]] = [(job, FINISHED, "") for job in result.finished]
    for number, (job, status, reason) in enumerate([*done, *refused, *failed, *stopped]):
        log = results / job.folder / FAILURE
        sweep.write(
            Outcome(
                number,
                job.words,
                status,
                reason,
                str((results / job.folder).absolute()) if job.folder else "",
                log=str(log) if log.is_file() else "",
            )
        )
    if result.stopped and not result.interrupted:
        raise KeyboardInterrupt


def _changes_numbers(key: str) -> bool:
    return key in BUT_NUMBERS or key.split(".")[0].split("/")[0] not in NEITHER_GRID_NOR_NUMBERS


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
