"""The leader's books: metrics.csv and clients.csv round by round, and the files that a finished run
consists of.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedbench.core.files import append
from fedbench.core.flat_model import digest
from fedbench.parallel.failures import REMOVED, WorkerFault
from fedbench.runs.checksums import SUMMARY, seal
from fedbench.runs.console import Progress
from fedbench.runs.folder import RunFolder
from fedbench.runs.wandb import Tracker
from fedbench.training.conformal import coverage_table
from fedbench.training.round_metrics import Record

FIRST_COLUMNS = (
    "round",
    "test_accuracy",
    "test_loss",
    "train_loss",
    "bytes_up",
    "bytes_down",
    "seconds",
)


class Recorder:
    def __init__(self, folder: RunFolder, labels: Tensor, rounds: int):
        self.folder, self.labels, self.rounds = folder, labels, rounds
        self.rows: list[dict[str, float]] = []
        self.best_round = 0
        self.predictions: dict[str, Tensor] = {}  # "best" and "final"
        self.diverged: dict[str, Any] | None = None
        self.tables = {
            "clients.csv": "",
            "local_tests.csv": "",
        }  # contents: rows for each client and round

    def start(self, tracker: Tracker, done: int) -> None:
        """Begin to write; after a resume the files hold exactly the rows of the checkpoint
        again.
        """
        self.tracker, self.progress = tracker, Progress(self.rounds, done)
        self._write_metrics()
        self._write_tables()
        for row in self.rows:
            tracker.log(row)

    def add(self, record: Record) -> None:
        self._check_folder()
        if record.diverged:
            self.diverged = {"round": record.round, **asdict(record.diverged)}
        self._add_to_table("clients.csv", record.clients)
        if record.score is not None:
            self._add_row(record)
        self.progress.show(record)

    def _check_folder(self) -> None:
        """Files are written into a folder that is made when it is not there: a removed one would
        come back in part.
        """
        if not (self.folder.path / "config.yaml").is_file():
            raise WorkerFault(f"{REMOVED} ({self.folder.path})")

    def _add_row(self, record: Record) -> None:
        score = record.score
        scored = {"round": record.round, "test_accuracy": score.accuracy, "test_loss": score.loss}
        if score.spread is not None:
            scored["test_accuracy_std"] = score.spread
        row = {**scored, **record.numbers, **score.others}
        row = {**{key: row[key] for key in FIRST_COLUMNS}, **row}
        if not self.best_round or score.accuracy > self._row(self.best_round)["test_accuracy"]:
            self.best_round = record.round
            self.predictions["best"] = score.predictions.clone()  # files hold no shared memory
        self.predictions["final"] = score.predictions
        self.rows.append(row)
        self._write_metrics()
        self._add_to_table("local_tests.csv", score.clients)
        self.tracker.log(row)

    def _add_to_table(self, name: str, rows: list[dict[str, Any]]) -> None:
        if rows:
            added = _csv(rows, header=not self.tables[name])
            append(self.folder.path / name, added)
            self.tables[name] += added

    def _write_tables(self) -> None:
        for name, content in self.tables.items():
            if content:
                self.folder.write(name, content)
            else:
                (self.folder.path / name).unlink(missing_ok=True)

    def _write_metrics(self) -> None:
        """As a whole: who reads while a line is appended may see half of it, when it crosses a
        page's end.
        """
        self.folder.write("metrics.csv", _csv(self.rows, header=bool(self.rows)), durable=False)

    def _row(self, number: int) -> dict[str, float]:
        return next(row for row in self.rows if row["round"] == number)

    def books(self) -> dict[str, Any]:
        """What a checkpoint must hold beside tensors."""
        return {"rows": self.rows, "best_round": self.best_round}

    def tensors(self) -> dict[str, Tensor]:
        """The larger part of that, as tensors."""
        tables = {
            name: np.frombuffer(text.encode(), np.uint8) for name, text in self.tables.items()
        }
        return {
            **self.predictions,
            **{name: torch.from_numpy(array.copy()) for name, array in tables.items()},
        }

    def restore(self, books: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.tables = {name: tensors.pop(name).numpy().tobytes().decode() for name in self.tables}
        self.rows, self.best_round, self.predictions = books["rows"], books["best_round"], tensors

    def close(self) -> None:
        """The run was interrupted: leave the terminal and the tracker in order."""
        self.progress.close()
        self.tracker.close()

    def write_conformal(self, probabilities: Tensor, seed: int) -> None:
        """The final model's softmax outputs, and what conformal prediction makes of them."""
        stored, labels = probabilities.numpy(), self.labels.numpy()
        self.folder.write("softmax.npz", _npz(labels=labels, probabilities=stored))
        self.folder.write("conformal.csv", _csv(coverage_table(stored, labels, seed), header=True))

    def finish(self, model: dict[str, Tensor], note: str, facts: dict[str, Any]) -> None:
        """Write the final files; the summary comes last, because its presence means finished."""
        self.progress.close()
        self._check_folder()
        self.folder.write(
            "model.safetensors", save(model, metadata={"note": note} if note else None)
        )
        arrays = {name: value.numpy() for name, value in self.predictions.items()}
        self.folder.write(
            "predictions.npz",
            _npz(labels=self.labels.numpy(), best_round=self.best_round, **arrays),
        )
        self.folder.write("metrics.csv", _csv(self.rows, header=True))
        self._write_tables()
        summary = {**self._results(), "digest": digest(model), **facts}
        sealed = seal(self.folder.path, summary)
        self.folder.write(SUMMARY, json.dumps(sealed, indent=2, allow_nan=False) + "\n")
        self.tracker.finish(summary, self.folder.path / "partition.png")

    def _results(self) -> dict[str, Any]:
        """A diverged run has no accuracy: its cells are shown as `*`."""
        if self.diverged:
            return {"status": "diverged", "diverged": self.diverged} | dict.fromkeys(
                ("best_accuracy", "best_round", "final_accuracy")
            )
        return {
            "status": "finished",
            "best_accuracy": self._row(self.best_round)["test_accuracy"],
            "best_round": self.best_round,
            "final_accuracy": self.rows[-1]["test_accuracy"],
        }


def _csv(rows: list[dict[str, Any]], header: bool) -> str:
    if not rows:
        return ",".join(FIRST_COLUMNS) + "\n" if header else ""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
