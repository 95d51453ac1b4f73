"""Readers of original files: torchvision's for MNIST's relatives and CIFAR, scipy's for SVHN, own
ones for folders of single images.

A reader hands arrays or images to the writer, and returns a note for readers of results.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np

from fedbench.core.errors import BadInput, one_line
from fedbench.data.prepare.archives import SourceFiles
from fedbench.data.prepare.store import DatasetWriter
from fedbench.data.prepared import SPLITS

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
_LC25000 = (
    "colon_image_sets/colon_aca",
    "colon_image_sets/colon_n",
    "lung_image_sets/lung_aca",
    "lung_image_sets/lung_n",
    "lung_image_sets/lung_scc",
)
_JPEG = (".jpeg", ".jpg")


# Arrays


def read_mnist(source: SourceFiles, writer: DatasetWriter) -> str:
    """MNIST and Fashion-MNIST: {train,t10k}-{images-idx3,labels-idx1}-ubyte, or these with .gz."""
    _offer_idx_files(source, "MNIST", ("train", "t10k"))
    for split in SPLITS:
        dataset = _torchvision_dataset(source, "MNIST", source.scratch, train=split == "train")
        writer.write_arrays(split, dataset.data.numpy()[..., None], dataset.targets.numpy())
    return ""


def read_emnist(source: SourceFiles, writer: DatasetWriter) -> str:
    """EMNIST by class: emnist-byclass-{train,test}-{images-idx3,labels-idx1}-ubyte, or these with
    .gz. The images are stored transposed.
    """
    _offer_idx_files(source, "EMNIST", ("emnist-byclass-train", "emnist-byclass-test"))
    for split in SPLITS:
        options = {"split": "byclass", "train": split == "train"}
        dataset = _torchvision_dataset(source, "EMNIST", source.scratch, **options)
        images = dataset.data.numpy().transpose(0, 2, 1)
        writer.write_arrays(split, images[..., None], dataset.targets.numpy())
    return ""


def read_cifar10(source: SourceFiles, writer: DatasetWriter) -> str:
    """The published cifar-10-python.tar.gz."""
    return _read_cifar("CIFAR10", source, writer)


def read_cifar100(source: SourceFiles, writer: DatasetWriter) -> str:
    """The published cifar-100-python.tar.gz, with fine labels."""
    return _read_cifar("CIFAR100", source, writer)


def read_svhn(source: SourceFiles, writer: DatasetWriter) -> str:
    """SVHN's cropped digits: {train,test}_32x32.mat with X [32, 32, 3, N] and y [N, 1], where 10
    means digit 0.

    torchvision's class would refuse any file but the published one.
    """
    from scipy.io import loadmat

    for split in SPLITS:
        name = source.find(f"{split}_32x32.mat")
        try:
            arrays = loadmat(io.BytesIO(source.read(name)), variable_names=["X", "y"])
        except Exception as error:  # scipy raises whatever its parser stumbles over
            problem = f"is not a readable MATLAB file ({one_line(error)})"
            raise source.bad_file(name, problem) from error
        if "X" not in arrays or "y" not in arrays:
            raise source.bad_file(name, "must hold X (images) and y (labels)")
        images = np.asarray(arrays["X"])
        labels = np.asarray(arrays["y"]).ravel()
        if images.ndim != 4 or images.shape[3] != len(labels) or labels.dtype.kind not in "iuf":
            found = f"X is {list(images.shape)} and y has {len(labels)} labels"
            raise source.bad_file(name, f"must hold X [32, 32, 3, N] and N labels y; {found}")
        if len(labels) and not (labels.min() >= 1 and labels.max() <= 10):
            found = f"from {labels.min()} to {labels.max()}"
            raise source.bad_file(name, f"has labels {found}, must run from 1 to 10")
        writer.write_arrays(split, images.transpose(3, 0, 1, 2), labels.astype(np.int64) % 10)
    return ""


def _read_cifar(class_name: str, source: SourceFiles, writer: DatasetWriter) -> str:
    """CIFAR's files are pickles: torchvision checks the md5 of each before it opens it."""
    for split in SPLITS:
        dataset = _torchvision_dataset(source, class_name, source.folder, train=split == "train")
        writer.write_arrays(split, dataset.data, np.asarray(dataset.targets, dtype=np.int64))
    return ""


