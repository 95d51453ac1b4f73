"""The one writer of a run's folder."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
from omegaconf import OmegaConf
from safetensors.torch import save
from torch import Tensor

from fedbench.core.files import append, write_atomically
from fedbench.core.flat_model import digest
from fedbench.core.machine import machine_name
from fedbench.parallel.failures import WorkerFault
from fedbench.partitions.from_file import file_content
from fedbench.partitions.picture import save_picture
from fedbench.partitions.statistics import class_counts, heterogeneity
from fedbench.runs.checkpoint import CheckpointStore
from fedbench.runs.console import Progress
from fedbench.runs.curves import drawn, save_curves
from fedbench.runs.extension import extend
from fedbench.runs.folder import SUMMARY
from fedbench.runs.identity import label, source_commit, source_hash, split_label, versions
from fedbench.runs.prepared import PreparedRun
from fedbench.training.conformal import coverage_table
from fedbench.training.evaluation import Score
from fedbench.training.federation import Federation
from fedbench.training.round_metrics import Record, Totals

FIRST_COLUMNS = (  # of metrics.csv; what the method adds follows
    "round",
    "test_accuracy",
    "test_loss",
    "train_loss",
    "bytes_up",
    "bytes_down",
    "seconds",
)
PERSONAL_NOTE = "clients keep a part of their models; here it is the clients' weighted mean"
Row = dict[str, Any]


class RunWriter:
    """Writes every file of a run, and mirrors the numbers to the logger and the console.

        writer = RunWriter(run, workers)
        writer.prepare(force)               # before the workers are started
        writer.open(federation)             # from here on, on every rank
        for record in federation.rounds():
            writer.add(record)
            writer.checkpoint(stopping)
        writer.finish()                     # or close(), when the run was interrupted

    All ranks write a checkpoint together; the leader alone writes the other files.
    """

    def __init__(self, run: PreparedRun, workers: int):
        self.run = run
        self.folder = run.folder
        self.workers = workers
        self.forced = False
        self.complete = False  # no round is left
        self.extensible = False  # the last round is done, and a run with more could continue
        # What has been written of the rounds so far. A checkpoint holds all of it.
        self.rows: list[Row] = []  # of metrics.csv
        self.tables = {"clients.csv": "", "local_tests.csv": ""}  # their contents
        self.best_round = 0
        self.best_val_round = 0  # on the validation set, if there is one
        self.predictions: dict[str, Tensor] = {}  # of the "best" and the "final" round
        self.diverged: dict[str, Any] | None = None
        self.stopped: str | None = None  # the setting of `stop` that ended the run
        self.earlier_seconds = 0.0  # of the processes before this one
        self.continued_from: str | None = None  # the id of a run with fewer rounds
        # What a checkpoint holds, and the predictions, without the additional last evaluation.
        self.without_last: tuple[dict[str, Any], dict[str, Tensor]] | None = None

    def prepare(self, force: bool) -> None:
        """Write what is known before training."""
        config, data, split = self.run.config, self.run.data, self.run.split
        self.forced = force
        if force:
            self.folder.clear()
        (self.folder.path / SUMMARY).unlink(missing_ok=True)  # a damaged run may have one
        shown = OmegaConf.create({**config.shown, "choices": config.names})
        self._write("config.yaml", OmegaConf.to_yaml(shown))
        partition = file_content(split.client_indices, data.training_fingerprint())
        self._write("partition.json", partition)
        if split.local_tests is not None:
            self._write("local_test.json", _index_lists(split.local_tests))
        counts = class_counts(data.train_y, data.classes, split.client_indices)
        self._write("partition.csv", _class_table(counts))
        title = f"{split_label(config)}, seed {config.scalars.seed}"
        drawn(save_picture, self.folder.path / "partition.png", counts, title)

    def open(self, federation: Federation) -> None:
        """Resume from the newest checkpoint, if there is one, and begin to write."""
        self.federation = federation
        self.leader = federation.group.leader
        self.started = time.time()
        origin = self.run.origin() if self.leader else {}
        rounds = self.run.config.scalars.rounds
        self.checkpoints = CheckpointStore(self.folder.path, federation.group, origin, rounds)
        self._resume()
        if not self.leader:
            return
        config = self.run.config
        self.logger = config.logger.start(
            self.run.id, label(config), config.shown, self.folder.path
        )
        gradients = federation.totals.gradients
        self.progress = Progress(config.scalars.rounds, federation.done, gradients)
        # After an interruption the files may have rows of later rounds.
        self._write_metrics()
        self._write_tables()
        for row in self.rows:
            self.logger.log(row)

    def _resume(self) -> None:
        checkpoint = self.checkpoints.load(self.federation.state)
        extension = None
        if checkpoint is None and not self.federation.group.any(self.forced):
            extension = extend(self.run, self.federation)
        if extension is not None:
            checkpoint = extension.checkpoint
        if checkpoint is None:
            return
        stored = checkpoint.progress
        self.continued_from = extension.run if extension else stored["continued_from"]
        self.federation.done = checkpoint.done
        self.federation.totals = Totals(**stored["totals"])
        self.federation.stop.resume(stored["stop"])
        self.earlier_seconds = stored["wall_time"]
        self.rows = stored["rows"]
        self.tables = stored["tables"]
        self.best_round = stored["best_round"]
        self.best_val_round = stored["best_val_round"]
        self.predictions = checkpoint.tensors
        if self.leader:
            whose = f" of the finished run {extension.run}" if extension else ""
            print(f"resuming after round {checkpoint.done}{whose}", flush=True)

    def add(self, record: Record) -> None:
        """Write a round."""
        settings = self.run.config.scalars
        last = record.round == settings.rounds
        broken_off = bool(record.diverged or record.stopped)
        self.complete = broken_off or last
        self.extensible = last and not broken_off
        self.stopped = record.stopped
        if not self.leader:
            return
        self._check_folder()
        if record.diverged:
            self.diverged = {"round": record.round, **asdict(record.diverged)}
        self._append("clients.csv", record.clients)
        if record.score is not None:
            if record.round % settings.eval.every:  # a run with more rounds would not do this
                self.without_last = self._progress(), dict(self.predictions)
            self._add_row(record, record.score)
        self.progress.show(record)

    def _add_row(self, record: Record, score: Score) -> None:
        row = _metrics_row(record, score)
        best = self._row(self.best_round)["test_accuracy"] if self.rows else -1.0
        if score.accuracy > best:
            self.best_round = record.round
            self.predictions["best"] = score.predictions.clone()  # files hold no shared memory
        if score.validation is not None:
            best = self._row(self.best_val_round)["val_accuracy"] if self.rows else -1.0
            if score.validation.accuracy > best:
                self.best_val_round = record.round
        self.predictions["final"] = score.predictions
        self.rows.append(row)
        self._write_metrics()
        self._append("local_tests.csv", score.clients)
        self.logger.log(row)

    def checkpoint(self, stopping: bool) -> None:
        """Write a checkpoint if one is due: every `checkpoint.every` rounds, and when stopping.

        All ranks must call this. A complete run has one only to be extended by more rounds.
        """
        done, settings = self.federation.done, self.run.config.scalars.checkpoint
        due = stopping or done % settings.every == 0
        if self.complete:
            due = settings.keep and self.extensible
        if due:
            progress, predictions = self.without_last or (self._progress(), self.predictions)
            self.checkpoints.save(done, self.federation.state, progress, predictions)

    def _progress(self) -> dict[str, Any]:
        """What has been written so far, but for the predictions."""
        return {
            "totals": asdict(self.federation.totals),
            "stop": self.federation.stop.progress(),
            "wall_time": self.wall_time,
            "rows": list(self.rows),
            "tables": dict(self.tables),
            "best_round": self.best_round,
            "best_val_round": self.best_val_round,
            "continued_from": self.continued_from,
        }

    def close(self) -> None:
        """Leave the terminal and the logger in order: the run was interrupted."""
        if self.leader:
            self.progress.close()
            self.logger.close()

    def finish(self) -> None:
        """Write the final files. With them the run needs no checkpoint any more."""
        self.federation.load_global()
        conformal = self.run.config.scalars.eval.conformal
        probabilities = self.federation.evaluator.softmax() if conformal else None
        if self.leader:
            self._write_results(probabilities)

    def _write_results(self, probabilities: Tensor | None) -> None:
        """Write the summary last, because a run with a summary is finished."""
        self.progress.close()
        self._check_folder()
        labels = self.federation.evaluator.labels.numpy()
        if probabilities is not None and not self.diverged:
            outputs = probabilities.numpy()
            self._write("softmax.npz", _npz(labels=labels, probabilities=outputs))
            table = coverage_table(outputs, labels, self.run.config.scalars.seed)
            self._write("conformal.csv", _csv(table))
        model = self.federation.model.state_dict()
        note = {"note": PERSONAL_NOTE} if self.run.algorithm.personal else None
        self._write("model.safetensors", save(model, metadata=note))
        predictions = {name: value.numpy() for name, value in self.predictions.items()}
        content = _npz(labels=labels, best_round=self.best_round, **predictions)
        self._write("predictions.npz", content)
        if self.rows:  # a run that diverges in its first round has none
            self._draw_curves()
        header = ",".join(FIRST_COLUMNS) + "\n"
        self._write("metrics.csv", _csv(self.rows) or header)
        self._write_tables()
        summary = {**self._results(), "digest": digest(model), **self._description()}
        stored = self.folder.with_checksums(summary)
        self._write(SUMMARY, json.dumps(stored, indent=2, allow_nan=False) + "\n")
        self.logger.finish(summary, self.folder.path / "partition.png")

    def _draw_curves(self) -> None:
        config = self.run.config
        title = f"{label(config)}, seed {config.scalars.seed}"
        if self.diverged:
            title += f": diverged in round {self.diverged['round']}"
        drawn(save_curves, self.folder.path / "curves.png", self.rows, title)

    def _results(self) -> dict[str, Any]:
        """A diverged run has no accuracy: tables show it as `*`."""
        if self.diverged:
            return {
                "status": "diverged",
                "diverged": self.diverged,
                "best_accuracy": None,
                "best_round": None,
                "final_accuracy": None,
                **self._validation_results(),
            }
        return {
            "status": "finished",
            "best_accuracy": self._row(self.best_round)["test_accuracy"],
            "best_round": self.best_round,
            "final_accuracy": self.rows[-1]["test_accuracy"],
            **self._validation_results(),
            **{name: value for name, value in self.rows[-1].items() if name.startswith("local_")},
        }

    def _validation_results(self) -> dict[str, Any]:
        """The best round by the validation set, and what the test set says of that round."""
        names = ("best_val_accuracy", "best_val_round", "accuracy_at_best_val")
        if self.run.data.val_y is None:
            return {}
        if self.diverged:
            return dict.fromkeys(names)
        row = self._row(self.best_val_round)
        values = (row["val_accuracy"], self.best_val_round, row["test_accuracy"])
        return dict(zip(names, values, strict=True))

    def _description(self) -> dict[str, Any]:
        """What a reader of the results must know, for summary.json."""
        run, data, scalars = self.run, self.run.data, self.run.config.scalars
        return {
            "label": label(run.config),
            "id": run.id,
            "series": run.series,
            "seed": scalars.seed,
            "rounds": self.federation.done,
            "kept_checkpoint": self._kept_checkpoint,
            "continued_from": self.continued_from,
            "stopped": self.stopped,
            "scoring": run.algorithm.scoring,
            "caveats": run.algorithm.caveats,
            "measured": self.federation.facts(),
            "data": {
                "name": run.data_name,
                "source": data.source,
                "note": data.note,
                "subset": run.config.data.subset,  # null = all examples
                "train_examples": len(data.train_y),
                "validation_examples": 0 if data.val_y is None else len(data.val_y),
                "test_examples": len(data.test_y),
                "classes": data.classes,
                "fingerprint": data.fingerprint(),
            },
            "model": {  # what its settings and the data leave open, for who builds it again
                "shape": data.shape,
                "classes": data.classes,
                "projection": run.algorithm.projection,
                "vocabulary": data.vocabulary,
            },
            "partition_hash": run.partition_hash(),
            "partition": {"draws": run.split.tries, "moved_to_reach_min_samples": run.split.moved},
            "heterogeneity": heterogeneity(data.train_y, data.classes, run.shards),
            "parameters": self.federation.model.size,
            "scale": scalars.scale,
            "device": run.device,
            "gpu": run.gpu or None,
            "machine": machine_name(),
            "kernels": run.kernels.name,
            "workers": self.workers,
            "threads": scalars.runtime.threads,
            "versions": versions(),
            **{f"git_{key}": value for key, value in source_commit().items()},
            "source_hash": source_hash(),
            "own_code": run.config.own_code,
            "wall_time": round(self.wall_time, 3),
            "train_seconds": round(self.federation.totals.seconds, 3),
        }

    @property
    def _kept_checkpoint(self) -> int | None:
        """The round after which the checkpoint was written that stays in the folder."""
        keep = self.extensible and self.run.config.scalars.checkpoint.keep
        return self.federation.done if keep else None

    @property
    def wall_time(self) -> float:
        return self.earlier_seconds + time.time() - self.started

    def _row(self, number: int) -> Row:
        return next(row for row in self.rows if row["round"] == number)

    def _check_folder(self) -> None:
        """A folder that somebody removed must not come back in part, as a finished run."""
        if not (self.folder.path / "config.yaml").is_file():
            raise WorkerFault(f"the run's folder was removed while it ran ({self.folder.path})")

    def _append(self, name: str, rows: list[Row]) -> None:
        if rows:
            added = _csv(rows, header=not self.tables[name])
            append(self.folder.path / name, added)
            self.tables[name] += added

    def _write_metrics(self) -> None:
        """As a whole: a reader might see half of a line that is appended."""
        self._write("metrics.csv", _csv(self.rows), durable=False)

    def _write_tables(self) -> None:
        for name, content in self.tables.items():
            if content:
                self._write(name, content)
            else:
                (self.folder.path / name).unlink(missing_ok=True)

    def _write(self, name: str, content: str | bytes, durable: bool = True) -> None:
        write_atomically(self.folder.path / name, content, durable)


def _metrics_row(record: Record, score: Score) -> Row:
    row: Row = {
        "round": record.round,
        "test_accuracy": score.accuracy,
        "test_loss": score.loss,
    }
    if score.spread is not None:
        row["test_accuracy_std"] = score.spread
    if score.validation is not None:
        row["val_accuracy"] = score.validation.accuracy
        row["val_loss"] = score.validation.loss
    row |= record.numbers | score.others
    return {**{key: row[key] for key in FIRST_COLUMNS}, **row}


def _csv(rows: list[Row], header: bool = True) -> str:
    """A table whose columns are those of its first row; no rows are no text."""
    if not rows:
        return ""
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


def _index_lists(clients: Iterable[np.ndarray]) -> str:
    return "[" + ",\n".join(str(own.tolist()) for own in clients) + "]\n"


def _class_table(counts: np.ndarray) -> str:
    """For every client, how many training examples of each class it has."""
    names = [f"class_{number}" for number in range(counts.shape[1])]
    rows = [
        {"client": client, **dict(zip(names, own, strict=True))}
        for client, own in enumerate(counts.tolist())
    ]
    return _csv(rows)
