"""A run with more rounds continues from a finished one, which kept its last checkpoint.

Both are the same runs but for the number of rounds, on which nothing in them may depend. The
shorter run scored its last round, also where `eval.every` did not ask for it; its checkpoint is
that of a run that did not, so that the longer run equals one that was made in one go.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedbench.parallel.group import Group
from fedbench.runs.checkpoint import Checkpoint, CheckpointStore, kept_checkpoints, origin_of
from fedbench.runs.folder import RunFolder, ends_at_its_last_round
from fedbench.runs.prepared import RUN_ID, SERIES, PreparedRun
from fedbench.training.federation import Federation


@dataclass
class Extension:
    """A finished run that is extended, and the checkpoint that it kept."""

    run: str  # its id
    checkpoint: Checkpoint


def extend(run: PreparedRun, federation: Federation) -> Extension | None:
    """Restore the checkpoint of the longest finished run that this one extends, if there is one.

    All ranks must call this.
    """
    group, runs = federation.group, run.folder.path.parent
    origin = {name: value for name, value in run.origin().items() if name != RUN_ID}
    done, name = _longest(run, group, origin)
    done, name = group.share(done), group.gather_text(name)[0]
    if not done:
        return None
    store = CheckpointStore(runs / name, group, origin)
    return Extension(name, store.read(done, federation.state))


def _longest(run: PreparedRun, group: Group, origin: dict[str, str]) -> tuple[int, str]:
    """The round of the checkpoint and the id of the run that kept it; round 0: there is none.

    One line says why a run that is there cannot be extended. The leader alone looks.
    """
    nothing = 0, "-" * len(run.id)  # ranks exchange texts of one length
    reasons = []
    for done, checkpoint in reversed(_kept(run) if group.leader else []):
        name = checkpoint.parent.name
        reason = CheckpointStore(checkpoint.parent, group, origin).problem(checkpoint)
        if run.algorithm.uses_rounds:
            reason = _uses_rounds(run)
        if not reason:
            return done, name
        reasons.append(f"not after round {done} of run {name}: {reason}")
    if group.leader and not reasons:
        reasons = _without_checkpoint(run)
    if reasons:
        print(f"this run starts anew, {reasons[0]}", flush=True)
    return nothing


def _uses_rounds(run: PreparedRun) -> str:
    return f"algo={run.algorithm.name} depends on the number of rounds"


def _without_checkpoint(run: PreparedRun) -> list[str]:
    """Why the longest finished run with the same settings and fewer rounds cannot be extended."""
    summaries = [
        RunFolder(folder).finished() or {}
        for folder in run.folder.path.parent.iterdir()
        if folder.is_dir() and folder != run.folder.path
    ]
    fewer = [
        (summary["rounds"], summary["id"])
        for summary in summaries
        if summary.get("series") == run.series
        and ends_at_its_last_round(summary)
        and summary["rounds"] < run.config.scalars.rounds
    ]
    if not fewer:
        return []
    done, name = max(fewer)
    reason = "it kept no checkpoint (checkpoint.keep=true keeps it)"
    if run.algorithm.uses_rounds:
        reason = _uses_rounds(run)
    return [f"not after round {done} of run {name}: {reason}"]


def _kept(run: PreparedRun) -> list[tuple[int, Path]]:
    """The checkpoints of finished runs with the same settings and fewer rounds, in this order.

    Somebody's copy of a run, under another name, is left alone.
    """
    found = []
    for folder in run.folder.path.parent.iterdir():
        for done, checkpoint in kept_checkpoints(folder):
            origin = origin_of(checkpoint)
            same = (origin.get(SERIES), origin.get(RUN_ID)) == (run.series, folder.name)
            if same and done < run.config.scalars.rounds:
                summary = RunFolder(folder).finished() or {}
                if summary.get("kept_checkpoint") == done:
                    found.append((done, checkpoint))
    return sorted(found)
