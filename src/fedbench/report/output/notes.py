"""Footnotes: what a reader of a cell must know, so that nothing is hidden."""

from __future__ import annotations

from string import ascii_lowercase
from typing import Any

import pandas as pd

from fedbench.report.experiments.experiment import matches
from fedbench.report.numbers.runs import DIVERGED, DONE, FAILED, REFUSED, Study

CHOICE = "choice"


class Footnotes:
    """Collects the footnotes of a study's cells and gives each its letter, in the order of their
    first use.
    """

    def __init__(self, study: Study):
        self.study = study
        self.letters: dict[str, str] = {}  # text -> mark
        self.marked: dict[tuple[str, ...], list[str]] = {}  # labels of a cell -> its marks
        self.common = {  # keys of settings that concern all cells
            key
            for key, setting in study.experiment.provenance.items()
            if len(study.select(setting.only or {})) == len(study.runs)
        }

    def footnotes(self) -> dict[str, str]:
        return {mark: text for text, mark in self.letters.items()}

    def mark(self, text: str) -> str:
        if text not in self.letters:
            number = len(self.letters)
            letter, again = ascii_lowercase[number % 26], number // 26
            self.letters[text] = letter * (again + 1)
        return self.letters[text]

    def marks(self, runs: pd.DataFrame) -> list[str]:
        """Of the runs of a cell."""
        labels = self.study.labels(runs)
        cell = tuple(labels.values())
        if cell not in self.marked:
            texts = [*self._of_runs(labels, runs), *self._of_settings(labels)]
            self.marked[cell] = [self.mark(text) for text in texts]
        return list(self.marked[cell])

    def _of_runs(self, labels: dict[str, str], runs: pd.DataFrame) -> list[str]:
        texts = []
        experiment, scale = self.study.experiment, self.study.scale
        done = runs[runs["status"].isin(DONE)]
        if experiment.reduction(scale) and len(done):
            texts.append(f"Reduced scale ({scale}): {experiment.reduction(scale)}.")
        replaced = experiment.replaced(labels, scale)
        if replaced and len(done):
            texts.append(
                f"Not what the label says, hence no verdict: run with {' '.join(replaced)}."
            )
        for run in done.to_dict("records"):
            texts += self._of_run(run)
        for run in runs[runs["status"].isin((FAILED, REFUSED))].to_dict("records"):
            line = run["problem"].strip().splitlines()[-1] if run["problem"].strip() else ""
            texts.append(f"Seed {run['seed']} was {run['status']}: {line}")
        return list(dict.fromkeys(texts))

    def _of_run(self, run: dict[str, Any]) -> list[str]:
        """Of one that came to an end."""
        texts = []
        summary = self.study.files(run["folder"]).summary
        data = summary["data"]
        if data["source"] == "synthetic":
            texts.append(
                f"Stand-in data: not the real {data['name']}, but synthetic examples of its shape."
            )
        elif data["note"] and "subset" not in data["note"]:
            texts.append(f"Data: {data['name']}, {data['note']}.")
        if run["instead"]:
            texts.append(f"By construction, {run['instead']}.")
        texts += [f"Caveat: {caveat}." for caveat in summary["caveats"]]
        if run["status"] == DIVERGED:
            cause = summary["diverged"]
            words = f"diverged in round {cause['round']}: {cause['cause']}"
            texts.append(f"* Seed {run['seed']} {words}.")
        if summary["scoring"] != "global":
            texts.append(f"There is no global model; scored as {summary['scoring']}.")
        return texts

    def _of_settings(self, labels: dict[str, str]) -> list[str]:
        """Values that we had to choose, because neither paper nor released code tells: one note for
        all cells alike.
        """
        everywhere: list[str] = []
        here: list[str] = []
        for key, setting in self.study.experiment.provenance.items():
            if setting.source == CHOICE and matches(labels, setting.only or {}):
                chosen = everywhere if key in self.common else here
                chosen.append(f"{key}: {setting.why.rstrip('.')}")
        return [f"Our choice. {'; '.join(chosen)}." for chosen in (everywhere, here) if chosen]
