"""Every table and figure of the papers with its state, as the page docs/tables.md.

    python -m fedbench.report.output.catalogue > docs/tables.md

Everything is read from the experiment files and from the archive, so that the page cannot say
anything else than they do.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import OmegaConf

from fedbench.config.validate import check, config_folder
from fedbench.report.experiments.experiment import (
    Cell,
    Experiment,
    compose_tree,
    load,
    names,
    not_experiments,
)
from fedbench.report.experiments.spec import DECISIVE, PAPER, SCALES
from fedbench.report.judgement.outcomes import NOT_AN_EXPERIMENT, NOT_TESTABLE_HERE, state_of
from fedbench.report.output.entry import claims_of
from fedbench.report.running.archive import archived_plans
from fedbench.report.running.ledger import study_of
from fedbench.report.running.plan import Plan
from fedbench.report.running.tune import trial_plan
from fedbench.report.running.work import work_of
from fedbench.runs.archive import ARCHIVE

# What the machine has on which the archive is made. A cell with other data is not run there, and
# neither is a network that begins with weights from elsewhere.
DATA_AT_HAND = ("digits", "mnist", "fmnist", "cifar10", "cifar100")
PRETRAINED = "_pretrained"  # how the names of such networks end
RESULTS = Path("results")
# Words of a cell that decide how many examples its runs train on: these groups and keys alone.
SIZES = (
    *("data", "data.pool", "data.subset", "model", "rounds", "cohort", "partition.clients"),
    *("client.steps", "client.epochs", "client.batch_size"),
)
COLUMNS = ("in the paper", "what it shows", *SCALES, "state", "command")
OPENING = """\
# Every table and figure

After this page you know what of the five papers can be run, at which scale and with how many runs,
and what has been decided. It is made of `conf/experiment/` and of the archive:
`python -m fedbench.report.output.catalogue > docs/tables.md`.

{counts}

