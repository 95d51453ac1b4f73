"""Random crops and flips: what they may do to an image, where they happen, and that they are
reproducible.
"""

from __future__ import annotations

import pytest
import torch
from support import experiments

from fedbench.core.errors import BadInput
from fedbench.data.augment import MARGIN, augment
from fedbench.data.batches import Examples


def images(count: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (count, 8, 6, 3), generator=generator, dtype=torch.uint8)


def test_a_flip_mirrors_about_half_of_the_images():
    torch.manual_seed(0)
    x = images()
    changed = augment(x, ("flip",))
    mirrored = [torch.equal(new, old.flip(1)) for new, old in zip(changed, x, strict=True)]
    same = [torch.equal(new, old) for new, old in zip(changed, x, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 15 < sum(mirrored) < 49


def test_a_crop_is_a_window_of_the_padded_image():
    torch.manual_seed(0)
    x = images()
    changed = augment(x, ("crop",))
    assert changed.shape == x.shape
    assert changed.dtype == torch.uint8
    offsets = set()
    for new, old in zip(changed, x, strict=True):
        padded = torch.zeros(8 + 2 * MARGIN, 6 + 2 * MARGIN, 3, dtype=torch.uint8)
        padded[MARGIN:-MARGIN, MARGIN:-MARGIN] = old
        found = [
            (row, column)
            for row in range(2 * MARGIN + 1)
            for column in range(2 * MARGIN + 1)
            if torch.equal(padded[row : row + 8, column : column + 6], new)
        ]
        assert len(found) == 1
        offsets |= set(found)
    assert len(offsets) > 20


def test_only_training_batches_are_changed():
    x = images()
    data = Examples(
        x, torch.zeros(64, dtype=torch.int64), (0.5,) * 3, (0.25,) * 3, ("crop", "flip")
    )
    plain = Examples(x, data.y, (0.5,) * 3, (0.25,) * 3)
    index = torch.arange(10)
    assert torch.equal(data.batch(index)[0], plain.batch(index)[0])
    assert not torch.equal(
        data.batch(index, training=True)[0], plain.batch(index, training=True)[0]
    )


def test_it_is_the_same_for_any_number_of_workers_and_another_run(fedbench):
    setting = (*experiments.DATA, *experiments.BATCH_NORM, "rounds=2", "client.epochs=1")
    runs = [
        fedbench(*setting, *words, f"results=run{number}")
        for number, words in enumerate(
            [
                ["data.augment=[crop,flip]", "runtime.workers=1"],
                ["data.augment=[flip,crop]", "runtime.workers=2"],
                ["runtime.workers=1"],
            ]
        )
    ]
    first, second, plain = ((run.folder / "model.safetensors").read_bytes() for run in runs)
    assert first == second
    assert first != plain
    assert runs[0].folder.name != runs[2].folder.name


@pytest.mark.parametrize("value", ["[turn]", "[crop,crop]"])
def test_what_is_not_allowed(value):
    with pytest.raises(BadInput, match=r"data\.augment="):
        experiments.parts(f"data.augment={value}", *experiments.PLAIN)
