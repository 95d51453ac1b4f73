"""Footnotes: what a reader of a cell must know, so that nothing is hidden."""

from __future__ import annotations

from string import ascii_lowercase

from fedbench.report.runs import DIVERGED, FAILED, REFUSED, Study, StudyCell

CHOICE = "choice"


class Footnotes:
    """Collects the footnotes of a study's cells and gives each its letter, in the order of their
    first use.
    """

    def __init__(self, study: Study):
        self.study = study
        self.letters: dict[str, str] = {}  # text -> mark
        self.common = {  # keys of settings that concern all cells
            key
            for key, setting in study.experiment.provenance.items()
            if all(cell.cell.matches(setting.only or {}) for cell in study.cells)
        }

    def footnotes(self) -> dict[str, str]:
        return {mark: text for text, mark in self.letters.items()}

    def mark(self, text: str) -> str:
        if text not in self.letters:
            number = len(self.letters)
            letter, again = ascii_lowercase[number % 26], number // 26
            self.letters[text] = letter * (again + 1)
        return self.letters[text]

    def marks(self, cell: StudyCell) -> list[str]:
        return [self.mark(text) for text in [*self._of_runs(cell), *self._of_settings(cell)]]

    def _of_runs(self, cell: StudyCell) -> list[str]:
        texts = []
        reduction = self.study.experiment.reduction(self.study.scale)
        done = [run for run in cell.runs if run.done]
        if reduction and done:
            texts.append(f"Reduced scale ({self.study.scale}): {reduction}.")
        replaced = self.study.experiment.replaced(cell.labels, self.study.scale)
        if replaced and done:
            texts.append(
                f"Not what the label says, hence no verdict: run with {' '.join(replaced)}."
            )
        for run in done:
            data = run.summary["data"]
            if data["source"] == "synthetic":
                texts.append(
                    f"Stand-in data: not the real {data['name']}, but synthetic examples of its"
                    " shape."
                )
            elif data["note"] and "subset" not in data["note"]:
                texts.append(f"Data: {data['name']}, {data['note']}.")
            if run.instead:
                texts.append(f"By construction, {run.instead}.")
            texts += [f"Caveat: {caveat}." for caveat in run.summary["caveats"]]
            if run.status == DIVERGED:
                cause = run.summary["diverged"]
                texts.append(
                    f"* Seed {run.seed} diverged in round {cause['round']}: {cause['cause']}."
                )
            if run.summary["scoring"] != "global":
                texts.append(f"There is no global model; scored as {run.summary['scoring']}.")
        for run in cell.runs:
            if run.status in (FAILED, REFUSED):
                line = run.problem.strip().splitlines()[-1] if run.problem.strip() else ""
                texts.append(f"Seed {run.seed} was {run.status}: {line}")
        return list(dict.fromkeys(texts))

    def _of_settings(self, cell: StudyCell) -> list[str]:
        """Values that we had to choose, because neither paper nor released code tells: one note for
        all cells alike.
        """
        everywhere: list[str] = []
        here: list[str] = []
        for key, setting in self.study.experiment.provenance.items():
            if setting.source == CHOICE and cell.cell.matches(setting.only or {}):
                chosen = everywhere if key in self.common else here
                chosen.append(f"{key}: {setting.why.rstrip('.')}")
        return [f"Our choice. {'; '.join(chosen)}." for chosen in (everywhere, here) if chosen]
