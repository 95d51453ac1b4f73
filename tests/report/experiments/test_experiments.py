"""Every file of conf/experiment: it says what it runs, its numbers are whole, and Hydra reads it as
the studies do.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import permutations

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from support import experiments as runnable

from fedbench.config.validate import config_folder
from fedbench.report.experiments import experiment as experiments
from fedbench.report.experiments.experiment import FLAGS, REFERENCE, Experiment, names
from fedbench.report.experiments.spec import SCALES, WITHOUT_RUNS, Measure, Statement, as_measure
from fedbench.report.judgement.claims import _is_reading

NAMES = names()
load = cache(experiments.load)
# Every table and figure that is to be reproduced.
WANTED = {
    "fedpgvc": [
        *[f"table{number}" for number in range(1, 10)],
        *[f"figure{number}" for number in range(1, 18)],
        *["figure18a", "figure18b"],
    ],
    "fedpmvr": [
        *[f"table{number}" for number in (1, 2, 3)],
        *[f"figure{number}" for number in range(1, 12)],
    ],
    "ecgr": [*[f"figure{number}" for number in (2, 3, 4, 6, 7, 8, 9, 10, 11, 12)], "figure6_table"],
    "fedncv": ["table1", "table2", "figure1", "figure2", "figure3"],
    "fedgsnr": [
        *[f"table{number}" for number in (2, 3, 4)],
        *[f"figure{number}" for number in (3, 5, 8, 9, 10, 11, 12, 13)],
    ],
}
ACCURACY = {"best_accuracy", "accuracy_at_best_val", "final_accuracy", "mean_accuracy_last"}


def measures(experiment: Experiment) -> dict[str, Measure]:
    """Of the form and its parts, by label."""
    parts = [experiment.show, *getattr(experiment.show, "parts", [])]
    return {label: measure for part in parts for label, measure in part.measures.items()}


def test_all_of_them_are_there():
    assert {f"{paper}/{name}" for paper, own in WANTED.items() for name in own} <= set(NAMES)


def test_papers_come_in_order_and_tables_before_figures():
    own = [name for name in NAMES if name.startswith("fedpgvc/")]
    assert own.index("fedpgvc/table9") < own.index("fedpgvc/figure1") < own.index("fedpgvc/figure2")
    assert own.index("fedpgvc/figure9") < own.index("fedpgvc/figure10")
    assert (
        NAMES.index("fedpgvc/table1") < NAMES.index("ecgr/figure2") < NAMES.index("digits/methods")
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_with_its_command_its_number_and_its_runs(name):
    experiment = load(name)
    comments = [line for line in experiment.file.read_text().splitlines() if line.startswith("#")]
    opening = " ".join(comments)
    assert comments[1] == f"# fedbench experiment={name}"
    assert experiment.number in opening or experiment.paper == "fedbench"
    runs = sum(len(cell.seeds) for cell in experiment.cells("paper"))
    assert (runs == 0) == (experiment.show.form in WITHOUT_RUNS)
    assert re.search(rf"\b{runs:,} runs?\b", opening), (runs, opening)


@pytest.mark.parametrize("name", NAMES)
def test_its_scales_have_something_to_run(name):
    experiment = load(name)
    for scale in experiment.scales:
        if experiment.axes and experiment.has_scale(scale):
            assert experiment.cells(scale)
            assert scale == "paper" or experiment.reduction(scale)
    assert "smoke" in experiment.scales


@pytest.mark.parametrize("name", NAMES)
def test_claims_can_be_checked(name):
    experiment = load(name)
    known = set(measures(experiment)) or {"Final accuracy"}
    for claim in experiment.claims:
        assert claim.text
        assert claim.measure is None or claim.measure in known


@pytest.mark.parametrize("name", [name for name in NAMES if load(name).published])
def test_published_numbers_are_whole(name):
    experiment = load(name)
    numbers = experiment.published_numbers()
    known = set(measures(experiment)) or {"Final accuracy"}
    seen = set()
    for number in numbers:
        assert number.flag in FLAGS, number
        key = (frozenset(number.labels.items()), number.measure)
        assert key not in seen, f"twice: {number}"
        seen.add(key)
        if experiment.show.form == "datasets":
            assert number.labels["dataset"] in experiment.show.datasets
            continue
        assert set(number.labels) == set(experiment.axes), number
        assert all(label in experiment.axes[axis] for axis, label in number.labels.items()), number
        assert number.measure in known, number
        assert number.value is not None or number.flag in ("star", "none"), number
        shown = printed_numbers(number.printed)
        assert all(
            value is None or any(abs(abs(value) - one) < 1e-9 * one for one in shown)
            for value in (number.value, number.std)
        ), number


def printed_numbers(text: str) -> list[float]:
    """The numbers in a printed text: as they are, with powers of ten, minutes as seconds,
    thousands, differences.
    """
    text = (
        text.replace(",", "")
        .replace("\u2212", "-")
        .replace("\u00d7 10^", "e")
        .replace("\u00d710^", "e")
        .replace(" e", "e")
    )
    found = [float(word) for word in re.findall(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", text)]
    found += [60 * one for one in found if "minute" in text] + [
        1000 * one for one in found if "K" in text
    ]
    pairs = list(permutations(found, 2))
    return (
        found
        + [one - two for one, two in pairs if one > two]
        + [one / two for one, two in pairs if two]
    )


@pytest.mark.parametrize(
    "name", [name for name in NAMES if load(name).published and load(name).claims]
)
def test_a_paper_s_own_numbers_fulfil_its_claims(name):
    """Else the claim is not what the paper says, or the numbers are not its own."""
    experiment = load(name)
    known = measures(experiment)
    for claim in experiment.claims:
        if claim.better is None and claim.below is None:
            continue
        higher = known[claim.measure].higher_is_better
        lost = float("-inf") if higher else float("inf")
        values = {}
        for number in experiment.published_numbers():
            if number.measure == claim.measure:
                values[frozenset(number.labels.items())] = (
                    lost if number.flag in ("star", "over") else number.value
                )
        broken = [pair for pair in compared(claim, values) if not fulfils(claim, *pair, higher)]
        assert not broken, claim.text


DECISIVE = [name for name in NAMES if load(name).has_scale("decisive") and load(name).claims]


@pytest.mark.parametrize("name", DECISIVE)
def test_a_claim_has_runs_left_at_decisive_scale(name):
    """Else the scale decides nothing: it leaves out a side, or keeps further readings alone."""
    experiment = load(name)
    cells = [cell.labels for cell in experiment.cells("decisive")]
    assert any(runs_left(claim, experiment, cells) for claim in experiment.claims)


def runs_left(claim: Statement, experiment: Experiment, cells: list[dict[str, str]]) -> bool:
    """Whether a panel of the claim has both sides, or a cell. Claims that are not about further
    readings leave their cells out.
    """
    where = claim.where
    within = [cell for cell in cells if all(cell[axis] in where[axis] for axis in where)]
    if not _is_reading(claim, experiment):
        within = [cell for cell in within if not set(cell.values()) & set(experiment.readings)]
    sides = [set(claim.better or claim.equal or []), set(claim.than or claim.to or [])]
    if not any(sides):
        return bool(within) and claim.untestable is None
    panels: dict[frozenset, set[str]] = {}
    for cell in within:
        rest = frozenset(pair for pair in cell.items() if pair[0] != claim.axis)
        panels.setdefault(rest, set()).add(cell[claim.axis])
    return any(all(panel & side for side in sides) for panel in panels.values())


def compared(claim: Statement, values: dict) -> list[tuple[float, float]]:
    """The published numbers that a claim puts side by side, in every column that has both."""
    found = []
    for labels, own in values.items():
        known = dict(labels)
        inside = all(known.get(axis) in names for axis, names in claim.where.items())
        if not inside or own is None:
            continue
        if claim.below is not None:
            found.append((own, claim.below))
            continue
        if known[claim.axis] in claim.better:
            for name in claim.than:
                other = values.get(frozenset({**known, claim.axis: name}.items()))
                if other is not None:
                    found.append((own, other))
    return found


def fulfils(claim: Statement, own: float, other: float, higher: bool) -> bool:
    """Two that both failed say nothing against a claim."""
    if claim.below is not None:
        return own < other
    if own == other:
        return claim.ties or own in (float("inf"), float("-inf"))
    return (own > other) == higher


@pytest.mark.parametrize("name", NAMES)
def test_reference_rows_stand_in_every_accuracy_table(name):
    experiment = load(name)
    measured = {measure.name for measure in experiment.show.measures.values()}
    if experiment.show.form != "table" or not measured & ACCURACY:
        return
    words = {word for cell in experiment.cells("paper") for word in cell.overrides}
    assert set(REFERENCE) <= words
    if experiment.paper == "FedPGVC" and experiment.published and "method" in experiment.axes:
        assert {"algo.rho=norm", "algo.rho=eq15"} <= words or "modifier=[pgvc]" in words


@pytest.mark.parametrize("name", NAMES)
def test_it_builds_on_shared_files_that_build_on_nothing(name):
    """A reader opens the experiment and the files that it names, and has seen everything."""
    deeper = {below for shared in included(name) for below in included(shared)}
    assert not deeper, f"{name} -> {included(name)} -> {sorted(deeper)}"


def included(name: str) -> list[str]:
    """The experiment files that its list of defaults names. `_grid` holds no settings of runs: it
    only makes an experiment of a file.
    """
    entries = experiments._content(name).get("defaults", [])
    files = [entry for entry in entries if isinstance(entry, str) and entry != "_self_"]
    assert all(file.startswith("/experiment/") for file in files), files
    return [file.removeprefix("/experiment/") for file in files if file != "/experiment/_grid"]


def test_every_shared_file_is_used():
    folder = experiments.experiments_folder()
    shared = {str(file.relative_to(folder).with_suffix("")) for file in folder.glob("*/_*.yaml")}
    assert shared == {file for name in NAMES for file in included(name) if "/_" in file}


def test_a_remark_stands_in_one_file():
    """What several tables of a paper say alike, a file says that they share."""
    found: dict[tuple[str, str], list[str]] = {}
    for file in sorted(experiments.experiments_folder().glob("*/*.yaml")):
        study = experiments._content(f"{file.parent.name}/{file.stem}").get("study", {})
        shared = [one["text"] for one in (study.get("shared_remarks") or {}).values() if one]
        for sentence in [*(study.get("remarks") or []), *shared]:
            found.setdefault((file.parent.name, sentence), []).append(file.stem)
    assert not {key: files for key, files in found.items() if len(files) > 1}


def test_a_shared_remark_is_shown_and_its_labels_are_there():
    for paper in {load(name).paper for name in NAMES}:
        own = [load(name) for name in NAMES if load(name).paper == paper]
        known = {label for one in own for labels in one.axes.values() for label in labels}
        shared = {one.text: one for each in own for one in each.shared_remarks.values()}
        assert {label for one in shared.values() for label in one.labels} <= known
        assert set(shared) <= {text for one in own for text in one.remarks_shown()}


@pytest.mark.parametrize("name", NAMES)
def test_hydra_reads_the_same_study(name):
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        composed = compose("config", overrides=[f"experiment={name}"], return_hydra_config=True)
    assert composed.hydra.mode.name == "MULTIRUN"
    assert composed.hydra.sweeper._target_ == "hydra_plugins.fedbench_grid.GridSweeper"
    assert OmegaConf.to_container(composed.study) == experiments._merged(name)["study"]


@pytest.mark.parametrize("which", ["last", pytest.param("first", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("name", [name for name in NAMES if load(name).axes])
def test_its_jobs_type_check(name, which):
    """The last cell and the first at every scale but smoke, of which continuous integration runs
    all.
    """
    experiment = load(name)
    for scale in SCALES[1:]:
        if not experiment.has_scale(scale):
            continue
        cell = experiment.cells(scale)[-1 if which == "last" else 0]
        runnable.config(*experiment.job(cell, cell.seeds[0], scale))


def test_jobs_are_planned_with_their_settings_alone():
    """What a study says of tables and claims is left out of the files, and nothing else."""
    with experiments.files_without_studies() as folder:
        files = sorted(experiments.experiments_folder().rglob("*.yaml"))
        for file in files:
            whole, short = file, folder / file.relative_to(config_folder())
            assert whole.read_text().split("\n")[0] == short.read_text().split("\n")[0]  # @package
            whole, short = (yaml.safe_load(one.read_text()) or {} for one in (whole, short))
            assert {key: whole[key] for key in whole if key != "study"} == short
        words = ["experiment=fedpgvc/table2", "algo=fedprox", "algo.mu=0.4"]
        trees = [experiments.compose_tree(words, place) for place in (None, folder)]
    whole, short = (OmegaConf.to_container(tree, resolve=False) for tree in trees)
    del whole["study"]
    for tree in (whole, short):
        del tree["hydra"]["runtime"]["config_sources"]  # the folders
    assert whole == short
    assert len(files) > 80
    assert not folder.exists()


def test_a_measure_is_a_name_or_a_map():
    assert as_measure("A", "area") == as_measure("A", {"name": "area"})
    rounds = as_measure("R", {"name": "rounds_to", "target": 0.5})
    assert (rounds.label, rounds.target, rounds.window) == ("R", 0.5, 1)


def test_fedpmvr_s_tables_disagree_where_the_remark_says():
    """Table 2 counts rounds to FedAvg's best accuracy, so Table 1 tells who can reach it."""
    best, rounds = load("fedpmvr/table1"), load("fedpmvr/table2")
    accuracy = {tuple(one.labels.items()): one.value for one in best.published_numbers()}
    wrong = []
    for number in rounds.published_numbers():
        labels = number.labels
        own = accuracy[tuple(labels.items())]
        target = accuracy[tuple({**labels, "method": "FedAvg"}.items())]
        if number.measure != "Rounds" or number.flag == "none" or own is None:
            continue
        if (number.flag == "") != (own >= target):
            wrong.append(" ".join((labels["dataset"], labels["beta"], labels["method"])))
    (remark,) = [text for text in rounds.remarks if "two tables disagree" in text]
    assert len(wrong) == 10
    assert sorted(re.findall(r"\w+ (?:\(\w+\) )?0\.\d \w+", remark)) == sorted(wrong)
