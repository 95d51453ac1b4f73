"""The command line: overrides in, exit status out. Nothing imports it.

`main` has Hydra compose the configuration and start the jobs, one or those of a sweep. Each job is
a call of `Jobs.run`, perhaps in another process. Problems travel as exceptions; only this file
turns them into messages and an exit status.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fedbench.config import hydra_errors
from fedbench.config.environment import Values, hidden_by_name
from fedbench.config.own_code import add_folders
from fedbench.config.schema import Config, RuntimeSettings
from fedbench.config.validate import check, config_folder, short_names
from fedbench.core.caller import stop_with_the_caller
from fedbench.core.errors import (
    BAD_INPUT,
    FINISHED,
    INTERRUPTED,
    UNEXPECTED,
    BadInput,
    MachineFault,
    bad_value,
    spelled_out,
)
from fedbench.core.files import unreadable
from fedbench.core.machine import available_cores
from fedbench.core.terminal import escape_what_the_terminal_cannot_show, streams_without_readers
from fedbench.parallel.devices import pick_device
from fedbench.parallel.failures import WorkerFailure
from fedbench.parallel.processes import speaks, under_torchrun
from fedbench.parallel.ranks import AllLeave, this_rank
from fedbench.runs.identity import source_commit
from fedbench.runs.objective import check_direction, objective
from fedbench.runs.sweeps import (
    OUTCOME,
    Outcome,
    SweepCallback,
    concerns,
    severest,
    short_path,
    this_job,
)
from fedbench.train import run

RESUME = "the same command (without force=true) resumes from the last checkpoint"
SHOW_CURSOR = "\x1b[?25h"


class JobFailed(Exception):
    """A trial of a search that has no number. `hydra.sweeper.max_failure_rate` says whether the
    search continues.
    """


def main() -> None:
    """`fedbench ...`: see `fedbench --help`."""
    escape_what_the_terminal_cannot_show()
    with streams_without_readers():
        run_program()


def run_program() -> None:
    """Run the jobs of the command line, and end with their status."""
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    prepare_process()
    jobs = Jobs()
    statuses: list[int | None] = [call_hydra(jobs, wants_traceback)]
    sweep = SweepCallback.current
    if sweep is None:
        statuses += [outcome.status for outcome in jobs.outcomes.values()]
    else:
        statuses.append(end_sweep(sweep, jobs.outcomes, unbroken=statuses == [FINISHED]))
    if INTERRUPTED in statuses:
        if sys.stdout.isatty():
            print(SHOW_CURSOR, end="")  # a progress bar may have ended with a hidden cursor
        print_error(f"interrupted; {RESUME}")
    this_rank().leave(severest(statuses))


def prepare_process() -> None:
    """What must be set before Hydra starts."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    source_commit()  # read now: the files may change while jobs run
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, outside of runs
    stop_with_the_caller()
    SweepCallback.current = SweepCallback.run_folder = None


# Hydra, and the problems that concern no single job


def call_hydra(jobs: Jobs, wants_traceback: bool) -> int:
    """Have Hydra run the jobs. Returns the status of everything but the jobs themselves."""
    try:
        sys.argv[1:] = hydra_errors.options_before_overrides(sys.argv[1:])
        hydra_errors.check_choices(sys.argv[1:])
        refuse_under_torchrun(dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word))
        with scratch_folder_of_a_follower():
            start = hydra.main(
                version_base="1.3", config_path=str(config_folder()), config_name="config"
            )
            start(jobs.run)()
    except JobFailed:
        return FINISHED  # the job's outcome has the status
    except KeyboardInterrupt:
        return INTERRUPTED
    except AllLeave as error:
        if str(error):
            print_error(str(error))
        return error.status
    except BadInput as error:
        return refuse(str(error))
    except Exception as error:
        return explain_failure(error, SweepCallback.current, wants_traceback)
    return FINISHED


