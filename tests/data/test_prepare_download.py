"""Fetching published files: checked, kept after a failure, cleared away; archives put there by
hand.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from support import original_files as originals
from support.data_settings import data_settings, refusal

from fedbench.core.torchvision_operators import import_torchvision
from fedbench.data.arrays import write_npz
from fedbench.data.prepare.catalog import ENTRIES


class Publisher:
    """A server on this machine that publishes files. It counts requests, and can break off."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.files: dict[str, bytes] = {}
        self.requested: list[str] = []
        self.limit: int | None = None  # bytes after which every answer breaks off
        publisher = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.lstrip("/")
                publisher.requested.append(name)
                if name not in publisher.files:
                    self.send_error(404)
                    return
                content = publisher.files[name]
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: publisher.limit])

            def log_message(self, *words: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def publish(self, name: str, *files: Path) -> None:
        originals.publish(name, files, self.monkeypatch, self.address)
        self.files |= {file.name: file.read_bytes() for file in files}


@pytest.fixture
def publisher(monkeypatch) -> Iterator[Publisher]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    publisher = Publisher(monkeypatch)
    thread = threading.Thread(target=publisher.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield publisher
    publisher.server.shutdown()
    publisher.server.server_close()
    thread.join()


@pytest.fixture
def qqp(publisher, tmp_path) -> Path:
    """QQP's archive, published on this machine."""
    archive = originals.packed(originals.qqp(tmp_path / "given"), tmp_path / "QQP-clean.zip")
    publisher.publish("qqp", archive)
    return archive


def test_a_download_is_checked_prepared_and_cleared_away(fedbench_data, publisher, qqp, tmp_path):
    status, _, err = fedbench_data("qqp", "--download", "--any-size")
    assert (status, err) == (0, "")
    folder = tmp_path / "root" / "qqp"
    names = {".lock", "info.json", "train.npz", "test.npz", "vocabulary.txt"}
    assert {path.name for path in folder.iterdir()} == names
    info = json.loads((folder / "info.json").read_text())
    assert info["source"] == f"{publisher.address}/QQP-clean.zip"
    assert list(info["checksums"]) == ["QQP-clean.zip"]
    assert data_settings("qqp", root=str(tmp_path / "root"), download=True).load(0).vocabulary > 2


def test_a_download_of_several_files(fedbench_data, publisher, tmp_path):
    raw = originals.mnist(tmp_path / "given") / "raw"
    publisher.publish("mnist", *sorted(raw.iterdir()))
    status, _, err = fedbench_data("mnist", "--download", "--any-size")
    assert (status, err) == (0, "")
    assert sorted(publisher.requested) == sorted(path.name for path in raw.iterdir())
    dataset = data_settings("mnist", root=str(tmp_path / "root")).load(0)
    np.testing.assert_array_equal(dataset.test_x[..., 0], originals.pixels(10, 28, 28, seed=10))


def test_a_download_that_broke_off_is_repeated(fedbench_data, publisher, tmp_path):
    given = originals.svhn(tmp_path / "given")
    publisher.publish("svhn", given / "train_32x32.mat", given / "test_32x32.mat")
    test_file = publisher.files.pop("test_32x32.mat")
    status, _, err = fedbench_data("svhn", "--download", "--any-size")
    assert (status, err.count("\n")) == (2, 1)
    assert "repeat the command to try again" in err
    publisher.files["test_32x32.mat"] = test_file
    publisher.limit = 1000
    assert fedbench_data("svhn", "--download", "--any-size")[0] == 2
    publisher.limit = None
    publisher.requested.clear()
    assert not (tmp_path / "root" / "svhn" / "train.npz").exists()
    assert fedbench_data("svhn", "--download", "--any-size")[0] == 0
    assert publisher.requested == ["test_32x32.mat"]  # the other one came whole before


def test_finished_downloads_are_kept_until_the_dataset_is_prepared(
    fedbench_data, publisher, qqp, tmp_path
):
    status, _, err = fedbench_data("qqp", "--download")  # far too few examples
    assert (status, err.count("\n")) == (2, 1)
    assert fedbench_data("qqp", "--download", "--any-size")[0] == 0
    assert publisher.requested == ["QQP-clean.zip"]


def test_something_else_than_the_published_file_is_refused(fedbench_data, publisher, qqp, tmp_path):
    publisher.files["QQP-clean.zip"] = b"<html>moved</html>"
    status, _, err = fedbench_data("qqp", "--download", "--any-size")
    assert (status, err.count("\n")) == (2, 1)
    assert "what came is not the published file (md5:" in err
    assert not list((tmp_path / "root" / "qqp" / ".download").iterdir())


def test_no_network_is_one_line_for_a_run_too(publisher, qqp, tmp_path):
    publisher.files.clear()
    text = refusal(lambda: data_settings("qqp", root=str(tmp_path / "root"), download=True).load(0))
    assert text.startswith("data.download: qqp into")
    assert "failed" in text
    assert "data.source=synthetic" in text


def test_a_place_that_cannot_be_written_is_one_line_for_a_run_too(publisher, qqp, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert "failed" in refusal(
        lambda: data_settings("qqp", root=str(blocked), download=True).load(0)
    )
    assert publisher.requested == []


def test_a_waiting_process_uses_what_the_first_one_wrote(publisher, tmp_path, monkeypatch):
    arrays = {"images": originals.pixels(20, 28, 28), "labels": np.arange(20) % 10}

    class OtherWroteMeanwhile:
        def __init__(self, path: Path) -> None:
            self.folder = path.parent

        def __enter__(self) -> None:
            write_npz(self.folder / "train.npz", **arrays)
            write_npz(self.folder / "test.npz", **arrays)

        def __exit__(self, *error: object) -> None: ...

    publisher.publish("mnist", *(originals.mnist(tmp_path / "given") / "raw").iterdir())
    monkeypatch.setattr("filelock.FileLock", OtherWroteMeanwhile)
    dataset = data_settings("mnist", root=str(tmp_path), download=True).load(0)
    np.testing.assert_array_equal(dataset.train_x[..., 0], arrays["images"])
    assert publisher.requested == []


def test_files_put_there_by_hand_are_used_and_kept(fedbench_data, publisher, qqp, tmp_path):
    by_hand = tmp_path / "root" / "qqp" / "download"
    by_hand.mkdir(parents=True)
    (by_hand / "QQP-clean.zip").write_bytes(qqp.read_bytes())
    assert fedbench_data("qqp", "--any-size")[0] == 0
    assert publisher.requested == []
    assert (by_hand / "QQP-clean.zip").exists()


def test_addresses_and_checksums_are_torchvisions():
    datasets = import_torchvision().datasets
    expected = {
        "emnist": {datasets.EMNIST.url: datasets.EMNIST.md5},
        "svhn": {
            datasets.SVHN.split_list[split][0]: datasets.SVHN.split_list[split][2]
            for split in ("train", "test")
        },
    }
    for name, idx in (("mnist", datasets.MNIST), ("fmnist", datasets.FashionMNIST)):
        expected[name] = {f"{idx.mirrors[0]}{file}": md5 for file, md5 in idx.resources}
    for name, cifar in (("cifar10", datasets.CIFAR10), ("cifar100", datasets.CIFAR100)):
        expected[name] = {cifar.url: cifar.tgz_md5}
    for name, files in expected.items():
        found = {file.url: file.checksum for file in ENTRIES[name].published}
        assert found == {url: f"md5:{md5}" for url, md5 in files.items()}
        assert all(file.url.endswith(f"/{file.name}") for file in ENTRIES[name].published)
