"""Pictures of curves by round: of one run, and of the runs of a sweep beside each other."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.errors import one_line
from fedbench.core.files import write_atomically

# matplotlib takes long to import, and a run that is skipped draws nothing: functions import it.

# Okabe and Ito 2008, told apart in every kind of colour vision; their yellow is left out, it
# vanishes on white.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#000000")
DASHES = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
PALE = "#e4e6ea"
MOST_LINES = 10  # of a comparison; more cannot be told apart
SHORT_NAME = 45  # characters of a line's name, up to which two stand beside each other
MARKED_POINTS = 25  # rounds up to which each has its own marker
# Columns of metrics.csv, as far as a run has them, and what they are called.
ACCURACIES = {
    "test_accuracy": "test",
    "val_accuracy": "validation",
    "local_before_accuracy": "clients' own tests, as received",
    "local_after_accuracy": "clients' own tests, after local training",
}
LOSSES = {"test_loss": "test", "val_loss": "validation", "train_loss": "training"}

Curve = Mapping[int, float]  # the test accuracy at each evaluated round


def drawn(save: Callable[..., None], path: Path, *arguments: Any) -> None:
    """Have a picture drawn and written; a problem of it is one line, and never the end of a run.

    But a full disk is: it concerns the files after the picture, too.
    """
    try:
        save(path, *arguments)
    except OSError:
        raise
    except Exception as error:
        print(f"note: {path.name} was not drawn ({one_line(error)})", flush=True)


def save_curves(path: Path, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Write a PNG with accuracy and loss by round, from the rows of metrics.csv."""
    from matplotlib.figure import Figure

    rounds = [row["round"] for row in rows]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, columns, words in zip(
        figure.subplots(1, 2),
        (ACCURACIES, LOSSES),
        ("accuracy (%)", "loss"),
        strict=True,
    ):
        factor = 100 if columns is ACCURACIES else 1
        for place, (name, meaning) in enumerate(columns.items()):
            if name in rows[0]:
                values = [factor * row[name] for row in rows]
                axes.plot(rounds, values, label=meaning, **_look(place, len(rounds)))
        _finish(axes, words)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10, parse_math=False)
    _save(figure, path)


def save_comparison(path: Path, groups: Mapping[str, Sequence[Curve]]) -> None:
    """Write a PNG with the accuracy by round: a line is the mean over a group's runs, which differ
    in their seeds, and the band around it reaches from the lowest to the highest.

    Of many groups those with the highest final accuracy are shown; one whose runs have no round in
    common has no mean. Without any other nothing is written.
    """
    from matplotlib.figure import Figure

    found = {name: _by_round(runs) for name, runs in groups.items()}
    curves = {name: curve for name, curve in found.items() if curve[0]}
    if not curves:
        return
    shown = sorted(curves, key=lambda name: -curves[name][1][-1].mean())[:MOST_LINES]
    figure = Figure(figsize=(8, 0.6 + 0.22 * len(shown) + 3.4), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(name for name in curves if name in shown):
        rounds, values = curves[name]
        look = _look(place, len(rounds))
        axes.plot(rounds, values.mean(axis=1), label=name, **look)
        lowest, highest = values.min(axis=1), values.max(axis=1)
        axes.fill_between(rounds, lowest, highest, color=look["color"], alpha=0.18, linewidth=0)
    _finish(axes, "test accuracy (%)")
    axes.set_title(_description(groups, len(shown)), fontsize=10, parse_math=False)
    columns = 2 if max(map(len, shown)) <= SHORT_NAME else 1
    legend = figure.legend(loc="outside lower left", ncols=columns, frameon=False, fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a value may have a $
    _save(figure, path)


def _by_round(runs: Sequence[Curve]) -> tuple[list[int], np.ndarray]:
    """The rounds that all runs have, and the accuracies there in percent: [rounds, runs]."""
    rounds = sorted(set.intersection(*(set(run) for run in runs)))
    return rounds, np.array([[100 * run[number] for run in runs] for number in rounds])


def _description(groups: Mapping[str, Sequence[Curve]], shown: int) -> str:
    most = max(len(runs) for runs in groups.values())
    words = f"mean and range of up to {most} seeds" if most > 1 else "one seed each"
    return words if shown == len(groups) else f"{words}, the best {shown} of {len(groups)}"


def _look(place: int, points: int) -> dict[str, Any]:
    """The arguments of `Axes.plot`: another dash when all colours are used."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": DASHES[place // len(COLOURS)],
        "linewidth": 1.5,
        "marker": "o" if points <= MARKED_POINTS else "",
        "markersize": 3,
    }


def _finish(axes: Any, words: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("round")
    axes.set_ylabel(words)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Any, path: Path) -> None:
    image = io.BytesIO()
    figure.savefig(image, dpi=120, format="png")
    write_atomically(path, image.getvalue(), durable=False)