def explain_failure(error: Exception, sweep: SweepCallback | None, wants_traceback: bool) -> int:
    """Report what Hydra, a sweeper or a launcher raised, in one line where possible."""
    variables = sweep.variables if sweep is not None else []
    words = [*sys.argv[1:], *variables]
    if sweep is not None and sweep.cannot_write(error):
        return refuse(str(unwritable(*sweep.setting_of_folder(), error)), variables)
    if isinstance(error, OSError) and error.filename and not wants_traceback:
        folder = SweepCallback.run_folder
        if folder is not None and concerns(error, folder):
            return refuse(str(unwritable("hydra.run.dir", error.filename, error)))
        if is_configuration(error.filename):
            return refuse(str(unreadable(short_path(error.filename), error)), variables)
    if isinstance(error, (ValueError, *hydra_errors.CONFIGURATION_ERRORS)):
        return refuse(hydra_errors.explain(error, sys.argv[1:]), variables)
    if sweep is None or sweep.basic or wants_traceback:
        text = "".join(traceback.format_exception(error)).rstrip()
        print(hidden_by_name(text, words), file=sys.stderr, flush=True)
        return UNEXPECTED
    if sweep.stopping:
        return INTERRUPTED  # jobs that were stopped make launchers raise all kinds of errors
    launcher = sweep.launcher.rpartition(".")[2]
    reason = next(iter(str(error).splitlines()), "")
    print_error(
        f"{launcher} failed: {type(error).__name__}: {hidden_by_name(reason, words)}"
        " (HYDRA_FULL_ERROR=1 shows the traceback)"
    )
    return UNEXPECTED


def is_configuration(file: object) -> bool:
    """Whether Hydra reads it to compose a configuration: what it is can be seen by its name."""
    return str(file).endswith((".yaml", ".yml"))


def unwritable(key: str, folder: object, error: Exception) -> BadInput:
    reason = getattr(error, "strerror", None) or error
    return bad_value(key, folder, f"must be a folder that can be written ({reason})")


def refuse(reason: str, variables: Sequence[str] = ()) -> int:
    """Report bad input that concerns the whole program: no rank runs anything.

    Values of the variables that the command line names are hidden, and those of `variables`.
    """
    words = sys.argv[1:]
    shown = hidden_by_name(reason, [*words, *variables])
    print_error(this_rank().refuse(shown, waiting_time(words)))
    return BAD_INPUT


def waiting_time(words: list[str]) -> int:
    """How many seconds ranks wait for each other while there is no checked configuration."""
    given = [word.lstrip("+").partition("=") for word in words]
    texts = [value for key, _, value in given if key == "runtime.timeout"]
    if texts and re.fullmatch("[0-9]{1,7}", texts[-1]) and int(texts[-1]) > 0:
        return int(texts[-1])
    return RuntimeSettings.timeout


def refuse_under_torchrun(choices: Mapping[str, object]) -> None:
    """Under torchrun every rank runs every job, so no launcher or search may start its own."""
    if not under_torchrun():
        return
    usable = {"hydra/launcher": ("basic",), "hydra/sweeper": ("basic", "experiment_grid")}
    for group, names in usable.items():
        chosen = choices.get(group, "basic")
        if chosen not in names:
            raise BadInput(
                f"{group}={chosen}: must be basic under torchrun, whose ranks would each start"
                " their own"
            )


def check_working_directory(composed: DictConfig, chdir: bool) -> None:
    """Refuse a working directory for each job under torchrun, whose ranks would have other ones."""
    if under_torchrun() and chdir and not os.path.isabs(str(composed.results)):
        rule = "must be false under torchrun, unless results is an absolute path"
        raise bad_value("hydra.job.chdir", "true", rule)


@contextmanager
def scratch_folder_of_a_follower() -> Iterator[None]:
    """Of torchrun's ranks only the leader keeps Hydra's files; the others have a scratch folder."""
    if this_rank().leader:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="fedbench-") as folder:
        sys.argv += [f"hydra.sweep.dir={folder}/sweep", f"hydra.run.dir={folder}/run"]
        yield


# One job


class Jobs:
    """Runs jobs in this process and remembers how each of them ended."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}

    def run(self, composed: DictConfig) -> float | None:
        """Hydra's task function. Returns the number that a search optimises."""
        sweep = SweepCallback.current
        with streams_without_readers():  # a launcher's process has its own
            outcome = run_job(composed, sweep)
        self.outcomes[outcome.number] = outcome
        if this_rank().broken:  # no further job can be run without the other ranks
            raise AllLeave("", INTERRUPTED if outcome.status == INTERRUPTED else UNEXPECTED)
        if outcome.status == INTERRUPTED and (sweep is None or sweep.in_parent):
            raise KeyboardInterrupt  # ends a sweep, too
        searching = sweep is not None and "max_failure_rate" in HydraConfig.get().sweeper
        if outcome.status != FINISHED and searching:
            raise JobFailed(outcome.reason)
        return outcome.objective