def _offer_idx_files(source: SourceFiles, class_name: str, prefixes: tuple[str, ...]) -> None:
    """Put unpacked idx files where torchvision's class looks for them."""
    from fedbench.core.torchvision_operators import import_torchvision

    extract = import_torchvision().datasets.utils.extract_archive
    folder = source.scratch / class_name / "raw"
    folder.mkdir(parents=True)
    for prefix in prefixes:
        for ending in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            name = source.find(f"{prefix}-{ending}.gz", f"{prefix}-{ending}")
            if not name.endswith(".gz"):
                shutil.copy(source.folder / name, folder)
                continue
            try:
                extract(source.folder / name, folder)
            except Exception as error:  # whatever a damaged gzip file leads to
                problem = f"is not a whole gzip file ({one_line(error)})"
                raise source.bad_file(name, problem) from error


def _torchvision_dataset(source: SourceFiles, class_name: str, *place: Any, **options: Any) -> Any:
    from fedbench.core.torchvision_operators import import_torchvision

    dataset_class = getattr(import_torchvision().datasets, class_name)
    try:
        return dataset_class(*place, **options)
    except Exception as error:  # its parsers assert, and raise whatever they stumble over
        which = "training" if options["train"] else "test"
        raise BadInput(
            f"{source.path}: torchvision cannot read the {which} files ({one_line(error)})"
        ) from error


# Folders of single images


def read_cinic10(source: SourceFiles, writer: DatasetWriter) -> str:
    """{train,valid,test}/<class>/*.png, 32x32. The validation set, as large as the others, is left
    out.
    """
    base = source.find_folder("train/airplane")
    decode = _decoder(source, writer.spec.shape, resize=False)
    labels: dict[str, dict[str, int]] = {split: {} for split in SPLITS}
    for split in SPLITS:
        for label, class_name in enumerate(_CINIC10):
            for name in _image_names(source, f"{base}{split}/{class_name}", (".png",)):
                labels[split][name] = label
    _write_splits(writer, labels, decode)
    return "CINIC-10's validation set is not used"


def read_tinyimagenet(source: SourceFiles, writer: DatasetWriter) -> str:
    """train/<wnid>/images/*.JPEG, val/images/*.JPEG with val/val_annotations.txt, wnids.txt; 64x64.

    Classes are numbered in the order of their sorted names. The test set's labels were never
    published, so the validation set is the test set, as everywhere.
    """
    base = source.find("wnids.txt").removesuffix("wnids.txt")
    numbers = _class_numbers(source, f"{base}wnids.txt", writer)
    train = {}
    for wnid, label in numbers.items():
        for name in _image_names(source, f"{base}train/{wnid}/images", _JPEG):
            train[name] = label
    test = _annotated_images(source, f"{base}val", numbers)
    decode = _decoder(source, writer.spec.shape, resize=False)
    _write_splits(writer, {"train": train, "test": test}, decode)
    return "the validation set is the test set"


def read_lc25000(source: SourceFiles, writer: DatasetWriter) -> str:
    """{colon,lung}_image_sets/<class>/*.jpeg, 768x768, resized; a fifth of every class is the test
    set.

    The order of a hash of the file names decides, so the split is the same on every machine and for
    every seed.
    """
    base = source.find_folder(_LC25000[0])
    labels: dict[str, dict[str, int]] = {split: {} for split in SPLITS}
    for label, folder in enumerate(_LC25000):
        names = _image_names(source, base + folder, _JPEG)
        names.sort(key=lambda name: hashlib.blake2b(name.rpartition("/")[2].encode()).digest())
        held_out = round(0.2 * len(names))
        labels["test"] |= dict.fromkeys(names[:held_out], label)
        labels["train"] |= dict.fromkeys(names[held_out:], label)
    _write_splits(writer, labels, _decoder(source, writer.spec.shape, resize=True))
    height, width, _ = writer.spec.shape
    return f"images resized to {height}x{width}, fixed 80/20 split by class"


