"""The sweeper of conf/experiment, `hydra/sweeper=experiment_grid`: its jobs are the cells of the
study's axes.

Hydra takes plugins from the namespace package `hydra_plugins` alone, which is why this file lies
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

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


class GridSweeper(BasicSweeper):
    """`fedbench experiment=NAME [scale=SCALE] [words]`: these words win over those of a cell; equal
    jobs are one.
    """

    def sweep(self, arguments: list[str]) -> Any:
        keys = [_key(word) for word in arguments]
        neutral = {key.split(".")[0].split("/")[0] for key in keys} <= set(NEITHER_GRID_NOR_NUMBERS)
        self.as_planned = neutral and not set(keys) & set(BUT_NUMBERS)
        return super().sweep(arguments)

    def split_arguments(self, overrides: Any, max_batch_size: int | None) -> list[list[list[str]]]:
        """In place of the product of the overrides: the study's jobs, for every combination of the
        user's own words.

        Without words that change numbers the plan, which composes and checks every job, is kept for
        the tables.
        """
        from fedbench.study.experiment import load
        from fedbench.study.plan import make_plans, settle_job

        choices, results = self.config.hydra.runtime.choices, self.config.results
        experiment, scale = load(choices.experiment), choices.get("scale") or "paper"
        if self.as_planned:
            (plan,) = make_plans([(experiment, scale)], Path(results), 1, lambda done, wanted: None)
            planned = [job.words for job in plan.jobs]
        else:
            planned = [
                experiment.job(cell, seed, scale)
                for cell in experiment.cells(scale)
                for seed in cell.seeds
            ]
        jobs: dict[tuple[str, ...], list[str]] = {}
        for own in super().split_arguments(overrides, None)[0]:
            if "logger=wandb" in own and not any(word.startswith("logger.group=") for word in own):
                own.append(f"logger.group={experiment.name}")  # W&B shows the sweep as one group
            for given in planned:
                words = {_key(word): word for word in [*given, *own]}
                jobs[tuple(sorted(words.values()))] = list(words.values())
        batches = list(jobs.values())
        if scale == "laptop" and not self.as_planned:  # data that are not at hand are stood in for
            batches = [settle_job((words, 0, results)).words for words in batches]
        return (
            [batches]
            if max_batch_size is None
            else list(self.split_overrides_to_chunks(batches, max_batch_size))
        )

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        if self.as_planned:
            choices, results = self.config.hydra.runtime.choices, self.config.results
            render = (
                f"fedbench-tables {results} --only {choices.experiment} --scale"
                f" {choices.get('scale') or 'paper'}"
            )
            print(
                f"{len(batch)} runs; afterwards `{render}` makes the table or figure of them",
                flush=True,
            )
        else:
            super().validate_batch_is_legal(batch)


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
