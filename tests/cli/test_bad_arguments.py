"""Bad arguments of the other commands: one line and status 2, nothing written."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedbench.data.prepare import cli as data_command
from fedbench.study import command as tables_command
from fedbench.study import reproduce

TABLES = {
    "--foo": "fedbench-tables: unrecognized arguments: --foo; see fedbench-tables --help",
    "--scale huge": "argument --scale: invalid choice: 'huge'",
    "--only": "argument --only: expected one argument",
    "nowhere": "results=nowhere: there is no such folder",
    "a b": "unrecognized arguments: b",
    ". --only fedpgvc/table99": "--only=fedpgvc/table99: did you mean",
    ". --only digits/methods": "results=.: no plan of digits/methods there",
}
REPRODUCE = {
    "--foo": "reproduce_tables.py: unrecognized arguments: --foo; see reproduce_tables.py --help",
    "--scale huge": "argument --scale: invalid choice: 'huge'",
    "--jobs 0": "--jobs=0: an integer above 0 is allowed",
    "--jobs many": "argument --jobs: invalid int value: 'many'",
    "--only nope": "--only=nope: choose from",
}
DATA = {
    "": "fedbench-data: the following arguments are required: NAME",
    "mnits": "unknown dataset 'mnits': did you mean 'mnist'?",
    "--foo": "fedbench-data: ",
    "svhn --from nowhere": "--from nowhere: no such file or folder",
    "svhn --from . --download": "--from and --download: must be only one of them",
    "mnist --size 64": "--size 64: only for lc25000",
    "lc25000 --size 3 --from .": "--size 3: must be from 8 to 768",
    "lc25000 --size big": "invalid int value: 'big'",
    "svhn --from TEXT": "must be a folder, or a zip or tar archive",
    "svhn --from CUT": "damaged",
    "cifar10 --from TEXT": "must be the published cifar-10-python.tar.gz",
}
CASES = [
    *((tables_command.main, words, told) for words, told in TABLES.items()),
    *((reproduce.main, words, told) for words, told in REPRODUCE.items()),
    *((data_command.main, words, told) for words, told in DATA.items()),
]


@pytest.mark.parametrize(
    ("main", "words", "told"), CASES, ids=lambda value: getattr(value, "__module__", value)
)
def test_one_line_and_status_2(main, words, told, tmp_path, monkeypatch, capfd):
    (tmp_path / "TEXT").write_text("hello")
    (tmp_path / "whole").write_bytes(np.random.default_rng(0).bytes(100_000))
    with tarfile.open(tmp_path / "tar", "w:gz") as archive:
        archive.add(tmp_path / "whole", "train_32x32.mat")
    (tmp_path / "CUT").write_bytes((tmp_path / "tar").read_bytes()[:50_000])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "root"))
    named = [str(tmp_path / word) if word in ("TEXT", "CUT") else word for word in words.split()]
    monkeypatch.setattr(sys, "argv", ["command", *named])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capfd.readouterr()
    assert ended.value.code == 2
    assert told in err
    assert err.count("\n") == 1, err
    assert out == ""
    assert list(Path().iterdir()) == []
    assert not list(tmp_path.rglob("*.npz"))
