"""The pool of processes: values in the order of the tasks, one process or a new one for each, and
nothing that waits for ever when it is stopped.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing.connection import wait

import pytest
from support.waiting import LIMIT, wait_until

from fedbench.core.errors import BadInput
from fedbench.report.running.pool import Died, Pool


def test_values_come_in_the_order_of_the_tasks_and_endings_as_they_end(tmp_path):
    go = tmp_path / "go"

    def first_waits(task: int) -> int:
        if task == 0:
            wait_until(go.exists)
        return 10 * task

    ended = []
    for ending in Pool(first_waits, 2).run(range(3)):
        ended.append(ending.task)
        if ending.task == 2:  # only now may the first task end
            go.touch()
    assert ended == [1, 2, 0]

    def last_lets_go(task: int) -> int:
        if task == 2:
            go.touch()
        return first_waits(task)

    go.unlink()
    assert list(Pool(last_lets_go, 2).values(range(3))) == [0, 10, 20]


@pytest.mark.parametrize(("fresh", "processes"), [(False, 1), (True, 3)])
def test_a_process_is_kept_for_all_tasks_or_is_new_for_each(fresh, processes):
    found = set(Pool(lambda task: os.getpid(), 1, fresh=fresh).values(range(3)))
    assert len(found) == processes
    assert os.getpid() not in found


def test_an_error_is_raised_as_it_was_with_the_traceback_of_its_process():
    def refuse(task: int) -> None:
        raise BadInput(f"task={task}: must be another")

    with pytest.raises(BadInput) as raised:
        list(Pool(refuse, 1).values([1]))
    assert str(raised.value) == "task=1: must be another"
    assert "in refuse" in raised.value.__notes__[0]


class Demanding(Exception):
    """It cannot be made anew of what it keeps, a single sentence."""

    def __init__(self, key: str, value: int):
        super().__init__(f"{key}={value} is wrong")
        self.open = threading.Lock()


def test_an_error_that_cannot_be_sent_is_told_in_words():
    def refuse(task: int) -> None:
        raise Demanding("task", task)

    with pytest.raises(RuntimeError, match="Demanding: task=1 is wrong"):
        list(Pool(refuse, 1).values([1]))


def test_a_process_may_die_in_the_middle_of_its_answer():
    def answer(task: int) -> bytes:
        """More than fits into a pipe that nobody reads yet."""
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return bytes(1_000_000)

    pool = Pool(answer, 1)
    began = pool._hand_out(iter([(0, 0)]))
    for pipe in wait(list(began)):
        began[pipe].process.join()
        assert str(pool._ending(began[pipe]).error).startswith("died of SIGKILL")


def test_of_several_errors_the_first_task_s_is_raised_whichever_ends_first(tmp_path):
    def refuse(task: int) -> None:
        (tmp_path / str(task)).touch()
        wait_until((tmp_path / "1").exists)
        time.sleep(0.2 * (task == 0))
        raise BadInput(f"task={task}: must be another")

    for _ in range(3):
        with pytest.raises(BadInput, match="task=0"):
            list(Pool(refuse, 2).values(range(2)))


@pytest.mark.parametrize(
    ("kill", "words"),
    [
        (lambda task: os.kill(os.getpid(), signal.SIGUSR1), "died of SIGUSR1"),
        (lambda task: os._exit(3), "died of status 3"),
    ],
)
def test_a_process_that_dies_is_replaced(kill, words):
    endings = list(Pool(kill, 1).run(range(2)))
    assert [str(ending.error) for ending in endings] == [words] * 2
    assert all(isinstance(ending.error, Died) for ending in endings)


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_what_is_under_way_and_the_second_kills_it(
    tmp_path, number, stubborn
):
    def work(task: int) -> None:
        if stubborn:
            signal.signal(signal.SIGTERM, lambda *_: (tmp_path / "asked").touch())
        (tmp_path / f"{task} begun").touch()
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            time.sleep(0.01)

    def ask() -> None:
        wait_until(lambda: len(list(tmp_path.glob("* begun"))) == 2)
        os.kill(os.getpid(), number)
        if stubborn:
            wait_until((tmp_path / "asked").exists)
            os.kill(os.getpid(), number)

    asking = threading.Thread(target=ask)
    asking.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(Pool(work, 2).values(range(4)))
    asking.join()
    assert time.monotonic() - started < LIMIT
    assert len(list(tmp_path.glob("* begun"))) == 2
