"""`logger=tensorboard`: TensorBoard's event files of a run's numbers, in the run's folder."""

from __future__ import annotations

import importlib.util
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedbench.core.errors import BadInput
from fedbench.runs.wandb import Logger, MirroredRun

FOLDER = "tensorboard"  # in the run's folder


@dataclass
class TensorBoard:
    """Configuration, a number of every column and round, summary and picture of the partition."""

    def __post_init__(self) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise BadInput(
                "logger=tensorboard: not installed; pip install 'fedbench-lab[tensorboard]'"
            )

    def start(self, run_id: str, label: str, config: dict[str, Any], folder: Path) -> Logger:
        return _TensorBoardRun(folder / FOLDER, config)


class _TensorBoardRun(MirroredRun):
    name = "TensorBoard"

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        """A resumed run is written anew: whoever resumes logs the earlier rounds again."""
        self.mirror = folder
        shutil.rmtree(folder, ignore_errors=True)
        self.attempt(self._open)
        self.attempt(lambda writer: writer.add_text("config", _code(config)))
        if self.mirror is not None:
            print(f"TensorBoard: tensorboard --logdir {folder}", flush=True)

    def _open(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self.mirror = SummaryWriter(str(folder))

    def log(self, row: dict[str, Any]) -> None:
        self.attempt(lambda writer: _add_scalars(writer, row))

    def finish(self, summary: dict[str, Any], picture: Path) -> None:
        self.attempt(lambda writer: writer.add_text("summary", _code(summary)))
        if picture.is_file():
            with Image.open(picture) as image:
                pixels = np.asarray(image.convert("RGB"))
            self.attempt(lambda writer: writer.add_image("partition", pixels, dataformats="HWC"))
        self.close()

    def close(self) -> None:
        self.attempt(lambda writer: writer.close())


def _add_scalars(writer: Any, row: dict[str, Any]) -> None:
    for name, value in row.items():
        if name != "round":
            writer.add_scalar(name, value, int(row["round"]))


def _code(content: dict[str, Any]) -> str:
    """As a block of code in the Markdown that TensorBoard shows."""
    return "".join(f"    {line}\n" for line in json.dumps(content, indent=1).splitlines())
