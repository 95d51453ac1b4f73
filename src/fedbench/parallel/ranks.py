"""Ranks that `torchrun` (or mpirun, srun) started: they meet, agree, train and leave together.

They use the key-value store that torchrun opens for them, because a process group cannot report why
a rank is missing. The store may outlive an attempt: after a restart it still holds what dead ranks
wrote. So the ranks of an attempt meet under a new name, and everything they write is below it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch.distributed as dist

from fedbench.core.caller import end_with_torchrun
from fedbench.core.errors import (
    BAD_INPUT,
    INTERRUPTED,
    UNEXPECTED,
    BadInput,
    MachineFault,
    bad_value,
    require,
)
from fedbench.core.files import remove_made
from fedbench.parallel.failures import RESUME, WorkerExit
from fedbench.parallel.group import Group
from fedbench.parallel.interrupt import forget_interruptions
from fedbench.parallel.processes import under_torchrun

Result = TypeVar("Result")
Record = dict[str, Any]  # what a rank reports to the others
LEADER = "fedbench/leader"  # the name of the newest attempt
LONGEST_PAUSE = 0.2  # seconds between two looks into the store
NETWORK_FILE_SECONDS = 5
LAST_WORDS_SECONDS = 2  # for a last message or question after a failure
# What waits for other ranks has a limit of its own, with a better message. Only a call that hangs
# is still there so many seconds later, and then the process is ended.
GRACE_SECONDS = 10


class AllLeave(BaseException):
    """A rank has left, so the others must leave, too. Without a reason if this rank has said it.

    Not an Exception, because Hydra catches those of a job and continues with the next one.
    """

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class Ranks:
    """This process among the ranks of a program. Alone, it agrees with itself at once."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self.host = socket.gethostname()
        self.broken = False  # after a failed exchange no rank may wait for the others any more
        # What another machine prints must not hold what is secret on this one.
        self.hide: Callable[[str], str] = str
        self._opened: dist.Store | None = None
        self._attempt = ""
        self._agreements = 0

    @property
    def leader(self) -> bool:
        return self.rank == 0

    @property
    def _store(self) -> dist.Store:
        assert self._opened is not None, "the ranks have not met"
        return self._opened

    def give_up(self) -> None:
        """Note that the other ranks cannot be relied on any more."""
        self.broken = self.size > 1

    def together(self, action: Callable[[], Result], timeout: int) -> Result:
        """Do something on every rank. If one refuses or fails, the same error is raised on all."""
        if self.size == 1:
            return action()
        self._meet(timeout)
        record: Record = {}
        try:
            result = action()
        except BadInput as error:
            record = {"refused": str(error)}
        except BaseException as error:
            self.give_up()
            status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else UNEXPECTED
            self._publish({"failed": _first_line(error), "status": status})
            raise
        self._raise_first_problem(self._gather(record, timeout))
        return result

    def agree(self, facts: dict[str, str], timeout: int) -> None:
        """Refuse to continue unless all ranks have the same facts; names the first difference."""
        if self.size == 1:
            return
        records = self._gather({"facts": facts}, timeout)
        self._raise_first_problem(records)
        first, where = records[0]["facts"], _place(0, records[0])
        for rank, record in enumerate(records):
            for what, value in first.items():
                own = record["facts"].get(what)  # another version may not know this fact
                if own != value:
                    raise BadInput(
                        f"{_place(rank, record)} has another {what} than {where} ({own}, not"
                        f" {value}); all ranks must have the same"
                    )

    def refuse(self, reason: str, timeout: int) -> str:
        """Report to the others that this rank leaves before a run. Returns the first rank's
        reason, which is to be printed.
        """
        if self.size == 1 or self.broken:
            return reason
        try:
            self._meet(timeout)
            return _first_problem(self._gather({"refused": reason, "status": BAD_INPUT}, timeout))
        except MachineFault:  # the others cannot be reached
            return reason

    def remember(self, what: str) -> None:
        """Keep a fact for the attempts after this one; `remembers` has been asked before."""
        if self._opened is not None:
            self._store.set(f"fedbench/remembered/{what}", "")

    def remembers(self, what: str, timeout: int) -> bool:
        """Whether an earlier attempt has remembered this."""
        if not _agent_has_the_store() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0:
            return True  # the store is new in every attempt
        if self._opened is None and _agent_has_the_store():  # a single rank meets nobody
            self._opened = _open_store(self.rank, timeout)
        return self._opened is not None and self._store.check([f"fedbench/remembered/{what}"])

    def check_common_folder(self, folder: Path, timeout: int) -> None:
        """Refuse a folder that some of the machines do not see. The check leaves nothing in it."""
        if self.size == 1:
            return
        token = folder / f".{self._attempt.rpartition('/')[2]}.part"
        made: list[Path] = []
        try:
            self.together(lambda: _touch(token, made) if self.leader else None, timeout)
            self.together(lambda: _find(token), timeout)
        finally:
            if self.leader:
                remove_made(made)

    def group(self, timeout: int) -> Group:
        """The process group of the ranks, made at the first call."""
        if self.size > 1 and not dist.is_initialized():
            self._meet(timeout)
            store = dist.PrefixStore(f"{self._attempt}/gloo", self._store)
            with _limited(
                timeout + GRACE_SECONDS,
                f"runtime.timeout={timeout}: {self._me()} could not reach all other ranks",
            ):
                limit = timedelta(seconds=timeout)
                dist.init_process_group(
                    "gloo", store=store, rank=self.rank, world_size=self.size, timeout=limit
                )
        return Group()

    def explain(self, error: Exception, timeout: int) -> MachineFault | None:
        """One line for the loss of another rank, with that rank's own reason if it left one."""
        self.give_up()
        ended = WorkerExit.of(self.rank, error)
        if self.size == 1 or not ended.lost:
            return None
        reason = self._last_words()
        if not reason and ended.waited:
            reason = (
                f"runtime.timeout={timeout}: {self._me()} waited {timeout} seconds for another rank"
            )
        return MachineFault(
            f"{reason or f'{self._me()} lost another rank ({_first_line(error)})'}; {RESUME}"
        )

    def tell_failure(self, reason: str) -> None:
        """Leave the reason for the others, which only notice that this rank is gone."""
        self._tell(f"{self._me()} failed: {self.hide(reason)}", UNEXPECTED)

    def _tell(self, reason: str, status: int) -> None:
        """Let the others know that this rank is gone, unless another one was gone before."""
        if self.size > 1 and self._attempt:
            text = json.dumps({"reason": reason, "status": status})
            _briefly(lambda: self._store.compare_set(f"{self._attempt}/gone", "", text))

    def _tell_the_end(self, status: int) -> None:
        """For ranks that wait for this one: they have other jobs, or were not interrupted."""
        if status == INTERRUPTED:
            self._tell(f"{self._me()} was interrupted", INTERRUPTED)
        elif status == UNEXPECTED:
            self._tell(f"{self._me()} has ended with status {status}", UNEXPECTED)
        else:
            self._tell(
                f"{self._me()} has ended with status {status}, and other ranks have more to do; all"
                " ranks must be started with the same words",
                BAD_INPUT,
            )

    def leave(self, status: int) -> NoReturn:
        """End this process. The process group is taken down first, unless it is broken."""
        # torchrun sends signals to those that are slower than the first to leave.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        forget_interruptions()
        sys.stdout.flush()
        sys.stderr.flush()
        if not self.broken or status == INTERRUPTED:  # else it was told already
            self._tell_the_end(status)
        if self.broken:
            os._exit(status)
        if dist.is_initialized():
            dist.destroy_process_group()
        if self._attempt and not _agent_has_the_store():
            self._leave_the_store()
        sys.exit(status)

    def _leave_the_store(self) -> None:
        """The leader, whose process holds the store, leaves last."""
        others = [f"{self._attempt}/left/{rank}" for rank in range(1, self.size)]
        if not self.leader:
            self._store.set(others[self.rank - 1], "")
            return
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while not self._store.check(others) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _me(self) -> str:
        return _place(self.rank, {"host": self.host})

    def _meet(self, timeout: int) -> None:
        """Find the other ranks of this attempt, and with them a name for it.

        The leader offers a name, and every rank writes a token of its own below it. When all are
        there, the leader confirms the tokens that it saw. A name of an earlier attempt never
        confirms the token of a new rank.
        """
        if self._attempt:
            return
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        complaint = (
            f"runtime.timeout={timeout}: {self._me()} could not meet the other ranks at {address}"
        )
        deadline = time.monotonic() + timeout
        with _limited(timeout + GRACE_SECONDS, complaint):
            try:
                self._opened = _open_store(self.rank, timeout)
                meet = self._offer if self.leader else self._follow
                self._attempt = meet(timeout, deadline)
            except (dist.DistError, MachineFault) as error:
                self.give_up()
                if isinstance(error, MachineFault):
                    raise
                raise MachineFault(f"{complaint} ({_first_line(error)})") from error

    def _offer(self, timeout: int, deadline: float) -> str:
        name, token = f"fedbench/{uuid.uuid4().hex}", uuid.uuid4().hex
        self._store.set(f"{name}/token/0", token)
        self._store.set(LEADER, name)
        keys = [f"{name}/token/{rank}" for rank in range(self.size)]
        self._wait_for(keys, timeout, deadline)
        tokens = [self._store.get(key).decode() for key in keys]
        self._store.set(f"{name}/confirmed", json.dumps(tokens))
        return name

    def _follow(self, timeout: int, deadline: float) -> str:
        token, answered = uuid.uuid4().hex, ""
        for pause in _pauses():
            name = self._store.get(LEADER).decode() if self._store.check([LEADER]) else ""
            if name != answered:
                self._store.set(f"{name}/token/{self.rank}", token)
                answered = name
            if name and self._store.check([f"{name}/confirmed"]):
                tokens = json.loads(self._store.get(f"{name}/confirmed"))
                # Before a restart there may have been fewer ranks.
                if tokens[self.rank : self.rank + 1] == [token]:
                    return name
            if time.monotonic() > deadline:
                words = (
                    f"runtime.timeout={timeout}: {self._me()} waited {timeout} seconds for all"
                    " ranks to start"
                )
                raise MachineFault(words)
            time.sleep(pause)
        raise AssertionError

    def _publish(self, record: Record) -> None:
        for what in {"refused", "failed"} & record.keys():
            record[what] = self.hide(record[what])
        self._agreements += 1
        key = f"{self._attempt}/{self._agreements}/{self.rank}"
        self._store.set(key, json.dumps({**record, "host": self.host}))

    def _gather(self, record: Record, timeout: int) -> list[Record]:
        """The records of all ranks at this point of the program."""
        complaint = f"runtime.timeout={timeout}: {self._me()} lost the way to the other ranks"
        deadline = time.monotonic() + timeout
        with _limited(timeout + GRACE_SECONDS, complaint):
            try:
                self._publish(record)
                keys = [f"{self._attempt}/{self._agreements}/{rank}" for rank in range(self.size)]
                self._wait_for(keys, timeout, deadline)
                return [json.loads(self._store.get(key)) for key in keys]
            except (dist.DistError, MachineFault) as error:
                self.give_up()
                if isinstance(error, MachineFault):
                    raise
                raise MachineFault(complaint) from error

    def _wait_for(self, keys: list[str], timeout: int, deadline: float) -> None:
        for pause in _pauses():
            gone = self._gone()  # asked first: a rank leaves after its last record
            if self._store.check(keys):
                return
            if gone:
                self.give_up()
                raise AllLeave(gone["reason"], gone["status"])
            if time.monotonic() > deadline:
                missing = [
                    str(rank) for rank, key in enumerate(keys) if not self._store.check([key])
                ]
                words = (
                    f"{self._me()} waited {timeout} seconds for rank {', '.join(missing)} of"
                    f" {self.size}"
                )
                raise MachineFault(f"runtime.timeout={timeout}: {words}")
            time.sleep(pause)

    def _raise_first_problem(self, records: list[Record]) -> None:
        problem = _first_problem(records)
        if problem:
            statuses = [record["status"] for record in records if "status" in record]
            self.broken = any("failed" in record for record in records)
            raise AllLeave(problem, statuses[0]) if statuses else BadInput(problem)

    def _last_words(self) -> str:
        """The reason that a rank has left; empty without one, or without the store."""
        gone = _briefly(self._gone)
        return gone["reason"] if gone else ""

    def _gone(self) -> Record | None:
        """The reason and status of the first rank that left this attempt, if one has."""
        key = f"{self._attempt}/gone"
        if not self._attempt or not self._store.check([key]):
            return None
        record: Record = json.loads(self._store.get(key))
        return record


