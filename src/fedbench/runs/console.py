"""What a person sees: the header of a run, its progress, and the result in the last lines."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fedbench.parallel.devices import own_gpu
from fedbench.runs.folder import RunFolder, ends_at_its_last_round
from fedbench.runs.identity import label, source_commit, source_hash, versions
from fedbench.runs.prepared import PreparedRun
from fedbench.training.round_metrics import Record


def print_header(run: PreparedRun, workers: int) -> None:
    """Say what is about to run."""
    config, data, model = run.config, run.data, run.flat
    scale = f"  scale {config.scalars.scale}" if config.scalars.scale else ""
    print(f"{label(config)}  seed {config.scalars.seed}  id {run.id}{scale}")
    known = [data.note] if data.source in data.note else [data.source, data.note]
    validation = "" if data.val_y is None else f", {len(data.val_y):,} validation"
    examples = f"{len(data.train_y):,} training{validation} and {len(data.test_y):,} test examples"
    print(f"data: {run.data_name} ({'; '.join(filter(None, known))}), {examples}")
    last = ", ".join(layer.name for layer in model.layers[-2:])
    print(f"model: {model.size:,} parameters in {len(model.layers)} layers (the last two: {last})")
    held_out = sum(map(len, run.split.local_tests or []))
    own_tests = f", {held_out:,} examples held out as the clients' own tests" if held_out else ""
    print(f"clients: {len(run.shards)}, partition {run.partition_hash()}{own_tests}")
    for caveat in run.algorithm.caveats:
        print(f"note: {caveat}")
    if config.own_code:
        modules = ", ".join(f"{name} ({code})" for name, code in config.own_code.items())
        print(f"own code: {modules}")
    print(f"software: {_software()}")
    threads = _counted(config.scalars.runtime.threads, "thread")
    gpu = f" ({own_gpu()})" if run.device == "cuda" else ""
    kernels = ", native kernels" if run.kernels.name == "native" else ""
    if run.kernels.reason:
        kernels = f", torch kernels ({run.kernels.reason})"
    work = f"{_counted(workers, 'worker')}, {threads} each{kernels}"
    print(f"running on {run.device}{gpu}, {work}", flush=True)


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}{'s' if number > 1 else ''}"


def _software() -> str:
    """Versions, and the commit of the code, where there is one."""
    source = source_commit()
    commit = "no commit known"
    if source["commit"]:
        changes = {
            True: " with uncommitted changes",
            False: "",
            None: " (uncommitted changes: unknown)",
        }
        commit = f"commit {source['commit'][:10]}{changes[source['dirty']]}"
    return ", ".join([*(f"{name} {version}" for name, version in versions().items()), commit])


class Progress:
    """Round, accuracy, throughput and time left: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, rounds: int, done: int, gradients: int):
        self.rounds = rounds
        self.first = done
        self.first_gradients = gradients  # those of the rounds before this process
        self.started = time.perf_counter()
        self.accuracy = ""
        self.bar = _start_bar(rounds, done) if sys.stdout.isatty() else None

    def show(self, record: Record) -> None:
        if record.score is not None:
            self.accuracy = f"{100 * record.score.accuracy:.2f} %"
        rate = self._rate(record)
        if self.bar is not None:
            task = self.bar.task_ids[0]
            self.bar.update(task, completed=record.round, accuracy=self.accuracy, rate=rate)
        elif record.score is not None:
            line = f"round {record.round}/{self.rounds}  accuracy {self.accuracy}"
            line += f"  train loss {record.numbers['train_loss']:.4f}"
            print(f"{line}  {rate}  {self._time_left(record.round)} left", flush=True)

    def _rate(self, record: Record) -> str:
        """Training examples per second, since this process began."""
        gradients = record.numbers["gradients"] - self.first_gradients
        return f"{gradients / (time.perf_counter() - self.started):,.0f} samples/s"

    def _time_left(self, done: int) -> str:
        seconds_a_round = (time.perf_counter() - self.started) / max(done - self.first, 1)
        seconds = int(seconds_a_round * (self.rounds - done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def _start_bar(rounds: int, done: int) -> Bar:
    bar = Bar(
        TextColumn("round"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("accuracy {task.fields[accuracy]}  {task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    bar.add_task("rounds", total=rounds, completed=done, accuracy="", rate="")
    bar.start()
    return bar


def print_result(folder: RunFolder, skipped: bool, keep: bool) -> None:
    """Say how a finished run ended; the last line, `run: <folder>`, is for other programs.

    `keep`: whether its last checkpoint is wanted, for runs with more rounds.
    """
    summary = folder.finished()
    if summary is None:
        raise FileNotFoundError(f"{folder.path}: somebody changed the finished run")
    if skipped:
        print("this run is finished already (force=true runs it again)")
        if keep and summary.get("kept_checkpoint") is None and ends_at_its_last_round(summary):
            print("it kept no checkpoint; checkpoint.keep=true needs force=true here")
        made_by = summary.get("source_hash", "unknown")
        if made_by != source_hash():
            now = f"{made_by}, now {source_hash()}"
            print(f"it was made by other code of fedbench (hash of the source: {now})")
    print(_result(summary))
    if "local_before_accuracy" in summary:
        print(_local_result(summary))
    print(f"run: {folder.path}", flush=True)


def _result(summary: dict[str, Any]) -> str:
    if summary["status"] == "diverged":
        diverged = summary["diverged"]
        layer = f", layer {diverged['layer']}" if diverged["layer"] else ""
        step = ""
        if diverged.get("step"):
            step = f", after local step {diverged['step']} (a batch of {diverged['batch']})"
        return f"diverged in round {diverged['round']}: {diverged['cause']}{layer}{step}"
    data = summary["data"]
    note = f" on a {data['note']}" if data["source"] == "synthetic" else ""
    final = f"final {100 * summary['final_accuracy']:.2f} %"
    best = f"best {100 * summary['best_accuracy']:.2f} % (round {summary['best_round']})"
    chosen = ""
    if summary.get("best_val_round") is not None:
        chosen = f"{100 * summary['accuracy_at_best_val']:.2f} % in the best round by validation"
        chosen = f", {chosen} (round {summary['best_val_round']})"
    early = ""
    if summary.get("stopped"):
        early = f"; stop.{summary['stopped']} ended it after round {summary['rounds']}"
    return f"accuracy{note}: {final}, {best}{chosen}, scored: {summary['scoring']}{early}"


def _local_result(summary: dict[str, Any]) -> str:
    """Of the last round: the mean over clients, each on its own held-out examples."""
    before, after = (
        f"{100 * summary[f'local_{stage}_accuracy']:.2f} %" for stage in ("before", "after")
    )
    return f"clients' own tests: {before} as received, {after} after local training (client mean)"
