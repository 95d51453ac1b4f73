"""A split from a file, the numbers that describe a split, its picture, and the partition
settings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from scipy.spatial.distance import jensenshannon
from support import experiments
from support.data_settings import CONF, refusal

from fedbench.partitions import (
    Dirichlet,
    Draw,
    FilePartition,
    Iid,
    Partition,
    PartitionSettings,
    Split,
    heterogeneity,
    partition_hash,
    save_picture,
)
from fedbench.partitions.from_file import file_content
from fedbench.partitions.statistics import class_counts

TEN = np.arange(2000) % 10  # 200 samples of each of ten classes, in turn


def write(folder: Path, content: object) -> FilePartition:
    path = folder / "split.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return FilePartition(path=str(path))


def test_file_is_used_as_it_is(tmp_path):
    partition = replace(write(tmp_path, [[3, 1], [], [0]]), incomplete=True)
    parts = partition.draw(np.zeros(5, int), 2, 0).client_indices
    assert [part.tolist() for part in parts] == [[1, 3], [], [0]]
    assert all(part.dtype == np.int64 for part in parts)
    assert heterogeneity(np.zeros(5, int), 2, parts)["unused"] == 2


def test_a_split_survives_being_written_to_a_file(tmp_path):
    parts = Dirichlet().draw(TEN, 10, 0).client_indices
    again = write(tmp_path, [part.tolist() for part in parts]).draw(TEN, 10, 99).client_indices
    assert partition_hash(again) == partition_hash(parts)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "must be a JSON file"),
        ("[[0, 1]", "must be a JSON file"),
        ("[[" + "9" * 5000 + "]]", "must be a JSON file"),
        ("[" * 100_000, "must be a JSON file"),
        ({"0": [1]}, "a list with a list"),
        ([], "a list with a list"),
        ([0, 1], "a list with a list"),
        ([[0], 1], "a list with a list"),
        ([[0, 1.0]], "client 0 has 1.0"),
        ([[0], ["1"]], 'client 1 has "1"'),
        ([[True]], "client 0 has true"),
        ([[None]], "client 0 has null"),
        ([[[0]]], "client 0 has [0]"),
        ([[0, 5]], "client 0 has index 5; it must be 0 to 4"),
        ([[-1]], "index -1"),
        ([[10**30]], "index 1000"),
        ([[0, 0]], "index 0 is in client 0 and again in client 0"),
        ([[0], [1, 0]], "index 0 is in client 0 and again in client 1"),
        ([[], []], "no client has an index"),
        (
            [[3, 1], [0]],
            (
                "2 of 5 training examples are in no client, the first is 2; if that is meant, set"
                " partition.incomplete=true"
            ),
        ),
    ],
)
def test_bad_file_is_refused_in_one_line(content, expected, tmp_path):
    partition = write(tmp_path, content)
    line = refusal(lambda: partition.draw(np.zeros(5, int), 2, 0).client_indices)
    assert line.startswith(f"partition.path={partition.path}: ")
    assert expected in line
    assert len(line) < 400


def test_file_that_is_not_there_and_a_number_of_clients_that_differs(tmp_path):
    partition = replace(write(tmp_path, [[0], [1]]), incomplete=True)
    assert "partition.path=None: must be a JSON file" in refusal(
        lambda: FilePartition().draw(TEN, 10, 0).client_indices
    )
    missing = FilePartition(path=str(tmp_path / "none.json"))
    assert "no such file" in refusal(lambda: missing.draw(TEN, 10, 0).client_indices)
    assert "no such file" in refusal(missing.content_hash)
    assert "partition.clients=3: must be null or 2" in refusal(
        lambda: replace(partition, clients=3).draw(TEN, 10, 0).client_indices
    )
    assert len(replace(partition, clients=2).draw(TEN, 10, 0).client_indices) == 2
    before = partition.content_hash()
    assert write(tmp_path, [[0], [2]]).content_hash() != before


# Measures and picture


def test_hash_tells_splits_apart():
    split = [np.array([0, 1]), np.array([2])]
    others = [
        [np.array([0, 1, 2]), np.array([], int)],
        [np.array([0]), np.array([1, 2])],
        split[::-1],
        [*split, np.array([], int)],
    ]
    hashes = {partition_hash(parts) for parts in [split, *others]}
    assert len(hashes) == 5
    assert all(len(found) == 16 for found in hashes)
    assert partition_hash([part.astype(np.int32) for part in split]) == partition_hash(split)


def test_heterogeneity_of_known_splits():
    labels = np.array([0, 0, 1, 1])
    alike = heterogeneity(labels, 2, [np.array([0, 2]), np.array([1, 3])])
    assert (alike["label_divergence"], alike["size_gini"], alike["unused"]) == (0, 0, 0)
    apart = heterogeneity(labels, 2, [np.array([0, 1]), np.array([2, 3])])
    # Against (1/2, 1/2), a client with one class: (log2(4/3) + (log2(2/3) + log2(2)) / 2) / 2.
    assert apart["label_divergence"] == pytest.approx(
        (np.log2(4 / 3) + (np.log2(2 / 3) + 1) / 2) / 2
    )
    assert (apart["classes_per_client_mean"], apart["classes_per_client_max"]) == (1, 1)
    uneven = heterogeneity(labels, 2, [np.array([0, 1, 2]), np.array([], int)])
    assert uneven["size_gini"] == pytest.approx(0.5)
    assert (uneven["size_min"], uneven["size_max"], uneven["size_mean"]) == (0, 3, 1.5)
    assert (
        uneven["classes_per_client_min"],
        uneven["classes_per_client_max"],
        uneven["unused"],
    ) == (0, 2, 1)
    assert uneven["label_divergence"] == 0  # the only client with samples is everyone
    assert json.loads(json.dumps(uneven)) == uneven


def test_label_divergence_is_weighted_by_size_and_agrees_with_scipy():
    parts = Dirichlet(alpha=0.3).draw(TEN, 10, 0).client_indices
    everyone = np.bincount(TEN)
    divergences = [
        jensenshannon(np.bincount(TEN[part], minlength=10), everyone, base=2) ** 2 for part in parts
    ]
    expected = np.average(divergences, weights=[len(part) for part in parts])
    assert heterogeneity(TEN, 10, parts)["label_divergence"] == pytest.approx(expected)


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (10, 10), (1000, 100)])
def test_picture_is_a_png_of_bounded_size(clients, classes, tmp_path):
    labels = np.arange(4000) % classes
    path = tmp_path / "partition.png"
    save_picture(
        path,
        class_counts(labels, classes, Iid(clients=clients).draw(labels, classes, 0).client_indices),
        "a title",
    )
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(header[start : start + 4], "big") for start in (16, 20))
    assert 500 < height <= width < 2000


@pytest.mark.parametrize(
    "path", sorted((CONF / "partition").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_file_names_every_setting_with_the_right_type(path):
    config = OmegaConf.load(path)
    target = type(instantiate(config))
    assert {field.name for field in fields(target)} == set(config) - {"_target_"}
    del config["_target_"]
    OmegaConf.merge(OmegaConf.structured(target), config)  # raises on a wrong type
    assert OmegaConf.to_container(config) == OmegaConf.to_container(OmegaConf.structured(target))


def test_a_file_that_names_its_training_set_is_refused_on_another(tmp_path):
    parts = Dirichlet().draw(TEN, 10, 0).client_indices
    path = tmp_path / "split.json"
    path.write_text(file_content(parts, "0123456789abcdef"))
    partition = FilePartition(path=str(path))
    split = partition.for_run(TEN, 10, 5, "0123456789abcdef")
    assert partition_hash(split.client_indices) == partition_hash(parts)
    assert split.note == ""
    line = refusal(lambda: partition.for_run(TEN, 10, 5, "fedcba9876543210"))
    assert (
        "split.json: was drawn on other training data (fingerprint 0123456789abcdef; here" in line
    )
    plain = write(tmp_path, [part.tolist() for part in parts])
    unchecked = plain.for_run(TEN, 10, 5, "fedcba9876543210")
    assert "whether it was made for this data is unknown" in unchecked.note


@pytest.mark.parametrize(
    "content",
    [
        '{"clients": [[0]]}',
        '{"fingerprint": "a", "clients": [[0]], "more": 1}',
        '{"fingerprint": 3, "clients": [[0]]}',
        '{"fingerprint": "a", "clients": {}}',
    ],
)
def test_other_objects_are_no_partition(tmp_path, content):
    (tmp_path / "split.json").write_text(content)
    partition = FilePartition(path=str(tmp_path / "split.json"))
    assert "must be" in refusal(lambda: partition.draw(np.zeros(1, int), 2, 0))


def test_a_seed_of_its_own_holds_the_partition_and_its_tests_while_the_rest_varies():
    words = ("partition.local_test=0.2", *experiments.PLAIN)
    first = experiments.parts(*words)
    same = experiments.parts(*words, "seed=5", "partition.seed=0")
    other = experiments.parts(*words, "seed=5")
    assert first.partition_hash() == same.partition_hash() != other.partition_hash()
    assert not torch.equal(first.flat.w, same.flat.w)
    assert len({first.id, same.id, other.id}) == 3


@dataclass(frozen=True)
class Given(PartitionSettings):
    """A user's own, whose indices a test gives."""

    given: list = field(default_factory=list)

    def draw(self, labels, classes, seed):
        return Split([np.array(own) for own in self.given])


