"""`fedbench-data`: preparing, listing, going on after an interruption, and its errors."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from support import original_files as originals
from support.data_settings import BY_HAND, CONF, data_settings, refusal

from fedbench.data.files import write_npz
from fedbench.data.prepare import store as workshop
from fedbench.data.prepare.catalog import ENTRIES

# Preparing and listing


def test_every_dataset_of_conf_can_be_prepared_or_is_embedded():
    assert set(ENTRIES) == {path.stem for path in (CONF / "data").glob("*.yaml")} - {
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
    assert lines["mnist"].endswith("3 x 28x28 3 x 28x28 10 unknown (no info.json)")
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
        (("svhn", "--from", ".", "--download"), "only one of them"),
        (("svhn", "--size", "64"), "only for lc25000"),
        (("lc25000", "--size", "4"), "a number from 8 to 768"),
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


# Going on


class Stops:
    """Decodes as the real one, and is interrupted at the n-th image."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.at = 0
        from fedbench.data.prepare import image_folders as folders

        real = folders._decoder

        def decoder(*arguments: object, **options: object):
            decode = real(*arguments, **options)

            def watched(name: str, content: bytes) -> np.ndarray:
                if self.at and len(self.seen) + 1 >= self.at:
                    raise KeyboardInterrupt
                self.seen.append(name)
                return decode(name, content)

            return watched

        monkeypatch.setattr(folders, "_decoder", decoder)
        monkeypatch.setattr(workshop, "_BLOCK", 2)


@pytest.mark.parametrize("name", ["cinic10", "tinyimagenet", "lc25000"])
@pytest.mark.parametrize("archive", ["", "zip", "tar.gz"])
@pytest.mark.parametrize("stop", [0.3, 0.9])
def test_an_interrupted_command_goes_on(name, archive, stop, fedbench_data, tmp_path, monkeypatch):
    given = getattr(originals, name)(tmp_path / "given")
    if archive:
        given = originals.packed(given, tmp_path / f"{name}.{archive}")
    words = (name, "--from", given, "--any-size", *(["--size", 16] if name == "lc25000" else []))
    assert fedbench_data(*words, "--root", tmp_path / "straight")[0] == 0
    decoder = Stops(monkeypatch)
    total = {"cinic10": 40, "tinyimagenet": 12, "lc25000": 25}[name]
    decoder.at = int(stop * total) + 1
    status, _, err = fedbench_data(*words)
    assert status == 130
    assert err.splitlines()[-1].startswith(
        "fedbench-data: interrupted; the same command (without --force) goes on"
    )
    folder = tmp_path / "root" / name
    assert not (folder / "info.json").exists()
    assert "begun, not finished" in fedbench_data("list")[1]
    first, decoder.at = len(decoder.seen), 0
    assert fedbench_data(*words)[0] == 0
    again = len(decoder.seen) - total
    assert 0 <= again <= 2  # at most the block that was interrupted
    assert again < first
    files = {path.name for path in (tmp_path / "straight" / name).iterdir()}
    assert {path.name for path in folder.iterdir()} == files
    for file in files - {".lock", ".checked.json"}:  # the latter has the files' times of change
        assert (folder / file).read_bytes() == (tmp_path / "straight" / name / file).read_bytes()


def test_other_originals_do_not_go_on_with_what_is_left(fedbench_data, tmp_path, monkeypatch):
    first = originals.lc25000(tmp_path / "first")
    second = originals.lc25000(tmp_path / "second", per_class=6)
    decoder = Stops(monkeypatch)
    decoder.at = 10
    assert fedbench_data("lc25000", "--from", first, "--any-size", "--size", 16)[0] == 130
    decoder.at, decoder.seen = 0, []
    assert fedbench_data("lc25000", "--from", second, "--any-size", "--size", 16)[0] == 0
    assert len(decoder.seen) == 30


def test_a_finished_part_is_not_read_again(fedbench_data, tmp_path):
    given = originals.svhn(tmp_path / "given")
    good = (given / "test_32x32.mat").read_bytes()
    (given / "test_32x32.mat").write_bytes(b"damaged")
    assert fedbench_data("svhn", "--from", given, "--any-size")[0] == 2
    (given / "test_32x32.mat").write_bytes(good)
    (given / "train_32x32.mat").write_bytes(b"not needed any more")
    assert fedbench_data("svhn", "--from", given, "--any-size")[0] == 0