def run_job(composed: DictConfig, sweep: SweepCallback | None) -> Outcome:
    """One job of a sweep, or the only one, in the process that its launcher chose.

    Every problem is reported at once and noted in the outcome, so that a sweep continues.
    """
    outcome = this_job()
    this_rank().hide = Values(composed).hidden
    try:
        if sweep is not None and not sweep.begin(outcome):
            outcome.status = INTERRUPTED
            outcome.reason = "the sweep was stopped before it began"
        else:
            train_job(composed, outcome, in_sweep=sweep is not None)
    except KeyboardInterrupt:  # Interrupted is one, too
        outcome.status = INTERRUPTED
        outcome.reason = "on request"
    except Exception as error:
        note_problem(problem_of(error, composed), outcome, in_sweep=sweep is not None)
    except AllLeave as error:
        outcome.status = error.status
        outcome.reason = str(error)
        raise
    finally:
        if sweep is not None:
            sweep.write(outcome)
    return outcome


def train_job(composed: DictConfig, outcome: Outcome, in_sweep: bool) -> None:
    """Check the configuration, run it, and note the result."""
    config = this_rank().together(lambda: checked(composed), composed_waiting_time(composed))
    try:
        stopping = run(config)
    finally:
        # Absolute: a job may have a working directory of its own (hydra.job.chdir).
        outcome.run = str(config.folder.absolute()) if config.folder else ""
    assert config.folder is not None
    outcome.objective = objective(config.scalars.objective, config.folder)
    outcome.status = FINISHED
    if stopping and in_sweep:  # this run is finished, but the sweep must stop
        outcome.status = INTERRUPTED
        outcome.reason = "after its last round"


def checked(composed: DictConfig) -> Config:
    """The configuration that Hydra composed, if it can be run; raises BadInput."""
    settings = HydraConfig.get()
    choices = dict(settings.runtime.choices)
    refuse_under_torchrun(choices)
    check_working_directory(composed, bool(settings.job.chdir))
    add_folders(
        source.path
        for source in settings.runtime.config_sources
        if source.provider == "command-line" and source.schema == "file"
    )
    try:
        config = check(composed, choices)
    except hydra_errors.CONFIGURATION_ERRORS as error:  # a reference to nothing
        raise BadInput(hydra_errors.explain(error, list(settings.overrides.task))) from error
    check_direction(config.scalars.objective, settings.sweeper)
    share_cores(config, settings.launcher)
    return config


def composed_waiting_time(composed: DictConfig) -> int:
    """The same, of a configuration that Hydra has composed and nobody has checked."""
    plain = OmegaConf.to_container(composed, resolve=False)
    runtime = plain.get("runtime") if isinstance(plain, dict) else None
    timeout = runtime.get("timeout") if isinstance(runtime, dict) else None
    return timeout if isinstance(timeout, int) and timeout > 0 else RuntimeSettings.timeout


