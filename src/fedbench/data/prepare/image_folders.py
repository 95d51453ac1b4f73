"""Readers of datasets that come as folders of single images: CINIC-10, Tiny-ImageNet and
LC25000.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable

import numpy as np

from fedbench.core.errors import BadInput
from fedbench.data.files import one_line
from fedbench.data.prepare.archives import Original
from fedbench.data.prepare.store import Workshop

_CINIC10 = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_LC25000 = {
    "colon_aca": "colon_image_sets/colon_aca",
    "colon_n": "colon_image_sets/colon_n",
    "lung_aca": "lung_image_sets/lung_aca",
    "lung_n": "lung_image_sets/lung_n",
    "lung_scc": "lung_image_sets/lung_scc",
}


def prepare_cinic10(original: Original, shop: Workshop) -> str:
    """{train,valid,test}/<class>/*.png, 32x32. The validation set, as large as the others, is left
    out.
    """
    base = original.base("train/airplane")
    parts: dict[str, dict[str, int]] = {"train": {}, "test": {}}
    for part, labels in parts.items():
        for label, name in enumerate(_CINIC10):
            labels |= dict.fromkeys(_images(original, f"{base}{part}/{name}", (".png",)), label)
    shop.images(original, parts, _decoder(original, shop.facts.shape, resize=False))
    return "CINIC-10's validation set is not used"


def prepare_tinyimagenet(original: Original, shop: Workshop) -> str:
    """train/<wnid>/images/*.JPEG, val/images/*.JPEG with val/val_annotations.txt, wnids.txt; 64x64.

    Classes are numbered in the order of their sorted names. The test set's labels were never
    published, so the validation set is the test set, as everywhere.
    """
    base = original.file("wnids.txt").removesuffix("wnids.txt")
    numbers = _class_numbers(original, f"{base}wnids.txt", shop)
    train = {}
    for wnid, label in numbers.items():
        train |= dict.fromkeys(
            _images(original, f"{base}train/{wnid}/images", (".jpeg", ".jpg")), label
        )
    test = _annotated(original, f"{base}val", numbers)
    decode = _decoder(original, shop.facts.shape, resize=False)
    shop.images(original, {"train": train, "test": test}, decode)
    return "the validation set is the test set"


def prepare_lc25000(original: Original, shop: Workshop) -> str:
    """{colon,lung}_image_sets/<class>/*.jpeg, 768x768, resized; a fifth of every class is the test
    set.

    The order of a hash of the file names decides, so the split is the same on every machine and for
    every seed.
    """
    base = original.base(_LC25000["colon_aca"])
    parts: dict[str, dict[str, int]] = {"train": {}, "test": {}}
    for label, folder in enumerate(_LC25000.values()):
        names = _images(original, base + folder, (".jpeg", ".jpg"))
        names.sort(key=lambda name: hashlib.blake2b(name.rpartition("/")[2].encode()).digest())
        held_out = round(0.2 * len(names))
        parts["test"] |= dict.fromkeys(names[:held_out], label)
        parts["train"] |= dict.fromkeys(names[held_out:], label)
    shop.images(original, parts, _decoder(original, shop.facts.shape, resize=True))
    height, width, _ = shop.facts.shape
    return f"images resized to {height}x{width}, fixed 80/20 split by class"


def _images(original: Original, folder: str, endings: tuple[str, ...]) -> list[str]:
    """The images directly in a folder. Anything else there means that the folder is not what it
    should be.
    """
    names = original.folders.get(folder, [])
    if not names:
        raise BadInput(f"{original.path}: lacks the folder {folder}, or it is empty")
    for name in names:
        if not name.lower().endswith(endings):
            raise BadInput(
                f"{original.path}: {name} is not an image; only {endings[0]} files belong there"
            )
    return list(names)


def _class_numbers(original: Original, file: str, shop: Workshop) -> dict[str, int]:
    wnids = _text(original, file).split()
    whole = len(set(wnids)) == len(wnids) and all(
        wnid.startswith("n") and wnid[1:].isdigit() for wnid in wnids
    )
    if (
        not whole
        or len(wnids) > shop.facts.classes
        or (len(wnids) < shop.facts.classes and not shop.any_size)
    ):
        need = f"{shop.facts.classes} different names such as n01443537"
        raise BadInput(f"{original.path}: {file} has {len(wnids)} names of classes, need {need}")
    return {wnid: number for number, wnid in enumerate(sorted(wnids))}


def _annotated(original: Original, folder: str, numbers: dict[str, int]) -> dict[str, int]:
    """Labels of the validation images from lines of file, class and four corners, between tabs."""
    file = original.file(f"{folder}/val_annotations.txt")
    unlabelled = dict.fromkeys(_images(original, f"{folder}/images", (".jpeg", ".jpg")))
    labels = {}
    for number, line in enumerate(_text(original, file).splitlines(), start=1):
        image, _, rest = line.partition("\t")
        name, wnid = f"{folder}/images/{image}", rest.partition("\t")[0]
        if wnid not in numbers or name not in unlabelled:
            wrong = f"the class {wnid!r}" if wnid not in numbers else f"the image {image!r}"
            raise BadInput(
                f"{original.path}: line {number} of {file} names {wrong}, which is not there"
            )
        labels[name] = numbers[wnid]
    missing = sorted(unlabelled.keys() - labels.keys())
    if missing:
        raise BadInput(
            f"{original.path}: {file} has no label for {missing[0]}" + _more(len(missing) - 1)
        )
    return labels


def _text(original: Original, file: str) -> str:
    try:
        return original.read(file).decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{original.path}: {file} is not a text file ({one_line(error)})") from error


def _more(count: int) -> str:
    return f" and {count:,} more" if count else ""


def _decoder(
    original: Original, shape: tuple[int, ...], resize: bool
) -> Callable[[str, bytes], np.ndarray]:
    """Bytes of an image file to RGB. A grey image gets three equal channels. Larger ones shrink, if
    `resize`.
    """
    from PIL import Image, UnidentifiedImageError

    height, width, _ = shape

    def decode(name: str, content: bytes) -> np.ndarray:
        subject = f"{original.path}: {name}"
        try:
            image = Image.open(io.BytesIO(content)).convert("RGB")
        except UnidentifiedImageError as error:
            raise BadInput(f"{subject} is not a readable image (no known format)") from error
        except Exception as error:  # Pillow raises whatever the format's parser stumbles over
            raise BadInput(f"{subject} is not a readable image ({one_line(error)})") from error
        found = f"{image.width}x{image.height}"
        if not resize and image.size != (width, height):
            raise BadInput(f"{subject} is {found} pixels, need {width}x{height}")
        if resize and (image.width != image.height or image.width < width):
            raise BadInput(
                f"{subject} is {found} pixels, need a square of at least {width}x{height}"
            )
        # Bilinear with Pillow's widened support, as torchvision resizes: every original pixel
        # counts.
        image = (
            image.resize((width, height), Image.Resampling.BILINEAR)
            if image.size != (width, height)
            else image
        )
        return np.asarray(image)

    return decode
