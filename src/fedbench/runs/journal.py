"""What is written while a run goes on: the leader's books, and checkpoints, to which every rank
contributes.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict
from pathlib import Path

from fedbench.core.files import remove_leftovers
from fedbench.runs.checkpoint import CheckpointStore, remove_checkpoints
from fedbench.runs.folder import DAMAGED, label
from fedbench.runs.parts import Parts
from fedbench.runs.reporting import summary_facts
from fedbench.runs.writer import Recorder
from fedbench.training.federation import Federation
from fedbench.training.round_metrics import Record, Totals

PERSONAL_NOTE = "clients keep a part of their models; here it is the clients' weighted mean"


def clean(folder: Path) -> None:
    """Remove what a finished run no longer needs, also when an earlier process was killed before it
    could do so.
    """
    remove_checkpoints(folder)
    remove_leftovers(folder)
    shutil.rmtree(folder / DAMAGED, ignore_errors=True)  # of which there is a whole one now


class Journal:
    def __init__(self, parts: Parts, federation: Federation, workers: int):
        self.parts, self.federation, self.workers = parts, federation, workers
        self.started, self.earlier = time.time(), 0.0  # seconds of the attempts before this one
        leader = federation.group.leader
        self.store = CheckpointStore(
            parts.folder.path, federation.group, parts.origin() if leader else {}
        )
        labels = federation.evaluator.labels
        self.recorder = (
            Recorder(parts.folder, labels, federation.settings.rounds) if leader else None
        )

    @property
    def wall_time(self) -> float:
        return self.earlier + time.time() - self.started

    def open(self) -> None:
        """Go on from the newest checkpoint, if there is one, and begin to write."""
        parts, federation = self.parts, self.federation
        checkpoint = self.store.load(federation.state)
        if checkpoint is not None:
            federation.done, federation.totals = (
                checkpoint.done,
                Totals(**checkpoint.books["totals"]),
            )
            self.earlier = checkpoint.books["wall_time"]
        if self.recorder is None:
            return
        if checkpoint is not None:
            self.recorder.restore(checkpoint.books, checkpoint.extra)
            print(f"resuming after round {checkpoint.done}", flush=True)
        tracker = parts.config.logger.start(
            parts.id, label(parts.config), parts.config.shown, parts.folder.path
        )
        self.recorder.start(tracker, federation.done)

    def add(self, record: Record) -> None:
        if self.recorder is not None:
            self.recorder.add(record)

    def save_checkpoint(self) -> None:
        books = {"totals": asdict(self.federation.totals), "wall_time": self.wall_time}
        extra = {}
        if self.recorder is not None:
            books |= self.recorder.books()
            extra = self.recorder.tensors()
        self.store.save(self.federation.done, self.federation.state, books, extra)

    def close(self) -> None:
        """The run was interrupted."""
        if self.recorder is not None:
            self.recorder.close()

    def finish(self) -> None:
        """The final files; with them the checkpoints have done their duty, and `clean` may remove
        them.
        """
        self.federation.load_global()
        scalars = self.parts.config.scalars
        probabilities = self.federation.evaluator.softmax() if scalars.eval.conformal else None
        if self.recorder is not None and probabilities is not None and not self.recorder.diverged:
            self.recorder.write_conformal(probabilities, scalars.seed)
        if self.recorder is not None:
            facts = summary_facts(self.parts, self.federation, self.workers, self.wall_time)
            note = PERSONAL_NOTE if self.parts.algorithm.personal else ""
            self.recorder.finish(self.federation.model.state_dict(), note, facts)
