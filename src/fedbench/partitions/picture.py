"""The picture of a split: which client has how much of which class."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.files import write_atomically

# matplotlib takes long to import, and a run that is skipped draws nothing: functions import it.

_CELLS_WITH_NUMBERS = 20  # clients, and classes, up to which a cell has room for its number
_NAMED_TICKS = 40  # clients, or classes, up to which each has its own tick


def save_picture(path: Path, counts: np.ndarray, title: str) -> None:
    """Write a PNG: a map of the samples, clients x classes, under bars of the clients' sizes."""
    write_atomically(path, _picture(counts.tobytes(), str(counts.dtype), counts.shape, title))


# The runs of a sweep often share a split, and a picture takes longer than a short run.
@lru_cache(maxsize=32)
def _picture(content: bytes, kind: str, shape: tuple[int, int], title: str) -> bytes:
    from matplotlib.figure import Figure

    counts = np.frombuffer(content, kind).reshape(shape)
    clients, classes = shape
    width = float(np.clip(0.5 * clients + 2.5, 6.5, 14))
    height = float(np.clip(0.32 * classes + 2, 4, 9))
    figure = Figure(figsize=(width, height), layout="constrained")
    bars, cells = figure.subplots(2, 1, sharex=True, height_ratios=(1, max(3.0, height - 2)))
    bars.set_title(title)
    # One outline for all bars: thousands of single ones take half a minute to draw.
    bars.stairs(counts.sum(axis=1), np.arange(clients + 1) - 0.5, fill=True, color="#5b6472")
    bars.set_ylabel("samples")
    bars.spines[["top", "right"]].set_visible(False)
    image = draw_counts(cells, counts)
    bars.tick_params(which="both", bottom=False, labelbottom=False)
    bars.grid(which="minor", axis="x", color="white", linewidth=1.5)  # gaps between bars with ticks
    figure.colorbar(
        image, ax=cells, label="samples of the class", pad=0.01, fraction=0.05, aspect=30
    )
    image_file = io.BytesIO()
    figure.savefig(image_file, dpi=130, format="png")
    return image_file.getvalue()


def draw_counts(axes: Any, counts: np.ndarray, fontsize: float = 8) -> Any:
    """Draw counts [clients, classes] as a map on matplotlib's axes, with readable numbers.

    Returns the image, for a colour bar.
    """
    from matplotlib.colors import PowerNorm

    clients, classes = counts.shape
    # Dark is many, and no colour is none. viridis keeps its order in every kind of colour vision;
    # the square-root scale shows differences between the small counts of a skewed split.
    scale = PowerNorm(0.5, vmin=0, vmax=max(int(counts.max()), 1))
    shown = np.ma.masked_equal(counts.T, 0)
    image = axes.imshow(shown, aspect="auto", cmap="viridis_r", norm=scale, origin="lower")
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    if clients <= _NAMED_TICKS:
        axes.set_xticks(np.arange(clients))
        axes.set_xticks(np.arange(clients + 1) - 0.5, minor=True)
    if classes <= _NAMED_TICKS:
        axes.set_yticks(np.arange(classes))
        axes.set_yticks(np.arange(classes + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#d9dce1", linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    if max(clients, classes) <= _CELLS_WITH_NUMBERS:
        for client, label in np.argwhere(counts):
            number = int(counts[client, label])
            colour = "white" if scale(number) > 0.48 else "black"
            text = axes.text(
                client,
                label,
                f"{number}",
                ha="center",
                va="center",
                fontsize=fontsize,
                color=colour,
            )
            # It lies within the axes; measuring hundreds of texts takes longer than drawing them.
            text.set_in_layout(False)
    return image
