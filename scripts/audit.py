"""Ask whether the installed packages have known vulnerabilities: part of `make lint`.

A vulnerability ends in status 1. Without a network nobody can be asked: one line says so, and the
lint goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys

COMMAND = ("-m", "pip_audit", "--skip-editable", "--progress-spinner", "off", "--format", "json")
# In what pip-audit prints when its service does not answer.
UNREACHABLE = (
    "ConnectionError",
    "Connection",
    "resolve",
    "timed out",
    "Max retries",
    "ServiceError",
    "ProxyError",
)
TIMEOUT = 90  # seconds


def audit(command: list[str]) -> tuple[int, str]:
    """The exit status, and the line or lines to print."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return 0, f"audit: skipped, no answer within {TIMEOUT} seconds"
    try:
        packages = json.loads(run.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = next(iter(run.stderr.strip().splitlines()[::-1]), "no output")
        if any(sign in run.stderr for sign in UNREACHABLE):
            return (
                0,
                (
                    "audit: skipped, the list of known vulnerabilities cannot be reached"
                    f" ({reason[:100]})"
                ),
            )
        return 1, f"audit: failed ({reason[:200]})"
    found = [
        f"{entry['name']} {entry['version']}: {bug['id']}"
        for entry in packages
        for bug in entry.get("vulns", [])
    ]
    if found:
        return 1, "\n".join(["audit: known vulnerabilities", *found])
    unknown = [
        entry for entry in packages if "skip_reason" in entry
    ]  # pip-audit itself calls them fine
    if len(unknown) == len(packages):
        return 0, f"audit: skipped, none of {len(packages)} packages could be looked up"
    rest = f"; {len(unknown)} could not be looked up" if unknown else ""
    return 0, f"audit: {len(packages) - len(unknown)} packages without known vulnerabilities{rest}"


def main() -> None:
    status, told = audit([sys.executable, *COMMAND])
    print(told)
    sys.exit(status)


if __name__ == "__main__":
    main()
