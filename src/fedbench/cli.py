"""The command line: words in, exit status out. Nothing imports it."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fedbench.config import hydra_errors as messages
from fedbench.config.environment import Values, hidden_by_name
from fedbench.config.schema import RuntimeSettings
from fedbench.config.validate import Config, check, config_folder, short_names
from fedbench.core.errors import (
    BAD_INPUT,
    FINISHED,
    INTERRUPTED,
    UNEXPECTED,
    BadInput,
    bad_value,
    spelled_out,
)
from fedbench.core.streams import make_usable
from fedbench.parallel.failures import MachineFault, WorkerFailure
from fedbench.parallel.interrupt import Interrupted
from fedbench.parallel.processes import speaks, under_torchrun
from fedbench.parallel.ranks import AllLeave, this_rank
from fedbench.runs.objective import check_direction, objective
from fedbench.runs.source import source_commit
from fedbench.runs.sweeps import OUTCOME, Outcome, SweepCallback, severest, short_path, this_job
from fedbench.train import run

GO_ON = "the same command (without force=true) goes on from the last checkpoint"
STOPPED = "the sweep was stopped before it began"


class JobFailed(Exception):
    """A trial of a search that has no number. `hydra.sweeper.max_failure_rate` says whether the
    search goes on.
    """


def job(composed: DictConfig) -> Outcome:
    """One job of a sweep, or the only one, in whatever process its launcher chose. It reports, and
    never raises.
    """
    sweep, outcome = SweepCallback.current, this_job()
    try:
        if sweep is None or sweep.begin(outcome):
            attempt(composed, outcome, in_sweep=sweep is not None)
        else:
            outcome.status, outcome.reason = INTERRUPTED, STOPPED
    except (Interrupted, KeyboardInterrupt):
        outcome.status, outcome.reason = INTERRUPTED, "on request"
    if sweep is not None:
        sweep.write(outcome)
    return outcome


def attempt(composed: DictConfig, outcome: Outcome, in_sweep: bool) -> None:
    """Check, run, and note how it ended. A failed job is reported at once and does not end a
    sweep.
    """
    name = f"job {outcome.number}: " if in_sweep else ""
    values: Values | None = None
    aliases: dict[str, str] = {}
    config: Config | None = None

    def end(status: int, message: str, *, details: str = "", on_every_rank: bool = False) -> None:
        hidden = values.hidden if values else str
        outcome.status, outcome.reason = status, spelled_out(hidden(message))
        complain(name + hidden(details or message), on_every_rank, raw=bool(details))

    try:
        values, aliases = Values(composed), short_names(composed)
        config = this_rank().together(lambda: checked(composed), waiting_time(composed))
        stopping = run(config)
        outcome.objective = objective(config.scalars.objective, config.folder)
        if stopping and in_sweep:  # this run is done, but others were to follow
            outcome.status, outcome.reason = INTERRUPTED, "after its last round"
        else:
            outcome.status = FINISHED
    except Interrupted:
        raise
    except BadInput as error:
        end(BAD_INPUT, in_users_words(str(error), aliases))
    except MachineFault as error:
        end(UNEXPECTED, str(error), on_every_rank=True)
    except WorkerFailure as error:  # with the worker's traceback
        last = str(error).rstrip().splitlines()[-1]
        end(UNEXPECTED, last, details=str(error).rstrip(), on_every_rank=True)
    except Exception as error:
        last = traceback.format_exception_only(error)[-1].strip()
        end(UNEXPECTED, last, details=traceback.format_exc().rstrip(), on_every_rank=True)
    finally:
        if config is not None and config.folder is not None:
            outcome.run = str(config.folder)


def checked(composed: DictConfig) -> Config:
    """What Hydra composed, as a configuration that can be run; raises BadInput."""
    settings = HydraConfig.get()
    choices = dict(settings.runtime.choices)
    refuse_under_torchrun(choices)
    try:
        config = check(composed, choices)
    except messages.CONFIGURATION_ERRORS as error:  # an interpolation that leads nowhere
        raise BadInput(messages.explain(error, list(settings.overrides.task))) from error
    check_direction(config.scalars.objective, settings.sweeper)
    share_cores(config, settings.launcher)
    return config


def waiting_time(composed: DictConfig) -> int:
    """How long ranks wait for each other while nobody knows yet whether the configuration is
    right.
    """
    runtime = OmegaConf.to_container(composed, resolve=False).get("runtime")
    timeout = runtime.get("timeout") if isinstance(runtime, dict) else None
    return timeout if isinstance(timeout, int) and timeout > 0 else RuntimeSettings.timeout


def share_cores(config: Config, launcher: DictConfig) -> None:
    """joblib runs several jobs at once on this machine: each gets its part of the cores, unless it
    asks for more.
    """
    if config.scalars.runtime.workers is None and "n_jobs" in launcher:
        cores = len(os.sched_getaffinity(0))
        jobs = launcher.n_jobs if launcher.n_jobs > 0 else max(1, cores + 1 + launcher.n_jobs)
        config.scalars.runtime.workers = max(1, cores // jobs)


def in_users_words(message: str, aliases: dict[str, str]) -> str:
    """Name the short key that a person typed, `algo.mu`, instead of the place to which it leads."""
    for place, name in aliases.items():
        message = message.replace(f"{place}=", f"{name}=")
    return message


def complain(message: str, on_every_rank: bool = False, raw: bool = False) -> None:
    """One line, unless it is `raw`: a traceback."""
    if on_every_rank or speaks():
        text = message if raw else spelled_out(message)
        print(f"fedbench: {text}", file=sys.stderr, flush=True)


def refuse(reason: str) -> int:
    """Bad input of the program as a whole: there is no run, on any rank."""
    complain(this_rank().refuse(reason, RuntimeSettings.timeout))
    return BAD_INPUT


def main() -> None:
    """`fedbench ...`: see `fedbench --help`."""
    make_usable()
    # Let errors through to here, where they become one line.
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"
    os.environ.setdefault(
        "PYTORCH_NVML_BASED_CUDA_CHECK", "1"
    )  # asking for a GPU must not spoil the fork
    source_commit()  # now, and not when the files may have changed
    sys.argv[1:] = messages.options_first(sys.argv[1:])
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # before and between runs it ends all, like Ctrl-C
    SweepCallback.current = None
    outcomes: dict[int, Outcome] = {}  # of the jobs in this process

    def task(composed: DictConfig) -> float | None:
        outcome = job(composed)
        outcomes[outcome.number] = outcome
        if this_rank().broken:  # no other job can be done without the others
            this_rank().leave(UNEXPECTED)
        sweep = SweepCallback.current
        if outcome.status == INTERRUPTED and (sweep is None or sweep.in_parent):
            raise KeyboardInterrupt  # ends a sweep, too
        if outcome.status != FINISHED and "max_failure_rate" in HydraConfig.get().sweeper and sweep:
            raise JobFailed(outcome.reason)
        return outcome.objective

    try:
        messages.check_torchrun()
    except BadInput as error:
        complain(str(error), on_every_rank=True)
        sys.exit(BAD_INPUT)
    statuses = [call_hydra(task, wants_traceback)]
    sweep = SweepCallback.current
    if sweep is None:
        statuses += [outcome.status for outcome in outcomes.values()]
    else:
        statuses.append(end_sweep(sweep, outcomes, unbroken=statuses == [FINISHED]))
    if INTERRUPTED in statuses:
        if sys.stdout.isatty():
            print("\x1b[?25h", end="")  # a progress bar may have died with the cursor hidden
        complain(f"interrupted; {GO_ON}")
    this_rank().leave(severest(statuses))


def call_hydra(task: Any, wants_traceback: bool) -> int:
    """Have Hydra run the job or jobs. Returns the status of what is no job's: the words, the sweep,
    the launcher.
    """
    try:
        messages.check_words(sys.argv[1:])
        refuse_under_torchrun(dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word))
        with scratch_of_a_follower():
            hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(
                task
            )()
    except JobFailed:
        return FINISHED  # its outcome has the status
    except KeyboardInterrupt:
        return INTERRUPTED
    except AllLeave as error:
        complain(str(error))
        return error.status
    except BadInput as error:
        return refuse(str(error))
    except Exception as error:
        return explain_failure(error, SweepCallback.current, wants_traceback)
    return FINISHED


def explain_failure(error: Exception, sweep: SweepCallback | None, wants_traceback: bool) -> int:
    """What Hydra, a sweeper or a launcher raised, in one line where that can be."""
    if sweep is not None and sweep.cannot_write(error):
        reason = getattr(error, "strerror", None) or error
        return refuse(
            str(
                bad_value(
                    "results", sweep.results, f"a folder that can be written is allowed ({reason})"
                )
            )
        )
    if isinstance(error, (ValueError, *messages.CONFIGURATION_ERRORS)):  # ValueError: `group=null`
        return refuse(hidden_by_name(messages.explain(error, sys.argv[1:]), sys.argv[1:]))
    if sweep is None or sweep.basic or wants_traceback:
        traceback.print_exception(error)
        return UNEXPECTED
    if sweep.stopping:
        return INTERRUPTED  # jobs and launchers that end in the middle end somehow
    launcher, reason = sweep.launcher.rpartition(".")[2], next(iter(str(error).splitlines()), "")
    kind = type(error).__name__
    complain(f"{launcher} gave up: {kind}: {reason} (HYDRA_FULL_ERROR=1 shows the traceback)")
    return UNEXPECTED


def end_sweep(sweep: SweepCallback, here: dict[int, Outcome], unbroken: bool) -> int:
    """Name the jobs that did not finish, show what a search found, and leave nothing of a sweep
    that did nothing.
    """
    if not unbroken and not sweep.basic:
        try:
            sweep.stop_and_wait(complain)
        except KeyboardInterrupt:
            return INTERRUPTED
    outcomes = {**sweep.outcomes(), **here} if this_rank().leader else here
    bad = [one for one in outcomes.values() if one.status != FINISHED]
    elsewhere = any(one.log for one in bad)
    nothing_done = all(one.status == BAD_INPUT for one in outcomes.values())
    if nothing_done and not elsewhere and this_rank().leader:
        sweep.tidy()
    if (
        not outcomes and unbroken and not sweep.sweeper.endswith(".GridSweeper")
    ):  # whose tables may need no run
        complain(f"{' '.join(sys.argv[1:])}: a sweep without jobs; a list of values is empty")
        return BAD_INPUT
    for one in outcomes.values():
        if one.status == FINISHED and one.log:  # it said so elsewhere
            print(f"run: {one.run}", flush=True)
    told = [one for one in bad if one.status != INTERRUPTED]  # those, one line is for all
    silent = any(
        one.status is None for one in told
    )  # its process was killed: it said nothing itself
    if told and (elsewhere or silent or len(outcomes) > 1):
        list_jobs(told, list(outcomes.values()), sweep)
    show_search(sweep)
    return severest([one.status for one in outcomes.values()])


def list_jobs(bad: list[Outcome], outcomes: list[Outcome], sweep: SweepCallback) -> None:
    """Which jobs did not finish, why, and where their logs are."""
    shared = set.intersection(*(set(one.words) for one in outcomes))
    for one in bad:
        complain(one.told(shared if len(outcomes) > 1 else set()))
    where = (
        f"; {short_path(sweep.folder)}/<job>/{OUTCOME} has the details"
        if sweep.folder.is_dir()
        else ""
    )
    complain(f"{len(bad)} of {len(outcomes)} jobs did not finish{where}")


def show_search(sweep: SweepCallback) -> None:
    """What a sweeper that searches found; Hydra's plugins write it into the sweep's folder."""
    file = sweep.folder / "optimization_results.yaml"
    if file.is_file() and this_rank().leader:
        found = yaml.safe_load(file.read_text())
        print(f"search: {found}\nsearch: {short_path(file)}", flush=True)


def refuse_under_torchrun(choices: Mapping[str, object]) -> None:
    """Every rank runs every job: one that starts them elsewhere, or searches for itself, would
    leave the others.
    """
    if not under_torchrun():
        return
    for group, allowed in (
        ("hydra/launcher", ("basic",)),
        ("hydra/sweeper", ("basic", "experiment_grid")),
    ):
        chosen = choices.get(group, "basic")
        if chosen not in allowed:
            raise BadInput(
                f"{group}={chosen}: must be basic under torchrun, whose ranks would each start"
                " their own"
            )


@contextmanager
def scratch_of_a_follower() -> Iterator[None]:
    """Of torchrun's ranks, the leader alone writes Hydra's files: the others have a folder that
    goes with them.
    """
    if this_rank().leader:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="fedbench-") as folder:
        sys.argv += [f"hydra.sweep.dir={folder}/sweep", f"hydra.run.dir={folder}/run"]
        yield


if __name__ == "__main__":
    main()
