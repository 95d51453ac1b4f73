"""Plans: which cells a study has, and in which folder each of its runs is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import fake_cuda, study_folders, study_small

import fedbench
from fedbench import train
from fedbench.core.errors import BadInput
from fedbench.data.dataset import DatasetSettings
from fedbench.parallel import devices
from fedbench.report.experiments.experiment import Cell, chosen, load, names
from fedbench.report.numbers.runs import Study
from fedbench.report.output.entry import with_measures
from fedbench.report.output.notes import Footnotes
from fedbench.report.running import plan as plans
from fedbench.report.running.ledger import statuses
from fedbench.report.running.plan import Job, make_plans, plan_file, read_plan, settle_jobs

AXES = {
    "data": {"A": "data=a", "B": "data=b seed=7"},
    "method": {"one": "algo=x algo.mu=1", "two": ""},
}


KEPT_PLAN = (
    '{"experiment": "small/table1", "scale": "smoke", "stamp": "x", "folders": [], "remarks": [],'
    ' "trials": false, "columns": %s, "runs": %s}'
)
COLUMNS = json.dumps(["method", "overrides", *plans.KEPT])


def quiet(done: int, wanted: int) -> None:
    pass


def plan(*wanted: str, results: str = "results", scale: str = "smoke"):
    return make_plans([(load(name), scale) for name in wanted], Path(results), 1, quiet)


@pytest.fixture(scope="module")
def configuration(tmp_path_factory) -> Path:
    return study_small.write_configuration(
        tmp_path_factory.mktemp("conf") / "conf", mixed=study_small.MIXED
    )


@pytest.fixture
def small(configuration, monkeypatch, fedbench):
    """The small experiments and `fedbench`, in an empty folder with an empty data root."""
    study_small.use(configuration, monkeypatch)
    return fedbench


@pytest.fixture
def composed(monkeypatch) -> list[list[str]]:
    """The words of every job that is composed, without composing any."""
    found = []

    def settle(task, files):
        for job in task[0]:
            found.append(job.words)
            job.folder, job.work = f"runs/{len(found)}", {"kind": "k"}
        return task[0]

    monkeypatch.setattr(plans, "settle_jobs", settle)
    return found


def test_a_plan_has_the_axes_where_every_cell_is_left_out(tmp_path):
    made = study_folders.experiment({}, AXES, skip=[{"data": ["A", "B"]}])
    planned = plans.Plan.of(made, "paper", made.cells("paper"))
    assert planned.runs.empty
    assert not len(with_measures(Study(made, "paper", statuses(planned, tmp_path), tmp_path)).runs)


def test_cells_are_the_product_of_the_axes_and_a_label_may_bring_its_seed():
    made = study_folders.experiment({}, AXES, seeds=[0, 1])
    assert made.cells("paper") == [
        Cell({"data": "A", "method": "one"}, ("data=a", "algo=x", "algo.mu=1"), (0, 1)),
        Cell({"data": "A", "method": "two"}, ("data=a",), (0, 1)),
        Cell({"data": "B", "method": "one"}, ("data=b", "algo=x", "algo.mu=1"), (7,)),
        Cell({"data": "B", "method": "two"}, ("data=b",), (7,)),
    ]
    assert made.job(made.cells("paper")[2], 7, "paper") == [
        *("experiment=made/up", "scale=paper", "data=b", "algo=x", "algo.mu=1", "seed=7")
    ]


def test_keep_and_skip_leave_cells_out_and_extra_words_win():
    scales = {
        "smoke": {
            "overrides": "rounds=2 'model.hidden=[16, 8]'",
            "keep": {"method": ["one"]},
            "extra": {"data": {"B": "rounds=5 data=c"}},
            "seeds": [3],
        }
    }
    made = study_folders.experiment(
        {}, AXES, scales=scales, skip=[{"data": "A", "method": "two"}], seeds=[0]
    )
    assert [cell.labels["data"] + cell.labels["method"] for cell in made.cells("paper")] == [
        "Aone",
        "Bone",
        "Btwo",
    ]
    assert made.cells("smoke") == [
        Cell(
            {"data": "A", "method": "one"},
            ("rounds=2", "model.hidden=[16, 8]", "data=a", "algo=x", "algo.mu=1"),
            (3,),
        ),
        Cell(
            {"data": "B", "method": "one"},
            ("rounds=5", "model.hidden=[16, 8]", "data=c", "algo=x", "algo.mu=1"),
            (7,),
        ),
    ]
    narrow = study_folders.experiment(
        {}, AXES, scales=scales, keep={"data": ["A"], "method": ["two", "one"]}
    )
    assert [cell.labels for cell in narrow.cells("smoke")] == [{"data": "A", "method": "one"}]


def test_a_combination_of_labels_is_written_otherwise():
    """FedAvg with PGVC is FedPGVC; FedProx with PGVC is what its labels say."""
    axes = {
        "base": {"FedAvg": "algo=fedavg", "FedProx": "algo=fedprox algo.mu=1"},
        "method": {"plain": "", "PGVC": "modifier=[pgvc]"},
        "data": {"A": "data=a rounds=3"},
    }
    together = {"of": {"base": "FedAvg", "method": "PGVC"}, "overrides": "algo=fedpgvc rounds=2"}
    scales = {
        "smoke": {"reduction": "less", "overrides": "algo=linear", "extra": {"data": {"A": "x=1"}}}
    }
    made = study_folders.experiment({}, axes, combined=[together], scales=scales)
    assert [cell.overrides for cell in made.cells("paper")] == [
        ("algo=fedavg", "data=a", "rounds=3"),
        ("data=a", "rounds=2", "algo=fedpgvc"),
        ("algo=fedprox", "algo.mu=1", "data=a", "rounds=3"),
        ("algo=fedprox", "algo.mu=1", "modifier=[pgvc]", "data=a", "rounds=3"),
    ]
    assert made.cells("smoke")[1].overrides == ("algo=fedpgvc", "data=a", "rounds=2", "x=1")


def test_a_planned_folder_is_the_one_that_the_command_writes_and_two_experiments_share_it(small):
    table, figure = plan("small/table1", "small/figure1", scale="decisive")
    assert not Path("results/runs").exists()
    job = table.jobs[1]
    outcome = small(*job.words, "hydra.mode=RUN")
    assert outcome.status == 0, outcome.err
    assert os.path.relpath(outcome.folder, "results") == job.folder
    by_labels = [
        one.runs.set_index(["method", "seed"])["folder"].to_dict() for one in (table, figure)
    ]
    assert len(by_labels[0]) == 2
    assert by_labels[0].items() <= by_labels[1].items()
    assert len(set(by_labels[1].values())) == 3


def test_experiments_that_choose_another_group_in_their_defaults_are_not_taken_for_the_same(
    small, configuration, monkeypatch, tmp_path, composed
):
    other = study_small.TABLE.replace("_settings]", "_settings, override /partition: iid]")
    folder = study_small.write_configuration(
        tmp_path / "conf", table2=other, table3=study_small.TABLE
    )
    study_small.use(folder, monkeypatch)
    one, two, three = plan("small/table1", "small/table2", "small/table3")
    assert len(composed) == 8  # table3 is table1 under another name
    assert [job.folder for job in one.jobs] == [job.folder for job in three.jobs]
    assert not {job.folder for job in one.jobs} & {job.folder for job in two.jobs}
    assert [job.words[0] for job in three.jobs] == ["experiment=small/table3"] * 4


def test_a_plan_is_kept_until_a_file_the_program_or_the_data_change(
    small, monkeypatch, tmp_path, data_root, composed
):
    folder, root = tmp_path / "conf", tmp_path / "root"
    study_small.use(study_small.write_configuration(folder), monkeypatch)
    (made,) = plan("small/table1")
    stamps = [plans.stamp()]

    def again() -> int:
        """How many jobs are composed for the same plan now."""
        before = len(composed)
        (kept,) = plan("small/table1")
        assert [job.words for job in kept.jobs] == [job.words for job in made.jobs]
        stamps.append(plans.stamp())
        return len(composed) - before

    assert again() == 0
    (folder / "model" / "mlp.yaml").write_text(
        (folder / "model" / "mlp.yaml").read_text() + "# other\n"
    )
    assert (again(), again()) == (4, 0)
    (root / "mnist").mkdir(parents=True)
    (root / "mnist" / "train.npz").write_bytes(b"1")
    monkeypatch.setenv("FEDBENCH_DATA", str(root))
    assert (again(), again()) == (4, 0)
    (root / "mnist" / "train.npz").write_bytes(b"22")
    assert again() == 4
    program = tmp_path / "program"
    program.mkdir()
    (program / "__init__.py").write_text("pass\n")
    monkeypatch.setattr(fedbench, "__file__", str(program / "__init__.py"))
    assert (again(), again()) == (4, 0)
    found = fake_cuda.gpus("NVIDIA A100")
    monkeypatch.setattr(devices, "gpus", lambda: found)
    monkeypatch.setattr(plans, "gpus", lambda: found)
    assert again() == 4
    assert len(set(stamps)) == 6


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", "3", '"cells"', "{}", "\x00"),
        '{"experiment": "small/table1", "scale": "smoke", "stamp": "x"}',
        KEPT_PLAN % ("[]", '[{"method": "FedAvg"}]'),
        KEPT_PLAN % ('["method"]', '["FedAvg"]'),
        KEPT_PLAN % (COLUMNS, '["FedAvg"]'),
        KEPT_PLAN % (COLUMNS, '[{"method": "FedAvg", "seed": 0}]'),
        KEPT_PLAN % (COLUMNS, "3"),
        KEPT_PLAN % ("3", "[]"),
    ],
)
def test_a_damaged_plan_is_none(tmp_path, content):
    file = plan_file(tmp_path, "small/table1", "smoke")
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert read_plan(tmp_path, "small/table1", "smoke") is None


@pytest.mark.parametrize(
    "words",
    [
        *("", "data.subset=150", "data.validation=0.1", "data.validation=0.1 data.subset_seed=3"),
        *("data.pool=true partition.local_test=0.2", "client.lr=0.0${seed}", "algo=fedbn"),
        "data=mnist data.source=synthetic data.subset=100 model=lenet",
    ],
)
def test_the_folders_of_all_seeds_are_those_that_their_runs_write(words):
    quick = ["rounds=1", "client.epochs=1", "partition.clients=3", "logger=none", *words.split()]
    jobs = [Job([*quick, f"seed={seed}"], seed) for seed in (1, 2, 3)]
    for job in settle_jobs((jobs, "results")):
        prepared = train.prepare(plans.compose_config([*job.words, "results=results"]))
        assert job.folder == os.path.relpath(prepared.folder.path, "results")
        config = plans.pickle.loads(job.config)
        assert (config.scalars.seed, config.tree["seed"], config.shown["seed"]) == (job.seed,) * 3


def test_a_plan_of_another_experiment_is_none_and_is_made_anew(small, composed):
    plan("small/table1")
    results, place = Path("results"), plan_file(Path("results"), "small/table1", "smoke")
    for key, value in (("experiment", "small/figure1"), ("scale", "paper")):
        content = json.loads(place.read_text()) | {key: value}
        place.write_text(json.dumps(content))
        assert read_plan(results, "small/table1", "smoke") is None
        plan("small/table1")
        assert read_plan(results, "small/table1", "smoke").stamp == plans.stamp()
    assert read_plan(results, "small/table1", "decisive") is None


def test_what_cannot_be_run_says_why_and_the_rest_is_planned(small):
    (made,) = plan("small/mixed")
    good, away, momentum, layers = made.jobs
    assert good.folder.startswith("runs/digits-")
    assert not good.problem
    assert "`fedbench-data" in away.problem
    assert "data=mnist: not in" in away.problem
    assert momentum.problem.startswith("client.momentum=0.9: must be 0 with pgvc: ")
    assert layers.problem.startswith("algo.modifiers.pvr.layers=9: must be 0 to 3: ")
    assert [job.folder for job in (away, momentum, layers)] == [""] * 3
    kept = read_plan(Path("results"), "small/mixed", "smoke")
    assert [(job.words, job.folder, job.problem) for job in kept.jobs] == [
        (job.words, job.folder, job.problem) for job in made.jobs
    ]


def test_drawn_examples_are_read_once_for_jobs_that_share_them(small, monkeypatch):
    plans._loaded.cache_clear()
    seeds, for_run = [], DatasetSettings.for_run
    monkeypatch.setattr(
        DatasetSettings, "for_run", lambda data, seed: seeds.append(seed) or for_run(data, seed)
    )
    for algo in ("fedavg", "scaffold"):
        words = ["experiment=small/table1", f"algo={algo}", "data.subset=150", "scale=paper"]
        jobs = [Job([*words, f"seed={seed}"], seed) for seed in (0, 1)]
        assert all(job.folder for job in settle_jobs((jobs, "results")))
    assert seeds == [0, 1]


def test_data_that_are_not_at_hand_refuse_all_seeds(small):
    words = ["experiment=small/table1", "data=mnist", "data.subset=150", "rounds=1", "scale=paper"]
    refused = settle_jobs(([Job([*words, f"seed={seed}"], seed) for seed in (0, 1)], "results"))
    assert [(job.folder, job.seed) for job in refused] == [("", 0), ("", 1)]
    for job in refused:
        assert job.problem.startswith("data=mnist: not in ")
        assert "fedbench-data mnist" in job.problem
        assert "\n" not in job.problem


def test_weights_that_are_not_at_hand_are_looked_for_once(small, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    asked, compose = [], plans.compose_tree
    monkeypatch.setattr(plans, "compose_tree", lambda *a: asked.append(a) or compose(*a))
    words = ["experiment=small/table1", "model=resnet18", "model.pretrained=true", "scale=paper"]
    words += ["data=cifar10", "data.source=synthetic", "data.subset=100", "rounds=1"]
    refused = settle_jobs(([Job([*words, f"seed={seed}"], seed) for seed in (0, 1)], "results"))
    assert [job.seed for job in refused] == [0, 1]
    assert len(asked) == 1
    for job in refused:
        assert job.problem.startswith("model.pretrained=true: resnet18-")
        assert not job.broken


def test_a_fault_of_the_program_stays_with_its_cell(monkeypatch):
    def fail(composed):
        raise ZeroDivisionError("why")

    monkeypatch.setattr(plans, "_checked", fail)
    (settled,) = settle_jobs(([Job(["scale=decisive"], 0)], "results"))
    assert settled.broken
    assert settled.problem.startswith("Traceback")
    assert "why" in settled.problem


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("algo=fedprox algo.muu=1", "unknown key 'algo.muu': did you mean 'algo.mu'?"),
        ("algo=fedaverage", "algo=fedaverage: did you mean 'fedavg'?"),
        ("client.lr=-1", "client.lr=-1.0: must be at least "),
        ("data=null", "Config group override must be a string or a list"),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_wrong_words_are_one_line_and_nothing_is_planned(
    tmp_path, monkeypatch, fedbench, words, told, processes
):
    content = study_small.TABLE.replace("algo=fedprox algo.mu=0.1", words)
    folder = study_small.write_configuration(tmp_path / "conf", wrong=content)
    study_small.use(folder, monkeypatch)
    with pytest.raises(BadInput) as caught:
        make_plans([(load("small/wrong"), "paper")], Path("results"), processes, quiet)
    line = f"experiment=small/wrong: scale=paper {words}: {told}"
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert not Path("results").exists()


def test_all_of_a_paper_or_one_experiment_can_be_chosen(small):
    assert names() == ["small/table1", "small/mixed", "small/figure1"]
    assert chosen("small", names()) == chosen("small/", names()) == chosen(None, names())
    assert chosen("small/mixed", names()) == ["small/mixed"]


@pytest.mark.parametrize("word", ["algo=fedbn", "algo=fednova client.steps=2"])
def test_seeds_of_a_run_that_is_fedavg_by_construction_have_the_folders_of_fedavg(word):
    steps = [part for part in word.split() if part.startswith("client")]
    jobs = {
        name: settle_jobs(
            ([Job([*words, "rounds=1", f"seed={seed}"], seed) for seed in (0, 1)], "results")
        )
        for name, words in (("asked", word.split()), ("fedavg", steps))
    }
    asked, fedavg = ([job.folder for job in jobs[name]] for name in ("asked", "fedavg"))
    assert asked == fedavg
    assert len(set(asked)) == 2


def test_a_run_that_is_fedavgs_by_construction_says_so_in_its_cell(small, tmp_path):
    """For every seed, in the plan that is kept, and as a footnote."""
    experiment = load("small/table1")
    cell = Cell({"method": "FedProx"}, ("algo=fedprox", "algo.mu=0"), (0, 1))
    jobs = [Job(experiment.job(cell, seed, "decisive"), seed) for seed in cell.seeds]
    settled = settle_jobs((jobs, "results"))
    assert [job.problem for job in settled] == ["", ""]
    assert all("is FedAvg to the bit, because" in job.instead for job in settled)
    assert "/digits-mlp-dirichlet0.5-fedavg/" in settled[1].folder
    plans.Plan.of_jobs(experiment, "decisive", settled).write(Path("results"), "")
    kept = read_plan(Path("results"), "small/table1", "decisive")
    assert [job.instead for job in kept.jobs] == [job.instead for job in settled]
    show = {"form": "table", "rows": ["method"], "measures": {"Best": "best_accuracy"}}
    made = study_folders.study(
        tmp_path / "runs",
        study_folders.experiment(show, {"method": {"A": "", "B": ""}}),
        lambda labels, seed: study_folders.metrics(0.5),
    )
    made.runs.loc[made.runs["method"] == "A", "instead"] = settled[0].instead
    notes = Footnotes(made)
    first, second = (notes.marks(runs) for runs in made.cells.values())
    assert [notes.footnotes()[mark] for mark in first] == [
        f"By construction, {settled[0].instead}."
    ]
    assert second == []
