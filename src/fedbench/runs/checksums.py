"""A finished run says what its files are: summary.json has their sizes and checksums, and one of
itself.

It is written last. Whoever takes a run for finished looks whether its files are still what was
written: by size, which costs nothing, or by content.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedbench.core.files import checksum, checksum_of

SUMMARY = "summary.json"
MOST = 1 + 1e-9  # a weighted mean of ones may be a last bit above one
SEALED = (  # those of them that a run has; the picture can be drawn again
    "config.yaml",
    "partition.json",
    "partition.csv",
    "local_test.json",
    "metrics.csv",
    "clients.csv",
    "local_tests.csv",
    "predictions.npz",
    "softmax.npz",
    "conformal.csv",
    "model.safetensors",
)


def seal(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """The summary with what it says of the files beside it, as they are now."""
    files = [folder / name for name in SEALED if (folder / name).is_file()]
    facts = {file.name: {"size": file.stat().st_size, "checksum": checksum(file)} for file in files}
    content = {**summary, "files": facts}
    return {**content, "checksum": checksum_of(content)}


def examine(folder: Path, by_content: bool) -> tuple[dict[str, Any] | None, str]:
    """The summary of a finished run that is whole; else None, and what is damaged (nothing when it
    is not finished).
    """
    try:
        summary = json.loads((folder / SUMMARY).read_text())
        problem = _problem(summary) or _problem_of_files(
            folder, summary.get("files", {}), by_content
        )
    except OSError as error:
        name, missing = Path(error.filename or SUMMARY).name, isinstance(error, FileNotFoundError)
        if missing and name == SUMMARY:
            return None, ""
        return (
            None,
            f"{name} is missing" if missing else f"{name} cannot be read ({error.strerror})",
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return None, f"{SUMMARY} cannot be read ({type(error).__name__})"
    return (None, problem) if problem else (summary, "")


def _problem(summary: dict[str, Any]) -> str:
    """With the summary itself. Those of versions without checksums have none, but must make sense
    as well.
    """
    content = {key: value for key, value in summary.items() if key != "checksum"}
    if ("files" in summary or "checksum" in summary) and summary.get("checksum") != checksum_of(
        content
    ):
        return f"{SUMMARY} is not what was written"
    accuracies = [summary["best_accuracy"], summary["final_accuracy"]]
    if summary["status"] == "diverged":
        facts = summary["diverged"]
        whole = (
            accuracies == [None, None]
            and isinstance(facts["round"], int)
            and isinstance(facts["cause"], str)
        )
    else:
        shares = all(isinstance(value, float) and 0 <= value <= MOST for value in accuracies)
        whole = (
            summary["status"] == "finished" and shares and isinstance(summary["best_round"], int)
        )
    words = [summary["scoring"], summary["data"]["source"], summary["data"]["note"]]
    return (
        ""
        if whole and all(isinstance(word, str) for word in words)
        else f"{SUMMARY} has values that cannot be"
    )


def _problem_of_files(folder: Path, files: dict[str, Any], by_content: bool) -> str:
    for name, facts in files.items():
        size = (folder / name).stat().st_size
        if size != facts["size"]:
            return f"{name} has {size:,} bytes instead of {facts['size']:,}"
        if by_content and checksum(folder / name) != facts["checksum"]:
            return f"{name} is not what was written"
    return ""
