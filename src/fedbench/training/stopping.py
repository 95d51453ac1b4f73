"""When a run ends before its last round: at a target, or when it improves no more."""

from __future__ import annotations

from typing import Any

from fedbench.config.schema import StopSettings
from fedbench.training.evaluation import Score


class StopRule:
    """Looks at every evaluation. All ranks have the same scores and stop together.

    `accuracy` is compared with the test accuracy. `patience` counts evaluations without a new best
    validation accuracy, or test accuracy where there are no validation data.
    """

    def __init__(self, settings: StopSettings):
        self.settings = settings
        # What lives from one round to the next; a checkpoint holds it.
        self.best: float | None = None
        self.waited = 0  # evaluations since the best

    def after_evaluation(self, score: Score) -> str | None:
        """Why the run ends here: the name of the setting; None when it goes on."""
        target, patience = self.settings.accuracy, self.settings.patience
        measured = (score.validation or score).accuracy
        if self.best is None or measured > self.best:
            self.best, self.waited = measured, 0
        else:
            self.waited += 1
        if target is not None and score.accuracy >= target:
            return "accuracy"
        return "patience" if patience is not None and self.waited >= patience else None

    def progress(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def resume(self, progress: dict[str, Any]) -> None:
        self.best, self.waited = progress["best"], progress["waited"]