@dataclass(frozen=True)
class Counted(Partition):
    """A user's own, whose table a test gives."""

    table: list = field(default_factory=list)

    def draw_counts(self, totals, rng):
        counts = np.array(self.table)
        return Draw(counts, np.ones(counts.shape, dtype=bool))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([[0, 1], [1, 2]], "Given.draw gave index 1 twice, must be once"),
        ([[0, 4]], "Given.draw gave indices from 0 to 4, must be 0 to 3"),
        ([[-1, 2]], "Given.draw gave indices from -1 to 2"),
        ([[0.0, 1.0]], "Given.draw gave 2 indices of type float64, must be int64"),
        ([[]], "Given.draw gave 0 indices"),
        ([], "Given.draw gave 0 indices"),
    ],
)
def test_what_an_own_partition_does_wrong_is_one_line(given, words):
    labels = np.arange(4) % 2
    assert words in refusal(lambda: Given(given=given).for_run(labels, 2, 0, ""))
    fine = Given(given=[[0, 2], [1]]).for_run(labels, 2, 0, "")
    assert [own.tolist() for own in fine.client_indices] == [[0, 2], [1]]


@pytest.mark.parametrize(
    "table", [[[2, 2]], [[1, 1], [1, 0]], [[3, 2], [-1, 0]], [[1.0, 1], [1, 1]]]
)
def test_a_table_that_leaves_samples_out_is_refused(table):
    labels = np.arange(4) % 2
    line = refusal(lambda: Counted(clients=2, table=table).draw(labels, 2, 0))
    assert "must be integers [2, 2] whose columns sum to the samples of each class" in line
    Counted(clients=2, table=[[1, 1], [1, 1]]).draw(labels, 2, 0)
