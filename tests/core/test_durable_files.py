"""What is reported as written is on the disk: tests do without, so this one looks."""

from __future__ import annotations

import os

import pytest

from fedbench.core.files import write_atomically


@pytest.mark.parametrize("durable", [True, False])
def test_the_content_is_on_the_disk_before_the_name_is(monkeypatch, tmp_path, durable):
    happened = []
    replace = os.replace

    def rename(source, target):
        happened.append("rename")
        replace(source, target)

    monkeypatch.setattr(
        os, "fsync", lambda file: happened.append(os.readlink(f"/proc/self/fd/{file}"))
    )
    monkeypatch.setattr(os, "replace", rename)
    write_atomically(tmp_path / "file", "text", durable)
    if durable:
        part = str(tmp_path / f".file.{os.getpid()}.part")
        assert happened == [part, "rename", str(tmp_path)]
    else:
        assert happened == ["rename"]
