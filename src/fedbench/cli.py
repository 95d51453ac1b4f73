"""The command line: words in, exit status out. Nothing imports it."""

from __future__ import annotations

import os
import signal
import sys
import traceback

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fedbench import guard, messages
from fedbench.config import Config, check, config_folder, short_names
from fedbench.errors import BAD_INPUT, FINISHED, INTERRUPTED, UNEXPECTED, BadInput, bad_value, spelled_out
from fedbench.faults import MachineFault, WorkerFailure
from fedbench.interrupt import Interrupted
from fedbench.parallel import speaks
from fedbench.ranks import AllLeave, this_rank
from fedbench.settings import RuntimeSettings
from fedbench.source import source_commit
from fedbench.streams import make_usable
from fedbench.train import run

statuses: list[int] = []


def job(composed: DictConfig) -> None:
    """One job of a sweep, or the only one. A failed job is told at once and does not end a sweep."""
    aliases: dict[str, str] = {}
    try:
        aliases = short_names(composed)
        timeout = waiting_time(OmegaConf.select(composed, "runtime.timeout", default=None))
        stopping = run(this_rank().together(lambda: checked(composed), timeout))
        statuses.append(FINISHED)
        if stopping and HydraConfig.get().mode == RunMode.MULTIRUN:  # this run is done, but others were to follow
            raise Interrupted
    except BadInput as error:
        complain(in_users_words(str(error), aliases))
        statuses.append(BAD_INPUT)
    except (Interrupted, KeyboardInterrupt):
        statuses.append(INTERRUPTED)
        raise KeyboardInterrupt from None  # ends a sweep, too
    except MachineFault as error:
        complain(str(error), on_every_rank=True)
        statuses.append(UNEXPECTED)
    except WorkerFailure as error:
        print(f"fedbench: {str(error).rstrip()}", file=sys.stderr, flush=True)  # with the worker's traceback
        statuses.append(UNEXPECTED)
    except Exception:
        traceback.print_exc()
        statuses.append(UNEXPECTED)
    if this_rank().broken:  # no other job can be done without the others
        this_rank().leave(UNEXPECTED)


def checked(composed: DictConfig) -> Config:
    try:
        return check(composed, dict(HydraConfig.get().runtime.choices))
    except messages.CONFIGURATION_ERRORS as error:  # an interpolation that leads nowhere
        raise BadInput(messages.explain(error, sys.argv[1:])) from error


def waiting_time(timeout: object) -> int:
    """How long ranks wait for each other before the configuration is known to be right."""
    return timeout if isinstance(timeout, int) and timeout > 0 else RuntimeSettings.timeout


def in_users_words(message: str, aliases: dict[str, str]) -> str:
    """Name the short key that a person typed, `algo.mu`, instead of the place to which it leads."""
    for place, name in aliases.items():
        message = message.replace(f"{place}=", f"{name}=")
    return message


def complain(message: str, on_every_rank: bool = False) -> None:
    if on_every_rank or speaks():
        print(f"fedbench: {spelled_out(message)}", file=sys.stderr, flush=True)


def main() -> None:
    """`fedbench ...`: see `fedbench --help`."""
    make_usable()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here, where they become one line
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for a GPU must not spoil the fork
    source_commit()  # now, and not when the files may have changed
    sys.argv[1:] = messages.options_first(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # before and between runs it ends all, like Ctrl-C
    guard.install()
    try:
        messages.check_torchrun()
    except BadInput as error:
        complain(str(error), on_every_rank=True)
        sys.exit(BAD_INPUT)
    try:
        messages.check_words(sys.argv[1:])
        hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(job)()
    except BadInput as error:  # of a sweep as a whole
        refuse(str(error))
    except (ValueError, *messages.CONFIGURATION_ERRORS) as error:  # Hydra raises ValueError for `group=null`
        refuse(messages.explain(error, sys.argv[1:]))
    except OSError as error:  # Hydra could not write a sweep's list of overrides
        refuse(str(bad_value("results", error.filename, f"a folder that can be written is allowed ({error})")))
    except AllLeave as error:
        complain(str(error))
        statuses.append(error.status)
    except KeyboardInterrupt:
        statuses.append(INTERRUPTED)
        if sys.stdout.isatty():
            print("\x1b[?25h", end="")  # a progress bar may have died with the cursor hidden
        complain("interrupted; the same command (without force=true) goes on from the last checkpoint")
    for status in (INTERRUPTED, UNEXPECTED, BAD_INPUT):
        if status in statuses:
            this_rank().leave(status)
    this_rank().leave(FINISHED)


def refuse(reason: str) -> None:
    """Bad input of the program as a whole: there is no run, on any rank."""
    complain(this_rank().refuse(reason, RuntimeSettings.timeout))
    statuses.append(BAD_INPUT)


if __name__ == "__main__":
    main()