- **Numbers of runs** stand below the [scale](reproduction.md#scales) at which they are made; no
  number: it cannot be run at that scale. The command is that of decisive scale where there is one,
  else that of paper scale. Tables and figures share runs.
- Where no number stands below *decisive*, it can be decided at paper scale only: a cheaper setting
  that decides was worked out for the headline claims alone. [The end](#what-paper-scale-takes) of
  the page says what that takes. What a decisive scale leaves out, its table says.
- **not decided yet**: no run at decisive or paper scale is in the
  [archive](reproduction.md#the-archive).
- **decided**, **partly decided**, **undecided**: what the archived runs say to its
  [claims](reproduction.md#claims). A claim that was tested on a part of what it names leaves its
  table partly decided.
- **not testable here**: data or weights are not on the machine on which the archive is made, or no
  measure can test what is claimed. *In part* concerns some of the cells: the others can be run.
- **no claim**: the paper claims nothing of it that a run could decide, or its claims stand at
  another table or figure, with more seeds.
- **not an experiment**: a sketch or notation, so that there is nothing to run.
- **ours**: in no paper.
"""
TAKES = """\
## What paper scale takes

Of each table and figure without a decisive scale: its runs, the training examples that go forward
and back through the network in all of them (rounds x clients of a round x local steps x batch,
and the local training before which clients are scored), and the networks. Every run is counted as
one of FedAvg; what other methods compute beyond that is not in it. Runs that several tables share
are counted in each. How long that is on a machine, and what is not at hand there, says
`fedbench-tables run --scale paper --dry-run`, which times a round of each kind.
"""


@dataclass(frozen=True)
class Row:
    """A table or figure: what it is called, what it shows, and how far it got."""

    paper: str
    number: str
    title: str
    state: str
    runs: tuple[str, ...] = ("",) * len(SCALES)  # for each scale in words
    command: str = ""  # nothing: it is no experiment
    ours: bool = False

    def markdown(self) -> str:
        number = f"{self.number} (ours)" if self.ours else self.number
        command = f"`{self.command}`" if self.command else ""
        cells = (number, self.title, *self.runs, self.state, command)
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def markdown(results: Path = RESULTS) -> str:
    """The page, with the states that the archive of these results gives."""
    found = rows(results)
    parts = [OPENING.format(counts=_counts(found))]
    for paper, members in itertools.groupby(found, key=lambda row: row.paper):
        rule = ["---", "---", *("---:" for _ in SCALES), "---", "---"]
        lines = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join(rule)} |"]
        parts.append("\n".join([f"## {paper}\n", *lines, *(row.markdown() for row in members)]))
    parts.append("\n".join([TAKES, *paper_scale([load(name) for name in names()])]))
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def paper_scale(experiments: Sequence[Experiment]) -> list[str]:
    """A table of what the runs of those take that have no decisive scale."""
    lines = ["| experiment | runs | million examples | networks |", "| --- | ---: | ---: | --- |"]
    known: dict[tuple[str, ...], tuple[int, str]] = {}
    for experiment in experiments:
        cells = experiment.cells(PAPER)
        if _is_ours(experiment) or not cells or experiment.has_scale(DECISIVE):
            continue
        runs, examples, networks = 0, 0, []
        for cell in cells:
            words = tuple(word for word in cell.overrides if word.partition("=")[0] in SIZES)
            key = (experiment.settings(), *words)
            if key not in known:
                known[key] = _training(experiment, replace(cell, overrides=words))
            each, network = known[key]
            runs += len(cell.seeds)
            examples += each * len(cell.seeds)
            networks.append(network)
        told = ", ".join(dict.fromkeys(networks))
        millions = f"{examples / 1e6:,.0f}" if examples >= 1e6 else "under 1"
        lines.append(f"| `{experiment.name}` | {runs:,} | {millions} | {told} |")
    return lines


def _training(experiment: Experiment, cell: Cell) -> tuple[int, str]:
    """The training examples of one run, and its network."""
    composed = compose_tree(experiment.job(cell, cell.seeds[0], PAPER))
    choices = dict(composed.hydra.runtime.choices)
    keys = [str(key) for key in composed if key != "hydra"]
    config = check(OmegaConf.masked_copy(composed, keys), choices)
    return int(work_of(config)["gradients"]), str(choices["model"])


def rows(results: Path = RESULTS, but: Collection[str] = ()) -> list[Row]:
    """Paper after paper: its experiments, without those named in `but`, then what is none."""
    archived = {(plan.experiment, plan.scale): plan for plan in archived_plans(results)}
    left_out = not_experiments()
    found: list[Row] = []
    experiments = [load(name) for name in names()]
    for paper, members in itertools.groupby(experiments, key=lambda experiment: experiment.paper):
        for experiment in (one for one in members if one.name not in but):
            largest = [archived.get((experiment.name, scale)) for scale in (PAPER, DECISIVE)]
            plan = next((plan for plan in largest if plan is not None), None)
            found.append(_row(experiment, plan, results))
        for number, why in left_out.get(paper, {}).items():
            found.append(Row(paper, number, why, NOT_AN_EXPERIMENT))
    return found


def _row(experiment: Experiment, archived: Plan | None, results: Path) -> Row:
    scale = DECISIVE if experiment.has_scale(DECISIVE) else PAPER
    return Row(
        experiment.paper,
        experiment.number,
        experiment.title,
        _state(experiment, archived, results),
        tuple(_runs(experiment, scale) for scale in SCALES),
        experiment.command(scale),
        ours=_is_ours(experiment),
    )


def _is_ours(experiment: Experiment) -> bool:
    return re.match(r"(Table|Figure) \w", experiment.number) is None


def _runs(experiment: Experiment, scale: str) -> str:
    count = sum(len(cell.seeds) for cell in experiment.cells(scale))
    if not count or experiment.tune is None:
        return f"{count:,}" if count else ""
    return f"{count:,} after {len(trial_plan(experiment, scale).jobs):,} trials"


def _state(experiment: Experiment, archived: Plan | None, results: Path) -> str:
    lacking = [_lacking(experiment, cell) for cell in experiment.cells(PAPER)]
    needed = ", ".join(dict.fromkeys(name for names in lacking for name in names))
    own = [claim for claim in experiment.claims if claim.untestable is None]
    if not experiment.claims:
        state = state_of([])
    elif not own:
        return f"{NOT_TESTABLE_HERE}: {experiment.claims[0].untestable}"
    elif archived is not None and archived.is_of(experiment):
        state = state_of(claims_of(study_of(archived, results / ARCHIVE)))
    elif lacking and all(lacking):
        return f"{NOT_TESTABLE_HERE}: {needed}"
    else:
        state = "not decided yet"
    return f"{state}; in part {NOT_TESTABLE_HERE}: {needed}" if needed else state


def _lacking(experiment: Experiment, cell: Cell) -> list[str]:
    """The data and weights of a cell that are not at hand, by the names that people know."""
    data, model = (experiment.choice(cell, group) for group in ("data", "model"))
    found = []
    if data and data not in DATA_AT_HAND:
        text = (config_folder() / "data" / f"{data}.yaml").read_text(encoding="utf-8")
        found.append(re.split(r"[:,]", text.lstrip("# "))[0])
    if model.endswith(PRETRAINED):
        found.append(f"weights of a pre-trained {model.removesuffix(PRETRAINED)}")
    return found


def _counts(found: list[Row]) -> str:
    """How many there are of each state, in one sentence."""
    of_papers = [row for row in found if row.command and not row.ours]
    ours = sum(row.ours for row in found)
    kinds = [re.split("[:;]", row.state)[0] for row in of_papers]
    listed = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    others = len(found) - len(of_papers) - ours
    return (
        f"{len(of_papers)} tables and figures of the papers can be made: {listed}."
        f" {others} others are sketches or notation, and {ours} experiments are ours."
    )


if __name__ == "__main__":
    print(markdown(), end="")
