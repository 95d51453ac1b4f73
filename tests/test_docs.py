"""The documentation is true: its example is executed exactly as it is printed, its commands are
accepted, and the files and functions that it names exist.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from support import experiments

from fedbench.algorithms.algorithm import build

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs" / "adding-a-method.md"
PAGES = [*sorted(PROJECT.glob("*.md")), *sorted(PROJECT.glob("docs/*.md"))]
REFUSED = ("fedbench rounds=0", "fedbench algo=fedprx")  # printed to show how
NEEDS_FILES = ("--", "hydra", "+hydra", "data.path", "partition.path", "algo=mine")


def printed_files() -> dict[str, str]:
    """Every code block whose path stands in the line above it."""
    return dict(
        re.findall(r"^`([\w/.]+)`\n\n```\w+\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    )


def test_the_example_is_small():
    files = printed_files()
    assert [Path(name).suffix for name in files] == [".py", ".yaml", ".py"]
    method, preset, _ = files.values()
    assert len(method.splitlines()) <= 60
    assert len(preset.splitlines()) <= 10


def test_the_example_runs(tmp_path):
    for folder in ("src", "conf", "tests"):
        shutil.copytree(
            PROJECT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    for name, content in printed_files().items():
        (tmp_path / name).write_text(content)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    command += ["tests/algorithms/test_clip.py", "tests/config/test_presets.py"]
    command += [
        f"tests/algorithms/test_pairs.py::test_it_runs_or_is_refused[{algo}-clip-first]"
        for algo in ("scaffold", "fedbn")
    ]
    command += ["-k", "clip", "-m", "not by_hand"]  # with the pairs, which are heavy
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    passed = int(re.search(r"(\d+) passed", ended.stdout).group(1))
    # Its own tests, its preset, and two algorithms with it.
    assert passed == 3 + 3 + 2, ended.stdout


def printed_commands() -> list[str]:
    """Every `fedbench ...` of an indented block, on one line and without its comment."""
    commands = set()
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        commands |= set(re.findall(r"^    (?:\$ |torchrun .*-m )?(fedbench .*)$", text, flags=re.M))
    lines = {" ".join(shlex.split(command, comments=True)) for command in commands}
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
            if path.split("/")[0] in os.listdir(folders[0]) + os.listdir(folders[1]):
                created = page == PAGE and path in printed_files()
                found = any((folder / path).exists() for folder in folders)
                assert found or created, f"{page.name}: {path}"


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