@cache
def this_rank() -> Ranks:
    """This process among the ranks. Under torchrun it ends when torchrun does."""
    if not under_torchrun():
        return Ranks()
    end_with_torchrun()
    return Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def _agent_has_the_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _open_store(rank: int, timeout: int) -> dist.Store:
    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0 and not _agent_has_the_store(),
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        multi_tenant=True,
    )


def _touch(token: Path, made: list[Path]) -> None:
    """Write a file; `made` gets what was not there before, innermost first."""
    try:
        made.extend(place for place in (token, *token.parents) if not place.exists())
        token.parent.mkdir(parents=True, exist_ok=True)
        token.touch()
    except OSError as error:
        raise bad_value(
            "results", token.parent, f"must be a folder that can be written ({error.strerror})"
        ) from error


def _find(token: Path) -> None:
    """A network file system may show a new file a moment later."""
    deadline = time.monotonic() + NETWORK_FILE_SECONDS
    while not _is_there(token):
        rule = "all machines must see the same folder, and this one does not see rank 0's files"
        require(time.monotonic() < deadline, "results", token.parent, rule)
        time.sleep(0.1)
        with suppress(OSError):
            os.listdir(token.parent)  # asks the server anew


def _is_there(token: Path) -> bool:
    try:
        return token.exists()
    except OSError as error:
        rule = f"must be a folder that can be read on all machines ({error.strerror})"
        raise bad_value("results", token.parent, rule) from error


