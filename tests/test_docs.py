"""The documentation is true: its example is executed exactly as it is printed, its commands are
accepted, and the files and functions that it names exist.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from support import experiments
from support.run_files import summary

from fedbench.algorithms.algorithm import build

PROJECT = Path(__file__).parents[1]
OWN_PAGES = [
    PROJECT / "docs" / f"{name}.md" for name in ("adding-a-method", "adding-a-model", "adding-data")
]
PAGES = [*sorted(PROJECT.glob("*.md")), *sorted(PROJECT.glob("docs/*.md"))]
REFUSED = ("fedbench rounds=0", "fedbench algo=fedprx")  # printed to show how
NEEDS_FILES = ("--", "hydra", "+hydra", "data.path", "partition.path", "algo=mine")


def printed_files(page: Path) -> dict[str, str]:
    """Every code block whose path stands in the line above it."""
    return dict(
        re.findall(r"^`([\w/.]+)`\n\n```\w+\n(.*?)^```$", page.read_text(), flags=re.M | re.S)
    )


def commands_of(page: Path) -> list[str]:
    """Every `fedbench ...` of an indented block, in order, on one line and without its comment."""
    text = page.read_text().replace("\\\n", " ")
    found = re.findall(r"^    (?:\$ |torchrun .*-m )?(fedbench .*)$", text, flags=re.M)
    return [shlex.join(shlex.split(command, comments=True)) for command in found]


@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda page: page.stem)
def test_an_example_of_ones_own_runs_as_it_is_printed(page, fedbench, own_folder):
    """Its files are written into a user's own folder, and its commands are given there."""
    for name, content in printed_files(page).items():
        assert name.startswith("own/")
        file = own_folder.parent / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    commands = commands_of(page)
    assert len(commands) >= 3
    digests = {}
    for command in commands:
        ended = fedbench(*shlex.split(command)[1:], "runtime.workers=1")
        assert ended.status == 0, command + ended.err
        folder = re.findall(r"^run: (.+)$", ended.out, flags=re.M)[-1]
        digests[command] = summary(Path(folder))["digest"]
    if page.stem == "adding-a-method":  # strength zero
        assert digests[commands[-1]] == digests[commands[-2]] == digests["fedbench rounds=3"]


def test_the_example_of_a_method_is_small():
    lengths = [len(content.splitlines()) for content in printed_files(OWN_PAGES[0]).values()]
    assert all(length <= most for length, most in zip(lengths, (60, 10, 10), strict=True))


def test_settings_are_chosen_as_it_is_printed(fedbench, capfd):
    page = PROJECT / "docs" / "tuning.md"
    first, grid, search, *_ = commands_of(page)
    short = ("runtime.workers=1", "rounds=1", "client.epochs=1")
    assert fedbench(*shlex.split(first)[1:], *short).status == 0
    swept = fedbench(*shlex.split(grid)[1:], *short, "client.lr=0.01,0.5")
    assert re.search(r"^job +client.lr +.* validation +test in that round ", swept.out, flags=re.M)
    (script,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.M | re.S)
    capfd.readouterr()
    exec(compile(script, "tuning.md", "exec"), {})
    chosen = capfd.readouterr().out
    best = max(
        (summary(file.parent) for file in Path("tuning").rglob("summary.json")),
        key=lambda run: run["best_val_accuracy"],
    )
    assert re.search(rf"^best_val_accuracy +{best['best_val_accuracy']:.4g}", chosen, flags=re.M)
    assert f"{100 * best['best_val_accuracy']:.2f} %" in swept.out
    words = (*shlex.split(search)[1:], *short, "results=search", "hydra.sweeper.n_trials=2")
    found = fedbench(*words)
    assert found.status == 0, found.err
    values = [summary(file.parent) for file in Path("search").rglob("summary.json")]
    assert len(values) == 2
    assert f"'best_value': {max(run['best_val_accuracy'] for run in values)}" in found.out


def test_a_finished_run_is_extended_as_it_is_printed(fedbench):
    page = PROJECT / "docs" / "using.md"
    short, longer = [
        command for command in commands_of(page) if re.search("rounds=[24]$|keep", command)
    ]
    words = ("client.epochs=1", "runtime.workers=1")
    first = fedbench(*shlex.split(short)[1:], *words)
    second = fedbench(*shlex.split(longer)[1:], *words)
    assert summary(second.folder)["continued_from"] == first.folder.name
    assert summary(second.folder)["rounds"] == 4


def test_a_sweep_ends_with_the_table_that_is_printed(fedbench):
    page = PROJECT / "docs" / "many-runs.md"
    command = commands_of(page)[0]
    swept = fedbench(*shlex.split(command)[1:], "client.epochs=1", "rounds=1", "runtime.workers=1")
    assert swept.status == 0, swept.err
    (printed,) = re.findall(
        r"^    job .*\n(?:    .*\n)+\n    sweep: ", page.read_text(), flags=re.M
    )

    def told(text: str) -> list[list[str]]:
        """Of the table's head and rows what does not depend on the numbers."""
        lines = [line.split() for line in text.splitlines()]
        table = [words for words in lines if words and (words[0] == "job" or words[0].isdigit())]
        return [words[:4] for words in table]

    assert len(told(printed)) == 7
    assert told(swept.out) == told(printed)
    folder = re.search(r"^sweep: (.+)$", swept.out, flags=re.M).group(1)
    (rows,) = re.findall(r"^\| where \|.*\n(?:\|.*\n)+", page.read_text(), flags=re.M)
    for name in ("multirun.yaml", "summary.csv", "comparison.png", "0/outcome.json"):
        assert f"/{name.replace('0/', '<job>/')}`" in rows
        assert (Path(folder) / name).is_file()


