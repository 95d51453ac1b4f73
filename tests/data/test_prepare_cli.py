"""`fedbench-data`: preparing, listing, interruptions, and its errors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from support import original_files as originals
from support.data_settings import BY_HAND, CONF, data_settings, refusal

from fedbench.data.arrays import write_npz
from fedbench.data.prepare import readers, store
from fedbench.data.prepare.catalog import ENTRIES

# Preparing and listing


def test_every_dataset_of_conf_can_be_prepared_or_is_embedded():
    assert set(ENTRIES) == {path.stem for path in (CONF / "data").glob("[!_]*.yaml")} - {
        "digits",
        "npz",
    }


def test_prepare_list_and_again(fedbench_data, tmp_path):
    given = originals.svhn(tmp_path / "given")
    status, out, err = fedbench_data("svhn", "--from", given, "--any-size")
    assert status == 0, err
    assert out.splitlines()[-1].startswith(
        f"svhn: prepared: {tmp_path / 'root' / 'svhn'}, 40 x 32x32x3 training"
    )
    assert "not byte for byte the published file" in err
    before = (tmp_path / "root" / "svhn" / "train.npz").stat().st_mtime_ns
    status, out, err = fedbench_data("svhn", "--from", given, "--any-size")
    assert (status, err) == (0, "")
    assert "there already" in out
    assert (tmp_path / "root" / "svhn" / "train.npz").stat().st_mtime_ns == before
    assert fedbench_data("svhn", "--from", given, "--any-size", "--force")[0] == 0
    assert (tmp_path / "root" / "svhn" / "train.npz").stat().st_mtime_ns > before
    assert {path.name for path in (tmp_path / "root" / "svhn").iterdir()} == {
        *(".lock", "info.json", "train.npz", "test.npz")
    }


def test_an_archive_and_a_relative_root(fedbench_data, tmp_path, monkeypatch):
    """pooch would unpack into a relative folder beside the archive."""
    (tmp_path / "archives").mkdir()
    given = originals.packed(originals.svhn(tmp_path / "given"), tmp_path / "archives" / "svhn.zip")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    status, _, err = fedbench_data("svhn", "--from", given, "--any-size", "--root", "own")
    assert status == 0, err
    assert (tmp_path / "here" / "own" / "svhn" / "train.npz").is_file()
    assert [file.name for file in given.parent.iterdir()] == ["svhn.zip"]


def test_an_archive_that_does_not_fit_on_the_disk(fedbench_data, tmp_path, monkeypatch):
    given = originals.packed(originals.svhn(tmp_path / "given"), tmp_path / "svhn.zip")
    usage = SimpleNamespace(free=10)
    monkeypatch.setattr("fedbench.data.prepare.archives.shutil.disk_usage", lambda path: usage)
    status, _, err = fedbench_data("svhn", "--from", given, "--any-size")
    assert (status, err.count("\n")) == (2, 1)
    assert "unpacked it takes" in err


def test_list_shows_size_shapes_and_source(fedbench_data, tmp_path):
    root = tmp_path / "root"
    fedbench_data(
        "lc25000", "--from", originals.lc25000(tmp_path / "given", 10), "--any-size", "--size", 16
    )
    fedbench_data("qqp", "--from", originals.qqp(tmp_path / "given"), "--any-size")
    (root / "mnist").mkdir()
    for part in ("train", "test"):
        write_npz(
            root / "mnist" / f"{part}.npz",
            images=np.zeros((3, 28, 28), np.uint8),
            labels=np.zeros(3, int),
        )
    (root / "cifar10").mkdir()
    for part in ("train", "test"):
        (root / "cifar10" / f"{part}.npz").write_bytes(b"damaged")
    status, out, err = fedbench_data("list")
    assert (status, err) == (0, "")
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines()[2:]}
    assert set(lines) == set(ENTRIES)
    assert lines["lc25000"].endswith(
        f"40 x 16x16x3 10 x 16x16x3 5 {tmp_path / 'given' / 'lung_colon_image_set'}"
    )
    assert "400 pairs 100 pairs 2" in lines["qqp"]
    assert lines["mnist"].endswith("3 x 28x28x1 3 x 28x28x1 10 unknown (no info.json)")
    assert "damaged" in lines["cifar10"]
    assert lines["svhn"].endswith("not there: fedbench-data svhn --download")
    assert lines["cinic10"].endswith("--from FILE_OR_FOLDER")


def test_info_holds_what_a_start_needs(fedbench_data, tmp_path):
    archive = originals.packed(originals.tinyimagenet(tmp_path / "given"), tmp_path / "tiny.zip")
    assert fedbench_data("tinyimagenet", "--from", archive, "--any-size")[0] == 0
    info = json.loads((tmp_path / "root" / "tinyimagenet" / "info.json").read_text())
    assert (info["shape"], info["train"], info["test"], info["source"]) == (
        [64, 64, 3],
        6,
        6,
        str(archive),
    )
    assert len(info["mean"]) == len(info["std"]) == 3
    assert (
        info["checksums"]["tiny.zip"]
        == f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"
    )


# Errors


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "required: NAME"),
        (("svnh",), "did you mean 'svhn'?"),
        (("svhn",), "--download fetches it; --from takes the folder with train_32x32.mat"),
        (("cinic10",), "datashare.ed.ac.uk"),
        (("lc25000", "--download"), "tampapath"),
        (("svhn", "--from", "nowhere"), "--from nowhere: no such file or folder"),
        (("svhn", "--from", ".", "--download"), "must be only one of them"),
        (("svhn", "--size", "64"), "only for lc25000"),
        (("lc25000", "--size", "4"), "must be from 8 to 768"),
        (("lc25000", "--size", "big"), "invalid int value"),
        (("svhn", "--frm", "x"), "unrecognized arguments"),
    ],
)
def test_usage_errors_are_one_line_and_leave_nothing(words, expected, fedbench_data, tmp_path):
    status, out, err = fedbench_data(*words)
    assert (status, out) == (2, "")
    assert err.startswith("fedbench-data: ")
    assert err.count("\n") == 1
    assert expected in err
    assert not (tmp_path / "root").exists()


def test_damaged_originals_and_places_that_cannot_be_written(fedbench_data, tmp_path):
    given = originals.svhn(tmp_path / "given")
    (tmp_path / "file").write_text("not a folder")
    status, _, err = fedbench_data("svhn", "--from", given, "--root", tmp_path / "file")
    assert (status, err.count("\n")) == (2, 1)
    (given / "train_32x32.mat").write_bytes(b"damaged")
    status, _, err = fedbench_data("svhn", "--from", given)
    assert (status, err.count("\n")) == (2, 1)
    assert "train_32x32.mat is not a readable MATLAB file" in err


@pytest.mark.parametrize("name", BY_HAND)
def test_a_run_on_data_that_cannot_be_downloaded_says_how_to_get_it(name, tmp_path):
    missing = refusal(lambda: data_settings(name, root=str(tmp_path)).load(0))
    assert f"`fedbench-data {name} --root {tmp_path} --from FILE_OR_FOLDER` prepares it" in missing
    asked = refusal(lambda: data_settings(name, root=str(tmp_path), download=True).load(0))
    assert "only for mnist" in asked
    assert f"fedbench-data {name} --from" in asked
    assert not list(tmp_path.iterdir())


# Interruptions


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Interrupt the decoding of images after some of them."""
    real = readers._decoder
    decoded: list[str] = []

    def decoder(*arguments: object, **options: object) -> Callable[[str], np.ndarray]:
        decode = real(*arguments, **options)

        def watched(name: str) -> np.ndarray:
            if len(decoded) >= after:
                raise KeyboardInterrupt
            decoded.append(name)
            return decode(name)

        return watched

    monkeypatch.setattr(readers, "_decoder", decoder)
    monkeypatch.setattr(store, "_BLOCK", 2)


