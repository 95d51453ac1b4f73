"""Runs that belong to the project: `results/archive/runs/<label>/<id>`, small and in plain files.

An archived run is the folder of a finished run without what can be computed from it or is large:
its summary, configuration, curves, predicted classes and, compressed, tables of clients remain,
with their checksums; the summary names what was left out. Whoever has
the archive can make tables of it without running anything.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from fedbench.config.schema import Config
from fedbench.core.files import write_atomically
from fedbench.runs.folder import SUMMARY, RunFolder
from fedbench.runs.identity import NOT_IDENTITY, NOT_MODEL, NOT_RUNTIME

ARCHIVE = "archive"
KEPT = ("config.yaml", "metrics.csv", "predictions.npz")
TABLES = ("clients.csv", "conformal.csv", "partition.csv", "local_tests.csv")  # kept as .gz
LARGEST_TABLE = 200_000  # bytes, compressed
NOT_PLACE = ("root", "download")  # of data: where the examples are, which decides nothing


def find_run(results: Path, folder: str) -> RunFolder:
    """The run in a results folder, or in its archive if it is finished only there.

    `folder` is relative to the results: "runs/<label>/<id>".
    """
    own = RunFolder(results / folder)
    if own.finished() is not None:
        return own
    archived = RunFolder(results / ARCHIVE / folder)
    return archived if archived.finished() is not None else own


def archive_run(run: RunFolder, target: Path) -> None:
    """Write what is kept of a finished run into the folder `target`."""
    summary = run.finished()
    assert summary is not None, f"{run.path} is not finished"
    for name in KEPT:
        file = run.path / name
        if file.is_file():
            content = _packed(file) if file.suffix == ".npz" else file.read_bytes()
            write_atomically(target / name, content)
    for name in TABLES:
        file = run.path / name
        content = gzip.compress(file.read_bytes(), mtime=0) if file.is_file() else b""
        if content and len(content) <= LARGEST_TABLE:
            write_atomically(target / f"{name}.gz", content)
    facts = {key: value for key, value in summary.items() if key not in ("files", "checksum")}
    kept = {file.name.removesuffix(".gz") for file in target.iterdir()}
    facts["not_archived"] = [name for name in summary["files"] if name not in kept]
    sealed = RunFolder(target).with_checksums(facts)
    write_atomically(target / SUMMARY, json.dumps(sealed, indent=1) + "\n")


def has_settings(run: RunFolder, config: Config) -> bool:
    """Whether a finished run has the settings of a configuration, in all that decides numbers.

    A run's id would say so, but it takes the data.
    """
    summary = run.finished()
    if summary is None or summary.get("own_code", {}) != config.own_code:
        return False
    written = yaml.safe_load((run.path / "config.yaml").read_text())
    written.pop("choices", None)
    return _deciding(written) == _deciding(config.shown)


def _deciding(tree: dict[str, Any]) -> dict[str, Any]:
    left_out = {"runtime": (*NOT_RUNTIME, "device"), "data": NOT_PLACE, "model": NOT_MODEL}
    data = {"validation": 0.0, "subset_seed": None, **tree["data"]}  # a file may lack the newer two
    if data["subset_seed"] is None:
        data["subset_seed"] = tree["seed"]
    if data.get("subset") is None and data["validation"] == 0:
        data["subset_seed"] = None  # all examples
    tree = {**tree, "data": data}
    return {
        key: {name: one for name, one in value.items() if name not in left_out.get(key, ())}
        if isinstance(value, dict)
        else value
        for key, value in tree.items()
        if key not in NOT_IDENTITY
    }


def _packed(file: Path) -> bytes:
    """Classes in as few bytes as they need, compressed."""
    with np.load(file, allow_pickle=False) as stored:
        arrays: dict[str, Any] = {name: _smallest(stored[name]) for name in stored.files}
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    return packed.getvalue()


def _smallest(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not np.issubdtype(values.dtype, np.integer) or not values.size:
        return values
    for kind in (np.uint8, np.uint16):
        if values.min() >= 0 and values.max() <= np.iinfo(kind).max:
            return values.astype(kind)
    return values