def share_cores(config: Config, launcher: DictConfig) -> None:
    """Give each of joblib's jobs on this machine its part of the cores, unless workers are set."""
    runtime = config.scalars.runtime
    if runtime.workers is None and "n_jobs" in launcher and pick_device(runtime.device) == "cpu":
        cores = available_cores()
        jobs = launcher.n_jobs if launcher.n_jobs > 0 else max(1, cores + 1 + launcher.n_jobs)
        runtime.workers = max(1, cores // jobs)


@dataclass
class Problem:
    """Why a job failed: the exit status and one line, or also a traceback."""

    status: int
    reason: str
    traceback: str = ""  # printed in place of the reason

    def without(self, values: Values) -> Problem:
        """The same without values of the environment, which may be secrets."""
        return Problem(self.status, values.hidden(self.reason), values.hidden(self.traceback))


def problem_of(error: Exception, composed: DictConfig) -> Problem:
    """The problem that an exception of a job is."""
    if isinstance(error, BadInput):
        problem = Problem(BAD_INPUT, with_short_names(str(error), composed))
    elif isinstance(error, MachineFault):
        problem = Problem(UNEXPECTED, str(error))
    elif isinstance(error, WorkerFailure):  # its message is the worker's traceback
        text = str(error).rstrip()
        problem = Problem(UNEXPECTED, text.splitlines()[-1], text)
    else:
        last_line = traceback.format_exception_only(error)[-1].strip()
        text = "".join(traceback.format_exception(error)).rstrip()
        problem = Problem(UNEXPECTED, last_line, text)
    return problem.without(Values(composed))


def with_short_names(message: str, composed: DictConfig) -> str:
    """Name the key that a user typed, `algo.mu`, instead of the setting that refers to it."""
    for place, name in short_names(composed).items():
        message = message.replace(f"{place}=", f"{name}=")
    return message


def note_problem(problem: Problem, outcome: Outcome, in_sweep: bool) -> None:
    """Print a problem, and keep it for the list at the end of a sweep."""
    outcome.status = problem.status
    outcome.reason = spelled_out(problem.reason)
    name = f"job {outcome.number}: " if in_sweep else ""
    text = problem.traceback or outcome.reason
    # Bad input is the same on every rank; other problems may concern one of them alone.
    if problem.status != BAD_INPUT or speaks():
        print(f"fedbench: {name}{text}", file=sys.stderr, flush=True)


# The end of a sweep


def end_sweep(sweep: SweepCallback, here: dict[int, Outcome], unbroken: bool) -> int:
    """Report the jobs that did not finish and what a search found. Returns the sweep's status.

    `here` are the outcomes of jobs in this process; those of others are in files. A sweep that ran
    no job leaves no files.
    """
    if not unbroken and not sweep.basic:
        try:
            sweep.stop_and_wait(print_error)
        except KeyboardInterrupt:
            return INTERRUPTED
    outcomes = {**sweep.outcomes(), **here} if this_rank().leader else here
    elsewhere = any(one.log for one in outcomes.values() if one.status != FINISHED)
    nothing_done = all(one.status == BAD_INPUT for one in outcomes.values())
    if nothing_done and not elsewhere and this_rank().leader:
        sweep.tidy()
    may_be_empty = sweep.sweeper.endswith(".GridSweeper")  # all runs of a table may be finished
    if not outcomes and unbroken and not may_be_empty:
        print_error(f"{' '.join(sys.argv[1:])}: a sweep without jobs; a list of values is empty")
        return BAD_INPUT
    for one in outcomes.values():
        if one.status == FINISHED and one.log:  # the job printed this into its log
            print(f"run: {short_path(one.run)}", flush=True)
    if outcomes and this_rank().leader and sweep.folder.is_dir():
        show_table(sweep.folder, list(outcomes.values()))
    list_failed_jobs(list(outcomes.values()), sweep, elsewhere)
    show_search(sweep)
    return severest([one.status for one in outcomes.values()])


def show_table(folder: Path, outcomes: list[Outcome]) -> None:
    """Print a table of the jobs, and write it with a picture of their curves."""
    from fedbench.runs.sweep_report import report_sweep  # pandas is slow to import

    try:
        print(f"\n{report_sweep(folder, outcomes)}\nsweep: {short_path(folder)}", flush=True)
    except OSError as error:
        print_error(f"{short_path(folder)}: no table was written ({error.strerror or error})")


def list_failed_jobs(outcomes: list[Outcome], sweep: SweepCallback, elsewhere: bool) -> None:
    """Which jobs did not finish, why, and where their logs are. `main` reports interruptions."""
    failed = [one for one in outcomes if one.status not in (FINISHED, INTERRUPTED)]
    killed = any(one.status is None for one in failed)  # such a job could not report itself
    if not failed or not (elsewhere or killed or len(outcomes) > 1):
        return
    common = set.intersection(*(set(one.words) for one in outcomes)) if len(outcomes) > 1 else set()
    for one in failed:
        print_error(one.describe(common))
    details = ""
    if sweep.folder.is_dir():
        details = f"; {short_path(sweep.folder)}/<job>/{OUTCOME} has the details"
    print_error(f"{len(failed)} of {len(outcomes)} jobs did not finish{details}")


def show_search(sweep: SweepCallback) -> None:
    """Print what a search found; Hydra's plugins write it into the sweep's folder."""
    file = sweep.folder / "optimization_results.yaml"
    if file.is_file() and this_rank().leader:
        found: Any = yaml.safe_load(file.read_text())
        print(f"search: {found}\nsearch: {short_path(file)}", flush=True)


def print_error(message: str) -> None:
    """Print one line, on one rank of each machine."""
    if speaks():
        print(f"fedbench: {spelled_out(message)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