@pytest.mark.parametrize("name", ["cinic10", "tinyimagenet", "lc25000"])
@pytest.mark.parametrize("ending", ["", "zip", "tar.gz"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_an_interrupted_command_leaves_nothing_and_can_be_repeated(
    name, ending, share, fedbench_data, tmp_path, monkeypatch
):
    given = getattr(originals, name)(tmp_path / "given")
    if ending:
        given = originals.packed(given, tmp_path / f"{name}.{ending}")
    words = (name, "--from", given, "--any-size", *(["--size", 16] if name == "lc25000" else []))
    assert fedbench_data(*words, "--root", tmp_path / "straight")[0] == 0
    total = {"cinic10": 40, "tinyimagenet": 12, "lc25000": 25}[name]
    folder = tmp_path / "root" / name
    with monkeypatch.context() as interrupted:
        interrupt(interrupted, after=int(share * total))
        status, _, err = fedbench_data(*words)
        assert (status, err) == (
            130,
            "fedbench-data: interrupted; repeat the command to start again\n",
        )
        assert [path.name for path in folder.iterdir()] == [".lock"]
    assert fedbench_data(*words)[0] == 0
    straight = tmp_path / "straight" / name
    files = {path.name for path in straight.iterdir()}
    assert {path.name for path in folder.iterdir()} == files
    for file in files - {".lock", "info.json"}:  # the latter has the files' times of change
        assert (folder / file).read_bytes() == (straight / file).read_bytes()


def test_an_interruption_leaves_the_dataset_that_was_there(fedbench_data, tmp_path, monkeypatch):
    given = originals.lc25000(tmp_path / "given")
    words = ("lc25000", "--from", given, "--any-size", "--size", 16)
    assert fedbench_data(*words)[0] == 0
    folder = tmp_path / "root" / "lc25000"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    interrupt(monkeypatch, after=10)
    assert fedbench_data(*words, "--force")[0] == 130
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_what_a_killed_process_left_is_cleared_away(fedbench_data, tmp_path):
    left = tmp_path / "root" / "svhn" / ".preparing" / "prepared" / "train.npz"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    assert fedbench_data("svhn", "--from", originals.svhn(tmp_path / "given"), "--any-size")[0] == 0
    names = {path.name for path in (tmp_path / "root" / "svhn").iterdir()}
    assert names == {".lock", "info.json", "train.npz", "test.npz"}
