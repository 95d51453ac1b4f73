"""Every method meets many faults, one after the other in one run, which ends as if nothing had
happened, to the bit.

Continuous integration has each method meet every other fault, so that half of the methods meet each
fault: what is kept depends on the method, and when it is kept on the fault. By hand, all meet all.

The kinds of `test_faults.py`, `test_fault_disk.py` and `test_workers.py`, which look at each more
closely on SCAFFOLD.
"""

from __future__ import annotations

import json
import random
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.faulty_runs import (
    SETTING,
    WORDS,
    Ended,
    checkpoints,
    folder_of,
    one_line,
    result,
    run,
    uninterrupted,
)

from fedbench.core.files import checksum_of

# Each keeps something that no other does, on the server or with its clients.
OFTEN = [
    *("fedavgm", "fedbn", "feddyn", "fedecgr", "fedgen", "fedgsnr", "fedncv", "fedpgvc", "fedrep"),
    *("moon", "pfedsim", "scaffold"),
]
ROUNDS = "rounds=40"  # more than all faults together let pass
INTERVAL = 2  # SETTING's checkpoint.every
# Little work where a method has a number of steps of its own.
LESS = {
    "algo=fedgsnr": "algo.steps=3",
    "modifier=[gsnr]": "algo.modifiers.gsnr.steps=3",
    "algo=fedgen": "algo.generator_steps=3",
}


@dataclass(frozen=True)
class Fault:
    name: str
    workers: int
    status: int
    plan: dict = field(default_factory=dict)
    calls: tuple[int, int] = (1, 1)  # it strikes at a random one of these
    says: str = ""
    damage: str = ""  # what happens to the newest checkpoint beforehand


KILLED, FAILED, STOPPED = -signal.SIGKILL, 1, 130
KILL_ALL, KILL_ONE = {"kind": "killall"}, {"kind": "kill"}
LATER = (3, 4)  # a checkpoint is written before that
BY_SIGNAL = "was ended by SIGKILL"
FAULTS = [
    Fault("all in training", 1, KILLED, {"place": "training", **KILL_ALL}, (1, 5)),
    Fault("one in training", 2, FAILED, {"place": "training", **KILL_ONE}, (1, 5), BY_SIGNAL),
    Fault("all in aggregation", 2, KILLED, {"place": "aggregation", **KILL_ALL}, (1, 4)),
    Fault(
        "one in aggregation",
        3,
        FAILED,
        {"place": "aggregation", "rank": 1, **KILL_ONE},
        (1, 4),
        BY_SIGNAL,
    ),
    Fault(
        "all in the tensors of a checkpoint",
        1,
        KILLED,
        {"place": "checkpoint-tensors", **KILL_ALL},
        (1, 3),
    ),
    Fault(
        "one in a checkpoint",
        2,
        FAILED,
        {"place": "checkpoint", "rank": 1, **KILL_ONE},
        (1, 2),
        BY_SIGNAL,
    ),
    Fault(
        "all in the manifest of a checkpoint",
        2,
        KILLED,
        {"place": "checkpoint-manifest", **KILL_ALL},
        (1, 2),
    ),
    Fault("SIGTERM", 1, STOPPED, {"place": "training", "kind": "SIGTERM"}, (1, 4), "interrupted"),
    Fault("Ctrl-C", 2, STOPPED, {"place": "aggregation", "kind": "SIGINT"}, (1, 3), "interrupted"),
    Fault(
        "a truncated checkpoint",
        1,
        KILLED,
        {"place": "evaluation", **KILL_ALL},
        LATER,
        damage="truncated",
    ),
    Fault("a full disk", 2, FAILED, {"file_size": 60_000}, says="the disk is full"),
    Fault(
        "a folder that turns read-only",
        2,
        FAILED,
        {"place": "metrics", "kind": "EROFS"},
        (1, 5),
        "cannot be written (Read-only",
    ),
    Fault("a flipped bit", 2, KILLED, {"place": "evaluation", **KILL_ALL}, LATER, damage="flipped"),
    Fault(
        "another configuration's",
        1,
        KILLED,
        {"place": "evaluation", **KILL_ALL},
        LATER,
        damage="run id",
    ),
    Fault(
        "another code's",
        2,
        KILLED,
        {"place": "evaluation", **KILL_ALL},
        LATER,
        damage="source code",
    ),
    Fault("one in the final files", 2, FAILED, {"place": "final", **KILL_ONE}, says=BY_SIGNAL),
    Fault("all in the summary", 1, KILLED, {"place": "final-summary", **KILL_ALL}),
]


