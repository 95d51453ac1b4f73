"""How ranks meet, agree and refuse, with one thread a rank and a store in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from support.waiting import LIMIT as LONG

from fedbench.core.errors import (
    BAD_INPUT,
    FINISHED,
    INTERRUPTED,
    UNEXPECTED,
    BadInput,
    MachineFault,
)
from fedbench.parallel import ranks as module
from fedbench.parallel.group import Group
from fedbench.parallel.ranks import LEADER, AllLeave, Ranks
from fedbench.runs.folder import RunFolder
from fedbench.train import take_lock


@pytest.fixture
def store(monkeypatch) -> dist.Store:
    """One store for all threads; it goes on holding what an earlier attempt wrote."""
    monkeypatch.setenv("MASTER_ADDR", "nowhere")
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    shared = dist.HashStore()
    monkeypatch.setattr(module, "_open_store", lambda rank, timeout: shared)
    for name in ("GRACE_SECONDS", "LAST_WORDS_SECONDS"):  # a slow machine is no broken one
        monkeypatch.setattr(module, name, LONG)
    return shared


def on_every_rank(size: int, work: Callable[[Ranks], object]) -> list[object]:
    """What `work` returns or raises, for every rank."""
    outcomes: list[object] = [None] * size

    def attempt(rank: int) -> None:
        member = Ranks(rank, size)
        member.host = f"host{rank}"
        try:
            outcomes[rank] = work(member)
        except BaseException as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=attempt, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()
    return outcomes


def test_each_attempt_has_a_name_of_its_own(store):
    def meet(ranks: Ranks) -> str:
        ranks._meet(LONG)
        return ranks._attempt

    first, second = on_every_rank(3, meet), on_every_rank(3, meet)
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]


def test_a_leader_that_died_while_it_waited_is_not_followed(store):
    """Its name is still the newest one in the store when the others of the next attempt arrive."""
    store.set(LEADER, "fedbench/dead")
    store.set("fedbench/dead/token/0", "dead")
    ready = threading.Event()

    def meet(ranks: Ranks) -> str:
        if ranks.leader:
            assert ready.wait(LONG)
        elif ranks.rank == 1:
            store.set("fedbench/dead/token/1", "dead, too")
            store.set("fedbench/dead/confirmed", json.dumps(["dead", "dead, too", "dead, too"]))
            ready.set()
        ranks._meet(LONG)
        return ranks._attempt

    names = on_every_rank(3, meet)
    assert len(set(names)) == 1
    assert names[0] != "fedbench/dead"


def test_a_restart_with_more_ranks_meets_beside_what_fewer_left(store, monkeypatch):
    """The confirmed tokens of the attempt before are fewer than the ranks now."""
    store.set(LEADER, "fedbench/dead")
    store.set("fedbench/dead/confirmed", json.dumps(["dead", "dead, too"]))
    seen = threading.Semaphore(0)
    pauses = module._pauses

    def noticed() -> Iterator[float]:
        for number, pause in enumerate(pauses()):
            if number == 1:  # a rank has looked at the dead attempt and did not find itself
                seen.release()
            yield pause

    monkeypatch.setattr(module, "_pauses", noticed)

    def meet(ranks: Ranks) -> str:
        if ranks.leader:
            assert all([seen.acquire(timeout=LONG) for _ in range(2)])  # noqa: C419
        ranks._meet(LONG)
        return ranks._attempt

    names = on_every_rank(3, meet)
    assert len(set(names)) == 1
    assert names[0] != "fedbench/dead"


def test_what_all_can_do_is_done_by_all(store):
    assert on_every_rank(3, lambda ranks: ranks.together(lambda: ranks.rank, LONG)) == [0, 1, 2]


def refuse_on(*which: int) -> Callable[[Ranks], object]:
    def action(ranks: Ranks) -> None:
        if ranks.rank in which:
            raise BadInput("data=mnist: not here")

    return lambda ranks: ranks.together(lambda: action(ranks), LONG)


def test_a_refusal_of_one_is_that_of_all_and_names_it(store):
    outcomes = on_every_rank(3, refuse_on(1, 2))
    assert {(type(error), str(error)) for error in outcomes} == {
        (BadInput, "rank 1 on host host1: data=mnist: not here")
    }


def test_a_refusal_of_all_names_nobody(store):
    outcomes = on_every_rank(2, refuse_on(0, 1))
    assert {str(error) for error in outcomes} == {"data=mnist: not here"}


def test_after_a_refusal_the_next_job_is_done(store):
    def two_jobs(ranks: Ranks) -> int:
        with pytest.raises(BadInput):
            refuse_on(1)(ranks)
        assert not ranks.broken
        return ranks.together(lambda: 7, LONG)

    assert on_every_rank(2, two_jobs) == [7, 7]


def test_a_failure_of_one_ends_all(store):
    def action(ranks: Ranks) -> None:
        if ranks.rank == 1:
            raise ZeroDivisionError("division by zero")

    outcomes = on_every_rank(3, lambda ranks: ranks.together(lambda: action(ranks), LONG))
    assert isinstance(outcomes[1], ZeroDivisionError)
    for error in (outcomes[0], outcomes[2]):
        assert isinstance(error, AllLeave)
        assert error.status == UNEXPECTED
        assert str(error) == "rank 1 on host host1: ZeroDivisionError: division by zero"


def test_who_leaves_before_there_is_a_run_ends_all(store):
    def work(ranks: Ranks) -> object:
        if ranks.rank == 1:
            return ranks.refuse("unknown key 'roundz'", LONG)
        return ranks.together(lambda: 7, LONG)

    leader, other = on_every_rank(2, work)
    assert isinstance(leader, AllLeave)
    assert leader.status == BAD_INPUT
    assert str(leader) == other == "rank 1 on host host1: unknown key 'roundz'"


def test_the_same_facts_agree(store):
    def work(ranks: Ranks) -> None:
        ranks.together(lambda: None, LONG)
        ranks.agree({"dataset": "a", "run id": "b"}, LONG)

    assert on_every_rank(3, work) == [None, None, None]


def test_a_difference_is_named_with_rank_and_host(store):
    def work(ranks: Ranks) -> None:
        ranks.together(lambda: None, LONG)
        ranks.agree(
            {"device": "cpu", "dataset": f"data{ranks.rank // 2}", "run id": str(ranks.rank)}, LONG
        )

    outcomes = on_every_rank(3, work)
    assert all(isinstance(error, BadInput) for error in outcomes)
    told = (
        "rank 1 on host host1 has another run id than rank 0 on host host0 (1, not 0); all ranks"
        " must have the same"
    )
    assert {str(error) for error in outcomes} == {told}


def test_a_folder_that_all_see(store, tmp_path):
    def work(ranks: Ranks) -> None:
        ranks.together(lambda: None, LONG)
        ranks.check_common_folder(tmp_path / "new" / "results", LONG)

    assert on_every_rank(2, work) == [None, None]
    assert not list(tmp_path.iterdir())  # nothing of the check stays


def test_a_folder_that_one_does_not_see(store, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NETWORK_FILE_SECONDS", 0)

    def work(ranks: Ranks) -> None:
        ranks.together(lambda: None, LONG)
        ranks.check_common_folder(tmp_path / f"machine{ranks.rank}", LONG)

    for error in on_every_rank(2, work):
        assert isinstance(error, BadInput)
        assert str(error).startswith("rank 1 on host host1: results=")
        assert "all machines must see the same folder" in str(error)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(store, tmp_path):
    (tmp_path / "file").touch()

    def work(ranks: Ranks) -> None:
        ranks.together(lambda: None, LONG)
        ranks.check_common_folder(tmp_path / "file" / "results", LONG)

    for error in on_every_rank(2, work):
        assert isinstance(error, BadInput)
        assert "must be a folder that can be written" in str(error)


def test_a_rank_that_never_comes_is_named(store):
    (error,) = on_every_rank(1, lambda ranks: _leader_of_three(ranks)._meet(1))
    assert isinstance(error, MachineFault)
    assert (
        str(error) == "runtime.timeout=1: rank 0 on host host0 waited 1 seconds for rank 1, 2 of 3"
    )


def test_another_version_with_other_facts_is_refused_too(store):
    def work(ranks: Ranks) -> None:
        ranks.together(lambda: None, LONG)
        ranks.agree({"source code": "a"} if ranks.leader else {"hash": "a"}, LONG)

    for error in on_every_rank(2, work):
        assert isinstance(error, BadInput)
        assert "has another source code than rank 0" in str(error)


def test_who_refuses_and_meets_nobody_says_so_all_the_same(store):
    (said,) = on_every_rank(1, lambda ranks: _leader_of_three(ranks).refuse("unknown key", 1))
    assert said == "unknown key"


def _leader_of_three(ranks: Ranks) -> Ranks:
    ranks.size = 3
    return ranks


def test_a_restart_remembers(store):
    def first(ranks: Ranks) -> bool:
        ranks.together(lambda: None, LONG)
        before = ranks.remembers("forced 1", LONG)
        ranks.together(lambda: None, LONG)
        ranks.remember("forced 1")
        return before

    def again(ranks: Ranks) -> tuple[bool, bool]:
        ranks.together(lambda: None, LONG)
        return ranks.remembers("forced 1", LONG), ranks.remembers("forced 2", LONG)

    assert on_every_rank(2, first) == [False, False]
    assert on_every_rank(2, again) == [(True, False), (True, False)]


def test_without_the_agents_store_a_restart_is_known_by_its_count(store, monkeypatch):
    def work(ranks: Ranks) -> bool:
        ranks.together(lambda: None, LONG)
        return ranks.remembers("forced 1", LONG)

    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
    assert on_every_rank(2, work) == [False, False]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert on_every_rank(2, work) == [True, True]


def test_a_single_rank_remembers_too(store):
    """It meets nobody, but force=true must not start over after its restart either."""
    first, again = Ranks(), Ranks()
    assert not first.remembers("forced 1", LONG)
    first.remember("forced 1")
    assert again.remembers("forced 1", LONG)
    assert not again.remembers("forced 2", LONG)


def test_who_failed_between_two_agreements_is_named_at_once(store):
    def work(ranks: Ranks) -> None:
        ranks.together(lambda: None, LONG)
        if ranks.rank == 1:
            ranks.tell_failure("the disk is full")
        else:
            ranks.together(lambda: None, LONG)

    first, _, third = on_every_rank(3, work)
    for error in (first, third):
        assert isinstance(error, AllLeave)
        assert error.status == UNEXPECTED
        assert str(error) == "rank 1 on host host1 failed: the disk is full"


@pytest.mark.parametrize(
    ("left", "status", "told"),
    [
        (FINISHED, BAD_INPUT, "has ended with status 0, and other ranks have more to do; all"),
        (INTERRUPTED, INTERRUPTED, "was interrupted"),
        (UNEXPECTED, UNEXPECTED, "has ended with status 1"),
    ],
)
def test_who_leaves_while_others_wait_is_named_at_once(store, left, status, told):
    """It has fewer jobs, or a signal reached it alone between two jobs."""

    def work(ranks: Ranks) -> None:
        ranks.together(lambda: None, LONG)
        if ranks.rank == 1:
            ranks._tell_the_end(left)
        else:
            ranks.together(lambda: None, LONG)

    for error in on_every_rank(3, work)[::2]:
        assert isinstance(error, AllLeave)
        assert error.status == status
        assert str(error).startswith(f"rank 1 on host host1 {told}")


def test_who_leaves_after_its_last_record_is_not_missed(store, monkeypatch):
    """The others may look for its record after it has left."""
    left = threading.Event()

    def work(ranks: Ranks) -> int:
        ranks.together(lambda: None, LONG)
        if ranks.rank == 0:
            assert left.wait(LONG)
        result = ranks.together(lambda: 7, LONG)
        if ranks.rank == 1:
            ranks._tell_the_end(FINISHED)
        return result

    original = Ranks._publish

    def publish(ranks: Ranks, record: dict) -> None:
        original(ranks, record)
        if ranks.rank == 1 and ranks._agreements == 2:
            left.set()

    monkeypatch.setattr(Ranks, "_publish", publish)
    assert on_every_rank(2, work) == [7, 7]


def test_an_interrupted_rank_ends_all_as_interrupted(store):
    def action(ranks: Ranks) -> None:
        if ranks.leader:
            raise KeyboardInterrupt

    leader, other = on_every_rank(2, lambda ranks: ranks.together(lambda: action(ranks), LONG))
    assert isinstance(leader, KeyboardInterrupt)
    assert isinstance(other, AllLeave)
    assert other.status == INTERRUPTED
    assert str(other) == "rank 0 on host host0: interrupted"


def test_what_is_secret_on_one_machine_is_not_published(store):
    """Another machine prints it, and knows its own secrets alone."""

    def work(ranks: Ranks) -> object:
        ranks.hide = lambda text: text.replace(f"token{ranks.rank}", "***")
        if ranks.rank == 1:
            return ranks.refuse("data.root=token1: not there", LONG)
        return ranks.together(lambda: None, LONG)

    assert str(on_every_rank(2, work)[0]) == "rank 1 on host host1: data.root=***: not there"

    def fail(ranks: Ranks) -> None:
        ranks.hide = lambda text: text.replace(f"token{ranks.rank}", "***")
        ranks.together(lambda: None, LONG)
        if ranks.rank == 1:
            ranks.tell_failure("no space in token1")
        else:
            ranks.together(lambda: None, LONG)

    assert str(on_every_rank(2, fail)[0]) == "rank 1 on host host1 failed: no space in ***"


def test_a_rank_that_is_lost_while_the_leader_waits_for_a_lock_is_noticed(store, tmp_path):
    """The lock may be another program's for any time; the other ranks are waited for as long as
    said.
    """
    folder = RunFolder(tmp_path / "results" / "runs" / "label" / "id")
    held = folder.lock()

    def work(ranks: Ranks) -> None:
        ranks.together(lambda: None, LONG)
        if ranks.leader:
            take_lock(folder, False, ranks, Group(), 1)

    error, _ = on_every_rank(2, work)
    held.release()
    assert isinstance(error, MachineFault)
    assert str(error).endswith("waited 1 seconds for rank 1 of 2")


def test_the_loss_of_a_rank_is_told_with_its_own_reason(store):
    told = threading.Barrier(2)

    def work(ranks: Ranks) -> str:
        ranks.together(lambda: None, LONG)
        if ranks.rank == 1:
            ranks.tell_failure("the disk is full")
        told.wait(LONG)
        return str(ranks.explain(RuntimeError("Connection closed by peer [10.0.0.2]:1"), 30))

    assert on_every_rank(2, work)[0].startswith(
        "rank 1 on host host1 failed: the disk is full; the last checkpoint"
    )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Connection closed by peer [10.0.0.2]:1",
            "rank 0 on host host0 lost another rank (RuntimeError: Connection",
        ),
        (
            "Timed out waiting 30000ms for recv",
            "runtime.timeout=30: rank 0 on host host0 waited 30 seconds for",
        ),
    ],
)
def test_a_silent_loss_is_told_by_what_was_seen(store, said, told):
    def work(ranks: Ranks) -> str:
        ranks.together(lambda: None, LONG)
        return str(ranks.explain(RuntimeError(said), 30))

    assert on_every_rank(2, work)[0].startswith(told)


def test_an_error_of_the_program_is_no_loss(store):
    def work(ranks: Ranks) -> object:
        ranks.together(lambda: None, LONG)
        return ranks.explain(ZeroDivisionError("division by zero"), 30)

    assert on_every_rank(2, work) == [None, None]


def test_alone_nothing_waits_and_nothing_is_written(tmp_path):
    alone = Ranks()
    assert alone.together(lambda: 7, LONG) == 7
    alone.agree({"run id": "a"}, LONG)
    alone.check_common_folder(Path(tmp_path / "results"), LONG)
    assert alone.refuse("a reason", LONG) == "a reason"
    assert alone.group(LONG).size == 1
    assert not alone.remembers("forced 1", LONG)
    assert not list(tmp_path.iterdir())
