"""How the commands that make tables end when they cannot go on: one line, and a status that says
which kind it was.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedbench.core.errors import BAD_INPUT, INTERRUPTED, UNEXPECTED, BadInput
from fedbench.parallel.failures import explain


@contextmanager
def one_line_endings(program: str, results: Path) -> Iterator[None]:
    """Bad input, faults of the machine, Ctrl-C and SIGTERM; whatever nobody expected keeps its
    traceback.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except BadInput as error:
        _end(f"{program}: {error}", BAD_INPUT)
    except KeyboardInterrupt:
        _end(f"{program}: interrupted; the same command goes on", INTERRUPTED)
    except Exception as error:
        fault = explain(error, results)
        if fault is None:
            raise
        _end(f"{program}: {fault}", UNEXPECTED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(line: str, status: int) -> None:
    print(line, file=sys.stderr)
    sys.exit(status)
