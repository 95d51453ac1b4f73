"""torchvision's weights for the trunk of a network: found in torch hub's cache or fetched, checked,
loaded.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from fedbench.core.errors import BadInput
from fedbench.core.files import require_file, unreadable
from fedbench.models.base import read_safetensors, shorten
from fedbench.models.torchvision_operators import import_torchvision

_ENUMERATIONS = {"resnet18": "ResNet18_Weights", "vit_b_32": "ViT_B_32_Weights"}
# What torch.load raises for a file that is damaged, cut short, or something else altogether.
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
    """Where torchvision publishes the weights. The file's name ends with the beginning of its
    SHA-256.
    """
    return getattr(import_torchvision().models, _ENUMERATIONS[architecture]).IMAGENET1K_V1.url


def find_checkpoint(architecture: str, download: bool) -> Path:
    """torchvision's file in torch hub's cache, with the published hash; fetched only with
    permission.
    """
    address = checkpoint_address(architecture)
    file = Path(torch.hub.get_dir()) / "checkpoints" / address.rsplit("/", 1)[1]
    if not file.exists():
        if not download:
            raise BadInput(
                f"model.pretrained=true: {file.name} is not in {file.parent}; model.download=true"
                f" gets it from {address}, model.weights=FILE names it elsewhere"
            )
        _fetch(address, file)
    found, published = sha256(file, "model.pretrained=true"), _published_hash(file.name)
    if not found.startswith(published):
        again = "delete it and model.download=true gets it again"
        raise BadInput(
            f"model.pretrained=true: {file} has SHA-256 {found[:8]}, not {published}; {again}"
        )
    return file


def load_trunk(model: torch.nn.Module, file: Path, subject: str) -> None:
    """Copy a file's tensors into the parts of the model that are torchvision's; its classifier is
    left out.
    """
    found = {
        name: tensor
        for name, tensor in _read(file, subject).items()
        if name.split(".")[0] in model.trunk
    }
    try:
        # Without the metadata of the file, modules take old names as well as new ones.
        result = model.load_state_dict(found, strict=False)
    except RuntimeError as error:  # shapes
        reason = " ".join(str(error).splitlines()[1].split())
        raise BadInput(f"{subject}: {file.name} does not fit: {reason}") from error
    missing = [name for name in result.missing_keys if name.split(".")[0] in model.trunk]
    differences = [("lacks", missing), ("has the unknown", list(result.unexpected_keys))]
    wrong = " and ".join(f"{verb} {shorten(names)}" for verb, names in differences if names)
    if wrong:
        raise BadInput(
            f"{subject}: {file.name} {wrong}; torchvision's names for this network are needed"
        )


def sha256(file: Path, subject: str) -> str:
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(f"{subject}: {file}", error) from error


def _published_hash(name: str) -> str:
    return re.search(r"-([0-9a-f]{8,})\.", name).group(1)


def _fetch(address: str, file: Path) -> None:
    """Other processes wait and then use the same file."""
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
        by_hand = f"try again, or put the file into {file.parent}"
        raise BadInput(f"model.download=true: {address}: failed ({reason}); {by_hand}") from error


def _read(file: Path, subject: str) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        return read_safetensors(file, subject)
    require_file(file, subject)
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)  # never code
    except OSError as error:
        raise unreadable(subject, error) from error
    except _DAMAGED as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"{subject}: {file.name} is not a file of weights ({reason})") from error
    if not isinstance(tensors, dict) or not all(
        isinstance(tensor, Tensor) for tensor in tensors.values()
    ):
        raise BadInput(f"{subject}: {file.name} is not a file of named tensors")
    return tensors
