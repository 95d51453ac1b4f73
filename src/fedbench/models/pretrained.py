"""torchvision's weights for the trunk of a network: find or download, check and load them."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from fedbench.core.errors import BadInput, MissingData
from fedbench.core.files import require_file, unreadable
from fedbench.core.torchvision_operators import import_torchvision
from fedbench.models.base import read_safetensors, shorten

_ENUMERATIONS = {"resnet18": "ResNet18_Weights", "vit_b_32": "ViT_B_32_Weights"}
# Errors of torch.load for a file that is damaged, cut short or no file of tensors.
_DAMAGED = (
    UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    KeyError,
    AttributeError,
    TypeError,
)


def checkpoint_address(architecture: str) -> str:
    """Where torchvision publishes the weights. The file's name holds a part of its SHA-256."""
    return getattr(import_torchvision().models, _ENUMERATIONS[architecture]).IMAGENET1K_V1.url


def find_checkpoint(architecture: str, download: bool) -> Path:
    """torchvision's file in torch hub's cache, downloaded if it may be. Its hash is checked."""
    address = checkpoint_address(architecture)
    file = Path(torch.hub.get_dir()) / "checkpoints" / address.rsplit("/", 1)[1]
    if not file.exists():
        if not download:
            raise MissingData(
                f"model.pretrained=true: {file.name} is not in {file.parent}; download it with"
                f" model.download=true ({address}), or name the file with model.weights=FILE"
            )
        _fetch(address, file)
    found = sha256(file, "model.pretrained=true")
    published = _published_hash(file.name)
    if not found.startswith(published):
        raise BadInput(
            f"model.pretrained=true: {file} has SHA-256 {found[:8]}, not {published}; delete it,"
            " and download it again with model.download=true"
        )
    return file


def load_trunk(model: torch.nn.Module, trunk: tuple[str, ...], file: Path, subject: str) -> None:
    """Copy a file's tensors into the modules that `trunk` names; torchvision's classifier is not
    loaded.
    """
    found = {
        name: tensor for name, tensor in _read(file, subject).items() if name.split(".")[0] in trunk
    }
    try:
        # The dictionary has no version numbers, so modules take old names as well as new ones.
        result = model.load_state_dict(found, strict=False)
    except RuntimeError as error:  # shapes
        reason = " ".join(str(error).splitlines()[1].split())
        raise BadInput(f"{subject}: {file.name} does not fit: {reason}") from error
    missing = [name for name in result.missing_keys if name.split(".")[0] in trunk]
    differences = [("lacks", missing), ("has the unknown", list(result.unexpected_keys))]
    wrong = " and ".join(f"{verb} {shorten(names)}" for verb, names in differences if names)
    if wrong:
        raise BadInput(
            f"{subject}: {file.name} {wrong}; its names must be torchvision's for this network"
        )


def sha256(file: Path, subject: str) -> str:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(f"{subject}: {file}", error) from error


def _published_hash(name: str) -> str:
    match = re.search(r"-([0-9a-f]{8,})\.", name)
    assert match is not None, name
    return match.group(1)


def _fetch(address: str, file: Path) -> None:
    """Download the file. Other processes wait for it, and use it then."""
    from filelock import FileLock

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(f".{file.name}.lock")):
            if not file.exists():
                torch.hub.download_url_to_file(
                    address, str(file), _published_hash(file.name), sys.stderr.isatty()
                )
    except (OSError, RuntimeError) as error:  # no network, a full disk, another hash
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadInput(
            f"model.download=true: downloading {address} failed ({reason}); try again, or put the"
            f" file into {file.parent}"
        ) from error


def _read(file: Path, subject: str) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        return read_safetensors(file, subject)
    require_file(file, subject)
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)  # never code
    except OSError as error:
        raise unreadable(subject, error) from error
    except _DAMAGED as error:
        raise BadInput(
            f"{subject}: {file.name} must be a whole file of weights, as torch.save writes them"
        ) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(tensor, Tensor) for tensor in tensors.values()
    ):
        raise BadInput(f"{subject}: {file.name} must hold named tensors and nothing else")
    return tensors
