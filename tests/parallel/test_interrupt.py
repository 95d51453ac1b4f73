"""The exit status after an interruption that was handled."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from fedbench.parallel.interrupt import forget_interruptions
try:
    exec("raise KeyboardInterrupt")  # as in an import that is interrupted
except KeyboardInterrupt:
    pass
if FORGET:
    forget_interruptions()
sys.exit(130)
"""


@pytest.mark.parametrize(("forget", "status"), [(True, 130), (False, -signal.SIGINT)])
def test_the_status_counts_although_an_interruption_was_handled(tmp_path, forget, status):
    """The second case shows what CPython 3.11 does by itself."""
    if not forget and sys.version_info[:2] != (3, 11):
        pytest.skip("another version of Python may do otherwise")
    (tmp_path / "program.py").write_text(PROGRAM.replace("FORGET", str(forget)))
    ended = subprocess.run([sys.executable, "-m", "program"], cwd=tmp_path, check=False)
    assert ended.returncode == status
