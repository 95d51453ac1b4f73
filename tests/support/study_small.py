"""Small experiments in a configuration folder of their own, whose runs take a fraction of a
second.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

# so that every module that asks for the configuration folder is there to be told
import fedbench.cli
import fedbench.report.cli
from fedbench.config.validate import config_folder

SETTINGS = """# @package _global_
# What the small experiments have in common.
defaults:
  - override /logger: none
  - override /hydra/sweeper: experiment_grid
hydra:
  mode: MULTIRUN
rounds: 3
client: {epochs: 1, batch_size: 32}
partition: {clients: 3}
data: {subset: 150}
study:
  paper: Small
  seeds: [0, 1]
  provenance:
    rounds: {from: paper, why: section 1}
    client.lr: {from: choice, why: nobody says}
    algo.mu: {from: choice, why: a guess, only: {method: [FedProx]}}
  scales:
    smoke: {reduction: 2 of 3 rounds, overrides: rounds=2 data.source=real data.subset=150}
    decisive: {reduction: 1 of 3 rounds, overrides: rounds=1 data.subset=150, seeds: [0]}
"""
TABLE = """# @package _global_
# fedbench experiment=small/table1
# Small, Table 1: 2 methods x 2 seeds = 4 runs.
defaults: [/experiment/small/_settings]
study:
  number: Table 1
  title: Accuracy of two methods
  axes:
    method:
      FedAvg: algo=fedavg
      FedProx: algo=fedprox algo.mu=0.1
  show:
    form: table
    rows: [method]
    columns: []
    measures: {Best: best_accuracy, Final: final_accuracy}
  published: table1.csv
  proposed: [FedProx]
  claims:
    - {text: FedProx is better, better: FedProx, than: [FedAvg], measure: Best}
"""
PUBLISHED = """method,measure,printed,value,std,flag
FedAvg,Best,50.0 (±1.0),50.0,1.0,
FedProx,Best,60.0,60.0,,
"""
FIGURE = """# @package _global_
# fedbench experiment=small/figure1
# Small, Figure 1: the same runs as curves, and one method more. 3 methods x 2 seeds = 6 runs.
defaults: [/experiment/small/table1]
study:
  number: Figure 1
  title: Accuracy by round
  axes: {method: {local: algo=local}}
  show:
    form: curves
    panels: []
    lines: [method]
    x: round
    y: test_accuracy
    band: std
    measures: null
  published: null
  claims: []
"""
FILES = {
    "_settings.yaml": SETTINGS,
    "table1.yaml": TABLE,
    "table1.csv": PUBLISHED,
    "figure1.yaml": FIGURE,
}
# One axis whose labels need what is not there, or have no meaning.
MIXED = """# @package _global_
# fedbench experiment=small/mixed
# Small: runs that can be run and runs that cannot. 4 runs.
defaults: [/experiment/small/_settings]
study:
  number: Mixed
  title: Some cannot be run
  seeds: [0]
  axes:
    case:
      good: algo=fedavg
      away: data=mnist
      momentum: algo=fedpgvc client.momentum=0.9
      layers: algo=fedpvr algo.layers=9
  show: {form: table, rows: [case], columns: [], measures: {Best: best_accuracy}}
  scales: {smoke: {seeds: [0], overrides: rounds=1 data.source=real}}
"""
# A dataset that is not at hand beside one that is.
AWAY = """# @package _global_
# fedbench experiment=small/away
# Small: one run on data that are at hand and one on data that are not. 2 runs.
defaults: [/experiment/small/_settings]
study:
  number: Away
  title: One dataset is not at hand
  seeds: [0]
  axes: {data: {digits: "", MNIST: data=mnist}}
  scales: {decisive: null}
  show: {form: table, rows: [data], columns: [], measures: {Best: best_accuracy}}
"""


def write_configuration(folder: Path, **more: str) -> Path:
    """The program's own configuration with these experiments in place of the papers'; `more`: name
    -> content.
    """
    shutil.copytree(config_folder(), folder, ignore=shutil.ignore_patterns("experiment"))
    (folder / "experiment" / "small").mkdir(parents=True)
    for name, content in {
        **FILES,
        **{f"{name}.yaml": content for name, content in more.items()},
    }.items():
        (folder / "experiment" / "small" / name).write_text(content)
    return folder


def use(folder: Path, patch) -> None:
    """Let every module find the configuration there."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith(("fedbench", "small")) and hasattr(module, "config_folder"):
            patch.setattr(module, "config_folder", lambda: folder)


def reproduce(*words: str) -> int:
    """Call `fedbench-tables run` here; returns its status."""
    before, sys.argv = sys.argv, ["fedbench-tables", "run", *words]
    try:
        fedbench.report.cli.main()
    except SystemExit as ended:
        return ended.code
    finally:
        sys.argv = before


def fork(work: Callable[[], int]) -> int:
    """Do it in a forked process of a new session, without its output; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        with open("output.txt", "a") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        status = work()
        sys.stdout.flush()
    finally:
        os._exit(status)


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
