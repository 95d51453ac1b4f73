"""The sweeper of conf/experiment: its jobs are the cells of the study's axes, not only the product of some keys.

Hydra takes plugins from the namespace package `hydra_plugins` alone, which is why this file lies here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

NEITHER_GRID_NOR_NUMBERS = ("experiment", "scale", "results", "logger", "runtime", "force", "checkpoint", "hydra")


class GridSweeper(BasicSweeper):
    """`fedbench experiment=NAME [scale=SCALE] [words]`: these words win over those of a cell; equal jobs are one."""

    def sweep(self, arguments: list[str]) -> Any:
        self.arguments = arguments
        return super().sweep(arguments)

    def split_arguments(self, overrides: Any, max_batch_size: int | None) -> list[list[list[str]]]:
        """In place of the product of the overrides: the study's jobs, for every combination of the user's own words."""
        from fedbench.study.experiment import load

        choices = self.config.hydra.runtime.choices
        experiment, scale = load(choices.experiment), choices.get("scale") or "paper"
        jobs: dict[tuple[str, ...], list[str]] = {}
        for own in super().split_arguments(overrides, None)[0]:
            if "logger=wandb" in own and not any(word.startswith("logger.group=") for word in own):
                own.append(f"logger.group={experiment.name}")  # W&B shows the sweep as one group
            for cell in experiment.cells(scale):
                for seed in cell.seeds:
                    words = {_key(word): word for word in [*experiment.job(cell, seed, scale), *own]}
                    jobs[tuple(sorted(words.values()))] = list(words.values())
        batches = list(jobs.values())
        return [batches] if max_batch_size is None else list(self.split_overrides_to_chunks(batches, max_batch_size))

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Find every job's folder, which composes and checks it, and keep the plan for the tables."""
        from fedbench.study.experiment import load
        from fedbench.study.plan import make_plans

        own = {_key(word).split(".")[0].split("/")[0] for word in self.arguments}
        if own <= set(NEITHER_GRID_NOR_NUMBERS):
            choices = self.config.hydra.runtime.choices
            study = (load(choices.experiment), choices.get("scale") or "paper")
            make_plans([study], Path(self.config.results), 1, lambda done, wanted: None)
            render = f"fedbench-tables {self.config.results} --only {choices.experiment} --scale {study[1]}"
            print(f"{len(batch)} runs; afterwards `{render}` makes the table or figure of them", flush=True)
        else:
            super().validate_batch_is_legal(batch)


def _key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
