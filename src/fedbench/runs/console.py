"""What a person sees while a run goes on: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time

from fedbench.training.round_metrics import Record


class Progress:
    """Round, accuracy, throughput and time left."""

    def __init__(self, rounds: int, done: int):
        self.rounds, self.first = rounds, done
        self.started = time.perf_counter()
        self.accuracy = ""
        self.first_gradients: float | None = None
        self.bar = _bar(rounds, done) if sys.stdout.isatty() else None

    def show(self, record: Record) -> None:
        if record.score is not None:
            self.accuracy = f"{100 * record.score.accuracy:.2f} %"
        if self.bar is not None:
            self.bar.update(
                self.bar.task_ids[0],
                completed=record.round,
                accuracy=self.accuracy,
                rate=self._rate(record),
            )
        elif record.score is not None:
            loss = record.numbers["train_loss"]
            line = (
                f"round {record.round}/{self.rounds}  accuracy {self.accuracy}  train loss"
                f" {loss:.4f}"
            )
            print(f"{line}  {self._rate(record)}  {self._left(record.round)} left", flush=True)

    def _rate(self, record: Record) -> str:
        """Training examples a second, since the first round that this process finished."""
        gradients = record.numbers["gradients"]
        if (
            self.first_gradients is None
        ):  # a resumed run has counts from before: start from its per-round share
            self.first_gradients = gradients * (1 - 1 / record.round)
        return (
            f"{(gradients - self.first_gradients) / (time.perf_counter() - self.started):,.0f}"
            " samples/s"
        )

    def _left(self, done: int) -> str:
        seconds = (
            (time.perf_counter() - self.started) / max(done - self.first, 1) * (self.rounds - done)
        )
        return f"{int(seconds // 3600)}:{int(seconds // 60) % 60:02d}:{int(seconds) % 60:02d}"

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def _bar(rounds: int, done: int):
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    bar = RichProgress(
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("accuracy {task.fields[accuracy]}  {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    bar.add_task("rounds", total=rounds, completed=done, accuracy="", rate="")
    bar.start()
    return bar