def _place(rank: int, record: Record) -> str:
    return f"rank {rank} on host {record['host']}"


def _first_problem(records: list[Record]) -> str:
    """The reason of the first rank that has one, after its name unless all have the same."""
    reasons = [record.get("failed", record.get("refused", "")) for record in records]
    for rank, reason in enumerate(reasons):
        if reason:
            return reason if len(set(reasons)) == 1 else f"{_place(rank, records[rank])}: {reason}"
    return ""


def _first_line(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    line = next(iter(str(error).splitlines()), "")
    return line if isinstance(error, BadInput | MachineFault) else f"{type(error).__name__}: {line}"


def _pauses() -> Iterator[float]:
    pause = 0.005
    while True:
        yield pause
        pause = min(2 * pause, LONGEST_PAUSE)


@contextmanager
def _limited(seconds: float, complaint: str) -> Iterator[None]:
    """End this process with one line when the work inside takes longer.

    Nothing else can stop a call that hangs in C++.
    """

    def give_up() -> None:
        print(f"fedbench: {complaint}", file=sys.stderr, flush=True)
        os._exit(UNEXPECTED)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _briefly(action: Callable[[], Result]) -> Result | None:
    """The result of an action, or None if it takes long: a broken connection may never answer."""
    results: list[Result] = []

    def attempt() -> None:
        with suppress(dist.DistError):
            results.append(action())

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(LAST_WORDS_SECONDS)
    return results[0] if results else None
