"""A dataset of somebody's own, whose runs fail in the way that a job asks for: `--config-dir OWN
data=faulty`.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.data.digits import Digits

YAML = """defaults: [digits, _self_]
_target_: support.faulty_dataset.Faulty
fault: raise
"""


@dataclass(frozen=True)
class Faulty(Digits):
    fault: str = "raise"  # with seed 1; "kill" ends the process

    def load(self, seed: int) -> Any:
        if seed == 1 and self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if seed == 1:
            raise RuntimeError(f"planted {os.environ.get('PLANTED_TOKEN', 'fault')}")
        return super().load(seed)


def write(folder: Path) -> Path:
    """A folder for --config-dir."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "faulty.yaml").write_text(YAML)
    return folder
