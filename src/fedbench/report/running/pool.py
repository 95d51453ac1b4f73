"""The processes in which runs, their planning and calibration, and tables are made."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from fedbench.core.errors import MachineFault
from fedbench.parallel.devices import gpus, see_one
from fedbench.parallel.processes import end_with_parent

FORK = multiprocessing.get_context("fork")  # inherits torch and whatever the function refers to
STOPPING = (signal.SIGINT, signal.SIGTERM)
KILLED = (
    "a process was ended by the system (it does that when memory runs out); the same command"
    " goes on"
)

Task = TypeVar("Task")
Value = TypeVar("Value")


class Died(Exception):
    """The process of a task ended without an answer, mostly for want of memory."""


@dataclass
class Ending(Generic[Task, Value]):
    """How a task ended: with a value or with an error.

    The error is KeyboardInterrupt if the task was stopped, and `Died` if its process was killed.
    """

    place: int  # of the task among all of them
    task: Task
    seconds: float
    value: Value | None
    error: BaseException | None


@dataclass
class _Worker:
    number: int
    process: BaseProcess
    pipe: Connection
    task: Any = None  # with its place
    started: float = 0.0


@dataclass
class Pool(Generic[Task, Value]):
    """Calls a function with each of many tasks, in forked processes side by side.

    After Ctrl-C or SIGTERM no new task is begun, and those under way get a SIGTERM, which is a
    KeyboardInterrupt unless the function handles it: training stops after its round. The second
    time they are killed. When the parent dies, they get a SIGTERM, too.
    """

    function: Callable[[Task], Value]
    processes: int
    fresh: bool = False  # a new process for each task
    one_gpu: bool = False  # each process sees one of the GPUs, if there are any
    workers: list[_Worker] = field(default_factory=list, init=False)
    stopping: bool = field(default=False, init=False)

    def values(self, tasks: Iterable[Task]) -> Iterator[Value]:
        """The values in the order of the tasks; the error of the first that failed is raised."""
        early: dict[int, Any] = {}
        wanted = 0
        for ending in self.run(tasks):
            if isinstance(ending.error, Died):
                raise MachineFault(KILLED) from ending.error
            early[ending.place] = ending
            while wanted in early:
                done = early.pop(wanted)
                if done.error is not None:
                    raise done.error
                yield done.value
                wanted += 1
        if self.stopping:
            raise KeyboardInterrupt

    def run(self, tasks: Iterable[Task]) -> Iterator[Ending[Task, Value]]:
        """How tasks ended, in the order in which they do. Those that were not begun are left out
        when the pool is stopped.
        """
        waiting = enumerate(tasks)
        previous = {number: signal.signal(number, lambda *_: self.stop()) for number in STOPPING}
        try:
            while busy := self._hand_out(waiting):
                for pipe in wait(list(busy)):
                    yield self._ending(busy[pipe])
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            while self.workers:
                if self.workers[0].task is not None:
                    self.workers[0].process.kill()
                self._dismiss(self.workers[0])

    def stop(self) -> None:
        """Begin no new task, and stop those under way. Asked again: at once."""
        for worker in self.workers:
            worker.process.kill() if self.stopping else worker.process.terminate()
        self.stopping = True

    def _hand_out(self, waiting: Iterator[tuple[int, Task]]) -> dict[Any, _Worker]:
        """Give tasks to idle workers. Returns all that have one, by their pipes."""
        while not self.stopping:
            idle = next((worker for worker in self.workers if worker.task is None), None)
            if idle is None and len(self.workers) == self.processes:
                break
            if (task := next(waiting, None)) is None:
                break
            worker = idle or self._start()
            worker.task, worker.started = task, time.monotonic()
            with contextlib.suppress(ConnectionError):  # it died while idle, as `_ending` notices
                worker.pipe.send(task[1])
        return {worker.pipe: worker for worker in self.workers if worker.task is not None}

    def _start(self) -> _Worker:
        ours, theirs = FORK.Pipe()
        pipes = [ours, *(worker.pipe for worker in self.workers)]
        taken = [worker.number for worker in self.workers]
        number = next(free for free in range(self.processes) if free not in taken)
        process = FORK.Process(target=self._work, args=(number, theirs, pipes))
        # Signals wait until the worker has handlers of its own.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        process.start()
        self.workers.append(_Worker(number, process, ours))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        theirs.close()
        return self.workers[-1]

    def _ending(self, worker: _Worker) -> Ending[Task, Value]:
        (place, task), seconds = worker.task, time.monotonic() - worker.started
        worker.task = None
        try:
            value, error = worker.pipe.recv()
        except (EOFError, OSError):  # it died, perhaps in the middle of its answer
            self._dismiss(worker)
            value, error = None, KeyboardInterrupt() if self.stopping else _death(worker)
        else:
            if self.fresh:
                self._dismiss(worker)
        return Ending(place, task, seconds, value, error)

    def _dismiss(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.pipe.close()
        worker.process.join()

    def _work(self, number: int, pipe: Connection, parents: list[Connection]) -> None:
        """In a worker: do what comes through the pipe until it is closed."""
        if self.one_gpu and len(gpus()):
            see_one(number)
        for end in parents:
            end.close()  # else other workers would not notice that the parent closes it
        os.setpgid(0, 0)  # Ctrl-C in a terminal goes to the parent alone, which passes it on
        end_with_parent(signal.SIGTERM)
        with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            while True:
                pipe.send(self._answer(pipe.recv()))

    def _answer(self, task: Task) -> tuple[Value | None, BaseException | None]:
        try:
            return self.function(task), None
        except KeyboardInterrupt:
            return None, KeyboardInterrupt()
        except Exception as error:
            told = traceback.format_exc()
            error.add_note(f"In a process of its own:\n{told}")
            return None, error if _can_be_sent(error) else RuntimeError(told)


def _can_be_sent(error: Exception) -> bool:
    """Whether another process can make the error anew: one whose class asks for more than a message
    cannot be unpickled.
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


def _death(worker: _Worker) -> Died:
    code = worker.process.exitcode or 0
    name = signal.Signals(-code).name if code < 0 else f"status {code}"
    hint = "; the kernel does that when memory runs out" if name == "SIGKILL" else ""
    return Died(f"died of {name}{hint}")
