"""`scripts/chaos.py COUNT --seed S`: plant random faults in small runs, and see whether every run
survives them.

A fault is drawn from the seed and its number: method, data, kind, moment, workers before and after.
The run is started with it, then again without; what it leaves must be, to the bit, what an
undisturbed run leaves.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import faulty_runs as helper

BASE = (
    "partition.clients=4",
    "cohort=3",
    "client.epochs=1",
    "client.batch_size=16",
    "rounds=5",
    "checkpoint.every=2",
)
DATA = {
    "digits": ("data.subset=160",),
    "mnist": (
        "data=mnist",
        "data.source=synthetic",
        "data.subset=120",
        "model=lenet",
        "model.batch_norm=true",
    ),
    "cifar10": ("data=cifar10", "data.source=synthetic", "data.subset=100", "model=lenet"),
    "fmnist": (
        "data=fmnist",
        "data.source=synthetic",
        "data.subset=120",
        "model=mlp",
        "model.hidden=[16,8]",
    ),
}
EVERY_RANK = ("training", "aggregation", "evaluation", "checkpoint", "checkpoint-tensors")
LEADER = (
    "metrics",
    "checkpoint-manifest",
    "checkpoint-pruning",
    "rename",
    "final",
    "final-summary",
)
ONCE = (
    "checkpoint",
    "checkpoint-manifest",
    "final",
    "final-summary",
)  # hardly called more often than once or twice
DAMAGE = ("flipped", "truncated")
KINDS = (
    "kill",
    "killall",
    "moment",
    "SIGINT",
    "SIGTERM",
    "ENOSPC",
    "EROFS",
    "full",
    "memory",
    "raise",
    "hang",
)
KINDS += DAMAGE
STATUS = {
    "SIGINT": {130},
    "SIGTERM": {130},
    "kill": {-9, 1},
    "killall": {-9},
    "moment": {-9},
}  # of all others, 1
IN_TIME = set(KINDS) - {
    "moment",
    "SIGINT",
    "SIGTERM",
}  # these may find the run finished, or in its last round
# No fault was planted: the method makes no sense on this model, or the run had ended before its
# moment came, as of a worker that trains nobody.
REFUSED, TOO_LATE = "refused", "too late"


@dataclass
class Case:
    number: int
    method: str
    data: str
    fault: dict
    before: int
    after: int
    delay: float

    @property
    def words(self) -> tuple[str, ...]:
        return (*BASE, *DATA[self.data], self.method, "logger=none", "runtime.timeout=4")

    @property
    def kind(self) -> str:
        return self.fault.get("damage") or self.fault["kind"]

    def __str__(self) -> str:
        where = {
            "moment": f" after {self.delay:.2f} s",
            "full": f", files up to {self.fault.get('file_size')} bytes",
        }
        place = (
            where.get(self.kind)
            or f" in {self.fault['place']}, call {self.fault['call']} of worker "
        )
        place += "" if self.kind in where else str(self.fault["rank"] + 1)
        return (
            f"{self.kind}{place}; {self.method} {self.data}, workers {self.before} to {self.after}"
        )


def draw(seed: int, number: int, workers: list[int]) -> Case:
    chance = random.Random(f"{seed}/{number}")
    kind = KINDS[number % len(KINDS)]  # all kinds, in turn
    before, after = chance.choice(workers), chance.choice(workers)
    if kind == "hang":  # nobody waits for a worker that is alone
        before = max(before, 2)
    fault: dict = {"kind": kind}
    if kind == "full":
        fault["file_size"] = chance.choice([3_000, 12_000])
    elif kind in DAMAGE:
        fault |= {"kind": "killall", "place": "final", "call": 1, "rank": 0, "damage": kind}
    elif kind != "moment":
        rank = chance.randrange(before)
        places = EVERY_RANK if rank else EVERY_RANK + LEADER
        # The process that starts the workers renames files, too, and nobody waits for it.
        place = chance.choice([name for name in places if (kind, name) != ("hang", "rename")])
        call = 1 if place in ONCE else chance.randint(1, 4 if place != "checkpoint-tensors" else 2)
        fault |= {"place": place, "call": call, "rank": rank}
    method, data = chance.choice(helper.WORDS), chance.choice(list(DATA))
    return Case(number, method, data, fault, before, after, chance.uniform(0.05, 1.5))


def damage(folder: Path, how: str, chance: random.Random) -> None:
    newest = max(folder.glob("checkpoint-*"))
    file = chance.choice([file for file in sorted(newest.iterdir()) if file.stat().st_size])
    content = bytearray(file.read_bytes())
    place = chance.randrange(len(content))
    if how == "flipped":
        content[place] ^= 1 << chance.randrange(8)
    file.write_bytes(content if how == "flipped" else content[:place])


def problem(case: Case) -> str:
    """What went wrong in this folder, or nothing."""
    whole = helper.run(*case.words, "results=whole", "runtime.workers=1")
    if whole.status != 0:
        return (
            REFUSED
            if whole.status == 2
            else f"without a fault it ends with status {whole.status}: {whole.err}"
        )
    setting = (*case.words, "results=broken")
    struck = Path("struck").absolute()
    started = helper.start(
        {**case.fault, "marker": str(struck)}, *setting, f"runtime.workers={case.before}"
    )
    if case.fault["kind"] == "moment":
        time.sleep(case.delay)
        started.kill()
    broken = started.end()
    in_time = struck.exists() if "place" in case.fault else case.kind in IN_TIME
    if broken.status == 0 and not (in_time and case.kind in IN_TIME):
        return TOO_LATE
    how = case.fault.get("damage")
    if broken.status not in STATUS.get(case.fault["kind"], {1}):
        return f"status {broken.status}: {broken.err}"
    if broken.status in (1, 130) and case.fault["kind"] != "raise":
        lines = [line for line in broken.err.splitlines() if line.startswith("fedbench: ")]
        if len(lines) != 1 or "Traceback" in broken.err or "the same command" not in lines[0]:
            return f"not one clear line: {broken.err}"
    if how:
        damage(helper.folder_of("broken"), how, random.Random(case.number))
    resumed = helper.run(*setting, f"runtime.workers={case.after}")
    if resumed.status != 0:
        return f"the same command ended with status {resumed.status}: {resumed.err}"
    if "finished already" not in resumed.out and resumed.resumed_after < broken.rounds - (
        4 if how else 2
    ):
        return (
            f"{broken.rounds} rounds were done, but it went on after round {resumed.resumed_after}"
        )
    if helper.result(helper.folder_of("broken")) != helper.result(helper.folder_of("whole")):
        return "the numbers are not those of an undisturbed run"
    return ""


def survive(case: Case) -> str:
    with tempfile.TemporaryDirectory(prefix="fedbench-chaos-") as folder:
        os.chdir(folder)
        os.environ["FEDBENCH_DATA"] = folder
        try:
            return problem(case)
        except AssertionError as error:  # a process that hangs, or was left
            return str(error)
        finally:
            os.chdir("/")


def too_few(tried: int, late: int, at_least: int) -> str:
    """Why the faults that were tried prove nothing, or nothing: a soak that did not happen is not a
    success.
    """
    if tried < at_least:
        return f"only {tried} faults were tried, {at_least} at least are asked for (--at-least)"
    if late >= tried:
        return f"{late} faults came too late, {tried} in time: more than half must be in time"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, help="how many faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", default="1,2,3", help="numbers of workers to draw from")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="begin no fault after that time"
    )
    parser.add_argument("--at-least", type=int, default=1, help="fail when fewer faults were tried")
    parser.add_argument("--only", type=int, help="only the fault of this number")
    options = parser.parse_args()
    torch.set_num_threads(1)  # runs are forked from here: no thread pool
    workers = [int(word) for word in options.workers.split(",")]
    tried, survived, failed, late, began = Counter(), Counter(), [], 0, time.monotonic()
    for number in [options.only] if options.only is not None else range(options.count):
        if time.monotonic() - began > 60 * options.minutes:
            break
        case = draw(options.seed, number, workers)
        started, found = time.monotonic(), survive(case)
        nothing = found in (REFUSED, TOO_LATE)
        verdict = found if nothing else "LOST" if found else "survived"
        print(f"{number:4d} {verdict:8s} {case}  {time.monotonic() - started:.1f} s", flush=True)
        late += found == TOO_LATE
        if nothing:
            continue
        tried[case.kind] += 1
        survived[case.kind] += not found
        if found:
            failed.append(number)
            print(found)
    for kind in KINDS:
        if tried[kind]:
            print(f"{kind:9s} {survived[kind]} of {tried[kind]}")
    print(
        f"survived {sum(survived.values())} of {sum(tried.values())} faults,"
        f" {time.monotonic() - began:.0f} s"
    )
    for number in failed:
        print(
            f"again: scripts/chaos.py 1 --seed {options.seed} --workers {options.workers} --only"
            f" {number}"
        )
    objection = too_few(sum(tried.values()), late, max(options.at_least, 1))
    if objection:
        print(objection)
    return 1 if failed or objection else 0


if __name__ == "__main__":
    sys.exit(main())