def harm(newest: Path, how: str, chance: random.Random) -> str:
    """Damage a checkpoint; returns what must be said of it."""
    if how in ("run id", "source code"):  # whole, but from elsewhere
        manifest = json.loads((newest / "manifest.json").read_text())
        del manifest["checksum"]
        manifest["origin"][how] = "another"
        manifest["checksum"] = checksum_of(manifest)
        (newest / "manifest.json").write_text(json.dumps(manifest))
        return f"it has another {how} (another, not "
    file = chance.choice([file for file in sorted(newest.iterdir()) if file.stat().st_size])
    content = bytearray(file.read_bytes())
    place = chance.randrange(len(content))
    content[place] ^= 1 << chance.randrange(8)
    file.write_bytes(content if how == "flipped" else content[:place])
    return ""


def meet(fault: Fault, setting: tuple[str, ...], reached: int, chance: random.Random) -> int:
    """Start the run again, with this fault; returns the round that it reached."""
    stored = checkpoints("broken") if Path("broken").exists() else {}
    reason = ""
    assert max(stored, default=0) >= reached - INTERVAL, fault.name
    if fault.damage:
        newest = stored.pop(max(stored))
        reason = f"checkpoint {newest.name} is not used: {harm(newest, fault.damage, chance)}"
    plan = fault.plan | {"call": chance.randint(*fault.calls)}
    ended = run(*setting, f"runtime.workers={fault.workers}", **plan)
    assert ended.status == fault.status, f"{fault.name}: {ended.out}{ended.err}"
    check_what_it_says(ended, fault, reason)
    assert ended.resumed_after == max(stored, default=0), fault.name
    assert not (folder_of("broken") / "summary.json").exists()
    return ended.resumed_after + ended.rounds


def check_what_it_says(ended: Ended, fault: Fault, reason: str) -> None:
    if fault.status == KILLED:
        assert ended.err == "", fault.name
    else:
        line = one_line(ended.err)
        assert fault.says in line
        assert "the same command (without force=true) resumes" in line
    assert ended.out.count("is not used: ") == bool(reason), fault.name
    assert reason in ended.out


HALVES = [
    pytest.param(
        f"algo={name}", FAULTS[number % 2 :: 2], id=f"{name}, half", marks=pytest.mark.heavy
    )
    for number, name in enumerate(OFTEN)
]
ALL = [
    pytest.param(word, FAULTS, id=f"{word}, all", marks=[pytest.mark.heavy, pytest.mark.by_hand])
    for word in WORDS
]


@pytest.mark.parametrize(("word", "faults"), HALVES + ALL)
def test_a_run_survives_them_all(word, faults, tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    words = [ROUNDS, word, *([LESS[word]] if word in LESS else [])]
    setting, chance, reached = (
        (*SETTING, *words, "results=broken"),
        random.Random(word),
        0,
    )
    for fault in faults:
        reached = meet(fault, setting, reached, chance)
    ended = run(*setting, "runtime.workers=3")
    assert ended.status == 0, ended.err
    assert result(folder_of("broken")) == uninterrupted(*words)
    left = [
        file.name
        for file in folder_of("broken").iterdir()
        if "-0" in file.name or file.name.endswith(".part")
    ]
    assert left == [file.name for file in (tmp_path / "temporary").iterdir()] == []