def _write_splits(
    writer: DatasetWriter,
    labels: dict[str, dict[str, int]],
    decode: Callable[[str], np.ndarray],
) -> None:
    for split in SPLITS:  # both, before the first image is decoded
        writer.check_size(split, len(labels[split]))
    for split in SPLITS:
        writer.write_images(split, labels[split], decode)


def _image_names(source: SourceFiles, folder: str, endings: tuple[str, ...]) -> list[str]:
    """The images directly in a folder. Anything else there means that the folder is not what it
    should be.
    """
    names = source.by_folder.get(folder, [])
    if not names:
        raise BadInput(f"{source.path}: lacks the folder {folder}, or it is empty")
    for name in names:
        if not name.lower().endswith(endings):
            raise source.bad_file(name, f"is not an image; only {endings[0]} files belong there")
    return list(names)


def _class_numbers(source: SourceFiles, name: str, writer: DatasetWriter) -> dict[str, int]:
    wnids = _read_text(source, name).split()
    classes = writer.spec.classes
    valid = all(wnid.startswith("n") and wnid[1:].isdigit() for wnid in wnids)
    unique = len(set(wnids)) == len(wnids)
    complete = len(wnids) == classes or (writer.any_size and len(wnids) < classes)
    if not (valid and unique and complete):
        problem = f"has {len(wnids)} names of classes"
        raise source.bad_file(
            name, f"{problem}, must have {classes} different names such as n01443537"
        )
    return {wnid: number for number, wnid in enumerate(sorted(wnids))}


def _annotated_images(source: SourceFiles, folder: str, numbers: dict[str, int]) -> dict[str, int]:
    """Labels of the validation images from lines of file, class and four corners, between tabs."""
    annotations = source.find(f"{folder}/val_annotations.txt")
    images = set(_image_names(source, f"{folder}/images", _JPEG))
    labels = {}
    for number, line in enumerate(_read_text(source, annotations).splitlines(), start=1):
        image, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        name = f"{folder}/images/{image}"
        if wnid not in numbers or name not in images:
            wrong = f"the class {wnid!r}" if wnid not in numbers else f"the image {image!r}"
            raise source.bad_file(annotations, f"names {wrong} in line {number}, which is missing")
        labels[name] = numbers[wnid]
    unlabelled = sorted(images - labels.keys())
    if unlabelled:
        more = f" and {len(unlabelled) - 1:,} more" if len(unlabelled) > 1 else ""
        raise source.bad_file(annotations, f"has no label for {unlabelled[0]}{more}")
    return labels


def _read_text(source: SourceFiles, name: str) -> str:
    try:
        return source.read(name).decode()
    except UnicodeDecodeError as error:
        raise source.bad_file(name, f"is not a text file ({one_line(error)})") from error


def _decoder(
    source: SourceFiles, shape: tuple[int, ...], resize: bool
) -> Callable[[str], np.ndarray]:
    """A function from the name of an image file to its RGB pixels.

    A grey image gets three equal channels. With `resize`, larger images shrink.
    """
    from PIL import Image, UnidentifiedImageError

    height, width, _ = shape

    def decode(name: str) -> np.ndarray:
        content = source.read(name)
        try:
            image = Image.open(io.BytesIO(content)).convert("RGB")
        except UnidentifiedImageError as error:
            raise source.bad_file(name, "is not a readable image (no known format)") from error
        except Exception as error:  # Pillow raises whatever the format's parser stumbles over
            problem = f"is not a readable image ({one_line(error)})"
            raise source.bad_file(name, problem) from error
        found = f"is {image.width}x{image.height} pixels"
        if not resize and image.size != (width, height):
            raise source.bad_file(name, f"{found}, must be {width}x{height}")
        if resize and (image.width != image.height or image.width < width):
            raise source.bad_file(name, f"{found}, must be a square of at least {width}x{height}")
        if image.size != (width, height):
            # Bilinear with Pillow's widened support, as torchvision resizes: every original pixel
            # counts.
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(image)

    return decode
