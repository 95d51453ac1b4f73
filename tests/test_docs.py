"""The example of docs/adding-a-method.md is executed, in a copy of the project, exactly as it is
printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs" / "adding-a-method.md"


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
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/test_clip.py"]
    command += ["tests/config/test_presets.py"]
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
    assert passed == 3 + 2 + 2, (
        ended.stdout
    )  # its own tests, its preset, and two algorithms with it


def test_the_links_lead_somewhere():
    for page in [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)", page.read_text()):
            if not target.startswith(("http://", "https://")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