@pytest.mark.heavy
def test_the_python_page_runs(tmp_path, data_root):
    page = (PROJECT / "docs" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S)
    assert len(blocks) == 4
    ended = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env={**os.environ, "FEDBENCH_DATA": str(data_root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "round 5/5" in ended.stdout
    assert re.search(r"^scaffold +0\.\d+ +0\.\d+ +2$", ended.stdout, flags=re.M), ended.stdout


def test_the_python_page_names_the_interface():
    import fedbench

    page = (PROJECT / "docs" / "python.md").read_text()
    for name in fedbench._HOMES:
        assert re.search(rf"`(fedbench\.)?{name}\b|fedbench\.{name}\b", page), name


def printed_commands() -> list[str]:
    """Those of all pages that can be composed without files of one's own."""
    commands = {command for page in PAGES for command in commands_of(page)}
    own = {command for page in OWN_PAGES for command in commands_of(page) if "--config" in command}
    lines = {" ".join(shlex.split(command)) for command in commands - own}
    return sorted(lines - {"fedbench", *REFUSED})


def overrides_of(command: str) -> list[str]:
    """The words that a composed configuration can be asked for; of a sweep the first value."""
    words = [word for word in command.split()[1:] if "=" in word]
    plain = [word for word in words if not any(part in word for part in (*NEEDS_FILES, "tag("))]
    return [word if "[" in word else word.split(",")[0] for word in plain]


@pytest.mark.parametrize("command", printed_commands())
def test_a_printed_command_is_accepted(command, monkeypatch):
    monkeypatch.setenv("SCRATCH", "scratch")
    config = experiments.config(*overrides_of(command))
    build(config.algo, config.scalars.client, config.scalars.server.weights)


def test_many_commands_are_found():
    commands = printed_commands()
    assert len(commands) > 50
    assert overrides_of("fedbench -m algo=fedavg,scaffold modifier=[pgvc,ecgr]") == [
        "algo=fedavg",
        "modifier=[pgvc,ecgr]",
    ]


def test_the_choices_of_every_group_are_listed():
    text = (PROJECT / "docs" / "using.md").read_text()
    for folder in (PROJECT / "conf").iterdir():
        if folder.is_dir() and folder.name not in ("hydra", "experiment"):
            row = re.search(rf"^\| .*`{folder.name}`.* \| (.*) \|$", text, flags=re.M).group(1)
            names = {file.stem for file in folder.glob("*.yaml") if file.stem[0] != "_"}
            assert names <= set(re.findall(r"\w+", row)), folder.name


def test_the_walk_through_a_round_names_what_exists():
    text = (PROJECT / "docs" / "how-it-works.md").read_text()
    steps = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", text, flags=re.M)
    assert len(steps) > 15
    for file, name in steps:
        source = (PROJECT / "src" / "fedbench" / file).read_text()
        assert re.search(rf"^ *(def|class) {name}\b", source, flags=re.M), f"{file}: {name}"


def test_the_named_files_exist():
    folders = (PROJECT, PROJECT / "src" / "fedbench")
    for page in PAGES:
        named = re.findall(r"`((?:[\w-]+/)+[\w-]*(?:\.(?:py|yaml))?)`", page.read_text())
        for path in named:
            room = path.split("/")[0]
            # Runs that a user has made in the checkout are not the project's.
            if room != "results" and room in os.listdir(folders[0]) + os.listdir(folders[1]):
                found = any((folder / path).exists() for folder in folders)
                assert found, f"{page.name}: {path}"


def test_the_readme_picture_is_drawn_from_the_files_of_runs(tmp_path):
    spec = importlib.util.spec_from_file_location(
        "readme_picture", PROJECT / "scripts" / "readme_picture.py"
    )
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folders = []
    for alpha in script.ALPHAS:
        for seed in (0, 1):
            folder = tmp_path / f"{alpha}-{seed}"
            folder.mkdir()
            config = {"partition": {"alpha": alpha}, "seed": seed}
            (folder / "config.yaml").write_text(yaml.safe_dump(config))
            (folder / "metrics.csv").write_text("round,test_accuracy\n1,0.25\n2,0.5\n")
            folders.append(folder)
    table = script.curves(folders)
    assert len(table) == 12
    assert set(table["alpha"]) == {float(alpha) for alpha in script.ALPHAS}
    script.draw(table, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_citation_names_the_version_of_the_package():
    citation = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    package = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    assert citation["version"] == package["project"]["version"]
    assert citation["license"] in (PROJECT / "LICENSE").read_text()


@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="no git history here")
def test_the_named_commits_are_commits_of_the_project():
    named = {
        (page.name, commit)
        for page in PAGES
        for commit in re.findall(r"\bcommit\s+`?([0-9a-f]{7,40})\b", page.read_text())
    }
    assert len(named) > 5
    shallow = ["git", "-C", str(PROJECT), "rev-parse", "--is-shallow-repository"]
    if subprocess.run(shallow, capture_output=True, text=True, check=False).stdout != "false\n":
        pytest.skip("not all of git's history is here")
    missing = [
        f"{page}: {commit}"
        for page, commit in sorted(named)
        if subprocess.run(
            ["git", "-C", str(PROJECT), "cat-file", "-e", f"{commit}^{{commit}}"],
            capture_output=True,
            check=False,
        ).returncode
    ]
    assert not missing


def test_the_links_lead_somewhere():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([\w-]*))?\)", page.read_text()):
            if not target.startswith(("http://", "https://")):
                file = page.parent / target if target else page
                assert file.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in anchors(file), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be linked, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
